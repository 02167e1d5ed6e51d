"""`hearth demo`: it plays to the end, claims nothing that is not so, and leaves nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import trio
from rich.console import Console

from hearth.cli import demo
from hearth.cli.demo import daemon as demo_daemon, failures, safety
from hearth.cli.demo.daemon import DemoFolder, make_place, run_daemon
from hearth.cli.demo.scenes import EXAMPLE, refusal_text
from hearth.cli.demo.stage import DemoFailed, PlainStage, RichStage, Stage, make_stage
from hearth.client.connection import connect
from hearth.errors import PermissionDenied

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

# --- the whole ------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """A directory for temporary files that is short enough for a socket, and must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.slow
def test_the_demo_plays_to_the_end_and_leaves_nothing_behind(cli, temporary):
    answer = cli("demo", "--fast")
    assert answer.code == 0, answer.out + answer.err
    assert "✗" not in answer.out
    assert answer.err == ""
    titles = re.findall(r"^\d+\. ", answer.out, re.MULTILINE)
    assert len(titles) == 12
    for said in (
        "i2c.read  SUCCESS",
        "°C",
        "refused at once",
        "task.cancel: CANCELLING",
        "went to its safe state without it",
        "the daemon switches the heater off by itself",
        "the daemon stops the pump without a request",
        "the button is released, and the daemon is still halted",
        "it runs once: a second time is refused",
        "unbroken from the first record to the last",
        "of a copy is found",
        "a shell script with nothing but sha256sum comes to the same result",
    ):
        assert said in answer.out
    # The page that was being written, whole: which one, and at which attempt, is up to how busy the machine is.
    caught = re.search(r"page (\d), on the wire at that moment, was finished", answer.out)
    assert caught is not None
    assert re.search(rf"page {caught[1]}: ([1-3]{caught[1]})( \1){{7}}\n", answer.out)
    assert list(temporary.iterdir()) == []


@pytest.mark.proof
@pytest.mark.parametrize(
    ("place", "on_path", "shown"),
    [
        (ROOT, False, ".venv/bin/hearthd"),
        (BIN, False, "./hearthd"),
        (ROOT / "docs", False, str(BIN / "hearthd")),
        (ROOT, True, "hearthd"),
    ],
    ids=["in the tree", "beside it", "elsewhere", "on the PATH"],
)
def test_the_last_hint_works_as_it_is_printed(temporary, place, on_path, shown):
    if place == ROOT and not on_path and BIN != ROOT / ".venv" / "bin":
        pytest.skip("the environment of this run is not in the tree: make test has it in .venv")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH", "UV"))}
    environ["PATH"] = os.pathsep.join([str(BIN)] * on_path + ["/usr/bin", "/bin"])
    environ |= {"RUNTIME_DIRECTORY": str(temporary), "STATE_DIRECTORY": str(temporary), "NO_COLOR": "1"}
    run = partial(subprocess.run, cwd=place, env=environ, text=True, capture_output=True, timeout=120, check=True)
    printed = run([BIN / "hearth", "demo", "--fast"]).stdout.splitlines()[-1]
    hint = re.fullmatch(r"Next: `(.+)` in one terminal, `(.+)` in another\.", printed)
    assert hint is not None
    assert hint[1] == f"{shown} --board sim"
    command = ["bash", "-c", f"exec {hint[1]}"]
    daemon = subprocess.Popen(command, cwd=place, env=environ, stderr=subprocess.PIPE, text=True)
    try:
        assert any(line.startswith("hearthd: ready on ") for line in daemon.stderr)
        assert "gpio.set" in run(["bash", "-c", hint[2]]).stdout
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)


@pytest.mark.proof
def test_the_demo_as_json_is_a_transcript_of_checked_claims(cli):
    answer = cli("demo", "--json")
    assert answer.code == 0, answer.out
    transcript = answer.json
    assert transcript["ok"] is True
    claims = [claim for scene in transcript["scenes"] for claim in scene["claims"]]
    assert transcript["claims"] == len(claims) >= 28
    assert all(claim["holds"] for claim in claims)
    assert all(scene["said"] and scene["happened"] for scene in transcript["scenes"])


@pytest.mark.proof
def test_a_claim_that_does_not_hold_ends_the_demo_with_1(cli, monkeypatch):
    monkeypatch.setattr(demo_daemon, "BOARD", demo_daemon.BOARD.replace('wires = [["GPIO17", "GPIO27"]]', ""))
    answer = cli("demo", "--fast")
    assert answer.code == 1
    assert "✗ line 17 is on" in answer.out
    assert "the demo has failed: not so: line 17 is on" in answer.err
    as_json = cli("--json", "demo")
    assert as_json.code == 1
    assert as_json.json["ok"] is False
    assert as_json.json["error"].startswith("not so: line 17 is on")
    assert as_json.json["scenes"][-1]["claims"][-1]["holds"] is False


@pytest.mark.proof
@pytest.mark.parametrize(
    ("rule", "instead", "claim"),
    [
        ('requires = [{ line = "DOOR", value = 0 }, ', "requires = [", "refused while the door is open"),
        ('drives = "PUMP"\nvalue = 1', 'drives = "GPIO17"\nvalue = 1', "refused while the door is open"),
        ("max_on_ms = 500, ", "", "the pulse is refused before it begins"),
        (", max_rate_hz = 0.1", "", "to switch it on again is refused"),
    ],
    ids=[
        "an interlock that does not ask for the door",
        "an interlock of another line",
        "no longest time",
        "no greatest rate",
    ],
)
def test_a_board_without_one_of_its_rules_ends_the_demo_with_1(cli, monkeypatch, rule, instead, claim):
    assert rule in demo_daemon.BOARD
    monkeypatch.setattr(demo_daemon, "BOARD", demo_daemon.BOARD.replace(rule, instead))
    answer = cli("demo", "--fast")
    assert answer.code == 1
    assert f"✗ {claim}" in answer.out


@pytest.mark.proof
def test_a_policy_that_asks_for_no_approval_ends_the_demo_with_1(cli, monkeypatch):
    whole = DemoFolder.config
    rule = "approval = [{ from_risk = 3 }]"
    monkeypatch.setattr(DemoFolder, "config", lambda place: whole(place).replace(rule, ""))
    answer = cli("demo", "--fast")
    assert answer.code == 1
    assert "✗ without an approval it is refused" in answer.out


@pytest.mark.proof
def test_a_button_that_halts_nothing_ends_the_demo_with_1(cli, monkeypatch):
    monkeypatch.setattr(demo_daemon, "BOARD", demo_daemon.BOARD.replace('inputs = ["ESTOP"]', ""))
    monkeypatch.setattr(safety, "MOVES_MS", 3000)
    answer = cli("demo", "--fast")
    assert answer.code == 1
    assert "the demo has failed: PUMP did not go to 0" in answer.err


@pytest.mark.slow
def test_a_daemon_that_does_not_start_ends_the_demo_with_what_it_said(cli, monkeypatch):
    monkeypatch.setattr(demo_daemon, "BOARD", "nonsense")
    answer = cli("demo")
    assert answer.code == 1
    assert "hearthd did not become ready; it said: hearthd: " in answer.err


@pytest.mark.slow
def test_a_daemon_that_says_nothing_is_not_waited_for_for_ever(cli, monkeypatch):
    monkeypatch.setattr(demo_daemon, "START_TIMEOUT", 0.0)
    answer = cli("demo")
    assert answer.code == 1
    assert "it said: nothing" in answer.err


@pytest.mark.slow
def test_a_scene_that_takes_too_long_ends_the_demo(cli, monkeypatch):
    monkeypatch.setattr(demo, "SCENE_LIMIT", 0.0)
    answer = cli("demo")
    assert answer.code == 1
    assert "'A daemon owns the hardware' was not done after 0 s" in answer.err


@pytest.mark.proof
def test_a_machine_without_sha256sum_is_told_so_and_the_rest_is_claimed(cli, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "SCRIPT", tmp_path / "none.sh")
    answer = cli("demo", "--json")
    assert answer.code == 0, answer.out
    assert any("is not here" in said for said in answer.json["scenes"][-1]["said"])


@pytest.mark.proof
def test_a_cancel_that_never_comes_within_a_write_is_no_claim(cli, monkeypatch):
    async def too_late(_stage, task):
        await task.wait()
        return "SUCCESS", None

    monkeypatch.setattr(failures, "_cancel_within", too_late)
    answer = cli("demo", "--json")
    assert answer.code == 1
    assert "this machine is too busy" in answer.json["error"]


@pytest.mark.proof
def test_a_controller_that_does_not_come_up_ends_the_demo(cli, monkeypatch):
    monkeypatch.setattr(failures, "SAFE_LINE", 99)
    answer = cli("demo", "--json")
    assert answer.code == 1
    assert "the controller process did not come up" in answer.json["error"]


@pytest.mark.proof
def test_a_secret_that_can_be_read_is_no_refusal(cli, monkeypatch):
    monkeypatch.setattr(DemoFolder, "secret", property(lambda place: place.shared / "secret.txt"))
    answer = cli("demo")
    assert answer.code == 1
    assert "file.read by its path          was allowed" in answer.out
    assert "not so: by its path: refused" in answer.err


@pytest.mark.slow
def test_a_controller_does_not_outlive_the_demo(cli, monkeypatch):
    monkeypatch.setattr(failures, "WIRED_TO", 26)
    monkeypatch.setattr(demo, "SCENES", [failures.a_dead_controller])
    answer = cli("demo")
    assert answer.code == 1
    assert "not so: the line is on while it lives" in answer.err
    pid = int(re.search(r"controller \(pid (\d+)\)", answer.out)[1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_demo_has_a_daemon_of_its_own(cli, tmp_path):
    answer = cli("demo", "--socket", tmp_path / "x")
    assert answer.code == 2
    assert "leave --socket out" in answer.err


# --- its daemon -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_daemon_does_not_outlive_the_demo():
    with make_place() as place:
        async with run_daemon(place) as daemon:
            os.kill(daemon.pid, 0)
        with pytest.raises(ProcessLookupError):
            os.kill(daemon.pid, 0)
    assert not place.folder.exists()


@pytest.mark.slow
async def test_the_daemon_of_a_demo_without_sandbox_says_so():
    with make_place(no_sandbox=True) as place:
        async with run_daemon(place), connect(place.socket) as client, client.open_session() as session:
            board = await session.run("hw.board")
    assert board["health"]["sandbox"] == {"state": "off", "reason": "--no-sandbox"}


@pytest.mark.slow
async def test_a_daemon_that_does_not_end_is_an_error(monkeypatch):
    monkeypatch.setattr(demo_daemon, "STOP_TIMEOUT", 0.0)
    with make_place() as place:
        async with run_daemon(place) as daemon:
            os.kill(daemon.pid, signal.SIGSTOP)
            with pytest.raises(DemoFailed, match="has not ended 0 s after SIGTERM"):
                await daemon.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(daemon.pid, 0)


def test_a_socket_path_that_would_be_too_long_is_avoided(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with make_place() as place:
        assert len(bytes(place.socket)) <= 107


def test_the_configuration_survives_a_path_with_quotes():
    import tomllib

    place = DemoFolder(Path('/tmp/a "b" \\c/ä'))
    config = tomllib.loads(place.config())
    assert config["server"]["socket"] == str(place.socket)
    assert config["files"] == {"read": [str(place.shared)], "write": [str(place.shared)]}


def test_the_example_is_the_drafts_own():
    assert [step["tool"] for step in EXAMPLE["steps"]] == ["i2c.read", "gpio.set"]
    assert EXAMPLE["intent"] == "Read sensor and toggle status LED"


# --- its stage ------------------------------------------------------------------------------------------------------


async def play(stage):
    stage.scene("A scene")
    await stage.say("What is going to happen.")
    stage.happened("something \x1b[2J SUCCESS")
    stage.claim("so it is", holds=True, detail="seen")
    with pytest.raises(DemoFailed, match=r"not so: it is not \(seen\)"):
        stage.claim("it is not", holds=False, detail="seen")
    with pytest.raises(DemoFailed, match=r"not so: nor this$"):
        stage.claim("nor this", holds=False)


async def test_a_pipe_gets_plain_lines(capsys):
    await play(PlainStage())
    assert capsys.readouterr().out.splitlines() == [
        "",
        "1. A scene",
        "   What is going to happen.",
        "     | something \\x1b[2J SUCCESS",
        "   ✓ so it is  (seen)",
        "   ✗ it is not  (seen)",
        "   ✗ nor this",
    ]


async def test_a_transcript_keeps_what_held_and_what_did_not(capsys):
    stage = Stage()
    await play(stage)
    await stage.pause()
    assert capsys.readouterr().out == ""
    transcript = stage.transcript("not so")
    assert (transcript["ok"], transcript["claims"], transcript["error"]) == (False, 1, "not so")
    assert [claim["holds"] for claim in transcript["scenes"][0]["claims"]] == [True, False, False]
    assert "error" not in stage.transcript()


async def test_a_terminal_gets_time_to_read(autojump_clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=50)
    stage = RichStage(console)
    await play(stage)
    before = trio.current_time()
    await stage.pause()
    assert trio.current_time() > before
    shown = console.file.getvalue()
    assert "A scene" in shown
    assert "✗" in shown
    assert "[2J" not in shown.replace("\\x1b[2J", "")


async def test_who_is_in_a_hurry_is_not_kept(autojump_clock):
    stage = RichStage(Console(file=io.StringIO()), fast=True)
    await play(stage)
    await stage.pause()
    assert trio.current_time() == 0


def test_the_stage_suits_who_is_looking():
    assert type(make_stage(as_json=True, terminal=True, fast=False)) is Stage
    assert type(make_stage(as_json=False, terminal=False, fast=False)) is PlainStage
    assert type(make_stage(as_json=False, terminal=True, fast=False)) is RichStage


def test_what_was_not_refused_is_not_told_as_a_refusal():
    assert refusal_text(None) == "was allowed"
    assert refusal_text(PermissionDenied(data={"reason": "r"})) == "-32003 Permission denied: r"
