// The smallest page that does something with hacp-client: connect, run a task, show its events, cancel it.
import { HacpClient, HacpError } from "./hacp.js";

const find = (id) => document.getElementById(id);
let session = null;

/** Show a line. Text that comes from a device or a task is set as text, never as markup. */
function tell(text) {
  const item = document.createElement("li");
  item.textContent = text;
  find("events").append(item);
}

async function connect(url, token) {
  const client = new HacpClient(url, { token: token || undefined });
  client.addEventListener("state", ({ detail }) => {
    find("state").textContent = detail.reason ? `${detail.state}: ${detail.reason}` : detail.state;
  });
  await client.connect();
  await open(client);
  find("connect").hidden = true;
}

/** Open a session. It outlives a lost link; when the daemon has begun anew it is gone, and another one is opened. */
async function open(client) {
  session = await client.openSession({ clientName: "examples/watch", onDisconnect: "close" });
  find("run").hidden = false;
  session.addEventListener("gone", async () => {
    find("run").hidden = true;
    tell("The session is gone: its tasks were cancelled, and its outputs are safe.");
    await client.whenOpen();
    await open(client);
  });
}

async function pulse(line) {
  const steps = [
    { tool: "gpio.pulse", args: { line, value: 1, duration_ms: 1000 } },
    { tool: "gpio.get", args: { line } },
  ];
  const task = await session.submit({ intent: `pulse ${line}`, steps });
  task.addEventListener("event", ({ detail: { seq, phase, tool, status, result, error } }) => {
    tell([seq, phase, tool, status, result && JSON.stringify(result), error].filter((part) => part !== undefined).join(" "));
  });
  find("cancel").onclick = () => task.cancel();
  find("cancel").disabled = false;
  await task.wait();
  find("cancel").disabled = true;
}

/** What the daemon refuses, and links that drop, are for the person to read. */
function guarded(act) {
  return async (event) => {
    event.preventDefault();
    try {
      await act();
    } catch (error) {
      tell(error instanceof HacpError ? `${error.symbol}: ${error.message}` : error.message);
    }
  };
}

find("connect").addEventListener("submit", guarded(() => connect(find("url").value, find("token").value)));
find("run").addEventListener("submit", guarded(() => pulse(find("line").value)));

// #url=…&token=… connects at once. The fragment is sent to no server, and is taken out of the address bar.
const given = new URLSearchParams(location.hash.slice(1));
if (given.get("token")) {
  history.replaceState(null, "", location.pathname);
  connect(given.get("url") ?? find("url").value, given.get("token")).catch((error) => tell(error.message));
}
