"""Reloads of the policy: they take rights away between an approval and its use, and widen without a word.

In some worlds, and not one of the faults that are counted. An administrator lets the daemon read another policy, over
the wire or by a signal. An author then uses an approval that was given before, or tries what only some of the policies
permit. The policies differ in the entries of AUTHOR and APPROVER alone, who are not clients. What must hold is
`invariants.policy`'s: it knows from the tape which policy was asked for, and when.
"""

from __future__ import annotations

import random

import trio
from attrs import evolve

from hearth.actors.daemon.process import RELOAD

from .calm import Person
from .orders import FILES, encoded
from .terms import policy_of

AUTHOR, APPROVER, ADMIN = "uid:1901", "uid:1902", "uid:1903"
PATIENCE = 60.0
"""Seconds that one story may take: who has no entry waits for a session in vain."""


def _changed(policy, key, **members):
    return {**policy, key: {**policy[key], **members}}


def _without(policy, key):
    return {name: entry for name, entry in policy.items() if name != key}


TAKE = (
    lambda policy: _changed(policy, APPROVER, rights=()),
    lambda policy: _changed(policy, APPROVER, rights=("observe",)),
    lambda policy: _without(policy, APPROVER),
)
"""Policies in which APPROVER may no longer approve."""
OTHERS = (
    *TAKE,
    lambda policy: _changed(policy, AUTHOR, patterns=("file.read",), tools=("file.read",)),
    lambda policy: _changed(policy, AUTHOR, approval=None),
    lambda policy: _changed(policy, AUTHOR, approval={**policy[AUTHOR]["approval"], "other": False}),
    lambda policy: _changed(policy, AUTHOR, patterns_rates={}),
    lambda policy: _changed(_without(policy, APPROVER), AUTHOR, approval=None),
    lambda policy: _changed(_without(policy, APPROVER), AUTHOR, rights=("approve",)),
)
"""Policies that take something away, allow something, or both."""


async def run(scenario, nursery) -> None:
    """Read other policies, in some worlds."""
    rng = random.Random(f"{scenario.seed}/reloads")
    if rng.random() > 0.15:
        return
    world, keys = scenario.world, (AUTHOR, APPROVER, ADMIN)
    people = [Person(scenario, nursery, key, f"{key} of reloads") for key in keys]
    for number in range(rng.choice([1, 2, 3])):
        await trio.sleep(rng.random() * rng.choice([0.05, 0.5, 3]))
        with trio.move_on_after(PATIENCE):
            await rng.choice([_planned, _in_advance, _tried])(world, *people, rng, f"reloads.{number}")
        # As it was, for the next story, and for those who close the sessions that are left.
        await _reload(world, people[2], world.terms["policy"], yes=True)
    for one in people:
        one.go("close")


def _task(mark):
    args = {"mark": mark, "path": f"{FILES}/reloads", "data": encoded(mark), "mode": "append"}
    return {"intent": mark, "steps": [{"tool": "file.write", "args": args}]}


async def _planned(world, author, approver, admin, rng, mark) -> None:
    """Have a plan approved, take the right away, perhaps give it back, and execute the plan."""
    plan = await author.ask("plan.prepare", session_id=await author.session_id(), task=_task(mark))
    if plan is not None:
        about = {"plan_id": plan["plan_id"], "hash": plan["hash"]}
        await approver.ask("plan.approve", session_id=await approver.session_id(), **about)
        await _take(world, admin, rng)
        await author.ask("plan.execute", session_id=await author.session_id(), plan_id=plan["plan_id"])


async def _in_advance(world, author, approver, admin, rng, mark) -> None:
    """The same with an approval that was given in advance."""
    bounds = {name: {"any": True} for name in _task(mark)["steps"][0]["args"]}
    about = {"tool": "file.write", "args": bounds, "principal": author.principal.key, "times": 2, "within_s": 600}
    # Only for who has a session the rule is known.
    await author.session_id()
    await approver.ask("approval.grant", session_id=await approver.session_id(), **about)
    await _take(world, admin, rng)
    await author.ask("task.submit", session_id=await author.session_id(), task=_task(mark))


async def _take(world, admin, rng) -> None:
    if rng.random() < 0.85:
        await _reload(world, admin, rng.choice(TAKE)(world.terms["policy"]), by_signal=rng.random() < 0.3)
        if rng.random() < 0.4:
            await _reload(world, admin, world.terms["policy"], yes=True)


async def _tried(world, author, _approver, admin, rng, mark) -> None:
    """Read another policy, and try what it may permit."""
    how = {"yes": True} if rng.random() < 0.2 else {"by_signal": rng.random() < 0.3}
    await _reload(world, admin, rng.choice(OTHERS)(world.terms["policy"]), **how)
    await author.ask("task.submit", session_id=await author.session_id(), task=_task(mark))


async def _reload(world, admin, policy, *, yes=False, by_signal=False) -> None:
    """Let the daemon read this policy; the tape has its beginning and its end."""
    with trio.move_on_after(PATIENCE):
        session_id = await admin.session_id()
        daemon = world.daemon
        if daemon is None or world.mute or not world.up.is_set():
            return
        await trio.sleep(0.01)
        world.file.config = evolve(world.file.config, policy=policy_of({"policy": policy}))
        world.tell("policy", what="begins", policy=policy, yes=yes)
        if by_signal:
            world.signals.send(RELOAD)
            await trio.sleep(0.001)
            async with daemon.runtime().reload.__self__._reloading:
                pass
        else:
            await admin.ask("policy.reload", session_id=session_id, yes=yes)
        world.tell("policy", what="ends")
        # So that a record tells by its time which reload it is of.
        await trio.sleep(0.01)
