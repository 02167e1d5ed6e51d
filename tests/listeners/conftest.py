"""What the listeners' tests share: a runtime behind each carrier there is, in this process."""

import json
from contextlib import asynccontextmanager

import pytest
from attrs import evolve
from support.carriers import KINDS, Papers, exposed, ssh_to_here

import hearth
from hearth.config.model import AuditConfig, Config


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    """Certificates and tokens, made once."""
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture
def expose(tmp_path, papers, monkeypatch):
    """`async with expose(runtime, *kinds) as over`: a runtime behind these carriers; see support.carriers.Exposed."""
    monkeypatch.setenv("HEARTH_SSH", str(ssh_to_here(tmp_path)))
    monkeypatch.delenv("HEARTH_TOKEN", raising=False)

    def make(runtime, *kinds, **more):
        return exposed(runtime, tmp_path, papers, *kinds, **more)

    return make


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
async def embedded_house(config):
    async with hearth.open_runtime(board="sim", config=config) as runtime:

        @asynccontextmanager
        async def attach(session):
            yield runtime.attach(session.session_id)

        yield House(runtime, runtime, attach)


@asynccontextmanager
async def carried_house(config, kind, expose):
    async with (
        hearth.open_runtime(board="sim", config=config) as runtime,
        expose(runtime._runtime, kind, limits=config.limits) as over,
        over.connect(kind) as client,
    ):

        @asynccontextmanager
        async def attach(session):
            async with over.connect(kind) as other:
                yield other.attach(session.session_id)

        yield House(runtime, client, attach)


HOUSES = ("embedded", *(kind for kind in KINDS if kind != "memory"))


@pytest.fixture(params=HOUSES)
def make_house(request, tmp_path, expose):
    """`async with make_house(**limits) as house`, over each carrier."""

    def make(**limits):
        config = Config(audit=AuditConfig(path=tmp_path / "audit.log"))
        config = evolve(config, limits=evolve(config.limits, **limits))
        return embedded_house(config) if request.param == "embedded" else carried_house(config, request.param, expose)

    return make


@pytest.fixture
async def house(make_house):
    async with make_house() as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def _children_unmeasured(unmeasured):
    """What runs in other processes here is measured in tests/cli; a third of its time would be coverage's."""


def pytest_collection_modifyitems(items):
    """Over stdio every test starts a process, which is what `slow` means."""
    for item in items:
        if "stdio" in item.name or "Stdio" in item.nodeid:
            item.add_marker(pytest.mark.slow)
