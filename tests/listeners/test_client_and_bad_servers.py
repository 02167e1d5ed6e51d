"""The client against servers that misbehave: whatever they do, callers get an error or an answer, and never hang."""

from __future__ import annotations

import json
import socket
from contextlib import aclosing, asynccontextmanager
from urllib.parse import urlencode

import pytest
import trio
import trio.testing
import trio_websocket
from support.carriers import MessageStream
from support.steps import within_real_seconds
from support.waiting import passes

import hearth
from hearth import CarrierError, RpcError
from hearth.errors import QueueFull, SessionInvalid
from hearth.protocol.client import ProtocolViolation

pytestmark = pytest.mark.slow

PATIENCE = 60
SESSION, TASK = "S1", "T1"
FLAGS = ["CAP_GPIO_RW", "CAP_STREAMING_TASK_EVENTS", "CAP_FUTURE"]
OPENED = {"session_id": SESSION, "capabilities": FLAGS, "protocol_version": "0.7.0", "news": 1}


@pytest.fixture(autouse=True)
def bounded():
    """Break a test off that hangs. An async fixture that no test names ends before the test begins."""
    with within_real_seconds(60):
        yield


class Server:
    """Answers by a script: for each method what `answers` gives, or what its function returns."""

    def __init__(self, stream):
        self.stream = stream
        self.asked = []
        self.answers = {
            "session.open": OPENED,
            "session.close": {"ok": True},
            "task.submit": {"task_id": TASK, "status": "QUEUED"},
            "task.get": {"task_id": TASK, "status": "SUCCESS", "intent": "x", "steps": []},
            "task.events.subscribe": {"ok": True},
        }

    def params_of(self, method):
        return [request.get("params") for request in self.asked if request["method"] == method]

    async def say(self, document):
        await self.stream.send_all(document if isinstance(document, bytes) else json.dumps(document).encode() + b"\n")

    async def event(self, **members):
        await self.say({"jsonrpc": "2.0", "method": "task.event", "params": {"task_id": TASK, "ts": "", **members}})

    async def finish(self, seq=1):
        await self.event(phase="task_finish", seq=seq, status="SUCCESS")

    async def run(self):
        rest = b""
        try:
            while data := await self.stream.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    self.asked.append(request)
                    if "id" in request:
                        await self._answer(request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _answer(self, request):
        answer = self.answers.get(request["method"], {})
        if callable(answer):
            answer = await answer(request)
        if answer is None:
            return
        kind = "error" if isinstance(answer, dict) and "code" in answer else "result"
        await self.say({"jsonrpc": "2.0", "id": request["id"], kind: answer})


async def greeted(accepted, kind, papers, nursery):
    """The server's stream of lines on a connection that it has accepted."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
    if kind == "tls":
        stream = trio.SSLStream(stream, papers.server_context(client_ca=papers.ca), server_side=True)
        await stream.do_handshake()
    if kind == "ws":
        request = await trio_websocket.wrap_server_stream(nursery, stream)
        stream = MessageStream(await request.accept(subprotocol="hacp.v0"))
    return stream


def listening_as(kind, tmp_path, papers):
    """A listening socket, and the address that leads to it."""
    if kind == "unix":
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "fake.sock"))
        return listening, f"unix:{tmp_path / 'fake.sock'}"
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    host, port = listening.getsockname()
    files = {"ca": papers.ca, "cert": papers.client_cert, "key": papers.client_key} if kind == "tls" else {}
    return listening, f"{kind}://{host}:{port}?{urlencode(files)}"


@pytest.fixture(params=["unix", "tls", "ws"])
async def fake(request, tmp_path, papers, monkeypatch):
    """`async with fake() as (client, server)`, over a carrier of each kind."""
    kind = request.param
    monkeypatch.delenv("HEARTH_TOKEN", raising=False)

    @asynccontextmanager
    async def make():
        listening, address = listening_as(kind, tmp_path, papers)
        with listening:
            listening.listen()
            listening.setblocking(False)
            async with trio.open_nursery() as nursery:
                servers, to_servers = trio.open_memory_channel(1)

                async def accept():
                    await trio.lowlevel.wait_readable(listening)
                    servers.send_nowait(Server(await greeted(listening.accept()[0], kind, papers, nursery)))

                nursery.start_soon(accept)
                async with hearth.connect(address) as client:
                    server = await to_servers.receive()
                    nursery.start_soon(server.run)
                    try:
                        yield client, server
                    finally:
                        await trio.aclose_forcefully(server.stream)
                        nursery.cancel_scope.cancel()

    return make


async def never(_request):
    """The answer that does not come."""


# --- what is not the protocol ---------------------------------------------------------------------------------------

GARBAGE = {
    "words": b"I am not a server\n",
    "half a document": b'{"jsonrpc":"2.0","id":1,\n',
    "invalid UTF-8": b'{"jsonrpc":"2.0","id":1,"result":"\xff"}\n',
    "a number": b"7\n",
    "an empty batch": b"[]\n",
    "no jsonrpc": b'{"id":1,"result":{}}\n',
    "neither result nor error": b'{"jsonrpc":"2.0","id":1}\n',
    "both result and error": b'{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":-1,"message":""}}\n',
    "an error that is none": b'{"jsonrpc":"2.0","id":1,"error":"no"}\n',
    "an id that nobody used": b'{"jsonrpc":"2.0","id":99,"result":{}}\n',
    "an id of another type": b'{"jsonrpc":"2.0","id":"1","result":{}}\n',
    "a request": b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{}}\n',
    "an event without a task": b'{"jsonrpc":"2.0","method":"task.event","params":{"phase":"start"}}\n',
    "an event that is no object": b'{"jsonrpc":"2.0","method":"task.event","params":7}\n',
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_ends_the_connection_for_everybody_who_waits(fake, said: bytes) -> None:
    async with fake() as (client, server):

        async def garbage(_request):
            await server.say(said)

        server.answers["session.open"] = garbage
        errors = []

        async def call():
            with pytest.raises(CarrierError) as caught:
                await client.call("session.open", {})
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(call)
        assert len(errors) == 3
        with pytest.raises(CarrierError):
            await client.call("tool.list", {"session_id": SESSION})


@pytest.mark.parametrize("result", [None, 7, "x", [], True, [{}]], ids=repr)
@pytest.mark.parametrize("method", ["session.open", "task.submit", "task.get", "tool.list", "task.cancel"])
async def test_a_result_of_another_kind_is_a_violation_and_no_type_error(fake, method: str, result) -> None:
    async with fake() as (client, server):
        if result is None:

            async def null(request):
                await server.say({"jsonrpc": "2.0", "id": request["id"], "result": None})

            server.answers[method] = null
        else:
            server.answers[method] = result
        with pytest.raises(ProtocolViolation):
            await use(client, method)


async def use(client, method):
    """Come to call the method."""
    session = client.attach(SESSION)
    if method == "session.open":
        async with client.open_session():
            pass
    elif method == "task.submit":
        await session.submit("x", [])
    elif method == "tool.list":
        await session.tools()
    elif method == "task.get":
        await session.task(TASK)
    else:
        task = await session.task(TASK)
        await task.cancel()


@pytest.mark.parametrize("method", ["session.open", "task.submit", "task.get", "tool.list", "task.cancel"])
async def test_a_result_that_lacks_what_it_must_have_is_a_violation_that_names_it(fake, method: str) -> None:
    async with fake() as (client, server):
        server.answers[method] = {"something": "else"}
        with pytest.raises(ProtocolViolation):
            await use(client, method)


async def test_an_answer_without_end_is_not_kept_in_memory(fake) -> None:
    async with fake() as (client, server):

        async def endless(_request):
            # More than the longest line that is taken; the connection ends in the middle of it.
            if isinstance(server.stream, MessageStream):
                await server.say(b"x" * (70 << 20))
            else:
                for _ in range(70):
                    await server.say(b"x" * (1 << 20))

        server.answers["session.open"] = endless
        with pytest.raises(CarrierError, match=r"without end|a message of more than"):
            await client.call("session.open", {})


# --- a server that goes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", b'{"jsonrpc":"2.0",', b'{"jsonrpc":"2.0","id":1,"result":{"session_id":"S'])
async def test_a_server_that_closes_in_the_middle_of_an_answer_is_a_carrier_error(fake, said: bytes) -> None:
    async with fake() as (client, server):

        async def close(_request):
            await server.say(said)
            await server.stream.aclose()

        server.answers["session.open"] = close
        with pytest.raises(CarrierError, match=r"session\.open"):
            await client.call("session.open", {})
        with pytest.raises(CarrierError):
            await client.call("session.open", {})


async def test_a_connection_that_breaks_tells_every_caller_and_every_follower(fake) -> None:
    async with fake() as (client, server):
        server.answers["task.get"] = server.answers["tool.list"] = never
        session = client.attach(SESSION)
        task = await session.submit("x", [])
        told = []

        async def expect(call):
            with pytest.raises(CarrierError):
                await call()
            told.append(call)

        async def follow():
            async with aclosing(task.events()) as events:
                async for _event in events:
                    pass

        calls = [task.get, session.tools, follow, follow, task.wait, lambda: session.run("gpio.get", line=4)]
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(expect, call)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await server.stream.aclose()
        assert len(told) == len(calls)


async def test_an_exception_of_the_body_is_not_lost_when_the_connection_is_left_in_a_cancelled_scope(fake) -> None:
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with fake():
            raise ZeroDivisionError


async def test_leaving_a_session_whose_server_has_gone_raises_nothing_new(fake) -> None:
    class Mine(Exception):
        pass

    async with fake() as (client, server):
        with pytest.raises(Mine):  # noqa: PT012  what it comes through is the point
            async with client.open_session():
                await server.stream.aclose()
                raise Mine


@pytest.mark.slow
async def test_a_server_that_never_answers_does_not_keep_a_cancelled_client(fake, monkeypatch) -> None:
    monkeypatch.setattr("hearth.client.connection.ANSWER_TIMEOUT", 0.2)
    async with fake() as (client, server):
        server.answers["session.close"] = never
        begun = trio.current_time()
        with trio.move_on_after(0.1):
            async with client.open_session():
                await trio.sleep_forever()
        assert trio.current_time() - begun < 15


async def test_why_a_connection_was_turned_away_is_what_its_caller_gets(tmp_path) -> None:
    path = tmp_path / "full.sock"
    refusal = {"code": -32005, "message": "Queue full: 3 connections are open", "data": {"max_connections": 3}}
    for late in (False, True) * 5:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            with pytest.raises(QueueFull, match="3 connections are open"):  # noqa: PT012  where it is raised is open
                async with hearth.connect(path) as client:
                    accepted, _ = listening.accept()
                    accepted.sendall(json.dumps({"jsonrpc": "2.0", "id": None, "error": refusal}).encode() + b"\n")
                    if late:
                        # The client's first request meets a connection that is closed already.
                        accepted.close()
                    with accepted:
                        async with client.open_session():
                            pass
        path.unlink()


async def test_lines_that_the_kernel_does_not_take_at_once_arrive_whole_and_in_their_order(fake) -> None:
    async with fake() as (client, server):
        lengths = [900_000, 10, 500_000, 20, 30]
        for number, length in enumerate(lengths):
            client.notify("note", {"number": number, "text": "x" * length})
        assert await client.call("last", {}) == {}
        seen = [(params["number"], len(params["text"])) for params in server.params_of("note")]
        assert seen == list(enumerate(lengths))


async def test_a_call_on_a_stream_that_was_closed_here_is_a_carrier_error(fake) -> None:
    async with fake() as (client, _server):
        await client._stream.aclose()
        with pytest.raises(CarrierError):
            await client.call("tool.list", {})


# --- results by events ----------------------------------------------------------------------------------------------

FINISH = {"phase": "finish", "seq": 1, "step_index": 0, "tool": "gpio.get", "status": "SUCCESS", "result": {"value": 1}}
SAID = {"task_id": TASK, "status": "SUCCESS", "steps": [{"tool": "gpio.get", "status": "SUCCESS", "result": {"n": 2}}]}


@pytest.mark.parametrize(
    ("more", "result", "asked"),
    [
        ({}, {"value": 1}, 0),
        ({"tool": "gpio.set"}, {"n": 2}, 1),
        ({"step_index": 1}, {"n": 2}, 1),
        ({"step_index": None}, {"n": 2}, 1),
        ({"status": None}, {"n": 2}, 1),
        ({"status": "DONE"}, {"n": 2}, 1),
        ({"result": None}, {}, 0),
        ({"result": 7}, ProtocolViolation, 0),
    ],
    ids=repr,
)
async def test_a_result_is_what_its_events_say_or_what_task_get_says(fake, more, result, asked) -> None:
    async with fake() as (client, server), client.open_session() as session:

        async def submitted(request):
            answer = {"task_id": TASK, "status": "QUEUED", "subscribed": True}
            await server.say({"jsonrpc": "2.0", "id": request["id"], "result": answer})
            await server.event(**{**FINISH, **more})
            await server.finish(seq=2)

        server.answers |= {"task.submit": submitted, "task.get": SAID}
        if result is ProtocolViolation:
            with pytest.raises(ProtocolViolation, match="result"):
                await session.run("gpio.get", line=4)
        else:
            assert await session.run("gpio.get", line=4) == result
        assert len(server.params_of("task.get")) == asked
        assert not client._subscriptions


# --- what is new, or other than ours ---------------------------------------------------------------------------------


async def test_unknown_members_methods_and_codes_are_no_trouble(fake) -> None:
    async with fake() as (client, server):

        async def chatty(_request):
            await server.say({"jsonrpc": "2.0", "method": "weather.report", "params": {"sun": True}})
            await server.say({"jsonrpc": "2.0", "method": "task.event", "params": {"task_id": "other", "phase": "x"}})
            await server.say(b"\r\n   \n")
            return {"task_id": TASK, "status": "QUEUED", "position": 3}

        server.answers["task.submit"] = chatty
        server.answers["tool.list"] = {"code": -32077, "message": "Too warm", "data": {"celsius": 99}}
        async with client.open_session() as session:
            assert session.capabilities == tuple(FLAGS)
            task = await session.submit("x", [])
            assert (await task.get()).status == "SUCCESS"
            with pytest.raises(RpcError) as caught:
                await session.tools()
            assert (caught.value.code, caught.value.message) == (-32077, "Too warm")
            assert caught.value.data == {"celsius": 99}


@pytest.mark.parametrize("data", [None, 7, "x", [1], {"effect": "nonsense"}], ids=repr)
async def test_error_data_of_any_kind_is_no_trouble(fake, data) -> None:
    async with fake() as (client, server):
        for code in (-32000, -32009, -32010, -1, 12345):
            server.answers["tool.list"] = {"code": code, "message": "no", "data": data}
            with pytest.raises(RpcError) as caught:
                await client.attach(SESSION).tools()
            assert caught.value.code == code


async def test_events_of_a_server_that_does_not_count_them_are_not_dropped(fake) -> None:
    """The draft's task.event has no seq (§8)."""
    async with fake() as (client, server):

        async def subscribed(request):
            await server.say({"jsonrpc": "2.0", "id": request["id"], "result": {"ok": True}})
            await server.event(phase="start", step_index=0)
            await server.event(phase="finish", step_index=0)
            await server.event(phase="task_finish")

        server.answers["task.events.subscribe"] = subscribed
        task = await client.attach(SESSION).task(TASK)
        assert [event.phase async for event in task.events()] == ["start", "finish", "task_finish"]
        assert (await task.wait()).status == "SUCCESS"


async def test_events_that_come_before_their_subscription_is_answered_or_twice_are_told_once(fake) -> None:
    async with fake() as (client, server):

        async def early(_request):
            await server.event(phase="start", seq=1, step_index=0)
            await server.event(phase="start", seq=1, step_index=0)
            await server.event(phase="finish", seq=2, step_index=0)
            await server.finish(seq=3)
            return {"ok": True}

        server.answers["task.events.subscribe"] = early
        task = await client.attach(SESSION).task(TASK)
        assert [event.seq async for event in task.events()] == [1, 2, 3]


async def test_an_event_for_another_reader_hides_no_earlier_one_from_a_reader_that_begins(fake) -> None:
    async with fake() as (client, server):
        task = await client.attach(SESSION).task(TASK)
        early = task.events()

        async def first(_request):
            await server.event(phase="start", seq=1, step_index=0)
            return {"ok": True, "last_seq": 1}

        async def second(request):
            # On its way to the first reader when the second one asks.
            await server.event(phase="finish", seq=2, step_index=0)
            await server.say({"jsonrpc": "2.0", "id": request["id"], "result": {"ok": True, "last_seq": 2}})
            await server.event(phase="start", seq=1, step_index=0)
            await server.event(phase="finish", seq=2, step_index=0)
            await server.finish(seq=4)  # 3 was progress, which a server may drop

        server.answers["task.events.subscribe"] = first
        assert (await anext(early)).seq == 1
        server.answers["task.events.subscribe"] = second
        assert [event.seq async for event in task.events()] == [1, 2, 4]
        assert [event.seq async for event in early] == [2, 4]


async def test_a_session_that_ends_while_a_task_is_followed_does_not_hang_its_follower(fake) -> None:
    async with fake() as (client, server):
        server.answers["task.events.subscribe"] = {"code": -32000, "message": "Session unknown or expired"}
        task = await client.attach(SESSION).task(TASK)
        with pytest.raises(SessionInvalid):
            await task.wait()


# --- cancelled callers ----------------------------------------------------------------------------------------------


async def test_an_answer_to_a_cancelled_submit_is_taken_back_once_it_comes(fake) -> None:
    async with fake() as (client, server):
        gate = trio.Event()

        async def slowly(_request):
            await gate.wait()
            return {"task_id": TASK, "status": "QUEUED"}

        server.answers["task.submit"] = slowly
        session = client.attach(SESSION)
        with trio.move_on_after(0.05) as scope:
            await session.submit("x", [])
        assert scope.cancelled_caught
        gate.set()
        await passes(lambda: server.params_of("task.cancel"))
        assert server.params_of("task.cancel") == [{"session_id": SESSION, "task_id": TASK}]


async def test_an_answer_to_a_cancelled_submit_that_was_to_be_followed_leaves_no_follower_behind(fake) -> None:
    async with fake() as (client, server):
        gate = trio.Event()

        async def slowly(_request):
            await gate.wait()
            return {"task_id": TASK, "status": "QUEUED", "subscribed": True}

        server.answers["task.submit"] = slowly
        session = client.attach(SESSION)
        with trio.move_on_after(0.05) as scope:
            await session.submit("x", [], follow=True)
        assert scope.cancelled_caught
        gate.set()
        await passes(lambda: server.params_of("task.cancel"))
        assert server.params_of("task.cancel") == [{"session_id": SESSION, "task_id": TASK}]
        assert not client._subscriptions._of_task


@pytest.mark.parametrize("more", [{}, {"subscribed": False}, {"subscribed": 1}], ids=repr)
async def test_a_server_that_gives_no_events_with_a_submission_is_asked_for_them(fake, more) -> None:
    async with fake() as (client, server), client.open_session() as session:
        server.answers["task.submit"] = {"task_id": TASK, "status": "QUEUED", **more}
        task = await session.submit("x", [], follow=True)
        events = task.events()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, events)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await server.finish()
        assert server.params_of("task.submit")[0]["subscribe"] is True
        assert server.params_of("task.events.subscribe") == [{"session_id": SESSION, "task_id": TASK, "from_seq": 1}]


@pytest.mark.parametrize("answer", [{"subscribed": True}, {"subscribed": True, "task_id": 7}], ids=repr)
async def test_a_server_that_gives_events_of_no_task_is_wrong(fake, answer) -> None:
    async with fake() as (client, server):
        server.answers["task.submit"] = answer
        with pytest.raises(ProtocolViolation, match="task_id"):
            await client.attach(SESSION).submit("x", [], follow=True)


@pytest.mark.slow
async def test_leaving_the_connection_waits_for_what_is_to_be_taken_back(tmp_path, fake) -> None:
    async with fake() as (client, server):

        async def slowly(_request):
            await trio.sleep(0.1)
            return {"task_id": TASK, "status": "QUEUED"}

        server.answers["task.submit"] = slowly
        with trio.move_on_after(0.05):
            await client.attach(SESSION).submit("x", [])
        await client._settle()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert server.params_of("task.cancel") == [{"session_id": SESSION, "task_id": TASK}]


@pytest.mark.parametrize("answer", [{}, {"task_id": None}, {"code": -32004, "message": "busy"}, 7, []], ids=repr)
async def test_an_answer_that_cannot_be_taken_back_is_let_be(fake, answer) -> None:
    async with fake() as (client, server):
        gate = trio.Event()

        async def slowly(request):
            await gate.wait()
            kind = "error" if isinstance(answer, dict) and "code" in answer else "result"
            await server.say({"jsonrpc": "2.0", "id": request["id"], kind: answer})

        server.answers["task.submit"] = slowly
        session = client.attach(SESSION)
        with trio.move_on_after(0.05):
            await session.submit("x", [])
        gate.set()
        await session.close()
        assert server.params_of("task.cancel") == []


# --- connecting -----------------------------------------------------------------------------------------------------


async def test_no_daemon_there_is_an_error_with_a_cure(tmp_path) -> None:
    with pytest.raises(CarrierError, match="there is no such socket; start one with `hearthd`"):
        async with hearth.connect(tmp_path / "none"):
            pass
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "stale"))
    with pytest.raises(CarrierError, match="no process listens there"):
        async with hearth.connect(tmp_path / "stale"):
            pass
    with pytest.raises(CarrierError, match="cannot connect"):
        async with hearth.connect(tmp_path / ("x" * 200)):
            pass


@pytest.mark.slow
async def test_a_server_whose_queue_of_connections_is_full_is_waited_for(tmp_path) -> None:
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(0)
        waiting = []
        try:
            while True:
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(str(path))
        except BlockingIOError:
            waiting.pop().close()

        async def make_room():
            await trio.sleep(0.1)
            for _ in waiting:
                listening.accept()[0].close()
            while True:
                await trio.lowlevel.wait_readable(listening)
                accepted, _ = listening.accept()
                server = Server(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)))
                await server.run()
                await server.stream.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_room)
            async with hearth.connect(path) as client, client.open_session() as session:
                assert session.session_id == SESSION
            nursery.cancel_scope.cancel()
        for client in waiting:
            client.close()
