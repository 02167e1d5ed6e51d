"""The machine under a world: no thread, no wall clock, and chance from one seed alone.

Owns what the runtime otherwise asks the system for: identifiers, Trio's scheduling, threads for blocking work, and
where its files are. Work for a thread waits a seeded time and then runs in place, in a task that outlives the actors,
as a thread would. It refuses to start anything of the world itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import outcome
import trio

import hearth._util.ids
import hearth.actors.bus.threads
import hearth.actors.bus.workers
import hearth.actors.daemon
import hearth.actors.journal
import hearth.actors.observe
import hearth.audit.log
from hearth._util import threads
from hearth.actors.bus.face import Face

NOON = 1_776_638_881.0
"""Epoch seconds at which every world begins."""
PLACE = Path("/proc/self/cwd")
"""The directory of a world, by a name that is the same in every process: errors and records may name it."""

_now: list[Machine] = []
"""The machine of the world that is played in this process; none between two."""


class NotYet(Exception):
    """A join that a thread would wait in; it is tried again when what it joins has ended."""

    def __init__(self, event: trio.Event) -> None:
        super().__init__()
        self.event = event


class Machine:
    """Chance and threads of one world."""

    def __init__(self, seed: Any) -> None:
        self.ids = random.Random(f"{seed}/ids")
        self._delays = random.Random(f"{seed}/threads")
        self.nursery: trio.Nursery | None = None
        self.slow = 0.0
        """Seconds that a disk which is slow adds to everything that blocks."""
        self.underway = 0

    def clock(self) -> float:
        """Epoch seconds."""
        return NOON + trio.current_time()

    def delay(self) -> float:
        """How long a thread takes before it gets to its work."""
        draw = self._delays.random()
        return 0.0 if draw < 0.3 else draw * 0.002 + self.slow

    def start(self, work) -> Work:
        """Begin something that blocks."""
        begun = Work(work)
        self.underway += 1
        assert self.nursery is not None
        self.nursery.start_soon(self._run, begun)
        return begun

    async def _run(self, begun) -> None:
        try:
            await trio.sleep(self.delay())
            while True:
                result = outcome.capture(begun.work)
                if isinstance(result, outcome.Error) and isinstance(result.error, NotYet):
                    await result.error.event.wait()
                    continue
                break
            begun.result = result
        finally:
            self.underway -= 1
            begun.done.set()


class Work:
    """Something that blocks, as whoever waits for it sees it."""

    def __init__(self, work) -> None:
        self.work = work
        self.done = trio.Event()
        self.result: outcome.Outcome[Any] = outcome.Error(RuntimeError("the machine was switched off"))


class Background:
    """Stands for `hearth._util.threads.Background`."""

    def __init__(self, work, _name) -> None:
        self._work = _now[-1].start(work)

    async def wait(self):
        """See there."""
        await self._work.done.wait()
        return self._work.result.unwrap()

    async def wait_at_most(self, seconds):
        """See there; its bound is real time there, and virtual here."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
            await self._work.done.wait()
        if not self._work.done.is_set():
            raise TimeoutError
        return self._work.result.unwrap()

    def join(self):
        """See there."""
        if not self._work.done.is_set():
            raise NotYet(self._work.done)
        return isinstance(self._work.result, outcome.Value)


async def run_sync(work, *args, thread_name=None, abandon_on_cancel=False, limiter=None):
    """Stands for `trio.to_thread.run_sync`."""
    del thread_name
    await trio.lowlevel.checkpoint_if_cancelled()
    holder = object()
    if limiter is not None:
        await limiter.acquire_on_behalf_of(holder)

    def whole():
        try:
            return work(*args)
        finally:
            if limiter is not None:
                limiter.release_on_behalf_of(holder)

    begun = _now[-1].start(whole)
    with trio.CancelScope(shield=not abandon_on_cancel):
        await begun.done.wait()
    return begun.result.unwrap()


def call(_helper, work, patience=None):
    """Stands for `threads.Helper.call`: done at once, or, without patience, after as long as a sync takes."""
    made = threads.HelperCall(work)
    if patience == 0:
        _now[-1].start(made.run)
    else:
        made.run()
    return made


def _no_threads(*_args, **_more):
    raise RuntimeError("a simulated world starts no thread")


_to_safe = Face._to_safe


def to_safe(face, outputs, *, kept):
    """Stands for the guard's safe states: one exchange on the tape, whatever it takes on the wire."""
    lines, wire = list(outputs), getattr(face._driver, "wire", None)
    if wire is None:
        return _to_safe(face, lines, kept=kept)
    asked = wire.run if face._guard.waits else wire.call
    return asked("safe", {"lines": list(lines)}, lambda: _to_safe(face, lines, kept=kept))


@contextlib.contextmanager
def running(seed, more=()):
    """A machine for one world, and the stand-ins in their places for as long: these, and (module, name, stand-in)."""
    machine = Machine(seed)
    run = trio._core._run
    changed = [
        (hearth._util.ids, "time", SimpleNamespace(time_ns=lambda: int(machine.clock() * 1e9))),
        (hearth._util.ids, "os", SimpleNamespace(urandom=machine.ids.randbytes)),
        (hearth.actors.daemon, "gc", SimpleNamespace(collect=int, freeze=int, set_threshold=lambda *_: None)),
        (hearth.actors.journal, "Background", Background),
        (hearth.actors.bus.workers, "Background", Background),
        (hearth.actors.bus.threads, "BusThreads", _no_threads),
        # What a sample costs decides when the next one is taken, and is real time there.
        (hearth.actors.observe, "time", SimpleNamespace(perf_counter=trio.current_time)),
        (hearth.audit.log, "real", lambda path: path),
        (trio.to_thread, "run_sync", run_sync),
        (threads.Helper, "call", call),
        (run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        (Face, "_to_safe", to_safe),
        *more,
    ]
    former = [(place, name, getattr(place, name)) for place, name, _ in changed]
    state = run._r.getstate()
    for place, name, stand_in in changed:
        setattr(place, name, stand_in)
    run._r.seed(f"{seed}/scheduling")
    _now.append(machine)
    try:
        yield machine
    finally:
        _now.pop()
        run._r.setstate(state)
        for place, name, original in former:
            setattr(place, name, original)


@contextlib.contextmanager
def own_directory():
    """An empty directory in memory, if there is one, as the process's own; gone afterwards."""
    memory = Path("/dev/shm")
    before = os.open(".", os.O_PATH | os.O_DIRECTORY)
    place = tempfile.mkdtemp(prefix="hearth-simulation-", dir=memory if os.access(memory, os.W_OK) else None)
    try:
        os.chdir(place)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
        shutil.rmtree(place)
