"""What the bridge keeps for one HTTP request, charged to its principal until nobody has any of it.

A request is kept while it is served, and one whose call became an MCP task for as long as that is kept. Over stdio the
bridge is a process of the client's own, and no request has anything charged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.policy.memory import HTTP_REQUEST_BYTES, SMALL, Account, Retained
from hearth.protocol.size import parsed_bytes

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Send

    from hearth.actors.bridges.mcp.provider import McpRequest

_STATE = "retained"


class RetainedRequest(Retained):
    """A request that is being read, or served."""

    __slots__ = ("_size",)

    def __init__(self, account: Account, state: dict[str, Any]) -> None:
        super().__init__(account)
        self._size = 0
        self.grow(HTTP_REQUEST_BYTES)
        state[_STATE] = self

    async def whole(self, receive: Receive) -> tuple[bytes, bool]:
        """Its body, which the door bounds, and whether it has come to its end. Raises QueueFull."""
        parts: list[bytes] = []
        ended = False
        while not ended and (message := await receive())["type"] == "http.request":
            parts.append(message.get("body", b""))
            self._keep(len(parts[-1]))
            ended = not message.get("more_body", False)
        return b"".join(parts), ended

    def parsed(self, body: bytes) -> None:
        """Its body is about to be parsed; the bytes are kept too. Raises QueueFull."""
        self._keep(parsed_bytes(body))

    def _keep(self, size: int) -> None:
        """Charge more of it. A small request is always served: its principal must be able to make room."""
        if self._size + size > SMALL:
            self._account.require(size)
        self._size += size
        self.grow(size)

    def sending(self, send: Send) -> Send:
        """An ASGI send that charges what its peer has yet to take."""
        account = self._account

        async def charged(message: Message) -> None:
            size = len(message.get("body", b""))
            account.add(size)
            try:
                await send(message)
            finally:
                account.release(size)

        return charged


def retained(ask: McpRequest) -> Retained:
    """What is kept for the request; where nothing is charged, something that costs nothing."""
    state = getattr(ask.ctx.request, "state", None)
    held: Retained | None = getattr(state, _STATE, None)
    return Retained() if held is None else held
