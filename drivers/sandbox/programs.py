"""What a program needs to be run: the interpreter that its first bytes name, and that one's own.

Owns the reading of ELF headers and `#!` lines; runs nothing. What a program runs in its turn nobody can tell from it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where programs look for programs."""
_DEPTH: Final = 5
"""Interpreters of interpreters: the kernel follows as many."""
_HEAD: Final = 4096
"""Bytes in which the program headers and the name of the interpreter stand; the linker puts them first."""
_PT_INTERP: Final = 3
_ENV: Final = "env"


def interpreters_of(program: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """The interpreters without which the kernel cannot run a program; none, if it cannot be read."""
    try:
        with program.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    found = _script(head) if head.startswith(b"#!") else _elf(head)
    for path in found:
        yield path
        if depth:
            yield from interpreters_of(path, depth - 1)


def _script(head: bytes) -> Iterator[Path]:
    words = head[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split()
    if not words:
        return
    yield Path(words[0])
    if Path(words[0]).name == _ENV:
        # It looks where the daemon's programs look; an option before the name, such as -S, is not the name.
        for word in words[1:]:
            if not word.startswith("-") and "=" not in word:
                yield from _on_path(word)
                return


def _on_path(name: str) -> Iterator[Path]:
    import shutil

    found = shutil.which(name, path=PATH)
    if found is not None:
        yield Path(found)


def _elf(head: bytes) -> Iterator[Path]:
    """PT_INTERP, by the ELF specification: the 64-bit layout and the 32-bit one, in either byte order."""
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    start = struct.unpack_from(f"{order}Q" if wide else f"{order}I", head, 32 if wide else 28)[0]
    size, count = struct.unpack_from(f"{order}HH", head, 54 if wide else 42)
    for index in range(count):
        at = start + index * size
        if at + size > len(head):
            return
        kind = struct.unpack_from(f"{order}I", head, at)[0]
        if kind == _PT_INTERP:
            layout = f"{order}8xQ16xQ" if wide else f"{order}4xI8xI"
            offset, length = struct.unpack_from(layout, head, at)
            name = head[offset : offset + length].rstrip(b"\0")
            if name:
                yield Path(name.decode("utf-8", "surrogateescape"))
            return
