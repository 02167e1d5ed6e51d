"""docs/carriers.md has a line for authorized_keys: with it, a key reaches the daemon and nothing else."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from docs.player import ROOT
from support.hearthd import BOUND
from system.test_ssh import HEARTH, SSHD, bench as bench, key

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None or shutil.which("ssh") is None,
        reason="no sshd here: apt-get install openssh-server openssh-client",
    ),
]

PAGE = (ROOT / "docs" / "carriers.md").read_text("utf-8")


@pytest.fixture(scope="module")
def restricted(bench):
    """The ssh of somebody who has such a key, with its options: for HEARTH_SSH."""
    folder = bench.known_hosts.parent
    mine = key(folder / "program")
    (line,) = re.findall(r"^restrict,.*$", PAGE, re.MULTILINE)
    public = " ".join((folder / "program.pub").read_text().split()[:2])
    line = re.sub(r"ssh-ed25519 \S+", public, line.replace("/opt/hearth/bin/hearth", f"{HEARTH}"))
    # The daemon of this test is not at its default place.
    line = line.replace(" --ready", f" --ready --socket {bench.daemon.socket}")
    with (folder / "authorized_keys").open("a") as file:
        file.write(line + "\n")
    return bench.ssh.replace(str(folder / "id"), str(mine))


@pytest.mark.proof
def test_the_key_of_the_page_reaches_the_daemon(bench, restricted) -> None:
    done = subprocess.run(
        [HEARTH, "--to", bench.address.partition("?")[0], "run", "gpio.get", "line=BUTTON", "--json"],
        env={"PATH": "/usr/bin:/bin", "HEARTH_SSH": restricted},
        capture_output=True, text=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert done.stdout.startswith('{"line":"BUTTON"'), done.stderr


def test_the_key_of_the_page_runs_nothing_else_and_forwards_nothing(bench, restricted) -> None:
    user, _, place = bench.address.removeprefix("ssh://").partition("/")[0].partition("@")
    host, _, port = place.partition(":")
    there = [*shlex.split(restricted), "-p", port, f"{user}@{host}"]
    asked = subprocess.run(
        [*there, "id; echo broken in"], input=b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n',
        capture_output=True, timeout=BOUND, check=False,
    )  # fmt: skip
    assert b"-32601" in asked.stdout, asked.stderr
    assert b"broken in" not in asked.stdout
    tunnel = subprocess.run(
        [*there[:-1], "-W", f"127.0.0.1:{port}", there[-1]], input=b"", capture_output=True, timeout=BOUND, check=False
    )
    assert tunnel.returncode != 0
    assert b"SSH-" not in tunnel.stdout
