"""The tools modbus.read, modbus.write and hw.modbus.list: each step is one transaction on its line.

They translate names and units into addresses and the numbers there, and back. What a device permits is in
`hearth.drivers.modbus.driver`, and checked in `bus`, before anything runs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict, cast

from annotated_types import Ge, Le, Len
from attrs import frozen

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import GRACE_MS, Listing, Planned, with_clamped
from hearth.drivers.modbus.codec import BITS, WRITABLE, ModbusTable
from hearth.drivers.modbus.driver import BROADCAST, LAST_REG
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import given, only_one, wrong
from hearth.drivers.typed_tools import changes, reads, tools_of
from hearth.errors import InvalidParams
from hearth.tools import Done, Drive, Preview, Reached, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
    from hearth.drivers.modbus.line import ModbusLine
    from hearth.drivers.modbus.spec import ModbusSpec

MOST_COUNT = 125
_PLACE: Final = ("device", "name", "register", "table")
_VALUES: Final = schemas.listed("with `count`: all of them", schemas.json_object("register, name, value, unit"))
_TABLE: Final = {"enum": ["coil", "discrete", "input", "holding"], "description": "the table of `register`"}

Device: TypeAlias = Annotated[str, Len(1, 128), "the device's name, one of: {devices}"]
Name: TypeAlias = Annotated[str, Len(1, 128), "the register's name; hw.modbus.list has them"]
Reg: TypeAlias = Annotated[int, Ge(0), Le(LAST_REG), "instead of `name`: the address on the wire, from 0, in `table`"]


class _RegistersRead(TypedDict):
    device: Device
    table: Annotated[ModbusTable, _TABLE]
    register: Annotated[int, Ge(0), Le(LAST_REG), "the address"]
    name: NotRequired[Name]
    value: Annotated[
        float | bool | str | None, "in `unit`; a text of type text; null: the device says that it has no value"
    ]
    unit: NotRequired[Annotated[str, Len(1, 64), "the unit of the value, if the profile has one"]]


class _AllRead(_RegistersRead):
    values: NotRequired[Annotated[list[Any], _VALUES]]


class _RegistersWritten(_RegistersRead):
    clamped: NotRequired[Annotated[list[Any], schemas.clamped("device, register, name")]]
    confirmed: NotRequired[Annotated[bool, "false after a broadcast, which no device answers"]]


@frozen
class _Target:
    """The place of a step: addresses of a device, and the declared registers there; none where it is raw."""

    spec: ModbusSpec
    device: ModbusDevice
    table: ModbusTable
    reg: int
    size: int
    registers: tuple[ModbusRegister, ...]

    @property
    def place(self) -> tuple[int, ModbusTable, int]:
        """Return its name on the bus."""
        return self.device.unit, self.table, self.reg

    @property
    def broadcast(self) -> bool:
        """True if it is every device of a serial line, of which none answers."""
        return self.spec.broadcasts and self.device.unit == BROADCAST

    @property
    def readable(self) -> bool:
        """True if its value can be read before it is written."""
        return all("r" in one.access for one in self.registers) and not self.broadcast

    @property
    def output(self) -> tuple[int, ModbusTable, int] | None:
        """Return its name on the bus, if it goes to a safe value when the session ends."""
        return self.place if any(one.safe is not None for one in self.registers) else None

    def use(self) -> Use:
        return self.spec.use(self.device, raw=not self.registers)

    def entries(self, values: Sequence[int]) -> list[dict[str, Any]]:
        """Return each register, or each raw address, with its value for a caller."""
        if not self.registers:
            shown: list[Any] = [bool(value) for value in values] if self.table in BITS else list(values)
            return [{"register": self.reg + index, "value": value} for index, value in enumerate(shown)]
        entries = []
        for register in self.registers:
            at = register.reg - self.reg
            value = register.shown(values[at : at + register.size])
            entry = {"register": register.reg, "name": register.name, "value": value}
            entries.append(entry if register.unit is None else {**entry, "unit": register.unit})
        return entries

    def encode(self, value: bool | float) -> tuple[int, ...]:
        """Return the values to write for a caller's value. Raises InvalidParams."""
        register = self.registers[0] if self.registers else None
        kind = register.type if register is not None else "bool" if self.table in BITS else "u16"
        if (kind == "bool" and value not in (0, 1)) or (kind != "bool" and isinstance(value, bool)):
            raise wrong("/value", f"expected {'true or false' if kind == 'bool' else 'a number'}, got {value!r}")
        if register is None:
            if not (float(value).is_integer() and 0 <= value <= 0xFFFF):
                raise wrong("/value", f"expected an integer from 0 to {0xFFFF}, got {value!r}")
            return (int(value),)
        try:
            return register.encode(value)
        except (OverflowError, struct.error):
            low, high = map(register.valued, register.unlimited().raw_bounds)
            holds = f"type {kind!r} with scale {register.scale:g} holds {low:g} to {high:g}"
            raise wrong("/value", f"{holds}, got {value!r}") from None


class _Modbus:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._devices = {device.name: (spec, device) for spec in board.of("modbus") for device in spec.devices}

    def names(self) -> str:
        """Return the devices, for a description."""
        return ", ".join(self._devices) or "none"

    def target(
        self, on: str, name: str | None, at: int | None, within: ModbusTable | None, count: int = 1, write: bool = False
    ) -> _Target:
        """Return the place of a name, or of address `at` in table `within`. Raises InvalidParams, PermissionDenied."""
        if on not in self._devices:
            cure, near = suggestions(on, list(self._devices))
            has = f"board {self._board.name!r} has no modbus device {on!r}; it has: {self.names()}{cure}"
            raise InvalidParams(has, data={"device": on, "known": list(self._devices), **near})
        spec, device = self._devices[on]
        asked = given(name=name, register=at)
        if only_one(asked, ("name", "register")) == "name":
            first = device.register(asked["name"])
            if first is None:
                known = [str(register.name) for register in device.registers]
                cure, near = suggestions(asked["name"], known)
                has = f"modbus device {on} has no register {name!r}; it has: {', '.join(known) or 'none'}{cure}"
                raise InvalidParams(has, data={"path": "/name", "reason": has, "known": known, **near})
            if within not in (None, first.table):
                raise wrong("/table", f"{first.name} is in table {first.table!r}; leave `table` out")
            table, reg = first.table, first.reg
        else:
            table, reg = within or "holding", asked["register"]
        registers = self._in_a_row(device, table, reg, count)
        size = sum(register.size for register in registers) or count
        device.covered(table, reg, size, write=write)
        return _Target(spec, device, table, reg, size, tuple(registers))

    @staticmethod
    def _in_a_row(device: ModbusDevice, table: ModbusTable, reg: int, count: int) -> list[ModbusRegister]:
        """Return `count` declared registers that follow each other; none if an address is not declared."""
        starts = {register.reg: register for register in device.registers if register.table == table}
        found: list[ModbusRegister] = []
        while len(found) < count:
            register = starts.get(reg)
            if register is None:
                break
            found.append(register)
            reg += register.size
        if found and len(found) < count and device.raw == "none":
            last = found[-1].name
            raise wrong("/count", f"{len(found)} declared registers follow each other there, the last is {last}")
        return found if len(found) == count else []

    def _limit_ms(self, target: _Target, requests: int) -> float:
        return cast("ModbusLine", self._board.drivers[target.spec.bus]).limit_ms(requests)

    @reads("modbus.read", "CAP_MODBUS_READ", logged=(*_PLACE, "count"))
    def read(
        self,
        device: Device,
        name: Name | None = None,
        register: Reg | None = None,
        table: Annotated[ModbusTable | None, {**_TABLE, "default": "holding"}] = None,
        count: Annotated[int, Ge(1), Le(MOST_COUNT), "how many registers"] = 1,
    ) -> Planned[_AllRead]:
        """Read a register of a Modbus device that the board's profile declares, in its unit.

        With `count` so many registers that follow each other, in one request. Give `name`, or `register`. Addresses
        that are not declared are refused, unless the profile gives the device `raw`.
        """
        target = self.target(device, name, register, table, count)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            values: Sequence[int] = await ctx.transact(
                lambda driver: driver.read(*target.place, target.size), limit_ms=self._limit_ms(target, 1)
            )
            entries = target.entries(values)
            result = {"device": target.device.name, "table": target.table, **entries[0]}
            return {**result, "values": entries} if len(entries) > 1 else result

        def reaches() -> Sequence[Reached]:
            return [(target.spec.bus, (target.device.unit, one.table, one.reg)) for one in target.registers]

        return Planned(target.spec.bus, lambda: (target.use(),), run, reaches=reaches)

    @changes("modbus.write", "CAP_MODBUS_RW", supports_rollback=True, idempotent=True, logged=(*_PLACE, "value"))
    def write(
        self,
        device: Device,
        name: Name | None = None,
        register: Reg | None = None,
        table: Annotated[ModbusTable | None, {**_TABLE, "enum": list(WRITABLE), "default": "holding"}] = None,
        *,
        value: Annotated[float | bool, "the value, in the register's unit"],
    ) -> Planned[_RegistersWritten]:
        """Write a register of a Modbus device that the board's profile declares, in its unit.

        The former value is read first where the register can be read, for rollback. A number between two steps of the
        register is rounded; `value` in the result is what was written. If the answer is lost, the error has effect
        unknown: read the register back. When the session ends the register keeps its value, or gets its `safe` value if
        hw.modbus.list shows one.
        """
        target = self.target(device, name, register, table, write=True)
        values = target.encode(value)
        former: Sequence[int] | None = None

        async def op(driver: ModbusLine) -> None:
            nonlocal former
            if target.readable:
                former = await driver.read(*target.place, target.size)
            await driver.write(*target.place, values)

        async def run(ctx: StepContext) -> Done:
            await ctx.transact(op, limit_ms=self._limit_ms(target, 2), drives=target.output)
            (entry,) = target.entries(values)
            result = {"device": target.device.name, "table": target.table, **entry}
            if ctx.clamped:
                result = with_clamped({**result, "value": ctx.clamped[-1]["written"]}, ctx.clamped)
            if target.broadcast:
                result["confirmed"] = False
            if former is None:
                return Done(result)
            back = former
            (shown,) = target.entries(back)
            what = f"modbus.write {target.device.name} {entry.get('name', target.reg)} back to {shown['value']}"
            return Done(result, Undo(lambda driver: driver.write(*target.place, back), what, target.output))

        def drives() -> Sequence[Drive]:
            return (Drive(target.spec.bus, target.place, values),)

        def preview() -> Preview | None:
            if not target.readable:
                return None
            (entry,) = target.entries(values)
            where = given(device=device, name=name, register=register, table=table)
            return Preview("modbus.read", where, ("value",), {"value": entry["value"]})

        return Planned(target.spec.bus, lambda: (target.use(),), run, drives, preview)

    def use(self, device: str) -> Use:
        """Return the use of a device by its name."""
        spec, found = self._devices[device]
        use: Use = spec.use(found)
        return use


listed: Final = Listing("modbus", "lines", lambda spec, told, _: {**told, **spec.to_json()}, "devices", ())


def modbus_tools(board: Board) -> list[Tool]:
    """Return the modbus tools for a board, in the default order."""
    modbus = _Modbus(board)
    drivers = [cast("ModbusLine", board.drivers[spec.bus]) for spec in board.of("modbus")]
    longest = {"timeout_ms": int(max((driver.limit_ms(2) for driver in drivers), default=10_000)) + GRACE_MS}
    return [
        listed.tool(
            "List the Modbus lines, the devices on them, and their registers with units and limits. Asks no device.",
            "the lines",
            "line, bus, driver, baud or host, devices",
            use=lambda _, one: modbus.use(one["device"]),
        ),
        *tools_of(modbus, {"devices": modbus.names()}, read=longest, write=longest),
    ]


class ModbusSignal(NamedSignal):
    """A declared register as a signal, in its unit."""

    sets: ClassVar[tuple[str, ...]] = ("modbus.write",)

    @property
    def _place(self) -> dict[str, Any]:
        assert self.signal is not None
        device, table, register = (self.signal.place[name] for name in ("device", "table", "register"))
        return {"device": device, "table": table, "register": register}

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("modbus.read", self._place)

    def write(self, value: Any) -> Step:
        """See NamedSignal."""
        return Step("modbus.write", {**self._place, "value": value})


def modbus_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the registers of the devices of a board as signals."""
    for spec in board.of("modbus"):
        uses = {device.name: spec.use(device) for device in spec.devices}
        for signal in board.outputs[spec.bus].signals.values():
            use = uses[signal.place["device"]]
            names = {"name": signal.name, "unit": signal.unit, "access": signal.access}
            yield ModbusSignal(bus=spec.bus, signal=signal, use=use, **names)
