"""The daemon under soak: a hearthd as it is shipped, on the simulated board, with every listener that is installed.

It owns the daemon's configuration and its process. The numbers that are smaller than a default make happen in minutes
what takes a deployment days: the log is rotated, sessions die of silence, jobs are forgotten.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from soak import accidents
from support.carriers import TOKENS, Papers
from support.dialing import listeners
from support.hearthd import Hearthd

from hearth.policy.principal import from_token

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

IDLE_TTL = 5
SHUTDOWN_GRACE = 10
ENDS_WITHIN = 20.0
"""Seconds from SIGTERM to the end: `shutdown_grace_s`, and as much again for what is due to connections and the log."""
HTTP = all(find_spec(name) is not None for name in ("starlette", "mcp", "prometheus_client"))
"""Whether the extra `mcp` is installed; without it nobody calls over HTTP."""

LIMITS = f"""
[limits]
idle_ttl_s = {IDLE_TTL}
max_sessions_per_principal = 400
max_connections = 400
shutdown_grace_s = {SHUTDOWN_GRACE}
close_grace_s = 1
send_timeout_s = 4
task_history = 32
max_retained_bytes = 16_777_216
handshake_timeout_s = 3

[hcp]
retention_s = 20
max_jobs_per_principal = 8
"""


class Deployment:
    """A daemon, and the way to it for others. `folder` should be short: a socket is in it."""

    def __init__(self, folder: Path, rotate_bytes: int) -> None:
        self.folder = folder
        self.share = folder / "share"
        self.share.mkdir()
        papers = folder / "papers"
        papers.mkdir()
        self.papers = Papers(papers)
        site = folder / "site"
        site.mkdir()
        accidents.install(site)
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
        config = "\n".join((listeners(self.papers), self._http(), self._tables()))
        self.daemon = Hearthd(
            folder, config, {"PYTHONPATH": path}, audit=f"rotate_bytes = {rotate_bytes}\ncheckpoint_every = 200"
        )

    def _http(self) -> str:
        return '[http]\nlisten = "127.0.0.1:0"\n' if HTTP else ""

    def _tables(self) -> str:
        share, enabled = json.dumps(str(self.share)), json.dumps(list(accidents.NAMES))
        told = [f"[files]\nread = [{share}]\nwrite = [{share}]", f"[tools]\nenable = {enabled}", LIMITS]
        for name, match in (
            ("us", f"uid = {os.geteuid()}"),
            ("hoarder", f'token_sha256 = "{from_token(TOKENS["bob"]).token_sha256}"'),
            ("alice", f'token_sha256 = "{from_token(TOKENS["alice"]).token_sha256}"'),
            ("arm", 'cert_subject = "CN=arm-7,O=Acme"'),
        ):
            rate = '{ "sys.memory" = "2/s", "*" = "999999/s" }'
            told.append(f'[[policy]]\nname = "{name}"\nmatch = {{ {match} }}\nmax_risk_ceiling = 3\nrate = {rate}')
        return "\n".join(told)

    def start(self) -> Deployment:
        """Start the daemon and wait until it is ready."""
        self.daemon.start()
        return self

    def way(self) -> Mapping[str, Any]:
        """What a crowd in another process must know, as JSON: see `soak.crowd`."""
        return {
            "socket": str(self.daemon.socket),
            "listening": self.daemon.listening,
            "ca": str(self.papers.ca),
            "certificate": [str(part) for part in self.papers.clients["arm-7"]],
            "token": TOKENS["alice"],
            "hoarder": TOKENS["bob"],
            "share": str(self.share),
        }
