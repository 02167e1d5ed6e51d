"""`hearth admin policy explain`: the entry that decides, why, and that a real daemon decides the same."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from hearth.cli.policy import read_principal
from hearth.policy.rules import Match, PolicyEntry

pytestmark = pytest.mark.slow

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
POLICY = f"""
[[policy]]
name = "robot"
match = {{ token_sha256 = "{DIGEST}" }}
tools = ["gpio.*", "i2c.read"]
lines = ["GPIO17"]
max_risk = 1
max_risk_ceiling = 2
rate = {{ "gpio.*" = "10/s" }}

[[policy]]
name = "arm"
match = {{ cert_subject = "CN=arm-7,O=Acme", cert_san = "DNS:arm-7.local" }}
rights = ["observe"]

[[policy]]
name = "bench"
match = {{ uid = {os.geteuid()} }}
approval = [{{ from_risk = 2, persons = 2 }}]
"""
ME = f"uid:{os.geteuid()}"
TOKEN = "token:9f86"


@pytest.fixture
def explain(cli, tmp_path):
    config = tmp_path / "explained.toml"
    config.write_text(f'[board]\nprofile = "sim"\n[audit]\npath = "{tmp_path}/audit.log"\n{POLICY}')
    return lambda who, *words: cli("admin", "policy", "explain", "--as", who, "--config", config, *words)


def test_a_call_that_may_run_names_entry_pattern_rate_risk_and_scope(explain):
    shown = explain(TOKEN, "gpio.get", "line=17")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert (shown.code, lines[0]) == (0, "allow gpio.get line=17")
    assert lines[2:] == [
        f"principal token:{DIGEST}",
        f"policy 'robot', entry 1 of 3: match token_sha256 = {DIGEST}",
        'tools allowed by "gpio.*"',
        'rate 10/s, by "gpio.*" in its `rate`; over all sessions of the principal together',
        "risk 0; max_risk 1, and a task may raise it to 2",
        "uses GPIO17 lines: gpio17",
        "rights none",
    ]


@pytest.mark.parametrize(
    ("who", "words", "reason", "cure"),
    [
        (TOKEN, ["gpio.get", "line=18"], "GPIO18 is not in `lines` of policy 'robot'", 'add "GPIO18" to `lines`'),
        (TOKEN, ["file.read", "path=/x"], "not in the allowlist of policy 'robot'", 'add "file.read" to its `tools`'),
        (TOKEN, ["gpio.set", "line=17", "value=1"], "its risk 2 is above max_risk 1", "max_risk_level=2"),
        ("uid:4242", ["gpio.get", "line=17"], "none of the 3 policy entries matches", "`match`"),
        ("cert:CN=arm-7,O=Acme", ["gpio.get", "line=17"], "none of the 3 policy entries", "`match`"),
        (ME, ["file.read", "path=/etc/shadow"], "/etc/shadow: ", "[files] read"),
    ],
)
def test_a_call_that_is_denied_has_the_reason_and_the_cure(explain, who, words, reason, cure):
    told = explain(who, *words, "--json")
    assert (told.code, told.json["verdict"]) == (1, "deny")
    assert reason in told.json["reason"]
    assert cure in told.json["cure"]


def test_a_call_that_needs_an_approval_says_whose(explain):
    told = explain(ME, "gpio.set", "line=17", "value=1", "--json")
    assert (told.code, told.json["verdict"]) == (1, "needs approval")
    assert told.json["approval"] == "from risk 2 on: 2 persons with 'approve', other than its author"
    assert "hearth plan prepare" in told.json["cure"]
    assert told.json["policy"].startswith("'bench', entry 3 of 3")


def test_a_certificate_is_matched_by_subject_and_alternative_names(explain):
    arm = explain("cert:CN=arm-7,O=Acme;DNS:arm-7.local", "gpio.get", "line=17", "--json").json
    assert (arm["verdict"], arm["rights"]) == ("allow", "observe")


@pytest.mark.parametrize(
    ("who", "words", "said"),
    [
        (ME, ["gpio.ste", "line=1"], "did you mean gpio.set"),
        (ME, ["gpio.get", "lin=1"], "takes no such arg"),
        (ME, ["gpio.get"], "`hearth tools gpio.get`"),
        (ME, ["gpio.get", "line=99"], "has no gpio line"),
        ("alice", ["gpio.get", "line=1"], 'expected "uid:1000"'),
        ("user:nobody-of-that-name", ["gpio.get", "line=1"], "has no user"),
        ("token:abcdef", ["gpio.get", "line=1"], "no token of the policy begins so"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error_of_one_line(explain, who, words, said):
    wrong = explain(who, *words)
    assert wrong.code == 2
    assert said in wrong.err.splitlines()[-1]


def test_a_wrong_configuration_is_named(cli, tmp_path):
    assert cli("admin", "policy", "explain", "--as", "uid:0", "--config", tmp_path / "none.toml", "gpio.get").code == 2


def test_principals_are_read_as_they_are_written_in_the_audit_log():
    entries = [PolicyEntry(name="a", match=Match(any=True)), PolicyEntry(name="b", match=Match(token_sha256=DIGEST))]
    me = pwd.getpwuid(os.geteuid())
    assert read_principal(f"user:{me.pw_name}", entries) == read_principal(ME, entries)
    for key in ("uid:4242", f"token:{DIGEST}", "cert:CN=a", r"cert:CN=a\;b;DNS:x;DNS:y", "cert:;DNS:x", "embedded"):
        assert read_principal(key, entries).key == key
    assert read_principal(f"token:{'0' * 64}", entries).key == f"token:{'0' * 64}"


def test_a_daemon_with_this_configuration_decides_the_same(explain, own_daemon, cli):
    daemon = own_daemon(POLICY)
    for words in (
        ["gpio.get", "line=17"],
        ["gpio.set", "line=17", "value=1"],
        ["file.read", "path=/etc/shadow"],
        ["i2c.write", "bus=1", "addr=0x50", "reg=0", "text=ab"],
        ["i2c.read", "bus=1", "addr=0x48", "length=1"],
    ):
        done = cli("run", *words, "--socket", daemon.socket, "--json")
        assert explain(ME, *words).code == done.code, words


SIGNALS = f"""
[[policy]]
name = "pumps"
match = {{ uid = {os.geteuid()} }}
tools = ["gpio.*", "servo.*", "i2c.*"]
signals = ["PUMP", "tank*", "ARM", "PUMPE"]
approval = [{{ from_risk = 2 }}]
"""


@pytest.fixture
def of_signals(cli, tmp_path):
    config = tmp_path / "explained.toml"
    config.write_text(f'[board]\nprofile = "sim"\n[audit]\npath = "{tmp_path}/audit.log"\n{SIGNALS}')
    return lambda *words: cli("admin", "policy", "explain", "--as", ME, "--config", config, *words)


def test_without_a_tool_it_shows_which_signals_may_be_read_and_set_and_why_not(of_signals):
    told = {one["signal"]: one for one in json.loads(of_signals("--json").out)["signals"]}
    assert told["PUMP"]["read"] == {"verdict": "allow", "tool": "gpio.get", "policy": told["PUMP"]["read"]["policy"]}
    assert (told["PUMP"]["set"]["verdict"], told["PUMP"]["set"]["tool"]) == ("needs approval", "gpio.set")
    assert told["LED"]["set"]["reason"] == "LED is not in `signals` of policy 'pumps'"
    assert told["tank"]["read"]["reason"] == "not in the allowlist of policy 'pumps'"
    assert told["ARM"]["set"]["tool"] == "servo.move"
    assert (told["DOOR"]["set"], told["FAULTS"]["read"]) == (None, None)
    text = of_signals().out
    assert "PUMP  read allow, set needs approval\n" in text
    assert "  LED is not in `signals` of policy 'pumps'; add \"LED\" to `signals` of policy 'pumps'\n" in text


def test_a_step_on_a_signal_is_explained_as_the_step_of_its_kind(of_signals):
    lines = [" ".join(line.split()) for line in of_signals("signal.set", "name=PUMP", "value=1").out.splitlines()]
    assert lines[0] == "needs approval signal.set name=PUMP value=1"
    assert "means gpio.set chip=sim line=23 value=1" in lines
    assert 'tools allowed by "gpio.*"' in lines
    raw = of_signals("i2c.write", "bus=1", "addr=80", "text=x")
    assert "permits only some signals, and i2c.write with these args may reach others" in raw.out
