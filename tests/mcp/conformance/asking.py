"""What the suite is asked: tools that need a person, a model or a client's roots, in both eras.

Until 2025-11-25 the server asks the client in the middle of a call. From 2026-07-28 on the call is answered with what
is needed (`input_required`), and repeated with the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
from mcp.shared.exceptions import MCPError
from registry import Fixtures, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import McpRequest

TABLE = Table()

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
COLOR = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
CONTEXT = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
USER = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    },
    "required": ["username", "email"],
}
DEFAULTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    },
}
FIRST, SECOND = {"const": "value1", "title": "First Option"}, {"const": "value2", "title": "Second Option"}
ENUMS = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": [FIRST, SECOND]},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": [FIRST, SECOND]}},
    },
}
MESSAGE = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
PROMPT = {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}


def form(message: str, schema: Mapping[str, Any]) -> types.ElicitRequest:
    """A form for a person."""
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=dict(schema)))


def sample(text: str, max_tokens: int) -> types.CreateMessageRequest:
    """A question to a model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def need(state: str | None = None, **requests: types.InputRequest) -> types.InputRequiredResult:
    """What is needed before there is a result."""
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def answered(params: types.CallToolRequestParams | types.GetPromptRequestParams, key: str) -> Mapping[str, Any] | None:
    """What a person filled into a form, once there is an answer."""
    answer = (params.input_responses or {}).get(key)
    return answer.content or {} if isinstance(answer, types.ElicitResult) else None


# --- until 2025-11-25: in the middle of a call --------------------------------------------------------------------


@TABLE.tool("test_sampling", "Asks a model.", PROMPT)
async def sampling(ask: McpRequest, params: types.CallToolRequestParams) -> str:
    session = ask.ctx.session
    text = types.TextContent(type="text", text=str((params.arguments or {})["prompt"]))
    message = types.SamplingMessage(role="user", content=text)
    answer = await session.create_message([message], max_tokens=100, related_request_id=ask.ctx.request_id)
    return f"LLM response: {answer.content.text if isinstance(answer.content, types.TextContent) else answer.content}"


async def _ask(ask: McpRequest, message: str, schema: Mapping[str, Any]) -> str:
    answer = await ask.ctx.session.elicit_form(message, dict(schema), ask.ctx.request_id)
    return f"action={answer.action}, content={orjson.dumps(answer.content).decode()}"


@TABLE.tool("test_elicitation", "Asks a person.", MESSAGE)
async def elicitation(ask: McpRequest, params: types.CallToolRequestParams) -> str:
    return "User response: " + await _ask(ask, str((params.arguments or {})["message"]), USER)


@TABLE.tool("test_elicitation_sep1034_defaults", "Asks a person, with defaults.")
async def elicitation_sep1034_defaults(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    return "Elicitation completed: " + await _ask(ask, "Please provide user information", DEFAULTS)


@TABLE.tool("test_elicitation_sep1330_enums", "Asks a person to choose.")
async def elicitation_sep1330_enums(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    return "Elicitation completed: " + await _ask(ask, "Please choose", ENUMS)


# --- from 2026-07-28 on: before there is a result -----------------------------------------------------------------


@TABLE.tool("test_missing_capability", "Needs a client that can sample.")
async def missing_capability(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    if ask.capabilities.sampling is None:
        raise MCPError(
            code=types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool needs the client's capability `sampling`",
            data={"requiredCapabilities": {"sampling": {}}},
        )
    return "The client can sample."


@TABLE.tool("test_input_required_result_elicitation", "Needs a name.")
async def input_required_result_elicitation(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    given = answered(params, "user_name")
    return need(user_name=form("What is your name?", NAME)) if given is None else f"Hello, {given.get('name')}!"


@TABLE.tool("test_streaming_elicitation", "Needs a name, and streams.")
async def streaming_elicitation(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    given = answered(params, "user_name")
    return need(user_name=form("What is your name?", NAME)) if given is None else f"Hello, {given.get('name')}!"


@TABLE.tool("test_input_required_result_sampling", "Needs a model's answer.")
async def input_required_result_sampling(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    answer = (params.input_responses or {}).get("capital_question")
    if not isinstance(answer, types.CreateMessageResult):
        return need(capital_question=sample("What is the capital of France?", 100))
    return f"Model said: {answer.content.text if isinstance(answer.content, types.TextContent) else answer.content}"


@TABLE.tool("test_input_required_result_list_roots", "Needs the client's roots.")
async def input_required_result_list_roots(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    answer = (params.input_responses or {}).get("client_roots")
    if not isinstance(answer, types.ListRootsResult):
        return need(client_roots=types.ListRootsRequest())
    return "Roots: " + ", ".join(str(root.uri) for root in answer.roots)


@TABLE.tool("test_input_required_result_request_state", "Needs a confirmation, and its own state again.")
async def input_required_result_request_state(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    if answered(params, "confirm") is None or params.request_state != "one round":
        return need("one round", confirm=form("Please confirm", OK))
    return "state-ok"


@TABLE.tool("test_input_required_result_multiple_inputs", "Needs three things at once.")
async def input_required_result_multiple_inputs(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    requests: dict[str, types.InputRequest] = {
        "user_name": form("What is your name?", NAME),
        "greeting": sample("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    missing = {key: request for key, request in requests.items() if key not in (params.input_responses or {})}
    return need("all at once", **missing) if missing else "All there."


@TABLE.tool("test_input_required_result_multi_round", "Needs one thing after the other.")
async def input_required_result_multi_round(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    state = orjson.loads(params.request_state or "{}")
    if (given := answered(params, "step1")) is not None and state.get("asked") == "step1":
        known = {"asked": "step2", "name": given.get("name")}
        return need(orjson.dumps(known).decode(), step2=form("Step 2: What is your favorite color?", COLOR))
    if (given := answered(params, "step2")) is not None and state.get("asked") == "step2":
        return f"{state['name']} likes {given.get('color')}."
    return need('{"asked":"step1"}', step1=form("Step 1: What is your name?", NAME))


@TABLE.tool("test_input_required_result_tampered_state", "Needs a state that nobody has touched.")
async def input_required_result_tampered_state(
    _ask: McpRequest, params: types.CallToolRequestParams
) -> str | types.InputRequiredResult:
    return need("untouched", confirm=form("Please confirm", OK)) if params.request_state is None else "state-ok"


@TABLE.tool("test_input_required_result_capabilities", "Needs what the client has.")
async def input_required_result_capabilities(
    ask: McpRequest, _params: types.CallToolRequestParams
) -> types.InputRequiredResult:
    requests: dict[str, types.InputRequest] = {}
    if ask.capabilities.sampling is not None:
        requests["sample"] = sample("Say hello", 50)
    if ask.can_elicit:
        requests["ask"] = form("What is your name?", NAME)
    return need("asked for what there is", **requests)


class Asking(Fixtures):
    """See the module."""

    table = TABLE

    async def prompts(self, ask: McpRequest) -> Sequence[types.Prompt]:
        """See Provider."""
        del ask
        return [types.Prompt(name="test_input_required_result_prompt", description="A prompt that needs a context.")]

    async def prompt(
        self, ask: McpRequest, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult | None:
        """See Provider."""
        del ask
        if params.name != "test_input_required_result_prompt":
            return None
        given = answered(params, "user_context")
        if given is None:
            return need(user_context=form("What context should the prompt use?", CONTEXT))
        text = types.TextContent(type="text", text=f"Use the following context: {given.get('context')}")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])
