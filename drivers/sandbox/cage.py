"""The confinement of a program of `proc.exec`: narrower than hearthd's own, and by the same means.

This module owns a program's rights, and puts them in force between fork and exec. A program may read what any program
of this machine reads, run itself and its interpreter, and use the paths that its template lists. It has no access to
hearthd's own files: not the audit log, not its key, not the configuration, no socket. The listed paths must not contain
any of these, so a template that does is a configuration error.

Theory of operation. The attacker is a program that an operator has allowed, or what a client makes of it by its
parameters. `cages` decides in the daemon, before it serves, and rejects a configuration that grants too much. A `Cage`
is plain data and goes to the launcher, which is not confined. Its child calls `limit` and `Guard.enforce` between fork
and exec; an error there ends the child, so no program runs outside of its cage.

Landlock confines files, TCP, abstract sockets and signals, and keeps a program from looking into processes outside. The
filter covers what Landlock does not know: sockets with a name, and the ways out of the group of processes by which a
program and all that it starts is ended (setsid, setpgid, and taking back PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from hearth._util.files import closing
from hearth.drivers.sandbox import identity, landlock, seccomp
from hearth.drivers.sandbox.enforce import RIGHTS
from hearth.drivers.sandbox.plan import interpreter, interpreters_of, plain_nodes, system_files
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hearth.config.exec import ExecTemplate
    from hearth.config.model import Config
    from hearth.drivers.sandbox.identity import ProcessIdentity
    from hearth.drivers.sandbox.landlock import Fs
    from hearth.drivers.sandbox.plan import Access, Places

_SCOPES: Final = 6
"""The version of Landlock that introduced scopes."""
MOST_OPEN_FILES: Final = 1024
_OUT_OF_MEMORY: Final = b"500"
"""Added to a program's score, so that the kernel ends programs before hearthd when memory runs out."""


@frozen(kw_only=True)
class Cage:
    """The rights and resource limits of one program. Sent to the launcher, so plain data."""

    grants: tuple[tuple[str, Access], ...]
    network: bool
    max_processes: int
    max_memory_bytes: int
    max_file_bytes: int
    cpu_s: int

    def limits(self, tasks: int) -> dict[int, int]:
        """Return resource limits by number, where the user has so many tasks already, this process among them."""
        return {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: self.cpu_s,
            resource.RLIMIT_DATA: self.max_memory_bytes,
            resource.RLIMIT_FSIZE: self.max_file_bytes,
            resource.RLIMIT_NOFILE: MOST_OPEN_FILES,
            resource.RLIMIT_NPROC: tasks + self.max_processes - 1,
        }


def cages(config: Config, places: Places, files: Sequence[Path] = ()) -> dict[str, Cage]:
    """Return the cage of each program that `proc.exec` may run; `files` are the daemon's own, beside its places.

    Raises ConfigError for a program that could access the daemon's files.
    """
    keys = [path for what, path in config.named_files() if what.endswith("] key")]
    own = {os.path.realpath(path) for path in (*places.private, *files, *keys)}
    # Python may have been started in any directory: modules beside our own are not to be read there.
    python = [path for path in interpreter() if not any(_contains(str(path), one) for one in own)]
    found = {}
    for name, template in config.tools.exec.items():
        cage = _cage(config, template, python)
        for path, access in cage.grants:
            # In both directions: a grant over a directory that holds one of them, and one inside a private directory.
            reached = [one for one in sorted(own) if _contains(path, one) or _contains(one, path)]
            if reached:
                raise ConfigError(
                    f"[tools.exec] {name}: it could {access} {path}, and so {reached[0]}, which is hearthd's own; "
                    "list less, or move that"
                )
        found[name] = cage
    return found


def _contains(outer: str, inner: str) -> bool:
    real = os.path.realpath(outer)
    return real in ("/", inner) or inner.startswith(f"{real}/")


def _cage(config: Config, template: ExecTemplate, python: list[Path]) -> Cage:
    sandbox = config.sandbox
    return Cage(
        grants=tuple(dict.fromkeys((str(path), access) for path, access in _grants(config, template, python))),
        network=template.network or sandbox.network,
        max_processes=template.max_processes,
        max_memory_bytes=template.max_memory_bytes,
        max_file_bytes=template.max_file_bytes,
        # A limit of each process: a process that we cannot signal ends by itself.
        cpu_s=(os.cpu_count() or 1) * -(-(template.timeout_ms + template.grace_ms) // 1000) + 1,
    )


def _grants(config: Config, template: ExecTemplate, python: list[Path]) -> Iterator[tuple[Path, Access]]:
    sandbox = config.sandbox
    for path in (*python, *(path for path, _ in system_files(root=True))):
        yield path, "read"
    for path in plain_nodes():
        yield path, "device"
    for path in (Path(template.argv[0]), *template.execute, *sandbox.execute):
        yield path, "execute"
        for inner in interpreters_of(path):
            yield inner, "execute"
    for path in (*template.read, *sandbox.read):
        yield path, "read"
    for path in (*template.write, *sandbox.write):
        yield path, "write"
    uses = {param.path for param in template.params.values()}
    if "read" in uses:
        for path in config.files.read:
            yield path, "read"
    if "write" in uses:
        for path in config.files.write:
            yield path, "write"


def cannot_hold(config: Config) -> str | None:
    """Return why programs could read the audit log's key here; None where the kernel, or another user, prevents it."""
    if not config.tools.exec or "proc.exec" not in config.tools.enable or not config.sandbox.enable:
        return None
    if program_user(config) not in (None, config.sandbox.user):
        return None
    try:
        landlock.version()
    except OSError as error:
        return (
            f"proc.exec: {landlock.why_not(error)}; without it programs could read the audit log's key: set [sandbox] "
            "program_user, take proc.exec out of [tools] enable, or allow it by [sandbox] enable = false"
        )
    return None


def program_notes(config: Config, uid: int) -> Iterator[str]:
    """Yield warnings about programs before they run, where `uid` starts the daemon; none without programs."""
    if "proc.exec" not in config.tools.enable or not config.sandbox.enable:
        return
    name = program_user(config)
    if uid == 0 and (name is None or identity.find_user(name).uid == 0):
        yield "programs of proc.exec run as root, whose processes the kernel does not count; set [sandbox] program_user"
    if name in (None, config.sandbox.user):
        try:
            abi = landlock.version()
        except OSError:
            return
        if abi < _SCOPES:
            yield (
                f"Landlock {abi} of this kernel does not keep programs of proc.exec from sending signals to hearthd; "
                "it takes Linux 6.12 or later, or another user: set [sandbox] program_user"
            )


def program_user(config: Config) -> str | None:
    """Return the user name under which programs run, if it is another than the one who starts the daemon."""
    return config.sandbox.program_user or config.sandbox.user


def find_program_user(config: Config, uid: int) -> ProcessIdentity | None:
    """Return the user under which programs run, if it is another than `uid` of the daemon. Raises ConfigError."""
    name = program_user(config)
    if name is None:
        return None
    who = identity.find_user(name)
    if who.uid == uid:
        return None
    if uid != 0:
        raise ConfigError(
            f"[sandbox] program_user: only root can become {name!r}; start hearthd as root, or take program_user out"
        )
    return who


class Guard:
    """The means of this machine, looked up once: the version of Landlock, and the two filters. Made by the launcher."""

    def __init__(self) -> None:
        try:
            self._abi = landlock.version()
        except OSError:
            self._abi = 0
        # Built once, in the launcher, so that a child loads nothing between fork and exec.
        self._filters: dict[bool, seccomp.Filter] = {}
        for network in (False, True):
            families = ("inet", "netlink:route") if network else ()
            try:
                self._filters[network] = seccomp.Filter(seccomp.program_rules(families))
            except seccomp.NoFilter:
                # Without libseccomp there is neither filter; the daemon has reported that for itself.
                break

    def enforce(self, cage: Cage) -> None:
        """Put a cage in force for this process, for good. After an OSError or NoFilter it must not go on."""
        # First: the kernel requires it for both others. The filter is last, as in `enforce.confine`.
        identity.no_new_privs()
        if self._abi:
            scopes = landlock.ABSTRACT_UNIX_SOCKETS | landlock.SIGNALS
            with landlock.Ruleset(self._abi, scopes, tcp=not cage.network) as rules:
                rules.allow_all((Path(path), _rights(path, access)) for path, access in cage.grants)
                rules.enforce()
        if cage.network in self._filters:
            self._filters[cage.network].enforce()


def _rights(path: str, access: Access) -> Fs:
    rights = RIGHTS[access]
    if access == "write":
        try:
            mode = Path(path).stat().st_mode
        except OSError:
            return rights
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            return RIGHTS["device"]
    return rights


def limit(cage: Cage, tasks: int) -> None:
    """Put a cage's resource limits in force for this process, none of them above its present ones. Raises OSError."""
    for number, most in cage.limits(tasks).items():
        _, hard = resource.getrlimit(number)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (value, value))
    with closing(os.open("/proc/self/oom_score_adj", os.O_WRONLY)) as score:
        os.write(score, _OUT_OF_MEMORY)
