"""CAN interfaces of the guest: a virtual bus, and an adapter on the serial line that a test plays.

`Node` is another node of a bus: a raw socket of Python's own, nothing of hearth.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import subprocess
import threading
import time
import tty
from contextlib import contextmanager, suppress
from pathlib import Path

import serial

BUSYBOX = "/bin/busybox"
FRAME = struct.Struct("=IB3x8s")
FD_FRAME = struct.Struct("=IBBxx64s")
BUS_OFF = 0x40
BOUND = 10
"""Seconds that anything here may take."""


def ip(*words):
    subprocess.run([BUSYBOX, "ip", "link", *words], check=True)


def exists(name):
    return Path(f"/sys/class/net/{name}").exists()


def remove(name):
    if exists(name):
        ip("del", name)


@contextmanager
def virtual(name="vcan0", *, fd=False, up=True):
    """A virtual bus: every socket on it hears all others."""
    remove(name)
    ip("add", name, "type", "vcan")
    try:
        ip("set", name, "mtu", "72" if fd else "16")
        if up:
            ip("set", name, "up")
        yield name
    finally:
        remove(name)


class Node:
    """Another node on an interface."""

    def __init__(self, interface, *, fd=False):
        self.socket = socket.socket(socket.AF_CAN, socket.SOCK_RAW, socket.CAN_RAW)
        if fd:
            self.socket.setsockopt(socket.SOL_CAN_RAW, socket.CAN_RAW_FD_FRAMES, 1)
        self.socket.bind((interface,))
        self.socket.settimeout(BOUND)

    def say(self, key, data=b""):
        self.socket.send(FRAME.pack(key, len(data), data))

    def say_fd(self, key, data, *, fast=True):
        self.socket.send(FD_FRAME.pack(key, len(data), int(fast), data))

    def report(self, error_class, data=bytes(8)):
        """Report an error as the interface's driver does."""
        self.say(socket.CAN_ERR_FLAG | error_class, data)

    def hear(self):
        """The key and the data of the next frame."""
        wire = self.socket.recv(72)
        return struct.unpack_from("=I", wire)[0], wire[8 : 8 + wire[4]]

    def say_until_full(self):
        """Send until the transmit queue of the interface takes no more."""
        while True:
            try:
                self.say(1, bytes(8))
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return
                raise

    def heard(self):
        """The frames that have come by now."""
        self.socket.setblocking(False)
        frames = []
        with suppress(BlockingIOError):
            while True:
                frames.append(self.hear())
        self.socket.settimeout(BOUND)
        return frames

    def close(self):
        self.socket.close()


@contextmanager
def node(interface, **more):
    made = Node(interface, **more)
    try:
        yield made
    finally:
        made.close()


class IsotpPeer:
    """Another node's end of an ISO-TP conversation, by the kernel."""

    def __init__(self, interface, tx, rx, *, fd=False):
        self.socket = socket.socket(socket.AF_CAN, socket.SOCK_DGRAM, socket.CAN_ISOTP)
        if fd:
            self.socket.setsockopt(106, 5, struct.pack("=BBB", 72, 64, 1))  # CAN_ISOTP_LL_OPTS
        self.socket.bind((interface, rx, tx))
        self.socket.settimeout(BOUND)

    def hear(self):
        return self.socket.recv(8192)

    def say(self, data):
        self.socket.send(data)

    def close(self):
        self.socket.close()


@contextmanager
def answering(interface, tx, rx, function, *, fd=False):
    """Another node that answers each ISO-TP message to `tx` with what `function` makes of it; None is silence."""
    peer = IsotpPeer(interface, rx, tx, fd=fd)

    stopping = threading.Event()
    peer.socket.settimeout(0.05)

    def serve():
        while not stopping.is_set():
            with suppress(OSError):  # nothing has come, or the interface has gone
                answer = function(peer.hear())
                if answer is not None:
                    peer.say(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield peer
    finally:
        stopping.set()
        thread.join(BOUND)
        peer.close()


def until(what):
    """Wait until `what()` is true; its value."""
    end = time.monotonic() + BOUND
    while not (answer := what()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.01)
    return answer


def _attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def set_bitrate(name, rate):
    """What `ip link set NAME type can bitrate RATE` does, by netlink: busybox does not know it."""
    timing = _attribute(1, b"can") + _attribute(2, _attribute(1, struct.pack("=8I", rate, *[0] * 7)))
    body = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0) + _attribute(18, timing)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as made:
        made.bind((0, 0))
        made.send(struct.pack("=IHHII", 16 + len(body), 16, 5, 1, 0) + body)
        (code,) = struct.unpack_from("=i", made.recv(4096), 16)
        assert code == 0, os.strerror(-code)


class Slcan:
    """A CAN adapter on a serial line, under the kernel's own slcan driver; `far` is the adapter's end.

    What the driver tells the adapter (ASCII commands that end in CR) is read there, and what the adapter receives, its
    error states included, is written there.
    """

    DISCIPLINE = 17

    def __init__(self, near="/dev/ttyS1", far="/dev/ttyS2"):
        self.near_path = near
        self.far = serial.Serial(far, 115_200, timeout=BOUND) if far else None
        self.name = None
        self.line = None

    def plug(self):
        """Attach the driver, set the bit rate, and bring the interface up; its name."""
        before = set(os.listdir("/sys/class/net"))
        self.line = serial.Serial(self.near_path, 115_200)
        fcntl.ioctl(self.line.fd, 0x5423, struct.pack("i", self.DISCIPLINE))
        self.name = until(lambda: set(os.listdir("/sys/class/net")) - before).pop()
        set_bitrate(self.name, 500_000)
        self.up()
        return self.name

    def up(self):
        ip("set", self.name, "up")
        if self.far is not None:
            assert self.far.read_until(b"O\r").endswith(b"O\r")

    def down(self):
        ip("set", self.name, "down")
        assert self.far.read_until(b"C\r").endswith(b"C\r")

    def heard(self):
        """The next command of the driver."""
        return self.far.read_until(b"\r")

    def say(self, text):
        self.far.write(text + b"\r")

    def unplug(self):
        """Take the adapter away: its interface goes, whatever happens on it."""
        line, self.line = self.line, None
        if line is not None:
            fcntl.ioctl(line.fd, 0x5423, struct.pack("i", 0))
            line.close()
            name = self.name
            until(lambda: not exists(name))

    def close(self):
        self.unplug()
        if self.far is not None:
            self.far.close()


@contextmanager
def slcan():
    adapter = Slcan()
    try:
        yield adapter
    finally:
        adapter.close()


@contextmanager
def deaf_slcan():
    """An adapter that has been opened and takes no more than its line holds: nothing is read from it any more."""
    far, near = os.openpty()
    tty.setraw(near)
    adapter = Slcan(os.ttyname(near), far=None)

    def read_until_open():
        seen = b""
        while b"O\r" not in seen:
            seen += os.read(far, 100)

    reading = threading.Thread(target=read_until_open, daemon=True)
    reading.start()
    try:
        adapter.plug()
        reading.join(BOUND)
        yield adapter
    finally:
        adapter.unplug()
        os.close(far)
        os.close(near)
