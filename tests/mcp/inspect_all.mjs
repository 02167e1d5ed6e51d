// Runs `mcp-inspector --cli` many times in one process, by the function that its launcher calls, and says how each run
// ended: one line of JSON with the exit code that the launcher would have ended with. Each run writes its result to the
// file that its own --output names. Arguments: the inspector's folder, and a file with a list of argument lists.
import { readFileSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, plan] = process.argv.slice(2);
const { runCli } = await import(pathToFileURL(`${folder}/clients/cli/build/index.js`).href);
for (const args of JSON.parse(readFileSync(plan, "utf8"))) {
  const ended = { code: 0, error: null };
  try {
    await runCli(["node", "mcp-inspector", ...args]);
  } catch (error) {
    ended.code = error.exitCode ?? 1;
    ended.error = error.message;
  }
  writeSync(2, `ended ${JSON.stringify(ended)}\n`);
}
process.exit(0);
