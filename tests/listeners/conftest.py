"""What the listeners' tests share: a runtime behind each carrier there is, in this process."""

import json
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import evolve

import hearth
from hearth.actors.carrier import SocketCarrier
from hearth.actors.connection import Connection
from hearth.actors.listeners import unix
from hearth.actors.runtime import Runtime
from hearth.config import AuditConfig, Config
from hearth.groups import unwrapped


@asynccontextmanager
async def serve_unix(runtime: Runtime, path, *, max_connections=100, max_outstanding=256, send_timeout=30.0):
    """Serve a runtime on a Unix socket while the body runs."""
    listening = unix.bind(path)

    async def serve(connected, principal):
        carrier = SocketCarrier(connected, send_timeout=send_timeout)
        await Connection(carrier, principal, runtime, max_outstanding=max_outstanding).run()

    async with unwrapped() as body, trio.open_nursery() as nursery:
        nursery.start_soon(partial(accept, listening, serve, max_connections))
        async with body.watched():
            yield
        nursery.cancel_scope.cancel()


async def accept(listening, serve, max_connections):
    try:
        async with trio.open_nursery() as connections:
            await unix.accept_all(listening, connections, serve, max_connections=max_connections)
    finally:
        listening.close()


@pytest.fixture(name="serve_unix")
def serve_unix_fixture():
    return serve_unix


class House:
    """A runtime on the simulated board and a way to its sessions."""

    def __init__(self, runtime, opener, attach):
        self.runtime = runtime
        self.open_session = opener.open_session
        self._attach = attach

    def attach(self, session):
        """The same session from elsewhere: an async context manager."""
        return self._attach(session)

    def level(self, line):
        """What a line is driven to, past every actor."""
        return self.runtime.board.drivers["gpio:sim"].level(line)

    @property
    def sessions(self):
        return self.runtime.health()["sessions"]

    def records(self, *events):
        records = [json.loads(line) for line in self.runtime.audit_path.read_text().splitlines()]
        return [record for record in records if not events or record["event"] in events]


@asynccontextmanager
async def embedded_house(config, _path):
    async with hearth.open_runtime(board="sim", config=config) as runtime:

        @asynccontextmanager
        async def attach(session):
            yield runtime.attach(session.session_id)

        yield House(runtime, runtime, attach)


@asynccontextmanager
async def unix_house(config, path):
    limits = config.limits
    async with (
        hearth.open_runtime(board="sim", config=config) as runtime,
        serve_unix(runtime._runtime, path, max_outstanding=limits.max_outstanding, send_timeout=limits.send_timeout_s),
        hearth.connect(path) as client,
    ):

        @asynccontextmanager
        async def attach(session):
            async with hearth.connect(path) as other:
                yield other.attach(session.session_id)

        yield House(runtime, client, attach)


HOUSES = {"embedded": embedded_house, "unix": unix_house}


@pytest.fixture(params=HOUSES)
def make_house(request, tmp_path):
    """`async with make_house(**limits) as house`, over each carrier."""

    def make(**limits):
        config = Config(audit=AuditConfig(path=tmp_path / "audit.log"))
        config = evolve(config, limits=evolve(config.limits, **limits))
        return HOUSES[request.param](config, tmp_path / "hearth.sock")

    return make


@pytest.fixture
async def house(make_house):
    async with make_house() as opened:
        yield opened
