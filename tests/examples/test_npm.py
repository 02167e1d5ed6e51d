"""packaging/npm: the package as `npm install` unpacks it, in Node against a real daemon, and before a type checker.

The browser runs the same file in test_watch.py and test_watch_client.py: examples/watch/hacp.js is a link to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from support.hearthd import Hearthd
from support.judges import PROGRAMS, ROOT, environment, needs_judges
from support.watching import BOUND, WATCH, Relay, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NPM = ROOT / "packaging" / "npm"

pytestmark = [pytest.mark.proof, needs_judges, pytest.mark.usefixtures("unmeasured")]


def run(*command: object, cwd: Path, home: Path, ok: bool = True) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tarball that `npm pack` makes."""
    folder = tmp_path_factory.mktemp("packed")
    [made] = json.loads(run("npm", "pack", "--json", "--pack-destination", folder, cwd=NPM, home=folder))
    assert sorted(file["path"] for file in made["files"]) == ["README.md", "hacp.d.ts", "hacp.js", "package.json"]
    return folder / str(made["filename"])


@pytest.fixture(scope="module")
def project(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has installed the tarball, without a package index."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", packed, cwd=folder, home=folder)
    installed = folder / "node_modules" / "hacp-client"
    assert (installed / "hacp.js").read_bytes() == (WATCH / "hacp.js").read_bytes()
    return folder


class Program:
    """A Node program and what it has printed."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.ended = False
        self._more = trio.Event()

    async def listen(self) -> None:
        assert self.process.stdout is not None
        rest = ""
        async for chunk in self.process.stdout:
            *whole, rest = (rest + bytes(chunk).decode()).split("\n")
            self.lines += whole
            self._more.set()
            self._more = trio.Event()
        self.ended = True
        self._more.set()

    async def prints(self, line: str) -> None:
        with trio.fail_after(BOUND):
            while line not in self.lines:
                assert not self.ended, (line, self.lines)
                await self._more.wait()


@asynccontextmanager
async def node(project: Path, program: str, **env: str) -> AsyncIterator[Program]:
    (project / "program.js").write_text(program)
    process = await trio.lowlevel.open_process(
        [str(PROGRAMS / "node"), "program.js"],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**environment(project), **env},
    )
    run = Program(process)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.listen)
            yield run
            nursery.cancel_scope.cancel()
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


RESUMES = """
import { HacpClient } from "hacp-client";
const client = new HacpClient(process.env.URL, { token: process.env.TOKEN, firstPauseMs: 20, longestPauseMs: 200 });
client.addEventListener("state", ({ detail }) => console.log("state", detail.state));
await client.connect();
const session = await client.openSession({ clientName: "node" });
session.addEventListener("gone", () => console.log("gone"));
const seen = [];
const args = { line: "LED", value: 1, duration_ms: 100 };
const task = await session.submit({ intent: "blink", steps: Array(40).fill({ tool: "gpio.pulse", args }) });
task.addEventListener("event", ({ detail }) => {
  seen.push(detail.seq);
  if (seen.length === 5) console.log("five");
});
const last = await task.wait();
console.log("ended", last.status, JSON.stringify({ seen, coalesced: task.coalesced }));
client.addEventListener("state", async ({ detail }) => {
  if (detail.state !== "open") return;
  const next = await client.openSession();
  const read = await next.submit({ intent: "look", steps: [{ tool: "gpio.get", args: { line: "LED" } }] });
  console.log("again", (await read.wait()).status);
  await next.close();
  client.close();
});
console.log("ready");
"""


async def test_in_node_a_lost_link_costs_no_event_and_a_lost_daemon_is_reported(project: Path) -> None:
    async with serving() as site, trio.open_nursery() as nursery:
        relay = Relay(int(site.daemon_address.rpartition(":")[2]))
        await nursery.start(relay.run)
        async with node(project, RESUMES, URL=f"ws://127.0.0.1:{relay.port}", TOKEN=site.token) as program:
            await program.prints("five")
            relay.cut()
            await program.prints("state waiting")
            relay.mend()
            await program.prints("ready")
            [ended] = [line for line in program.lines if line.startswith("ended ")]
            _, status, counted = ended.split(" ", 2)
            figures = json.loads(counted)
            assert status == "SUCCESS"
            # 40 starts, 40 finishes and the end; a pulse reports no progress that could be coalesced.
            assert figures == {"seen": list(range(1, 82)), "coalesced": 0}
            assert "gone" not in program.lines
            site.kill_daemon()  # serve.py starts another one
            await program.prints("gone")
            await program.prints("again SUCCESS")
            with trio.fail_after(BOUND):
                assert await program.process.wait() == 0
        nursery.cancel_scope.cancel()


PLANS_AND_HALT = """
import { HacpClient } from "hacp-client";
const open = async (token) => {
  const client = new HacpClient(process.env.URL, { token });
  await client.connect();
  return [client, await client.openSession({ clientName: "node" })];
};
const [one, agent] = await open("agent");
const [other, operator] = await open("operator");
const refused = async (promise) => promise.then(() => "nothing", (error) => error.symbol);
const say = (...words) => console.log(words.join(" "));

const task = {
  intent: "lumière 💡 10 €",
  steps: [{ tool: "gpio.set", args: { line: "LED", value: 1 } }, { tool: "gpio.get", args: { line: "LED" } }],
  constraints: { max_duration_ms: 1500.25, rollback_on_failure: true },
};
const plan = await agent.prepare(task);
const [{ before, after }] = plan.steps;
say("prepared", plan.state, before.value, after.value);
say("unapproved", await refused(agent.execute(plan)));
const { seq, plans: [listed] } = await operator.plans();
const shown = await operator.plan(listed.plan_id);
say("shown", shown.plan_id === plan.plan_id, shown.may_approve);
const [step] = shown.steps;
const changed = { ...shown, steps: [{ ...step, args: { ...step.args, line: "BUZZER" } }] };
say("changed", await refused(operator.approve(changed)), await refused(agent.execute({ ...changed, steps: [] })));
const running = agent.execute(plan, { waitMs: 30_000 });
const change = operator.plans({ afterSeq: seq, waitMs: 30_000 });
say("missing", await operator.approve(shown, "I am beside it"));
say("changes", (await change).seq > seq);
say("ran", (await (await running).wait()).status);
say("again", await refused(agent.execute(plan.plan_id)));
const second = await agent.prepare(task);
await operator.reject(second, "not today");
say("rejected", await refused(agent.execute(second)));
const third = await agent.prepare(task);
await agent.reject(third.plan_id);
say("withdrawn", (await agent.plans()).plans.map((one) => one.state).join());
const model = await one.openSession({ conversation: true });
say("conversation", await refused(model.submit(task)));
await model.close();

const status = await agent.haltStatus();
say("before", status.halted, Object.values(status.inputs));
const { halted, reason, latched } = await agent.halt("smoke");
say("halt", halted, reason, latched);
say("while", await refused(operator.submit({ intent: "light", steps: task.steps })));
while ((await operator.haltStatus()).stopping);
say("model", await refused(agent.haltReset()));
say("reset", (await operator.haltReset()).halted, (await agent.haltStatus()).halted);

Object.defineProperty(crypto, "subtle", { value: undefined });
await operator.approve(shown).catch((error) => say(error.name, error.message));
one.close();
other.close();
"""


async def test_in_node_a_plan_runs_as_approved_and_a_halt_holds_until_its_reset(project: Path, tmp_path: Path) -> None:
    entry = '[[policy]]\nname = "{0}"\nmatch = {{ token_sha256 = "{1}" }}\nmax_risk = 2\n{2}\n'
    entries = [
        entry.format(name, hashlib.sha256(name.encode()).hexdigest(), more)
        for name, more in (
            ("agent", "approval = [{ from_risk = 2 }]"),
            ("operator", 'rights = ["approve", "reset_halt"]'),
        )
    ]
    daemon = Hearthd(tmp_path, '[websocket]\nlisten = "127.0.0.1:0"\n' + "\n".join(entries))
    try:
        daemon.start()
        async with node(project, PLANS_AND_HALT, URL=daemon.listening["ws"]) as program:
            with trio.fail_after(BOUND):
                assert await program.process.wait() == 0
            told = "a browser computes the hash of a plan only for a page from https or from this machine"
            await program.prints(f"TypeError {told}")
            assert program.lines[:-1] == [
                "prepared waiting 0 1",
                "unapproved APPROVAL_REQUIRED",
                "shown true true",
                "changed PLAN_STALE PLAN_STALE",
                "missing 0",
                "changes true",
                "ran SUCCESS",
                "again PLAN_STALE",
                "rejected RPC_PERMISSION_DENIED",
                "withdrawn executed,rejected,rejected",
                "conversation RPC_PERMISSION_DENIED",
                "before false clear",
                "halt true smoke true",
                "while HALTED",
                "model RPC_PERMISSION_DENIED",
                "reset false false",
            ]
    finally:
        daemon.end()


SIGNALS = """
import { HacpClient } from "hacp-client";
const client = new HacpClient(process.env.URL, { token: process.env.TOKEN });
await client.connect();
const { signals } = await client.openSession({ clientName: "node" });
const refused = async (promise) => promise.catch((error) => `${error.symbol} ${error.data.reason}`);
for (const value of [1, "0.75 V", 12.5]) {
  const name = { 1: "PUMP", "0.75 V": "BIAS", 12.5: "FAN.speed" }[value];
  console.log(name, await signals.set(name, value), (await signals.read(name)).quality);
}
console.log("pulse", await signals.set("RELAY", 1, { durationMs: 1 }));
const [row, ...rest] = await signals.list({ kind: "dac", name: "B*" });
console.log("row", row.name, row.unit, rest.length);
console.log("changes", (await signals.watch("DOOR", { timeoutMs: 1 })).length);
console.log(await refused(signals.set("PMUP", 1)));
console.log(await refused(signals.set("BIAS", 9)));
client.close();
"""


async def test_in_node_signals_are_used_by_name_and_refusals_say_the_nearest_name_and_the_bounds(
    project: Path, tmp_path: Path
) -> None:
    match = f'match = {{ token_sha256 = "{hashlib.sha256(b"page").hexdigest()}" }}'
    entry = f'[[policy]]\nname = "page"\n{match}\nmax_risk = 2\n'
    daemon = Hearthd(tmp_path, f'[websocket]\nlisten = "127.0.0.1:0"\n{entry}')
    try:
        daemon.start()
        async with node(project, SIGNALS, URL=daemon.listening["ws"], TOKEN="page") as program:
            with trio.fail_after(BOUND):
                assert await program.process.wait() == 0
            await program.prints("LIMIT_VIOLATED 9 volt is beyond max = 2.5 volt")
            assert program.lines[:-1] == [
                "PUMP 1 good",
                "BIAS 0.75 good",
                "FAN.speed 12.5 good",
                "pulse 1",
                "row BIAS volt 0",
                "changes 0",
                "INVALID_PARAMS board 'sim' has no signal 'PMUP'; did you mean gpio:sim:PUMP?",
            ]
    finally:
        daemon.end()


async def test_what_the_packages_readme_shows_runs(project: Path) -> None:
    example = (NPM / "README.md").read_text().partition("```js\n")[2].partition("```")[0]
    async with serving() as site:
        shown = example.replace("ws://127.0.0.1:7118", site.daemon_address)
        assert shown != example
        async with node(project, shown, HEARTH_TOKEN=site.token) as program:
            await program.prints("SUCCESS")
            with trio.fail_after(BOUND):
                assert await program.process.wait() == 0
            assert program.lines == ["1 start ", "2 finish SUCCESS", "3 task_finish SUCCESS", "SUCCESS"]


async def test_a_runtime_without_a_websocket_is_told_the_cure(project: Path) -> None:
    program = """
    import { HacpClient } from "hacp-client";
    const { WebSocket } = globalThis;
    delete globalThis.WebSocket;
    try { new HacpClient("ws://127.0.0.1:1"); } catch (error) { console.log(error.message); }
    new HacpClient("ws://127.0.0.1:1", { WebSocket });
    console.log("made");
    """
    async with node(project, program) as running:
        await running.prints("made")
        assert running.lines[0].endswith("use Node 22 or later, or pass one as `options.WebSocket`")


def test_the_type_declarations_are_those_of_the_file(tmp_path: Path) -> None:
    run(PROGRAMS / "tsc", "-p", NPM, "--outDir", tmp_path, cwd=NPM, home=tmp_path)
    assert (tmp_path / "hacp.d.ts").read_text() == (NPM / "hacp.d.ts").read_text(), "run: make npm"


RIGHT = """
import { HacpClient, HacpError, type TaskEvent } from "hacp-client";
const client = new HacpClient("ws://127.0.0.1:7118", { token: "t" });
client.addEventListener("state", ({ detail }) => { const state: string = detail.state; console.log(state); });
const session = await client.openSession({ clientName: "a program" });
session.addEventListener("event", (event) => { const { seq }: TaskEvent = event.detail; console.log(seq); });
const task = await session.submit({ intent: "look", steps: [{ tool: "gpio.get", args: { line: "LED" } }] });
const last: TaskEvent = await task.wait();
console.log(last.status, new HacpError(-32004, "busy").symbol);
const { seq, plans } = await session.plans({ waitMs: 0 });
for (const { plan_id } of plans) console.log(seq, (await session.plan(plan_id)).steps[0].before?.value);
console.log((await session.halt("smoke")).latched, (await session.signals.read("PUMP")).quality);
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (RIGHT, RIGHT),
        ("session.submit(", "session.sumbit("),
        ('"event", (event)', '"evnet", (event)'),
        ("event.detail;", "event.details;"),
        ("steps: [", "step: ["),
        ("clientName", "client_name"),
        ("before?.value", "before.value"),
        (").latched", ").latch"),
        (").quality", ").qualty"),
    ],
    ids=["right", "method", "event", "detail", "field", "option", "unknown state", "status", "signal"],
)
def test_a_misspelt_name_is_a_type_error(project: Path, right: str, wrong: str) -> None:
    (project / "program.ts").write_text(RIGHT.replace(right, wrong))
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "nodenext", "--lib", "es2023,dom"]
    types = ["--types", ""]
    ok = right == wrong
    said = run(PROGRAMS / "tsc", *options, *types, "program.ts", cwd=project, home=project, ok=ok)
    assert ok or "program.ts" in said


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here: apt-get install npm")
def test_the_package_has_the_version_of_the_client_protocol_and_no_dependency() -> None:
    package = json.loads((NPM / "package.json").read_text())
    assert not {"dependencies", "peerDependencies", "scripts"} & set(package)
    assert package["license"] == "Apache-2.0"
    assert os.path.samefile(WATCH / "hacp.js", NPM / "hacp.js")
