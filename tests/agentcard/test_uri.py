"""The grammar of RFC 3986, against another implementation of it (that of jsonschema-rs's `format: uri`)."""

import jsonschema_rs
import pytest
from hypothesis import example, given, settings, strategies as st

from hearth.agentcard.document import parse_uri

OTHER = jsonschema_rs.Draft202012Validator({"format": "uri"}, validate_formats=True)

# The examples of RFC 3986 §1.1.2 and §3, and what is at the edges of the grammar.
GOOD = [
    "ftp://ftp.is.co.za/rfc/rfc1808.txt", "http://www.ietf.org/rfc/rfc2396.txt",
    "ldap://[2001:db8::7]/c=GB?objectClass?one",
    "mailto:John.Doe@example.com", "news:comp.infosystems.www.servers.unix", "tel:+1-816-555-1212",
    "telnet://192.0.2.16:80/", "urn:oasis:names:specification:docbook:dtd:xml:4.1.2", "a:", "a:/", "a://", "a:///",
    "a+b-c.d1:x", "x://u:p:q@h:0099/;=%41?/?#/?", "x://[v1F.a:b]", "x://[::ffff:1.2.3.4]:", "x://h:", "a:b:c@d//e",
    "x://%41", "x:?", "x:#", "x:?#", "x:a//b",
]  # fmt: skip
BAD = [
    "", ":", "1a:", "a b:", "ä:", "a:b c", "a:%", "a:%4", "a:%4g", "a:[", "a:#a#b", "a://[::1", "a://[::1]x",
    "a://[1:2]",
    "a://[::ffff:01.2.3.4]", "a://[v.a]", "a://[fe80::1%25eth0]", "a://h:8a", "a://u@v@h", "a:\n", "a:b\n", "/a", "a/b",
    "//h", "?", "a:\\", "a:{}", "a:ä", "a:\ud800", "a://[]", "a:^",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_what_is_a_uri_is_taken(text):
    assert parse_uri(text) is not None
    assert OTHER.is_valid(text)


@pytest.mark.parametrize("text", BAD)
def test_what_is_none_is_refused(text):
    assert parse_uri(text) is None
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert not OTHER.is_valid(text)


PIECE = st.sampled_from(
    ["a", "http", ":", "//", "/", "?", "#", "[", "]", "::1", "%41", "%", "@", "1", ".", "-", "~", "v1.a", "1.2.3.4",
     "2001:db8::7", "::ffff:1.2.3.4", " ", "é", "|", "!$&'()*+,;="]
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(PIECE, max_size=9).map("".join) | st.text(max_size=12).filter(lambda t: t.isprintable()))
@settings(max_examples=200)
@example("a://[1:2:3:4:5:6:7::]")
@example("a://[::2:3:4:5:6:7:8]")
@example("a://[1:2:3:4:5:6:7:8:9]")
def test_two_implementations_of_the_grammar_agree(text):
    assert (parse_uri(text) is not None) == OTHER.is_valid(text)


def test_the_parts_that_decide_where_a_uri_leads():
    found = parse_uri("HTTPS://user@[2001:db8::7]:8443/a?b#c")
    assert found is not None
    assert (found.scheme, found.host, found.port) == ("https", "[2001:db8::7]", "8443")
    assert [(u.host, u.port) for u in map(parse_uri, ["a:b", "a://", "a://h", "a://h:"])] == [
        (None, None), ("", None), ("h", None), ("h", ""),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_very_long_text_is_decided_in_linear_time():
    assert parse_uri("http://a/" + "%41/" * 100_000) is not None
    assert parse_uri("http://a/" + "a" * 1_000_000 + " ") is None
    assert parse_uri("http://" + "a:" * 500_000 + "[") is None
