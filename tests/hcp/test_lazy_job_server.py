"""The lazy job server: its parts are there when the first message comes, and not before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from support.hcp import Caller, capability, hcp_world, reading, step

from hearth.actors.bridges.hcp.lazy import JobServerLifetime, JobStorage
from hearth.errors import ConfigError

GATED = reading(step("read", tag="first", gate="g"))


@pytest.fixture(autouse=True)
def _bounded(broken_off_when_it_hangs):
    """Every wait in here has a bound."""


@pytest.fixture
def closed(tmp_path):
    """A world whose job server has not been needed yet."""
    return lambda *capabilities, **more: hcp_world(tmp_path / "hcp", *capabilities, opened=False, **more)


async def test_without_a_job_there_is_neither_a_job_store_nor_a_job_server(closed, tmp_path):
    async with closed() as world:
        caller = world.caller()
        await caller.open()
        assert world.runtime.server("hcp")._job_server is None
    assert not (tmp_path / "hcp").exists()


async def test_what_comes_first_is_answered_in_its_order_and_once(closed):
    async with closed(capability(concurrent_limit=4)) as world:
        caller = world.caller()
        documents = [Caller.submission(), Caller.submission("lok"), {**Caller.submission(), "payload": 1}]
        await caller.send(*documents, caller.request("hcp.sessions", {}, 7))
        for document in documents:
            await caller.until(lambda document=document: caller.replies(document["message_id"]))
        await caller.until(lambda: caller.answers(7))
        types = [caller.replies(document["message_id"])[0]["type"] for document in documents]
        assert types == ["task_accepted", "task_rejected", "task_rejected"]
        await caller.closed(caller.replies(documents[0]["message_id"])[0]["session_id"])
        assert world.carriers[0].connection._in_flight == 0
        assert all(len(caller.replies(document["message_id"])) == 1 for document in documents)


async def test_a_job_store_that_cannot_be_opened_refuses_for_now_and_is_tried_again(closed, monkeypatch):
    def broken(*_args):
        raise ConfigError("HCP job store: the disk is on fire")

    async with closed() as world:
        caller = world.caller()
        document = Caller.submission()
        with monkeypatch.context() as patch:
            patch.setattr("hearth.actors.bridges.hcp.service.open_storage", broken)
            refused = await caller.rejected(document)
            assert refused["reason_code"] == "resource_unavailable"
            assert "on fire" in refused["reason_message"]
            answer = await caller.ask("hcp.sessions", {})
            assert "on fire" in answer["error"]["data"]["reason"]
        await caller.send(document)
        await caller.until(lambda: len(caller.replies(document["message_id"])) == 2)
        assert caller.replies(document["message_id"])[1]["type"] == "task_accepted"


async def test_sessions_that_cannot_be_given_their_end_do_not_keep_a_daemon_from_serving(closed, monkeypatch):
    def broken(*_args):
        raise ConfigError("a capability is not one")

    async with closed() as world:
        left_over = SimpleNamespace(job_store=SimpleNamespace(unfinished=[1]))
        storage = JobStorage(world.runtime.parts, Path("nowhere"), opened=left_over)
        lifetime = JobServerLifetime(storage, world.runtime, None)
        with monkeypatch.context() as patch, trio.fail_after(60):
            patch.setattr("hearth.actors.bridges.hcp.lazy._load", broken)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lifetime.run)
                await lifetime.ready()
                await lifetime.end()


async def test_a_daemon_that_ends_answers_what_has_not_been_read(closed):
    async with closed() as world:
        caller = world.caller()
        await world.runtime.server("hcp").end(trio.current_time() + 5)
        refused = await caller.rejected(Caller.submission())
        assert refused["reason_code"] == "shutting_down"
        assert (await caller.ask("hcp.sessions", {}))["error"]["code"] == -32007


async def test_a_message_that_opens_the_job_server_while_the_daemon_ends_is_answered(closed):
    async with closed() as world:
        caller = world.caller()
        document = Caller.submission()
        ask = caller.request("hcp.sessions", {}, 7)
        await caller.send(document, ask)
        while not world.runtime.server("hcp")._waiting:
            await trio.lowlevel.checkpoint()
        await world.runtime.server("hcp").end(trio.current_time() + 5)
        await caller.until(lambda: caller.replies(document["message_id"]) and caller.answers(7))
        answer = caller.replies(document["message_id"])[0]
        assert answer["payload"].get("reason_code") in (None, "shutting_down")


async def test_a_message_that_the_job_server_was_not_opened_for_in_time_is_refused(closed, monkeypatch):
    gate = trio.Event()

    async with closed() as world:
        caller = world.caller()
        monkeypatch.setattr("hearth.actors.bridges.hcp.service.recover", lambda _services: gate.wait())
        document = Caller.submission()
        await caller.send(document, caller.request("hcp.sessions", {}, 7))
        while len(world.runtime.server("hcp")._waiting) < 2:
            await trio.lowlevel.checkpoint()
        await world.runtime.server("hcp").end(trio.current_time() + 0.05)
        world.runtime.server("hcp").close()
        await caller.until(lambda: caller.replies(document["message_id"]) and caller.answers(7))
        assert caller.replies(document["message_id"])[0]["payload"]["reason_code"] == "shutting_down"
        assert caller.answers(7)[0]["error"]["code"] == -32007
        gate.set()


async def test_sessions_without_an_end_get_one_before_anybody_asks(closed, tmp_path):
    async with hcp_world(tmp_path / "hcp", capability(function=GATED)) as world:
        caller = world.caller()
        session_id = await caller.accepted()
        await world.gate("g").reached()
        await world.job_server.services.job_store.aclose()
    async with closed() as world:
        assert world.runtime.server("hcp")._job_server is not None
        (record,) = world.records("hcp.recover")
        assert record["hcp_session"] == session_id


@pytest.mark.slow
def test_what_a_job_server_is_made_of_is_not_imported_with_the_daemon():
    modules = "actors.bridges.hcp.service", "actors.bridges.hcp.store", "hcp.safety", "hcp.declaration"
    names = [f"hearth.{module}" for module in modules]
    code = f"import sys, hearth.actors.daemon; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
