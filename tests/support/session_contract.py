"""What a user of `hearth.api.Session` may rely on, whatever carries the requests.

Subclass `SessionContract` in a test module and give it a fixture `face`: an object with `open_session(**members)`, an
async context manager as `EmbeddedRuntime` and `Client` have it, and `world`, the running `support.world.World` behind.
"""

from __future__ import annotations

import gc
import re
from contextlib import aclosing

import pytest
import trio
from support.waiting import passes

from hearth.api import step
from hearth.client import observing
from hearth.errors import (
    ApprovalRequired,
    DeviceError,
    Halted,
    InvalidParams,
    PermissionDenied,
    PlanStale,
    ResourceBusy,
    SessionInvalid,
    TaskFailed,
    TaskNotFound,
    TimedOut,
    ToolNotFound,
)
from hearth.policy.rules import ApprovalRule, Match, PolicyEntry

PATIENCE = 60
GOVERNED = PolicyEntry(
    name="governed", match=Match(any=True), max_risk=3, rights=["approve"], approval=[ApprovalRule(from_risk=3)]
)


def shape(events):
    """What a sequence of events is, without times and results."""
    return [(event.phase, event.step_index) for event in events]


async def finished(task):
    """Wait for the end; whatever the way the result came, it is what task.get says."""
    with trio.fail_after(PATIENCE):
        done = await task.wait()
        assert await task.get() == done
        return done


async def at_gate(face, name):
    with trio.fail_after(PATIENCE):
        await face.world.gate(name).reached()


async def event(task, phase, step_index):
    """Wait for an event of a task."""
    with trio.fail_after(PATIENCE):
        async with aclosing(task.events()) as events:
            async for one in events:
                if (one.phase, one.step_index) == (phase, step_index):
                    return one
    raise AssertionError(f"the task ended without {phase} of step {step_index}")


class SessionContract:
    """The tests. Nothing in them looks at the carrier."""

    streams = True
    """False over a server that sends no events: they are made from task.get, and there is no progress."""

    # --- opening ------------------------------------------------------------------------------------------------

    async def test_a_session_has_a_fresh_identifier_and_capability_flags(self, face):
        async with face.open_session(client_name="arm", client_version="1.2.3") as one, face.open_session() as other:
            assert one.session_id != other.session_id
            assert re.fullmatch(r"[0-9a-zA-Z_-]{1,64}", one.session_id)
            assert {"CAP_GPIO_RW", "CAP_ROLLBACK", "CAP_LEASE"} <= set(one.capabilities)
            assert ("CAP_STREAMING_TASK_EVENTS" in one.capabilities) is self.streams

    async def test_what_is_misspelt_is_refused_with_the_nearest_and_nothing_runs(self, face):
        async with face.open_session() as session:
            with pytest.raises(TypeError, match=r"no constraint 'dryrun'; did you mean dry_run\?"):
                await session.submit("x", [step("bench.set", line=1, value=1)], dryrun=True)
            with pytest.raises(InvalidParams) as refused:
                await session.submit("x", [{"tool": "bench.set", "arg": {}}])
            assert refused.value.data["path"] == "/task/steps/0/arg"
            assert refused.value.data["reason"] == "unknown key; did you mean args?"
            if self.streams:
                # A server of the core alone takes any args that fit: it has no `strict`.
                with pytest.raises(InvalidParams, match=r"step 0 .bench.set.: /valu: .* did you mean value"):
                    await session.run("bench.set", line=1, valu=1)
                with pytest.raises(InvalidParams, match=r"/task-id: .* did you mean task_id"):
                    await session.call("task.events.subscribe", **{"task-id": "x"})
                assert (await session.call("tool.list", strict=False, x=1))["ignored"] == ["/x"]
            assert 1 not in face.world.driver.levels

    async def test_a_session_lists_its_tools_with_what_the_draft_asks_for(self, face):
        async with face.open_session() as session:
            tools = {tool["name"]: tool for tool in await session.tools()}
        assert tools["bench.set"]["risk_level"] == 2
        assert tools["bench.set"]["supports_rollback"] is True
        assert tools["bench.set"]["params_schema"]["required"] == ["line", "value"]
        assert {"name", "version", "timeout_ms", "description"} <= tools["bench.read"].keys()

    # --- plans --------------------------------------------------------------------------------------------------

    async def test_a_plan_shows_what_it_changes_and_runs_once_exactly_as_it_was_shown(self, face):
        if not self.streams:
            pytest.skip("a server of the core alone knows no plans")
        async with face.open_session() as session:
            await session.run("bench.set", line=1, value=0)
            steps = [step("bench.set", line=1, value=1), step("bench.set", line=1, value=0), step("bench.read")]
            plan = await session.prepare("blink", steps, rollback_on_failure=True)
            assert face.world.driver.levels == {1: 0}
            assert (plan.intent, plan.state, plan.needs, plan.effective_risk, plan.own) == (
                "blink",
                "ready",
                None,
                2,
                True,
            )
            assert [(one.tool, one.before, one.after) for one in plan.steps] == [
                ("bench.set", {"value": 0}, {"value": 1}),
                ("bench.set", {"value": 1}, {"value": 0}),
                ("bench.read", None, None),
            ]
            assert plan.constraints["rollback_on_failure"] is True
            assert plan.hash.startswith("sha256:")
            (listed,) = await session.plans()
            assert (listed.plan_id, listed.hash, listed.intent, listed.step_count) == (
                plan.plan_id,
                plan.hash,
                "blink",
                3,
            )
            assert await session.plan(listed.plan_id) == plan
            done = await finished(await session.execute(plan))
            assert (done.status, done.intent) == ("SUCCESS", "blink")
            assert [one.tool for one in done.steps] == ["bench.set", "bench.set", "bench.read"]
            with pytest.raises(PlanStale, match="it has been executed") as used:
                await session.execute(plan)
            assert used.value.data["task_id"] == done.task_id

    async def test_a_plan_is_refused_as_stale_once_what_it_changes_has_changed(self, face):
        if not self.streams:
            pytest.skip("a server of the core alone knows no plans")
        async with face.open_session() as session:
            await session.run("bench.set", line=1, value=0)
            plan = await session.prepare("on", [step("bench.set", line=1, value=1)])
            await session.run("bench.set", line=1, value=1)
            with pytest.raises(PlanStale, match=r"step 0 .bench.set.: what it changes is not as it was") as changed:
                await session.execute(plan.plan_id)
            assert changed.value.data["before"] == {"value": 0}
            assert changed.value.data["now"] == {"value": 1}
            await session.run("bench.set", line=1, value=0)
            assert (await finished(await session.execute(plan.plan_id))).status == "SUCCESS"

    async def test_what_needs_approval_runs_only_as_a_plan_that_was_approved(self, face):
        if not self.streams:
            pytest.skip("a server of the core alone knows no plans")
        face.world.govern(GOVERNED)
        arm = step("bench.arm", line=1, value=1)
        async with face.open_session() as session:
            with pytest.raises(ApprovalRequired) as refused:
                await session.submit("arm", [step("bench.read"), arm])
            assert refused.value.data["needs"] == {"right": "approve", "persons": 1, "other": False}
            assert refused.value.data["step_index"] == 1
            plan = await session.prepare("arm", [arm])
            assert plan.state == "waiting"
            with pytest.raises(ApprovalRequired, match="waits for 1 of 1 approvals"):
                await session.execute(plan)
            assert await session.approve(plan, reason="I have looked") == 0
            assert [one.state for one in await session.plans()] == ["ready"]
            assert (await finished(await session.execute(plan))).status == "SUCCESS"
            rejected = await session.prepare("arm", [step("bench.arm", line=1, value=0)])
            await session.reject(rejected, reason="not now")
            with pytest.raises(PermissionDenied, match='has rejected the plan: "not now"'):
                await session.execute(rejected)
        assert face.world.driver.levels == {1: 0}, "safe at the end of the session"
        assert face.world.observer.labels("begin").count("set") == 1

    # --- running a task -----------------------------------------------------------------------------------------

    async def test_a_task_runs_its_steps_in_order_and_shows_their_results(self, face):
        async with face.open_session() as session:
            task = await session.submit(
                "three",
                [
                    step("bench.read", tag="first"),
                    {"tool": "bench.set", "args": {"line": 3, "value": 1, "tag": "second"}},
                    step("bench.read", tag="third", bus="b"),
                ],
            )
            done = await finished(task)
        assert (done.status, done.intent, done.task_id) == ("SUCCESS", "three", task.task_id)
        assert done.done
        assert done.raise_for_status() is done
        assert [step.tool for step in done.steps] == ["bench.read", "bench.set", "bench.read"]
        assert [step.status for step in done.steps] == ["SUCCESS"] * 3
        assert [step.result for step in done.steps] == [{"tag": "first"}, {"line": 3, "value": 1}, {"tag": "third"}]
        assert all(step.latency_ms >= 0 for step in done.steps)
        assert face.world.observer.labels("begin")[:3] == ["first", "second", "third"]

    async def test_run_returns_the_result_of_one_step(self, face):
        async with face.open_session() as session:
            with trio.fail_after(PATIENCE):
                assert await session.run("bench.read", tag="x") == {"tag": "x"}

    async def test_run_raises_the_class_of_the_error_that_the_step_failed_with(self, face):
        async with face.open_session() as session:
            with trio.fail_after(PATIENCE), pytest.raises(DeviceError, match="the device said no") as failed:
                await session.run("bench.fail", tag="x")
            assert failed.value.data["effect"] == "none"

    async def test_a_task_fails_fast_and_the_steps_behind_are_cancelled(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.fail"), step("bench.read", tag="never")])
            done = await finished(task)
        assert done.status == "FAILED"
        assert [step.status for step in done.steps] == ["SUCCESS", "FAILED", "CANCELLED"]
        assert done.steps[1].error == "the device said no"
        assert done.steps[1].error_code == -32009
        assert done.steps[1].error_data["effect"] == "none"
        assert "never" not in face.world.observer.labels("begin")
        with pytest.raises(TaskFailed, match=r"step 1 \(bench.fail\): the device said no"):
            done.raise_for_status()

    async def test_with_abort_on_step_failure_false_all_steps_run_and_the_task_has_failed(self, face):
        async with face.open_session() as session:
            steps = [step("bench.fail"), step("bench.read", tag="still"), step("bench.fail")]
            done = await finished(await session.submit("x", steps, abort_on_step_failure=False))
        assert done.status == "FAILED"
        assert [step.status for step in done.steps] == ["FAILED", "SUCCESS", "FAILED"]

    async def test_a_bug_in_a_tool_fails_its_task_and_nothing_else(self, face):
        async with face.open_session() as session:
            done = await finished(await session.submit("x", [step("bench.bug"), step("bench.read")]))
            assert done.status == "FAILED"
            assert [step.status for step in done.steps] == ["FAILED", "CANCELLED"]
            assert done.steps[0].error_code == -32603
            assert "KeyError" in done.steps[0].error
            assert "a bug in the tool" not in repr(done), "what the exception says is the operator's business"
            assert (await finished(await session.submit("y", [step("bench.read")]))).status == "SUCCESS"

    async def test_two_tasks_of_a_session_run_side_by_side(self, face):
        async with face.open_session() as session:
            held = await session.submit("held", [step("bench.read", gate="x")])
            await at_gate(face, "x")
            assert (await finished(await session.submit("free", [step("bench.read", bus="b")]))).status == "SUCCESS"
            assert (await held.get()).status == "RUNNING"
            face.world.gate("x").open()
            assert (await finished(held)).status == "SUCCESS"

    async def test_while_a_task_lives_only_the_steps_that_have_started_are_shown(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.read", gate="x"), step("bench.read")])
            await at_gate(face, "x")
            shown = await task.get()
            assert [step.status for step in shown.steps] == ["SUCCESS", "RUNNING"]
            assert not shown.done
            face.world.gate("x").open()
            assert len((await finished(task)).steps) == 3

    async def test_a_task_is_found_again_by_its_identifier(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read")])
            again = await session.task(task.task_id)
            assert (await finished(again)).task_id == task.task_id
            with pytest.raises(TaskNotFound):
                await session.task("01NOSUCHTASK")

    async def test_another_sessions_task_is_not_found(self, face):
        async with face.open_session() as one, face.open_session() as other:
            task = await one.submit("x", [step("bench.read")])
            with pytest.raises(TaskNotFound):
                await other.task(task.task_id)

    # --- refusals -----------------------------------------------------------------------------------------------

    async def test_a_submission_that_is_wrong_is_refused_whole(self, face):
        good = step("bench.set", line=1, value=1, tag="good")
        async with face.open_session() as session:
            with pytest.raises(ToolNotFound) as unknown:
                await session.submit("x", [good, step("bench.none")])
            assert unknown.value.data["step_index"] == 1
            with pytest.raises(InvalidParams) as wrong:
                await session.submit("x", [good, step("bench.set", line="one", value=1)])
            assert wrong.value.data["step_index"] == 1
            assert wrong.value.data["tool"] == "bench.set"
            assert wrong.value.data["path"] == "/line"
            with pytest.raises(PermissionDenied, match="max_risk_level=2 < tool=3"):
                await session.submit("x", [good, step("bench.danger")])
            with pytest.raises(InvalidParams):
                await session.submit("x", [])
        assert "good" not in face.world.observer.labels("begin")

    async def test_a_task_may_lower_its_risk_and_raise_it_as_far_as_the_policy_lets_it(self, face):
        async with face.open_session() as session:
            with pytest.raises(PermissionDenied, match="max_risk_level=0 < tool=2"):
                await session.submit("x", [step("bench.set", line=1, value=1)], max_risk_level=0)
            done = await finished(await session.submit("x", [step("bench.danger")], max_risk_level=3))
            assert done.status == "SUCCESS"

    async def test_args_that_are_not_json_are_refused(self, face):
        async with face.open_session() as session:
            for value in (object(), float, b"bytes"):
                with pytest.raises(InvalidParams):
                    await session.submit("x", [step("bench.read", tag=value)])

    async def test_what_the_caller_changes_after_submitting_changes_nothing(self, face):
        async with face.open_session() as session:
            args = {"tag": "as submitted", "gate": "x"}
            task = await session.submit("x", [{"tool": "bench.read", "args": args}] * 2)
            await at_gate(face, "x")
            args["tag"] = "changed"
            face.world.gate("x").open()
            done = await finished(task)
        assert [step.result for step in done.steps] == [{"tag": "as submitted"}] * 2

    # --- events -------------------------------------------------------------------------------------------------

    async def test_events_tell_each_start_and_finish_in_order_and_end_with_the_task(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read", tag="a"), step("bench.fail")])
            with trio.fail_after(PATIENCE):
                events = [event async for event in task.events()]
        assert shape(events) == [
            ("start", 0),
            ("finish", 0),
            ("start", 1),
            ("finish", 1),
            ("task_finish", None),
        ]
        assert [event.seq for event in events] == [1, 2, 3, 4, 5]
        assert {event.task_id for event in events} == {task.task_id}
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event.ts) for event in events)
        assert events[1].data["status"] == "SUCCESS"
        assert events[1].data["result"] == {"tag": "a"}
        assert events[3].data["error_code"] == -32009
        assert events[4].data["status"] == "FAILED"

    async def test_who_comes_late_sees_a_tasks_events_from_the_start(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read")])
            await finished(task)
            with trio.fail_after(PATIENCE):
                assert shape([event async for event in task.events()]) == [
                    ("start", 0),
                    ("finish", 0),
                    ("task_finish", None),
                ]

    @pytest.mark.parametrize("from_seq", [0, 1, 2, 5, 6, 100])
    async def test_who_has_seen_some_events_asks_for_the_rest(self, face, from_seq):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.read")])
            await finished(task)
            with trio.fail_after(PATIENCE):
                seen = [event.seq async for event in task.events(from_seq=from_seq)]
            assert seen == [seq for seq in (1, 2, 3, 4, 5) if seq >= from_seq]

    async def test_who_asks_for_events_that_never_come_waits_only_until_the_task_ends(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.wait", tag="never")])
            seen = []

            async def follow():
                seen.extend([event.seq async for event in task.events(from_seq=100)])

            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow)
                    await task.cancel()
            assert seen == []

    async def test_events_that_were_asked_for_with_the_submission_are_whole_and_so_are_any_other_readers(self, face):
        whole = [1, 2, 3, 4, 5]
        async with face.open_session() as session:
            steps = [step("bench.read"), step("bench.read", gate="x")]
            task = await session.submit("x", steps, follow=True)
            await at_gate(face, "x")
            later = task.events(from_seq=2)
            first, second = task.events(), task.events()
            face.world.gate("x").open()
            with trio.fail_after(PATIENCE):
                assert [event.seq async for event in first] == whole
                assert [event.seq async for event in second] == whole
                assert [event.seq async for event in later] == whole[1:]
                assert [event.seq async for event in task.events()] == whole
            assert (await finished(await session.submit("x", steps[:1], follow=True))).status == "SUCCESS"

    async def test_a_client_that_is_refused_or_repeats_a_submission_may_ask_for_its_events_all_the_same(self, face):
        async with face.open_session() as session:
            with pytest.raises(ToolNotFound):
                await session.submit("x", [step("no.such.tool")], follow=True)
            for _ in range(2):
                task = await session.submit("x", [step("bench.read")], follow=True, idempotency_key="once")
                with trio.fail_after(PATIENCE):
                    assert [event.seq async for event in task.events()] == [1, 2, 3]

    async def test_a_task_whose_events_were_asked_for_and_are_not_read_may_be_let_go(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.wait", tag="never")], follow=True)
            task_id = task.task_id
            del task
            gc.collect()
            task = await session.task(task_id)
            await event(task, "start", 0)
            await task.cancel()
            with trio.fail_after(PATIENCE):
                assert [event.seq async for event in task.events()] == [1, 2, 3]

    async def test_any_number_of_readers_see_the_same_events(self, face):
        seen = {}

        async def follow(name, task):
            seen[name] = [event.seq async for event in task.events()]

        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.progress", n=5), step("bench.read")])
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    for name in range(4):
                        nursery.start_soon(follow, name, task)
        for name in range(4):
            assert seen[name] == sorted(set(seen[name]))
            assert seen[name][-1] == seen[0][-1]

    async def test_a_reader_that_stops_early_disturbs_no_other(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.read", gate="x")])
            await event(task, "finish", 0)
            await at_gate(face, "x")
            face.world.gate("x").open()
            assert (await finished(task)).status == "SUCCESS"
            with trio.fail_after(PATIENCE):
                assert [event.seq async for event in task.events()] == [1, 2, 3, 4, 5]

    async def test_who_leaves_the_loop_early_may_just_walk_away(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read"), step("bench.wait", tag="never")])
            with trio.fail_after(PATIENCE):
                async for one in task.events():
                    if one.phase == "finish":
                        break
                # No warning, and no trace of who was there: the next follower begins at the beginning.
                gc.collect()
                await event(task, "start", 1)
                await task.cancel()
                assert [event.seq async for event in task.events()] == [1, 2, 3, 4, 5]

    async def test_a_timeout_around_one_event_loses_none(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.wait", tag="go on")])
            events = task.events()
            assert (await anext(events)).seq == 1
            with trio.move_on_after(0) as waiting:
                await anext(events)
            assert waiting.cancelled_caught
            face.world.event("go on").set()
            with trio.fail_after(PATIENCE):
                assert [event.seq async for event in events] == [2, 3]

    async def test_progress_is_told_while_a_step_runs(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.progress", n=2, tag="go on")])
            numbers = []
            if not self.streams:
                face.world.event("go on").set()
            with trio.fail_after(PATIENCE):
                async for one in task.events():
                    if one.phase == "progress":
                        assert one.step_index == 0
                        numbers.append(one.data["data"]["number"])
                        if numbers == [0, 1]:
                            face.world.event("go on").set()
            assert numbers == ([0, 1] if self.streams else [])

    # --- cancelling, deadlines ----------------------------------------------------------------------------------

    async def test_a_cancelled_task_waits_for_its_step_to_yield(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read", gate="x"), step("bench.read", tag="never")])
            await at_gate(face, "x")
            assert await task.cancel() == "CANCELLING"
            assert await task.cancel() == "CANCELLING"
            assert (await task.get()).status == "RUNNING"
            face.world.gate("x").open()
            done = await finished(task)
        assert done.status == "CANCELLED"
        assert [step.status for step in done.steps] == ["SUCCESS", "CANCELLED"]
        assert "never" not in face.world.observer.labels("begin")

    async def test_a_step_that_waits_off_its_bus_is_cancelled_at_once(self, face):
        async with face.open_session() as session:
            for tool in ("bench.wait", "bench.children"):
                task = await session.submit("x", [step(tool)])
                await event(task, "start", 0)
                await task.cancel()
                await finished(task)
                done = await task.get()
                assert done.status == "CANCELLED"
                assert [step.status for step in done.steps] == ["CANCELLED"]

    async def test_cancelling_a_task_that_has_ended_tells_how(self, face):
        async with face.open_session() as session:
            for tool, status in [("bench.read", "SUCCESS"), ("bench.fail", "FAILED")]:
                task = await session.submit("x", [step(tool)])
                await finished(task)
                assert await task.cancel() == status
                assert (await task.get()).status == status

    async def test_a_task_past_its_max_duration_has_failed_and_says_so(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.wait"), step("bench.read")], max_duration_ms=20)
            done = await finished(task)
        assert done.status == "FAILED"
        assert "max_duration_ms = 20" in done.error
        assert [step.status for step in done.steps] == ["CANCELLED", "CANCELLED"]

    # --- rollback, dry run, idempotency, leases -----------------------------------------------------------------

    @pytest.mark.parametrize("how", ["fails", "times out", "is cancelled"])
    async def test_a_task_that_ends_badly_takes_its_steps_back_in_reverse(self, face, how):
        last = step("bench.fail") if how == "fails" else step("bench.wait")
        limits = {"max_duration_ms": 1000} if how == "times out" else {}
        async with face.open_session() as session:
            task = await session.submit(
                "x",
                [step("bench.set", line=1, value=1, tag="one"), step("bench.set", line=2, value=1, tag="two"), last],
                rollback_on_failure=True,
                **limits,
            )
            if how == "is cancelled":
                await event(task, "start", 2)
                await task.cancel()
            done = await finished(task)
            assert done.status == ("CANCELLED" if how == "is cancelled" else "FAILED")
            assert [step.rolled_back for step in done.steps] == [True, True, None]
            assert face.world.observer.labels("begin")[:2] == ["one", "two"]
            assert face.world.observer.labels("begin")[-2:] == ["undo two", "undo one"]
            assert face.world.driver.levels == {1: None, 2: None}

    async def test_a_task_that_succeeds_takes_nothing_back(self, face):
        async with face.open_session() as session:
            done = await finished(
                await session.submit("x", [step("bench.set", line=1, value=1)], rollback_on_failure=True)
            )
            assert done.steps[0].rolled_back is None
            assert face.world.driver.levels == {1: 1}

    async def test_a_dry_run_says_what_would_run_and_touches_nothing(self, face):
        async with face.open_session() as session:
            steps = [step("bench.set", line=1, value=1), step("bench.read", bus="b")]
            done = await finished(await session.submit("x", steps, dry_run=True))
            assert done.status == "SUCCESS"
            assert [step.result["dry_run"] for step in done.steps] == [True, True]
            assert [step.result["bus"] for step in done.steps] == ["a", "b"]
            assert [step.result["risk_level"] for step in done.steps] == [2, 0]
            with pytest.raises(PermissionDenied):
                await session.submit("x", [step("bench.danger")], dry_run=True)
        assert face.world.observer.labels("begin") == []

    async def test_a_repeated_submission_never_actuates_twice(self, face):
        async with face.open_session() as session:
            steps = [step("bench.set", line=1, value=1, tag="once")]
            first = await session.submit("x", steps, idempotency_key="k")
            second = await session.submit("x", steps, idempotency_key="k")
            assert first.task_id == second.task_id
            await finished(first)
            assert (await session.submit("x", steps, idempotency_key="k")).task_id == first.task_id
            with pytest.raises(InvalidParams) as other:
                await session.submit("x", [step("bench.set", line=1, value=0)], idempotency_key="k")
            assert other.value.data["path"] == "/task/idempotency_key"
            assert (await session.submit("x", steps, idempotency_key="another")).task_id != first.task_id

    async def test_an_exclusive_task_has_its_buses_to_itself_from_first_to_last_step(self, face):
        async with face.open_session() as session:
            alone = await session.submit(
                "alone",
                [step("bench.read", tag="1"), step("bench.wait", tag="x"), step("bench.read", tag="2")],
                exclusive=True,
            )
            await event(alone, "start", 1)
            other = await session.submit("other", [step("bench.read", tag="other")], priority="urgent")
            with pytest.raises(ResourceBusy) as busy:
                await session.submit("third", [step("bench.read")], on_busy="fail")
            assert busy.value.data["reason"] == "leased"
            assert busy.value.data["holder_task"] == alone.task_id
            face.world.event("x").set()
            assert (await finished(alone)).status == "SUCCESS"
            assert (await finished(other)).status == "SUCCESS"
        assert face.world.observer.labels("begin") == ["1", "2", "other"]

    async def test_with_on_busy_fail_a_step_does_not_wait_its_turn(self, face):
        async with face.open_session() as session:
            held = await session.submit("held", [step("bench.read", gate="x")])
            await at_gate(face, "x")
            done = await finished(await session.submit("x", [step("bench.read", tag="never")], on_busy="fail"))
            assert done.status == "FAILED"
            assert done.steps[0].error_code == -32004
            assert done.steps[0].error_data["bus"] == "a"
            assert done.steps[0].error_data["holder_task"] == held.task_id
            face.world.gate("x").open()
        assert "never" not in face.world.observer.labels("begin")

    # --- the end ------------------------------------------------------------------------------------------------

    async def test_closing_answers_when_the_tasks_have_yielded_and_then_the_session_is_gone(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.wait")])
            with trio.fail_after(PATIENCE):
                assert await session.close() == 0
            for request in (session.tools, session.close, task.get, task.cancel):
                with pytest.raises(SessionInvalid):
                    await request()
            with pytest.raises(SessionInvalid):
                await session.submit("x", [step("bench.read")])
        finish = face.world.journal.of("task.finish", task_id=task.task_id)
        assert [(record["status"], record["reason"]) for record in finish] == [("CANCELLED", "session closed")]

    async def test_closing_says_how_many_tasks_are_still_yielding(self, face):
        async with face.open_session() as session:
            await session.submit("x", [step("bench.read", gate="x")])
            await session.submit("y", [step("bench.wait")])
            await at_gate(face, "x")
            with trio.fail_after(PATIENCE):
                assert await session.close() == 1
            face.world.gate("x").open()

    async def test_leaving_the_context_ends_its_tasks_and_brings_its_outputs_to_their_safe_state(self, face):
        async with face.open_session() as session:
            await session.run("bench.set", line=1, value=1)
            await session.run("bench.set", line=31, value=1)
            task = await session.submit("x", [step("bench.wait")])
            assert face.world.driver.levels == {1: 1, 31: 1}
        assert face.world.driver.levels == {1: 0, 31: 1}, "line 31 is to keep its level"
        assert face.world.journal.of("task.finish", task_id=task.task_id)[0]["status"] == "CANCELLED"
        (closed,) = face.world.journal.of("session.close", session_id=session.session_id)
        assert closed["safe"] == [{"line": 1, "safe": 0}]

    async def test_an_output_that_another_session_has_driven_since_is_left_to_that_session(self, face):
        async with face.open_session() as late:
            async with face.open_session() as early:
                await early.run("bench.set", line=1, value=1)
                await early.run("bench.set", line=2, value=1)
                await late.run("bench.set", line=1, value=1)
            assert face.world.driver.levels == {1: 1, 2: 0}
        assert face.world.driver.levels == {1: 0, 2: 0}

    async def test_an_exception_of_the_body_comes_out_as_it_is_and_the_outputs_are_safe(self, face):
        async def body():
            async with face.open_session() as session:
                await session.run("bench.set", line=1, value=1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await body()
        assert face.world.driver.levels == {1: 0}

    async def test_a_body_that_is_cancelled_still_leaves_its_outputs_safe(self, face):
        with trio.CancelScope() as scope:
            async with face.open_session() as session:
                await session.run("bench.set", line=1, value=1)
                await session.submit("x", [step("bench.wait")])
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert face.world.driver.levels == {1: 0}
        assert face.world.runtime.sessions == 0

    async def test_a_session_that_sends_no_heartbeat_is_closed_and_leaves_its_outputs_safe(self, face):
        async with face.open_session(heartbeat_ms=60) as session:
            await session.submit("x", [step("bench.set", line=1, value=1), step("bench.wait")])
            with trio.fail_after(PATIENCE):
                await passes(lambda: face.world.journal.of("session.close", session_id=session.session_id))
            with pytest.raises(SessionInvalid):
                await session.tools()
        assert face.world.driver.levels == {1: 0}
        (closed,) = face.world.journal.of("session.close", session_id=session.session_id)
        assert closed["reason"] == "no heartbeat within 60 ms"

    async def test_a_task_that_timed_out_on_a_wedged_bus_says_what_became_of_the_world(self, face):
        async with face.open_session() as session:
            task = await session.submit("x", [step("bench.read", gate="x", limit_ms=20)])
            await at_gate(face, "x")
            with trio.fail_after(PATIENCE):
                await passes(lambda: face.world.bus.state == "wedged")
            assert (await task.get()).status == "RUNNING"
            face.world.gate("x").open()
            done = await finished(task)
        assert done.steps[0].error_code == TimedOut.code
        assert done.steps[0].error_data["effect"] == "done"

    # --- observing ----------------------------------------------------------------------------------------------

    @pytest.mark.usefixtures("halts")
    async def test_whoever_may_observe_sees_the_tasks_of_other_sessions_in_order_and_their_records(self, face):
        async with face.open_session() as session, face.open_session() as watcher:
            events = watcher.observe()
            state = {}
            observing.apply(state, await anext(events))
            assert session.session_id in {one["session_id"] for one in state["sessions"]}
            await session.run("bench.set", line=1, value=1)
            seen, ended = [], False
            while not ended:
                told = await anext(events)
                assert told["seq"] == state["seq"] + 1
                observing.apply(state, told)
                records = [one for one in told.get("records", ()) if one.get("session_id") == session.session_id]
                seen += [record["event"] for record in records]
                ended = "task.finish" in seen
            assert seen == ["task.submit", "task.step.start", "task.step.finish", "task.finish"]
            assert state["tasks"] == []
            fresh = await watcher.observe_state()
            assert {one["session_id"] for one in fresh["sessions"]} >= {session.session_id, watcher.session_id}
            await events.aclose()

    # --- the halt -----------------------------------------------------------------------------------------------

    @pytest.fixture
    def halts(self):
        if not self.streams:
            pytest.skip("a server of the core alone has no halt")

    async def test_from_a_halt_on_nothing_with_an_effect_is_accepted_also_as_a_dry_run_and_reads_go_on(
        self, face, halts
    ):
        steps = [step("bench.read"), step("bench.set", line=1, value=1)]
        async with face.open_session() as session, face.open_session() as other:
            status = await session.halt("smoke")
            assert (status.halted, status.reason, status.latched) == (True, "smoke", True)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", status.since)
            for one in (session, other):
                for dry_run in (False, True):
                    with pytest.raises(Halted, match=r'Halted since .*: "smoke"; nothing was done') as refused:
                        await one.submit("x", steps, dry_run=dry_run)
                    assert refused.value.data["step_index"] == 1
                    assert refused.value.data["effect"] == "none"
                with trio.fail_after(PATIENCE):
                    assert await one.run("bench.read", tag="x") == {"tag": "x"}
        assert face.world.driver.levels == {}

    async def test_a_halt_cancels_tasks_with_effects_and_makes_every_output_safe_and_other_tasks_go_on(
        self, face, halts
    ):
        async with face.open_session() as session, face.open_session() as other:
            acts = await session.submit("x", [step("bench.set", line=1, value=1), step("bench.wait", tag="never")])
            await other.run("bench.set", line=31, value=1)
            reads = await other.submit("y", [step("bench.wait", tag="go on")])
            await event(acts, "start", 1)
            await event(reads, "start", 0)
            await other.halt("smoke")
            done = await finished(acts)
            assert (done.status, [one.status for one in done.steps]) == ("CANCELLED", ["SUCCESS", "CANCELLED"])
            assert 'the daemon was halted: "smoke"' in done.error
            assert face.world.driver.levels == {1: 0, 31: 0}, "also the line that keeps its level after a session"
            assert (await reads.get()).status == "RUNNING"
            face.world.event("go on").set()
            assert (await finished(reads)).status == "SUCCESS"

    @pytest.mark.usefixtures("halts")
    async def test_a_reset_ends_the_halt_and_starts_nothing(self, face):
        async with face.open_session() as session:
            await session.run("bench.set", line=1, value=1)
            assert (await session.reset_halt()).halted is False
            await session.halt()
            assert (await session.halt_status()).reason == "no reason was given"
            assert (await session.reset_halt()).halted is False
            assert (await session.halt_status()).halted is False
            assert face.world.driver.levels == {1: 0}
            await session.run("bench.set", line=1, value=1)
            assert face.world.driver.levels == {1: 1}

    @pytest.mark.usefixtures("halts")
    async def test_an_undo_after_a_halt_moves_nothing_and_says_so(self, face):
        async with face.open_session() as session:
            steps = [step("bench.set", line=1, value=1), step("bench.wait", tag="never")]
            task = await session.submit("x", steps, rollback_on_failure=True)
            await event(task, "start", 1)
            await session.halt()
            done = await finished(task)
            assert done.steps[0].rolled_back is False
            assert face.world.driver.levels == {1: 0}
            assert "undo set" not in face.world.observer.labels("begin")
