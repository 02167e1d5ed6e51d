"""No module imports, over however many others, one that imports it: also inside functions and for types alone."""

from __future__ import annotations

import grimp


def in_circles(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the modules that are on a cycle or between two, with what they import of each other."""
    left = {name: set(wanted) for name, wanted in imports.items()}
    for _ in range(2):  # what leads into a cycle goes first, then what a cycle leads to
        while ends := {name for name, wanted in left.items() if not wanted & left.keys()}:
            left = {name: wanted - ends for name, wanted in left.items() if name not in ends}
        left = {name: {other for other, wanted in left.items() if name in wanted} for name in left}
    return left


def test_a_cycle_is_seen_and_what_leads_to_it_is_not_part_of_it() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b": {"c"}, "c": {"b"}}


def test_no_module_imports_one_that_imports_it() -> None:
    graph = grimp.build_graph("hearth", include_external_packages=False)
    # A module that is run as a program may import itself by its own name.
    imports = {name: graph.find_modules_directly_imported_by(name) - {name} for name in graph.modules}
    assert len(imports) > 200
    assert in_circles(imports) == {}
