"""A real hearthd and its card: served to anybody, told over HACP, kept over restarts."""

import json

import httpx2
import pytest
from click.testing import CliRunner
from support.hearthd import Hearthd, eventually

from hearth.agentcard.signature import CardSignature, examine_signature
from hearth.agentcard.validate import validate
from hearth.audit.keys import load_public
from hearth.cli.card import card as command
from hearth.config.model import load_config

pytestmark = pytest.mark.slow
PATH = "/.well-known/agentcard"
WITH_HTTP = '[http]\nlisten = "127.0.0.1:0"\n'


@pytest.fixture
def hearthd(tmp_path):
    made = []

    def start(config):
        made.append(Hearthd(tmp_path, config))
        return made[-1].start()

    yield start
    for daemon in made:
        daemon.end()


def fetched(daemon, **headers):
    answer = httpx2.get(daemon.listening["http"].rstrip("/") + PATH, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(daemon):
    peer = daemon.peer()
    return peer.call("mcp.info", {"session_id": peer.open()})["result"]["agent_card"]


@pytest.mark.proof
def test_the_card_is_the_same_over_http_over_hacp_and_by_command_and_is_valid(hearthd, tmp_path, monkeypatch):
    daemon = hearthd(WITH_HTTP)
    # It is signed as soon as the key is loaded, just after the start.
    card = eventually(lambda: found if "proof" in (found := fetched(daemon))["metadata"] else None, "the signature")
    assert validate(card) == []
    assert isinstance(examine_signature(card), CardSignature)
    assert told(daemon) == card
    assert card["endpoint"]["protocol"] == "mcp"
    assert card["endpoint"]["url"] == daemon.listening["http"].rstrip("/") + "/mcp"
    key = tmp_path / "key.pub"
    key.write_text(card["metadata"]["hearth:audit_public_key"])
    assert load_public(key), "what verifies the audit log is on the card"
    kept = json.loads((tmp_path / "agent-card.json").read_text())["card"]
    own = {name: value for name, value in card["metadata"].items() if name not in ("did", "proof")}
    assert kept == {**card, "metadata": own}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shown = CliRunner().invoke(command, ["show", "--socket", str(daemon.socket), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout) == card
    for_people = CliRunner().invoke(command, ["show", "--socket", str(daemon.socket)])
    over_http = CliRunner().invoke(command, ["fetch", daemon.listening["http"]])
    assert for_people.stdout == over_http.stdout
    assert "tool.gpio.set" in over_http.stdout


@pytest.mark.proof
def test_who_the_agent_is_outlives_the_daemon_and_the_version_follows_its_tools(hearthd, tmp_path):
    (tmp_path / "agent-card.json").write_text('{"format": 1, "agent_')
    daemon = hearthd("")
    first = told(daemon)
    eventually(lambda: "agent-card.json: cannot be read" in daemon.said, "the note about the file")
    assert (first["version"], first["endpoint"]["protocol"]) == ("1.0.0", "stdio")
    daemon.end()
    fewer = told(hearthd('[tools]\ndisable = ["uart.control"]\n'))
    assert (fewer["agent_id"], fewer["version"]) == (first["agent_id"], "2.0.0")


def test_the_card_section_is_read_with_the_configuration(tmp_path):
    file = tmp_path / "hearth.toml"
    file.write_text('[card]\nname = "Greenhouse"\nbase_cost_joules = 1\n')
    assert load_config(file).card.name == "Greenhouse"
