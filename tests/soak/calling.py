"""Calls of MCP over HTTP as a program would make them by hand: both eras, with the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from support.dialing import place

if TYPE_CHECKING:
    import random

_BOUND = 30
_OLD, _NEW = "2025-11-25", "2026-07-28"
_CLIENT = {"name": "soak", "version": "1"}
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": _NEW,
    "io.modelcontextprotocol/clientInfo": _CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Caller:
    """One client of /mcp on connections of its own."""

    def __init__(self, address: str, era: str) -> None:
        self._connection = http.client.HTTPConnection(*place(address), timeout=_BOUND)
        self._era = era
        self._session: str | None = None
        self._number = 0

    def post(self, method: str, params: dict[str, Any] | None = None, *, notify: bool = False, name: str = "") -> Any:
        """Call; returns the answer, or the status where there is none. Raises AssertionError for an HTTP error."""
        self._number += 1
        document: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": dict(params or {})}
        if not notify:
            document["id"] = self._number
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Mcp-Protocol-Version": self._era,
        }
        if self._era == _NEW:
            document["params"]["_meta"] = _ENVELOPE
            headers |= {"Mcp-Method": method} | ({"Mcp-Name": name} if name else {})
        if self._session is not None:
            headers["Mcp-Session-Id"] = self._session
        self._connection.request("POST", "/mcp", json.dumps(document), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status in (200, 202), (answer.status, body)
        self._session = answer.headers.get("Mcp-Session-Id", self._session)
        if answer.headers.get("Content-Type", "").startswith("text/event-stream"):
            told = [
                json.loads(line[5:]) for line in body.splitlines() if line.startswith(b"data:") and line[5:].strip()
            ]
            return next(one for one in told if one.get("id") == self._number)
        return json.loads(body) if body else answer.status

    def greet(self) -> None:
        """Shake hands, where the era has that."""
        if self._era == _OLD:
            params = {"protocolVersion": _OLD, "capabilities": {}, "clientInfo": _CLIENT}
            assert self.post("initialize", params)["result"]["protocolVersion"] == _OLD
            self.post("notifications/initialized", notify=True)

    def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool; returns its result."""
        answer = self.post("tools/call", {"name": name, "arguments": arguments}, name=name)
        assert "result" in answer, answer
        return answer["result"]

    def close(self, *, goodbye: bool) -> None:
        """Hang up, and say so before where there is something to say."""
        try:
            if goodbye and self._session is not None:
                self._connection.request("DELETE", "/mcp", headers={"Mcp-Session-Id": self._session})
                self._connection.getresponse().read()
        finally:
            self._connection.close()


def mcp_visit(address: str, rng: random.Random) -> None:
    """Some calls; one in three clients leaves without goodbye."""
    caller = Caller(address, rng.choice((_OLD, _NEW)))
    try:
        caller.greet()
        for _ in range(rng.randrange(1, 4)):
            result = caller.call("gpio_get", line=4)
            assert result["structuredContent"]["line"] == 4, result
        assert caller.call("i2c_read", bus=1, addr="0x33", len=1)["isError"] is True
    finally:
        caller.close(goodbye=rng.random() < 0.66)


def metrics(address: str) -> dict[str, float]:
    """The figures at /metrics, by name with labels."""
    connection = http.client.HTTPConnection(*place(address), timeout=_BOUND)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
    finally:
        connection.close()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(figure) for name, _, figure in lines}
