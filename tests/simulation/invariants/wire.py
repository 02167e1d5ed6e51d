"""What must hold on a connection: each request is answered once, a notification never, a batch in one line."""

from __future__ import annotations

from .base import Broken, invariant

PATIENCE = 10.0
"""Seconds in which every request is answered: closing a session may take two, and nothing takes longer."""


@invariant("each request is answered exactly once, and a notification never")
def answered(reading, judged):
    for client in reading.clients.values():
        for number in client.unreadable:
            yield Broken((number,), "a response or a notification", "neither")
        judged(len(client.requests))
        for stray in client.strays:
            expected = f"answers to what client {client.number} asked, once each"
            yield Broken((stray.number,), expected, f"another answer with id {stray.id!r}")
        nulls = [answer for answer in client.answers if answer.id is None and not _sent_away(client, answer)]
        owed = len(client.bad) + sum(request.reused for request in client.requests) + client.torn
        if len(nulls) > owed:
            yield Broken(tuple(a.number for a in nulls), f"{owed} answers without an id", f"{len(nulls)}")
        yield from _missing(reading, client)


def _sent_away(client, answer):
    """The one line for a connection that is one too many, or whose peer no policy entry matches: no more is read."""
    data = (answer.error or {}).get("data") or {}
    why = "max_connections" in data or data.get("reason") == "no policy entry matches this principal"
    return answer is client.answers[0] and answer is client.answers[-1] and why


def _missing(reading, client):
    """A request without an answer although one that was sent much later has been answered."""
    times = [(request.at, request.answer.number) for request in client.requests if request.answer is not None]
    if not times or client.oversized:
        return
    sent, number = max(times)
    life = reading.life_of(client.opened)
    for request in client.requests:
        if request.answer is None and not request.reused and request.at + PATIENCE < sent:
            if life is not None and life.killed:
                continue
            expected = f"an answer to {request.method} with id {request.id!r} of client {client.number}"
            yield Broken((request.number, number), expected, "what it asked much later has been answered")


@invariant("a batch is answered in one line, and only a batch is")
def batches(reading, judged):
    for client in reading.clients.values():
        lines = {}
        for answer in client.answers:
            request = answer.request
            if request is None or request.reused:
                continue
            if (request.batch is None) != (answer.batch is None):
                asked = "alone" if request.batch is None else "in a batch"
                expected = f"an answer like the request: it was sent {asked}"
                yield Broken((request.number, answer.number), expected, "it was not answered so")
            if request.batch is not None:
                lines.setdefault(request.batch, set()).add(answer.batch)
        for sent, answers in lines.items():
            judged()
            owed = [request for request in client.batches[sent] if request.id is not None and not request.reused]
            if len(answers) > 1:
                yield Broken((sent, *sorted(answers)), "one line of answers to a batch", f"{len(answers)} lines")
            missing = [request for request in owed if request.answer is None]
            if missing:
                expected = f"all {len(owed)} answers of the batch in its line"
                yield Broken((sent, *sorted(answers)), expected, f"{len(missing)} are missing")
