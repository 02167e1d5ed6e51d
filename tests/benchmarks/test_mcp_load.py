"""The load of the MCP measures: both sides are asked for the same, and what is no good answer makes no figure."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import load, mcp
from benchmarks.__main__ import MEASURES
from benchmarks.mcp import Calls, Http, Pipes, _is_whole
from benchmarks.servers import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

OLD, NEW = "2025-11-25", "2026-07-28"
NO_TIME = 1e-6
"""Seconds: a round of one call."""


@pytest.fixture(scope="module")
def servers(unmeasured: None) -> Iterator[Servers]:
    del unmeasured
    with Servers() as started:
        yield started


def measure(name: str) -> mcp.McpCall:
    found = MEASURES[name]
    assert isinstance(found, mcp.McpCall)
    return found


def body(answer: bytes) -> Any:
    """The JSON of an answer, out of whatever carried it."""
    start = answer.index(b'{"jsonrpc"')
    return json.JSONDecoder().raw_decode(answer[start:].decode())[0]


def asked(link: mcp.Link, method: str, params: dict[str, Any]) -> Any:
    link.send(json.dumps({"jsonrpc": "2.0", "id": "q", "method": method, "params": params}).encode(), method)
    return body(link.receive())["result"]


def without_words(schema: Any) -> Any:
    """A schema without what is said to people, and without the word that it is closed, which the SDK's server lacks."""
    if isinstance(schema, dict):
        left_out = ("description", "$schema", "title", "additionalProperties")
        return {key: without_words(value) for key, value in schema.items() if key not in left_out}
    return [without_words(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.proof
@pytest.mark.parametrize("name", ["mcp-stdio-new", "mcp-http-old"])
def test_the_bare_server_has_the_schemas_and_the_result_of_hearths_own_tool(servers: Servers, name: str) -> None:
    one = measure(name)
    meta = {"_meta": mcp.ENVELOPE} if one.era == NEW else {}
    seen = {}
    for hearth in (False, True):
        _, link = (one._stdio if one.over == "stdio" else one._http)(servers, hearth=hearth)
        calls = Calls(link, one.era)
        try:
            calls.greet()
            assert len(calls.run(NO_TIME).latencies) == 1
            if hearth:
                # What has been found is listed; a notification comes before the answer.
                call = {"name": "hacp_search", "arguments": {"query": "gpio_set"}, **meta}
                found = {"jsonrpc": "2.0", "id": "f", "method": "tools/call", "params": call}
                link.send(json.dumps(found).encode(), "tools/call")
                link.receive()
            tools = asked(link, "tools/list", meta)["tools"]
            (tool,) = [tool for tool in tools if tool["name"] == "gpio_set"]
            result = asked(link, "tools/call", {**mcp.CALL, **meta})
            wrong = {"name": "gpio_set", "arguments": {"line": 17, "value": 2}, **meta}
            link.send(
                json.dumps({"jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": wrong}).encode(),
                "tools/call",
            )
            answer = body(link.receive())  # hearth's has a result with the cure, the bare server's an error
            refused = "error" in answer or answer["result"]["isError"]
        finally:
            calls.close()
        schemas = [without_words(tool[kind]) for kind in ("inputSchema", "outputSchema")]
        seen[hearth] = (schemas, result["content"], result["structuredContent"], result.get("isError", False), refused)
    assert seen[True] == seen[False]
    assert seen[True][-1] is True


# --- answers that are none ------------------------------------------------------------------------------------------


class Scripted:
    """A link on which each call is answered by what a script says of its number."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._answer = b""

    def send(self, document: bytes, method: str) -> None:
        assert method == "tools/call"
        self._answer = self._script.replace("%", str(json.loads(document)["id"])).encode()

    def receive(self) -> bytes:
        return self._answer

    def close(self) -> None: ...


GOOD = '{"jsonrpc":"2.0","id":%,"result":{"structuredContent":{"line":17,"value":1},"isError":false}}'


def test_a_good_answer_is_one() -> None:
    calls = Calls(Scripted(GOOD), OLD)
    assert [len(calls.run(NO_TIME).latencies) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"id":%', '"id":0'),
        ("false", "true"),
        ("17", "18"),
        ('"value":1', '"value":0'),
        ('"structuredContent"', '"content"'),
        ('"result"', '"error"'),
    ],
)
def test_an_answer_that_is_wrong_makes_no_figure(before: str, after: str) -> None:
    script = GOOD.replace(before, after) if before != '"result"' else '{"jsonrpc":"2.0","id":%,"error":{"code":-32602}}'
    with pytest.raises(RuntimeError, match="a call was answered"):
        Calls(Scripted(script), OLD).run(NO_TIME)


@pytest.mark.proof
def test_a_process_that_ends_makes_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "PATIENCE", 5)
    command = [sys.executable, "-c", "input(); print('half', end='')"]
    link = Pipes(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    try:
        link.send(b"{}", "tools/call")
        with pytest.raises(RuntimeError, match="has ended after b'half'"):
            link.receive()
    finally:
        link.close()


# --- HTTP -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b"", False),
        (b"HTTP/1.1 200 \r\ncontent-length: 2\r\n", False),
        (b"HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n{", False),
        (b"HTTP/1.1 200 \r\nContent-Length: 2\r\nx: y\r\n\r\n{}", True),
        (b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", False),
        (b"HTTP/1.1 200 \r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 202 \r\nx: y\r\n\r\n", True),
    ],
)
def test_an_answer_over_http_is_whole_when_its_end_is_there(data: bytes, whole: bool) -> None:
    assert _is_whole(data) is whole


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection one of the answers, then hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)

        def serve() -> None:
            for answer in answers:
                connected, _ = listening.accept()
                with connected:
                    connected.settimeout(60)
                    connected.recv(1 << 16)
                    connected.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "http://{}:{}".format(*listening.getsockname())
        finally:
            thread.join(60)
            assert not thread.is_alive()


def http(text: str, *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"content-length: {len(text)}", *headers, "", text]
    return "\r\n".join(lines).encode()


def test_a_connection_that_the_server_ends_in_order_is_followed_by_another() -> None:
    first, second = (http(GOOD.replace("%", str(number)), "Connection: close") for number in (1, 2))
    # The third is opened for a call that never comes.
    with answering(first, second, b"") as address:
        link = Http(address, NEW)
        calls = Calls(link, NEW)
        assert len(calls.run(NO_TIME).latencies) + len(calls.run(NO_TIME).latencies) == 2
        link.close()


def test_a_connection_that_the_server_cuts_makes_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PATIENCE", 5)
    with answering(http(GOOD)[:-5]) as address:
        calls = Calls(Http(address, OLD), OLD)
        with pytest.raises(RuntimeError, match="hung up"):
            calls.run(NO_TIME)
        calls.close()


@pytest.mark.proof
def test_a_session_that_the_server_names_is_named_from_then_on() -> None:
    hello = http('{"id":"hello","result":{"protocolVersion":"2025-11-25"}}', "Mcp-Session-Id: S-1", "Connection: close")
    said: list[bytes] = []
    with answering(
        hello, b"HTTP/1.1 202 Accepted\r\nconnection: close\r\n\r\n", http(GOOD.replace("%", "1"))
    ) as address:
        link = Http(address, OLD)
        calls = Calls(link, OLD)
        calls.greet()
        said.append(link._heads.get("notifications/initialized", b""))
        assert len(calls.run(NO_TIME).latencies) == 1
        calls.close()
    assert b"\r\nMcp-Session-Id: S-1\r\n" in said[0]
