"""Cutting the power at each point of a tape, in many ways, and judging what a daemon finds when it comes back.

`scenarios` makes the tapes, of real lives: one that ends as it should, and lives that were killed, each followed by one
that recovers on the same kernel, with what was never synced still in its memory. Each state is judged: the log can be
opened, its chain holds to the end, it has every record whose effect somebody has seen, none that was never written,
and the tasks that were in flight are named. The parts that a daemon would open are opened here in place; a real daemon
is started on a share of the states.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field
from crash.deployment import Deployment
from crash.judge import Log, agree, traced
from crash.powercut import STYLES, Storage, lay_out

from hearth.actors.bus.outputs_file import OutputsFile
from hearth.audit import AuditSettings, keys
from hearth.audit.log import AuditLog
from hearth.audit.verify import verify
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.zygote import Zygote

NOW = 1_900_000_000.0


@define
class Tape:
    """What happened in a deployment, and what was meant by its tokens."""

    name: str
    root: str
    entries: list[dict[str, Any]]
    intended: dict[str, tuple[str, str]]
    lines: set[bytes] = field(factory=set)
    """Every line that was ever written to the log."""


@define
class Cuts:
    """What was done so far."""

    scenarios: int = 0
    cuts: int = 0
    daemons: int = 0
    refused: int = 0
    seconds: float = 0.0


@define
class Promised:
    """What somebody has seen by a point of a tape."""

    acknowledged: set[str] = field(factory=set)
    finished: dict[str, str] = field(factory=dict)
    hashes: list[str] = field(factory=list)

    def see(self, entry: dict[str, Any], intended: dict[str, tuple[str, str]]) -> None:
        if "ack" in entry:
            self.acknowledged.add(entry["ack"])
        elif "finish" in entry:
            self.finished[entry["finish"]] = entry["status"]
        elif entry.get("device") == "i2c":
            (token,) = traced([entry])
            self.hashes.append(intended[token][0])


def scenarios(directory: Path, zygote: Zygote, kills: int) -> Iterator[Tape]:
    """One life from the first start to SIGTERM, then pairs: one that is killed, and one that goes on from there."""
    for number in range(kills + 1):
        deployment = Deployment(directory / f"scenario{number}", zygote, "fsync")
        try:
            if number:
                deployment.scripted_life(3 + (number * 37) % 105, ("after", "middle", "before")[number % 3])
            deployment.scripted_life()
            entries = deployment.entries()
        finally:
            deployment.close()
        name = f"after a kill, {number}" if number else "from the start"
        tape = Tape(name, str(deployment.logs), entries, deployment.intended)
        tape.lines = _lines_written(tape)
        yield tape


def _lines_written(tape: Tape) -> set[bytes]:
    """Every line that the log's files held at any point of the tape."""
    storage, lines = Storage(tape.root), set()
    for entry in tape.entries:
        storage.apply(entry)
        if entry.get("op") == "write":
            content = storage.handles[entry["handle"]].now
            lines.update(content[: content.rfind(b"\n") + 1].splitlines(keepends=True)[-12:])
    return lines


def every_cut(
    tape: Tape, variants: int, first: int = 0
) -> Iterator[tuple[int, int, dict[str, bytes | None], Promised]]:
    """Each point of the tape at which something was done, with so many states that a cut there may leave."""
    storage, promised = Storage(tape.root), Promised()
    for point, entry in enumerate(tape.entries):
        storage.apply(entry)
        promised.see(entry, tape.intended)
        if "op" not in entry and "ack" not in entry and "finish" not in entry and "device" not in entry:
            continue
        for variant in range(first, first + variants):
            rng = random.Random(f"{point}-{variant}")
            style = STYLES[(variant + point) % len(STYLES)]
            yield point, variant, storage.left(rng, style, loose=bool((variant // len(STYLES) + point) % 2)), promised


def run(
    directory: Path, zygote: Zygote, *, lives: int, variants: int, real: int = 0, figures: Cuts | None = None
) -> Cuts:
    """Cut the power `variants` times at every point of 1 + `lives` scenarios; every `real`th state gets a daemon."""
    figures = figures or Cuts()
    began = time.monotonic()
    for tape in scenarios(directory, zygote, lives):
        figures.scenarios += 1
        for point, variant, found, promised in every_cut(tape, variants):
            figures.cuts += 1
            place = directory / "cut"
            try:
                lay_out(found, tape.root, place)
                if real and not figures.cuts % real:
                    _start_a_daemon(tape, promised, place, zygote)
                    figures.daemons += 1
                elif not _judge(tape, promised, place / Path(tape.root).name / "audit.log"):
                    figures.refused += 1
            except AssertionError as broken:
                broken.add_note(f"power cut {variant} at point {point} of {tape.name}: {tape.entries[point]}")
                broken.add_note(f"what it left, as far as it was repaired, is in {place}")
                raise
            shutil.rmtree(place)
    figures.seconds += time.monotonic() - began
    return figures


def _start_a_daemon(tape: Tape, promised: Promised, place: Path, zygote: Zygote) -> None:
    """The same with a real hearthd: it starts, serves and ends, and the verifiers agree."""
    deployment = Deployment(place, zygote, "fsync")
    try:
        deployment.last_life()
    finally:
        deployment.close()
    log = Log(deployment.log)
    agree(log, command=True)
    _nothing_is_lost(promised, log)
    assert len([line for line in log.lines if line + b"\n" in tape.lines]) >= len(promised.acknowledged)


def summary(figures: Cuts) -> str:
    """For a person."""
    f = figures
    return (
        f"{f.cuts} power cuts at the points of {f.scenarios} scenarios, {f.seconds:.0f} s\n"
        f"a daemon was started on {f.daemons} of the states; {f.refused} times a first file of garbage was refused"
    )


def _judge(tape: Tape, promised: Promised, path: Path) -> bool:
    """Judge one state; False if the log was refused, as it may be where it has no record and none was promised."""
    settings = AuditSettings(path=path, key=Path(f"{path}.key"), durability="fsync", checkpoint_every=9)
    log = AuditLog(settings)
    try:
        recovery = log.open(NOW)
    except ConfigError as refused:
        if "holds something else" not in str(refused) or promised.acknowledged:
            raise AssertionError("the next daemon does not take the log for its own") from refused
        return False
    before = Log(path)
    assert recovery.rollback is None, "a power cut was taken for a rollback"
    assert not before.torn, "recovery left a torn end"
    for line in before.lines:
        assert line + b"\n" in tape.lines, f"the log has a line that was never written: {line[:80]!r}"
    _nothing_is_lost(promised, before)
    assert {task["task_id"] for task in recovery.in_flight} == _in_flight(before), "not the tasks that were in flight"
    outputs_file = OutputsFile(Path(f"{path}.outputs"))
    outputs_file.open(NOW)
    record = recovery.record()
    log.signer = keys.load_or_create(settings.key)
    log.append([(NOW, record)] if record else [], NOW)
    log.append([(NOW, {"event": "daemon.start"})], NOW)
    log.checkpoint_due = True
    log.append([(NOW, {"event": "daemon.stop"})], NOW)
    log.close()
    report = verify([path], keys.public_path(settings.key))
    assert report.ok, f"after recovery: {report.first_bad}"
    assert report.first_seq == 1
    return True


def _nothing_is_lost(promised: Promised, log: Log) -> None:
    missing = promised.acknowledged - log.tasks("task.submit")
    assert not missing, f"acknowledged and lost: {missing}"
    ends = {record["task_id"]: record["status"] for record in log.of("task.finish")}
    assert promised.finished.items() <= ends.items(), "an end that a client was told of is lost"
    hashes = log.hashes()
    assert all(hashes[one] for one in promised.hashes), "a device was written to, and the record is lost"


def _in_flight(log: Log) -> set[str]:
    """The tasks that began in the last run and did not end."""
    begun: set[str] = set()
    for record in log.records:
        if record["event"] in ("daemon.start", "daemon.stop", "daemon.recover"):
            begun = set()
        elif record["event"] == "task.submit":
            begun.add(record["task_id"])
        elif record["event"] == "task.finish":
            begun.discard(record["task_id"])
    return begun
