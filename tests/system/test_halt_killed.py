"""A daemon that is killed at every change of its latch comes back halted, or has not acknowledged the halt."""

from __future__ import annotations

import contextlib
import json
import signal

import pytest
from crash.deployment import Deployment
from crash.syscalls import MOMENTS
from support.hearthd import Peer
from support.zygote import Zygote

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

SCRIPT = ("halt", "halt.reset", "halt", "halt.reset", "halt")
"""What the client asks for, each when the one before was answered."""
START = ["create", "truncate"]
"""The calls that make the first spare file."""
HALT = ["write", "truncate", "sync", "rename", "sync directory", "create", "truncate"]
CHANGES = [*HALT, "unlink", "sync directory", "truncate"]
"""The calls that a halt and its reset make, each with those for the next spare file."""
FIRST, LAST = len(START) + 1, len(START) + 2 * len(CHANGES) + len(HALT)
"""The points from the first halt on."""


def call_at(at):
    return CHANGES[(at - FIRST) % len(CHANGES)]


@pytest.fixture(scope="module")
def zygote(tmp_path_factory, unmeasured):
    running = Zygote(tmp_path_factory.mktemp("zygote"), "crash.latch:main")
    yield running
    running.close()


def status_of(peer, session):
    return peer.call("halt.status", {"session_id": session})["result"]


def a_life(deployment, at=0, moment="after"):
    """Run the script in one life; return the exit status, None if it was killed, and what was asked and answered."""
    asked, answered = [], []
    life = deployment.start(at, moment)
    if life.ready():
        with contextlib.suppress(OSError, AssertionError, json.JSONDecodeError):
            peer = Peer(deployment.socket)
            try:
                session = peer.open()
                peer.run(session, "gpio.set", line=17, value=1)
                for method in SCRIPT:
                    while method == "halt.reset" and status_of(peer, session)["stopping"]:
                        pass  # the board's stop sequence; each look is a round trip
                    asked.append(method)
                    answer = peer.call(method, {"session_id": session})
                    if answer.get("result", {}).get("halted") is not (method == "halt"):
                        pytest.fail(f"{method}: {answer}")
                    answered.append(method)
            finally:
                peer.close()
        life.signal(signal.SIGTERM)
    return life.end(), asked, answered


def comes_back(deployment):
    """Whether the next life is halted, and whether a line can be driven in it."""
    life = deployment.start()
    assert life.ready(), deployment.said()
    peer = Peer(deployment.socket)
    session = peer.open()
    halted = status_of(peer, session)["halted"]
    answer = peer.call("task.submit", {"session_id": session, "task": {"intent": "x", "steps": [
        {"tool": "gpio.set", "args": {"line": 17, "value": 1}}
    ]}})  # fmt: skip
    assert ("error" in answer) is halted, answer
    peer.close()
    life.signal(signal.SIGTERM)
    assert life.end() == 0, deployment.said()
    return halted


def test_the_script_changes_the_latch_by_these_calls(zygote, tmp_path):
    deployment = Deployment(tmp_path / "deployment", zygote)
    status, _, answered = a_life(deployment)
    assert (status, answered) == (0, list(SCRIPT)), deployment.said()
    # Not the opening of a file that exists, nor the syncs of the directory by others at the end.
    changes = [entry["op"] for entry in deployment.entries() if entry.get("op", "open") != "open"]
    assert changes[:LAST] == [*START, *CHANGES, *CHANGES, *HALT]
    deployment.close()


@pytest.mark.spec("design 8: halt")
@pytest.mark.parametrize("at", range(FIRST, LAST + 1))
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_change_of_the_latch_it_comes_back_halted_or_had_not_acknowledged(zygote, tmp_path, at, moment):
    deployment = Deployment(tmp_path / "deployment", zygote)
    status, asked, answered = a_life(deployment, at, moment)
    assert status is None, "it was not killed"
    assert len(asked) == len(answered) + 1, "it was killed while the client waited"
    halted = comes_back(deployment)
    if asked[-1] == "halt.reset" and moment == "before" and call_at(at) == "unlink":
        assert halted, "nothing of the reset has been done"
    if asked[-1] == "halt" and call_at(at) == "sync directory":
        assert halted, "the file has its name, whether or not that survives a power cut"
    # Whatever it was killed at, a halt that was acknowledged is never lost by what came after, but by a reset.
    if "halt.reset" not in asked:
        assert halted or "halt" not in answered
    deployment.close()
