"""What is found on a machine, and what of it is nobody else's: read from files as other machines have them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import FilesMachine

from hearth._util.processes import HEARTHD
from hearth.drivers.boards.discover import DeviceOrigin, find
from hearth.drivers.gpio import machine as gpio
from hearth.drivers.gpio.machine import FoundChip, GpioMachine
from hearth.drivers.i2c import machine as i2c
from hearth.drivers.i2c.machine import FoundAdapter, I2cMachine, clients, functionality
from hearth.drivers.linux import survey as access
from hearth.drivers.linux.device_users import Holder, find_holders
from hearth.drivers.serial_port import machine as uart
from hearth.drivers.serial_port.machine import FoundPort
from hearth.drivers.uart.machine import UartMachine

USB = "pci0000:00/0000:00:14.0/usb1/1-2"


@pytest.fixture
def files(tmp_path):
    return FilesMachine(tmp_path)


def usb(files):
    files.device("pci0000:00/0000:00:14.0", "pci", driver="xhci_hcd", acpi="XHCI")
    return files.device(f"{USB}/1-2:1.0", "usb", driver="ftdi_sio")


# --- finding --------------------------------------------------------------------------------------------------------


def test_nodes_are_found_in_the_order_of_their_numbers(files):
    for name in ("gpiochip10", "gpiochip2", "gpiochip0"):
        files.chip(name, "platform/soc")
    for number in (10, 2, 1):
        files.adapter(number, f"adapter {number}")
    found = find(machine=files.machine)
    assert [chip.node for chip in found["gpio"]] == ["gpiochip0", "gpiochip2", "gpiochip10"]
    assert [(adapter.bus, adapter.label) for adapter in found["i2c"]] == [
        (1, "adapter 1"),
        (2, "adapter 2"),
        (10, "adapter 10"),
    ]


def test_only_the_kinds_that_are_asked_for_are_looked_for(files):
    files.chip("gpiochip0", "platform/soc")
    files.adapter(1, "a")
    assert find(["i2c"], files.machine).get("gpio", ()) == ()
    assert len(find(["i2c"], files.machine).get("i2c", ())) == 1
    assert find([], files.machine) == find(["sensors"], files.machine)


def test_what_has_no_node_is_not_there(files):
    files.adapter(1, "a", node=False)
    files.chip("gpiochip0", "platform/soc")
    (files.machine.dev / "gpiochip0").unlink()
    assert find(machine=files.machine) == find([], files.machine)


def test_a_machine_without_any_of_it_is_no_error(tmp_path):
    machine = FilesMachine(tmp_path / "a").machine
    (machine.proc / "tty/drivers").unlink()
    (machine.sys / "class/tty/console/active").unlink()
    assert find(machine=machine) == find([], machine)


def test_a_chip_that_cannot_be_opened_is_found_with_the_reason(files):
    files.chip("gpiochip0", "platform/soc")
    (chip,) = GpioMachine().find(files.machine)
    assert (chip.label, chip.lines, chip.path) == (None, (), str(files.machine.dev / "gpiochip0"))
    assert chip.error in ("ENODEV", "ENOTTY", "EINVAL")


def test_where_a_device_sits_is_told_from_the_device_up(files):
    files.device("pci0000:00/0000:00:14.0", "pci", driver="xhci_hcd", acpi="XHCI")
    files.device(f"{USB}/1-2:1.2/0003:04D8:00DD.0001", "hid", driver="mcp2221")
    files.device(f"{USB}/1-2:1.2", "usb", driver="usbhid")
    files.chip("gpiochip1", f"{USB}/1-2:1.2/0003:04D8:00DD.0001")
    (chip,) = GpioMachine().find(files.machine)
    assert chip.origin == DeviceOrigin(("gpio", "hid", "usb", "pci"), "mcp2221", None)


def test_who_described_a_device_is_told_for_the_machines_own(files):
    files.device("platform/soc/7e200000.gpio", "platform", driver="pinctrl-bcm2835", compatible="brcm,bcm2711-gpio")
    files.chip("gpiochip0", "platform/soc/7e200000.gpio")
    files.device("platform/INTC1055:00", "platform", driver="tigerlake-pinctrl", acpi="INTC1055:00")
    files.chip("gpiochip1", "platform/INTC1055:00")
    soc, laptop = GpioMachine().find(files.machine)
    assert (soc.origin.described_by, soc.origin.compatible) == ("devicetree", "brcm,bcm2711-gpio")
    assert (laptop.origin.described_by, laptop.origin.driver) == ("acpi", "tigerlake-pinctrl")


def test_a_card_is_described_by_what_it_brings_along_and_not_by_what_it_is_plugged_into(files):
    """A Raspberry Pi 5's header hangs on a PCI device whose parts the device tree has; a graphics card's does not."""
    rp1 = "platform/axi/1000120000.pcie/pci0002:00/0002:01:00.0"
    files.device("platform/axi/1000120000.pcie", "platform", driver="brcm-pcie", compatible="brcm,bcm2712-pcie")
    files.device(rp1, "pci", driver="rp1")
    files.device(f"{rp1}/1f00074000.i2c", "platform", driver="i2c_designware", compatible="snps,designware-i2c")
    files.adapter(1, "Synopsys DesignWare I2C adapter", f"{rp1}/1f00074000.i2c")
    card = "platform/axi/1000120000.pcie/pci0002:00/0002:02:00.0"
    files.device(card, "pci", driver="some-card")
    files.adapter(2, "some card's bus", card)
    header, other = find(["i2c"], files.machine).get("i2c", ())
    assert header.origin.described_by == "devicetree"
    assert I2cMachine().reason(header, ()) is None
    assert other.origin.described_by is None
    assert "own devices" in I2cMachine().reason(other, ())


def test_serial_ports_are_those_of_serial_drivers_with_a_uart_in_them(files):
    files.device("platform/serial8250/port0", "serial-base", driver="port")
    files.device("platform/serial8250", "platform", driver="serial8250")
    for name, number, kind in (("ttyS0", "4:64", "4"), ("ttyS1", "4:65", "0"), ("ttyS10", "4:74", "4")):
        files.port(name, number, "platform/serial8250/port0", type_=kind)
    usb(files)
    files.port("ttyUSB0", "188:0", f"{USB}/1-2:1.0")
    files.port("tty1", "4:1", None)
    files.port("ttyU0", "4:200", None)
    ports = list(uart.find_ports(files.machine))
    assert [port.node for port in ports] == ["ttyS0", "ttyS10", "ttyU0", "ttyUSB0"]
    assert [port.origin.driver for port in ports] == ["serial8250", "serial8250", None, "ftdi_sio"]
    assert ports[2].origin == DeviceOrigin()


def test_a_console_and_a_terminal_are_told_with_whose_they_are(files):
    for number in (0, 1, 2):
        files.port(f"ttyS{number}", f"4:{64 + number}", "platform/serial", type_="4")
    files.console("tty0 ttyS0")
    files.process(612, "agetty", terminal=4 << 8 | 65)
    files.process(613, "a) (b", terminal=4 << 8 | 65)
    files.process(614, "sleep")
    zero, one, two = uart.find_ports(files.machine)
    assert (zero.console, zero.terminal_of) == (True, ())
    assert (one.console, one.terminal_of) == (False, ("agetty (pid 612)", "a) (b (pid 613)"))
    assert (two.console, two.terminal_of) == (False, ())


LOGIN = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)   # a session leader's first terminal is its controlling one
print("held", flush=True)
sys.stdin.read()
"""


def test_the_terminal_of_a_real_process_is_seen(tmp_path):
    """As the kernel encodes it: pseudo-terminals have a major number of their own, and there may be many."""
    near, far = os.openpty()
    path = os.ttyname(far)
    process = subprocess.Popen(
        [sys.executable, "-c", LOGIN, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        number = os.stat(path).st_rdev
        files = FilesMachine(tmp_path)
        (files.machine.proc / "tty/drivers").write_text("pty_slave /dev/pts 136 0-1048575 serial\n")
        files.port("ttyX", f"{os.major(number)}:{os.minor(number)}", None)
        (files.machine.proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        (port,) = uart.find_ports(files.machine)
        (terminal,) = port.terminal_of
        assert terminal.endswith(f"(pid {process.pid})")
    finally:
        process.communicate(timeout=30)
        os.close(near)
        os.close(far)


def test_addresses_that_a_kernel_driver_owns_are_told_with_the_driver(files):
    files.client(1, "0048", "lm75")
    files.client(1, "0050", None)
    files.client(1, "a148", "eeprom")
    files.client(2, "0048", "tmp102")
    assert clients(1, files.machine) == {0x48: "lm75", 0x148: "eeprom"}


def test_what_an_adapter_can_do_is_not_told_by_what_is_none(tmp_path):
    (tmp_path / "file").touch()
    assert functionality(str(tmp_path / "file")) is None
    assert functionality(str(tmp_path / "none")) is None


# --- what is kept off -----------------------------------------------------------------------------------------------

PLUGGED = ("hid", "usb", "pci")
SOC = "its pins belong to the machine itself"


@pytest.mark.parametrize(
    ("origin", "driven"),
    [
        (DeviceOrigin(("gpio", "platform"), "gpio-sim"), True),
        (DeviceOrigin(("gpio", "platform"), "gpio-aggregator", "devicetree"), True),
        (DeviceOrigin(("gpio", *PLUGGED), "mcp2221"), True),
        (DeviceOrigin(("gpio", "i2c", "i2c"), "pca953x"), True),
        (DeviceOrigin(("gpio", "i2c", "i2c", "platform"), "pca953x", "devicetree"), True),
        (DeviceOrigin(("gpio", "spi", "platform"), "74x164", "devicetree"), True),
        (DeviceOrigin(("gpio", "platform"), "pinctrl-bcm2835", "devicetree"), False),
        (DeviceOrigin(("gpio", "platform"), "tigerlake-pinctrl", "acpi"), False),
        (DeviceOrigin(("gpio", "pci"), "gpio-ml-ioh"), False),
        (DeviceOrigin(("gpio", "platform"), None), True),
    ],
)
def test_a_chip_of_the_machine_itself_is_kept_off_and_one_that_was_added_is_not(origin, driven):
    reason = GpioMachine().reason(FoundChip("gpiochip0", "/dev/gpiochip0", origin, "soc"), ())
    assert (reason is None) is driven
    assert driven or reason.startswith(SOC)


PLATFORM = DeviceOrigin(("i2c", "platform"), "i2c-bcm2835", "devicetree", "brcm,bcm2835-i2c")
PCI = DeviceOrigin(("i2c", "pci"), "i801_smbus")


@pytest.mark.parametrize(
    ("name", "origin", "reason"),
    [
        ("SMBus stub driver", DeviceOrigin(("i2c",)), None),
        ("MCP2221 usb-i2c bridge", DeviceOrigin(("i2c", *PLUGGED)), None),
        ("CP2112 SMBus Bridge on hidraw0", DeviceOrigin(("i2c", *PLUGGED)), None),
        ("i2c-tiny-usb at bus 001 device 005", DeviceOrigin(("i2c", "usb", "pci"), "i2c-tiny-usb"), None),
        ("bcm2835 (i2c@7e804000)", PLATFORM, None),
        ("Synopsys DesignWare I2C adapter", PLATFORM, None),
        (
            "Synopsys DesignWare I2C adapter",
            DeviceOrigin(("i2c", "platform", "pci"), "i2c_designware", "devicetree"),
            None,
        ),
        ("i2c-1-mux (chan_id 0)", DeviceOrigin(("i2c", "i2c", "i2c", "platform"), None, "devicetree"), None),
        ("SMBus I801 adapter at efa0", PCI, "memory modules"),
        ("SMBus PIIX4 adapter port 0 at 0b00", PCI, "memory modules"),
        ("SMBus PIIX4 adapter port 0 at 0b00", DeviceOrigin(("i2c",)), "memory modules"),
        ("SiS96x SMBus adapter at 0x1000", PCI, "memory modules"),
        ("SMBus nForce2 adapter at 1c00", PCI, "memory modules"),
        ("SMBus CMI adapter cmi", DeviceOrigin(("i2c", "platform"), None, "acpi"), "memory modules"),
        ("i915 gmbus dpa", PCI, "display"),
        ("AUX A/DDI A/PHY A", PCI, "display"),
        ("AMDGPU DM i2c hw bus 0", PCI, "display"),
        ("AMDGPU SMU 0", PCI, "display"),
        ("Radeon i2c bit bus 0x90", PCI, "display"),
        ("NVIDIA i2c adapter 1 at 1:00.0", PCI, "display"),
        ("nvkm-0000:01:00.0-bus-0000", PCI, "display"),
        ("DPDDC-A", PCI, "display"),
        ("card0-DP-1", PCI, "display"),
        ("DesignWare HDMI", DeviceOrigin(("i2c", "platform"), "dwhdmi", "devicetree"), "display"),
        ("fef04500.i2c", PLATFORM, "display"),
        ("107d508200.i2c", PLATFORM, "display"),
        ("x", DeviceOrigin(("i2c", "platform"), None, "devicetree", "brcm,bcm2711-hdmi-i2c"), "display"),
        ("Synopsys DesignWare I2C adapter", DeviceOrigin(("i2c", "platform"), "i2c_designware", "acpi"), "own devices"),
        ("Synopsys DesignWare I2C adapter", DeviceOrigin(("i2c", "platform", "pci"), "i2c_designware"), "own devices"),
        (None, PCI, "own devices"),
        (None, DeviceOrigin(("i2c",)), None),
    ],
)
def test_an_adapter_that_the_machine_lives_on_is_kept_off_with_the_reason(name, origin, reason):
    told = I2cMachine().reason(FoundAdapter("i2c-0", "/dev/i2c-0", origin, name), ())
    assert told is None if reason is None else reason in told


def test_a_port_that_is_a_console_or_a_terminal_is_kept_off():
    def reason(**facts):
        return UartMachine().reason(FoundPort("ttyS0", "/dev/ttyS0", DeviceOrigin(), **facts), ())

    assert reason() is None
    assert "console" in reason(console=True)
    assert reason(terminal_of=("agetty (pid 5)",)) == "it is the terminal of agetty (pid 5)"


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node that this process may not open, whoever it runs as."""
    monkeypatch.setattr(os, "access", lambda *_args, **_options: False)
    path = tmp_path / "ttyUSB0"
    path.touch()

    def make(group, mode):
        path.chmod(mode)
        real = os.stat(path)
        monkeypatch.setattr(Path, "stat", lambda _path: os.stat_result((real.st_mode, *real[1:4], 0, group, *real[6:])))
        return str(path)

    monkeypatch.setattr(access, "user_name", lambda uid: "root" if uid == 0 and os.geteuid() else "ada")
    monkeypatch.setattr(access, "group_name", lambda gid: {0: "root", 20: "dialout"}[gid])
    return make


def test_a_node_of_a_group_is_opened_by_joining_the_group(node):
    path = node(20, 0o660)
    lack = uart.ACCESS.lack_of(path)
    assert lack.cure == "sudo usermod -aG dialout ada   # then log in again"
    assert f"may not open {path}" in lack.reason
    assert "dialout, mode 0660" in lack.reason


@pytest.mark.parametrize(("group", "mode"), [(0, 0o600), (0, 0o660), (20, 0o600), (20, 0o640)])
def test_a_node_that_no_group_may_use_is_opened_by_a_rule_that_is_told_in_full(node, group, mode):
    steps = uart.ACCESS.lack_of(node(group, mode)).cure.splitlines()
    rule = 'SUBSYSTEM=="tty", KERNEL=="ttyUSB0", GROUP="dialout", MODE="0660"'
    assert steps == [
        "sudo groupadd --system --force dialout",
        f"echo '{rule}' | sudo tee -a /etc/udev/rules.d/60-hearth.rules",
        "sudo udevadm control --reload && sudo udevadm trigger --subsystem-match=tty",
        "sudo usermod -aG dialout ada   # then log in again",
    ]


@pytest.mark.parametrize(("kind", "subsystem"), [("gpio", "gpio"), ("i2c", "i2c-dev")])
def test_the_rule_is_for_all_nodes_of_the_kind(kind, subsystem):
    _, rule, reload = {"gpio": gpio, "i2c": i2c}[kind].ACCESS.commands(f"/dev/{kind}0")
    assert f'SUBSYSTEM=="{subsystem}"' in rule
    assert f'GROUP="{kind}"' in rule
    assert reload.endswith(f"--subsystem-match={subsystem}")


def test_nothing_lacks_for_a_node_that_may_be_opened_or_is_gone(tmp_path):
    (tmp_path / "x").touch()
    assert gpio.ACCESS.lack_of(str(tmp_path / "x")) is None
    assert gpio.ACCESS.lack_of(str(tmp_path / "none")) is None


# --- who holds what -------------------------------------------------------------------------------------------------

HOLD = "import sys; held = open(sys.argv[1], 'rb'); print('held', flush=True); sys.stdin.read()"


@pytest.fixture
def holding(tmp_path):
    """Starts a process that has a file open; `argv` stands before the rest, as a daemon's would."""
    path = tmp_path / "dev/ttyUSB0"
    path.parent.mkdir()
    path.touch()
    started = []

    def start(*argv):
        command = [sys.executable, *argv, "-c", HOLD] if not argv else [sys.executable, *argv]
        process = subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process, str(path)

    yield start
    for process in started:
        process.communicate(timeout=30)


def test_a_process_that_has_a_node_open_is_named(holding, tmp_path):
    process, path = holding()
    found = find_holders(Path("/proc"), tmp_path / "dev")
    (holder,) = found.nodes[path]
    assert holder.pid == process.pid
    assert str(holder) == f"{Path(f'/proc/{process.pid}/comm').read_text().strip()} (pid {process.pid})"


def test_a_daemon_of_ours_goes_by_its_own_name(holding, tmp_path):
    (tmp_path / "hearthd").write_text(HOLD)
    process, path = holding(str(tmp_path / "hearthd"))
    assert find_holders(Path("/proc"), tmp_path / "dev").nodes[path] == (Holder(process.pid, HEARTHD),)


def test_what_this_process_holds_itself_does_not_count(tmp_path):
    with (tmp_path / "x").open("w"):
        assert not find_holders(Path("/proc"), tmp_path).nodes


def test_processes_that_end_meanwhile_and_those_of_others_are_passed_over(tmp_path, monkeypatch):
    proc = tmp_path / "proc"
    for pid in ("4000001", "4000002"):
        (proc / pid / "fd").mkdir(parents=True)
        (proc / pid / "cmdline").write_bytes(b"x\0")
        (proc / pid / "comm").write_text("x\n")
    (proc / "4000003").mkdir()
    listing = Path.iterdir

    def refused(path):
        if path.parts[-2:] == ("4000002", "fd"):
            raise PermissionError
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = find_holders(proc, tmp_path / "dev")
    assert (dict(found.nodes), dict(found.lines), found.complete) == ({}, {}, False)


def test_the_lines_of_a_request_are_read_from_its_descriptor(tmp_path):
    process = tmp_path / "proc/4000001"
    for directory in ("fd", "fdinfo"):
        (process / directory).mkdir(parents=True)
    (process / "cmdline").write_bytes(b"gpioset\0")
    (process / "comm").write_text("gpioset\n")
    (process / "fdinfo/5").write_text("pos:\t0\ngpio-chip:\tgpiochip3\ngpio-line:\t7\ngpio-line:\t12\n")
    (process / "fdinfo/6").write_text("pos:\t0\n")
    for fd in ("5", "6", "7"):
        (process / "fd" / fd).symlink_to("anon_inode:gpio-line")
    holder = (Holder(4000001, "gpioset"),)
    found = find_holders(tmp_path / "proc", tmp_path / "dev")
    assert found.lines == {("gpiochip3", 7): holder, ("gpiochip3", 12): holder}
    assert found.complete
