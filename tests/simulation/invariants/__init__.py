"""What must hold of every simulated world, whatever happens in it: one function for each promise."""

from __future__ import annotations

from . import audit, buses, ends, events, interlocks, limits, sessions, tasks, wire

ALL = (
    buses.overlap,
    buses.opened,
    buses.cut,
    buses.wedged,
    buses.leases,
    buses.turns,
    buses.bound,
    buses.cancelled,
    buses.untouched,
    audit.chain,
    audit.recorded,
    audit.disclosed,
    audit.order,
    audit.lives,
    audit.acknowledged,
    audit.told,
    audit.ended,
    tasks.terminal,
    tasks.settled,
    tasks.idempotent,
    tasks.rollback,
    tasks.deadline,
    events.promised,
    events.complete,
    events.numbered,
    wire.answered,
    wire.batches,
    limits.rates,
    limits.capacity,
    limits.risk,
    limits.sessions,
    limits.connections,
    sessions.principal,
    sessions.closed,
    sessions.silence,
    sessions.safe,
    sessions.owned,
    interlocks.guarded,
    ends.ends,
    ends.leaks,
)
"""Every invariant, in the order in which they are told."""
