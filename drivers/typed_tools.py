"""Tools from typed functions: the schemas, the description and the result of a tool come from a method's signature.

A tool is a method of the class that does the work of a kind's tools, marked with `reads`, `changes` or `offers`. Its
parameters are the args, with `Annotated` for what a caller must know of them; its docstring is the description; its
return annotation has the result, a TypedDict. A method returns a plan (`Planned`). Where its tool says the bus itself,
it may return a `Transaction`, or be the coroutine of the step, with the context first (docs/howto/write-a-driver.md).

An arg that may be absent has a default: None for no default on the wire. Bytes are one parameter (`schemas.Bytes`),
and three members on the wire. This module knows no kind.
"""

from __future__ import annotations

from functools import cache
from inspect import getdoc, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from attrs import frozen

from hearth.annotations import MISSING, base, expansion, members_of, wire_name
from hearth.drivers import schemas
from hearth.drivers.declare import facets
from hearth.errors import ConfigError
from hearth.tools import OneTransaction, Tool, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.drivers.schemas import Schema
    from hearth.tools import Args

_MARK: Final = "__hearth_tool__"
_F = TypeVar("_F", bound="Callable[..., Any]")


def offers(
    name: str, capability: str, risk_level: int, *, timeout_ms: int = 1_000, **fields: Any
) -> Callable[[_F], _F]:
    """Mark a method as a tool; `fields` are other fields of `Tool`, such as the args `logged` in clear."""

    def mark(function: _F) -> _F:
        told = {"name": name, "capability": capability, "risk_level": risk_level, "timeout_ms": timeout_ms, **fields}
        setattr(function, _MARK, told)
        return function

    return mark


def reads(name: str, capability: str, **fields: Any) -> Callable[[_F], _F]:
    """Mark a method as a tool of risk 0; see `offers`."""
    return offers(name, capability, 0, **fields)


def changes(name: str, capability: str, **fields: Any) -> Callable[[_F], _F]:
    """Mark a method as a tool of risk 2; see `offers`."""
    return offers(name, capability, 2, **fields)


def tools_of(owner: object, texts: Mapping[str, object] | None = None, **more: Mapping[str, Any]) -> list[Tool]:
    """Return the marked methods of an object as tools, in the order of its class.

    `texts` are what stands for {names} in descriptions, beside the constants of the method's module; `more` has, for a
    method, fields of its tool that only a board knows. Raises NotJson for an annotation that has no JSON form.
    """
    marked = [name for name, one in vars(type(owner)).items() if hasattr(one, _MARK)]
    return [_tool_of(getattr(owner, name), texts or {}, more.get(name, {})) for name in marked]


def _tool_of(method: Any, texts: Mapping[str, object], more: Mapping[str, Any]) -> Tool:
    function = method.__func__
    told: Mapping[str, Any] = getattr(function, _MARK)
    form = _form(function)
    call = form.called(method)
    if form.waits:
        runs: dict[str, Any] = {"run": lambda ctx, args: call(args, ctx)}
    else:
        runs = {"run": OneTransaction(call)} if form.inline else facets(call)
    known = {**function.__globals__, **texts}
    try:
        filled = {
            "params_schema": _filled(form.takes, known) if form.names else form.takes,
            "result_schema": _filled(form.gives, known) if form.names else form.gives,
            "description": form.description.format_map(known),
        }
    except KeyError as error:
        reason = f"has a text with {{{error.args[0]}}}, which is not known; a literal brace is doubled"
        raise ConfigError(f"{_place(function)} {reason}") from None
    return Tool(**{**runs, **filled, **told, **more})


@frozen
class _Form:
    """What the signature of a method says, before the names of a board are filled in."""

    description: str
    takes: Schema
    gives: Schema
    called: Callable[[Any], Callable[..., Any]]
    """Returns the function that calls a bound method: it gets args that fit their schema, and what goes before them."""
    waits: bool
    inline: bool
    names: bool
    """True if its schemas have texts with names to be filled in."""


@cache  # a process may have many runtimes, and evaluating annotations takes most of the time
def _form(function: Any) -> _Form:
    described, hints = getdoc(function), get_type_hints(function, include_extras=True)
    if described is None:
        reason = "has no docstring, which is the tool's description (or Python runs with -OO)"
        raise ConfigError(f"{_place(function)} {reason}")
    if (result := hints.pop("return", None)) is None:
        raise ConfigError(f"{_place(function)} does not say its result; write `-> Planned[Shown]`, with a TypedDict")
    waits = iscoroutinefunction(function)
    named = [*signature(function).parameters.values()][2 if waits else 1 :]
    defaults = {one.name: one.default for one in named if one.default is not one.empty}
    takes = {one.name: hints.get(one.name, MISSING) for one in named}
    gives = get_type_hints(result if waits else get_args(result)[0], include_extras=True)
    shapes = schemas.root(members_of(takes, defaults)), schemas.root(members_of(gives, {}))
    return _Form(
        description=" ".join(described.split()),
        takes=shapes[0],
        gives=shapes[1],
        names=_has_names(shapes),
        called=_called(takes, defaults),
        waits=waits,
        inline=get_origin(result) is Transaction,
    )


def _place(function: Any) -> str:
    return f"tool {getattr(function, _MARK)['name']}: {function.__qualname__}"


def _has_names(schema: Any) -> bool:
    if isinstance(schema, dict):
        return "{" in str(schema.get("description", "")) or any(map(_has_names, schema.values()))
    return isinstance(schema, (list, tuple)) and any(map(_has_names, schema))


def _filled(schema: Any, texts: Mapping[str, object]) -> Any:
    """Return a schema with its descriptions filled in."""
    if isinstance(schema, list):
        return [_filled(one, texts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    filled = {name: _filled(one, texts) for name, one in schema.items()}
    if isinstance(described := schema.get("description"), str):
        filled["description"] = described.format_map(texts)
    return filled


def _called(hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Callable[[Any], Callable[..., Any]]:
    """Return the function from a bound method with these arguments to one that takes args: see `_Form.called`."""
    plain: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    of_bytes: list[tuple[str, str, Any]] = []
    for name, hint in hints.items():
        data = expansion(hint)
        if data is not None:
            of_bytes.append((wire_name(name), name, data))
        else:
            plain.append((wire_name(name), name, _NUMBERS.get(base(hint))))

    def called(method: Any) -> Callable[..., Any]:
        def call(args: Args, *before: Any) -> Any:
            found: dict[str, Any] = {}
            for wire, name, make in plain:  # a comprehension would be one more call per step in Python 3.11
                if wire in args:
                    found[name] = args[wire] if make is None else make(args[wire])
            for wire, name, data in of_bytes:
                if name not in defaults or data.found(args, wire):
                    found[name] = data.read(args, wire)
            return method(*before, **found)

        return call

    return called


_NUMBERS: Final[Mapping[Any, Callable[[Any], Any]]] = {int: int, float: float}
"""To JSON 4.0 is an integer, and 4 a number."""
