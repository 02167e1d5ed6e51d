"""The keeper of the daemon's AgentCard: who this agent is, which version of its card is out, and the card itself.

Owns `agent-card.json` beside the audit log: the agent_id, made once from the system's CSPRNG, and the card that was
last given out, from which the next one's version follows. What is in a card it leaves to `hearth.agentcard.build`.
Whoever holds the audit log's lock owns the file; what cannot be written is said, and the card is given out anyhow.

The actor that reads the machine's energy meters now and then, so that the card can say what a call costs.

Owns when they are read. It reads through the sensors' driver, in a thread, and past the bus: a reading keeps nothing
and changes nothing, and must not wait behind a client's. What the readings mean, `hearth.agentcard.build` says.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import evolve, field, frozen

from hearth._util.files import replace_file
from hearth._util.text import new_id
from hearth.agentcard.build import (
    PERIOD_S,
    CardSensor,
    EnergyPerInvocation,
    Measured,
    build_card,
    choose_meters,
    choose_place,
)
from hearth.agentcard.validate import validate
from hearth.audit import keys
from hearth.audit.record import timestamp
from hearth.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from hearth.agentcard.build import CardEndpoint
    from hearth.config.listen import HttpConfig
    from hearth.config.model import CardConfig
    from hearth.drivers.linux.sensors import KernelSensors
    from hearth.tools import Tool

log = logging.getLogger("hearth.agentcard")

_FORMAT = 1
_MOST_BYTES = 4 << 20
STEADY = 1.25
"""A price is measured anew for as long as the daemon runs, and published anew when it has changed by this factor."""


def card_file(log_path: Path) -> Path:
    """Where the memory lies: `agent-card.json` beside an `audit.log`, and beside any other with that log's name first.

    Two daemons may have their logs in one directory, and are two agents.
    """
    return log_path.with_name("agent-card.json" if log_path.name == "audit.log" else f"{log_path.name}.agent-card.json")


@frozen(kw_only=True)
class CardSources:
    """What a card is made from, beside its keeper's memory. `board` is the profile's name."""

    tools: Iterable[Tool]
    card: CardConfig
    http: HttpConfig
    board: str
    tokens: bool = False
    """Whether a `[[policy]]` entry names a bearer token."""
    audit_key: Path | None = None
    """The audit log's private key, beside which its public half lies; None tells of none."""
    measured: Callable[[], Measured | None] = field(default=lambda: None)
    jobs: Collection[str] = ()
    """Names of what may be delegated over HCP."""


@frozen
class _Memory:
    agent_id: str
    card: Mapping[str, Any] | None = None


class AgentCardKeeper:
    """The card. Without a path it remembers nothing beyond the process: for tests, and for who wants no file."""

    def __init__(self, path: Path | None, sources: CardSources) -> None:
        self.path = path
        self.failure: str | None = None
        """Why the file does not say what is so, or None."""
        self._sources = sources
        self._memory = _Memory(new_id())
        self._made_for: tuple[Any, ...] | None = None
        self._card: Mapping[str, Any] | None = None
        self._measured: Measured | None = None
        self._key: str | None = None

    def open(self, now: float) -> list[str]:
        """Read who this agent is, or decide it; notes for a person. Call it with the audit log locked.

        Blocking, and never raises: a file that cannot be read is moved aside, and said to be. `now` in epoch seconds.
        Where the card is served over HTTP, the audit log's key is made here if there is none yet.
        """
        notes: list[str] = []
        if self.path is not None:
            found, trouble = _read(self.path)
            if trouble is not None:
                notes.append(_moved_aside(self.path, trouble, now))
            if found is not None:
                self._memory = found
            elif not self._write(sync=True):
                notes.append(f"{self.failure}; the agent_id lasts until this process ends")
        self._make_key()
        return notes

    def _make_key(self) -> None:
        key = self._sources.audit_key
        if key is None or self._sources.http.listen is None:
            return
        try:
            if not keys.public_path(key).exists():
                keys.load_or_create(key)
        except (ConfigError, OSError) as error:
            log.warning("agent card: without the audit log's public key: %s", error)

    def card(self, listeners: Sequence[str] = (), serves_mcp: bool = False) -> Mapping[str, Any] | None:
        """The card for a daemon that listens at these URLs; None, and a log entry, if the card would not be valid.

        `serves_mcp` says that those of HTTP have /mcp.

        Costs nothing while nothing has changed. What has is written down before it is given out: then, a replaced file
        in the page cache, as with the ledger of driven outputs.
        """
        sources = self._sources
        place = choose_place(sources.card, sources.http, listeners, mcp=serves_mcp, tokens=sources.tokens)
        made_for = (place, self._steady(), self._audit_key())
        if made_for != self._made_for:
            self._made_for = made_for
            self._card = self._renewed(place, made_for[1], made_for[2])
        return self._card

    def _renewed(
        self, place: CardEndpoint, measured: Measured | None, audit_key: str | None
    ) -> Mapping[str, Any] | None:
        sources, former = self._sources, self._memory.card
        card = build_card(
            sources.tools,
            sources.card,
            place,
            agent_id=self._memory.agent_id,
            version="0.0.0",
            board=sources.board,
            audit_key=audit_key,
            measured=measured,
            jobs=sources.jobs,
        )
        # As it will be read back: a tuple is not equal to the array that JSON makes of it.
        card = _as_read_back(card)
        card["version"] = next_version(former, card)
        if findings := validate(card):
            log.error("no agent card is given out, since it would not be valid: %s", findings[0])
            return None
        if card != former:
            self._memory = evolve(self._memory, card=card)
            self._write()
        return card

    def _steady(self) -> Measured | None:
        """What was measured, the former figure as long as it is about right."""
        new, former = self._sources.measured(), self._measured
        if new is not None and (former is None or not former.joules / STEADY <= new.joules <= former.joules * STEADY):
            self._measured = new
        return self._measured

    def _audit_key(self) -> str | None:
        if self._key is None and self._sources.audit_key is not None:
            # Not made yet, or not readable: the journal says so where that matters.
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._key = keys.public_path(self._sources.audit_key).read_text("ascii")
        return self._key

    # --- the file

    def _write(self, *, sync: bool = False) -> bool:
        """Replace the file by what is so now; False, with `failure` set, if that cannot be done."""
        if self.path is None:
            return True
        document = {"format": _FORMAT, "agent_id": self._memory.agent_id, "card": self._memory.card}
        try:
            replace_file(self.path, orjson.dumps(document, option=orjson.OPT_INDENT_2), 0o644, sync=sync)
        except OSError as error:
            former, self.failure = self.failure, f"agent card {self.path}: cannot be kept: {error.strerror}"
            if former is None:
                log.warning("%s; the next run cannot tell what has changed", self.failure)
            return False
        self.failure = None
        return True


def _as_read_back(card: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads(orjson.dumps(card))
    return read


def _read(path: Path) -> tuple[_Memory | None, str | None]:
    """What the file remembers, or None, and why it could not be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, str(error.strerror)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None, "not a regular file"
        with os.fdopen(os.dup(fd), "rb") as file:
            return _parse(file.read(_MOST_BYTES)), None
    except OSError as error:
        return None, str(error.strerror)
    except ValueError as error:
        return None, str(error)
    finally:
        os.close(fd)


def _parse(content: bytes) -> _Memory:
    """What a file's content remembers. Raises ValueError."""
    document: Any = orjson.loads(content)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("not an agent card's memory that this release knows")
    agent_id, card = document.get("agent_id"), document.get("card")
    if not isinstance(agent_id, str) or any(found.pointer == "/agent_id" for found in validate({"agent_id": agent_id})):
        raise ValueError("no agent_id in it")
    if card is not None:
        if findings := validate(card):
            raise ValueError(f"its card is not valid: {findings[0]}")
        if card["agent_id"] != agent_id:
            raise ValueError("its card is another agent's")
        next_version(card, card)
    return _Memory(agent_id, card)


def _moved_aside(path: Path, why: str, now: float) -> str:
    stamp = timestamp(now).replace("-", "").replace(":", "")
    aside = path.with_name(f"{path.name}.found-{stamp}")
    trouble = f"agent card {path}: cannot be read: {why}"
    try:
        path.rename(aside)
    except OSError as error:
        return f"{trouble}, nor moved away: {error.strerror}; this agent has a new agent_id until it is"
    return f"{trouble}; it is now {aside}, and this agent has a new agent_id: put it back, mended, to keep the former"


# --- The version of a card, which follows from what has changed since the last one (draft §2.3). Pure
#
# MAJOR when a capability is gone or takes or gives something else than before (another schema), or the endpoint has
# moved or wants other credentials; MINOR when there is a new capability; PATCH for anything else. `version` itself is
# not compared.

FIRST = "1.0.0"

_PLAIN = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_CONTRACT = ("input_schema", "output_schema")


def next_version(former: Mapping[str, Any] | None, card: Mapping[str, Any]) -> str:
    """The version for `card`, which follows `former`; FIRST where there was none, the former's if nothing changed.

    Raises ValueError if the former has a version that is not of this module's making, or is no card.
    """
    if former is None:
        return FIRST
    match = _PLAIN.fullmatch(str(former.get("version")))
    if match is None:
        raise ValueError(f"no version of three numbers: {former.get('version')!r}")
    major, minor, patch = map(int, match.groups())
    then, now = _contracts(former), _contracts(card)
    if former.get("endpoint") != card.get("endpoint") or any(now.get(name) != then[name] for name in then):
        return f"{major + 1}.0.0"
    if now.keys() - then.keys():
        return f"{major}.{minor + 1}.0"
    if _unversioned(former) != _unversioned(card):
        return f"{major}.{minor}.{patch + 1}"
    return f"{major}.{minor}.{patch}"


def _contracts(card: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What each capability takes and gives, by id."""
    try:
        return {each["id"]: [each.get(name) for name in _CONTRACT] for each in card["capabilities"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no capabilities: {error!r}") from None


def _unversioned(card: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name != "version"}


MAX_SENSORS = 1000
MOST_FAILURES = 5
"""Readings in a row that fail before a meter is given up: it was unplugged, or its permission withdrawn."""


class EnergyMeter:
    """Reads as long as `run` does; without a driver or meters that ends at once, and `measured` stays None."""

    def __init__(
        self,
        driver: KernelSensors | None,
        invocations: Callable[[], int],
        *,
        clock: Callable[[], float] = trio.current_time,
        pause: Callable[[float], Awaitable[None]] = trio.sleep,
    ) -> None:
        self._driver = driver
        self._invocations = invocations
        self._clock = clock
        self._pause = pause
        self._energy = EnergyPerInvocation(())

    def measured(self) -> Measured | None:
        """The newest figure."""
        return self._energy.measured

    async def run(self) -> None:
        """Find the meters and read them every PERIOD_S, until cancelled or there is nothing more to be read."""
        driver = self._driver
        if driver is None:
            return
        await self._pause(PERIOD_S)  # a daemon that starts has better things to do, and one that ends soon needs none
        try:
            sensors = await _in_thread(lambda: [_known(each) for each in driver.scan(MAX_SENSORS)])
        except (DeviceError, OSError) as error:
            log.warning("energy is not measured: the sensors cannot be listed: %s", error)
            return
        self._energy = EnergyPerInvocation(choose_meters(sensors))
        failures = 0
        while self._energy.meters:
            try:
                values = await _in_thread(lambda: self._read(driver))
            except (DeviceError, OSError) as error:
                failures += 1
                self._energy.broken()
                if failures >= MOST_FAILURES:
                    log.warning("energy is no longer measured: %s", error)
                    return
            else:
                failures = 0
                self._energy.reading(self._clock(), values, self._invocations())
            await self._pause(PERIOD_S)

    def _read(self, driver: KernelSensors) -> dict[str, float]:
        return {meter.sensor: float(driver.read(meter.sensor).value) for meter in self._energy.meters}


async def _in_thread(work: Callable[[], Any]) -> Any:
    # Left behind at the end of the daemon: a chip behind a slow wire may hold a read for seconds, and nobody waits.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def _known(sensor: Any) -> CardSensor:
    return CardSensor(sensor.name, sensor.kind, sensor.unit, sensor.limits.get("max"), readable=sensor.problem is None)
