"""A real HTTP server on loopback that speaks both APIs, streamed, from a script: one entry for each turn.

An entry is `says("…")`, `calls(("read", {…}), …)`, raw bytes in place of a stream, a function of the request that
returns one of these, or one of the faults below.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def says(text, *, chunk=7):
    """A turn of words alone."""
    return {"text": text, "calls": [], "chunk": chunk}


def calls(*made, text=""):
    """A turn that calls tools; arguments that are a string go out as they are."""
    written = [(name, args if isinstance(args, str) else json.dumps(args)) for name, args in made]
    return {"text": text, "calls": written, "chunk": 7}


def reads(tool, **args):
    return calls(("read", {"tool": tool, "args": args}))


def proposes(intent, *steps, **more):
    made = [{"tool": tool, "args": args} for tool, args in steps]
    return calls(("propose_plan", {"intent": intent, "steps": made, **more}))


class Silent:
    """Sends headers and one piece, and then nothing until the server ends."""


class Cut:
    """Ends in the middle of a turn, as a server that was killed does."""


class Status:
    """Answers with an HTTP status."""

    def __init__(self, code, message="no"):
        self.code, self.message = code, message


class ModelServer:
    """The server; `requests` has (path, headers, body) of all that came."""

    def __init__(self, *script):
        self.script = list(script)
        self.requests = []
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                entry = outer.script.pop(0) if outer.script else says("The script is over.")
                if callable(entry):
                    entry = entry(body)
                try:
                    outer._answer(self, entry, "messages" in self.path)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def openai(self):
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exc):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler, entry, anthropic):
        if isinstance(entry, Status):
            content = json.dumps({"error": {"message": entry.message, "type": "api_error"}}).encode()
            handler.send_response(entry.code)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
            return
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.close_connection = True
        if isinstance(entry, bytes):
            handler.wfile.write(entry)
            return
        cut = isinstance(entry, (Silent, Cut))
        pieces = list((_anthropic if anthropic else _openai)(says("Let me see what there is.") if cut else entry))
        for piece in pieces[: 3 if cut else None]:
            handler.wfile.write(piece)
            handler.wfile.flush()
        if isinstance(entry, Silent):
            self.ended.wait(30)


def _event(data, name=None):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _parts(text, size):
    return [text[at : at + size] for at in range(0, len(text), size)]


def _openai(entry):
    def chunk(delta, reason=None, **more):
        choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
        about = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return _event({**about, "choices": choices, **more})

    yield chunk({"role": "assistant", "content": ""})
    for part in _parts(entry["text"], entry["chunk"]):
        yield chunk({"content": part})
    for index, (name, arguments) in enumerate(entry["calls"]):
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [first]})
        for part in _parts(arguments, 4096 if len(arguments) > 1000 else 9):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield chunk({}, entry.get("reason") or ("tool_calls" if entry["calls"] else "stop"))
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    yield _event(
        {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    )
    yield b"data: [DONE]\n\n"


def _anthropic(entry):
    message = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None}
    usage = {"input_tokens": 100, "output_tokens": 1}
    start = {**message, "stop_sequence": None, "usage": usage}
    yield _event({"type": "message_start", "message": start}, "message_start")
    index = 0
    if entry["text"]:
        block = {"type": "text", "text": ""}
        yield _event({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start")
        for part in _parts(entry["text"], entry["chunk"]):
            delta = {"type": "text_delta", "text": part}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        index = 1
    for at, (name, arguments) in enumerate(entry["calls"], index):
        block = {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {}}
        yield _event({"type": "content_block_start", "index": at, "content_block": block}, "content_block_start")
        for part in _parts(arguments, 4096 if len(arguments) > 1000 else 9):
            delta = {"type": "input_json_delta", "partial_json": part}
            yield _event({"type": "content_block_delta", "index": at, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": at}, "content_block_stop")
    reason = {"length": "max_tokens"}.get(entry.get("reason"), "tool_use" if entry["calls"] else "end_turn")
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 10},
    }
    yield _event(end, "message_delta")
    yield _event({"type": "message_stop"}, "message_stop")
