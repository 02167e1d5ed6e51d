"""Two policies compared: what the second has no longer, and what it newly allows.

A policy that is cut short (an editor that was interrupted, a full disk) is well-formed more often than not: an entry
without its `approval`, or without its `lines`, allows more than the whole one. So a reload that removes something *and*
lets some principal do more takes effect only if its caller has said so (decision 0156). `compare` decides that by the
structure of the entries, without knowing who the principals are, and errs to one side: `allows` names every entry by
which a principal may do more than before, and possibly one by which none may.

How: the first entry that matches decides. A principal that had its grant from entry A and now has it from entry B meets
a condition of each, and no condition of an entry before A in the former policy or before B in the new one. Each such
pair is compared, unless no principal can meet both conditions (two uids, a uid and a token), or every one that does
meets an earlier condition too. Pure: no clock and no user database; names of users with their uids are given.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from attrs import asdict, fields, frozen

from hearth.policy.rules import JobRules, PolicyEntry, grant_of
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from hearth.policy.rules import ApprovalRule, Grant, Match, Ranked

_KINDS: Final = {
    **dict.fromkeys(("uid", "gid", "user", "group"), "user"),
    **dict.fromkeys(("cert_subject", "cert_san"), "certificate"),
}
"""The kind of principal that can meet a condition; other conditions are kinds of their own."""
_SEVERAL: Final = frozenset(("gid", "group", "cert_san"))
"""Conditions of which one principal can meet several."""
_NAMED: Final = 8
"""Tools that a line names; it counts the others."""

_Condition = frozenset[tuple[str, Any]]


@frozen
class PolicyChange:
    """What a new policy has no longer (`removed`), and what each of its entries newly allows (`allows`), in words."""

    removed: tuple[str, ...]
    allows: tuple[str, ...]

    @property
    def widens_silently(self) -> bool:
        """True if something was removed and some principal may do more."""
        return bool(self.removed and self.allows)


def compare(
    former: Sequence[PolicyEntry],
    new: Sequence[PolicyEntry],
    tools: Mapping[str, Ranked],
    uids: Mapping[str, int] | None = None,
) -> PolicyChange:
    """Return what has changed from one policy to another, for these tools; `uids` has the uids of users' names."""
    allows = []
    old_grants = [grant_of(old, tools) for old in former]
    new_grants = [grant_of(entry, tools) for entry in new]
    for number, (entry, after) in enumerate(zip(new, new_grants, strict=True)):
        more: dict[str, None] = {}
        for place, (old, grant) in enumerate(zip((*former, None), (*old_grants, None), strict=True)):
            earlier = [*_conditions(new[:number]), *_conditions(former[:place])]
            if old != entry and _can_meet(entry, old, earlier, uids or {}):
                more.update(dict.fromkeys(_more(after, grant)))
        if more:
            allows.append(f"policy {entry.name!r}: {'; '.join(more)}")
    removed = dict.fromkeys(_removed(former, new))
    for before in old_grants:
        # A rule that was added may ask for less than one of a lower risk did.
        if any(after.policy == before.policy and _less_approved(after, before) for after in new_grants):
            removed[f"policy {before.policy!r}: approval"] = None
    return PolicyChange(tuple(removed), tuple(allows))


def resets_halt(entries: Sequence[PolicyEntry]) -> bool:
    """Return True if some entry lets its principals end a halt."""
    return any("reset_halt" in entry.rights for entry in entries)


def _can_meet(
    entry: PolicyEntry, old: PolicyEntry | None, earlier: Collection[_Condition], uids: Mapping[str, int]
) -> bool:
    """Return False only if no principal meets a condition of both entries and none of the `earlier` ones."""
    formerly = [_Condition()] if old is None else _conditions([old])
    both = [one | other for one in _conditions([entry]) for other in formerly]
    return any(_possible(one, uids) and not any(first <= one for first in earlier) for one in both)


def _conditions(entries: Sequence[PolicyEntry]) -> list[_Condition]:
    return [_condition(match) for entry in entries for match in entry.match]


def _condition(match: Match) -> _Condition:
    """Return what must hold of a principal; nothing, if the match is for any."""
    return _Condition(item for item in asdict(match).items() if item[1] is not None and item[0] != "any")


def _possible(condition: _Condition, uids: Mapping[str, int]) -> bool:
    single = {item for item in condition if item[0] not in _SEVERAL}
    single |= {("uid", uids[name]) for key, name in condition if key == "user" and name in uids}
    keys = [key for key, _ in single]
    return len(keys) == len({*keys}) and len({_KINDS.get(key, key) for key, _ in condition}) <= 1


def _more(after: Grant, before: Grant | None) -> Iterator[str]:
    """Yield what one grant allows beyond another; None: beyond none at all."""
    if before is None:
        rights = f", rights {', '.join(sorted(after.rights))}" if after.rights else ""
        yield f"a session for whom no entry matched, {len(after.allowed)} tools up to risk {after.max_risk}{rights}"
        return
    if after.max_risk > before.max_risk or after.max_risk_ceiling > before.max_risk_ceiling:
        yield f"risk {after.max_risk}, raised by a task up to {after.max_risk_ceiling}"
    if added := sorted(after.allowed - before.allowed):
        yield f"tools {', '.join(added[:_NAMED])}" + (f" and {len(added) - _NAMED} more" * (len(added) > _NAMED))
    if faster := sorted(name for name in after.allowed & before.allowed if _faster(after, before, name)):
        yield f"a higher rate of {', '.join(faster[:_NAMED])}" + (" and others" * (len(faster) > _NAMED))
    if given := sorted(after.rights - before.rights):
        yield f"rights {', '.join(given)}"
    if less := _less_approved(after, before):
        yield f"less or another approval from risk {less[0]} on"
    for word in before.scope.patterns:
        if not _covers(before.scope.patterns[word], after.scope.patterns.get(word)):
            yield f"more of `{word}`"
    yield from _more_jobs(after.hcp, before.hcp)


def _faster(after: Grant, before: Grant, tool: str) -> bool:
    now, then = after.rates[tool], before.rates[tool]
    return now.count > then.count or now.count * then.period_s > then.count * now.period_s


def _less_approved(after: Grant, before: Grant) -> list[int]:
    """Return the risks of which a task needs less or another approval."""
    # Once a model's conversation is tainted, a rule holds that is not in the entry.
    pairs = ((after, before), (after.for_conversation(""), before.for_conversation("")))
    return [
        risk
        for risk in range(1, len(RISK_NAMES))
        if any(_is_less(now.approval_for(risk), then.approval_for(risk)) for now, then in pairs)
    ]


def _is_less(rule: ApprovalRule | None, former: ApprovalRule | None) -> bool:
    if rule is None or former is None:
        return former is not None
    now, then = rule.to_wire(), former.to_wire()
    return bool(now["persons"] < then["persons"] or now["other"] < then["other"] or now["right"] != then["right"])


def _more_jobs(after: JobRules, before: JobRules) -> Iterator[str]:
    for key in ("capabilities", "callers"):
        if not _covers(getattr(before, key), getattr(after, key)):
            yield f"more of `hcp.{key}`"
    if after.ranks[0] > before.ranks[0] or after.ranks[1] > before.ranks[1]:
        yield f"jobs of risk {after.max_risk} with data of class {after.max_data_classification}"


def _covers(wide: Collection[str] | None, narrow: Collection[str] | None) -> bool:
    """Return True only if every name that fits a pattern of `narrow` fits one of `wide`; None is all names."""
    if wide is None or narrow is None:
        return wide is None
    return all(any(_covers_one(pattern, other) for pattern in wide) for other in narrow)


def _covers_one(wide: str, narrow: str) -> bool:
    if wide == narrow:
        return True
    if not _is_glob(narrow):
        return fnmatchcase(narrow, wide)
    # A pattern that begins with the literal text before the one star of the other.
    return wide.endswith("*") and not _is_glob(wide[:-1]) and narrow.startswith(wide[:-1])


def _is_glob(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _removed(former: Sequence[PolicyEntry], new: Sequence[PolicyEntry]) -> Iterator[str]:
    """Yield each entry, and each key of an entry, of which something is there no longer."""
    now = {entry.name: entry for entry in new}
    for old in former:
        if old.name not in now:
            yield f"policy {old.name!r}"
            continue
        for field in fields(PolicyEntry):
            if not _stated(getattr(old, field.name)) <= _stated(getattr(now[old.name], field.name)):
                yield f"policy {old.name!r}: {field.name}"
    then = {entry.name for entry in former}
    if [old.name for old in former if old.name in now] != [entry.name for entry in new if entry.name in then]:
        yield "the order of the entries"


def _stated(value: Any) -> frozenset[Any]:
    """Return the single statements of a value: each element of a list, each pair of a table."""
    if isinstance(value, JobRules):
        keys = [field.name for field in fields(JobRules)]
        return frozenset((key, one) for key in keys for one in _stated(getattr(value, key)))
    if hasattr(value, "items"):
        return frozenset(value.items())
    return frozenset(value) if isinstance(value, (tuple, frozenset)) else frozenset((value,))
