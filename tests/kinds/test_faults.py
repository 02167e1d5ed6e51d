"""What a board profile cannot say is refused with the file, the place and the cure: one line of `faults.txt` each."""

from __future__ import annotations

import re
import tomllib
from copy import deepcopy
from pathlib import Path

import pytest

import hearth.drivers.boards
from hearth.drivers.boards.profile import parse_profile
from hearth.errors import ConfigError

SIM = tomllib.loads((Path(hearth.drivers.boards.__file__).parent / "sim.toml").read_text())
HEAD = {"name": "b", "description": "a board"}
DOOR = {"label": "cell", "driver": "sim", "names": ["DOOR"]}
FAN = {"label": "a", "driver": "sim", "channels": ["FAN"], "channel": {"FAN": {"period_us": 40, "safe": 0.1}}}
REAL = HEAD | {
    "gpio": [{"label": "c", "driver": "gpiod", "names": ["A"], "lines": {"A": {}}}],
    "i2c": [{"bus": 1, "driver": "i2c-dev"}],
    "uart": [{"port": "p", "driver": "serial", "path": "/dev/ttyS9"}],
}
LOCK = {"drives": "RELAY", "value": 1, "requires": [{"line": "BUTTON", "value": 0}]}
LINES = {"ESTOP": {"direction": "input", "pull": "up"}, "MOTOR": {"safe": 0}, "SPARE": {"reserved": "burnt"}}
PROFILES = {
    "sim": SIM,
    "real": REAL,
    # Without the board's own [halt], whose lines are outputs and inputs too: an edit of one would be a mistake there.
    "interlock": {key: value for key, value in SIM.items() if key != "halt"} | {"interlock": [LOCK]},
    "pwm": HEAD | {"pwm": [{"label": "a", "driver": "sim", "channels": ["A"], "channel": {"A": {"period_us": 10}}}]},
    "channel lock": HEAD
    | {
        "pwm": [FAN],
        "gpio": [DOOR],
        "interlock": [{"drives": "FAN", "above": 0.5, "requires": [{"line": "DOOR", "value": 0}]}],
    },
    "dac": HEAD
    | {"dac": [{"label": "a", "driver": "sim", "channels": ["A"], "channel": {"A": {"min": 0, "max": 3, "safe": 0}}}]},
    "can": HEAD | {"can": [{"bus": "can0", "driver": "socketcan"}]},
    "modbus": HEAD
    | {
        "modbus": [
            {
                "line": "plant",
                "driver": "sim",
                "device": [{"unit": 3, "name": "FAN", "registers": [{"name": "speed", "reg": 100}]}],
            }
        ]
    },
    "spi": HEAD
    | {
        "spi": [
            {
                "name": "MOTOR",
                "driver": "sim",
                "kind": "registers",
                "registers": [{"reg": 0x10, "name": "SPEED", "width": 16, "max": 3000}],
            }
        ]
    },
    "halt": HEAD | {"gpio": [{"label": "a", "driver": "sim", "names": [*LINES], "lines": LINES}], "halt": {}},
}


def read():
    """Yield (name, profile, edits, fault, the only one?) for each line of the file."""
    profile = root = None
    _, *lines = Path(__file__).with_name("faults.txt").read_text().split("\n\n", 2)[-1].splitlines()
    for line in ["# sim", *lines]:
        if line.startswith("# "):
            profile, _, root = line[2:].partition(": ")
        elif line:
            several, row = line.startswith("+ "), line.removeprefix("+ ")
            given, _, fault = row.partition(" | ")
            edits = [re.fullmatch(r"(\S+) (?:-|= (.*))", one).groups() for one in given.split(" ; ")]
            edits = [(place(root, path), value) for path, value in edits]
            at = re.match(r"([\w.\[\]\"-]+): ", fault)
            if at and (at[1] == "." or at[1][0] in ".[" or "." in at[1] or "[" in at[1]):
                fault = f"{place(root, at[1])}: {fault[at.end() :]}"
            else:
                fault = f"{edits[-1][0]}: {fault}"
            yield f"{profile}: {given}", profile, edits, fault, not several


def place(root, path):
    """The whole path."""
    if path == ".":
        return root
    return f"{root}{path}" if path[0] in ".[" else path


def edited(content, path, value):
    """Change a member of the content, or take it out."""
    at, keys = content, [int(index) if index else key.strip('"') for index, key in KEYS.findall(path)]
    for key in keys[:-1]:
        at = at[key] if isinstance(key, int) else at.setdefault(key, {})
    if value is None:
        del at[keys[-1]]
    elif isinstance(at, list) and keys[-1] == len(at):
        at.append(tomllib.loads(f"x = {value}")["x"])
    else:
        at[keys[-1]] = tomllib.loads(f"x = {value}")["x"]


KEYS = re.compile(r'\[(\d+)\]|("[^"]*"|[\w-]+)')
ROWS = list(read())


@pytest.mark.parametrize(("profile", "edits", "fault", "only"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_cannot_be_is_a_fault_with_its_place_and_its_cure(profile, edits, fault, only):
    content = deepcopy(PROFILES[profile])
    for path, value in edits:
        edited(content, path, value)
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, "board profile x.toml")
    lines = str(caught.value).splitlines()
    assert any(line.startswith(f"board profile x.toml: {fault}") for line in lines), lines
    assert len(lines) == 1 or not only


MORE = [
    (SIM | {"gpio": [SIM["gpio"][0]] * 2}, 'gpio[1].label: "sim" is there twice'),
    (SIM | {"i2c": [SIM["i2c"][0]] * 2}, "i2c[1].bus: 1 is there twice"),
    (HEAD | {"gpio": [DOOR | {"names": [f"L{n}" for n in range(1025)]}]}, "gpio[0].names: expected the names of up to"),
    (HEAD | {"can": [{"bus": "can0", "driver": "socketcan", "filters": [{"id": 1}] * 513}]}, "can[0].filters: the ker"),
]


@pytest.mark.parametrize(("content", "fault"), MORE, ids=[fault for _, fault in MORE])
def test_what_is_there_twice_or_too_often_is_refused(content, fault):
    with pytest.raises(ConfigError) as caught:
        parse_profile(content, "x")
    assert str(caught.value).startswith(f"x: {fault}")


@pytest.mark.parametrize("profile", PROFILES)
def test_the_profiles_themselves_are_good_ones(profile):
    parse_profile(deepcopy(PROFILES[profile]), "board profile x.toml")
