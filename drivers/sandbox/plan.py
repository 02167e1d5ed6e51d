"""What a daemon may reach: worked out of its configuration, its board and this machine, each thing with its reason.

Owns the deciding, and the shape of a plan; puts nothing in force. It looks at which paths and devices are there, since
a rule of the kernel's stands on what is there now.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from attrs import field, frozen

from hearth.drivers.sandbox.devices import devices_of
from hearth.drivers.sandbox.identity import Identity, find_user
from hearth.drivers.sandbox.system import interpreter, names_from_daemons, system_files
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hearth.config import Config
    from hearth.drivers.boards.profile import Profile

Access: TypeAlias = Literal["read", "write", "execute", "device", "list", "unlink"]
"""What may be done beneath a path. "write" goes with making and removing, "device" with ioctl; "list" is the names of a
directory alone, "unlink" taking files out of it."""

EXTRA = "HEARTH_SANDBOX_WRITE"
"""Environment variable: more paths to write to, for whoever measures the daemon from within."""
_TOP: frozenset[Path] = frozenset({Path("/")})


class Grant(NamedTuple):
    """A path, what may be done there, and why. `asked` says that a person wrote the path down."""

    path: Path
    access: Access
    why: str
    asked: bool = False

    def to_json(self) -> dict[str, str]:
        """As doctor shows it."""
        return {"path": str(self.path), "access": self.access, "why": self.why}


@frozen(kw_only=True)
class Places:
    """Where the daemon's own files are: `audit` is the log's real path, `socket` the one that it bound, if it did."""

    audit: Path
    key: Path
    socket: Path | None = None

    @property
    def own(self) -> tuple[Path, ...]:
        """What the daemon makes that must stay its own, if it becomes another user; patterns beside the log too."""
        beside = self.audit.parent.glob(f"{self.audit.name}*") if self.audit.parent.is_dir() else ()
        return (*beside, self.audit.parent / "agent-card.json", self.key, Path(f"{self.key}.pub"))

    @property
    def private(self) -> tuple[Path, ...]:
        """What no program is to reach: the log, what the daemon keeps beside it, and the key."""
        beside = (Path(f"{self.audit}{suffix}") for suffix in (".outputs", ".hcp", ".programs"))
        return (self.audit, *beside, self.audit.parent / "agent-card.json", self.key)


@frozen(kw_only=True)
class Plan:
    """What is to be put in force. A None is a thing that is denied; a text says why it is not."""

    grants: tuple[Grant, ...] = ()
    network: str | None = None
    """Why TCP may be bound and connected."""
    families: Mapping[str, str] = field(factory=dict)
    """Sockets that may be made, with the reason: "unix", "inet", "inet-dgram", "netlink:route", "netlink:sock_diag".

    Those of clients are accepted, and the service manager's is there already.
    """
    connect: str | None = None
    """Why Unix sockets of others may be connected to."""
    signals: str | None = None
    """Why processes outside may be signalled."""
    looks: str | None = None
    """Why other processes are looked into, which Landlock lets nobody do: then there is none."""
    user: Identity | None = None
    capabilities: tuple[str, ...] = ()
    """Those of root's powers that are kept, where the daemon stays root."""
    added: tuple[Path, ...] = ()
    """Paths that the environment added."""
    hotplug: str | None = None
    """Why all of /dev may be opened."""
    notifier: int | None = None
    """The descriptor of the socket that is connected to the service manager, where there is one."""
    notes: tuple[str, ...] = ()
    """What somebody should know before the plan is put in force."""

    def to_json(self) -> dict[str, Any]:
        """As doctor shows it."""
        said = {
            "network": self.network,
            "connect": self.connect,
            "signals": self.signals,
            "hotplug": self.hotplug,
        }
        return {
            "paths": [grant.to_json() for grant in self.grants],
            "sockets": dict(self.families),
            **{name: why for name, why in said.items() if why is not None},
            **({"user": self.user.name} if self.user is not None else {}),
        }


def make_plan(
    config: Config,
    profile: Profile,
    places: Places,
    *,
    tools: Collection[str],
    environ: Mapping[str, str],
    uid: int,
) -> Plan:
    """The plan for a daemon that `uid` runs, with a board's profile as it was opened and these tools.

    Raises ConfigError: a user that is not there, or cannot be become.
    """
    sandbox = config.sandbox
    user = _user(config, uid)
    root = uid == 0 and user is None
    devices = devices_of(profile, sandbox.hotplug)
    added = added_paths(environ)
    grants = [
        *(Grant(path, "read", "Python and its libraries") for path in interpreter()),
        *(Grant(path, "read", why) for path, why in system_files(root=root)),
        *(Grant(path, access, why) for path, access, why in devices.grants),
        *_own(places),
        *_configured(config, tools),
        *(Grant(path, "write", EXTRA, asked=True) for path in added),
    ]
    notes = [] if not root else [
        "hearthd runs as root and stays it; set [sandbox] user, or start it as a user that has the buses' groups"
    ]  # fmt: skip
    signals = "proc.signal" in tools and bool(config.tools.signal)
    connect = "[sandbox] network" if config.sandbox.network else names_from_daemons()
    return Plan(
        grants=tuple(grants),
        network="[sandbox] network" if config.sandbox.network else None,
        families=dict(_families(config, tools, connect)),
        connect=connect,
        signals="proc.signal, for what [tools] signal lists" if signals else None,
        looks="proc.signal, to find out what a process runs" if signals else None,
        user=user,
        capabilities=tuple(_capabilities(tools)) if root else (),
        added=added,
        hotplug=devices.hotplug,
        notes=tuple(notes),
    )


def added_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """What the environment adds to what may be written: absolute paths, separated by colons."""
    return tuple(Path(text) for text in environ.get(EXTRA, "").split(":") if text.startswith("/"))


def _user(config: Config, uid: int) -> Identity | None:
    name = config.sandbox.user
    if name is None:
        return None
    who = find_user(name)
    if uid == 0:
        return who if who.uid else None
    if who.uid != uid:
        raise ConfigError(
            f"[sandbox] user: only root can become {name!r}; start hearthd as root or as {name!r}, or take user out"
        )
    return None


def _own(places: Places) -> Iterator[Grant]:
    yield Grant(places.audit.parent, "write", "the audit log, what lies beside it, and whole jobs")
    if places.key.parent != places.audit.parent:
        yield Grant(places.key.parent, "write", "the audit log's key")
    if places.socket is not None:
        yield Grant(places.socket.parent, "unlink", "the socket, which goes when the daemon ends")


def _configured(config: Config, tools: Collection[str]) -> Iterator[Grant]:
    for name, section in (("tls", config.tls), ("websocket", config.websocket), ("http", config.http)):
        for key in ("cert", "key", "client_ca"):
            path = getattr(section, key)
            if section.listen is not None and path is not None:
                # SIGHUP reads it again, and by then it may be another file of the same name.
                for place in dict.fromkeys((path.parent, path.resolve().parent)):
                    yield Grant(path if place in _TOP else place, "read", f"[{name}] {key}")
    for path in config.files.read:
        yield Grant(path, "read", "[files] read", asked=True)
    for path in config.files.write:
        yield Grant(path, "write", "[files] write", asked=True)
    for path in config.sandbox.read:
        yield Grant(path, "read", "[sandbox] read", asked=True)
    for path in config.sandbox.write:
        yield Grant(path, "write", "[sandbox] write", asked=True)


def _families(config: Config, tools: Collection[str], connect: str | None) -> Iterator[tuple[str, str]]:
    if connect is not None:
        yield "unix", connect
    if config.sandbox.network:
        yield "inet", "[sandbox] network"
    if config.sandbox.network or "sys.network" in tools:
        yield "inet-dgram", "sys.network asks the kernel for its interfaces through one"
        yield "netlink:route", "sys.network asks the kernel for its addresses"
    if config.websocket.listen is not None or config.http.listen is not None:
        yield "netlink:sock_diag", "who of this machine's users is at the other end of a loopback connection"


def _capabilities(tools: Collection[str]) -> Iterator[str]:
    """What a daemon that stays root goes on doing to files of others, and to processes where a tool does."""
    yield from ("CHOWN", "DAC_OVERRIDE", "FOWNER")
    if "proc.signal" in tools:
        yield "KILL"
