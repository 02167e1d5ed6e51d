"""The faces of other event loops as Trio ones, so that `SessionContract` runs over them unchanged.

Nothing is imitated: an asyncio loop in a thread of its own runs the coroutines of `hearth.aio`, worker threads block in
the functions of `hearth.sync`. A Trio cancellation becomes what the face knows: the cancellation of the asyncio task,
the timeout of a blocking call.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from functools import partial

import trio

NAMESPACES = ("gpio", "i2c", "uart", "pwm", "dac", "spi", "can", "modbus", "files", "sensors", "signals")


class Loop:
    """An asyncio event loop in a thread; `run` awaits a coroutine function in it, from Trio."""

    def __init__(self):
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, name="asyncio")

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @asynccontextmanager
    async def running(self):
        self._thread.start()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            await trio.to_thread.run_sync(self._thread.join)
            self._runner.close()

    async def run(self, function, *args, **arguments):
        token, ended, made = trio.lowlevel.current_trio_token(), trio.Event(), []

        async def body():
            return await function(*args, **arguments)

        def start():
            made.append(self._loop.create_task(body()))
            made[0].add_done_callback(lambda _: token.run_sync_soon(ended.set))

        def cancel():
            made[0].cancel()

        self._loop.call_soon_threadsafe(start)
        try:
            await ended.wait()
        except trio.Cancelled:
            self._loop.call_soon_threadsafe(cancel)
            with trio.CancelScope(shield=True):
                await ended.wait()
            if made[0].cancelled():
                raise
        return made[0].result()


class AsyncioObject:
    """An object of `hearth.aio`, for Trio."""

    def __init__(self, loop, inner):
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name in NAMESPACES:
            return AsyncioObject(self._loop, value)
        if not callable(value):
            return value
        if name in ("events", "observe"):
            return lambda **arguments: AsyncioEvents(self._loop, value(**arguments))
        return partial(self._call, value)

    async def _call(self, method, *args, **arguments):
        result = await self._loop.run(method, *args, **arguments)
        return AsyncioObject(self._loop, result) if hasattr(result, "task_id") and hasattr(result, "wait") else result


class AsyncioEvents:
    def __init__(self, loop, inner):
        self._loop = loop
        self._inner = inner

    def __aiter__(self):
        return self

    async def __anext__(self):
        event = await self._loop.run(partial(anext, self._inner, None))
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self):
        await self._loop.run(self._inner.aclose)


class AsyncioFace:
    """A client or runtime of `hearth.aio`, for Trio; `world` is what it reaches."""

    def __init__(self, loop, opener, world=None):
        self._loop = loop
        self._opener = opener
        self.world = world

    @asynccontextmanager
    async def open_session(self, **members):
        opening = self._opener.open_session(**members)
        session = await self._loop.run(opening.__aenter__)
        try:
            yield AsyncioObject(self._loop, session)
        finally:
            with trio.CancelScope(shield=True):
                await self._loop.run(opening.__aexit__, None, None, None)


class BlockingObject:
    """An object of `hearth.sync`, for Trio."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if name in NAMESPACES:
            return BlockingObject(value)
        if not callable(value):
            return value
        if name in ("events", "observe"):
            return lambda **arguments: BlockingEvents(value(**arguments))
        return partial(self._call, value)

    async def _call(self, method, *args, **arguments):
        result = await trio.to_thread.run_sync(partial(method, *args, **arguments))
        return BlockingObject(result) if hasattr(result, "task_id") and hasattr(result, "wait") else result


class BlockingEvents:
    def __init__(self, inner):
        self._inner = inner

    def __aiter__(self):
        return self

    async def __anext__(self):
        left = trio.current_effective_deadline() - trio.current_time()
        timeout = None if left == float("inf") else max(0.0, left)
        try:
            event = await trio.to_thread.run_sync(self._inner.next, timeout)
        except TimeoutError:
            await trio.lowlevel.checkpoint()
            raise
        if event is None:
            raise StopAsyncIteration
        return event

    async def aclose(self):
        self._inner.close()


class BlockingFace:
    """A client or runtime of `hearth.sync`, for Trio; `world` is what it reaches."""

    def __init__(self, opener, world=None):
        self._opener = opener
        self.world = world

    @asynccontextmanager
    async def open_session(self, **members):
        session = await trio.to_thread.run_sync(partial(self._opener.open_session, **members))
        try:
            yield BlockingObject(session)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(session.__exit__, None, None, None)
