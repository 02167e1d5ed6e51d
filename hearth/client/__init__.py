"""The client: a connection to a daemon (`connection`), its sessions (`session`) and whole jobs (`jobs`, HCP)."""
