"""A tape, put together: what each client asked and heard, what the log says, what the buses saw, and whose that was."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .observer_log import FOR_EVER, Log
from .observer_model import Life, Session, Step, Task, Transaction
from .observer_wire import Client, Event, Request


class Reading:
    """A tape, put together."""

    def __init__(self, entries):
        self.entries = entries
        world = next((entry for entry in entries if entry.kind == "world"), None)
        self.seed = None if world is None else world.what.get("seed")
        self.terms: dict[str, Any] = {} if world is None else world.what.get("config") or {}
        self.limits: dict[str, Any] = self.terms.get("limits") or {}
        self.tools: dict[str, Any] = self.terms.get("tools") or {}
        self.buses: dict[str, Any] = self.terms.get("buses") or {}
        self.policy: dict[str, Any] = self.terms.get("policy") or {}
        self.durability: str = self.terms.get("durability") or "os"
        self.log = Log(entries)
        self.clients: dict[int, Client] = {}
        self.transactions: list[Transaction] = []
        self.levels: list[Any] = []
        self.faults: list[Any] = []
        self.opened: list[Any] = []
        self.frames: list[Any] = []
        """Frames that came to a CAN bus's queue, and the places at which sessions began to read there."""
        self.lives: list[Life] = []
        self.baselines: list[Any] = []
        self.calms: list[Any] = []
        self.reloads: list[Any] = []
        self.last = entries[-1].number if entries else 0
        self.ends_at = entries[-1].at if entries else 0.0
        self.sessions: dict[str, Session] = {}
        self.tasks: dict[str, Task] = {}
        self.steps_by_mark: dict[str, list[Step]] = {}
        self._running: dict[Any, Transaction] = {}
        self._life: dict[str, Any] | None = None
        self._read()
        self.changing = {key for key, entry in self.policy.items() if entry.get("changes")}
        """Principals whose entry reloads change; see `invariants.policy`."""
        self._sessions_and_tasks()
        self._records()
        self._marks()

    # --- the tape's kinds ---------------------------------------------------------------------------------------

    def _read(self):
        tellers = {
            "client.opens": self._client_opens,
            "client.sends": self._client_sends,
            "client.receives": self._client_receives,
            "client.leaves": self._client_ends,
            "client.ends": self._client_ends,
            "bus.begin": self._bus_begins,
            "bus.end": self._bus_ends,
            "bus.level": self.levels.append,
            "bus.open": self.opened.append,
            "bus.close": self.opened.append,
            "can.frame": self.frames.append,
            "can.cursor": self.frames.append,
            "fault": self.faults.append,
            "baseline": self.baselines.append,
            "calm": self.calms.append,
            "policy": self.reloads.append,
            "daemon.starts": self._daemon_starts,
            "daemon.told": self._daemon_told,
            "daemon.ends": self._daemon_ends,
        }
        for entry in self.entries:
            teller = tellers.get(entry.kind)
            if teller is not None:
                teller(entry)
        if self._life is not None:
            self.lives.append(Life(**self._life, ended=FOR_EVER, ended_at=None, error=None))

    def _client_opens(self, entry):
        number = entry.what["client"]
        self.clients[number] = Client(number, entry.what["principal"], entry)

    def _client_sends(self, entry):
        client = self.clients[entry.what["client"]]
        if entry.what.get("torn"):
            client.torn = True
        else:
            client.sends(entry, entry.what["line"], self.limits)

    def _client_receives(self, entry):
        self.clients[entry.what["client"]].receives(entry, entry.what["line"])

    def _client_ends(self, entry):
        client = self.clients[entry.what["client"]]
        if client.left == FOR_EVER:
            client.left, client.left_at = entry.number, entry.at

    def _bus_begins(self, entry):
        transaction = Transaction(entry)
        self._running[transaction.bus, transaction.number] = transaction
        self.transactions.append(transaction)

    def _bus_ends(self, entry):
        transaction = self._running.pop((entry.what["bus"], entry.what["transaction"]), None)
        if transaction is not None:
            transaction.ended, transaction.ended_at = entry.number, entry.at
            transaction.outcome, transaction.value = entry.what["outcome"], entry.what.get("value")

    def _daemon_starts(self, entry):
        self._life = {"begun": entry.number, "told": None, "told_at": None, "signal": None, "signals": 0}

    def _daemon_told(self, entry):
        life, signal = self._life, entry.what["signal"]
        if life is None:
            return
        life["signals"] += 1
        if life["told"] is None or signal == "SIGKILL":
            life |= {"told": entry.number, "told_at": entry.at, "signal": signal}

    def _daemon_ends(self, entry):
        if self._life is not None:
            ended = {"ended": entry.number, "ended_at": entry.at, "error": entry.what.get("error")}
            self.lives.append(Life(**self._life, **ended))
            self._life = None

    def life_of(self, number: int) -> Life | None:
        """The run of the daemon in which an entry was told."""
        return next((life for life in reversed(self.lives) if life.begun <= number), None)

    # --- who asked for what -------------------------------------------------------------------------------------

    def _sessions_and_tasks(self):
        requests = [request for client in self.clients.values() for request in client.requests]
        notifications = [request for client in self.clients.values() for request in client.notifications]
        for request in sorted(requests, key=lambda request: request.number):
            result = request.result
            if request.method == "session.open" and result and type(result.get("session_id")) is str:
                session = self._session(result["session_id"])
                session.request = request
                session.principal = self.clients[request.client].principal
            elif request.method == "task.submit" and result and type(result.get("task_id")) is str:
                self._submitted(request, result["task_id"])
        for request in sorted(requests + notifications, key=lambda request: request.number):
            named = request.params.get("session_id")
            if request.method != "session.open" and type(named) is str:
                self._session(named).requests.append(request)

    def _submitted(self, request, task_id):
        task = self._task(task_id)
        task.session = task.session or request.params.get("session_id")
        task.asked.append(request)
        # The first is the one that was answered without being called a repeat: a client may hear them in any order.
        task.asked.sort(key=lambda asked: (bool(asked.result.get("repeated")), asked.number))
        for index, step in enumerate((request.params.get("task") or {}).get("steps") or ()):
            if index not in task.steps:
                task.steps[index] = Step(task, index, step.get("tool"), step.get("args") or {})

    def _session(self, session_id) -> Session:
        return self.sessions.setdefault(session_id, Session(session_id))

    def _task(self, task_id) -> Task:
        return self.tasks.setdefault(task_id, Task(task_id))

    # --- what the log says --------------------------------------------------------------------------------------

    def _records(self):
        for record in self.log.records:
            event, fields = record.event, record.fields
            if event in ("session.open", "session.close"):
                session = self._session(fields["session_id"])
                session.principal = session.principal or fields.get("principal")
                (session.opens if event == "session.open" else session.closes).append(record)
            elif event == "daemon.recover":
                for named in fields.get("in_flight") or ():
                    self._task(named.get("task_id")).recovered.append(record)
            elif event == "task.submit":
                task = self._task(fields["task_id"])
                task.submits.append(record)
                # Not that of a repeat by its key, which may be the first that is answered.
                task.session = fields.get("session_id") or task.session
                for index, step in enumerate(fields.get("steps") or ()):
                    if index not in task.steps:
                        task.steps[index] = Step(task, index, step.get("tool"), {})
            elif event == "task.finish":
                self._task(fields["task_id"]).finishes.append(record)
            elif event.startswith("task.step."):
                self._step_record(record, event, fields)

    def _step_record(self, record, event, fields):
        task = self._task(fields["task_id"])
        task.session = task.session or fields.get("session_id")
        index = fields["step_index"]
        step = task.steps.get(index)
        if step is None:
            step = task.steps[index] = Step(task, index, fields.get("tool"), {})
        step.bus = step.bus or fields.get("bus")
        if event == "task.step.start":
            step.start = step.start or record
        elif event == "task.step.finish":
            step.finish = step.finish or record
        elif event == "task.step.rollback":
            step.rollbacks.append(record)

    # --- which transaction is whose -----------------------------------------------------------------------------

    def _marks(self):
        """A mark is in the args of a step and in those of its transactions: nobody has to be asked whose they are."""
        marks, submissions = self._submissions()
        for task in self.tasks.values():
            hashes = [step.get("args_hash") for step in task.submits[0].fields["steps"]] if task.submits else []
            if hashes and not task.asked:
                task.unheard = submissions.get((task.session, *hashes))
            for index, step in task.steps.items():
                mark = step.args.get("mark")
                if mark is None and index < len(hashes):
                    mark = marks.get(hashes[index])
                if mark is not None:
                    self.steps_by_mark.setdefault(mark, []).append(step)
        for transaction in self.transactions:
            step = self._step_of(transaction)
            if step is not None:
                transaction.step = step
                step.transactions.append(transaction)

    def _submissions(self):
        """Marks by the hash of the args that hold them, and submissions by their session and all their hashes."""
        marks: dict[str, str] = {}
        submissions: dict[tuple[Any, ...], Request] = {}
        for client in self.clients.values():
            for request in (*client.requests, *client.notifications):
                if request.method not in ("task.submit", "plan.prepare"):
                    continue
                hashes = []
                for args in _args_of(request.params):
                    hashes.append(args_hash(args))
                    if type(args.get("mark")) is str:
                        marks[hashes[-1]] = args["mark"]
                if hashes:
                    submissions[request.params.get("session_id"), *hashes] = request
        return marks, submissions

    def _step_of(self, transaction) -> Step | None:
        """A mark recurs where a submission is repeated: in another life, or after it was refused."""
        steps = self.steps_by_mark.get(transaction.args.get("mark"), [])
        if len(steps) > 1:
            life = self.life_of(transaction.begun)
            steps = [step for step in steps if self.life_of(step.task.accepted) is life]
        if len(steps) > 1:
            started = [step for step in steps if step.start is not None and step.start.number < transaction.begun]
            steps = sorted(started or steps, key=lambda step: step.start.number if step.start else FOR_EVER)[-1:]
        return steps[0] if steps else None

    # --- small questions that several ask -----------------------------------------------------------------------

    def risk(self, tool: str | None) -> int | None:
        return (self.tools.get(tool) or {}).get("risk")

    def discloses(self, tool: str | None) -> bool:
        return bool((self.tools.get(tool) or {}).get("discloses"))

    def width(self, bus: str | None) -> int:
        return (self.buses.get(bus) or {}).get("width", 1)

    def events_of(self, client: Client) -> dict[str, list[Event]]:
        """What a client was sent, by task."""
        events: dict[str, list[Event]] = {}
        for event in client.events:
            events.setdefault(event.params.get("task_id", ""), []).append(event)
        return events


def _args_of(params):
    task = params.get("task")
    steps = task.get("steps") if type(task) is dict else None
    for step in steps if type(steps) is list else ():
        if type(step) is dict and type(step.get("args")) is dict:
            yield step["args"]


def args_hash(args: Any) -> str:
    """SHA-256 over the canonical form of args (RFC 8785), as far as the clients of a world have such args."""
    text = json.dumps(_plain(args), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _plain(value):
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if type(value) is list else value
