"""An agent-style client: finds out what there is, plans, checks the plan, runs it, watches, and asks what went wrong.

A language model would write the plan; everything around it is the same. Needs a daemon: `hearthd --board sim`, and
HEARTH_SOCKET if it is not at the default place.

    python examples/agent.py
"""

from __future__ import annotations

import trio

import hearth
from hearth import step


async def main() -> None:
    """One pass from discovery to the end."""
    async with hearth.connect() as client, client.open_session(client_name="example-agent") as session:
        # Discover: what may I do here, and how dangerous is it?
        tools = {tool["name"]: tool for tool in await session.tools()}
        harmless = [name for name, tool in tools.items() if tool["risk_level"] == 0]
        print(f"{len(tools)} tools, {len(harmless)} of them harmless; I may {', '.join(session.capabilities)}")

        # Plan, and have the plan checked before anything moves.
        plan = [
            step("i2c.scan", bus=1),
            step("hw.sensor.read", sensor="temperature"),
            step("gpio.set", line="LED", value=1),
            step("gpio.get", line=27),
        ]
        rehearsal = await session.submit("find the sensor, signal with the LED", plan, dry_run=True)
        for number, would in enumerate((await rehearsal.wait()).steps):
            print(f"  would run {number}: {would.tool} on {would.result and would.result['bus']}")

        # Run and watch. If a step fails, what was done is taken back.
        task = await session.submit("find the sensor, signal with the LED", plan, rollback_on_failure=True)
        async for event in task.events():
            print(f"  {event.seq}: {event.phase} {event.data.get('tool', '')} {event.data.get('result', '')}")
        result = (await task.wait()).raise_for_status()
        devices = result.steps[0].result
        print(f"found {devices}")

        # A plan that cannot work says which step, and why, before anything has moved.
        try:
            await session.submit("too bold", [step("gpio.get", line=17), step("file.delete", path="/etc/passwd")])
        except hearth.PermissionDenied as error:
            print(f"refused: {error}; {error.data}")

        # A device that is not there: the error names the effect on the hardware.
        failed = await (await session.submit("ask nobody", [step("i2c.read", bus=1, addr="0x23", len=1)])).wait()
        print(f"{failed.status}: {failed.steps[0].error}; effect: {(failed.steps[0].error_data or {})['effect']}")


if __name__ == "__main__":
    trio.run(main)
