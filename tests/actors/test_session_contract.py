"""One Session interface (design §2): the same contract for an embedding program and for a client over a carrier."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from attrs import evolve
from support.session_contract import SessionContract
from support.world import OPEN, BenchWorld, running

from hearth.actors.embedded import EmbeddedRuntime
from hearth.policy.principal import Principal


@asynccontextmanager
async def a_world():
    policy = (evolve(OPEN, rights=["reset_halt", "observe"]),)
    async with running(BenchWorld(keep=(31,), close_grace_s=0.2, policy=policy)) as world:
        yield world


class EmbeddedFace(EmbeddedRuntime):
    def __init__(self, world):
        super().__init__(world.runtime, Principal(kind="embedded"))
        self.world = world


class ClientFace:
    def __init__(self, world, client):
        self.world = world
        self.open_session = client.open_session


class TestEmbedded(SessionContract):
    @pytest.fixture
    async def face(self):
        async with a_world() as world:
            yield EmbeddedFace(world)


class TestClientOverMemory(SessionContract):
    @pytest.fixture
    async def face(self):
        async with a_world() as world, world.client() as client:
            yield ClientFace(world, client)
