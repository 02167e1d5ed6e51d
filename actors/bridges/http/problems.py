"""The answers to refused requests: RFC 9457, as `application/problem+json`.

A status, and a sentence that names the fault and the cure. They contain nothing about the daemon's internals.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE = "application/problem+json"


class HttpProblem(Exception):
    """A refused request: the answer's status and headers; `detail` names the place and the cure."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """Return the response for this problem."""
        return Response(document(self.status, self.detail), self.status, self.headers, MEDIA_TYPE)


def document(status: int, detail: str) -> bytes:
    """Return a problem document; its title is the status in words."""
    return orjson.dumps({"title": HTTPStatus(status).phrase, "status": status, "detail": detail})
