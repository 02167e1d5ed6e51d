"""What this machine can confine, for tests that cannot say anything where it cannot."""

from __future__ import annotations

import os

import pytest
from support.forked import forked

from hearth.drivers.sandbox import landlock, seccomp


def landlock_abi() -> int:
    """The version of Landlock here; 0 where there is none."""
    try:
        return landlock.version()
    except OSError:
        return 0


def _why_no_filters() -> str:
    """Why there are no filters of system calls here, and the cure; empty where there are."""
    try:
        seccomp.Filter(())
    except seccomp.NoFilter as error:
        return str(error)
    return ""


def needs_landlock(abi: int = 1) -> pytest.MarkDecorator:
    """For tests of what a version of it denies."""
    reason = f"the kernel has Landlock {landlock_abi()}, and this takes {abi}: Linux 6.12 has 6, see docs/sandbox.md"
    return pytest.mark.skipif(landlock_abi() < abi, reason=reason)


needs_filters = pytest.mark.skipif(bool(_why_no_filters()), reason=_why_no_filters())
needs_one_thread = pytest.mark.skipif(
    forked(lambda: len(os.listdir("/proc/self/task"))) > 1,
    reason="a process of one thread has two here: the emulator of this processor has one; run it on a real one",
)
"""For tests that confine themselves."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do these things anywhere; run the tests as root")
