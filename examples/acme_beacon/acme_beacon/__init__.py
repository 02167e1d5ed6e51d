"""A beacon: a service of a vendor's that runs in hearthd, with a section in hearth.toml and a line in its health."""

from __future__ import annotations

from typing import Final

from hearth.extras import Extra

EXTRA: Final = Extra(
    name="beacon",
    section="acme_beacon.service:BeaconConfig",
    service="acme_beacon.service:BeaconService",
    check="acme_beacon.service:check",
    finding="acme_beacon.service:finding",
)
