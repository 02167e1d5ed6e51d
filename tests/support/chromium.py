"""A real browser without a window, driven over the DevTools protocol: what a person would do, and what they would see.

Owns the browser's process and the talk with it. What a page is, and what is expected of it, is the tests'.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

BOUND: Final = 30.0
"""Seconds after which any wait here is a failure."""
_LARGEST: Final = 64 << 20
"""Bytes of a message: a screenshot is one."""
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
)
_LISTENING = b"DevTools listening on "


_PROGRAM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_chromium = pytest.mark.skipif(_PROGRAM is None, reason="there is no Chromium here: apt-get install chromium")
_AIM: Final = """(selector) => {
    window.clicked?.();
    const wanted = document.querySelector(selector);
    if (!wanted || wanted.disabled) return null;
    wanted.scrollIntoView({block: "center"});
    const {x, y, width, height} = wanted.getBoundingClientRect();
    if (!width || !height) return null;
    let result = "missed";
    const kinds = ["pointerdown", "mousedown", "pointerup", "mouseup", "click"];
    const look = (event) => {
        if (!wanted.contains(event.target)) {
            event.preventDefault();
            event.stopImmediatePropagation();
        } else if (event.type === "click") result = "hit";
    };
    for (const kind of kinds) addEventListener(kind, look, true);
    window.clicked = () => {
        for (const kind of kinds) removeEventListener(kind, look, true);
        delete window.clicked;
        return result;
    };
    return [x + width / 2, y + height / 2];
}"""
"""Returns the middle of an element, or null; `clicked()` then tells whether a click has reached it, once."""


class Broken(Exception):
    """The page has thrown, or the browser refused a command."""


class Tab:
    """One page. `errors` are what its console shows in red; `sent` and `received` its WebSockets' messages."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        self.sent: list[Any] = []
        self.received: list[Any] = []
        self.requested: list[str] = []
        """The addresses of everything it has asked for, WebSockets included."""

    async def command(self, method: str, **params: Any) -> Any:
        """A command of the DevTools protocol; its result. Raises Broken."""
        return await self._browser.command(method, params, self._session)

    async def navigate(self, url: str) -> None:
        """Go there; returns when the page is on its way."""
        answer = await self.command("Page.navigate", url=url)
        if "errorText" in answer:
            raise Broken(f"{url}: {answer['errorText']}")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, awaited if it is a promise. Raises Broken."""
        answer = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise Broken(f"{expression}: {_told(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    async def until(self, expression: str, bound: float = BOUND) -> Any:
        """Look again until the expression is true; its value. Fails, saying what the page shows, after the bound."""
        with trio.move_on_after(bound):
            while True:
                try:
                    if found := await self.evaluate(expression):
                        return found
                except Broken as error:
                    # A page that is being loaded has no elements yet, or is replaced while it is asked.
                    if not any(word in str(error) for word in ("null", "context", "navigated")):
                        raise
                await trio.sleep(0.02)
        shown = await self.evaluate("document.body.innerText")
        raise AssertionError(f"not within {bound:g} s: {expression}\n--- console: {self.errors}\n--- page:\n{shown}")

    async def click(self, selector: str) -> None:
        """Scroll there and click in the middle, as a person does; again if it was not there any more, or was covered.

        A page may move while the mouse is on its way. The click is then kept from what lies there instead.
        """
        with trio.move_on_after(BOUND):
            while True:
                x, y = await self.until(f"({_AIM})({json.dumps(selector)})")
                where = {"x": x, "y": y, "button": "left", "clickCount": 1}
                await self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
                await self.command("Input.dispatchMouseEvent", type="mousePressed", **where)
                await self.command("Input.dispatchMouseEvent", type="mouseReleased", **where)
                # A page that the click has led to knows nothing of it.
                if await self.until("window.clicked?.() ?? 'gone'") != "missed":
                    return
        raise AssertionError(f"not within {BOUND:g} s: a click on {selector}; something lies above it, or it moves")

    async def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key: its name, its code, and what it types."""
        what = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        await self.command("Input.dispatchKeyEvent", type="keyDown", text=text, **what)
        await self.command("Input.dispatchKeyEvent", type="keyUp", **what)

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.command("Input.insertText", text=text)

    async def look_like(self, *, width: int, height: int, dark: bool = False, calm: bool = False) -> None:
        """A window of this size in CSS pixels, and the person's preferences."""
        mobile = width < 600
        await self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=mobile
        )
        preferences = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if calm else "no-preference",
        }
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        await self.command("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Keep what is to be seen as a PNG: the window, or the whole page."""
        answer = await self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await trio.Path(path).write_bytes(base64.b64decode(answer["data"]))

    def take(self, method: str, params: Any) -> None:
        """Something has happened in the page."""
        if method == "Runtime.exceptionThrown":
            self.errors.append(_told(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert", "warning"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())
        elif method == "Network.webSocketFrameSent":
            self.sent += _documents(params)
        elif method == "Network.webSocketFrameReceived":
            self.received += _documents(params)
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Network.webSocketCreated":
            self.requested.append(params["url"])


def _told(details: Any) -> str:
    return str(details.get("exception", {}).get("description") or details["text"])


def _documents(params: Any) -> list[Any]:
    """The JSON of a message, a batch as its members; what is no JSON as the text it is."""
    try:
        document = json.loads(params["response"]["payloadData"])
    except ValueError:
        document = params["response"]["payloadData"]
    return document if isinstance(document, list) else [document]


class Browser:
    """A browser that has started. Made by `driving`."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._answers: dict[int, tuple[trio.Event, dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._contexts: list[str] = []

    async def command(self, method: str, params: dict[str, Any], session: str | None = None) -> Any:
        """A command of the DevTools protocol; its result. Raises Broken."""
        number = next(self._ids)
        answered, answer = self._answers[number] = trio.Event(), {}
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        await self._connection.send_message(json.dumps(message))
        with trio.fail_after(BOUND):
            await answered.wait()
        if "error" in answer:
            raise Broken(f"{method}: {answer['error']['message']}")
        return answer["result"]

    async def open(self, *, width: int = 1280, height: int = 900, dark: bool = False, calm: bool = False) -> Tab:
        """A new page with a storage of its own, as in a private window."""
        context = await self.command("Target.createBrowserContext", {})
        self._contexts.append(context["browserContextId"])
        target = await self.command(
            "Target.createTarget", {"url": "about:blank", "browserContextId": context["browserContextId"]}
        )
        attached = await self.command("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            await tab.command(f"{domain}.enable")
        await tab.look_like(width=width, height=height, dark=dark, calm=calm)
        return tab

    async def close_pages(self) -> None:
        """Close all pages that were opened here, and forget what they stored."""
        while self._contexts:
            await self.command("Target.disposeBrowserContext", {"browserContextId": self._contexts.pop()})

    async def listen(self) -> None:
        """Take what the browser says, until it says no more."""
        while True:
            try:
                message = json.loads(await self._connection.get_message())
            except ConnectionClosed:
                return
            if "id" in message:
                answered, answer = self._answers.pop(message["id"])
                answer.update(message)
                answered.set()
            elif message.get("sessionId") in self._tabs:
                self._tabs[message["sessionId"]].take(message["method"], message["params"])


@contextmanager
def chromium(folder: Path) -> Iterator[str]:
    """Start a browser that knows nothing but an empty `folder`; where to drive it. It does not outlive this context."""
    assert _PROGRAM is not None, "a test that needs a browser is marked with needs_chromium"
    command = [_PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    environ = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    # A group of its own: a browser is many processes, and all of them are to end with it.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ,
        start_new_session=True,
    )  # fmt: skip
    address: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_address, args=(process, address), daemon=True)
    reader.start()
    try:
        found = address.get(timeout=BOUND)
        if found is None:
            raise Broken("Chromium has ended before it said where it listens")
        yield found
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(BOUND)
        reader.join(BOUND)


def _read_address(process: subprocess.Popen[bytes], address: queue.SimpleQueue[str | None]) -> None:
    """Read what the browser says to its end: it must not wait for us. The address is among the first lines."""
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line.startswith(_LISTENING):
                address.put(line.removeprefix(_LISTENING).decode().strip())
    address.put(None)


@asynccontextmanager
async def driving(address: str) -> AsyncIterator[Browser]:
    """Drive the browser that is there; the pages that were opened, and what they stored, are gone afterwards."""
    async with trio.open_nursery() as nursery, open_websocket_url(address, max_message_size=_LARGEST) as connection:
        browser = Browser(connection)
        nursery.start_soon(browser.listen)
        try:
            yield browser
        finally:
            with trio.CancelScope(shield=True):
                await browser.close_pages()
        nursery.cancel_scope.cancel()
