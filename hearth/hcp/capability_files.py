"""Capability files: Python files, whose owners and modes are checked before they run, and the reading of plan files.

A Python capability file is code that hearthd runs, as root where hearthd is started as root: any user that can write
it, or replace it on the way to it, owns the machine, and a plan file decides what callers do to the hardware. So
`read_source` opens the file first, then checks owners, modes and links up to the root directory (decision 0093), and
reads the file that it has opened. `run_code` runs exactly those bytes, as a module that nothing else can import and
that is compiled in memory: no *.pyc is read or written beside the file.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import traceback
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

from hearth._util.files import read_file
from hearth._util.foreign import Raised, called
from hearth.errors import ConfigError
from hearth.hcp.capability import MARK, CapabilitySource

if TYPE_CHECKING:
    from pathlib import Path


LARGEST: Final = 1 << 20
"""Bytes of a capability file."""


def read_source(file: Path) -> bytes:
    """Return the content of a capability file. Raises ConfigError if users other than root and our own could write it.

    The file, every directory above it and every link on the way belong to root or to the effective user, and no other
    user may write there. A sticky directory such as /tmp is accepted on the way.
    """
    try:
        return read_file(file, trusted={os.geteuid()}, most=LARGEST)[0]
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; let uid {os.geteuid()} read it") from None
    except ConfigError as error:
        raise ConfigError(f"{file}: hearthd cannot run it as uid {os.geteuid()}: {error}") from None


def run_code(file: Path, data: bytes) -> list[CapabilitySource]:
    """Run a file's bytes and return its declarations, in their order. Raises ConfigError, whatever the file raises."""
    try:
        code = compile(data, str(file), "exec", dont_inherit=True)
        text = decode_source(data)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno or 1}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{file}: is nested too deeply; flatten it") from None
    except ValueError as error:  # a NUL byte, to some versions
        raise ConfigError(f"{file}: is not Python: {error}") from None
    module = _module(file)
    # Under its name: attrs and `inspect` look there for the names that annotations use.
    sys.modules[module.__name__] = module
    # Without a time of change, so that tracebacks and `inspect.getsource` show the code that runs, not the file's new
    # content.
    linecache.cache[str(file)] = (len(data), None, text.splitlines(keepends=True), str(file))
    try:
        called(exec, code, module.__dict__)
    except Raised as raised:
        wrong = f"{file}:{_line(raised.error, file)}: {raised}"
    else:
        if found := declared_in(module):
            return found
        wrong = f"{file}: declares no capability; put @capability(…) above an async function, or move it away"
    del sys.modules[module.__name__]
    raise ConfigError(wrong)


def declared_in(module: ModuleType) -> list[CapabilitySource]:
    """Return the declarations of a module's functions: those that it defines, not those that it imports, each once."""
    found: dict[int, CapabilitySource] = {}
    for value in vars(module).values():
        source = getattr(value, MARK, None) if isinstance(value, FunctionType) else None
        if isinstance(source, CapabilitySource) and source.function.__module__ == module.__name__:
            found[id(source)] = source
    return list(found.values())


def _module(file: Path) -> ModuleType:
    """An empty module under a name of its own, in no package: neither its path nor its neighbours are imported."""
    stem, path = re.sub(r"\W", "_", file.stem), sha256(os.fsencode(file)).hexdigest()
    name = f"hearth_capability_file_{stem}_{path[:8]}"
    module = ModuleType(name)
    module.__file__ = str(file)
    module.__spec__ = ModuleSpec(name, None, origin=str(file))
    return module


def _line(error: BaseException, file: Path) -> int:
    """The line of the file that raised, or that called what raised."""
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return lines[-1] if lines else 1
