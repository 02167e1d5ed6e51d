"""The contract of a session, kept for threads: the same tests over `hearth.sync`."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from support.carriers import HERE, exposed
from support.faces import BlockingFace
from support.session_contract import SessionContract
from support.world import BenchWorld, running

import hearth


class TestClientOverThreads(SessionContract):
    @pytest.fixture
    async def face(self, tmp_path):
        world = BenchWorld(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with running(world), exposed(world, "unix", directory=tmp_path, papers=None):
            client = await trio.to_thread.run_sync(partial(hearth.sync.connect, tmp_path / "unix.sock"))
            try:
                yield BlockingFace(client, world)
            finally:
                await trio.to_thread.run_sync(client.close)
