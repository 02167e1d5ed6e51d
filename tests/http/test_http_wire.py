"""HTTP/1.1 on one connection, with applications that do what they must not, and the rule of names by itself."""

from contextlib import asynccontextmanager

import pytest
import trio
from support.http import Raw, hosting, listener_of, passes, port_of

from hearth.actors.bridges.http.app import Hosts, HttpProblem
from hearth.actors.listeners.accept import ConnectionLimiter

HEAD = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = {"type": "http.response.body", "body": b"piece", "more_body": True}
LAST = {"type": "http.response.body", "body": b"last"}


@asynccontextmanager
async def serving(app):
    """It is open; yields a way to connect."""
    async with hosting(app) as listener:
        yield lambda: Raw.connect(port_of(listener))


async def test_an_application_that_breaks_in_the_middle_of_an_answer_ends_the_connection(caplog) -> None:
    async def app(_scope, _receive, send):
        await send(HEAD)
        await send(PIECE)
        raise RuntimeError("in the middle")

    async with serving(app) as connect, await connect() as raw:
        await raw.send(raw.request("GET", "/"))
        assert (await raw.head()).status == 200
        assert await raw.chunk() == b"piece"
        assert await raw.ended() == b""
    assert "in the middle" in caplog.text


async def test_an_application_that_breaks_before_its_answer_is_answered_for(caplog) -> None:
    async def app(_scope, _receive, _send):
        raise RuntimeError("before")

    async with serving(app) as connect, await connect() as raw:
        answer = await raw.ask("GET", "/")
        assert (answer.status, answer.headers["connection"]) == (500, "close")
        assert await raw.ended() == b""
    assert "before" in caplog.text


async def test_an_application_that_says_nothing_is_answered_for() -> None:
    async def app(_scope, _receive, _send):
        pass

    async with serving(app) as connect, await connect() as raw:
        assert (await raw.ask("GET", "/")).status == 500


async def test_an_application_learns_again_and_again_that_its_peer_has_gone() -> None:
    heard = []

    async def app(_scope, receive, _send):
        while len(heard) < 4:
            heard.append((await receive())["type"])

    async with serving(app) as connect:
        async with await connect() as raw:
            await raw.send(raw.request("GET", "/"))
            await passes(lambda: heard)
        await passes(lambda: len(heard) == 4)
    assert heard == ["http.request", "http.disconnect", "http.disconnect", "http.disconnect"]


async def test_an_application_that_gives_up_an_answer_tears_no_chunk(monkeypatch) -> None:
    """What is cancelled is what it sends next; what it is sending arrives whole."""

    async def app(_scope, _receive, send):
        await send(HEAD)
        with trio.CancelScope() as scope:
            scope.cancel()
            await send({**PIECE, "body": b"x" * 5_000_000})
        await send(LAST)

    async with serving(app) as connect, await connect() as raw:
        answer = await raw.ask("GET", "/")
        assert answer.body in (b"last", b"x" * 5_000_000 + b"last")


@pytest.mark.slow
async def test_a_reader_that_stalls_does_not_hold_up_the_end() -> None:
    """A send is shielded from who gives up an answer, and has thirty seconds; the daemon's end has one."""
    sent = 0

    async def app(_scope, _receive, send):
        nonlocal sent
        await send(HEAD)
        while True:
            await send({**PIECE, "body": b"x" * 1_000_000})
            sent += 1

    listener = listener_of(app)
    async with trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(listener.accept_all, connections, ConnectionLimiter(100), None)
            raw = await Raw.connect(port_of(listener), receive_buffer=4096)
            await raw.send(raw.request("GET", "/"))
            before = -1
            while before != sent or not sent:
                before = sent
                await trio.sleep(0.1)
            accepting.cancel_scope.cancel()
        listener.close()
        listener.finish()
        connections.cancel_scope.deadline = trio.current_time()
    assert not listener._connections
    await raw.aclose()


async def test_an_answer_whose_length_is_known_comes_with_its_head() -> None:
    async def app(_scope, _receive, send):
        await send({**HEAD, "headers": [(b"content-length", b"4")]})
        await send(LAST)

    async with serving(app) as connect, await connect() as raw:
        await raw.send(raw.request("GET", "/"))
        assert (await raw.stream.receive_some()).endswith(b"\r\n\r\nlast")


async def test_work_that_follows_an_answer_is_done_though_the_connection_closes() -> None:
    done = []

    async def app(_scope, _receive, send):
        await send(HEAD)
        await send(LAST)
        await trio.sleep(0.05)
        done.append(True)

    async with serving(app) as connect:
        async with await connect() as raw:
            answer = await raw.ask("GET", "/", Connection="close")
            assert answer.body == b"last"
            assert await raw.ended() == b""
        await passes(lambda: done)


@pytest.mark.parametrize(
    ("address", "host"),
    [("192.0.2.7", "192.0.2.7:80"), ("::ffff:192.0.2.7", "192.0.2.7"), ("2001:db8::7", "[2001:db8::7]:80"),
     ("fe80::7%eth0", "[fe80::7]")],
)  # fmt: skip
def test_the_address_that_was_called_is_a_name(address, host) -> None:
    hosts = Hosts((), (), encrypted=False)
    assert hosts.check([(b"host", host.encode())], address) == host
    with pytest.raises(HttpProblem):
        hosts.check([(b"host", b"192.0.2.8")], address)


@pytest.mark.parametrize(
    ("encrypted", "behind_proxy", "own"),
    [(False, False, {"http"}), (True, False, {"https"}), (False, True, {"http", "https"})],
)
def test_our_own_pages_are_those_of_our_own_scheme(encrypted, behind_proxy, own) -> None:
    hosts = Hosts(("board.example",), (), encrypted=encrypted, behind_proxy=behind_proxy)
    for scheme in ("http", "https"):
        given = [(b"origin", f"{scheme}://board.example".encode())]
        if scheme in own:
            assert hosts.origin(given, "board.example") is None
        else:
            with pytest.raises(HttpProblem):
                hosts.origin(given, "board.example")
