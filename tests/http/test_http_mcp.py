"""/mcp over real sockets: both eras with the official client, whose each session is, and when it ends."""

import gc
import json
import ssl
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx2
import pytest
import trio
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from support.http import BOTH, JSON, LISTEN, OLD, TOKENS, envelope, initialize, message, modern, passes

from hearth.actors.bridges.mcp import http as mcp_http
from hearth.config.listen import HttpConfig
from hearth.protocol.framing import has_more_values

# The client's HTTP library leaves generators to the collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator 'http(x|core)2:ResourceWarning")

ALICE = {"Authorization": f"Bearer {TOKENS['alice']}"}
BOB = {"Authorization": f"Bearer {TOKENS['bob']}"}
SET = {"name": "gpio_set", "arguments": {"line": 17, "value": 1}}


@asynccontextmanager
async def official(server, mode, token=None, **how):
    """The official client, as somebody's program uses it."""
    headers = {} if token is None else {"Authorization": f"Bearer {TOKENS[token]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, **how) as http:
        with trio.fail_after(60):
            async with Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as client:
                yield client
    gc.collect()


class Old:
    """A session of the old era, spoken by hand."""

    def __init__(self, server, session, **headers):
        self.server = server
        self.session = session
        self.headers = {"Content_Type": JSON, "Accept": BOTH, "Mcp_Protocol_Version": OLD, **headers}

    @classmethod
    async def open(cls, server, **headers):
        answer = await server.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH, **headers)
        assert answer.status == 200, answer
        opened = cls(server, answer.headers["mcp-session-id"], **headers)
        assert (await opened.ask("notifications/initialized", id_=None)).status == 202
        return opened

    async def ask(self, method, params=None, id_=2, **headers):
        return await self.server.ask(
            "POST", "/mcp", message(method, params, id_), Mcp_Session_Id=self.session, **{**self.headers, **headers}
        )

    async def call(self, **params):
        answer = await self.ask("tools/call", params)
        assert answer.status == 200, answer
        data = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
        return answer._replace(body=data[-1].encode()).json

    async def end(self, **headers):
        return await self.server.ask("DELETE", "/mcp", Mcp_Session_Id=self.session, **{**self.headers, **headers})


async def new(server, method, who=ALICE, client="tests", name=None, **params):
    """One request of the new era; returns its result."""
    body = message(method, envelope(client, **params) if name is None else envelope(client, name=name, **params))
    answer = await server.ask("POST", "/mcp", body, **modern(method, name), **who)
    assert answer.status == 200, answer
    return answer.json["result"]


# --- the official client --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_lists_and_calls_in_both_eras(server, mode) -> None:
    async with official(server, mode, "alice") as client:
        assert client.protocol_version == (OLD if mode == "legacy" else "2026-07-28")
        assert "gpio_set" not in {tool.name for tool in (await client.list_tools()).tools}
        await client.call_tool("hacp_search", {"query": "gpio_set"})
        assert "gpio_set" in {tool.name for tool in (await client.list_tools(cache_mode="bypass")).tools}
        result = await client.call_tool("gpio_set", {"line": 17, "value": 1})
        assert result.structured_content == {"line": 17, "value": 1}
        assert server.world.level(17) == 1
        principal = server.world.config.policy[0].match["token_sha256"]
        assert (await server.recorded(event="session.open"))["principal"] == f"token:{principal}"
        halted = await client.call_tool("hacp_halt", {"reason": "smoke"})
        assert halted.structured_content["reason"] == "smoke"
        assert "only a person can end the halt" in halted.content[0].text


@pytest.mark.parametrize("more", [0, 1])
async def test_a_message_has_so_many_values_and_no_more(server, more) -> None:
    client = await Old.open(server, **ALICE)

    def document(count):
        return message("tools/call", {**SET, "arguments": {**SET["arguments"], "more": [0] * count}})

    # Not counted again here: the method, the id and all that a message has beside the array's items.
    items = next(count for count in range(20_000, 0, -1) if not has_more_values(document(count), 20_000)) + more
    answer = await server.ask("POST", "/mcp", document(items), Mcp_Session_Id=client.session, **client.headers)
    if not more:
        assert answer.status == 200
        return
    assert answer.status == 400
    assert (answer.json["id"], answer.json["error"]["code"]) == (None, -32600)
    assert answer.json["error"]["data"]["max_values"] == 20_000
    assert (await client.call(**SET))["result"]["isError"] is False, "and the session goes on"


@pytest.mark.slow
async def test_a_client_of_the_old_era_that_says_goodbye_leaves_its_lines_safe(server) -> None:
    async with official(server, "legacy") as client:
        await client.call_tool("gpio_set", {"line": 17, "value": 1})
        assert server.world.level(17) == 1
    await passes(lambda: server.world.level(17) == 0)
    await passes(lambda: server.runtime.sessions == 0)


@pytest.mark.slow
async def test_over_tls_a_client_certificate_says_who_calls(serve, bench) -> None:
    http = HttpConfig(listen=LISTEN, cert=bench.server_cert, key=bench.server_key, client_ca=bench.ca)
    context = ssl.create_default_context(cafile=str(bench.ca))
    context.load_cert_chain(bench.client_cert, bench.client_key)
    async with serve(http) as server:
        for mode in ("legacy", "auto"):
            async with official(server, mode, verify=context) as client:
                assert not (await client.call_tool("gpio_set", {"line": 17, "value": 1})).is_error
        keys = {record["principal"] for record in server.world.records(event="session.open")}
        assert keys == {"cert:CN=bench-client,O=hearth tests"}
        # Without one, a token does; and on loopback, being a user of this machine.
        plain = ssl.create_default_context(cafile=str(bench.ca))
        async with official(server, "auto", "bob", verify=plain) as client:
            assert not (await client.call_tool("gpio_get", {"line": 17})).is_error
        async with official(server, "auto", verify=plain) as client:
            assert not (await client.call_tool("gpio_get", {"line": 17})).is_error
        assert len({record["principal"] for record in server.world.records(event="session.open")}) == 3


# --- whose it is ----------------------------------------------------------------------------------------------------


async def test_a_session_of_the_old_era_belongs_to_its_principal(server) -> None:
    """Another principal is answered as if it did not exist, whatever is asked of it."""
    session = await Old.open(server, **ALICE)
    await session.call(**SET)
    for who in (BOB, {"Authorization": None}):
        assert (await session.ask("tools/list", **who)).status == 404
        assert (await session.end(**who)).status == 404
        stream = await server.ask("GET", "/mcp", Accept=BOTH, Mcp_Session_Id=session.session, **who)
        assert stream.status == 404
    assert server.world.level(17) == 1
    assert (await session.end()).status == 200


async def test_clients_of_the_new_era_are_told_apart_by_principal_and_name(server) -> None:
    for who, client in ((ALICE, "one"), (ALICE, "two"), (BOB, "one"), (ALICE, "one")):
        await new(server, "tools/call", who, client, **SET)
    assert server.runtime.sessions == 3
    opened = server.world.records(event="session.open")
    assert [record["client_name"] for record in opened] == ["one", "two", "one"]


async def test_what_one_client_of_the_new_era_drives_stays_between_its_requests(server) -> None:
    await new(server, "tools/call", **SET)
    assert (await new(server, "tools/call", name="gpio_get", arguments={"line": 17}))["structuredContent"]["value"] == 1


# --- when it ends ---------------------------------------------------------------------------------------------------


async def test_deleting_a_session_makes_its_lines_safe_and_forgets_it(server) -> None:
    session = await Old.open(server, **ALICE)
    await session.call(**SET)
    assert server.world.level(17) == 1
    assert (await session.end()).status == 200
    await passes(lambda: server.world.level(17) == 0)
    assert server.runtime.sessions == 0
    assert (await session.ask("tools/list")).status == 404


@pytest.mark.slow
async def test_a_session_that_is_deleted_while_it_is_served_leaves_no_other_behind(server) -> None:
    session = await Old.open(server, **ALICE)
    async with trio.open_nursery() as nursery:
        watch = {"name": "gpio_watch", "arguments": {"line": 4, "timeout_ms": 60_000, "edge": "both"}}
        nursery.start_soon(session.ask, "tools/call", watch)
        await passes(lambda: server.runtime.sessions == 1)
        assert (await session.end()).status == 200
    await passes(lambda: server.runtime.sessions == 0)
    assert len(server.world.records(event="session.open")) == 1


@pytest.mark.proof
async def test_a_client_of_the_old_era_that_vanishes_is_missed_after_the_idle_ttl(serve) -> None:
    async with serve(idle_ttl_s=2) as server:
        session = await Old.open(server, **ALICE)
        await session.call(**SET)
        assert server.world.level(17) == 1
        await passes(lambda: server.world.level(17) == 0)
        assert (await session.ask("tools/list")).status == 404


@pytest.mark.proof
async def test_a_client_of_the_old_era_that_listens_is_there(serve) -> None:
    async with serve(idle_ttl_s=2) as server:
        session = await Old.open(server, **ALICE)
        await session.call(**SET)
        async with await server.connect() as raw:
            await raw.send(raw.request("GET", "/mcp", Accept=BOTH, Mcp_Session_Id=session.session, **ALICE))
            assert (await raw.head()).status == 200
            await trio.sleep(3)  # past the idle TTL
            assert server.world.level(17) == 1
        await passes(lambda: server.world.level(17) == 0)


@pytest.mark.proof
async def test_a_client_of_the_new_era_is_forgotten_when_its_session_has_ended_idle(serve) -> None:
    async with serve(idle_ttl_s=2) as server:
        await new(server, "tools/call", **SET)
        assert server.world.level(17) == 1
        await passes(lambda: server.world.level(17) == 0)
        await passes(lambda: server.runtime.sessions == 0)
        # Whoever comes back is told that what it drove is no longer driven.
        again = await new(server, "tools/call", name="gpio_get", arguments={"line": 17})
        assert again["structuredContent"]["value"] == 0


@pytest.mark.proof
async def test_clients_are_forgotten_with_their_sessions(serve, monkeypatch) -> None:
    made = []

    class Noted(mcp_http.HttpClients):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(mcp_http, "HttpClients", Noted)
    async with serve(idle_ttl_s=4) as server:
        for number in range(6):
            await new(server, "tools/call", client=f"{number:02}" * 300, **SET)
        session = await Old.open(server, **ALICE)
        await session.call(**SET)
        (clients,) = made
        assert len(clients) == 7
        assert server.runtime.sessions == 7
        await passes(lambda: not len(clients))
        await passes(lambda: not server.runtime.sessions)
        assert not clients._by_name
        assert {len(record["client_name"]) for record in server.world.records(event="session.open")} <= {256, 5}


async def test_a_request_that_outlives_its_session_gets_no_other(serve) -> None:
    async with trio.open_nursery() as nursery:
        clients = mcp_http.HttpClients(None, nursery, None, alive=None, idle_ttl=1, most=1)
        request = SimpleNamespace(state=SimpleNamespace(principal=None), headers={"mcp-session-id": "ended"})
        with pytest.raises(MCPError, match="initialize a new one"):
            await clients.of(SimpleNamespace(request=request, protocol_version=OLD))


@pytest.mark.proof
async def test_a_task_that_runs_keeps_a_client_of_the_new_era_known(serve) -> None:
    async with serve(idle_ttl_s=1) as server:
        pulse = {"line": 18, "value": 1, "duration_ms": 5000}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: new(server, "tools/call", name="gpio_pulse", arguments=pulse))
            await passes(lambda: server.world.level(18) == 1)
            await trio.sleep(2)
            assert server.world.level(18) == 1
        assert server.world.level(18) == 0
        assert {record["status"] for record in server.world.records(event="task.finish")} == {"SUCCESS"}


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_daemon_that_ends_makes_lines_safe_and_answers_what_is_under_way(serve, era) -> None:
    watch = {"name": "gpio_watch", "arguments": {"line": 4, "timeout_ms": 60_000, "edge": "both"}}
    async with serve() as server:
        level = server.world.level
        await new(server, "tools/call", **SET)
        raw = await server.connect()
        if era == "new":
            body, headers = message("tools/call", envelope(**watch)), modern("tools/call", "gpio_watch", **ALICE)
        else:
            session = await Old.open(server, **ALICE)
            body, headers = message("tools/call", watch), {**session.headers, "Mcp_Session_Id": session.session}
        before = server.runtime.buses["gpio:sim"].health()["transactions"]
        await raw.send(raw.request("POST", "/mcp", body, **headers))
        await passes(lambda: server.runtime.buses["gpio:sim"].health()["transactions"] > before)
    assert not server.cut
    assert level(17) == 0
    async with raw:
        answer = await raw.answer()
        text = answer.body.decode()
        assert '"isError":true' in text
        assert await raw.ended() == b""


# --- bounds ---------------------------------------------------------------------------------------------------------


async def test_one_principal_has_so_many_sessions_of_the_old_era_and_no_more(serve) -> None:
    async with serve(max_sessions_per_principal=2) as server:
        sessions = [await Old.open(server, **ALICE) for _ in range(2)]
        answer = await server.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH, **ALICE)
        assert answer.status == 503
        await Old.open(server, **BOB)
        await sessions[0].end()
        await Old.open(server, **ALICE)


@pytest.mark.proof
async def test_one_principal_has_so_many_names_and_no_more(serve) -> None:
    async with serve(max_sessions_per_principal=2, idle_ttl_s=3.0) as server:
        for client in ("one", "two"):
            await new(server, "tools/call", client=client, **SET)
        body = message("tools/list", envelope("three"))
        answer = await server.ask("POST", "/mcp", body, **modern("tools/list"), **ALICE)
        assert "fewer names in clientInfo" in answer.json["error"]["message"]
        await new(server, "tools/list", BOB, "three")
        await passes(lambda: server.runtime.sessions == 0)
        await new(server, "tools/call", client="three", **SET)


async def test_a_request_that_opens_no_session_leaves_none(server) -> None:
    for _ in range(3):
        answer = await server.ask("POST", "/mcp", message("tools/list"), Content_Type=JSON, Accept=BOTH, **ALICE)
        assert answer.status == 400
    assert server.runtime.sessions == 0
    unknown = await server.ask(
        "POST", "/mcp", message("tools/list"), Content_Type=JSON, Accept=BOTH, Mcp_Session_Id="nobody's", **ALICE
    )
    assert unknown.status == 404


ACCEPTS = [
    (None, (JSON, "text/event-stream")),
    ("", (JSON, "text/event-stream")),
    ("*/*", (JSON, "text/event-stream")),
    (JSON, (JSON,)),
    ("application/*;q=0.5", (JSON,)),
    ("text/event-stream, application/json;q=0", ("text/event-stream",)),
    ("text/event-stream", ("text/event-stream",)),
    ("text/*", ("text/event-stream",)),
    (BOTH, (JSON, "text/event-stream")),
    ("text/html, */*;q=0.1", (JSON, "text/event-stream")),
    ("text/html", ()),
    ("application/json;q=0, text/event-stream;q=0.0, */*;q=0", ()),
]


def answer_in(answer):
    """The JSON-RPC response in an answer of either type."""
    if answer.headers["content-type"].startswith(JSON):
        return answer.json
    return json.loads([line for line in answer.body.decode().splitlines() if line.startswith("data: ")][-1][6:])


@pytest.mark.parametrize(("accept", "kinds"), ACCEPTS)
@pytest.mark.parametrize("path", ["/mcp", "/mcp/"])
async def test_a_client_is_answered_in_a_type_that_it_accepts(server, accept, kinds, path) -> None:
    """RFC 9110, 12.5.1: no field means any type; the SDK demands both types of each request."""
    accepting = {} if accept is None else {"Accept": accept}
    old = {"Content_Type": JSON, **accepting, **ALICE}
    first = await server.ask("POST", path, initialize(), **old)
    if not kinds:
        assert (first.status, "mcp-session-id" in first.headers) == (406, False)
        return
    answers = [first]
    session = {"Mcp_Session_Id": first.headers["mcp-session-id"], "Mcp_Protocol_Version": OLD}
    answers.append(await server.ask("POST", path, message("tools/call", SET), **session, **old))
    new = {**modern("tools/call", "gpio_set", **accepting)}
    if accept is None:
        del new["Accept"]
    answers.append(await server.ask("POST", path, message("tools/call", envelope(**SET)), **new, **ALICE))
    for answer in answers:
        assert answer.status == 200
        assert answer.headers["content-type"].partition(";")[0] in kinds
        assert "result" in answer_in(answer)
    assert answer_in(answers[1])["result"]["structuredContent"] == {"line": 17, "value": 1}


async def test_what_opens_no_session_carries_no_id_of_one(server) -> None:
    for method, accept in (("HEAD", "*/*"), ("GET", JSON), ("GET", BOTH), ("PUT", BOTH), ("POST", "text/html")):
        answer = await server.ask(method, "/mcp", Accept=accept, Content_Type=JSON, **ALICE)
        assert answer.status >= 400, method
        assert "mcp-session-id" not in answer.headers, method


async def test_a_stream_that_lasts_is_nothing_for_a_client_that_takes_only_json(server) -> None:
    listen = message("subscriptions/listen", envelope())
    answer = await server.ask("POST", "/mcp", listen, **modern("subscriptions/listen", Accept=JSON), **ALICE)
    assert answer.status == 406


@pytest.mark.parametrize("id_", ["1.0", "null", "1.5", "true", "[1]"])
async def test_a_request_with_another_id_than_a_string_or_an_integer_is_refused_and_not_run(server, id_) -> None:
    """JSON-RPC 2.0 §4, §5.1."""
    old = await Old.open(server, **ALICE)
    body = message("tools/call", SET, id_="?").replace(b'"?"', id_.encode())
    answer = await server.ask("POST", "/mcp", body, Mcp_Session_Id=old.session, **old.headers)
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (400, None, -32600)
    twice = body.replace(b'"value": 1', b'"value": 0, "value": 1').replace(id_.encode(), b"5")
    answer = await server.ask("POST", "/mcp", twice, Mcp_Session_Id=old.session, **old.headers)
    assert (answer.status, answer.json["error"]["code"]) == (400, -32600)
    assert (await old.call(name="gpio_get", arguments={"line": 17}))["result"]["structuredContent"]["value"] == 0


@pytest.mark.parametrize("accept", [BOTH, JSON, "text/event-stream"])
async def test_a_batch_is_received_in_the_revision_that_has_them(server, accept) -> None:
    """MCP 2025-03-26, Basic, Batching, and Transports: an array of JSON, or a stream with each request's response."""
    first = initialize().replace(OLD.encode(), b"2025-03-26")
    opened = await server.ask("POST", "/mcp", first, Content_Type=JSON, Accept=accept, **ALICE)
    head = {"Content_Type": JSON, "Accept": accept, "Mcp_Session_Id": opened.headers["mcp-session-id"], **ALICE}
    batch = [message("ping", id_="a"), message("notifications/initialized", id_=None), message("tools/list", id_="b")]
    answer = await server.ask("POST", "/mcp", b"[" + b",".join(batch) + b"]", **head)
    assert answer.status == 200
    if accept == "text/event-stream":
        got = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    else:
        got = answer.json
    assert [(one["id"], "result" in one) for one in got] == [("a", True), ("b", True)]
    only = await server.ask("POST", "/mcp", b"[" + batch[1] + b"]", **head)
    assert (only.status, only.body) == (202, b"")
    for wrong, more in (
        (b"[]", {}),
        (b"[" + first + b"]", {}),
        (b"[" + batch[0] + b"]", {"Mcp_Protocol_Version": OLD}),
    ):
        refused = await server.ask("POST", "/mcp", wrong, **head, **more)
        assert (refused.status, refused.json["error"]["code"]) == (400, -32600)
