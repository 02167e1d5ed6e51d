"""The clients of a world: raw bytes over memory pipes, within the rules and not. No line of hearth's client is in it.

Owns what a client does and in which mood: each action has a number and a chance of its own, so that leaving one out
changes no other. It refuses to judge what it is answered; it only learns from it the ids that its next actions need.
"""

from __future__ import annotations

import json
import random

import trio

from hearth.policy.principal import Principal

from . import faults, orders, wide
from .carriers import Pipe, line_of
from .terms import APPROVER, AUTHOR, PRINCIPALS, UNLISTED

ACTIONS = {
    "submit": 30,
    "repeat": 8,
    "batch": 4,
    "malformed": 3,
    "twice": 2,
    "cancel": 8,
    "get": 4,
    "subscribe": 6,
    "follow_all": 2,
    "unsubscribe": 2,
    "open": 2,
    "close": 1,
    "leave": 4,
    "elsewhere": 4,
    "foreign": 3,
    "ask": 0.7,
    "rush": 3,
    "wait": 3,
    "break_session": 0.3,
}
"""What clients do, and how often."""
LEAVING = ("close", "close", "torn", "half")


def plan(seed, number):
    """The actions of one client: how long it waits before each, what, and a seed for the rest."""
    rng = random.Random(f"{seed}/plan/c{number}")
    count = rng.choice([4, 6, 9, 14])
    pace = rng.choice([0.0, 0.004, 0.02, 0.2])
    kinds = rng.choices([*ACTIONS], [*ACTIONS.values()], k=count)
    actions = [(rng.random() * pace, kind) for kind in kinds]
    # By a chance of its own, so that the rest of the plan is the same with it and without.
    last = random.Random(f"{seed}/last/c{number}")
    if last.random() < 0.2:
        actions.append((last.random() * pace, "share"))
    actions += wide.plan(seed, number, pace)
    asks = random.Random(f"{seed}/plans/c{number}")
    if asks.random() < 0.15:
        actions.append((asks.random() * pace, "planned"))
    again = random.Random(f"{seed}/again/c{number}")
    if again.random() < 0.1:
        actions.append((again.random() * pace, "adopt"))
    pulled = random.Random(f"{seed}/pulled/c{number}")
    return [*actions, (pulled.random() * pace, "unplug")] if pulled.random() < 0.03 else actions


class Connection:
    """One connection, as the client sees it."""

    def __init__(self, client, number, principal, room) -> None:
        self.client = client
        self.number = number
        self.to_daemon, self.to_client = Pipe(), Pipe(room)
        self.principal = principal
        self.room = room
        self.over = False
        self.observed: dict = {}
        """The params of the last observe.event."""
        self.waiting: dict[int, tuple] = {}
        """Requests without an answer: what is learned from it."""
        self.arrived = trio.Event()

    def send(self, data, *, torn=False) -> None:
        """Send bytes, lines each of which is told."""
        tell = self.client.world.tape.tell
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                tell("client.sends", client=self.number, line=line)
            else:
                tell("client.sends", client=self.number, line=line, torn=torn)
        if not self.to_daemon.ended:
            self.to_daemon.data += data
            self.to_daemon.wake()

    async def read(self) -> None:
        """Read for as long as anything comes."""
        tell = self.client.world.tape.tell
        rest = b""
        slow = random.Random(f"{self.client.scenario.seed}/ears/{self.number}") if self.client.ears == "slow" else None
        while data := await self.to_client.read():
            if slow is not None:
                await trio.sleep(slow.choice([0.001, 0.01, 0.3, 2]))
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                tell("client.receives", client=self.number, line=line + b"\n")
                self.learn(line)
            if self.client.ears == "deaf" and self.room is not None and self.client.sessions:
                return
        if not self.over:
            self.over = True
            tell("client.ends", client=self.number)
        self._wake()

    def _wake(self) -> None:
        self.arrived.set()
        self.arrived = trio.Event()

    def learn(self, line) -> None:
        """Take from answers what later actions need."""
        document = json.loads(line)
        for answer in document if isinstance(document, list) else [document]:
            if answer.get("method") == "observe.event":
                self.observed = answer["params"]
            elif answer.get("method") == "task.event":
                self.client.told(answer["params"])
            learn = self.waiting.pop(answer.get("id"), None) if "method" not in answer else None
            if learn is not None and "result" in answer:
                self.client.learned(learn, answer["result"])
            elif learn is not None and answer["error"]["code"] == -32000:
                self.client.lost(learn)
        self._wake()

    def leave(self, how) -> None:
        """End it."""
        self.over = True
        self.client.world.tape.tell("client.leaves", client=self.number, how=how)
        self.to_daemon.end()
        if how != "half":
            self.to_client.end()


class Client:
    """One party, with several connections and sessions in the course of a scenario."""

    def __init__(self, scenario, number) -> None:
        self.scenario = scenario
        self.world = scenario.world
        self.number = number
        rng = random.Random(f"{scenario.seed}/client/c{number}")
        uid = int(rng.choice([*PRINCIPALS] * 5 + [UNLISTED]).partition(":")[2])
        self.principal = Principal(kind="unix", uid=uid, gid=uid)
        self.ears = rng.choices(["good", "slow", "deaf"], [8, 1.2, 1.2])[0]
        """How it reads: at once, now and then, or on some of its connections not at all."""
        self.connection: Connection | None = None
        self.sessions: list[str] = []
        self.tasks: list[tuple[str, str]] = []
        self.keys: list[dict] = []
        self.plans: list[dict] = []
        self._ids = 0
        self.rng = rng

    # --- what it knows

    def learned(self, learn, result) -> None:
        """An answer came that was waited for."""
        what = learn[0]
        if what == "open":
            self.sessions.append(result["session_id"])
            self.scenario.known.append(result["session_id"])
            self.scenario.opened[result["session_id"]] = self.principal.key
        elif what == "task":
            self.tasks.append((learn[1], result["task_id"]))
        elif what == "plan":
            self.plans.append(result)
        elif what == "closed" and learn[1] in self.sessions:
            self.sessions.remove(learn[1])

    def told(self, event) -> None:
        """An event of a task came."""

    def lost(self, learn) -> None:
        """A session is no more."""
        if len(learn) > 1 and learn[1] in self.sessions:
            self.sessions.remove(learn[1])

    # --- its life

    async def run(self, nursery, trims) -> None:
        """Do what the plan says, but for what is trimmed."""
        self.nursery = nursery
        beside = random.Random(f"{self.scenario.seed}/observe/c{self.number}")
        if beside.random() < 0.2:
            nursery.start_soon(self.observe_beside, beside)
        for at, (pause, kind) in enumerate(plan(self.scenario.seed, self.number)):
            name = f"c{self.number}.{at}"
            await trio.sleep(pause)
            if name in trims:
                continue
            self.name, self.rng = name, random.Random(f"{self.scenario.seed}/{name}")
            if await self.ready():
                await getattr(self, kind)()
                if self.rng.random() < 0.4:
                    await self.hear(0.5)
        if self.rng.random() < 0.7:
            await self.hear(self.rng.choice([0.1, 2]))
        self.go(self.rng.choice(LEAVING))

    async def ready(self) -> bool:
        """Have a connection, and mostly a session; False while the daemon is down."""
        if self.connection is None or self.connection.over:
            self.connection = None
            if not await self.connect():
                return False
        if not self.sessions:
            self.open_session()
            await self.hear(2)
        return True

    async def connect(self) -> bool:
        """Connect anew."""
        world = self.world
        deaf = self.ears == "deaf" and self.rng.random() < 0.5
        room = self.rng.choice([600, 4096]) if deaf or self.ears == "slow" else None
        connection = Connection(self, self.scenario.next_connection(), self.principal, room)
        if world.listener is None or world.mute:
            return False
        world.tape.tell("client.opens", client=connection.number, principal=self.principal.key, actor=f"c{self.number}")
        if not world.listener.connect(self.principal, connection.to_daemon, connection.to_client):
            connection.over = True
            world.tape.tell("client.ends", client=connection.number)
            return False
        world.pipes.append((connection.to_daemon, connection.to_client))
        self.connection = connection
        self.nursery.start_soon(connection.read)
        return True

    def go(self, how) -> None:
        """Leave the connection, perhaps in the middle of a line."""
        connection, self.connection = self.connection, None
        if connection is None or connection.over:
            return
        if how == "torn":
            line = line_of({"jsonrpc": "2.0", "id": 0, "method": "task.submit", "params": {"session_id": "x" * 26}})
            connection.send(line[: self.rng.randint(1, len(line) - 1)], torn=True)
        connection.leave(how)

    def request(self, method, params, learn=None):
        """A request document."""
        self._ids += 1
        assert self.connection is not None
        if learn is not None:
            self.connection.waiting[self._ids] = learn
        return {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}

    def send(self, *documents) -> None:
        """Send documents."""
        assert self.connection is not None
        self.connection.send(b"".join(map(line_of, documents)))

    async def hear(self, seconds) -> None:
        """Wait until everything that is waited for has been answered, but not for ever."""
        connection = self.connection
        with trio.move_on_after(seconds):
            while connection is not None and connection.waiting and not connection.over:
                await connection.arrived.wait()

    def session(self) -> str:
        """One of its sessions."""
        return self.rng.choice(self.sessions) if self.sessions else "01HZZZZZZZZZZZZZZZZZZZZZZZ"

    # --- what it does

    def open_session(self) -> None:
        rng = self.rng
        params = {"client_name": self.name, "on_disconnect": rng.choice(["keep", "keep", "close"])}
        if rng.random() < 0.15:
            params["heartbeat_ms"] = rng.choice([50, 400, 2000])
        if rng.random() < 0.01:
            params["protocol_version"] = "9.0.0"
        self.send(self.request("session.open", params, ("open",)))

    async def open(self) -> None:
        self.open_session()

    async def close(self) -> None:
        session = self.session()
        self.send(self.request("session.close", {"session_id": session}, ("closed", session)))

    def submission(self, tag=""):
        """A random task, and the session that it is for."""
        rng, session = self.rng, self.session()
        count = rng.choice([1, 1, 2, 2, 3, 4]) if rng.random() < 0.97 else 6
        task = {"intent": self.name, "steps": [self.step(f"{self.name}.{tag}{at}") for at in range(count)]}
        constraints = orders.constraints(rng)
        if constraints:
            task["constraints"] = constraints
        params = {"session_id": session, "task": task}
        if rng.random() < 0.4:
            params["subscribe"] = True
        if rng.random() < 0.45:
            task["idempotency_key"] = f"key-{self.name}{tag}"
            self.keys.append(params)
        return params

    def step(self, mark):
        """A step of a task."""
        entry = self.world.terms["policy"].get(self.principal.key)
        step = orders.step(self.rng, mark, entry, hot=self.world.hot)
        return orders.named(orders.expecting(step, random.Random(f"{self.scenario.seed}/expect/{mark}")), entry)

    async def submit(self) -> None:
        params = self.submission()
        self.send(self.request("task.submit", params, ("task", params["session_id"])))

    async def repeat(self) -> None:
        """Submit again what was submitted before, as who never got the answer: also by a new connection."""
        if not self.keys:
            return await self.submit()
        if self.rng.random() < 0.4:
            self.go(self.rng.choice(LEAVING))
            if not await self.connect():
                return None
        params = self.rng.choice(self.keys)
        if self.sessions and params["session_id"] not in self.sessions:
            # Its session has ended, perhaps with the daemon: keys belong to the principal.
            params = {**params, "session_id": self.sessions[-1]}
        if self.rng.random() < 0.1:
            params = {**params, "task": {**params["task"], "intent": "something else"}}
        self.send(self.request("task.submit", params, ("task", params["session_id"])))
        return None

    async def batch(self) -> None:
        documents = []
        for at in range(self.rng.choice([1, 2, 3, 5])):
            params = self.submission(f"{at}.")
            documents.append(self.request("task.submit", params, ("task", params["session_id"])))
        if self.tasks:
            session, task = self.rng.choice(self.tasks)
            documents.append(self.request("task.get", {"session_id": session, "task_id": task}, ("got", session)))
        self.send(documents)

    async def malformed(self) -> None:
        assert self.connection is not None
        self.connection.send(self.rng.choice(orders.MALFORMED))

    async def twice(self) -> None:
        """Two requests of one id."""
        params = self.submission()
        request = self.request("task.submit", params, ("task", params["session_id"]))
        if self.tasks and self.rng.random() < 0.5:
            session, task = self.rng.choice(self.tasks)
            self.send(request, {**request, "method": "task.get", "params": {"session_id": session, "task_id": task}})
        else:
            self.send(request, {**request, "method": "mcp.info", "params": {"session_id": params["session_id"]}})

    async def cancel(self) -> None:
        if not self.tasks:
            return await self.submit()
        session, task = self.rng.choice(self.tasks[-4:])
        self.send(self.request("task.cancel", {"session_id": session, "task_id": task}, ("got", session)))
        return None

    async def get(self) -> None:
        if not self.tasks:
            return await self.submit()
        session, task = self.rng.choice(self.tasks)
        self.send(self.request("task.get", {"session_id": session, "task_id": task}, ("got", session)))
        return None

    async def subscribe(self) -> None:
        if not self.tasks:
            return await self.submit()
        session, task = self.rng.choice(self.tasks)
        params = {"session_id": session, "task_id": task}
        if self.rng.random() < 0.6:
            params["from_seq"] = self.rng.choice([0, 1, 1, 2, 3, 9])
        self.send(self.request("task.events.subscribe", params, ("got", session)))
        return None

    async def follow_all(self) -> None:
        session = self.session()
        self.send(self.request("task.events.subscribe", {"session_id": session}, ("got", session)))

    async def unsubscribe(self) -> None:
        session = self.session()
        params = {"session_id": session}
        if self.tasks and self.rng.random() < 0.6:
            params["session_id"], params["task_id"] = self.rng.choice(self.tasks)
        self.send(self.request("task.events.unsubscribe", params, ("got", session)))

    async def leave(self) -> None:
        """Lose the connection, perhaps with a request on its way, and come back."""
        if self.rng.random() < 0.4:
            await self.submit()
        self.go(self.rng.choice(LEAVING))
        await trio.sleep(self.rng.choice([0, 0.01, 0.5]))
        await self.connect()

    async def elsewhere(self) -> None:
        """Follow a task on a connection of its own, beside the first one."""
        if not self.tasks:
            return await self.submit()
        former = self.connection
        if not await self.connect():
            return None
        await self.subscribe()
        if former is not None and not former.over and self.rng.random() < 0.6:
            mine, self.connection = self.connection, former
            if self.rng.random() < 0.4 and mine is not None:
                await trio.sleep(self.rng.random() * 0.05)
                if not mine.over:
                    mine.leave("close")
            else:
                self.scenario.left_open.append(mine)
        elif former is not None:
            self.scenario.left_open.append(former)
        return None

    async def foreign(self) -> None:
        """Use a session of somebody else's, or one that nobody has."""
        session = self.rng.choice(self.scenario.known) if self.scenario.known else "01HZZZZZZZZZZZZZZZZZZZZZZZ"
        method = self.rng.choice(["tool.list", "task.submit", "session.close", "task.events.subscribe"])
        if session in self.sessions:
            method = "tool.list"
        params = {"session_id": session}
        if method == "task.submit":
            params["task"] = {"intent": self.name, "steps": [self.step(f"{self.name}.0")]}
        self.send(self.request(method, params, ("got",)))

    async def ask(self) -> None:
        session = self.session()
        method = self.rng.choice(["tool.list", "mcp.info", "mcp.tools"])
        self.send(self.request(method, {"session_id": session}, ("got", session)))

    async def rush(self) -> None:
        """More at once than a rate lets through, or a session takes."""
        tool = self.rng.choice(["gpio.set", "i2c.write", "file.write", "world.nap"])
        for at in range(self.rng.randint(3, 7)):
            session = self.session()
            steps = [{"tool": tool, "args": orders.rush(tool, f"{self.name}.{at}.0", at)}]
            task = {"intent": self.name, "steps": steps}
            self.send(self.request("task.submit", {"session_id": session, "task": task}, ("task", session)))

    async def wait(self) -> None:
        """Say nothing for a while: sessions may fall asleep over it."""
        await trio.sleep(self.rng.choice([0.1, 0.6, 4, 12]))

    async def share(self) -> None:
        """Set a line in one session and use it in another, end the first, and stay for a while with the other."""
        rng = self.rng
        former, self.sessions = self.sessions, []
        self.open_session()
        self.open_session()
        await self.hear(2)
        if len(self.sessions) < 2 or self.connection is None or self.connection.over:
            self.sessions = former + self.sessions
            return
        one, other = self.sessions[-2:]
        line, value = rng.choice([(0, 1), (1, 0), (5, 1)])
        use = rng.choice(
            [
                [("gpio.pulse", {"line": line, "value": rng.randint(0, 1), "duration_ms": rng.choice([1, 20])})],
                [
                    ("gpio.set", {"line": line, "value": rng.randint(0, 1)}),
                    ("i2c.read", {"bus": 1, "addr": 0x33, "len": 1}),
                ],
                [("gpio.set", {"line": line, "value": value})],
            ]
        )
        self.send(self.request("task.events.subscribe", {"session_id": other}, ("got", other)))
        for at, (session, steps) in enumerate([(one, [("gpio.set", {"line": line, "value": value})]), (other, use)]):
            marked = [
                {"tool": tool, "args": {**args, "mark": f"{self.name}.{at}.{number}"}}
                for number, (tool, args) in enumerate(steps)
            ]
            task = {"intent": self.name, "steps": marked, "constraints": {"rollback_on_failure": True}}
            self.send(self.request("task.submit", {"session_id": session, "task": task}, ("task", session)))
            if rng.random() < 0.8:
                await self.hear(1)
                await trio.sleep(rng.choice([0.0, 0.05]))
        if self.connection.over:
            return
        self.send(self.request("session.close", {"session_id": one}, ("closed", one)))
        self.sessions = [other]
        await trio.sleep(rng.choice([1, 5]))

    async def adopt(self) -> None:
        """Submit with a key, end the session, repeat it in a new one, and follow all that the new one has.

        On a connection that has followed nothing and had no batch: what it is told can have one reason only.
        """
        self.go("close")
        if not await self.connect():
            return
        self.open_session()
        await self.hear(2)
        params = self.submission()
        params.pop("subscribe", None)
        params["task"].setdefault("idempotency_key", f"key-{self.name}")
        former = params["session_id"]
        self.send(self.request("task.submit", params, ("task", former)))
        await self.hear(2)
        if self.connection is None or self.connection.over:
            return
        self.send(self.request("session.close", {"session_id": former}, ("closed", former)))
        await self.hear(5)
        if self.connection.over:
            return
        self.open_session()
        await self.hear(2)
        if self.connection.over or not self.sessions:
            return
        session = self.sessions[-1]
        self.send(self.request("task.submit", {**params, "session_id": session}, ("task", session)))
        await self.hear(2)
        if not self.connection.over:
            self.send(self.request("task.events.subscribe", {"session_id": session}, ("got", session)))
            await self.hear(2)
            await trio.sleep(self.rng.choice([0.05, 1]))

    async def unplug(self) -> None:
        """Lease a bus, and lose its device."""
        rng, session = self.rng, self.session()
        calls = [("world.many", {"n": 2}), ("world.nap", {"ms": 60}), ("world.many", {"n": 2})]
        steps = [{"tool": tool, "args": {"mark": f"{self.name}.{at}", **args}} for at, (tool, args) in enumerate(calls)]
        task = {"intent": self.name, "steps": steps, "constraints": {"exclusive": True}}
        self.send(self.request("task.submit", {"session_id": session, "task": task}, ("task", session)))
        bus = await faults.leased(self.world, 2)
        if bus is not None:
            await trio.sleep(rng.choice([0.0, 0.01, 0.03]))
            await faults.away(self.world, rng, bus)

    async def wide(self) -> None:
        """Use the further buses of a world that has them."""
        rng, session = self.rng, self.session()
        count = rng.choice([1, 1, 2, 3])
        task = {"intent": self.name, "steps": [wide.step(rng, f"{self.name}.{at}") for at in range(count)]}
        constraints = orders.constraints(rng)
        if constraints:
            task["constraints"] = constraints
        self.send(
            self.request("task.submit", {"session_id": session, "task": task, "subscribe": True}, ("task", session))
        )

    async def planned(self) -> None:
        """Ask for what needs an approval, at once and as a plan; have that approved, or not; execute it twice."""
        rng, session = self.rng, self.session()
        steps = [{"tool": "file.delete", "args": {"mark": f"{self.name}.0", "path": rng.choice(orders.PATHS)}}]
        task = {"intent": self.name, "steps": steps, "constraints": {"max_risk_level": 3}}
        if rng.random() < 0.5:
            # With a mark of its own: what is refused touches nothing, and the plan is another request.
            direct = [{**steps[0], "args": {**steps[0]["args"], "mark": f"{self.name}.1"}}]
            params = {"session_id": session, "task": {**task, "steps": direct}}
            self.send(self.request("task.submit", params, ("task", session)))
        self.send(self.request("plan.prepare", {"session_id": session, "task": task}, ("plan", session)))
        await self.hear(2)
        if not self.plans:
            return
        plan = self.plans.pop()
        approved = rng.random() < 0.8
        # By a chance of its own, as in `plan`: what must be refused.
        odd = random.Random(f"{self.scenario.seed}/odd/{self.name}")
        if odd.random() < 0.3:
            params = {"session_id": session, "plan_id": plan["plan_id"], "hash": plan["hash"]}
            self.send(self.request("plan.approve", params, ("got", session)))
        if odd.random() < 0.3:
            await self.of_another("plan.approve", plan, "sha256:" + "0" * 64)
        if approved:
            await self.of_another("plan.approve", plan, plan["hash"])
        if odd.random() < 0.3:
            await self.of_another("plan.execute", plan, plan["hash"])
        if odd.random() < 0.2:
            await trio.sleep(self.world.terms["limits"]["plan_ttl_s"] + odd.choice([-1, 0.1, 3]))
        for _ in range(2):
            if self.connection is not None and not self.connection.over:
                params = {"session_id": session, "plan_id": plan["plan_id"]}
                self.send(self.request("plan.execute", params, ("task", session)))
                await trio.sleep(rng.choice([1.1, 2.0]))

    async def of_another(self, method, plan, plan_hash) -> None:
        """Let another principal do something with a plan, on a connection of its own."""
        other = Client(self.scenario, self.number)
        uid = int(APPROVER.partition(":")[2])
        other.principal = Principal(kind="unix", uid=uid, gid=uid)
        other.name, other.nursery, other.ears = f"{self.name}.approver", self.nursery, "good"
        if not await other.connect():
            return
        other.open_session()
        await other.hear(1)
        if other.sessions and other.connection is not None and not other.connection.over:
            params = {"session_id": other.sessions[0], "plan_id": plan["plan_id"], "hash": plan_hash}
            other.send(other.request(method, params, ("got", other.sessions[0])))
            await other.hear(1)
        other.go("close")

    async def observe_beside(self, rng) -> None:
        """Observe the runtime on a connection of its own, mostly as one who may; go away and come back."""
        other = Client(self.scenario, self.number)
        uid = int(rng.choice([APPROVER] * 3 + [AUTHOR]).partition(":")[2])
        other.principal = Principal(kind="unix", uid=uid, gid=uid)
        other.name, other.nursery = f"c{self.number}.observer", self.nursery
        other.ears = rng.choice(["good", "good", "slow"])
        stream: dict = {}
        for _ in range(rng.choice([1, 2, 3])):
            await trio.sleep(rng.random() * rng.choice([0.01, 0.5]))
            if not await other.connect():
                continue
            connection = other.connection
            assert connection is not None
            other.sessions.clear()
            other.open_session()
            await other.hear(2)
            if other.sessions and not connection.over:
                other.send(other.request("observe.subscribe", {"session_id": other.sessions[0], **stream}))
                await trio.sleep(rng.choice([0.3, 2, 6]))
                if connection.observed:
                    last = connection.observed
                    stream = {"stream": last["stream"], "from_seq": last["seq"] + rng.choice([1, 1, 1, 0, 7])}
            if not connection.over:
                other.go(rng.choice(LEAVING))

    async def break_session(self) -> None:
        """Use a tool that has a bug in what the session itself asks it."""
        session = self.session()
        steps = [{"tool": "world.breaks_session", "args": {"mark": f"{self.name}.0"}}]
        params = {"session_id": session, "task": {"intent": self.name, "steps": steps}}
        self.send(self.request("task.submit", params, ("task", session)))
