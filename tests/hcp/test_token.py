"""Session tokens (L3): what one says, that it ends with its task, and that nobody else makes one."""

from __future__ import annotations

import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import timedelta
from random import Random

import pytest

from hearth.hcp.messages import new_id
from hearth.hcp.token import KEY_BYTES, MOST_CHARACTERS, TokenError, issue, verify

KEY = os.urandom(KEY_BYTES)
NOW = 1_736_929_800.5
SESSION = new_id()
HOUR = timedelta(hours=1)


def token(**changes) -> str:
    said = {
        "session_id": SESSION,
        "now": NOW,
        "max_duration": HOUR,
        "risk": "R3",
        "classification": "T2",
        "constraints": {"max_duration": "PT1H", "safety_envelope": {"parameters": {"temperature": {"max": 60}}}},
    }
    return issue(KEY, **{**said, **changes})


@pytest.mark.spec("hcp L3 Session Token", "is", "Encodes the approved risk level and constraints")
@pytest.mark.spec("hcp L3 Session Token Properties")
def test_a_token_says_what_was_approved_for_which_session_and_until_when() -> None:
    claims = verify(KEY, token(), NOW + 1, session_id=SESSION)
    assert claims.session_id == SESSION
    assert claims.issued_at == NOW
    assert claims.approved_risk_level == "R3"
    assert claims.approved_data_classification == "T2"
    assert claims.constraints["safety_envelope"]["parameters"]["temperature"]["max"] == 60
    assert verify(KEY, token(constraints=None), NOW, session_id=SESSION).constraints == {}


@pytest.mark.spec(
    "hcp L3 Session Token Properties",
    "MUST",
    "expires_at | When the token expires (MUST be ≤ task max_duration)",
)
def test_a_token_expires_when_its_task_may_last_no_longer() -> None:
    issued = token()
    claims = verify(KEY, issued, NOW, session_id=SESSION)
    assert claims.expires_at - claims.issued_at == HOUR.total_seconds()
    verify(KEY, issued, NOW + 3599.999, session_id=SESSION)
    for later in (3600, 3601, 1e9):
        with pytest.raises(TokenError, match="expired"):
            verify(KEY, issued, NOW + later, session_id=SESSION)


def test_a_clock_that_was_set_back_ends_no_session() -> None:
    verify(KEY, token(), NOW - 60, session_id=SESSION)


@pytest.mark.spec("hcp L3 Token Format", "is", "It is an opaque string from the caller's perspective")
def test_a_token_is_an_opaque_string_of_safe_characters() -> None:
    issued = token()
    assert issued.isascii()
    assert issued.count(".") == 1
    assert set(issued) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    assert token() == issued


def test_the_token_of_another_session_is_refused() -> None:
    with pytest.raises(TokenError, match="another session's"):
        verify(KEY, token(session_id=new_id()), NOW, session_id=SESSION)


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(TokenError, match="no session token"):
        verify(os.urandom(KEY_BYTES), token(), NOW, session_id=SESSION)


def test_what_was_approved_cannot_be_changed() -> None:
    said, _, signature = token().partition(".")
    claims = urlsafe_b64decode(said + "=" * (-len(said) % 4))
    assert b'"R3"' in claims
    forged = urlsafe_b64encode(claims.replace(b'"R3"', b'"R1"')).rstrip(b"=").decode()
    with pytest.raises(TokenError, match="no session token"):
        verify(KEY, f"{forged}.{signature}", NOW, session_id=SESSION)


@pytest.mark.spec("hcp L3 Token Format", "is", "It is verifiable by the callee's L2 and L1 layers")
@pytest.mark.parametrize(
    "text", ["", ".", "a", "a.b", "a.b.c", "é.é", "\ud800.\ud800", "." * 99, "x" * MOST_CHARACTERS + ".", "...", "\x00"]
)
def test_what_is_no_token_is_refused_and_not_repeated(text) -> None:
    with pytest.raises(TokenError) as raised:
        verify(KEY, text, NOW, session_id=SESSION)
    assert str(raised.value) == "this is no session token that was issued here"


def test_a_token_with_any_character_changed_lost_or_added_is_refused() -> None:
    issued, random = token(), Random(7)
    for place in range(len(issued)):
        other = random.choice("AZaz09-_.é")
        for changed in (
            issued[:place] + other + issued[place + 1 :],
            issued[:place] + issued[place + 1 :],
            issued[:place] + other + issued[place:],
        ):
            if changed != issued:
                with pytest.raises(TokenError):
                    verify(KEY, changed, NOW, session_id=SESSION)
    for changed in (issued + "=", issued + "\n", " " + issued, issued.swapcase(), issued * 2):
        with pytest.raises(TokenError):
            verify(KEY, changed, NOW, session_id=SESSION)
