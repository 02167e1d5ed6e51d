"""The bill of materials: it lists what runs and nothing else, and fits its schema. `make test-deb` runs this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-sbom"

VALIDATE = """
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(Path(sys.argv[1]).read_text())
sys.exit(1 if error else 0)
"""


@pytest.mark.proof
@pytest.mark.skipif(not os.environ.get("HEARTH_DEB"), reason="`make test-deb` writes the bill and looks at it")
def test_the_bill_lists_what_runs_and_no_tool_of_ours_and_fits_its_schema(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "sbom.py"), "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file = tmp_path / "hearth.cdx.json"
    bill = json.loads(file.read_text("utf-8"))
    names = {component["name"].lower() for component in bill["components"]}
    assert bill["metadata"]["component"]["name"] == "hearthd"
    assert {"trio", "cryptography", "gpiod", "pyseccomp"} <= names
    assert not {"pytest", "ruff", "pip", "setuptools", "mcp", "pillow"} & names
    assert all(component["version"] and component["purl"] for component in bill["components"])
    listed = (tmp_path / "THIRD-PARTY.md").read_text("utf-8").lower()
    assert all(f"| {name} |" in listed for name in names)

    valid = [str(TOOLS / "bin" / "python"), "-c", VALIDATE, str(file)]
    assert subprocess.run(valid, timeout=120, check=False).returncode == 0
    bill["components"][0]["type"] = "nonsense"
    file.write_text(json.dumps(bill))
    done = subprocess.run(valid, timeout=120, check=False, capture_output=True)
    assert done.returncode == 1, "the check can fail"
