"""The plot of a soak: what the daemon took over time, for a person who wants to see that it is flat.

Each panel is drawn as the plots of jobs are. Pillow is an extra; without it there is no plot, and the run counts all
the same.
"""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hearth.hcp import plot

if TYPE_CHECKING:
    from pathlib import Path

PANELS = (
    ("memory, MiB", (("rss", "resident"), ("private", "private"))),
    ("live blocks, thousands", (("blocks", "blocks"),)),
    ("descriptors", (("descriptors", "all"), ("connections", "connections"), ("held", "others"))),
    ("threads", (("threads", "threads"),)),
    ("latency, ms", (("p50", "median"), ("p99", "99 %"))),
    ("tasks per second", (("rate", "tasks"),)),
    ("processors in use", (("busy", "processors"),)),
    ("audit log, MiB", (("log", "log"),)),
)
JUDGED = {name: name for name in ("private", "blocks", "held", "threads")} | {"p50": "quiet_p50", "p99": "quiet_p99"}
"""Whose robust line is drawn with which."""


def draw(found: dict[str, Any], path: Path) -> Path | None:
    """Write the plot as PNG; None without Pillow."""
    if find_spec("PIL") is None:
        return None
    from PIL import Image

    samples = found["samples"]
    unit, size = ("minutes", 60) if samples[-1]["t"] >= 120 else ("seconds", 1)
    verdicts = {one["series"]: one for one in found["verdicts"]}
    picture = Image.new("RGB", (2 * plot.WIDTH, len(PANELS) // 2 * plot.HEIGHT), "white")
    for number, (title, lines) in enumerate(PANELS):
        # From zero on, so that what is flat looks flat.
        series: dict[str, list[float | None]] = {"zero": [0.0] * len(samples)}
        for name, label in lines:
            scale = 1000 if name == "blocks" else 1
            series[label] = [None if one.get(name) is None else one[name] / scale for one in samples]
            if (judged := verdicts.get(JUDGED.get(name, ""))) is not None:
                series[f"{label}, its line"] = [_on_line(judged, samples[-1]["t"] - one["t"], scale) for one in samples]
        request = {"title": title, "x_label": unit, "x": [one["t"] / size for one in samples], "series": series}
        with Image.open(io.BytesIO(plot.draw(request))) as panel:
            picture.paste(panel, (number % 2 * plot.WIDTH, number // 2 * plot.HEIGHT))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return path


def _on_line(judged: dict[str, Any], left: float, scale: float) -> float | None:
    """A point of the robust line through the judged part, so many seconds before the end; None before it begins."""
    if left > judged["seconds"]:
        return None
    done = 1 - left / judged["seconds"]
    return (judged["begin"] + done * (judged["end"] - judged["begin"])) / scale
