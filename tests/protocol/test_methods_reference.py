"""docs/reference/methods.md says of every method what the protocol does, and its examples are true to it."""

import re
from pathlib import Path

import attrs
import orjson
import pytest
from support.method_params import MINIMAL, needs_a_session

from hearth.errors import ERROR_TABLE
from hearth.hcp.codec import read_message
from hearth.protocol.client import ClientProtocol, HcpMessage, Reply, TaskEventNotification, read_task
from hearth.protocol.jsonrpc import MAX_DEPTH
from hearth.protocol.methods import METHODS, read_session_id
from hearth.protocol.server import Call, ServerProtocol
from hearth.protocol.submissions import Constraints, StepSpec

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "methods.md").read_text()
GENERAL, *REST = re.split(r"^## ", REFERENCE, flags=re.MULTILINE)
SECTIONS = {section.partition("\n")[0].strip("` "): section for section in REST}
NAMES = {"length": "len", "submit": "task"}
"""Attribute -> the param it is read from, where they differ."""


def examples(section):
    """The exchanges of a section: (request line, [answer and notification lines])."""
    exchanges = []
    for line in section.splitlines():
        if line.startswith("C: "):
            exchanges.append((line[3:].encode() + b"\n", []))
        elif line.startswith("S: "):
            exchanges[-1][1].append(line[3:].encode() + b"\n")
    return exchanges


def documented(section):
    """The names in the first column of the section's tables."""
    names = set()
    for cell in re.findall(r"^\| (`[^|]+) \|", section, flags=re.MULTILINE):
        names |= set(re.findall(r"`([^`]+)`", cell))
    return names


def members(value, prefix=""):
    """Every member of a result as the reference names it: `steps[].tool`."""
    found = set()
    for name, inner in value.items():
        found.add(prefix + name)
        if isinstance(inner, list):
            for item in inner:
                if isinstance(item, dict):
                    found |= members(item, f"{prefix}{name}[].")
    return found


def test_every_method_has_its_section_and_no_other_has():
    assert set(SECTIONS) - {"Rules for all requests", "Details of the wire format"} == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_param_is_in_its_methods_table(method):
    section = SECTIONS[method]
    fields = {NAMES.get(name, name) for name in attrs.fields_dict(type(METHODS[method](MINIMAL.get(method, {}))))}
    if method == "task.submit":
        fields = {"task.intent", "task.steps", "task.constraints", "task.idempotency_key", "subscribe"}
        fields |= {f"task.steps[].{name}" for name in attrs.fields_dict(StepSpec)}
        fields |= set(attrs.fields_dict(Constraints))
    if needs_a_session(method):
        fields.add("session_id")
    assert fields <= documented(section)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_an_example_that_the_protocol_reads(method):
    found = examples(SECTIONS[method])
    assert found
    for line, _answers in found:
        (call,) = ServerProtocol().receive(line)
        assert isinstance(call, Call)
        assert call.method == method
        assert call.id is not None
        if needs_a_session(method) and method not in ("halt", "halt.status"):
            assert read_session_id(call.params)
        METHODS[method](call.params)


@pytest.mark.parametrize("method", METHODS)
def test_every_example_is_answered_with_what_the_method_promises(method):
    for line, answers in examples(SECTIONS[method]):
        request = orjson.loads(line)
        client = ClientProtocol()
        while client.request(method, request["params"])[0] < request["id"]:
            pass
        reply, *events = client.receive(b"".join(answers))
        assert isinstance(reply, Reply)
        assert reply.id == request["id"]
        for event in events:
            if isinstance(event, HcpMessage):
                assert read_message(event.value).session_id == request["params"]["session_id"]
            else:
                assert isinstance(event, TaskEventNotification) or event.method == "observe.event"
        if reply.error is not None:
            assert reply.error.code in ERROR_TABLE
            continue
        promised = documented(SECTIONS[method])
        if method == "tool.list":
            for tool in reply.result["tools"]:
                assert all(f"`{name}`" in SECTIONS[method] for name in tool)
        elif method == "observe.audit":
            assert set(reply.result) <= promised
        else:
            assert members(reply.result) <= promised | {"steps"}
        if method == "task.get":
            assert read_task(reply.result).done


@pytest.mark.parametrize("method", METHODS)
def test_every_error_a_method_names_is_one_of_the_table(method):
    (line,) = re.findall(r"^Errors: (.*?)\n\n", SECTIONS[method], flags=re.MULTILINE | re.DOTALL)
    codes = {int(code) for code in re.findall(r"-32\d+", line)}
    assert codes
    assert codes <= set(ERROR_TABLE)


def test_the_numbers_of_the_general_rules_are_those_of_the_protocol():
    rules = SECTIONS["Rules for all requests"]
    assert f"more than {MAX_DEPTH} deep" in rules
    assert "array of 1 to 64 requests" in rules
    assert (
        len(
            ServerProtocol().receive(
                orjson.dumps([{"jsonrpc": "2.0", "id": n, "method": "tool.list"} for n in range(64)]) + b"\n"
            )
        )
        == 64
    )
    assert "more than 1 MiB" in rules


def test_the_opening_shows_a_line_that_works_as_it_stands():
    (line,) = re.findall(r"echo '(.*?)'", GENERAL)
    (call,) = ServerProtocol().receive(line.encode() + b"\n")
    assert call.method == "session.open"
    METHODS[call.method](call.params)
