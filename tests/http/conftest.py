"""What the HTTP tests share: a listener over a runtime in this process, and certificates."""

from functools import partial

import pytest
from support.http import served
from support.pki import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory):
    """Certificates, made once."""
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def serve(tmp_path):
    """`async with serve(http, **limits) as server`: see support.http.served."""
    return partial(served, tmp_path)


@pytest.fixture
async def server(serve):
    async with serve() as opened:
        yield opened
