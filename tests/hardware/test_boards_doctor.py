"""`hearth doctor` on the kernel's own devices: what is there, what a user lacks, what somebody else holds."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import trio
from docs.player import acts, blocks, matches
from support.gpio_sim import gpio_sim
from support.hearthd import Hearthd
from support.i2c_stub import ADAPTER as STUB, kernel_driver, stub_bus
from support.mcp2221 import ADAPTER as MCP2221, Mcp2221
from support.usb_serial import usb_serial
from support.users import ordinary_user

import hearth
from hearth.cli.main import main

LIMIT_S = 60

HOLD = """
import sys, gpiod
chip, line, port = sys.argv[1:]
held = open(port, "rb", buffering=0) if port else None
request = gpiod.request_lines(chip, consumer="plc", config={line: None}) if line else None
print("held", flush=True)
sys.stdin.read()
"""

TERMINAL = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)   # a session leader's first terminal is its controlling one
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holding(*, chip="", line="", port=""):
    """Another process that holds a line or a port; yields its id."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, chip, line, port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.communicate(timeout=LIMIT_S)


@pytest.fixture
def cell():
    with gpio_sim("cell", ["relay", "button", "", "power"], hogs={3: ("board-power", "output-high")}) as chip:
        yield chip


@pytest.fixture
def doctor(capsys, monkeypatch):
    """Runs `hearth doctor ARGS…` where there is no daemon; returns the exit code and what it printed."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("STATE_DIRECTORY", "/nowhere")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/nowhere")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*args, json=False):
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["doctor", *(str(arg) for arg in args), *(["--json"] if json else [])])
        out, _ = capsys.readouterr()
        return exit_.value.code, orjson.loads(out) if json else out

    return run


def entry(told, kind, node):
    (found,) = [entry for entry in told["hardware"][kind] if entry["node"] == node]
    return found


def write(tmp_path, text):
    path = tmp_path / "cell.toml"
    path.write_text(f'name = "cell"\ndescription = "a cell"\n{text}')
    return path


def gpio(names, *, label="cell"):
    return f'[[gpio]]\nlabel = "{label}"\ndriver = "gpiod"\nnames = {names!r}\n'


def test_it_prints_what_is_on_this_machine(cell, doctor, tmp_path):
    with Mcp2221() as bridge, usb_serial(tmp_path) as adapter:
        bus, port = bridge.bus, adapter.node.removeprefix("/dev/")
        code, out = doctor()
    assert code == 0
    assert f'OK    chip     {cell.name} "cell" (gpio-sim): 4 lines, 1 in use: 3 (power) by board-power\n' in out
    assert f'OK    adapter  i2c-{bus} "{MCP2221}": raw I2C\n' in out
    assert f'OK    adapter  i2c-{stub_bus()} "{STUB}": SMBus only (quick, ' in out
    assert f"OK    port     {port} (cdc_acm)\n" in out
    assert "kernel sensors (hwmon, IIO, thermal, power)" in out


def test_it_takes_nothing_from_anybody(cell, doctor):
    with holding(chip=cell.path, line="relay", port="/dev/ttyS1"):
        assert doctor()[0] == 0
        assert doctor()[0] == 0


def test_a_line_and_a_port_that_another_process_holds_are_told_with_the_process(cell, doctor):
    with holding(chip=cell.path, line="relay", port="/dev/ttyS1") as pid:
        _, told = doctor(json=True)
        _, out = doctor()
    name = Path(sys.executable).resolve().name
    chip = entry(told, "chips", cell.name)
    relay, power = chip["used"]
    assert (chip["lines"], chip["names"]) == (4, ["relay", "button", "", "power"])
    assert (relay["line"], relay["name"], relay["consumer"]) == (0, "relay", "plc")
    assert [holder["pid"] for holder in relay["by"]] == [pid]
    assert (power["consumer"], power["by"]) == ("board-power", [])
    assert [holder["pid"] for holder in entry(told, "ports", "ttyS1")["open_in"]] == [pid]
    assert f"0 (relay) by plc, {relay['by'][0]['name']} (pid {pid})" in out
    assert f"ttyS1 (serial port), open in {relay['by'][0]['name']} (pid {pid})" in out
    assert relay["by"][0]["name"][:6] == name[:6]


def test_an_ordinary_user_is_told_the_command_for_each_node_he_may_not_open(cell, doctor):
    Path(cell.path).chmod(0o660)
    os.chown(cell.path, 0, 20)
    doctor()  # what it imports, root alone may read here
    with ordinary_user():
        code, told = doctor(json=True)
        _, out = doctor()
    assert code == 0
    lack = entry(told, "chips", cell.name)["lack"]
    assert lack["reason"].startswith(f"nobody may not open {cell.path} (root:")
    assert lack["cure"] == f"sudo usermod -aG {group(20)} nobody   # then log in again"
    assert f"{cell.name} (gpio-sim), not opened: EACCES; {lack['reason']}\n" in out
    assert f"→ {lack['cure']}\n" in out
    assert "of other users' processes" not in out or told["hardware"]["ports"]
    assert told["hardware"]["everybody_seen"] is False


def group(gid):
    import grp

    return grp.getgrgid(gid).gr_name


def test_a_node_that_is_roots_alone_is_told_with_a_whole_udev_rule(cell, doctor, tmp_path):
    Path(cell.path).chmod(0o600)
    os.chown(cell.path, 0, 0)
    with usb_serial(tmp_path) as adapter:
        port = adapter.node.removeprefix("/dev/")
        doctor()
        with ordinary_user():
            _, told = doctor(json=True)
    cures = {
        kind: entry(told, kind, node)["lack"]["cure"].splitlines()
        for kind, node in (("chips", cell.name), ("adapters", f"i2c-{stub_bus()}"), ("ports", port))
    }
    rule = 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"'
    assert cures["chips"] == [
        "sudo groupadd --system --force gpio",
        f"echo '{rule}' | sudo tee -a /etc/udev/rules.d/60-hearth.rules",
        "sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=gpio",
        "sudo usermod -aG gpio nobody   # then log in again",
    ]
    assert f'KERNEL=="{port}", GROUP="dialout"' in cures["ports"][1]
    assert cures["adapters"][-1] == "sudo usermod -aG i2c nobody   # then log in again"


def test_a_profile_that_fits_is_told_so(cell, doctor, tmp_path):
    path = write(
        tmp_path,
        gpio(["relay", "button"])
        + f'[[i2c]]\nbus = {stub_bus()}\ndriver = "i2c-dev"\nadapter = "{STUB}"\n'
        + '[[uart]]\nport = "modem"\ndriver = "serial"\npath = "/dev/ttyS1"\n',
    )
    code, out = doctor("--board", path)
    assert code == 0
    assert "OK    profile  cell fits this machine\n" in out


def test_a_profile_that_does_not_fit_fails_with_each_place_and_its_cure(cell, doctor, tmp_path):
    text = (
        gpio(["relay", "power", "", "lamp", "extra"])
        + gpio(["a"], label="gone")
        + '[[i2c]]\nbus = 250\ndriver = "i2c-dev"\n'
        + f'[[i2c]]\nbus = {stub_bus()}\ndriver = "i2c-dev"\n[[i2c.device]]\naddr = 0x48\nkind = "tmp102"\n'
        + '[[uart]]\nport = "modem"\ndriver = "serial"\npath = "/dev/ttyS1"\n'
        + '[[uart]]\nport = "none"\ndriver = "serial"\npath = "/dev/ttyUSB250"\n'
    )
    held = holding(chip=cell.path, line="relay", port="/dev/ttyS1")
    with held as pid, kernel_driver(stub_bus(), 0x48, "lm75"):
        code, told = doctor("--board", write(tmp_path, text), json=True)
    assert code == 1
    found = {problem["key"]: problem for problem in told["hardware"]["profile"]["problems"]}
    assert {key: problem["severity"] for key, problem in found.items()} == {
        "gpio[0].lines.relay": "fail",
        "gpio[0].lines.power": "warn",
        "gpio[0].lines.lamp": "fail",
        "gpio[0].lines.extra": "fail",
        "gpio[1].label": "fail",
        "i2c[0].bus": "fail",
        "i2c[1].device[0].addr": "warn",
        "uart[0].path": "fail",
        "uart[1].path": "fail",
    }
    assert f"(pid {pid})" in found["gpio[0].lines.relay"]["problem"]
    assert f"(pid {pid})" in found["uart[0].path"]["problem"]
    assert "'board-power'" in found["gpio[0].lines.lamp"]["problem"]
    assert "line 3, the profile to line 1" in found["gpio[0].lines.power"]["problem"]
    assert "'lm75'" in found["i2c[1].device[0].addr"]["problem"]
    assert all(problem["cure"] for problem in found.values())


def test_what_generic_linux_could_drive_and_this_user_may_not_open_is_a_warning_with_the_commands(cell, doctor):
    Path(cell.path).chmod(0o600)
    assert "OK    profile  generic-linux fits this machine\n" in doctor("--board", "generic-linux")[1]
    with ordinary_user():
        code, told = doctor("--board", "generic-linux", json=True)
        _, out = doctor("--board", "generic-linux")
    assert code == 0
    problems = told["hardware"]["profile"]["problems"]
    assert {problem["severity"] for problem in problems} == {"warn"}
    assert {"discover.gpio", "discover.i2c"} <= {problem["key"] for problem in problems}
    assert f"WARN  profile  generic-linux: discover.gpio: {cell.name}: nobody may not open {cell.path} " in out
    assert "→ sudo groupadd --system --force gpio\n" in out


PAGE = Path(__file__).parents[2] / "docs/reference/boards.md"


@contextlib.contextmanager
def cell_of_the_page(directory):
    """The hardware that the documented profile is for, and the profile; yields its path and the USB adapter."""
    lines = ["VALVE", "LAMP", "DOOR", "", "STOP", "POWER_OK"]
    with (
        gpio_sim("gripper-io", lines, hogs={5: ("board-power", "input")}),
        Mcp2221(),
        usb_serial(directory) as adapter,
    ):
        _, text, *_ = [block.text for block in blocks(PAGE.read_text()) if block.language == "toml"]
        link = "/dev/serial/by-id/usb-hearth_scale"
        assert f'path = "{link}"' in text
        profile = directory / "cell.toml"
        # The CAN interface of the page is there in the tests of CAN.
        before, _, after = text.replace(link, adapter.path).partition("[[can]]")
        profile.write_text(before + after[after.index("\n[") + 1 :])
        yield profile, adapter


def test_what_the_page_on_boards_shows_of_a_doctor_is_what_it_prints(doctor, tmp_path):
    (console,) = [block for block in blocks(PAGE.read_text()) if block.language == "console"]
    (act,) = acts([console])
    assert act.shell.startswith("hearth doctor --board ./cell.toml")
    with cell_of_the_page(tmp_path) as (profile, adapter), holding(port=adapter.node):
        code, out = doctor("--board", profile)
    assert code == act.code == 1
    assert matches(act.expected, out), out


def test_the_profile_on_the_page_on_boards_fits_and_opens(doctor, tmp_path):
    with cell_of_the_page(tmp_path) as (profile, _):
        code, out = doctor("--board", profile)
        assert (code, "OK    profile  cell fits this machine\n" in out) == (0, True)
        buses = trio.run(states, str(profile))
    assert buses == {"gpio:gripper-io": "ready", "i2c:3": "ready", "uart:scale": "ready"}


async def states(profile):
    with trio.fail_after(LIMIT_S):
        async with hearth.open_runtime(board=profile) as runtime, runtime.open_session() as session:
            buses = (await session.run("hw.board"))["health"]["buses"]
            return {bus: state["state"] for bus, state in buses.items() if ":" in bus}


def test_a_permission_that_a_profile_needs_is_a_warning(cell, doctor, tmp_path):
    path = write(tmp_path, gpio(["relay"]))
    path.chmod(0o644)
    doctor("--board", path)
    Path(cell.path).chmod(0o600)
    for directory in tmp_path.resolve().parents:
        if directory != Path("/tmp"):
            directory.chmod(directory.stat().st_mode | 0o055)
    tmp_path.chmod(0o755)
    with ordinary_user():
        code, told = doctor("--board", path, json=True)
    assert code == 0
    warnings = [problem for problem in told["hardware"]["profile"]["problems"] if problem["severity"] == "warn"]
    assert any("may not open" in problem["problem"] and "udev" in problem["cure"] for problem in warnings)


# --- beside a daemon ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemon(directory, profile):
    """A hearthd of its own interpreter, by whose arguments it is known, on a profile; and a peer with a session."""
    hearthd = Hearthd(directory, f'[board]\nprofile = "{profile}"\n')
    try:
        hearthd.start(prefix=["env"])
        peer = hearthd.peer()
        yield hearthd, peer, peer.open(max_risk_level=2)
    finally:
        hearthd.end()


def test_what_a_daemon_of_ours_holds_is_no_obstacle_to_its_own_profile(cell, doctor, tmp_path):
    with usb_serial(tmp_path) as adapter:
        uart = f'[[uart]]\nport = "scale"\ndriver = "serial"\npath = "{adapter.path}"\n'
        profile = write(tmp_path, gpio(["relay", "button"]) + uart)
        with daemon(tmp_path, profile) as (hearthd, peer, session):
            assert peer.run(session, "gpio.set", line="relay", value=1)["status"] == "SUCCESS"
            code, told = doctor("--config", hearthd.config, json=True)
            pid = hearthd.process.pid
        port = entry(told, "ports", adapter.node.removeprefix("/dev/"))
    relay, _ = entry(told, "chips", cell.name)["used"]
    assert (relay["consumer"], relay["by"]) == ("hearth", [{"pid": pid, "name": "hearthd"}])
    assert port["open_in"] == [{"pid": pid, "name": "hearthd"}]
    assert told["hardware"]["profile"]["problems"] == []
    assert (code, told["ok"]) == (0, True)


def test_a_daemon_on_generic_linux_is_told_with_what_it_leaves_alone(cell, doctor, tmp_path):
    login = subprocess.Popen(
        [sys.executable, "-c", TERMINAL, "/dev/ttyS2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert login.stdout.readline() == "held\n"
        profile = write(tmp_path, '[discover]\ngpio = true\ni2c = true\nuart = ["ttyS2"]\nsensors = true\n')
        with daemon(tmp_path, profile) as (hearthd, _peer, _session):
            code, out = doctor("--config", hearthd.config)
    finally:
        login.communicate(timeout=LIMIT_S)
    assert code == 0
    assert "OK    bus      gpio:cell is ready; " in out
    assert f"OK    bus      i2c:{stub_bus()} is ready; " in out
    assert "OK    bus      sensors is ready; " in out
    assert "OK    bus      uart ttyS2: it is the terminal of " in out
    assert "OK    profile  cell fits this machine\n" in out
