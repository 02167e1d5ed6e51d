"""What the suite of the tasks extension calls: jobs that take a while, fail, or need something in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mcp_types as types
import trio
from asking import NAME, OK, answered, form, need
from mcp.shared.exceptions import MCPError
from registry import Fixtures, Table, text_result

from hearth.actors.bridges.mcp.tasks import Terms

if TYPE_CHECKING:
    from hearth.actors.bridges.mcp.provider import McpRequest
    from hearth.actors.bridges.mcp.tasks import TermsOf

TABLE = Table()

TERMS = {
    "slow_compute": Terms(after=0.1),
    "failing_job": Terms(after=0.1, required=True),
    "protocol_error_job": Terms(after=0),
    "confirm_delete": Terms(after=0),
    "multi_input": Terms(after=0),
    "test_tool_with_task": Terms(after=0.1, required=True),
}
"""Which of them become tasks, and when."""

GREETED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
COMPUTED = {
    "type": "object",
    "properties": {"seconds": {"type": "number"}, "label": {"type": "string"}},
    "required": ["seconds"],
}
DELETED = {"type": "object", "properties": {"filename": {"type": "string"}}, "required": ["filename"]}
CONFIRM = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}


def terms_or(others: TermsOf) -> TermsOf:
    """On what terms a call may become a task; `others` are those of tools that are none of these."""

    async def terms(ask: McpRequest, params: types.CallToolRequestParams) -> Terms | None:
        if params.name in TABLE.tools:
            return TERMS.get(params.name)
        return await others(ask, params)

    return terms


@TABLE.tool("greet", "Greets, at once.", GREETED)
async def greet(_ask: McpRequest, params: types.CallToolRequestParams) -> str:
    return f"Hello, {(params.arguments or {})['name']}!"


@TABLE.tool("slow_compute", "Takes as long as it is told to.", COMPUTED)
async def slow_compute(_ask: McpRequest, params: types.CallToolRequestParams) -> str:
    arguments = params.arguments or {}
    await trio.sleep(arguments["seconds"])
    return f"Computed {arguments.get('label', 'it')} in {arguments['seconds']} s"


@TABLE.tool("failing_job", "Fails after a while.")
async def failing_job(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    await trio.sleep(0.3)
    return text_result("This job always fails", is_error=True)


@TABLE.tool("protocol_error_job", "Breaks down.")
async def protocol_error_job(_ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    await trio.sleep(0.3)
    raise MCPError(code=types.INTERNAL_ERROR, message="This job always breaks down")


@TABLE.tool("confirm_delete", "Needs a confirmation.", DELETED)
async def confirm_delete(_ask: McpRequest, params: types.CallToolRequestParams) -> str | types.InputRequiredResult:
    filename = (params.arguments or {})["filename"]
    given = answered(params, "confirm")
    if given is None:
        return need(confirm=form(f"Delete {filename}?", CONFIRM))
    return f"deleted {filename}" if given.get("confirm") else f"kept {filename}"


@TABLE.tool("multi_input", "Needs two things at once.")
async def multi_input(_ask: McpRequest, params: types.CallToolRequestParams) -> str | types.InputRequiredResult:
    needed = {"first": form("What is your name?", NAME), "second": form("Please confirm", OK)}
    missing = {key: request for key, request in needed.items() if answered(params, key) is None}
    return need(**missing) if missing else "both there"


@TABLE.tool("test_tool_with_task", "Needs a name before it begins, and takes a while then.")
async def tool_with_task(_ask: McpRequest, params: types.CallToolRequestParams) -> str | types.InputRequiredResult:
    given = answered(params, "user_name")
    if given is None:
        return need(user_name=form("What is your name?", NAME))
    await trio.sleep(0.5)
    return f"Done for {given.get('name')}."


class Jobs(Fixtures):
    """See the module."""

    table = TABLE
