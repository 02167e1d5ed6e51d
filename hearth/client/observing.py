"""The client's side of the observer: one stream of a runtime's events, and the state that they add up to.

It owns the subscription of one connection (`Observation`) and `apply`, which a view uses to keep its state. What the
events are is in docs/reference/methods.md. It knows no carrier.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.client.events import Following

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    from hearth.client.session import SessionLink
    from hearth.errors import HearthError

MOST_UNREAD: Final = 4096
"""Events that wait for a reader in this process. When there are more they are dropped, and a snapshot is asked for."""


class Observation(Following["Mapping[str, Any]"]):
    """The subscription of a connection to the runtime's events; the connection calls `take` and `end`."""

    def __init__(
        self,
        link: SessionLink,
        params: Mapping[str, Any],
        begun: Callable[[Observation], None],
        over: Callable[[Observation], None],
    ) -> None:
        self._link = link
        self._params = params
        self._begun = begun
        self._over = over
        self._unread: deque[Mapping[str, Any]] = deque()
        self._changed = trio.Event()
        self._closed = self._lost = False
        """`_lost`: events were dropped here, and none counts before the snapshot that was asked for."""
        self._broken: HearthError | None = None

    async def start(self) -> None:
        """See Following."""
        self._begun(self)
        try:
            await self._link.call("observe.subscribe", self._params)
        except BaseException:
            self._over(self)
            raise

    async def next(self) -> Mapping[str, Any] | None:
        """See Following; None once it is closed. Raises CarrierError when the connection has ended."""
        while not self._unread:
            if self._closed:
                return None
            if self._broken is not None:
                raise self._broken
            self._changed = trio.Event()
            await self._changed.wait()
        return self._unread.popleft()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event from the connection."""
        if self._lost and event["kind"] != "snapshot":
            return
        self._lost = False
        if len(self._unread) >= MOST_UNREAD:
            self._unread.clear()
            self._lost = True
            # Without a number: the stream begins again with a snapshot.
            self._link.notify("observe.subscribe", {"session_id": self._params["session_id"]})
            return
        self._unread.append(event)
        self._changed.set()

    def end(self, error: HearthError) -> None:
        """Note that the connection has ended; what has come is read first."""
        self._broken = error
        self._changed.set()

    def replaced(self) -> None:
        """Note that another subscription of this connection has taken its place."""
        self._closed = True
        self._changed.set()

    def close(self) -> None:
        """See Following."""
        if not self._closed:
            self.replaced()
            self._over(self)
            self._link.notify("observe.unsubscribe", {"session_id": self._params["session_id"]})


def apply(state: MutableMapping[str, Any], event: Mapping[str, Any]) -> None:
    """Bring a state up to date with one event; a snapshot replaces all of it.

    `state` has the members of observe.state. Ended tasks and closed sessions leave it; a view that shows them keeps
    them itself, from the same events. Applying an event whose effect the state has already changes nothing.
    """
    kind = event["kind"]
    if kind == "snapshot":
        state.clear()
        state.update(event["state"])
    elif kind in _OUTPUTS:
        key = _OUTPUTS[kind]
        changes = {(one["bus"], one[key]): one for one in event[kind]}
        # A daemon of an earlier release has no signals, or none by name.
        state[kind] = [{**one, **changes.get((one["bus"], one[key]), {})} for one in state.get(kind, ())]
    elif kind == "buses":
        state["buses"] = {**state["buses"], **event["buses"]}
    elif kind in ("halt", "approvals", "health"):
        state[kind] = event[kind]
    elif kind == "readings":
        _apply_readings(state, event["readings"])
    elif kind == "records":
        for record in event["records"]:
            _apply_record(state, record)
    state["seq"], state["ts"] = event["seq"], event["ts"]


_OUTPUTS: Final = {"lines": "line", "signals": "channel", "named": "name"}
"""Kinds of rows of outputs and signals, with the member that tells those of one bus apart."""
MOST_READINGS: Final = 64
"""Readings that a state has, as a snapshot."""


def _apply_readings(state: MutableMapping[str, Any], readings: Sequence[Mapping[str, Any]]) -> None:
    for reading in readings:
        others = [one for one in state["readings"] if (one["tool"], one["args"]) != (reading["tool"], reading["args"])]
        state["readings"] = [*others, reading][-MOST_READINGS:]


def _apply_record(state: MutableMapping[str, Any], record: Mapping[str, Any]) -> None:
    what, ts = record["event"], record["ts"]
    if what in ("session.open", "session.close"):
        others = [one for one in state["sessions"] if one["session_id"] != record["session_id"]]
        state["sessions"] = others if what == "session.close" else [*others, _session(record, ts)]
    elif what in ("task.submit", "task.finish"):
        others = [one for one in state["tasks"] if one["task_id"] != record["task_id"]]
        state["tasks"] = others if what == "task.finish" else [*others, _task(record, ts)]
    elif what in ("task.step.start", "task.step.finish"):
        for task in state["tasks"]:
            if task["task_id"] == record["task_id"]:
                task["status"] = "RUNNING"
                task["steps"][record["step_index"]]["status"] = record.get("status", "RUNNING")


def _session(record: Mapping[str, Any], ts: str) -> dict[str, Any]:
    names = ("session_id", "principal", "policy", "client_name")
    return {**{name: record.get(name) for name in names}, "opened_at": ts}


def _task(record: Mapping[str, Any], ts: str) -> dict[str, Any]:
    task = {name: record[name] for name in ("task_id", "session_id", "principal", "intent")}
    steps = [{"tool": step["tool"], "args": step.get("args", {}), "status": None} for step in record["steps"]]
    dry = {"dry_run": True} if record.get("dry_run") else {}
    return {**task, "submitted_at": ts, "status": "QUEUED", "steps": steps, **dry}
