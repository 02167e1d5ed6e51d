"""`hearth` with its modules imported, for `support.zygote`: where it is started again and again in one test."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import hearth.cli
from hearth.cli.main import main

for _module in pkgutil.iter_modules(hearth.cli.__path__, "hearth.cli."):
    import_module(_module.name)

__all__ = ["main"]
