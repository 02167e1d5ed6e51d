"""What hearth serves over HTTP: /mcp, the agent card, health and metrics. Needs the extra `hearth[http]`."""
