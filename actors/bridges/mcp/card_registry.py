"""The AgentCards that agents have declared here: one file for each agent_id, in a directory that is ours alone.

Owns the files, whose a card is, and the bounds. Refuses to vouch for a card: what is kept is what somebody claimed,
with the key of the principal who claimed it. Several processes may share a directory (each `hearth mcp` is one): a file
is put in place whole, and a new one never over another. The bounds are held by each process, as far as it sees.
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
"""The longest card, as JSON in UTF-8; that of a board with all tools and their schemas has about a third of it."""
MAX_CARDS = 256
MAX_TOTAL_BYTES = 4 * 1024 * 1024
"""All cards together: what `agentcard://registry` answers with, in one message."""
SHARE = 4
"""No principal gets more than a fourth part of either."""
MAX_NAMED = 32
"""The files that are skipped and said to be; beyond these they are only counted."""

_MAX_ENTRIES = 4 * MAX_CARDS
"""Names looked at in the directory, which is nobody else's to fill; what lies beyond them is not seen."""
_MAX_FILE_BYTES = MAX_CARD_BYTES + 4096
_STALE_DRAFT = 3600.0
"""Seconds after which a file that was being written belongs to a process that has crashed."""
_FORMAT = 1
_NAME = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.json")


class CardRefused(HearthError):
    """A card that is not taken; the message says why, and the cure."""


@frozen
class DeclaredCard:
    """A card as it was declared: by whom (a principal's key) and when (RFC 3339, UTC). `size` is in bytes of JSON."""

    card: Mapping[str, Any]
    declared_by: str
    declared_at: str
    size: int = field(eq=False)
    weight: int = field(eq=False)
    """Bytes that it takes in memory."""

    @property
    def agent_id(self) -> str:
        """Whose card it is."""
        agent_id: str = self.card["agent_id"]
        return agent_id


@frozen
class Shelf:
    """What the directory holds: cards by agent_id in its order, and the files that are none, each with the reason."""

    cards: Mapping[str, DeclaredCard] = field(factory=dict)
    skipped: Mapping[str, str] = field(factory=dict)


class CardRegistry:
    """The registry in `directory`, which need not exist before the first card does.

    The cards that were read are kept, and charged to who declared them: `account` gives the account of a principal's
    key. A registry outlives its clients, and the process too.
    """

    def __init__(self, directory: Path, account: Callable[[str], Account] = lambda _key: unlimited()) -> None:
        self._directory = directory
        self._account = account
        self._charged: dict[str, tuple[Account, int]] = {}
        self._turn = trio.Lock()
        self._read: dict[str, tuple[tuple[int, ...], DeclaredCard | str]] = {}
        """By file name: what its status was when it was read, and what was in it, or why that is no card."""

    async def shelf(self) -> Shelf:
        """All cards there are. Raises CardRefused where the directory cannot be used."""
        async with self._turn:
            return await self._looked()

    async def declare(self, card: Mapping[str, Any], by: str) -> DeclaredCard:
        """Keep a valid card as declared by this principal, instead of the one it declared for the agent before.

        Raises CardRefused for another principal's agent_id, beyond a bound, or when the file cannot be written, and
        QueueFull where that principal has no room for it in memory.
        """
        content = encoded(card)
        async with self._turn:
            self._account(by).require(parsed_bytes(content))
            declared = await trio.to_thread.run_sync(self._keep, card, content, by)
            await self._looked()
            return declared

    async def _looked(self) -> Shelf:
        shelf = await trio.to_thread.run_sync(self._look)
        weights: dict[str, int] = {}
        for declared in shelf.cards.values():
            weights[declared.declared_by] = weights.get(declared.declared_by, 0) + declared.weight
        for account, weight in self._charged.values():
            account.release(weight)
        self._charged = {key: (self._account(key), weight) for key, weight in weights.items()}
        for account, weight in self._charged.values():
            account.add(weight)
        return shelf

    # --- in a thread --------------------------------------------------------------------------------------------

    def _keep(self, card: Mapping[str, Any], content: bytes, by: str) -> DeclaredCard:
        name = f"{card['agent_id']}.json"
        # Another process may put its file there after we have looked; then we look again, at whose it is.
        for _ in range(2):
            with contextlib.suppress(FileExistsError):
                return self._put(name, card, content, by)
        why = self._look().skipped.get(name, "more files are in the registry than are looked at")
        raise CardRefused(f"agent_id {card['agent_id']} is taken by a file of the registry: {why}")

    def _put(self, name: str, card: Mapping[str, Any], content: bytes, by: str) -> DeclaredCard:
        """Keep the card. Raises CardRefused, or FileExistsError where a file that is no card we saw has its name."""
        agent_id: str = card["agent_id"]
        shelf = self._look()
        before = shelf.cards.get(agent_id)
        if before is not None and before.declared_by != by:
            raise CardRefused(
                f"agent_id {agent_id} has been declared by another principal, who alone may change its card; "
                "make an agent_id of your own (a new ULID)"
            )
        if before is not None and before.card == card:
            return before
        others = [declared for declared in shelf.cards.values() if declared.agent_id != agent_id]
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
        """Put the file in place whole. Raises FileExistsError for a new one whose name is taken, or OSError."""
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

    def _look(self) -> Shelf:
        try:
            names = self._names()
        except FileNotFoundError:
            return Shelf()
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
        return Shelf(cards, skipped)

    def _names(self) -> list[str]:
        """The names to look at, in order; a draft that nobody will finish is deleted. Raises OSError, CardRefused."""
        status = self._directory.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
            raise CardRefused(
                f"the registry is not used: {self._directory} must be ours, and nobody else may write there (chmod 700)"
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
        """What is in a file, or why that is no card; None when it has gone meanwhile."""
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
    """A card as JSON in UTF-8. Raises CardRefused for one that is too long, or that JSON cannot say."""
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
    """Raise CardRefused where one more card of `size` bytes is too much for `what`, the `part`-th part of all."""
    count, total = MAX_CARDS // part, MAX_TOTAL_BYTES // part
    if len(cards) + 1 > count or sum(card.size for card in cards) + size > total:
        raise CardRefused(f"{what} is full ({count} cards, {total} bytes): declare one of your agents anew, or {cure}")


def _age(entry: os.DirEntry[str]) -> float:
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _read(path: Path, status: os.stat_result) -> DeclaredCard | str:
    """The card in a file, or why there is none."""
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
        return "no card, or nobody who declared it, in it"
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
