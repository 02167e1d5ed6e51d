"""One channel of a connection, as a state machine without I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.amqp.messages import AmqpMessage


class Delivery:
    """A message from a queue. It knows its channel, and only through it can it be settled: once."""

    message: AmqpMessage
    redelivered: bool
    consumer_tag: str

    @property
    def settled(self) -> bool:
        """True after `ack` or `nack`."""
        raise NotImplementedError

    def ack(self) -> None:
        """Tell the broker that the message is processed. Raises DeliveryLost, or AmqpMisuse for a second time."""
        raise NotImplementedError

    def nack(self, *, requeue: bool) -> None:
        """Give the message back, or drop it (to the dead-letter exchange, if there is one). Raises as `ack` does."""
        raise NotImplementedError
