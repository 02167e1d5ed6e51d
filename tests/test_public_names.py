"""The names of `hearth` and the methods of its clients: those of the core, and those that extras add."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hearth
from hearth.client.connection import Client
from hearth.client.jobs import JobsClient
from hearth.extras import DIALS, OWN
from hearth.transport.address import EXAMPLES

STUB = Path(hearth.__file__).with_suffix(".pyi")
ADDED = sorted(name for name in vars(JobsClient) if not name.startswith("_"))


def stub_names() -> set[str]:
    names = set()
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
    return {name for name in names if name == "__version__" or not name.startswith("_")} - {
        "AbstractAsyncContextManager"
    }


def test_type_checkers_know_the_names_that_a_program_finds_and_no_others() -> None:
    assert stub_names() == {*hearth.__all__}
    for name in stub_names():
        assert getattr(hearth, name) is not None, name


def test_a_star_import_takes_every_public_name() -> None:
    code = "from hearth import *; print(*sorted(name for name in globals() if not name.startswith('__')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(stub_names() - {"__version__"})


def test_a_misspelt_name_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'capabilty'; did you mean capability\?"):
        hearth.capabilty  # noqa: B018


def test_the_functions_of_the_stub_take_what_those_of_the_program_take() -> None:
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            parameters = inspect.signature(getattr(hearth, node.name)).parameters
            given = {
                **dict.fromkeys((arg.arg for arg in node.args.args), inspect.Parameter.POSITIONAL_OR_KEYWORD),
                **dict.fromkeys((arg.arg for arg in node.args.kwonlyargs), inspect.Parameter.KEYWORD_ONLY),
            }
            assert given == {name: parameter.kind for name, parameter in parameters.items()}, node.name


async def test_a_runtime_in_a_program_has_each_method_that_an_extra_adds_and_no_other() -> None:
    async with hearth.open_runtime() as runtime:
        for name in ADDED:
            assert getattr(runtime, name).__func__ is vars(JobsClient)[name]
        for name in ("delegat", "_client", "__wrapped__"):
            with pytest.raises(AttributeError, match=f"'EmbeddedRuntime' object has no attribute '{name}'"):
                getattr(runtime, name)


def test_no_method_of_an_extra_hides_one_of_a_client() -> None:
    assert [name for name in ADDED if hasattr(Client, name) or hasattr(hearth.Runtime, name)] == []


def test_each_carrier_but_the_unix_socket_is_found_by_the_scheme_of_its_address() -> None:
    assert {*DIALS, "unix"} == {*EXAMPLES}


def test_every_part_that_a_record_names_exists() -> None:
    parts = [
        part
        for extra in OWN.values()
        for part in (*extra.names.values(), *extra.dials.values(), extra.client, extra.link)
    ]
    missing = [part for part in parts if part and find_spec(part.partition(":")[0]) is None]
    assert missing == []
