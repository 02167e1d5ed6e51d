"""PWM channels when hearthd itself ends: with SIGTERM, and with kill -9 until the next start.

The kernel leaves a channel as it is when its user is dead, through both of its interfaces: a fan goes on turning, and
a servo holds its arm, until the next start makes them safe.
"""

from __future__ import annotations

import pytest
from support.hearthd import Hearthd
from support.pca9685 import pca9685

pytestmark = pytest.mark.slow

FAN, SERVO, KEPT = range(3)
PROFILE = """
name = "arm"
description = "a servo board"
[[pwm]]
label = "{label}"
driver = "pwm"
chardev = {chardev}
channels = ["FAN", "SERVO", "KEPT"]
[pwm.channel.FAN]
period_us = 20_000
safe = 0.125
[pwm.channel.SERVO]
servo = {{ min_us = 1_000, max_us = 2_000 }}
[pwm.channel.KEPT]
period_us = 20_000
hold = "keep"
"""


@pytest.fixture
def chip():
    with pca9685() as chip:
        yield chip


@pytest.fixture(params=[True, False], ids=["chardev", "sysfs"])
def daemon(request, chip, tmp_path):
    profile = tmp_path / "arm.toml"
    profile.write_text(PROFILE.format(label=chip.label, chardev=str(request.param).lower()))
    daemon = Hearthd(tmp_path, f'[board]\nprofile = "{profile}"\n')
    yield daemon.start()
    daemon.end()


def drive(daemon):
    peer = daemon.peer()
    session = peer.open()
    for tool, args in (
        ("pwm.set", {"channel": "FAN", "duty": 0.5}),
        ("servo.move", {"servo": "SERVO", "angle": 180}),
        ("pwm.set", {"channel": "KEPT", "duty": 0.25}),
    ):
        step = peer.run(session, tool, **args)
        # One that took longer than its limit, since the machine had no time for it, has failed and is done.
        assert step["status"] == "SUCCESS" or step["error_data"]["effect"] == "done", step
    return session


def duties(chip):
    return [round(chip.steps(channel)[1] / 4096, 2) for channel in (FAN, SERVO, KEPT)]


DRIVEN, SAFE = [0.5, 0.1, 0.25], [0.12, 0, 0.25]


def test_sigterm_brings_channels_to_their_safe_state(daemon, chip) -> None:
    drive(daemon)
    assert duties(chip) == DRIVEN
    assert daemon.stop() == 0
    assert duties(chip) == SAFE


def test_after_kill_9_channels_are_as_they_were_until_the_next_start_makes_them_safe(daemon, chip) -> None:
    drive(daemon)
    daemon.kill()
    assert duties(chip) == DRIVEN
    daemon.start()
    # Whoever connects finds it done: nobody has asked for anything yet.
    assert duties(chip) == SAFE
    [made_safe] = [record for record in daemon.records() if record["event"] == "outputs.safe"]
    assert made_safe["bus"] == f"pwm:{chip.label}"
    assert [report.get("safe") for report in made_safe["safe"]] == [0.125, "off"]
    assert daemon.stop() == 0
