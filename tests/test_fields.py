"""The contract of field types: good values, bad values, and the place, the reason and the cure of each fault.

One table for all types. Each row is held to by every front end: the configuration (from a file and built in Python),
the tables of capabilities and board profiles, and HCP messages.
"""

from __future__ import annotations

import inspect
import math
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import attrs
import pytest

import hearth.fields
from hearth._util.toml import show
from hearth.config.file import structure
from hearth.errors import ConfigError
from hearth.fields import (
    ANY_NUMBER,
    AbsolutePath,
    AnyMap,
    Anything,
    Choice,
    Fault,
    FieldErrors,
    Fields,
    FieldType,
    Flag,
    Integer,
    JsonValue,
    ListOf,
    MapOf,
    Mode,
    Number,
    OneOrMore,
    Parsed,
    Secret,
    Text,
    WrongKey,
    checked,
)
from hearth.hcp import codec
from hearth.hcp.messages import MessageError
from hearth.tables import Table, faults_of, near

HUGE = 10**400
"""An integer beyond every double."""


class Bad(NamedTuple):
    """A refused value, its first fault, and a part of the cure that the sender of an HCP message gets."""

    raw: Any
    reason: str
    cure: str = "for example"
    place: tuple[str | int, ...] = ()


class Row(NamedTuple):
    """A type, its good values as (raw, Python value), and its bad ones."""

    kind: FieldType
    good: list[tuple[Any, Any]]
    bad: list[Bad]


def same(*values: Any) -> list[tuple[Any, Any]]:
    return [(value, value) for value in values]


def wrong(kind: FieldType, *shown: tuple[Any, str], cure: str = "for example") -> list[Bad]:
    """Values that are of another type, with the form in which a message repeats them."""
    return [Bad(raw, f"expected {kind.expected}, got {text}", cure) for raw, text in shown]


NO_STRING = [(5, "5"), (True, "true"), ([], "[]"), ({}, "an empty table"), (["a"], '["a"]')]
NO_NUMBER = [("5", '"5"'), (True, "true"), ([1], "[1]"), ({"a": 1}, "a table"), (math.nan, "nan")]
SUBMITTED, DURATIONS = (codec.PAYLOADS["task_submit"].kinds[name] for name in ("capability", "constraints"))
assert isinstance(DURATIONS, codec.ObjectOf)

FLAG = Flag()
COUNT, RISK, JSON_COUNT = Integer(1), Integer(0, 3), Integer(0, codec.MAX_SAFE)
SECONDS, GRACE, PART = Number(gt=0), Number(ge=0), Number(ge=0, le=1)
NAME, WORD, SHORT = Text(), Text("a word", "[a-z]+"), Text(limit=3)
FREE, JSON_TEXT = Text("a string", ""), Text("a string", "", least=1, limit=3)
SECRET = Secret("the 4 digits of it", "[0-9]{4}")
HEX = Parsed(
    "a hexadecimal number", lambda text: int(text, 16), hex, example='"0x10"', hint="write {at} in hexadecimal"
)
WORDS, LEVELS = Choice("os", "fsync", "relaxed"), Choice(0, 1, "input")
PATH, SOCKET, MODE = AbsolutePath(), AbsolutePath(max_bytes=10), Mode()
LIST, SOME, PAIR = ListOf(COUNT), ListOf(NAME, least=1), ListOf(NAME, least=2, most=2, expected="a pair of names")
TABLE, MAP, ANY_KEYS = AnyMap(), MapOf(COUNT, WORD), MapOf(COUNT, None)
CONDITION, ONE_OR_MORE = Fields(uid=COUNT, name=NAME), OneOrMore(COUNT)
JSON, OBJECT = JsonValue(), codec.ObjectOf({"name": NAME, "size": COUNT}, required=("name",))
DURATION = DURATIONS.kinds["max_duration"]
MEASURED = codec.EVENT_DATA["progress"].kinds["remaining"]
DURATION_REASON = 'expected an ISO 8601 duration such as "PT10M", got {}'
NO_FIXED_LENGTH = (
    "expected a duration of a fixed length, which years and months do not have (one minute is PT1M), got {}"
)
INSTANT = codec.EVENT_DATA["checkpoint_created"].kinds["created_at"]
ID = codec.PAYLOADS["task_accepted"].kinds["in_reply_to"]

QUOTES = "write the value of /x without quotes: "
ROWS = {
    "flag": Row(
        FLAG,
        same(True, False),
        wrong(FLAG, (0, "0"), (1, "1"), ("", '""'), ([], "[]"), (None, "None"))
        + wrong(FLAG, ("true", '"true"'), cure=f"{QUOTES}true"),
    ),
    "integer": Row(
        COUNT,
        same(1, 2**53),
        [
            *wrong(COUNT, (0, "0"), (-1, "-1"), (6.0, "6.0"), (1e3, "1000.0"), (False, "false"), ([1], "[1]")),
            *wrong(COUNT, ("5", '"5"'), ("-5.0", '"-5.0"'), cure=f"{QUOTES}1"),
            Bad(2**53 + 1, "expected at most 9007199254740992, got 9007199254740993"),
            Bad(HUGE, "expected at most 9007199254740992, got a number of 1329 bits"),
        ],
    ),
    "integer in bounds": Row(RISK, same(0, 3), wrong(RISK, (-1, "-1"), (4, "4"), (HUGE, "a number of 1329 bits"))),
    "integer of JSON": Row(
        JSON_COUNT, same(0, 2**53 - 1), wrong(JSON_COUNT, (-1, "-1"), (2**53, str(2**53)), (5.0, "5.0"))
    ),
    "number above": Row(
        SECONDS,
        same(0.5, 1, 10**9),
        [
            *wrong(SECONDS, (0, "0"), (0.0, "0.0"), (-math.inf, "-inf"), (None, "None"), *NO_NUMBER[1:]),
            *wrong(SECONDS, ("5", '"5"'), cure=QUOTES),
            Bad(math.inf, "expected at most 1000000000, got inf"),
            Bad(1e10, "expected at most 1000000000, got 10000000000.0"),
        ],
    ),
    "number from": Row(GRACE, same(0, 2.5), wrong(GRACE, (-0.5, "-0.5"), (-HUGE, "a number of 1329 bits"))),
    "number in bounds": Row(
        PART, same(0, 1, 0.95, 1e-9), wrong(PART, (-0.01, "-0.01"), (1.01, "1.01"), (math.inf, "inf"), *NO_NUMBER[1:])
    ),
    "number of either sign": Row(
        ANY_NUMBER,
        same(0, -5, 1e308, -0.1),
        wrong(ANY_NUMBER, (math.inf, "inf"), (-math.inf, "-inf"), (HUGE, "a number of 1329 bits"), *NO_NUMBER[1:]),
    ),
    "text": Row(
        NAME,
        same("x", "ü𝔘 \n", "5", "x" * 4096),
        [
            *wrong(NAME, *NO_STRING, ("", '""'), ("a\0b", r'"a\u0000b"'), ("\ud800", "\ud800")),
            Bad("x" * 5000, "expected at most 4096 characters, got 5000"),
        ],
    ),
    "text of a form": Row(WORD, same("abc"), wrong(WORD, ("Abc", '"Abc"'), ("abc\n", r'"abc\n"'), ("", '""'))),
    "text of a length": Row(SHORT, same("abc"), [Bad("abcd", "expected at most 3 characters, got 4")]),
    "any text": Row(FREE, same("", "a", "\0"), wrong(FREE, *NO_STRING)),
    "text of JSON": Row(
        JSON_TEXT,
        same("a", "\0"),
        [Bad("", "expected at least one character, got 0"), Bad("abcd", "expected at most 3 characters, got 4")],
    ),
    "text of a message": Row(
        SUBMITTED,
        same("x" * 200),
        [
            *wrong(SUBMITTED, *NO_STRING, cure='for example "bench-climate-survey"'),
            Bad("", "expected at least one character, got 0", 'a string such as "bench-climate-survey"'),
            Bad("x" * 201, "expected at most 200 characters, got 201", "a string such as"),
        ],
    ),
    "secret": Row(
        SECRET,
        same("1234"),
        [Bad(raw, "expected the 4 digits of it, got something else") for raw in ("hunter2", "", 5, None)],
    ),
    "parsed": Row(
        HEX,
        [("0x1f", 31)],
        [
            *wrong(HEX, (31, "31"), (None, "None"), cure='for example "0x10"'),
            Bad("z", "invalid literal for int() with base 16: 'z'", "write /x in hexadecimal"),
        ],
    ),
    "duration": Row(
        DURATION,
        [
            ("PT10M", timedelta(minutes=10)), ("PT72H", timedelta(hours=72)), ("P3DT12H", timedelta(days=3, hours=12)),
            ("P2W", timedelta(weeks=2)), ("PT0.25S", timedelta(seconds=0.25)), ("PT1,5S", timedelta(seconds=1.5)),
            ("PT0.000001S", timedelta(microseconds=1)),
        ],
        [
            *wrong(DURATION, (600, "600"), (None, "None"), ([], "[]"), cure='for example "PT10M"'),
            *(
                Bad(raw, f"expected a duration that is more than nothing, got {raw!r}", '"PT10M" or "P3DT12H" at /x')
                for raw in ("PT0S", "P0D", "PT0.0000001S")
            ),
            Bad("PT" + "9" * 400 + "S", DURATION_REASON.format(ascii("PT" + "9" * 57)[:60]), "/x:"),
            *(Bad(raw, NO_FIXED_LENGTH.format(ascii(raw)), "/x:") for raw in ("P1Y", "P2M", "P1Y2MT3S", "P0.5M")),
            *(
                Bad(raw, DURATION_REASON.format(ascii(raw)), "/x:")
                for raw in (
                    "", "600", "10M", "P", "PT", "P1DT", "PT10", "pt10m", "PT10M\n", " PT10M", "-PT1S", "+PT1S",
                    "PT1e3S", "P0001-00-00T00:00:00", "PT999999999999H",
                )
            ),
        ],
    ),
    "measured duration": Row(
        MEASURED,
        [("PT2H15M", timedelta(hours=2, minutes=15)), ("PT0S", timedelta(0)), ("P0D", timedelta(0))],
        [
            *(Bad(raw, DURATION_REASON.format(ascii(raw)), "/x:") for raw in ("-PT1S", "2:15", "PT")),
            Bad("P1Y", NO_FIXED_LENGTH.format("'P1Y'"), "/x:"),
        ],
    ),
    "instant": Row(
        INSTANT,
        [
            ("2025-01-15T08:30:00.000Z", datetime(2025, 1, 15, 8, 30, tzinfo=UTC)),
            ("2025-01-15T08:30:00.123456Z", datetime(2025, 1, 15, 8, 30, 0, 123456, tzinfo=UTC)),
            *((text, datetime(2025, 1, 15, 8, 30, tzinfo=UTC)) for text in (
                "2025-01-15T08:30Z", "2025-01-15T08:30:00+00:00", "20250115T083000Z",
            )),
            ("...", None),
        ],
        [
            *wrong(INSTANT, (5, "5"), (None, "None"), cure='for example "2025-'),
            *(
                Bad(raw, f'expected an instant in UTC such as "2025-01-15T08:30:00.000Z", got {raw!r}', "Z at its end")
                for raw in (
                    "2025-01-15T08:30:00", "2025-01-15T08:30:00+01:00", "2025-01-15", "2025-01-15 08:30:00Z", "....",
                    "2025-02-30T08:30:00Z", "2025-01-15T08:30:00Z\n", "2025-01-15T08:60:00Z", "today", "",
                )
            ),
        ],
    ),
    "identifier": Row(
        ID,
        same("msg-001", "a b", "x" * 200),
        [
            *wrong(ID, *NO_STRING, ("", '""'), ("a\nb", r'"a\nb"'), ("\u200b", r'"\u200b"'), ("\ud800", "\ud800")),
            *wrong(ID, ("x" * 201, show("x" * 201)), ("a\0", r'"a\u0000"')),
        ],
    ),
    "choice of words": Row(
        WORDS,
        same("os", "relaxed"),
        [
            *wrong(WORDS, ("disk", '"disk"'), ("", '""'), *NO_STRING, cure='write "os", "fsync" or "relaxed" at /x'),
            *wrong(WORDS, ("Relaxed", '"Relaxed"'), ("relaxt", '"relaxt"'), cure='did you mean "relaxed" at /x?'),
        ],
    ),
    "choice of numbers": Row(
        LEVELS,
        same(0, 1, "input"),
        wrong(LEVELS, (2, "2"), (True, "true"), (0.0, "0.0"), ("0", '"0"'), cure='write 0, 1 or "input" at /x'),
    ),
    "path": Row(
        PATH,
        [("/srv", Path("/srv"))],
        [
            *wrong(PATH, ("h.sock", '"h.sock"'), ("~/h", '"~/h"'), ("", '""'), *NO_STRING, cure='example "/srv/data"'),
            Bad("/a\0b", r'expected a non-empty string, got "/a\u0000b"'),
        ],
    ),
    "path of a length": Row(
        SOCKET, [("/é34567", Path("/é34567"))], [Bad("/é34567890", "expected a path of at most 10 bytes, got 11")]
    ),
    "mode": Row(
        MODE,
        [("0660", 0o660), ("600", 0o600)],
        wrong(MODE, (660, "660"), ("0980", '"0980"'), ("1777", '"1777"'), (True, "true"), cure='for example "0660"'),
    ),
    "list": Row(
        LIST,
        [([], ()), ([1, 2], (1, 2))],
        [
            *wrong(LIST, ("a", '"a"'), (1, "1"), ({}, "an empty table"), cure="for example [1]"),
            Bad([1, 0], "expected an integer ≥ 1, got 0", "give /x/1 an integer", (1,)),
        ],
    ),
    "list of a length": Row(
        SOME, [(["a"], ("a",))], wrong(SOME, ([], "[]"), cure='an array of at least 1, for example ["..."]')
    ),
    "pair": Row(PAIR, [(["a", "b"], ("a", "b"))], wrong(PAIR, (["a"], '["a"]'), (["a", "b", "c"], '["a", "b", "c"]'))),
    "table": Row(TABLE, same({}, {"a": [None]}), wrong(TABLE, ([], "[]"), ("{}", '"{}"'), cure="for example {}")),
    "map": Row(
        MAP,
        same({}, {"a": 1}),
        [
            *wrong(MAP, (5, "5"), ([["a", 1]], '[["a", 1]]')),
            Bad({"a": 1, "b.c": 0}, 'expected a word, got "b.c"', "a word", (WrongKey("b.c"),)),
            Bad({"a": True}, "expected an integer ≥ 1, got true", "give /x/a", ("a",)),
        ],
    ),
    "map of any names": Row(
        ANY_KEYS,
        same({"": 1, "a/b~c": 2}),
        [Bad({"a/b~c": 0}, "expected an integer ≥ 1, got 0", "give /x/a~1b~0c", ("a/b~c",))],
    ),
    "fields": Row(
        CONDITION,
        same({"uid": 1}, {"uid": 1, "name": "a"}),
        [
            *wrong(CONDITION, ({}, "an empty table"), ([], "[]"), (5, "5")),
            Bad({"ui": 5}, "unknown key; did you mean uid?", place=("ui",)),
            Bad({"quux": 5}, "unknown key; expected uid, name", place=("quux",)),
            Bad({"uid": 0}, "expected an integer ≥ 1, got 0", place=("uid",)),
        ],
    ),
    "one or more": Row(
        ONE_OR_MORE,
        [(1, 1), ([1, 2], (1, 2))],
        [
            Bad("x", 'expected an integer ≥ 1, got "x"'),
            Bad([], "expected an array of at least 1, got []"),
            Bad([1, 0], "expected an integer ≥ 1, got 0", place=(1,)),
        ],
    ),
    "value of JSON": Row(
        JSON,
        same(1, 2**53, -1.5, "a", True, [1, [2]], {"a": [{"": 1}]}),
        [
            Bad(date(1979, 5, 27), "expected what JSON can hold, got 1979-05-27; write it as a string"),
            Bad({"a": [math.nan]}, "expected what JSON can hold, got nan; write it as a string", place=("a", 0)),
            Bad([-math.inf], "expected what JSON can hold, got -inf; write it as a string", place=(0,)),
            Bad({1: 2}, "expected a key that JSON can hold, got 1; write it as a string"),
            Bad(2**53 + 1, f"expected an integer that JSON can hold, from -2^53 to 2^53, got {2**53 + 1}"),
            Bad(-HUGE, "expected an integer that JSON can hold, from -2^53 to 2^53, got a number of 1329 bits"),
        ],
    ),
    "any value": Row(Anything(), same(None, 5, "a", [{}]), []),
    "object of a message": Row(
        OBJECT,
        same({"name": "a"}, {"name": "a", "size": 1, "more": [None]}, {"name": "a", "size": None}),
        [
            *wrong(OBJECT, ([], "[]"), ("{}", '"{}"'), cure='for example {"name": "..."}'),
            Bad({"name": None}, "expected a non-empty string, got None", "give /x/name", ("name",)),
            Bad({"name": "a", "size": 0}, "expected an integer ≥ 1, got 0", "give /x/size", ("size",)),
            Bad({}, "expected a non-empty string, but there is no such member", 'add "name" to /x', ("name",)),
            Bad({"nam": 1}, "expected a non-empty string, but there is no such member", "where /x has", ("name",)),
        ],
    ),
}  # fmt: skip

GOOD = [
    pytest.param(row.kind, *pair, id=f"{name} {number}")
    for name, row in ROWS.items()
    for number, pair in enumerate(row.good)
]
BAD = [
    pytest.param(row.kind, bad, id=f"{name} {number}")
    for name, row in ROWS.items()
    for number, bad in enumerate(row.bad)
]


def in_words(place: tuple[str | int, ...]) -> str:
    return "".join(
        f"[{key}]" if isinstance(key, int) else f' key "{key}"' if isinstance(key, WrongKey) else f".{key}"
        for key in place
    ).replace(".a/b~c", '."a/b~c"')


def section(kind: FieldType) -> Any:
    """The class of a section of the configuration that has this type for its only key."""
    return attrs.make_class(
        "Section", {"x": attrs.field(type=Annotated[object, kind])}, frozen=True, field_transformer=checked
    )


def document(kind: FieldType) -> Any:
    return attrs.make_class("Document", {"table": attrs.field(type=section(kind))}, frozen=True)


# --- every front end --------------------------------------------------------------------------------------------------


def test_every_type_of_the_family_has_its_row() -> None:
    family = {value for _, value in inspect.getmembers(hearth.fields, inspect.isclass) if issubclass(value, FieldType)}
    assert family - {FieldType} <= {type(row.kind) for row in ROWS.values()}


@pytest.mark.parametrize(("kind", "raw", "value"), GOOD)
def test_a_good_value_reads_as_the_same_value_in_every_front_end(kind, raw, value) -> None:
    assert kind.read(raw) == value
    assert type(kind.read(raw)) is type(value)
    assert structure(document(kind), {"table": {"x": raw}}, "f").table.x == value
    faults: list[Fault] = []
    table = Table({"x": raw}, "", faults)
    assert (table.take("x", kind), table.given({"x": kind}), faults) == (value, {"x": value}, [])
    assert codec.read_value(kind, raw, "/x") == value


@pytest.mark.parametrize(("kind", "raw", "value"), GOOD)
def test_a_value_is_written_as_one_that_reads_back_equal(kind, raw, value) -> None:
    assert kind.read(kind.dump(value)) == value
    assert section(kind)(value).x == value


@pytest.mark.parametrize(("kind", "bad"), BAD)
def test_a_bad_value_is_refused_with_its_place_and_reason(kind, bad) -> None:
    with pytest.raises(FieldErrors) as raised:
        kind.read(bad.raw)
    first = raised.value.problems[0]
    assert (first.place, first.reason()) == (bad.place, bad.reason)
    assert [type(key) for key in first.place] == [type(key) for key in bad.place]


@pytest.mark.parametrize(("kind", "bad"), BAD)
def test_a_configuration_names_the_table_and_the_key(kind, bad) -> None:
    with pytest.raises(ConfigError) as raised:
        structure(document(kind), {"table": {"x": bad.raw}}, "hearth.toml")
    assert str(raised.value) == f"hearth.toml: [table] x{in_words(bad.place)}: {bad.reason}"


@pytest.mark.parametrize(("kind", "bad"), BAD)
def test_a_capability_or_a_board_profile_names_the_path(kind, bad) -> None:
    faults: list[Fault] = []
    assert Table({"x": bad.raw}, "gpio[0]", faults).take("x", kind) is None
    assert [str(fault) for fault in faults] == [f"gpio[0].x{in_words(bad.place)}: {bad.reason}"]
    assert faults == faults_of(kind, bad.raw, "gpio[0].x")


@pytest.mark.parametrize(("kind", "bad"), BAD)
def test_a_message_names_the_pointer_and_the_cure(kind, bad) -> None:
    with pytest.raises(MessageError) as raised:
        codec.read_value(kind, bad.raw, "/x")
    steps = [str(key).replace("~", "~0").replace("/", "~1") for key in bad.place]
    assert raised.value.pointer == "/".join(["/x", *steps])
    assert raised.value.reason.partition(", got ")[0] == bad.reason.partition(", got ")[0]
    assert bad.cure in (raised.value.suggestion or "")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (5, "an integer (5)"),
        ("a", 'a string ("a")'),
        ("a" * 100, "a string of 100 characters"),
        (True, "true"),
        (None, "null"),
        ([1], "an array"),
        ({}, "an object"),
        (1.5, "a number (1.5)"),
        (2**70, "an integer beyond what a double holds"),
        (b"", "a Python bytes"),
    ],
)
def test_a_message_repeats_a_value_with_its_type_in_json(raw, shown) -> None:
    with pytest.raises(MessageError) as raised:
        codec.read_value(MODE, raw, "/x")
    assert raised.value.reason == f"expected {MODE.expected}, got {shown}"


# --- values built in Python -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (SECONDS, "5", 'Section.x: expected a number > 0, got "5"'),
        (LIST, [1], "Section.x: expected an array as tuple, got [1]"),
        (ListOf(PATH), ("/a",), "Section.x: expected an array as tuple, got ('/a',)"),
        (
            ListOf(PATH),
            (Path("a"), Path("b")),
            'Section.x[0]: expected an absolute path, got "a"\nSection.x[1]: expected',
        ),
        (MODE, "0660", "Section.x: expected a string of octal digits such as \"0660\" as int, got '0660'"),
        (MODE, 0o1777, 'such as "0660", got "1777"'),
        (MODE, True, 'such as "0660", got true'),
        (NAME, None, "Section.x: expected a non-empty string, got None"),
        (MAP, {5: 1}, 'Section.x key "5": expected a word, got 5'),
        (ONE_OR_MORE, [1], "expected"),
    ],
)
def test_a_value_built_in_python_keeps_the_rules_and_has_the_type(kind, value, told) -> None:
    with pytest.raises(ConfigError) as raised:
        section(kind)(value)
    assert told in str(raised.value)


def test_none_passes_where_it_is_the_default_and_only_there() -> None:
    optional = attrs.make_class(
        "Section", {"x": attrs.field(default=None, type=Annotated[object, FLAG])}, field_transformer=checked
    )
    assert optional().x is None
    with pytest.raises(ConfigError, match=r"Section\.x: expected true or false, got None"):
        section(FLAG)(None)


def test_a_type_must_say_how_it_reads() -> None:
    with pytest.raises(NotImplementedError):
        FieldType().read(1)


# --- all faults of a value --------------------------------------------------------------------------------------------


def test_all_faults_of_a_value_are_collected_with_their_places() -> None:
    kind = MapOf(ListOf(CONDITION))
    with pytest.raises(FieldErrors) as raised:
        kind.read({"a": [{"uid": 1}, {"uid": 0, "nam": "x"}], "b": 5, "c.d": [{}]})
    assert str(raised.value).split("; ", 1)[0] == "a[1].uid: expected an integer ≥ 1, got 0"
    assert [str(fault) for fault in raised.value.faults("top")] == [
        "top.a[1].uid: expected an integer ≥ 1, got 0",
        "top.a[1].nam: unknown key; did you mean name?",
        "top.b: expected an array, got 5",
        'top."c.d"[0]: expected a table with at least one of uid, name, got an empty table',
    ]


def test_a_key_without_end_is_shortened_in_a_place() -> None:
    with pytest.raises(FieldErrors) as raised:
        MapOf(COUNT).read({"k" * 4000: 0})
    assert str(raised.value) == f'"{"k" * 58}…: expected an integer ≥ 1, got 0'


def test_reading_a_value_with_thousands_of_faults_ends_after_a_hundred() -> None:
    with pytest.raises(FieldErrors) as raised:
        LIST.read([0] * 20_000)
    assert len(raised.value.problems) == 100


# --- tables of capabilities and board profiles ------------------------------------------------------------------------


def test_a_table_reports_absent_and_unknown_keys_and_reads_on() -> None:
    faults: list[Fault] = []
    top = Table(
        {"bus": "1", "spede": 5, "in": {"a": 0}, "by": {"n": {"a": 1, "z": 1}}, "all": [{"a": 1}, {}]}, "", faults
    )
    assert (top.take("name", NAME), top.take("note", NAME, None), top.take("bus", RISK)) == (None, None, None)
    assert top.take("speed", COUNT, 7) == 7
    assert top.ok is False
    assert top.table("in").given({"a": COUNT, "b": COUNT}) == {"a": None}
    for name, inner in top.named("by"):
        assert (name, inner.take("a", COUNT)) == ("n", 1)
        assert inner.ok
        inner.done()
        assert not inner.ok
    assert [inner.take("a", COUNT) for inner in top.tables("all")] == [1, None]
    assert top.table("none", required=False).content == {}
    assert top.table("must").take("a", COUNT) is None
    top.fault("", "is of no use")
    top.done()
    assert [str(fault) for fault in faults] == [
        "name: missing; it takes a non-empty string",
        'bus: expected an integer from 0 to 3, got "1"',
        "in.a: expected an integer ≥ 1, got 0",
        "by.n.z: unknown key; expected a",
        "all[1].a: missing; it takes an integer ≥ 1",
        "must: missing; it takes a table",
        "is of no use",
        "spede: unknown key; did you mean speed?",
    ]


@pytest.mark.parametrize("given", [{}, "x", [1], [{}, "x"]])
def test_an_array_of_tables_is_that_and_nothing_else(given) -> None:
    faults: list[Fault] = []
    assert list(Table({"gpio": given}, "board", faults).tables("gpio")) == []
    (fault,) = faults
    assert str(fault).startswith("board.gpio: expected an array of tables, written as [[board.gpio]]; got ")


def test_an_array_of_tables_within_another_is_named_as_toml_writes_it() -> None:
    faults: list[Fault] = []
    list(Table({"requires": "DOOR"}, "interlock[0]", faults).tables("requires"))
    assert "interlock[0].requires: expected an array of tables, written as [[interlock.requires]]" in str(faults[0])


def test_a_fault_is_written_with_its_place_its_key_and_its_reason() -> None:
    assert str(Fault("a.b", "missing")) == "a.b: missing"
    assert str(Fault("", "missing", "survey.py:12")) == "survey.py:12: missing"
    assert near("gpio.sett", ["gpio.set", "i2c.read"]) == "; did you mean 'gpio.set'?"
    assert near("quux", ["gpio.set"]) == ""
