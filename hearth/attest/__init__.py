"""Attestation: what a daemon says of itself, and the check of it by a caller.

`measure` takes the hashes of the daemon's files, `statement` makes and verifies what `attest.quote` answers. The actor
that answers is `hearth.actors.attestation`. Pure of actors and clocks: the time is an argument.
"""
