"""`hearth signal`: every value that the board names, by its name, against a daemon on the simulated board."""

from __future__ import annotations

import pytest
from support.hearthd import Hearthd

from hearth.cli.signal import _limited

pytestmark = pytest.mark.slow

TWICE = """
name = "twice"
description = "Two chips that have a pump each."

[[gpio]]
label = "left"
driver = "sim"
names = ["PUMP", "DRAIN"]

[[gpio]]
label = "right"
driver = "sim"
names = ["PUMP"]
"""


def test_signals_are_listed_by_kind_and_by_pattern(local_cli):
    listed = local_cli("signal", "list", "--kind", "dac")
    assert [" ".join(line.split()) for line in listed.out.splitlines()] == [
        "name kind access value unit safe limit",
        "VALVE dac rw - volt 0 min 0, max 10, max_step 0.5, slew_per_s 5",
        "BIAS dac rw - volt 1.25 min 0.5, max 2.5",
    ]
    found = local_cli("signal", "list", "FAN.*", "--json").json
    assert [row["name"] for row in found["signals"]][:2] == ["FAN.run", "FAN.fault"]
    assert local_cli("signal", "list", "PLUMP").out == "there is none\n"


def test_a_signal_that_is_reserved_says_so_in_place_of_a_limit():
    assert _limited({"reserved": "chip select of FLASH", "limit": {}})["limit"] == "reserved: chip select of FLASH"
    assert _limited({"reserved": None, "limit": {}})["limit"] is None


def test_an_output_is_read_set_with_its_unit_and_set_for_a_time(local_cli):
    assert local_cli("signal", "set", "BIAS", "0.75 V", "--json").json["value"] == 0.75
    driven = local_cli("signal", "set", "FAN.ramp", "-1", "--hold", "0")
    assert (driven.code, "-1" in driven.out, "the session is held" in driven.err) == (0, True, True)
    noted = local_cli("signal", "set", "PUMP", "1")
    assert "goes to its safe state" in noted.err
    pulsed = local_cli("signal", "set", "RELAY", "1", "--for", "5ms")
    assert (pulsed.code, pulsed.err) == (0, "")
    read = local_cli("signal", "read", "RELAY", "--json").json
    assert (read["value"], read["quality"]) == (0, "good")


def test_a_watch_ends_with_its_time(local_cli):
    watched = local_cli("signal", "watch", "tank", "--min-change", "1000", "--timeout", "1ms", "--count", "2", "--json")
    assert (watched.json["changes"], watched.json["timed_out"]) == ([], True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["read", "PMUP"], 2, "board 'sim' has no signal 'PMUP'; did you mean gpio:sim:PUMP?"),
        (["set", "FAN.sped", "1"], 2, "did you mean modbus:plant:FAN.speed"),
        (["set", "DOOR", "1"], 2, "gpio:sim:DOOR: it cannot be set"),
        (["set", "BIAS", "1.5 A"], 2, "expected a value in volt, got '1.5 A'"),
        (["set", "BIAS", "9"], 1, "9 volt is beyond max = 2.5 volt"),
        (["set", "FAN.speed", "60 Hz"], 1, "60 hertz is beyond max = 50 hertz"),
        (["set", "BIAS", "1", "--for", "5ms"], 2, "dac:sim:BIAS has no pulses"),
        (["set", "PUMP", "1", "--for", "5"], 2, "expected a time such as 500ms, 2s or 1m"),
        (["set", "PUMP", "1", "--fro", "5ms"], 2, "unexpected extra arguments"),
        (["list", "--kind", "foo"], 2, "/kind"),
    ],
    ids=range(10),
)
def test_a_refusal_says_the_nearest_full_name_the_unit_or_the_bounds(local_cli, words, code, said):
    answer = local_cli("signal", *words)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


def test_a_name_that_two_signals_have_is_refused_with_both_full_names(cli, tmp_path, monkeypatch):
    (tmp_path / "twice.toml").write_text(TWICE)
    daemon = Hearthd(tmp_path, f'[board]\nprofile = "{tmp_path}/twice.toml"\n')
    daemon.start()
    try:
        monkeypatch.setenv("HEARTH_SOCKET", str(daemon.socket))
        refused = cli("signal", "set", "PUMP", "1")
        assert (refused.code, "'PUMP' means 2 signals: give gpio:left:PUMP or gpio:right:PUMP" in refused.err) == (
            2,
            True,
        )
        assert cli("signal", "set", "gpio:right:PUMP", "1", "--json").json["name"] == "gpio:right:PUMP"
        assert cli("signal", "read", "DRAIN", "--json").json["bus"] == "gpio:left"
        names = [row["name"] for row in cli("signal", "list", "--json").json["signals"]]
        assert {"gpio:left:PUMP", "DRAIN", "gpio:right:PUMP"} <= set(names)
    finally:
        daemon.end()
