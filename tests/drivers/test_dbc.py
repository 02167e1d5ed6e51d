"""DBC files: messages by name, signals in units, and the bounds that hold for whatever is sent."""

from __future__ import annotations

import struct
import subprocess
import sys
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats

from hearth.drivers.can import sim
from hearth.drivers.can.dbc import CanDatabase, check_bounds
from hearth.drivers.can.driver import EXTENDED, Frame
from hearth.drivers.can.files import MAX_BYTES, SHIPPED
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError, InvalidParams, LimitViolated, PermissionDenied

DBC = """VERSION ""
NS_ :
BS_:
BU_: ECU HEARTH
BO_ 291 DRIVE: 4 HEARTH
 SG_ Torque : 0|16@1- (0.3,0) [-1.2|1.2] "Nm" ECU
 SG_ Gear : 16|4@1+ (1,0) [0|0] "" ECU
 SG_ Free : 24|8@1+ (1,0) [0|0] "" ECU
BO_ 2566844693 LONG: 8 HEARTH
 SG_ Page M : 0|8@1+ (1,0) [0|0] "" ECU
 SG_ Volt m0 : 8|16@1+ (0.001,0) [0|60] "V" ECU
 SG_ Amp m1 : 8|16@1+ (0.001,0) [0|20] "A" ECU
BO_ 300 FLOATING: 4 HEARTH
 SG_ Level : 0|32@1- (1,0) [0|10] "m" ECU
CM_ SG_ 291 Torque "at the shaft";
SIG_VALTYPE_ 300 Level : 1;
VAL_ 291 Gear 0 "neutral" 1 "first" ;
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "car.dbc"
    path.write_text(DBC, encoding="cp1252")
    return path


@pytest.fixture
def made(file):
    database = CanDatabase("can0", file)
    database.load()
    return database


def test_a_message_is_encoded_by_name_in_units_and_read_back(made) -> None:
    frame = made.frame("DRIVE", {"Torque": 0.9, "Gear": "first", "Free": {"value": 7}})
    assert (frame.key, frame.data, frame.fd) == (0x123, struct.pack("<hBB", 3, 1, 7), False)
    assert made.frame("DRIVE", {"Torque": {"value": 0.9, "unit": "N·m"}, "Gear": "first", "Free": 7}) == frame
    decoded = made.decode(frame)
    signals = decoded["signals"]
    assert decoded["message"] == "DRIVE"
    assert signals["Torque"]["value"] == pytest.approx(0.9)
    assert signals["Torque"]["unit"] == "Nm"
    assert signals["Gear"] == {"value": 1, "name": "first"}
    assert signals["Free"] == {"value": 7}


def test_a_multiplexed_message_has_the_signals_of_its_page(made) -> None:
    frame = made.frame("LONG", {"Page": 1, "Amp": 2.5})
    assert frame.key == 0x18FEF115 | EXTENDED
    assert made.decode(frame)["signals"] == {"Page": {"value": 1}, "Amp": {"value": pytest.approx(2.5), "unit": "A"}}


@pytest.mark.parametrize(
    ("message", "signals", "place", "words"),
    [
        ("DRVE", {}, "/message", "did you mean DRIVE"),
        ("DRIVE", {"Torqe": 1}, "/signals/Torqe", "did you mean Torque"),
        ("DRIVE", {"Torque": 1, "Gear": "frist", "Free": 0}, "/signals/Gear", "did you mean first"),
        ("DRIVE", {"Torque": "much", "Gear": 1, "Free": 0}, "/signals/Torque", "it takes a number"),
        ("DRIVE", {"Torque": {"value": 1, "unit": "lbf"}}, "/signals/Torque/unit", "its unit is 'Nm'"),
        ("DRIVE", {"Free": {"value": 1, "unit": "V"}}, "/signals/Free/unit", "it has no unit"),
        ("DRIVE", {"Torque": 1, "Gear": 1}, "/signals", "Free"),
        ("DRIVE", {"Torque": 1, "Gear": 99, "Free": 0}, "/signals", "99"),
        ("LONG", {"Page": 0, "Volt": 1, "Amp": 1}, "/signals", "Amp"),
        ("LONG", {"Page": 9}, "/signals", "LONG"),
    ],
)
def test_wrong_names_units_and_values_are_refused_with_the_place(message, signals, place, words, made) -> None:
    with pytest.raises(InvalidParams, match=words) as caught:
        made.frame(message, signals)
    assert caught.value.data["path"] == place


@pytest.mark.parametrize("value", [1.3, -1.21, 1e300, inf, nan])
def test_a_value_outside_the_bounds_of_the_file_is_refused_by_name(value, made) -> None:
    with pytest.raises(LimitViolated, match=r"DRIVE\.Torque") as caught:
        made.frame("DRIVE", {"Torque": value, "Gear": 0, "Free": 0})
    assert caught.value.data["effect"] == "none"


@pytest.mark.parametrize("raw", [5, -5, 0x7FFF])
def test_raw_bytes_are_no_way_around_the_bounds(raw, made) -> None:
    with pytest.raises(LimitViolated, match=r"DRIVE\.Torque"):
        made.check(Frame(0x123, struct.pack("<hBB", raw, 0, 0)))


def test_the_bounds_themselves_are_allowed_although_the_arithmetic_is_not_exact(made) -> None:
    made.check(Frame(0x123, struct.pack("<hBB", 4, 0, 0)))
    made.check(made.frame("DRIVE", {"Torque": 1.2, "Gear": 0, "Free": 0}))


def test_a_message_that_is_cut_short_is_refused(made) -> None:
    with pytest.raises(LimitViolated, match="send it by name"):
        made.check(Frame(0x123, b"\0"))
    assert made.decode(Frame(0x123, b"\0")) == {
        "message": "DRIVE", "signals": {}, "note": "the frame has 1 of 4 bytes",
    }  # fmt: skip


def test_a_request_for_a_message_and_unknown_identifiers_pass(made) -> None:
    made.check(Frame(0x123, remote=True))
    made.check(Frame(0x124, b"any"))
    made.check_isotp(0x7E0)
    assert made.decode(Frame(0x124, b"any")) == {}


def test_no_isotp_message_goes_where_its_bytes_would_be_signals(made) -> None:
    with pytest.raises(PermissionDenied, match="DRIVE"):
        made.check_isotp(0x123)


def test_not_a_number_is_outside_of_every_bound(made) -> None:
    with pytest.raises(LimitViolated, match="Level"):
        made.check(Frame(300, struct.pack("<f", nan)))
    made.check(Frame(300, struct.pack("<f", 10)))


def test_limits_of_the_profile_hold_within_those_of_the_file(file) -> None:
    limits = {"DRIVE.Torque": SignalLimit(min=0), "DRIVE.Free": SignalLimit(max=9)}
    made = CanDatabase("can0", file, limits)
    made.load()
    made.frame("DRIVE", {"Torque": 0, "Gear": 0, "Free": 9})
    with pytest.raises(LimitViolated) as caught:
        made.frame("DRIVE", {"Torque": -0.3, "Gear": 0, "Free": 0})
    assert caught.value.data == {
        "signal": "DRIVE.Torque", "value": -0.3, "min": 0, "max": 1.2, "unit": "Nm", "effect": "none",
    }  # fmt: skip
    with pytest.raises(LimitViolated) as caught:
        made.frame("DRIVE", {"Torque": 0, "Gear": 0, "Free": 10})
    assert caught.value.data["min"] is None, "JSON has no infinity"
    (drive,) = [one for one in made.to_json() if one["message"] == "DRIVE"]
    assert drive["signals"][0] == {
        "signal": "Torque", "unit": "Nm", "min": 0, "max": 1.2, "note": "at the shaft",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["DRIVE.Torqe", "DRVE.Torque", "DRIVE", "DRIVE."])
def test_a_limit_of_a_signal_that_there_is_not_is_a_mistake_of_the_profile(name, file) -> None:
    with pytest.raises(ConfigError, match="no such signal"):
        CanDatabase("can0", file, {name: SignalLimit(max=1)}).load()


def test_only_declared_messages_may_go_where_the_profile_says_so(file) -> None:
    made = CanDatabase("can0", file, scope="declared")
    made.check(Frame(0x123, bytes(4)))
    with pytest.raises(PermissionDenied, match="declared"):
        made.check(Frame(0x124, b""))
    with pytest.raises(PermissionDenied, match="declared"):
        made.check_isotp(0x7E0)


def test_patterns_over_names_and_names_of_identifiers(made) -> None:
    assert made.keys("D*") == [0x123]
    assert made.keys("DRIVE") == [0x123]
    assert made.name_of(0x123) == "DRIVE"
    with pytest.raises(InvalidParams, match="no message 'X"):
        made.keys("X*")


def test_a_bus_without_a_file_has_no_messages() -> None:
    made = CanDatabase("can0")
    made.check(Frame(0x123, b"any"))
    with pytest.raises(InvalidParams, match="names no DBC file"):
        made.message("DRIVE")
    assert made.to_json() == []


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"BO_ nonsense", "cannot be read as DBC"), (b"\x81\x8d", "cannot be read as DBC"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_it(content, words, tmp_path) -> None:
    path = tmp_path / "bad.dbc"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        CanDatabase("can0", path).load()
    assert str(path) in str(caught.value)


def test_a_file_of_any_size_is_not_read(tmp_path) -> None:
    path = tmp_path / "big.dbc"
    path.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match=f"has more than {MAX_BYTES} bytes"):
        CanDatabase("can0", path).load()


@settings(max_examples=200)
@given(value=floats(), least=floats(allow_nan=False), most=floats(allow_nan=False))
def test_a_number_passes_exactly_if_it_is_within_every_limit(value, least, most) -> None:
    limits = SignalLimit(min=least), SignalLimit(max=most)
    if least <= value <= most:
        check_bounds("S", value, None, *limits)
    else:
        with pytest.raises(LimitViolated):
            check_bounds("S", value, "V", *limits)


def test_the_simulated_nodes_speak_as_the_shipped_file_says() -> None:
    made = CanDatabase("can0", SHIPPED / "sim.dbc")
    plant = sim.Plant()
    (data,) = plant.publish()
    assert made.decode(data)["signals"]["Speed"] == {"value": plant.rpm, "unit": "rpm"}
    assert made.decode(data)["signals"]["Temperature"]["value"] == round(plant.temperature)
    command = made.frame("FAN_COMMAND", {"Speed": 40})
    (status,) = plant.hear(command)
    assert plant.fan == 40
    assert made.decode(status) == {
        "message": "FAN_STATUS",
        "signals": {"Speed": {"value": 40, "unit": "percent"}, "Rotation": {"value": 1200, "unit": "rpm"}},
    }
    assert list(plant.hear(data)) == []


WITHOUT = """
import sys
sys.modules["cantools"] = None
from pathlib import Path
from hearth.drivers.can.driver import Frame
from hearth.drivers.can.dbc import CanDatabase
from hearth.drivers.signals import SignalLimit
from hearth.errors import ConfigError, InvalidParams
path = Path(sys.argv[1])
shipped = CanDatabase("can0", path)
shipped.check(Frame(0x200, b"x"))
assert shipped.to_json() == []
try:
    shipped.frame("FAN_COMMAND", {})
except InvalidParams as error:
    print(error)
try:
    CanDatabase("can0", path, {"FAN_COMMAND.Speed": SignalLimit()}).check(Frame(0x200, b"x"))
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
def test_without_cantools_everything_goes_by_identifier_and_names_say_what_to_install() -> None:
    command = [sys.executable, "-c", WITHOUT, str(SHIPPED / "sim.dbc")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    assert len(told) == 2
    assert all("pip install 'hearthd[can]'" in line for line in told)


@pytest.mark.slow
def test_cantools_is_imported_by_no_board_that_names_no_other_file_than_the_shipped_one() -> None:
    code = (
        "import sys; from hearth.drivers.boards import *; open_board(load_profile('sim')); print('can' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert told.strip() == "False"
