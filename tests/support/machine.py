"""A machine made of files: the parts of /sys, /dev and /proc that hearth looks at, as another computer would have them.

It owns the form of those trees, copied from real machines; what stands in them is a test's business. Nodes are plain
files, so a GPIO chip can be found here but not opened: what chips tell when they are, the guest shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.drivers.boards.discover import Machine

if TYPE_CHECKING:
    from pathlib import Path

DRIVERS = """\
/dev/tty             /dev/tty        5       0 system:/dev/tty
pty_slave            /dev/pts      136 0-1048575 pty:slave
usbserial            /dev/ttyUSB   188 0-511 serial
serial               /dev/ttyS       4 64-95 serial
UML serial line      /dev/ttyU       4 200 serial
ttyAMA               /dev/ttyAMA   204 64-77 serial
unknown              /dev/tty        4 1-63 console
"""


class FilesMachine:
    """One machine below a directory."""

    def __init__(self, root: Path) -> None:
        self.machine = Machine(root / "sys", root / "dev", root / "proc")
        for directory in ("bus/gpio/devices", "bus/i2c/devices", "class/i2c-dev", "class/tty/console"):
            (root / "sys" / directory).mkdir(parents=True)
        for directory in ("dev", "proc/tty"):
            (root / directory).mkdir(parents=True)
        (root / "proc/tty/drivers").write_text(DRIVERS)
        (root / "sys/class/tty/console/active").write_text("tty0\n")

    def device(
        self,
        place: str,
        subsystem: str | None = None,
        *,
        driver: str | None = None,
        compatible: str | None = None,
        acpi: str | None = None,
    ) -> Path:
        """A directory below /sys/devices, with the links that the kernel puts there; the place of those below it."""
        sys = self.machine.sys
        at = sys / "devices" / place
        at.mkdir(parents=True, exist_ok=True)
        if subsystem is not None:
            self._link(at / "subsystem", sys / "bus" / subsystem)
        if driver is not None:
            self._link(at / "driver", sys / "bus" / (subsystem or "x") / "drivers" / driver)
        if compatible is not None:
            node = sys / "firmware/devicetree/base" / place
            node.mkdir(parents=True, exist_ok=True)
            (node / "compatible").write_text(compatible + "\0")
            self._link(at / "of_node", node)
        if acpi is not None:
            node = sys / "devices/LNXSYSTM:00" / acpi
            node.mkdir(parents=True, exist_ok=True)
            (node / "path").write_text(f"\\_SB_.{acpi}\n")
            self._link(at / "firmware_node", node)
        return at

    def _link(self, link: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(target)

    def _node(self, name: str) -> None:
        (self.machine.dev / name).write_text("")

    def chip(self, name: str, place: str) -> None:
        """A GPIO chip of the device at `place`."""
        at = self.device(f"{place}/{name}", "gpio", driver="gpio_stub_drv")
        self._link(self.machine.sys / "bus/gpio/devices" / name, at)
        self._node(name)

    def adapter(self, number: int, name: str | None, place: str = "", *, node: bool = True) -> None:
        """An I2C adapter of the device at `place`."""
        at = self.device(f"{place}/i2c-{number}".lstrip("/"), "i2c")
        entry = self.machine.sys / "class/i2c-dev" / f"i2c-{number}"
        entry.mkdir()
        self._link(entry / "device", at)
        if name is not None:
            (entry / "name").write_text(f"{name}\n")
        if node:
            self._node(f"i2c-{number}")

    def pwm(self, number: int, place: str, channels: int, *, node: bool = False) -> Path:
        """A PWM chip of the device at `place`; with `node` it has a character device. Returns its directory."""
        device = self.machine.sys / "devices" / place
        at = device / "pwm" / f"pwmchip{number}"
        at.mkdir(parents=True)
        self._link(at / "device", device)
        self._link(at / "subsystem", self.machine.sys / "class/pwm")
        (at / "npwm").write_text(f"{channels}\n")
        (at / "export").write_text("")
        if node:
            (at / "dev").write_text(f"253:{number}\n")
            self._node(f"pwmchip{number}")
        self._link(self.machine.sys / "class/pwm" / f"pwmchip{number}", at)
        return at

    def iio(self, number: int, place: str, name: str, attributes: dict[str, str]) -> Path:
        """An IIO device of the device at `place`. Returns its directory."""
        at = self.machine.sys / "devices" / place / f"iio:device{number}"
        at.mkdir(parents=True)
        for attribute, content in {"name": name, **attributes}.items():
            (at / attribute).write_text(f"{content}\n")
        self._link(at / "subsystem", self.machine.sys / "bus/iio")
        devices = self.machine.sys / "bus/iio/devices"
        devices.mkdir(parents=True, exist_ok=True)
        self._link(devices / at.name, at)
        return at

    def client(self, bus: int, addr: str, driver: str | None) -> None:
        """A device that somebody told the kernel is on an I2C bus, with or without a driver of it."""
        at = self.device(f"clients/{bus}-{addr}", "i2c", driver=driver)
        self._link(self.machine.sys / "bus/i2c/devices" / f"{bus}-{addr}", at)

    def port(self, name: str, number: str, place: str | None, *, type_: str | None = None) -> None:
        """A terminal of device number "4:64" on the device at `place`; None for one without a device."""
        entry = self.machine.sys / "class/tty" / name
        entry.mkdir()
        (entry / "dev").write_text(f"{number}\n")
        if type_ is not None:
            (entry / "type").write_text(f"{type_}\n")
        if place is not None:
            self._link(entry / "device", self.device(place))
        self._node(name)

    def console(self, names: str) -> None:
        """What the kernel writes its console to."""
        (self.machine.sys / "class/tty/console/active").write_text(f"{names}\n")

    def process(self, pid: int, name: str, *, terminal: int = 0) -> None:
        """A process; `terminal` is the number of its controlling terminal as /proc encodes it."""
        at = self.machine.proc / str(pid)
        at.mkdir()
        (at / "stat").write_text(f"{pid} ({name}) S 1 {pid} {pid} {terminal} {pid} 4194560 0 0\n")
