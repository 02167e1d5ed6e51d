"""Draws docs/demo.svg: two scenes of `hearth demo`, as a terminal shows them.

    python docs/picture.py

It plays the whole demo, with its daemon, its clients and its checks, and records what it prints. Times, temperatures
and identifiers are those of that run; a test compares all other text with the demo of today. The picture loads
nothing from elsewhere.
"""  # noqa: INP001  docs/ is a folder of pages, not a package

from __future__ import annotations

import html
import io
import re
import sys
from pathlib import Path

import trio
from rich.console import Console
from rich.text import Text

from hearth.cli import demo
from hearth.cli.demo.daemon import make_place
from hearth.cli.demo.stage import RichStage

PICTURE = Path(__file__).with_name("demo.svg")
SCENES = (2, 7)
"""A task, and a controller that dies."""
VARIES = re.compile(
    r"\d\d:\d\d:\d\d\.\d{3} | [\d.]+\ ms | (?<=task\ )\w{26}"
    r" | (?<=bytes\ )[0-9a-f ]+ | (?<=says\ )[-\d.]+ | -?\d+\.\d+(?=\ °C)"
    r" | edges=\S+ | data=\S+ | hex=\S+ | timestamp_ns=\S+ | (?<=pid\ )\d+",
    re.VERBOSE,
)
"""What differs from run to run."""


class Recorder(RichStage):
    """A stage that shows the chosen scenes and plays the others unseen."""

    def __init__(self) -> None:
        self.console = Console(
            file=io.StringIO(), record=True, width=98, force_terminal=True, color_system="truecolor", highlight=False
        )
        super().__init__(self.console, fast=True)
        self.console.print(Text.assemble(("$ ", "bold green"), "hearth demo"))

    def scene(self, title: str) -> None:
        """See Stage."""
        number = len(self.scenes) + 1
        if number - 1 in SCENES and number not in SCENES:
            self.console.print("\n   …", style="bright_black")
        self.console.quiet = number not in SCENES
        super().scene(title)


def record() -> Console:
    """Play the demo; return the console with what it showed. Raises DemoFailed."""
    stage = Recorder()

    async def play() -> None:
        with make_place() as place:
            await demo.play_scenes(stage, place)

    trio.run(play)
    return stage.console


def drawn(console: Console) -> str:
    """Return the picture of what a console shows."""
    svg = console.export_svg(title="hearth demo", clear=False, unique_id="hearth")
    # The terminal's font comes from elsewhere: without it, a reader sees their own.
    return re.sub(r"\s*(@font-face \{.*?\n    \}|<!--.*?-->)", "", svg, flags=re.DOTALL)


def told(svg: str) -> list[str]:
    """Return the words of a picture, without what differs from run to run, such as where a line is broken."""
    lines: dict[float, list[tuple[float, str]]] = {}
    for words in re.finditer(r'<text class="hearth-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        lines.setdefault(float(words[2]), []).append((float(words[1]), html.unescape(words[3])))
    texts = ("".join(text for _, text in sorted(lines[y])).replace("\xa0", " ") for y in sorted(lines))
    words = VARIES.sub("…", " ".join(" ".join(texts).replace("│", " ").split())).split()
    # How many values that differ follow each other, and where a line is broken within one, differs too.
    return [word for word, former in zip(words, ["", *words], strict=False) if not (word == former == "…")]


def main() -> int:
    """Write the picture."""
    PICTURE.write_text(drawn(record()), "utf-8")
    sys.stdout.write(f"{PICTURE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
