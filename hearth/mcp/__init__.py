"""What hearth looks like to an MCP client: names, tool definitions and outcomes, as plain JSON values.

Pure, and without the MCP SDK: the daemon answers `mcp.tools` with it whether or not a bridge is installed, and the
bridge (`hearth.actors.bridges.mcp`) serves the same. Nothing here does I/O.
"""
