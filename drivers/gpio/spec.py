"""The table `[[gpio]]` of a board profile: a chip, its lines, and what each of them may be used for.

It reads one chip with its faults; it does not look at the machine.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from attrs import asdict, field, frozen

from hearth._util.toml import show
from hearth.drivers.signals import Level, LineState  # noqa: TC001  attrs reads the annotations
from hearth.fields import Choice, Fault, FieldType, Flag, Integer, ListOf, MapOf, Number, Text
from hearth.tables import STRING, STRINGS, Table, join, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


Hold: TypeAlias = Literal["release", "keep"]


Direction: TypeAlias = Literal["any", "input", "output"]


Pull: TypeAlias = Literal["as-is", "none", "up", "down"]
"""`as-is` leaves the bias as the kernel found it; `none` switches it off."""


Drive: TypeAlias = Literal["push-pull", "open-drain", "open-source"]


Duration: TypeAlias = Annotated[float, Number(gt=0, le=86_400_000)]
"""Milliseconds, at most a day."""


@frozen
class LineLimit:
    """The limits of an output in time; it is on while it is driven to 1, and off at 0 and as an input.

    `min_on_ms` and `min_off_ms` are the least times between two switchings, `max_on_ms` the longest time on, after
    which the bus brings the line to its safe state; `max_rate_hz` says how often a second it may be switched on. None:
    no limit.
    """

    min_on_ms: Duration | None = None
    max_on_ms: Duration | None = None
    min_off_ms: Duration | None = None
    max_rate_hz: Annotated[float, Number(gt=0, le=1_000_000)] | None = None

    def to_json(self) -> dict[str, float]:
        """Return the limits that there are, for hw.gpio.list."""
        return asdict(self, filter=lambda _attribute, value: value is not None)


@frozen
class LineSpec:
    """A line in a board's profile.

    `safe` and `hold` decide the line's state after the session that drove it has ended. `direction = "input"` means
    that hearth never drives it. `reserved` is the reason why it may not be used at all, or None. With `active_low` 1 is
    the low voltage. `initial` is driven from the moment the bus opens. `functions` are the pin's other functions ("ALT0
    SDA1"): information, hearth does not switch it. `limit` bounds how it may be switched.
    """

    offset: int
    name: str
    safe: LineState = "input"
    hold: Hold = "release"
    direction: Direction = "any"
    pull: Pull = "as-is"
    reserved: str | None = None
    note: str | None = None
    active_low: bool = False
    drive: Drive = "push-pull"
    debounce_us: Annotated[int, Integer(0, 1_000_000)] = 0
    """At most a second: a longer bounce is no contact's."""
    initial: Level | None = None
    functions: Annotated[tuple[str, ...], STRINGS] = ()
    limit: LineLimit | None = None

    @property
    def at_rest(self) -> Level | None:
        """Return the value at which the pull holds the line in its safe state; None: nothing, or hearth, holds it."""
        voltage = None if self.safe == "input" else self.safe ^ self.active_low
        if self.pull in ("as-is", "none") or (voltage is not None and voltage != OPEN_SIDE.get(self.drive)):
            return None
        return 1 if (self.pull == "up") != self.active_low else 0


OPEN_SIDE: Final[Mapping[str, int]] = {"open-drain": 1, "open-source": 0}
"""The voltage that such an output leaves to its pull, and to others."""


_FLAG: Final = Flag()
_TEXT: Final = Text()


_ON_LIMIT: Final = Choice("refuse", "clamp")


MAX_OFFSET = 1023
HEADER_PIN: Final = re.compile(r"PIN\d+")
"""The form of an alias that is a position on the board's pin header."""

_GPIO_DRIVER: Final = Choice("sim", "gpiod")
_REAL_CHIP: Final[Mapping[str, FieldType]] = {"path": _TEXT, "blocking": _FLAG}
_ALIASES: Final = MapOf(_TEXT)
_CONTACTS: Final = MapOf(Choice(0, 1))
_WIRES: Final = ListOf(ListOf(STRING, least=2, most=2, expected="a pair of line names"))


@frozen
class ChipSpec:
    """A GPIO chip, found by its label, or by its device node where two chips have the same one.

    `aliases` are further names of its lines, `wires`, `contacts` and `panel` are for the simulator. `blocking` is true
    if requests to the chip may sleep (chips behind a bus do); None: the driver finds out.
    """

    label: str
    driver: str
    lines: tuple[LineSpec, ...]
    aliases: Mapping[str, int]
    wires: tuple[tuple[int, int], ...] = ()
    contacts: Mapping[int, Level] = field(factory=dict)
    panel: str | None = None
    path: str | None = None
    blocking: bool | None = None

    def called(self, offset: int) -> str | None:
        """Return the first alias of a line that is not its place on the pin header, or None."""
        aliases = (alias for alias, known in self.aliases.items() if known == offset)
        return next((alias for alias in aliases if not HEADER_PIN.fullmatch(alias)), None)

    @property
    def bus(self) -> str:
        """Return the id of its bus."""
        return f"gpio:{self.label}"


def parse_gpio(table: Table) -> ChipSpec:
    """Read one `[[gpio]]`; only where the table is `ok` is every value of its type."""
    label, driver = table.take("label", _TEXT), table.take("driver", _GPIO_DRIVER)
    values = table.given(_REAL_CHIP)
    offsets = _offsets(table)
    lines = {name: LineSpec(offset, name) for name, offset in offsets.items()}
    for name, details in table.named("lines"):
        lines[name] = _line(offsets.get(name, 0), name, details)
        if offsets and name not in offsets:
            details.fault("", "no such name under `names`")
    aliases: Mapping[str, str] = table.take("alias", _ALIASES, {}) or {}
    wires: Sequence[tuple[str, str]] = table.take("wires", _WIRES, ()) or ()
    contacts: Mapping[str, Level] = table.take("contacts", _CONTACTS, {}) or {}
    panel: str | None = table.take("panel", _TEXT, None)
    table.done()
    _check_driver(table, driver, values, {"wires": wires, "contacts": contacts, "a panel": panel})
    if offsets:
        _check_names(table, offsets, aliases, wires)
        for name in contacts.keys() - offsets.keys():
            table.faults.append(Fault(join(table.at("contacts"), name), f"no line is named {show(name)}"))
    return ChipSpec(
        label,
        driver,
        tuple(lines.values()),
        {alias: offsets.get(name, 0) for alias, name in aliases.items()},
        tuple((offsets.get(one, 0), offsets.get(other, 0)) for one, other in wires),
        {offsets.get(name, 0): level for name, level in contacts.items()},
        panel,
        **values,
    )


def _check_driver(table: Table, driver: str, real: Mapping[str, Any], simulated: Mapping[str, object]) -> None:
    """Refuse keys that a chip with this driver does not have."""
    reasons = {"path": "a simulated chip has no device node", "blocking": "a simulated chip never blocks"}
    for key in real if driver == "sim" else ():
        table.fault(key, reasons[key])
    for what in [what for what, given in simulated.items() if given and driver == "gpiod"]:
        table.fault(what.split()[-1], f'only a simulated chip (driver = "sim") has {what}')


def _offsets(table: Table) -> dict[str, int]:
    """Map line names to offsets, from `names`, where the index is the offset and "" leaves a line out; {} if wrong."""
    names: Sequence[str] | None = table.take("names", STRINGS)
    offsets: dict[str, int] = {}
    for offset, name in enumerate(names or ()):
        if name in offsets:
            table.fault("names", f"{show(name)} is there twice")
            return {}
        if name:
            offsets[name] = offset
    if names is not None and (not offsets or len(names) > MAX_OFFSET + 1):
        table.fault("names", f'expected the names of up to {MAX_OFFSET + 1} lines, by offset; "" leaves one out')
        return {}
    return offsets


def _check_names(
    table: Table, offsets: Mapping[str, int], aliases: Mapping[str, str], wires: Iterable[tuple[str, str]]
) -> None:
    """Add a fault for each alias of a line that there is not, or that is a line itself, and for the ends of wires."""
    for alias, name in aliases.items():
        if alias in offsets:
            table.faults.append(Fault(join(table.at("alias"), alias), "a line has this name already"))
        elif name not in offsets:
            table.faults.append(Fault(join(table.at("alias"), alias), f"no line is named {show(name)}"))
    for name in chain.from_iterable(wires):
        if name not in offsets:
            table.fault("wires", f"no line is named {show(name)}")


def _line(offset: int, name: str, table: Table) -> LineSpec:
    spec = LineSpec(offset, name, limit=_limit(table), **table.given(LineSpec))
    if table.take("on_limit", _ON_LIMIT, "refuse") == "clamp":
        table.fault("on_limit", 'a line has no value between on and off to clamp to; leave it out, or write "refuse"')
    table.done()
    if table.ok:
        _check(table, spec)
    return spec


def _limit(table: Table) -> LineLimit | None:
    if "limit" not in table.content:
        return None
    details = table.table("limit")
    values = details.given(LineLimit)
    details.done()
    if not details.ok:
        return None
    limit = LineLimit(**values)
    if not values:
        details.fault("", f"no limit; give one of {', '.join(kinds_of(LineLimit))}, or leave it out")
    elif limit.min_on_ms is not None and limit.max_on_ms is not None and limit.min_on_ms > limit.max_on_ms:
        details.fault("min_on_ms", f"{limit.min_on_ms:g} is longer than max_on_ms = {limit.max_on_ms:g}; exchange them")
    return limit


def _check(table: Table, spec: LineSpec) -> None:
    """Refuse contradictions: they would surprise the person who wired the line."""
    if spec.direction == "input":
        never = 'a line with direction = "input" is never driven'
        if spec.safe != "input":
            table.fault("safe", f"{never}, so it is safe as an input only")
        if spec.initial is not None:
            table.fault("initial", f"{never}, so it has no initial level")
        if spec.drive != "push-pull":
            table.fault("drive", f"{never}, so it has no drive")
        if spec.limit is not None:
            table.fault("limit", f"{never}, so it has no limit")
    if spec.direction == "output" and spec.debounce_us:
        table.fault("debounce_us", 'only an input bounces, and this line has direction = "output"')
    if spec.reserved is not None and spec.initial is not None:
        table.fault("initial", "the line is reserved, and so must not be driven")
    if spec.limit is not None and spec.limit.max_on_ms is not None and spec.safe == 1:
        cure = 'give the line safe = 0 or "input", or take max_on_ms out'
        details = Table({}, table.at("limit"), table.faults)
        details.fault("max_on_ms", f"after it the line goes to its safe state, which is on (safe = 1); {cure}")
