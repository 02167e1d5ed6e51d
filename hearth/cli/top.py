"""The application of `hearth top`: a live view of the whole daemon, in a terminal, with Textual.

It is a client over `hearth.aio`. Its state is that of observe.state, kept by `hearth.client.observing.apply`. When the
connection ends it says so, keeps showing the last state as such, and connects again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import trio
from rich.text import Text
from textual.app import App
from textual.containers import Horizontal, Vertical
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Footer, Static

from hearth.cli import common, observing, status_view
from hearth.client.connection import call_halt
from hearth.client.observing import apply
from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from textual.app import ComposeResult

    from hearth.aio import Session
    from hearth.transport.address import Address

SECTIONS: Mapping[str, tuple[Sequence[str], Callable[[Mapping[str, Any]], list[status_view.Row]]]] = {
    "lines": (status_view.LINES, status_view.line_rows),
    "signals": (status_view.SIGNALS, status_view.signal_rows),
    "buses": (status_view.BUSES, status_view.bus_rows),
    "tasks": (status_view.TASKS, status_view.task_rows),
    "sessions": (status_view.SESSIONS, status_view.session_rows),
    "approvals": (status_view.APPROVALS, status_view.approval_rows),
}
"""Name of each table -> its headers, and what makes its rows of a state."""
FRAME = 0.1
"""Seconds between two drawings, at least: as often as lines are sampled."""


class Top(App[HearthError]):
    """The application; it returns the error that ended it."""

    CSS = """
    #state { height: 1; padding: 0 1; background: $success-muted; }
    #state.wrong { background: $error; color: $text; text-style: bold; }
    #state.away { background: $warning-muted; }
    DataTable { height: 1fr; border: round $primary; scrollbar-size: 1 1; }
    #outputs { width: 2fr; }
    Vertical { width: 3fr; }
    """
    BINDINGS: ClassVar = [("h", "halt", "HALT at once"), ("q", "quit", "Quit")]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, address: Address) -> None:
        super().__init__()
        self._address = address
        self._session: Session | None = None
        self._said = f"connecting to {address.place}"
        self._state: dict[str, Any] = {}
        self._changed = True

    def compose(self) -> ComposeResult:
        """Make the widgets: the state of the daemon in one line, the tables, the keys."""
        yield Static(id="state", markup=False)
        with Horizontal():
            with Vertical(id="outputs"):
                yield from self._tables("lines", "signals")
            with Vertical():
                yield from self._tables("tasks", "approvals", "sessions", "buses")
        yield Footer()

    def _tables(self, *names: str) -> Iterator[DataTable[Text]]:
        for name in names:
            table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
            table.border_title = name
            table.add_columns(*SECTIONS[name][0])
            yield table

    def on_mount(self) -> None:
        """Begin to follow the daemon and to draw."""
        self.run_worker(self._follow())
        self.set_interval(FRAME, self._draw)

    async def _follow(self) -> None:
        try:
            async for event in observing.follow(self._address, self._connected):
                apply(self._state, event)
                self._changed = True
        except HearthError as error:
            self.exit(error)

    def _connected(self, session: Session | None, words: str) -> None:
        self._session = session
        self._said = words if session is not None else f"connection lost: {words}; trying again"
        self._changed = True

    def _draw(self) -> None:
        # Once more, perhaps, while the application ends and its widgets are gone.
        if not self._changed or not self.query("#state"):
            return
        self._changed = False
        wrong = status_view.faults(self._state) if self._state else []
        shown = self._said if self._session is None else "; ".join(wrong) or f"healthy; {self._said}"
        line = self.query_one("#state", Static)
        line.update(common.clean(shown.upper() if wrong and self._session is not None else shown))
        line.set_class(bool(wrong) and self._session is not None, "wrong")
        line.set_class(self._session is None, "away")
        if self._state:
            for name, (_headers, rows) in SECTIONS.items():
                _fill(self.query_one(f"#{name}", DataTable), rows(self._state))

    async def action_halt(self) -> None:
        """Halt the daemon at once, without asking."""
        self.run_worker(self._halt(), group="halt")

    async def _halt(self) -> None:
        reason = "key h of hearth top"
        try:
            if self._session is not None:
                await self._session.halt(reason)
            else:
                # In a Trio loop, which the terminal has not: it runs on asyncio.
                await asyncio.to_thread(trio.run, call_halt, self._address, "halt", {"reason": reason})
        except HearthError as error:
            self.notify(common.clean(f"nothing was halted: {error}"), severity="error", markup=False)


def _fill(table: DataTable[Text], rows: Sequence[status_view.Row]) -> None:
    """Show these rows; where their number is the same, only the cells that differ change, so that nothing scrolls."""
    cells = [[Text(common.clean(cell)) for cell in row] for row in rows]
    if len(cells) != table.row_count:
        table.clear()
        table.add_rows(cells)
        return
    for number, row in enumerate(cells):
        for column, (old, new) in enumerate(zip(table.get_row_at(number), row, strict=True)):
            if old != new:
                table.update_cell_at(Coordinate(number, column), new, update_width=True)
