"""What a soak judges, and by how much each may grow: stated once, for the judge, its tests and the page."""

from __future__ import annotations

from soak.judge import Tolerance

TOLERANCES = (
    Tolerance("private", "private memory", "MiB", 4.0, 0.04),
    Tolerance("blocks", "live blocks of Python's allocator", "", 12_000, 0.02),
    Tolerance("held", "descriptors beside connections", "", 4.0),
    Tolerance("threads", "threads", "", 3.0),
    Tolerance("quiet_p50", "latency, median", "ms", 0.5, 0.3),
    Tolerance("quiet_p99", "latency, 99th percentile", "ms", 10.0, 0.5),
    Tolerance("quiet_work", "processor time for a task", "ms", 0.2, 0.25),
)
"""In the order in which they are told."""
