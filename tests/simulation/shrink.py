"""Makes a failing scenario small: leaves out what can be left out, as long as the same invariant breaks; prints it.

Delta debugging over the scenario's parts (clients, their actions, faults, ends of the daemon), within a bound of
replays and of real time: what it returns fails in any case, though with more time it might have become smaller.
"""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

from .planted import in_time

REPLAYS = 300
SECONDS = 60.0
MOST_LINES = 120
"""Lines that a told scenario may have: what is farthest from the violation is left out."""


class Shrunk(NamedTuple):
    """A small scenario that fails."""

    seed: int
    trims: frozenset[str]
    size: int
    """How many of its actions, faults and ends are left."""
    parts: int
    """How many there were."""
    violation: Any
    tape: Any
    replays: int

    @property
    def command(self) -> str:
        """What replays it."""
        trims = f" --trim {','.join(sorted(self.trims))}" if self.trims else ""
        return f"python -m tests.simulation --seed {self.seed}{trims}"

    def render(self, *, planted: str | None = None) -> str:
        """The scenario for a person."""
        command = self.command + (f" --planted {planted}" if planted else "")
        told = "\n".join(tell(self.tape, self.violation))
        return f"{told}\n\nbroken: {self.violation}\n\n{self.size} of {self.parts} parts are left. Replay:\n  {command}"


def shrink(seed, invariant, *, replays=REPLAYS, seconds=SECONDS, play=None, parts=None, judge=None) -> Shrunk:
    """The smallest scenario found in which `invariant` breaks. Raises ValueError if it does not in the whole one."""
    if play is None:
        from .scenario import parts, play
    if judge is None:
        from .observer import judge
    hunt = _Hunt(seed, invariant, replays, time.monotonic() + seconds, play, judge)
    if not hunt.fails(frozenset()):
        raise ValueError(f"seed {seed} does not break “{invariant}”")
    everything = parts(seed)
    owners = [part for part in everything if "." not in part]
    hunt.leave_out([part for part in owners if part.startswith("c")])
    hunt.leave_out([part for part in owners if not part.startswith("c")])
    hunt.leave_out(_left(everything, hunt.trims, actions=True))
    # What a client did may have been needed by what has gone since.
    hunt.leave_out(_left(everything, hunt.trims, actions=True))
    trims = hunt.trims
    small = frozenset(part for part in trims if "." not in part or part.partition(".")[0] not in trims)
    left = [part for part in _left(everything, trims) if "." in part or not part.startswith("c")]
    whole = [part for part in everything if "." in part or not part.startswith("c")]
    return Shrunk(seed, small, len(left), len(whole), hunt.violation, hunt.tape, hunt.replays)


def _left(everything, trims, *, actions=False):
    left = [part for part in everything if part not in trims and part.partition(".")[0] not in trims]
    return [part for part in left if "." in part] if actions else left


class _Hunt:
    """The trims found so far, and the tape that they make."""

    def __init__(self, seed, invariant, replays, until, play, judge) -> None:
        self.seed = seed
        self.invariant = invariant
        self.trims: frozenset[str] = frozenset()
        self.violation: Any = None
        self.tape: Any = None
        self.replays = 0
        self._most = replays
        self._until = until
        self._play, self._judge = play, judge

    @property
    def over(self) -> bool:
        """True when the bound is reached; the first replay is always made."""
        return self.replays >= self._most or (self.replays > 0 and time.monotonic() > self._until)

    def fails(self, trims) -> bool:
        """Whether the invariant breaks without these parts; keeps what was found."""
        self.replays += 1
        try:
            tape = in_time(self._play, self.seed, trims=trims)
        except Exception:  # noqa: BLE001  a scenario that breaks off does not show what is looked for
            return False
        for violation in self._judge(tape).violations:
            if violation.invariant == self.invariant:
                self.trims, self.violation, self.tape = trims, violation, tape
                return True
        return False

    def leave_out(self, parts) -> None:
        """Leave out as many of these as possible: halves first, then smaller and smaller pieces."""
        size = len(parts)
        while size >= 1 and parts:
            at = 0
            while at < len(parts):
                if self.over:
                    return
                piece = parts[at : at + size]
                if self.fails(self.trims | set(piece)):
                    parts = parts[:at] + parts[at + size :]
                else:
                    at += size
            size = min(size, len(parts)) // 2


# --- telling it -----------------------------------------------------------------------------------------------------


def tell(tape, violation) -> list[str]:
    """A tape as lines: when, who, what; the entries that show the violation are marked."""
    marked = set(violation.numbers)
    names = _Names()
    lines = [(entry.number, _line(entry, names, entry.number in marked)) for entry in tape.entries]
    lines = [(number, line) for number, line in lines if line is not None]
    if len(lines) > MOST_LINES:
        lines.sort(key=lambda one: min(abs(one[0] - number) for number in marked) if marked else one[0])
        gone = len(lines) - MOST_LINES
        lines = sorted(lines[:MOST_LINES])
        return [f"({gone} entries farther from the violation are left out)", *(line for _, line in lines)]
    return [line for _, line in lines]


class _Names:
    """Short names for ids, in the order in which they come."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._counts = {"session": 0, "task": 0}

    def short(self, kind, id_) -> str:
        if type(id_) is not str:
            return str(id_)
        if id_ not in self._names:
            self._counts[kind] += 1
            self._names[id_] = f"{kind} {self._counts[kind]}"
        return self._names[id_]


def _line(entry, names, marked):
    text = _say(entry.kind, entry.what, names)
    if text is None:
        return None
    return f"{'>' if marked else ' '} #{entry.number:<5} {entry.at:9.4f} s  {text}"


def _say(kind, what, names):
    if kind == "bus.begin":
        mark = what["args"].get("mark")
        whose = f" for {mark}" if mark else ""
        return f"bus {what['bus']}: {what['what']} begins (transaction {what['transaction']}{whose})"
    if kind == "bus.end":
        return f"bus {what['bus']}: transaction {what['transaction']} ends: {what['outcome']}"
    if kind == "bus.level":
        return f"bus {what['bus']}: line {what['line']} is {'an input' if what['value'] is None else what['value']}"
    if kind == "disk.write":
        return _say_records(what["data"], names)
    if kind.startswith("client."):
        return f"client {what['client']} {_say_client(kind, what, names)}"
    if kind == "fault":
        about = ", ".join(f"{name} {value}" for name, value in what.items() if name != "what")
        return f"fault: {what['what']}" + (f" ({about})" if about else "")
    if kind == "disk.fails":
        return f"log: {what['call']} fails with errno {what['errno']}"
    if kind in ("daemon.starts", "daemon.told", "daemon.ends"):
        about = what.get("signal") or what.get("error")
        return f"daemon {kind.partition('.')[2]}" + (f": {about}" if about else "")
    if kind == "baseline":
        return f"counts {what['when']}: " + ", ".join(f"{name} {count}" for name, count in what["counts"].items())
    return None


def _say_client(kind, what, names):
    if kind == "client.opens":
        return f"connects as {what['principal']}"
    if kind == "client.leaves":
        return f"leaves ({what['how']})"
    if kind == "client.ends":
        return "finds its connection ended"
    return f"{'sends' if kind == 'client.sends' else 'hears'} {_say_document(what['line'], names)}"


def _say_records(data, names):
    said = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if type(record) is not dict:
            continue
        text = str(record.get("event"))
        if "step_index" in record:
            text += f" {record['step_index']} ({record.get('tool')})"
        for kind in ("task", "session"):
            if f"{kind}_id" in record:
                text += f" of {names.short(kind, record[f'{kind}_id'])}"
                break
        for name in ("status", "reason", "late", "rolled_back", "bus"):
            if name in record and (name != "bus" or "step_index" not in record):
                text += f", {name} {record[name]}"
        said.append(text)
    return "log: " + "; ".join(said) if said else None


def _say_document(line, names):
    try:
        document = json.loads(line)
    except ValueError:
        return repr(line[:60])
    if type(document) is list:
        return "[" + "; ".join(_say_one(one, names) for one in document) + "]"
    return _say_one(document, names)


def _say_one(one, names):
    if type(one) is not dict:
        return repr(one)[:60]
    params = one.get("params") if type(one.get("params")) is dict else {}
    if one.get("method") == "task.event":
        step = f" of step {params['step_index']}" if "step_index" in params else ""
        status = f", {params['status']}" if "status" in params else ""
        task = names.short("task", params.get("task_id"))
        return f"event {params.get('seq')}: {params.get('phase')}{step} of {task}{status}"
    if "method" in one:
        return f"{one['method']} (id {one.get('id')})" + _say_params(params, names)
    if "error" in one:
        error = one["error"]
        return f"error {error.get('code')} to {one.get('id')}: {str(error.get('message'))[:80]}"
    result = one.get("result")
    said = []
    if type(result) is dict:
        said += [names.short(kind, result[f"{kind}_id"]) for kind in ("session", "task") if f"{kind}_id" in result]
        said += [str(result["status"])] if "status" in result else []
    return f"answer to {one.get('id')}: {', '.join(said) or 'well'}"


def _say_params(params, names):
    said = [names.short(kind, params[f"{kind}_id"]) for kind in ("session", "task") if f"{kind}_id" in params]
    task = params.get("task")
    if type(task) is dict:
        steps = task.get("steps") if type(task.get("steps")) is list else []
        said.append("steps " + ", ".join(_say_step(step) for step in steps))
        said += [f"{name} {value}" for name, value in (task.get("constraints") or {}).items()]
        said += [f"key {task['idempotency_key']}"] if "idempotency_key" in task else []
    said += [
        f"{name} {params[name]}"
        for name in ("on_disconnect", "heartbeat_ms", "from_seq", "subscribe")
        if name in params
    ]
    return ": " + "; ".join(said) if said else ""


def _say_step(step):
    args = step.get("args") if type(step.get("args")) is dict else {}
    return f"{step.get('tool')} {args.get('mark', '')}".strip()
