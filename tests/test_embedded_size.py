"""How much code runs for two bytes of a sensor: what a program with a runtime of its own imports for `i2c.read`."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from itertools import chain
from pathlib import Path

import pytest

READ = """
import json, sys, trio
import hearth

async def main():
    async with hearth.open_runtime(board=sys.argv[1]) as runtime, runtime.open_session() as session:
        assert len(await session.i2c.read(1, 0x48, reg=0, length=2)) == 2

trio.run(main)
loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
print(json.dumps({name: file for name, file in loaded.items() if file and name.partition(".")[0] == "hearth"}))
"""
ONE_BUS = """
name = "thermometer"
description = "One I2C bus with a thermometer."

[[i2c]]
bus = 1
driver = "sim"

[[i2c.device]]
addr = 0x48
kind = "tmp102"
reg_width = 8
"""
MOST = {"one bus": (178, 29_500), "sim": (211, 34_000)}
"""Board -> the most modules of hearth, and lines of their code: what it was when this was written, and 5 %."""
_NO_CODE = {
    tokenize.COMMENT, tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(file: str) -> int:
    """Return the number of lines with code: neither blank, nor a comment or docstring alone."""
    source = Path(file).read_text()
    bodies = [body for node in ast.walk(ast.parse(source)) if isinstance(body := getattr(node, "body", None), list)]
    documented = {
        line
        for first in chain.from_iterable(bodies)
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = [one for one in tokens if one.type not in _NO_CODE and one.start[0] not in documented]
    return len({line for one in code for line in range(one.start[0], one.end[0] + 1)})


def loaded(board: str) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", READ, board], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("board", MOST)
def test_a_program_that_reads_a_sensor_loads_no_more_than_this(board: str, tmp_path: Path) -> None:
    profile = tmp_path / "one.toml"
    profile.write_text(ONE_BUS)
    modules = loaded(str(profile) if board == "one bus" else board)
    sizes = {name: lines_of_code(file) for name, file in modules.items()}
    modules_at_most, lines_at_most = MOST[board]
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:20]
    assert (len(sizes) <= modules_at_most, sum(sizes.values()) <= lines_at_most) == (True, True), (
        f"{len(sizes)} modules, {sum(sizes.values())} lines; the largest: {largest}"
    )
