"""The crowd of a soak: `python -m soak.crowd` with a JSON object on its first line of input, until its input ends.

Each client is a thread that makes one visit after the other with pauses between them, so that the load is the same
from the first minute to the last. Acknowledged tasks and how they ended go to a file; what went wrong goes to
standard output.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak.visits import VISITS, DaemonFull, Visitor

if TYPE_CHECKING:
    from collections.abc import Mapping

ALWAYS = {0: "trouble", 1: "hoard"}
"""The clients that do one thing all the time, by their number."""
MOST_PROBLEMS = 20
JOINED_WITHIN = 45.0
"""Seconds: longer than any wait of a visit."""


class Tasks:
    """The file of acknowledged tasks: a line with the id, and one with its status once it is known to somebody."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._lines = 0

    def told(self, task: str, status: str) -> None:
        """One more line."""
        with self._lock:
            self._file.write(f"{task} {status}\n")

    def close(self) -> None:
        """No more lines."""
        self._file.close()


class Crowd:
    """All clients of one process."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.over = threading.Event()
        self.tasks = Tasks(Path(spec["tasks"]))
        self.problems: list[str] = []
        self.done: Counter[str] = Counter()
        self._pause = spec["pause"]
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=[spec, seed], name=f"client {seed}", daemon=True)
            for seed in range(spec["first"], spec["first"] + spec["clients"])
        ]

    def start(self) -> None:
        """Let them in."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Let them finish what they are at; whoever does not is a problem."""
        self.over.set()
        limit = time.monotonic() + JOINED_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))
            if thread.is_alive():
                self.problems.append(f"{thread.name} hangs")
        self.tasks.close()

    def _client(self, spec: Mapping[str, Any], seed: int) -> None:
        visitor = Visitor(spec["way"], seed + spec["seed"], self.over, self.tasks.told)
        names, weights = zip(*VISITS, strict=True)
        # They do not all come at once.
        self.over.wait(visitor.rng.uniform(0, self._pause))
        while not self.over.is_set():
            # One makes trouble all the time, and one has as much kept as it can.
            (name,) = (ALWAYS[seed],) if seed in ALWAYS else visitor.rng.choices(names, weights)
            self._visit(visitor, name)
            self.over.wait(visitor.rng.expovariate(1 / self._pause))

    def _visit(self, visitor: Visitor, name: str) -> None:
        outcome = name
        try:
            getattr(visitor, name)()
        except DaemonFull:
            outcome = f"{name}: full deployment"
        except Exception:  # noqa: BLE001  whatever went wrong is told, and fails the run
            outcome = f"{name}: failed"
            with self._lock:
                if len(self.problems) < MOST_PROBLEMS:
                    self.problems.append(f"{threading.current_thread().name}, {name}: {traceback.format_exc(limit=-2)}")
        with self._lock:
            self.done[outcome] += 1


def main() -> None:
    """See above."""
    crowd = Crowd(json.loads(sys.stdin.readline()))
    crowd.start()
    sys.stdin.read()
    crowd.end()
    print(json.dumps({"done": crowd.done, "problems": crowd.problems}), flush=True)


if __name__ == "__main__":
    main()
