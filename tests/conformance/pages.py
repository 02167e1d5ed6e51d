"""The generators of pages in docs/, which is not a package: the script and its modules."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import generate as generate
from generators import (
    conformance_page as conformance_page,
    kinds_page as kinds_page,
    reference_pages as reference_pages,
)
