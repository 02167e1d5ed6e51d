"""The book: what has been answered is answered so for good, and nothing it was told is half there."""

from __future__ import annotations

import pytest
import trio
from support.hcp_book import ACCEPTED, ANN, BEN, begin, event, line, look, row, running, session_id

from hearth.actors.bridges.hcp.store import Claim, JobStore, JobStoreError, Limits, MessageLogFull

REJECTED = line("task_rejected", reason_code="forbidden")
ONE, TWO = session_id(1), session_id(2)


@pytest.fixture
def place(tmp_path):
    return tmp_path / "audit.log.hcp"


def clocked(place, now=1000.0, **settings):
    """A book whose clock stands."""
    return JobStore(place, clock=lambda: now, **settings)


# --- messages


async def test_a_message_is_new_once_pending_until_it_is_answered_and_answered_from_then_on(place):
    async with running(JobStore(place)) as book:
        assert await book.claim(ANN, "m", "digest") == Claim("new")
        assert await book.claim(ANN, "m", "digest") == Claim("pending")
        await book.answer(ANN, "m", REJECTED)
        assert await book.claim(ANN, "m", "digest") == Claim("answered", REJECTED)


async def test_an_accepted_message_is_answered_with_the_session_it_began(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        assert await book.claim(ANN, "message-1", "digest") == Claim("answered", ACCEPTED, ONE)


async def test_of_two_that_ask_for_a_message_at_once_one_gets_it(place):
    claims = []
    async with running(JobStore(place)) as book:

        async def ask():
            claims.append((await book.claim(ANN, "m", "digest")).kind)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
    assert sorted(claims) == ["new", *["pending"] * 7]


async def test_of_two_that_ask_at_once_for_one_that_was_answered_both_get_the_answer(place):
    claims = []
    async with running(JobStore(place)) as book:
        await book.claim(ANN, "m", "digest")
        await book.answer(ANN, "m", REJECTED)

        async def ask():
            claims.append((await book.claim(ANN, "m", "digest")).kind)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(ask)
    assert claims == ["answered"] * 8


async def test_another_message_of_the_same_id_is_a_conflict_before_and_after_the_answer(place):
    async with running(JobStore(place)) as book:
        await book.claim(ANN, "m", "digest")
        assert await book.claim(ANN, "m", "another") == Claim("conflict")
        await book.answer(ANN, "m", REJECTED)
        assert await book.claim(ANN, "m", "another") == Claim("conflict")
        assert await book.claim(ANN, "m", "another") == Claim("conflict"), "a conflict holds nothing"


async def test_principals_have_their_message_ids_to_themselves(place):
    async with running(JobStore(place)) as book:
        assert (await book.claim(ANN, "m", "digest")).kind == "new"
        assert (await book.claim(BEN, "m", "another")).kind == "new"


async def test_a_message_that_is_released_is_new_again(place):
    async with running(JobStore(place)) as book:
        await book.claim(ANN, "m", "digest")
        await book.release(ANN, "m")
        await book.release(ANN, "m")
        assert await book.claim(ANN, "m", "another") == Claim("new")


async def test_a_restart_between_claim_and_answer_forgets_the_claim_and_one_after_it_the_answer_stays(place):
    async with running(JobStore(place)) as book:
        await book.claim(ANN, "undecided", "digest")
        await book.claim(ANN, "decided", "digest")
        await book.answer(ANN, "decided", REJECTED)
    async with running(JobStore(place)) as book:
        assert await book.claim(ANN, "undecided", "digest") == Claim("new")
        assert await book.claim(ANN, "decided", "digest") == Claim("answered", REJECTED)
        assert await book.claim(ANN, "decided", "another") == Claim("conflict")


async def test_nobody_answers_a_message_that_nobody_holds(place):
    async with running(JobStore(place)) as book:
        with pytest.raises(KeyError):
            await book.answer(ANN, "m", REJECTED)


async def test_an_asker_that_is_cancelled_leaves_no_claim_behind(place):
    async with running(JobStore(place)) as book:
        with trio.CancelScope() as scope:
            scope.cancel()
            await book.claim(ANN, "m", "digest")
        assert scope.cancelled_caught
        assert (await book.claim(ANN, "m", "digest")).kind == "new"


# --- sessions


async def test_a_session_is_what_it_was_begun_with_and_what_became_of_it(place):
    async with running(clocked(place)) as book:
        begun = await begin(book, resumed_from=f"ckpt-{TWO}-000003", intent="look — küche")
        found = await book.session(ONE)
        assert found == row(resumed_from=begun.resumed_from, intent="look — küche", updated_at=1000.0, lines=1)
        await book.append(ONE, [event(1), event(2)], phase="sampling")
        await book.append(ONE, [event(3)], state="ABORTING")
        found = await book.session(ONE)
        assert (found.phase, found.state, found.lines, found.sequence) == ("sampling", "ABORTING", 4, 3)
        await book.end(ONE, "ABORTED", [line("task_failed"), event(4)])
        found = await book.session(ONE)
        assert (found.state, found.ended_at, found.lines, found.sequence) == ("ABORTED", 1000.0, 6, 4)
        assert await book.session(TWO) is None


async def test_what_a_new_row_says_of_its_future_counts_for_nothing(place):
    async with running(clocked(place)) as book:
        begun = row(state="COMPLETED", ended_at=5.0, phase="x", checkpoints=7, lines=9, sequence=9)
        await book.claim(ANN, begun.message_id, "digest")
        await book.answer(ANN, begun.message_id, ACCEPTED, begun)
        assert await book.session(ONE) == row(updated_at=1000.0, lines=1)


async def test_a_story_is_read_as_it_was_written_after_a_restart_too(place):
    told = [ACCEPTED, event(1), event(2), line("task_completed", outputs={"name": "Zürich\n"}), event(3)]
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.append(ONE, told[1:3])
        await book.end(ONE, "COMPLETED", told[3:])
        assert await book.story(ONE) == told
    async with running(JobStore(place)) as book:
        assert await book.story(ONE) == told
        assert await book.story(TWO) == []


async def test_a_checkpoint_and_the_event_that_tells_of_it_are_there_together(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.record(ONE, 1, {"ok": True, "result": {"value": 1.5}}, [event(1)], phase="sampling")
        await book.record(ONE, 2, {"ok": False, "error": "no"}, [event(2), event(3)], state="PAUSED")
        found = await book.session(ONE)
        assert (found.checkpoints, found.sequence, found.phase, found.state) == (2, 3, "sampling", "PAUSED")
        outcomes = [{"ok": True, "result": {"value": 1.5}}, {"ok": False, "error": "no"}]
        assert await book.outcomes(ONE, 2) == outcomes
        assert await book.outcomes(ONE, 1) == outcomes[:1]
        assert await book.outcomes(ONE, 0) == []
        with pytest.raises(JobStoreError, match=f"no checkpoint 3 of session {ONE}"):
            await book.outcomes(ONE, 3)


def operation(position):
    return {"position": position, "kind": "run", "what": "gpio.set", "digest": "sha256:00"}


async def test_operations_that_began_are_on_record_until_they_have_an_outcome_or_had_no_effect(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await begin(book, 2)
        for position in ("1", "2.1.1", "2.0.1"):
            await book.begin(ONE, position, operation(position))
        await book.begin(TWO, "1", operation("1"))
        await book.record(ONE, 1, {**operation("1"), "outcome": {}}, [event(1)])
        assert await book.begun(ONE) == [operation("2.1.1"), operation("2.0.1")]
        await book.withdraw(ONE, "2.0.1")
    async with running(JobStore(place)) as book:
        assert await book.begun(ONE) == [operation("2.1.1")]
        assert await book.begun(TWO) == [operation("1")]
        assert await book.begun(session_id(3)) == []


async def test_an_operation_begins_once_and_only_in_a_session_that_has_not_ended(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.begin(ONE, "1", operation("1"))
        with pytest.raises(JobStoreError):
            await book.begin(ONE, "1", operation("1"))
        await book.end(ONE, "FAILED", [event(1)])
        with pytest.raises(JobStoreError):
            await book.begin(ONE, "2", operation("2"))
        assert await book.begun(ONE) == [operation("1")]


async def test_a_checkpoint_out_of_turn_changes_nothing(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        for number in (0, 2):
            with pytest.raises(JobStoreError, match=f"checkpoint {number} .* cannot follow number 0"):
                await book.record(ONE, number, {}, [event(1)])
        assert (await book.session(ONE)).checkpoints == 0
        assert await book.story(ONE) == [ACCEPTED]


async def test_an_outcome_that_is_no_json_is_the_askers_error_and_nothing_is_written(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        with pytest.raises(TypeError):
            await book.record(ONE, 1, {"result": object()}, [event(1)])
        assert await book.story(ONE) == [ACCEPTED]


async def test_a_session_that_goes_on_from_a_checkpoint_has_the_outcomes_up_to_it_as_its_own(place):
    async with running(JobStore(place)) as book:
        await begin(book, 1)
        for number in (1, 2, 3):
            await book.record(ONE, number, {"n": number}, [event(number)])
        await book.end(ONE, "FAILED", [event(4)])
        await book.claim(ANN, "again", "digest")
        earlier = await book.outcomes(ONE, 2)
        anew = row(2, message_id="again", resumed_from=f"ckpt-{ONE}-000002")
        await book.answer(ANN, "again", ACCEPTED, anew, earlier)
        assert (await book.session(TWO)).checkpoints == 2
        await book.record(TWO, 3, {"n": "anew"}, [event(1, 2)])
        assert await book.outcomes(TWO, 3) == [{"n": 1}, {"n": 2}, {"n": "anew"}]
        assert await book.outcomes(ONE, 3) == [{"n": 1}, {"n": 2}, {"n": 3}], "the first one's stay as they were"


async def test_a_session_that_has_ended_or_is_not_known_takes_no_more(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.end(ONE, "COMPLETED", [event(1)])
        for wanted, error in ((ONE, "has ended"), (TWO, f"no session {TWO}")):
            with pytest.raises(JobStoreError, match=error):
                await book.append(wanted, [event(2)])
            with pytest.raises(JobStoreError, match=error):
                await book.record(wanted, 1, {}, [event(2)])
            with pytest.raises(JobStoreError, match=error):
                await book.end(wanted, "FAILED", [event(2)])
        assert await book.story(ONE) == [ACCEPTED, event(1)]


async def test_a_session_id_is_used_once_and_the_refusal_leaves_the_message_held(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.claim(ANN, "again", "digest")
        with pytest.raises(JobStoreError, match="has that already"):
            await book.answer(ANN, "again", ACCEPTED, row(message_id="again"))
        assert (await book.claim(ANN, "again", "digest")).kind == "pending"
        await book.answer(ANN, "again", REJECTED)
        assert await book.claim(ANN, "again", "digest") == Claim("answered", REJECTED)


async def test_what_no_database_can_hold_is_refused_by_itself(place):
    async with running(JobStore(place)) as book:
        await begin(book)
        await book.claim(ANN, "m", "digest")
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await book.answer(ANN, "m", ACCEPTED, row(2, message_id="m", intent="half a character: \ud800"))
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await book.claim(ANN, "\ud800", "digest")
        with pytest.raises(JobStoreError, match="cannot hold that"):
            await book.outcomes(ONE, 2**64)
        await book.answer(ANN, "m", REJECTED)
        assert await book.session(TWO) is None


async def test_sessions_are_listed_newest_first_and_only_ones_own(place):
    async with running(JobStore(place)) as book:
        for number in (1, 3, 2):
            await begin(book, number)
        await begin(book, 4, BEN)
        assert [found.session_id for found in await book.sessions(ANN, 2)] == [session_id(2), session_id(3)]
        assert [found.session_id for found in await book.sessions(BEN, 9)] == [session_id(4)]


async def test_what_had_not_ended_is_known_when_the_book_is_opened_again(place):
    async with running(JobStore(place)) as book:
        assert book.unfinished == ()
        await begin(book, 2)
        await begin(book, 1)
        await begin(book, 3)
        await book.record(TWO, 1, {"n": 1}, [event(1, 2), event(2, 2)], phase="sampling")
        await book.end(session_id(3), "COMPLETED", [event(1, 3)])
    later = JobStore(place)
    async with running(later) as book:
        assert [found.session_id for found in book.unfinished] == [TWO, ONE]
        first = book.unfinished[0]
        assert (first.checkpoints, first.phase, first.started_at, first.lines, first.sequence) == (
            1, "sampling", 1000.0, 3, 2,
        )  # fmt: skip
        await book.end(TWO, "FAILED", [line("task_failed", 2), event(3, 2)])
        assert (await book.session(TWO)).state == "FAILED"


async def test_the_key_is_as_old_as_the_book(place, tmp_path):
    async with running(JobStore(place)) as book:
        key = book.key
        await begin(book)
    async with running(JobStore(place)) as book:
        assert book.key == key
        assert len(key) == 32
    async with running(JobStore(tmp_path / "another")) as book:
        assert book.key != key


# --- bounds


async def test_a_story_that_is_full_takes_its_end_and_nothing_else(place):
    limits = Limits(story_bytes=1000)
    async with running(JobStore(place, limits=limits)) as book:
        await begin(book)
        with pytest.raises(MessageLogFull, match="1000 bytes"):
            await book.append(ONE, [event(1, text="x" * 1000)])
        await book.append(ONE, [event(1)])
        with pytest.raises(MessageLogFull):
            await book.record(ONE, 1, {"n": 1}, [event(2, text="x" * 1000)])
        assert (await book.session(ONE)).checkpoints == 0, "no checkpoint without the event that tells of it"
        await book.end(ONE, "FAILED", [line("task_failed", text="x" * 2000), event(2)])
        assert len(await book.story(ONE)) == 4


async def test_outcomes_that_are_too_many_are_no_checkpoints(place):
    async with running(JobStore(place, limits=Limits(outcome_bytes=100))) as book:
        await begin(book)
        await book.record(ONE, 1, {"n": "x" * 80}, [event(1)])
        with pytest.raises(MessageLogFull, match="outcomes"):
            await book.record(ONE, 2, {"n": "x" * 80}, [event(2)])
        assert await book.outcomes(ONE, 1) == [{"n": "x" * 80}]
        await book.append(ONE, [event(2)])


async def ended(book, *numbers, principal=ANN, size=0):
    for number in numbers:
        await begin(book, number, principal)
        await book.end(session_id(number), "COMPLETED", [event(1, number, text="x" * size)])


async def test_what_ended_long_enough_ago_is_forgotten_with_everything_that_hangs_on_it(place):
    async with running(clocked(place, 1000.0)) as book:
        await ended(book, 1)
        await begin(book, 2)
        await book.record(TWO, 1, {"n": 1}, [event(1, 2)])
        await book.claim(ANN, "refused", "digest")
        await book.answer(ANN, "refused", REJECTED)
    async with running(clocked(place, 1000.0)) as book:
        assert await book.expire(1099.0, 100.0) == []
        assert await book.expire(1101.0, 100.0) == [ONE]
        assert await book.session(ONE) is None
        assert await book.story(ONE) == []
        assert (await book.claim(ANN, "message-1", "digest")).kind == "new"
        assert (await book.claim(ANN, "refused", "digest")).kind == "new"
        assert (await book.claim(ANN, "message-2", "digest")).session_id == TWO, "what runs is kept, however old"
        assert await book.outcomes(TWO, 1) == [{"n": 1}]
    for table, left in (("sessions", 1), ("lines", 2), ("outcomes", 1), ("answers", 1)):
        assert look(place, f"SELECT count(*) FROM {table}") == [(left,)], table


async def test_a_clock_that_is_set_makes_nothing_old_that_has_just_ended(place):
    async with running(clocked(place, 1000.0)) as book:
        await ended(book, 1)
        assert await book.expire(1e9, 100.0) == []
        assert await book.expire(1e9, 0.0) == [ONE]


async def test_of_too_many_sessions_of_a_principal_the_oldest_are_forgotten_but_not_that_they_were_answered(place):
    async with running(clocked(place, limits=Limits(sessions=2))) as book:
        await ended(book, 1, 2, 3)
        await ended(book, 4, principal=BEN)
        assert await book.expire(1000.0, 100.0) == [ONE]
        assert await book.claim(ANN, "message-1", "digest") == Claim("answered", ACCEPTED, ONE)
        assert await book.session(ONE) is None


async def test_where_all_stories_are_too_long_whoever_has_most_gives_way_first(place):
    async with running(clocked(place, limits=Limits(all_bytes=11_000))) as book:
        await ended(book, 1, principal=BEN, size=1000)
        await ended(book, 2, 3, 4, size=4000)
        await begin(book, 5)
        await book.append(session_id(5), [event(1, 5, text="x" * 1000)])
        assert await book.expire(1000.0, 100.0) == [session_id(2)]
        assert await book.expire(1000.0, 100.0) == []


async def refuse(book, *numbers, principal=ANN):
    for number in numbers:
        await book.claim(principal, f"refused-{number}", "digest")
        await book.answer(principal, f"refused-{number}", REJECTED)


async def known(book, name, numbers):
    """The numbers of those messages that have an answer."""
    claims = {number: await book.claim(ANN, f"{name}-{number}", "digest") for number in numbers}
    return [number for number, claim in claims.items() if claim.kind == "answered"]


async def test_of_too_many_answers_the_oldest_are_forgotten_and_rejections_crowd_out_no_acceptance(place):
    async with running(clocked(place, limits=Limits(sessions=1, refusals=2, answers=1))) as book:
        await ended(book, 1, 2, 3, 4)
        await refuse(book, *range(5))
        await refuse(book, 0, principal=BEN)
        assert sorted(await book.expire(1000.0, 100.0)) == [session_id(number) for number in (1, 2, 3)]
        assert await known(book, "message", range(1, 5)) == [3, 4]
        assert await known(book, "refused", range(5)) == [3, 4]
        assert (await book.claim(BEN, "refused-0", "digest")).kind == "answered"


@pytest.mark.slow
async def test_a_flood_of_rejections_is_bounded_before_anything_expires(place):
    async with running(JobStore(place, limits=Limits(refusals=10))) as book:
        await refuse(book, *range(256))
    assert look(place, "SELECT count(*) FROM answers") == [(10,)]


@pytest.mark.slow
async def test_rejections_of_many_principals_are_bounded_together_and_whoever_has_most_gives_way_first(place):
    async with running(JobStore(place, limits=Limits(refusals=40, all_refusals=50))) as book:
        await refuse(book, 0, principal=BEN)
        for number in range(255):
            await refuse(book, number, principal=f"uid:{number % 2}")
    assert look(place, "SELECT count(*) FROM answers") == [(50,)]
    assert look(place, f"SELECT count(*) FROM answers WHERE principal = {BEN!r}") == [(1,)]
    async with running(JobStore(place, limits=Limits(refusals=40, all_refusals=50))) as book:
        for number in range(256):
            await refuse(book, 0, principal=f"another:{number}")
    assert look(place, "SELECT count(*) FROM answers") == [(50,)]


async def test_a_flood_of_rejections_makes_no_accepted_message_new(place):
    async with running(JobStore(place, limits=Limits(refusals=2, all_refusals=3, answers=1))) as book:
        await ended(book, 1)
        await begin(book, 2)
        for number in range(256):
            await refuse(book, number, principal=(ANN, BEN)[number % 2])
        assert await known(book, "message", (1, 2)) == [1, 2]
    assert look(place, "SELECT count(*) FROM answers WHERE session_id IS NULL") == [(3,)]


async def test_what_is_forgotten_makes_the_file_shorter_and_is_not_left_in_it(place):
    async with running(clocked(place)) as book:
        await begin(book)
        for number in range(20):
            await book.append(ONE, [event(number + 1, text="confidential " * 8000)])
        await book.end(ONE, "COMPLETED", [event(99)])
    async with running(clocked(place)) as book:
        assert await book.expire(9999.0, 1.0) == [ONE]
    assert (place / "book.sqlite3").stat().st_size < 200_000
    assert b"confidential" not in (place / "book.sqlite3").read_bytes()
