"""Every name that a command had before still runs, as it did, and names the new one in one line on stderr."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import orjson
import pytest
from click.testing import CliRunner

from hearth.cli.main import cli as root

CONFIG = """
[[policy]]
name = "bench"
match = { any = true }
max_risk = 3
rights = ["approve", "admin", "observe"]
approval = [{ from_risk = 2 }]
"""
PLAN = {"intent": "Light", "steps": [{"tool": "gpio.set", "args": {"line": "LED", "value": 1}}]}
READ = {"intent": "Look", "steps": [{"tool": "gpio.get", "args": {"line": "LED"}}]}

OLD_NAMES = {
    "submit": "plan submit",
    "get": "tasks show",
    "cancel": "tasks cancel",
    "watch": "tasks watch",
    "sessions": "admin sessions",
    "reload": "admin reload",
    "policy": "admin policy",
    "attest": "admin attest",
    "card": "admin card",
    "tls": "admin tls",
    "token": "admin token",
    "bundle": "admin bundle",
    "completion": "admin completion",
    "plan approve": "approvals approve",
    "plan reject": "approvals reject",
    "hcp pending": "approvals list",
    "hcp approve": "approvals approve",
    "hcp deny": "approvals reject",
    "approvals revoke": "approvals reject",
}
BEHIND = {"policy": "explain", "attest": "verify", "card": "show", "tls": "init", "token": "new"}
"""A command of each group that has moved."""


def hint(old, new):
    return f"note: `hearth {old}` is now `hearth {new}`\n"


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_is_found_and_names_the_new_one_which_needs_no_hint(cli, old, new):
    for more in ([], [BEHIND[old]]) if old in BEHIND else ([],):
        answer = cli(*old.split(), *more, "--help")
        assert (answer.code, answer.err) == (0, hint(old, new))
        assert answer.out.startswith("Usage: ")
        answer = cli(*new.split(), *more, "--help")
        assert (answer.code, answer.err) == (0, "")


@pytest.mark.parametrize("name", ["approve", "connect"])
def test_a_short_name_that_stays_gives_no_hint(cli, name):
    assert cli(name, "--help").err == ""


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_tasks_alone_was_the_list_of_tasks(local_cli, words):
    answer = local_cli("tasks", *words)
    assert (answer.code, answer.err) == (0, hint("tasks", "tasks list"))
    assert answer.out == local_cli("tasks", "list", *words).out


def test_an_old_name_works_behind_global_options(local_cli, daemon):
    answer = local_cli("--json", "--socket", daemon.socket, "sessions")
    assert (answer.json, answer.err) == ([], hint("sessions", "admin sessions"))


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("tls i", ["init"]), ("tasks ", ["cancel", "list", "show", "watch"]), ("plan s", ["show", "submit"])],
)
def test_tab_completes_behind_old_and_new_names_and_writes_nothing_else(typed, completed):
    code = "from hearth.cli.main import main; main()"
    environ = {**os.environ, "_HEARTH_COMPLETE": "bash_complete", "COMP_WORDS": f"hearth {typed}", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == ([f"plain,{name}" for name in completed], "")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("reject", "did you mean approvals reject?"),
        ("submti", "did you mean plan submit, hcp submit, fleet submit?"),
        ("sesions", "did you mean admin sessions?"),
        ("hatl", "did you mean halt?"),
        ("zzz", "`hearth --help` lists them"),
        ("gpio.set", "a tool is run by `hearth run gpio.set`"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_command_and_its_group(cli, typed, words):
    refused = cli(typed, "X")
    assert refused.code == 2
    assert f"there is no command {typed!r}; {words}\n" in refused.err


@pytest.mark.slow
def test_an_old_decision_on_an_unknown_job_writes_only_the_error(local_cli):
    refused = local_cli("hcp", "approve", "01X")
    assert (refused.code, refused.out) == (1, "")


@pytest.mark.slow
def test_old_names_of_tasks_print_what_the_new_ones_print(local_cli):
    plan = orjson.dumps(READ)
    task = local_cli("submit", "-", "--detach", stdin=plan).out.strip()
    assert local_cli("watch", task).code == 0
    shown = local_cli("get", task, "--json")
    assert (shown.json["status"], shown.out) == ("SUCCESS", local_cli("tasks", "show", task, "--json").out)
    assert local_cli("cancel", task).out == local_cli("tasks", "cancel", task).out == "SUCCESS\n"


@pytest.mark.slow
def test_old_decisions_on_plans_need_no_hash_and_answer_as_before(local_cli):
    plans = [local_cli("plan", "prepare", "-", "--json", stdin=orjson.dumps(PLAN)).json["plan_id"] for _ in range(4)]
    refused = local_cli("plan", "approve", plans[0], stdin=b"")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    approved = local_cli("plan", "approve", plans[0], "--yes", "--json")
    assert approved.json == {"plan_id": plans[0], "approved": True, "missing": 0}
    said = local_cli("plan", "approve", plans[1], "--yes").out
    assert (said.startswith("waiting  "), said.endswith("\napproved\n")) == (True, True)
    rejected = local_cli("plan", "reject", plans[2], "--json").json
    assert rejected == {"plan_id": plans[2], "approved": False, "taken_back": False}
    assert local_cli("plan", "reject", plans[3]).out == "rejected\n"


@pytest.mark.slow
def test_an_approval_in_advance_is_revoked_under_the_old_name(local_cli):
    call = ("--for", "gpio.set LED 0..1", "--times", "3", "--within", "1h", "--yes", "--json")
    given = local_cli("approvals", "approve", *call).json["approval_id"]
    assert local_cli("approvals", "revoke", given, "--json").json == {"approval_id": given, "revoked": True}
    gone = local_cli("approvals", "revoke", given, "--json")
    assert (gone.code, gone.json["error"]["symbol"]) == (1, "RPC_PERMISSION_DENIED")


def test_the_help_groups_few_commands_by_what_people_do():
    shown = CliRunner().invoke(root, ["--help"]).output.splitlines()
    assert len(shown) <= 40
    assert max(map(len, shown)) <= 80
    titles = [line[:-1] for line in shown if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", "Run", "Watch", "Approve", "Stop", "Look back", "Set up"]
    names = root.list_commands(click.Context(root))
    assert len(names) <= 20
    assert [line.split()[0] for line in shown[shown.index("Run:") :] if line.startswith("  ")] == names
