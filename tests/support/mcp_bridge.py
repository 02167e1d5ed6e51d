"""`hearth mcp` with signs of life that no test needs to wait five seconds for: mcp_bridge.py ADDRESS STATE SECONDS."""

from __future__ import annotations

import sys
from pathlib import Path

from hearth.actors.bridges.mcp.server import all_offers
from hearth.actors.bridges.mcp.stdio import DaemonConnection
from hearth.cli.common import interruptible
from hearth.cli.mcp_bridge import bridge
from hearth.transport.address import parse

if __name__ == "__main__":
    address, state, beat = sys.argv[1:]
    offers = all_offers(Path(state), principal=lambda _ask: "test", beat=float(beat))
    sys.exit(interruptible(lambda: bridge(DaemonConnection(parse(address)), offers)))
