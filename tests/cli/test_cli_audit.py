"""`hearth audit`: reading logs as files, with no daemon anywhere."""

from __future__ import annotations

import time

import orjson
import pytest

from hearth.audit import keys
from hearth.audit.record import Chain
from hearth.cli import audit
from hearth.cli.audit import record_line, since

AT = 1_800_000_000.0


def lines(count, chain=None):
    chain = chain or Chain()
    records = [{"event": "task.finish", "task_id": f"T{n}", "principal": "uid:0"} for n in range(count)]
    return [chain.seal(record, AT + n) for n, record in enumerate(records)]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(lines(30)))
    return path


def test_a_good_log_is_said_to_be_good_with_its_head(cli, log):
    answer = cli("audit", "verify", log)
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "OK   records: 30, in 1 file, each chained to the one before"
    assert "head 30:sha256:" in answer.out
    assert answer.err == ""


def test_the_first_bad_record_is_named_by_file_line_and_reason(cli, log):
    changed = log.read_bytes().replace(b'"T10"', b'"T99"')
    log.write_bytes(changed)
    answer = cli("audit", "verify", log)
    assert answer.code == 1
    assert answer.out.startswith(f"BAD  {log}:12: prev is ")
    assert "good up to there: 11 records" in answer.out


def test_verify_as_json_has_the_whole_report(cli, log):
    good = cli("audit", "verify", log, "--json").json
    assert (good["ok"], good["records"], good["first_bad"]) == (True, 30, None)
    assert good["head"]["seq"] == 30
    log.write_bytes(log.read_bytes()[:-1])
    answer = cli("--json", "audit", "verify", log)
    assert answer.code == 1
    assert answer.json["first_bad"] == {
        "file": str(log),
        "line": 30,
        "reason": "torn: the last line has no line feed",
    }


def test_a_log_that_is_not_there_is_bad(cli, tmp_path):
    answer = cli("audit", "verify", tmp_path / "none.log")
    assert answer.code == 1
    assert answer.out == f"BAD  {tmp_path}/none.log: No such file or directory\n"


def test_an_empty_log_has_nothing_wrong_and_no_head(cli, tmp_path):
    path = tmp_path / "audit.log"
    path.touch()
    assert cli("audit", "verify", path).out == "OK   records: 0, in 1 file, each chained to the one before\n"
    answer = cli("audit", "head", path)
    assert answer.code == 1
    assert "there is no record in it yet" in answer.err


def test_signatures_are_checked_with_the_public_key(cli, tmp_path):
    signer = keys.load_or_create(tmp_path / "key")
    chain = Chain()
    content = lines(3, chain)
    seq, head = chain.head
    ts = "2027-01-15T08:00:05.000Z"
    checkpoint = {
        "event": "audit.checkpoint",
        "head": {"seq": seq, "hash": head},
        "key": signer.key_id,
        "sig": signer.sign(keys.checkpoint_message(seq, head, ts)),
    }
    content.append(chain.seal(checkpoint, AT + 5))
    log = tmp_path / "audit.log"
    log.write_bytes(b"".join(content))
    signed = cli("audit", "verify", log, "--key", tmp_path / "key.pub")
    assert (signed.code, signed.out.splitlines()[-1].strip()) == (0, "signed up to record 3, by 1 checkpoints")
    assert "1 checkpoints, whose signatures --key would check" in cli("audit", "verify", log).out
    other = keys.load_or_create(tmp_path / "other")
    assert other.key_id != signer.key_id
    refused = cli("audit", "verify", log, "--key", tmp_path / "other.pub")
    assert refused.code == 1
    assert f"{log}:4: " in refused.out


def test_a_young_log_without_a_checkpoint_says_so_and_an_old_one_is_bad(cli, tmp_path):
    keys.load_or_create(tmp_path / "key")
    log = tmp_path / "audit.log"
    log.write_bytes(b"".join(lines(8, Chain())))
    young = cli("audit", "verify", log, "--key", tmp_path / "key.pub")
    assert young.code == 0
    assert young.out.splitlines()[-1].strip() == "no checkpoint yet: no signature covers a record"
    old = cli("audit", "verify", log, "--key", tmp_path / "key.pub", "--checkpoint-every", 7)
    assert old.code == 1
    assert "no checkpoint in 8 records" in old.out


def test_a_key_that_cannot_be_read_is_a_usage_error(cli, log, tmp_path):
    answer = cli("audit", "verify", log, "--key", tmp_path / "none.pub")
    assert answer.code == 2
    assert "none.pub" in answer.err


def test_a_log_whose_older_files_are_gone_says_where_it_begins(cli, tmp_path):
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(lines(10)[4:]))
    assert "begins at record 5: older files are not here" in cli("audit", "verify", path).out


def test_a_head_noted_earlier_finds_a_log_that_was_cut(cli, log):
    head = cli("audit", "head", log).out.strip()
    assert head.startswith("30:sha256:")
    assert cli("audit", "verify", log, "--known", head).code == 0
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:20]))
    answer = cli("audit", "verify", log, "--known", head)
    assert answer.code == 1
    assert "the log ends at record 20, but had record 30" in answer.out


@pytest.mark.parametrize("known", ["30", "x:sha256:" + "0" * 64, "30:sha256:00"])
def test_a_known_head_of_another_form_is_a_usage_error(cli, log, known):
    answer = cli("audit", "verify", log, "--known", known)
    assert answer.code == 2
    assert "as `hearth audit head` prints it" in answer.err


def test_the_head_as_json(cli, log):
    head = cli("audit", "head", log, "--json").json
    assert head["seq"] == 30
    assert len(head["hash"]) == len("sha256:") + 64


def test_without_a_path_it_is_the_log_of_this_users_daemon(cli, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state/audit.log").write_bytes(b"".join(lines(2)))
    assert cli("audit", "verify").out.startswith("OK   records: 2")
    assert cli("audit", "head").out.startswith("2:")
    assert len(cli("audit", "tail").out.splitlines()) == 2


def test_tail_prints_the_last_records_in_order(cli, log):
    shown = cli("audit", "tail", "-n", "3", log).out.splitlines()
    assert [line.split()[0] for line in shown] == ["28", "29", "30"]
    assert shown[-1] == "    30  2027-01-15T08:00:29.000Z  task.finish         task_id=T29"
    assert len(cli("audit", "tail", log).out.splitlines()) == 10
    assert cli("audit", "tail", "-n", "0", log).out == ""


def test_tail_as_json_has_whole_records(cli, log):
    shown = cli("audit", "tail", "-n", "2", "--json", log).documents
    assert [record["seq"] for record in shown] == [29, 30]
    assert shown[0]["principal"] == "uid:0"
    assert shown[0]["prev"].startswith("sha256:")


def test_a_log_that_may_not_be_read_is_an_error_with_its_name(cli, tmp_path):
    answer = cli("audit", "tail", tmp_path / "none.log")
    assert answer.code == 1
    assert answer.err == f"hearth: {tmp_path}/none.log: No such file or directory\n"
    as_json = cli("audit", "tail", "--json", tmp_path / "none.log")
    assert as_json.json == {"error": {"message": f"{tmp_path}/none.log: No such file or directory"}}


def test_tail_follows_what_is_written_and_ctrl_c_ends_it(cli, log, monkeypatch):
    content = lines(34)
    looks = iter([content[:31], content[:31], content[:34]])

    def look_again(_seconds):
        written = next(looks, None)
        if written is None:
            raise KeyboardInterrupt
        log.write_bytes(b"".join(written))

    monkeypatch.setattr(time, "sleep", look_again)
    answer = cli("audit", "tail", "-n", "1", "-f", log)
    assert answer.code == 130
    assert [line.split()[0] for line in answer.out.splitlines()] == ["30", "31", "32", "33", "34"]


def test_tail_follows_a_log_from_now_on(cli, log, monkeypatch):
    def look_again(_seconds):
        if len(log.read_bytes().splitlines()) > 30:
            raise KeyboardInterrupt
        log.write_bytes(b"".join(lines(31)))

    monkeypatch.setattr(time, "sleep", look_again)
    answer = cli("audit", "tail", "-n", "0", "-f", log, "--json")
    assert [record["seq"] for record in answer.documents] == [31]


def test_records_since_one_are_all_of_them_however_many(tmp_path):
    path = tmp_path / "audit.log"
    path.write_bytes(b"".join(lines(200)))
    assert [record["seq"] for record in since(path, 50)] == list(range(51, 201))
    assert since(path, 200) == []
    assert len(since(path, 0)) == 200


def test_a_record_is_one_line_whatever_is_in_it():
    record = {
        "seq": 7,
        "ts": "T",
        "event": "task.submit",
        "intent": "x\x1b[2J",
        "steps": [{"tool": "a.b", "args_hash": "sha256:1"}, {"tool": "c.d", "args_hash": "sha256:2"}],
        "reason": None,
        "safe": [{"line": 1}],
        "prev": "sha256:0",
    }
    assert record_line(record) == '     7  T  task.submit         intent=x\\x1b[2J steps=a.b,c.d safe=[{"line":1}]'
    assert record_line({}) == "     -  -  -"


def test_the_default_log_is_below_the_state_directory(monkeypatch):
    monkeypatch.setenv("STATE_DIRECTORY", "/state")
    assert str(audit.default_log()) == "/state/audit.log"


def test_what_tail_prints_as_json_is_json(cli, log):
    for line in cli("audit", "tail", "--json", log).out.splitlines():
        assert orjson.loads(line)["event"] == "task.finish"


@pytest.mark.parametrize("how", [[], ["--json"]])
# orjson reads a thousand levels, and writes a quarter of them.
@pytest.mark.parametrize("deep", ["[" * 1000 + "]" * 1000, '{"a":' * 1000 + "1" + "}" * 1000], ids=["array", "object"])
def test_tail_shows_a_record_of_another_programs_making_on_one_line(cli, tmp_path, how, deep):
    path = tmp_path / "audit.log"
    path.write_text(f'{{"seq":1,"ts":"a\\nb","event":"e\\n","x":{deep},"y":5,"prev":"p"}}\n')
    done = cli("audit", "tail", str(path), *how)
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert "nested too deeply" in line
    assert "a\\nb" in line
