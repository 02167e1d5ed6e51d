"""A session belongs to its principal: used from any of its connections, whatever carries them, and from no other's."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import asynccontextmanager

import pytest
import trio
from support.carriers import HERE, exposed
from support.waiting import passes
from support.world import BenchWorld, RawClient, running

from hearth.api import step
from hearth.errors import SessionInvalid

PATIENCE = 60

PROOFS = {
    "uid": ("unix", "stdio", "ws", "wss"),
    "token:alice": ("ws", "wss"),
    "cert:arm-7": ("tls", "wss"),
}
"""By which carriers one principal may come."""
SAME = [(proof, *pair) for proof, kinds in PROOFS.items() for pair in itertools.product(kinds, repeat=2)]
MOST_UNKNOWN_PEERS = [
    ("unix", "uid"),
    ("stdio", "uid"),
    ("ws", "uid"),
    ("ws", "token:alice"),
    ("ws", "token:bob"),
    ("wss", "token:alice"),
    ("tls", "cert:arm-7"),
    ("tls", "cert:arm-8"),
    ("tls", "cert:arm-7b"),
    ("wss", "cert:arm-7b"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture(autouse=True)
async def bounded():
    with trio.fail_after(PATIENCE):
        yield


@pytest.fixture
def opened(expose):
    """`async with opened(*kinds) as (world, over)`."""

    @asynccontextmanager
    async def make(*kinds):
        world = BenchWorld(policy=(HERE,), close_grace_s=0.2)
        async with running(world), expose(world, *kinds) as over:
            yield world, over

    return make


async def raw(world, over, kind, proof):
    client = RawClient(await over.raw(kind, proof))
    world.nursery.start_soon(client.run)
    return client


# --- one principal --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("proof", "submitting", "watching"), SAME)
async def test_what_is_submitted_on_one_connection_is_watched_and_cancelled_on_another(
    opened, proof: str, submitting: str, watching: str
) -> None:
    async with (
        opened(*{submitting, watching}) as (world, over),
        over.connect(submitting, proof) as one,
        over.connect(watching, proof) as other,
        one.open_session() as session,
    ):
        theirs = other.attach(session.session_id)
        task = await session.submit("x", [step("bench.read"), step("bench.wait", tag="never")])
        seen = []
        async for event in (await theirs.task(task.task_id)).events():
            seen.append((event.phase, event.step_index))
            if event.phase == "start" and event.step_index == 1:
                assert await (await theirs.task(task.task_id)).cancel() == "CANCELLING"
        assert seen == [("start", 0), ("finish", 0), ("start", 1), ("finish", 1), ("task_finish", None)]
        assert (await task.wait()).status == "CANCELLED"
        assert (await theirs.run("bench.read", tag="from elsewhere")) == {"tag": "from elsewhere"}
        assert world.runtime.sessions == 1


async def test_a_session_outlives_the_connection_that_opened_it_and_ends_on_another_carrier(opened) -> None:
    async with opened("unix", "ws") as (world, over):
        first = await raw(world, over, "ws", "uid")
        session = await first.open(on_disconnect="keep")
        task = await session.start(("wait", {}))
        await first.close()
        await passes(lambda: not world.connections)
        second = await raw(world, over, "unix", "uid")
        here = {"session_id": session.session_id}
        assert (await second.call("task.get", task_id=task, **here))["status"] == "RUNNING"
        assert await second.call("session.close", **here) == {"ok": True}
        assert world.runtime.sessions == 0


async def test_a_session_is_closed_with_the_connection_that_opened_it_if_it_asked_for_that(opened) -> None:
    """And not with another one that used it."""
    async with opened("unix", "ws") as (world, over):
        opener = await raw(world, over, "ws", "uid")
        user = await raw(world, over, "unix", "uid")
        session = await opener.open(on_disconnect="close")
        here = {"session_id": session.session_id}
        assert (await user.call("tool.list", **here))["tools"]
        await user.close()
        await passes(lambda: len(world.connections) == 1)
        assert (await opener.call("tool.list", **here))["tools"]
        await opener.close()
        await passes(lambda: world.runtime.sessions == 0)


# --- another principal ----------------------------------------------------------------------------------------------


async def everything_about(client, session_id, task_id):
    """What every method that names a session answers to this client."""
    here = {"session_id": session_id}
    submission = {"task": {"intent": "x", "steps": [{"tool": "bench.read", "args": {}}]}}
    asked = [
        ("tool.list", {}),
        ("task.get", {"task_id": task_id}),
        ("task.cancel", {"task_id": task_id}),
        ("task.events.subscribe", {}),
        ("task.events.subscribe", {"task_id": task_id}),
        ("task.submit", submission),
        ("session.close", {}),
    ]
    answers = [await client.ask(method, {**here, **more}) for method, more in asked]
    return [answer["error"] for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "proof"), [("unix", "uid"), ("ws", "token:alice"), ("tls", "cert:arm-7")])
async def test_another_principals_session_is_not_told_apart_from_none_on_any_carrier(
    opened, kind: str, proof: str
) -> None:
    async with opened("unix", "stdio", "ws", "wss", "tls") as (world, over):
        owner = await raw(world, over, kind, proof)
        session = await owner.open()
        task = await session.start(("wait", {"tag": "never"}))
        made_up = session.session_id[:-1] + ("0" if session.session_id[-1] != "0" else "1")
        asked = 0
        for theirs, their_proof in MOST_UNKNOWN_PEERS:
            if their_proof == proof:
                continue
            other = await raw(world, over, theirs, their_proof)
            about = await everything_about(other, session.session_id, task)
            assert [error["code"] for error in about] == [SessionInvalid.code] * len(about), (theirs, their_proof)
            assert about == await everything_about(other, made_up, task), "the answers tell that it exists"
            assert session.session_id not in json.dumps(other.documents)
            assert not other.events
            asked += 1
        assert asked >= 7
        assert (await session.get(task))["status"] == "RUNNING", "it has noticed nothing"


async def test_certificates_of_one_subject_and_different_names_are_two_principals(opened) -> None:
    async with opened("tls") as (world, over):
        one, same, other = [await raw(world, over, "tls", f"cert:{name}") for name in ("arm-7", "arm-7", "arm-7b")]
        session = await one.open()
        assert (await same.call("tool.list", session_id=session.session_id))["tools"]
        with pytest.raises(SessionInvalid):
            await other.call("tool.list", session_id=session.session_id)
        keys = {record["principal"] for record in world.journal.of("session.open")}
        await other.open()
        keys |= {record["principal"] for record in world.journal.of("session.open")}
        assert len(keys) == 2
        assert all("CN=arm-7" in json.dumps(key) for key in keys)


@as_root
@pytest.mark.parametrize("kind", ["unix", "ws", "wss"])
async def test_another_user_of_this_machine_is_another_principal(open_place, papers, kind: str) -> None:
    world = BenchWorld(policy=(HERE,))
    async with running(world), exposed(world, *{"unix", kind}, directory=open_place, papers=papers) as over:
        (open_place / "unix.sock").chmod(0o666)
        owner = await raw(world, over, "unix", "uid")
        session = await owner.open()
        task = await session.start(("wait", {"tag": "never"}))
        nobody = await raw(world, over, kind, "nobody")
        about = await everything_about(nobody, session.session_id, task)
        assert {error["code"] for error in about} == {SessionInvalid.code}
        await nobody.open()
        assert [record["principal"] for record in world.journal.of("session.open")] == ["uid:0", "uid:65534"]
        assert (await session.get(task))["status"] == "RUNNING"
