"""What the tests of whole jobs share."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from support.steps import within_real_seconds


@pytest.fixture
def broken_off_when_it_hangs():
    """The job store has a thread, so these tests run on the real clock: what hangs is broken off after a minute."""
    with within_real_seconds(60):
        yield


@pytest.fixture
async def bounded():
    """Every wait of the test is bounded."""
    with trio.fail_after(60):
        yield


@pytest.fixture
def reachable():
    """A directory that any user may enter: those of pytest are closed to all but their owner."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
