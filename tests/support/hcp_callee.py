"""The other end of a connection for callers of whole jobs: says what a test has it say, and notes what it hears."""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from datetime import timedelta

import trio
import trio.testing

from hearth.client.connection import Client
from hearth.hcp.codec import message, write_message
from hearth.hcp.messages import AcceptedConstraints, Event, TaskAccepted, TaskRejected

SESSION = "6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42"
OTHER = "0d9f7d0c-55f0-4a3e-9a38-9d1ee9ad6f6c"


class Callee:
    """Answers methods by `answers`; HCP messages, only when told to."""

    def __init__(self, stream):
        self.stream = stream
        self.heard = []
        self.answers = {}
        """Method -> its result, an error with a code, or a function of the params that gives one; None: no answer."""
        self._heard_more = trio.Event()
        self._speaking = trio.Lock()

    async def run(self):
        rest = b""
        try:
            while data := await self.stream.receive_some():
                *lines, rest = (rest + data).split(b"\n")
                for line in map(json.loads, lines):
                    self.heard.append(line)
                    if "method" in line and "id" in line:
                        await self._answer(line)
                more, self._heard_more = self._heard_more, trio.Event()
                more.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async def _answer(self, request):
        answer = self.answers.get(request["method"], {})
        answer = answer(request["params"]) if callable(answer) else answer
        if answer is not None:
            kind = "error" if "code" in answer else "result"
            await self.say({"jsonrpc": "2.0", "id": request["id"], kind: answer})

    # --- what it has heard --------------------------------------------------------------------------------------

    def messages(self, kind):
        return [document for document in self.heard if document.get("type") == kind]

    def asked(self, method):
        """The params of every call of a method."""
        return [document["params"] for document in self.heard if document.get("method") == method]

    async def hears(self, kind, count=1):
        """Wait for so many messages of a type; return the last of them."""
        while len(self.messages(kind)) < count:
            await self._heard_more.wait()
        return self.messages(kind)[count - 1]

    # --- what it says -------------------------------------------------------------------------------------------

    async def say(self, *documents):
        async with self._speaking:
            await self.stream.send_all(b"".join(json.dumps(document).encode() + b"\n" for document in documents))

    async def tell(self, payload, session_id=SESSION):
        await self.say(written(payload, session_id))

    async def accept(self, submit, session_id=SESSION, *, in_reply_to=True):
        await self.tell(accepted(submit["message_id"] if in_reply_to else None), session_id)

    async def reject(self, document, code="invalid_input", **more):
        said = TaskRejected(reason_code=code, reason_message="no", in_reply_to=document["message_id"], **more)
        await self.tell(said, None)

    async def event(self, sequence, kind="progress", session_id=SESSION, **data):
        await self.tell(Event(event_type=kind, sequence=sequence, data=data), session_id)

    async def close(self, sequence, state="COMPLETED", session_id=SESSION, **data):
        await self.event(sequence, "session_closed", session_id, final_state=state, **data)


def written(payload, session_id=SESSION):
    return write_message(message(payload, session_id=session_id, now=time.time()))


def accepted(in_reply_to=None):
    limits = AcceptedConstraints(max_duration=timedelta(minutes=5), abort_timeout=timedelta(seconds=10))
    return TaskAccepted(
        session_token="token-of-the-session",
        risk_level="R2",
        data_classification="T1",
        constraints=limits,
        in_reply_to=in_reply_to,
    )


@asynccontextmanager
async def joined():
    """A client and the callee at the other end of its connection."""
    here, there = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        client, callee = Client(here), Callee(there)
        for task in (client._write, client._read, callee.run):
            nursery.start_soon(task)
        yield client, callee
        await client._settle()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def delegated(client, callee, *arguments, session_id=SESSION, **more):
    """A job that the callee has accepted."""
    got = []

    async def delegate():
        got.append(await client.delegate(*(arguments or ("look", "to see", {})), **more))

    before = len(callee.messages("task_submit"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delegate)
        await callee.accept(await callee.hears("task_submit", before + 1), session_id)
    yield got[0]
