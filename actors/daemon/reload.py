"""The reload: reads policy, tokens and certificates again, for a signal and for policy.reload."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, evolve, field

from hearth.actors.build import policy_entries, uids_of
from hearth.actors.daemon.checks import check_directories, owner_warning
from hearth.config.model import load_config
from hearth.errors import ConfigError, InvalidParams, RpcError
from hearth.policy.change import resets_halt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hearth.actors.daemon.process import Notifier
    from hearth.actors.listeners.accept import Listener
    from hearth.actors.runtime import Runtime
    from hearth.config.model import Config
    from hearth.policy.change import PolicyChange
    from hearth.policy.rules import PolicyEntry

log = logging.getLogger("hearth.daemon")

NO_RESET = 'no [[policy]] entry has "reset_halt" in its rights: nobody could end a halt'


@define(eq=False)
class Reloader:
    """Reads the configuration again, for one runtime. `config` is what the daemon runs with."""

    _config: Config
    _runtime: Runtime
    _listeners: Sequence[Listener]
    _notifier: Notifier
    _file: Path | None
    _default_policy: Sequence[PolicyEntry]
    _reloading: trio.Lock = field(factory=trio.Lock, init=False)

    async def by_signal(self) -> None:
        """Reload; log a refusal."""
        try:
            await self.reload()
        except RpcError as error:
            log.error("SIGHUP: %s", error.message)

    async def reload(self, yes: bool = False) -> dict[str, Any]:
        """Read policy, tokens and certificates again; return the answer to policy.reload.

        Raises InvalidParams for a configuration that cannot be used, and, without `yes`, for a policy that has
        something no longer and by which a principal may do more: then the policy stays as it is. A listener whose files
        cannot be read keeps its certificates.
        """
        async with self._reloading:
            self._notifier.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                return await self._reload(yes)
            finally:
                self._notifier.notify("READY=1")

    async def _reload(self, yes: bool) -> dict[str, Any]:
        try:
            config, entries, change = await trio.to_thread.run_sync(self._read_again)
        except ConfigError as error:
            reason = f"nothing has changed: {'; '.join(str(error).splitlines())}"
            raise InvalidParams(f"the configuration cannot be used, {reason}", data={"reason": reason}) from None
        if change.widens_silently and not yes:
            raise _widens(change)
        kept = list(self._keeping())
        closed = self._runtime.replace_policy(entries, change)
        # Those of extras that are given in neither are not imported for this.
        names = dict.fromkeys((*self._config.sections(given=True), *config.sections(given=True)))
        sections = [name for name in names if _differs(name, self._config, config)]
        if not kept:
            log.info("certificates have been read again")
        log.info("the policy has been read again: %d entries; %d sessions are closed", len(entries), closed)
        if sections:
            log.warning("changes in %s take a restart", ", ".join(f"[{name}]" for name in sections))
        for line in change.allows:
            log.info("newly allowed: %s", line)
        warnings = owner_warning(entries, os.geteuid(), self._file)
        warnings += [] if resets_halt(entries) else [NO_RESET]
        for warning in warnings:
            log.warning("%s", warning)
        warn_of(self._listeners)
        answer = {"ok": True, "entries": [entry.name for entry in entries], "closed": closed, "restart": sections}
        told = {"certificates_kept": kept, "allows": list(change.allows), "warnings": warnings}
        return {**answer, **{name: lines for name, lines in told.items() if lines}}

    def _keeping(self) -> Iterable[str]:
        """Read all certificates again; yield the addresses of listeners that keep those they had."""
        for listener in self._listeners:
            try:
                listener.reload()
            except ConfigError as error:
                yield listener.address
                log.error("%s keeps the certificates it had: %s", listener.address, error)

    def _read_again(self) -> tuple[Config, Sequence[PolicyEntry], PolicyChange]:
        """Return configuration and policy as they are in the file now, and what changes. Blocking. Raises ConfigError.

        In a thread: comparing two long policies takes a while. `_reloading` keeps the policy in force as it is.
        """
        config = load_config(self._file, settled=True)
        settings = self._runtime.parts.journal.settings
        check_directories(settings.path, settings.key, os.geteuid())
        entries, former = policy_entries(config) or self._default_policy, tuple(self._runtime.parts.policy)
        change = self._runtime.compared(entries, uids_of((*former, *entries)))
        if not config.policy and former != tuple(entries):
            # Even where they allow nobody more: an empty file is too likely one that was cut.
            change = evolve(change, allows=change.allows or ("the built-in entries are in force again",))
        return config, entries, change


def warn_of(listeners: Sequence[Listener]) -> None:
    """Log the certificates that are about to expire."""
    for listener in listeners:
        for warning in listener.warnings():
            log.warning("%s", warning)


def _widens(change: PolicyChange) -> InvalidParams:
    """Return the refusal of a policy that widens silently."""
    gone, more = (", ".join(change.removed), "; ".join(change.allows))
    reason = f"{gone} removed or changed, and by that principals may do more: {more}"
    cure = "nothing has changed; if it is meant: `hearth admin reload --yes`"
    details = {"reason": reason, "removed": list(change.removed), "allows": list(change.allows)}
    return InvalidParams(f"the policy is not taken: {reason}; {cure}", data=details)


def _differs(section: str, running: Config, read: Config) -> bool:
    """Return True if a section of the file is not what the daemon runs with."""
    now: Any = getattr(running, section, None)
    then: Any = getattr(read, section, None)
    # What options of the command line may have replaced is not compared.
    if section == "board":
        then = evolve(then, profile=now.profile)
    elif section == "server":
        then = evolve(then, socket=now.socket)
    return section != "policy" and bool(now != then)
