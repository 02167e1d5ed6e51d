"""The tasks extension on the wire: when a call becomes a task, and what a client then sees of it."""

import json
import logging
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import httpx2
import mcp_types as types
import pytest
import trio
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.shared.dispatcher import DispatchContext
from mcp.shared.exceptions import MCPError
from pydantic_core import ValidationError
from support import mcp_tasks
from support.mcp_tasks import (
    DECLARED,
    EXTENSION,
    VERSION,
    ByName,
    Errands,
    accepted,
    envelope,
    form,
    serving,
    text,
)

from hearth.actors.bridges.mcp.long_call import LEASE, MOST_ROUNDS, CallChannel
from hearth.actors.bridges.mcp.provider import Provider
from hearth.actors.bridges.mcp.server import make_server
from hearth.actors.bridges.mcp.tasks import MOST_TASKS, Tasks, Terms
from hearth.errors import InvalidParams, ResourceBusy
from hearth.mcp.names import META_ERROR
from hearth.policy.memory import MCP_CLIENT_BYTES, MemoryBudget

REQUIRED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


def tasks(**after):
    """Every tool becomes a task after a second, but for those that are named."""

    async def terms(_ask, params):
        given = after.get(params.name, 1.0)
        return Terms(after=given) if isinstance(given, float | int) else given

    return Tasks(terms)


async def nap(_ask, params):
    await trio.sleep(params.arguments["s"])
    return text(f"slept {params.arguments['s']} s")


async def forever(_ask, _params):
    await trio.sleep_forever()


@pytest.fixture
async def wire():
    async with serving(tasks(direct=None, must=Terms(1.0, required=True)), NAPS) as wire:
        yield wire


NAPS = Errands(nap=nap, direct=nap, must=nap, forever=forever)


async def test_a_call_that_is_over_soon_is_answered_with_its_result(autojump_clock, wire):
    result = await wire.call("nap", {"s": 0.5})

    assert result["resultType"] == "complete"
    assert result["content"][0]["text"] == "slept 0.5 s"
    assert "taskId" not in result


async def test_a_call_that_takes_longer_is_answered_with_a_task_that_ends_with_the_same_result(autojump_clock, wire):
    direct = await wire.call("direct", {"s": 3})
    created = await wire.call("nap", {"s": 3})
    working = await wire.get(created)
    done = await wire.ends(created)

    assert created.pop("_meta")
    assert working.pop("_meta")
    assert created["resultType"] == "task"
    assert working.pop("ttlMs") == pytest.approx(created["ttlMs"], abs=10)
    assert {**created, "resultType": "complete"} == {**working, "ttlMs": created["ttlMs"]}
    assert set(created) == {
        *("resultType", "taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"),
    }
    assert working["status"] == "working"
    assert done["status"] == "completed"
    assert done["resultType"] == "complete"
    assert done["createdAt"] == created["createdAt"]
    assert done["createdAt"].endswith("Z")
    direct.pop("_meta")
    assert done["result"] == direct


async def test_a_tool_that_never_becomes_a_task_is_waited_for(autojump_clock, wire):
    assert (await wire.call("direct", {"s": 100}))["content"][0]["text"] == "slept 100 s"


async def test_a_tool_that_is_a_task_at_once_is_one_even_if_it_is_done_at_once(autojump_clock):
    async def quick(_ask, _params):
        return text("done")

    async with serving(tasks(quick=0), Errands(quick=quick)) as wire:
        for _ in range(20):
            created = await wire.call("quick")
            assert created["resultType"] == "task"
            assert (await wire.ends(created))["result"]["content"][0]["text"] == "done"


async def test_ids_of_tasks_are_random_and_long(autojump_clock, wire):
    ids = {(await wire.call("forever"))["taskId"] for _ in range(10)}
    assert len(ids) == 10
    assert all(len(task_id) == 32 and int(task_id, 16) >= 0 for task_id in ids)
    assert len({task_id[:4] for task_id in ids}) > 5


# --- who may --------------------------------------------------------------------------------------------------------


async def test_a_client_that_has_not_declared_the_extension_is_answered_with_the_result_however_long_it_takes(
    autojump_clock, wire
):
    result = await wire.call("nap", {"s": 50}, capabilities={})
    assert result["content"][0]["text"] == "slept 50 s"


async def test_a_tool_that_must_be_a_task_is_refused_to_a_client_that_has_not_declared_the_extension(
    autojump_clock, wire
):
    with pytest.raises(MCPError) as caught:
        await wire.call("must", {"s": 0}, capabilities={})
    assert (caught.value.code, caught.value.data) == (-32021, REQUIRED)


@pytest.mark.parametrize(
    ("method", "more"), [("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})]
)
async def test_the_methods_need_the_declaration_on_each_request(autojump_clock, wire, method, more):
    created = await wire.call("forever")
    with pytest.raises(MCPError) as caught:
        await wire.ask(method, {"taskId": created["taskId"], **more}, capabilities={"elicitation": {}})
    assert (caught.value.code, caught.value.data) == (-32021, REQUIRED)
    assert (await wire.get(created))["status"] == "working"


@pytest.mark.parametrize(
    ("method", "more"), [("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})]
)
async def test_a_task_of_another_client_is_no_more_there_than_one_that_never_was(autojump_clock, wire, method, more):
    created = await wire.call("forever", name="a")
    with pytest.raises(MCPError) as others:
        await wire.ask(method, {"taskId": created["taskId"], **more}, name="b")
    with pytest.raises(MCPError) as nobodys:
        await wire.ask(method, {"taskId": "0" * 32, **more}, name="b")
    assert others.value.error == nobodys.value.error
    assert others.value.code == types.INVALID_PARAMS
    assert (await wire.get(created, name="a"))["status"] == "working"


@pytest.mark.parametrize("method", ["tasks/result", "tasks/list"])
async def test_methods_of_the_former_experiment_are_not_found(autojump_clock, wire, method):
    with pytest.raises(MCPError) as caught:
        await wire.ask(method, {"taskId": "0"})
    assert caught.value.code == types.METHOD_NOT_FOUND


async def test_the_server_says_that_it_speaks_the_extension(autojump_clock, wire):
    capabilities = (await wire.ask("server/discover", {}))["capabilities"]
    assert capabilities["extensions"] == {EXTENSION: {}}
    assert "tasks" not in capabilities


# --- how it ends ----------------------------------------------------------------------------------------------------


async def test_a_tool_that_fails_has_completed_and_says_so_in_its_result(autojump_clock):
    async def fail(_ask, _params):
        await trio.sleep(5)
        return text("no such line", is_error=True)

    async with serving(tasks(), Errands(fail=fail)) as wire:
        done = await wire.ends(await wire.call("fail"))
    assert done["status"] == "completed"
    assert done["result"]["isError"] is True


async def test_a_call_that_is_answered_with_an_error_has_failed_with_that_error(autojump_clock):
    async def refuse(_ask, params):
        await trio.sleep(params.arguments["s"])
        raise MCPError(code=-32602, message="no such line", data={"line": 99})

    async with serving(tasks(), Errands(refuse=refuse)) as wire:
        with pytest.raises(MCPError) as direct:
            await wire.call("refuse", {"s": 0})
        failed = await wire.ends(await wire.call("refuse", {"s": 5}))
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": -32602, "message": "no such line", "data": {"line": 99}}
    assert failed["error"] == direct.value.error.model_dump()
    assert failed["statusMessage"] == "no such line"
    assert "result" not in failed


async def _in_a_nursery(error):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        raise error


REFUSALS = {
    "mcp": (MCPError(code=-32602, message="no such line", data={"line": 99}), -32602),
    "hacp": (ResourceBusy("i2c-1 is leased"), types.INTERNAL_ERROR),
    "params": (InvalidParams("no such bus"), types.INVALID_PARAMS),
}
SHAPE = ValidationError.from_exception_data("x", [{"type": "missing", "loc": ("y",), "input": 1}])


@pytest.mark.parametrize(
    ("error", "code", "grouped"),
    [
        *[pytest.param(*refusal, False, id=name) for name, refusal in REFUSALS.items()],
        *[pytest.param(*refusal, True, id=f"{name}-in-a-group") for name, refusal in REFUSALS.items()],
        pytest.param(SHAPE, types.INVALID_PARAMS, False, id="shape"),
    ],
)
async def test_a_task_fails_with_the_error_that_the_call_would_have_been_answered_with(
    autojump_clock, caplog, error, code, grouped
):
    class Within(Provider):
        """An interceptor within: what it raises, no provider has made a result of."""

        async def intercept(self, ask, params, call_next):
            await trio.sleep(params.arguments["s"])
            if grouped:
                await _in_a_nursery(error)
            raise error

    async with serving(tasks(nap=None), Within(), NAPS) as wire:
        with pytest.raises(MCPError) as alone:
            await wire.call("nap", {"s": 0})
    async with serving(tasks(), Within(), NAPS) as wire:
        with pytest.raises(MCPError) as direct:
            await wire.call("nap", {"s": 0})
        failed = await wire.ends(await wire.call("nap", {"s": 5}))
    assert alone.value.code == code
    assert direct.value.error == alone.value.error
    assert failed["error"] == alone.value.error.model_dump(mode="json", exclude_none=True)
    assert caplog.records == []


@pytest.mark.parametrize("seconds", [0, 5])
async def test_a_crash_fails_the_call_without_telling_why_and_everything_else_goes_on(autojump_clock, caplog, seconds):
    async def crash(_ask, _params):
        await trio.sleep(seconds)
        if seconds:
            await _in_a_nursery(KeyError("a bug"))
        raise KeyError("a bug")

    async with serving(tasks(), Errands(crash=crash, nap=nap)) as wire:
        if seconds:
            failed = await wire.ends(await wire.call("crash"))
            assert failed["status"] == "failed"
            error = failed["error"]
        else:
            with pytest.raises(MCPError) as caught:
                await wire.call("crash")
            error = caught.value.error.model_dump(exclude_none=True)
        assert error == {"code": types.INTERNAL_ERROR, "message": "Internal server error"}
        assert (await wire.call("nap", {"s": 0}))["content"]
    assert [(record.name, record.levelno) for record in caplog.records] == [("hearth.supervisor", logging.ERROR)]
    assert "a bug" in caplog.text


async def test_cancel_ends_the_call_and_is_acknowledged_with_nothing(autojump_clock):
    ended = trio.Event()

    async def watch(_ask, _params):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving(tasks(), Errands(watch=watch)) as wire:
        created = await wire.call("watch")
        acknowledgement = await wire.cancel(created)
        state = await wire.ends(created)
        again = await wire.cancel(created)
        assert (await wire.get(created))["status"] == "cancelled"
    assert set(acknowledgement) == set(again) == {"resultType", "_meta"}
    assert acknowledgement["resultType"] == "complete"
    assert state["status"] == "cancelled"
    assert state["statusMessage"] == "cancelled: its client asked for that"
    assert not {"result", "error"} & set(state)
    assert ended.is_set()


async def test_a_task_that_is_over_stays_as_it_is_when_it_is_cancelled(autojump_clock, wire):
    created = await wire.call("nap", {"s": 2})
    done = await wire.ends(created)
    await wire.cancel(created)
    assert (await wire.get(created))["result"] == done["result"]


async def test_a_call_that_finishes_although_it_was_cancelled_has_completed(autojump_clock):
    async def stubborn(_ask, _params):
        with trio.CancelScope(shield=True):
            await trio.sleep(10)
        return text("written, whole")

    async with serving(tasks(), Errands(stubborn=stubborn)) as wire:
        created = await wire.call("stubborn")
        await wire.cancel(created)
        assert (await wire.get(created))["status"] == "working"
        assert (await wire.ends(created))["result"]["content"][0]["text"] == "written, whole"


async def test_a_request_that_is_cancelled_before_it_was_answered_takes_its_call_along(autojump_clock):
    ended = trio.Event()

    async def watch(_ask, _params):
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with serving(tasks(watch=100), Errands(watch=watch)) as wire:
        id_ = await wire.send("tools/call", {"name": "watch", "arguments": {}})
        await trio.sleep(5)
        assert not ended.is_set()
        await wire.notify("notifications/cancelled", {"requestId": id_})
        with trio.fail_after(5):
            await ended.wait()


async def test_when_the_server_ends_the_waiters_for_a_call_are_let_go(autojump_clock):
    with trio.fail_after(10):
        async with serving(tasks(forever=1000), NAPS) as wire:
            await wire.send("tools/call", {"name": "forever", "arguments": {}})
            await wire.call("nap", {"s": 2})


async def test_when_a_client_has_gone_its_calls_end_and_its_tasks_are_forgotten_and_the_others_go_on(autojump_clock):
    ended = []

    async def watch(ask, _params):
        try:
            await trio.sleep_forever()
        finally:
            ended.append(ask.ctx.session.client_params.client_info.name)

    async with serving(tasks(), Errands(watch=watch)) as wire:
        gone = await wire.call("watch", name="a")
        there = await wire.call("watch", name="b")
        wire.serving.clients.clients["a"].close()
        with pytest.raises(MCPError, match="not found"):
            await wire.ends(gone, name="a")
        assert (await wire.get(there, name="b"))["status"] == "working"
        assert ended == ["a"]


async def test_when_a_client_is_let_go_the_waiters_for_its_calls_are_told(autojump_clock):
    async with serving(tasks(forever=1000), NAPS) as wire:
        await wire.call("nap", {"s": 0})
        async with trio.open_nursery() as nursery:
            wire.serving.clients.clients["a"].nursery = nursery
            id_ = await wire.send("tools/call", {"name": "forever", "arguments": {}})
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        with pytest.raises(MCPError, match="cancelled"):
            await wire.answer(id_)


# --- for how long ---------------------------------------------------------------------------------------------------


async def test_a_task_without_a_reader_is_cancelled_as_if_its_client_had_vanished_and_says_so(autojump_clock, wire):
    created = await wire.call("forever")
    assert created["ttlMs"] == 1000 * (LEASE + 1)
    await trio.sleep(LEASE + 1)
    state = await wire.get(created)
    assert state["status"] == "cancelled"
    assert state["statusMessage"] == "cancelled: its client has not asked for it for 300 s"


async def test_asking_keeps_a_task_alive_and_moves_its_ttl(autojump_clock, wire):
    created = await wire.call("nap", {"s": 1000})
    for _ in range(4):
        await trio.sleep(LEASE - 60)
        state = await wire.get(created)
        assert state["status"] == "working"
        assert state["ttlMs"] == pytest.approx(1000 * (trio.current_time() - 0 + LEASE), abs=2000)
    await trio.sleep(LEASE - 60)
    assert (await wire.get(created))["status"] == "completed"


async def test_a_result_can_be_read_for_a_whole_lease_after_the_end_and_is_gone_after_it(autojump_clock, wire):
    created = await wire.call("nap", {"s": LEASE - 10})
    await trio.sleep(LEASE - 10 + LEASE - 20)
    assert (await wire.get(created))["status"] == "completed"
    await trio.sleep(LEASE + 1)
    with pytest.raises(MCPError) as caught:
        await wire.get(created)
    assert caught.value.code == types.INVALID_PARAMS


@pytest.mark.slow
async def test_a_client_with_as_many_tasks_as_it_may_have_is_answered_directly(autojump_clock, wire):
    created = [await wire.call("forever") for _ in range(MOST_TASKS)]
    late = await wire.call("nap", {"s": 30})
    with pytest.raises(MCPError) as caught:
        await wire.call("must", {"s": 30})
    others = await wire.call("nap", {"s": 30}, name="b")

    assert late["resultType"] == "complete"
    assert "64 tasks" in caught.value.message
    assert others["resultType"] == "task"

    for task in created:
        await wire.cancel(task)
    await trio.sleep(LEASE + 1)
    assert (await wire.call("must", {"s": 30}))["resultType"] == "task"


# --- input ----------------------------------------------------------------------------------------------------------


async def ask_for_two(_ask, params):
    given = params.input_responses or {}
    if "name" not in given:
        return types.InputRequiredResult(
            input_requests={"name": form("Who?", "n"), "sure": form("Sure?", "s")}, request_state="first"
        )
    if "more" not in given and params.request_state == "first":
        return types.InputRequiredResult(input_requests={"name": form("Really?", "n")}, request_state="second")
    return text(f"{given['name'].content['n']} {params.request_state}")


async def test_what_is_asked_before_the_task_is_asked_by_the_call(autojump_clock):
    async with serving(tasks(), Errands(two=ask_for_two)) as wire:
        answered = await wire.call("two")
    assert answered["resultType"] == "input_required"
    assert set(answered["inputRequests"]) == {"name", "sure"}
    assert "taskId" not in answered


async def test_what_is_asked_in_a_task_is_its_state_until_all_of_it_is_answered(autojump_clock):
    async with serving(tasks(two=0), Errands(two=ask_for_two)) as wire:
        created = await wire.call("two")
        assert not {"inputRequests", "requestState"} & set(created)
        asking = await wire.reaches(created, "input_required")
        (name, sure) = sorted(asking["inputRequests"])
        assert asking["inputRequests"][name]["method"] == "elicitation/create"
        assert asking["inputRequests"][name]["params"]["message"] == "Who?"
        assert "requestState" not in asking

        acknowledgement = await wire.update(created, {sure: accepted(s="yes"), "unknown": {"ignored": True}})
        assert set(acknowledgement) == {"resultType", "_meta"}
        half = await wire.get(created)
        assert (half["status"], set(half["inputRequests"])) == ("input_required", {name})

        await wire.update(created, {name: accepted(n="Ann"), sure: accepted(s="no")})
        again = await wire.reaches(created, "input_required")
        (third,) = again["inputRequests"]
        assert third not in (name, sure)
        assert again["inputRequests"][third]["params"]["message"] == "Really?"

        await wire.update(created, {name: accepted(n="stale")})
        assert (await wire.get(created))["status"] == "input_required"
        await wire.update(created, {third: accepted(n="Bob")})
        done = await wire.ends(created)
    assert done["result"]["content"][0]["text"] == "Bob second"


async def test_an_answer_that_does_not_answer_its_question_is_refused_and_none_is_taken(autojump_clock):
    async with serving(tasks(two=0), Errands(two=ask_for_two)) as wire:
        created = await wire.call("two")
        asking = await wire.reaches(created, "input_required")
        name, sure = sorted(asking["inputRequests"])
        with pytest.raises(MCPError) as caught:
            await wire.update(created, {name: accepted(n="Ann"), sure: {"action": "perhaps"}})
        assert caught.value.code == types.INVALID_PARAMS
        assert sure in caught.value.message
        assert set((await wire.get(created))["inputRequests"]) == {name, sure}


async def test_a_task_that_waits_for_a_person_can_be_cancelled(autojump_clock):
    async with serving(tasks(two=0), Errands(two=ask_for_two)) as wire:
        created = await wire.call("two")
        await wire.reaches(created, "input_required")
        await wire.cancel(created)
        assert (await wire.ends(created))["status"] == "cancelled"
        assert "inputRequests" not in await wire.get(created)


async def test_a_model_is_asked_like_a_person(autojump_clock):
    async def sample(_ask, params):
        given = (params.input_responses or {}).get("idea")
        if given is not None:
            return text(given.content.text)
        message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="An idea?"))
        request = types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=9))
        return types.InputRequiredResult(input_requests={"idea": request})

    async with serving(tasks(sample=0), Errands(sample=sample)) as wire:
        created = await wire.call("sample")
        asking = await wire.reaches(created, "input_required")
        (key,) = asking["inputRequests"]
        await wire.update(
            created, {key: {"role": "assistant", "content": {"type": "text", "text": "blink"}, "model": "m"}}
        )
        assert (await wire.ends(created))["result"]["content"][0]["text"] == "blink"


@pytest.mark.slow
async def test_a_call_that_never_stops_asking_fails(autojump_clock):
    async def never(_ask, _params):
        return types.InputRequiredResult(request_state="again")

    async with serving(tasks(never=0), Errands(never=never)) as wire:
        failed = await wire.ends(await wire.call("never"))
    assert failed["status"] == "failed"
    assert f"more than {MOST_ROUNDS} times" in failed["error"]["message"]


async def test_a_call_that_only_wants_to_be_tried_again_is_and_gets_its_state_back(autojump_clock):
    states = []

    async def later(_ask, params):
        states.append(params.request_state)
        return text("now") if len(states) > 2 else types.InputRequiredResult(request_state=f"try {len(states)}")

    async with serving(tasks(later=0), Errands(later=later)) as wire:
        done = await wire.ends(await wire.call("later"))
    assert done["status"] == "completed"
    assert states == [None, "try 1", "try 2"]


# --- what it says meanwhile -----------------------------------------------------------------------------------------


async def talk(ask, _params):
    assert ask.wants_progress
    for number in range(1, 5):
        await ask.ctx.session.report_progress(number, 4, f"step {number}")
        await ask.ctx.session.report_progress(number + 0.5, 4)
        await ask.ctx.session.send_log_message("warning", f"entry {number}", related_request_id=ask.ctx.request_id)
        await trio.sleep(0.6)
    assert not ask.ctx.session.can_send_request
    with pytest.raises(MCPError):
        await ask.ctx.session.elicit_form("Who?", {"type": "object", "properties": {}}, ask.ctx.request_id)
    assert ask.can_elicit
    assert ask.ctx.session.client_params.client_info.name == "a"
    return text("done")


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_progress_goes_to_the_request_until_that_is_answered_and_is_the_tasks_message_from_then_on(
    autojump_clock,
):
    async with serving(tasks(), Errands(talk=talk)) as wire:
        created = await wire.call("talk", meta={"progressToken": "p", "io.modelcontextprotocol/logLevel": "info"})
        assert created["statusMessage"] == "step 2"
        before = list(wire.notifications)
        await wire.until(lambda: True)
        await trio.sleep(0.5)
        assert (await wire.get(created))["statusMessage"] == "step 3"
        done = await wire.ends(created)
        assert done["status"] == "completed"
        assert wire.notifications == before
    progress = wire.said("notifications/progress")
    assert [(said["progress"], said.get("message")) for said in progress] == [
        (1, "step 1"),
        (1.5, None),
        (2, "step 2"),
        (2.5, None),
    ]
    assert len(wire.said("notifications/message")) == 2


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_progress_is_the_tasks_message_if_the_client_wanted_no_notifications_too(autojump_clock):
    async with serving(tasks(talk=0), Errands(talk=talk)) as wire:
        created = await wire.call("talk")
        await trio.sleep(0.9)
        state = await wire.get(created)
        assert state["statusMessage"] == "step 2"
        assert state["lastUpdatedAt"] >= created["lastUpdatedAt"]
        assert (await wire.ends(created))["status"] == "completed"
    assert wire.notifications == []


async def test_a_long_call_has_all_that_the_sdk_looks_for_in_a_request(autojump_clock):
    channels = []

    async def look(ask, _params):
        channel = CallChannel(ask, channels.append)
        members = {name for name in dir(DispatchContext) if not name.startswith("_")}
        assert not [name for name in members if not hasattr(channel, name)]
        assert channel.request_id == ask.ctx.request_id
        assert not channel.transport.can_send_request
        assert not channel.cancel_requested.is_set()
        return text("all there")

    async with serving(tasks(), Errands(look=look)) as wire:
        assert (await wire.call("look"))["content"][0]["text"] == "all there"


# --- over HTTP ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def http(*providers):
    """What one POST to /mcp is answered with, on the server's own HTTP entry: an answer, and its status."""

    @asynccontextmanager
    async def clients():
        async with trio.open_nursery() as nursery:
            yield ByName(None, nursery)
            nursery.cancel_scope.cancel()

    manager = StreamableHTTPSessionManager(make_server(providers, clients()))
    transport = httpx2.ASGITransport(app=StreamableHTTPASGIApp(manager))
    async with manager.run(), httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

        async def post(method, params, *, meta=None, **headers):
            params = {**params, "_meta": {**envelope("a", DECLARED), **(meta or {})}}
            headers = {"Mcp-Protocol-Version": VERSION, "Mcp-Method": method, **headers}
            headers["Accept"] = "application/json, text/event-stream"
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            response = await client.post("/mcp", json=body, headers=headers)
            if response.headers["Content-Type"].startswith("application/json"):
                return response.status_code, response.json()
            events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
            return response.status_code, json.loads(events[-1])

        yield post


async def test_progress_after_the_streams_end_goes_to_the_task_alone(autojump_clock):
    async def talk(ask, _params):
        for number in range(5):
            await ask.ctx.session.report_progress(number, 5, f"step {number}")
            await trio.sleep(0.4)
        return text("done")

    async with http(tasks(), Errands(talk=talk)) as post:
        call = {"name": "talk", "arguments": {}}
        _, answer = await post("tools/call", call, meta={"progressToken": 7}, **{"Mcp-Name": "talk"})
        task_id = answer["result"]["taskId"]
        assert answer["result"]["statusMessage"] == "step 2"
        await trio.sleep(0.4)
        _, answer = await post("tasks/get", {"taskId": task_id}, **{"Mcp-Name": task_id})
        assert answer["result"]["statusMessage"] == "step 3"
        await trio.sleep(2)
        _, answer = await post("tasks/get", {"taskId": task_id}, **{"Mcp-Name": task_id})
        assert answer["result"]["status"] == "completed"


@pytest.mark.parametrize(
    ("method", "more"), [("tasks/get", {}), ("tasks/update", {"inputResponses": {}}), ("tasks/cancel", {})]
)
async def test_the_routing_header_must_name_the_task(autojump_clock, method, more):
    async with http(tasks(forever=0), NAPS) as post:
        call = {"name": "forever", "arguments": {}}
        _, created = await post("tools/call", call, **{"Mcp-Name": "forever"})
        task_id = created["result"]["taskId"]
        params = {"taskId": task_id, **more}
        for headers in ({}, {"Mcp-Name": "0" * 32}):
            status, refused = await post(method, params, **headers)
            assert (status, refused["error"]["code"]) == (400, -32020)
        _, working = await post("tasks/get", {"taskId": task_id}, **{"Mcp-Name": task_id})
        assert working["result"]["status"] == "working"
        status, _ = await post(method, params, **{"Mcp-Name": task_id})
        assert status == 200


# --- whatever happens -----------------------------------------------------------------------------------------------


class Whim:
    """A tool that does as a random number generator says, and one question at a time or two."""

    def __init__(self, random):
        self._random = random

    async def __call__(self, ask, params):
        await trio.sleep(self._random.choice([0, 0.5, 2, 40]))
        match self._random.randrange(6):
            case 0:
                await ask.ctx.session.report_progress(1, 2, "on the way")
                await trio.sleep(self._random.random())
                return text("done")
            case 1:
                raise MCPError(code=-32000, message="no")
            case 2:
                with trio.CancelScope(shield=True):
                    await trio.sleep(self._random.random() * 3)
                return text("whole", is_error=True)
            case 3:
                await trio.sleep_forever()
        names = ["x", "y"][: self._random.randint(1, 2)]
        return types.InputRequiredResult(input_requests={name: form(name, name) for name in names})


@pytest.mark.parametrize("seed", range(25))
async def test_a_task_ends_once_as_one_thing_and_asks_nothing_twice(autojump_clock, seed):
    random = Random(seed)
    may = {
        "working": {"working", "input_required", "completed", "failed", "cancelled"},
        "input_required": {"working", "input_required", "completed", "failed", "cancelled"},
    }
    async with serving(tasks(whim=0), Errands(whim=Whim(random))) as wire:
        created = await wire.call("whim")
        state, answered = created, {}
        for _ in range(300):
            former, state = state, await wire.get(created)
            if former["status"] not in may:
                break
            assert state["status"] in may[former["status"]]
            assert state["lastUpdatedAt"] >= former["lastUpdatedAt"]
            asked = state.get("inputRequests", {})
            assert not asked.keys() & answered.keys()
            match random.randrange(8):
                case 0 if random.random() < 0.2:
                    await wire.cancel(created)
                case 1 | 2 | 3 if asked:
                    answers = dict.fromkeys(random.sample(sorted(asked), random.randint(1, len(asked))), accepted())
                    await wire.update(created, answers)
                    answered |= answers
                case _:
                    await trio.sleep(random.random() * 5)
        else:
            await wire.cancel(created)
            state = await wire.ends(created)
        assert state["status"] in ("completed", "failed", "cancelled")
        assert ("result" in state) == (state["status"] == "completed")
        assert ("error" in state) == (state["status"] == "failed")
        await wire.cancel(created)
        await trio.sleep(5)
        again = await wire.get(created)
    for volatile in ("ttlMs", "_meta"):
        del again[volatile], state[volatile]
    assert again == state


@pytest.fixture
def account(monkeypatch):
    """What every client's things are charged to."""
    account = MemoryBudget(each=MCP_CLIENT_BYTES + (256 << 10)).for_principal("alice")
    monkeypatch.setattr(mcp_tasks, "Client", partial(mcp_tasks.Client, account=account))
    return account


@pytest.mark.parametrize("is_error", [False, True])
async def test_a_result_for_which_there_is_no_memory_fails_its_task_and_says_what_became_of_the_world(
    autojump_clock, account, is_error
):
    async def long(_ask, params):
        await trio.sleep(3)
        return text("x" * params.arguments["n"], is_error=is_error)

    async with serving(tasks(), Errands(long=long)) as wire:
        kept = await wire.ends(await wire.call("long", {"n": 100_000}))
        assert len(kept["result"]["content"][0]["text"]) == 100_000
        before = account.used
        lost = await wire.call("long", {"n": 200_000})
        lost = await wire.ends(lost)
        assert lost["status"] == "failed"
        told = lost["error"]["data"][META_ERROR]
        assert told["data"]["limit"] == "max_retained_bytes"
        assert told["effect"] == ("unknown" if is_error else "done")
        small = await wire.ends(await wire.call("long", {"n": 1000}))
        assert small["status"] == "completed"
        assert before < account.used < MCP_CLIENT_BYTES + (256 << 10)
        await trio.sleep(LEASE + 1)
        assert account.used == MCP_CLIENT_BYTES
    assert account.used == 0


async def test_a_call_for_which_there_is_no_memory_is_refused_with_the_reason_and_does_not_run(autojump_clock, account):
    async with serving(tasks(), NAPS) as wire:
        await wire.call("nap", {"s": 1})
        account.add(250 << 10)
        with pytest.raises(MCPError, match="max_retained_bytes") as caught:
            await wire.call("nap", {"s": 1})
        assert caught.value.error.data[META_ERROR]["effect"] == "none"
        account.release(250 << 10)
    assert account.used == 0
