"""A daemon that dials a broker, with a capability whose effects can be counted, and callers of both kinds."""

from __future__ import annotations

import os
import re
import weakref
from typing import TYPE_CHECKING, Any

from docs.player import ROOT, blocks
from support.foreign_harness import ForeignHarness
from support.hearthd import Hearthd
from support.rabbitmq import PASSWORD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.rabbitmq import RabbitMq

    from hearth.amqp.address import BrokerAddress
    from hearth.drivers.gpio.sim import SimGpio

MARKS = '''\
"""Effects that can be counted: each is a pulse of a simulated line, and a file that must not be there before."""

from typing import Any

from hearth import Job, capability


@capability("marks", version="1.0.0", tools=["gpio.pulse", "file.write"], risk_ceiling="R4", max_duration="PT1M")
async def marks(job: Job, *, place: str, names: list[str]) -> dict[str, Any]:
    """Make each mark once."""
    for name in names:
        await job.run("gpio.pulse", line=22, value=1, duration_ms=1)
        await job.run("file.write", path=f"{place}/{name}", data="b25l", mode="create")
    return {"marks": len(names)}


@capability("looks", version="1.0.0", tools=["gpio.get"], risk_ceiling="R1", max_duration="PT1H")
async def looks(job: Job, *, times: int = 1, interval_s: float = 0.0) -> dict[str, Any]:
    """Read a line some times."""
    async for _ in job.every(interval_s, times):
        await job.run("gpio.get", line=27)
    return {"times": times}
'''
"""Two capabilities: one that moves something (R4), and one that reads only (R1)."""
PULSES = "pulses"


def count_pulses(chip: SimGpio, config: Path) -> None:
    """Write a byte beside the configuration each time that the simulated line of "marks" goes high.

    The file is written by a system call for each, so it outlives a kill -9.
    """
    file = os.open(config.with_name(PULSES), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    chip.attach(22, lambda level: level and os.write(file, b"1"))
    weakref.finalize(chip, os.close, file)


def documented() -> dict[str, str]:
    """The settings for many devices of docs/howto/run-a-fleet.md, as arguments of `RabbitMq`."""
    page = (ROOT / "docs/howto/run-a-fleet.md").read_text("utf-8")
    conf, environment = (
        next(block.text for block in blocks(page) if block.text.startswith(f"# /etc/rabbitmq/{name}\n"))
        for name in ("conf.d/50-many-devices.conf", "rabbitmq-env.conf")
    )
    found = re.search(r'^SERVER_ADDITIONAL_ERL_ARGS="(.*)"$', environment, re.MULTILINE)
    assert found is not None
    return {"conf": conf, "erl_args": found[1]}


_LEADERLESS = (
    "rabbit_amqqueue:list(), amqqueue:get_type(Q) =:= rabbit_quorum_queue,"
    " element(1, catch ra:members(rabbit_amqqueue:pid_of(Q), 200)) =/= ok"
)


def restart(broker: RabbitMq) -> None:
    """Start a broker that was killed, and do what its operator must do.

    RabbitMQ 3.10 keeps the terms of its quorum queues in a file (dets) that loses its last record with kill -9: the
    queue that was declared last then has its messages, and waits for an election that an operator must call.
    """
    broker.start()
    broker.evaluate(f"[ra:trigger_election(rabbit_amqqueue:pid_of(Q)) || Q <- {_LEADERLESS}]")
    broker.evaluate(
        "whereis(rabbit_stream_coordinator) =/= undefined orelse (catch rabbit_stream_coordinator:recover())"
    )


class Device(Hearthd):
    """A hearthd with an uplink, as the user of its id."""

    def __init__(
        self,
        broker: RabbitMq,
        directory: Path,
        device: str,
        *,
        callers: Sequence[str],
        port: int | None = None,
        more: str = "",
        amqp: str = "",
        tls: BrokerAddress | None = None,
    ) -> None:
        self.id = device
        self.marks = directory / f"{device}.marks"
        self.marks.mkdir()
        code = directory / "marks.py"
        code.write_text(MARKS)
        code.chmod(0o644)
        policies = "".join(
            f'[[policy]]\nname = "{name}"\nmatch = {{ amqp_user = "{name}" }}\nmax_risk = 3\nrights = ["reset_halt"]\n'
            for name in callers
        )
        if tls is None:
            for name in (device, *callers):
                broker.add_user(name)
            password = broker.folder / "password"
            url = f"amqp://{device}@127.0.0.1:{port or broker.port}?password_file={password}"
        else:
            url = f"amqps://{tls.host}:{tls.port}"
            amqp += f'ca = "{tls.ca}"\ncert = "{tls.cert}"\nkey = "{tls.key}"\n'
        own = directory / device
        own.mkdir()
        super().__init__(
            own,
            f'[amqp]\nurl = "{url}"\nid = "{device}"\n{amqp}\n'
            f'[files]\nwrite = ["{self.marks}"]\n[hcp]\ncapabilities = ["{code}"]\nshipped = []\n{more}\n'
            f'[[policy]]\nname = "own"\nmatch = {{ uid = 0 }}\nmax_risk = 3\nrights = ["reset_halt"]\n{policies}',
            audit='durability = "fsync"',
        )
        self.broker = broker

    @classmethod
    def enrolled(
        cls, broker: RabbitMq, directory: Path, device: str, address: BrokerAddress, *, callers: Sequence[str]
    ) -> Device:
        """A device that logs in by its certificate, as a user that is there."""
        return cls(broker, directory, device, callers=callers, tls=address)

    def inputs(self, *names: str) -> dict[str, Any]:
        """The inputs of "marks" that make these marks."""
        return {"place": str(self.marks), "names": list(names)}

    def made(self) -> list[str]:
        """The marks that are there."""
        return sorted(path.name for path in self.marks.iterdir())

    def pulses(self) -> int:
        """How often the line of "marks" has gone high, over all lives of a device that has counted."""
        return (self.config.parent / PULSES).stat().st_size

    def connect(self) -> Device:
        """Start it, and wait until it is connected to its broker."""
        self.start()
        self.until(lambda: self.uplink()["connected"])
        return self

    def uplink(self) -> dict[str, Any]:
        """What health says of the uplink."""
        peer = self.peer()
        health = peer.health()
        peer.close()
        self.peers.remove(peer)
        found: dict[str, Any] = health["amqp"]
        return found

    def harness(self, caller: str) -> ForeignHarness:
        """A foreign caller, as this user."""
        return ForeignHarness(self.broker.port, caller, PASSWORD)
