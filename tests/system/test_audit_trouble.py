"""The audit log in trouble: a full disk, a log that somebody removes; what goes on and what is refused (design §7)."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest
from support.hearthd import submission

from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

SET = ("gpio.set", {"line": 18, "value": 1})
GET = ("gpio.get", {"line": 18})


def fill_by_limit(running):
    """No file of the daemon may grow beyond what the log has; returns how to lift that."""
    size = running.audit.stat().st_size
    before = resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return lambda: resource.prlimit(running.pid, resource.RLIMIT_FSIZE, before)


def fill_by_ballast(running):
    """Fill the file system that the log is on; returns how to make room."""
    ballast = running.audit.parent / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast.unlink


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a file system of one MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    directory = tmp_path / "small"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mount: {mounted.stderr.decode()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("how", [fill_by_limit, fill_by_ballast])
def test_with_a_full_disk_reads_go_on_effects_are_refused_and_health_says_why(
    request, hearthd, how, durability: str
) -> None:
    directory = request.getfixturevalue("small_disk") if how is fill_by_ballast else None
    running = hearthd(directory=directory)
    config = running.config.read_text().replace("[audit]\n", f'[audit]\ndurability = "{durability}"\n')
    running.config.write_text(config)
    running.start()
    peer = running.peer()
    session = peer.open()
    assert peer.run(session, *SET[:1], **SET[1])["status"] == "SUCCESS"
    assert peer.health()["audit"]["ok"] is True
    make_room = how(running)

    # Reads go on, and the first thing with an effect is refused before anything has happened.
    for _ in range(3):
        assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 1
    off = submission(session, ("gpio.set", {"line": 18, "value": 0}))
    for _ in range(3):
        error = peer.refusal("task.submit", off)
        assert error["code"] == -32011
        assert str(running.audit) in error["data"]["reason"]
        assert error["data"]["effect"] == "none"
    # Also where a read comes first: nothing of a task that has an effect begins.
    assert peer.refusal("task.submit", submission(session, GET, SET))["code"] == -32011
    assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 1, "the refused steps did not run"
    health = peer.health()
    assert health["ok"] is False
    assert str(running.audit) in health["audit"]["reason"]
    # Sessions can be opened and closed, and what they drove goes to its safe state, on record or not.
    other = peer.open()
    assert peer.call("session.close", {"session_id": other})["result"] == {"ok": True}

    make_room()
    running.until(lambda: peer.health()["ok"])
    assert "result" in peer.call("task.submit", off)
    assert running.stop() == 0
    report = verify([running.audit])
    assert report.ok, report.first_bad
    events = [record["event"] for record in running.records()]
    assert "audit.resume" in events
    assert "daemon.stop" in events
    assert running.said.count("nothing with an effect is done") == 1
    assert running.said.count("is written again") == 1
    starts = [r for r in running.records() if r["event"] == "task.step.start" and r["tool"] == "gpio.set"]
    assert len(starts) == 2


def test_with_a_full_disk_safe_states_are_reached_and_the_daemon_ends_in_its_time(hearthd) -> None:
    running = hearthd().start()
    peer, witness = running.peer(), running.peer()
    session = peer.open(on_disconnect="close")
    watching = witness.open()
    peer.run(session, "gpio.set", line=17, value=1)
    assert witness.run(watching, "gpio.get", line=27)["result"]["value"] == 1
    fill_by_limit(running)
    peer.close()
    running.until(lambda: witness.run(watching, "gpio.get", line=27)["result"]["value"] == 0)
    assert running.stop() == 0
    assert verify([running.audit]).ok


def test_a_task_that_is_running_when_the_disk_fills_stops_before_its_next_effect(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    wait = ("gpio.watch", {"line": 4, "timeout_ms": 400})
    task = peer.submit(session, SET, wait, ("gpio.set", {"line": 18, "value": 0}))
    here = {"session_id": session, "task_id": task}
    running.until(lambda: len(peer.call("task.get", here)["result"]["steps"]) == 2)
    fill_by_limit(running)
    done = peer.wait(session, task)
    assert done["status"] == "FAILED"
    assert [step["status"] for step in done["steps"]] == ["SUCCESS", "SUCCESS", "FAILED"]
    assert done["steps"][2]["error_code"] == -32011
    assert done["steps"][2]["error_data"]["effect"] == "none"
    assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 1


def test_a_disk_that_is_full_at_the_start_is_an_error_or_a_daemon_that_refuses_effects(hearthd, small_disk) -> None:
    running = hearthd(directory=small_disk)
    fill_by_ballast(running)
    running.start()
    peer = running.peer()
    session = peer.open()
    assert peer.run(session, "gpio.get", line=18)["status"] == "SUCCESS"
    assert peer.refusal("task.submit", submission(session, SET))["code"] == -32011
    assert running.stop() == 0


def test_a_log_that_is_removed_is_noticed_and_what_follows_is_not_lost(hearthd) -> None:
    running = hearthd().start()
    peer = running.peer()
    session = peer.open()
    peer.run(session, "gpio.set", line=18, value=1)
    running.audit.unlink()

    def on_record_again() -> bool:
        assert peer.run(session, "gpio.set", line=18, value=0)["status"] == "SUCCESS"
        return running.audit.exists()

    running.until(on_record_again)
    peer.run(session, "gpio.set", line=18, value=0)
    assert "removed by another program" in peer.health()["audit"]["warning"]
    assert running.stop() == 0
    records = running.records()
    assert "daemon.stop" in [record["event"] for record in records]
    # The chain goes on where the lost file ended, so that the loss shows.
    assert records[0]["seq"] > 1
    assert records[0]["reason"] == "removed"
    assert running.said.count("removed by another program") == 1, "the operator is told, once"


def test_a_log_in_a_directory_that_vanishes_does_not_take_the_daemon_with_it(hearthd, tmp_path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    running = hearthd()
    text = running.config.read_text().replace(str(running.audit), str(logs / "audit.log"))
    running.config.write_text(text)
    running.start()
    peer = running.peer()
    session = peer.open()
    logs.rename(tmp_path / "elsewhere")
    for value in (0, 1) * 30:
        answer = peer.call("task.submit", submission(session, ("gpio.set", {"line": 18, "value": value})))
        assert "result" in answer or answer["error"]["code"] == -32011
    assert peer.run(session, "gpio.get", line=18)["status"] == "SUCCESS"
    assert running.stop() == 0
    assert verify([tmp_path / "elsewhere" / "audit.log"]).ok
