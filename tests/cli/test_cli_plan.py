"""`hearth plan`: what is shown, asked for, approved and run, against a daemon that asks for approvals."""

from __future__ import annotations

import orjson
import pytest

pytestmark = pytest.mark.slow

CONFIG = """
[[policy]]
name = "bench"
match = { any = true }
max_risk = 3
rights = ["approve"]
approval = [{ from_risk = 2 }]
"""
PLAN = {
    "intent": "Light",
    "steps": [
        {"tool": "gpio.set", "args": {"line": "LED", "value": 1}, "expect": {"tool": "gpio.get", "args": {"line": 27},
         "equals": {"value": 1}}},
        {"tool": "i2c.write", "args": {"bus": 1, "addr": "0x50", "reg": 0, "text": "ab"}},
    ],
    "constraints": {"rollback_on_failure": True},
}  # fmt: skip


@pytest.fixture
def prepared(local_cli):
    return local_cli("plan", "prepare", "-", "--json", stdin=orjson.dumps(PLAN)).json


def test_a_prepared_plan_shows_its_steps_their_effects_and_what_it_waits_for(local_cli):
    shown = local_cli("plan", "prepare", "-", stdin=orjson.dumps(PLAN))
    assert shown.code == 0
    assert shown.err.startswith("next: hearth approvals approve ")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0].startswith("waiting ")
    assert "constraints rollback_on_failure=true" in lines
    assert "needs 1 with the right 'approve'" in lines
    assert '0. gpio.set line="LED" value=1' in lines
    assert "value: 0 -> 1 [risk 2, medium; can be rolled back]" in lines
    assert any(line.startswith("then gpio.get line=27 must show equals value=1") for line in lines)
    assert any(line.startswith("data: bytes(2 bytes: ") and "-> bytes(2 bytes: 61 62, " in line for line in lines)


def test_a_plan_is_approved_only_where_a_person_can_be_asked_or_says_yes(local_cli, prepared):
    plan_id = prepared["plan_id"]
    assert local_cli("plan", "execute", plan_id).code == 1
    refused = local_cli("approvals", "approve", plan_id, stdin=b"")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert local_cli("approvals", "approve", plan_id, "--yes", "--hash", prepared["hash"]).code == 0
    done = local_cli("plan", "execute", plan_id, "--wait", "5", "--hold", "0.01")
    assert (done.code, "SUCCESS" in done.out) == (0, True)
    again = local_cli("plan", "execute", plan_id, "--json")
    assert (again.code, again.json["error"]["symbol"]) == (1, "PLAN_STALE")


def test_a_rejected_plan_says_by_whom_and_why(local_cli, prepared):
    plan_id = prepared["plan_id"]
    assert local_cli("approvals", "reject", plan_id, "--reason", "not now").out.endswith("\nrejected\n")
    assert "rejected by" in local_cli("plan", "show", plan_id).out
    assert "not now" in local_cli("plan", "execute", plan_id, "--wait", "1").err


def test_plans_are_listed_and_an_unknown_one_is_an_error(local_cli, prepared):
    listed = local_cli("plan", "list", "--json").json
    assert prepared["plan_id"] in [one["plan_id"] for one in listed]
    assert prepared["plan_id"] in local_cli("plan", "list").out
    unknown = local_cli("plan", "show", "none")
    assert (unknown.code, "`hearth plan list`" in unknown.err) == (1, True)


def test_a_plan_with_a_key_is_refused_before_a_daemon_is_asked(cli):
    refused = cli("plan", "prepare", "-", stdin=orjson.dumps({**PLAN, "idempotency_key": "k"}))
    assert (refused.code, "leave it out" in refused.err) == (2, True)


def test_an_execution_that_is_not_approved_in_time_is_refused(local_cli, prepared):
    refused = local_cli("plan", "execute", prepared["plan_id"], "--wait", "0.05", "--json")
    assert (refused.code, refused.json["error"]["symbol"]) == (1, "APPROVAL_REQUIRED")
