"""Bearer tokens: their form, and whose one is."""

import hashlib
import hmac
import re

import pytest

from hearth.policy.principal import MAX_TOKEN, Principal, Tokens, from_token, new_token
from hearth.policy.rules import Match, PolicyEntry, token_digests


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def test_the_bearer_of_a_known_token_is_known_by_its_digest():
    tokens = Tokens([digest("one"), digest("two")])
    assert tokens.bearer("two") == from_token("two") == Principal("token", token_sha256=digest("two"))
    assert tokens.bearer("one").key == f"token:{digest('one')}"


def test_a_digest_may_be_written_in_capitals():
    assert Tokens([digest("one").upper()]).bearer("one") == from_token("one")


@pytest.mark.parametrize(
    "offered", ["three", "", "One", "one ", " one", "one\n", "on", digest("one"), "\ud800", "one\0", "é" * 9]
)
def test_whatever_else_is_offered_is_no_principal(offered):
    assert Tokens([digest("one")]).bearer(offered) is None


def test_what_is_too_long_for_a_token_is_not_even_hashed():
    long = "x" * MAX_TOKEN
    tokens = Tokens([digest(long), digest(long + "x")])
    assert tokens.bearer(long) is not None
    assert tokens.bearer(long + "x") is None


def test_without_tokens_there_is_no_bearer():
    assert not Tokens([])
    assert Tokens([]).bearer("") is None
    assert Tokens([]).bearer("one") is None
    assert Tokens([digest("one")])


def test_every_digest_is_compared_in_constant_time_whichever_fits(monkeypatch):
    compared = []

    def compare(known, offered):
        compared.append(known)
        return hmac_compare(known, offered)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", compare)
    digests = [digest(name) for name in ("one", "two", "three")]
    for offered in ("one", "three", "none of them"):
        compared.clear()
        Tokens(digests).bearer(offered)
        assert compared == [one.encode() for one in digests]


def test_a_match_compares_digests_in_constant_time_too(monkeypatch):
    monkeypatch.setattr(hmac, "compare_digest", lambda _ours, _theirs: True)
    assert Match(token_sha256=digest("one")).holds(from_token("two")), "nothing else decides"
    assert not Match(token_sha256=digest("one")).holds(Principal("unix", uid=0))


def test_nothing_that_is_printed_of_them_holds_a_token():
    token = new_token()
    tokens = Tokens([digest(token)])
    assert token not in f"{tokens!r} {tokens.bearer(token)!r}"
    assert tokens.__slots__ == ("_digests",)


def test_a_new_token_is_256_bits_of_chance_in_characters_that_go_anywhere():
    made = [new_token() for _ in range(100)]
    assert len(set(made)) == 100
    for token in made:
        assert re.fullmatch(r"hearth_[A-Za-z0-9_-]{43}", token)


def test_the_digests_of_a_policy_are_those_of_all_its_conditions():
    one, two = digest("one"), digest("two")
    entries = [
        PolicyEntry(name="a", match=[Match(uid=5), Match(token_sha256=one.upper())]),
        PolicyEntry(name="b", match=Match(token_sha256=two)),
        PolicyEntry(name="c", match=Match(token_sha256=two, cert_subject="CN=x")),
        PolicyEntry(name="d", match=Match(any=True)),
    ]
    assert token_digests(entries) == {one, two}
    assert token_digests([]) == frozenset()
