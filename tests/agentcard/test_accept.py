"""Which media type a reader of the card gets."""

import pytest

from hearth.actors.bridges.http.app import OWN, PLAIN, choose


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ([], OWN),
        ([""], OWN),
        (["*/*"], OWN),
        (["application/*"], OWN),
        (["application/json, */*;q=0.5"], PLAIN),
        (["application/json;q=0.9, application/agentcard+json;q=0.8"], PLAIN),
        (["application/json;q=0.8", "APPLICATION/AGENTCARD+JSON; Q=0.9"], OWN),
        (["application/json, application/agentcard+json"], OWN),
        (["application/agentcard+json;q=0, */*"], PLAIN),
        (["application/json; charset=utf-8; q=1"], PLAIN),
        (["text/html, application/xhtml+xml, */*;q=0.8"], OWN),
        (["text/html"], None),
        (["*/*;q=0"], None),
        (["application/json;q=x"], None),
        (["application/json;q=2"], None),
        (["application/json;q=nan"], None),
        (["*/json"], None),
    ],
)
def test_the_media_type_is_chosen_as_http_has_it(accept, chosen):
    assert choose(accept) == chosen
