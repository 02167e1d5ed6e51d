"""What it takes to read a JSON document, with the checks of its depth and of repeated names, over the parser alone.

The floor is `orjson.loads` of the same bytes; both take turns in one process, in short slices, and the quickest count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
from attrs import frozen

from benchmarks.report import Row
from hearth.protocol.jsonrpc import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

SLICE_BYTES = 1 << 20
SLICES_A_ROUND = 10
TASK = {"intent": "bench", "steps": [{"tool": "gpio.set", "args": {"line": 17, "value": 1}}]}
PARAMS = {"session_id": "01KA6XJ5R2V8M3Q9T7Z4N0B1CD", "task": TASK, "subscribe": True}
SUBMIT = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "task.submit", "params": PARAMS})
LONG = orjson.dumps([{"name": f"n{number}", "value": number} for number in range(4_000)])


def slice_us(read: Callable[[bytes], Any], document: bytes) -> float:
    """Microseconds of this thread's processor time for reading a document, over one slice."""
    times = max(1, SLICE_BYTES // len(document))
    began = time.thread_time_ns()
    for _ in range(times):
        read(document)
    return (time.thread_time_ns() - began) / 1000 / times


@frozen
class Reading:
    """Reading one document."""

    name: str
    what: str
    document: bytes

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        del servers  # none is needed
        turns = [
            (slice_us(load, self.document), slice_us(orjson.loads, self.document))
            for _ in range(SLICES_A_ROUND * effort.rounds)
        ]
        whole, floor = (min(each) for each in zip(*turns, strict=True))
        note = f"{whole:.1f} us; orjson alone {floor:.1f} us; the checks {whole - floor:.1f} us"
        yield Row(self.name, self.what, whole / floor, "x floor", note=note)


READING = [
    Reading("read-submit", "a task.submit read, with the scan for repeated names", SUBMIT),
    Reading("read-long", "4,000 objects read, with this scan and the depth", LONG),
]
