"""The client: a connection to a daemon (`connection`), its sessions (`session`), and jobs (`jobs`, HCP)."""
