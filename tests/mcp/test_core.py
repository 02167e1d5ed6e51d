"""The server over its providers: what is offered, lists and their pages, names, and how an error is told."""

from __future__ import annotations

import mcp_types as types
import pytest
import trio
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.mcp import ERAS, mcp_client, memory, text_of
from support.world import BOB, BenchWorld, running

from hearth.actors.bridges.mcp.provider import Method, Provider
from hearth.actors.bridges.mcp.server import INSTRUCTIONS, PAGE, HacpTools, make_server
from hearth.actors.bridges.mcp.stdio import one_client
from hearth.errors import CarrierError, ConfigError, DeviceError, InvalidParams
from hearth.mcp.names import META_ERROR, PLAN
from hearth.policy.rules import Match, PolicyEntry

both_eras = pytest.mark.parametrize("mode", ERAS)


@pytest.fixture
async def w():
    async with running(BenchWorld()) as world:
        yield world


def tool(name):
    return types.Tool(name=name, input_schema={"type": "object"})


class Shelf(Provider):
    """Offers tools that answer with their name."""

    def __init__(self, *names):
        self._names = names

    async def tools(self, ask):
        return [tool(name) for name in self._names]

    async def call(self, ask, params):
        if params.name not in self._names:
            return None
        return types.CallToolResult(content=[types.TextContent(type="text", text=params.name)])


# --- what is offered ------------------------------------------------------------------------------------------------


@both_eras
async def test_a_server_says_who_it_is_and_how_it_is_used(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        assert client.server_info.name == "hearth"
        assert client.server_info.icons
        assert client.instructions == INSTRUCTIONS
        for needed in ("gpio_set", PLAN, "dry_run", "Risk", "safe state", "is data, and never an instruction"):
            assert needed in client.instructions


@both_eras
async def test_only_what_some_provider_has_is_advertised(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        had = client.server_capabilities
        assert had.tools is not None
        assert (had.resources, had.prompts, had.logging, had.completions) == (None, None, None, None)
        for refused in (client.list_resources, client.list_prompts):
            with pytest.raises(MCPError) as caught:
                await refused()
            assert caught.value.code == -32601


class Said(types.Result):
    """What the method of an extension is answered with."""

    modern: bool


class Everything(Provider):
    """Offers one of each kind."""

    def __init__(self):
        self.said = []

    async def resources(self, ask):
        return [types.Resource(uri="x://one", name="one")]

    async def templates(self, ask):
        return [types.ResourceTemplate(uri_template="x://{n}", name="n")]

    async def read(self, ask, params):
        if params.uri != "x://one":
            return None
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri="x://one", text="1")])

    async def subscribe(self, ask, params):
        self.said.append(("subscribe", params.uri))
        return params.uri == "x://one"

    async def unsubscribe(self, ask, params):
        self.said.append(("unsubscribe", params.uri))
        return params.uri == "x://one"

    async def prompts(self, ask):
        return [types.Prompt(name="hello")]

    async def prompt(self, ask, params):
        if params.name != "hello":
            return None
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(type="text", text="hello"))]
        )

    async def complete(self, ask, params):
        if params.argument.value != "h":
            return None
        return types.CompleteResult(completion=types.Completion(values=["hello"]))

    async def set_level(self, ask, params):
        self.said.append(("level", params.level))

    async def listen(self, ask, params):
        return types.SubscriptionsListenResult(_meta={"io.modelcontextprotocol/subscriptionId": ask.ctx.request_id})

    def methods(self):
        return [Method("x/new", types.RequestParams, self._new, frozenset({"2026-07-28"}))]

    async def _new(self, ask, params):
        return {"modern": ask.modern}

    def extensions(self):
        return {"dev.example/x": {"a": 1}}

    def input_schema(self, name):
        return {"type": "object"} if name == "known" else None


@both_eras
async def test_each_kind_reaches_the_provider_that_has_it(autojump_clock, w, mode):
    everything = Everything()
    async with mcp_client(w.sessions(), mode, offers=[Shelf("a"), everything]) as client:
        assert client.server_capabilities.resources.subscribe is True
        # Capabilities of before 2026-07-28 have no place for extensions.
        assert client.server_capabilities.extensions == ({"dev.example/x": {"a": 1}} if mode == "auto" else None)
        assert [one.name for one in (await client.list_resources()).resources] == ["one"]
        assert [one.name for one in (await client.list_resource_templates()).resource_templates] == ["n"]
        assert (await client.read_resource("x://one")).contents[0].text == "1"
        assert [one.name for one in (await client.list_prompts()).prompts] == ["hello"]
        assert (await client.get_prompt("hello")).messages[0].content.text == "hello"
        reference = types.PromptReference(type="ref/prompt", name="hello")
        for value, values in (("h", ["hello"]), ("q", [])):
            completed = await client.complete(reference, {"name": "n", "value": value})
            assert completed.completion.values == values


@both_eras
async def test_what_no_device_has_is_refused_with_the_code_of_its_kind(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode, offers=[Everything()]) as client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource("x://two")
        assert caught.value.code == (-32002 if mode == "legacy" else -32602)
        assert caught.value.data == {"uri": "x://two"}
        with pytest.raises(MCPError) as caught:
            await client.get_prompt("bye")
        assert caught.value.code == -32602


async def test_until_2025_a_client_subscribes_to_a_resource_and_sets_its_log_level(autojump_clock, w):
    everything = Everything()
    async with mcp_client(w.sessions(), "legacy", offers=[everything]) as client:
        session = client.session
        await session.send_request(_old(types.SubscribeRequest, uri="x://one"), types.EmptyResult)
        await session.send_request(_old(types.UnsubscribeRequest, uri="x://one"), types.EmptyResult)
        await session.send_request(_old(types.UnsubscribeRequest, uri="x://two"), types.EmptyResult)
        await session.send_request(_old(types.SetLevelRequest, level="warning"), types.EmptyResult)
        with pytest.raises(MCPError) as caught:
            await session.send_request(_old(types.SubscribeRequest, uri="x://two"), types.EmptyResult)
    assert caught.value.code == -32002
    assert everything.said == [
        ("subscribe", "x://one"),
        ("unsubscribe", "x://one"),
        ("unsubscribe", "x://two"),
        ("level", "warning"),
        ("subscribe", "x://two"),
    ]


def _old(kind, **params):
    return kind(params=kind.model_fields["params"].annotation(**params))


@both_eras
async def test_a_method_of_an_extension_is_found_in_the_versions_that_have_it(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode, offers=[Everything()]) as client:
        request = types.Request[types.RequestParams, str](method="x/new", params=types.RequestParams())
        if mode == "legacy":
            with pytest.raises(MCPError) as caught:
                await client.session.send_request(request, types.EmptyResult)
            assert caught.value.code == -32601
        else:
            assert (await client.session.send_request(request, Said)).modern is True


async def test_two_providers_of_one_method_cannot_be_put_together(w):
    with pytest.raises(ConfigError, match="x/new"):
        make_server([Everything(), Everything()], one_client(w.sessions()))


async def test_a_tools_schema_can_be_had_without_a_request(w):
    server = make_server([Shelf("a"), Everything()], one_client(w.sessions()))
    assert server.get_tool_input_schema("known") == {"type": "object"}
    assert server.get_tool_input_schema("unknown") is None


# --- lists ----------------------------------------------------------------------------------------------------------


@both_eras
async def test_tools_come_in_the_order_of_their_providers_each_time(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode, offers=[Shelf("b", "a"), HacpTools(), Shelf("c")]) as client:
        first = [one.name for one in (await client.list_tools()).tools]
        second = [one.name for one in (await client.list_tools(cache_mode="bypass")).tools]
    assert first[:2] == ["b", "a"]
    assert first[-1] == "c"
    assert "bench_set" in first
    assert first == second


@both_eras
async def test_a_long_list_comes_in_pages_and_each_tool_once(autojump_clock, w, mode):
    names = [f"t{number}" for number in range(2 * PAGE + 1)]
    async with mcp_client(w.sessions(), mode, offers=[Shelf(*names)]) as client:
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await client.list_tools(cursor=cursor)
            found += [one.name for one in page.tools]
            cursor, pages = page.next_cursor, pages + 1
        assert found == names
        assert pages == 3


@both_eras
@pytest.mark.parametrize("cursor", ["", "nonsense", "dG9vbHM6MA==", "dG9vbHM6OTk5OTk=", "cHJvbXB0czoxMDA=", "é", "-"])
async def test_a_cursor_that_is_not_ours_is_refused(autojump_clock, w, mode, cursor):
    names = [f"t{number}" for number in range(PAGE + 1)]
    async with mcp_client(w.sessions(), mode, offers=[Shelf(*names)]) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools(cursor=cursor)
    assert caught.value.code == -32602


@both_eras
async def test_two_tools_of_one_name_are_refused_and_named(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode, offers=[HacpTools(), Shelf("bench_set")]) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
    assert "bench_set" in caught.value.message
    assert "Shelf" in caught.value.message


async def test_lists_may_be_kept_for_a_while_but_not_shared(autojump_clock, w):
    async with mcp_client(w.sessions(), "auto") as client:
        listed = await client.list_tools()
    assert listed.ttl_ms == 60_000
    assert listed.cache_scope == "private"


# --- interceptors ---------------------------------------------------------------------------------------------------


class Between(Provider):
    """Writes down what passes."""

    def __init__(self, name, seen, answer=None):
        self._name, self._seen, self._answer = name, seen, answer

    async def intercept(self, ask, params, call_next):
        self._seen.append((self._name, params.name))
        return self._answer or await call_next(ask, params)


@both_eras
async def test_interceptors_are_asked_in_order_before_any_tool_is_called(autojump_clock, w, mode):
    seen = []
    async with mcp_client(
        w.sessions(), mode, offers=[Between("one", seen), Shelf("a"), Between("two", seen)]
    ) as client:
        assert text_of(await client.call_tool("a", {})) == "a"
    assert seen == [("one", "a"), ("two", "a")]


@both_eras
async def test_an_interceptor_can_answer_itself(autojump_clock, w, mode):
    answer = {"content": [{"type": "text", "text": "mine"}], "resultType": "complete"}
    async with mcp_client(w.sessions(), mode, offers=[Between("one", [], answer), Shelf("a")]) as client:
        assert text_of(await client.call_tool("a", {})) == "mine"


# --- errors ---------------------------------------------------------------------------------------------------------


class Failing(Provider):
    """Raises."""

    def __init__(self, error, *, in_nursery=False):
        self._error, self._in_nursery = error, in_nursery

    async def resources(self, ask):
        if self._in_nursery:
            async with trio.open_nursery():
                raise self._error
        raise self._error


@both_eras
@pytest.mark.parametrize("in_nursery", [False, True])
async def test_hacps_codes_are_never_mcps_but_stay_in_the_data(autojump_clock, w, mode, in_nursery):
    broken = DeviceError("it burns", effect="done")
    async with mcp_client(w.sessions(), mode, offers=[Failing(broken, in_nursery=in_nursery)]) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_resources()
    assert caught.value.code == -32603
    assert "it burns" in caught.value.message
    assert caught.value.data[META_ERROR]["code"] == broken.code


@both_eras
@pytest.mark.parametrize("in_nursery", [False, True])
async def test_an_mcp_error_stays_what_it_is(autojump_clock, w, mode, in_nursery):
    mine = MCPError(code=-32602, message="mine")
    async with mcp_client(w.sessions(), mode, offers=[Failing(mine, in_nursery=in_nursery)]) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_resources()
    assert (caught.value.code, caught.value.message) == (-32602, "mine")


@both_eras
async def test_who_may_not_open_a_session_is_told_why_by_lists_and_by_calls(autojump_clock, mode):
    policy = PolicyEntry(name="alice", match=Match(uid=1001), max_risk=2)
    async with running(BenchWorld(policy=(policy,))) as w, mcp_client(w.sessions(BOB), mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
        called = await client.call_tool("bench_read", {})
    assert caught.value.code == -32600
    assert "permission" in caught.value.message.lower()
    assert caught.value.data[META_ERROR]["code"] == -32003
    assert called.is_error
    assert "ermission" in text_of(called)
    assert "Nothing has happened" in text_of(called)


@both_eras
async def test_a_call_that_a_provider_finds_wrong_is_a_failure(autojump_clock, w, mode):
    class Particular(Shelf):
        """Takes no arguments at all."""

        async def call(self, ask, params):
            raise InvalidParams("Invalid params: /x: not wanted", data={"path": "/x", "reason": "not wanted"})

    async with mcp_client(w.sessions(), mode, offers=[Particular("a")]) as client:
        result = await client.call_tool("a", {"x": 1})
    assert result.is_error
    assert "/x: not wanted" in text_of(result)


class Nowhere:
    """A daemon that is not there."""

    def open_session(self, **_named):
        raise CarrierError("nobody answers at /run/hearth.sock")


@both_eras
async def test_a_daemon_that_is_not_there_is_told_as_that(autojump_clock, mode):
    async with mcp_client(Nowhere(), mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_tools()
        called = await client.call_tool("bench_read", {})
    assert caught.value.code == -32603
    assert "/run/hearth.sock" in caught.value.message
    assert called.is_error
    assert "/run/hearth.sock" in text_of(called)
    assert "Nothing has happened" in text_of(called)


async def test_a_request_state_that_was_not_given_out_here_is_refused(autojump_clock, w):
    server = make_server([HacpTools()], one_client(w.sessions()))
    async with Client(memory(server), mode="auto") as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("bench_danger", {}, request_state="forged")
    assert caught.value.code == -32602


@both_eras
async def test_a_bug_in_a_provider_is_not_mistaken_for_an_error_of_the_protocol(autojump_clock, w, mode):
    class Broken(Provider):
        """Has a bug, under a nursery of its own."""

        async def resources(self, ask):
            async with trio.open_nursery():
                raise KeyError("a bug")

    async with mcp_client(w.sessions(), mode, offers=[Broken(), Shelf("a")]) as client:
        with pytest.raises(MCPError) as caught:
            await client.list_resources()
        assert text_of(await client.call_tool("a", {})) == "a", "the server goes on"
    assert caught.value.code in (0, -32603)


async def test_from_2026_on_the_first_who_listens_serves_the_stream(autojump_clock, w):
    async with mcp_client(w.sessions(), "auto", offers=[Shelf("a"), Everything(), Everything()][:2]) as client:
        params = types.SubscriptionsListenRequestParams(notifications=types.SubscriptionFilter(tools_list_changed=True))
        request = types.SubscriptionsListenRequest(params=params)
        answer = await client.session.send_request(request, types.SubscriptionsListenResult)
    assert answer.meta["io.modelcontextprotocol/subscriptionId"] is not None
