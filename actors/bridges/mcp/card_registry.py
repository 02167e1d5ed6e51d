"""The AgentCards declared here: one file for each agent_id, in a directory that only the daemon's user may write.

This module owns the files, each card's owner, and the limits. It does not vouch for a card: a stored card is a claim,
with the key of the principal that declared it. Several processes may share a directory (each `hearth mcp` is one): a
file is put in place whole, and a new one never replaces another. Each process enforces the limits on the files that it
sees.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import stat
import time
from typing import TYPE_CHECKING, Any

import trio
from attrs import field, frozen

from hearth._util.files import write_new
from hearth.agentcard.validate import validate
from hearth.audit.record import timestamp
from hearth.errors import HearthError
from hearth.policy.memory import unlimited
from hearth.protocol.framing import parsed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hearth.policy.memory import Account

log = logging.getLogger("hearth.agentcards")

MAX_CARD_BYTES = 128 * 1024
"""Bytes of the longest card, as JSON in UTF-8; the card of a board with all tools and schemas has about a third."""
MAX_CARDS = 256
MAX_TOTAL_BYTES = 4 * 1024 * 1024
"""Bytes of all cards together, which is one message: the answer of `agentcard://registry`."""
SHARE = 4
"""A principal gets at most this part (a fourth) of each limit."""
MAX_NAMED = 32
"""Skipped files that are listed by name; more are only counted."""

_MAX_ENTRIES = 4 * MAX_CARDS
"""Names that are read in the directory; further files are ignored."""
_MAX_FILE_BYTES = MAX_CARD_BYTES + 4096
_STALE_DRAFT = 3600.0
"""Seconds after which an unfinished file is taken to be left by a crashed process."""
_FORMAT = 1
_NAME = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.json")


class CardRefused(HearthError):
    """A card was refused; the message has the reason and the cure."""


@frozen
class DeclaredCard:
    """A declared card: the principal's key, the time (RFC 3339, UTC), and `size` in bytes of JSON."""

    card: Mapping[str, Any]
    declared_by: str
    declared_at: str
    size: int = field(eq=False)
    weight: int = field(eq=False)
    """Bytes that it takes in memory."""

    @property
    def agent_id(self) -> str:
        """The id of the card's agent."""
        agent_id: str = self.card["agent_id"]
        return agent_id


@frozen
class RegistryContents:
    """The directory's contents: cards by agent_id, in its order, and the other files, each with a reason."""

    cards: Mapping[str, DeclaredCard] = field(factory=dict)
    skipped: Mapping[str, str] = field(factory=dict)


class CardRegistry:
    """The registry in `directory`, which the first declared card creates.

    Cards that were read stay in memory, and are charged to the principals that declared them: `account` returns the
    account for a principal's key. A registry outlives its clients and the process.
    """

    def __init__(self, directory: Path, account: Callable[[str], Account] = lambda _key: unlimited()) -> None:
        self._directory = directory
        self._account = account
        self._charged: dict[str, tuple[Account, int]] = {}
        self._turn = trio.Lock()
        self._read: dict[str, tuple[tuple[int, ...], DeclaredCard | str]] = {}
        """By file name: its status when it was read, and its card, or the reason why it has none."""

    async def contents(self) -> RegistryContents:
        """Return all cards. Raises CardRefused if the directory cannot be used."""
        async with self._turn:
            return await self._refresh()

    async def declare(self, card: Mapping[str, Any], by: str) -> DeclaredCard:
        """Store a valid card for this principal, replacing its former card of the same agent.

        Raises CardRefused for another principal's agent_id, beyond a limit, or if the file cannot be written; QueueFull
        if the principal has no memory left for it.
        """
        content = encoded(card)
        async with self._turn:
            self._account(by).require(parsed_bytes(content))
            declared = await trio.to_thread.run_sync(self._keep, card, content, by)
            await self._refresh()
            return declared

    async def _refresh(self) -> RegistryContents:
        contents = await trio.to_thread.run_sync(self._read_directory)
        weights: dict[str, int] = {}
        for declared in contents.cards.values():
            weights[declared.declared_by] = weights.get(declared.declared_by, 0) + declared.weight
        # Another process may have changed any file, so all charges are computed again.
        for account, weight in self._charged.values():
            account.release(weight)
        self._charged = {key: (self._account(key), weight) for key, weight in weights.items()}
        for account, weight in self._charged.values():
            account.add(weight)
        return contents

    # --- in a thread --------------------------------------------------------------------------------------------

    def _keep(self, card: Mapping[str, Any], content: bytes, by: str) -> DeclaredCard:
        name = f"{card['agent_id']}.json"
        # Another process may create the file after the directory was read. Then read again, and check its owner.
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                return self._put(name, card, content, by)
        why = self._read_directory().skipped.get(name, "more files are in the registry than are looked at")
        raise CardRefused(f"agent_id {card['agent_id']} is taken by a file of the registry: {why}")

    def _put(self, name: str, card: Mapping[str, Any], content: bytes, by: str) -> DeclaredCard:
        """Write the card. Raises CardRefused, or FileExistsError if a file that was not read as a card has its name."""
        agent_id: str = card["agent_id"]
        contents = self._read_directory()
        before = contents.cards.get(agent_id)
        if before is not None and before.declared_by != by:
            raise CardRefused(
                f"agent_id {agent_id} has been declared by another principal, who alone may change its card; "
                "make an agent_id of your own (a new ULID)"
            )
        if before is not None and before.card == card:
            return before
        others = [declared for declared in contents.cards.values() if declared.agent_id != agent_id]
        _check_room("the registry", "the operator can delete files of it", others, len(content), part=1)
        mine = [declared for declared in others if declared.declared_by == by]
        _check_room("your share of the registry", "declare a shorter card", mine, len(content), part=SHARE)
        declared = DeclaredCard(card, by, timestamp(time.time()), len(content), parsed_bytes(content))
        head = {"version": _FORMAT, "declared_by": by, "declared_at": declared.declared_at}
        document = json.dumps(head).encode()[:-1] + b', "card": ' + content + b"}\n"
        try:
            self._write(name, document, new=before is None)
        except FileExistsError:
            raise
        except OSError as error:
            raise CardRefused(
                f"the registry cannot be written: {error.strerror}; the operator sees to {self._directory}"
            ) from error
        return declared

    def _write(self, name: str, document: bytes, *, new: bool) -> None:
        """Put a complete file in place. Raises FileExistsError if a new one's name is taken, OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._directory / f".{name}.{os.getpid()}.new"
        draft.unlink(missing_ok=True)
        try:
            write_new(draft, document, 0o600)
            if new:
                os.link(draft, self._directory / name)
            else:
                draft.replace(self._directory / name)
        finally:
            draft.unlink(missing_ok=True)

    def _read_directory(self) -> RegistryContents:
        try:
            names = self._names()
        except FileNotFoundError:
            return RegistryContents()
        except OSError as error:
            raise CardRefused(
                f"the registry cannot be read: {error.strerror}; the operator sees to {self._directory}"
            ) from error
        before, self._read = self._read, {}
        cards: dict[str, DeclaredCard] = {}
        skipped: dict[str, str] = {}
        total = 0
        for name in names:
            found = self._examine(name, before.get(name))
            if isinstance(found, DeclaredCard) and (len(cards) >= MAX_CARDS or total + found.size > MAX_TOTAL_BYTES):
                found = f"beyond the {MAX_CARDS} cards or {MAX_TOTAL_BYTES} bytes that the registry holds"
            if isinstance(found, DeclaredCard):
                cards[found.agent_id] = found
                total += found.size
            elif found is not None:
                skipped[name] = found
        return RegistryContents(cards, skipped)

    def _names(self) -> list[str]:
        """Return the names to read, in order; delete abandoned drafts. Raises OSError, CardRefused."""
        status = self._directory.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise CardRefused(
                f"the registry is not used: {self._directory} must belong to this process's user, and no other user "
                "may write there (chmod 700)"
            )
        names = []
        with os.scandir(self._directory) as entries:
            for entry in itertools.islice(entries, _MAX_ENTRIES):
                if not entry.name.startswith("."):
                    names.append(entry.name)
                elif entry.name.endswith(".new") and _age(entry) > _STALE_DRAFT:
                    (self._directory / entry.name).unlink(missing_ok=True)
        return sorted(names)

    def _examine(
        self, name: str, before: tuple[tuple[int, ...], DeclaredCard | str] | None
    ) -> DeclaredCard | str | None:
        """Return the card in a file, or the reason why it has none; None if the file has gone."""
        path = self._directory / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        mark = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
        if before is None or before[0] != mark:
            before = (mark, _read(path, status))
            if isinstance(before[1], str):
                log.warning("%s: skipped: %s", path, before[1])
        self._read[name] = before
        return before[1]


def encoded(card: Mapping[str, Any]) -> bytes:
    """Return a card as JSON in UTF-8. Raises CardRefused for one that is too long or cannot be written as JSON."""
    try:
        content = json.dumps(card, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise CardRefused(f"the card cannot be written as JSON: {error}") from None
    if len(content) > MAX_CARD_BYTES:
        raise CardRefused(
            f"the card has {len(content)} bytes as JSON, and {MAX_CARD_BYTES} are the most here: leave schemas out, or "
            "put what is long behind a link"
        )
    return content


def _check_room(what: str, cure: str, cards: Sequence[DeclaredCard], size: int, part: int) -> None:
    """Raise CardRefused if one more card of `size` bytes exceeds the limits of `what`, the `part`-th part of all."""
    count, total = MAX_CARDS // part, MAX_TOTAL_BYTES // part
    if len(cards) + 1 > count or sum(card.size for card in cards) + size > total:
        raise CardRefused(
            f"{what} is full ({count} cards, {total} bytes): replace the card of one of your agents, or {cure}"
        )


def _age(entry: os.DirEntry[str]) -> float:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _read(path: Path, status: os.stat_result) -> DeclaredCard | str:
    """Return the card in a file, or the reason why it has none."""
    if _NAME.fullmatch(path.name) is None:
        return "its name is no agent_id with .json behind it"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        return str(error.strerror)
    if len(content) > _MAX_FILE_BYTES:
        return f"longer than {_MAX_FILE_BYTES} bytes"
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError):
        return "torn, or not JSON"
    if not isinstance(document, dict) or document.get("version") != _FORMAT:
        return "not a declared card that this release knows"
    card, by, at = document.get("card"), document.get("declared_by"), document.get("declared_at")
    if not isinstance(card, dict) or not isinstance(by, str) or not isinstance(at, str):
        return "no card in it, or no principal that declared it"
    findings = validate(card)
    if findings:
        return f"not a valid AgentCard: {findings[0].pointer}: {findings[0].problem}"
    if card["agent_id"] != path.stem:
        return f"the card of another agent ({card['agent_id']})"
    try:
        content = encoded(card)
        return DeclaredCard(card, by, at, len(content), parsed_bytes(content))
    except CardRefused as error:
        return str(error)
