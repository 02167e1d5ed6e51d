"""The job store: what has been answered is answered so for good, and nothing it was told is half there."""

from __future__ import annotations

import pytest
import trio
from support.hcp_job_store import ACCEPTED, ANN, BEN, begin, event, line, look, row, running, session_id

from hearth.actors.bridges.hcp.store import Claim, JobStore, JobStoreError, Limits, MessageLogFull

REJECTED = line("task_rejected", reason_code="forbidden")
ONE, TWO = session_id(1), session_id(2)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "audit.log.hcp"


def clocked(place, now=1000.0, **settings):
    """A job store whose clock stands."""
    return JobStore(place, clock=lambda: now, **settings)


# --- messages


async def test_a_message_is_new_once_pending_until_it_is_answered_and_answered_from_then_on(place):
    async with running(JobStore(place)) as job_store:
        assert await job_store.claim(ANN, "m", "digest") == Claim("new")
        assert await job_store.claim(ANN, "m", "digest") == Claim("pending")
        await job_store.answer(ANN, "m", REJECTED)
        assert await job_store.claim(ANN, "m", "digest") == Claim("answered", REJECTED)


async def test_an_accepted_message_is_answered_with_the_session_it_began(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        assert await job_store.claim(ANN, "message-1", "digest") == Claim("answered", ACCEPTED, ONE)


async def test_of_two_that_ask_for_a_message_at_once_one_gets_it(place):
    claims = []
    async with running(JobStore(place)) as job_store:

        async def ask():
            claims.append((await job_store.claim(ANN, "m", "digest")).kind)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
    assert sorted(claims) == ["new", *["pending"] * 7]


async def test_of_two_that_ask_at_once_for_one_that_was_answered_both_get_the_answer(place):
    claims = []
    async with running(JobStore(place)) as job_store:
        await job_store.claim(ANN, "m", "digest")
        await job_store.answer(ANN, "m", REJECTED)

        async def ask():
            claims.append((await job_store.claim(ANN, "m", "digest")).kind)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
    assert claims == ["answered"] * 8


async def test_another_message_of_the_same_id_is_a_conflict_before_and_after_the_answer(place):
    async with running(JobStore(place)) as job_store:
        await job_store.claim(ANN, "m", "digest")
        assert await job_store.claim(ANN, "m", "another") == Claim("conflict")
        await job_store.answer(ANN, "m", REJECTED)
        assert await job_store.claim(ANN, "m", "another") == Claim("conflict")
        assert await job_store.claim(ANN, "m", "another") == Claim("conflict"), "a conflict holds nothing"


async def test_principals_have_their_message_ids_to_themselves(place):
    async with running(JobStore(place)) as job_store:
        assert (await job_store.claim(ANN, "m", "digest")).kind == "new"
        assert (await job_store.claim(BEN, "m", "another")).kind == "new"


async def test_a_message_that_is_released_is_new_again(place):
    async with running(JobStore(place)) as job_store:
        await job_store.claim(ANN, "m", "digest")
        await job_store.release(ANN, "m")
        await job_store.release(ANN, "m")
        assert await job_store.claim(ANN, "m", "another") == Claim("new")


async def test_a_restart_between_claim_and_answer_forgets_the_claim_and_one_after_it_the_answer_stays(place):
    async with running(JobStore(place)) as job_store:
        await job_store.claim(ANN, "undecided", "digest")
        await job_store.claim(ANN, "decided", "digest")
        await job_store.answer(ANN, "decided", REJECTED)
    async with running(JobStore(place)) as job_store:
        assert await job_store.claim(ANN, "undecided", "digest") == Claim("new")
        assert await job_store.claim(ANN, "decided", "digest") == Claim("answered", REJECTED)
        assert await job_store.claim(ANN, "decided", "another") == Claim("conflict")


async def test_a_message_that_is_not_held_is_not_answered(place):
    async with running(JobStore(place)) as job_store:
        with pytest.raises(KeyError):
            await job_store.answer(ANN, "m", REJECTED)


async def test_an_asker_that_is_cancelled_leaves_no_claim_behind(place):
    async with running(JobStore(place)) as job_store:
        with trio.CancelScope() as scope:
            scope.cancel()
            await job_store.claim(ANN, "m", "digest")
        assert scope.cancelled_caught
        assert (await job_store.claim(ANN, "m", "digest")).kind == "new"


# --- sessions


async def test_a_session_is_what_it_was_begun_with_and_what_became_of_it(place):
    async with running(clocked(place)) as job_store:
        begun = await begin(job_store, resumed_from=f"ckpt-{TWO}-000003", intent="look — küche")
        found = await job_store.session(ONE)
        assert found == row(resumed_from=begun.resumed_from, intent="look — küche", updated_at=1000.0, lines=1)
        await job_store.append(ONE, [event(1), event(2)], phase="sampling")
        await job_store.append(ONE, [event(3)], state="ABORTING")
        found = await job_store.session(ONE)
        assert (found.phase, found.state, found.lines, found.sequence) == ("sampling", "ABORTING", 4, 3)
        await job_store.end(ONE, "ABORTED", [line("task_failed"), event(4)])
        found = await job_store.session(ONE)
        assert (found.state, found.ended_at, found.lines, found.sequence) == ("ABORTED", 1000.0, 6, 4)
        assert await job_store.session(TWO) is None


async def test_what_a_new_row_says_of_its_future_counts_for_nothing(place):
    async with running(clocked(place)) as job_store:
        begun = row(state="COMPLETED", ended_at=5.0, phase="x", checkpoints=7, lines=9, sequence=9)
        await job_store.claim(ANN, begun.message_id, "digest")
        await job_store.answer(ANN, begun.message_id, ACCEPTED, begun)
        assert await job_store.session(ONE) == row(updated_at=1000.0, lines=1)


async def test_a_message_log_is_read_as_it_was_written_after_a_restart_too(place):
    told = [ACCEPTED, event(1), event(2), line("task_completed", outputs={"name": "Zürich\n"}), event(3)]
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.append(ONE, told[1:3])
        await job_store.end(ONE, "COMPLETED", told[3:])
        assert await job_store.message_log(ONE) == told
    async with running(JobStore(place)) as job_store:
        assert await job_store.message_log(ONE) == told
        assert await job_store.message_log(TWO) == []


async def test_a_checkpoint_and_the_event_that_tells_of_it_are_there_together(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.record(ONE, 1, {"ok": True, "result": {"value": 1.5}}, [event(1)], phase="sampling")
        await job_store.record(ONE, 2, {"ok": False, "error": "no"}, [event(2), event(3)], state="PAUSED")
        found = await job_store.session(ONE)
        assert (found.checkpoints, found.sequence, found.phase, found.state) == (2, 3, "sampling", "PAUSED")
        outcomes = [{"ok": True, "result": {"value": 1.5}}, {"ok": False, "error": "no"}]
        assert await job_store.outcomes(ONE, 2) == outcomes
        assert await job_store.outcomes(ONE, 1) == outcomes[:1]
        assert await job_store.outcomes(ONE, 0) == []
        with pytest.raises(JobStoreError, match=f"no checkpoint 3 of session {ONE}"):
            await job_store.outcomes(ONE, 3)


def operation(position):
    return {"position": position, "kind": "run", "what": "gpio.set", "digest": "sha256:00"}


async def test_operations_that_began_are_on_record_until_they_have_an_outcome_or_had_no_effect(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await begin(job_store, 2)
        for position in ("1", "2.1.1", "2.0.1"):
            await job_store.begin(ONE, position, operation(position))
        await job_store.begin(TWO, "1", operation("1"))
        await job_store.record(ONE, 1, {**operation("1"), "outcome": {}}, [event(1)])
        assert await job_store.begun(ONE) == [operation("2.1.1"), operation("2.0.1")]
        await job_store.withdraw(ONE, "2.0.1")
    async with running(JobStore(place)) as job_store:
        assert await job_store.begun(ONE) == [operation("2.1.1")]
        assert await job_store.begun(TWO) == [operation("1")]
        assert await job_store.begun(session_id(3)) == []


async def test_an_operation_begins_once_and_only_in_a_session_that_has_not_ended(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.begin(ONE, "1", operation("1"))
        with pytest.raises(JobStoreError):
            await job_store.begin(ONE, "1", operation("1"))
        await job_store.end(ONE, "FAILED", [event(1)])
        with pytest.raises(JobStoreError):
            await job_store.begin(ONE, "2", operation("2"))
        assert await job_store.begun(ONE) == [operation("1")]


async def test_a_checkpoint_out_of_turn_changes_nothing(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        for number in (0, 2):
            with pytest.raises(JobStoreError, match=f"checkpoint {number} .* cannot follow number 0"):
                await job_store.record(ONE, number, {}, [event(1)])
        assert (await job_store.session(ONE)).checkpoints == 0
        assert await job_store.message_log(ONE) == [ACCEPTED]


async def test_an_outcome_that_is_no_json_is_the_askers_error_and_nothing_is_written(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        with pytest.raises(TypeError):
            await job_store.record(ONE, 1, {"result": object()}, [event(1)])
        assert await job_store.message_log(ONE) == [ACCEPTED]


async def test_a_session_that_goes_on_from_a_checkpoint_has_the_outcomes_up_to_it_as_its_own(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store, 1)
        for number in (1, 2, 3):
            await job_store.record(ONE, number, {"n": number}, [event(number)])
        await job_store.end(ONE, "FAILED", [event(4)])
        await job_store.claim(ANN, "again", "digest")
        earlier = await job_store.outcomes(ONE, 2)
        resumed = row(2, message_id="again", resumed_from=f"ckpt-{ONE}-000002")
        await job_store.answer(ANN, "again", ACCEPTED, resumed, earlier)
        assert (await job_store.session(TWO)).checkpoints == 2
        await job_store.record(TWO, 3, {"n": "anew"}, [event(1, 2)])
        assert await job_store.outcomes(TWO, 3) == [{"n": 1}, {"n": 2}, {"n": "anew"}]
        assert await job_store.outcomes(ONE, 3) == [{"n": 1}, {"n": 2}, {"n": 3}], "the first one's stay as they were"


async def test_a_session_that_has_ended_or_is_not_known_takes_no_more(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.end(ONE, "COMPLETED", [event(1)])
        for wanted, error in ((ONE, "has ended"), (TWO, f"no session {TWO}")):
            with pytest.raises(JobStoreError, match=error):
                await job_store.append(wanted, [event(2)])
            with pytest.raises(JobStoreError, match=error):
                await job_store.record(wanted, 1, {}, [event(2)])
            with pytest.raises(JobStoreError, match=error):
                await job_store.end(wanted, "FAILED", [event(2)])
        assert await job_store.message_log(ONE) == [ACCEPTED, event(1)]


async def test_a_session_id_is_used_once_and_the_refusal_leaves_the_message_held(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.claim(ANN, "again", "digest")
        with pytest.raises(JobStoreError, match="has that already"):
            await job_store.answer(ANN, "again", ACCEPTED, row(message_id="again"))
        assert (await job_store.claim(ANN, "again", "digest")).kind == "pending"
        await job_store.answer(ANN, "again", REJECTED)
        assert await job_store.claim(ANN, "again", "digest") == Claim("answered", REJECTED)


async def test_what_no_database_can_hold_is_refused_by_itself(place):
    async with running(JobStore(place)) as job_store:
        await begin(job_store)
        await job_store.claim(ANN, "m", "digest")
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await job_store.answer(ANN, "m", ACCEPTED, row(2, message_id="m", intent="half a character: \ud800"))
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await job_store.claim(ANN, "\ud800", "digest")
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await job_store.outcomes(ONE, 2**64)
        await job_store.answer(ANN, "m", REJECTED)
        assert await job_store.session(TWO) is None


async def test_sessions_are_listed_newest_first_and_only_ones_own(place):
    async with running(JobStore(place)) as job_store:
        for number in (1, 3, 2):
            await begin(job_store, number)
        await begin(job_store, 4, BEN)
        assert [found.session_id for found in await job_store.sessions(ANN, 2)] == [session_id(2), session_id(3)]
        assert [found.session_id for found in await job_store.sessions(BEN, 9)] == [session_id(4)]


async def test_what_had_not_ended_is_known_when_the_job_store_is_opened_again(place):
    async with running(JobStore(place)) as job_store:
        assert job_store.unfinished == ()
        await begin(job_store, 2)
        await begin(job_store, 1)
        await begin(job_store, 3)
        await job_store.record(TWO, 1, {"n": 1}, [event(1, 2), event(2, 2)], phase="sampling")
        await job_store.end(session_id(3), "COMPLETED", [event(1, 3)])
    later = JobStore(place)
    async with running(later) as job_store:
        assert [found.session_id for found in job_store.unfinished] == [TWO, ONE]
        first = job_store.unfinished[0]
        assert (first.checkpoints, first.phase, first.started_at, first.lines, first.sequence) == (
            1, "sampling", 1000.0, 3, 2,
        )  # fmt: skip
        await job_store.end(TWO, "FAILED", [line("task_failed", 2), event(3, 2)])
        assert (await job_store.session(TWO)).state == "FAILED"


async def test_the_key_is_as_old_as_the_job_store(place, tmp_path):
    async with running(JobStore(place)) as job_store:
        key = job_store.key
        await begin(job_store)
    async with running(JobStore(place)) as job_store:
        assert job_store.key == key
        assert len(key) == 32
    async with running(JobStore(tmp_path / "another")) as job_store:
        assert job_store.key != key


# --- bounds


async def test_a_message_log_that_is_full_takes_its_end_and_nothing_else(place):
    limits = Limits(log_bytes=1000)
    async with running(JobStore(place, limits=limits)) as job_store:
        await begin(job_store)
        with pytest.raises(MessageLogFull, match="1000 bytes"):
            await job_store.append(ONE, [event(1, text="x" * 1000)])
        await job_store.append(ONE, [event(1)])
        with pytest.raises(MessageLogFull):
            await job_store.record(ONE, 1, {"n": 1}, [event(2, text="x" * 1000)])
        assert (await job_store.session(ONE)).checkpoints == 0, "no checkpoint without the event that tells of it"
        await job_store.end(ONE, "FAILED", [line("task_failed", text="x" * 2000), event(2)])
        assert len(await job_store.message_log(ONE)) == 4


async def test_outcomes_that_are_too_many_are_no_checkpoints(place):
    async with running(JobStore(place, limits=Limits(outcome_bytes=100))) as job_store:
        await begin(job_store)
        await job_store.record(ONE, 1, {"n": "x" * 80}, [event(1)])
        with pytest.raises(MessageLogFull, match="outcomes"):
            await job_store.record(ONE, 2, {"n": "x" * 80}, [event(2)])
        assert await job_store.outcomes(ONE, 1) == [{"n": "x" * 80}]
        await job_store.append(ONE, [event(2)])


async def ended(job_store, *numbers, principal=ANN, size=0):
    for number in numbers:
        await begin(job_store, number, principal)
        await job_store.end(session_id(number), "COMPLETED", [event(1, number, text="x" * size)])


async def test_what_ended_long_enough_ago_is_forgotten_with_everything_that_hangs_on_it(place):
    async with running(clocked(place, 1000.0)) as job_store:
        await ended(job_store, 1)
        await begin(job_store, 2)
        await job_store.record(TWO, 1, {"n": 1}, [event(1, 2)])
        await job_store.claim(ANN, "refused", "digest")
        await job_store.answer(ANN, "refused", REJECTED)
    async with running(clocked(place, 1000.0)) as job_store:
        assert await job_store.expire(1099.0, 100.0) == []
        assert await job_store.expire(1101.0, 100.0) == [ONE]
        assert await job_store.session(ONE) is None
        assert await job_store.message_log(ONE) == []
        assert (await job_store.claim(ANN, "message-1", "digest")).kind == "new"
        assert (await job_store.claim(ANN, "refused", "digest")).kind == "new"
        assert (await job_store.claim(ANN, "message-2", "digest")).session_id == TWO, "what runs is kept, however old"
        assert await job_store.outcomes(TWO, 1) == [{"n": 1}]
    for table, left in (("sessions", 1), ("lines", 2), ("outcomes", 1), ("answers", 1)):
        assert look(place, f"SELECT count(*) FROM {table}") == [(left,)], table


async def test_a_clock_that_is_set_makes_nothing_old_that_has_just_ended(place):
    async with running(clocked(place, 1000.0)) as job_store:
        await ended(job_store, 1)
        assert await job_store.expire(1e9, 100.0) == []
        assert await job_store.expire(1e9, 0.0) == [ONE]


async def test_of_too_many_sessions_of_a_principal_the_oldest_are_forgotten_but_not_that_they_were_answered(place):
    async with running(clocked(place, limits=Limits(sessions=2))) as job_store:
        await ended(job_store, 1, 2, 3)
        await ended(job_store, 4, principal=BEN)
        assert await job_store.expire(1000.0, 100.0) == [ONE]
        assert await job_store.claim(ANN, "message-1", "digest") == Claim("answered", ACCEPTED, ONE)
        assert await job_store.session(ONE) is None


async def test_where_all_message_logs_are_too_long_the_principal_with_most_gives_way_first(place):
    async with running(clocked(place, limits=Limits(all_bytes=11_000))) as job_store:
        await ended(job_store, 1, principal=BEN, size=1000)
        await ended(job_store, 2, 3, 4, size=4000)
        await begin(job_store, 5)
        await job_store.append(session_id(5), [event(1, 5, text="x" * 1000)])
        assert await job_store.expire(1000.0, 100.0) == [session_id(2)]
        assert await job_store.expire(1000.0, 100.0) == []


async def refuse(job_store, *numbers, principal=ANN):
    for number in numbers:
        await job_store.claim(principal, f"refused-{number}", "digest")
        await job_store.answer(principal, f"refused-{number}", REJECTED)


async def known(job_store, name, numbers):
    """The numbers of those messages that have an answer."""
    claims = {number: await job_store.claim(ANN, f"{name}-{number}", "digest") for number in numbers}
    return [number for number, claim in claims.items() if claim.kind == "answered"]


async def test_of_too_many_answers_the_oldest_are_forgotten_and_rejections_crowd_out_no_acceptance(place):
    async with running(clocked(place, limits=Limits(sessions=1, refusals=2, answers=1))) as job_store:
        await ended(job_store, 1, 2, 3, 4)
        await refuse(job_store, *range(5))
        await refuse(job_store, 0, principal=BEN)
        assert sorted(await job_store.expire(1000.0, 100.0)) == [session_id(number) for number in (1, 2, 3)]
        assert await known(job_store, "message", range(1, 5)) == [3, 4]
        assert await known(job_store, "refused", range(5)) == [3, 4]
        assert (await job_store.claim(BEN, "refused-0", "digest")).kind == "answered"


@pytest.mark.slow
async def test_a_flood_of_rejections_is_bounded_before_anything_expires(place):
    async with running(JobStore(place, limits=Limits(refusals=10))) as job_store:
        await refuse(job_store, *range(256))
    assert look(place, "SELECT count(*) FROM answers") == [(10,)]


@pytest.mark.slow
async def test_rejections_of_many_principals_are_bounded_together_and_the_principal_with_most_gives_way_first(place):
    async with running(JobStore(place, limits=Limits(refusals=40, all_refusals=50))) as job_store:
        await refuse(job_store, 0, principal=BEN)
        for number in range(255):
            await refuse(job_store, number, principal=f"uid:{number % 2}")
    assert look(place, "SELECT count(*) FROM answers") == [(50,)]
    assert look(place, f"SELECT count(*) FROM answers WHERE principal = {BEN!r}") == [(1,)]
    async with running(JobStore(place, limits=Limits(refusals=40, all_refusals=50))) as job_store:
        for number in range(256):
            await refuse(job_store, 0, principal=f"another:{number}")
    assert look(place, "SELECT count(*) FROM answers") == [(50,)]


@pytest.mark.slow
async def test_a_flood_of_rejections_makes_no_accepted_message_new(place):
    async with running(JobStore(place, limits=Limits(refusals=2, all_refusals=3, answers=1))) as job_store:
        await ended(job_store, 1)
        await begin(job_store, 2)
        for number in range(256):
            await refuse(job_store, number, principal=(ANN, BEN)[number % 2])
        assert await known(job_store, "message", (1, 2)) == [1, 2]
    assert look(place, "SELECT count(*) FROM answers WHERE session_id IS NULL") == [(3,)]


async def test_what_is_forgotten_makes_the_file_shorter_and_is_not_left_in_it(place):
    async with running(clocked(place)) as job_store:
        await begin(job_store)
        for number in range(20):
            await job_store.append(ONE, [event(number + 1, text="confidential " * 8000)])
        await job_store.end(ONE, "COMPLETED", [event(99)])
    async with running(clocked(place)) as job_store:
        assert await job_store.expire(9999.0, 1.0) == [ONE]
    assert (place / "jobs.sqlite3").stat().st_size < 200_000
    assert b"confidential" not in (place / "jobs.sqlite3").read_bytes()
