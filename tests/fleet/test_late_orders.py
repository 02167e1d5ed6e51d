"""An order that is late never begins, also with a wrong clock, and its caller is told."""

from __future__ import annotations

import time
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
import trio
from fleet.bench import Device
from fleet.swarm import connected, serving
from fleet.test_client import calling, ended, job

from hearth.hcp.l1 import OrderTime, Tick
from hearth.hcp.messages import Rejection

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
HERE = Tick(boot="boot", at_ms=1_000_000)
slow = pytest.mark.slow


def told(order, *, moves=True, now=NOW, tick=HERE):
    """The refusal's words, or None."""
    try:
        order.check(now, tick, moves=moves)
    except Rejection as rejection:
        return rejection.message if rejection.reason_code == "expired" and rejection.suggestion else "another"
    return None


def at_length(off):
    """A case for the proofs."""
    return pytest.param(off, marks=pytest.mark.proof)


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


# --- with a tick, no wall clock counts --------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-600, 0, 600])
def test_an_order_with_a_tick_is_judged_by_the_time_since_the_boot_alone(off) -> None:
    order = OrderTime(sent=ago(0), tick=Tick(boot="boot", at_ms=940_000), valid_ms=60_000)
    now = NOW + timedelta(seconds=off)
    assert told(order, now=now) is None
    later = Tick(boot="boot", at_ms=1_000_001)
    assert told(order, now=now, tick=later) == "the order came 0.001 s after its not_after"
    # Whoever gives a time means it, also for what moves nothing.
    assert told(order, now=now, tick=later, moves=False)


def test_a_tick_of_another_boot_says_nothing() -> None:
    order = OrderTime(sent=NOW, tick=Tick(boot="another", at_ms=1_000_000), valid_ms=60_000)
    assert told(order) == "the device has started again since this order was made"


RESET = Tick(boot="boot", at_ms=990_000)
OLDER = "the order was made before the halt of the device was reset"


@pytest.mark.parametrize(("made_ms", "says"), [(0, OLDER), (49_999, OLDER), (50_000, None), (-5_000, OLDER)])
def test_an_order_that_was_made_before_a_reset_of_the_device_does_not_begin_after_it(made_ms, says) -> None:
    """The tick may be older than the order: `made_ms` says by how much. Without it the order counts as that old."""
    order = OrderTime(tick=Tick(boot="boot", at_ms=940_000), valid_ms=90_000, made_ms=made_ms)
    read = OrderTime.of(None, order.headers())
    for one in (order, read):
        refusal = nullcontext() if says is None else pytest.raises(Rejection, match=says)
        with refusal:
            one.check(NOW, HERE, moves=True, reset=RESET)
        one.check(NOW, HERE, moves=False, reset=RESET)


@pytest.mark.parametrize(("sent", "refused"), [(11, True), (9, False)])
def test_an_order_without_a_tick_is_held_against_the_reset_by_the_wall_clocks(sent, refused) -> None:
    order = OrderTime(sent=ago(sent))
    if refused:
        with pytest.raises(Rejection, match=OLDER):
            order.check(NOW, HERE, moves=True, reset=RESET)
    else:
        order.check(NOW, HERE, moves=True, reset=RESET)


# --- without one, both wall clocks do ---------------------------------------------------------------------------------


def test_without_a_time_what_moves_begins_within_a_minute() -> None:
    assert told(OrderTime(sent=ago(60))) is None
    assert told(OrderTime(sent=ago(61))) == "the order came 1 s after its not_after, by the device's clock"
    assert told(OrderTime(sent=ago(1e6)), moves=False) is None


def test_an_order_with_a_time_begins_before_it() -> None:
    assert told(OrderTime(sent=ago(500), not_after=NOW)) is None
    assert told(OrderTime(sent=ago(500), not_after=ago(1)), moves=False)


def test_an_order_from_the_future_has_no_known_age() -> None:
    assert told(OrderTime(sent=ago(-5))) is None
    assert "600 s ahead of the device's clock" in told(OrderTime(sent=ago(-600)))
    assert "needs one" in told(OrderTime())


@pytest.mark.parametrize("off", [-600, 0, 600])
def test_an_order_that_waited_moves_nothing_without_a_tick(off) -> None:
    order = OrderTime(sent=ago(0), waited=True)
    assert "without the device's tick" in told(order, now=NOW + timedelta(seconds=off))
    assert told(order, moves=False) is None
    assert told(OrderTime(sent=ago(0), tick=HERE, valid_ms=1, waited=True)) is None


def test_what_is_written_is_read() -> None:
    order = OrderTime(sent=NOW, not_after=NOW, tick=HERE, valid_ms=5)
    assert OrderTime.of("2026-05-01T12:00:00.000Z", order.headers()) == order
    assert OrderTime.of("yesterday", None) == OrderTime()


@pytest.mark.parametrize(
    "headers",
    [{"not_after": 7}, {"not_after": "soon"}, {"hearth_boot": "b"}, {"hearth_boot": 1, "hearth_at_ms": 1}],
)
def test_headers_of_another_form_are_named(headers) -> None:
    with pytest.raises(ValueError, match="expected"):
        OrderTime.of(None, headers)


# --- over a real broker -----------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(rabbitmq, tmp_path, name):
    """A device that was connected once and does not run now: its queue is there."""
    made = Device(rabbitmq, tmp_path, f"dev-{name}", callers=[f"call-{name}"])
    made.connect()
    made.stop()
    return made


@slow
@pytest.mark.parametrize("off", [at_length(-600.0), 0.0, at_length(600.0)])
async def test_an_old_order_never_begins_whatever_the_devices_clock_says(rabbitmq, stopped, name, off) -> None:
    harness = await trio.to_thread.run_sync(stopped.harness, f"call-{name}")
    asked = {}

    def order(what, capability="marks", *, age_s=0):
        """Publish an order that was made so long ago."""
        inputs = stopped.inputs(what) if capability == "marks" else {}
        document = harness.submission(capability, inputs)
        sent = datetime.now(UTC) - timedelta(seconds=age_s)
        document["timestamp"] = sent.isoformat(timespec="milliseconds")[:-6] + "Z"
        asked[document["message_id"]] = what
        harness.command(stopped.id, document)

    async def answers():
        """What was said to each order that has had no answer."""
        said = {}
        with trio.fail_after(30):
            while asked:
                payload = (await trio.to_thread.run_sync(harness.receive))["payload"]
                if "in_reply_to" in payload:
                    what = asked.pop(payload["in_reply_to"])
                    said[what] = f"{payload.get('reason_code', 'accepted')}: {payload.get('reason_message', '')}"
        return said

    order("old", age_s=90)
    order("as old as the clock is behind", age_s=620)
    order("young")
    order("looks", "looks")
    async with serving(stopped.config, clock=lambda: time.time() + off) as uplink:
        await connected(uplink)
        said = await answers()
        # What was not there when it came cannot say how old it is.
        assert said.pop("looks") == "accepted: "
        assert all(one.startswith("expired: the order waited for the device") for one in said.values()), said
        order("old", age_s=90)
        order("fresh")
        said = await answers()
        assert said["old"].startswith("expired: ")
        # With a clock that is off, even a fresh order that moves something is refused, and the reason says why.
        expected = {
            -600: "expired: /timestamp: 600 s ahead of the device's clock",
            0: "accepted: ",
            600: "expired: the order came 540 s after its not_after, by the device's clock",
        }
        assert said["fresh"].startswith(expected[off]), said
        await trio.to_thread.run_sync(harness.have_closed, 2 if off == 0 else 1)
    assert stopped.made() == (["fresh"] if off == 0 else [])
    harness.close()


@slow
@pytest.mark.parametrize("off", [at_length(-600.0), 600.0])
async def test_hearths_own_caller_needs_no_clock_of_the_device(rabbitmq, stopped, name, off) -> None:
    async with serving(stopped.config, clock=lambda: time.time() + off), calling(rabbitmq, f"call-{name}") as client:
        await client.submit([stopped.id], job(f"call-{name}", "marks", stopped.inputs("one")), within_s=30)
        (order,) = await ended(client)
        assert order.state == "COMPLETED", order.said
    assert stopped.made() == ["one"]


@slow
async def test_an_order_to_a_device_that_is_away_is_not_sent_late(rabbitmq, stopped, name) -> None:
    async with calling(rabbitmq, f"call-{name}") as client:
        await client.submit([stopped.id], job(f"call-{name}", "marks", stopped.inputs("one")), within_s=0.5)
        (order,) = await ended(client)
        assert (order.state, order.said) == ("NOT SENT", "the device was not there in time")
        async with serving(stopped.config) as uplink:
            await connected(uplink)
            await client.submit([stopped.id], job(f"call-{name}", "looks", {}), within_s=None)
            orders = await ended(client)
            assert [one.state for one in orders] == ["NOT SENT", "COMPLETED"]
    assert stopped.made() == []


@slow
async def test_an_order_that_was_under_way_for_too_long_is_refused_and_its_caller_told(rabbitmq, stopped, name) -> None:
    """The device stops reading after it has told the time: what lies in its queue then is old when it goes on."""
    async with calling(rabbitmq, f"call-{name}") as client, serving(stopped.config) as uplink:
        await connected(uplink)
        real = uplink.tick
        late = {"ms": 0}
        uplink.tick = lambda: Tick(boot=real().boot, at_ms=real().at_ms + late["ms"])
        await client.submit([stopped.id], job(f"call-{name}", "looks", {}), within_s=30)
        assert [one.state for one in await ended(client)] == ["COMPLETED"]
        # From here on the device's time is 31 s further than the tick that the caller has.
        late["ms"] = 31_000
        await client.submit([stopped.id], job(f"call-{name}", "marks", stopped.inputs("late")), within_s=30)
        orders = await ended(client)
        assert orders[-1].state == "REJECTED"
        assert orders[-1].said.startswith("expired: the order came ")
    assert stopped.made() == []
