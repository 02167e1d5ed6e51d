"""Other protocols' servers over the same runtime (design §2): MCP, and HTTP for what is read with a browser or a probe.

A bridge knows the runtime's face, the Session interface, and never its inside.
"""
