"""Selectors, announcements, and order stores that cannot be used."""

from __future__ import annotations

import sqlite3

import pytest

from hearth.cli.fleet.devices import halt_words
from hearth.errors import ConfigError
from hearth.fleet.order_store import OrderStore, OrderStoreError
from hearth.fleet.selectors import FleetDevice, SelectorError, select

DEVICES = [
    FleetDevice("a", {"site": "lab3", "board": "rpi5"}),
    FleetDevice("b", {"site": "lab3", "board": "rpi4"}),
    FleetDevice("c", {"site": "lab4", "board": "rpi5"}),
]


@pytest.mark.parametrize(
    ("selectors", "picked"),
    [
        (["site=lab3"], "ab"),
        (["site=lab3", "board=rpi5"], "a"),
        (["site=lab3", "site=lab4"], "abc"),
        (["board=rpi*", "site=lab4"], "c"),
        (["b"], "b"),
        (["b", "site=lab4"], "bc"),
        (["unknown"], ["unknown"]),
    ],
)
def test_selectors_pick(selectors, picked) -> None:
    assert [one.device for one in select(DEVICES, selectors)] == list(picked)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({}, "-"),
        ({"halted": True}, "HALTED"),
        ({"halted": True, "halted_by": ["fleet", "input"]}, "HALTED by fleet, input"),
        (
            {"halted": True, "halted_by": ["fleet"], "reset_refused": "still halted: x"},
            "HALTED by fleet; reset refused: still halted: x",
        ),
        ({"halted": True, "halted_by": "x", "reset_refused": 7}, "HALTED; reset refused: 7"),
    ],
)
def test_an_announcement_shows_what_halts_a_device_and_why_it_refused_a_reset(told, shown) -> None:
    device = FleetDevice.read({"payload": {"id": "a", "labels": {}, "agent_card": {}, **told}}, "a")
    assert device is not None
    assert halt_words(device) == shown


@pytest.mark.parametrize(
    ("selectors", "why"),
    [
        (["sit=lab3"], "no device has a label 'sit'; did you mean site?"),
        (["floor=1"], "no device has a label 'floor'"),
        (["site=lab5"], "no device fits site=lab5"),
        (["=x"], "expected a device's id, or LABEL=PATTERN"),
        (["a.b"], "expected a device's id"),
    ],
)
def test_a_selector_that_picks_nothing_is_named(selectors, why) -> None:
    with pytest.raises(SelectorError, match=why.replace("?", r"\?")):
        select(DEVICES, selectors)


def announced(user="a", **payload):
    document = {"timestamp": "t", "payload": {"id": "a", "labels": {"site": "x", "n": 1}, "agent_card": {}, **payload}}
    return FleetDevice.read(document, user)


def test_an_announcement_is_its_devices_own() -> None:
    assert announced(halted=True) == FleetDevice("a", {"site": "x"}, "t", halted=True)
    assert announced(user="b") is None
    assert announced(user=None) is None
    assert announced(labels=[]) is None
    assert announced(agent_card=None) is None
    assert announced(user="a.b", id="a.b") is None
    assert FleetDevice.read({}, "a") is None


def test_a_order_store_of_another_release_or_program_is_refused(tmp_path) -> None:
    path = tmp_path / "order store"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(ConfigError, match="a newer hearth wrote it, in format 9"):
        OrderStore(path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = -1")
    db.close()
    with pytest.raises(OrderStoreError, match="of another release"):
        OrderStore(path)
    path.write_bytes(b"no database" * 100)
    with pytest.raises(OrderStoreError, match="not a database"):
        OrderStore(path)
