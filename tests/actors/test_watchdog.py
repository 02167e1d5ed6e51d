"""The service manager hears that the daemon is alive as long as it is, and no longer (systemd's WatchdogSec=)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import pytest
import trio
from support.faulty_disk import FaultyDisk

from hearth.actors.daemon.process import SHARE, Notifier, period, watched
from hearth.actors.journal import Journal
from hearth.audit import AuditSettings

SECONDS = 6
LIMIT_S = 20


class Manager:
    """A service manager: a socket that states are sent to, and the variables that name it."""

    def __init__(self, directory, **variables: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(directory / "notify"))
        self.socket.setblocking(False)
        self.environ = {
            "NOTIFY_SOCKET": str(directory / "notify"),
            "WATCHDOG_USEC": str(SECONDS * 1_000_000),
            "WATCHDOG_PID": str(os.getpid()),
        } | variables
        self.notifier = Notifier(self.environ)

    def told(self) -> list[str]:
        """What was sent since the last look."""
        states = []
        while True:
            try:
                states.append(self.socket.recv(1000).decode())
            except BlockingIOError:
                return states


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path)
    yield made
    made.notifier.close()
    made.socket.close()


def journal(directory, **changes) -> Journal:
    disk = changes.pop("disk", None)
    return Journal(AuditSettings(path=directory / "audit.log", key=directory / "key", **changes), disk=disk)


async def test_a_daemon_that_is_alive_says_so_several_times_within_each_period(
    manager, tmp_path, autojump_clock
) -> None:
    records = journal(tmp_path)
    records.open()
    with trio.fail_after(10 * LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(records.run)
            async with watched(manager.environ, manager.notifier, records.answer):
                await trio.sleep(3 * SECONDS - 0.5)
            nursery.cancel_scope.cancel()
    assert manager.told() == ["WATCHDOG=1"] * (3 * SHARE)
    await records.aclose()


async def test_a_journal_that_does_not_answer_ends_the_signs_of_life(manager, tmp_path, autojump_clock) -> None:
    records = journal(tmp_path)
    records.open()
    with trio.fail_after(10 * LIMIT_S):
        async with watched(manager.environ, manager.notifier, records.answer):
            # Its actor is not running: whatever is posted waits.
            await trio.sleep(5 * SECONDS)
            assert manager.told() == []
            async with trio.open_nursery() as nursery:
                await nursery.start(records.run)
                await trio.sleep(SECONDS)
                assert manager.told(), "it answers what had waited, and life is told again"
                nursery.cancel_scope.cancel()
            manager.told()
            await trio.sleep(5 * SECONDS)
            assert manager.told() == [], "one that has ended vouches for nothing"
    await records.aclose()
    with trio.move_on_after(SECONDS) as asked:
        await records.answer()
    assert asked.cancelled_caught, "nor does one that is closed"


async def test_a_log_that_cannot_be_written_is_no_reason_to_be_started_anew(manager, tmp_path, autojump_clock) -> None:
    disk = FaultyDisk()
    records = journal(tmp_path, disk=disk)
    records.open()
    with trio.fail_after(10 * LIMIT_S):
        async with trio.open_nursery() as nursery, watched(manager.environ, manager.notifier, records.answer):
            await nursery.start(records.run)
            disk.write_error = OSError(errno.ENOSPC, "full")
            records.post({"event": "test.event"})
            manager.told()
            await trio.sleep(5 * SECONDS)
            assert records.failure is not None
            assert manager.told()
            nursery.cancel_scope.cancel()
    await records.aclose()


@pytest.mark.slow
async def test_an_event_loop_that_stands_still_sends_nothing(manager, tmp_path) -> None:
    async def answers() -> None:
        await trio.lowlevel.checkpoint()

    manager.environ["WATCHDOG_USEC"] = "30000"
    async with watched(manager.environ, manager.notifier, answers):
        while not manager.told():
            await trio.lowlevel.checkpoint()
        # Nothing else runs while this does: what a callback that never returns would do.
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:
            nobody.bind(str(tmp_path / "silence"))
            nobody.settimeout(0.2)
            manager.told()
            with pytest.raises(TimeoutError):
                nobody.recv(1)
        assert manager.told() == []


@pytest.mark.parametrize(
    "variables",
    [
        {"WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"NOTIFY_SOCKET": ""},
    ],
)
async def test_who_is_not_asked_says_nothing(manager, variables, autojump_clock) -> None:
    async def answers() -> None:
        raise AssertionError("nobody wants to know")

    environ = manager.environ | variables
    assert period(environ, os.getpid()) is None
    async with watched(environ, manager.notifier, answers):
        await trio.sleep(5 * SECONDS)
    assert manager.told() == []


def test_without_a_pid_the_watchdog_is_meant_for_any_process_that_reads_it() -> None:
    asked = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "30000000"}
    assert period(asked, 4711) == 30
    assert period({**asked, "WATCHDOG_PID": "4711"}, 4711) == 30


async def test_a_manager_that_receives_nothing_does_not_hold_the_event_loop(tmp_path, autojump_clock) -> None:
    full = Manager(tmp_path)
    with full.socket, contextlib.closing(full.notifier):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
            flood.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    flood.sendto(b"x", full.environ["NOTIFY_SOCKET"])
        records = journal(tmp_path)
        records.open()
        with trio.fail_after(10 * LIMIT_S):
            async with trio.open_nursery() as nursery:
                await nursery.start(records.run)
                async with watched(full.environ, full.notifier, records.answer):
                    await trio.sleep(3 * SECONDS)
                nursery.cancel_scope.cancel()
        assert set(full.told()) == {"x"}
        await records.aclose()
