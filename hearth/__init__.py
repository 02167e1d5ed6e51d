"""hearth: safe, stable, audited access to real hardware for agents and programs, on Trio.

Public names are loaded on first use, so that a client never imports drivers and `hearth --help` imports nothing heavy.
Those of extras (`hearth.Job`, `hearth.aio`) are in the extras' records. Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hearth._version import __version__ as __version__

_HOME = {
    "hearth.actors.embedded": "EmbeddedRuntime=Runtime open_runtime",
    "hearth.actors.loop": "ControlLoop",
    "hearth.actors.bus.loop_thread": "LoopIO",
    "hearth.api": (
        "Expect HaltStatus Plan PlanStep PlanSummary Session Step StepResult Task TaskEvent TaskResult expect step"
    ),
    "hearth.client.connection": "Client connect",
    "hearth.config.model": "Config load_config",
    "hearth.errors": (
        "ApprovalRequired ArtifactDamaged CarrierError ConfigError DeviceError EffectNotSeen Halted HearthError "
        "InterlockOpen InvalidParams JobFailed JobRejected LimitViolated LoopStopped PermissionDenied PlanStale "
        "ResourceBusy RpcError SessionInvalid TaskFailed TimedOut"
    ),
    "hearth.loop": "LoopStats Sample",
    "hearth.tools": "Done Drive Preview StepContext Tool Undo Use",
}
"""Module -> the public names that it defines, separated by spaces; NAME=PUBLIC for one that is public by another."""
_PLACE_OF = {
    public or name: (module, name)
    for module, names in _HOME.items()
    for name, _, public in (entry.partition("=") for entry in names.split())
}


def __getattr__(name: str) -> Any:
    if name in _PLACE_OF:
        module, defined = _PLACE_OF[name]
        value = globals()[name] = getattr(import_module(module), defined)
        return value
    # Imported here: a program that uses the core alone needs no record of an extra.
    from hearth.extras import NAMES, load

    if name in NAMES:
        value = globals()[name] = load(NAMES[name])
        return value
    if name == "__all__":
        return __dir__()
    from hearth._util.text import suggest

    near = suggest(name, __dir__())
    raise AttributeError(f"module 'hearth' has no attribute {name!r}{near and f'; {near}'}")


def __dir__() -> list[str]:
    from hearth.extras import NAMES

    return ["__version__", *_PLACE_OF, *NAMES]
