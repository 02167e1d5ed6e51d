"""What the listeners' tests share: a runtime behind each carrier there is, in this process."""

from contextlib import asynccontextmanager

import pytest
from support.carriers import KINDS, Papers, exposed, ssh_to_here
from support.world import running, simulated
from support.zygote import Zygote

from hearth._util.exceptions import unwrapped


@pytest.fixture(scope="session")
def papers(tmp_path_factory):
    """Certificates and tokens, made once."""
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A directory with a `hearth` that is imported once for all tests."""
    directory = tmp_path_factory.mktemp("programs")
    zygote = Zygote(directory, "cli.preloaded:main")
    zygote.command(directory / "hearth")
    yield directory
    zygote.close()


@pytest.fixture
def expose(request, tmp_path, papers, monkeypatch):
    """`async with expose(world, *kinds) as over`: a world behind these carriers; see support.carriers.Carriers."""
    monkeypatch.delenv("HEARTH_TOKEN", raising=False)

    def expose(world, *kinds):
        if "stdio" in kinds:
            monkeypatch.setenv("HEARTH_SSH", str(ssh_to_here(tmp_path, request.getfixturevalue("programs"))))
        return exposed(world, *kinds, directory=tmp_path, papers=papers)

    return expose


class Served:
    """A world on the simulated board, and one way to its sessions."""

    def __init__(self, world, opener, attach):
        self.records = world.records
        self.level = world.level
        self.open_session = opener.open_session
        self.attach = attach
        """The same session from elsewhere: an async context manager."""
        self._runtime = world.runtime

    @property
    def sessions(self):
        return self._runtime.sessions


@pytest.fixture(params=("embedded", *(kind for kind in KINDS if kind != "memory")))
def serve(request, tmp_path, expose):
    """`async with serve(**limits) as served`, over each carrier."""

    @asynccontextmanager
    async def opened(**limits):
        world = simulated(tmp_path, limits=limits)
        async with unwrapped() as body, running(world):
            if request.param == "embedded":
                here = world.sessions()

                @asynccontextmanager
                async def attach(session):
                    yield here.attach(session.session_id)

                async with body.watched():
                    yield Served(world, here, attach)
                return
            async with expose(world, request.param) as over, over.connect(request.param) as client:

                @asynccontextmanager
                async def attach(session):
                    async with over.connect(request.param) as other:
                        yield other.attach(session.session_id)

                async with body.watched():
                    yield Served(world, client, attach)

    return opened


@pytest.fixture
async def served(serve):
    async with serve() as opened:
        yield opened


@pytest.fixture(scope="module", autouse=True)
def _children_unmeasured(unmeasured):
    """What runs in other processes here is measured in tests/cli; a third of its time would be coverage's."""


def pytest_collection_modifyitems(items):
    """Over stdio every test starts a process, which is what `slow` means."""
    for item in items:
        if "stdio" in item.name or "Stdio" in item.nodeid:
            item.add_marker(pytest.mark.slow)
