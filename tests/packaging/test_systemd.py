"""The package's service under a systemd that is PID 1: it starts, serves, is watched, restarted, confined and removed.

`make test-debian` runs these, for each release of Debian that hearth is for. The machine is a fresh root that is booted
(support.booted); the package is built and installed in it before. Each test goes on where the last one ended.
"""

from __future__ import annotations

import errno
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from support.booted import TOOLS as BOOT_TOOLS, booted
from support.debian import SUITES
from support.freshroot import TOOLS, lack
from support.hearthd import Peer, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.booted import Booted
    from support.debian import Debian

_LACK = lack("test-debian", "HEARTH_DEBIAN", TOOLS | BOOT_TOOLS)
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(_LACK is not None, reason=_LACK or ""),
    pytest.mark.parametrize("machine", SUITES, indirect=True),
]

SOCKET = "/run/hearth/hearth.sock"
AUDIT = "/var/lib/hearth/audit.log"
LED = 17


@pytest.fixture(scope="module")
def machine(request: pytest.FixtureRequest, debian: Callable[..., Debian]) -> Iterator[Booted]:
    """A machine that was switched on for the first time since the package was installed."""
    root = debian(request.param)
    root.run(f"dpkg -i {root.package()}")
    root.run("useradd stranger; useradd --groups hearth-users pilot")
    with booted(root.path) as machine:
        yield machine


@pytest.fixture
def peer(machine: Booted) -> Iterator[Peer]:
    """A client on the service's socket that is a member of hearth-users."""
    mine = os.getgroups()
    os.setgroups([int(machine.run("getent group hearth-users").split(":")[2])])
    try:
        peer = Peer(machine.path(SOCKET))
    finally:
        os.setgroups(mine)
    yield peer
    peer.close()


def main_pid(machine: Booted) -> int:
    """The pid of hearthd, as the machine counts."""
    return int(machine.show("hearth", "MainPID"))


def ready(machine: Booted) -> bool:
    return machine.show("hearth", "ActiveState") == "active"


def journal(machine: Booted, selection: str = "-u hearth.service") -> list[dict[str, Any]]:
    """What the journal has of this boot, each entry with its fields."""
    lines = machine.run(f"journalctl --boot --no-pager --output=json {selection}").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def events(machine: Booted) -> list[dict[str, Any]]:
    """The records of the audit log."""
    return [json.loads(line) for line in machine.path(AUDIT).read_text().splitlines()]


def as_user(user: str, command: str) -> str:
    return f"setpriv --reuid {user} --regid {user} --init-groups {command}"


def run_task(machine: Booted) -> None:
    """Run a task as an operator does. Raises AssertionError unless it succeeds."""
    machine.run(as_user("pilot", f"hearth run gpio.set line={LED} value=1"))


@pytest.fixture
def drop_in(machine: Booted) -> Iterator[Callable[[str], None]]:
    """Add lines to the unit's [Service] until the end of the test."""
    place = "/run/systemd/system/hearth.service.d/test.conf"

    def add(lines: str) -> None:
        machine.run(f"mkdir -p $(dirname {place}) && printf '[Service]\\n{lines}\\n' >{place}")
        machine.run("systemctl daemon-reload && systemctl restart hearth")

    yield add
    machine.run(f"rm -f {place} && systemctl daemon-reload && systemctl reset-failed hearth; systemctl restart hearth")


# --- start and readiness --------------------------------------------------------------------------------------------


def test_the_service_starts_with_the_machine_and_systemd_knows_when_it_is_ready(machine: Booted) -> None:
    eventually(lambda: ready(machine), "the service")
    assert machine.show("hearth", "Type") == "notify"
    assert machine.show("hearth", "StatusText") == f"ready on {SOCKET}"
    assert machine.show("hearth", "NRestarts") == "0"
    assert machine.show("hearth.socket", "ActiveState") == "active"


def test_both_names_of_the_service_name_the_unit(machine: Booted) -> None:
    for name in ("hearth", "hearthd"):
        said = machine.run(f"systemctl status --no-pager {name}")
        assert "hearth.service - hearth" in said
        assert "active (running)" in said


def test_it_serves_tasks_on_every_kind_of_simulated_device_within_the_units_confinement(
    machine: Booted, peer: Peer
) -> None:
    session = peer.open()
    for tool, args in {
        "gpio.set": {"line": "LED", "value": 1},
        "gpio.watch": {"line": 4, "edge": "rising", "count": 1, "timeout_ms": 50},
        "i2c.read": {"bus": 1, "addr": "0x48", "reg": 0, "len": 2},
        "uart.exchange": {"port": "uart0", "data": "KklETj8K", "until": "\n", "timeout_ms": 5000},
        "hw.sensor.read": {"sensor": "temperature"},
        "sys.memory": {},
        "sys.network": {},
        "proc.list": {},
    }.items():
        step = peer.run(session, tool, **args)
        assert step["status"] == "SUCCESS", (tool, step)


def test_all_of_hearthds_own_confinement_is_in_force_within_the_units(machine: Booted, peer: Peer) -> None:
    assert peer.health()["sandbox"]["state"] == "in force"


def test_systemd_applies_all_of_the_units_confinement(machine: Booted) -> None:
    of_systemd = journal(machine, "UNIT=hearth.service _PID=1")
    assert of_systemd, "systemd wrote of the unit"
    complaints = [entry["MESSAGE"] for entry in of_systemd if int(entry["PRIORITY"]) < 5]
    assert not complaints
    status = machine.path(f"/proc/{main_pid(machine)}/status").read_text()
    assert re.search(r"^CapBnd:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)


# A command in the confinement of the shipped unit: its [Service] section, with another program and without its socket.
CAGED = """\
{ echo '[Service]'; sed -n '/^\\[Service\\]/,/^\\[Install\\]/p' /usr/lib/systemd/system/hearth.service |
    grep -vE '^(\\[|#|Type=|Exec|Restart|WatchdogSec=)'
  echo Type=oneshot; echo 'ExecStart=@command@'
  echo StandardOutput=truncate:/run/caged.said; echo StandardError=inherit; } >/run/systemd/system/caged.service
systemctl daemon-reload
code=0; systemctl start caged || code=$?
cat /run/caged.said
exit $code
"""

PROBE = """
import socket
def tried(work):
    try:
        work()
    except OSError as error:
        return error.errno
    return 0
print(
    tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    tried(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9))),
    tried(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))),
    tried(lambda: open("/dev/net/tun").close()),
    tried(lambda: open("/etc/probe", "w").close()),
    tried(lambda: open("/var/lib/hearth/probe", "w").close()),
)
"""


def test_the_demo_works_within_the_units_confinement(machine: Booted) -> None:
    said = machine.run(CAGED.replace("@command@", "/usr/bin/hearth demo --fast"), limit=120)
    assert re.search(r"\d+ claims, each checked", said), said


def test_what_the_unit_denies_is_denied(machine: Booted) -> None:
    machine.path("/usr/local/lib/probe.py").write_text(PROBE)
    # Without the unit nothing is in the way: every address is on the loopback, and the device is everyone's.
    machine.run("ip route add default dev lo && chmod 666 /dev/net/tun")
    said = machine.run("python3 -I /usr/local/lib/probe.py && rm /var/lib/hearth/probe /etc/probe")
    assert said.split() == ["0"] * 6
    said = machine.run(CAGED.replace("@command@", "/usr/bin/python3 -I /usr/local/lib/probe.py"))
    found = [int(word) for word in said.splitlines()[-1].split()]
    assert found == [errno.EAFNOSUPPORT, errno.EPERM, 0, errno.EPERM, errno.EROFS, 0]


# --- watched and restarted ------------------------------------------------------------------------------------------


def test_it_keeps_the_watchdog_and_is_restarted_when_it_hangs(machine: Booted, drop_in: Callable[[str], None]) -> None:
    drop_in("WatchdogSec=3")
    first = main_pid(machine)
    signs = set[str]()

    def lived_on() -> bool:
        signs.add(machine.show("hearth", "WatchdogTimestampMonotonic"))
        return len(signs) > 6  # three in one period

    eventually(lived_on, "two periods of the watchdog")
    assert main_pid(machine) == first, "who gives signs of life is left alone"
    restarts = int(machine.show("hearth", "NRestarts"))
    machine.run(f"kill -STOP {first}")
    eventually(lambda: int(machine.show("hearth", "NRestarts")) > restarts and ready(machine), "the restart")
    assert main_pid(machine) != first
    assert [entry for entry in journal(machine, "UNIT=hearth.service _PID=1") if "Watchdog timeout" in entry["MESSAGE"]]
    run_task(machine)


def test_it_survives_a_restart_and_its_records_go_on(machine: Booted, peer: Peer) -> None:
    first = main_pid(machine)
    session = peer.open()
    assert peer.run(session, "gpio.set", line=LED, value=1)["status"] == "SUCCESS"
    before = len(events(machine))
    machine.run("systemctl restart hearth")
    assert main_pid(machine) != first
    later = [record["event"] for record in events(machine)[before:]]
    assert [event for event in later if event.startswith("daemon.")] == ["daemon.stop", "daemon.start"]
    assert "OK   records" in machine.run(f"hearth audit verify {AUDIT}")


def test_after_kill_9_systemd_restarts_it_and_outputs_are_safe(machine: Booted, peer: Peer) -> None:
    session = peer.open()
    assert peer.run(session, "gpio.set", line=LED, value=1)["status"] == "SUCCESS"
    before, first = len(events(machine)), main_pid(machine)
    machine.run(f"kill -KILL {first}")
    eventually(lambda: main_pid(machine) not in (0, first) and ready(machine), "the restart")
    later = events(machine)[before:]
    assert [record["event"] for record in later][:3] == ["daemon.recover", "outputs.safe", "daemon.start"]
    assert [(done["line"], done["safe"]) for done in later[1]["safe"]] == [(LED, 0)]
    assert "OK   records" in machine.run(f"hearth audit verify {AUDIT}")
    run_task(machine)


def test_a_configuration_that_cannot_be_used_is_not_tried_again_and_the_journal_has_the_error(machine: Booted) -> None:
    machine.run("cp /etc/hearth/hearth.toml /root/kept.toml && echo 'boards = 1' >>/etc/hearth/hearth.toml")
    machine.run("systemctl restart hearth", code=1)
    try:
        assert machine.show("hearth", "ExecMainStatus") == "2"
        assert machine.show("hearth", "ActiveState") == "failed"
        assert machine.show("hearth", "NRestarts") == "0"
        errors = journal(machine, "-u hearth.service _COMM=hearthd -p err")
        assert any("boards" in entry["MESSAGE"] for entry in errors)
    finally:
        machine.run("mv /root/kept.toml /etc/hearth/hearth.toml; systemctl reset-failed hearth; systemctl start hearth")


# --- the journal ----------------------------------------------------------------------------------------------------


def test_the_log_is_in_the_journal_with_priorities(machine: Booted) -> None:
    found = journal(machine, "-u hearth.service _COMM=hearthd")
    said = {entry["MESSAGE"]: int(entry["PRIORITY"]) for entry in found}
    assert said[f"hearthd: ready on {SOCKET}"] == 6
    assert not [message for message in said if message.startswith("<")], "the journal has taken the prefix off"
    levels = {level: {n for text, n in said.items() if f": {level}: " in text} for level in ("INFO", "WARNING")}
    assert levels == {"INFO": {6}, "WARNING": {4}}


# --- the socket -----------------------------------------------------------------------------------------------------


def test_a_client_that_connects_starts_the_service(machine: Booted) -> None:
    machine.run("systemctl stop hearth.service")
    assert machine.show("hearth", "ActiveState") == "inactive"
    run_task(machine)
    assert machine.show("hearth", "ActiveState") == "active"


def test_only_members_of_the_sockets_group_may_connect(machine: Booted) -> None:
    run_task(machine)
    said = machine.run(as_user("stranger", "hearth run gpio.get line=4"), code=3)
    assert f"no permission to connect to {SOCKET}" in said


# --- upgrade and removal --------------------------------------------------------------------------------------------


def test_an_upgrade_restarts_the_service_and_a_removal_ends_it(machine: Booted) -> None:
    first = main_pid(machine)
    machine.run("dpkg -i /src/dist/*.deb")
    assert ready(machine)
    assert main_pid(machine) != first
    name = machine.run("dpkg-deb --field /src/dist/*.deb Package").strip()
    machine.run(f"dpkg --purge {name}")
    assert machine.show("hearth", "LoadState") == "not-found"
    assert not machine.path(SOCKET).exists()
    assert not machine.run("find / -xdev -name 'hearth*.service*' -not -path '/src/*'")
