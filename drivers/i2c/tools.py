"""The tools hw.i2c.list, i2c.read, i2c.write, i2c.transfer and i2c.scan: each step is one bus transaction.

They translate args into messages; they do not know any device's registers. Their schemas are flat, so the checks of one
arg against another (a ten-bit address, a register's width, bytes in one of three forms) are in the plan of a step,
which is made before anything runs.
"""

from __future__ import annotations

import base64
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le, Len, MaxLen
from attrs import evolve, frozen

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.declare import Listing, Planned, with_clamped
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
from hearth.drivers.schemas import Bytes, ShownBytes, encode, number, only_one, read_bytes, shown_bytes, wrong
from hearth.drivers.typed_tools import changes, offers, tools_of
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


def _register(description: str) -> schemas.Schema:
    form = 'an integer up to 255 or a string ("0x00"); with `reg_width` 16 up to 65535'
    return schemas.number_or(f"{description}: {form}", 0, 0xFFFF, pattern=r"^0[xX][0-9a-fA-F]{1,4}$")


Bus: TypeAlias = Annotated[int, Ge(0), Le(255), "the bus number N of /dev/i2c-N, one of: {buses}"]
_SEVEN_BIT: Final = schemas.number_or(
    'the device\'s 7-bit address, 0x08 to 0x77: an integer (72) or a string ("0x48")',
    FIRST_ADDR,
    LAST_ADDR,
    pattern=r"^0[xX](?:0?[89a-fA-F]|[1-6][0-9a-fA-F]|7[0-7])$",
)
_ADDRESS: Final = schemas.number_or(
    'the device\'s address: an integer (72) or a string ("0x48"); 0x08 to 0x77, or with `ten_bit` up to 0x3ff',
    0,
    LAST_TEN_BIT,
    pattern=r"^0[xX]0*(?:[0-9a-fA-F]{1,2}|[1-3][0-9a-fA-F]{2})$",
)
_INCLUDE: Final = (
    "addresses to ask although it may do harm, such as {dangerous}, or the adapter cannot ask in the way that is "
    "safest there"
)
Address: TypeAlias = Annotated[int | str, _ADDRESS]
TenBit: TypeAlias = Annotated[
    bool, "the address goes over the wire in ten bits; refused where the adapter cannot do that"
]
RegWidth: TypeAlias = Annotated[int, {"enum": [8, 16], "description": "bits of the register's number, high byte first"}]
Clamped: TypeAlias = Annotated[list[Any], schemas.clamped("addr, reg, name")]


class _TransferPart(TypedDict):
    write: NotRequired[Annotated[bytes, Bytes("send these bytes")]]
    read: NotRequired[Annotated[int, Ge(1), Le(MAX_LENGTH), "receive so many bytes"]]


Messages: TypeAlias = Annotated[
    list[_TransferPart],
    Len(1, MAX_MESSAGES),
    "instead of all these: the messages in their order, with a repeated START between them; each has one of `write`, "
    "`text`, `hex` and `read`",
]


class _BytesRead(TypedDict):
    data: Annotated[bytes, ShownBytes("what was read", least=1)]


class _BytesWritten(TypedDict):
    written: Annotated[int, Ge(1), Le(MAX_LENGTH), "data bytes written"]
    clamped: NotRequired[Clamped]


class _I2cTransferred(TypedDict):
    data: Annotated[bytes, ShownBytes("what was read, all of it joined")]
    reads: NotRequired[
        Annotated[list[Annotated[str, schemas.base64_data("the bytes")]], "for `messages`: what each read got"]
    ]
    clamped: NotRequired[Clamped]


class _Scanned(TypedDict):
    bus: Bus
    addresses: Annotated[list[int], "those that acknowledge, ascending"]
    hex: Annotated[list[str], "the same as strings"]
    owned: Annotated[
        list[Any],
        schemas.listed("not touched: the kernel's own", schemas.json_object("addr, hex, driver: the kernel's driver")),
    ]
    skipped: Annotated[list[Any], schemas.listed("not touched", schemas.json_object("addr, hex, reason"))]


_reads = partial(offers, capability="CAP_I2C_READ", timeout_ms=_TIMEOUT_MS)
_drives = partial(changes, capability="CAP_I2C_RW", timeout_ms=_TIMEOUT_MS)


def _selected(reg: int | str | None, width: int) -> bytes:
    """Return the register's number as it goes over the wire; nothing if there is none. Raises InvalidParams."""
    if reg is None:
        return b""
    selected = number(reg)
    if width == 8 and selected > _LAST_EIGHT_BIT:
        raise wrong("/reg", f"expected a register from 0 to {_LAST_EIGHT_BIT}; a wider number needs `reg_width` 16")
    return selected.to_bytes(width // 8, "big")


def _messages(write: bytes | None, read_len: int, listed: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of an i2c.transfer. Raises InvalidParams for args that are not one way to say them."""
    if write is not None:
        return [Write(write), Read(read_len)] if read_len else [Write(write)]
    if read_len:
        raise wrong("/read_len", "`messages` has the reads itself; leave it out")
    messages = [_message(entry, f"/messages/{index}") for index, entry in enumerate(listed)]
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

    def _driver(self, bus: int) -> I2cDriver:
        """Return the driver of a bus. Raises InvalidParams for one that the board does not have."""
        bus_id = f"i2c:{bus}"
        if bus_id not in self._board.drivers:
            self._board.bus("i2c", "bus", bus)
        driver: Any = self._board.drivers[bus_id]
        found: I2cDriver = driver
        return found

    def _numbered(self, bus: int, addr: int | str, reg_width: int, ten_bit: bool) -> bool:
        """Return True if the profile has this width for the register numbers of a device."""
        # A register's number of another width than the device's is data to it: an EEPROM with 8-bit numbers writes the
        # second byte of one with 16. For an undeclared device the width is unknown.
        return self._driver(bus).addresses.reg_width(number(addr), ten_bit=ten_bit) == reg_width

    def read_risk(self, args: Args) -> int:
        """Return the risk of an i2c.read."""
        if "reg" not in args:
            return 0
        width, ten_bit = int(args.get("reg_width", 8)), bool(args.get("ten_bit", False))
        return 0 if self._numbered(int(args["bus"]), args["addr"], width, ten_bit) else 2

    def _exchange(
        self,
        bus: int,
        addr: int,
        ten_bit: bool,
        messages: list[Message],
        result: Callable[[bytes], dict[str, Any]],
        *,
        drives: bool = True,
        preview: Callable[[], Preview | None] = lambda: None,
        reaches: Callable[[], Sequence[Reached] | None] = lambda: None,
    ) -> Planned[Any]:
        """Return the plan of one transaction.

        Raises InvalidParams for an address that is too large for seven bits, and PermissionDenied for a transaction
        that the profile refuses.
        """
        driver, name = self._driver(bus), f"i2c:{bus}"
        if not ten_bit and not FIRST_ADDR <= addr <= LAST_ADDR:
            seven = f"expected an address from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x}, got {addr:#04x}"
            raise wrong("/addr", f"{seven}; a ten-bit address needs `ten_bit`")
        driver.addresses.check(bus, addr, messages, ten_bit=ten_bit)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            data: bytes = await ctx.transact(
                lambda driver: driver.transfer(addr, messages, ten_bit=ten_bit), limit_ms=driver.limit_ms(messages)
            )
            return with_clamped(result(data), ctx.clamped)

        def driven() -> Sequence[Drive]:
            # In ten bits a 7-bit number is another device, which the profile does not declare.
            known = drives and (not ten_bit or addr > LAST_SEVEN_BIT)
            return (Drive(name, addr, messages),) if known else ()

        return Planned(name, lambda: (i2c_use(bus, addr, ten_bit=ten_bit),), run, driven, preview, reaches)

    @_reads("i2c.read", risk_level=2, logged=("bus", "addr", "ten_bit", "reg", "reg_width", "len"))
    def read(
        self,
        bus: Bus,
        addr: Address,
        *,
        ten_bit: TenBit = False,
        reg: Annotated[
            int | str | None, _register("the register to start at; left out: wherever the device's pointer is")
        ] = None,
        reg_width: RegWidth = 8,
        len_: Annotated[int, Ge(1), Le(MAX_LENGTH), "how many bytes"],
    ) -> Planned[_BytesRead]:
        """Read `len` bytes from an I2C device, starting at register `reg` if one is given, in one transaction.

        The bytes come in the order of the wire. An address that no device has is an error with effect none. Risk 0
        without `reg`, or with one of the `reg_width` that hw.i2c.list has for the device; any other puts bytes on the
        wire that the device may take for data, and is risk 2.
        """
        address = number(addr)
        # The register's number and the read are one transaction, with a repeated start between them.
        messages: list[Message] = [Read(len_)] if reg is None else [Write(_selected(reg, reg_width)), Read(len_)]

        def reaches() -> Sequence[Reached]:
            # A declared register, if this reads the whole of it and nothing else.
            if reg is None or ten_bit or not self._numbered(bus, addr, reg_width, ten_bit):
                return ()
            place, devices = (address, number(reg)), self._board.specs[f"i2c:{bus}"].devices
            sizes = [one.size for each in devices for one in each.registers if (each.addr, one.reg) == place]
            return [(f"i2c:{bus}", place)] if sizes == [len_] else ()

        return self._exchange(
            bus, address, ten_bit, messages, lambda data: {**shown_bytes(data)}, drives=reg is not None, reaches=reaches
        )

    @_drives("i2c.write", logged=("bus", "addr", "ten_bit", "reg", "reg_width"))
    def write(
        self,
        bus: Bus,
        addr: Address,
        *,
        ten_bit: TenBit = False,
        reg: Annotated[int | str | None, _register("the register to start at; left out: the data alone")] = None,
        reg_width: RegWidth = 8,
        data: Annotated[bytes, Bytes("what to write")],
    ) -> Planned[_BytesWritten]:
        """Write bytes (one of `data`, `text` and `hex`) to an I2C device, in one transaction.

        With `reg` they go to that register and those after it. There is no rollback. An EEPROM wraps within its page
        (8 bytes on a 24C02): write page by page.
        """

        def preview() -> Preview | None:
            if reg is None:
                return None
            where = {"bus": bus, "addr": addr, "ten_bit": ten_bit, "reg": reg, "reg_width": reg_width}
            return Preview("i2c.read", {**where, "len": len(data)}, ("data",), {"data": encode(data)})

        messages: list[Message] = [Write(_selected(reg, reg_width) + data)]
        return self._exchange(bus, number(addr), ten_bit, messages, lambda _: {"written": len(data)}, preview=preview)

    # It may read any register.
    @_drives("i2c.transfer", logged=("bus", "addr", "ten_bit", "read_len"), reaches=lambda _args: ())
    def transfer(
        self,
        bus: Bus,
        addr: Address,
        ten_bit: TenBit = False,
        write: Annotated[bytes, Bytes("what to write first", other="messages")] | None = None,
        read_len: Annotated[int, Ge(0), Le(MAX_LENGTH), "how many bytes to read then"] = 0,
        messages: Messages | None = None,
    ) -> Planned[_I2cTransferred]:
        """Write bytes (one of `write`, `text` and `hex`) to an I2C device, then read `read_len` bytes from it.

        That is one transaction with a repeated start: for devices with commands. `read_len` 0 reads nothing. Or
        exchange any `messages` in one transaction. An adapter that cannot do them as one refuses them, with effect
        none: nothing is ever split.
        """
        exchanged = _messages(write, read_len, messages or ())

        def result(data: bytes) -> dict[str, Any]:
            return {**shown_bytes(data), **({"reads": _split(data, exchanged)} if write is None else {})}

        return self._exchange(bus, number(addr), ten_bit, exchanged, result)

    @_reads("i2c.scan", risk_level=1, idempotent=True, default_rate="5/s", logged=("bus",))
    def scan(
        self,
        bus: Bus,
        include: Annotated[list[Any] | None, schemas.listed(_INCLUDE, _SEVEN_BIT), MaxLen(len(ADDRESSES))] = None,
    ) -> Planned[_Scanned]:
        """Find the addresses from {FIRST_ADDR:#04x} to {LAST_ADDR:#04x} that acknowledge on an I2C bus.

        Each is asked in the way that is safest there. Those that belong to a driver of the kernel's are not touched,
        nor are those that the board's profile refuses, nor, unless `include` names them, those at which asking is known
        to do harm. hw.i2c.list has the known devices without asking.
        """
        included = frozenset(map(number, include or ()))
        limit_ms = self._driver(bus).limit_ms(_SCAN)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            scan: Scan = await ctx.transact(lambda driver: driver.scan(included), limit_ms=limit_ms)
            return {
                "bus": bus,
                "addresses": list(scan.found),
                "hex": [f"{addr:#04x}" for addr in scan.found],
                "owned": _entries(scan.owned, "driver"),
                "skipped": _entries(scan.skipped, "reason"),
            }

        # A scan asks every address: only a scope that has all of them permits it.
        return Planned(f"i2c:{bus}", lambda: (Use("i2c", (f"{bus}:*",)),), run)


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
    texts = {
        "buses": ", ".join(str(spec.bus) for spec in board.of("i2c")) or "none",
        "dangerous": ", ".join(f"{addr:#04x}" for addr in DANGEROUS),
    }
    return [
        listed.tool(
            "List the I2C buses and the devices known to sit on them. Touches no hardware; i2c.scan asks the bus.",
            "the buses",
            "bus, adapter, functionality, devices, …",
        ),
        *tools_of(i2c, texts, read={"effective_risk": i2c.read_risk}),
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
