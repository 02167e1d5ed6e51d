"""/.well-known/agentcard on a real socket: media types, caching, and who may read it."""

import json

import httpx2
import pytest
from support.card_server import hosting
from support.cards import EXAMPLE

from hearth.actors.bridges.http.app import PATH, card_routes
from hearth.agentcard.validate import validate

OWN, PLAIN = "application/agentcard+json", "application/json"


@pytest.fixture
async def published():
    """A client of a server whose card is `published.card`."""

    class Published:
        card = EXAMPLE

    async with hosting(card_routes(lambda: Published.card)) as url, httpx2.AsyncClient(base_url=url) as client:
        Published.client = client
        yield Published


@pytest.mark.spec(
    "card 4",
    "SHOULD",
    "An agent that serves its AgentCard at a well-known HTTP(S) endpoint SHOULD publish it at the path "
    "/.well-known/agentcard relative to the agent's base URL (see Section 9.2).",
)
@pytest.mark.spec(
    "card 4",
    "SHOULD",
    "For example, an agent at https://agents.example.com/ SHOULD publish its AgentCard at: GET "
    "https://agents.example.com/.well-known/agentcard",
)
@pytest.mark.spec(
    "card 3",
    "RECOMMENDED",
    "The RECOMMENDED media type for AgentCard documents is application/agentcard+json (see Section 9.1).",
)
async def test_the_card_is_at_its_well_known_place_in_its_own_media_type(published):
    assert PATH == "/.well-known/agentcard"
    answer = await published.client.get("/.well-known/agentcard", headers={"Accept": OWN})
    assert (answer.status_code, answer.headers["content-type"]) == (200, OWN)
    assert validate(answer.content) == []
    assert answer.json() == EXAMPLE


@pytest.mark.spec("card 4", "SHOULD", "The response SHOULD include a Cache-Control header.")
@pytest.mark.spec(
    "card 4",
    "RECOMMENDED",
    "AgentCards are relatively stable documents; a max-age of 3600 seconds (one hour) is RECOMMENDED.",
)
async def test_a_card_may_be_kept_for_an_hour_and_asked_for_again_by_its_tag(published):
    first = await published.client.get(PATH)
    assert first.headers["cache-control"] == "max-age=3600"
    tag = first.headers["etag"]
    for asked in (tag, f'"other", W/{tag}', "*"):
        again = await published.client.get(PATH, headers={"If-None-Match": asked})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["cache-control"] == "max-age=3600"
        assert again.headers["vary"] == "Accept"
    assert (await published.client.get(PATH, headers={"If-None-Match": '"other"'})).status_code == 200
    published.card = {**EXAMPLE, "version": "1.2.1"}
    changed = await published.client.get(PATH, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.json()["version"]) == (200, "1.2.1")
    assert changed.headers["etag"] != tag


@pytest.mark.spec(
    "card 3",
    "SHOULD",
    "Implementations SHOULD also accept application/json for backward compatibility.",
)
async def test_who_accepts_json_gets_json_with_a_tag_of_its_own(published):
    plain = await published.client.get(PATH, headers={"Accept": PLAIN})
    assert (plain.status_code, plain.headers["content-type"]) == (200, PLAIN)
    own = await published.client.get(PATH, headers={"Accept": OWN})
    assert own.content == plain.content
    assert own.headers["etag"] != plain.headers["etag"]
    assert own.headers["vary"] == plain.headers["vary"] == "Accept"


async def test_who_accepts_neither_is_told_what_there_is(published):
    answer = await published.client.get(PATH, headers={"Accept": "text/html"})
    assert answer.status_code == 406
    assert OWN in answer.json()["error"]
    assert answer.headers["cache-control"] == "no-store"


async def test_head_has_the_same_headers_and_no_body(published):
    get = await published.client.get(PATH)
    head = await published.client.head(PATH)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "cache-control", "vary", "access-control-allow-origin"):
        assert head.headers[name] == get.headers[name]


async def test_a_page_of_any_place_may_read_it(published):
    answer = await published.client.get(PATH, headers={"Origin": "https://elsewhere.example"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["access-control-expose-headers"] == "ETag"
    asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "GET"}
    preflight = await published.client.options(PATH, headers=asked)
    assert (preflight.status_code, preflight.content) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert preflight.headers["access-control-allow-methods"] == "GET, HEAD"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_it_is_for_reading_only(published, method):
    assert (await published.client.request(method, PATH)).status_code == 405


async def test_where_there_is_no_valid_card_the_answer_says_where_to_look(published):
    published.card = None
    answer = await published.client.get(PATH)
    assert answer.status_code == 503
    assert "log" in json.loads(answer.content)["error"]
