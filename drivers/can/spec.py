"""The table `[[can]]` of a board profile: the CAN buses of a board.

It owns the spec of a bus, and its drivers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, field, frozen

from hearth._util.toml import show
from hearth.drivers.base import Style
from hearth.drivers.can.dbc import CanDatabase, Codes
from hearth.drivers.can.driver import MAX_EXTENDED, MAX_STANDARD, QUEUE, IdFilter, Scope
from hearth.drivers.can.files import SHIPPED as SHIPPED
from hearth.drivers.kind import Caution, Resource
from hearth.drivers.registers import check_valid
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError
from hearth.fields import ANY_NUMBER, Choice, Flag, Integer, ListOf, Text
from hearth.tables import kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.drivers.base import Driver
    from hearth.drivers.can.driver import CanDriver
    from hearth.drivers.kind import Opening, Specs
    from hearth.fields import FieldType
    from hearth.tables import Table

_TEXT: Final = Text()
_NAME: Final = Text('a name of up to 32 letters, digits, "-" and "_", such as "can0"', r"[A-Za-z0-9_-]{1,32}")
_INTERFACE: Final = Text('the name of a network interface, such as "can0"', r"[^\s/:]{1,15}")
_DRIVER: Final = Choice("sim", "socketcan")
_NODES: Final = ListOf(Choice("plant", "isotp-echo"))
_ID: Final = Integer(0, MAX_EXTENDED)
_OPTIONS: Final[Mapping[str, FieldType]] = {
    "bitrate": Integer(1_000, 1_000_000),
    "fd": Flag(),
    "dbc": _TEXT,
    "encoding": _TEXT,
    "queue": Integer(16, 65_536),
    "scope": Choice("any", "declared"),
}
_LEVELS: Final = {"safe": ANY_NUMBER, "idle": ANY_NUMBER}
_MOST_FLAWS: Final = 64
"""Of one file, in the list of findings."""
_MOST_FILTERS: Final = 512
"""The kernel's own limit (CAN_RAW_FILTER_MAX)."""


@frozen
class CanSpec:
    """A CAN bus: the name that callers use, and its interface.

    `bitrate` is for people: `ip link` sets it. `filters` are what the interface lets through to hearth (empty: all),
    `queue` is the number of frames kept for readers. `encoding` is that of the DBC file, where it is not found out.
    By "MESSAGE.SIGNAL" there are `limits`, `safe` values, and `idle` ones, which the other signals of a message have
    while one of it goes to its safe value; `codes` mean that one has no value. `nodes` are the simulator's.
    """

    bus: str
    driver: str
    interface: str
    bitrate: int | None = None
    fd: bool = False
    dbc: str | None = None
    queue: int = QUEUE
    scope: Scope = "any"
    filters: tuple[IdFilter, ...] = ()
    limits: Mapping[str, SignalLimit] = field(factory=dict)
    safe: Mapping[str, float] = field(factory=dict)
    idle: Mapping[str, float] = field(factory=dict)
    codes: Mapping[str, Codes] = field(factory=dict)
    nodes: tuple[str, ...] = ()
    encoding: str | None = None

    def resources(self) -> Iterator[Resource]:
        """Yield what it needs alone on its board."""
        if self.driver != "sim":
            yield Resource(("interface", self.interface), "interface", show(self.interface))

    def database(self) -> CanDatabase:
        """Return its messages. The shipped file is read when it is first used, any other now.

        Raises ConfigError for a file that cannot be used.
        """
        path = next(self.files(), None)
        more: Any = {"safe": self.safe, "idle": self.idle, "codes": self.codes}
        more |= {"encoding": self.encoding, "fd": self.fd}
        database = CanDatabase(self.bus, path, self.limits, self.scope, **more)
        if path is None or path.parent != SHIPPED:
            database.load()
        return database

    def make_driver(self, opening: Opening) -> Driver:
        """Return its driver, not opened. Raises ConfigError for a DBC file that cannot be used."""
        database = self.database()
        database.log_flaws()
        common: Any = {"queue": self.queue, "rules": database}
        driver: CanDriver
        if self.driver == "sim":
            from hearth.drivers.can.sim import ECHO_REQUEST, ECHO_RESPONSE, NODES, SimCan, echo

            nodes = [NODES[name]() for name in self.nodes if name in NODES]
            driver = made = SimCan(self.bus, nodes=nodes, virtual=opening.style is Style.ASYNC, **common)
            if "isotp-echo" in self.nodes:
                made.isotp_peers[ECHO_REQUEST, ECHO_RESPONSE] = echo
        else:
            from hearth.drivers.can.linux import LinuxCan

            common |= {"fd": self.fd, "filters": self.filters, "bitrate": self.bitrate}
            driver = LinuxCan(self.bus, self.interface, **common)
        driver.transport = database.transport()
        return driver

    def files(self) -> Iterator[Path]:
        """Yield its DBC file, if it has one."""
        if self.dbc is not None:
            yield Path(self.dbc)

    def beside(self, folder: Path) -> CanSpec:
        """Return the spec with the path of its DBC file, which a profile in this folder names."""
        return self if self.dbc is None else evolve(self, dbc=str(folder / self.dbc))


def parse_can(table: Table) -> CanSpec:
    """Read one `[[can]]`; only where the table is `ok` is every value of its type."""
    bus, driver = table.take("bus", _NAME), table.take("driver", _DRIVER)
    values = table.given(_OPTIONS)
    interface = table.take("interface", _INTERFACE, None)
    nodes = table.take("nodes", _NODES, ())
    if driver == "sim" and interface is not None:
        table.fault("interface", 'a simulated bus has none; it is for driver = "socketcan"')
    if driver == "socketcan" and nodes:
        table.fault("nodes", 'only a simulated bus (driver = "sim") has them')
    filters = tuple([_filter(entry) for entry in table.tables("filters")])
    if len(filters) > _MOST_FILTERS:
        table.fault("filters", f"the kernel takes at most {_MOST_FILTERS}")
    signals = _signals(table)
    _check_encoding(table, values)
    if "dbc" not in values:
        if "signals" in table.content:
            table.fault("signals", "their messages are in a DBC file; name it with `dbc`")
        if values.get("scope") == "declared":
            table.fault("scope", '"declared" allows the messages of a DBC file alone; name it with `dbc`')
    table.done()
    values |= {"filters": filters, "nodes": tuple(nodes or ()), **signals}
    return CanSpec(bus, driver, interface or bus, **values)


def _signals(table: Table) -> dict[str, dict[str, Any]]:
    """Return limits, codes, and safe and idle levels of the entries of `signals`, by their names."""
    read: dict[str, dict[str, Any]] = {"limits": {}, "codes": {}, "safe": {}, "idle": {}}
    for name, entry in table.named("signals"):
        given, told = entry.given(_LEVELS), entry.given(Codes)
        for key, level in given.items():
            read[key][name] = level
        if told:
            read["codes"][name] = Codes(**told)
            check_valid(entry, read["codes"][name].valid)
        if (limit := _limit(name, entry, needed=not (given or told))) is not None:
            read["limits"][name] = limit
    return read


def _check_encoding(table: Table, values: Mapping[str, Any]) -> None:
    if (encoding := values.get("encoding")) is None:
        return
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):
        table.fault("encoding", 'it is not a text encoding that Python has; "gb2312", "shift_jis" and "cp1251" are')
    if "dbc" not in values:
        table.fault("encoding", "it is that of a DBC file; name the file with `dbc`")


def cautions(specs: Specs) -> Iterator[Caution]:
    """Yield the parts of DBC files that are not used as they are written."""
    for index, spec in enumerate(specs["can"]):
        try:
            flaws = spec.database().flaws
        except ConfigError:
            continue  # told where the board is opened
        for flaw in flaws[:_MOST_FLAWS]:
            cure = "correct the file, or send and read it by its identifier"
            yield Caution(f"can[{index}].dbc", "warn", f"{Path(spec.dbc).name}: {flaw}", cure)


def _filter(entry: Table) -> IdFilter:
    ident, extended = entry.take("id", _ID), entry.take("extended", Flag(), False)
    if ident is not None and ident > MAX_STANDARD:
        extended = True
    mask = entry.take("mask", _ID, MAX_EXTENDED if extended else MAX_STANDARD)
    entry.done()
    return IdFilter(ident or 0, mask or 0, bool(extended))


def _limit(name: str, entry: Table, *, needed: bool) -> SignalLimit | None:
    details = entry.table("limit", required=needed)
    values = details.given(SignalLimit)
    details.done()
    entry.done()
    if "." not in name:
        entry.fault("", 'expected MESSAGE.SIGNAL, such as [can.signals."FAN_COMMAND.Speed"]')
    if not entry.ok:
        return None
    if not values:
        if "limit" in entry.content:
            details.fault("", f"no limit; give one of {', '.join(kinds_of(SignalLimit))}, or leave it out")
        return None
    limit = SignalLimit(**values)
    if limit.min is not None and limit.max is not None and limit.min > limit.max:
        details.fault("min", f"{limit.min:g} is greater than max = {limit.max:g}; exchange them")
    return limit
