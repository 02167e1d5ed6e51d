"""Random capability functions: a program is a tree of plain values that a seed decides, and an interpreter runs it.

`program(rng)` makes one: a list of nodes, each a tuple of a kind and what it needs. `Course` runs it over a `Job`, and
tells what the function saw at which position: it counts positions itself, so that what it says does not come
from the code under test. Every step has a tag that its position decides: a tag that begins twice is a step done twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial

import trio

from hearth.api import Step
from hearth.hcp.durable import CapabilityFailed, OutcomeUnknown, StepFailed

LEAVES = {
    "act": 7, "look": 4, "submit": 2, "sleep": 2, "now": 1, "random": 2, "report": 1, "warn": 1, "partial": 1,
    "artifact": 1, "ask": 0.3, "give_up": 0.2, "bug": 0.1,
}  # fmt: skip
ATTENDED = LEAVES | {"ask": 5}
"""Where a person answers."""
TREES = {"every": 2, "gather": 3, "retry": 2, "handle": 3, "tidy": 2, "either": 2}
DEEPEST = 3
BUSES = ("a", "b")


def program(rng, depth=0, leaves=LEAVES):
    """A part of a function, or at depth 0 the whole of it."""
    return [_node(rng, depth, leaves) for _ in range(rng.randint(3, 7) if depth == 0 else rng.randint(1, 3))]


def _node(rng, depth, leaves):
    kinds = leaves if depth == DEEPEST else leaves | TREES
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    if kind in ("act", "look"):
        return kind, rng.choice(BUSES)
    if kind == "submit":
        tools = [(rng.choice(("act", "look")), rng.choice(BUSES)) for _ in range(rng.randint(1, 3))]
        return kind, tools, rng.random() < 0.3, rng.random() < 0.3
    if kind == "sleep":
        return kind, rng.choice((0, 0.01, 0.5, 3.0))
    if kind == "every":
        return kind, rng.choice((0, 0.2, 1.0)), rng.randint(1, 4), program(rng, depth + 1, leaves)
    if kind == "gather":
        return kind, [program(rng, depth + 1, leaves) for _ in range(rng.randint(1, 3))]
    if kind == "retry":
        return kind, rng.randint(1, 3), rng.choice((0, 0.1)), program(rng, depth + 1, leaves)
    if kind == "handle":
        return kind, program(rng, depth + 1, leaves), program(rng, DEEPEST, leaves), rng.random() < 0.7
    if kind == "tidy":
        return kind, program(rng, depth + 1, leaves), [("act", rng.choice(BUSES)) for _ in range(rng.randint(1, 2))]
    if kind == "either":
        return kind, program(rng, depth + 1, leaves), program(rng, depth + 1, leaves)
    return (kind,)


class Course:
    """One branch of a run of a program.

    `saw(position, outcome)` is told of each operation that came back, with `asks` of a question.
    """

    def __init__(self, job, saw, prefix=""):
        self.job = job
        self.values = []
        self._saw = saw
        self._prefix = prefix
        self._count = 0
        self._tidied = 0

    def _next(self):
        self._count += 1
        return f"{self._prefix}{self._count}"

    async def run(self, nodes):
        """Run a part."""
        for kind, *more in nodes:
            await getattr(self, f"_{kind}")(*more)

    @contextmanager
    def _seeing(self, position):
        """Tell the witness how an operation ended."""
        seen = []
        try:
            yield seen.append
        except StepFailed as failed:
            self._saw(position, ("failed", failed.reason, failed.code, failed.effect))
            raise
        except OutcomeUnknown:
            self._saw(position, ("unknown",))
            raise
        self._saw(position, ("done", *seen))
        self.values += seen

    def _step(self, position, index, tool, bus):
        return Step(f"bench.{tool}", {"tag": f"{position}#{index}", "bus": bus})

    # --- operations

    async def _act(self, bus, tool="act"):
        position = self._next()
        with self._seeing(position) as see:
            step = self._step(position, 0, tool, bus)
            see(await self.job.run(step.tool, replay=True, **step.args))

    async def _look(self, bus):
        await self._act(bus, "look")

    async def _submit(self, tools, exclusive, rollback):
        position = self._next()
        steps = [self._step(position, index, *tool) for index, tool in enumerate(tools)]
        with self._seeing(position) as see:
            see(await self.job.submit(steps, exclusive=exclusive, rollback_on_failure=rollback, replay=True))

    async def _sleep(self, seconds):
        with self._seeing(self._next()):
            await self.job.sleep(seconds)

    async def _now(self):
        with self._seeing(self._next()) as see:
            see((await self.job.now()).isoformat(timespec="milliseconds").replace("+00:00", "Z"))

    async def _random(self):
        with self._seeing(self._next()) as see:
            see(await self.job.random())

    async def _ask(self):
        # The course does not depend on the answer, which may be another one when it is asked for again.
        position = self._next()
        answer = await self.job.ask_person(f"{position}: may it?")
        self._saw(position, ("done", [answer.approved, answer.by]), asks=True)

    async def _every(self, interval, count, body):
        rounds = self.job.every(interval, count)
        for number in range(1, count + 1):
            if number > 1 and interval:
                with self._seeing(self._next()):
                    await anext(rounds)
            else:
                await anext(rounds)
            await self.run(body)

    async def _gather(self, parts):
        position = self._next()
        branches = [Course(self.job, self._saw, f"{position}.{index}.") for index in range(len(parts))]

        async def part(index):
            await branches[index].run(parts[index])
            return branches[index].values

        self.values += await self.job.gather(*(partial(part, index) for index in range(len(parts))))

    async def _retry(self, times, after_s, body):
        tries = 0

        async def part():
            nonlocal tries
            if tries and after_s:
                # What `retry` itself has slept.
                self._next()
            tries += 1
            await self.run(body)

        await self.job.retry(part, times=times, after_s=after_s)

    # --- courses that depend on what came

    async def _handle(self, body, otherwise, unknown_too):
        try:
            await self.run(body)
        except StepFailed:
            await self.run(otherwise)
        except OutcomeUnknown:
            if not unknown_too:
                raise
            await self.run(otherwise)

    async def _either(self, one, other):
        await self.run(one if hash_of(self.values) % 2 else other)

    async def _tidy(self, body, acts):
        self._tidied += 1
        place = self._tidied
        try:
            await self.run(body)
        finally:
            # Of a function that is cancelled, these have positions of their own, which nothing here reckons with; and
            # where the whole job is stopped, they are no part of its course.
            cancelled = trio.current_effective_deadline() <= trio.current_time()
            async with self.job.clean_up():
                if not cancelled:
                    await self.run(acts)
                else:
                    course = f"~{self.job.session_id}" if self.job._execution.stopping() else ""
                    for index, (_, bus) in enumerate(acts):
                        tag = f"{self._prefix}c{place}.{index}{course}#"
                        await self.job.run("bench.act", tag=tag, bus=bus)

    async def _give_up(self):
        raise CapabilityFailed("it gives up", recoverable=True)

    async def _bug(self):
        raise LookupError("a bug")

    # --- what is said

    async def _report(self):
        await self.job.report(0.5, values=len(self.values))

    async def _warn(self):
        await self.job.warn(f"{len(self.values)} values")

    async def _partial(self):
        self.job.partial(values=len(self.values))

    async def _artifact(self):
        self.job.artifact("values.txt", str(len(self.values)), media_type="text/plain")


def hash_of(values):
    """A number that these values decide, the same in every process."""
    return sum(repr(values).encode())
