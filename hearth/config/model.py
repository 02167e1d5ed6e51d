"""The configuration: frozen values with their defaults, read from a hearth.toml and written back (design §9).

This module owns the shapes and where things are by default. It refuses what it does not know: unknown keys,
values of another type, files it cannot read whole. It starts nothing and imports neither policy nor audit:
the composition root hands them their parts. `Config()` costs no more than attrs; cattrs is loaded only when a
file is.

[card]: what the daemon's AgentCard says that the daemon cannot know by itself (draft-aevum-agentcard-00).

This module owns the section and its kinds of value. What is written there is held to the card's own rules when the file
is read, so that no daemon serves a card that its readers must reject.

[hcp] and `hcp` of a [[policy]] entry: whole jobs that other agents hand in (HCP), and who may.

This module owns the two shapes. It reads no capability and knows no job: `hearth.hcp.library` finds the files that
`capabilities` names, `hearth.policy.rules` gives a policy entry's rules their meaning.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from attrs import field, frozen

from hearth._util.toml import dump_key, show
from hearth.config.exec import ExecParam as ExecParam, ExecTemplate as ExecTemplate
from hearth.config.listen import (
    AlternativeName,
    Endpoint as Endpoint,
    HttpConfig as HttpConfig,
    TlsConfig as TlsConfig,
    WebSocketConfig as WebSocketConfig,
    open_doors,
)
from hearth.errors import ConfigError
from hearth.fields import (
    AbsolutePath,
    Choice,
    FieldErrors,
    Fields,
    FieldType,
    Flag,
    Integer,
    ListOf,
    Mode,
    Number,
    OneOrMore,
    Secret,
    TableOf,
    Text,
    checked,
)

_WELL_FORMED: Mapping[str, Any] = {
    "agent_id": "0" * 26,
    "name": "hearth",
    "version": "1.0.0",
    "capabilities": [{"id": "tool.hw.board"}],
    "endpoint": {"protocol": "stdio", "url": "stdio:hearth"},
}
"""A card with nothing wrong: what is, with a part of the section put into it, is the part's."""


class _Goal(Fields):
    """A goal that the agent has subscribed to (§2.8): `goal_id` must be there."""

    def __init__(self) -> None:
        super().__init__(goal_id=Text(), description=Text(), priority=Number(ge=0, le=1))
        self.expected = "a table with goal_id, and perhaps description and priority"

    def read(self, raw: object) -> dict[str, object]:
        """The goal's fields. Raises Mismatch."""
        goal = super().read(raw)
        if "goal_id" not in goal:
            raise FieldErrors([("", "goal_id is missing; name the goal")])
        return goal


class _Annotations(FieldType):
    """A table of annotations: strings, numbers, truth values, arrays and tables of them, as JSON can hold them."""

    expected = "a table"

    def read(self, raw: object) -> dict[str, object]:
        """The table, copied. Raises Mismatch for what JSON cannot hold, such as a date or nan."""
        if not isinstance(raw, Mapping):
            raise self.wrong(raw)
        for key in raw:
            Text().read(key)
            if key.startswith("hearth:"):
                why = "hearth: is for what the daemon says itself; take another prefix"
                raise FieldErrors([(f" key {show(key)}", why)])
        plain = _plain(raw, "")
        assert isinstance(plain, dict)
        return plain


def _plain(value: object, where: str) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(member, f"{where}.{dump_key(str(key))}") for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(member, f"{where}[{index}]") for index, member in enumerate(value)]
    if isinstance(value, (str, bool, int)) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    raise FieldErrors([(where, f"expected what JSON can hold, got {show(value)}; write it as a string")])


@frozen(field_transformer=checked)
class CardConfig:
    """[card]: all optional. `url` and `protocol` go together; without them the listeners tell."""

    name: Annotated[str | None, Text("a name of at most 128 characters", limit=128)] = None
    """What the agent is for, in a few words, and nobody's name: the card is for anybody."""
    protocol: Annotated[str | None, Choice("http", "https", "grpc", "stdio", "mcp")] = None
    url: Annotated[str | None, Text()] = None
    """Where other agents reach this one, if that is not where it listens: behind a proxy, or by its public name."""
    auth: Annotated[str | None, Choice("none", "bearer", "api_key", "oauth2", "mtls")] = None
    base_cost_joules: Annotated[float | None, Number(ge=0)] = None
    per_token_joules: Annotated[float | None, Number(ge=0)] = None
    measure_energy: Annotated[bool, Flag()] = True
    """Whether energy is measured for the price where base_cost_joules is not set and the machine has a meter."""
    goal_subscriptions: Annotated[tuple[Mapping[str, Any], ...], ListOf(_Goal())] = ()
    metadata: Annotated[Mapping[str, Any], _Annotations()] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if (self.protocol is None) != (self.url is None):
            there, lacking = ("url", "protocol") if self.protocol is None else ("protocol", "url")
            raise ConfigError(f"{lacking} not set: {there} alone is no endpoint; set {lacking}, or take {there} out")
        given: dict[str, Any] = {}
        if self.url is not None:
            given["endpoint"] = {"protocol": self.protocol, "url": self.url}
        if self.base_cost_joules is not None:
            given["pricing"] = {"base_cost_joules": self.base_cost_joules}
        if self.metadata:
            given["metadata"] = self.metadata
        if given:
            # Only now: a configuration without such a section loads no validator.
            from hearth.agentcard.validate import validate

            wrong = [
                f"{_key(found.pointer)}: {found.problem}; {found.cure}" for found in validate({**_WELL_FORMED, **given})
            ]
            if wrong:
                raise ConfigError("\n".join(wrong))


def _key(pointer: str) -> str:
    """The section's key for a place in the card."""
    first, _, rest = pointer.removeprefix("/").partition("/")
    return f"{first} {rest}" if first == "metadata" else rest


class _Source(Text):
    """Where capabilities are: an absolute path, or the name of an entry point."""

    def __init__(self) -> None:
        super().__init__('an absolute path, or the name of an entry point such as "bench-climate-survey"')
        self._path, self._name = AbsolutePath(), re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")

    def read(self, raw: object) -> str:
        """The path or the name, as written."""
        text = super().read(raw)
        if is_path(text):
            self._path.read(text)
        elif not self._name.fullmatch(text):
            raise self.wrong(raw)
        return text


def is_path(source: str) -> bool:
    """Whether an entry of `capabilities` is a file or a directory; the others are names of entry points."""
    return "/" in source or source.endswith((".py", ".toml"))


_Count: TypeAlias = Annotated[int, Integer(1)]
_Names: TypeAlias = Annotated[tuple[str, ...], ListOf(Text())]
# The words are those of `hearth.hcp.messages`, which takes as long to load as all this.
_Risk: TypeAlias = Annotated[Literal["R1", "R2", "R3", "R4", "R5"], Choice("R1", "R2", "R3", "R4", "R5")]
_Classification: TypeAlias = Annotated[Literal["T1", "T2", "T3", "T4"], Choice("T1", "T2", "T3", "T4")]


@frozen(field_transformer=checked)
class HcpConfig:
    """[hcp]: which capabilities there are, and what bounds the jobs."""

    GONE: ClassVar[Mapping[str, str]] = {
        "planners": "write what it planned as a Python function, and name its file or entry point in capabilities",
    }
    """Keys of earlier versions, with the cure."""

    serve: Annotated[bool, Flag()] = True
    """Whether jobs are taken at all; without, an HCP message is answered as anything that is not known."""
    capabilities: Annotated[tuple[str, ...], ListOf(_Source())] = ()
    """Capability files, directories whose *.py and *.toml are such, and names of entry points of installed packages."""
    shipped: _Names = ("*",)
    """Names or patterns of the capabilities that come with hearth and are offered."""
    default_classification: _Classification = "T1"
    """What a job's data is taken for whose caller says nothing."""
    max_jobs: _Count = 16
    max_jobs_per_principal: _Count = 4
    max_steps: _Count = 10_000
    """Steps in one job."""
    approval_timeout_s: Annotated[float, Number(gt=0)] = 3600
    abort_timeout_s: Annotated[float, Number(gt=0)] = 10
    retention_s: Annotated[float, Number(gt=0)] = 604_800
    max_artifact_bytes: _Count = 16 * 1024 * 1024
    max_artifacts_bytes: _Count = 256 * 1024 * 1024
    """Of all jobs together."""

    @property
    def capability_paths(self) -> tuple[Path, ...]:
        """The files and directories among `capabilities`."""
        return tuple(Path(source) for source in self.capabilities if is_path(source))

    def __attrs_post_init__(self) -> None:
        if self.max_artifact_bytes > self.max_artifacts_bytes:
            most = f"at most max_artifacts_bytes ({self.max_artifacts_bytes})"
            raise ConfigError(f"max_artifact_bytes: expected {most}, got {self.max_artifact_bytes}")


@frozen(field_transformer=checked)
class HcpPolicyConfig:
    """`hcp` of a [[policy]] entry: which whole jobs its principals may hand in, within what the entry allows anyway."""

    capabilities: _Names = ("*",)
    max_risk: _Risk = "R5"
    max_data_classification: _Classification = "T2"
    """T3 and T4 take encryption at rest, which is the operator's disk: to allow them is to say that it has that."""
    callers: _Names = ("*",)
    approve: Annotated[bool, Flag()] = False
    """Whether its principals may allow jobs of others that wait for a person."""


Count: TypeAlias = Annotated[int, Integer(1)]
"""How many of something there may be; none at all would be a server that serves nobody."""
Seconds: TypeAlias = Annotated[float, Number(gt=0)]
"""A time that must pass before something happens."""
Grace: TypeAlias = Annotated[float, Number(ge=0)]
"""A time that is granted; 0 grants none."""
Risk: TypeAlias = Annotated[int, Integer(0, 3)]
"""A risk level (draft §3.3, Table 4)."""
Names: TypeAlias = Annotated[tuple[str, ...], ListOf(Text())]
"""Tool names, or globs such as "gpio.*" where the key says so."""
Paths: TypeAlias = Annotated[tuple[Path, ...], ListOf(AbsolutePath())]
"""Directories or files that the path guard takes as roots."""

_TEMPLATE_NAME = Text("a name of letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RATE = Text('a rate such as "50/s", "10/m" or "100/10s"', r"(?=0*[1-9])[0-9]{1,6}/(?!0+[smh])[0-9]{0,6}[smh]")


class _MatchTable(Fields):
    """A condition on a principal. `any` says that there is none, so it stands alone and is true."""

    def read(self, raw: object) -> dict[str, object]:
        table = super().read(raw)
        if "any" in table and table != {"any": True}:
            raise FieldErrors([("", "any = true stands alone, and any = false means nothing; keep one thing")])
        return table


_MATCH = OneOrMore(
    _MatchTable(
        uid=Integer(0, 2**32 - 2),
        gid=Integer(0, 2**32 - 2),
        user=Text(),
        group=Text(),
        cert_subject=Text(),
        cert_san=AlternativeName(),
        token_sha256=Secret("the 64 hex digits that `printf %s TOKEN | sha256sum` prints", "[0-9A-Fa-f]{64}"),
        any=Flag(),
    )
)


@frozen(field_transformer=checked)
class ServerConfig:
    """[server]: the Unix domain socket (draft §10.1). `socket` None means `default_socket`."""

    socket: Annotated[Path | None, AbsolutePath(max_bytes=107)] = None
    """At most 107 bytes: what the kernel's sockaddr_un holds."""
    socket_mode: Annotated[int, Mode()] = 0o660
    socket_group: Annotated[str | None, Text()] = None


@frozen(field_transformer=checked)
class BoardConfig:
    """[board]: which hardware there is."""

    profile: Annotated[str, Text()] = "sim"


@frozen(field_transformer=checked)
class AuditConfig:
    """[audit]: where the log and its signing key are; None means beneath `default_state_dir` (design §7)."""

    path: Annotated[Path | None, AbsolutePath()] = None
    durability: Annotated[Literal["os", "fsync", "relaxed"], Choice("os", "fsync", "relaxed")] = "os"
    rotate_bytes: Annotated[int, Integer(1024)] = 64 * 1024 * 1024
    checkpoint_every: Count = 1000
    checkpoint_interval_s: Seconds = 3600
    reserve_bytes: Annotated[int, Integer(0, 2**30)] = 1024 * 1024
    """Room that is kept free for the last records of what runs when the disk is full; 0: none."""
    key: Annotated[Path | None, AbsolutePath()] = None


@frozen(field_transformer=checked)
class FilesConfig:
    """[files]: the roots beneath which file tools may read and write; none by default (draft §12.2)."""

    read: Paths = ()
    write: Paths = ()


@frozen(field_transformer=checked)
class ToolsConfig:
    """[tools]: which tools there are beside or short of the default set, and what opt-in ones may touch."""

    enable: Names = ()
    disable: Names = ()
    exec: Mapping[str, ExecTemplate] = field(factory=dict)
    """By name: what proc.exec may run. In TOML a bare array is a template's argv."""
    signal: Paths = ()
    """Executables whose processes proc.signal may signal, beside those that proc.exec started."""
    proc_argv: Annotated[bool, Flag()] = False
    """Whether proc.list shows command lines: they often carry secrets (draft §13)."""
    disclose: Annotated[tuple[str, ...], ListOf(Choice("addresses", "users"))] = ()
    """What tools may tell of people and places: hardware and IP addresses in sys.network, user names in proc.list."""

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
class SandboxConfig:
    """[sandbox]: by default everything that this kernel can enforce, and the user that started the daemon.

    `hearth.drivers.sandbox` makes a plan of it and puts that in force.
    """

    enable: Annotated[bool, Flag()] = True
    require: Annotated[bool, Flag()] = False
    """Whether the daemon refuses to start where a part of it cannot be put in force."""
    user: Annotated[str | None, Text()] = None
    """Whom to become, with this user's groups, when started as root."""
    program_user: Annotated[str | None, Text()] = None
    """Whom programs of proc.exec run as, when started as root; None means: as the daemon."""
    read: Paths = ()
    write: Paths = ()
    execute: Paths = ()
    """What programs of proc.exec may run in their turn: a script's commands."""
    network: Annotated[bool, Flag()] = False
    """Whether vendors' tools and programs may make IP sockets, and reach whom they like."""
    hotplug: Annotated[bool | None, Flag()] = None
    """Whether all of /dev may be opened, for devices that come back; None means: where the board has such ones."""

    def __attrs_post_init__(self) -> None:
        if self.require and not self.enable:
            raise ConfigError("require = true asks for what enable = false switches off; take one of them out")


@frozen(field_transformer=checked)
class LimitsConfig:
    """[limits]: what bounds the use of resources (draft §12.5, design §8)."""

    idle_ttl_s: Seconds = 300
    max_document_bytes: Annotated[int, Integer(256)] = 1024 * 1024
    max_values: Count = 20_000
    """Values in one document: objects, arrays and what is in them, names of members apart."""
    max_batch: Count = 64
    max_steps: Count = 256
    max_tasks_per_session: Count = 64
    max_sessions_per_principal: Count = 64
    session_rate: Annotated[str, _RATE] = "1000/10s"
    """How often one principal may open a session: each is two records in the audit log."""
    reject_rate: Annotated[str, _RATE] = "60/m"
    """How often the refusals of one principal go on record one by one; the others are counted there."""
    max_connections: Count = 1024
    max_outstanding: Count = 256
    bus_queue: Count = 128
    task_history: Annotated[int, Integer(0)] = 256
    max_retained_bytes: Annotated[int, Integer(1024 * 1024)] = 64 * 1024 * 1024
    """Memory that may be kept for one principal: sessions, tasks, histories, keys, subscriptions, answers."""
    max_retained_total_bytes: Annotated[int, Integer(1024 * 1024)] = 512 * 1024 * 1024
    """For all principals together: half of what the unit's MemoryMax allows."""
    shutdown_grace_s: Grace = 10
    send_timeout_s: Seconds = 30
    handshake_timeout_s: Seconds = 10
    """From accepting a TCP connection to knowing who it is."""
    close_grace_s: Grace = 2


@frozen(field_transformer=checked)
class PolicyConfig:
    """One [[policy]] entry (design §6), as it was written; `hearth.policy.rules` gives it its meaning.

    `match` is a condition or a tuple of alternatives. `max_risk_ceiling` None means `max_risk`: a session may
    lower its cap but not raise it.
    """

    name: Annotated[str, Text()]
    match: Annotated[Mapping[str, Any] | tuple[Mapping[str, Any], ...], _MATCH]
    max_risk: Risk = 2
    max_risk_ceiling: Annotated[int | None, Integer(0, 3)] = None
    tools: Names = ("*",)
    rate: Annotated[Mapping[str, str], TableOf(_RATE)] = field(factory=dict)
    hcp: HcpPolicyConfig = field(factory=HcpPolicyConfig)

    def __attrs_post_init__(self) -> None:
        if self.max_risk_ceiling is not None and self.max_risk_ceiling < self.max_risk:
            least = f"at least max_risk ({self.max_risk})"
            raise ConfigError(f"max_risk_ceiling: expected {least}, got {self.max_risk_ceiling}")


@frozen
class Config:
    """A whole configuration. An empty `policy` means: the daemon's own uid and the socket's group."""

    server: ServerConfig = ServerConfig()
    tls: TlsConfig = field(factory=TlsConfig)
    websocket: WebSocketConfig = field(factory=WebSocketConfig)
    http: HttpConfig = field(factory=HttpConfig)
    card: CardConfig = field(factory=CardConfig)
    hcp: HcpConfig = field(factory=HcpConfig)
    board: BoardConfig = BoardConfig()
    audit: AuditConfig = AuditConfig()
    files: FilesConfig = FilesConfig()
    tools: ToolsConfig = field(factory=ToolsConfig)
    sandbox: SandboxConfig = field(factory=SandboxConfig)
    limits: LimitsConfig = LimitsConfig()
    policy: tuple[PolicyConfig, ...] = ()

    def __attrs_post_init__(self) -> None:
        names = [entry.name for entry in self.policy]
        wrong = [
            f"[[policy]]: two entries are named {show(name)}; give one another name"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        wrong += open_doors(self.tls, self.websocket, self.http, tokens=any(map(_names_a_token, self.policy)))
        if wrong:
            raise ConfigError("\n".join(wrong))

    def to_toml(self) -> str:
        """A hearth.toml with every key, the unset ones as comments, which loads back to an equal Config."""
        from hearth.config.file import render

        return render(self)


def _names_a_token(entry: PolicyConfig) -> bool:
    matches = (entry.match,) if isinstance(entry.match, Mapping) else entry.match
    return any("token_sha256" in match for match in matches)


def load_config(path: Path | None) -> Config:
    """Read a hearth.toml; without one, the defaults.

    Raises ConfigError: one line for each thing that is wrong, each with the file, the key and the cure.
    """
    if path is None:
        return Config()
    # Only now: a start without a file does not spend cattrs' 170 ms.
    from hearth.config.file import read_toml, structure

    return structure(Config, read_toml(path), str(path))


def default_socket(environ: Mapping[str, str], uid: int) -> Path:
    """Where the socket is unless [server] says so (draft §10.1): services have /run, anybody else /tmp."""
    runtime = _first(environ, "RUNTIME_DIRECTORY")
    if runtime is None:
        runtime = Path("/run/hearth") if uid == 0 else Path("/tmp/hearth")  # the daemon checks who owns it
    return runtime / "hearth.sock"


def default_state_dir(environ: Mapping[str, str], uid: int) -> Path:
    """Where the audit log and its key are unless [audit] says so: systemd's choice, /var/lib, or XDG's."""
    state = _first(environ, "STATE_DIRECTORY")
    if state is not None:
        return state
    if uid == 0:
        return Path("/var/lib/hearth")
    base = _first(environ, "XDG_STATE_HOME")  # a relative one is to be ignored, says the XDG specification
    if base is None:
        home = _first(environ, "HOME")
        if home is None:
            raise ConfigError(f"uid {uid} has no HOME for the audit log; set [audit] path and key")
        base = home / ".local/state"
    return base / "hearth"


def _first(environ: Mapping[str, str], name: str) -> Path | None:
    """The first absolute path of a variable in which systemd separates several by colons."""
    text = environ.get(name, "").split(":")[0]
    return Path(text) if text.startswith("/") else None
