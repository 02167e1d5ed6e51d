"""Verification: every change is found, at the place where it is."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
from hypothesis import given, settings as limits, strategies as st

from hearth.audit import keys
from hearth.audit.record import GENESIS, Chain, encode
from hearth.audit.tree import tree_path
from hearth.audit.verify import Report, head, tail, verify
from hearth.errors import ConfigError

SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "verify-audit.sh"
SHELLS = [shell for shell in ("sh", "bash", "busybox") if shutil.which(shell)]
NOON = 1_776_638_881.234


@pytest.fixture
def rotated(bench, events):
    """A log of several files, signed."""
    bench.write(*events(30, pad="x" * 60), signed=True, checkpoint_every=7, rotate_bytes=2500)
    assert len(bench.files()) >= 3
    return bench


def script(files, shell="sh"):
    command = [shell, "sh"] if shell == "busybox" else [shell]
    done = subprocess.run([*command, SCRIPT, *files], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def public(bench):
    return keys.public_path(bench.key)


# --- good logs


def test_a_good_log_is_reported_with_its_head_and_its_files(rotated):
    report = verify(rotated.path, public(rotated))
    records = rotated.records()
    assert report == Report(
        records=len(records),
        files=tuple(rotated.files()),
        head=head(rotated.path),
        first_seq=1,
        checkpoints=sum(record["event"] == "audit.checkpoint" for record in records),
        signed_to=max(record["head"]["seq"] for record in records if record["event"] == "audit.checkpoint"),
    )
    assert report.ok
    assert report.head[0] == len(records)


def test_without_a_public_key_nothing_counts_as_signed(rotated):
    report = verify(rotated.path)
    assert report.ok
    assert report.checkpoints > 0
    assert report.signed_to == 0


@pytest.mark.parametrize(
    "choose",
    [
        lambda bench: bench.files(),
        lambda bench: [str(file) for file in bench.files()],
        lambda bench: [bench.path, *bench.files()],
        lambda bench: sorted(bench.directory.glob("audit.log*")),
        lambda bench: str(bench.path),
        lambda bench: iter([bench.path]),
    ],
    ids=["files", "names", "twice", "a shell pattern", "one name", "an iterator"],
)
def test_however_a_log_is_named_each_file_is_read_once_and_in_order(rotated, choose):
    (rotated.directory / "audit.log.torn-20260419T224801.234Z").write_bytes(b"torn")
    (rotated.directory / "audit.log.outputs").write_bytes(b'{"version":1,"outputs":{"a":[1]}}')
    (rotated.directory / "audit.log.hcp").mkdir()
    (rotated.directory / "audit.log.key.7.new").write_bytes(b"half a key")
    report = verify(choose(rotated), public(rotated))
    assert report.ok, report.first_bad
    assert report.files == tuple(rotated.files())


def test_a_rotated_file_can_be_checked_alone(rotated):
    middle = rotated.files()[1]
    report = verify(middle)
    assert report.ok
    assert report.files == (middle,)
    assert report.first_seq == int(middle.name[-12:])


def test_a_log_whose_oldest_files_were_removed_is_good_from_there_on(rotated):
    first = rotated.files()[0]
    first.unlink()
    report = verify(rotated.path, public(rotated))
    assert report.ok
    assert report.first_seq > 1


def test_a_log_whose_current_file_is_missing_is_good_up_to_there(rotated):
    rotated.path.unlink()
    assert "but its tree file says that record" in verify(rotated.path).first_bad.reason
    tree_path(rotated.path).unlink()
    report = verify(rotated.path)
    assert report.ok
    assert report.files == tuple(rotated.files()[:-1])


def test_an_empty_log_is_good_and_has_no_head(bench):
    bench.write()
    report = verify(bench.path)
    assert report.ok
    assert (report.records, report.head, report.first_seq) == (0, None, None)


def test_a_log_is_verified_while_it_is_written_and_rotated(rotated, events, monkeypatch):
    """The current file gets its rotated name between the moment it is opened and the moment the others are listed."""
    from hearth.audit import verify as module

    files = module.rotated_files
    before = rotated.records()[-1]["seq"]

    def list_late(path):
        log = rotated.log(rotate_bytes=1024)
        rotated.append(log, *events(3, pad="x" * 1024))
        log.close()
        return files(path)

    monkeypatch.setattr(module, "rotated_files", list_late)
    report = verify(rotated.path)
    assert report.ok, report.first_bad
    assert report.records >= before


def test_a_file_under_two_names_is_read_once(bench, events):
    """As after a crash of a tool that links before it unlinks."""
    bench.write(*events(3))
    os.link(bench.path, bench.directory / "audit.log.000000000001")
    assert verify([bench.path, bench.directory / "audit.log.000000000001"]).records == 3
    assert verify([bench.directory / "audit.log.000000000001", bench.path]).records == 3


def test_several_logs_that_follow_each_other_are_one(bench, events, tmp_path):
    bench.write(*events(20, pad="x" * 100), rotate_bytes=1024)
    archive = tmp_path / "archive"
    archive.mkdir()
    moved = [file.rename(archive / f"{n}.jsonl") for n, file in enumerate(bench.files()[:-1])]
    assert verify([*moved, bench.path]).ok
    assert not verify([bench.path, *moved]).ok


# --- bad logs


def change_line(bench, file, number, change):
    lines = file.read_bytes().split(b"\n")
    lines[number - 1] = change(lines[number - 1])
    file.write_bytes(b"\n".join(lines))


@pytest.mark.slow
def test_a_changed_byte_anywhere_is_found(bench, events):
    """Every byte of a record but those of the last line, which only a checkpoint or a noted head can vouch for."""
    bench.write(*events(3))
    whole = bench.path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for position in range(last):
        for flip in (1, 64):
            data = bytearray(whole)
            data[position] ^= flip
            bench.path.write_bytes(data)
            report = verify(bench.path)
            line = whole[:position].count(b"\n") + 1
            assert not report.ok, (position, flip)
            assert report.first_bad.file == bench.path
            assert report.first_bad.line in (line, line + 1)


def test_a_changed_last_line_is_found_by_a_checkpoint_or_a_noted_head(bench, events):
    bench.write(*events(7), signed=True, checkpoint_every=7)
    noted = head(bench.path)
    change_line(bench, bench.path, 8, lambda line: line.replace(b"22:48", b"22:49"))
    assert verify(bench.path).ok
    assert "signature" in verify(bench.path, public(bench)).first_bad.reason
    assert "as noted before" in verify(bench.path, known=noted).first_bad.reason


@pytest.mark.parametrize(("records", "every", "good"), [(12, 12, True), (13, 12, False), (13, None, True)])
def test_a_log_without_any_checkpoint_is_bad_for_a_key_once_it_should_have_one(bench, events, records, every, good):
    """docs/reference/audit.md: a checkpoint follows daemon.start and every `checkpoint_every` records."""
    bench.write(*events(records))
    keys.load_or_create(bench.key)
    more = {} if every is None else {"checkpoint_every": every}
    assert verify(bench.path, **more).ok
    report = verify(bench.path, public(bench), **more)
    assert (report.ok, report.checkpoints, report.signed_to) == (good, 0, 0)
    assert good or "no checkpoint in 13 records" in report.first_bad.reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"garbage", "not JSON"),
        (b'{"seq":3', "not JSON"),
        (b"\xff", "not JSON"),
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"3", "not a JSON object"),
        (b"{}", "seq is None, not a number"),
        (b'{"seq":"3"}', "seq is '3', not a number"),
        (b'{"seq":true}', "seq is True, not a number"),
        (b'{"seq":0}', "seq is 0, not a number"),
        (b'{"seq":3}', "prev is None, not a hash"),
        (b'{"seq":3,"prev":3}', "prev is 3, not a hash"),
        (b'{"seq":4,"prev":""}', "seq is 4, expected 3: records are missing, repeated or out of order"),
        (b'{"seq":2,"prev":""}', "seq is 2, expected 3"),
        (b'{"seq":3,"prev":"sha256:0"}', "prev is sha256:0, but the line before has the hash sha256:"),
    ],
)
def test_the_first_bad_record_is_named_by_file_line_and_reason(bench, events, line, reason):
    bench.write(*events(5))
    change_line(bench, bench.path, 3, lambda _: line)
    report = verify(bench.path)
    file, number, why = report.first_bad
    assert (file, number) == (bench.path, 3)
    assert why.startswith(reason)
    assert (report.records, report.head[0], report.ok) == (2, 2, False)


def test_a_bad_line_in_a_rotated_file_is_named_there(rotated):
    second = rotated.files()[1]
    change_line(rotated, second, 4, lambda line: line.replace(b"x", b"y", 1))
    assert verify(rotated.path).first_bad[:2] == (second, 5)


def test_a_first_record_that_follows_nothing_must_say_so(bench, events):
    chain = Chain(0, "sha256:" + "1" * 64)
    bench.path.write_bytes(chain.seal({"event": "e"}, NOON))
    assert verify(bench.path).first_bad.line == 1


def test_a_missing_rotated_file_is_found(rotated):
    files = rotated.files()
    files[1].unlink()
    file, line, reason = verify(rotated.path).first_bad
    assert (file, line) == (files[2], 1)
    assert "records are missing" in reason


def test_an_emptied_or_exchanged_rotated_file_is_found_by_its_name(rotated):
    first, second, *_ = rotated.files()
    first.write_bytes(b"")
    assert verify(rotated.path).first_bad == (first, 0, "the file is named after record 1, but holds no record")
    shutil.copy(second, first)
    file, line, reason = verify(rotated.path).first_bad
    assert (file, line) == (first, 1)
    assert reason.startswith("the file is named after record 1, but begins with record ")


def test_a_torn_tail_is_found(bench, events):
    bench.write(*events(3))
    bench.path.write_bytes(bench.path.read_bytes()[:-1])
    assert verify(bench.path).first_bad == (bench.path, 3, "torn: the last line has no line feed")


def test_files_that_cannot_be_read_are_bad(bench, rotated):
    assert verify(bench.directory / "none").first_bad == (bench.directory / "none", 0, "No such file or directory")
    assert verify(bench.directory).first_bad == (bench.directory, 0, "Is a directory")
    assert verify(bench.directory / "no" / "log").first_bad.reason == "No such file or directory"
    assert verify([]).first_bad.reason == "no audit log was named"
    gone = rotated.files()[0]
    gone.unlink()
    gone.mkdir()
    assert verify(rotated.path).first_bad == (gone, 0, "Is a directory")


# --- checkpoints


def forge(bench, change):
    """Write the whole log anew with `change` applied to each record, in a chain that is right."""
    chain = Chain()
    for file in bench.files():
        lines = []
        for line in bench.lines(file):
            record = json.loads(line)
            at = bench.now
            for name in ("seq", "ts", "prev"):
                del record[name]
            lines.append(chain.seal(change(record, chain) or record, at))
        file.write_bytes(b"".join(lines))


def test_a_rewritten_chain_is_found_by_its_checkpoints(rotated):
    forge(rotated, lambda record, chain: {**record, "n": 99} if record.get("n") == 3 else None)
    bad = verify(rotated.path).first_bad
    assert "checkpoint for the head" in bad.reason

    def adapt(record, chain):
        if record["event"] == "audit.checkpoint":
            record.pop("note")
            return {**record, "head": {"seq": chain.seq, "hash": chain.prev}}
        return {**record, "n": 99} if record.get("n") == 3 else None

    forge(rotated, adapt)
    assert verify(rotated.path).ok
    report = verify(rotated.path, public(rotated))
    assert "signature by ed25519:" in report.first_bad.reason
    assert report.signed_to == 0


def test_a_key_of_the_forgers_own_is_not_among_the_public_keys(rotated, tmp_path):
    stranger = keys.load_or_create(tmp_path / "stranger" / "key")

    def sign(record, chain):
        if record["event"] != "audit.checkpoint":
            return {**record, "n": 99} if record.get("n") == 3 else None
        seq, top = chain.head
        record.pop("note")
        return {
            **record,
            "head": {"seq": seq, "hash": top},
            "key": stranger.key_id,
            "sig": stranger.sign(keys.checkpoint_message(seq, top, "2026-04-19T22:48:01.234Z")),
        }

    forge(rotated, sign)
    assert verify(rotated.path, tmp_path / "stranger" / "key.pub").ok
    reason = verify(rotated.path, public(rotated)).first_bad.reason
    assert reason == f"checkpoint signed with the key {stranger.key_id}, which is not among the public keys given"


@pytest.mark.parametrize("damage", [{"sig": None}, {"sig": ""}, {"key": None}, {"key": ["x"]}, {"head": None}])
def test_a_checkpoint_without_its_parts_is_bad(rotated, damage):
    forge(
        rotated,
        lambda record, chain: (
            {**record, "head": {"seq": chain.seq, "hash": chain.prev}, **damage}
            if record["event"] == "audit.checkpoint"
            else None
        ),
    )
    assert "checkpoint" in verify(rotated.path, public(rotated)).first_bad.reason


def test_a_checkpoint_proves_its_own_time(rotated):
    """Its ts is part of what is signed: a clock turned back on the record is found even on the last line."""
    assert b"22:48" in rotated.path.read_bytes()
    report = verify(rotated.path, public(rotated))
    assert report.ok
    rotated.now += 60
    log = rotated.log(checkpoint_every=1)
    log.signer = keys.load_or_create(rotated.key)
    rotated.append(log, {"event": "e"})
    log.close()
    change_line(rotated, rotated.path, len(rotated.lines()), lambda line: line.replace(b"22:49", b"22:48"))
    assert "signature" in verify(rotated.path, public(rotated)).first_bad.reason


def test_keys_that_were_changed_on_the_way_are_all_needed(bench, events, tmp_path):
    bench.write(*events(3), signed=True, checkpoint_every=3)
    first = tmp_path / "first.pub"
    shutil.copy(public(bench), first)
    bench.key.unlink()
    bench.write(*events(3), signed=True, checkpoint_every=3)
    assert verify(bench.path, public(bench)).ok
    assert "not among the public keys" in verify(bench.path, first).first_bad.reason


def test_a_public_key_that_cannot_be_read_is_the_callers_error(rotated, tmp_path):
    with pytest.raises(ConfigError, match="none"):
        verify(rotated.path, tmp_path / "none")


# --- against a head that was noted


def test_a_log_that_was_cut_is_found_by_a_head_that_was_noted(rotated):
    noted = head(rotated.path)
    assert verify(rotated.path, known=noted).ok
    tree_path(rotated.path).unlink()
    lines = rotated.lines()
    rotated.path.write_bytes(b"\n".join(lines[:-1]) + b"\n")
    assert verify(rotated.path, public(rotated)).ok
    bad = verify(rotated.path, known=noted).first_bad
    assert bad == (rotated.path, len(lines) - 1, f"the log ends at record {noted[0] - 1}, but had record {noted[0]}")


def test_a_log_that_was_replaced_is_found_by_a_head_that_was_noted(bench, events):
    bench.write(*events(5))
    noted = head(bench.path)
    bench.path.unlink()
    bench.write(*events(9, forged=True))
    bad = verify(bench.path, known=noted).first_bad
    assert bad.line == 5
    assert f"record 5 has the hash {tail(bench.path, 4)[0]['prev']}, and not {noted[1]}" in bad.reason
    bench.path.unlink()
    bench.path.touch()
    assert verify(bench.path, known=noted).first_bad.reason == "the log ends at record 0, but had record 5"


def test_a_head_from_before_the_oldest_file_cannot_be_confirmed(rotated):
    noted = (1, "sha256:" + "0" * 64)
    rotated.files()[0].unlink()
    assert "after record 1" in verify(rotated.path, known=noted).first_bad.reason


# --- head and tail


def test_tail_reaches_over_rotated_files(rotated):
    records = rotated.records()
    for count in (0, 1, 5, len(records) - 1, len(records), 10**6):
        assert tail(rotated.path, count) == (records[-count:] if count else [])


def test_head_and_tail_pass_over_a_torn_end(bench, events):
    bench.write(*events(3))
    expected = head(bench.path)
    with bench.path.open("ab") as file:
        file.write(b'{"seq":4')
    assert head(bench.path) == expected
    assert [record["n"] for record in tail(bench.path, 2)] == [1, 2]


def test_a_log_without_records_has_no_head(bench):
    bench.path.touch()
    assert head(bench.path) is None
    assert tail(bench.path, 3) == []
    with pytest.raises(FileNotFoundError):
        head(bench.directory / "none")


def test_head_and_tail_find_a_log_whose_current_file_is_missing(rotated):
    rotated.path.unlink()
    assert tail(rotated.path, 1)[0]["seq"] == head(rotated.path)[0]


# --- the shell script


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_agrees_on_a_good_log(rotated, shell):
    seq, top = head(rotated.path)
    assert script(rotated.files(), shell) == (0, f"ok: the last record is {seq}, its hash {top}\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_takes_whatever_a_record_may_hold(bench, shell):
    text = '\\n \\\\ "prev":"x" \' $(exit 3) `id` %s %d \t\x07 é 𝄞'
    bench.write({"event": "e", "text": text, "prev": "forged"}, {"event": "e"})
    assert verify(bench.path).ok
    assert script([bench.path], shell)[0] == 0


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("change", "line", "reason"),
    [
        (lambda line: line.replace(b'"n":', b'"n": '), 4, "prev is not the hash"),
        (lambda line: line.replace(b'"prev":"sha256:', b'"prev":"sha256:0'), 3, "prev is not the hash"),
        (lambda line: b"garbage", 3, "not a record"),
        (lambda line: b"", 3, "not a record"),
        (lambda line: line.replace(b'"seq":3', b'"seq":4'), 3, "seq is 4, expected 3"),
        (lambda line: line.replace(b'"seq":3', b'"seq":1'), 3, "seq is 1, expected 3"),
        (lambda line: line + b"\n" + line, 4, "seq is 3, expected 4"),
        (lambda line: line.replace(b'"seq":3', b'"seq":a[$(touch pwned)]'), 3, "not a record"),
    ],
)
def test_the_script_names_the_first_bad_line(bench, events, shell, change, line, reason):
    bench.write(*events(5))
    change_line(bench, bench.path, 3, change)
    code, said = script([bench.path], shell)
    assert code == 1
    assert said.startswith(f"{bench.path}: line {line}: {reason}")
    assert not verify(bench.path).ok
    assert verify(bench.path).first_bad.line == line


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_finds_what_is_wrong_between_files(rotated, shell):
    files = rotated.files()
    assert script(files[1:], shell)[0] == 0  # older files were removed
    assert script([files[0], *files[2:]], shell)[0] == 1
    assert script([files[1], files[0]], shell)[0] == 1
    assert script([*files, rotated.directory / "none"], shell)[0] == 1
    assert script([], shell)[0] != 0
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    code, said = script(files, shell)
    assert code == 1
    assert "torn: no line feed" in said


def mutate(lines, move, index, other):
    lines = list(lines)
    if move == "drop":
        del lines[index]
    elif move == "double":
        lines.insert(index, lines[index])
    elif move == "swap":
        lines[index], lines[other] = lines[other], lines[index]
    elif move == "edit":
        lines[index] = lines[index].replace(b'"event":"', b'"event":"x', 1)
    return lines


@pytest.mark.slow
@given(st.sampled_from(["drop", "double", "swap", "edit", "none"]), st.integers(0, 8), st.integers(0, 8))
@limits(deadline=None, max_examples=30)
def test_script_and_verify_come_to_the_same_verdict(tmp_path_factory, bench_class, move, index, other):
    bench = bench_class(tmp_path_factory.mktemp("same"))
    bench.write(*({"event": "e", "n": n} for n in range(9)))
    lines = mutate(bench.lines(), move, index, other)
    bench.path.write_bytes(b"".join(line + b"\n" for line in lines))
    # The script reads the log alone, and the tree beside it tells of records that were cut off.
    bench.path.with_name("audit.log.tree").unlink(missing_ok=True)
    report = verify(bench.path)
    code, said = script([bench.path])
    assert (code == 0) is report.ok
    assert report.ok or move != "none"
    if not report.ok:
        assert f"line {report.first_bad.line}:" in said


DEEP = "[" * 1000 + "]" * 1000
"""As text: nothing of Python's writes what is nested so deep, and orjson reads it."""
STRANGE = {
    "seq": [DEEP, "x" * 100_000, "\x1b[2J\n", 0, 2**60],
    "prev": [DEEP, ["x" * 100_000], "\x1b[2J\n", "x" * 100_000],
    "head": [DEEP, {"seq": 0, "hash": "x" * 100_000}, "\x1b[2J\n"],
    "key": [DEEP, "x" * 100_000, "\x1b[2J\n"],
}


@pytest.mark.parametrize(("member", "value"), [(name, value) for name, values in STRANGE.items() for value in values])
def test_the_reason_is_one_short_printable_line_whatever_a_record_holds(bench, member, value):
    bench.write({"event": "e"}, {"event": "e"}, signed=True, checkpoint_every=1)
    lines = bench.lines()
    record = json.loads(lines[1])
    assert record["event"] == "audit.checkpoint"
    written = json.dumps({**record, member: value})
    lines[1] = (written.replace(f'"{DEEP}"', DEEP) if value is DEEP else written).encode()
    bench.path.write_bytes(b"".join(line + b"\n" for line in lines))
    bad = verify(bench.path, keys.public_path(bench.key)).first_bad
    assert bad.line == 2
    assert bad.reason.isprintable()
    assert len(bad.reason) < 500


def test_an_event_that_is_no_text_is_a_record_like_any_other(bench):
    line = encode(1, "2026-04-19T22:48:01.234Z", {"event": "x"}, GENESIS).replace(b'"x"', b'{"x":[]}')
    bench.path.write_bytes(line + b"\n")
    assert verify(bench.path).ok
