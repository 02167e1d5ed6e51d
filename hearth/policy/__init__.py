"""Who may do what: principals, rules, rates and the path guard (draft §12; design §6).

Policy is pure: it decides, takes the time as an argument, and keeps no state but the token buckets of
sessions and principals. It knows no carrier, no session and no actor. `paths`, `loopback` and `principal`
alone ask the machine: only the kernel can say where a path leads, and who calls.
"""
