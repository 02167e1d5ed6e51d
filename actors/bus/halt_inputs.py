"""The halt inputs: lines of the board that halt by their level, or by the absence of edges.

An input is watched by edges, and its level is read when the watch begins and before a reset. Everything that can keep
a reading from coming is a halt: a bus that is not there, a read that takes too long, a watch that ends, lost edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from hearth.actors.bus.queue import Requester, Ticket
from hearth.errors import DeviceError, RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hearth.actors.bus.actor import Bus
    from hearth.drivers.gpio.driver import Edge, GpioDriver, Watch
    from hearth.drivers.profile import HaltInput

RETRY_S: Final = 1.0
"""Seconds until an input that could not be read is tried again."""
READ_LIMIT_S: Final = 1.0
"""Seconds that reading an input may take; one that takes longer halts, or refuses a reset."""
_STOP: Final = "is at its stop level"
_UNKNOWN: Final = "unknown"
"""The state of an input that has not been read yet."""


def holder(line: HaltInput) -> tuple[str, str]:
    """Return source and principal of an input's hold."""
    return "input", f"input {line.name}"


class HaltInputs:
    """The halt inputs of a board; `halt(reason, by)` is called when one of them is no longer clear."""

    def __init__(self, lines: Iterable[HaltInput], buses: Mapping[str, Bus], halt: Callable[[str, str], None]) -> None:
        self.states = dict.fromkeys(lines, _UNKNOWN)
        """By input: "clear", or why it is not."""
        self._buses = buses
        self._halt = halt
        self._reads: dict[HaltInput, trio.Event] = {}
        """The reads that resets wait for, each set when it has ended."""
        self._seen = trio.Event()
        """Set, and replaced, when the state of an input has been noted."""
        self._nursery: trio.Nursery | None = None

    def watch(self, nursery: trio.Nursery) -> None:
        """Watch the inputs in the tasks of a nursery, until it is cancelled."""
        self._nursery = nursery
        for line in self.states:
            nursery.start_soon(self._watch, line)

    async def all_seen(self) -> None:
        """Wait until every input has been read once, or could not be."""
        while _UNKNOWN in self.states.values():
            await self._seen.wait()

    def forget(self) -> None:
        """Start no further task: the nursery is about to be cancelled."""
        self._nursery = None

    def _see(self, line: HaltInput, state: str) -> None:
        """Note the state of an input, and halt if it is another one than before and not clear."""
        before, self.states[line] = self.states[line], state
        self._seen.set()
        self._seen = trio.Event()
        if state not in ("clear", before):
            self.demand(line)

    def demand(self, line: HaltInput) -> None:
        """Halt for an input, with its state as the reason."""
        _, by = holder(line)
        self._halt(f"{by} {self.states[line]}", by)

    async def _watch(self, line: HaltInput) -> None:
        """Watch one input for ever: its edges, and with a timeout their absence."""
        while True:
            try:
                watch: Watch = await self._transact(line, lambda driver: driver.watch(line.offset, "both"))
                # After the watch has begun: no edge between the two is missed.
                if line.timeout_ms is None:
                    await self._read(line)
                elif self.states[line] == _UNKNOWN:
                    self._see(line, "clear")
                await self._follow(line, watch)
            except RpcError as error:
                self._see(line, f"cannot be read: {error.message}")
            await trio.sleep(RETRY_S)

    async def _follow(self, line: HaltInput, watch: Watch) -> None:
        """Take edges until the watch ends. Raises DeviceError."""
        limit = float("inf") if line.timeout_ms is None else line.timeout_ms / 1000
        while True:
            edge: Edge | None = None
            with trio.move_on_after(limit):
                edge = await watch.receive()
            if edge is None:
                self._see(line, f"no edge for {line.timeout_ms} ms")
            elif watch.dropped:
                await self._transact(line, lambda driver: driver.unwatch(watch))
                raise DeviceError("edges were lost", effect="none")
            else:
                self._see(line, _STOP if line.timeout_ms is None and edge.value == line.stop else "clear")

    async def blocked(self) -> dict[tuple[str, str], str]:
        """Read all inputs that halt by their level, within READ_LIMIT_S; return the states of those that are not clear.

        By source and principal. A bus may not answer for long.
        """
        assert self._nursery is not None
        for line in self.states:
            if line.timeout_ms is None:
                self.states[line] = f"cannot be read: bus {line.bus} does not answer"
                if line not in self._reads:
                    # One read at a time: on a bus that is wedged, each would wait until it works again.
                    self._reads[line] = trio.Event()
                    self._nursery.start_soon(self._read, line)
        with trio.move_on_after(READ_LIMIT_S):
            for read in list(self._reads.values()):
                await read.wait()
        return {holder(line): state for line, state in self.states.items() if state != "clear"}

    async def _read(self, line: HaltInput) -> None:
        """Read an input, and halt unless it is clear."""
        try:
            level = await self._transact(line, lambda driver: driver.get(line.offset))
        except RpcError as error:
            self._see(line, f"cannot be read: {error.message}")
        else:
            self._see(line, _STOP if level == line.stop else "clear")
        read = self._reads.pop(line, None)
        if read is not None:
            read.set()

    async def _transact(self, line: HaltInput, op: Callable[[GpioDriver], Any]) -> Any:
        """Run a transaction on the bus of an input; one that takes longer than READ_LIMIT_S halts in the meantime."""
        ticket = Ticket(op, Requester("", "", ""), limit=READ_LIMIT_S, must_run=True)
        self._buses[line.bus].request(ticket)
        if not ticket.filled and self._nursery is not None:
            self._nursery.start_soon(self._expect, line, ticket)
        return await ticket.get()

    async def _expect(self, line: HaltInput, ticket: Ticket) -> None:
        bus = self._buses[line.bus]
        if bus.state == "ready":
            await trio.sleep(READ_LIMIT_S)
        if not ticket.filled:
            self._see(line, f"cannot be read: bus {line.bus} does not answer ({bus.reason or bus.state})")
