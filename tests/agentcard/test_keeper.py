"""Who this agent is and which version of its card is out: kept across runs, whole or not at all."""

import json
import os
import stat
import threading

import pytest
from attrs import evolve

from hearth._util import threads
from hearth.actors.agentcard import card_file
from hearth.agentcard.build import Measured
from hearth.agentcard.validate import validate
from hearth.audit import keys
from hearth.config.agentcard import CardConfig
from hearth.config.listen import Endpoint, HttpConfig

NOW = 1_800_000_000.0
HTTP = HttpConfig(listen=Endpoint("127.0.0.1", 7119))
URL = "http://127.0.0.1:7119"


def opened(keeper, **changes):
    made = keeper(**changes)
    assert made.open(NOW) == []
    return made


@pytest.mark.spec(
    "card 1.1",
    "MUST",
    "Agent identities MUST be globally unique without requiring a central registration authority.",
)
@pytest.mark.spec(
    "card 2.1",
    "MUST",
    "An agent MUST generate its agent_id using a cryptographically secure random number generator for the random "
    "component of the ULID.",
)
@pytest.mark.spec("card 2.1", "PROHIBITED", "Predictable or sequential random components are PROHIBITED.")
@pytest.mark.spec(
    "card 8.2",
    "MUST",
    "Implementations MUST use a cryptographically secure random number generator for the 80-bit random component.",
)
@pytest.mark.spec(
    "card 8.2",
    "MUST NOT",
    "Sequential or low-entropy random components permit identity prediction and MUST NOT be used in adversarial "
    "environments.",
)
def test_an_agent_id_has_80_bits_from_the_systems_generator(keeper, monkeypatch):
    asked = []
    system = os.urandom

    def watched(count):
        asked.append(system(count))
        return asked[-1]

    monkeypatch.setattr("hearth._util.ids.os.urandom", watched)
    agent_id = keeper(path=None).card()["agent_id"]
    assert [len(each) for each in asked] == [10]
    value = 0
    for character in agent_id:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(character)
    assert (value & (1 << 80) - 1).to_bytes(10, "big") == asked[0]
    assert keeper(path=None).card()["agent_id"] != agent_id


def test_an_agent_id_is_made_once_and_kept(keeper, tmp_path):
    first = opened(keeper).card()
    assert first["version"] == "1.0.0"
    assert validate(first) == []
    kept = json.loads((tmp_path / "agent-card.json").read_text())
    assert kept["card"] == first
    assert stat.S_IMODE((tmp_path / "agent-card.json").stat().st_mode) == 0o644
    for _ in range(3):
        assert opened(keeper).card() == first


def test_two_daemons_with_their_logs_in_one_directory_are_two_agents(tmp_path):
    assert card_file(tmp_path / "audit.log") == tmp_path / "agent-card.json"
    assert card_file(tmp_path / "b.log") == tmp_path / "b.log.agent-card.json"


def test_an_agent_id_is_kept_even_if_no_card_was_ever_given_out(keeper, tmp_path):
    opened(keeper)
    agent_id = json.loads((tmp_path / "agent-card.json").read_text())["agent_id"]
    assert opened(keeper).card()["agent_id"] == agent_id


def test_the_version_follows_what_changed_from_run_to_run(keeper, tools):
    def version(*listeners, **changes):
        return opened(keeper, **changes).card(listeners)["version"]

    assert version() == "1.0.0"
    assert version(card=CardConfig(metadata={"site": "north"})) == "1.0.1"
    assert version(card=CardConfig(metadata={"site": "north"})) == "1.0.1"
    assert version() == "1.0.2"
    assert version(tools=[*tools, evolve(tools[0], name="acme.fire")]) == "1.1.0"
    assert version() == "2.0.0"
    assert version(URL, http=HTTP) == "3.0.0"
    assert version(URL, http=HTTP) == "3.0.0"
    assert version(tools=tools[:-1]) == "4.0.0"


def test_another_job_to_be_delegated_raises_the_third_number(keeper):
    def version(*jobs):
        return opened(keeper, jobs=jobs).card()["version"]

    assert [version(), version("bench-a"), version("bench-a"), version()] == ["1.0.0", "1.0.1", "1.0.1", "1.0.2"]


def test_a_card_is_made_again_only_when_something_has_changed(keeper, tmp_path):
    made = opened(keeper, http=HTTP)
    first = made.card([URL])
    written = (tmp_path / "agent-card.json").stat()
    assert made.card([URL]) is first
    assert (tmp_path / "agent-card.json").stat().st_ino == written.st_ino
    moved = made.card(["http://127.0.0.1:7120"], serves_mcp=True)
    assert (moved["endpoint"]["url"], moved["version"]) == ("http://127.0.0.1:7120/mcp", "2.0.0")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "input is a zero-length"),
        (b'{"format": 1, "agent_id": "01HZ', "unexpected"),
        (b"[]", "not a file of an agent card"),
        (b'{"format": 0, "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0"}', "not a file of an agent card"),
        (b'{"format": 1, "agent_id": "x"}', "no agent_id"),
        (b'{"format": 1}', "no agent_id"),
        (b'{"format": 1, "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0", "card": {}}', "its card is not valid"),
    ],
)
def test_a_torn_file_is_moved_aside_and_said_to_be(keeper, tmp_path, content, why):
    (tmp_path / "agent-card.json").write_bytes(content)
    made = keeper()
    (note,) = made.open(NOW)
    aside = tmp_path / "agent-card.json.found-20270115T080000.000Z"
    assert why in note.lower() or why in note
    assert str(aside) in note
    assert "put it back" in note
    assert aside.read_bytes() == content
    assert opened(keeper).card()["agent_id"] == made.card()["agent_id"], "the new one is kept"


@pytest.mark.parametrize("change", ["agent_id", "version"])
def test_a_card_that_is_not_this_agents_own_is_not_gone_on_from(keeper, tmp_path, change):
    opened(keeper).card()
    kept = json.loads((tmp_path / "agent-card.json").read_text())
    kept["card"][change] = {"agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0", "version": "1.0.0-rc.1"}[change]
    (tmp_path / "agent-card.json").write_text(json.dumps(kept))
    assert len(keeper().open(NOW)) == 1


def test_what_is_no_regular_file_is_moved_aside(keeper, tmp_path):
    os.mkfifo(tmp_path / "agent-card.json")
    assert "not a regular file" in keeper().open(NOW)[0]
    (tmp_path / "agent-card.json").unlink()
    (tmp_path / "agent-card.json").symlink_to(tmp_path / "elsewhere")
    assert "symbolic links" in keeper().open(NOW + 1)[0]
    assert not (tmp_path / "elsewhere").exists()


def test_where_nothing_can_be_written_the_card_is_given_out_and_the_trouble_said(keeper, tmp_path, caplog):
    path = tmp_path / "gone" / "agent-card.json"
    made = keeper(path=path)
    (note,) = made.open(NOW)
    assert (
        note
        == f"agent card {path}: cannot be kept: No such file or directory; the agent_id lasts until this process ends"
    )
    card = made.card()
    assert card["version"] == "1.0.0"
    assert made.failure is not None
    assert made.card() is card
    path.parent.mkdir()
    assert made.card([URL]) != card
    assert made.failure is None
    assert opened(keeper, path=path).card()["agent_id"] == card["agent_id"]
    assert len([record for record in caplog.records if "cannot be kept" in record.message]) == 1


def test_a_file_that_can_neither_be_read_nor_moved_is_told(keeper, tmp_path, monkeypatch):
    (tmp_path / "agent-card.json").write_text("torn")

    def refuse(_from, _to):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    assert "nor moved away: Read-only file system" in keeper().open(NOW)[0]


def test_a_draft_that_a_crash_left_is_no_obstacle(keeper, tmp_path):
    (tmp_path / "agent-card.json.next").symlink_to("/dev/full")
    assert opened(keeper).card()["version"] == "1.0.0"
    assert not (tmp_path / "agent-card.json.next").is_symlink()


def test_the_audit_logs_public_key_is_in_the_metadata_from_the_first_card_over_http(keeper, tmp_path):
    key = tmp_path / "audit.log.key"
    assert "hearth:audit_public_key" not in opened(keeper, audit_key=key).card()["metadata"]
    assert not key.exists(), "without HTTP the journal makes it when it needs it"
    told = opened(keeper, audit_key=key, http=HTTP).card([URL])["metadata"]["hearth:audit_public_key"]
    assert told == keys.public_path(key).read_text()
    assert told.startswith("-----BEGIN PUBLIC KEY-----")


async def test_a_disk_that_hangs_after_the_start_takes_nothing_from_the_card(keeper, tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "PATIENCE_S", 0.01)
    key = tmp_path / "audit.log.key"
    made = opened(keeper, audit_key=key, http=HTTP)
    answers = threading.Event()
    made._helper.call(answers.wait, 0)
    try:
        first = made.card([URL])
        assert first["metadata"]["hearth:audit_public_key"] == keys.public_path(key).read_text()
    finally:
        answers.set()
    assert made.card([URL]) == first


def test_a_key_that_cannot_be_made_is_left_out_and_said(keeper, tmp_path, caplog):
    key = tmp_path / "audit.log.key"
    key.write_text("not a key")
    key.chmod(0o600)
    assert "hearth:audit_public_key" not in opened(keeper, audit_key=key, http=HTTP).card([URL])["metadata"]
    assert "without the audit log's public key" in caplog.text


def test_a_card_that_would_not_be_valid_is_not_given_out(keeper, tools, caplog):
    deep = {}
    for _ in range(80):
        deep = {"not": deep}
    made = opened(keeper, tools=[evolve(tools[0], name="acme.fire", params_schema=deep)])
    assert made.card() is None
    assert made.card() is None
    assert len([record for record in caplog.records if "64 levels" in record.message]) == 1


def test_a_measured_price_is_published_anew_only_when_it_has_really_changed(keeper):
    now = Measured(1.0, "rapl", 3600, 100)
    made = opened(keeper, measured=lambda: now)
    assert made.card()["pricing"] == {"base_cost_joules": 1.0}
    now = evolve(now, joules=1.2)
    assert made.card()["pricing"] == {"base_cost_joules": 1.0}
    now = evolve(now, joules=1.3)
    assert (made.card()["pricing"], made.card()["version"]) == ({"base_cost_joules": 1.3}, "1.0.1")
    now = None
    assert made.card()["pricing"] == {"base_cost_joules": 1.3}
