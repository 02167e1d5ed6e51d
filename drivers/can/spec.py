"""CAN interfaces of a board: the table `[[can]]`, the interfaces that a machine has, and what is wrong with them.

It owns everything about CAN that a board needs: the spec of a bus, its drivers, its part of hw.can.list, of
`[discover]` and of `hearth doctor`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, field, frozen

from hearth.drivers.base import Style
from hearth.drivers.can.dbc import CanDatabase
from hearth.drivers.can.driver import MAX_EXTENDED, MAX_STANDARD, QUEUE, IdFilter, Scope
from hearth.drivers.signals import SignalLimit
from hearth.fields import ANY_NUMBER, Choice, Flag, Integer, ListOf, Text, kinds_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.base import Driver
    from hearth.fields import FieldType, Table

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
    "queue": Integer(16, 65_536),
    "scope": Choice("any", "declared"),
}
_MOST_FILTERS: Final = 512
"""The kernel's own limit (CAN_RAW_FILTER_MAX)."""
SHIPPED: Final = Path(__file__).parents[1] / "boards"


@frozen
class CanSpec:
    """A CAN bus: the name that callers use, and its interface.

    `bitrate` is for people: `ip link` sets it. `filters` are what the interface lets through to hearth (empty: all),
    `queue` is the number of frames kept for readers. By "MESSAGE.SIGNAL" there are `limits`, `safe` values, and `idle`
    ones, which the other signals of a message have while one of it goes to its safe value. `nodes` are the simulator's.
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
    nodes: tuple[str, ...] = ()

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
    limits: dict[str, SignalLimit] = {}
    levels: dict[str, dict[str, float]] = {"safe": {}, "idle": {}}
    for name, entry in table.named("signals"):
        for key, named in levels.items():
            if (level := entry.take(key, ANY_NUMBER, None)) is not None:
                named[name] = level
        if (limit := _limit(name, entry, needed=not {*levels} & entry.content.keys())) is not None:
            limits[name] = limit
    if "dbc" not in values:
        if "signals" in table.content:
            table.fault("signals", "their messages are in a DBC file; name it with `dbc`")
        if values.get("scope") == "declared":
            table.fault("scope", '"declared" allows the messages of a DBC file alone; name it with `dbc`')
    table.done()
    values |= {"filters": filters, "limits": limits, "nodes": tuple(nodes or ()), **levels}
    return CanSpec(bus, driver, interface or bus, **values)


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


# --- drivers ----------------------------------------------------------------------------------------------------------


def can_database(spec: CanSpec) -> CanDatabase:
    """Return the messages of a bus. The shipped file is read when it is first used, any other now.

    Raises ConfigError for a file that cannot be used.
    """
    path = None if spec.dbc is None else Path(spec.dbc)
    database = CanDatabase(spec.bus, path, spec.limits, spec.scope, safe=spec.safe, idle=spec.idle)
    if path is None or path.parent != SHIPPED:
        database.load()
    return database


def can_driver(spec: CanSpec, style: Style | None, _seed: int) -> Driver:
    """Return the driver of a bus. Raises ConfigError for a DBC file that cannot be used."""
    rules = can_database(spec)
    if spec.driver == "sim":
        from hearth.drivers.can.sim import ECHO_REQUEST, ECHO_RESPONSE, NODES, SimCan, echo

        nodes = [NODES[name]() for name in spec.nodes if name in NODES]
        driver = SimCan(spec.bus, nodes=nodes, queue=spec.queue, rules=rules, virtual=style is Style.ASYNC)
        if "isotp-echo" in spec.nodes:
            driver.isotp_peers[ECHO_REQUEST, ECHO_RESPONSE] = echo
        return driver
    from hearth.drivers.can.linux import LinuxCan

    return LinuxCan(
        spec.bus,
        spec.interface,
        fd=spec.fd,
        filters=spec.filters,
        queue=spec.queue,
        bitrate=spec.bitrate,
        rules=rules,
    )


def can_json(spec: CanSpec, driver: Driver) -> dict[str, Any]:
    """Return a bus for hw.can.list, without its messages; touches no hardware."""
    described = {key: value for key, value in driver.describe().items() if key != "kind"}
    optional = {
        "bitrate": spec.bitrate,
        "filters": [{"id": one.id, "mask": one.mask, "extended": one.extended} for one in spec.filters] or None,
        "dbc": None if spec.dbc is None else Path(spec.dbc).name,
    }
    shown = {key: value for key, value in optional.items() if value is not None}
    return {**described, "id": f"can:{spec.bus}", "driven": True, "fd": spec.fd, "scope": spec.scope, **shown}


# --- the machine ------------------------------------------------------------------------------------------------------

_ARPHRD_CAN = "280"
_IFF_UP = 1
_FD_MTU = 72


@frozen
class FoundCan:
    """A CAN interface of the machine; `down` if it was not brought up, `off_bus` if its controller left the bus."""

    name: str
    down: bool
    off_bus: bool
    fd: bool


def find_can(sys: Path) -> list[FoundCan]:
    """Return the CAN interfaces, by name, as /sys shows them."""
    found = []
    for place in sorted((sys / "class/net").glob("*")):
        if _read(place / "type") == _ARPHRD_CAN:
            down = not int(_read(place / "flags") or "0", 16) & _IFF_UP
            off_bus = not down and _read(place / "carrier") == "0"
            # 16 for classic frames, 72 for CAN FD, more for CAN XL.
            fd = int(_read(place / "mtu") or "0") >= _FD_MTU
            found.append(FoundCan(place.name, down, off_bus, fd))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None


def listed_can(found: Sequence[FoundCan], specs: Sequence[CanSpec]) -> Iterator[CanSpec]:
    """Yield a spec for each interface that was found and that the profile does not list itself."""
    listed = {spec.interface for spec in specs} | {spec.bus for spec in specs}
    for one in found:
        if one.name not in listed and re.fullmatch(r"[A-Za-z0-9_-]+", one.name):
            yield CanSpec(one.name, "socketcan", one.name, fd=one.fd)


def can_json_found(found: Sequence[FoundCan]) -> list[dict[str, Any]]:
    """Return the interfaces for `hearth doctor`, each with what keeps it from working, and the cure."""
    problems = [(one, can_problem(CanSpec(one.name, "socketcan", one.name, fd=one.fd), found)) for one in found]
    return [
        {"node": one.name, "fd": one.fd, "problem": problem and problem[0], "cure": problem and problem[1]}
        for one, problem in problems
    ]


def can_problem(spec: CanSpec, found: Sequence[FoundCan]) -> tuple[str, str] | None:
    """Return what keeps a bus from working on this machine, with its cure; None if nothing does."""
    from hearth.drivers.can.linux import up_command

    there = next((one for one in found if one.name == spec.interface), None)
    up = up_command(spec.interface, spec.bitrate, fd=spec.fd)
    again = f"sudo ip link set {spec.interface} down; {up}"
    if there is None:
        listed = ", ".join(one.name for one in found) or "none"
        cure = "is it plugged in, and its kernel module loaded? `ip -br link` lists all; or correct the profile"
        return f"there is no CAN interface {spec.interface}; there is {listed}", cure
    if there.down:
        return f"{spec.interface} is down; hearth sets no bit rates", up
    if there.off_bus:
        return f"{spec.interface} is off the bus, after too many errors", again
    if spec.fd and not there.fd:
        return f"{spec.interface} does no CAN FD", f"{again}; or take `fd` out"
    return None


def can_problems(specs: Sequence[CanSpec], found: Sequence[FoundCan]) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps the buses of a profile from working on this machine: key path, problem and cure."""
    for index, spec in enumerate(specs):
        if spec.driver != "sim" and (problem := can_problem(spec, found)) is not None:
            yield (f"can[{index}].interface", *problem)
