"""The judge itself: of each promise a small tape that keeps it, and tapes that break it, all written by hand.

Nothing of the runtime runs here. A tape that is good must be good for every invariant, and must give the one that it is
for something to judge.
"""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.invariants import ALL
from simulation.observer import judge
from simulation.observer_reading import args_hash
from simulation.planted_bugs import BUGS
from simulation.tape import Tape

TERMS = {
    "buses": {
        "gpio": {
            "width": 1,
            "kind": "gpio",
            "lines": {1: {"safe": 0, "hold": "release"}, 2: {"safe": 0, "hold": "keep"}},
        },
        "i2c": {"width": 1, "kind": "i2c", "lines": {}},
        "files": {"width": 2, "kind": "files", "lines": {}},
    },
    "tools": {
        "gpio.set": {"risk": 2, "bus": "gpio", "undo": True, "drives": True},
        "gpio.pulse": {"risk": 2, "bus": "gpio", "undo": False, "drives": True},
        "gpio.get": {"risk": 0, "bus": "gpio", "undo": False, "drives": False},
        "i2c.write": {"risk": 2, "bus": "i2c", "undo": False, "drives": False},
        "file.read": {"risk": 0, "bus": "files", "undo": False, "drives": False, "discloses": True},
        "file.write": {"risk": 1, "bus": "files", "undo": True, "drives": False},
        "file.delete": {"risk": 3, "bus": "files", "undo": False, "drives": False},
    },
    "policy": {
        "alice": {
            "max_risk": 2,
            "ceiling": 3,
            "tools": ["gpio.set", "gpio.pulse", "gpio.get", "i2c.write", "file.read", "file.write", "file.delete"],
            "rates": {"i2c.write": [2, 1]},
        },
        "bob": {"max_risk": 2, "ceiling": 2, "tools": ["gpio.get"], "rates": {}},
        "dora": {"max_risk": 0, "ceiling": 0, "tools": [], "rates": {}, "observes": True},
        "kim": {"max_risk": 2, "ceiling": 2, "tools": ["gpio.get"], "rates": {}, "rights": ["reset_halt"]},
    },
    "limits": {
        "bus_queue": 2,
        "max_steps": 3,
        "max_tasks_per_session": 2,
        "max_sessions_per_principal": 2,
        "max_connections": 2,
        "max_batch": 4,
        "idle_ttl_s": 5,
        "shutdown_grace_s": 1,
        "plan_ttl_s": 5,
    },
    "durability": "os",
    "end_bound": 10,
}


class Scribe:
    """Writes a tape: what a world would have told, entry by entry."""

    def __init__(self, **terms):
        self.now = 0.0
        self.tape = Tape(lambda: self.now)
        self.tell = self.tape.tell
        self._seq, self._prev = 0, "sha256:" + "0" * 64
        self._ids = self._marks = self._transactions = 0
        self.tell("world", seed=1, config={**TERMS, **terms})
        self.tell("daemon.starts")

    # --- the log

    def line(self, event, **fields):
        self._seq += 1
        text = json.dumps({"seq": self._seq, "event": event, **fields, "prev": self._prev}).encode()
        self._prev = "sha256:" + hashlib.sha256(text).hexdigest()
        return text + b"\n"

    def record(self, event, **fields):
        self.tell("disk.write", file="log", data=self.line(event, **fields))

    def step(self, task, index, event, **fields):
        tool = task["steps"][index]["tool"]
        bus = TERMS["tools"][tool]["bus"]
        ids = {"session_id": task["session"], "task_id": task["id"]}
        self.record(f"task.step.{event}", **ids, step_index=index, tool=tool, bus=bus, **fields)

    # --- the bus

    def begin(self, bus, what="set", **args):
        self._transactions += 1
        self.tell("bus.begin", bus=bus, transaction=self._transactions, what=what, args=args)
        return self._transactions

    def end(self, bus, transaction, outcome="done", **more):
        self.tell("bus.end", bus=bus, transaction=transaction, outcome=outcome, **more)

    def whole(self, bus, what="set", *, levels=(), read=None, **args):
        transaction = self.begin(bus, what, **args)
        for line, value in levels:
            self.tell("bus.level", bus=bus, line=line, value=value)
        self.end(bus, transaction, **({} if read is None else {"value": read}))

    # --- clients

    def client(self, number=1, principal="alice"):
        self.tell("client.opens", client=number, principal=principal)

    def send(self, document, client=1):
        self.tell("client.sends", client=client, line=json.dumps(document).encode() + b"\n")

    def hear(self, document, client=1):
        self.tell("client.receives", client=client, line=json.dumps(document).encode() + b"\n")

    def ask(self, method, client=1, **params):
        self._ids += 1
        self.send({"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}, client)
        return self._ids

    def answer(self, id_, result=None, *, error=None, client=1):
        said = {"result": result or {}} if error is None else {"error": {"code": error, "message": "no"}}
        self.hear({"jsonrpc": "2.0", "id": id_, **said}, client)

    def call(self, method, result=None, *, error=None, client=1, **params):
        self.answer(self.ask(method, client, **params), result, error=error, client=client)

    def event(self, task, seq, phase, *, client=1, **members):
        params = {"task_id": task["id"], "seq": seq, "phase": phase, **members}
        self.hear({"jsonrpc": "2.0", "method": "task.event", "params": params}, client)

    # --- whole pieces

    def session(self, name="s1", *, client=1, principal="alice", **params):
        id_ = self.ask("session.open", client, **params)
        self.record("session.open", session_id=name, principal=principal)
        self.answer(id_, {"session_id": name}, client=client)
        return name

    def close(self, name="s1", *, client=1, safe=None):
        id_ = self.ask("session.close", client, session_id=name)
        self.record("session.close", session_id=name, reason="closed by the client", **({"safe": safe} if safe else {}))
        self.answer(id_, {"ok": True}, client=client)

    def spec(self, *tools, **constraints):
        steps = []
        for tool in tools:
            self._marks += 1
            steps.append({"tool": tool, "args": {"mark": f"m{self._marks}"}})
        return {"intent": "x", "steps": steps, **({"constraints": constraints} if constraints else {})}

    def task(
        self, name, *tools, session="s1", spec=None, client=1, record=True, key=None, subscribe=False, **constraints
    ):
        spec = spec or self.spec(*tools, **constraints)
        if key is not None:
            spec["idempotency_key"] = key
        task = {"id": name, "session": session, "steps": spec["steps"], "spec": spec}
        id_ = self.ask("task.submit", client, session_id=session, task=spec, subscribe=subscribe)
        if record:
            self.submitted(task)
        self.answer(id_, {"task_id": name, "status": "QUEUED", "subscribed": subscribe}, client=client)
        return task

    def submitted(self, task):
        steps = [{"tool": step["tool"], "args_hash": args_hash(step["args"])} for step in task["steps"]]
        self.record("task.submit", session_id=task["session"], task_id=task["id"], steps=steps)

    def run(self, task, index=0, *, status="SUCCESS", levels=(), **args):
        self.step(task, index, "start")
        bus = TERMS["tools"][task["steps"][index]["tool"]]["bus"]
        self.whole(bus, levels=levels, mark=mark(task, index), **args)
        self.step(task, index, "finish", status=status)

    def finish(self, task, status="SUCCESS"):
        self.record("task.finish", session_id=task["session"], task_id=task["id"], status=status)

    def done(self):
        return self.tape


def mark(task, index=0):
    return task["steps"][index]["args"]["mark"]


def begun(**terms):
    """A scribe with a client and its session."""
    scribe = Scribe(**terms)
    scribe.client()
    scribe.session()
    return scribe


CASES = {}


def case(sentence, *bad):
    """The tapes of an invariant: `write(None)` makes the good one; each of `bad` breaks it in a way of its own."""

    def register(write):
        CASES[sentence] = (write, bad)
        return write

    return register


@case("no two transactions overlap on a bus", "one bus", "a pool past its width")
def overlap(how):
    s = Scribe()
    first = s.begin("files")
    second = s.begin("files")
    if how == "a pool past its width":
        s.begin("files")
    s.end("files", first)
    s.end("files", second)
    one = s.begin("i2c")
    if how == "one bus":
        s.begin("i2c")
    s.end("i2c", one)
    return s.done()


@case("no transaction reaches a device that is not open", "closed")
def opened(how):
    s = Scribe()
    s.whole("gpio", **({"closed": True} if how else {}))
    return s.done()


@case("a transaction that has begun is never cut", "cut", "left", "cut before the grace is over")
def cut(how):
    s = Scribe()
    one = s.begin("i2c")
    s.tell("daemon.told", signal="SIGTERM")
    if how != "left":
        s.now = 0.5 if how == "cut before the grace is over" else 1.5
        s.end("i2c", one, "done" if how is None else "cut")
    if how == "cut":
        other = Scribe()
        s = other
        s.end("i2c", s.begin("i2c"), "cut")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("a transaction past its limit has its bus named as wedged", "not named", "named too late")
def wedged(how):
    s = begun()
    task = s.task("t1", "i2c.write")
    s.step(task, 0, "start")
    one = s.begin("i2c", "transfer", mark=mark(task), limit_ms=1000)
    s.now = 1.0
    if how is None:
        s.record("bus.wedged", bus="i2c")
    s.now = 2.0
    s.end("i2c", one)
    if how == "named too late":
        s.record("bus.wedged", bus="i2c")
    s.step(task, 0, "finish", status="FAILED")
    s.finish(task, "FAILED")
    return s.done()


@case("a lease is exclusive", "another's transaction")
def leases(how):
    s = begun()
    holder = s.task("t1", "gpio.set", "gpio.set", exclusive=True)
    other = s.task("t2", "gpio.set")
    s.step(other, 0, "start")
    s.run(holder, 0)
    if how:
        s.whole("gpio", mark=mark(other))
    s.run(holder, 1)
    s.finish(holder)
    if not how:
        s.whole("gpio", mark=mark(other))
    s.step(other, 0, "finish", status="SUCCESS")
    s.finish(other)
    return s.done()


@case("the higher priority goes first, and of equals who came first", "the lower first", "the later first")
def turns(how):
    s = begun(limits={**TERMS["limits"], "max_tasks_per_session": 9})
    running = s.task("t0", "gpio.set")
    s.step(running, 0, "start")
    one = s.begin("gpio", mark=mark(running))
    first = s.task("t1", "gpio.set", priority="high" if how == "the lower first" else "normal")
    second = s.task("t2", "gpio.set", priority="normal")
    s.step(first, 0, "start")
    s.step(second, 0, "start")
    s.end("gpio", one)
    s.step(running, 0, "finish", status="SUCCESS")
    for task in (second, first) if how else (first, second):
        s.whole("gpio", mark=mark(task))
        s.step(task, 0, "finish", status="SUCCESS")
    for task in (running, first, second):
        s.finish(task)
    return s.done()


@case("a bus's queue holds no more than its bound", "one too many")
def bound(how):
    s = begun(limits={**TERMS["limits"], "max_tasks_per_session": 9})
    tasks = [s.task(f"t{number}", "gpio.set") for number in range(4 if how else 3)]
    for number, task in enumerate(tasks):
        s.step(task, 0, "start")
        if number == 0:
            one = s.begin("gpio", mark=mark(task))
    s.end("gpio", one)
    for task in tasks:
        if task is not tasks[0]:
            s.whole("gpio", mark=mark(task))
        s.step(task, 0, "finish", status="SUCCESS")
        s.finish(task)
    return s.done()


@case("a queued step whose task was cancelled never begins", "after the answer", "after its record")
def cancelled(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.step(task, 0, "start")
    s.call("task.cancel", {"task_id": "t1", "status": "CANCELLING"}, session_id="s1", task_id="t1")
    s.now = 1.0
    if how == "after the answer":
        s.whole("gpio", mark=mark(task))
    s.step(task, 0, "finish", status="CANCELLED")
    if how == "after its record":
        s.whole("gpio", mark=mark(task))
    s.finish(task, "CANCELLED")
    return s.done()


@case("what was refused or only rehearsed touches nothing", "refused", "rehearsed")
def untouched(how):
    s = begun()
    refused = s.spec("gpio.set")
    s.call("task.submit", error=-32003, session_id="s1", task=refused)
    rehearsed = s.task("t1", "gpio.set", dry_run=True)
    s.finish(rehearsed)
    if how:
        s.whole("gpio", mark=refused["steps"][0]["args"]["mark"] if how == "refused" else mark(rehearsed))
    return s.done()


@case("the chain of the log is whole", "changed", "removed", "not JSON")
def chain(how):
    s = Scribe()
    s.record("daemon.start")
    line = s.line("bus.reopened", bus="i2c")
    if how == "changed":
        line = line.replace(b"i2c", b"spi")
    if how != "removed":
        s.tell("disk.write", file="log", data=line[:10])
        s.tell("disk.write", file="log", data=line[10:])
    if how == "not JSON":
        s.tell("disk.write", file="log", data=b"{\n")
    s.record("daemon.stop")
    return s.done()


@case("while the log cannot be written nothing is disclosed", "no record", "the record after")
def disclosed(how):
    s = begun()
    task = s.task("t1", "file.read")
    if how is None:
        s.step(task, 0, "start")
    s.whole("files", "read", mark=mark(task))
    if how == "the record after":
        s.step(task, 0, "start")
    if how != "no record":
        s.step(task, 0, "finish", status="SUCCESS")
    s.finish(task)
    return s.done()


@case("no step begins unrecorded", "no record", "the record after", "unsynced", "a refused write for an effect")
def recorded(how):
    s = begun(durability="fsync" if how == "unsynced" else "os")
    task = s.task("t1", "gpio.set")
    if how == "a refused write for an effect":
        s.tell("disk.fails", file="log", call="write", errno=28)
        s.whole("gpio", mark=mark(task))
        return s.done()
    if how == "the record after":
        one = s.begin("gpio", mark=mark(task))
        s.step(task, 0, "start")
        s.end("gpio", one)
    else:
        if how != "no record":
            s.step(task, 0, "start")
        s.whole("gpio", mark=mark(task))
    if how != "no record":
        s.step(task, 0, "finish", status="SUCCESS")
    s.finish(task)
    reading = s.task("t2", "gpio.get")
    s.tell("disk.fails", file="log", call="write", errno=28)
    s.whole("gpio", "get", mark=mark(reading))
    return s.done()


@case("audit order agrees with bus order", "the finish first", "the start last")
def order(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    if how != "the start last":
        s.step(task, 0, "start")
    one = s.begin("gpio", mark=mark(task))
    if how == "the start last":
        s.step(task, 0, "start")
    if how == "the finish first":
        s.step(task, 0, "finish", status="SUCCESS")
    s.end("gpio", one)
    if how != "the finish first":
        s.step(task, 0, "finish", status="SUCCESS")
    s.finish(task)
    return s.done()


@case("a task's records are in the order of its life", "the finish before the start", "the end before its step's")
def lives(how):
    s = begun()
    task = s.task("t1", "file.write", "file.write")
    s.run(task, 0)
    if how == "the finish before the start":
        s.step(task, 1, "finish", status="SUCCESS")
        s.step(task, 1, "start")
    elif how:
        s.step(task, 1, "start")
        s.finish(task)
        s.step(task, 1, "finish", status="SUCCESS")
        return s.done()
    else:
        s.run(task, 1)
    s.finish(task)
    return s.done()


@case("a submission is acknowledged after it is on record", "before", "never", "before it was synced")
def acknowledged(how):
    s = begun(durability="fsync" if how == "before it was synced" else "os")
    task = s.task("t1", "gpio.set", record=how in (None, "before it was synced"))
    if how == "before":
        s.submitted(task)
    s.finish(task, "CANCELLED") if how != "never" else None
    return s.done()


@case("nothing is told before it is on record", "a start", "the end", "the end, which no recovery has found")
def told(how):
    s = begun()
    task = s.task("t1", "gpio.set", subscribe=True)
    if how == "a start":
        s.event(task, 1, "start", step_index=0)
    s.run(task)
    if how != "a start":
        s.event(task, 1, "start", step_index=0)
    s.event(task, 2, "finish", step_index=0)
    if how == "the end":
        s.event(task, 3, "task_finish", status="SUCCESS")
    s.finish(task)
    if how != "the end":
        s.event(task, 3, "task_finish", status="SUCCESS")
    lost = s.task("t2", "gpio.set", key="k")
    s.step(lost, 0, "start")
    s.tell("daemon.told", signal="SIGKILL")
    s.tell("daemon.ends", error="killed")
    s.tell("daemon.starts")
    if how != "the end, which no recovery has found":
        s.record("daemon.recover", in_flight=[{"session_id": "s1", "task_id": "t2"}], complete=True)
    s.client(2)
    s.session("s2", client=2)
    repeat = {"task_id": "t2", "status": "FAILED", "repeated": True}
    s.call("task.submit", repeat, client=2, session_id="s2", task=lost["spec"], subscribe=True)
    s.event(lost, 1, "task_finish", client=2, status="FAILED")
    return s.done()


@case(
    "what is on record as started is on record as ended or named by a recovery",
    "not ended",
    "not named",
    "named though over",
)
def ended(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.step(task, 0, "start")
    if how == "not ended":
        s.finish(task)
        s.tell("daemon.told", signal="SIGTERM")
        s.record("session.close", session_id="s1", reason="shutting down")
        s.tell("daemon.ends", error=None)
        return s.done()
    if how == "named though over":
        s.step(task, 0, "finish", status="SUCCESS")
        s.finish(task)
    s.tell("daemon.told", signal="SIGKILL")
    s.tell("daemon.ends", error=None)
    s.tell("daemon.starts")
    s.record("daemon.recover", in_flight=[] if how == "not named" else [{"task_id": "t1", "steps": [0]}])
    return s.done()


@case("each accepted task reaches exactly one terminal status", "two ends", "none", "told otherwise", "not terminal")
def terminal(how):
    s = begun()
    task = s.task("t1", "gpio.set", subscribe=True)
    s.run(task)
    s.event(task, 1, "start", step_index=0)
    s.event(task, 2, "finish", step_index=0)
    if how != "none":
        s.finish(task, "RUNNING" if how == "not terminal" else "SUCCESS")
        status = "FAILED" if how == "told otherwise" else "RUNNING" if how == "not terminal" else "SUCCESS"
        s.event(task, 3, "task_finish", status=status)
    if how == "two ends":
        s.finish(task)
    s.tell("daemon.told", signal="SIGTERM")
    s.record("session.close", session_id="s1", reason="shutting down")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("a task that is over stays as it was", "it runs again", "a step differs")
def settled(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.run(task)
    s.finish(task)
    ids = {"session_id": "s1", "task_id": "t1"}
    steps = [{"tool": "gpio.set", "status": "SUCCESS"}]
    s.call("task.get", {"status": "SUCCESS", "steps": steps}, **ids)
    if how == "a step differs":
        steps = [{"tool": "gpio.set", "status": "FAILED"}]
    s.call("task.get", {"status": "RUNNING" if how == "it runs again" else "SUCCESS", "steps": steps}, **ids)
    return s.done()


@case("one idempotency key, one task, done once", "two tasks")
def idempotent(how):
    s = begun()
    task = s.task("t1", "gpio.set", key="k")
    s.run(task)
    if how:
        again = s.task("t2", spec=task["spec"], key="k")
        s.run(again)
        s.finish(again)
    else:
        result = {"task_id": "t1", "status": "RUNNING", "repeated": True}
        s.call("task.submit", result, session_id="s1", task=task["spec"])
    s.finish(task)
    return s.done()


@case("what was done is undone in reverse order, on record", "forwards", "not at all", "forwards at the bus")
def rollback(how):
    s = begun()
    task = s.task("t1", "gpio.set", "gpio.set", "i2c.write", rollback_on_failure=True)
    s.run(task, 0)
    s.run(task, 1)
    s.run(task, 2, status="FAILED")
    steps = [] if how == "not at all" else [0, 1] if how == "forwards" else [1, 0]
    for index in steps:
        s.step(task, index, "rollback", undo="back")
        s.whole("gpio", "undo", mark=mark(task, 1 - index if how == "forwards at the bus" else index))
        s.step(task, index, "rollback", rolled_back=True)
    s.finish(task, "FAILED")
    return s.done()


@case("no step starts after its task's time is over", "late")
def deadline(how):
    s = begun()
    task = s.task("t1", "gpio.set", max_duration_ms=100)
    s.now = 0.2 if how else 0.05
    s.run(task)
    s.finish(task)
    return s.done()


@case("a step that expects an effect succeeds only when a read has shown it", "no read", "too early", "another level")
def expected(how):
    s = begun()
    spec = s.spec("gpio.set")
    read = {"mark": "m1.seen", "line": 1}
    spec["steps"][0]["expect"] = {"tool": "gpio.get", "args": read, "equals": {"value": 1}}
    task = s.task("t1", spec=spec)
    s.step(task, 0, "start")
    if how == "too early":
        s.whole("gpio", "get", read=1, **read)
    s.whole("gpio", mark=mark(task), line=1, value=1, levels=[(1, 1)])
    if how is None:
        s.whole("gpio", "get", read=0, **read)
    if how in (None, "another level"):
        s.whole("gpio", "get", read=0 if how else 1, **read)
    s.step(task, 0, "finish", status="SUCCESS")
    s.finish(task)
    s.whole("gpio", "safe", levels=[(1, 0)])
    s.close(safe=[{"line": 1, "safe": 0}])
    return s.done()


@case(
    "events come only after the answer that promised them, and to nobody else",
    "before", "to another", "after the end", "a task of another session",
)  # fmt: skip
def promised(how):
    s = begun()
    task = s.task("t1", "gpio.set", key="k")
    s.run(task)
    s.finish(task)
    ids = {"session_id": "s1", "task_id": "t1"}
    id_ = s.ask("task.events.subscribe", **ids)
    if how == "before":
        s.event(task, 1, "start", step_index=0)
    s.answer(id_, {"ok": True})
    if how is None:
        s.event(task, 1, "start", step_index=0)
        s.event(task, 2, "finish", step_index=0)
        s.event(task, 3, "task_finish", status="SUCCESS")
    if how == "to another":
        s.client(2)
        s.event(task, 1, "start", step_index=0, client=2)
    s.call("task.events.unsubscribe", {"ok": True}, **ids)
    if how == "after the end":
        s.event(task, 1, "start", step_index=0)
    s.session("s2")
    repeat = {"task_id": "t1", "status": "SUCCESS", "repeated": True}
    s.call("task.submit", repeat, session_id="s2", task=task["spec"], subscribe=how is None)
    if how is None:
        s.event(task, 1, "task_finish", status="SUCCESS")
    s.call("task.events.subscribe", {"ok": True}, session_id="s2")
    if how == "a task of another session":
        s.event(task, 1, "task_finish", status="SUCCESS")
    return s.done()


@case(
    "every subscriber got each start, finish and task_finish once and in order",
    "missing", "twice", "swapped", "lost", "lost, with a key",
)  # fmt: skip
def complete(how):
    s = begun()
    s.call("task.events.subscribe", {"ok": True}, session_id="s1")
    unanswered = {"id": "t0", "session": "s1", **s.spec("gpio.set")}
    unanswered["spec"] = {"steps": unanswered["steps"], "idempotency_key": "k0"}
    s.ask("task.submit", session_id="s1", task=unanswered["spec"])
    s.submitted(unanswered)
    s.finish(unanswered, "FAILED")
    task = s.task("t1", "gpio.set", subscribe=True, key="k1" if how == "lost, with a key" else None)
    s.run(task)
    s.finish(task)
    events = [("start", {"step_index": 0}), ("finish", {"step_index": 0}), ("task_finish", {"status": "SUCCESS"})]
    if how == "missing":
        del events[1]
    elif how == "twice":
        events.append(events[2])
    elif how == "swapped":
        events = [events[1], events[0], events[2]]
    elif how is not None:
        events = events[:2]
    for seq, (phase, members) in enumerate(events, 1):
        s.event(task, seq, phase, **members)
    s.call("tool.list", session_id="s1")
    return s.done()


@case("a subscriber's events are numbered upwards from where it asked", "backwards", "from before", "a hole")
def numbered(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.run(task)
    s.finish(task)
    s.call("task.events.subscribe", {"ok": True}, session_id="s1", task_id="t1", from_seq=2)
    seqs = {None: (2, 3), "backwards": (3, 2), "from before": (1, 2), "a hole": (2, 5)}[how]
    s.event(task, seqs[0], "finish", step_index=0)
    s.event(task, seqs[1], "task_finish", status="SUCCESS")
    return s.done()


@case("each request is answered exactly once, and a notification never", "twice", "never", "a notification", "not JSON")
def answered(how):
    s = begun()
    id_ = s.ask("tool.list", session_id="s1")
    if how != "never":
        s.answer(id_)
    if how == "twice":
        s.answer(id_)
    s.send({"jsonrpc": "2.0", "method": "tool.list", "params": {"session_id": "s1"}})
    if how == "a notification":
        s.hear({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}})
    s.tell("client.sends", client=1, line=b"{\n")
    s.hear({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}})
    if how == "not JSON":
        s.tell("client.receives", client=1, line=b"what?\n")
    s.now = 30.0
    s.call("tool.list", session_id="s1")
    return s.done()


@case("a batch is answered in one line, and only a batch is", "in pieces", "alone in a list", "in part")
def batches(how):
    s = begun()

    def request(id_):
        return {"jsonrpc": "2.0", "id": id_, "method": "tool.list", "params": {"session_id": "s1"}}

    def reply(id_):
        return {"jsonrpc": "2.0", "id": id_, "result": {}}

    s.send([request("a"), request("b")])
    if how == "in pieces":
        s.hear([reply("a")])
        s.hear([reply("b")])
    else:
        s.hear([reply("a")] if how == "in part" else [reply("b"), reply("a")])
    s.send(request("c"))
    s.hear([reply("c")] if how == "alone in a list" else reply("c"))
    return s.done()


@case("rates are kept at every instant", "a burst", "too soon", "a burst of two sessions")
def rates(how):
    s = begun(limits={**TERMS["limits"], "max_tasks_per_session": 99})
    s.session("s2")
    moments = {"too soon": (0, 0, 0.5, 0.9), None: (0, 0, 0.5, 1.0)}.get(how, (0, 0, 0))
    for number, at in enumerate(moments):
        s.now = at
        session = "s1" if how == "a burst" or number % 2 else "s2"
        s.finish(s.task(f"t{number}", "i2c.write", session=session), "CANCELLED")
    return s.done()


@case("a session has no more live tasks than it may", "one too many")
def capacity(how):
    s = begun()
    tasks = [s.task(f"t{number}", "gpio.set") for number in range(2)]
    if not how:
        s.finish(tasks[0], "CANCELLED")
    tasks.append(s.task("t2", "gpio.set"))
    for task in tasks if how else tasks[1:]:
        s.finish(task, "CANCELLED")
    return s.done()


@case("no task is accepted with more steps, risk or tools than it may have", "steps", "risk", "ceiling", "tool", "cap")
def risk(how):
    s = begun()
    if how == "steps":
        task = s.task("t1", *["gpio.get"] * 4)
    elif how == "risk":
        task = s.task("t1", "file.delete")
    elif how == "cap":
        task = s.task("t1", "gpio.set", max_risk_level=1)
    elif how in ("ceiling", "tool"):
        s.client(2, "bob")
        s.session("s2", client=2, principal="bob")
        more = {"max_risk_level": 3} if how == "ceiling" else {}
        task = s.task("t1", "gpio.get" if more else "gpio.set", session="s2", client=2, **more)
    else:
        task = s.task("t1", "file.delete", max_risk_level=3)
    s.finish(task, "CANCELLED")
    return s.done()


@case("a principal has no more sessions than it may", "one too many")
def sessions(how):
    s = begun()
    s.session("s2")
    if not how:
        s.close("s1")
    s.session("s3")
    for name in ("s1", "s2", "s3") if how else ("s2", "s3"):
        s.call("tool.list", session_id=name)
    return s.done()


@case("there are no more connections than there may be", "of one principal", "far too many")
def connections(how):
    s = Scribe(limits={**TERMS["limits"], "max_sessions_per_principal": 99})
    names = {None: 2, "of one principal": 3, "far too many": 12}[how]
    for number in range(names):
        s.client(number, "alice" if how != "far too many" else f"user{number}")
    for number in range(names):
        principal = "alice" if how != "far too many" else f"user{number}"
        s.session(f"s{number}", client=number, principal=principal)
    return s.done()


@case("a session belongs to its principal", "a result", "another error", "an event")
def principal(how):
    s = begun()
    s.client(2, "bob")
    error = {None: -32000, "another error": -32003}.get(how, -32000)
    s.call("tool.list", error=None if how == "a result" else error, client=2, session_id="s1")
    if how == "an event":
        task = s.task("t1", "gpio.set")
        s.event(task, 1, "start", step_index=0, client=2)
    return s.done()


@case("a session that was opened is on record as closed, once", "never", "twice")
def closed(how):
    s = begun()
    if how != "never":
        s.close()
    if how == "twice":
        s.record("session.close", session_id="s1", reason="idle")
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("a silent session is closed in its time, and no other", "too early", "never", "idle too early")
def silence(how):
    s = Scribe()
    s.client()
    s.session(heartbeat_ms=1000)
    s.now = 0.9
    s.call("tool.list", session_id="s1")
    s.now = 1.5
    # Answered without a session too, so it keeps none.
    s.call("halt.status", {"halted": False}, session_id="s1")
    s.now = 1.5 if how == "too early" else 1.9
    reason = "no heartbeat within 1000 ms"
    if how != "never":
        s.record("session.close", session_id="s1", reason="idle" if how == "idle too early" else reason)
    s.now = 30.0
    s.tell("fault", what="clear", bus="i2c")
    return s.done()


@case("outputs that a session drove are safe when it has ended", "left", "the record lies")
def safe(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.run(task, levels=[(1, 1), (2, 1)], line=1, value=1)
    s.finish(task)
    if how is None:
        s.whole("gpio", "safe", levels=[(1, 0)])
    s.close(safe=[{"line": 1, "safe": 0}] if how in (None, "the record lies") else None)
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case(
    "a session that ended owns no level that it set last",
    "left for long",
    "after another's pulse",
    "after another's rollback",
    "after another's set, with a deadman",
)
def owned(how):
    s = Scribe()
    s.client()
    s.session("s1", heartbeat_ms=60_000)
    s.session("s2")
    mine = s.task("t1", "gpio.set")
    s.run(mine, line=1, value=1, levels=[(1, 1)])
    s.finish(mine)
    pulses = how in ("after another's pulse", None)
    other = s.task("t2", "gpio.pulse" if pulses else "gpio.set", session="s2")
    if how != "left for long":
        s.step(other, 0, "start")
        s.whole("gpio", mark=mark(other), line=1, value=1)
        if pulses:
            s.whole("gpio", "end", mark=mark(other), line=1, value=1)
        s.step(other, 0, "finish", status="SUCCESS")
    if how == "after another's rollback":
        s.whole("gpio", "undo", mark=mark(other), line=1, value=1)
    s.finish(other)
    if how is None:
        s.whole("gpio", "safe", lines=[1, 2], levels=[(1, 0)])
    s.close("s1")
    s.now = 4.0
    s.whole("gpio", "safe", levels=[(1, 0)])
    s.close("s2")
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


DOOR = {"bus": "gpio", "line": 1, "value": 1, "door": 6, "closed": 1, "check_s": 0.1, "bound_s": 0.05}


@case("an output is driven only while what its interlock requires holds", "driven while open", "left driven")
def guarded(how):
    s = Scribe(interlocks=[DOOR])
    door = functools.partial(s.tell, "fault", what="door", line=6)
    if how == "driven while open":
        door(value=0)
    s.whole("gpio", line=1, value=1, levels=[(1, 1)])
    s.now = 1.0
    door(value=0)
    if how is None:
        s.now = 1.1
        s.whole("gpio", "safe", lines=[1], levels=[(1, 0)])
        door(value=1)
        s.whole("gpio", line=1, value=1, levels=[(1, 1)])
        door(value=0)
        s.now = 1.2
        s.whole("gpio", line=1, value=0, levels=[(1, 0)])
    s.now = 3.0
    door(value=1)
    return s.done()


ASKS = {
    **TERMS["policy"],
    "alice": {**TERMS["policy"]["alice"], "approval": {"from_risk": 3, "persons": 1, "other": True}},
    "bob": {**TERMS["policy"]["bob"], "rights": ["approve"]},
}


@case(
    "what needs an approval runs only as a plan that another has approved, once, and as it was shown",
    "no plan", "not approved", "approved by its author", "another hash", "twice", "other args",
    "by another", "too late", "approved as another",
)  # fmt: skip
def planned(how):
    s = begun(policy=ASKS)
    spec = s.spec("file.delete", max_risk_level=3)
    plan = {"plan_id": "p1", "hash": "sha256:1", "steps": spec["steps"]}
    s.call("plan.prepare", plan, session_id="s1", task=spec)
    named = {"session_id": "s1", "plan_id": "p1", "hash": "sha256:2" if how == "another hash" else "sha256:1"}
    if how != "not approved":
        s.record("plan.approve", **named, principal="alice" if how == "approved by its author" else "bob")
    ran = s.spec("file.delete")["steps"] if how == "other args" else spec["steps"]
    if how == "approved as another":
        s.call("plan.approve", {"ok": True}, session_id="s1", plan_id="p1", hash="sha256:2")
    named["hash"] = "sha256:1"
    s.now = 6.0 if how == "too late" else 4.0
    for name in ("t1", "t2") if how == "twice" else ("t1",):
        task = {"id": name, "session": "s1", "steps": ran, "spec": spec}
        if how != "no plan":
            s.record("plan.execute", **named, principal="bob" if how == "by another" else "alice", task_id=name)
        steps = [{"tool": step["tool"], "args_hash": args_hash(step["args"])} for step in ran]
        s.record("task.submit", session_id="s1", principal="alice", task_id=name, steps=steps)
        s.run(task, what="delete")
        s.finish(task)
    return s.done()


def entry(**members):
    """An entry of a policy that reloads change, as its tape has it whole."""
    sound = {"max_risk": 2, "ceiling": 2, "tools": ["file.write"], "patterns": ["file.*"], "rates": {}}
    return {**sound, "patterns_rates": {}, "approval": None, "rights": (), "changes": True, **members}


RULE = {"from_risk": 1, "persons": 1, "other": True}
WATCHED = {"alice": entry(approval=RULE, patterns_rates={"file.write": [2, 1]}), "bob": entry(rights=("approve",))}
REVOKED = {**WATCHED, "bob": entry()}


def reload(s, policy, *, taken=True, yes=False, answered=True):
    """A reload over the wire; not `answered`: by a signal."""
    s.tell("policy", what="begins", policy=policy, yes=yes)
    if taken:
        s.record("policy.reload")
    if answered:
        s.call("policy.reload", {"ok": True}, error=None if taken else -32602, client=3, yes=yes)
    s.now += 0.1
    s.tell("policy", what="ends")
    s.now += 0.1


@case(
    "no approval of a person without the right is used",
    "taken away", "taken away and given back", "its entry removed", "given in advance", "in advance and given back",
)  # fmt: skip
def approved_with_the_right(how):
    s = begun(policy=WATCHED)
    s.client(2, "bob")
    s.session("s2", client=2, principal="bob")
    s.client(3, "carol")
    about = {"plan_id": "p1", "hash": "sha256:1"}
    if how is None or "advance" not in how:
        s.record("plan.approve", **about, principal="bob")
    if how is None or "advance" in how:
        s.call("approval.grant", {"approval_id": "a"}, client=2, session_id="s2", principal="alice", tool="file.write")
    s.now += 0.1
    # What the other loses changes nothing.
    changed = {**WATCHED, "alice": {**WATCHED["alice"], "tools": ["file.write"], "rights": ("observe",)}}
    reload(s, changed if how is None else {"alice": WATCHED["alice"]} if "removed" in how else REVOKED)
    if how is not None and "back" in how:
        reload(s, WATCHED, yes=True)
    task = {"id": "t1", "session": "s1", "steps": s.spec("file.write")["steps"]}
    if how is None or "advance" not in how:
        s.record("plan.execute", **about, principal="alice", task_id="t1")
        s.submitted(task)
    if how is None or "advance" in how:
        s.task("t2", "file.write")
    return s.done()


@case(
    "a reload never widens silently",
    "answered", "by a signal", "without approval", "a limit gone", "a right for a right", "used all the same",
    "used though taken away",
)  # fmt: skip
def widened(how):
    s = begun(policy=WATCHED)
    s.client(3, "carol")
    alice = WATCHED["alice"]
    wide = {**WATCHED, "alice": {**alice, "approval": None}}
    new = {
        "a limit gone": {**WATCHED, "alice": {**alice, "patterns_rates": {}}},
        "a right for a right": {"alice": {**alice, "rights": ("approve",)}},
        "used though taken away": {**WATCHED, "alice": {**alice, "tools": [], "patterns": []}},
    }.get(how, wide)
    if how is None:
        reload(s, wide, taken=False)
        reload(s, REVOKED)
        reload(s, WATCHED)
        reload(s, wide, yes=True)
        s.task("t1", "file.write")
    else:
        used = how.startswith("used")
        reload(s, new, taken="away" in how or not used, answered=how != "by a signal")
        if used:
            s.task("t1", "file.write")
    return s.done()


TIMES = {"bus": "gpio", "line": 1, "min_off_s": 0.1, "max_on_s": 0.5, "bound_s": 0.05}


@case("a line is on no longer, and off no shorter, than its limit says", "on too long", "on too soon", "left on")
def times(how):
    s = Scribe(times=[TIMES])
    s.whole("gpio", line=1, value=1, levels=[(1, 1)])
    s.now = 0.7 if how == "on too long" else 0.5
    s.whole("gpio", line=1, value=0, levels=[(1, 0)])
    s.now += 0.05 if how == "on too soon" else 0.1
    s.whole("gpio", line=1, value=1, levels=[(1, 1)])
    if how != "left on":
        s.now += 0.5
        s.whole("gpio", "safe", lines=[1], levels=[(1, 0)])
    s.now = 3.0
    s.whole("gpio", "get", line=1)
    return s.done()


CAN = {**TERMS["buses"], "can": {"width": 1, "kind": "can", "lines": {}, "queue": 3}}
SPEED = [{"bus": "can", "name": "speed", "max": 80, "max_step": 30}, {"bus": "can", "name": "ramp", "max": 5}]


@case("no value beyond its limit reaches a device", "beyond its maximum", "too far", "too far after a failure")
def ranges(how):
    s = Scribe(buses=CAN, ranges=SPEED)
    s.tell("bus.open", bus="can")
    s.whole("can", "send", limited={"speed": 90 if how == "beyond its maximum" else 60})
    s.whole("can", "send", limited={"speed": 20 if how == "too far" else 80, "ramp": 1, "other": 1000})
    failed = s.begin("can", "send", limited={"speed": 60})
    s.end("can", failed, "error")
    s.whole("can", "send", limited={"speed": 40 if how == "too far after a failure" else 50})
    s.tell("bus.open", bus="can")
    s.whole("can", "send", limited={"speed": 0})
    # A register that may have another value by now.
    s.whole("can", "write", line="speed", limited={"speed": 30})
    s.whole("can", "safe", lines=["speed"])
    s.whole("can", "write", line="speed", limited={"speed": 80})
    failed = s.begin("can", "write", line="speed", limited={"speed": 60})
    s.end("can", failed, "error")
    s.whole("can", "write", line="speed", limited={"speed": 0})
    return s.done()


OWNED = [
    {"bus": "can", "name": "speed", "safe": 0},
    {"bus": "i2c", "name": "ramp", "left": "RAMP"},
]


@case(
    "what nobody announced is safe after its session or a halt, or said to be left",
    "left driven",
    "driven in a halt",
    "silent",
)
def unannounced(how):
    s = begun(buses=CAN, owned=OWNED)
    task = s.task("t1", "i2c.write")
    s.step(task, 0, "start")
    s.whole("can", "send", mark=mark(task), limited={"speed": 60})
    s.whole("i2c", "transfer", mark=mark(task), limited={"ramp": 60})
    s.step(task, 0, "finish", status="SUCCESS")
    s.finish(task)
    s.close("s1")
    if how != "left driven":
        s.whole("can", "safe", lines=["speed"])
    s.now = 5.0
    s.whole("can", "send", limited={"speed": 20})
    s.now = 6.0
    s.tell("fault", what="halt")
    left = [] if how == "silent" else [{"bus": "i2c", "outputs": ["any"], "names": ["RAMP"]}]
    s.record("halt", reason="a test", left=left)
    if how != "driven in a halt":
        s.whole("can", "safe", lines=["speed"])
    s.now = 12.0
    s.tell("bus.open", bus="i2c")
    return s.done()


@case(
    "a session gets each frame of its CAN bus once and in order, or is told how many it lost",
    *("left out", "twice", "its own", "not wanted", "an error", "lost untold", "taken in vain"),
)
def frames(how):
    s = Scribe(buses=CAN)
    came = 0

    def comes(key=1, sender="", *, error=False):
        nonlocal came
        came += 1
        s.tell("can.frame", bus="can", place=came, key=key, sender=sender, error=error)

    def take(*places, count=1, lost=0, partial=False, errors=False, keys=(1,), complete=None):
        args = {"reader": "s1", "keys": [*keys], "count": count, "partial": partial, "errors": errors}
        transaction = s.begin("can", "take", **args)
        s.tell("can.cursor", bus="can", reader="s1", place=came)
        complete = len(places) == count if complete is None else complete
        s.end("can", transaction, value={"places": [*places], "lost": lost, "complete": complete})

    comes()
    take()
    comes()
    comes()
    take(3 if how == "left out" else 2)
    take(2 if how == "twice" else 3)
    comes(sender="s1")
    take(*([4] if how == "its own" else []), partial=True)
    comes(key=2)
    comes()
    take(5 if how == "not wanted" else 6)
    comes(error=True)
    comes()
    take(7 if how == "an error" else 8)
    comes(error=True)
    take(9, errors=True)
    comes()
    take(*([10] if how == "taken in vain" else []), count=2, complete=False)
    take(10, count=2, partial=True)
    for _ in range(5):
        comes()
    # The queue has three: the first two of the five were dropped.
    take(13, 14, 15, count=3, lost=0 if how == "lost untold" else 2)
    s.tell("daemon.ends", error=None)
    s.tell("daemon.starts")
    came = 0
    comes()
    take()
    comes()
    take(2)
    return s.done()


@case("nothing acts from a halt on, and nothing of before it ever", "acts", "acts after the reset", "another level")
def halted(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.run(task, levels=[(1, 1)], line=1, value=1)
    s.finish(task)
    before = s.task("t2", "gpio.set")
    s.tell("fault", what="halt")
    s.whole("gpio", "safe", levels=[(1, 1 if how == "another level" else 0)])
    s.tell("fault", what="latched")
    if how == "acts":
        s.run(before, line=1, value=0)
    s.tell("fault", what="reset")
    if how == "acts after the reset":
        s.run(before, line=1, value=0)
    if how is None:
        after = s.task("t3", "gpio.set")
        s.run(after, levels=[(1, 1)], line=1, value=1)
        s.finish(after)
        s.whole("gpio", "safe", levels=[(1, 0)])
    s.finish(before, "CANCELLED")
    s.close()
    s.now = 5.0
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("no halt waits for disk, session or record", "too late", "never", "refused", "it acts")
def halts_at_once(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.client(2, "bob")
    id_ = s.ask("halt", 2, reason="a person")
    s.now = 1.5 if how == "too late" else 0.5
    if how == "it acts":
        s.run(task, line=1, value=1)
    if how == "refused":
        s.answer(id_, error=-32005, client=2)
    elif how != "never":
        s.answer(id_, {"halted": True}, client=2)
    s.finish(task, "CANCELLED")
    s.now = 4.0
    s.close()
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("no reset ends a hold that is not its own or younger than it", "another's", "a younger one")
def holds_of_others(how):
    s = begun()
    s.tell("fault", what="halt", source="fleet")
    s.tell("fault", what="reset", source="fleet")
    s.tell("fault", what="halt", source="fleet")
    s.tell("fault", what="halt", source="person")
    s.tell("fault", what="raced", halted=how != "a younger one")
    s.tell("fault", what="reset", source="fleet" if how == "another's" else "person")
    s.close()
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("outputs are safe after a halt", "left", "too late")
def stopped(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    s.run(task, levels=[(1, 1)], line=1, value=1)
    s.finish(task)
    s.tell("fault", what="halt")
    if how is None:
        s.whole("gpio", "safe", levels=[(1, 0)])
    s.now = 2.0
    if how == "too late":
        s.whole("gpio", "safe", levels=[(1, 0)])
    s.close()
    s.now = 5.0
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


def observing(s, principal="dora", **more):
    """An observer that has subscribed, and the first event that it is sent."""
    s.client(2, principal)
    s.session("s2", client=2, principal=principal)
    s.call("observe.subscribe", {"ok": True, "stream": "S", "last_seq": 0}, client=2, session_id="s2", **more)


def observed(s, seq, kind="records", **members):
    params = {"stream": "S", "seq": seq, "ts": "2026-01-01T00:00:00.000Z", "kind": kind, **members}
    s.hear({"jsonrpc": "2.0", "method": "observe.event", "params": params}, 2)


@case("only a principal with the right to observe is told of others", "without the right")
def permitted(how):
    s = Scribe()
    observing(s, "alice" if how else "dora")
    observed(s, 0, "snapshot", missed=None, state={})
    return s.done()


@case("an observer misses no event without being told", "a gap", "twice", "another stream", "not from where it asked")
def observer_numbered(how):
    s = Scribe()
    observing(s, **({"stream": "S", "from_seq": 1} if how == "not from where it asked" else {}))
    if how == "not from where it asked":
        observed(s, 2, "health", health={})
        return s.done()
    observed(s, 4, "snapshot", missed=None, state={})
    observed(s, 5, "health", health={})
    if how == "another stream":
        s.hear({"jsonrpc": "2.0", "method": "observe.event", "params": {"stream": "T", "seq": 6, "kind": "health"}}, 2)
    else:
        observed(s, {None: 6, "a gap": 7, "twice": 5}[how], "health", health={})
    return s.done()


@case("what an observer sees of the log is what the log has, in its order", "left out", "turned", "not on record")
def observer_told(how):
    s = Scribe()
    observing(s)
    observed(s, 0, "snapshot", missed=None, state={})
    seen = []
    for number in range(4):
        fields = {"session_id": f"x{number}", "principal": "bob"}
        s.record("session.open", **fields)
        seen.append({"ts": "2026-01-01T00:00:00.000Z", "event": "session.open", **fields})
        s.record("session.close", **fields)
        seen.append({"ts": "2026-01-01T00:00:00.000Z", "event": "session.close", **fields})
    if how == "left out":
        del seen[3]
    elif how == "turned":
        seen[2], seen[3] = seen[3], seen[2]
    elif how == "not on record":
        seen.append({"event": "session.open", "session_id": "x9", "principal": "bob"})
    observed(s, 1, records=seen[:3])
    observed(s, 2, records=seen[3:])
    return s.done()


def calm(s, *, silent=(), state="ready", told=True, reset=None, finish=None, close=True):
    """A calm on a tape with a task and a session that have not ended when it begins."""
    s.tell("calm", what="begins", quiet=3.0, bound=4.0)
    s.now = 2.0
    if finish is not None:
        s.finish(finish)
    s.now = 3.0
    s.tell("calm", what="asked")
    s.client(9, "kim")
    s.session("s9", client=9, principal="kim")
    s.call("halt.status", {"halted": reset is not None}, client=9, session_id="s9")
    if reset is not None:
        s.call("halt.reset", {"halted": False} if reset else None, error=None if reset else -32016, client=9)
    if told:
        s.tell("calm", what="health", silent=list(silent), buses={"gpio": state})
    s.close("s9", client=9)
    if close:
        s.close()
    s.now = 4.0
    s.tell("calm", what="ends")
    s.now = 5.0
    if finish is None:
        s.record("task.finish", session_id="s1", task_id="t1", status="CANCELLED")
    if not close:
        s.close()
    s.tell("daemon.told", signal="SIGTERM")
    s.tell("daemon.ends", error=None)
    return s.done()


@case("once the faults are over, every task ends", "it waits for ever")
def calm_tasks(how):
    s = begun()
    task = s.task("t1", "gpio.set")
    return calm(s, finish=None if how else task)


@case("once the faults are over, every session can be closed", "it stays open")
def calm_sessions(how):
    s = begun()
    return calm(s, finish=s.task("t1", "gpio.set"), close=how is None)


@case("once the faults are over, whoever has the right ends any halt", "refused for ever")
def calm_halts(how):
    s = begun()
    return calm(s, finish=s.task("t1", "gpio.set"), reset=how is None)


@case("once the faults are over, every bus answers", "silent", "named and silent", "no answer of the board")
def calm_buses(how):
    s = begun()
    silent = ["gpio"] if how in ("silent", "named and silent") else []
    state = "down" if how == "named and silent" else "ready"
    return calm(s, finish=s.task("t1", "gpio.set"), silent=silent, state=state, told=how != "no answer of the board")


@case("the daemon always ends on SIGTERM, in time and well", "too late", "never", "with an error")
def ends(how):
    s = Scribe()
    s.tell("daemon.told", signal="SIGTERM")
    s.now = 11.0 if how == "too late" else 9.0
    if how != "never":
        s.tell("daemon.ends", error="RuntimeError" if how == "with an error" else None)
    return s.done()


@case("nothing leaks", "a task")
def leaks(how):
    s = Scribe()
    s.tell("baseline", when="before", counts={"tasks": 7})
    s.tell("baseline", when="after", counts={"tasks": 8 if how else 7})
    return s.done()


def test_every_invariant_has_tapes_of_its_own():
    assert set(CASES) == {invariant.name for invariant in ALL}
    assert len(ALL) == len({invariant.name for invariant in ALL})
    assert all(bad for _, bad in CASES.values())


@pytest.mark.parametrize("sentence", CASES)
def test_a_good_tape_is_good_for_every_invariant(sentence):
    write, _ = CASES[sentence]
    verdict = judge(write(None))
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.violation is None
    assert verdict.work[sentence] > 0


@pytest.mark.parametrize(("sentence", "how"), [(name, how) for name, (_, bad) in CASES.items() for how in bad])
def test_a_bad_tape_is_caught(sentence, how):
    write, _ = CASES[sentence]
    tape = write(how)
    found = {violation.invariant: violation for violation in judge(tape).violations}
    assert sentence in found, [str(violation) for violation in found.values()]
    violation = found[sentence]
    assert violation.numbers
    assert all(0 <= number < len(tape.entries) for number in violation.numbers)
    assert sentence in str(violation)
    assert violation.expected in str(violation)


def test_the_page_names_every_promise_and_every_planted_bug():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text("utf-8")
    assert [invariant.name for invariant in ALL if f"\n| {invariant.name} | " not in page] == []
    assert [bug.what for bug in BUGS if f"\n| {bug.what} | {bug.invariant} | " not in page] == []


def test_the_violation_that_is_seen_first_is_the_one_that_is_named():
    tape = overlap("one bus")
    tape.tell("baseline", when="before", counts={"tasks": 1})
    tape.tell("baseline", when="after", counts={"tasks": 2})
    verdict = judge(tape)
    assert len(verdict.violations) == 2
    assert verdict.violation.invariant == "no two transactions overlap on a bus"


def test_a_tape_with_nothing_on_it_breaks_nothing_and_proves_nothing():
    verdict = judge([])
    assert verdict.violations == ()
    assert not any(verdict.work.values())


def test_the_observer_shares_no_code_with_the_runtime():
    code = (
        "import sys; from simulation import observer; observer.judge([]); "
        "assert 'simulation.invariants' in sys.modules; "
        "names = {name.partition('.')[0] for name in sys.modules}; "
        "print(sorted(names & {'hearth', 'trio', 'orjson', 'attrs', 'actors', 'drivers'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "[]\n"
