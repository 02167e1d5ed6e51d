"""hearth.toml: the shapes of its sections (`model`, `listen`, `exec`), and reading and writing the file (`file`)."""
