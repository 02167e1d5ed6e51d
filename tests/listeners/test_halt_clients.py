"""A client's halt goes to the halt socket when the connection fails or stays silent (hearth/client/halting.py)."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from hearth.client import halting
from hearth.client.halting import PATIENCE, first_answer
from hearth.errors import CarrierError, PermissionDenied
from hearth.transport.address import TlsAddress, UnixAddress

HERE = UnixAddress(Path("/run/hearth/hearth.sock"))
HALTED = {"halted": True}


@pytest.fixture
def door(monkeypatch):
    """The halt socket in memory: notes what it is asked and when, and answers with `says`."""

    door = SimpleNamespace(asked=[], says={"result": HALTED})

    class Stream:
        def __init__(self, address):
            self.address = address

        async def send_all(self, line):
            request = json.loads(line)
            door.asked.append((str(self.address.path), request["method"], request["params"], trio.current_time()))
            self.answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], **door.says}).encode() + b"\n"

        async def receive_some(self):
            return self.answer

    @asynccontextmanager
    async def open_stream(address):
        if door.says is None:
            raise CarrierError(f"no daemon at {address.place}")
        yield Stream(address)

    monkeypatch.setattr(halting, "open_stream", open_stream)
    return door


async def at_once():
    await trio.lowlevel.checkpoint()
    return {"halted": True, "reason": "on the connection"}


async def refused():
    await trio.lowlevel.checkpoint()
    raise PermissionDenied("no")


async def test_a_connection_that_answers_at_once_needs_no_halt_socket(door, autojump_clock):
    assert await first_answer(at_once, HERE, "halt", {}) == {"halted": True, "reason": "on the connection"}
    assert not door.asked


async def test_one_that_stays_silent_has_its_time_and_then_the_halt_socket_is_asked(door, autojump_clock):
    began = trio.current_time()
    assert await first_answer(trio.sleep_forever, HERE, "halt", {"reason": "smoke"}) == HALTED
    assert door.asked == [("/run/hearth/hearth.sock.halt", "halt", {"reason": "smoke"}, began + PATIENCE)]


async def test_where_the_connection_fails_the_halt_socket_is_asked_at_once(door, autojump_clock):
    began = trio.current_time()
    assert await first_answer(refused, HERE, "halt.status", {}) == HALTED
    assert [asked[3] for asked in door.asked] == [began]


@pytest.mark.parametrize("says", [None, {"error": {"code": -32603, "message": "x"}}])
async def test_where_both_fail_the_error_is_the_connections(door, autojump_clock, says):
    door.says = says
    with pytest.raises(PermissionDenied):
        await first_answer(refused, HERE, "halt", {})


async def test_a_connection_that_answers_late_counts_where_the_halt_socket_fails(door, autojump_clock):
    door.says = None

    async def late():
        await trio.sleep(10)
        return HALTED

    assert await first_answer(late, HERE, "halt", {}) == HALTED


async def test_over_tcp_the_connection_is_the_only_way(door, autojump_clock):
    with pytest.raises(PermissionDenied):
        await first_answer(refused, TlsAddress("device"), "halt", {})
    assert not door.asked
