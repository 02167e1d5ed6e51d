"""A foreign harness that follows L1 orders a job from hearth over a real broker, and hears its events."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(device, name):
    harness = device.harness(f"call-{name}")
    yield harness
    harness.close()


def test_a_foreign_harness_orders_a_job_and_hears_its_events(device, harness) -> None:
    order = harness.submission("marks", device.inputs("one", "two"))
    harness.command(device.id, order)
    closed = harness.closed()
    assert closed["data"]["final_state"] == "COMPLETED"
    assert device.made() == ["one", "two"]
    kinds = [message["type"] for message in harness.messages]
    assert kinds[0] == "task_accepted"
    assert kinds[-2:] == ["task_completed", "event"]
    assert [one["payload"]["sequence"] for one in harness.messages if one["type"] == "event"] == list(
        range(1, kinds.count("event") + 1)
    )
    assert harness.messages[0]["payload"]["in_reply_to"] == order["message_id"]


@pytest.mark.proof
def test_a_device_that_ends_publishes_the_ends_of_its_jobs_and_leaves_further_orders_in_the_queue(
    device, harness
) -> None:
    harness.command(device.id, harness.submission("looks", {"times": 1000, "interval_s": 1}))
    harness.until(lambda one: one["payload"].get("event_type") == "checkpoint_created")
    assert device.stop() == 0
    assert harness.closed()["data"]["final_state"] == "FAILED"
    assert harness.messages[-2]["payload"]["error_details"]["reason"] == "daemon_ended"
    harness.command(device.id, harness.submission("looks", {}))
    device.connect()
    assert harness.closed()["data"]["final_state"] == "COMPLETED"
