"""What an endpoint or a model may do wrong: a clear sentence, nothing moved, the transcript kept."""

import json
import socket
import time

import pytest
from support.model_server import Cut, Silent, Status, calls, proposes, reads, says

pytestmark = pytest.mark.slow

LIGHT = ("gpio.set", {"line": "LED", "value": 1})
MANY = [("gpio.set", {"line": "LED", "value": index % 2}) for index in range(10_000)]
MORE = [("gpio.get", {"line": "LED"})] * 300
GARBAGE = b"event: message_start\ndata: {not json\n\n"
BINARY = bytes(range(256)) * 20
NUMBER = b"data: 5\n\ndata: [DONE]\n\n"
WRONG = b'data: {"choices": [{"delta": {"tool_calls": "x"}}]}\n\ndata: [DONE]\n\n'
ODD = b'event: content_block_start\ndata: {"type": "content_block_start", "index": "a", "content_block": 5}\n\n'


@pytest.fixture
def refuses(asks, daemon, tmp_path):
    """Ask with this script: it fails with these words, nothing runs, and the transcript says why."""

    def check(script, said, *, ended="error"):
        path = tmp_path / "t.jsonl"
        before = len(daemon.records(event="task.step.start"))
        answer = asks("--yes-up-to", "3", "--transcript", path, "light the LED", script=script)
        assert answer.code == 1, answer
        assert said in answer.err
        assert "nothing was run" in answer.err
        assert len(answer.err.splitlines()) < 30
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["kind"] for line in lines if line["kind"] in ("error", "end")] == [ended, "end"]
        assert not [line for line in lines if line["kind"] in ("task", "decision")]
        done = daemon.records(event="task.step.start")[before:]
        assert not [one for one in done if one["tool"] == "gpio.set"]
        return lines

    return check


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (Status(500, "out of memory"), "refused with HTTP 500"),
        (Status(401, "who are you"), "refused with HTTP 401"),
        (Status(404, "no such model"), "refused with HTTP 404"),
        (Cut(), "stopped in the middle"),
        (b"", "stopped in the middle"),
        (GARBAGE, "is not of its API"),
        (BINARY, "the model"),
        ({**says("Half a sen"), "reason": "length"}, "was cut at 4096 tokens"),
        ({**says("x" * 70_000), "chunk": 5000}, "wrote more than 65536 characters"),
        (calls(("propose_plan", "x" * 300_000)), "more than 262144 characters of steps"),
        (calls(*[("read", {"tool": "gpio.get"})] * 17), "more than 16 calls"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_endpoint_that_fails_is_told_in_a_sentence(refuses, entry, said):
    refuses([entry], said)


@pytest.mark.parametrize("entry", [NUMBER, WRONG, ODD], ids=["number", "wrong", "odd"])
def test_json_of_another_shape_is_told_in_a_sentence(refuses, entry):
    refuses([entry], "the model")


def test_an_endpoint_that_is_down_is_named(asks, refuses):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        asks.config.write_text(asks.config.read_text().replace("base_url", f'base_url = "http://127.0.0.1:{port}"\n#'))
        refuses([], f"the model at http://127.0.0.1:{port} failed: ")


def test_an_endpoint_that_is_silent_is_given_up(asks, refuses):
    asks.config.write_text(asks.config.read_text().replace("timeout_s = 20", "timeout_s = 0.3"))
    refuses([Silent()], "0.3 s")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (calls(("gpio.set", {"line": "LED", "value": 1})), "called 'gpio.set', which it does not have"),
        (calls(("propose_plam", {})), "did you mean propose_plan?"),
        (calls(("propose_plan", "{not json")), "are no JSON object"),
        (calls(("propose_plan", "[1]")), "are no JSON object"),
        (calls(("propose_plan", {"intent": "x"})), "a plan has steps"),
        (calls(("propose_plan", {"intent": "x", "steps": []})), "a plan has steps"),
        (calls(("propose_plan", {"intent": "x", "steps": ["gpio.set"]})), "step 0: expected an object"),
        (calls(("read", {"args": {}})), "read takes tool"),
        (reads("gpio.got", line="LED"), "did you mean gpio.get"),
        (reads("gpio.get", lime="LED"), "lime"),
        (proposes("x", ("gpio.set", {"line": "LED"})), "value"),
        (proposes("x", ("gpio.set", {"line": "NOWHERE", "value": 1})), "NOWHERE"),
        (proposes("x", ("file.delete", {"path": "/etc/passwd"})), "file.delete"),
        (proposes("x", *MORE), "at most 256 steps"),
        (proposes("x", LIGHT, ("gpio.set", {"line": "LED", "value": 7})), "value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_that_calls_wrongly_is_told_so_and_given_up_after_three_times(refuses, entry, said):
    lines = refuses([entry] * 3, "was refused 3 times in a row")
    refused = [line["reason"] for line in lines if line["kind"] == "refused"]
    assert len(refused) == 3
    assert said in refused[0]


def test_ten_thousand_steps_are_too_long_for_a_turn(refuses):
    refuses([proposes("x", *MANY)], "more than 262144 characters of steps")


def test_a_model_that_never_ends_is_given_up(asks, model, tmp_path):
    path = tmp_path / "t.jsonl"
    answer = asks("--transcript", path, "look", script=[reads("gpio.get", line="LED")] * 40)
    assert answer.code == 1
    assert "made 24 turns without an end" in answer.err
    assert len(model.requests) == 24


def test_a_mistake_that_the_model_corrects_is_no_fault(asks, tmp_path):
    script = [reads("gpio.got"), reads("gpio.get", line="LED"), calls(("nothing", "")), says("It is off.")]
    answer = asks("look", script=script)
    assert answer.code == 0
    assert "It is off." in answer.out


def test_what_comes_back_is_cut(asks, model, daemon):
    (daemon.shared / "long").write_text("x" * 60_000)
    answer = asks("read", script=[reads("file.read", path=str(daemon.shared / "long")), says("Long.")])
    assert answer.code == 0
    last = json.dumps(model.requests[-1][2]["messages"][-1])
    assert len(last) < 20_000
    assert "(cut: " in last


def test_a_slow_model_does_not_cost_the_session(cli, model, own_daemon, monkeypatch, tmp_path):
    daemon = own_daemon("[limits]\nidle_ttl_s = 1\n")
    config = tmp_path / "ask.toml"
    config.write_text(f'[ask]\nbase_url = "{model.openai}"\nmodel = "small"\n')
    monkeypatch.setattr("hearth.cli.asking.KEEP_ALIVE", 0.2)

    def slow(_body):
        time.sleep(2.5)  # more than the daemon lets an idle session live
        return reads("gpio.get", line="LED")

    model.script[:] = [slow, says("At last.")]
    answer = cli("--socket", daemon.socket, "ask", "--config", config, "take your time")
    assert answer.code == 0
    assert "At last." in answer.out
    assert not [one for one in daemon.records(event="session.close") if "idle" in one["reason"]]
