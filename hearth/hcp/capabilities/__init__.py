"""The capabilities that are shipped, one module each; see docs/capabilities.md."""
