"""Programs that the launcher starts: run within every bound that is promised, and ended with all that they started."""

from __future__ import annotations

import contextlib
import inspect
import os
import select
import sys
import threading
from pathlib import Path

import pytest

from hearth.config.exec import ExecParam, ExecTemplate
from hearth.drivers.launcher import MARK
from hearth.drivers.process import ProcessDriver
from hearth.drivers.programs import Capture, LauncherClient, ProgramDriver, Stopping
from hearth.errors import DeviceError, InvalidParams, PermissionDenied

PYTHON = Path(sys.executable).resolve()
BOUND = 60


def python(code, *arguments, **options):
    """A template that runs Python code; `sys.argv[1:]` are the arguments."""
    argv = (str(PYTHON), "-I", "-S", "-c", inspect.cleandoc(code), *map(str, arguments))
    return ExecTemplate(argv=tuple(part.replace("{", "{{").replace("}", "}}") for part in argv), **options)


@pytest.fixture
def launched(tmp_path, unmeasured):
    """Makes drivers, each with a launcher of its own, for one template that is not confined."""
    with contextlib.ExitStack() as stack:

        def launch(template, record=None):
            record = record or tmp_path / f"programs-{len(list(tmp_path.glob('programs-*')))}"
            launcher = LauncherClient({"t": template}, None, record)
            stack.callback(launcher.close)
            driver = ProgramDriver(launcher)
            driver.open()
            return driver

        yield launch


@pytest.fixture
def execute(launched):
    def run(template, params=None, stopping=None):
        return launched(template).execute("t", template, params or {}, stopping)

    return run


def wait_until_gone(pid):
    """Wait, within bounds, for the end of a process that is not our child."""
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(pinned, select.POLLIN)
        assert poll.poll(BOUND * 1000), f"process {pid} is still there"
    finally:
        os.close(pinned)


# --- results -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_tells_what_it_printed_and_how_it_ended(execute):
    outcome = execute(python("import sys; print('né'); print('oh', file=sys.stderr); sys.exit(3)"))
    assert outcome["template"] == "t"
    assert (outcome["exit_code"], outcome["signal"], outcome["timed_out"]) == (3, None, False)
    assert outcome["stdout"] == {"text": "né\n", "bytes": 4, "truncated": False}
    assert outcome["stderr"] == {"text": "oh\n", "bytes": 3, "truncated": False}
    assert outcome["duration_ms"] > 0


@pytest.mark.slow
def test_a_program_that_a_signal_ended_is_told_by_its_signal(execute):
    outcome = execute(python("import os; os.kill(os.getpid(), 6)"))
    assert (outcome["exit_code"], outcome["signal"]) == (None, "SIGABRT")


@pytest.mark.slow
def test_a_real_time_signal_is_told_by_its_number(execute):
    outcome = execute(python("import os; os.kill(os.getpid(), 40)"))
    assert outcome["signal"] == "SIG40"


@pytest.mark.slow
def test_output_beyond_the_bound_is_counted_and_dropped(execute):
    outcome = execute(python("print('x' * 300_000, end='')", max_output_bytes=10))
    assert outcome["stdout"] == {"text": "x" * 10, "bytes": 300_000, "truncated": True}


@pytest.mark.slow
def test_a_program_that_closes_its_output_is_still_waited_for(execute):
    outcome = execute(python("import os; os.close(1); os.close(2); os._exit(5)"))
    assert outcome["exit_code"] == 5


@pytest.mark.slow
def test_bytes_that_are_no_text_come_as_base64(execute):
    outcome = execute(python("import os; os.write(1, b'\\xff\\x00')"))
    assert outcome["stdout"] == {"base64": "/wA=", "bytes": 2, "truncated": False}


def test_a_cut_inside_a_character_drops_that_character():
    capture = Capture(4)
    for chunk in ("né".encode()[:2], "né".encode()[2:], "é".encode()):
        capture.feed(chunk)
    assert capture.to_json() == {"text": "né", "bytes": 5, "truncated": True}


# --- the surroundings --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_gets_a_minimal_environment_no_input_and_no_open_files(execute, monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "hunter2")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        code = """
        import os, sys
        print(sorted(os.environ), os.environ['PATH'], os.getcwd(), os.getsid(0) == os.getpgid(0) == os.getpid())
        print(os.environ['HEARTH_EXEC'] == f'{os.getppid()}/t')
        print(sys.stdin.read(), [fd for fd in range(3, 64) if os.path.exists(f'/proc/self/fd/{fd}')])
        """
        outcome = execute(python(code, env={"PATH": "/opt/bin", "EXTRA": "1", MARK: "forged"}, cwd=tmp_path))
    names = ["EXTRA", MARK, "LANG", "PATH"]
    assert outcome["stdout"]["text"] == f"{names} /opt/bin {tmp_path} True\nTrue\n []\n"


@pytest.mark.slow
def test_parameters_reach_the_program_as_single_arguments(execute):
    template = ExecTemplate(
        argv=(str(PYTHON), "-I", "-c", "import sys; print(sys.argv[1:])", "{a}", "--b={b}"),
        params={"a": ExecParam(pattern="(?s:.*)"), "b": ExecParam(enum=("$(id)", "2"))},
    )
    outcome = execute(template, {"a": "x; rm -rf / && 'y'", "b": "$(id)", "unknown": "ignored"})
    assert outcome["stdout"]["text"] == repr(["x; rm -rf / && 'y'", "--b=$(id)"]) + "\n"


@pytest.mark.slow
def test_a_refused_parameter_starts_nothing(execute, tmp_path):
    template = ExecTemplate(argv=("/usr/bin/touch", "{p}"), params={"p": ExecParam(enum=(str(tmp_path / "a"),))})
    with pytest.raises(InvalidParams):
        execute(template, {"p": str(tmp_path / "b")})
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_the_launcher_refuses_what_no_template_allows_for_any_caller(launched, tmp_path):
    params = {"p": ExecParam(enum=(str(tmp_path / "a"),))}
    driver = launched(ExecTemplate(argv=("/usr/bin/touch", "{p}"), params=params))
    launcher = driver._launcher
    assert "expected one of" in launcher._ask({"run": "t", "params": {"p": str(tmp_path / "b")}})[0]["error"]
    assert launcher._ask({"run": "other", "params": {}})[0] == {"error": "there is no [tools.exec] other"}
    assert driver.execute("t", launcher._templates["t"], {"p": str(tmp_path / "a")})["exit_code"] == 0
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "told"),
    [
        (ExecTemplate(argv=("/nonexistent",)), "/nonexistent cannot be started: No such file or directory"),
        (ExecTemplate(argv=("/",)), "/ cannot be started: Permission denied"),
        (ExecTemplate(argv=("/bin/sh",), cwd=Path("/nonexistent")), "No such file or directory: /nonexistent"),
    ],
)
def test_a_program_that_cannot_be_started_had_no_effect_and_names_its_template(execute, template, told):
    with pytest.raises(DeviceError) as caught:
        execute(template)
    assert told in str(caught.value)
    assert str(caught.value).endswith("look at [tools.exec] t")
    assert caught.value.data == {"effect": "none", "template": "t"}


def test_where_proc_exec_is_not_enabled_nothing_is_started():
    driver = ProgramDriver()
    driver.open()
    with pytest.raises(DeviceError, match=r"proc\.exec is not enabled") as caught:
        driver.execute("t", ExecTemplate(argv=("/bin/true",)), {})
    assert caught.value.data["effect"] == "none"


# --- the end -----------------------------------------------------------------------------------------------------


READY = "print('ready', flush=True); os.close(os.open(sys.argv[1], os.O_WRONLY))"


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "ready"
    os.mkfifo(path)
    return path


def stopped_when_ready(execute, template, fifo):
    """Run a program, and ask for its end once it has opened the fifo."""
    stopping = Stopping()

    def ask():
        with fifo.open():
            stopping.ask()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    outcome = execute(template, stopping=stopping)
    asking.join(BOUND)
    return outcome


@pytest.mark.slow
def test_a_program_that_is_to_end_is_asked_first(execute, fifo):
    code = f"""
    import os, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit(7)))
    {READY}
    while True: signal.pause()
    """
    outcome = stopped_when_ready(execute, python(code, fifo), fifo)
    assert (outcome["exit_code"], outcome["cancelled"], outcome["timed_out"]) == (7, True, False)
    assert outcome["stdout"]["text"] == "ready\nbye\n"


@pytest.mark.slow
def test_a_program_that_does_not_end_when_asked_is_killed_with_all_that_it_started(execute, fifo):
    code = f"""
    import os, signal, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        while True: signal.pause()
    print(child, flush=True)
    {READY}
    while True: signal.pause()
    """
    outcome = stopped_when_ready(execute, python(code, fifo, grace_ms=50), fifo)
    assert (outcome["exit_code"], outcome["signal"], outcome["cancelled"]) == (None, "SIGKILL", True)
    wait_until_gone(int(outcome["stdout"]["text"].split()[0]))


@pytest.mark.slow
def test_a_program_that_is_stopped_before_it_began_ends_all_the_same(execute):
    stopping = Stopping()
    stopping.ask()
    outcome = execute(python("import signal; signal.pause()", grace_ms=50), stopping=stopping)
    assert outcome["cancelled"]
    assert outcome["signal"] in ("SIGTERM", "SIGKILL")


@pytest.mark.slow
def test_a_program_whose_time_runs_out_is_ended(execute):
    outcome = execute(python("import signal; signal.pause()", timeout_ms=50))
    assert (outcome["signal"], outcome["timed_out"], outcome["cancelled"]) == ("SIGTERM", True, False)


@pytest.mark.proof
def test_a_program_that_ignores_that_its_time_has_run_out_is_killed(execute):
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
    # However slow the machine: a program that has not come to ignoring it ends by SIGTERM, and by neither is a failure.
    outcome = execute(python(code, timeout_ms=3_000, grace_ms=50))
    assert (outcome["signal"], outcome["timed_out"]) == ("SIGKILL", True)


@pytest.mark.slow
def test_what_the_program_left_in_its_group_does_not_outlive_it(execute):
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
    if os.fork(): os._exit(0)
    os.write(tell, b'%d' % os.getpid())
    {act}
os.wait()
print(os.read(ready, 16).decode(), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["signal.pause()", "while True: os.write(1, b'x' * 4096)"], ids=["silent", "flooding"])
def test_what_has_left_the_group_does_not_outlive_the_program_either(execute, act):
    outcome = execute(python(ESCAPE.replace("{act}", act)))
    assert outcome["exit_code"] == 0
    wait_until_gone(int(outcome["stderr"]["text"]))


# --- the launcher's own end --------------------------------------------------------------------------------------


def started(driver, template, fifo):
    """A program that runs in a thread, once it has written to the fifo: what it wrote, and what its asker is told."""
    told = []

    def run():
        try:
            told.append(driver.execute("t", template, {}))
        except DeviceError as error:
            told.append(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    return fifo.read_text(), running, told


TWO = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    while True: signal.pause()
with open(sys.argv[1], 'w') as file:
    print(os.getpid(), child, file=file)
while True: signal.pause()
"""


@pytest.mark.slow
def test_when_the_daemon_goes_all_programs_go_at_once(launched, fifo):
    template = python(TWO, fifo, grace_ms=60_000)
    driver = launched(template)
    text, running, told = started(driver, template, fifo)
    driver._launcher.close()
    running.join(BOUND)
    assert told
    for pid in text.split():
        wait_until_gone(int(pid))


@pytest.mark.slow
def test_when_the_launcher_is_killed_its_asker_is_told_and_the_next_start_ends_the_rest(launched, fifo, tmp_path):
    template = python(TWO, fifo)
    driver = launched(template, tmp_path / "record")
    text, running, told = started(driver, template, fifo)
    leader, child = map(int, text.split())
    driver._launcher._process.kill()
    running.join(BOUND)
    assert (told[0].data["effect"], "has ended" in str(told[0])) == ("unknown", True)
    wait_until_gone(leader)
    os.kill(child, 0)  # it was not the launcher's, so it is there for the next start to find
    with pytest.raises(DeviceError, match="restart hearthd") as caught:
        driver.execute("t", template, {})
    assert caught.value.data["effect"] == "none"
    launched(template, tmp_path / "record")
    wait_until_gone(child)


# --- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_program_that_proc_exec_runs_can_be_signalled_but_not_its_own_children(launched, fifo):
    code = """
    import os, signal, sys
    child = os.fork()
    if child == 0:
        signal.pause()
    with open(sys.argv[1], 'w') as file:
        print(os.getpid(), child, file=file)
    signal.pause()
    """
    template = python(code, fifo)
    driver = launched(template)
    text, running, told = started(driver, template, fifo)
    leader, child = map(int, text.split())
    signalling = ProcessDriver(launcher=driver._launcher)  # of another bus
    with pytest.raises(PermissionDenied):
        signalling.send_signal(child, "SIGTERM")
    assert signalling.send_signal(leader, "SIGUSR1")["pid"] == leader
    running.join(BOUND)
    assert (told[0]["signal"], told[0]["timed_out"]) == ("SIGUSR1", False)
    wait_until_gone(child)
