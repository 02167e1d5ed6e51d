"""The known members of each method's params, and the treatment of unknown ones (draft §2.5).

A server ignores unknown members and names them in its answer; with `strict` it refuses the request instead. hearth's
client sets `strict` and checks its own requests against the same names. The known members form a tree of names, written
by hand for a method's params or taken from a JSON Schema. For a request without unknown members the check costs one
comparison of sets for each object; otherwise only the first few unknown members are looked for.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from hearth.errors import InvalidParams
from hearth.protocol.methods import METHODS
from hearth.protocol.params import read_flag
from hearth.protocol.submissions import CONSTRAINTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hearth.protocol.methods import Params

MOST_NAMED: Final = 16
"""Unknown members that are named of one request."""
LONGEST_NAME: Final = 64
"""Characters of an unknown name that an answer repeats."""


class UnknownMember(NamedTuple):
    """An unknown member: the object it is in, its name, and the known names there."""

    within: str
    name: str
    known: frozenset[str]

    @property
    def pointer(self) -> str:
        """Return its place: a JSON pointer, with a long name cut short."""
        return f"{self.within}/{_part(self.name)}"


class KnownMembers:
    """The known members of a value: for an object its members and theirs, for an array those of its items."""

    __slots__ = ("_inside", "_items", "_leaf", "_names")

    def __init__(
        self,
        names: frozenset[str] | None,
        inside: Mapping[str, KnownMembers] | None = None,
        items: KnownMembers | None = None,
    ) -> None:
        """Know these names; None knows every name."""
        self._names = names
        self._inside = tuple((inside or {}).items())
        self._items = items
        self._leaf = not self._inside and items is None
        """True if only the names of the value's own members matter."""

    def knows(self, value: Any) -> bool:
        """Return True when a value has no unknown member."""
        if type(value) is dict:
            if self._names is not None and not value.keys() <= self._names:
                return False
            for name, known in self._inside:
                if name in value and not known.knows(value[name]):
                    return False
        elif type(value) is list and (items := self._items) is not None:
            # HOT: the steps of a submission are looked at here, without a call for each.
            names = items._names if items._leaf else None
            for item in value:
                if names is not None and type(item) is dict:
                    if not item.keys() <= names:
                        return False
                elif not items.knows(item):
                    return False
        return True

    def unknown_members(self, value: Any, at: str = "") -> list[UnknownMember]:
        """Return the first of the unknown members; `at` is the JSON pointer of the value."""
        return [] if self.knows(value) else list(islice(self._unknown_members(value, at), MOST_NAMED))

    def _unknown_members(self, value: Any, at: str) -> Iterator[UnknownMember]:
        if type(value) is dict:
            if (names := self._names) is not None and not value.keys() <= names:
                yield from (UnknownMember(at, str(name), names) for name in value if name not in names)
            for name, known in self._inside:
                if name in value:
                    yield from known._unknown_members(value[name], f"{at}/{_part(name)}")
        elif type(value) is list and (items := self._items) is not None:
            for index, item in enumerate(value):
                if not items.knows(item):
                    yield from items._unknown_members(item, f"{at}/{index}")


def refusal(unknown_members: list[UnknownMember], whose: str = "") -> InvalidParams:
    """Return the error for unknown members in a strict request: it names all, and suggests a name for the first."""
    from hearth.fields import unknown_key

    first = unknown_members[0]
    reason = unknown_key(first.name[:LONGEST_NAME], sorted(first.known))
    return InvalidParams(
        f"Invalid params: {whose}{first.pointer}: {reason}",
        data={"path": first.pointer, "reason": reason, "unknown": [one.pointer for one in unknown_members]},
    )


def with_ignored(value: Any, ignored: tuple[str, ...]) -> Any:
    """Return a result, an object or the JSON of one as bytes, that names the ignored members."""
    if not ignored:
        return value
    if type(value) is dict:
        return {**value, "ignored": ignored}
    named = orjson.dumps({"ignored": ignored})
    return named if value == b"{}" else value[:-1] + b"," + named[1:]


def _part(name: str) -> str:
    from hearth.schema import escaped  # lazy: the validator is slow to load

    return escaped(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…")


_OTHERS: Final = ("patternProperties", "additionalProperties", "unevaluatedProperties", "$ref", "$dynamicRef")
"""Keywords that allow members which `properties` does not name. With the value false they do not."""


def known_by(schema: Any) -> KnownMembers | None:
    """Return the names of a schema, from all its alternatives; None if the schema knows every name."""
    branches = list(_branches(schema))
    tables = [branch["properties"] for branch in branches if "properties" in branch]
    names: frozenset[str] | None = None
    inside: dict[str, KnownMembers] = {}
    if tables and not any(branch.get(word) not in (None, False) for branch in branches for word in _OTHERS):
        names = frozenset(chain.from_iterable(tables))
        for name in names:
            known = _one_of(table[name] for table in tables if name in table)
            if known is not None:
                inside[name] = known
    items = _one_of(branch["items"] for branch in branches if "items" in branch)
    return None if names is None and items is None else KnownMembers(names, inside, items)


def _one_of(schemas: Iterable[Any]) -> KnownMembers | None:
    """Return the names of the one schema that has any. With several it is unknown which one applies: None."""
    found = [known for schema in schemas if (known := known_by(schema)) is not None]
    return found[0] if len(found) == 1 else None


def _branches(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its subschemas that apply, or may apply, to the same value."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word in ("allOf", "anyOf", "oneOf"):
        for branch in schema.get(word, ()):
            yield from _branches(branch)
    for word in ("if", "then", "else"):
        yield from _branches(schema.get(word))
    for branch in schema.get("dependentSchemas", {}).values():
        yield from _branches(branch)


def _params(*names: str, **inside: KnownMembers) -> KnownMembers:
    return KnownMembers(frozenset((*names, *inside, "session_id", "strict")), inside)


_CONSTRAINTS = KnownMembers(frozenset(CONSTRAINTS))
_STEPS = KnownMembers(None, items=KnownMembers(frozenset(("tool", "args", "expect"))))
_TASK = KnownMembers(
    frozenset(("intent", "steps", "constraints", "idempotency_key")), {"constraints": _CONSTRAINTS, "steps": _STEPS}
)

KNOWN: Mapping[str, KnownMembers] = {
    "session.open": _params(
        "client_name", "client_version", "protocol_version", "on_disconnect", "heartbeat_ms", "conversation"
    ),
    "session.close": _params(),
    "tool.list": _params(),
    "task.submit": _params("subscribe", task=_TASK),
    "task.get": _params("task_id"),
    "task.cancel": _params("task_id"),
    "task.events.subscribe": _params("task_id", "from_seq"),
    "task.events.unsubscribe": _params("task_id"),
    "plan.prepare": _params(task=_TASK),
    "plan.execute": _params("plan_id", "hash", "wait_ms", "subscribe"),
    "plan.list": _params("after_seq", "wait_ms"),
    "plan.get": _params("plan_id"),
    "plan.approve": _params("plan_id", "hash", "reason"),
    "plan.reject": _params("plan_id", "reason"),
    "approval.grant": _params("tool", "args", "times", "within_s", "principal", "reason", "dry_run"),
    "approval.list": _params(),
    "approval.revoke": _params("approval_id"),
    "mcp.info": _params(),
    "mcp.tools": _params(),
    "mcp.use": _params("tool"),
    "halt": _params("reason"),
    "halt.status": _params(),
    "halt.reset": _params("holds"),
    "observe.state": _params(),
    "observe.subscribe": _params("stream", "from_seq"),
    "observe.unsubscribe": _params(),
    "observe.audit": _params("from_seq", "limit"),
    "policy.reload": _params("yes"),
    "attest.quote": _params("nonce", "since"),
    "attest.key": _params(),
    "hcp.capabilities": _params(),
    "hcp.sessions": _params(),
    "hcp.attach": _params("from_sequence"),
    "hcp.artifact": _params("uri", "offset", "len"),
    "hcp.pending": _params(),
    "hcp.decide": _params("approval_id", "approve", "reason"),
    "hcp.withdraw": _params("message_id", "reason"),
}
"""Method name -> known members of its params. A tool's args are known by its schema."""


def read_params(method: str, params: Mapping[str, Any]) -> tuple[Params, tuple[str, ...]]:
    """Return a method's params, and pointers to the ignored members.

    Raises InvalidParams, with `strict` also for unknown members, and UnsupportedVersion. plan.prepare is always strict:
    a person would approve a member that does nothing.
    """
    read, known = METHODS[method](params), KNOWN[method]
    strict = ("strict" in params and read_flag(params, "strict", "", default=False)) or method == "plan.prepare"
    if known.knows(params):
        return read, ()
    unknown_members = known.unknown_members(params)
    if strict:
        raise refusal(unknown_members)
    return read, tuple([one.pointer for one in unknown_members])


def require_known(method: str, params: Mapping[str, Any]) -> None:
    """Refuse params of a client's own that no server would understand. Raises InvalidParams."""
    unknown_members = KNOWN[method].unknown_members(params)
    if unknown_members:
        raise refusal(unknown_members)
