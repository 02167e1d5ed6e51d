"""A real hearthd against one who has it keep as much as it can: it grows by what may be kept, and serves the others."""

from __future__ import annotations

import contextlib
import os
import select
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from support.dialing import web_socket
from support.hearthd import Peer, request, submission

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.hearthd import Hearthd

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("unmeasured")]

BUDGET = 16
"""MiB for one principal in these daemons."""
GROWTH = 3 * BUDGET
"""MiB by which such a daemon may grow: what may be kept, what is under way, and what allocators leave between."""
MOST = 6 * BUDGET
"""MiB that are sent before somebody who is not refused gives up."""
QUEUE_FULL = -32005
TOKEN = "the other one"


class Attacker:
    """One principal on as many connections as it likes; it stops when it is refused."""

    def __init__(self, daemon: Hearthd) -> None:
        self.daemon = daemon
        self.sent = 0
        self.refused: dict[str, Any] | None = None
        self._ids = count(1)
        self.peer = daemon.peer()

    @property
    def goes_on(self) -> bool:
        """Whether it has neither been refused nor sent enough to be sure that it will not be."""
        return self.refused is None and self.sent < MOST << 20

    def ask(self, peer: Peer, method: str, params: Any) -> Any:
        """Ask, and look at the answer."""
        line = request(f"a{next(self._ids)}", method, params)
        self.sent += len(line)
        answer = peer.call(method, params)
        if "error" in answer and answer["error"]["code"] == QUEUE_FULL and "limit" in answer["error"]["data"]:
            self.refused = answer["error"]
        return answer

    def throw(self, peer: Peer, method: str, params: Any) -> None:
        """Ask, and never read what comes."""
        line = request(f"a{next(self._ids)}", method, params)
        self.sent += len(line)
        peer.send(line)

    def submit(self, session: str, tool: str, args: dict[str, Any], **task: Any) -> Any:
        params = submission(session, (tool, args))
        params["task"].update(task)
        return self.ask(self.peer, "task.submit", params)


def documents(attack: Attacker) -> None:
    """Tasks that wait, with arguments that take many times their length as Python values."""
    junk = [[]] * 15_000
    while attack.goes_on:
        session = attack.peer.open(on_disconnect="close")
        for _ in range(60):
            attack.submit(session, "gpio.watch", {"line": 27, "timeout_ms": 60_000, "junk": junk})
            if not attack.goes_on:
                return


def tasks(attack: Attacker) -> None:
    """Many small tasks that wait, with as long an intent as there may be."""
    while attack.goes_on:
        answer = attack.ask(attack.peer, "session.open", {"client_name": "n" * 256, "on_disconnect": "close"})
        for _ in range(64 if "result" in answer else 0):
            session = answer["result"]["session_id"]
            attack.submit(session, "gpio.watch", {"line": 27, "timeout_ms": 60_000}, intent="\N{GRINNING FACE}" * 4000)
            if not attack.goes_on:
                return


def keys(attack: Attacker) -> None:
    """Idempotency keys, each used once."""
    session = attack.peer.open(on_disconnect="close")
    numbers = count()
    while attack.goes_on:
        attack.submit(session, "gpio.get", {"line": 27}, idempotency_key=f"{next(numbers):06}" + "k" * 250)


def subscriptions(attack: Attacker) -> None:
    """Followers that do not read, while tasks with long results come and go."""
    session = attack.peer.open(on_disconnect="close")
    for _ in range(100):
        deaf = attack.daemon.peer()
        attack.throw(deaf, "task.events.subscribe", {"session_id": session})
    path = str(attack.daemon.directory / "data" / "large")
    for _ in range(400):
        task = attack.submit(session, "file.read", {"path": path})
        if "result" not in task:
            break
        done = attack.peer.wait(session, task["result"]["task_id"])
        if done["steps"][0].get("error_code") == QUEUE_FULL:
            attack.refused = {"data": done["steps"][0]["error_data"]}
            break


def answers(attack: Attacker) -> None:
    """Long answers that nobody reads."""
    session = attack.peer.open(on_disconnect="close")
    path = str(attack.daemon.directory / "data" / "large")
    task = attack.submit(session, "file.read", {"path": path})["result"]["task_id"]
    attack.peer.wait(session, task)
    for _ in range(150):
        deaf = attack.daemon.peer()
        for _ in range(10):
            attack.throw(deaf, "task.get", {"session_id": session, "task_id": task})
        attack.ask(attack.peer, "task.get", {"session_id": session, "task_id": task})


def halves(attack: Attacker) -> None:
    """Documents that never come whole."""
    while attack.goes_on:
        half = attack.daemon.peer()
        attack.sent += 900_000
        with contextlib.suppress(BrokenPipeError):
            half.send(b'{"x":"' + b"x" * 900_000)
        answer = half.line() if select.select([half.socket], [], [], 0)[0] else None
        if answer is not None:
            attack.refused = answer["error"]


@pytest.fixture
def attacked(hearthd: Callable[..., Hearthd], tmp_path: Path) -> Hearthd:
    """A daemon in which one principal may keep BUDGET, and another is there, which answers no ping meanwhile."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "large").write_bytes(os.urandom(250_000))
    config = (
        f"[limits]\nmax_retained_bytes = {BUDGET << 20}\nmax_outstanding = 1000\n"
        f'[files]\nread = ["{tmp_path}/data"]\n[websocket]\nlisten = "127.0.0.1:0"\nping_interval_s = 600\n'
        f'[[policy]]\nname = "other"\nmatch = {{ token_sha256 = "{sha256(TOKEN.encode()).hexdigest()}" }}\n'
        f'[[policy]]\nname = "us"\nmatch = {{ uid = {os.geteuid()} }}\nrate = {{ "gpio.get" = "100000/s" }}\n'
    )
    return hearthd(config).start()


@pytest.mark.spec("12", "MUST", "A conformant server MUST: Bound resource use.")
@pytest.mark.parametrize("attack", [documents, tasks, keys, subscriptions, answers, halves])
def test_a_principal_that_has_it_keep_too_much_is_told_so_and_it_grows_by_no_more_than_may_be_kept(
    attacked: Hearthd, attack: Callable[[Attacker], None]
) -> None:
    other = attacked.peer(web_socket(attacked.listening["ws"], token=TOKEN))
    session = other.open()
    warm = attacked.peer()
    warm.run(warm.open(), "gpio.get", line=27)
    before = attacked.memory()
    attacker = Attacker(attacked)
    attack(attacker)
    grown = attacked.memory() - before
    print(f"{attack.__name__}: {attacker.sent / 2**20:.1f} MiB sent, grown by {grown} MiB")
    assert attacker.refused is not None, "it was never refused"
    assert attacker.refused["data"]["limit"] == "max_retained_bytes"
    assert attacker.refused["data"]["max_retained_bytes"] == BUDGET << 20
    assert grown <= GROWTH
    # Whoever else is there notices nothing, and another can come.
    assert other.run(session, "gpio.set", line=17, value=1)["status"] == "SUCCESS"
    another = attacked.peer(web_socket(attacked.listening["ws"], token=TOKEN))
    assert another.run(another.open(), "gpio.get", line=17)["status"] == "SUCCESS"
    # And when the attacker has gone, what it kept has gone too; but keys are kept for days, in half of its quota.
    kept = BUDGET // 2 if attack is keys else 0
    for peer in attacked.peers:
        if peer not in (other, another):
            peer.close()
    attacked.peers[:] = [other, another]
    attacked.until(lambda: other.health()["memory"]["retained_bytes"] < (kept + 1) << 20)
    back = attacked.peer()
    assert back.run(back.open(), "gpio.set", line=18, value=1)["status"] == "SUCCESS"
