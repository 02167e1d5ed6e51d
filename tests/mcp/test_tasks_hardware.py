"""hearth's own tools as MCP tasks: what a client calls, cancels and allows is a HACP task underneath."""

from typing import Literal

import mcp_types as types
import pytest
import trio
from mcp.client.client import Client
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict
from support.mcp import memory, text_of
from support.mcp_tasks import DECLARED, EXTENSION, accepted, serving
from support.world import BenchWorld, running

from hearth.actors.bridges.mcp.long_call import LEASE
from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.server import HacpTools, PlanTool, make_server
from hearth.actors.bridges.mcp.stdio import one_client
from hearth.actors.bridges.mcp.tasks import EVENTUALLY, LONG_MS, SOON, Tasks, Terms
from hearth.tools import Tool


class Handle(types.Result):
    """What a call that became a task is answered with."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    ttl_ms: int | None
    poll_interval_ms: int


class TaskRequest(types.Request[dict, str]):
    """A request of the extension."""

    name_param = "taskId"


class State(types.Result):
    """An answer of the extension, as it came."""

    model_config = ConfigDict(extra="allow")


class TasksClient(ClientExtension):
    """The client's half: it polls until the task is over, and has `answer` answer what is asked meanwhile."""

    identifier = EXTENSION

    def __init__(self, answer=None):
        self.handles = []
        self.messages = []
        self._answer = answer

    def claims(self):
        return [ResultClaim(result_type="task", model=Handle, resolve=self._resolve)]

    async def _resolve(self, handle, ctx):
        self.handles.append(handle)
        while True:
            state = await ask(ctx.session, "tasks/get", taskId=handle.task_id)
            self.messages.append(state.get("statusMessage"))
            if state["status"] == "input_required":
                answers = {key: self._answer(request) for key, request in state["inputRequests"].items()}
                await ask(ctx.session, "tasks/update", taskId=handle.task_id, inputResponses=answers)
            elif state["status"] == "completed":
                return types.CallToolResult.model_validate(state["result"])
            elif state["status"] != "working":
                raise MCPError(**state.get("error", {"code": 0, "message": state["status"]}))
            await trio.sleep(handle.poll_interval_ms / 1000)


async def ask(session, method, **params):
    return (await session.send_request(TaskRequest(method=method, params=params), State)).model_extra


OFFERS = [Tasks, HacpTools, PlanTool]


def board_client(world, extension, **options):
    """The official client of a server that offers a world's tools as `hearth mcp` does."""
    server = make_server([offer() for offer in OFFERS], one_client(world.sessions()))
    return Client(memory(server), mode="2026-07-28", extensions=[extension], **options)


def board(world):
    """A raw connection to the same."""
    return serving(*[offer() for offer in OFFERS], sessions=world.sessions())


def slow(**more):
    """A tool that declares that it can take long, and does until its event comes."""
    given = {
        "name": "bench.slow",
        "risk_level": 0,
        "timeout_ms": LONG_MS,
        "description": "Takes its time.",
        "params_schema": {"type": "object"},
        "result_schema": {"type": "object"},
        "capability": "CAP_GPIO_READ",
        "bus": lambda _args: "a",
    }
    return Tool(**{**given, **more})


async def until_set(ctx, _args):
    ctx.progress({"almost": True})
    await trio.sleep(3)
    return {"done": True}


@pytest.fixture
async def w():
    async with running(BenchWorld(extra_tools=[slow(run=until_set)])) as world:
        yield world


async def test_the_official_client_gets_the_result_of_a_long_tool_through_its_extension(autojump_clock, w):
    extension = TasksClient()
    async with board_client(w, extension) as client:
        result = await client.call_tool("bench_slow", {})
        quick = await client.call_tool("bench_read", {"tag": "x"})
    assert result.structured_content == {"done": True}
    assert not result.is_error
    assert quick.structured_content == {"tag": "x"}
    assert len(extension.handles) == 1
    assert any("almost" in message for message in extension.messages if message)


async def test_the_result_of_a_task_is_the_very_result_of_the_call(autojump_clock):
    async def nulls(_ctx, _args):
        await trio.sleep(3)
        return {"value": None, "more": [None, {"deep": None}]}

    async with running(BenchWorld(extra_tools=[slow(run=nulls)])) as world, board(world) as wire:
        direct = await wire.call("bench_slow", capabilities={})
        done = await wire.ends(await wire.call("bench_slow"))
    for result in (direct, done["result"]):
        result["_meta"] = set(result.get("_meta", {})) - {"io.modelcontextprotocol/serverInfo"}
    assert done["result"] == direct
    assert direct["resultType"] == "complete"
    assert direct["structuredContent"] == {"value": None, "more": [None, {"deep": None}]}


async def test_a_result_of_another_extensions_shape_stays_as_it_is(autojump_clock):
    class Odd(Provider):
        async def intercept(self, ask, params, call_next):
            await trio.sleep(3)
            return {"resultType": "odd", "shape": [1]}

    async def soon(_ask, _params):
        return Terms(after=SOON)

    async with serving(Tasks(soon), Odd(), HacpTools()) as wire:
        done = await wire.ends(await wire.call("anything"))
    assert done["result"] == {"resultType": "odd", "shape": [1]}


@pytest.mark.slow
async def test_a_plan_and_a_tool_that_can_take_long_are_tasks_soon_and_any_other_tool_eventually(autojump_clock, w):
    async with board(w) as wire:
        for tool, arguments, after in (
            ("bench_slow", {}, SOON),
            ("hacp_plan", {"intent": "wait", "steps": [{"tool": "bench_nap", "args": {"ms": 20_000}}]}, SOON),
            ("bench_nap", {"ms": 20_000}, EVENTUALLY),
        ):
            began = trio.current_time()
            created = await wire.call(tool, arguments)
            assert created["resultType"] == "task", tool
            assert trio.current_time() - began == pytest.approx(after, abs=0.05)
        quick = await wire.call("bench_nap", {"ms": 1000 * (EVENTUALLY - 1)})
        assert quick["structuredContent"] == {"napped": True}
        unknown = await wire.call("no_such_tool")
        assert unknown["isError"] is True


async def test_a_cancelled_task_is_a_cancelled_hacp_task_and_its_transaction_finishes_whole(autojump_clock, w):
    gate = w.gate("held")
    async with board(w) as wire:
        plan = [{"tool": "bench_read", "args": {"tag": "write", "gate": "held"}}, {"tool": "bench_nap", "args": {}}]
        created = await wire.call("hacp_plan", {"intent": "cut me", "steps": plan})
        await gate.reached()
        await wire.cancel(created)
        state = await wire.ends(created)
        gate.open()
        assert state["status"] == "cancelled"
        await wire.call("bench_read", {"tag": "after"})
    finish = [record for record in w.journal.records if record["event"] == "task.finish"]
    assert [record["status"] for record in finish] == ["CANCELLED", "SUCCESS"]
    assert w.observer.labels("end") == ["write", "after"]
    w.observer.assert_whole()


async def test_a_client_that_vanished_with_a_task_running_has_its_hacp_task_cancelled(autojump_clock, w):
    async with board(w) as wire:
        created = await wire.call("bench_wait", {"tag": "never"})
        await trio.sleep(LEASE + 1)
        state = await wire.get(created)
    assert state["status"] == "cancelled"
    assert "its client has not asked" in state["statusMessage"]
    (finish,) = [record for record in w.journal.records if record["event"] == "task.finish"]
    assert finish["status"] == "CANCELLED"


async def test_when_the_hacp_session_ends_so_do_the_clients_tasks_and_they_say_it(autojump_clock, w):
    async with board(w) as wire:
        created = await wire.call("bench_wait", {"tag": "never"})
        session = await wire.serving.clients.clients["a"].session()
        await session.close()
        done = await wire.ends(created)
    assert done["status"] == "completed"
    assert done["result"]["isError"] is True
    (finish,) = [record for record in w.journal.records if record["event"] == "task.finish"]
    assert finish["status"] == "CANCELLED"


async def test_arguments_that_the_schema_refuses_are_answered_with_the_error_and_no_task(autojump_clock, w):
    async with board(w) as wire:
        refused = await wire.call("bench_set", {"line": 4, "value": 7})
    assert refused["isError"] is True
    assert "/value: 7 is greater than the maximum of 1" in refused["content"][0]["text"]


async def test_without_a_session_a_call_says_the_same_as_where_there_are_no_tasks(autojump_clock):
    async with running(BenchWorld(policy=())) as world:
        async with board(world) as wire:
            declared = await wire.call("bench_slow")
            undeclared = await wire.call("bench_slow", capabilities={})
        async with serving(HacpTools(), sessions=world.sessions()) as wire:
            alone = await wire.call("bench_slow")
    assert alone["isError"] is True
    assert declared == undeclared == alone


def allowing(allow):
    """A person who is asked, and what they were asked."""
    asked = []

    def answer(request):
        asked.append(request["params"]["message"])
        return accepted() if allow else {"action": "decline"}

    return asked, answer


@pytest.mark.parametrize("allow", [True, False])
async def test_a_person_is_asked_within_a_task_about_what_is_dangerous(autojump_clock, w, allow):
    async def at_once(_ask, _params):
        return Terms(after=0)

    asked, answer = allowing(allow)
    server = make_server([Tasks(at_once), HacpTools()], one_client(w.sessions()))

    async def person(_ctx, _params):
        raise AssertionError("asked by the call, and not by the task")

    extension = TasksClient(answer)
    options = {"mode": "2026-07-28", "extensions": [extension], "elicitation_callback": person}
    async with Client(memory(server), **options) as client:
        result = await client.call_tool("bench_danger", {"tag": "boom"})
    (question,) = asked
    assert "bench.danger" in question
    assert w.observer.labels("begin") == (["boom"] if allow else [])
    assert result.is_error is not allow, text_of(result)


async def test_a_person_is_asked_before_there_is_a_task_where_that_is_soon_enough(autojump_clock, w):
    async def person(_ctx, params):
        return types.ElicitResult(action="accept")

    extension = TasksClient()
    async with board_client(w, extension, elicitation_callback=person) as client:
        result = await client.call_tool("bench_danger", {"tag": "boom"})
    assert result.structured_content == {"tag": "boom"}
    assert extension.handles == []


async def test_a_task_of_a_client_that_cannot_ask_a_person_says_that_nothing_was_done(autojump_clock, w):
    async def at_once(_ask, _params):
        return Terms(after=0)

    without = {"extensions": DECLARED["extensions"]}
    async with serving(Tasks(at_once), HacpTools(), sessions=w.sessions()) as wire:
        created = await wire.call("bench_danger", {"tag": "boom"}, capabilities=without)
        done = await wire.ends(created)
    assert done["result"]["isError"] is True
    assert w.observer.labels("begin") == []


async def test_before_2026_07_28_a_call_is_a_call_and_tasks_are_not_spoken_of(autojump_clock, w):
    server = make_server([offer() for offer in OFFERS], one_client(w.sessions()))
    async with Client(memory(server), mode="legacy", extensions=[TasksClient()]) as client:
        result = await client.call_tool("bench_nap", {"ms": 20_000})
        with pytest.raises(MCPError) as caught:
            await ask(client.session, "tasks/get", taskId="0" * 32)
        assert client.server_capabilities.tasks is None
        assert client.server_capabilities.extensions is None
        tools = (await client.list_tools()).tools
    assert result.structured_content == {"napped": True}
    assert caught.value.code == types.METHOD_NOT_FOUND
    assert all(tool.execution is None for tool in tools)
