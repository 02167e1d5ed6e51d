"""A USB serial adapter that can be plugged in and pulled out: the kernel's own gadget on its own host (dummy_hcd).

Only in the guest. `path` is the host's side, what hearth opens; `device` is the tty inside the adapter, where an
instrument would sit. It owns the plug and the link by which the adapter is found again; it refuses to know hearth.

The kernel counts an adapter's number as taken for as long as somebody has it open, so it may come back as another
/dev/ttyACM*. There is no udev here: `path` is a link that `plug` sets anew, as udev does in /dev/serial/by-id.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GADGETS = Path("/sys/kernel/config/usb_gadget")
PATIENCE_S = 10.0

_serial = count(1)


def wait_until(what: str, ready: Callable[[], object]) -> None:
    """Look again and again until `ready()`; TimeoutError naming `what` after PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        time.sleep(0.002)


class UsbSerial:
    """One adapter; it is plugged in when this returns."""

    def __init__(self, links: Path) -> None:
        self.serial_number = f"HEARTH{next(_serial):04}"
        self._gadget = GADGETS / self.serial_number
        self._function = self._gadget / "functions" / "acm.0"
        self.path = str(links / f"usb-hearth_{self.serial_number}")
        self._gadget.mkdir()
        (self._gadget / "idVendor").write_text("0x0525")
        (self._gadget / "idProduct").write_text("0xa4a7")
        (self._gadget / "strings/0x409").mkdir()
        (self._gadget / "strings/0x409/serialnumber").write_text(self.serial_number)
        (self._gadget / "configs/c.1").mkdir()
        self._function.mkdir()
        (self._gadget / "configs/c.1/acm.0").symlink_to(self._function)
        self.device = f"/dev/ttyGS{(self._function / 'port_num').read_text().strip()}"
        wait_until(f"{self.device} appears", Path(self.device).exists)
        self.node: str | None = None
        self.plug()

    def _nodes(self) -> set[str]:
        """The ttys of this adapter on the host, by the serial number that the bus tells."""
        found: set[str] = set()
        for tty in Path("/sys/class/tty").glob("ttyACM*"):
            number = tty.resolve().parent.parent.parent / "serial"
            if number.exists() and number.read_text().strip() == self.serial_number:
                found.add(f"/dev/{tty.name}")
        return found

    def plug(self) -> str:
        """Put it in; returns the node it got, when that can be opened."""
        (controller,) = (entry.name for entry in Path("/sys/class/udc").iterdir())
        (self._gadget / "UDC").write_text(controller)
        wait_until("the adapter has a tty", self._nodes)
        (self.node,) = self._nodes()
        wait_until(f"{self.node} appears", Path(self.node).exists)
        Path(self.path).unlink(missing_ok=True)
        Path(self.path).symlink_to(self.node)
        return self.node

    def unplug(self) -> None:
        """Pull it out; returns when its node is gone."""
        node, self.node = self.node, None
        if node is None:
            return
        (self._gadget / "UDC").write_text("\n")
        wait_until(f"{node} goes", lambda: not Path(node).exists())
        Path(self.path).unlink()

    def remove(self) -> None:
        """Unplug it for good. Nobody may have `device` open any more."""
        self.unplug()
        (self._gadget / "configs/c.1/acm.0").unlink()
        for directory in ("configs/c.1", "functions/acm.0", "strings/0x409", "."):
            os.rmdir(self._gadget / directory)


@contextmanager
def usb_serial(links: Path) -> Iterator[UsbSerial]:
    """An adapter that is plugged in, and its link in the directory `links`."""
    adapter = UsbSerial(links)
    try:
        yield adapter
    finally:
        adapter.remove()
