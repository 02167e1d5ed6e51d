"""docs/reference/tools.md: its examples are what the command takes, and they run on the simulated board."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
import trio
from conformance.pages import reference_pages
from jsonschema import Draft202012Validator

import hearth
from hearth.cli.run import parse_pairs
from hearth.config.model import Config, FilesConfig, ToolsConfig

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = reference_pages.registry()
PAGE = reference_pages.tools_page()
EXAMPLES = dict(zip(REGISTRY, PAGE.split("```sh\n")[1:], strict=True))


@pytest.mark.parametrize("name", REGISTRY)
def test_the_command_on_the_page_asks_for_the_example(name: str) -> None:
    command = shlex.split(EXAMPLES[name].partition("```")[0])
    words = [word for word in command[2:] if word not in ("-c", "max_risk_level=3")]
    assert command[:2] == ["hearth", "run"]
    assert words[0] == name
    assert parse_pairs(words[1:], REGISTRY[name].params_schema) == reference_pages.EXAMPLES[name]
    assert ("max_risk_level=3" in command) is (REGISTRY[name].risk_level == 3)


@pytest.mark.slow
async def test_every_example_runs_and_its_result_is_as_declared(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n")
    config = Config(
        files=FilesConfig(read=(tmp_path,), write=(tmp_path,)),
        tools=ToolsConfig(enable=("proc.exec",), exec=reference_pages.TEMPLATES),
    )
    with trio.fail_after(60):
        async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as session:
            for name, args in reference_pages.EXAMPLES.items():
                if name == "proc.signal":
                    continue  # nobody should be sent one for an example
                here = {
                    key: value.replace("/srv/hearth", str(tmp_path)) if key == "path" else value
                    for key, value in args.items()
                }
                risk = {"max_risk_level": 3} if REGISTRY[name].risk_level == 3 else {}
                task = await session.submit(name, [hearth.step(name, **here)], **risk)
                done = await task.wait()
                assert done.status == "SUCCESS", (name, done)
                Draft202012Validator(REGISTRY[name].result_schema).validate(dict(done.steps[0].result or {}))


@pytest.mark.parametrize("name", REGISTRY)
def test_the_page_has_every_arg_and_every_member_of_the_result(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    tool = REGISTRY[name]
    for schema in (tool.params_schema, tool.result_schema):
        for member in schema.get("properties", {}):
            assert f"| `{member}` |" in section
    least = f", for some args {tool.least_risk}" if tool.least_risk < tool.risk_level else ""
    assert f"| {tool.risk_level} {hearth.tools.RISK_NAMES[tool.risk_level]}{least} |" in section
