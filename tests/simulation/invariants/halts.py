"""What must hold of a halt: nothing acts after it, nothing of before it acts after its reset, and outputs are safe."""

from __future__ import annotations

from .base import SLACK, Broken, invariant
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
    told = [fault for fault in reading.faults if fault.what["what"] in ("halt", "latched", "reset")]
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


@invariant("nothing acts from a halt on, and nothing of before it ever")
def halted(reading, judged):
    for entry, end in _halts(reading):
        for one in reading.transactions:
            if one.begun < entry.number or one.step is None or one.step.tool not in ACTS or one.what == "safe":
                continue
            judged()
            if one.begun < end:
                expected = f"nothing of {one.step} reaches {one.bus}: the daemon is halted"
                yield Broken((entry.number, one.begun), expected, f"{one.what} begins")
            elif one.step.task.accepted < entry.number:
                expected = f"nothing of {one.step}, accepted before the halt, reaches {one.bus}"
                yield Broken((entry.number, one.begun), expected, f"{one.what} begins")
        for level in reading.levels:
            if entry.number < level.number < end and level.what["bus"].startswith("gpio"):
                judged()
                if not _resting(reading, level):
                    expected = f"line {level.what['line']} goes to no other level than its safe state"
                    yield Broken((entry.number, level.number), expected, f"it is at {level.what['value']}")


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
