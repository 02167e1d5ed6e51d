"""What tools are called over MCP: names that every client takes, and that no two tools share."""

from __future__ import annotations

import re

import pytest
from attrs import evolve
from conformance.pages import reference_pages
from hypothesis import example, given, strategies as st

from hearth.errors import ConfigError
from hearth.mcp import names
from hearth.mcp.names import LONGEST, RESERVED, by_mcp_name, mcp_name
from hearth.mcp.tools import ToolView
from hearth.tools import CARD_NAMESPACE

FITS = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
SEGMENT = st.text("ab_1", min_size=1, max_size=4)
HACP_NAMES = st.builds(lambda first, rest: ".".join(["a" + first, *rest]), SEGMENT, st.lists(SEGMENT, max_size=3))
LONG_NAMES = st.builds(lambda tail: f"com.acme.{'x' * 60}.{tail}", st.text("ab._", min_size=1, max_size=60))
OURS = st.sampled_from(["hacp.plan", "hacp_plan", "agentcard.list", "agentcard_list", "agentcard.declare.v2"])
ANY_NAMES = st.one_of(HACP_NAMES, LONG_NAMES, OURS, st.text(max_size=80))


@pytest.mark.parametrize(
    ("hacp", "mcp"),
    [
        ("gpio.set", "gpio_set"),
        ("gpio.set.v2", "gpio_set_v2"),
        ("hw.gpio.list", "hw_gpio_list"),
        ("a.b_c", "a_b-c"),
        ("a_b.c", "a-b_c"),
        ("com.acme.modbus.read_all", "com_acme_modbus_read-all"),
    ],
)
def test_a_dot_becomes_an_underscore_and_an_underscore_a_dash(hacp: str, mcp: str) -> None:
    assert mcp_name(hacp) == mcp


@pytest.mark.parametrize("name", reference_pages.registry())
def test_a_shipped_tool_is_called_by_its_name_with_underscores(name: str) -> None:
    assert mcp_name(name) == name.replace(".", "_")


@pytest.mark.slow
@given(ANY_NAMES)
@example("")
@example("\ud800")
def test_every_name_is_one_that_every_client_takes(name: str) -> None:
    assert FITS.match(mcp_name(name))


@pytest.mark.slow
@given(ANY_NAMES)
def test_no_tool_is_called_as_one_of_the_bridges_own(name: str) -> None:
    assert mcp_name(name) not in RESERVED
    assert not mcp_name(name).startswith(("hacp_", "agentcard_")) or "-X" in mcp_name(name)


@pytest.mark.slow
@given(st.lists(ANY_NAMES, unique=True, max_size=30))
@example(["a.b_c", "a_b.c", "a.b.c", "a_b_c", "a-b_c"])
@example(["hacp.plan", "hacp_plan", "Hacp.plan", "hacp plan"])
@example(["x." + "y" * 80, "x." + "y" * 81, "x." + "y" * 62])
def test_no_two_tools_share_a_name(hacp: list[str]) -> None:
    assert list(by_mcp_name(hacp).values()) == hacp


TOOL_NAMES = HACP_NAMES.filter(lambda name: "." in name and not name.startswith(CARD_NAMESPACE))


@pytest.mark.slow
@given(st.lists(TOOL_NAMES, unique=True, min_size=1, max_size=10))
@example(["a.b", "a_b.c", "a.b_c", "a.tool.b"])
def test_of_all_the_names_that_tools_are_called_by_none_means_two(hacp: list[str]) -> None:
    forms = [form for name in hacp for form in (mcp_name(name), name, CARD_NAMESPACE + name)]
    assert len(set(forms)) == len(forms)
    view = ToolView({"name": name, "risk_level": 0} for name in hacp)
    for name in hacp:
        for form in (mcp_name(name), name, CARD_NAMESPACE + name):
            assert (view.find(form) or {}).get("name") == name


@pytest.mark.parametrize("name", ["tool.x", "tool.gpio.get"])
def test_a_tool_that_is_named_as_an_id_of_the_card_is_refused(name: str) -> None:
    shipped = reference_pages.registry()["gpio.get"]
    with pytest.raises(ConfigError, match="choose another family"):
        evolve(shipped, name=name)


@pytest.mark.slow
@given(st.lists(HACP_NAMES, unique=True, min_size=2, max_size=10), st.randoms())
def test_a_name_depends_on_no_other_tool_and_on_no_order(hacp: list[str], random) -> None:
    whole = {name: mcp for mcp, name in by_mcp_name(hacp).items()}
    some = random.sample(hacp, random.randint(1, len(hacp)))
    assert {name: mcp for mcp, name in by_mcp_name(some).items()} == {name: whole[name] for name in some}


def test_a_long_name_is_cut_and_keeps_what_tells_it_apart() -> None:
    one, two = "com.acme." + "valve_" * 12 + "open", "com.acme." + "valve_" * 12 + "shut"
    assert len(mcp_name(one)) == len(mcp_name(two)) == LONGEST
    assert mcp_name(one)[:40] == mcp_name(two)[:40] == ("com_acme_" + "valve-" * 12)[:40]
    assert mcp_name(one) != mcp_name(two)


def test_a_name_of_64_characters_is_not_cut() -> None:
    assert mcp_name("a." + "b" * 62) == "a_" + "b" * 62
    assert mcp_name("a." + "b" * 63) != "a_" + "b" * 63


def test_names_whose_digests_agree_are_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # With whole digests that takes a million of tries; with one digit, seventeen tools.
    monkeypatch.setattr(names, "_DIGITS", 1)
    many = [f"com.acme.{'x' * 60}.t{number}" for number in range(17)]
    with pytest.raises(ConfigError, match=r"tools 'com\.acme\..*' and 'com\.acme\..*' have one MCP name, .*; rename"):
        by_mcp_name(many)
