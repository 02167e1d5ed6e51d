"""Files that prove who calls: tokens and private keys. Those that others can read prove nothing, and are refused."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hearth.address import WebSocketAddress

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,1024}\Z")
"""What an Authorization header takes as a token (RFC 6750 §2.1), of a length that no header limit cuts."""


def readable(path: Path, what: str, *, private: bool) -> Path:
    """The path with ~ expanded, if there is a file that can be read and, if `private`, by nobody else.

    A key of root's may be readable by a group, as Debian's ssl-cert is: who is in it was root's choice. `what` begins
    the ConfigError that is raised otherwise.
    """
    try:
        path = path.expanduser()
    except RuntimeError:
        raise ConfigError(f"{what} {path}: nobody has that home directory; write the whole path") from None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what} {path} is not a file")
    others = 0o037 if status.st_uid == 0 else 0o077
    if private and status.st_mode & others:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{what} {path} can be used by others (mode {mode:04o}); chmod 600 {path}")
    return path


def find_token(address: WebSocketAddress, given: str | None, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The bearer token to offer and where it is from: the caller's, that of token_file, or HEARTH_TOKEN's.

    Raises ConfigError, which never holds the token.
    """
    if given is not None:
        if address.token_file is not None:
            raise ConfigError(f"{address.place}: a token and token_file are given; leave one of them out")
        return checked(given, "the token that was given"), "that was given"
    if address.token_file is not None:
        path = readable(address.token_file, "token_file", private=True)
        try:
            text = path.read_text("ascii")
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"token_file {path} holds no token; `hearth token new` makes one") from None
        return checked(text.strip(), f"token_file {path}"), f"in {path}"
    if environ.get("HEARTH_TOKEN"):
        return checked(environ["HEARTH_TOKEN"].strip(), "HEARTH_TOKEN"), "in HEARTH_TOKEN"
    return None


def checked(token: str, where: str) -> str:
    """The token, if it has the form of one. Raises ConfigError, which begins with `where` and never holds the token."""
    if not _TOKEN.match(token):
        raise ConfigError(f"{where}: a token is one word of letters, digits and -._~+/=; `hearth token new` makes one")
    return token
