"""The process that has plots drawn for a hearthd which can start no program: what it may be asked, and when it ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from support.confinement import as_root, needs_filters, needs_landlock

from hearth.actors.bridges.hcp import drawer as module, drawing
from hearth.actors.bridges.hcp.drawer import Drawer, environment, start_drawer
from hearth.actors.bridges.hcp.drawer_limits import Limits
from hearth.actors.bridges.hcp.drawing import DrawingError
from hearth.drivers.sandbox.identity import find_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.slow

BOUND = 20
PLOT = {"series": {"a": [1, 2]}}


@pytest.fixture
def drawer(unmeasured: None) -> Iterator[Callable[..., Drawer]]:
    with contextlib.ExitStack() as stack:

        def start(text: str = "") -> Drawer:
            made = start_drawer(command=(sys.executable, "-I", "-S", "-c", text))
            stack.callback(made.close)
            return made

        yield start


async def drawn(by: Drawer) -> bytes:
    with trio.fail_after(BOUND):
        return await drawing.draw(PLOT, partial(drawing.by, by))


def status(of: Drawer) -> str:
    return Path(f"/proc/{of._pid}/status").read_text()


def ended(pid: int) -> bool:
    """Wait until a process has ended; nobody's child of ours."""
    try:
        waited = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([waited], [], [], BOUND)[0])
    finally:
        os.close(waited)


async def test_it_serves_one_drawing_after_the_other(drawer: Callable[..., Drawer]) -> None:
    by = drawer("import os, sys; sys.stdin.read(); print(os.getppid())")
    assert await drawn(by) == await drawn(by) == f"{by._pid}\n".encode()


async def test_it_lets_go_of_everything_that_is_the_daemons(drawer: Callable[..., Drawer], tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        os.set_inheritable(log.fileno(), True)
        by = drawer("import os; print(len(os.listdir('/proc/self/fd')), os.getsid(0) == os.getpid())")
        # stdin, stdout, stderr, and the one that reads the directory.
        assert await drawn(by) == b"4 True\n"
        opened = {os.readlink(f"/proc/{by._pid}/fd/{number}") for number in os.listdir(f"/proc/{by._pid}/fd")}
    assert opened - {"/dev/null"} == {one for one in opened if one.startswith("socket:")}
    assert os.getsid(by._pid) == by._pid


async def test_signals_that_are_meant_for_the_daemon_leave_it_and_reach_the_program(
    drawer: Callable[..., Drawer],
) -> None:
    by = drawer("import signal; print(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP))")
    assert await drawn(by) == b"0 0\n"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(by._pid, number)
    assert await drawn(by) == b"0 0\n"


@pytest.mark.parametrize("words", [b"sh", b"draw1", b"stop 1", b"", b"\xff" * 2000])
async def test_nothing_else_can_be_asked_of_it(drawer: Callable[..., Drawer], words: bytes) -> None:
    by = drawer("print('drawn')")
    assert by._socket is not None
    if words:
        by._socket.send(words)
    assert await drawn(by) == b"drawn\n"


async def test_where_it_has_no_directory_to_work_in_that_is_told(
    drawer: Callable[..., Drawer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    by = drawer("print('drawn')")
    with pytest.raises(DrawingError, match="cannot be started: No such file or directory"):
        await drawn(by)
    with pytest.raises(DrawingError, match="cannot be started"):
        await drawn(by)


async def test_what_has_not_ended_when_it_was_given_up_is_not_taken_for_the_next(
    drawer: Callable[..., Drawer], monkeypatch: pytest.MonkeyPatch
) -> None:
    by = drawer("import sys; print(len(sys.stdin.read()))")
    monkeypatch.setattr(drawing, "STOP_PATIENCE", 0)
    with trio.CancelScope() as scope:
        scope.cancel()
        await drawn(by)
    assert scope.cancelled_caught
    assert await drawn(by) == b"22\n"


async def test_what_a_program_leaves_running_ends_with_it(drawer: Callable[..., Drawer]) -> None:
    # It would keep its stdout open, which is waited for.
    by = drawer("import os, time\nif pid := os.fork(): print(pid)\nelse: time.sleep(60)")
    assert ended(int(await drawn(by)))


TRIES = """
import errno, os, socket, sys
outside = sys.argv[1]
def tried(what, *arguments, **more):
    try:
        what(*arguments, **more)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
print(
    tried(open, "here", "w"),
    tried(os.posix_spawn, "/bin/true", ["true"], {}),
    tried(socket.socket, socket.AF_UNIX),
    tried(socket.socket, socket.AF_INET),
    tried(open, outside, "w"),
    tried(os.listdir, os.path.dirname(outside)),
    tried(os.kill, os.getppid(), 0),
)
"""


@needs_landlock(6)
@needs_filters
@pytest.mark.parametrize("confined", [True, False])
async def test_the_program_reaches_nothing_but_the_directory_that_it_works_in(
    tmp_path: Path, confined: bool, unmeasured: None
) -> None:
    command = (sys.executable, "-I", "-S", "-c", TRIES, str(tmp_path / "outside"))
    with contextlib.closing(start_drawer(Limits(None, confined), command)) as by:
        outcomes = (await drawn(by)).decode().split()
        denied = ["EACCES", "EAFNOSUPPORT", "EAFNOSUPPORT", "EACCES", "EACCES", "EPERM"]
        assert outcomes == ["done", *(denied if confined else 6 * ["done"])]
        facts = dict(line.split(":\t") for line in status(by).splitlines() if ":\t" in line)
    if confined:
        assert (facts["NoNewPrivs"], facts["Seccomp"], int(facts["CapEff"], 16)) == ("1", "2", 0)


@as_root
async def test_it_becomes_the_user_that_the_daemon_becomes(drawer: Callable[..., Drawer]) -> None:
    nobody = find_user("nobody")
    with contextlib.closing(start_drawer(Limits(nobody), ("/nonexistent",))) as by:
        with pytest.raises(DrawingError, match="/nonexistent cannot be started"):
            await drawn(by)
        assert f"Uid:\t{nobody.uid}\t{nobody.uid}\t{nobody.uid}" in status(by)


def test_the_program_gets_no_secret_and_no_preference() -> None:
    given = {"PATH": "/bin", "LC_ALL": "C", "PYTHONPATH": "/p", "HEARTH_TOKEN": "secret", "MPLBACKEND": "x"}
    assert environment({**given, "NOTIFY_SOCKET": "/run/n", "HOME": "/root"}, "/scratch") == {
        "PATH": "/bin", "LC_ALL": "C", "HOME": "/scratch", "MPLCONFIGDIR": "/scratch",
    }  # fmt: skip


async def test_where_there_is_nothing_to_draw_with_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    none = start_drawer()
    with pytest.raises(DrawingError, match=r"pip install 'hearth\[plot\]', and restart it"):
        await drawn(none)
    none.close()


async def test_a_drawer_that_was_killed_is_an_error_that_says_what_to_do(drawer: Callable[..., Drawer]) -> None:
    by = drawer("import time; time.sleep(60)")
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, by)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(by._pid, signal.SIGKILL)
    await refused(by)


async def refused(by: Drawer) -> None:
    with pytest.raises(DrawingError, match="restart hearthd"):
        await drawn(by)


def test_its_end_is_waited_for_when_the_daemon_ends(drawer: Callable[..., Drawer]) -> None:
    by = drawer()
    by.close()
    by.close()
    with pytest.raises(ProcessLookupError):
        os.kill(by._pid, 0)


_DAEMON = """
import os, sys, tempfile, time
from hearth.actors.bridges.hcp.drawer import start_drawer
tempfile.tempdir = sys.argv[1]
program = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)"
drawer = start_drawer(command=(sys.executable, "-I", "-S", "-c", program))
drawer.draw()
print(drawer._pid, flush=True)
while True:
    try:
        output = drawer.told()[2][1]
        break
    except BlockingIOError:
        time.sleep(0.01)
print(os.read(output, 100).decode(), end="", flush=True)
time.sleep(60)
"""


def test_when_the_daemon_is_killed_it_ends_with_the_program_and_leaves_nothing_behind(
    tmp_path: Path, unmeasured: None
) -> None:
    command = [sys.executable, "-c", _DAEMON, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        pids = {int(daemon.stdout.readline()), int(daemon.stdout.readline())}
        assert len(list(tmp_path.glob("hearth-plot-*"))) == 1
        daemon.kill()
    assert all(map(ended, pids))
    assert list(tmp_path.iterdir()) == []
