"""Capability files in Python: who may have written one, and what it declares once it has run.

A capability file is code that hearthd runs, as root where hearthd is started as root: whoever can write it, or exchange
it on the way to it, owns the machine. So `read_code` opens the file first, then looks at owners, modes and links up to
the root directory (decision 0093), and reads what it has opened. `run_code` runs exactly those bytes, as a module that
nothing else can import and that is compiled in memory: no *.pyc is read or written beside the file.
"""

from __future__ import annotations

import linecache
import os
import re
import stat
import sys
import traceback
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

from hearth._util.ownership import whose_hands
from hearth.errors import ConfigError
from hearth.hcp.capability import MARK, CapabilitySource

if TYPE_CHECKING:
    from pathlib import Path

LARGEST: Final = 1 << 20
"""Bytes of a capability file."""


def read_file(file: Path) -> bytes:
    """Return what is in a plan file. Raises ConfigError for one that everybody may write."""
    return _read(file, is_code=False)


def read_code(file: Path) -> bytes:
    """Return what is in a Python file. Raises ConfigError for one that only root and this process could have written.

    The file, every directory above it and every link on the way belong to root or to the effective user, and no other
    user may write there. A sticky directory such as /tmp is accepted on the way.
    """
    return _read(file, is_code=True)


def _read(file: Path, *, is_code: bool) -> bytes:
    try:
        # A FIFO in its place must not hold up the daemon, nor a terminal become its own.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}; let uid {os.geteuid()} read it") from None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{file}: is not a regular file; name a Python file (*.py) or a plan file (*.toml)")
        if is_code:
            _check_hands(file, status)
        elif status.st_mode & stat.S_IWOTH:
            # Who can write it decides what its callers have done to the hardware, under their names.
            raise ConfigError(f"{file}: is writable by everybody; chmod o-w {file}")
        data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ConfigError(f"{file}: has more than {LARGEST} bytes; a capability file has at most so many")
    return data


def _check_hands(file: Path, status: os.stat_result) -> None:
    try:
        wrong = whose_hands(file, {os.geteuid()})
        if wrong is not None and status.st_uid not in (0, os.geteuid()):
            wrong = f"{file} belongs to uid {status.st_uid}; `chown root {file}`"
        elif wrong is None and not os.path.samestat(status, file.stat()):
            wrong = f"{file} was replaced while it was read; start hearthd again"
    except OSError as error:
        wrong = f"{error.filename} cannot be looked at: {error.strerror}; let uid {os.geteuid()} look there"
    if wrong is not None:
        raise ConfigError(f"{file}: is code that hearthd runs as uid {os.geteuid()}, and {wrong}")


def run_code(file: Path, data: bytes) -> list[CapabilitySource]:
    """Run a file's bytes and return what it declares, in its order. Raises ConfigError, whatever the file raises."""
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
    # Without a time of change, so that tracebacks and `inspect.getsource` show what runs and not what is there by now.
    linecache.cache[str(file)] = (len(data), None, text.splitlines(keepends=True), str(file))
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:  # noqa: BLE001  an operator's code may raise anything
        wrong = f"{file}:{_line(error, file)}: {said(error)}"
    else:
        if found := declared_in(module):
            return found
        wrong = f"{file}: declares no capability; put @capability(…) above an async function, or move it away"
    del sys.modules[module.__name__]
    raise ConfigError(wrong)


def declared_in(module: ModuleType) -> list[CapabilitySource]:
    """What the functions of a module declare: those that it defines, not those that it imports, each once."""
    found: dict[int, CapabilitySource] = {}
    for value in vars(module).values():
        source = getattr(value, MARK, None) if isinstance(value, FunctionType) else None
        if isinstance(source, CapabilitySource) and source.function.__module__ == module.__name__:
            found[id(source)] = source
    return list(found.values())


def said(error: BaseException) -> str:
    """An exception as one line of a message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


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
