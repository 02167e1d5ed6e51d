"""Benches: a driver of each kind on a simulated device, or on one of the test kernel's, with what measures it."""

from __future__ import annotations

import os
import termios
import tty
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from attrs import frozen
from support import guarded, modbus_server
from support.mcp2221_chip import Memory

from hearth.drivers.base import Style
from hearth.drivers.can.linux import LinuxCan
from hearth.drivers.can.sim import SimCan
from hearth.drivers.dac.driver import DacChannelSpec
from hearth.drivers.dac.linux import LinuxDac
from hearth.drivers.dac.sim import SimDac
from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.gpio.sim import SimGpio
from hearth.drivers.gpio.spec import LineSpec
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.i2c.sim import Eeprom, SimI2c, SlowTemperature, Tmp102
from hearth.drivers.modbus.driver import ModbusDevice
from hearth.drivers.modbus.line import ModbusLine
from hearth.drivers.modbus.network import TcpPort
from hearth.drivers.modbus.sim import SimModbusPort
from hearth.drivers.pwm.driver import ChannelSpec, ServoSpec
from hearth.drivers.pwm.linux import LinuxPwm
from hearth.drivers.pwm.sim import SimPwm
from hearth.drivers.serial_port.pty import SimUart
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.drivers.simulated import clock_for
from hearth.drivers.spi.driver import SpiSettings
from hearth.drivers.spi.linux import LinuxSpi
from hearth.drivers.spi.sim import Loopback, RegisterChip, SimSpi


@frozen(eq=False)
class GpioBench:
    """A chip under test, and the world outside it."""

    driver: object
    line: int
    other: int
    push: object
    """push(line, level): drive the line from outside, a `level` of None lets go."""
    seen: object
    """seen(line): the level that a voltmeter shows."""

    def guarded(self, driver):
        """Return the guarded driver."""
        return guarded.lines(driver, GPIO_LINES)


GPIO_LINES = [
    *(LineSpec(n, f"GPIO{n}") for n in range(5)),
    LineSpec(5, "GPIO5", safe=1),
    LineSpec(6, "GPIO6", hold="keep"),
    LineSpec(7, "GPIO7", active_low=True),
    LineSpec(8, "GPIO8", debounce_us=1000),
    LineSpec(9, "GPIO9", pull="up"),
    LineSpec(10, "GPIO10", initial=1),
]


@contextmanager
def sim_gpio(style):
    driver = SimGpio("bench", GPIO_LINES, style=style)
    yield GpioBench(
        driver, 3, 5, lambda n, level: driver.let_go(n) if level is None else driver.push(n, level), driver.level
    )


@contextmanager
def kernel_gpio(style):
    """A simulated chip of the kernel's: it has nothing that could push against an output."""
    from support.gpio_sim import gpio_sim

    with gpio_sim("bench", len(GPIO_LINES)) as chip:
        driver = LinuxGpio("bench", GPIO_LINES, blocking=style is Style.THREAD)
        yield GpioBench(driver, 3, 5, lambda n, level: chip.push(n, level or 0), chip.value)


GPIO_BENCHES = {
    "sim-inline": lambda: sim_gpio(Style.INLINE),
    "sim-thread": lambda: sim_gpio(Style.THREAD),
}
if os.environ.get("HEARTH_GUEST") == "1":
    GPIO_BENCHES["kernel-inline"] = lambda: kernel_gpio(Style.INLINE)
    GPIO_BENCHES["kernel-thread"] = lambda: kernel_gpio(Style.THREAD)


PWM_CHANNELS = [
    ChannelSpec(0, "PLAIN", min_period_us=5_000, max_period_us=40_000),
    ChannelSpec(1, "SERVO", servo=ServoSpec(500, 2_500, -90, 90), safe=0),
    ChannelSpec(2, "PULSE", unit="us", safe=1_000),
    ChannelSpec(3, "KEPT", hold="keep"),
    ChannelSpec(4, "INVERSED", polarity="inversed"),
    ChannelSpec(5, "RESERVED", reserved="the fan of the power supply"),
]
"""All with a period of 20 ms."""


@frozen(eq=False)
class PwmBench:
    """A PWM chip under test with `PWM_CHANNELS`, and an oscilloscope."""

    driver: object
    pulse_us: object
    """pulse_us(channel): the time within a period for which a channel is high."""
    step_us: float = 0.001
    """The chip gives out pulses that are up to this much shorter."""


@contextmanager
def sim_pwm(style):
    driver = SimPwm("bench", PWM_CHANNELS, style=style)

    def pulse_us(channel):
        return driver.high(channel) * driver.pulses(channel).period_ns / 1000

    yield PwmBench(driver, pulse_us)


@contextmanager
def kernel_pwm(chardev):
    """A PCA9685 on the kernel's SMBus simulator: the oscilloscope is its registers."""
    from support.pca9685 import pca9685

    with pca9685() as chip:
        yield PwmBench(LinuxPwm(chip.label, PWM_CHANNELS, chardev=chardev), chip.pulse_us, 2 * 20_000 / 4096)


PWM_BENCHES = {"sim-inline": lambda: sim_pwm(Style.INLINE), "sim-thread": lambda: sim_pwm(Style.THREAD)}
if os.environ.get("HEARTH_GUEST") == "1":
    PWM_BENCHES |= {"kernel-chardev": lambda: kernel_pwm(True), "kernel-sysfs": lambda: kernel_pwm(False)}


DAC_SCALE = 3.3 / 4096
DAC_CHANNEL = {"min": 0.5, "max": 3, "safe": 0.75, "scale": DAC_SCALE}


def dac_channels(**more):
    """One channel, as an MCP4725 has it, and one that is never used."""
    return [DacChannelSpec(0, "LEVEL", **{**DAC_CHANNEL, **more})]


@frozen(eq=False)
class DacBench:
    """A converter under test, and a voltmeter."""

    make: object
    """make(**channel) returns a driver, not opened, with a channel of `DAC_CHANNEL` and these."""
    volts: object
    """volts(): what the output has; None where it is off."""


@contextmanager
def sim_dac(style):
    made = []

    def make(**more):
        made.append(SimDac("bench", dac_channels(**more), style=style))
        return made[-1]

    def volts():
        count = made[-1].counts.get(0, 0)
        return None if count is None else count * DAC_SCALE

    yield DacBench(make, volts)


@contextmanager
def kernel_dac():
    """An MCP4725 on the emulated MCP2221: the voltmeter is its register."""
    from support.mcp4725 import mcp4725

    with mcp4725() as chip:
        made = lambda **more: LinuxDac(chip.label, dac_channels(**more))  # noqa: E731
        yield DacBench(made, lambda: None if chip.chip.power_down else chip.volts)


DAC_BENCHES = {"sim-inline": lambda: sim_dac(Style.INLINE), "sim-thread": lambda: sim_dac(Style.THREAD)}
if os.environ.get("HEARTH_GUEST") == "1":
    DAC_BENCHES |= {"kernel": kernel_dac}


@frozen(eq=False)
class I2cBench:
    """An adapter under test, and who sits on it.

    A memory with an 8-bit pointer at one address, a large one with a 16-bit pointer at another where the adapter can
    reach that, nobody at a third, and somebody whom a driver of the kernel's has taken at a fourth. What an adapter
    cannot do it says here; the contract then is that it refuses it whole.
    """

    driver: object
    memory: int = 0x50
    wide: int | None = 0x51
    nobody: int = 0x23
    owned: int = 0x48
    nobody_errno: str = "ENXIO"
    messages: int = 42
    """How many messages one exchange may have."""
    longest: int = 8192
    """Bytes in one message."""
    ten_bit: int | None = None
    """Somebody with a 10-bit address, if the adapter can do that."""


@contextmanager
def sim_i2c(style):
    clock = clock_for(style)
    devices = {0x48: Tmp102(SlowTemperature(1, clock)), 0x50: Eeprom(clock), 0x51: Memory(65536, pointer_bytes=2)}
    driver = SimI2c(1, devices | {0x150: Memory()}, style=style, speed_hz=10_000_000)
    driver.owners[0x48] = "lm75"
    yield I2cBench(driver, ten_bit=0x150)


@contextmanager
def raw_i2c():
    """Raw I2C of the kernel's, at the most a write and then a read: an emulated USB adapter under its real driver."""
    from support.i2c_stub import kernel_driver
    from support.mcp2221 import ADAPTER, Mcp2221

    memories = {0x48: Memory(), 0x50: Memory(), 0x51: Memory(65536, pointer_bytes=2)}
    with Mcp2221(memories) as adapter, kernel_driver(adapter.bus, 0x48, "lm75"):
        yield I2cBench(LinuxI2c(adapter.bus, adapter=ADAPTER), messages=2)
        # An exchange that was torn, or that another one came into, would be in the wire's record.
        assert not adapter.chip.strays
        assert all(exchange.end in ("stop", "nack") for exchange in adapter.chip.log)


@contextmanager
def smbus_i2c():
    """An adapter of the kernel's that has SMBus only: registers of 8 bits, blocks of 32 bytes, one register a time."""
    from support.i2c_stub import kernel_driver, stub_bus

    bus = stub_bus()
    with kernel_driver(bus, 0x48, "lm75"):
        yield I2cBench(LinuxI2c(bus), wide=None, nobody_errno="ENODEV", messages=2, longest=32)


I2C_BENCHES = {f"sim-{style.value}": lambda style=style: sim_i2c(style) for style in Style}
if os.environ.get("HEARTH_GUEST") == "1":
    I2C_BENCHES |= {"kernel-raw": raw_i2c, "kernel-smbus": smbus_i2c}


@frozen(eq=False)
class SpiBench:
    """An SPI device under test: a loopback, or a chip with 128 registers."""

    driver: object


@contextmanager
def sim_spi(style, chip):
    yield SpiBench(
        SimSpi("bench", RegisterChip() if chip else Loopback(), SpiSettings(speed_hz=10_000_000), style=style)
    )


@contextmanager
def kernel_spi(chip):
    from support.virtio_spi import LOOPBACK, REGISTERS, spidev

    yield SpiBench(LinuxSpi("bench", spidev(REGISTERS if chip else LOOPBACK), SpiSettings(speed_hz=10_000_000)))


SPI_BENCHES = {f"sim-{style.value}": lambda chip, style=style: sim_spi(style, chip) for style in Style}
if os.environ.get("HEARTH_GUEST") == "1":
    SPI_BENCHES["kernel"] = kernel_spi


@contextmanager
def sim_uart():
    yield SimUart("bench"), None


def raw_terminal(path):
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    tty.setraw(fd, termios.TCSANOW)
    return fd


@contextmanager
def pty_uart():
    """A pseudo-terminal's slave as the port. It stays open, lest its master see the port's closing as the end."""
    far, near = os.openpty()
    tty.setraw(near)
    os.set_blocking(far, False)
    yield LinuxUart("bench", os.ttyname(near), UartSettings()), far
    os.close(near)


@contextmanager
def null_modem_uart():
    yield LinuxUart("bench", "/dev/ttyS1", UartSettings(baud=38400)), raw_terminal("/dev/ttyS2")


@contextmanager
def usb_uart():
    from support.usb_serial import usb_serial

    with TemporaryDirectory() as links, usb_serial(Path(links)) as adapter:
        yield LinuxUart("bench", adapter.path, UartSettings()), raw_terminal(adapter.device)


UART_BENCHES = {"sim-pty": sim_uart, "linux-pty": pty_uart}
"""Ports with an instrument at the other end that echoes lines and answers *IDN?."""
if os.environ.get("HEARTH_GUEST") == "1":
    UART_BENCHES |= {"null-modem": null_modem_uart, "usb-acm": usb_uart}


@frozen(eq=False)
class CanBench:
    """A CAN driver under test, and another node of its bus."""

    driver: object
    say: object
    """say(frame): the other node sends."""
    heard: object
    """heard(): the frames that the other node has received since the last call."""
    answer: object
    """answer(tx, rx, function): the other node answers ISO-TP messages by a function of them."""
    bus_off: object
    """bus_off(): the controller leaves the bus."""
    unplug: object
    plug: object


@contextmanager
def sim_can():
    driver = SimCan("bench", queue=64)
    seen = []

    def heard():
        new, seen[:] = driver.wire[len(seen) :], driver.wire
        return [(frame.key, frame.data) for frame in new]

    def answer(tx, rx, function):
        driver.isotp_peers[tx, rx] = function

    def plug():
        driver.plugged = True

    yield CanBench(driver, driver.inject, heard, answer, lambda: driver.report("bus off"), driver.unplug, plug)


@contextmanager
def vcan():
    from support.can_bus import BUS_OFF, answering, ip, node, remove as unplug, virtual

    with virtual("vcan9", fd=True) as name, node(name, fd=True) as other, ExitStack() as stack:
        driver = LinuxCan("bench", name, fd=True, queue=64)

        def say(frame):
            (other.say_fd if frame.fd else other.say)(frame.key, frame.data)

        def answer(tx, rx, function):
            stack.enter_context(answering(name, tx, rx, function))

        def plug():
            ip("add", name, "type", "vcan")
            ip("set", name, "mtu", "72")
            ip("set", name, "up")

        yield CanBench(driver, say, other.heard, answer, lambda: other.report(BUS_OFF), lambda: unplug(name), plug)


CAN_BENCHES = {"sim": sim_can}
if os.environ.get("HEARTH_GUEST") == "1":
    CAN_BENCHES["vcan"] = vcan


# --- Modbus: unit 3 with 200 of each table, see support/modbus_server.py; unit 4 does not answer

MODBUS_DEVICES = [ModbusDevice(unit, f"unit{unit}", raw="rw") for unit in (0, 3, 4)]


@contextmanager
def sim_modbus():
    port = SimModbusPort("bench", UartSettings(baud=19_200), [MODBUS_DEVICES[1]])
    places = [(table, at) for table in ("coil", "discrete", "holding", "input") for at in range(modbus_server.SIZE)]
    port.devices[3].memory = {(table, at): at if table == "input" else 0 for table, at in places}
    yield port


@contextmanager
def pty_modbus():
    with modbus_server.modbus_pty() as path:
        yield LinuxUart("bench", path, UartSettings(baud=19_200))


@contextmanager
def tcp_modbus():
    with modbus_server.modbus_server("tcp") as port:
        yield TcpPort("bench", "127.0.0.1", int(port))


@contextmanager
def null_modem_modbus():
    with modbus_server.modbus_server("rtu", "/dev/ttyS2", "38400", "N"):
        yield LinuxUart("bench", "/dev/ttyS1", UartSettings(baud=38_400))


@contextmanager
def usb_modbus():
    from support.usb_serial import usb_serial

    with (
        TemporaryDirectory() as links,
        usb_serial(Path(links)) as adapter,
        modbus_server.modbus_server("rtu", adapter.device, "19200", "N"),
    ):
        yield LinuxUart("bench", adapter.path, UartSettings(baud=19_200, parity="even"))


MODBUS_BENCHES = {"sim": sim_modbus, "linux-pty": pty_modbus, "tcp": tcp_modbus}
"""Lines with a device of ours, and with one of pymodbus."""
if os.environ.get("HEARTH_GUEST") == "1":
    MODBUS_BENCHES |= {"null-modem": null_modem_modbus, "usb-acm, even parity": usb_modbus}


def modbus_line(port):
    """The line of a bench over its port."""
    return ModbusLine("bench", port, MODBUS_DEVICES, late_s=0.0, turnaround_s=0.02)


def hang_up(far):
    """Close the far end of a serial bench."""
    trio.lowlevel.notify_closing(far)
    os.close(far)
