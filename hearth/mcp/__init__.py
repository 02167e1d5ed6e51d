"""hearth as an MCP client sees it: names, tool definitions and results, as plain JSON values.

The package needs no MCP SDK and does no I/O. The daemon answers `mcp.tools` with it, also without an installed bridge,
and the bridge (`hearth.actors.bridges.mcp`) serves the same values.
"""
