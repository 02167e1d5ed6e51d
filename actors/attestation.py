"""The attestation of one runtime: what attest.quote and attest.key answer.

It owns the measurements, the TPM, and the list of what the TPM's PCR was extended with. The journal owns the audit log,
whose head and tree a statement has; `hearth.attest` owns the statement's format.

Theory of operation. Files are hashed once, in a thread, just after the runtime has started (`run`), or for the first
question if that comes earlier. A policy that is replaced later is measured again when a question comes. With a TPM, the
PCR is extended with the SHA-256 of the measurements before the first statement that has them. Each call to the TPM runs
in a thread, one at a time (`_limiter`): the event loop never waits for it, and questions wait for each other.

The digests of all extensions since the machine started are in `audit.log.attest`, beside the log: a PCR keeps only
their sum. If they do not lead to the value that the PCR has, other software has extended it. Then the list begins with
that value (`before`), and verifiers refuse it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from attrs import asdict, define, field

from hearth._util.files import replace_file
from hearth._util.ids import boot_id
from hearth._util.threads import IMPORTING
from hearth._version import __version__
from hearth.audit.notes import ED25519, Checkpoint, verifier_key
from hearth.audit.record import timestamp
from hearth.audit.tree import NotProven, Prover
from hearth.errors import ConfigError, DeviceError
from hearth.policy.rules import Buckets, Rate, too_often

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hearth.actors.journal import Journal
    from hearth.audit import keys
    from hearth.drivers.tpm import Tpm
    from hearth.policy.rules import PolicyInForce
    from hearth.protocol.methods import AttestQuote

RATE: Final = Rate.parse("10/s")
"""Statements for one principal: each is a record of the audit log, and work for the TPM."""
SETTLE_S: Final = 5.0
"""Seconds after the start in which nothing is measured without a TPM, unless a question comes: a start is busy."""
_RESET: Final = bytes(32)

log = logging.getLogger("hearth.attest")


def policy_json(entries: PolicyInForce) -> list[Any]:
    """Return the policy entries as JSON: sets sorted, paths and tuples as JSON has them."""
    return [asdict(entry, value_serializer=_plain) for entry in entries]


def _plain(_of: type, _attribute: Any, value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    return dict(value) if hasattr(value, "items") else value


@define(eq=False)
class Attestation:
    """The attestation of a runtime with this journal.

    `fixed` measures what the operator has configured; it is called once.
    """

    _journal: Journal
    _policy: PolicyInForce
    _fixed: Callable[[], Mapping[str, str]]
    _clock: Callable[[], float]
    _tpm_name: str | None = None
    _pcr: int = 23
    _tpm: Tpm | None = field(default=None, init=False)
    _files: Mapping[str, str] | None = field(default=None, init=False)
    _before: bytes = field(default=_RESET, init=False)
    _events: list[bytes] = field(factory=list, init=False)
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)
    _rates: Buckets = field(factory=lambda: Buckets(RATE), init=False)
    _started: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._started = timestamp(self._clock())

    @property
    def _list(self) -> Path:
        path = self._journal.settings.path
        return path.with_name(f"{path.name}.attest")

    def open(self) -> None:
        """Open the TPM, if one is configured, before the process confines itself. Blocking. Raises ConfigError."""
        if self._tpm_name is None:
            return
        from hearth.attest.statement import extended
        from hearth.drivers.tpm import Tpm

        self._tpm = Tpm.open(self._tpm_name, self._pcr)
        try:
            found, (before, events) = self._tpm.value(), self._read_list()
        except DeviceError as error:
            raise ConfigError(f"[attest] pcr: {error}; choose another one") from None
        lists = (before, events), (before, events[:-1])
        self._before, self._events = next((told for told in lists if extended(*told) == found), (found, []))
        if found != _RESET and not self._events:
            log.warning(
                "attestation: PCR %d was extended by other software; verifiers refuse it until the machine restarts",
                self._pcr,
            )

    def close(self) -> None:
        """Close the TPM, when nothing asks any more. Blocking, but for a TPM that does not answer: it is left alone."""
        if self._tpm is not None and not self._limiter.borrowed_tokens:
            with suppress(DeviceError):
                self._tpm.close()
            self._tpm = None

    async def run(self) -> None:
        """Measure the files; with a TPM at once, and extend the PCR, else when the start is over."""
        if self._tpm is None:
            await trio.sleep(SETTLE_S)
        try:
            await self._in_turn(self._measured)
        except DeviceError as error:
            log.error("attestation: %s", error)

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        """Run a blocking call in a thread, after those that came before. The TPM's answer is bounded by its driver."""
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)

    # --- blocking, one at a time

    def _measured(self) -> dict[str, str]:
        """Return the present measurements; the PCR has been extended with them. Raises DeviceError."""
        # Imported here and below: a start need not wait for what makes statements.
        with IMPORTING:
            from hearth.attest.measure import measure_files, sha256_of

        if self._files is None:
            self._files = {"version": __version__, **measure_files(), **self._fixed()}
        measured = {
            **self._files,
            "policy": sha256_of(policy_json(self._policy)),
        }
        if self._tpm is not None:
            event = bytes.fromhex(sha256_of(measured).removeprefix("sha256:"))
            if not self._events or self._events[-1] != event:
                # On the list first: after a crash in between the next run finds a list with one event too many.
                self._write_list([*self._events, event])
                self._tpm.extend(event)
                self._events.append(event)
        return measured

    def _read_list(self) -> tuple[bytes, list[bytes]]:
        try:
            read = orjson.loads(self._list.read_bytes())
            return bytes.fromhex(read["before"]), [bytes.fromhex(each) for each in read["events"]]
        except (OSError, ValueError, KeyError, TypeError):  # the PCR itself shows if there was one
            return _RESET, []

    def _write_list(self, events: list[bytes]) -> None:
        content = {"before": self._before.hex(), "events": [each.hex() for each in events]}
        try:
            replace_file(self._list, orjson.dumps(content), 0o640, sync=False)
        except OSError as error:
            log.warning("attestation: %s: cannot be kept: %s", self._list, error.strerror)

    def _consistency(self, since: int, size: int) -> dict[str, list[str]]:
        """Return the proof that the tree of `size` records continues that of `since`; nothing if it cannot be made."""
        try:
            proof = Prover(self._journal.settings.path).consistency(since, size)
        except (OSError, NotProven):
            return {}
        return {"consistency": [base64.b64encode(each).decode() for each in proof]}

    def _answer(self, params: AttestQuote, signer: keys.Signer) -> dict[str, Any]:
        with IMPORTING:
            from hearth.attest.statement import FORMAT, make

        measured = self._measured()
        (seq, head), tree = self._journal.grown()
        checkpoint = Checkpoint.of(tree.origin, tree.size, tree.root())
        root = base64.b64encode(checkpoint.root).decode()
        statement: dict[str, Any] = {
            "format": FORMAT,
            "nonce": params.nonce,
            "time": timestamp(self._clock()),
            "started": self._started,
            "boot_id": boot_id(),
            "measured": measured,
            "audit": {"seq": seq, "hash": head, "origin": tree.origin, "size": tree.size, "root": root},
        }
        if self._tpm is not None:
            events = [each.hex() for each in self._events]
            statement["tpm"] = {"pcr": self._pcr, "before": self._before.hex(), "events": events}
        answer = make(statement, signer)
        answer["checkpoint"] = checkpoint.signed(signer)
        if params.since is not None:
            answer |= self._consistency(params.since, tree.size)
        if self._tpm is not None:
            quote, signature = self._tpm.quote(hashlib.sha256(base64.b64decode(answer["payload"])).digest())
            quoted = {"quote": quote, "signature": signature}
            answer["tpm"] = {name: base64.b64encode(value).decode() for name, value in quoted.items()}
        return answer

    # --- requests

    async def quote(self, params: AttestQuote, session_id: str, principal: str) -> dict[str, Any]:
        """Return the answer to attest.quote. Raises RateLimited, AuditUnavailable, DeviceError."""
        wait_s = self._rates.take(principal, trio.current_time())
        if wait_s:
            raise too_often("statements", RATE, wait_s)
        record = {"event": "attest.quote", "session_id": session_id, "principal": principal, "nonce": params.nonce}
        # Before the statement is made: the log that it states has the question.
        await self._journal.write(record)
        signer = await self._journal.signer()
        return dict(await self._in_turn(partial(self._answer, params, signer)))

    async def key(self) -> dict[str, Any]:
        """Return the answer to attest.key. Raises AuditUnavailable."""
        signer = await self._journal.signer()
        _, tree = await self._in_turn(self._journal.grown)
        answer: dict[str, Any] = {
            "key": signer.key_id,
            "public": signer.public_pem,
            "origin": tree.origin,
            "verifier_key": verifier_key(tree.origin, ED25519, signer.raw),
        }
        if self._tpm is not None:
            answer["tpm"] = {"public": self._tpm.public, "name": self._tpm.name, "pcr": self._pcr}
        return answer
