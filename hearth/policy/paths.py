"""The path guard: which files a session may touch (draft §12.2; design §6).

It owns the allowed roots, as descriptors opened once at start, and turns a path from the wire into a
descriptor beneath one of them, or into PermissionDenied. It trusts no path that it has looked at before: the
check at submit is a courtesy, the open at use is the law. It reads, writes, lists and deletes nothing itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from attrs import frozen

from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.beneath import Beneath, by_openat2, by_walk, from_cache, works

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

Access: TypeAlias = Literal["read", "write"]
_Names: TypeAlias = tuple[bytes, ...]

_LONGEST = 4095
"""Bytes in a path: PATH_MAX without its NUL."""
_SHOWN = 256
"""Characters of a refused path that an error repeats."""
_ESCAPES = (errno.EXDEV, errno.ELOOP)
_WRITING = os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
"""What is neither a regular file nor a directory; a link is never what an open ends at."""


@frozen
class _Root:
    """One allowed directory: its descriptor, and the spellings by which a path may name it."""

    descriptor: int
    spellings: tuple[_Names, ...]


@frozen
class _Place:
    """A path as components beneath a root; `directory` if it ends in a slash, and so has to name one."""

    root: _Root
    names: _Names
    directory: bool

    @property
    def relative(self) -> bytes:
        return (b"/".join(self.names) + (b"/" if self.directory else b"")) if self.names else b"."


class PathGuard:
    """`hearth.tools.PathGuard` over the directories of `[files] read` and `write`.

    A path may name a root as the operator spelt it or by its real path. Links and mounts beneath a root are
    followed as long as they stay beneath it (a mount always does: mounting is the operator's right). What is
    beneath a write root cannot be read through it. `use_openat2` forces a mechanism; None takes the best
    there is.

    Methods raise PermissionDenied with `data` = {path, reason} for a path that is not, or does not stay,
    beneath a root: the same answer whether or not anything is there. For one that does they raise OSError as
    the kernel says it. They may be called from several threads at once. Raises ConfigError for a root that
    cannot be opened.
    """

    def __init__(
        self, read: Sequence[Path] = (), write: Sequence[Path] = (), *, use_openat2: bool | None = None
    ) -> None:
        if use_openat2 and not works(by_openat2):
            raise ConfigError("openat2 does not work here: it needs Linux 5.6, and a sandbox that allows it")
        self._open: Beneath = by_walk
        self._open_cached: Beneath | None = None
        if use_openat2 is not False and works(by_openat2):
            self._open = by_openat2
            self._open_cached = from_cache if works(from_cache) else None
        self._roots: dict[Access, list[_Root]] = {"read": [], "write": []}
        wanted: tuple[tuple[Access, Sequence[Path]], ...] = (("read", read), ("write", write))
        try:
            for access, paths in wanted:
                for path in paths:
                    self._roots[access].append(_open_root(path, access))
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Forget all roots: from now on every path is refused. Idempotent. For after the file bus."""
        for roots in self._roots.values():
            while roots:
                os.close(roots.pop().descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self, path: str, access: Access) -> None:
        """Refuse a path that is not beneath an allowed root; one that does not exist (yet) passes.

        It looks into directories, which takes its time on a sleeping disk or a dead server: see
        `check_nowait`.
        """
        try:
            os.close(self._resolve(path, os.O_PATH, access, self._open))
        except OSError:
            return  # beneath a root, as far as it goes; the step that uses it will say what is wrong

    def check_nowait(self, path: str, access: Access) -> bool:
        """`check` for one who must not wait: True if that was all, False if a thread has to call `check`."""
        if self._open_cached is None:
            self._places(path, access)
            return False
        try:
            os.close(self._resolve(path, os.O_PATH, access, self._open_cached))
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def open(self, path: str, flags: int, mode: int = 0o600, *, access: Access) -> int:
        """Open `path` and return its descriptor: a regular file, or with O_DIRECTORY a directory.

        FIFOs, sockets and devices are refused before they are opened, so that nothing blocks and no device
        notices; with O_PATH alone anything opens. Access "read" is for O_RDONLY, "write" for O_WRONLY and
        O_PATH; other flags are a bug of the caller's and raise ValueError. O_CREAT needs the parent directory
        to exist.
        """
        _check_flags(flags, access)
        if flags & (os.O_PATH | os.O_DIRECTORY):
            return self._resolve(path, flags, access, self._open)
        flags |= os.O_NONBLOCK | os.O_NOCTTY
        if not flags & os.O_CREAT:
            return self._open_regular(path, flags, access)
        if flags & os.O_EXCL:
            return self._create(path, flags, mode, access)
        existing = flags & ~os.O_CREAT
        try:
            return self._open_regular(path, existing, access)
        except FileNotFoundError:
            try:
                return self._create(path, flags, mode, access)
            except FileExistsError:  # somebody was faster, or it is a link to nothing
                return self._open_regular(path, existing, access)

    def open_parent(self, path: str, *, access: Access) -> tuple[int, str]:
        """Open the directory that holds `path` (O_PATH); return its descriptor and the last component.

        The component need not exist, and nobody has looked whether it is a link: use it with `dir_fd` and
        without following. A path that ends in a slash must name a directory. A root itself, and a path that
        ends in "..", are refused.
        """
        place = self._places(path, access)[0]
        if not place.names:
            raise _refusal(path, f"it is a directory that [files] {access} allows; name something beneath it")
        if place.names[-1] == b"..":
            raise _refusal(path, 'it ends in ".."; name the file itself')
        parent = self._resolve(path, os.O_PATH | os.O_DIRECTORY, access, self._open, up=1)
        name = os.fsdecode(place.names[-1])
        if place.directory:
            try:
                if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            except OSError:
                os.close(parent)
                raise
        return parent, name

    def _create(self, path: str, flags: int, mode: int, access: Access) -> int:
        parent, name = self.open_parent(path, access=access)
        try:
            return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=parent)
        finally:
            os.close(parent)

    def _open_regular(self, path: str, flags: int, access: Access) -> int:
        # Looked at through O_PATH first: the mere opening of a device can start it (a watchdog).
        seen = self._resolve(path, os.O_PATH, access, self._open)
        try:
            _require_regular(path, seen)
        finally:
            os.close(seen)
        descriptor = self._resolve(path, flags, access, self._open)
        try:
            _require_regular(path, descriptor)
        except (OSError, PermissionDenied):
            os.close(descriptor)
            raise
        return descriptor

    def _resolve(self, path: str, flags: int, access: Access, beneath: Beneath, *, up: int = 0) -> int:
        """Open `path`, or the directory `up` components above it, beneath the first root it stays beneath."""
        number = errno.EXDEV
        for place in self._places(path, access):
            wanted = _Place(place.root, place.names[:-up], directory=False) if up else place
            try:
                return beneath(place.root.descriptor, wanted.relative, flags)
            except OSError as error:
                if error.errno not in _ESCAPES:
                    raise
                number = error.errno
        if number == errno.ELOOP:
            raise _refusal(path, "it leads through a magic link, or through too many symbolic links")
        raise _refusal(path, f'it leads out of what [files] {access} allows, by ".." or a symbolic link')

    def _places(self, path: str, access: Access) -> list[_Place]:
        """Where `path` lies, beneath the most specific root first; never empty. Raises PermissionDenied."""
        names, directory = _split(path)
        places = []
        roots = self._roots[access]
        for root in roots:
            for spelling in root.spellings:
                if names[: len(spelling)] == spelling:
                    places.append(_Place(root, names[len(spelling) :], directory))
                    break
        if not places:
            allowed = ["/" + os.fsdecode(b"/".join(root.spellings[0])) for root in roots]
            if allowed:
                reason = f"it is not beneath a directory that [files] {access} allows"
            else:
                reason = f"no directory is allowed: [files] {access} is empty"
            raise _refusal(path, reason, {"allowed": [_shown(name) for name in allowed]})
        return sorted(places, key=lambda place: len(place.names))


def _open_root(path: Path, access: Access) -> _Root:
    where = f"[files] {access}: {str(path)!r}"
    if not path.is_absolute():
        raise ConfigError(f"{where} is not absolute; write it from / on")
    try:
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
    except NotADirectoryError:
        raise ConfigError(f"{where} is not a directory; name the directory that holds the file") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{where} cannot be opened: {why}; create it or remove the entry") from None
    spellings = {_split_names(os.fsencode(path)): None, _split_names(os.fsencode(path.resolve())): None}
    return _Root(descriptor, tuple(spellings))


def _split_names(raw: bytes) -> _Names:
    return tuple(name for name in raw.split(b"/") if name not in (b"", b"."))


def _split(path: str) -> tuple[_Names, bool]:
    """The components of an absolute path, and whether it ends in a slash. Raises PermissionDenied."""
    try:
        raw = path.encode("utf-8")
    except UnicodeEncodeError:
        raise _refusal(path, "it is not Unicode text") from None
    if not raw.startswith(b"/"):
        raise _refusal(path, "it is relative; give an absolute path")
    if b"\0" in raw:
        raise _refusal(path, "it contains a NUL")
    if len(raw) > _LONGEST:
        raise _refusal(path, f"it is longer than {_LONGEST} bytes")
    return _split_names(raw), raw.endswith((b"/", b"/."))


def _check_flags(flags: int, access: Access) -> None:
    how = flags & os.O_ACCMODE
    if access == "read":
        right = how == os.O_RDONLY and not flags & _WRITING
    else:
        right = how == os.O_WRONLY or bool(flags & os.O_PATH)
    if not right or flags & os.O_TMPFILE == os.O_TMPFILE:
        raise ValueError(f"flags {flags:#o} do not go with access {access!r}; open for one of both")


def _require_regular(path: str, descriptor: int) -> None:
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind != stat.S_IFREG:
        raise _refusal(path, f"it is a {_KINDS[kind]}; only regular files can be read and written")


def _shown(path: str) -> str:
    text = path.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _refusal(path: str, reason: str, data: Mapping[str, Any] | None = None) -> PermissionDenied:
    shown = _shown(path)
    what = {"path": shown, "reason": reason, **(data or {})}
    return PermissionDenied(f"Permission denied: {shown}: {reason}", data=what)
