"""What the HTTP tests share: a listener over a runtime in this process, and certificates."""

from contextlib import asynccontextmanager

import pytest
from support.http_house import served
from support.pki import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """Certificates, made once."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def serve(tmp_path):
    """`async with serve(http, **limits) as house`: see support.http_house.served."""

    @asynccontextmanager
    async def opened(http=None, **more):
        async with served(tmp_path, http, **more) as house:
            yield house

    return opened


@pytest.fixture
async def house(serve):
    async with serve() as opened:
        yield opened
