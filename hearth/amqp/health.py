"""The finding of `hearth doctor` on the state of a daemon's uplink to a broker, as its health has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def finding(uplink: Mapping[str, Any]) -> tuple[str, str, str, str | None]:
    """Return state, name, finding and cure."""
    told = f"{uplink.get('id')} at {uplink.get('broker')}: {uplink.get('outbox')} messages wait to be published"
    if uplink.get("connected"):
        return "OK", "broker", f"connected as {told}", None
    cure = "jobs go on without it; look at the network, the certificate and the user at the broker"
    return "WARN", "broker", f"not connected as {told}: {uplink.get('reason') or 'connecting'}", cure
