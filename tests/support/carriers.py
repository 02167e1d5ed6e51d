"""A runtime behind each carrier there is: real sockets on loopback, real TLS, a real child process on pipes.

`Exposed` opens the daemon's own listeners over a runtime in this process and knows, for every carrier and every proof
of who calls, the address that a client connects to. Its raw streams are made without hearth's client: what a test says
on one is exactly what is on the wire.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from urllib.parse import urlencode

import trio
import trio_websocket
from attrs import evolve
from support.doubles import MemoryCarrier, MemoryStream, Pipe
from support.pki import CLIENT, Bench, certify, name
from support.users import ordinary_user

import hearth
from hearth._util.exceptions import unwrapped
from hearth.actors.connection import Connection
from hearth.actors.daemon.listen import open_listeners
from hearth.actors.listeners import unix
from hearth.actors.listeners.accept import ConnectionLimiter
from hearth.actors.transport import PeerGone
from hearth.client.connection import Client
from hearth.config.listen import Endpoint, TlsConfig, WebSocketConfig
from hearth.config.model import Config
from hearth.policy.principal import Principal, from_token
from hearth.policy.rules import Match, PolicyEntry

KINDS = ("memory", "unix", "tls", "ws", "wss", "stdio")
USUAL = {"memory": "uid", "unix": "uid", "stdio": "uid", "ws": "uid", "tls": "cert:arm-7", "wss": "cert:arm-7"}
"""The proof with which each carrier is used where a test does not care."""
TOKENS = {"alice": "hearth_alice-of-the-tests", "bob": "hearth_bob-of-the-tests"}
HERE = PolicyEntry(name="here", match=Match(any=True), max_risk=2, max_risk_ceiling=3)
DEFAULTS = Config().limits
BIN = Path(sys.executable).parent


class Papers(Bench):
    """What clients show and what the server does: a bench's certificates, some clients', and tokens, as files."""

    def __init__(self, folder):
        super().__init__(folder)
        self.clients = {
            "arm-7": self.named("arm-7", "arm-7", "arm-7.local"),
            "arm-8": self.named("arm-8", "arm-8", "arm-8.local"),
            # The same subject, for another machine.
            "arm-7b": self.named("arm-7b", "arm-7", "spare.local"),
        }
        for who, token in TOKENS.items():
            self.private(self.token_file(who), token + "\n")

    def named(self, file, common, *sans):
        """A client's certificate: CN=common,O=Acme, in files of another name."""
        subject = name(common, "Acme")
        return self.write(file, *certify(subject, self.authority, purposes=(CLIENT,), sans=sans))

    def token_file(self, who):
        return self.folder / f"{who}.token"

    def query(self, kind, proof=None):
        """What an address of this carrier has behind its place, to prove to be this one."""
        what, _, who = (proof or USUAL[kind]).partition(":")
        files = {"ca": self.ca} if kind in ("tls", "wss") else {}
        if what == "token":
            files["token_file"] = self.token_file(who)
        elif what == "cert":
            files["cert"], files["key"] = self.clients[who]
        return f"?{urlencode(files)}" if files else ""

    @staticmethod
    def private(path, content):
        path.touch(mode=0o600)
        path.write_text(content)


_SSH_TO_HERE = """\
#!/bin/sh
while :; do
    case "$1" in
        -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        --) shift; break ;;
        -*) shift ;;
        *) break ;;
    esac
done
shift  # the host
[ "$1" = -- ] && shift
PATH=BIN:$PATH
exec sh -c "$*"  # as sshd does: one string, for the user's shell
"""


def ssh_to_here(directory):
    """A program that stands in for `ssh`: drops options and the host, and runs the command line on this machine."""
    script = directory / "ssh-to-here"
    script.write_text(_SSH_TO_HERE.replace("BIN", shlex.quote(str(BIN))))
    script.chmod(0o755)
    return script


class Exposed:
    """A runtime that is served over some carriers while its context lasts; made by `exposed`."""

    def __init__(self, runtime, directory, papers, limits, nursery):
        self.runtime = runtime
        self.papers = papers
        self.refused = []
        """(carrier, peer, reason) of every peer that could not prove who it is."""
        self.connections = set()
        """Connections of peers that have been let in."""
        self.streams = []
        self.listeners = {}
        self._directory = directory
        self._nursery = nursery
        self._config = Config(limits=limits)
        self._limiter = ConnectionLimiter(limits.max_connections)

    # --- serving ------------------------------------------------------------------------------------------------

    def open(self, kind):
        """Open the listener of a carrier. Every one has a Unix socket too, as a daemon has."""
        socket_ = self._directory / f"{kind}.sock"
        listening = unix.bind(socket_)
        tokens = [PolicyEntry(name=who, match=Match(token_sha256=self.digest(who))) for who in TOKENS]
        opened = open_listeners(
            self._configured(kind), tokens, listening, socket_, lambda *refusal: self.refused.append(refusal)
        )
        for listener in opened:
            self._nursery.start_soon(self._accept, listener)
        self.listeners[kind] = opened[-1]

    def _configured(self, kind):
        config, papers = self._config, self.papers
        anywhere = Endpoint("127.0.0.1", 0)
        if kind == "tls":
            section = TlsConfig(
                listen=anywhere, cert=papers.server_cert, key=papers.server_key, client_ca=papers.ca
            )
            return evolve(config, tls=section)
        if kind == "ws":
            return evolve(config, websocket=WebSocketConfig(listen=anywhere))
        if kind == "wss":
            section = WebSocketConfig(
                listen=anywhere, cert=papers.server_cert, key=papers.server_key, client_ca=papers.ca
            )
            return evolve(config, websocket=section)
        return config

    def for_everybody(self, kind):
        """Let other users of this machine connect to a carrier's Unix socket."""
        (self._directory / f"{kind}.sock").chmod(0o666)

    @staticmethod
    def digest(who):
        return from_token(TOKENS[who]).token_sha256

    async def _accept(self, listener):
        try:
            async with trio.open_nursery() as connections:
                await listener.accept_all(connections, self._limiter, self._serve)
        finally:
            listener.close()

    async def _serve(self, carrier, principal):
        limits = self._config.limits
        connection = Connection(
            carrier,
            principal,
            self.runtime,
            max_outstanding=limits.max_outstanding,
            max_document_bytes=limits.max_document_bytes,
            max_batch=limits.max_batch,
            max_values=limits.max_values,
        )
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)

    # --- connecting ---------------------------------------------------------------------------------------------

    def address(self, kind, proof=None):
        """What `hearth.connect` takes to connect over this carrier and prove to be this one."""
        if kind == "stdio":
            return f"ssh://here{self._directory / 'stdio.sock'}"
        return self.listeners[kind].address + self.papers.query(kind, proof)

    @asynccontextmanager
    async def connect(self, kind, proof=None):
        """hearth's own client over this carrier."""
        if kind != "memory":
            async with hearth.connect(self.address(kind, proof)) as client:
                yield client
            return
        async with unwrapped() as body, trio.open_nursery() as nursery:
            client = Client(self._memory())
            nursery.start_soon(client._write)
            nursery.start_soon(client._read)
            async with body.watched():
                yield client
            await client._settle()
            nursery.cancel_scope.cancel()

    async def raw(self, kind, proof=None):
        """A stream of lines that hearth's client has no part in, for `support.world.RawClient`; closed at the end."""
        stream = await self._raw(kind, proof)
        self.streams.append(stream)
        return stream

    async def _raw(self, kind, proof):
        what, _, who = (proof or USUAL[kind]).partition(":")
        as_whom = ordinary_user() if what == "nobody" else nullcontext()
        if kind == "memory":
            return self._memory()
        if kind == "stdio":
            return await PipedStream.start("--to", f"unix:{self._directory / 'stdio.sock'}")
        if kind == "unix":
            # The kernel notes who connects when it does; it does at once, since there is room in the queue.
            connecting = socket.socket(socket.AF_UNIX)
            with as_whom:
                connecting.connect(str(self._directory / "unix.sock"))
            return trio.SocketStream(trio.socket.from_stdlib_socket(connecting))
        host, _, port = self.listeners[kind].address.partition("://")[2].partition(":")
        with as_whom:
            # And whose a TCP socket is when it is made.
            connecting = trio.socket.socket()
        await connecting.connect((host, int(port)))
        stream = trio.SocketStream(connecting)
        if kind in ("tls", "wss"):
            pair = self.papers.clients[who] if what == "cert" else None
            context = self.papers.client_context(pair, anonymous=pair is None)
            stream = trio.SSLStream(stream, context, server_hostname=host)
            await stream.do_handshake()
        if kind == "tls":
            return stream
        headers = [("Authorization", f"Bearer {TOKENS[who]}")] if what == "token" else []
        connection = await trio_websocket.wrap_client_stream(
            self._nursery,
            stream,
            f"{host}:{port}",
            "/",
            subprotocols=["hacp.v0"],
            extra_headers=headers,
            max_message_size=64 << 20,
        )
        return MessageStream(connection)

    def _memory(self):
        to_server, to_client = Pipe(), Pipe(1 << 20)
        carrier = MemoryCarrier(to_server, to_client, PeerGone, self._config.limits.send_timeout_s)
        principal = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid())
        self._nursery.start_soon(self._serve, carrier, principal)
        return MemoryStream(to_server, to_client)


@asynccontextmanager
async def exposed(runtime, directory, papers, *kinds, limits=DEFAULTS):
    """Serve a runtime over these carriers while the body runs: listeners first, connections end with it."""
    async with unwrapped() as body, trio.open_nursery() as nursery:
        over = Exposed(runtime, directory, papers, limits, nursery)
        for kind in kinds:
            if kind != "memory":
                over.open(kind)
        try:
            async with body.watched():
                yield over
        finally:
            for stream in over.streams:
                await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


async def vanish(stream):
    """End a raw stream as a machine does that lost its power, or a program that was killed: nobody says goodbye."""
    if isinstance(stream, PipedStream):
        stream.process.kill()
        await stream.process.wait()
        return
    if isinstance(stream, MessageStream):
        stream = stream.connection._stream
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    await stream.aclose()


class MessageStream(trio.abc.Stream):
    """A WebSocket as a stream of lines: each line that is sent is a message, each message that comes is a line."""

    def __init__(self, connection):
        self.connection = connection

    async def send_all(self, data):
        try:
            for line in data.split(b"\n"):
                if line:
                    await self.connection.send_message(_text(line))
        except trio_websocket.ConnectionClosed:
            raise trio.BrokenResourceError from None

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes=None):
        del max_bytes
        try:
            message = await self.connection.get_message()
            return (message.encode() if isinstance(message, str) else message) + b"\n"
        except trio_websocket.ConnectionClosed as closed:
            if closed.reason is None or closed.reason.code == 1006:
                raise trio.BrokenResourceError from None
            return b""

    async def aclose(self):
        try:
            await self.connection.aclose()
        finally:
            await trio.aclose_forcefully(self.connection._stream)


def _text(line):
    """A text message; a binary one, if that is all that it can be."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return bytes(line)


class PipedStream(trio.abc.HalfCloseableStream):
    """`hearth connect` as a child on pipes."""

    @classmethod
    async def start(cls, *arguments):
        started = cls()
        started.process = await trio.lowlevel.open_process(
            [BIN / "hearth", "connect", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return started

    async def send_all(self, data):
        await self.process.stdin.send_all(data)

    async def wait_send_all_might_not_block(self):
        await self.process.stdin.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes=None):
        return await self.process.stdout.receive_some(max_bytes)

    async def send_eof(self):
        await self.process.stdin.aclose()

    async def aclose(self):
        with trio.CancelScope(shield=True):
            await self.process.stdin.aclose()
            await self.process.stdout.aclose()
            with trio.move_on_after(10):
                await self.process.wait()
                return
            self.process.kill()
            await self.process.wait()
