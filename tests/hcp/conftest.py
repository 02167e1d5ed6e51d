"""What the tests of whole jobs share."""

import pytest
from support.steps import within_real_seconds


@pytest.fixture
def broken_off_when_it_hangs():
    """The book has a thread, so these tests run on the real clock: what hangs is broken off after so many seconds."""
    with within_real_seconds(30):
        yield
