"""HCP, by which another agent harness submits a whole job: messages, capabilities, safety gate, durable record.

Pure: nothing here knows a carrier, a clock, a file that it was not given, or Trio. The running parts are in
`hearth.actors.bridges.hcp`, the client's in `hearth.client.jobs`.

Two packages serve HCP alone, ISO 8601 durations and ranges of versions: they are the extra `hearthd[hcp]`. A daemon
without them that configures nothing about jobs takes none; one that does is refused at its start.
"""

from __future__ import annotations

from hearth.errors import ConfigError
from hearth.extras import OWN


def require(what: str) -> None:
    """Raise ConfigError with the cure if the packages of the extra are missing. `what` is what needs them."""
    hcp = OWN["hcp"]
    if missing := hcp.missing():
        raise ConfigError(f"{what}: {hcp.absence(missing[0])}")


def is_installed() -> bool:
    """Return True if the packages of the extra are there."""
    return not OWN["hcp"].missing()


def why_not_served(by: str = "daemon") -> str:
    """Return the reason of a daemon, or of a runtime in a program, that has no job server, for its callers."""
    return OWN["hcp"].why_not_served(by)
