"""A changed byte in anything that is measured changes the measurement, and foreign code makes the same one."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from hearth._util.files import noted, noting, read_file
from hearth.actors.attestation import policy_json
from hearth.actors.build import build_parts
from hearth.attest import measure
from hearth.attest.measure import manifest, own_files, sha256_of, sha256_of_bytes
from hearth.config.model import Config
from hearth.drivers.kinds import words
from hearth.policy.rules import ApprovalRule, JobRules, Match, PolicyEntry, in_force

ROOT = Path(__file__).parents[2]


def test_a_manifest_is_what_sha256sum_prints(tmp_path):
    names = ["b.py", "a.py", "c/d.so"]
    (tmp_path / "c").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    printed = subprocess.run(
        ["sha256sum", *sorted(names)], cwd=tmp_path, check=True, capture_output=True, timeout=60
    ).stdout
    assert manifest((name, tmp_path / name) for name in names) == printed


def test_a_file_that_cannot_be_read_is_in_the_manifest_with_the_reason(tmp_path):
    assert manifest([("gone", tmp_path / "gone")]) == b"(No such file or directory)".ljust(64) + b"  gone\n"


@pytest.mark.proof
def test_foreign_code_finds_every_measured_file_as_it_is(tmp_path):
    files = [*own_files(), *measure.dependencies()]
    assert len({name for name, _ in files if name.startswith("hearth/")}) > 250
    for needed in ("hearth/audit/log.py", "hearth/actors/journal.py", "hearth/drivers/tpm.py", "trio/__init__.py"):
        assert needed in {name for name, _ in files}
    assert not any(name.startswith(("pytest/", "mypy/")) for name, _ in files)
    lines = [b"%s  %s" % (line[:64], bytes(dict(files)[line[66:].decode()])) for line in manifest(files).splitlines()]
    (tmp_path / "sums").write_bytes(b"\n".join(lines) + b"\n")
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", "sums"], cwd=tmp_path, check=False, timeout=120
    )
    assert done.returncode == 0


MEASURE = "import json; from hearth.attest.measure import measure_files; print(json.dumps(measure_files()))"


def measured(site: Path) -> dict[str, str]:
    """The measurements of the hearth in this directory, by a process of its own."""
    code = f"import sys; sys.dont_write_bytecode = True; sys.path.insert(0, {str(site)!r}); {MEASURE}"
    done = subprocess.run([sys.executable, "-I", "-c", code], check=True, capture_output=True, text=True, timeout=120)
    return dict(json.loads(done.stdout))


@pytest.mark.proof
def test_a_changed_byte_of_any_installed_file_changes_the_statement(tmp_path):
    shutil.copytree(ROOT / "hearth", tmp_path / "hearth", ignore=shutil.ignore_patterns("__pycache__"))
    files = [path for path in sorted((tmp_path / "hearth").rglob("*")) if path.is_file()]
    assert {name for name, _ in own_files()} == {str(path.relative_to(tmp_path)) for path in files}
    subprocess.run([sys.executable, "-I", "-m", "compileall", "-q", str(tmp_path)], check=True, timeout=240)
    before = measured(tmp_path)
    compiled = sorted((tmp_path / "hearth" / "audit").rglob("*.pyc"))
    seeded = random.Random(7)
    # The measuring code itself must go on: what it runs is left alone, and its manifest is looked at below.
    chosen = [path for path in seeded.sample(files, 8) if "_util" not in path.parts and path.parent.name != "audit"]
    for path in [*chosen, tmp_path / "hearth" / "actors" / "journal.py", tmp_path / "hearth" / "py.typed"]:
        content = path.read_bytes()
        at = seeded.randrange(len(content)) if content else 0
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if content else b"x")
        after = measured(tmp_path)
        assert {name for name in before if before[name] != after[name]} == {"hearth"}, path
        path.write_bytes(content)
    (tmp_path / "hearth" / "more.py").write_text("pass\n")
    assert measured(tmp_path)["hearth"] != before["hearth"]
    (tmp_path / "hearth" / "more.py").unlink()
    witness = next(path for path in compiled if path.name.startswith("backlog"))
    content = witness.read_bytes()
    witness.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    after = measured(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"bytecode"}
    witness.write_bytes(content)
    assert measured(tmp_path) == before


def test_every_line_of_a_manifest_is_in_the_measurement(tmp_path):
    names = [f"{n}.py" for n in range(20)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    files = [(name, tmp_path / name) for name in names]
    before = sha256_of_bytes(manifest(files))
    assert before == f"sha256:{hashlib.sha256(manifest(files)).hexdigest()}"
    for name in names:
        (tmp_path / name).write_bytes(name.encode()[:-1] + b"x")
        assert sha256_of_bytes(manifest(files)) != before
        (tmp_path / name).write_bytes(name.encode())


ENTRY = PolicyEntry(name="a", match=[Match(uid=1)])
CHANGES = {
    "name": "b",
    "match": [Match(uid=2)],
    "max_risk": 1,
    "max_risk_ceiling": 3,
    "tools": ("gpio.*",),
    "rate": {"gpio.set": "5/s"},
    "hcp": JobRules(capabilities=("x",)),
    "rights": frozenset({"observe"}),
    "approval": (ApprovalRule(from_risk=3),),
    **dict.fromkeys(("lines", "uart", "pwm", "dac", "spi", "modbus"), ("X",)),
    "i2c": ("1:0x48",),
    "can": ("can0:X",),
}


def test_a_changed_member_of_a_policy_changes_its_measurement():
    assert set(CHANGES) - words() == set(attrs.fields_dict(PolicyEntry)) - {"scope"}
    found = {sha256_of(policy_json(in_force([ENTRY])))}
    for name, value in CHANGES.items():
        found.add(sha256_of(policy_json(in_force([attrs.evolve(ENTRY, **{name: value})]))))
    found.add(sha256_of(policy_json(in_force([ENTRY, ENTRY]))))
    assert len(found) == len(CHANGES) + 2


def test_every_member_of_a_policy_is_json_so_that_none_counts_as_another():
    full = PolicyEntry(**CHANGES)
    text = json.dumps(policy_json(in_force([ENTRY, full])))
    assert "<" not in text
    assert '"uid": 2' in text
    assert '["observe"]' in text


def fixed(config, **places):
    return build_parts(config, default_policy=[ENTRY], **places).attestation._fixed()


def test_a_changed_byte_of_the_operators_files_changes_the_statement(tmp_path):
    config = attrs.evolve(Config(), audit=attrs.evolve(Config().audit, path=tmp_path / "log" / "audit.log"))
    file = tmp_path / "hearth.toml"
    file.write_text("# one\n")
    before = fixed(config, config_file=file)
    file.write_text("# two\n")
    assert {name for name, value in fixed(config, config_file=file).items() if value != before[name]} == {"files"}
    limits = attrs.evolve(config, limits=attrs.evolve(config.limits, max_steps=5))
    file.write_text("# one\n")
    assert {name for name, value in fixed(limits, config_file=file).items() if value != before[name]} == {
        "configuration",
        "limits",
    }
    fewer = attrs.evolve(config, tools=attrs.evolve(config.tools, disable=("gpio.pulse",)))
    assert {name for name, value in fixed(fewer, config_file=file).items() if value != before[name]} == {
        "configuration",
        "tools",
    }


def test_every_file_that_is_read_while_the_configuration_is_read_is_measured_but_no_key(tmp_path):
    dbc = tmp_path / "cell.dbc"
    shutil.copy(ROOT / "drivers" / "boards" / "sim.dbc", dbc)
    profile = tmp_path / "board.toml"
    can = '[[can]]\nbus = "can0"\ndriver = "sim"\ndbc = "cell.dbc"\n'
    profile.write_text(f'name = "cell"\ndescription = "a cell"\n{can}')
    config = attrs.evolve(
        Config(),
        audit=attrs.evolve(Config().audit, path=tmp_path / "log" / "audit.log"),
        board=attrs.evolve(Config().board, profile=str(profile)),
    )
    before = fixed(config)
    dbc.write_bytes(dbc.read_bytes() + b"\n")
    assert {name for name, value in fixed(config).items() if value != before[name]} == {"files"}
    with noting():
        certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        for file in (certificate, key):
            file.write_text("x")
            file.chmod(0o600)
        read_file(certificate, trusted={os.geteuid()})
        read_file(key, trusted={os.geteuid()}, private=True)
        assert noted() == {certificate}


def test_files_of_capabilities_are_measured(tmp_path):
    (tmp_path / "caps").mkdir()
    plan = tmp_path / "caps" / "more.py"
    shutil.copy(ROOT / "tests" / "cli" / "capabilities.d" / "line_check.py", plan)
    config = attrs.evolve(
        Config(),
        audit=attrs.evolve(Config().audit, path=tmp_path / "log" / "audit.log"),
        hcp=attrs.evolve(Config().hcp, capabilities=(str(tmp_path / "caps"),)),
    )
    before = fixed(config)
    plan.write_text(plan.read_text() + "\n# a remark\n")
    assert {name for name, value in fixed(config).items() if value != before[name]} == {"files"}
