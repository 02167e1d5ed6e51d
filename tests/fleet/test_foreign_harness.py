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
