"""Exchanges, queues and bindings that a connection declares each time it is made; declaring is idempotent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


@frozen
class Exchange:
    """An exchange. With `passive` it must exist already, with any settings: that needs no permission to configure."""

    name: str
    type: Literal["direct", "fanout", "topic", "headers"] = "direct"
    durable: bool = True
    arguments: Mapping[str, Any] = field(factory=dict)
    passive: bool = field(default=False, kw_only=True)


@frozen
class Queue:
    """A queue; `arguments` such as {"x-queue-type": "quorum"}. `passive` as in Exchange."""

    name: str
    durable: bool = True
    arguments: Mapping[str, Any] = field(factory=dict)
    exclusive: bool = field(default=False, kw_only=True)
    auto_delete: bool = field(default=False, kw_only=True)
    passive: bool = field(default=False, kw_only=True)


@frozen
class Binding:
    """A queue's binding to an exchange."""

    queue: str
    exchange: str
    routing_key: str
    arguments: Mapping[str, Any] = field(factory=dict)


@frozen
class Topology:
    """What to declare, in this order: exchanges, queues, bindings."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()


@frozen
class QueueState:
    """The broker's answer about a queue: the messages that are ready, and the consumers."""

    name: str
    messages: int
    consumers: int
