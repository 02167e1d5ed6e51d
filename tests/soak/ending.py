"""How a soak ends: the daemon is idle, the daemon ends as it is told to, and its log has all that was acknowledged.

`Findings` are sentences about what is wrong; there should be none.
"""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from soak.deployment import ENDS_WITHIN, IDLE_TTL

from hearth.audit.files import rotated_files
from hearth.audit.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from soak.deployment import Deployment
    from soak.meter import Meter

TERMINAL = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
EMPTY_WITHIN = 6.0 * IDLE_TTL
"""Seconds: sessions die of silence, then the MCP clients whose they were."""
MORE_AT_REST = {"descriptors": 4, "threads": 12, "sessions": 0, "tasks": 0}
"""By how much each may be above what it was before the first client came. Trio keeps idle threads for ten seconds."""
MOST = 10
"""Findings of one kind that are told."""


def wait_until_empty(meter: Meter, rest: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Wait until nobody is there any more; returns what there is then, and what should not be."""
    limit = time.monotonic() + EMPTY_WITHIN
    while True:
        now = meter.at_rest()
        over = {
            name: now[name] for name, more in MORE_AT_REST.items() if name in rest and now[name] > rest[name] + more
        }
        if not over or time.monotonic() > limit:
            said = [
                f"{name}: {value:g} are left in an idle daemon, {rest[name]:g} were there before"
                for name, value in over.items()
            ]
            return now, said
        time.sleep(0.2)


def stop(deployment: Deployment) -> tuple[float, list[str]]:
    """SIGTERM; returns how long the end took, and what was wrong with it."""
    begun = time.monotonic()
    deployment.daemon.signal(15)
    try:
        status = deployment.daemon.process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        deployment.daemon.kill()
        return time.monotonic() - begun, [f"the daemon had not ended {ENDS_WITHIN:g} s after SIGTERM"]
    deployment.daemon.wait()
    found = [] if status == 0 else [f"the daemon ended with {status}"]
    found += [f"it said {word!r}" for word in ("crashed", "Traceback") if word in deployment.daemon.said]
    return time.monotonic() - begun, found


def records(audit: Path) -> Iterable[dict[str, Any]]:
    """Every record of a log, oldest first; it is never in memory whole."""
    for file in (*rotated_files(audit), audit):
        with file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)


def acknowledged(files: Iterable[Path]) -> dict[str, str]:
    """By task: how it ended, as clients were told; "" where nobody waited for it."""
    found: dict[str, str] = {}
    for file in files:
        for line in file.read_text("utf-8").splitlines():
            task, _, status = line.partition(" ")
            found[task] = status or found.get(task, "")
    return found


def check_log(deployment: Deployment, told: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Hold the log against what clients were told; returns counts, and what is wrong."""
    audit = deployment.daemon.audit
    report = verify([audit], audit.with_name(audit.name + ".key.pub"))
    wrong = [] if report.ok else [f"the audit log does not verify: {report.first_bad}"]
    tasks, holes = check_records(records(audit), told)
    counts = {
        "records": report.records,
        "files": len(report.files),
        "signed_to": report.signed_to,
        "tasks": tasks,
        "acknowledged": len(told),
    }
    return counts, [*wrong, *holes]


def check_records(log: Iterable[dict[str, Any]], told: dict[str, str]) -> tuple[int, list[str]]:
    """How many tasks these records have, and what is wrong with them by what clients were told."""
    wrong: list[str] = []
    submitted: dict[str, int] = {}
    finished: dict[str, str] = {}
    twice: list[str] = []
    sessions = steps = 0
    for record in log:
        match record["event"]:
            case "task.submit":
                submitted[record["task_id"]] = submitted.get(record["task_id"], 0) + 1
            case "task.finish":
                if record["task_id"] in finished:
                    twice.append(record["task_id"])
                finished[record["task_id"]] = record["status"]
            case "task.step.start":
                steps += 1
            case "task.step.finish":
                steps -= 1
            case "session.open":
                sessions += 1
            case "session.close":
                sessions -= 1
    for what, tasks in (
        ("acknowledged and not on record", [task for task in told if task not in submitted]),
        ("submitted twice on record", [task for task, times in submitted.items() if times > 1]),
        ("ended twice on record", twice),
        ("submitted and without an end on record", [task for task in submitted if finished.get(task) not in TERMINAL]),
        (
            "ended otherwise than its client was told",
            [task for task, status in told.items() if status and status != finished.get(task)],
        ),
    ):  # fmt: skip
        wrong += [f"task {task} is {what}" for task in tasks[:MOST]]
        if len(tasks) > MOST:
            wrong.append(f"and {len(tasks) - MOST} more tasks are {what}")
    if sessions or steps:
        wrong.append(f"on record, {sessions} sessions and {steps} steps have begun and not ended")
    return len(submitted), wrong
