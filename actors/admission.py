"""What a session accepts: the way of a checked submission into the session's book, and the record of a refused one.

The checks themselves are `submission`'s; when a task runs, and who hears of it, is the session's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hearth.actors.memory_budget import FEED_BYTES
from hearth.actors.submission import check, ignored_args
from hearth.actors.task import TaskActor, cost_of
from hearth.actors.tickets import Asker
from hearth.errors import AuditUnavailable, RpcError
from hearth.ids import new_id
from hearth.known_members import MOST_NAMED
from hearth.mcp.card_permits import check_use
from hearth.policy.buckets import too_often
from hearth.policy.rules import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hearth.actors.asks import Ask
    from hearth.actors.memory_budget import Account
    from hearth.actors.step import StepRun, TaskServices
    from hearth.actors.submission import Checks, Looked
    from hearth.actors.taskbook import TaskBook
    from hearth.policy.rules import Grant, RateLimits
    from hearth.protocol.methods import TaskSubmit


REHEARSALS: Final = Rate(1000, 10)
"""How often one principal may have a task rehearsed (`dry_run`)."""


class Admission:
    """One session's door for tasks."""

    __slots__ = (
        "_account",
        "_book",
        "_checks",
        "_deadman",
        "_grant",
        "_principal",
        "_rates",
        "_services",
        "_session_id",
    )

    def __init__(
        self,
        session_id: str,
        principal: str,
        grant: Grant,
        rates: RateLimits,
        book: TaskBook,
        services: TaskServices,
        checks: Checks,
        account: Account,
        *,
        deadman: bool,
    ) -> None:
        self._account = account
        self._session_id = session_id
        self._principal = principal
        self._grant = grant
        self._rates = rates
        self._book = book
        self._services = services
        self._checks = checks
        self._deadman = deadman

    def accept(
        self,
        submit: TaskSubmit,
        looked: Looked,
        ask: Ask,
        now: float,
        on_end: Callable[[TaskActor], None],
        followers: int,
    ) -> TaskActor:
        """A task that is in the book and ready to run; it answers `ask` when its submission is on record.

        So many `followers` will follow it, whoever asks. `now` is the present, and not when the submission came: its
        paths may have been looked up for long. Raises RpcError for one that is refused, which is then on record, and
        NotLooked.
        """
        try:
            steps, tokens = check(submit, self._checks, self._grant, self._rates, now, looked)
            asker = Asker(self._session_id, new_id(), self._principal, self._deadman)
            try:
                self._require_room(submit, steps, asker, followers)
                if submit.constraints.dry_run:
                    self._require_rehearsal(now)
            except RpcError:
                self._rates.put_back(tokens, now)
                raise
        except RpcError as error:
            self._record_rejection((step.tool for step in submit.steps[:16]), error)
            raise

        def acknowledge(error: RpcError | None) -> None:
            if error is not None:
                ask.error(error)
                self._book.settle_key(submit, error)
                return
            follower = ask.follower if submit.subscribe else None
            accepted = {"task_id": asker.task_id, "status": "QUEUED"}
            ask.result(accepted if follower is None else {**accepted, "subscribed": True})
            if follower is not None:
                follower.follow(task.log, 1)
            self._book.settle_key(submit, None)

        task = TaskActor(
            asker,
            submit.intent,
            steps,
            submit.constraints,
            self._services,
            account=self._account,
            now=now,
            acknowledge=acknowledge,
            on_end=on_end,
        )
        self.name_ignored(ask, submit)
        self._book.enter(task, submit)
        if submit.constraints.dry_run:
            # It was allowed as the task itself would be, and does nothing that a rate bounds.
            self._rates.put_back(tokens, now)
        return task

    def name_ignored(self, ask: Ask, submit: TaskSubmit) -> None:
        """Let the answer to a submission name, beside what its params have, what its tools do not know."""
        ask.ignored += ignored_args(submit, self._checks, MOST_NAMED - len(ask.ignored))

    def permit(self, name: str, now: float) -> dict[str, Any]:
        """The record of one use of a tool that the MCP bridge serves itself; it is to be written before the use.

        Raises RpcError for one that is refused, which is then on record.
        """
        try:
            tool = check_use(name, self._grant, self._rates, now)
            failure = self._services.journal.failure
            if failure is not None and tool.risk_level:
                self._rates.put_back({name: 1}, now)
                raise AuditUnavailable(data={"reason": failure, "effect": "none"})
        except RpcError as error:
            self._record_rejection([name], error)
            raise
        return {"event": "mcp.use", "session_id": self._session_id, "principal": self._principal, "tool": name}

    def _require_room(self, submit: TaskSubmit, steps: Sequence[StepRun], asker: Asker, followers: int) -> None:
        """Refuse what is well but cannot be served now: no room for it, no audit log, a bus known to be busy."""
        self._book.check_room(submit, sum(cost_of(submit.intent, steps)) + FEED_BYTES * followers)
        failure = self._services.journal.failure
        if failure is not None and any(step.guarded for step in steps):
            raise AuditUnavailable(data={"reason": failure, "effect": "none"})
        if submit.constraints.on_busy == "fail" and not submit.constraints.dry_run:
            for step in steps:
                busy = step.bus.known_busy(asker)
                if busy is not None:
                    raise busy

    def _require_rehearsal(self, now: float) -> None:
        """Refuse a dry run that comes too soon: it uses up no tool's rate, and is two records in the log."""
        wait = self._services.rehearsals.take(self._principal, now)
        if wait:
            raise too_often("dry runs", REHEARSALS, wait)

    def _record_rejection(self, tools: Iterable[str], error: RpcError) -> None:
        """A refusal is on record too, or counted; nobody waits for it, since nothing was done."""
        if not self._services.refusals.admit("task.reject", self._principal, error.code):
            return
        record: dict[str, Any] = {
            "event": "task.reject",
            "session_id": self._session_id,
            "principal": self._principal,
            "tools": [tool[:100] for tool in tools],
            "error_code": error.code,
            "reason": error.message[:256],
        }
        self._services.journal.post(record, minor=True)
