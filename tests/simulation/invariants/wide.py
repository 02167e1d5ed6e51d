"""What must hold on the further buses of a world: limits, owners and safe values, and no frame lost untold."""

from __future__ import annotations

from .base import SLACK, Broken, invariant
from .sessions import PATIENCE


@invariant("no value beyond its limit reaches a device")
def ranges(reading, judged):
    """Judged at the device. A step counts from the last value that was sent for certain since the bus was opened.

    A register that may have another value by now, because writing it has failed or because it was made safe, is read
    first: a step counts from nothing then.
    """
    limits = {(limit["bus"], limit["name"]): limit for limit in reading.terms.get("ranges") or ()}
    happened = [*reading.transactions, *(entry for entry in reading.opened if entry.kind == "bus.open")]
    last = {}
    for one in sorted(happened, key=lambda one: one.begun if hasattr(one, "begun") else one.number):
        if not hasattr(one, "begun"):
            last = {place: value for place, value in last.items() if place[0] != one.what["bus"]}
            continue
        if "line" in one.args and one.outcome != "done":
            last.pop((one.bus, one.args["line"]), None)
        for line in one.args.get("lines") or ():
            last.pop((one.bus, line), None)
        for name, value in (one.args.get("limited") or {}).items():
            limit = limits.get((one.bus, name))
            if limit is None:
                continue
            judged()
            if value > limit["max"]:
                yield Broken((one.begun,), f"{name} of {one.bus} at {limit['max']} at most", f"it is {value}")
            begun, former = last.get((one.bus, name), (None, None))
            if former is not None and "max_step" in limit and abs(value - former) > limit["max_step"]:
                expected = f"{name} of {one.bus} no more than {limit['max_step']} from {former}"
                yield Broken((begun, one.begun), expected, f"it is {value}")
            if one.outcome == "done":
                last[one.bus, name] = one.begun, value


@invariant("what nobody announced is safe after its session or a halt, or said to be left")
def unannounced(reading, judged):
    """Judged at the device, by the last value that reached it; and by the record of a halt for what has no safe value.

    A raw call says nothing of what it drives: it belongs to its session nevertheless.
    """
    for output in reading.terms.get("owned") or ():
        check = _made_safe if "safe" in output else _left
        yield from check(reading, output, list(_driven(reading, output)), judged)


def _driven(reading, output):
    """(transaction, value) of each that has brought an output to a value."""
    for one in reading.transactions:
        if one.bus == output["bus"] and one.outcome == "done":
            if output["name"] in (one.args.get("limited") or {}):
                yield one, one.args["limited"][output["name"]]
            elif output["name"] in (one.args.get("lines") or ()):
                yield one, output["safe"]


def _made_safe(reading, output, driven, judged):
    """After the end of a session what it has set last, and after a halt whatever was set, has its safe value."""
    closes = [(one.closes[0], one.id) for one in reading.sessions.values() if one.closes and not one.closes[0].late]
    halts = [(fault, None) for fault in reading.faults if fault.what["what"] == "halt"]
    for over, session in (*closes, *halts):
        due, life = over.at + PATIENCE, reading.life_of(over.number)
        if life is None or due > min(_until(life, reading), _reset(reading, over) if session is None else due):
            continue
        last = [found for found in driven if found[0].ended_at <= due and reading.life_of(found[0].begun) is life][-1:]
        if not last or _troubled(reading, output["bus"], due):
            continue
        ((one, value),) = last
        setter = None if one.step is None else one.step.task.session
        judged()
        if value != output["safe"] and session in (None, setter):
            why = f"session {session}, which drove it, has ended" if session else "the daemon is halted"
            expected = f"{output['name']} of {output['bus']} at {output['safe']} by {due:.3f} s: {why}"
            yield Broken((over.number, one.begun), expected, f"it is at {value}")


def _left(reading, output, driven, judged):
    for record in reading.log.records:
        if record.event != "halt":
            continue
        at, life = reading.log.reported(record), reading.life_of(record.number)
        before = [one for one, _ in driven if one.ended_at < at - SLACK and reading.life_of(one.begun) is life]
        if not before:
            continue
        judged()
        left = [name for entry in record.fields.get("left") or () for name in entry["names"]]
        if output["left"] not in left:
            expected = f"{output['left']} is left: it was driven, and has no safe value"
            yield Broken((before[0].begun, record.number), expected, f"a halt that leaves {left}")


def _until(life, reading):
    """When a life was told to end, or has ended."""
    return min(at for at in (life.told_at, life.ended_at, reading.ends_at) if at is not None)


def _reset(reading, halt):
    ends = [fault.at for fault in reading.faults if fault.what["what"] in ("reset", "unclear") and fault.at >= halt.at]
    return min(ends, default=float("inf"))


def _troubled(reading, bus, until):
    """Whether anything was wrong with a bus until then, or a transaction on it took long."""
    here = [one for one in reading.transactions if one.bus == bus and one.begun_at <= until]
    faults = [one for one in reading.faults if one.what.get("bus") == bus and one.at <= until]
    wrong = any(one.what["what"] not in ("clear", "return") for one in faults)
    return wrong or any(one.ended_at - one.begun_at > 0.5 for one in here)


@invariant("a session gets each frame of its CAN bus once and in order, or is told how many it lost")
def frames(reading, judged):
    """Judged at the driver: a bus keeps the newest frames, as many as its queue has; each session reads from its place.

    A session that began at a place gets all later frames that it wants, but for its own. What was dropped before its
    read is counted; a read that is not complete, and has to be, takes nothing.
    """
    takes = [one for one in reading.transactions if one.what == "take" and one.outcome == "done" and one.value]
    happened = sorted([*((one.ended, one) for one in takes), *((one.number, one) for one in reading.frames)],
                      key=lambda one: one[0])  # fmt: skip
    fed, cursors = {}, {}
    for number, one in happened:
        life = reading.life_of(number)
        if not hasattr(one, "begun"):
            place = life, one.what["bus"]
            if one.kind == "can.frame":
                fed.setdefault(place, []).append(one)
            else:
                cursors.setdefault((*place, one.what["reader"]), one.what["place"])
            continue
        judged()
        place, reader = (life, one.bus), one.args["reader"]
        came, at = fed.get(place, []), cursors[(*place, reader)]
        dropped = max(0, len(came) - reading.buses[one.bus]["queue"])
        due = [frame.what["place"] for frame in came[max(at, dropped) :] if _wants(one.args, frame.what)]
        due = due[: one.args["count"]]
        complete = len(due) == one.args["count"]
        expected = {"places": due, "lost": max(0, dropped - at), "complete": complete}
        if not complete and not one.args["partial"]:
            expected |= {"places": [], "lost": 0}
        else:
            cursors[(*place, reader)] = due[-1] if complete else len(came)
        if one.value != expected:
            yield Broken((one.begun, one.ended), f"{reader} reads {expected} from {at} on", f"{one.value}")


def _wants(args, frame):
    if frame["error"]:
        return args["errors"]
    return frame["key"] in args["keys"] and frame["sender"] != args["reader"]
