"""The validator of AgentCards: every rule of draft-aevum-agentcard-00 §5, and every MUST of §2 about a card's content.

This module owns the verdict and its texts. It requires only what the draft requires, ignores unknown fields at all
levels (rule 10), and raises for no input. docs/decisions/0064 lists where the project's schema file differs, and the
decisions where the draft contradicts itself.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from hearth.agentcard.document import (
    MAX_FINDINGS,
    Check,
    Enough,
    Field,
    Finding,
    FindingList,
    Uri,
    parse_uri,
    read_object,
    shown,
)
from hearth.schema import Validator, escaped

if TYPE_CHECKING:
    from collections.abc import Mapping


# The check that a capability's input_schema or output_schema is a JSON Schema 2020-12 (draft-aevum-agentcard-00
# §2.4.3). The schemas are untrusted: these are the bounds within which they are checked, and `hearth.schema` gives the
# verdict. The meta-schema of 2020-12 is used whatever the schema's own `$schema` says; its `$ref`s are not followed.

MAX_DEPTH = 64
"""Levels of objects and arrays in a schema: the reference implementation follows them on Python's own stack."""
MAX_VALUES = 100_000
"""Values in a schema, each object, array, string and number counted: this bounds the time of a check."""
EXPLAINED_BYTES = 128 * 1024
"""Size of a schema as JSON, up to which the place of a fault is searched."""

_META = "https://json-schema.org/draft/2020-12/schema"


def why_no_schema(value: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the place and the reason why an object is no JSON Schema 2020-12; None if it is one. Never raises."""
    if (invalid := _no_json(value)) is not None:
        return invalid
    validator = _meta()
    return None if validator.accepts(value) else validator.explain(value, within=EXPLAINED_BYTES)


@cache
def _meta() -> Validator:
    return Validator({"$schema": _META, "$ref": _META})


def _no_json(schema: object) -> tuple[str, str] | None:
    """Return the place and the reason why a Python value is not JSON, or too large to check."""
    left = MAX_VALUES
    waiting: list[tuple[str, int, object]] = [("", 0, schema)]
    while waiting:
        pointer, depth, value = waiting.pop()
        if left <= 0:
            return "", f"it has more than {MAX_VALUES} values"
        left -= 1
        if depth > MAX_DEPTH:
            return "", f"it is nested in more than {MAX_DEPTH} levels"
        if isinstance(value, dict):
            for name, member in value.items():
                if not isinstance(name, str) or _LONE.search(name):
                    return pointer, f"it has a member whose name is {shown(name)}"
                waiting.append((f"{pointer}/{escaped(name)}", depth + 1, member))
        elif isinstance(value, list):
            waiting += [(f"{pointer}/{index}", depth + 1, member) for index, member in enumerate(value)]
        elif (why := _why_no_scalar(value)) is not None:
            return pointer, why
    return None


def _why_no_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return f"{shown(value)} is no Unicode text" if _LONE.search(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is no number that JSON can hold"
    if value is None or isinstance(value, int):
        return None
    return f"a {type(value).__name__} is no JSON value; where one is built in Python, dicts and lists are"


_LONE = re.compile("[\ud800-\udfff]")
"""Lone surrogates, which no UTF-8 can hold (§3)."""


LANDAUER_J: Final = 2.854e-21
"""Joules: the draft's own figure for k·T·ln 2 at 300 K, to the letter (§2.6.1). By its own factors it is 2.871e-21."""

NAME_POINTS = 128
"""Unicode code points of a name at most (§2.2)."""

PROTOCOLS = ("http", "https", "grpc", "stdio", "mcp")
AUTH_SCHEMES = ("none", "bearer", "api_key", "oauth2", "mtls")
TRUST_TIERS = ("untrusted", "basic", "established", "verified", "banned")

_AGENT_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
_VERSION = re.compile(
    r"(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)(?:-[0-9A-Za-z\-.]+)?(?:\+[0-9A-Za-z\-.]+)?"
)
_CAPABILITY = re.compile(r"[a-z0-9][a-z0-9._-]*")
# They are used with `fullmatch`, which stands for the draft's ^ and $: in Python `$` lets a line feed pass at the end,
# and `\d` a digit of any script.

_NETWORK = frozenset({"http", "https", "ws", "wss", "ftp", "grpc", "grpcs"})
"""Schemes that use a network, which the standard streams of a process do not."""


def validate(document: object) -> list[Finding]:
    """Return the faults of a card, in the order of the draft's fields; an empty list means that it is valid.

    `document` is an object, or JSON text (str or UTF-8 bytes) of one, also embedded in a JSON string (§3). Past
    MAX_FINDINGS one more says that there are more. Never raises, whatever it is given.
    """
    return read_card(document)[1]


def read_card(document: object) -> tuple[Mapping[str, Any] | None, list[Finding]]:
    """Return the card that a document is or contains, None if that is no object, and its faults."""
    card, findings = read_object(document)
    if card is not None:
        problems = FindingList(findings)
        try:
            problems.fields(card, "", "§2", _CARD_FIELDS)
        except Enough:
            cure = "correct those that are listed, and validate again"
            findings.append(Finding("", "§5", f"has more than {MAX_FINDINGS} faults", cure))
    return card, findings


def _agent_id(value: object, where: str, problems: FindingList) -> None:
    text = problems.text(value, where, "§5 rule 1", _AGENT_ID_CURE)
    if text is None or _AGENT_ID.fullmatch(text):
        return
    if len(text) != _ULID_LENGTH:
        problems.add(
            where, "§5 rule 1", f"{shown(text)} has {len(text)} characters, not {_ULID_LENGTH}", _AGENT_ID_CURE
        )
        return
    invalid = next(character for character in text if not _AGENT_ID.fullmatch(character * _ULID_LENGTH))
    problems.add(where, "§5 rule 1", f"{shown(text)} has {shown(invalid)}, not of Crockford's alphabet", _AGENT_ID_CURE)


_ULID_LENGTH = 26
_AGENT_ID_CURE = "make a ULID once and keep it: 26 digits and capitals without I, L, O and U"


def _name(value: object, where: str, problems: FindingList) -> None:
    text = problems.text(value, where, "§2.2", _NAME_CURE)
    if text is not None and not 1 <= len(text) <= NAME_POINTS:
        problems.add(where, "§2.2", f"has {len(text)} code points" if text else "is empty", _NAME_CURE)


_NAME_CURE = f"name the agent's function or role in 1 to {NAME_POINTS} code points"


def _version(value: object, where: str, problems: FindingList) -> None:
    text = problems.text(value, where, "§5 rule 2", _VERSION_CURE)
    if text is not None and not _VERSION.fullmatch(text):
        problems.add(where, "§5 rule 2", f"{shown(text)} is no semantic version", _VERSION_CURE)


_VERSION_CURE = 'write it as MAJOR.MINOR.PATCH without leading zeros, such as "1.0.0"'


def _capabilities(value: object, where: str, problems: FindingList) -> None:
    entries = problems.entries(value, where, "§5 rule 3", _CAPABILITIES_CURE)
    if entries is None:
        return
    if not entries:
        problems.add(where, "§5 rule 3", "is empty", _CAPABILITIES_CURE)
    for index, entry in enumerate(entries):
        capability = problems.table(entry, f"{where}/{index}", "§2.4", "declare it as an object with an id")
        if capability is not None:
            problems.fields(capability, f"{where}/{index}", "§2.4.1", _CAPABILITY_FIELDS)


_CAPABILITIES_CURE = "list at least one thing that the agent can do"


def _capability_id(value: object, where: str, problems: FindingList) -> None:
    text = problems.text(value, where, "§5 rule 4", _ID_CURE)
    if text is not None and not _CAPABILITY.fullmatch(text):
        problems.add(where, "§5 rule 4", f"{shown(text)} does not match ^[a-z0-9][a-z0-9._-]*$", _ID_CURE)


_ID_CURE = 'use lower-case letters, digits, ".", "_" and "-", the first a letter or digit, such as "tool.web_search"'


def _schema(value: object, where: str, problems: FindingList) -> None:
    schema = problems.table(value, where, "§2.4.3", "give a JSON Schema as an object, or leave the field out")
    if schema is not None and (why := why_no_schema(schema)) is not None:
        inside, reason = why
        cure = "correct it by JSON Schema 2020-12, or leave the schema out"
        problems.add(f"{where}{inside}", "§2.4.3", f"is not a JSON Schema 2020-12: {reason}", cure)


def _tags(value: object, where: str, problems: FindingList) -> None:
    for index, tag in enumerate(problems.entries(value, where, "§2.4.4", _TAGS_CURE) or ()):
        problems.text(tag, f"{where}/{index}", "§2.4.4", _TAGS_CURE)


_TAGS_CURE = "give an array of strings, or leave it out"


def _optional_text(rule: str) -> Check:
    return lambda value, where, problems: problems.text(value, where, rule, "give a string, or leave the field out")


def _endpoint(value: object, where: str, problems: FindingList) -> None:
    endpoint = problems.table(value, where, "§2.5", _ENDPOINT_CURE)
    if endpoint is None:
        return
    problems.fields(endpoint, where, "§2.5", _ENDPOINT_FIELDS)
    protocol, text = endpoint.get("protocol"), endpoint.get("url")
    if isinstance(protocol, str) and protocol in PROTOCOLS and isinstance(text, str):
        found = parse_uri(text)
        if found is not None and (wrong := _inconsistent(protocol, text, found)) is not None:
            problem, cure = wrong
            problems.add(f"{where}/url", "§2.5.2", f"{shown(text)} {problem}", cure)


_ENDPOINT_CURE = "say how to reach the agent: an object with protocol and url"


def _inconsistent(protocol: str, text: str, found: Uri) -> tuple[str, str] | None:
    """Return the contradiction between a URL and its protocol, and the cure; grpc and mcp have no fixed form of URL."""
    if protocol in {"http", "https"}:
        # HTTP over TLS is HTTP: only https asks for its own scheme (§2.5.2), and the reference's minimal card has both.
        fitting = ("http://", "https://") if protocol == "http" else ("https://",)
        if not text.lower().startswith(fitting):
            other = f', or declare the protocol "{found.scheme}"' if found.scheme in {"http", "https"} else ""
            return f"does not begin with {protocol}://, as its protocol says", f"begin it with {protocol}://{other}"
        if not found.host:
            return "names no host", "name the host between // and the path (RFC 3986 §3.2.2)"
    elif protocol == "stdio" and found.scheme in _NETWORK:
        return (
            f"leads over a network, and the protocol is stdio (scheme {found.scheme})",
            'name the process, for example "stdio:my-agent", or declare the protocol of the URL',
        )
    return None


def _protocol(value: object, where: str, problems: FindingList) -> None:
    problems.word(value, where, "§5 rule 5", PROTOCOLS)


def _url(value: object, where: str, problems: FindingList) -> None:
    text = problems.text(value, where, "§5 rule 6", _URL_CURE)
    if text is not None and parse_uri(text) is None:
        problems.add(where, "§5 rule 6", f"{shown(text)} is no URI by RFC 3986", _URL_CURE)


_URL_CURE = "give an absolute URI with its scheme, and percent-encode characters that are not ASCII"


def _auth(value: object, where: str, problems: FindingList) -> None:
    auth = problems.table(value, where, "§2.5.3", 'give an object such as {"scheme": "bearer"}, or leave it out')
    if auth is not None and "scheme" in auth:
        problems.word(auth["scheme"], f"{where}/scheme", "§2.5.3", AUTH_SCHEMES)


def _pricing(value: object, where: str, problems: FindingList) -> None:
    pricing = problems.table(value, where, "§2.6", "give an object of costs in joules, or leave it out")
    if pricing is not None:
        problems.fields(pricing, where, "§2.6", _PRICING_FIELDS)


def _base_cost(value: object, where: str, problems: FindingList) -> None:
    joules = problems.number(value, where, "§5 rule 7", _BASE_CURE)
    if joules is not None and joules != 0 and joules < LANDAUER_J:
        less = (
            "is negative" if joules < 0 else "is physically impossible: more than nothing and below the Landauer limit"
        )
        problems.add(where, "§5 rule 7", f"{shown(joules)} J {less}", _BASE_CURE)


_BASE_CURE = f"give 0, or at least {LANDAUER_J} (joules), or leave it out"


def _per_token(value: object, where: str, problems: FindingList) -> None:
    joules = problems.number(value, where, "§5 rule 8", _TOKEN_CURE)
    if joules is not None and joules < 0:
        problems.add(where, "§5 rule 8", f"{shown(joules)} J is negative", _TOKEN_CURE)


_TOKEN_CURE = "give 0 or more (joules), or leave it out"


def _metadata(value: object, where: str, problems: FindingList) -> None:
    metadata = problems.table(value, where, "§2.7", "give an object of annotations, or leave it out")
    if metadata is not None and "pacr:trust_tier" in metadata:
        problems.word(metadata["pacr:trust_tier"], f"{where}/pacr:trust_tier", "§5 rule 9", TRUST_TIERS)


def _goals(value: object, where: str, problems: FindingList) -> None:
    entries = problems.entries(value, where, "§2.8", "give an array of goals, or leave it out")
    for index, entry in enumerate(entries or ()):
        goal = problems.table(entry, f"{where}/{index}", "§2.8", "give an object with a goal_id")
        if goal is not None:
            problems.fields(goal, f"{where}/{index}", "§2.8", _GOAL_FIELDS)


def _goal_id(value: object, where: str, problems: FindingList) -> None:
    problems.text(value, where, "§2.8", "give the goal's identifier as a string")


def _priority(value: object, where: str, problems: FindingList) -> None:
    cure = "give a number from 0 to 1, or leave it out"
    priority = problems.number(value, where, "§2.8", cure)
    if priority is not None and not 0 <= priority <= 1:
        problems.add(where, "§2.8", f"{shown(priority)} is not from 0 to 1", cure)


_CAPABILITY_FIELDS: tuple[Field, ...] = (
    ("id", _capability_id, _ID_CURE),
    ("description", _optional_text("§2.4.2"), None),
    ("input_schema", _schema, None),
    ("output_schema", _schema, None),
    ("tags", _tags, None),
)
_ENDPOINT_FIELDS: tuple[Field, ...] = (
    ("protocol", _protocol, f"use {', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}"),
    ("url", _url, _URL_CURE),
    ("auth", _auth, None),
)
_PRICING_FIELDS: tuple[Field, ...] = (
    ("base_cost_joules", _base_cost, None),
    ("per_token_joules", _per_token, None),
)
_GOAL_FIELDS: tuple[Field, ...] = (
    ("goal_id", _goal_id, "give the goal's identifier as a string"),
    ("description", _optional_text("§2.8"), None),
    ("priority", _priority, None),
)
_CARD_FIELDS: tuple[Field, ...] = (
    ("agent_id", _agent_id, _AGENT_ID_CURE),
    ("name", _name, _NAME_CURE),
    ("version", _version, _VERSION_CURE),
    ("capabilities", _capabilities, _CAPABILITIES_CURE),
    ("endpoint", _endpoint, _ENDPOINT_CURE),
    ("pricing", _pricing, None),
    ("metadata", _metadata, None),
    ("goal_subscriptions", _goals, None),
)
