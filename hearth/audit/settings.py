"""What the operator decides about the audit log: `AuditSettings`. Refuses only values that cannot work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import Attribute, field, frozen

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Durability: TypeAlias = Literal["os", "fsync", "relaxed"]
"""What has become of a record when its receipt is answered: in the kernel, on the disk, or merely accepted."""

DURABILITIES: tuple[Durability, ...] = ("os", "fsync", "relaxed")


def _known(_instance: Any, _attribute: Attribute[Any], value: str) -> None:
    if value not in DURABILITIES:
        raise ConfigError(f"audit.durability: {value!r} is none of {', '.join(DURABILITIES)}")


def _at_least(least: int) -> Any:
    def check(_instance: Any, attribute: Attribute[Any], value: int) -> None:
        if value < least:
            raise ConfigError(f"audit.{attribute.name}: {value} is too small; the least is {least}")

    return check


@frozen(kw_only=True)
class AuditSettings:
    """The `[audit]` table of hearth.toml, with its defaults filled in.

    A file that has reached `rotate_bytes` is followed by a new one; a checkpoint follows every record whose
    number is a multiple of `checkpoint_every`, and no record stays without one for longer than
    `checkpoint_interval_s`. `reserve_bytes` of the disk are kept for the end of what runs when it is full. `key`
    is the daemon's Ed25519 key; it is made when the first checkpoint is due, and its public half lies beside it as
    `<key>.pub`. Raises ConfigError for a value that cannot work.
    """

    path: Path
    durability: Durability = field(default="os", validator=_known)
    rotate_bytes: int = field(default=64 * 1024 * 1024, validator=_at_least(1024))
    checkpoint_every: int = field(default=1000, validator=_at_least(1))
    checkpoint_interval_s: float = 3600
    reserve_bytes: int = field(default=1024 * 1024, validator=_at_least(0))
    key: Path
