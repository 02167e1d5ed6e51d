"""Which lives are killed where: a list of worlds, each of which a number decides, and one of which can be run again.

Eight worlds of nine walk through the points of a fixed scenario, every call that changes a file of the log's directory,
in each durability; whether a daemon dies before a call, in the middle of its bytes or after it changes from world to
world. The life that recovers is killed too, at a point of its recovery. The ninth world is killed at random under
load, three times over. After every kill what is left is judged, and at the end of a world a last life has to recover,
serve and end. 500 kills meet about every point of the scenario once, and those of a recovery at every moment.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

from attrs import define, field
from crash import judge
from crash.deployment import Deployment
from crash.syscalls import MOMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from support.zygote import Zygote

POINTS = {"os": 66, "fsync": 88, "relaxed": 58}
"""About how many points the scenario has, give or take a few: a life with a number beyond the end is not killed."""
RECOVERY = 22
"""Points of a life that recovers, up to its first answer and a little beyond."""
EACH = 9
"""Every so many worlds, one is killed at random."""
PLACES = [(durability, point + 1) for durability, points in POINTS.items() for point in range(points)]
random.Random(4).shuffle(PLACES)  # so that few kills meet points of all kinds too


@define
class Figures:
    """What was done so far."""

    worlds: int = 0
    kills: int = 0
    unreached: int = 0
    random: int = 0
    recoveries: int = 0
    acknowledged: int = 0
    finished: int = 0
    in_flight: int = 0
    torn: int = 0
    records: int = 0
    shell: int = 0
    at: Counter[str] = field(factory=Counter)
    places: set[tuple[str, str, int, str]] = field(factory=set)
    seconds: float = 0.0


def run(directory: Path, zygote: Zygote, *, first: int, kills: int) -> Figures:
    """Run worlds from number `first` on, until so many lives have been killed."""
    figures = Figures()
    began = time.monotonic()
    number = first
    while figures.kills < kills:
        run_world(directory / f"w{number}", zygote, number, figures)
        number += 1
    figures.seconds = time.monotonic() - began
    return figures


def run_world(directory: Path, zygote: Zygote, number: int, figures: Figures) -> None:
    """Run one world; raises AssertionError, with the command that runs it again, if something does not hold."""
    walk, turn = divmod(number, EACH)
    at_random = turn == EACH - 1
    step = number - walk
    durability, point = PLACES[step % len(PLACES)]
    deployment = Deployment(directory, zygote, durability)
    try:
        if at_random:
            rng = random.Random(number)
            for _ in range(3):
                deployment.load(rng.randrange(1, 16))
                figures.random += 1
                _judge(deployment, figures)
        else:
            _kill_at(deployment, figures, point, MOMENTS[(step + step // len(PLACES)) % 3])
            _kill_at(deployment, figures, 1 + step % RECOVERY, MOMENTS[(step // RECOVERY) % 3], recovering=True)
        deployment.last_life()
        log = judge.at_the_end(deployment, shell=number % 2 == 0, command=number % 10 == 0)
        _count(deployment, log, figures)
    except AssertionError as broken:
        broken.add_note(f"durability {durability}; what it left is in {directory}")
        broken.add_note(f"again: python -m tests.crash --kills 1 --variants 0 --from {number}")
        raise
    finally:
        deployment.close()
    shutil.rmtree(directory)


def _kill_at(deployment: Deployment, figures: Figures, point: int, moment: str, *, recovering: bool = False) -> None:
    status = deployment.scripted_life(point, moment)
    if status is not None:
        assert status == 0, f"the daemon ended with {status}:\n{deployment.said()}"
        figures.unreached += 1
        return
    killed = next(entry for entry in reversed(deployment.entries()) if "killed" in entry)
    name = kind_of_file(killed["path"].rpartition("/")[2])
    figures.at[f"{killed['at']} {name}, {killed['moment']}"] += 1
    figures.places.add((deployment.durability, "recovery" if recovering else "scenario", point, killed["moment"]))
    figures.recoveries += recovering
    _judge(deployment, figures)


def _judge(deployment: Deployment, figures: Figures) -> None:
    figures.kills += 1
    shell = figures.kills % 2 == 0
    figures.shell += shell
    figures.torn += judge.after_kill(deployment, shell=shell, command=figures.kills % 10 == 0).torn


def _count(deployment: Deployment, log: judge.Log, figures: Figures) -> None:
    figures.worlds += 1
    figures.records += len(log.records)
    figures.in_flight += len(log.named())
    figures.acknowledged += sum(len(client.tasks) for client in deployment.clients)
    figures.finished += sum(client.finished for client in deployment.clients)


KINDS = {
    "agent-card": "card",
    ".outputs": "outputs",
    ".torn-": "torn end",
    ".key.pub": "public key",
    ".key": "key",
    ".next": "next file",
    "audit.log.0": "rotated file",
    "audit.log": "log",
}
"""What a path beneath the log's directory is, by the first of these that is in it."""


def kind_of_file(name: str) -> str:
    return next((kind for part, kind in KINDS.items() if part in name), "names")


def summary(figures: Figures) -> list[str]:
    """For a person."""
    f = figures
    points = sum(f.at.values())
    return [
        f"{f.kills} kills in {f.worlds} worlds, {f.seconds:.0f} s",
        f"{points} at a point, {len(f.places)} different places and moments, {f.recoveries} in a life that recovers",
        f"{f.random} at random under load; {f.unreached} lives ended before the point that they were to die at",
        f"{f.acknowledged} submissions acknowledged, {f.finished} tasks told to be finished, {f.in_flight} in flight",
        f"{f.records} records, {f.torn} torn ends; the shell's verifier was asked after {f.shell} of the kills",
        *(f"{count:5}  {place}" for place, count in sorted(f.at.items())),
    ]
