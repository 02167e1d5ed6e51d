"""What must come about when the faults are over, within a bound of virtual seconds: nothing waits for ever.

The other promises say that nothing bad happens; a daemon that did nothing at all would keep them.
"""

from __future__ import annotations

from .base import Broken, invariant
from .tasks import _heard as heard_of


def _calms(reading):
    """(its beginning, its end, what was told in it) of each calm that lasted to its bound."""
    begins, told = None, []
    for entry in reading.calms:
        if entry.what["what"] == "begins":
            begins, told = entry, []
        elif entry.what["what"] == "ends":
            yield begins, entry, told
        else:
            told.append(entry)


def _asked(reading, calm, method):
    """What the one who is asked in asked: no other has the right to end a halt."""
    begins, ends, _ = calm
    for client in reading.clients.values():
        rights = (reading.policy.get(client.principal) or {}).get("rights", ())
        if "reset_halt" in rights and begins.number < client.opened < ends.number:
            yield from (request for request in client.requests if request.method == method)


@invariant("once the faults are over, every task ends")
def tasks(reading, judged):
    heard = {task_id: min(said)[0] for task_id, said in heard_of(reading).items()}
    for begins, ends, told in _calms(reading):
        life, asked = reading.life_of(begins.number), told[0]
        for task in reading.tasks.values():
            if not life.begun < task.accepted < asked.number:
                continue
            judged()
            done = [record for record in task.finishes if record.number < asked.number]
            if not done and heard.get(task.id, ends.number) > asked.number and not reading.log.lost:
                expected = f"task {task.id} ends by {asked.at:.3f} s, {begins.what['quiet']:.0f} s after the last fault"
                yield Broken((task.accepted, asked.number), expected, "it has not ended")


@invariant("once the faults are over, every session can be closed")
def sessions(reading, judged):
    for begins, ends, _ in _calms(reading):
        life = reading.life_of(begins.number)
        for session in reading.sessions.values():
            if not session.opens or not life.begun < session.opens[0].number < begins.number:
                continue
            judged()
            if not any(record.number < ends.number for record in session.closes) and not reading.log.lost:
                expected = f"session {session.id} is closed by {ends.at:.3f} s: its principal asked for it"
                yield Broken((session.opens[0].number, ends.number), expected, "it is open")


@invariant("once the faults are over, whoever has the right ends any halt")
def halts(reading, judged):
    for calm in _calms(reading):
        asked = (*_asked(reading, calm, "halt.status"), *_asked(reading, calm, "halt.reset"))
        told = sorted((one.answer.number, one.result["halted"]) for one in asked if one.result)
        judged()
        if not told or told[-1][1]:
            refusals = [str(one.answer.error) for one in asked if one.answer and one.answer.error]
            expected = f"no halt at {calm[1].at:.3f} s: the keeper reset it"
            yield Broken((calm[0].number, calm[1].number), expected, (refusals or ["no answer"])[-1])


@invariant("once the faults are over, every bus answers")
def buses(reading, judged):
    for begins, ends, told in _calms(reading):
        judged(len(reading.buses))
        if told[-1].what["what"] != "health":
            yield Broken((begins.number, ends.number), "the board's health is told", "no answer to hw.board")
            continue
        for bus in told[-1].what["silent"]:
            state = told[-1].what["buses"].get(bus)
            expected = f"a step on {bus} succeeds: its device has no fault any more"
            yield Broken((begins.number, told[-1].number), expected, f"none does, and health says: {state}")
