"""A hearthd that was taken over: for each rule of its confinement, somebody inside who tries to break it.

The attacks are in tests/support/intruder.py: a vendor's tool, which runs in the daemon's own process. Each must fail
with the errno that the rule promises, in the thread that serves and in a new one, and each succeeds in a daemon that
was started with --no-sandbox, as far as this machine has the thing at all.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.confinement import as_root, landlock_abi, needs_filters, needs_landlock
from support.dialing import web_socket
from support.hearthd import Hearthd
from support.intruder import ATTACKS, install, outcome

from hearth.drivers.sandbox.plan import names_from_daemons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.hearthd import Peer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

CONFIG = """
[tools]
enable = ["com.example"]
[limits]
max_sessions_per_principal = 1000
"""


class Inside:
    """Somebody in a daemon."""

    def __init__(self, daemon: Hearthd, place: dict[str, Any]) -> None:
        self.daemon, self.place = daemon, place
        self.peer: Peer = daemon.peer()
        self.session = self.peer.open()

    def tries(self, attack: str) -> dict[str, str]:
        args = {**self.place, "attack": attack, "own": str(self.daemon.directory)}
        return dict(self.ran("com.example.intrude", args))

    def look(self, expression: str) -> Any:
        return self.ran("com.example.look", {"expression": expression})["value"]

    def ran(self, tool: str, args: dict[str, Any]) -> Any:
        step = self.peer.wait(self.session, self.peer.submit(self.session, (tool, args)))["steps"][0]
        assert step["status"] == "SUCCESS", step
        return step["result"]


@pytest.fixture(scope="module")
def place() -> Iterator[dict[str, Any]]:
    """What is outside: a process, files, sockets."""
    with contextlib.ExitStack() as stack:
        outside = stack.enter_context(tempfile.TemporaryDirectory(prefix="hearth-outside-"))
        Path(outside, "secret").write_text("what is nobody's business here")
        Path(outside, "empty").mkdir()
        Path(outside, "ours").mkdir()
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(victim.kill)
        found: dict[str, Any] = {
            "outside": outside,
            "secret": f"{outside}/secret",
            "empty": f"{outside}/empty",
            "ours": f"{outside}/ours",
            "victim": victim.pid,
            "disk": next((f"/dev/{name}" for name in sorted(os.listdir("/dev")) if _is_disk(f"/dev/{name}")), None),
        }
        for name, kind, address in (
            ("named", socket.SOCK_STREAM, f"{outside}/socket"),
            ("abstract", socket.SOCK_STREAM, f"\0hearth-test-{os.getpid()}"),
            ("datagram", socket.SOCK_DGRAM, f"{outside}/datagram"),
            ("abstract_datagram", socket.SOCK_DGRAM, f"\0hearth-test-{os.getpid()}-datagram"),
        ):
            made = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen()
            found[name] = address.lstrip("\0")
        over_ip = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        over_ip.bind(("127.0.0.1", 0))
        found["port"] = over_ip.getsockname()[1]
        yield found


def _is_disk(path: str) -> bool:
    return stat.S_ISBLK(os.stat(path).st_mode)


@contextlib.contextmanager
def daemon(
    place: dict[str, Any],
    *arguments: str,
    config: str = "",
    enable: str = '"com.example"',
    env: dict[str, str] | None = None,
) -> Iterator[Inside]:
    with tempfile.TemporaryDirectory(prefix="hearth-inside-") as directory:
        install(Path(directory, "site"))
        whole = CONFIG.replace('"com.example"', enable) + config
        path = [f"{directory}/site", *filter(None, [os.environ.get("PYTHONPATH")])]
        running = Hearthd(Path(directory), whole, {"PYTHONPATH": ":".join(path), **(env or {})})
        try:
            yield Inside(running.start(*arguments), place)
        finally:
            running.end()


@pytest.fixture(scope="module")
def confined(place: dict[str, Any], unmeasured: None) -> Iterator[Inside]:
    with daemon(place) as inside:
        yield inside


@pytest.fixture(scope="module")
def free(place: dict[str, Any], unmeasured: None) -> Iterator[Inside]:
    with daemon(place, "--no-sandbox") as inside:
        yield inside


ONCE = "turning_a_clients_connection_into_one_of_ones_own"
"""Takes a daemon with a client over TCP, and is the end of that."""
REPEATABLE = [attack for attack in ATTACKS if attack != ONCE]

OVER_UNIX = ("connect", "send_to", "bind_a_socket", "datagram", "descriptor", "many_messages")
"""What is allowed where the C library asks another daemon for users' names."""


@needs_filters
@pytest.mark.parametrize("attack", REPEATABLE)
def test_a_confined_daemon_cannot(confined: Inside, attack: str) -> None:
    rule = ATTACKS[attack]
    if landlock_abi() < rule.needs:
        pytest.skip(f"this kernel's Landlock is {landlock_abi()}, and denying this takes {rule.needs}")
    if attack.startswith(OVER_UNIX) and (source := names_from_daemons()) is not None:
        pytest.skip(f"connect is allowed here: {source}")
    _skip_where_there_is_none(attack, confined)
    assert confined.tries(attack) == {"here": rule.expected, "thread": rule.expected}


@as_root
@pytest.mark.parametrize("attack", REPEATABLE)
def test_without_the_sandbox_it_can(free: Inside, attack: str) -> None:
    _skip_where_there_is_none(attack, free)
    outcomes = set(free.tries(attack).values())
    if outcomes == {ATTACKS[attack].expected} == {outcome(attack, {**free.place, "own": free.place["ours"]})}:
        pytest.skip("this machine denies it to root itself")
    assert outcomes <= {"done", *ATTACKS[attack].also}


def _skip_where_there_is_none(attack: str, inside: Inside) -> None:
    device = {
        "a_disk": inside.place["disk"],
        "memory_of_the_machine": "/dev/mem",
        "messages_of_the_kernel": "/dev/kmsg",
    }
    if attack in device and not (device[attack] and os.path.exists(device[attack])):
        pytest.skip(f"this machine has no {attack.replace('_', ' ')} in /dev")


# --- what is opened by the configuration, and how far -----------------------------------------------------------------


@needs_filters
@pytest.mark.parametrize("arguments", [(), pytest.param(("--no-sandbox",), marks=as_root)])
def test_a_tcp_listener_serves_and_a_confined_daemon_cannot_connect_with_it(
    place: dict[str, Any], arguments: tuple[str, ...]
) -> None:
    token = "t" * 32
    policy = f'[[policy]]\nname = "robot"\nmatch = {{ token_sha256 = "{sha256(token.encode()).hexdigest()}" }}\n'
    listen = '[websocket]\nlisten = "127.0.0.1:0"\n'
    everybody = '[[policy]]\nname = "here"\nmatch = { any = true }\n'
    with (
        daemon(place, *arguments, config=listen + policy + everybody) as inside,
        socket.create_server(("127.0.0.1", 0)) as elsewhere,
    ):
        over = inside.daemon.peer(web_socket(inside.daemon.listening["ws"], token=token))
        assert over.run(over.open(), "gpio.get", line=4)["status"] == "SUCCESS"
        assert inside.tries("socket_tcp")["here"] == ("done" if arguments else "EPERM")
        inside.place = {**place, "port": elsewhere.getsockname()[1]}
        assert inside.tries(ONCE)["here"] == ("done" if arguments else ATTACKS[ONCE].expected)
        if arguments:
            elsewhere.settimeout(60)
            elsewhere.accept()[0].close()


@pytest.mark.proof
@needs_landlock(1)
@needs_filters
def test_with_proc_exec_the_listed_program_runs_and_no_other(place: dict[str, Any]) -> None:
    opened = (
        '[tools.exec.hello]\nargv = ["/bin/echo", "hello"]\n'
        '[tools.exec.script]\nargv = ["/bin/sh", "-c", "/bin/true"]\n'
    )
    policy = '[[policy]]\nname = "here"\nmatch = { any = true }\nmax_risk = 3\nrate = { "proc.exec" = "100/s" }\n'
    with daemon(place, config=policy + opened, enable='"com.example", "proc.exec"') as inside:
        peer = inside.daemon.peer()
        session = peer.open(max_risk_level=3)
        step = peer.run(session, "proc.exec", template="hello")
        assert step["status"] == "SUCCESS", step
        assert step["result"]["stdout"]["text"] == "hello\n"
        script = peer.run(session, "proc.exec", template="script")
        assert script["status"] == "FAILED", "what a program runs in its turn has to be listed too"
        assert script["error_data"]["exit_code"] == 126
        for attack in (
            "execve",
            "execve_as_python_does",
            "execve_of_a_program_of_ones_own_making",
            "ptrace_of_a_process_outside",
            "socket_tcp",
            "socket_packet",
            "read_another_users_file",
            "mount",
        ):
            assert inside.tries(attack)["here"] == ATTACKS[attack].expected


@needs_filters
def test_with_network_ip_sockets_can_be_made_and_no_raw_ones(place: dict[str, Any]) -> None:
    with daemon(place, config="[sandbox]\nnetwork = true\n") as inside:
        assert inside.tries("socket_tcp")["here"] == "done"
        for attack in ("socket_raw", "socket_packet", "socket_vsock", "socket_kernel_events"):
            assert inside.tries(attack)["here"] == ATTACKS[attack].expected


# --- how it is told ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "config", "reason"),
    [(("--no-sandbox",), "", "--no-sandbox"), ((), "[sandbox]\nenable = false\n", "[sandbox] enable = false")],
)
def test_that_there_is_no_sandbox_is_told_in_the_log_the_audit_log_and_health(
    place: dict[str, Any], arguments: tuple[str, ...], config: str, reason: str
) -> None:
    with daemon(place, *arguments, config=config) as inside:
        assert f"WARNING: sandbox: off: {reason}\n" in inside.daemon.said
        (started,) = inside.daemon.records(event="daemon.start")
        assert started["sandbox"] == {"state": "off", "reason": reason}
        assert inside.peer.health()["sandbox"] == started["sandbox"]


@needs_filters
@needs_landlock(6)
def test_what_is_in_force_is_told_in_the_log_the_audit_log_and_health(confined: Inside) -> None:
    assert "INFO: sandbox: in force: " in confined.daemon.said
    (started,) = confined.daemon.records(event="daemon.start")
    told = started["sandbox"]
    assert told["state"] == "in force"
    assert {"no_new_privs", "files", "devices", "network", "scopes", "syscalls"} <= set(told["in_force"])
    assert confined.peer.health()["sandbox"] == told


@pytest.mark.proof
def test_what_the_environment_adds_may_be_written_and_is_told(place: dict[str, Any]) -> None:
    with daemon(place, env={"HEARTH_SANDBOX_WRITE": place["outside"]}) as inside:
        assert inside.tries("write_another_users_file") == {"here": "done", "thread": "done"}
        assert f"the environment added to what may be written: {place['outside']}" in inside.daemon.said
        assert inside.peer.health()["sandbox"]["added"] == [place["outside"]]
