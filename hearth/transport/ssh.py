"""The SSH transport: the system's `ssh` runs `hearth connect` on the other machine, and its pipes are the connection.

SSH authenticates the caller; the daemon there sees the user of the login. This module owns the command line, the child
process, and the meaning of its exit status and last stderr lines. No part of an address can become an option of ssh or
a second word in the remote shell.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import trio

from hearth._util.streams import accompanied
from hearth.errors import CarrierError, ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from hearth.transport.address import SshAddress

CONNECT: Final = 10
"""Seconds that ssh may take to reach the other machine."""
DEADLINE: Final = 60.0
"""Seconds until the daemon there must be reached: a person may have to type a password or touch a security key."""
OPTIONS: Final = (
    "-T",
    # Turn off settings for interactive use of this host, as scp does.
    *("-x", "-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no"),
    *("-o", "PermitLocalCommand=no", "-o", "RemoteCommand=none"),
    # A dead link is detected within 30 s, as with the other carriers.
    *("-o", f"ConnectTimeout={CONNECT}", "-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3"),
)
EXIT_TIMEOUT_S = 2.0
"""Seconds that ssh may take to end by itself; then it gets SIGTERM, and after the same time again SIGKILL."""
STDERR_KEPT: Final = 4096
"""Number of the last bytes of stderr that are kept."""
READY: Final = b"\n"
"""The first output of `hearth connect --ready`: an empty line, which the protocol ignores (draft §2.2)."""

_CURES = (
    ("host key verification failed", "`{by_hand}`, once by hand, shows the host's key and asks whether it is right"),
    ("remote host identification has changed", "the host's key is not the one that is known; find out why"),
    ("permission denied", "`{by_hand}` must work without hearth first; `ssh-copy-id` gives the host your key"),
    ("too many authentication failures", "`{by_hand}` must work without hearth first; ssh-add -l lists your keys"),
    ("could not resolve hostname", "look at the name; ~/.ssh/config may have an alias for it"),
    ("connection refused", "is sshd running there, and on that port?"),
    ("timed out", "is it on, and does a firewall let ssh through?"),
    ("no route to host", "is it on, and on this network?"),
)
"""(part of ssh's error message, cure) pairs."""


def command(address: SshAddress, environ: Mapping[str, str]) -> list[str]:
    """Return the argv. HEARTH_SSH names another ssh, with options that override hearth's. Raises ConfigError."""
    try:
        program = shlex.split(environ.get("HEARTH_SSH") or "ssh")
    except ValueError as error:
        raise ConfigError(f"HEARTH_SSH: {error}; for example HEARTH_SSH='ssh -F /etc/robot/ssh_config'") from None
    found = shutil.which(program[0], path=environ.get("PATH")) if program else None
    if found is None:
        name = program[0] if program else "HEARTH_SSH"
        raise ConfigError(f"{name}: there is no such program; install openssh-client, or name one with HEARTH_SSH")
    port = [] if address.port is None else ["-p", str(address.port)]
    user = [] if address.user is None else ["-l", address.user]
    return [found, *program[1:], *OPTIONS, *port, *user, "--", address.host, remote_command(address)]


def remote_command(address: SshAddress) -> str:
    """Return the command line for the remote shell, with each word quoted, so that the shell expands none.

    Only a leading ~/ of the command is left for that shell to expand. Raises ConfigError.
    """
    try:
        words = shlex.split(address.hearth or "hearth")
    except ValueError as error:
        raise ConfigError(f"{address.place}: hearth={address.hearth}: {error}") from None
    if not words:
        raise ConfigError(f"{address.place}: hearth= names no command")
    home = "~/" if words[0].startswith("~/") else ""
    words[0] = words[0].removeprefix(home)
    socket = [] if address.socket is None else ["--socket", address.socket]
    return home + shlex.join([*words, "connect", "--ready", *socket])


class SshStream(trio.abc.HalfCloseableStream):
    """The pipes of a running ssh."""

    def __init__(self, process: trio.Process, address: SshAddress) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert isinstance(process.stderr, trio.lowlevel.FdStream)
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._address = address
        self._said = bytearray()
        self._received = b""
        self._ready = False

    async def wait_ready(self) -> None:
        """Wait until the remote `hearth connect` has reached the daemon. Raises CarrierError."""
        try:
            with trio.fail_after(DEADLINE):
                first = bytes(await self._stdout.receive_some())
        except trio.TooSlowError:
            late = f"no daemon answers at {self._address.place} within {DEADLINE:g} s"
            raise CarrierError(late + self._words()) from None
        if not first:
            await self._exit()
            raise CarrierError(f"cannot connect to {self._address.place}: {self._why()}")
        if not first.startswith(READY):
            shown = _printable(first.decode(errors="replace"))[:80]
            cure = "remove what the login shell there prints without a terminal, or send it to stderr"
            raise CarrierError(f"cannot connect to {self._address.place}: it says {shown!r} before hearth does; {cure}")
        self._received = first.removeprefix(READY)
        self._ready = True

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio.abc.SendStream."""
        try:
            await self._stdin.send_all(data)
        except trio.BrokenResourceError:
            await self._exit()
            raise trio.BrokenResourceError(f"{self._address.place}: {self._why()}") from None

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.SendStream."""
        await self._stdin.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """See trio.abc.HalfCloseableStream."""
        await self._stdin.aclose()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See trio.abc.ReceiveStream. Raises BrokenResourceError, with the reason, if ssh ended with an error."""
        if self._received:
            await trio.lowlevel.checkpoint()
            data, self._received = self._received[:max_bytes], self._received[len(self._received[:max_bytes]) :]
            return data
        data = bytes(await self._stdout.receive_some(max_bytes))
        if not data:
            await self._exit()
            if self._process.returncode:
                raise trio.BrokenResourceError(f"{self._address.place}: {self._why()}")
        return data

    async def aclose(self) -> None:
        """Close the pipes and end the process, at the latest after 2 × EXIT_TIMEOUT_S seconds by SIGKILL."""
        with trio.CancelScope(shield=True):
            # No task reads any more: close stdout first, or ssh would block on the output that it still holds.
            await self._stdout.aclose()
            await self._stdin.aclose()
            if not self._ready:
                self._process.terminate()  # an ssh that is still connecting does not notice the closed pipes
            for end in (self._process.terminate, self._process.kill):
                with trio.move_on_after(EXIT_TIMEOUT_S):
                    await self._process.wait()
                if self._process.returncode is not None:
                    break
                end()
            await self._process.wait()
            await self._stderr.aclose()
        await trio.lowlevel.checkpoint()

    async def read_stderr(self) -> None:
        """Read stderr as it comes, so that ssh can always write there; runs in the background of the stream's user."""
        with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
            async for some in self._stderr:
                self._keep(bytes(some))

    def _keep(self, some: bytes) -> None:
        self._said += some
        del self._said[:-STDERR_KEPT]

    async def _exit(self) -> None:
        """Wait up to EXIT_TIMEOUT_S seconds for the process, whose pipes have ended, and read the rest of stderr."""
        with trio.move_on_after(EXIT_TIMEOUT_S):
            await self._process.wait()
        # Read only what is there, not up to the end: another process, such as ssh's master connection, may hold the
        # pipe open.
        with suppress(OSError):
            while some := os.read(self._stderr.fileno(), STDERR_KEPT):
                self._keep(some)

    def _lines(self) -> list[str]:
        text = self._said.decode(errors="replace")
        return [line for line in map(_printable, text.splitlines()) if line]

    def _words(self) -> str:
        """Return the last line of stderr, as the rest of a sentence."""
        return "".join(f"; it says: {line}" for line in self._lines()[-1:])

    def _why(self) -> str:
        """Return why ssh ended, with the cure."""
        status, lines = self._process.returncode, self._lines()
        if status is None:
            return "ssh has closed its end" + self._words()
        if status < 0:
            return f"ssh was ended by {signal.Signals(-status).name}"
        if status == 127:
            name = self._address.hearth or "hearth"
            cure = "install it there, or say where it is: ssh://HOST?hearth=/path/to/hearth"
            return f"there is no command {name} for those who come by ssh (exit 127{self._words()}); {cure}"
        # The remote `hearth` names its own cure; a cure from here could differ.
        remote = [line.removeprefix("hearth: ") for line in lines if line.startswith("hearth: ")]
        if status != 255 and remote:
            return remote[-1]
        if status == 0:
            return "it ended at once; is it `hearth connect` that runs there?" + self._words()
        cure = next((cure for words, cure in _CURES if any(words in line.lower() for line in lines)), "")
        by_hand = shlex.join(_by_hand(self._address))
        cure = cure.format(by_hand=by_hand) or f"`{by_hand}` by hand may say more"
        return f"{lines[-1] if lines else 'it failed'} (ssh, exit {status}); {cure}"


def _by_hand(address: SshAddress) -> list[str]:
    port = [] if address.port is None else ["-p", str(address.port)]
    return ["ssh", *port, address.host if address.user is None else f"{address.user}@{address.host}"]


def _printable(text: str) -> str:
    return re.sub(r"\s+", " ", "".join(each if each.isprintable() else " " for each in text)).strip()


@asynccontextmanager
async def open_ssh(address: SshAddress) -> AsyncIterator[SshStream]:
    """Connect by ssh. Raises CarrierError if the daemon there is not reached, and ConfigError if there is no ssh."""
    # Ctrl-C reaches every process at the terminal, and must not end the connection before its session is closed.
    # Children of a shell inherit its ignored signals, and ssh respects that. ssh must stay in this process group, or it
    # could not ask for a password.
    argv = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command(address, os.environ)]
    try:
        process = await trio.lowlevel.open_process(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise CarrierError(f"cannot connect to {address.place}: cannot start ssh: {error.strerror}") from None
    stream = SshStream(process, address)
    async with accompanied(stream, stream.read_stderr):
        await stream.wait_ready()
        yield stream
