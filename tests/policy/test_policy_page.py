"""What docs/reference/policy.md says, executed."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hearth.policy.principal import Principal, from_token
from hearth.policy.rules import PolicyEntry, decide
from hearth.tools import ToolRegistry, Use, i2c_use

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text(encoding="utf-8")


def blocks():
    """The entries of the page: the example, hardware, approvals, jobs, `hearth admin token new`, and signals."""
    example, hardware, signals, approvals, jobs, token = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return example, hardware, approvals, jobs, token, signals


def example():
    return tomllib.loads(blocks()[0])["policy"]


def test_the_example_is_a_policy_and_its_entries_match_whom_they_should():
    entries = [PolicyEntry(**table) for table in example()]
    registry = ToolRegistry([])
    arm = Principal("unix", uid=1000, gid=1000, user="arm", group_names=frozenset(("arm", "gpio")))
    not_in_the_group = Principal("unix", uid=1000, gid=1000, user="arm", group_names=frozenset(("arm",)))
    grafana = Principal("tls", cert_subject="CN=grafana,O=Acme")
    assert decide(entries, arm, registry).policy == "arm"
    assert decide(entries, arm, registry).max_risk_ceiling == 3
    assert decide(entries, not_in_the_group, registry) is None
    assert decide(entries, grafana, registry).policy == "monitoring"
    assert decide(entries, Principal("unix", uid=990), registry).max_risk == 0


def test_the_example_is_what_a_configuration_file_takes(tmp_path):
    from hearth.config.model import load_config

    (tmp_path / "hearth.toml").write_text(blocks()[0], encoding="utf-8")
    assert [entry.name for entry in load_config(tmp_path / "hearth.toml").policy] == ["arm", "monitoring"]


def test_the_entry_about_hardware_says_what_it_seems_to(tmp_path):
    from hearth.config.model import load_config

    (tmp_path / "hearth.toml").write_text(blocks()[1], encoding="utf-8")
    assert load_config(tmp_path / "hearth.toml").policy[0].uart == ()
    (entry,) = (PolicyEntry(**table) for table in tomllib.loads(blocks()[1])["policy"])
    scope = decide([entry], Principal("unix", uid=1000, group_names=frozenset(("night",))), ToolRegistry([])).scope
    assert scope.permits(Use("lines", ("RELAY2", "gpiochip0:7")))
    assert scope.permits(Use("lines", ("FAN", "gpiochip1:4")))
    assert not scope.permits(Use("lines", ("FAN", "4", "gpiochip0:4")))
    assert [scope.permits(i2c_use(1, 0x48)), scope.permits(i2c_use(1, 0x48, ten_bit=True))] == [True, False]
    assert [scope.permits(i2c_use(2, 0x50)), scope.permits(Use("uart", ("uart0",)))] == [True, False]


def test_the_entry_about_signals_says_what_it_seems_to(tmp_path):
    from hearth.config.model import load_config

    (tmp_path / "hearth.toml").write_text(blocks()[5], encoding="utf-8")
    assert load_config(tmp_path / "hearth.toml").policy[0].signals == ("PUMP", "TANK*", "modbus:plant:FAN.*")
    (entry,) = (PolicyEntry(**table) for table in tomllib.loads(blocks()[5])["policy"])
    assert entry.scope.permits(Use("signals", ("tank", "i2c:1:tank")))
    assert entry.scope.permits(Use("signals", ("FAN.speed", "modbus:plant:FAN.speed")))
    assert not entry.scope.permits(Use("signals", ("FAN", "pwm:sim:FAN")))
    assert not entry.scope.permits(Use("signals", ()))


def test_the_entries_about_approvals_say_what_they_seem_to(tmp_path):
    from hearth.config.model import load_config

    agents, operators = (PolicyEntry(**table) for table in tomllib.loads(blocks()[2])["policy"])
    assert [(rule.from_risk, rule.persons) for rule in agents.approval] == [(2, 1), (3, 2)]
    assert (operators.rights, operators.approval) == ({"approve"}, ())
    (tmp_path / "hearth.toml").write_text(blocks()[2], encoding="utf-8")
    assert load_config(tmp_path / "hearth.toml").policy[0].approval[1].persons == 2


def test_the_entries_about_whole_jobs_say_what_they_seem_to(tmp_path):
    from hearth.config.model import load_config

    entry, lab = (PolicyEntry(**table) for table in tomllib.loads(blocks()[3])["policy"])
    planner = entry.hcp
    assert [planner.allows("bench-climate-survey"), planner.allows("gpio-self-test")] == [True, False]
    assert [planner.allows_caller("planner-7"), planner.allows_caller("arm")] == [True, False]
    assert (planner.max_risk, entry.rights, lab.rights) == ("R3", frozenset(), {"approve"})
    (tmp_path / "hearth.toml").write_text(blocks()[3], encoding="utf-8")
    assert load_config(tmp_path / "hearth.toml").policy[1].rights == ("approve",)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="sha256sum is not installed")
def test_the_command_for_a_tokens_digest_prints_it():
    (command,) = re.findall(r"`(printf %s .*?)`", PAGE)
    done = subprocess.run(
        ["sh", "-c", command.replace("\\|", "|")],
        env={"TOKEN": "s3 cret", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split()[0] == from_token("s3 cret").token_sha256


@pytest.mark.slow
def test_the_entry_for_a_token_is_what_the_command_prints(tmp_path):
    (command,) = re.findall(r"`hearth (admin token new .*?)`", PAGE)
    done = subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", *command.split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    entry = "".join(line + "\n" for line in done.stdout.splitlines() if line and not line.startswith("#"))
    assert re.sub(r'"([0-9a-f]{4})[0-9a-f]{60}"', '"5f72…"', entry) == blocks()[4]
    token = (tmp_path / "panel.token").read_text("ascii").strip()
    assert tomllib.loads(entry)["policy"][0]["match"] == {"token_sha256": from_token(token).token_sha256}
