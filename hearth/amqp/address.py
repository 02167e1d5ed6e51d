"""A broker's URL.

    amqps://HOST[:5671][/VHOST]?ca=FILE&cert=FILE&key=FILE
    amqp://USER@HOST[:5672][/VHOST]?password_file=FILE

amqps logs in by the client's certificate (SASL EXTERNAL) and needs one. amqp logs in with a password (SASL PLAIN), which
crosses the wire in the clear: it is for loopback alone. An address holds no secret, so that it can be logged; text that
seems to hold one is refused, and the error does not repeat it. As in RabbitMQ's URI specification, no path is the virtual
host `/`, and a slash within a virtual host is %2F. This module opens no connection and reads no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from attrs import frozen


@frozen
class BrokerAddress:
    """A broker. `secure` is amqps: then `cert` and `key` are set, else `user` and `password_file`."""

    host: str
    port: int
    secure: bool
    vhost: str = "/"
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None

    @property
    def place(self) -> str:
        """The address without its parameters, as messages name it."""
        raise NotImplementedError


EXAMPLES: Final[dict[str, str]] = {}


def parse_broker(text: str) -> BrokerAddress:
    """Return the address that `text` means. Raises ConfigError, which names the fault and shows a right address."""
    raise NotImplementedError
