"""`hearth approvals`: what is approved in advance is said in words first, listed, used and revoked."""

from __future__ import annotations

import click
import pytest

from hearth.cli.approvals import read_bounds

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
    assert (one["left"], one["reason"]) == (2, "I stand beside it")
    assert "2 of 3" in local_cli("approvals", "list").out
    assert local_cli("approvals", "revoke", one["approval_id"]).out == "revoked\n"
    assert local_cli("approvals", "list").out == "there is none\n"
    assert local_cli("run", "gpio.set", "line=LED", "value=1").code == 1
    gone = local_cli("approvals", "revoke", one["approval_id"], "--json")
    assert (gone.code, gone.json["error"]["symbol"]) == (1, "RPC_PERMISSION_DENIED")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--for", "gpio.set LED", "--within", "1h"], "gpio.set needs value"),
        (["--for", "gpio.set LED 1 duration=5", "--within", "1h"], "duration"),
        (["--for", "gpio.set LED 1", "--within", "1 hour"], "90s, 10m or 2h"),
        (["--for", "gpio.set LED 1", "--within", "48h"], "86400"),
        (["--for", "gpio.set 'LED 1", "--within", "1h"], "No closing quotation"),
        (["--for", "gpio.sett LED=1", "--within", "1h"], "gpio.set"),
    ],
)
def test_what_it_would_permit_must_be_said_in_full(local_cli, options, words):
    refused = local_cli("approvals", "approve", *options, "--times", "1", "--yes")
    assert refused.code in (1, 2)
    assert words in refused.err
