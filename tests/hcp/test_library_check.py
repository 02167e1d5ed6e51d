"""What `hearthd --check` and a start make of the capabilities that a configuration names."""

import pytest
from hcp.capability_files import PLAN, RIGHT

from hearth import schema
from hearth.actors import daemon
from hearth.actors.build import build_parts
from hearth.config.model import load_config


@pytest.fixture
def configured(tmp_path):
    """A configuration with one capability of the operator's, as a function of what else it says."""
    capabilities = tmp_path / "capabilities.d"
    capabilities.mkdir()
    (capabilities / "blink.toml").write_text(PLAN, encoding="utf-8")

    def write(*, hcp="", policy='rights = ["approve"]'):
        file = tmp_path / "hearth.toml"
        file.write_text(
            f'[audit]\npath = "{tmp_path}/audit.log"\n'
            f'[hcp]\nshipped = []\ncapabilities = ["{capabilities}"]\n{hcp}\n'
            f'[[policy]]\nname = "all"\nmatch = {{ any = true }}\n{policy}\n'
        )
        return file

    return write


def check(file, capfd):
    """What --check says; it starts nothing."""
    daemon.main(["--config", str(file), "--check"])
    return capfd.readouterr().out.splitlines()


@pytest.mark.slow
def test_check_counts_the_capabilities(configured, capfd):
    (line,) = check(configured(), capfd)
    assert line.startswith("hearthd: configuration is good: board sim, ")
    assert ", 1 capabilities, 1 policy entries" in line


@pytest.mark.slow
def test_check_has_every_schema_judged_by_the_authority(configured, capfd, monkeypatch):
    judged = []
    authority = schema.check_schema

    def judge(given, where, *, by_authority):
        judged.append(where)
        authority(given, where, by_authority=by_authority)

    monkeypatch.setattr("hearth.actors.daemon.checks.check_schema", judge)
    monkeypatch.setattr("hearth.actors.bridges.hcp.extra.check_schema", judge)
    check(configured(), capfd)
    assert [where.partition("blink.toml: ")[2] for where in judged[-2:]] == [
        "input_schema",
        "output_schema",
    ]


@pytest.mark.slow
def test_check_points_out_a_pattern_that_fits_no_capability_and_a_person_who_is_not_there(configured, capfd):
    *warnings, _ = check(configured(policy='hcp = { capabilities = ["bench-*"] }'), capfd)
    assert [line.removeprefix("hearthd: warning: ") for line in warnings] == [
        "policy 'all': hcp.capabilities: 'bench-*' fits no capability; `hearth hcp capabilities` lists them",
        "capability line-blink: a person must allow its jobs, and no [[policy]] entry has approve in its rights",
    ]


@pytest.mark.slow
def test_check_tells_what_is_left_out_and_why(configured, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    file = configured()
    file.write_text(file.read_text().replace('capabilities = ["', f'capabilities = ["{tmp_path}/empty", "'))
    note, line = check(file, capfd)
    assert note == f"hearthd: note: {tmp_path}/empty has no capability in it: there is no *.py and no *.toml"
    assert ", 1 capabilities" in line


def test_check_tells_all_that_is_wrong_and_exits_2(configured, tmp_path, capfd):
    file = tmp_path / "capabilities.d/blink.toml"
    file.write_text(PLAN.replace('"1.2.0"', '"1"').replace('"PT10M"', '"10m"'))
    (code := tmp_path / "capabilities.d/a.py").write_text(RIGHT.replace('"1.2.0"', '"1"'))
    (tmp_path / "capabilities.d/b.py").write_text("import nothing_of_this_name")
    with pytest.raises(SystemExit) as ended:
        daemon.main(["--config", str(configured()), "--check"])
    assert ended.value.code == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(" expected")[0].partition(" No module")[0] for line in lines] == [
        f"hearthd: {code}:8: version:",
        f"hearthd: {tmp_path}/capabilities.d/b.py:1: ModuleNotFoundError:",
        f"hearthd: {file}: capability.version:",
        f"hearthd: {file}: capability.constraints.max_duration:",
    ]


def test_an_entry_point_that_there_is_not_stops_the_start(configured, capfd):
    file = configured()
    file.write_text(file.read_text().replace('capabilities = ["', 'capabilities = ["acme", "'))
    with pytest.raises(SystemExit):
        daemon.main(["--config", str(file), "--check"])
    assert '[hcp] capabilities: no installed package has a capability "acme"' in capfd.readouterr().err


def test_planners_are_gone_and_the_cure_is_told(configured, capfd):
    with pytest.raises(SystemExit):
        daemon.main(["--config", str(configured(hcp='planners = ["acme"]')), "--check"])
    assert "[hcp] planners: unknown key; write what it planned as a Python function" in capfd.readouterr().err


@pytest.mark.slow
def test_where_no_jobs_are_taken_no_capability_is_read(configured, tmp_path, capfd):
    (tmp_path / "capabilities.d/blink.toml").write_text("[capability\n")
    (line,) = check(configured(hcp="serve = false"), capfd)
    assert "capabilities" not in line


def test_the_configuration_is_printed_with_all_of_hcp(configured, capfd):
    file = configured(hcp="max_jobs = 3")
    daemon.main(["--config", str(file), "--print-config"])
    printed = capfd.readouterr().out
    assert "\nmax_jobs = 3\nmax_jobs_per_principal = 4\n" in printed
    assert '\nhcp = { capabilities = ["*"], max_risk = "R5", max_data_classification = "T2", callers = ["*"]' in printed
    file.write_text(printed)
    assert load_config(file).hcp.max_jobs == 3


def test_the_parts_of_a_runtime_have_the_capabilities_the_policy_and_a_place_beside_the_audit_log(configured, tmp_path):
    parts = build_parts(load_config(configured()), default_policy=())
    assert list(parts.extras["hcp"].capabilities) == ["line-blink"]
    assert parts.policy[0].rights == {"approve"}
    assert parts.extras["hcp"].settings.max_jobs == 16
    assert parts.extras["hcp"].directory == tmp_path / "audit.log.hcp"
