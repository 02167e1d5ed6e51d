"""`hearth hcp …` against a real hearthd: what is handed over, what is shown of it, and the exit code."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.ports import free_port

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TOKEN = "hearth_the-boss-of-the-tests"


PORT = free_port()
CONFIG = f"""
[websocket]
listen = "127.0.0.1:{PORT}"
[hcp]
capabilities = ["{HERE}/capabilities.d"]
shipped = ["host-*"]
[[policy]]
name = "me"
match = {{ uid = {os.geteuid()} }}
max_risk = 2
[[policy]]
name = "boss"
match = {{ token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}" }}
max_risk = 2
rights = ["approve"]
"""


@pytest.fixture
def boss(local_cli, monkeypatch):
    """The command as somebody who may approve jobs."""

    def run(*args):
        monkeypatch.setenv("HEARTH_TOKEN", TOKEN)
        return local_cli(*args, "--to", f"ws://127.0.0.1:{PORT}")

    return run


def job(line=17, *, capability="line-check", **inputs):
    inputs = {"line": line, **inputs}
    return {"capability": capability, "caller_id": "bench-notebook", "intent": "check the line", "inputs": inputs}


def whole(message_id, payload):
    return {
        "hcp_version": "1.0",
        "message_id": message_id,
        "timestamp": "2026-04-19T22:48:01.000Z",
        "session_id": None,
        "type": "task_submit",
        "payload": payload,
    }


@pytest.fixture
def file(tmp_path):
    def write(document):
        path = tmp_path / "job.json"
        path.write_text(json.dumps(document))
        return path

    return write


def submitted(cli, path, *args):
    """Hand a job over without waiting; its session."""
    answer = cli("hcp", "submit", path, "--detach", *args)
    assert answer.code == 0, answer.err
    return answer.out.strip()


# --- what there is --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_capabilities_are_listed_with_their_risk(local_cli):
    listed = local_cli("hcp", "capabilities")
    assert listed.code == 0
    rows = {line.split()[0]: line for line in listed.out.splitlines()}
    assert "asks a person" in rows["line-check"]
    assert "R4" in rows["line-check"]
    assert rows["host-health-report"].endswith("Report on the health of the machine that hearth runs on")
    assert "gpio-self-test" not in rows
    document = local_cli("hcp", "capabilities", "--json").json
    assert {each["capability"]["name"] for each in document} == {"line-check", "host-health-report"}


def test_one_capability_is_shown_with_what_it_takes_and_gives(local_cli):
    shown = local_cli("hcp", "capabilities", "line-check")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0] == "line-check 1.2.0"
    assert "line integer required which line" in lines
    assert "times integer else 1 how often" in lines
    assert "value integer as read" in lines
    assert "line at least 0, at most 90" in lines
    assert "never driving two lines" in lines
    assert local_cli("hcp", "capabilities", "line-check", "--json").json["capability"]["version"] == "1.2.0"


def test_a_capability_that_is_not_there_is_an_error(local_cli):
    answer = local_cli("hcp", "capabilities", "nothing")
    assert answer.code == 1
    assert "`hearth hcp capabilities` lists them" in answer.err


# --- handing over ---------------------------------------------------------------------------------------------------


def test_a_job_is_waited_for_and_its_outputs_are_printed(local_cli, file):
    answer = local_cli("hcp", "submit", file(job(times=2)))
    assert answer.code == 0, answer.err
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    assert lines[0].startswith("COMPLETED ")
    assert lines[1:3] == ["outputs", "value 0"]
    assert "steps 2" in lines
    assert any(line.startswith("levels text/csv ") for line in lines)


def test_with_json_a_job_is_one_document(local_cli, file):
    document = local_cli("hcp", "submit", file(job()), "--json").json
    assert (document["state"], document["outputs"]) == ("COMPLETED", {"value": 0})
    assert document["execution_summary"]["steps_executed"] == 1
    assert document["artifacts"][0]["checksum"].startswith("sha256:")


def test_a_job_that_is_watched_tells_what_happens_and_then_how_it_ended(local_cli, file):
    answer = local_cli("hcp", "submit", file(job(times=2)), "--watch")
    kinds = [line.split()[1] for line in answer.out.splitlines() if line[:2].isdigit()]
    assert kinds[:3] == ["accepted", "session", "state"]
    assert kinds.count("checkpoint") == 2
    assert kinds[-2:] == ["completed", "closed"]
    assert "\nCOMPLETED  " in answer.out


def test_a_job_that_is_watched_with_json_is_its_messages_and_then_its_result(local_cli, file):
    *messages, result = local_cli("hcp", "submit", file(job()), "--watch", "--json").documents
    assert messages[0]["type"] == "task_accepted"
    assert messages[-1]["payload"]["event_type"] == "session_closed"
    sequences = [message["payload"]["sequence"] for message in messages if message["type"] == "event"]
    assert sequences == list(range(1, len(sequences) + 1))
    assert result["state"] == "COMPLETED"


def test_a_job_may_come_on_stdin(local_cli):
    assert local_cli("hcp", "submit", "-", stdin=json.dumps(job()).encode()).code == 0


def test_a_message_that_was_submitted_before_is_answered_with_its_job(local_cli, file):
    path = file(whole("msg-of-the-cli", job()))
    first = local_cli("hcp", "submit", path, "--json").json
    assert local_cli("hcp", "submit", path, "--json").json == first
    other = local_cli("hcp", "submit", path, "--json", "--message-id", "another").json
    assert other["session_id"] != first["session_id"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[]", "the message: expected an object"),
        (b'{"capability": 7}', "/capability: expected a string, got an integer (7)"),
        (json.dumps(whole("m", {**job(), "inputs": 5})).encode(), "/payload/inputs: expected an object"),
        (json.dumps({**whole("m", job()), "hcp_version": "2.0"}).encode(), "/hcp_version: expected"),
        (json.dumps({**job(), "constraints": {"max_duration": "soon"}}).encode(), "/constraints/max_duration"),
    ],
)
def test_a_file_that_is_no_job_is_a_usage_error_that_names_the_place(local_cli, tmp_path, content, said):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    answer = local_cli("hcp", "submit", path)
    assert answer.code == 2
    assert f"{path}: " in answer.err
    assert said in answer.err


def test_a_file_that_is_not_there_and_an_id_that_is_none_are_usage_errors(local_cli, file, tmp_path):
    assert local_cli("hcp", "submit", tmp_path / "none").code == 2
    answer = local_cli("hcp", "submit", file(job()), "--message-id", "\n")
    assert (answer.code, "--message-id" in answer.err) == (2, True)
    assert local_cli("hcp", "submit", file(job()), "--detach", "--watch").code == 2


def test_a_job_that_is_rejected_says_why_and_what_to_do(local_cli, file):
    path = file(job(capability="line-chek"))
    answer = local_cli("hcp", "submit", path)
    assert answer.code == 1
    assert "rejected:" in answer.err
    assert "(unknown_capability)" in answer.err
    assert "line-check" in answer.err.splitlines()[1]
    error = local_cli("hcp", "submit", path, "--json").json["error"]
    assert error["reason_code"] == "unknown_capability"
    assert "line-check" in error["suggestion"]


def test_a_job_that_fails_exits_with_1_and_says_where(local_cli, file):
    answer = local_cli("hcp", "submit", file(job(line=89)))
    assert answer.code == 1
    assert "FAILED" in answer.out
    assert "89" in answer.out
    document = local_cli("hcp", "submit", file(job(line=89)), "--json").json
    assert document["state"] == "FAILED"
    assert document["error_details"]["phase"]


@pytest.mark.slow
def test_a_daemon_that_takes_no_jobs_says_so(cli, own_daemon, file):
    daemon = own_daemon("[hcp]\nserve = false\n")
    answer = cli("hcp", "jobs", "--socket", daemon.socket)
    assert (answer.code, "[hcp] serve = false" in answer.err) == (1, True)
    answer = cli("hcp", "submit", file(job()), "--socket", daemon.socket)
    assert (answer.code, "[hcp] serve = false" in answer.err) == (1, True)


def test_without_a_daemon_the_exit_code_is_3(cli, file, tmp_path):
    assert cli("hcp", "submit", file(job()), "--socket", tmp_path / "none.sock").code == 3


# --- afterwards -----------------------------------------------------------------------------------------------------


def test_a_job_can_be_come_back_to(local_cli, file):
    session = submitted(local_cli, file(job(times=3)))
    watched = local_cli("hcp", "watch", session)
    assert watched.code == 0
    assert "COMPLETED" in watched.out
    rest = local_cli("hcp", "watch", session, "--from", 4, "--json").documents
    assert next(each["payload"]["sequence"] for each in rest if each.get("type") == "event") == 4
    (row,) = [line for line in local_cli("hcp", "jobs").out.splitlines() if session in line]
    assert "line-check 1.2.0" in row
    assert "check the line" in row
    assert local_cli("hcp", "jobs", "--json").json[0]["session_id"] == session


def test_the_report_of_a_job_goes_from_the_submission_to_the_summary(local_cli, file):
    session = submitted(local_cli, file(job(times=2)))
    assert local_cli("hcp", "watch", session).code == 0
    shown = local_cli("hcp", "account", session)
    assert shown.code == 0
    sections = [line.split()[0] for line in shown.out.splitlines() if "────" in line]
    assert sections == ["Asked", "Decided", "Done", "Outputs", "Artifacts", "Summary"]
    for said in ("bench-notebook", "check the line", "R2", "PENDING → RUNNING", "levels.csv", "sha256:"):
        assert said in shown.out
    document = local_cli("hcp", "account", session, "--json").json
    assert document["job"]["session_id"] == session
    assert document["messages"][0]["type"] == "task_accepted"
    assert document["result"]["state"] == "COMPLETED"


def test_the_report_of_a_job_that_failed_says_why_not(local_cli, file):
    session = submitted(local_cli, file(job(line=89)))
    assert local_cli("hcp", "watch", session).code == 1
    shown = local_cli("hcp", "account", session).out
    assert "Why not" in shown
    assert "execution_error" in shown or "input_error" in shown


def test_a_job_under_way_has_a_report_so_far_and_can_be_aborted(local_cli, file):
    session = submitted(local_cli, file(job(times=1000, pause_s=0.5)))
    shown = local_cli("hcp", "account", session)
    assert shown.code == 0
    assert "it is under way" in shown.out
    assert local_cli("hcp", "account", session, "--json").json["result"] is None
    assert local_cli("hcp", "abort", session, "--reason", "enough").out.strip() in ("ABORTING", "ABORTED")
    watched = local_cli("hcp", "watch", session)
    assert watched.code == 1
    assert "ABORTED" in watched.out
    assert "enough" in watched.out
    assert local_cli("hcp", "abort", session, "--json").json == {"session_id": session, "state": "ABORTED"}


@pytest.mark.parametrize("command", ["watch", "abort", "account"])
def test_a_job_that_there_is_not_is_an_error_that_says_where_to_look(local_cli, command):
    answer = local_cli("hcp", command, "6a1b3f9e-9f0e-4a57-8f5c-2d7c0a5b1e42")
    assert answer.code == 1
    assert "`hearth hcp jobs` lists yours" in answer.err


def test_an_artifact_goes_to_stdout_or_into_a_file_or_into_json(local_cli, file, tmp_path):
    (artifact,) = local_cli("hcp", "submit", file(job()), "--json").json["artifacts"]
    uri, kept = artifact["uri"], tmp_path / "levels.csv"
    told = local_cli("hcp", "artifact", uri, "-o", kept)
    assert told.out == f"{kept}  {artifact['size_bytes']} bytes\n"
    content = kept.read_bytes()
    assert hashlib.sha256(content).hexdigest() == artifact["checksum"].removeprefix("sha256:")
    document = local_cli("hcp", "artifact", uri, "--json").json
    assert base64.b64decode(document["data"]) == content
    assert local_cli("hcp", "artifact", uri).out == content.decode()
    assert local_cli("hcp", "artifact", uri, "-o", kept, "--json").json["size_bytes"] == len(content)


def test_an_artifact_that_there_is_not_leaves_no_file(local_cli, tmp_path):
    answer = local_cli("hcp", "artifact", "hcp://nobody/artifacts/none.csv", "-o", tmp_path / "none.csv")
    assert answer.code == 1
    assert "hearth: Invalid params: " in answer.err
    assert not (tmp_path / "none.csv").exists()


# --- approval -------------------------------------------------------------------------------------------------------


def waiting(boss, count=1):
    """The approvals that are asked for, once there are so many."""
    until = time.monotonic() + 20
    while len(found := boss("approve", "--json").json["jobs"]) < count:
        assert time.monotonic() < until, "nobody asks for an approval"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", ["approve", "deny"])
def test_a_person_decides_about_a_job_of_another_principal(local_cli, boss, file, hearth_process, command):
    with hearth_process("hcp", "submit", str(file(job(loud=True)))) as process:
        (asked,) = waiting(boss)
        shown = boss("hcp", "pending").out
        for said in (asked["approval_id"], "line-check 1.2.0", "R4", "noise", "loud"):
            assert said in shown
        decided = boss("hcp", command, asked["approval_id"], "--reason", "I was there")
        *read, said = decided.out.splitlines()
        assert (decided.code, said) == (0, "approved" if command == "approve" else "denied")
        assert read == asked["shown"], "what was decided on, whole, as the daemon shows it"
        out, err = process.communicate(timeout=60)
        assert process.returncode == (0 if command == "approve" else 1)
        assert "COMPLETED" in out if command == "approve" else "approval_denied" in err
    again = boss("hcp", command, asked["approval_id"], "--json")
    assert again.code == 1
    assert again.json["error"]["symbol"] == "INVALID_PARAMS"
    assert boss("hcp", "pending").out == "there is none\n"


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--yes", "--reason", "I was there"], ["--reject", "too loud"]], ids=" ".join)
def test_hearth_approve_shows_and_decides_the_jobs_that_wait(local_cli, boss, file, hearth_process, options):
    with hearth_process("hcp", "submit", str(file(job(loud=True)))) as process:
        (asked,) = waiting(boss)
        assert asked["approval_id"] in boss("approve").out
        assert local_cli("approve").out == "nothing waits for you\n"
        assert boss("approvals", "list", "--json").json == [{"kind": "job", **asked}]
        assert boss("approvals", "show", asked["approval_id"], "--json").json == {"kind": "job", **asked}
        assert asked["shown"][0] in boss("approvals", "show", asked["approval_id"]).out
        assert boss("approve", "--json").json["jobs"] == [asked]
        assert local_cli("approve", asked["approval_id"], *options).code == 1
        assert boss("approve", asked["approval_id"], "--yes", "--hash", "sha256:0").code == 2
        decided = boss("approve", asked["approval_id"], *options)
        accepted = options[0] == "--yes"
        assert (decided.code, decided.out.splitlines()[-1]) == (0, "approved" if accepted else "rejected")
        assert "noise" in decided.out
        out, err = process.communicate(timeout=60)
        assert process.returncode == (0 if accepted else 1)
        assert "COMPLETED" in out if accepted else "too loud" in err
    late = boss("approve", asked["approval_id"], *options)
    assert late.code == 1
    assert f"has {'approved' if accepted else 'rejected'} it; `hearth approvals list` has the rest" in late.err, (
        "and why"
    )


@pytest.mark.slow
def test_a_job_that_waits_for_approval_is_listed_and_withdrawn_by_its_caller(local_cli, boss, file, hearth_process):
    with hearth_process("hcp", "submit", str(file(job(loud=True))), "--message-id", "taken-back") as process:
        waiting(boss)
        shown = local_cli("hcp", "jobs").out
        for said in ("taken-back", "PENDING", "line-check 1.2.0", "waits for approval until"):
            assert said in shown
        assert any("`hearth hcp abort taken-back` withdraws it" in line for line in process.stderr)
        ended = local_cli("hcp", "abort", "taken-back", "--reason", "no longer wanted")
        assert (ended.code, ended.out.strip()) == (0, "REJECTED")
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no longer wanted" in err
    assert "withdrawn" in err
    assert boss("approvals", "list").out == "there is none\n"
    again = local_cli("hcp", "abort", "taken-back", "--json")
    assert again.code == 1


def test_who_may_not_approve_is_told_what_says_so(local_cli):
    answer = local_cli("hcp", "pending")  # `approvals list` shows what there is for a caller
    assert answer.code == 1
    assert "[[policy]]" in answer.err


# --- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ctrl_c_aborts_the_job_and_says_how_it_ended(local_cli, file, hearth_process):
    with hearth_process("hcp", "submit", str(file(job(times=1000, pause_s=0.5))), "--watch") as process:
        for line in process.stdout:
            if "checkpoint" in line:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the job has ended ABORTED" in err
    assert local_cli("hcp", "jobs", "--json").json[0]["state"] == "ABORTED"


@pytest.mark.proof
def test_ctrl_c_before_the_answer_says_where_to_look(boss, file, hearth_process):
    with hearth_process("hcp", "submit", str(file(job(loud=True))), "--message-id", "asks") as process:
        (asked,) = waiting(boss)
        assert any("no answer yet" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "`hearth hcp jobs`" in err
    assert boss("approvals", "reject", asked["approval_id"]).code == 0


@pytest.mark.slow
def test_ctrl_c_before_the_answer_withdraws_a_job_that_no_other_knows_of(boss, file, hearth_process):
    with hearth_process("hcp", "submit", str(file(job(loud=True)))) as process:
        waiting(boss)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "is withdrawn" in err
    assert boss("approvals", "list").out == "there is none\n"
