"""`hearth demo --web`: the dashboard over a real daemon on the simulated board, with something to see.

A controller keeps the level of the tank and reads its sensors; an agent prepares plans that wait for a person. Both are
ordinary clients. The person signs in with a token that is made for this run; all of it ends with Ctrl-C.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import webbrowser
from typing import TYPE_CHECKING

import click
import trio

from hearth.api import step
from hearth.cli.common import DONE
from hearth.cli.demo.daemon import make_place, run_daemon
from hearth.client.connection import connect
from hearth.errors import RpcError

if TYPE_CHECKING:
    from hearth.cli.demo.daemon import DemoFolder
    from hearth.client.session import ClientSession

LOW, HIGH = 45.0, 60.0
"""Percent of full between which the controller keeps the tank."""
READ_S = 0.25
PUMP_S = 20.0
"""The longest time that the pump runs at once: its limit on this board is a minute."""
EXPIRES_S = 120
PERSON = '["observe", "approve", "reset_halt", "admin"]'


def config(place: DemoFolder, person: str, agent: str) -> str:
    """Return the daemon's hearth.toml: the page for the bearer of one token, plans from the bearer of another."""

    def entry(name: str, match: str, more: str) -> str:
        return f'[[policy]]\nname = "{name}"\nmatch = {{ {match} }}\n{more}\n'

    def digest(token: str) -> str:
        return f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"'

    return (
        f"[server]\nsocket = {json.dumps(str(place.socket))}\n"
        f"[audit]\npath = {json.dumps(str(place.log))}\n"
        '[http]\nlisten = "127.0.0.1:0"\nmcp = false\n'
        f"[limits]\nplan_ttl_s = {EXPIRES_S}\n"
        + entry("person", digest(person), f"max_risk = 3\nrights = {PERSON}")
        + entry("agent", digest(agent), "max_risk = 2\napproval = [{ from_risk = 2, other = true }]")
        + entry("controller", f"uid = {os.geteuid()}", "max_risk = 2")
    )


async def serve(*, no_sandbox: bool, opens: bool) -> int:
    """Run daemon, controller and agent until Ctrl-C; print the page's address, and open it if asked."""
    with make_place(no_sandbox=no_sandbox) as place:
        person, agent = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        (place.folder / "hearth.toml").write_text(config(place, person, agent), encoding="utf-8")
        async with run_daemon(place) as daemon, connect(place.socket) as client:
            async with client.open_session(client_name="hearth demo") as session:
                health = (await session.run("hw.board"))["health"]
            base = next(one for one in health["listeners"] if one.startswith("http://"))
            page = f"{base}/ui/#token={person}"
            click.echo(f"hearthd (pid {daemon.pid}) serves its dashboard over the simulated board:\n\n  {page}\n")
            click.echo("The token in it is good for this run alone. Ctrl-C ends all of it.")
            if opens:
                webbrowser.open(page)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_control, place)
                nursery.start_soon(_propose, f"ws{base.removeprefix('http')}/hacp", agent)
    return DONE


async def _control(place: DemoFolder) -> None:
    """Read the sensors, and keep the level of the tank with the pump, for as long as nothing is halted."""
    async with (
        connect(place.socket) as client,
        client.open_session(client_name="tank controller", heartbeat_ms=5000) as session,
    ):
        since: float | None = None
        while True:
            now = trio.current_time()
            try:
                level = (await session.run("hw.sensor.read", sensor="tank"))["value"]
                await session.run("hw.sensor.read", sensor="temperature")
                if since is None and level < LOW:
                    await session.gpio.set("PUMP", 1)
                    since = now
                elif since is not None and (level > HIGH or now > since + PUMP_S):
                    await session.gpio.set("PUMP", 0)
                    since = None
            except RpcError:
                # Halted, or an interlock is open: the pump is in its safe state.
                since = None
            await trio.sleep(READ_S)


async def _propose(address: str, token: str) -> None:
    """Prepare a plan, wait for a person's decision, execute it, and begin again."""
    async with connect(address, token=token) as client, client.open_session(client_name="planning agent") as session:
        while True:
            try:
                await _one_plan(session)
            except RpcError:
                # Rejected, expired, stale or halted: all of that is the person's to decide.
                await trio.sleep(2)


async def _one_plan(session: ClientSession) -> None:
    steps = [
        step("gpio.set", line="LED", value=1),
        step("gpio.pulse", line="LED", value=0, duration_ms=1500),
        step("gpio.set", line="LED", value=0),
    ]
    plan = await session.prepare("Show the inspector which cell is meant", steps)
    task = await session.execute(plan, wait_ms=60_000)
    await task.wait()
    await trio.sleep(3)
