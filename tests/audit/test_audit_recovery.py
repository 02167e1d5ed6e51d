"""What a crash leaves behind is found, kept and named when the log is opened again."""

import json
import os
import stat

import pytest
from hypothesis import given, settings as limits, strategies as st

from hearth.audit import files, recovery
from hearth.audit.files import backward
from hearth.audit.verify import head, verify
from hearth.errors import ConfigError


def submit(task, session="s"):
    return {"event": "task.submit", "session_id": session, "task_id": task}


def start(task, index=0, tool="gpio.set"):
    return {"event": "task.step.start", "session_id": "s", "task_id": task, "step_index": index, "tool": tool}


def finish(task, index=0):
    return {"event": "task.step.finish", "session_id": "s", "task_id": task, "step_index": index}


def done(task):
    return {"event": "task.finish", "session_id": "s", "task_id": task, "status": "SUCCESS"}


BEGIN = {"event": "daemon.start"}
END = {"event": "daemon.stop"}


def reopened(bench):
    log = bench.log()
    log.close()
    return bench.found


# --- the torn end


@pytest.mark.slow
def test_every_torn_end_is_moved_aside_byte_for_byte_and_the_chain_goes_on(bench, events):
    bench.write(*events(3))
    whole = bench.path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    kept = whole[: -len(last)]
    for cut in range(1, len(last)):
        bench.path.write_bytes(whole[:-cut])
        found = reopened(bench)
        assert found.torn.read_bytes() == last[:-cut]
        assert found.torn_bytes == len(last) - cut
        assert bench.path.read_bytes() == kept
        assert found.head == head(bench.path)
        found.torn.unlink()
    bench.write({"event": "after"})
    bench.assert_chained()
    assert [record["event"] for record in bench.records()] == ["test.event"] * 2 + ["after"]


def test_a_whole_log_is_opened_without_a_trace(bench, events):
    bench.write(*events(3))
    before = bench.path.read_bytes()
    found = reopened(bench)
    assert (found.torn, found.in_flight, found.unclean) == (None, (), False)
    assert found.record() is None
    assert found.notes() == []
    assert bench.path.read_bytes() == before


@pytest.mark.parametrize(
    "tail",
    [
        b"\0" * 5000,
        b"half a record\n",
        b'{"seq":4,"ts"\n{"seq":5\n',
        b'{"seq":"4","prev":""}\n',
        b"[]\n",
        b"\xff\xfe\n{",
    ],
    ids=["zeros", "text", "two lines", "no number", "no object", "no utf-8"],
)
def test_whatever_follows_the_last_record_is_no_record(bench, events, tail):
    bench.write(*events(3))
    whole = bench.path.read_bytes()
    bench.path.write_bytes(whole + tail)
    found = reopened(bench)
    assert bench.path.read_bytes() == whole
    assert found.torn.read_bytes() == tail
    assert found.torn.parent == bench.directory


@pytest.mark.parametrize("start_of_record", [b"{", b'{"seq":1,"ts":"2026', b"\0" * 100])
def test_a_torn_first_record_is_torn_and_not_another_programs_file(bench, start_of_record):
    bench.path.write_bytes(start_of_record)
    found = reopened(bench)
    assert found.torn.read_bytes() == start_of_record
    assert found.head[0] == 0
    assert bench.path.read_bytes() == b""


def test_a_long_torn_end_is_moved_whole(bench, events):
    bench.write(*events(1))
    tail = b"x" * (files.CHUNK * 3 + 17)
    with bench.path.open("ab") as file:
        file.write(tail)
    assert reopened(bench).torn.read_bytes() == tail
    assert len(bench.lines()) == 1


def test_torn_bytes_and_their_name_are_on_the_disk_before_they_are_cut_off(bench, events, monkeypatch):
    bench.write(*events(2))
    bench.path.write_bytes(bench.path.read_bytes()[:-5])
    calls = []
    for name in ("fsync", "ftruncate"):
        call = getattr(os, name)

        def noted(fd, *args, name=name, call=call):
            calls.append((name, stat.S_ISDIR(os.fstat(fd).st_mode)))
            return call(fd, *args)

        monkeypatch.setattr(os, name, noted)
    reopened(bench)
    assert calls == [("fsync", False), ("fsync", True), ("ftruncate", False)]


@pytest.mark.parametrize(("hole", "whole"), [(b"\0", 1), (b"\xff", 1), (b"\n", 2)], ids=["zeros", "garbage", "lines"])
def test_records_behind_bytes_of_the_last_run_that_never_reached_the_disk_are_moved_aside_with_them(bench, hole, whole):
    bench.write(BEGIN, submit("a"), done("a"), submit("b"), start("b"), finish("b"), done("b"))
    lines = bench.path.read_bytes().splitlines(keepends=True)
    kept, lost, behind = b"".join(lines[:4]), len(lines[4]), b"".join(lines[5:])
    bench.path.write_bytes(kept + hole * lost + behind)
    found = reopened(bench)
    assert bench.path.read_bytes() == kept
    assert found.torn.read_bytes() == hole * lost + behind
    assert [task["task_id"] for task in found.in_flight] == ["b"]
    assert found.record()["torn"] == {"file": found.torn.name, "bytes": lost + len(behind), "records": whole}
    assert f"{whole} records" in found.notes()[0]
    bench.write({"event": "after"})
    bench.assert_chained()


def test_a_line_of_an_earlier_run_that_is_no_record_stays_for_verification_to_find(bench):
    bench.write(BEGIN, submit("a"), done("a"), END, BEGIN, submit("b"), done("b"))
    content = bench.path.read_bytes()
    lines = content.splitlines(keepends=True)
    bench.path.write_bytes(content.replace(lines[1], b"x" * (len(lines[1]) - 1) + b"\n"))
    before = bench.path.read_bytes()
    assert reopened(bench).torn is None
    assert bench.path.read_bytes() == before
    assert verify(bench.path).first_bad.line == 2


def test_a_file_that_begins_with_bytes_that_never_reached_the_disk_is_ours_if_a_record_follows(bench, events):
    bench.write(*events(3))
    lines = bench.path.read_bytes().splitlines(keepends=True)
    bench.path.write_bytes(b"\xff" * len(lines[0]) + b"".join(lines[1:]))
    found = reopened(bench)
    assert (found.head[0], found.size) == (0, 0)
    assert found.record()["torn"]["records"] == 1  # the second line is one with what is before it


def test_nothing_is_cut_off_that_could_not_be_kept(bench, events):
    bench.write(*events(2))
    torn = bench.path.read_bytes()[:-5]
    bench.path.write_bytes(torn)
    (bench.directory / "audit.log.torn-20260419T224801.234Z").write_bytes(b"earlier")
    with pytest.raises(ConfigError, match=r"ends in a torn line that cannot be moved to .*torn-.*File exists"):
        bench.log()
    assert bench.path.read_bytes() == torn
    bench.now += 1
    reopened(bench)
    assert len(bench.lines()) == 1


def test_the_record_and_the_notes_name_the_file(bench, events):
    bench.write(*events(2))
    bench.path.write_bytes(bench.path.read_bytes()[:-5])
    found = reopened(bench)
    assert found.record()["torn"] == {"file": found.torn.name, "bytes": found.torn_bytes}
    assert str(found.torn) in found.notes()[0]


# --- tasks in flight


def test_tasks_without_an_end_are_in_flight_with_the_steps_that_had_begun(bench):
    bench.write(
        BEGIN,
        submit("a"),
        start("a"),
        submit("b", "s2"),
        finish("a"),
        start("a", 1, "i2c.write"),
        submit("c"),
        start("c"),
        finish("c"),
        done("c"),
        start("a", 2),
        finish("a", 2),
    )
    found = reopened(bench)
    assert found.in_flight == (
        {"session_id": "s2", "task_id": "b", "steps": []},
        {"session_id": "s", "task_id": "a", "steps": [{"step_index": 1, "tool": "i2c.write"}]},
    )
    assert found.unclean
    assert found.complete
    assert found.record() == {"event": "daemon.recover", "in_flight": list(found.in_flight), "complete": True}
    assert found.notes() == ["2 tasks were in flight when the last run ended: b, a"]


def test_a_run_that_was_stopped_left_nothing(bench):
    bench.write(BEGIN, submit("a"), END)
    assert reopened(bench).record() is None


def test_an_idle_run_that_was_killed_is_recorded(bench):
    bench.write(BEGIN, submit("a"), done("a"))
    found = reopened(bench)
    assert found.record() == {"event": "daemon.recover", "in_flight": [], "complete": True}
    assert found.notes() == ["the last run ended without daemon.stop; no task was in flight"]


def test_tasks_that_an_earlier_recovery_named_are_not_named_again(bench):
    bench.write(BEGIN, submit("a"))
    bench.write(bench_record := {"event": "daemon.recover", "in_flight": []}, BEGIN, submit("b"))
    assert [task["task_id"] for task in reopened(bench).in_flight] == ["b"]
    bench.write(bench_record)
    assert reopened(bench).record() is None


def test_a_log_without_daemon_records_is_read_to_its_beginning(bench):
    bench.write(submit("a"), submit("b"), done("b"))
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["a"]
    assert not found.unclean
    assert found.complete


def test_the_file_that_was_rotated_last_is_read_too(bench, events):
    bench.write(BEGIN, submit("a"), *events(12), submit("b"), rotate_bytes=2048, one_by_one=True)
    assert len(bench.files()) == 2
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["a", "b"]
    assert found.complete


def test_every_rotated_file_of_the_last_run_is_read(bench, events):
    bench.write(BEGIN, submit("a"), *events(40, pad="x" * 100), submit("b"), rotate_bytes=1024, one_by_one=True)
    assert len(bench.files()) > 3
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["a", "b"]
    assert found.complete


def test_of_what_lies_beyond_the_window_nothing_is_read_and_the_record_says_so(bench, events, monkeypatch):
    monkeypatch.setattr(recovery, "WINDOW", 3000)
    bench.write(BEGIN, submit("a"), *events(40, pad="x" * 100), submit("b"), rotate_bytes=1024, one_by_one=True)
    assert len(bench.files()) > 5
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["b"]
    assert not found.complete
    assert found.record()["complete"] is False
    assert "were searched" in found.notes()[-1]


def test_a_rotated_file_that_cannot_be_read_ends_the_search_and_the_record_says_so(bench, events):
    bench.write(BEGIN, submit("a"), *events(40, pad="x" * 100), submit("b"), rotate_bytes=1024, one_by_one=True)
    older = bench.files()[-3]
    older.unlink()
    older.symlink_to("gone")
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["b"]
    assert not found.complete


def test_a_task_whose_submission_is_out_of_reach_is_still_found_by_its_step(bench, events):
    bench.write(BEGIN, submit("a"), *events(40, pad="x" * 100), start("a", 7), rotate_bytes=1024, one_by_one=True)
    bench.files()[0].unlink()
    assert reopened(bench).in_flight == (
        {"session_id": "s", "task_id": "a", "steps": [{"step_index": 7, "tool": "gpio.set"}]},
    )


def test_only_a_window_is_read_however_large_the_files_are(bench, events, monkeypatch):
    monkeypatch.setattr(recovery, "WINDOW", 1000)
    monkeypatch.setattr(files, "CHUNK", 128)
    read = []
    pread = files.os.pread
    monkeypatch.setattr(files.os, "pread", lambda fd, n, offset: read.append(n) or pread(fd, n, offset))
    bench.write(BEGIN, submit("a"), *events(100), submit("b"))
    read.clear()
    with bench.path.open("r+b") as log:
        found = recovery.recover(bench.path, log.fileno(), bench.now)
    assert [task["task_id"] for task in found.in_flight] == ["b"]
    assert not found.complete
    assert sum(read) < 3000 < bench.path.stat().st_size


def test_the_window_reaches_over_the_rotated_file_too(bench, events, monkeypatch):
    monkeypatch.setattr(recovery, "WINDOW", 1500)
    bench.write(BEGIN, submit("a"), *events(12), submit("b"), rotate_bytes=2048, one_by_one=True)
    assert len(bench.files()) == 2
    assert not reopened(bench).complete


def test_a_log_whose_older_files_were_removed_is_searched_as_far_as_it_goes(bench, events):
    bench.write(BEGIN, submit("a"), *events(12, pad="x" * 100), submit("b"), rotate_bytes=1024, one_by_one=True)
    bench.files()[0].unlink()
    found = reopened(bench)
    assert [task["task_id"] for task in found.in_flight] == ["b"]
    assert not found.complete


def test_a_record_names_at_most_a_thousand_tasks_and_counts_the_rest(bench):
    bench.write(BEGIN, *(submit(f"t{n}") for n in range(1003)))
    record = reopened(bench).record()
    assert len(record["in_flight"]) == 1000
    assert record["more_in_flight"] == 3
    assert "and 998 more" in bench.found.notes()[0]


def test_words_inside_other_fields_are_not_taken_for_events(bench):
    inner = {"event": "task.submit", "task_id": "x"}
    bench.write(BEGIN, {"event": "note", "text": '"event":"task.submit"', "inner": inner})
    assert reopened(bench).in_flight == ()


@pytest.mark.parametrize("odd", [["x"], {"x": 1}, None, 3])
def test_odd_fields_in_foreign_records_do_not_keep_the_log_from_opening(bench, odd):
    bench.write(BEGIN, submit(odd), done(odd), submit("a"), start("a", odd), finish("a", odd), start("a", 2))
    assert reopened(bench).in_flight == (
        {"session_id": "s", "task_id": "a", "steps": [{"step_index": 2, "tool": "gpio.set"}]},
    )


def test_a_number_that_could_not_be_counted_on_is_no_record(bench, events):
    bench.write(*events(2))
    with bench.path.open("ab") as file:
        file.write(b'{"seq":18446744073709551615,"ts":"","event":"e","prev":""}\n')
    assert reopened(bench).head[0] == 2


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["start", "finish", "done"])), max_size=30)


@pytest.mark.slow
@given(STEPS)
@limits(deadline=None, max_examples=60)
def test_recovery_agrees_with_reading_the_run_forwards(tmp_path_factory, bench_class, moves):
    """A model that reads forwards: submitted tasks, their running step, forgotten when they finish."""
    bench = bench_class(tmp_path_factory.mktemp("model"))
    records, live, steps = [BEGIN], {}, {}
    for task, move in moves:
        key = f"{task}{steps.get(task, 0) // 100}"
        if key not in live:
            live[key] = None
            records.append(submit(key))
        elif move == "start" and live[key] is None:
            steps[task] = steps.get(task, 0) + 1
            live[key] = steps[task]
            records.append(start(key, steps[task]))
        elif move == "finish" and live[key] is not None:
            records.append(finish(key, live[key]))
            live[key] = None
        elif move == "done":
            records.append(done(key))
            del live[key]
            steps[task] = (steps.get(task, 0) // 100 + 1) * 100
    bench.write(*records)
    found = {task["task_id"]: [step["step_index"] for step in task["steps"]] for task in reopened(bench).in_flight}
    assert found == {key: [] if index is None else [index] for key, index in live.items()}


# --- files that are missing


def test_a_log_whose_current_file_is_missing_goes_on_from_the_last_rotated_one(bench, events):
    bench.write(*events(20, pad="x" * 100), rotate_bytes=1024)
    last = json.loads(bench.lines()[0])["seq"] - 1
    bench.path.unlink()
    bench.write({"event": "after"})
    records = [json.loads(line) for line in bench.lines()]
    assert [(record["seq"], record["event"]) for record in records] == [
        (last + 1, "audit.rotate"),
        (last + 2, "after"),
    ]
    assert records[0]["reason"] == "recovered"
    assert verify(bench.path).ok
    bench.assert_chained()


def test_a_new_file_of_a_rotated_log_is_ours_whatever_a_power_cut_left_in_it(bench, events):
    bench.write(*events(20, pad="x" * 100), rotate_bytes=1024)
    bench.path.write_bytes(b"\xff\x8c" * 50)
    assert reopened(bench).torn.read_bytes() == b"\xff\x8c" * 50
    bench.write({"event": "after"})
    bench.assert_chained()


def test_a_torn_first_record_of_a_rotated_log_goes_on_from_the_file_before(bench, events):
    bench.write(*events(20, pad="x" * 100), rotate_bytes=1024)
    bench.path.write_bytes(bench.path.read_bytes()[:50])
    bench.write({"event": "after"})
    assert verify(bench.path).ok
    bench.assert_chained()


@pytest.mark.parametrize("content", [b"", b"nothing\n"])
def test_a_rotated_file_to_go_on_from_must_have_a_record(bench, content):
    (bench.directory / "audit.log.000000000001").write_bytes(content)
    with pytest.raises(ConfigError, match=r"audit\.log\.000000000001: has no whole record to continue from"):
        bench.log()


def test_a_rotated_file_that_cannot_be_read_is_named(bench):
    (bench.directory / "audit.log.000000000001").symlink_to(bench.directory / "gone")
    with pytest.raises(ConfigError, match=r"audit\.log\.000000000001: No such file"):
        bench.log()


# --- reading backwards


def test_a_line_that_is_very_long_is_read_in_few_calls(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 16)
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + b"x" * 100_000 + b"\nlast\n")
    calls = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: calls.append(args) or pread(*args))
    with path.open("rb") as file:
        lines = [line for _, line in backward(file.fileno(), path.stat().st_size)]
    assert [len(line) for line in lines] == [5, 100_001, 6]
    assert len(calls) < 30


@pytest.mark.slow
@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=12),
    st.booleans(),
    st.integers(1, 16),
    st.integers(0, 60),
)
@limits(deadline=None)
def test_lines_come_backwards_as_they_lie_in_the_file(tmp_path_factory, lines, ended, chunk, floor):
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(data)
    expected, offset = [], 0
    for line in data.split(b"\n"):
        whole = line + b"\n" if offset + len(line) < len(data) else line
        if whole and offset >= floor:
            expected.append((offset, whole))
        offset += len(whole)
    was, files.CHUNK = files.CHUNK, chunk
    try:
        with path.open("rb") as file:
            assert list(backward(file.fileno(), len(data), min(floor, len(data)))) == expected[::-1]
    finally:
        files.CHUNK = was


def test_a_record_that_is_nested_as_deep_as_json_goes_is_read_like_any_other(bench):
    bench.write({"event": "daemon.start"}, submit("t"))
    line = bench.lines()[1].decode().replace('"task.submit"', '"task.step.start"')
    deep = line.replace('"task_id":"t"', '"task_id":"t","step_index":' + "[" * 1000 + "]" * 1000)
    with bench.path.open("ab") as file:
        file.write(deep.encode() + b"\n")
    log = bench.log()
    log.close()
    assert [task["task_id"] for task in bench.found.in_flight] == ["t"]
    assert len(bench.found.in_flight[0]["steps"]) == 1


def test_a_note_is_one_line_whatever_a_task_is_called(bench):
    bench.write({"event": "daemon.start"}, submit("t\n\x1b[2J"))
    bench.log().close()
    assert [note for note in bench.found.notes() if not note.isprintable()] == []


def test_a_log_that_is_refused_is_left_as_it_was(bench):
    bench.path.write_bytes(b'{"seq":7,"torn')
    bench.path.with_name("audit.log.000000000001").write_bytes(b"no record\n")
    with pytest.raises(ConfigError, match="has no whole record to continue from"):
        bench.log()
    assert bench.path.read_bytes() == b'{"seq":7,"torn'
    assert list(bench.directory.glob("*.torn-*")) == []


# --- a log that was rolled back


def older_copy(bench):
    """Two runs that ended in good order, and the log of the first one put back."""
    bench.write(BEGIN, END)
    first = bench.path.read_bytes()
    bench.write(BEGIN, END)
    bench.path.write_bytes(first)


def removed(bench):
    bench.write(BEGIN, END, BEGIN, END)
    bench.path.unlink()


def cut_at_a_record(bench):
    bench.write(BEGIN, END, BEGIN, END)
    bench.path.write_bytes(b"".join(bench.path.read_bytes().splitlines(keepends=True)[:2]))


def cut_while_the_next_run_is_dead(bench):
    """A run was killed, the next one started and was killed at once: its start had synced what the first one wrote."""
    log = bench.log(durability="fsync")
    bench.append(log, BEGIN, END, BEGIN, BEGIN)
    os.close(log._writer.fd)
    os.close(bench.log(durability="fsync")._writer.fd)
    bench.path.write_bytes(b"".join(bench.path.read_bytes().splitlines(keepends=True)[:2]))


@pytest.mark.parametrize(
    ("roll_back", "last", "durability"),
    [
        (older_copy, 2, "os"),
        (older_copy, 2, "fsync"),
        (cut_at_a_record, 2, "os"),
        (cut_while_the_next_run_is_dead, 2, "fsync"),
        (removed, 0, "os"),
        (removed, 0, "fsync"),
    ],
)
def test_a_log_that_was_rolled_back_is_named_at_start_and_by_verification(bench, roll_back, last, durability):
    roll_back(bench)
    wanted = f"ends at record {last}, but its tree file says that record 4 was on the disk"
    if last:  # the file that is missing is named else
        assert wanted in verify(bench.path).first_bad.reason
    log = bench.log(durability=durability)
    record = bench.found.record()
    assert record["missing"] == {"first_seq": last + 1, "last_seq": 4, "synced": True}
    assert record["in_flight"] == []
    assert bench.found.notes() == [bench.found.rollback]
    assert wanted in bench.found.rollback
    # A start that dies before the record is written hides nothing from the next one.
    os.close(log._writer.fd)
    log = bench.log(durability=durability)
    assert bench.found.record() == record
    bench.append(log, record, BEGIN, END)
    log.close()
    bench.assert_chained()
    assert verify(bench.path).ok
    assert reopened(bench).record() is None


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_records_that_a_power_cut_took_before_their_sync_are_no_rollback(bench, events, durability):
    bench.write(BEGIN, END, durability=durability)
    log = bench.log(signed=True, durability=durability, checkpoint_every=300)
    # The power fails after the hashes reached the disk, and before a sync of the records did.
    log._sync = False
    bench.append(log, BEGIN, *events(400))
    os.close(log._writer.fd)
    bench.path.write_bytes(b"".join(bench.path.read_bytes().splitlines(keepends=True)[:2]))
    assert verify(bench.path).ok
    found = reopened(bench)
    assert found.rollback is None
    assert found.record()["missing"] == {"first_seq": 3, "last_seq": 256, "synced": False}
    (note,) = found.notes()
    assert "a power cut took records that were not synced, or the log was cut or replaced" in note
    assert reopened(bench).record() is None


def test_a_log_with_a_tree_file_of_zeros_or_without_one_is_no_rollback(bench):
    bench.write(BEGIN, END)
    tree = bench.path.with_name("audit.log.tree")
    for spoil in (tree.unlink, lambda: tree.write_bytes(bytes(200)), lambda: tree.write_bytes(b"hearth tree 1\n\0\0")):
        spoil()
        assert verify(bench.path).ok
        assert reopened(bench).record() is None
