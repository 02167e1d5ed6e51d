"""One run of `hearth ask`: a planner in its own session, and the person who decides in another one.

Words of the model and of devices pass `common.clean`: a terminal does not act on them.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click
import orjson
import trio
from attrs import define, field

from hearth._util.exceptions import unwrapped
from hearth._version import __version__
from hearth.ask import ModelError
from hearth.ask.planner import Display, Planner, PlanRun, Verdict, needs_no_answer, undoing
from hearth.ask.prompt import system_prompt
from hearth.ask.transcript import FORMAT, Transcript
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options
from hearth.cli.plan import plan_lines
from hearth.cli.task_view import brief, event_line
from hearth.errors import HearthError, PermissionDenied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from hearth.api import Plan, TaskEvent
    from hearth.ask.backends import Model
    from hearth.client.session import ClientSession

    OpenSession = Callable[..., AbstractAsyncContextManager[ClientSession]]


KEEP_ALIVE: Final = 60.0
"""Seconds between two signs of life."""


@define(eq=False)
class Asking(Display):
    """One run of `hearth ask`: a planner in its own session, and the person who decides in another one."""

    options: Options
    _open_session: OpenSession
    _model: Model
    transcript: Transcript
    _yes: int = 0
    _dry_run: bool = False
    verdicts: list[Mapping[str, Any]] | None = None
    """The recorded decisions of a replay; None: a person, or the options, decide."""
    wait_ms: int = 0
    planner: Planner = field(init=False)
    plans: PlanRun = field(init=False)
    person: ClientSession = field(init=False)
    last_plan: Plan | None = None
    _midline: bool = False

    @asynccontextmanager
    async def opened(self, **facts: Any) -> AsyncIterator[None]:
        """Open both sessions, and begin the transcript; at the end, end it."""
        named = {"client_name": "hearth ask", "client_version": __version__}
        async with (
            self._open_session(**named) as self.person,
            self._open_session(**named, conversation=True) as session,
        ):
            tools = await session.tools()
            digest = "sha256:" + hashlib.sha256(orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)).hexdigest()
            facts = {"model": self._model.name, "where": self._model.where, **facts}
            self.transcript.add("start", format=FORMAT, hearth=__version__, **facts, tools=digest)
            self.plans = PlanRun(session, self.transcript, self._decide, self, activity=self._note_activity)
            self.planner = Planner(session, self._model, self.transcript, self.plans, self)
            self.planner.messages.append({"role": "system", "text": system_prompt(tools)})
            try:
                # A person may think for long, and so may a model: the sessions must not end as idle ones meanwhile.
                async with unwrapped() as body, trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_alive, session)
                    async with body.watched():
                        yield
                    nursery.cancel_scope.cancel()
            finally:
                counts = {"tokens_in": self.planner.tokens_in, "tokens_out": self.planner.tokens_out}
                self.transcript.add("end", **counts)

    async def _keep_alive(self, session: ClientSession) -> None:
        while True:
            await trio.sleep(KEEP_ALIVE)
            # Not by the state of the halt: its reason, which the model does not see, would taint the conversation.
            for each in (self.person, session):
                await each.plans()

    def _note_activity(self, text: str) -> None:
        self.planner.activity = text

    async def one_shot(self, words: str) -> int:
        """Answer one request; return the exit code."""
        error: ModelError | None = None
        answer = ""
        try:
            answer = await self.answer(words)
        except ModelError as failed:
            error = failed
        if self.options.json:
            self._show_json(answer, error)
        else:
            if error is not None:
                common.report(self.options, error)
                click.echo("        " + ("the plans above ran" if self.plans.done else "nothing was run"), err=True)
            self.show_cost()
        return DONE if error is None and self._all_ran() else FAILED

    def _all_ran(self) -> bool:
        """Return True if every task succeeded, and the last plan ran, or was not to run."""
        ran = [plan for plan, _ in self.plans.done]
        succeeded = all(done.status == "SUCCESS" for _, done in self.plans.done)
        return succeeded and (self._dry_run or self.last_plan is None or self.last_plan in ran)

    def _show_json(self, answer: str, error: ModelError | None) -> None:
        facts = [orjson.loads(line) for line in self.transcript.lines]
        kept = [one for one in facts if one["kind"] in ("read", "refused", "plan", "decision", "task")]
        shown: dict[str, Any] = {"answer": answer, "done": kept, "cost": self.cost(), "transcript": self._file()}
        click.echo(common.compact(shown if error is None else {**shown, "error": {"message": str(error)}}))

    async def answer(self, words: str) -> str:
        """Answer one request. Raises ModelError; if it is interrupted, says what that interrupts."""
        ran = len(self.plans.done)
        try:
            answer = await self.planner.answer(words)
        except trio.Cancelled:
            self._end_line()
            click.echo(f"interrupted: {common.clean(self.planner.activity or 'nothing runs')}", err=True)
            raise
        finally:
            self._end_line()
        for plan, done in self.plans.done[ran:]:
            if not self.options.json:
                lines = f"{common.status(done.status)}  {common.clean(plan.intent)}  task {done.task_id}"
                click.echo(lines)
        return answer

    def cost(self) -> dict[str, int]:
        """Return the tokens so far."""
        return {"tokens_in": self.planner.tokens_in, "tokens_out": self.planner.tokens_out}

    def show_cost(self) -> None:
        """Print the tokens so far, and where the transcript is."""
        cost = f"{self.planner.tokens_in} tokens read, {self.planner.tokens_out} written"
        click.echo(click.style(f"{cost}; transcript {self._file()}", dim=True), err=True)

    def _file(self) -> str | None:
        return None if self.transcript.path is None else str(self.transcript.path)

    async def _decide(self, plan: Plan) -> Verdict:
        if self.verdicts is not None:
            return await self._recorded_verdict(plan)
        self.last_plan = plan
        if not self.options.json:
            self._show_plan(plan)
        if self._dry_run:
            return Verdict(False, "--dry-run")
        waits = plan.state == "waiting"
        if needs_no_answer(plan, self._yes):
            return Verdict(True, f"--yes-up-to {self._yes}")
        if waits and not await self._counts(plan):
            click.echo(f"another principal must approve it: hearth approvals approve {plan.plan_id}", err=True)
            return Verdict(True, "another principal", self.wait_ms)
        if self.options.json or not sys.stdin.isatty():
            return self._unasked(plan, waits=waits)
        if not await trio.to_thread.run_sync(lambda: click.confirm("\nRun this?"), abandon_on_cancel=True):
            return Verdict(False, "the person")
        if waits:
            await self.person.approve(plan, reason="hearth ask")
        return Verdict(True, "the person")

    def _show_plan(self, plan: Plan) -> None:
        self._end_line()
        click.echo("\n".join(plan_lines(plan)))
        if plan.tainted_by is not None:
            why = f"text from {plan.tainted_by} has entered the conversation: read the steps, not the words"
            click.echo(f"  {click.style(common.clean(why), fg='yellow')}")

    def _unasked(self, plan: Plan, *, waits: bool) -> Verdict:
        """Return the verdict where there is no terminal to ask on."""
        if waits and self.wait_ms:
            return Verdict(True, "another session", self.wait_ms)
        cure = f"--yes-up-to {plan.effective_risk}" if plan.tainted_by is None else "a terminal"
        cure = f"`hearth approvals approve {plan.plan_id}` and --wait" if waits else cure
        click.echo(f"not run: it needs a person, and there is no terminal to ask on; see {cure}", err=True)
        return Verdict(False, "no terminal")

    async def _counts(self, plan: Plan) -> bool:
        """Return True if this principal's approval of it would count."""
        return any(one.may_approve for one in await self.person.plans() if one.plan_id == plan.plan_id)

    async def _recorded_verdict(self, plan: Plan) -> Verdict:
        assert self.verdicts is not None
        if not self.verdicts:
            return Verdict(False, "the recording has no further decision")
        was = self.verdicts.pop(0)
        if was.get("approved") is True and plan.state == "waiting":
            try:
                await self.person.approve(plan, reason="replay")
            except PermissionDenied as error:
                return Verdict(False, error.message)
        return Verdict(was.get("approved") is True, str(was.get("by")))

    async def undo(self) -> None:
        """Propose to set back what the last plan has set; it is shown and decided as any plan is."""
        if not self.plans.done:
            raise HearthError("there is nothing to undo: no plan has run in this conversation")
        plan = self.plans.done[-1][0]
        steps = undoing(plan)
        if not steps:
            raise HearthError("the last plan has nothing that can be set back: its steps do not show a state before")
        await self.plans(f"undo: {plan.intent}", steps, {})

    def words(self, text: str) -> None:
        """See Display."""
        if not self.options.json and text:
            click.echo(common.clean(text), nl=False)
            self._midline = not text.endswith("\n")

    def reading(self, tool: str, args: Mapping[str, Any]) -> None:
        """See Display."""
        self._aside(f"reads {tool} {brief(args)}")

    def refused(self, reason: str) -> None:
        """See Display."""
        self._aside(f"refused: {reason}")

    def progress(self, event: TaskEvent) -> None:
        """See Display."""
        if event.phase == "start" and event.step_index is not None and self.last_plan is not None:
            steps = self.last_plan.steps
            self._aside(f"runs step {event.step_index + 1} of {len(steps)} ({steps[event.step_index].tool})")
        elif event.phase == "finish":
            self._aside(event_line(event))

    def _aside(self, text: str) -> None:
        if not self.options.json:
            self._end_line()
            click.echo(click.style(common.clean(text), dim=True), err=True)

    def _end_line(self) -> None:
        if self._midline:
            self._midline = False
            click.echo()
