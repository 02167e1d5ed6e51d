"""The bugs that can be planted: mistakes that somebody could make, each with the invariant that must catch it.

A bug is a small change of one shipped module's source. Its old text must be there exactly once: where the module has
changed so that it is not, a test says which bug has to be looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Bug(NamedTuple):
    """One planted bug: `seed` is one that is known to show it to `invariant`."""

    name: str
    what: str
    module: str
    old: str
    new: str
    invariant: str
    seed: int = 0

    @property
    def path(self) -> Path:
        """The file of the module that it is planted in."""
        place = self.module.removeprefix("hearth.")
        folder = ROOT if place.startswith(("actors.", "drivers.")) else ROOT / "hearth"
        return folder.joinpath(*place.split(".")).with_suffix(".py")

    def planted_in(self, source: str) -> str:
        """The source with the bug in it. Raises LookupError if it does not fit exactly once."""
        count = source.count(self.old)
        if count != 1:
            raise LookupError(f"planted bug {self.name}: its old text is {count} times in {self.module}, not once")
        return source.replace(self.old, self.new)


BUGS = (
    Bug(
        "unshielded-transaction",
        "a transaction runs without its shield",
        "hearth.actors.bus.workers",
        "that runs: `abandon` cancels it.\n        self._scope = trio.CancelScope(shield=True)\n",
        "that runs: `abandon` cancels it.\n        self._scope = trio.CancelScope(shield=False)\n",
        "a transaction that has begun is never cut",
        seed=67,
    ),
    Bug(
        "one-lane-too-many",
        "a bus serves one transaction more than it has room for",
        "hearth.actors.bus.actor",
        "for _ in range(self.driver.width if self._lanes is None else 0):",
        "for _ in range(self.driver.width + 1 if self._lanes is None else 0):",
        "no two transactions overlap on a bus",
        seed=3,
    ),
    Bug(
        "reply-before-the-journal",
        "a submission is acknowledged before it is written",
        "hearth.actors.task",
        "        unrecorded = None\n        while self._posted:\n",
        "        unrecorded = None\n"
        "        if self._acknowledge is not None:\n"
        "            acknowledge, self._acknowledge = self._acknowledge, lambda _error: None\n"
        "            acknowledge(None)\n"
        "        while self._posted:\n",
        "a submission is acknowledged after it is on record",
        seed=4,
    ),
    Bug(
        "step-before-its-record",
        "a step runs first, and its start is recorded with its finish",
        "hearth.actors.task",
        "        unrecorded = await self._commit()\n        if unrecorded is not None and step",
        "        unrecorded = None\n        if unrecorded is not None and step",
        "no step begins unrecorded",
        seed=1,
    ),
    Bug(
        "records-swapped",
        "records that are posted together are written in reverse",
        "hearth.actors.journal",
        "self._log.append([(post.at, record) for record in post.records], post.at)",
        "self._log.append([(post.at, record) for record in reversed(post.records)], post.at)",
        "a task's records are in the order of its life",
        seed=1,
    ),
    Bug(
        "forgotten-release",
        "a task ends without releasing its leases",
        "hearth.actors.task",
        "            bus.release(ticket)\n",
        "            pass\n",
        "nothing leaks",
    ),
    Bug(
        "lease-ignored",
        "who waits for a bus is served although it is leased",
        "hearth.actors.bus.queue",
        "        if self.lease is not None:\n            return None\n",
        "",
        "a lease is exclusive",
        seed=6,
    ),
    Bug(
        "stale-ticket",
        "a queued ticket begins although its asker was cancelled",
        "hearth.actors.bus.queue",
        "            ticket = heappop(self._heap)\n            if ticket.state is State.QUEUED:\n",
        "            ticket = heappop(self._heap)\n            if ticket.state is not State.DONE:\n",
        "a queued step whose task was cancelled never begins",
        seed=15,
    ),
    Bug(
        "priorities-upside-down",
        "the lowest priority goes first",
        "hearth.actors.bus.queue",
        "return self.priority > other.priority",
        "return self.priority < other.priority",
        "the higher priority goes first, and of equals who came first",
        seed=112,
    ),
    Bug(
        "queue-bound-off-by-one",
        "one more waits than the bound allows",
        "hearth.actors.bus.queue",
        "if self.depth >= self._bound and not holds:",
        "if self.depth > self._bound and not holds:",
        "a bus's queue holds no more than its bound",
        seed=59,
    ),
    Bug(
        "wedge-forgotten",
        "a transaction past its limit does not mark its bus",
        "hearth.actors.bus.actor",
        "        if self._overdue < self.driver.width or self._abandoned:\n",
        "        if True:\n",
        "a transaction past its limit has its bus named as wedged",
        seed=38,
    ),
    Bug(
        "finish-told-twice",
        "the end of a task is published twice",
        "hearth.actors.task",
        '        self._events.append(("task_finish", members))\n',
        '        self._events.extend([("task_finish", members)] * 2)\n',
        "every subscriber got each start, finish and task_finish once and in order",
        seed=1,
    ),
    Bug(
        "events-dropped-under-pressure",
        "a subscriber that falls behind gets the newest two events only",
        "hearth.actors.events",
        "            return found, start + 1 + len(found)\n",
        "            return found[-2:], start + 1 + len(found)\n",
        "every subscriber got each start, finish and task_finish once and in order",
        seed=2,
    ),
    Bug(
        "rate-refills-too-fast",
        "a rate's bucket fills at twice its rate",
        "hearth.policy.rules",
        "self._interval = rate.period_s / rate.count\n",
        "self._interval = rate.period_s / rate.count / 2\n",
        "rates are kept at every instant",
        seed=2,
    ),
    Bug(
        "rate-of-each-session",
        "a rate is counted in each session by itself",
        "hearth.policy.rules",
        "levels = (self._buckets, self._principals.buckets(self._principal, self._policy, now))",
        "levels = (self._buckets,)",
        "rates are kept at every instant",
        seed=222,
    ),
    Bug(
        "one-task-too-many",
        "a session takes one live task more than it may",
        "hearth.actors.task_registry",
        "if len(self._live) >= self._max_live:",
        "if len(self._live) > self._max_live:",
        "a session has no more live tasks than it may",
        seed=3,
    ),
    Bug(
        "anybodys-session",
        "another principal's session id is accepted",
        "hearth.actors.runtime",
        "if session is None or session.principal != principal:",
        "if session is None:",
        "a session belongs to its principal",
    ),
    Bug(
        "left-driven",
        "a session ends without bringing its outputs to their safe state",
        "hearth.actors.session",
        "return await make_safe(buses, self.session_id, until, unattended=self.end_recorded, hands_over=hands_over)\n",
        "return []\n",
        "outputs that a session drove are safe when it has ended",
    ),
    Bug(
        "pulse-takes-the-line",
        "a pulse makes the line its own session's, instead of borrowing it",
        "hearth.actors.bus.actor",
        "enter = self._driven.borrow if ticket.borrows else self._driven.claim",
        "enter = self._driven.claim",
        "a session that ended owns no level that it set last",
        seed=43,
    ),
    Bug(
        "rollback-keeps-the-line",
        "a rollback leaves the line to the session that rolled back",
        "hearth.actors.bus.outputs",
        "if back.taken_by(output) != back.held_by(output):",
        "if back.taken_by(output) != back.held_by(output) and output is None:",
        "a session that ended owns no level that it set last",
        seed=289,
    ),
    Bug(
        "deadman-stolen",
        "a session that sets a line takes it from the one with the deadman",
        "hearth.actors.bus.outputs",
        "self._holders[output] = [*kept, requester]",
        "self._holders[output] = [requester]",
        "a session that ended owns no level that it set last",
        seed=152,
    ),
    Bug(
        "deadman-undone",
        "the rollback of a set takes an earlier set of its session out of the deadman too",
        "hearth.actors.bus.outputs",
        "replaced = mine and (not requester.deadman or _holds(requester.session_id, kept))",
        "replaced = mine",
        "a session that ended owns no level that it set last",
        seed=18631,
    ),
    Bug(
        "interlock-not-asked",
        "a bus does not ask the interlocks before it drives an output",
        "hearth.actors.bus.guard",
        "            self.interlocks.check(output, level)\n",
        "            pass\n",
        "an output is driven only while what its interlock requires holds",
        seed=243,
    ),
    Bug(
        "interlock-not-watched",
        "an output stays driven when its interlock opens",
        "hearth.actors.bus.interlocks",
        "            if lock.driven:\n                await self._enforce(lock)\n",
        "",
        "an output is driven only while what its interlock requires holds",
        seed=36,
    ),
    Bug(
        "limits-not-asked",
        "a bus does not ask the limits before it drives an output",
        "hearth.actors.bus.guard",
        "return level if self._limits is None else self._limits.check(output, level, self._clock())",
        "return level",
        "a line is on no longer, and off no shorter, than its limit says",
        seed=413,
    ),
    Bug(
        "longest-time-forgotten",
        "a line stays on beyond its longest time",
        "hearth.actors.bus.limits",
        "            line.due = now + line.max_on\n",
        "            line.due = inf\n",
        "a line is on no longer, and off no shorter, than its limit says",
        seed=58,
    ),
    Bug(
        "halt-leaves-outputs",
        "a halt does not bring outputs to their safe states",
        "hearth.actors.bus.halt",
        "            bus.halt(frozenset(apart.get(bus_id, ())), self._initial.get(bus_id, ()))\n",
        "            del bus_id, bus\n",
        "outputs are safe after a halt",
        seed=11,
    ),
    Bug(
        "pulse-ends-after-halt",
        "a pulse that a halt has ended takes its effect back all the same",
        "hearth.actors.bus.actor",
        "            return partial(left_to_halt, back.instead)\n",
        "            return op\n",
        "nothing acts from a halt on, and nothing of before it ever",
        seed=122,
    ),
    Bug(
        "key-forgotten",
        "an idempotency key is not remembered",
        "hearth.actors.task_registry",
        "known = self._entries.get(_name(principal, key))",
        "known = None",
        "one idempotency key, one task, done once",
        seed=5,
    ),
    Bug(
        "keys-lost-at-restart",
        "the idempotency keys of earlier runs are not read",
        "hearth.actors.task_registry",
        "        lines, notes = self._read()\n",
        "        lines, notes = list[dict[str, Any]](), list[str]()\n",
        "one idempotency key, one task, done once",
        seed=56,
    ),
    Bug(
        "adopted-by-all",
        "a subscription to all tasks of a session tells of those that a repeat has found in another session",
        "hearth.actors.task_registry",
        "            if not finished.adopted:\n                yield finished.log\n",
        "            yield finished.log\n",
        "events come only after the answer that promised them, and to nobody else",
        seed=667,
    ),
    Bug(
        "kept-by-a-halt",
        "a halt leaves an output driven that an earlier run has left so because the profile keeps it",
        "hearth.actors.bus.outputs",
        "self._kept: set[Hashable] = set(kept)",
        "self._kept: set[Hashable] = set()",
        "outputs are safe after a halt",
        seed=5195,
    ),
    Bug(
        "undone-forwards",
        "a task is rolled back from its first step to its last",
        "hearth.actors.task",
        "for index in range(len(self.steps) - 1, -1, -1):",
        "for index in range(len(self.steps)):",
        "what was done is undone in reverse order, on record",
        seed=66,
    ),
    Bug(
        "rehearsal-for-real",
        "a dry run runs",
        "hearth.actors.task",
        "        if self._constraints.dry_run:\n            await self._commit()",
        "        if False:\n            await self._commit()",
        "what was refused or only rehearsed touches nothing",
        seed=7,
    ),
    Bug(
        "disclosed-unrecorded",
        "a read that discloses something is taken for one that does not",
        "hearth.actors.step",
        "        return self.risk > 0 or self.tool.discloses or (",
        "        return self.risk > 0 or (",
        "while the log cannot be written nothing is disclosed",
        seed=772,
    ),
    Bug(
        "effect-not-seen",
        "a read that does not show the expected effect counts as one that does",
        "hearth.actors.step",
        "                if expect.holds(result):\n",
        "                if result:\n",
        "a step that expects an effect succeeds only when a read has shown it",
        seed=68,
    ),
    Bug(
        "effect-not-looked-for",
        "an expected effect is not looked for",
        "hearth.actors.task",
        "            await look_for_effect(step, expectation, reading)\n",
        "            del reading\n",
        "a step that expects an effect succeeds only when a read has shown it",
        seed=0,
    ),
    Bug(
        "own-approval-counts",
        "the author of a plan may approve it, although the policy asks for another",
        "hearth.policy.rules",
        "        return by != author or not (self.other or self.persons > 1)\n",
        "        return True\n",
        "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
        seed=59,
    ),
    Bug(
        "approved-as-another",
        "an approval counts although its hash is that of other content",
        "hearth.actors.approval.plans",
        "        if plan_hash is not None and plan.hash != plan_hash:\n",
        "        if plan_hash is None and plan.hash != plan_hash:\n",
        "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
        seed=152,
    ),
    Bug(
        "anybodys-plan",
        "another principal's plan can be executed",
        "hearth.actors.approval.plans",
        "        if plan is None or plan.principal != principal:\n",
        "        if plan is None:\n",
        "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
        seed=36,
    ),
    Bug(
        "latch-not-read",
        "a daemon that finds the latch of an earlier run does not start halted",
        "hearth.actors.bus.halt",
        "        if self._latch.found is not None:\n            self._set(self._latch.found)\n",
        "        if self._latch.path is None:\n            assert self._latch.found is None\n",
        "nothing acts from a halt on, and nothing of before it ever",
        seed=500,
    ),
    Bug(
        "halt-refuses-nothing",
        "a halt brings outputs to their safe states, and refuses nothing after that",
        "hearth.actors.bus.halt",
        "        self.flag.since, self.flag.reason = record.since, record.reason\n",
        "        self.flag.reason = record.reason\n",
        "nothing acts from a halt on, and nothing of before it ever",
        seed=1,
    ),
    Bug(
        "approval-not-asked",
        "what needs an approval runs without one",
        "hearth.actors.admission",
        "    if rule is not None and missing(rule):\n",
        "    if rule is not None and missing(rule) > 9:\n",
        "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
        seed=7,
    ),
    Bug(
        "plan-runs-again",
        "a plan that was executed can be executed again",
        "hearth.actors.approval.plans",
        "        if plan.task_id is not None:\n            raise stale(",
        "        if plan.task_id == 0:\n            raise stale(",
        "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
        seed=7,
    ),
    Bug(
        "deaf-deadman",
        "a session without a heartbeat is closed after ten times its time",
        "hearth.actors.session",
        "else heartbeat / 1000)",
        "else heartbeat / 100)",
        "a silent session is closed in its time, and no other",
        seed=9,
    ),
    Bug(
        "observer-without-right",
        "an observer is asked for no right",
        "hearth.actors.session",
        '        self._grant.require("observe")\n',
        "",
        "only a principal with the right to observe is told of others",
        seed=5,
    ),
    Bug(
        "resumed-one-late",
        "an observer that comes back goes on one event too late",
        "hearth.actors.observe",
        "return from_seq if known and from_seq is not None else 0",
        "return from_seq + 1 if known and from_seq is not None else 0",
        "an observer misses no event without being told",
        seed=29,
    ),
    Bug(
        "record-not-seen",
        "the records of a tenth of a second are told without the last",
        "hearth.actors.observe",
        "            self.log.publish(kind, {kind: gathered})\n",
        "            self.log.publish(kind, {kind: gathered[:-1] or gathered})\n",
        "what an observer sees of the log is what the log has, in its order",
        seed=5,
    ),
)
BY_NAME = {bug.name: bug for bug in BUGS}
