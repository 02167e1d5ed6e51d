"""Authorization: principals, policy rules, rate limits, memory quotas and the path guard (draft §12).

The rules are pure: they decide, take the time as an argument, and keep no state but the token buckets of sessions and
principals. They know no carrier, no session and no actor. Only `paths` and `principal` make system calls,
because only the kernel can say where a path leads and who the peer is.
"""
