"""A robot's controller for the demo, a process of its own: it drives a line and keeps its session alive until killed.

    python -m hearth.cli.demo.controller SOCKET LINE

It prints `driving` once the line is high. Without a kill it ends after a minute.
"""

from __future__ import annotations

import sys

import trio

from hearth.client.connection import connect

HEARTBEAT_MS = 5_000
LIFETIME = 60.0


async def control(socket: str, line: int) -> None:
    """Drive the line, and send requests often enough for the session's heartbeat."""
    async with connect(socket) as client:
        opening = client.open_session(client_name="controller", on_disconnect="close", heartbeat_ms=HEARTBEAT_MS)
        async with opening as session:
            await session.run("gpio.set", line=line, value=1)
            print("driving", flush=True)
            with trio.move_on_after(LIFETIME):
                while True:
                    await trio.sleep(HEARTBEAT_MS / 1000 / 10)
                    await session.run("gpio.get", line=line)


def main() -> None:
    """Run the controller."""
    trio.run(control, sys.argv[1], int(sys.argv[2]))


if __name__ == "__main__":
    main()
