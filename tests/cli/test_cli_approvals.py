"""`hearth approvals`: what is approved in advance is said in words first, listed, used and revoked."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import orjson
import pytest

from hearth import step, sync
from hearth.cli.standing_approvals import read_bounds

CONFIG = """
[[policy]]
name = "bench"
match = { any = true }
max_risk = 3
rights = ["approve"]
approval = [{ from_risk = 2 }]
"""
SCHEMA = {"required": ["servo", "angle"], "properties": {"servo": {"type": "string"}, "angle": {"type": "number"}}}


@pytest.mark.parametrize(
    ("words", "bounds"),
    [
        (["ARM", "0..90"], {"servo": {"equals": "ARM"}, "angle": {"min": 0, "max": 90}}),
        (["ARM", "angle=-1.5.."], {"servo": {"equals": "ARM"}, "angle": {"min": -1.5}}),
        (["*", "..5"], {"servo": {"any": True}, "angle": {"max": 5}}),
        (["servo=0..9", "a=4", "b=*"], {"servo": {"equals": "0..9"}, "a": {"equals": 4}, "b": {"any": True}}),
        (["angle=.."], {"angle": {"equals": ".."}}),
    ],
)
def test_words_say_a_value_a_range_or_anything(words, bounds):
    assert read_bounds(words, SCHEMA) == bounds


@pytest.mark.parametrize("words", [["ARM", "1", "2"], ["ARM", "servo=B"], ["=1"]])
def test_a_word_that_is_no_arg_or_a_second_value_is_refused(words):
    with pytest.raises(click.UsageError, match="say which arg it is, once"):
        read_bounds(words, SCHEMA)


@pytest.mark.slow
def test_what_was_approved_in_advance_runs_is_listed_and_is_over_when_it_is_revoked(local_cli):
    call = ("--for", "gpio.set LED 0..1", "--times", "3", "--within", "1h")
    refused = local_cli("approvals", "approve", *call, stdin=b"")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert local_cli("run", "gpio.set", "line=LED", "value=1").code == 1
    given = local_cli("approvals", "approve", *call, "--yes", "--reason", "I stand beside it")
    assert "may run gpio.set 3 times until 20" in given.out
    assert 'with line "LED", value from 0 to 1, and no other args' in given.out
    assert local_cli("run", "gpio.set", "line=LED", "value=1").code == 0
    assert local_cli("run", "gpio.set", "line=RELAY", "value=1").code == 1
    (one,) = local_cli("approvals", "list", "--json").json
    assert (one["kind"], one["left"], one["reason"]) == ("standing", 2, "I stand beside it")
    assert "2 of 3" in local_cli("approvals", "list").out
    assert local_cli("approvals", "show", one["approval_id"], "--json").json == one
    assert one["text"] in local_cli("approvals", "show", one["approval_id"]).out
    twice = local_cli("approvals", "approve", one["approval_id"], "--yes")
    assert (twice.code, "was approved in advance" in twice.err) == (2, True)
    unread = local_cli("approvals", "reject", one["approval_id"], "--reason", "done")
    assert (unread.code, "leave it out" in unread.err) == (2, True)
    assert local_cli("approvals", "reject", one["approval_id"]).out.endswith("\nrevoked\n")
    assert local_cli("approvals", "list").out == "there is none\n"
    assert local_cli("run", "gpio.set", "line=LED", "value=1").code == 1
    for gone in (["reject"], ["show"], ["approve", "--yes"]):
        answer = local_cli("approvals", *gone, one["approval_id"], "--json")
        assert (answer.code, answer.json["error"]["symbol"]) == (1, "PLAN_STALE")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "gpio.set LED", "--within", "1h"], "gpio.set needs value"),
        (["--for", "gpio.set LED 1 duration=5", "--within", "1h"], "duration"),
        (["--for", "gpio.set LED 1", "--within", "1 hour"], "90s, 10m or 2h"),
        (["--for", "gpio.set LED 1", "--within", "48h"], "24h at most"),
        (["--for", "gpio.set 'LED 1", "--within", "1h"], "No closing quotation"),
        (["--for", "gpio.sett LED=1", "--within", "1h"], "gpio.set"),
        (["--for", "gpio.sett LED 1", "--within", "1h"], "is not among your tools; did you mean gpio.set?"),
        (["--for", "zz 1", "--within", "1h"], "name each arg of another's tool: KEY=VALUE"),
        (["--for", " ", "--within", "1h"], "--for: it is empty: name a tool"),
        (["--for", "gpio.set LED 1", "--within", "1h", "--principal", "bob"], "such as uid:1001"),
    ],
)
def test_what_it_would_permit_must_be_said_in_full(local_cli, options, words):
    refused = local_cli("approvals", "approve", *options, "--times", "1", "--yes")
    assert refused.code in (1, 2)
    assert words in refused.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "gpio.set LED 1", "--times", "1"], "--for needs --times N and --within TIME"),
        (["01X", "--for", "gpio.set LED 1", "--times", "1", "--within", "1h"], "takes no ID"),
        (["01X", "--times", "1"], "say --for which CALL"),
        (["--yes"], "name what to decide"),
        (["01X", "--reject", "no", "--yes"], "--reject has its own reason"),
        (["01X"], "there is no terminal to ask on: read it with `hearth approvals show 01X`"),
        (["--for", "gpio.set LED 1", "--times", "1", "--within", "1h"], "on: --yes stands for the answer\n"),
    ],
)
def test_options_of_approve_that_exclude_each_other_or_lack_one_are_a_usage_error(cli, options, words):
    refused = cli("approvals", "approve", *options, stdin=b"")
    assert refused.code == 2
    assert words in refused.err


@pytest.fixture
def plan_id(local_cli):
    plan = {"intent": "Light", "steps": [{"tool": "gpio.set", "args": {"line": "LED", "value": 1}}]}
    return local_cli("plan", "prepare", "-", "--json", stdin=orjson.dumps(plan)).json["plan_id"]


@pytest.mark.slow
def test_a_plan_that_waits_is_listed_shown_and_approved_as_it_was_read(local_cli, plan_id):
    assert plan_id in local_cli("approvals", "list").out
    assert local_cli("approve").out == local_cli("approvals", "approve").out
    read = local_cli("approvals", "show", plan_id, "--json").json
    assert (read["kind"], read["approval_id"], read["state"]) == ("plan", plan_id, "waiting")
    assert read in local_cli("approvals", "list", "--json").json
    assert "read it again" in local_cli("approvals", "approve", plan_id, "--yes", "--hash", "sha256:0").err
    assert "with --hash" in local_cli("approvals", "approve", plan_id, "--yes").err
    told = local_cli("approvals", "approve", plan_id, "--yes", "--hash", read["hash"], "--json").json
    assert told == {"id": plan_id, "kind": "plan", "approved": True, "missing": 0}
    assert plan_id not in local_cli("approvals", "list").out


@pytest.mark.slow
@pytest.mark.parametrize("words", [["approvals", "reject", "--reason", "not now"], ["approve", "--reject", "not now"]])
def test_a_plan_that_waits_is_rejected_with_a_reason(local_cli, plan_id, words):
    assert local_cli(*words, plan_id).out.endswith("\nrejected\n")
    assert "not now" in local_cli("plan", "show", plan_id).out


def answered(daemon, answer, *args):
    """Run `hearth approve ARGS…` with the answer typed on a terminal; its exit code, and both outputs."""
    controller, terminal = pty.openpty()
    os.write(controller, answer)
    hearth = Path(sys.executable).parent / "hearth"
    done = subprocess.run(
        [hearth, "--socket", daemon.socket, "approve", *args],
        check=False,
        stdin=terminal,
        capture_output=True,
        text=True,
        timeout=60,
    )
    os.close(controller)
    os.close(terminal)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_person_who_says_no_hears_that_nothing_was_decided_and_is_not_asked_in_vain(daemon, local_cli, plan_id):
    code, out, err = answered(daemon, b"n\n", plan_id)
    assert (code, "Approve this?" in out) == (1, True)
    assert err == "hearth: the answer was no: nothing was approved, and nothing was rejected\n"
    code, out, err = answered(daemon, b"y\n", plan_id)
    assert (code, out.endswith("approved\n"), err) == (0, True, "")
    code, out, err = answered(daemon, b"y\n", plan_id)
    assert (code, "Approve this?" in out) == (1, False)
    assert f"the plan {plan_id} is ready, and waits for no approval" in err


OTHER = CONFIG.replace("{ from_risk = 2 }", "{ from_risk = 2, other = true }")


@pytest.mark.slow
def test_a_person_is_not_asked_about_a_plan_that_others_must_approve(own_daemon):
    daemon = own_daemon(OTHER)
    with sync.connect(daemon.socket) as client, client.open_session() as session:
        mine = session.prepare("Light", [step("gpio.set", line="LED", value=1)]).plan_id
    code, out, err = answered(daemon, b"y\n", mine)
    assert (code, "Approve this?" in out) == (1, False)
    assert f"the plan {mine} waits, and your approval does not count: others must give it" in err
