"""`hearth mcp --board`: a board served by the bridge itself, without a daemon; its policy, its audit log, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.hearthd import BOUND
from support.mcp import RawMcp

from hearth.cli.main import cli
from hearth.cli.mcp_bridge import board_directory


@pytest.fixture
def env(tmp_path):
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path), "HEARTH_ADDRESS": "unix:/nowhere/hearth.sock"}


def served(env, *arguments, board="sim"):
    return RawMcp(None, arguments=("--board", board, *arguments), env=env)


def audit(tmp_path, board="sim"):
    log = board_directory(tmp_path / "hearth", board) / "audit.log"
    return [json.loads(line) for line in log.read_text().splitlines()]


def safe(records):
    """Return the lines that were brought to their safe state when their session ended."""
    return [line["name"] for record in records if record["event"] == "session.close" for line in record["safe"]]


@pytest.mark.proof
def test_a_board_is_served_without_a_daemon_and_the_end_of_stdin_leaves_its_lines_safe(env, tmp_path):
    with served(env) as bridge:
        bridge.initialize()
        assert "signal_set" in [tool["name"] for tool in bridge.call("tools/list")["result"]["tools"]]
        assert bridge.tool("gpio_set", line="LED", value=1)["result"]["isError"] is False
        code, said = bridge.end()
    assert (code, said) == (0, "")
    records = audit(tmp_path)
    assert safe(records) == ["GPIO17"]
    assert [record["event"] for record in records if record["event"].startswith("daemon")] == [
        "daemon.start",
        "daemon.stop",
    ]
    assert (board_directory(tmp_path / "hearth", "sim") / "audit.log").stat().st_mode & 0o007 == 0


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_the_lines_safe_and_the_log_complete(env, tmp_path, number):
    with served(env) as bridge:
        bridge.initialize()
        bridge.tool("gpio_set", line="LED", value=1)
        bridge.process.send_signal(number)
        code, _ = bridge.wait()
    assert code == 128 + number
    assert safe(audit(tmp_path)) == ["GPIO17"]
    log = board_directory(tmp_path / "hearth", "sim") / "audit.log"
    checked = subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", "audit", "verify", str(log)],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


@pytest.mark.proof
def test_the_log_of_a_board_goes_on_from_one_start_to_the_next(env, tmp_path):
    for _ in range(2):
        with served(env) as bridge:
            bridge.initialize()
            bridge.tool("gpio_get", line="LED")
            assert bridge.end()[0] == 0
    sequence = [record["seq"] for record in audit(tmp_path)]
    assert sequence == sorted(set(sequence))
    assert sum(record["event"] == "task.submit" for record in audit(tmp_path)) == 2


@pytest.mark.proof
def test_the_policy_is_that_of_an_embedded_runtime(env):
    with served(env) as bridge:
        bridge.initialize()
        names = set(bridge.tool("hacp_search", query="*")["result"]["structuredContent"]["names"])
        refused = bridge.tool("file_read", path="/etc/hostname")["result"]
    assert len(names) > 20
    assert not names & {"proc_exec", "proc_signal"}, "the operator has to name those in a configuration"
    assert refused["isError"] is True
    assert "no directory is allowed" in refused["content"][0]["text"]


@pytest.mark.proof
def test_a_second_bridge_of_one_board_is_refused_with_the_cure(env):
    with served(env) as first:
        first.initialize()
        first.tool("gpio_get", line="LED")
        with served(env) as second:
            code, said = second.wait()
    assert code == 2
    assert "another `hearth mcp --board` serves it" in said
    assert "start hearthd" in said


@pytest.mark.slow
def test_an_unknown_board_is_refused_before_anything_is_served(env, tmp_path):
    with served(env, board="rpi99") as bridge:
        code, said = bridge.wait()
    assert code == 2
    assert "rpi99" in said
    assert "Traceback" not in said
    assert not (tmp_path / "hearth").exists()


@pytest.mark.proof
def test_a_compact_board_lists_few_tools(env):
    with served(env, "--compact") as bridge:
        told = bridge.initialize()
        names = [tool["name"] for tool in bridge.call("tools/list")["result"]["tools"]]
    assert len(names) <= 12
    assert "hacp_search" in told["instructions"]


def test_the_lines_for_a_client_have_the_board_and_the_compact_list(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for arguments, wanted in (
        (["--board", "rpi5"], ["mcp", "--board", "rpi5"]),
        (["--board", "my.toml", "--compact"], ["mcp", "--board", f"{tmp_path}/my.toml", "--compact"]),
        (["--compact"], ["mcp", "--compact"]),
    ):
        said = CliRunner().invoke(cli, ["--json", "mcp", "--print-config", "claude", *arguments])
        text = json.loads(json.loads(said.stdout)["text"])
        assert text["mcpServers"]["hearth"]["args"][-len(wanted) :] == wanted


@pytest.mark.parametrize(
    "arguments",
    [
        ["mcp", "--board", "sim", "--to", "unix:/x"],
        ["mcp", "--board", "sim", "--print-config", "codex", "--url", "http://localhost:1"],
        ["mcp", "--compact", "--print-config", "codex", "--url", "http://localhost:1"],
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments):
    said = CliRunner().invoke(cli, arguments)
    assert said.exit_code == 2
    assert "leave out" in said.stderr


@pytest.mark.proof
def test_the_bridge_starts_without_the_modules_of_clients_and_web_servers():
    """They would take a third of the time of its start; the SDK's packages import them in their __init__."""
    program = (
        "import sys; before = set(sys.modules); from hearth.cli import mcp_bridge\n"
        "for package in ('mcp', 'mcp.server'): mcp_bridge.defer_package(package)\n"
        "import hearth.actors.bridges.mcp.server, hearth.actors.bridges.mcp.stdio\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "import mcp; from mcp.server import MCPServer\n"
        "print(mcp.ClientSession.__name__, mcp.server.MCPServer is MCPServer)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=True)
    modules, later = done.stdout.splitlines()
    loaded = set(modules.split())
    assert not loaded & {"httpx2", "mcp.client", "mcp.server.mcpserver", "jsonschema", "hearth.actors.runtime"}
    assert len(loaded) < 700
    assert later == "ClientSession True", "the packages are whole as soon as they are asked for"
