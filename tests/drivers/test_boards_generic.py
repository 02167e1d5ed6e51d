"""What generic-linux offers of what was found, and whether a profile fits what was found."""

import os

import pytest
from support.machine import FilesMachine

from hearth._util.processes import HEARTHD
from hearth.drivers.boards import open_board
from hearth.drivers.boards.diagnose import mismatches, safety_gaps
from hearth.drivers.boards.discover import DeviceOrigin, survey
from hearth.drivers.boards.profile import load_profile, parse_profile
from hearth.drivers.gpio.machine import KERNEL, FoundChip, FoundLine
from hearth.drivers.i2c.machine import FoundAdapter
from hearth.drivers.i2c.tools import listed
from hearth.drivers.linux import survey as access
from hearth.drivers.linux.device_users import NO_HOLDERS, Holder, Holders
from hearth.drivers.linux.machine import HEADERS
from hearth.drivers.linux.survey import NAME_IT
from hearth.drivers.serial_port.machine import FoundPort

SIM = DeviceOrigin(("gpio", "platform"), "gpio-sim")
SOC = DeviceOrigin(("gpio", "platform"), "pinctrl-bcm2835", "devicetree")
USB = DeviceOrigin(("usb", "pci"), "ftdi_sio")
PCI = DeviceOrigin(("i2c", "pci"), "i801_smbus")


def chip(number, label, *names, used=None, origin=SIM, error=None):
    """A found chip; `used` maps offsets to consumers."""
    lines = tuple(FoundLine(offset, name, (used or {}).get(offset)) for offset, name in enumerate(names))
    return FoundChip(f"gpiochip{number}", f"/none/gpiochip{number}", origin, label, lines, error)


def adapter(number, name, origin=USB):
    return FoundAdapter(f"i2c-{number}", f"/none/i2c-{number}", origin, name)


def port(name, origin=USB, **facts):
    return FoundPort(name, f"/none/{name}", origin, **facts)


def found(*things):
    kinds = {"gpio": FoundChip, "i2c": FoundAdapter, "uart": FoundPort}
    return {word: tuple(thing for thing in things if isinstance(thing, kind)) for word, kind in kinds.items()}


def generic(*things, **discover):
    content = {"name": "g", "description": "g", "discover": discover or {"gpio": True, "i2c": True, "uart": True}}
    return survey(parse_profile(content, "g"), found(*things))


# --- what is offered ------------------------------------------------------------------------------------------------


def test_a_chips_lines_are_offered_under_the_kernels_names():
    (spec,) = generic(chip(3, "cell", "relay", "button")).of("gpio")
    assert (spec.label, spec.driver, spec.path) == ("cell", "gpiod", None)
    assert [(line.offset, line.name, line.safe, line.pull) for line in spec.lines] == [
        (0, "relay", "input", "as-is"),
        (1, "button", "input", "as-is"),
    ]


def test_lines_without_a_name_of_their_own_get_one_from_their_offset():
    (spec,) = generic(chip(0, "c", None, "-", "A", "NC", "A", "line5", None, "line0")).of("gpio")
    names = [line.name for line in spec.lines]
    assert names == ["line0@0", "line1", "A@2", "line3", "A@4", "line5", "line6", "line0"]
    assert len(set(names)) == len(names)


def test_a_line_in_use_is_reserved_naming_the_user():
    (spec,) = generic(chip(0, "c", "a", "b", "c", used={0: "heartbeat-led", 2: KERNEL})).of("gpio")
    assert [line.reserved for line in spec.lines] == [
        "in use by 'heartbeat-led' since before hearth started",
        None,
        "in use by the kernel since before hearth started",
    ]


def test_chips_of_one_label_go_by_their_nodes():
    chips = generic(chip(0, "twin", "a"), chip(1, "twin", "a"), chip(2, "other", "a"), chip(3, None, "a")).of("gpio")
    assert [(spec.label, spec.path) for spec in chips] == [
        ("gpiochip0", "/none/gpiochip0"),
        ("gpiochip1", "/none/gpiochip1"),
        ("other", None),
        ("gpiochip3", "/none/gpiochip3"),
    ]


def test_the_machines_own_pins_are_listed_and_not_offered():
    result = generic(chip(0, "pinctrl-sun50i", "PA0", origin=SOC))
    assert result.of("gpio") == ()
    (entry,) = result.undriven
    assert (entry.kind, entry.name, entry.label) == ("gpio", "gpiochip0", "pinctrl-sun50i")
    assert entry.path == "/none/gpiochip0"
    assert "belong to the machine itself" in entry.reason
    assert entry.cure == NAME_IT


@pytest.mark.parametrize("label", HEADERS)
def test_of_a_raspberrys_own_pins_those_on_the_header_are_offered(label):
    (shipped,) = load_profile(HEADERS[label]).of("gpio")
    names = [f"GPIO{n}" for n in range(54)]
    result = generic(chip(0, label, *names, used={17: "led0", 2: "i2c"}, origin=SOC))
    (spec,) = result.of("gpio")
    assert result.undriven == ()
    assert len(spec.lines) == 28
    assert spec.aliases == shipped.aliases
    assert spec.lines[17].reserved == "in use by 'led0' since before hearth started"
    assert spec.lines[2].reserved == "the data line of I2C bus 1"
    assert spec.lines[4] == shipped.lines[4]


def test_a_chip_that_cannot_be_opened_or_is_empty_is_listed_with_the_reason():
    result = generic(chip(0, None, error="EIO"), chip(1, "empty"), chip(2, None, error="ENODEV"))
    assert result.of("gpio") == ()
    assert [(entry.name, entry.reason) for entry in result.undriven] == [
        ("gpiochip0", "/none/gpiochip0 cannot be opened (EIO)"),
        ("gpiochip1", "it has no lines"),
        ("gpiochip2", "it went while it was looked at"),
    ]


def test_adapters_and_ports_are_offered_by_number_and_node():
    host = adapter(0, "SMBus I801 adapter at efa0", PCI)
    result = generic(adapter(4, "MCP2221 usb-i2c bridge"), host, port("ttyUSB0"))
    assert [(spec.bus, spec.driver) for spec in result.of("i2c")] == [(4, "i2c-dev")]
    assert [(spec.port, spec.path) for spec in result.of("uart")] == [("ttyUSB0", "/none/ttyUSB0")]
    assert [(entry.kind, entry.name, entry.label) for entry in result.undriven] == [
        ("i2c", "i2c-0", "SMBus I801 adapter at efa0")
    ]


def test_a_console_is_listed_and_not_offered():
    result = generic(port("ttyS0", console=True), port("ttyS1", terminal_of=("agetty (pid 6)",)))
    assert result.of("uart") == ()
    assert [entry.reason for entry in result.undriven] == [
        "the kernel writes its console to it",
        "it is the terminal of agetty (pid 6)",
    ]


def test_a_port_that_another_program_has_open_is_listed_and_not_offered():
    profile = parse_profile({"name": "g", "description": "g", "discover": {"uart": True}}, "g")
    holders = Holders({}, {"/none/ttyUSB0": (Holder(9, "gpsd"),)}, complete=True)
    result = survey(profile, found(port("ttyUSB0"), port("ttyUSB1")), holders)
    assert [spec.port for spec in result.of("uart")] == ["ttyUSB1"]
    (entry,) = result.undriven
    assert (entry.reason, entry.left_alone) == ("it is open in gpsd (pid 9)", True)


def test_a_port_without_a_device_is_offered_only_when_it_is_named():
    lines = [port(f"ttyS{n}", DeviceOrigin()) for n in range(3)]
    assert generic(*lines).of("uart") == ()
    assert [spec.port for spec in generic(*lines, uart=["ttyS[12]"]).of("uart")] == ["ttyS1", "ttyS2"]


def test_what_is_looked_for_can_be_narrowed_by_node_label_and_name():
    things = [chip(0, "cell", "a"), chip(1, "pca9554", "a"), adapter(1, "MCP2221 usb-i2c bridge"), adapter(2, "x")]
    result = generic(*things, gpio=["pca*"], i2c=["MCP*"])
    assert [spec.label for spec in result.of("gpio")] == ["pca9554"]
    assert [spec.bus for spec in result.of("i2c")] == [1]
    assert [spec.label for spec in generic(*things, gpio=["gpiochip0"]).of("gpio")] == ["cell"]
    assert generic(*things, sensors=True) == generic()


def test_what_the_profile_lists_itself_is_not_found_again():
    content = {
        "name": "x",
        "description": "x",
        "gpio": [
            {"label": "cell", "driver": "gpiod", "names": ["A"]},
            {"label": "mine", "driver": "gpiod", "path": "/none/gpiochip2", "names": ["A"]},
        ],
        "i2c": [{"bus": 1, "driver": "i2c-dev"}, {"bus": 9, "driver": "i2c-dev", "adapter": "bridge"}],
        "uart": [{"port": "gps", "driver": "serial", "path": "/none/ttyUSB0"}],
        "discover": {"gpio": True, "i2c": True, "uart": True},
    }
    result = survey(
        parse_profile(content, "x"),
        found(
            *(chip(n, label, "a") for n, label in enumerate(["cell", "other", "twin"])),
            *(adapter(n, name) for n, name in ((1, "a"), (2, "bridge"), (3, "c"))),
            *(port(f"ttyUSB{n}") for n in range(2)),
        ),
    )
    assert [spec.label for spec in result.of("gpio")] == ["other"]
    assert [spec.bus for spec in result.of("i2c")] == [3]
    assert [spec.port for spec in result.of("uart")] == ["ttyUSB1"]


def test_a_port_whose_name_the_profile_gives_to_another_is_listed_and_not_mixed_up_with_it():
    content = {
        "name": "x",
        "description": "x",
        "uart": [{"port": "ttyUSB0", "driver": "serial", "path": "/none/ttyACM0"}],
        "discover": {"uart": True},
    }
    result = survey(parse_profile(content, "x"), found(port("ttyUSB0"), port("ttyACM0")))
    assert result.of("uart") == ()
    assert [entry.reason for entry in result.undriven] == ["the profile gives its name to another port"]


def test_what_this_user_may_not_open_is_listed_with_the_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    monkeypatch.setattr(access, "user_name", lambda _uid: "ada")
    (tmp_path / "ttyUSB0").touch(mode=0o600)
    result = generic(FoundPort("ttyUSB0", str(tmp_path / "ttyUSB0"), USB))
    assert result.of("uart") == ()
    (entry,) = result.undriven
    assert entry.reason.startswith(f"ada may not open {tmp_path}/ttyUSB0")
    assert entry.cure.splitlines()[-1] == "sudo usermod -aG dialout ada   # then log in again"
    assert entry.to_json()["cure"] == entry.cure


def test_a_chip_that_may_not_be_opened_lacks_a_permission_before_it_is_anybodys(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    (tmp_path / "gpiochip0").touch(mode=0o600)
    closed = FoundChip("gpiochip0", str(tmp_path / "gpiochip0"), SOC, error="EACCES")
    (entry,) = generic(closed).undriven
    assert "may not open" in entry.reason
    assert not entry.left_alone


def test_a_board_of_what_is_found_opens_nothing_and_says_what_it_has(tmp_path):
    files = FilesMachine(tmp_path)
    files.device("pci0000:00/usb1/1-2:1.0", "usb", driver="i2c-tiny-usb")
    files.adapter(4, "i2c-tiny-usb at bus 001 device 005", "pci0000:00/usb1/1-2:1.0")
    files.device("pci0000:00/0000:00:1f.4", "pci", driver="i801_smbus")
    files.adapter(0, "SMBus I801 adapter at efa0", "pci0000:00/0000:00:1f.4")
    board = open_board(load_profile("generic-linux"), machine=files.machine)
    assert list(board.drivers) == ["i2c:4", "sensors", "board"]
    assert board.bus("i2c", "bus", 4) == "i2c:4"
    assert board.has("i2c")
    assert board.has("sensors")
    assert not board.has("gpio")
    told = listed(board.drivers["board"])
    (bus,) = told["buses"]
    assert (bus["bus"], bus["id"], bus["driver"], bus["path"]) == (4, "i2c:4", "i2c-dev", "/dev/i2c-4")
    assert [entry["name"] for entry in told["undriven"]] == ["i2c-0"]


# --- whether a profile fits -----------------------------------------------------------------------------------------

CONTENT = {
    "name": "cell",
    "description": "a cell",
    "gpio": [{"label": "cell", "driver": "gpiod", "names": ["relay", "button"]}],
    "i2c": [{"bus": 1, "driver": "i2c-dev", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
    "uart": [{"port": "gps", "driver": "serial", "path": "/none/ttyUSB0"}],
}
THERE = (chip(0, "cell", "relay", "button"), adapter(1, "bridge"), port("ttyUSB0"))


def problems(*things, holders=NO_HOLDERS, machine=None, **change):
    """What does not fit: key path, severity, problem."""
    profile = parse_profile({**CONTENT, **change}, "cell.toml")
    more = {} if machine is None else {"machine": machine}
    return [(each.key, each.severity, each.problem) for each in mismatches(profile, found(*things), holders, **more)]


def test_a_profile_fits_where_everything_is_there_and_free():
    assert problems(*THERE) == []
    assert problems(chip(0, "cell", "relay", "button", used={0: "hearth"}), *THERE[1:]) == []
    busy = Holders({}, {"/none/ttyUSB0": (Holder(7, HEARTHD),)}, complete=True)
    assert problems(*THERE, holders=busy) == []


def test_a_simulated_board_fits_everywhere():
    assert list(mismatches(load_profile("sim"), found(), NO_HOLDERS)) == []


def test_everything_that_is_missing_is_named_with_what_there_is():
    assert problems(chip(7, "other", "a"), adapter(3, "bridge"), port("ttyUSB1")) == [
        ("gpio[0].label", "fail", "a chip labelled 'cell' is not there; there is 'other' (gpiochip7)"),
        ("i2c[0].bus", "fail", "/dev/i2c-1 is not there; there is i2c-3 'bridge'"),
        ("uart[0].path", "fail", "/none/ttyUSB0 is not there; there is /none/ttyUSB1"),
    ]


def test_where_there_is_nothing_that_is_said_too():
    told = problems()
    assert [problem.rpartition("; ")[2] for _, _, problem in told] == [
        "there is none that could be opened",
        "there is none",
        "there is none",
    ]


def test_a_chip_that_may_be_one_that_could_not_be_opened_is_a_warning():
    told = problems(chip(0, None, error="EACCES"), *THERE[1:])
    assert [(key, severity) for key, severity, _ in told] == [("gpio[0].label", "warn")]


def test_a_label_that_two_chips_have_wants_a_path():
    twins = (chip(0, "cell", "relay", "button"), chip(1, "cell", "relay", "button"))
    told = problems(*twins, *THERE[1:])
    assert told == [
        ("gpio[0].label", "fail", "a chip labelled 'cell' is there 2 times: /none/gpiochip0, /none/gpiochip1")
    ]
    by_path = [{**CONTENT["gpio"][0], "path": "/none/gpiochip1"}]
    assert problems(*twins, *THERE[1:], gpio=by_path) == []
    elsewhere = [{**CONTENT["gpio"][0], "path": "/none/gpiochip5"}]
    assert problems(*twins, *THERE[1:], gpio=elsewhere)[0][:2] == ("gpio[0].path", "fail")


def test_a_line_that_a_process_holds_is_named_with_its_process():
    holders = Holders({("gpiochip0", 1): (Holder(33, "gpioset"),)}, {}, complete=True)
    told = problems(chip(0, "cell", "relay", "button", used={0: KERNEL, 1: "mine"}), *THERE[1:], holders=holders)
    assert told == [
        ("gpio[0].lines.relay", "fail", "line 0 is held by the kernel"),
        ("gpio[0].lines.button", "fail", "line 1 is held by 'mine', which is gpioset (pid 33)"),
    ]


def test_a_reserved_line_may_be_held_by_anybody():
    reserved = [{**CONTENT["gpio"][0], "lines": {"relay": {"reserved": "a LED of the kernel's"}}}]
    assert problems(chip(0, "cell", "relay", "button", used={0: "led0"}), *THERE[1:], gpio=reserved) == []


def test_names_that_stand_at_other_offsets_are_pointed_out():
    assert problems(chip(0, "cell", "button"), *THERE[1:]) == [
        ("gpio[0].lines.button", "fail", "the chip has the lines 0 to 0, and no 1"),
    ]
    assert problems(chip(0, "cell", "button", "relay"), *THERE[1:]) == [
        ("gpio[0].lines.relay", "warn", "the kernel gives this name to line 1, the profile to line 0"),
        ("gpio[0].lines.button", "warn", "the kernel gives this name to line 0, the profile to line 1"),
    ]


def test_an_adapter_is_found_by_its_name_wherever_it_is():
    def named(name, bus=1):
        return [{"bus": bus, "driver": "i2c-dev", "adapter": name}]

    both = (*THERE, adapter(2, "bridge"))
    assert problems(*THERE, i2c=named("bridge", 77)) == []
    assert problems(*both, i2c=named("bridge")) == []
    assert problems(*both, i2c=named("bridge", 77)) == [
        ("i2c[0].adapter", "fail", "an adapter called 'bridge' is there 2 times: i2c-1, i2c-2")
    ]
    assert problems(*THERE, i2c=named("x"))[0][:2] == ("i2c[0].adapter", "fail")


def test_an_address_of_a_kernel_driver_is_pointed_out(tmp_path):
    files = FilesMachine(tmp_path)
    files.client(1, "0048", "lm75")
    (told,) = problems(*THERE, machine=files.machine)
    assert told[:2] == ("i2c[0].device[0].addr", "warn")
    assert "'lm75'" in told[2]


def test_a_port_in_use_is_named():
    gpsd = Holders({}, {"/none/ttyUSB0": (Holder(9, "gpsd"), Holder(8, HEARTHD))}, complete=True)
    assert problems(*THERE, holders=gpsd) == [("uart[0].path", "fail", "/none/ttyUSB0 is open in gpsd (pid 9)")]
    getty = port("ttyUSB0", terminal_of=("agetty (pid 5)",))
    assert problems(*THERE[:2], getty) == [("uart[0].path", "fail", "/none/ttyUSB0 is the terminal of agetty (pid 5)")]
    console = port("ttyUSB0", console=True)
    assert problems(*THERE[:2], console) == [("uart[0].path", "fail", "the kernel writes its console to /none/ttyUSB0")]


def test_a_path_that_is_a_link_is_followed_and_one_to_something_else_is_left_to_its_owner(tmp_path):
    (tmp_path / "ttyUSB0").touch()
    (tmp_path / "by-id").symlink_to(tmp_path / "ttyUSB0")
    linked = [{"port": "gps", "driver": "serial", "path": str(tmp_path / "by-id")}]
    there = FoundPort("ttyUSB0", str(tmp_path / "ttyUSB0"), USB, console=True)
    (told,) = problems(*THERE[:2], there, uart=linked)
    assert "console" in told[2]
    assert problems(*THERE[:2], uart=linked) == []


def test_what_is_looked_for_and_may_not_be_opened_is_a_warning_and_what_is_left_alone_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    (tmp_path / "i2c-1").touch(mode=0o600)
    closed = FoundAdapter("i2c-1", str(tmp_path / "i2c-1"), USB, "bridge")
    host = adapter(0, "SMBus I801 adapter at efa0", PCI)
    (told,) = mismatches(load_profile("generic-linux"), found(closed, host, port("ttyS0", console=True)), NO_HOLDERS)
    assert (told.key, told.severity) == ("discover.i2c", "warn")
    assert "sudo usermod -aG i2c" in told.cure


def test_a_permission_that_lacks_is_a_warning_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    (tmp_path / "i2c-1").touch(mode=0o600)
    there = FoundAdapter("i2c-1", str(tmp_path / "i2c-1"), USB, "bridge")
    profile = parse_profile(CONTENT, "cell.toml")
    (told,) = mismatches(profile, found(THERE[0], there, THERE[2]), NO_HOLDERS)
    assert (told.key, told.severity) == ("i2c[0].bus", "warn")
    assert "sudo usermod -aG i2c" in told.cure
    assert told.to_json()["cure"] == told.cure


# --- the gaps in a profile's physical safety ------------------------------------------------------------------------

SAFE = {"safe": 0, "limit": {"max_on_ms": 1000}}
CHIP = "chip cell: "
FLOATS = f"{CHIP}no safe level, since nothing that hearth knows of holds a released line: "
UNLIMITED = f"{CHIP}no limit, so that a client may drive it for as long and as often as it likes: "
KEPT = f"{CHIP}stays driven when its session or hearthd ends: "
NO_BUTTON = ("halt.inputs", "warn", "no halt input, so that no button stops the outputs")


def gaps(machine, *things, lines=None, driver="gpiod", **more):
    """The gaps of a profile with a pump, a door and an e-stop: key path, severity, problem."""
    table = {"PUMP": SAFE, "DOOR": {"direction": "input"}, "STOP": {"direction": "input"}} | (lines or {})
    chips = [{"label": "cell", "driver": driver, "names": list(table), "lines": table}]
    content = {"name": "x", "description": "x", "gpio": chips, "halt": {"inputs": ["STOP"]}, **more}
    told = list(safety_gaps(parse_profile(content, "x.toml"), found(*things), NO_HOLDERS, machine))
    assert all(gap.cure for gap in told)
    return [(gap.key, gap.severity, gap.problem) for gap in told]


LIMIT = {"limit": {"max_rate_hz": 2}}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ({}, []),
        ({"A": {"safe": 1, **LIMIT}}, []),
        ({"A": {"safe": "input", "pull": "down", **LIMIT}}, []),
        ({"A": {"reserved": "the watchdog"}}, []),
        ({"A": {"direction": "input", "hold": "keep"}}, []),
        ({"A": {"safe": 1}}, [("gpio[0].limit", "warn", f"{UNLIMITED}A")]),
        ({"A": LIMIT}, [("gpio[0].safe", "warn", f"{FLOATS}A")]),
        (
            {"A": {"safe": "input", "pull": "none", "direction": "output"}},
            [("gpio[0].safe", "warn", f"{FLOATS}A"), ("gpio[0].limit", "warn", f"{UNLIMITED}A")],
        ),
        (
            {f"A{n}": {"safe": 1, "hold": "keep"} for n in range(8)},
            [
                ("gpio[0].limit", "warn", f"{UNLIMITED}A0, A1, A2, A3, A4, A5 and 2 more"),
                ("gpio[0].hold", "warn", f"{KEPT}A0, A1, A2, A3, A4, A5 and 2 more"),
            ],
        ),
    ],
)
def test_an_output_without_a_safe_level_or_a_limit_is_a_gap(tmp_path, lines, expected):
    assert gaps(FilesMachine(tmp_path).machine, lines=lines) == expected
    simulated = [(key, "note", problem) for key, _, problem in expected]
    assert gaps(FilesMachine(tmp_path / "sim").machine, lines=lines, driver="sim") == simulated


def test_outputs_without_a_halt_input_are_a_gap(tmp_path):
    machine = FilesMachine(tmp_path).machine
    assert gaps(machine, halt={}) == [NO_BUTTON]
    assert gaps(machine, halt={}, driver="sim") == [(NO_BUTTON[0], "note", NO_BUTTON[2])]
    assert gaps(machine, halt={}, lines={"PUMP": {"direction": "input"}}) == []


def test_the_lines_of_a_chip_that_was_found_have_no_safe_level_and_no_limit(tmp_path):
    told = gaps(FilesMachine(tmp_path).machine, chip(3, "adapter", "x", "y", origin=USB), discover={"gpio": True})
    assert [(key, severity, problem.rpartition(": ")[2]) for key, severity, problem in told] == [
        ("discover.gpio.safe", "warn", "x, y"),
        ("discover.gpio.limit", "warn", "x, y"),
    ]


def interlock(**condition):
    return [{"drives": "PUMP", "value": 1, "requires": [{"line": "DOOR", "value": 0}, condition]}]


LEVEL = {"level": {"kind": "mcp3221", "bus": 1, "addr": 0x4D}}
ADAPTER = [{"bus": 1, "driver": "i2c-dev"}]


def test_an_interlock_on_a_sensor_that_the_kernel_keeps_for_itself_is_open(tmp_path):
    files = FilesMachine(tmp_path)
    needs = {"sensors": LEVEL, "interlock": interlock(sensor="level", min=2, max=80)}
    assert gaps(files.machine, i2c=ADAPTER, **needs) == []
    files.client(1, "004d", "mcp3221")
    ((key, severity, problem),) = gaps(files.machine, i2c=ADAPTER, **needs)
    assert (key, severity) == ("interlock[0].requires[1].sensor", "fail")
    assert problem == (
        "sensor level cannot be read (its address 0x4d belongs to the kernel driver 'mcp3221'), so that the interlock "
        "is open: PUMP cannot be driven to 1"
    )
    assert gaps(files.machine, i2c=[{"bus": 1, "driver": "sim"}], **needs) == []


def test_an_interlock_on_a_sensor_that_the_kernel_does_not_have_is_open(tmp_path):
    files = FilesMachine(tmp_path)
    needs = {"discover": {"sensors": True}, "interlock": interlock(sensor="thermal/cpu", min=-40, max=80)}
    ((key, severity, problem),) = gaps(files.machine, **needs)
    assert (key, severity) == ("interlock[0].requires[1].sensor", "fail")
    assert "(the kernel has no such sensor now)" in problem
    zone = files.machine.sys / "class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu\n")
    (zone / "temp").write_text("40000\n")
    assert gaps(files.machine, **needs) == []
