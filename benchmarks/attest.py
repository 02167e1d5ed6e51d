"""How long a statement takes (attest.quote), and how much longer a step takes because of one.

The daemon is loaded by one client that runs one step after the other; another one asks for statements, each with a new
nonce, almost as often as the daemon permits. With swtpm and tpm2-pytss the daemon has a TPM in software and each
statement a quote of it; without them the audit key alone signs, and the row says so. What a statement adds to a step is
the longest step during it, less the longest in an equal time between two statements: what others use of the machine is
in both.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec
from statistics import median
from typing import TYPE_CHECKING, TypeAlias

from attrs import frozen

from benchmarks.load import Client
from benchmarks.report import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.rates import Effort
    from benchmarks.servers import Servers

GOAL_MS = 50.0
DELAY_GOAL_MS = 5.0
PAUSE_S = 0.11
"""Between two questions: one principal may ask ten times a second."""
STEP = {"intent": "load", "steps": [{"tool": "gpio.set", "args": {"line": 17, "value": 1}}]}


@frozen
class Attested:
    """The time of statements beside a loaded daemon, and what they cost its steps."""

    name: str
    what: str

    def __call__(self, servers: Servers, effort: Effort) -> Iterator[Row]:
        """Measure."""
        with _tpm(servers.folder("tpm")) as tcti:
            more = "" if tcti is None else f'[attest]\ntpm = "{tcti}"\n'
            server = servers.hearthd(self.name, more=more)
            loading, asking = Client(server.address), Client(server.address)
            try:
                mine = asking.call("session.open")["session_id"]
                _ask(asking, mine)  # the files are hashed for the first one
                rounds = [_round(loading, asking, mine, max(2 * effort.seconds, 2.0)) for _ in range(effort.rounds)]
            finally:
                loading.close()
                asking.close()
        quotes = sorted(ended - began for _, asked in rounds for began, ended in asked)
        signed = "with a quote of swtpm" if tcti else "signed by the audit key alone: without swtpm or tpm2-pytss"
        p99 = quotes[round(0.99 * (len(quotes) - 1))]
        yield Row(
            self.name, self.what, p99, "ms", GOAL_MS, "at most", spread=(quotes[0], quotes[-1]),
            note=f"p50 {median(quotes):.2f} ms; {signed}; {len(quotes)} statements", detail={"quotes_ms": quotes},
        )  # fmt: skip
        added = sorted(delay for steps, asked in rounds for delay in _delays(steps, asked))
        steps = [ended - began for done, _ in rounds for began, ended in done]
        yield Row(
            f"{self.name}-steps", "the longest step during a statement, less that of an equal time without",
            median(added), "ms", DELAY_GOAL_MS, "at most", spread=(added[0], added[-1]),
            note=f"p90 {added[round(0.9 * (len(added) - 1))]:.2f} ms; {len(steps)} steps, p50 {median(steps):.2f} ms",
            detail={"added_ms": added},
        )  # fmt: skip


Span: TypeAlias = tuple[float, float]
"""Begin and end, in milliseconds of the monotonic clock."""


def _round(loading: Client, asking: Client, session: str, seconds: float) -> tuple[list[Span], list[Span]]:
    """Return the spans of steps, and of the statements beside them."""
    steps: list[Span] = []
    until = time.monotonic() + seconds
    thread = threading.Thread(target=lambda: steps.extend(_steps(loading, until)))
    thread.start()
    quotes = []
    while time.monotonic() < until - PAUSE_S:
        quotes.append(_ask(asking, session))
        time.sleep(PAUSE_S)
    thread.join()
    return steps, quotes


def _delays(steps: list[Span], quotes: list[Span]) -> Iterator[float]:
    """Yield, for each statement, the longest step during it less the longest in an equal time half a pause later."""
    for began, ended in quotes:
        shift = ended - began + PAUSE_S * 500
        beside, alone = (
            max((end - begin for begin, end in steps if end > low and begin < high), default=0.0)
            for low, high in ((began, ended), (began + shift, ended + shift))
        )
        yield beside - alone


def _now() -> float:
    return time.monotonic_ns() / 1e6


def _ask(client: Client, session: str) -> Span:
    began = _now()
    client.call("attest.quote", session_id=session, nonce=secrets.token_hex(32))
    return began, _now()


def _steps(client: Client, until: float) -> list[Span]:
    """Run one step after the other until a time of the monotonic clock, in seconds; return the spans of all."""
    session = client.call("session.open")["session_id"]
    found = []
    while time.monotonic() < until:
        began = _now()
        task_id = client.call("task.submit", session_id=session, task=STEP)["task_id"]
        while client.call("task.get", session_id=session, task_id=task_id)["status"] in ("QUEUED", "RUNNING"):
            pass
        found.append((began, _now()))
    client.call("session.close", session_id=session)
    return found


@contextmanager
def _tpm(directory: Path) -> Iterator[str | None]:
    """Yield the TCTI string of a TPM in software; None where there cannot be one."""
    if shutil.which("swtpm") is None or find_spec("tpm2_pytss") is None:
        yield None
        return
    places = (f"type=unixio,path={directory / name}" for name in ("s", "s.ctrl"))
    state, flags = f"dir={directory}", "not-need-init,startup-clear"
    server, control = places
    command = ("swtpm", "socket", "--tpm2", "--tpmstate", state, "--flags", flags)
    process = subprocess.Popen([*command, "--server", server, "--ctrl", control], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while not (directory / "s").exists():
            if time.monotonic() > until:
                raise RuntimeError("swtpm does not answer")
            time.sleep(0.01)
        yield f"swtpm:path={directory / 's'}"
    finally:
        process.terminate()
        process.wait()


ATTESTED = [Attested("attest", "a statement beside a loaded daemon, p99")]
