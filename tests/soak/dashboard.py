"""The dashboard for a long time, in a real browser: 50 series, each measured ten times a second.

    python -m tests.soak.dashboard --minutes 60

It prints what Chromium took of one core, how the page's memory went, and whether the page has all that was measured.
Chromium's CPU time is that of all its processes. The page's memory is its JavaScript heap after a collection.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import trio
from attrs import asdict, frozen

from hearth import connect, step

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from soak.judge import Tolerance, Verdict, judge  # noqa: E402
from support.chromium import Browser, chromium, driving  # noqa: E402
from support.hearthd import Hearthd  # noqa: E402
from support.ports import free_port  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

SERIES = 50
PERIOD_S = 0.1
GOAL = 0.25
"""Of one core."""
FLAT = (
    Tolerance("heap", "JavaScript heap", "MiB", 2.0, 0.1),
    Tolerance("nodes", "nodes of the page", "", 200.0, 0.1),
)
WARM_UP_S = 70.0
"""Until the plots of a minute are full."""


@frozen
class Watched:
    """What a run found."""

    seconds: float
    share: float
    """Of one core, by all processes of the browser."""
    daemon_share: float
    verdicts: tuple[Verdict, ...]
    shown: int
    """Series that the page shows with values of the last minute."""
    missed: str | None
    """What the page says it has missed."""
    samples: tuple[dict[str, float], ...]


def profile(folder: Path) -> Path:
    """A board with 50 sensors, of which each is the sender of the tank's level."""
    sim = (ROOT / "drivers" / "boards" / "sim.toml").read_text()
    sensors = "".join(
        f'[sensors.level{number:02}]\nkind = "mcp3221"\nbus = 1\naddr = 0x4d\n' for number in range(SERIES)
    )
    path = folder / "board.toml"
    (folder / "sim.dbc").write_bytes((ROOT / "drivers" / "boards" / "sim.dbc").read_bytes())
    path.write_text(sim.replace("[sensors.temperature]", f"{sensors}[sensors.temperature]"))
    return path


async def watch(minutes: float, *, sample_s: float = 10.0, warm_up_s: float = WARM_UP_S) -> Watched:
    """Run a daemon, a client that measures, and the page in a browser. Raises AssertionError if the page fails."""
    with tempfile.TemporaryDirectory(prefix="hearth-") as made, tempfile.TemporaryDirectory() as browser_made:
        folder, port = Path(made), free_port()
        daemon = Hearthd(
            folder,
            f'[board]\nprofile = "{profile(folder)}"\n[http]\nlisten = "127.0.0.1:{port}"\nmcp = false\n'
            '[[policy]]\nname = "all"\nmatch = { any = true }\nrights = ["observe"]\n'
            'rate = { "hw.sensor.read" = "2000/s" }\n',
        )
        daemon.start()
        try:
            with chromium(Path(browser_made)) as address:
                async with driving(address) as browser, trio.open_nursery() as nursery:
                    nursery.start_soon(_measure, daemon.socket)
                    found = await _watch(browser, daemon, port, minutes * 60, sample_s, warm_up_s)
                    nursery.cancel_scope.cancel()
        finally:
            daemon.end()
    return found


async def _measure(socket: Path) -> None:
    """Read every sensor ten times a second, as one task, and never more often."""
    steps = [step("hw.sensor.read", sensor=f"level{number:02}") for number in range(SERIES)]
    async with connect(socket) as client, client.open_session(client_name="measuring") as session:
        due = trio.current_time()
        while True:
            await (await session.submit("measure", steps)).wait()
            due = max(due + PERIOD_S, trio.current_time())
            await trio.sleep_until(due)


async def _watch(
    browser: Browser, daemon: Hearthd, port: int, seconds: float, sample_s: float, warm_up_s: float
) -> Watched:
    tab = await browser.open(width=1280, height=800)
    # What the page receives is not to be reported to us as well.
    await tab.command("Network.disable")
    await tab.navigate(f"http://127.0.0.1:{port}/ui/")
    await tab.until("document.activeElement.id === 'token'")  # the page's program has started
    await tab.click("#sign-in-without")
    await tab.until(f"document.querySelectorAll('#board figure').length === {SERIES}")
    await trio.sleep(warm_up_s)
    chrome = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
    began, used, daemon_used = time.monotonic(), _cpu(chrome), _cpu([psutil.Process(daemon.pid)])
    await tab.command("Performance.enable")
    samples: list[dict[str, float]] = []
    while (now := time.monotonic() - began) < seconds:
        await trio.sleep(min(sample_s, seconds - now))
        await tab.command("HeapProfiler.collectGarbage")
        told = {one["name"]: one["value"] for one in (await tab.command("Performance.getMetrics"))["metrics"]}
        heap, nodes = told["JSHeapUsedSize"] / 2**20, told["Nodes"]
        samples.append({"t": time.monotonic() - began, "heap": heap, "nodes": nodes})
    took = time.monotonic() - began
    share, daemon_share = (_cpu(chrome) - used) / took, (_cpu([psutil.Process(daemon.pid)]) - daemon_used) / took
    captions = "[...document.querySelectorAll('#board figure figcaption')]"
    shown = await tab.evaluate(f"{captions}.filter((one) => one.innerText.includes(' now, between ')).length")
    missed = await tab.evaluate("((one) => one.hidden ? null : one.innerText)(document.querySelector('#notice'))")
    assert tab.errors == [], tab.errors
    return Watched(took, share, daemon_share, tuple(judge(samples, FLAT)), shown, missed, tuple(samples))


def _cpu(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU time, of those that still run."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def words(found: Watched) -> list[str]:
    """What a run found, for a person."""
    return [
        f"{SERIES} series at {1 / PERIOD_S:.0f} Hz for {found.seconds / 60:.1f} min",
        f"Chromium takes {found.share:.1%} of one core (goal: at most {GOAL:.0%}), the daemon {found.daemon_share:.1%}",
        f"{found.shown} of {SERIES} series are shown; missed: {found.missed or 'nothing'}",
        *map(str, found.verdicts),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.dashboard", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    found = trio.run(lambda: watch(options.minutes))
    print("\n".join(words(found)))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=1))
    return int(found.share > GOAL or found.shown < SERIES or not all(one.flat for one in found.verdicts))


if __name__ == "__main__":
    sys.exit(main())
