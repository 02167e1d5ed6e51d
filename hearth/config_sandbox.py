"""[sandbox]: what hearthd keeps itself from, and what more it may reach.

This module owns the shape. It confines nobody: `hearth.drivers.sandbox` makes a plan of it and puts that in force.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from pathlib import Path
from typing import Annotated, TypeAlias

from attrs import frozen

from hearth.config_kinds import AbsolutePath, Flag, ListOf, Text, checked
from hearth.errors import ConfigError

_Paths: TypeAlias = Annotated[tuple[Path, ...], ListOf(AbsolutePath())]


@frozen(field_transformer=checked)
class SandboxConfig:
    """[sandbox]: by default everything that this kernel can enforce, and the user that started the daemon."""

    enable: Annotated[bool, Flag()] = True
    require: Annotated[bool, Flag()] = False
    """Whether the daemon refuses to start where a part of it cannot be put in force."""
    user: Annotated[str | None, Text()] = None
    """Whom to become, with this user's groups, when started as root."""
    program_user: Annotated[str | None, Text()] = None
    """Whom programs of proc.exec run as, when started as root; None means: as the daemon."""
    read: _Paths = ()
    write: _Paths = ()
    execute: _Paths = ()
    """What programs of proc.exec may run in their turn: a script's commands."""
    network: Annotated[bool, Flag()] = False
    """Whether vendors' tools and programs may make IP sockets, and reach whom they like."""
    hotplug: Annotated[bool | None, Flag()] = None
    """Whether all of /dev may be opened, for devices that come back; None means: where the board has such ones."""

    def __attrs_post_init__(self) -> None:
        if self.require and not self.enable:
            raise ConfigError("require = true asks for what enable = false switches off; take one of them out")
