"""Transcripts: what was said, read, proposed, decided and run, one JSON object a line, and their replay.

A transcript is a file of the person's own (0600) beneath the state directory. Its lines are written as they happen, so
what breaks off leaves what was until then. From run to run these differ: `at` in the first line, the ids that the
daemon gives, and what reads give. A replay puts the recorded ones in the place of its own. All else it does again: each
read, refusal, preparation with its hash, decision and task. So it is compared with the recording byte for byte.

    start     at, model, where, tools (SHA-256 of tool.list)      words     text
    turn      text, calls, tokens_in, tokens_out                          refused   reason
    read      tool, args, task_id, status, result or error                decision  plan_id, approved, by
    plan      plan_id, hash, risk, state, intent, steps, tainted_by       task      task_id, plan_id, status, steps
    error     reason                                                      end       tokens_in, tokens_out
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import orjson
from attrs import define, field

from hearth._util.formats import check_format
from hearth.ask import ModelError
from hearth.ask.backends import ModelTurn, ToolCall
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FORMAT: Final = 1
IDS: Final = ("task_id", "plan_id", "at")
"""The members that differ from run to run."""


@define
class Transcript:
    """The lines so far, and the file that gets them. `path` None: no file."""

    path: Path | None = None
    recorded: Sequence[Mapping[str, Any]] = ()
    """For a replay: the recording whose ids are written in place of the new ones."""
    lines: list[bytes] = field(factory=list)
    _ids: dict[str, str] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Make the file. Raises OSError, also where there is one already."""
        if self.path is not None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def add(self, kind: str, /, **members: Any) -> None:
        """Write one line. Raises OSError."""
        record = {"kind": kind, **{name: value for name, value in members.items() if value is not None}}
        if len(self.lines) < len(self.recorded):
            was = self.recorded[len(self.lines)]
            for name in IDS:
                if name in record and isinstance(was.get(name), str):
                    record[name] = self._ids.setdefault(record[name], was[name])
            if kind == was.get("kind") == "read" and record["status"] == was.get("status") and "result" in was:
                record["result"] = was["result"]
        line = orjson.dumps(record) + b"\n"
        self.lines.append(line)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(line)


def read_transcript(content: bytes, path: str) -> list[dict[str, Any]]:
    """Return the lines of a transcript. Raises ConfigError that names the line."""
    records = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConfigError(
                f"{path}: line {number} is not JSON: {error}; a transcript has one object a line"
            ) from None
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise ConfigError(f"{path}: line {number} is no line of a transcript: it has no kind")
        records.append(record)
    if records and records[0]["kind"] == "start":
        check_format(f"transcript {path}", records[0].get("format"), FORMAT, "record it again")
    if not records or records[0]["kind"] != "start" or records[0].get("format") != FORMAT:
        raise ConfigError(f"{path}: not a transcript of `hearth ask`: its first line is no start of format {FORMAT}")
    return records


def first_difference(recorded: bytes, again: bytes) -> tuple[int, str, str] | None:
    """Return the number of the first line that differs with both forms of it; None if the bytes are the same."""
    if recorded == again:
        return None
    old, new = recorded.decode("utf-8", "replace").splitlines(), again.decode("utf-8", "replace").splitlines()
    for number in range(max(len(old), len(new))):
        was, now = (lines[number] if number < len(lines) else "(nothing)" for lines in (old, new))
        if was != now:
            return number + 1, was, now
    return len(old), "another end of the last line", ""


@define
class RecordedModel:
    """A model that says again what it has said: implements `backends.Model`."""

    _turns: list[ModelTurn]
    name: str = "recorded"
    where: str = "a transcript"

    @classmethod
    def of(cls, records: Sequence[Mapping[str, Any]]) -> RecordedModel:
        """Make one from the lines of a transcript."""
        return cls([read_turn(record) for record in records if record["kind"] == "turn"])

    async def turn(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_text: Callable[[str], None]
    ) -> ModelTurn:
        """See Model."""
        if not self._turns:
            raise ModelError("the recording has no further turn of the model")
        turn = self._turns.pop(0)
        on_text(turn.text)
        return turn


def read_turn(record: Mapping[str, Any]) -> ModelTurn:
    """Return the turn that a line has. Raises ConfigError."""
    try:
        calls = tuple(ToolCall(str(one["id"]), str(one["tool"]), str(one["arguments"])) for one in record["calls"])
        return ModelTurn(str(record["text"]), calls, int(record["tokens_in"]), int(record["tokens_out"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"a turn of the transcript cannot be read: {error!r}") from None
