"""The soak's part of docs/reliability.md: a run's figures, as a table between two marks, and the plot beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from soak.picture import draw

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
PLOT = ROOT / "docs" / "soak.png"
BEGIN, END = "<!-- soak: written by `make soak DOCS=1` -->", "<!-- end of soak -->"


def table(found: dict[str, Any]) -> str:
    """What is between the marks."""
    about, log = found["about"], found["log"]
    visits = {name: times for name, times in found["visits"].items() if ":" not in name}
    full = sum(times for name, times in found["visits"].items() if name.endswith(": refused"))
    busy, others = ([one[name] for one in found["samples"] if name in one] for name in ("busy", "others"))
    words = (
        f"{about['at']}: {about['seconds'] / 60:g} minutes, {about['clients']} clients, {sum(visits.values())} visits "
        f"({full} were refused for want of room), {log['tasks']} tasks, {log['records']} audit records in "
        f"{log['files']} files. Of "
        f"{about['cpus']} processors the daemon used {sum(busy) / len(busy):.2f}, and others than the run "
        f"{sum(others) / len(others):.2f}. It ended {found['ended_after_s']} s after SIGTERM. "
        f"Python {about['python']}, {about['system']}."
    )
    lines = [
        words,
        "",
        "| what | after the warm-up | at the end | growth | at most | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in found["verdicts"]:
        cells = [f"{one[name]:.4g}" for name in ("begin", "end")]
        unit = f", {one['unit']}" if one["unit"] else ""
        word = "flat" if one["flat"] else "**grows**"
        lines.append(
            f"| {one['what']}{unit} | {' | '.join(cells)} | {one['growth']:+.2g} | {one['allowed']:.2g} | {word} |"
        )
    lines += [f"| {what} | | | | | not judged: others kept the machine too busy |" for what in found["unjudged"]]
    wrong = found["wrong"]
    lines += ["", f"Wrong: {'; '.join(wrong)}." if wrong else "Nothing was wrong."]
    return "\n".join(lines)


def rewrite(found: dict[str, Any], page: Path = PAGE, plot: Path = PLOT) -> None:
    """Put a run's figures and plot into the docs. Raises ValueError if the page has no place for them."""
    text = page.read_text("utf-8")
    before, began, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not began or not ended:
        raise ValueError(f"{page}: there is no {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}", "utf-8")
    draw(found, plot)
