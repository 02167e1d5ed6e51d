"""A real RabbitMQ of a test's own: on loopback, unprivileged, with ports, data, cookie, node name and epmd of its own.

It shares nothing with a broker that the distribution's package may have started (ports 5672, 4369), nor with those of
other test workers. It reads Erlang expressions from its standard input: an answer takes milliseconds, where rabbitmqctl
takes seconds, and the broker ends with the test process, however that ends.
"""

from __future__ import annotations

import itertools
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
from support.pki import Bench
from support.ports import free_ports

from hearth.amqp.address import BrokerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
MISSING = "needs RabbitMQ: apt-get install --no-install-recommends rabbitmq-server"
PASSWORD = "wire-in-the-clear"
"""The password of the users that `add_user` makes."""
STARTS_WITHIN = 120
"""Seconds: 6 on an idle machine, 23 on a loaded one."""


class RabbitMq:
    """A broker in a folder. `start` it; `port` speaks AMQP, `tls_port` AMQP over TLS for clients of `pki`.

    The user "hearth" may do everything in the virtual host "/". All methods block. `conf` are further lines of
    rabbitmq.conf, `erl_args` further arguments of Erlang. It joins the cluster of `beside`, which runs when it starts.
    """

    def __init__(self, folder: Path, *, conf: str = "", erl_args: str = "", beside: RabbitMq | None = None) -> None:
        self.folder = folder
        self._erl_args = erl_args
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pki").mkdir(exist_ok=True)
        self.pki = Bench(folder / "pki")
        self.port, self.tls_port, self._epmd_port, self._dist_port = free_ports(4)
        self.node = f"hearth-{secrets.token_hex(4)}@localhost"
        self._numbers = itertools.count(1)
        self._server: subprocess.Popen[str] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.output: list[str] = []
        self._beside = beside
        if beside is not None:
            self._epmd_port = beside._epmd_port
            conf += (
                "cluster_formation.peer_discovery_backend = classic_config\n"
                f"cluster_formation.classic_config.nodes.1 = {beside.node}\n"
            )
        self._write_files(conf)

    def _write_files(self, conf: str) -> None:
        cookie = self.folder / ".erlang.cookie"
        other = self._beside
        cookie.write_text(secrets.token_hex(16) if other is None else (other.folder / cookie.name).read_text())
        cookie.chmod(0o400)
        (self.folder / "enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n")
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o600)
        (self.folder / "rabbitmq.conf").write_text(
            f"""\
listeners.tcp.1 = 127.0.0.1:{self.port}
listeners.ssl.1 = 127.0.0.1:{self.tls_port}
ssl_options.cacertfile = {self.pki.ca}
ssl_options.certfile = {self.pki.server_cert}
ssl_options.keyfile = {self.pki.server_key}
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
default_user = hearth
default_pass = {PASSWORD}
loopback_users = none
disk_free_limit.absolute = 1MB
raft.wal_max_size_bytes = 16777216
{conf}"""
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the broker, and of rabbitmqctl for it."""
        folder = str(self.folder)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        return kept | {
            "HOME": folder,
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/rabbitmq-env.conf",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{folder}/generated",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_ALLOW_INPUT": "1",
            # Without busy waiting, or two cores have nothing left for the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none +S 2:2 "
                + self._erl_args
            ),
        }

    # --- start and end ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the broker and wait until it serves; the data of an earlier start are still there."""
        if self._epmd is None and self._beside is None:
            # It ends with its standard input, and so with the test process.
            script = 'epmd -port "$1" -address 127.0.0.1 & read -r _; kill $!'
            arguments = ["sh", "-c", script, "epmd", str(self._epmd_port)]
            self._epmd = subprocess.Popen(arguments, stdin=subprocess.PIPE, env=self.environment)
        self.output = []
        self._lines = queue.SimpleQueue()
        self._server = subprocess.Popen(
            [SERVER],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(self._server, self._lines), daemon=True).start()
        self._expect(re.compile(r"completed with \d+ plugins"), STARTS_WITHIN)

    def _read(self, server: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        assert server.stdout is not None
        with server.stdout:
            for line in server.stdout:
                self.output.append(line)
                lines.put(line)
        lines.put(None)

    def _expect(self, pattern: re.Pattern[str], timeout: float) -> str:
        while True:
            try:
                line = self._lines.get(timeout=timeout)
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"no {pattern.pattern!r} from RabbitMQ:\n{''.join(self.output)}")
            if pattern.search(line):
                return line

    def kill(self) -> None:
        """End the broker as a power cut would: SIGKILL for all of its processes."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server = None

    def stop(self) -> None:
        """End the broker properly: its clients get CONNECTION_FORCED."""
        assert self._server is not None
        assert self._server.stdin is not None
        self._server.stdin.write("rabbit:stop(), init:stop().\n")
        self._server.stdin.close()
        try:
            self._server.wait(60)
        finally:
            self.kill_if_running()

    def kill_if_running(self) -> None:
        """End the broker if it runs, in any state."""
        if self._server is not None:
            if self._server.poll() is None:
                self.kill()
            self._server = None

    def wipe(self) -> None:
        """Delete all data of a broker that does not run: users, queues and messages."""
        assert self._server is None
        shutil.rmtree(self.folder / "mnesia")

    def close(self) -> None:
        """End the broker and its epmd."""
        self.kill_if_running()
        if self._epmd is not None:
            assert self._epmd.stdin is not None
            self._epmd.stdin.close()
            self._epmd.wait()
            self._epmd = None

    # --- administration -----------------------------------------------------------------------------------------------

    def evaluate(self, expression: str, timeout: float = 60) -> str:
        """Return what an Erlang expression gives in the broker, as ~p writes it, on one line."""
        assert self._server is not None
        assert self._server.stdin is not None
        mark = f"=hearth-{next(self._numbers)}="
        self._server.stdin.write(f'io:format("~n{mark}~0p~n", [catch begin {expression} end]).\n')
        self._server.stdin.flush()
        line = self._expect(re.compile(re.escape(mark)), timeout)
        result = line.partition(mark)[2].strip()
        assert not result.startswith("{'EXIT'"), result
        return result

    def add_user(self, name: str, *, configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        """Add a user with PASSWORD, or with a certificate whose CN is its name, and its permissions in "/"."""
        self.evaluate(
            f'rabbit_auth_backend_internal:put_user(#{{name => <<"{name}">>, tags => <<>>,'
            f' password => <<"{PASSWORD}">>}}, <<"tests">>),'
            f' rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"/">>, <<"{configure}">>, <<"{write}">>,'
            f' <<"{read}">>, <<"tests">>)'
        )

    def add_vhost(self, name: str, user: str = "hearth") -> None:
        """Add a virtual host in which a user may do everything."""
        self.evaluate(
            f'rabbit_vhost:add(<<"{name}">>, <<"tests">>), rabbit_auth_backend_internal:set_permissions('
            f'<<"{user}">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"tests">>)'
        )

    def set_alarm(self, resource: str = "memory") -> None:
        """Set the alarm of `memory` or `disk`: the broker blocks connections that publish."""
        self.evaluate(f"rabbit_alarm:set_alarm({{{{resource_limit, {resource}, node()}}, []}})")

    def clear_alarm(self, resource: str = "memory") -> None:
        """Clear an alarm: publishing goes on."""
        self.evaluate(f"rabbit_alarm:clear_alarm({{resource_limit, {resource}, node()}})")

    def flush(self) -> None:
        """Write down which queues there are.

        RabbitMQ 3.10.8 does that some time after a queue is declared: one that is killed before loses the queue's
        messages, confirmed ones too, and afterwards neither confirms nor refuses what is published to a quorum queue.
        """
        self.evaluate("mnesia:sync_log()")
        self.evaluate("[ok = dets:sync(Table) || Table <- dets:all()]")

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Close all connections of clients, as an operator would: CONNECTION_FORCED."""
        self.evaluate(f'[rabbit_networking:close_connection(P, "{reason}") || P <- rabbit_networking:connections()]')

    def connections(self) -> int:
        """Return the number of connections."""
        return int(self.evaluate("length(rabbit_networking:connections())"))

    def control(self, *args: str) -> str:
        """Return what `rabbitmqctl ARGS` prints; takes seconds."""
        done = subprocess.run(
            ["/usr/lib/rabbitmq/bin/rabbitmqctl", *args],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    # --- addresses ----------------------------------------------------------------------------------------------------

    def address(self, user: str = "hearth", *, port: int | None = None, vhost: str = "/") -> BrokerAddress:
        """Return the address for a user with PASSWORD, over TCP; `port` is that of a proxy."""
        return BrokerAddress(
            "127.0.0.1", port or self.port, False, vhost, user=user, password_file=self.folder / "password"
        )

    def tls_address(self, user: str, *, port: int | None = None, vhost: str = "/", **files: Path) -> BrokerAddress:
        """Return the address for a user with a new certificate, over TLS; `files` replace `ca`, `cert` and `key`."""
        pair = self.pki.client(user)
        paths = {"ca": self.pki.ca, "cert": pair.cert, "key": pair.key} | files
        return BrokerAddress("localhost", port or self.tls_port, True, vhost, **paths)


def installed() -> bool:
    """Return True if this machine has RabbitMQ."""
    return os.access(SERVER, os.X_OK)


def _started(folder: Path) -> Iterator[RabbitMq]:
    if not installed():
        pytest.skip(MISSING)
    broker = RabbitMq(folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """The broker that the tests of one worker share: a test uses names of its own, and leaves it running."""
    yield from _started(tmp_path_factory.mktemp("rabbitmq"))


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[RabbitMq]:
    """A broker of the test's own, which it may kill, stop or wipe."""
    yield from _started(tmp_path / "broker")
