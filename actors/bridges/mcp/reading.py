"""The checks of a message of MCP that come before the SDK's, for both carriers.

The SDK takes a request whose id is `1.0` or null for a notification, and answers nothing; of two members of one name it
takes the last; it does not know the batches of revision 2025-03-26. This module does not know how bytes travel.
"""

from __future__ import annotations

from typing import Any

from hearth.errors import InvalidRequest
from hearth.protocol.framing import TOO_MANY, has_more_values
from hearth.protocol.jsonrpc import load, require_id

MOST_BATCHED = 64
"""Messages of one batch."""
BATCHES = ("2024-11-05", "2025-03-26")
"""The revisions with JSON-RPC batches."""


def read_message(document: bytes, max_values: int) -> Any:
    """Return the JSON value of a message, or of a batch. Raises ParseError, InvalidRequest."""
    if has_more_values(document, max_values):
        raise InvalidRequest(f"Invalid Request: {TOO_MANY.format(max_values)}", data={"max_values": max_values})
    value = load(document)
    for message in value if type(value) is list else [value]:
        if type(message) is dict and "method" in message and "id" in message:
            require_id(message["id"])
    return value


def batch_of(value: list[Any], revision: str) -> list[Any]:
    """Return the messages of a batch. Raises InvalidRequest for a revision without batches, and for a bad one."""
    if revision not in BATCHES:
        raise InvalidRequest("Invalid Request: MCP has no batches; send each message by itself")
    if not 1 <= len(value) <= MOST_BATCHED:
        raise InvalidRequest(f"Invalid Request: a batch holds 1 to {MOST_BATCHED} messages, not {len(value)}")
    if any(type(message) is dict and message.get("method") == "initialize" for message in value):
        raise InvalidRequest("Invalid Request: initialize is not part of a batch")
    return value
