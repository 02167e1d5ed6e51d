"""A real hearthd whose file system is full, goes read-only, or has its log taken away (design §7).

What a full disk does to one request is in test_audit_trouble; here file systems are ruined that only the daemon sees,
and somebody else's hands are at the log while clients go on.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest
from support.hearthd import Hearthd, submission
from support.mounts import Image, beside, mounted, need_root, seen_by

from hearth.audit.record import args_hash
from hearth.audit.verify import verify

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

REFUSED = -32011


def on(running: Hearthd, directory) -> None:
    """Have the daemon keep its log in this directory, which is its own file system."""
    running.audit = directory / "audit.log"
    text = running.config.read_text()
    running.config.write_text(text.replace(str(running.directory / "audit.log"), str(running.audit)))


def drive(peer, session, value):
    """Submit one effect; True if it was done, False if it was refused before anything happened."""
    answer = peer.call("task.submit", submission(session, ("gpio.set", {"line": 18, "value": value})))
    if "error" in answer:
        assert answer["error"]["code"] == REFUSED, answer
        assert answer["error"]["data"]["effect"] == "none"
        return False
    done = peer.wait(session, answer["result"]["task_id"])
    if done["status"] != "SUCCESS":
        assert done["steps"][0]["error_code"] == REFUSED, done
    return done["status"] == "SUCCESS"


def until_driven(running, peer, session, value):
    running.until(lambda: drive(peer, session, value))


@pytest.mark.parametrize("durability", ["fsync"])
def test_a_disk_that_fills_and_is_freed_again_and_again_costs_no_record_of_anything_done(
    hearthd, tmp_path, durability
) -> None:
    need_root()
    disk = tmp_path / "disk"
    disk.mkdir()
    running = hearthd()
    on(running, disk)
    running.config.write_text(running.config.read_text().replace("[audit]", f'[audit]\ndurability = "{durability}"'))
    running.start(prefix=mounted("-t", "tmpfs", "-o", "size=256k,mode=0755", "tmpfs", str(disk)))
    peer = running.peer()
    session = peer.open()
    assert not (disk / "audit.log").exists(), "nobody but the daemon sees it"
    done = 0
    for value in (1, 0, 1):
        until_driven(running, peer, session, value)
        done += 1
        ballast = seen_by(running.pid, disk / "ballast")
        with ballast.open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        # What is left of the last page is used up by the log itself.
        running.until(lambda: not peer.health()["audit"]["ok"])
        assert not drive(peer, session, value)
        assert peer.run(session, "gpio.get", line=18)["result"]["value"] == value
        ballast.unlink()
        running.until(lambda: peer.health()["ok"])
    shutil.copytree(seen_by(running.pid, disk), tmp_path / "kept")
    assert running.stop() == 0
    report = verify([tmp_path / "kept" / "audit.log"])
    assert report.ok, report.first_bad
    running.audit = tmp_path / "kept" / "audit.log"
    assert len(running.records(event="task.finish", status="SUCCESS")) >= done
    hashes = [r["args_hash"] for r in running.records(event="task.step.finish", status="SUCCESS", tool="gpio.set")]
    assert hashes == [args_hash({"line": 18, "value": value}) for value in (1, 0, 1)]
    assert len(running.records(event="audit.resume")) >= 3


def fill(disk):
    """Take all the room that there is."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.parametrize(("kind", "durability"), [("tmpfs", "os"), ("ext4", "os"), ("ext4", "fsync")])
def test_on_a_full_disk_the_end_of_what_runs_is_on_record_and_nothing_is_disclosed(
    hearthd, tmp_path, kind, durability
) -> None:
    need_root()
    disk = tmp_path / "disk"
    disk.mkdir()
    secret = tmp_path / "files" / "secret"
    secret.parent.mkdir()
    secret.write_text("not for everybody")
    image = Image(tmp_path / "image") if kind == "ext4" else None
    mount = ["-t", "tmpfs", "-o", "size=6m,mode=0755", "tmpfs"] if image is None else [image.device]
    running = hearthd(f'[files]\nread = ["{secret.parent}"]\n')
    on(running, disk)
    running.config.write_text(running.config.read_text().replace("[audit]", f'[audit]\ndurability = "{durability}"'))
    opened = None
    try:
        running.start(prefix=mounted(*mount, str(disk)))
        opened = os.open(seen_by(running.pid, disk), os.O_RDONLY | os.O_DIRECTORY)
        place = tmp_path / "place"
        place.symlink_to(f"/proc/{os.getpid()}/fd/{opened}")
        running.audit = place / "audit.log"
        assert (place / "audit.log.reserve").stat().st_blocks * 512 >= 1 << 20
        peer = running.peer()
        session = peer.open()
        assert drive(peer, session, 1)
        steps = [("gpio.watch", {"line": 4, "timeout_ms": 60_000}), ("file.read", {"path": str(secret)})]
        task = peer.call("task.submit", submission(session, *steps))["result"]["task_id"]
        running.recorded(event="task.step.start", task_id=task)
        running.recorded(event="audit.checkpoint")
        fill(place)
        look = submission(session, ("gpio.get", {"line": 18}))
        running.until(lambda: "result" in peer.call("task.submit", look) and not peer.health()["audit"]["ok"])

        for tool in ("file.read", "file.list", "file.stat"):
            refused = peer.call("task.submit", submission(session, (tool, {"path": str(secret)})))["error"]
            assert (refused["code"], refused["data"]["effect"]) == (REFUSED, "none")
        assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 1, "other reads go on"
        peer.call("task.cancel", {"session_id": session, "task_id": task})
        # It is on the disk while that is full, and not only in memory.
        ended = running.recorded(event="task.finish", task_id=task)
        assert (ended["status"], ended["late"]) == ("CANCELLED", True)
        assert not (place / "audit.log.reserve").exists()
        assert peer.health()["audit"]["ok"] is False, "the reserve is for no more than that"
        peer.call("session.close", {"session_id": session})
        running.hang_up()
        assert running.stop() == 0
        shutil.copytree(place, tmp_path / "kept", ignore=shutil.ignore_patterns("ballast", "lost+found"))
    finally:
        running.end()
        if opened is not None:
            os.close(opened)
        if image is not None:
            image.close()
    running.audit = tmp_path / "kept" / "audit.log"
    assert running.records(event="session.close")[0]["safe"], "what became of its output is told"
    events = [record["event"] for record in running.records()]
    assert [event for event in events if event != "audit.checkpoint"][-2:] == ["daemon.stop", "audit.gap"]
    assert len(running.records(event="audit.reserve")) == 1
    gap = running.records(event="audit.gap")[0]
    assert gap["lost"]["effects"] == 0
    assert gap["lost"]["reads"] > 0
    (refusals,) = running.records(event="audit.refusals")
    assert (refusals["count"], refusals["codes"]) == (3, {str(REFUSED): 3})
    report = verify([running.audit], running.audit.with_name("audit.log.key.pub"))
    assert report.ok, report.first_bad
    assert (report.lost, report.uncounted, report.unsigned) == ({"reads": gap["lost"]["reads"]}, 0, 0)


@pytest.mark.proof
def test_a_file_system_that_goes_read_only_stops_effects_and_after_repair_the_next_daemon_goes_on(
    hearthd, tmp_path
) -> None:
    need_root()
    disk = tmp_path / "disk"
    disk.mkdir()
    image = Image(tmp_path / "image")
    try:
        running = hearthd()
        on(running, disk)
        # With "os" what the kernel had not written yet would be lost, as by a power cut.
        running.config.write_text(running.config.read_text().replace("[audit]", '[audit]\ndurability = "fsync"'))
        mount = mounted("-o", "errors=remount-ro", image.device, str(disk))
        running.start(prefix=mount)
        peer = running.peer()
        session = peer.open()
        assert drive(peer, session, 1)
        image.fail()

        assert not drive(peer, session, 0)
        assert peer.run(session, "gpio.get", line=18)["result"]["value"] == 1, "reads go on"
        assert peer.health()["ok"] is False
        # The first call that fails may say "Input/output error": it is what makes the kernel turn it read-only.
        running.until(lambda: "Read-only file system" in peer.health()["audit"]["reason"])
        running.hang_up()
        assert running.stop() == 0, "it ends in its time"
        assert running.said.count("nothing with an effect is done") == 1
        assert "Traceback" not in running.said

        image.repair()
        running.start(prefix=mount)
        assert "the last run ended without daemon.stop" in running.said
        peer = running.peer()
        session = peer.open()
        assert drive(peer, session, 0)
        shutil.copytree(seen_by(running.pid, disk), tmp_path / "kept", ignore=shutil.ignore_patterns("lost+found"))
        running.hang_up()
        assert running.stop() == 0
    finally:
        image.close()
    running.audit = tmp_path / "kept" / "audit.log"
    report = verify([running.audit])
    assert report.ok, report.first_bad
    starts = [r["args_hash"] for r in running.records(event="task.step.start", tool="gpio.set")]
    assert starts == [args_hash({"line": 18, "value": value}) for value in (1, 0)]


def test_while_the_logs_directory_is_read_only_nothing_new_is_driven_and_afterwards_it_goes_on(
    hearthd, tmp_path
) -> None:
    need_root()
    disk = tmp_path / "disk"
    disk.mkdir()
    running = hearthd()
    on(running, disk)
    running.config.write_text(running.config.read_text().replace("[audit]", "[audit]\nrotate_bytes = 6000"))
    running.start(prefix=mounted("-t", "tmpfs", "-o", "size=1m,mode=0755", "tmpfs", str(disk)))
    peer = running.peer()
    session = peer.open()
    assert drive(peer, session, 1)
    # The kernel does not let a mount become read-only in which a file is being written: so a read-only one covers it.
    beside(running.pid, "mount", "--bind", str(disk), str(disk))
    beside(running.pid, "mount", "-o", "remount,bind,ro", str(disk))
    try:
        step = peer.run(session, "gpio.set", line=19, value=1)
        assert (step["status"], step["error_code"], step["error_data"]["effect"]) == ("FAILED", REFUSED, "none")
        assert "Read-only file system" in step["error_data"]["reason"]
        # A line that is on record as driven may be driven on; the log is full at some time, and goes on in its file.
        for value in (0, 1) * 8:
            assert drive(peer, session, value)
        assert "cannot be rotated" in peer.health()["audit"]["warning"]
    finally:
        beside(running.pid, "umount", str(disk))
    running.until(lambda: peer.run(session, "gpio.set", line=19, value=1)["status"] == "SUCCESS")
    running.until(lambda: drive(peer, session, 0) and len(list(seen_by(running.pid, disk).glob("audit.log.0*"))))
    shutil.copytree(seen_by(running.pid, disk), tmp_path / "kept")
    assert running.stop() == 0
    report = verify([tmp_path / "kept" / "audit.log"])
    assert report.ok, report.first_bad


def unlink(log):
    log.unlink()


def replace(log):
    other = log.with_name("other")
    other.write_text("somebody else's\n")
    other.rename(log)


def empty(log):
    os.truncate(log, 0)


def halve(log):
    os.truncate(log, log.stat().st_size // 2)


def scribble(log):
    with log.open("ab") as file:
        file.write(b"not a record\n")


HANDS = {
    unlink: "removed",
    replace: "replaced",
    empty: "changed",
    halve: "changed",
    scribble: "changed",
}


@pytest.mark.proof
@pytest.mark.parametrize(("durability", "hand"), [*(("os", hand) for hand in HANDS), ("fsync", halve)])
def test_whatever_is_done_to_the_log_the_next_records_are_in_a_chain_that_tells_of_it(
    hearthd, durability, hand
) -> None:
    running = hearthd()
    running.config.write_text(running.config.read_text().replace("[audit]", f'[audit]\ndurability = "{durability}"'))
    running.start()
    peer = running.peer()
    session = peer.open()
    assert drive(peer, session, 1)
    hand(running.audit)
    value = 0

    def noticed():
        nonlocal value
        value ^= 1
        assert drive(peer, session, value), "a log that can be written is no reason to refuse"
        return peer.health()["audit"].get("warning")

    running.until(noticed)
    assert drive(peer, session, 0)
    warning = peer.health()["audit"]["warning"]
    assert f"{HANDS[hand]} by another program" in warning
    running.hang_up()
    assert running.stop() == 0
    assert running.said.count("by another program") == 1, "the operator is told, once"

    # The file that is there now begins with what happened, is one chain, and has all that was done since.
    records = [json.loads(line) for line in running.audit.read_bytes().splitlines()]
    assert (records[0]["event"], records[0]["reason"]) == ("audit.rotate", HANDS[hand])
    alone = running.audit.with_name("alone.log")
    shutil.copy(running.audit, alone)
    report = verify([alone])
    assert report.ok, report.first_bad
    assert report.first_seq == records[0]["seq"] > 1
    assert "daemon.stop" in [record["event"] for record in records]
    assert [r for r in records if r["event"] == "task.step.start" and r["tool"] == "gpio.set"]
