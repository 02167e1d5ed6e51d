"""The capabilities that are shipped, one TOML file each; see docs/capabilities.md."""
