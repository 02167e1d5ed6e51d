"""Cancelling at every step: runs a scenario once to count its task steps, then once for each step with an act there.

A step is what Trio does between two checkpoints of one task, so an act before each step of every task of a run meets
every state that the actors can be interrupted in. Scheduling is seeded: the runs differ in nothing but the act.
"""

from __future__ import annotations

import contextlib
import signal

import outcome
import trio
from trio.testing import MockClock


class _Stepper(trio.abc.Instrument):
    def __init__(self, at):
        self.at = at
        self.act = None
        self.count = 0

    def before_task_step(self, _task):
        if self.act is not None:
            self.count += 1
            if self.count == self.at:
                self.act()


@contextlib.contextmanager
def seeded(seed):
    """Trio's scheduling decisions come from `seed`."""
    before = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True
    state = trio._core._run._r.getstate()
    trio._core._run._r.seed(seed)
    try:
        yield
    finally:
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = before
        trio._core._run._r.setstate(state)


@contextlib.contextmanager
def within_real_seconds(seconds):
    """Break a run off that does not end: under a virtual clock a deadlock without a deadline spins for ever."""

    def stop(_number, _frame):
        raise TimeoutError(f"not done within {seconds} s of real time: a deadlock, or an endless loop")

    former = signal.signal(signal.SIGALRM, stop)
    left = signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, former)


def run_with_act(scenario, at, *, seed=0):
    """Run `scenario(arm)` under a virtual clock; after `arm(act)`, act() is called before task step number `at`.

    Returns how many steps there were after arming, and what the scenario returned.
    """
    stepper = _Stepper(at)

    def arm(act):
        stepper.act = act

    async def main():
        with trio.fail_after(1000):
            return await scenario(arm)

    with within_real_seconds(60), seeded(seed):
        result = trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[stepper])
    return stepper.count, result


def at_every_step(scenario, check, *, seed=0, stride=1):
    """Run the scenario with its act at no step, then at each (or each `stride`th); `check(result)` after every run.

    Returns how many steps there were.
    """
    steps, result = run_with_act(scenario, 0, seed=seed)
    check(result)
    assert steps > 3, "the scenario is too short to be interrupted"
    for at in range(1, steps + 1, stride):
        try:
            check(run_with_act(scenario, at, seed=seed)[1])
        except BaseException as error:
            error.add_note(f"the act came before task step {at} of {steps}, seed {seed}")
            raise
    return steps


class DoneAtOnce:
    """Stands for `hearth._util.threads.Background`: the work is done at once."""

    def __init__(self, work, _name):
        self._result = outcome.capture(work)

    async def wait(self):
        await trio.lowlevel.checkpoint()
        return self._result.unwrap()
