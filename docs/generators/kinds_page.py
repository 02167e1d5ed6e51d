"""The kinds of hardware, each from its record, its parser, its tools and its docstrings. It names no kind."""  # noqa: INP001  beside a script

from __future__ import annotations

import json
import re
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from attrs import NOTHING, define, field, fields
from generators.reference_pages import cell

from hearth.actors.build import build_parts
from hearth.config.model import Config
from hearth.drivers.kinds import OWN
from hearth.drivers.linux.survey import OnMachine
from hearth.drivers.named import NamedSignal
from hearth.fields import Choice
from hearth.tables import REQUIRED, Table, kinds_of
from hearth.tools import RISK_NAMES, KnownOutputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.kind import BusKind
    from hearth.fields import FieldType
    from hearth.tools import Tool

FACTS: Final = ("Tables", "Signals", "Limits", "Safe state", "Tools", "Found", "Doctor")
"""The columns of the two tables: of what a profile says of a kind, and of its use."""
_SHOWN: Final = 3
"""Signals of the simulated board that a section shows."""


# --- the keys of a table --------------------------------------------------------------------------------------------


@define
class Key:
    """A key that a parser asks for. `kinds` are its types and `defaults` its defaults, by driver."""

    path: str
    kinds: dict[str, FieldType] = field(factory=dict)
    defaults: dict[str, Any] = field(factory=dict)


@define
class Keys:
    """All keys of one table of a profile, in the order in which its parser asks for them."""

    found: dict[str, Key] = field(factory=dict)
    classes: dict[str, type] = field(factory=dict)
    """The attrs classes whose attributes are keys, by the path of their table."""
    drivers: tuple[str, ...] = ()
    driver: str = ""
    """The driver that the table names in this reading."""

    def note(self, path: str, kind: FieldType, default: Any) -> None:
        """Add a key, or what it is with another driver."""
        key = self.found.setdefault(path, Key(path))
        key.kinds[self.driver], key.defaults[self.driver] = kind, default


class _Everything(dict[str, Any]):
    """A table that has every key that it is asked for, and shows none of them."""

    def __contains__(self, key: object) -> bool:
        return True


class _Probe(Table):
    """A table for a kind's parser, which notes the keys that the parser asks for, in the tables within too.

    It has every key and is never `ok`, so the parser goes everywhere, and compares no values.
    """

    def __init__(self, keys: Keys, path: str = "") -> None:
        super().__init__(_Everything(), path, [])
        self._keys = keys

    @property
    def ok(self) -> bool:
        return False

    def take(self, key: str, kind: FieldType, default: Any = REQUIRED) -> Any:
        if not self._path and key == "driver" and isinstance(kind, Choice):
            self._keys.drivers = tuple(json.loads(f"[{kind.expected.replace(' or ', ', ')}]"))
            default = self._keys.driver
            self._keys.note(key, kind, REQUIRED)
        else:
            self._keys.note(self._at(key), kind, default)
        return None if default is REQUIRED else default

    def given(self, kinds: Mapping[str, FieldType] | type) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        if isinstance(kinds, type):
            self._keys.classes[self._path] = kinds
            defaults = {one.name: one.default for one in fields(kinds)}
            kinds = kinds_of(kinds)
        for key, kind in kinds.items():
            self._keys.note(self._at(key), kind, defaults.get(key, NOTHING))
        return {}

    def table(self, key: str, *, required: bool = True) -> Table:
        return _Probe(self._keys, self._at(key))

    def named(self, key: str) -> Iterator[tuple[str, Table]]:
        yield "NAME", _Probe(self._keys, f"{self._at(key)}.NAME")

    def tables(self, key: str) -> Iterator[Table]:
        yield _Probe(self._keys, f"{self._at(key)}[]")

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


@cache
def keys_of(kind: BusKind) -> Mapping[str, Keys]:
    """Return the keys of each of a kind's tables, by its header."""
    parsers = {f"[[{kind.name}]]": kind.read}
    for table, read in kind.named.items():
        parsers[f"[{table}.NAME]"] = partial(read, "NAME")
    return {header: _asked(read) for header, read in parsers.items()}


def _asked(read: Any) -> Keys:
    keys = Keys()
    spec = read(_Probe(keys))  # finds the drivers
    for driver in keys.drivers:
        keys.driver = driver
        read(_Probe(keys))
    for key in keys.found.values() if keys.drivers else ():
        key.kinds.pop("")
        key.defaults.pop("")
    defaults = {one.name: one.default for one in fields(type(spec))}
    for path, key in keys.found.items():
        key.defaults = {one: defaults.get(path) if there is NOTHING else there for one, there in key.defaults.items()}
    keys.classes = {"": type(spec), **{path: one for path, one in keys.classes.items() if path}}
    return keys


def _key_rows(keys: Keys) -> Iterator[str]:
    for key in keys.found.values():
        types = dict.fromkeys(one.expected for one in key.kinds.values())
        yield f"| `{key.path}` | {cell(' or '.join(types))} | {_needed(key, keys.drivers)} |"


def _needed(key: Key, drivers: tuple[str, ...]) -> str:
    needed = [driver for driver, default in key.defaults.items() if default is REQUIRED]
    if len(needed) == len(key.defaults):
        return "required"
    if needed:
        return " or ".join(f'required with `driver = "{driver}"`' for driver in needed)
    default = next(iter(key.defaults.values()))
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{json.dumps(default)}`" if isinstance(default, (bool, int, str)) and default != "" else ""


# --- the parts of a kind --------------------------------------------------------------------------------------------


@cache
def _board() -> Board:
    parts = build_parts(Config(), default_policy=())
    parts.paths.close()
    return parts.board


def _first(doc: str | None) -> str:
    """Return the first sentence of a docstring, without its verb and its full stop."""
    sentence, _, _ = _flat((doc or "").partition("\n\n")[0]).partition(". ")
    return re.sub(r"^(Yield|Return) ", "", sentence.removesuffix("."))


def _flat(doc: str) -> str:
    return " ".join(doc.split())


def _own_doc(machine: OnMachine, name: str) -> str:
    """Return the docstring of a method that a kind has itself; "" for one that it inherits."""
    method = getattr(type(machine), name)
    return method.__doc__ or "" if method is not getattr(OnMachine, name) else ""


def signal_classes(kind: BusKind) -> list[type[NamedSignal]]:
    """Return the classes of a kind's signals: those of its module of tools, or the one that it imports there."""
    module = f"{kind.package}.tools"
    there = vars(import_module(module)).values() if find_spec(module) else ()
    found = [one for one in there if isinstance(one, type) and issubclass(one, NamedSignal) and one is not NamedSignal]
    # A kind whose signals need no class of their own takes one that several kinds share.
    return [one for one in found if one.__module__ == module] or found


def _outputs(kind: BusKind) -> list[str]:
    """Return the full names of a kind's outputs on the simulated board."""
    buses = ((bus, one) for bus, one in _board().outputs.items() if bus.partition(":")[0] == kind.name)
    return [f"{bus}:{signal.alias or signal.name}" for bus, one in buses for signal in one.signals.values()]


def _found(kind: BusKind, machine: OnMachine) -> str:
    looked = _first(_own_doc(machine, "find") or _own_doc(machine, "buses"))
    drives = re.search(r"It (drives .*)\.$", _flat(_own_doc(machine, "reason")))
    if kind.discover:
        how = f"`[discover] {kind.discover}`: {looked}"
    else:
        how = f"listed in a profile{f'; `hearth doctor` shows {looked}' if looked else ''}"
    return f"{how}. [generic-linux](boards.md#generic-linux) {drives[1]}" if drives else how


def facts(kind: BusKind) -> dict[str, str]:
    """Return the facts of a kind as Markdown, by the words of `FACTS`; "" is one that the kind does not say."""
    machine = kind.machine()
    tools = [f"[`{one.name}`](tools.md#{one.name.replace('.', '')})&nbsp;{_risk(one)}" for one in kind.tools(_board())]
    signals = "; ".join(map(_means, signal_classes(kind)))
    if not signals and (outputs := _outputs(kind)):
        signals = f"none in `signal.list`; a stop sequence has {', '.join(f'`{name}`' for name in outputs)}"
    doctor = [_first(doc) for name in ("problems", "faults", "gaps") if (doc := _own_doc(machine, name))]
    return {
        "Tables": ", ".join(f"`{header}`" for header in keys_of(kind)),
        "Signals": signals,
        "Limits": kind.limits,
        "Safe state": kind.safe,
        "Tools": ", ".join(tools),
        "Found": _found(kind, machine),
        "Doctor": "; ".join(doc for doc in doctor if not doc.startswith("See ")),
    }


def _means(one: type[NamedSignal]) -> str:
    return re.sub(",? as a signal", "", _lower(_first(one.__doc__)))


def _risk(tool: Tool) -> str:
    return f"{tool.least_risk}–{tool.risk_level}" if tool.least_risk < tool.risk_level else f"{tool.risk_level}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


# --- reference/kinds.md ---------------------------------------------------------------------------------------------

_HEAD: Final = """\
# Kinds of hardware

The hardware that hearth drives, kind by kind, for those who write a [board profile](boards.md) or a policy. The first
table is about profiles: the tables of a kind, the keys that bound an output, and its safe state."""
_USE: Final = """\
The second table has the tools, and how the hardware is found and checked. The number after a tool is its
[risk](tools.md): {risks}."""
_TERMS: Final = """\
- **Signals:** the values that `signal.list`, `signal.read` and `signal.set` know by name. Their units, names and
  quality: [signals](../howto/use-signals.md).
- **Limits:** the keys that bound an output. They are checked directly before the driver, for every caller; their
  meaning: [limits](boards.md#limits). [Interlocks](boards.md#interlocks) bound outputs of every kind.
- **Safe state:** the value after the session that drove the output has ended, and at a halt. An output that is *left*
  keeps its value: see [what a halt leaves as it is](../safety.md#what-a-halt-leaves-as-it-is).
- **Found:** the hardware that hearth looks for at start, if the profile has this word under `[discover]`.
- **Doctor:** what `hearth doctor --board PROFILE` examines.

In a list of keys `NAME` is a name that you choose, and `[]` is one entry of an array. Without a default a key may be
left out, or its default depends on other keys.

**A vendor's kind** is not on this page: it comes with an installed package. hearth loads it for a profile that has its
table; then `hearth tools` and `hearth signal list` show its tools and signals, and `hearth doctor --board PROFILE`
examines it. See [write a driver](../howto/write-a-driver.md).

This page is generated by `make docs`."""
_KEYS_HEAD: Final = "| Key | Value | Default |\n| --- | --- | --- |"


def page() -> str:
    """Return docs/reference/kinds.md."""
    risks = ", ".join(f"{level} {name}" for level, name in enumerate(RISK_NAMES))
    lines = [_HEAD, "", *_table(FACTS[:4]), "", _USE.format(risks=risks), "", *_table(FACTS[4:]), "", _TERMS]
    for kind in OWN:
        lines += ["", f"## {kind.name}", "", *_section(kind)]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str]) -> Iterator[str]:
    yield f"| Kind | {' | '.join(columns)} |"
    yield f"| --- |{' --- |' * len(columns)}"
    for kind in OWN:
        known = [text.replace("|", r"\|") for fact, text in facts(kind).items() if fact in columns]
        yield f"| [{kind.name}](#{kind.name}) | {' | '.join(known)} |"


def _section(kind: BusKind) -> Iterator[str]:
    known = facts(kind)
    yield _flat(import_module(kind.package).__doc__ or "")
    word = "" if kind.word == kind.name else f" In a policy its word is `{kind.word}`."
    yield f"\nThe id of a bus is `{kind.name}:` and its `{kind.key}`.{word}\n"
    for fact in FACTS[1:]:
        yield f"- **{fact}:** {known[fact]}."
        if fact == "Signals":
            yield from _signals(kind)
    for header, keys in keys_of(kind).items():
        yield from ("", f"Keys of `{header}`:", "")
        yield _KEYS_HEAD
        yield from _key_rows(keys)
        yield ""
        for path, one in keys.classes.items():
            if one.__doc__:
                yield f"- {f'`{path}`' if path else f'`{header}`'}: {cell(_flat(one.__doc__), code=True)}"
    yield from _examples(kind)


def _signals(kind: BusKind) -> Iterator[str]:
    for one in signal_classes(kind):
        read, write = (_flat((way.__doc__ or "").partition("See NamedSignal.")[2]) for way in (one.read, one.write))
        if one.write is NamedSignal.write:
            said = ["It is only read."]
        else:
            tools = " or ".join(f"`{name}`" for name in one.sets or (f"{kind.name}.set",))
            said = [f"`signal.set` becomes {tools}{f': {_lower(write)}' if write else '.'}"]
        said += [f"`signal.read`: {_lower(read)}"] if read else []
        said.append(f'Where a reading has no value, its quality is `none`, with the reason "{one.missing}".')
        yield f"  - {re.split('[:,]', _means(one))[0]}: {' '.join(said)}"


def _examples(kind: BusKind) -> Iterator[str]:
    shown = [one for one in _board().signals if one.kind == kind.name]
    shown = sorted(shown, key=lambda one: (not one.access, one.signal is None or not one.signal.bounds))[:_SHOWN]
    if not shown:
        return
    yield from ("", "From `signal.list` on the simulated board:", "")
    yield "| full name | unit | access | safe | limit |"
    yield "| --- | --- | --- | --- | --- |"
    for one in shown:
        row = _board().signals.row(one, KnownOutputs(), (), "")
        limit = ", ".join(f"{name} {value:g}" for name, value in row["limit"].items())
        safe = "" if row["safe"] is None else json.dumps(row["safe"])
        yield f"| `{one.full}` | {cell(row['unit'] or '')} | {row['access']} | {safe} | {cell(limit)} |"
