"""How an I2C bus is asked who is there, with as little harm as asking can do.

Owns the choice of a probe for each address and the list of addresses that are left alone. It refuses to touch a
bus: it is a table, used by every driver. There is no harmless question on I2C. The choice is that of the common tool
for it, i2cdetect: a quick write (an address and nothing more) is safest for most chips; but some EEPROMs take it as the
beginning of a write, and some protect themselves for good at almost any write, so where these live a byte is
received instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attrs import frozen

from hearth.drivers.i2c import FIRST_ADDR, LAST_ADDR
from hearth.drivers.i2c_addresses import EVERY_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hearth.drivers.i2c_addresses import Addresses

ADDRESSES = range(FIRST_ADDR, LAST_ADDR + 1)

RECEIVE_RANGES = (range(0x30, 0x38), range(0x50, 0x60))
"""EEPROMs and what protects them: asked by receiving a byte."""

DANGEROUS: Mapping[int, str] = {
    0x08: "the SMBus host: a message to it is a notification",
    0x09: "a smart battery's charger: what disturbs it may stop it",
    0x0B: "a smart battery: firmware talks to it at the same time",
    0x0C: "the SMBus alert response: asking takes a device's alert away from whoever waits for it",
    0x61: "the SMBus default address: asking begins the assignment of addresses",
    0x69: "clock generators live here, and some lock the bus when they are asked",
}
"""Addresses that a scan leaves alone unless it is told to include them."""

Kind = Literal["quick", "receive"]

_TOLD: Mapping[Kind, str] = {"quick": "a quick write", "receive": "receiving a byte"}


@frozen
class Plan:
    """What a scan will do: a probe for each address that is asked, a reason for each that is not."""

    probes: Mapping[int, Kind]
    skipped: Mapping[int, str]


def plan(
    include: Collection[int] = (),
    *,
    quick: bool = True,
    receive: bool = True,
    addresses: Addresses = EVERY_ADDRESS,
) -> Plan:
    """What to ask on an adapter that can write quick, that can receive a byte, or both.

    An adapter without one of them leaves the addresses out for which it would be needed: the other one is the wrong
    question there. `include` names addresses to ask nevertheless, with whatever the adapter has; those that
    `addresses` refuses are never asked.
    """
    able: dict[Kind, bool] = {"quick": quick, "receive": receive}
    probes: dict[int, Kind] = {}
    skipped: dict[int, str] = {}
    for addr in ADDRESSES:
        kind: Kind = "receive" if any(addr in part for part in RECEIVE_RANGES) else "quick"
        other: Kind = "quick" if kind == "receive" else "receive"
        refused = addresses.refusal(addr)
        if refused is not None:
            skipped[addr] = refused
        elif addr in DANGEROUS and addr not in include:
            skipped[addr] = DANGEROUS[addr]
        elif able[kind]:
            probes[addr] = kind
        elif addr in include and able[other]:
            probes[addr] = other
        else:
            skipped[addr] = f"only {_TOLD[kind]} is safe here, and the adapter cannot do that"
    return Plan(probes, skipped)
