"""Every block on every page is run or checked, every link leads somewhere (design §11)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs.player import NOT_RUN, ROOT, acts, blocks, is_not_run, matches, play

from hearth.config.model import load_config
from hearth.protocol.methods import METHODS
from hearth.protocol.server import Call, ServerProtocol

HERE = "tests/docs/test_pages.py"
TESTED_IN = {
    "README.md": HERE,
    "docs/agentcard.md": "tests/agentcard/test_agentcard_page.py",
    "docs/attestation.md": HERE,
    "docs/capabilities.md": HERE,
    "docs/carriers.md": HERE,
    "docs/hcp.md": HERE,
    "docs/http.md": HERE,
    "docs/getting-started.md": HERE,
    "docs/operations.md": HERE,
    "docs/dashboard.md": "tests/http/test_ui.py",
    "docs/mcp.md": "tests/mcp/test_print_config.py",
    "docs/reliability.md": "tests/docs/test_reliability_page.py",
    "docs/reference/audit.md": "tests/audit/test_audit_docs.py",
    "docs/reference/boards.md": "tests/drivers/test_profiles.py",
    "docs/safety.md": "tests/actors/test_halt.py",
    "docs/howto/approve-what-runs.md": HERE,
    "docs/howto/ask-in-words.md": "tests/ask/test_ask_page.py",
    "docs/howto/blink-with-claude.md": HERE,
    "docs/howto/limits-interlocks-halt.md": HERE,
    "docs/howto/move-a-servo-with-claude.md": HERE,
    "docs/howto/read-and-write-a-modbus-device.md": HERE,
    "docs/howto/replace-pigpio.md": HERE,
    "docs/howto/run-a-control-loop.md": HERE,
    "docs/explanation/fleet.md": "tests/fleet/test_page.py",
    "docs/howto/run-a-fleet.md": "tests/fleet/test_page.py",
    "docs/howto/run-under-systemd.md": HERE,
    "docs/howto/set-a-voltage-with-a-dac.md": HERE,
    "docs/howto/talk-to-an-spi-chip.md": HERE,
    "docs/howto/use-any-python.md": HERE,
    "docs/howto/use-can-signals.md": HERE,
    "docs/howto/use-signals.md": HERE,
    "docs/howto/watch-from-a-web-page.md": HERE,
    "docs/howto/write-a-driver.md": HERE,
    "docs/howto/write-an-extra.md": HERE,
    "docs/reference/cli.md": "tests/cli/test_cli_reference.py",
    "docs/reference/config.md": "tests/config/test_config_documents.py",
    "docs/reference/errors.md": HERE,
    "docs/reference/methods.md": "tests/protocol/test_methods_reference.py",
    "docs/reference/policy.md": "tests/policy/test_policy_page.py",
    "docs/reference/sensors.md": HERE,
    "docs/reference/tools.md": "tests/docs/test_tools_page.py",
    "docs/sandbox.md": HERE,
    "examples/watch/README.md": "tests/docs/test_watch_page.py",
    "packaging/npm/README.md": "tests/examples/test_npm.py",
}
"""Where the blocks of each page that has any are run or checked."""

PLAYED = {
    "docs/attestation.md": 'export RUNTIME_DIRECTORY="$HOME" STATE_DIRECTORY="$HOME"\n: > hearth.toml\n'
    f"cp {ROOT}/docs/verify-attest.sh .\n",
    "docs/http.md": "",
    "README.md": 'export RUNTIME_DIRECTORY="$HOME" STATE_DIRECTORY="$HOME"\n',
    "docs/capabilities.md": "",
    "docs/carriers.md": "",
    "docs/getting-started.md": "",
    "docs/hcp.md": "",
    "docs/howto/approve-what-runs.md": "",
    "docs/howto/blink-with-claude.md": 'export RUNTIME_DIRECTORY="$HOME" STATE_DIRECTORY="$HOME"\n',
    "docs/howto/limits-interlocks-halt.md": "",
    "docs/howto/move-a-servo-with-claude.md": "",
    "docs/howto/read-and-write-a-modbus-device.md": "",
    "docs/howto/replace-pigpio.md": "",
    "docs/howto/run-a-control-loop.md": "",
    "docs/howto/run-under-systemd.md": "",
    "docs/howto/set-a-voltage-with-a-dac.md": "",
    "docs/howto/talk-to-an-spi-chip.md": "",
    "docs/howto/use-any-python.md": "",
    "docs/howto/use-can-signals.md": "",
    "docs/howto/use-signals.md": "",
    "docs/howto/watch-from-a-web-page.md": "",
    "docs/howto/write-a-driver.md": "",
    "docs/howto/write-an-extra.md": "",
    "docs/operations.md": "",
    "docs/reference/sensors.md": "",
    "docs/sandbox.md": "",
}
"""The pages that are played here, and what they take for granted."""
DAILY = {"README.md", "docs/getting-started.md"}
"""Those that `make test` plays: a newcomer's first hour. The others are played by `make proof`."""

FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "build", "dist"))]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
}
ACTS = {name: list(acts(blocks(PAGES[name]))) for name in PLAYED}


# --- no page is left out --------------------------------------------------------------------------------------------


def test_every_page_with_blocks_has_its_test() -> None:
    languages = {"sh", "console", "python", "toml", "json", "ini", "js"}
    with_blocks = {name for name, text in PAGES.items() if any(block.language in languages for block in blocks(text))}
    assert with_blocks <= set(TESTED_IN)


@pytest.mark.parametrize("name", TESTED_IN)
def test_the_test_of_a_page_exists_and_names_it(name: str) -> None:
    test = ROOT / TESTED_IN[name]
    assert name in PAGES
    assert Path(name).name in test.read_text("utf-8")


@pytest.mark.parametrize(("page", "example"), [("write-a-driver", "acme_lamp"), ("write-an-extra", "acme_beacon")])
def test_the_guide_to_a_package_has_the_files_of_its_example_whole(page: str, example: str) -> None:
    shown = {}
    for block in blocks(PAGES[f"docs/howto/{page}.md"]):
        first, _, text = block.text.partition("\n")
        if first.startswith(f"# {example}/"):
            shown[first.removeprefix("# ")] = text
    files = [file for file in (ROOT / "examples" / example).rglob("*") if file.suffix in (".py", ".toml")]
    assert shown == {file.relative_to(ROOT / "examples").as_posix(): file.read_text("utf-8") for file in files}


def test_there_is_no_block_in_a_language_that_nobody_looks_at() -> None:
    known = {"sh", "console", "python", "toml", "json", "ini", "js", "html", ""}
    found = {(name, block.language) for name, text in PAGES.items() for block in blocks(text)}
    assert not [each for each in found if each[1] not in known]


# --- the pages that are played --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, unmeasured: None):
    """Plays a page when it is first asked for."""
    outcomes = {}

    def outcome(name: str, number: int):
        if name not in outcomes:
            outcomes[name] = play(ACTS[name], tmp_path_factory.mktemp("page"), PLAYED[name])
        return outcomes[name][number]

    return outcome


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(
            name, number, id=f"{name}:{act.line}", marks=pytest.mark.slow if name in DAILY else pytest.mark.proof
        )
        for name, page in ACTS.items()
        for number, act in enumerate(page)
    ],
)
def test_the_block_does_what_the_page_says(played, name: str, number: int) -> None:
    act, outcome = ACTS[name][number], played(name, number)
    assert outcome.code == act.code, f"{name}:{act.line}: {act.shell}\n{outcome.output}"
    if act.expected:
        assert matches(act.expected, outcome.output), f"{name}:{act.line}: {act.shell} printed:\n{outcome.output}"


def test_the_pages_have_something_to_play() -> None:
    assert len(ACTS["README.md"]) >= 4
    assert len(ACTS["docs/carriers.md"]) > 30
    assert len(ACTS["docs/getting-started.md"]) > 30


def test_a_page_that_lies_is_found_out(tmp_path: Path) -> None:
    page = list(acts(blocks("```console\n$ echo one\none\n$ echo two\nthree\n$ false\n```\n```sh\nfalse\n```\n")))
    outcomes = play(page, tmp_path)
    assert [outcome.code for outcome in outcomes] == [0, 0, 1, None]
    assert matches(page[0].expected, outcomes[0].output)
    assert not matches(page[1].expected, outcomes[1].output)


@pytest.mark.parametrize("name", PLAYED)
def test_every_script_that_a_page_saves_is_used(name: str) -> None:
    page = blocks(PAGES[name])
    for block in page:
        saved = re.match(r"# ([\w./-]+\.py)\n", block.text)
        if block.language == "python" and saved:
            others = "".join(other.text for other in page if other is not block and other.language in ("sh", "console"))
            assert saved[1] in others or f"pip install ./{Path(saved[1]).parts[0]}" in others


# --- what is only looked at -----------------------------------------------------------------------------------------


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("name", PAGES)
def test_every_make_line_is_a_target_of_the_makefile(name: str) -> None:
    text = PAGES[name]
    asked = set(re.findall(r"`make ([a-z-]+)`", text))
    for block in blocks(text):
        if block.language in ("sh", "console"):
            asked |= set(re.findall(r"^(?:\$ )?make ([a-z-]+)", block.text, re.MULTILINE))
    assert asked <= make_targets()


@pytest.mark.parametrize("name", PAGES)
def test_no_block_is_indented_where_it_would_not_be_looked_at(name: str) -> None:
    assert not re.findall(r"^[ \t]+```.*", PAGES[name], re.MULTILINE)


def test_what_is_not_run_is_of_the_kinds_that_change_the_machine() -> None:
    for name in PLAYED:
        for block in blocks(PAGES[name]):
            if block.language == "sh" and is_not_run(block.text):
                assert all(line.startswith(NOT_RUN) or line == "hearth doctor" for line in block.text.splitlines())


@pytest.mark.parametrize("name", [name for name, where in TESTED_IN.items() if where == HERE])
def test_json_blocks_are_json_and_requests_go_through_the_protocol(name: str) -> None:
    for block in blocks(PAGES[name]):
        if block.language != "json":
            continue
        for line in block.text.splitlines():
            value = json.loads(line)
            if "method" in value:
                (call,) = ServerProtocol().receive(line.encode() + b"\n")
                assert isinstance(call, Call)
                METHODS[call.method](call.params)
            else:
                assert {"result", "error"} & set(value)


def test_the_python_of_the_page_about_errors_is_correct() -> None:
    (block,) = [block for block in blocks(PAGES["docs/reference/errors.md"]) if block.language == "python"]
    names: dict[str, object] = {}
    exec(compile(block.text, "docs/reference/errors.md", "exec"), names)
    assert callable(names["light"])


@pytest.mark.parametrize("name", PLAYED)
def test_toml_blocks_without_a_name_are_whole_configurations(name: str, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(PAGES[name])):
        if block.language == "toml" and not block.text.startswith("# "):
            file = tmp_path / f"{number}.toml"
            file.write_text(block.text)
            load_config(file)


# --- links ----------------------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")


def without_blocks(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "`", _BLOCK.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors that a page's headings get, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", _BLOCK.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found.add(re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", PAGES)
def test_every_relative_link_leads_to_something_that_is_there(name: str) -> None:
    page = ROOT / name
    broken = []
    for link in _LINK.findall(without_blocks(PAGES[name])):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    assert not broken
