"""The comparison with other ways to set a line: it runs with what is there, and says how to install what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peer_programs import CLIENTS, SERVERS
from benchmarks.peers import WAYS

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300
"""Seconds after which a run counts as hung, not as slow."""

pytestmark = pytest.mark.usefixtures("unmeasured")


def peers(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.peers", "--rounds", "1", "--seconds", "0.2", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND)


@pytest.mark.proof
def test_each_of_hearths_clients_has_its_figures_and_a_peer_that_is_missing_names_its_cure(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    # An interpreter without any packages, so that the peer is missing wherever this runs.
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    names = ("hearth", "hearth-aio", "hearth-sync", "pyro5")
    done = peers(*names, "--python", str(bare), "--json", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pyro5:" in done.stderr
    assert "python -m pip install -r benchmarks/peers.txt" in done.stderr
    rows = json.loads(target.read_text())["rows"]
    assert [row["name"] for row in rows] == [f"{name}-{count}" for count in (1, 16) for name in names[:3]]
    assert all(row["figure"] > 0 for row in rows)


def test_a_name_that_is_no_way_is_refused_with_those_that_there_are() -> None:
    done = peers("no-such")
    assert done.returncode == 2
    assert all(way.name in done.stderr for way in WAYS)


def test_every_peer_has_a_server_a_client_and_a_line_in_the_list_of_packages() -> None:
    lines = (ROOT / "benchmarks" / "peers.txt").read_text().splitlines()
    packages = {line.partition("==")[0].lower() for line in lines}
    assert {way.name for way in WAYS if way.module} == set(SERVERS)
    assert {way.name for way in WAYS} == set(CLIENTS)
    assert {way.module.lower() for way in WAYS if way.module} <= packages
