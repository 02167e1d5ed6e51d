"""A daemon that is told to end while it has a job: the caller hears how it ended, and nothing is left to guess."""

from __future__ import annotations

import json
import signal

import pytest
from support.hcp import LOOK_TWICE, Caller
from support.hearthd import Hearthd, Wire

from hearth.audit.verify import verify

SLOW = LOOK_TWICE.replace("job.every(0, samples)", "job.every(3600, samples)").replace("PT1M", "PT9H")


@pytest.fixture
def daemon(tmp_path, unmeasured):
    file = tmp_path / "slow.py"
    file.write_text(SLOW)
    file.chmod(0o600)
    daemon = Hearthd(tmp_path, f'[hcp]\ncapabilities = ["{file}"]\n[board]\nprofile = "sim"\n')
    daemon.start()
    yield daemon
    daemon.end()


class Line(Wire):
    """A caller that is not ours: lines on a socket."""

    def hand_in(self, document):
        self.send(json.dumps(document).encode() + b"\n")

    def until(self, condition):
        """What comes, up to the first message for which this holds."""
        messages = []
        while not messages or not condition(messages[-1]):
            messages.append(json.loads(self.raw()))
        return messages


def is_event(event_type):
    return lambda message: message["payload"].get("event_type") == event_type


@pytest.mark.slow
def test_a_job_under_way_at_sigterm_ends_as_failed_with_its_checkpoint_before_the_connection_does(daemon):
    caller = Line(daemon.socket)
    daemon.peers.append(caller)
    document = Caller.submission("look-twice", inputs={"samples": 3})
    caller.hand_in(document)
    session_id = caller.until(is_event("checkpoint_created"))[0]["session_id"]
    daemon.signal(signal.SIGTERM)
    failed, closed = caller.until(is_event("session_closed"))[-2:]
    assert caller.raw() == b"", "then the connection ends"
    assert (failed["type"], failed["payload"]["error_code"]) == ("task_failed", "internal_error")
    details = failed["payload"]["error_details"]
    assert (details["reason"], details["recoverable"]) == ("daemon_ended", True)
    assert details["last_checkpoint"] == f"ckpt-{session_id}-000001"
    assert closed["payload"]["data"]["final_state"] == "FAILED"
    assert daemon.wait() == 0

    records = [json.loads(line) for line in daemon.audit.read_text().splitlines()]
    events = [one["event"] for one in records if one["event"] in ("hcp.finish", "session.close", "daemon.stop")]
    assert events == ["session.close", "hcp.finish", "daemon.stop"]
    assert verify([daemon.audit]).ok

    daemon.hang_up()
    daemon.start()
    caller = Line(daemon.socket)
    daemon.peers.append(caller)
    caller.hand_in(document)
    again = caller.until(is_event("session_closed"))
    assert again[-2:] == [failed, closed], "and whoever comes back is told the same"
