"""One soak from its beginning to its end: a deployment, crowds in other processes, a meter, and the judge's word on it.

It writes what it found as JSON; it judges nothing itself.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen
from soak import ending
from soak.deployment import Deployment
from soak.judge import Tolerance, judge
from soak.limits import TOLERANCES
from soak.meter import Meter, Probe

import hearth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 4
CROWD_ENDS_WITHIN = 60.0


@frozen
class Plan:
    """What is to be done. `pause` is the mean seconds between two visits of a client."""

    seconds: float
    clients: int = 50
    pause: float = 0.6
    seed: int = 1
    plant: dict[str, float] = field(factory=dict)
    """What the daemon is made to leak each second, by name; for runs that must fail."""
    tolerances: tuple[Tolerance, ...] = TOLERANCES
    period: float = 1.0
    """Seconds between two samples."""
    rotate_bytes: int = 1 << 20


class Crowds:
    """Clients in other processes."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self.files: list[Path] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._deployment, self._plan = deployment, plan

    def start(self) -> None:
        """Let all of them in."""
        plan = self._plan
        processes = min(PROCESSES, plan.clients)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "tests"), str(ROOT)]))
        env.pop("COVERAGE_PROCESS_CONFIG", None)
        first = 0
        for number in range(processes):
            clients = plan.clients // processes + (number < plan.clients % processes)
            self.files.append(self._deployment.folder / f"crowd-{number}.tasks")
            spec = {
                "way": self._deployment.way(), "first": first, "clients": clients, "seed": plan.seed * 1000,
                "pause": plan.pause, "tasks": str(self.files[-1]),
            }  # fmt: skip
            first += clients
            process = subprocess.Popen(
                [sys.executable, "-m", "soak.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
            )
            self._processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(spec) + "\n")
            process.stdin.flush()

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes]

    def end(self) -> tuple[dict[str, int], list[str]]:
        """See them out; returns how often what was done, and what went wrong."""
        done: dict[str, int] = {}
        wrong: list[str] = []
        for process in self._processes:
            # All at once: else each waits for the one before.
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        for process in self._processes:
            try:
                said, _ = process.communicate(timeout=CROWD_ENDS_WITHIN)
                report = json.loads(said)
            except (subprocess.TimeoutExpired, ValueError):
                process.kill()
                process.communicate()
                wrong.append(f"a crowd of clients did not end as it should (status {process.returncode})")
                continue
            wrong += report["problems"]
            for name, times in report["done"].items():
                done[name] = done.get(name, 0) + times
        self._processes.clear()
        return dict(sorted(done.items())), wrong

    def kill(self) -> None:
        """Leave none behind."""
        for process in self._processes:
            process.kill()
            process.communicate()


def soak(plan: Plan, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Do it, and return all that was found: see `docs/reliability.md` for what the members mean."""
    # A socket needs a short path, and a log a disk, which /tmp may not be: it matters little how fast it is.
    folder = Path(tempfile.mkdtemp(prefix="hearth-soak-", dir="/tmp"))
    try:
        return _soak(Deployment(folder, plan.rotate_bytes), plan, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _soak(deployment: Deployment, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    crowds = Crowds(deployment, plan)
    with ExitStack() as stack:
        stack.callback(deployment.daemon.end)
        stack.callback(crowds.kill)
        deployment.start()
        meter = Meter(deployment, plan.plant)
        stack.callback(meter.close)
        rest = meter.at_rest()
        probe = Probe(deployment)
        stack.callback(probe.close)
        crowds.start()
        meter.ours = crowds.pids
        probe.start()
        _watch(meter, probe, deployment, plan, say)
        say("the crowd leaves")
        done, wrong = crowds.end()
        probe.end()
        probe.close()
        after, left = ending.wait_until_empty(meter, rest)
        left += meter.unwell()
        meter.close()
        took, ended = ending.stop(deployment)
        say(f"the daemon ended after {took:.1f} s; looking at its log")
        told = ending.acknowledged(crowds.files) | dict.fromkeys(probe.tasks, "SUCCESS")
        log, holes = ending.check_log(deployment, told)
        verdicts = judge(meter.samples, plan.tolerances)
    return {
        "about": _about(plan),
        "wrong": [*wrong, *left, *ended, *holes],
        "verdicts": [{**asdict(one), "flat": one.flat, "words": str(one)} for one in verdicts],
        "unjudged": [one.what for one in plan.tolerances if one.series not in {each.series for each in verdicts}],
        "visits": done,
        "log": log,
        "ended_after_s": round(took, 2),
        "rest": {"before": rest, "after": after},
        "samples": meter.samples,
    }


def _watch(meter: Meter, probe: Probe, deployment: Deployment, plan: Plan, say: Callable[[str], None]) -> None:
    """Take samples for as long as it was asked for."""
    begun = time.monotonic()
    number = 0
    while (now := time.monotonic() - begun) < plan.seconds:
        number += 1
        time.sleep(max(0.0, begun + number * plan.period - time.monotonic()))
        assert deployment.daemon.process is not None
        if deployment.daemon.process.poll() is not None:
            raise RuntimeError(f"the daemon ended in the middle of it:\n{deployment.daemon.said[-4000:]}")
        if probe.error is not None:
            probe.end()
        sample = meter.sample(probe.taken())
        if number % (30 / plan.period) == 0:
            say(
                f"{now / 60:5.1f} min  {sample['private']:.1f} MiB, {sample['descriptors']} descriptors, "
                f"{sample['threads']} threads, {sample.get('p50', 0):.1f} ms, {sample.get('rate', 0):.0f} tasks/s, "
                f"{sample.get('busy', 0):.2f} CPUs"
            )


def _about(plan: Plan) -> dict[str, Any]:
    return {
        "hearth": hearth.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
        "seconds": plan.seconds,
        "clients": plan.clients,
        "pause_s": plan.pause,
        "seed": plan.seed,
        "plant": plan.plant,
        "load_average": os.getloadavg(),
    }


def passed(found: dict[str, Any]) -> bool:
    """Whether all is well."""
    return not found["wrong"] and all(one["flat"] for one in found["verdicts"])


def words(found: dict[str, Any]) -> Sequence[str]:
    """What a person wants to know, in lines."""
    lines = [one["words"] for one in found["verdicts"]]
    lines += [f"{what:32} not judged: others kept the machine too busy" for what in found["unjudged"]]
    lines += [f"WRONG: {what}" for what in found["wrong"]]
    log = found["log"]
    lines.append(
        f"{log['tasks']} tasks and {log['records']} records in {log['files']} files; "
        f"{log['acknowledged']} acknowledgements held against them; ended {found['ended_after_s']} s after SIGTERM"
    )
    return lines
