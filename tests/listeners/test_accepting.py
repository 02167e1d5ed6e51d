"""Accepting connections: limits, and trouble that is not the fault of whoever connects."""

from __future__ import annotations

import errno
import json
import logging
import resource
import socket

import pytest
import trio
import trio.testing

from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.actors.listeners.unix import UnixListener, bind
from hearth.errors import PermissionDenied


class Listening:
    """A listening socket whose accept fails as often as it is told."""

    def __init__(self, path):
        self.socket = bind(path)
        self.failures = []

    def accept(self):
        if self.failures:
            raise self.failures.pop(0)
        return self.socket.accept()

    def fileno(self):
        return self.socket.fileno()


@pytest.fixture
async def accepting(tmp_path):
    """`accepting(max_connections)`: start to accept; the sockets that were accepted are served until the end."""
    listening = Listening(tmp_path / "s")
    listener = UnixListener(listening, tmp_path / "s", send_timeout=10)
    served = []

    async def welcome(carrier, principal):
        served.append(principal)
        try:
            while await carrier.receive() is not None:
                pass
        finally:
            await carrier.aclose()

    async with trio.open_nursery() as outer:

        async def accept(most):
            async with trio.open_nursery() as connections:
                await listener.accept_all(connections, ConnectionLimiter(most), welcome)

        def start(most=100):
            outer.start_soon(accept, most)
            return listening, served, tmp_path / "s"

        yield start
        outer.cancel_scope.cancel()
    listening.socket.close()


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(str(path))
    return client


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.005)


@pytest.fixture
def a_guest(monkeypatch):
    """Those who connect are neither root nor the daemon's own user."""
    monkeypatch.setattr("hearth.actors.listeners.accept.owns_process", lambda _principal: False)


@pytest.mark.usefixtures("a_guest")
async def test_exactly_as_many_as_are_allowed_are_served(accepting) -> None:
    _, served, path = accepting(2)
    clients = [connect(path) for _ in range(4)]
    await until(lambda: len(served) == 2)
    for turned_away in clients[2:]:
        with turned_away.makefile("rb") as lines:
            refusal = json.loads(await trio.to_thread.run_sync(lines.readline))
            assert refusal["error"]["code"] == -32005
            assert refusal["error"]["data"] == {"max_connections": 2}
            assert not await trio.to_thread.run_sync(lines.readline)
    clients[0].close()
    await trio.testing.wait_all_tasks_blocked(0.01)
    clients.append(connect(path))
    await until(lambda: len(served) == 3)
    for client in clients:
        client.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_running_out_of_something_pauses_and_is_told_once(accepting, caplog, monkeypatch, code: int) -> None:
    monkeypatch.setattr("hearth.actors.listeners.accept.NO_DESCRIPTORS_PAUSE", 0.001)
    listening, served, path = accepting()
    listening.failures = [OSError(code, "none left")] * 50
    with caplog.at_level(logging.INFO), connect(path):
        await until(lambda: served)
    assert len(caplog.records) == 1
    assert "cannot accept" in caplog.text


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EPERM])
async def test_a_connection_that_went_before_it_was_accepted_is_passed_over(accepting, caplog, code: int) -> None:
    listening, served, path = accepting()
    listening.failures = [OSError(code, "gone")] * 5
    with connect(path):
        await until(lambda: served)
    assert not caplog.records


async def test_descriptors_are_left_for_what_the_others_need(accepting, monkeypatch) -> None:
    # As if as many were allowed as are in use, plus a few.
    with socket.socket(socket.AF_UNIX) as probe:
        allowed = probe.fileno() + 12
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (allowed, allowed))
    monkeypatch.setattr("hearth.actors.listeners.accept.RESERVED", 4)
    _, served, path = accepting()
    clients = [connect(path) for _ in range(12)]
    last = clients[-1].makefile("rb")
    refusal = json.loads(await trio.to_thread.run_sync(last.readline))
    assert refusal["error"]["code"] == -32005
    assert "descriptors" in refusal["error"]["data"]["reason"]
    assert len(served) < 12
    last.close()
    for client in clients:
        client.close()


async def test_an_unforeseen_error_is_raised(tmp_path) -> None:
    listening = Listening(tmp_path / "s")
    listening.failures = [OSError(errno.EBADF, "Bad file descriptor")]
    listener = UnixListener(listening, tmp_path / "s", send_timeout=10)
    with connect(tmp_path / "s"), pytest.RaisesGroup(OSError):
        async with trio.open_nursery() as nursery:
            await listener.accept_all(nursery, ConnectionLimiter(1), None)
    listening.socket.close()


async def test_who_cannot_be_looked_up_is_told_so_and_accepting_goes_on(accepting, monkeypatch):
    _, served, path = accepting()
    reason = "the user database of this machine does not answer"
    look_up, fails = unix.from_peercred, [PermissionDenied(data={"reason": reason})]

    def once(connected):
        if fails:
            raise fails.pop()
        return look_up(connected)

    monkeypatch.setattr(unix, "from_peercred", once)
    refused, client = connect(path), connect(path)
    while not served:
        await trio.testing.wait_all_tasks_blocked()
    error = json.loads(refused.recv(4096))["error"]
    assert (error["code"], error["data"]["reason"]) == (PermissionDenied.code, reason)
    assert refused.recv(4096) == b""
    for one in (refused, client):
        one.close()
