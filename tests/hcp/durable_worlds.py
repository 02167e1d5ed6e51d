"""Worlds of durable jobs: a random function over a whole runtime in memory, with faults and deaths, until it is over.

`play(seed)` makes a function (`durable_programs`) and has a caller hand it in, and hand it in again from its last
checkpoint after every failure, up to three times. Steps fail, transactions hang, the HACP session ends, the audit log
or the job store fails, the caller aborts, the time runs out; and up to twice the process dies, at a write of the job
store (before or after its commit), in a step, or at any time. There is no thread and no real clock, and chance is the
seed's alone. The daemon is halted, and reset by a person, also while the job runs. In a third of the worlds a person
answers the function's questions, or is late, the policy is read again, and the caller also tries to resume what it must
not. Every promise that does not hold is a `Broken`.

What is promised, whatever happens:

- a session's messages end with one terminal message and one session_closed, and no event's number is missing;
- what a caller was told before a death, it is told again after it, to the byte;
- no effect after a halt by a job that is older than it, whether the halt has been reset or not;
- what is resumed is a job that failed or was aborted, and each at most once;
- a yes that a function sees was given in this run of it, or is replayed with no halt, no reading of the policy, no end
  of the process and no more than the time for an answer in between;
- no step that began without being known to have had no effect begins again at its position;
- what a function sees at a position it sees again when it is replayed, and it was on record when it went on;
- the records of a session are numbered without gap, and its checkpoints are those of them that are steps;
- a function that asks the same is never refused as one that has changed.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
from uuid import UUID

import outcome
import trio
from attrs import define, field
from hcp.durable_programs import ATTENDED, LEAVES, Course, program
from support.hcp import Caller, capability, hcp_world
from support.patience import be_patient
from support.steps import DoneAtOnce, seeded, within_real_seconds
from support.world import BOB, BenchTools
from trio.testing import MockClock

import hearth._util.ids
from hearth._util.exceptions import sole
from hearth.actors.bridges.hcp import capability_api, execution, store as store_module
from hearth.actors.bridges.hcp.store.database import JobDatabase
from hearth.actors.bridges.hcp.store.queries import JobStoreError
from hearth.actors.messages import CloseSession
from hearth.errors import AuditUnavailable, DeviceError, Halted
from hearth.hcp import messages as values
from hearth.hcp.durable import ANNOUNCED
from hearth.policy.rules import Match, PolicyEntry
from hearth.tools import Done, Tool, Undo

SESSIONS = 3
"""Jobs of a line: the first one, and those that go on from a checkpoint."""
LIVES = 10
ANSWER_S = 2.0
"""The time for a person's answer."""
LONGEST = 100_000.0
"""Virtual seconds after which a world that has not ended never will."""
PATIENCE_S = 60
"""Real seconds."""
OPEN = {"type": "object"}
PASSING = ("resource_unavailable", "shutting_down", "internal_error")


class Broken(AssertionError):
    """A promise that does not hold."""


@define
class Death:
    """How a life ends: at the nth event of a kind, before or after it; at a time; or properly, at a time."""

    kind: str
    """ "write", "act", "time" or "stop"."""
    at: float
    after: bool = False


@define(eq=False)
class Life:
    """One run of the process."""

    death: Death | None
    dead: bool = False
    over: trio.Event = field(factory=trio.Event)
    counts: Counter[str] = field(factory=Counter)
    caller: Caller | None = None
    told: list = field(factory=list)
    """What the caller had been told when it died."""

    def die(self):
        """From here on nothing that this life does reaches anything."""
        self.dead = True
        self.told = list(self.caller.messages) if self.caller is not None else []
        self.over.set()

    def passes(self, kind, *, after):
        """One more event of a kind, before or after it is done; dies if this is where it dies."""
        if self.dead:
            return
        self.counts[kind] += not after
        if self.death == Death(kind, self.counts[kind], after):
            self.die()

    def messages(self):
        """What the caller was told."""
        return self.told if self.dead else self.caller.messages

    async def end_in_time(self):
        """Die, or end, at a time."""
        await trio.sleep(self.death.at)
        self.over.set() if self.death.kind == "stop" else self.die()


class World:
    """What outlives the process: the disk, the devices, the caller, and what has been seen."""

    def __init__(self, seed, directory):
        self.seed = seed
        self.directory = directory
        self.rng = random.Random(f"{seed}/world")
        self.attended = seed % 3 == 2
        """Whether a person answers."""
        self.program = program(random.Random(f"{seed}/program"), leaves=ATTENDED if self.attended else LEAVES)
        self.hard = self.rng.random() ** 1.5
        """How much goes wrong, from 0 to 1."""
        self.life = Life(None)
        self.figures = Counter()
        self.begun = Counter()
        """By tag: how often a transaction began and is not known to have had no effect."""
        self.seen = {}
        """By session and position: what the function saw."""
        self.on_record = {}
        """By position: what the session that runs goes on from."""
        self.heard = {}
        """By session: what the caller was told."""
        self.store_fails = range(0)
        self.live = set()
        """Sessions that have begun a step."""
        self.older = set()
        """Sessions that were there when the daemon was last halted."""
        self.inherited = 0
        """The records that the session which runs goes on from."""
        self.touched = set()
        """Sessions during which the job store failed."""
        self.changes = 0
        """The halts, readings of the policy and ends of the process so far: what an answer may rest on."""
        self.yes = {}
        """By position: the last yes to its question, as (session, `changes`, when)."""
        self.began = 0
        """`changes` when the session that runs was handed in."""
        self._tries = Counter()

    # --- what the function and the devices tell

    def saw(self, session, position, found, *, asks=False):
        """An operation came back to the function."""
        if self.life.dead:
            return
        found = json.loads(json.dumps(found))
        recorded = self.on_record.get(position)
        if asks and found[1][0]:
            self._saw_yes(session, position)
        if recorded is not None and recorded != found and not asks:
            self.broken(f"operation {position} is on record as {recorded}, and the function sees {found}")
        elif recorded is not None and session in self.live:
            self.broken(f"operation {position} is replayed, and a step began before it was")
        self.seen.setdefault(session, {})[position] = found

    def _saw_yes(self, session, position):
        """Hold a yes against those that were given: it is of this session, or nothing has changed since."""
        given_in, changes, at = self.yes.get(position, (None, 0, 0.0))
        if given_in == session:
            return
        self.figures["yes replayed"] += 1
        if given_in is None:
            self.broken(f"nobody has said yes at {position}, and the function sees a yes")
        elif changes != self.began:
            self.broken(f"the yes at {position} is replayed, and what it may rest on has changed since")
        elif trio.current_time() - at > ANSWER_S:
            self.broken(f"the yes at {position} is replayed after {trio.current_time() - at:g} s")

    def fate(self, tag):
        """How a transaction ends ("done", "none", "did" or "unknown"), and the seconds that it takes."""
        self._tries[tag] += 1
        rng = random.Random(f"{self.seed}/{tag}/{self._tries[tag]}")
        end = "done" if rng.random() > 0.3 * self.hard else rng.choice(("none", "none", "did", "unknown"))
        slow = rng.random() < 0.1 * self.hard
        return end, rng.choice((0.7, 1.5, 20.0) if slow else (0.0, 0.001, 0.05))

    def tools(self):
        """bench.act has an effect, bench.look has none."""

        async def transaction(tag, _driver):
            life = self.life
            life.passes("act", after=False)
            end, seconds = self.fate(tag)
            if end == "none" or life.dead:
                raise DeviceError("the device said no", effect="none")
            self.begun[tag] += 1
            session = next(reversed(self.heard))
            self.live.add(session)
            if session in self.older:
                self.broken(f"step {tag} of {session} began after a halt that came after that job")
            self.figures["effects"] += 1
            if self.begun[tag] > 1:
                self.broken(f"step {tag} began twice")
            await trio.sleep(seconds)
            life.passes("act", after=True)
            if end != "done":
                raise DeviceError("the device gave up", effect="done" if end == "did" else "unknown")

        async def act(ctx, args):
            tag = args["tag"]
            await ctx.transact(functools.partial(transaction, tag))

            async def undo(_driver):
                self.begun[tag] -= not self.life.dead

            return Done({"tag": tag}, Undo(undo, f"take {tag} back"))

        async def look(ctx, args):
            async def glance(_driver):
                end, seconds = self.fate(args["tag"])
                await trio.sleep(seconds)
                if end != "done":
                    raise DeviceError("it cannot be seen", effect="none")
                return self.rng.random()

            return {"value": await ctx.transact(glance)}

        more = {
            "timeout_ms": 1000, "description": "", "params_schema": OPEN, "result_schema": OPEN,
            "bus": lambda args: args["bus"],
        }  # fmt: skip
        return [
            Tool(name="bench.act", risk_level=1, capability="CAP_GPIO_RW", run=act, supports_rollback=True, **more),
            Tool(name="bench.look", risk_level=0, capability="CAP_GPIO_READ", run=look, **more),
        ]

    async def function(self, job):
        """The capability."""
        course = Course(job, functools.partial(self.saw, job.session_id))
        await course.run(self.program)
        return {"values": course.values}

    def broken(self, reason):
        """Fail the world, from where exceptions are contained."""
        self.failure = self.failure or Broken(reason)

    failure = None
    unstored = False
    """True if the last session's end could not be stored: the next start ends it, before which nothing resumes it."""

    # --- the disk

    def write(self, real, file, operations):
        """Stands for BookFile.write."""
        life = self.life
        if isinstance(operations[0], functools.partial):
            # While the store is opened: whoever dies there has not begun to serve.
            return real(file, operations)
        life.passes("write", after=False)
        error = "switched off"
        if not life.dead and life.counts["write"] in self.store_fails:
            self.touched |= set(self.heard)
            self.figures["store failed"] += 1
            error = "the job store fails"
        elif not life.dead:
            results = real(file, operations)
            life.passes("write", after=True)
            if not life.dead:
                return results
        return [outcome.Error(JobStoreError(error)) for _ in operations]

    # --- the lives

    def deaths(self):
        """How each life ends."""
        rng = random.Random(f"{self.seed}/deaths")
        for _ in range(2):
            kind = rng.choice(("write", "write", "write", "act", "time", "stop", None))
            after = rng.random() < 0.5
            if kind is None:
                yield None
            elif kind in ("time", "stop"):
                yield Death(kind, rng.choice((0.01, 0.5, 2.0, 10.0)) * rng.random())
            else:
                yield Death(kind, rng.randint(1, 40 if kind == "write" else 6), after)
        while True:
            yield None

    async def play(self):
        """Everything, to its end."""
        rates = {"bench.act": "3/s"} if self.hard > 0.8 else {}
        self.policy = (PolicyEntry(name="bench", match=Match(any=True), max_risk=2, rate=rates),)
        if self.attended:
            person = PolicyEntry(name="person", match=Match(uid=BOB.uid), rights=["approve"], max_risk=2)
            self.policy = (person, *self.policy)
        self.offered = capability(
            "look", self.function, tools=("act", "look"), clean_up=frozenset(("bench.act",)), clean_up_s=2.0,
            max_duration=timedelta(minutes=30),
        )  # fmt: skip
        self.sessions = 0
        document = self._document()
        for _, death in zip(range(LIVES), self.deaths(), strict=False):
            if document is None:
                return
            self.figures["lives"] += 1
            self.life = Life(death)
            self.changes += 1
            document = await self._live(document)
        raise Broken(f"it is not over after {LIVES} lives")

    async def _live(self, document):
        """One life; the document that the next one begins with."""
        life = self.life
        settings = {"approval_timeout_s": ANSWER_S, "abort_timeout_s": 1.0}
        async with hcp_world(
            self.directory, self.offered, settings=settings, policy=self.policy, extra_tools=self.tools(),
            opened=False, close_grace_s=2,
        ) as world:  # fmt: skip
            life.caller = world.caller()
            if life.death is not None and life.death.kind in ("time", "stop"):
                world.nursery.start_soon(life.end_in_time)
            if self.attended:
                world.nursery.start_soon(self._answer, world)
            while document is not None:
                with trio.CancelScope() as living:
                    world.nursery.start_soon(self._until_over, living)
                    session = await self._hand_in(world, document)
                if life.over.is_set():
                    self.figures[f"ended: {life.death.kind}"] += 1
                    break
                document = await self._next_document(world, session)
                if self.rng.random() < 0.3 or self.unstored:
                    break
        self._hear()
        if self.failure is not None:
            raise self.failure
        return document

    async def _until_over(self, scope):
        await self.life.over.wait()
        scope.cancel()

    def _document(self, context=None):
        self.sessions += 1
        more = {} if context is None else {"context": {"last_checkpoint": context}}
        if self.rng.random() < 0.15:
            more["constraints"] = {"max_duration": f"PT{self.rng.choice((1, 5))}S"}
        return Caller.submission("look", message_id=f"message-{self.sessions}", **more)

    async def _hand_in(self, world, document):
        """Send it, and hear its session to the end; the session."""
        caller = self.life.caller
        self.began = self.changes
        while True:
            self._plan_faults(world)
            answer = await caller.reply(document)
            if answer["type"] == "task_accepted":
                break
            if answer["payload"]["reason_code"] not in PASSING:
                raise Broken(f"refused: {answer['payload']}")
            self.figures["refused"] += 1
            await self._heal(world)
        session = answer["session_id"]
        self.heard.setdefault(session, [])
        resumed = document["payload"].get("context", {}).get("last_checkpoint")
        async with trio.open_nursery() as nursery:
            self._plan_ends(nursery, world, session)
            await caller.closed(session)
            nursery.cancel_scope.cancel()
        await self._heal(world)
        self._hear()
        if self.attended:
            await self._resume_what_is_spent(session, resumed)
        return session

    async def _resume_what_is_spent(self, session, resumed):
        """Try to resume the job that this one has resumed, and this one if it has completed: both are refused."""
        events = [one["payload"] for one in self.heard[session] if one["type"] == "event"]
        checkpoints = [one["data"]["checkpoint_id"] for one in events if one["event_type"] == "checkpoint_created"]
        completed = events[-1]["data"]["final_state"] == "COMPLETED"
        spent = [resumed] * (resumed is not None) + checkpoints[-1:] * completed
        for checkpoint in spent:
            context = {"last_checkpoint": checkpoint}
            number = self.figures["resumptions refused"] = self.figures["resumptions refused"] + 1
            document = Caller.submission("look", message_id=f"spent-{self.life.death}-{number}", context=context)
            answer = await self.life.caller.reply(document)
            if answer["type"] == "task_accepted":
                raise Broken(f"{checkpoint} is resumed again, or is of a job that has completed")

    async def _answer(self, world):
        """A person, who answers what waits: yes or no, at once, late, or not at all."""
        rng = random.Random(f"{self.seed}/person/{self.figures['lives']}")
        caller, seen = world.caller(BOB), set()
        while True:
            waits = [one for one in world.runtime.approvals if one.question_id not in seen]
            if not waits:
                await world.runtime.approvals.changed()
                continue
            seen.add(waits[0].question_id)
            await trio.sleep(rng.choice((0.0, 0.05, 0.5, 3.0)) * rng.random())
            params = {"approval_id": waits[0].question_id, "approve": rng.random() < 0.8}
            about, changes, at = waits[0].about, self.changes, trio.current_time()
            answer = await caller.ask("hcp.decide", params)
            self.figures["answers" if "result" in answer else "answers that came too late"] += 1
            if "result" in answer and params["approve"]:
                self.yes[about["question"].partition(":")[0]] = about["session_id"], changes, at

    async def _heal(self, world):
        world.journal.heal()
        self.store_fails = range(0)
        while world.runtime.halt.flag.halted:
            await self._reset(world)
            await trio.sleep(0.1)

    async def _reset(self, world):
        """A person resets the halt; refused while the stop sequence runs."""
        halt = world.runtime.halt
        try:
            await halt.reset("a person", halt.flag.count)
        except (Halted, AuditUnavailable):
            self.figures["resets refused"] += 1

    def _plan_faults(self, world):
        """What of the surroundings fails while the next job runs."""
        rng = self.rng
        if rng.random() < 0.15 * self.hard:
            first = self.life.counts["write"] + rng.randint(1, 30)
            self.store_fails = range(first, first + rng.choice((1, 3, 1000)))
        if rng.random() < 0.06 * self.hard:
            world.journal.fail("disk full")

    def _plan_ends(self, nursery, world, session):
        """What breaks the next job off."""
        rng = self.rng

        async def later(what):
            await trio.sleep(rng.choice((0.01, 0.3, 2.0, 10.0)) * rng.random())
            await what()

        async def abort():
            self.figures["aborts"] += 1
            await self.life.caller.send(Caller.abortion(session))

        async def end_session():
            self.figures["HACP sessions ended"] += 1
            for one in list(world.runtime._sessions.values()):
                one.post(CloseSession("for the test"))

        async def fail_audit():
            self.figures["audit log failed"] += 1
            world.journal.fail("disk full")

        async def halt():
            await trio.sleep(rng.choice((0.001, 0.01, 0.1, 1.0)) * rng.random())
            self.figures["halts"] += 1
            self.changes += 1
            self.older = set(self.heard)
            world.runtime.halt.halt("for the test", "a test")
            await trio.sleep(rng.choice((0.0, 0.01, 1.0)))
            await self._reset(world)

        async def reload():
            self.figures["reloads"] += 1
            self.changes += 1
            world.runtime.replace_policy(self.policy)

        if rng.random() < 0.2:
            nursery.start_soon(halt)
        if self.attended and random.Random(f"{self.seed}/reload/{self.sessions}").random() < 0.3:
            nursery.start_soon(later, reload)
        for chance, what in ((0.2, abort), (0.1, end_session), (0.1, fail_audit)):
            if rng.random() < chance * self.hard:
                nursery.start_soon(later, what)

    # --- what is promised

    def _hear(self):
        """Hold what the caller has been told against what it was told before, and against the form of a message log."""
        messages = self.life.messages()
        for session in dict.fromkeys(one["session_id"] for one in messages if one["type"] == "task_accepted"):
            message_log = [one for one in messages if one["session_id"] == session]
            former = self.heard.get(session, [])
            # An end that could not be written is told all the same, and the next start tells another.
            if message_log[: len(former)] != former[: len(message_log)] and session not in self.touched:
                raise Broken(f"session {session} was told as {former}, and is now told as {message_log}")
            if len(message_log) > len(former) or session in self.touched:
                self.heard[session] = message_log
            numbers = [one["payload"]["sequence"] for one in message_log if one["type"] == "event"]
            if numbers != list(range(1, len(numbers) + 1)):
                raise Broken(f"session {session}: the events are numbered {numbers}")
            if any(one["payload"].get("event_type") == "session_closed" for one in message_log):
                _check_end(session, message_log)

    async def _next_document(self, world, session):
        """Hold what is on record against what was seen; what the caller hands in next, None if all is over."""
        job_store = (await world.runtime.server("hcp").real()).services.job_store
        row = await job_store.session(session)
        records = await job_store.outcomes(session, row.checkpoints)
        notes = [one["position"] for one in await job_store.begun(session)]
        self.unstored = row.ended_at is None
        self._check_records(session, records, notes)
        message_log = self.heard[session]
        state = message_log[-1]["payload"]["data"]["final_state"]
        self.figures[state] += 1
        if state == "COMPLETED" or self.sessions == SESSIONS:
            return None
        events = [one["payload"] for one in message_log if one["type"] == "event"]
        announced = [one["data"]["checkpoint_id"] for one in events if one["event_type"] == "checkpoint_created"]
        checkpoint = announced[-1] if announced else None
        if state == "FAILED":
            last = self._last_checkpoint(message_log[-2]["payload"], notes)
            checkpoint = last if checkpoint is None or self.rng.random() < 0.7 else checkpoint
        if checkpoint is None:
            return None
        self.figures["resumed"] += 1
        self.on_record = {one["position"]: _as_seen(one) for one in records} | {one: ["unknown"] for one in notes}
        self.inherited = len(records) + len(notes)
        return self._document(checkpoint)

    def _last_checkpoint(self, failed, notes):
        """What a job that failed says that one can go on from."""
        details = failed["error_details"]
        reason = details.get("reason") or failed["error_code"]
        self.figures[f"FAILED: {reason}"] += 1
        if reason == "checkpoint_does_not_fit":
            raise Broken(f"the same function is refused as one that has changed: {failed['error_message']}")
        if reason == "outcome_unknown" and "bench.act" not in failed["error_message"]:
            raise Broken(f"the step whose outcome is unknown is not named: {failed['error_message']}")
        if notes and details.get("last_checkpoint") is None:
            raise Broken(f"{notes} have begun, and there is no checkpoint to go on from: {failed}")
        return details.get("last_checkpoint")

    def _check_records(self, session, records, notes):
        recorded = {one["position"]: _as_seen(one) for one in records}
        # Of an answer that no longer held, and was asked for again, there is another record.
        twice = Counter(one["position"] for one in records if one["kind"] != "ask_person")
        if any(count > 1 for count in twice.values()):
            raise Broken(f"session {session}: a position has two records: {[one['position'] for one in records]}")
        for position, found in self.seen.get(session, {}).items():
            if position in recorded:
                held = recorded[position] == found
            elif found[0] == "unknown":
                held = position in notes
            else:
                held = found[0] == "failed" and found[-1] == "none"
            if not held:
                raise Broken(f"{position} was seen as {found}, and on record it is {recorded.get(position)}")
        if cancelled := [one["position"] for one in records if one["outcome"]["error"] == "cancelled"]:
            raise Broken(f"{cancelled} are on record as failed: the function was cancelled there, and saw no failure")
        begun = {tag.partition("#")[0] for tag, count in self.begun.items() if count and "c" not in tag}
        if missing := begun - set(recorded) - set(notes):
            raise Broken(f"session {session}: {missing} had an effect, and nothing is on record of them")
        numbered = enumerate(records, 1)
        steps = [number for number, one in numbered if one["kind"] in ANNOUNCED and number > self.inherited]
        events = [one["payload"]["data"] for one in self.heard[session] if one["type"] == "event"]
        told = [data.get("checkpoint_id", "") for data in events]
        if steps != [int(checkpoint[-6:]) for checkpoint in told if checkpoint]:
            raise Broken(f"session {session}: its steps are records {steps}, its checkpoints {told}")


def _as_seen(record):
    """What the function sees of an operation on record."""
    of = record["outcome"]
    if of["status"] == "unknown":
        return ["unknown"]
    if of["status"] == "done":
        return ["done"] if record["kind"] in ("sleep", "every") else ["done", _value(record["kind"], of["value"])]
    data = of["error_data"] or {}
    return ["failed", of["error"], of["error_code"], data.get("effect", "unknown")]


def _value(kind, value):
    if kind == "submit" and isinstance(value, dict):
        return [value]
    return [value["approved"], value["by"]] if kind == "ask_person" else value


def _check_end(session, message_log):
    """One terminal message, unless it was aborted, and one session_closed."""
    closed = [one for one in message_log if one["payload"].get("event_type") == "session_closed"]
    if closed != message_log[-1:]:
        raise Broken(f"session {session} has {len(closed)} session_closed, and ends with {message_log[-1]}")
    state = closed[0]["payload"]["data"]["final_state"]
    ends = [one["type"] for one in message_log if one["type"] in ("task_completed", "task_failed")]
    if ends != {"COMPLETED": ["task_completed"], "FAILED": ["task_failed"], "ABORTED": []}[state]:
        raise Broken(f"session {session} is {state}, and its ends are {ends}")
    if ends and message_log[-2]["type"] != ends[0]:
        raise Broken(f"session {session}: {message_log[-2]} is between its end and session_closed")


# --- a world without threads ------------------------------------------------------------------------------------------


@contextmanager
def _surroundings(world):
    """No thread, no chance but the seed's, and the world's hand on the disk."""
    ids, delays = random.Random(f"{world.seed}/ids"), random.Random(f"{world.seed}/threads")

    async def run_sync(work, *args, **_more):
        await trio.sleep(delays.choice((0.0, 0.0, 0.001)))
        return work(*args)

    with ExitStack() as stack:
        for place, name, stand_in in (
            (trio.to_thread, "run_sync", run_sync),
            (store_module, "Background", DoneAtOnce),
            (execution.LimitWatch, "looking", lambda _watch: nullcontext()),
            (execution, "LONG_S", 3600.0),
            (capability_api, "random", ids),
            (values, "uuid4", lambda: UUID(int=ids.getrandbits(128), version=4)),
            (hearth._util.ids, "os", SimpleNamespace(urandom=ids.randbytes)),
            (BenchTools, "all", lambda _tools: []),
            (JobDatabase, "write", functools.partialmethod(_write, world, JobDatabase.write)),
        ):
            stack.enter_context(patch.object(place, name, stand_in))
        yield


def _write(file, world, real, operations):
    return world.write(real, file, operations)


@contextmanager
def _quiet():
    logger = logging.getLogger("hearth")
    disabled, logger.disabled = logger.disabled, True
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        logger.disabled = disabled


def play(seed):
    """Play a world; its figures. Raises Broken, with the seed."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="hearth-durable-", dir=memory if os.access(memory, os.W_OK) else None))
    world = World(seed, place / "hcp")

    async def main():
        with trio.fail_after(LONGEST):
            await world.play()

    try:
        with _quiet(), _surroundings(world), within_real_seconds(PATIENCE_S), seeded(f"{seed}/scheduling"):
            be_patient()
            trio.run(main, clock=MockClock(autojump_threshold=0))
    except (Broken, ExceptionGroup, TimeoutError, trio.TooSlowError) as error:
        only = sole(error)
        only.add_note(f"again: seed {seed}; the function: {world.program}")
        raise only from None
    finally:
        shutil.rmtree(place)
    return world.figures
