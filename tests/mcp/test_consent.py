"""What is dangerous is put to a person first: what they see, what each answer does, and what nobody can get around."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager

import mcp_types as types
import orjson
import pytest
import trio
from hypothesis import example, given, strategies as st
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from support.doubles import Op
from support.mcp import ERAS, mcp_client, memory, text_of
from support.world import BenchWorld, reset_halt, running

from hearth.actors.bridges.mcp.calls import FORM, KEY, ConsentRequest, _digest, _question, arguments_of
from hearth.actors.bridges.mcp.provider import ANSWER_TIMEOUT, MOST_QUESTIONS, Client as HacpClient, Questions, Refused
from hearth.actors.bridges.mcp.server import HacpTools, make_server
from hearth.api import Step
from hearth.mcp.names import META_ERROR, PLAN
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Tool

both_eras = pytest.mark.parametrize("mode", ERAS)


def records(w, **like):
    """The audit records with these members."""
    return [record for record in w.journal.records if like.items() <= record.items()]


def ran(w):
    """The transactions that touched anything."""
    return w.observer.labels("begin")


class Person:
    """Answers the same each time, and remembers what was asked."""

    def __init__(self, action="accept", *, content=None):
        self.asked = []
        self._action = action
        self._content = content

    async def __call__(self, _context, params):
        self.asked.append(params)
        return types.ElicitResult(action=self._action, content=self._content)


@pytest.fixture
async def w():
    async with running(BenchWorld()) as world:
        yield world


@both_eras
async def test_a_person_is_asked_before_what_is_dangerous_and_it_runs_when_they_allow_it(autojump_clock, w, mode):
    person = Person()
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool("bench_danger", {"tag": "boom"})
    assert not result.is_error
    assert ran(w) == ["boom"]
    [asked] = person.asked
    for needed in ("bench.danger", 'tag="boom"', "risk 3", "high", "cannot be rolled back"):
        assert needed in asked.message
    assert asked.requested_schema == FORM


@both_eras
@pytest.mark.parametrize("content", [None, {}, {"remark": ""}], ids=["nothing", "an empty form", "a client's own"])
async def test_accept_is_a_yes_whatever_the_client_fills_in(autojump_clock, w, mode, content):
    assert FORM["properties"] == {}, "there is nothing to tick"
    async with mcp_client(w.sessions(), mode, elicitation_callback=Person(content=content)) as client:
        result = await client.call_tool("bench_danger", {"tag": "boom"})
    assert not result.is_error
    assert ran(w) == ["boom"]


@both_eras
async def test_decline_is_a_no_whatever_the_client_fills_in(autojump_clock, w, mode):
    async with mcp_client(
        w.sessions(), mode, elicitation_callback=Person("decline", content={"allow": True})
    ) as client:
        assert (await client.call_tool("bench_danger", {})).is_error
    assert not ran(w)


NO_HACP = st.sampled_from([2**64, -(2**63) - 1, 10**400, "\ud800", "a\udfffb", math.nan, math.inf])
"""What a reader of JSON may hand on and HACP takes from nobody."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | NO_HACP,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)
TEXTS = st.dictionaries(st.text(st.characters(), max_size=5), JSON, max_size=5)


@pytest.mark.proof
@given(TEXTS)
@example({"n": 2**64})
@example({"path": "\ud800"})
@example({"\udfff": 1})
@example({"deep": [[[{"n": -(2**64)}]]]})
@example({"n": math.nan})
@example({"n": 10**5000})
def test_whatever_json_a_call_has_it_is_refused_with_the_reason_or_can_be_shown(arguments):
    params = types.CallToolRequestParams.model_construct(name="bench_danger", arguments=arguments)
    entry = {"name": "bench.danger", "risk_level": 3, "supports_rollback": False, "params_schema": {}}
    try:
        taken = arguments_of(params)
    except Refused as refused:
        error = refused.outcome["_meta"][META_ERROR]
    else:
        error = None
    if error is not None:
        assert error["code"] == -32602
        assert error["data"]["reason"]
        return
    assert orjson.loads(orjson.dumps(taken)) is not None, "it can be submitted"
    job = ConsentRequest("bench_danger", "tools/call", (Step("bench.danger", taken),), (entry,))
    assert len(_digest(job)) == 32
    question = _question(job, None)
    assert question is not None
    question.encode("utf-8")
    assert len([row for row in question.splitlines() if not row.startswith("     | ")]) == 5


@both_eras
@pytest.mark.parametrize("name", ["bench_danger", "bench_read"])
@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, [2**70]], ids=repr)
async def test_an_integer_of_65_bits_is_refused_with_the_reason_and_no_person_is_asked(
    autojump_clock, w, mode, name, value
):
    person = Person()
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        steps = [{"tool": name, "args": {"extra": value}}]
        for called, arguments in ((name, {"extra": value}), (PLAN, {"intent": "x", "steps": steps})):
            refused = await client.call_tool(called, arguments)
            assert refused.is_error
            assert "64 bits at most" in text_of(refused)
            assert refused.meta[META_ERROR]["code"] == -32602
    assert not person.asked
    assert not ran(w)


async def test_a_lone_surrogate_is_refused_with_the_reason_and_no_person_is_asked(autojump_clock, w):
    person = Person()
    async with mcp_client(w.sessions(), "legacy", elicitation_callback=person) as client:
        refused = await client.call_tool("bench_danger", {"tag": "\ud800"})
    assert refused.is_error
    assert "surrogates" in text_of(refused)
    assert not person.asked
    assert not ran(w)


@both_eras
@pytest.mark.parametrize(
    "person",
    [
        Person("decline"),
        Person("cancel"),
    ],
    ids=["declined", "dismissed"],
)
async def test_without_a_yes_nothing_runs(autojump_clock, w, mode, person):
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool("bench_danger", {})
    assert result.is_error
    assert "Nothing has happened" in text_of(result)
    assert "person" in text_of(result)
    assert not ran(w)


@both_eras
async def test_a_client_that_cannot_ask_a_person_is_refused_with_the_reason(autojump_clock, w, mode):
    async with mcp_client(w.sessions(), mode) as client:
        result = await client.call_tool("bench_danger", {})
    assert result.is_error
    assert "elicitation" in text_of(result)
    assert "Nothing has happened" in text_of(result)
    assert not records(w, event="task.submit")


@both_eras
async def test_an_answer_lets_one_call_run_and_the_next_is_asked_about_again(autojump_clock, w, mode):
    person = Person()
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        await client.call_tool("bench_danger", {})
        await client.call_tool("bench_danger", {})
    assert len(person.asked) == 2
    assert len(ran(w)) == 2


@both_eras
async def test_what_could_not_run_anyway_is_refused_before_anybody_is_asked(autojump_clock, w, mode):
    person = Person()
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        refused = await client.call_tool("bench_riskyfile", {"path": "/etc/shadow"})
        wrong = await client.call_tool("bench_riskyfile", {})
    assert refused.is_error
    assert refused.meta[META_ERROR]["code"] == -32003
    assert wrong.meta[META_ERROR]["code"] == -32602
    assert not person.asked


@both_eras
async def test_no_answer_widens_the_policy(autojump_clock, mode):
    person = Person()
    policy = PolicyEntry(name="two", match=Match(any=True), max_risk=2)
    async with (
        running(BenchWorld(policy=(policy,))) as w,
        mcp_client(w.sessions(), mode, elicitation_callback=person) as client,
    ):
        result = await client.call_tool("bench_danger", {})
    assert result.is_error
    assert result.meta[META_ERROR]["code"] == -32003
    assert not person.asked
    assert not ran(w)


async def _acts(ctx, args):
    return {"tag": await ctx.transact(Op(args["tag"]))}


@asynccontextmanager
async def vendors(effective_risk=lambda args: args["n"], **policy):
    """A world with a vendor's tool that is declared dangerous, and has the risk that its arguments say."""
    entry = PolicyEntry(name="vendor", match=Match(any=True), **{"max_risk": 2, "max_risk_ceiling": 3, **policy})
    tool = Tool(
        name="vendor.tool",
        risk_level=3,
        timeout_ms=1000,
        description="acts",
        params_schema={"type": "object", "required": ["n", "tag"]},
        result_schema={"type": "object"},
        capability="CAP_GPIO_RW",
        default_rate="100/s",
        bus=lambda _args: "a",
        run=_acts,
        effective_risk=effective_risk,
    )
    async with running(BenchWorld(policy=(entry,), extra_tools=[tool])) as world:
        yield world


@both_eras
@pytest.mark.parametrize("max_risk", [2, 3])
async def test_a_person_is_asked_by_the_risk_that_a_step_has_with_its_arguments(autojump_clock, mode, max_risk):
    """Whatever the tool is declared as, and however much the policy allows unasked."""
    person = Person()
    async with vendors(max_risk=max_risk) as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        for risk in (0, 1, 2):
            result = await client.call_tool("vendor_tool", {"n": risk, "tag": f"risk {risk}"})
            assert not result.is_error, text_of(result)
        assert not person.asked
        result = await client.call_tool("vendor_tool", {"n": 3, "tag": "risk 3"})
    assert not result.is_error
    assert len(person.asked) == 1
    assert "n=3" in person.asked[0].message
    assert ran(w) == ["risk 0", "risk 1", "risk 2", "risk 3"]


@both_eras
async def test_a_client_that_cannot_ask_a_person_may_do_what_its_arguments_make_harmless_and_no_more(
    autojump_clock, mode
):
    async with vendors() as w, mcp_client(w.sessions(), mode) as client:
        assert not (await client.call_tool("vendor_tool", {"n": 0, "tag": "harmless"})).is_error
        refused = await client.call_tool("vendor_tool", {"n": 3, "tag": "boom"})
    assert "has not declared elicitation" in text_of(refused)
    assert ran(w) == ["harmless"]


@both_eras
async def test_a_plan_is_asked_about_by_the_riskiest_step_that_it_really_has(autojump_clock, mode):
    person = Person("decline")

    def plan(*risks):
        return {"intent": "x", "steps": [{"tool": "vendor.tool", "args": {"n": risk, "tag": "t"}} for risk in risks]}

    async with vendors() as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        assert not (await client.call_tool(PLAN, plan(0, 2))).is_error
        assert not person.asked
        assert (await client.call_tool(PLAN, plan(0, 3))).is_error
        [asked] = person.asked
        assert '0. vendor.tool n=0 tag="t"\n   [risk 0, safe]' in asked.message
        assert '1. vendor.tool n=3 tag="t"\n   [risk 3, high' in asked.message
        await client.call_tool(PLAN, {**plan(0), "steps": [*plan(0)["steps"], {"tool": "bench.danger"}]})
        assert len(person.asked) == 2, "one step that is always dangerous is enough"
    assert len(ran(w)) == 2


@both_eras
async def test_what_needs_no_person_is_not_raised_above_the_cap_of_the_session(autojump_clock, mode):
    person = Person()
    async with vendors(max_risk=1) as w, mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool("vendor_tool", {"n": 2, "tag": "acts"})
    assert result.meta[META_ERROR]["data"]["reason"] == "max_risk_level=1 < tool=2"
    assert not person.asked
    assert not ran(w)


@both_eras
async def test_a_tool_that_becomes_dangerous_after_it_was_looked_at_does_not_run_unasked(autojump_clock, mode):
    risks = [0, 3]
    async with (
        vendors(lambda _args: risks.pop(0), max_risk=3) as w,
        mcp_client(w.sessions(), mode, elicitation_callback=Person()) as client,
    ):
        result = await client.call_tool("vendor_tool", {"n": 0, "tag": "boom"})
    assert result.meta[META_ERROR]["data"]["reason"] == "max_risk_level=0 < tool=3"
    assert not risks
    assert not ran(w)


@both_eras
async def test_a_plan_with_something_dangerous_is_put_to_a_person_with_all_its_steps(autojump_clock, w, mode):
    person = Person()
    steps = [
        {"tool": "bench_read", "args": {"tag": "a" * 5000}},
        {"tool": "bench_danger", "args": {"tag": "boom"}},
    ]
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        await client.call_tool(PLAN, {"intent": "wipe it", "steps": steps, "dry_run": True})
        assert not person.asked, "a dry run touches nothing"
        result = await client.call_tool(PLAN, {"intent": "wipe it", "steps": steps})
    assert not result.is_error
    [asked] = person.asked
    assert "0. bench.read" in asked.message
    assert asked.message.count("a") > 5000, "what is harmless is shown too"
    assert '1. bench.danger tag="boom"' in asked.message
    assert "wipe it" in asked.message


@both_eras
async def test_what_cannot_be_shown_in_full_is_not_asked_about(autojump_clock, w, mode):
    person = Person()
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        result = await client.call_tool("bench_danger", {"tag": "x" * 100_000})
    assert result.is_error
    assert "too long" in text_of(result)
    assert not person.asked
    assert not ran(w)


@both_eras
async def test_arguments_cannot_make_the_question_look_like_another(autojump_clock, w, mode):
    person = Person("decline")
    async with mcp_client(w.sessions(), mode, elicitation_callback=person) as client:
        await client.call_tool("bench_danger", {"tag": "a\n2. harmless\x1b[2J\u202egnp.\u2028"})
    [asked] = person.asked
    assert [row[:3] for row in asked.message.splitlines()] == ["A p", "int", "0. ", "   ", "   ", "Acc"]
    assert asked.message.splitlines()[3].startswith("     | 2. harmless")
    for hidden in "\x1b\u202e\u2028":
        assert hidden not in asked.message


async def test_a_person_who_does_not_answer_allows_nothing(autojump_clock, w):
    async def silent(_context, _params):
        await trio.sleep_forever()

    async with mcp_client(w.sessions(), "legacy", elicitation_callback=silent) as client:
        began = trio.current_time()
        result = await client.call_tool("bench_danger", {})
        assert trio.current_time() - began == pytest.approx(ANSWER_TIMEOUT)
    assert result.is_error
    assert not ran(w)


async def test_a_client_that_fails_to_ask_allows_nothing(autojump_clock, w):
    async def broken(_context, _params):
        await trio.lowlevel.checkpoint()
        return types.ErrorData(code=-32603, message="no display")

    async with mcp_client(w.sessions(), "legacy", elicitation_callback=broken) as client:
        result = await client.call_tool("bench_danger", {})
    assert result.is_error
    assert "no display" in text_of(result)
    assert not ran(w)


# --- 2026-07-28: the answer comes with another request --------------------------------------------------------------


class Rounds:
    """A client that plays the rounds by hand."""

    def __init__(self, client):
        self._session = client.session

    async def call(self, name, arguments, *, state=None, answer=None):
        responses = None if answer is None else {KEY: answer}
        return await self._session.call_tool(
            name,
            arguments,
            input_responses=responses,
            request_state=state,
            allow_input_required=True,
        )


YES = types.ElicitResult(action="accept")


@pytest.fixture
async def rounds(w):
    async with mcp_client(w.sessions(), "auto", elicitation_callback=Person()) as client:
        yield Rounds(client)


async def test_the_question_comes_as_a_result_and_the_answer_with_the_next_call(autojump_clock, w, rounds):
    question = await rounds.call("bench_danger", {"tag": "a"})
    assert isinstance(question, types.InputRequiredResult)
    assert not ran(w)
    result = await rounds.call("bench_danger", {"tag": "a"}, state=question.request_state, answer=YES)
    assert not result.is_error
    assert ran(w) == ["a"]


async def halted_and_reset(w):
    """A halt, and its reset by a person."""
    w.runtime.halt.halt("smoke", "a test")
    await reset_halt(w.runtime)


async def test_an_answer_to_what_was_asked_before_a_halt_lets_nothing_run_after_its_reset(autojump_clock, w, rounds):
    question = await rounds.call("bench_danger", {"tag": "a"})
    await halted_and_reset(w)
    again = await rounds.call("bench_danger", {"tag": "a"}, state=question.request_state, answer=YES)
    assert isinstance(again, types.InputRequiredResult), "it is asked anew"
    assert not ran(w)


async def test_a_person_who_answers_after_a_halt_is_told_through_the_model_that_it_is_too_late(autojump_clock, w):
    async def late(_context, _params):
        await halted_and_reset(w)
        return YES

    async with mcp_client(w.sessions(), "legacy", elicitation_callback=late) as client:
        result = await client.call_tool("bench_danger", {"tag": "a"})
    assert result.is_error
    assert "halted after the person was asked: the answer came too late" in text_of(result)
    assert not ran(w)


async def test_an_answer_cannot_be_used_twice(autojump_clock, w, rounds):
    question = await rounds.call("bench_danger", {"tag": "a"})
    await rounds.call("bench_danger", {"tag": "a"}, state=question.request_state, answer=YES)
    again = await rounds.call("bench_danger", {"tag": "a"}, state=question.request_state, answer=YES)
    assert isinstance(again, types.InputRequiredResult), "it is asked anew"
    assert ran(w) == ["a"]


@pytest.mark.parametrize(
    ("name", "arguments"), [("bench_danger", {"tag": "b"}), ("bench_riskyfile", {"path": "/allowed/x"})]
)
async def test_an_answer_cannot_be_used_for_another_call(autojump_clock, w, rounds, name, arguments):
    question = await rounds.call("bench_danger", {"tag": "a"})
    with pytest.raises(MCPError) as caught:
        await rounds.call(name, arguments, state=question.request_state, answer=YES)
    assert caught.value.code == -32602
    assert not ran(w)


@pytest.mark.parametrize("state", [None, "v1.AAAA", "x"])
async def test_an_answer_to_a_question_that_was_not_asked_lets_nothing_run(autojump_clock, w, rounds, state):
    if state is None:
        assert isinstance(await rounds.call("bench_danger", {}, answer=YES), types.InputRequiredResult)
    else:
        with pytest.raises(MCPError) as caught:
            await rounds.call("bench_danger", {}, state=state, answer=YES)
        assert caught.value.code == -32602
    assert not ran(w)


class ByName:
    """Clients behind one server, told apart by the names they give. Implements `Clients`, and is its own lifespan."""

    def __init__(self, **clients):
        self._clients = clients

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exc):
        """There is nothing to end."""

    async def of(self, ctx):
        return self._clients[ctx.session.client_params.client_info.name]


async def test_what_one_client_was_asked_another_cannot_answer(autojump_clock, w):
    def named(name):
        who = types.Implementation(name=name, version="1")
        return Client(memory(server), mode="auto", elicitation_callback=Person(), client_info=who)

    async with trio.open_nursery() as nursery:
        clients = {name: HacpClient(w.sessions(), nursery) for name in ("one", "two")}
        server = make_server([HacpTools()], ByName(**clients))
        async with named("one") as one, named("two") as two:
            question = await Rounds(one).call("bench_danger", {})
            stolen = await Rounds(two).call("bench_danger", {}, state=question.request_state, answer=YES)
            assert isinstance(stolen, types.InputRequiredResult), "it is asked anew"
            assert not ran(w)
            answered = await Rounds(one).call("bench_danger", {}, state=question.request_state, answer=YES)
            assert not answered.is_error
        for client in clients.values():
            client.close()


async def test_a_question_is_forgotten_when_too_many_wait_or_too_long(autojump_clock):
    questions = Questions()
    first = questions.ask(b"a")
    names = [questions.ask(b"a") for _ in range(MOST_QUESTIONS)]
    assert not questions.settle(first, b"a")
    assert not questions.settle(None, b"a")
    assert not questions.settle(names[0], b"b")
    assert not questions.settle(names[0], b"a"), "a wrong try uses it up"
    assert questions.settle(names[1], b"a")
    await trio.sleep(ANSWER_TIMEOUT + 1)
    assert not questions.settle(names[2], b"a")


@both_eras
async def test_a_request_that_is_cancelled_while_a_person_is_asked_runs_nothing(autojump_clock, w, mode):
    asked = trio.Event()

    async def slow(_context, _params):
        asked.set()
        await trio.sleep_forever()

    async with mcp_client(w.sessions(), mode, elicitation_callback=slow) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "bench_danger", {})
            await asked.wait()
            nursery.cancel_scope.cancel()
        await client.call_tool("bench_read", {})
    assert ran(w) == ["read"]
