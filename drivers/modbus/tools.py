"""The tools modbus.read, modbus.write and hw.modbus.list: each step is one transaction on its line.

They translate names and units into addresses and the numbers there, and back. What a device permits is in
`hearth.drivers.modbus.driver`, and checked in `bus`, before anything runs.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from hearth._util.text import suggestions
from hearth.drivers import schemas
from hearth.drivers.board import BoardDriver, list_tool
from hearth.drivers.modbus.codec import BITS, WRITABLE
from hearth.drivers.modbus.driver import BROADCAST, LAST_REG
from hearth.drivers.schemas import only_one, wrong
from hearth.errors import InvalidParams
from hearth.tools import Args, Done, Drive, Preview, StepContext, Tool, Undo, Use

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.modbus.codec import ModbusTable
    from hearth.drivers.modbus.driver import ModbusDevice, ModbusRegister
    from hearth.drivers.modbus.line import ModbusLine
    from hearth.drivers.modbus.spec import ModbusSpec

_GRACE_MS = 5_000
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
    def readable(self) -> bool:
        """True if its value can be read before it is written."""
        serial = self.spec.driver != "tcp"
        return all("r" in one.access for one in self.registers) and not (serial and self.device.unit == BROADCAST)

    @property
    def output(self) -> tuple[int, ModbusTable, int] | None:
        """Return its name on the bus, if it goes to a safe value when the session ends."""
        ends = any(one.safe is not None for one in self.registers)
        return (self.device.unit, self.table, self.reg) if ends else None

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
            low, high = (bound * register.scale for bound in register.unlimited().raw_bounds)
            holds = f"type {kind!r} with scale {register.scale:g} holds {low:g} to {high:g}"
            raise wrong("/value", f"{holds}, got {value!r}") from None


class _Modbus:
    """The tools' functions on one board."""

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
        registers = self._in_a_row(device, table, reg, int(args.get("count", 1)))
        size = sum(register.size for register in registers) or int(args.get("count", 1))
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

    async def read(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """modbus.read: one request."""
        target = self.target(args)
        values: Sequence[int] = await ctx.transact(
            lambda driver: driver.read(target.device.unit, target.table, target.reg, target.size),
            limit_ms=self._limit_ms(target, 1),
        )
        entries = target.entries(values)
        result = {"device": target.device.name, "table": target.table, **entries[0]}
        return {**result, "values": entries} if len(entries) > 1 else result

    async def write(self, ctx: StepContext, args: Args) -> Done:
        """modbus.write: read the former value where that is possible, then write."""
        target = self.target(args, write=True)
        unit, values = target.device.unit, target.encode(args["value"])
        former: Sequence[int] | None = None

        async def op(driver: ModbusLine) -> None:
            nonlocal former
            if target.readable:
                former = await driver.read(unit, target.table, target.reg, target.size)
            await driver.write(unit, target.table, target.reg, values)

        await ctx.transact(op, limit_ms=self._limit_ms(target, 2), drives=target.output)
        (entry,) = target.entries(values)
        result = {"device": target.device.name, "table": target.table, **entry}
        if ctx.clamped:
            result |= {"value": ctx.clamped[-1]["written"], "clamped": list(ctx.clamped)}
        if target.spec.driver != "tcp" and unit == BROADCAST:
            result["confirmed"] = False
        if former is None:
            return Done(result)
        back = former
        (shown,) = target.entries(back)
        what = f"modbus.write {target.device.name} {entry.get('name', target.reg)} back to {shown['value']}"
        return Done(
            result, Undo(lambda driver: driver.write(unit, target.table, target.reg, back), what, target.output)
        )

    def drives(self, args: Args) -> Sequence[Drive]:
        """Return the registers that a write drives."""
        target = self.target(args, write=True)
        place = (target.device.unit, target.table, target.reg)
        return (Drive(target.spec.bus, place, target.encode(args["value"])),)

    def preview(self, args: Args) -> Preview | None:
        """Show the value before a write, and after it."""
        target = self.target(args, write=True)
        if not target.readable:
            return None
        (entry,) = target.entries(target.encode(args["value"]))
        where = {name: args[name] for name in ("device", "name", "register", "table") if name in args}
        return Preview("modbus.read", where, ("value",), {"value": entry["value"]})

    def read_bus(self, args: Args) -> str:
        """Return the line of a read."""
        return self.target(args).spec.bus

    def write_bus(self, args: Args) -> str:
        """Return the line of a write. Raises InvalidParams for a value that the register cannot hold."""
        target = self.target(args, write=True)
        target.encode(args["value"])
        return target.spec.bus

    def read_uses(self, args: Args) -> Sequence[Use]:
        """Return the device of a read."""
        return (self.target(args).use(),)

    def write_uses(self, args: Args) -> Sequence[Use]:
        """Return the device of a write."""
        return (self.target(args, write=True).use(),)

    async def listed(self, ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        """hw.modbus.list."""
        answer: dict[str, Any] = await ctx.transact(listed)
        for line in answer["lines"]:
            mine = (self._devices[one["device"]] for one in line["devices"])
            permitted = {device.name for spec, device in mine if ctx.permits(spec.use(device))}
            line["devices"] = [one for one in line["devices"] if one["device"] in permitted]
        return answer


def listed(board: BoardDriver) -> dict[str, Any]:
    """Return the result of hw.modbus.list."""
    return {"lines": [{**described, **spec.to_json()} for spec, described, _ in board.of("modbus")]}


def modbus_tools(board: Board) -> list[Tool]:
    """Return the modbus tools for a board, in the default order."""
    modbus = _Modbus(board)
    drivers = [cast("ModbusLine", board.drivers[spec.bus]) for spec in board.of("modbus")]
    timeout_ms = int(max((driver.limit_ms(2) for driver in drivers), default=10_000)) + _GRACE_MS
    device = schemas.text(f"the device's name, one of: {modbus.names()}", most=128)
    register = schemas.integer("instead of `name`: the address on the wire, from 0, in `table`", 0, LAST_REG)
    name = schemas.text("the register's name; hw.modbus.list has them", most=128)
    table = {"enum": ["coil", "discrete", "input", "holding"], "description": "the table of `register`"}
    value = {"type": ["number", "boolean", "null"], "description": "in `unit`; null: the device says it is no number"}
    unit = schemas.text("the unit of the value, if the profile has one")
    place = {
        "device": device,
        "table": table,
        "register": schemas.integer("the address", 0, LAST_REG),
        "name": name,
        "value": value,
        "unit": unit,
    }
    return [
        list_tool(
            "hw.modbus.list",
            "List the Modbus lines, the devices on them, and their registers with units and limits. Asks no device.",
            {"lines": schemas.listed("the lines", schemas.json_object("line, bus, driver, baud or host, devices"))},
            modbus.listed,
        ),
        Tool(
            name="modbus.read",
            logged=("device", "name", "register", "table", "count"),
            risk_level=0,
            timeout_ms=timeout_ms,
            description=(
                "Read a register of a Modbus device that the board's profile declares, in its unit; with `count` so "
                "many registers that follow each other, in one request. Give `name`, or `register`. Addresses that "
                "are not declared are refused, unless the profile gives the device `raw`."
            ),
            params_schema=schemas.args(
                {
                    "device": device,
                    "name": name,
                    "register": register,
                    "table": {**table, "default": "holding"},
                    "count": schemas.integer("how many registers", 1, MOST_COUNT, default=1),
                },
                required=["device"],
            ),
            result_schema=schemas.result(
                {
                    **place,
                    "values": schemas.listed(
                        "with `count`: all of them", schemas.json_object("register, name, value, unit")
                    ),
                },
                optional=["name", "unit", "values"],
            ),
            capability="CAP_MODBUS_READ",
            bus=modbus.read_bus,
            uses=modbus.read_uses,
            run=modbus.read,
        ),
        Tool(
            name="modbus.write",
            logged=("device", "name", "register", "table", "value"),
            risk_level=2,
            timeout_ms=timeout_ms,
            supports_rollback=True,
            idempotent=True,
            description=(
                "Write a register of a Modbus device that the board's profile declares, in its unit. The former value "
                "is read first where the register can be read, for rollback. A number between two steps of the "
                "register is rounded; `value` in the result is what was written. If the answer is lost, the error "
                "has effect unknown: read the register back. When the session ends the register keeps its value, or "
                "gets its `safe` value if hw.modbus.list shows one."
            ),
            params_schema=schemas.args(
                {
                    "device": device,
                    "name": name,
                    "register": register,
                    "table": {"enum": list(WRITABLE), "description": table["description"], "default": "holding"},
                    "value": {"type": ["number", "boolean"], "description": "the value, in the register's unit"},
                },
                required=["device", "value"],
            ),
            result_schema=schemas.result(
                {
                    **place,
                    "clamped": schemas.listed(
                        "registers whose limit has changed what was written",
                        schemas.json_object("device, register, name, asked, written"),
                    ),
                    "confirmed": schemas.flag("false after a broadcast, which no device answers"),
                },
                optional=["name", "unit", "clamped", "confirmed"],
            ),
            capability="CAP_MODBUS_RW",
            bus=modbus.write_bus,
            uses=modbus.write_uses,
            drives=modbus.drives,
            run=modbus.write,
            preview=modbus.preview,
        ),
    ]
