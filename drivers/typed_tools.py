"""Tools from typed functions: the schemas, the description and the result of a tool come from a method's signature.

A tool is a method of the class that does the work of a kind's tools, marked with `reads`, `changes` or `offers`. Its
parameters are the args, with `Annotated` for what a caller must know of them; its docstring is the description; its
return annotation has the result, a TypedDict. A method returns a plan (`Planned`). Where its tool says the bus itself,
it may return a `Transaction`, or be the coroutine of the step, with the context first (docs/howto/write-a-driver.md).

An arg that may be absent has a default: None for no default on the wire. Bytes are one parameter (`schemas.Bytes`),
and three members on the wire. This module knows no kind.
"""

from __future__ import annotations

from inspect import getdoc, iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from hearth.annotations import MISSING, base, expansion, members_of, wire_name
from hearth.drivers import schemas
from hearth.drivers.declare import facets
from hearth.errors import ConfigError
from hearth.tools import OneTransaction, Tool, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    at = f"tool {told['name']}: {function.__qualname__}"
    described, hints = getdoc(method), get_type_hints(function, include_extras=True)
    if described is None:
        raise ConfigError(f"{at} has no docstring, which is the tool's description (or Python runs with -OO)")
    if (result := hints.pop("return", None)) is None:
        raise ConfigError(f"{at} does not say its result; write `-> Planned[Shown]`, with a TypedDict")
    waits = iscoroutinefunction(function)
    parameters = {name: one for name, one in signature(method).parameters.items() if not (waits and name == "ctx")}
    defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
    takes = {name: hints.get(name, MISSING) for name in parameters}
    gives = result if waits else get_args(result)[0]
    arguments = _arguments(takes, defaults)

    def call(args: Args) -> Any:
        return method(**arguments(args))

    if waits:
        runs: dict[str, Any] = {"run": lambda ctx, args: method(ctx, **arguments(args))}
    else:
        runs = {"run": OneTransaction(call)} if get_origin(result) is Transaction else facets(call)
    known = {**function.__globals__, **texts}
    try:
        schemas_of = {
            "params_schema": _filled(schemas.root(members_of(takes, defaults)), known),
            "result_schema": _filled(schemas.root(members_of(get_type_hints(gives, include_extras=True), {})), known),
            "description": " ".join(described.split()).format_map(known),
        }
    except KeyError as error:
        raise ConfigError(
            f"{at} has a text with {{{error.args[0]}}}, which is not known; a literal brace is doubled"
        ) from None
    return Tool(**{**runs, **schemas_of, **told, **more})


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


def _arguments(hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Callable[[Args], dict[str, Any]]:
    """Return the function from args that fit their schema to the arguments of a method."""
    plain: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    of_bytes: list[tuple[str, str, Any]] = []
    for name, hint in hints.items():
        data = expansion(hint)
        if data is not None:
            of_bytes.append((wire_name(name), name, data))
        else:
            plain.append((wire_name(name), name, _NUMBERS.get(base(hint))))

    def arguments(args: Args) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for wire, name, make in plain:  # a comprehension would be one more call per step in Python 3.11
            if wire in args:
                found[name] = args[wire] if make is None else make(args[wire])
        for wire, name, data in of_bytes:
            if name not in defaults or data.found(args, wire):
                found[name] = data.read(args, wire)
        return found

    return arguments


_NUMBERS: Final[Mapping[Any, Callable[[Any], Any]]] = {int: int, float: float}
"""To JSON 4.0 is an integer, and 4 a number."""
