"""The path guard: it opens the files that a session may touch, and refuses all others (draft §12.2).

Theory of operation. The attacker is an authenticated client with file tools, and any local process that may create,
rename or link files beneath an allowed directory while a path is being opened. Guaranteed: the guard returns only
descriptors of files that were, when they were opened, beneath a directory that `[files] read` (or `write`) allows for
that access. A refusal is the same whether or not the file exists, so paths outside cannot be probed.

- Roots are opened once, at start, as O_PATH descriptors. Renaming or replacing a root later does not move the guard.
- A path is text until it is opened: it must be absolute, at most PATH_MAX bytes, without NUL, and must begin with a
  spelling of a root (as configured, or its real path). The rest is opened relative to the root's descriptor.
- The opening itself enforces the bound. `by_openat2` has the kernel do it (RESOLVE_BENEATH, RESOLVE_NO_MAGICLINKS);
  `by_walk` opens one component at a time with O_NOFOLLOW from its parent's descriptor. Neither checks a name first and
  opens it later, so a swap of a directory for a link between two steps (TOCTOU) changes nothing. A ".." or link that
  leaves the root fails with EXDEV, a magic link of /proc or a link loop with ELOOP; both become PermissionDenied.
- Only regular files and directories are opened. `open` first opens a path with O_PATH and looks at its type, because
  merely opening a device can start it. It then opens the path for use and checks the type of that descriptor again.
- Files are created with O_EXCL | O_NOFOLLOW in the parent's descriptor, so a link planted at the name is not followed.
- `check` and `check_nowait` at submit only give early errors. The verdict that counts is made by the open at use.

Not guarded: what an operator mounts beneath a root, and hard links, which are files beneath the root like any other.
Read and write roots are separate; a write root gives no right to read. The guard reads, writes, lists and deletes
nothing itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.beneath import Beneath, by_openat2, by_walk, from_cache, works

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


Access: TypeAlias = Literal["read", "write"]
_Names: TypeAlias = tuple[bytes, ...]

_LONGEST = 4095
"""Bytes in a path: PATH_MAX without its NUL."""
_SHOWN = 256
"""Characters of a refused path that an error repeats."""
_ESCAPES = (errno.EXDEV, errno.ELOOP)
_WRITING = os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KINDS = {stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
"""Names of the file types that are refused. An open never ends at a link."""


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

    A path may name a root as the operator spelt it or by its real path. Links and mounts beneath a root are followed as
    long as they stay beneath it (a mount always does: mounting is the operator's right). A file beneath a write root
    cannot be read through it. `use_openat2` forces a mechanism; None takes the best available.

    Methods raise PermissionDenied with `data` = {path, reason} for a path that is not, or does not stay, beneath a
    root: the same answer whether or not the file exists. For a path beneath a root they raise the kernel's OSError.
    They may be called from several threads at once. Raises ConfigError for a root that cannot be opened.
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
        """Close all roots: from now on every path is refused. Idempotent. Called after the file bus has ended."""
        for roots in self._roots.values():
            while roots:
                os.close(roots.pop().descriptor)

    def check(self, path: str, access: Access) -> None:
        """Refuse a path that is not beneath an allowed root; one that does not exist (yet) passes.

        It looks into directories, which may block on a sleeping disk or a dead server: see `check_nowait`.
        """
        try:
            os.close(self._resolve(path, os.O_PATH, access, self._open))
        except OSError:
            return  # beneath a root, as far as it goes; the step that uses it will say what is wrong

    def check_nowait(self, path: str, access: Access) -> bool:
        """Check without waiting: return True if the check is complete, False if a thread has to call `check`."""
        if self._open_cached is None:
            # Only the text of the path can be checked without waiting.
            self._places(path, access)
            return False
        try:
            os.close(self._resolve(path, os.O_PATH, access, self._open_cached))
        except BlockingIOError:
            return False
        except OSError:
            # Beneath a root, and not there or not permitted: the step that uses it gets the kernel's error.
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
        # A FIFO or a terminal may take the name between the look and the opening: it must not block, nor become ours.
        flags |= os.O_NONBLOCK | os.O_NOCTTY
        if not flags & os.O_CREAT:
            return self._open_regular(path, flags, access)
        if flags & os.O_EXCL:
            return self._create(path, flags, mode, access)
        # Never O_CREAT without O_EXCL, because that would follow a link at the name: open what is there, else create.
        existing = flags & ~os.O_CREAT
        try:
            return self._open_regular(path, existing, access)
        except FileNotFoundError:
            try:
                return self._create(path, flags, mode, access)
            except FileExistsError:  # the file has been created since, or it is a link to nothing
                return self._open_regular(path, existing, access)

    def open_parent(self, path: str, *, access: Access) -> tuple[int, str]:
        """Open the directory that holds `path` (O_PATH); return its descriptor and the last component.

        The component need not exist and may be a link: use it with `dir_fd` and without following links. A path that
        ends in a slash must name a directory. A root itself, and a path that ends in "..", are refused.
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
        # Look at it through O_PATH first: merely opening a device can start it (a watchdog).
        seen = self._resolve(path, os.O_PATH, access, self._open)
        try:
            _require_regular(path, seen)
        finally:
            os.close(seen)
        descriptor = self._resolve(path, flags, access, self._open)
        # The name may lead to another file by now. What counts is the type of the descriptor that is returned.
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
                # Roots may overlap: a path that leaves the inner one may still be beneath the outer.
                number = error.errno
        if number == errno.ELOOP:
            raise _refusal(path, "it leads through a magic link, or through too many symbolic links")
        raise _refusal(path, f'it leads out of what [files] {access} allows, by ".." or a symbolic link')

    def _places(self, path: str, access: Access) -> list[_Place]:
        """Return where `path` lies beneath roots, the most specific first; never empty. Raises PermissionDenied."""
        # By text alone: whether the path really stays beneath the root is decided when it is opened.
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
        # The fewest components left: the most specific root.
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
    # The real path as it is now: a link on the way that is changed later does not move the guard.
    spellings = {_split_names(os.fsencode(path)): None, _split_names(os.fsencode(path.resolve())): None}
    return _Root(descriptor, tuple(spellings))


def _split_names(raw: bytes) -> _Names:
    return tuple(name for name in raw.split(b"/") if name not in (b"", b"."))


def _split(path: str) -> tuple[_Names, bool]:
    """Return the components of an absolute path, and True if it ends in a slash. Raises PermissionDenied."""
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
