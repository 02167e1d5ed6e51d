"""A TPM 2.0 in software (swtpm), on a Unix socket that a TCTI string names; and the reason to skip without one."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.hearthd import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("swtpm", "tpm2_checkquote", "openssl")
needs_tpm = pytest.mark.skipif(
    find_spec("tpm2_pytss") is None or any(shutil.which(name) is None for name in PROGRAMS),
    reason="a TPM in software, and a library to reach it: "
    "apt-get install swtpm tpm2-tools libtss2-dev gcc openssl, and then make tpm",
)


class SoftwareTpm:
    """One TPM; `tcti` is its name for hearthd, and for tpm2-tools (TPM2TOOLS_TCTI)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tcti = f"swtpm:path={directory / 's'}"
        self.start()

    def start(self) -> None:
        """Start it: as a machine that was switched on, with the same keys and its registers empty."""
        state = self.directory / "state"
        state.mkdir(exist_ok=True)
        places = {"--server": self.directory / "s", "--ctrl": self.directory / "s.ctrl"}
        sockets = [word for option, path in places.items() for word in (option, f"type=unixio,path={path}")]
        started = ("--flags", "not-need-init,startup-clear")
        command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", *sockets, *started]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually((self.directory / "s").exists, "the TPM's socket")

    def stop(self) -> None:
        """Switch it off."""
        self._process.terminate()
        self._process.wait(30)
        for name in ("s", "s.ctrl"):
            (self.directory / name).unlink(missing_ok=True)

    def run(self, *command: str) -> str:
        """Run one of tpm2-tools with it; return what it prints."""
        done = subprocess.run([*command, "-T", self.tcti], check=True, capture_output=True, text=True, timeout=60)
        return done.stdout


@contextlib.contextmanager
def software_tpm() -> Iterator[SoftwareTpm]:
    """Yield a TPM of its own, in a directory with a short name: a socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="tpm") as directory:
        tpm = SoftwareTpm(Path(directory))
        try:
            yield tpm
        finally:
            tpm.stop()
