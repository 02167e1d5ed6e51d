"""A robot controller with hearth inside it: a control loop that reads a sensor and switches an output.

Shows what embedding gives: the loop can be cancelled at any moment without tearing a bus transaction in half, and
outputs go to their safe state however the program ends.

    python examples/control_loop.py [ROUNDS]
"""

from __future__ import annotations

import sys

import trio

import hearth
from hearth import step

PERIOD = 0.05
"""Seconds between two rounds."""
TOO_WARM = 24.0
"""Degrees Celsius above which the fan runs."""


async def main(rounds: int) -> None:
    """Run the loop for some rounds."""
    async with hearth.open_runtime(board="sim") as runtime:
        async with runtime.open_session(client_name="thermostat", heartbeat_ms=2_000) as session:
            next_round = trio.current_time()
            for number in range(rounds):
                # One task per round: the reading first, and no switching if it failed.
                reading = await session.run("hw.sensor.read", sensor="temperature")
                fan = int(reading["value"] > TOO_WARM)
                task = await session.submit(
                    f"round {number}", [step("gpio.set", line="LED", value=fan)], max_duration_ms=PERIOD * 1000
                )
                (await task.wait()).raise_for_status()
                print(f"round {number}: {reading['value']:.2f} {reading['unit']}, fan {'on' if fan else 'off'}")
                next_round += PERIOD
                await trio.sleep_until(next_round)
        # The session has ended, so its outputs are in their safe state; the last word is the board's.
        async with runtime.open_session(client_name="inspector") as inspector:
            print("the fan's line is now", (await inspector.run("gpio.get", line="LED"))["value"])


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]) if len(sys.argv) > 1 else 20)
