"""Things that inputs name have one spelling before a gate compares them, wherever a schema marks them."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

import hearth
from hearth.annotations import schema_of
from hearth.config.model import load_config
from hearth.drivers.base import Style
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.tools import build_tools
from hearth.errors import JobRejected
from hearth.hcp.inputs import I2cAddress, Line, Port, misplaced, respelled
from hearth.hcp.schemas import schema_faults
from hearth.schema import Validator

BOARD = {
    "name": "two",
    "description": "two chips",
    "gpio": [
        {"label": "first", "driver": "sim", "names": ["A", "B", "C"], "alias": {"PIN1": "B", "7": "C"}},
        {"label": "second", "driver": "sim", "names": ["X", "A"], "alias": {"PIN1": "X"}},
    ],
    "i2c": [{"bus": 1, "driver": "sim"}],
    "uart": [
        {"port": "gps", "driver": "sim"},
        {"port": "modem", "driver": "serial", "path": "/dev/serial/by-id/hearth-test-modem"},
    ],
}
LINE = {"type": ["integer", "string"], "format": "gpio-line"}
ADDRESS = {"type": ["integer", "string"], "format": "i2c-address"}
PORT = {"type": "string", "format": "uart-port"}


@pytest.fixture(scope="module")
def board():
    return open_board(parse_profile(BOARD, "test"))


@pytest.mark.parametrize(
    ("given", "chip", "name"),
    [
        (1, None, "B"), (1.0, None, "B"), ("B", None, "B"), ("PIN1", None, "B"), ("PIN1", "first", "B"),
        ("PIN1", "second", "X"), (0, "second", "X"), (1, "second", "A"), ("7", None, "C"),
        (7, None, 7), ("b", None, "b"), ("1", None, "B"), ("A", "third", "A"),
    ],
)  # fmt: skip
def test_a_line_has_one_name_however_it_is_given(board, given, chip, name):
    assert board.line_name(given, chip) == name
    if name not in (7, "b") and chip != "third":
        assert board.line(chip, given) == board.line(chip, name), "and it is the line that a tool takes it for"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("gps", "gps"), ("uart:gps", "gps"), ("modem", "modem"), ("uart:modem", "modem"),
        ("/dev/serial/by-id/hearth-test-modem", "modem"), ("GPS", "GPS"), ("uart:x", "uart:x"), ("/dev/x", "/dev/x"),
    ],
)  # fmt: skip
def test_a_port_has_one_name_however_it_is_given(board, given, name):
    assert board.port_name(given) == name


def test_the_device_that_a_profiles_link_leads_to_is_the_same_port(tmp_path):
    device, link = tmp_path / "ttyUSB3", tmp_path / "modem"
    device.touch()
    link.symlink_to(device)
    board = open_board(
        parse_profile({**BOARD, "uart": [{"port": "modem", "driver": "serial", "path": str(link)}]}, "test")
    )
    assert [board.port_name(str(one)) for one in (device, link)] == ["modem", "modem"]


def test_marks_are_followed_through_properties_and_items(board):
    schema = {
        "type": "object",
        "properties": {
            "one": LINE,
            "many": {"type": "array", "items": {"type": "array", "items": LINE}},
            "pair": {"type": "object", "properties": {"chip": {"type": "string"}, "line": LINE, "free": {}}},
            "addr": ADDRESS,
            "port": PORT,
            "none": {**LINE, "type": ["integer", "string", "null"]},
            "text": {"type": "string"},
            "anything": True,
        },
    }
    inputs = {
        "one": 1,
        "many": [["PIN1", 1], [], ["A"]],
        "pair": {"chip": "second", "line": 0, "free": 0, "more": 1},
        "addr": "0x048",
        "port": "uart:gps",
        "none": None,
        "text": "PIN1",
        "anything": "PIN1",
        "stranger": 1,
    }
    assert respelled(schema, inputs, board.line_name, board.port_name) == {
        **inputs,
        "one": "B",
        "many": [["B", "B"], [], ["A"]],
        "pair": {"chip": "second", "line": "X", "free": 0, "more": 1},
        "addr": 0x48,
        "port": "gps",
    }
    assert inputs["one"] == 1, "what was given stays as it is"


@pytest.mark.parametrize(("given", "number"), [("0x48", 72), ("0X0048", 72), (72, 72), ("72", "72"), ("0x", "0x")])
def test_an_i2c_address_has_one_spelling(given, number):
    assert respelled(ADDRESS, given) == number


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        ("integer", 2.0, int),
        (["integer", "null"], 2.0, int),
        (["integer", "string"], 72.0, int),
        ("number", 2.0, float),
        (["integer", "number"], 2.0, float),
        (None, 2.0, float),
    ],
)
def test_an_integer_that_is_written_2_0_is_one_in_the_function(kind, given, read):
    """JSON Schema 2020-12 §6.1.1 (validation): "integer" matches any number with a zero fractional part."""
    whole = {"type": "object", "properties": {"it": {} if kind is None else {"type": kind}}}
    assert type(respelled(whole, {"it": given})["it"]) is read


@pytest.mark.parametrize("annotation", [Line, I2cAddress, Port])
@pytest.mark.parametrize("around", [lambda one: one, lambda one: one | None, lambda one: list[one]])
def test_an_annotation_marks_its_value_alone_optional_and_in_a_list(annotation, around):
    def fake(given, *_chip):
        return f"<{given}>"

    schema = schema_of(around(annotation))
    whole = {"type": "object", "properties": {"it": schema}}
    assert list(schema_faults(whole, "key")) == []
    given = ["0x48"] if schema["type"] == "array" else "0x48"
    spelt = {Line: "<0x48>", Port: "<0x48>", I2cAddress: 0x48}[annotation]
    assert respelled(whole, {"it": given}, fake, fake) == {"it": [spelt] if isinstance(given, list) else spelt}


@pytest.mark.parametrize(
    ("annotation", "fits", "fails"),
    [
        (Line, [0, 1023, "GPIO17"], [-1, 1024, "", None, True]),
        (I2cAddress, [8, 0x77, "0x48", "0X048"], [7, 0x78, "72", "0x", None]),
        (Port, ["uart0", "/dev/ttyUSB0"], ["", 0, None]),
    ],
)
def test_an_annotation_takes_the_spellings_of_its_thing(annotation, fits, fails):
    validator = Validator(schema_of(annotation))
    assert [one for one in fits if not validator.accepts(one)] == []
    assert [one for one in fails if validator.accepts(one)] == []


def test_a_mark_that_would_never_be_looked_at_is_a_fault_of_the_file():
    schema = {
        "type": "object",
        "properties": {"a": {"anyOf": [LINE, {"type": "null"}]}, "b": LINE, "c": {"type": "array", "items": LINE}},
        "$defs": {"line": LINE},
        "default": {"format": "gpio-line"},
    }
    places = ["key.properties.a.anyOf[0].format", 'key."$defs".line.format']
    assert list(misplaced(schema, "key")) == places
    assert [fault.key for fault in schema_faults(schema, "key")] == places


def test_a_marked_schema_is_a_schema_to_the_validator():
    validator = Validator({"type": "object", "properties": {"line": LINE}})
    assert validator.accepts({"line": "GPIO27"})
    assert validator.accepts({"line": 27})
    assert not validator.accepts({"line": None})


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("gpio.set", [{"line": 17, "value": 1}, {"line": "GPIO17", "value": 1, "chip": "sim"}]),
        ("gpio.get", [{"line": "LED"}, {"line": 17.0, "chip": "sim"}]),
        ("i2c.read", [{"bus": 1, "addr": 72, "len": 1}, {"bus": 1.0, "addr": "0x48", "len": 1}]),
    ],
)
def test_a_lease_and_a_queue_see_one_bus_however_it_is_spelt(name, spellings):
    tools = {
        tool.name: tool
        for tool in build_tools(open_board(load_profile("sim")), enable=(), disable=(), exec_templates={})
    }
    assert len({tools[name].bus(args) for args in spellings}) == 1


SPELT = """
from hearth import I2cAddress, InputRefused, Job, Limit, Line, Port, capability


def two_ports(first: Port, second: Port) -> None:
    if first == second:
        raise InputRefused("both are one port", cure="Name two ports", at="second")


@capability(
    "spelt",
    version="1.0.0",
    tools=["hw.board"],
    risk_ceiling="R1",
    check=two_ports,
    limits={"lines": Limit(lambda lines: len(lines) - len(set(lines)), max=0)},
)
async def spelt(
    job: Job, *, lines: list[Line], first: Port, second: Port, addr: I2cAddress | None = None
) -> dict[str, str | list[str] | int | None]:
    \"\"\"Says what it was given.\"\"\"
    return {"lines": lines, "first": first, "second": second, "addr": addr}
"""


@asynccontextmanager
async def delegating(directory):
    """What hands in jobs of `spelt` to a daemon with a simulated board."""
    file = directory / "spelt.py"
    file.write_text(SPELT)
    file.chmod(0o644)
    config = directory / "hearth.toml"
    config.write_text(
        f'[audit]\npath = "{directory}/audit.log"\n[hcp]\ncapabilities = ["{file}"]\nshipped = []\n'
        '[[policy]]\nname = "all"\nmatch = { any = true }\nmax_risk = 0\nhcp = {}\n'
    )
    with trio.fail_after(30):
        async with hearth.open_runtime(config=load_config(config), style=Style.INLINE) as opened:

            async def delegate(**inputs):
                return await (await opened.delegate("spelt", "say it", inputs)).wait()

            yield delegate


async def test_a_function_gets_the_one_spelling_of_all_that_its_caller_names(tmp_path):
    async with delegating(tmp_path) as delegate:
        result = await delegate(lines=[17, "BUTTON"], first="uart:uart0", second="other", addr="0x48")
    assert result.outputs == {"lines": ["GPIO17", "GPIO4"], "first": "uart0", "second": "other", "addr": 72}


@pytest.mark.parametrize(
    ("inputs", "code", "said"),
    [
        ({"lines": [], "first": "uart0", "second": "uart:uart0"}, "invalid_input", "/payload/inputs/second: both"),
        ({"lines": [17, "LED"], "first": "a", "second": "b"}, "safety_violation", "/payload/inputs/lines: outside"),
    ],
)
async def test_two_spellings_of_one_thing_get_past_no_check_and_no_limit(tmp_path, inputs, code, said):
    async with delegating(tmp_path) as delegate:
        with pytest.raises(JobRejected) as caught:
            await delegate(**inputs)
    assert caught.value.reason_code == code
    assert said in caught.value.message
