"""Who may do what: principals, rules, rates and the path guard (draft §12; design §6).

Policy is pure: it decides, takes the time as an argument, and keeps no state but the token buckets of
sessions and principals. It knows no carrier, no session and no actor. `paths`, `beneath`, `loopback` and
`principal` alone ask the machine: only the kernel can say where a path leads, and who calls.
"""

from hearth.policy.principal import Principal
from hearth.policy.rules import (
    Grant,
    JobRules,
    Match,
    PolicyEntry,
    PrincipalRates,
    Rate,
    RateLimits,
    TokenBucket,
    decide,
    default_policy,
    idle_patterns,
)

__all__ = [
    "Grant",
    "JobRules",
    "Match",
    "PolicyEntry",
    "Principal",
    "PrincipalRates",
    "Rate",
    "RateLimits",
    "TokenBucket",
    "decide",
    "default_policy",
    "idle_patterns",
]
