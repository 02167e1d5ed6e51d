"""A signal behind which something dangerous stands: a person is asked by the risk of the step that the call means."""

from __future__ import annotations

from typing import ClassVar

import pytest
from attrs import evolve
from mcp_types import ElicitResult
from support.mcp import ERAS, mcp_client, text_of
from support.world import ALICE, BOB, BenchWorld, running

from hearth.actors.bridges.mcp.guidance import CALL
from hearth.actors.bridges.mcp.server import all_offers
from hearth.api import Step
from hearth.drivers.named import BoardSignals, NamedSignal
from hearth.drivers.tools.signals import signal_tools
from hearth.mcp.names import META_ERROR, PLAN
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry
from hearth.tools import ToolRegistry

both_eras = pytest.mark.parametrize("mode", ERAS)
DARING = PolicyEntry(name="daring", match=Match(any=True), max_risk=3)
"""A policy that leaves it to the bridge whether a person is asked."""


class Output(NamedSignal):
    """An output that is set by a tool of risk 2 (PUMP) or 3 (CHARGE)."""

    sets: ClassVar[tuple[str, ...]] = ("bench.set", "bench.danger")

    def write(self, value):
        if self.name == "CHARGE":
            return Step("bench.danger", {"tag": "boom"})
        return Step("bench.set", {"line": 1, "value": value})

    def value(self, result, args):
        return args.get("value")


class Understated(Output):
    """An output whose kind leaves out the dangerous tool."""

    sets: ClassVar[tuple[str, ...]] = ("bench.set",)


def world(kind=Output, **changed):
    """A bench with two signals; `changed` are members of bench.set that change after the signals got tools."""
    made = BenchWorld(policy=(DARING,))
    tools = dict(made.parts.registry)
    signals = BoardSignals("bench", tuple(kind(bus="bench:0", name=name, access="w") for name in ("PUMP", "CHARGE")))
    named = signal_tools(signals, dict(tools))
    tools["bench.set"] = evolve(tools["bench.set"], **changed)
    made.parts = evolve(made.parts, registry=ToolRegistry([*named, *tools.values()]))
    return made


class Person:
    def __init__(self, action):
        self.asked = []
        self._action = action

    async def __call__(self, _context, params):
        self.asked.append(params.message)
        return ElicitResult(action=self._action)


def wrapped(way, name):
    """A call that sets a signal to 1."""
    arguments = {"name": name, "value": 1}
    if way == "plan":
        return PLAN, {"intent": "set it", "steps": [{"tool": "signal_set", "args": arguments}]}
    return (CALL, {"name": "signal_set", "arguments": arguments}) if way == "call" else ("signal_set", arguments)


@both_eras
@pytest.mark.parametrize("way", ["directly", "plan", "call"])
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_a_person_is_asked_for_the_signal_that_is_dangerous_and_for_no_other(
    autojump_clock, tmp_path, mode, way, action
):
    person = Person(action)
    offers = all_offers(tmp_path, principal=lambda _ask: "me")
    async with (
        running(world()) as w,
        mcp_client(w.sessions(), mode, offers=offers, elicitation_callback=person) as client,
    ):
        assert not (await client.call_tool(*wrapped(way, "PUMP"))).is_error
        assert person.asked == []
        assert w.observer.labels("begin") == ["set"]
        result = await client.call_tool(*wrapped(way, "CHARGE"))
        assert result.is_error is (action == "decline"), text_of(result)
        assert w.observer.labels("begin") == ["set", "boom"][: 2 - result.is_error]
    (asked,) = person.asked
    assert all(needed in asked for needed in ("signal.set", "CHARGE", "risk 3"))


@both_eras
@pytest.mark.parametrize("way", ["directly", "plan", "call"])
@pytest.mark.parametrize(
    ("name", "made"),
    [("CHARGE", lambda: world(Understated)), ("PUMP", lambda: world(Understated, risk_level=3, least_risk=3))],
    ids=["a tool that the kind does not name", "a tool that has changed since"],
)
async def test_a_step_is_never_passed_by_a_lower_risk_of_the_tool_that_was_asked_for(
    autojump_clock, tmp_path, mode, way, name, made
):
    person = Person("accept")
    offers = all_offers(tmp_path, principal=lambda _ask: "me")
    async with running(made()) as w:
        async with mcp_client(w.sessions(), mode, offers=offers, elicitation_callback=person) as client:
            refused = await client.call_tool(*wrapped(way, name))
        assert w.observer.labels("begin") == []
    assert refused.is_error
    assert "signal.set has risk 2 at most, and means this step of risk 3 here" in text_of(refused)


def approving(*rights):
    """The bench of a policy that asks for an approval from risk 2 on; `rights` are those of the user of the client."""
    made = world()
    own = PolicyEntry(name="own", match=Match(uid=ALICE.uid), approval=[ApprovalRule(from_risk=2)], rights=rights)
    persons = PolicyEntry(name="persons", match=Match(any=True), rights=["approve"])
    made.parts = evolve(made.parts, policy=(own, persons))
    return made


@both_eras
async def test_a_signal_that_needs_an_approval_is_set_once_the_person_at_the_client_gives_it(
    autojump_clock, tmp_path, mode
):
    person = Person("accept")
    offers = all_offers(tmp_path, principal=lambda _ask: "me")
    async with (
        running(approving("approve")) as w,
        mcp_client(w.sessions(), mode, offers=offers, elicitation_callback=person) as client,
    ):
        result = await client.call_tool(*wrapped("directly", "PUMP"))
    assert result.structured_content == {"name": "PUMP", "bus": "bench:0", "value": 1}
    (asked,) = person.asked
    assert "bench.set" in asked
    (submitted,) = [
        step for r in w.journal.records if r["event"] == "task.submit" for step in r["steps"] if "asked" in step
    ]
    assert (submitted["tool"], submitted["asked"]) == ("bench.set", "signal.set")


@both_eras
@pytest.mark.parametrize("way", ["directly", "plan"])
async def test_the_same_setting_of_a_signal_finds_the_plan_that_another_person_has_approved(
    autojump_clock, tmp_path, mode, way
):
    offers = all_offers(tmp_path, principal=lambda _ask: "me")
    async with running(approving()) as w, mcp_client(w.sessions(), mode, offers=offers) as client:
        waits = await client.call_tool(*wrapped(way, "PUMP"))
        plan_id = waits.meta[META_ERROR]["data"]["plan_id"]
        async with w.sessions(BOB).open_session() as session:
            plan = await session.plan(plan_id)
            assert plan.steps[0].tool == "bench.set"
            assert plan.steps[0].asked == {"tool": "signal.set", "args": {"name": "PUMP", "value": 1}}
            await session.approve(plan)
        result = await client.call_tool(*wrapped(way, "PUMP"))
        assert not result.is_error, text_of(result)
        again = await client.call_tool(*wrapped(way, "PUMP"))
    assert again.meta[META_ERROR]["data"]["plan_id"] != plan_id, "one approval, one run"
