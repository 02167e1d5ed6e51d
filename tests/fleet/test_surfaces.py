"""What operators see of the uplink: health, metrics, doctor, status, the check of a configuration."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest
import trio
from attrs import evolve
from fleet.bench import Device, restart
from support.chromium import chromium, driving, needs_chromium
from support.ports import free_port

from hearth.actors.bridges.amqp.extra import figures
from hearth.cli.doctor.answers import board_checks
from hearth.cli.status_view import uplink_words
from hearth.config.amqp import AmqpConfig
from hearth.config.hcp import HcpConfig
from hearth.config.model import Config
from hearth.errors import ConfigError
from hearth.extras import OWN

BROKER = "amqp://dev@127.0.0.1?password_file=/p"
STATUS = {
    "broker": "amqp://127.0.0.1:5672", "id": "dev", "connected": True, "outbox": 2, "outbox_bytes": 700,
    "published": 5, "taken": 3, "reconnects": 1,
}  # fmt: skip


def test_the_doctor_and_status_say_whether_it_is_connected() -> None:
    def broker(**changed):
        checks = board_checks({"name": "sim", "health": {"amqp": {**STATUS, **changed}}})
        return next((one.state, one.finding) for one in checks if one.name == "broker")

    assert broker() == ("OK", "connected as dev at amqp://127.0.0.1:5672: 2 messages wait to be published")
    state, told = broker(connected=False, reason="no route")
    assert state == "WARN"
    assert told.endswith("to be published: no route")
    assert uplink_words(STATUS) == "connected: dev at amqp://127.0.0.1:5672; 2 messages wait to be published"
    assert "not connected (connecting)" in uplink_words({**STATUS, "connected": False})


def test_metrics_have_its_figures() -> None:
    assert {each.name: each.value for each in figures(STATUS)} == {
        "connected": 1,
        "outbox": 2,
        "outbox_bytes": 700,
        "published": 5,
        "taken": 3,
        "reconnects": 1,
    }


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"url": BROKER}, "id: not set"),
        ({"url": "amqp://broker.example", "id": "d"}, "url: "),
        ({"url": "amqps://broker.example", "id": "d"}, "url: "),
    ],
)
def test_a_section_that_cannot_work_is_refused(section, why) -> None:
    with pytest.raises(ConfigError, match=why):
        AmqpConfig(**section)


def test_the_files_of_the_section_belong_to_the_address(tmp_path) -> None:
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    broker = AmqpConfig(url="amqps://broker.example/hcp", id="d", **files).broker()
    assert (broker.host, broker.port, broker.vhost) == ("broker.example", 5671, "hcp")
    assert {name: getattr(broker, name) for name in files} == files


def test_orders_need_jobs_and_their_packages(monkeypatch) -> None:
    config = evolve(Config(), amqp=AmqpConfig(url=BROKER, id="d"))
    assert config.durability == "fsync"
    amqp = OWN["amqp"]
    assert amqp.active(config)
    assert not amqp.active(Config())
    with pytest.raises(ConfigError, match=r"orders are jobs; take \[hcp\] serve = false out"):
        evolve(config, hcp=HcpConfig(serve=False))
    monkeypatch.setattr("hearth.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pamqp is not installed.*pip install 'hearthd\[amqp,hcp\]'"):
        amqp.active(config)


@pytest.mark.slow
def test_a_policy_for_a_broker_that_is_not_dialled_is_told(tmp_path) -> None:
    file = tmp_path / "hearth.toml"
    file.write_text(
        f'[audit]\npath = "{tmp_path}/audit.log"\n[[policy]]\nname = "a"\nmatch = {{ amqp_user = "alpha" }}\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "hearth.actors.daemon", "--config", str(file), "--check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "policy 'a': match.amqp_user: no broker is dialled; set [amqp] url" in done.stdout


@pytest.mark.slow
def test_health_shows_a_device_without_its_broker(device) -> None:
    assert device.uplink()["connected"]
    peer = device.peer()
    health = peer.health()
    assert health["ok"]
    assert health["audit"]["durability"] == "fsync"
    device.broker.close_connections()
    device.recorded(event="amqp.disconnect")
    assert device.peer().health()["ok"], "a device works without its broker"
    device.until(lambda: len(device.records(event="amqp.connect")) > 1)
    assert json.dumps(health["amqp"])


@pytest.mark.proof
@needs_chromium
@pytest.mark.usefixtures("unmeasured")
async def test_the_dashboard_shows_the_broker_that_is_lost_and_found_again(killable, tmp_path) -> None:
    port, token = free_port(), "hearth_watcher-of-the-uplink"
    digest = hashlib.sha256(token.encode()).hexdigest()
    more = (
        f'[http]\nlisten = "127.0.0.1:{port}"\nmcp = false\n'
        f'[[policy]]\nname = "watcher"\nmatch = {{ token_sha256 = "{digest}" }}\nrights = ["observe"]'
    )
    device = Device(killable, tmp_path, "dev", callers=[], more=more)
    await trio.to_thread.run_sync(device.connect)
    row = "[...document.querySelectorAll('#system dl.facts > div')].find((one) => one.innerText.startsWith('Broker'))"
    shown = f"{row}?.lastElementChild.innerText ?? ''"
    with chromium(tmp_path) as address:
        async with driving(address) as browser:
            tab = await browser.open()
            await tab.navigate(f"http://127.0.0.1:{port}/ui/#token={token}")
            await tab.click("#offer-sign-in")
            await tab.until("document.querySelector('#link').dataset.state === 'open'")
            await tab.evaluate("location.hash = 'system'; 1")
            place = f"connected; dev at amqp://127.0.0.1:{killable.port}; 0 messages wait"
            await tab.until(f"({shown}) === {json.dumps(place)}")
            await trio.to_thread.run_sync(killable.kill)
            await tab.until(f"({shown}).startsWith('not connected: ')")
            assert await tab.evaluate(f"{row}.lastElementChild.dataset.state") == "bad"
            await trio.to_thread.run_sync(restart, killable)
            await tab.until(f"({shown}) === {json.dumps(place)}", bound=60)
    await trio.to_thread.run_sync(device.end)
