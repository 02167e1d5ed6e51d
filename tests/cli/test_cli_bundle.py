"""`hearth admin bundle`: what is in the archive, and what must never be."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from typing import TYPE_CHECKING

import orjson
import pytest

from hearth.cli import bundle
from hearth.cli.bundle import REDACTED, Parts, redact

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

TOKEN = f"hearth_{'aZ7-_' * 8}aZ7"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()
PASSWORD = "correct-horse-battery"
CONFIG = f"""
[tools]
enable = ["proc.exec"]

[tools.exec.backup]
argv = ["/bin/true"]
env = {{ BACKUP = "{PASSWORD}" }}

[[policy]]
name = "page"
match = {{ token_sha256 = "{DIGEST}" }}

[[policy]]
name = "local"
match = {{ any = true }}
rights = ["observe"]
"""


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        names = tar.getnames()
        assert len({name.split("/")[0] for name in names}) == 1, "one folder, so that unpacking makes no mess"
        return {name.split("/")[1]: tar.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]


def test_it_has_what_a_person_who_helps_needs(local_cli, daemon, tmp_path):
    local_cli("run", "gpio.set", "line=LED", "value=1")
    path = tmp_path / "out.tar.gz"
    told = local_cli("admin", "bundle", path, "--config", daemon.config, "--records", "5", "--json").json
    assert told["file"] == str(path)
    parts = contents(path)
    assert sorted(parts) == told["parts"]
    assert orjson.loads(parts["about.json"])["packages"]["trio"]
    assert 'name = "page"' in parts["config.toml"]
    assert any(check["name"] == "daemon" for check in orjson.loads(parts["doctor.json"])["checks"])
    state = orjson.loads(parts["state.json"])
    assert any("LED" in line["aliases"] for line in state["lines"])
    assert any(tool["name"] == "gpio.set" for tool in orjson.loads(parts["tools.json"]))
    records = [orjson.loads(line) for line in parts["audit.jsonl"].splitlines()]
    assert len(records) == 5
    assert orjson.loads(parts["audit-verify.json"])["ok"]
    assert "sim" in parts["board.toml"]
    assert f"Secrets that were replaced by {REDACTED}: {told['redacted']}." in parts["README.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_secret_of_the_configuration_is_in_it(local_cli, daemon, tmp_path):
    path = tmp_path / "out.tar.gz"
    local_cli("admin", "bundle", path, "--config", daemon.config)
    everything = "\n".join(contents(path).values())
    for secret in (TOKEN, DIGEST, PASSWORD):
        assert secret not in everything
    assert f"{DIGEST[:12]}{REDACTED}" in everything, "the beginning tells principals apart"
    assert "PRIVATE KEY" not in everything


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"bad token {TOKEN}, refused", f"bad token {REDACTED}, refused"),
        (f'token_sha256 = "{DIGEST}"', f'token_sha256 = "{DIGEST[:12]}{REDACTED}"'),
        (f'"principal":"token:{DIGEST}"', f'"principal":"token:{DIGEST[:12]}{REDACTED}"'),
        ("Authorization: Bearer abcdefgh12345678", f"Authorization: Bearer {REDACTED}"),
        ("wss://ada:lovelace@example.org/", f"wss://{REDACTED}@example.org/"),
        ("broker_password = hunter2 # x", f"broker_password = {REDACTED} # x"),
        ('"api_key": "k-123", "n": 1', f'"api_key": "{REDACTED}", "n": 1'),
        ("a\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nb", f"a\n{REDACTED}\nb"),
        ("-----BEGIN EC PRIVATE KEY-----\nMIIE, cut off", REDACTED),
        ('"secret": {"type": "object"}', '"secret": {"type": "object"}'),
        ("hearth_transactions_total 5", "hearth_transactions_total 5"),
        ("sha256:" + "0" * 64, "sha256:" + "0" * 64),
        ("tokens: none", "tokens: none"),
    ],
)
def test_what_could_be_a_secret_is_replaced_and_nothing_else(text: str, left: str) -> None:
    found, count = redact(text)
    assert found == left
    assert count == (text != left)
    assert redact(found)[0] == found


def test_without_a_daemon_it_says_what_is_missing_and_writes_the_rest(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no journalctl
    told = cli("admin", "bundle")
    assert told.code == 0
    (path,) = tmp_path.glob("hearth-bundle-*.tar.gz")
    parts = contents(path)
    assert "state.json" not in parts
    assert "without state.json: no daemon at" in told.out
    assert "without log.txt: there is no journalctl here" in told.out
    assert "without audit.jsonl" in told.out
    assert "- state.json: no daemon at" in parts["README.txt"]
    assert "FAIL" not in told.out


def test_no_file_is_overwritten(cli, tmp_path):
    path = tmp_path / "kept"
    path.write_text("mine")
    refused = cli("admin", "bundle", path)
    assert (refused.code, path.read_text()) == (2, "mine")
    assert "name another one" in refused.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_named(cli, tmp_path):
    tmp_path.chmod(0o500)
    assert "Permission denied" in cli("admin", "bundle", tmp_path / "x").err


def test_a_broken_configuration_is_a_usage_error(cli, tmp_path):
    config = tmp_path / "hearth.toml"
    config.write_text("[audti]\n")
    refused = cli("admin", "bundle", tmp_path / "x", "--config", config)
    assert refused.code == 2
    assert "audti" in refused.err


def test_of_a_long_part_the_end_is_kept(monkeypatch):
    monkeypatch.setattr(bundle, "MOST_BYTES", 10)
    parts = Parts()
    parts.add("log.txt", "a" * 10 + "the newest")
    assert parts.texts["log.txt"] == "[the first 10 characters are left out]\nthe newest"


JOURNALCTL = {
    "prints": ("echo 'hearthd: token hearth_0123456789012345678901234567890123456789012'", REDACTED),
    "fails": ("echo 'no journal' >&2; exit 1", "without log.txt: journalctl: no journal"),
}


@pytest.mark.parametrize("how", JOURNALCTL)
def test_the_journal_is_taken_from_journalctl(cli, tmp_path, monkeypatch, how: str):
    script, expected = JOURNALCTL[how]
    program = tmp_path / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    told = cli("admin", "bundle", tmp_path / "out.tar.gz")
    assert expected in told.out + contents(tmp_path / "out.tar.gz").get("log.txt", "")


def test_a_log_that_would_take_minutes_is_not_verified(cli, daemon, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MOST_VERIFIED", 10)
    told = cli("admin", "bundle", tmp_path / "out.tar.gz", "--config", daemon.config)
    assert "run `hearth audit verify" in told.out
