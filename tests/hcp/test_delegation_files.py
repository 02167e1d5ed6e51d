"""An artifact that is fetched is whole and what was promised, or it is not there."""

import base64
import hashlib
import os
import stat

import pytest
import trio

from hearth.client.job_handle import fetch, fetch_to
from hearth.errors import ArtifactDamaged, CarrierError

URI = "hcp://6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42/artifacts/samples.csv"
CONTENT = bytes(range(256)) * 8


class Daemon:
    """Answers hcp.artifact, `at_once` bytes at a time; `spoil` may change an answer."""

    def __init__(self, content=CONTENT, at_once=1000, spoil=lambda _offset, _answer: None):
        self.content = content
        self.at_once = at_once
        self.spoil = spoil
        self.offsets = []

    async def __call__(self, method, params):
        assert method == "hcp.artifact"
        assert params["uri"] == URI
        offset = params["offset"]
        self.offsets.append(offset)
        answer = {
            "size_bytes": len(self.content),
            "checksum": f"sha256:{hashlib.sha256(self.content).hexdigest()}",
            "offset": offset,
            "data": base64.b64encode(self.content[offset : offset + self.at_once]).decode(),
        }
        self.spoil(offset, answer)
        return answer


def changes(offset, **members):
    """Answer otherwise from this offset on."""

    def spoil(at, answer):
        if at >= offset:
            answer.update(members)

    return spoil


def breaks(offset):
    def spoil(at, _answer):
        if at >= offset:
            raise CarrierError("the connection ended")

    return spoil


async def test_it_is_asked_for_slice_by_slice_until_all_of_it_is_there():
    daemon = Daemon()
    assert await fetch(daemon, URI) == CONTENT
    assert daemon.offsets == [0, 1000, 2000]


async def test_an_empty_one_is_empty():
    daemon = Daemon(b"")
    assert await fetch(daemon, URI) == b""
    assert daemon.offsets == [0]


SPOILT = {
    "a part of it is another": changes(1000, data=base64.b64encode(b"x" * 1000).decode()),
    "it becomes another file": changes(1000, checksum="sha256:" + "0" * 64),
    "it grows": changes(1000, size_bytes=4096),
    "it ends too early": changes(1000, data=""),
    "more comes than there is": changes(2000, data=base64.b64encode(b"x" * 1000).decode()),
    "its checksum is of an unknown kind": changes(0, checksum="md5:00"),
    "it has no checksum": changes(0, checksum=None),
    "it is not base64": changes(0, data="?"),
    "it has no size": changes(0, size_bytes="2048"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
async def test_what_is_not_what_was_promised_is_refused(spoil, tmp_path):
    with pytest.raises(ArtifactDamaged, match=r"samples\.csv"):
        await fetch(Daemon(spoil=spoil), URI)
    with pytest.raises(ArtifactDamaged):
        await fetch_to(Daemon(spoil=spoil), URI, tmp_path / "samples.csv")
    assert list(tmp_path.iterdir()) == []


async def test_a_file_is_replaced_by_the_whole_of_the_new_one_which_is_its_owners_alone(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_bytes(b"old")
    assert await fetch_to(Daemon(), URI, path) == len(CONTENT)
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [CarrierError, trio.Cancelled])
async def test_a_fetch_that_ends_half_way_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "samples.csv"
    path.write_bytes(b"old")
    if error is CarrierError:
        with pytest.raises(CarrierError):
            await fetch_to(Daemon(spoil=breaks(1000)), URI, path)
    else:
        with trio.CancelScope() as scope:
            await fetch_to(Daemon(spoil=lambda offset, _answer: offset and scope.cancel()), URI, path)
        assert scope.cancelled_caught
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


async def test_what_is_no_file_is_not_replaced(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    daemon = Daemon()
    for path in (fifo, tmp_path):
        with pytest.raises(FileExistsError):
            await fetch_to(daemon, URI, path)
    with pytest.raises(FileNotFoundError):
        await fetch_to(daemon, URI, tmp_path / "none" / "samples.csv")
    assert daemon.offsets == []
