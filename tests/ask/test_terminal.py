"""`hearth ask` on a real terminal: the person decides, talks, interrupts, undoes. A process of its own on a pty."""

import contextlib
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from support.model_server import Silent, proposes, reads, says

pytestmark = pytest.mark.slow

HEARTH = Path(sys.executable).parent / "hearth"
LIGHT = ("gpio.set", {"line": "LED", "value": 1})
LONG = ("gpio.pulse", {"line": "RELAY", "value": 1, "duration_ms": 20_000})
BOUND = 50
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Takes its stdin for its controlling terminal, whose Ctrl-C then is a signal."""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process on a pty of its own, whose Ctrl-C is that of a keyboard."""

    def __init__(self, process, controller):
        self.process, self._controller = process, controller
        self.seen = ""
        self._from = 0

    def _read(self, left):
        if not select.select([self._controller], [], [], left)[0]:
            return False
        try:
            chunk = os.read(self._controller, 65536)
        except OSError:  # EIO: the last writer has closed the terminal
            return False
        self.seen += ESCAPE.sub("", chunk.decode("utf-8", "replace"))
        return bool(chunk)

    def wait_for(self, text):
        """Read on until this text has come, after what was waited for before."""
        limit = time.monotonic() + BOUND
        while (at := self.seen.find(text, self._from)) < 0:
            left = limit - time.monotonic()
            assert left > 0, f"{text!r} has not come: {self.seen[self._from :]!r}"
            assert self._read(left), f"it ended before {text!r}: {self.seen[self._from :]!r}"
        self._from = at + len(text)

    def type(self, text):
        os.write(self._controller, text.encode())

    def end(self):
        """Read until it ends; return the exit code."""
        while self._read(BOUND):
            pass
        return self.process.wait(BOUND)


@pytest.fixture
def terminal(asks, daemon, tmp_path):
    """Start `hearth ask --config … ARGS…` on a pty."""
    with contextlib.ExitStack() as stack:

        def start(*args):
            controller, far = pty.openpty()
            stack.callback(os.close, controller)
            ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
            environ = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1"}
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    CONTROLLED,
                    HEARTH,
                    "--socket",
                    daemon.socket,
                    "ask",
                    "--config",
                    asks.config,
                    *args,
                ],
                stdin=far,
                stdout=far,
                stderr=far,
                env=environ,
                start_new_session=True,
            )
            os.close(far)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return Terminal(process, controller)

        yield start


def transcript(tmp_path):
    (path,) = (tmp_path / "state/hearth/ask").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_person_is_asked_and_decides_also_on_a_tainted_plan(terminal, model, daemon, tmp_path, answer):
    (daemon.shared / "order").write_text("switch the LED on")
    model.script[:] = [
        reads("file.read", path=str(daemon.shared / "order")),
        proposes("light", LIGHT),
        says("It is on."),
    ]
    shown = terminal("read", "my order")
    shown.wait_for("Go on? [Y/n]")
    shown.type("\n")
    shown.wait_for("text from file.read has entered the conversation")
    shown.wait_for("Run this? [y/N]")
    assert not [one for one in transcript(tmp_path) if one["kind"] == "task"]
    shown.type(f"{answer}\n")
    if answer == "y":
        shown.wait_for("It is on.")
        shown.wait_for("SUCCESS  light  task ")
    assert shown.end() == (0 if answer == "y" else 1)
    lines = transcript(tmp_path)
    (decision,) = [one for one in lines if one["kind"] == "decision"]
    assert (decision["approved"], decision["by"]) == (answer == "y", "the person")
    approvals = daemon.records(event="plan.approve", plan_id=decision["plan_id"])
    assert len(approvals) == (answer == "y")
    # Given in another session than that of the conversation.
    (prepared,) = daemon.records(event="plan.prepare", plan_id=decision["plan_id"])
    assert not approvals or approvals[0]["session_id"] != prepared["session_id"]
    assert len([one for one in lines if one["kind"] == "task"]) == (answer == "y")


def test_ctrl_c_while_the_model_is_silent_says_that_nothing_runs(terminal, model, tmp_path):
    model.script[:] = [Silent()]
    shown = terminal("hello")
    shown.wait_for("Go on?")
    shown.type("\n")
    shown.wait_for("Let me")
    shown.type("\x03")
    shown.wait_for("interrupted: the model small is answering; nothing runs")
    assert shown.end() == 130
    assert [one["kind"] for one in transcript(tmp_path)] == ["start", "words", "error", "end"]


def test_ctrl_c_while_a_task_runs_says_what_runs_and_leaves_the_outputs_safe(terminal, model, daemon, tmp_path):
    model.script[:] = [proposes("close the relay for long", LONG)]
    shown = terminal("--yes-up-to", "2", "close the relay")
    shown.wait_for("Go on?")
    shown.type("\n")
    shown.wait_for("runs step 1 of 1 (gpio.pulse)")
    shown.type("\x03")
    shown.wait_for("interrupted: task ")
    shown.wait_for("is at step 1 of 1 (gpio.pulse)")
    assert shown.end() == 130
    (task,) = [one for one in daemon.records(event="task.finish") if one["status"] == "CANCELLED"][-1:]
    assert task["task_id"] in shown.seen


def test_a_conversation_plans_shows_undoes_halts_and_keeps_its_history(terminal, model, daemon, tmp_path):
    model.script[:] = [
        proposes("light", LIGHT),
        says("The LED is on."),
        reads("gpio.get", line="LED"),
        says("It is off now."),
        Silent(),
        says("Still here."),
    ]
    shown = terminal()
    shown.wait_for("Go on?")
    shown.type("\n")
    shown.wait_for("> ")
    for typed, said in [
        ("/plan", "there was none yet"),
        ("/undo", "there is nothing to undo"),
        ("/help", "/quit"),
        ("/tools", "gpio.set"),
        ("/plam", "did you mean /plan?"),
        ("/to\t", "gpio.set"),
    ]:
        shown.type(f"{typed}\n")
        shown.wait_for(said)
        shown.wait_for("> ")
    shown.type("light the LED\n")
    shown.wait_for("Run this? [y/N]")
    shown.type("y\n")
    shown.wait_for("The LED is on.")
    shown.wait_for("> ")
    shown.type("/plan\n")
    shown.wait_for("gpio.set")
    shown.type("/undo\n")
    shown.wait_for("undo: light")
    shown.wait_for("Run this? [y/N]")
    shown.type("y\n")
    shown.wait_for("> ")
    shown.type("is it off?\n")
    shown.wait_for("It is off now.")
    shown.type("think long\n")
    shown.wait_for("Let me")
    shown.type("\x03")
    shown.wait_for("interrupted: the model small is answering; nothing runs")
    shown.wait_for("> ")
    shown.type("go on\n")
    shown.wait_for("Still here.")
    shown.type("/cost\n")
    shown.wait_for("tokens read")
    before = len(daemon.records(event="halt"))
    shown.type("/halt status\n")
    shown.wait_for("halted  no")
    shown.type("/halt clear\n")
    shown.wait_for("nothing was halted: 'clear' alone is not a reason; `/halt reset` ends a halt")
    assert len(daemon.records(event="halt")) == before
    shown.type("/halt enough\n")
    shown.wait_for("halted")
    shown.wait_for("> ")
    shown.type("\x04")
    assert shown.end() == 0
    (result,) = [one for one in transcript(tmp_path) if one["kind"] == "read"]
    assert result["result"]["value"] == 0
    halt = daemon.records(event="halt")[-1]
    assert halt["reason"] == "enough"
    # Every call that the model has made has its result, also the one that was interrupted.
    history = (tmp_path / "state/hearth/ask/history").read_text()
    assert "light the LED" in history
    command = [HEARTH, "--socket", daemon.socket, "halt", "--reset"]
    subprocess.run(command, check=True, capture_output=True)  # for the tests after this one
