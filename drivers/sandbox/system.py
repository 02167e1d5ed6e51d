"""What any Python program on a Linux machine reads: its interpreter and libraries, and the files of the system.

Owns the two lists. Nothing of it is written to, and none of it is a secret; where root reads, /etc is cut down to what
is none, since no mode bits keep root from the rest.
"""

from __future__ import annotations

import os
import re
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LIBRARIES: Final = ("/usr", "/lib", "/lib32", "/lib64", "/libx32")
_KERNEL: Final = (("/proc", "telemetry, processes"), ("/sys", "telemetry, sensors, devices"))
_ETC: Final = (
    "passwd", "group", "nsswitch.conf", "localtime", "timezone", "hosts", "host.conf", "resolv.conf", "gai.conf",
    "services", "protocols", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "os-release", "mime.types", "ssl/openssl.cnf",
    "ssl/certs", "pki/tls/openssl.cnf", "alternatives", "fonts",
)  # fmt: skip
"""What of /etc is read by name: users and groups, time zone, resolver, loader, OpenSSL, fonts."""
_USERS: Final = ("/var/lib/sss/mc", "/var/lib/extrausers", "/run/systemd/userdb", "/run/nscd")
"""Where other sources of users and groups keep them."""
_LOCAL_SOURCES: Final = frozenset({"files", "compat", "db", "systemd", "extrausers"})
"""Sources that are files; without systemd's socket only users that live no longer than a service have no names."""
_NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")


def interpreter() -> list[Path]:
    """Where this Python finds modules and libraries: none of them beneath another, none the whole file system."""
    wanted = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, *site.getsitepackages()]
    # The directory that it was started in is on the path by `-m`, and may be anything: what was found there is below.
    started_in = os.path.realpath(".")
    wanted += [place for place in sys.path if place and os.path.realpath(place) != started_in]
    found = _outermost(wanted, [])
    known = tuple(f"{place}/" for place in found)
    # Packages that lie elsewhere: of an editable install, or of the directory that it was started in.
    elsewhere = [
        place
        for module in list(sys.modules.values())
        if isinstance(places := getattr(module, "__path__", None), list)
        for place in places
        if not place.startswith(known)
    ]
    return [Path(place) for place in _outermost(elsewhere, found)]


def _outermost(wanted: list[str], found: list[str]) -> list[str]:
    """What was found, and of what is wanted besides, links followed, all that lies beneath nothing else of these."""
    outermost = list(found)
    for real in sorted({os.path.realpath(place) for place in wanted}, key=len):
        if real != "/" and not any(real == other or real.startswith(f"{other}/") for other in outermost):
            outermost.append(real)
    return outermost


def system_files(*, root: bool) -> Iterator[tuple[Path, str]]:
    """What is read of the system, and why; `root` where no mode bits keep the reader from what is secret in /etc."""
    for path in _LIBRARIES:
        yield Path(path), "programs' shared files and libraries"
    for path, why in _KERNEL:
        yield Path(path), why
    if root:
        for path in _ETC:
            yield Path("/etc", path), "the system's settings"
    else:
        # The directory: its files are replaced when a user joins a group, and a rule stands on the file that was.
        yield Path("/etc"), "the system's settings"
    for path in _USERS:
        yield Path(path), "users and groups"


def names_from_daemons(nsswitch: Path = Path("/etc/nsswitch.conf")) -> str | None:
    """Which other source of users and groups the C library asks over a socket, if it does; see nsswitch.conf(5)."""
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
    """Device nodes that are no devices."""
    for name in _NODES:
        yield Path("/dev", name)
