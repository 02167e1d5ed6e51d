"""A runtime behind each carrier there is: real sockets on loopback, real TLS, a real child process on pipes.

`Carriers` opens hearthd's listeners over a world of `support.world` and knows, for every carrier and every proof of who
calls, the address that a client connects to. Its raw streams are made without hearth's client: what a test says
on one is exactly what is on the wire.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import trio
import trio_websocket
from attrs import evolve
from support.pki import CLIENT, Bench, certify, name
from support.users import ordinary_user
from support.world import Listening, listening

import hearth
from hearth.config.listen import Endpoint, TlsConfig, WebSocketConfig
from hearth.policy.principal import Principal, from_token
from hearth.policy.rules import Match, PolicyEntry

KINDS = ("memory", "unix", "tls", "ws", "wss", "stdio")
USUAL = {"memory": "uid", "unix": "uid", "stdio": "uid", "ws": "uid", "tls": "cert:arm-7", "wss": "cert:arm-7"}
"""The proof with which each carrier is used where a test does not care."""
TOKENS = {"alice": "hearth_alice-of-the-tests", "bob": "hearth_bob-of-the-tests"}
OWN = Principal(kind="unix", uid=os.geteuid(), gid=os.getegid())
"""Whose connections in memory are."""
HERE = PolicyEntry(name="here", match=Match(any=True), max_risk=2, max_risk_ceiling=3, rights=["reset_halt", "observe"])
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


def ssh_to_here(directory, programs=BIN):
    """A program that stands in for `ssh`: drops options and the host, and runs the command line on this machine.

    `programs`: the directory of the `hearth` that it finds there.
    """
    script = directory / "ssh-to-here"
    script.write_text(_SSH_TO_HERE.replace("BIN", shlex.quote(str(programs))))
    script.chmod(0o755)
    return script


class Carriers(Listening):
    """A world behind some carriers, and the way to it over each; made by `exposed`."""

    def __init__(self, papers, *more):
        super().__init__(*more)
        self.papers = papers
        self.listeners = {}
        """By carrier."""
        self.streams = []

    def open_carrier(self, kind):
        """Open the listener of a carrier. Every one has a Unix socket too, as a daemon has."""
        papers, anywhere = self.papers, Endpoint("127.0.0.1", 0)
        secure = {"listen": anywhere, "cert": papers.server_cert, "key": papers.server_key, "client_ca": papers.ca}
        sections = {
            "tls": lambda: {"tls": TlsConfig(**secure)},
            "ws": lambda: {"websocket": WebSocketConfig(listen=anywhere)},
            "wss": lambda: {"websocket": WebSocketConfig(**secure)},
        }
        config = evolve(self.world.config, **sections.get(kind, dict)())
        tokens = [PolicyEntry(name=who, match=Match(token_sha256=self.digest(who))) for who in TOKENS]
        self.listeners[kind] = self.open(config, policy=tokens, name=kind)

    @staticmethod
    def digest(who):
        return from_token(TOKENS[who]).token_sha256

    # --- connecting ---------------------------------------------------------------------------------------------

    def address(self, kind, proof=None):
        """What `hearth.connect` takes to connect over this carrier and prove to be this one."""
        if kind == "stdio":
            return f"ssh://here{self.directory / 'stdio.sock'}"
        return self.listeners[kind].address + self.papers.query(kind, proof)

    @asynccontextmanager
    async def connect(self, kind, proof=None):
        """hearth's own client over this carrier."""
        if kind != "memory":
            async with hearth.connect(self.address(kind, proof)) as client:
                yield client
            return
        async with self.world.client(OWN, room=1 << 20) as client:
            yield client

    async def raw(self, kind, proof=None):
        """A stream of lines that hearth's client has no part in, for `support.world.RawClient`; closed at the end."""
        stream = await self._raw(kind, proof)
        self.streams.append(stream)
        return stream

    async def _raw(self, kind, proof):
        what, _, who = (proof or USUAL[kind]).partition(":")
        as_whom = ordinary_user() if what == "nobody" else nullcontext()
        if kind == "memory":
            return self.world.pipes(OWN, room=1 << 20, send_timeout=self.world.limits.send_timeout_s)
        if kind == "stdio":
            return await PipedStream.start("--to", f"unix:{self.directory / 'stdio.sock'}")
        if kind == "unix":
            # The kernel notes who connects when it does; it does at once, since there is room in the queue.
            connecting = socket.socket(socket.AF_UNIX)
            with as_whom:
                connecting.connect(str(self.directory / "unix.sock"))
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
            self.world.nursery,
            stream,
            f"{host}:{port}",
            "/",
            subprotocols=["hacp.v0"],
            extra_headers=headers,
            max_message_size=64 << 20,
        )
        return MessageStream(connection)


@asynccontextmanager
async def exposed(world, *kinds, directory, papers):
    """Serve a world over these carriers while the body runs; connections end with it."""
    async with listening(world, directory, partial(Carriers, papers)) as over:
        for kind in kinds:
            if kind != "memory":
                over.open_carrier(kind)
        try:
            yield over
        finally:
            for stream in over.streams:
                await trio.aclose_forcefully(stream)


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
