"""What heals by itself: a wiped broker, gaps, events that were lost, an outbox that was full, a link that was cut."""

# ruff: noqa: ASYNC110  what is waited for here has no event

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from fleet.bench import Device
from fleet.swarm import QUICK, connected, serving
from fleet.test_client import calling, ended, job
from support.tcp_proxy import proxied

from hearth.actors.bridges.amqp.connection import BrokerSettings
from hearth.errors import Halted

pytestmark = pytest.mark.slow


def whole(client, order):
    """Check that a caller has every event of an order."""
    sequences = [one["payload"]["sequence"] for one in client.order_store.events(order.session_id)]
    assert sequences == list(range(1, order.sequence + 1))
    assert client.order_store.events(order.session_id)[-1]["payload"]["event_type"] == "session_closed"


@pytest.mark.proof
async def test_a_wiped_broker_gets_its_topology_again_and_gaps_are_healed_by_the_devices(
    killable, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("hearth.fleet.client.QUIET_S", 1.0)
    device = Device(killable, tmp_path, "dev", callers=["caller"])
    async with (
        serving(device.config),
        calling(killable, "caller", tmp_path / "order store", bound=120, settings=QUICK) as client,
    ):
        looks = job("caller", "looks", {"times": 150, "interval_s": 0.02})
        await client.submit(["dev"], looks, within_s=None)
        while (await client.orders())[0].sequence < 20:
            await client.changed()
        # What the broker has now, and the caller not yet, is lost with it.
        await trio.to_thread.run_sync(killable.kill)
        killable.wipe()
        await trio.to_thread.run_sync(killable.start)
        for user in ("dev", "caller"):
            killable.add_user(user)
        await client.submit(["dev"], job("caller", "marks", device.inputs("after")), within_s=60)
        orders = await ended(client)
        assert [one.state for one in orders] == ["COMPLETED"] * 2
        for order in orders:
            whole(client, order)
    assert device.made() == ["after"]


@pytest.mark.proof
async def test_what_was_lost_behind_the_last_event_is_asked_for(killable, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hearth.fleet.client.QUIET_S", 0.5)
    device = Device(killable, tmp_path, "dev", callers=["caller"])
    async with serving(device.config) as uplink:
        await connected(uplink)
        async with calling(killable, "caller", tmp_path / "order store", settings=QUICK) as client:
            await client.submit(["dev"], job("caller", "looks", {"times": 40, "interval_s": 0.02}), within_s=None)
            while (await client.orders())[0].sequence < 5:
                await client.changed()
        # The caller is away until all is published, and its queue is lost meanwhile.
        job_store = uplink._jobs.services.job_store
        while (await job_store.sessions("amqp:caller", 1))[0].ended_at is None or (await job_store.outbox_size())[0]:
            await trio.sleep(0.05)
        await trio.to_thread.run_sync(
            killable.evaluate,
            "rabbit_amqqueue:purge(element(2, rabbit_amqqueue:lookup("
            '{resource, <<"/">>, queue, <<"hcp.evt.caller">>})))',
        )
        async with calling(killable, "caller", tmp_path / "order store", settings=QUICK) as client:
            (order,) = await ended(client)
            assert order.state == "COMPLETED"
            whole(client, order)


@pytest.mark.proof
async def test_past_the_outboxs_bound_new_orders_are_refused_and_running_jobs_go_on(
    killable, tmp_path, monkeypatch
) -> None:
    device = Device(killable, tmp_path, "dev", callers=["caller"], amqp="outbox_bytes = 65536")
    harness = await trio.to_thread.run_sync(device.harness, "caller")
    async with serving(device.config) as uplink:
        await connected(uplink)
        first = harness.submission("looks", {"times": 400})
        harness.command("dev", first)
        # The broker takes nothing more: the job goes on, and its events stay here.
        confirm = trio.Event()

        outbox = uplink._jobs.services.job_store.outbox

        async def stuck(*args):
            await confirm.wait()
            return await outbox(*args)

        monkeypatch.setattr(uplink._jobs.services.job_store, "outbox", stuck)
        while uplink.status()["outbox_bytes"] <= 65536:
            uplink._waiting = await uplink._jobs.services.job_store.outbox_size()
            await trio.sleep(0.05)
        harness.command("dev", harness.submission("looks", {}))
        refused = await trio.to_thread.run_sync(harness.until, lambda one: one["type"] == "task_rejected")
        assert refused["payload"]["reason_code"] == "resource_unavailable"
        assert "the outbox has" in refused["payload"]["reason_message"]
        monkeypatch.undo()
        confirm.set()
        closed = await trio.to_thread.run_sync(harness.closed)
        assert closed["data"]["final_state"] == "COMPLETED"
    harness.close()


@pytest.mark.proof
async def test_a_replay_is_only_for_the_sessions_owner(killable, tmp_path) -> None:
    device = Device(killable, tmp_path, "dev", callers=["caller", "other"])
    async with serving(device.config) as uplink:
        await connected(uplink)
        harness = await trio.to_thread.run_sync(device.harness, "caller")
        harness.command("dev", harness.submission("looks", {}))
        await trio.to_thread.run_sync(harness.closed)
        heard = len(harness.messages)
        session = harness.messages[0]["session_id"]
        ask = {**harness.submission("-", {}), "type": "hearth.replay", "session_id": session}
        harness.command("dev", {**ask, "payload": {"caller_id": "caller", "from_sequence": 0}})
        await trio.to_thread.run_sync(harness.closed)
        assert harness.messages[heard:] == harness.messages[:heard]
        # From a sequence on: what comes after the last earlier event.
        again = {**ask, "message_id": "11111111-1111-4111-8111-111111111111"}
        harness.command("dev", {**again, "payload": {"caller_id": "caller", "from_sequence": 3}})
        await trio.to_thread.run_sync(harness.closed)
        assert harness.messages[3 - heard :] == harness.messages[3:heard]
        for payload, code in (({"from_sequence": "x"}, "invalid_message"), ([], "invalid_message")):
            harness.command("dev", {**ask, "payload": payload})
            told = await trio.to_thread.run_sync(harness.receive)
            assert told["payload"]["reason_code"] == code
        other = await trio.to_thread.run_sync(device.harness, "other")
        other.command("dev", {**ask, "payload": {"caller_id": "other", "from_sequence": 0}})
        assert (await trio.to_thread.run_sync(other.receive))["payload"]["reason_code"] == "unknown_session"
        killable.add_user("stranger")
        stranger = await trio.to_thread.run_sync(device.harness, "stranger")
        for kind in ("hearth.clock", "hearth.replay", "task_submit"):
            stranger.command("dev", {**stranger.submission("looks", {}), "type": kind})
            told = await trio.to_thread.run_sync(stranger.receive)
            assert told["payload"]["reason_code"] == "unauthorized"
        # Whose name is in the message is not who sends it.
        forged = {**other.submission("looks", {})}
        forged["payload"] = {**forged["payload"], "caller_id": "caller"}
        other.command("dev", forged)
        told = await trio.to_thread.run_sync(harness.receive)
        assert told["payload"]["reason_code"] == "unauthorized"
        # Nor does it pass for the answer to a message of the caller that is named.
        assert "in_reply_to" not in told["payload"]
        # Without a user that the broker has checked there is no principal; what is no message is dropped.
        harness.command("dev", harness.submission("looks", {}), user_id=None)
        assert (await trio.to_thread.run_sync(harness.receive))["payload"]["reason_code"] == "unauthorized"
        harness.command("dev", {**harness.submission("looks", {})}, headers={"not_after": 5})
        assert (await trio.to_thread.run_sync(harness.receive))["payload"]["reason_code"] == "invalid_message"
        for one in (harness, other, stranger):
            one.close()


async def test_an_order_whose_caller_was_told_no_never_runs_although_its_reason_has_passed(
    rabbitmq, tmp_path, name
) -> None:
    caller = f"call-{name}"
    device = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[caller])
    harness = await trio.to_thread.run_sync(device.harness, caller)
    async with serving(device.config) as uplink:
        await connected(uplink)
        halt = uplink._runtime.halt
        halt.halt("for a test", "uid:0")
        order = harness.submission("marks", device.inputs("one"))
        for again in range(2):
            harness.command(device.id, order)
            told = await trio.to_thread.run_sync(harness.receive)
            assert told["payload"]["reason_code"] == "resource_unavailable"
            while not again and halt.flag.halted:
                # Outputs take a moment to be safe.
                with suppress(Halted):
                    await halt.reset("uid:0", halt.flag.count)
                await trio.sleep(0.05)
        harness.command(device.id, harness.submission("marks", device.inputs("two")))
        await trio.to_thread.run_sync(harness.closed)
    assert device.made() == ["two"]
    harness.close()


@pytest.mark.parametrize(
    "fault", ["cut", *(pytest.param(one, marks=pytest.mark.proof) for one in ("frozen", "a byte a second"))]
)
async def test_a_link_that_breaks_or_falls_silent_loses_nothing(rabbitmq, tmp_path, name, fault) -> None:
    caller = f"call-{name}"
    settings = BrokerSettings(heartbeat=1, backoff_first=0.05, backoff_most=0.2)
    async with proxied(rabbitmq.port) as proxy:
        device = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[caller], port=proxy.port)
        async with (
            serving(device.config, settings=settings) as uplink,
            calling(rabbitmq, caller, bound=60, settings=QUICK) as client,
        ):
            await connected(uplink)
            await client.submit([device.id], job(caller, "looks", {"times": 200, "interval_s": 0.01}), within_s=None)
            while (await client.orders())[0].sequence < 10:
                await client.changed()
            began = trio.current_time()
            if fault == "cut":
                proxy.cut()
            elif fault == "frozen":
                proxy.freeze()
            else:
                proxy.byte_every = 1.0
            while uplink.status()["connected"]:
                await trio.sleep(0.01)
            # A peer without a whole frame is lost after two heartbeats.
            assert trio.current_time() - began < 3.5
            proxy.byte_every = 0.0
            proxy.thaw()
            (order,) = await ended(client)
            assert order.state == "COMPLETED"
            whole(client, order)
            assert uplink.status()["reconnects"] >= 1


@pytest.mark.proof
async def test_a_link_with_a_delay_of_300_ms_is_slow_and_is_not_lost(rabbitmq, tmp_path, name) -> None:
    caller, settings = f"call-{name}", BrokerSettings(heartbeat=2)
    async with proxied(rabbitmq.port) as proxy:
        proxy.delay = 0.3
        device = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[caller], port=proxy.port)
        async with (
            serving(device.config, settings=settings) as uplink,
            calling(rabbitmq, caller, bound=60, settings=QUICK) as client,
        ):
            await connected(uplink)
            await client.submit([device.id], job(caller, "looks", {"times": 200, "interval_s": 0.02}), within_s=30)
            await client.submit([device.id], job(caller, "marks", device.inputs("a", "b")), within_s=30)
            orders = await ended(client)
            assert [one.state for one in orders] == ["COMPLETED"] * 2
            for order in orders:
                whole(client, order)
            assert uplink.status()["reconnects"] == 0
            assert proxy.connections == 1
    assert device.made() == ["a", "b"]
