"""Off is off for the load, on the kernel's own devices: after each end, what pins and registers show.

The loads are those of tests/drivers/test_off.py. What they get is read from gpio-sim's lines, from the registers of a
PCA9685 and from a converter's, and never from hearth.
"""

from __future__ import annotations

import json

import pytest
from support.gpio_sim import gpio_sim
from support.hearthd import Hearthd
from support.mcp4725 import STEP, mcp4725
from support.pca9685 import STEPS, pca9685

pytestmark = pytest.mark.slow

LINES = {
    # name: the profile's table, the value that gives power, the level of the pin then, the way it is pulled outside
    "PLAIN": ({"safe": 0}, 1, 1, 0),
    "RELEASED": ({"safe": "input", "pull": "down"}, 1, 1, 0),
    "LOW": ({"active_low": True, "safe": 0}, 1, 0, 1),
    "LOW_RELEASED": ({"active_low": True, "safe": "input", "pull": "up"}, 1, 0, 1),
    "CLOSED": ({"safe": 1}, 0, 0, 0),
    "DRAIN": ({"drive": "open-drain", "safe": 0}, 1, 1, 1),
    "DRAIN_LOW": ({"drive": "open-drain", "active_low": True, "safe": 0}, 1, 0, 1),
    "DRAIN_RELEASED": ({"drive": "open-drain", "active_low": True, "safe": "input"}, 1, 0, 1),
    "SOURCE": ({"drive": "open-source", "safe": 0}, 1, 1, 0),
    "SOURCE_RELEASED": ({"drive": "open-source", "safe": "input"}, 1, 1, 0),
    "SOURCE_LOW": ({"drive": "open-source", "active_low": True, "safe": 0}, 1, 0, 0),
}
SERVO = {"servo": {"min_us": 1_000, "max_us": 2_000}}
CHANNELS = {
    # name: the profile's table, and the greatest share of its power that the load may have at rest
    "FAN": ({"period_us": 20_000}, 0),
    "LEAST": ({"period_us": 20_000, "limit": {"min": 0.2, "max": 0.8}}, 0),
    "ARM": (SERVO, 0),
    "INV": ({"period_us": 20_000, "polarity": "inversed"}, 0),
    "INV_LEAST": ({"period_us": 20_000, "polarity": "inversed", "limit": {"min": 0.2, "max": 0.8}}, 0),
    "INV_SAFE": ({"period_us": 20_000, "polarity": "inversed", "safe": 0.125}, 0.125),
    "INV_US": ({"period_us": 20_000, "polarity": "inversed", "unit": "us"}, 0),
    "INV_ARM": ({**SERVO, "polarity": "inversed"}, 0),
}
RESTART = "kill -9 and the next start"


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


class Cell:
    """The chips, a daemon on them, and the meters at its loads."""

    def __init__(self, gpio, pwm, dac, path, chardev):
        self.gpio, self.pwm, self.dac = gpio, pwm, dac
        for name, (_, _, _, pull) in LINES.items():
            gpio.pull(name, pull)
        profile = path / "loads.toml"
        lines = {name: table for name, (table, *_) in LINES.items()}
        channels = {name: table for name, (table, _) in CHANNELS.items()}
        valve = {"min": 0.5, "max": 2.5, "safe": "off", "scale": STEP}
        profile.write_text(
            f'name = "loads"\ndescription = "loads"\n'
            f'[[gpio]]\nlabel = "{gpio.label}"\ndriver = "gpiod"\nnames = {json.dumps(list(LINES))}\n'
            f"lines = {toml(lines)}\n"
            f'[[pwm]]\nlabel = "{pwm.label}"\ndriver = "pwm"\nchardev = {toml(chardev)}\n'
            f"channels = {json.dumps(list(CHANNELS))}\nchannel = {toml(channels)}\n"
            f'[[dac]]\nlabel = "{dac.label}"\ndriver = "iio"\nchannels = ["VALVE"]\n'
            f"channel = {toml({'VALVE': valve})}\n"
        )
        self.daemon = Hearthd(path, f'[board]\nprofile = "{profile}"\n').start()

    def level(self, name):
        """Return what the line has: what drives it, else the side to which it is pulled."""
        pulled = self.gpio.pulled(name)
        levels = []
        for side in (1 - pulled, pulled):
            self.gpio.pull(name, side)
            levels.append(self.gpio.value(name))
        return levels[-1]

    def power(self):
        """Return the share of its power that each load has."""
        found = {name: float(self.level(name) == powered) for name, (_, _, powered, _) in LINES.items()}
        for number, (name, (table, _)) in enumerate(CHANNELS.items()):
            high = self.pwm.steps(number)[1] / STEPS
            found[name] = 1 - high if table.get("polarity") == "inversed" else high
        return {**found, "VALVE": self.dac.volts}

    def drive(self):
        peer = self.daemon.peer()
        session = peer.open()
        steps = [("gpio.set", {"line": name, "value": value}) for name, (_, value, _, _) in LINES.items()]
        for name, (table, _) in CHANNELS.items():
            if "servo" in table:
                steps.append(("servo.move", {"servo": name, "angle": 90}))
            else:
                steps.append(("pwm.set", {"channel": name, "duty": 0.5}))
        for tool, args in (*steps, ("dac.set", {"channel": "VALVE", "value": 2})):
            step = peer.run(session, tool, **args)
            assert step["status"] == "SUCCESS" or step["error_data"]["effect"] == "done", step
        return peer, session


@pytest.fixture(params=[True, False], ids=["chardev", "sysfs"])
def cell(request, tmp_path):
    with gpio_sim("loads", list(LINES)) as gpio, pca9685() as pwm, mcp4725() as dac:
        made = Cell(gpio, pwm, dac, tmp_path, request.param)
        try:
            yield made
        finally:
            made.daemon.end()


def off(cell, peer, session):
    for name, (_, value, _, _) in LINES.items():
        peer.run(session, "gpio.set", line=name, value=1 - value)
    for name in CHANNELS:
        peer.run(session, "pwm.off", channel=name)
        shown = peer.run(session, "pwm.get", channel=name)["result"]
        assert (shown["on"], shown["duty"]) == (False, 0)


def session_end(_cell, peer, session):
    peer.call("session.close", {"session_id": session})


def halt(_cell, peer, _session):
    peer.call("halt", {"reason": "a test"})


def sigterm(cell, _peer, _session):
    assert cell.daemon.stop() == 0


def restart(cell, _peer, _session):
    cell.daemon.kill()
    cell.daemon.start()


ENDS = {"off": off, "the end of the session": session_end, "a halt": halt, "SIGTERM": sigterm, RESTART: restart}


@pytest.mark.parametrize("end", ENDS)
def test_no_load_gets_more_than_its_rest_after(cell, end) -> None:
    peer, session = cell.drive()
    rest = dict.fromkeys(LINES, 0) | {name: rest for name, (_, rest) in CHANNELS.items()} | {"VALVE": 0}
    powered = cell.power()
    assert all(powered[name] > rest[name] for name in rest), powered
    ENDS[end](cell, peer, session)
    if end == "off":
        rest |= dict.fromkeys(CHANNELS, 0) | {"VALVE": 2.0}
    # The chip has 4096 steps a period, and so has the converter.
    given = {name: power for name, power in cell.power().items() if power > rest[name] + 2 / STEPS}
    # Once its daemon is dead nothing holds a line of gpio-sim but its pull.
    ends = {"CLOSED", "DRAIN", "SOURCE_LOW"} if end == "SIGTERM" else set()
    assert given.keys() == ends, given
