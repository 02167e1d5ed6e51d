"""The official conformance suite against /mcp, with its fixtures offered beside the tools of a simulated board.

Every message that is sent on the way is held against the protocol's JSON schema too (`wire-schema-valid`). What the
suite found is kept in `test-artefacts/mcp-conformance/`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.hearthd import BOUND, Hearthd
from support.judges import PACKAGES, PROGRAMS, ROOT, environment, needs_judges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.proof, needs_judges]

HERE = Path(__file__).parent / "conformance"
KEPT = ROOT / "test-artefacts" / "mcp-conformance"
KNOWN_FAILURES = HERE / "expected-failures.yaml"
ERAS = ("2025-11-25", "2026-07-28")
SUITE_BOUND = 120
"""Seconds that the suite may take for one revision; it takes about two."""

Findings = dict[str, list[dict[str, Any]]]
"""The checks of each scenario."""


def known_failures() -> set[str]:
    """The entries of the file: scenario, or scenario:check."""
    return set(re.findall(r"^  - (\S+)$", KNOWN_FAILURES.read_text(), re.MULTILINE))


def required(era: str) -> set[str]:
    """The server scenarios that a revision's list names, scored or not."""
    text = (PACKAGES / "@modelcontextprotocol/conformance/requirements" / f"{era}.yaml").read_text()
    scored, _, others = text.partition("\nnot_scored:")
    mandatory = re.findall(r"^  - (\S+)$", scored.partition("\nserver:")[2].partition("\nclient:")[0], re.MULTILINE)
    more = re.findall(r"^  - scenario: (\S+)\n    leg: server$", others, re.MULTILINE)
    return {*mandatory, *more}


def read(folder: Path) -> Findings:
    """What the suite wrote down."""
    found = {}
    for report in folder.glob("server-*/checks.json"):
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", report.parent.name).removeprefix("server-")
        found[scenario] = json.loads(report.read_text())
    return found


def wrong(checks: list[dict[str, Any]]) -> dict[str, str]:
    """The checks that did not pass, and why; a SHOULD that is not kept counts."""
    return {
        check["id"]: f"{check['status']}: {check.get('errorMessage') or check['description']}"
        for check in checks
        if check["status"] in ("FAILURE", "WARNING")
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that serves the fixtures too."""
    daemon = Hearthd(tmp_path_factory.mktemp("daemon"), '[http]\nlisten = "127.0.0.1:0"')
    try:
        daemon.start(program=[str(HERE / "serve.py")])
        yield f"{daemon.listening['http']}/mcp"
    finally:
        daemon.end()


@pytest.fixture(scope="module")
def suite(url: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, str, Findings]]:
    """The suite's verdict of each era: its exit code, what it said, its findings. Both run at the same time."""
    shutil.rmtree(KEPT, ignore_errors=True)
    running = {}
    for era in ERAS:
        folder = KEPT / era
        folder.mkdir(parents=True)
        running[era] = subprocess.Popen(
            [PROGRAMS / "conformance", "server", "--url", url, "--requirements", era,
             "--expected-failures", KNOWN_FAILURES, "--output-dir", folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            env=environment(tmp_path_factory.mktemp("home")),
        )  # fmt: skip
    verdicts = {}
    try:
        for era, process in running.items():
            said, _ = process.communicate(timeout=SUITE_BOUND)
            (KEPT / era / "said.txt").write_text(said)
            verdicts[era] = (process.returncode, said, read(KEPT / era))
    finally:
        for process in running.values():
            process.kill()
            process.wait(BOUND)
    return verdicts


@pytest.mark.parametrize("era", ERAS)
def test_the_suite_has_run_every_scenario_that_the_revision_names(suite, era):
    _, said, findings = suite[era]
    assert set(findings) == required(era), said[-3000:]
    checked = [scenario for scenario, checks in findings.items() if any(c["status"] == "SUCCESS" for c in checks)]
    # The suite skips tasks-status-notifications by itself; server-sse-polling has warnings only.
    assert len(checked) >= len(findings) - 1, sorted(set(findings) - set(checked))


@pytest.mark.parametrize("era", ERAS)
def test_every_scenario_passes_or_is_known_to_fail_for_a_written_reason(suite, era):
    code, said, findings = suite[era]
    known = known_failures()
    failures = {
        f"{scenario}:{check}": why
        for scenario, checks in findings.items()
        for check, why in wrong(checks).items()
        if scenario not in known and f"{scenario}:{check}" not in known
    }
    assert not failures, json.dumps(failures, indent=2)
    assert code == 0, said[-3000:]


@pytest.mark.parametrize("era", ERAS)
def test_every_message_of_the_bridge_is_valid_by_the_schema_of_the_revision(suite, era):
    held = [
        check["status"] for checks in suite[era][2].values() for check in checks if check["id"] == "wire-schema-valid"
    ]
    assert len(held) > 20
    assert set(held) == {"SUCCESS"}


def test_nothing_that_passes_stands_among_the_known_failures(suite):
    failing = set()
    for _, _, findings in suite.values():
        for scenario, checks in findings.items():
            if wrong(checks):
                failing |= {scenario, *(f"{scenario}:{check}" for check in wrong(checks))}
    assert known_failures() <= failing


def test_the_scenarios_of_the_tasks_extension_are_among_those_that_ran(suite):
    tasks = {scenario for scenario in suite["2026-07-28"][2] if scenario.startswith("tasks-")}
    assert len(tasks) == 10
    assert not tasks & known_failures()
