"""The confinement of hearthd itself: makes the sandbox's plan, enforces it and logs it (draft §12).

This module makes the inputs of the plan from configuration and parts, and gives files to the daemon's user before the
daemon becomes that user. `hearth.drivers.sandbox.plan` decides what is allowed; `confine` enforces it.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import evolve

from hearth.actors.build import programs_file
from hearth.audit.files import real
from hearth.audit.writer import sync_names
from hearth.config.model import default_socket, default_state_dir, halt_socket
from hearth.drivers.launcher import end_survivors, open_record
from hearth.drivers.sandbox.cage import cannot_hold, find_program_user, program_notes
from hearth.drivers.sandbox.enforce import available, by_cause, confine
from hearth.drivers.sandbox.identity import find_user, make_over
from hearth.drivers.sandbox.plan import Places, make_plan
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from hearth.actors.runtime import RuntimeParts
    from hearth.config.model import Config
    from hearth.drivers.sandbox.enforce import SandboxReport
    from hearth.drivers.sandbox.identity import ProcessIdentity
    from hearth.drivers.sandbox.plan import SandboxPlan

log = logging.getLogger("hearth.sandbox")


def own_uid(config: Config) -> int:
    """Return the uid with which the daemon will serve. Raises ConfigError."""
    uid = os.geteuid()
    return find_user(config.sandbox.user).uid if uid == 0 and config.sandbox.user is not None else uid


def plan_of(config: Config, parts: RuntimeParts, places: Places, uid: int) -> SandboxPlan:
    """Return the sandbox's plan for a daemon of these parts that `uid` starts. Raises ConfigError."""
    return make_plan(
        config,
        parts.board.profile,
        places,
        tools={tool.name for tool in parts.registry.values()},
        environ=os.environ,
        uid=uid,
    )


def places_of(parts: RuntimeParts, bound: Path | None, file: Path | None) -> Places:
    """Return the paths of the daemon's own files: `bound`, the socket that it bound itself; `file`, its hearth.toml."""
    settings = parts.journal.settings
    return Places(audit=real(settings.path), key=settings.key, socket=bound, config=file)


def confine_daemon(
    config: Config,
    parts: RuntimeParts,
    places: Places,
    made: Collection[Path],
    *,
    no_sandbox: bool,
    notifier: int | None = None,
) -> SandboxReport:
    """Start the launcher of programs, confine this process until it ends, and log the report.

    Call it after addresses are bound and devices are known, and before any record is opened or thread started. `made`:
    directories that this process has made. `notifier`: descriptor of the socket to the service manager. Raises
    ConfigError.
    """
    off = "--no-sandbox" if no_sandbox else None if config.sandbox.enable else "[sandbox] enable = false"
    if no_sandbox and config.sandbox.require:
        raise ConfigError("[sandbox] require: --no-sandbox contradicts it; remove one of them")
    plan = plan_of(config, parts, places, os.geteuid())
    notes = program_notes(config, os.geteuid()) if parts.launcher is not None else ()
    plan = evolve(plan, notifier=notifier, notes=(*plan.notes, *notes))
    _prepare(plan, places, made, durable=config.durability == "fsync")
    _start_launcher(config, parts, confined=off is None)
    # By default SQLite would use /tmp.
    os.environ["SQLITE_TMPDIR"] = str(places.audit.parent)
    report = confine(plan, off=off)
    for level, line in report.lines():
        log.log(logging.WARNING if level == "warning" else logging.INFO, "%s", line)
    if plan.user is not None:
        _can_work(plan.user, places)
    if config.sandbox.require and report.state != "in force":
        missing_features = "; ".join(f"{name}: {why}" for name, why in report.missing.items())
        raise ConfigError(f"[sandbox] require: not all of it can be put in force: {missing_features}")
    return report


def _start_launcher(config: Config, parts: RuntimeParts, *, confined: bool) -> None:
    """Start the launcher of programs, if proc.exec is a tool; else end programs that an earlier run has left."""
    if parts.launcher is None:
        record = open_record(programs_file(real(parts.journal.settings.path)), make=False)
        if record is not None:
            end_survivors(record)
            os.close(record)
        return
    reason = cannot_hold(config) if confined else None
    if reason is not None:
        raise ConfigError(reason)
    parts.launcher.start(user=find_program_user(config, os.geteuid()), confined=confined)


def _can_work(user: ProcessIdentity, places: Places) -> None:
    """Raise ConfigError if the daemon's user, now in effect, cannot read hearth's files or write the audit log."""
    if not all(os.access(file, os.R_OK, effective_ids=True) for file in (__file__, os.__file__)):
        raise ConfigError(
            f"[sandbox] user: {user.name} cannot read {sys.prefix} and {sys.base_prefix}, which contain hearthd; "
            "install them where all users can read, such as /opt/hearth"
        )
    for directory in (places.audit.parent, places.key.parent):
        if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
            raise ConfigError(
                f"[sandbox] user: {user.name} cannot write to {directory}, where the audit log and its key are to be; "
                f"`install -d -o {user.name} {directory}`"
            )


def missing_features(config: Config) -> Iterator[str]:
    """Yield a line for each sandbox feature that this machine lacks. Raises ConfigError if all are required."""
    if not config.sandbox.enable:
        yield "sandbox: off: [sandbox] enable = false"
        return
    missing = by_cause(available()).items()
    lines = [f"sandbox: would not be in force: {', '.join(names)}: {why}" for why, names in missing]
    if config.sandbox.require and lines:
        raise ConfigError("\n".join(f"[sandbox] require: {line}" for line in lines))
    yield from lines


def _prepare(plan: SandboxPlan, places: Places, made: Collection[Path], *, durable: bool) -> None:
    """Make the directories that the plan's rules name, and give the daemon's user its files. Raises ConfigError."""
    ours = {default_state_dir(os.environ, 0), default_socket(os.environ, 0).parent, *made}
    try:
        for path, mode in ((places.audit, 0o750), (places.key, 0o700)):
            existed = next(place for place in path.parents if place.is_dir())
            if existed != path.parent:
                path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
                ours.add(path.parent)
            if (path == places.audit and durable) or existed != path.parent:
                # A confined process cannot open the directories above, so it could not sync their entries later.
                sync_names(path, existed)
        if plan.user is not None:
            _give_files(plan.user, places, ours)
    except OSError as error:
        raise ConfigError(f"[sandbox]: {error.filename}: {error.strerror}; see [audit] path and key") from None


def _give_files(user: ProcessIdentity, places: Places, ours: Collection[Path]) -> None:
    """Give a user the daemon's own files; a directory that the operator chose, such as /var/log, keeps its owner."""
    for directory in {places.audit.parent, places.key.parent, *([places.socket.parent] if places.socket else [])}:
        if directory in ours and directory.stat().st_uid == 0:
            os.chown(directory, user.uid, user.gid)
    make_over(places.own, user)
    if places.socket is not None:
        for socket in (places.socket, halt_socket(places.socket)):
            with suppress(FileNotFoundError):
                os.chown(socket, user.uid, -1)
