"""Enrolment: a user, its permissions and its queues at the broker, as definitions that RabbitMQ imports.

A member has a user of its own, without a password: it logs in by a certificate whose common name is its id (SASL
EXTERNAL). Its permissions let it do what its part needs and nothing else:

- A *device* reads its own queues, and publishes events and its own announcements. It may not bind a queue to
  `hcp.commands`: with that it could read the orders of others. So the binding of its queue is made here.
- A *caller* reads its own queue, binds it to its own events only (a topic permission), and publishes orders. Which
  device does what it orders is the device's policy.
- An *operator* is a caller that may halt the fleet.

The broker checks the property `user-id` of each message, so that none can publish as another. Pure: importing the
definitions, and deleting a user, is the work of `rabbitmqctl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from hearth.errors import ConfigError
from hearth.hcp import l1

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.amqp.topology import Topology

Part: TypeAlias = Literal["device", "caller", "operator"]
PARTS: Final[tuple[Part, ...]] = get_args(Part)
UNROUTED: Final = "hearth.unrouted"
"""The alternate exchange of `hcp.events`, and the queue that has the newest events of callers without a queue."""
_NONE: Final = "^$"


def definitions(members: Mapping[str, Part], vhost: str, *, history: bool = False) -> dict[str, Any]:
    """Return what `rabbitmqctl import_definitions` reads, for members by their ids. Raises ConfigError.

    `history`: also the stream of all events (`hearth.hcp.l1.history_topology`).
    """
    for name in members:
        if not l1.is_id(name):
            raise ConfigError(f"{name[:80]!r}: expected an id of 1 to 64 letters, digits, '_' and '-'")
    topologies = [l1.cards_topology(), *([l1.history_topology()] if history else [])]
    users, permissions, topics = [], [], []
    for name, part in members.items():
        users.append({"name": name, "password_hash": "", "hashing_algorithm": _HASHING, "tags": []})
        if part == "device":
            topologies += [l1.callee_topology(name), l1.halt_topology(name)]
            permissions.append(_device(name, vhost))
            topics += [
                _topic(name, vhost, l1.EVENTS, ".*", _NONE),
                _topic(name, vhost, l1.FLEET, f"^card\\.{name}$", "^halt$"),
            ]
        else:
            topologies.append(l1.caller_topology(name))
            permissions.append(_caller(name, vhost))
            keys = f"^card\\._\\.{name}$" if part == "caller" else f"^(halt|card\\._\\.{name})$"
            topics += [_topic(name, vhost, l1.EVENTS, _NONE, f"^{name}\\."), _topic(name, vhost, l1.FLEET, keys, _NONE)]
    made: dict[str, Any] = {
        "vhosts": [{"name": vhost}],
        "users": users,
        "permissions": permissions,
        "topic_permissions": topics,
        **_declared(topologies, vhost),
        "policies": [_unrouted_policy(vhost)],
    }
    made["exchanges"].append(_exchange(UNROUTED, "fanout", vhost))
    made["queues"].append(_queue(UNROUTED, {"x-max-length-bytes": 64 << 20, "x-overflow": "drop-head"}, vhost))
    made["bindings"].append(_binding(UNROUTED, UNROUTED, "", vhost))
    return made


def policy_lines(name: str, part: Part) -> list[str]:
    """Return the `[[policy]]` entry with which a device takes the orders of a caller or an operator."""
    more = ["max_risk = 2"] if part == "caller" else ["max_risk = 2", 'rights = ["reset_halt"]']
    return ["[[policy]]", f'name = "{name}"', f'match = {{ amqp_user = "{name}" }}', *more]


_HASHING: Final = "rabbit_password_hashing_sha256"


def _device(name: str, vhost: str) -> dict[str, str]:
    own = f"hcp\\.cmd\\.{name}|hearth\\.halt\\.{name}(\\.live)?"
    return {
        "user": name,
        "vhost": vhost,
        "configure": f"^({own})$",
        # To bind a queue is to write to it and to read the exchange: only halts, by the topic's permission.
        "write": f"^(hcp\\.events|hearth\\.fleet|hearth\\.halt\\.{name}\\.live)$",
        "read": f"^({own}|hearth\\.fleet)$",
    }


def _caller(name: str, vhost: str) -> dict[str, str]:
    own = f"hcp\\.evt\\.{name}"
    return {
        "user": name,
        "vhost": vhost,
        "configure": f"^{own}$",
        "write": f"^({own}|hcp\\.commands|hearth\\.fleet)$",
        "read": f"^({own}|hcp\\.events|hearth\\.cards)$",
    }


def _topic(name: str, vhost: str, exchange: str, write: str, read: str) -> dict[str, str]:
    return {"user": name, "vhost": vhost, "exchange": exchange, "write": write, "read": read}


def _exchange(name: str, kind: str, vhost: str) -> dict[str, Any]:
    more = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    return {"name": name, "vhost": vhost, "type": kind, **more}


def _queue(name: str, arguments: Mapping[str, Any], vhost: str) -> dict[str, Any]:
    return {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": dict(arguments)}


def _binding(exchange: str, queue: str, key: str, vhost: str) -> dict[str, Any]:
    to = {"destination": queue, "destination_type": "queue", "routing_key": key, "arguments": {}}
    return {"source": exchange, "vhost": vhost, **to}


def _declared(topologies: Iterable[Topology], vhost: str) -> dict[str, list[dict[str, Any]]]:
    exchanges: dict[str, Any] = {}
    queues: dict[str, Any] = {}
    bindings: dict[tuple[str, str], Any] = {}
    for topology in topologies:
        exchanges |= {one.name: _exchange(one.name, one.type, vhost) for one in (*l1.EXCHANGES, *topology.exchanges)}
        queues |= {one.name: _queue(one.name, one.arguments, vhost) for one in topology.queues}
        bindings |= {
            (one.exchange, one.queue): _binding(one.exchange, one.queue, one.routing_key, vhost)
            for one in topology.bindings
        }
    return {"exchanges": [*exchanges.values()], "queues": [*queues.values()], "bindings": [*bindings.values()]}


def _unrouted_policy(vhost: str) -> dict[str, Any]:
    # By a policy, because a harness that declares the exchange with other arguments would be refused.
    return {
        "name": "hearth-unrouted",
        "vhost": vhost,
        "pattern": "^hcp\\.events$",
        "apply-to": "exchanges",
        "definition": {"alternate-exchange": UNROUTED},
        "priority": 0,
    }
