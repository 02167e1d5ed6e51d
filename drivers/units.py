"""Units: one list of them, each with the spellings that mean it.

A unit of a board profile is a word of its author; results repeat it as it is written. Where two units are compared, or
a value is given with its unit ("3.3 V"), every spelling of a unit is the same one. Nothing is converted: 3300 mV is not
read as 3.3 V, because a wrong prefix is a likelier mistake than a wanted one.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Final

_SPELLINGS: Final = """
celsius = °C, ℃, C, degC, deg C, degree celsius, degrees celsius
fahrenheit = °F, degF, deg F
kelvin = K
volt = V, volts
millivolt = mV, millivolts
ampere = A, amp, amps, amperes
milliampere = mA, milliamps
ohm = Ω, Ω, ohms
watt = W, watts
watthour = Wh
joule = J, joules
hertz = Hz
kilohertz = kHz
hertz per second = Hz/s
percent = %, pct, per cent
%RH = percent RH, %rH, relative humidity
degree = °, deg, degrees
radian = rad, radians
rpm = 1/min, r/min, rev/min, revolutions per minute
metre = m, meter, metres, meters
millimetre = mm, millimeter, millimetres, millimeters
m/s = metres per second, meters per second
m/s^2 = m/s², m/s2, metre_per_second_squared
hour = h, hours
second = s, sec, seconds
millisecond = ms, milliseconds
us = µs, μs, microsecond, microseconds
pascal = Pa, pascals
hectopascal = hPa
kilopascal = kPa
bar = bars
litre = l, L, liter, litres, liters
l/min = L/min, lpm, litres per minute, liters per minute
kilogram = kg, kilograms
gram = g, grams
newton = N, newtons
newtonmetre = Nm, N·m, N*m
tesla = T
lux = lx
decibel = dB
ppm = parts per million
count = counts
boolean = bool
"""

_UNIT: Final = {
    spelling: unit.strip()
    for unit, _, spellings in (line.partition("=") for line in _SPELLINGS.strip().splitlines())
    for spelling in (unit.strip(), *(one.strip() for one in spellings.split(",")))
}
_VALUE: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.DOTALL)


def unit_of(written: str) -> str:
    """Return the unit that a spelling means; an unknown one is a unit itself."""
    return _UNIT.get(written.strip(), written.strip())


def same_unit(one: str, other: str) -> bool:
    """Return True if two spellings mean one unit."""
    return unit_of(one) == unit_of(other)


def read_value(text: str, unit: str) -> float | None:
    """Return the number of "3.3 V" or "3.3" for a value in `unit`; None for a text that does not begin with a number.

    Raises ValueError, which says what is expected, for another unit.
    """
    match = _VALUE.fullmatch(text)
    if match is None:
        return None
    number, given = float(match[1]), match[2]
    if given and not same_unit(given, unit):
        expected = f"expected a value in {unit}" if unit else "expected a number without a unit"
        raise ValueError(f"{expected}, got {text!r}")
    if not isfinite(number):
        raise ValueError(f"expected a finite number, got {text!r}")
    return int(number) if number.is_integer() and "." not in match[1] and "e" not in match[1].lower() else number
