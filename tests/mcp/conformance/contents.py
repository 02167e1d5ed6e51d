"""What the suite reads: results of every kind of content, resources, prompts, completions, and what tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
from registry import Fixtures, Table, text_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import McpRequest

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
"""A PNG of one pixel."""
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
"""A WAV of no samples."""

ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
EVERY_KEYWORD: Mapping[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
"""A schema of the keywords that a server must not lose on the way."""
MIRRORED: Mapping[str, Any] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}
"""A parameter that a client repeats in a header."""

TABLE = Table()


def embedded(uri: str, mime_type: str, text: str) -> types.EmbeddedResource:
    """A resource within a result."""
    resource = types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return types.EmbeddedResource(type="resource", resource=resource)


def picture() -> types.ImageContent:
    """An image within a result."""
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


@TABLE.tool("test_simple_text", "Answers with a text.")
async def simple_text(_ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    return "This is a simple text response for testing."


@TABLE.tool("test_image_content", "Answers with an image.")
async def image_content(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[picture()])


@TABLE.tool("test_audio_content", "Answers with a sound.")
async def audio_content(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=[types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")])


@TABLE.tool("test_embedded_resource", "Answers with a resource in the result.")
async def embedded_resource(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    resource = embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[resource])


@TABLE.tool("test_multiple_content_types", "Answers with a text, an image and a resource.")
async def multiple_content_types(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    text = types.TextContent(type="text", text="Multiple content types test:")
    resource = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    return types.CallToolResult(content=[text, picture(), resource])


@TABLE.tool("test_error_handling", "Fails.")
async def error_handling(_ask: McpRequest, _params: types.CallToolRequestParams) -> types.CallToolResult:
    return text_result("This tool intentionally returns an error for testing", is_error=True)


async def _log(ask: McpRequest, *messages: str) -> None:
    for message in messages:
        await ask.ctx.session.send_log_message("info", message, "fixtures", ask.ctx.request_id)


@TABLE.tool("test_tool_with_logging", "Logs three messages before it answers.")
async def tool_with_logging(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    await _log(ask, "Tool execution started", "Tool processing data", "Tool execution completed")
    return "Tool with logging executed successfully"


@TABLE.tool("test_logging_tool", "Logs a message, if the client wants messages.")
async def logging_tool(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    await _log(ask, "a message that only a client which asked for it gets")
    return "logged"


@TABLE.tool("test_tool_with_progress", "Reports progress three times before it answers.")
async def tool_with_progress(ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    for progress in (0, 50, 100):
        await ask.ctx.session.report_progress(progress, 100, f"Completed step {progress} of 100")
    return "progressed"


@TABLE.tool("json_schema_2020_12_tool", "Has a schema of many keywords.", EVERY_KEYWORD)
async def json_schema_2020_12_tool(_ask: McpRequest, _params: types.CallToolRequestParams) -> str:
    return "accepted"


@TABLE.tool("test_x_mcp_header", "Has a parameter that is repeated in a header.", MIRRORED)
async def x_mcp_header(_ask: McpRequest, params: types.CallToolRequestParams) -> str:
    return f"region={(params.arguments or {}).get('region')}"


TEXT = "This is the content of the static text resource."
WATCHED = "Watched resource content"
TEMPLATE = "test://template/{id}/data"
BEFORE, AFTER = TEMPLATE.split("{id}")

RESOURCES = [
    types.Resource(uri="test://static-text", name="static-text", description="A text.", mime_type="text/plain"),
    types.Resource(uri="test://static-binary", name="static-binary", description="A PNG.", mime_type="image/png"),
    types.Resource(uri="test://watched-resource", name="watched", description="One to watch.", mime_type="text/plain"),
]
TEMPLATES = [
    types.ResourceTemplate(
        uri_template=TEMPLATE, name="template", description="One of many.", mime_type="application/json"
    )
]

ARGUMENTS = [
    types.PromptArgument(name="arg1", description="The first.", required=True),
    types.PromptArgument(name="arg2", description="The second.", required=True),
]
URI = types.PromptArgument(name="resourceUri", description="What to put in.", required=True)
PROMPTS = [
    types.Prompt(name="test_simple_prompt", description="A prompt without arguments."),
    types.Prompt(name="test_prompt_with_arguments", description="A prompt with arguments.", arguments=ARGUMENTS),
    types.Prompt(
        name="test_prompt_with_embedded_resource", description="A prompt with a resource in it.", arguments=[URI]
    ),
    types.Prompt(name="test_prompt_with_image", description="A prompt with an image in it."),
]


def contents_of(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    """What is at a URI, if anything is."""
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
    if uri == "test://static-text":
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=TEXT)
    if uri == "test://watched-resource":
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=WATCHED)
    if uri.startswith(BEFORE) and uri.endswith(AFTER) and len(uri) > len(BEFORE) + len(AFTER):
        filled_in = uri.removeprefix(BEFORE).removesuffix(AFTER)
        data = {"id": filled_in, "templateTest": True, "data": f"Data for ID: {filled_in}"}
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=orjson.dumps(data).decode())
    return None


def content_of(prompt: str, arguments: Mapping[str, str]) -> list[types.ContentBlock] | None:
    """What a prompt says, if there is one of this name."""
    if prompt == "test_simple_prompt":
        return [types.TextContent(type="text", text="This is a simple prompt for testing.")]
    if prompt == "test_prompt_with_arguments":
        said = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
        return [types.TextContent(type="text", text=said)]
    if prompt == "test_prompt_with_embedded_resource":
        resource = embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
        return [resource, types.TextContent(type="text", text="Please process the embedded resource above.")]
    if prompt == "test_prompt_with_image":
        return [picture(), types.TextContent(type="text", text="Please analyze the image above.")]
    return None


class Contents(Fixtures):
    """See the module."""

    table = TABLE

    def input_schema(self, name: str) -> Mapping[str, Any] | None:
        """See Provider."""
        return MIRRORED if name == "test_x_mcp_header" else None

    async def resources(self, ask: McpRequest) -> Sequence[types.Resource]:
        """See Provider."""
        del ask
        return RESOURCES

    async def templates(self, ask: McpRequest) -> Sequence[types.ResourceTemplate]:
        """See Provider."""
        del ask
        return TEMPLATES

    async def read(self, ask: McpRequest, params: types.ReadResourceRequestParams) -> types.ReadResourceResult | None:
        """See Provider."""
        del ask
        found = contents_of(params.uri)
        return None if found is None else types.ReadResourceResult(contents=[found])

    async def subscribe(self, ask: McpRequest, params: types.SubscribeRequestParams) -> bool:
        """See Provider."""
        del ask
        return params.uri == "test://watched-resource"

    async def unsubscribe(self, ask: McpRequest, params: types.UnsubscribeRequestParams) -> bool:
        """See Provider."""
        del ask
        return params.uri == "test://watched-resource"

    async def prompts(self, ask: McpRequest) -> Sequence[types.Prompt]:
        """See Provider."""
        del ask
        return PROMPTS

    async def prompt(self, ask: McpRequest, params: types.GetPromptRequestParams) -> types.GetPromptResult | None:
        """See Provider."""
        del ask
        content = content_of(params.name, params.arguments or {})
        if content is None:
            return None
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=block) for block in content])

    async def complete(self, ask: McpRequest, params: types.CompleteRequestParams) -> types.CompleteResult | None:
        """See Provider."""
        del ask
        ref = params.ref
        if not isinstance(ref, types.PromptReference) or ref.name != "test_prompt_with_arguments":
            return None
        values = [value for value in ("paris", "park", "party") if value.startswith(params.argument.value)]
        return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))

    async def set_level(self, ask: McpRequest, params: types.SetLevelRequestParams) -> None:
        """See Provider: the fixtures log at one level, so it is enough to take it."""
        del ask, params
