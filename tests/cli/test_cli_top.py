"""`hearth top` by Textual's own pilot, against a real daemon."""

from __future__ import annotations

import asyncio
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import asynccontextmanager
from fcntl import ioctl
from pathlib import Path

import pytest

from hearth.transport.address import parse

pytest.importorskip("textual", reason="the view takes the extra: pip install 'hearthd[tui]'")

from textual.widgets import DataTable, Static

from hearth.cli import observing
from hearth.cli.top import Top

pytestmark = pytest.mark.slow

CONFIG = """
[[policy]]
name = "bench"
match = { any = true }
max_risk = 3
rights = ["observe", "approve", "reset_halt"]
"""


def text(app) -> str:
    """The state of the daemon, as the first line of the screen shows it."""
    return str(app.query_one("#state", Static).render())


def rows(app, name) -> list[list[str]]:
    table = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


async def until(pilot, condition) -> None:
    async with asyncio.timeout(50):
        while not condition():
            await pilot.pause(0.02)


@asynccontextmanager
async def healthy(daemon, **options):
    """Run it on this daemon, and wait until it shows it."""
    app = Top(parse(daemon.socket))
    async with app.run_test(**options) as pilot:
        await until(pilot, lambda: "healthy" in text(app))
        yield app, pilot


def test_it_shows_lines_buses_tasks_and_sessions_as_they_change_and_q_quits(daemon):
    async def work() -> None:
        app = Top(parse(daemon.socket))
        async with app.run_test(size=(160, 50)) as pilot:
            await until(pilot, lambda: "healthy" in text(app) and rows(app, "lines"))
            assert ["gpio:sim", "ready"] in [row[:2] for row in rows(app, "buses")]
            peer = daemon.peer()
            session = peer.open(client_name="robot")
            peer.wait(session, peer.submit(session, ("gpio.set", {"line": "LED", "value": 1})))
            await until(pilot, lambda: any(row[4] == session and row[2] == "1" for row in rows(app, "lines")))
            lit = ["LED", "gpio:sim", "1", "good", "0"]
            await until(pilot, lambda: lit in [row[:5] for row in rows(app, "signals")])
            assert ["FAN", "pwm:sim", "-"] in [row[:3] for row in rows(app, "signals")]
            assert [row[2] for row in rows(app, "sessions") if row[-1] == session] == ["robot"]
            task = peer.submit(session, ("gpio.watch", {"line": 5, "timeout_ms": 60_000}))
            await until(pilot, lambda: [(row[0], row[-1]) for row in rows(app, "tasks")] == [("RUNNING", task)])
            peer.call("session.close", {"session_id": session})
            await until(pilot, lambda: not rows(app, "tasks") and session not in str(rows(app, "sessions")))
            await pilot.press("q")
        assert (app.return_code, app.return_value) == (0, None)

    asyncio.run(work())


def test_the_key_h_halts_at_once_and_the_halt_is_shown(own_daemon):
    daemon = own_daemon(CONFIG)

    async def work() -> None:
        async with healthy(daemon) as (app, pilot):
            await pilot.press("h")
            await until(pilot, lambda: text(app).startswith("HALTED SINCE"))
            assert app.query_one("#state").has_class("wrong")

    asyncio.run(work())
    assert daemon.recorded(event="halt")["reason"] == "key h of hearth top"


def test_the_key_h_halts_by_the_halt_socket_where_there_is_no_connection(own_daemon):
    daemon = own_daemon(CONFIG)

    async def work() -> None:
        async with healthy(daemon) as (app, pilot):
            daemon.socket.unlink()
            app._session = None
            await pilot.press("h")
            await until(pilot, lambda: daemon.records(event="halt"))

    asyncio.run(work())
    assert daemon.recorded(event="halt")["reason"] == "key h of hearth top"


def test_a_change_that_comes_while_it_ends_is_not_drawn(own_daemon):
    daemon = own_daemon(CONFIG)

    async def work() -> None:
        async with healthy(daemon) as (app, _):
            await app.query("*").remove()
            app._changed = True
            app._draw()

    asyncio.run(work())


@pytest.mark.proof
def test_it_says_that_the_connection_is_lost_halts_nothing_then_and_comes_back(own_daemon):
    daemon = own_daemon(CONFIG)

    async def work() -> None:
        async with healthy(daemon, notifications=True) as (app, pilot):
            daemon.stop()
            await until(pilot, lambda: text(app).startswith("connection lost: "))
            await pilot.press("h")
            await until(pilot, lambda: any("nothing was halted" in one.message for one in app._notifications))
            daemon.start()
            await until(pilot, lambda: "healthy" in text(app))
            session = daemon.peer().open()
            await until(pilot, lambda: session in str(rows(app, "sessions")))

    asyncio.run(work())


def test_a_session_that_the_daemon_closes_is_noticed_and_opened_again(own_daemon, monkeypatch):
    daemon = own_daemon(CONFIG)
    monkeypatch.setattr(observing, "SILENCE", 0.05)

    async def work() -> None:
        app = Top(parse(daemon.socket))
        async with app.run_test(size=(200, 50)) as pilot:
            await until(pilot, lambda: "healthy" in text(app) and rows(app, "sessions"))
            first = rows(app, "sessions")[0][-1]
            peer = daemon.peer()
            assert "result" in peer.call("session.close", {"session_id": first})
            await until(pilot, lambda: "the daemon has closed the session" in text(app))
            await until(pilot, lambda: "healthy" in text(app) and first not in str(rows(app, "sessions")))

    asyncio.run(work())


def test_without_the_right_to_observe_it_ends_with_the_reason(own_daemon):
    daemon = own_daemon('[[policy]]\nname = "blind"\nmatch = { any = true }\n')

    async def work() -> Top:
        app = Top(parse(daemon.socket))
        async with app.run_test() as pilot:
            await until(pilot, lambda: app.return_value is not None)
        return app

    assert "the right 'observe' is not given" in str(asyncio.run(work()).return_value)


# --- the command on a terminal --------------------------------------------------------------------------------------


def on_terminal(*args, press: bytes = b"", after: bytes = b"") -> tuple[int, bytes]:
    """Run `hearth top ARGS…` on a pty, and press a key once `after` is on it; its exit code and what it wrote."""
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
    command = [str(Path(sys.executable).parent / "hearth"), "top", *map(str, args)]
    environ = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                written += os.read(controller, 65536)
            except OSError:  # EIO: the last writer has closed the terminal
                break
            if press and after in written:
                os.write(controller, press)
                press = b""
        os.close(controller)
        return process.wait(timeout=60), written


@pytest.mark.proof
def test_on_a_terminal_q_quits_with_0_and_without_a_daemon_it_exits_with_3(daemon, tmp_path):
    code, written = on_terminal("--socket", daemon.socket, press=b"q", after=b"gpio:sim")
    assert (code, written != b"") == (0, True)
    code, written = on_terminal("--socket", tmp_path / "none.sock")
    screen, _, after = written.rpartition(b"\x1b[?1049l")
    assert (code, b"no daemon at" in after, screen != b"") == (3, True, True), "the error is on the terminal itself"


def test_without_a_terminal_it_names_plain(local_cli):
    refused = local_cli("top", stdin=b"")
    assert (refused.code, "`hearth top --plain`" in refused.err) == (2, True)
