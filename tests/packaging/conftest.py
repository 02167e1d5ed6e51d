"""Fresh Debians that several modules try the package in: each is made once, where it is first asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.debian import PYTHONS, Debian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xdist.remote import Producer
    from xdist.scheduler import Scheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With --dist loadgroup, run the tests of a release of Debian one after another in one worker.

    xdist's own groups are written into the ids of tests, which pytest 9.2 no longer lets a plugin change.
    """
    from xdist.scheduler import LoadScopeScheduling

    class BySuite(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((suite for suite in PYTHONS if suite in nodeid), nodeid)

    return BySuite(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Debian]]:
    """Returns the Debian of a release and an architecture, as `Debian` takes them."""
    made: dict[tuple[str, ...], Debian] = {}

    def get(*kind: str) -> Debian:
        if kind not in made:
            made[kind] = Debian(tmp_path_factory.mktemp("debian") / "root", *kind)
        return made[kind]

    yield get
    for root in made.values():
        shutil.rmtree(root.path)
