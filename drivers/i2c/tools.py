"""The tools hw.i2c.list, i2c.read, i2c.write, i2c.transfer and i2c.scan: each step is one bus transaction.

They translate args into messages; they do not know any device's registers. Their schemas are flat, so the checks of one
arg against another (a ten-bit address, a register's width, bytes in one of three forms) are in the plan of a step,
which is made before anything runs.
"""

from __future__ import annotations

import base64
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from attrs import evolve, frozen

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import Listing, Planned, changing, tool, with_clamped
from hearth.drivers.i2c.driver import (
    ADDRESSES,
    DANGEROUS,
    FIRST_ADDR,
    LAST_ADDR,
    LAST_SEVEN_BIT,
    LAST_TEN_BIT,
    MAX_LENGTH,
    MAX_MESSAGES,
    I2cDriver,
    Scan,
)
from hearth.drivers.kind import finite
from hearth.drivers.named import NamedSignal
from hearth.drivers.registers import Message, Read, Write
from hearth.drivers.schemas import Schema, encode, number, only_one, read_bytes, shown_bytes, wrong
from hearth.tools import Args, Drive, Preview, Reached, StepContext, Tool, Use, i2c_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.i2c.spec import DeviceSpec, I2cSpec
    from hearth.drivers.registers import Register

_TIMEOUT_MS = 10_000
_SCAN: Sequence[Message] = [Read(1) for _ in ADDRESSES]
"""Upper bound on the length of a scan."""

_LAST_EIGHT_BIT = 0xFF


_SEVEN_BIT = schemas.number_or(
    'the device\'s 7-bit address, 0x08 to 0x77: an integer (72) or a string ("0x48")',
    FIRST_ADDR,
    LAST_ADDR,
    pattern=r"^0[xX](?:0?[89a-fA-F]|[1-6][0-9a-fA-F]|7[0-7])$",
)
_ADDRESS = schemas.number_or(
    'the device\'s address: an integer (72) or a string ("0x48"); 0x08 to 0x77, or with `ten_bit` up to 0x3ff',
    0,
    LAST_TEN_BIT,
    pattern=r"^0[xX]0*(?:[0-9a-fA-F]{1,2}|[1-3][0-9a-fA-F]{2})$",
)
_TEN_BIT = schemas.flag(
    "the address goes over the wire in ten bits; refused where the adapter cannot do that", default=False
)
_REG_WIDTH: Schema = {"enum": [8, 16], "description": "bits of the register's number, high byte first", "default": 8}


def _register(description: str) -> Schema:
    form = 'an integer up to 255 or a string ("0x00"); with `reg_width` 16 up to 65535'
    return schemas.number_or(f"{description}: {form}", 0, 0xFFFF, pattern=r"^0[xX][0-9a-fA-F]{1,4}$")


_MESSAGE = schemas.object_of(
    {
        **schemas.bytes_args("write", "send these bytes"),
        "read?": schemas.integer("receive so many bytes", 1, MAX_LENGTH),
    }
)
_MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "description": "instead of all these: the messages in their order, with a repeated START between them; each has "
    "one of `write`, `text`, `hex` and `read`",
    "items": {"type": "object", "properties": _MESSAGE["properties"]},
}


def _check_address(args: Args) -> None:
    """Raise InvalidParams for an address or a register's number that is too large for the width that is asked for."""
    addr = number(args["addr"])
    if not args.get("ten_bit", False) and not FIRST_ADDR <= addr <= LAST_ADDR:
        seven = f"expected an address from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, got {addr:#04x}"
        raise wrong("/addr", f"{seven}; a ten-bit address needs `ten_bit`")
    if "reg" in args and int(args.get("reg_width", 8)) == 8 and number(args["reg"]) > _LAST_EIGHT_BIT:
        raise wrong("/reg", f"expected a register from 0 to {_LAST_EIGHT_BIT}; a wider number needs `reg_width` 16")


def _selected(args: Args) -> bytes:
    """Return the register's number as it goes over the wire; nothing if there is none."""
    if "reg" not in args:
        return b""
    return number(args["reg"]).to_bytes(int(args.get("reg_width", 8)) // 8, "big")


def _messages(args: Args) -> list[Message]:
    """Return the messages of an i2c.transfer. Raises InvalidParams for args that are not one way to say them."""
    length = int(args.get("read_len", 0))
    if only_one(args, ("write", "text", "hex", "messages")) != "messages":
        messages: list[Message] = [Write(read_bytes(args, "write"))]
        if length:
            messages.append(Read(length))
        return messages
    if length:
        raise wrong("/read_len", "`messages` has the reads itself; leave it out")
    messages = [_message(entry, f"/messages/{index}") for index, entry in enumerate(args["messages"])]
    written = sum(len(message.data) for message in messages if isinstance(message, Write))
    read = sum(message.length for message in messages if isinstance(message, Read))
    if max(written, read) > MAX_LENGTH:
        reason = f"{written} bytes to write and {read} to read; one step has at most {MAX_LENGTH} of each"
        raise wrong("/messages", reason)
    return messages


def _message(entry: Mapping[str, Any], at: str) -> Message:
    if only_one(entry, ("write", "text", "hex", "read"), at) == "read":
        return Read(int(entry["read"]))
    return Write(read_bytes(entry, "write", at=at))


def _split(data: bytes, messages: list[Message]) -> list[str]:
    """Return the bytes of each of the reads."""
    read = BytesIO(data)
    return [encode(read.read(message.length)) for message in messages if isinstance(message, Read)]


def _entries(reasons: Mapping[int, str], what: str) -> list[dict[str, Any]]:
    return [{"addr": addr, "hex": f"{addr:#04x}", what: text} for addr, text in reasons.items()]


class _I2cTools:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def _bus(self, args: Args) -> str:
        return self._board.bus("i2c", "bus", int(args["bus"]))

    def _driver(self, args: Args) -> I2cDriver:
        return cast("I2cDriver", self._board.drivers[self._bus(args)])

    def read_risk(self, args: Args) -> int:
        """Return the risk of an i2c.read."""
        # A register's number of another width than the device's is data to it: an EEPROM with 8-bit numbers writes the
        # second byte of one with 16. For an undeclared device the width is unknown.
        if "reg" not in args:
            return 0
        ten_bit = bool(args.get("ten_bit", False))
        width = self._driver(args).addresses.reg_width(number(args["addr"]), ten_bit=ten_bit)
        return 0 if width == int(args.get("reg_width", 8)) else 2

    def _checked(self, args: Args) -> str:
        """Return the bus. Raises InvalidParams for one that the board does not have, and for numbers too large."""
        bus = self._bus(args)
        _check_address(args)
        return bus

    def _exchange(
        self,
        bus: str,
        args: Args,
        messages: list[Message],
        result: Callable[[bytes], dict[str, Any]],
        *,
        drives: bool = True,
        preview: Callable[[], Preview | None] = lambda: None,
    ) -> Planned:
        """Return the plan of one transaction. Raises PermissionDenied for what the profile refuses."""
        driver = cast("I2cDriver", self._board.drivers[bus])
        addr, ten_bit = number(args["addr"]), bool(args.get("ten_bit", False))
        driver.addresses.check(args["bus"], addr, messages, ten_bit=ten_bit)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            data: bytes = await ctx.transact(
                lambda driver: driver.transfer(addr, messages, ten_bit=ten_bit), limit_ms=driver.limit_ms(messages)
            )
            return with_clamped(result(data), ctx.clamped)

        def driven() -> Sequence[Drive]:
            # In ten bits a 7-bit number is another device, which the profile does not declare.
            known = drives and (not ten_bit or addr > LAST_SEVEN_BIT)
            return (Drive(bus, addr, messages),) if known else ()

        return Planned(bus, lambda: (i2c_use(int(args["bus"]), addr, ten_bit=ten_bit),), run, driven, preview)

    def read(self, args: Args) -> Planned:
        """i2c.read: the register's number and the read are one transaction, with a repeated start between them."""
        bus = self._checked(args)
        messages: list[Message] = [Read(int(args["len"]))]
        if "reg" in args:
            messages.insert(0, Write(_selected(args)))
        return self._exchange(bus, args, messages, lambda data: {**shown_bytes(data)}, drives="reg" in args)

    def read_reaches(self, args: Args) -> Sequence[Reached]:
        """Return the declared register that an i2c.read reads, if that is all that it does."""
        bus = self._bus(args)
        if "reg" not in args or args.get("ten_bit") or self.read_risk(args):
            return ()
        place = number(args["addr"]), number(args["reg"])
        devices = [device for device in self._board.specs[bus].devices if device.addr == place[0]]
        found = [register.size for device in devices for register in device.registers if register.reg == place[1]]
        return [(bus, place)] if found == [args["len"]] else ()

    def write(self, args: Args) -> Planned:
        """i2c.write: one message, the register's number first."""
        bus = self._checked(args)
        data = read_bytes(args)

        def preview() -> Preview | None:
            if "reg" not in args:
                return None
            where = {name: args[name] for name in ("bus", "addr", "ten_bit", "reg", "reg_width") if name in args}
            return Preview("i2c.read", {**where, "len": len(data)}, ("data",), {"data": encode(data)})

        messages: list[Message] = [Write(_selected(args) + data)]
        return self._exchange(bus, args, messages, lambda _: {"written": len(data)}, preview=preview)

    def transfer(self, args: Args) -> Planned:
        """i2c.transfer: a write and perhaps a read, or any list of messages, in one transaction."""
        bus = self._checked(args)
        messages = _messages(args)

        def result(data: bytes) -> dict[str, Any]:
            return {**shown_bytes(data), **({"reads": _split(data, messages)} if "messages" in args else {})}

        return self._exchange(bus, args, messages, result)

    def scan(self, args: Args) -> Planned:
        """i2c.scan."""
        include = frozenset(number(addr) for addr in args.get("include", ()))
        limit_ms = self._driver(args).limit_ms(_SCAN)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            scan: Scan = await ctx.transact(lambda driver: driver.scan(include), limit_ms=limit_ms)
            return {
                "bus": int(args["bus"]),
                "addresses": list(scan.found),
                "hex": [f"{addr:#04x}" for addr in scan.found],
                "owned": _entries(scan.owned, "driver"),
                "skipped": _entries(scan.skipped, "reason"),
            }

        # A scan asks every address: only a scope that has all of them permits it.
        return Planned(self._bus(args), lambda: (Use("i2c", (f"{int(args['bus'])}:*",)),), run)


def _row(spec: I2cSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a bus for hw.i2c.list."""
    return {
        "bus": spec.bus,
        "id": f"i2c:{spec.bus}",
        "driven": True,
        "speed_hz": spec.speed_hz,
        "scope": spec.scope,
        "reserved": list(spec.reserved),
        **{key: value for key, value in described.items() if key not in ("kind", "bus", "devices")},
        "devices": [_device_json(device) for device in spec.devices],
    }


def _device_json(device: DeviceSpec) -> dict[str, Any]:
    entry: dict[str, Any] = {"addr": device.addr, "hex": f"{device.addr:#04x}", "kind": device.kind}
    optional = {
        "reg_width": device.reg_width,
        "note": device.note,
        "increment": device.increment if device.registers else None,
        "registers": [register.to_json() for register in device.registers] or None,
    }
    return entry | {key: value for key, value in optional.items() if value is not None}


listed: Final = Listing("i2c", "buses", _row, "devices", use=lambda bus, device: i2c_use(bus["bus"], device["addr"]))


def i2c_tools(board: Board) -> list[Tool]:
    """Return the i2c tools for a board, in the default order."""
    i2c = _I2cTools(board)
    which = ", ".join(str(spec.bus) for spec in board.of("i2c")) or "none"
    bus = schemas.integer(f"the bus number N of /dev/i2c-N, one of: {which}", 0, 255)
    where = {"bus": bus, "addr": _ADDRESS, "ten_bit?": _TEN_BIT}
    clamped = schemas.clamped("addr, reg, name")
    owned = schemas.json_object("addr, hex, driver: the kernel's driver")
    reads = partial(tool, capability="CAP_I2C_READ", timeout_ms=_TIMEOUT_MS)
    changes = changing("CAP_I2C_RW", timeout_ms=_TIMEOUT_MS)
    return [
        listed.tool(
            "List the I2C buses and the devices known to sit on them. Touches no hardware; i2c.scan asks the bus.",
            "the buses",
            "bus, adapter, functionality, devices, …",
        ),
        reads(
            "i2c.read",
            "Read `len` bytes from an I2C device, starting at register `reg` if one is given, in one "
            "transaction. The bytes come in the order of the wire. An address that no device has "
            "is an error with effect none. Risk 0 without `reg`, or with one of the `reg_width` that hw.i2c.list "
            "has for the device; any other puts bytes on the wire that the device may take for data, and is risk 2.",
            {
                **where,
                "reg?": _register("the register to start at; left out: wherever the device's pointer is"),
                "reg_width?": _REG_WIDTH,
                "len": schemas.integer("how many bytes", 1, MAX_LENGTH),
            },
            schemas.bytes_result("what was read", least=1),
            i2c.read,
            risk_level=2,
            effective_risk=i2c.read_risk,
            reaches=i2c.read_reaches,
            logged=("bus", "addr", "ten_bit", "reg", "reg_width", "len"),
        ),
        changes(
            "i2c.write",
            "Write bytes (one of `data`, `text` and `hex`) to an I2C device, to register `reg` and those after it "
            "if one is given, in one transaction. There is no rollback. An EEPROM wraps within its page (8 bytes "
            "on a 24C02): write page by page.",
            {
                **where,
                "reg?": _register("the register to start at; left out: the data alone"),
                "reg_width?": _REG_WIDTH,
                **schemas.bytes_args("data", "what to write"),
            },
            {"written": schemas.integer("data bytes written", 1, MAX_LENGTH), "clamped?": clamped},
            i2c.write,
            logged=("bus", "addr", "ten_bit", "reg", "reg_width"),
        ),
        changes(
            "i2c.transfer",
            "Write bytes (one of `write`, `text` and `hex`) to an I2C device and then read `read_len` bytes from "
            "it, in one transaction with a repeated start: for devices with commands. `read_len` 0 reads nothing. "
            "Or exchange any `messages` in one transaction. An adapter that cannot do them as one refuses them, "
            "with effect none: nothing is ever split.",
            {
                **where,
                **schemas.bytes_args("write", "what to write first"),
                "read_len?": schemas.integer("how many bytes to read then", 0, MAX_LENGTH, default=0),
                "messages?": _MESSAGES,
            },
            {
                **schemas.bytes_result("what was read, all of it joined"),
                "reads?": schemas.listed("for `messages`: what each read got", schemas.base64_data("the bytes")),
                "clamped?": clamped,
            },
            i2c.transfer,
            reaches=lambda _args: (),  # it may read any register
            logged=("bus", "addr", "ten_bit", "read_len"),
        ),
        reads(
            "i2c.scan",
            f"Find the addresses from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x} that acknowledge on an I2C bus, asking "
            "each in the way that is safest there. Those that belong to a driver of the kernel's are not touched, nor "
            "are those that the board's profile refuses, nor, unless `include` names them, those at which asking is "
            "known to do harm. hw.i2c.list has the known devices without asking.",
            {
                "bus": bus,
                "include?": {
                    "type": "array",
                    "maxItems": len(ADDRESSES),
                    "items": _SEVEN_BIT,
                    "description": "addresses to ask although it may do harm, such as "
                    + ", ".join(f"{addr:#04x}" for addr in DANGEROUS)
                    + ", or the adapter cannot ask in the way that is safest there",
                },
            },
            {
                "bus": bus,
                "addresses": schemas.listed("those that acknowledge, ascending", {"type": "integer"}),
                "hex": schemas.listed("the same as strings", {"type": "string"}),
                "owned": schemas.listed("not touched: the kernel's own", owned),
                "skipped": schemas.listed("not touched", schemas.json_object("addr, hex, reason")),
            },
            i2c.scan,
            risk_level=1,
            idempotent=True,
            default_rate="5/s",
            logged=("bus",),
        ),
    ]


@frozen(eq=False, kw_only=True)
class I2cSignal(NamedSignal):
    """A declared register as a signal, in its unit: its number is bytes to the tools."""

    sets: ClassVar[tuple[str, ...]] = ("i2c.write",)

    device: DeviceSpec
    register: Register

    @property
    def _place(self) -> dict[str, Any]:
        place = {"bus": int(self.bus.partition(":")[2]), "addr": self.device.addr, "reg": self.register.reg}
        return {**place, "reg_width": self.device.reg_width or 8}

    def read(self) -> Step:
        """See NamedSignal."""
        return Step("i2c.read", {**self._place, "len": self.register.size})

    def write(self, value: Any) -> Step:
        """See NamedSignal. A value that does not fit the register is refused at submit."""
        register = self.register
        try:
            number = int(register.number_of(finite(value)))
            data = number.to_bytes(register.size, register.order, signed=register.signed)
        except (ValueError, OverflowError):
            low, high = (bound * register.scale for bound in evolve(register, min=None, max=None).raw_bounds)
            holds = f"expected a number from {low:g} to {high:g} {self.unit}".rstrip()
            raise wrong("/value", f"{holds}, got {value!r}") from None
        return Step("i2c.write", {**self._place, "data": encode(data)})

    def value(self, result: Mapping[str, Any], args: Args) -> Any:
        """See NamedSignal."""
        data = base64.b64decode(result.get("data", args.get("data", "")))
        number = int.from_bytes(data, self.register.order, signed=self.register.signed)
        return None if self.register.is_none(number) else number * self.register.scale


def i2c_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the registers of the devices of a board as signals."""
    for spec in board.of("i2c"):
        signals = board.outputs[f"i2c:{spec.bus}"].signals
        for device, register in ((each, one) for each in spec.devices for one in each.registers):
            signal = signals[device.addr, register.reg]
            yield I2cSignal(
                bus=f"i2c:{spec.bus}",
                name=signal.name,
                aliases=(signal.alias or signal.name,),
                unit=signal.unit,
                signal=signal,
                access=signal.access,
                use=i2c_use(spec.bus, device.addr, ten_bit=device.addr not in ADDRESSES),
                device=device,
                register=register,
            )
