"""The `hearth` command: see `main` for its names, and one module for each subcommand."""
