"""What all tests share: the assertions in `support` say what they compared, whoever imports it first."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support")


@pytest.fixture(scope="module")
def unmeasured():
    """Processes that are started run without coverage: for tests about amounts, which would take twice as long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        yield
