"""The section [amqp]: the broker to which the daemon dials out, and its name there.

This module opens no connection and reads no file. `hearth.amqp.address` interprets the URL.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import frozen

from hearth.amqp.address import BrokerAddress, parse_broker
from hearth.errors import ConfigError
from hearth.extras import Section
from hearth.fields import AbsolutePath, Integer, Text, checked

if TYPE_CHECKING:
    from hearth.config.model import Config


@frozen(field_transformer=checked)
class AmqpConfig(Section):
    """[amqp]: without `url` the daemon dials no broker."""

    url: Annotated[str | None, Text("a URL such as amqps://broker.example/hcp", r"amqps?://\S+")] = None
    ca: Annotated[Path | None, AbsolutePath()] = None
    """The authority that has signed the broker's certificate; None: those of the system."""
    cert: Annotated[Path | None, AbsolutePath()] = None
    key: Annotated[Path | None, AbsolutePath()] = None
    id: Annotated[str | None, Text("1 to 64 letters, digits, '_' and '-'", r"[A-Za-z0-9_-]{1,64}")] = None
    """The device's name on the bus: the common name of its certificate, which is its user at the broker."""
    prefetch: Annotated[int, Integer(1, 1000)] = 32
    """Orders that the broker sends before earlier ones were acknowledged."""
    outbox_bytes: Annotated[int, Integer(1 << 16)] = 64 << 20
    """Bytes of messages that wait for the broker, past which new orders are refused."""

    def __attrs_post_init__(self) -> None:
        if self.url is not None:
            if self.id is None:
                raise ConfigError("id: not set; give the device the name that its certificate has")
            self.broker()

    def broker(self) -> BrokerAddress:
        """Return the broker's address, with the files of this section. Raises ConfigError."""
        assert self.url is not None
        files = {name: value for name in ("ca", "cert", "key") if (value := getattr(self, name)) is not None}
        query = "&".join(f"{name}={value}" for name, value in files.items())
        try:
            return parse_broker(self.url if not query else f"{self.url}{'&' if '?' in self.url else '?'}{query}")
        except ConfigError as error:
            raise ConfigError(f"url: {error}") from None

    def asks(self, _name: str) -> tuple[bool | None, str]:
        """See Section."""
        return self.url is not None, "url"

    def faults(self, config: "Config") -> Iterator[str]:
        """See Section."""
        if self.url is not None and config.hcp.serve is False:
            yield "[amqp] url: orders are jobs; take [hcp] serve = false out"

    def secrets(self) -> Iterator[tuple[str, Path]]:
        """See Section."""
        broker = None if self.url is None else self.broker()
        for key in ("ca", "cert", "key", "password_file"):
            if (path := getattr(broker, key, None)) is not None:
                yield f"[amqp] {key}", path

    def reads(self) -> Iterator[tuple[Path, str, bool]]:
        """See Section."""
        yield from ((path, name, True) for name, path in self.secrets())

    def sockets(self, _config: "Config") -> Iterator[tuple[str, str, int | None]]:
        """See Section."""
        if self.url is None:
            return
        broker = self.broker()
        yield "inet", "[amqp] url", broker.port
        try:
            ipaddress.ip_address(broker.host)
        except ValueError:
            yield "inet", "[amqp] url: the broker's name is looked up", None

    def credentials(self) -> Iterator[str]:
        """See Section."""
        if self.url is not None:
            yield "broker"

    @property
    def durable(self) -> bool:
        """True with a broker: an acknowledged order must survive a power cut."""
        return self.url is not None
