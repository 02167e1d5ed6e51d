"""Which whole jobs (HCP) a policy entry lets its principals hand in.

It owns the rules and their patterns. It refuses to assess anything: what a job's risk is, and whether the tools of its
plan are allowed, `hearth.hcp.gate` finds out.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from hearth.errors import ConfigError
from hearth.hcp.values import CLASSIFICATIONS, RISKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hearth.hcp.capability import Capability
    from hearth.hcp.values import Classification, Risk
    from hearth.policy.rules import PolicyEntry


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


@frozen(kw_only=True)
class JobRules:
    """`hcp` of one `[[policy]]`: what holds beside the entry's own risk cap, tools and rates.

    `capabilities` and `callers` are patterns over capabilities' names and over what a caller calls itself. The latter
    is a claim: within an entry it tells programs of one principal apart, it does not prove who they are. `max_risk` and
    `max_data_classification` are the highest that a job may have, `approve` says whether its principals may allow jobs
    of others that wait for a person. Raises ConfigError that names the key.
    """

    capabilities: tuple[str, ...] = field(default=("*",), converter=_patterns)
    max_risk: Risk = "R5"
    max_data_classification: Classification = "T2"
    callers: tuple[str, ...] = field(default=("*",), converter=_patterns)
    approve: bool = False

    def __attrs_post_init__(self) -> None:
        for key in ("capabilities", "callers"):
            patterns = getattr(self, key)
            if not all(isinstance(pattern, str) and pattern for pattern in patterns):
                raise ConfigError(f'hcp.{key}: expected names or patterns such as "bench-*", got {list(patterns)}')
        for key, words in (("max_risk", RISKS), ("max_data_classification", CLASSIFICATIONS)):
            if getattr(self, key) not in words:
                raise ConfigError(f"hcp.{key}: expected {', '.join(words)}, got {getattr(self, key)!r}")
        if not isinstance(self.approve, bool):
            raise ConfigError(f"hcp.approve: expected true or false, got {self.approve!r}")

    def allows(self, capability: str) -> bool:
        """Whether this capability may be used."""
        return any(fnmatchcase(capability, pattern) for pattern in self.capabilities)

    def allows_caller(self, caller_id: str) -> bool:
        """Whether a job may come from who calls itself this."""
        return any(fnmatchcase(caller_id, pattern) for pattern in self.callers)


def job_rules(given: JobRules | Mapping[str, Any]) -> JobRules:
    """The rules themselves, or those that a mapping stands for. Raises ConfigError for a key that there is not."""
    if isinstance(given, JobRules):
        return given
    try:
        return JobRules(**given)
    except TypeError:
        raise ConfigError(f"hcp: expected a table of capabilities, max_risk and so on, got {given!r}") from None


def idle_job_rules(entries: Iterable[PolicyEntry], capabilities: Mapping[str, Capability]) -> list[str]:
    """A sentence for each pattern that fits no capability, and for each capability that waits for a person in vain."""
    entries = list(entries)
    said = [
        f"policy {entry.name!r}: hcp.capabilities: {pattern!r} fits no capability; `hearth hcp capabilities` lists them"
        for entry in entries
        for pattern in entry.hcp.capabilities
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in capabilities)
    ]
    if not any(entry.hcp.approve for entry in entries):
        said += [
            f"capability {name}: a person must allow its jobs, and nobody may; say hcp.approve in a [[policy]] entry"
            for name, capability in capabilities.items()
            if capability.safety.requires_human_approval
        ]
    return said
