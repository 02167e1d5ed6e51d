"""A client and a server joined back to back: nothing is lost, doubled or mixed up, however the bytes are cut."""

import orjson
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hearth.errors import ERROR_TABLE, DeviceError
from hearth.protocol.client import ClientProtocol, Notification, Reply, TaskEventNotification
from hearth.protocol.jsonrpc import dump_request, join_batch
from hearth.protocol.methods import METHODS
from hearth.protocol.server import Answer, Call, ServerProtocol

KNOWN = sorted(METHODS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PIECE = st.one_of(st.integers(1, 9), st.integers(1, 500))


class TwoEnds(RuleBasedStateMachine):
    """The wire in each direction is a buffer that gives up any number of bytes at a time."""

    def __init__(self):
        super().__init__()
        self.client = ClientProtocol()
        self.server = ServerProtocol()
        self.to_server = b""
        self.to_client = b""
        self.calls = []
        self.expected = {}  # request id -> what its reply must hold
        self.replies = {}
        self.noted = 0  # notifications the client sent, and the server executed
        self.executed = 0
        self.events_sent = []
        self.events_seen = []

    def ask(self, text, method=None):
        number = len(self.expected)
        id_, data = self.client.request(method or KNOWN[number % len(KNOWN)], {"session_id": "s", "text": text})
        assert id_ not in self.expected
        self.expected[id_] = None
        return data

    @rule(text=TEXT)
    def ask_one(self, text):
        self.to_server += self.ask(text)

    @rule(text=TEXT)
    def ask_for_a_method_that_does_not_exist(self, text):
        self.to_server += self.ask(text, "no.such")
        self.expected[max(self.expected)] = -32601

    @rule(texts=st.lists(TEXT, min_size=1, max_size=5), notes=st.integers(0, 2), unknown=st.booleans())
    def ask_in_a_batch(self, texts, notes, unknown):
        lines = [self.ask(text) for text in texts] + [self.note() for _ in range(notes)]
        if unknown:
            lines.append(self.ask("", "no.such"))
            self.expected[max(self.expected)] = -32601
        self.to_server += join_batch(lines)

    def note(self):
        self.noted += 1
        return self.client.notify("task.cancel", {"n": self.noted})

    @rule()
    def notify(self):
        self.to_server += self.note()

    @rule(blanks=st.sampled_from([b"\n", b"\r\n", b" \t\n"]))
    def send_blanks(self, blanks):
        # Only between lines: what is underway ends in LF.
        self.to_server += blanks
        self.to_client += blanks

    @precondition(lambda self: self.to_server)
    @rule(size=PIECE)
    def carry_to_server(self, size):
        piece, self.to_server = self.to_server[:size], self.to_server[size:]
        for event in self.server.receive(piece):
            if isinstance(event, Answer):
                self.to_client += event.data
                continue
            assert isinstance(event, Call)
            if event.id is None:
                assert self.server.result(event, {}) is None
                self.executed += 1
            else:
                self.calls.append(event)

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0, 99), code=st.sampled_from([None, None, *ERROR_TABLE]))
    def answer(self, which, code):
        call = self.calls.pop(which % len(self.calls))
        if code is None:
            self.expected[call.id] = {"method": call.method, "text": call.params["text"]}
            line = self.server.result(call, {**self.expected[call.id], "unknown": [1]})
        else:
            self.expected[call.id] = code
            error = ERROR_TABLE[code]
            line = self.server.error(
                call, error("why", effect="done") if issubclass(error, DeviceError) else error("why")
            )
        self.to_client += line or b""

    @rule()
    def publish(self):
        seq = len(self.events_sent) + 1
        self.events_sent.append(seq)
        params = {"task_id": "t", "seq": seq, "phase": "progress", "ts": "T", "step_index": 0, "n": seq}
        self.to_client += dump_request(None, "task.event" if seq % 3 else "other.event", params)

    @precondition(lambda self: self.to_client)
    @rule(size=PIECE)
    def carry_to_client(self, size):
        piece, self.to_client = self.to_client[:size], self.to_client[size:]
        for event in self.client.receive(piece):
            match event:
                case Reply(id=id_):
                    assert id_ not in self.replies
                    self.replies[id_] = event
                case TaskEventNotification(event=value):
                    assert value.data == {"n": value.seq}
                    self.events_seen.append(value.seq)
                case Notification(params=params):
                    self.events_seen.append(params["seq"])
                case _:
                    raise AssertionError(event)

    @invariant()
    def both_count_alike(self):
        assert self.client.outstanding == set(self.expected) - set(self.replies)
        assert self.server.outstanding <= len(self.client.outstanding)
        assert self.events_seen == self.events_sent[: len(self.events_seen)]

    def teardown(self):
        while self.to_server:
            self.carry_to_server(100)
        while self.calls:
            self.answer(0, None)
        while self.to_client:
            self.carry_to_client(100)
        assert self.server.outstanding == 0
        assert self.client.outstanding == frozenset()
        assert self.executed == self.noted
        assert self.events_seen == self.events_sent
        assert set(self.replies) == set(self.expected)
        for id_, expected in self.expected.items():
            reply = self.replies[id_]
            if isinstance(expected, int):
                assert type(reply.error) is ERROR_TABLE[expected]
            else:
                assert reply.error is None
                assert reply.result == {**expected, "unknown": [1]}


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(
    deadline=None, max_examples=40, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_thousand_requests_in_one_burst_are_all_answered():
    client, server = ClientProtocol(), ServerProtocol()
    lines = [client.request("tool.list", {"n": number})[1] for number in range(1000)]
    calls = server.receive(b"".join(lines))
    assert server.outstanding == 1000
    answers = b"".join([server.result(call, call.params["n"]) for call in reversed(calls)])
    replies = client.receive(answers)
    assert sorted((reply.id, reply.result) for reply in replies) == [(number + 1, number) for number in range(1000)]


def test_what_the_client_sends_too_long_breaks_it_with_the_servers_reason():
    client, server = ClientProtocol(), ServerProtocol(max_document_bytes=100)
    _, data = client.request("task.submit", {"text": "x" * 100})
    refusal, _close = server.receive(data)
    (broken,) = client.receive(refusal.data)
    assert broken.error.error.data["max_document_bytes"] == 100
    assert "document too long" in str(broken.error)


def test_results_of_unusual_shape_survive_the_way():
    client, server = ClientProtocol(), ServerProtocol()
    for result in (
        None,
        0,
        "",
        [],
        {},
        {"a": {"b": [None, 1.5, -0.0, 2**64 - 1, "é\n"]}},
        orjson.Fragment(b"[1]"),
    ):
        _, data = client.request("tool.list", {})
        (call,) = server.receive(data)
        (reply,) = client.receive(server.result(call, result))
        assert reply.result == ([1] if isinstance(result, orjson.Fragment) else result)
