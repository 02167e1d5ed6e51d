"""A daemon on a simulated board, and a folder over HTTP for a page of it: for the tests of examples/watch and hacp.js.

    python tests/examples/watch_serve.py

A hearthd that ends by itself is started again at the same place, so that a test sees what the page does about it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from hearth._util.python import python_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parents[2] / "examples" / "watch"
START_PATIENCE = 30.0
STOP_PATIENCE = 20.0
TOO_SOON = 3.0
TOO_OFTEN = 3
"""A daemon that ends so many times in a row, each within TOO_SOON seconds of its start, would only do it again."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
LISTENING = "hearthd: listening on "
READY = "hearthd: ready on "


class Failed(Exception):
    """The message says what went wrong, and what to do."""


# --- the page -------------------------------------------------------------------------------------------------------


def files_of(folder: Path) -> dict[str, tuple[str, bytes]]:
    """By path: the type and the content of what is served. Whatever is not in here does not exist."""
    found = {
        f"/{path.name}": (TYPES[path.suffix], path.read_bytes())
        for path in sorted(folder.iterdir())
        if path.suffix in TYPES and path.is_file()
    }
    return {"/": found["/index.html"], **found}


class Site(ThreadingHTTPServer):
    """This folder's files over HTTP, on loopback, to be read only."""

    daemon_threads = True

    def __init__(self, port: int, folder: Path = HERE) -> None:
        self.files = files_of(folder)
        super().__init__(("127.0.0.1", port), Page)

    @property
    def origin(self) -> str:
        """What a browser calls pages from here."""
        return f"http://127.0.0.1:{self.server_port}"


class Page(BaseHTTPRequestHandler):
    """One connection of a browser. Only GET and HEAD have a method here, so anything else is answered with 501."""

    protocol_version = "HTTP/1.1"
    server_version = "hearth-watch"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the file."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the file."""
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        assert isinstance(self.server, Site)
        found = self.server.files.get(urllib.parse.urlsplit(self.path).path)
        status = HTTPStatus.OK if found else HTTPStatus.NOT_FOUND
        kind, body = found or ("text/plain; charset=utf-8", b"There is no such page here.\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")  # a page's own meta tag cannot say this
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing: the terminal is for the daemon's words."""


@contextmanager
def served(port: int) -> Iterator[Site]:
    """Serve the page while the context lasts."""
    try:
        site = Site(port)
    except OSError as error:
        raise Failed(f"cannot serve on port {port}: {error.strerror}; choose another one with --port") from None
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.shutdown()
        site.server_close()


# --- the daemon -----------------------------------------------------------------------------------------------------


def config(folder: Path, listen: str, origins: list[str], token: str) -> str:
    """A hearth.toml. The token's digest is all that is in it; a JSON string is a TOML string, too."""
    digest = hashlib.sha256(token.encode()).hexdigest()
    return (
        f"[server]\nsocket = {json.dumps(str(folder / 'hearth.sock'))}\n"
        f'[board]\nprofile = "sim"\n'
        f"[audit]\npath = {json.dumps(str(folder / 'audit.log'))}\n"
        f"[websocket]\nlisten = {json.dumps(listen)}\norigins = {json.dumps(origins)}\n"
        f'[[policy]]\nname = "the page"\nmatch = {{ token_sha256 = "{digest}" }}\nmax_risk = 2\n'
    )


class Daemon:
    """A hearthd that is ready, and whose words go to our stderr. Raises Failed if it does not get that far."""

    def __init__(self, folder: Path, listen: str, origins: list[str], token: str) -> None:
        path = folder / "hearth.toml"
        path.write_text(config(folder, listen, origins, token), encoding="utf-8")
        # What a service manager has said to us is not meant for a daemon that we start.
        ours = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "RUNTIME_DIRECTORY", "STATE_DIRECTORY")
        # A session of its own: Ctrl-C in the terminal is for us, and we end it then, in order.
        self.process = subprocess.Popen(
            python_module("hearth.actors.daemon", "--config", str(path)),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if name not in ours},
            start_new_session=True,
        )
        self.address = ""
        """Where its [websocket] listener is: "ws://127.0.0.1:PORT"."""
        self.started = time.monotonic()
        self._said: list[str] = []
        self._heard = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        if not self._heard.wait(START_PATIENCE) or self.process.poll() is not None or not self.address:
            self.stop()
            raise Failed(f"hearthd did not become ready; it said: {''.join(self._said).strip() or 'nothing'}")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith(LISTENING + "ws://"):
                self.address = line.removeprefix(LISTENING).strip()
            if self._heard.is_set():
                print(line, end="", file=sys.stderr, flush=True)
            else:
                self._said.append(line)
            if line.startswith(READY):
                self._heard.set()
        self._heard.set()

    def when_ended(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with its exit code when it has ended, from another thread."""
        threading.Thread(target=lambda: tell(self.process.wait()), daemon=True).start()

    def stop(self) -> None:
        """End it; at once, if it does not end when asked to."""
        self.process.terminate()
        try:
            self.process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# --- both -----------------------------------------------------------------------------------------------------------


def new_token() -> str:
    """A bearer token: 256 random bits, of letters that a subprotocol may consist of."""
    return "hearth_" + secrets.token_urlsafe(32)


def address_of(site: Site, daemon: Daemon, token: str) -> str:
    """What to open. The token is in the fragment, which a browser keeps to itself."""
    return f"{site.origin}/#{urllib.parse.urlencode({'url': daemon.address, 'token': token}, safe=':/')}"


def run(port: int) -> None:
    """Both, until a signal ends them. Raises Failed."""
    happenings: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: happenings.put(None))
    token = new_token()
    with tempfile.TemporaryDirectory(prefix="hearth-watch-") as name, served(port) as site:
        folder = Path(name).resolve()
        origins = [site.origin, site.origin.replace("127.0.0.1", "localhost")]
        daemon = Daemon(folder, "127.0.0.1:0", origins, token)
        try:
            daemon.when_ended(happenings.put)
            print(f"hearthd runs (pid {daemon.process.pid}) and listens on {daemon.address}.")
            print("\nOpen this page; the address carries a token, so keep it to yourself:\n\n  ", end="")
            print(f"{address_of(site, daemon, token)}\n\nCtrl-C ends both.", flush=True)
            soon = 0
            while (code := happenings.get()) is not None:
                soon = soon + 1 if time.monotonic() - daemon.started < TOO_SOON else 0
                if soon == TOO_OFTEN:
                    raise Failed(f"hearthd has ended {soon} times just after it was started (exit code {code})")
                print(f"hearthd has ended (exit code {code}); starting it again.", flush=True)
                daemon = Daemon(folder, daemon.address.removeprefix("ws://"), origins, token)
                daemon.when_ended(happenings.put)
                print(f"hearthd runs again (pid {daemon.process.pid}).", flush=True)
        finally:
            daemon.stop()


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(description="Serve the page that watches a daemon on a simulated board.")
    parser.add_argument("--port", type=int, default=0, help="of the page; unless given, one that is free")
    chosen = parser.parse_args()
    try:
        run(chosen.port)
    except Failed as error:
        print(f"serve.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
