"""The desk of the tests about HCP's pages: bounded waits, open policies, and a capability that waits for its test."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from support.hcp import capability, hcp_world, reading, step

from hearth.policy.rules import JobRules, Match, PolicyEntry


def policy(**rules):
    """Everybody may, within these."""
    return (PolicyEntry(name="bench", match=Match(any=True), max_risk=3, hcp=JobRules(**rules)),)


@asynccontextmanager
async def house(place, *capabilities, **more):
    """A world with a desk, in which every wait is bounded."""
    with trio.fail_after(20):
        async with hcp_world(place, *capabilities, **more) as world:
            yield world


def gated(**more):
    """A capability that waits in its first step until the gate "g" opens, then does another."""
    return capability(function=reading(step("read", gate="g"), step("read", tag="x")), **more)


def events(caller, session_id, event_type):
    """The data of a session's events of one type, so far."""
    payloads = [one["payload"] for one in caller.message_log(session_id) if one["type"] == "event"]
    return [one["data"] for one in payloads if one["event_type"] == event_type]


def sequences(message_log):
    """The numbers of its events."""
    return [one["payload"]["sequence"] for one in message_log if one["type"] == "event"]
