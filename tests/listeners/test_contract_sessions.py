"""One Session interface (design §2): the contract that the embedded face keeps, kept over every carrier too."""

from __future__ import annotations

import pytest
from support.carriers import HERE
from support.session_contract import SessionContract
from support.world import World, running


class ClientFace:
    def __init__(self, world, client):
        self.world = world
        self.open_session = client.open_session


class Carried(SessionContract):
    """Over one carrier: its `kind`."""

    @pytest.fixture
    async def face(self, expose):
        world = World(keep=(31,), close_grace_s=0.2, policy=(HERE,))
        async with running(world), expose(world.runtime, self.kind) as over, over.connect(self.kind) as client:
            yield ClientFace(world, client)


class TestOverUnix(Carried):
    kind = "unix"


class TestOverTls(Carried):
    kind = "tls"


class TestOverWebSocket(Carried):
    kind = "ws"


class TestOverSecureWebSocket(Carried):
    kind = "wss"


class TestOverStdio(Carried):
    kind = "stdio"
