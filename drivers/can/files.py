"""Files that describe the messages of a CAN bus: DBC, and KCD, SYM and ARXML, as cantools reads them.

Makers' files are not clean: one signal of hundreds is longer than its message, or one line has a syntax that only one
tool accepts. Such a message, signal or statement is left out and named (`Flaw`); the others are used.

cantools reads the whole file, and checks it. Only if it refuses that is the file read without its check, each message
then checked here; and only if cantools cannot read a DBC file at all is it cut into its statements, and those that
cantools cannot read are found by halves. A message whose multiplexer is left out is left out too: its other signals
would be read in every frame.
"""

from __future__ import annotations

import os
import re
import traceback
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element

from attrs import asdict, define, evolve, field, frozen

from hearth._util.files import read_file
from hearth._util.threads import IMPORTING
from hearth.drivers.can.driver import EXTENDED, MAX_EXTENDED, MAX_STANDARD
from hearth.drivers.can.layout import FLOATS, Layout, fits, reversed_bounds
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SHIPPED: Final = Path(__file__).parents[1] / "boards"
MAX_BYTES: Final = 4 * 1024 * 1024
"""Size of a file up to which it is read: a whole car's has a megabyte."""
_FORMATS: Final = {".kcd": "kcd", ".sym": "sym", ".arxml": "arxml"}
"""Formats by suffix; a file with any other is a DBC file."""
_CONVERTED: Final = (".dbf", ".eds", ".fibex", ".json", ".ldf", ".xls", ".xlsx", ".xml", ".yaml", ".yml")
"""Suffixes of formats that cantools does not read, and canmatrix converts."""


@frozen
class Flaw:
    """A part of a file that is not used as it is written, and why. `line` is its first line."""

    problem: str
    message: str | None = None
    signal: str | None = None
    line: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the members that there are."""
        return asdict(self, filter=lambda _attribute, value: value is not None)

    def __str__(self) -> str:
        where = f"{self.message}.{self.signal}" if self.signal else self.message
        line = None if self.line is None else f"line {self.line}"
        return f"{', '.join(filter(None, (line, where)))}: {self.problem}".removeprefix(": ")


@frozen
class Contents:
    """The messages of a file, and what is not as it is written there."""

    layouts: Sequence[Layout]
    flaws: Sequence[Flaw]


def read_messages(path: Path, bus: str, encoding: str | None = None) -> Contents:
    """Return the messages of a file. `encoding` None: UTF-8 where the whole file is that, else cp1252.

    Raises ConfigError for a file of which nothing can be used: it cannot be read, or its format is another.
    """
    place = f"can {bus}: dbc: {path}"
    form = _format(path, place)
    try:
        data, _ = read_file(path, trusted=None if path.parent == SHIPPED else {os.geteuid()}, most=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{place} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"can {bus}: dbc: {error}") from None
    try:
        with IMPORTING:
            from cantools.database import load_string
            from cantools.errors import Error
    except ImportError:
        raise ConfigError(
            f"can {bus}: dbc: reading {path.name} needs cantools; `pip install 'hearthd[can]'`, or send and read by id"
        ) from None
    text = _decoded(data, encoding)
    _refuse_absurd(text, place)

    def load(text: str, *, strict: bool = False) -> Any:
        try:
            return load_string(text, database_format=form, prune_choices=False, strict=strict)
        except Error as error:  # of the parser too, whatever it raised
            return getattr(error, f"e_{form}", None) or error

    sieve = _Sieve(load)
    found = load(text, strict=True)
    if isinstance(found, Exception):
        found = load(text)
    if isinstance(found, Exception) and form == "dbc" and (rest := sieve.sift(text)):
        found = load(rest)
    if isinstance(found, Exception):
        more = "".join(f"; {flaw}" for flaw in sieve.flaws[:1])
        cure = "correct the file" if form == "dbc" else f"correct it, or make a DBC file of it by {_converting(path)}"
        raise ConfigError(f"{place} cannot be read as {form.upper()}: {_why(found)}{more}; {cure}") from found
    contents = _contents(found.messages, text if form == "dbc" else "", bus, sieve)
    if found.messages and not contents.layouts:
        cure = "correct the file, or send and read by id"
        raise ConfigError(f"{place} has no message that can be used: {contents.flaws[0]}; {cure}")
    return contents


def _refuse_absurd(text: str, place: str) -> None:
    if absurd := _ABSURD.search(text):
        line = text.count("\n", 0, absurd.end()) + 1
        raise ConfigError(f"{place}: line {line}: no message has {absurd[1]} bits or bytes; correct the file")


def _format(path: Path, place: str) -> str:
    """Return the format of a file by its suffix. Raises ConfigError, with the cure, for one that cannot be used."""
    suffix = path.suffix.lower()
    if suffix == ".cdd":
        raise ConfigError(f"{place} describes diagnostic data and no messages; export the messages as a DBC file")
    if suffix in _CONVERTED:
        raise ConfigError(f"{place} is not a DBC, KCD, SYM or ARXML file; make one by {_converting(path)}")
    return _FORMATS.get(suffix, "dbc")


def _converting(path: Path) -> str:
    return f"`pip install canmatrix` and `canconvert {path.name} {path.stem}.dbc`"


def _contents(messages: Sequence[Any], text: str, bus: str, sieve: _Sieve) -> Contents:
    """Return the messages of a database that can be used. `text` is the file, if it is a DBC file."""
    flaws, orphans = sieve.flaws, _orphans(text)
    layouts: list[Layout] = []
    taken: set[str] = set()
    for message in _of_bus(messages, bus, flaws):
        if not (name := message.name):
            flaws.append(Flaw(f"left out: the message {message.frame_id:#x} has no name"))
            continue
        if name in taken:
            message.name = f"{name}_{message.frame_id:x}"
            flaws.append(Flaw(f"its name is there twice: this one is {message.name}", name))
        taken.add(message.name)
        layout = _layout(message, orphans, sieve)
        if layout is not None:
            layouts.append(layout)
    if not messages:
        part = '; it is a part for a generator (CM_ "IMPORT …"): name the file that this makes'
        flaws.append(Flaw(f"the file has no messages{part if 'IMPORT ' in text else ''}"))
    return Contents(layouts, _with_lines(flaws, text))


def _layout(message: Any, orphans: frozenset[tuple[int, str]], sieve: _Sieve) -> Layout | None:
    """Return what can be used of a message, with its flaws noted; None: nothing can."""
    lost = _unusable(message, orphans)
    sieve.flaws += [Flaw(f"left out: {why}", message.name, one.name) for one, why in lost]
    gone = [one for one, _ in lost]
    if gone and (len(gone) == len(message.signals) or any(one.is_multiplexer for one in gone)):
        sieve.flaws.append(Flaw("left out: its multiplexer, or all of its signals, cannot be used", message.name))
        return None
    message.signals[:] = [one for one in message.signals if one not in gone]
    message.refresh(strict=False)
    for one in filter(reversed_bounds, message.signals):
        told = f"its bounds are reversed: taken as {one.maximum:g} to {one.minimum:g}"
        sieve.flaws.append(Flaw(told, message.name, one.name))
    cut = gone or _ident(message) in sieve.cut
    layout = Layout(message, "without the signals that are left out its frame is not whole" if cut else None)
    if (shared := _shared(message)) is not None:
        sieve.flaws.append(Flaw(f"read, and sent as bytes only: {shared}", message.name))
        layout.flaw = shared
    return layout


def _unusable(message: Any, orphans: frozenset[tuple[int, str]]) -> list[tuple[Any, str]]:
    """Return the signals that cannot be used, with the reason."""
    lost = []
    names: set[str] = set()
    for one in message.signals:
        if one.name in names:
            lost.append((one, "its message has two signals of this name"))
        elif not fits(one, message.length):
            lost.append((one, f"it does not fit into the {message.length} bytes of its message"))
        elif one.conversion.is_float and one.length not in FLOATS:
            lost.append((one, f"it is a float of {one.length} bits; there are those of 16, 32 and 64"))
        elif one.multiplexer_ids is None and (_ident(message), one.name) in orphans:
            lost.append((one, "the file does not say which signal multiplexes it (SG_MUL_VAL_)"))
        names.add(one.name)
    return lost


def _shared(message: Any) -> str | None:
    """Return why the frame of a message cannot be made from the values of its signals, or None."""
    from cantools.errors import Error

    if message.is_container:
        return "it is a container of other messages, whose signals are not decoded"
    try:
        message.refresh(strict=True)
    except Error as error:
        return str(error).rstrip(".")
    return None


def _with_lines(flaws: Sequence[Flaw], text: str) -> Sequence[Flaw]:
    """Return flaws of a DBC file with the lines of their messages and signals."""
    lines: dict[tuple[str | None, str | None], int] = {}
    message = None
    for word, line, part in _statements(text) if any(one.line is None for one in flaws) else ():
        if word == "BO_" and (match := _OF_MESSAGE.match(part)):
            message = match["name"]
            lines[message, None] = line
        elif word == "SG_" and (match := _SIGNAL.match(part)):
            lines[message, match["name"]] = line
    return [evolve(one, line=one.line or lines.get((one.message, one.signal))) for one in flaws]


def _decoded(data: bytes, encoding: str | None) -> str:
    if encoding is not None:
        return data.decode(encoding, "replace").removeprefix("\ufeff")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")  # as the format's own tools write it


def _of_bus(messages: Iterable[Any], bus: str, flaws: list[Flaw]) -> list[Any]:
    """Return the messages of a bus, where the file describes several and has one of this name; else all of them."""
    found = list(messages)
    buses = {one.bus_name for one in found} - {None, ""}
    if len(buses) < 2:
        return found
    if bus in buses:
        return [one for one in found if one.bus_name == bus]
    names = ", ".join(sorted(buses))
    flaws.append(
        Flaw(f"the file describes several buses ({names}); a [[can]] with such a name has that bus's messages")
    )
    return found


def _ident(message: Any) -> int:
    ident: int = message.frame_id
    return ident | EXTENDED if message.is_extended_frame else ident


def _why(error: Exception) -> str:
    """Return the words of cantools' error, with the element of an XML file that it came from."""
    if isinstance(error, KeyError):
        told = f"there is no {error.args[0]!r}"
    elif isinstance(error, (ArithmeticError, AttributeError, LookupError, TypeError)):
        told = "something that it needs is missing, or is not of the kind that it must be"
    else:
        told = " ".join(re.sub(r'^DBC: "|"$', "", str(error)).split())
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = [one for frame in frames for one in frame.f_locals.values() if isinstance(one, Element)]
    names = [f"{one.tag.rpartition('}')[2]} {name}" for one in found if (name := _name_of(one))]
    return f"{told.rstrip('.')}, in {' of '.join([*dict.fromkeys(reversed(names))][:3])}" if names else told


def _name_of(element: Element) -> str | None:
    """Return the name of an element of a KCD or an ARXML file."""
    return element.get("name") or next((one.text for one in element if one.tag.endswith("SHORT-NAME")), None)


# --- DBC files that cantools cannot read ------------------------------------------------------------------------------

_STRING: Final = r'"(?:\\"|(?!\n[ \t]*(?:BO_[ \t]+\d|SG_[ \t]+\w+[^":\n]*:[ \t]*\d))[^"])*"'
"""A string. One that is not closed before the next message or signal is none."""
_STATEMENT: Final = re.compile(
    _STRING + r'|//[^\n]*|^[ \t]*(?P<word>[A-Z]+(?:_[A-Z]+)*_)(?=[ \t:"])(?=[ \t]*[:"\w])', re.MULTILINE
)
_OF_MESSAGE: Final = re.compile(
    r'\s*(?:BO_|VAL_|SIG_VALTYPE_|SG_MUL_VAL_|BO_TX_BU_|(?:CM_|BA_\s+"[^"]*")\s+(?:BO_|SG_))'
    r"\s+(?P<id>\d+)[ \t]*(?P<name>\w*)"
)
_ABSURD: Final = re.compile(
    r"""(?:^\s*(?:BO_\s[^\n:]*:\s*|SG_\s[^\n:]*:\s*(?:\d+\|)?)"""
    r"""|\b(?:length|offset)="|\bLen=|^Var=[^\n,]*[ ,]|(?:LENGTH|POSITION)>\s*)(\d{6,})""",
    re.MULTILINE,
)
"""A length or a place that no bus has, in each format: cantools makes a list of as many bits."""
_SIGNAL: Final = re.compile(r"\s*SG_\s+(?P<name>[^\s:]+)\s*(?P<page>m\d+)?(?P<selects>M)?\s*:?")
_DEFINITIONS: Final = ("BA_DEF_", "BA_DEF_DEF_")
_NEEDED: Final = ("SIG_VALTYPE_", "SG_MUL_VAL_")
"""Statements without which a signal would have other values."""


@frozen
class _Text:
    """A part of a file: first its messages with their signals, which follow each other, then the statements on them."""

    messages: str = ""
    others: str = ""

    def __add__(self, more: _Text) -> _Text:
        return _Text(self.messages + more.messages, self.others + more.others)


@define(eq=False)
class _Node:
    """A statement with those about it: a message with its signals, a signal with its value table and comment."""

    text: _Text
    line: int
    ident: int = 0
    """Of a message, and of its signals; 0 for a statement that is neither."""
    message: str | None = None
    signal: str | None = None
    selects: bool = False
    parts: list[_Node] = field(factory=list)
    lost: bool = False

    @property
    def whole(self) -> _Text:
        return sum((one.whole for one in self.parts), self.text)


def _statements(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield each statement with its keyword and its line."""
    starts = [(match.start("word"), match["word"]) for match in _STATEMENT.finditer(text) if match["word"]]
    line, before = 1, 0
    for (at, word), (end, _) in pairwise([*starts, (len(text), "")]):
        line += text.count("\n", before, at)
        before = at
        yield word, line, text[at:end]


def _orphans(text: str) -> frozenset[tuple[int, str]]:
    """Return the signals that are written as multiplexed, with the identifiers of their messages."""
    found: set[tuple[int, str]] = set()
    ident = -1
    for word, _, part in _statements(text) if re.search(r"^[ \t]*SG_[ \t]+\w+[ \t]+m\d", text, re.MULTILINE) else ():
        if word == "BO_" and (match := _OF_MESSAGE.match(part)):
            ident = int(match["id"])
        elif word == "SG_" and (match := _SIGNAL.match(part)) and match["page"]:
            found.add((ident, match["name"]))
    return frozenset(found)


@define(eq=False)
class _Sieve:
    """Finds the statements of a DBC file that cantools cannot read. `load` returns its error, or a database."""

    load: Callable[[str], Any]
    flaws: list[Flaw] = field(factory=list)
    cut: set[int] = field(factory=set)
    """The identifiers of messages of which a signal is left out."""

    def sift(self, text: str) -> str:
        """Return the file without them, and without statements that describe no message."""
        definitions, messages = self._grouped(text)
        head = self._kept(_Text(), definitions)
        found = head + self._kept(head, messages)
        return found.messages + found.others

    def _grouped(self, text: str) -> tuple[list[_Node], list[_Node]]:
        definitions: list[_Node] = []
        messages: dict[int, list[_Node]] = {}
        last: _Node | None = None
        for word, line, part in _statements(text):
            if word not in ("BO_", "SG_") and not part.rstrip().endswith(";"):
                part = part.rstrip() + ";\n"  # noqa: PLW2901  often forgotten, and cantools reads on into the next one
            if word in _DEFINITIONS:
                definitions.append(_Node(_Text(part), line))
            elif word == "SG_":
                if last is not None and (match := _SIGNAL.match(part)):
                    last.parts.append(
                        _Node(_Text(part), line, last.ident, last.message, match["name"], bool(match["selects"]))
                    )
            elif match := _OF_MESSAGE.match(part):
                ident = int(match["id"])
                flagged = ident | EXTENDED if MAX_STANDARD < ident <= MAX_EXTENDED else ident
                part = f"{part[: match.start('id')]}{flagged}{part[match.end('id') :]}"  # noqa: PLW2901
                if word == "BO_":
                    last = _Node(_Text(part), line, flagged, match["name"])
                    messages.setdefault(ident, []).append(last)
                    if flagged != ident:  # it can be no other
                        problem = f"its identifier {ident:#x} has more than 11 bits: taken as one of 29 bits"
                        self.flaws.append(Flaw(problem, match["name"], None, line))
                else:
                    self._attach(word, part, line, match["name"], messages.get(ident, ()))
            elif word == "BO_":
                last = None
                self.flaws.append(Flaw(f"left out, with its signals: {part.strip().splitlines()[0]}", None, None, line))
        return definitions, [one for ones in messages.values() for one in ones]

    def _attach(self, word: str, part: str, line: int, signal: str, messages: Sequence[_Node]) -> None:
        owners = [one for message in messages for one in message.parts if one.signal == signal]
        owner = next(iter(owners if signal else messages), None)
        if owner is None:
            what = f"{word} is about {f'the signal {signal}' if signal else 'a message'}, which is not there"
            self.flaws.append(Flaw(f"left out: {what}", line=line))
        elif word in _NEEDED:
            owner.text += _Text("", part)
        else:
            owner.parts.append(_Node(_Text("", part), line, 0, owner.message, owner.signal))

    def _kept(self, before: _Text, nodes: Sequence[_Node]) -> _Text:
        """Return the text of the nodes that can be read behind `before`; the others are flaws."""
        whole = sum((one.whole for one in nodes), _Text())
        error = self._error(before + whole) if nodes else None
        if error is None:
            return whole
        if len(nodes) > 1:
            half = len(nodes) // 2
            return self._kept(before, nodes[:half]) + self._kept(before, nodes[half:])
        (node,) = nodes
        if node.parts and self._error(before + node.text) is None:
            parts = self._kept(before + node.text, node.parts)
            gone = [one.signal for one in node.parts if one.selects and one.lost]
            if not gone:
                return node.text + parts
            error = ValueError(f"its multiplexer {gone[0]} is left out")
        node.lost = True
        reason = re.sub(r" at line \d+, column \d+", "", _why(error))
        self.flaws.append(Flaw(f"left out: {reason}", node.message, node.signal, node.line))
        if node.ident:
            self.cut.add(node.ident)
        return _Text()

    def _error(self, text: _Text) -> Exception | None:
        found = self.load(text.messages + text.others)
        return found if isinstance(found, Exception) else None
