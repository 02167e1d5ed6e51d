"""hearth on arm64, as on a Raspberry Pi: built, installed, run and tested in a Debian whose programs run by qemu.

`make test-arm64` runs these. The processor is emulated, the kernel is this machine's. So these tests prove what depends
on the processor: wheels and their instructions, numbers and names of system calls, sizes and order of bytes, the
package. They cannot prove what only a kernel of that architecture can: qemu passes on neither Landlock nor seccomp, so
nothing is confined and no filter is loaded. qemu also has a thread of its own in each process, which is why hearthd
starts with --no-sandbox only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from support.freshroot import TOOLS, emulation, lack

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.debian import Debian

EMULATION = {"qemu-aarch64-static": "qemu-user-static", "update-binfmts": "binfmt-support"}
_LACK = lack("test-arm64", "HEARTH_ARM64", TOOLS | EMULATION) or emulation("arm64")
pytestmark = [pytest.mark.proof, pytest.mark.skipif(_LACK is not None, reason=_LACK or "")]

TESTED = "tests/protocol tests/audit tests/policy tests/sandbox tests/config"


@pytest.fixture(scope="module")
def root(debian: Callable[..., Debian]) -> Debian:
    """A Debian 13 for arm64 with the package installed that was built there."""
    made = debian("trixie", "arm64")
    made.run(f"dpkg -i {made.package()}")
    return made


def test_the_package_is_one_for_arm64_and_everything_in_it_finds_its_libraries(root: Debian) -> None:
    assert root.run("uname -m").strip() == "aarch64"
    assert root.run(f"dpkg-deb --field {root.package()} Architecture").strip() == "arm64"
    libraries = root.run("find /usr/lib/hearth -name '*.so*' -exec ldd {} +")
    assert "libc.so.6 => /lib/aarch64-linux-gnu/libc.so.6" in libraries
    assert "not found" not in libraries


@pytest.mark.parametrize("which", ["", "--hcp"])
def test_the_demo_runs(root: Debian, which: str) -> None:
    root.demo(f"{which} --no-sandbox")


def test_hearthd_says_which_parts_of_its_confinement_are_missing_and_refuses_where_they_are_required(
    root: Debian,
) -> None:
    said = root.run("hearthd --check --config /etc/hearth/hearth.toml")
    assert "sandbox: would not be in force: files, network, devices, scopes: this kernel has no Landlock" in said
    assert "sandbox: would not be in force: syscalls: this kernel has no seccomp filters" in said
    strict = "printf '[sandbox]\\nrequire = true\\n' >/tmp/strict.toml; hearthd --check --config /tmp/strict.toml"
    assert "[sandbox] require: " in root.run(strict, code=2)


def test_the_fast_tests_of_what_depends_on_the_processor_pass(root: Debian) -> None:
    said = root.run(f"cd /src && .venv/bin/python -m pytest -q -m 'not slow and not proof' {TESTED}", limit=1200)
    passed = re.search(r"^(\d+) passed", said, re.MULTILINE)
    assert passed is not None, said
    assert int(passed[1]) > 2_500, said
