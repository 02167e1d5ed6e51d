"""hearth as an MCP server (draft §10.2), on the official SDK, over Trio. Needs the extra `hearth[mcp]`.

`server` is the one server object, which speaks both eras of the protocol; `providers` knows which HACP session belongs
to whom; each provider offers something to call or to read. `stdio` is the entry of `hearth mcp`, and
`hearth.actors.bridges.http` serves the same at /mcp.
"""
