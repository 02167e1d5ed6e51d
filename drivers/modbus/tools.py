"""The tools modbus.read, modbus.write and hw.modbus.list: each step is one transaction on its line.

They translate names and units into addresses and the numbers there, and back. What a device permits is in
`hearth.drivers.modbus.driver`, and checked in `bus`, before anything runs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from attrs import frozen

from hearth._util.text import suggestions
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import GRACE_MS, Listing, Planned, changing, reading, with_clamped
from hearth.drivers.modbus.codec import BITS, WRITABLE
from hearth.drivers.modbus.driver import BROADCAST, LAST_REG
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import only_one, wrong
from hearth.errors import InvalidParams
from hearth.tools import Args, Done, Drive, Preview, Reached, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
    from hearth.drivers.modbus.line import ModbusLine
    from hearth.drivers.modbus.spec import ModbusSpec

MOST_COUNT = 125


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

    def target(self, args: Args, *, write: bool = False) -> _Target:
        """Return the place that args name. Raises InvalidParams, and PermissionDenied with effect "none"."""
        name = args["device"]
        if name not in self._devices:
            cure, near = suggestions(name, list(self._devices))
            has = f"board {self._board.name!r} has no modbus device {name!r}; it has: {self.names()}{cure}"
            raise InvalidParams(has, data={"device": name, "known": list(self._devices), **near})
        spec, device = self._devices[name]
        if only_one(args, ("name", "register")) == "name":
            first = device.register(args["name"])
            if first is None:
                known = [str(register.name) for register in device.registers]
                cure, near = suggestions(args["name"], known)
                has = (
                    f"modbus device {name} has no register {args['name']!r}; it has: {', '.join(known) or 'none'}{cure}"
                )
                raise InvalidParams(has, data={"path": "/name", "reason": has, "known": known, **near})
            table, reg = first.table, first.reg
            if args.get("table", table) != table:
                raise wrong("/table", f"{first.name} is in table {table!r}; leave `table` out")
        else:
            table, reg = args.get("table", "holding"), int(args["register"])
        count = 1 if write else int(args.get("count", 1))
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

    def read(self, args: Args) -> Planned:
        """modbus.read: one request."""
        target = self.target(args)

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

    def write(self, args: Args) -> Planned:
        """modbus.write: read the former value where that is possible, then write.

        Raises InvalidParams for a value that the register cannot hold.
        """
        target = self.target(args, write=True)
        values = target.encode(args["value"])
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
            where = {name: args[name] for name in ("device", "name", "register", "table") if name in args}
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
    timeout_ms = int(max((driver.limit_ms(2) for driver in drivers), default=10_000)) + GRACE_MS
    device = schemas.text(f"the device's name, one of: {modbus.names()}", most=128)
    table = {"enum": ["coil", "discrete", "input", "holding"], "description": "the table of `register`"}
    named = {
        "device": device,
        "name?": schemas.text("the register's name; hw.modbus.list has them", most=128),
        "register?": schemas.integer("instead of `name`: the address on the wire, from 0, in `table`", 0, LAST_REG),
        "table?": {**table, "default": "holding"},
    }
    place = {
        "device": device,
        "table": table,
        "register": schemas.integer("the address", 0, LAST_REG),
        "name?": named["name?"],
        "value": {
            "type": ["number", "boolean", "string", "null"],
            "description": "in `unit`; a text of type text; null: the device says that it has no value",
        },
        "unit?": schemas.text("the unit of the value, if the profile has one"),
    }
    values = schemas.json_object("register, name, value, unit")
    return [
        listed.tool(
            "List the Modbus lines, the devices on them, and their registers with units and limits. Asks no device.",
            "the lines",
            "line, bus, driver, baud or host, devices",
            use=lambda _, one: modbus.use(one["device"]),
        ),
        reading("CAP_MODBUS_READ")(
            "modbus.read",
            "Read a register of a Modbus device that the board's profile declares, in its unit; with `count` so "
            "many registers that follow each other, in one request. Give `name`, or `register`. Addresses that "
            "are not declared are refused, unless the profile gives the device `raw`.",
            {**named, "count?": schemas.integer("how many registers", 1, MOST_COUNT, default=1)},
            {**place, "values?": schemas.listed("with `count`: all of them", values)},
            modbus.read,
            timeout_ms=timeout_ms,
            logged=("device", "name", "register", "table", "count"),
        ),
        changing("CAP_MODBUS_RW", supports_rollback=True, idempotent=True)(
            "modbus.write",
            "Write a register of a Modbus device that the board's profile declares, in its unit. The former value "
            "is read first where the register can be read, for rollback. A number between two steps of the "
            "register is rounded; `value` in the result is what was written. If the answer is lost, the error "
            "has effect unknown: read the register back. When the session ends the register keeps its value, or "
            "gets its `safe` value if hw.modbus.list shows one.",
            {
                **named,
                "table?": {"enum": list(WRITABLE), "description": table["description"], "default": "holding"},
                "value": {"type": ["number", "boolean"], "description": "the value, in the register's unit"},
            },
            {
                **place,
                "clamped?": schemas.clamped("device, register, name"),
                "confirmed?": schemas.flag("false after a broadcast, which no device answers"),
            },
            modbus.write,
            timeout_ms=timeout_ms,
            logged=("device", "name", "register", "table", "value"),
        ),
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
