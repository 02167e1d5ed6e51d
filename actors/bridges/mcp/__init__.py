"""hearth as an MCP server (draft §10.2), on the official SDK, over Trio. Needs the extra `hearthd[mcp]`.

`server` is the one server object, which speaks both eras of the protocol. `provider` maps a client to its HACP session,
and holds the interface of everything that can be called or read. `stdio` is the entry of `hearth mcp`;
`hearth.actors.bridges.http` serves the same at /mcp.
"""
