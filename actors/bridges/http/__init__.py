"""The HTTP server: /mcp, the agent card, health and metrics. Needs the extra `hearthd[http]`."""
