"""Processes: listed from made-up and real machines, signalled if allowed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hearth.drivers import process as module
from hearth.drivers.base import Style
from hearth.drivers.process import MAX_LISTED, ProcessDriver
from hearth.errors import DeviceError, PermissionDenied

PYTHON = Path(sys.executable).resolve()


# --- listing -----------------------------------------------------------------------------------------------------


@pytest.fixture
def proc(tmp_path):
    def add(pid, name, *, ppid=1, state="S", uid=0, ticks=0, pages=0, argv=()):
        at = tmp_path / str(pid)
        at.mkdir()
        stat = f"{pid} ({name}) {state} {ppid} {pid} {pid} 0 -1 0 0 0 0 0 {ticks} {ticks} 0 0 20 0 1 0 99 0 {pages} 0\n"
        at.joinpath("stat").write_bytes(stat.encode(errors="surrogateescape"))
        at.joinpath("status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n", errors="replace")
        at.joinpath("cmdline").write_bytes(b"".join(part.encode() + b"\0" for part in argv))

    (tmp_path / "meminfo").touch()
    add.root = tmp_path
    return add


def test_a_process_is_told_with_its_owner_state_cpu_time_and_memory(proc):
    proc(77, "tmux: (server) x", ppid=5, state="D", uid=0, ticks=150, pages=3)
    (row,) = ProcessDriver(proc=proc.root, show_users=True).processes()["processes"]
    assert row == {
        "pid": 77,
        "ppid": 5,
        "name": "tmux: (server) x",
        "user": "root",
        "state": "disk-sleep",
        "cpu_s": 300 / os.sysconf("SC_CLK_TCK"),
        "rss_bytes": 3 * os.sysconf("SC_PAGE_SIZE"),
    }


@pytest.mark.parametrize(("sort", "pids"), [("cpu", [3, 1, 2]), ("memory", [2, 1, 3]), ("pid", [1, 2, 3])])
def test_the_greatest_users_come_first(proc, sort, pids):
    proc(1, "a", ticks=1, pages=2)
    proc(2, "b", ticks=1, pages=9)
    proc(3, "c", ticks=2, pages=1)
    assert [row["pid"] for row in ProcessDriver(proc=proc.root).processes(sort=sort)["processes"]] == pids


def test_the_list_is_bounded_and_says_so(proc):
    for pid in range(1, 8):
        proc(pid, "worker")
    found = ProcessDriver(proc=proc.root).processes(limit=3)
    assert [row["pid"] for row in found["processes"]] == [1, 2, 3]
    assert (found["total"], found["matched"], found["truncated"]) == (7, 7, True)


@pytest.mark.slow
def test_no_limit_lifts_the_bound(proc):
    for pid in range(1, MAX_LISTED + 2):
        proc(pid, "worker")
    assert len(ProcessDriver(proc=proc.root).processes(limit=10**6)["processes"]) == MAX_LISTED


def test_users_are_not_told_nor_can_they_be_guessed_unless_they_are_disclosed(proc):
    proc(1, "robotd")
    driver = ProcessDriver(proc=proc.root)
    (row,) = driver.processes(name="robot")["processes"]
    assert "user" not in row
    for user in ("root", "nobody"):
        with pytest.raises(PermissionDenied, match=r"disclose = \["):
            driver.processes(user=user)


def test_names_and_users_narrow_the_list(proc):
    nobody = 4_000_000_000
    proc(1, "robotd")
    proc(2, "robot-arm", uid=nobody)
    proc(3, "shell", uid=nobody)
    driver = ProcessDriver(proc=proc.root, show_users=True)
    found = driver.processes(name="robot", user=str(nobody))
    assert [row["pid"] for row in found["processes"]] == [2]
    assert (found["total"], found["matched"], found["truncated"]) == (3, 1, False)
    assert [row["pid"] for row in driver.processes(user="root")["processes"]] == [1]


def test_command_lines_are_hidden_unless_the_operator_shows_them(proc):
    proc(1, "mysql", argv=("mysql", "--password=secret"))
    proc(2, "kthread")
    (hidden, _) = ProcessDriver(proc=proc.root).processes(sort="pid")["processes"]
    (shown, kernel) = ProcessDriver(proc=proc.root, show_argv=True).processes(sort="pid")["processes"]
    assert "argv" not in hidden
    assert shown["argv"] == ["mysql", "--password=secret"]
    assert kernel["argv"] == []


def test_a_long_command_line_is_cut(proc):
    proc(1, "java", argv=("x" * 10_000,))
    (row,) = ProcessDriver(proc=proc.root, show_argv=True).processes()["processes"]
    assert row["argv"] == ["x" * 4096]


def test_processes_that_end_while_they_are_listed_are_left_out(proc):
    for pid in (1, 2, 3, 4):
        proc(pid, "a", argv=("a",))
    (proc.root / "1/stat").unlink()
    (proc.root / "2/status").unlink()
    (proc.root / "3/cmdline").unlink()
    (proc.root / "4/status").write_text("Name:\ta\n")
    rows = ProcessDriver(proc=proc.root, show_argv=True).processes()["processes"]
    assert [(row["pid"], row["argv"]) for row in rows] == [(3, [])]


def test_a_name_that_is_no_text_and_a_state_that_is_new_are_told_as_well_as_can_be(proc):
    proc(1, "caf\udce9", state="Q")
    (row,) = ProcessDriver(proc=proc.root).processes()["processes"]
    assert (row["name"], row["state"]) == ("caf\N{REPLACEMENT CHARACTER}", "Q")


def test_without_proc_the_error_names_the_cure(tmp_path):
    with pytest.raises(DeviceError, match="is /proc mounted and readable") as caught:
        ProcessDriver(proc=tmp_path / "proc").processes()
    assert caught.value.data["effect"] == "none"


def test_this_very_process_is_on_the_list():
    rows = ProcessDriver().processes(limit=MAX_LISTED, sort="pid")["processes"]
    (own,) = [row for row in rows if row["pid"] == os.getpid()]
    assert own["ppid"] == os.getppid()
    assert own["rss_bytes"] > 0


def test_the_driver_blocks_in_threads_of_its_own():
    driver = ProcessDriver()
    assert (driver.style, driver.width, driver.describe()) == (Style.THREAD, 2, {"kind": "processes"})


# --- signalling --------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    """A child of ours that proc.exec did not start."""
    with subprocess.Popen([PYTHON, "-I", "-S", "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def allowed(*paths):
    return ProcessDriver(signal_executables=paths)


def test_a_process_of_a_listed_executable_gets_the_signal(sleeper):
    sent = allowed(Path("/nonexistent"), PYTHON).send_signal(sleeper.pid, "SIGTERM")
    assert sent["pid"] == sleeper.pid
    assert sent["signal"] == "SIGTERM"
    assert sent["name"]
    assert sleeper.wait(60) == -signal.SIGTERM


def test_a_link_to_the_executable_may_be_listed_too(sleeper, tmp_path):
    link = tmp_path / "planner"
    link.symlink_to(PYTHON)
    allowed(link).send_signal(sleeper.pid, "SIGKILL")
    assert sleeper.wait(60) == -signal.SIGKILL


def test_another_file_of_the_same_name_is_not_the_listed_executable(sleeper, tmp_path):
    (tmp_path / PYTHON.name).touch()
    with pytest.raises(PermissionDenied) as caught:
        allowed(tmp_path / PYTHON.name).send_signal(sleeper.pid, "SIGKILL")
    assert caught.value.data["pid"] == sleeper.pid
    assert "[tools] signal does not list its executable" in caught.value.data["reason"]
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [1, os.getpid()], ids=["init", "itself"])
def test_init_and_hearth_itself_are_never_signalled(pid):
    with pytest.raises(PermissionDenied, match="may not be signalled: this is"):
        allowed(PYTHON, Path("/proc/1/exe")).send_signal(pid, "SIGHUP")


def test_a_process_that_is_not_there_had_no_effect(sleeper):
    sleeper.kill()
    sleeper.wait(60)
    with pytest.raises(DeviceError, match="No such process") as caught:
        allowed(PYTHON).send_signal(sleeper.pid, "SIGTERM")
    assert caught.value.data == {"effect": "none", "pid": sleeper.pid}


def test_a_process_that_ends_while_it_is_judged_is_not_replaced_by_its_successor(sleeper, tmp_path):
    driver = ProcessDriver(proc=tmp_path, signal_executables=(PYTHON,))  # its entry in /proc is gone
    with pytest.raises(DeviceError, match="has ended") as caught:
        driver.send_signal(sleeper.pid, "SIGKILL")
    assert caught.value.data["effect"] == "none"
    assert sleeper.poll() is None


def test_the_kernels_refusal_is_a_refusal(sleeper, monkeypatch):
    def refuse(_pidfd, _number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(PermissionDenied, match="the kernel does not let this user signal it"):
        allowed(PYTHON).send_signal(sleeper.pid, "SIGTERM")


def test_only_a_few_signals_can_be_sent():
    assert set(module.SIGNALS) == {"SIGHUP", "SIGINT", "SIGTERM", "SIGKILL", "SIGUSR1", "SIGUSR2"}
