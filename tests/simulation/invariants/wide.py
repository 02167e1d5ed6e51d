"""What must hold on the further buses of a world: no value beyond a limit, and no frame of a CAN bus lost untold."""

from __future__ import annotations

from .base import Broken, invariant


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
