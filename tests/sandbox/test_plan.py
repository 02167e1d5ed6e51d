"""What a daemon may reach, worked out of its configuration: tables, and nothing is put in force."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from hearth.config.amqp import AmqpConfig
from hearth.config.listen import Endpoint, HttpConfig, TlsConfig, WebSocketConfig
from hearth.config.model import Config, FilesConfig, SandboxConfig, ToolsConfig
from hearth.drivers.boards import load_profile
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.sandbox.plan import EXTRA, PathGrant, Places, make_plan
from hearth.errors import ConfigError

SIM = load_profile("sim")
PLACES = Places(audit=Path("/var/lib/hearth/audit.log"), key=Path("/etc/hearth/key"), socket=Path("/run/hearth/h.sock"))
NOBODY = 65534


def plan_of(config=Config(), *, profile=SIM, places=PLACES, tools=(), environ=None, uid=1000):  # noqa: B008
    return make_plan(config, profile, places, tools=tools, environ=environ or {}, uid=uid)


def paths(plan, access):
    return {str(grant.path) for grant in plan.grants if grant.access == access}


def test_a_daemon_with_the_defaults_writes_to_its_own_directories_and_nowhere_else():
    plan = plan_of()
    assert paths(plan, "write") == {"/var/lib/hearth", "/etc/hearth"}
    assert paths(plan, "unlink") == {"/run/hearth"}
    assert paths(plan, "execute") == set()
    assert paths(plan_of(places=evolve(PLACES, socket=None, key=Path("/var/lib/hearth/key"))), "write") == {
        "/var/lib/hearth"
    }


def test_each_thing_that_is_allowed_has_a_reason():
    config = Config(sandbox=SandboxConfig(network=True, hotplug=True), tools=ToolsConfig(signal=(Path("/bin/true"),)))
    plan = plan_of(config, tools={"proc.signal", "sys.network"})
    assert all(grant.why for grant in plan.grants)
    said = plan.to_json()
    assert all(entry["why"] for entry in said["paths"])
    assert said["sockets"]["inet"] == said["network"] == "[sandbox] network"
    assert said["signals"] == "proc.signal, for what [tools] signal lists"
    assert said["hotplug"] == "[sandbox] hotplug"
    assert "user" not in said


def test_what_is_not_asked_for_is_not_allowed():
    plan = plan_of()
    assert (plan.network, plan.signals, plan.looks) == (None, None, None)
    assert dict(plan.families) == ({} if plan.connect is None else {"unix": plan.connect})
    assert set(plan.to_json()) <= {"paths", "sockets", "connect"}


@pytest.mark.parametrize(
    ("config", "tools", "families"),
    [
        (Config(), {"sys.network"}, {"inet-dgram", "netlink:route"}),
        (Config(websocket=WebSocketConfig(listen=Endpoint("127.0.0.1", 1))), (), {"netlink:sock_diag"}),
        (Config(http=HttpConfig(listen=Endpoint("127.0.0.1", 1))), (), {"netlink:sock_diag"}),
        (Config(sandbox=SandboxConfig(network=True)), (), {"unix", "inet", "inet-dgram", "netlink:route"}),
    ],
)
def test_sockets_are_of_the_families_that_something_needs(config, tools, families):
    plan = plan_of(config, tools=tools)
    assert set(plan.families) == families | (set() if plan.connect is None else {"unix"})


def test_a_modbus_line_over_tcp_lets_connect_to_its_port_and_one_over_a_serial_port_opens_that():
    register = {"name": "speed", "reg": 0}
    lines = [
        {"line": "a", "driver": "tcp", "host": "192.0.2.7", "tcp_port": 1502, "device": [device("A", register)]},
        {"line": "b", "driver": "rtu", "path": "/dev/null", "device": [device("B", register)]},
    ]
    plan = plan_of(profile=parse_profile({"name": "b", "description": "a board", "modbus": lines}, "a test"))
    assert plan.network is None
    assert plan.tcp == {1502: "modbus line a is at 192.0.2.7"}
    assert plan.to_json()["tcp"] == {"1502": "modbus line a is at 192.0.2.7"}
    assert plan.families["inet-stream"] == "modbus line a is at 192.0.2.7"
    assert "/dev/null" in paths(plan, "device")
    assert "modbus line b" in {grant.why for grant in plan.grants}


def device(name, register):
    return {"unit": 1, "name": name, "registers": [register]}


def test_what_the_operator_lists_may_be_read_and_written(tmp_path):
    config = Config(
        files=FilesConfig(read=(Path("/usr/share/doc"),), write=(tmp_path,)),
        sandbox=SandboxConfig(read=(Path("/opt/a"),), write=(Path("/opt/b"),)),
    )
    plan = plan_of(config)
    assert {str(tmp_path), "/opt/b"} <= paths(plan, "write")
    assert {"/usr/share/doc", "/opt/a"} <= paths(plan, "read")
    assert PathGrant(Path("/opt/a"), "read", "[sandbox] read", asked=True) in plan.grants


def test_certificates_are_read_again_where_they_are_replaced(tmp_path):
    (tmp_path / "live").mkdir()
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive/cert2.pem").touch()
    (tmp_path / "live/cert.pem").symlink_to("../archive/cert2.pem")
    tls = TlsConfig(
        listen=Endpoint("127.0.0.1", 1),
        cert=tmp_path / "live/cert.pem", key=Path("/key.pem"), client_ca=tmp_path / "live/ca.pem",
    )  # fmt: skip
    found = paths(plan_of(Config(tls=tls)), "read")
    assert {str(tmp_path / "live"), str(tmp_path / "archive")} <= found
    assert "/key.pem" in found, "beneath the directory that it lies in would be everything"
    assert "/" not in found


def test_the_environment_may_add_what_is_written_and_the_plan_says_so():
    plan = plan_of(environ={EXTRA: "/cov:relative::/more"})
    assert plan.added == (Path("/cov"), Path("/more"))
    assert {"/cov", "/more"} <= paths(plan, "write")


def test_root_that_stays_root_keeps_few_powers_and_reads_no_more_of_etc_than_it_needs():
    plan = plan_of(uid=0)
    assert plan.capabilities == ("CHOWN", "DAC_OVERRIDE", "FOWNER")
    assert "/etc" not in paths(plan, "read")
    assert "/etc/passwd" in paths(plan, "read")
    assert "set [sandbox] user" in plan.notes[0]
    assert plan_of(uid=0, tools={"proc.exec"}).capabilities == plan.capabilities, "programs are the launcher's"
    assert plan_of(uid=0, tools={"proc.signal"}).capabilities[-1] == "KILL"


def test_an_ordinary_user_keeps_no_powers():
    plan = plan_of()
    assert (plan.capabilities, plan.notes) == ((), ())
    assert "/etc" in paths(plan, "read")


def test_root_becomes_the_user_that_is_asked_for():
    plan = plan_of(Config(sandbox=SandboxConfig(user="nobody")), uid=0)
    assert plan.user is not None
    assert (plan.user.uid, plan.capabilities, plan.notes) == (NOBODY, (), ())
    assert plan.to_json()["user"] == "nobody"


@pytest.mark.parametrize(("user", "uid"), [("nobody", NOBODY), ("root", 0)])
def test_a_process_of_that_user_becomes_no_other_user(user, uid):
    assert plan_of(Config(sandbox=SandboxConfig(user=user)), uid=uid).user is None


def test_a_user_that_cannot_be_become_is_refused_with_the_cure():
    with pytest.raises(ConfigError, match=r"^\[sandbox\] user: only root can become 'nobody'; start hearthd as root"):
        plan_of(Config(sandbox=SandboxConfig(user="nobody")), uid=1000)
    with pytest.raises(ConfigError, match=r"there is no user 'nosuch'; create it with `useradd --system nosuch`"):
        plan_of(Config(sandbox=SandboxConfig(user="nosuch")), uid=0)


def test_the_files_that_a_new_user_is_to_own_are_those_of_the_log_and_its_neighbours(tmp_path):
    log = tmp_path / "audit.log"
    for name in ("audit.log", "audit.log.000000000001", "audit.log.outputs", "other.log"):
        (tmp_path / name).touch()
    own = {path.name for path in Places(audit=log, key=tmp_path / "k").own}
    assert own == {"audit.log", "audit.log.000000000001", "audit.log.outputs", "agent-card.json", "k", "k.pub"}
    nowhere = tmp_path / "nowhere"
    assert len(Places(audit=nowhere / "a.log", key=nowhere / "k").own) == 3
    assert os.listdir(tmp_path) and not nowhere.exists(), "a plan makes nothing"  # noqa: PT018


def test_a_broker_may_be_dialled_at_its_port_and_its_files_read() -> None:
    files = {name: Path(f"/etc/hearth/fleet/{name}") for name in ("ca", "cert", "key")}
    plan = plan_of(Config(amqp=AmqpConfig(url="amqps://broker.example:5673", id="d", **files)))
    assert plan.tcp == {5673: "[amqp] url"}
    # Its name is looked up, over UDP.
    assert plan.families["inet"] == "[amqp] url: the broker's name is looked up"
    read = {(grant.path, grant.why) for grant in plan.grants}
    assert (Path("/etc/hearth/fleet"), "[amqp] key") in read
    by_address = plan_of(Config(amqp=AmqpConfig(url="amqp://d@127.0.0.1?password_file=/etc/hearth/p", id="d")))
    assert by_address.tcp == {5672: "[amqp] url"}
    assert "inet" not in by_address.families
    assert "inet-stream" in by_address.families
