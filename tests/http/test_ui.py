"""The dashboard's door: its files at /ui, and HACP for it over a WebSocket on the same port (docs/http.md)."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
import trio
from support import raw_websocket
from support.http import LISTEN, POLICY, TOKENS, passes
from support.raw_websocket import RawWebSocket

from hearth.actors.bridges.http import dashboard
from hearth.actors.listeners.accept import MOST_UNKNOWN_PEERS_EACH
from hearth.config.listen import HttpConfig
from hearth.config.model import PolicyConfig, load_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FILES = dashboard.load()


def request(server, *more, path="/hacp", token="alice", host=None, **replaced):
    """The request of a page of the server's own origin for its WebSocket."""
    bearer = [] if token is None else [f"bearer.{TOKENS.get(token, token)}"]
    protocols = ", ".join(["hacp.v0", *bearer])
    host = host or f"127.0.0.1:{server.port}"
    return raw_websocket.request(*more, f"Sec-WebSocket-Protocol: {protocols}", path=path, host=host, **replaced)


OPENED: list[RawWebSocket] = []


@pytest.fixture(autouse=True)
def _closed():
    """Whatever a test has opened is closed at its end."""
    yield
    while OPENED:
        OPENED.pop().socket._sock.close()


async def connect(server, **how):
    OPENED.append(await RawWebSocket.connect(server.port, **how))
    return OPENED[-1]


async def asked(server, data, **how):
    """A connection on which these bytes were sent, and the answer to them."""
    web = await connect(server, **how)
    await web.send(data)
    return web, await web.answer()


async def call(web, method, **params):
    await web.text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    while True:
        _, payload = await web.receive()
        if "id" in (told := json.loads(payload)):
            return told


# --- the files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(FILES))
async def test_every_file_of_the_page_is_served_to_whoever_asks_under_a_strict_policy(server, path: str) -> None:
    answer = await server.ask("GET", path, how={"as_nobody": os.geteuid() == 0})
    assert answer.status == 200
    assert answer.body == FILES[path][1]
    assert answer.headers["content-type"] == FILES[path][0]
    rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    again = await server.ask("GET", path, If_None_Match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    head = await server.ask("HEAD", path)
    assert (head.status, head.body, head.headers["etag"]) == (200, b"", answer.headers["etag"])


async def test_the_page_is_found_without_its_last_stroke(server) -> None:
    answer = await server.ask("GET", "/ui")
    assert (answer.status, answer.headers["location"]) == (308, "/ui/")


@pytest.mark.parametrize(
    "path",
    ["/ui/../app.py", "/ui/%2e%2e/app.py", "/ui//etc/passwd", "/ui/nothing.js", "/ui/index.html/", "/ui/.", "/UI/"],
)
async def test_what_is_no_file_of_the_page_does_not_exist(server, path: str) -> None:
    assert (await server.ask("GET", path)).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_the_page_is_only_read(server, method: str) -> None:
    assert (await server.ask(method, "/ui/")).status == 405


async def test_the_page_loads_nothing_from_elsewhere_and_has_no_script_in_its_text() -> None:
    page = FILES["/ui/"][1].decode()
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page
    assert " onclick" not in page
    assert "style=" not in page
    for path, (_, content) in FILES.items():
        assert "/vendor/" in path or b"innerHTML" not in content, path


VENDORED = {
    "LICENSE.uPlot.txt": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of what is not hearth's: `npm pack uplot@1.6.32`, its LICENSE and the two of its dist/."""


def test_what_is_vendored_is_the_published_file_with_its_licence() -> None:
    vendor = dashboard.FOLDER / "vendor"
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in vendor.iterdir()} == VENDORED


async def test_without_the_page_neither_it_nor_its_websocket_is_there(serve) -> None:
    async with serve(HttpConfig(listen=LISTEN, ui=False)) as server:
        assert (await server.ask("GET", "/ui/")).status == 404
        _, answer = await asked(server, request(server))
        assert answer.status == 404


# --- the WebSocket ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [True, False])
async def test_a_page_of_this_daemon_opens_a_session_on_the_same_port(server, origin: bool) -> None:
    more = [f"Origin: http://127.0.0.1:{server.port}"] if origin else []
    web, answer = await asked(server, request(server, *more))
    assert (answer.status, answer.headers["sec-websocket-protocol"]) == (101, "hacp.v0")
    opened = await call(web, "session.open", client_name="a page")
    assert opened["result"]["session_id"]
    (record,) = server.world.records("session.open")
    assert (record["policy"], record["client_name"]) == ("alice", "a page")
    assert server.authenticated == 1
    assert server.unauthenticated == 0
    await trio.aclose_forcefully(web.stream)
    await passes(lambda: not server.open_connections)
    assert server.authenticated == 0


async def test_the_local_user_needs_no_token_and_a_request_in_pieces_is_one(server) -> None:
    whole = request(server, token=None)
    web = await connect(server)
    for at in range(0, len(whole), 7):
        await web.send(whole[at : at + 7])
    assert (await web.answer()).status == 101
    assert (await call(web, "session.open"))["result"]["session_id"]
    assert server.world.records("session.open")[0]["policy"] == "us"


REFUSED = [
    ("a token that no entry knows", {"token": "hearth_guessed"}, 401),
    ("a page of another site", {"origin": "http://evil.example"}, 403),
    ("a page of this machine on another port", {"origin": "http://127.0.0.1:1"}, 403),
    ("a page of another site, without an origin", {"more": ["Sec-Fetch-Site: cross-site"]}, 403),
    ("a body", {"more": ["Content-Length: 2"]}, 400),
    ("a header on two lines", {"more": ["X: a", " b"]}, 400),
    ("a name that leads here by a foreign name server", {"host": "evil.example"}, 421),
    ("another subprotocol", {"protocol": "chat"}, 400),
]


@pytest.mark.parametrize(("what", "how", "status"), REFUSED, ids=[case[0] for case in REFUSED])
async def test_a_request_is_refused_before_it_reaches_hacp_for(server, what, how: dict, status: int) -> None:
    more = [f"Origin: {how['origin']}"] if "origin" in how else how.get("more", [])
    if "protocol" in how:
        host = f"127.0.0.1:{server.port}"
        data = raw_websocket.request(f"Sec-WebSocket-Protocol: {how['protocol']}", path="/hacp", host=host)
    else:
        data = request(server, *more, token=how.get("token", "alice"), host=how.get("host"))
    _, answer = await asked(server, data)
    assert answer.status == status
    assert not server.world.records("session.open")
    await passes(lambda: server.authenticated == 0)


async def test_a_refused_token_is_on_record_and_in_no_text(server) -> None:
    _, answer = await asked(server, request(server, token="hearth_guessed"))
    assert answer.status == 401
    record = await server.recorded(event="auth.reject")
    assert (record["carrier"], record["peer"]) == ("http", "127.0.0.1")
    assert "guessed" not in json.dumps(record)


async def test_a_principal_without_an_entry_opens_no_session(serve) -> None:
    policy = tuple(entry for entry in POLICY if entry.name != "us")
    async with serve(policy=policy) as server:
        web, answer = await asked(server, request(server, token=None))
        assert answer.status == 101
        assert (await call(web, "session.open"))["error"]["code"] == -32003


async def test_without_a_websocket_the_path_says_what_it_takes(server) -> None:
    answer = await server.ask("GET", "/hacp")
    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")


async def test_only_the_first_request_of_a_connection_becomes_a_websocket(server) -> None:
    async with await server.connect() as raw:
        assert (await raw.ask("GET", "/ui/")).status == 200
        await raw.send(request(server))
        assert (await raw.answer()).status == 426


async def test_a_peer_that_begins_such_a_request_and_stops_is_disconnected_and_keeps_no_slot(serve) -> None:
    async with serve(handshake_timeout_s=0.3) as server:
        web = await connect(server)
        await web.send(request(server)[:60])
        assert await web.answer() is None
        await passes(lambda: server.unauthenticated == 0)


@pytest.mark.proof
async def test_unknown_peers_that_ask_for_it_have_no_more_slots_than_others(serve) -> None:
    async with serve(handshake_timeout_s=30) as server:
        opened = [await connect(server) for _ in range(MOST_UNKNOWN_PEERS_EACH)]
        for web in opened:
            await web.send(request(server)[:60])
        await passes(lambda: server.unauthenticated == MOST_UNKNOWN_PEERS_EACH)
        web = await connect(server)
        assert await web.answer() is None
        for web in opened:
            await trio.aclose_forcefully(web.stream)


async def test_a_head_that_is_too_long_is_refused_as_for_any_request(server) -> None:
    _, answer = await asked(server, request(server, "X: " + "x" * (17 << 10)))
    assert answer.status == 431


async def test_over_tls_a_client_certificate_is_the_proof(serve, bench) -> None:
    http = HttpConfig(listen=LISTEN, cert=bench.server_cert, key=bench.server_key, client_ca=bench.ca)
    async with serve(http) as server:
        host = f"localhost:{server.port}"
        data = request(server, f"Origin: https://{host}", token=None, host=host)
        web, answer = await asked(server, data, tls=bench.client_context())
        assert answer.status == 101
        assert (await call(web, "session.open"))["result"]["session_id"]
        assert server.world.records("session.open")[0]["policy"] == "arm"
        await trio.aclose_forcefully(web.stream)


async def test_at_the_daemons_end_the_page_gets_its_answer_and_a_close_frame(serve) -> None:
    async with serve() as server:
        web, answer = await asked(server, request(server))
        assert answer.status == 101
        assert (await call(web, "session.open"))["result"]["session_id"]
        server.world.runtime.closing = True
        assert (await call(web, "session.open"))["error"]["code"] == -32007
    opcode, payload = await web.receive()
    assert (opcode, int.from_bytes(payload[:2], "big")) == (raw_websocket.CLOSE, 1001)
    assert not server.cut


async def test_an_entry_that_may_observe_observes_over_it(serve) -> None:
    policy = (PolicyConfig(name="alice", match=POLICY[0].match, rights=("observe",)),)
    async with serve(policy=policy) as server:
        web, _ = await asked(server, request(server))
        opened = await call(web, "session.open")
        session = opened["result"]["session_id"]
        state = (await call(web, "observe.state", session_id=session))["result"]
        assert state["you"]["rights"] == ["observe"]
        assert state["board"]["name"] == "sim"


def test_the_client_in_the_page_is_the_one_that_is_published() -> None:
    mode = (dashboard.FOLDER / "hacp.js").lstat().st_mode
    assert stat.S_ISLNK(mode) or "site-packages" in str(dashboard.FOLDER)
    assert b"class HacpClient" in FILES["/ui/hacp.js"][1]


def test_the_configuration_on_the_page_of_the_dashboard_is_one(tmp_path) -> None:
    text = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    file = tmp_path / "hearth.toml"
    file.write_text(text.split("<<END\n")[1].split("\nEND\n")[0].replace("$(id -u)", str(os.getuid())))
    config = load_config(file)
    assert config.http.ui
    assert config.policy[0].rights == ("observe", "approve", "reset_halt", "admin")
