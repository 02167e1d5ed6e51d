"""What clients ask for: steps, and the constraints of tasks, at random and mostly within what they may do.

Owns which tools are used how often and with which args. Who submits it, when and on which connection is the client's.
"""

from __future__ import annotations

import base64
import zlib

from .terms import TOOLS

FILES = "/proc/self/cwd/files"
LINES = (0, 0, 1, 2, 3, 4, 5)
ODD_LINES = ("GPIO0", 6, 7, 9)
"""By name; an input; reserved; not there."""
DEVICES = ((1, 0x48), (1, 0x50), (2, 0x50), (2, 0x50), (1, 0x33))
"""Buses and addresses, the last of which nobody answers at."""
PATHS = (*[f"{FILES}/read.txt", f"{FILES}/a", f"{FILES}/b"] * 4, f"{FILES}/../log/audit.log", "/etc/passwd")


def encoded(text) -> str:
    """Binary data as args have it."""
    return base64.b64encode(text.encode()).decode()


def _line(rng):
    return rng.choice(ODD_LINES if rng.random() < 0.08 else LINES)


def _device(rng, *, hot):
    bus, addr = (2, 0x50) if hot else rng.choice(DEVICES)
    return {"bus": bus, "addr": addr}


def _set(rng, _mark, _hot):
    return "gpio.set", {"line": _line(rng), "value": rng.randint(0, 1)}


def _get(rng, _mark, _hot):
    return "gpio.get", {"line": _line(rng)}


def _pulse(rng, _mark, _hot):
    return "gpio.pulse", {"line": _line(rng), "value": 1, "duration_ms": rng.choice([1, 20, 200])}


def _watch(rng, _mark, _hot):
    return "gpio.watch", {"line": _line(rng), "count": rng.randint(1, 3), "timeout_ms": rng.choice([5, 100, 2000])}


def _i2c_read(rng, _mark, hot):
    return "i2c.read", {**_device(rng, hot=hot), "len": rng.randint(1, 16)}


def _i2c_write(rng, mark, hot):
    return "i2c.write", {**_device(rng, hot=hot), "reg": rng.randint(0, 255), "data": encoded(mark)}


def _i2c_transfer(rng, mark, hot):
    return "i2c.transfer", {**_device(rng, hot=hot), "write": encoded(mark), "read_len": 2}


def _i2c_scan(rng, _mark, _hot):
    return "i2c.scan", {"bus": rng.choice([1, 2])}


def _uart(rng, mark, _hot):
    line = encoded(f"{mark}\n")
    which, args = rng.choice(
        [
            ("read", {"timeout_ms": rng.choice([0, 50]), "until": "\n"}),
            ("write", {"data": line}),
            ("exchange", {"data": line, "until": "\n", "timeout_ms": 100}),
            ("control", rng.choice([{"rts": False}, {"dtr": False}, {}, {"break_ms": 20}])),
        ]
    )
    return f"uart.{which}", {"port": "uart0", **args}


def _file(rng, mark, _hot):
    which = rng.choice(["read", "write", "write", "delete"])
    args = {"path": rng.choice(PATHS)}
    if which == "write":
        args |= {"data": encoded(mark), "mode": rng.choice(["replace", "append", "create"])}
    return f"file.{which}", args


def _machine(rng, _mark, _hot):
    return rng.choice([("sys.memory", {}), ("sys.load", {}), ("hw.sensor.read", {"sensor": "temperature"})])


def _own(rng, _mark, _hot):
    tool = rng.choices(["nap", "many", "children", "breaks_task"], [6, 6, 1, 1])[0]
    return f"world.{tool}", {"ms": rng.randint(0, 60), "n": rng.randint(1, 4)}


def _nonsense(rng, _mark, _hot):
    return rng.choice([("gpio.fly", {}), ("i2c.read", {}), ("gpio.set", {"line": 0, "value": 2})])


KINDS = {
    _set: 12,
    _get: 4,
    _pulse: 3,
    _watch: 1.5,
    _i2c_read: 8,
    _i2c_write: 6,
    _i2c_transfer: 3,
    _i2c_scan: 0.3,
    _uart: 5,
    _file: 6,
    _machine: 3,
    _own: 5,
    _nonsense: 0.8,
}
HOT_KINDS = (_i2c_read, _i2c_write, _i2c_transfer)


def step(rng, mark, entry, *, hot):
    """A step: mostly one that the principal of this policy may do."""
    for _ in range(5):
        kind = rng.choice(HOT_KINDS) if hot and rng.random() < 0.6 else rng.choices([*KINDS], [*KINDS.values()])[0]
        tool, args = kind(rng, mark, hot)
        allowed = entry is None or (tool in entry["tools"] and TOOLS[tool][0] <= entry["max_risk"])
        if allowed or rng.random() < 0.12:
            break
    return {"tool": tool, "args": {"mark": mark, **args}}


def expecting(step, rng):
    """The step, sometimes with a read that must show its effect."""
    tool, args = step["tool"], step["args"]
    if tool != "gpio.set" or args["line"] not in range(6) or rng.random() > 0.25:
        return step
    read = {"mark": f"{args['mark']}.seen", "line": args["line"]}
    expect = {"tool": "gpio.get", "args": read, "equals": {"value": args["value"]}}
    return {**step, "expect": {**expect, "within_ms": rng.choice([1, 20, 100])}}


def named(step, entry):
    """The step, sometimes by the name of its signal, and what is refused by a name that is refused too.

    Its mark decides that, and no draw: the other steps of a seed stay what they are.
    """
    tool, args = step["tool"], step["args"]
    if zlib.crc32(args["mark"].encode()) % 3:
        return step
    if entry is not None and not {tool, "hw.sensor.read"} & {*entry["tools"]}:
        return {"tool": "signal.read", "args": {"mark": args["mark"], "name": "temperature"}}
    if args.get("line", 0) not in range(6):
        return step
    args = {**args}
    if tool == "hw.sensor.read":
        return {**step, "tool": "signal.read", "args": {"name": args.pop("sensor"), **args}}
    if tool not in ("gpio.get", "gpio.set", "gpio.pulse"):
        return step
    name = f"GPIO{args.pop('line')}"
    return {**step, "tool": f"signal.{'read' if tool == 'gpio.get' else 'set'}", "args": {"name": name, **args}}


CONSTRAINTS = (
    ("exclusive", 0.2, [True]),
    ("priority", 0.4, ["low", "high", "urgent"]),
    ("rollback_on_failure", 0.5, [True]),
    ("abort_on_step_failure", 0.2, [False]),
    ("on_busy", 0.2, ["fail"]),
    ("max_duration_ms", 0.15, [1, 5, 40, 300]),
    ("max_risk_level", 0.06, [0, 1, 2, 3]),
    ("dry_run", 0.07, [True]),
)
"""Each with its chance, and its values."""


def constraints(rng):
    """Some constraints, or none."""
    return {name: rng.choice(values) for name, chance, values in CONSTRAINTS if rng.random() < chance}


def rush(tool, mark, at):
    """One of many of the same kind."""
    return {
        "gpio.set": {"mark": mark, "line": at % 6, "value": 1},
        "i2c.write": {"mark": mark, "bus": 2, "addr": 0x50, "reg": at, "data": encoded(mark)},
        "file.write": {"mark": mark, "path": f"{FILES}/rush", "data": encoded(mark)},
        "world.nap": {"mark": mark, "ms": 5},
    }[tool]


MALFORMED = (
    b"{\n",
    b"[]\n",
    b"\xff\xfe\n",
    b'{"jsonrpc":"2.0","id":null,"method":5}\n',
    b'{"jsonrpc":"2.0","id":{},"method":"task.get"}\n',
    b'{"jsonrpc":"1.0","id":"v","method":"task.get"}\n',
    b'{"jsonrpc":"2.0","id":"m","method":"task.dance","params":{}}\n',
    b'{"jsonrpc":"2.0","id":"p","method":"task.get","params":[1]}\n',
    b'{"jsonrpc":"2.0","id":"q","method":"task.submit","params":{"session_id":7}}\n',
    b'{"jsonrpc":"2.0","method":"task.submit","params":{}}\n',
    b'"' + b"x" * 5000 + b'"\n',
    b"\n",
)
"""Lines that are no request, or not one that anybody understands."""
