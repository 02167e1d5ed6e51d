"""The tools hw.can.list, can.send, can.read, can.watch and can.isotp (docs/reference/boards.md).

A message of the board's DBC file goes by its name and its signals, any other by its identifier. A reader waits beside
the bus, so that it can be cancelled and other steps can send at the same time. A session's cursor in the receive queue
moves only in a transaction, so a cancelled reader misses nothing. A watch has a cursor of its own.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import trio
from attrs import frozen

from hearth.api import Step
from hearth.drivers import schemas
from hearth.drivers.can.driver import FD_LENGTHS, MAX_EXTENDED, MAX_ISOTP, Frame, key_name, key_of
from hearth.drivers.declare import DEFAULT_MS, GRACE_MS, LIMIT_MS, Listing, Planned, changing, receive, tool
from hearth.drivers.named import NamedSignal
from hearth.drivers.schemas import read_bytes, shown_bytes, wrong
from hearth.tools import Args, Reached, StepContext, Tool, Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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


class _Can:
    """The tools of one board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def bus(self, args: Args) -> str:
        """Return the id of a bus."""
        return self._board.bus("can", "bus", args["bus"])

    def _database(self, bus: str) -> CanDatabase:
        driver = cast("CanDriver", self._board.drivers[self._board.bus("can", "bus", bus)])
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

    def _frame(self, args: Args) -> Frame:
        database = self._database(args["bus"])
        name = schemas.only_one(args, ("message", "id"))
        if name == "message" and "signals" in args:
            if {"data", "hex", "text"} & args.keys():
                raise wrong("/signals", "give signals or bytes, not both")
            return database.frame(args["message"], args["signals"])
        if "signals" in args:
            raise wrong("/signals", "signals belong to a `message`; with `id` give `data`, `hex` or `text`")
        key = _key(args["id"], "/id") if name == "id" else database.key(args["message"])
        data = read_bytes(args, least=0, most=FD_LENGTHS[-1])
        fd = bool(args.get("fd", len(data) > 8))
        if len(data) not in (FD_LENGTHS if fd else FD_LENGTHS[:9]):
            fits = "0 to 8, 12, 16, 20, 24, 32, 48 or 64 bytes" if fd else "0 to 8 bytes"
            raise wrong("/data", f"a {'CAN FD' if fd else 'classic'} frame has {fits}, not {len(data)}")
        return Frame(key, data, fd=fd, bitrate_switch=fd and bool(args.get("bitrate_switch", True)))

    def send(self, args: Args) -> Planned:
        """can.send. Raises InvalidParams, LimitViolated, PermissionDenied for a frame that may not go."""
        bus, frame, timeout_ms = self.bus(args), self._frame(args), args.get("timeout_ms", DEFAULT_MS)
        self._database(args["bus"]).check(frame)

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: CanDriver) -> Any:
                return driver.send(frame, timeout_s=timeout_ms / 1000, reader=ctx.session_id)

            await ctx.transact(op, limit_ms=2 * timeout_ms + LIMIT_MS)
            return {"bus": args["bus"], **self._shown(args["bus"], frame)}

        # Raw bytes never count as the message.
        return Planned(
            bus,
            lambda: (_uses(args["bus"], frame.key, args.get("message")),),
            run,
            reaches=lambda: [(bus, f"{args['message']}.{signal}") for signal in args.get("signals", ())],
        )

    def _filter(self, args: Args) -> frozenset[int] | None:
        given: Iterable[int | str] | None = args.get("filter")
        if given is None:
            return None
        keys: set[int] = set()
        for index, one in enumerate(given):
            if isinstance(one, str) and not _HEX.fullmatch(one):
                keys.update(self._database(args["bus"]).keys(one))
            else:
                keys.add(_key(one, f"/filter/{index}"))
        return frozenset(keys)

    def read_uses(self, args: Args) -> Sequence[Use]:
        """Return what a filter names; without one a read leaves out what the policy does not permit."""
        bus, database = args["bus"], self._database(args["bus"])
        return [_uses(bus, key, database.name_of(key)) for key in sorted(self._filter(args) or ())]

    def reaches(self, args: Args) -> Sequence[Reached]:
        """Return the signals of the messages that a filter names; none where it names something else."""
        bus, database = self.bus(args), self._database(args["bus"])
        names = [database.name_of(key) for key in sorted(self._filter(args) or ())]
        signals = {name: database.message(name).signals for name in names if name is not None}
        return () if None in names else [(bus, f"{name}.{one.name}") for name in signals for one in signals[name]]

    def _wanted(self, ctx: StepContext, args: Args) -> Callable[[int], bool]:
        keys, bus, database = self._filter(args), args["bus"], self._database(args["bus"])
        names = [one for one in args.get("filter", ()) if isinstance(one, str) and not _HEX.fullmatch(one)]
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

    async def read(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """can.read."""
        wanted, count = self._wanted(ctx, args), int(args.get("count", 1))
        errors = bool(args.get("errors", False))
        queue = cast("CanDriver", self._board.drivers[self.bus(args)]).queue

        async def take(partial: bool) -> TakenFrames:
            taken: TakenFrames = await ctx.transact(
                lambda driver: driver.take(wanted, count, partial=partial, errors=errors, reader=ctx.session_id),
                limit_ms=LIMIT_MS,
            )
            return taken

        async def arrival(_taken: TakenFrames) -> None:
            await queue.wait(queue.cursor(ctx.session_id), wanted, count, errors=errors)

        taken = await receive(args.get("timeout_ms", DEFAULT_MS) / 1000, take, arrival)
        frames = [self._shown(args["bus"], frame) for frame in taken.frames]
        return {"bus": args["bus"], "frames": frames, "timed_out": not taken.complete, "lost": taken.lost}

    async def watch(self, ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """can.watch."""
        bus, wanted, count = args["bus"], self._wanted(ctx, args), int(args.get("count", MAX_READ))
        errors, every_s = bool(args.get("errors", False)), args.get("every_ms", 100) / 1000
        queue = cast("CanDriver", self._board.drivers[self.bus(args)]).queue
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

        with trio.move_on_after(int(args.get("timeout_ms", 10_000)) / 1000) as watching:
            while seen < count:
                await queue.wait(cursor, wanted, 1, errors=errors)
                # In groups: an event for each frame would take more time than the frames.
                await trio.sleep(every_s)
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
        if frame.remote:
            shown |= {"remote": True, "length": frame.asked}
        return {**shown, **self._database(bus).decode(frame)}

    def isotp(self, args: Args) -> Planned:
        """can.isotp. Raises InvalidParams, and PermissionDenied for an identifier of a message."""
        bus, data, timeout_ms = self.bus(args), read_bytes(args, most=MAX_ISOTP), args.get("timeout_ms", DEFAULT_MS)
        tx = _key(args["tx"], "/tx")
        self._database(args["bus"]).check_isotp(tx)
        rx = _key(args["rx"], "/rx")
        if rx == tx:
            raise wrong("/rx", "it is the same as tx; the other node answers with another identifier")
        echo = {"bus": args["bus"], "tx": key_name(tx), "rx": key_name(rx)}
        options: dict[str, Any] = {"padding": args.get("padding"), "fd": bool(args.get("fd", False))}

        async def run(ctx: StepContext) -> Mapping[str, Any]:
            def op(driver: CanDriver) -> Any:
                return driver.isotp(tx, rx, data, timeout_s=timeout_ms / 1000, reader=ctx.session_id, **options)

            answer: bytes | None = await ctx.transact(op, limit_ms=timeout_ms + 2 * LIMIT_MS)
            return {**echo, **shown_bytes(answer or b""), "timed_out": answer is None}

        return Planned(bus, lambda: [_uses(args["bus"], key, None) for key in (tx, rx)], run)


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
    names = [spec.bus for spec in board.of("can")]
    bus = schemas.text(f"the bus's name, one of: {', '.join(names) or 'none'}", most=32)
    ident = _identifier("the identifier: a number, or hex with three digits for 11 bits and eight for 29 bits")
    shown_id = schemas.text("the identifier in hex: three digits for 11 bits, eight for 29 bits")
    message = schemas.text("the name of a message in the bus's DBC file (hw.can.list)", most=128)
    signal = schemas.object_of({"value": {"type": ["number", "string"]}, "unit?": {"type": "string", "maxLength": 64}})
    signals: schemas.Schema = {
        "type": "object",
        "maxProperties": 256,
        "description": (
            "the value of each signal of `message` by name, in the signal's unit: a number, the name of a choice, or "
            "{value, unit}, which is refused if the unit is another"
        ),
        "additionalProperties": {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 128}, signal]},
    }
    wanted = schemas.listed(
        'only these: identifiers, names of messages, or patterns over names such as "ENGINE_*"; left out: all',
        {"type": ["integer", "string"], "minimum": 0, "maximum": MAX_EXTENDED, "minLength": 1, "maxLength": 128},
    )
    wanted = {**wanted, "minItems": 1, "maxItems": MOST_FILTERED}
    frame = schemas.json_object("id, data, hex, timestamp_us, message, signals {name: {value, unit, name}}, fd, error")
    frames = schemas.listed("the frames, in order", frame)
    lost = {"type": "integer", "minimum": 0, "description": "frames that were lost before these: read too late"}
    errors = schemas.flag("also return what the interface reports about errors", default=False)
    in_time = schemas.flag("true if fewer than `count` frames came in time")
    wait = "the longest wait in milliseconds"
    reads = partial(
        tool,
        capability="CAP_CAN_READ",
        risk_level=1,
        timeout_ms=MAX_WAIT_MS + GRACE_MS,
        bus=can.bus,
        uses=can.read_uses,
        reaches=can.reaches,
    )
    sends = changing("CAP_CAN_RW")
    return [
        listed.tool(
            "List the CAN buses: interface, state of the controller, filters, and the messages of the bus's DBC file "
            "with their signals, units, bounds and choices. Touches no hardware.",
            "the buses",
            "bus, interface, state, errors, messages, …",
            run=can.listed,
            timeout_ms=10_000,
        ),
        sends(
            "can.send",
            "Send one CAN frame: a `message` of the DBC file with the values of its `signals` in their units, or "
            "bytes with an `id`. It ends when another node has acknowledged the frame. Values outside the bounds "
            "of the DBC file or of the board profile are refused, in raw bytes too.",
            {
                "bus": bus,
                "message?": message,
                "signals?": signals,
                "id?": ident,
                **schemas.bytes_args("data", "the bytes of the frame", least=0, most=FD_LENGTHS[-1]),
                "fd?": schemas.flag("a CAN FD frame; left out: if there are more than 8 bytes"),
                "bitrate_switch?": schemas.flag("send a CAN FD frame's data faster", default=True),
                "timeout_ms?": schemas.integer(
                    "the longest wait for the acknowledgement", 1, MAX_SEND_MS, default=DEFAULT_MS
                ),
            },
            {
                "bus": bus,
                "id": shown_id,
                **schemas.bytes_result("what was sent", most=FD_LENGTHS[-1]),
                "message?": message,
                "signals?": schemas.json_object("the signals as they were sent"),
                "fd?": schemas.flag("true for a CAN FD frame"),
                "bitrate_switch?": schemas.flag("true if its data was sent faster"),
            },
            can.send,
            timeout_ms=2 * MAX_SEND_MS + GRACE_MS,
            logged=("bus", "id", "message", "timeout_ms"),
        ),
        reads(
            "can.read",
            "Read CAN frames that have come since this session's last read, with signals in their units, and wait "
            "for more until there are `count` or `timeout_ms` has passed. Each session has a receive queue of its "
            "own, which begins at its first use of the bus; `lost` counts what it missed. Frames that `filter` "
            "leaves out are skipped. Running into the timeout is no failure: timed_out says so.",
            {
                "bus": bus,
                "filter?": wanted,
                "count?": schemas.integer("frames to wait for", 1, MAX_READ, default=1),
                "timeout_ms?": schemas.integer(wait, 0, MAX_WAIT_MS, default=DEFAULT_MS),
                "errors?": errors,
            },
            {"bus": bus, "frames": frames, "timed_out": in_time, "lost": lost},
            logged=("bus", "count", "timeout_ms"),
            run=can.read,
        ),
        reads(
            "can.watch",
            "Stream CAN frames, from now on, as progress events: each has the frames of the last `every_ms`. The "
            "step ends after `count` frames or `timeout_ms`, whichever is first, and returns the newest frame of "
            f"each identifier (of {_MOST_LATEST} at most). It takes nothing from can.read.",
            {
                "bus": bus,
                "filter?": wanted,
                "count?": schemas.integer("frames to wait for", 1, MAX_WATCHED, default=MAX_READ),
                "timeout_ms?": schemas.integer(wait, 1, MAX_WAIT_MS, default=10_000),
                "every_ms?": schemas.integer("milliseconds between two events", 10, 10_000, default=100),
                "errors?": errors,
            },
            {
                "bus": bus,
                "seen": schemas.integer("frames that were published", 0, MAX_WATCHED),
                "lost": lost,
                "timed_out": in_time,
                "latest": schemas.listed("the newest frame of each identifier", frame),
            },
            logged=("bus", "count", "timeout_ms", "every_ms"),
            run=can.watch,
        ),
        sends(
            "can.isotp",
            f"Send a message of up to {MAX_ISOTP} bytes by ISO-TP (ISO 15765-2, as UDS and OBD-II use it) with the "
            "identifier `tx` and return the answer that comes with `rx`. Running into the timeout is no failure: "
            "timed_out says so. The bus is taken for the whole time.",
            {
                "bus": bus,
                "tx": _identifier("the identifier of the request"),
                "rx": _identifier("the identifier of the answer"),
                **schemas.bytes_args("data", "the message", most=MAX_ISOTP),
                "timeout_ms?": schemas.integer(
                    "the longest wait for the answer in milliseconds", 1, MAX_ISOTP_MS, default=DEFAULT_MS
                ),
                "padding?": schemas.integer("fill every frame up to 8 bytes with this byte", 0, 255),
                "fd?": schemas.flag("use CAN FD frames of up to 64 bytes", default=False),
            },
            {
                "bus": bus,
                "tx": shown_id,
                "rx": shown_id,
                **schemas.bytes_result("the answer", most=MAX_ISOTP),
                "timed_out": schemas.flag("true if no answer came in time; data is empty then"),
            },
            can.isotp,
            timeout_ms=MAX_ISOTP_MS + GRACE_MS,
            logged=("bus", "tx", "rx", "timeout_ms"),
        ),
    ]


def _identifier(description: str) -> schemas.Schema:
    return schemas.number_or(
        f'{description}, such as 291, "0x123" or "0x18feca00"', 0, MAX_EXTENDED, pattern="^0[xX][0-9a-fA-F]{1,8}$"
    )


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
        for name in dict.fromkeys((*database.limits, *rest)):
            message, _, signal = name.partition(".")
            unit = database.message(message).get_signal_by_name(signal).unit or ""
            others = {one.partition(".")[2]: value for one, value in rest.items() if one.startswith(f"{message}.")}
            yield MessageSignal(
                bus=f"can:{spec.bus}",
                name=name,
                unit=unit,
                signal=signals.get(name),
                access="rw",
                use=_uses(spec.bus, database.key(message), message),
                others=others,
            )
