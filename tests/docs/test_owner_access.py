"""Whoever adds entries as the pages say keeps their own access: docs/carriers.md, docs/dashboard.md, word by word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docs.player import ROOT, Act, acts, blocks, play

from hearth.actors.daemon import main

if TYPE_CHECKING:
    from collections.abc import Iterator

START = [
    "hearth admin token new --for agent --name agent --file agent.token >> hearth.toml",
    "start_hearthd --config $PWD/hearth.toml",
    'AGENT="--to ws://localhost:7118?token_file=$PWD/agent.token"',
]
FIRST = """
cat > hearth.toml <<'TOML'
[server]
socket = "{place}/hearth.sock"

[audit]
path = "{place}/audit.log"

[websocket]
listen = "127.0.0.1:7118"
TOML
"""
PLAN = '{"intent": "light", "steps": [{"tool": "gpio.set", "args": {"line": "LED", "value": 1}}]}'
PREPARE = (
    f"""PLAN=$(echo '{PLAN}' | hearth $AGENT plan prepare - --json | grep -o '"plan_id":"[^"]*' | cut -d'"' -f4)"""
)
OWNER = [
    'TO="--to unix:$PWD/hearth.sock"',
    "hearth $TO status",
    "hearth $TO run gpio.set line=LED value=1",
    PREPARE,
    "hearth $TO plan approve $PLAN --yes",
    "hearth $AGENT plan execute $PLAN",
    "hearth $TO halt 'to see that it works'",
    "hearth $TO halt --status || true",
    "hearth $TO halt --reset",
]
BEARER = [
    'TO="--to ws://localhost:7118?token_file=$PWD/TOKEN"',
    "hearth $TO status",
    PREPARE,
    "hearth $TO plan approve $PLAN --yes",
    "hearth $AGENT plan execute $PLAN",
    "hearth $TO halt enough",
    "hearth $TO halt --reset",
]


def followed(page: str) -> Iterator[str]:
    """The shell of a page's blocks up to the new token, without what other blocks look at."""
    for act in acts([block for block in blocks((ROOT / page).read_text("utf-8")) if block.language == "sh"]):
        if not act.shell.startswith("start_hearthd"):
            yield act.shell
        if "hearth admin token new" in act.shell:
            return


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("page", "token"), [("docs/carriers.md", "token"), ("docs/dashboard.md", "dashboard.token")])
def test_whoever_follows_the_page_keeps_status_run_approve_and_halt_and_the_token_has_its_rights(
    tmp_path: Path, page: str, token: str
) -> None:
    first = FIRST.format(place=tmp_path) if page == "docs/dashboard.md" else ""
    lines = [*followed(page), *START, *OWNER, *(line.replace("TOKEN", token) for line in BEARER)]
    played = [Act(number, line, 0, None) for number, line in enumerate(lines)]
    outcomes = play(played, tmp_path, first)
    for act, outcome in zip(played, outcomes, strict=True):
        assert outcome.code == 0, f"{act.shell}\n{outcome.output}"
        assert "no [[policy]] entry matches" not in outcome.output


AGENT_ALONE = f'[[policy]]\nname = "agent"\nmatch = {{ token_sha256 = "{"1" * 64}" }}\n'


@pytest.mark.slow
def test_a_policy_that_matches_neither_the_daemons_user_nor_root_is_a_warning_with_the_command_that_cures_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hearth.toml"
    file.write_text(f'[audit]\npath = "{tmp_path}/audit.log"\n[websocket]\nlisten = "127.0.0.1:0"\n{AGENT_ALONE}')
    main(["--config", str(file), "--check"])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no [[policy]] entry matches" in line]
    assert f"uid:{os.geteuid()}" in line
    assert "who may only halt then" in line
    hearth = [str(Path(sys.executable).parent / "hearth"), "doctor", "--config", str(file)]
    doctor = subprocess.run(hearth, capture_output=True, text=True, check=False, timeout=60).stdout
    assert "WARN  policy" in doctor
    cure = line.partition("`")[2].rpartition("`")[0]
    assert cure in doctor
    subprocess.run(["sh", "-c", cure], check=True)
    main(["--config", str(file), "--check"])
    assert "no [[policy]] entry matches" not in capsys.readouterr().out
