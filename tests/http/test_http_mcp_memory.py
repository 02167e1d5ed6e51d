"""What the MCP bridge keeps for a client over HTTP is charged to its principal, for as long as it is kept."""

import json
from contextlib import asynccontextmanager

import pytest
from support.http import BOTH, JSON, OLD, TOKENS, envelope, initialize, message, modern, passes

from hearth.actors.bridges.mcp.provider import RetainedRequest
from hearth.mcp.names import META_ERROR
from hearth.policy.memory import MemoryBudget
from hearth.policy.principal import from_token

ALICE = {"Authorization": f"Bearer {TOKENS['alice']}"}
BOB = {"Authorization": f"Bearer {TOKENS['bob']}"}
LEAST = 1 << 20
"""The smallest budget there is."""
TASKS = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def kept(server):
    """What is charged to Alice now."""
    return server.runtime.memory.for_principal(from_token(TOKENS["alice"]).key).used


@asynccontextmanager
async def thrifty(serve, **limits):
    """A listener with the smallest budget; at the end nothing is kept for anybody."""
    async with serve(**{"max_retained_bytes": LEAST, **limits}) as server:
        yield server
    assert server.runtime.memory.used == 0


async def ask(server, method, who=ALICE, name=None, *, capabilities=None, **params):
    """One request of the new era; returns its answer's JSON."""
    said = envelope(**params) if name is None else envelope(**params, name=name)
    said["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities or {}
    routed = name or params.get("taskId")
    answer = await server.ask("POST", "/mcp", message(method, said), **modern(method, routed), **who)
    return answer.json


def refused(said):
    """HACP's error in an answer, if it is one."""
    told = said["error"]["data"] if "error" in said else said["result"].get("_meta", {})
    return told.get(META_ERROR)


PLAN = {
    "intent": "keep much",
    "steps": [
        {"tool": "gpio.watch", "args": {"line": 4, "timeout_ms": 150}},
        *({"tool": "hw.board", "args": {}} for _ in range(60)),
    ],
}


@pytest.mark.proof
async def test_a_principal_with_long_outcomes_is_refused_with_the_reason_while_another_is_served(serve) -> None:
    async with thrifty(serve, max_retained_bytes=2 * LEAST, idle_ttl_s=4) as server:
        kept_first = 0
        for _ in range(30):
            said = await ask(server, "tools/call", name="hacp_plan", arguments=PLAN, capabilities=TASKS)
            while said.get("result", {}).get("status") == "working":
                said = await ask(server, "tasks/get", taskId=said["result"]["taskId"], capabilities=TASKS)
            ended = said.get("result", {})
            if ended.get("status") != "completed" or ended["result"]["isError"]:
                break
            kept_first += 1
        assert 2 < kept_first < 30
        # As a call, a task or a step that has failed, whichever finds no room.
        assert '"limit": "max_retained_bytes"' in json.dumps(said)
        assert kept(server) > LEAST
        served = await ask(server, "tools/call", BOB, name="hw_board", arguments={})
        assert not served["result"]["isError"]
        # Nobody asks for them any more.
        await passes(lambda: server.runtime.memory.used == 0)


@pytest.mark.slow
async def test_bodies_that_are_held_are_charged_and_one_too_many_is_refused_with_the_reason(serve) -> None:
    async with thrifty(serve) as server:
        said = message("tools/call", envelope(name="gpio_get", arguments={"line": 17, "more": "x" * 700_000}))
        headers = modern("tools/call", "gpio_get", **ALICE)
        async with await server.connect() as raw:
            whole = raw.request("POST", "/mcp", said, **headers)
            await raw.send(whole[:600_000])
            await passes(lambda: kept(server) > 500_000)
            answer = await server.ask("POST", "/mcp", said, **headers)
            assert answer.status == 503
            assert answer.headers["retry-after"]
            assert answer.json["error"]["code"] == -32005
            assert answer.json["error"]["data"]["limit"] == "max_retained_bytes"
            served = await ask(server, "tools/call", BOB, name="gpio_get", arguments={"line": 17})
            assert not served["result"]["isError"]
            small = await ask(server, "tools/list")
            assert small["result"]["tools"], "and what is small is served in spite of it"
            before = kept(server)
        await passes(lambda: kept(server) < before - 500_000)


@pytest.mark.slow
async def test_clients_are_charged_one_by_one_and_one_too_many_is_refused_with_the_reason(serve) -> None:
    async with thrifty(serve, idle_ttl_s=0.5) as server:
        for number in range(10):
            said = message("tools/call", envelope(f"client {number}", name="gpio_get", arguments={"line": 17}))
            answer = await server.ask("POST", "/mcp", said, **modern("tools/call", "gpio_get", **ALICE))
            if "error" in answer.json:
                break
        assert 1 < number < 9
        assert refused(answer.json)["data"]["limit"] == "max_retained_bytes"
        await passes(lambda: server.runtime.memory.used == 0)


async def test_what_a_peer_has_yet_to_take_is_charged() -> None:
    account = MemoryBudget().for_principal("alice")
    request = RetainedRequest(account, {})
    before = account.used
    sent = []

    async def send(message):
        sent.append((message["type"], account.used - before))

    await request.sending(send)({"type": "http.response.start"})
    await request.sending(send)({"type": "http.response.body", "body": b"x" * 5000})
    assert sent == [("http.response.start", 0), ("http.response.body", 5000)]
    assert account.used == before
    request.let_go()
    assert account.used == 0


@pytest.mark.slow
async def test_a_body_is_charged_as_what_it_becomes_and_not_by_its_length(serve) -> None:
    # Beside the arguments: one that the tool does not know would be refused.
    many = {"name": "gpio_get", "arguments": {"line": 17}, "more": [0] * 15_000}
    async with thrifty(serve) as server:
        said = message("tools/call", envelope(**many))
        answer = await server.ask("POST", "/mcp", said, **modern("tools/call", "gpio_get", **ALICE))
        assert len(said) < 50_000
        assert answer.status == 503
        assert answer.json["error"]["data"]["needed_bytes"] > LEAST
    async with serve() as server:
        served = await ask(server, "tools/call", **many)
        assert served["result"]["structuredContent"] == {"line": 17, "value": 0}


@pytest.mark.slow
async def test_subscriptions_are_charged_whatever_their_spelling_and_released_with_the_client(serve) -> None:
    async with thrifty(serve) as server:
        opened = await server.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept=BOTH, **ALICE)
        session = {
            "Content_Type": JSON,
            "Accept": BOTH,
            "Mcp_Protocol_Version": OLD,
            "Mcp_Session_Id": opened.headers["mcp-session-id"],
            **ALICE,
        }
        await server.ask("POST", "/mcp", message("notifications/initialized", id_=None), **session)

        async def old(method, **params):
            answer = await server.ask("POST", "/mcp", message(method, params), **session)
            data = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
            return json.loads(data[-1])

        listed = (await old("resources/list"))["result"]["resources"]
        name = next(each["uri"] for each in listed if each["uri"].startswith("hearth://sensors/")).rpartition("/")[2]
        before = kept(server)
        for number in range(100):
            # The same sensor, with some of its letters spelled by their numbers.
            letters = (f"%{ord(at):02x}" if number >> index & 1 else at for index, at in enumerate(name))
            said = await old("resources/subscribe", uri=f"hearth://sensors/{''.join(letters)}")
            if "error" in said:
                break
        assert number > 10
        assert refused(said)["data"]["limit"] == "max_retained_bytes"
        assert kept(server) > before + number * 10_000
        served = await ask(server, "tools/call", BOB, name="gpio_get", arguments={"line": 17})
        assert not served["result"]["isError"]
        assert (await server.ask("DELETE", "/mcp", **session)).status == 200
        await passes(lambda: kept(server) == 0)
