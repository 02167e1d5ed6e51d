"""Memory quotas for each principal and for all principals ([limits] max_retained_bytes and …_total_bytes).

Theory of operation. A component that keeps something for a client beyond the current request (a session, a live task
and its arguments, an ended task's snapshot, an event history, an idempotency key, a subscription, an unsent answer, an
unanswered request) charges its principal's `Account`, and releases exactly the same amount when it deletes it. All
accounts are used from the one thread of the event loop, so there are no locks.

- `charge` is called before any work is done, and raises QueueFull if the quota would be exceeded.
- `add` never refuses. It is for what follows from something that was accepted and has memory reserved (events of a
  running task), or is small and bounded (the answer that says QUEUE_FULL). It may exceed the quota; then `charge`
  refuses.
- Ended tasks are dropped first. Each registers itself as `Droppable`. If a principal needs memory, its oldest ended
  task is dropped; if the total is exceeded, the oldest of the principal that keeps most. Memory pressure never ends
  running work.

An account exists as long as something refers to it, so a principal that keeps nothing costs nothing.

Sizes are those of the Python objects and not of the bytes on the wire: 29 MiB of small requests once grew the daemon by
715 MiB. tests/actors/test_memory_budget.py checks the constants against tracemalloc.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from hearth.errors import QueueFull

if TYPE_CHECKING:
    from collections.abc import Iterable

EACH: Final = 64 << 20
TOTAL: Final = 512 << 20

SESSION_BYTES: Final = 12 << 10
"""An idle session: its Trio task with a nursery, its mailbox, its rate buckets."""
CONNECTION_BYTES: Final = 14 << 10
"""A connection: two Trio tasks, a carrier, a framer. WebSocket's take twice that, and so does TLS, in OpenSSL."""
TASK_BYTES: Final = 8 << 10
"""A live task without its steps: its Trio task with frames and scopes, its journal entries and its bus ticket."""
STEP_BYTES: Final = 1024
"""A step of a live task: its state, its hashes, its records, and its place in the snapshot."""
EVENT_BYTES: Final = 640
"""An event with a small result, and its place in a history."""
PLAN_BYTES: Final = 2048
"""A prepared plan beside its document, with its question and its timer."""
SMALL_RESULT: Final = 256
"""Bytes of a result that STEP_BYTES and EVENT_BYTES include: such a result is kept even over quota."""
ENDED_BYTES: Final = 1024
"""An ended task beside its snapshot and its events."""
KEY_BYTES: Final = 512
"""An idempotency key, of which a digest is kept."""
KEY_SHARE: Final = 0.5
"""The share of a quota that idempotency keys may take, because they stay for days and nothing else frees them."""
FEED_BYTES: Final = 400
"""A subscription to one task: a cursor, and its entries in the history and in the send queue."""
JOB_BYTES: Final = 32 << 10
"""A whole job (HCP) beside its payload, its messages and its session: its plan's state, a Trio task, its account."""
MCP_CLIENT_BYTES: Final = 232 << 10
"""An MCP client over HTTP beside its HACP session: its view of the tools, its MCP session, its open questions."""
MCP_CALL_BYTES: Final = 16 << 10
"""A call that may become an MCP task, beside its request: two Trio tasks, its channel, a result of SMALL_OUTCOME."""
SMALL_OUTCOME: Final = 4096
"""Bytes of an MCP task's result that MCP_CALL_BYTES includes: such a result is kept even over quota."""
MCP_WATCH_BYTES: Final = 12 << 10
"""A subscription to a resource, beside its URI: a poller with its last content, and its subscribers."""
HTTP_REQUEST_BYTES: Final = 40 << 10
"""An HTTP request of MCP that is being served, beside its body: its connection, Trio tasks, headers, a stream."""
ANSWER_BYTES: Final = 96
"""A queued answer, beside its text."""
SMALL: Final = 16 << 10
"""Bytes of a request or an answer that a principal over quota may still have: it needs them to free memory."""


def text_bytes(*texts: str | None) -> int:
    """Return the bytes that texts take, with the UTF-8 form that Python keeps beside one, and a copy in a snapshot."""
    size = 0
    for text in texts:
        if text is not None:
            size += sys.getsizeof(text)
    return 3 * size


class Droppable(Protocol):
    """A kept object that may be dropped when memory is needed."""

    def drop(self) -> None:
        """Drop the object: release its charge and withdraw it from the account."""


class Account:
    """The memory kept for one principal. Made by `MemoryBudget.for_principal`."""

    __slots__ = ("__weakref__", "_budget", "_droppable", "used")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._droppable: dict[Droppable, None] = {}
        self.used = 0
        """Bytes."""

    @property
    def scarce(self) -> bool:
        """True once half of the principal's memory is in use."""
        return 2 * self.used > self._budget.each

    def charge(self, size: int) -> None:
        """Charge `size` more bytes. Raises QueueFull, and then nothing is charged."""
        self.require(size)
        self.add(size)

    def require(self, size: int) -> None:
        """Raise QueueFull if `size` more bytes do not fit."""
        budget = self._budget
        if self.used + size <= budget.each and budget.used + size <= budget.total:
            return
        if not self.fits(size):
            raise self.refusal(size)

    def add(self, size: int) -> None:
        """Charge `size` more bytes, even over quota."""
        self.used += size
        budget = self._budget
        budget.used += size
        if self.used > budget.each or budget.used > budget.total:
            self.fits(0)

    def release(self, size: int) -> None:
        """Release `size` bytes."""
        self.used -= size
        self._budget.used -= size
        assert self.used >= 0, "more was released than was charged"

    def fits(self, size: int) -> bool:
        """Return True if `size` more bytes fit, after dropping ended tasks where needed."""
        budget = self._budget
        if size > budget.each or size > budget.total:
            return False
        while self.used + size > budget.each:
            if not self.drop_oldest():
                return False
        while budget.used + size > budget.total:
            if not budget.drop_oldest():
                return False
        return True

    @property
    def full(self) -> bool:
        """True while only requests that free memory may be accepted."""
        budget = self._budget
        if self.used + SMALL <= budget.each and budget.used + SMALL <= budget.total:
            return False
        return not self.fits(SMALL)

    def refusal(self, size: int) -> QueueFull:
        """Return the error that names the exceeded quota and its cure, and count the refusal."""
        budget = self._budget
        budget.refusals += 1
        if self.used + size > budget.each:
            limit, most = "max_retained_bytes", budget.each
            reason = f"{self.used} bytes of memory are kept for this principal, and {size} more exceed {limit} = {most}"
            cure = "wait for tasks to end, read the events and answers that are due, close sessions, or send less"
        else:
            limit, most = "max_retained_total_bytes", budget.total
            reason = f"{size} bytes of memory are needed, and {limit} = {most} is used up by all principals together"
            cure = "try again later, or ask the operator to raise the limit"
        return QueueFull(
            f"Queue full: {reason}",
            data={
                "reason": reason,
                "cure": cure,
                "limit": limit,
                limit: most,
                "retained_bytes": self.used,
                "needed_bytes": size,
            },
        )

    def offer(self, droppable: Droppable) -> None:
        """Register an object that may be dropped. The one registered first is dropped first."""
        self._droppable[droppable] = None

    def withdraw(self, droppable: Droppable) -> None:
        """Withdraw an object from the droppable ones."""
        self._droppable.pop(droppable, None)

    def drop_oldest(self) -> bool:
        """Drop the oldest droppable object; return False if there is none."""
        droppable = next(iter(self._droppable), None)
        if droppable is None:
            return False
        droppable.drop()
        return True

    @property
    def gives_way(self) -> bool:
        """True if something could be dropped."""
        return bool(self._droppable)


class MemoryBudget:
    """All accounts; `each` and `total` in bytes."""

    __slots__ = ("_accounts", "each", "refusals", "total", "used")

    def __init__(self, each: float = EACH, total: float = TOTAL) -> None:
        self.each = each
        self.total = total
        self.used = 0
        """Bytes kept for all principals."""
        self.refusals = 0
        """Count of refusals."""
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()

    def for_principal(self, key: str) -> Account:
        """Return the account of the principal with this key."""
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(self)
        return account

    def accounts(self) -> Iterable[Account]:
        """Return all accounts that are referred to."""
        return list(self._accounts.values())

    def drop_oldest(self) -> bool:
        """Drop the oldest ended task of the principal that keeps most; return False if there is none."""
        droppable = [account for account in self._accounts.values() if account.gives_way]
        return bool(droppable) and max(droppable, key=lambda account: account.used).drop_oldest()


def unlimited() -> Account:
    """Return an account without a bound, for memory that belongs to no principal."""
    return MemoryBudget(float("inf"), float("inf")).for_principal("")


class Retained:
    """Memory with several holders: it stays charged until the last of them calls `let_go`.

    It begins with one holder. `reserved` bytes are charged for it already, and are used up first.
    """

    __slots__ = ("_account", "_charged", "_grown", "_holders")

    def __init__(self, account: Account | None = None, reserved: int = 0) -> None:
        self._account = unlimited() if account is None else account
        self._charged = reserved
        self._grown = 0
        self._holders = 1

    def grow(self, size: int) -> None:
        """Record that the memory has grown by `size` bytes, or shrunk if negative."""
        self._grown += size
        if self._grown > self._charged:
            more, self._charged = self._grown - self._charged, self._grown
            if self._holders:
                self._account.add(more)

    def settle(self) -> None:
        """Release what was reserved and not used: the memory grows no more."""
        spare, self._charged = self._charged - self._grown, self._grown
        if self._holders:
            self._account.release(spare)

    def hold(self) -> None:
        """Add a holder."""
        self._holders += 1
        if self._holders == 1:
            self._account.add(self._charged)

    def let_go(self) -> None:
        """Remove a holder."""
        self._holders -= 1
        if not self._holders:
            self._account.release(self._charged)
