"""The runner, and real boots: exit statuses, limits, what the guest sees and what it may write."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from hardware import guest, kernel, suite

RUNNER = [sys.executable, str(kernel.HERE / "guest.py")]
BOUND = 60
"""Seconds that a boot may take on a machine that has much else to do; it takes less than one."""

pytestmark = pytest.mark.proof


@pytest.fixture(autouse=True, scope="module")
def _a_guest_can_run():
    try:
        kernel.check(None, 1024)
    except kernel.Missing as missing:
        pytest.skip(str(missing))


def run(*arguments, cwd=kernel.PROJECT, **env):
    return subprocess.run(
        [*RUNNER, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )


def test_the_exit_status_is_the_commands_own_and_its_output_comes_through():
    done = run("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout.splitlines()[:2] == ["out", "err"]
    assert "guest: exit status 7 after" in done.stderr


def test_a_command_that_is_not_found_ends_as_in_a_shell():
    done = run("--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stdout


def test_a_guest_past_its_time_is_killed():
    done = run("--timeout", 3, "--", "sleep", "1000")
    assert done.returncode == guest.TIMED_OUT
    assert "killed at the time limit after 3." in done.stderr


def test_a_guest_that_ends_without_a_report_is_told_from_one_that_failed():
    done = run("--", "/run/busybox", "poweroff", "-f")
    assert done.returncode == guest.NO_REPORT
    assert "ended without a report" in done.stderr


def test_a_kernel_that_panics_shows_it():
    done = run("--append", "rdinit=/gone", "--", "true")
    assert done.returncode == guest.NO_REPORT
    assert "Kernel panic" in done.stdout


def test_where_no_guest_can_run_the_reason_and_the_cure_are_all_that_is_said(tmp_path):
    done = run("--", "true", HEARTH_UML_KERNEL=str(tmp_path / "gone"))
    assert done.returncode == guest.CANNOT_RUN
    reason, cure = f"there is no kernel at {tmp_path}/gone", f"{kernel.BUILD} builds one and says what it needs"
    assert done.stderr == f"guest: cannot run: {reason}: {cure}\n"


def test_the_command_has_an_environment_of_its_own_and_no_input():
    code = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.stdin.read()]))"
    done = run("--", sys.executable, "-c", code, SOMETHING="of the host's", PYTEST_SOMETHING="passed on")
    env, cwd, read = json.loads(done.stdout.splitlines()[0])
    assert env["HEARTH_GUEST"] == "1"
    assert env["PYTEST_SOMETHING"] == "passed on"
    assert "SOMETHING" not in env
    assert (env["HOME"], env["TMPDIR"]) == ("/run/home", "/run/tmp")
    assert cwd == str(kernel.PROJECT)
    assert read == ""


def test_arguments_reach_the_command_as_they_were_given():
    words = ["two words", "it's", "$HOME", "*", "", "ä"]
    done = run("--", sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words)
    assert done.stdout.splitlines()[0] == ascii(words)


def test_only_what_is_written_to_the_folder_given_for_it_stays(tmp_path):
    out = tmp_path / "the out's"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = (
        f'cd "$HEARTH_GUEST_OUT" && pwd && echo kept > kept && echo lost > {elsewhere}/lost && cat {elsewhere}/lost'
    )
    done = run("--out", out, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[:2] == [str(out), "lost"]
    assert (out / "kept").read_text() == "kept\n"
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("folder", ["with space", "it's"])
def test_the_current_directory_may_be_anywhere_that_the_guest_sees(tmp_path, folder):
    cwd = tmp_path / folder
    cwd.mkdir()
    done = run("--", "pwd", cwd=cwd)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, str(cwd))


def test_what_the_guest_has_of_its_own_cannot_be_the_current_directory():
    done = run("--", "pwd", cwd="/dev/shm")
    assert done.returncode == guest.CANNOT_RUN
    assert "/dev/shm cannot be seen in the guest" in done.stderr


def test_a_folder_with_a_comma_is_refused(tmp_path):
    done = run("--out", tmp_path / "a,b", "--", "true")
    assert done.returncode == guest.CANNOT_RUN
    assert "has a comma in it" in done.stderr


def test_virtual_time_is_a_word_for_the_kernel():
    started = time.monotonic()
    done = run("--append", "time-travel=inf-cpu", "--", "sleep", "1000000")
    assert done.returncode == 0
    assert time.monotonic() - started < BOUND


def processes():
    """Every process that is more than what its parent has not waited for: (its id, its parent's, its group's)."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, group = path.read_text().rpartition(") ")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if state != "Z":
            yield int(path.parent.name), int(parent), int(group)


@pytest.fixture
def runner():
    """A runner whose guest has begun its command."""
    command = [*RUNNER, "--", "sh", "-c", "echo begun; sleep 1000"]
    with subprocess.Popen(command, cwd=kernel.PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_runner_that_is_ended_takes_its_guest_along(runner, number):
    groups = {group for _, parent, group in processes() if parent == runner.pid}
    assert groups
    runner.send_signal(number)
    runner.communicate(timeout=BOUND)
    assert runner.returncode != 0
    deadline = time.monotonic() + BOUND
    while any(group in groups for _, _, group in processes()):
        assert time.monotonic() < deadline, "the guest outlived its runner"
        time.sleep(0.02)


def shown_by(runner, until=None):
    """What appears on the terminal, up to some bytes of it, or to its end."""
    shown = b""
    while until is None or until not in shown:
        assert select.select([runner], [], [], BOUND)[0], shown
        try:
            shown += os.read(runner, 4096)
        except OSError:  # EIO: nobody has the terminal open any more
            return shown
    return shown


def test_an_interactive_command_has_the_terminal():
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        [*RUNNER, "--interactive", "--", "sh"], cwd=kernel.PROJECT, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    former = termios.tcgetattr(ours)
    assert shown_by(ours, until=b"# ")
    os.write(ours, b"echo $HEARTH_GUEST$((6*7)); tty; exit 5\n")
    rest = shown_by(ours)
    assert process.wait(BOUND) == 5
    assert b"142\r\n/dev/tty" in rest
    assert termios.tcgetattr(ours) == former, "the terminal is left as it was"
    os.close(ours)


MANY = """
import os, sys
paths = (os.path.join(folder, name) for folder, _, names in os.walk(sys.argv[1]) for name in names)
for number, path in zip(range(1500), paths):
    open(path, "rb").read(1)
print(number + 1)
"""


def test_the_guest_may_remember_more_files_than_a_shell_lets_a_process_open():
    command = [*RUNNER, "--", sys.executable, "-c", MANY, str(Path(pytest.__file__).parents[1])]
    limited = ["sh", "-c", 'ulimit -S -n 512; exec "$@"', "sh", *command]
    done = subprocess.run(limited, cwd=kernel.PROJECT, capture_output=True, text=True, timeout=BOUND, check=False)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1500"), done.stdout


def test_the_suite_that_cannot_run_says_why_in_one_line_and_does_not_fail(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HEARTH_UML_KERNEL", str(tmp_path / "gone"))
    monkeypatch.setattr(suite, "OUT", tmp_path / "out")
    assert suite.main([]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("hardware tests skipped: there is no kernel at")
    assert kernel.BUILD in last
