"""The journal actor: sole writer of the audit log. It commits what has arrived, together, and answers in order.

`post` never waits. With durability "os" it hands the records to the kernel there and then. Otherwise, and whenever
something is in the way, the actor takes every record that is there in one wake-up, seals and writes them
together, and answers; while a sync runs in its thread, what arrives forms the next commit. It never waits for
more to come, and it interprets no record; it has each counted (see `metrics`).

When the log cannot be written, receipts fail and the records are kept, as many as memory allows them. They are
written later, in their order, behind an `audit.resume` record and with `"late": true`: a record that tells of
a step whose start was refused is the truth about an attempt, and what has happened stays told. A receipt that
failed stays failed.

When the disk is full, the log's reserve is spent on the kept records that are not minor, behind an `audit.reserve`
record: how what runs comes to its end is on the disk, whatever happens next. Their receipts fail all the same, so that
nothing new begins. The log can be written again once the reserve has been made anew. A journal that ends before that
writes an `audit.gap` record, which says how many records were lost.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import trio

from hearth._util.threads import Background
from hearth.actors.mailbox import Mailbox, Slot
from hearth.actors.metrics import Metrics
from hearth.audit import AuditSettings, keys
from hearth.audit.backlog import Backlog
from hearth.audit.log import AuditLog, Stamped
from hearth.audit.record import timestamp
from hearth.audit.writer import LogFailed
from hearth.errors import AuditUnavailable, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hearth.audit.disk import Disk
    from hearth.audit.record import Head

RETRY_S: Final = 1.0
"""How often a log that cannot be written is tried again when nothing is posted."""
FLUSH_LIMIT_S: Final = 5.0
"""How long the last commits may take once the journal is told to end; a disk that hangs must not keep the process."""
_ENDED: Final = "the journal ended before the record was safe"
_PROBE: Final = 64
"""How many kept records are tried first: a full disk must not cost the sealing of all of them at every attempt."""
_SILENT: Final = "the disk does not answer"
_CHUNK: Final = 1000
"""How many kept records are written at a time, so that catching up does not hold the event loop."""

T = TypeVar("T")

log = logging.getLogger("hearth.journal")


class Receipt(Slot[None]):
    """The answer to one post: `await receipt.get()` returns once its records are as durable as configured.

    Raises AuditUnavailable, whose `data.reason` says why, if they could not be written: nothing that has an
    effect may begin on the strength of these records.
    """

    __slots__ = ()


class _Post(NamedTuple):
    """Records and when they were reported; `minor` as `Journal.post` has it."""

    at: float
    records: tuple[Mapping[str, Any], ...]
    receipt: Receipt | None
    minor: bool = False


class Journal:
    """One audit log and the task that writes it.

    `open`, then `run` in a nursery; `post` may be used from before `run` until `aclose`. The clock gives
    epoch seconds.
    """

    def __init__(
        self, settings: AuditSettings, *, clock: Callable[[], float] = time.time, disk: Disk | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._log = AuditLog(settings, disk=disk)
        self._sync = settings.durability == "fsync"
        self._relaxed = settings.durability == "relaxed"
        self._limiter = trio.CapacityLimiter(1)
        self._mailbox: Mailbox[_Post] = Mailbox()
        self._queued = 0
        """Posts in the mailbox: while there are any, later ones queue behind them."""
        self._in_place = False
        self._bug: Exception | None = None
        self.metrics = Metrics()
        """What the records tell, and what others count, in numbers."""
        self.failures = 0
        """How often the log has become one that cannot be written."""
        self._underway = 0
        """Records that are in the mailbox, or in a commit that goes on."""
        self._backlog = Backlog()
        self._failure: str | None = None
        self._failed_at = 0.0
        self._full = False
        """Whether it cannot be written for want of room."""
        self._told: str | None = None
        self._key_trouble: str | None = None
        self._key_retry_at = 0
        self._key_loading = False
        self._running: trio.Event | None = None
        self._stopping = self._closed = self._hung = False

    # --- the face

    def open(self) -> list[str]:
        """Lock and repair the log, and queue `daemon.recover` if its last run did not end as it should.

        Blocking; call it before `run`. Returns what was found, one line each, for a person. Raises
        ConfigError.
        """
        found = self._log.open(self._clock())
        record = found.record()
        if record is not None:
            self.post(record)
        return found.notes()

    def post(self, *records: Mapping[str, Any], minor: bool = False) -> Receipt:
        """Report records, each with `event` and the event's fields; never waits, never raises.

        They are sealed next to each other and in the order of the posts; they must not be changed afterwards. `minor`
        ones tell of nothing that was changed or disclosed: while the log cannot be written they displace no others.
        """
        receipt = Receipt()
        count = self.metrics.record
        for record in records:
            count(record)
        if self._closed or self._hung:
            receipt.fail(_unavailable(self._failure or f"audit log {self._log.path}: closed"))
            return receipt
        at = self._clock()
        if self._in_place and not self._queued and self._failure is None:
            self._write_now(_Post(at, records, receipt, minor), receipt)
            return receipt
        if self._relaxed and self._failure is None:
            receipt.fill(None)
        self._queued += 1
        self._underway += len(records)
        self._mailbox.post(_Post(at, records, receipt, minor))
        return receipt

    def _write_now(self, post: _Post, receipt: Receipt) -> None:
        """With durability "os" a record is where it has to be as soon as the kernel has it: nobody needs to wait.

        What the log cannot take, or wants besides (a key), is the actor's business.
        """
        try:
            self._log.append([(post.at, record) for record in post.records], post.at)
        except LogFailed as failed:
            self._fail([post], failed)
            self._wake()
            return
        except Exception as bug:  # noqa: BLE001  the actor must end on it, not whoever happened to post
            receipt.fail(_unavailable(f"audit log {self._log.path}: {_ENDED}"))
            self._in_place, self._bug = False, bug
            self._wake()
            return
        receipt.fill(None)
        if self._log.warning is not self._told:
            self._tell()
        if self._log.checkpoint_due and self._wants_key():
            self._wake()

    async def write(self, *records: Mapping[str, Any]) -> None:
        """Post records and wait for the receipt; always a checkpoint. Raises AuditUnavailable."""
        receipt = self.post(*records)
        if receipt.filled:
            await trio.lowlevel.checkpoint()
        await receipt.get()

    async def answer(self) -> None:
        """Wait until the actor takes up an empty post: it is alive, though perhaps with a log that it cannot write.

        Returns never while it hangs in a disk that does not answer, nor when it has ended.
        """
        if self._closed or self._hung:
            await trio.sleep_forever()
        receipt = Receipt()
        self._queued += 1
        self._mailbox.post(_Post(self._clock(), (), receipt))
        with contextlib.suppress(AuditUnavailable):
            await receipt.get()

    def checkpoint(self) -> None:
        """Have what no checkpoint covers signed soon; does nothing if there is no such record."""
        if self._log.is_open and (self._log.unsigned or self._underway):
            self._log.checkpoint_due = True
            self._key_retry_at = 0
            self._wake()

    @property
    def settings(self) -> AuditSettings:
        """What the operator decided about the log."""
        return self._settings

    @property
    def failure(self) -> str | None:
        """Why the log cannot be written now, or None."""
        return self._failure

    @property
    def warning(self) -> str | None:
        """What is wrong although records are written: no rotation, unsigned checkpoints, a log somebody removed."""
        return self._log.warning or self._key_trouble or self._log.reserve.trouble

    @property
    def lag(self) -> int:
        """Records that were posted and are not yet as durable as configured, those kept for later included."""
        return self._underway + len(self._backlog)

    @property
    def head(self) -> Head:
        """Seq and hash of the last record written; (0, 64 zeros) for a new log."""
        return self._log.head

    # --- the actor

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write what is posted, until cancelled; then write what was posted by then, within `FLUSH_LIMIT_S`, and end.

        What is posted after that waits for `aclose`. May be started again after it ended.
        """
        running = self._running = trio.Event()
        self._stopping = False
        self._in_place, self._bug = self._settings.durability == "os", None
        guard = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, guard, nursery.cancel_scope)
                nursery.start_soon(self._sign_regularly)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    guard.deadline = trio.current_time() + FLUSH_LIMIT_S
                    self._stop()
        finally:
            running.set()

    async def aclose(self) -> None:
        """Write and sync everything that was posted, and close the log. Idempotent; does not raise.

        Cancellation does not cut it short, a disk that hangs does after `FLUSH_LIMIT_S`. If records remain
        unwritten, `failure` says so afterwards.
        """
        with trio.CancelScope(shield=True):
            if self._running is not None and not self._running.is_set():
                self._stop()
                await self._running.wait()
            if self._closed:
                return
            if self._log.is_open and not self._hung:
                limit = trio.current_time() + FLUSH_LIMIT_S if self._sync else math.inf
                with trio.CancelScope(deadline=limit):
                    await self._finish()
            self._closed = True
            self._refuse(self._mailbox.drain(), self._failure or f"audit log {self._log.path}: closed")
            self._mailbox.close()
            if self._backlog:
                self._failure = f"{self._failure}; {self._backlog.lost} records were never written"
            if not self._hung:
                try:
                    await _in_time(self._log.close)
                except LogFailed as failed:
                    self._failure = failed.reason
                except TimeoutError:
                    self._failure = f"audit log {self._log.path}: {_SILENT}"

    def _stop(self) -> None:
        self._stopping = True
        self._in_place = False
        self._wake()

    def _wake(self) -> None:
        self._mailbox.post(_Post(0.0, (), None))

    async def _serve(self, guard: trio.CancelScope, outer: trio.CancelScope) -> None:
        """The loop, out of reach of cancellation from outside; `guard` ends it if the last commits take too long."""
        with guard:
            async with trio.open_nursery() as nursery:
                while not self._stopping:
                    await self._commit(await self._next())
                    if self._bug is not None:
                        bug, self._bug = self._bug, None
                        raise bug
                    if self._wants_key():
                        self._key_loading = True
                        nursery.start_soon(self._load_key)
                await self._commit(self._mailbox.drain())
        if self._hung:
            self._refuse(self._mailbox.drain(), self._failure)
        outer.cancel()

    async def _sign_regularly(self) -> None:
        """Let no record stay unsigned for longer than the operator said."""
        while True:
            await trio.sleep(self._settings.checkpoint_interval_s)
            self.checkpoint()

    async def _next(self) -> list[_Post]:
        """What has been posted; nothing, after a while, if a log that fails has to be tried again."""
        if self._failure is None:
            return await self._mailbox.batch()
        with trio.move_on_after(RETRY_S):
            return await self._mailbox.batch()
        return []

    async def _finish(self) -> None:
        """The last commits, for `aclose`."""
        await self._commit(self._mailbox.drain())
        if self._wants_key():
            await self._load_key()
            await self._commit([])
        while posts := self._mailbox.drain():
            await self._commit(posts)
        if self._failure is not None and (self._backlog.lost or self._log.reserve.spent):
            await self._write_gap()

    # --- commits

    async def _commit(self, posts: list[_Post]) -> None:
        """Write the records of `posts` and answer their receipts, whatever happens."""
        self._queued -= sum(post.receipt is not None for post in posts)
        records = [(post.at, record) for post in posts for record in post.records]
        try:
            if self._failure is not None:
                await self._resume()
            await self._append(records)
        except LogFailed as failed:
            self._fail(posts, failed)
            await self._spend_reserve()
        except BaseException:
            self._refuse(posts, f"audit log {self._log.path}: {_ENDED}")
            raise
        else:
            self._failure = None
            if self._log.warning is not self._told:
                self._tell()
            for post in posts:
                if post.receipt is not None and not post.receipt.filled:
                    post.receipt.fill(None)
        finally:
            self._underway -= sum(len(post.records) for post in posts)

    async def _append(self, records: list[Stamped], *, spend: bool = False) -> None:
        now = records[-1][0] if records else self._clock()
        append = partial(self._log.append, records, now, spend=spend)
        if not self._sync:
            append()
            return
        if self._hung:
            raise LogFailed(f"audit log {self._log.path}: {_SILENT}")
        try:
            await trio.to_thread.run_sync(append, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:  # it took too long on the way out: the log is left to the thread
            self._hung = True
            self._failure = f"audit log {self._log.path}: {_SILENT}"
            raise

    async def _resume(self) -> None:
        """Write what was kept while the log failed, behind a record that says so."""
        resume = {
            "event": "audit.resume",
            "reason": self._failure,
            "since": timestamp(self._failed_at),
            "kept": len(self._backlog),
            **self._backlog.account(),
        }
        first: list[Stamped] = [(self._clock(), resume)]
        size = _PROBE
        while first or self._backlog:
            chunk = self._backlog.oldest(size)
            try:
                await self._append(first + chunk)
            except LogFailed as failed:
                self._forget(failed.written, first)
                # None of the records that are new is written.
                raise LogFailed(failed.reason, full=failed.full) from failed
            self._forget(len(first) + len(chunk), first)
            first, size = [], _CHUNK
            await trio.lowlevel.checkpoint()
        self._failure = None
        log.warning("audit log %s: is written again", self._log.path)

    def _forget(self, written: int, first: list[Stamped]) -> None:
        """Let go of what has been written at last: the resume record, if it was in `first`, and kept ones."""
        if first and written:
            self._backlog.told()
        self._backlog.release(max(0, written - len(first)))

    async def _spend_reserve(self) -> None:
        """Write what is kept and not minor into the room of the reserve, if that is what is missing."""
        backlog, reserve = self._backlog, self._log.reserve
        if not (self._full and backlog.has_major and (reserve.held or reserve.spent)):
            return
        said = {"event": "audit.reserve", "reason": self._failure, "since": timestamp(self._failed_at)}
        first: list[Stamped] = [] if reserve.spent else [(self._clock(), said)]
        try:
            while chunk := backlog.oldest(_CHUNK, major=True):
                await self._append(first + chunk, spend=True)
                backlog.release(len(chunk), major=True)
                first = []
        except LogFailed as failed:
            backlog.release(max(0, failed.written - len(first)), major=True)

    async def _write_gap(self) -> None:
        """Say, in the last record of a log that cannot be written, how many never came to it."""
        if not (self._full and (self._log.reserve.held or self._log.reserve.spent)):
            return
        said = {
            "event": "audit.gap",
            "reason": self._failure,
            "since": timestamp(self._failed_at),
            **self._backlog.account(all_of_them=True),
        }
        # Signed, where there is a key: nothing follows it.
        self._log.checkpoint_due = True
        with contextlib.suppress(LogFailed):
            await self._append([(self._clock(), said)], spend=True)

    def _fail(self, posts: list[_Post], failed: LogFailed) -> None:
        """Answer the posts that were written whole, refuse the others, and keep their records for later."""
        if self._failure is None:
            self.failures += 1
            self._failed_at = self._clock()
            log.error("%s; until it can be written nothing with an effect is done", failed.reason)
        self._failure, self._full = failed.reason, failed.full
        written = failed.written
        for at, group, receipt, minor in posts:
            missing = group[written:]
            written = max(0, written - len(group))
            for record in missing:
                self._backlog.keep(at, record, minor=minor)
            if receipt is not None and not receipt.filled:
                if missing:
                    receipt.fail(_unavailable(failed.reason))
                else:
                    receipt.fill(None)

    def _tell(self) -> None:
        """Tell the operator, too, what `warning` says: once."""
        self._told = self._log.warning
        log.warning("%s", self._told)

    def _refuse(self, posts: list[_Post], reason: str | None) -> None:
        for post in posts:
            receipt = post.receipt
            if receipt is not None and not receipt.filled:
                receipt.fail(_unavailable(reason or f"audit log {self._log.path}: closed"))

    # --- the key

    def _wants_key(self) -> bool:
        """Whether a checkpoint waits for the key; after a failure not again before the next one would be due."""
        log = self._log
        if not log.checkpoint_due or log.signer is not None or self._key_loading:
            return False
        return log.head[0] >= self._key_retry_at

    async def _load_key(self) -> None:
        """Read or make the key in a thread, where its library is imported too, and let the checkpoint be written."""
        self._key_loading = True
        try:
            self._log.signer = await _in_time(partial(keys.load_or_create, self._settings.key))
            self._key_trouble = None
        except (OSError, ConfigError) as error:
            self._key_trouble = f"audit checkpoints are not signed: {str(error) or _SILENT}"
            self._key_retry_at = self._log.head[0] + self._settings.checkpoint_every
        finally:
            self._key_loading = False
        self._wake()


def _unavailable(reason: str) -> AuditUnavailable:
    return AuditUnavailable(f"the audit log cannot be written: {reason}", data={"reason": reason, "effect": "none"})


async def _in_time(work: Callable[[], T]) -> T:
    """Run one of the last things that are done to a disk; raise TimeoutError if that takes over `FLUSH_LIMIT_S`."""
    return await Background(work, "hearth-journal").wait_at_most(FLUSH_LIMIT_S)
