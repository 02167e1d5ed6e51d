"""The validator, rule by rule: what it accepts, what it refuses, and what it says then."""

import copy
import json
import math
from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from support.cards import EXAMPLE, GOOD, LARGEST, SMALLEST, card, with_capability, with_endpoint

from hearth.agentcard.document import MAX_FINDINGS
from hearth.agentcard.fetch import Fetched, examine
from hearth.agentcard.validate import LANDAUER_J, read_card, validate


def only(document):
    """The one finding of a card that has one fault."""
    (finding,) = validate(document)
    assert finding.problem
    assert finding.cure
    return finding


@pytest.mark.spec(
    "card 1.1",
    "MUST",
    "An AgentCard produced by a LangChain tool MUST be interpretable by an AutoGen registry and vice versa.",
)
@pytest.mark.spec("card 1.1", "is", "The format imposes no dependency on any specific agent framework.")
@pytest.mark.spec(
    "card 2",
    "OPTIONAL",
    "All other fields are OPTIONAL.",
)
@pytest.mark.spec(
    "card 2.5",
    "OPTIONAL",
    "Contains two REQUIRED sub-fields and one OPTIONAL sub-field:",
)
@pytest.mark.spec(
    "card 2.5.3",
    "OPTIONAL",
    "OPTIONAL. An object describing the authentication scheme required to contact the endpoint.",
)
@pytest.mark.parametrize("good", GOOD, ids=["the draft's example", "the smallest", "the largest"])
def test_a_good_card_has_no_findings_with_any_maker(good):
    assert validate(good) == []


@pytest.mark.spec("card 3", "MUST", "An AgentCard MUST be serialised as a JSON object [RFC8259].")
@pytest.mark.parametrize("nothing", [None, True, 5, 1.5, [], [EXAMPLE], "[]", "null", b"3", object(), {1, 2}])
def test_what_is_not_an_object_is_not_a_card(nothing):
    finding = only(nothing)
    assert (finding.pointer, finding.rule) == ("", "§3")
    assert read_card(nothing)[0] is None


@pytest.mark.spec(
    "card 3",
    "MAY",
    "When an AgentCard is embedded in another document (e.g., an MCP tool response), the embedding format MAY "
    "serialize the AgentCard as a JSON string containing an escaped JSON object.",
)
@pytest.mark.spec("card 3", "MUST", "Implementations MUST accept both embedded-string and direct-object forms.")
def test_an_object_its_text_and_its_text_in_a_json_string_are_one_card():
    text = json.dumps(EXAMPLE)
    for form in (EXAMPLE, text, text.encode(), bytearray(text.encode()), json.dumps(text), json.dumps(text).encode()):
        assert read_card(form) == (EXAMPLE, [])
    assert only(json.dumps(json.dumps(text))).rule == "§3", "a string in a string in a string is nobody's card"


@pytest.mark.spec("card 3", "MUST", "The canonical serialisation MUST use UTF-8 character encoding [RFC3629].")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1"])
def test_a_card_in_another_encoding_than_utf_8_is_refused(encoding):
    text = json.dumps(card(name="Prüfer"), ensure_ascii=False)
    assert validate(text.encode()) == []
    assert "UTF-8" in only(text.encode(encoding)).cure


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1, column 1"),
        ('{"name": "x",\n nonsense}', "line 2, column 2"),
        ('{"pricing": {"base_cost_joules": NaN}}', "NaN"),
        ('{"a": -Infinity}', "-Infinity"),
        ("\ufeff{}", "byte order mark"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
    ],
)
def test_a_text_that_is_not_json_is_refused_with_the_place(text, told):
    finding = only(text)
    assert (finding.pointer, finding.rule) == ("", "§3")
    assert told in finding.problem


def test_a_number_of_any_length_in_an_unread_field_is_ignored():
    text = json.dumps(EXAMPLE)
    for number in ("9" * 5000, "1e999", "-1e-999"):
        found, findings = read_card(f'{{"more": {number}, {text[1:]}')
        assert findings == []
        assert found is not None
        assert json.loads(json.dumps(found, allow_nan=False)) == found, "it can be written again"


@pytest.mark.spec("card 2", "REQUIRED", "The fields agent_id, name, version, capabilities, and endpoint are REQUIRED.")
@pytest.mark.parametrize("name", ["agent_id", "name", "version", "capabilities", "endpoint"])
def test_a_required_field_that_is_missing_is_named(name):
    finding = only(card(**{name: ...}))
    assert (finding.pointer, finding.rule, finding.problem) == (f"/{name}", "§2", "is missing")


@pytest.mark.parametrize("name", list(EXAMPLE))
@pytest.mark.parametrize("value", [None, True, 7, [[]]])
def test_a_field_of_the_wrong_type_is_told_by_its_pointer(name, value):
    findings = validate(card(**{name: value}))
    assert findings
    assert all(finding.pointer.startswith(f"/{name}") for finding in findings)


@pytest.mark.spec("card 2.1", "is", "Exactly 26 characters.")
@pytest.mark.spec(
    "card 2.1",
    "MUST",
    "Each character MUST be a member of the Crockford Base32 alphabet: digits 0–9 and uppercase letters A–Z "
    "excluding I, L, O, and U.",
)
@pytest.mark.spec(
    "card 5",
    "MUST",
    "1. agent_id MUST be exactly 26 characters drawn from the Crockford Base32 alphabet ([0-9A-HJKMNP-TV-Z]).",
)
@pytest.mark.parametrize(
    ("agent_id", "told"),
    [
        ("", "0 characters"),
        ("01HZQK3P8EMXR9V7T5N2W4J6C", "25 characters"),
        ("01HZQK3P8EMXR9V7T5N2W4J6C00", "27 characters"),
        ("01HZQK3P8EMXR9V7T5N2W4J6C0\n", "27 characters"),
        ("01hzqk3p8emxr9v7t5n2w4j6c0", '"h"'),
        *((f"01HZQK3P8EMXR9V7T5N2W4J6C{letter}", f'"{letter}"') for letter in "ILOU-"),
        ("01HZQK3P8EMXR9V7T5N2W4J6C\u0660", '"\\u0660"'),
    ],
)
def test_an_agent_id_is_26_characters_of_crockfords_alphabet(agent_id, told):
    finding = only(card(agent_id=agent_id))
    assert (finding.pointer, finding.rule) == ("/agent_id", "§5 rule 1")
    assert told in finding.problem


@pytest.mark.spec("card 2.2", "MUST NOT", "1 to 128 Unicode code points. MUST NOT be empty.")
def test_a_name_has_1_to_128_code_points():
    for name in ("x", "\U0001f9ea" * 128, " "):
        assert validate(card(name=name)) == []
    assert only(card(name="")).problem == "is empty"
    assert only(card(name="\U0001f9ea" * 129)).problem == "has 129 code points"


@pytest.mark.spec("card 2.3", "MUST", "MUST conform to Semantic Versioning 2.0.0 [SEMVER].")
@pytest.mark.spec("card 5", "MUST", "2. version MUST conform to Semantic Versioning 2.0.0.")
@pytest.mark.parametrize(
    "version",
    ["", "1", "1.0", "1.0.0.0", "01.0.0", "1.00.0", "1.0.01", "v1.0.0", "1.0.0-", "1.0.0+", "1.0.0 ", "1.0.0\n",
     "1.0.x", "-1.0.0", "1.0.0-a_b", "1.0.0+a+b", "٠.0.0", "1.0.0-é"],
)  # fmt: skip
def test_a_version_is_semantic(version):
    finding = only(card(version=version))
    assert (finding.pointer, finding.rule) == ("/version", "§5 rule 2")


@pytest.mark.parametrize("version", ["1.0.0-01", "1.0.0-a..b", "1.0.0-.", "1.0.0+.."])
def test_where_the_drafts_own_expression_is_wider_than_semver_org_it_decides(version):
    assert validate(card(version=version)) == []


@pytest.mark.spec("card 2.4", "MUST", "MUST contain at least one entry.")
@pytest.mark.spec("card 5", "MUST", "3. capabilities MUST contain at least one entry.")
def test_there_is_at_least_one_capability():
    finding = only(card(capabilities=[]))
    assert (finding.pointer, finding.rule, finding.problem) == ("/capabilities", "§5 rule 3", "is empty")
    assert only(card(capabilities={"id": "tool.x"})).rule == "§5 rule 3"


@pytest.mark.spec("card 2.4.1", "MUST", "The identifier MUST begin with a lowercase letter or digit.")
@pytest.mark.spec(
    "card 2.4.1", "MAY", "Subsequent characters MAY be lowercase letters, digits, dots, underscores, or hyphens."
)
@pytest.mark.spec(
    "card 2.4.1",
    "MAY",
    "Private or experimental namespaces MAY use a reverse-domain prefix (e.g., com.example.custom_capability).",
)
@pytest.mark.spec("card 5", "MUST", "4. Each capabilities[i].id MUST match ^[a-z0-9][a-z0-9._-]*$.")
def test_every_capability_has_an_id_of_the_right_form():
    good = ["0", "a", "a.", "text.summarise", "a-b_c.d", "9..9", "com.example.custom_capability"]
    assert validate(card(capabilities=[{"id": name} for name in good])) == []
    bad = ["", ".a", "-a", "_a", "A", "a.B", "a b", "a\n", "é", "a/b", "٣", None, 5]
    findings = validate(card(capabilities=[{"id": name} for name in bad]))
    assert [(finding.pointer, finding.rule) for finding in findings] == [
        (f"/capabilities/{index}/id", "§5 rule 4") for index in range(len(bad))
    ]
    assert only(card(capabilities=[{"description": "nameless"}])).pointer == "/capabilities/0/id"
    assert only(card(capabilities=["tool.x"])).pointer == "/capabilities/0"


def test_a_description_and_tags_are_text():
    assert only(with_capability(description=5)).rule == "§2.4.2"
    assert only(with_capability(tags="search")).rule == "§2.4.4"


@pytest.mark.spec("card 2.4.4", "is", "array of strings")
def test_tags_are_an_array_of_strings():
    assert validate(with_capability(tags=["a", "", "a"])) == []
    assert [finding.pointer for finding in validate(with_capability(tags=["a", 5, None]))] == [
        "/capabilities/0/tags/1",
        "/capabilities/0/tags/2",
    ]


@pytest.mark.spec(
    "card 2.4.3",
    "MUST",
    "When provided, these schemas MUST conform to JSON Schema [JSON-SCHEMA] and SHOULD be compatible with the "
    "parameters object in OpenAI function-calling format.",
)
@pytest.mark.parametrize("name", ["input_schema", "output_schema"])
def test_a_schema_is_a_json_schema_2020_12(name):
    for good in (
        {},
        {"type": "object"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}},
        {"$ref": "https://elsewhere.example/s"},
        {"anything": [1]},
    ):
        assert validate(with_capability(**{name: good})) == []
    wrong = {"properties": {"a/b": {"items": [{"minimum": "x"}]}}, "type": "object"}
    for bad, where in (
        ({"type": "text"}, "/type"),
        ({"required": "a"}, "/required"),
        (wrong, "/properties/a~1b/items"),
        ({"minimum": math.nan}, "/minimum"),
        ({"const": {1: 2}}, "/const"),
        ({"default": b"x"}, "/default"),
        ({"required": ("a",)}, "/required"),
        ({"properties": MappingProxyType({})}, "/properties"),
    ):
        finding = only(with_capability(**{name: bad}))
        assert (finding.pointer, finding.rule) == (f"/capabilities/0/{name}{where}", "§2.4.3")
    for none in (True, None, "object", []):
        assert only(with_capability(**{name: none})).pointer == f"/capabilities/0/{name}"


@pytest.mark.slow
def test_a_schema_that_is_too_deep_or_too_large_to_be_looked_at_is_refused_in_bounded_time():
    deep = {}
    for _ in range(100_000):
        deep = {"not": deep}
    assert "64 levels" in only(with_capability(input_schema=deep)).problem
    assert "100000 values" in only(with_capability(input_schema={"enum": [0] * 200_000})).problem
    looped = {}
    looped["properties"] = {"a": looped, "b": looped}
    assert only(with_capability(input_schema=looped)).rule == "§2.4.3"
    while deep:  # by hand: Python takes deep things apart by recursion
        deep = deep["not"]


@pytest.mark.spec("card 2.5.1", "MUST", "REQUIRED. MUST be one of: http, https, grpc, stdio, or mcp.")
@pytest.mark.spec("card 2.5", "REQUIRED", "Contains two REQUIRED sub-fields and one OPTIONAL sub-field:")
@pytest.mark.spec("card 5", "MUST", "5. endpoint.protocol MUST be one of: http, https, grpc, stdio, mcp.")
def test_a_protocol_is_one_of_five():
    for protocol, url in (
        ("http", "http://a/"), ("http", "https://a"), ("http", "HTTPS://a/b"), ("https", "https://a"),
        ("grpc", "dns:///a:50051"), ("grpc", "https://a"),
        ("stdio", "stdio:a"), ("stdio", "file:///usr/bin/a"), ("mcp", "mcp://a/b"), ("mcp", "https://a/mcp"),
    ):  # fmt: skip
        assert validate(with_endpoint(protocol, url)) == []
    for protocol in ("websocket", "sse", "native", "google_a2a", "HTTPS", "", None, 1, ["https"]):
        finding = only(with_endpoint(protocol, "https://a"))
        assert (finding.pointer, finding.rule) == ("/endpoint/protocol", "§5 rule 5")
    assert only(card(endpoint={"url": "https://a"})).pointer == "/endpoint/protocol"
    assert only(card(endpoint={"protocol": "https"})).pointer == "/endpoint/url"


@pytest.mark.spec("card 2.5.2", "REQUIRED", "REQUIRED. A URI [RFC3986] identifying the agent's communication endpoint.")
@pytest.mark.spec("card 5", "MUST", "6. endpoint.url MUST be a valid URI [RFC3986].")
@pytest.mark.parametrize(
    "url", ["", "a", "/a", "//a/b", "https://a b", "https://ä", "https://a/%zz", "https://[::g]", 5]
)
def test_a_url_is_a_uri(url):
    finding = only(with_endpoint("https", url))
    assert (finding.pointer, finding.rule) == ("/endpoint/url", "§5 rule 6")


@pytest.mark.spec(
    "card 2.5.2",
    "MUST",
    "The URI MUST be consistent with the declared protocol (e.g., an https endpoint MUST begin with the scheme "
    "https://).",
)
@pytest.mark.parametrize(
    ("protocol", "url"),
    [
        ("https", "http://a"), ("http", "httpss://a"), ("https", "mcp://a"), ("https", "https:a"), ("http", "http:/a"),
        ("https", "https://"), ("https", "https:///path"), ("https", "https://:443/"), ("stdio", "https://a"),
        ("stdio", "WSS://a"),
    ],
)  # fmt: skip
def test_a_url_that_contradicts_its_protocol_is_refused(protocol, url):
    finding = only(with_endpoint(protocol, url))
    assert (finding.pointer, finding.rule) == ("/endpoint/url", "§2.5.2")


def test_the_references_minimal_card_has_http_over_tls_and_is_accepted_when_it_is_validated_and_when_it_is_fetched():
    minimal = {
        "agent_id": "01HZQK3P8EMXR9V7T5N2W4J6C0",
        "name": "minimal",
        "version": "1.0.0",
        "capabilities": [{"id": "tool.x"}],
        "endpoint": {"protocol": "http", "url": "https://agents.example.com/"},
    }
    assert validate(minimal) == []
    url = "https://agents.example.com/.well-known/agentcard"
    fetched = Fetched(url=url, body=json.dumps(minimal).encode(), max_age=None)
    assert examine(fetched) == minimal


def test_a_scheme_is_compared_without_case():
    assert validate(with_endpoint("https", "HTTPS://a")) == []


@pytest.mark.spec(
    "card 2.5.3", "MUST", "The auth.scheme sub-field MUST be one of: none, bearer, api_key, oauth2, or mtls."
)
@pytest.mark.spec("card 2.5.3", "is", "The default value is none.")
def test_an_auth_scheme_is_one_of_five_and_none_by_default():
    for auth in ({}, {"header": "X"}, *({"scheme": s} for s in ("none", "bearer", "api_key", "oauth2", "mtls"))):
        assert validate(with_endpoint("https", "https://a", auth=auth)) == []
    for scheme in ("basic", "", None, "Bearer", 5):
        finding = only(with_endpoint("https", "https://a", auth={"scheme": scheme}))
        assert (finding.pointer, finding.rule) == ("/endpoint/auth/scheme", "§2.5.3")
    assert only(with_endpoint("https", "https://a", auth="bearer")).pointer == "/endpoint/auth"


@pytest.mark.spec(
    "card 2.6.1",
    "MUST",
    "If present, this value MUST be either exactly zero (the agent imposes no energy charge) or greater than or "
    "equal to the Landauer limit at 300 K:",
)
@pytest.mark.spec(
    "card 2.6.1",
    "MUST",
    "A base_cost_joules value in the open interval (0, 2.854e-21) is physically impossible and MUST be rejected by "
    "conformant validators.",
)
@pytest.mark.spec(
    "card 5",
    "MUST",
    "7. If pricing.base_cost_joules is present and non-zero, it MUST be greater than or equal to 2.854 × 10^{-21} "
    "joules (the Landauer limit at 300 K).",
)
def test_a_base_cost_is_zero_or_at_least_the_landauer_limit():
    assert LANDAUER_J == 2.854e-21
    for joules in (0, 0.0, -0.0, 2.854e-21, math.nextafter(2.854e-21, 1), 1e-20, 3, 10**400):
        assert validate(card(pricing={"base_cost_joules": joules})) == []
    for joules in (math.nextafter(2.854e-21, 0), 2.8539e-21, 5e-324, 1e-22, -1e-30, -1, -(10**400)):
        finding = only(card(pricing={"base_cost_joules": joules}))
        assert (finding.pointer, finding.rule) == ("/pricing/base_cost_joules", "§5 rule 7")
        assert "2.854e-21" in finding.cure
    for none in (None, True, "0", math.nan, math.inf, [0]):
        assert only(card(pricing={"base_cost_joules": none})).rule == "§5 rule 7"


@pytest.mark.parametrize(
    "written", ["1e-400", "0.00e1", "0.1e-999999", "-0.0e-5", "-1E-400", "0" * 1 + ".0" + "0" * 400 + "1"]
)
def test_a_cost_below_every_double_is_not_zero(written):
    """Draft §5 rules 7 and 8; RFC 8259 §6: the text is a number that is not 0, whatever a double makes of it."""
    text = json.dumps(card(pricing={"base_cost_joules": 0, "per_token_joules": 0}))
    rules = [finding.rule for finding in validate(text.replace('_joules": 0', f'_joules": {written}'))]
    zero = not written.partition("e")[0].partition("E")[0].strip("-0.")
    assert rules == [] if zero else rules == ["§5 rule 7"] + ["§5 rule 8"] * written.startswith("-")


@pytest.mark.spec("card 2.6.2", "MUST", "If present, MUST be non-negative.")
@pytest.mark.spec("card 5", "MUST", "8. If pricing.per_token_joules is present, it MUST be non-negative.")
def test_a_cost_per_token_is_not_negative():
    for joules in (0, -0.0, 1e-30, 5):
        assert validate(card(pricing={"per_token_joules": joules})) == []
    for joules in (-5e-324, -1, None, False, "1", math.nan):
        finding = only(card(pricing={"per_token_joules": joules}))
        assert (finding.pointer, finding.rule) == ("/pricing/per_token_joules", "§5 rule 8")


@pytest.mark.spec("card 2.7", "MUST", "MUST be one of: untrusted, basic, established, verified, or banned.")
@pytest.mark.spec("card 2.7", "is", "Absence of this field implies untrusted.")
@pytest.mark.spec(
    "card 5",
    "MUST",
    "9. metadata.pacr:trust_tier, if present, MUST be one of: untrusted, basic, established, verified, banned.",
)
def test_a_trust_tier_is_one_of_five():
    for tier in ("untrusted", "basic", "established", "verified", "banned"):
        assert validate(card(metadata={"pacr:trust_tier": tier})) == []
    assert validate(card(metadata={})) == []
    for tier in ("trusted", "Verified", "", None, 3, {"a": 1}):
        finding = only(card(metadata={"pacr:trust_tier": tier}))
        assert (finding.pointer, finding.rule) == ("/metadata/pacr:trust_tier", "§5 rule 9")


@pytest.mark.spec(
    "card 2.8",
    "REQUIRED",
    "Each entry contains a REQUIRED goal_id string, an OPTIONAL human-readable description, and an OPTIONAL "
    "priority value in the range [0, 1] indicating the agent's relative commitment to this goal.",
)
@pytest.mark.spec(
    "card 2.8",
    "OPTIONAL",
    "Each entry contains a REQUIRED goal_id string, an OPTIONAL human-readable description, and an OPTIONAL "
    "priority value in the range [0, 1] indicating the agent's relative commitment to this goal.",
)
def test_a_goal_has_an_id_and_perhaps_a_priority_from_0_to_1():
    assert validate(card(goal_subscriptions=[])) == []
    assert validate(card(goal_subscriptions=[{"goal_id": "g"}, {"goal_id": "h", "priority": 0}])) == []
    for goal, where in (
        ({}, "/goal_id"),
        ({"goal_id": 5}, "/goal_id"),
        ({"goal_id": "g", "priority": 1.0000001}, "/priority"),
        ({"goal_id": "g", "priority": -0.1}, "/priority"),
        ({"goal_id": "g", "priority": True}, "/priority"),
        ({"goal_id": "g", "description": 5}, "/description"),
        ("g", ""),
    ):
        finding = only(card(goal_subscriptions=[{"goal_id": "first"}, goal]))
        assert (finding.pointer, finding.rule) == (f"/goal_subscriptions/1{where}", "§2.8")


@pytest.mark.spec(
    "card 1.1",
    "is",
    "The metadata object provides a namespaced extension point for framework- and application- specific annotations.",
)
@pytest.mark.spec("card 1.1", "MAY", "New fields MAY be added to future versions of AgentCard.")
@pytest.mark.spec("card 1.1", "MUST", "Readers MUST ignore unknown fields.")
@pytest.mark.spec(
    "card 5", "MUST", "10. Validators MUST ignore unknown fields at all levels of the AgentCard hierarchy."
)
@pytest.mark.spec("card 5", "MUST NOT", "10. Unknown fields MUST NOT cause validation failure.")
@pytest.mark.spec(
    "card 2.7",
    "MUST NOT",
    "Implementations MUST NOT reject an AgentCard because it contains unrecognised metadata keys.",
)
@pytest.mark.spec(
    "card 6.4",
    "MAY",
    "AgentCard and OpenAPI are complementary; an AgentCard MAY reference a full OpenAPI document via the metadata "
    "field.",
)
@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"id": 5}, math.nan, 10**4000, "\ud800"])
def test_unknown_fields_are_ignored_at_all_levels(value):
    stranger = copy.deepcopy(EXAMPLE)
    for holder in (
        stranger,
        stranger["capabilities"][0],
        stranger["endpoint"],
        stranger["endpoint"]["auth"],
        stranger["pricing"],
        stranger["metadata"],
        stranger["goal_subscriptions"][0],
    ):
        holder.update({"unknown": value, "openapi": value, "": value, "ID": value})
    assert validate(stranger) == []


@pytest.mark.spec("card 5", "MUST", "A conformant AgentCard validator MUST enforce the following rules.")
@pytest.mark.spec("card 5", "MUST", "A document that fails any MUST rule is invalid and MUST be rejected.")
def test_all_faults_are_told_in_one_go_each_with_its_place_rule_and_cure():
    faulty = {
        "agent_id": "x",
        "version": "1",
        "capabilities": [{"id": "A", "tags": [1]}],
        "endpoint": {"protocol": "ftp", "url": "nowhere", "auth": {"scheme": "x"}},
        "pricing": {"base_cost_joules": 1e-30, "per_token_joules": -1},
        "metadata": {"pacr:trust_tier": "x"},
        "goal_subscriptions": [{"priority": 2}],
    }
    findings = validate(faulty)
    assert [(finding.pointer, finding.rule) for finding in findings] == [
        ("/agent_id", "§5 rule 1"),
        ("/name", "§2"),
        ("/version", "§5 rule 2"),
        ("/capabilities/0/id", "§5 rule 4"),
        ("/capabilities/0/tags/0", "§2.4.4"),
        ("/endpoint/protocol", "§5 rule 5"),
        ("/endpoint/url", "§5 rule 6"),
        ("/endpoint/auth/scheme", "§2.5.3"),
        ("/pricing/base_cost_joules", "§5 rule 7"),
        ("/pricing/per_token_joules", "§5 rule 8"),
        ("/metadata/pacr:trust_tier", "§5 rule 9"),
        ("/goal_subscriptions/0/goal_id", "§2.8"),
        ("/goal_subscriptions/0/priority", "§2.8"),
    ]
    for finding in findings:
        assert set(finding.to_json()) == {"pointer", "rule", "problem", "cure"}
        assert str(finding).startswith(f"{finding.pointer}: ")
        assert finding.cure in str(finding)


def test_of_a_card_with_very_many_faults_the_first_hundred_are_told():
    findings = validate(card(capabilities=[{}] * 100_000))
    assert len(findings) == MAX_FINDINGS + 1
    assert findings[-1].problem == "has more than 100 faults"
    assert len(validate(card(capabilities=[{}] * MAX_FINDINGS))) == MAX_FINDINGS


def test_a_refused_value_is_quoted_short_and_can_be_printed():
    for value in ("é" * 10_000, "\x1b[31m" * 1000, "\ud800", 10**5000, float(10**300)):
        for finding in validate(card(version=value, metadata={"pacr:trust_tier": value}, goal_subscriptions=[
            {"goal_id": "g", "priority": value}])):  # fmt: skip
            assert len(finding.problem) < 150
            assert finding.problem.replace("…", "").isascii()
            assert finding.problem.isprintable()


def test_names_in_a_foreign_card_make_no_finding_that_cannot_be_sent_or_shown():
    for name in ("\ud800", "x" * 1_000_000, "\x1b]0;x\x07"):
        for bad in ({"properties": {name: {"type": 5}}}, {name: math.nan}, {"required": [name, 5]}):
            finding = only(with_capability(input_schema=bad))
            assert len(orjson.dumps(finding.to_json())) < 2000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", 10**400, "1.0.0"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "type", "url", "scheme", "a", "properties", "\ud800"]) | st.text(), inner, max_size=4
        )
    ),
    max_leaves=12,
)
FIELDS = [*EXAMPLE, "id", "description", "input_schema", "output_schema", "tags", "protocol", "url", "auth", "goal_id"]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
@settings(max_examples=100)
def test_no_json_whatsoever_raises(document):
    for finding in validate(document):
        assert finding.rule.startswith("§")
    try:
        text = json.dumps(document)
    except ValueError:
        return
    assert validate(text) is not None


@pytest.mark.slow
@given(st.text() | st.binary() | st.text('{}[]",:01eE-+.ntfalsu\\ \ud800').map(lambda text: "{" + text))
@settings(max_examples=100)
def test_no_text_and_no_bytes_raise(document):
    assert validate(document)


@pytest.mark.proof
@given(st.sampled_from(GOOD), st.data())
@settings(max_examples=100)
def test_a_good_card_with_any_json_in_any_place_raises_nothing(good, data):
    broken = copy.deepcopy(good)
    holder = broken
    while True:
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(holder[key], (dict, list)) or not holder[key] or data.draw(st.booleans()):
            break
        holder = holder[key]
    holder[key] = data.draw(JSON)
    assert isinstance(validate(broken), list)


def test_the_cards_of_these_tests_reach_every_field_there_is():
    assert set(LARGEST) > set(EXAMPLE) > set(SMALLEST)


def test_a_finding_is_one_line_whatever_a_member_is_called():
    finding = only(with_capability(input_schema={"properties": {"a\nb\x1b[2J": {"type": 5}}}))
    assert finding.pointer == "/capabilities/0/input_schema/properties/a\nb\x1b[2J/type"
    assert str(finding).startswith("/capabilities/0/input_schema/properties/a\\nb\\x1b[2J/type: ")
    assert str(finding).isprintable()
