"""The search for calls whose results a replay would not repeat, in the source of a capability function.

After a crash the function runs again and gets the recorded outcomes of its job's operations. The results of a clock, a
random number, a file, a socket or a thread of the function's own are not recorded: the second run takes another course,
or does the work twice. The check reads the syntax tree of the function, and of the functions of its module that it
calls by name. It warns and never refuses: it cannot follow values, so it misses calls through variables and other
modules.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


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
"""Calls that give the same at each run if they have a seed."""
_METHODS: Final = frozenset(("read_text", "write_text", "read_bytes", "write_bytes"))
"""Methods of pathlib.Path, and of no other common class."""


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
    calls = (node for one in _reached(own, module) for node in _calls(one))
    found = {node: cure for node in calls if (cure := _cure(node, names)) is not None}
    ordered = sorted(found, key=lambda node: (node.lineno, node.col_offset))
    return [f"{file}:{node.lineno}: {ast.unparse(node.func)}(): {found[node]}" for node in ordered]


def _reached(function: Function, module: ast.Module) -> dict[Function, None]:
    """Return a function, and those of its module that it calls by name."""
    by_name = {one.name: one for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    called = (by_name.get(node.func.id) for node in _calls(function) if isinstance(node.func, ast.Name))
    return dict.fromkeys([function, *(one for one in called if one is not None)])


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
    """Return the name of a builtin function, unless the file has a function or a variable of that name."""
    return name if name in ("open", "input") else None
