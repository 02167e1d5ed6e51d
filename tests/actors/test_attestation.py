"""The answers to attest.*: in one process, with a TPM of the test's own where its answers matter."""

from __future__ import annotations

import hashlib
import logging

import pytest
import trio
from attrs import evolve
from support.world import OPEN, BenchWorld, embedded, running, simulated

import hearth
from hearth.actors import attestation
from hearth.actors.attestation import Attestation
from hearth.actors.journal import Journal
from hearth.attest.measure import sha256_of
from hearth.attest.statement import enrolled, extended, statement_of, verify
from hearth.audit import AuditSettings
from hearth.audit.notes import Checkpoint, NotAccepted
from hearth.config.model import AuditConfig, Config
from hearth.drivers import tpm as driver
from hearth.errors import AuditUnavailable, ConfigError, DeviceError, PermissionDenied, RateLimited
from hearth.policy.rules import in_force
from hearth.protocol.methods import AttestQuote

pytestmark = pytest.mark.slow

NONCE = "0f" * 16


class Tpm:
    """A TPM of one register, which fails while a test says so; `asked` lists the commands."""

    public, name = "PEM", "000b"

    def __init__(self, value=bytes(32)):
        self.register = value
        self.fails = None
        self.asked = []

    def _ask(self, command):
        self.asked.append(command)
        if self.fails == command:
            raise DeviceError(f"TPM: {command}: broken", effect="none")

    def value(self):
        self._ask("value")
        return self.register

    def extend(self, digest):
        self._ask("extend")
        self.register = hashlib.sha256(self.register + digest).digest()

    def quote(self, qualifying):
        self._ask("quote")
        return b"quoted", qualifying

    def close(self):
        self._ask("close")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Makes an attestation over a journal in this directory, opened; its measurements are a few words."""
    journals = []
    monkeypatch.setattr("hearth.attest.measure.measure_files", lambda: {"hearth": "sha256:h"})

    def make(tpm=None, fixed=None, policy=(OPEN,)):
        settings = AuditSettings(path=tmp_path / "audit.log", key=tmp_path / "key", reserve_bytes=0)
        journals.append(Journal(settings))
        monkeypatch.setattr(driver.Tpm, "open", lambda _name, _pcr: tpm)
        found = Attestation(
            journals[-1], in_force(policy), fixed or dict, lambda: 1_776_638_881.234, None if tpm is None else "tpm"
        )
        found.open()
        return found, journals[-1]

    return make


async def asked(found, journal, *questions):
    """The statements that answer these questions, while the journal runs."""
    journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        try:
            return [await found.quote(question, "s", "uid:1") for question in questions]
        finally:
            await journal.aclose()
            nursery.cancel_scope.cancel()


async def test_the_register_is_extended_once_for_each_measurement_and_before_its_statement(made):
    tpm, policy = Tpm(), in_force([OPEN])
    found, journal = made(tpm, policy=policy)
    found._policy = policy
    first, second = await asked(found, journal, AttestQuote(NONCE), AttestQuote(NONCE))
    assert tpm.asked == ["value", "extend", "quote", "quote"]
    event = bytes.fromhex(sha256_of(statement_of(first)["measured"])[7:])
    for answer in (first, second):
        assert statement_of(answer)["tpm"] == {"pcr": 23, "before": "00" * 32, "events": [event.hex()]}
    assert tpm.register == extended(bytes(32), [event])
    policy.replace([evolve(OPEN, max_risk=1)])
    again, journal = made(tpm, policy=policy)
    again._policy = policy
    (third,) = await asked(again, journal, AttestQuote(NONCE))
    assert statement_of(third)["tpm"]["events"][0] == event.hex()
    assert len(statement_of(third)["tpm"]["events"]) == 2


@pytest.mark.parametrize("crashed", ["before the register was extended", "after"])
async def test_a_crash_while_the_register_is_extended_leaves_a_list_that_fits(made, crashed):
    tpm = Tpm()
    found, journal = made(tpm)
    await asked(found, journal, AttestQuote(NONCE))
    found, journal = made(tpm, fixed=lambda: {"limits": "other"})
    if crashed == "after":
        await asked(found, journal, AttestQuote(NONCE))
    else:
        tpm.fails = "extend"
        with pytest.RaisesGroup(DeviceError):
            await asked(found, journal, AttestQuote(NONCE))
        tpm.fails = None
    found, journal = made(tpm, fixed=lambda: {"limits": "other"})
    (answer,) = await asked(found, journal, AttestQuote(NONCE))
    told = statement_of(answer)["tpm"]
    assert (told["before"], len(told["events"])) == ("00" * 32, 2)
    assert extended(bytes(32), [bytes.fromhex(each) for each in told["events"]]) == tpm.register


def test_a_register_that_others_have_extended_is_named_and_begins_the_list(made, caplog):
    with caplog.at_level(logging.WARNING):
        found, _ = made(Tpm(b"x" * 32))
    assert "was extended by other software" in caplog.text
    assert (found._before, found._events) == (b"x" * 32, [])


def test_a_register_that_cannot_be_read_is_a_fault_of_the_configuration(made):
    tpm = Tpm()
    tpm.fails = "value"
    with pytest.raises(ConfigError, match=r"\[attest\] pcr: .*; choose another one"):
        made(tpm)


async def test_a_list_that_cannot_be_written_is_reported_and_the_statement_is_made(made, tmp_path, caplog):
    (tmp_path / "audit.log.attest.next").mkdir()
    found, journal = made(Tpm())
    with caplog.at_level(logging.WARNING):
        await asked(found, journal, AttestQuote(NONCE))
    assert "audit.log.attest: cannot be kept" in caplog.text


async def test_the_start_measures_and_a_tpm_that_fails_is_reported(made, caplog, autojump_clock):
    tpm = Tpm()
    found, _ = made(tpm)
    await found.run()
    assert tpm.asked == ["value", "extend"]
    tpm.fails, found._events = "extend", []
    await found.run()
    assert "TPM: extend: broken" in caplog.text
    tpm.fails = "close"
    found.close()
    found.close()
    assert tpm.asked[-1] == "close"


async def test_without_a_tpm_the_start_waits_until_it_is_over(made, autojump_clock):
    found, _ = made()
    began = trio.current_time()
    await found.run()
    assert trio.current_time() - began == attestation.SETTLE_S
    assert found._files is not None
    found.close()


async def test_a_proof_that_cannot_be_given_is_left_out(made):
    found, journal = made()
    first, later, never = await asked(
        found, journal, AttestQuote(NONCE), AttestQuote(NONCE, 1), AttestQuote(NONCE, 1000)
    )
    assert "consistency" not in first
    assert len(later["consistency"]) == 1
    assert "consistency" not in never


async def test_a_key_that_cannot_be_used_is_the_answer(made, monkeypatch):
    def refuse(_path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("hearth.audit.keys.load_or_create", refuse)
    found, journal = made()
    with pytest.RaisesGroup(pytest.RaisesExc(AuditUnavailable, match="checkpoints are not signed")):
        await asked(found, journal, AttestQuote(NONCE))


async def test_an_embedded_runtime_attests_itself_too(tmp_path):
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log"))
    async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as session:
        assert "CAP_ATTEST" in session.capabilities
        key = await session.attest_key()
        known = enrolled(await session.attest_quote(NONCE), key, NONCE, 1e12)
        nonce = "1f" * 16
        answer = await session.attest_quote(nonce, since=Checkpoint.parse(known.checkpoint).size)
        verify(answer, known, nonce, 0.0)
        with pytest.raises(NotAccepted, match="other-nonce"):
            verify(answer, known, "2f" * 16, 0.0)


async def test_questions_have_a_rate(tmp_path, monkeypatch):
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log"))
    async with hearth.open_runtime(config=config) as runtime, runtime.open_session() as session:
        await session.attest_quote(NONCE)
        monkeypatch.setattr(Attestation, "_answer", lambda *_: {})
        with pytest.raises(RateLimited) as caught:
            await _many(session)
    assert caught.value.data["rate"] == "10/s"


async def _many(session):
    for _ in range(30):
        await session.attest_quote(NONCE)


async def test_a_runtime_without_it_says_so(autojump_clock):
    async with running(BenchWorld()) as world, embedded(world) as session:
        assert "CAP_ATTEST" not in session.capabilities
        with pytest.raises(PermissionDenied, match="does not attest itself"):
            await session.attest_quote(NONCE)
        with pytest.raises(PermissionDenied, match="does not attest itself"):
            await session.attest_key()


async def test_a_question_that_waits_ends_with_its_session(tmp_path, monkeypatch):
    started = trio.Event()

    async def never(_self, _work):
        started.set()
        await trio.sleep_forever()

    monkeypatch.setattr(Attestation, "_in_turn", never)
    async with running(simulated(tmp_path)) as world, embedded(world) as session, trio.open_nursery() as nursery:
        nursery.start_soon(_refused, session)
        await started.wait()
        with trio.fail_after(10):
            await session.close()


async def _refused(session):
    with pytest.raises(hearth.errors.SessionInvalid):
        await session.attest_quote(NONCE)


def test_without_the_library_the_fault_says_what_to_install(monkeypatch):
    def missing(_name):
        raise ImportError("No module named 'tpm2_pytss'")

    monkeypatch.setattr(driver, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'hearthd\[tpm\]'"):
        driver.Tpm.open("/dev/tpmrm0", 23)


def test_a_device_is_named_as_the_library_wants_it():
    assert driver.tcti_of("/dev/tpmrm0") == "device:/dev/tpmrm0"
    assert driver.tcti_of("swtpm:path=/s") == "swtpm:path=/s"
