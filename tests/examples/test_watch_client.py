"""hacp.js in a real browser, against a server that is told word by word what to say, and links that misbehave."""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from support.chromium import Browser, Tab, chromium, driving, needs_chromium
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import ModuleType

pytestmark = [pytest.mark.proof, needs_chromium, pytest.mark.usefixtures("unmeasured")]

GONE = {"code": -32000, "message": "No such session"}


@contextmanager
def example() -> Iterator[ModuleType]:
    """watch_serve.py as a module."""
    spec = importlib.util.spec_from_file_location("watch_serve", Path(__file__).with_name("watch_serve.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


class Peer:
    """One link, seen from the server."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self.over = trio.Event()

    async def hear(self) -> Any:
        """The next document; None when the link has ended."""
        with trio.fail_after(60):
            try:
                return json.loads(await self._connection.get_message())
            except ConnectionClosed:
                return None

    async def say(self, document: Any) -> None:
        await self._connection.send_message(document if isinstance(document, (str, bytes)) else json.dumps(document))

    async def answer(self, request: Any, result: Any = None, error: Any = None) -> None:
        said = {"error": error} if error else {"result": {"ok": True} if result is None else result}
        await self.say({"jsonrpc": "2.0", "id": request["id"], **said})

    async def serve(self, method: str, result: Any = None, error: Any = None) -> Any:
        """Hear a request, which must be for this method, and answer it; its params."""
        request = await self.hear()
        assert request["method"] == method, request
        await self.answer(request, result, error)
        return request["params"]

    async def event(self, task: str, seq: int, phase: str = "progress", **more: Any) -> None:
        params = {"task_id": task, "seq": seq, "phase": phase, "ts": "2026-01-01T00:00:00.000Z", **more}
        await self.say({"jsonrpc": "2.0", "method": "task.event", "params": params})

    def drop(self) -> None:
        """Break the link."""
        self.over.set()


class Server:
    """A server that says nothing by itself."""

    def __init__(self) -> None:
        self._come, self._waiting = trio.open_memory_channel[Peer](10)
        self.port = 0
        self.offered: list[str] = []
        self.refuses = False

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_websocket, self._accept, "127.0.0.1", 0, None)
            self.port = server.port
            task_status.started()

    async def _accept(self, request: WebSocketRequest) -> None:
        self.offered = list(request.proposed_subprotocols)
        if self.refuses:
            await request.reject(401)
            return
        peer = Peer(await request.accept(subprotocol="hacp.v0"))
        self._come.send_nowait(peer)
        await peer.over.wait()
        await peer._connection._stream.aclose()  # without a farewell

    async def peer(self) -> Peer:
        """The next link."""
        with trio.fail_after(60):
            return await self._waiting.receive()


@pytest.fixture
async def server(nursery: trio.Nursery) -> Server:
    made = Server()
    await nursery.start(made.run)
    return made


@pytest.fixture(scope="module")
def chromium_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One browser for all: each page is a private window, and what starts slowly is started once."""
    with chromium(tmp_path_factory.mktemp("browser")) as address:
        yield address


@pytest.fixture
async def browser(chromium_address: str) -> AsyncIterator[Browser]:
    async with driving(chromium_address) as started:
        yield started


@pytest.fixture
async def tab(browser: Browser) -> AsyncIterator[Tab]:
    with example() as serve, serve.served(0) as site:
        page = await browser.open()
        await page.navigate(f"{site.origin}/")
        await page.until("document.querySelector('#connect') && !document.querySelector('#connect').hidden")
        await page.evaluate("import('./hacp.js').then((module) => { globalThis.hacp = module; })")
        yield page


async def start(tab: Tab, server: Server, options: str = "firstPauseMs: 20, longestPauseMs: 200") -> Peer:
    """A client that is connected; it notes what it goes through."""
    await tab.evaluate(
        f"""{{
            globalThis.states = []; globalThis.told = []; globalThis.outcomes = [];
            globalThis.client = new hacp.HacpClient("ws://127.0.0.1:{server.port}", {{ token: "secret-1", {options} }});
            client.addEventListener("state", ({{ detail }}) => states.push(detail));
            client.connect().catch((error) => outcomes.push(`connect: ${{error.name}}: ${{error.message}}`));
            globalThis.note = (name, promise) => void promise.then(
                (value) => outcomes.push([name, value ?? null]),
                (error) => outcomes.push([name, error.name, error.symbol ?? error.message, error.data ?? null]),
            );
        }}"""
    )
    peer = await server.peer()
    await tab.until("client.state === 'open'")
    return peer


async def with_session(tab: Tab, peer: Peer, name: str = "s1") -> None:
    await tab.evaluate(
        "void client.openSession({ clientName: 'test' }).then((opened) => { globalThis.session = opened;"
        " opened.addEventListener('event', ({ detail }) => told.push([detail.task_id, detail.seq]));"
        " opened.addEventListener('gone', () => told.push('gone')); })"
    )
    params = await peer.serve("session.open", {"session_id": name, "capabilities": ["CAP_GPIO_RW"]})
    assert params == {"client_name": "test", "protocol_version": "0.1.0", "on_disconnect": "keep"}
    await tab.until(f"globalThis.session && session.id === '{name}'")


SUBMIT = "note('submit', session.submit({ intent: 'x', steps: [] }).then((t) => (globalThis.task = t).id))"


async def test_the_token_travels_as_a_subprotocol_and_errors_have_code_symbol_and_data(
    tab: Tab, server: Server
) -> None:
    peer = await start(tab, server)
    assert server.offered == ["hacp.v0", "bearer.secret-1"]
    await with_session(tab, peer)
    await tab.evaluate("note('late', session.call('task.get', {task_id: 't'}))")
    await peer.serve("task.get", error={"code": -32006, "message": "Too often", "data": {"retry_after_ms": 5}})
    await tab.evaluate("note('later', session.tools())")
    await peer.serve("tool.list", error={"code": -32099, "message": "New"})
    await tab.until("outcomes.length === 2")
    assert await tab.evaluate("outcomes") == [
        ["late", "HacpError", "RATE_LIMITED", {"retry_after_ms": 5}],
        ["later", "HacpError", "UNKNOWN", {}],
    ]
    assert tab.errors == []


async def test_a_submission_whose_answer_was_lost_is_repeated_with_the_same_key_and_nothing_else_is(
    tab: Tab, server: Server
) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    await tab.evaluate(SUBMIT)
    await tab.evaluate("note('cancel', session.cancel('t0'))")
    first, other = await peer.hear(), await peer.hear()
    assert (first["method"], other["method"]) == ("task.submit", "task.cancel")
    peer.drop()

    peer = await server.peer()
    await peer.serve("task.get", error={"code": -32001, "message": "No such task"})  # is the session still there?
    again = await peer.hear()
    assert again["params"] == first["params"]
    assert again["params"]["subscribe"] is True
    assert len(again["params"]["task"]["idempotency_key"]) == 32
    assert again["id"] != first["id"]
    await peer.answer(again, {"task_id": "t1", "status": "RUNNING", "repeated": True})
    # Its history comes from the start, and once more.
    for seq in (1, 2, 1, 2, 3):
        await peer.event("t1", seq)
    await peer.event("t1", 6, "task_finish", status="SUCCESS")
    await tab.until("told.length === 4")
    await tab.evaluate("note('wait', task.wait().then((event) => event.status))")
    await tab.until("outcomes.length === 3")
    cancel, *rest = await tab.evaluate("outcomes")
    assert cancel[:2] == ["cancel", "LinkError"]
    assert "before task.cancel was answered" in cancel[2]
    assert rest == [["submit", "t1"], ["wait", "SUCCESS"]]
    assert await tab.evaluate("told") == [["t1", seq] for seq in (1, 2, 3, 6)]
    assert await tab.evaluate("[task.lastSeq, task.coalesced, task.finished]") == [6, 2, True]


async def test_after_a_drop_each_task_is_followed_from_after_the_last_event_that_was_seen(
    tab: Tab, server: Server
) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    await tab.evaluate("note('follow', session.follow())")
    await peer.serve("task.events.subscribe")
    for number in range(70):
        await peer.event(f"t{number}", 1, "start")
    await peer.event("t0", 2)
    await peer.event("t1", 2, "task_finish", status="FAILED")
    await tab.until("told.length === 72")
    await tab.evaluate("note('t2', session.task('t2').wait())")
    peer.drop()

    peer = await server.peer()
    first = await peer.hear()
    assert len(first) == 64  # as many as a batch may have
    assert first[0]["params"] == {"session_id": "s1"}
    refusal = {"code": -32001, "message": "No such task", "data": {"task_id": "t2"}}
    await peer.say(
        [
            {"jsonrpc": "2.0", "id": asked["id"], "error": refusal}
            if asked["params"].get("task_id") == "t2"
            else {"jsonrpc": "2.0", "id": asked["id"], "result": {"ok": True}}
            for asked in first
        ]
    )
    second = await peer.hear()
    asked = {one["params"]["task_id"]: one["params"]["from_seq"] for one in [*first[1:], *second]}
    assert asked == {"t0": 3, **{f"t{number}": 2 for number in range(2, 70)}}
    assert await tab.evaluate("client.state") == "connecting"  # not before all of it is taken up
    await peer.say([{"jsonrpc": "2.0", "id": one["id"], "result": {"ok": True}} for one in second])
    await tab.until("client.state === 'open'")
    assert await tab.evaluate("outcomes.at(-1)") == ["t2", "HacpError", "RPC_TASK_NOT_FOUND", {"task_id": "t2"}]

    # Only one session of a client can be told of tasks that it does not know.
    await tab.evaluate("globalThis.first = session")
    await with_session(tab, peer, "s2")
    await tab.evaluate("note('second', session.follow())")
    await tab.until("outcomes.at(-1)[0] === 'second'")
    assert "follow one session per client" in (await tab.evaluate("outcomes.at(-1)"))[2]
    # Who wants no more is not followed again.
    await tab.evaluate("note('unfollow', first.unfollow())")
    assert await peer.serve("task.events.unsubscribe") == {"session_id": "s1"}
    await tab.until("outcomes.at(-1)[0] === 'unfollow'")
    peer.drop()
    peer = await server.peer()
    assert {(await peer.hear())["method"] for _ in range(2)} == {"task.get"}


async def test_who_begins_to_follow_while_the_link_drops_follows_as_soon_as_there_is_one(
    tab: Tab, server: Server
) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    await tab.evaluate("note('follow', session.follow())")
    await tab.evaluate("note('one', session.subscribe('t1').then((task) => task.id))")
    assert [(await peer.hear())["method"] for _ in range(2)] == ["task.events.subscribe"] * 2
    peer.drop()
    peer = await server.peer()
    asked = await peer.hear()
    assert [one["params"].get("from_seq") for one in asked] == [None, 1]
    await peer.say([{"jsonrpc": "2.0", "id": one["id"], "result": {"ok": True}} for one in asked])
    await tab.until("outcomes.length === 2")
    assert await tab.evaluate("outcomes") == [["follow", None], ["one", "t1"]]
    # What is refused is not tried again.
    await tab.evaluate("note('none', session.subscribe('t2'))")
    await peer.serve("task.events.subscribe", error={"code": -32001, "message": "No such task"})
    await tab.evaluate("note('no more', session.unsubscribe('t1'))")
    assert await peer.serve("task.events.unsubscribe") == {"session_id": "s1", "task_id": "t1"}
    await tab.until("outcomes.length === 4")
    assert (await tab.evaluate("outcomes"))[2][2] == "RPC_TASK_NOT_FOUND"


async def test_a_plan_whose_execution_lost_its_answer_is_executed_once_and_its_task_found(
    tab: Tab, server: Server
) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    stale = {"code": -32017, "message": "Plan stale", "data": {"task_id": "t1"}}
    # Executed earlier, and not by this call.
    await tab.evaluate("note('earlier', session.execute('p0'))")
    await peer.serve("plan.execute", error=stale)
    await tab.until("outcomes.length === 1")
    await tab.evaluate("note('execute', session.execute('p1').then((t) => (globalThis.task = t).id))")
    params = {"session_id": "s1", "plan_id": "p1", "subscribe": True}
    assert (await peer.hear())["params"] == params
    peer.drop()
    peer = await server.peer()
    await peer.serve("task.get", error={"code": -32001, "message": "No such task"})  # is the session still there?
    assert await peer.serve("plan.execute", error=stale) == params
    assert await peer.serve("task.events.subscribe") == {"session_id": "s1", "task_id": "t1", "from_seq": 1}
    await peer.event("t1", 1, "task_finish", status="SUCCESS")
    await tab.until("outcomes.length === 2")
    await tab.evaluate("note('wait', task.wait().then((event) => event.status))")
    await tab.until("outcomes.length === 3")
    assert await tab.evaluate("outcomes") == [
        ["earlier", "HacpError", "PLAN_STALE", {"task_id": "t1"}],
        ["execute", "t1"],
        ["wait", "SUCCESS"],
    ]


async def test_a_halt_is_not_repeated_by_itself(tab: Tab, server: Server) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    await tab.evaluate("note('halt', session.halt('smoke'))")
    assert (await peer.hear())["params"] == {"session_id": "s1", "reason": "smoke"}
    peer.drop()
    peer = await server.peer()
    await peer.serve("task.get", error={"code": -32001, "message": "No such task"})
    await tab.until("client.state === 'open'")
    assert (await tab.evaluate("outcomes"))[0][:2] == ["halt", "LinkError"]
    for method, does in (("halt", "halt()"), ("halt.status", "haltStatus()"), ("halt.reset", "haltReset()")):
        await tab.evaluate(f"note('{method}', session.{does})")
        assert await peer.serve(method, {"halted": True}) == {"session_id": "s1"}
    await tab.until("outcomes.length === 4")


async def test_a_halt_needs_no_session(tab: Tab, server: Server) -> None:
    peer = await start(tab, server)
    await tab.evaluate("note('halt', client.halt('smoke')); note('status', client.haltStatus())")
    assert await peer.serve("halt", {"halted": True}) == {"reason": "smoke"}
    assert await peer.serve("halt.status", {"halted": True}) == {}
    await tab.until("outcomes.length === 2")
    assert await tab.evaluate("outcomes") == [["halt", {"halted": True}], ["status", {"halted": True}]]
    await tab.evaluate("note('late', client.halt())")
    assert (await peer.hear())["method"] == "halt"
    peer.drop()
    await tab.until("outcomes.length === 3")
    assert (await tab.evaluate("outcomes"))[2][:2] == ["late", "LinkError"]


async def test_a_session_that_is_gone_is_told_once_and_fails_what_waits(tab: Tab, server: Server) -> None:
    peer = await start(tab, server)
    await with_session(tab, peer)
    await tab.evaluate(SUBMIT)
    await peer.serve("task.submit", {"task_id": "t1", "status": "QUEUED"})
    await tab.until("outcomes.length === 1")
    await tab.evaluate("note('wait', task.wait())")
    await tab.evaluate("note('lost', session.submit({ intent: 'y', steps: [] }))")
    assert (await peer.hear())["method"] == "task.submit"
    peer.drop()
    peer = await server.peer()
    [asked] = await peer.hear()
    assert asked["params"] == {"session_id": "s1", "task_id": "t1", "from_seq": 1}
    await peer.say([{"jsonrpc": "2.0", "id": asked["id"], "error": GONE}])
    await tab.until("outcomes.length === 3 && client.state === 'open'")
    assert await tab.evaluate("told") == ["gone"]
    assert sorted(await tab.evaluate("outcomes.slice(1)")) == [
        ["lost", "HacpError", "RPC_SESSION_INVALID", {}],
        ["wait", "HacpError", "RPC_SESSION_INVALID", {}],
    ]
    assert await tab.evaluate("session.ended")
    # Attaching to one that is gone says so as well.
    await tab.evaluate("note('attach', client.attach('s1'))")
    await peer.serve("task.get", error=GONE)
    await tab.until("outcomes.length === 4")
    assert await tab.evaluate("outcomes[3].slice(0, 3)") == ["attach", "HacpError", "RPC_SESSION_INVALID"]


async def test_a_link_that_drops_silently_is_noticed_while_events_are_awaited(tab: Tab, server: Server) -> None:
    peer = await start(tab, server, "firstPauseMs: 20, quietMs: 200, answerMs: 2000")
    await with_session(tab, peer)
    await tab.evaluate("note('follow', session.follow())")
    await peer.serve("task.events.subscribe")
    # It asks whether anybody is there; as long as somebody answers, all is well.
    for _ in range(2):
        await peer.serve("task.get", error={"code": -32001, "message": "No such task"})
    assert await tab.evaluate("client.state") == "open"
    assert (await peer.hear())["method"] == "task.get"  # and is not answered any more
    await tab.until("states.some(({ state }) => state === 'waiting')")
    lost = await tab.evaluate("states.find(({ state }) => state === 'waiting')")
    assert lost["reason"] == "the daemon has not answered for too long"
    assert lost["wasOpen"] is True
    await server.peer()


async def test_a_link_on_which_a_request_waits_for_a_change_is_not_taken_for_lost(tab: Tab, server: Server) -> None:
    peer = await start(tab, server, "firstPauseMs: 20, quietMs: 100, answerMs: 300")
    await with_session(tab, peer)
    await tab.evaluate("note('follow', session.follow())")
    await peer.serve("task.events.subscribe")
    await tab.evaluate("note('plans', session.plans({ afterSeq: 3, waitMs: 60000 }))")
    waits = await peer.hear()
    assert waits["params"] == {"session_id": "s1", "after_seq": 3, "wait_ms": 60000}
    # It is asked for signs of life for longer than an answer may take.
    for _ in range(6):
        await peer.serve("task.get", error={"code": -32001, "message": "No such task"})
    await peer.answer(waits, {"seq": 4, "plans": []})
    await tab.until("outcomes.length === 2")
    assert await tab.evaluate("outcomes[1]") == ["plans", {"seq": 4, "plans": []}]
    assert not await tab.evaluate("states.some(({ state }) => state === 'waiting')")


async def test_pauses_grow_up_to_a_bound_and_never_end_by_themselves(tab: Tab, server: Server) -> None:
    peer = await start(tab, server, "firstPauseMs: 40, longestPauseMs: 300")
    server.refuses = True
    peer.drop()
    await tab.until("states.filter(({ state }) => state === 'waiting').length >= 6")
    pauses = await tab.evaluate("states.filter(({ state }) => state === 'waiting').map((one) => one.retryInMs)")
    for pause, most in zip(pauses, [40, 80, 160, 300, 300, 300], strict=False):
        assert most / 2 <= pause <= most
    server.refuses = False
    await server.peer()
    await tab.until("client.state === 'open'")
    # Whoever waits is told when it is closed.
    server.refuses = True
    await tab.evaluate("client.close(), note('call', client.call('session.open')), note('open', client.whenOpen())")
    await tab.until("outcomes.length === 2")
    assert [outcome[:2] for outcome in await tab.evaluate("outcomes")] == [["call", "LinkError"], ["open", "LinkError"]]
    assert await tab.evaluate("client.state") == "closed"


async def test_what_does_not_speak_hacp_is_left_alone(tab: Tab, server: Server) -> None:
    for nonsense in ("<html>", b"\x00\x01"):
        peer = await start(tab, server)
        await peer.say(nonsense)
        await tab.until("client.state === 'closed'")
        assert "does not speak HACP" in await tab.evaluate("states.at(-1).reason")
        peer.drop()
    # What is HACP, but later than we know, harms nobody.
    peer = await start(tab, server)
    await peer.say({"jsonrpc": "2.0", "method": "board.event", "params": {"what": 1}})
    await peer.event("nobody's", 1)
    await peer.say({"jsonrpc": "2.0", "id": 4711, "result": {}})
    await peer.say([])
    await with_session(tab, peer)
    assert tab.errors == []


async def test_a_link_that_does_not_come_about_in_time_is_given_up(tab: Tab, nursery: trio.Nursery) -> None:
    async def say_nothing(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    listeners = await nursery.start(trio.serve_tcp, say_nothing, 0)
    port = listeners[0].socket.getsockname()[1]
    await tab.evaluate(
        f"""{{
            globalThis.states = [];
            globalThis.client = new hacp.HacpClient("ws://127.0.0.1:{port}", {{ openingMs: 100 }});
            client.addEventListener("state", ({{ detail }}) => states.push(detail));
            void client.connect().catch((error) => states.push(error.message));
            null;
        }}"""
    )
    await tab.until("states.some(({ reason }) => reason === 'the daemon did not answer in time')")
    assert await tab.evaluate("states.find(({ state }) => state === 'waiting').wasOpen") is False
    await tab.evaluate("client.reconnectNow(), client.close()")
    await tab.until("states.includes('it was closed here')")
    nursery.cancel_scope.cancel()


async def test_an_address_or_token_that_cannot_be_one_is_refused_at_once(tab: Tab) -> None:
    for address, token, says in (
        ("nowhere", "t", "not an address"),
        ("http://127.0.0.1", "t", "begins with ws:// or wss://"),
        ("ws://127.0.0.1/#x", "t", "has no fragment"),
        ("ws://127.0.0.1", "a b", "characters that a handshake cannot carry"),
    ):
        refused = await tab.evaluate(
            f"""(() => {{
                try {{ new hacp.HacpClient({json.dumps(address)}, {{ token: {json.dumps(token)} }}); }}
                catch (error) {{ return [error.name, error.message]; }}
            }})()"""
        )
        assert refused[0] == "TypeError"
        assert says in refused[1]
