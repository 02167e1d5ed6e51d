"""One target under libFuzzer: `python -m tests.fuzz.child TARGET [libFuzzer's own options and directories]`.

`python -m tests.fuzz` starts it. An input may take a second of processor time: a clock on the wall would find hangs
wherever a machine is busy. libFuzzer's own clock is for what never returns.
"""

from __future__ import annotations

import random
import shlex
import sys
import time
from typing import TYPE_CHECKING

import atheris

from . import ROOT
from .targets import MOST_SECONDS, TARGETS, Hang, load

if TYPE_CHECKING:
    from types import ModuleType

STRUCTURED = 0.6
"""How often a change is the target's own; the others are libFuzzer's, which has the dictionary."""


def main() -> None:
    """Run until libFuzzer has had enough."""
    name = sys.argv[1]
    with atheris.instrument_imports(include=["hearth"], exclude=_others(TARGETS[name].instrument)):
        module = load(name)
    # libFuzzer starts itself again to merge, and hands its first argument to a shell.
    myself = f"{shlex.quote(sys.executable)} -m {__package__}.child {name}"
    _run(module, [myself, *sys.argv[2:]])


def _others(wanted: tuple[str, ...]) -> list[str]:
    """Every module of hearth that a target is not about: atheris takes a whole package, or what is left of it."""
    files = [
        path.relative_to(ROOT) for folder in ("hearth", "actors", "drivers") for path in (ROOT / folder).rglob("*.py")
    ]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    names = {name if name.startswith("hearth") else f"hearth.{name}" for name in names}
    return [name for name in names if not any(f"{name}.".startswith(f"{one}.") for one in wanted)]


def _run(module: ModuleType, arguments: list[str]) -> None:
    check, mutate, rng, now = module.check, module.mutate, random.Random(), time.process_time

    def one(data: bytes) -> None:
        begun = now()
        check(data)
        if (took := now() - begun) > MOST_SECONDS:
            raise Hang(f"{took:.1f} s for {len(data)} bytes")

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        rng.seed(seed)
        if rng.random() < STRUCTURED:
            changed = mutate(bytes(data), rng)
            if 0 < len(changed) <= most:
                return changed
        return bytes(atheris.Mutate(data, most))

    atheris.Setup(arguments, one, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
