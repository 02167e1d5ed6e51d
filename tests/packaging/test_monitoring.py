"""The alert rules and the Grafana dashboard: promtool reads them, and they name only metrics that hearthd has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.hearthd import Hearthd

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGING = Path(__file__).parents[2] / "packaging"
RULES = PACKAGING / "prometheus" / "hearth.rules.yml"
GRAFANA = PACKAGING / "grafana" / "hearth.json"
NAME = re.compile(r"\bhearth_[a-z_]+")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool here: apt-get install prometheus"
)


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60, cwd=RULES.parent
    )


@needs_promtool
@pytest.mark.slow
def test_the_alert_rules_are_rules_and_fire_when_they_should() -> None:
    checked = promtool("check", "rules", RULES.name)
    assert checked.returncode == 0, checked.stderr
    assert "10 rules found" in checked.stdout
    tested = promtool("test", "rules", "hearth.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What /metrics of a real daemon says."""
    daemon = Hearthd(tmp_path_factory.mktemp("daemon"), '[http]\nlisten = "127.0.0.1:0"\nmcp = false')
    daemon.start()
    with urllib.request.urlopen(daemon.listening["http"] + "/metrics", timeout=30) as answer:
        yield answer.read().decode()
    daemon.end()


@pytest.mark.slow
@pytest.mark.parametrize("file", [RULES, GRAFANA], ids=lambda file: file.name)
def test_every_metric_that_is_named_is_one_that_hearthd_has(exposed: str, file: Path) -> None:
    known = set(re.findall(r"^# TYPE (\S+)", exposed, re.MULTILINE)) | set(NAME.findall(exposed))
    known |= {f"{name}_bucket" for name in known}
    named = set(NAME.findall(file.read_text("utf-8")))
    assert len(named) > 5
    assert named <= known


@needs_promtool
@pytest.mark.slow
def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    board = json.loads(GRAFANA.read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["expr"] for one in board["annotations"]["list"]]
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "1m").replace("$instance", ".*")}
        for number, query in enumerate(queries)
    ]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stderr
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(places) == len({*places})


def test_the_page_of_metrics_names_both_files() -> None:
    page = (PACKAGING.parent / "docs" / "metrics.md").read_text("utf-8")
    assert "packaging/prometheus/hearth.rules.yml" in page
    assert "packaging/grafana/hearth.json" in page
