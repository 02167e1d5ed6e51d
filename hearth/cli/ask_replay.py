"""`hearth ask --replay`: run a transcript again on a simulator, and compare what comes out, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import trio
from attrs import evolve

from hearth.ask import ModelError
from hearth.ask.transcript import RecordedModel, Transcript, first_difference, read_transcript
from hearth.cli import common
from hearth.cli.asking import Asking
from hearth.cli.common import DONE, FAILED, Options
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


async def replay(options: Options, path: Path, board: str, into: Path | None) -> int:
    """Run a transcript again on a simulator, and compare what comes out with it, byte for byte."""
    recording = await trio.Path(path).read_bytes()
    records = read_transcript(recording, str(path))
    transcript = await replayed(options, records, board, into)
    difference = first_difference(recording, b"".join(transcript.lines))
    if difference is None:
        told = {"same": True, "lines": len(records)}
        click.echo(common.compact(told) if options.json else f"the same: {len(records)} lines, byte for byte")
        return DONE
    number, was, now = difference
    if options.json:
        click.echo(common.compact({"same": False, "line": number, "was": was, "now": now}))
    else:
        click.echo(f"line {number} differs\n  was  {common.clean(was)}\n  now  {common.clean(now)}")
    return FAILED


async def replayed(options: Options, records: Sequence[Mapping[str, Any]], board: Any, into: Path | None) -> Transcript:
    """Return the transcript of a replay: the recorded words, turns and decisions on a simulated board."""
    from hearth.actors.embedded import embedded_parts, open_all, serve_parts

    transcript = Transcript(into, recorded=records)
    verdicts = [one for one in records if one["kind"] == "decision"]
    quiet = evolve(options, json=True)
    # Before a driver is opened; the tools of a vendor may have added drivers to the board.
    parts = embedded_parts(board)
    if real := ", ".join(parts.board.real_buses()):
        raise ConfigError(
            f"--board {parts.board.name}: it drives hardware ({real}), and a replay runs on a simulated board alone"
        )
    async with serve_parts(open_all(parts)) as runtime:
        model = RecordedModel.of(records)
        asking = Asking(quiet, runtime.open_session, model, transcript, verdicts=list(verdicts))
        start = records[0]
        model.name, model.where = str(start.get("model")), str(start.get("where"))
        async with asking.opened(at=start.get("at")):
            for words in [one["text"] for one in records if one["kind"] == "words"]:
                try:
                    await asking.planner.answer(words)
                except ModelError:
                    continue
    return transcript
