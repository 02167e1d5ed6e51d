"""What the watchers saved, for people: microseconds of CPU time per exchange, by layer, function and line."""

from __future__ import annotations

import io
import json
import pstats
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from benchmarks.servers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LAYERS = {
    "trio/": "Trio: scheduling, waiting, channels",
    "outcome/": "Trio: scheduling, waiting, channels",
    "sortedcontainers/": "Trio: scheduling, waiting, channels",
    "collections/": "Trio: scheduling, waiting, channels",
    "hearth/protocol/": "protocol: framing, JSON-RPC, parameters",
    "actors/transport.py": "carrier: the system calls to receive and send",
    "actors/listeners/": "carrier: the system calls to receive and send",
    "trio_websocket/": "carrier: the WebSocket library",
    "wsproto/": "carrier: the WebSocket library",
    "actors/connection.py": "connection: dispatch, answers, send queue",
    "actors/send_queue.py": "connection: dispatch, answers, send queue",
    "actors/session.py": "session: policy, checks, bookkeeping",
    "actors/admission.py": "session: policy, checks, bookkeeping",
    "actors/task_registry.py": "session: policy, checks, bookkeeping",
    "actors/runtime.py": "session: policy, checks, bookkeeping",
    "hearth/policy/": "session: policy, checks, bookkeeping",
    "hearth/_util/ids.py": "ids",
    "ulid/": "ids",
    "actors/task.py": "task and its events",
    "actors/events.py": "task and its events",
    "actors/supervisor.py": "task and its events",
    "actors/journal.py": "audit: records, chain, write",
    "hearth/audit/": "audit: records, chain, write",
    "actors/": "bus, driver, tool",
    "drivers/": "bus, driver, tool",
    "hearth/tools.py": "bus, driver, tool",
}
"""The beginning of a file's path -> its layer; the first that fits."""

_OUTSIDE = ("benchmarks/", "<frozen runpy>")
"""What every sample is inside of."""


def render(how: str, path: Path, exchanges: int, cpu_us: float, top: int) -> Iterator[str]:
    """What a watcher saved at `path`: `exchanges` took place, each `cpu_us` when nobody watched."""
    yield f"{cpu_us:.1f} us of the server's CPU time per exchange"
    if how == "sample":
        yield from _samples(json.loads(path.read_text()), cpu_us, top)
    elif how == "steps":
        yield from _steps(json.loads(path.read_text()), exchanges, top)
    else:
        text = io.StringIO()
        pstats.Stats(str(path), stream=text).strip_dirs().sort_stats("tottime").print_stats(top)
        yield f"{exchanges} exchanges, slowed down by cProfile; ncalls / {exchanges} is calls per exchange"
        yield from text.getvalue().splitlines()


def layers(content: dict[str, Any], cpu_us: float) -> list[tuple[str, float]]:
    """Microseconds per exchange by the layer whose function is running, the most expensive first."""
    found: Counter[str] = Counter()
    for file, _line, _name, count in content["own"]:
        found[_layer(file)] += count
    total = found.total() or 1
    return [(layer, count / total * cpu_us) for layer, count in found.most_common()]


def _samples(content: dict[str, Any], cpu_us: float, top: int) -> Iterator[str]:
    total = max(1, content["samples"])
    yield f"{total} samples"
    yield ""
    yield "      us      %  layer (whose function is running)"
    for layer, us in layers(content, cpu_us):
        yield f"{us:8.2f}  {us / cpu_us:5.1%}  {layer}"
    for key, title in (("own", "function itself"), ("all", "function and what it calls"), ("lines", "line")):
        yield ""
        yield f"      us      %  {title}"
        for file, line, name, count in [one for one in content[key] if not short(one[0]).startswith(_OUTSIDE)][:top]:
            yield f"{count / total * cpu_us:8.2f}  {count / total:5.1%}  {short(file)}:{line} {name}"


def _steps(content: dict[str, Any], exchanges: int, top: int) -> Iterator[str]:
    steps, started = Counter(content["steps"]), Counter(content["started"])
    yield f"per exchange, of {exchanges}:"
    yield f"{content['turns'] / exchanges:8.2f}  turns of the event loop"
    yield f"{steps.total() / exchanges:8.2f}  steps of tasks, of these:"
    for name, count in steps.most_common(top):
        yield f"{count / exchanges:12.2f}  {name}"
    yield f"{started.total() / exchanges:8.2f}  tasks started"


def _layer(file: str) -> str:
    if file.startswith("<attrs generated methods "):
        # "<attrs generated methods hearth.protocol.methods.TaskGet>"
        module = file.rsplit(maxsplit=1)[-1].rpartition(".")[0]
        file = module.replace(".", "/").replace("hearth/actors", "actors").replace("hearth/drivers", "drivers") + ".py"
    path = short(file)
    return next((layer for start, layer in LAYERS.items() if path.startswith(start)), "the rest")


def short(file: str) -> str:
    """A path from the last folder that says something on."""
    for mark in ("site-packages/", f"python{sys.version_info[0]}.{sys.version_info[1]}/"):
        if mark in file:
            return file.rsplit(mark, 1)[1]
    if file.startswith(f"{ROOT}/"):
        file = file[len(str(ROOT)) + 1 :]
        # The links in hearth/ lead to the same files.
        return file.removeprefix("hearth/") if file.startswith(("hearth/actors/", "hearth/drivers/")) else file
    return file
