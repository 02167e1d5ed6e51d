"""What is collected where, and what the guest's tests share.

In the host's pytest run `test_host_*.py` are collected, which test the runner; in the guest, all the others. Naming one
of the others on the host is an error that says how to run it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

IN_GUEST = os.environ.get("HEARTH_GUEST") == "1"
HERE = Path(__file__).resolve().parent


def _is_for_host(path: Path) -> bool:
    return path.name.startswith("test_host_")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    path = collection_path
    elsewhere = path.suffix == ".py" and HERE in path.parents and _is_for_host(path) == IN_GUEST
    return True if elsewhere else None


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a file of the wrong kind that is named on the command line: it would pass by silently."""
    for argument in config.args:
        path = Path(argument.partition("::")[0]).resolve()
        if path.suffix != ".py" or HERE not in path.parents or _is_for_host(path) != IN_GUEST:
            continue
        name = os.path.relpath(path)
        if IN_GUEST:
            raise pytest.UsageError(f"{name} tests the runner, on the host: python -m pytest {name}")
        cure = f"python tests/hardware/guest.py -- python -m pytest {name}"
        raise pytest.UsageError(f"{name} needs the guest's devices: {cure}")


@pytest.fixture
def null_modem() -> tuple[str, str]:
    """The two ends of a null modem cable. What is written to one is read from the other; there are no control lines."""
    return "/dev/ttyS1", "/dev/ttyS2"


@pytest.fixture
def upper_caser() -> str:
    """A port with an instrument outside the guest that answers each line in upper case."""
    return "/dev/ttyS3"
