"""Listeners: accept a peer, authenticate it, pass its carrier and principal to the daemon. They know no session."""
