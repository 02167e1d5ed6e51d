"""What the listener and the routes answer: hosts, pages, callers, methods, sizes; and what they give away."""

import json
import os

import pytest
from support.http import JSON, LISTEN, TOKENS, initialize, modern

from hearth.config.listen import HttpConfig

pytestmark = pytest.mark.slow

ALICE = {"Authorization": f"Bearer {TOKENS['alice']}"}


# --- /healthz -------------------------------------------------------------------------------------------------------


async def test_anybody_learns_whether_the_daemon_is_well_and_no_more(server) -> None:
    answer = await server.ask("GET", "/healthz", Authorization="Bearer nobody-knows-this")
    assert (answer.status, answer.body) == (200, b'{"ok":true}')
    assert answer.headers["cache-control"] == "no-store"


async def test_who_is_in_the_policy_learns_of_buses_and_audit(server) -> None:
    told = (await server.ask("GET", "/healthz")).json
    assert told["ok"] is told["ready"] is told["audit"]["ok"] is True
    assert told["buses"]["gpio:sim"]["state"] == "ready"
    assert told["wedged"] == []
    assert told["sessions"] == 0
    assert told["listeners"][-1] == server.url


async def test_head_of_healthz_says_what_get_says_without_the_body(server) -> None:
    got, told = await server.ask("GET", "/healthz"), await server.ask("HEAD", "/healthz")
    assert (told.status, told.body) == (200, b"")
    assert abs(int(told.headers["content-length"]) - len(got.body)) < 10


async def test_a_bus_that_does_not_answer_makes_it_unwell(server) -> None:
    bus = server.runtime.buses["gpio:sim"]
    bus.state = "wedged"
    answer = await server.ask("GET", "/healthz")
    assert answer.status == 503
    assert answer.json["wedged"] == ["gpio:sim"]
    other = await server.ask("GET", "/healthz", Authorization="Bearer nobody-knows-this")
    assert (other.status, other.body) == (503, b'{"ok":false}')
    bus.state = "ready"


# --- paths and methods ----------------------------------------------------------------------------------------------


async def test_an_unserved_path_is_not_repeated(server) -> None:
    answer = await server.ask("GET", "/no/such?token=hearth_secret", **ALICE)
    assert answer.status == 404
    assert "secret" not in answer.detail


async def test_nearly_a_path_is_none(server) -> None:
    for path in ("/healthz/", "/mcp//", "//healthz", "/HEALTHZ", "/%68ealthz/", "http://localhost/healthz"):
        assert (await server.ask("GET", path, **ALICE)).status == 404, path


async def test_a_method_that_a_path_has_not_is_refused_with_those_that_it_has(server) -> None:
    for method in ("POST", "PUT", "DELETE", "TRACE", "FROB"):
        answer = await server.ask(method, "/healthz", **ALICE)
        assert answer.status == 405, method
        assert {word.strip() for word in answer.headers["allow"].split(",")} == {"GET", "HEAD"}
        assert "GET" in answer.detail


async def test_mcp_takes_get_post_and_delete_only(server) -> None:
    opened = await server.ask("POST", "/mcp", initialize(), Content_Type=JSON, Accept="*/*", **ALICE)
    session = opened.headers["mcp-session-id"]
    for method in ("PUT", "PATCH"):
        answer = await server.ask(method, "/mcp", Mcp_Session_Id=session, **ALICE)
        assert answer.status == 405
        assert "POST" in answer.headers["allow"]
    assert (await server.ask("GET", "/mcp", **modern("tools/list"), **ALICE)).status == 405


async def test_what_is_under_well_known_and_not_there_is_not_found_rather_than_refused(server) -> None:
    """A client that was answered 401 looks there for an authorization server, and must not take a 401 for one."""
    answer = await server.ask("GET", "/.well-known/oauth-protected-resource", Authorization="Bearer nobody")
    assert answer.status == 404


# --- who calls ------------------------------------------------------------------------------------------------------


async def test_a_peer_that_proves_nothing_is_asked_for_a_token(server) -> None:
    for path in ("/mcp", "/metrics", "/", "/anything"):
        answer = await server.ask("GET", path, Authorization="Bearer nobody-knows-this")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert "Authorization: Bearer TOKEN" in answer.detail
        assert "nobody-knows-this" not in answer.detail
        assert answer.headers["connection"] == "close"


async def test_a_refusal_is_on_record_with_its_reason_and_without_the_token(server) -> None:
    await server.ask("GET", "/mcp", Authorization="Bearer nobody-knows-this")
    (record,) = server.world.records(event="auth.reject")
    assert (record["carrier"], record["peer"]) == ("http", "127.0.0.1")
    assert record["reason"] == "its bearer token is unknown"


async def test_refusals_without_end_do_not_fill_the_record(server) -> None:
    for _ in range(30):
        assert (await server.ask("GET", "/mcp", Authorization="Bearer x")).status == 401
    assert len(server.world.records(event="auth.reject")) == 10


async def test_no_peer_is_a_user_of_this_machine_by_what_cannot_be_one(server) -> None:
    for header, value, why in (
        ("Authorization", "Basic eDp5", "Bearer scheme"),
        ("X_Forwarded_For", "192.0.2.1", "through a proxy"),
        ("Forwarded", "for=192.0.2.1", "through a proxy"),
        ("X_Real_IP", "192.0.2.1", "through a proxy"),
        ("Via", "1.1 x", "through a proxy"),
    ):
        answer = await server.ask("GET", "/mcp", **{header: value})
        assert answer.status == 401
        assert why in answer.detail


async def test_two_tokens_are_one_too_many(server) -> None:
    async with await server.connect() as raw:
        both = "".join(f"Authorization: Bearer {TOKENS[who]}\r\n" for who in ("alice", "bob"))
        await raw.send(f"GET /mcp HTTP/1.1\r\nHost: localhost\r\n{both}\r\n".encode())
        answer = await raw.answer()
    assert answer.status == 400
    assert "two different tokens" in answer.detail


async def test_a_token_comes_through_a_proxy(server) -> None:
    answer = await server.ask("GET", "/healthz", X_Forwarded_For="192.0.2.1", **ALICE)
    assert "buses" in answer.json


async def test_who_is_known_and_not_in_the_policy_is_forbidden(serve) -> None:
    async with serve(policy=()) as server:
        answer = await server.ask("GET", "/mcp")
        assert answer.status == 403
        assert "[[policy]]" in answer.detail
        assert (await server.ask("GET", "/healthz")).json == {"ok": True}
        assert server.authenticated == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_another_user_of_this_machine_is_who_the_kernel_says(server) -> None:
    answer = await server.ask("GET", "/mcp", how={"as_nobody": True})
    assert answer.status == 403
    assert "uid:65534" in answer.detail


async def test_behind_a_proxy_no_peer_is_a_user_of_this_machine(serve) -> None:
    async with serve(HttpConfig(listen=LISTEN, plaintext=True)) as server:
        assert (await server.ask("GET", "/mcp")).status == 401
        assert "buses" in (await server.ask("GET", "/healthz", **ALICE)).json


async def test_each_request_of_a_connection_is_judged_by_itself(server) -> None:
    async with await server.connect() as raw:
        assert (await raw.ask("GET", "/nothing", **ALICE)).status == 404
        assert (await raw.ask("GET", "/mcp", Authorization="Bearer nobody")).status == 401
        assert (await raw.ask("GET", "/nothing")).status == 404


# --- hosts and pages ------------------------------------------------------------------------------------------------


async def test_names_of_loopback_and_configured_ones_are_names_of_the_daemon(serve) -> None:
    async with serve(HttpConfig(listen=LISTEN, hosts=("board.example",))) as server:
        for host in ("127.0.0.1", "localhost:1", "LOCALHOST", "[::1]", "[::1]:80", "board.example:99", "Board.Example"):
            assert (await server.ask("GET", "/healthz", Host=host)).status == 200, host


@pytest.mark.slow
async def test_a_name_that_was_made_to_point_here_is_misdirected(server) -> None:
    for host in (
        "evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "[::2]",
        "localhost@evil.example", "", ":80",
    ):  # fmt: skip
        for path in ("/healthz", "/mcp", "/.well-known/agentcard"):
            answer = await server.ask("GET", path, Host=host)
            assert answer.status == 421, host
            assert "[http] hosts" in answer.detail


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
async def test_a_request_has_one_host(server, hosts) -> None:
    async with await server.connect() as raw:
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        await raw.send(f"GET /healthz HTTP/1.0\r\n{lines}\r\n".encode())
        answer = await raw.answer()
    assert answer.status == 400


async def test_a_page_of_another_place_is_refused(server) -> None:
    for origin in ("http://evil.example", server.url.replace("http:", "https:"), "null", "http://localhost:1", "x"):
        answer = await server.ask("POST", "/mcp", b"{}", Origin=origin, **ALICE)
        assert answer.status == 403, origin
        assert "[http] origins" in answer.detail
        assert "access-control-allow-origin" not in answer.headers


CROSS = {"Sec_Fetch_Site": "cross-site"}
LINK = {**CROSS, "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/metrics", CROSS, 403),
        ("GET", "/metrics", {"Sec_Fetch_Site": "Cross-Site"}, 403),
        ("GET", "/metrics", LINK, 403),
        ("GET", "/healthz", CROSS, 403),
        ("POST", "/mcp", CROSS, 403),
        ("OPTIONS", "/mcp", CROSS, 403),
        ("GET", "/hacp", LINK, 403),
        ("GET", "/ui/", CROSS, 403),
        ("GET", "/ui/app.js", LINK, 403),
        ("POST", "/ui/", LINK, 403),
        ("GET", "/ui/", LINK, 200),
        ("GET", "/ui/index.html", LINK, 200),
        ("GET", "/ui", LINK, 308),
        ("GET", "/.well-known/agentcard", CROSS, 200),
        ("GET", "/metrics", {"Sec_Fetch_Site": "none"}, 200),
        ("GET", "/metrics", {"Sec_Fetch_Site": "same-origin"}, 200),
    ],
)
async def test_a_request_that_a_page_of_another_site_causes_without_an_origin_is_refused(
    server, method, path, headers, status
) -> None:
    answer = await server.ask(method, path, b"{}" if method == "POST" else None, **headers, **ALICE)
    assert answer.status == status
    if status == 403:
        assert "Sec-Fetch-Site" in answer.detail
        assert not server.world.records(event="auth.reject")


async def test_a_listed_page_of_another_site_may_call(serve) -> None:
    async with serve(HttpConfig(listen=LISTEN, origins=("http://panel.example",))) as server:
        answer = await server.ask("GET", "/metrics", Origin="http://panel.example", **CROSS, **ALICE)
        assert answer.status == 200


async def test_a_page_of_our_own_place_may_call(server) -> None:
    assert (await server.ask("GET", "/healthz", Origin=server.url)).status == 200


async def test_a_listed_page_may_call_and_its_browser_is_told_so(serve) -> None:
    page = "http://panel.example"
    async with serve(HttpConfig(listen=LISTEN, origins=(page,))) as server:
        asked = await server.ask("OPTIONS", "/mcp", Origin=page, Access_Control_Request_Method="POST")
        assert asked.status == 204
        assert asked.headers["access-control-allow-origin"] == page
        assert "mcp-session-id" in asked.headers["access-control-allow-headers"].lower()
        refused = await server.ask("POST", "/mcp", b"{}", Origin=page, Authorization="Bearer nobody")
        assert refused.status == 401
        answer = await server.ask("POST", "/mcp", initialize(), Origin=page, Content_Type=JSON, Accept="*/*", **ALICE)
        assert answer.status == 200
        for each in (refused, answer):
            assert each.headers["access-control-allow-origin"] == page
            assert each.headers["vary"] == "Origin"


async def test_an_unlisted_page_is_refused_before_it_is_asked_who_calls(server) -> None:
    await server.ask("OPTIONS", "/mcp", Origin="http://evil.example")
    assert not server.world.records(event="auth.reject")


# --- what is wrong with a request -----------------------------------------------------------------------------------


async def test_a_body_that_says_it_is_too_long_is_refused_before_it_comes(serve) -> None:
    async with serve(max_document_bytes=1000) as server, await server.connect() as raw:
        await raw.send(raw.request("POST", "/mcp", Content_Length="1001", **ALICE))
        answer = await raw.answer()
        assert answer.status == 413
        assert "[limits] max_document_bytes = 1000" in answer.detail


async def test_a_body_that_does_not_say_how_long_it_is_is_cut_off_at_the_limit(serve) -> None:
    async with serve(max_document_bytes=1000) as server, await server.connect() as raw:
        await raw.send(raw.request("POST", "/mcp", Transfer_Encoding="chunked", **ALICE))
        await raw.send(b"259\r\n" + b"x" * 601 + b"\r\n259\r\n" + b"x" * 601 + b"\r\n")
        assert (await raw.answer()).status == 413


async def test_a_long_body_that_is_refused_leaves_its_sender_the_answer(serve) -> None:
    """Closing at once would reset the connection, and the answer would be lost with it."""
    async with serve(max_document_bytes=1000) as server, await server.connect() as raw:
        await raw.send(raw.request("POST", "/mcp", b"x" * 300_000, **ALICE))
        assert (await raw.answer()).status == 413


NO_HTTP = [
    (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    (b"hello\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[:-6], None),
    (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, 431),
    (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000, 431),
    (b"GET /" + b"y" * 20_000, 431),
]


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 1])
async def test_what_is_no_http_is_answered_once_and_closed(serve, before) -> None:
    async with serve(handshake_timeout_s=0.6) as server:
        for sent, status in NO_HTTP:
            async with await server.connect() as raw:
                for _ in range(before):
                    await raw.ask("GET", "/healthz")
                await raw.send(sent)
                answer = await raw.answer()
                assert (answer and answer.status) == status, sent[:100]
                if answer is not None:
                    assert answer.detail
                    assert answer.headers["connection"] == "close"
                assert await raw.ended() == b""


async def test_what_follows_a_last_request_does_not_cost_its_answer(server) -> None:
    for sent in (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n\r\n",
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\nGET /mcp HTTP/1.1\r\n\r\n",
    ):
        for _ in range(8):
            async with await server.connect() as raw:
                await raw.send(sent)
                assert (await raw.answer()).status == 200
                assert await raw.ended() == b""


async def test_nothing_but_http_1_1_is_spoken(server) -> None:
    for more in (
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n",
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\n",
    ):
        async with await server.connect() as raw:
            await raw.send(f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
            assert (await raw.answer()).status == 200
            assert (await raw.ask("GET", "/healthz")).status == 200


async def test_a_client_that_begins_with_http_2_is_told_no(server) -> None:
    async with await server.connect() as raw:
        await raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await raw.answer()).status == 400
        await raw.ended()


async def test_requests_that_are_sent_at_once_are_answered_in_order(server) -> None:
    async with await server.connect() as raw:
        await raw.send(raw.request("GET", "/healthz") + raw.request("GET", "/no") + raw.request("HEAD", "/healthz"))
        assert [(await raw.answer()).status, (await raw.answer()).status] == [200, 404]
        assert (await raw.answer(head=True)).status == 200


async def test_a_client_that_waits_to_be_told_to_go_on_is_told(server) -> None:
    async with await server.connect() as raw:
        body = initialize()
        head = raw.request("POST", "/mcp", body, Expect="100-continue", Content_Type=JSON, Accept="*/*", **ALICE)
        await raw.send(head[: -len(body)])
        assert (await raw.head()).status == 100
        await raw.send(body)
        assert (await raw.answer()).status == 200


async def test_an_answer_tells_nothing_of_what_serves_it(server) -> None:
    for path in ("/healthz", "/nothing", "/mcp"):
        for how in (ALICE, {"Authorization": "Bearer x"}):
            answer = await server.ask("GET", path, **how)
            assert not {"server", "x-powered-by", "via"} & set(answer.headers)
            assert b"h11" not in answer.body
            assert b"Traceback" not in answer.body


async def test_what_breaks_in_a_route_is_told_to_the_log_and_not_to_the_caller(server, monkeypatch, caplog) -> None:
    def broken():
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(server.runtime, "health", broken)
    answer = await server.ask("GET", "/healthz")
    assert answer.status == 500
    assert "log" in answer.detail
    assert "secret" not in json.dumps(answer.json)
    assert "the secret inside" in caplog.text
    monkeypatch.undo()
    assert (await server.ask("GET", "/healthz")).status == 200
