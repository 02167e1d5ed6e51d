"""The plot of a soak: what the daemon took over time, for a person who wants to see that it is flat.

matplotlib is an extra; without it there is no plot, and the run counts all the same.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from soak.judge import warm_up

if TYPE_CHECKING:
    from pathlib import Path

PANELS = (
    ("memory, MiB", (("rss", "resident", "#9aa5b1"), ("private", "private", "#1f5fa8"))),
    ("live blocks, thousands", (("blocks", "", "#1f5fa8"),)),
    (
        "descriptors",
        (("descriptors", "all", "#2a7f62"), ("connections", "connections", "#9aa5b1"), ("held", "others", "#8c2f39")),
    ),
    ("threads", (("threads", "", "#2a7f62"),)),
    ("latency, ms", (("max", "highest", "#d9dee3"), ("p99", "99 %", "#d08a2e"), ("p50", "median", "#8c2f39"))),
    ("tasks per second", (("rate", "", "#5b4b8a"),)),
    ("processors in use", (("busy", "", "#5b4b8a"),)),
    ("audit log, MiB", (("log", "", "#555555"),)),
)
JUDGED = {name: name for name in ("private", "blocks", "held", "threads")} | {
    "p50": "quiet_p50",
    "p99": "quiet_p99",
}
"""Whose robust line is drawn with which."""


def draw(found: dict[str, Any], path: Path) -> Path | None:
    """Write the plot as PNG; None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    samples = found["samples"]
    unit, size = ("minutes", 60) if samples[-1]["t"] >= 120 else ("seconds", 1)
    begin = warm_up(samples[-1]["t"]) / size
    verdicts = {one["series"]: one for one in found["verdicts"]}
    figure = Figure(figsize=(11, 12), dpi=90, layout="constrained")
    axes = figure.subplots(4, 2, sharex=True).flat
    for axis, (title, lines) in zip(axes, PANELS, strict=True):
        axis.set_title(title, fontsize=11, loc="left")
        axis.axvspan(0, begin, color="#f2f2ee", zorder=0)
        for name, label, colour in lines:
            scale = 1000 if name == "blocks" else 1
            points = [(one["t"] / size, one[name] / scale) for one in samples if one.get(name) is not None]
            if not points:
                continue
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=1, label=label or None)
            one = verdicts.get(JUDGED.get(name, ""))
            if one is not None:
                ends = [samples[-1]["t"] / size - one["seconds"] / size, samples[-1]["t"] / size]
                line = [one["begin"] / scale, one["end"] / scale]
                axis.plot(ends, line, color="black" if one["flat"] else "red", linewidth=1.4, linestyle="--")
        if title.startswith("latency"):
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.grid(visible=True, color="#e6e6e6", linewidth=0.6)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if any(label for _, label, _ in lines):
            axis.legend(fontsize=8, frameon=False, loc="lower right", ncols=3)
    for axis in list(figure.axes)[-2:]:
        axis.set_xlabel(unit)
    about = found["about"]
    figure.suptitle(
        f"hearthd under {about['clients']} clients for {about['seconds'] / 60:g} min, {about['at']}: "
        "dashed is the robust line through the judged part; grey is the warm-up",
        fontsize=11,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
