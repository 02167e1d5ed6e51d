"""`hearth doctor`: what it finds, what it advises, what it exits with."""

from __future__ import annotations

import json
import os
import socket
import stat

import click
import pytest

from hearth.audit.record import Chain
from hearth.cli import doctor
from hearth.cli.doctor import answers, files, hardware
from hearth.cli.doctor.check import Check
from hearth.cli.doctor.files import check_log, check_socket, check_state, check_tpm

AT = 1_800_000_000.0


@pytest.fixture
def listening(tmp_path):
    with socket.socket(socket.AF_UNIX) as bound:
        path = tmp_path / "hearth.sock"
        bound.bind(str(path))
        path.chmod(0o660)
        yield path


def states(found):
    return [check.state for check in found]


# --- the TPM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tpm", "state", "words"),
    [
        ("/dev/null", "OK", "/dev/null can be used"),
        ("device:/dev/null", "OK", "/dev/null can be used"),
        ("/dev/tpm-that-is-not-there", "FAIL", "does not exist"),
        ("swtpm:path=/run/tpm", "OK", "is no device"),
    ],
)
def test_a_tpm_is_looked_at(monkeypatch, tpm, state, words):
    monkeypatch.setattr(files, "find_spec", lambda _name: object())
    (found,) = check_tpm(tpm)
    assert found.state == state
    assert words in found.finding


def test_a_tpm_that_this_user_may_not_use_and_a_missing_library_have_cures(monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda _name: None)
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)
    library, device = check_tpm("/dev/null")
    assert (library.state, device.state) == ("FAIL", "WARN")
    assert "hearthd[tpm]" in library.cure
    assert "into the group " in device.cure
    assert [*check_tpm(None)] == []


# --- the socket as a file -------------------------------------------------------------------------------------------


def test_a_socket_one_may_connect_to_is_ok_with_its_owner_and_mode(listening):
    (found,) = check_socket(listening, "--socket")
    assert found.state == "OK"
    assert f"{listening} (from --socket), mode 0660, user " in found.finding


def test_a_socket_that_is_not_there_is_a_warning(tmp_path):
    (found,) = check_socket(tmp_path / "none", "default")
    assert (found.state, found.cure) == ("WARN", "a daemon makes it when it starts")
    assert "(the default) does not exist" in found.finding


def test_a_path_that_leads_nowhere_fails_with_a_command_that_shows_why(tmp_path):
    (tmp_path / "file").touch()
    (found,) = check_socket(tmp_path / "file/hearth.sock", "HEARTH_SOCKET")
    assert found.state == "FAIL"
    assert found.cure.startswith("`namei -l ")


def test_a_file_that_is_no_socket_fails(tmp_path):
    (tmp_path / "file").touch()
    (found,) = check_socket(tmp_path / "file", "--socket")
    assert (found.state, found.cure) == ("FAIL", "name the daemon's socket with --socket")


def test_a_socket_of_another_group_names_the_group_and_the_command_to_join_it(listening, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    monkeypatch.setattr(files, "_group", lambda _gid: "hearth")
    monkeypatch.setattr(files, "_user", lambda _uid: "ada")
    assert files._joining("hearth", 990) == "join its group: sudo usermod -aG hearth ada, then log in again"
    (found,) = check_socket(listening, "default")
    assert found.state == "FAIL"
    assert found.finding.endswith("you may not connect")


def test_a_socket_of_roots_group_wants_a_group_of_its_own():
    assert "[server] socket_group" in files._joining("root", 0)


def test_a_socket_that_is_open_to_everybody_is_a_warning(listening):
    listening.chmod(0o666)
    ok, warning = check_socket(listening, "default")
    assert (ok.state, warning.state) == ("OK", "WARN")
    assert "0660" in warning.cure


def test_a_socket_where_others_can_put_another_fails_with_the_command_that_mends_it(listening):
    listening.parent.chmod(0o757)
    ok, failed = check_socket(listening, "--config")
    assert (ok.state, failed.state, failed.cure) == ("OK", "FAIL", f"`chmod o-w {listening.parent}`")


def test_ids_without_a_name_are_shown_as_numbers():
    assert (files._user(4_000_000_000), files._group(4_000_000_000)) == ("4000000000", "4000000000")


# --- the state directory and the log --------------------------------------------------------------------------------


def test_a_state_directory_that_can_be_made_is_ok(tmp_path):
    assert check_state(tmp_path) == Check("OK", "state", f"{tmp_path} can be written")
    assert check_state(tmp_path / "a/b").finding == f"{tmp_path}/a/b can be written (hearthd makes it)"


def test_a_state_directory_that_cannot_be_written_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    found = check_state(tmp_path)
    assert found.state == "WARN"
    assert "[audit] path" in found.cure


@pytest.fixture
def log(tmp_path):
    chain = Chain()
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(chain.seal({"event": "x", "n": n}, AT) for n in range(5)))
    return path


def test_a_log_whose_last_records_are_chained_is_ok(log, monkeypatch):
    assert check_log(log, expected=True).finding == f"{log}: the last 5 records are chained"
    monkeypatch.setattr(files, "LAST_RECORDS", 2)
    assert check_log(log, expected=True).finding == f"{log}: the last 2 records are chained"


def test_a_changed_record_fails_and_names_the_one_after_it(log):
    log.write_bytes(log.read_bytes().replace(b'"n":2', b'"n":9'))
    found = check_log(log, expected=True)
    assert (found.state, found.cure) == ("FAIL", f"`hearth audit verify {log}` says more; keep the file as it is")
    assert "record 4 does not follow" in found.finding


def test_a_missing_record_fails(log):
    content = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(content[:2] + content[3:]))
    assert check_log(log, expected=True).state == "FAIL"


def test_a_line_that_is_no_record_fails(log):
    log.write_bytes(log.read_bytes() + b"hello\n")
    assert "a line among the last 1 is no record" in check_log(log, expected=True).finding


def test_a_line_that_is_being_written_is_left_alone(log):
    log.write_bytes(log.read_bytes() + b'{"seq":6,"ts":')
    assert check_log(log, expected=True) == Check("OK", "log", f"{log}: the last 5 records are chained")


def test_a_log_that_is_not_there_is_a_warning_only_where_one_is_expected(tmp_path):
    assert check_log(tmp_path / "none", expected=True).state == "WARN"
    assert check_log(tmp_path / "none", expected=False).state == "OK"


def test_a_log_that_may_not_be_read_is_a_warning(tmp_path):
    found = check_log(tmp_path, expected=True)  # a directory: opening it fails, for root too
    assert (found.state, found.finding) == ("WARN", f"{tmp_path}: Is a directory")


# --- what the daemon tells ------------------------------------------------------------------------------------------


def test_a_wedged_and_a_missing_bus_fail_with_what_to_look_at():
    board = {
        "name": "b",
        "health": {
            "ok": False,
            "buses": {"i2c:1": {"state": "wedged", "reason": "slow"}, "gpio:x": {"state": "down"}},
            "audit": {"ok": False, "reason": "disk full"},
        },
        "undriven": [
            {"kind": "i2c", "name": "7", "reason": "no driver"},
            {"kind": "uart", "name": "ttyS0", "reason": "a console", "cure": "list it", "left_alone": True},
            {"kind": "gpio", "name": "gpiochip0", "reason": "you may not", "cure": "sudo"},
        ],
    }
    found = list(answers.board_checks(board))
    assert states(found) == ["OK", "FAIL", "FAIL", "WARN", "OK", "WARN", "FAIL"]
    assert found[1].finding == "i2c:1 is wedged: slow"
    assert "wiring" in found[1].cure
    assert found[2].finding == "gpio:x is down: no reason given"
    assert "permissions" in found[2].cure
    assert found[3].finding == "i2c 7: no driver"
    assert (found[4].finding, found[4].cure) == ("uart ttyS0: a console; not driven", None)
    assert found[5].cure == "sudo"
    assert found[6].finding == "the log cannot be written: disk full"


def test_a_daemon_that_is_halted_says_since_when_and_why_and_how_it_ends():
    halt = {
        "halted": True,
        "since": "2026-01-02T03:04:05Z",
        "reason": "smoke",
        "problem": "the latch x cannot be written",
    }
    board = {"name": "b", "health": {"halt": halt, "buses": {}, "audit": {"ok": True, "durability": "os"}}}
    halted, latch = [check for check in answers.board_checks(board) if check.name == "halt"]
    assert (halted.state, halted.finding) == ("WARN", "halted since 2026-01-02T03:04:05Z: smoke")
    assert "hearth halt reset" in halted.cure
    assert (latch.state, latch.finding) == ("FAIL", "the latch x cannot be written")


def test_findings_are_aligned_and_their_cures_below_them():
    found = [Check("OK", "a", "x"), Check("FAIL", "bcd", "y\x1b", "do z")]
    shown = [click.unstyle(line) for line in doctor.lines(found)]
    assert shown == ["OK    a    x", "FAIL  bcd  y\\x1b", "           → do z"]


# --- the machine's hardware -----------------------------------------------------------------------------------------

NOTHING = {"not_driven": None, "lack": None, "open_in": []}
LACK = {"reason": "ada may not open /dev/x (root:dialout, mode 0660)", "cure": "sudo usermod -aG dialout ada"}
OWN = {"reason": "the machine manages itself over it", "cure": "a profile that lists it drives it"}


def chip(**facts):
    return {
        "node": "gpiochip0",
        "label": "cell",
        "driver": "gpio-sim",
        "lines": 4,
        "used": [],
        "error": None,
        **NOTHING,
    } | facts


def adapter(**facts):
    return {"node": "i2c-1", "name": "bridge", "functionality": ["i2c", "quick"], **NOTHING} | facts


def port(**facts):
    return {"node": "ttyUSB0", "driver": "ftdi_sio", **NOTHING} | facts


def pwm(**facts):
    chip = {"node": "pwmchip0", "device": "1-0040", "driver": "pca9685-pwm", "channels": 17, "chardev": True}
    return {**chip, **NOTHING} | facts


def spi_device(**facts):
    return {"node": "spidev0.0", "name": "spidev", **NOTHING} | facts


def machine(*, profile=None, chips=(), adapters=(), ports=(), pwm=(), dacs=(), spi=(), hints=(), everybody_seen=True):
    found = {"chips": chips, "adapters": adapters, "ports": ports, "pwm": pwm, "dacs": dacs, "spi": spi, "hints": hints}
    found |= {"sensors": 3, "everybody_seen": everybody_seen}
    return found if profile is None else {**found, "profile": profile}


def told(**found):
    return [f"{check.state} {check.name} {check.finding}" for check in hardware.hardware_checks(machine(**found))]


NO_GAP = "OK safety cell has no gap that is checked here: outputs, interlocks, halt"
SENSORS = "OK sensors 3 kernel sensors (hwmon, IIO, thermal, power)"


def test_an_spi_device_is_told_with_who_has_it_open():
    holders = [{"pid": 7, "name": "ledd"}]
    assert told(spi=[spi_device()])[0] == "OK spi spidev0.0 (spidev)"
    assert (
        told(spi=[spi_device(name=None, open_in=holders)])[0] == "OK spi spidev0.0 (SPI device), open in ledd (pid 7)"
    )
    assert told(spi=[spi_device(lack=LACK)])[0] == f"WARN spi spidev0.0 (spidev); {LACK['reason']}"


def test_what_the_firmware_leaves_off_is_told_with_the_setting_that_switches_it_on():
    hint = "no SPI device is switched on; dtparam=spi=on in config.txt makes it"
    assert told(hints=[{"kind": "spi", "hint": hint}]) == [f"OK spi {hint}", SENSORS]


def test_a_machine_without_hardware_is_no_reason_to_worry():
    assert told() == [SENSORS]


def test_a_chip_is_told_with_its_lines_and_who_uses_them():
    used = [
        {"line": 1, "name": "led", "consumer": "heartbeat", "by": []},
        {"line": 3, "name": None, "consumer": "mine", "by": [{"pid": 7, "name": "gpioset"}]},
        {"line": 2, "name": "mmc", "consumer": None, "by": []},
    ]
    assert told(chips=[chip(used=used)])[0] == (
        'OK chip gpiochip0 "cell" (gpio-sim): 4 lines, 3 in use: '
        "1 (led) by heartbeat, 3 by mine, gpioset (pid 7), 2 (mmc) by the kernel"
    )
    assert told(chips=[chip()])[0].endswith("4 lines, none in use")


def test_of_many_lines_in_use_the_first_are_named_and_the_rest_are_counted():
    used = [{"line": n, "name": None, "consumer": "x", "by": []} for n in range(9)]
    assert told(chips=[chip(used=used)])[0].endswith("5 by x and 3 more")


def test_an_adapter_is_told_with_what_it_can_do():
    assert told(adapters=[adapter()])[0] == 'OK adapter i2c-1 "bridge": raw I2C'
    assert told(adapters=[adapter(functionality=["i2c", "10bit"])])[0].endswith(": raw I2C, 10-bit addresses")
    assert told(adapters=[adapter(functionality=["quick"])])[0].endswith(": SMBus only (quick)")
    assert told(adapters=[adapter(functionality=[])])[0].endswith(": SMBus only (nothing)")


def test_a_port_is_told_with_who_has_it_open():
    assert told(ports=[port()])[0] == "OK port ttyUSB0 (ftdi_sio)"
    holders = [{"pid": 8, "name": "gpsd"}, {"pid": 9, "name": "cat"}]
    assert told(ports=[port(driver=None, open_in=holders)])[0] == (
        "OK port ttyUSB0 (serial port), open in gpsd (pid 8), cat (pid 9)"
    )


def test_a_pwm_chip_is_told_with_its_device_and_its_interface():
    assert told(pwm=[pwm(), pwm(node="pwmchip2", chardev=False, open_in=[{"pid": 7, "name": "picocom"}])])[:2] == [
        'OK pwm pwmchip0 "1-0040" (pca9685-pwm): 17 channels, waveforms',
        'OK pwm pwmchip2 "1-0040" (pca9685-pwm): 17 channels, through /sys, open in picocom (pid 7)',
    ]


def test_a_converter_is_told_with_its_lasting_name_and_its_outputs():
    device = {
        "node": "iio:device0",
        "label": "mcp4725-i2c-1-60",
        "outputs": ["out_voltage0", "out_voltage1"],
        **NOTHING,
    }
    assert told(dacs=[device])[0] == 'OK dac iio:device0 "mcp4725-i2c-1-60": out_voltage0, out_voltage1'


def test_what_runs_the_machine_is_told_with_the_reason_why_it_is_left_alone():
    assert told(adapters=[adapter(not_driven=OWN, lack=LACK)])[0] == (
        'OK adapter i2c-1 "bridge": raw I2C; generic-linux does not drive it: the machine manages itself over it'
    )


def test_a_permission_that_lacks_is_a_warning_with_the_command():
    (warning, _) = hardware.hardware_checks(machine(ports=[port(lack=LACK)]))
    assert (warning.state, warning.cure) == ("WARN", "sudo usermod -aG dialout ada")
    closed = chip(label=None, lines=None, error="EACCES", lack=LACK)
    assert told(chips=[closed])[0].startswith("WARN chip gpiochip0 (gpio-sim), not opened: EACCES; ada may not open")


def test_a_chip_that_cannot_be_opened_for_another_reason_is_a_warning_too():
    (warning, _) = hardware.hardware_checks(machine(chips=[chip(label=None, lines=None, error="EIO")]))
    assert (warning.state, warning.finding) == ("WARN", "gpiochip0 (gpio-sim), not opened: EIO")
    assert "dmesg" in warning.cure


def test_what_a_profile_does_not_need_is_no_warning():
    profile = {"name": "cell", "wants": True, "problems": [], "safety": []}
    assert told(profile=profile, ports=[port(lack=LACK)]) == [
        "OK port ttyUSB0 (ftdi_sio); ada may not open /dev/x (root:dialout, mode 0660)",
        SENSORS,
        "OK profile cell fits this machine",
        NO_GAP,
    ]


def test_what_does_not_fit_a_profile_fails_with_its_place():
    problems = [
        {"key": "i2c[0].bus", "severity": "fail", "problem": "/dev/i2c-1 is not there", "cure": "plug it in"},
        {"key": "uart[0].path", "severity": "warn", "problem": "you may not open it", "cure": "one\ntwo"},
    ]
    profile = {"name": "cell", "wants": True, "problems": problems, "safety": []}
    found = list(hardware.hardware_checks(machine(profile=profile)))[1:]
    assert [(check.state, check.finding) for check in found] == [
        ("FAIL", "cell: i2c[0].bus: /dev/i2c-1 is not there"),
        ("WARN", "cell: uart[0].path: you may not open it"),
        ("OK", NO_GAP.removeprefix("OK safety ")),
    ]
    shown = [click.unstyle(line) for line in doctor.lines(found[:2])]
    assert shown[-2:] == ["               → one", "                 two"]


def test_a_simulated_board_needs_nothing():
    assert told(profile={"name": "sim", "wants": False, "problems": [], "safety": []})[1:] == [
        "OK profile sim needs nothing of this machine",
        NO_GAP.replace("cell", "sim"),
    ]


def test_a_gap_in_safety_is_a_warning_with_its_cure_but_a_note_where_nothing_moves():
    gaps = [
        {"key": f"gpio[{index}].safe", "severity": severity, "problem": "no safe level", "cure": "give it one"}
        for index, severity in enumerate(("note", "warn", "fail"))
    ]
    profile = {"name": "cell", "wants": False, "problems": [], "safety": gaps}
    found = list(hardware.hardware_checks(machine(profile=profile)))[2:]
    assert [(check.state, check.name, check.finding, check.cure) for check in found] == [
        ("OK", "safety", "cell: gpio[0].safe: no safe level", None),
        ("WARN", "safety", "cell: gpio[1].safe: no safe level", "give it one"),
        ("FAIL", "safety", "cell: gpio[2].safe: no safe level", "give it one"),
    ]


def test_that_not_all_processes_can_be_seen_is_said_where_it_matters():
    assert told(everybody_seen=False) == [SENSORS]
    assert told(everybody_seen=False, ports=[port()])[-1].startswith("OK holders of other users' processes")


@pytest.fixture
def gone(tmp_path):
    """A profile whose hardware no machine has."""
    path = tmp_path / "gone.toml"
    path.write_text(
        'name = "gone"\ndescription = "not here"\n[[gpio]]\nlabel = "no such chip"\ndriver = "gpiod"\nnames = ["A"]\n'
        '[[i2c]]\nbus = 255\ndriver = "i2c-dev"\n'
    )
    return str(path)


def test_this_machine_can_be_looked_at(gone):
    found = hardware.look_at_hardware(gone)
    assert found["profile"]["wants"] is True
    assert found["profile"]["source"] == f"board profile {gone}"
    assert found == json.loads(json.dumps(found))
    assert all(check.finding for check in hardware.hardware_checks(found))


# --- the command ----------------------------------------------------------------------------------------------------


def test_without_a_daemon_and_without_a_name_it_warns_and_exits_with_0(cli):
    answer = cli("doctor")
    assert answer.code == 0
    assert "WARN  daemon" in answer.out
    assert "`systemctl status hearth`" in answer.out


def test_a_user_without_a_home_gets_all_other_findings(cli, monkeypatch):
    for name in ("HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    answer = cli("doctor")
    assert answer.code == 0
    assert "uid 54321 has no HOME for the audit log" in answer.out
    assert "set [audit] path and key" in answer.out
    assert "kernel" in answer.out


@pytest.mark.parametrize("how", ["option", "environment", "config"])
def test_without_a_daemon_at_a_named_socket_it_exits_with_3(cli, tmp_path, monkeypatch, how):
    args = []
    if how == "option":
        args = ["--socket", tmp_path / "none"]
    elif how == "environment":
        monkeypatch.setenv("HEARTH_SOCKET", str(tmp_path / "none"))
    else:
        (tmp_path / "hearth.toml").write_text(f'[server]\nsocket = "{tmp_path}/none"\n')
        args = ["--config", tmp_path / "hearth.toml"]
    answer = cli("doctor", *args)
    assert answer.code == 3
    assert "FAIL  daemon" in answer.out
    assert f"{tmp_path}/none" in answer.out


def test_a_config_without_a_socket_means_the_default_one(cli, tmp_path):
    (tmp_path / "hearth.toml").write_text("")
    answer = cli("doctor", "--config", tmp_path / "hearth.toml")
    assert answer.code == 3
    assert "nowhere/hearth.sock (from --config)" in answer.out


def test_a_board_that_is_not_here_fails_with_what_is_missing(cli, gone):
    answer = cli("doctor", "--board", gone)
    assert answer.code == 1
    assert "gone: gpio[0].label: a chip labelled 'no such chip' is not there" in answer.out
    assert "FAIL  profile  gone: i2c[0].bus: /dev/i2c-255 is not there" in answer.out


def test_the_board_of_a_config_is_looked_for_unless_another_one_is_named(cli, tmp_path, gone):
    (tmp_path / "hearth.toml").write_text(f'[server]\nsocket = "{tmp_path}/none"\n[board]\nprofile = "{gone}"\n')
    assert "FAIL  profile  gone: " in cli("doctor", "--config", tmp_path / "hearth.toml").out
    named = cli("doctor", "--config", tmp_path / "hearth.toml", "--board", "sim")
    assert "OK    profile  sim needs nothing" in named.out


def test_as_json_the_machine_is_told_whole(cli, gone):
    answer = cli("doctor", "--json", "--board", gone)
    assert answer.code == 1
    found = answer.json["hardware"]
    parts = {
        "chips",
        "adapters",
        "ports",
        "pwm",
        "dacs",
        "cans",
        "spi",
        "hints",
        "sensors",
        "everybody_seen",
        "profile",
    }
    assert set(found) == parts
    assert {problem["key"] for problem in found["profile"]["problems"]} >= {"gpio[0].label", "i2c[0].bus"}


def test_a_board_that_is_no_profile_is_a_usage_error(cli):
    answer = cli("doctor", "--board", "rpi99")
    assert answer.code == 2
    assert "no board profile 'rpi99'" in answer.err


@pytest.mark.parametrize("name", ["hearth.toml", "board.toml", "state"])
def test_a_place_where_others_could_change_what_the_daemon_does_is_found_with_its_cure(cli, tmp_path, name):
    (tmp_path / "state").mkdir()
    (tmp_path / "board.toml").write_text('name = "b"\ndescription = "b"\n')
    text = f'[board]\nprofile = "{tmp_path}/board.toml"\n[audit]\npath = "{tmp_path}/state/audit.log"\n'
    (tmp_path / "hearth.toml").write_text(text)
    assert "trust" not in cli("doctor", "--config", tmp_path / "hearth.toml").out
    path = tmp_path / name
    path.chmod(path.stat().st_mode | 0o002)
    said = cli("doctor", "--config", tmp_path / "hearth.toml").out
    assert f"{path} is writable by every user: hearthd refuses to start" in said
    assert f"→ `chmod o-w {path}`" in said


def test_a_config_that_cannot_be_used_is_a_usage_error(cli, tmp_path):
    answer = cli("doctor", "--config", tmp_path / "none.toml")
    assert answer.code == 2
    assert "none.toml" in answer.err


def test_a_broken_log_makes_it_exit_with_1(cli, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/audit.log").write_bytes(b"nonsense\n")
    answer = cli("doctor", "--json")
    assert answer.code == 1
    assert answer.json["ok"] is False
    assert next(check for check in answer.json["checks"] if check["name"] == "log")["state"] == "FAIL"


@pytest.mark.slow
def test_with_a_healthy_daemon_all_is_ok(cli, daemon):
    answer = cli("doctor", "--config", daemon.config)
    assert answer.code == 0
    # Where coverage is measured the sandbox is wider by a directory, which doctor says.
    wider = {"WARN", "→"} if "HEARTH_SANDBOX_WRITE" in os.environ else set()
    assert {line.split()[0] for line in answer.out.splitlines()} == {"OK"} | wider
    for said in ("board    sim:", "i2c:1 is ready", "records are written (durability os)", "records are chained"):
        assert said in answer.out
    assert stat.S_ISSOCK(daemon.socket.stat().st_mode)


@pytest.mark.slow
def test_as_json_it_is_a_list_of_checks(local_cli):
    answer = local_cli("--json", "doctor").json
    assert answer["ok"] is True
    assert set(answer["checks"][0]) == {"state", "name", "finding", "cure"}


@pytest.mark.proof
def test_a_policy_that_refuses_us_fails_with_where_to_look(cli, own_daemon):
    daemon = own_daemon('[[policy]]\nname = "others"\nmatch = { uid = 65533 }\n')
    answer = cli("--socket", daemon.socket, "doctor")
    assert answer.code == 1
    assert "FAIL  session" in answer.out
    assert "[[policy]]" in answer.out


@pytest.mark.proof
def test_a_policy_that_hides_the_board_is_a_warning(cli, own_daemon):
    daemon = own_daemon('[[policy]]\nname = "few"\nmatch = { any = true }\ntools = ["gpio.*"]\n')
    answer = cli("--socket", daemon.socket, "doctor")
    assert answer.code == 0
    assert "WARN  board" in answer.out
