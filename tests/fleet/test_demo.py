"""`make demo-fleet`: plays to its end before a real broker, leaves nothing behind, and says what it needs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from support.rabbitmq import installed

from hearth.cli.demo import fleet, fleet_devices

pytestmark = pytest.mark.slow


@pytest.fixture
def temporary(monkeypatch):
    """A directory for temporary files that is short enough for a socket, and must be empty in the end."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.mark.proof
@pytest.mark.skipif(not installed(), reason=fleet.MISSING)
def test_the_demo_plays_to_the_end_and_leaves_nothing_behind(temporary, capsys) -> None:
    assert fleet.main(["--fast"]) == 0
    said = capsys.readouterr().out
    assert "✗" not in said
    for claim in (
        "all of them have announced themselves", "it died in the middle of the work", "every order was done",
        "the caller has every event of each, in order, each once", "every effect happened once",
        "and by the pulses in the devices' own audit logs", "6 claims, each checked",
    ):  # fmt: skip
        assert claim in said
    assert list(temporary.iterdir()) == []


@pytest.mark.proof
@pytest.mark.skipif(not installed(), reason=fleet.MISSING)
def test_a_device_that_does_not_do_its_orders_ends_the_demo_with_1(temporary, capsys, monkeypatch) -> None:
    monkeypatch.setattr(fleet, "DEVICES", 2)
    monkeypatch.setattr(fleet_devices, "CAPABILITY", fleet_devices.CAPABILITY.replace("names:\n", "names[:1]:\n"))
    assert fleet.main(["--json"]) == 1
    assert '"ok":false' in capsys.readouterr().out.replace(" ", "")
    assert list(temporary.iterdir()) == []


def test_without_rabbitmq_it_says_how_to_install_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr(fleet, "SERVER", "/nowhere/rabbitmq-server")
    assert fleet.main([]) == 2
    assert "apt-get install --no-install-recommends rabbitmq-server" in capsys.readouterr().out
