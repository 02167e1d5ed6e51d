"""One Session interface: the contract of the embedded runtime, kept over every carrier and in every event loop."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from support.carriers import HERE
from support.core_only import core_only
from support.faces import AsyncioFace, BlockingFace, Loop
from support.session_contract import SessionContract
from support.world import BenchWorld, running

import hearth


class ClientFace:
    def __init__(self, world, client):
        self.world = world
        self.open_session = client.open_session


class Carried(SessionContract):
    """Over one carrier: its `kind`."""

    @pytest.fixture
    async def face(self, expose):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with running(world), expose(world, self.kind) as over, over.connect(self.kind) as client:
            yield ClientFace(world, client)


class TestOverUnix(Carried):
    kind = "unix"


@pytest.mark.slow
class TestOverTls(Carried):
    kind = "tls"


@pytest.mark.slow
class TestOverWebSocket(Carried):
    kind = "ws"


@pytest.mark.slow
class TestOverSecureWebSocket(Carried):
    kind = "wss"


class TestOverStdio(Carried):
    kind = "stdio"


@pytest.mark.slow
class TestInAsyncio(SessionContract):
    """`hearth.aio`, whose callers run in an asyncio loop."""

    @pytest.fixture
    async def face(self, expose):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with running(world), expose(world, "unix") as over, Loop().running() as loop:
            opening = hearth.aio.connect(over.address("unix"))
            client = await loop.run(opening.__aenter__)
            try:
                yield AsyncioFace(loop, client, world)
            finally:
                await loop.run(opening.__aexit__, None, None, None)


@pytest.mark.slow
class TestInThreads(SessionContract):
    """`hearth.sync`, whose callers are threads."""

    @pytest.fixture
    async def face(self, expose):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with running(world), expose(world, "unix") as over:
            client = await trio.to_thread.run_sync(partial(hearth.sync.connect, over.address("unix")))
            try:
                yield BlockingFace(client, world)
            finally:
                await trio.to_thread.run_sync(client.close)


@pytest.mark.slow
class TestOverAServerOfTheCoreOnly(SessionContract):
    """A server without CAP_STREAMING_TASK_EVENTS, which knows the six methods of the core and no other (draft §3)."""

    streams = False

    @pytest.fixture
    async def face(self, expose, tmp_path):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        core = tmp_path / "core.sock"
        async with (
            running(world),
            expose(world, "unix"),
            core_only(tmp_path / "unix.sock", core) as requests,
            hearth.connect(core) as client,
        ):
            yield ClientFace(world, client)
        assert requests.beyond_the_core() == []
