"""`hearth mcp` as a process: the official client over it in both eras, its streams, its end, and the daemon's."""

from __future__ import annotations

import base64
import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import mcp_types as types
import pytest
import trio
import trio.testing
from mcp.shared.message import SessionMessage
from support.hearthd import BOUND, Hearthd, eventually
from support.mcp import ERAS, RawMcp, impatient, stdio_mcp_client, text_of

from hearth.actors.bridges.mcp import stdio
from hearth.actors.bridges.mcp.stdio import (
    MOST_LINE,
    DaemonConnection,
    Incoming,
    Outgoing,
    lines,
    serve,
)
from hearth.cli.mcp_bridge import state_directory
from hearth.errors import CarrierError
from hearth.mcp.names import META_ERROR, PLAN

both_eras = pytest.mark.parametrize("mode", ERAS)

SLOW_BOARD = """\
name = "slow"
description = "An I2C bus slow enough to be cancelled on"

[[gpio]]
label = "sim"
driver = "sim"
names = ["GPIO0", "GPIO1", "GPIO17", "GPIO27"]
wires = [["GPIO17", "GPIO27"]]

[gpio.lines.GPIO17]
safe = 0

[[i2c]]
bus = 1
driver = "sim"
speed_hz = 1_000

[[i2c.device]]
addr = 0x50
kind = "24c02"
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mcp")
    (directory / "board.toml").write_text(SLOW_BOARD)
    hearthd = Hearthd(directory, f'[board]\nprofile = "{directory}/board.toml"\n').start()
    yield hearthd
    hearthd.end()


@pytest.fixture(scope="module")
def bridges(daemon):
    """Bridges that are started beforehand, side by side: importing the SDK takes each a second."""
    env = {**os.environ, "XDG_STATE_HOME": str(daemon.directory)}
    with ExitStack() as stack:
        yield [stack.enter_context(RawMcp(f"unix:{daemon.socket}", env=env)) for _ in range(4)]


@pytest.fixture
def raw(bridges):
    return bridges.pop()


def level(daemon, line):
    peer = daemon.peer()
    session = peer.open()
    value = peer.run(session, "gpio.get", line=line)["result"]["value"]
    peer.call("session.close", {"session_id": session})
    return value


# --- the official client --------------------------------------------------------------------------------------------


PAGE, PAGES = 8, 8
"""The EEPROM's page, and how many are written: each takes 90 ms on this bus."""


@pytest.mark.proof
@both_eras
async def test_the_official_client_uses_the_board_over_a_real_bridge(daemon, bridges, mode, tmp_path):
    command = impatient(f"unix:{daemon.socket}", tmp_path, 0.1)
    with trio.fail_after(BOUND):
        async with stdio_mcp_client(None, mode, command=command) as client:
            await tools_are_listed_called_and_planned(daemon, client)
            await a_slow_task_is_heard_of_while_it_lives(client)
            await pages_that_are_being_written_when_a_plan_is_cancelled_stay_whole(daemon, client, mode)
    eventually(lambda: level(daemon, "GPIO27") == 0, "the line's safe state")


async def tools_are_listed_called_and_planned(daemon, client):
    await client.call_tool("hacp_search", {"query": "gpio"})
    tools = {tool.name: tool for tool in (await client.list_tools(cache_mode="bypass")).tools}
    assert tools["signal_read"].annotations.read_only_hint is True
    assert tools["gpio_get"].annotations.read_only_hint is True
    assert tools["gpio_set"].annotations.destructive_hint is False
    assert tools["gpio_set"].title == "gpio.set"
    assert all(tool.output_schema for tool in tools.values() if tool.name.startswith(("gpio", "signal", "hacp_plan")))
    done = await client.call_tool("gpio_set", {"line": "GPIO17", "value": 1})
    assert done.structured_content["value"] == 1
    assert level(daemon, "GPIO27") == 1, "it is wired to GPIO17"
    failed = await client.call_tool("i2c_read", {"bus": 1, "addr": "0x21", "len": 1})
    assert failed.is_error
    assert failed.meta[META_ERROR]["effect"] == "none"
    assert "Nothing has happened" in text_of(failed)
    plan = {"intent": "look", "steps": [{"tool": "gpio.get", "args": {"line": "GPIO27"}}, {"tool": "hw_board"}]}
    planned = await client.call_tool(PLAN, plan)
    assert planned.structured_content["steps"][0]["result"]["value"] == 1


async def a_slow_task_is_heard_of_while_it_lives(client):
    heard = []

    async def hear(progress, total, message):
        heard.append((progress, total, message))

    watch = {"line": "GPIO0", "edge": "both", "count": 1, "timeout_ms": 600}
    result = await client.call_tool("gpio_watch", watch, progress_callback=hear)
    assert not result.is_error
    assert len(heard) >= 3, "each 0.1 s, of 0.6 s, on a machine that may be busy"
    values = [progress for progress, _, _ in heard]
    assert values == sorted(set(values))
    assert "gpio.watch: still running" in heard[-1][2]


async def pages_that_are_being_written_when_a_plan_is_cancelled_stay_whole(daemon, client, mode):
    start = 0x40 if mode == "legacy" else 0x80
    pages = [bytes([n + 1] * PAGE) for n in range(PAGES)]
    write = [
        {"tool": "i2c_write", "args": {"bus": 1, "addr": "0x50", "reg": start + n * PAGE, "data": _base64(page)}}
        for n, page in enumerate(pages)
    ]
    on_the_wire = trio.Event()
    begun = 0

    async def hear(_progress, _total, message):
        nonlocal begun
        begun += message.endswith("begins")
        if begun == 2:
            on_the_wire.set()

    async def call():
        await client.call_tool(PLAN, {"intent": "write", "steps": write}, progress_callback=hear)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await on_the_wire.wait()
        nursery.cancel_scope.cancel()
    read = {"bus": 1, "addr": "0x50", "reg": start, "len": PAGES * PAGE}
    held = base64.b64decode((await client.call_tool("i2c_read", read)).structured_content["data"])
    finish = daemon.records(event="task.finish", status="CANCELLED")[-1]
    steps = daemon.records(event="task.step.finish", task_id=finish["task_id"])
    assert finish["reason"] == "cancelled"
    written = [step for step in steps if step["status"] == "SUCCESS"]
    assert 0 < len(written) < PAGES
    # A step begins a moment before its transaction: cancelled in between, it has written nothing. Others are whole.
    assert [step["status"] for step in steps[len(written) :]] in ([], ["CANCELLED"])
    assert held == b"".join(pages[: len(written)]) + b"\xff" * PAGE * (PAGES - len(written)), (
        "each is whole, or untouched"
    )


def _base64(data):
    return base64.b64encode(data).decode()


# --- the end --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_is_no_message_is_answered_and_the_end_of_stdin_ends_it_at_once_and_safely(daemon, raw):
    raw.initialize()
    for sent, id_, code in (
        (b"{", None, -32700),
        (b"\xff\xfe", None, -32700),
        (b"[]", None, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
        (b"7", None, -32600),
        (b"x" * (MOST_LINE + 1), None, -32600),
        (b'{"jsonrpc":"2.0","id":"mine","params":{}}', "mine", -32600),
    ):
        raw.send(sent)
        said = raw.line()
        assert (said["id"], said["error"]["code"]) == (id_, code), sent[:20]
    raw.send(b"  \n\r")
    assert raw.call("ping")["result"] == {}
    raw.tool("gpio_set", line="GPIO17", value=1)
    assert level(daemon, "GPIO27") == 1
    raw.start(
        "tools/call", {"name": "gpio_watch", "arguments": {"line": "GPIO0", "edge": "both", "timeout_ms": 600_000}}
    )
    # The wait for the end is bounded: it does not wait for the edge.
    assert raw.end() == (0, "")
    assert level(daemon, "GPIO27") == 0


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_and_makes_its_lines_safe(daemon, raw):
    raw.initialize()
    raw.tool("gpio_set", line="GPIO17", value=1)
    raw.process.send_signal(signal.SIGINT)
    assert raw.wait() == (128 + signal.SIGINT, "")
    assert level(daemon, "GPIO27") == 0


@pytest.mark.slow
def test_a_bridge_that_is_killed_leaves_no_session_and_no_driven_line(daemon, raw):
    raw.initialize()
    opened = len(daemon.records(event="session.close"))
    raw.tool("gpio_set", line="GPIO17", value=1)
    raw.process.kill()
    eventually(lambda: level(daemon, "GPIO27") == 0, "the line's safe state")
    reasons = [record["reason"] for record in daemon.records(event="session.close")[opened:]]
    assert "its client disconnected" in reasons


@pytest.mark.slow
def test_it_ends_when_its_answers_are_not_read(raw):
    raw.initialize()
    raw.process.stdout.close()
    raw.start("tools/list")
    code, said = raw.wait()
    assert code == 128 + signal.SIGPIPE
    assert "Traceback" not in said


# --- the daemon -----------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_a_daemon_that_is_not_there_is_told_in_a_line_and_with_the_exit_code_of_the_cli(tmp_path):
    with RawMcp(f"unix:{tmp_path}/nobody.sock") as bridge:
        code, said = bridge.wait()
    assert code == 3
    assert said.startswith("hearth: ")
    assert str(tmp_path) in said
    assert "Traceback" not in said


@pytest.mark.proof
def test_a_daemon_that_ends_and_is_started_again_costs_one_answer_and_is_told(tmp_path):
    hearthd = Hearthd(tmp_path).start()
    try:
        with RawMcp(f"unix:{hearthd.socket}") as bridge:
            bridge.initialize()
            bridge.tool("gpio_set", line=17, value=1)
            hearthd.kill()
            lost = bridge.tool("gpio_set", line=17, value=1)["result"]
            assert lost["isError"] is True
            assert "not known" in lost["content"][0]["text"]
            gone = bridge.tool("gpio_get", line=17)["result"]
            assert gone["isError"] is True
            assert "Nothing has happened" in gone["content"][0]["text"]
            hearthd.start()
            back = bridge.tool("gpio_get", line=17)["result"]
            assert back["structuredContent"]["value"] == 0
            bridge.process.terminate()
            code, said = bridge.wait()
    finally:
        hearthd.end()
    assert code == 128 + signal.SIGTERM
    assert "connecting again" in said
    assert "Traceback" not in said


# --- in this process ------------------------------------------------------------------------------------------------


class Pieces:
    """A stream that gives what it was given, piece by piece, and ends."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    async def receive_some(self, _most=None):
        await trio.lowlevel.checkpoint()
        return self._pieces.pop(0) if self._pieces else b""


async def read(*pieces):
    return [line async for line in lines(Pieces(*pieces))]


async def test_lines_are_put_together_and_blank_ones_left_out():
    assert await read(b"a", b"b\n\n  \nc", b"d\r\n", b"e") == [b"ab", b"cd\r", b"e"]
    assert await read(b"a\n", b"   ") == [b"a"]


async def test_lines_come_from_a_file_a_pipe_or_a_terminal_that_goes_away(tmp_path):
    (tmp_path / "said").write_bytes(b"a\nb\n")
    with trio.fail_after(BOUND):
        async with trio.lowlevel.FdStream(os.open(tmp_path / "said", os.O_RDONLY)) as file:
            assert [line async for line in lines(file)] == [b"a", b"b"]
        reading, writing = os.pipe()
        async with trio.lowlevel.FdStream(reading) as stream, trio.open_nursery() as nursery:
            got = []

            async def read():
                got.extend([line async for line in lines(stream)])

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            os.write(writing, b"c\n")
            os.close(writing)
        assert got == [b"c"]
        ours, terminal = os.openpty()
        os.close(ours)
        async with trio.lowlevel.FdStream(terminal) as stream:
            assert [line async for line in lines(stream)] == []


async def test_a_line_without_end_is_refused_once_and_passed_over():
    too_long = b"x" * (MOST_LINE + 1)
    assert await read(too_long, b"more", b"y\nnext\n") == [None, b"next"]
    assert await read(too_long + b"\nnext\n") == [None, b"next"]
    assert await read(too_long, b"the end") == [None]
    assert await read(b"x" * MOST_LINE + b"\n") == [b"x" * MOST_LINE]


async def taken(*documents, revision="2025-11-25"):
    """The methods that reach the SDK, and the errors that are answered before it: (id, code)."""
    near, far = trio.testing.memory_stream_pair()
    outgoing = Outgoing(far, trio.CancelScope())
    outgoing.revision = revision
    for document in documents:
        await near.send_all(document + b"\n")
    await near.send_eof()
    reached = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.run)
        reached += [item.message.method async for item in Incoming(far, outgoing)]
        await outgoing.aclose()
    await far.aclose()
    answers = [json.loads(line) async for line in lines(near)]
    return reached, [(answer["id"], answer["error"]["code"]) for answer in answers]


PING = b'{"jsonrpc":"2.0","id":%b,"method":"ping"}'


@pytest.mark.parametrize(
    ("line", "known", "code"),
    [
        (b'{"id":true}', None, -32600),
        (b'{"id":4.5}', None, -32600),
        (b'{"id":"a"}', "a", -32600),
        (b'{"id":7}', 7, -32600),
        (b"nonsense", None, -32700),
        *[
            (PING % id_, None, -32600)
            for id_ in (b"1.0", b"null", b"1.5", b"true", b"[1]", b"{}", b"18446744073709551616")
        ],
        (b'{"jsonrpc":"2.0","id":3,"method":"ping","method":"tools/list"}', 3, -32600),
        (b'{"jsonrpc":"2.0","method":"ping","params":{"a":{"b":1,"b":1}},"id":3}', 3, -32600),
        (b"[" + PING % b"1" + b"]", None, -32600),
        (b"[]", None, -32600),
    ],
)
async def test_a_faulty_request_is_answered_with_its_id_where_that_is_known_and_is_never_run(line, known, code):
    """JSON-RPC 2.0 §4, §5.1: what has an id is no notification; MCP: the id is a string or an integer, and not null."""
    assert await taken(line, PING % b"9") == (["ping"], [(known, code)])


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
async def test_batches_are_received_in_the_revisions_that_have_them(revision):
    """MCP 2025-03-26, Basic, Batching: implementations MUST support receiving JSON-RPC batches."""
    note = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}'
    got = await taken(b"[%b,%b]" % (PING % b"1", note), revision=revision)
    assert got == (["ping", "notifications/cancelled"], [])
    # A fault in one of them is answered for it alone; what is no batch of messages, for all.
    got = await taken(b'[%b,5,[%b],{"id":7}]' % (PING % b"1", PING % b"2"), revision=revision)
    assert got == (["ping"], [(None, -32600), (None, -32600), (7, -32600)])
    first = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}'
    for whole in (b"[]", b"[" + b",".join([PING % b"1"] * 65) + b"]", b"[%b]" % first, b"[%b]" % (PING % b"null")):
        assert await taken(whole, revision=revision) == ([], [(None, -32600)])


@pytest.mark.parametrize(
    ("named", "where"),
    [("/var/x", "/var/x/hearth"), ("", "~/.local/state/hearth"), ("relative", "~/.local/state/hearth")],
)
def test_what_a_bridge_keeps_lies_in_the_users_state_directory(named, where):
    assert state_directory({"XDG_STATE_HOME": named}) == Path(where).expanduser()


class Unreachable:
    """A connection that has ended."""

    def open_session(self, **_named):
        raise CarrierError("the connection ended before it was used")


async def test_a_daemon_that_cannot_be_reached_again_is_told_as_that(tmp_path):
    from hearth.transport.address import parse

    daemon = DaemonConnection(parse(f"unix:{tmp_path}/nobody.sock"))
    with pytest.raises(CarrierError, match=r"nobody\.sock"):
        async with daemon.open_session():
            raise AssertionError("nobody is there")


def pipe():
    """Both ends of a kernel pipe, the writing one as a stream that does not block."""
    reading, writing = os.pipe()
    return reading, trio.lowlevel.FdStream(writing)


def message(text):
    return SessionMessage(types.JSONRPCNotification(jsonrpc="2.0", method=text))


def documents(data):
    return [json.loads(line)["method"] for line in data.splitlines()]


async def all_of(reading):
    """What comes until the other end is closed."""
    async with trio.lowlevel.FdStream(reading) as stream:
        return b"".join([part async for part in stream])


async def test_messages_that_a_pipe_does_not_take_at_once_are_written_whole_and_in_order():
    long, short = "x" * 300_000, "y" * 10
    reading, stdout = pipe()
    got = []
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            outgoing = Outgoing(stdout, nursery.cancel_scope)

            async def say(text):
                await outgoing.send(message(text))

            async with trio.open_nursery() as talkers:
                talkers.start_soon(say, long)
                await trio.testing.wait_all_tasks_blocked()
                talkers.start_soon(say, short)
                await trio.testing.wait_all_tasks_blocked()
                # Whoever gives up has begun to speak all the same.
                talkers.cancel_scope.cancel()
            nursery.start_soon(outgoing.run)

            async def read():
                got.append(await all_of(reading))

            nursery.start_soon(read)
            await outgoing.send(message("z"))
            await outgoing.aclose()
            await outgoing.written.wait()
            await stdout.aclose()
    assert documents(got[0]) == [long, short, "z"]
    assert not outgoing.broken


async def test_a_client_that_does_not_read_is_given_up(monkeypatch):
    monkeypatch.setattr(stdio, "MOST_WAITING", 1 << 20)
    reading, stdout = pipe()
    with trio.fail_after(BOUND):
        async with trio.open_nursery() as nursery:
            outgoing = Outgoing(stdout, nursery.cancel_scope)
            nursery.start_soon(outgoing.run)
            for _ in range(3):
                nursery.start_soon(outgoing.send, message("x" * 500_000))
        assert outgoing.broken
        with pytest.raises(anyio.BrokenResourceError):
            await outgoing.send(message("more"))
    os.close(reading)
    await stdout.aclose()


async def test_a_closed_stdout_is_noticed_by_the_next_message():
    reading, stdout = pipe()
    os.close(reading)
    with trio.CancelScope() as scope:
        outgoing = Outgoing(stdout, scope)
        with pytest.raises(anyio.BrokenResourceError):
            await outgoing.send(message("x"))
    assert outgoing.broken
    assert scope.cancel_called
    await stdout.aclose()


async def test_a_message_of_too_many_values_is_refused_before_it_is_parsed(monkeypatch):
    monkeypatch.setattr(stdio.types, "jsonrpc_message_adapter", None)
    said = []

    class Said:
        async def send(self, item):
            said.append(item.message.error)

    streams = trio.testing.memory_stream_one_way_pair()
    zeros = b",".join([b"0"] * 20_001)
    await streams[0].send_all(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"x":[%s]}}\n' % zeros)
    await streams[0].aclose()
    with trio.fail_after(BOUND), pytest.raises(anyio.EndOfStream):
        await Incoming(streams[1], Said()).receive()
    assert [error.code for error in said] == [-32600]
    assert "20000 values" in said[0].message


async def test_what_comes_can_be_read_one_by_one_to_its_end():
    with trio.CancelScope() as scope:
        incoming = Incoming(
            Pieces(b'{"jsonrpc":"2.0","method":"a"}\n'), Outgoing(trio.testing.MemorySendStream(), scope)
        )
        assert (await incoming.receive()).message.method == "a"
        with pytest.raises(anyio.EndOfStream):
            await incoming.receive()


@pytest.mark.slow
async def test_a_reader_who_has_gone_ends_the_serving():
    class Broken:
        async def send_all(self, _data):
            await trio.lowlevel.checkpoint()
            raise trio.BrokenResourceError

    class Endless:
        async def receive_some(self, _most=None):
            if self.said:
                await trio.sleep_forever()
            self.said = True
            await trio.lowlevel.checkpoint()
            return b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'

        said = False

    with trio.fail_after(BOUND), pytest.raises(BrokenPipeError):
        await serve(Unreachable(), Endless(), Broken(), [])
