"""Many seeds: over several processes, with progress, figures, and for what fails the one command that replays it.

Owns the processes and the sums. A seed that does not end in real time has failed like one whose judge says so. What a
run has come to is kept in a file, if one is named, from which it can be taken up again.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from .marks import missed

PATIENCE_S = 120
"""Seconds of real time after which a seed has failed."""
CHUNK = 20
"""Seeds that a process plays between two reports."""


class Hung(BaseException):
    """A seed took too long: under a virtual clock a deadlock without a deadline spins for ever."""


def _alarm(_number, _frame):
    raise Hung


def one(seed):
    """Play and judge a seed; its figures, and why it failed (None, or (invariant or None, text))."""
    from .observer import judge
    from .scenario import play

    figures: Counter[str] = Counter({"seeds": 1})
    failure = None
    former = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(PATIENCE_S)
    try:
        tape = play(seed)
        figures += figures_of(tape)
        verdict = judge(tape)
        figures.update({f"judged: {name}": count for name, count in verdict.work.items()})
        figures.update(f"reached: {name}" for name in verdict.reached)
        if verdict.violation is not None:
            failure = (verdict.violation.invariant, str(verdict.violation))
    except Hung:
        failure = (None, f"it did not end within {PATIENCE_S} s of real time")
    except Exception:  # noqa: BLE001  whatever a world dies of is told with its seed
        failure = (None, traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
    return figures, failure


def figures_of(tape):
    """What happened on a tape, in numbers."""
    figures: Counter[str] = Counter()
    for entry in tape.entries:
        kind, what = entry.kind, entry.what
        if kind == "bus.begin":
            figures["transactions"] += 1
        elif kind == "bus.end" and what["outcome"] != "done":
            figures[f"transactions that ended in {what['outcome']}"] += 1
        elif kind == "disk.write":
            figures["audit records"] += what["data"].count(b"\n")
            figures["tasks"] += what["data"].count(b'"event":"task.submit"')
            figures["sessions"] += what["data"].count(b'"event":"session.open"')
            figures["rollbacks"] += what["data"].count(b'"event":"task.step.rollback"')
        elif kind == "disk.fails":
            figures["writes and syncs that failed"] += 1
        elif kind == "client.opens":
            figures["connections"] += 1
        elif kind == "client.sends":
            figures["lines sent"] += 1
        elif kind == "client.receives":
            figures["lines received"] += 1
        elif kind == "fault" and what["what"] not in ("clear", "return", "disk.heals", "disk.free"):
            figures[f"fault: {what['what']}"] += 1
        elif kind == "daemon.starts":
            figures["lives of the daemon"] += 1
        elif kind == "daemon.told":
            figures[f"signal: {what['signal']}"] += 1
    figures["entries"] = len(tape.entries)
    figures["virtual seconds"] = round(tape.entries[-1].at)
    return figures


# --- processes ------------------------------------------------------------------------------------------------------


def _work(seeds, out, play_one):
    """A process's share: figures and failures as lines of JSON."""
    import gc

    play_one(seeds[0])
    # What is loaded by now lasts; a world's own objects are freed as they are dropped.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    for start in range(0, len(seeds), CHUNK):
        chunk = seeds[start : start + CHUNK]
        figures: Counter[str] = Counter()
        failed = []
        before = time.process_time()
        for seed in chunk:
            mine, failure = play_one(seed)
            figures += mine
            if failure is not None:
                failed.append([seed, *failure])
        line = {"figures": figures, "failed": failed, "to": chunk[-1], "cpu_s": time.process_time() - before}
        out.write(json.dumps(line) + "\n")
        out.flush()


class Run:
    """Seeds from `start` on, `count` of them, over `jobs` processes; `play_one` is `one`, or does the like."""

    def __init__(self, start, count, jobs, *, stop_after=3, state=None, every_s=10.0, play_one=one) -> None:
        self.start, self.count, self.jobs = start, count, jobs
        self.figures: Counter[str] = Counter()
        self.failed: list = []
        self.cpu_s = self.real_s = 0.0
        self._play_one = play_one
        self._stop_after = stop_after
        self._state = state
        self._every_s = every_s

    def run(self) -> bool:
        """Run them; True when none failed, and a run of many came to each of the rare states."""
        began = said = time.monotonic()
        workers = [self._fork(job) for job in range(self.jobs)]
        rests = {reader: b"" for _, reader in workers}
        while rests:
            ready, _, _ = select.select(list(rests), [], [], 1.0)
            for reader in ready:
                data = os.read(reader, 1 << 16)
                if not data:
                    del rests[reader]
                    os.close(reader)
                    continue
                *lines, rests[reader] = (rests[reader] + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            self.real_s = time.monotonic() - began
            if time.monotonic() - said > self._every_s or not rests:
                said = time.monotonic()
                self._say()
            if len(self.failed) >= self._stop_after:
                for pid, _ in workers:
                    os.kill(pid, signal.SIGKILL)
        for pid, _ in workers:
            _, status = os.waitpid(pid, 0)
            if status and len(self.failed) < self._stop_after:
                self.failed.append([None, None, f"a process of the run ended with status {status}"])
        # Where seeds failed, those after them were not played.
        for name in () if self.failed else missed(self.figures):
            self.failed.append([None, None, f"no world came to this: {name}"])
            print(f"{self.count} worlds, and none came to this: {name}", flush=True)
        return not self.failed

    def _fork(self, job):
        seeds = list(range(self.start + job, self.start + self.count, self.jobs))
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.close(writer)
            return pid, reader
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w") as out:
                if seeds:
                    _work(seeds, out, self._play_one)
            status = 0
        except BaseException:  # noqa: BLE001  a forked process must never return into its parent's frames
            traceback.print_exc()
        os._exit(status)

    def _take(self, line) -> None:
        self.figures.update(line["figures"])
        for seed, invariant, text in line["failed"]:
            print(f"seed {seed} failed: {invariant or text.strip().splitlines()[-1]}", flush=True)
            self.failed.append([seed, invariant, text])
        self.cpu_s += line["cpu_s"]

    def _say(self) -> None:
        done = self.figures["seeds"]
        print(
            f"{done}/{self.count} seeds, {done / max(self.real_s, 1e-9):.1f} a second, "
            f"{1000 * self.cpu_s / max(done, 1):.1f} ms of CPU each, {len(self.failed)} failed",
            flush=True,
        )
        if self._state is not None:
            draft = Path(f"{self._state}.part")
            draft.write_text(self.text())
            draft.rename(self._state)

    def text(self) -> str:
        """The figures so far, as a table and as JSON."""
        done = self.figures["seeds"]
        summary = {
            "from": self.start,
            "seeds": done,
            "of": self.count,
            "failed": [seed for seed, *_ in self.failed],
            "real_s": round(self.real_s, 1),
            "cpu_s": round(self.cpu_s, 1),
            "cpu_ms_a_seed": round(1000 * self.cpu_s / max(done, 1), 2),
            "seeds_a_second": round(done / max(self.real_s, 1e-9), 2),
            "virtual_hours": round(self.figures["virtual seconds"] / 3600, 1),
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        }
        figures = dict(sorted(self.figures.items()))
        rows = [f"| {name} | {count:,} |" for name, count in figures.items() if name != "seeds"]
        table = "\n".join(["| | |", "| --- | ---: |", *(f"| {k} | {v} |" for k, v in summary.items()), *rows])
        return f"{table}\n\n{json.dumps({**summary, 'figures': figures})}\n"


def tell_failures(failed, *, seconds) -> None:
    """For each failure the command that replays it, and for one that the judge found the scenario, made small."""
    for seed, invariant, text in failed:
        if seed is None:
            print(f"\n{text}")
            continue
        print(f"\nseed {seed} failed:\n{text}\n  python -m tests.simulation --seed {seed} --show")
        if invariant is not None:
            from .shrink import shrink

            print(shrink(seed, invariant, seconds=seconds).render())
