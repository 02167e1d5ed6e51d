"""The demo's broker: RabbitMQ, as the machine has it installed, started in a directory of the demo's own."""

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
from typing import TYPE_CHECKING, Final

import trio

from hearth.cli.demo.stage import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hearth.fleet.enrolment import Part

SERVER: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
STARTS_WITHIN: Final = 120.0
"""Seconds; a broker starts in 6 on an idle machine."""


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
