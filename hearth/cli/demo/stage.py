"""The output of the demo, its checked claims, and its daemon.

The output goes to a terminal (rich), to a pipe (plain lines) or into a transcript (JSON). A claim that does not hold
ends the demo: `claim` raises. This module does not know the scenes.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click
import trio

from hearth.cli import common
from hearth.errors import HearthError

if TYPE_CHECKING:
    from rich.console import Console


WIDTH = 100
SECONDS_PER_WORD = 0.06
LONGEST_PAUSE = 3.5


class DemoFailed(HearthError):
    """A claim of the demo is not true on this machine."""


class Stage:
    """The transcript alone, without visible output: the stage for --json."""

    def __init__(self) -> None:
        self.scenes: list[dict[str, Any]] = []
        self._words = 0

    def transcript(self, error: str | None = None) -> dict[str, Any]:
        """Return all that was shown; `ok` is True if every claim held."""
        transcript: dict[str, Any] = {"ok": error is None, "claims": self.claims, "scenes": self.scenes}
        if error is not None:
            transcript["error"] = error
        return transcript

    @property
    def claims(self) -> int:
        """Number of the claims that have held."""
        return sum(claim["holds"] for scene in self.scenes for claim in scene["claims"])

    def scene(self, title: str) -> None:
        """Begin a scene."""
        self.scenes.append({"title": title, "said": [], "happened": [], "claims": []})
        self._show_scene(len(self.scenes), title)

    async def say(self, text: str) -> None:
        """Explain the next step, and leave time to read it."""
        self.scenes[-1]["said"].append(text)
        self._words += len(text.split())
        self._show_said(text)
        await self.pause()

    def happened(self, text: str) -> None:
        """Show an event, an answer or a record when it comes."""
        self.scenes[-1]["happened"].append(text)
        self._words += 4
        self._show_happened(common.clean(text))

    def claim(self, text: str, holds: bool, detail: str = "") -> None:
        """Show a claim with the result of its check. Raises DemoFailed if it does not hold."""
        self.scenes[-1]["claims"].append({"claim": text, "holds": holds, "detail": detail})
        self._words += len(text.split())
        self._show_claim(common.clean(text), common.clean(detail), holds=holds)
        if not holds:
            raise DemoFailed(f"not so: {text}" + (f" ({detail})" if detail else ""))

    async def pause(self) -> None:
        """Leave time to read what was shown since the last pause; no time here, without visible output."""

    def _show_scene(self, number: int, title: str) -> None: ...

    def _show_said(self, text: str) -> None: ...

    def _show_happened(self, text: str) -> None: ...

    def _show_claim(self, text: str, detail: str, *, holds: bool) -> None: ...


class PlainStage(Stage):
    """Lines for a pipe, a log, a terminal without colours."""

    def _show_scene(self, number: int, title: str) -> None:
        click.echo(f"\n{number}. {title}")

    def _show_said(self, text: str) -> None:
        click.echo(textwrap.fill(text, WIDTH, initial_indent="   ", subsequent_indent="   "))

    def _show_happened(self, text: str) -> None:
        click.echo(f"     | {text}")

    def _show_claim(self, text: str, detail: str, *, holds: bool) -> None:
        told = f"{text}  ({detail})" if detail else text
        click.echo(textwrap.fill(told, WIDTH, initial_indent="   ✓ " if holds else "   ✗ ", subsequent_indent="     "))


class RichStage(Stage):
    """Coloured output for a person at a terminal."""

    def __init__(self, console: Console, *, fast: bool = False) -> None:
        super().__init__()
        self._console = console
        self._fast = fast

    async def pause(self) -> None:
        """Wait about as long as it takes to read what was shown since the last pause."""
        words, self._words = self._words, 0
        if not self._fast:
            await trio.sleep(min(words * SECONDS_PER_WORD, LONGEST_PAUSE))

    def _show_scene(self, number: int, title: str) -> None:
        from rich.rule import Rule
        from rich.text import Text

        self._console.print()
        heading = Text.assemble((f" {number} ", "bold black on bright_yellow"), (f" {title}", "bold"))
        self._console.print(Rule(heading, align="left", style="bright_black"), width=self._width)

    def _show_said(self, text: str) -> None:
        self._print("   ", "", text, "bright_white")

    def _show_happened(self, text: str) -> None:
        from rich.text import Text

        line = Text(text, "cyan")
        line.highlight_words(["SUCCESS"], "bold green")
        line.highlight_words(["FAILED", "SIGKILL"], "bold red")
        line.highlight_words(["CANCELLED", "CANCELLING"], "bold yellow")
        self._grid("   ", "│", line, "bright_black")

    def _show_claim(self, text: str, detail: str, *, holds: bool) -> None:
        from rich.text import Text

        told = Text.assemble((text, "bold" if holds else "bold red"), (f"  {detail}" if detail else "", "bright_black"))
        self._grid("   ", "✓" if holds else "✗", told, "bold green" if holds else "bold red")

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDTH)

    def _print(self, indent: str, mark: str, text: str, style: str) -> None:
        from rich.text import Text

        self._grid(indent, mark, Text(text, style), style)

    def _grid(self, indent: str, mark: str, text: Any, style: str) -> None:
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1) if mark else 0)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(indent + mark, style), text)
        self._console.print(grid, width=self._width)


def make_stage(*, as_json: bool, terminal: bool, fast: bool) -> Stage:
    """Return the stage for the kind of output."""
    if as_json:
        return Stage()
    if not terminal:
        return PlainStage()
    from rich.console import Console

    return RichStage(Console(highlight=False), fast=fast)
