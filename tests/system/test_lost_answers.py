"""Answers that are lost at every point of a submission, and daemons that are killed: a repeat acts once.

The witness is a file to which each submission appends one byte: what happened is seen there, whatever hearth says.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from uuid import UUID

import pytest
from support.amounts import amount
from support.hearthd import BOUND
from support.http import envelope, message, modern
from support.mcp import RawMcp

from hearth.mcp.names import META_TASK, PLAN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from support.hearthd import Hearthd, Peer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

POINTS = ("before it is whole", "before the answer", "after the answer", "after the end")
"""The point of a submission at which its connection is lost."""
EACH = 20
"""Submissions in one life of a daemon."""
MANY = amount("HEARTH_ANSWERS", 100, least=20)
"""How many submissions each surface has in `make proof`; a thousand take some minutes."""
CUT_SHORT = ("not run again", "CANCELLED", "daemon_ended")
"""What a caller is told of a submission whose end is not known, or that its own end has cancelled: one of these."""


class End(NamedTuple):
    """What a caller is told of a submission at its end."""

    identity: str
    """The same for every repetition."""
    status: str
    told: str = ""
    """What was said of an end that is no success."""


def bytes_in(file: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


class Surface:
    """A way to submit: a caller's connections to the daemon, each for one submission."""

    CONFIG: ClassVar[str] = ""
    FILES: ClassVar[Mapping[str, str]] = {}

    def __init__(self, make: Callable[..., Hearthd], directory: Path) -> None:
        self.witness = directory / "witness"
        self.witness.mkdir()
        for name, text in self.FILES.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o600)
        more = '[limits]\nmax_sessions_per_principal = 1000\nsession_rate = "1000/s"\n'
        self.daemon = make(f'[files]\nwrite = ["{self.witness}"]\n{more}{self.CONFIG.format(directory=directory)}')

    def steps(self, number: int) -> list[dict[str, Any]]:
        line = {"tool": "gpio.set", "args": {"line": "LED", "value": number % 2}}
        append = {"tool": "file.write", "args": {"path": str(self.place(number)), "text": "x", "mode": "append"}}
        return [line, append]

    def place(self, number: int) -> Path:
        return self.witness / str(number)

    def acted(self, number: int) -> int:
        return bytes_in(self.place(number))

    def lose(self, number: int, point: str) -> None:
        """Submit over a connection of its own, which is lost at this point."""
        raise NotImplementedError

    def repeated(self, number: int) -> End:
        """Submit again, wherever that is, and twice; wait for the end."""
        raise NotImplementedError


class Hacp(Surface):
    def _task(self, number: int) -> dict[str, Any]:
        return {"intent": "toggle", "steps": self.steps(number), "idempotency_key": f"key {number}"}

    def lose(self, number: int, point: str) -> None:
        peer = self.daemon.peer()
        session = peer.open()
        if point == "before it is whole":
            peer.send(b'{"jsonrpc":"2.0","id":9,"method":"task.submit","params":{"session_id":"' + session.encode())
        else:
            peer.start("task.submit", {"session_id": session, "task": self._task(number), "subscribe": True})
        if point in ("after the answer", "after the end"):
            while "result" not in (said := peer.line()):
                assert "error" not in said, said
        if point == "after the end":
            while peer.line()["params"]["phase"] != "task_finish":
                pass
        self.daemon.hang_up()

    def repeated(self, number: int) -> End:
        peer = self.daemon.peer()
        session = peer.open()
        wanted = {"session_id": session, "task": self._task(number)}
        done = peer.wait(session, peer.call("task.submit", wanted)["result"]["task_id"])
        again = peer.call("task.submit", wanted)["result"]
        assert (again["task_id"], again["status"], again["repeated"]) == (done["task_id"], done["status"], True)
        self.daemon.hang_up()
        return End(done["task_id"], done["status"], done.get("error", ""))


class Mcp(Surface):
    """Over HTTP, in requests that need no session; the answer to a call is its end."""

    CONFIG: ClassVar[str] = '[http]\nlisten = "127.0.0.1:0"\n'

    def _connect(self) -> http.client.HTTPConnection:
        port = self.daemon.listening["http"].rpartition(":")[2]
        return http.client.HTTPConnection("127.0.0.1", int(port), timeout=BOUND)

    def _body(self, number: int) -> bytes:
        params = envelope(name=PLAN, arguments={"intent": "toggle", "steps": self.steps(number)})
        params["_meta"]["hearth/idempotency_key"] = f"key {number}"
        return message("tools/call", params)

    def _send(self, connection: http.client.HTTPConnection, body: bytes, *, whole: bool = True) -> None:
        connection.putrequest("POST", "/mcp")
        for name, value in {**modern("tools/call", PLAN), "Content_Length": len(body)}.items():
            connection.putheader(name.replace("_", "-"), str(value))
        connection.endheaders(body if whole else body[: len(body) // 2])

    def lose(self, number: int, point: str) -> None:
        connection = self._connect()
        self._send(connection, self._body(number), whole=point != "before it is whole")
        if point in ("after the answer", "after the end"):
            assert connection.getresponse().read()
        connection.close()

    def _called(self, number: int) -> dict[str, Any]:
        connection = self._connect()
        self._send(connection, self._body(number))
        said = connection.getresponse().read().decode()
        connection.close()
        events = [line[6:] for line in said.splitlines() if line.startswith("data: ")]
        answer: dict[str, Any] = json.loads(events[-1] if events else said)["result"]
        return answer

    def repeated(self, number: int) -> End:
        done, again = self._called(number), self._called(number)
        task = done["_meta"][META_TASK]
        assert again["_meta"][META_TASK] == task
        return End(task["task_id"], task["status"], done["content"][0]["text"])


TOGGLE = '''\
"""Toggles a line, and leaves a byte."""

from __future__ import annotations

from typing import Any

from hearth import Job, capability


@capability(
    "toggle", version="1.0.0", tools=["gpio.set", "file.write"], risk_ceiling="R3", concurrent_limit=100
)
async def toggle(job: Job, *, value: int, place: str) -> dict[str, Any]:
    """Toggles the LED."""
    await job.run("gpio.set", line="LED", value=value)
    await job.run("file.write", path=place, text="x", mode="append")
    return {"value": value}
'''


class Hcp(Surface):
    CONFIG: ClassVar[str] = (
        '[hcp]\ncapabilities = ["{directory}/toggle.py"]\nmax_jobs = 1000\nmax_jobs_per_principal = 1000\n'
    )
    FILES: ClassVar[Mapping[str, str]] = {"toggle.py": TOGGLE}

    def _document(self, number: int) -> bytes:
        inputs = {"value": number % 2, "place": str(self.place(number))}
        document = {
            "hcp_version": "1.0",
            "message_id": str(UUID(int=number, version=4)),
            "timestamp": "2026-04-19T22:48:01.000Z",
            "session_id": None,
            "type": "task_submit",
            "payload": {"capability": "toggle", "caller_id": "tests", "intent": "toggle", "inputs": inputs},
        }
        return json.dumps(document).encode() + b"\n"

    def _until_closed(self, peer: Peer) -> list[dict[str, Any]]:
        lines = [peer.line()]
        assert lines[0]["type"] == "task_accepted", lines[0]["payload"]
        while "final_state" not in lines[-1]["payload"].get("data", {}):
            lines.append(peer.line())
        return lines

    def lose(self, number: int, point: str) -> None:
        peer, document = self.daemon.peer(), self._document(number)
        peer.send(document[: len(document) // 2] if point == "before it is whole" else document)
        if point == "after the answer":
            assert peer.line()["type"] == "task_accepted"
        elif point == "after the end":
            self._until_closed(peer)
        self.daemon.hang_up()

    def repeated(self, number: int) -> End:
        messages = []
        for _ in range(2):
            peer = self.daemon.peer()
            peer.send(self._document(number))
            messages.append(self._until_closed(peer))
            self.daemon.hang_up()
        first, again = messages
        assert again == first
        state = first[-1]["payload"]["data"]["final_state"]
        failed = [one["payload"] for one in first if one["type"] == "task_failed"]
        told = json.dumps(failed) if failed else ""
        return End(first[0]["session_id"], "SUCCESS" if state == "COMPLETED" else state, told)


def judge(surface: Surface, number: int, end: End) -> bool:
    """Acted once; where it was cut short, at most once, and the caller is told so: then return True."""
    acted = surface.acted(number)
    if end.status == "SUCCESS":
        assert acted == 1
        return False
    assert acted <= 1
    assert any(words in end.told for words in CUT_SHORT), end
    return True


def play(surface: Surface, lives: int, audit: str = "") -> None:
    rng = random.Random(11)
    daemon = surface.daemon
    daemon.config.write_text(daemon.config.read_text().replace("[audit]\n", f"[audit]\n{audit}"))
    ends: dict[int, End] = {}
    cut_short = 0
    for life in range(lives):
        numbers = range(life * EACH, (life + 1) * EACH)
        daemon.start()
        for number in numbers:
            surface.lose(number, POINTS[(number + life) % len(POINTS)])
            if rng.random() < 0.3:
                ends[number] = surface.repeated(number)
        # The last one is lost just before the kill, at any point of it.
        daemon.kill()
        daemon.start()
        for number in numbers:
            end = surface.repeated(number)
            assert ends.setdefault(number, end)[:2] == end[:2]
            cut_short += judge(surface, number, end)
        daemon.kill()
    # A third life: the answers are still the same, those of the first life too.
    daemon.start()
    for number, end in ends.items():
        again = surface.repeated(number)
        assert again[:2] == end[:2], (again, end)
        assert surface.acted(number) <= 1
    daemon.stop()
    print(f"{len(ends)} submissions, {cut_short} of them cut short")
    # Only what was under way at the kill; over MCP, the end of a caller's link also cancels its call.
    assert cut_short <= (len(ends) // len(POINTS) if isinstance(surface, Mcp) else lives)


@pytest.mark.spec("design 8: idempotency_key")
@pytest.mark.proof
@pytest.mark.parametrize("surface", [Hacp, Mcp, Hcp])
def test_whatever_answer_is_lost_and_whenever_the_daemon_is_killed_a_repeated_submission_acts_once(
    hearthd, tmp_path, surface
):
    play(surface(hearthd, tmp_path), 3)


@pytest.mark.proof
@pytest.mark.parametrize(("surface", "durability"), [(Hacp, "os"), (Hacp, "fsync"), (Mcp, "os"), (Hcp, "os")])
def test_many_lost_answers_act_once(hearthd, tmp_path, surface, durability):
    play(surface(hearthd, tmp_path), MANY // EACH, f'durability = "{durability}"\n')


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
