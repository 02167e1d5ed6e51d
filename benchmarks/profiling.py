"""Where the server's time goes under one of the loads of `rates`: starts it under a profiler, drives it, prints."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.findings import render
from benchmarks.servers import RESULTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.rates import Rate
    from benchmarks.servers import Servers

WRITTEN_WITHIN = 20.0


def profile(servers: Servers, measure: Rate, seconds: float, *, how: str, top: int) -> Iterator[str]:
    """The lines of a profile of `measure`'s server under its load; `how` is a name in WATCHERS."""
    path = RESULTS / f"profile-{measure.name}.{'pstats' if how == 'cprofile' else 'json'}"
    path.unlink(missing_ok=True)
    options = ["--profile", str(path), "--how", how]
    server = measure.hearthd(servers, f"profile-{measure.name}", options)
    load = measure.connect(server, measure.load)
    try:
        load.run(min(1.0, seconds))
        before = server.cpu_seconds()
        exchanges = len(load.run(seconds).latencies)
        cpu = (server.cpu_seconds() - before) / exchanges
        os.kill(server.pid, signal.SIGUSR1)
        exchanges = len(load.run(seconds).latencies)
        os.kill(server.pid, signal.SIGUSR2)
        _await(path)
    finally:
        load.close()
    yield from render(how, path, exchanges, cpu * 1e6, top)
    yield ""
    yield f"saved as {path}"


def _await(path: Path) -> None:
    until = time.monotonic() + WRITTEN_WITHIN
    while not path.exists():
        if time.monotonic() > until:
            raise RuntimeError(f"the server wrote no profile to {path} within {WRITTEN_WITHIN:g} s")
        time.sleep(0.02)
