"""The commands against a real daemon: what they print, what they exit with, and what they leave behind."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading

import orjson
import pytest

from hearth.cli import tasks
from hearth.client import connection

pytestmark = pytest.mark.slow

PULSE = {"tool": "gpio.pulse", "args": {"line": 17, "value": 1, "duration_ms": 1}}
LONG = {"tool": "gpio.watch", "args": {"line": 9, "timeout_ms": 60_000}}
ABSENT = {"tool": "i2c.read", "args": {"bus": 1, "addr": "0x33", "len": 1}}


@pytest.fixture
def plan(tmp_path):
    def write(*steps, **task):
        path = tmp_path / "plan.json"
        path.write_bytes(orjson.dumps({"intent": "a test", "steps": list(steps), **task}))
        return path

    return write


# --- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_tools_lists_name_risk_rollback_and_description(local_cli):
    answer = local_cli("tools")
    header, *rows = answer.out.splitlines()
    assert header.split() == ["name", "risk", "rollback", "description"]
    shown = {row.split()[0]: row for row in rows}
    assert "2 medium  yes" in shown["gpio.set"]
    assert "3 high    -" in shown["file.delete"]
    assert "Read a GPIO line" in shown["gpio.get"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("gpio.*", {"gpio.get", "gpio.set", "gpio.pulse", "gpio.watch"}), ("delete", {"file.delete"})],
)
def test_a_pattern_narrows_the_list(local_cli, pattern, names):
    rows = local_cli("tools", pattern).out.splitlines()[1:]
    assert {row.split()[0] for row in rows} == names


def test_a_whole_name_shows_everything_the_tool_declares(local_cli):
    out = local_cli("tools", "i2c.read").out
    assert out.startswith("i2c.read\nRead `len` bytes")
    assert "risk        2 medium, 0 safe for some args" in out
    assert "capability  CAP_I2C_READ" in out
    assert "required" in out
    assert '"$schema"' in out
    assert "result_schema" in out


def test_a_tool_without_args_says_so(local_cli):
    assert "takes no args" in local_cli("tools", "hw.board").out


def test_tools_as_json_are_the_entries_of_tool_list(local_cli):
    entries = local_cli("--json", "tools").json
    assert {"name", "risk_level", "params_schema", "description"} <= set(entries[0])
    assert local_cli("tools", "gpio.set", "--json").json["name"] == "gpio.set"
    assert [entry["name"] for entry in local_cli("tools", "delete", "--json").json] == ["file.delete"]


def test_a_tool_that_is_misspelt_is_an_error_with_the_near_ones(local_cli):
    answer = local_cli("tools", "gpoi.set")
    assert answer.code == 1
    assert "did you mean gpio.set" in answer.err
    assert "`hearth tools` lists them all" in local_cli("tools", "zzzzzz").err


# --- run ------------------------------------------------------------------------------------------------------------


def test_run_prints_the_result_and_says_that_the_output_goes_safe(local_cli):
    answer = local_cli("run", "gpio.set", "line=17", "value=1")
    assert answer.code == 0
    assert answer.out == "line   17\nvalue  1\n"
    assert "--hold" in answer.err
    assert local_cli("run", "gpio.get", "line=17").out.splitlines()[1] == "value  0"


def test_run_as_json_prints_the_result_alone(local_cli):
    answer = local_cli("run", "gpio.set", "line=17", "value=1", "--json")
    assert answer.json == {"line": 17, "value": 1}
    assert answer.err == ""


def test_binary_results_are_shown_as_bytes(local_cli, daemon):
    shown = local_cli("run", "i2c.read", "bus=1", "addr=0x48", "reg=0", "len=2").out
    assert re.fullmatch(r"hex  [0-9a-f]{2} [0-9a-f]{2}\n", shown)
    (daemon.shared / "hello.txt").write_text("hello\nyou\n")
    out = local_cli("run", "file.read", f"path={daemon.shared}/hello.txt").out
    assert out.splitlines()[:4] == ["hex   68 65 6c 6c 6f 0a 79 6f 75 0a", "text", "  hello", "  you"]
    (daemon.shared / "nothing").write_bytes(b"")
    assert local_cli("run", "file.read", f"path={daemon.shared}/nothing").out.splitlines()[0] == "data  0 bytes"


def test_bytes_are_given_as_hex_or_text_without_quotes(local_cli, daemon):
    path = f"path={daemon.shared}/made"
    for word, content in (("hex=10", b"\x10"), ("text=17", b"17"), ('text="a\\n"', b"a\n"), ("text=true", b"true")):
        assert local_cli("run", "file.write", path, word).code == 0
        assert (daemon.shared / "made").read_bytes() == content
    both = local_cli("run", "file.write", path, "hex=10", "text=x")
    assert both.code == 2
    assert "give exactly one of data, text and hex; there is text and hex" in both.err


def test_a_list_of_a_board_is_a_table_for_people_and_json_for_programs(local_cli):
    lines = local_cli("run", "hw.gpio.list").out.splitlines()
    assert lines[0] == "chips"
    assert "  lines of chip sim" in lines
    assert next(line for line in lines if "GPIO4 " in line).split()[:6] == [
        "4", "GPIO4", "any", "input", "release", "BUTTON",
    ]  # fmt: skip
    assert "{" not in "".join(lines)
    assert local_cli("run", "hw.gpio.list", "--json").json["chips"][0]["lines"][4]["aliases"] == ["BUTTON"]


def test_values_that_look_like_json_can_be_forced_to_be_strings(local_cli):
    answer = local_cli("run", "gpio.get", 'line="GPIO17"')
    assert answer.out.splitlines()[0] == "line   GPIO17"
    refused = local_cli("run", "hw.sensor.read", 'sensor="17"', "--json")
    assert refused.json["error"]["symbol"] == "INVALID_PARAMS"
    assert refused.code == 2


def test_progress_is_shown_as_it_comes_beside_the_result(local_cli, daemon):
    script = (
        "import sys, trio, hearth\n"
        "async def main():\n"
        "    async with hearth.connect(sys.argv[1]) as c, c.open_session(client_name='w') as s:\n"
        "        print('up', flush=True)\n"
        "        while True:\n"
        "            await s.run('gpio.pulse', line=17, value=1, duration_ms=5)\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, daemon.socket], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "up\n"
            answer = local_cli("run", "gpio.watch", "line=27", "edge=rising", "count=2", "timeout_ms=30000")
        finally:
            other.kill()
    assert answer.code == 0
    progress = [line for line in answer.err.splitlines() if " progress " in line]
    assert len(progress) == 2
    assert "edge=rising" in progress[0]
    assert "timed_out  no" in answer.out
    assert "progress" not in answer.out


def test_a_refused_run_is_an_error_with_code_and_cure(local_cli):
    answer = local_cli("run", "file.delete", "path=/etc/hosts")
    assert answer.code == 1
    assert "max_risk_level=2 < tool=3  (RPC_PERMISSION_DENIED -32003)" in answer.err
    assert answer.out == ""
    unknown = local_cli("run", "gpio.fly")
    assert (unknown.code, "`hearth tools` lists what there is" in unknown.err) == (2, True)
    wrong = local_cli("run", "gpio.set", "line=17")
    assert (wrong.code, '"value" is a required property' in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpio.set", "lin=17", "value=1"], "lin: gpio.set takes no such arg; did you mean line?"),
        (["gpio.set", "line=17", "value=1", "dryrun=true"], "arg (`hearth run -c`): did you mean dry_run?"),
        (["gpio.set", "line=17", "value=1", "qq=1"], "qq: gpio.set takes no such arg; it takes chip, line, value"),
        (["hw.board", "x=1"], "x: hw.board takes no such arg; it takes none"),
        (["i2c.transfer", "bus=1", "addr=80", 'messages=[{"raed":1}]'], "messages/0/raed: i2c.transfer takes no such"),
        (["gpio.set", "line=17", "value=1", "-c", "dryrun=true"], "-c dryrun: unknown key; did you mean dry_run?"),
        (["gpio.sett", "line=17", "value=1"], "Tool not found: gpio.sett; did you mean gpio.set,"),
        (["gpio.set", "line=LDE", "value=1"], "has no gpio line 'LDE'; did you mean LED?"),
    ],
)
def test_what_is_misspelt_in_a_run_is_a_usage_error_with_the_nearest_and_nothing_runs(local_cli, daemon, words, said):
    before = len(daemon.records())
    answer = local_cli("run", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.out == ""
    assert not {"task.submit", "task.step.start"} & {record["event"] for record in daemon.records()[before:]}


def test_a_misspelt_argument_is_an_error_in_json_where_json_is_asked_for(local_cli):
    answer = local_cli("run", "gpio.set", "lin=17", "value=1", "--json")
    assert answer.code == 2
    assert answer.json == {"error": {"message": "lin: gpio.set takes no such arg; did you mean line?"}}


@pytest.mark.parametrize("options", [[], ["--detach"]])
def test_a_plan_with_a_misspelt_argument_is_refused_with_its_place_and_leaves_no_session(
    local_cli, daemon, plan, options
):
    path = plan(PULSE, {"tool": "gpio.get", "args": {"lime": 1}})
    answer = local_cli("plan", "submit", *options, path)
    assert answer.code == 2
    assert f"{path}: /steps/1/args/lime: gpio.get takes no such arg; did you mean line?" in answer.err
    assert daemon.records()[-1]["event"] == "session.close"


def test_a_failed_step_says_what_became_of_the_hardware(local_cli):
    answer = local_cli("run", "i2c.read", "bus=1", "addr=0x33", "len=1")
    assert answer.code == 1
    assert "no device acknowledges address 0x33" in answer.err
    assert "effect: nothing has happened to the hardware" in answer.err
    as_json = local_cli("run", "i2c.read", "bus=1", "addr=0x33", "len=1", "--json")
    assert as_json.code == 1
    assert as_json.json["error"]["code"] == -32009
    assert as_json.json["error"]["data"]["effect"] == "none"


def test_constraints_go_with_the_run(local_cli):
    answer = local_cli("run", "gpio.set", "line=17", "value=1", "-c", "dry_run=true")
    assert answer.code == 0
    assert "dry_run" in answer.out
    assert answer.err == ""
    late = local_cli("run", "gpio.watch", "line=9", "-c", "max_duration_ms=20")
    assert late.code == 1
    assert "max_duration_ms = 20" in late.err


def test_hold_keeps_the_session_for_that_long(local_cli, daemon, monkeypatch):
    monkeypatch.setattr(tasks, "KEEP_ALIVE", 0.01)
    answer = local_cli("run", "gpio.set", "line=17", "value=1", "--hold", "0.05")
    assert answer.code == 0
    assert "the session is held for 0.05 s" in answer.err
    assert daemon.records()[-1]["reason"] == "closed by the client"


@pytest.mark.parametrize("words", [["line"], ["line=1", "line=2"]])
def test_words_that_are_no_args_are_a_usage_error_and_nothing_is_sent(local_cli, daemon, words):
    before = len(daemon.records())
    answer = local_cli("run", "gpio.get", *words)
    assert answer.code == 2
    assert len(daemon.records()) == before


# --- submit, get, cancel, watch -------------------------------------------------------------------------------------


def test_submit_waits_and_prints_the_steps(local_cli, plan):
    answer = local_cli("plan", "submit", plan(PULSE, {"tool": "gpio.get", "args": {"line": 27}}))
    assert answer.code == 0
    header, first, second, last = answer.out.splitlines()
    assert header.split() == ["#", "tool", "status", "ms", "result"]
    assert first.split()[:3] == ["0", "gpio.pulse", "SUCCESS"]
    assert second.endswith("line=27 value=0")
    assert last.startswith("SUCCESS  a test  ")


def test_a_task_that_fails_or_is_refused_exits_with_1(local_cli, plan):
    failed = local_cli("plan", "submit", plan(ABSENT, PULSE))
    assert failed.code == 1
    assert "0x33" in failed.out
    assert "CANCELLED" in failed.out
    refused = local_cli("plan", "submit", plan({"tool": "gpio.fly", "args": {}}))
    assert refused.code == 2
    assert refused.out == ""


def test_a_plan_comes_from_stdin_too(local_cli, plan):
    answer = local_cli("plan", "submit", "-", "--json", stdin=plan(PULSE).read_bytes())
    assert answer.json["status"] == "SUCCESS"
    broken = local_cli("plan", "submit", "-", stdin=b"{")
    assert (broken.code, "stdin: not JSON" in broken.err) == (2, True)


def test_watch_without_a_terminal_prints_a_line_for_each_event(local_cli, plan):
    answer = local_cli("plan", "submit", plan(PULSE, ABSENT), "--watch")
    assert answer.code == 1
    phases = [line.split()[1] for line in answer.out.splitlines()[:-1]]
    assert phases == ["start", "finish", "start", "finish", "task_finish"]
    assert answer.out.splitlines()[-1].startswith("FAILED  a test  ")


def test_watch_as_json_prints_the_events_and_then_the_task(local_cli, plan):
    *events, task = local_cli("--json", "plan", "submit", "--watch", plan(PULSE)).documents
    assert [event["phase"] for event in events] == ["start", "finish", "task_finish"]
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert task["status"] == "SUCCESS"


def test_submit_can_hold_its_session(local_cli, plan):
    answer = local_cli("plan", "submit", plan(PULSE), "--hold", "0.01")
    assert answer.code == 0
    assert "held" in answer.err


@pytest.mark.parametrize("option", [["--watch"], ["--hold", "1"]])
def test_detach_goes_with_neither_watch_nor_hold(local_cli, plan, option):
    answer = local_cli("plan", "submit", plan(PULSE), "--detach", *option)
    assert answer.code == 2
    assert "hearth tasks watch" in answer.err


def test_a_detached_task_outlives_the_command_and_is_found_by_its_reference(local_cli, plan):
    reference = local_cli("plan", "submit", "--detach", plan(PULSE, LONG)).out.strip()
    assert reference.count("/") == 1
    running = local_cli("tasks", "show", reference, "--json")
    assert running.code == 0
    assert running.json["status"] == "RUNNING"
    assert local_cli("tasks", "cancel", reference).out.strip() == "CANCELLING"
    watched = local_cli("tasks", "watch", reference)
    assert watched.code == 1
    assert watched.out.splitlines()[0].endswith("start        step 0  gpio.pulse")
    assert watched.out.splitlines()[-1].startswith("CANCELLED  a test  ")
    assert local_cli("tasks", "cancel", reference, "--json").json["status"] == "CANCELLED"
    ended = local_cli("tasks", "show", reference)
    assert ended.code == 0
    assert "CANCELLED  a test" in ended.out


def test_detach_as_json_has_both_ids(local_cli, plan):
    answer = local_cli("plan", "submit", "--detach", "--json", plan(PULSE)).json
    assert answer["reference"] == f"{answer['session_id']}/{answer['task_id']}"
    assert local_cli("tasks", "watch", answer["reference"], "--json").documents[-1]["status"] == "SUCCESS"


def test_a_detached_plan_that_is_refused_leaves_no_session(local_cli, daemon, plan):
    answer = local_cli("plan", "submit", "--detach", plan({"tool": "gpio.fly", "args": {}}))
    assert answer.code == 2
    assert [record["event"] for record in daemon.records()[-3:]] == ["session.open", "task.reject", "session.close"]


def test_a_task_or_session_that_is_not_there_is_an_error_with_a_cure(local_cli, plan):
    reference = local_cli("plan", "submit", "--detach", plan(PULSE)).out.strip()
    session_id = reference.partition("/")[0]
    no_task = local_cli("tasks", "show", f"{session_id}/01NONE")
    assert no_task.code == 1
    assert "audit tail" in no_task.err
    no_session = local_cli("tasks", "cancel", "01NONE/01NONE")
    assert no_session.code == 1
    assert "another user's" in no_session.err
    assert local_cli("tasks", "watch", "nonsense").code == 2


# --- reaching the daemon --------------------------------------------------------------------------------------------


def test_the_socket_is_named_before_or_after_the_command(cli, daemon):
    assert cli("--socket", daemon.socket, "run", "hw.board").code == 0
    assert cli("run", "--socket", daemon.socket, "hw.board").code == 0
    assert cli("--socket", f"unix:{daemon.socket}", "run", "hw.board").code == 0


def test_no_daemon_at_the_socket_is_exit_code_3_with_a_cure(cli, tmp_path):
    answer = cli("--socket", tmp_path / "none", "tools")
    assert answer.code == 3
    assert answer.err == f"hearth: no daemon at {tmp_path}/none: there is no such socket; start one with `hearthd`\n"
    as_json = cli("--json", "--socket", tmp_path / "none", "get", "a/b")
    assert as_json.code == 3
    assert "no daemon at" in as_json.json["error"]["message"]
    assert cli("tools").code == 3


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        answer = cli("--socket", tmp_path / "silent", "tools")
    assert answer.code == 3
    assert "is it hearthd that listens there?" in answer.err


def test_a_server_of_another_protocol_is_exit_code_3(cli, tmp_path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other"))
        other.listen()

        def greet():
            connected, _ = other.accept()
            with connected:
                connected.recv(1000)
                connected.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        answer = cli("--socket", tmp_path / "other", "tools")
        thread.join()
    assert answer.code == 3


@pytest.mark.proof
def test_a_principal_without_a_policy_is_refused_with_exit_code_1(cli, own_daemon):
    daemon = own_daemon('[[policy]]\nname = "others"\nmatch = { uid = 65533 }\n')
    answer = cli("--socket", daemon.socket, "tools")
    assert answer.code == 1
    assert "RPC_PERMISSION_DENIED" in answer.err


def test_every_session_the_commands_opened_is_closed(local_cli, daemon, plan):
    local_cli("tools")
    local_cli("run", "hw.board")
    local_cli("plan", "submit", plan(PULSE))
    assert daemon.records()[-1]["event"] == "session.close"
