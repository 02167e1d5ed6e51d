"""Listeners: accept, authenticate, hand a carrier and a principal to a connection. They know no session."""
