"""From a principal to what it may do: policy entries in order, the first match wins (design §6).

This module owns matching, allowlists, risk caps and which rate applies. It is pure: no file, clock or state.
It refuses to know how a principal was authenticated and how a task is held against its grant.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

from attrs import Attribute, Factory, evolve, field, frozen

from hearth.errors import ConfigError, PermissionDenied
from hearth.policy.jobs import JobRules, job_rules
from hearth.policy.principal import alternative_name
from hearth.policy.rate import Rate
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.policy.principal import Principal

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_SAN = re.compile(r"(DNS|IP|URI|email|dirName|RID):(.+)", re.DOTALL)
_HIGHEST = len(RISK_NAMES) - 1
_LAST_ID = 0xFFFFFFFE
"""The number after it means "no id" to the kernel."""


def _an_id(_match: Match, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (_is_integer(value) and 0 <= value <= _LAST_ID):
        raise ConfigError(f"match.{attribute.name}: expected a number from 0 to {_LAST_ID}, got {value!r}")


def _a_name(_match: Match, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"match.{attribute.name}: expected a name, got {value!r}")


def _a_digest(_match: Match, _attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str) and _DIGEST.match(value)):
        # The wrong value is not repeated: it may well be the token itself.
        raise ConfigError("match.token_sha256: expected 64 hex digits, from `printf %s TOKEN | sha256sum`")


def _a_san(_match: Match, _attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str) and _is_san(value)):
        kinds = "DNS:NAME, IP:ADDRESS, URI:URI or email:ADDRESS"
        raise ConfigError(f"match.cert_san: expected {kinds}, got {value!r}")


def _is_san(value: str) -> bool:
    found = _SAN.fullmatch(value)
    if found is None or found[1] != "IP":
        return found is not None
    try:
        ipaddress.ip_address(found[2])
    except ValueError:
        return False
    return True


def _plain_san(value: Any) -> Any:
    found = _SAN.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else alternative_name(found[1], found[2])


def _lower(value: str | None) -> str | None:
    return value.lower() if isinstance(value, str) else value


@frozen(kw_only=True)
class Match:
    """A condition on a principal: all fields that are given must hold. `any`, alone, matches everybody.

    `gid` and `group` look at the primary and the supplementary groups, `cert_san` at all of a certificate's
    alternative names, each with its kind before it ("DNS:arm-7.local"). Raises ConfigError for a condition
    without a field, since one that matches nobody is a mistake, and for `any` beside another field.
    """

    uid: int | None = field(default=None, validator=_an_id)
    gid: int | None = field(default=None, validator=_an_id)
    user: str | None = field(default=None, validator=_a_name)
    group: str | None = field(default=None, validator=_a_name)
    cert_subject: str | None = field(default=None, validator=_a_name)
    cert_san: str | None = field(default=None, converter=_plain_san, validator=_a_san)
    token_sha256: str | None = field(default=None, converter=_lower, validator=_a_digest)
    any: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.any, bool):
            raise ConfigError(f"match.any: expected true or false, got {self.any!r}")
        conditions: list[object] = [self.uid, self.gid, self.user, self.group]
        conditions += [self.cert_subject, self.cert_san, self.token_sha256]
        if all(condition is None for condition in conditions):
            if not self.any:
                raise ConfigError("match: empty, so it matches nobody; name a uid or user, or say any = true")
        elif self.any:
            raise ConfigError("match: any = true matches everybody; remove it or the fields beside it")

    def holds(self, who: Principal) -> bool:
        """Whether `who` fits."""
        return (
            (self.uid is None or self.uid == who.uid)
            and (self.gid is None or self.gid == who.gid or self.gid in who.groups)
            and (self.user is None or self.user == who.user)
            and (self.group is None or self.group in who.group_names)
            and (self.cert_subject is None or self.cert_subject == who.cert_subject)
            and (self.cert_san is None or self.cert_san in who.cert_sans)
            and (self.token_sha256 is None or _same_digest(self.token_sha256, who.token_sha256))
        )


def _same_digest(ours: str, theirs: str | None) -> bool:
    # In constant time, like every comparison with what a peer sent: here too the digest is of a token that is secret.
    return theirs is not None and hmac.compare_digest(ours.encode(), theirs.encode())


_Condition: TypeAlias = Match | Mapping[str, Any]


def _alternatives(given: _Condition | list[_Condition] | tuple[_Condition, ...]) -> tuple[Match, ...]:
    several = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(one if isinstance(one, Match) else Match(**one) for one in several)


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _read_only(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(given))


@frozen(kw_only=True)
class PolicyEntry:
    """One `[[policy]]` of the configuration.

    `match` is a condition, or several of which one must hold; a mapping stands for the Match with its fields.
    `tools` are patterns over dotted names, in which `*` crosses dots too ("gpio.*", "*.read"). `rate` maps a
    tool's name, or a pattern, to a rate ("50/s"). `max_risk_ceiling` is how far a task may raise the cap; by
    default not at all. `hcp` says which whole jobs it may hand in; a mapping stands for them too. Raises ConfigError
    that names the entry and the key.
    """

    name: str
    match: tuple[Match, ...] = field(converter=_alternatives)
    max_risk: int = 2
    max_risk_ceiling: int = field(default=Factory(lambda entry: entry.max_risk, takes_self=True))
    tools: tuple[str, ...] = field(default=("*",), converter=_patterns)
    rate: Mapping[str, str] = field(factory=dict, converter=_read_only)
    hcp: JobRules = field(factory=JobRules, converter=job_rules)

    def __attrs_post_init__(self) -> None:
        where = f"policy {self.name!r}"
        if not self.match:
            raise ConfigError(f"{where}: match: empty, so it matches nobody; give a condition or any = true")
        for key in ("max_risk", "max_risk_ceiling"):
            level = getattr(self, key)
            if not (_is_integer(level) and 0 <= level <= _HIGHEST):
                raise ConfigError(f"{where}: {key}: expected a risk from 0 to {_HIGHEST}, got {level!r}")
        if self.max_risk_ceiling < self.max_risk:
            limits = f"{self.max_risk_ceiling} is below max_risk = {self.max_risk}"
            raise ConfigError(f"{where}: max_risk_ceiling: {limits}; raise it or leave it out")
        if not all(_is_text(pattern) and pattern for pattern in self.tools):
            raise ConfigError(f'{where}: tools: expected patterns such as "gpio.*", got {list(self.tools)}')
        for pattern, text in self.rate.items():
            try:
                Rate.parse(text)
            except ConfigError as error:
                raise ConfigError(f"{where}: rate.{pattern!r}: {error}") from None


@frozen
class Grant:
    """What a session of one principal may do: decided once, at session.open."""

    policy: str
    max_risk: int
    max_risk_ceiling: int
    allowed: frozenset[str]
    """Tools on the allowlist, whatever their risk: the risk cap is a check with a reason of its own."""
    rates: Mapping[str, Rate]
    """How often each of them may be used: in one session, and in all sessions of the principal together."""
    hcp: JobRules = field(factory=JobRules)
    """Which whole jobs it may hand in, within all of this."""

    def risk_cap(self, asked: int | None) -> int:
        """The cap for a task with this `constraints.max_risk_level`: lower always, higher up to the ceiling.

        Raises PermissionDenied with the reason in `data`.
        """
        if asked is None:
            return self.max_risk
        if asked > self.max_risk_ceiling:
            reason = f"max_risk_level={asked} > ceiling={self.max_risk_ceiling}"
            raise PermissionDenied(data={"reason": reason, "policy": self.policy})
        return asked

    def narrowed(self, tools: frozenset[str]) -> Grant:
        """The same with these tools only, of those that it allows."""
        return evolve(self, allowed=self.allowed & tools)


class Ranked(Protocol):
    """What policy has to know of a tool beside its name."""

    @property
    def name(self) -> str:
        """As patterns see it."""
        ...

    @property
    def rate(self) -> str:
        """How often it may be used where the policy does not say."""
        ...


def decide(entries: Iterable[PolicyEntry], principal: Principal, tools: Mapping[str, Ranked]) -> Grant | None:
    """The grant of the first entry that matches, or None: then nothing is allowed, not even a session.

    Of the entry's rates one under the tool's exact name comes first, then the first pattern that fits;
    without either the tool's own default holds, or that of its risk level. Raises ConfigError for a tool
    whose default rate cannot be read.
    """
    for entry in entries:
        if any(match.holds(principal) for match in entry.match):
            return _grant(entry, tools)
    return None


def default_policy(own_uid: int, socket_gid: int | None) -> tuple[PolicyEntry, ...]:
    """What holds where the configuration has no entry: our own user and the socket's group, max_risk 2.

    Being able to connect is the authentication (draft §10.1). Root can connect too, but is let in only where
    it is the daemon's own user or in the group: who wants it otherwise writes an entry.
    """
    ours, group = Match(uid=own_uid), None if socket_gid is None else Match(gid=socket_gid)
    return (PolicyEntry(name="default", match=ours if group is None else (ours, group)),)


def idle_patterns(entries: Iterable[PolicyEntry], tools: Iterable[str]) -> list[str]:
    """A sentence for each pattern that fits no tool: a misspelt rate limits nothing."""
    names = list(tools)
    return [
        f"policy {entry.name!r}: {key}: {pattern!r} fits no tool; `hearth tools` lists them"
        for entry in entries
        for key, patterns in (("tools", entry.tools), ("rate", entry.rate))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]


def idle_conditions(entries: Iterable[PolicyEntry], *, certificates: bool, tokens: bool) -> list[str]:
    """A sentence for each condition that nobody can meet, since no listener takes what it asks for.

    `certificates` and `tokens` say whether there is a listener that takes client certificates, or tokens.
    """
    said = []
    for entry in entries:
        for match in entry.match:
            if match.token_sha256 is not None and not tokens:
                cure = "no listener takes tokens; set [websocket] or [http] listen"
                said.append(f"policy {entry.name!r}: match.token_sha256: {cure}")
            for key in ("cert_subject", "cert_san"):
                if getattr(match, key) is not None and not certificates:
                    cure = "no listener asks for certificates; set [tls] listen, or client_ca in [websocket] or [http]"
                    said.append(f"policy {entry.name!r}: match.{key}: {cure}")
    return said


def token_digests(entries: Iterable[PolicyEntry]) -> frozenset[str]:
    """The digests of all tokens that some entry's condition names: lower-case hex of SHA-256."""
    digests = (match.token_sha256 for entry in entries for match in entry.match)
    return frozenset(digest for digest in digests if digest is not None)


def _grant(entry: PolicyEntry, tools: Mapping[str, Ranked]) -> Grant:
    allowed = frozenset(name for name in tools if any(fnmatchcase(name, pattern) for pattern in entry.tools))
    rates = {}
    for name in allowed:
        try:
            rates[name] = _rate(_rate_text(entry, tools[name]))
        except ConfigError as error:
            raise ConfigError(f"tool {name!r}: default_rate: {error}") from None
    caps = entry.max_risk, entry.max_risk_ceiling
    return Grant(entry.name, *caps, allowed, MappingProxyType(rates), entry.hcp)


@lru_cache(maxsize=256)
def _rate(text: str) -> Rate:
    # A grant names a rate for every tool and is made at each session.open, of a few texts.
    return Rate.parse(text)


def _rate_text(entry: PolicyEntry, tool: Ranked) -> str:
    exact = entry.rate.get(tool.name)
    if exact is not None:
        return exact
    fitting = (text for pattern, text in entry.rate.items() if fnmatchcase(tool.name, pattern))
    return next(fitting, tool.rate)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
