"""Capability files: Python files, whose owners and modes are checked before they run, and plan files.

A Python capability file is code that hearthd runs, as root where hearthd is started as root: any user that can write
it, or replace it on the way to it, owns the machine, and a plan file decides what callers do to the hardware. So
`read_source` opens the file first, then checks owners, modes and links up to the root directory (decision 0093), and
reads the file that it has opened. `run_code` runs exactly those bytes, as a module that nothing else can import and
that is compiled in memory: no *.pyc is read or written beside the file.

`source_warnings` looks for calls whose results a replay would not repeat. After a crash the function runs again and
gets the recorded outcomes of its job's operations. The results of a clock, a random number, a file, a socket or a
thread of the function's own are not recorded: the second run takes another course, or does the work twice. The check
reads the syntax tree of the function, and of the functions of its module that it calls by name. It warns and never
refuses: it cannot follow values, so it misses calls through variables and other modules.

A plan file is a capability that is a list of steps, written in TOML. This module owns its tables, and `{input}` within
a step's args and what it expects. A string that is one placeholder takes the input's value with its type; within other
text the value is written out. `{{` and `}}` are braces. `hearth.hcp.declaration` checks the declarations of both kinds
of file.
"""

from __future__ import annotations

import ast
import inspect
import json
import linecache
import os
import re
import sys
import traceback
from collections.abc import Mapping
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import frozen

from hearth._util.files import read_file
from hearth._util.foreign import Raised, called
from hearth._util.toml import parse_toml
from hearth.errors import ConfigError, HearthError, InvalidParams
from hearth.fields import AnyMap, Anything, Fault, JsonValue, Text, unknown_key
from hearth.hcp.capability import MARK, CapabilitySource
from hearth.protocol.known import known_by
from hearth.protocol.methods import read_expect
from hearth.schema import Validator
from hearth.tables import Table, faults_of, join, near

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hearth.tools import Tool, ToolRegistry

LARGEST: Final = 1 << 20
"""Bytes of a capability file."""


def read_source(file: Path) -> bytes:
    """Return the content of a capability file. Raises ConfigError if users other than root and our own could write it.

    The file, every directory above it and every link on the way belong to root or to the effective user, and no other
    user may write there. A sticky directory such as /tmp is accepted on the way.
    """
    try:
        return read_file(file, trusted={os.geteuid()}, most=LARGEST)[0]
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; let uid {os.geteuid()} read it") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: hearthd cannot run it as uid {os.geteuid()}: {error}") from None


def run_code(file: Path, data: bytes) -> list[CapabilitySource]:
    """Run a file's bytes and return its declarations, in their order. Raises ConfigError, whatever the file raises."""
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
    # Without a time of change, so that tracebacks and `inspect.getsource` show the code that runs, not the file's new
    # content.
    linecache.cache[str(file)] = (len(data), None, text.splitlines(keepends=True), str(file))
    try:
        called(exec, code, module.__dict__)
    except Raised as raised:
        wrong = f"{file}:{_line(raised.error, file)}: {raised}"
    else:
        if found := declared_in(module):
            return found
        wrong = f"{file}: declares no capability; put @capability(…) above an async function, or move it away"
    del sys.modules[module.__name__]
    raise ConfigError(wrong)


def declared_in(module: ModuleType) -> list[CapabilitySource]:
    """Return the declarations of a module's functions: those that it defines, not those that it imports, each once."""
    found: dict[int, CapabilitySource] = {}
    for value in vars(module).values():
        source = getattr(value, MARK, None) if isinstance(value, FunctionType) else None
        if isinstance(source, CapabilitySource) and source.function.__module__ == module.__name__:
            found[id(source)] = source
    return list(found.values())


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
    """Return the name of a builtin function, unless the file has a function or a variable of that name."""
    return name if name in ("open", "input") else None


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("name", "version", "description", "formats", "input_schema"),
    "safety": (
        "risk_ceiling", "risk_floor", "requires_human_approval", "involves_physical_resources", "resource_types",
        "hazard_categories",
    ),
    "constraints": ("max_duration", "concurrent_limit", "data_classification"),
}  # fmt: skip
"""The tables within [capability], and their keys: the parameters of @capability."""
_NO_INPUTS: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_OUTPUTS: Final = {
    "type": "object",
    "required": ["steps"],
    "properties": {"steps": {"type": "array", "items": {"type": "object"}, "description": "each step's result"}},
    "additionalProperties": False,
}
_RECIPE = (
    "hearth has no recipes any more; write it as a Python function, or as a plan file with [[steps]]: see "
    "docs/capabilities.md"
)
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
"""A brace that is text, a placeholder, or a stray brace."""


@frozen
class _PlanStep:
    tool: str
    args: Mapping[str, Any]
    expect: Mapping[str, Any] | None = None


def read_plan(file: Path, data: bytes, registry: ToolRegistry) -> tuple[CapabilitySource | None, list[Fault]]:
    """Return a plan file's declaration, unchecked, and the faults of its keys and its steps.

    There is no declaration where the file is no plan file at all. Raises ConfigError for text that is not TOML.
    """
    document = parse_toml(data, str(file))
    if "recipe" in document:
        return None, [Fault("recipe", _RECIPE)]
    if faults := faults_of(JsonValue(), document):
        return None, faults
    top = Table(document, "", faults)
    about = top.table("capability")
    values, keys = _declared(about)
    steps = [_step(table, values["input_schema"], registry) for table in top.tables("steps")]
    if not document.get("steps"):
        top.fault("steps", "missing; write each step as [[steps]], with its tool and its args")
    top.done()
    if not about.content:
        return None, faults
    there = [step for step in steps if step is not None]
    values |= {"tools": sorted({tool for step in there for tool in _tools(step)}), "output_schema": _OUTPUTS}
    return CapabilitySource(function=_function(there), place=str(file), values=values, keys=keys), faults


def _declared(about: Table) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of @capability that are given, and the key of each; add a fault for each unknown key."""
    values: dict[str, Any] = {"input_schema": _NO_INPUTS}
    places: dict[str, str] = {}
    for name, keys in _KEYS.items():
        table = about.table(name, required=False) if name else about
        places |= {key: table.at(key) for key in keys}
        values |= table.given(dict.fromkeys(keys, Anything()))
        if name:
            table.done()
    if "description" not in values and about.content:
        about.fault("description", "missing; it is what callers read")
        values["description"] = "missing"
    about.done()
    return values, places


def _step(table: Table, inputs: Any, registry: ToolRegistry) -> _PlanStep | None:
    name, args = table.take("tool", Text("a tool's name")), table.take("args", AnyMap(), {})
    expect = table.take("expect", AnyMap(), None)
    table.done()
    before = len(table.faults)
    for key, value in (("args", args), ("expect", expect)):
        for place, text in _strings(value or {}, table.at(key)):
            wrong = (_wrong(part, inputs) for part in _PART.finditer(text))
            table.faults.extend(Fault(place, why) for why in dict.fromkeys(wrong) if why is not None)
    if name is None or args is None:
        return None
    if name not in registry:
        table.fault("tool", f"this daemon has no tool {name!r}{near(name, registry)}; tool.list has them all")
        return None
    if len(table.faults) == before:
        _check_args(table, args, registry[name])
        if expect is not None:
            _check_expect(Table(expect, table.at("expect"), table.faults), registry)
    return _PlanStep(name, args, expect)


def _check_expect(table: Table, registry: ToolRegistry) -> None:
    """Check what a step expects, as far as it is constant; the rest is checked with each submission."""
    late = [name for name in ("equals", "min", "max", "within_ms") if _is_any_late(table.content.get(name))]
    constant = {name: value for name, value in table.content.items() if name not in late}
    try:
        read = read_expect({**constant, "equals": {"late": None}} if late else constant, "")
    except InvalidParams as error:
        data = error.data or {}
        table.faults.append(Fault(table.at("") + data["path"].replace("/", "."), data["reason"]))
        return
    if read.tool not in registry:
        table.fault("tool", f"this daemon has no tool {read.tool!r}{near(read.tool, registry)}")
    else:
        _check_args(table, read.args, registry[read.tool])


def _tools(step: _PlanStep) -> tuple[str, ...]:
    """Return the tools that a step uses."""
    return (step.tool,) if step.expect is None else (step.tool, step.expect["tool"])


def _wrong(part: re.Match[str], inputs: Any) -> str | None:
    """Return the fault of a placeholder, or of a stray brace."""
    name = part[1]
    if name is None:
        return 'a brace alone; write "{{" or "}}" for one that is text' if len(part[0]) == 1 else None
    properties = inputs.get("properties") if isinstance(inputs, Mapping) else None
    properties = properties if isinstance(properties, Mapping) else {}
    if name not in properties:
        return f"{{{name}}} names no input{near(name, properties)}; there are {', '.join(properties) or 'none'}"
    property_, required = properties[name], inputs.get("required", [])
    if (isinstance(property_, Mapping) and "default" in property_) or (isinstance(required, list) and name in required):
        return None
    return f"{{{name}}} may be left out; give it a default in input_schema, or list it under required"


def _check_args(table: Table, args: Mapping[str, Any], tool: Tool) -> None:
    """Check a step's args against the tool's own schema, as far as they are constant."""
    at, schema = table.at("args"), tool.params_schema
    names = known_by(schema)
    if names is not None and (unknown_members := names.unknown_members(args)):
        for one in unknown_members:
            table.faults.append(Fault(at + one.pointer.replace("/", "."), unknown_key(one.name, sorted(one.known))))
        return
    late = {name for name, value in args.items() if _is_any_late(value)}
    if late:
        kept = {key: schema[key] for key in ("type", "required", "$defs") if key in schema}
        properties: Mapping[str, Any] = schema.get("properties", {})
        schema = {**kept, "properties": {name: one for name, one in properties.items() if name not in late}}
    known = {name: None if name in late else filled(value, {}) for name, value in args.items()}
    validator = Validator(schema)
    if not validator.accepts(known):
        pointer, reason = validator.explain(known)
        table.faults.append(Fault(at + pointer.replace("/", "."), f"{tool.name} does not take it: {reason}"))
    elif not late:
        try:
            # A bus, a line or a sensor that this board does not have.
            tool.bus(known)
        except HearthError as error:
            table.fault("args", str(error))


def _is_any_late(value: Any) -> bool:
    """Return True if a string in it has a placeholder, whose value only a job knows."""
    return any(part[1] is not None for _, text in _strings(value, "") for part in _PART.finditer(text))


def _strings(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string in a step's args, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            yield from _strings(member, join(path, name))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _strings(member, f"{path}[{index}]")


def filled(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Return a copy of a step's args in which inputs replace their placeholders."""
    if isinstance(value, Mapping):
        return {name: filled(member, inputs) for name, member in value.items()}
    if isinstance(value, list):
        return [filled(member, inputs) for member in value]
    if not isinstance(value, str):
        return value
    whole = _PART.fullmatch(value)
    if whole is not None and whole[1] is not None:
        return inputs[whole[1]]
    return _PART.sub(lambda part: part[0][0] if part[1] is None else _text(inputs[part[1]]), value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _function(steps: Sequence[_PlanStep]) -> Callable[..., Any]:
    """The function that does the steps, one after another."""

    async def run(job: Any, /, **inputs: Any) -> dict[str, Any]:
        results = []
        for step in steps:
            more = filled(step.args, inputs)
            if step.expect is not None:
                more["expect"] = read_expect(filled(step.expect, inputs), "/expect")
            results.append(await job.run(step.tool, **more))
        return {"steps": results}

    return run
