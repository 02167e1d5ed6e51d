"""Capability files in Python: who may have written one, and what it declares once it has run.

A capability file is code that hearthd runs, as root where hearthd is started as root: whoever can write it, or exchange
it on the way to it, owns the machine. So `read_code` opens the file first, then looks at owners, modes and links up to
the root directory (decision 0093), and reads what it has opened. `run_code` runs exactly those bytes, as a module that
nothing else can import and that is compiled in memory: no *.pyc is read or written beside the file.

A look at a capability's source for calls whose results a replay would not repeat.

After a crash the function runs again and gets the recorded outcomes of its job's operations. A clock, a random number,
a file, a socket or a thread of its own is on no record: the second run takes another course, or does the work twice.
This module reads the syntax tree of the function, and of the functions of its module that it calls by name. It warns
and never refuses: it cannot follow values, so it misses calls through variables and other modules.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import stat
import sys
import traceback
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hearth._util.ownership import ownership_fault
from hearth.errors import ConfigError
from hearth.hcp.capability import MARK, CapabilitySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

LARGEST: Final = 1 << 20
"""Bytes of a capability file."""


def read_file(file: Path) -> bytes:
    """Return what is in a plan file. Raises ConfigError for one that everybody may write."""
    return _read(file, is_code=False)


def read_code(file: Path) -> bytes:
    """Return what is in a Python file. Raises ConfigError for one that only root and this process could have written.

    The file, every directory above it and every link on the way belong to root or to the effective user, and no other
    user may write there. A sticky directory such as /tmp is accepted on the way.
    """
    return _read(file, is_code=True)


def _read(file: Path, *, is_code: bool) -> bytes:
    try:
        # A FIFO in its place must not hold up the daemon, nor a terminal become its own.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; let uid {os.geteuid()} read it") from None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{file}: is not a regular file; name a Python file (*.py) or a plan file (*.toml)")
        if is_code:
            _check_hands(file, status)
        elif status.st_mode & stat.S_IWOTH:
            # Who can write it decides what its callers have done to the hardware, under their names.
            raise ConfigError(f"{file}: is writable by everybody; chmod o-w {file}")
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ConfigError(f"{file}: has more than {LARGEST} bytes; a capability file has at most so many")
    return data


def _check_hands(file: Path, status: os.stat_result) -> None:
    try:
        wrong = ownership_fault(file, {os.geteuid()})
        if wrong is not None and status.st_uid not in (0, os.geteuid()):
            wrong = f"{file} belongs to uid {status.st_uid}; `chown root {file}`"
        elif wrong is None and not os.path.samestat(status, file.stat()):
            wrong = f"{file} was replaced while it was read; start hearthd again"
    except OSError as error:
        wrong = f"{error.filename} cannot be looked at: {error.strerror}; let uid {os.geteuid()} look there"
    if wrong is not None:
        raise ConfigError(f"{file}: is code that hearthd runs as uid {os.geteuid()}, and {wrong}")


def run_code(file: Path, data: bytes) -> list[CapabilitySource]:
    """Run a file's bytes and return what it declares, in its order. Raises ConfigError, whatever the file raises."""
    try:
        code = compile(data, str(file), "exec", dont_inherit=True)
        text = decode_source(data)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{file}: is nested too deeply; flatten it") from None
    except ValueError as error:  # a NUL byte, to some versions
        raise ConfigError(f"{file}: is not Python: {error}") from None
    module = _module(file)
    # Under its name: attrs and `inspect` look there for the names that annotations use.
    sys.modules[module.__name__] = module
    # Without a time of change, so that tracebacks and `inspect.getsource` show what runs and not what is there by now.
    linecache.cache[str(file)] = (len(data), None, text.splitlines(keepends=True), str(file))
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001  an operator's code may raise anything
        wrong = f"{file}:{_line(error, file)}: {said(error)}"
    else:
        if found := declared_in(module):
            return found
        wrong = f"{file}: declares no capability; put @capability(…) above an async function, or move it away"
    del sys.modules[module.__name__]
    raise ConfigError(wrong)


def declared_in(module: ModuleType) -> list[CapabilitySource]:
    """What the functions of a module declare: those that it defines, not those that it imports, each once."""
    found: dict[int, CapabilitySource] = {}
    for value in vars(module).values():
        source = getattr(value, MARK, None) if isinstance(value, FunctionType) else None
        if isinstance(source, CapabilitySource) and source.function.__module__ == module.__name__:
            found[id(source)] = source
    return list(found.values())


def said(error: BaseException) -> str:
    """An exception as one line of a message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _module(file: Path) -> ModuleType:
    """An empty module under a name of its own, in no package: neither its path nor its neighbours are imported."""
    stem, path = re.sub(r"\W", "_", file.stem), sha256(os.fsencode(file)).hexdigest()
    name = f"hearth_capability_file_{stem}_{path[:8]}"
    module = ModuleType(name)
    module.__file__ = str(file)
    module.__spec__ = ModuleSpec(name, None, origin=str(file))
    return module


def _line(error: BaseException, file: Path) -> int:
    """The line of the file that raised, or that called what raised."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return lines[-1] if lines else 1


Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"

_CLOCK: Final = "a replay reads another time; use await job.now(), job.started_at or job.at"
_CHANCE: Final = "a replay draws another value; use await job.random()"
_PAUSE: Final = "it blocks the daemon, and a replay waits again; use await job.sleep(seconds)"
_TIMEOUT: Final = "a replay takes another time, so it may end elsewhere; use max_duration, or compare job.elapsed_s"
_FILES: Final = "a replay does it again; leave files behind by job.artifact(), read them by the tool file.read"
_OUTSIDE: Final = "it bypasses policy and audit log, and a replay does it again; use a tool by await job.run()"
_PARALLEL: Final = "its order is on no record; use await job.gather()"

_CALLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"), _CLOCK),
    **dict.fromkeys(("time.perf_counter_ns", "time.process_time", "time.localtime", "time.gmtime"), _CLOCK),
    **dict.fromkeys(("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"), _CLOCK),
    **dict.fromkeys(("datetime.date.today", "trio.current_time"), _CLOCK),
    **dict.fromkeys(("random", "secrets", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom"), _CHANCE),
    **dict.fromkeys(("time.sleep", "trio.sleep", "trio.sleep_until", "trio.sleep_forever", "asyncio.sleep"), _PAUSE),
    **dict.fromkeys(("open", "io.open", "os.open", "trio.open_file", "shutil", "tempfile"), _FILES),
    **dict.fromkeys(
        ("socket", "requests", "urllib.request", "http.client", "httpx", "aiohttp", "trio.socket"), _OUTSIDE
    ),
    **dict.fromkeys(("subprocess", "os.system", "os.popen", "trio.run_process", "trio.open_tcp_stream"), _OUTSIDE),
    **dict.fromkeys(("threading", "multiprocessing", "concurrent.futures", "trio.to_thread", "asyncio"), _PARALLEL),
    **dict.fromkeys(("trio.move_on_after", "trio.move_on_at", "trio.fail_after", "trio.fail_at"), _TIMEOUT),
    "trio.open_nursery": _PARALLEL,
    "input": "the daemon has no terminal; use await job.ask_person(question)",
}
"""Functions, and modules all of whose functions are meant, with what to do instead. The most specific one counts."""
_SEEDED: Final = frozenset(("random.Random",))
"""The same at each run if they are given a seed."""
_METHODS: Final = frozenset(("read_text", "write_text", "read_bytes", "write_bytes"))
"""Of pathlib.Path, and of nothing else that is common."""


def source_warnings(function: Callable[..., Any]) -> list[str]:
    """A sentence for each such call, with its file, its line and the cure; none where there is no source to read."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    file = code.co_filename
    try:
        module = ast.parse("".join(linecache.getlines(file, getattr(function, "__globals__", None))))
    except (SyntaxError, ValueError, RecursionError):
        return []
    own = next((one for one in _functions(module) if _first_line(one) == code.co_firstlineno), None)
    if own is None:
        return []
    names = _imported(module)
    by_name = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    called = (by_name.get(node.func.id) for node in _calls(own) if isinstance(node.func, ast.Name))
    looked_at = dict.fromkeys([own, *(one for one in called if one is not None)])
    found = {node: cure for one in looked_at for node in _calls(one) if (cure := _cure(node, names)) is not None}
    ordered = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    return [f"{file}:{node.lineno}: {ast.unparse(node.func)}(): {found[node]}" for node in ordered]


def _functions(module: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _first_line(function: Function) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _calls(function: Function) -> Iterator[ast.Call]:
    return (node for line in function.body for node in ast.walk(line) if isinstance(node, ast.Call))


def _imported(module: ast.Module) -> dict[str, str]:
    """The full name of each name that an import binds, wherever in the file it stands."""
    names = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for one in node.names:
                bound = one.asname or one.name.partition(".")[0]
                names[bound] = one.name if one.asname else bound
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return names


def _cure(node: ast.Call, names: Mapping[str, str]) -> str | None:
    name = _name(node.func, names)
    if name is None:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return _FILES if method in _METHODS else None
    if name in _SEEDED and node.args:
        return None
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = next((_CALLS[prefix] for prefix in prefixes if prefix in _CALLS), None)
    if found is None and parts[-1] in _METHODS:
        return _FILES
    return found


def _name(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """The full name of a function; None if it is the attribute of a value."""
    if isinstance(node, ast.Attribute):
        owner = _name(node.value, names)
        return None if owner is None else f"{owner}.{node.attr}"
    return names.get(node.id, _builtin(node.id)) if isinstance(node, ast.Name) else None


def _builtin(name: str) -> str | None:
    """A name that is not imported is a function of the file, or a variable, or one of these."""
    return name if name in ("open", "input") else None
