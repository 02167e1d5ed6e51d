"""Helpers that need no other package of hearth: files, text, TOML, threads, identifiers, exception groups."""
