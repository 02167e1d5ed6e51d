"""What an expression may name, found out before anything runs: a walk over its tree with JSON Schemas for values.

A name that cannot be there would be null in every job, without a word; here it is a fault with the names that there
are. Whatever a schema leaves open is taken to be anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from hearth.errors import HearthError
from hearth.hcp.functions import GIVES, TABLE
from hearth.hcp.schema_kinds import kind_of_value, kinds_of, near, words
from hearth.hcp.units import UnitError, check_unit, check_units, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hearth.hcp.schema_kinds import Shape

ANYTHING: Final[Shape] = {}
MISSING: Final = "hearth:missing"
"""Key of a shape: what to say of a member that is not there, in place of our own words."""
_OPEN = ("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf", "if", "patternProperties")
_CHAINS = ("subexpression", "index_expression", "pipe", "projection", "filter_projection", "value_projection")


class NameFault(HearthError):
    """A name that is not there, or a use of what is that can never work."""


@frozen
class Names:
    """What an expression may begin from: each root with its shape."""

    roots: Mapping[str, Shape]
    row: Shape | None = None
    """Where it is looked at over a row: what a row is. The roots are what `root()` gives then."""

    def over(self, row: Shape) -> Names:
        """For an expression over the rows that another one gives."""
        return Names(self.roots, row)

    @classmethod
    def of_inputs(cls, input_schema: Shape) -> Names:
        """For what is looked at before a job begins: `inputs` alone."""
        return cls({"inputs": {"type": "object", **input_schema}})


def look_up(tree: Any, names: Names) -> Shape:
    """The shape of an expression's value. Raises NameFault for what it names and is not there."""
    roots = {"type": "object", "properties": dict(names.roots), MISSING: "no name that an expression can begin from"}
    return _Walk(roots).visit(tree, roots if names.row is None else names.row)


def roots_of(tree: Any) -> frozenset[str]:
    """The names that an expression begins from; "*" stands for all."""
    return frozenset(_roots(tree))


def _roots(node: Any) -> Iterator[str]:
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield node["value"]
    elif kind in ("current", "identity") or (kind == "function_expression" and node["value"] == "root"):
        yield "*"
    elif kind in _CHAINS:
        # What follows is looked at in what the first gives.
        yield from _roots(children[0])
        if any(map(_asks_root, children[1:])):
            yield "*"
    elif kind == "expref":
        if _asks_root(node):
            yield "*"
    elif kind != "slice":  # its children are numbers
        for child in children:
            yield from _roots(child)


def _asks_root(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    if node["type"] == "function_expression" and node["value"] == "root":
        return True
    return any(map(_asks_root, node["children"]))


class _Walk:
    """One walk. `here` is the shape of the current node, as JMESPath's interpreter has its value."""

    def __init__(self, roots: Shape) -> None:
        self._roots = roots
        self._by_type: dict[str, Callable[[Any, Shape], Shape]] = {
            "field": self._field,
            "literal": lambda node, _here: _of_literal(node["value"]),
            "current": lambda _node, here: here,
            "identity": lambda _node, here: here,
            "index": lambda _node, here: _items(here, "an index"),
            "slice": self._slice,
            "flatten": self._flatten,
            "subexpression": self._chain,
            "index_expression": self._chain,
            "pipe": self._chain,
            "projection": self._projection,
            "filter_projection": self._filter,
            "value_projection": self._values,
            "multi_select_list": self._list,
            "multi_select_dict": self._dict,
            "comparator": self._boolean,
            "not_expression": self._boolean,
            "or_expression": self._either,
            "and_expression": self._either,
            "function_expression": self._call,
        }

    def visit(self, node: Any, here: Shape) -> Shape:
        return self._by_type[node["type"]](node, here)

    def _field(self, node: Any, here: Shape) -> Shape:
        name = node["value"]
        kinds = kinds_of(here)
        if kinds is not None and "object" not in kinds:
            cure = '; write "[]" before it to look at each element' if "array" in kinds else ""
            raise NameFault(f"{name!r} is a member of nothing here: what comes before it is {words(kinds)}{cure}")
        properties = here.get("properties")
        if not isinstance(properties, dict) or any(key in here for key in _OPEN):
            return ANYTHING
        found = properties.get(name, here.get("additionalProperties", False))
        if found is False:
            raise NameFault(_missing(name, list(properties), here.get(MISSING)))
        return found if isinstance(found, dict) else ANYTHING

    def _slice(self, _node: Any, here: Shape) -> Shape:
        _items(here, "a slice")
        return here

    def _flatten(self, node: Any, here: Shape) -> Shape:
        whole = self.visit(node["children"][0], here)
        items = _items(whole, "[]")
        inner = kinds_of(items)
        if inner is None:
            return {"type": "array"}
        return {"type": "array", "items": _items(items, "[]") if inner == {"array"} else items}

    def _chain(self, node: Any, here: Shape) -> Shape:
        for child in node["children"]:
            here = self.visit(child, here)
        return here

    def _projection(self, node: Any, here: Shape) -> Shape:
        whole = self.visit(node["children"][0], here)
        return {"type": "array", "items": self.visit(node["children"][1], _items(whole, "[*]"))}

    def _filter(self, node: Any, here: Shape) -> Shape:
        base, then, condition = node["children"]
        items = _items(self.visit(base, here), "[?…]")
        self.visit(condition, items)
        return {"type": "array", "items": self.visit(then, items)}

    def _values(self, node: Any, here: Shape) -> Shape:
        self.visit(node["children"][0], here)
        self.visit(node["children"][1], ANYTHING)
        return {"type": "array"}

    def _list(self, node: Any, here: Shape) -> Shape:
        shapes = [self.visit(child, here) for child in node["children"]]
        alike = all(shape == shapes[0] for shape in shapes)
        return {"type": "array", "items": shapes[0]} if alike else {"type": "array"}

    def _dict(self, node: Any, here: Shape) -> Shape:
        members = {child["value"]: self.visit(child["children"][0], here) for child in node["children"]}
        return {"type": "object", "properties": members}

    def _boolean(self, node: Any, here: Shape) -> Shape:
        for child in node["children"]:
            self.visit(child, here)
        return {"type": "boolean"}

    def _either(self, node: Any, here: Shape) -> Shape:
        left, right = (self.visit(child, here) for child in node["children"])
        return left if left == right else ANYTHING

    def _call(self, node: Any, here: Shape) -> Shape:
        name, children = node["value"], node["children"]
        if name not in TABLE:
            raise NameFault(f"there is no function {name}(){near(name, list(TABLE))}")
        signature: Sequence[Mapping[str, Any]] = TABLE[name]["signature"]
        variadic = bool(signature) and signature[-1].get("variadic", False)
        if len(children) < len(signature) or (len(children) > len(signature) and not variadic):
            least = "at least " if variadic else ""
            raise NameFault(f"{name}() takes {least}{len(signature)} arguments, got {len(children)}")
        for index, child in enumerate(children):
            if (child["type"] == "expref") != (signature[min(index, len(signature) - 1)]["types"] == ["expref"]):
                raise NameFault(f"{name}() takes &expressions where it says so, and values elsewhere")
        over = self._over(name, children, here)
        shapes = [self._argument(child, here, over) for child in children]
        for index, shape in enumerate(shapes):
            self._check_argument(name, signature[min(index, len(signature) - 1)]["types"], shape)
        if name == "convert":
            _check_units(children[1], children[2])
        if name == "root":
            return self._roots
        return _given(name, shapes)

    def _over(self, name: str, children: Sequence[Any], here: Shape) -> Shape:
        """The elements that an `&expression` beside an array is applied to."""
        arrays = [child for child in children if child["type"] != "expref"]
        if len(arrays) == len(children) or not arrays:
            return ANYTHING
        return _items(self.visit(arrays[0], here), f"{name}()")

    def _argument(self, child: Any, here: Shape, over: Shape) -> Shape:
        if child["type"] == "expref":
            return self.visit(child["children"][0], over)
        return self.visit(child, here)

    def _check_argument(self, name: str, types: Sequence[str], shape: Shape) -> None:
        kinds = kinds_of(shape)
        if not types or types == ["expref"] or kinds is None:
            return
        wanted = {kind.partition("-")[0] for kind in types}
        if not wanted & kinds:
            raise NameFault(f"{name}() takes {words(wanted)}, got {words(kinds)}")
        elements = {kind.partition("-")[2] for kind in types} - {""}
        inner = kinds_of(_items(shape, name)) if elements and kinds == {"array"} else None
        if inner is not None and not elements & inner:
            raise NameFault(f"{name}() takes an array of {words(elements)}, got one of {words(inner)}")


def _check_units(source: Any, target: Any) -> None:
    """Units that are written out are found wrong here; those that are computed, when they are there."""
    texts = [node["value"] for node in (source, target) if node["type"] == "literal"]
    try:
        if len(texts) == 2:
            check_units(*texts)
        elif texts:
            check_unit(*texts)
        else:
            load()
    except UnitError as error:
        raise NameFault(str(error)) from None


def _given(name: str, shapes: Sequence[Shape]) -> Shape:
    if name in ("sort", "reverse", "not_null") and len(shapes) == 1:
        return shapes[0]
    if name in ("sort_by", "difference", "unique"):
        return shapes[0]
    if name in ("min_by", "max_by", "min", "max"):
        return _items(shapes[0], name)
    if name == "map":
        return {"type": "array", "items": shapes[0]}
    if name == "if":
        return shapes[1] if shapes[1] == shapes[2] else ANYTHING
    if name == "each":
        return {"type": "array", "items": _merged(_items(shapes[0], name), shapes[1])}
    kind = GIVES.get(name)
    return {"type": kind} if kind else ANYTHING


def _merged(one: Shape, other: Shape) -> Shape:
    if any(not isinstance(shape.get("properties"), dict) or set(shape) & set(_OPEN) for shape in (one, other)):
        return ANYTHING
    return {"type": "object", "properties": {**one["properties"], **other["properties"]}}


def _items(shape: Shape, what: str) -> Shape:
    kinds = kinds_of(shape)
    if kinds is not None and "array" not in kinds:
        raise NameFault(f"{what} is for arrays, and what comes before it is {words(kinds)}")
    items = shape.get("items")
    return items if isinstance(items, dict) and "prefixItems" not in shape else ANYTHING


def _of_literal(value: Any) -> Shape:
    """Of the kind alone: what the value is would make alike what is not."""
    return ANYTHING if value is None else {"type": kind_of_value(value)}


def _missing(name: str, there: list[str], said: str | None) -> str:
    what = f"{name!r} is {said}" if said else f"there is no {name!r}"
    if closest := near(name, there):
        return what + closest
    some = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
    return f"{what}; there is {some}" if there else f"{what}; there is nothing"
