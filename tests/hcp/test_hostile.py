"""Whatever is sent to the job server is answered: thousands of wrong messages, and none ends anything."""

from __future__ import annotations

import logging
from random import Random

import orjson
import pytest
from hcp.examples import example
from hcp.mutating import mangled, mutant
from support.hcp import Caller, capability, hcp_world, reading, scripted, step
from support.hearthd import Hearthd

from hearth.audit.verify import verify
from hearth.hcp.codec import read_message
from hearth.hcp.messages import Abort, MessageError
from hearth.policy.rules import JobRules, Match, PolicyEntry
from hearth.protocol.jsonrpc import load

MANY = 1000
AT_ONCE = 20
ASKED = ("hcp_version", "message_id", "type", "payload")
POLICY = PolicyEntry(name="bench", match=Match(any=True), max_risk=3, hcp=JobRules(capabilities=("*",), max_risk="R5"))
ENDS = ("task_completed", "task_failed")


def analysis():
    """The capability that the page's simple task is for: it looks at the bench, and finds what the page found."""
    found = example("l4-simple-task-completed")["payload"]["outputs"]
    schema = {"type": "object", "required": ["document_uri"], "properties": {"document_uri": {"type": "string"}}}
    return capability(
        "document-analysis", scripted(step("read", tag="x"), outputs=found), input_schema=schema, concurrent_limit=64
    )


def bench(tmp_path):
    return hcp_world(tmp_path / "hcp", analysis(), policy=(POLICY,), settings={"max_jobs_per_principal": 64})


def submit():
    return example("l4-simple-task-submit")


def read(document):
    """The message, or None where it is none."""
    try:
        return read_message(document)
    except MessageError:
        return None


class Tray:
    """What was sent on a connection, and what has come of it; what comes is looked at once."""

    def __init__(self, caller):
        self.caller = caller
        self.sent = 0
        self.rejected = []
        self.accepted = set()
        self.closed = set()
        self.ends = {}
        self._answered = 0
        self._seen = 0

    @property
    def answered(self):
        """How many messages have been answered: by a refusal, by an acceptance, or in the other dialect."""
        fresh, self._seen = self.caller.documents[self._seen :], len(self.caller.documents)
        for one in fresh:
            type_ = one.get("type") if isinstance(one, dict) and "hcp_version" in one else None
            self._answered += type_ in (None, "task_accepted", "task_rejected")
            if type_ == "task_rejected":
                self.rejected.append(one)
            elif type_ == "task_accepted":
                self.accepted.add(one["session_id"])
            elif type_ in ENDS:
                self.ends.setdefault(one["session_id"], set()).add(one["message_id"])
            elif type_ == "event" and one["payload"]["event_type"] == "session_closed":
                self.closed.add(one["session_id"])
        return self._answered

    async def send(self, documents):
        for document in documents:
            await self.caller.send(document)
        await self.settled(self.sent + len(documents))

    async def settled(self, sent):
        """So many have been sent: wait until each has its answer."""
        self.sent = sent
        await self.caller.until(lambda: self.answered >= sent)

    def check(self):
        """Each message had one answer, and each answer says what it has to."""
        assert self.answered == self.sent
        for one in self.rejected:
            payload = read_message(one).payload
            assert one["session_id"] is None
            assert payload.reason_message
            assert payload.reason_code != "internal_error", payload
            if payload.reason_code in ("invalid_message", "unsupported_version", "invalid_input"):
                assert payload.suggestion, payload

    async def over(self):
        """Every job that was accepted has come to its end, and to one end only."""
        await self.caller.until(lambda: self.answered and self.accepted <= self.closed)
        assert {session_id: len(ends) for session_id, ends in self.ends.items()} == dict.fromkeys(self.accepted, 1)


@pytest.fixture
def quiet(caplog):
    """Nothing is logged as an error: a traceback would be."""
    yield caplog
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def still_works(world):
    """The daemon does a job, and on its other side a task, as if nothing had been."""
    caller = world.caller()
    document = {**submit(), "message_id": "after all that"}
    answer = await caller.reply(document)
    assert answer["type"] == "task_accepted", answer
    message_log = await caller.closed(answer["session_id"])
    completed = next(one["payload"] for one in message_log if one["type"] == "task_completed")
    assert completed["outputs"] == example("l4-simple-task-completed")["payload"]["outputs"]
    client = world.connect()
    session = await client.open()
    task_id = await session.start(("read", {"tag": "y"}), subscribe=True)
    assert (await client.finished(task_id))[-1]["status"] == "SUCCESS"


@pytest.mark.proof
@pytest.mark.usefixtures("unmeasured_here")
async def test_every_mutated_task_submit_and_abort_is_answered_once_and_the_job_server_goes_on(tmp_path, quiet):
    random = Random(1848)
    async with bench(tmp_path) as world:
        tray = Tray(world.caller())
        abort = Caller.abortion("session-xyz", reason="enough", session_token="a.b")
        sent = []
        for number in range(MANY):
            base = abort if number % 5 == 4 else submit()
            document = mutant({**base, "message_id": f"msg-{number}"}, random)
            sent.append(document)
            if len(sent) % AT_ONCE == 0:
                await tray.send(sent[-AT_ONCE:])
        tray.check()
        await tray.over()
        rejected = [one["payload"] for one in tray.rejected]
        codes = {payload["reason_code"] for payload in rejected}
        assert {"invalid_message", "invalid_input", "unknown_session", "unknown_capability"} <= codes
        assert len(tray.accepted) > MANY // 20
        ids = [document.get("message_id") for document in sent]
        assert all(payload["in_reply_to"] in ids for payload in rejected if "in_reply_to" in payload)
        await still_works(world)


@pytest.mark.slow
async def test_what_the_job_server_refuses_as_unreadable_is_what_reading_refuses(tmp_path):
    random = Random(1871)
    async with bench(tmp_path) as world:
        tray = Tray(world.caller())
        documents = [mutant({**submit(), "message_id": f"msg-{number}"}, random) for number in range(300)]
        documents = [one for one in documents if "hcp_version" in one and read(one) is None]
        assert len(documents) > 100
        await tray.send(documents)
        for document, told in zip(documents, tray.caller.messages, strict=True):
            with pytest.raises(MessageError) as raised:
                read_message(document)
            error = raised.value
            assert told["payload"]["reason_code"] == error.code
            assert error.reason in told["payload"]["reason_message"]
            assert told["payload"]["reason_message"].startswith(error.pointer)
            assert told["payload"]["suggestion"] == error.suggestion
            assert told["payload"].get("in_reply_to") == error.message_id


@pytest.mark.proof
async def test_every_mangled_line_is_answered_and_the_connection_goes_on(tmp_path, quiet):
    random = Random(1905)
    async with bench(tmp_path) as world:
        caller = world.caller()
        tray = Tray(caller)
        expected = 0
        for number in range(MANY):
            data = mangled({**submit(), "message_id": f"msg-{number}"}, random)
            lines = [line for line in data.split(b"\n") if line.strip()]
            await caller.send(data)
            expected += len(lines)
            if number % AT_ONCE == 0:
                await tray.settled(expected)
        await tray.settled(expected)
        tray.check()
        await tray.over()
        await still_works(world)


@pytest.mark.slow
async def test_of_many_mutated_aborts_those_that_are_the_sessions_own_end_it_once_and_the_others_are_refused(tmp_path):
    random = Random(1815)
    held = capability("held", reading(step("read", gate="g", tag="x")))
    async with hcp_world(tmp_path / "hcp", held, policy=(POLICY,)) as world:
        caller = world.caller()
        session_id = await caller.accepted("held")
        await world.gate("g").reached()
        token = caller.message_log(session_id)[0]["payload"]["session_token"]
        sent = []
        for _ in range(200):
            sent.append(mutant(Caller.abortion(session_id, reason="enough", session_token=token), random))
            await caller.send(sent[-1])

        def refused(document):
            message = read(document)
            if message is None or not isinstance(message.payload, Abort) or message.session_id != session_id:
                return True
            return message.payload.session_token not in (None, token)

        due = sum(refused(document) for document in sent)
        assert 50 < due < len(sent)
        await caller.until(lambda: len(caller.documents) - len(caller.message_log(session_id)) == due)
        world.gate("g").open()
        message_log = await caller.closed(session_id)
    moves = [
        one["payload"]["data"]["to_state"] for one in message_log if one["payload"].get("event_type") == "state_changed"
    ]
    assert moves == ["RUNNING", "ABORTING", "ABORTED"]


async def test_messages_of_both_dialects_are_answered_each_in_its_own(tmp_path):
    async with bench(tmp_path) as world:
        caller = world.caller()
        await caller.send({"jsonrpc": "2.0", "id": 1, "method": "hcp.capabilities"})
        await caller.send({**submit(), "hcp_version": None})
        await caller.send([submit()])
        await caller.send({"jsonrpc": "2.0", "id": 2, "method": "hcp.sessions"})
        await caller.until(lambda: len(caller.documents) >= 4)
        (refusal,) = caller.messages
        assert refusal["payload"]["reason_code"] == "invalid_message"
        (batch,) = [one for one in caller.documents if isinstance(one, list)]
        assert [one["error"]["code"] for one in batch] == [-32600]
        plain = {one["id"]: one for one in caller.documents if "jsonrpc" in one}
        assert plain[1]["result"]["capabilities"][0]["capability"]["name"] == "document-analysis"
        assert plain[2]["result"]["sessions"] == []


def test_the_mutations_here_are_of_documents_that_would_be_taken() -> None:
    assert read(submit()) is not None
    assert read(load(b"{}")) is None
    assert all(name in submit() for name in ASKED)


# --- and over a real daemon's socket ----------------------------------------------------------------------------------

ANALYSIS = '''\
from typing import Any

from hearth import Job, capability

INPUTS = {
    "type": "object",
    "required": ["document_uri"],
    "properties": {"document_uri": {"type": "string"}},
}


@capability(
    "document-analysis",
    version="1.0.0",
    tools=["sys.uptime"],
    risk_ceiling="R1",
    concurrent_limit=64,
    input_schema=INPUTS,
    output_schema={"type": "object", "properties": {"findings": {"type": "array"}}},
)
async def analyse(job: Job, /, **_inputs: Any) -> dict[str, Any]:
    """Says how long this machine has been up, and calls it a finding."""
    await job.run("sys.uptime")
    return {"findings": [{"statement": "it is up", "confidence": 1}]}
'''
OVER_THE_WIRE = 300


class Line:
    """A caller on a socket: what it has sent, and what it has been answered."""

    def __init__(self, peer):
        self.peer = peer
        self.documents = []

    def send(self, lines):
        """Send documents, and read until each of them has its answer."""
        self.peer.send(b"".join(line + b"\n" for line in lines))
        due = len(lines)
        while due:
            said = self.peer.line()
            assert said is not None, "the daemon closed the connection"
            self.documents.append(said)
            due -= said.get("type") in (None, "task_accepted", "task_rejected")

    def closed(self, session_id):
        """Read until a session is over; return its outcome."""

        def message_log():
            return [one for one in self.documents if one.get("session_id") == session_id]

        while not any(one["payload"].get("event_type") == "session_closed" for one in message_log()):
            self.documents.append(self.peer.line())
        return next(one for one in message_log() if one["type"] in ENDS)


@pytest.mark.proof
def test_a_real_daemon_answers_every_mutated_message_on_its_socket_and_says_nothing_of_a_bug(tmp_path):
    random = Random(1989)
    offered = tmp_path / "document_analysis.py"
    offered.write_text(ANALYSIS)
    offered.chmod(0o600)
    settings = f'[hcp]\ncapabilities = ["{offered}"]\nshipped = []\nmax_jobs = 64\nmax_jobs_per_principal = 64\n'
    daemon = Hearthd(tmp_path, f'{settings}[board]\nprofile = "sim"\n')
    try:
        daemon.start()
        line = Line(daemon.peer())
        abort = Caller.abortion("session-xyz", reason="enough")
        for start in range(0, OVER_THE_WIRE, AT_ONCE):
            documents = [
                mutant({**(abort if number % 5 == 4 else submit()), "message_id": f"msg-{number}"}, random)
                for number in range(start, start + AT_ONCE)
            ]
            line.send([orjson.dumps(document) for document in documents])
        for number in range(OVER_THE_WIRE):
            data = mangled({**submit(), "message_id": f"mangled-{number}"}, random)
            line.send([one for one in data.split(b"\n") if one.strip()])
        for one in [one for one in line.documents if one.get("type") == "task_accepted"]:
            line.closed(one["session_id"])
        codes = {one["payload"]["reason_code"] for one in line.documents if one.get("type") == "task_rejected"}
        assert {"invalid_message", "invalid_input", "unknown_session", "unknown_capability"} <= codes
        assert "internal_error" not in codes

        # The page's own task, as it stands there, on the same connection after all that.
        page = submit()
        line.send([orjson.dumps(page)])
        accepted = line.documents[-1]
        assert (accepted["type"], accepted["payload"]["in_reply_to"]) == ("task_accepted", page["message_id"])
        completed = line.closed(accepted["session_id"])
        assert completed["type"] == "task_completed"
        assert completed["payload"]["outputs"]["findings"][0]["statement"] == "it is up"
        assert daemon.peer().health()["buses"]
        daemon.hang_up()
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.said
        assert "ERROR" not in daemon.said
        assert verify([daemon.audit]).ok
    finally:
        daemon.end()
