"""What this machine can confine, for tests that cannot say anything where it cannot."""

from __future__ import annotations

import os

import pytest

from hearth.drivers.sandbox import landlock, seccomp


def landlock_abi() -> int:
    """The version of Landlock here; 0 where there is none."""
    try:
        return landlock.version()
    except OSError:
        return 0


def _has_filters() -> bool:
    try:
        seccomp.library()
    except seccomp.NoFilter:
        return False
    return os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def needs_landlock(abi: int = 1) -> pytest.MarkDecorator:
    """For tests of what a version of it denies."""
    reason = f"the kernel has Landlock {landlock_abi()}, and this takes {abi}: Linux 6.12 has 6, see docs/sandbox.md"
    return pytest.mark.skipif(landlock_abi() < abi, reason=reason)


needs_filters = pytest.mark.skipif(not _has_filters(), reason="no libseccomp: apt-get install libseccomp2")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do these things anywhere; run the tests as root")
