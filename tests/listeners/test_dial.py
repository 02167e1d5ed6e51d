"""What all ways to a daemon share: what they cost a client that does not take them, and why TCP does not get there."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys

import pytest
import trio
from support.users import NOBODY, ordinary_user

from hearth import CarrierError, transport
from hearth.transport import open_stream, tls
from hearth.transport.address import named, parse

PATIENCE = 60


@pytest.fixture
async def bounded():
    with trio.fail_after(PATIENCE):
        yield


@pytest.mark.slow
def test_a_client_of_the_unix_socket_imports_nothing_of_the_other_carriers(tmp_path) -> None:
    code = (
        "import json, sys, trio, hearth\n"
        "async def main():\n"
        "    async with hearth.connect(sys.argv[1]): pass\n"
        "trio.run(main)\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "s")], capture_output=True, timeout=PATIENCE, check=True
        )
    loaded = json.loads(done.stdout)
    ours = [name for name in loaded if name.startswith("hearth.transport.")]
    assert ours == ["hearth.transport.address", "hearth.transport.sockets"]
    others = ("wsproto", "h11", "trio_websocket", "cryptography", "difflib", "cattrs")
    assert not [name for name in loaded if name.startswith(others)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else; run the tests as root")
async def test_a_default_socket_of_another_user_where_any_user_can_make_one_is_not_taken_for_the_daemons(
    bounded, tmp_path
) -> None:
    place = tmp_path / "tmp" / "hearth" / "hearth.sock"
    place.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        with ordinary_user():
            listening.listen()
        # The kernel names whoever called listen, and here they were let in: nobody else can make anything there.
        async with open_stream(named(str(place), "default")):
            pass
        place.parent.parent.chmod(0o1777)
        async with open_stream(named(str(place), "default")):
            pass
        os.chown(place.parent, NOBODY, NOBODY)
        with pytest.raises(CarrierError, match=rf"uid {NOBODY} listens .* name the address with --to unix:{place}"):
            async with open_stream(named(str(place), "default")):
                pass
        # Named by a person, it is that person's trust; and of our own there is no question.
        async with open_stream(parse(place)):
            pass
        listening.listen()
        async with open_stream(named(str(place), "default")):
            pass


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([errno.ECONNREFUSED], "no process listens on that port"),
        ([errno.EHOSTUNREACH, errno.ECONNREFUSED], "no process listens on that port"),
        ([errno.ENETUNREACH, errno.EHOSTUNREACH], "there is no way to arm from here"),
        ([errno.ETIMEDOUT], "Connection timed out"),
    ],
)
async def test_why_a_host_is_not_reached_is_told_for_all_its_addresses(bounded, monkeypatch, numbers, words) -> None:
    """As Trio tells it: an OSError without a number, raised from one for each of the host's addresses."""

    async def fail(_host, _port):
        each = [OSError(number, os.strerror(number)) for number in numbers]
        raise OSError("all attempts to connect failed") from (each[0] if len(each) == 1 else ExceptionGroup("", each))

    monkeypatch.setattr(trio, "open_tcp_stream", fail)
    with pytest.raises(CarrierError, match=f"cannot connect to ws://arm:80: {words}"):
        async with open_stream(parse("ws://arm")):
            pass


async def test_an_error_without_a_number_is_told_as_it_is(bounded, monkeypatch) -> None:
    async def fail(_host, _port):
        raise OSError("out of luck")

    monkeypatch.setattr(trio, "open_tcp_stream", fail)
    with pytest.raises(CarrierError, match="out of luck"):
        async with open_stream(parse("tls://arm")):
            pass


async def test_a_peer_that_is_gone_at_once_is_told(bounded, monkeypatch) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        monkeypatch.setattr(socket, "TCP_USER_TIMEOUT", 9999)  # as refused as on a socket that was reset
        with pytest.raises(CarrierError, match="cannot connect to ws://127"):
            async with open_stream(parse(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}")):
                pass


async def test_a_link_that_is_dead_is_found_out_by_the_kernel(bounded) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await tls.open_tcp(parse(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}")) as stream:
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        between = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert idle + between * (stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) - 1) <= tls.DEAD_PEER_TIMEOUT
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == tls.DEAD_PEER_TIMEOUT * 1000


@pytest.mark.slow
async def test_a_daemon_that_accepts_no_connection_is_waited_for_only_so_long(bounded, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(transport, "ACCEPT_TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(str(tmp_path / "full"))
        listening.listen(0)
        first.connect(str(tmp_path / "full"))
        with pytest.raises(CarrierError, match=r"cannot connect to .*Resource temporarily unavailable"):
            async with open_stream(parse(tmp_path / "full")):
                pass


async def test_a_path_that_is_too_long_or_not_a_socket_is_told(bounded, tmp_path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / ("x" * 200)):
        with pytest.raises(CarrierError, match=str(path)):
            async with open_stream(parse(path)):
                pass
