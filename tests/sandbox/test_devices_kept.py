"""A device that the sandbox does not let the daemon open says so, with the cure, and not that a group is missing."""

from __future__ import annotations

import errno
import os

import pytest
from support.confinement import needs_landlock
from support.forked import forked
from support.users import ordinary_user

from hearth.drivers.gpio import linux_chips as gpio_chips
from hearth.drivers.i2c import linux_adapter as i2c_adapter
from hearth.drivers.linux.device_users import kept_by_sandbox
from hearth.drivers.sandbox import landlock
from hearth.drivers.sandbox.identity import no_new_privs
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.errors import DeviceError

CURE = "for devices that come back set [sandbox] hotplug = true, and restart hearthd"


@needs_landlock()
def test_a_port_that_came_back_under_a_new_node_names_the_key_that_lets_it():
    near, far = os.openpty()
    port = LinuxUart("p", os.ttyname(far), UartSettings())

    def reopen():
        import serial.rs485  # noqa: F401 - what it imports when it opens, it cannot read any more

        no_new_privs()
        with landlock.Ruleset(landlock.version()) as rules:
            rules.enforce()
        try:
            port.open()
        except DeviceError as error:
            return str(error)
        return "opened"

    said = forked(reopen)
    os.close(near)
    os.close(far)
    assert CURE in said
    assert os.path.basename(port.path) in said


def refusal_of_a_chip(path):
    return str(gpio_chips.cannot_open("x", path, errno.EACCES))


def refusal_of_an_adapter(path):
    return str(i2c_adapter.cannot_open(1, path, OSError(errno.EACCES, "Permission denied")))


@needs_landlock()
@pytest.mark.parametrize("refusal", [refusal_of_a_chip, refusal_of_an_adapter])
def test_that_holds_for_chips_and_adapters_and_not_where_the_permission_is_what_lacks(refusal, tmp_path):
    node = tmp_path / "node"
    node.touch()
    assert CURE not in refusal(str(node)), "nobody is confined here"

    def confined():
        no_new_privs()
        with landlock.Ruleset(landlock.version()) as rules:
            rules.allow("/", rules.rights)
            rules.enforce()
        kept = refusal(str(node))
        node.chmod(0)
        with ordinary_user():
            return kept, kept_by_sandbox(str(node)), refusal(str(node))

    kept, for_another, refused = forked(confined)
    assert CURE in kept
    assert for_another is None
    assert CURE not in refused


def refused_by_the_kernel(_path, _mode, **_more):
    """What access(2) answers for a node that the device control group of the process does not have."""
    return False


@pytest.mark.parametrize(("mode", "kept"), [(0o666, True), (0o000, False)])
def test_a_node_that_the_services_control_group_refuses_names_the_line_that_lets_it_in(monkeypatch, mode, kept):
    near, far = os.openpty()
    path = os.ttyname(far)
    os.chmod(path, mode)
    monkeypatch.setattr(os, "access", refused_by_the_kernel)
    with ordinary_user():
        said = kept_by_sandbox(path)
    os.close(near)
    os.close(far)
    assert (said is not None and "DeviceAllow=char-pts rw in a drop-in" in said) is kept


def test_root_and_the_owner_are_refused_by_nothing_but_the_control_group(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", refused_by_the_kernel)
    assert "DeviceAllow=char-mem rw" in str(kept_by_sandbox("/dev/null"))
    assert "DeviceAllow=char-KIND rw" in str(kept_by_sandbox(str(tmp_path)))
    assert kept_by_sandbox(str(tmp_path / "none")) is None
