"""Make a vintage: one of each file that outlives a run, as the hearth of this tree writes it.

    PYTHONPATH=tests python tests/vintages/make.py tests/vintages/0.2 [NAME…]

Without names it makes all. A file of a vintage is made once, by the release that it is named after, and never changed.
Nothing in it comes from the machine that made it: the board is simulated, and paths of its temporary directory or names
of its host make the script fail. The audit key is as public as this repository: sign nothing else with it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from support.hearthd import Hearthd, eventually
from support.model_server import ModelServer, proposes, reads, says

from hearth.fleet.order_store import FleetOrder, OrderStore

HERE = Path(__file__).parent
BOARD = HERE / "board.toml"
CONFIG = f'[board]\nprofile = "{BOARD}"\n[card]\n'
HEARTH = Path(sys.executable).parent / "hearth"
SURVEY = {
    "capability": "bench-climate-survey",
    "caller_id": "harness-alpha-001",
    "intent": "survey the bench",
    "inputs": {"samples": 2, "interval_s": 0},
}
MESSAGE_ID = "0b6f3f0e-5a57-4d3c-9d8e-7f0f3c0d2a11"
KEYED = {"intent": "light the lamp", "steps": [{"tool": "gpio.set", "args": {"line": "LAMP", "value": 1}}]}
REASON = "the belt has come off"
RECORDS = 300
"""Records before the end of the first run: the tree's file has a hash for each 256 of them."""


def survey(message_id: str = MESSAGE_ID) -> bytes:
    """A job of HCP, as one line."""
    document = {
        "hcp_version": "1.0",
        "message_id": message_id,
        "timestamp": "2026-04-19T22:48:01.000Z",
        "session_id": None,
        "type": "task_submit",
        "payload": SURVEY,
    }
    return json.dumps(document).encode() + b"\n"


def run_job(daemon: Hearthd) -> list[bytes]:
    """Submit the job, and return all lines that answer it."""
    caller, lines = daemon.peer(), []
    caller.send(survey())
    while not lines or b"final_state" not in lines[-1]:
        lines.append(caller.raw())
        assert lines[-1], lines
    return lines


def submit(peer, session: str) -> str:
    """Submit the task with the key, and return its id."""
    task = {**KEYED, "idempotency_key": "the lamp"}
    return str(peer.call("task.submit", {"session_id": session, "task": task})["result"]["task_id"])


def make_daemon(place: Path) -> Path:
    """Two runs of a daemon: one that ends in order, and one that is killed while it is halted and drives outputs."""
    directory = place / "daemon"
    directory.mkdir()
    daemon = Hearthd(directory, CONFIG, audit="checkpoint_every = 100\nrotate_bytes = 24_000")
    try:
        daemon.start()
        peer = daemon.peer()
        while len(daemon.records()) < RECORDS:
            peer.call("session.close", {"session_id": peer.open()})
        (directory / "job.jsonl").write_bytes(b"".join(run_job(daemon)))
        daemon.hang_up()
        assert daemon.stop() == 0
        daemon.start()
        peer = daemon.peer()
        session = peer.open()
        peer.wait(session, submit(peer, session))
        peer.run(session, "gpio.set", line="PUMP", value=1)
        peer.call("halt", {"session_id": session, "reason": REASON})
        daemon.kill()
    finally:
        daemon.end()
    for name in ("hearth.toml", "hearth.sock", "audit.log.reserve"):
        (directory / name).unlink(missing_ok=True)
    return directory


def make_levels(place: Path) -> Path:
    """The outputs file of a daemon that is killed while a servo is away from its safe angle."""
    directory, made = place / "run", place / "levels"
    for one in (directory, made):
        one.mkdir()
    daemon = Hearthd(directory, '[board]\nprofile = "sim"\n')
    try:
        daemon.start()
        peer = daemon.peer()
        peer.run(peer.open(), "servo.move", servo="ARM", angle=120)
        outputs = Path(f"{daemon.audit}.outputs")
        eventually(lambda: b"[2,120" in outputs.read_bytes(), "the angle of the servo")
        daemon.kill()
    finally:
        daemon.end()
    shutil.copy(outputs, made)
    return made


def make_witness(place: Path) -> Path:
    """The memory of a witness of a daemon's log, and the witness's key."""
    directory, made = place / "run", place / "witness"
    for one in (directory, made):
        one.mkdir()
    daemon = Hearthd(directory, CONFIG)
    try:
        daemon.start()
        daemon.recorded(event="audit.checkpoint")
        hearth = [HEARTH, "--socket", daemon.socket]
        key = directory / "audit.log.key.pub"
        subprocess.run([*hearth, "audit", "witness", "--state", made / "state", "--key", key], check=True, timeout=50)
        shutil.copy(key, made / "log.pub")
    finally:
        daemon.end()
    (made / "state.lock").unlink()
    return made


def make_orders(place: Path) -> Path:
    """The order store of a caller of a fleet: an order with an answer and an event, one that was sent, a new one."""
    directory = place / "orders"
    directory.mkdir()
    store = OrderStore(directory / "caller.sqlite3")
    names = ("answered", "sent", "new")
    store.add(FleetOrder(message_id=name, device="a", document=SURVEY, not_after=None, made_at=1.0) for name in names)
    store.mark_published(["answered", "sent"])
    accepted = {"type": "task_accepted", "session_id": "s", "payload": {"in_reply_to": "answered"}}
    event = {"event_type": "state_changed", "sequence": 1, "data": {"to_state": "RUNNING"}}
    store.take([(accepted, "a"), ({"type": "event", "session_id": "s", "payload": event}, "a")])
    store.close()
    return directory


def make_transcript(place: Path) -> Path:
    """A transcript of `hearth ask` on the simulated board."""
    directory, made = place / "run", place / "ask"
    for one in (directory, made):
        one.mkdir()
    light = ("gpio.set", {"line": "LED", "value": 1})
    script = [reads("gpio.get", line="BUTTON"), proposes("light the LED", light), says("The LED is on.")]
    daemon = Hearthd(directory, '[board]\nprofile = "sim"\n')
    try:
        daemon.start()
        with ModelServer(*script) as server:
            config = directory / "ask.toml"
            config.write_text(f'[ask]\napi = "openai"\nbase_url = "{server.openai}"\nmodel = "small"\n')
            ask = [HEARTH, "--socket", daemon.socket, "ask", "--config", config, "--yes-up-to", "2"]
            env = {**os.environ, "XDG_STATE_HOME": str(directory)}
            ask += ["--transcript", made / "transcript.jsonl", "light", "it"]
            subprocess.run(ask, check=True, env=env, timeout=50)
    finally:
        daemon.end()
    return made


MAKERS = {
    "daemon": make_daemon,
    "levels": make_levels,
    "witness": make_witness,
    "orders": make_orders,
    "ask": make_transcript,
}


def main(target: Path, *names: str) -> None:
    """Make the files of these names in a directory that does not have them yet."""
    foreign = [socket.gethostname().encode(), os.fsencode(HERE.parent.parent)]
    for name in names or MAKERS:
        with tempfile.TemporaryDirectory(prefix="vintage-") as place:
            made = MAKERS[name](Path(place))
            for file in made.rglob("*"):
                content = file.read_bytes() if file.is_file() else b""
                found = [word for word in (*foreign, place.encode()) if word in content]
                assert not found, f"{file.name} has {found} in it"
                file.chmod(0o755 if file.is_dir() else 0o644)
            shutil.copytree(made, target / name, ignore=shutil.ignore_patterns("hearth.sock*"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
