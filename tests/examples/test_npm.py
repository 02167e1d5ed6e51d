"""packaging/npm: the package as `npm install` unpacks it, in Node against a real daemon, and before a type checker.

The browser runs the same file in test_watch.py and test_watch_client.py: examples/watch/hacp.js is a link to it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
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
    ],
    ids=["right", "method", "event", "detail", "field", "option"],
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
