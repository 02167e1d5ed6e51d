"""Board profiles: any text is a Profile, or a ConfigError of which every line names a key or a place in the file.

What loads is written here as a document again, key by key, and must parse to the same; and it keeps what every other
part of hearth takes for granted of a profile.
"""

from __future__ import annotations

import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

from attrs import asdict

from hearth.drivers.boards.profile import load_profile, parse_profile, shipped_profiles
from hearth.drivers.kinds import kinds_of
from hearth.drivers.pwm.driver import Wave
from hearth.errors import ConfigError

from .. import ROOT
from ..mutation import lines_of

if TYPE_CHECKING:
    import random

    from hearth.drivers.boards.profile import Profile

_MEMORY = os.memfd_create("profile")
_PATH = f"/proc/self/fd/{_MEMORY}"
_SOURCE = f"board profile {_PATH}"
_LINE = re.compile(
    re.escape(_SOURCE)
    + r": (at the end: |arrays or tables are nested too deeply; |[^\x00-\x1f\x7f]+: )[^\x00-\x1f\x7f]+"
)
DICTIONARY = (
    b"[[gpio]]\n", b"[gpio.lines.", b"[gpio.alias]\n", b"[[i2c]]\n", b"[[i2c.device]]\n", b"[[uart]]\n", b"rs485 = ",
    b"[sensors.",
    b"[[interlock]]\n", b"[halt]\n", b"[[halt.sequence]]\n", b"heartbeat = ", b"requires = ",
    b"[discover]\n", b"[tools]\n", b'driver = "sim"', b'driver = "gpiod"', b'driver = "i2c-dev"',
    b'driver = "serial"', b"wires = ",
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    os.ftruncate(_MEMORY, 0)
    os.pwrite(_MEMORY, data, 0)
    try:
        profile = load_profile(_PATH, any_owner=True)
    except ConfigError as error:
        for line in str(error).split("\n"):
            assert _LINE.fullmatch(line), f"a line without a place: {line!r}"
            assert line.isprintable(), f"a line that is not for a terminal: {line!r}"
            assert len(line) < 2000, "a line too long to read"
        return
    _sane(profile)
    given = tomllib.loads(data.decode())
    # These tables are taken as they stand: what is read of them must be the same again.
    document = _document(profile) | {kind: given[kind] for kind in ("can", "spi", "modbus", "iio") if kind in given}
    _kept(given, document, "")
    # The path of a file of messages is beside the profile.
    for table, spec in zip(document.get("can", ()), profile.of("can"), strict=True):
        table.update({} if spec.dbc is None else {"dbc": spec.dbc})
    again = parse_profile(document, profile.source)
    assert asdict(again) == asdict(profile), "what was loaded does not read back equal"


def _kept(given: Any, made: Any, at: str) -> None:
    """Everything that the file says is in the profile."""
    if at.endswith("/names"):
        assert given[: len(made)] == made
        assert not any(given[len(made) :])
    elif at.endswith("/rs485") and type(given) is bool:
        assert type(made) is dict
    elif at.startswith("/halt/") and (at.endswith(("/line", "/value")) or type(given) is str):
        # An alias has become the line's name, and a value the one that a register can hold; reading it again shows that
        # it is the same.
        assert made is not None
    elif type(given) is dict:
        assert type(made) is dict, at
        for name, value in given.items():
            if name not in made:
                nothing = at == "/discover" and not value
                assert nothing or (name == "rs485" and value is False), f"{at}/{name} is lost"
            else:
                _kept(value, made[name], f"{at}/{name}")
    elif type(given) is list and type(made) is list:
        assert len(given) == len(made), at
        for one, other in zip(given, made, strict=True):
            _kept(one, other, f"{at}/-")
    else:
        assert given == made or (at.startswith("/discover") and made is True), f"{at}: {given!r} became {made!r}"


def _sane(profile: Profile) -> None:
    assert profile.name
    assert profile.description
    labels = [chip.label for chip in profile.of("gpio")]
    assert len(set(labels)) == len(labels)
    for chip in profile.of("gpio"):
        offsets, names = {line.offset for line in chip.lines}, {line.name for line in chip.lines}
        assert len(offsets) == len(chip.lines) == len(names) > 0
        assert offsets <= set(range(1024))
        assert not names & chip.aliases.keys()
        assert set(chip.aliases.values()) <= offsets
        assert all({*pair} <= offsets for pair in chip.wires)
        assert set(chip.contacts) <= offsets
        for line in chip.lines:
            assert line.direction != "input" or (line.safe == "input" and line.initial is None)
    buses = [spec.bus for spec in profile.of("i2c")]
    assert len(set(buses)) == len(buses)
    for spec in profile.of("i2c"):
        taken = [device.addr for device in spec.devices]
        assert len(set(taken)) == len(taken)
        assert all(8 <= addr <= 0x77 or 0x80 <= addr <= 0x3FF for addr in taken)
        pumps = [device.tank.pump for device in spec.devices if device.tank is not None]
        assert None not in map(profile.simulated_line, pumps)
    assert all(sensor.bus in buses for sensor in profile.of("sensors"))
    for chip in profile.of("pwm"):
        for channel in chip.channels:
            limit = channel.signal.limit
            assert limit.min <= limit.max
            assert channel.safe == "off" or limit.min <= channel.safe <= limit.max
            assert channel.safe == "off" or channel.pulses(Wave(channel.safe, channel.period_us)).enabled
    for spec in profile.of("dac"):
        for channel in spec.channels:
            assert channel.min <= channel.max
            assert channel.safe == "off" or channel.min <= channel.safe <= channel.max
    ports = [uart.port for uart in profile.of("uart")]
    assert len(set(ports)) == len(ports)
    for uart in profile.of("uart"):
        assert (uart.driver == "sim") == (uart.path is None)
        assert uart.settings.rs485 is None or uart.settings.flow != "rtscts"


def _document(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "description": profile.description,
        "gpio": [_chip(chip) for chip in profile.of("gpio")],
        "i2c": [_adapter(spec) for spec in profile.of("i2c")],
        "uart": [_port(uart) for uart in profile.of("uart")],
        "pwm": [_pwm(chip) for chip in profile.of("pwm")],
        "dac": [_dac(spec) for spec in profile.of("dac")],
        "sensors": {sensor.name: _without(asdict(sensor), "name") for sensor in profile.of("sensors")},
        "tools": {"allow": list(profile.tools)},
        "interlock": [_interlock(one) for one in profile.interlocks],
        "halt": _halt(profile.halt, profile.specs),
        "discover": {
            kind: True if patterns == ("*",) else list(patterns) for kind, patterns in profile.discover.items()
        },
    }


def _without(members: dict[str, Any], *names: str) -> dict[str, Any]:
    """The members that say something."""
    return {name: _plain(value) for name, value in members.items() if value is not None and name not in names}


def _plain(value: Any) -> Any:
    if type(value) is tuple:
        return list(map(_plain, value))
    return _without(value) if type(value) is dict else value


def _chip(chip: Any) -> dict[str, Any]:
    by_offset = {line.offset: line.name for line in chip.lines}
    return {
        **_without(asdict(chip), "lines", "aliases", "wires", "contacts"),
        "names": [by_offset.get(offset, "") for offset in range(max(by_offset) + 1)],
        "lines": {line.name: _without(asdict(line), "offset", "name") for line in chip.lines},
        "alias": {alias: by_offset[offset] for alias, offset in chip.aliases.items()},
        "wires": [[by_offset[one], by_offset[other]] for one, other in chip.wires],
        "contacts": {by_offset[offset]: level for offset, level in chip.contacts.items()},
    }


def _pwm(chip: Any) -> dict[str, Any]:
    by_number = {channel.number: channel for channel in chip.channels}
    return {
        **_without(asdict(chip), "channels"),
        "channels": [by_number[n].name if n in by_number else "" for n in range(max(by_number) + 1)],
        "channel": {
            channel.name: _without(asdict(channel), "number", "name", *(["unit"] if channel.servo is not None else []))
            for channel in chip.channels
        },
    }


def _dac(spec: Any) -> dict[str, Any]:
    by_number = {channel.number: channel for channel in spec.channels}
    scaled = ("number", "name"), ("number", "name", "offset", "unit")
    return {
        **_without(asdict(spec), "channels"),
        "channels": [by_number[n].name if n in by_number else "" for n in range(max(by_number) + 1)],
        "channel": {
            channel.name: _without(asdict(channel), *scaled[channel.scale is None]) for channel in spec.channels
        },
    }


def _adapter(spec: Any) -> dict[str, Any]:
    ours = ("adapter", "timeout_ms", "retries") if spec.driver == "sim" else ()
    return {
        # What leans on a device is found again from the interlocks.
        **_without(asdict(spec), "devices", "leaned_on", *ours),
        "device": [_without(asdict(device)) for device in spec.devices],
    }


def _interlock(one: Any) -> dict[str, Any]:
    chips = [{} if each.line is None else {"chip": each.bus.removeprefix("gpio:")} for each in one.requires]
    requires = [{**each.to_json(), **chip} for each, chip in zip(one.requires, chips, strict=True)]
    timing = {"max_age_ms": one.max_age_ms, "check_ms": one.check_ms}
    output = {"drives": one.name, "chip": one.bus.removeprefix("gpio:"), "value": one.value}
    if one.value is None:
        output = _without({"drives": one.name, "above": one.above, "below": one.below})
    return {**output, "requires": requires, **timing}


def _value_of(specs: Any, stop: Any) -> Any:
    """What a profile writes for the level of a signal."""
    kind = next(kind for kind in kinds_of(specs) if stop.bus.startswith(f"{kind.name}:"))
    assert kind.outputs is not None
    bus = next(spec for spec in specs[kind.name] if kind.bus(spec) == stop.bus)
    signal = kind.outputs(bus, None).signals[stop.output]
    value = signal.shown(stop.value)
    return "safe" if isinstance(value, dict) else value  # RTS and DTR


def _halt(spec: Any, specs: Any) -> dict[str, Any]:
    def table(one: Any) -> dict[str, Any]:
        silent = getattr(one, "timeout_ms", None) is not None
        there = {"line": one.name, "chip": one.bus.removeprefix("gpio:")}
        return {**there, **_without(asdict(one), "bus", "offset", "name", *(["stop"] if silent else []))}

    def stop(one: Any) -> dict[str, Any]:
        chip = {"chip": one.bus.removeprefix("gpio:")} if one.key == "line" else {}
        value = _value_of(specs, one) if one.key == "signal" else one.value
        return {one.key: one.name, **chip, "value": value, "after_ms": one.after_ms}

    heartbeat = {} if spec.heartbeat is None else {"heartbeat": table(spec.heartbeat)}
    return {"inputs": list(map(table, spec.inputs)), "sequence": list(map(stop, spec.sequence)), **heartbeat}


def _port(uart: Any) -> dict[str, Any]:
    there = _without(asdict(uart), "settings", *(() if uart.driver == "sim" else ("peer",)))
    return {**there, **_without(asdict(uart.settings))}


def seeds() -> list[bytes]:
    """The shipped profiles without their comments, and one that has every key."""
    shipped = [(ROOT / f"drivers/boards/{name}.toml").read_bytes() for name in shipped_profiles()]
    bare = [b"\n".join(line for line in each.split(b"\n") if line and not line.startswith(b"#")) for each in shipped]
    return [*bare, _EVERY_KEY]


_EVERY_KEY = b"""\
name = "bench"
description = "every key there is"
[[gpio]]
label = "pinctrl"
driver = "gpiod"
path = "/dev/gpiochip0"
blocking = false
names = ["A", "", "B", "C"]
alias = { LED = "A" }
lines.A = { safe = 1, hold = "keep", direction = "output", drive = "open-drain", initial = 0, functions = ["ALT0"],
note = "n" }
lines.A.limit = { min_on_ms = 1, max_on_ms = 2.5, min_off_ms = 3, max_rate_hz = 0.5 }
lines.B = { direction = "input", pull = "up", active_low = true, debounce_us = 50 }
lines.C = { reserved = "the kernel's", direction = "any" }
[[gpio]]
label = "sim"
driver = "sim"
names = ["X", "Y"]
wires = [["X", "Y"]]
contacts = { Y = 1 }
panel = "panel"
[[i2c]]
bus = 3
driver = "i2c-dev"
adapter = "name"
speed_hz = 400_000
timeout_ms = 50
retries = 2
[[i2c.device]]
addr = 0x80
kind = "thing"
note = "ten bits"
[[i2c]]
bus = 1
driver = "sim"
[[i2c.device]]
addr = 0x50
kind = "24c02"
write_cycle_ms = 5.0
[[i2c.device]]
addr = 0x4d
kind = "mcp3221"
tank = { pump = "X", start = 10, fill = 2.5, drain = 1 }
[[uart]]
port = "a"
driver = "serial"
path = "/dev/ttyS0"
baud = 9600
bits = 5
parity = "even"
stop_bits = 1.5
flow = "xonxoff"
rs485 = { rts_on_send = false, loopback = true, before_ms = 1, after_ms = 2 }
inbox_bytes = 4096
rts = false
dtr = false
hangup = false
[[uart]]
port = "b"
driver = "sim"
peer = "none"
rs485 = true
[[pwm]]
label = "1-0040"
driver = "pwm"
overlay = "i2c-pwm-pca9685a"
chardev = false
channels = ["FAN", "", "ESC", "ARM"]
[pwm.channel.FAN]
period_us = 40
min_period_us = 20
max_period_us = 80.5
polarity = "inversed"
safe = 0.1
limit = { min = 0.1, max = 0.9, max_step = 0.2, slew_per_s = 0.5 }
on_limit = "clamp"
note = "a fan"
[pwm.channel.ESC]
period_us = 20_000
unit = "us"
hold = "keep"
reserved = "the drive"
[pwm.channel.ARM]
servo = { min_us = 2_000, max_us = 1_000, min_angle = -90, max_angle = 90, slew = 60 }
safe = 0
[[dac]]
label = "mcp4725-i2c-1-60"
driver = "iio"
channels = ["", "VALVE", "BIAS"]
[dac.channel.VALVE]
quantity = "current"
min = 0.004
max = 0.02
safe = "off"
slew = 0.01
on_limit = "clamp"
[dac.channel.BIAS]
min = -2.5
max = 2.5
safe = 0
hold = "keep"
scale = -0.001
offset = 7
unit = "bar"
reserved = "the amplifier"
note = "n"
[[interlock]]
drives = "ARM"
above = 30
below = -30
requires = [{ line = "B", chip = "pinctrl", value = 1 }]
[[interlock]]
drives = "X"
chip = "sim"
value = 1
requires = [{ line = "B", chip = "pinctrl", value = 1 }, { sensor = "room", min = 10, max = 30.5 }]
max_age_ms = 900
check_ms = 300
[halt]
inputs = ["B"]
heartbeat = { line = "Y", hz = 2.5 }
[[halt.sequence]]
line = "X"
value = "input"
after_ms = 20
[[halt.sequence]]
channel = "ARM"
value = 45
[[halt.sequence]]
channel = "VALVE"
value = "off"
after_ms = 30
[[halt.sequence]]
signal = "gpio:sim:X"
value = 0
[[halt.sequence]]
signal = "dac:mcp4725-i2c-1-60:VALVE"
value = "safe"
[sensors.room]
kind = "tmp102"
bus = 1
addr = 0x48
description = "d"
[tools]
allow = ["gpio.*"]
[discover]
gpio = ["gpiochip*"]
i2c = true
uart = false
sensors = true
"""
_POOL = sorted({line for seed in seeds() for line in seed.split(b"\n") if line and len(line) < 200})


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Lines of profiles put in, taken out, changed."""
    return lines_of(data, rng, _POOL)
