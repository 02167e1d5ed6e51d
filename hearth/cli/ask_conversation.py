"""The conversation of `hearth ask` without words: a prompt with history and completion, and a `/` menu.

A line is read in a thread of its own, so that the sessions are kept open for as long as a person thinks. Ctrl-C during
an answer ends the wait for it; a task that runs goes on, as its session does. Ctrl-C or Ctrl-D at the prompt ends all.
"""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
import trio

from hearth._util.text import suggest
from hearth.ask import ModelError
from hearth.cli import common
from hearth.cli.common import DONE
from hearth.cli.halt import halt_lines, meaning, outcome_lines, unclear, until_safe
from hearth.cli.plan import plan_lines
from hearth.errors import CarrierError, HearthError, SessionInvalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

    from hearth.api import Session
    from hearth.cli.asking import Asking

MENU: Final = {
    "/plan": "show the last plan",
    "/halt": "stop all effects at once, of every client; a reason may follow, or status or reset alone",
    "/undo": "propose to set back what the last plan has set",
    "/tools": "list the tools and their risks",
    "/cost": "show the tokens so far, and where the transcript is",
    "/help": "show this",
    "/quit": "end the conversation; so does Ctrl-D",
}


async def converse(asking: Asking, directory: Path) -> int:
    """Answer line after line until the person ends it; return the exit code."""
    tools = await asking.planner.session.tools()
    click.echo("Say what to do, or /help. Nothing moves before you have seen the plan and said yes.", err=True)
    with _prompt(directory / "history", [*MENU, *(str(one.get("name")) for one in tools)]) as read:
        while (line := await trio.to_thread.run_sync(read, abandon_on_cancel=True)) is not None:
            words = line.strip()
            if words == "/quit":
                break
            if words:
                await _handle(asking, words)
    asking.show_cost()
    return DONE


async def _handle(asking: Asking, words: str) -> None:
    """Do what one line asks for. What fails is said, and the conversation goes on while its session does."""
    try:
        if words.startswith("/"):
            await _command(asking, *words.partition(" ")[::2])
        elif await _interruptible_wait(lambda: asking.answer(words)):
            click.echo("        nothing waits for it any more; a task that runs goes on: /halt stops it", err=True)
    except (CarrierError, SessionInvalid):
        raise
    except (HearthError, OSError) as error:
        common.report(asking.options, error)
        if isinstance(error, ModelError) and not asking.plans.done:
            click.echo("        nothing was run", err=True)


async def _command(asking: Asking, command: str, rest: str) -> None:
    if command == "/halt":
        await _halt(asking.person, rest)
    elif command == "/undo":
        await _interruptible_wait(asking.undo)
    elif command == "/plan":
        plan = asking.last_plan
        click.echo("there was none yet" if plan is None else "\n".join(plan_lines(plan)))
    elif command == "/tools":
        tools = await asking.planner.session.tools()
        rows = [(str(one.get("name")), str(one.get("risk_level"))) for one in tools]
        click.echo("\n".join(common.table(("tool", "risk"), rows)))
    elif command == "/cost":
        asking.show_cost()
    elif command == "/help":
        click.echo("\n".join(f"{name:8}{text}" for name, text in MENU.items()))
    else:
        raise HearthError(f"there is no {command}; {suggest(command, MENU) or '/help lists what there is'}")


async def _halt(person: Session, words: str) -> None:
    means = meaning(words)
    if means == "unclear":
        raise HearthError(unclear(words, "/halt"))
    if means == "status":
        click.echo("\n".join(halt_lines(await person.halt_status())))
    elif means == "reset":
        click.echo("\n".join(halt_lines(await person.reset_halt())))
    else:
        halt = await person.halt(words or "hearth ask")
        click.echo("halted" if halt.latched else f"halted; {halt.problem}")
        click.echo("\n".join(map(common.clean, outcome_lines(await until_safe(person.halt_status, halt)))))


async def _interruptible_wait(work: Callable[[], Awaitable[object]]) -> bool:
    """Run `work`; Ctrl-C cancels it alone. Return True if it did."""
    interrupted = False
    failed: HearthError | None = None
    with trio.open_signal_receiver(signal.SIGINT) as signals, trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                nonlocal interrupted
                async for _ in signals:
                    interrupted = True
                    scope.cancel()

            nursery.start_soon(listen)
            try:
                await work()
            except HearthError as error:
                failed = error
            nursery.cancel_scope.cancel()
    if failed is not None and not interrupted:
        raise failed
    return interrupted


@contextmanager
def _prompt(history: Path, names: Sequence[str]) -> Iterator[Callable[[], str | None]]:
    """Set up line editing; yield a function that reads a line, None at its end. Restores the terminal at the end."""
    import readline
    import termios

    def complete(text: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(text)]
        return found[state] if state < len(found) else None

    def read() -> str | None:
        try:
            return input("> ")
        except EOFError:
            return None

    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    mode = termios.tcgetattr(sys.stdin)
    try:
        yield read
    finally:
        # A read that was abandoned leaves the terminal without echo.
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, mode)
        history.touch(0o600)
        readline.set_history_length(1000)
        readline.write_history_file(history)
