"""The events of the daemon for `hearth top`: followed over connections that are opened again, and as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth._version import __version__
from hearth.cli import common
from hearth.cli.task_view import brief
from hearth.errors import CarrierError, SessionInvalid

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hearth.aio import Session
    from hearth.transport.address import Address

from hearth.cli.status_view import halted_words, owner

SILENCE = 5.0
"""Seconds without an event after which the daemon is asked whether the session is still there."""
RETRY = 1.0
"""Seconds between two attempts to reach a daemon whose connection has ended."""


async def follow(
    address: Address, connected: Callable[[Session | None, str], None]
) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the events of the daemon, over connections that are made anew; call `connected` at each change.

    `connected` gets the session, or None with the reason. Raises CarrierError if the first attempt fails, and RpcError.
    """
    import asyncio

    from hearth import aio

    last: dict[str, Any] = {}
    first = True
    while True:
        try:
            async with aio.connect(address) as client:
                opened = await client.open_session(client_name="hearth top", client_version=__version__)
                first = False
                connected(opened, f"connected to {address.place}")
                events = opened.observe(**last)
                while True:
                    try:
                        async with asyncio.timeout(SILENCE):
                            event = await anext(events)
                    except TimeoutError:
                        # A session that the daemon has closed gets no more events, and is not told.
                        await opened.observe_state()
                        continue
                    yield event
                    last = {"stream": event["stream"], "from_seq": event["seq"] + 1}
        except SessionInvalid:
            reason = "the daemon has closed the session"
        except CarrierError as error:
            if first:
                raise
            reason = str(error)
        connected(None, reason)
        await asyncio.sleep(RETRY)


def event_lines(event: Mapping[str, Any]) -> list[str]:
    """Return an event of the stream as lines of time of day (UTC), kind and words: one for each record and reading."""
    kind = event["kind"]
    if kind == "records":
        return [_line(record["ts"], record["event"], _record_words(record)) for record in event["records"]]
    if kind == "readings":
        return [_line(one["ts"], "reading", _reading_words(one)) for one in event["readings"]]
    return [_line(event["ts"], kind, _WORDS[kind](event) if kind in _WORDS else "")]


def _line(ts: str, kind: str, words: str) -> str:
    return common.clean(f"{ts[11:23]}  {kind.ljust(16)}  {words}".rstrip()).replace("\n", " ")


def _snapshot_words(event: Mapping[str, Any]) -> str:
    state, missed = event["state"], event["missed"]
    counts = ", ".join(f"{len(state[name])} {name}" for name in ("lines", "buses", "sessions", "tasks", "approvals"))
    return counts + (f"; {missed} events were missed" if missed else "")


def _reading_words(reading: Mapping[str, Any]) -> str:
    return f"{reading['tool']} {brief(reading['args'])}: {brief(reading['values'])}"


def _record_words(record: Mapping[str, Any]) -> str:
    record = {name: value for name, value in record.items() if name not in ("event", "ts")}
    steps = record.pop("steps", ())
    if steps and isinstance(steps[0], dict):
        record["steps"] = "; ".join(f"{step['tool']} {brief(step.get('args') or {})}".rstrip() for step in steps)
    elif steps:
        record["steps"] = steps
    return brief({name: value for name, value in record.items() if not name.endswith("_hash")})


def _signals_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{one['bus']} {one['channel']}={common.scalar(one['value'])}" + (f" ({owner(one)})" if one["owner"] else "")
        for one in event["signals"]
    )


def _named_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{one['name']}={common.scalar(one['value'])} ({one['why'] or one['quality']})" for one in event["named"]
    )


def _lines_words(event: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{line['bus']} {line['line']}={common.scalar(line['value'])}" + (f" ({owner(line)})" if line["owner"] else "")
        for line in event["lines"]
    )


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "snapshot": _snapshot_words,
    "lines": _lines_words,
    "signals": _signals_words,
    "named": _named_words,
    "buses": lambda event: "; ".join(f"{name} {brief(bus)}" for name, bus in event["buses"].items()),
    "halt": lambda event: halted_words(event["halt"]) if event["halt"]["halted"] else "not halted",
    "approvals": lambda event: ", ".join(each["approval_id"] for each in event["approvals"]) or "none waits",
    "health": lambda event: "ok" if event["health"]["ok"] else "not ok",
}
