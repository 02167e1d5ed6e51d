"""The members that each method's params have, and what is done about others (draft §2.5; design §8).

They are ignored, and named in the answer; with `strict` the request is refused instead. A client of ours asks for that,
and holds what it sends against the same names.

Which members of an object are understood, and where those are that are not (draft §2.5; design §8).

A server ignores what it does not understand, and says so; whoever asks for that is refused instead. What is understood
is a tree of names, written by hand for a method's params or taken from a JSON Schema. The verdict on a request that is
right costs one comparison of sets for each object; of one that is not, only the first few members are looked for.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from hearth.errors import InvalidParams
from hearth.protocol.methods import METHODS, read_flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hearth.protocol.methods import Params

MOST_NAMED: Final = 16
"""Members that are named of one request."""
LONGEST_NAME: Final = 64
"""Characters of a name that are repeated to whoever wrote it."""


class UnknownMember(NamedTuple):
    """A member that is not understood: the object it is in, its name, and what is understood there."""

    within: str
    name: str
    known: frozenset[str]

    @property
    def pointer(self) -> str:
        """Where it is: a JSON pointer, with a long name cut short."""
        return f"{self.within}/{_part(self.name)}"


class KnownMembers:
    """What is understood of a value: of an object its members and what is within them, of an array its items."""

    __slots__ = ("_inside", "_items", "_names")

    def __init__(
        self,
        names: frozenset[str] | None,
        inside: Mapping[str, KnownMembers] | None = None,
        items: KnownMembers | None = None,
    ) -> None:
        """`names` None: any member is as good as another."""
        self._names = names
        self._inside = tuple((inside or {}).items())
        self._items = items

    def knows(self, value: Any) -> bool:
        """True when nothing of a value is a stranger."""
        if type(value) is dict:
            if self._names is not None and not value.keys() <= self._names:
                return False
            for name, known in self._inside:
                if name in value and not known.knows(value[name]):
                    return False
        elif type(value) is list and (items := self._items) is not None:
            for item in value:
                if not items.knows(item):
                    return False
        return True

    def unknown_members(self, value: Any, at: str = "") -> list[UnknownMember]:
        """The first of the members that are not understood; `at` is where the value is."""
        return [] if self.knows(value) else list(islice(self._strangers(value, at), MOST_NAMED))

    def _strangers(self, value: Any, at: str) -> Iterator[UnknownMember]:
        if type(value) is dict:
            if (names := self._names) is not None and not value.keys() <= names:
                yield from (UnknownMember(at, str(name), names) for name in value if name not in names)
            for name, known in self._inside:
                if name in value:
                    yield from known._strangers(value[name], f"{at}/{_part(name)}")
        elif type(value) is list and (items := self._items) is not None:
            for index, item in enumerate(value):
                if not items.knows(item):
                    yield from items._strangers(item, f"{at}/{index}")


def refusal(unknown_members: list[UnknownMember], whose: str = "") -> InvalidParams:
    """What to raise for strangers where none is wanted: it names all of them, and what the first may have meant."""
    from hearth.fields import unknown_key

    first = unknown_members[0]
    reason = unknown_key(first.name[:LONGEST_NAME], sorted(first.known))
    return InvalidParams(
        f"Invalid params: {whose}{first.pointer}: {reason}",
        data={"path": first.pointer, "reason": reason, "unknown": [one.pointer for one in unknown_members]},
    )


def with_ignored(value: Any, ignored: tuple[str, ...]) -> Any:
    """A result, an object or the JSON of one, that names what is ignored."""
    if not ignored:
        return value
    if type(value) is dict:
        return {**value, "ignored": ignored}
    whole = orjson.dumps(value)
    named = orjson.dumps({"ignored": ignored})
    return orjson.Fragment(named if whole == b"{}" else whole[:-1] + b"," + named[1:])


def _part(name: str) -> str:
    from hearth.schema import escaped  # whose validator takes its time to load

    return escaped(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…")


# --- from a JSON Schema ---------------------------------------------------------------------------------------------

_OTHERS: Final = ("patternProperties", "additionalProperties", "unevaluatedProperties", "$ref", "$dynamicRef")
"""Keywords that let members in which `properties` does not name; false is no such schema."""


def known_by(schema: Any) -> KnownMembers | None:
    """What a schema names, in whichever of its alternatives; None if nothing in a value can be a stranger to it."""
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
    """What the one schema names that names anything; of several, which of them would hold is not decided here."""
    found = [known for schema in schemas if (known := known_by(schema)) is not None]
    return found[0] if len(found) == 1 else None


def _branches(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and those that hold for the same value, or may."""
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


_CONSTRAINTS = KnownMembers(
    frozenset(
        (
            "max_duration_ms",
            "abort_on_step_failure",
            "max_risk_level",
            "rollback_on_failure",
            "exclusive",
            "on_busy",
            "dry_run",
            "priority",
        )
    )
)
_STEPS = KnownMembers(None, items=KnownMembers(frozenset(("tool", "args"))))
_TASK = KnownMembers(
    frozenset(("intent", "steps", "constraints", "idempotency_key")), {"constraints": _CONSTRAINTS, "steps": _STEPS}
)

KNOWN: Mapping[str, KnownMembers] = {
    "session.open": _params("client_name", "client_version", "protocol_version", "on_disconnect", "heartbeat_ms"),
    "session.close": _params(),
    "tool.list": _params(),
    "task.submit": _params("subscribe", task=_TASK),
    "task.get": _params("task_id"),
    "task.cancel": _params("task_id"),
    "task.events.subscribe": _params("task_id", "from_seq"),
    "task.events.unsubscribe": _params("task_id"),
    "mcp.info": _params(),
    "mcp.tools": _params(),
    "mcp.use": _params("tool"),
    "hcp.capabilities": _params(),
    "hcp.sessions": _params(),
    "hcp.attach": _params("from_sequence"),
    "hcp.artifact": _params("uri", "offset", "len"),
    "hcp.pending": _params(),
    "hcp.decide": _params("approval_id", "approve", "reason"),
    "hcp.withdraw": _params("message_id", "reason"),
}
"""Method name -> what is understood of its params; a tool's args are known by its schema."""


def read_params(method: str, params: Mapping[str, Any]) -> tuple[Params, tuple[str, ...]]:
    """A method's params, and where in them something is ignored.

    Raises InvalidParams, also because of what is not understood if they are strict, and UnsupportedVersion.
    """
    read, known = METHODS[method](params), KNOWN[method]
    strict = "strict" in params and read_flag(params, "strict", "", default=False)
    if known.knows(params):
        return read, ()
    unknown_members = known.unknown_members(params)
    if strict:
        raise refusal(unknown_members)
    return read, tuple([one.pointer for one in unknown_members])


def require_known(method: str, params: Mapping[str, Any]) -> None:
    """Refuse what a client would send and nobody would understand. Raises InvalidParams."""
    unknown_members = KNOWN[method].unknown_members(params)
    if unknown_members:
        raise refusal(unknown_members)
