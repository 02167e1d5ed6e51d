"""The plan of a daemon's confinement, from its configuration, its board and this machine, with all reasons.

This module decides, and owns the shape of a plan; it puts nothing in force. It checks which paths and devices exist,
because a rule of the kernel's refers to a file that exists now.
"""

from __future__ import annotations

import os
import re
import site
import stat
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from attrs import field, frozen

from hearth.drivers.kinds import kinds_of
from hearth.drivers.sandbox.identity import ProcessIdentity, find_user
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hearth.config.model import Config
    from hearth.drivers.linux.survey import DeviceNode
    from hearth.drivers.profile import Profile

# The files a program needs to run: the interpreter that its first bytes name, and that interpreter's own. This part
# reads ELF headers and `#!` lines; it runs nothing. Programs that a program starts in turn cannot be known from it.

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path of programs."""
_DEPTH: Final = 5
"""Levels of interpreters of interpreters: the kernel follows as many."""
_HEAD: Final = 4096
"""Bytes that hold the program headers and the name of the interpreter; the linker puts them first."""
_PT_INTERP: Final = 3
_ENV: Final = "env"


def interpreters_of(program: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Yield the interpreters that the kernel needs to run a program; none, if it cannot be read."""
    try:
        with program.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return
    found = _script(head) if head.startswith(b"#!") else _elf(head)
    for path in found:
        yield path
        if depth:
            yield from interpreters_of(path, depth - 1)


def _script(head: bytes) -> Iterator[Path]:
    words = head[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split()
    if not words:
        return
    yield Path(words[0])
    if Path(words[0]).name == _ENV:
        # env searches where the daemon's programs search; an option before the name, such as -S, is not the name.
        for word in words[1:]:
            if not word.startswith("-") and "=" not in word:
                yield from _on_path(word)
                return


def _on_path(name: str) -> Iterator[Path]:
    import shutil

    found = shutil.which(name, path=PATH)
    if found is not None:
        yield Path(found)


def _elf(head: bytes) -> Iterator[Path]:
    """Yield PT_INTERP, by the ELF specification: the 64-bit layout and the 32-bit one, in either byte order."""
    if head[:4] != b"\x7fELF" or len(head) < 64:
        return
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    start = struct.unpack_from(f"{order}Q" if wide else f"{order}I", head, 32 if wide else 28)[0]
    size, count = struct.unpack_from(f"{order}HH", head, 54 if wide else 42)
    for index in range(count):
        at = start + index * size
        if at + size > len(head):
            return
        kind = struct.unpack_from(f"{order}I", head, at)[0]
        if kind == _PT_INTERP:
            layout = f"{order}8xQ16xQ" if wide else f"{order}4xI8xI"
            offset, length = struct.unpack_from(layout, head, at)
            name = head[offset : offset + length].rstrip(b"\0")
            if name:
                yield Path(name.decode("utf-8", "surrogateescape"))
            return


Access: TypeAlias = Literal["read", "write", "execute", "device", "list", "unlink"]
"""A kind of access beneath a path. "write" includes making and removing, "device" ioctl; "list" is the names of a
directory alone, "unlink" taking files out of it."""

EXTRA = "HEARTH_SANDBOX_WRITE"
"""Environment variable: more paths to write to, for tools that measure the daemon from within."""
_TOP: frozenset[Path] = frozenset({Path("/")})


class PathGrant(NamedTuple):
    """A path, its access, and the reason. `asked` says that a person wrote the path down."""

    path: Path
    access: Access
    why: str
    asked: bool = False

    def to_json(self) -> dict[str, str]:
        """Return the grant for doctor."""
        return {"path": str(self.path), "access": self.access, "why": self.why}


@frozen(kw_only=True)
class Places:
    """Paths of the daemon's own files: `audit` is the log's real path, `socket` the one that it bound, if it did."""

    audit: Path
    key: Path
    socket: Path | None = None
    config: Path | None = None
    """The configuration's file, which a reload reads again."""

    @property
    def own(self) -> tuple[Path, ...]:
        """Return the files that must stay the daemon's own if it becomes another user; patterns beside the log too."""
        beside = self.audit.parent.glob(f"{self.audit.name}*") if self.audit.parent.is_dir() else ()
        return (*beside, self.audit.parent / "agent-card.json", self.key, Path(f"{self.key}.pub"))

    @property
    def private(self) -> tuple[Path, ...]:
        """Return the files that no program may access: the log, the daemon's files beside it, and the key."""
        beside = (Path(f"{self.audit}{suffix}") for suffix in (".outputs", ".hcp", ".programs"))
        return (self.audit, *beside, self.audit.parent / "agent-card.json", self.key)


@frozen(kw_only=True)
class SandboxPlan:
    """A confinement to put in force. None denies a thing; a text allows it and says why."""

    grants: tuple[PathGrant, ...] = ()
    network: str | None = None
    """The reason to bind and connect TCP."""
    tcp: Mapping[int, str] = field(factory=dict)
    """TCP ports to connect to, with the reason."""
    families: Mapping[str, str] = field(factory=dict)
    """Sockets that may be made, with the reason: "unix", "inet" (streams and datagrams), "inet-stream", "inet-dgram",
    "can", "netlink:route", "netlink:sock_diag".

    Client sockets are accepted, and the service manager's exists already.
    """
    connect: str | None = None
    """The reason to connect to other daemons' Unix sockets."""
    signals: str | None = None
    """The reason to signal processes outside."""
    looks: str | None = None
    """The reason to look into other processes. Landlock forbids that, so it is then not used."""
    user: ProcessIdentity | None = None
    capabilities: tuple[str, ...] = ()
    """Capabilities that are kept where the daemon stays root."""
    added: tuple[Path, ...] = ()
    """Paths that the environment added."""
    hotplug: str | None = None
    """The reason to open all of /dev."""
    notifier: int | None = None
    """The descriptor of the socket that is connected to the service manager, where there is one."""
    notes: tuple[str, ...] = ()
    """Warnings to show before the plan is put in force."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan for doctor."""
        reasons = {
            "network": self.network,
            "connect": self.connect,
            "signals": self.signals,
            "hotplug": self.hotplug,
        }
        return {
            "paths": [grant.to_json() for grant in self.grants],
            **({"tcp": {str(port): why for port, why in self.tcp.items()}} if self.tcp else {}),
            "sockets": dict(self.families),
            **{name: why for name, why in reasons.items() if why is not None},
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
) -> SandboxPlan:
    """Return the plan for a daemon that `uid` runs, with a board's profile as it was opened and these tools.

    Raises ConfigError for a user that does not exist, or that the process cannot become.
    """
    sandbox = config.sandbox
    user = _user(config, uid)
    root = uid == 0 and user is None
    devices = devices_of(profile, sandbox.hotplug)
    added = added_paths(environ)
    grants = [
        *(PathGrant(path, "read", "Python and its libraries") for path in interpreter()),
        *(PathGrant(path, "read", why) for path, why in system_files(root=root)),
        *(PathGrant(path, access, why) for path, access, why in devices.grants),
        *_own(places),
        *_configured(config, tools),
        *(PathGrant(path, "write", EXTRA, asked=True) for path in added),
    ]
    notes = [] if not root else [
        "hearthd runs as root and stays it; set [sandbox] user, or start it as a user that has the buses' groups"
    ]  # fmt: skip
    signals = "proc.signal" in tools and bool(config.tools.signal)
    tcp = dict(_tcp_ports(config, profile))
    reason = ", ".join(dict.fromkeys(tcp.values()))
    connect = "[sandbox] network" if config.sandbox.network else _tpm_socket(config) or names_from_daemons()
    return SandboxPlan(
        grants=tuple(grants),
        network="[sandbox] network" if config.sandbox.network else None,
        tcp=tcp,
        families={
            **dict.fromkeys(["inet-stream"] if tcp else [], reason),
            **dict(_families(config, profile, tools, connect)),
        },
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
    """Return the paths that the environment adds to the writable ones: absolute, separated by colons."""
    return tuple(Path(text) for text in environ.get(EXTRA, "").split(":") if text.startswith("/"))


def _user(config: Config, uid: int) -> ProcessIdentity | None:
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


def _own(places: Places) -> Iterator[PathGrant]:
    yield PathGrant(places.audit.parent, "write", "the audit log, what lies beside it, and whole jobs")
    if places.key.parent != places.audit.parent:
        yield PathGrant(places.key.parent, "write", "the audit log's key")
    if places.config is not None:
        yield from _read_again(places.config.absolute(), "the configuration")
    if places.socket is not None:
        yield PathGrant(places.socket.parent, "unlink", "the socket, which goes when the daemon ends")


def _read_again(path: Path, why: str) -> Iterator[PathGrant]:
    """Grant what a reload reads: by then it may be another file of the same name."""
    for place in dict.fromkeys((path.parent, path.resolve().parent)):
        yield PathGrant(path if place in _TOP else place, "read", why)


def _configured(config: Config, tools: Collection[str]) -> Iterator[PathGrant]:
    for section in config.extras.values():
        for path, why, again in section.reads():
            yield from _read_again(path, why) if again else (PathGrant(path, "read", why),)
    for path in config.files.read:
        yield PathGrant(path, "read", "[files] read", asked=True)
    for path in config.files.write:
        yield PathGrant(path, "write", "[files] write", asked=True)
    for path in config.sandbox.read:
        yield PathGrant(path, "read", "[sandbox] read", asked=True)
    for path in config.sandbox.write:
        yield PathGrant(path, "write", "[sandbox] write", asked=True)


def _tpm_socket(config: Config) -> str | None:
    """Return the reason for sockets of a TPM that is no device: its library opens a connection for each command."""
    tpm = config.attest.tpm
    return None if tpm is None or tpm.startswith(("/", "device:")) else "[attest] tpm, which is no device"


def _families(
    config: Config, profile: Profile, tools: Collection[str], connect: str | None
) -> Iterator[tuple[str, str]]:
    if connect is not None:
        yield "unix", connect
    yield from ((family, why) for family, why, port in _sockets(config, profile) if port is None)
    if config.sandbox.network:
        yield "inet", "[sandbox] network"
    if config.sandbox.network or "sys.network" in tools:
        yield "inet-dgram", "sys.network asks the kernel for its interfaces through one"
        yield "netlink:route", "sys.network asks the kernel for its addresses"


def _tcp_ports(config: Config, profile: Profile) -> Iterator[tuple[int, str]]:
    yield from ((port, why) for _, why, port in _sockets(config, profile) if port is not None)


def _sockets(config: Config, profile: Profile) -> Iterator[tuple[str, str, int | None]]:
    """Yield the sockets that the buses of a profile and the extras need: family, reason, and TCP port to dial."""
    for kind in kinds_of(profile.specs):
        if specs := profile.of(kind.name):
            yield from kind.machine().sockets(specs)
    for section in config.extras.values():
        yield from section.sockets(config)


def _capabilities(tools: Collection[str]) -> Iterator[str]:
    """Yield the capabilities that a daemon keeps as root: for others' files, and processes where a tool needs them."""
    yield from ("CHOWN", "DAC_OVERRIDE", "FOWNER")
    if "proc.signal" in tools:
        yield "KILL"


# The device nodes that a board needs: exactly those of the buses it lists, or all of /dev where devices come and go.
# GPIO chips are opened to read their labels, as the drivers do; nothing is requested.

Reach: TypeAlias = tuple[Path, Literal["device", "list"], str]
DEV = Path("/dev")
_PLUG = re.compile(r"/(?:usb[0-9]|pcmcia|mmc)")


class Devices(NamedTuple):
    """The nodes of /dev that may be used, and the reason if it is all of them."""

    grants: tuple[Reach, ...]
    hotplug: str | None


def devices_of(profile: Profile, hotplug: bool | None, *, sys: Path = Path("/sys")) -> Devices:
    """Return the nodes that an opened profile needs; `hotplug` decides on all of /dev, None lets the board."""
    used = [(kind, specs) for kind in kinds_of(profile.specs) if (specs := profile.of(kind.name))]
    nodes = [node for kind, specs in used for node in kind.machine().nodes(specs, sys)]
    why = _why_all(nodes, sys) if hotplug is None else "[sandbox] hotplug" if hotplug else None
    grants: list[Reach] = [(path, "device", "no device") for path in plain_nodes()]
    grants += _grants_of(nodes)
    if why is None:
        return Devices(tuple(grants), None)
    grants = [grant for grant in grants if not grant[0].is_relative_to(DEV)]
    if any(node.role == "attribute" for node in nodes):
        # The files of a converter that is plugged in later are in a directory that is not there yet.
        grants.append((sys / "devices", "device", f"the IIO devices of the board: {why}"))
    return Devices(((DEV, "device", why), *grants), why)


def _why_all(nodes: Sequence[DeviceNode], sys: Path) -> str | None:
    """Return the reason to open all of /dev: the first device that may come back under a new node."""
    moving = (node for node in nodes if node.role in ("node", "attribute"))
    pluggable = ((node.what, _plugged(node.path, sys)) for node in moving)
    return next((f"{what} {reason}" for what, reason in pluggable if reason is not None), None)


def _grants_of(nodes: Sequence[DeviceNode]) -> Iterator[Reach]:
    for what, path, role in nodes:
        if path is not None:
            yield path, "list" if role == "list" else "device", what


def _plugged(node: Path | None, sys: Path) -> str | None:
    """Return why a device may come back under a new node; None if it stays where it is."""
    if node is None:
        return "is not there now"
    try:
        status = node.stat()
    except OSError:
        return "went while it was looked at"
    if stat.S_ISDIR(status.st_mode):
        return "can be unplugged" if _PLUG.search(str(node)) else None
    if not stat.S_ISCHR(status.st_mode):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return "can be unplugged" if _PLUG.search(os.path.realpath(sys / f"dev/char/{number}")) else None


# The files that any Python program on a Linux machine reads: its interpreter and libraries, and the system's files.
# None of them is written, and none is secret. For root, /etc is cut down to files without secrets, since no mode bits
# keep root from the rest.

_LIBRARIES: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32")
_KERNEL: Final = (("/proc", "telemetry, processes"), ("/sys", "telemetry, sensors, devices"))
_ETC: Final = (
    "passwd", "group", "nsswitch.conf", "localtime", "timezone", "hosts", "host.conf", "resolv.conf", "gai.conf",
    "services", "protocols", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "os-release", "mime.types", "ssl/openssl.cnf",
    "ssl/certs", "pki/tls/openssl.cnf", "alternatives", "fonts",
)  # fmt: skip
"""Names in /etc that are read: users and groups, time zone, resolver, loader, OpenSSL, fonts."""
_USERS: Final = ("/var/lib/sss/mc", "/var/lib/extrausers", "/run/systemd/userdb", "/run/nscd")
"""Paths of other sources of users and groups."""
_LOCAL_SOURCES: Final = frozenset({"files", "compat", "db", "systemd", "extrausers"})
"""Sources that are files. Without systemd's socket only the short-lived users of services have no names."""
_NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")


def interpreter() -> list[Path]:
    """Return where this Python finds modules and libraries: none beneath another, none the whole file system."""
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *site.getsitepackages()]
    # With `-m`, the directory of the start is on the path, and may be any: packages that were found there come below.
    started_in = os.path.realpath(".")
    wanted += [place for place in sys.path if place and os.path.realpath(place) != started_in]
    found = _outermost(wanted, [])
    known = tuple(f"{place}/" for place in found)
    # Packages elsewhere: of an editable install, or of the directory of the start.
    elsewhere = [
        place
        for module in list(sys.modules.values())
        if isinstance(places := getattr(module, "__path__", None), list)
        for place in places
        if not place.startswith(known)
    ]
    return [Path(place) for place in _outermost(elsewhere, found)]


def _outermost(wanted: list[str], found: list[str]) -> list[str]:
    """Return the outermost paths of `found` and of `wanted`, links followed: none lies beneath another."""
    outermost = list(found)
    for real in sorted({os.path.realpath(place) for place in wanted}, key=len):
        if real != "/" and not any(real == other or real.startswith(f"{other}/") for other in outermost):
            outermost.append(real)
    return outermost


def system_files(*, root: bool) -> Iterator[tuple[Path, str]]:
    """Yield the system files to read, with the reason; `root` if no mode bits keep the reader from secrets."""
    for path in _LIBRARIES:
        yield Path(path), "programs' shared files and libraries"
    for path, why in _KERNEL:
        yield Path(path), why
    if root:
        for path in _ETC:
            yield Path("/etc", path), "the system's settings"
    else:
        # The directory itself: its files are replaced when a user joins a group, and a rule would refer to the old
        # file.
        yield Path("/etc"), "the system's settings"
    for path in _USERS:
        yield Path(path), "users and groups"


def names_from_daemons(nsswitch: Path = Path("/etc/nsswitch.conf")) -> str | None:
    """Return the source of users and groups that the C library asks over a socket, if any; see nsswitch.conf(5)."""
    try:
        lines = nsswitch.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        database, _, sources = line.partition("#")[0].partition(":")
        if database.strip() in ("passwd", "group"):
            for source in re.sub(r"\[[^]]*\]", " ", sources).split():
                if source not in _LOCAL_SOURCES:
                    return f"{database.strip()} of {nsswitch} names {source}, which may be asked over a socket"
    return None


def plain_nodes() -> Iterator[Path]:
    """Yield the device nodes that are no hardware."""
    for name in _NODES:
        yield Path("/dev", name)
