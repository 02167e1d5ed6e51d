"""Ctrl-C, SIGTERM, a reader that goes away: the command ends at once, and nothing is left moving."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import orjson
import pytest
import trio

from hearth import connect, step

pytestmark = pytest.mark.slow

PATIENCE = 60


def close_of(daemon, session_id):
    return next(r for r in daemon.records() if r["event"] == "session.close" and r["session_id"] == session_id)


async def drives(daemon, hearth_process, *args):
    """Start a command that drives line 17, and wait until another session sees it."""
    async with connect(daemon.socket) as client, client.open_session(client_name="witness") as session:
        watch = await session.submit("see it", [step("gpio.watch", line=27, edge="rising", timeout_ms=PATIENCE * 1000)])
        events = watch.events()
        await anext(events)
        await session.run("gpio.get", line=27)  # after the watch, which came before it on the same bus
        running = hearth_process(*args)
        process = running.__enter__()
        with trio.fail_after(PATIENCE):
            async for event in events:
                if event.phase == "finish":
                    assert event.data["result"]["edges"], process.stderr.read()
        return running, process


async def level(daemon):
    async with connect(daemon.socket) as client, client.open_session(client_name="witness") as session:
        return (await session.run("gpio.get", line=27))["value"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_cancels_the_task_closes_the_session_and_makes_outputs_safe(
    daemon, hearth_process, number, code
):
    pulse = ("gpio.pulse", "line=17", "value=1", "duration_ms=60000")
    running, process = await drives(daemon, hearth_process, "run", *pulse)
    try:
        process.send_signal(number)
        out, err = await trio.to_thread.run_sync(lambda: process.communicate(timeout=PATIENCE))
    finally:
        running.__exit__(None, None, None)
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert await level(daemon) == 0
    finish = [record for record in daemon.records() if record["event"] == "task.finish"]
    cancelled = [record for record in finish if record["status"] == "CANCELLED"][-1]
    assert close_of(daemon, cancelled["session_id"])


async def test_ctrl_c_ends_what_is_held(daemon, hearth_process):
    running, process = await drives(daemon, hearth_process, "run", "gpio.set", "line=17", "value=1", "--hold", "inf")
    try:
        said = await trio.to_thread.run_sync(process.stderr.readline)
        assert "held for inf s; Ctrl-C ends it" in said
        assert await level(daemon) == 1
        process.send_signal(signal.SIGINT)
        out, _ = await trio.to_thread.run_sync(lambda: process.communicate(timeout=PATIENCE))
    finally:
        running.__exit__(None, None, None)
    assert process.returncode == 130
    assert out == "line   17\nvalue  1\n"
    assert await level(daemon) == 0


async def test_a_command_that_is_killed_leaves_nothing_moving(daemon, hearth_process):
    running, process = await drives(daemon, hearth_process, "run", "gpio.set", "line=17", "value=1", "--hold", "inf")
    async with connect(daemon.socket) as client, client.open_session(client_name="witness") as session:
        falling = step("gpio.watch", line=27, edge="falling", timeout_ms=PATIENCE * 1000)
        watch = await session.submit("see it stop", [falling])
        events = watch.events()
        await anext(events)
        await session.run("gpio.get", line=27)
        process.kill()
        async for _event in events:
            pass
        done = await watch.get()
    running.__exit__(None, None, None)
    assert [edge["value"] for edge in done.steps[0].result["edges"]] == [0]


def test_ctrl_c_stops_the_watching_and_not_the_task(local_cli, hearth_process, tmp_path):
    plan = tmp_path / "plan.json"
    long = {"tool": "gpio.watch", "args": {"line": 9, "timeout_ms": 60_000}}
    plan.write_bytes(orjson.dumps({"intent": "x", "steps": [long]}))
    reference = local_cli("plan", "submit", "--detach", plan).out.strip()
    with hearth_process("tasks", "watch", reference) as process:
        assert "start" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert local_cli("tasks", "show", reference, "--json").json["status"] == "RUNNING"
    assert local_cli("tasks", "cancel", reference).code == 0
    assert local_cli("tasks", "watch", reference).code == 1


def test_a_second_signal_does_not_wait():
    code = (
        "import trio\n"
        "from hearth.cli.common import interruptible\n"
        "async def work():\n"
        "    print('working', flush=True)\n"
        "    try:\n"
        "        await trio.sleep_forever()\n"
        "    finally:\n"
        "        print('closing', flush=True)\n"
        "        with trio.CancelScope(shield=True):\n"
        "            await trio.sleep_forever()\n"
        "interruptible(work)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "working\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "closing\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE) == -signal.SIGINT
        finally:
            process.kill()


@pytest.mark.parametrize("args", [["tools"], ["run", "hw.board"], ["--json", "tools"]])
def test_a_reader_that_has_gone_is_no_error(daemon, args):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "hearth.cli.main", "--socket", str(daemon.socket), *args],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    assert (done.returncode, done.stderr) == (141, "")
