"""Answers that are lost at every point of a submission, and daemons that are killed: a repeat acts once.

The witness is a file to which each submission appends one byte: what happened is seen there, whatever hearth says.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest
from support.mcp import RawMcp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

POINTS = ("before it is whole", "before the answer", "after the answer", "after the end")
"""The point of a submission at which its connection is lost."""
EACH = 10
"""Submissions in one life of a daemon."""
TERMINAL = ("SUCCESS", "FAILED", "CANCELLED")


def task(witness: Path, number: int) -> dict[str, Any]:
    line = {"tool": "gpio.set", "args": {"line": "LED", "value": number % 2}}
    append = {"tool": "file.write", "args": {"path": str(witness / str(number)), "text": "x", "mode": "append"}}
    return {"intent": "toggle", "steps": [line, append], "idempotency_key": f"key {number}"}


def lose(daemon: Any, wanted: dict[str, Any], point: str) -> None:
    """Submit over a connection of its own, which is lost at this point."""
    peer = daemon.peer()
    session = peer.open()
    params = {"session_id": session, "task": wanted, "subscribe": True}
    if point == "before it is whole":
        peer.send(b'{"jsonrpc":"2.0","id":9,"method":"task.submit","params":{"session_id":"' + session.encode())
    else:
        peer.start("task.submit", params)
    if point in ("after the answer", "after the end"):
        while "result" not in (said := peer.line()):
            assert "error" not in said, said
    if point == "after the end":
        while peer.line()["params"]["phase"] != "task_finish":
            pass
    daemon.hang_up()


def repeated(daemon: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Submit again, wherever that is; return the task at its end."""
    peer = daemon.peer()
    session = peer.open()
    answer = peer.call("task.submit", {"session_id": session, "task": wanted})
    done = peer.wait(session, answer["result"]["task_id"])
    assert done["status"] in TERMINAL
    again = peer.call("task.submit", {"session_id": session, "task": wanted})["result"]
    assert (again["task_id"], again["status"], again["repeated"]) == (done["task_id"], done["status"], True)
    daemon.hang_up()
    return done


def bytes_in(file: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def judge(witness: Path, number: int, status: str, reason: str | None) -> None:
    """Acted once; where the daemon was killed in the middle of it, at most once, and the caller is told so."""
    acted = bytes_in(witness / str(number))
    if reason is None:
        assert (status, acted) == ("SUCCESS", 1)
    else:
        assert status == "FAILED"
        assert "not run again" in reason
        assert acted <= 1


def play(hearthd: Callable[..., Any], directory: Path, lives: int, audit: str = "") -> None:
    rng = random.Random(11)
    witness = directory / "witness"
    witness.mkdir()
    daemon = hearthd(
        f'[files]\nwrite = ["{witness}"]\n[limits]\nmax_sessions_per_principal = 1000\nsession_rate = "1000/s"\n'
    )
    daemon.config.write_text(daemon.config.read_text().replace("[audit]\n", f"[audit]\n{audit}"))
    told: dict[int, str] = {}
    cut_short = 0
    for life in range(lives):
        numbers = range(life * EACH, (life + 1) * EACH)
        daemon.start()
        for number in numbers:
            lose(daemon, task(witness, number), POINTS[number % len(POINTS)])
            if rng.random() < 0.3:
                told[number] = repeated(daemon, task(witness, number))["task_id"]
        # The last one is lost just before the kill, at any point of it.
        daemon.kill()
        daemon.start()
        for number in numbers:
            done = repeated(daemon, task(witness, number))
            assert told.setdefault(number, done["task_id"]) == done["task_id"]
            judge(witness, number, done["status"], done.get("error"))
            cut_short += "error" in done
        daemon.kill()
    # A third life: the answers are still the same, those of the first life too.
    daemon.start()
    for number, task_id in told.items():
        assert repeated(daemon, task(witness, number))["task_id"] == task_id
        assert bytes_in(witness / str(number)) <= 1
    daemon.stop()
    assert cut_short <= lives, "only what was under way at the kill may have an unknown end"


@pytest.mark.spec("design 8: idempotency_key")
@pytest.mark.proof
def test_whatever_answer_is_lost_and_whenever_the_daemon_is_killed_a_repeated_submission_acts_once(hearthd, tmp_path):
    play(hearthd, tmp_path, 5)


@pytest.mark.proof
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_thousand_lost_answers_act_once(hearthd, tmp_path, durability):
    play(hearthd, tmp_path, 50, f'durability = "{durability}"\n')


@pytest.mark.proof
def test_an_mcp_call_whose_answer_is_lost_acts_once_across_a_kill_of_the_daemon(hearthd, tmp_path):
    witness = tmp_path / "witness"
    witness.mkdir()
    daemon = hearthd(f'[files]\nwrite = ["{witness}"]\n')

    def call(bridge: RawMcp, number: int) -> int:
        arguments = {"path": str(witness / str(number)), "text": "x", "mode": "append"}
        meta = {"hearth/idempotency_key": f"key {number}"}
        return bridge.start("tools/call", {"name": "file_write", "arguments": arguments, "_meta": meta})

    for life in range(3):
        numbers = range(life * 6, life * 6 + 6)
        daemon.start()
        for number in numbers:
            with RawMcp(daemon.socket) as bridge:
                bridge.initialize()
                asked = call(bridge, number)
                if number % 2:
                    assert not bridge.answer(asked)["result"]["isError"]
        daemon.kill()
        daemon.start()
        with RawMcp(daemon.socket) as bridge:
            bridge.initialize()
            for number in numbers:
                # Cancelled by the end of its bridge, cut short by the kill, or done: never twice.
                result = bridge.answer(call(bridge, number))["result"]
                text = result["content"][0]["text"]
                acted = bytes_in(witness / str(number))
                if number % 2:
                    assert acted == 1
                    assert "do not repeat it" in text
                else:
                    assert acted == 1 if not result["isError"] or "SUCCESS" in text else acted <= 1
        daemon.kill()
