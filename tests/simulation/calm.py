"""The calm after the faults: devices answer, the disk writes, and whoever wants something done gets it done.

In a calm, what waits can be told from what waits for ever. Owns what a healed daemon is asked then: a task waits for
the lease of another; a keeper with every right ends the halt and asks each bus for something; and the principals of the
sessions that are left close them, some at once and the others when their tasks have had their time. It judges nothing:
the bound is on the tape, and the promises are `invariants.calm`'s.
"""

from __future__ import annotations

import random

import trio

from hearth.policy.principal import Principal

from .clients import Client
from .orders import FILES, encoded
from .terms import KEEPER
from .wide import CAN, MODBUS, SPI

QUIET = 30.0
"""Virtual seconds from the last fault until every task has ended. Until then no bus is asked for anything: a request of
another would wake up a bus that has forgotten one."""
BOUND = QUIET + 30.0
"""The same until every halt and session has ended, and every bus has answered."""
PAUSE = 1.0
"""Seconds from one try to the next."""
ANSWER_S = 5.0
"""Seconds that a bus has for one step."""
PROBES = {
    "gpio:sim": ("gpio.get", {"line": 0}),
    "i2c:1": ("i2c.read", {"bus": 1, "addr": 0x50, "len": 1}),
    "i2c:2": ("i2c.read", {"bus": 2, "addr": 0x50, "len": 1}),
    "uart:uart0": ("uart.read", {"port": "uart0", "timeout_ms": 0}),
    "files": ("file.write", {"path": f"{FILES}/calm", "data": encoded("calm"), "mode": "replace"}),
    "system": ("sys.memory", {}),
    "board": ("hw.board", {}),
    CAN: ("can.read", {"bus": "can0", "count": 1, "timeout_ms": 0}),
    SPI: ("spi.read", {"device": "MOTOR", "register": "SPEED"}),
    MODBUS: ("modbus.read", {"device": "FAN", "name": "run"}),
}
"""By bus: something that it can always answer."""


def is_calm(seed) -> bool:
    """Whether the daemon of this world is left in peace before it ends; others end in the middle of everything."""
    return random.Random(f"{seed}/calm").random() < 0.4


class Person(Client):
    """One that waits for its answers."""

    def __init__(self, scenario, nursery, key, name) -> None:
        super().__init__(scenario, 0)
        uid = int(key.partition(":")[2])
        self.principal = Principal(kind="unix", uid=uid, gid=uid)
        self.name, self.nursery, self.ears = name, nursery, "good"
        self.answers: dict = {}
        self.refused = False
        """It was answered that its session is no more."""
        self.probes = 0
        self.ended: dict = {}
        """The results of steps that it follows, by task; and whether the task has ended."""

    def learned(self, learn, result) -> None:
        super().learned(learn, result)
        if learn[0] == "asked":
            self.answers[learn[1]] = result

    def told(self, event) -> None:
        result, _ = self.ended.get(event["task_id"], (None, False))
        self.ended[event["task_id"]] = event.get("result", result), event["phase"] == "task_finish"

    async def ask(self, method, **params):  # type: ignore[override]
        """The result of a call; None if there is none within a bound, or it was refused."""
        if self.connection is None or self.connection.over:
            self.sessions.clear()
            if not await self.connect():
                return None
        request = self.request(method, params, ("asked", self._ids + 1))
        self.send(request)
        await self.hear(10)
        return self.answers.pop(request["id"], None)

    async def session_id(self) -> str:
        """A session, opened anew where the last one is gone."""
        while not self.sessions:
            opened = await self.ask("session.open", client_name=self.name, on_disconnect="keep")
            if opened is None:
                await trio.sleep(PAUSE)
            else:
                self.sessions.append(opened["session_id"])
        return self.sessions[-1]

    def lost(self, learn) -> None:
        """Its session is no more, whatever was asked."""
        self.sessions.clear()
        self.refused = True


async def keep(scenario, nursery) -> None:
    """Let everything come to its end, until the bound."""
    tell = scenario.world.tape.tell
    tell("calm", what="begins", quiet=QUIET, bound=BOUND)
    until = trio.current_time() + BOUND
    rng = random.Random(f"{scenario.seed}/closing")
    at_once, later = [], []
    for session_id, key in sorted(scenario.opened.items()):
        (at_once if rng.random() < 0.5 else later).append((session_id, key))
    async with trio.open_nursery() as people:
        people.cancel_scope.deadline = until
        people.start_soon(_close, scenario, nursery, at_once)
        people.start_soon(_lease, Person(scenario, nursery, KEEPER, "the leaseholder"), rng.random() < 0.5)
        await trio.sleep(QUIET)
        tell("calm", what="asked")
        people.start_soon(_close, scenario, nursery, later)
        people.start_soon(_keep, Person(scenario, nursery, KEEPER, "the keeper"), until)
    await trio.sleep_until(until)
    tell("calm", what="ends")


async def _close(scenario, nursery, sessions) -> None:
    """Close sessions, one after the other: there may be room for few connections."""
    for session_id, key in sessions:
        person = Person(scenario, nursery, key, f"{key} closes")
        for _ in range(3):
            if await person.ask("session.close", session_id=session_id) is not None or person.refused:
                break
            await trio.sleep(PAUSE)
        person.go("close")


async def _lease(person, gives_up) -> None:
    """Hold a bus for a while, and have another task wait for it, until its turn or its own time is over."""
    session_id = await person.session_id()
    for at, (tool, constraints) in enumerate(
        [
            ("world.nap", {"exclusive": True}),
            ("world.many", {"exclusive": True, "max_duration_ms": 40} if gives_up else {}),
        ]
    ):
        steps = [{"tool": tool, "args": {"mark": f"lease.{at}", "ms": 200, "n": 1}}]
        task = {"intent": "lease", "steps": steps, "constraints": constraints}
        # Followed: a session that is silent is closed, and its tasks are cancelled, which wakes up the bus.
        await person.ask("task.submit", session_id=session_id, task=task, subscribe=True)
    await trio.sleep(QUIET)
    person.go("close")


async def _keep(keeper, until) -> None:
    """End the halt, and ask every bus for something, again and again until it answers or there is no time left."""
    terms, tell = keeper.world.terms, keeper.world.tape.tell
    while trio.current_time() < until - 2 * ANSWER_S:
        status = await keeper.ask("halt.status", session_id=await keeper.session_id())
        if status is not None and not status["halted"]:
            break
        status = await keeper.ask("halt.reset", session_id=await keeper.session_id())
        if status is not None and not status["halted"]:
            tell("fault", what="reset")
            break
        await trio.sleep(PAUSE)
    silent = list(terms["buses"])
    while silent and trio.current_time() < until - 2 * ANSWER_S:
        silent = [bus for bus in silent if await _probe(keeper, bus) is None]
        await trio.sleep(PAUSE if silent else 0)
    board = await _probe(keeper, "board") or {"health": {"buses": {}}}
    states = {bus: one["state"] for bus, one in board["health"]["buses"].items()}
    tell("calm", what="health", silent=silent, buses=states)
    await keeper.ask("session.close", session_id=await keeper.session_id())
    keeper.go("close")


async def _probe(keeper, bus):
    """The result of a step on a bus; None if it does not succeed in its time."""
    session_id, (tool, args) = await keeper.session_id(), PROBES[bus]
    keeper.probes += 1
    step = {"tool": tool, "args": {"mark": f"calm.{keeper.probes}", **args}}
    task = {"intent": "calm", "steps": [step]}
    made = await keeper.ask("task.submit", session_id=session_id, task=task, subscribe=True)
    if made is None:
        return None
    result, ended, connection = None, False, keeper.connection
    with trio.move_on_after(ANSWER_S):
        while not ended and connection is not None and not connection.over:
            result, ended = keeper.ended.get(made["task_id"], (None, False))
            if not ended:
                await connection.arrived.wait()
    if not ended:
        await keeper.ask("task.cancel", session_id=session_id, task_id=made["task_id"])
    return result
