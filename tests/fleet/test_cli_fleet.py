"""`hearth fleet …` as processes, before a real broker and a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import click
import pytest
import trio
from support.hearthd import eventually
from support.pki import Bench

from hearth.cli.fleet import broker as fleet_broker, orders
from hearth.errors import ConfigError

pytestmark = pytest.mark.slow
BOUND = 100


class Hearth:
    """The command, as one caller."""

    def __init__(self, broker, directory, caller):
        password = broker.folder / "password"
        self.env = {
            **os.environ,
            "HEARTH_BROKER": f"amqp://{caller}@127.0.0.1:{broker.port}?password_file={password}",
            "XDG_STATE_HOME": str(directory / "state"),
        }
        self.directory = directory

    def start(self, *words):
        return subprocess.Popen(
            [sys.executable, "-m", "hearth.cli.main", "fleet", *words],
            env=self.env,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words, code=0):
        process = self.start(*words)
        out, err = process.communicate(timeout=BOUND)
        assert code is None or process.returncode == code, (out, err)
        return out if not code else out + err


@pytest.fixture
def hearth(rabbitmq, tmp_path, name):
    return Hearth(rabbitmq, tmp_path, f"call-{name}")


@pytest.fixture
def job(tmp_path, device):
    file = tmp_path / "job.json"
    file.write_text(
        json.dumps({"capability": "marks", "caller_id": "me", "intent": "mark", "inputs": device.inputs("one")})
    )
    return str(file)


def listed(hearth, device):
    """Wait until the device is in the list; return its entry."""
    return eventually(lambda: {one["id"]: one for one in json.loads(hearth("list", "--json"))}.get(device.id))


def test_an_order_by_label_is_done_and_shown(hearth, device, job) -> None:
    assert listed(hearth, device)["labels"]["board"] == "sim"
    assert device.id in hearth("list", "board=s*")
    said = hearth("submit", job, device.id, "--within", "1m")
    assert f"{device.id}  COMPLETED" in said
    assert said.endswith("1 of 1 completed\n")
    assert device.made() == ["one"]
    (told,) = json.loads(hearth("watch", "--all", "--json"))
    assert (told["device"], told["state"]) == (device.id, "COMPLETED")
    assert "no device has a label 'bord'; did you mean board?" in hearth("submit", job, "bord=sim", code=1)


@pytest.mark.proof
def test_an_order_whose_command_was_killed_is_followed_to_its_end(hearth, device, tmp_path) -> None:
    file = tmp_path / "looks.json"
    inputs = {"times": 30, "interval_s": 0.1}
    file.write_text(json.dumps({"capability": "looks", "caller_id": "me", "intent": "look", "inputs": inputs}))
    process = hearth.start("submit", str(file), device.id, "--any-time")
    for line in process.stdout:
        if "RUNNING" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "1 of 1 completed" in hearth("watch")


def test_a_halt_is_shown_and_reset(hearth, device, job) -> None:
    listed(hearth, device)
    with hearth.start("halt", "--reason", "smoke", "--within", "4s") as process:
        out, err = process.communicate(timeout=BOUND)
    # Devices of other tests may be away: they get it when they connect.
    assert process.returncode in (0, 3), err
    assert "The broker has the halt for every device." in out
    assert device.id in out.partition("have the halt: ")[2].splitlines()[0]
    eventually(lambda: listed(hearth, device)["halted"])
    assert "REJECTED" in hearth("submit", job, device.id, code=1)
    assert device.made() == []
    hearth("halt", "--reset", "--within", "4s", code=None)
    eventually(lambda: not listed(hearth, device)["halted"])


def test_a_device_that_has_not_got_the_halt_in_time_is_named_and_the_command_ends_with_3(hearth, device) -> None:
    listed(hearth, device)
    device.signal(signal.SIGSTOP)
    said = hearth("halt", "--reason", "smoke", "--within", "4s", code=3)
    assert device.id in said.partition("not yet: ")[2].splitlines()[0]
    assert device.id not in said.partition("have the halt: ")[2].splitlines()[0]
    device.signal(signal.SIGCONT)
    eventually(lambda: listed(hearth, device)["halted"])
    hearth("halt", "--reset", "--within", "4s", code=None)
    eventually(lambda: not listed(hearth, device)["halted"])


@pytest.mark.proof
def test_a_broker_that_is_not_there_is_told_with_its_place(rabbitmq, hearth, monkeypatch) -> None:
    password = rabbitmq.folder / "password"
    monkeypatch.setitem(hearth.env, "HEARTH_BROKER", f"amqp://a@127.0.0.1:9?password_file={password}")
    assert "127.0.0.1:9" in hearth("list", code=3)


def test_without_a_broker_the_option_is_named(hearth) -> None:
    del hearth.env["HEARTH_BROKER"]
    assert "give --broker URL, or set HEARTH_BROKER" in hearth("list", code=2)


@pytest.mark.proof
def test_members_are_enrolled_and_revoked(rabbitmq, hearth, tmp_path, name) -> None:
    control = f"env {' '.join(f'{key}={value!r}' for key, value in rabbitmq.environment.items())}"
    control += " /usr/lib/rabbitmq/bin/rabbitmqctl"
    made = subprocess.run(
        [sys.executable, "-m", "hearth.cli.main", "admin", "tls", "init", str(tmp_path / "ca")],
        capture_output=True,
        check=True,
    )
    assert made.returncode == 0
    device = f"enrolled-{name}"
    said = hearth("enroll", str(tmp_path / "ca"), device, "--rabbitmqctl", control)
    assert f"{device} are enrolled" in said
    assert (tmp_path / "ca" / f"{device}.key").exists()
    assert f"hcp.cmd.{device}" in rabbitmq.control("list_queues", "name")
    assert "is there already" in hearth("enroll", str(tmp_path / "ca"), device, code=2)
    hearth("revoke", device, "--rabbitmqctl", control)
    assert device not in rabbitmq.control("list_users")
    assert f"hcp.cmd.{device}" not in rabbitmq.control("list_queues", "name")
    assert "a b" in hearth("revoke", "a b", code=2)
    assert "nowhere" in hearth("revoke", device, "--rabbitmqctl", "/nowhere/ctl", code=2)


@pytest.mark.proof
def test_orders_that_are_not_waited_for_go_out(hearth, device, job) -> None:
    assert hearth("submit", job, device.id, "--detach") == "1 orders are on their way.\n"
    # All of them: a device that is fast has ended it before the command has.
    told = {one["device"]: one["state"] for one in json.loads(hearth("watch", "--all", "--json"))}
    assert told[device.id] == "COMPLETED"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("90", 90), ("1.5m", 90), ("2h", 7200), ("PT2M", 120), ("PT0.5S", 0.5)]
)
def test_times_are_read(text, seconds) -> None:
    assert fleet_broker.seconds(text) == seconds


def test_another_time_is_refused() -> None:
    with pytest.raises(click.UsageError, match="expected a time such as 90s"):
        fleet_broker.seconds("soon")


def test_the_caller_is_the_common_name_of_its_certificate(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pki = Bench(tmp_path)
    assert fleet_broker._common_name(pki.client("alpha").cert) == "alpha"
    assert fleet_broker._default_order_store("alpha").name == "alpha.sqlite3"
    with pytest.raises(ConfigError, match=r"nothing\.pem"):
        fleet_broker._common_name(tmp_path / "nothing.pem")


def test_without_the_extra_the_cure_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "hearth.fleet.client", None)

    async def connect():
        async with fleet_broker.connected(fleet_broker.FleetOptions("amqp://a@127.0.0.1?password_file=/p", None, None)):
            raise AssertionError

    with pytest.raises(ConfigError, match=r"pip install 'hearthd\[amqp,hcp\]'"):
        trio.run(connect)


def test_on_a_terminal_the_table_is_drawn_again_and_again(capsys) -> None:
    with orders.Screen(live=True) as draw:
        draw("one row")
        draw("another row")
    assert "another row" in capsys.readouterr().out
    with orders.Screen(live=False) as draw:
        assert draw is None
