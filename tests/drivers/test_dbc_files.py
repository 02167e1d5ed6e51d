"""Files of messages as makers write them: what does not fit is left out and named, and the rest is used.

Each case is one of a kind that was reported in public; the sources are beside the tests.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from hearth.drivers.can.dbc import CanDatabase
from hearth.drivers.can.driver import EXTENDED, Frame, key_of
from hearth.drivers.can.files import read_messages
from hearth.drivers.can.layout import Layout
from hearth.drivers.can.spec import cautions, parse_can
from hearth.drivers.kind import Opening
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError, InvalidParams, LimitViolated, PermissionDenied
from hearth.tables import Table

HEAD = 'VERSION ""\nNS_ :\n\tCM_\n\tVAL_\nBS_:\nBU_: ECU\n'
GOOD = 'BO_ 256 GOOD: 8 ECU\n SG_ Level : 0|16@1+ (0.5,0) [0|100] "percent" ECU\n'
MUX = """BO_ 1885 CP: 8 ECU
 SG_ Sel M : 0|8@1+ (1,0) [0|255] "" ECU
 SG_ Alive : 8|8@1+ (1,0) [0|255] "" ECU
 SG_ Heat m1 : 16|16@1+ (0.1,0) [0|200] "degC" ECU
 SG_ Volts m2 : 16|16@1+ (0.1,0) [0|1000] "V" ECU
"""


@pytest.fixture
def database(tmp_path):
    """Return a function that makes a database of a file with this content."""

    def make(content, name="car.dbc", **more):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        made = CanDatabase("can0", path, **more)
        made.load()
        return made

    return make


# opendbc, issue 330: https://github.com/commaai/opendbc/issues/330; openpilot, issue 541; cantools, issue 199.
DIRTY = {
    "a signal beyond its bytes": (
        'BO_ 258 LONG: 2 ECU\n SG_ Near : 0|8@1+ (1,0) [0|0] "" ECU\n SG_ Far : 12|16@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD", "LONG"],
        "line 11, LONG.Far: left out: it does not fit into the 2 bytes",
    ),
    "only a signal beyond its bytes": (
        'BO_ 258 LONG: 2 ECU\n SG_ Far : 12|16@0+ (1,0) [0|0] "" ECU\n',
        ["GOOD"],
        "line 9, LONG: left out",
    ),
    "a name that begins with a digit": (
        'BO_ 1275 2017_5: 8 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD"],
        "line 9, 2017_5: left out",
    ),
    "an identifier without its flag": (
        'BO_ 103596083 BSM: 8 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\nCM_ SG_ 103596083 A "note";\n',
        ["GOOD", "BSM"],
        "line 9, BSM: its identifier 0x62cc033 has more than 11 bits: taken as one of 29",
    ),
    "an identifier of 31 bits": (
        'BO_ 4294967295 WIDE: 8 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD"],
        "WIDE: left out: Extended frame",
    ),
    "a value table of no signal": (
        'VAL_ 256 Other 0 "a" ;\n',
        ["GOOD"],
        "line 9: left out: VAL_ is about the signal Other",
    ),
    "a comment without its signal": ('CM_ SG_ 256 "x";\n', ["GOOD"], "line 9, GOOD: left out"),
    "a comment without its end": (
        'CM_ "front"\nBO_ 5 NEXT: 1 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD", "NEXT"],
        "",
    ),
    "a table without its end": ('VAL_ 256 Level 0 "no"\nVAL_TABLE_ T 0 "x" ;\nCM_ BO_ 256 "n";\n', ["GOOD"], ""),
    "a string without its end": (
        'CM_ BO_ 256 "never closed;\nBO_ 5 NEXT: 1 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD", "NEXT"],
        "GOOD: left out",
    ),
    "a float of 24 bits": (
        'BO_ 5 F: 4 ECU\n SG_ A : 0|24@1+ (1,0) [0|0] "" E\n SG_ B : 24|8@1+ (1,0) [0|0] "" E\nSIG_VALTYPE_ 5 A : 1;\n',
        ["GOOD", "F"],
        "F.A: left out",
    ),
    "a multiplexer that cannot be read": (MUX.replace("0|8@1+ (1,0)", "0|8@1+ (x,0)", 1), ["GOOD"], "CP: left out"),
    "a multiplexer beyond its bytes": (MUX.replace("M : 0|", "M : 99|", 1), ["GOOD"], "CP: left out"),
    "nested multiplexers without their table": (
        MUX.replace("Alive :", "Alive m3M :"),
        ["GOOD"],
        "CP.Heat: left out: the file does not say",
    ),
    "a name that no tool has": (
        'BO_ 5 D: 2 ECU\n SG_ A-1 : 0|8@1+ (1,0) [0|0] "" ECU\n SG_ B : 8|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD", "D"],
        "line 10, D.A-1: left out",
    ),
    "two messages of one name": (
        'BO_ 5 GOOD: 1 ECU\n SG_ A : 0|8@1+ (1,0) [0|9] "" ECU\n',
        ["GOOD", "GOOD_5"],
        "GOOD: its name is there twice: this one is GOOD_5",
    ),
    "two signals of one name": (
        'BO_ 5 D: 2 ECU\n SG_ A : 0|8@1+ (1,0) [0|0] "" ECU\n SG_ A : 8|8@1+ (1,0) [0|0] "" ECU\n',
        ["GOOD", "D"],
        "D.A: left out: its message has two signals of this name",
    ),
    "a part for a generator": (
        b'VERSION ""\nCM_ "IMPORT _common.dbc";\n',
        [],
        "the file has no messages; it is a part",
    ),
}


@pytest.mark.parametrize("case", DIRTY)
def test_the_rest_of_a_file_is_used_and_the_flaw_is_named(case, database) -> None:
    content, names, words = DIRTY[case]
    made = database(content if isinstance(content, bytes) else HEAD + GOOD + content)
    assert [one["message"] for one in made.to_json()] == names
    assert words in "\n".join(map(str, made.flaws))
    if names:
        assert made.frame("GOOD", {"Level": 50}).data == b"\x64" + bytes(7)
        with pytest.raises(LimitViolated):
            made.check(Frame(256, b"\xff" * 8))


def test_a_message_without_its_flag_is_the_one_with_29_bits(database) -> None:
    made = database(HEAD + DIRTY["an identifier without its flag"][0])
    assert made.key("BSM") == 0x62CC033 | EXTENDED
    assert made.to_json()[0]["signals"][0]["note"] == "note"


def test_a_frame_of_which_a_signal_is_left_out_is_not_made_by_name(database) -> None:
    made = database(HEAD + DIRTY["a signal beyond its bytes"][0])
    with pytest.raises(InvalidParams, match="not whole; send its bytes"):
        made.frame("LONG", {"Near": 1})
    assert made.decode(Frame(258, b"\x07\x00"))["signals"] == {"Near": {"value": 7}}
    with pytest.raises(ConfigError, match=r"no such signal; line 9, LONG\.Far: left out"):
        database(HEAD + DIRTY["a signal beyond its bytes"][0], limits={"LONG.Far": SignalLimit(max=1)})


def test_signals_that_share_bits_are_each_read_and_bounded(database) -> None:
    text = 'BO_ 257 BAD: 8 ECU\n SG_ One : 0|8@1+ (1,0) [0|255] "" ECU\n SG_ Two : 4|8@1+ (1,0) [0|255] "" ECU\n'
    made = database(HEAD + GOOD + text, limits={"BAD.One": SignalLimit(max=10)})
    decoded = made.decode(Frame(257, b"\x34\x02" + bytes(6)))["signals"]
    assert decoded == {"One": {"value": 0x34}, "Two": {"value": 0x23}}
    with pytest.raises(LimitViolated, match=r"BAD\.One"):
        made.check(Frame(257, b"\xff" + bytes(7)))
    made.check(Frame(257, b"\x0a\xff" + bytes(6)))
    with pytest.raises(InvalidParams, match=r"overlapping in message BAD; send its bytes"):
        made.frame("BAD", {"One": 1, "Two": 1})
    with pytest.raises(ConfigError, match=r"BAD cannot have a safe value: .*overlapping"):
        database(HEAD + text, safe={"BAD.One": 1}, idle={"BAD.Two": 0})


def test_a_file_of_which_nothing_can_be_used_is_refused_with_line_and_cure(database) -> None:
    with pytest.raises(ConfigError, match=r"no message that can be used: line 8, LONG\.Far: .*; correct the file"):
        database(HEAD + DIRTY["only a signal beyond its bytes"][0])


def test_what_is_left_out_is_a_finding_of_the_profile_and_logged_once(database, tmp_path, caplog) -> None:
    database(HEAD + GOOD + DIRTY["a signal beyond its bytes"][0])
    spec = parse_can(Table({"bus": "can0", "driver": "sim", "dbc": "car.dbc"}, "can[0]", [])).beside(tmp_path)
    (caution,) = cautions({"can": (spec,)})
    assert (caution.key, caution.severity) == ("can[0].dbc", "warn")
    assert "LONG.Far" in caution.problem
    spec.make_driver(Opening())
    assert [record.message for record in caplog.records if "LONG.Far" in record.message] == [
        "can can0: car.dbc: line 11, LONG.Far: left out: it does not fit into the 2 bytes of its message"
    ]


# --- encodings --------------------------------------------------------------------------------------------------------
#
# cantools, issues 30 and 478; whl-dbc, issues 5 and 6: https://github.com/wheelos-tools/whl-dbc/issues/5

OVEN = HEAD + 'BO_ 256 OVEN: 8 ECU\n SG_ Heat : 0|16@1+ (1,0) [0|300] "{}" ECU\nCM_ BO_ 256 "the oven{}";\n'


@pytest.mark.parametrize(
    ("data", "encoding", "unit"),
    [
        (OVEN.format("°C", "").encode(), None, "°C"),
        (OVEN.format("°C", " “A”").encode("utf-8-sig"), None, "°C"),
        (OVEN.format("°C", "").encode("cp1252"), None, "°C"),
        (OVEN.format("°C", "").encode("cp1252").replace(b"oven", b"ov\x9den"), None, "°C"),
        (OVEN.format("°C", "").encode("utf-16"), None, "°C"),
        (OVEN.format("℃", "").encode("gb2312"), "gb2312", "℃"),
        (OVEN.format("°C", "").encode("utf-8-sig"), "utf-8", "°C"),
    ],
)
def test_the_encoding_is_found_or_given(data, encoding, unit, database) -> None:
    made = database(data, encoding=encoding)
    assert made.to_json()[0]["signals"][0]["unit"] == unit
    made.frame("OVEN", {"Heat": {"value": 20, "unit": "°C"}})


@pytest.mark.parametrize(
    ("more", "words"), [({"encoding": "hex"}, "text encoding"), ({"encoding": "x" * 9}, "text enc")]
)
def test_an_encoding_that_python_has_not_is_a_fault_of_the_profile(more, words) -> None:
    faults: list[object] = []
    parse_can(Table({"bus": "can0", "driver": "sim", "dbc": "car.dbc", **more}, "can[0]", faults))
    assert words in str(faults)


# --- multiplexers -----------------------------------------------------------------------------------------------------
#
# model3dbc, issues 8 and 10: https://github.com/joshwardell/model3dbc/issues/8


def test_signals_outside_of_an_unknown_multiplexer_value_are_read_and_bounded(database) -> None:
    made = database(HEAD + MUX, limits={"CP.Alive": SignalLimit(max=100)})
    frame = Frame(0x75D, bytes.fromhex("0dff000000000000"))
    assert made.decode(frame) == {
        "message": "CP",
        "signals": {"Sel": {"value": 13}, "Alive": {"value": 255}},
        "note": "the file does not have Sel = 13",
    }
    with pytest.raises(LimitViolated, match="Alive"):
        made.check(frame)
    made.check(Frame(0x75D, bytes.fromhex("0d0a000000000000")))
    with pytest.raises(InvalidParams, match="does not have Sel = 13; it has 1, 2"):
        made.frame("CP", {"Sel": 13, "Alive": 1})
    with pytest.raises(InvalidParams, match="Volts: not in a frame with Sel = 1"):
        made.frame("CP", {"Sel": 1, "Alive": 1, "Heat": 1, "Volts": 1})


def test_a_short_frame_has_the_signals_that_are_wholly_in_it(database) -> None:
    made = database(
        HEAD + MUX + 'BO_ 6 BIG: 4 ECU\n SG_ A : 7|12@0+ (1,0) [0|0] "" ECU\n SG_ B : 23|8@0+ (1,0) [0|0] "" ECU\n'
    )
    assert made.decode(Frame(0x75D, bytes.fromhex("010a64"))) == {
        "message": "CP",
        "signals": {"Sel": {"value": 1}, "Alive": {"value": 10}},
        "note": "the frame has 3 of 8 bytes",
    }
    assert made.decode(Frame(6, b"\x12\x34"))["signals"] == {"A": {"value": 0x123}}
    assert made.decode(Frame(6, b""))["signals"] == {}
    with pytest.raises(LimitViolated, match="3 bytes are not CP"):
        made.check(Frame(0x75D, bytes.fromhex("010a64")))


def test_a_multiplexer_goes_by_its_bits_whatever_its_sign_and_scale(database) -> None:
    text = MUX.replace("Sel M : 0|8@1+ (1,0) [0|255]", "Sel M : 0|8@1- (2,10) [0|0]").replace("m2", "m254")
    made = database(HEAD + text)
    assert made.decode(Frame(0x75D, bytes.fromhex("fe0a640000000000")))["signals"]["Volts"]["value"] == 10
    assert made.decode(Frame(0x75D, bytes.fromhex("010a640000000000")))["signals"]["Sel"]["value"] == 12
    sent = made.frame("CP", {"Sel": 6, "Alive": 0, "Volts": 10})
    assert sent.data == bytes.fromhex("fe00640000000000")


def test_extended_multiplexing_with_ranges_and_a_chain(database) -> None:
    made = database(
        HEAD
        + """BO_ 5 EXT: 8 ECU
 SG_ A M : 0|8@1+ (1,0) [0|0] "" ECU
 SG_ B m1M : 8|8@1+ (1,0) [0|0] "" ECU
 SG_ C m3 : 16|8@1+ (1,0) [0|0] "" ECU
 SG_ D m2 : 8|8@1+ (1,0) [0|0] "" ECU
SG_MUL_VAL_ 5 B A 1-1;
SG_MUL_VAL_ 5 C B 3-4, 9-9;
SG_MUL_VAL_ 5 D A 2-7;
"""
    )
    found = {data: made.decode(Frame(5, bytes.fromhex(data) + bytes(5)))["signals"].keys() for data in
           ("010377", "010977", "010577", "070377", "080377")}  # fmt: skip
    has = {"010377": "ABC", "010977": "ABC", "010577": "AB", "070377": "AD", "080377": "A"}
    assert {data: "".join(sorted(names)) for data, names in found.items()} == has
    assert made.frame("EXT", {"A": 1, "B": 9, "C": 7}).data == bytes.fromhex("0109070000000000")


# --- value tables ----------------------------------------------------------------------------------------------------
#
# opendbc has 59 signals with one label for several values (GPS_Status of vehicle.dbc).


def test_one_label_of_several_values_is_refused_with_them(database) -> None:
    text = 'BO_ 300 GEAR: 8 ECU\n SG_ G : 0|8@1+ (1,0) [0|255] "" ECU\n'
    made = database(HEAD + text + 'VAL_ 300 G 0 "Reserved" 1 "Drive" 2 "Reserved" 7 "Reserved" ;\n')
    assert [(one["value"], one["name"]) for one in made.to_json()[0]["signals"][0]["choices"]] == [
        (0, "Reserved"), (1, "Drive"), (2, "Reserved"), (7, "Reserved"),
    ]  # fmt: skip
    with pytest.raises(InvalidParams, match="3 values with the name 'Reserved'; give 0 or 2 or 7"):
        made.frame("GEAR", {"G": "Reserved"})
    assert [made.frame("GEAR", {"G": one}).data[0] for one in ("Drive", 2)] == [1, 2]


def test_the_names_of_a_scaled_signal_mean_its_bits(database) -> None:
    text = 'BO_ 300 S: 2 ECU\n SG_ T : 0|8@1+ (0.5,-40) [-40|87.5] "C" ECU\n SG_ N : 8|8@1- (1,0) [0|0] "" ECU\n'
    made = database(HEAD + text + 'VAL_ 300 T 255 "SNA" 10 "cold" ;\nVAL_ 300 N 255 "none" ;\n')
    assert made.to_json()[0]["signals"][0]["choices"][1] == {"value": -35, "name": "cold"}
    assert made.frame("S", {"T": "cold", "N": 0}).data == b"\x0a\x00"
    assert made.decode(Frame(300, b"\xff\xff"))["signals"] == {
        "T": {"value": 87.5, "unit": "C", "name": "SNA"}, "N": {"value": -1, "name": "none"},
    }  # fmt: skip


# --- values that are not a number ------------------------------------------------------------------------------------
#
# J1939: SAE J1939-71, 5.1.4; https://github.com/cantools/cantools/issues/198 (any source address)

J1939 = """BO_ 2565866750 EEC1: 8 ECU
 SG_ Mode : 0|2@1+ (1,0) [0|3] "" ECU
 SG_ Torque : 8|8@1+ (1,-125) [-125|125] "%" ECU
 SG_ Speed : 24|16@1+ (0.125,0) [0|8031.875] "rpm" ECU
BO_ 2348810494 TSC1: 8 ECU
 SG_ Wanted : 8|16@1+ (0.125,0) [0|8031.875] "rpm" ECU
BA_DEF_ BO_ "VFrameFormat" ENUM "StandardCAN","ExtendedCAN","reserved","J1939PG";
BA_DEF_DEF_ "VFrameFormat" "J1939PG";
"""


@pytest.mark.parametrize(
    ("data", "values", "words"),
    [
        ("017d7d007dffffff", (1, 0, 4000), (None, None, None)),
        ("ffffffffffffffff", (None, None, None), ("not available",) * 3),
        ("02fe7d00feffffff", (2, None, None), (None, "error", "error")),
        ("00fa7dfffaffffff", (0, 125, 8031.875), (None, None, None)),
    ],
)
def test_the_codes_of_j1939_are_not_numbers(data, values, words, database) -> None:
    made = database(HEAD + J1939)
    decoded = made.decode(Frame(key_of(0x18F00403), bytes.fromhex(data)))
    assert decoded["message"] == "EEC1"
    signals = decoded["signals"].values()
    assert tuple(one["value"] for one in signals) == values
    assert tuple(one.get("none") for one in signals) == words


def test_reversed_bounds_and_a_scale_of_nothing_are_told_and_refuse_no_more_than_they_must(database) -> None:
    made = database(HEAD + 'BO_ 5 R: 2 ECU\n SG_ A : 0|8@1+ (1,0) [200|1] "" ECU\n SG_ B : 8|8@1+ (0,0) [0|0] "" ECU\n')
    assert str(made.flaws[0]) == "line 8, R.A: its bounds are reversed: taken as 1 to 200"
    made.check(Frame(5, b"\x05\x00"))
    for value in (0, 201):
        with pytest.raises(LimitViolated, match="outside of 1 to 200"):
            made.check(Frame(5, bytes((value, 0))))
    with pytest.raises(InvalidParams, match="B cannot be 0"):
        made.frame("R", {"A": 5, "B": 0})


def test_an_infinite_float_has_no_value(database) -> None:
    made = database(HEAD + 'BO_ 5 F: 8 ECU\n SG_ A : 0|64@1- (1,0) [0|0] "" ECU\nSIG_VALTYPE_ 5 A : 2;\n')
    assert made.decode(Frame(5, bytes.fromhex("000000000000f07f")))["signals"]["A"] == {
        "value": None, "none": "not a number",
    }  # fmt: skip


def test_a_float_that_is_not_a_number_has_no_value(database) -> None:
    made = database(HEAD + 'BO_ 5 F: 8 ECU\n SG_ A : 7|32@0- (1,0) [0|0] "m" ECU\nSIG_VALTYPE_ 5 A : 1;\n')
    assert made.decode(Frame(5, bytes.fromhex("7fc0000000000000")))["signals"]["A"] == {
        "value": None, "none": "not a number", "unit": "m",
    }  # fmt: skip
    assert made.decode(Frame(5, bytes.fromhex("3f80000000000000")))["signals"]["A"] == {"value": 1.0, "unit": "m"}


# --- other formats ----------------------------------------------------------------------------------------------------

KCD = """<NetworkDefinition xmlns="http://kayak.2codeornot2code.org/1.0"><Document/>
<Bus name="Motor"><Message id="0x10" name="RPM" length="2"><Signal name="Speed" offset="0" length="16">
<Value unit="rpm" slope="2"/></Signal></Message></Bus>
<Bus name="can0"><Message id="0x10" name="DOOR" length="1"><Signal name="Open" offset="0"/></Message></Bus>
</NetworkDefinition>"""
SYM = """FormatVersion=6.0 // Do not edit this line!
Title="t"
{SIGNALS}
Sig=Speed unsigned 16 /u:rpm /f:2

{SENDRECEIVE}
[RPM]
ID=010h
Type=Standard
Len=2
Sig=Speed 0
"""


def test_kcd_and_sym_are_taken_by_their_suffix(database) -> None:
    for made in (database(SYM, "car.SYM"), database(KCD.replace('"can0"', '"Other"'), "car.kcd")):
        assert made.decode(Frame(0x10, b"\x05\x00"))["signals"] == {"Speed": {"value": 10, "unit": "rpm"}}
    assert "several buses (Motor, Other)" in str(made.flaws[0])
    assert [one["message"] for one in database(KCD, "car.kcd").to_json()] == ["DOOR"], "of the bus with its name"


BROKEN = {
    "a tag": ("car.kcd", KCD.replace("</Signal>", ""), "mismatched tag: line 3"),
    "a number": ("car.kcd", KCD.replace('slope="2"', 'slope="two"'), "'two', in Signal Speed of Message"),
    "an attribute": (
        "car.kcd",
        KCD.replace('offset="0"', ""),
        "is missing, or is not of the kind that it must be, in Signal",
    ),
    "a line": ("car.sym", SYM.replace("ID=010h", "ID="), "line 9"),
    "a signal": ("car.sym", SYM.replace("Sig=Speed 0", "Sig=Sped 0"), "there is no 'Sped'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_its_place_and_the_command_that_converts_it(case, database) -> None:
    name, content, words = BROKEN[case]
    with pytest.raises(ConfigError) as caught:
        database(content, name)
    assert words in str(caught.value)
    assert f"canconvert {name} car.dbc" in str(caught.value)


def test_a_message_without_a_name_is_left_out(database) -> None:
    made = database(KCD.replace('name="RPM"', "").replace('"can0"', '"Other"'), "car.kcd")
    assert "the message 0x10 has no name" in str(made.flaws[-1])
    assert [one["message"] for one in made.to_json()] == ["DOOR"]


def test_a_signal_before_the_first_bit_does_not_fit(database) -> None:
    with pytest.raises(ConfigError, match=r"RPM\.Speed: left out: it does not fit into the 2 bytes"):
        database(SYM.replace("Sig=Speed 0", "Sig=Speed -3"), "car.sym")


def test_a_signal_of_more_than_64_bits_is_no_number_and_a_greater_number_is_one_that_json_has(database) -> None:
    text = 'BO_ 6 L: 17 ECU\n SG_ Vin : 0|136@1+ (1,0) [0|0] "" ECU\n'
    text += 'BO_ 7 M: 8 ECU\n SG_ N : 0|64@1+ (10,0) [0|0] "" ECU\n'
    made = database(HEAD + text)
    assert made.decode(Frame(6, b"x" * 17))["signals"]["Vin"] == {"value": None, "none": "136 bits are not a number"}
    assert made.decode(Frame(7, b"\xff" * 8))["signals"]["N"] == {"value": 1.8446744073709552e20}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("node.eds", "canconvert node.eds node.dbc"),
        ("car.dbf", "canconvert car.dbf car.dbc"),
        ("ecu.CDD", "diagnostic data and no messages"),
        ("car.arxml", "cannot be read as ARXML: .*canconvert car.arxml car.dbc"),
    ],
)
def test_any_other_format_is_refused_with_the_cure(name, words, database) -> None:
    with pytest.raises(ConfigError, match=words):
        database("x", name)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("length.dbc", HEAD + 'BO_ 1 M: 100000000 ECU\n SG_ S : 0|8@1+ (1,0) [0|0] "" ECU\n', 7),
        ("signal.dbc", HEAD + 'BO_ 1 M: 8 ECU\n SG_ S : 0|1000000000@1+ (1,0) [0|0] "" ECU\n', 8),
        ("place.dbc", HEAD + 'BO_ 1 M: 8 ECU\n SG_ S m1 : 1000000000|8@1+ (1,0) [0|0] "" ECU\n', 8),
        ("length.sym", 'FormatVersion=6.0\nTitle="x"\n{SENDRECEIVE}\n[M]\nID=1h\nLen=100000000\n', 6),
        ("signal.kcd", '<NetworkDefinition>\n<Signal name="S" offset="0" length="1000000000"/>\n', 2),
    ],
)
def test_a_length_that_no_message_has_is_refused_before_the_file_takes_the_memory(database, name, content, line):
    with pytest.raises(ConfigError, match=rf"line {line}: no message has 10+ bits or bytes; correct the file"):
        database(content, name)


def test_an_fd_frame_on_a_bus_without_fd_says_how_to_allow_it(database) -> None:
    made = database(HEAD + GOOD, fd=False)
    with pytest.raises(PermissionDenied, match="`fd = true` in its "):
        made.check(Frame(5, b"", fd=True))
    made.check(Frame(5, b""))


# --- the judge --------------------------------------------------------------------------------------------------------


@st.composite
def _messages(draw):
    from cantools.database import Message, Signal
    from cantools.database.conversion import BaseConversion

    length = draw(st.integers(1, 8))
    signals = []
    for index in range(draw(st.integers(1, 4))):
        start, little = draw(st.integers(0, 8 * length - 1)), draw(st.booleans())
        most = 8 * length - (start if little else 8 * (start // 8) + 7 - start % 8)
        conversion = BaseConversion.factory(draw(st.sampled_from([1, 0.5, 3, -0.125])), draw(st.sampled_from([0, -40])))
        bits, order = draw(st.integers(1, min(most, 40))), "little_endian" if little else "big_endian"
        signals.append(Signal(f"S{index}", start, bits, order, draw(st.booleans()), conversion=conversion))
    return length, signals, Message, draw(st.binary(min_size=length, max_size=length))


@settings(max_examples=300)
@given(_messages())
def test_each_signal_is_read_and_written_as_cantools_does(drawn) -> None:
    length, signals, message, data = drawn
    layout = Layout(message(1, "M", length, list(signals), strict=False))
    values = layout.values(data)
    for one in signals:
        alone = message(1, "M", length, [one], strict=True)
        assert {one.name: values[one.name]} == alone.decode(data)
        assert Layout(alone).encode({one.name: values[one.name]}) == alone.encode(alone.decode(data))


def test_an_embedded_container_is_known_by_name_and_has_no_signals() -> None:
    whole = {"frame_id": 1, "is_extended_frame": False, "length": 8, "name": "C", "protocol": None}
    container = SimpleNamespace(signals=[], is_container=True, **whole)
    assert Layout(container, "it is a container").bits(bytes(8)) == {}


def test_the_shipped_file_has_no_flaws() -> None:
    from hearth.drivers.can.files import SHIPPED

    assert read_messages(SHIPPED / "sim.dbc", "can0").flaws == []
