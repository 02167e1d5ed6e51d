"""/.well-known/agentcard: this machine's AgentCard, for anybody who asks (draft-aevum-agentcard-00 §3, §4).

This module owns the media type, the caching and who may read it from a page; what the card says is the keeper's.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.requests import Request

PATH = "/.well-known/agentcard"
MAX_AGE = 3600
"""Seconds that a reader may keep a card for (§4)."""

OWN, PLAIN = "application/agentcard+json", "application/json"
_OFFERED = (OWN, PLAIN)
"""The media types, the preferred one first: it is for whoever has no preference of its own."""

_READ = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Expose-Headers": "ETag",
    "Vary": "Accept",
    "X-Content-Type-Options": "nosniff",
}
_PREFLIGHT = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "Accept, If-None-Match",
    "Access-Control-Max-Age": "86400",
    "Allow": "GET, HEAD, OPTIONS",
}


def routes(card: Callable[[], Mapping[str, Any] | None]) -> list[Route]:
    """GET, HEAD and OPTIONS of /.well-known/agentcard. `card` gives what is so now, or None: then it is a 503."""
    kept: tuple[Mapping[str, Any] | None, bytes, str] = (None, b"", "")

    async def agentcard(request: Request) -> Response:
        nonlocal kept
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        chosen = choose(request.headers.getlist("accept"))
        if chosen is None:
            return _told(406, f"the card is there as {OWN} and as {PLAIN}: accept one of them")
        now = card()
        if now is None:
            return _told(503, "there is no valid card to show; the daemon's log says why")
        if now is not kept[0]:
            body = orjson.dumps(now)
            kept = now, body, hashlib.sha256(body).hexdigest()[:32]
        # Two representations are two entities, even of the same bytes: a cache must not answer one for the other.
        tag = f'"{kept[2]}{"" if chosen == OWN else "-json"}"'
        headers = {**_READ, "Cache-Control": f"max-age={MAX_AGE}", "ETag": tag}
        if _matches(request.headers.getlist("if-none-match"), tag):
            return Response(status_code=304, headers=headers)
        return Response(kept[1], headers=headers, media_type=chosen)

    return [Route(PATH, agentcard, methods=["GET", "HEAD", "OPTIONS"])]


def _told(status: int, why: str) -> Response:
    return Response(orjson.dumps({"error": why}), status, {**_READ, "Cache-Control": "no-store"}, media_type=PLAIN)


def choose(accept: Iterable[str]) -> str | None:
    """The media type for an Accept header, given as its lines; None if neither fits (RFC 9110 §12.5.1).

    Without the header, or with one that is empty, anything is accepted. A range that cannot be read counts for nothing.
    """
    ranges = [part.strip() for line in accept for part in line.split(",") if part.strip()]
    if not ranges:
        return OWN
    weighed = [(weight, offered) for offered in _OFFERED if (weight := _weight(offered, ranges)) > 0]
    return max(weighed, key=lambda pair: pair[0])[1] if weighed else None  # of equals the first: the preferred one


def _weight(offered: str, ranges: Iterable[str]) -> float:
    """How much a media type is wanted, by the most specific range that it is in."""
    best = (-1, 0.0)
    for each in ranges:
        wanted, *parameters = (part.strip().lower() for part in each.split(";"))
        precision = {offered: 2, "application/*": 1, "*/*": 0}.get(wanted)
        if precision is None or precision < best[0]:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                quality = _quality(parameter[2:])
        best = (precision, quality)
    return best[1]


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0


def _matches(lines: Iterable[str], tag: str) -> bool:
    """Whether an If-None-Match header names the tag; compared weakly, as RFC 9110 §13.1.2 has it."""
    tags = {part.strip().removeprefix("W/") for line in lines for part in line.split(",")}
    return tag in tags or "*" in tags
