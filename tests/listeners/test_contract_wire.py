"""What is on the wire, the same on every carrier: documents, their order, their bounds, and how a connection ends."""

from __future__ import annotations

import gc
import json
import ssl
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from support import dialing
from support.carriers import HERE, KINDS, vanish
from support.waiting import passes
from support.world import BenchWorld, RawClient, running

from hearth.api import step

pytestmark = pytest.mark.slow

PATIENCE = 60
LIMIT = 1 << 20
STREAMS = tuple(kind for kind in KINDS if kind not in ("ws", "wss"))
"""Carriers that find lines in a stream; on a WebSocket a message is a document."""
HALF_CLOSEABLE = ("memory", "unix", "stdio")

over_every_carrier = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
async def bounded():
    with trio.fail_after(PATIENCE):
        yield


class Wire:
    """A world behind one carrier, and raw clients of it."""

    def __init__(self, world, over, kind):
        self.world = world
        self.over = over
        self.kind = kind

    async def stream(self):
        return await self.over.raw(self.kind)

    async def client(self):
        client = RawClient(await self.stream())
        self.world.nursery.start_soon(client.run)
        return client

    async def until_connections(self, count):
        await passes(lambda: len(self.world.connections) == count)


@pytest.fixture
def wired(expose):
    """`async with wired(kind, **limits) as wire`."""

    @asynccontextmanager
    async def make(kind, **limits):
        world = BenchWorld(policy=(HERE,), **limits)
        async with running(world), expose(world, kind) as over:
            yield Wire(world, over, kind)

    return make


def codes(documents):
    return [document["error"]["code"] for document in documents]


async def alive(client):
    """The connection is of use still."""
    assert (await client.call("session.open"))["protocol_version"] == "0.1.0"


# --- documents ------------------------------------------------------------------------------------------------------

NOT_JSON = [b"hello there", b'{"jsonrpc": "2.0", "id": 1, "method"', b"[" * 15_000, b"\xef\xbb\xbf{}", b'{"x":NaN}']


@over_every_carrier
async def test_what_is_not_json_is_a_parse_error_and_the_connection_goes_on(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        for number, document in enumerate(NOT_JSON, 1):
            await client.send(document)
            await client.until(lambda number=number: len(client.documents) == number)
        assert codes(client.documents) == [-32700] * len(NOT_JSON)
        assert {document["id"] for document in client.documents} == {None}
        await alive(client)


@over_every_carrier
async def test_what_is_json_and_no_request_is_an_invalid_request_and_the_connection_goes_on(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        await client.send(b"7", b'"x"', b"{}", b"[]", b"null")
        await client.until(lambda: len(client.documents) == 5)
        assert codes(client.documents) == [-32600] * 5
        await alive(client)


@over_every_carrier
async def test_a_batch_is_answered_by_one_document_with_an_answer_for_each_id(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        params = {"session_id": session.session_id}
        before = len(client.documents)
        await client.send(
            [
                client.request("tool.list", params, "list"),
                {"jsonrpc": "2.0", "method": "tool.list", "params": params},
                7,
                client.request("no.such", {}, "none"),
                client.request("session.open", {}, "open"),
            ]
        )
        await client.until(lambda: len(client.documents) > before)
        [answers] = client.documents[before:]
        assert sorted(str(answer["id"]) for answer in answers) == ["None", "list", "none", "open"]
        by_id = {answer["id"]: answer for answer in answers}
        assert by_id["list"]["result"]["tools"]
        assert by_id["open"]["result"]["session_id"]
        assert by_id["none"]["error"]["code"] == -32601
        assert by_id[None]["error"]["code"] == -32600


@over_every_carrier
async def test_a_notification_is_executed_and_never_answered(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        before = len(client.documents)
        close = {"jsonrpc": "2.0", "method": "session.close", "params": {"session_id": session.session_id}}
        await client.send(close, {"jsonrpc": "2.0", "method": "no.such"}, [close, close])
        refused = await client.ask("tool.list", {"session_id": session.session_id})
        assert refused["error"]["code"] == -32000
        assert client.documents[before:] == [refused]


@over_every_carrier
async def test_text_of_every_kind_comes_back_as_it_was(wired, kind) -> None:
    text = 'é ☃ \u2028 \n \\ " 𝄞 \u0000' * 50
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        task = await session.run(("read", {"tag": text}), intent=text)
        assert (task["intent"], task["steps"][0]["result"]) == (text, {"tag": text})
        line = client.request("tool.list", {"session_id": "x"}, text)
        await client.send(json.dumps(line, ensure_ascii=False).encode())
        await client.until(lambda: client.answers(text))


@over_every_carrier
async def test_a_document_of_exactly_the_limit_is_read_and_one_beyond_ends_the_connection(wired, kind) -> None:
    head, tail = b'{"jsonrpc":"2.0","id":"long","method":"session.open","params":{"x":"', b'"}}'
    exactly = head + b"x" * (LIMIT - len(head) - len(tail)) + tail
    async with wired(kind) as wire:
        client, other = await wire.client(), await wire.client()
        await client.send(exactly)
        await client.until(lambda: client.answers("long"))
        assert "result" in client.answers("long")[0]
        before = len(client.documents)
        with_one_more = exactly[: len(head)] + b"x" + exactly[len(head) :]
        with suppress(trio.BrokenResourceError):  # it may hear of the end before all is sent
            await client.send(with_one_more, client.request("session.open", {}, "after"))
        await client.until_ended()
        said = client.documents[before:]
        assert not client.answers("after")
        if kind in STREAMS:
            assert codes(said) == [-32600]
            assert said[0]["error"]["data"]["max_document_bytes"] == LIMIT
        await alive(other)


@pytest.mark.parametrize("kind", STREAMS)
async def test_lines_may_come_in_any_pieces(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        lines = b"".join(json.dumps(client.request("no.such", {}, f"é{n}")).encode() + b"\r\n" for n in range(3))
        for byte in lines:
            await client.stream.send_all(bytes([byte]))
        await client.until(lambda: len(client.documents) == 3)
        assert codes(client.documents) == [-32601] * 3


@over_every_carrier
async def test_many_documents_at_once_are_all_answered(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        await client.send(*(client.request("session.close", {"session_id": "x"}, n) for n in range(1000)))
        await client.until(lambda: len(client.documents) == 1000)
        assert [document["id"] for document in client.documents] == list(range(1000))


@over_every_carrier
async def test_a_long_answer_comes_whole(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        task = await session.run(*[("big", {"n": 200_000})] * 8)
        assert [len(step["result"]["data"]) for step in task["steps"]] == [200_000] * 8


@over_every_carrier
async def test_hearths_own_client_says_and_takes_what_is_long(wired, kind) -> None:
    async with wired(kind) as wire, wire.over.connect(kind) as client, client.open_session() as session:
        tag = "☃" * 300_000
        done = await (await session.submit("x", [step("bench.read", tag=tag)])).wait()
        assert done.steps[0].result == {"tag": tag}
        done = await (await session.submit("x", [step("bench.big", n=200_000)] * 8)).wait()
        assert [len(one.result["data"]) for one in done.steps] == [200_000] * 8


# --- order ----------------------------------------------------------------------------------------------------------


@over_every_carrier
async def test_a_submissions_answer_comes_before_its_events_and_they_come_in_their_order(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        steps = [("read", {}), ("progress", {"n": 3}), ("read", {"bus": "b"})]
        submit = [client.request("task.submit", session.submission(steps, subscribe=True), n) for n in range(20)]
        await client.send(*submit)
        await client.until(lambda: sum(event["phase"] == "task_finish" for event in client.events) == 20)
        seen = {}
        for document in client.documents:
            if "method" not in document:
                if "task_id" in document["result"]:
                    seen[document["result"]["task_id"]] = []
            else:
                seen[document["params"]["task_id"]].append(document["params"])
        assert len(seen) == 20
        for events in seen.values():
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
            assert (events[0]["phase"], events[-1]["phase"]) == ("start", "task_finish")


@over_every_carrier
async def test_the_answer_to_a_batch_comes_before_the_events_it_asked_for(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        session = await client.open()
        before = len(client.documents)
        submission = session.submission([("read", {})], subscribe=True)
        await client.send([client.request("task.submit", submission, n) for n in range(30)])
        await client.until(lambda: sum(event["phase"] == "task_finish" for event in client.events) == 30)
        answers, *events = client.documents[before:]
        assert len(answers) == 30
        assert all("method" in event for event in events)


# --- ends -----------------------------------------------------------------------------------------------------------


@over_every_carrier
async def test_a_client_that_does_not_read_is_cut_off_after_its_bound_and_no_other_notices(wired, kind) -> None:
    async with wired(kind, send_timeout_s=0.3) as wire:
        other = await wire.client()
        session = await other.open()
        task = await session.start(*[("big", {"n": 200_000})] * 8)
        await session.wait(task)
        deaf = await wire.stream()
        await wire.until_connections(2)
        here = {"session_id": session.session_id, "task_id": task}
        lines = b"".join(json.dumps(other.request("task.get", here)).encode() + b"\n" for _ in range(64))

        async def ask():
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await deaf.send_all(lines)

        wire.world.nursery.start_soon(ask)
        while len(wire.world.connections) == 2:
            assert (await session.run(("read", {"bus": "b"})))["status"] == "SUCCESS"
        await alive(other)
        await trio.aclose_forcefully(deaf)


@over_every_carrier
@pytest.mark.parametrize("how", ["says goodbye", "vanishes"])
async def test_a_session_that_is_to_end_with_its_client_does_however_that_goes(wired, kind, how: str) -> None:
    async with wired(kind, close_grace_s=0.2) as wire:
        client = await wire.client()
        session = await client.open(on_disconnect="close")
        await session.run(("set", {"line": 1, "value": 1}))
        assert wire.world.driver.levels == {1: 1}
        if how == "vanishes":
            await vanish(client.stream)
        else:
            await client.close()
        await passes(lambda: not wire.world.runtime.sessions)
        await passes(lambda: wire.world.driver.levels == {1: 0})
        await passes(lambda: not wire.world.connections)


@over_every_carrier
async def test_a_server_that_ends_sends_what_is_due_and_ends_cleanly(wired, kind) -> None:
    async with wired(kind) as wire:
        stream = await wire.stream()
        client = RawClient(stream)
        await wire.until_connections(1)
        [connection] = wire.world.connections
        await client.send(*(client.request("no.such", {}, n) for n in range(500)))
        received = await stream.receive_some()
        connection.finish()
        # A clean end is told apart from a link that broke, on which this raises.
        while part := await stream.receive_some():
            received += part
        ids = [json.loads(line)["id"] for line in received.splitlines()]
        assert ids == list(range(len(ids)))
        assert ids
        await stream.aclose()


@pytest.mark.parametrize("kind", HALF_CLOSEABLE)
async def test_a_client_that_has_finished_sending_gets_its_answers(wired, kind) -> None:
    async with wired(kind) as wire:
        client = await wire.client()
        await client.send(*(client.request("session.open", {}, n) for n in range(20)))
        await client.stream.send_eof()
        await client.until_ended()
        assert {document["id"] for document in client.documents} == set(range(20))


def visit(address, context, web):
    """A client's visit from a thread of its own, with nothing of Trio in it."""
    connected = dialing.web_socket(address, context) if web else dialing.tls(address, context)
    connected.sendall(b'{"jsonrpc":"2.0","id":1,"method":"session.open","params":{"on_disconnect":"close"}}\n')
    lines = connected.makefile("rb")
    assert b"session_id" in lines.readline()
    lines.close()
    connected.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tls", "wss"])
async def test_what_tls_needs_for_a_connection_goes_with_it_and_does_not_wait_for_the_collector(
    wired, papers, kind
) -> None:
    def held():
        return sum(isinstance(one, ssl.SSLObject) for one in gc.get_objects())

    async with wired(kind) as wire:
        address = wire.over.listeners[kind].address
        context = papers.client_context(papers.clients["arm-7"])
        gc.collect()
        gc.disable()
        try:
            before = held()
            for _ in range(10):
                await trio.to_thread.run_sync(visit, address, context, kind == "wss")
                # One that breaks off in the middle of its handshake.
                with dialing.tcp(address) as broken_off:
                    broken_off.send(bytes.fromhex("160301020001"))
            await passes(lambda: not wire.world.connections and not wire.world.runtime.sessions)
            await passes(lambda: held() <= before + (0 if kind == "tls" else 10))
        finally:
            gc.enable()
