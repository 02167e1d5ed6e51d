"""The contract of a session, kept for asyncio: the same tests over `hearth.aio`."""

from __future__ import annotations

import pytest
from support.carriers import HERE, exposed
from support.faces import AsyncioFace, Loop
from support.session_contract import SessionContract
from support.world import BenchWorld, running

import hearth


class TestClientOverAsyncio(SessionContract):
    @pytest.fixture
    async def face(self, tmp_path):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with (
            running(world),
            exposed(world, "unix", directory=tmp_path, papers=None),
            Loop().running() as loop,
        ):
            opening = hearth.aio.connect(tmp_path / "unix.sock")
            client = await loop.run(opening.__aenter__)
            try:
                yield AsyncioFace(loop, client, world)
            finally:
                await loop.run(opening.__aexit__, None, None, None)
