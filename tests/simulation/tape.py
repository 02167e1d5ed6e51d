"""What an outsider saw of one simulated world, in order: the only thing that the world hands to its judge.

The world writes entries; the observer reads them. An entry holds plain values only (numbers, strings, bytes, lists and
dicts of these), so nothing of the runtime can reach its own judge by it. Entries are numbered by their place; `at` is
virtual time in seconds since the world began.

| kind | told by | members |
| --- | --- | --- |
| `world` | the scenario, once, first | `seed`, `config` (limits and policy that hold: see `scenario.Terms`) |
| `bus.open` `bus.close` | a bus's device | `bus` |
| `bus.begin` | a bus's device, as it is reached | `bus`, `transaction` (its number), `what` (the operation), `args` |
| `bus.end` | the same | `bus`, `transaction`, `outcome` ("done", "error", "cut": it was broken off in the middle) |
| `bus.level` | a bus's device | `bus`, `line`, `value` (None: an input) |
| `disk.write` | the disk under the audit log, once the kernel would have the bytes | `file`, `data` (bytes) |
| `disk.sync` `disk.cut` `disk.fails` | the same | `file`; cut: `size`; fails: `call`, `errno` |
| `client.opens` | a client | `client` (its number), `principal` (its key) |
| `client.sends` `client.receives` | a client, a whole line each | `client`, `line` (bytes); a torn one: `torn` true |
| `client.leaves` | a client that ends its connection | `client`, `how` |
| `client.ends` | a client that finds its connection ended | `client` |
| `fault` | whoever injects one | `what`, and what it is about |
| `daemon.starts` `daemon.told` `daemon.ends` | the scenario | told: `signal`; ends: `error` (None, or what came out) |
| `policy` | who lets the daemon read a policy | `what` ("begins", "ends"); begins: `policy` (as in `world`), `yes` |
| `baseline` | the scenario, before the first client and after all | `when` ("before", "after"), `counts` (by name) |
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One thing that was seen."""

    number: int
    at: float
    kind: str
    what: dict[str, Any]


class Tape:
    """The entries of one world, growing at the end."""

    def __init__(self, clock):
        self._clock = clock
        self.entries: list[Entry] = []

    def tell(self, kind: str, **what: Any) -> None:
        """Add an entry; the values must not be changed afterwards."""
        self.entries.append(Entry(len(self.entries), self._clock(), kind, what))

    def of(self, *kinds: str) -> list[Entry]:
        """The entries of these kinds, in order."""
        return [entry for entry in self.entries if entry.kind in kinds]
