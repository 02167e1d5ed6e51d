"""One record as a line, and the hash of args."""

import collections
import datetime as dt
import enum
import hashlib
import json
import math
import subprocess
import sys
import types
from collections import Counter

import orjson
import pytest
import rfc8785
from hypothesis import given, settings as limits, strategies as st

from hearth.audit import record
from hearth.audit.record import GENESIS, Chain, _examine, _extended, args_hash, canonical, digest, encode, timestamp

SAFE_INTS = st.integers(-(2**53) + 1, 2**53 - 1)
ASCII_KEYS = st.text(st.characters(max_codepoint=127), max_size=8)
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def json_values(scalars, keys, leaves=20):
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=leaves,
    )


PLAIN = json_values(st.none() | st.booleans() | SAFE_INTS | ANY_TEXT, ASCII_KEYS)
ACCEPTED = json_values(
    st.none() | st.booleans() | SAFE_INTS | ANY_TEXT | st.floats(allow_nan=False, allow_infinity=False), ANY_TEXT
)


# --- time


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_776_638_881.234, "2026-04-19T22:48:01.234Z"),
        (1_776_638_881.9996, "2026-04-19T22:48:02.000Z"),
        (1_776_638_881.0004, "2026-04-19T22:48:01.000Z"),
        (-0.5, "1969-12-31T23:59:59.500Z"),
        (951_782_400, "2000-02-29T00:00:00.000Z"),
    ],
)
def test_a_timestamp_is_utc_with_milliseconds(at, text):
    assert timestamp(at) == text


@pytest.mark.slow
@given(st.lists(st.floats(0, 4e9), min_size=1, max_size=20))
@limits(deadline=None)
def test_timestamps_agree_with_datetime_in_any_order(times):
    for at in times:
        milliseconds = round(at * 1000)
        expected = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=milliseconds)
        assert timestamp(at) == expected.strftime("%Y-%m-%dT%H:%M:%S.") + f"{milliseconds % 1000:03d}Z"


# --- lines


def test_a_line_has_seq_ts_and_event_first_and_prev_last():
    line = encode(7, "T", {"event": "task.finish", "task_id": "t", "status": "SUCCESS"}, "sha256:p")
    assert line == b'{"seq":7,"ts":"T","event":"task.finish","task_id":"t","status":"SUCCESS","prev":"sha256:p"}'


def test_the_event_comes_third_wherever_the_record_has_it():
    assert encode(1, "T", {"a": 1, "event": "e"}, "p") == b'{"seq":1,"ts":"T","event":"e","a":1,"prev":"p"}'


@pytest.mark.parametrize("name", ["seq", "ts", "prev"])
def test_a_record_that_uses_a_reserved_name_is_kept_whole_and_changes_nothing_of_the_chain(name):
    record = json.loads(encode(5, "T", {"event": "e", name: "forged", "x": 1}, "p"))
    assert record == {"seq": 5, "ts": "T", "event": "e", "record": {"event": "e", name: "forged", "x": 1}, "prev": "p"}


def deep(levels):
    value = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"\x00\xff", "b'\\x00\\xff'"),
        ({1}, "{1}"),
        ("half \ud83d", "half \\ud83d"),
        ({"\udc80": (1, "\udc80")}, {"\\udc80": [1, "\\udc80"]}),
        ({3: None}, {"3": None}),
        (2**70, hex(2**70)),
        ([-(2**70), 5, True, 0.5], [hex(-(2**70)), 5, True, 0.5]),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        ([10**5000], [hex(10**5000)]),
    ],
)
def test_a_value_that_json_lacks_is_written_as_text(value, written):
    record = json.loads(encode(1, "T", {"event": "e", "good": [1], "value": value}, "p"))
    assert record == {"seq": 1, "ts": "T", "event": "e", "good": [1], "value": written, "prev": "p"}


def test_a_record_nested_too_deep_ends_in_an_ellipsis():
    line = encode(1, "T", {"event": "e", "value": deep(500)}, "p")
    value = json.loads(line)["value"]
    for _ in range(64):
        assert not isinstance(value, str)
        value = value[0] if value != "…" else value
        if value == "…":
            break
    assert value == "…"


@pytest.mark.parametrize("record", [{}, {"x": 1}, {"event": 3, "x": 1}, {"event": b"e", "x": b""}])
def test_a_record_without_a_name_is_written_all_the_same(record):
    written = json.loads(encode(1, "T", record, "p"))
    assert written["seq"] == 1
    assert written["prev"] == "p"
    assert set(record) - {"event"} <= set(written)


ODD_RECORDS = st.dictionaries(
    st.text(max_size=6), json_values(ANY_TEXT | st.binary() | st.integers() | st.floats(), ANY_TEXT)
)


@pytest.mark.slow
@given(ODD_RECORDS)
@limits(deadline=None)
def test_every_record_becomes_one_line_that_parses_and_chains(record):
    chain = Chain()
    first, second = chain.seal(record, 0.5), chain.seal({"event": "e"}, 1.5)
    assert first.count(b"\n") == 1
    assert first.endswith(b"\n")
    parsed = orjson.loads(first)
    assert (parsed["seq"], parsed["prev"]) == (1, GENESIS)
    assert orjson.loads(second)["prev"] == "sha256:" + hashlib.sha256(first[:-1]).hexdigest()


# --- the chain


def test_the_first_record_follows_64_zeros_and_the_head_is_the_last_line_without_its_line_feed():
    chain = Chain()
    assert chain.head == (0, "sha256:" + "0" * 64)
    line = chain.seal({"event": "e"}, 1_776_638_881.234)
    assert line == (b'{"seq":1,"ts":"2026-04-19T22:48:01.234Z","event":"e","prev":"sha256:' + b"0" * 64 + b'"}\n')
    assert chain.head == (1, digest(line[:-1])) == (1, "sha256:" + hashlib.sha256(line[:-1]).hexdigest())


def test_a_chain_goes_on_from_any_head():
    chain = Chain(41, "sha256:abc")
    assert orjson.loads(chain.seal({"event": "e"}, 0))["prev"] == "sha256:abc"
    assert chain.seq == 42


# --- args_hash


def test_the_hash_is_sha256_over_the_canonical_form():
    assert args_hash({"value": 1, "line": 17}) == ("sha256:" + hashlib.sha256(b'{"line":17,"value":1}').hexdigest())


@pytest.mark.slow
@given(PLAIN)
@limits(deadline=None)
def test_what_orjson_writes_as_rfc_8785_does_is_left_to_it(value):
    assert _examine(value) == ([], [])
    assert canonical(value) == orjson.dumps(value, option=orjson.OPT_SORT_KEYS) == rfc8785.dumps(value)


@pytest.mark.slow
@given(ACCEPTED)
@limits(deadline=None)
def test_whatever_the_library_takes_has_the_form_the_library_gives(value):
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.slow
@given(ACCEPTED)
@limits(deadline=None)
def test_the_extended_form_is_the_librarys_where_the_library_has_one(value):
    assert _extended(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [1.0, -0.0, 1e16, 1e20, 123456789012345680000.0, 1e-6, {"\U00010000": 1, "\ue000": 2}],
)
def test_where_orjson_and_rfc_8785_differ_the_form_is_that_of_rfc_8785(value):
    assert orjson.dumps(value, option=orjson.OPT_SORT_KEYS) != rfc8785.dumps(value)
    assert canonical([value]) == rfc8785.dumps([value])


POWERS = [sign * digits * 10.0**power for sign in (1, -1) for digits in (1, 1.5, 9.8765) for power in range(-30, 31)]
EDGES = [5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 2.0**53, 2.0**53 + 2, 2.0**63, 2.0**64, 0.0, -0.0]


def test_every_float_is_written_as_ecmascript_does():
    floats = [*POWERS, *EDGES, *(math.nextafter(number, way) for number in POWERS for way in (0, math.inf))]
    assert [canonical(number) for number in floats] == [rfc8785.dumps(number) for number in floats]
    assert canonical(floats) == _extended(floats) == rfc8785.dumps(floats)


def test_floats_are_written_so_whatever_orjson_makes_of_them(monkeypatch):
    monkeypatch.setattr(record, "_ORJSON_IS_KNOWN", False)
    assert canonical([*POWERS, *EDGES]) == rfc8785.dumps([*POWERS, *EDGES])


@pytest.mark.proof
@given(st.floats(allow_nan=False, allow_infinity=False))
@limits(deadline=None, max_examples=2000)
def test_any_float_is_written_as_ecmascript_does(number):
    assert canonical({"é": [number]}) == rfc8785.dumps({"é": [number]})


WIDE = st.text(st.sampled_from("aé\ue000\uffff\U00010000\U0010ffff"), max_size=3)


@pytest.mark.slow
@given(json_values(SAFE_INTS | st.floats(-1e300, 1e300), WIDE))
@limits(deadline=None)
def test_keys_are_in_the_order_of_utf_16(value):
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("value", [(1, 2), {"a": (1,)}, math.nan, [math.inf], {1: 2}, b""])
def test_what_no_document_can_hold_takes_the_other_way(value):
    assert _examine(value) is None


@pytest.mark.parametrize(
    "value",
    [
        [0] * 20_000,
        [[]] * 20_000,
        [0.5] * 20_000,
        [1e-7] * 20_000,
        [-1e17] * 20_000,
        [[0.1]] * 10_000,
        [{}, [1.0]] * 6_000,
        {f"{n:x}" + 44 * "x": n for n in range(20_000)},
        {f"é{n:x}" + 40 * "é": -n for n in range(20_000)},
        {f"\U00010000{n:x}" + 40 * "é": n / 7 for n in range(20_000)},
        [{"é": n / 8} for n in range(10_000)],
        [2**63] * 20_000,
        ["é" * 26] * 20_000,
        "x" * (1 << 20),
        "\x00" * (1 << 17),
    ],
)
def test_no_document_takes_the_slow_way_to_its_form(value, monkeypatch):
    calls = Counter()

    def count(frame, event, _arg):
        calls[event] += event == "call"

    monkeypatch.setattr(record, "_extended", None)
    sys.setprofile(count)
    try:
        form = canonical(value)
    finally:
        sys.setprofile(None)
    # Python functions that were entered: none for a part that orjson writes by itself, a few for a float or a key.
    assert calls["call"] < 3 * 20_000 + 500
    assert orjson.loads(form) == value


class Level(enum.IntEnum):
    HIGH = 3


class Name(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (2**53 - 1, b"9007199254740991"),
        (2**53, b"9007199254740992"),
        (2**53 + 1, b"9007199254740993"),
        (-(2**53) - 1, b"-9007199254740993"),
        ({"addr": 2**64 - 1}, b'{"addr":18446744073709551615}'),
        (2**200, str(2**200).encode()),
        ([1 << 20_000], b"[" + hex(1 << 20_000).encode() + b"]"),
        ([math.nan, math.inf, -math.inf, 1.0], b"[NaN,Infinity,-Infinity,1]"),
        ("\ud83d", b'"\xed\xa0\xbd"'),
        ({"\ud83d": 1, "a\n": [2**60]}, b'{"a\\n":[1152921504606846976],"\xed\xa0\xbd":1}'),
        (["\x01\x7f\\\u2028", 2**60], b'["\\u0001\x7f\\\\\xe2\x80\xa8",1152921504606846976]'),
        ({"b": (1, 2**60), "a": {}, "c": []}, b'{"a":{},"b":[1,1152921504606846976],"c":[]}'),
        ({2: "x"}, b'{"<2>":"x"}'),
        ({"\ud83d": 1.0}, b'{"\xed\xa0\xbd":1}'),
        ({"\udcff\U00010000": 1.0, "\ue000": 0}, b'{"\xed\xb3\xbf\xf0\x90\x80\x80":1,"\xee\x80\x80":0}'),
        ({"\ue000": 2**70, "\U00010000": 1}, b'{"\xf0\x90\x80\x80":1,"\xee\x80\x80":1180591620717411303424}'),
        ({"x": b"bytes", "y": 2**60}, b'{"x":"<bytes>","y":1152921504606846976}'),
        (object(), b'"<object>"'),
        (collections.OrderedDict(b=2.5, a=1), b'{"a":1,"b":2.5}'),
        (types.MappingProxyType({"b": True, "a": None}), b'{"a":null,"b":true}'),
        ([Level.HIGH, 2**60], b"[3,1152921504606846976]"),
        ([Name("n"), 2**60], b'["n",1152921504606846976]'),
    ],
)
def test_what_rfc_8785_refuses_has_a_form_of_its_own(value, form):
    assert canonical(value) == form
    assert args_hash(value) == "sha256:" + hashlib.sha256(form).hexdigest()


def test_neighbours_beyond_2_53_have_different_hashes():
    assert len({args_hash({"addr": 2**53 + n}) for n in range(100)}) == 100


@pytest.mark.slow
@pytest.mark.parametrize("leaf", [1, 0.5])
def test_nesting_has_no_limit(leaf):
    levels = 20_000
    value = leaf
    for _ in range(levels):
        value = [value]
    assert canonical(value) == b"[" * levels + rfc8785.dumps(leaf) + b"]" * levels


def test_what_contains_itself_ends_there():
    value = {"a": 0.5}
    value["self"] = [value, value["a"]]
    assert canonical(value) == b'{"a":0.5,"self":["<circular>",0.5]}'


def test_what_is_there_twice_but_not_in_itself_is_written_twice():
    shared = [2**60]
    assert canonical([shared, shared]) == b"[[1152921504606846976],[1152921504606846976]]"


SURPRISES = st.integers() | st.floats() | st.text() | st.binary(max_size=3) | st.none() | st.booleans()


@pytest.mark.slow
@given(json_values(SURPRISES, st.text(max_size=4) | st.integers()))
@limits(deadline=None)
def test_every_value_has_a_hash_and_equal_values_have_the_same(value):
    assert args_hash(value) == args_hash(value)
    assert len(args_hash(value)) == 71


@pytest.mark.slow
def test_hashing_imports_no_library():
    code = (
        "import sys; from hearth.audit.record import args_hash; args_hash({'line': 17, 'value': 2**60});"
        "args_hash({'x': [0.5, 1e30], '\U00010000': 1}); args_hash([2**70, 0.1]); assert 'rfc8785' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
