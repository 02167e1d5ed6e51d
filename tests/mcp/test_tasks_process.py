"""MCP tasks through a real `hearth mcp`: one ends with its result, one with its cancellation, one with the pipe."""

import pytest
from support.hearthd import BOUND, Hearthd
from support.mcp import RawMcp
from support.mcp_tasks import DECLARED, envelope

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

META = {"_meta": envelope("agent", DECLARED)}
WATCH = {"line": 27, "edge": "rising", "count": 1, "timeout_ms": 60_000}


def call(bridge, tool, arguments):
    return bridge.call("tools/call", {"name": tool, "arguments": arguments, **META})["result"]


def state(bridge, task):
    return bridge.call("tasks/get", {"taskId": task["taskId"], **META})["result"]


def ended(bridge, task):
    """The task once it is over, as the stream of status notifications tells."""
    bridge.start("subscriptions/listen", {"notifications": {"taskIds": [task["taskId"]]}, **META})
    while True:
        line = bridge.line()
        said = line.get("params", {}) if line.get("method") == "notifications/tasks" else {}
        if said.get("taskId") == task["taskId"] and said["status"] != "working":
            return said


@pytest.mark.proof
def test_a_watch_ends_as_a_task_by_its_edge_by_its_cancellation_and_with_the_clients_pipe(tmp_path):
    hearthd = Hearthd(tmp_path).start()
    try:
        with RawMcp(f"unix:{hearthd.socket}") as bridge:
            watching = call(bridge, "gpio_watch", WATCH)
            assert (watching["resultType"], watching["status"]) == ("task", "working")
            assert call(bridge, "gpio_set", {"line": 17, "value": 1})["resultType"] == "complete"
            seen = ended(bridge, watching)
            assert seen["status"] == "completed"
            assert seen["result"]["structuredContent"]["timed_out"] is False

            cancelled = call(bridge, "gpio_watch", WATCH)
            answer = bridge.call("tasks/cancel", {"taskId": cancelled["taskId"], **META})
            assert answer["result"]["resultType"] == "complete"
            assert ended(bridge, cancelled)["status"] == "cancelled"

            left = call(bridge, "gpio_watch", WATCH)
            assert state(bridge, left)["status"] == "working"
            bridge.process.stdin.close()
            assert bridge.process.wait(BOUND) == 0
            assert bridge.process.stderr.read() == b""

        hearthd.until(lambda: len(hearthd.records(event="task.finish")) == 4)
        statuses = [record["status"] for record in hearthd.records(event="task.finish")]
        assert statuses == ["SUCCESS", "SUCCESS", "CANCELLED", "CANCELLED"]
    finally:
        hearthd.end()
