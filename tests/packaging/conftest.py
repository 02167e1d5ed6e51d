"""Fresh Debians that several modules try the package in: each is made once, where it is first asked for."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.debian import Debian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
