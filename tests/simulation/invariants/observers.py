"""What must hold for those who observe the runtime: what they see is on record, and all of it."""

from __future__ import annotations

from .base import Broken, invariant

OF_A_RECORD = ("seq", "prev", "ts", "late")
"""What the log adds to what was posted."""


@invariant("only a principal with the right to observe is told of others")
def permitted(reading, judged):
    for client in reading.clients.values():
        asked = [request for request in client.requests if request.method.startswith("observe.")]
        if not asked:
            continue
        judged()
        if not (reading.policy.get(client.principal) or {}).get("observes") and client.observed:
            expected = f"no observe.event for {client.principal}, who has no right to observe"
            yield Broken((client.observed[0].number,), expected, client.observed[0].params.get("kind", ""))


@invariant("an observer misses no event without being told")
def numbered(reading, judged):
    for client in reading.clients.values():
        before = _wanted(client)
        for event in client.observed:
            judged()
            stream, seq = event.params["stream"], event.params["seq"]
            if event.params["kind"] != "snapshot" and (stream, seq) != before:
                expected = f"event {before[1]} of stream {before[0]}, or a snapshot"
                yield Broken((event.number,), expected, f"{event.params['kind']} {seq} of stream {stream}")
            before = stream, seq + 1


def _wanted(client):
    """The stream and the number that the client asked to go on with."""
    for request in client.requests:
        if request.method == "observe.subscribe" and request.result is not None:
            return request.params.get("stream"), request.params.get("from_seq")
    return None, None


@invariant("what an observer sees of the log is what the log has, in its order")
def told(reading, judged):
    if reading.log.lost or reading.log.failing:
        return
    for client in reading.clients.values():
        life = reading.life_of(client.opened)
        if life is None:
            continue
        written = [
            _posted(record.fields)
            for record in reading.log.records
            if life.begun < record.number <= life.ended and not record.event.startswith("audit.")
        ]
        for seen in _runs(client.observed):
            judged()
            yield from _within([_posted(record) for _, record in seen], written, seen, killed=life.killed)


def _runs(events):
    """The records between one snapshot and the next, each with the entry that told it."""
    run = []
    for event in events:
        if event.params["kind"] == "snapshot" and run:
            yield run
            run = []
        run += [(event.number, record) for record in event.params.get("records", ())]
    if run:
        yield run


def _posted(record):
    return {name: value for name, value in record.items() if name not in OF_A_RECORD}


def _within(seen, written, entries, *, killed):
    """The records that were seen are neighbours in the log. A killed daemon may not have written the last of them."""
    best = 0
    for first, record in enumerate(written):
        if record != seen[0]:
            continue
        rest = written[first : first + len(seen)]
        same = next((at for at, pair in enumerate(zip(seen, rest, strict=False)) if pair[0] != pair[1]), len(rest))
        if same == len(seen) or (killed and same == len(rest)):
            return
        best = max(best, same)
    if killed and not best:
        return  # the first of them may be the one that was not written any more
    number, record = entries[best]
    yield Broken((number,), f"the {best + 1}. record that was seen, where the log has it", str(record.get("event")))
