"""Where no connection, session or memory is left: a person's page and a model's tool still halt, over HTTP."""

from __future__ import annotations

import json

import pytest
import trio
from support import raw_websocket
from support.http import BOTH, JSON, OLD, TOKENS, envelope, initialize, message, modern, passes
from support.raw_websocket import RawWebSocket

from hearth.mcp.names import HALT
from hearth.policy.principal import from_token

pytestmark = pytest.mark.slow

ALICE = {"Authorization": f"Bearer {TOKENS['alice']}"}
KEY = from_token(TOKENS["alice"]).key
HALT_NOW = {"name": HALT, "arguments": {"reason": "smoke"}}


async def page(server, who="alice"):
    """What a page opens: its WebSocket, on a connection of its own."""
    protocols = f"Sec-WebSocket-Protocol: hacp.v0, bearer.{TOKENS[who]}"
    web = await RawWebSocket.connect(server.port)
    await web.send(raw_websocket.request(protocols, path="/hacp", host=f"127.0.0.1:{server.port}"))
    assert (await web.answer()).status == 101
    return web


async def call(web, method, **params):
    await web.text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    return json.loads((await web.receive())[1])


async def full_of_connections(server):
    """Alice has as many connections as there may be, and nobody else has one."""
    webs = [await page(server) for _ in range(server.world.limits.max_connections)]
    await passes(lambda: server.authenticated == len(webs))
    return webs


async def short_of_descriptors(server):
    """Only descriptors for halts are left; tests/system/test_halt_doors.py has a process for which that is true."""
    server.limiter.scarce = lambda _connected, halting=False: not halting
    return []


@pytest.fixture(params=[full_of_connections, short_of_descriptors])
async def full(request, serve):
    async with serve(max_connections=2, handshake_timeout_s=5) as server:
        held = await request.param(server)
        yield server
        for one in held:
            await trio.aclose_forcefully(one.stream)


def halted(server):
    assert server.runtime.halt.flag.halted
    (record,) = server.world.records("halt")
    assert (record["reason"], record["principal"]) == ("smoke", KEY)


async def test_a_page_is_opened_and_its_button_halts_and_nothing_else_of_it_works(full) -> None:
    assert (await full.ask("GET", "/ui/", **ALICE)).status == 200
    assert (await full.ask("GET", "/ui", **ALICE)).status == 308
    assert (await full.ask("GET", "/healthz", **ALICE)).status == 503
    web = await page(full)
    for method in ("session.open", "hcp.sessions"):
        assert (await call(web, method))["error"]["code"] == -32005
    await web.text('{"hcp_version":"1.0"}')
    assert "connections are open" in json.loads((await web.receive())[1])["error"]["data"]["reason"]
    assert (await call(web, "halt.status"))["result"]["halted"] is False
    assert (await call(web, "halt", reason="smoke"))["result"]["halted"]
    halted(full)
    await trio.aclose_forcefully(web.stream)


async def test_the_page_that_waits_there_outlives_the_time_of_a_handshake(full) -> None:
    web = await page(full)
    assert (await call(web, "halt.status"))["result"]["halted"] is False
    [waiting] = [one for one in full.listener._connections if one.unknown_peer]
    assert waiting.scope.deadline == float("inf")
    await trio.aclose_forcefully(web.stream)
    await passes(lambda: waiting not in full.listener._connections)


@pytest.mark.parametrize("era", ["old", "new"])
async def test_the_tool_of_a_model_halts_without_a_place_and_no_other_request_of_it_is_served(full, era) -> None:
    old = {
        "Content_Type": JSON,
        "Accept": BOTH,
        "Mcp_Protocol_Version": OLD,
        "Mcp_Session_Id": "of-a-former-one",
    }
    for name, params in ((HALT, HALT_NOW), ("gpio_get", {"name": "gpio_get", "arguments": {"line": 17}})):
        headers = {**(old if era == "old" else modern("tools/call", name)), **ALICE}
        body = message("tools/call", params if era == "old" else envelope(**params))
        answer = await full.ask("POST", "/mcp", body, **headers)
        if name != HALT:
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            continue
        assert answer.status == 200
        assert answer.json["result"]["structuredContent"]["reason"] == "smoke"
    answer = await full.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH, **ALICE)
    assert (answer.status, answer.json["error"]["code"]) == (503, -32005)
    assert (await full.ask("GET", "/mcp", Accept=BOTH, **ALICE)).status == 503
    halted(full)


async def test_who_fills_the_places_for_halts_makes_room_for_the_next(full) -> None:
    places = full.limiter.unknown_peers if full.authenticated else full.listener._last
    silent = [await full.connect() for _ in range(20)]
    await passes(lambda: len(places) == places._each)
    web = await page(full)
    assert (await call(web, "halt", reason="smoke"))["result"]["halted"]
    halted(full)
    assert len(places) == places._each
    for one in (web, *silent):
        await trio.aclose_forcefully(one.stream)


async def test_beyond_the_descriptors_for_halts_a_connection_is_closed(serve) -> None:
    async with serve() as server:
        server.limiter.scarce = lambda _connected, halting=False: True
        async with await server.connect() as raw:
            assert await raw.answer() is None


@pytest.mark.parametrize(
    "body",
    [
        message("tools/call", {"name": "gpio_get", "arguments": {"line": 17, "why": HALT}}),
        message("tools/list", {"name": HALT}),
        message("tools/call", HALT_NOW, None),
        message("tools/call", {"name": HALT, "arguments": {"reason": "x" * (16 << 10)}}),
        b"[" + message("tools/call", HALT_NOW) + b"]",
        HALT.encode(),
    ],
    ids=["another tool", "another method", "a notification", "too long", "a batch", "no JSON"],
)
async def test_what_only_looks_like_a_halt_is_no_halt_by_itself(full, body) -> None:
    answer = await full.ask("POST", "/mcp", body, Content_Type=JSON, Accept=BOTH, **ALICE)
    assert answer.status == 503
    assert not full.runtime.halt.flag.halted


async def test_a_client_without_memory_or_names_halts(serve) -> None:
    async with serve(max_sessions_per_principal=1) as server:
        for client in ("one", "two"):
            body = message("tools/call", envelope(client, name="gpio_get", arguments={"line": 17}))
            answer = await server.ask("POST", "/mcp", body, **modern("tools/call", "gpio_get", **ALICE))
        assert "fewer names in clientInfo" in answer.json["error"]["message"]
        account = server.runtime.memory.for_principal(KEY)
        account.add(server.world.limits.max_retained_bytes)
        assert account.full
        answer = await server.ask(
            "POST", "/mcp", message("tools/call", envelope("two", **HALT_NOW)), **modern("tools/call", HALT, **ALICE)
        )
        account.release(server.world.limits.max_retained_bytes)
        assert answer.json["result"]["structuredContent"]["halted"]
        halted(server)
