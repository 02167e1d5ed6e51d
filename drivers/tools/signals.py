"""The tools signal.list, signal.read, signal.set and signal.watch: every value that the board's profile names, by name.

Only the list is a step. The others mean a step of the signal's kind (`Tool.resolve`): admission takes that step in
their place, so that a policy, a rate, a person and the log see `gpio.set`, and there is no second door to an output.
This module knows no kind: which step it is, `NamedSignal` says.
"""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio
from attrs import evolve

from hearth.annotations import open_object
from hearth.drivers import schemas
from hearth.drivers.declare import GRACE_MS, list_tool, signal_rows, tool
from hearth.drivers.schemas import wrong
from hearth.drivers.signals import OFF
from hearth.drivers.units import read_value
from hearth.errors import DeviceError, InvalidParams, has_no_value
from hearth.tools import Done, OneTransaction, Resolved, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.api import Step
    from hearth.drivers.named import BoardSignals, NamedSignal
    from hearth.tools import Args, StepContext, Tool

NAMES: Final = ("signal.list", "signal.read", "signal.watch", "signal.set")
MAX_WATCH_MS: Final = 600_000
MAX_CHANGES: Final = 10_000
MAX_PULSE_MS: Final = 60_000
_EVERY_S: Final = 0.1
"""Seconds between two readings of a signal whose kind does not tell its changes."""


def signal_tools(signals: BoardSignals, offered: Mapping[str, Tool]) -> list[Tool]:
    """Return the tools for the signals of a board; none for a board that names nothing.

    `offered` are the tools of the process: a step of one that is not there is refused, by whatever name it is asked.
    """
    if not signals.everything:
        return []
    given = _Resolver(signals, offered)
    reads = frozenset(one.read().tool for one in signals if "r" in one.access)
    writes = frozenset(name for one in signals if "w" in one.access for name in one.set_by)
    name = schemas.text("the signal's name in signal.list", most=256)
    unit = schemas.text("the unit of the value")
    found = {"name": name, "bus": schemas.text("the id of its bus")}
    asked: schemas.Schema = {
        "description": 'a number in the signal\'s unit or with it ("3.3 V"), 0 or 1, or "off"',
        "anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string", "minLength": 1, "maxLength": 64}],
    }
    steps = [one.read() for one in signals if "r" in one.access]
    risks = [offered[step.tool].risk_of(step.args) for step in steps if step.tool in offered]
    read_only = partial(given.tool, capability="CAP_SIGNAL_READ", targets=reads, risks=risks)
    return [
        _list_tool(signals, reads | writes),
        read_only(
            "signal.read",
            "Read a signal by its name: a line, channel, register or sensor, whatever bus it is on.",
            {"name": name},
            {
                **found,
                "value": _value("null if there is none: see `quality`"),
                "unit?": unit,
                "at": schemas.text("when it was measured"),
                **_QUALITY,
            },
            given.read,
            logged=("name",),
        ),
        read_only(
            "signal.watch",
            "Wait until a signal changes: each change is a progress event. The step ends after `count` changes or "
            "`timeout_ms`, and returns them; running into the timeout is no failure: timed_out says so.",
            {
                "name": name,
                "min_change?": {"type": "number", "minimum": 0, "description": "a smaller change does not count"},
                "count?": schemas.integer("changes to wait for", 1, MAX_CHANGES, default=1),
                "timeout_ms?": schemas.integer("the longest wait in milliseconds", 1, MAX_WATCH_MS, default=10_000),
            },
            {
                **found,
                "value": _value("the last one that was read"),
                "unit?": unit,
                "changes": schemas.listed("the changes, in order", schemas.json_object("value, at")),
                "timed_out": schemas.flag("true if fewer than `count` came in time"),
            },
            given.watch,
            timeout_ms=MAX_WATCH_MS + GRACE_MS,
            logged=("name", "min_change", "count", "timeout_ms"),
        ),
        given.tool(
            "signal.set",
            "Bring an output to a value by its name. It stays so until it is set again; with `duration_ms` it goes "
            "back after that time. When the session ends it goes to its safe state (signal.list).",
            {
                "name": name,
                "value": asked,
                "duration_ms?": schemas.integer("milliseconds; only for outputs that can be pulsed", 1, MAX_PULSE_MS),
            },
            {
                **found,
                "value": _value("what was driven"),
                "unit?": unit,
                "clamped?": schemas.clamped("its place", "by the limits, driven in place of what was asked for"),
            },
            given.set,
            capability="CAP_SIGNAL_RW",
            targets=writes,
            supports_rollback=all(offered[one].supports_rollback for one in writes if one in offered),
            idempotent=all(offered[one].idempotent for one in writes if one in offered),
            logged=("name", "value", "duration_ms"),
        ),
    ]


def _value(description: str) -> schemas.Schema:
    return {"type": ["number", "string", "boolean", "null"], "description": description}


_QUALITY: Final[Mapping[str, schemas.Schema]] = {
    "quality": {
        "enum": ["good", "stale", "none", "failed"],
        "description": "good: measured at `at`; stale: remembered; none, failed: there is no value, and `why`",
    },
    "why?": {"type": ["string", "null"], "description": "why there is no value"},
}


class _Resolver:
    """The steps that calls of the tools for signals mean, on one board."""

    def __init__(self, signals: BoardSignals, offered: Mapping[str, Tool]) -> None:
        self._signals = signals
        self._offered = offered
        self._results: dict[str, schemas.Schema] = {}
        """By tool, the schema of its result."""

    def tool(
        self,
        name: str,
        description: str,
        takes: Mapping[str, schemas.Schema],
        gives: Mapping[str, schemas.Schema],
        resolve: Callable[[Args], Resolved],
        *,
        targets: frozenset[str],
        risks: Sequence[int] = (),
        **more: Any,
    ) -> Tool:
        """Return a tool whose calls mean steps of the tools `targets`; `risks` are those of the steps, if not all."""
        steps = [self._offered[one] for one in targets if one in self._offered]

        def risk(args: Args) -> int:
            try:
                step = resolve(args)
            except InvalidParams:
                return max((one.risk_level for one in steps), default=0)  # refused where it is admitted
            return self._offered[step.tool].risk_of(step.args)

        levels = list(risks) or [level for one in steps for level in (one.least_risk, one.risk_level)] or [0]
        more.setdefault("timeout_ms", max((one.timeout_ms for one in steps), default=1_000))
        self._results[name] = schemas.root(gives)
        return tool(
            name,
            description,
            takes,
            gives,
            risk_level=max(levels),
            effective_risk=risk,
            least_risk=min(levels),
            plain_result=all(one.plain_result for one in steps),
            bus=lambda args: self._offered[(step := resolve(args)).tool].bus(step.args),
            run=_never,
            resolve=resolve,
            resolves_to=targets,
            **more,
        )

    def _find(self, args: Args, letter: str, what: str) -> NamedSignal:
        found = self._signals.find(args["name"])
        if letter in found.access:
            return found
        reserved = "" if found.signal is None else found.signal.reserved
        why = f"it is reserved: {reserved}" if reserved else f"it cannot be {what} (access {found.access!r})"
        raise wrong("/name", f"{found.full}: {why}")

    def _resolved(self, asked: str, args: Args, step: Step, adapt: Callable[[Tool], Tool]) -> Resolved:
        if step.tool not in self._offered:
            raise wrong("/name", f"{args['name']} is a matter of the tool {step.tool}, which is not offered here")
        return Resolved(asked, args, step.tool, step.args, adapt)

    def read(self, args: Args) -> Resolved:
        """signal.read."""
        found = self._find(args, "r", "read")

        def adapt(tool: Tool) -> Tool:
            async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
                return {**self._names(found), **_unit(found), **await _measured(found, tool, ctx, args)}

            return evolve(tool, run=run, result_schema=self._results["signal.read"])

        return self._resolved("signal.read", args, found.read(), adapt)

    def _names(self, found: NamedSignal) -> dict[str, Any]:
        return {"name": self._signals.called(found), "bus": found.bus}

    def watch(self, args: Args) -> Resolved:
        """signal.watch: by the edges that the kind tells, or by reading again and again."""
        found = self._find(args, "r", "read")
        count, timeout_ms = int(args.get("count", 1)), int(args.get("timeout_ms", 10_000))
        edges = found.edges(count, timeout_ms)
        schema = self._results["signal.watch"]

        def by_edges(tool: Tool) -> Tool:
            async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
                seen = _result(await tool.run(ctx, args))
                began = time.time() - time.monotonic()
                changes = [
                    {"value": edge["value"], "at": ctx.now(began + edge["timestamp_ns"] / 1e9)}
                    for edge in seen["edges"]
                ]
                value = changes[-1]["value"] if changes else None
                return {**self._names(found), "value": value, "changes": changes, "timed_out": seen["timed_out"]}

            return evolve(tool, run=run, result_schema=schema)

        def by_readings(tool: Tool) -> Tool:
            async def run(ctx: StepContext, step_args: Args) -> Mapping[str, Any]:
                changes: list[dict[str, Any]] = []
                last = value = (await _measured(found, tool, ctx, step_args))["value"]
                with trio.move_on_after(timeout_ms / 1000):
                    while len(changes) < count:
                        await trio.sleep(max(_EVERY_S, ctx.every_s))
                        measured = await _measured(found, tool, ctx, step_args)
                        value = measured["value"]
                        if _differs(last, value, float(args.get("min_change", 0))):
                            last = value
                            changes.append({"value": value, "at": measured["at"]})
                            ctx.progress({**self._names(found), **changes[-1], **_unit(found)})
                told = {"changes": changes, "timed_out": len(changes) < count}
                return {**self._names(found), "value": value, **_unit(found), **told}

            return evolve(tool, run=run, timeout_ms=MAX_WATCH_MS + GRACE_MS, result_schema=schema)

        if edges is None:
            return self._resolved("signal.watch", args, found.read(), by_readings)
        return self._resolved("signal.watch", args, edges, by_edges)

    def set(self, args: Args) -> Resolved:
        """signal.set."""
        found = self._find(args, "w", "set")
        value = _asked(found, args["value"])
        duration_ms = args.get("duration_ms")
        step = found.write(value) if duration_ms is None else found.pulse(value, int(duration_ms))
        if step is None:
            raise wrong("/duration_ms", f"{found.full} has no pulses; leave it out, and set it back yourself")

        def shaped(result: Mapping[str, Any], args: Args) -> dict[str, Any]:
            clamped = result.get("clamped")
            driven = clamped[-1]["written"] if clamped else found.value(result, args)
            told = {**self._names(found), "value": value if driven is None else driven, **_unit(found)}
            return {**told, "clamped": clamped} if clamped else told

        return self._resolved("signal.set", args, step, partial(_with_result, shaped, self._results["signal.set"]))


def _with_result(
    shaped: Callable[[Mapping[str, Any], Args], dict[str, Any]], schema: schemas.Schema, tool: Tool
) -> Tool:
    """Return a tool that sets an output, with another result; what runs in one transaction still does."""

    def again(value: Mapping[str, Any] | Done, args: Args) -> Mapping[str, Any] | Done:
        return evolve(value, result=shaped(value.result, args)) if isinstance(value, Done) else shaped(value, args)

    run: Any = tool.run

    def make(args: Args) -> Transaction[Any]:
        one = run.make(args)
        return Transaction(one.op, lambda value: again(one.result(value), args), drives=one.drives)

    async def whole(ctx: StepContext, args: Args) -> Mapping[str, Any] | Done:
        return again(await run(ctx, args), args)

    adapted = OneTransaction(make) if isinstance(run, OneTransaction) else whole
    return evolve(tool, run=adapted, result_schema=schema)


def _asked(found: NamedSignal, value: Any) -> Any:
    """Return the value that is asked for, in the signal's unit. Raises InvalidParams."""
    if not isinstance(value, str) or value == OFF:
        return value
    try:
        number = read_value(value, found.unit)
    except ValueError as error:
        raise wrong("/value", f"{found.full}: {error}") from None
    return value if number is None else number


def _differs(last: Any, value: Any, least: float) -> bool:
    if value == last or isinstance(last, bool) or not isinstance(last, (int, float)):
        return bool(value != last)
    return not isinstance(value, (int, float)) or abs(value - last) >= least


def _result(value: Mapping[str, Any] | Done) -> Mapping[str, Any]:
    return value.result if isinstance(value, Done) else value


def _unit(found: NamedSignal) -> dict[str, str]:
    return {"unit": found.unit} if found.unit else {}


async def _measured(found: NamedSignal, tool: Tool, ctx: StepContext, args: Args) -> dict[str, Any]:
    """Return what the step that reads a signal says of it: its value, when it was measured, and its quality."""
    try:
        result = _result(await tool.run(ctx, args))
    except DeviceError as error:
        if not has_no_value(error):
            raise
        return {"value": None, "at": ctx.now(None), "quality": "none", "why": error.message}
    value, at = found.value(result, args), ctx.now(found.measured_at(result))
    quality = {"quality": "good"} if value is not None else {"quality": "none", "why": found.why(result)}
    return {"value": value, "at": at, **quality}


async def _never(_ctx: StepContext, _args: Args) -> Mapping[str, Any]:
    raise AssertionError("admission takes the step that it means")


def _list_tool(signals: BoardSignals, targets: frozenset[str]) -> Tool:
    async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        kind, pattern = args.get("kind"), args.get("name", "*")
        wanted = [
            one
            for one in signals
            if kind in (None, one.kind)
            and any(map(ctx.allows, (one.read().tool, *one.set_by)))
            and any(fnmatchcase(name, pattern) for name in (one.full, one.name, *one.aliases))
        ]
        rows = await signal_rows(ctx, signals, wanted)
        return {"signals": rows[:MOST_LISTED], "truncated": len(rows) > MOST_LISTED}

    kinds = sorted({one.kind for one in signals})
    return evolve(
        list_tool(
            "signal.list",
            "List the signals of the board, whatever bus they are on: names, units, limits, safe states, and the "
            "values that are known without asking the hardware. A good first step.",
            {
                "signals": schemas.listed("one row each", open_object(_ROW)),
                "truncated": schemas.flag("true if there are more: give a pattern"),
            },
            run,
        ),
        capability="CAP_SIGNAL_READ",
        resolves_to=targets,
        params_schema=schemas.root(
            {
                "kind?": {"enum": kinds, "description": "only signals on buses of this kind"},
                "name?": schemas.text('a pattern over names, such as "TANK*"', most=256),
            }
        ),
        plain_result=True,
    )


MOST_LISTED: Final = 500
_ROW: Final[Mapping[str, schemas.Schema]] = {
    "name": {"type": "string"},
    "kind": {"type": "string"},
    "bus": {"type": "string"},
    "unit": {"type": ["string", "null"]},
    "access": {"enum": ["r", "w", "rw", ""], "description": "r: signal.read, w: signal.set"},
    "value": _value("what is known of it, in its unit; signal.read asks the hardware"),
    **_QUALITY,
    "at": {"type": ["string", "null"], "description": "when it was measured; null: not known"},
    "safe": _value("where it goes when the session that drove it ends; null: nowhere"),
    "limit": {"type": "object"},
    "interlocks": {"type": "array", "items": {"type": "object"}},
    "owner": {"type": ["string", "null"], "description": "the session that drove it last"},
    "reserved": {"type": ["string", "null"]},
    "left": {"type": "boolean", "description": "true if a halt does not stop it"},
}
