"""What all tests share: the assertions in `support` say what they compared, whoever imports it first."""

from __future__ import annotations

import os
import tempfile

import pytest

pytest.register_assert_rewrite("support")

EXTRA = "HEARTH_SANDBOX_WRITE"
LONGEST_TMPDIR = 24
"""Bytes. The kernel takes 107 for a socket's path, and a test's own directory and name come on top."""

if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
    # What pytest makes the tests' directories in; it makes one of our own there.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/tmp")


def pytest_configure() -> None:
    """Where coverage is measured, confined daemons may write what they have measured beside what we have."""
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        from coverage import Coverage

        measuring = Coverage.current()
        if measuring is not None:
            os.environ[EXTRA] = os.path.dirname(os.path.abspath(str(measuring.get_option("run:data_file"))))


@pytest.fixture(scope="module")
def unmeasured():
    """Processes that are started run without coverage: for tests about amounts, which would take twice as long."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVERAGE_PROCESS_CONFIG", EXTRA):
            patch.delenv(name, raising=False)
        yield
