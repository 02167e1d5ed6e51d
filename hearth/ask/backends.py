"""The endpoints: one turn of a model, streamed, from an OpenAI-compatible API or from Anthropic's.

It owns the translation of a conversation into the two APIs and back, and the bounds of what an endpoint may send. A
conversation is a list of messages, JSON objects by `role`:

    system  text                    user    text
    model   text, calls [{id, tool, arguments}]         result  id, text

`arguments` is the text that the model wrote, which need not be JSON. Every fault of an endpoint is a ModelError in one
sentence: not there, slow, another status, another protocol, cut short, too long. A key is sent to the endpoint, and is
in no message, record or log.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import orjson
import trio
from attrs import define, field, frozen

from hearth.ask import ModelError, require_model, require_package
from hearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hearth.config.ask import AskConfig

MOST_TEXT: Final = 64 << 10
"""Characters of a model's text in one turn."""
MOST_ARGUMENTS: Final = 256 << 10
"""Characters of the arguments of all calls in one turn."""
MOST_CALLS: Final = 16
MOST_CHUNKS: Final = 100_000
"""Pieces of one streamed turn, also of empty ones."""
LOCAL: Final = ("127.0.0.1", "localhost", "::1")
OPENAI_URL: Final = "https://api.openai.com/v1"
ANTHROPIC_URL: Final = "https://api.anthropic.com"


@frozen
class ToolCall:
    """A call that a model has written."""

    call_id: str
    tool: str
    arguments: str


@frozen
class ModelTurn:
    """One turn of a model: its words, its calls, and the tokens that were read and written."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0


class Model(Protocol):
    """A language model. `name` and `where` are for the person."""

    name: str
    where: str

    async def turn(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_text: Callable[[str], None]
    ) -> ModelTurn:
        """Return the model's next turn; `on_text` gets its words as they come. Raises ModelError."""
        ...


def model_for(config: AskConfig) -> Model:
    """Return the configured model. Raises ConfigError."""
    name = require_model(config)
    url = config.base_url or (ANTHROPIC_URL if config.api == "anthropic" else OPENAI_URL)
    key = find_key(config)
    split = urlsplit(url)
    if key is not None and split.scheme == "http" and split.hostname not in LOCAL:
        raise ConfigError(f"[ask] base_url: {url} would carry the key in clear text; use https, or no key")
    require_package(config.api)
    kind = AnthropicModel if config.api == "anthropic" else OpenAIModel
    return kind(name, url, key, config.timeout_s, config.max_tokens)


def find_key(config: AskConfig) -> str | None:
    """Return the key for the endpoint; None if none is configured. Raises ConfigError, which never holds the key."""
    if config.api_key_env is not None:
        key = os.environ.get(config.api_key_env, "").strip()
        if not key:
            raise ConfigError(f"[ask] api_key_env: {config.api_key_env} is not set in the environment; export the key")
        return key
    if config.api_key_file is not None:
        from hearth.transport.tls import readable

        return readable(config.api_key_file, "[ask] api_key_file:", private=True).read_text("utf-8").strip()
    return None


@define
class _Collected:
    """The parts of a streamed turn so far, within bounds."""

    on_text: Callable[[str], None]
    text: list[str] = field(factory=list)
    calls: dict[int, dict[str, str]] = field(factory=dict)
    tokens: dict[str, int] = field(factory=dict)
    ended: str | None = None
    """The reason of the end, in the words of the API."""
    _size: int = 0
    _arguments: int = 0
    _chunks: int = 0

    def count(self) -> None:
        self._chunks += 1
        if self._chunks > MOST_CHUNKS:
            raise ModelError(f"the model's answer came in more than {MOST_CHUNKS} pieces")

    def add_text(self, text: object) -> None:
        if isinstance(text, str) and text:
            self._size += len(text)
            if self._size > MOST_TEXT:
                raise ModelError(f"the model wrote more than {MOST_TEXT} characters")
            self.text.append(text)
            self.on_text(text)

    def add_call(self, index: object, **parts: object) -> None:
        at = index if isinstance(index, int) else len(self.calls)
        if at not in self.calls and len(self.calls) >= MOST_CALLS:
            raise ModelError(f"the model made more than {MOST_CALLS} calls at once")
        call = self.calls.setdefault(at, {"id": "", "tool": "", "arguments": ""})
        for name, part in parts.items():
            if isinstance(part, str):
                call[name] = call[name] + part if name == "arguments" else (call[name] or part)
        self._arguments += len(str(parts.get("arguments") or ""))
        if self._arguments > MOST_ARGUMENTS:
            raise ModelError(f"the model proposed more than {MOST_ARGUMENTS} characters of steps")

    def count_tokens(self, **counts: object) -> None:
        self.tokens |= {name: count for name, count in counts.items() if isinstance(count, int) and count >= 0}

    def turn(self, max_tokens: int) -> ModelTurn:
        if self.ended is None:
            raise ModelError("the model's answer stopped in the middle")
        if self.ended in ("length", "max_tokens"):
            raise ModelError(f"the model's answer was cut at {max_tokens} tokens; see [ask] max_tokens")
        calls = [
            ToolCall(call["id"] or f"call_{index}", call["tool"], call["arguments"])
            for index, call in sorted(self.calls.items())
        ]
        return ModelTurn("".join(self.text), tuple(calls), self.tokens.get("read", 0), self.tokens.get("written", 0))


@define
class _ModelEndpoint:
    """A model behind an API."""

    name: str
    where: str
    _key: str | None = field(repr=False)
    _timeout_s: float
    _max_tokens: int

    async def turn(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], on_text: Callable[[str], None]
    ) -> ModelTurn:
        """See Model."""
        collected = _Collected(on_text)
        async with _faults(self.where, self._timeout_s, self._error()), self._stream(messages, tools) as pieces:
            while True:
                piece = None
                with trio.move_on_after(self._timeout_s) as waiting:
                    piece = await anext(pieces, None)
                if waiting.cancelled_caught:
                    raise ModelError(f"the model at {self.where} has been silent for {self._timeout_s:g} s")
                if piece is None:
                    break
                collected.count()
                self._take(piece, collected)
        return collected.turn(self._max_tokens)

    def _error(self) -> type[Exception]:
        """Return the class of all errors of the package."""
        raise NotImplementedError

    def _stream(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Any:
        """Return a context manager of an iterator over the pieces of a turn, JSON objects."""
        raise NotImplementedError

    def _take(self, piece: Mapping[str, Any], collected: _Collected) -> None:
        raise NotImplementedError


@asynccontextmanager
async def _faults(where: str, timeout_s: float, error_class: type[Exception]) -> AsyncIterator[None]:
    """Turn whatever an endpoint does wrong into a ModelError that names it."""
    import httpx2

    late = f"the model at {where} did not answer within {timeout_s:g} s"
    try:
        yield
    except httpx2.TimeoutException:
        raise ModelError(late) from None
    except httpx2.HTTPError as error:
        raise ModelError(f"the connection to the model at {where} broke: {_shown(error)}") from None
    except error_class as error:
        status: int | None = getattr(error, "status_code", None)
        if status is not None:
            raise ModelError(f"the model at {where} refused with HTTP {status}: {_shown(error)}") from None
        if isinstance(error.__cause__, httpx2.TimeoutException):
            raise ModelError(late) from None
        raise ModelError(f"the model at {where} failed: {_shown(error.__cause__ or error)}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"what the model at {where} sent is not of its API: {_shown(error)}") from None


def _shown(error: BaseException) -> str:
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= 200 else f"{text[:200]}…"


def _object(piece: Any) -> Mapping[str, Any]:
    """Return a piece of a stream as a JSON object. Raises ValueError for anything else."""
    dumped = piece.model_dump(warnings=False) if hasattr(piece, "model_dump") else piece
    if not isinstance(dumped, dict):
        raise ValueError(f"expected an object, got {str(dumped)[:60]!r}")  # noqa: TRY004  caught as one
    return dumped


class OpenAIModel(_ModelEndpoint):
    """A model behind the chat completions of OpenAI, as Ollama, llama.cpp, vLLM and gateways have them too."""

    def _error(self) -> type[Exception]:
        from openai import OpenAIError

        return OpenAIError

    @asynccontextmanager
    async def _stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[Any]:
        import openai

        # A key that is left out would be taken from OPENAI_API_KEY, and go to whatever endpoint is configured.
        key = self._key or "none"
        client = openai.AsyncOpenAI(api_key=key, base_url=self.where, timeout=self._timeout_s, max_retries=0)
        async with client:
            create: Any = client.chat.completions.create
            stream = await create(
                model=self.name,
                messages=[_for_openai(each) for each in messages],
                tools=[{"type": "function", "function": each} for each in tools],
                max_tokens=self._max_tokens,
                stream=True,
                stream_options={"include_usage": True},
            )
            async with stream:
                yield aiter(stream)

    def _take(self, piece: Any, collected: _Collected) -> None:
        chunk = _object(piece)
        usage = chunk.get("usage") or {}
        collected.count_tokens(read=usage.get("prompt_tokens"), written=usage.get("completion_tokens"))
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or {}
            collected.add_text(delta.get("content"))
            for call in delta.get("tool_calls") or []:
                function = call.get("function") or {}
                named = {"id": call.get("id"), "tool": function.get("name")}
                collected.add_call(call.get("index"), **named, arguments=function.get("arguments"))
            if isinstance(choice.get("finish_reason"), str):
                collected.ended = choice["finish_reason"]


def _for_openai(message: Mapping[str, Any]) -> dict[str, Any]:
    if message["role"] == "result":
        return {"role": "tool", "tool_call_id": message["id"], "content": message["text"]}
    if message["role"] != "model":
        return {"role": message["role"], "content": message["text"]}
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["tool"], "arguments": call["arguments"]}}
        for call in message["calls"]
    ]
    return {"role": "assistant", "content": message["text"] or None, **({"tool_calls": calls} if calls else {})}


class AnthropicModel(_ModelEndpoint):
    """A model behind the messages API of Anthropic."""

    def _error(self) -> type[Exception]:
        from anthropic import AnthropicError

        return AnthropicError

    @asynccontextmanager
    async def _stream(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[Any]:
        import anthropic

        key = self._key or "none"
        client = anthropic.AsyncAnthropic(api_key=key, base_url=self.where, timeout=self._timeout_s, max_retries=0)
        described = [
            {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
            for each in tools
        ]
        async with client:
            create: Any = client.messages.create
            stream = await create(
                model=self.name,
                system="\n\n".join(each["text"] for each in messages if each["role"] == "system"),
                messages=_for_anthropic(messages),
                tools=described,
                max_tokens=self._max_tokens,
                stream=True,
            )
            async with stream:
                yield aiter(stream)

    def _take(self, piece: Any, collected: _Collected) -> None:
        event = _object(piece)
        kind, index = event.get("type"), event.get("index")
        if kind == "message_start":
            usage = (event.get("message") or {}).get("usage") or {}
            collected.count_tokens(read=usage.get("input_tokens"))
        elif kind == "content_block_start":
            block = event.get("content_block") or {}
            collected.add_text(block.get("text"))
            if block.get("type") == "tool_use":
                collected.add_call(index, id=block.get("id"), tool=block.get("name"))
        elif kind == "content_block_delta":
            delta = event.get("delta") or {}
            collected.add_text(delta.get("text"))
            if delta.get("type") == "input_json_delta":
                collected.add_call(index, arguments=delta.get("partial_json"))
        elif kind == "message_delta":
            collected.count_tokens(written=(event.get("usage") or {}).get("output_tokens"))
            reason = (event.get("delta") or {}).get("stop_reason")
            collected.ended = reason if isinstance(reason, str) else collected.ended


def _for_anthropic(messages: Sequence[Mapping[str, Any]]) -> Any:
    """Return the messages with those of one role joined: the API wants the two roles in turn."""
    made: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            continue
        role = "assistant" if message["role"] == "model" else "user"
        if not made or made[-1]["role"] != role:
            made.append({"role": role, "content": []})
        content = made[-1]["content"]
        if message["role"] == "result":
            content.append({"type": "tool_result", "tool_use_id": message["id"], "content": message["text"]})
            continue
        if message["text"]:
            content.append({"type": "text", "text": message["text"]})
        for call in message.get("calls", ()):
            given = {"id": call["id"], "name": call["tool"], "input": as_object(call["arguments"]) or {}}
            content.append({"type": "tool_use", **given})
    return [each for each in made if each["content"]]


def as_object(arguments: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object; None if they are something else."""
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
