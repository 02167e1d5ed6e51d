"""Type checkers find hearth in the environment that `make` builds, and know its names."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

RIGHT = """
import hearth


def blocking() -> int:
    with hearth.sync.connect() as client, client.open_session() as session:
        session.gpio.set("LED", 1)
        task: hearth.sync.Task = session.submit("x", [hearth.step("gpio.get", line=1)], dry_run=True)
        for event in task.events():
            print(event.seq)
        data: bytes = session.i2c.read(1, 0x48, reg=0, length=2)
        return len(data)


async def on_any_loop(session: hearth.Session) -> bytes:
    task: hearth.Task = await session.submit("x", [], max_risk_level=1)
    print((await task.wait()).status)
    return await session.i2c.read(1, 0x48, reg=0, length=2)


async def loops(client: hearth.Client, runtime: hearth.Runtime) -> None:
    async with hearth.aio.connect() as connected, connected.open_session() as session:
        await on_any_loop(session)
    opened = await hearth.aio.open_runtime()
    await on_any_loop(await opened.open_session())
    async with client.open_session() as one, runtime.open_session() as other:
        await on_any_loop(one)
        await on_any_loop(other)


@hearth.capability("look", version="1.0.0", tools=["gpio.get"], risk_ceiling="R1")
async def look(job: hearth.Job, *, line: hearth.Line) -> dict[str, int]:
    return {"value": (await job.run("gpio.get", line=line))["value"]}


async def jobs(receiver: hearth.Client | hearth.Runtime) -> hearth.JobResult:
    job: hearth.JobHandle = await receiver.delegate("look", "to see", {"line": "LED"})
    print(await receiver.artifact(job.session_id), [one["state"] for one in await receiver.jobs()])
    return (await job.wait()).raise_for_state()


async def everywhere() -> None:
    async with hearth.connect("ssh://pi") as client, hearth.open_runtime(board="sim") as runtime:
        await jobs(client)
        await jobs(runtime)
"""

WRONG = """
import hearth

hearth.AnyTypo


def blocking(session: hearth.sync.Session) -> None:
    session.gpio.sett("LED", 1)
    session.submit("x", [], dryrun=True)
    text: str = session.i2c.read(1, 0x48, length=2)
    session.gpio.set("LED", "on")


async def on_any_loop(session: hearth.Session) -> None:
    await session.submit("x", [], dryrun=True)
    number: int = await session.i2c.read(1, 0x48, length=2)
    await session.gpio.pulse("LED", 1)


async def jobs(client: hearth.Client, runtime: hearth.Runtime) -> None:
    await client.delegat("look", "to see", {})
    await runtime.delegate("look", {})
"""

CHECKERS = {
    "mypy": (["--strict", "--cache-dir", os.devnull, "--python-executable", sys.executable], r":(\d+): error"),
    "pyright": (["--pythonpath", sys.executable], r":(\d+):\d+ - error"),
}


@pytest.mark.proof
@pytest.mark.parametrize("checker", CHECKERS)
def test_right_names_pass_and_each_wrong_one_is_an_error_in_a_users_program(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"needs {checker}: make lint installs it")
    options, error = CHECKERS[checker]
    for name, program in (("right", RIGHT), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "-m", checker, *options, f"{name}.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        found = {int(line) for line in re.findall(error, done.stdout)}
        wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.startswith((" ", "hearth."))}
        assert found == (wrong if name == "wrong" else set()), done.stdout + done.stderr
