"""What the drawer, and the program that it starts, are kept to: less than hearthd itself, and by the same means.

Owns which rights these are. What this kernel has not is left out without a word: the daemon's own report tells it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from hearth.drivers.sandbox import identity, landlock, seccomp
from hearth.drivers.sandbox.confine import RIGHTS, python_rules
from hearth.drivers.sandbox.plan import added_paths

if TYPE_CHECKING:
    from hearth.config import Config
    from hearth.drivers.sandbox.identity import Identity


@frozen
class Limits:
    """Of a drawer that becomes `user`, if there is one; where it is not `confined`, there are no others."""

    user: Identity | None
    confined: bool = True

    def settle(self) -> None:
        """In the drawer, before it is asked for anything. Raises OSError where the user cannot be become."""
        if self.user is not None:
            identity.become(self.user)
        if not self.confined:
            return
        with suppress(OSError):
            identity.keep_capabilities(())
        with suppress(OSError, seccomp.NoFilter):
            identity.no_new_privs()
            # No sockets of any family, and nothing that running one program does not take.
            seccomp.Filter(seccomp.rules((), execve=True)).enforce()

    def restrict(self, folder: str) -> None:
        """In the process that becomes the program: it reads what any Python program does, and writes to `folder`."""
        if not self.confined:
            return
        writable = (Path(folder), *added_paths(os.environ))
        with suppress(OSError):
            scopes = landlock.ABSTRACT_UNIX_SOCKETS | landlock.SIGNALS
            with landlock.Ruleset(landlock.version(), scopes) as rules:
                rules.allow_all([*python_rules(), *((path, RIGHTS["write"]) for path in writable)])
                rules.enforce()


def limits_of(config: Config, *, no_sandbox: bool) -> Limits:
    """The limits of a daemon's drawer. Raises ConfigError: a user that is not there."""
    name = config.sandbox.user if os.geteuid() == 0 else None
    user = None if name is None else identity.find_user(name)
    return Limits(user, confined=config.sandbox.enable and not no_sandbox)
