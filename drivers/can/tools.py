"""The tools hw.can.list, can.send, can.read, can.watch and can.isotp (docs/reference/boards.md).

A message of the board's DBC file goes by its name and its signals, any other by its identifier. A reader waits beside
the bus, so that it can be cancelled and other steps can send at the same time. A session's cursor in the receive queue
moves only in a transaction, so a cancelled reader misses nothing. A watch has a cursor of its own.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, NotRequired, TypeAlias, TypedDict, cast

import trio
from annotated_types import Ge, Le, Len
from attrs import frozen

from hearth.annotations import open_object
from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.can.driver import FD_LENGTHS, MAX_EXTENDED, MAX_ISOTP, Frame, key_name, key_of
from hearth.drivers.declare import DEFAULT_MS, GRACE_MS, LIMIT_MS, Listing, Planned, receive
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import given, read_bytes, shown_bytes, wrong
from hearth.drivers.typed_tools import changes, offers, tools_of
from hearth.tools import Args, Reached, StepContext, Tool, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.drivers.board import Board
    from hearth.drivers.can.dbc import CanDatabase
    from hearth.drivers.can.driver import CanDriver, FrameCursor, TakenFrames
    from hearth.drivers.can.spec import CanSpec

MAX_READ = 256
"""Frames that one read returns, and one progress event has, at most."""
MAX_WATCHED = 10_000_000
MAX_WAIT_MS = 600_000
MAX_SEND_MS = 10_000
MAX_ISOTP_MS = 60_000
MOST_FILTERED = 64
_MOST_LATEST = 64
_MOST_VERDICTS = 4096
"""Identifiers whose permission a reader remembers: a hostile node may send any number of them."""
_HEX = re.compile(r"0[xX][0-9a-fA-F]{1,8}")


def _key(given: int | str, at: str) -> int:
    """Return the key of an identifier: a number, or hex, of which more than three digits stand for 29 bits."""
    number = int(given, 16) if isinstance(given, str) else int(given)
    if number > MAX_EXTENDED:
        raise wrong(at, f"{given} has more than 29 bits")
    return key_of(number, extended=isinstance(given, str) and len(given) > len("0x7ff"))


def _uses(bus: str, key: int, message: str | None) -> Use:
    names = (f"{bus}:{key_name(key)}", f"{bus}:{key & MAX_EXTENDED}")
    return Use("can", names if message is None else (f"{bus}:{message}", *names))


def _identifier(description: str) -> schemas.Schema:
    return schemas.number_or(
        f'{description}, such as 291, "0x123" or "0x18feca00"', 0, MAX_EXTENDED, pattern="^0[xX][0-9a-fA-F]{1,8}$"
    )


_SIGNAL: Final = open_object({"value": {"type": ["number", "string"]}, "unit?": {"type": "string", "maxLength": 64}})
_SIGNALS: Final = {
    "type": "object",
    "maxProperties": 256,
    "description": (
        "the value of each signal of `message` by name, in the signal's unit: a number, the name of a choice, or "
        "{{value, unit}}, which is refused if the unit is another"
    ),
    "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 128}, _SIGNAL]},
}
_ID: Final = _identifier("the identifier: a number, or hex with three digits for 11 bits and eight for 29 bits")
_ONLY: Final = 'only these: identifiers, names of messages, or patterns over names such as "ENGINE_*"; left out: all'
_WANTED: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": MOST_FILTERED,
    "description": _ONLY,
    "items": {"type": ["integer", "string"], "minimum": 0, "maximum": MAX_EXTENDED, "minLength": 1, "maxLength": 128},
}
_FRAME: Final = (
    "id, data, hex, timestamp_us, message, signals {{name: {{value (null: `none` says why), unit, name}}}}, "
    "note (why signals are missing), fd, parts (frames of a J1939 message), error"
)
Bus: TypeAlias = Annotated[str, Len(1, 32), "the bus's name, one of: {buses}"]
Message: TypeAlias = Annotated[str, Len(1, 128), "the name of a message in the bus's DBC file (hw.can.list)"]
ShownId: TypeAlias = Annotated[str, Len(1, 64), "the identifier in hex: three digits for 11 bits, eight for 29 bits"]
Errors: TypeAlias = Annotated[bool, "also return what the interface reports about errors"]
Wanted: TypeAlias = Annotated[list[int | str] | None, _WANTED]
ShownFrame: TypeAlias = Annotated[Any, schemas.json_object(_FRAME)]
Lost: TypeAlias = Annotated[int, Ge(0), "frames that were lost before these: read too late"]
TimedOut: TypeAlias = Annotated[bool, "true if fewer than `count` frames came in time"]
_WAIT: Final = "the longest wait in milliseconds"


class _Sent(TypedDict):
    bus: Bus
    id: ShownId
    data: Annotated[bytes, schemas.ShownBytes("what was sent", most=FD_LENGTHS[-1])]
    message: NotRequired[Message]
    signals: NotRequired[Annotated[Any, schemas.json_object("the signals as they were sent")]]
    note: NotRequired[Annotated[str, "why signals of the message are missing"]]
    fd: NotRequired[Annotated[bool, "true for a CAN FD frame"]]
    bitrate_switch: NotRequired[Annotated[bool, "true if its data was sent faster"]]


class _Read(TypedDict):
    bus: Bus
    frames: Annotated[list[ShownFrame], "the frames, in order"]
    timed_out: TimedOut
    lost: Lost


class _Watched(TypedDict):
    bus: Bus
    seen: Annotated[int, Ge(0), Le(MAX_WATCHED), "frames that were published"]
    lost: Lost
    timed_out: TimedOut
    latest: Annotated[list[ShownFrame], "the newest frame of each identifier"]


class _Answered(TypedDict):
    bus: Bus
    tx: ShownId
    rx: ShownId
    data: Annotated[bytes, schemas.ShownBytes("the answer", most=MAX_ISOTP)]
    timed_out: Annotated[bool, "true if no answer came in time; data is empty then"]


_sends = partial(changes, capability="CAP_CAN_RW")
_hears = partial(offers, capability="CAP_CAN_READ", risk_level=1, timeout_ms=MAX_WAIT_MS + GRACE_MS)


def _raw_frame(key: int, data: bytes, fd: bool | None, bitrate_switch: bool) -> Frame:
    """Return a frame with these bytes. Raises InvalidParams for a length that no frame has."""
    fd = len(data) > 8 if fd is None else fd
    if len(data) not in (FD_LENGTHS if fd else FD_LENGTHS[:9]):
        fits = "0 to 8, 12, 16, 20, 24, 32, 48 or 64 bytes" if fd else "0 to 8 bytes"
        raise wrong("/data", f"a {'CAN FD' if fd else 'classic'} frame has {fits}, not {len(data)}")
    return Frame(key, data, fd=fd, bitrate_switch=fd and bitrate_switch)


class _Can:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def bus(self, bus: str) -> str:
        """Return the id of a bus."""
        return self._board.bus("can", "bus", bus)

    def _database(self, bus: str) -> CanDatabase:
        driver = cast("CanDriver", self._board.drivers[self.bus(bus)])
        return cast("CanDatabase", driver.rules)

    async def listed(self, ctx: StepContext, _args: Args) -> Mapping[str, Any]:
        """hw.can.list."""
        answer: dict[str, Any] = await ctx.transact(listed)
        for bus in answer["buses"]:
            name, database = bus["bus"], self._database(bus["bus"])
            if not database.loaded:
                # The shipped file, whose reader takes a while to import, and may not be installed.
                await trio.to_thread.run_sync(database.try_load)
            bus["messages"] = [
                one for one in database.to_json() if ctx.permits(_uses(name, _key(one["id"], ""), one["message"]))
            ]
            if database.problem is not None:
                bus["problem"] = database.problem
            if database.flaws:
                bus["flaws"] = [
                    one.to_json()
                    for one in database.flaws
                    if one.message is None or ctx.permits(Use("can", (f"{name}:{one.message}",)))
                ]
        return answer

    @_sends("can.send", timeout_ms=2 * MAX_SEND_MS + GRACE_MS, logged=("bus", "id", "message", "timeout_ms"))
    def send(
        self,
        bus: Bus,
        message: Message | None = None,
        signals: Annotated[dict[str, Any] | None, _SIGNALS] = None,
        id_: Annotated[int | str | None, _ID] = None,
        data: Annotated[bytes, schemas.Bytes("the bytes of the frame", least=0, most=FD_LENGTHS[-1])] | None = None,
        fd: Annotated[bool, "a CAN FD frame; left out: if there are more than 8 bytes"] | None = None,
        bitrate_switch: Annotated[bool, "send a CAN FD frame's data faster"] = True,
        timeout_ms: Annotated[int, Ge(1), Le(MAX_SEND_MS), "the longest wait for the acknowledgement"] = DEFAULT_MS,
    ) -> Planned[_Sent]:
        """Send one CAN frame: a `message` of the DBC file with the values of its `signals`, or bytes with an `id`.

        The values are in the units of the signals. It ends when another node has acknowledged the frame. Values outside
        the bounds of the DBC file or of the board profile are refused, in raw bytes too.
        """
        database = self._database(bus)
        schemas.only_one(given(message=message, id=id_), ("message", "id"))
        if signals is None:
            key = database.key(message) if message is not None else _key(cast("int | str", id_), "/id")
            frame = _raw_frame(key, read_bytes({}) if data is None else data, fd, bitrate_switch)
        elif message is None:
            raise wrong("/signals", "signals belong to a `message`; with `id` give `data`, `hex` or `text`")
        elif data is not None:
            raise wrong("/signals", "give signals or bytes, not both")
        else:
            frame = database.frame(message, signals)
        database.check(frame)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: CanDriver) -> Any:
                return driver.send(frame, timeout_s=timeout_ms / 1000, reader=ctx.session_id)

            await ctx.transact(op, limit_ms=2 * timeout_ms + LIMIT_MS)
            return {"bus": bus, **self._shown(bus, frame)}

        # Raw bytes never count as the message.
        return Planned(
            self.bus(bus),
            lambda: (_uses(bus, frame.key, message),),
            run,
            reaches=lambda: [(self.bus(bus), f"{message}.{signal}") for signal in signals or ()],
        )

    def _filter(self, bus: str, named: Sequence[int | str] | None) -> frozenset[int] | None:
        if named is None:
            return None
        keys: set[int] = set()
        for index, one in enumerate(named):
            if isinstance(one, str) and not _HEX.fullmatch(one):
                keys.update(self._database(bus).keys(one))
            else:
                keys.add(_key(one, f"/filter/{index}"))
        return frozenset(keys)

    def read_uses(self, args: Args) -> Sequence[Use]:
        """Return what a filter names; without one a read leaves out what the policy does not permit."""
        bus, database = args["bus"], self._database(args["bus"])
        return [_uses(bus, key, database.name_of(key)) for key in sorted(self._filter(bus, args.get("filter")) or ())]

    def reaches(self, args: Args) -> Sequence[Reached]:
        """Return the signals of the messages that a filter names; none where it names something else."""
        bus, database = self.bus(args["bus"]), self._database(args["bus"])
        names = [database.name_of(key) for key in sorted(self._filter(args["bus"], args.get("filter")) or ())]
        signals = {name: database.message(name).parts for name in names if name is not None}
        return () if None in names else [(bus, f"{name}.{one}") for name in signals for one in signals[name]]

    def _wanted(self, ctx: StepContext, bus: str, named: Sequence[int | str] | None) -> Callable[[int], bool]:
        keys, database = self._filter(bus, named), self._database(bus)
        names = [one for one in named or () if isinstance(one, str) and not _HEX.fullmatch(one)]
        verdicts: dict[int, bool] = {}

        def wanted(key: int) -> bool:
            verdict = verdicts.get(key)
            if verdict is None:
                fits = keys is None or key in keys or database.fits(key, names)
                verdict = fits and ctx.permits(_uses(bus, key, database.name_of(key)))
                if len(verdicts) >= _MOST_VERDICTS:
                    verdicts.clear()
                verdicts[key] = verdict
            return verdict

        return wanted

    @_hears("can.read", logged=("bus", "count", "timeout_ms"))
    async def read(
        self,
        ctx: StepContext,
        bus: Bus,
        filter_: Wanted = None,
        count: Annotated[int, Ge(1), Le(MAX_READ), "frames to wait for"] = 1,
        timeout_ms: Annotated[int, Ge(0), Le(MAX_WAIT_MS), _WAIT] = DEFAULT_MS,
        errors: Errors = False,
    ) -> _Read:
        """Read CAN frames that have come since this session's last read, with signals in their units.

        Wait for more until there are `count` or `timeout_ms` has passed. Each session has a receive queue of its own,
        which begins at its first use of the bus; `lost` counts what it missed. Frames that `filter` leaves out are
        skipped. Running into the timeout is no failure: timed_out says so.
        """
        wanted = self._wanted(ctx, bus, filter_)
        queue = cast("CanDriver", self._board.drivers[self.bus(bus)]).queue

        async def take(partial: bool) -> TakenFrames:
            taken: TakenFrames = await ctx.transact(
                lambda driver: driver.take(wanted, count, partial=partial, errors=errors, reader=ctx.session_id),
                limit_ms=LIMIT_MS,
            )
            return taken

        async def arrival(_taken: TakenFrames) -> None:
            await queue.wait(queue.cursor(ctx.session_id), wanted, count, errors=errors)

        taken = await receive(timeout_ms / 1000, take, arrival)
        frames = [self._shown(bus, frame) for frame in taken.frames]
        return {"bus": bus, "frames": frames, "timed_out": not taken.complete, "lost": taken.lost}

    @_hears("can.watch", logged=("bus", "count", "timeout_ms", "every_ms"))
    async def watch(
        self,
        ctx: StepContext,
        bus: Bus,
        filter_: Wanted = None,
        count: Annotated[int, Ge(1), Le(MAX_WATCHED), "frames to wait for"] = MAX_READ,
        timeout_ms: Annotated[int, Ge(1), Le(MAX_WAIT_MS), _WAIT] = 10_000,
        every_ms: Annotated[int, Ge(10), Le(10_000), "milliseconds between two events"] = 100,
        errors: Errors = False,
    ) -> _Watched:
        """Stream CAN frames, from now on, as progress events: each has the frames of the last `every_ms`.

        The step ends after `count` frames or `timeout_ms`, whichever is first, and returns the newest frame of each
        identifier (of {_MOST_LATEST} at most). It takes nothing from can.read.
        """
        wanted = self._wanted(ctx, bus, filter_)
        queue = cast("CanDriver", self._board.drivers[self.bus(bus)]).queue
        cursor: FrameCursor = await ctx.transact(lambda driver: driver.follow(), limit_ms=LIMIT_MS)
        seen = lost = 0
        latest: dict[int, Frame] = {}

        def publish() -> int:
            """Publish the frames that are there, at most as many as one event may have; return their number."""
            nonlocal seen, lost
            most = min(MAX_READ, count - seen)
            taken = queue.take(cursor, wanted, most, partial=True, errors=errors)
            seen += len(taken.frames)
            lost += taken.lost
            for frame in taken.frames:
                latest.pop(frame.key, None)
                latest[frame.key] = frame
            while len(latest) > _MOST_LATEST:
                del latest[next(iter(latest))]
            if taken.frames or taken.lost:
                frames = [self._shown(bus, frame) for frame in taken.frames]
                ctx.progress({"bus": bus, "frames": frames, "seen": seen, "lost": lost})
            return len(taken.frames)

        with trio.move_on_after(timeout_ms / 1000) as watching:
            while seen < count:
                await queue.wait(cursor, wanted, 1, errors=errors)
                # In groups: an event for each frame would take more time than the frames.
                await trio.sleep(every_ms / 1000)
                while seen < count and publish() == MAX_READ:
                    await trio.lowlevel.checkpoint()
        if watching.cancelled_caught:
            for _ in range(-(-queue.capacity // MAX_READ)):
                if seen == count or publish() < MAX_READ:
                    break
                await trio.lowlevel.checkpoint()
        newest = [self._shown(bus, frame) for frame in latest.values()]
        return {"bus": bus, "seen": seen, "lost": lost, "timed_out": seen < count, "latest": newest}

    def _shown(self, bus: str, frame: Frame) -> dict[str, Any]:
        """Return a frame as JSON, with its signals where the DBC file has them."""
        shown: dict[str, Any] = {"timestamp_us": frame.timestamp_us} if frame.timestamp_us else {}
        if frame.error:
            return {**shown, "error": list(frame.error)}
        data = shown_bytes(frame.data)
        data.pop("text", None)
        shown |= {"id": key_name(frame.key), **data}
        if frame.fd:
            shown |= {"fd": True, "bitrate_switch": frame.bitrate_switch}
        if frame.parts:
            shown["parts"] = frame.parts
        if frame.remote:
            shown |= {"remote": True, "length": frame.asked}
        return {**shown, **self._database(bus).decode(frame)}

    @_sends("can.isotp", timeout_ms=MAX_ISOTP_MS + GRACE_MS, logged=("bus", "tx", "rx", "timeout_ms"))
    def isotp(
        self,
        bus: Bus,
        tx: Annotated[int | str, _identifier("the identifier of the request")],
        rx: Annotated[int | str, _identifier("the identifier of the answer")],
        data: Annotated[bytes, schemas.Bytes("the message", most=MAX_ISOTP)],
        timeout_ms: Annotated[
            int, Ge(1), Le(MAX_ISOTP_MS), "the longest wait for the answer in milliseconds"
        ] = DEFAULT_MS,
        padding: Annotated[int, Ge(0), Le(255), "fill every frame up to 8 bytes with this byte"] | None = None,
        fd: Annotated[bool, "use CAN FD frames of up to 64 bytes"] = False,
    ) -> Planned[_Answered]:
        """Send a message of up to {MAX_ISOTP} bytes by ISO-TP with the identifier `tx`; return the answer with `rx`.

        ISO-TP (ISO 15765-2) is what UDS and OBD-II use. Running into the timeout is no failure: timed_out says so. The
        bus is taken for the whole time.
        """
        sent = _key(tx, "/tx")
        self._database(bus).check_isotp(sent)
        answered = _key(rx, "/rx")
        if answered == sent:
            raise wrong("/rx", "it is the same as tx; the other node answers with another identifier")
        echo = {"bus": bus, "tx": key_name(sent), "rx": key_name(answered)}
        options: dict[str, Any] = {"padding": padding, "fd": fd}

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: CanDriver) -> Any:
                return driver.isotp(sent, answered, data, timeout_s=timeout_ms / 1000, reader=ctx.session_id, **options)

            answer: bytes | None = await ctx.transact(op, limit_ms=timeout_ms + 2 * LIMIT_MS)
            return {**echo, **shown_bytes(answer or b""), "timed_out": answer is None}

        return Planned(self.bus(bus), lambda: [_uses(bus, key, None) for key in (sent, answered)], run)


def _row(spec: CanSpec, described: Mapping[str, Any], _path: dict[str, Any]) -> dict[str, Any]:
    """Return a bus for hw.can.list, without its messages; touches no hardware."""
    described = {key: value for key, value in described.items() if key != "kind"}
    optional = {
        "bitrate": spec.bitrate,
        "filters": [{"id": one.id, "mask": one.mask, "extended": one.extended} for one in spec.filters] or None,
        "dbc": None if spec.dbc is None else Path(spec.dbc).name,
    }
    shown = {key: value for key, value in optional.items() if value is not None}
    return {**described, "id": f"can:{spec.bus}", "driven": True, "fd": spec.fd, "scope": spec.scope, **shown}


listed: Final = Listing("can", "buses", _row)


def can_tools(board: Board) -> list[Tool]:
    """Return the can tools for a board, in the default order."""
    can = _Can(board)
    names = ", ".join(spec.bus for spec in board.of("can")) or "none"
    heard = {"bus": lambda args: can.bus(args["bus"]), "uses": can.read_uses, "reaches": can.reaches}
    return [
        listed.tool(
            "List the CAN buses: interface, state of the controller, filters, and the messages of the bus's DBC file "
            "with their signals, units, bounds and choices. Touches no hardware.",
            "the buses",
            "bus, interface, state, errors, messages, …",
            run=can.listed,
            timeout_ms=10_000,
        ),
        *tools_of(can, {"buses": names}, read=heard, watch=heard),
    ]


_FRAME_MS: Final = 1_000
"""How long reading a signal waits for a frame that has it."""


@frozen(eq=False, kw_only=True)
class MessageSignal(NamedSignal):
    """A signal of a message as a signal. `others` has what a frame says of the other signals of the message."""

    sets: ClassVar[tuple[str, ...]] = ("can.send",)
    missing: ClassVar[str] = f"no frame with it came within {_FRAME_MS} ms"

    others: Mapping[str, float]

    @property
    def _parts(self) -> tuple[str, str]:
        message, _, signal = self.name.partition(".")
        return message, signal

    def read(self) -> Step:
        """See NamedSignal. It waits for the next frame that has it."""
        where = {"bus": self.bus.partition(":")[2], "filter": [self._parts[0]]}
        return Step("can.watch", {**where, "count": 1, "timeout_ms": _FRAME_MS, "every_ms": 10})

    def write(self, value: Any) -> Step:
        """See NamedSignal. The message goes with its other signals at the values that the profile gives."""
        message, signal = self._parts
        signals = {**self.others, signal: value}
        return Step("can.send", {"bus": self.bus.partition(":")[2], "message": message, "signals": signals})

    def value(self, result: Mapping[str, Any], args: Args) -> Any:
        """See NamedSignal."""
        del args
        return self._shown(result).get("value")

    def why(self, result: Mapping[str, Any]) -> str:
        """See NamedSignal."""
        said = self._shown(result).get("none")
        return self.missing if said is None else f"its frame says: {said}"

    def _shown(self, result: Mapping[str, Any]) -> Mapping[str, Any]:
        shown = result["latest"][-1:] if "latest" in result else [result]
        found: Mapping[str, Any] = shown[0].get("signals", {}).get(self._parts[1], {}) if shown else {}
        return found

    def measured_at(self, result: Mapping[str, Any]) -> float | None:
        """See NamedSignal."""
        stamps = [frame["timestamp_us"] / 1e6 for frame in result["latest"][-1:] if "timestamp_us" in frame]
        return stamps[0] if stamps else None


def can_signals(board: Board) -> Iterator[NamedSignal]:
    """Yield the signals of messages that the profile of a board names as signals."""
    for spec in board.of("can"):
        database = cast("CanDatabase", cast("CanDriver", board.drivers[f"can:{spec.bus}"]).rules)
        signals = board.outputs[f"can:{spec.bus}"].signals
        rest = {**database.idle, **database.safe}
        for name in dict.fromkeys((*database.limits, *rest, *database.codes)):
            message = name.partition(".")[0]
            others = {one.partition(".")[2]: value for one, value in rest.items() if one.startswith(f"{message}.")}
            yield MessageSignal(
                bus=f"can:{spec.bus}",
                name=name,
                unit=database.part(name).unit or "",
                signal=signals.get(name),
                access="rw",
                use=_uses(spec.bus, database.key(message), message),
                others=others,
            )
