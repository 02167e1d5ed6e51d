"""Files that outlive a run: today's code reads those of every earlier release, and an older release refuses newer ones.

The vintages are beside this file, one folder for each release; `make.py` says how they are made.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.hcp_job_store import running
from support.hearthd import BOUND, Hearthd
from vintages.make import CONFIG, REASON, run_job, submit

from hearth.actors import agentcard, task_registry
from hearth.actors.bridges.hcp.store import JobStore
from hearth.actors.bridges.hcp.store.database import _RELEASES, APPLICATION_ID
from hearth.actors.bus import latch, outputs_file
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.ask import transcript
from hearth.ask.transcript import RecordedModel, read_transcript
from hearth.audit import files as log_files, keys, notes, tree
from hearth.audit.files import newest_records
from hearth.audit.tree import Prover, origin_of
from hearth.audit.verify import verify
from hearth.errors import ConfigError
from hearth.fleet import order_store
from hearth.fleet.order_store import OrderStore
from hearth.hcp.durable import Recorded

HERE = Path(__file__).parent
VINTAGES = sorted(place for place in HERE.iterdir() if place.name[0].isdigit())
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="the vintages were made by root: take uid 0")
FOREVER = "[tasks]\nidempotency_days = 100_000\n[hcp]\nretention_s = 1_000_000_000\n"
"""The files are as old as their release."""


def copied(vintage: Path, name: str, to: Path) -> Path:
    """A copy of some files of a vintage that the daemon takes for its own."""
    shutil.copytree(vintage / name, to / name)
    for file in (to / name).rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o600)
    (to / name).chmod(0o700)
    return to / name


@pytest.fixture(params=VINTAGES, ids=lambda vintage: vintage.name)
def vintage(request):
    return request.param


@pytest.fixture
def daemon(vintage, tmp_path):
    """A daemon of today on the files of an earlier one, not started."""
    made = Hearthd(copied(vintage, "daemon", tmp_path), CONFIG + FOREVER)
    yield made
    made.end()


@pytest.mark.slow
def test_a_daemon_of_today_starts_halted_on_the_files_of_an_earlier_one_and_makes_its_outputs_safe(daemon):
    before = b"".join(line for line, _ in [*newest_records(daemon.audit)][::-1])
    last = json.loads(before.splitlines()[-1])["seq"]
    daemon.start()
    assert "starting halted, since 20" in daemon.said
    assert REASON in daemon.said
    peer = daemon.peer()
    session = peer.open()
    status = peer.call("halt.status", {"session_id": session})["result"]
    assert (status["halted"], status["latched"], REASON in json.dumps(status)) == (True, True, True)
    later = [record for record in daemon.records() if record["seq"] > last]
    assert {"daemon.recover", "outputs.safe", "daemon.start"} <= {record["event"] for record in later}
    safe = [record for record in later if record["event"] == "outputs.safe"]
    assert {output for record in safe for output in record["outputs"]} == {0, 1}
    assert not [record for record in safe if "error" in record or "session_id" in record]
    assert not Path(f"{daemon.audit}.outputs").exists()
    assert peer.call("halt.reset", {"session_id": session})["result"]["halted"] is False
    assert peer.run(session, "gpio.set", line="LAMP", value=1)["status"] == "SUCCESS"
    daemon.hang_up()
    assert daemon.stop() == 0

    report = verify(daemon.audit, Path(f"{daemon.audit}.key.pub"))
    assert (report.ok, report.first_seq) == (True, 1), report.first_bad
    prover = Prover(daemon.audit)
    assert prover.origin == origin_of(before.partition(b"\n")[0])
    newest = next(record for _, record in newest_records(daemon.audit) if record["event"] == "audit.checkpoint")
    now = notes.Checkpoint.parse(newest["note"])
    assert now.size > last
    assert prover.root(now.size) == now.root, "the tree goes on from the earlier file's hashes"


@ROOT_ONLY
@pytest.mark.slow
def test_what_was_submitted_to_an_earlier_daemon_is_answered_as_that_one_did(daemon, vintage):
    (first,) = [one["task_id"] for one in daemon.records(event="task.submit", intent="light the lamp")]
    daemon.start()
    peer = daemon.peer()
    session = peer.open()
    assert submit(peer, session) == first
    assert b"".join(run_job(daemon)) == (vintage / "daemon/job.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["daemon/audit.log.hcp", "jobs-4"])
async def test_the_outcomes_of_an_earlier_job_store_are_read_and_none_counts_as_an_answer_that_holds(
    vintage, tmp_path, store
):
    shutil.copytree(vintage / store, tmp_path / "hcp")
    for file in (tmp_path / "hcp").rglob("*"):
        file.chmod(0o700 if file.is_dir() else 0o600)
    (tmp_path / "hcp").chmod(0o700)
    job_store = JobStore(tmp_path / "hcp")
    async with running(job_store):
        (row,) = await job_store.sessions("uid:0", 10)
        found = [Recorded.read(one) for one in await job_store.outcomes(row.session_id, row.checkpoints)]
        assert found
        assert {(one.outcome.stamp, one.outcome.replayed) for one in found} == {(None, False)}
        assert row.resumed_by is None


def test_the_levels_that_an_earlier_run_left_are_read(vintage, tmp_path):
    directory = copied(vintage, "levels", tmp_path)
    outputs = OutputsFile(directory / "audit.log.outputs")
    assert outputs.open(0) == ["bus pwm:sim: the last run left outputs driven: 2"]
    assert outputs.found.levels == {"pwm:sim": ((2, 120.0),)}


def test_a_witness_goes_on_from_the_checkpoint_that_it_cosigned(vintage, tmp_path):
    place = copied(vintage, "witness", tmp_path)
    signer = keys.load_or_create(place / "state.key")
    assert signer.public_pem == (vintage / "witness/state.key.pub").read_text()
    witness = notes.Witness(place / "state", "w", keys.load_public(place / "log.pub"), signer)
    last = witness.only()
    assert last is not None
    note = next(iter(json.loads((vintage / "witness/state").read_bytes()).values()))
    assert witness.cosign(last.size, [], note, 1).startswith(last.text)
    assert witness.only() == last
    assert json.loads((place / "state").read_bytes())["format"] == 1


def test_a_caller_of_a_fleet_goes_on_with_its_orders(vintage, tmp_path):
    store = OrderStore(copied(vintage, "orders", tmp_path) / "caller.sqlite3")
    assert {(one.message_id, one.state, one.published, one.sequence) for one in store.orders(open_only=True)} == {
        ("answered", "RUNNING", True, 1),
        ("sent", "NEW", True, 0),
        ("new", "NEW", False, 0),
    }
    assert [one["payload"]["sequence"] for one in store.events("s")] == [1]
    store.close()


async def test_a_transcript_is_read(vintage):
    content = (vintage / "ask/transcript.jsonl").read_bytes()
    records = read_transcript(content, "t")
    assert [record["kind"] for record in records[:4]] == ["start", "words", "turn", "read"]
    assert (await RecordedModel.of(records).turn([], [], lambda _text: None)).calls[0].tool == "read"


# --- a newer release's file -------------------------------------------------------------------------------------------


def in_json(member):
    """Raise the number on the first line, which is a JSON object, beyond the formats of this release."""

    def raise_it(file):
        first, *rest = file.read_bytes().splitlines(keepends=True)
        document = json.loads(first)
        document[member] = document.get(member, 1) + 9
        file.write_bytes(json.dumps(document, separators=(",", ":")).encode() + b"\n" + b"".join(rest))
        return document[member]

    return raise_it


def in_header(file):
    content = file.read_bytes()
    assert content.startswith(b"hearth tree 1\n")
    file.write_bytes(content.replace(b"1\n", b"2\n", 1))
    return 2


def in_database(file):
    with sqlite3.connect(file) as db:
        number = db.execute("PRAGMA user_version").fetchone()[0] + 90
        db.execute(f"PRAGMA user_version = {number}")
    db.close()
    return number


NAMES = {
    "audit.log": ("format", in_json("format")),
    "audit.log.tree": ("header", in_header),
    "audit.log.halt": ("version", in_json("version")),
    "audit.log.outputs": ("version", in_json("version")),
    "audit.log.idempotency": ("version", in_json("version")),
    "audit.log.hcp/jobs.sqlite3": ("user_version", in_database),
    "agent-card.json": ("format", lambda file: in_json("format")(one_line(file))),
}


def one_line(file):
    file.write_text(json.dumps(json.loads(file.read_text())))
    return file


def refusal(text, file, number):
    """The one sentence of a refusal, which names the file, the format, and the cure."""
    (line,) = [one for one in text.splitlines() if "newer hearth" in one]
    assert re.search(rf"{re.escape(file)}: a newer hearth wrote it, in format {number}, and this one reads", line), line
    assert re.search(r"formats up to \d+; run that release, or \w+", line), line
    assert "Traceback" not in text
    return line


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_daemon_refuses_a_newer_release_s_file_with_one_sentence_and_changes_nothing(name, daemon):
    file = daemon.directory / name
    number = NAMES[name][1](file)

    def files():
        found = (
            one
            for one in daemon.directory.rglob("*")
            if one.is_file() and not one.name.endswith((".reserve", ".spare"))
        )
        return {one.name: one.read_bytes() for one in found}

    before = files()
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", daemon.config]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, env=daemon.env, check=False)
    assert ended.returncode == 2, ended.stderr
    shown = name if name != "audit.log.hcp/jobs.sqlite3" else "jobs.sqlite3"
    refusal(ended.stderr, shown, number)
    assert {key: files().get(key) for key in before} == before


@pytest.mark.slow
def test_a_daemon_without_a_card_refuses_a_newer_release_s_card_when_one_is_asked_for(vintage, tmp_path):
    daemon = Hearthd(copied(vintage, "daemon", tmp_path), CONFIG.replace("[card]\n", "") + FOREVER)
    file = daemon.directory / "agent-card.json"
    number = NAMES[file.name][1](file)
    before = file.read_bytes()
    try:
        daemon.start()
        peer = daemon.peer()
        refused = peer.refusal("mcp.info", {"session_id": peer.open()})
    finally:
        daemon.end()
    refusal(refused["data"]["reason"], file.name, number)
    assert file.read_bytes() == before


@pytest.mark.slow
def test_the_current_file_of_a_log_may_be_empty_and_its_rotated_ones_newer(daemon):
    rotated = max(daemon.directory.glob("audit.log.0*"))
    daemon.audit.write_bytes(b"")
    number = in_json("format")(rotated)
    with pytest.raises(AssertionError, match=rf"audit\.log: a newer hearth wrote it, in format {number}"):
        daemon.start()


def test_a_newer_log_is_not_verified_as_if_it_were_known(vintage, tmp_path):
    log = copied(vintage, "daemon", tmp_path) / "audit.log"
    number = in_json("format")(log)
    bad = verify(log).first_bad
    assert (bad.file, bad.line) == (log, 1)
    assert f"a newer hearth wrote it, in format {number}" in bad.reason


OTHERS = {
    "orders/caller.sqlite3": (in_database, OrderStore),
    "witness/state": (in_json("format"), lambda file: notes.Witness(file, "w", None, None).only()),
    "ask/transcript.jsonl": (in_json("format"), lambda file: read_transcript(file.read_bytes(), str(file))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_command_refuses_a_newer_release_s_file_with_one_sentence(name, vintage, tmp_path):
    raise_it, read = OTHERS[name]
    directory, _, rest = name.partition("/")
    file = copied(vintage, directory, tmp_path) / rest
    number = raise_it(file)
    before = file.read_bytes()
    with pytest.raises(ConfigError) as refused:
        read(file)
    refusal(str(refused.value), str(file), number)
    assert file.read_bytes() == before


# --- today's files ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_file_of_a_daemon_of_today_names_its_format(tmp_path):
    tmp_path.chmod(0o700)
    daemon = Hearthd(tmp_path, CONFIG, audit="checkpoint_every = 20\nrotate_bytes = 4096")
    try:
        daemon.start()
        run_job(daemon)
        peer = daemon.peer()
        session = peer.open()
        peer.wait(session, submit(peer, session))
        peer.call("halt", {"session_id": session, "reason": REASON})
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    finally:
        daemon.end()
    logs = [daemon.audit, *tmp_path.glob("audit.log.0*")]
    assert len(logs) > 1, "it was rotated"
    for log in logs:
        first, *rest = map(json.loads, log.read_bytes().splitlines())
        assert first["format"] == 1
        assert not [record for record in rest if "format" in record], "it is named once"
    numbers = {}
    for name, (member, _) in NAMES.items():
        file = tmp_path / name
        if member == "user_version":
            with sqlite3.connect(file) as db:
                assert db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
                numbers[name] = db.execute("PRAGMA user_version").fetchone()[0]
            db.close()
        elif member == "header":
            numbers[name] = int(file.read_bytes().removeprefix(b"hearth tree ").partition(b"\n")[0])
        elif name != "agent-card.json":
            numbers[name] = json.loads(file.read_bytes().splitlines()[0])[member]
        else:
            numbers[name] = json.loads(file.read_bytes())[member]
    assert all(number >= 1 for number in numbers.values()), numbers


TODAY = {
    "audit.log": log_files.FORMAT,
    "audit.log.tree": tree._FORMAT,
    "audit.log.halt": latch.VERSION,
    "audit.log.outputs": outputs_file._VERSION,
    "audit.log.idempotency": task_registry.VERSION,
    "jobs.sqlite3": len(_RELEASES),
    "agent-card.json": agentcard._FORMAT,
    "caller.sqlite3": order_store._VERSION,
    "state": notes._FORMAT,
    "transcript.jsonl": transcript.FORMAT,
}
"""The newest format of each file, by its name."""


def format_of(file):
    """The number that a file of a vintage names; one without has format 1."""
    if file.suffix == ".sqlite3":
        with sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True) as db:
            found = db.execute("PRAGMA user_version").fetchone()[0]
        db.close()
        return found
    content = file.read_bytes()
    if file.name == "audit.log.tree":
        return int(content.removeprefix(b"hearth tree ").partition(b"\n")[0])
    document = json.loads(content if file.name == "agent-card.json" else content.splitlines()[0])
    return document.get("format", document.get("version", 1))


@pytest.mark.parametrize("name", TODAY)
def test_a_change_of_a_file_adds_a_vintage(name):
    """The numbers before a vintage's first are those of trees that no release came from."""
    kept = {format_of(file) for file in HERE.rglob(name)}
    assert kept == {*range(min(kept), TODAY[name] + 1)}


def test_a_vintage_has_each_of_the_files(vintage):
    there = {str(file.relative_to(vintage)) for file in vintage.rglob("*") if file.is_file()}
    assert {f"daemon/{name}" for name in NAMES} | set(OTHERS) <= there
