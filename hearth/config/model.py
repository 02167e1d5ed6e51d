"""The configuration: frozen values with their defaults, read from a hearth.toml and written back.

This module owns the sections of the core (exec templates are in `exec`) and the default paths. The sections of the
extras are classes that `hearth.extras` names; their modules are imported if the file has them.
It refuses unknown keys, values of another type, and files that it cannot read whole. It starts nothing and imports
neither policy nor audit: the composition root passes them their parts. `Config()` needs only attrs; cattrs is imported
only to read a file.

`hcp` of a [[policy]] entry is about jobs (HCP); `hearth.policy.rules` applies it.
"""

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

from attrs import Attribute, field, fields_dict, frozen, make_class

from hearth._util.foreign import usable
from hearth._util.python import vendor_entry_points
from hearth._util.toml import show
from hearth.config.exec import ExecTemplate
from hearth.errors import ConfigError
from hearth.extras import ENTRY_POINTS, OWN, Extra, Section, extras_of
from hearth.fields import (
    AbsolutePath,
    Choice,
    FieldErrors,
    Fields,
    Flag,
    Integer,
    ListOf,
    MapOf,
    Mode,
    Number,
    OneOrMore,
    Secret,
    Text,
    checked,
    unknown_key,
)
from hearth.tools import USE_FORMS

Count: TypeAlias = Annotated[int, Integer(1)]
"""A limit of at least 1; a server with a limit of 0 could not serve any client."""
Names: TypeAlias = Annotated[tuple[str, ...], ListOf(Text())]
"""Names, or globs such as "gpio.*" if the key allows them."""

# The words are those of `hearth.hcp.messages`. That module is not imported, because it would double the import time.
_Risk: TypeAlias = Annotated[Literal["R1", "R2", "R3", "R4", "R5"], Choice("R1", "R2", "R3", "R4", "R5")]
Classification: TypeAlias = Annotated[Literal["T1", "T2", "T3", "T4"], Choice("T1", "T2", "T3", "T4")]


@frozen(field_transformer=checked)
class HcpPolicyConfig:
    """`hcp` of a [[policy]] entry: the jobs that its principals may submit, within the entry's other limits."""

    GONE: ClassVar[Mapping[str, str]] = {"approve": 'write rights = ["approve"] in the entry itself'}
    """Keys of earlier versions, with the cure."""

    capabilities: Names = ("*",)
    max_risk: _Risk = "R5"
    max_data_classification: Classification = "T2"
    """T3 and T4 require encryption at rest: an operator who allows them states that the disk is encrypted."""
    callers: Names = ("*",)


Seconds: TypeAlias = Annotated[float, Number(gt=0)]
"""A time in seconds after which something happens."""
Grace: TypeAlias = Annotated[float, Number(ge=0)]
"""A time in seconds that is granted; 0 grants none."""
Risk: TypeAlias = Annotated[int, Integer(0, 3)]
"""A risk level (draft §3.3, Table 4)."""
Paths: TypeAlias = Annotated[tuple[Path, ...], ListOf(AbsolutePath())]
"""Directories or files that are roots for the path guard."""

Durability: TypeAlias = Literal["os", "fsync", "relaxed"]

_TEMPLATE_NAME = Text("a name of letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RATE = Text('a rate such as "50/s", "10/m" or "100/10s"', r"(?=0*[1-9])[0-9]{1,6}/(?!0+[smh])[0-9]{0,6}[smh]")


_SAN = re.compile(r"(DNS|IP|URI|email|dirName|RID):(.+)\Z", re.DOTALL)

_Patterns: TypeAlias = Annotated[tuple[str, ...] | None, ListOf(Text())]
"""The hardware of a kind that a [[policy]] entry permits; None permits all of it."""


def _scoped(cls: type, fields: list["Attribute[Any]"]) -> list["Attribute[Any]"]:
    """Give the patterns of each kind the form of its names (an attrs field_transformer)."""
    forms: dict[str, Any] = {
        word: Annotated[tuple[str, ...] | None, ListOf(Text(*form))] for word, form in USE_FORMS.items()
    }
    return checked(cls, [one.evolve(type=forms.get(one.name, one.type)) for one in fields])


class _MatchTable(Fields):
    """A condition on a principal. `any` means no condition, so it is the only key and true."""

    def read(self, raw: object) -> dict[str, object]:
        table = super().read(raw)
        if "any" in table and table != {"any": True}:
            raise self.wrong(raw, "any = true must be the only key, and any = false has no meaning; remove one of them")
        return table


class AlternativeName(Text):
    """One of a certificate's alternative names, with its kind before it."""

    def __init__(self) -> None:
        super().__init__("DNS:NAME, IP:ADDRESS, URI:URI or email:ADDRESS")

    def read(self, raw: object) -> str:
        """Return the name as written; `hearth.policy.rules` compares host names without regard to case."""
        text = super().read(raw)
        found = _SAN.match(text)
        if found is None:
            raise self.wrong(raw)
        if found[1] == "IP":
            try:
                ipaddress.ip_address(found[2])
            except ValueError:
                raise self.wrong(raw) from None
        return text


_MATCH = OneOrMore(
    _MatchTable(
        uid=Integer(0, 2**32 - 2),
        gid=Integer(0, 2**32 - 2),
        user=Text(),
        group=Text(),
        cert_subject=Text(),
        cert_san=AlternativeName(),
        token_sha256=Secret("the 64 hex digits that `printf %s TOKEN | sha256sum` prints", "[0-9A-Fa-f]{64}"),
        amqp_user=Text(),
        any=Flag(),
    )
)


@frozen(field_transformer=checked)
class ServerConfig:
    """[server]: the Unix domain socket (draft §10.1). `socket` None means `default_socket`."""

    socket: Annotated[Path | None, AbsolutePath(max_bytes=107)] = None
    """At most 107 bytes, the limit of the kernel's sockaddr_un."""
    socket_mode: Annotated[int, Mode()] = 0o660
    socket_group: Annotated[str | None, Text()] = None


@frozen(field_transformer=checked)
class BoardConfig:
    """[board]: the hardware of this machine."""

    profile: Annotated[str, Text()] = "sim"


@frozen(field_transformer=checked)
class AuditConfig:
    """[audit]: the paths of the log and its signing key, and its settings; None means beneath `default_state_dir`."""

    path: Annotated[Path | None, AbsolutePath()] = None
    durability: Annotated[Durability, Choice("os", "fsync", "relaxed")] = "os"
    rotate_bytes: Annotated[int, Integer(1024)] = 64 * 1024 * 1024
    checkpoint_every: Count = 1000
    checkpoint_interval_s: Seconds = 3600
    reserve_bytes: Annotated[int, Integer(0, 2**30)] = 1024 * 1024
    """Bytes that are reserved for the last records of running work when the disk is full; 0: none."""
    arguments: Annotated[Literal["declared", "hash"], Choice("declared", "hash")] = "declared"
    """"declared": the log has the arguments that each tool declares safe (line, value, address, path; never data);
    "hash": it has only a hash of them."""
    key: Annotated[Path | None, AbsolutePath()] = None


@frozen(field_transformer=checked)
class AttestConfig:
    """[attest]: the TPM that quotes the measurements of the daemon; without `tpm` the audit key alone signs them."""

    tpm: Annotated[
        str | None,
        Text('a device such as "/dev/tpmrm0", or a TCTI string such as "swtpm:path=/run/tpm"', r"/.+|[a-z]+:.*"),
    ] = None
    pcr: Annotated[int, Integer(8, 23)] = 23
    """The register to extend. 23 and 16 any program with the TPM may reset; 8 to 15 last until the machine restarts."""


@frozen(field_transformer=checked)
class LogConfig:
    """[log]: the daemon's own messages; the audit log is [audit]."""

    format: Annotated[Literal["text", "json", "journald"], Choice("text", "json", "journald")] = "text"


@frozen(field_transformer=checked)
class FilesConfig:
    """[files]: the roots beneath which file tools may read and write; none by default (draft §12.2)."""

    read: Paths = ()
    write: Paths = ()


@frozen(field_transformer=checked)
class ToolsConfig:
    """[tools]: changes to the default set of tools, and the limits of the opt-in tools."""

    enable: Names = ()
    disable: Names = ()
    exec: Mapping[str, ExecTemplate] = field(factory=dict)
    """Name -> program that proc.exec may run. In TOML a bare array is a template's argv."""
    signal: Paths = ()
    """Executables whose processes proc.signal may signal, beside the processes that proc.exec started."""
    proc_argv: Annotated[bool, Flag()] = False
    """True if proc.list shows command lines: they often contain secrets (draft §13)."""
    disclose: Annotated[tuple[str, ...], ListOf(Choice("addresses", "users"))] = ()
    """Private data that tools may show: hardware and IP addresses in sys.network, user names in proc.list."""

    def __attrs_post_init__(self) -> None:
        for name in self.exec:
            try:
                _TEMPLATE_NAME.read(name)
            except FieldErrors as mismatch:
                raise ConfigError(f"exec: {mismatch}") from None
        if both := sorted(set(self.enable) & set(self.disable)):
            raise ConfigError(f"{show(both[0])} is both in enable and in disable; take it out of one")
        if "proc.exec" in self.enable and not self.exec:
            raise ConfigError("proc.exec is enabled but has nothing to run; add a [tools.exec] entry")


@frozen(field_transformer=checked)
class TasksConfig:
    """[tasks]: how long the idempotency keys of task.submit are kept."""

    idempotency_days: Annotated[float, Number(gt=0)] = 7
    """Days for which a repeated submission is recognised, in all sessions of its principal and across restarts."""
    max_idempotency_keys: Annotated[int, Integer(1, 1_000_000)] = 50_000
    """Keys that one principal may have; a submission with another new key is refused."""


@frozen(field_transformer=checked)
class SandboxConfig:
    """[sandbox]: by default everything that this kernel can enforce, and the user that started the daemon.

    `hearth.drivers.sandbox` makes a plan from it and enforces the plan.
    """

    enable: Annotated[bool, Flag()] = True
    require: Annotated[bool, Flag()] = False
    """True if the daemon must not start when a part of the sandbox cannot be enforced."""
    user: Annotated[str | None, Text()] = None
    """The user that a daemon started as root switches to, with this user's groups."""
    program_user: Annotated[str | None, Text()] = None
    """The user for programs of proc.exec, if the daemon was started as root; None: the daemon's user."""
    read: Paths = ()
    write: Paths = ()
    execute: Paths = ()
    """Programs that programs of proc.exec may run, such as a script's commands."""
    network: Annotated[bool, Flag()] = False
    """True if vendors' tools and programs may create IP sockets, and connect to any address."""
    hotplug: Annotated[bool | None, Flag()] = None
    """True if all of /dev may be opened, for devices that reappear; None: if the board has such devices."""

    def __attrs_post_init__(self) -> None:
        if self.require and not self.enable:
            raise ConfigError("require = true contradicts enable = false; remove one of them")


@frozen(field_transformer=checked)
class LimitsConfig:
    """[limits]: the limits of the use of resources (draft §12.5)."""

    idle_ttl_s: Seconds = 300
    max_document_bytes: Annotated[int, Integer(256)] = 1024 * 1024
    max_values: Count = 20_000
    """Limit of the values in one document: objects, arrays and their contents, without the names of members."""
    max_batch: Count = 64
    max_steps: Count = 256
    max_tasks_per_session: Count = 64
    max_sessions_per_principal: Count = 64
    session_rate: Annotated[str, _RATE] = "1000/10s"
    """Rate at which one principal may open sessions: each session is two records in the audit log."""
    reject_rate: Annotated[str, _RATE] = "60/m"
    """Rate at which refusals of one principal get a record each; the audit log has only the number of the others."""
    max_connections: Count = 1024
    max_outstanding: Count = 256
    bus_queue: Count = 128
    task_history: Annotated[int, Integer(0)] = 256
    max_retained_bytes: Annotated[int, Integer(1024 * 1024)] = 64 * 1024 * 1024
    """Limit of the memory kept for one principal: sessions, tasks, histories, keys, subscriptions, answers."""
    max_retained_total_bytes: Annotated[int, Integer(1024 * 1024)] = 512 * 1024 * 1024
    """Limit for all principals together; the default is half of the unit's MemoryMax."""
    shutdown_grace_s: Grace = 10
    send_timeout_s: Seconds = 30
    handshake_timeout_s: Seconds = 10
    """Seconds from accepting a TCP connection to its authentication."""
    close_grace_s: Grace = 2
    max_plans_per_principal: Count = 16
    plan_ttl_s: Seconds = 900
    """Seconds from preparing a plan within which it may be approved and executed."""


@frozen(field_transformer=checked)
class ApprovalConfig:
    """One rule of `approval` of a [[policy]] entry: tasks of this effective risk run only as approved plans."""

    from_risk: Annotated[int, Integer(1, 3)]
    right: Annotated[str, Choice("observe", "approve", "reset_halt", "admin")] = "approve"
    persons: Annotated[int, Integer(1, 16)] = 1
    other: Annotated[bool, Flag()] = False
    """True if the principal that prepared the plan may not approve it; implied by 2 persons or more."""


@frozen(field_transformer=_scoped)
class PolicyConfig:
    """One [[policy]] entry as written; `hearth.policy.rules` interprets it.

    `match` is a condition or a tuple of alternatives. `max_risk_ceiling` None means `max_risk`: a session may
    lower its cap but not raise it.
    """

    name: Annotated[str, Text()]
    match: Annotated[Mapping[str, Any] | tuple[Mapping[str, Any], ...], _MATCH]
    max_risk: Risk = 2
    max_risk_ceiling: Annotated[int | None, Integer(0, 3)] = None
    tools: Names = ("*",)
    rate: Annotated[Mapping[str, str], MapOf(_RATE)] = field(factory=dict)
    hcp: HcpPolicyConfig = field(factory=HcpPolicyConfig)
    rights: Annotated[tuple[str, ...], ListOf(Choice("observe", "approve", "reset_halt", "admin"))] = ()
    lines: _Patterns = None
    i2c: _Patterns = None
    uart: _Patterns = None
    pwm: _Patterns = None
    dac: _Patterns = None
    can: _Patterns = None
    spi: _Patterns = None
    modbus: _Patterns = None
    signals: _Patterns = None
    """Whatever bus they are on; None permits all, and what has no name too."""
    hardware: Annotated[Mapping[str, tuple[str, ...]], MapOf(ListOf(Text()))] = field(factory=dict)
    """The same for the kinds of other packages. In a file the key of an entry may be such a word itself."""
    approval: tuple[ApprovalConfig, ...] = ()
    """What runs only as an approved plan."""

    MORE: ClassVar = "hardware"
    """The attribute that takes unknown keys with an array."""

    def __attrs_post_init__(self) -> None:
        if self.max_risk_ceiling is not None and self.max_risk_ceiling < self.max_risk:
            least = f"at least max_risk ({self.max_risk})"
            raise ConfigError(f"max_risk_ceiling: expected {least}, got {self.max_risk_ceiling}")
        risks = [rule.from_risk for rule in self.approval]
        if len(risks) != len({*risks}):
            raise ConfigError("approval: two rules have one from_risk; keep one of them")


def _without_defaults(extras: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sections of hearth's own extras that are not as if they were left out, and those of others."""
    return {name: one for name, one in extras.items() if name not in OWN or one != type(one)()}


@frozen(init=False)
class Config:
    """A whole configuration. An empty `policy` means: the daemon's own uid and the socket's group.

    It has the sections of the core, and in `extras` those of extras that are given. `Config(http=HttpConfig(...))`
    gives one, and the attribute `http` is that section, or one with all defaults.
    """

    server: ServerConfig = ServerConfig()
    board: BoardConfig = BoardConfig()
    audit: AuditConfig = AuditConfig()
    attest: AttestConfig = AttestConfig()
    log: LogConfig = LogConfig()
    files: FilesConfig = FilesConfig()
    tools: ToolsConfig = field(factory=ToolsConfig)
    tasks: TasksConfig = TasksConfig()
    sandbox: SandboxConfig = field(factory=SandboxConfig)
    limits: LimitsConfig = LimitsConfig()
    policy: tuple[PolicyConfig, ...] = ()
    extras: Mapping[str, Any] = field(factory=dict, eq=_without_defaults)
    """By name, in the order of `hearth.extras`."""

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            server: ServerConfig = ...,
            board: BoardConfig = ...,
            audit: AuditConfig = ...,
            attest: AttestConfig = ...,
            log: LogConfig = ...,
            files: FilesConfig = ...,
            tools: ToolsConfig = ...,
            tasks: TasksConfig = ...,
            sandbox: SandboxConfig = ...,
            limits: LimitsConfig = ...,
            policy: tuple[PolicyConfig, ...] = ...,
            extras: Mapping[str, Any] = ...,
            **sections: Any,
        ) -> None: ...

    else:

        def __init__(self, *, extras=MappingProxyType({}), **sections) -> None:  # noqa: ANN001, ANN003
            core = {name: sections.pop(name) for name in sections.keys() & fields_dict(Config).keys()}
            given = {**extras, **sections}
            ordered = {extra.name: given[extra.name] for extra in extras_of(given) if extra.name in given}
            if unknown := sorted(given.keys() - ordered.keys()):
                raise TypeError(f"there is no section [{unknown[0]}]")
            self.__attrs_init__(**core, extras=ordered)

    def __getattr__(self, name: str) -> Any:
        given = None if name == "extras" else self.extras.get(name)
        if given is None and (name not in OWN or not OWN[name].section):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return OWN[name].load("section")() if given is None else given

    def __attrs_post_init__(self) -> None:
        names = [entry.name for entry in self.policy]
        wrong = [
            f"[[policy]]: two entries are named {show(name)}; give one another name"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        for name, section in self.extras.items():
            wrong += usable(partial(_faults, section, self), f"[{name}]")
        if wrong:
            raise ConfigError("\n".join(wrong))

    @property
    def durability(self) -> Durability:
        """The durability in force: "fsync" if an extra needs it."""
        return "fsync" if any(section.durable for section in self.extras.values()) else self.audit.durability

    @property
    def names_tokens(self) -> bool:
        """True if a `[[policy]]` entry names a token."""
        return any(map(_names_a_token, self.policy))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        """Yield the certificates, keys and capability files that it names, each with what it is."""
        for section in self.extras.values():
            yield from section.files()

    def sections(self, *, given: bool = False) -> dict[str, Any]:
        """Return all sections by name, in the order of a hearth.toml; those of extras only if they are `given`."""
        extras = extras_of(self.extras)
        names = _in_order([extra for extra in extras if extra.name in self.extras] if given else extras)
        return {name: getattr(self, name) for name in names}

    def to_toml(self) -> str:
        """Return a hearth.toml with every key, the unset ones as comments, which loads back to an equal Config."""
        from hearth.config.file import render

        return render(self.sections())


def _faults(section: Section, config: Config) -> list[str]:
    return list(section.faults(config))


_CORE: Final = frozenset(fields_dict(Config)) - {"extras"}


def _in_order(extras: Iterable[Extra]) -> Iterator[str]:
    """Yield the names of the sections of the core and of these extras, in the order of a hearth.toml."""
    behind = [extra for extra in extras if extra.section]
    for name in fields_dict(Config):
        if name != "extras":
            yield name
        yield from (extra.name for extra in behind if extra.after == name)


def _names_a_token(entry: PolicyConfig) -> bool:
    matches = (entry.match,) if isinstance(entry.match, Mapping) else entry.match
    return any("token_sha256" in match for match in matches)


def load_config(path: Path | None, *, any_owner: bool = False, settled: bool = False) -> Config:
    """Read a hearth.toml; without a path, return the defaults.

    Raises ConfigError with one line for each fault, each with the file, the key and the cure; also if users other than
    root and our own could change the file, unless it may be of `any_owner`: for a command that only shows it. If it
    must be `settled`, a file that is just being written is read again, and refused if that does not end.
    """
    if path is None:
        return Config()
    # Imported here: a start without a file does not spend 170 ms on cattrs.
    from hearth.config.file import read_toml

    trusted = None if any_owner else {os.geteuid()}
    return read_config(read_toml(path, trusted, settled=settled), str(path))


def read_config(raw: Mapping[str, Any], source: str) -> Config:
    """Return a parsed hearth.toml as a configuration. `source` is its file. Raises ConfigError as `load_config`."""
    from hearth.config.file import structure

    given = [extra for extra in extras_of(raw.keys() - _CORE) if extra.name in raw]
    try:
        read = structure(_file(*given), raw, source)
    except ConfigError:
        # The messages name keys and tables of all extras.
        whole = dict.fromkeys((*OWN.values(), *given))
        read = structure(_file(*whole), raw, source)
    try:
        return Config(**{name: getattr(read, name) for name in raw})
    except ConfigError as error:
        raise ConfigError("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from None


class _File:
    """The base of the classes of `_file`."""

    @staticmethod
    def unknown_key(name: str, known: Iterable[str]) -> str:
        """Return the reason for refusing a table; extras of other packages are known by name only."""
        others = "or the table of an extra whose package is installed where hearthd runs"
        return unknown_key(name, known, packages=vendor_entry_points(ENTRY_POINTS), or_else=others)


@cache
def _file(*extras: Extra) -> type[Any]:
    """Return the class of a file that may have the sections of these extras."""
    core = fields_dict(Config)
    classes = {extra.name: extra.section_class for extra in extras if extra.section}
    for extra in extras:
        if extra.after not in core:
            raise ConfigError(f"[{extra.name}]: it is written after [{extra.after}], which is no section of the core")
    members = {
        name: field(factory=classes[name], type=classes[name])
        if name in classes
        else field(default=core[name].default, type=core[name].type)
        for name in _in_order(extras)
    }
    return make_class("Config", members, bases=(_File,), frozen=True)


def halt_socket(path: Path) -> Path:
    """Return the path of the halt socket beside a daemon's socket."""
    return path.with_name(f"{path.name}.halt")


def default_socket(environ: Mapping[str, str], uid: int) -> Path:
    """Return the default path of the socket (draft §10.1): in /run for services and root, in /tmp for other users."""
    runtime = _first(environ, "RUNTIME_DIRECTORY")
    if runtime is None:
        runtime = Path("/run/hearth") if uid == 0 else Path("/tmp/hearth")  # the daemon checks who owns it
    return runtime / "hearth.sock"


CARDS: Final = "agentcards"
"""The directory of declared agent cards, beside the audit log."""


def default_state_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Return the default directory of the audit log and its key: from systemd, /var/lib, or from XDG."""
    state = _first(environ, "STATE_DIRECTORY")
    if state is not None:
        return state
    if uid == 0:
        return Path("/var/lib/hearth")
    base = _first(environ, "XDG_STATE_HOME")  # the XDG specification requires to ignore a relative path
    if base is None:
        home = _first(environ, "HOME")
        if home is None:
            raise ConfigError(f"uid {uid} has no HOME for the audit log; set [audit] path and key")
        base = home / ".local/state"
    return base / "hearth"


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """Return the first path of a variable in which systemd separates several by colons; None if it is not absolute."""
    text = environ.get(name, "").split(":")[0]
    return Path(text) if text.startswith("/") else None
