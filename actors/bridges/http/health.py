"""/healthz: whether the daemon can do its work, for whoever asks; and why not, for those whom the policy lets in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from hearth.actors.runtime import Runtime

PATH = "/healthz"
_HEADERS = {"Cache-Control": "no-store"}


def routes(runtime: Runtime) -> list[Route]:
    """GET and HEAD of /healthz: 200 {"ok": true}, or 503 {"ok": false} with what is wrong for those who may know."""

    async def healthz(request: Request) -> Response:
        found = report(runtime)
        shown = found if request.state.admitted else {"ok": found["ok"]}
        return Response(orjson.dumps(shown), 200 if found["ok"] else 503, _HEADERS, "application/json")

    return [Route(PATH, healthz)]


def report(runtime: Runtime) -> Mapping[str, Any]:
    """The runtime's health as hw.board tells it, with `ready` and `wedged`, the buses that do not answer."""
    health = runtime.health()
    wedged = sorted(bus for bus, told in health["buses"].items() if told["state"] != "ready")
    ready = not runtime.closing
    return {**health, "ok": health["ok"] and ready, "ready": ready, "wedged": wedged}
