"""What the HACP draft asks of clients: the Python client and the `hearth` command, before a server that is not ours."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from conformance.fake_server import TOOL, fake_server

import hearth
from hearth import step
from hearth.protocol.methods import METHODS
from hearth.protocol.server import Call, ServerProtocol

if TYPE_CHECKING:
    from conformance.fake_server import FakeServer

AWKWARD = ["two\nlines", "\r\n\r\n", "\u2028\u2029\x85\x0b\x0c\x1c", "é🤖", "\x00\\n", '"}\n{"']


@pytest.fixture
async def server(tmp_path: Path):
    async with fake_server(tmp_path / "fake.sock") as serving:
        yield serving


async def use_everything(server: FakeServer) -> None:
    """A client that uses all there is."""
    async with (
        hearth.connect(server.path) as client,
        client.open_session(client_name="test", client_version="1.2.3", heartbeat_ms=5000) as session,
    ):
        await session.tools()
        for text in AWKWARD:
            await session.submit(text, [step("file.write", path=text, data="", **{text: text})])
        task = await session.submit(
            "i", [step("gpio.set", line=17, value=1)], idempotency_key="\n", max_duration_ms=500, dry_run=False
        )
        async for _event in task.events(from_seq=1):
            pass
        await task.wait()
        await task.get()
        await task.cancel()
        await session.run("gpio.set", line=17, value=1)


@pytest.mark.spec("2.2", "MUST NOT", "Clients MUST NOT split a single document across multiple LF boundaries.")
async def test_2_2_clients_must_not_split_a_document_across_line_feeds(server) -> None:
    await use_everything(server)
    assert server.received.endswith(b"\n")
    for line in server.lines:
        assert isinstance(json.loads(line), dict), "every piece between two line feeds is a whole document"
    assert [request["params"]["task"]["intent"] for request in server.requests if request["method"] == "task.submit"][
        : len(AWKWARD)
    ] == AWKWARD


@pytest.mark.spec("2.3", "MUST", "id — JSON-RPC request identifier; MUST be unique per connection while outstanding.")
async def test_2_3_the_client_uses_no_id_twice_on_a_connection_even_for_concurrent_requests(server) -> None:
    async with (
        hearth.connect(server.path) as client,
        client.open_session() as session,
        trio.open_nursery() as nursery,
    ):
        for _ in range(50):
            nursery.start_soon(session.tools)
    ids = [request["id"] for request in server.requests]
    assert len(ids) == 52
    assert len(set(ids)) == len(ids)


@pytest.mark.spec("2.5", "MUST", "Clients MUST ignore unknown fields in result.")
async def test_2_5_clients_must_ignore_unknown_fields_in_results_events_and_messages(server) -> None:
    async with hearth.connect(server.path) as client, client.open_session() as session:
        assert session.session_id == "S"
        task = await session.submit("i", [step("gpio.set", line=17, value=1)])
        assert task.task_id == "T"
        assert [event.phase async for event in task.events()] == ["start", "finish", "task_finish"]
        done = await task.wait()
        assert (done.status, done.steps[0].status, done.steps[0].latency_ms) == ("SUCCESS", "SUCCESS", 1)
        assert await task.cancel() == "CANCELLING"
        assert await session.close() == 0


@pytest.mark.spec(
    "3.3", "MUST", "Clients MUST treat unknown additional tool fields as opaque and preserve them when forwarding."
)
async def test_3_3_clients_preserve_unknown_tool_fields_in_the_library(server) -> None:
    async with hearth.connect(server.path) as client, client.open_session() as session:
        assert await session.tools() == [TOOL]


async def hearth_command(*arguments: str) -> str:
    """Run the installed `hearth` command, and return what it prints."""
    done = await trio.run_process(
        [str(Path(sys.executable).with_name("hearth")), *arguments],
        capture_stdout=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    return done.stdout.decode()


@pytest.mark.slow
@pytest.mark.spec(
    "3.3", "MUST", "Clients MUST treat unknown additional tool fields as opaque and preserve them when forwarding."
)
async def test_3_3_clients_preserve_unknown_tool_fields_in_the_command(server) -> None:
    assert json.loads(await hearth_command("--json", "--socket", str(server.path), "tools")) == [TOOL]


@pytest.mark.slow
@pytest.mark.spec("3.1", "SHOULD", 'client_name | string | SHOULD | Free-form e.g. "ai-shell"')
@pytest.mark.spec("3.1", "SHOULD", "client_version | string | SHOULD | Semantic version")
async def test_3_1_the_command_tells_its_name_and_its_version(server) -> None:
    await hearth_command("--socket", str(server.path), "tools")
    params = server.params("session.open")
    assert params["client_name"] == "hearth"
    METHODS["session.open"]({"protocol_version": params["client_version"]})  # a semantic version, or it raises
    assert params["client_version"] == hearth.__version__


@pytest.mark.spec("3.1", "SHOULD", 'client_name | string | SHOULD | Free-form e.g. "ai-shell"')
@pytest.mark.spec("3.1", "SHOULD", "client_version | string | SHOULD | Semantic version")
@pytest.mark.spec("3.1", "MAY", "protocol_version | string | MAY | Highest HACP version supported")
async def test_3_1_the_library_tells_the_name_and_version_it_is_given_and_the_protocol_it_speaks(server) -> None:
    async with hearth.connect(server.path) as client, client.open_session(client_name="arm", client_version="2.0.1"):
        pass
    params = server.params("session.open")
    told = {"client_name": "arm", "client_version": "2.0.1", "protocol_version": "0.1.0"}
    assert told.items() <= params.items()


@pytest.mark.slow
@pytest.mark.spec(
    "1.1",
    "REQUIRED",
    "A conformant client is one that issues only well-formed requests per Section 2, honors the lifecycle in "
    "Section 5, and treats unknown optional fields as defined in Section 2.5.",
)
async def test_1_1_the_client_issues_only_well_formed_requests_and_honors_the_lifecycle(server) -> None:
    await use_everything(server)
    calls = ServerProtocol().receive(server.received)
    assert all(isinstance(call, Call) for call in calls), "nothing it sent is refused by the protocol"
    for call in calls:
        METHODS[call.method](call.params)
    methods = [call.method for call in calls]
    assert methods[0] == "session.open"
    assert methods[-1] == "session.close"
    assert all(call.params["session_id"] == "S" for call in calls[1:]), "within the session that was opened"
