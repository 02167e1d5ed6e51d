"""examples/watch/README.md says what is so: its configuration is one, its program runs in a browser."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from docs.player import blocks
from support.chromium import chromium, driving
from support.watching import WATCH, serving

from hearth.config.model import load_config

if TYPE_CHECKING:
    from pathlib import Path

PAGE = WATCH / "README.md"
BLOCKS = blocks(PAGE.read_text("utf-8"))


def of(language: str) -> str:
    (block,) = [block for block in BLOCKS if block.language == language]
    return block.text


def test_there_is_no_block_that_is_not_looked_at() -> None:
    assert {block.language for block in BLOCKS} == {"toml", "js"}


def test_the_configuration_for_a_daemon_of_ones_own_is_one(tmp_path: Path) -> None:
    digest = subprocess.run(
        ["sh", "-c", re.findall(r"# (printf .*)", of("toml"))[0]], env={"TOKEN": "abc", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout.split()[0]  # fmt: skip
    file = tmp_path / "hearth.toml"
    file.write_text(of("toml").replace("…", digest))
    assert load_config(file).websocket.origins == ("http://127.0.0.1:8000",)


@pytest.mark.proof
async def test_the_program_runs_in_a_page_against_a_daemon(tmp_path: Path) -> None:
    program, imports = re.subn(r'import \{(.*?)\} from "\./(.*?)";', r'const {\1} = await import("/\2");', of("js"))
    assert imports == 1
    with chromium(tmp_path) as address:
        async with serving() as site, driving(address) as browser:
            program = program.replace("wss://pi.local:7118", site.daemon_address)
            assert site.daemon_address in program
            tab = await browser.open()
            await tab.navigate(site.origin)
            await tab.until("document.readyState === 'complete'")
            said = await tab.evaluate(
                f"""(async () => {{
                    const said = [], token = {json.dumps(site.token)}, show = (text) => said.push(text);
                    const console = {{ log: (...words) => said.push(words.join(" ").trim()) }};
                    {program}
                    await session.close();
                    return said;
                }})()"""
            )
    assert said[:2] == ["connecting", "open"]
    assert said[-1] == "SUCCESS"
    assert [line.split()[1] for line in said[2:-1]] == ["start", "finish", "task_finish"]


def test_the_files_it_names_are_all_there_are() -> None:
    named = set(re.findall(r"\]\((\w+\.\w+)\)", PAGE.read_text("utf-8")))
    assert {path.name for path in WATCH.iterdir() if path.is_file()} - named <= {"README.md"}
