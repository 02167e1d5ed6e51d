"""/ui: the dashboard, a page for people, as files that are read once and kept in memory.

The files have no data: the page gets it over /hacp, where it proves who its user is. So they need no principal. What is
not among them does not exist, so no path can lead elsewhere. The page may load only from its own origin and runs no
inline script (`_POLICY`), so text from a task or a device cannot become code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

PREFIX: Final = "/ui/"
PAGE: Final = (PREFIX.rstrip("/"), PREFIX, f"{PREFIX}index.html")
"""The addresses of the page itself."""
FOLDER: Final = Path(__file__).with_name("ui")
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    # Asked for again each time, which costs a 304: a new release must not meet an old page.
    "Cache-Control": "no-cache",
}


def load(folder: Path = FOLDER) -> Mapping[str, tuple[str, bytes]]:
    """Read the page's files; return media type and content by path. Blocking."""
    files = {
        PREFIX + path.relative_to(folder).as_posix(): (TYPES[path.suffix], path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }
    return {**files, PREFIX: files[f"{PREFIX}index.html"]}


def routes(files: Mapping[str, tuple[str, bytes]]) -> list[Route]:
    """Return the routes of /ui."""
    tags = {path: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for path, (_, content) in files.items()}

    def serve(path: str) -> Route:
        media_type, content = files[path]
        headers = {**HEADERS, "ETag": tags[path]}

        async def answer(request: Request) -> Response:
            if tags[path] in request.headers.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            return Response(content, headers=headers, media_type=media_type)

        return Route(path, answer)

    async def redirect(_request: Request) -> Response:
        return RedirectResponse(PREFIX, 308, HEADERS)

    return [Route(PREFIX.rstrip("/"), redirect), *map(serve, files)]
