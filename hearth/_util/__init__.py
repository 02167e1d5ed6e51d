"""Helpers that no other package of hearth is needed for: files, text, TOML, threads, identifiers, exception groups."""
