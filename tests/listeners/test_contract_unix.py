"""One Session interface (design §2): the contract that the embedded face keeps, kept over a Unix socket too."""

from __future__ import annotations

import pytest
from support.session_contract import SessionContract
from support.world import World, running

import hearth
from hearth.policy.rules import Match, PolicyEntry

HERE = PolicyEntry(name="here", match=Match(any=True), max_risk=2, max_risk_ceiling=3)


class ClientFace:
    def __init__(self, world, client):
        self.world = world
        self.open_session = client.open_session


class TestClientOverUnix(SessionContract):
    @pytest.fixture
    async def face(self, serve_unix, tmp_path):
        world = World(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        path = tmp_path / "hearth.sock"
        async with running(world), serve_unix(world.runtime, path), hearth.connect(path) as client:
            yield ClientFace(world, client)
