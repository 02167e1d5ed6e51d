"""Policy entries: from a principal to its grant. The first entry that matches decides.

This module owns matching, allowlists, risk caps, the rules for whole jobs (HCP) and the arithmetic of rate limits. It
is pure: no file and no clock. How a principal was authenticated and how a task is checked against its grant is not
known here. `Buckets` has token buckets of one rate for many names: made when a name is first used, deleted when full
again. Names come from outside (principals, addresses), so their number is bounded.
"""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard, overload

from attrs import Attribute, Factory, evolve, field, fields, frozen

from hearth.errors import ApprovalRequired, ConfigError, PermissionDenied, RateLimited
from hearth.policy.levels import CLASSIFICATIONS, RISKS
from hearth.policy.principal import Tokens, alternative_name
from hearth.tools import RISK_NAMES, USE_FORMS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hearth.policy.levels import Classification, Risk
    from hearth.policy.principal import Principal
    from hearth.tools import Use

# --- whole jobs (HCP) -------------------------------------------------------------------------------------------------
#
# The rules and their patterns, as plain data: HCP reads them, and is not known here. `hearth.hcp.safety` assesses a
# job's risk and the tools of its plan.


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@frozen(kw_only=True)
class JobRules:
    """`hcp` of one `[[policy]]`: conditions beside the entry's own risk cap, tools and rates.

    `capabilities` and `callers` are patterns over capabilities' names and over the caller id in a job. The latter is a
    claim: within an entry it distinguishes programs of one principal, it does not prove who they are. `max_risk` and
    `max_data_classification` are the highest that a job may have. Raises ConfigError that names the key.
    """

    capabilities: tuple[str, ...] = field(default=("*",), converter=_patterns)
    max_risk: Risk = "R5"
    max_data_classification: Classification = "T2"
    callers: tuple[str, ...] = field(default=("*",), converter=_patterns)

    def __attrs_post_init__(self) -> None:
        for key in ("capabilities", "callers"):
            patterns = getattr(self, key)
            if not all(isinstance(pattern, str) and pattern for pattern in patterns):
                raise ConfigError(f'hcp.{key}: expected names or patterns such as "bench-*", got {list(patterns)}')
        for key, words in (("max_risk", RISKS), ("max_data_classification", CLASSIFICATIONS)):
            if getattr(self, key) not in words:
                raise ConfigError(f"hcp.{key}: expected {', '.join(words)}, got {getattr(self, key)!r}")

    @property
    def ranks(self) -> tuple[int, int]:
        """The ranks of the highest risk and of the highest data classification."""
        return RISKS.index(self.max_risk), CLASSIFICATIONS.index(self.max_data_classification)

    def allows(self, capability: str) -> bool:
        """Return True if this capability may be used."""
        return any(fnmatchcase(capability, pattern) for pattern in self.capabilities)

    def allows_caller(self, caller_id: str) -> bool:
        """Return True if a job may come from a caller with this id."""
        return any(fnmatchcase(caller_id, pattern) for pattern in self.callers)


def job_rules(given: JobRules | Mapping[str, Any]) -> JobRules:
    """Return the rules themselves, or those of a mapping. Raises ConfigError for an unknown key."""
    if isinstance(given, JobRules):
        return given
    try:
        return JobRules(**given)
    except TypeError:
        raise ConfigError(f"hcp: expected a table of capabilities, max_risk and so on, got {given!r}") from None


def idle_job_rules(entries: Iterable[PolicyEntry], capabilities: Mapping[str, bool]) -> list[str]:
    """Return a warning for each pattern that fits no capability, and each capability that no principal can approve.

    `capabilities` maps the names of all capabilities to True where a person must approve each job.
    """
    entries = list(entries)
    said = [
        f"policy {entry.name!r}: hcp.capabilities: {pattern!r} fits no capability; `hearth hcp capabilities` lists them"
        for entry in entries
        for pattern in entry.hcp.capabilities
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in capabilities)
    ]
    if not any("approve" in entry.rights for entry in entries):
        said += [
            f"capability {name}: a person must allow its jobs, and no [[policy]] entry has approve in its rights"
            for name, asks in capabilities.items()
            if asks
        ]
    return said


RIGHTS: Final = ("observe", "approve", "reset_halt", "admin")
"""What a `[[policy]]` entry may let its principals do beside running tools; none unless the entry names it."""


@frozen(kw_only=True)
class ApprovalRule:
    """One rule of `approval` of a `[[policy]]`: a task of this effective risk or more runs only as an approved plan.

    `persons` is how many different principals must approve it, each with the right `right`. None of them is the one
    that prepared it if `other` is true, or if `persons` is 2 or more. Raises ConfigError that names the key.
    """

    from_risk: int
    right: str = "approve"
    persons: int = 1
    other: bool = False

    def __attrs_post_init__(self) -> None:
        if not (_is_integer(self.from_risk) and 1 <= self.from_risk <= _HIGHEST):
            raise ConfigError(f"approval: from_risk: expected a risk from 1 to {_HIGHEST}, got {self.from_risk!r}")
        if self.right not in RIGHTS:
            raise ConfigError(f"approval: right: expected one of {', '.join(RIGHTS)}, got {self.right!r}")
        if not (_is_integer(self.persons) and 1 <= self.persons <= MOST_PERSONS):
            raise ConfigError(f"approval: persons: expected a number from 1 to {MOST_PERSONS}, got {self.persons!r}")
        if not isinstance(self.other, bool):
            raise ConfigError(f"approval: other: expected true or false, got {self.other!r}")

    def counts(self, by: str, author: str) -> bool:
        """Return True if the approval of the principal `by` counts for a plan of the principal `author`."""
        return by != author or not (self.other or self.persons > 1)

    def missing(self, approved_by: Iterable[str], author: str) -> int:
        """Return how many approvals are missing."""
        return max(0, self.persons - len({by for by in approved_by if self.counts(by, author)}))

    def to_wire(self) -> dict[str, Any]:
        """Return the `needs` of a plan."""
        return {"right": self.right, "persons": self.persons, "other": self.other or self.persons > 1}

    def refusal(self, reason: str, cure: str, **data: Any) -> ApprovalRequired:
        """Return the error for what this rule lets run only once it is approved."""
        details = {"reason": reason, "needs": self.to_wire(), "effect": "none", **data}
        return ApprovalRequired(f"Approval required: {reason}; {cure}", data=details)


MOST_PERSONS: Final = 16
TAINTED_FROM_RISK: Final = 2
"""The effective risk from which on a plan of a tainted conversation needs a person."""


def strictest(rules: tuple[ApprovalRule, ...], risk: int) -> ApprovalRule | None:
    """Return the rule of the highest `from_risk` that `risk` reaches; None if there is none."""
    return next((rule for rule in reversed(rules) if rule.from_risk <= risk), None)


def _scoped(given: Mapping[str, str | Iterable[str] | None]) -> Mapping[str, tuple[str, ...]]:
    lower = {word: tuple([one.lower() for one in _patterns(few)]) for word, few in given.items() if few is not None}
    return MappingProxyType(lower)


@frozen
class Scope:
    """The hardware that a `[[policy]]` entry permits: patterns over names, by the word of its kind ("lines", "i2c").

    A kind whose word is left out, or None, is permitted whole.
    """

    patterns: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_scoped, hash=False)

    @property
    def bounded(self) -> bool:
        """True if it permits less than everything."""
        return bool(self.patterns)

    def permits(self, use: Use) -> bool:
        """Return True if this piece of hardware may be used; upper and lower case are the same."""
        patterns = self.patterns.get(use.kind)
        return patterns is None or any(fnmatchcase(name.lower(), pattern) for pattern in patterns for name in use.names)


EVERYTHING: Final = Scope()


def _approval_rules(given: Iterable[ApprovalRule | Mapping[str, Any]]) -> tuple[ApprovalRule, ...]:
    rules = [one if isinstance(one, ApprovalRule) else ApprovalRule(**one) for one in given]
    return tuple(sorted(rules, key=lambda rule: rule.from_risk))


_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_SAN = re.compile(r"(DNS|IP|URI|email|dirName|RID):(.+)", re.DOTALL)
_HIGHEST = len(RISK_NAMES) - 1
_LAST_ID = 0xFFFFFFFE
"""The largest id. The number after it means "no id" to the kernel."""


def _an_id(_match: Match, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (_is_integer(value) and 0 <= value <= _LAST_ID):
        raise ConfigError(f"match.{attribute.name}: expected a number from 0 to {_LAST_ID}, got {value!r}")


def _a_name(_match: Match, attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"match.{attribute.name}: expected a name, got {value!r}")


def _a_digest(_match: Match, _attribute: Attribute[Any], value: object) -> None:
    if value is not None and not (isinstance(value, str) and _DIGEST.match(value)):
        # Do not repeat the wrong value: it may be the token itself.
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
    """A condition on a principal: all given fields must hold. `any`, alone, matches every principal.

    `gid` and `group` look at the primary and the supplementary groups, `cert_san` at all of a certificate's alternative
    names, each with its kind before it ("DNS:arm-7.local"). Raises ConfigError for a condition without a field, since
    it would match no principal and is a mistake, and for `any` beside another field.
    """

    uid: int | None = field(default=None, validator=_an_id)
    gid: int | None = field(default=None, validator=_an_id)
    user: str | None = field(default=None, validator=_a_name)
    group: str | None = field(default=None, validator=_a_name)
    cert_subject: str | None = field(default=None, validator=_a_name)
    cert_san: str | None = field(default=None, converter=_plain_san, validator=_a_san)
    token_sha256: str | None = field(default=None, converter=_lower, validator=_a_digest)
    amqp_user: str | None = field(default=None, validator=_a_name)
    any: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.any, bool):
            raise ConfigError(f"match.any: expected true or false, got {self.any!r}")
        conditions: list[object] = [self.uid, self.gid, self.user, self.group]
        conditions += [self.cert_subject, self.cert_san, self.token_sha256, self.amqp_user]
        if all(condition is None for condition in conditions):
            if not self.any:
                raise ConfigError("match: empty, so it matches no principal; name a uid or user, or set any = true")
        elif self.any:
            raise ConfigError("match: any = true matches every principal; remove it or the fields beside it")

    def holds(self, who: Principal) -> bool:
        """Return True if `who` meets the condition."""
        return (
            (self.uid is None or self.uid == who.uid)
            and (self.gid is None or self.gid == who.gid or self.gid in who.groups)
            and (self.user is None or self.user == who.user)
            and (self.group is None or self.group in who.group_names)
            and (self.cert_subject is None or self.cert_subject == who.cert_subject)
            and (self.cert_san is None or self.cert_san in who.cert_sans)
            and (self.token_sha256 is None or _same_digest(self.token_sha256, who.token_sha256))
            and (self.amqp_user is None or self.amqp_user == who.amqp_user)
        )


def _same_digest(ours: str, theirs: str | None) -> bool:
    # Compare in constant time, like every comparison with bytes of a peer: the digest here is of a secret token.
    return theirs is not None and hmac.compare_digest(ours.encode(), theirs.encode())


_Condition: TypeAlias = Match | Mapping[str, Any]


DEFAULT: Final = "default"
"""The key in `rate` for tools that have no rate of their own: in place of the rate of their risk level."""


def _alternatives(given: _Condition | list[_Condition] | tuple[_Condition, ...]) -> tuple[Match, ...]:
    several = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(one if isinstance(one, Match) else Match(**one) for one in several)


def _names(given: Iterable[str]) -> frozenset[str]:
    return frozenset(given)


def _read_only(given: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType(dict(given))


@frozen(kw_only=True, init=False)
class PolicyEntry:
    """One `[[policy]]` of the configuration.

    `match` is a condition, or several of which one must hold; a mapping stands for the Match with its fields. `tools`
    are patterns over dotted names, in which `*` crosses dots too ("gpio.*", "*.read"). `rate` maps a tool's name, or a
    pattern, to a rate ("50/s"), and `DEFAULT` to that of tools without a rate of their own. `max_risk_ceiling` is how
    far a task may raise the cap; by default not at all. `hcp` holds the rules for whole jobs; a mapping stands for them
    too. `rights` are of `RIGHTS`. `approval` lists what only runs as an approved plan; of its rules, the one with the
    highest `from_risk` that a task reaches holds. `scope` is the hardware that it permits; any further argument is the
    word of a kind with its patterns, such as lines=["LED"]. Raises ConfigError that names the entry and the key.
    """

    name: str
    match: tuple[Match, ...] = field(converter=_alternatives)
    max_risk: int = 2
    max_risk_ceiling: int = field(default=Factory(lambda entry: entry.max_risk, takes_self=True))
    tools: tuple[str, ...] = field(default=("*",), converter=_patterns)
    rate: Mapping[str, str] = field(factory=dict, converter=_read_only)
    hcp: JobRules = field(factory=JobRules, converter=job_rules)
    rights: frozenset[str] = field(factory=frozenset[str], converter=_names)
    approval: tuple[ApprovalRule, ...] = field(default=(), converter=_approval_rules)
    scope: Scope = EVERYTHING

    def __init__(self, *, name: str, match: Any, scope: Scope = EVERYTHING, **more: Any) -> None:
        own = {attribute.name for attribute in fields(PolicyEntry)}
        words = {key: more.pop(key) for key in [*more] if key not in own}
        build = self.__attrs_init__  # pyright: ignore[reportAttributeAccessIssue]
        build(name=name, match=match, scope=Scope({**scope.patterns, **words}), **more)

    def __attrs_post_init__(self) -> None:
        where = f"policy {self.name!r}"
        if not self.match:
            raise ConfigError(f"{where}: match: empty, so it matches no principal; give a condition or any = true")
        for key in ("max_risk", "max_risk_ceiling"):
            level = getattr(self, key)
            if not (_is_integer(level) and 0 <= level <= _HIGHEST):
                raise ConfigError(f"{where}: {key}: expected a risk from 0 to {_HIGHEST}, got {level!r}")
        if self.max_risk_ceiling < self.max_risk:
            limits = f"{self.max_risk_ceiling} is below max_risk = {self.max_risk}"
            raise ConfigError(f"{where}: max_risk_ceiling: {limits}; raise it or leave it out")
        if not all(_is_text(pattern) and pattern for pattern in self.tools):
            raise ConfigError(f'{where}: tools: expected patterns such as "gpio.*", got {list(self.tools)}')
        if wrong := self.rights - {*RIGHTS}:
            raise ConfigError(f"{where}: rights: expected some of {', '.join(RIGHTS)}, got {sorted(map(str, wrong))}")
        risks = [rule.from_risk for rule in self.approval]
        if len(risks) != len({*risks}):
            raise ConfigError(f"{where}: approval: two rules have one from_risk; keep one of them")
        for word, (expected, form) in USE_FORMS.items():
            if unfit := [pattern for pattern in self.scope.patterns.get(word, ()) if not re.fullmatch(form, pattern)]:
                raise ConfigError(f"{where}: {word}: expected {expected}, got {unfit}")
        for pattern, text in self.rate.items():
            try:
                Rate.parse(text)
            except ConfigError as error:
                raise ConfigError(f"{where}: rate.{pattern!r}: {error}") from None


@frozen
class Grant:
    """The rights of a session of one principal: decided once, at session.open."""

    policy: str
    max_risk: int
    max_risk_ceiling: int
    allowed: frozenset[str]
    """Tools on the allowlist, whatever their risk: the risk cap is a separate check with its own reason."""
    rates: Mapping[str, Rate]
    """Rate of each allowed tool. It bounds one session, and all sessions of the principal together."""
    hcp: JobRules = field(factory=JobRules)
    """Rules for whole jobs, within all of this."""
    rights: frozenset[str] = frozenset()
    """What its principal may do beside running tools; of `RIGHTS`."""
    approval: tuple[ApprovalRule, ...] = ()
    """What runs only as an approved plan, by rising `from_risk`."""
    scope: Scope = EVERYTHING
    """The hardware that its tasks may use."""
    conversation: bool = False
    """True for a session in which a model decides what is asked for: it has no rights."""
    tainted_by: str | None = None
    """The tool through which foreign text entered the conversation first; None while there is none."""

    def for_conversation(self, tainted_by: str | None) -> Grant:
        """Return the grant for the conversation of a model; once it is tainted, a person decides from risk 2 on."""
        approval = self.approval
        if tainted_by is not None and self.approval_for(TAINTED_FROM_RISK) is None:
            approval = (ApprovalRule(from_risk=TAINTED_FROM_RISK), *approval)
        return evolve(self, rights=frozenset(), approval=approval, conversation=True, tainted_by=tainted_by)

    def approval_for(self, risk: int) -> ApprovalRule | None:
        """Return the rule for a task of this effective risk; None if it may run without an approval."""
        return strictest(self.approval, risk)

    def require(self, right: str) -> None:
        """Raise PermissionDenied, with the cure, if the entry does not give this right."""
        if self.conversation:
            reason = f"a conversation has no rights, also not {right!r}; a person decides in a session of their own"
            raise PermissionDenied(f"Permission denied: {reason}", data={"reason": reason, "policy": self.policy})
        if right not in self.rights:
            reason = f"the right {right!r} is not given by policy {self.policy!r}; the operator gives it with `rights`"
            raise PermissionDenied(f"Permission denied: {reason}", data={"reason": reason, "policy": self.policy})

    def risk_cap(self, asked: int | None) -> int:
        """Return the cap for a task with this `constraints.max_risk_level`: lower always, higher up to the ceiling.

        Raises PermissionDenied with the reason in `data`.
        """
        if asked is None:
            return self.max_risk
        if asked > self.max_risk_ceiling:
            reason = f"max_risk_level={asked} > ceiling={self.max_risk_ceiling}"
            raise PermissionDenied(data={"reason": reason, "policy": self.policy})
        return asked

    def narrowed(self, tools: frozenset[str]) -> Grant:
        """Return the grant for the steps of a job: these tools only, of those that it allows, and no approvals.

        Where the entry asks for approvals, the job as a whole was approved, and no step of it has more risk than it.
        """
        return evolve(self, allowed=self.allowed & tools, approval=())


class Ranked(Protocol):
    """The properties of a tool that policy uses."""

    @property
    def name(self) -> str:
        """Return the name that patterns match."""
        ...

    @property
    def default_rate(self) -> str | None:
        """Return its own rate, which holds where the policy gives none; None: that of its risk level."""
        ...

    @property
    def rate(self) -> str:
        """Return the rate that holds where the policy gives none."""
        ...

    @property
    def resolves_to(self) -> frozenset[str]:
        """Return the tools of which its calls mean steps; none for one that is run itself."""
        ...


def decide(entries: Iterable[PolicyEntry], principal: Principal, tools: Mapping[str, Ranked]) -> Grant | None:
    """Return the grant of the first entry that matches, or None: then nothing is allowed, not even a session.

    Of the entry's rates, the one under the tool's exact name comes first, then the first pattern that fits. Without
    either, the tool's own default holds, or the entry's under `DEFAULT`, or that of its risk level. Raises ConfigError
    for a tool whose default rate cannot be read.
    """
    entry = entry_of(entries, principal)
    if entry is None:
        return None
    return entries.grant_of(entry, tools) if isinstance(entries, PolicyInForce) else grant_of(entry, tools)


def entry_of(entries: Iterable[PolicyEntry], principal: Principal) -> PolicyEntry | None:
    """Return the first entry that matches, or None."""
    return next((entry for entry in entries if any(match.holds(principal) for match in entry.match)), None)


class PolicyInForce(Sequence[PolicyEntry]):
    """The entries that decide now, and the tokens that they name; a reload replaces both, whole and at once."""

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self._entries = tuple(entries)
        self._grants: dict[tuple[int, int], tuple[PolicyEntry, Mapping[str, Ranked], Grant]] = {}
        """By the identities of an entry and of tools, which stand beside the grant: so they stay those of these two."""
        self.tokens = Tokens(token_digests(self._entries))
        """Shared by all who ask for proof."""

    @overload
    def __getitem__(self, index: int) -> PolicyEntry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[PolicyEntry]: ...

    def __getitem__(self, index: int | slice) -> PolicyEntry | Sequence[PolicyEntry]:
        return self._entries[index]

    def __len__(self) -> int:
        return len(self._entries)

    def replace(self, entries: Iterable[PolicyEntry]) -> None:
        """Let these entries decide from now on."""
        self._entries = tuple(entries)
        self._grants.clear()
        self.tokens.replace(token_digests(self._entries))

    def grant_of(self, entry: PolicyEntry, tools: Mapping[str, Ranked]) -> Grant:
        """Return the grant of one of these entries, made once for tools that never change. Raises as `decide`."""
        key = id(entry), id(tools)
        if key not in self._grants:
            self._grants[key] = entry, tools, grant_of(entry, tools)
        return self._grants[key][2]


def in_force(entries: Iterable[PolicyEntry]) -> PolicyInForce:
    """Return the policy itself, or one of these entries."""
    return entries if isinstance(entries, PolicyInForce) else PolicyInForce(entries)


def default_policy(own_uid: int, socket_gid: int | None) -> tuple[PolicyEntry, ...]:
    """Return the policy of a configuration without entries: the daemon's user and the socket's group, max_risk 2.

    Being able to connect is the authentication (draft §10.1). Root can connect too, but is admitted only if it is the
    daemon's own user or in the group. Write a policy entry to admit root otherwise. The daemon's user has all rights,
    the group has none.
    """
    own = PolicyEntry(name="default", match=Match(uid=own_uid), rights=RIGHTS)
    return (own,) if socket_gid is None else (own, PolicyEntry(name="socket group", match=Match(gid=socket_gid)))


def owner_entry(uid: int) -> list[str]:
    """Return the lines of an entry for the owner of a daemon, as they are written in a configuration."""
    rights = ", ".join(f'"{right}"' for right in RIGHTS)
    return ["[[policy]]", 'name = "owner"', f"match = {{ uid = {uid} }}", f"rights = [{rights}]"]


def owner_without_entry(entries: Iterable[PolicyEntry], owners: Iterable[Principal], file: str) -> list[str]:
    """Return a warning, with the command that cures it, if no entry matches one of a daemon's owners, its user first.

    Its own user and root can then halt, and nothing else: any entry ends the built-in one.
    """
    entries, owners = list(entries), list(owners)
    if any(entry_of(entries, who) for who in owners):
        return []
    names = " or ".join(dict.fromkeys(who.key if who.user is None else f"{who.key} ({who.user})" for who in owners))
    cure = "\\n".join(["", *owner_entry(owners[0].uid or 0), ""])
    return [f"no [[policy]] entry matches {names}, who may only halt then; `printf '{cure}' >> {shlex.quote(file)}`"]


def unused_patterns(entries: Iterable[PolicyEntry], tools: Iterable[str]) -> list[str]:
    """Return a warning for each pattern that fits no tool: a misspelt rate limits nothing."""
    names = list(tools)
    return [
        f"policy {entry.name!r}: {key}: {pattern!r} fits no tool; `hearth tools` lists them"
        for entry in entries
        for key, patterns in (("tools", entry.tools), ("rate", entry.rate))
        for pattern in patterns
        if pattern != DEFAULT and not any(fnmatchcase(name, pattern) for name in names)
    ]


def idle_conditions(
    entries: Iterable[PolicyEntry], *, certificates: bool, tokens: bool, broker: bool = False
) -> list[str]:
    """Return a warning for each condition that no principal can meet, because no listener takes what it asks for.

    `certificates` and `tokens` are True if there is a listener that takes client certificates, or tokens; `broker` if
    orders come from a broker.
    """
    said = []
    for entry in entries:
        for match in entry.match:
            if match.token_sha256 is not None and not tokens:
                cure = "no listener takes tokens; set [websocket] or [http] listen"
                said.append(f"policy {entry.name!r}: match.token_sha256: {cure}")
            if match.amqp_user is not None and not broker:
                said.append(f"policy {entry.name!r}: match.amqp_user: no broker is dialled; set [amqp] url")
            for key in ("cert_subject", "cert_san"):
                if getattr(match, key) is not None and not certificates:
                    cure = "no listener asks for certificates; set [tls] listen, or client_ca in [websocket] or [http]"
                    said.append(f"policy {entry.name!r}: match.{key}: {cure}")
    return said


def token_digests(entries: Iterable[PolicyEntry]) -> frozenset[str]:
    """Return the digests of all tokens that a condition of some entry names: lower-case hex of SHA-256."""
    digests = (match.token_sha256 for entry in entries for match in entry.match)
    return frozenset(digest for digest in digests if digest is not None)


def grant_of(entry: PolicyEntry, tools: Mapping[str, Ranked]) -> Grant:
    """Return the grant of the principals of one entry. Raises ConfigError as `decide` does."""
    allowed = frozenset(name for name in tools if any(fnmatchcase(name, pattern) for pattern in entry.tools))
    # A tool whose calls mean steps of other tools is those tools: its own name allows neither more nor less.
    meant = {name: tool.resolves_to for name, tool in tools.items() if tool.resolves_to}
    allowed = allowed - meant.keys() | {name for name, steps in meant.items() if not allowed.isdisjoint(steps)}
    rates = {}
    for name in allowed:
        try:
            rates[name] = _rate(_rate_text(entry, tools[name]))
        except ConfigError as error:
            raise ConfigError(f"tool {name!r}: default_rate: {error}") from None
    caps = entry.max_risk, entry.max_risk_ceiling
    read_only = MappingProxyType(rates)
    return Grant(
        entry.name, *caps, allowed, read_only, entry.hcp, entry.rights, approval=entry.approval, scope=entry.scope
    )


@lru_cache(maxsize=256)
def _rate(text: str) -> Rate:
    # Parsed once for each text: a grant names a rate for every tool and is made at each session.open, of a few texts.
    return Rate.parse(text)


def _rate_text(entry: PolicyEntry, tool: Ranked) -> str:
    exact = entry.rate.get(tool.name)
    if exact is not None:
        return exact
    fitting = (text for pattern, text in entry.rate.items() if fnmatchcase(tool.name, pattern))
    return next(fitting, None) or tool.default_rate or entry.rate.get(DEFAULT) or tool.rate


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# --- rate limits -------------------------------------------------------------------------------------------------
#
# Token buckets per (session, tool) and per (principal, tool) (draft §12). A rate "50/s" lets 50 uses pass at once and
# then one every 20 ms. The same rate bounds one session and all sessions of one principal together, so that opening
# more sessions gives no more uses. The callers pass the time.

_FORM = re.compile(r"([0-9]{1,6})/([0-9]{0,6})([smh])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
MOST_PRINCIPALS = 1024
"""Principals whose uses are counted at once, over all their sessions."""
_SLACK_S = 1e-6
"""Tolerance for sums of floats: a client that waits exactly `retry_after_ms` is admitted."""


@frozen
class Rate:
    """At most `count` uses in `period_s` seconds on average, and at most `count` at once."""

    count: int
    period_s: int

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read "50/s", "10/m", "5/h" or "100/10s". Raises ConfigError for anything else."""
        match = _FORM.match(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigError(f'rate {text!r}: expected uses per time: "50/s", "10/m", "5/h" or "100/10s"')
        count, period = int(match[1]), int(match[2] or 1) * _SECONDS[match[3]]
        if count == 0:
            raise ConfigError(f"rate {text!r}: lets nothing through; to forbid a tool leave it out of tools")
        if period == 0:
            raise ConfigError(f"rate {text!r}: the time must be longer than zero")
        return cls(count, period)

    def __str__(self) -> str:
        return f"{self.count}/{'' if self.period_s == 1 else self.period_s}s"


class TokenBucket:
    """The use of one rate. Its whole state is the moment at which it will be full again."""

    __slots__ = ("_interval", "_period", "burst", "full_at")

    def __init__(self, rate: Rate) -> None:
        self.burst = rate.count
        self._period = rate.period_s
        self._interval = rate.period_s / rate.count
        self.full_at = -math.inf
        """Moment at which the bucket is full again if nothing else is taken."""

    def peek(self, now: float, n: int = 1) -> float:
        """Return the seconds until `n` tokens are there: 0.0 if they are, inf if the bucket never holds so many."""
        if n > self.burst:
            return math.inf
        wait = max(self.full_at, now) + n * self._interval - now - self._period
        return wait if wait > _SLACK_S else 0.0

    def take(self, now: float, n: int = 1) -> float:
        """Take `n` tokens and return 0.0; or take none and return the result of `peek`."""
        wait = self.peek(now, n)
        if not wait:
            self.spend(now, n)
        return wait

    def spend(self, now: float, n: int) -> None:
        """Take `n` tokens that are there, as `peek` has just said."""
        self.full_at = max(self.full_at, now) + n * self._interval

    def put_back(self, n: int = 1) -> None:
        """Undo a `take` of `n`."""
        self.full_at -= n * self._interval


class PrincipalRates:
    """The buckets of all principals, by policy entry; they outlive sessions and end with the process.

    At most `most` are kept. For one more, those whose buckets are all full are deleted, which changes nothing. If there
    is none, the one that would be full soonest is deleted.
    """

    __slots__ = ("_most", "_used")

    def __init__(self, most: int = MOST_PRINCIPALS) -> None:
        self._most = most
        self._used: dict[tuple[str, str], dict[str, TokenBucket]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def buckets(self, principal: str, policy: str, now: float) -> dict[str, TokenBucket]:
        """Return the buckets of one principal under one policy entry, by tool. HOT: once per submit."""
        found = self._used.get((principal, policy))
        if found is None:
            if len(self._used) >= self._most:
                self._forget(now)
            found = self._used[principal, policy] = {}
        return found

    def forget_entries(self, policies: Iterable[str]) -> None:
        """Delete the buckets of these policy entries, whose rates may have changed."""
        gone = {*policies}
        self._used = {key: buckets for key, buckets in self._used.items() if key[1] not in gone}

    def _forget(self, now: float) -> None:
        full_at = {
            key: max((bucket.full_at for bucket in buckets.values()), default=-math.inf)
            for key, buckets in self._used.items()
        }
        soonest = min(full_at, key=lambda key: full_at[key])
        for key in [key for key, at in full_at.items() if at <= now or key == soonest]:
            del self._used[key]


class RateLimits:
    """The rates of one session: its own buckets, each made when its tool is first used, and its principal's."""

    __slots__ = ("_buckets", "_policy", "_principal", "_principals", "_rates")

    def __init__(self, grant: Grant, principal: str, principals: PrincipalRates) -> None:
        self._rates = grant.rates
        self._policy = grant.policy
        self._principal = principal
        self._principals = principals
        self._buckets: dict[str, TokenBucket] = {}

    def check(self, counts: Mapping[str, int], now: float) -> tuple[str, float] | None:
        """Take tokens at both levels for a submit that uses each tool `counts[tool]` times; return None. Or take none.

        Otherwise return the tool that has to wait longest, and its seconds: infinity when the submit asks for more than
        the tool's rate ever admits at once, so that no waiting helps. HOT: once per submit.
        """
        levels = (self._buckets, self._principals.buckets(self._principal, self._policy, now))
        wanted = []
        worst: tuple[str, float] | None = None
        for tool, n in counts.items():
            rate = self._rates[tool]
            for buckets in levels:
                bucket = buckets.get(tool)
                if bucket is None:
                    bucket = buckets[tool] = TokenBucket(rate)
                wait = bucket.peek(now, n)
                if wait and (worst is None or wait > worst[1]):
                    worst = (tool, wait)
                wanted.append((bucket, n))
        if worst is None:
            for bucket, n in wanted:
                bucket.spend(now, n)
        return worst

    def put_back(self, counts: Mapping[str, int], now: float) -> None:
        """Undo a `check` that returned None, for a submit that was refused later and so has used nothing."""
        for buckets in (self._buckets, self._principals.buckets(self._principal, self._policy, now)):
            for tool, n in counts.items():
                if tool in buckets:
                    buckets[tool].put_back(n)

    def refusal(self, tool: str, wait_s: float) -> RateLimited:
        """Return the error for a result of `check`.

        `data` has tool, rate, reason and, unless no waiting helps, retry_after_ms (rounded up).
        """
        rate = self._rates[tool]
        data = {"tool": tool, "rate": str(rate)}
        if math.isinf(wait_s):
            reason = f"one task may use {tool} at most {rate.count} times (rate {rate}): submit smaller tasks"
            return RateLimited(reason, data={**data, "reason": reason})
        milliseconds = math.ceil(wait_s * 1000)
        reason = f"{tool} is limited to {rate}, over all your sessions together: try again in {milliseconds} ms"
        return RateLimited(reason, data={**data, "reason": reason, "retry_after_ms": milliseconds})


MOST_NAMES: Final = 1000
"""Names that have a bucket of their own. Further names share one bucket."""


def too_often(what: str, rate: Rate, wait_s: float) -> RateLimited:
    """Return the error for a principal that has to wait `wait_s` seconds."""
    milliseconds = math.ceil(wait_s * 1000)
    reason = f"{what} of one principal are limited to {rate}: try again in {milliseconds} ms"
    return RateLimited(reason, data={"rate": str(rate), "reason": reason, "retry_after_ms": milliseconds})


class Buckets:
    """Token buckets of one rate, by name."""

    __slots__ = ("_buckets", "_others", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._buckets: dict[str, TokenBucket] = {}
        self._others = TokenBucket(rate)

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """Take a token of this name and return 0.0; or take none and return the seconds until one is there."""
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= MOST_NAMES:
                self.forget(now)
            if len(self._buckets) >= MOST_NAMES:
                return self._others.take(now)
            bucket = self._buckets[name] = TokenBucket(self._rate)
        return bucket.take(now)

    def forget(self, now: float) -> None:
        """Delete the buckets that are full again: a new bucket is equal to them."""
        self._buckets = {name: bucket for name, bucket in self._buckets.items() if bucket.peek(now, bucket.burst)}
