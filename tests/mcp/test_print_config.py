"""`hearth mcp --print-config`: what it prints is what the client reads, and the program it names speaks MCP.

And docs/mcp.md, whose first screen is such lines.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from docs.player import ROOT, blocks
from hypothesis import given, strategies as st
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from support.hearthd import BOUND, Hearthd, Peer
from support.mcp import mcp_client, text_of

import hearth
from hearth.actors.bridges.mcp import resources
from hearth.actors.bridges.mcp.guidance import CALL, JOBS, SEARCH
from hearth.actors.bridges.mcp.server import all_offers
from hearth.cli import mcp as command
from hearth.cli.main import cli
from hearth.cli.mcp_clients import CLIENTS, Program, Url, snippet
from hearth.errors import ConfigError

HEARTH = Path(sysconfig.get_path("scripts")) / "hearth"
SERVERS = {
    "claude": ("mcpServers", "hearth"),
    "claude-code": ("mcpServers", "hearth"),
    "codex": ("mcp_servers", "hearth"),
    "cursor": ("mcpServers", "hearth"),
    "gemini": ("mcpServers", "hearth"),
    "goose": ("extensions", "hearth"),
    "vscode": ("servers", "hearth"),
    "windsurf": ("mcpServers", "hearth"),
    "zed": ("context_servers", "hearth"),
}
"""Where in its document a client looks for a server."""


def blocks_of_yaml(text: str):
    """The YAML that is printed, read as YAML reads it: mappings in blocks, and values that are JSON."""
    root: dict[str, object] = {}
    open_at: list[tuple[int, dict[str, object]]] = [(-1, root)]
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip(" "))
        key, _, value = line.strip().partition(":")
        while open_at[-1][0] >= indent:
            open_at.pop()
        parent = open_at[-1][1]
        assert key not in parent
        if value:
            parent[key] = json.loads(value)
        else:
            inner: dict[str, object] = {}
            parent[key] = inner
            open_at.append((indent, inner))
    return root


READ = {"json": json.loads, "toml": tomllib.loads, "yaml": blocks_of_yaml}


def server(client: str, text: str):
    """The entry that a client finds in its file."""
    document = READ[CLIENTS[client].format](text)
    for key in SERVERS[client]:
        document = document[key]
    return document


def run(*words: str, code: int = 0, **environ: str):
    """The command, in this process: what it printed on stdout, and on stderr."""
    done = CliRunner().invoke(cli, ["mcp", *words], env={"HEARTH_SOCKET": "", "HEARTH_ADDRESS": "", **environ})
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout, done.stderr


def test_every_client_there_is_is_looked_at_here() -> None:
    assert list(SERVERS) == list(CLIENTS)


# --- a program to start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_the_lines_name_this_command_by_its_whole_path(client: str) -> None:
    printed, told = run("--print-config", client)
    entry = server(client, printed)
    assert entry.get("command", entry.get("cmd")) == str(HEARTH)
    assert entry["args"] == ["mcp"]
    assert told.startswith(f"{CLIENTS[client].title}: paste this into {CLIENTS[client].file}\n")
    assert "add the entry hearth beside them" in told


def test_only_the_lines_go_to_stdout() -> None:
    printed, _ = run("--print-config", "cursor")
    assert printed.splitlines() == [
        "{",
        '  "mcpServers": {',
        '    "hearth": {',
        f'      "command": "{HEARTH}",',
        '      "args": ["mcp"]',
        "    }",
        "  }",
        "}",
    ]


@pytest.mark.parametrize(
    ("words", "environ", "to"),
    [
        (["--to", "ssh://pi@arm.local"], {}, "ssh://pi@arm.local"),
        (["--socket", "/run/x/h.sock"], {}, "unix:/run/x/h.sock"),
        ([], {"HEARTH_SOCKET": "/run/y/h.sock"}, "unix:/run/y/h.sock"),
        ([], {"HEARTH_ADDRESS": "tls://arm:7117"}, "tls://arm:7117"),
        (["--to", "./h.sock"], {}, f"unix:{Path.cwd()}/h.sock"),
        (["--to", "wss://pi:7118?ca=ca.pem&token_file=/t"], {}, f"wss://pi:7118?ca={Path.cwd()}/ca.pem&token_file=/t"),
    ],
)
def test_a_daemon_that_is_named_is_named_to_the_client_too(words, environ, to: str) -> None:
    printed, _ = run("--print-config", "cursor", *words, **environ)
    assert server("cursor", printed)["args"] == ["mcp", "--to", to]


def test_as_json_the_lines_come_with_where_they_go() -> None:
    printed, told = run("--print-config", "codex", "--json")
    answer = json.loads(printed)
    assert answer["client"] == "codex"
    assert answer["file"] == "~/.codex/config.toml"
    assert answer["format"] == "toml"
    assert server("codex", answer["text"])["args"] == ["mcp"]
    assert answer["notes"]
    assert told == ""


def test_a_hearth_that_is_not_called_by_that_name_is_named_as_a_module(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "main.py")])
    assert command.executable() == [str(HEARTH)]
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    assert command.executable() == [sys.executable, "-I", "-m", "hearth.cli.main"]


def test_a_hearth_that_was_called_by_its_path_is_named_by_it(monkeypatch, tmp_path: Path) -> None:
    mine = tmp_path / "hearth"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["./hearth"])
    assert [os.path.normpath(word) for word in command.executable()] == [str(mine)]


NASTY = st.text(st.characters(codec="utf-8"), max_size=20)


@pytest.mark.slow
@given(st.sampled_from(list(CLIENTS)), NASTY, st.lists(NASTY, max_size=3))
def test_any_path_and_any_argument_reach_the_client_as_they_are(client: str, path: str, args: list[str]) -> None:
    entry = server(client, snippet(client, Program(path, args)).text)
    assert entry.get("command", entry.get("cmd")) == path
    assert entry["args"] == args


# --- a URL to ask ---------------------------------------------------------------------------------------------------

URL = "https://pi.local:7119/mcp"
BEARER = {
    "claude-code": "Bearer ${HEARTH_TOKEN}",
    "cursor": "Bearer ${env:HEARTH_TOKEN}",
    "gemini": "Bearer ${HEARTH_TOKEN}",
    "goose": "Bearer ${HEARTH_TOKEN}",
    "vscode": "Bearer ${input:hearth-token}",
    "windsurf": "Bearer ${env:HEARTH_TOKEN}",
    "zed": "Bearer TOKEN",
}
KEYS = {"gemini": "httpUrl", "windsurf": "serverUrl", "goose": "uri"}


@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "claude"])
def test_the_lines_name_the_url_and_where_the_token_is(client: str) -> None:
    printed, told = run("--print-config", client, "--url", URL)
    entry = server(client, printed)
    assert entry[KEYS.get(client, "url")] == URL
    if client == "codex":
        assert entry["bearer_token_env_var"] == "HEARTH_TOKEN"
    else:
        assert entry["headers"] == {"Authorization": BEARER[client]}
    assert {"vscode": "asks for the token once", "zed": "write the token in place of TOKEN"}.get(
        client, "from the environment variable HEARTH_TOKEN"
    ) in told


@pytest.mark.parametrize("url", ["http://127.0.0.1:7119/mcp", "http://localhost:7119/mcp", "https://[::1]:7119/mcp"])
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "claude"])
def test_on_this_machine_no_token_is_needed(client: str, url: str) -> None:
    printed, _ = run("--print-config", client, "--url", url)
    assert "oken" not in printed
    assert server(client, printed)[KEYS.get(client, "url")] == url


def test_a_token_that_is_named_is_used_everywhere() -> None:
    printed, _ = run("--print-config", "codex", "--url", "http://127.0.0.1:7119/mcp", "--token-env", "PI_TOKEN")
    assert server("codex", printed)["bearer_token_env_var"] == "PI_TOKEN"


def test_vscode_is_told_to_ask_for_the_token() -> None:
    printed, _ = run("--print-config", "vscode", "--url", URL)
    (asked,) = json.loads(printed)["inputs"]
    assert (asked["type"], asked["id"], asked["password"]) == ("promptString", "hearth-token", True)


def test_goose_is_told_which_variable_it_may_read() -> None:
    printed, _ = run("--print-config", "goose", "--url", URL)
    assert server("goose", printed)["env_keys"] == ["HEARTH_TOKEN"]


def test_a_url_without_a_path_means_mcp() -> None:
    printed, _ = run("--print-config", "cursor", "--url", "https://pi.local:7119/")
    assert server("cursor", printed)["url"] == URL


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--print-config", "claude", "--url", URL], "Claude Desktop's file starts programs and knows no URL: leave"),
        (["--print-config", "cursor", "--url", "pi.local"], "--url: expected such as https://pi.local:7119/mcp, got"),
        (["--print-config", "cursor", "--url", "wss://pi:7118/"], "--url: expected such as https://pi.local:7119/mcp"),
        (["--print-config", "cursor", "--url", "https://pi:port/"], "expected such as https://pi.local:7119/mcp"),
        (["--print-config", "cursor", "--url", "https://me:secret@pi/mcp"], "a token goes with --token-env"),
        (["--print-config", "cursor", "--url", URL, "--token-env", "a b"], "'a b' is no name of an environment var"),
        (["--print-config", "cursor", "--token-env", "T"], "--token-env goes with --url"),
        (["--url", URL], "--url and --token-env go with --print-config"),
        (["--print-config", "emacs"], "'emacs' is not one of 'claude', 'claude-code', 'codex'"),
    ],
)
def test_what_cannot_be_printed_is_refused_with_the_cure(words, said: str) -> None:
    done = CliRunner().invoke(cli, ["mcp", *words])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert "secret" not in done.stderr


def test_a_url_with_a_secret_in_it_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        command.over_http("https://me:hunter2@pi/mcp", None)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("words", [[], ["--print-config", "cursor"]])
def test_without_the_sdk_it_says_what_to_install(words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SDK", "no_such_package")
    _, told = run(*words, code=2)
    assert "the MCP SDK is not installed; install it with: pip install 'hearthd[mcp]'" in told


def test_a_url_needs_no_sdk_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SDK", "no_such_package")
    printed, _ = run("--print-config", "cursor", "--url", URL)
    assert printed == snippet("cursor", Url(URL, "HEARTH_TOKEN")).text


# --- it works -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    """A hearthd that is not at the default place."""
    running = Hearthd(tmp_path_factory.mktemp("daemon")).start()
    yield running
    running.end()


@pytest.mark.slow
@pytest.mark.spec("10.2", "MAY", "A small adapter MAY present a HACP server as an MCP server [MCP].")
@pytest.mark.parametrize(("client", "era"), [("claude", "legacy"), ("codex", "auto")])
async def test_the_program_that_the_lines_name_serves_the_tools_that_mcp_tools_tells(client: str, era, daemon) -> None:
    """Those that are listed are in its order, and the others can be found."""
    printed, _ = run("--print-config", client, "--socket", str(daemon.socket))
    entry = server(client, printed)
    # As little as a desktop gives to what it starts.
    started = StdioServerParameters(command=entry["command"], args=entry["args"], env={"HOME": "/"}, cwd="/")
    with trio.fail_after(BOUND):
        async with Client(stdio_client(started), mode=era) as connected:
            tools, page = [], await connected.list_tools()
            tools += page.tools
            while page.next_cursor is not None:
                page = await connected.list_tools(cursor=page.next_cursor)
                tools += page.tools
            found = (await connected.call_tool(SEARCH, {"query": "*"})).structured_content["names"]
    listed = [tool.model_dump(by_alias=True, exclude_unset=True, mode="json") for tool in tools]
    peer = Peer(daemon.socket)
    shown = peer.call("mcp.tools", {"session_id": peer.open()})["result"]["tools"]
    peer.close()
    assert len(shown) > 20
    assert [tool["name"] for tool in shown] == found
    names = [tool["name"] for tool in listed]
    assert names[-2:] == [SEARCH, CALL]
    assert [tool for tool in shown if tool["name"] in names] == listed[:-2]


@pytest.mark.slow
def test_a_daemon_that_is_not_there_is_told_and_a_person_at_a_terminal_is_told_how_to_go_on(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [str(HEARTH), "mcp", "--socket", "no.sock"],
            stdin=terminal, capture_output=True, text=True, timeout=BOUND, check=False, cwd=tmp_path,
        )  # fmt: skip
    finally:
        os.close(controller)
        os.close(terminal)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[0].endswith("for the lines to give one: hearth mcp --help")
    assert "no daemon at no.sock" in done.stderr
    assert "Traceback" not in done.stderr


# --- docs/mcp.md ----------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "mcp.md").read_text("utf-8")
BLOCKS = blocks(PAGE)


def test_the_page_begins_with_lines_that_a_client_reads() -> None:
    assert BLOCKS[0].language == "json"
    assert BLOCKS[0].line < 20
    printed, _ = run("--print-config", "claude")
    assert BLOCKS[0].text == printed.replace(str(HEARTH), "/opt/hearth/bin/hearth")


def test_every_client_is_on_the_page_with_its_file() -> None:
    for name, client in CLIENTS.items():
        assert f"| `{name}` | {client.title} | {client.file.replace('|', '')} |" in PAGE


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "console"], ids=lambda b: str(b.line))
def test_every_command_on_the_page_prints_what_the_page_shows(block) -> None:
    for act in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, shown = act.partition("\n")
        hearth, mcp, *words = line.split()
        assert (hearth, mcp) == ("hearth", "mcp")
        printed, told = run(*words)
        where, *notes = told.splitlines(keepends=True)
        assert "".join([where, printed, *notes]).replace(str(HEARTH), "/opt/hearth/bin/hearth") == shown


def test_there_is_no_block_that_is_not_looked_at() -> None:
    assert {block.language for block in BLOCKS} <= {"json", "console", "toml", ""}


async def test_the_error_on_the_page_is_what_a_model_reads(tmp_path) -> None:
    [shown] = [block.text for block in BLOCKS if not block.language]
    async with hearth.open_runtime(board="sim") as runtime:
        offers = all_offers(tmp_path, principal=lambda _ask: "me")
        async with mcp_client(runtime, "legacy", offers=offers) as client:
            result = await client.call_tool("gpio_set", {"lien": 17, "value": "on"})
    assert f"{text_of(result)}\n" == shown


def test_every_prompt_is_on_the_page_with_its_arguments() -> None:
    for name, job in JOBS.items():
        arguments = "".join(f"{', ' if at else ''}`{argument}`" for at, argument in enumerate(job.arguments))
        assert f"| `{name}` | {arguments}{' ' if arguments else ''}| " in PAGE


def test_the_table_of_tools_is_what_a_client_is_shown() -> None:
    from conformance.pages import reference_pages

    from hearth.mcp.tools import ToolView

    view = ToolView([tool.to_wire() for tool in reference_pages.registry().values()])
    for tool in view.definitions():
        hints = tool["annotations"]
        said = [word for word in ("readOnly", "destructive", "idempotent", "openWorld") if hints[f"{word}Hint"]]
        assert f"| `{tool['name']}` | {tool['title']} | {' · '.join(said) or 'none'} |" in PAGE


@pytest.mark.slow
def test_the_table_of_resources_has_every_kind_there_is() -> None:
    plain = {resources.BOARD, resources.SENSORS, resources.TOOLS, resources.AUDIT}
    templates = {f"{resources.SENSOR}{{name}}", f"{resources.TASK}{{task_id}}"}
    assert set(re.findall(r"^\| `(hearth://[^`]*)` \|", PAGE, re.MULTILINE)) == plain | templates
