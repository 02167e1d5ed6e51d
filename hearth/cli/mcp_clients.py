"""The configuration that an MCP client needs to start or to reach hearth, written as that client reads it.

Each client has its own file and form for the same facts: the program to start, or the URL and the place of the token.
Only forms that the client itself documents are here.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


NAME = "hearth"
"""The name of the server in the client."""
TOKEN_ENV = "HEARTH_TOKEN"
"""The default environment variable in which a client finds the bearer token."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@frozen
class Program:
    """A server that the client starts, and talks to over its stdin and stdout."""

    command: str
    args: Sequence[str] = ()


@frozen
class Url:
    """A server that runs already. `token_env` None: no token is needed, such as for a user of the same machine."""

    url: str
    token_env: str | None = None


Server: TypeAlias = Program | Url
Format: TypeAlias = Literal["json", "toml", "yaml"]


@frozen
class Snippet:
    """Lines to paste."""

    text: str
    """The lines, each with its line end: a complete document, which an empty file can take."""
    format: Format
    file: str
    """The file for them, as the client's documentation names it."""
    notes: Sequence[str] = ()
    """Further information and steps, a sentence each."""


@frozen
class McpClient:
    """A program that can be given MCP servers."""

    title: str
    file: str
    format: Format
    document: Callable[[Server], Mapping[str, Any]]
    """Returns the document for a server. Raises ConfigError."""
    notes: Callable[[Server], Sequence[str]] = lambda _server: ()


def snippet(client: str, server: Server) -> Snippet:
    """Return the snippet for `client`, a key of `CLIENTS`.

    Raises ConfigError if the client cannot use such a server, or `token_env` is not the name of a variable.
    """
    if isinstance(server, Url) and server.token_env is not None and not _VARIABLE.match(server.token_env):
        raise ConfigError(f"{server.token_env!r} is no name of an environment variable, such as {TOKEN_ENV}")
    known = CLIENTS[client]
    document = known.document(server)
    text = _WRITERS[known.format](document)
    return Snippet(text, known.format, known.file, (*known.notes(server), *_EVERYWHERE))


_EVERYWHERE = (f"If the file has other servers, add the entry {NAME} beside them, and start the client again.",)


def _bearer(server: Url, variable: str) -> dict[str, Any]:
    """Return the headers for a URL that needs a token; `variable` is the client's notation of a variable."""
    if server.token_env is None:
        return {}
    return {"headers": {"Authorization": f"Bearer {variable.format(name=server.token_env)}"}}


def _stdio(server: Program, **more: Any) -> dict[str, Any]:
    return {**more, "command": server.command, "args": list(server.args)}


def _claude(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Url):
        raise ConfigError(
            "Claude Desktop's file starts programs and knows no URL: leave --url out, and name the daemon with --to "
            "(such as ssh://pi) if it is on another machine"
        )
    return {"mcpServers": {NAME: _stdio(server)}}


def _claude_code(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Url):
        entry: dict[str, Any] = {"type": "http", "url": server.url, **_bearer(server, "${{{name}}}")}
    else:
        entry = _stdio(server, type="stdio")
    return {"mcpServers": {NAME: entry}}


def _codex(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"mcp_servers": {NAME: _stdio(server)}}
    token = {} if server.token_env is None else {"bearer_token_env_var": server.token_env}
    return {"mcp_servers": {NAME: {"url": server.url, **token}}}


def _cursor(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"mcpServers": {NAME: _stdio(server)}}
    return {"mcpServers": {NAME: {"url": server.url, **_bearer(server, "${{env:{name}}}")}}}


def _gemini(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"mcpServers": {NAME: _stdio(server)}}
    return {"mcpServers": {NAME: {"httpUrl": server.url, **_bearer(server, "${{{name}}}")}}}


def _goose(server: Server) -> Mapping[str, Any]:
    entry: dict[str, Any] = {"name": NAME, "enabled": True, "timeout": 300}
    if isinstance(server, Program):
        entry |= {"type": "stdio", "cmd": server.command, "args": list(server.args)}
    else:
        entry |= {"type": "streamable_http", "uri": server.url, **_bearer(server, "${{{name}}}")}
        if server.token_env is not None:
            entry["env_keys"] = [server.token_env]
    return {"extensions": {NAME: entry}}


_VSCODE_INPUT = "hearth-token"


def _vscode(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"servers": {NAME: _stdio(server, type="stdio")}}
    entry: dict[str, Any] = {"type": "http", "url": server.url}
    if server.token_env is None:
        return {"servers": {NAME: entry}}
    entry["headers"] = {"Authorization": f"Bearer ${{input:{_VSCODE_INPUT}}}"}
    asked = {"type": "promptString", "id": _VSCODE_INPUT, "description": "Bearer token for hearth", "password": True}
    return {"inputs": [asked], "servers": {NAME: entry}}


def _windsurf(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"mcpServers": {NAME: _stdio(server)}}
    return {"mcpServers": {NAME: {"serverUrl": server.url, **_bearer(server, "${{env:{name}}}")}}}


_ZED_TOKEN = "TOKEN"


def _zed(server: Server) -> Mapping[str, Any]:
    if isinstance(server, Program):
        return {"context_servers": {NAME: _stdio(server)}}
    return {"context_servers": {NAME: {"url": server.url, **_bearer(server, _ZED_TOKEN)}}}


def _from_env(server: Server) -> Sequence[str]:
    if isinstance(server, Program) or server.token_env is None:
        return ()
    return (f"The client reads the token from the environment variable {server.token_env} when it starts.",)


def _asks(server: Server) -> Sequence[str]:
    return ("VS Code asks for the token once, and keeps it safe.",) if _needs_token(server) else ()


def _written_out(server: Server) -> Sequence[str]:
    if not _needs_token(server):
        return ()
    return (f"Zed reads no environment variable here: write the token in place of {_ZED_TOKEN}.",)


def _needs_token(server: Server) -> bool:
    return isinstance(server, Url) and server.token_env is not None


CLIENTS: Mapping[str, McpClient] = {
    "claude": McpClient(
        "Claude Desktop",
        "claude_desktop_config.json (Settings > Developer > Edit Config opens it)",
        "json",
        _claude,
    ),
    "claude-code": McpClient("Claude Code", ".mcp.json in your project", "json", _claude_code, _from_env),
    "codex": McpClient("Codex", "~/.codex/config.toml", "toml", _codex, _from_env),
    "cursor": McpClient(
        "Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in your project", "json", _cursor, _from_env
    ),
    "gemini": McpClient(
        "Gemini CLI", "~/.gemini/settings.json, or .gemini/settings.json in your project", "json", _gemini, _from_env
    ),
    "goose": McpClient("goose", "~/.config/goose/config.yaml", "yaml", _goose, _from_env),
    "vscode": McpClient("VS Code", ".vscode/mcp.json in your project", "json", _vscode, _asks),
    "windsurf": McpClient("Windsurf", "~/.codeium/windsurf/mcp_config.json", "json", _windsurf, _from_env),
    "zed": McpClient("Zed", "settings.json (the command `zed: open settings` opens it)", "json", _zed, _written_out),
}
"""By the name that `hearth mcp --print-config` takes."""


def _json(document: Mapping[str, Any]) -> str:
    return f"{_object(document)}\n"


def _object(value: Any, indent: str = "") -> str:
    """Return objects in blocks, and any other value on one line."""
    if not isinstance(value, dict):
        return _scalar(value)
    deeper = f"{indent}  "
    members = [f"{deeper}{_scalar(key)}: {_object(inner, deeper)}" for key, inner in value.items()]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


def _toml(document: Mapping[str, Any]) -> str:
    """Return tables of scalars and lists, two deep. The JSON form of these scalars is valid TOML."""
    lines = []
    for section, tables in document.items():
        for name, table in tables.items():
            lines.append(f"[{section}.{name}]")
            lines += [f"{key} = {_scalar(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _yaml(document: Mapping[str, Any], indent: str = "") -> str:
    """Return mappings in blocks, and any other value as JSON, which is valid YAML."""
    lines = []
    for key, value in document.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    """Return JSON that is valid TOML and YAML: a few characters must be escaped there, and surrogate pairs must not."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))


_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")

_WRITERS: Mapping[Format, Callable[[Mapping[str, Any]], str]] = {"json": _json, "toml": _toml, "yaml": _yaml}
