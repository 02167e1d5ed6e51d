"""Status notifications: subscriptions/listen with `taskIds`, on the same stream as whatever else the server tells of.

The acknowledgement is one frame for all, and it is sent by whoever serves the rest; the names of the tasks are put into
it on its way. After it, each task's state goes out at once and after every change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import mcp_types as types
import trio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from pydantic import TypeAdapter, ValidationError

from hearth.actors.bridges.mcp.tasks_channel import Channel, speak

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hearth.actors.bridges.mcp.providers import Ask
    from hearth.actors.bridges.mcp.tasks_book import Book, Watch

Listen: TypeAlias = (
    "Callable[[Ask, types.SubscriptionsListenRequestParams], Awaitable[types.SubscriptionsListenResult]]"
)
"""Serves one stream of changes."""

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

_IDS: Final = TypeAdapter(list[str])


async def listen_to(
    book: Book,
    wanted: Any,
    ask: Ask,
    params: types.SubscriptionsListenRequestParams,
    others: Listen | None,
) -> types.SubscriptionsListenResult:
    """Serve a stream on which the `wanted` tasks are told of, and by `others` the rest.

    Raises MCPError for what is no list of ids.
    """
    others = others or _nothing_else
    if wanted is None:
        return await others(ask, params)
    try:
        task_ids = _IDS.validate_python(wanted, strict=True)
    except ValidationError:
        raise MCPError(code=types.INVALID_PARAMS, message="notifications.taskIds must be a list of task ids") from None
    with book.watch(task_ids) as watch:
        async with trio.open_nursery() as nursery:
            stream = _Stream(ask, watch)
            nursery.start_soon(stream.run)
            result = await others(stream.ask(ask), params)
            nursery.cancel_scope.cancel()
    return result


class _Stream(Channel):
    """The stream as the others see it."""

    def __init__(self, ask: Ask, watch: Watch) -> None:
        super().__init__(ask, lambda _message: None)
        self._ctx = ask.ctx
        self._watch = watch
        self._acknowledged = trio.Event()

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        """See DispatchContext."""
        if method == ACKNOWLEDGED and params is not None:
            honored = {**params["notifications"], "taskIds": self._watch.task_ids}
            await super().notify(method, {**params, "notifications": honored}, opts)
            self._acknowledged.set()
        else:
            await super().notify(method, params, opts)

    async def run(self) -> None:
        """Tell of the tasks, once it has been acknowledged that they are told of."""
        await self._acknowledged.wait()
        await self._watch.tell(self._say)

    async def _say(self, state: dict[str, Any]) -> None:
        meta = {SUBSCRIPTION_ID_META_KEY: self._ctx.request_id}
        await speak(self._ctx, "notifications/tasks", {**state, "_meta": meta})


async def _nothing_else(ask: Ask, params: types.SubscriptionsListenRequestParams) -> types.SubscriptionsListenResult:
    """What is served beside tasks, where nothing is."""
    del params
    meta: dict[str, Any] = {SUBSCRIPTION_ID_META_KEY: ask.ctx.request_id}
    acknowledged = types.SubscriptionsAcknowledgedNotificationParams(
        notifications=types.SubscriptionFilter(), _meta=meta
    )
    await ask.ctx.session.send_notification(
        types.SubscriptionsAcknowledgedNotification(params=acknowledged), related_request_id=ask.ctx.request_id
    )
    await ask.client.gone.wait()
    return types.SubscriptionsListenResult(_meta=meta)
