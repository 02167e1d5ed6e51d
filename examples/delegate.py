"""Another agent's harness: looks for a capability, hands a whole job over, follows it, and checks what it gets.

Needs a daemon: `hearthd --board sim`, and HEARTH_SOCKET if it is not at the default place.

    python examples/delegate.py
"""

from __future__ import annotations

import sys

import trio

import hearth
from hearth.errors import JobRejected

WANTED = "bench-climate-survey"


async def main() -> int:
    """From what is offered to a result that has been checked."""
    async with hearth.connect() as client:
        offered = {one["capability"]["name"]: one["capability"] for one in await client.capabilities()}
        for name, one in offered.items():
            print(f"{name} {one['version']}, at most {one['safety']['risk_ceiling']}")
        if WANTED not in offered:
            print(f"no {WANTED} here")
            return 1

        # What cannot be done is said at once, with what to change.
        try:
            await client.delegate(WANTED, "Is the bench warm?", {"samples": 0})
        except JobRejected as error:
            print(f"rejected: {error.reason_code}: {error.message}\n          {error.suggestion}")

        job = await client.delegate(
            WANTED,
            "Is the bench warm enough to solder?",
            {"sensor": "temperature", "samples": 10, "interval_s": 0.05},
            capability_version="2.x",
            max_duration="PT1M",
            confidence_threshold=0.5,
            expected_output={"required_fields": ["mean", "confidence"]},
        )
        # With the session's id another program of this user, or this one after a crash, can attach_job() to it.
        print(f"session {job.session_id}")
        async for event in job.events():
            if event.event_type in ("state_changed", "warning", "session_closed"):
                print(f"{event.sequence:3} {event.event_type}: {event.data}")

        result = (await job.wait()).raise_for_state()
        print(f"{result.outputs['mean']} {result.outputs['unit']}, confidence {result.outputs['confidence']}")
        for artifact in result.artifacts:
            # Fetched whole, and held against the checksum that the job told.
            content = await client.artifact(artifact.uri)
            print(f"{artifact.name}: {len(content)} bytes, first line {content.decode().splitlines()[0]!r}")
    return 0


if __name__ == "__main__":
    sys.exit(trio.run(main))
