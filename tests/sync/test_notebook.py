"""In a notebook: both faces in the cells of a real kernel, whose event loop already runs."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import pytest

import hearth

MISSING = [name for name in ("nbformat", "nbclient", "ipykernel") if importlib.util.find_spec(name) is None]

CELLS = [
    "import hearth\nclient = hearth.sync.open_runtime()\nsession = client.open_session(client_name='notebook')",
    "session.gpio.set('LED', 1)\nsession.gpio.get('LED')",
    "runtime = await hearth.aio.open_runtime()\nother = await runtime.open_session()",
    "await other.gpio.get('LED')",
    "session.close(), await other.close()",
]


@pytest.mark.proof
@pytest.mark.skipif(bool(MISSING), reason="needs a kernel: pip install nbclient ipykernel")
@pytest.mark.filterwarnings("default")
def test_cells_of_a_kernel_use_both_faces(tmp_path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(tmp_path))
    results = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.outputs
        if output["output_type"] == "execute_result"
    ]
    assert results == ["1", "0", "(0, 0)"]


def test_cells_run_in_an_event_loop_that_runs_already() -> None:
    """What a kernel does with a cell: top-level await, in the thread of its running loop."""
    import ast
    import inspect

    names: dict[str, object] = {}

    async def kernel() -> None:
        for cell in CELLS:
            code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            running = eval(code, names)
            if inspect.iscoroutine(running):
                await running
        runtime, client = names["runtime"], names["client"]
        assert isinstance(runtime, hearth.aio.Runtime)
        assert isinstance(client, hearth.sync.Runtime)
        await runtime.close()
        client.close()

    asyncio.run(kernel())
    assert sys.modules["hearth.sync"] is hearth.sync
