"""The extras: what an installation of hearth can do without, each as one record, and those of other packages.

The core serves sessions over the Unix socket. Everything else is an extra: the carriers TLS, WebSocket and HTTP, MCP,
HCP, the AgentCard, orders from a broker, a language model. An `Extra` says what the core must know of one before a
module of it is imported: its section in hearth.toml, the packages that it needs and how to install them, and where its
parts are ("module:attribute"). The core loops over these records and imports the parts of those that are configured.
Nothing but this table names them.

An extra of another package is an entry point of the group `hearth.extras` that refers to an `Extra`; its name is the
extra's name. It is loaded when hearth.toml has a table of that name: to install a package runs nothing.

`Section` is the base of the classes of sections, and `hearth.actors.service` has that of the parts that run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth._util.foreign import usable
from hearth._util.python import package_of, vendor_entry_points
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

ENTRY_POINTS: Final = "hearth.extras"
RESERVED: Final = frozenset((
    "audit", "buses", "halt", "listeners", "memory", "ok", "outputs", "sandbox", "sessions", "sockets", "version",
    "durability", "extras", "named_files", "names_tokens", "sections", "to_toml",
))  # fmt: skip
"""Names that no extra of another package may have: those of other members of health, and of members of a `Config`."""
_NONE: Final[Mapping[str, int]] = MappingProxyType({})
_NOWHERE: Final[Mapping[str, str]] = MappingProxyType({})


class Section:
    """A section of hearth.toml that belongs to an extra: an attrs class in which every key has a default.

    By default the table alone asks for the extra, and says nothing else that the core must know.
    """

    __slots__ = ()

    def asks(self, _name: str) -> tuple[bool | None, str]:
        """Return True if it asks for the extra of this name, and the key that does; None: if it is installed."""
        return True, ""

    def packages(self) -> Collection[str] | None:
        """Return the packages that this configuration needs, by the names of import; None: those of the record."""
        return None

    def faults(self, _config: Any) -> Iterator[str]:
        """Yield the faults of this section together with the rest of a `hearth.config.model.Config`."""
        yield from ()

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the files that it names, each with its meaning: no root of [files] may reach them."""
        yield from ()

    def secrets(self) -> Iterator[tuple[str, Path]]:
        """Yield the keys and files of credentials with which the daemon connects elsewhere."""
        yield from ()

    def reads(self) -> Iterator[tuple[Path, str, bool]]:
        """Yield the files that the confined daemon reads, each with its meaning; True: again at a reload."""
        yield from ()

    def sockets(self, _config: Any) -> Iterator[tuple[str, str, int | None]]:
        """Yield families of sockets that the confined daemon makes, with the reason, or TCP ports that it dials."""
        yield from ()

    def measured(self) -> Iterator[Path]:
        """Yield files that belong to the measurements of an attestation."""
        yield from ()

    def credentials(self) -> Iterator[str]:
        """Yield the kinds of credentials by which clients may come: "certificates", "tokens", "broker"."""
        yield from ()

    @property
    def durable(self) -> bool:
        """True if an audit record must be on the disk before its effect."""
        return False


@frozen(eq=False, kw_only=True)
class Extra:
    """An extra. Its parts are named as "module:attribute", and imported when they are used."""

    name: str
    """Its section in hearth.toml, its member of the daemon's health, and its name in messages."""
    pip: str = ""
    """The extras of the distribution that bring its packages: "amqp,hcp"."""
    packages: tuple[str, ...] = ()
    """The packages that it needs, by the names of import."""
    lacks: str = ""
    """The sentence about missing packages, if it is not "NAME is not installed"."""
    section: str = ""
    """The class of its section, a `Section`; empty: a key in the section `place` asks for it."""
    place: str = ""
    """The section that asks for it, if that is not its own."""
    after: str = "limits"
    """The section of the core behind which its own is written."""
    by_default: bool = False
    """True if it is served without a section, if its packages are installed."""
    refuses: bool = True
    """True if no daemon starts that asks for it without its packages; else its use is refused."""
    uses: tuple[str, ...] = ()
    """Other extras that it needs."""
    methods: tuple[str, ...] = ()
    """Methods of HACP that it answers even where it is not configured: the first call of one loads it."""
    tools: Mapping[str, int] = _NONE
    """The tools that it serves itself, beside a session: the names by which a policy knows them, and their risks."""
    listen: str = ""
    """Opens its listener, before the daemon is confined; gets an `actors.listeners.accept.Opening`."""
    service: str = ""
    """Makes its part of a runtime, an `actors.service.Service`, of the configuration and the `RuntimeParts`."""
    daemon_only: bool = False
    """True if a runtime in a program does without it."""
    check: str = ""
    """Yields lines of `hearthd --check` with "warning" or "note", of name, configuration and parts."""
    finding: str = ""
    """Returns the finding of `hearth doctor` on its member of the daemon's health: state, name, finding, cure."""
    dials: Mapping[str, str] = _NOWHERE
    """Schemes of addresses, each with the function that connects a client to one (`hearth.transport.open_stream`)."""
    client: str = ""
    """The class whose methods it adds to clients and to runtimes in a program (`hearth.client.extension`)."""
    link: str = ""
    """Makes the connection of a runtime in a program to it, a `hearth.client.extension.MessageLink`."""
    names: Mapping[str, str] = _NOWHERE
    """Public names of `hearth` that are its own: `hearth.NAME`; a part without an attribute is a module."""

    def load(self, part: str) -> Any:
        """Import a part, and return it. Raises ConfigError for another package's that cannot be imported."""
        where: str = getattr(self, part)
        return load(where) if self.name in OWN else usable(partial(load, where), self._place(part))

    def call(self, part: str, *given: Any) -> Any:
        """Import and call a part; return its answer, of an iterator all that it yields.

        Raises ConfigError, which names the extra if the part of another package raised another exception.
        """

        def answer() -> Any:
            found = self.load(part)(*given)
            return list(found) if isinstance(found, Iterator) else found

        return answer() if self.name in OWN else usable(answer, self._place(part))

    def _place(self, part: str) -> str:
        return f"[{self.name}]: {part}={getattr(self, part)!r} of the Extra"

    @property
    def section_class(self) -> type[Section]:
        """The class of its section. Raises ConfigError if that is none."""
        found: Any = self.load("section")
        if not (isinstance(found, type) and issubclass(found, Section) and "__attrs_attrs__" in vars(found)):
            where = self.section
            raise ConfigError(f"[{self.name}]: {where} is not an attrs class that derives from hearth.extras.Section")
        return found

    @property
    def imported(self) -> bool:
        """True if its service is imported."""
        return self.service.partition(":")[0] in sys.modules

    def missing(self, section: Section | None = None) -> list[str]:
        """Return the packages that are not installed."""
        needed = None if section is None else section.packages()
        return [name for name in (self.packages if needed is None else needed) if find_spec(name) is None]

    def active(self, config: Any) -> bool:
        """Return True if a configuration asks for it. Raises ConfigError if it does, and packages are missing."""
        wanted, key = self._asked(config)
        if wanted and self.refuses and (lack := self.lack(config, key)) is not None:
            raise ConfigError(lack)
        return not self.missing() if wanted is None else wanted

    def lack(self, config: Any, key: str | None = None) -> str | None:
        """Return the cure if a configuration asks for it and packages are missing."""
        wanted, asking = self._asked(config)
        missing = self.missing(config.extras.get(self.place or self.name)) if wanted else []
        if not missing:
            return None
        place = f"[{self.place or self.name}] {asking if key is None else key}".rstrip()
        return f"{place}: {self.absence(missing[0])}"

    def absence(self, package: str, where: str = "") -> str:
        """Return the sentence about a package that is missing, here or `where`, with the cure."""
        return f"{self.lacks or f'{package} is not installed'}{where}; {self.cure}"

    @property
    def cure(self) -> str:
        """The command that installs its packages."""
        return f"pip install 'hearthd[{self.pip}]'"

    def why_not_served(self, by: str = "daemon") -> str:
        """Return the reason of a daemon, or of a runtime in a program, that does not serve it, for its callers."""
        why = f"[{self.name}] serve = false"
        for package in self.missing()[:1]:
            why = self.absence(package, " where it runs")
        return f"this {by} takes no {self.name.upper()} messages: {why}"

    def _asked(self, config: Any) -> tuple[bool | None, str]:
        section: Section | None = config.extras.get(self.place or self.name)
        if section is None:
            return (None if self.by_default else False), ""
        return section.asks(self.name)


def _of(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


OWN: Final[Mapping[str, Extra]] = {
    extra.name: extra
    for extra in (
        Extra(
            name="tls",
            daemon_only=True,
            section="hearth.config.listen:TlsConfig",
            after="server",
            listen="hearth.actors.listeners.tcp:open_tls",
            check="hearth.actors.listeners.tls:check",
            dials={"tls": "hearth.transport.tls:open_tls"},
        ),
        Extra(
            name="websocket",
            daemon_only=True,
            section="hearth.config.listen:WebSocketConfig",
            after="server",
            listen="hearth.actors.listeners.websocket:open_websocket",
            check="hearth.actors.listeners.tls:check",
            dials=dict.fromkeys(("ws", "wss"), "hearth.transport.websocket:open_websocket"),
        ),
        Extra(name="ssh", dials={"ssh": "hearth.transport.ssh:open_ssh"}),
        Extra(
            name="http",
            daemon_only=True,
            pip="http",
            packages=("starlette", "prometheus_client"),
            lacks="the HTTP server is not installed",
            section="hearth.config.listen:HttpConfig",
            after="server",
            uses=("card",),
            listen="hearth.actors.bridges.http.extra:open_http",
            check="hearth.actors.listeners.tls:check",
        ),
        Extra(
            name="card",
            section="hearth.config.agentcard:CardConfig",
            after="server",
            methods=("mcp.info",),
            service="hearth.actors.agentcard:CardService",
        ),
        Extra(
            name="hcp",
            pip="hcp",
            packages=("isodate", "semantic_version"),
            lacks="the packages for HCP are not installed",
            section="hearth.config.hcp:HcpConfig",
            after="server",
            by_default=True,
            service="hearth.actors.bridges.hcp.extra:hcp_service",
            check="hearth.actors.bridges.hcp.extra:check",
            client="hearth.client.jobs:JobsClient",
            link="hearth.actors.bridges.hcp.local:LocalJobs",
            names={
                "Answer": "hearth.actors.bridges.hcp.execution:Answer",
                "Job": "hearth.actors.bridges.hcp.capability_api:Job",
                **_of("hearth.hcp.api", "JobEvent JobHandle JobResult"),
                **_of("hearth.hcp.capability", "Escalation Limit capability"),
                **_of(
                    "hearth.hcp.durable", "CapabilityFailed OutcomeUnknown ReplayMismatch SafetyViolation StepFailed"
                ),
                **_of("hearth.hcp.inputs", "I2cAddress InputRefused Line Port"),
            },
        ),
        Extra(
            name="amqp",
            pip="amqp,hcp",
            packages=("pamqp", "isodate", "semantic_version"),
            section="hearth.config.amqp:AmqpConfig",
            after="server",
            uses=("card", "hcp"),
            service="hearth.actors.bridges.amqp.extra:AmqpService",
            daemon_only=True,
            finding="hearth.amqp.health:finding",
        ),
        Extra(
            name="ask",
            pip="ask",
            packages=("openai", "anthropic"),
            section="hearth.config.ask:AskConfig",
            after="tasks",
            refuses=False,
        ),
        Extra(
            name="mcp",
            daemon_only=True,
            pip="mcp",
            packages=("mcp",),
            lacks="the MCP SDK is not installed",
            place="http",
            methods=("mcp.info", "mcp.tools"),
            # To declare a card writes a file; the others only read.
            tools={
                "agentcard.declare": 1,
                "agentcard.resolve": 0,
                "agentcard.validate": 0,
                "agentcard.list": 0,
            },
            service="hearth.actors.bridges.mcp.extra:McpService",
            check="hearth.actors.bridges.mcp.extra:check",
        ),
        Extra(name="aio", names={"aio": "hearth.aio"}),
        Extra(name="sync", names={"sync": "hearth.sync"}),
    )
}
"""hearth's own, in the order in which they start and in which hearth.toml has them."""

TOOLS: Final[Mapping[str, int]] = {name: risk for extra in OWN.values() for name, risk in extra.tools.items()}
NAMES: Final[Mapping[str, str]] = {name: part for extra in OWN.values() for name, part in extra.names.items()}
"""The public names of `hearth` that belong to extras, each with its part."""
DIALS: Final[Mapping[str, str]] = {scheme: part for extra in OWN.values() for scheme, part in extra.dials.items()}
"""The schemes of addresses that extras connect to, each with its part."""


def extras_of(tables: Iterable[str] = ()) -> tuple[Extra, ...]:
    """Return hearth's own extras, and those of packages that own one of these tables of hearth.toml.

    Raises ConfigError for a package whose extra cannot be used.
    """
    others = sorted({*tables} - OWN.keys())
    points = vendor_entry_points(ENTRY_POINTS) if others else {}
    return (*OWN.values(), *(_vendors(name) for name in others if name in points))


def active(config: Any, *, daemon: bool = True) -> list[Extra]:
    """Return the extras that a configuration asks for, and those that they use. Raises ConfigError."""
    known = [extra for extra in extras_of(config.extras) if daemon or not extra.daemon_only]
    asked = {extra.name: extra for extra in known if extra.active(config)}
    used = {name for extra in asked.values() for name in extra.uses}
    return [extra for extra in known if extra.name in asked or extra.name in used]


@cache
def _vendors(name: str) -> Extra:
    point = vendor_entry_points(ENTRY_POINTS)[name]
    if name in RESERVED:
        raise ConfigError(
            f"[{name}]: {package_of(point)} has an extra that cannot be used: its name means something else"
        )
    if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
        raise ConfigError(
            f"[{name}]: {package_of(point)} has an extra that cannot be used: its name is not a name in Python"
        )
    extra = usable(point.load, f"[{name}]: {package_of(point)} ({point.value})")
    if not isinstance(extra, Extra) or extra.name != name or not extra.section:
        raise ConfigError(f"[{name}]: {package_of(point)} has no Extra of this name with a section at {point.value}")
    return extra


def clients() -> Iterator[Any]:
    """Import, and yield, the classes whose methods extras add to clients."""
    return (extra.load("client") for extra in OWN.values() if extra.client)


def local_link(*made_of: Any) -> Any:
    """Return a connection of a runtime in a program, with its `run` and `close`, of the runtime and a principal."""
    return next(extra.load("link") for extra in OWN.values() if extra.link)(*made_of)


@cache
def load(where: str) -> Any:
    """Import a part, and return it."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)
