"""What a request that is refused is answered with: RFC 9457, as `application/problem+json`.

It owns the form: a status, a sentence that names what is wrong and what to do, and no word of what is inside.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A request is answered with this status. `detail` names the place and the cure; `headers` go with the answer."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The answer."""
        return Response(document(self.status, self.detail), self.status, self.headers, MEDIA_TYPE)


def document(status: int, detail: str) -> bytes:
    """A problem document; its title is the status in words."""
    return orjson.dumps({"title": HTTPStatus(status).phrase, "status": status, "detail": detail})


async def told(_request: Request, error: Exception) -> Response:
    """Starlette's handler for Problem."""
    assert isinstance(error, Problem)
    return error.response()


async def not_found(_request: Request, _error: Exception) -> Response:
    """Starlette's handler for a path that nobody serves. The path may hold a secret, so it is not repeated."""
    return Problem(404, "nothing is served at this path").response()


async def not_allowed(_request: Request, error: Exception) -> Response:
    """Starlette's handler for a method that a path does not have."""
    headers = getattr(error, "headers", None) or {}
    allowed = headers.get("Allow", "GET")
    return Problem(405, f"this path takes no such method; it takes {allowed}", headers).response()


async def broken(_request: Request, _error: Exception) -> Response:
    """Starlette's handler for what we did wrong: the log has it, the answer does not."""
    return Problem(500, "an internal error; the daemon's log says which").response()
