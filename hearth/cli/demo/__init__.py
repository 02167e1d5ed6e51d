"""`hearth demo`: a real hearthd and real clients on a simulated board show what hearth does, in under a minute.

This module owns the order of the scenes, and the last scene, the audit log. Every claim is checked before it is
printed. The first claim that does not hold ends the demo with exit code 1.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
import trio

from hearth.audit.verify import verify
from hearth.cli import common
from hearth.cli.audit import record_line
from hearth.cli.common import DONE, FAILED, Options, interruptible, standard
from hearth.cli.demo.daemon import SAFE_LINE, SCENE_LIMIT, DaemonProcess, DemoFolder, make_place, run_daemon
from hearth.cli.demo.failures import a_busy_bus, a_cancelled_write, a_dead_controller
from hearth.cli.demo.safety import a_halt, a_limit, an_approval, an_interlock
from hearth.cli.demo.scenes import REFUSALS, a_task, the_guards, the_machine, what_there_is
from hearth.cli.demo.stage import Stage, make_stage
from hearth.client.connection import connect
from hearth.errors import Halted, HearthError, InterlockOpen, LimitViolated, PermissionDenied, ResourceBusy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Play = Callable[[Stage, DemoFolder], Awaitable[None]]

LONG_IDS = ("session_id", "task_id")
SCENES = (
    what_there_is, a_task, the_machine, the_guards, a_busy_bus, a_cancelled_write, a_dead_controller, a_limit,
    an_interlock, a_halt, an_approval,
)  # fmt: skip
SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "verify-audit.sh"
"""The path of the script in a source tree; an installed package does not have it."""


@click.command()
@click.option("--fast", is_flag=True, help="No pauses to read in; there are none when piped either.")
@click.option("--hcp", is_flag=True, help="The other demo: an agent submits a job, and gets an account of it.")
@click.option("--web", is_flag=True, help="Another one: the dashboard, over a daemon with something to see.")
@click.option("--open", "opens", is_flag=True, help="With --web: open the page in the browser.")
@click.option("--no-sandbox", is_flag=True, help="Do not confine its hearthd; needed where the processor is emulated.")
@standard
def demo(options: Options, fast: bool, hcp: bool, web: bool, opens: bool, no_sandbox: bool) -> int:
    """See what hearth is: a real daemon, a real client, a simulated board.

    Needs no hardware, no root and no configuration, and leaves nothing behind. Whatever it says, it has checked; if
    something is not so, it says that and exits with 1.
    """
    if options.named_by == "--socket":
        raise click.UsageError("the demo starts a daemon of its own; leave --socket out")
    if web:
        from hearth.cli.demo.web import serve

        return interruptible(lambda: serve(no_sandbox=no_sandbox, opens=opens))
    stage = make_stage(as_json=options.json, terminal=sys.stdout.isatty(), fast=fast)
    play, then = play_scenes, "tools"
    if hcp:
        from hearth.cli.demo.hcp import play

        then = "hcp capabilities"
    return interruptible(lambda: perform(stage, play, as_json=options.json, then=then, no_sandbox=no_sandbox))


async def perform(stage: Stage, play: Play, *, as_json: bool, then: str, no_sandbox: bool) -> int:
    """Run the demo, print its result and a command to try next; return the exit code."""
    began = time.monotonic()
    error = None
    try:
        with make_place(no_sandbox=no_sandbox) as place:
            await play(stage, place)
    except HearthError as failure:
        error = str(failure)
    except trio.TooSlowError:
        error = f"{stage.scenes[-1]['title']!r} was not done after {SCENE_LIMIT:g} s"
    took = time.monotonic() - began
    if as_json:
        click.echo(common.compact({**stage.transcript(error), "seconds": round(took, 3)}))
    elif error is not None:
        click.echo(f"\nhearth: the demo has failed: {common.clean(error)}", err=True)
    else:
        click.secho(f"\n{stage.claims} claims, each checked, in {took:.1f} s.", bold=True)
        daemon, client = common.as_typed("hearthd"), common.as_typed("hearth")
        click.echo(f"Next: `{daemon} --board sim` in one terminal, `{client} {then}` in another.")
    return DONE if error is None else FAILED


async def play_scenes(stage: Stage, place: DemoFolder) -> None:
    """Run all scenes. Raises DemoFailed with the first claim that does not hold."""
    stage.scene("A daemon owns the hardware")
    await stage.say(
        "hearthd is the one process that touches the hardware. Agents and programs reach it over a Unix socket; it "
        "decides what they may do, keeps them apart, and writes down what it did."
    )
    async with run_daemon(place) as daemon:
        stage.happened(f"hearthd (pid {daemon.pid}) is ready on {place.socket}")
        async with connect(place.socket) as client:
            for scene in SCENES:
                with trio.fail_after(SCENE_LIMIT):
                    await scene(stage, client, place)
                    await stage.pause()
        with trio.fail_after(SCENE_LIMIT):
            await _the_record(stage, place, daemon)


async def _the_record(stage: Stage, place: DemoFolder, daemon: DaemonProcess) -> None:
    """Stop the daemon, and check that its audit log is complete and unbroken, and that a change to it is found."""
    stage.scene("All of it is on record, and the record cannot be quietly changed")
    await stage.say("The daemon is asked to end. Every line of its audit log carries the hash of the line before it:")
    code = await daemon.stop()
    stage.claim("SIGTERM: the daemon ended in good order", code == 0, f"exit status {code}")
    records = [orjson.loads(line) for line in place.log.read_bytes().splitlines()]
    for record in _telling(records):
        stage.happened(record_line({name: value for name, value in record.items() if name not in LONG_IDS}))
    starts, finishes = _count(records, "task.step.start"), _count(records, "task.step.finish")
    stage.claim(
        "no effect without a record: every step that began has its beginning and its end there",
        starts == finishes > 0,
        f"{starts} steps",
    )
    refused = sorted(record["error_code"] for record in records if _is_refusal(record))
    others = [ResourceBusy.code, LimitViolated.code, InterlockOpen.code, Halted.code]
    expected = sorted([PermissionDenied.code] * REFUSALS + others)
    stage.claim(
        f"so are the {REFUSALS} refusals, the busy bus, the limit, the open door and the halt", refused == expected
    )
    deaths = [record for record in records if record.get("reason") == "its client disconnected"]
    stage.claim(
        "so is the death of the controller, with the line that was made safe",
        len(deaths) == 1 and [entry.get("line") for entry in deaths[0].get("safe", ())] == [SAFE_LINE],
    )
    safety = ("limit.max_on", "interlock.open", "halt.reset", "plan.approve")
    stage.claim(
        "so are the heater that was on for too long, the door that opened, the reset and the approval",
        [_count(records, event) for event in safety] == [1, 1, 1, 1],
        ", ".join(safety),
    )
    report = verify(place.log, place.public_key)
    stage.claim(
        "hearth audit verify: unbroken from the first record to the last",
        report.ok and report.records == len(records) and report.signed_to > 0,
        f"{report.records} records, signed up to record {report.signed_to}",
    )
    await _verify_by_shell(stage, place)
    _tamper(stage, place)


def _is_refusal(record: dict[str, Any]) -> bool:
    """Return True for a refused submission, and for a step that an interlock refused after the door had opened."""
    if record["event"] == "task.reject":
        return True
    return record["event"] == "task.step.finish" and record.get("error_code") == InterlockOpen.code


def _count(records: Sequence[dict[str, Any]], event: str) -> int:
    return sum(record["event"] == event for record in records)


def _telling(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a few records: of the controller's session the open, its task and its close; and the last record."""
    ended = next((record for record in records if record.get("reason") == "its client disconnected"), {})
    of_it = [record for record in records if record.get("session_id") == ended.get("session_id", "")]
    wanted = ("session.open", "task.submit", "task.step.start", "session.close")
    return [next(record for record in of_it if record["event"] == event) for event in wanted if of_it] + [records[-1]]


async def _verify_by_shell(stage: Stage, place: DemoFolder) -> None:
    """Verify the log without hearth, by a shell script and sha256sum, if this source tree has the script."""
    shell = shutil.which("sh")
    if shell is None or shutil.which("sha256sum") is None or not SCRIPT.exists():
        await stage.say("(docs/verify-audit.sh checks the same with sha256sum alone; it or sha256sum is not here.)")
        return
    command = [shell, str(SCRIPT), str(place.log)]
    checked = await trio.run_process(command, capture_stdout=True, stderr=subprocess.STDOUT, check=False)
    told = checked.stdout.decode("utf-8", "replace").strip().partition(", its hash")[0]
    stage.claim("a shell script with nothing but sha256sum comes to the same result", checked.returncode == 0, told)


def _tamper(stage: Stage, place: DemoFolder) -> None:
    """Change one word in a copy, and check that the verifier finds it."""
    lines = place.log.read_bytes().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines, 1) if b'"event":"task.reject"' in line)
    changed = lines[number - 1].replace(b"task.reject", b"task.submit")
    copy = place.folder / "tampered.log"
    copy.write_bytes(b"".join([*lines[: number - 1], changed, *lines[number:]]))
    bad = verify(copy).first_bad
    found = bad is not None and bad.line in (number, number + 1)
    where = "nothing found" if bad is None else f"line {bad.line} does not follow from the one before it"
    stage.claim(f"one word changed in line {number} of a copy is found", found, where)
