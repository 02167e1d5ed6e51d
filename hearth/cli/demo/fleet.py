"""`make demo-fleet`: a RabbitMQ, twenty simulated devices and a caller; the broker is killed on stage, nothing is lost.

Run as a module: `python -m hearth.cli.demo.fleet`. The broker is the one that the machine has installed, started for
this demo alone: on loopback, unprivileged, with its own directory, ports and cookie. The devices are runtimes as
hearthd has them, ten in a process (`python -m hearth.cli.demo.fleet CONFIG…` is such a process). Users and permissions
at the broker are those of `hearth fleet enroll`, with passwords in place of certificates.

Every claim is checked, as in `hearth demo`. Without RabbitMQ it says how to install it, and exits with 2.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import trio

from hearth._util.exceptions import unwrapped
from hearth._util.python import python_module
from hearth.cli.common import interruptible
from hearth.cli.demo.stage import DemoFailed, make_stage
from hearth.hcp import require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from hearth.cli.demo.stage import DemoFolder, Stage
    from hearth.fleet.client import FleetClient
    from hearth.fleet.enrolment import Part
    from hearth.fleet.order_store import FleetOrder

SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
MISSING: Final = "needs RabbitMQ on this machine: apt-get install --no-install-recommends rabbitmq-server"
DEVICES, PROCESSES, ROUNDS = 20, 2, 2
CALLER: Final = "operator"
STARTS_WITHIN, SCENE_S = 120.0, 120.0
"""Seconds; a broker starts in 6 on an idle machine."""
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


# --- the broker -------------------------------------------------------------------------------------------------------


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class DemoBroker:
    """A RabbitMQ in a directory. It reads Erlang expressions from its standard input, and ends when that closes."""

    def __init__(self, folder: Path, members: Mapping[str, Part]) -> None:
        """Write its files; it has the members that there are in the fleet."""
        from hearth.fleet.enrolment import definitions

        self.folder = folder
        folder.mkdir()
        self.port, self._epmd_port, self._dist_port = _free_ports(3)
        self.password = folder / "password"
        self._output = folder / "output"
        self._server: trio.Process | None = None
        self._epmd: trio.Process | None = None
        word, salt = secrets.token_hex(16), secrets.token_bytes(4)
        for name, text in ((".erlang.cookie", secrets.token_hex(16)), ("password", word)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        made = definitions(members, "/")
        hashed = base64.b64encode(salt + hashlib.sha256(salt + word.encode()).digest()).decode()
        for user in made["users"]:
            user["password_hash"] = hashed
        (folder / "definitions.json").write_text(json.dumps(made))
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nloopback_users = none\ndisk_free_limit.absolute = 1MB\n"
            f"raft.wal_max_size_bytes = 16777216\nload_definitions = {folder}/definitions.json\n"
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        folder = str(self.folder)
        own = {"HOME": folder, "LC_ALL": "C.UTF-8", "ERL_EPMD_PORT": str(self._epmd_port)}
        own |= {"ERL_EPMD_ADDRESS": "127.0.0.1"}
        rabbit = {
            "NODENAME": f"hearth-{self.port}@localhost", "CONF_ENV_FILE": f"{folder}/rabbitmq-env.conf",
            "CONFIG_FILE": f"{folder}/rabbitmq.conf", "ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "GENERATED_CONFIG_DIR": f"{folder}/generated", "ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "MNESIA_BASE": f"{folder}/mnesia", "LOG_BASE": f"{folder}/log", "PID_FILE": f"{folder}/pid",
            "DIST_PORT": str(self._dist_port), "ALLOW_INPUT": "1",
            "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +S 2:2",
        }  # fmt: skip
        return kept | own | {f"RABBITMQ_{name}": value for name, value in rabbit.items()}

    async def start(self) -> int:
        """Start it, and wait until it serves; return its process id. Raises DemoFailed."""
        if self._epmd is None:
            command = [shutil.which("epmd") or "/usr/bin/epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = await trio.lowlevel.open_process(command)
        with self._output.open("wb") as output:
            self._server = await trio.lowlevel.open_process(
                [SERVER], env=self._environment(), cwd=self.folder, stdin=subprocess.PIPE, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        await self._said(r"completed with \d+ plugins")
        return self._server.pid

    async def _said(self, pattern: str) -> None:
        with trio.move_on_after(STARTS_WITHIN):
            while not re.search(pattern, self._output.read_text("utf-8", "replace")):
                if self._server is not None and self._server.poll() is not None:
                    break
                await trio.sleep(0.05)
            else:
                return
        raise DemoFailed(f"RabbitMQ said no {pattern!r}: {self._output.read_text('utf-8', 'replace')[-2000:]}")

    async def _evaluate(self, expression: str) -> None:
        assert self._server is not None
        assert self._server.stdin is not None
        mark = f"=hearth-{secrets.token_hex(4)}="
        asked = f'catch begin {expression} end, io:format("~n~s~n", ["{mark}"]).\n'
        await self._server.stdin.send_all(asked.encode())
        await self._said(re.escape(f"\n{mark}"))

    async def settle(self) -> None:
        """Have RabbitMQ 3.10 write down which quorum queues there are, as it does some time after they were made."""
        await self._evaluate("[ok = dets:sync(Table) || Table <- dets:all()]")

    async def elect(self) -> None:
        """Call the elections that RabbitMQ 3.10 forgets after a kill, as an operator would."""
        waits = "amqqueue:get_type(Q) =:= rabbit_quorum_queue, element(1, catch ra:members(P, 200)) =/= ok"
        queues = "Q <- rabbit_amqqueue:list(), P <- [amqqueue:get_pid(Q)]"
        await self._evaluate(f"[ra:trigger_election(P) || {queues}, {waits}]")
        stream = "rabbit_stream_coordinator"
        await self._evaluate(f"whereis({stream}) =/= undefined orelse (catch {stream}:recover())")

    async def kill(self) -> None:
        """SIGKILL for all of its processes, as a power cut."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        await self._server.wait()

    async def close(self) -> None:
        """End it and its epmd."""
        with trio.CancelScope(shield=True):
            if self._server is not None and self._server.poll() is None:
                await self.kill()
            if self._epmd is not None:
                self._epmd.kill()
                await self._epmd.wait()


# --- the devices ------------------------------------------------------------------------------------------------------


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
async def _process(devices: Sequence[DemoDevice], log: Path) -> AsyncIterator[int]:
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


# --- the scenes -------------------------------------------------------------------------------------------------------


async def play(stage: Stage, place: DemoFolder) -> None:
    """Run all scenes. Raises DemoFailed with the first claim that does not hold, and ConfigError without the extras."""
    require("make demo-fleet")
    from hearth.actors.bridges.amqp.connection import BrokerSettings
    from hearth.amqp.address import parse_broker
    from hearth.fleet.client import FleetClient
    from hearth.fleet.order_store import OrderStore

    names = [f"arm-{number:02d}" for number in range(1, DEVICES + 1)]
    members: dict[str, Part] = {**dict.fromkeys(names, "device"), CALLER: "caller"}
    broker = DemoBroker(place.folder / "broker", members)
    devices = [DemoDevice(place.folder, name, broker) for name in names]
    stage.scene("A broker, twenty devices, one caller")
    await stage.say(
        "The devices dial out to a RabbitMQ on this machine. Each has a user of its own, which may read its own orders "
        "and nothing else. The boards are simulated; all else is what hearthd runs."
    )
    async with unwrapped() as body, AsyncExitStack() as stack, body.watched():
        stack.push_async_callback(broker.close)
        stage.happened(f"RabbitMQ (pid {await broker.start()}) serves on 127.0.0.1:{broker.port}")
        for number in range(PROCESSES):
            pid = await stack.enter_async_context(_process(devices[number::PROCESSES], place.folder / "devices.log"))
            stage.happened(f"a process with {DEVICES // PROCESSES} devices (pid {pid}) is ready")
        order_store = OrderStore(place.folder / "order_store.sqlite3")
        stack.callback(order_store.close)
        address = parse_broker(f"amqp://{CALLER}@127.0.0.1:{broker.port}/?password_file={broker.password}")
        client = FleetClient(address, CALLER, order_store, settings=BrokerSettings(backoff_first=0.1, backoff_most=1.0))
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(client.run)
        with trio.fail_after(SCENE_S):
            while len(found := await client.devices()) < DEVICES:  # noqa: ASYNC110  the stream tells of no change
                await trio.sleep(0.1)
        stage.claim(
            "all of them have announced themselves", {one.device for one in found} == set(names), f"{DEVICES} devices"
        )
        with trio.fail_after(SCENE_S):
            await _a_killed_broker(stage, broker, client, devices)
        _judge(stage, client, await client.orders(), devices)


async def _a_killed_broker(
    stage: Stage, broker: DemoBroker, client: FleetClient, devices: Sequence[DemoDevice]
) -> None:
    """Order jobs, kill the broker while they run, start it again, and wait for the end of all orders."""
    from hearth.fleet.order_store import ENDED
    from hearth.hcp.messages import TaskSubmit

    stage.scene("The broker is killed under load")
    await stage.say(f"Each device gets {ROUNDS} orders to move something. In the middle of it: kill -9 of the broker.")
    await broker.settle()
    for number in range(ROUNDS):
        for device in devices:
            stamps = [f"{number}-{name}" for name in ("first", "second", "third")]
            inputs = {"place": str(device.stamps), "names": stamps}
            submit = TaskSubmit(capability="stamp", caller_id=CALLER, intent="see that none is lost", inputs=inputs)
            await client.submit([device.name], submit, within_s=600)
    while not any(one.sequence > 1 for one in await client.orders()):
        await client.changed()
    await broker.kill()
    orders = await client.orders()
    states = Counter("ended" if one.state in ENDED else one.state for one in orders)
    stage.happened(f"SIGKILL. At this moment: {', '.join(f'{count} {state}' for state, count in states.items())}")
    stage.claim("it died in the middle of the work", states["ended"] < len(orders), f"{len(orders)} orders")
    while client.link is None or client.link.connected:
        await client.changed()
    stage.happened(f"the caller: {client.link.error}")
    stage.happened(f"RabbitMQ (pid {await broker.start()}) is back")
    await broker.elect()
    while not all(one.state in ENDED for one in await client.orders()):
        await client.changed()


def _judge(stage: Stage, client: FleetClient, orders: Sequence[FleetOrder], devices: Sequence[DemoDevice]) -> None:
    """Check what the caller and the devices have."""
    stage.scene("Nothing is lost, nothing is done twice")
    done = [one for one in orders if one.state == "COMPLETED"]
    stage.claim("every order was done", len(done) == len(orders) == ROUNDS * len(devices), f"{len(done)} orders")
    events = [
        [one["payload"]["sequence"] for one in client.order_store.events(order.session_id or "")] for order in orders
    ]
    stage.claim(
        "the caller has every event of each, in order, each once",
        all(each == list(range(1, len(each) + 1)) for each in events),
        f"{sum(map(len, events))} events; {client.duplicates} that came twice were dropped",
    )
    expected = sorted(f"{number}-{name}" for number in range(ROUNDS) for name in ("first", "second", "third"))
    stage.claim(
        "every effect happened once: by the files, which none may make twice",
        all(one.made() == expected for one in devices),
        f"{len(devices) * len(expected)} files",
    )
    pulses = [one.pulses() for one in devices]
    stage.claim(
        "and by the pulses in the devices' own audit logs",
        pulses == [len(expected)] * len(devices),
        f"{sum(pulses)} pulses",
    )


def main(arguments: Sequence[str]) -> int:
    """Play the demo, or with configurations be a process of devices; return the exit code."""
    from hearth.cli.demo import perform

    if arguments and not arguments[0].startswith("--"):
        trio.run(serve_devices, arguments)
        return 0
    if not os.access(SERVER, os.X_OK):
        click.echo(f"make demo-fleet {MISSING}")
        return 2
    stage = make_stage(as_json="--json" in arguments, terminal=sys.stdout.isatty(), fast="--fast" in arguments)
    return interruptible(
        lambda: perform(stage, play, as_json="--json" in arguments, then="fleet --help", no_sandbox=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
