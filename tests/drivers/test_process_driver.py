"""Processes: listed from made-up and real machines, run within every bound that is promised, signalled if allowed."""

import inspect
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from hearth.config_exec import ExecParam, ExecTemplate
from hearth.drivers import process as module
from hearth.drivers.base import Style
from hearth.drivers.process import MARK, MAX_LISTED, ProcessDriver
from hearth.drivers.process_child import Capture
from hearth.errors import DeviceError, InvalidParams, PermissionDenied

PYTHON = Path(sys.executable).resolve()


def python(code, *arguments, **options):
    """A template that runs Python code; `sys.argv[1:]` are the arguments."""
    argv = (str(PYTHON), "-I", "-S", "-c", inspect.cleandoc(code), *map(str, arguments))
    return ExecTemplate(argv=tuple(part.replace("{", "{{").replace("}", "}}") for part in argv), **options)


def execute(template, params=None, driver=None):
    return (driver or ProcessDriver()).execute("t", template, params or {})


def wait_until_gone(pid):
    """Wait, within bounds, for the end of a process that is not our child."""
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pinned, select.POLLIN)
        assert poll.poll(20_000), f"process {pid} is still there"
    finally:
        os.close(pinned)


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


# --- running: results --------------------------------------------------------------------------------------------


def test_a_program_tells_what_it_printed_and_how_it_ended():
    outcome = execute(python("import sys; print('né'); print('oh', file=sys.stderr); sys.exit(3)"))
    assert outcome["template"] == "t"
    assert (outcome["exit_code"], outcome["signal"], outcome["timed_out"]) == (3, None, False)
    assert outcome["stdout"] == {"text": "né\n", "bytes": 4, "truncated": False}
    assert outcome["stderr"] == {"text": "oh\n", "bytes": 3, "truncated": False}
    assert outcome["duration_ms"] > 0


def test_a_program_that_a_signal_ended_is_told_by_its_signal():
    outcome = execute(python("import os; os.kill(os.getpid(), 6)"))
    assert (outcome["exit_code"], outcome["signal"]) == (None, "SIGABRT")


def test_a_real_time_signal_is_told_by_its_number():
    outcome = execute(python("import os; os.kill(os.getpid(), 40)"))
    assert outcome["signal"] == "SIG40"


def test_output_beyond_the_bound_is_counted_and_dropped():
    outcome = execute(python("print('x' * 300_000, end='')", max_output_bytes=10))
    assert outcome["stdout"] == {"text": "x" * 10, "bytes": 300_000, "truncated": True}


def test_a_program_that_closes_its_output_is_still_waited_for():
    outcome = execute(python("import os; os.close(1); os.close(2); os._exit(5)"))
    assert outcome["exit_code"] == 5


def test_bytes_that_are_no_text_come_as_base64():
    outcome = execute(python("import os; os.write(1, b'\\xff\\x00')"))
    assert outcome["stdout"] == {"base64": "/wA=", "bytes": 2, "truncated": False}


def test_a_cut_inside_a_character_drops_that_character():
    capture = Capture(4)
    for chunk in ("né".encode()[:2], "né".encode()[2:], "é".encode()):
        capture.feed(chunk)
    assert capture.to_json() == {"text": "né", "bytes": 5, "truncated": True}


# --- running: the surroundings -----------------------------------------------------------------------------------


def test_a_program_gets_a_minimal_environment_no_input_and_no_open_files(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "hunter2")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = """
        import os, sys
        print(sorted(os.environ.items()), os.getcwd(), os.getsid(0) == os.getpgid(0) == os.getpid())
        print(sys.stdin.read(), [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')])
        """
        outcome = execute(python(code, env={"PATH": "/opt/bin", "EXTRA": "1", MARK: "forged"}, cwd=tmp_path))
    environment = [("EXTRA", "1"), (MARK, f"{os.getpid()}/t"), ("LANG", "C.UTF-8"), ("PATH", "/opt/bin")]
    assert outcome["stdout"]["text"] == f"{environment} {tmp_path} True\n []\n"


def test_parameters_reach_the_program_as_single_arguments():
    template = ExecTemplate(
        argv=(str(PYTHON), "-I", "-c", "import sys; print(sys.argv[1:])", "{a}", "--b={b}"),
        params={"a": ExecParam(pattern="(?s:.*)"), "b": ExecParam(enum=("$(id)", "2"))},
    )
    outcome = execute(template, {"a": "x; rm -rf / && 'y'", "b": "$(id)"})
    assert outcome["stdout"]["text"] == repr(["x; rm -rf / && 'y'", "--b=$(id)"]) + "\n"


def test_a_refused_parameter_starts_nothing(tmp_path):
    template = ExecTemplate(argv=("/usr/bin/touch", "{p}"), params={"p": ExecParam(enum=(str(tmp_path / "a"),))})
    with pytest.raises(InvalidParams):
        execute(template, {"p": str(tmp_path / "b")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (ExecTemplate(argv=("/nonexistent",)), "/nonexistent cannot be started: No such file or directory"),
        (ExecTemplate(argv=("/",)), "/ cannot be started: Permission denied"),
        (ExecTemplate(argv=("/bin/sh",), cwd=Path("/nonexistent")), "No such file or directory: /nonexistent"),
    ],
)
def test_a_program_that_cannot_be_started_had_no_effect_and_names_its_template(template, told):
    with pytest.raises(DeviceError) as caught:
        execute(template)
    assert told in str(caught.value)
    assert str(caught.value).endswith("look at [tools.exec] t")
    assert caught.value.data == {"effect": "none", "template": "t"}


def test_a_kernel_without_pidfds_starts_nothing(monkeypatch, tmp_path):
    def refuse(_pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(DeviceError, match="Function not implemented") as caught:
        execute(ExecTemplate(argv=("/usr/bin/touch", str(tmp_path / "a"))))
    assert caught.value.data["effect"] == "none"
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_cannot_be_watched_is_killed_and_nobody_knows_what_it_did(monkeypatch):
    real, calls = os.pidfd_open, []

    def refuse_the_second(pid):
        calls.append(pid)
        if len(calls) == 2:
            raise OSError(24, "Too many open files")
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", refuse_the_second)
    with pytest.raises(DeviceError, match="was killed: it could not be watched: Too many open files") as caught:
        execute(python("import signal; signal.pause()"))
    assert caught.value.data["effect"] == "unknown"
    with pytest.raises(ProcessLookupError):
        os.kill(calls[1], 0)


# --- running: the end --------------------------------------------------------------------------------------------


class ClockThatWaitsFor:
    """Time stands still until the program has said that it is ready, and is then `after` seconds later."""

    def __init__(self, file, after):
        self._file, self._after = file, after

    def __call__(self):
        return self._after if self._file.exists() else 0.0


READY = "open(sys.argv[1], 'w').close(); print('ready', flush=True)"


def test_a_program_that_overruns_its_time_is_asked_to_end(tmp_path):
    code = f"""
    import signal, sys
    signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(7)))
    {READY}
    while True: signal.pause()
    """
    ready = tmp_path / "ready"
    driver = ProcessDriver(clock=ClockThatWaitsFor(ready, after=10.0))
    outcome = execute(python(code, ready, timeout_ms=10_000), driver=driver)
    assert (outcome["exit_code"], outcome["signal"], outcome["timed_out"]) == (7, None, True)
    assert outcome["stdout"]["text"] == "ready\nbye\n"


def test_a_program_that_does_not_end_when_asked_is_killed(tmp_path):
    code = f"""
    import signal, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {READY}
    while True: signal.pause()
    """
    ready = tmp_path / "ready"
    driver = ProcessDriver(clock=ClockThatWaitsFor(ready, after=10.0 + module.TERM_GRACE_MS / 1000))
    outcome = execute(python(code, ready, timeout_ms=10_000), driver=driver)
    assert (outcome["exit_code"], outcome["signal"], outcome["timed_out"]) == (None, "SIGKILL", True)


def test_real_time_runs_out_too():
    outcome = execute(python("import signal; signal.pause()", timeout_ms=50))
    assert (outcome["signal"], outcome["timed_out"]) == ("SIGTERM", True)


def test_what_the_program_left_in_its_group_does_not_outlive_it():
    code = """
    import os, signal
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: signal.pause()
    print(child)
    """
    outcome = execute(python(code))
    assert outcome["exit_code"] == 0
    wait_until_gone(int(outcome["stdout"]["text"]))


ESCAPE = """
import os, signal, sys
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.write(tell, b'x')
    {act}
os.read(ready, 1)
print(child, file=sys.stderr)
"""


@pytest.mark.parametrize("act", ["signal.pause()", "while True: os.write(1, b'x' * 4096)"], ids=["silent", "flooding"])
def test_a_program_that_has_left_the_group_cannot_hold_the_transaction(act):
    outcome = execute(python(ESCAPE.replace("{act}", act)))
    escaped = int(outcome["stderr"]["text"])
    try:
        assert outcome["exit_code"] == 0
    finally:
        os.kill(escaped, signal.SIGKILL)
        wait_until_gone(escaped)


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
    assert sleeper.wait(20) == -signal.SIGTERM


def test_a_link_to_the_executable_may_be_listed_too(sleeper, tmp_path):
    link = tmp_path / "planner"
    link.symlink_to(PYTHON)
    allowed(link).send_signal(sleeper.pid, "SIGKILL")
    assert sleeper.wait(20) == -signal.SIGKILL


def test_another_file_of_the_same_name_is_not_the_listed_executable(sleeper, tmp_path):
    (tmp_path / PYTHON.name).touch()
    with pytest.raises(PermissionDenied) as caught:
        allowed(tmp_path / PYTHON.name).send_signal(sleeper.pid, "SIGKILL")
    assert caught.value.data["pid"] == sleeper.pid
    assert "[tools] signal does not list its executable" in caught.value.data["reason"]
    assert sleeper.poll() is None


def test_a_child_in_a_session_of_its_own_is_not_taken_for_one_that_proc_exec_started():
    pause = [PYTHON, "-I", "-S", "-c", "import signal; signal.pause()"]
    with subprocess.Popen(pause, start_new_session=True, env={MARK: f"{os.getpid() + 1}/t"}) as process:
        try:
            with pytest.raises(PermissionDenied):
                ProcessDriver().send_signal(process.pid, "SIGKILL")
            assert process.poll() is None
        finally:
            process.kill()


def test_a_process_that_hides_its_environment_is_not_taken_for_ours(sleeper, proc):
    proc(sleeper.pid, "sleeper", ppid=os.getpid())
    with pytest.raises(PermissionDenied):
        ProcessDriver(proc=proc.root).send_signal(sleeper.pid, "SIGKILL")
    assert sleeper.poll() is None


@pytest.mark.parametrize("pid", [1, os.getpid()], ids=["init", "itself"])
def test_init_and_hearth_itself_are_never_signalled(pid):
    with pytest.raises(PermissionDenied, match="may not be signalled: this is"):
        allowed(PYTHON, Path("/proc/1/exe")).send_signal(pid, "SIGHUP")


def test_a_process_that_is_not_there_had_no_effect(sleeper):
    sleeper.kill()
    sleeper.wait(20)
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


async def test_a_program_that_proc_exec_runs_can_be_signalled_but_not_its_own_children(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = """
    import os, signal, sys
    child = os.fork()
    if child == 0:
        signal.pause()
    with open(sys.argv[1], 'w') as file:
        print(os.getpid(), child, file=file)
    signal.pause()
    """
    driver, outcomes = ProcessDriver(), []

    async def run():
        outcomes.append(await trio.to_thread.run_sync(execute, python(code, fifo), None, driver))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            told = await trio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)
            leader, child = map(int, told.split())
            with pytest.raises(PermissionDenied):
                ProcessDriver().send_signal(child, "SIGTERM")
            ProcessDriver().send_signal(leader, "SIGUSR1")  # a driver of another bus knows it as well
    assert (outcomes[0]["signal"], outcomes[0]["timed_out"]) == ("SIGUSR1", False)
    wait_until_gone(child)


def test_only_a_few_signals_can_be_sent():
    assert set(module.SIGNALS) == {"SIGHUP", "SIGINT", "SIGTERM", "SIGKILL", "SIGUSR1", "SIGUSR2"}
