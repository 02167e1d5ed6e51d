"""Builds the parts of a runtime from a configuration; only this module chooses the class of each part.

It opens no device and starts no actor. It rejects a configuration with a ConfigError before anything runs.
"""

from __future__ import annotations

import grp
import os
import platform
import pwd
import time
from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve, fields

from hearth._util.files import noted, noting
from hearth._util.text import suggest, suggestions
from hearth.actors.attestation import Attestation
from hearth.actors.bus.latch import Latch
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.journal import Journal
from hearth.actors.runtime import RuntimeParts, made_later
from hearth.actors.task_registry import KeysFile
from hearth.audit.files import real
from hearth.audit.log import AuditSettings
from hearth.config.model import CARDS, Config, PolicyConfig, default_state_dir
from hearth.drivers.boards import Board, load_profile, open_board, profile_file
from hearth.drivers.files import FileDriver
from hearth.drivers.kinds import entries_of, words
from hearth.drivers.process import ProcessDriver
from hearth.drivers.programs import ProgramDriver
from hearth.drivers.system import SystemDriver
from hearth.drivers.tools import build_tools
from hearth.errors import ConfigError
from hearth.extras import OWN, active
from hearth.policy.paths import PathGuard
from hearth.policy.rules import ApprovalRule, JobRules, Match, PolicyEntry, Scope, in_force
from hearth.tools import USE_FORMS, ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from hearth.drivers.base import Driver, Style
    from hearth.drivers.programs import LauncherClient
    from hearth.tools import Tool


@noting()
def build_parts(
    config: Config,
    *,
    default_policy: Sequence[PolicyEntry],
    board: Board | None = None,
    style: Style | None = None,
    clock: Callable[[], float] = time.time,
    config_file: Path | None = None,
    socket: Path | None = None,
    daemon: bool = False,
) -> RuntimeParts:
    """Return the parts for a configuration. `default_policy` applies if the configuration has no `[[policy]]`.

    `config_file` and `socket` belong to the daemon: no directory of `[files]` may reach them. A `daemon` has the extras
    that a runtime in a program does without.

    Raises ConfigError.
    """
    profile = None
    if board is None:
        profile = profile_file(config.board.profile)
        board = open_board(load_profile(config.board.profile), style=style)
    # A vendor's package may add drivers to the board while it makes its tools.
    tools = build_tools(
        board, enable=config.tools.enable, disable=config.tools.disable, exec_templates=config.tools.exec
    )
    drivers: dict[str, Driver] = {
        **board.drivers,
        "files": FileDriver(),
        "system": SystemDriver(show_addresses="addresses" in config.tools.disclose),
    }
    audit = audit_settings(config)
    check_roots(config, audit, profile=profile, config_file=config_file, socket=socket)
    own = tuple(path for path in (config_file, socket) if path is not None)
    launcher = _launcher(config, audit, own) if any(tool.name == "proc.exec" for tool in tools) else None
    drivers["processes"] = ProcessDriver(
        show_argv=config.tools.proc_argv,
        show_users="users" in config.tools.disclose,
        signal_executables=config.tools.signal,
        launcher=launcher,
    )
    # A bus of its own: a program that runs for minutes must not hold up a list of processes.
    drivers["exec"] = ProgramDriver(launcher)
    journal = Journal(audit, clock=clock)
    if config.audit.arguments == "hash":
        tools = [evolve(tool, logged=()) for tool in tools]
    registry = ToolRegistry(tools)
    policy = policy_entries(config) or default_policy
    if unknown := unknown_words(policy):
        raise ConfigError("\n".join(unknown))
    in_force_policy = in_force(policy)
    chosen = active(config, daemon=daemon)
    extras: dict[str, Any] = {}
    files = [path for path in (config_file, profile) if path is not None]
    # Read when their messages are first needed, and measured in any case.
    files += [path for kind, _, spec in entries_of(board.profile.specs) for path in kind.files(spec)]
    measured = partial(_fixed_measurements, config, tools, files, noted())
    attest = config.attest
    parts = RuntimeParts(
        board=board,
        drivers=drivers,
        registry=registry,
        policy=in_force_policy,
        paths=PathGuard(config.files.read, config.files.write),
        journal=journal,
        audit_head=lambda: journal.head,
        outputs_file=OutputsFile(Path(f"{real(audit.path)}.outputs")),
        keys_file=KeysFile(Path(f"{real(audit.path)}.idempotency"), sync=config.durability == "fsync"),
        tasks=config.tasks,
        halt=board.profile.halt,
        latch=Latch(Path(f"{real(audit.path)}.halt")),
        launcher=launcher,
        limits=config.limits,
        clock=clock,
        attestation=Attestation(journal, in_force_policy, measured, clock, attest.tpm, attest.pcr),
        extras=extras,
        later={
            name: partial(made_later, extra, config) for name, extra in OWN.items() if extra.methods and extra.service
        },
    )
    for extra in chosen:
        if extra.service:
            extras[extra.name] = extra.call("service", config, parts)
    return parts


def _fixed_measurements(
    config: Config, tools: Sequence[Tool], files: Sequence[Path], read: Collection[Path]
) -> dict[str, str]:
    """Return the hashes of what the operator has configured and of what follows from it. Blocking.

    `read` are the files that were read while the parts were made, and grows while the listeners open theirs.
    """
    # Imported here, as everything for statements: a start need not wait for it.
    from hearth.attest.measure import manifest, sha256_of, sha256_of_bytes

    mine = [(str(path), path) for path in {*(each.absolute() for each in files), *read}]
    mine += [(str(path), path) for section in config.extras.values() for path in section.measured()]
    return {
        "python": platform.python_version(),
        "configuration": sha256_of_bytes(config.to_toml().encode()),
        "files": sha256_of_bytes(manifest(mine)),
        "tools": sha256_of([tool.to_wire() for tool in tools]),
        "limits": sha256_of(asdict(config.limits)),
    }


def _launcher(config: Config, audit: AuditSettings, files: Sequence[Path]) -> LauncherClient:
    """Return the client of the launcher that starts the programs of proc.exec; the caller starts it.

    `files` are the daemon's own files besides its log: no program reaches them. Raises ConfigError.
    """
    # Imported here: most daemons start no program.
    from hearth.drivers.programs import LauncherClient
    from hearth.drivers.sandbox.cage import cages
    from hearth.drivers.sandbox.plan import Places

    log = real(audit.path)
    found = cages(config, Places(audit=log, key=audit.key), files)
    return LauncherClient(config.tools.exec, found if config.sandbox.enable else None, programs_file(log))


def programs_file(log: Path) -> Path:
    """Return the path of the list of running programs, which the start after a crash reads."""
    return Path(f"{log}.programs")


def audit_settings(config: Config) -> AuditSettings:
    """Return the settings of the audit log, with the defaults filled in."""
    audit = config.audit
    state = default_state_dir(os.environ, os.geteuid())
    path = audit.path or state / "audit.log"
    return AuditSettings(
        path=path,
        durability=config.durability,
        rotate_bytes=audit.rotate_bytes,
        checkpoint_every=audit.checkpoint_every,
        checkpoint_interval_s=audit.checkpoint_interval_s,
        reserve_bytes=audit.reserve_bytes,
        key=audit.key or Path(f"{path}.key"),
    )


def policy_entries(config: Config) -> list[PolicyEntry]:
    """Return the entries of a configuration. Raises ConfigError."""
    entries = []
    for index, entry in enumerate(config.policy):
        try:
            entries.append(
                PolicyEntry(
                    name=entry.name,
                    match=_matches(entry.match),
                    max_risk=entry.max_risk,
                    max_risk_ceiling=entry.max_risk if entry.max_risk_ceiling is None else entry.max_risk_ceiling,
                    tools=entry.tools,
                    rate=entry.rate,
                    hcp=JobRules(**asdict(entry.hcp)),
                    rights=entry.rights,
                    approval=tuple(ApprovalRule(**asdict(rule)) for rule in entry.approval),
                    scope=_scope(entry),
                )
            )
        except ConfigError as error:
            raise ConfigError(f"[[policy]] number {index + 1}: {error}") from None
    if unknown := [*unknown_accounts(entries), *unknown_words(entries)]:
        raise ConfigError("\n".join(f"[[policy]]: {sentence}" for sentence in unknown))
    return entries


def _scope(entry: PolicyConfig) -> Scope:
    """Return the hardware that an entry permits."""
    return Scope(
        {**entry.hardware, **{word: given for word in words() if (given := getattr(entry, word, None)) is not None}}
    )


def unknown_words(entries: Sequence[PolicyEntry]) -> list[str]:
    """Return a sentence for each word of a scope that no kind of hardware has: a misspelt key would permit nothing."""
    known = words(word for entry in entries for word in entry.scope.patterns)
    keys = [*known, *(attribute.name for attribute in fields(PolicyConfig))]
    return [
        f"policy {entry.name!r}: {word}: unknown key, and no kind of hardware has this word; "
        f"{suggest(word, keys) or 'kinds have ' + ', '.join(sorted(known))}"
        for entry in entries
        for word in entry.scope.patterns.keys() - known
    ]


def unused_hardware(entries: Iterable[PolicyEntry], board: Board) -> list[str]:
    """Return a warning for each pattern that fits nothing of its kind, such as a name that the profile has changed.

    Not of kinds whose patterns name addresses too (`USE_FORMS`), and not of kinds that the board has not.
    """
    known: dict[str, dict[str, None]] = {}
    for kind, _, spec in entries_of(board.profile.specs):
        called = [getattr(spec, kind.key, None), *(getattr(one, "name", None) for one in getattr(spec, "devices", ()))]
        known.setdefault(kind.word, {}).update(dict.fromkeys(name for name in called if isinstance(name, str)))
    for signal in board.signals:
        for use in (signal.use, signal.named_use):
            known.setdefault(use.kind, {}).update(dict.fromkeys(use.names))
    return [
        f"policy {entry.name!r}: {word}: {pattern!r} fits nothing that the board's profile names"
        f"{suggestions(pattern, names)[0]}"
        for entry in entries
        for word, patterns in entry.scope.patterns.items()
        if word not in USE_FORMS and (names := known.get(word))
        for pattern in patterns
        # "FAN:raw" is a use of FAN.
        if not any(fnmatchcase(name, pattern) or pattern.startswith(f"{name}:") for name in map(str.lower, names))
    ]


def _matches(match: Mapping[str, Any] | tuple[Mapping[str, Any], ...]) -> list[Match | Mapping[str, Any]]:
    alternatives = (match,) if isinstance(match, Mapping) else match
    return [Match(**alternative) for alternative in alternatives]


# --- the check of user and group names in policy conditions


def unknown_accounts(entries: Iterable[PolicyEntry]) -> list[str]:
    """Return a sentence for each user or group of a condition that the machine's user database does not have.

    A misspelt name would match no user, silently. Numbers (`uid`, `gid`) are not checked.
    """
    return [
        sentence
        for entry in entries
        for match in entry.match
        for sentence in (
            _unknown(entry.name, "user", match.user, "uid"),
            _unknown(entry.name, "group", match.group, "gid"),
        )
        if sentence is not None
    ]


def uids_of(entries: Iterable[PolicyEntry]) -> dict[str, int]:
    """Return the uids of the users that conditions name. Blocking."""
    uids = {}
    for name in {match.user for entry in entries for match in entry.match if match.user is not None}:
        with suppress(KeyError, ValueError):
            uids[name] = pwd.getpwnam(name).pw_uid
    return uids


def _unknown(policy: str, key: str, name: str | None, number: str) -> str | None:
    if name is None or _exists(key, name):
        return None
    sentence = suggest(name, _names(key), show=repr)
    cure = f"{sentence} Else create the {key}" if sentence else f"create the {key}"
    return f"policy {policy!r}: match.{key}: this machine has no {key} {name!r}; {cure}, or give its number as {number}"


def _exists(key: str, name: str) -> bool:
    try:
        if key == "user":
            pwd.getpwnam(name)
        else:
            grp.getgrnam(name)
    except (KeyError, ValueError):  # ValueError: a NUL or half a character, which no name has
        return False
    return True


def _names(key: str) -> list[str]:
    return [one.pw_name for one in pwd.getpwall()] if key == "user" else [one.gr_name for one in grp.getgrall()]


# --- the roots of [files] ---------------------------------------------------------------------------------------------
#
# No directory of `[files]` may reach the daemon's own files (draft §12.2): the audit log and all files whose names
# begin with its name, its key, the socket, the configuration, the board's profile, certificates and capability files. A
# client that could read the signing key or write the configuration could bypass every other rule.


def check_roots(
    config: Config, audit: AuditSettings, *, profile: Path | None, config_file: Path | None, socket: Path | None
) -> None:
    """Raise ConfigError for roots that hold a file of the daemon, or lie in such a directory; a line for each root.

    Directories are compared by device and inode, so that neither a link nor a mount hides one.
    """
    own = list(_own(config, audit, profile=profile, config_file=config_file, socket=socket))
    wrong = []
    for access, roots in (("read", config.files.read), ("write", config.files.write)):
        for number, root in enumerate(roots):
            reached = _reached(root, own, real(audit.path))
            if reached is not None:
                where = f'[files] {access}[{number}]: "{root}"'
                wrong.append(f"{where} {reached}; name a directory that has nothing of hearth's in it")
    if wrong:
        raise ConfigError("\n".join(wrong))


def _own(
    config: Config, audit: AuditSettings, *, profile: Path | None, config_file: Path | None, socket: Path | None
) -> Iterator[tuple[str, Path]]:
    yield "the audit log", real(audit.path)
    yield "the audit log's key", audit.key
    if socket is not None:
        yield "the socket", socket
    if config_file is not None:
        yield "the configuration", config_file
    if profile is not None:
        yield "the board's profile", profile
    yield from config.named_files()
    yield "agent cards", real(audit.path).parent / CARDS


def _reached(root: Path, own: list[tuple[str, Path]], log: Path) -> str | None:
    """Return the daemon's file that a root reaches, in words; None for a root that reaches none or does not exist."""
    above = _identities(root)
    if not above or above[0] is None:
        return None
    for what, path in own:
        identities = _identities(path)
        if above[0] in identities:
            return f"holds {what} ({path})"
        if identities[0] is not None and identities[0] in above:
            return f"lies in {path}, which holds {what}"
    beside = _identities(log.parent)[0]
    for place, parent in zip((root.resolve(), *root.resolve().parents), above[1:], strict=False):
        if parent is not None and parent == beside and place.name.startswith(log.name):
            return f"lies in {place}, which belongs to the audit log"
    return None


def _identities(path: Path) -> list[tuple[int, int] | None]:
    """Return device and inode of a path and of all directories above it; None for one that cannot be examined."""
    resolved = path.resolve()
    return [_identity(place) for place in (resolved, *resolved.parents)]


def _identity(place: Path) -> tuple[int, int] | None:
    try:
        status = place.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
