"""HCP, by which another agent harness submits a whole job: messages, capabilities, safety gate, durable record.

Pure: nothing here knows a carrier, a clock, a file that it was not given, or Trio. The running parts are in
`hearth.actors.bridges.hcp`, the client's in `hearth.client.jobs`.

Two packages serve HCP alone, ISO 8601 durations and ranges of versions: they are the extra `hearthd[hcp]`. A daemon
without them that configures nothing about jobs takes none; one that does is refused at its start.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from hearth.errors import ConfigError

PACKAGES: Final = ("isodate", "semantic_version")
"""What the extra installs, by the names of import."""
CURE: Final = "pip install 'hearthd[hcp]'"


def is_installed() -> bool:
    """Return True if the packages of the extra are there."""
    return all(find_spec(name) is not None for name in PACKAGES)


def require(what: str) -> None:
    """Raise ConfigError with the cure if the packages of the extra are missing. `what` is what needs them."""
    if not is_installed():
        raise ConfigError(f"{what}: the packages for HCP are not installed; {CURE}")


def why_not_served(by: str = "daemon") -> str:
    """Return the reason of a daemon, or of a runtime in a program, that has no job server, for its callers."""
    if is_installed():
        return f"this {by} takes no HCP messages: [hcp] serve = false"
    return f"this {by} takes no HCP messages: the packages for them are not installed where it runs; {CURE}"
