"""The answers to refused requests: RFC 9457, as `application/problem+json`.

A status, and a sentence that names the fault and the cure. They contain nothing about the daemon's internals.
"""

from __future__ import annotations

from http import HTTPStatus

import orjson

MEDIA_TYPE = "application/problem+json"


def document(status: int, detail: str) -> bytes:
    """Return a problem document; its title is the status in words."""
    return orjson.dumps({"title": HTTPStatus(status).phrase, "status": status, "detail": detail})
