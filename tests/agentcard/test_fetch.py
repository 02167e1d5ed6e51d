"""Fetching a foreign card from real servers: good ones, and all that a hostile one may try."""

import gzip
import json

import pytest
import trio
from support.card_server import answering, hosting, response
from support.cards import EXAMPLE, card, with_endpoint
from support.pki import Bench

from hearth.actors.bridges.http.app import card_routes
from hearth.agentcard import fetch as fetching
from hearth.agentcard.fetch import CardNotFetched, Fetched, card_url, examine, fetch_card, is_here
from hearth.errors import CarrierError, ConfigError

OWN = "application/agentcard+json"
PATIENCE = 60


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(fetching, "TIME_S", 10.0)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("bench"))


def serving(document, **headers):
    """A server that answers every request with a card."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()

    async def answer(stream, _head):
        await stream.send_all(response(200, body, **{"Content_Type": OWN, **headers}))

    return answering(answer)


async def refused(url, **how):
    with trio.fail_after(PATIENCE), pytest.raises(CardNotFetched) as caught:
        examine(await fetch_card(card_url(url), **how))
    return str(caught.value)


# --- which URL ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://a.example", "https://a.example/.well-known/agentcard"),
        ("https://a.example/", "https://a.example/.well-known/agentcard"),
        ("HTTPS://A.example:8443", "https://a.example:8443/.well-known/agentcard"),
        ("https://a.example/cards/7#x", "https://a.example/cards/7"),
        ("https://a.example/?id=7", "https://a.example/?id=7"),
        ("http://127.0.0.1:7119", "http://127.0.0.1:7119/.well-known/agentcard"),
        ("http://localhost", "http://localhost/.well-known/agentcard"),
        ("http://[::1]:80/x", "http://[::1]/x"),
    ],
)
def test_the_well_known_path_is_added_to_a_bare_origin(text, url):
    assert card_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "a.example", "/path", "ftp://a.example", "https://", "https:///x", "https://a b", "mcp://a"]
)
def test_what_is_no_url_of_a_card_is_a_usage_error_that_shows_one(text):
    with pytest.raises(ConfigError, match=r"https://agents\.example\.com"):
        card_url(text)


def test_a_password_in_a_url_is_refused_and_not_repeated():
    with pytest.raises(ConfigError) as caught:
        card_url("https://me:secret@a.example/")
    assert "secret" not in str(caught.value)


def test_plain_http_is_for_this_machine_unless_asked_for():
    with pytest.raises(ConfigError, match="--insecure-http"):
        card_url("http://a.example/")
    assert card_url("http://a.example/", insecure_http=True) == "http://a.example/.well-known/agentcard"
    for host in ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST.", "a.localhost", "::1"):
        assert is_here(host)
    for host in ("127.0.0.1.example", "localhost.example", "0.0.0.0", "1271.0.0.1", "", "::2"):
        assert not is_here(host)


# --- what comes -----------------------------------------------------------------------------------------------------


async def test_a_card_of_the_daemons_own_server_is_fetched_with_its_tag_and_age():
    here = with_endpoint("mcp", "http://127.0.0.1/mcp")
    async with hosting(card_routes(lambda: here)) as url:
        fetched = await fetch_card(card_url(url))
        assert examine(fetched) == here
        assert (fetched.url, fetched.max_age, fetched.unchanged) == (f"{url}/.well-known/agentcard", 3600, False)
        again = await fetch_card(card_url(url), known=fetched)
        assert again.unchanged
        assert (again.body, again.etag, again.max_age) == (fetched.body, fetched.etag, 3600)


async def test_over_tls_the_server_must_prove_who_it_is(bench):
    async with hosting(card_routes(lambda: EXAMPLE), certificate=(bench.server_cert, bench.server_key)) as url:
        assert examine(await fetch_card(card_url(url), ca=bench.ca)) == EXAMPLE
        with pytest.raises(CarrierError, match="not signed by the system's CAs; name the CA that signed it with --ca"):
            await fetch_card(card_url(url))


@pytest.mark.spec(
    "card 8.5",
    "SHOULD",
    "Consumers SHOULD reject AgentCards whose endpoint URL scheme differs from the scheme used to fetch the AgentCard.",
)
@pytest.mark.parametrize(
    ("came", "protocol", "leads", "taken", "taken_if_asked"),
    [
        ("http", "http", "http://a/", True, True),
        ("https", "https", "HTTPS://a/", True, True),
        ("https", "mcp", "https://a/mcp", True, True),
        ("http", "https", "https://a/", False, False),
        ("https", "http", "http://a/", False, False),
        ("https", "mcp", "http://a/mcp", False, False),
        ("https", "mcp", "mcp://a", False, True),
        ("https", "stdio", "stdio:rm", False, True),
        ("https", "grpc", "dns:///a", False, True),
    ],
)
def test_a_card_that_leads_elsewhere_than_it_came_from_is_refused(came, protocol, leads, taken, taken_if_asked):
    fetched = Fetched(f"{came}://a/.well-known/agentcard", json.dumps(with_endpoint(protocol, leads)).encode())
    for any_scheme, expected in ((False, taken), (True, taken_if_asked)):
        if expected:
            assert examine(fetched, any_scheme=any_scheme)["endpoint"]["url"] == leads
            continue
        with pytest.raises(CardNotFetched, match="leads elsewhere") as caught:
            examine(fetched, any_scheme=any_scheme)
        assert [finding.rule for finding in caught.value.findings] == ["§8.5"]


async def test_a_card_that_is_not_valid_is_refused_with_all_that_is_wrong():
    async with serving(card(version="1", name="")) as url:
        with pytest.raises(CardNotFetched, match="not valid") as caught:
            examine(await fetch_card(url))
        assert [finding.pointer for finding in caught.value.findings] == ["/name", "/version"]


@pytest.mark.parametrize(
    ("headers", "max_age"),
    [
        ({}, 0),
        ({"Cache_Control": "max-age=60"}, 60),
        ({"Cache_Control": 'public, Max-Age="60", must-revalidate'}, 60),
        ({"Cache_Control": "max-age=60", "Age": "20"}, 40),
        ({"Cache_Control": "max-age=60", "Age": "90"}, 0),
        ({"Cache_Control": "max-age=60", "Age": "x"}, 60),
        ({"Cache_Control": "max-age=999999999"}, 86_400),
        ({"Cache_Control": "max-age=-1"}, 0),
        ({"Cache_Control": "max-age=60, no-cache"}, 0),
        ({"Cache_Control": "no-store, max-age=60"}, None),
        ({"Cache_Control": "s-maxage=60"}, 0),
    ],
)
async def test_how_long_a_card_may_be_kept_is_its_servers_to_say_and_a_day_at_most(headers, max_age):
    async with serving(EXAMPLE, **headers) as url:
        assert (await fetch_card(url)).max_age == max_age


# --- what a hostile server tries --------------------------------------------------------------------------------------


async def test_a_body_without_end_is_cut_off_at_a_megabyte():
    sent = 0

    async def endless(stream, _head):
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            await stream.send_all(b" " * 65536)
            sent += 65536

    async with answering(endless) as url:
        assert "more than 1048576 bytes" in await refused(url)
    assert sent < 64 << 20


@pytest.mark.slow
async def test_a_server_that_dribbles_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(fetching, "TIME_S", 0.3)

    async def dribble(stream, _head):
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            await stream.send_all(b" ")
            await trio.sleep(0.01)  # its slowness is what is tested, not what is waited for

    async with answering(dribble) as url:
        with trio.fail_after(PATIENCE), pytest.raises(CarrierError, match=r"did not send a card within 0\.3 s"):
            await fetch_card(url)


@pytest.mark.slow
async def test_a_server_that_says_nothing_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(fetching, "TIME_S", 0.2)

    async def silent(_stream, _head):
        await trio.sleep_forever()

    async with answering(silent) as url:
        with trio.fail_after(PATIENCE), pytest.raises(CarrierError, match="is it the right server"):
            await fetch_card(url)


async def test_redirects_are_followed_three_times_and_no_more():
    asked = []

    async def onward(stream, head):
        left = int(head.split()[1].rsplit(b"/", 1)[-1] or 0)
        asked.append(left)
        if left:
            await stream.send_all(response(307, Location=f"/{left - 1}"))
        else:
            await stream.send_all(
                response(200, json.dumps(with_endpoint("http", "http://a/")).encode(), Content_Type=OWN)
            )

    async with answering(onward) as url:
        fetched = await fetch_card(f"{url}/3")
        assert (fetched.url, asked) == (f"{url}/0", [3, 2, 1, 0])
        asked.clear()
        assert "redirects more than 3 times" in await refused(f"{url}/4")
        assert asked == [4, 3, 2, 1], "the fifth is not asked"


async def test_a_redirect_to_itself_ends():
    async def again(stream, _head):
        await stream.send_all(response(302, Location="/x"))

    async with answering(again) as url:
        assert "redirects more than 3 times" in await refused(f"{url}/x")


@pytest.mark.parametrize(
    "location", ["", "ftp://a/", "https://", "https://u:p@a/", "http://[::g]/", "javascript:1", "file:///etc/passwd"]
)
async def test_a_redirect_to_nowhere_is_refused(location):
    async def nowhere(stream, _head):
        await stream.send_all(response(301, Location=location))

    async with answering(nowhere) as url:
        assert "redirects to no usable address" in await refused(url)


async def test_a_redirect_beyond_this_machine_over_plain_http_is_refused():
    async def away(stream, _head):
        await stream.send_all(response(302, Location="http://a.example/"))

    async with answering(away) as url:
        assert "use https" in await refused(url)


async def test_a_redirect_from_https_to_http_is_refused_whatever_was_asked(bench):
    context = bench.server_context()
    asked = []

    async def plain(stream, head):
        asked.append(head)
        await stream.send_all(response(200, b"{}", Content_Type=OWN))

    async with answering(plain) as target:

        async def downgrade(stream, _head):
            await stream.send_all(response(308, Location=target))

        async with answering(downgrade, tls=context) as url:
            assert "from https to plain http" in await refused(url, ca=bench.ca, insecure_http=True)
    assert asked == []


def test_a_redirect_onto_this_machine_is_refused():
    with pytest.raises(CardNotFetched, match="this machine"):
        fetching._check_redirect(
            fetching.httpx2.URL("https://a.example"), fetching.httpx2.URL("https://127.0.0.1/"), insecure_http=True
        )


@pytest.mark.parametrize("status", [204, 301, 304, 401, 403, 404, 500])
async def test_another_status_is_no_card(status):
    async def answer(stream, _head):
        await stream.send_all(response(status, Content_Type=OWN))

    async with answering(answer) as url:
        told = await refused(f"{url}/here")
        assert f"status {status}" in told or "no usable address" in told
        if status == 404:
            assert "a card is usually at /.well-known/agentcard" in told


async def test_a_page_is_no_card():
    async with serving(b"<html>", Content_Type="text/html; charset=utf-8") as url:
        assert "sends 'text/html' and no card" in await refused(url)


async def test_what_is_compressed_is_not_unpacked():
    async with serving(gzip.compress(b" " * 10_000_000), Content_Encoding="gzip") as url:
        assert "compressed" in await refused(url)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "noise",
    [b"", b"not http at all\r\n\r\n", HEAD + b"Content-Length: 99\r\n\r\n{}", HEAD + b"A: b\r\n" * 100_000],
    ids=["nothing", "a sentence", "half a body", "endless headers"],
)
async def test_what_is_not_http_is_told_and_is_no_bug(noise):
    async def answer(stream, _head):
        await stream.send_all(noise)

    async with answering(answer) as url:
        with trio.fail_after(PATIENCE), pytest.raises(CarrierError) as caught:
            await fetch_card(url)
    assert str(caught.value).startswith(url)


async def test_where_no_server_listens_the_url_is_named():
    async with serving(EXAMPLE) as url:
        pass
    with pytest.raises(CarrierError, match=url):
        await fetch_card(url)


async def test_a_304_that_was_not_asked_for_is_no_card():
    async def answer(stream, _head):
        await stream.send_all(response(304))

    async with answering(answer) as url:
        assert "status 304" in await refused(url)
        elsewhere = Fetched("http://127.0.0.1:1/other", b"{}", '"tag"')
        assert "status 304" in await refused(url, known=elsewhere)


async def test_nothing_of_the_environment_is_shown_to_a_server(monkeypatch, tmp_path):
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    heads = []

    async def answer(stream, head):
        heads.append(head.lower())
        await stream.send_all(
            response(200, json.dumps(EXAMPLE).encode(), Content_Type="application/json", Set_Cookie="a=b")
        )

    async with answering(answer) as url:
        await fetch_card(url)
        await fetch_card(url)
    assert len(heads) == 2
    for head in heads:
        assert b"authorization" not in head
        assert b"cookie" not in head
        assert b"accept-encoding: identity" in head
