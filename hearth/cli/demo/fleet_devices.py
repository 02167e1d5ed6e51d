"""The demo's devices: daemons without a process of their own, ten in a process."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from hearth._util.python import python_module
from hearth.cli.demo.stage import DemoFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hearth.cli.demo.fleet_broker import DemoBroker

CALLER: Final = "operator"
CAPABILITY: Final = '''\
"""An effect that can be counted: a pulse of a line, and a file that must not be there before."""

from typing import Any

from hearth import Job, capability


@capability(
    "stamp", version="1.0.0", tools=["gpio.pulse", "file.write"], risk_ceiling="R4", max_duration="PT1M",
    concurrent_limit=4,
)
async def stamp(job: Job, *, place: str, names: list[str]) -> dict[str, Any]:
    """Make each stamp once."""
    for name in names:
        await job.run("gpio.pulse", line=22, value=1, duration_ms=1)
        await job.run("file.write", path=f"{place}/{name}", data="b25l", mode="create")
    return {"stamps": len(names)}
'''


class DemoDevice:
    """The directory of one simulated device."""

    def __init__(self, folder: Path, name: str, broker: DemoBroker) -> None:
        self.name = name
        own = folder / name
        self.stamps = own / "stamps"
        self.stamps.mkdir(parents=True)
        code = own / "stamp.py"
        code.write_text(CAPABILITY)
        code.chmod(0o644)
        url = f"amqp://{name}@127.0.0.1:{broker.port}/?password_file={broker.password}"
        self.config = own / "hearth.toml"
        self.config.write_text(
            f'[server]\nsocket = "{own}/hearth.sock"\n[board]\nprofile = "sim"\n'
            f'[audit]\npath = "{own}/audit.log"\n[files]\nwrite = ["{self.stamps}"]\n'
            f'[hcp]\ncapabilities = ["{code}"]\nshipped = []\n[amqp]\nurl = "{url}"\nid = "{name}"\n'
            f'[[policy]]\nname = "fleet"\nmatch = {{ amqp_user = "{CALLER}" }}\nmax_risk = 3\n'
        )

    def made(self) -> list[str]:
        """The stamps that are there."""
        return sorted(path.name for path in self.stamps.iterdir())

    def pulses(self) -> int:
        """How many pulses of the line are on record."""
        lines = (self.config.parent / "audit.log").read_text().splitlines()
        records = map(json.loads, lines)
        return sum(one["event"] == "task.step.start" and one.get("tool") == "gpio.pulse" for one in records)


async def serve_devices(configs: Sequence[str]) -> None:
    """Serve devices of these configurations, as hearthd does without its listeners, until standard input closes."""
    async with trio.open_nursery() as nursery:
        for config in configs:
            await nursery.start(_serve_device, Path(config))
        print("ready", flush=True)
        await trio.lowlevel.FdStream(os.dup(0)).receive_some()
        nursery.cancel_scope.cancel()


async def _serve_device(config: Path, *, task_status: trio.TaskStatus[None]) -> None:
    from hearth.actors.bridges.amqp.connection import BrokerSettings
    from hearth.actors.bridges.amqp.extra import AmqpService
    from hearth.actors.bridges.amqp.uplink import Uplink
    from hearth.actors.build import build_parts
    from hearth.actors.embedded import job_sessions
    from hearth.actors.runtime import Runtime
    from hearth.config.model import load_config

    loaded = load_config(config)
    parts = build_parts(loaded, default_policy=(), config_file=config)
    parts.open_records()
    runtime = Runtime(parts)
    async with runtime.serve(), runtime.serve_extras(job_sessions(runtime)):
        quick = BrokerSettings(backoff_first=0.1, backoff_most=1.0)
        uplink = Uplink(loaded.amqp, runtime, await runtime.extras["hcp"].server.real(), settings=quick)
        runtime.extras["amqp"] = AmqpService(loaded, uplink=uplink)
        task_status.started()
        await uplink.run()


@asynccontextmanager
async def process(devices: Sequence[DemoDevice], log: Path) -> AsyncIterator[int]:
    """Run devices in a process, until the block ends; what it says to stderr goes to `log`."""
    command = python_module("hearth.cli.demo.fleet", *(str(one.config) for one in devices))
    with log.open("ab") as stderr:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await process.stdout.receive_some() != b"ready\n":
            said = await trio.Path(log).read_text()
            raise DemoFailed(f"a process of devices did not become ready; it said: {said[-2000:]}")
        yield process.pid
    finally:
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(20):
                await process.wait()
            if process.poll() is None:
                process.kill()
                await process.wait()
