"""Guidance for models: prompts for common jobs, and the list of tools with its search.

Where there are many tools, `ShortList` lists those for signals, plans and the halt, a search for the rest, and one tool
that calls any tool by its name. A call by name is the call of that tool: it has the same risk, policy, consent and
audit. Nothing here adds or removes a right.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson
from attrs import frozen
from mcp.shared.exceptions import MCPError

from hearth._util.text import suggest
from hearth.actors.bridges.mcp.calls import checked, with_note
from hearth.actors.bridges.mcp.provider import Provider, Refused
from hearth.mcp.arguments import ArgumentFault, Arguments
from hearth.mcp.names import HALT, LONGEST_SHOWN, PLAN
from hearth.mcp.results import suggested_tool, tried_by, wrong_arguments
from hearth.mcp.search import near_tools, search

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import CallNext, Client, McpRequest, Outcome

# --- the list of tools ------------------------------------------------------------------------------------------------

SEARCH: Final = "hacp_search"
CALL: Final = "hacp_call"
MOST_TOOLS: Final = 25
"""Up to this number of tools, all are listed."""
MOST_CHARACTERS: Final = 10_000
"""Limit of the compact list as JSON: 2,500 tokens at four characters each."""
MOST_FOUND: Final = 6
"""Tools of one search that are returned with their schemas."""

SEARCH_INSTRUCTIONS: Final = f"""
- If {SEARCH} is listed, more tools can be called than are listed: {SEARCH} finds them by words of the job, and {CALL} \
calls any tool by its name. Where a text names a tool that is not listed, call it with {CALL}.\
"""

_FIRST: Final = frozenset((HALT, "signal_list", "signal_read", "signal_watch", "signal_set", PLAN))
"""The tools that are listed where there are many, in their own order."""

_SEARCH_TOOL: Final = types.Tool.model_validate(
    {
        "name": SEARCH,
        "description": 'Find further tools of this board by words of the job, such as "write i2c" or "cpu load". '
        f'Returns their names, descriptions and arguments; call them with {CALL}. "*" returns all names.',
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "words of the job, or a tool's name"}},
            "required": ["query"],
            "additionalProperties": False,
        },
        "annotations": {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    }
)
_CALL_TOOL: Final = types.Tool.model_validate(
    {
        "name": CALL,
        "description": f"Call a tool that is not listed, by its name from {SEARCH}. It is the same as calling that "
        "tool itself: the same risk, and from risk 3 on a person is asked first.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": 'the tool\'s name, such as "i2c_write"'},
                "arguments": {"type": "object", "description": "its arguments, as the search returned them"},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": True,
        },
    }
)
_ARGUMENTS: Final = {tool.name: Arguments(tool.input_schema) for tool in (_SEARCH_TOOL, _CALL_TOOL)}


class ShortList(Provider):
    """The provider of the search and of calls by name, over `others`, the providers of all other tools.

    It must come first, so that a call by name is the call of that tool for every other provider. `compact`: list few
    tools in few words, and the same ones always.
    """

    def __init__(self, others: Sequence[Provider], *, compact: bool = False) -> None:
        self._others = others
        self._compact = compact

    async def tools(self, request: McpRequest) -> Sequence[types.Tool]:
        """See Provider."""
        del request
        return (_SEARCH_TOOL, _CALL_TOOL)

    def listed(self, client: Client, tools: Sequence[types.Tool]) -> Sequence[types.Tool]:
        """See Provider."""
        others = [tool for tool in tools if tool.name not in _ARGUMENTS]
        if self._compact:
            others = list(map(_small, others))
        if len(others) <= MOST_TOOLS and not (self._compact and _characters(others) > MOST_CHARACTERS):
            return others
        found = () if self._compact else client.found_tools
        return [*(tool for tool in others if tool.name in _FIRST or tool.name in found), _SEARCH_TOOL, _CALL_TOOL]

    async def intercept(self, request: McpRequest, params: types.CallToolRequestParams, call_next: CallNext) -> Outcome:
        """See Provider."""
        try:
            outcome = await call_next(request, _target(params))
        except Refused as refused:
            return with_note(request.client, refused.outcome)
        suggested = suggested_tool(outcome) if isinstance(outcome, dict) else None
        # A client that calls a tool which is not listed can call it again.
        if not isinstance(outcome, dict) or suggested is None or suggested == params.name:
            return outcome
        listed = self.listed(request.client, await self._all(request))
        return outcome if suggested in [tool.name for tool in listed] else tried_by(outcome, CALL)

    async def call(self, request: McpRequest, params: types.CallToolRequestParams) -> Outcome | None:
        """See Provider."""
        if params.name != SEARCH:
            return None
        query = checked(params, _ARGUMENTS[SEARCH], SEARCH)["query"]
        tools = await self._all(request)
        found = _found(query, tools)
        await self._list(request, tools, {tool["name"] for tool in found.get("tools", ())})
        return types.CallToolResult(
            content=[types.TextContent(text=orjson.dumps(found).decode())], structured_content=found
        )

    async def _list(self, request: McpRequest, tools: Sequence[types.Tool], names: set[str]) -> None:
        """List tools that were found from now on, and announce it if that changes the list."""
        client = request.client
        before = len(self.listed(client, tools))
        client.found_tools |= names
        if len(self.listed(client, tools)) == before:
            return
        for notify in tuple(client.list_readers):
            await notify()
        if not request.modern:
            # On the stream of this very request, which every client reads.
            changed = types.ToolListChangedNotification()
            await request.ctx.session.send_notification(changed, related_request_id=request.ctx.request_id)

    async def _all(self, request: McpRequest) -> list[types.Tool]:
        return [tool for provider in self._others for tool in await provider.tools(request)]


def _target(params: types.CallToolRequestParams) -> types.CallToolRequestParams:
    """Return the call that a call by name stands for; any other call as it is. Raises Refused."""
    if params.name != CALL:
        return params
    wanted = checked(params, _ARGUMENTS[CALL], CALL)
    if wanted["name"] == CALL:
        raise Refused(
            wrong_arguments(CALL, [ArgumentFault("/name", f"{CALL} calls other tools")], "Name another tool.")
        )
    return params.model_copy(update={"name": wanted["name"], "arguments": wanted.get("arguments", {})})


def _found(query: str, tools: Sequence[types.Tool]) -> dict[str, Any]:
    """Return the result of a search."""
    if not query.strip(" *"):
        return {"names": [tool.name for tool in tools]}
    shown = [{"name": tool.name, "description": tool.description} for tool in tools]
    by_name = {tool.name: tool for tool in tools}
    exact = [name for name in near_tools(query, shown) if query.replace(".", "_") == name]
    names = exact or [str(tool["name"]) for tool in search(query, shown, MOST_FOUND)]
    found: dict[str, Any] = {"tools": [_small(by_name[name]).model_dump(**_AS_JSON) for name in names]}
    if not names:
        found["names"] = list(by_name)
    return found


_AS_JSON: Final[Mapping[str, Any]] = {"by_alias": True, "mode": "json", "exclude_none": True}


def _characters(tools: Sequence[types.Tool]) -> int:
    # With the spaces that most programs write, and that the bridge leaves out.
    return len(json.dumps({"tools": [tool.model_dump(**_AS_JSON) for tool in tools]}))


def _small(tool: types.Tool) -> types.Tool:
    """Return a tool without what a model can do without: limits, which errors name, and what is for people."""
    return types.Tool(
        name=tool.name,
        description=_short(tool.description or ""),
        input_schema=_without_limits(tool.input_schema),
        annotations=tool.annotations,
    )


_LONGEST: Final = 240
_LIMITS: Final = {"minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "minItems", "maxItems", "pattern"}
_LEFT_OUT: Final = _LIMITS | {"contentEncoding", "examples", "title", "$schema"}


def _short(text: str) -> str:
    """Return the first sentences of a description, and its risk."""
    head, found, risk = text.partition(" Risk ")
    sentences = head.split(". ")
    short = sentences[0]
    for sentence in sentences[1:]:
        if len(short) + len(sentence) > _LONGEST:
            break
        short = f"{short}. {sentence}"
    return f"{short.rstrip('.')}.{found}{risk.partition(':')[0]}{'.' if found else ''}"


def _without_limits(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_limits(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name not in _LEFT_OUT or isinstance(value, dict)}
    return {name: value if name in ("enum", "const") else _without_limits(value) for name, value in kept.items()}


# --- prompts ----------------------------------------------------------------------------------------------------------


_NAMED: Final = re.compile(r"\b(?!hacp_)[a-z0-9]+(?:_[a-z0-9]+)+")
"""A tool in a prompt; hacp_plan is the bridge's own."""


@frozen
class Job:
    """A common job, as a prompt."""

    title: str
    description: str
    text: str
    """What the model is asked to do; `{name}` is the value of an argument."""
    arguments: Mapping[str, tuple[str, str | None]]
    """Argument -> its description, and its default; None: it is required."""

    @property
    def needs(self) -> list[str]:
        """Return the HACP tools that its text names: without them the prompt is not offered."""
        return [name.replace("_", ".") for name in _NAMED.findall(self.text)]


_REPORT: Final = "Then tell me in a few sentences what you found, what you did, and what I should look at."

JOBS: Final[Mapping[str, Job]] = {
    "check_board": Job(
        "Check the board",
        "Look at the board and its health, and name what needs attention. Reads only.",
        "Check this board. Call hw_board, then list what it has (the hw_… lists), and read every sensor once. Change "
        f"nothing. Look for buses that do not answer, parts without a driver, and values that are unusual. {_REPORT}",
        {},
    ),
    "blink_line": Job(
        "Blink a line",
        "Blink an LED or a relay on one GPIO line, after a dry run.",
        "Blink the GPIO line {line} {times} times, half a second on and half a second off. First check with "
        "hw_gpio_list that the line is there and is an output. Write one hacp_plan of gpio_pulse steps, try it as "
        f"a dry run, and run it only if that succeeds. {_REPORT}",
        {"line": ("the line's name or number, such as LED or 17", None), "times": ("how often", "3")},
    ),
    "read_sensor": Job(
        "Read a sensor and explain",
        "Read a sensor a few times, and say what its values mean.",
        "Read the sensor {sensor} with hw_sensor_read, three times. hw_sensor_list has the names and units. Say what "
        "is measured, in which unit, how steady it is, and whether the value is plausible for this board.",
        {"sensor": ("the sensor's name", "that fits best, or the first in the list")},
    ),
    "find_i2c_devices": Job(
        "Find I2C devices",
        "Scan the I2C buses, and say which devices are probably there.",
        "Find out what is connected to the I2C buses. hw_i2c_list has the buses; scan each with i2c_scan. For every "
        "address say which devices commonly use it. Write to none. If an identification register is known, read it.",
        {},
    ),
    "safe_shutdown": Job(
        "Shut down safely",
        "Bring every driven line to its safe state, and check that it is there.",
        "Bring this board into a safe state before I switch it off. See with hw_gpio_list which lines are driven, and "
        "what their safe state is. Show me what you will change, then set those lines by gpio_set in one hacp_plan, "
        "and read each one back. Drive no other line, and do not stop any program. Then tell me that the power can be "
        "switched off, or what keeps you from saying so.",
        {},
    ),
}
"""By the name of the prompt."""

LONGEST_VALUE: Final = 200
"""Characters of an argument of a prompt."""


class Prompts(Provider):
    """The provider of prompts for common jobs. A job is offered if the session may use the tools that it needs."""

    async def prompts(self, request: McpRequest) -> Sequence[types.Prompt]:
        """See Provider."""
        view = await request.client.view()
        return [
            types.Prompt(
                name=name,
                title=job.title,
                description=job.description,
                arguments=[
                    types.PromptArgument(name=argument, description=description, required=default is None)
                    for argument, (description, default) in job.arguments.items()
                ],
            )
            for name, job in JOBS.items()
            if all(view.find(tool) is not None for tool in job.needs)
        ]

    async def prompt(self, request: McpRequest, params: types.GetPromptRequestParams) -> types.GetPromptResult | None:
        """See Provider. Raises MCPError for arguments that the prompt does not have, or that are missing."""
        job = JOBS.get(params.name)
        if job is None:
            return None
        given = params.arguments or {}
        for name in given:
            if name not in job.arguments:
                near = suggest(name[:LONGEST_SHOWN], job.arguments) or "leave it out"
                raise _wrong(f"{params.name} has no argument {json.dumps(name[:LONGEST_SHOWN])}; {near}")
        missing = [name for name, (_, default) in job.arguments.items() if default is None and not given.get(name)]
        if missing:
            raise _wrong(f"{params.name} needs the argument {missing[0]}: {job.arguments[missing[0]][0]}")
        values = {name: given.get(name) or default for name, (_, default) in job.arguments.items()}
        if any(len(value or "") > LONGEST_VALUE for value in values.values()):
            raise _wrong(f"an argument of {params.name} has at most {LONGEST_VALUE} characters")
        text = job.text.format(**values)
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=job.description, messages=[message])


def _wrong(reason: str) -> MCPError:
    return MCPError(code=types.INVALID_PARAMS, message=f"Invalid arguments: {reason}")
