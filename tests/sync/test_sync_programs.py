"""Programs on `hearth.sync`: how they end, are interrupted, fork, and use threads. Each is a real process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import hearth

pytestmark = pytest.mark.slow

BOUND = 60

OPEN = """
import os, signal, sys, threading
import hearth

runtime = hearth.sync.open_runtime()
print(runtime.audit_path, flush=True)
session = runtime.open_session(client_name="program")
session.gpio.set("LED", 1)
"""


def run(program: str, *, code: int = 0, flags: tuple[str, ...] = ("-W", "default")) -> tuple[list[str], str]:
    """Run a program after OPEN; return what it printed, and what it printed as errors."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", OPEN + program], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout.splitlines(), done.stderr


def closings(audit: str) -> list[tuple[str, object]]:
    records = [json.loads(line) for line in Path(audit).read_text().splitlines()]
    assert records[-1]["event"] == "audit.checkpoint", "the runtime ended in good order"
    return [(record["reason"], record.get("safe")) for record in records if record["event"] == "session.close"]


SAFE = [{"line": 17, "name": "GPIO17", "safe": 0}]


ENDINGS = {
    "idle": "",
    "a task runs": 'session.submit("wait", [hearth.step("gpio.watch", line="BUTTON")])',
    "an iterator is open": """
events = session.submit("wait", [hearth.step("gpio.watch", line="BUTTON")]).events()
next(events)
""",
    "sys.exit": "sys.exit(0)",
    "asyncio": """
import asyncio
async def main():
    return await hearth.aio.open_runtime()
other = asyncio.run(main())
""",
    "a daemon thread waits": """
def wait():
    session.gpio.watch("BUTTON", timeout_ms=600_000)

threading.Thread(target=wait, daemon=True).start()
session.tools()
""",
    "atexit": """
import atexit
@atexit.register
def late():
    try:
        session.tools()
    except hearth.CarrierError:
        pass
""",
}


QUICK = ("sys.exit", "a task runs", "asyncio")
"""The endings that are tried outside of the proofs."""


@pytest.mark.parametrize(
    "ending",
    [pytest.param(text, id=name, marks=() if name in QUICK else pytest.mark.proof) for name, text in ENDINGS.items()],
)
def test_a_program_that_closes_nothing_ends_cleanly_and_its_outputs_are_safe(ending: str) -> None:
    printed, errors = run(ending)
    assert errors == ""
    assert closings(printed[0]) == [("closed by the client", SAFE)]


AT_EXIT = """
import atexit
events = session.submit("wait", [hearth.step("gpio.watch", line="BUTTON")]).events()
try:
    while True:
        events.next(timeout=0.2)
except TimeoutError:
    pass
loop = runtime.loop(50, lambda io: None, lines=["RELAY"])

def late(call):
    try:
        print("returned", call())
    except hearth.CarrierError as error:
        print(error)

# Functions of atexit run last first.
for call in (
    runtime.close, lambda: loop.__exit__(None, None, None), lambda: session.__exit__(None, None, None),
    events.next, loop.stop, session.close,
):
    atexit.register(late, call)
"""


def test_closing_in_a_function_of_atexit_never_waits_for_a_thread_that_has_ended() -> None:
    printed, errors = run(AT_EXIT)
    assert errors == ""
    closed = "what hearth.sync.open_runtime opened is closed; call hearth.sync.open_runtime again"
    assert printed[1:] == [closed] * 3 + ["returned None"] * 3
    assert ("closed by the client", SAFE) in closings(printed[0])


FORGOTTEN = {
    "a session": ("del session", ["hearth.sync.Session"]),
    "a runtime and its session": ("del session, runtime", ["hearth.sync.Session", "hearth.sync.Runtime"]),
    "a session in a cycle": ("session.me = session; del session; import gc; gc.collect()", ["hearth.sync.Session"]),
    "of asyncio": (
        """
session.close()
import asyncio

async def main():
    global runtime
    runtime.close()
    runtime = await hearth.aio.open_runtime()
    print(runtime.audit_path, flush=True)
    session = await runtime.open_session(client_name="program")
    await session.gpio.set("LED", 1)
    gpio = session.gpio
    del session
    await gpio.get("LED")

asyncio.run(main())
""",
        ["hearth.aio.Session"],
    ),
}


@pytest.mark.parametrize(
    ("forget", "warned"),
    [
        pytest.param(*case, id=name, marks=() if name == "a session" else pytest.mark.proof)
        for name, case in FORGOTTEN.items()
    ],
)
def test_a_session_that_is_forgotten_is_closed_with_a_warning_and_its_outputs_are_safe(
    forget: str, warned: list[str]
) -> None:
    printed, errors = run(
        f"""
path = runtime.audit_path
{forget}
pause = threading.Event()
for _ in range(3000):
    if '"session.close"' in path.read_text():
        break
    pause.wait(0.01)
else:
    print("never closed")
"""
        if "asyncio" not in forget
        else forget
    )
    warnings = re.findall(r"ResourceWarning: (hearth.+)", errors)
    assert [text.split()[0] for text in warnings] == warned
    assert all(text.endswith("was not closed; it is closed now: use `with`, or call close") for text in warnings)
    assert closings(printed[-1]) == [("closed by the client", SAFE)]


def test_what_a_forgotten_session_or_runtime_has_made_keeps_it_open() -> None:
    printed, errors = run("""
import gc

def kept():
    here = hearth.sync.open_runtime().open_session()
    return here.gpio, here.submit("wait", [hearth.step("gpio.get", line="LED")]).events()

gpio, events = kept()
gc.collect()
gpio.set("LED", 1)
print(gpio.get("LED"), [event.phase for event in events][-1])
loop = runtime.loop(50, lambda io: None, lines=["RELAY"])
del runtime, session
""")
    assert printed[1:] == ["1 task_finish"]
    warned = re.findall(r"ResourceWarning: (hearth\S+)", errors)
    assert warned == ["hearth.sync.Session"], "of the one that was deleted: the loop keeps its runtime"


def test_a_program_that_fails_shows_its_own_error_alone_and_its_outputs_are_safe() -> None:
    printed, errors = run("1 / 0", code=1)
    assert errors.count("Traceback") == 1
    assert errors.endswith("ZeroDivisionError: division by zero\n")
    assert closings(printed[0]) == [("closed by the client", SAFE)]


def test_a_thread_that_is_no_daemon_works_on_after_the_main_thread_has_ended() -> None:
    printed, errors = run("""
def work():
    threading.main_thread().join()
    for _ in range(3):
        session.gpio.set("LED", 1)
    print(session.gpio.get("LED"))

threading.Thread(target=work).start()
""")
    assert errors == ""
    assert printed[1:] == ["1"]
    assert closings(printed[0]) == [("closed by the client", SAFE)]


def test_an_interrupt_ends_the_wait_cancels_the_task_and_leaves_outputs_safe() -> None:
    printed, errors = run("""
def interrupt():
    pause = threading.Event()
    while '"tool":"gpio.watch"' not in runtime.audit_path.read_text():
        pause.wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    with session:
        session.gpio.watch("BUTTON", timeout_ms=600_000)
except KeyboardInterrupt:
    print("interrupted")
runtime.close()
""")
    assert errors == ""
    assert printed[1:] == ["interrupted"]
    assert closings(printed[0]) == [("closed by the client", SAFE)]
    records = [json.loads(line) for line in Path(printed[0]).read_text().splitlines()]
    ended = [record["status"] for record in records if record["event"] == "task.finish"]
    assert ended == ["SUCCESS", "CANCELLED"]


def test_an_interrupt_that_nothing_catches_ends_the_program_as_usual() -> None:
    printed, errors = run("os.kill(os.getpid(), signal.SIGINT)\nsession.gpio.watch('BUTTON')", code=-signal.SIGINT)
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")
    assert closings(printed[0]) == [("closed by the client", SAFE)]


@pytest.mark.proof
def test_a_forked_child_gets_an_error_that_says_what_to_do_and_may_open_its_own() -> None:
    printed, _ = run(
        """
pid = os.fork()
if pid == 0:
    try:
        session.tools()
    except RuntimeError as error:
        print(error, flush=True)
    session.__exit__(None, None, None)
    with hearth.sync.open_runtime() as own, own.open_session() as here:
        print(here.gpio.get("LED"), flush=True)
    runtime.close()
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
print("parent", session.gpio.get("LED"))
""",
        flags=("-W", "ignore"),
    )
    refused, *others = printed[1:]
    assert refused == (
        "this process was forked from the one that called hearth.sync.open_runtime, whose connection stays there; "
        "call hearth.sync.open_runtime in this process too, after the fork"
    )
    assert others == ["0", "parent 1"]
    assert closings(printed[0]) == [("closed by the client", SAFE)]


def test_runtimes_of_one_process_share_nothing() -> None:
    with hearth.sync.open_runtime() as one, hearth.sync.open_runtime() as two:
        with one.open_session() as first, two.open_session() as second:
            first.gpio.set("LED", 1)
            assert (first.gpio.get("LED"), second.gpio.get("LED")) == (1, 0)
            with pytest.raises(hearth.SessionInvalid):
                two.attach(first.session_id).tools()
            two.close()
            with pytest.raises(hearth.CarrierError, match=r"what hearth.sync.open_runtime opened is closed; call"):
                second.tools()
            assert first.gpio.get("LED") == 1
        assert one.health()["ok"]
    assert one.audit_path != two.audit_path


def test_a_timeout_ends_the_wait_and_not_the_task() -> None:
    with hearth.sync.open_runtime() as runtime, runtime.open_session() as session:
        task = session.submit("watch", [hearth.step("gpio.watch", line="BUTTON", timeout_ms=600_000)])
        with pytest.raises(TimeoutError):
            task.wait(timeout=0)
        events = task.events()
        assert next(events).phase == "start"
        with pytest.raises(TimeoutError):
            events.next(timeout=0)
        assert task.get().status == "RUNNING"
        assert task.cancel() == "CANCELLING"
        assert [event.phase for event in events] == ["finish", "task_finish"]
        assert events.next() is None
        events.close()


def test_the_thread_of_the_portal_does_not_wait_for_itself() -> None:
    with hearth.sync.open_runtime() as runtime, runtime.open_session() as session:
        portal = session._portal

        async def inside() -> str:
            with pytest.raises(RuntimeError, match="use the Trio interface there"):
                session.tools()
            return "refused"

        from hearth._util.portal import block

        assert block(portal.call(inside)) == "refused"


def test_an_opening_that_fails_raises_its_error_and_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(hearth.CarrierError, match="no daemon at"):
        hearth.sync.connect(tmp_path / "nothing.sock")
    with pytest.raises(hearth.ConfigError):
        hearth.sync.open_runtime(board="no such board")
    for thread in threading.enumerate():
        if thread.name == "hearth-portal":
            thread.join(BOUND)
            assert not thread.is_alive()


def test_importing_hearth_imports_no_face() -> None:
    names = "('hearth.', 'trio', 'asyncio')"
    program = f"import sys, hearth; print([name for name in sys.modules if name.startswith({names})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True)
    assert done.stdout == "['hearth._version']\n"


# --- control loops ----------------------------------------------------------------------------------------------------


def test_a_control_loop_runs_beside_a_program_without_an_event_loop() -> None:
    def stepping(io):
        io.write("LED", 1)
        io.emit(io.time)
        if io.time > 0.1:
            io.stop("done")

    with hearth.sync.open_runtime() as runtime:
        loop = runtime.loop(200, stepping, lines=["LED"]).__enter__()
        seen = [sample.seq for sample in loop.telemetry()]
        stats = loop.wait(30)
        with pytest.raises(hearth.LoopStopped, match="done"):
            loop.__exit__(None, None, None)
        assert (loop.name, loop.ended) == ("loop", "done")
        assert seen == list(range(1, stats.runs + 1))
        with runtime.loop(200, lambda io: io.write("LED", 1), lines=["LED"]) as loop:
            with pytest.raises(TimeoutError):
                loop.wait(0.05)
            assert loop.stop().ended == loop.stats().ended == "its owner stopped it"
        with pytest.raises(hearth.InvalidParams, match="hz"):
            runtime.loop(0, stepping, lines=["LED"])
        failing = runtime.loop(200, lambda _io: 1 / 0, lines=["LED"])
        assert failing.wait(30).runs == 0
        with pytest.raises(hearth.LoopStopped, match="ZeroDivisionError"):
            failing.stop()
