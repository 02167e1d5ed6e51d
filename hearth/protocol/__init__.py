"""HACP, sans-IO: bytes in, calls out; answers in, bytes out (draft §2, §3, §6, §8).

No module here knows a socket, a clock, Trio or what a method does. `framing` finds documents in a byte stream,
`jsonrpc` implements JSON-RPC 2.0, `methods` reads each HACP method's parameters. `server` and `client` are the two ends
of a connection; tests connect them back to back.
"""

PROTOCOL_VERSION = "0.1.0"
"""The highest version we speak (draft §9)."""
