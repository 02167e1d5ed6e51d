"""Policy entries: who matches, what they may use, how risky and how often."""

import attrs
import pytest

from hearth.actors.build import unknown_accounts
from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.principal import Principal
from hearth.policy.rules import (
    RIGHTS,
    Grant,
    Match,
    PolicyEntry,
    Rate,
    decide,
    default_policy,
    idle_conditions,
    owner_without_entry,
    unused_patterns,
)
from hearth.tools import Tool, ToolRegistry


async def nothing(_ctx, _args):
    return {}


def tool(name, *, risk=0, default_rate=None):
    return Tool(
        name=name,
        risk_level=risk,
        timeout_ms=1000,
        description="does nothing",
        params_schema={},
        result_schema={},
        capability="CAP_TEST",
        bus=lambda _args: "test",
        run=nothing,
        default_rate=default_rate,
    )


TOOLS = ToolRegistry(
    [
        tool("gpio.get"),
        tool("gpio.set", risk=2, default_rate="100/s"),
        tool("file.delete", risk=3),
        tool("com.acme.modbus.read"),
    ]
)
ADA = Principal(
    "unix", uid=1000, gid=100, pid=5, user="ada", groups=frozenset((44, 997)), group_names=frozenset(("users", "gpio"))
)
ARM = Principal(
    "tls",
    cert_subject="CN=arm-7,O=Acme",
    cert_sans=frozenset(("DNS:arm-7.local", "IP:fe80::7", "URI:spiffe://acme/Arm")),
)
BEARER = Principal("token", token_sha256="ab" * 32)
EVERYBODY = (ADA, ARM, BEARER)


@pytest.mark.parametrize(
    ("match", "who"),
    [
        (Match(uid=1000), ADA),
        (Match(gid=100), ADA),
        (Match(gid=997), ADA),
        (Match(user="ada"), ADA),
        (Match(group="users"), ADA),
        (Match(group="gpio"), ADA),
        (Match(uid=1000, user="ada", group="gpio", gid=44), ADA),
        (Match(cert_subject="CN=arm-7,O=Acme"), ARM),
        (Match(cert_san="DNS:arm-7.local"), ARM),
        (Match(cert_san="DNS:ARM-7.Local"), ARM),
        (Match(cert_san="IP:fe80:0:0::0:7"), ARM),
        (Match(cert_san="URI:spiffe://acme/Arm"), ARM),
        (Match(cert_san="DNS:arm-7.local", cert_subject="CN=arm-7,O=Acme"), ARM),
        (Match(token_sha256="AB" * 32), BEARER),
    ],
)
def test_a_match_holds_for_the_principal_it_describes_and_no_other(match, who):
    assert [match.holds(other) for other in EVERYBODY] == [other is who for other in EVERYBODY]


@pytest.mark.parametrize(
    "match",
    [
        Match(uid=1001),
        Match(uid=0),
        Match(gid=1000),
        Match(user="Ada"),
        Match(group="ada"),
        Match(uid=1000, user="bob"),
        Match(uid=1000, cert_subject="CN=arm-7,O=Acme"),
        Match(cert_subject="CN=arm-7"),
        Match(cert_san="DNS:arm-7"),
        Match(cert_san="URI:arm-7.local"),
        Match(cert_san="URI:spiffe://acme/arm"),
        Match(cert_san="DNS:arm-7.local", cert_subject="CN=arm-8"),
        Match(cert_san="DNS:arm-7.local", uid=1000),
        Match(token_sha256="ac" * 32),
    ],
)
def test_one_field_that_does_not_hold_is_enough_to_miss(match):
    assert not any(match.holds(who) for who in EVERYBODY)


def test_any_matches_everybody():
    assert all(Match(any=True).holds(who) for who in EVERYBODY)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({}, "match: empty"),
        ({"any": False}, "match: empty"),
        ({"any": True, "uid": 0}, "match: any = true"),
        ({"any": 1}, "match.any"),
        ({"uid": -1}, "match.uid"),
        ({"uid": True}, "match.uid"),
        ({"uid": "1000"}, "match.uid"),
        ({"uid": 4294967295}, "match.uid"),
        ({"gid": 1.0}, "match.gid"),
        ({"user": ""}, "match.user"),
        ({"group": 44}, "match.group"),
        ({"cert_subject": ""}, "match.cert_subject"),
        ({"cert_san": ""}, "match.cert_san"),
        ({"cert_san": 7}, "match.cert_san"),
        ({"cert_san": "arm-7.local"}, "match.cert_san: expected DNS:NAME, IP:ADDRESS"),
        ({"cert_san": "dns:arm-7.local"}, "match.cert_san"),
        ({"cert_san": "DNS:"}, "match.cert_san"),
        ({"cert_san": "IP:arm-7"}, "match.cert_san"),
        ({"any": True, "cert_san": "DNS:a"}, "match: any = true"),
        ({"token_sha256": "my-token"}, "match.token_sha256"),
        ({"token_sha256": "ab" * 32 + "\n"}, "match.token_sha256"),
        ({"token_sha256": 7}, "match.token_sha256"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_a_configuration_error_that_names_it(fields, place):
    with pytest.raises(ConfigError, match=place):
        Match(**fields)


def test_a_token_written_where_its_digest_belongs_is_not_repeated_in_the_error():
    with pytest.raises(ConfigError) as refused:
        Match(token_sha256="hunter2")
    assert "hunter2" not in str(refused.value)


def test_the_first_entry_that_matches_wins():
    first = PolicyEntry(name="first", match=Match(user="ada"), max_risk=0)
    second = PolicyEntry(name="second", match=Match(any=True), max_risk=3)
    assert decide([first, second], ADA, TOOLS).policy == "first"
    assert decide([second, first], ADA, TOOLS).policy == "second"
    assert decide([first, second], ARM, TOOLS).policy == "second"


def test_no_match_means_nothing_is_granted():
    assert decide([PolicyEntry(name="ada", match=Match(user="ada"))], ARM, TOOLS) is None
    assert decide([], ADA, TOOLS) is None


def test_of_several_conditions_one_is_enough():
    entry = PolicyEntry(name="both", match=[Match(user="bob"), Match(cert_subject="CN=arm-7,O=Acme")])
    assert decide([entry], ARM, TOOLS) is not None
    assert decide([entry], ADA, TOOLS) is None


def test_a_condition_may_be_given_as_a_mapping():
    assert PolicyEntry(name="a", match={"uid": 1}).match == (Match(uid=1),)
    assert PolicyEntry(name="a", match=({"uid": 1}, Match(gid=2))).match == (Match(uid=1), Match(gid=2))


def test_the_defaults_are_all_tools_at_risk_two_and_no_relaxing():
    grant = decide([PolicyEntry(name="plain", match=Match(any=True))], ADA, TOOLS)
    assert grant == Grant("plain", 2, 2, frozenset(TOOLS), grant.rates)


def test_every_tool_has_a_rate_by_its_risk_unless_it_or_the_policy_says_another():
    tools = ToolRegistry(
        [tool(f"risk.of{risk}", risk=risk) for risk in range(4)] + [tool("own.rate", default_rate="7/m")]
    )
    grant = decide([PolicyEntry(name="p", match=Match(any=True))], ADA, tools)
    assert grant.rates == {
        "risk.of0": Rate(1000, 1), "risk.of1": Rate(200, 1), "risk.of2": Rate(200, 1), "risk.of3": Rate(1, 1),
        "own.rate": Rate(7, 60),
    }  # fmt: skip
    said = decide([PolicyEntry(name="p", match=Match(any=True), rate={"risk.*": "9/h"})], ADA, tools)
    assert said.rates == {name: Rate(9, 3600) if name.startswith("risk.") else Rate(7, 60) for name in tools}


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (["gpio.*"], {"gpio.get", "gpio.set"}),
        (["gpio.get"], {"gpio.get"}),
        (["*.read"], {"com.acme.modbus.read"}),
        (["com.acme.*", "gpio.s?t"], {"com.acme.modbus.read", "gpio.set"}),
        (["GPIO.*", "gpio", ".set"], set()),
        ([], set()),
    ],
)
def test_tools_are_allowed_by_patterns_over_their_whole_names(patterns, allowed):
    entry = PolicyEntry(name="p", match=Match(any=True), tools=patterns)
    assert decide([entry], ADA, TOOLS).allowed == allowed


def test_a_single_pattern_needs_no_list():
    assert PolicyEntry(name="p", match=Match(any=True), tools="gpio.*").tools == ("gpio.*",)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        ({}, {}),
        ({"gpio.set": "5/s"}, {"gpio.set": "5/s"}),
        ({"*": "7/s", "gpio.set": "5/s"}, {"gpio.set": "5/s", "gpio.get": "7/s", "file.delete": "7/s"}),
        ({"*": "7/s", "gpio.*": "6/s"}, {"gpio.set": "7/s", "gpio.get": "7/s", "file.delete": "7/s"}),
        ({"gpio.*": "6/s", "*": "7/s"}, {"gpio.set": "6/s", "gpio.get": "6/s", "file.delete": "7/s"}),
        ({"com.acme.modbus.read": "1/s"}, {}),
        ({"default": "8/s"}, {"gpio.get": "8/s", "file.delete": "8/s"}),
        ({"default": "8/s", "gpio.*": "6/s"}, {"gpio.set": "6/s", "gpio.get": "6/s", "file.delete": "8/s"}),
    ],
)
def test_the_exact_rate_comes_before_patterns_those_before_the_tools_own_and_that_before_the_default(rate, expected):
    entry = PolicyEntry(name="p", match=Match(any=True), tools=["gpio.*", "file.*"], rate=rate)
    grant = decide([entry], ADA, TOOLS)
    otherwise = {"gpio.set": "100/s", "gpio.get": "1000/s", "file.delete": "1/s"}
    assert grant.rates == {name: Rate.parse(text) for name, text in (otherwise | expected).items()}


def test_a_tool_whose_own_rate_is_nonsense_is_named():
    tools = ToolRegistry([tool("vendor.thing", default_rate="often")])
    with pytest.raises(ConfigError, match=r"tool 'vendor.thing': default_rate: rate 'often'"):
        decide([PolicyEntry(name="p", match=Match(any=True))], ADA, tools)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_risk": 4}, "max_risk: expected a risk from 0 to 3, got 4"),
        ({"max_risk": -1}, "max_risk: "),
        ({"max_risk": True}, "max_risk: "),
        ({"max_risk": "2"}, "max_risk: "),
        ({"max_risk_ceiling": 4}, "max_risk_ceiling: "),
        ({"max_risk": 2, "max_risk_ceiling": 1}, "max_risk_ceiling: 1 is below max_risk = 2"),
        ({"tools": [""]}, "tools: "),
        ({"tools": [7]}, "tools: "),
        ({"rate": {"gpio.set": "fast"}}, "rate.'gpio.set': rate 'fast'"),
        ({"rate": {"gpio.set": 50}}, "rate.'gpio.set': rate 50"),
        ({"match": ()}, "match: empty"),
    ],
)
def test_an_entry_that_cannot_be_meant_names_itself_and_the_key(fields, place):
    with pytest.raises(ConfigError) as refused:
        PolicyEntry(**{"name": "arm", "match": Match(any=True), **fields})
    assert str(refused.value).startswith(f"policy 'arm': {place}")


def test_an_entry_cannot_change_once_it_is_made():
    given = {"gpio.set": "5/s"}
    entry = PolicyEntry(name="p", match=Match(any=True), rate=given)
    given["gpio.set"] = "1000/s"
    assert entry.rate == {"gpio.set": "5/s"}
    with pytest.raises(TypeError):
        entry.rate["gpio.set"] = "1000/s"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        entry.max_risk = 3


def test_a_grant_cannot_change_once_it_is_made():
    grant = decide([PolicyEntry(name="p", match=Match(any=True))], ADA, TOOLS)
    with pytest.raises(TypeError):
        grant.rates["gpio.set"] = Rate(1000, 1)


def test_a_task_may_lower_its_cap_always_and_raise_it_up_to_the_ceiling():
    entry = PolicyEntry(name="p", match=Match(any=True), max_risk=1, max_risk_ceiling=2)
    grant = decide([entry], ADA, TOOLS)
    assert [grant.risk_cap(asked) for asked in (None, 0, 1, 2)] == [1, 0, 1, 2]
    with pytest.raises(PermissionDenied) as refused:
        grant.risk_cap(3)
    assert refused.value.data == {"reason": "max_risk_level=3 > ceiling=2", "policy": "p"}


def test_without_a_ceiling_the_cap_cannot_be_raised():
    grant = decide([PolicyEntry(name="p", match=Match(any=True), max_risk=1)], ADA, TOOLS)
    with pytest.raises(PermissionDenied):
        grant.risk_cap(2)


def test_by_default_our_own_user_and_the_group_of_the_socket_get_in():
    entries = default_policy(1000, 997)
    assert [(entry.name, *sorted(entry.rights)) for entry in entries] == [
        ("default", *sorted(RIGHTS)),
        ("socket group",),
    ]
    assert {(entry.max_risk, entry.max_risk_ceiling, entry.tools) for entry in entries} == {(2, 2, ("*",))}
    ourselves = Principal("unix", uid=1000, gid=1000)
    member = Principal("unix", uid=1001, gid=1001, groups=frozenset((997,)))
    assert decide(entries, ourselves, TOOLS).rights == {*RIGHTS}
    assert decide(entries, member, TOOLS).rights == frozenset()
    for other in (Principal("unix", uid=0, gid=0), Principal("unix", uid=997, gid=1001), ARM, BEARER):
        assert decide(entries, other, TOOLS) is None


def test_a_right_that_is_not_given_is_refused_with_the_cure():
    grant = decide([PolicyEntry(name="p", match=Match(any=True), rights=["approve"])], ADA, TOOLS)
    grant.require("approve")
    with pytest.raises(PermissionDenied, match="'reset_halt' is not given by policy 'p'; the operator gives it"):
        grant.require("reset_halt")
    with pytest.raises(ConfigError, match="policy 'p': rights: expected some of observe, approve"):
        PolicyEntry(name="p", match=Match(any=True), rights=["aprove"])


def test_a_daemon_of_root_lets_root_in_by_default():
    assert decide(default_policy(0, None), Principal("unix", uid=0, gid=0), TOOLS) is not None


def test_without_a_socket_group_only_our_own_user_gets_in():
    policy = default_policy(1000, None)
    assert decide(policy, ADA, TOOLS) is not None
    assert decide(policy, Principal("unix", uid=1001, gid=1000), TOOLS) is None


def test_a_pattern_that_fits_no_tool_is_pointed_out():
    entry = PolicyEntry(
        name="arm", match=Match(any=True), tools=["gpio.*", "gpoi.*"], rate={"gpio.sett": "5/s", "gpio.set": "5/s"}
    )
    said = unused_patterns([entry, *default_policy(0, 0)], TOOLS)
    assert len(said) == 2
    assert said[0].startswith("policy 'arm': tools: 'gpoi.*' fits no tool")
    assert said[1].startswith("policy 'arm': rate: 'gpio.sett' fits no tool")


def test_a_policy_that_matches_no_owner_is_pointed_out_with_the_command_that_adds_the_entry():
    owners = [Principal("unix", uid=7, user="u"), Principal("unix", uid=0)]
    agent = PolicyEntry(name="agent", match=Match(token_sha256="ab" * 32))
    (warning,) = owner_without_entry([agent], owners, "/a b/hearth.toml")
    assert warning.startswith("no [[policy]] entry matches uid:7 (u) or uid:0, who may only halt then; `printf '")
    assert warning.endswith("' >> '/a b/hearth.toml'`")
    assert "match = { uid = 7 }" in warning
    for uid in (0, 7):
        assert owner_without_entry([agent, PolicyEntry(name="o", match=Match(uid=uid))], owners, "f") == []


@pytest.mark.parametrize(
    ("certificates", "tokens", "named"),
    [
        (True, True, []),
        (
            True,
            False,
            ["policy 'token': match.token_sha256: no listener takes tokens; set [websocket] or [http] listen"],
        ),
        (
            False,
            True,
            [
                f"policy '{name}': match.{key}: no listener asks for certificates; "
                "set [tls] listen, or client_ca in [websocket] or [http]"
                for name, key in (("both", "cert_san"), ("subject", "cert_subject"))
            ],
        ),
    ],
)
def test_a_condition_that_no_peer_can_meet_is_pointed_out(certificates, tokens, named):
    entries = [
        PolicyEntry(name="token", match=Match(token_sha256="ab" * 32)),
        PolicyEntry(name="both", match=[Match(uid=1), Match(cert_san="DNS:a")]),
        PolicyEntry(name="subject", match=Match(cert_subject="CN=a")),
        *default_policy(0, 0),
    ]
    assert idle_conditions(entries, certificates=certificates, tokens=tokens) == named


def test_a_user_or_group_that_this_machine_does_not_have_is_named_with_the_nearest_and_the_cure():
    entries = [
        PolicyEntry(name="a", match=[Match(user="rooot"), Match(user="root"), Match(uid=4_000_000)]),
        PolicyEntry(name="b", match=Match(group="no-such-group-at-all", gid=4_000_000)),
        PolicyEntry(name="c", match=Match(user="a\0b")),
    ]
    user, group, never = unknown_accounts(entries)
    assert user == (
        "policy 'a': match.user: this machine has no user 'rooot'; did you mean 'root'? Else create the user, or give "
        "its number as uid"
    )
    assert group == (
        "policy 'b': match.group: this machine has no group 'no-such-group-at-all'; create the group, or give its "
        "number as gid"
    )
    assert "no user 'a\\x00b'" in never
