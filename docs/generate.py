"""Write the pages of docs/ that are made from others.

    python docs/generate.py            write them
    python docs/generate.py --check    exit with 1 if one is not what it would write

Each page comes out the same on every machine.
"""  # noqa: INP001  docs/ is a folder of pages, not a package

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from generators import conformance_page, kinds_page, reference_pages, wire_schemas  # noqa: E402  they import from tests/

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGES = {
    ROOT / "docs/conformance.md": conformance_page.page,
    ROOT / "docs/reference/kinds.md": kinds_page.page,
    ROOT / "docs/reference/tools.md": reference_pages.tools_page,
    ROOT / "docs/decisions/README.md": reference_pages.index_page,
    ROOT / "docs/reference/openrpc.json": wire_schemas.openrpc_page,
    ROOT / "docs/reference/hacp.schema.json": wire_schemas.json_schema_page,
}


def stale() -> list[Path]:
    """Return the pages that differ from what would be generated now."""
    return [path for path, page in PAGES.items() if not path.exists() or path.read_text("utf-8") != page()]


def main(arguments: Sequence[str]) -> int:
    """Write the pages that are out of date; with --check only list them."""
    old = stale()
    for path in old:
        if "--check" not in arguments:
            path.write_text(PAGES[path](), "utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'is out of date' if '--check' in arguments else 'written'}\n")
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
