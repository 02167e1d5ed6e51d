"""The halt socket: places of its own, descriptors kept for it, and no method but the halt (hearth/actors/listeners)."""

from __future__ import annotations

import errno
import json
import socket
from functools import partial

import pytest
import trio
from support.world import OPEN, BenchWorld, running

from hearth.actors.connection import Connection
from hearth.actors.listeners.accept import MOST_HALTING_EACH, Spares, each_accepted
from hearth.actors.listeners.unix import HaltListener, bind
from hearth.errors import PermissionDenied

PATIENCE = 60


class Door:
    """A halt socket over a world, with a policy that this test's own user may match or not."""

    def __init__(self, path, world, nursery):
        self.path, self.world = path, world
        self.strangers = False
        self.listening = bind(path)
        self.listener = HaltListener(self.listening, send_timeout=10)
        nursery.start_soon(self.listener.accept_all, nursery, self._stranger, self._serve)

    def _stranger(self, _principal):
        return PermissionDenied(data={"reason": "a stranger"}) if self.strangers else None

    async def _serve(self, carrier, principal):
        await Connection(carrier, principal, self.world.runtime, halts_only="the socket").run()

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE)
        client.connect(str(self.path))
        return client


async def line(client):
    with client.makefile("rb") as lines:
        read = await trio.to_thread.run_sync(lines.readline)
    return json.loads(read) if read else None


async def ask(client, method, **params):
    client.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n")
    return await line(client)


@pytest.fixture
async def door(tmp_path):
    with trio.fail_after(PATIENCE):
        async with running(BenchWorld(policy=(OPEN,))) as world, trio.open_nursery() as nursery:
            door = Door(tmp_path / "s.halt", world, nursery)
            yield door
            nursery.cancel_scope.cancel()
    door.listener.close()


async def test_it_halts_and_shows_the_halt_and_serves_no_other_method(door):
    with door.connect() as client:
        for method in ("session.open", "task.get", "halt.reset", "hcp.sessions"):
            error = (await ask(client, method))["error"]
            assert (error["code"], error["data"]["method"]) == (-32601, method)
            assert error["message"] == (
                f"this connection takes only halt and halt.status; {method} is served at the socket"
            )
        client.sendall(b'{"hcp_version":"1.0"}\n')
        assert "is served at the socket" in (await line(client))["error"]["data"]["reason"]
        assert (await ask(client, "halt.status"))["result"]["halted"] is False
        assert (await ask(client, "halt", reason="smoke"))["result"]["reason"] == "smoke"
        assert door.world.runtime.halt.flag.halted


async def test_who_leaves_connections_open_there_makes_room_for_the_next(door):
    clients = [door.connect() for _ in range(2 * MOST_HALTING_EACH)]
    for client in clients[:MOST_HALTING_EACH]:
        assert await line(client) is None
    assert (await ask(clients[-1], "halt"))["result"]["halted"]
    for client in clients:
        client.close()


async def test_a_stranger_is_refused_there_with_the_reason(door):
    door.strangers = True
    with door.connect() as client:
        error = (await line(client))["error"]
        assert (error["code"], error["data"]) == (-32003, {"reason": "a stranger"})


async def test_an_accept_that_finds_no_descriptor_gets_one_that_was_kept(tmp_path):
    """As often as one was kept; then it waits, as other listeners do."""
    came = []
    with bind(tmp_path / "s") as listening:
        spares = Spares(3, listening)

        class Full:
            """A listening socket in a process that has no descriptors but those."""

            fileno = listening.fileno

            def accept(self):
                if len(spares._held) == 3 - len(came):
                    raise OSError(errno.EMFILE, "none left")
                return listening.accept()

        clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in clients:
            client.connect(str(tmp_path / "s"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(each_accepted, spares=spares), Full(), came.append)
            while len(came) < 3:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert not spares.give_up()
        spares.refill()
        assert len(spares._held) == 3
        spares.close()
        spares.refill()
        assert not spares.give_up()
        for each in (*came, *clients):
            each.close()
