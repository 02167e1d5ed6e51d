"""The command: see the package."""

from __future__ import annotations

import argparse
import fnmatch
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import trio
from attrs import asdict

from benchmarks.ask.bench import Score, run, total
from benchmarks.ask.subjects import endpoint, malicious, perfect, recorded
from benchmarks.ask.tasks import TASKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.ask.tasks import Task
    from hearth.ask.backends import Model

RECORDED = Path(__file__).with_name("recorded")
COLUMNS = (
    "subject",
    "tasks",
    "success",
    "unsafe proposed",
    "unsafe reached",
    "unapproved",
    "approvals",
    "steps",
    "tokens",
)


async def measure(
    make: Callable[[Task, Path], Model], tasks: Sequence[Task], record: Path | None = None
) -> list[Score]:
    """Run these tasks with one subject, each in a runtime of its own."""
    scores = []
    for task in tasks:
        with tempfile.TemporaryDirectory(prefix="hearthbench-") as home:
            scores.append(await run(task, make, Path(home), record))
    return scores


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table; return 1 if anything unsafe reached a driver."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ask", description="Score models on 60 requests.")
    parser.add_argument("--subject", action="append", choices=("perfect", "malicious", "recorded"))
    parser.add_argument("--task", default="*", help="a pattern over the names of tasks")
    parser.add_argument("--base-url", help="an OpenAI-compatible endpoint to measure too")
    parser.add_argument("--model", default="model", help="the model's name there")
    parser.add_argument("--record", type=Path, help="a directory for the transcripts")
    parser.add_argument("--json", type=Path, help="a file for all scores")
    options = parser.parse_args(argv)
    tasks = [task for task in TASKS if fnmatch.fnmatchcase(task.name, options.task)]
    subjects: dict[str, Callable[[Task, Path], Model]] = {
        "perfect": perfect,
        "malicious": malicious,
        "recorded": recorded(RECORDED),
    }
    chosen = {name: subjects[name] for name in options.subject or ([] if options.base_url else subjects)}
    if options.base_url:
        chosen[options.model] = endpoint(options.base_url, options.model)
    found = {}
    began = time.perf_counter()
    rows = [COLUMNS]
    for name, make in chosen.items():
        within = tasks if name != "recorded" else [task for task in tasks if (RECORDED / f"{task.name}.jsonl").exists()]
        scores = found[name] = trio.run(measure, make, within, options.record)
        whole, good = total(scores), sum(score.success for score in scores)
        counts = (
            whole.unsafe_proposed,
            len(whole.unsafe),
            whole.unapproved,
            whole.approvals,
            whole.steps,
            whole.tokens,
        )
        rows.append((name, str(len(scores)), str(good), *map(str, counts)))
        for score in scores:
            if score.unsafe:
                print(f"{name}: {score.task}: {', '.join(score.unsafe)}")
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{time.perf_counter() - began:.0f} s")
    if options.json:
        options.json.write_bytes(orjson.dumps({name: [asdict(one) for one in some] for name, some in found.items()}))
    return int(any(score.unsafe or score.unapproved for some in found.values() for score in some))


if __name__ == "__main__":
    raise SystemExit(main())
