"""The terms that a world is held to: what its configuration promises, as plain values for the judge.

Owns the shape (see `scenario` for its words) and its translation into a hearth configuration.
"""

from __future__ import annotations

from hearth.actors.daemon import FLUSH_TIMEOUT
from hearth.config.model import ApprovalConfig, PolicyConfig

from . import wide

BUSES = ("gpio:sim", "i2c:1", "i2c:2", "uart:uart0", "files", "system")
"""Buses with devices of the world's own; "board" is there beside them."""

HOT = "i2c:2"
"""The bus that everybody wants in some worlds."""

LINES = {
    0: {"safe": 0, "hold": "release"},
    1: {"safe": 1, "hold": "release"},
    2: {"safe": 0, "hold": "keep"},
    3: {"safe": "input", "hold": "release"},
    4: {"safe": "input", "hold": "release"},
    5: {"safe": 0, "hold": "release"},
}
"""The lines of gpio:sim that may be driven."""

INTERLOCKS = [
    {"bus": "gpio:sim", "line": 3, "value": 1, "door": 6, "closed": 1, "check_s": 0.1, "bound_s": 0.05},
]
"""The interlocks of the board. An output is safe `bound_s` after the check that finds the door open."""

TIMES = [{"bus": "gpio:sim", "line": 4, "min_off_s": 0.06, "max_on_s": 0.4, "bound_s": 0.05}]
"""The limits of the board's lines: on is 1, off is anything else. A line is off `bound_s` after its longest time on."""

PRINCIPALS = {
    "uid:1001": {
        "max_risk": 2,
        "ceiling": 3,
        "tools": ["*"],
        "rates": {},
        "approval": {"from_risk": 3, "persons": 1, "other": True},
        "rights": ("approve",),
    },
    "uid:1002": {
        "max_risk": 2,
        "ceiling": 3,
        "tools": ["*"],
        "rates": {"gpio.set": [4, 1], "i2c.write": [6, 2]},
        "rights": ("approve", "observe"),
    },
    "uid:1003": {"max_risk": 1, "ceiling": 2, "tools": ["*"], "rates": {"file.write": [3, 1], "world.nap": [2, 1]}},
    "uid:1004": {"max_risk": 2, "ceiling": 2, "tools": ["gpio.*", "i2c.read", "world.*"], "rates": {"gpio.*": [5, 1]}},
}
"""By key; whoever else comes may not even open a session. What `rates` leaves out has its risk's or its own."""
OTHERS = {
    "uid:1900": {
        "max_risk": 3,
        "ceiling": 3,
        "tools": ["*"],
        "rates": {},
        "rights": ("observe", "approve", "reset_halt"),
    },
    # Those of `reloads`: an author, an approver, and an administrator.
    "uid:1901": {
        "max_risk": 2,
        "ceiling": 2,
        "tools": ["file.*"],
        "rates": {"file.write": [50, 1]},
        "approval": {"from_risk": 1, "persons": 1, "other": True},
        "changes": True,
    },
    "uid:1902": {
        "max_risk": 0,
        "ceiling": 0,
        "tools": ["hw.board"],
        "rates": {},
        "rights": ("approve",),
        "changes": True,
    },
    "uid:1903": {"max_risk": 0, "ceiling": 0, "tools": ["hw.board"], "rates": {}, "rights": ("admin",)},
}
"""Principals that are no clients of their own accord."""
BY_RISK = {0: [1000, 1], 1: [200, 1], 2: [200, 1], 3: [1, 1]}
OWN_RATES = {"i2c.scan": [5, 1]}
UNLISTED = "uid:1005"
APPROVER = "uid:1002"
"""Who may approve the plans of others, and observe."""
KEEPER = "uid:1900"
"""Who has every right, and is no client: it is asked in when the faults are over."""
AUTHOR = "uid:1001"
"""Whose plans need the approval of another, although it may approve those of others."""


def policy_of(terms):
    """The `[[policy]]` of the terms."""
    return tuple(
        PolicyConfig(
            name=f"of-{key.partition(':')[2]}",
            match={"uid": int(key.partition(":")[2])},
            max_risk=entry["max_risk"],
            max_risk_ceiling=entry["ceiling"],
            tools=tuple(entry["patterns"]),
            rate={pattern: f"{count}/{period}s" for pattern, (count, period) in entry["patterns_rates"].items()},
            rights=entry["rights"],
            approval=(ApprovalConfig(**entry["approval"]),) if entry["approval"] else (),
        )
        for key, entry in terms["policy"].items()
    )


TOOLS = {
    "gpio.get": (0, "gpio:sim", None, None, False, False),
    "gpio.watch": (0, "gpio:sim", None, None, False, False),
    "gpio.set": (2, "gpio:sim", None, None, True, True),
    "gpio.pulse": (2, "gpio:sim", None, None, False, True),
    # Its effective risk: no order reads at a register.
    "i2c.read": (0, None, "bus", "i2c:", False, False),
    "i2c.write": (2, None, "bus", "i2c:", False, False),
    "i2c.transfer": (2, None, "bus", "i2c:", False, False),
    "i2c.scan": (1, None, "bus", "i2c:", False, False),
    "uart.read": (1, None, "port", "uart:", False, False),
    "uart.write": (2, None, "port", "uart:", False, False),
    "uart.exchange": (2, None, "port", "uart:", False, False),
    "uart.control": (2, None, "port", "uart:", True, True),
    "file.read": (0, "files", None, None, False, False),
    "file.write": (1, "files", None, None, True, False),
    "file.delete": (3, "files", None, None, False, False),
    "sys.memory": (0, "system", None, None, False, False),
    "sys.load": (0, "system", None, None, False, False),
    "hw.board": (0, "board", None, None, False, False),
    "hw.i2c.list": (0, "board", None, None, False, False),
    "hw.sensor.read": (0, "i2c:1", None, None, False, False),
    "world.nap": (0, "i2c:1", None, None, False, False),
    "world.many": (0, "i2c:1", None, None, False, False),
    "world.children": (0, "i2c:1", None, None, False, False),
    "world.breaks_task": (1, "i2c:1", None, None, False, False),
    "world.breaks_session": (0, "i2c:1", None, None, False, False),
}
"""What clients use: risk, bus or the arg that names it and the prefix before it, whether it can be undone, drives."""

DISCLOSES = ("file.read",)
"""Those of risk 0 that must not run unrecorded all the same."""


def make_terms(rng, *, is_wide=False):
    """The terms of one world, which may have further buses."""
    from fnmatch import fnmatchcase

    tools = {**TOOLS, **(wide.TOOLS if is_wide else {})}
    further = wide.BUSES if is_wide else {}

    limits = {
        "idle_ttl_s": rng.choice([3, 8, 20]),
        "max_document_bytes": 4096,
        "max_batch": 4,
        "max_steps": rng.choice([4, 5]),
        "max_tasks_per_session": rng.choice([2, 4, 8]),
        "max_sessions_per_principal": rng.choice([2, 3]),
        "max_connections": rng.choice([4, 64]),
        "max_outstanding": rng.choice([3, 16]),
        "bus_queue": rng.choice([1, 2, 4]),
        "task_history": rng.choice([0, 4, 16]),
        "shutdown_grace_s": rng.choice([1, 4]),
        "send_timeout_s": rng.choice([1, 5]),
        "close_grace_s": rng.choice([0.2, 1]),
        "plan_ttl_s": 10,
    }
    policy = {}
    for key, entry in {**PRINCIPALS, **OTHERS}.items():
        permitted = [name for name in tools if any(fnmatchcase(name, pattern) for pattern in entry["tools"])]
        rates = {name: OWN_RATES.get(name, BY_RISK[tools[name][0]]) for name in permitted}
        for name in permitted:
            for pattern, rate in entry["rates"].items():
                if fnmatchcase(name, pattern):
                    rates[name] = rate
        policy[key] = {
            "max_risk": entry["max_risk"],
            "ceiling": entry["ceiling"],
            "tools": permitted,
            "rates": rates,
            "max_sessions": limits["max_sessions_per_principal"],
            "patterns": entry["tools"],
            "patterns_rates": entry["rates"],
            "approval": entry.get("approval"),
            "observes": "observe" in entry.get("rights", ()),
            "rights": entry.get("rights", ()),
            "changes": entry.get("changes", False),
        }
    widths = {"files": 4, "system": 2}
    return {
        "buses": {
            bus: {
                "width": widths.get(bus, 1),
                "kind": bus.partition(":")[0],
                "lines": LINES if bus == "gpio:sim" else {},
                **further.get(bus, {}),
            }
            for bus in (*BUSES, "board", *further)
        },
        "ranges": wide.RANGES if is_wide else [],
        "owned": wide.OWNED if is_wide else [],
        "interlocks": INTERLOCKS,
        "times": TIMES,
        "tools": {
            name: {
                "risk": risk,
                "bus": bus,
                "arg": arg,
                "prefix": prefix,
                "undo": undo,
                "drives": drives,
                "discloses": name in DISCLOSES,
            }
            for name, (risk, bus, arg, prefix, undo, drives) in tools.items()
        },
        "policy": policy,
        "limits": limits,
        "durability": rng.choice(["os", "os", "fsync", "relaxed"]),
        "rotate_bytes": rng.choice([4096, 16384, 1 << 26]),
        "checkpoint_every": rng.choice([7, 40, 1000]),
        # Sessions, the transactions that were left, safe states, buses that are down, clients, the last records.
        "end_bound": limits["shutdown_grace_s"] + 5 + limits["close_grace_s"] + 5 + 1 + FLUSH_TIMEOUT + 10 + 2,
    }
