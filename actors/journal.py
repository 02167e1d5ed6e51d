"""The journal actor: the only writer of the audit log. It commits records in groups and answers posts in order.

It interprets no record. It counts each one (see `metrics`), and leaves format, hash chain and files to `hearth.audit`.

Theory of operation. *Write-ahead*: an actor that is about to do something posts a record of it, waits for the receipt,
and only then acts. A receipt that is filled means: these records are as durable as configured. A receipt that fails
means: nothing with an effect may begin on the strength of these records.

Life of a post: `post` -> mailbox -> one commit -> receipt filled or failed, exactly once. `post` never waits and never
raises.

- Durability "os": the record is safe once the kernel has it, so `post` has it written at once and fills the receipt.
  Only if posts wait in the mailbox, the log has failed, the disk does not answer at once, or a checkpoint needs a key,
  does the actor take over; `_queued` keeps the order of the posts.
- Durability "fsync": *group commit*. One wake-up of the actor takes everything that is in the mailbox, seals and writes
  it together, syncs once, and fills the receipts in order. What arrives during a sync forms the next
  commit. The actor never waits for more records to come.
- Durability "relaxed": the receipt is filled at once, and the actor writes the records in its next commit.

Failure. The log is in one of two states, which `failure` shows:

    writable (None) ----- an append raises LogFailed -----> failed (the reason)
           ^                                                     |
           +------ `audit.resume` and the backlog are written ---+      tried with each commit, at least each RETRY_S

- While it is failed, receipts fail and the records are kept in the backlog, as many as memory allows. They are written
  later, in their order, behind an `audit.resume` record and with `"late": true`. A receipt that failed stays failed,
  although its record is written later: it then reports an attempt that was refused.
- A disk that has not answered for `SILENT_S` has failed too, until it answers: so nothing waits for it longer.
- When the disk is full, the log's reserve is spent on the kept records that are not minor, behind an `audit.reserve`
  record, so that the ends of running tasks are on the disk. Their receipts fail too, so that nothing new begins. The
  log counts as writable again once the reserve has been restored. A journal that ends before that writes an `audit.gap`
  record with the number of records that were lost.
- A disk that hangs during the last commits is left to its thread (`_hung`): the process must be able to end.

The disk. Every call that reaches the disk is made in the thread of `_helper`, one at a time, so that the event loop
never waits for a disk that hangs: `post` waits for its write for an instant (`PATIENCE_S`), and then the actor waits.

Who may call what: any task in the Trio thread calls `post`, `write`, `answer` and `checkpoint`, from `open` until
`aclose`. Only the actor (`run`), or `aclose` after it has ended, calls the commit methods. The actor waits for the
helper's call before it uses the log again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import trio

from hearth._util.foreign import Raised, called
from hearth._util.threads import Background, Helper
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

    from hearth._util.threads import HelperCall
    from hearth.audit.record import Head
    from hearth.audit.recovery import Recovery
    from hearth.audit.tree import Tree
    from hearth.audit.writer import Disk

RETRY_S: Final = 1.0
"""Seconds after which a log that cannot be written is tried again when nothing is posted."""
FLUSH_LIMIT_S: Final = 5.0
"""Seconds that the last commits may take when the journal ends: a disk that hangs must not keep the process alive."""
SILENT_S: Final = 5.0
"""Seconds after which a disk that has not answered counts as one that cannot be written."""
_ENDED: Final = "the journal ended before the record was safe"
_PROBE: Final = 64
"""Kept records in the first chunk of a retry: on a full disk an attempt must not cost the sealing of all of them."""
_SILENT: Final = "the disk does not answer"
_CHUNK: Final = 1000
"""Kept records in each further chunk, so that writing the backlog does not hold the event loop."""

T = TypeVar("T")

log = logging.getLogger("hearth.journal")


class Receipt(Slot[None]):
    """The answer to one post: `await receipt.get()` returns once its records are as durable as configured.

    Raises AuditUnavailable, with the cause in `data.reason`, if they could not be written: nothing that has an effect
    may begin on the strength of these records.
    """

    __slots__ = ()


class _Post(NamedTuple):
    """Records, the epoch seconds of their report, and `minor` as in `Journal.post`. No receipt: only a wake-up.

    `written` is the call that writes them already.
    """

    at: float
    records: tuple[Mapping[str, Any], ...]
    receipt: Receipt | None
    minor: bool = False
    written: HelperCall[None] | None = None


class RecordObserver(Protocol):
    """What takes each record as it is posted, while it is awake."""

    @property
    def awake(self) -> bool:
        """True while records are taken."""
        ...

    def record(self, record: Mapping[str, Any]) -> None:
        """Take a record. Never raises."""


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
        self._helper = Helper("hearth-journal")
        self._mailbox: Mailbox[_Post] = Mailbox()
        self._queued = 0
        """Posts in the mailbox: while there are any, later ones queue behind them."""
        # True while `post` writes by itself: durability "os", and the actor runs.
        self._in_place = False
        # An exception of a write in place that is no LogFailed: the actor raises it in its own turn.
        self._bug: BaseException | None = None
        self.metrics = Metrics()
        """The counters of the runtime: the journal counts records, other components their own facts."""
        self.observer: RecordObserver | None = None
        self.failures = 0
        """The number of times that the log became unwritable."""
        self._underway = 0
        """Records that are in the mailbox, or in the running commit."""
        self._backlog = Backlog()
        self.found: Recovery | None = None
        """The state in which the last run left the log; None before `open`."""
        self.failure: str | None = None
        """The reason why the log cannot be written now, or None."""
        self._failed_at = 0.0
        self._full = False
        """True if the log cannot be written because the disk is full."""
        self._warned: str | None = None
        """The warning that was last written to the operator's log."""
        self._key_problem: str | None = None
        self._key_retry_at = 0
        # Set when the key that is being loaded is there, or cannot be.
        self._key_loading: trio.Event | None = None
        self._running: trio.Event | None = None
        self._committing: list[_Post] | None = None
        """The posts of the running commit, or None: while there is one, later posts queue behind it."""
        self._stopping = self._closed = self._hung = False

    # --- called by other actors

    def open(self) -> list[str]:
        """Lock and repair the log, and queue `daemon.recover` if the last run did not end in good order.

        Blocking; call it before `run`. Returns the findings for a person, one line each. Raises ConfigError.
        """
        found = self.found = self._log.open(self._clock())
        record = found.record()
        if record is not None:
            self.post(record)
        return found.notes()

    def post(self, *records: Mapping[str, Any], minor: bool = False) -> Receipt:
        """Report records, each with `event` and the event's fields; never waits, never raises.

        They are sealed next to each other and in the order of the posts. The caller must not change them afterwards.
        `minor` records report no change and no disclosure: while the log cannot be written they displace no others.
        """
        receipt = Receipt()
        self.metrics.count(records)
        if self.observer is not None and self.observer.awake:
            for record in records:
                self.observer.record(record)
        if self._closed or self._hung:
            receipt.fail(_unavailable(self.failure or f"audit log {self._log.path}: closed"))
            return receipt
        # The time of the report. The record may be written much later.
        at = self._clock()
        # Behind queued posts, or while the log has failed, this one must wait too: records keep the order of the posts.
        if self._in_place and not self._queued and self._committing is None and self.failure is None:
            self._write_now(at, records, receipt, minor=minor)
            return receipt
        # Only a log that can be written is relaxed: after a failure callers must wait for the truth.
        if self._relaxed and self.failure is None:
            receipt.fill(None)
        self._enqueue(_Post(at, records, receipt, minor))
        return receipt

    def _enqueue(self, post: _Post) -> None:
        self._queued += 1
        self._underway += len(post.records)
        self._mailbox.post(post)

    def _write_now(self, at: float, records: tuple[Mapping[str, Any], ...], receipt: Receipt, *, minor: bool) -> None:
        """Have a post written at once: with durability "os" a record is safe as soon as the kernel has it.

        The actor waits for a disk that does not answer, handles a failure, and loads the key that a checkpoint needs.
        """
        written = self._helper.call(partial(self._log.append, [*zip(repeat(at), records)], at))
        if not written.done:
            self._enqueue(_Post(at, records, receipt, minor, written))
            return
        try:
            called(written.get)
        except Raised as raised:
            if isinstance(raised.error, LogFailed):
                # The actor takes over: it spends the reserve, and tries again until the log can be written.
                self._fail([_Post(at, records, receipt, minor)], raised.error)
            else:
                # The actor must end on it, not the task that happened to post.
                receipt.fail(_unavailable(f"audit log {self._log.path}: {_ENDED}"))
                self._in_place, self._bug = False, raised.error
            self._wake()
            return
        receipt.fill(None)
        if self._log.warning is not self._warned:
            self._warn()
        # The key is loaded in a thread, by the actor: this task must not wait for it.
        if self._log.checkpoint_due and self._wants_key():
            self._wake()

    async def write(self, *records: Mapping[str, Any]) -> None:
        """Post records and wait for the receipt; always a checkpoint. Raises AuditUnavailable."""
        receipt = self.post(*records)
        if receipt.filled:
            await trio.lowlevel.checkpoint()
        await receipt.get()

    async def answer(self) -> None:
        """Wait until the actor has taken up an empty post, which shows that it is alive; the log may be unwritable.

        Never returns while the actor hangs in a disk that does not answer, nor after it has ended.
        """
        if self._closed or self._hung:
            await trio.sleep_forever()
        receipt = Receipt()
        self._enqueue(_Post(self._clock(), (), receipt))
        with contextlib.suppress(AuditUnavailable):
            await receipt.get()

    def checkpoint(self) -> None:
        """Have the records that no checkpoint covers signed soon; does nothing if there are none."""
        if self._log.is_open and (self._log.unsigned or self._underway):
            self._log.checkpoint_due = True
            # A key that could not be loaded is tried again now, not only when the next checkpoint is due.
            self._key_retry_at = 0
            self._wake()

    @property
    def at_once(self) -> bool:
        """True while the receipt of a post is answered within `post`: no task waits for one then."""
        idle = not self._queued and self._committing is None
        return self.failure is None and (self._relaxed or (self._in_place and idle))

    @property
    def settings(self) -> AuditSettings:
        """The operator's settings of the log."""
        return self._settings

    @property
    def warning(self) -> str | None:
        """A problem although records are written: no rotation, unsigned checkpoints, a log that was removed or cut."""
        log, found = self._log, self.found
        rollback = None if found is None else found.rollback
        return log.warning or self._key_problem or log.reserve.problem or log.tree_file.problem or rollback

    @property
    def lag(self) -> int:
        """The number of records that were posted and are not yet as durable as configured, the backlog included."""
        return self._underway + len(self._backlog)

    @property
    def head(self) -> Head:
        """Seq and hash of the last record written; (0, 64 zeros) for a new log."""
        return self._log.head

    @property
    def loaded_key(self) -> keys.Signer | None:
        """The daemon's key, if it is loaded."""
        return self._log.signer

    async def signer(self) -> keys.Signer:
        """Return the daemon's key, made or read if it is not loaded yet. Raises AuditUnavailable."""
        if self._key_loading is not None:
            await self._key_loading.wait()
        elif self._log.signer is None:
            await self._load_key()
        if self._log.signer is None:
            raise AuditUnavailable(self._key_problem, data={"reason": self._key_problem, "effect": "none"})
        return self._log.signer

    def grown(self) -> tuple[Head, Tree]:
        """Return the head, and the tree of the records that ends with it. Blocking: it may wait for a disk."""
        return self._log.grown()

    # --- the actor

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write posted records, until cancelled; then write those posted by then, within `FLUSH_LIMIT_S`, and end.

        Later posts wait for `aclose`. May be started again after it ended.
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
                    # The loop is shielded, so it is asked to stop; the guard's deadline bounds its last commits.
                    guard.deadline = trio.current_time() + FLUSH_LIMIT_S
                    self._stop()
        finally:
            running.set()

    async def aclose(self) -> None:
        """Write and sync everything that was posted, and close the log. Idempotent; does not raise.

        Cancellation does not shorten it; for a disk that hangs it ends after `FLUSH_LIMIT_S`. If records remain
        unwritten, `failure` says so afterwards.
        """
        with trio.CancelScope(shield=True):
            if self._running is not None and not self._running.is_set():
                self._stop()
                await self._running.wait()
            if self._closed:
                return
            if self._log.is_open and not self._hung:
                with trio.move_on_after(FLUSH_LIMIT_S):
                    await self._finish()
            # From here on `post` refuses. What came during the last commits is refused below.
            self._closed = True
            self._refuse(self._mailbox.drain(), self.failure or f"audit log {self._log.path}: closed")
            self._mailbox.close()
            if self._backlog:
                self.failure = f"{self.failure}; {self._backlog.lost} records were never written"
            if not self._hung:
                try:
                    await _in_time(self._log.close)
                except LogFailed as failed:
                    self.failure = failed.reason
                except TimeoutError:
                    self.failure = f"audit log {self._log.path}: {_SILENT}"

    def _stop(self) -> None:
        self._stopping = True
        self._in_place = False
        self._wake()

    def _wake(self) -> None:
        self._mailbox.post(_Post(0.0, (), None))

    async def _serve(self, guard: trio.CancelScope, outer: trio.CancelScope) -> None:
        """Run the loop, shielded from cancellation; `guard` ends it if the last commits take too long."""
        with guard:
            async with trio.open_nursery() as nursery:
                while not self._stopping:
                    # One batch, one commit: records that arrive during its sync form the next batch.
                    await self._commit(await self._next())
                    if self._bug is not None:
                        bug, self._bug = self._bug, None
                        raise bug
                    if self._wants_key():
                        # Set here and not in the task, which may start only after the next turn of this loop.
                        self._key_loading = trio.Event()
                        nursery.start_soon(self._load_key)
                # What was posted before the stop is still committed: tasks wait for these receipts.
                await self._commit(self._mailbox.drain())
        if self._hung:
            self._refuse(self._mailbox.drain(), self.failure)
        # Ends the timer of the checkpoints, and `run`, which sleeps beside this loop.
        outer.cancel()

    async def _sign_regularly(self) -> None:
        """Sign every `checkpoint_interval_s`, so that no record stays unsigned for longer."""
        while True:
            await trio.sleep(self._settings.checkpoint_interval_s)
            self.checkpoint()

    async def _next(self) -> list[_Post]:
        """Return the new posts; an empty list after `RETRY_S`, if a failed log is to be tried again."""
        if self.failure is None:
            return await self._mailbox.batch()
        with trio.move_on_after(RETRY_S):
            return await self._mailbox.batch()
        return []

    async def _finish(self) -> None:
        """Run the last commits, for `aclose`."""
        await self._commit(self._mailbox.drain())
        if self._wants_key():
            await self._load_key()
            await self._commit([])
        # Posts that came during those commits.
        while posts := self._mailbox.drain():
            await self._commit(posts)
        if self.failure is not None and (self._backlog.lost or self._log.reserve.spent):
            await self._write_gap()

    # --- commits

    async def _commit(self, posts: list[_Post]) -> None:
        """Write the records of `posts` and answer their receipts, whatever happens."""
        begun = [post for post in posts if post.written is not None]
        if begun and len(posts) > 1:
            # There is one at most, and only wake-ups may be before it: later posts queue behind it.
            await self._commit(begun)
            posts = [post for post in posts if post.written is None]
        # Wake-ups have no receipt and were not counted.
        self._queued -= sum(post.receipt is not None for post in posts)
        underway = sum(len(post.records) for post in posts)
        self._committing, own = posts, False
        try:
            # The backlog first: its records are older than those of these posts.
            if self.failure is not None:
                await self._resume()
            posts, own = self._committing, True
            records = [(post.at, record) for post in posts for record in post.records]
            await self._append(records, written=posts[0].written if posts else None, own=True)
        except LogFailed as failed:
            # Posts that were kept while the disk did not answer this commit are younger than it.
            self._fail(self._committing, failed, oldest=own)
            self._committing = []
            await self._spend_reserve()
        except BaseException:
            # Cancelled by the guard, or a bug. It is not known if the records are safe, so their receipts fail.
            self._refuse(posts, f"audit log {self._log.path}: {_ENDED}")
            raise
        else:
            self._answer(posts)
        finally:
            self._committing = None
            self._underway -= underway

    def _answer(self, posts: list[_Post]) -> None:
        """Fill the receipts of posts that are written."""
        if self._log.warning is not self._warned:
            self._warn()
        for post in posts:
            if post.receipt is not None and not post.receipt.filled:
                post.receipt.fill(None)

    async def _append(
        self, records: list[Stamped], *, spend: bool = False, written: HelperCall[None] | None = None, own: bool = False
    ) -> None:
        """Append records to the log, or wait for the call that does it. Raises LogFailed.

        `own`: they are those of the posts that are being committed.
        """
        if self._hung:
            raise LogFailed(f"audit log {self._log.path}: {_SILENT}")
        if written is None:
            now = records[-1][0] if records else self._clock()
            # A sync always takes long.
            written = self._helper.call(partial(self._log.append, records, now, spend=spend), 0 if self._sync else None)
        try:
            with trio.move_on_after(SILENT_S):
                await written.wait()
            if not written.done:
                await self._outlast(written, own=own)
        except trio.Cancelled:  # the last commits took too long: leave the log to the thread
            self._hung = True
            self.failure = f"audit log {self._log.path}: {_SILENT}"
            raise
        written.get()

    async def _outlast(self, written: HelperCall[None], *, own: bool) -> None:
        """Refuse what is posted until a call that the disk has not answered has ended.

        The log has then failed, and the next commit resumes it. The records of the call itself may be written. Posts
        that waited for it are kept first: they are older than what comes now.
        """
        silent = LogFailed(f"audit log {self._log.path}: {_SILENT}")
        posts = self._committing or []
        if own:
            self._fail([], silent)
            self._refuse(posts, silent.reason)
        else:
            self._committing = []
            self._fail(posts, silent)
        written.then(self._wake)
        while not written.done:
            posts = await self._mailbox.batch()
            self._queued -= sum(post.receipt is not None for post in posts)
            self._underway -= sum(len(post.records) for post in posts)
            self._fail(posts, silent)

    async def _resume(self) -> None:
        """Write the backlog, behind an `audit.resume` record. Raises LogFailed."""
        resume = {
            "event": "audit.resume",
            "reason": self.failure,
            "since": timestamp(self._failed_at),
            "kept": len(self._backlog),
            **self._backlog.counts(),
        }
        first: list[Stamped] = [(self._clock(), resume)]
        # The first chunk is small: if the disk is still full, the attempt costs little.
        size = _PROBE
        while first or self._backlog:
            chunk = self._backlog.oldest(size)
            try:
                await self._append(first + chunk)
            except LogFailed as failed:
                self._forget(failed.written, first)
                # `written` is 0 in this error: none of the new records of the commit has been written.
                raise LogFailed(failed.reason, full=failed.full) from failed
            self._forget(len(first) + len(chunk), first)
            first, size = [], _CHUNK
            # Other tasks run between two chunks. What they post waits in the mailbox, behind these older records.
            await trio.lowlevel.checkpoint()
        self.failure = None
        log.warning("audit log %s: is written again", self._log.path)

    def _forget(self, written: int, first: list[Stamped]) -> None:
        """Remove written records from the backlog; note that the resume record, if it was in `first`, is written."""
        if first and written:
            self._backlog.mark_reported()
        self._backlog.release(max(0, written - len(first)))

    async def _spend_reserve(self) -> None:
        """Write the kept records that are not minor into the room of the reserve, if the disk is full."""
        backlog, reserve = self._backlog, self._log.reserve
        if not (self._full and backlog.has_major and (reserve.held or reserve.spent)):
            return
        record = {"event": "audit.reserve", "reason": self.failure, "since": timestamp(self._failed_at)}
        first: list[Stamped] = [] if reserve.spent else [(self._clock(), record)]
        try:
            while chunk := backlog.oldest(_CHUNK, major=True):
                await self._append(first + chunk, spend=True)
                backlog.release(len(chunk), major=True)
                first = []
        except LogFailed as failed:
            # The room was not enough. What has been written is on the disk; the rest stays in the backlog.
            backlog.release(max(0, failed.written - len(first)), major=True)

    async def _write_gap(self) -> None:
        """Write a last record into the reserve of a log that cannot be written, with the number of records lost."""
        if not (self._full and (self._log.reserve.held or self._log.reserve.spent)):
            return
        record = {
            "event": "audit.gap",
            "reason": self.failure,
            "since": timestamp(self._failed_at),
            **self._backlog.counts(all_of_them=True),
        }
        # Signed, where there is a key: nothing follows it.
        self._log.checkpoint_due = True
        with contextlib.suppress(LogFailed):
            await self._append([(self._clock(), record)], spend=True)

    def _fail(self, posts: list[_Post], failed: LogFailed, *, oldest: bool = False) -> None:
        """Answer the posts that were written whole, refuse the others, and keep their records for later.

        `oldest`: they are older than all that is kept already.
        """
        if self.failure is None:
            self.failures += 1
            self._failed_at = self._clock()
            log.error("%s; until it can be written nothing with an effect is done", failed.reason)
        self.failure, self._full = failed.reason, failed.full
        # The log wrote the first `written` records; posts before that point are safe, and one may be written in part.
        written = failed.written
        younger = self._backlog
        if oldest:
            self._backlog = Backlog()
        for at, group, receipt, minor, _written in posts:
            missing = group[written:]
            written = max(0, written - len(group))
            for record in missing:
                self._backlog.keep(at, record, minor=minor)
            if receipt is not None and not receipt.filled:
                if missing:
                    receipt.fail(_unavailable(failed.reason))
                else:
                    receipt.fill(None)
        if oldest:
            self._backlog.extend(younger)

    def _warn(self) -> None:
        """Write the log's warning to the operator's log, once."""
        self._warned = self._log.warning
        log.warning("%s", self._warned)

    def _refuse(self, posts: list[_Post], reason: str | None) -> None:
        for post in posts:
            receipt = post.receipt
            if receipt is not None and not receipt.filled:
                receipt.fail(_unavailable(reason or f"audit log {self._log.path}: closed"))

    # --- the key

    def _wants_key(self) -> bool:
        """Return True if a checkpoint waits for the key; after a failure, not before the next checkpoint is due."""
        log = self._log
        if not log.checkpoint_due or log.signer is not None or self._key_loading is not None:
            return False
        return log.head[0] >= self._key_retry_at

    async def _load_key(self) -> None:
        """Read or make the key, and import its library, in a thread; then have the checkpoint written."""
        loading = trio.Event() if self._key_loading is None else self._key_loading
        self._key_loading = loading
        try:
            self._log.signer = await _in_time(partial(keys.load_or_create, self._settings.key))
            self._key_problem = None
        except (OSError, ConfigError) as error:
            self._key_problem = f"audit checkpoints are not signed: {str(error) or _SILENT}"
            self._key_retry_at = self._log.head[0] + self._settings.checkpoint_every
        finally:
            self._key_loading = None
            loading.set()
        self._wake()


def _unavailable(reason: str) -> AuditUnavailable:
    return AuditUnavailable(f"the audit log cannot be written: {reason}", data={"reason": reason, "effect": "none"})


async def _in_time(work: Callable[[], T]) -> T:
    """Run a blocking call to the disk in a thread. Raises TimeoutError if it takes longer than `FLUSH_LIMIT_S`."""
    return await Background(work, "hearth-journal").wait_at_most(FLUSH_LIMIT_S)
