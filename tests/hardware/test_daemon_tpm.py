"""hearthd with a TPM of the kernel: a device /dev/tpmrmN, played by swtpm, which a confined daemon opens by itself."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import time
from pathlib import Path

import pytest
from support.hearthd import Hearthd, eventually
from support.swtpm import needs_tpm

from hearth.attest.statement import enrolled, verify
from hearth.audit.notes import Checkpoint

pytestmark = [pytest.mark.slow, needs_tpm]
SCRIPT = Path(__file__).parents[2] / "docs" / "verify-attest.sh"


@pytest.fixture
def device(tmp_path):
    """The path of a resource manager of a TPM that is there while the test runs."""
    state = tmp_path / "tpm"
    state.mkdir()
    # The guest's kernel has no filters of system calls, by which swtpm would confine itself.
    options = ("--vtpm-proxy", "--tpm2", "--tpmstate", f"dir={state}", "--seccomp", "action=none")
    played = subprocess.Popen(["swtpm", "chardev", *options], stdout=subprocess.PIPE, text=True)
    assert played.stdout is not None
    found = re.search(r"/dev/tpm(\d+)", played.stdout.readline())
    assert found is not None
    node = Path(f"/dev/tpmrm{found[1]}")
    eventually(node.exists, str(node))
    yield node
    played.terminate()
    played.wait(30)
    played.stdout.close()


def test_a_confined_daemon_quotes_with_the_kernels_tpm_and_foreign_code_accepts(device, tmp_path):
    # Its bytecode is the same at each start: in a checkout, imports write some.
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(tmp_path / "no-bytecode")}
    daemon = Hearthd(tmp_path, f'[attest]\ntpm = "{device}"\n', env).start()
    try:
        peer = daemon.peer()
        session = peer.open()

        def ask(nonce, **more):
            return peer.call("attest.quote", {"session_id": session, "nonce": nonce, **more})["result"]

        nonce = secrets.token_hex(32)
        key = peer.call("attest.key", {"session_id": session})["result"]
        known = enrolled(ask(nonce), key, nonce, time.time() + 60)
        nonce = secrets.token_hex(32)
        answer = ask(nonce, since=Checkpoint.parse(known.checkpoint).size)
        known = verify(answer, known, nonce, time.time())
        (tmp_path / "key.pem").write_text(known.public)
        (tmp_path / "ak.pem").write_text(known.ak)
        (tmp_path / "answer.json").write_text(json.dumps(answer, separators=(",", ":")) + "\n")
        command = ["sh", str(SCRIPT), "answer.json", nonce, "key.pem", "ak.pem"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.split(":")[0]) == (0, "ok"), done.stdout + done.stderr
        # The kernel's resource manager forgets the key of a daemon that was killed.
        for _ in range(4):
            daemon.hang_up()
            daemon.kill()
            daemon.start()
        peer = daemon.peer()
        session = peer.open()
        nonce = secrets.token_hex(32)
        verify(ask(nonce, since=Checkpoint.parse(known.checkpoint).size), known, nonce, time.time())
    finally:
        daemon.end()
