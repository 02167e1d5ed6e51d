"""The Merkle tree of a log, its file and its proofs, against another implementation of the published specifications."""

import base64
import contextlib
import errno
import hashlib
import json
import os
import random

import pytest
from hypothesis import given, settings, strategies as st
from support import transparency

from hearth.audit import keys
from hearth.audit.notes import (
    COSIGNATURE,
    ED25519,
    Checkpoint,
    NotAccepted,
    Witness,
    decode_hashes,
    inclusion_text,
    read_witness_request,
    verifier_key,
    verify_inclusion,
    witness_request,
)
from hearth.audit.tree import (
    TILE,
    NotProven,
    Prover,
    Tree,
    check_consistency,
    check_inclusion,
    leaf_hash,
    tree_path,
)
from hearth.audit.verify import verify
from hearth.audit.writer import Disk, LogFailed
from hearth.errors import ConfigError

SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 255, 256, 257, 511, 512, 513, 700]


def leaves(count):
    return [b"record %d" % n for n in range(count)]


def grown(lines):
    tree = Tree()
    for line in lines:
        tree.add(line)
    return tree


@pytest.mark.parametrize("size", SIZES)
def test_the_root_is_that_of_rfc_6962(size):
    assert grown(leaves(size)).root() == transparency.root(leaves(size))


def test_memory_does_not_grow_with_the_log():
    tree = grown(leaves(3000))
    assert len(tree._roots) == (3000).bit_count()
    assert len(tree.tiles) == 3000 // TILE


@pytest.fixture
def written(bench, events):
    """A log of 700 records and more, in several files, with signed checkpoints."""
    bench.write(*events(700), signed=True, checkpoint_every=100, rotate_bytes=40_000)
    assert len(bench.files()) > 2
    return bench


def records(bench):
    return [line for file in bench.files() for line in bench.lines(file)]


def notes_of(bench):
    return [(json.loads(line)["seq"], json.loads(line)["note"]) for line in records(bench) if b'"note":' in line]


def vkey(bench, origin):
    (raw,) = keys.load_public(keys.public_path(bench.key)).raw().values()
    return verifier_key(origin, ED25519, raw)


def test_every_checkpoint_is_a_note_that_foreign_code_accepts(written):
    lines = records(written)
    origin = f"hearth-audit/{hashlib.sha256(lines[0]).hexdigest()[:32]}"
    found = notes_of(written)
    assert len(found) >= 7
    for seq, note in found:
        assert transparency.read_checkpoint(note, vkey(written, origin)) == (
            origin,
            seq - 1,
            transparency.root(lines[: seq - 1]),
        )


def test_a_note_of_another_key_and_a_changed_note_are_refused_by_foreign_code(written, tmp_path):
    _, note = notes_of(written)[-1]
    origin = note.split("\n")[0]
    other = keys.load_or_create(tmp_path / "other" / "key")
    with pytest.raises(ValueError, match="no known key"):
        transparency.open_note(note, verifier_key(origin, ED25519, other.raw))
    with pytest.raises(ValueError, match="is wrong"):
        transparency.open_note(note.replace("\n7", "\n8", 1), vkey(written, origin))


@pytest.mark.parametrize("with_file", [True, False])
@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 300, 512, 699])
def test_proofs_are_those_of_rfc_6962(written, size, with_file):
    if not with_file:
        tree_path(written.path).unlink()
    lines = records(written)[:size]
    prover = Prover(written.path)
    root = transparency.root(lines)
    assert prover.root(size) == root
    for index in {0, 1, size // 2, size - 1} & set(range(size)):
        proof = prover.inclusion(index, size)
        assert proof == transparency.path(index, lines)
        assert transparency.rooted(lines[index], index, size, proof) == root
        check_inclusion(leaf_hash(prover.line(index)), index, size, proof, root)
    for old in {1, 2, 255, 256, 257, size} & set(range(1, size + 1)):
        proof = prover.consistency(old, size)
        assert proof == transparency.proof(old, lines)
        check_consistency(old, transparency.root(lines[:old]), size, root, proof)


@given(st.integers(1, 80), st.data())
@settings(max_examples=200, deadline=None)
def test_no_changed_proof_is_accepted(size, data):
    lines = leaves(size)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    root, old_root = transparency.root(lines), transparency.root(lines[:old])
    inclusion, consistency = transparency.path(index, lines), transparency.proof(old, lines)
    check_inclusion(leaf_hash(lines[index]), index, size, inclusion, root)
    check_consistency(old, old_root, size, root, consistency)
    with pytest.raises(NotProven):
        check_inclusion(leaf_hash(b"another"), index, size, inclusion, root)
    with pytest.raises(NotProven):
        check_consistency(old, leaf_hash(b"another"), size, root, consistency)
    for proof, check in (
        (inclusion, lambda changed: check_inclusion(leaf_hash(lines[index]), index, size, changed, root)),
        (consistency, lambda changed: check_consistency(old, old_root, size, root, changed)),
    ):
        changes = [[*proof, bytes(32)], proof[1:] if proof else [bytes(32)]]
        changes += [[*proof[:at], bytes(32), *proof[at + 1 :]] for at in range(len(proof))]
        for changed in changes:
            with pytest.raises(NotProven):
                check(changed)


def test_what_cannot_be_proven_is_refused(written, bench_class, tmp_path):
    prover = Prover(written.path)
    with pytest.raises(NotProven, match="not among the 5 records"):
        prover.inclusion(5, 5)
    with pytest.raises(NotProven, match="does not continue"):
        prover.consistency(6, 5)
    with pytest.raises(NotProven, match="is not in its files"):
        prover.root(5000)
    with pytest.raises(NotProven, match="is not in its files"):
        prover.line(5000)
    with pytest.raises(NotProven, match="no leaf 3"):
        check_inclusion(bytes(32), 3, 3, [], bytes(32))
    with pytest.raises(NotProven, match="there is no record"):
        Prover(tmp_path / "nothing" / "audit.log")
    assert prover.consistency(0, 5) == prover.consistency(5, 5) == []
    assert prover.root(0) == hashlib.sha256().digest()


# --- the file ---------------------------------------------------------------------------------------------------------


def test_a_restart_goes_on_with_the_same_tree_and_reads_at_most_a_tile_again(written, monkeypatch):
    before = records(written)
    from hearth.audit import files

    read = []
    parse = files.parse
    monkeypatch.setattr(files, "parse", lambda line: read.append(line) or parse(line))
    log = written.log()
    assert len(read) <= TILE + 60  # with the last run, which recovery reads
    (_, _), tree = log.grown()
    assert (tree.size, tree.root()) == (len(before), transparency.root(before))
    log.close()


@pytest.mark.parametrize("damage", ["missing", "short", "other", "zeros", "another log", "unreadable"])
def test_a_file_that_does_not_fit_is_made_again_from_the_records(written, damage):
    lines, file = records(written), tree_path(written.path)
    content = file.read_bytes()
    assert len(content) == 64 + 32 * (len(lines) // TILE)
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        file.write_bytes(content[:-32])
    elif damage == "other":
        file.write_bytes(b"something else")
    elif damage == "zeros":
        file.write_bytes(content[:64] + bytes(len(content) - 64))
    elif damage == "another log":
        file.write_bytes(content[:32] + bytes(32) + content[64:])
    else:
        file.unlink()
        file.mkdir()
    log = written.log(signed=True)
    assert log.grown()[1].root() == transparency.root(lines)
    if damage == "unreadable":
        written.append(log, {"event": "x"})
        log.checkpoint_due = True
        written.append(log, {"event": "x"})
        assert "cannot be" in log.tree_file.problem
        file.rmdir()
    log.checkpoint_due = True
    written.append(log, {"event": "x"})
    log.close()
    assert log.tree_file.problem is None
    made = file.read_bytes()[: len(content)]
    assert (made[:24], made[32:]) == (content[:24], content[32:])  # between them is the record that was last synced
    assert verify(written.path, keys.public_path(written.key)).ok


def test_a_log_of_an_earlier_release_verifies_and_goes_on(bench, events):
    bench.write(*events(300), signed=True, checkpoint_every=100)
    # As it was: checkpoints without a note, and no tree beside the log.
    from hearth.audit.record import Chain

    chain, lines = Chain(), []
    signer = keys.load_or_create(bench.key)
    for record in bench.records():
        own = {name: value for name, value in record.items() if name not in ("seq", "ts", "prev", "note")}
        if record["event"] == "audit.checkpoint":
            own["head"] = {"seq": chain.seq, "hash": chain.prev}
            own["sig"] = signer.sign(keys.checkpoint_message(chain.seq, chain.prev, record["ts"]))
        lines.append(chain.seal(own, bench.now))
    bench.path.write_bytes(b"".join(lines))
    tree_path(bench.path).unlink()
    old = verify(bench.path, keys.public_path(bench.key))
    assert (old.ok, old.checkpoints) == (True, 3)
    bench.write(*events(150), signed=True, checkpoint_every=100)
    new = verify(bench.path, keys.public_path(bench.key))
    assert new.ok, new.first_bad
    (seq, note), *_ = notes_of(bench)
    assert transparency.read_checkpoint(note, vkey(bench, note.split("\n")[0]))[1:] == (
        seq - 1,
        transparency.root(records(bench)[: seq - 1]),
    )


def test_removed_files_stay_in_the_tree(written, events):
    lines = records(written)
    gone = written.files()[0]
    kept = len(lines) - len(written.lines(gone))
    gone.unlink()
    written.write(*events(50), signed=True, checkpoint_every=10)
    report = verify(written.path, keys.public_path(written.key))
    assert report.ok, report.first_bad
    assert report.first_seq == len(lines) - kept + 1
    whole = [*lines, *records(written)[kept:]]
    seq, note = notes_of(written)[-1]
    assert transparency.read_checkpoint(note, vkey(written, note.split("\n")[0]))[1:] == (
        seq - 1,
        transparency.root(whole[: seq - 1]),
    )
    prover = Prover(written.path)
    assert transparency.rooted(whole[600], 600, 700, prover.inclusion(600, 700)) == transparency.root(whole[:700])
    with pytest.raises(NotProven, match="record 1 is not in its files"):
        prover.line(0)


def test_without_the_removed_records_and_the_file_another_tree_is_begun(written, events):
    old_origin = notes_of(written)[-1][1].split("\n")[0]
    written.files()[0].unlink()
    tree_path(written.path).unlink()
    rest = records(written)
    written.write(*events(30), signed=True, checkpoint_every=10)
    assert verify(written.path, keys.public_path(written.key)).ok
    seq, note = notes_of(written)[-1]
    origin, size, root = transparency.read_checkpoint(note, vkey(written, note.split("\n")[0]))
    assert origin != old_origin
    assert size == seq - json.loads(rest[0])["seq"]
    assert root == transparency.root(records(written)[:size])


def test_where_records_are_missing_in_the_middle_a_tree_begins_behind_them_and_says_so(written, events):
    tree_path(written.path).unlink()
    written.files()[1].unlink()
    head = json.loads(records(written)[-1])["seq"]
    log = written.log(signed=True, checkpoint_every=10)
    assert f"a new tree begins after record {head}" in log.tree_file.problem
    written.append(log, *events(25))
    log.close()
    assert log.tree_file.problem is None
    (_, note) = notes_of(written)[-1]
    assert int(note.split("\n")[1]) < 30
    assert Prover(written.path).first == head + 1


class Failing(Disk):
    """A disk that fails while a test says so; a write then leaves half of its bytes."""

    def __init__(self):
        self.fails = None

    def write(self, fd, data):
        if self.fails == "write":
            os.write(fd, data[: len(data) // 2])
            raise OSError(errno.EIO, "input/output error")
        return os.write(fd, data)

    def sync(self, fd):
        if self.fails == "sync":
            raise OSError(errno.EIO, "input/output error")
        os.fdatasync(fd)


@pytest.mark.parametrize("fails", ["write", "sync"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_what_was_taken_back_is_not_in_the_tree(bench, events, durability, fails):
    if (durability, fails) == ("os", "sync"):
        pytest.skip('with "os" nothing is synced')
    disk = Failing()
    log = bench.log(signed=True, disk=disk, durability=durability, checkpoint_every=64)
    bench.append(log, *events(300))
    disk.fails = fails
    with pytest.raises(LogFailed):
        bench.append(log, *events(300))
    assert log.grown()[1].root() == transparency.root(records(bench))
    disk.fails = None
    bench.append(log, *events(400))
    log.close()
    lines = records(bench)
    assert log.grown()[1].root() == transparency.root(lines)
    assert Prover(bench.path).root(len(lines)) == transparency.root(lines)
    assert verify(bench.path, keys.public_path(bench.key)).ok
    again = bench.log()
    assert again.grown()[1].root() == transparency.root(lines)
    again.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda note: note.replace("\n1", "\n2", 1), "bad note"),
        (lambda note: "no note", "bad note"),
        (lambda note: note.replace("\u2014 hearth", "\u2014 other", 1), "bad note"),
    ],
)
def test_a_changed_note_is_found_by_verification(bench, events, change, reason):
    bench.write(*events(20), signed=True, checkpoint_every=10)
    from hearth.audit.record import Chain

    chain, lines, signer = Chain(), [], keys.load_or_create(bench.key)
    for record in bench.records():
        own = {name: value for name, value in record.items() if name not in ("seq", "ts", "prev")}
        if record["event"] == "audit.checkpoint":
            own["head"] = {"seq": chain.seq, "hash": chain.prev}
            own["sig"] = signer.sign(keys.checkpoint_message(chain.seq, chain.prev, record["ts"]))
            own["note"] = change(own["note"])
        lines.append(chain.seal(own, bench.now))
    bench.path.write_bytes(b"".join(lines))
    assert reason in verify(bench.path, keys.public_path(bench.key)).first_bad.reason


def test_records_that_were_written_again_do_not_have_the_root_of_the_note(bench, events):
    bench.write(*events(20), signed=True, checkpoint_every=10)
    from hearth.audit.record import Chain

    chain, lines = Chain(), []
    for record in bench.records():
        own = {name: value for name, value in record.items() if name not in ("seq", "ts", "prev")}
        if record["event"] == "audit.checkpoint":
            own["head"] = {"seq": chain.seq, "hash": chain.prev}
        lines.append(chain.seal({**own, "n": 99} if own.get("n") == 3 else own, bench.now))
    bench.path.write_bytes(b"".join(lines))
    assert "the records have another root" in verify(bench.path).first_bad.reason


# --- checkpoints and the witness --------------------------------------------------------------------------------------


HASH = "A" * 43 + "="
NO_CHECKPOINTS = [
    "",
    "a\n1\n\n",
    "a\nx\nAAAA\n\n\u2014 a AAAA\n",
    "a\n01\nAAAA\n\n\u2014 a AAAA\n",
    "a\n1\nAAAA\n\n\u2014 a AAAA\n",
    f"a\n1\n{HASH}\n\n- a AAAA\n",
    f"a\n1\n{HASH}\n\n\u2014 a A\n",
    "x" * 70_000,
]


@pytest.mark.parametrize("note", NO_CHECKPOINTS)
def test_what_is_no_checkpoint_is_refused(note):
    with pytest.raises(NotAccepted, match=r"not-a-checkpoint|not-a-proof"):
        Checkpoint.parse(note)


@pytest.mark.parametrize("body", ["", "new 3\n\nx", "old x\n\nx", "old 3\n", "old 01\n\nx"])
def test_what_is_no_request_is_refused(body):
    with pytest.raises(NotAccepted, match="not-a-request"):
        read_witness_request(body)


def test_a_hash_of_another_size_is_no_proof():
    for line in ("AAAA", "no base64!"):
        with pytest.raises(NotAccepted, match="not-a-proof"):
            decode_hashes([line])


class Log:
    """A log as its witness sees it: the lines, and what it can prove of them."""

    def __init__(self, directory, lines, origin="hearth-audit/1"):
        self.signer = keys.load_or_create(directory / "log.key")
        self.lines, self.origin = lines, origin

    def note(self, size):
        return Checkpoint.of(self.origin, size, transparency.root(self.lines[:size])).signed(self.signer)

    def proof(self, old, size):
        return transparency.proof(old, self.lines[:size]) if old else []


@pytest.fixture
def watched(tmp_path):
    """A log of which a witness has cosigned 5 records."""
    log = Log(tmp_path, leaves(20))
    witness = Witness(
        tmp_path / "state",
        "witness.example/1",
        keys.load_public(tmp_path / "log.key.pub"),
        keys.load_or_create(tmp_path / "witness.key"),
    )
    assert witness.only() is None
    log.cosigned = witness.cosign(0, [], log.note(5), 1_700_000_000)
    return log, witness


def test_a_witness_cosigns_what_has_grown_and_foreign_code_accepts_its_signature(watched):
    log, witness = watched
    vkeys = (
        verifier_key(log.origin, ED25519, log.signer.raw),
        verifier_key(witness.name, COSIGNATURE, witness.signer.raw),
    )
    assert transparency.open_note(log.cosigned, *vkeys)[1] == [log.origin, witness.name]
    body = witness_request(5, log.proof(5, 12), log.note(12))
    cosigned = witness.cosign(*read_witness_request(body), 1_700_000_001)
    assert transparency.open_note(cosigned, *vkeys)[1] == [log.origin, witness.name]
    assert witness.only().size == witness.last(log.origin).size == 12
    # Also where nothing has changed.
    witness.cosign(12, [], log.note(12), 1_700_000_002)


FORKED = [*leaves(3), b"another", *leaves(20)[4:]]


@pytest.mark.parametrize(
    ("refused", "old", "size", "lines", "origin", "directory"),
    [
        ("rolled-back-log", 5, 4, leaves(20), None, None),
        ("forked-log", 5, 5, FORKED, None, None),
        ("forked-log", 5, 12, FORKED, None, None),
        ("unknown-key", 5, 12, leaves(20), None, "other"),
        ("other-size", 4, 12, leaves(20), None, None),
        ("other-size", 4, 12, leaves(20), "hearth-audit/2", None),
    ],
)
def test_a_witness_refuses(watched, tmp_path, refused, old, size, lines, origin, directory):
    log, witness = watched
    forged = Log(tmp_path / directory if directory else tmp_path, lines, origin or log.origin)
    with pytest.raises(NotAccepted) as caught:
        witness.cosign(old, forged.proof(old, size) if old <= size else [], forged.note(size), 1_700_000_001)
    assert caught.value.name == refused
    assert witness.only().size == 5


def test_a_second_log_of_a_known_key_is_refused_until_it_is_taken_as_a_new_one(watched, tmp_path):
    log, witness = watched
    again = Log(tmp_path, leaves(3), "hearth-audit/begun-anew")
    with pytest.raises(NotAccepted, match=r"begun-anew; find out who began it anew, then take it with --new-log") as no:
        witness.cosign(0, [], again.note(3), 1_700_000_001)
    assert no.value.name == "second-log"
    assert witness.only().origin == log.origin
    witness.cosign(0, [], again.note(3), 1_700_000_002, new_log=True)
    assert witness.only().origin == again.origin
    with pytest.raises(NotAccepted, match="second-log"):
        witness.cosign(0, [], log.note(12), 1_700_000_003)


def test_a_witness_refuses_a_note_that_was_changed_and_one_that_the_log_did_not_sign(watched):
    log, witness = watched
    with pytest.raises(NotAccepted, match="bad-signature"):
        witness.cosign(5, log.proof(5, 12), log.note(12).replace("\n12\n", "\n13\n"), 0)
    foreign = log.note(12).replace(f"\u2014 {log.origin}", "\u2014 another")
    with pytest.raises(NotAccepted, match="unknown-key"):
        witness.cosign(5, log.proof(5, 12), foreign, 0)


@pytest.mark.parametrize("content", ["no json", "[]", '{"a": 1}'])
def test_a_damaged_memory_of_a_witness_is_not_taken_for_an_empty_one(watched, content):
    log, witness = watched
    witness.path.write_text(content)
    with pytest.raises(ConfigError, match=r"memory|cannot be read"):
        witness.cosign(0, [], log.note(5), 0)


def test_a_proof_of_inclusion_is_in_the_form_of_tlog_proof(written):
    _, note = notes_of(written)[-1]
    prover, size = Prover(written.path), Checkpoint.parse(note).size
    head, _, rest = inclusion_text(6, prover.inclusion(6, size), note).partition("\n\n")
    kind, index, *hashes = head.split("\n")
    assert (kind, index, rest) == ("c2sp.org/tlog-proof@v1", "index 6", note)
    found = transparency.rooted(records(written)[6], 6, size, [base64.b64decode(each) for each in hashes])
    assert found == transparency.read_checkpoint(rest, vkey(written, note.split("\n")[0]))[2]


def test_a_proof_of_inclusion_is_verified_for_each_record_and_no_other(written):
    _, note = notes_of(written)[-1]
    prover, size, lines = Prover(written.path), Checkpoint.parse(note).size, records(written)
    known = keys.load_public(keys.public_path(written.key))
    for index in (*range(0, size, 9), size - 1):
        proof, line = inclusion_text(index, prover.inclusion(index, size), note), lines[index]
        assert verify_inclusion(proof, line, known)[0] == index
        assert verify_inclusion(proof.replace("\n", "\nextra YQ==\n", 1), line, known)[0] == index
        first, *others = proof.split("\n")
        for forged, record in (
            (proof, lines[(index + 1) % size]),
            (proof.replace(f"index {index}\n", f"index {(index + 1) % size}\n"), line),
            ("\n".join([first, *others[:1], *others[2:]]), line),  # without its first hash
        ):
            with pytest.raises(NotAccepted, match="not-in-log"):
                verify_inclusion(forged, record, known)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_to_a_proof_or_a_request_is_refused_by_name(written, seed):
    _, note = notes_of(written)[-1]
    prover, size, line = Prover(written.path), Checkpoint.parse(note).size, records(written)[6]
    known = keys.load_public(keys.public_path(written.key))
    proof = inclusion_text(6, prover.inclusion(6, size), note)
    assert verify_inclusion(proof, line, known)[0] == 6
    request = witness_request(6, prover.consistency(6, size), note)
    chance = random.Random(seed)
    for _ in range(50):
        forged = []
        for text in (proof, request):
            at, most = chance.randrange(len(text)), chance.choice([0, 1, 1, 40])
            more = "".join(chance.choices("A0 +\n\u2014\ud800\x00=/", k=chance.choice([0, 1, 1, 3])))
            forged.append(text[:at] + more + text[at + most :])
        if forged[0] != proof:
            with pytest.raises(NotAccepted):
                verify_inclusion(forged[0], line, known)
        with contextlib.suppress(NotAccepted):
            Checkpoint.parse(read_witness_request(forged[1])[2]).signer_among(known)
