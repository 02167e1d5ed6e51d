"""The planner: turns of a model, its reads, and its proposals, until it has answered.

Theory of operation. `Planner.answer` asks the model for a turn, does what the turn calls for, gives the results back,
and asks again, until a turn calls for nothing, or a proposal ends the answer. The model's calls are the only way from
its words to the hardware, and there are two:

- `read` is submitted in the conversation's session, where the daemon refuses whatever has more than risk 0;
- `propose_plan` goes to `propose`, which the caller gives: `PlanRun` prepares, asks, and executes for `hearth ask`;
  `job.plan` only takes the steps.

A fault of the model's (an unknown tool, arguments that are no object, what the daemon refuses) is given to the model as
the result of its call. After `MOST_FAULTS` such turns in a row, the answer ends. All bounds here hold back a model that
does not end; what may run is bounded by the daemon.

Whatever ends an answer, each call in `messages` has its result then, so that the conversation can go on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import define, field, frozen

from hearth._util.text import suggest
from hearth.api import Step
from hearth.ask import ModelError
from hearth.ask.backends import as_object
from hearth.ask.prompt import TOOLS
from hearth.errors import InvalidParams, RpcError
from hearth.protocol.submissions import read_expect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth.api import Plan, Session, TaskConstraints, TaskEvent, TaskResult
    from hearth.ask.backends import Model, ToolCall
    from hearth.ask.transcript import Transcript

MOST_TURNS: Final = 24
"""Turns of the model for one request of a person."""
MOST_READS: Final = 32
MOST_PLANS: Final = 4
MOST_FAULTS: Final = 3
MOST_RESULT: Final = 16 << 10
"""Characters of one result that the model gets."""
READ_MS: Final = 30_000


class Display:
    """What a person sees of an answer as it comes: nothing, unless a subclass shows it."""

    def words(self, text: str) -> None:
        """Show words of the model."""

    def reading(self, tool: str, args: Mapping[str, Any]) -> None:
        """Show a read that begins."""

    def refused(self, reason: str) -> None:
        """Show why a call of the model was refused."""

    def progress(self, event: TaskEvent) -> None:
        """Show an event of a plan that runs."""


@frozen
class Proposed:
    """The outcome of a proposal, for the model, and whether the answer goes on after it."""

    outcome: Mapping[str, Any]
    goes_on: bool


@define(eq=False)
class Planner:
    """One conversation with a model over one session. `activity` says what an interruption would interrupt."""

    session: Session
    _model: Model
    _transcript: Transcript
    _propose: Callable[[str, Sequence[Step], TaskConstraints], Awaitable[Proposed]]
    _display: Display = field(factory=Display)
    messages: list[dict[str, Any]] = field(factory=list)
    tokens_in: int = 0
    tokens_out: int = 0
    activity: str = ""
    _reads: int = 0
    _plans: int = 0

    async def answer(self, words: str) -> str:
        """Have the model answer a request; return its last words.

        Raises ModelError, and CarrierError or SessionInvalid if the daemon is gone.
        """
        self._transcript.add("words", text=words)
        self.messages.append({"role": "user", "text": words})
        self._reads = self._plans = faults = 0
        try:
            for _ in range(MOST_TURNS):
                self.activity = f"the model {self._model.name} is answering; nothing runs"
                turn = await self._model.turn(self.messages, TOOLS, self._display.words)
                self.tokens_in += turn.tokens_in
                self.tokens_out += turn.tokens_out
                calls = [{"id": one.call_id, "tool": one.tool, "arguments": one.arguments} for one in turn.calls]
                tokens = {"tokens_in": turn.tokens_in, "tokens_out": turn.tokens_out}
                self._transcript.add("turn", text=turn.text, calls=calls, **tokens)
                self.messages.append({"role": "model", "text": turn.text, "calls": calls})
                if not calls:
                    return turn.text
                refused = []
                for call in turn.calls:
                    try:
                        done = await self._call(call)
                    except _Refused as refusal:
                        refused.append(str(refusal))
                        self._transcript.add("refused", reason=refused[-1])
                        self._display.refused(refused[-1])
                        done = Proposed({"error": refused[-1]}, True)
                    self._give(call, done.outcome)
                    if not done.goes_on:
                        return turn.text
                faults = faults + 1 if len(refused) == len(calls) else 0
                if faults == MOST_FAULTS:
                    raise ModelError(f"the model was refused {faults} times in a row, at last: {refused[-1]}")
            raise ModelError(f"the model made {MOST_TURNS} turns without an end; ask for less at once")
        except ModelError as error:
            self._transcript.add("error", reason=str(error))
            raise
        except trio.Cancelled:
            self._transcript.add("error", reason=f"interrupted: {self.activity}")
            raise
        finally:
            self._close_calls()

    def _give(self, call: ToolCall, outcome: Mapping[str, Any]) -> None:
        text = orjson.dumps(outcome).decode()
        if len(text) > MOST_RESULT:
            text = f"{text[:MOST_RESULT]}… (cut: {len(text)} characters)"
        self.messages.append({"role": "result", "id": call.call_id, "text": text})

    def _close_calls(self) -> None:
        """Give each call that has no result yet one: the APIs refuse a conversation that lacks it."""
        last = next((each for each in reversed(self.messages) if each["role"] != "result"), None)
        answered = {each["id"] for each in self.messages if each["role"] == "result"}
        for call in (last or {}).get("calls", ()):
            if call["id"] not in answered:
                self.messages.append({"role": "result", "id": call["id"], "text": '{"error":"not done"}'})

    async def _call(self, call: ToolCall) -> Proposed:
        args = as_object(call.arguments)
        names = [each["name"] for each in TOOLS]
        if call.tool not in names:
            near = suggest(call.tool, names) or f"there are {' and '.join(names)}"
            raise _Refused(f"the model called {call.tool[:60]!r}, which it does not have; {near}")
        if args is None:
            raise _Refused(f"the arguments of {call.tool} are no JSON object: {call.arguments[:60]!r}")
        try:
            return await (self._read(args) if call.tool == "read" else self._proposed(args))
        except RpcError as error:
            if error.symbol in ("RPC_SESSION_INVALID", "SHUTTING_DOWN"):
                raise
            raise _Refused(error.message) from None

    async def _read(self, asked: Mapping[str, Any]) -> Proposed:
        tool, args = asked.get("tool"), asked.get("args", {})
        if not isinstance(tool, str) or not isinstance(args, dict):
            raise _Refused("read takes tool, a name, and args, an object")
        self._reads += 1
        if self._reads > MOST_READS:
            raise _Refused(f"there were {MOST_READS} reads for this request; answer with what they gave")
        self.activity = f"{tool} is being read"
        self._display.reading(tool, args)
        task = await self.session.submit("read for a model", [Step(tool, args)], max_duration_ms=READ_MS)
        done = await task.wait()
        found = done.steps[0] if done.steps else None
        shown: dict[str, Any] = {"result": found.result if found is not None else None}
        if done.status != "SUCCESS":
            shown = {"error": (found and found.error) or done.error or done.status}
        self._transcript.add("read", tool=tool, args=args, task_id=done.task_id, status=done.status, **shown)
        return Proposed({"task_id": done.task_id, **shown}, True)

    async def _proposed(self, asked: Mapping[str, Any]) -> Proposed:
        self._plans += 1
        if self._plans > MOST_PLANS:
            raise _Refused(f"there were {MOST_PLANS} plans for this request; say what is left to do")
        self.activity = "a plan is being prepared; nothing runs"
        constraints: TaskConstraints = {"rollback_on_failure": True} if asked.get("rollback_on_failure") is True else {}
        intent = asked.get("intent")
        return await self._propose(intent if isinstance(intent, str) else "", read_steps(asked), constraints)


class _Refused(Exception):
    """A call of the model's that is not done; the reason, for the model and the person."""


def read_steps(asked: Mapping[str, Any]) -> list[Step]:
    """Return the proposed steps. Raises InvalidParams."""
    steps = asked.get("steps")
    if not isinstance(steps, list) or not steps:
        raise InvalidParams("a plan has steps, an array of objects with tool and args")
    made = []
    for index, one in enumerate(steps):
        if not isinstance(one, dict) or not isinstance(one.get("tool"), str) or not isinstance(one.get("args"), dict):
            raise InvalidParams(f"step {index}: expected an object with tool, a name, and args, an object")
        expect = one.get("expect")
        made.append(
            Step(one["tool"], one["args"], None if expect is None else read_expect(expect, f"/steps/{index}/expect"))
        )
    return made


@frozen
class Verdict:
    """What was decided on a plan, and by what: a person, an option, the lack of a terminal."""

    approved: bool
    by: str
    wait_ms: int = 0
    """How long to wait for the approval of another principal."""


def needs_no_answer(plan: Plan, up_to: int) -> bool:
    """Return True if an option that permits plans up to this risk stands for a person's answer.

    It never does for a plan that waits for an approval, nor for one that changes anything once foreign text has entered
    the conversation: the daemon asks for a person from risk 2 on, and this asks from risk 1 on.
    """
    tainted = plan.tainted_by is not None and plan.effective_risk > 0
    return plan.state != "waiting" and not tainted and plan.effective_risk <= up_to


@define(eq=False)
class PlanRun:
    """The way of a proposal in `hearth ask`: prepared, shown and decided (`decide`), executed, reported."""

    _session: Session
    _transcript: Transcript
    _decide: Callable[[Plan], Awaitable[Verdict]]
    _display: Display = field(factory=Display)
    done: list[tuple[Plan, TaskResult]] = field(factory=list)
    """The plans that ran, with their tasks, in their order."""
    activity: Callable[[str], None] = lambda _text: None

    async def __call__(self, intent: str, steps: Sequence[Step], constraints: TaskConstraints) -> Proposed:
        """Prepare, have decided, execute, and return the outcome. Raises RpcError for what the daemon refuses."""
        plan = await prepare(self._session, intent, steps, constraints)
        shown = [{"tool": one.tool, "args": one.args, "before": one.before, "after": one.after} for one in plan.steps]
        facts = {"hash": plan.hash, "risk": plan.effective_risk, "state": plan.state, "tainted_by": plan.tainted_by}
        self._transcript.add("plan", plan_id=plan.plan_id, **facts, intent=plan.intent, steps=shown)
        self.activity("a plan waits for its approval; nothing runs")
        verdict = await self._decide(plan)
        self._transcript.add("decision", plan_id=plan.plan_id, approved=verdict.approved, by=verdict.by)
        if not verdict.approved:
            with suppress(RpcError):  # it may have expired, or been rejected, since
                await self._session.reject(plan)
            return Proposed({"not_run": f"refused: {verdict.by}"}, False)
        task = await self._session.execute(plan, wait_ms=verdict.wait_ms or None)
        self.activity(f"task {task.task_id} has begun")
        async for event in task.events():
            if event.phase == "start" and event.step_index is not None:
                where = f"step {event.step_index + 1} of {len(plan.steps)} ({plan.steps[event.step_index].tool})"
                self.activity(f"task {task.task_id} is at {where}; what has begun on a bus finishes")
            self._display.progress(event)
        done = await task.wait()
        self.activity("")
        self.done.append((plan, done))
        outcome = {"task_id": done.task_id, "status": done.status, "steps": [_step_outcome(one) for one in done.steps]}
        if done.error is not None:
            outcome["error"] = done.error
        self._transcript.add("task", plan_id=plan.plan_id, **outcome)
        return Proposed(outcome, True)


def _step_outcome(one: Any) -> dict[str, Any]:
    names = ("tool", "status", "result", "error", "error_code", "seen", "rolled_back")
    outcome = {name: getattr(one, name) for name in names if getattr(one, name) is not None}
    effect = (one.error_data or {}).get("effect")
    return outcome if effect is None else {**outcome, "effect": effect}


async def prepare(session: Session, intent: str, steps: Sequence[Step], constraints: TaskConstraints) -> Plan:
    """Prepare a plan whose levels are read again after each step, where the board can read them. Raises RpcError."""
    verified = [_verified(one) for one in steps]
    try:
        return await session.prepare(intent or "asked in words", verified, **constraints)
    except InvalidParams as error:
        # A line may be one that can be driven and not read.
        if verified == list(steps) or not str((error.data or {}).get("path", "")).startswith("/expect"):
            raise
        return await session.prepare(intent or "asked in words", steps, **constraints)


def _verified(one: Step) -> Step:
    if one.tool != "gpio.set" or one.expect is not None:
        return one
    from hearth.api import Expect

    place = {name: one.args[name] for name in ("chip", "line") if name in one.args}
    return Step(one.tool, one.args, Expect("gpio.get", place, equals={"value": one.args.get("value")}))


def undoing(plan: Plan) -> list[Step]:
    """Return steps that set what a plan has set back to what it was before, the last first; [] if none can be."""
    steps = []
    for one in reversed(plan.steps):
        if one.before is None or one.before == one.after or not {*one.before} & {*one.args, "data"}:
            continue
        kept = {name: value for name, value in one.args.items() if name not in ("data", "text", "hex")}
        steps.append(Step(one.tool, {**kept, **{name: one.before[name] for name in one.before if name in _SETTABLE}}))
    return steps


_SETTABLE: Final = ("value", "duty", "period_us", "angle", "data")
