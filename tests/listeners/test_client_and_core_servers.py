"""The client before servers that implement the HACP Core only, or no member that the draft leaves open (draft §3)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import trio
from support.carriers import BIN
from support.core_only import minimal_server, no_more_than_a_status, tools_of_few_members
from support.waiting import passes

import hearth
from hearth import CarrierError, step
from hearth.client.connection import FIRST_WAIT, LONGEST_WAIT, Polling
from hearth.errors import InvalidParams, SessionInvalid, TaskNotFound
from hearth.protocol.client import ProtocolViolation

TWO = [step("gpio.set", line=17, value=1), step("gpio.set", line=18, value=1)]
WHOLE = [("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("task_finish", None)]


@pytest.fixture
async def server(tmp_path):
    async with minimal_server(tmp_path / "core.sock") as serving:
        yield serving
        assert serving.requests.beyond_the_core() == []


def shape(events):
    return [(event.phase, event.step_index) for event in events]


# --- events from task.get -------------------------------------------------------------------------------------------


@pytest.mark.spec(
    "8", "is", "The polling pattern (task.submit followed by repeated task.get) is sufficient but verbose."
)
@pytest.mark.spec("8", "MAY", "If present, clients MAY call:")
@pytest.mark.parametrize("follow", [False, True])
async def test_events_and_the_result_come_from_a_server_that_sends_none(server, follow):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        assert session.capabilities == ()
        task = await session.submit("two", TWO, follow=follow)
        events = [event async for event in task.events()]
        assert shape(events) == WHOLE
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert events[0].data == {"tool": "gpio.set"}
        assert events[1].data == {
            "tool": "gpio.set",
            "status": "SUCCESS",
            "result": {"line": 17, "value": 1},
            "latency_ms": 1,
        }
        assert events[-1].data == {"status": "SUCCESS"}
        done = await task.wait()
        assert (done.status, [one.status for one in done.steps]) == ("SUCCESS", ["SUCCESS", "SUCCESS"])
        assert await session.run("gpio.get", line=3) == {"line": 3}


async def test_steps_that_began_and_ended_between_two_requests_are_told_of_all_the_same(server):
    server.by_itself = False
    async with hearth.connect(server.path) as client, client.open_session() as session:
        task = await session.submit("two", TWO)
        kept = server.sessions[session.session_id][task.task_id]
        while kept["status"] != "SUCCESS":
            server.advance(kept)
        assert shape([event async for event in task.events()]) == WHOLE
        assert server.requests.methods().count("task.get") == 1
        assert [event.seq async for event in task.events(from_seq=4)] == [4, 5]
        assert [event.seq async for event in task.events(from_seq=100)] == []


async def test_a_step_that_was_cancelled_before_it_began_has_no_events(server):
    server.by_itself = False
    async with hearth.connect(server.path) as client, client.open_session() as session:
        task = await session.submit("two", TWO)
        kept = server.sessions[session.session_id][task.task_id]
        server.advance(kept)
        assert await task.cancel() == "CANCELLING"
        kept["steps"].append({"tool": "gpio.set", "status": "CANCELLED"})
        events = [event async for event in task.events()]
        assert shape(events) == [("start", 0), ("finish", 0), ("task_finish", None)]
        assert events[1].data["status"] == events[2].data["status"] == "CANCELLED"


async def test_a_failed_step_and_why_the_task_failed_are_in_the_events(server):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        task = await session.submit("x", [step("gpio.set", fail=True), step("gpio.set")])
        events = [event async for event in task.events()]
        assert shape(events) == [("start", 0), ("finish", 0), ("task_finish", None)]
        assert (events[1].data["status"], events[1].data["error"]) == ("FAILED", "it did not work")
        with pytest.raises(hearth.TaskFailed, match="it did not work"):
            await session.run("gpio.set", fail=True)


async def test_a_session_that_was_opened_elsewhere_is_polled_once_its_server_knows_no_subscription(tmp_path):
    async with (
        minimal_server(tmp_path / "core.sock") as server,
        hearth.connect(server.path) as client,
        client.open_session() as session,
        hearth.connect(server.path) as other,
    ):
        attached = other.attach(session.session_id)
        task = await attached.submit("two", TWO, follow=True)
        events = task.events()
        assert shape([event async for event in events]) == WHOLE
        await events.aclose()
        beyond = server.requests.beyond_the_core()
        assert [request["method"] for request in beyond] == ["task.submit", "task.events.subscribe"]


# --- how it is asked ------------------------------------------------------------------------------------------------


class Silent:
    """A connection whose server shows the same task until `steps` is changed; it notes when it is asked."""

    def __init__(self):
        self.steps = []
        self.status = "QUEUED"
        self.asked_at = []

    def ask(self, method, params):
        assert method == "task.get"
        self.asked_at.append(trio.current_time())
        answered = trio.Event()
        answered.set()
        return SimpleNamespace(
            answered=answered, result=lambda: {**params, "status": self.status, "steps": list(self.steps)}
        )

    @property
    def pauses(self):
        return [round(late - early, 6) for early, late in zip(self.asked_at, self.asked_at[1:], strict=False)]


async def test_a_task_that_does_not_move_is_asked_about_less_and_less_often(autojump_clock):
    server = Silent()
    polling = Polling(server, "S", "T", 1)
    with trio.move_on_after(10):
        await polling.next()
    assert server.pauses[:9] == [FIRST_WAIT * 2**n for n in range(1, 7)] + [LONGEST_WAIT] * 3
    server.steps.append({"tool": "gpio.set", "status": "RUNNING"})
    assert (await polling.next()).phase == "start"
    moved = len(server.asked_at)
    with trio.move_on_after(0.1):
        await polling.next()
    assert server.pauses[moved - 1 : moved + 2] == [FIRST_WAIT, FIRST_WAIT * 2, FIRST_WAIT * 4]


@pytest.mark.slow
async def test_a_reader_that_gives_up_early_again_and_again_is_served_all_the_same(autojump_clock):
    server = Silent()
    polling = Polling(server, "S", "T", 1)
    with trio.move_on_after(60):
        while len(server.asked_at) < 20:
            with trio.move_on_after(FIRST_WAIT / 4):
                await polling.next()
    assert len(server.asked_at) == 20, "its timeouts are shorter than any wait"
    assert min(server.pauses) == FIRST_WAIT * 2, "and ask for nothing sooner"


async def test_a_reader_has_one_request_outstanding_however_often_it_gives_up(server):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        task = await session.submit("two", TWO)
        server.answer_at = trio.Event()
        events = task.events()
        for _ in range(5):
            with trio.move_on_after(0) as scope:
                await anext(events)
            assert scope.cancelled_caught
            await passes(lambda: server.requests.methods()[-1] == "task.get")
        assert server.requests.methods().count("task.get") == 1
        server.answer_at.set()
        assert shape([event async for event in events]) == WHOLE


async def test_a_reader_that_was_closed_asks_no_more(server):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        events = (await session.submit("two", TWO)).events()
        assert (await anext(events)).phase == "start"
        asked = server.requests.methods().count("task.get")
        await events.aclose()
        assert [event async for event in events] == []
        assert server.requests.methods().count("task.get") == asked


async def test_what_task_get_is_refused_with_is_raised_to_the_reader(server):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        task = await session.submit("two", TWO)
        del server.sessions[session.session_id][task.task_id]
        with pytest.raises(TaskNotFound):
            await task.wait()
        del server.sessions[session.session_id]
        with pytest.raises(SessionInvalid):
            await task.wait()
        session.closed = True


async def test_a_connection_that_ends_while_a_task_is_polled_is_an_error_to_its_reader(server):
    async def end(client):
        await passes(lambda: server.requests.methods()[-1] == "task.get")
        await client._stream.aclose()

    async with hearth.connect(server.path) as client, client.open_session() as session, trio.open_nursery() as nursery:
        task = await session.submit("two", TWO)
        server.answer_at = trio.Event()
        nursery.start_soon(end, client)
        with pytest.raises(CarrierError, match=r"before task\.get was answered"):
            await task.wait()


# --- what a conformant server may leave out, or add -----------------------------------------------------------------

NEW = {"x-new": {"deep": [1, None, {"a": 1.5}]}, "trace": "t"}


def with_new_members(_method, result):
    """Members that no release of ours knows, at every level."""
    if isinstance(result, dict):
        return {**{name: with_new_members("", value) for name, value in result.items()}, **NEW}
    return [with_new_members("", value) for value in result] if isinstance(result, list) else result


def all_steps_from_the_start(method, result):
    """A server that lists what has not begun yet, with a status that the draft does not have."""
    if method == "task.get":
        more = [{"tool": "gpio.set", "status": "QUEUED"}] * (2 - len(result["steps"]))
        return {**result, "steps": [*result["steps"], *more]}
    return result


def nulls(method, result):
    """Members that are there and say nothing."""
    if method == "session.open":
        return {**result, "capabilities": None}
    if method == "task.get":
        steps = [{"result": None, "error": None, "latency_ms": None, **one} for one in result["steps"]]
        return {**result, "error": None, "steps": steps}
    return result


def other_flags(method, result):
    return {**result, "capabilities": ["CAP_GPIO_RW", "CAP_FUTURE"]} if method == "session.open" else result


def closed_says_nothing(method, result):
    return {} if method == "session.close" else result


VARIATIONS = [
    with_new_members,
    tools_of_few_members,
    no_more_than_a_status,
    all_steps_from_the_start,
    nulls,
    other_flags,
    closed_says_nothing,
]


@pytest.mark.spec(
    "1.1",
    "REQUIRED",
    "A conformant client is one that issues only well-formed requests per Section 2, honors the lifecycle in "
    "Section 5, and treats unknown optional fields as defined in Section 2.5.",
)
@pytest.mark.parametrize("reply", VARIATIONS, ids=lambda reply: reply.__name__.replace("_", " "))
async def test_a_server_may_leave_out_or_add_what_the_draft_leaves_open(tmp_path, reply):
    async with (
        minimal_server(tmp_path / "core.sock", reply=reply) as server,
        hearth.connect(server.path) as client,
        client.open_session(client_name="arm", heartbeat_ms=5000) as session,
    ):
        assert [tool["name"] for tool in await session.tools()] == ["gpio.set"]
        task = await session.submit("two", TWO, follow=True, idempotency_key="k", max_duration_ms=500)
        assert shape([event async for event in task.events()]) == WHOLE
        done = await task.wait()
        assert done.raise_for_status().status == "SUCCESS"
        assert await task.cancel() == "CANCELLING"
        assert (await (await session.task(task.task_id)).get()).done
        assert await session.close() == 0
        assert server.requests.beyond_the_core() == []


async def test_an_error_without_data_is_raised_as_its_class(server):
    async with hearth.connect(server.path) as client, client.open_session() as session:
        with pytest.raises(InvalidParams, match="no such tool") as refused:
            await session.submit("x", [step("no.such")])
        assert refused.value.data is None


async def test_a_success_without_a_result_is_no_error(tmp_path):
    async with (
        minimal_server(tmp_path / "core.sock", reply=no_more_than_a_status) as server,
        hearth.connect(server.path) as client,
        client.open_session() as session,
    ):
        assert await session.run("gpio.set", line=1, value=1) == {}


async def test_a_result_that_the_draft_does_not_allow_is_named(tmp_path):
    def wrong(method, result):
        return {**result, "steps": [7]} if method == "task.get" else result

    async with (
        minimal_server(tmp_path / "core.sock", reply=wrong) as server,
        hearth.connect(server.path) as client,
        client.open_session() as session,
    ):
        with pytest.raises(ProtocolViolation, match=r"task\.steps\[0\]"):
            await (await session.submit("x", TWO)).wait()


# --- the command ----------------------------------------------------------------------------------------------------

PLAN = {"intent": "two", "steps": [one.to_wire() for one in TWO]}


async def hearth_command(server, *words, check=True):
    """What `hearth WORDS…` prints on stdout, as a process of its own."""
    done = await trio.run_process(
        [str(BIN / "hearth"), "--socket", str(server.path), *words], capture_stdout=True, check=check
    )
    return done.stdout.decode()


@pytest.mark.proof
@pytest.mark.parametrize("reply", [None, tools_of_few_members, no_more_than_a_status], ids=["bare", "tools", "status"])
async def test_the_command_runs_submits_and_watches_on_a_server_that_sends_no_events(tmp_path, reply):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))
    async with minimal_server(tmp_path / "core.sock", reply=reply) as server:
        ran = json.loads(await hearth_command(server, "--json", "run", "gpio.set", "line=17", "value=1"))
        assert ran == ({} if reply is no_more_than_a_status else {"line": 17, "value": 1})
        await hearth_command(server, "run", "gpio.set", "line=17", "value=1")
        assert "gpio.set" in await hearth_command(server, "tools", "gpio.set")
        assert "gpio.set" in await hearth_command(server, "tools")
        said = await hearth_command(server, "--json", "plan", "submit", str(plan), "--watch")
        *events, done = [json.loads(line) for line in said.splitlines()]
        assert [(event["phase"], event.get("step_index")) for event in events] == WHOLE
        assert done["status"] == "SUCCESS"
        assert "SUCCESS" in await hearth_command(server, "plan", "submit", str(plan))
        assert server.requests.beyond_the_core() == []
        reference = (await hearth_command(server, "plan", "submit", str(plan), "--detach")).strip()
        assert "finish" in await hearth_command(server, "tasks", "watch", reference)
        assert "SUCCESS" in await hearth_command(server, "tasks", "show", reference)
