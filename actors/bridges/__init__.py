"""Servers of other protocols over the same runtime: MCP, HTTP (agent card, health, metrics) and HCP.

A bridge uses the runtime's public interface and the Session interface, and never the runtime's internals.
"""
