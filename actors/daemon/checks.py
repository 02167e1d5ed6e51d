"""`hearthd --check`, and the checks of files that a start and a reload make too.

It checks everything that needs no device, no address and no running daemon.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from hearth._util.files import read_file
from hearth.actors.build import build_parts, unused_hardware
from hearth.actors.daemon.sandbox import missing_features, own_uid, places_of, plan_of
from hearth.actors.listeners import unix
from hearth.audit.files import directory_fault
from hearth.config.model import default_socket
from hearth.drivers.sandbox.cage import cannot_hold
from hearth.errors import ConfigError
from hearth.extras import OWN, TOOLS, active, extras_of
from hearth.policy.principal import from_uid
from hearth.policy.rules import default_policy, idle_conditions, owner_without_entry, unused_patterns
from hearth.schema import check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hearth.actors.runtime import RuntimeParts
    from hearth.config.model import Config
    from hearth.policy.rules import PolicyEntry


def check(config: Config, file: Path | None) -> None:
    """Check a configuration, and print what its author should know. Raises ConfigError."""
    socket = config.server.socket or default_socket(os.environ, os.geteuid())
    policy = default_policy(os.geteuid(), unix.group_id(config.server.socket_group))
    parts = build_parts(config, default_policy=policy, config_file=file, socket=socket, daemon=True)
    settings = parts.journal.settings
    check_directories(settings.path, settings.key, _user_of(config, settings.path))
    check_credentials(config)
    for tool in parts.registry.values():
        check_schema(tool.params_schema, f"tool {tool.name}: params_schema", by_authority=True)
        check_schema(tool.result_schema, f"tool {tool.name}: result_schema", by_authority=True)
    told = list(_extras(config, parts))
    _print("warning", [*(line for kind, line in told if kind == "warning"), *_policy(config, parts, file)])
    plan_of(config, parts, places_of(parts, None, file), 0 if config.sandbox.user else os.geteuid())
    if (reason := cannot_hold(config)) is not None:
        raise ConfigError(reason)
    _print("warning", missing_features(config))
    from hearth.drivers.boards.diagnose import cautions

    problems = cautions(parts.board.profile)
    _print("note", (f"board: {problem.key}: {problem.problem}; {problem.cure}" for problem in problems))
    _print("note", (line for kind, line in told if kind == "note"))
    counted = [
        f"board {parts.board.name}", f"{len(parts.registry)} tools", f"{len(parts.drivers)} buses",
        *(line for kind, line in told if kind == "summary"), f"{len(parts.policy)} policy entries",
    ]  # fmt: skip
    sys.stdout.write(f"hearthd: configuration is good: {', '.join(counted)}\n")


def _print(kind: str, lines: Iterator[str] | Sequence[str]) -> None:
    for line in lines:
        sys.stdout.write(f"hearthd: {kind}: {line}\n")


def _extras(config: Config, parts: RuntimeParts) -> Iterator[tuple[str, str]]:
    """Yield what the extras have to say: "warning", "note" or "summary", and the line. Raises ConfigError."""
    for extra in extras_of(config.extras):
        if not extra.refuses and (lack := extra.lack(config)) is not None:
            yield "warning", lack
    unasked = (extra for extra in OWN.values() if extra.methods)
    for extra in dict.fromkeys((*active(config), *unasked)):
        if extra.check:
            yield from extra.call("check", extra.name, config, parts)


def _policy(config: Config, parts: RuntimeParts, file: Path | None) -> Iterator[str]:
    """Yield a warning for each part of the policy that cannot have an effect."""
    yield from owner_warning(parts.policy, own_uid(config), file)
    yield from unused_patterns(parts.policy, (*parts.registry, *TOOLS))
    yield from unused_hardware(parts.policy, parts.board)
    ways = {way for section in config.extras.values() for way in section.credentials()}
    certificates, tokens, broker = (way in ways for way in ("certificates", "tokens", "broker"))
    yield from idle_conditions(parts.policy, certificates=certificates, tokens=tokens, broker=broker)


def _user_of(config: Config, log: Path) -> int:
    """Return the uid to check for: root checks for the user to whom the package has given /var/lib/hearth."""
    uid = own_uid(config)
    if uid == 0 and config.audit.path is None:
        with suppress(OSError):
            return log.parent.stat().st_uid
    return uid


def owner_warning(entries: Sequence[PolicyEntry], uid: int, file: Path | None) -> list[str]:
    """Return a warning if no entry matches the daemon's own user or root."""
    return owner_without_entry(entries, (from_uid(uid), from_uid(0)), str(file or "hearth.toml"))


def check_directories(log: Path, key: Path, uid: int) -> None:
    """Raise ConfigError if users other than root, ours and `uid` could replace the log, the halt's latch or the key."""
    if (fault := directory_fault(log, key, {os.geteuid(), uid})) is not None:
        raise ConfigError(f"[audit] path: others could remove the log and the latch of a halt: {fault}")


def check_credentials(config: Config) -> None:
    """Raise ConfigError if other users could change a credential with which the daemon connects elsewhere."""
    for name, path in (found for section in config.extras.values() for found in section.secrets()):
        try:
            # One that cannot be read is reported where it is used: it may come later.
            with suppress(OSError):
                read_file(path.expanduser(), trusted={os.geteuid()}, secret=True)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
