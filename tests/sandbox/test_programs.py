"""What a program needs to be run, as its first bytes tell."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from hearth.drivers.sandbox.plan import interpreters_of


def elf(tmp_path, *, wide, order="<", interpreter=b"/lib/ld.so\0", kind=3, at=None):
    """An ELF file's beginning with a LOAD header and one of `kind`, by the specification."""
    start, size = (64, 56) if wide else (52, 32)
    place = start + 2 * size
    if wide:
        header = struct.pack(
            f"{order}16sHHIQQQIHHHHHH", _ident(2, order), 2, 62, 1, 0, start, 0, 0, 64, size, 2, 0, 0, 0
        )
        one = struct.pack(f"{order}IIQQQQQQ", 1, 0, 0, 0, 0, 0, 0, 0)
        two = struct.pack(f"{order}IIQQQQQQ", kind, 0, at or place, 0, 0, len(interpreter), 0, 0)
    else:
        header = struct.pack(
            f"{order}16sHHIIIIIHHHHHH", _ident(1, order), 2, 3, 1, 0, start, 0, 0, 52, size, 2, 0, 0, 0
        )
        one = struct.pack(f"{order}IIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0)
        two = struct.pack(f"{order}IIIIIIII", kind, at or place, 0, 0, len(interpreter), 0, 0, 0)
    file = tmp_path / "program"
    file.write_bytes(header + one + two + interpreter)
    return file


def _ident(width, order):
    return b"\x7fELF" + bytes([width, 1 if order == "<" else 2, 1]) + bytes(9)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_loader_of_a_binary_is_the_one_that_it_names(tmp_path, wide, order):
    assert list(interpreters_of(elf(tmp_path, wide=wide, order=order))) == [Path("/lib/ld.so")]


def test_a_real_program_has_a_real_loader():
    (loader,) = interpreters_of(Path("/bin/true").resolve())
    assert loader.is_file()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x7fELF", b"\x7fELF" + bytes(40), b"#!", b"#!   \nx", b"plain text", b"\x7fELF\x02\x01" + b"\xff" * 200],
)
def test_what_names_no_interpreter_has_none(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert list(interpreters_of(tmp_path / "x")) == []


def test_a_binary_that_is_linked_statically_has_none(tmp_path):
    assert list(interpreters_of(elf(tmp_path, wide=True, kind=1))) == []
    assert list(interpreters_of(elf(tmp_path, wide=True, interpreter=b"\0"))) == []


def test_a_program_that_cannot_be_read_has_none(tmp_path):
    assert list(interpreters_of(tmp_path / "nowhere")) == []
    assert list(interpreters_of(tmp_path)) == []


def test_a_scripts_interpreter_is_followed_to_its_own(tmp_path):
    script = tmp_path / "script"
    script.write_text("#! /bin/sh -e\nexit\n")
    shell, loader = interpreters_of(script)
    assert shell == Path("/bin/sh")
    assert loader.is_file()


def test_env_is_looked_through_on_the_path_that_programs_get(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env -S LANG=C sh -e\n")
    found = list(interpreters_of(script))
    assert found[0] == Path("/usr/bin/env")
    assert "sh" in [path.name for path in found]
    script.write_text("#!/usr/bin/env no-such-program\n")
    assert [path.name for path in interpreters_of(script) if path.name != "env"][1:] == []


def test_a_script_that_is_its_own_interpreter_is_followed_a_few_times_only(tmp_path):
    script = tmp_path / "loop"
    script.write_text(f"#!{script}\n")
    assert len(list(interpreters_of(script))) == 6
