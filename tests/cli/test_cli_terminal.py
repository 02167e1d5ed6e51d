"""On a terminal: colours, a live table, lines that fit. The terminal is a real pty."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import orjson
import pytest

pytestmark = pytest.mark.slow

HEARTH = Path(sys.executable).parent / "hearth"
COLUMNS = 60
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(*args, **environ):
    """Run `hearth ARGS…` on a pty of 60 columns; its exit code and everything it wrote."""
    controller, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    names = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    with subprocess.Popen(
        [str(HEARTH), *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env={**clean, "TERM": "xterm-256color", **environ},
    ) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                chunk = os.read(controller, 65536)
            except OSError:  # EIO: the last writer has closed the terminal
                break
            if not chunk:
                break
            written += chunk
        os.close(controller)
        return process.wait(timeout=60), written.decode().replace("\r\n", "\n")


def test_a_table_fits_the_terminal_and_is_coloured(daemon):
    code, written = on_terminal("--socket", daemon.socket, "tools")
    assert code == 0
    assert "\x1b[1mname" in written
    assert max(len(_ESCAPE.sub("", line)) for line in written.splitlines()) <= COLUMNS


def test_no_color_is_respected(daemon):
    code, written = on_terminal("--socket", daemon.socket, "tools", NO_COLOR="1")
    assert code == 0
    assert "\x1b" not in written


@pytest.mark.proof
def test_watching_shows_a_live_table_that_ends_as_the_task_does(daemon, tmp_path):
    plan = tmp_path / "plan.json"
    steps = [
        {"tool": "gpio.pulse", "args": {"line": 17, "value": 1, "duration_ms": 2500}},
        {"tool": "i2c.read", "args": {"bus": 1, "addr": "0x33", "len": 1}},
        {"tool": "gpio.get", "args": {"line": 17}},
    ]
    plan.write_bytes(orjson.dumps({"intent": "blink", "steps": steps}))
    code, written = on_terminal("--socket", daemon.socket, "plan", "submit", "--watch", plan)
    assert code == 1
    frames = _ESCAPE.sub("", written)
    assert "RUNNING" in frames
    last = frames[frames.rindex("#") :].splitlines()
    assert [line.split()[:3] for line in last if line[:1].isdigit()] == [
        ["0", "gpio.pulse", "SUCCESS"],
        ["1", "i2c.read", "FAILED"],
        ["2", "gpio.get", "CANCELLED"],
    ]
    assert last[-1].startswith("FAILED  blink  ")


def test_a_task_submitted_elsewhere_is_watched_live_too(daemon, local_cli, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_bytes(orjson.dumps({"intent": "x", "steps": [{"tool": "gpio.get", "args": {"line": 3}}]}))
    reference = local_cli("plan", "submit", "--detach", plan).out.strip()
    code, written = on_terminal("--socket", daemon.socket, "tasks", "watch", reference)
    assert code == 0
    assert "gpio.get  " in written
    assert "line=3 value=0" in _ESCAPE.sub("", written)


@pytest.mark.proof
def test_the_demo_is_played_in_colours():
    code, written = on_terminal("demo", "--fast")
    shown = _ESCAPE.sub("", written)
    assert code == 0, shown
    assert "✓" in shown
    assert "✗" not in shown
    assert max(len(line) for line in shown.splitlines() if line.startswith("   ")) <= COLUMNS
    assert re.search(r"\n\d+ claims, each checked, in [0-9.]+ s\.", shown)


def test_a_job_is_watched_with_a_bar_under_what_has_happened(daemon, tmp_path):
    job = tmp_path / "job.json"
    inputs = {"samples": 4, "interval_s": 0.2}
    job.write_bytes(
        orjson.dumps({"capability": "bench-climate-survey", "caller_id": "c", "intent": "look", "inputs": inputs})
    )
    code, written = on_terminal("--socket", daemon.socket, "hcp", "submit", "--watch", job)
    assert code == 0
    text = _ESCAPE.sub("", written)
    assert "━" in text
    for said in ("accepted", "checkpoint", "COMPLETED", "readings"):
        assert said in text
    assert text.rstrip().splitlines()[-1].split() == ["checkpoints", "4"]


def test_a_file_that_a_job_has_left_is_not_poured_onto_the_terminal(daemon):
    code, written = on_terminal("--socket", daemon.socket, "hcp", "artifact", "hcp://s/artifacts/plot.png")
    assert code == 2
    assert "-o FILE" in written
