"""Every exception is caught in two modules only: the supervisor, and the one that calls other people's code.

Elsewhere a handler names the exceptions that it expects, so that a bug ends in the supervisor and not in a handler that
takes it for something else. A handler of BaseException cleans up and raises again.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALLOWED = {"actors/supervisor.py", "hearth/_util/foreign.py"}
PRODUCT = [
    path
    for top in ("hearth", "actors", "drivers")
    for path in sorted((ROOT / top).rglob("*.py"))
    if not path.is_relative_to(ROOT / "hearth/actors") and not path.is_relative_to(ROOT / "hearth/drivers")
]


def broad(source: str) -> list[int]:
    """Return the lines of the handlers that catch every exception, and do not end by raising."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {one.id if isinstance(one, ast.Name) else one for one in caught}
            raises = isinstance(node.body[-1], ast.Raise)
            if "Exception" in names or (names & {"BaseException", None} and not raises):
                found.append(node.lineno)
    return found


def test_a_handler_of_everything_is_found_also_in_a_tuple_and_without_a_name() -> None:
    handlers = ("Exception", "(OSError, Exception)", "BaseException", "")
    assert [broad(f"try: ...\nexcept {one}: ...") for one in handlers] == [[2]] * 4
    assert broad("try: ...\nexcept BaseException: raise") == broad("try: ...\nexcept OSError: ...") == []


def test_every_exception_is_caught_in_two_modules_only() -> None:
    assert len(PRODUCT) > 300
    names = {path: str(path.relative_to(ROOT)) for path in PRODUCT}
    found = {name: lines for path, name in names.items() if (lines := broad(path.read_text("utf-8")))}
    assert {name: lines for name, lines in found.items() if name not in ALLOWED} == {}


def test_no_line_elsewhere_turns_off_the_lint_for_it() -> None:
    off = {name for path in PRODUCT if "BLE001" in path.read_text("utf-8") and (name := str(path.relative_to(ROOT)))}
    assert off - ALLOWED == set()
