"""The targets by name: what each module is about, what of hearth is instrumented for it, how long an input may be.

A target's module has `check(data)`, which returns or raises (an AssertionError of its oracle, or whatever escaped
from the code under test), `seeds()`, inputs made of the project's own examples, `mutate(data, rng)`, a
structure-aware change, and `DICTIONARY`. It is loaded late, so that atheris can instrument what it imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from .. import HERE

if TYPE_CHECKING:
    from types import ModuleType

CORPUS = HERE / "corpus"
MOST_SECONDS = 1.0
"""Of processor time, for one input."""


class Hang(AssertionError):
    """An input took too long."""


class Target(NamedTuple):
    """One of them."""

    about: str
    instrument: tuple[str, ...]
    """Modules of hearth, each with what is beneath it."""
    max_len: int
    """Bytes of an input: no more than its kind needs, for long ones are slow."""


TARGETS: dict[str, Target] = {
    "wire": Target("framing and JSON-RPC, both ends of a connection", ("hearth.protocol", "hearth.errors"), 1500),
    "config": Target("hearth.toml", tuple(f"hearth.config.model{part}" for part in
        ("", "_card", "_exec", "_files", "_hcp", "_kinds", "_listen", "_sandbox", "_toml")), 6000),
    "board": Target("board profiles", ("hearth.drivers.boards", "hearth.drivers.serial_port.settings"), 6000),
    "modbus": Target("answers of Modbus devices", ("hearth.drivers.modbus.codec",), 600),
    "amqp": Target("what a broker of AMQP sends", ("hearth.amqp",), 2500),
    "card": Target("AgentCards", ("hearth.agentcard", "hearth.schema"), 3000),
    "hcp": Target("HCP messages and session tokens", ("hearth.hcp", "hearth.protocol.jsonrpc"), 3000),
    "audit": Target("the audit log: verification and recovery", ("hearth.audit",), 4096),
    "mcp": Target("a tool's arguments, from tools/call to an accepted task", (
        "hearth.actors.bridges.mcp.server", "hearth.actors.bridges.mcp.server", "hearth.actors.bridges.mcp.calls",
        "hearth.actors.admission",
        "hearth.mcp", "hearth.schema", "hearth.protocol.methods", "hearth.protocol.methods", "hearth.drivers.tools",
    ), 1500),
}  # fmt: skip


def load(name: str) -> ModuleType:
    """The module of a target."""
    return importlib.import_module(f"{__name__}.{name}")


def kept(name: str) -> dict[str, bytes]:
    """A target's corpus: inputs by the names of their files."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).glob("*"))}
