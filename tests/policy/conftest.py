"""Both mechanisms of the path guard stand behind one suite."""

import ctypes
import os

import pytest

from hearth.policy.beneath import by_openat2, works
from hearth.policy.paths import PathGuard


@pytest.fixture(params=["openat2", "walk"])
def use_openat2(request):
    if request.param == "openat2" and not works(by_openat2):
        pytest.skip("this kernel or sandbox has no openat2")
    return request.param == "openat2"


@pytest.fixture
def make_guard(use_openat2):
    guards = []

    def make(read=(), write=()):
        guards.append(PathGuard(read, write, use_openat2=use_openat2))
        return guards[-1]

    yield make
    for guard in guards:
        guard.close()


@pytest.fixture
def mount():
    """Bind one directory over another, and take all of it away at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = []

    def bind(source, target):
        if libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(0x1000), None) != 0:
            pytest.skip(f"cannot mount here: {os.strerror(ctypes.get_errno())}")
        mounted.append(target)

    yield bind
    for target in reversed(mounted):
        assert libc.umount2(os.fsencode(target), 2) == 0
