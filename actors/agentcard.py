"""The daemon's AgentCard, its file, and the energy meter whose figure the card publishes.

`PublishedCard` owns `agent-card.json` beside the audit log: the agent_id, made once from the system's CSPRNG, and the
card that was published last, from which the version of the next one follows. The process that holds the audit log's
lock owns the file. If the file cannot be written, a warning says so and the card is published all the same.

`EnergyMeter` is an actor that reads the machine's energy meters every PERIOD_S, so that the card can publish the energy
of a call. It reads through the sensors' driver, in a thread and not through the bus: a reading changes nothing, and
must not wait behind a client's transactions.

`CardService` is both as an extra: a daemon without [card] and without HTTP loads it with the first mcp.info.

`hearth.agentcard.build` decides what is in a card and computes the energy of a call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import define, evolve, field, frozen

from hearth._util.files import replace_file
from hearth._util.formats import check_format
from hearth._util.ids import new_id
from hearth._util.threads import Helper
from hearth.actors.service import Service
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
from hearth.audit.files import real
from hearth.audit.record import timestamp
from hearth.drivers.sensor import SENSORS_BUS
from hearth.errors import ConfigError, DeviceError
from hearth.policy.rules import token_digests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from hearth._util.threads import HelperCall
    from hearth.actors.runtime import Runtime, RuntimeParts
    from hearth.agentcard.build import CardEndpoint
    from hearth.config.agentcard import CardConfig
    from hearth.config.listen import HttpConfig
    from hearth.config.model import Config
    from hearth.drivers.sensor import SensorDriver
    from hearth.tools import Tool

log = logging.getLogger("hearth.agentcard")

_FORMAT = 1
_MOST_BYTES = 4 << 20
STEADY = 1.25
"""The factor by which the measured energy of a call must change before the card publishes the new figure."""


def card_file(log_path: Path) -> Path:
    """Return the path of the card's file: `agent-card.json` beside `audit.log`, else with the log's name as prefix.

    Two daemons may have their logs in one directory, and are two agents.
    """
    return log_path.with_name("agent-card.json" if log_path.name == "audit.log" else f"{log_path.name}.agent-card.json")


@frozen(kw_only=True)
class CardSources:
    """The sources of a card, besides the keeper's file. `board` is the profile's name."""

    tools: Iterable[Tool]
    card: CardConfig
    http: HttpConfig
    board: str
    tokens: bool = False
    """True if a `[[policy]]` entry names a bearer token."""
    audit_key: Path | None = None
    """The audit log's private key, beside which its public half is; None: the card names no key."""
    measured: Callable[[], Measured | None] = field(default=lambda: None)
    jobs: Collection[str] = ()
    """Names of the capabilities that may be delegated over HCP."""
    signer: Callable[[], keys.Signer | None] = field(default=lambda: None)
    """Returns the audit log's key, once it is loaded: it signs the card."""


@frozen
class _Memory:
    agent_id: str
    card: Mapping[str, Any] | None = None


class PublishedCard:
    """The card and its version. Without a path nothing is kept beyond the process."""

    def __init__(self, path: Path | None, sources: CardSources) -> None:
        self.path = path
        self.failure: str | None = None
        """The reason why the file is out of date, or None."""
        self._sources = sources
        self._memory = _Memory(new_id())
        self._made_for: tuple[Any, ...] | None = None
        self._card: Mapping[str, Any] | None = None
        self._measured: Measured | None = None
        self._key: str | None = None
        self._helper = Helper("hearth-card")

    def open(self, now: float) -> list[str]:
        """Read the agent_id and the last card, or make a new agent_id; return notes for a person.

        The audit log must be locked. Blocking. Never raises: a file that cannot be read is moved aside, and a note says
        so. `now` in epoch seconds. If the card is served over HTTP, the audit log's key is made here if there is none.
        """
        notes: list[str] = []
        if self.path is not None:
            found, problem = _read(self.path)
            if problem is not None:
                notes.append(_moved_aside(self.path, problem, now))
            if found is not None:
                self._memory = found
            elif not self._write(sync=True):
                notes.append(f"{self.failure}; the agent_id lasts until this process ends")
        self._open_key()
        return notes

    def _open_key(self) -> None:
        """Read the audit log's public key while the disk may be waited for: a later card has it from the first on."""
        key = self._sources.audit_key
        if key is None:
            return
        public = keys.public_path(key)
        try:
            if self._sources.http.listen is not None and not public.exists():
                keys.load_or_create(key)
            self._key = public.read_bytes().decode("ascii") if public.exists() else None
        except (ConfigError, OSError, UnicodeDecodeError) as error:
            log.warning("agent card: without the audit log's public key: %s", error)

    def card(self, listeners: Sequence[str] = (), serves_mcp: bool = False) -> Mapping[str, Any] | None:
        """Return the card for a daemon that listens at these URLs; None, and a log entry, if it would not be valid.

        `serves_mcp`: the HTTP listeners have /mcp.

        Costs nothing while nothing has changed. A changed card is written to the file, without a sync, before it is
        returned.
        """
        sources = self._sources
        place = choose_place(sources.card, sources.http, listeners, mcp=serves_mcp, tokens=sources.tokens)
        signer = sources.signer()
        made_for = (place, self._steady(), self._audit_key(), None if signer is None else signer.key_id)
        if made_for != self._made_for:
            self._made_for = made_for
            card = self._renewed(place, made_for[1], made_for[2])
            # An operator who gives a DID of their own signs the card in their own way.
            if signer is not None and card is not None and not {"did", "proof"} & sources.card.metadata.keys():
                from hearth.agentcard.signature import signed  # not before the daemon is ready

                card = signed(card, signer)
            self._card = card
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
        # Compare the card as it will be read back: a tuple is not equal to the array that JSON makes of it.
        card = _as_read_back(card)
        card["version"] = next_version(former, card)
        if findings := validate(card):
            log.error("the agent card is not published, because it would not be valid: %s", findings[0])
            return None
        if card != former:
            self._memory = evolve(self._memory, card=card)
            self._write()
        return card

    def _steady(self) -> Measured | None:
        """Return the measured figure; the former one while the new one is within the factor STEADY."""
        new, former = self._sources.measured(), self._measured
        if new is not None and (former is None or not former.joules / STEADY <= new.joules <= former.joules * STEADY):
            self._measured = new
        return self._measured

    def _audit_key(self) -> str | None:
        if self._key is None and self._sources.audit_key is not None:
            # Not made yet, or not readable: the journal reports it when a checkpoint needs the key.
            read = self._helper.call(keys.public_path(self._sources.audit_key).read_bytes)
            with contextlib.suppress(OSError, UnicodeDecodeError):
                # A disk that does not answer is asked again for the next card.
                self._key = read.get().decode("ascii") if read.done else None
        return self._key

    # --- the file

    def _write(self, *, sync: bool = False) -> bool:
        """Replace the file; return False, with `failure` set, if that fails."""
        if self.path is None:
            return True
        document = {"format": _FORMAT, "agent_id": self._memory.agent_id, "card": self._memory.card}
        content = orjson.dumps(document, option=orjson.OPT_INDENT_2)
        replace = partial(replace_file, self.path, content, 0o644, sync=sync)
        # At start, which syncs, the file is waited for (-1); later the event loop must not wait for a disk.
        written = self._helper.call(replace, -1 if sync else None)
        if written.done:
            return self._is_written(written)
        written.then(partial(self._is_written, written))
        return True

    def _is_written(self, written: HelperCall[None]) -> bool:
        try:
            written.get()
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
    """Return the file's content, or None, and the reason why it could not be read, or None."""
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
            return _parse(file.read(_MOST_BYTES), path), None
    except OSError as error:
        return None, str(error.strerror)
    except ValueError as error:
        return None, str(error)
    finally:
        os.close(fd)


def _parse(content: bytes, path: Path) -> _Memory:
    """Parse the file's content. Raises ValueError, and ConfigError for a newer release's file."""
    document: Any = orjson.loads(content)
    if isinstance(document, dict):
        cure = "move it away: this agent then has a new agent_id"
        check_format(f"agent card {path}", document.get("format"), _FORMAT, cure)
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("not a file of an agent card that this release can read")
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
    problem = f"agent card {path}: cannot be read: {why}"
    try:
        path.rename(aside)
    except OSError as error:
        return f"{problem}, nor moved away: {error.strerror}; until that is repaired, this agent has a new agent_id"
    return (
        f"{problem}; it is now {aside}, and this agent has a new agent_id; put it back, repaired, to keep the old one"
    )


# --- the version of a card: pure functions

FIRST = "1.0.0"

_PLAIN = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_CONTRACT = ("input_schema", "output_schema")


def next_version(former: Mapping[str, Any] | None, card: Mapping[str, Any]) -> str:
    """Return the version of `card`, which follows `former` (draft §2.3); FIRST if there was none.

    MAJOR grows when a capability is gone or has another schema, or the endpoint has changed (address or credentials);
    MINOR when there is a new capability; PATCH for any other change. `version` itself is not compared. Raises
    ValueError if `former` is no card, or has a version that this function did not make.
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
    """Return the input and output schemas of each capability, by id. Raises ValueError."""
    try:
        return {each["id"]: [each.get(name) for name in _CONTRACT] for each in card["capabilities"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no capabilities: {error!r}") from None


def _unversioned(card: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name != "version"}


MAX_SENSORS = 1000
MOST_FAILURES = 5
"""Failed readings in a row after which a meter is given up: it was unplugged, or its permission withdrawn."""


@define(eq=False)
class EnergyMeter:
    """The actor that reads the energy meters; without a driver or meters, `run` ends and `measured` stays None."""

    _driver: SensorDriver | None
    _invocations: Callable[[], int]
    clock: Callable[[], float] = field(default=trio.current_time, kw_only=True)
    pause: Callable[[float], Awaitable[None]] = field(default=trio.sleep, kw_only=True)
    _energy: EnergyPerInvocation = field(factory=lambda: EnergyPerInvocation(()), init=False)

    def measured(self) -> Measured | None:
        """Return the newest figure, or None."""
        return self._energy.measured

    async def run(self) -> None:
        """Find the meters and read them every PERIOD_S, until cancelled or until no meter can be read."""
        driver = self._driver
        if driver is None:
            return
        await self.pause(PERIOD_S)  # must not slow down the start; a daemon that ends soon needs no figure
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
                self._energy.reading(self.clock(), values, self._invocations())
            await self.pause(PERIOD_S)

    def _read(self, driver: SensorDriver) -> dict[str, float]:
        return {meter.sensor: float(driver.read(meter.sensor).value) for meter in self._energy.meters}


async def _in_thread(work: Callable[[], Any]) -> Any:
    # Abandoned at the end of the daemon: a chip on a slow wire may take seconds, and no task waits for the reading.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


def _known(sensor: Any) -> CardSensor:
    return CardSensor(sensor.name, sensor.kind, sensor.unit, sensor.limits.get("max"), readable=sensor.problem is None)


# --- the extra


class CardService(Service):
    """The card of one runtime, and the meter of its energy."""

    def __init__(self, config: Config, parts: RuntimeParts) -> None:
        self._config = config
        card, metrics = config.card, parts.journal.metrics
        # Without a driver if the energy of a call is configured, or is not to be measured.
        wanted = card.measure_energy and card.base_cost_joules is None
        driver: Any = parts.drivers.get(SENSORS_BUS) if wanted else None
        self._meter = EnergyMeter(driver, lambda: sum(metrics.steps.values()))
        self._published: PublishedCard | None = None
        self._jobs: Any = ()

    def open(self, parts: RuntimeParts) -> list[str]:
        """See Service."""
        journal = parts.journal
        if (hcp := parts.extras.get("hcp")) is not None:
            self._jobs = hcp.capabilities
        self._published = PublishedCard(
            card_file(real(journal.settings.path)),
            CardSources(
                tools=tuple(parts.registry.values()),
                card=self._config.card,
                http=self._config.http,
                board=parts.board.name,
                tokens=bool(token_digests(parts.policy)),
                audit_key=journal.settings.key,
                measured=self._meter.measured,
                jobs=self._jobs,
                signer=lambda: journal.loaded_key,
            ),
        )
        return self._published.open(parts.clock())

    def ahead(self) -> None:
        """See Service: the card lists what jobs may use."""
        import_module("hearth.agentcard.signature")
        len(self._jobs)

    async def run(self) -> None:
        """See Service."""
        await self._meter.run()

    def card(self) -> Mapping[str, Any] | None:
        """Return the card, or None."""
        assert self._published is not None, "it is open"
        mcp = self.runtime.extras.get("mcp")
        return self._published.card(self.runtime.listeners, mcp is not None and mcp.over_http)


def card_of(runtime: Runtime) -> Mapping[str, Any] | None:
    """Return the agent card of a runtime, or None."""
    service = runtime.extra("card")
    card: Mapping[str, Any] | None = None if service is None else service.card()
    return card
