"""What must hold of a halt: nothing acts after it, nothing of before it acts after its reset, and outputs are safe."""

from __future__ import annotations

from .base import SLACK, Broken, invariant
from .plans import _shown
from .sessions import _troubled

ACTS = (
    *("gpio.set", "gpio.pulse", "i2c.write", "i2c.transfer", "uart.write", "uart.exchange", "file.write"),
    *("can.send", "spi.write", "modbus.write"),
)
"""Tools all of whose steps have an effective risk of 1 or more."""


def _halts(reading):
    """(its entry, the number of the entry that ends it, or FOR_EVER) of each halt, in order.

    One that was not latched when its life ended may be forgotten. A halt of a halted daemon is not one of its own.
    """
    current, latched = None, False
    told = [fault for fault in reading.faults if fault.what["what"] in ("halt", "latched", "reset", "unclear")]
    ends = [life.ended for life in reading.lives if life.ended is not None]
    for number, entry in sorted([*((fault.number, fault) for fault in told), *((end, None) for end in ends)],
                                key=lambda one: one[0]):  # fmt: skip
        if entry is None:
            if current is not None and not latched:
                yield current, number
                current = None
        elif entry.what["what"] == "halt":
            if current is None:
                current, latched = entry, False
        elif entry.what["what"] == "latched":
            latched = current is not None
        elif current is not None:
            yield current, number
            current = None
    if current is not None:
        yield current, float("inf")


def _resting(reading, level):
    """Whether a level that was told is the safe state of its line."""
    line = reading.terms["buses"][level.what["bus"]]["lines"].get(level.what["line"])
    if line is None:
        line = reading.terms["buses"][level.what["bus"]]["lines"].get(str(level.what["line"]))
    return line is None or level.what["value"] == (None if line["safe"] == "input" else line["safe"])


def _prepared(reading):
    """By task that runs a plan: the number of the entry with which its client was shown the plan."""
    shown = _shown(reading)
    runs = [record.fields for record in reading.log.records if record.event == "plan.execute"]
    return {run["task_id"]: shown[run["plan_id"]]["number"] for run in runs if run["plan_id"] in shown}


@invariant("nothing acts from a halt on, and nothing of before it ever")
def halted(reading, judged):
    prepared = _prepared(reading)
    for entry, end in _halts(reading):
        for one in reading.transactions:
            if one.begun < entry.number or one.step is None or one.step.tool not in ACTS or one.what == "safe":
                continue
            judged()
            if one.begun < end:
                expected = f"nothing of {one.step} reaches {one.bus}: the daemon is halted"
                yield Broken((entry.number, one.begun), expected, f"{one.what} begins")
            elif min(one.step.task.accepted, prepared.get(one.step.task.id, one.begun)) < entry.number:
                expected = f"nothing of {one.step}, asked for before the halt, reaches {one.bus}"
                yield Broken((entry.number, one.begun), expected, f"{one.what} begins")
        for level in reading.levels:
            if entry.number < level.number < end and level.what["bus"].startswith("gpio"):
                judged()
                if not _resting(reading, level):
                    expected = f"line {level.what['line']} goes to no other level than its safe state"
                    yield Broken((entry.number, level.number), expected, f"it is at {level.what['value']}")


ANSWER_S = 1.0
"""Seconds within which a halt is answered, whatever the disk does."""
AT_ONCE_S = 0.1
"""Seconds within which it is in force."""


@invariant("no halt waits for disk, session or record")
def at_once(reading, judged):
    resets = [fault.number for fault in reading.faults if fault.what["what"] in ("reset", "unclear")]
    for client in reading.clients.values():
        for request in client.requests:
            life = reading.life_of(request.number)
            due, told_at = request.at + ANSWER_S + SLACK, None if life is None else life.told_at
            if request.method != "halt" or life is None or (told_at is not None and told_at <= due):
                continue
            if request.params.get("session_id") is not None or client.left_at <= due:
                continue
            judged()
            if request.answer is None or request.answer.at > due or request.result is None:
                found = "no answer" if request.answer is None else f"at {request.answer.at:.3f} s: {request.code}"
                number = reading.last if request.answer is None else request.answer.number
                expected = f"halted, and answered by {due:.3f} s: no session, disk or record comes before it"
                yield Broken((request.number, number), expected, found)
            until = min([number for number in resets if number > request.number], default=float("inf"))
            for one in reading.transactions:
                late = one.begun_at > request.at + AT_ONCE_S and one.begun < until and one.begun < life.ended
                if late and one.step is not None and one.step.tool in ACTS and one.what != "safe":
                    yield Broken((request.number, one.begun), f"nothing of {one.step} begins", f"{one.what} begins")


@invariant("no reset ends a hold that is not its own or younger than it")
def own(reading, judged):
    """A person ends all that was there when the reset was asked for; the fleet the fleet's alone."""
    held: dict[str, int] = {}
    starts = [reading.entries[life.begun] for life in reading.lives]
    for entry in sorted([*reading.faults, *starts], key=lambda one: one.number):
        what, source = entry.what.get("what"), entry.what.get("source", "person")
        if entry.kind == "daemon.starts" or what == "unclear":
            held.clear()
        elif what == "halt":
            held[source] = entry.number
        elif what == "raced":
            judged()
            if not entry.what["halted"]:
                expected = "a daemon that is halted: a halt came while the reset was under way"
                yield Broken((held.get("person", entry.number), entry.number), expected, "it is not")
        elif what == "reset":
            judged()
            if source == "fleet" and "person" in held:
                expected = "a halt that lasts: the fleet's reset ends the fleet's hold alone"
                yield Broken((held["person"], entry.number), expected, "the daemon is not halted any more")
            held.clear()


@invariant("outputs are safe after a halt")
def safe(reading, judged):
    for entry, end in _halts(reading):
        due = entry.at + 0.1 + SLACK
        life = reading.life_of(entry.number)
        over = reading.ends_at if life is None or life.ended_at is None else life.ended_at
        ended = next((one.at for one in reading.faults if one.number == end), float("inf"))
        if due > min(over, ended) or (life is not None and life.told_at is not None and due > life.told_at):
            continue
        last = {}
        for level in reading.levels:
            if level.at <= due and level.what["bus"].startswith("gpio"):
                last[level.what["bus"], level.what["line"]] = level
        for (bus, line), level in last.items():
            if _troubled(reading, bus, entry.at, due):
                continue
            judged()
            if not _resting(reading, level):
                expected = f"line {line} of {bus} safe by {due:.3f} s: the daemon was halted at {entry.at:.3f} s"
                yield Broken((entry.number, level.number), expected, f"it is at {level.what['value']}")
