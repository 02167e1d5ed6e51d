"""The file.* tools. The driver does the work, the path guard checks the paths."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le, MinLen

from hearth.drivers.declare import Planned, asking
from hearth.drivers.files import LIST_MAX, READ_MAX, UNDO_MAX, WRITE_MAX
from hearth.drivers.schemas import Bytes, ShownBytes, shown_bytes
from hearth.drivers.typed_tools import offers, tools_of
from hearth.tools import PathUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.drivers.files import FileDriver
    from hearth.tools import GuardedPaths, Tool

Path: TypeAlias = Annotated[
    str, MinLen(1), "an absolute path beneath a directory that the operator allows for this; a refusal names those"
]
Type: TypeAlias = Annotated[
    Literal["file", "directory", "symlink", "fifo", "socket", "device", "unknown"],
    '"unknown" if it may not be looked at',
]
Size: TypeAlias = Annotated[int, Ge(0), "in bytes; of no meaning for a directory"]
Changed: TypeAlias = Annotated[float, "last change of the content, in seconds since 1970 (UTC)"]
Content: TypeAlias = Annotated[bytes, Bytes("the content", least=0, most=WRITE_MAX)]
Mode: TypeAlias = Annotated[
    Literal["replace", "append", "create"],
    '"replace": the file has this content and nothing else; "append": add to its end, or create it; "create": fail '
    "with errno EEXIST if there is anything",
]


class _DirectoryEntry(TypedDict):
    name: Annotated[str, "append it to the directory's path"]
    type: Type
    name_base64: NotRequired[
        Annotated[
            str,
            {"contentEncoding": "base64"},
            "only for a name that is not UTF-8, in full; `name` then has escapes and fits no path",
        ]
    ]
    size: NotRequired[Size]
    mtime: NotRequired[Changed]
    target: NotRequired[Annotated[str, "of a symlink: what it says it leads to"]]


class _DirectoryList(TypedDict):
    path: str
    entries: Annotated[list[_DirectoryEntry], "sorted by name"]
    truncated: Annotated[bool, "true if entries are missing from the list"]


class _Status(TypedDict):
    path: str
    type: Type
    size: Size
    mtime: Changed
    mode: Annotated[str, 'permissions in octal, such as "0644"']


class _FileRead(TypedDict):
    data: Annotated[bytes, ShownBytes("what was read", most=READ_MAX)]
    size: Annotated[int, "the whole file's, in bytes; 0 for many in /proc, /sys"]
    eof: Annotated[bool, "true if nothing follows"]


class _FileWritten(TypedDict):
    path: str
    size: Annotated[int, "of the file now, in bytes"]
    created: Annotated[bool, "true if there was no such file before"]
    reversible: Annotated[bool, "true if a rollback can take this back"]


class _Deleted(TypedDict):
    path: str
    deleted: Annotated[Literal["file", "directory", "symlink"], "what it was"]


_reads = partial(
    offers,
    capability="CAP_FILE_READ",
    risk_level=0,
    timeout_ms=5000,
    discloses=True,
    paths=lambda args: [PathUse(args["path"], "read")],
)
_writes = partial(
    offers, capability="CAP_FILE_WRITE", timeout_ms=10_000, paths=lambda args: [PathUse(args["path"], "write")]
)


class _FileTools:
    def __init__(self, bus: str) -> None:
        self._bus = bus

    def _plan(self, op: Callable[[GuardedPaths, FileDriver], Any]) -> Planned[Any]:
        return asking(self._bus, lambda ctx, driver: op(ctx.paths, driver))

    @_reads("file.list", logged=("path",))
    def list(self, path: Path) -> Planned[_DirectoryList]:
        """List a directory: each entry's name, type, size and time of last change, sorted by name.

        Links are shown, not followed. At most {LIST_MAX} entries; `truncated` says whether there are more.
        """
        return self._plan(lambda guard, driver: driver.list(guard, path))

    @_reads("file.stat", logged=("path",))
    def stat(self, path: Path) -> Planned[_Status]:
        """Look at a file or directory without reading it: type, size in bytes, time of last change and permissions.

        Follows links. Fails with errno ENOENT if there is nothing.
        """
        return self._plan(lambda guard, driver: driver.stat(guard, path))

    @_reads("file.read", logged=("path", "offset", "len"))
    def read(
        self,
        path: Path,
        offset: Annotated[int, Ge(0), Le(2**53), "where to begin, in bytes"] = 0,
        len_: Annotated[int, Ge(1), Le(READ_MAX), "how many bytes to read at most"] = READ_MAX,
    ) -> Planned[_FileRead]:
        """Read a regular file, at most {READ_MAX} bytes at a time.

        If `eof` is false, read on at `offset` + the number of bytes received.
        """
        return self._plan(lambda guard, driver: driver.read(guard, path, offset, len_, shown_bytes))

    @_writes("file.write", risk_level=1, logged=("path", "mode"), supports_rollback=True)
    def write(self, path: Path, data: Content, mode: Mode = "replace") -> Planned[_FileWritten]:
        """Write a regular file (one of `data`, `text` and `hex`); its directory must exist.

        By default the file is replaced as a whole and at once, or created: a reader sees either the old or the new
        content. It is safely on the disk when the step is done. A rollback restores the former content, unless that was
        larger than {UNDO_MAX} bytes or the file has changed since.
        """
        return self._plan(lambda guard, driver: driver.write(guard, path, data, mode))

    @_writes("file.delete", risk_level=3, logged=("path",), idempotent=True)
    def delete(self, path: Path) -> Planned[_Deleted]:
        """Delete a file or an empty directory for good: there is no rollback.

        Of a link, the link is deleted and not what it leads to. A directory that is not empty fails with errno
        ENOTEMPTY.
        """
        return self._plan(lambda guard, driver: driver.delete(guard, path))


def file_tools(bus: str = "files") -> list[Tool]:
    """Return the five tools; `bus` is the id of the bus whose driver is a `FileDriver`."""
    return tools_of(_FileTools(bus), {"LIST_MAX": LIST_MAX, "UNDO_MAX": UNDO_MAX})
