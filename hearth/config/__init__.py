"""hearth.toml: its sections (`model`, `listen`, `exec`), its reader and writer (`file`), and a check (`roots`)."""
