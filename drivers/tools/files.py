"""The file.* tools: schemas and descriptions. The driver does the work, the path guard checks the paths."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hearth.drivers import schemas
from hearth.drivers.declare import reading, tool, transacts
from hearth.drivers.files import LIST_MAX, READ_MAX, UNDO_MAX, WRITE_MAX
from hearth.tools import Args, PathUse, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_PATH = {
    "type": "string",
    "minLength": 1,
    "description": "an absolute path beneath a directory that the operator allows for this; a refusal names those",
}
_FACTS: dict[str, schemas.Schema] = {
    "type": {
        "enum": ["file", "directory", "symlink", "fifo", "socket", "device", "unknown"],
        "description": '"unknown" if it may not be looked at',
    },
    "size": {"type": "integer", "minimum": 0, "description": "in bytes; of no meaning for a directory"},
    "mtime": {"type": "number", "description": "last change of the content, in seconds since 1970 (UTC)"},
}
_MODES = ("replace", "append", "create")


def file_tools(bus: str = "files") -> list[Tool]:
    """Return the five tools; `bus` is the id of the bus whose driver is a `FileDriver`."""

    def checked_bus(args: Args) -> str:
        # Checked at submit, before anything runs.
        _content(args)
        return bus

    path = {"type": "string"}
    reads = reading("CAP_FILE_READ", timeout_ms=5000, bus=lambda _args: bus, paths=_reads, discloses=True)
    writes = partial(tool, capability="CAP_FILE_WRITE", timeout_ms=10_000, bus=lambda _args: bus, paths=_writes)
    return [
        reads(
            "file.list",
            "List a directory: each entry's name, type, size and time of last change, sorted by name. Links are "
            f"shown, not followed. At most {LIST_MAX} entries; `truncated` says whether there are more.",
            {"path": _PATH},
            {
                "path": path,
                "entries": schemas.listed("sorted by name", _entry_schema()),
                "truncated": schemas.flag("true if entries are missing from the list"),
            },
            logged=("path",),
            run=transacts(lambda ctx, args: lambda driver: driver.list(ctx.paths, args["path"])),
        ),
        reads(
            "file.stat",
            "Look at a file or directory without reading it: type, size in bytes, time of last change and "
            "permissions. Follows links. Fails with errno ENOENT if there is nothing.",
            {"path": _PATH},
            {"path": path, **_FACTS, "mode": {"type": "string", "description": 'permissions in octal, such as "0644"'}},
            logged=("path",),
            run=transacts(lambda ctx, args: lambda driver: driver.stat(ctx.paths, args["path"])),
        ),
        reads(
            "file.read",
            f"Read a regular file, at most {READ_MAX} bytes at a time. If `eof` is false, read on at "
            "`offset` + the number of bytes received.",
            {
                "path": _PATH,
                "offset?": schemas.integer("where to begin, in bytes", 0, 2**53, default=0),
                "len?": schemas.integer("how many bytes to read at most", 1, READ_MAX, default=READ_MAX),
            },
            {
                **schemas.bytes_result("what was read", most=READ_MAX),
                "size": {"type": "integer", "description": "the whole file's, in bytes; 0 for many in /proc, /sys"},
                "eof": schemas.flag("true if nothing follows"),
            },
            logged=("path", "offset", "len"),
            run=transacts(_read),
        ),
        writes(
            "file.write",
            "Write a regular file (one of `data`, `text` and `hex`); its directory must exist. By default the file "
            "is replaced as a whole and at once, or created: a reader sees either the old or the new content. It "
            "is safely on the disk when the step is done. A rollback restores the former content, unless that was "
            f"larger than {UNDO_MAX} bytes or the file has changed since.",
            {
                "path": _PATH,
                **schemas.bytes_args("data", "the content", least=0, most=WRITE_MAX),
                "mode?": {
                    "enum": list(_MODES),
                    "default": "replace",
                    "description": '"replace": the file has this content and nothing else; "append": add to its end, '
                    'or create it; "create": fail with errno EEXIST if there is anything',
                },
            },
            {
                "path": path,
                "size": {"type": "integer", "description": "of the file now, in bytes"},
                "created": schemas.flag("true if there was no such file before"),
                "reversible": schemas.flag("true if a rollback can take this back"),
            },
            risk_level=1,
            logged=("path", "mode"),
            supports_rollback=True,
            bus=checked_bus,
            run=transacts(_write),
        ),
        writes(
            "file.delete",
            "Delete a file or an empty directory for good: there is no rollback. Of a link, the link is deleted "
            "and not what it leads to. A directory that is not empty fails with errno ENOTEMPTY.",
            {"path": _PATH},
            {"path": path, "deleted": {"enum": ["file", "directory", "symlink"], "description": "what it was"}},
            risk_level=3,
            logged=("path",),
            idempotent=True,
            run=transacts(lambda ctx, args: lambda driver: driver.delete(ctx.paths, args["path"])),
        ),
    ]


def _entry_schema() -> Mapping[str, Any]:
    return {
        "type": "object",
        "required": ["name", "type"],
        "properties": {
            "name": {"type": "string", "description": "append it to the directory's path"},
            "name_base64": {
                "type": "string",
                "contentEncoding": "base64",
                "description": "only for a name that is not UTF-8, in full; `name` then has escapes and fits no path",
            },
            **_FACTS,
            "target": {"type": "string", "description": "of a symlink: what it says it leads to"},
        },
    }


def _reads(args: Args) -> list[PathUse]:
    return [PathUse(args["path"], "read")]


def _writes(args: Args) -> list[PathUse]:
    return [PathUse(args["path"], "write")]


def _content(args: Args) -> bytes:
    return schemas.read_bytes(args, least=0, most=WRITE_MAX)


def _read(ctx: StepContext, args: Args) -> Callable[[Any], Any]:
    # int(): to JSON Schema 16.0 is an integer as well.
    offset, length = int(args.get("offset", 0)), int(args.get("len", READ_MAX))
    return lambda driver: driver.read(ctx.paths, args["path"], offset, length, schemas.shown_bytes)


def _write(ctx: StepContext, args: Args) -> Callable[[Any], Any]:
    data, mode = _content(args), args.get("mode", "replace")
    return lambda driver: driver.write(ctx.paths, args["path"], data, mode)
