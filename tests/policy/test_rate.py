"""Token buckets and the limits of sessions and principals: all for or none, told the time."""

import math

import pytest
from hypothesis import given, strategies as st

from hearth.errors import ConfigError, RateLimited
from hearth.policy.rules import Grant, PrincipalRates, Rate, RateLimits, TokenBucket


def limits(*, principal="uid:1000", policy="test", principals=None, **rates):
    named = {name.replace("_", "."): Rate.parse(text) for name, text in rates.items()}
    grant = Grant(policy, 2, 2, frozenset(named), named)
    return RateLimits(grant, principal, PrincipalRates() if principals is None else principals)


@pytest.mark.parametrize(
    ("text", "count", "period"),
    [("50/s", 50, 1), ("10/m", 10, 60), ("5/h", 5, 3600), ("100/10s", 100, 10), ("1/2m", 1, 120), ("007/1s", 7, 1)],
)
def test_a_rate_reads_as_uses_per_time(text, count, period):
    assert Rate.parse(text) == Rate(count, period)


@pytest.mark.parametrize(
    "text",
    [
        "", "50", "50/", "/s", "50/d", "50/ms", "50/s ", " 50/s", "50/s\n", "-1/s", "+1/s", "1.5/s", "1/1.5s", "0/s",
        "5/0s", "5/S", "٥/s", "5/٥s", "10000000/s", "5/10000000s", "5 / s", "5/-1s", None, 50, ["5/s"], b"5/s",
    ],
)  # fmt: skip
def test_anything_else_is_a_configuration_error_that_shows_it(text):
    with pytest.raises(ConfigError) as refused:
        Rate.parse(text)
    assert repr(text) in str(refused.value)


@pytest.mark.slow
@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_a_rate_reads_back_as_it_is_written(count, period):
    assert Rate.parse(str(Rate(count, period))) == Rate(count, period)


def test_the_burst_passes_at_once_and_then_one_per_interval():
    bucket = TokenBucket(Rate(5, 1))
    assert [bucket.take(100.0) for _ in range(5)] == [0.0] * 5
    assert bucket.take(100.0) == pytest.approx(0.2)
    assert bucket.take(100.1) == pytest.approx(0.1)
    assert bucket.take(100.2) == 0.0
    assert bucket.take(100.2) == pytest.approx(0.2)


def test_what_is_refused_costs_nothing():
    bucket = TokenBucket(Rate(2, 1))
    bucket.take(0.0, 2)
    for _ in range(100):
        assert bucket.take(0.0) == pytest.approx(0.5)


def test_looking_costs_nothing():
    bucket = TokenBucket(Rate(1, 1))
    assert [bucket.peek(0.0), bucket.peek(0.0), bucket.take(0.0)] == [0.0, 0.0, 0.0]


def test_a_bucket_never_holds_more_than_its_burst():
    bucket = TokenBucket(Rate(3, 1))
    bucket.take(0.0)
    assert bucket.take(1e9, 3) == 0.0
    assert bucket.take(1e9) > 0


def test_more_than_the_burst_can_never_be_had():
    bucket = TokenBucket(Rate(3, 1))
    assert bucket.take(0.0, 4) == math.inf
    assert bucket.take(0.0, 3) == 0.0


def test_tokens_that_are_put_back_can_be_taken_again():
    bucket = TokenBucket(Rate(3, 1))
    bucket.take(0.0, 3)
    bucket.put_back(2)
    assert bucket.take(0.0, 2) == 0.0
    assert bucket.take(0.0) > 0


@pytest.mark.slow
@given(
    rate=st.builds(Rate, st.integers(1, 1000), st.integers(1, 100)),
    start=st.floats(0, 2e9),
    n=st.integers(1, 1000),
)
def test_waiting_as_long_as_told_gets_through(rate, start, n):
    bucket = TokenBucket(rate)
    n = min(n, rate.count)
    assert bucket.take(start, rate.count) == 0.0
    wait = bucket.take(start, n)
    assert wait > 0
    assert bucket.take(start + wait, n) == 0.0


@pytest.mark.slow
@given(
    rate=st.builds(Rate, st.integers(1, 20), st.integers(1, 10)),
    steps=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 5)), min_size=1, max_size=60),
)
def test_no_stretch_of_time_sees_more_than_the_burst_and_the_average(rate, steps):
    bucket, now, granted = TokenBucket(rate), 1000.0, []
    for pause, n in steps:
        now += pause
        if not bucket.take(now, n):
            granted.append((now, n))
    for first in range(len(granted)):
        used = 0
        for at, n in granted[first:]:
            used += n
            assert used <= rate.count * (1 + (at - granted[first][0]) / rate.period_s) + 1e-3


def test_a_clock_that_steps_back_gives_nothing_away():
    bucket = TokenBucket(Rate(2, 1))
    bucket.take(100.0, 2)
    assert bucket.take(50.0) > 0


def test_a_submit_takes_all_its_tokens_or_none():
    session = limits(gpio_set="3/s", i2c_write="1/s")
    assert session.check({"gpio.set": 1, "i2c.write": 1}, 0.0) is None
    assert session.check({"gpio.set": 2, "i2c.write": 1}, 0.0) == ("i2c.write", pytest.approx(1.0))
    assert session.check({"gpio.set": 2}, 0.0) is None
    assert session.check({"gpio.set": 1}, 0.0) == ("gpio.set", pytest.approx(1 / 3))


def test_the_tool_that_waits_longest_is_the_one_that_is_named():
    session = limits(gpio_set="1/s", i2c_write="1/m")
    session.check({"gpio.set": 1, "i2c.write": 1}, 0.0)
    assert session.check({"gpio.set": 1, "i2c.write": 1}, 0.0) == ("i2c.write", pytest.approx(60))
    assert session.check({"i2c.write": 1, "gpio.set": 1}, 0.0) == ("i2c.write", pytest.approx(60))


def test_the_sessions_of_a_principal_use_up_one_rate():
    principals = PrincipalRates()
    first, second = (limits(principals=principals, gpio_set="3/h", gpio_get="1/s") for _ in range(2))
    assert first.check({"gpio.set": 2}, 0.0) is None
    assert second.check({"gpio.set": 2}, 0.0) == ("gpio.set", pytest.approx(1200))
    assert second.check({"gpio.set": 1}, 0.0) is None
    for session in (first, second, limits(principals=principals, gpio_set="3/h", gpio_get="1/s")):
        assert session.check({"gpio.set": 1, "gpio.get": 1}, 0.0) == ("gpio.set", pytest.approx(1200))
    assert second.check({"gpio.get": 1}, 0.0) is None, "what was refused took no token of another tool"


def test_principals_and_policy_entries_have_rates_of_their_own():
    principals = PrincipalRates()
    for principal, policy in (("uid:1", "a"), ("uid:2", "a"), ("uid:1", "b")):
        session = limits(principal=principal, policy=policy, principals=principals, gpio_set="1/h")
        assert session.check({"gpio.set": 1}, 0.0) is None
        assert session.check({"gpio.set": 1}, 0.0) is not None


def test_a_submit_that_its_principal_may_not_make_takes_nothing_from_its_session():
    principals = PrincipalRates(most=1)
    first, second = (limits(principals=principals, gpio_set="2/h") for _ in range(2))
    assert first.check({"gpio.set": 2}, 0.0) is None
    assert second.check({"gpio.set": 2}, 0.0) is not None
    principals.buckets("uid:2", "test", 0.0)  # and the first principal is forgotten
    assert second.check({"gpio.set": 2}, 0.0) is None


def test_what_is_put_back_is_put_back_for_the_session_and_for_its_principal():
    principals = PrincipalRates()
    first, second = (limits(principals=principals, gpio_set="2/h") for _ in range(2))
    assert first.check({"gpio.set": 2}, 0.0) is None
    first.put_back({"gpio.set": 2}, 0.0)
    assert second.check({"gpio.set": 2}, 0.0) is None
    second.put_back({"gpio.set": 2}, 0.0)
    assert first.check({"gpio.set": 2}, 0.0) is None


def test_principals_are_kept_in_bounded_number_and_those_with_something_to_wait_for_the_longest():
    principals = PrincipalRates(most=3)
    for name, uses in (("slow", 3), ("fast", 1), ("done", 1)):
        limits(principal=name, principals=principals, gpio_set="3/h").check({"gpio.set": uses}, 0.0)
    now = 1200.0  # "fast" and "done" are full again
    limits(principal="new", principals=principals, gpio_set="3/h").check({"gpio.set": 1}, now)
    assert len(principals) == 2
    assert limits(principal="slow", principals=principals, gpio_set="3/h").check({"gpio.set": 2}, now) is not None
    for number in range(100):
        limits(principal=f"{number}", principals=principals, gpio_set="3/h").check({"gpio.set": 1}, now)
        assert len(principals) <= 3
    assert limits(principal="slow", principals=principals, gpio_set="3/h").check({"gpio.set": 2}, now) is not None


def test_a_session_is_held_to_its_rate_though_its_principal_was_forgotten():
    principals = PrincipalRates(most=1)
    session = limits(principals=principals, gpio_set="1/h")
    assert session.check({"gpio.set": 1}, 0.0) is None
    principals.buckets("uid:2", "test", 0.0)
    assert session.check({"gpio.set": 1}, 0.0) == ("gpio.set", pytest.approx(3600))


def test_a_submit_that_is_refused_later_gives_its_tokens_back():
    session = limits(gpio_set="2/s")
    counts = {"gpio.set": 2}
    assert session.check(counts, 0.0) is None
    session.put_back(counts, 0.0)
    assert session.check(counts, 0.0) is None


def test_a_refusal_says_when_to_come_back_rounded_up():
    session = limits(gpio_set="3/s")
    session.check({"gpio.set": 3}, 0.0)
    tool, wait = session.check({"gpio.set": 1}, 0.0)
    error = session.refusal(tool, wait)
    assert isinstance(error, RateLimited)
    assert (error.data["tool"], error.data["rate"], error.data["retry_after_ms"]) == ("gpio.set", "3/s", 334)
    assert session.check({"gpio.set": 1}, error.data["retry_after_ms"] / 1000) is None


def test_a_submit_that_can_never_pass_is_told_so_and_not_to_come_back():
    session = limits(gpio_set="3/10s")
    tool, wait = session.check({"gpio.set": 4}, 0.0)
    error = session.refusal(tool, wait)
    assert wait == math.inf
    assert "retry_after_ms" not in error.data
    assert "at most 3 times (rate 3/10s)" in error.data["reason"]
    assert error.data["rate"] == "3/10s"
    assert error.message == error.data["reason"]
