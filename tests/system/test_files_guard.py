"""File tools and the path guard over the wire: no way out, whatever a path says and whoever moves things."""

from __future__ import annotations

import base64
import contextlib
import os
import threading

import pytest
from support.hearthd import Hearthd, submission

pytestmark = pytest.mark.slow

SECRET = b"the secret"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A daemon that may read beneath `in` and write beneath `in/rw`, with a secret beside them."""
    root = tmp_path_factory.mktemp("guarded")
    inside = root / "in"
    (inside / "rw").mkdir(parents=True)
    (inside / "a").write_bytes(b"allowed")
    (root / "secret").write_bytes(SECRET)
    (root / "inside").mkdir()
    (root / "inside" / "x").write_bytes(SECRET)
    config = f'[files]\nread = ["{inside}"]\nwrite = ["{inside}/rw"]\n'
    config += "[limits]\nmax_sessions_per_principal = 1000\n"
    running = Hearthd(root, config + '[[policy]]\nname = "x"\nmatch = { any = true }\nmax_risk = 3\n').start()
    yield running, inside
    for peer in running.peers:
        peer.close()
    assert running.stop() == 0


@pytest.fixture
def session(guarded):
    running, inside = guarded
    peer = running.peer()
    return peer, peer.open(), inside


def outcome(peer, session_id: str, tool: str, **args):
    """("refused", error) at submit, ("failed", step) at use, or ("done", step)."""
    answer = peer.call("task.submit", submission(session_id, (tool, args)))
    if "error" in answer:
        return "refused", answer["error"]
    step = peer.wait(session_id, answer["result"]["task_id"])["steps"][0]
    return ("done" if step["status"] == "SUCCESS" else "failed"), step


def code(kind: str, said) -> int:
    return said["code"] if kind == "refused" else said["error_code"]


def test_what_is_allowed_is_done(session) -> None:
    peer, session_id, inside = session
    kind, step = outcome(peer, session_id, "file.read", path=str(inside / "a"))
    assert (kind, base64.b64decode(step["result"]["data"])) == ("done", b"allowed")
    for path in (inside / "rw" / "new", f"{inside}/rw//./new"):
        kind, _ = outcome(peer, session_id, "file.write", path=str(path), data=b64(b"hello"))
        assert kind == "done"
    assert (inside / "rw" / "new").read_bytes() == b"hello"
    assert outcome(peer, session_id, "file.delete", path=str(inside / "rw" / "new"))[0] == "done"


WAYS_OUT = {
    "another place": "{root}/secret",
    "up and down": "{inside}/../secret",
    "up through what is not there": "{inside}/none/../../secret",
    "a name that begins alike": "{root}/inside/x",
    "the root": "/etc/passwd",
    "/proc/self/root": "/proc/self/root{root}/secret",
    "/proc/self/cwd": "/proc/self/cwd/../secret",
    "relative": "secret",
    "empty components": "{inside}/.//..//secret",
    "a NUL": "{inside}/a\0/../../secret",
    "very long": "{inside}/" + "../" * 2000 + "etc/passwd",
    "not a path at all": "\0",
}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("tool", ["file.read", "file.list", "file.stat", "file.write", "file.delete"])
def test_no_path_leads_out(session, way: str, tool: str) -> None:
    peer, session_id, inside = session
    path = WAYS_OUT[way].format(root=inside.parent, inside=inside)
    more = {"data": b64(b"overwritten")} if tool == "file.write" else {}
    kind, said = outcome(peer, session_id, tool, path=path, **more)
    if "not there" in way and kind == "failed":
        assert said["error_data"]["errno"] == "ENOENT"
    else:
        assert kind == "refused"
        assert code(kind, said) in (-32003, -32602)
    assert SECRET.decode() not in str(said)
    assert (inside.parent / "secret").read_bytes() == SECRET


@pytest.mark.parametrize("target", ["{root}/secret", "../secret", "/proc/self/root{root}/secret", "../in/../secret"])
@pytest.mark.parametrize("tool", ["file.read", "file.stat", "file.write"])
def test_a_symlink_out_is_refused(session, tool: str, target: str) -> None:
    peer, session_id, inside = session
    link = inside / "rw" / "link"
    link.symlink_to(target.replace("../", "../../").format(root=inside.parent))
    try:
        more = {"data": b64(b"overwritten")} if tool == "file.write" else {}
        kind, said = outcome(peer, session_id, tool, path=str(link), **more)
        if tool == "file.write" and kind == "done":
            # The link itself may be replaced, never what it leads to.
            assert link.read_bytes() == b"overwritten"
        else:
            assert code(kind, said) == -32003
        assert (inside.parent / "secret").read_bytes() == SECRET
    finally:
        link.unlink()


def test_a_directory_that_is_a_symlink_out_is_refused(session) -> None:
    peer, session_id, inside = session
    link = inside / "rw" / "way"
    link.symlink_to(inside.parent)
    try:
        for tool, more in (("file.read", {}), ("file.list", {}), ("file.write", {"data": ""}), ("file.delete", {})):
            path = link if tool == "file.list" else link / "secret"
            kind, said = outcome(peer, session_id, tool, path=str(path), **more)
            assert code(kind, said) == -32003, tool
    finally:
        link.unlink()
    assert (inside.parent / "secret").read_bytes() == SECRET


def test_what_may_be_read_may_not_be_written(session) -> None:
    peer, session_id, inside = session
    for tool, more in (("file.write", {"data": b64(b"x")}), ("file.delete", {})):
        kind, said = outcome(peer, session_id, tool, path=str(inside / "a"), **more)
        assert (kind, code(kind, said)) == ("refused", -32003)
    assert (inside / "a").read_bytes() == b"allowed"


@pytest.mark.proof
def test_exchanging_directories_for_links_at_the_same_time_wins_nothing(session) -> None:
    peer, session_id, inside = session
    real, link, place = inside / "rw" / "real", inside / "rw" / "link", inside / "rw" / "place"
    real.mkdir()
    (real / "secret").write_bytes(b"allowed")
    link.symlink_to(inside.parent)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for source in (real, link):
                with contextlib.suppress(OSError):
                    source.rename(place)
                    place.rename(source)

    racer = threading.Thread(target=exchange)
    racer.start()
    kinds = set()
    try:
        for _ in range(150):
            kind, said = outcome(peer, session_id, "file.read", path=str(place / "secret"))
            kinds.add(kind)
            assert kind != "done" or base64.b64decode(said["result"]["data"]) == b"allowed"
            outcome(peer, session_id, "file.write", path=str(place / "secret"), data=b64(b"allowed"))
    finally:
        stop.set()
        racer.join()
    assert (inside.parent / "secret").read_bytes() == SECRET
    assert len(kinds) > 1, "nothing was raced for"


def test_what_is_no_regular_file_holds_up_no_other(session) -> None:
    peer, session_id, inside = session
    os.mkfifo(inside / "fifo")
    try:
        kind, said = outcome(peer, session_id, "file.read", path=str(inside / "fifo"))
        assert kind == "failed"
        assert said["error_data"]["effect"] == "none"
    finally:
        (inside / "fifo").unlink()
    assert outcome(peer, session_id, "file.read", path=str(inside / "a"))[0] == "done"
