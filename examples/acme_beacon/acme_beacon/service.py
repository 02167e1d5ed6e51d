"""The parts of the beacon: its section, its service, and what `hearthd --check` and `hearth doctor` say of it."""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import trio
from attrs import frozen

from hearth.actors.service import Figure, Service
from hearth.extras import Section
from hearth.fields import Number, Text, checked

if TYPE_CHECKING:
    from hearth.actors.runtime import RuntimeParts
    from hearth.config.model import Config

OFTEN_S = 0.1


@frozen(field_transformer=checked)
class BeaconConfig(Section):
    """[beacon]: the table alone asks for it."""

    message: Annotated[str, Text()] = "on air"
    every_s: Annotated[float, Number(gt=0)] = 10


class BeaconService(Service):
    """Counts its beats while the daemon serves."""

    def __init__(self, config: "Config", _parts: "RuntimeParts") -> None:
        self._settings: BeaconConfig = config.beacon
        self._beats = 0

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._beats += 1
            await trio.sleep(self._settings.every_s)

    def health(self) -> Mapping[str, Any]:
        """See Service."""
        return {"message": self._settings.message, "beats": self._beats}

    def figures(self) -> Iterable[Figure]:
        """See Service."""
        return (Figure("beats", "Beats since the start", self._beats, counter=True),)


def check(_name: str, config: "Config", _parts: "RuntimeParts") -> Iterator[tuple[str, str]]:
    """Warn of a beacon that beats too often. See Extra."""
    if config.beacon.every_s < OFTEN_S:
        yield "warning", f"[beacon] every_s: {config.beacon.every_s:g} is a load; {OFTEN_S:g} is enough for most"


def finding(state: Mapping[str, Any]) -> tuple[str, str, str, str | None]:
    """Return the finding of `hearth doctor` on its member of the daemon's health. See Extra."""
    return "OK", "beacon", f"says {state['message']!r}, {state['beats']} times so far", None
