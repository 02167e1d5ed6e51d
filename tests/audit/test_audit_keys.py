"""The daemon's key: private, permanent, and readable by openssl."""

import base64
import os
import shutil
import stat
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from hearth.audit import keys
from hearth.errors import ConfigError

MESSAGE = keys.checkpoint_message(3, "sha256:abc", "2026-04-19T22:48:01.234Z")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "etc" / "audit.key"


def pem(key, **kind):
    how = kind.get("how", serialization.NoEncryption())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def write(path, data, mode=0o600):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def test_a_key_is_made_once_and_only_its_owner_can_read_it(path):
    assert keys.inspect(path) is False
    first = keys.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert keys.inspect(path) is True
    again = keys.load_or_create(path)
    assert again.key_id == first.key_id
    assert again.sign(MESSAGE) == first.sign(MESSAGE)
    assert sorted(file.name for file in path.parent.iterdir()) == ["audit.key", "audit.key.pub"]


def test_the_key_is_what_other_programs_read(path):
    signer = keys.load_or_create(path)
    private = serialization.load_pem_private_key(path.read_bytes(), None)
    public = serialization.load_pem_public_key(keys.public_path(path).read_bytes())
    assert private.public_key() == public
    public.verify(base64.b64decode(signer.sign(MESSAGE)), MESSAGE)


def test_a_key_that_another_program_made_is_taken(path):
    write(path, pem(ed25519.Ed25519PrivateKey.generate()))
    signer = keys.load_or_create(path)
    assert keys.load_public(keys.public_path(path)).verify(signer.key_id, MESSAGE, signer.sign(MESSAGE))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused_and_the_cure_is_named(path, mode):
    keys.load_or_create(path)
    path.chmod(mode)
    for use in (keys.inspect, keys.load_or_create):
        with pytest.raises(ConfigError, match=rf"audit\.key: mode {mode:04o} .*chmod 600"):
            use(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_key_is_refused(path):
    keys.load_or_create(path)
    os.chown(path, 12345, -1)
    with pytest.raises(ConfigError, match=r"belongs to uid 12345"):
        keys.inspect(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"secret",
        b"-----BEGIN PRIVATE KEY-----\n!!!!\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nAAA\n-----END PRIVATE KEY-----\n",
        pem(ed25519.Ed25519PrivateKey.generate()).replace(b"PRIVATE", b"PUBLIC"),
        pem(ec.generate_private_key(ec.SECP256R1())),
        pem(ed25519.Ed25519PrivateKey.generate(), how=serialization.BestAvailableEncryption(b"x")),
    ],
    ids=["empty", "text", "no base64", "cut base64", "public", "another kind", "encrypted"],
)
def test_what_is_no_key_is_refused_before_anything_is_signed(path, data):
    write(path, data)
    with pytest.raises(ConfigError, match=r"not an unencrypted Ed25519 private key"):
        keys.inspect(path)
    assert path.read_bytes() == data


def test_a_path_that_cannot_be_a_key_is_refused(path):
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="not a regular file"):
        keys.inspect(path)
    write(path.parent / "file", b"")
    with pytest.raises(ConfigError, match="Not a directory"):
        keys.inspect(path.parent / "file" / "key")


def test_a_key_that_appears_while_ours_is_made_is_the_one_that_counts(path, monkeypatch):
    theirs = pem(ed25519.Ed25519PrivateKey.generate())
    link = os.link

    def slow_link(source, target):
        write(path, theirs)
        link(source, target)

    monkeypatch.setattr(os, "link", slow_link)
    keys.load_or_create(path)
    assert path.read_bytes() == theirs


def test_a_key_and_its_public_half_are_on_the_disk_with_their_names_before_anything_is_signed(path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    keys.load_or_create(path)
    draft, public = f"{path}.{os.getpid()}.new", str(keys.public_path(path))
    names = [str(path.parent), str(path.parent.parent)]
    assert synced == [draft, public, *names]
    del synced[:]
    keys.load_or_create(path)
    assert synced == [public, *names], "an earlier life may not have come so far"
    del synced[:]
    path.unlink()
    keys.load_or_create(path)
    assert synced == [draft, public, *names], "one key more"


def test_a_draft_that_a_crash_left_is_taken_away_and_does_not_keep_a_key_from_being_made(path):
    path.parent.mkdir(parents=True)
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    drafts = [path.with_name(f"{path.name}.{pid}.new") for pid in (os.getpid(), dead.pid, os.getppid())]
    for draft in drafts:
        draft.write_text("-----BEGIN PRIVATE KEY-----")
    keys.load_or_create(path)
    assert keys.inspect(path)
    assert [draft.exists() for draft in drafts] == [False, False, True], "only what nobody is writing"
    drafts[0].touch()
    keys.load_or_create(path)
    assert not drafts[0].exists(), "also where the key was there already"


def test_the_public_file_lists_every_key_that_was_used(path):
    signers = []
    for _ in range(3):
        signers.append(keys.load_or_create(path))
        keys.load_or_create(path)
        path.unlink()
    public = keys.load_public(keys.public_path(path))
    assert keys.public_path(path).read_text().count("BEGIN PUBLIC KEY") == 3
    for signer in signers:
        assert signer.key_id in public
        assert public.verify(signer.key_id, MESSAGE, signer.sign(MESSAGE))
        assert not public.verify(signer.key_id, MESSAGE + b"x", signer.sign(MESSAGE))
    assert not public.verify(signers[0].key_id, MESSAGE, signers[1].sign(MESSAGE))


@pytest.mark.parametrize("signature", ["", "AA==", "not base64!", "ü"])
def test_a_signature_that_is_none_is_simply_wrong(path, signature):
    signer = keys.load_or_create(path)
    assert not keys.load_public(keys.public_path(path)).verify(signer.key_id, MESSAGE, signature)


@pytest.mark.parametrize("data", [b"", b"\xff", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_a_file_without_a_public_key_is_refused(tmp_path, data):
    (tmp_path / "x.pub").write_bytes(data)
    with pytest.raises(ConfigError, match=r"x\.pub"):
        keys.load_public(tmp_path / "x.pub")


def test_bytes_among_the_public_keys_that_are_none_do_not_keep_a_key_from_being_used(path):
    signer = keys.load_or_create(path)
    public = keys.public_path(path)
    for rubbish in (b"\0" * 113, b"\xff\x8c" * 50, public.read_bytes()[:60]):
        public.write_bytes(rubbish)  # what a power cut may leave of a file that was not synced
        assert keys.load_or_create(path).key_id == signer.key_id
        assert keys.load_public(public).verify(signer.key_id, MESSAGE, signer.sign(MESSAGE))


def test_a_private_key_is_not_taken_for_a_public_one(path):
    keys.load_or_create(path)
    with pytest.raises(ConfigError, match="no Ed25519 public key"):
        keys.load_public(path)
    with pytest.raises(ConfigError, match="No such file"):
        keys.load_public(path.parent / "none")


@pytest.mark.slow
def test_looking_at_a_key_does_not_import_cryptography(path):
    keys.load_or_create(path)
    code = (
        "import sys, pathlib; from hearth.audit import keys, log; assert keys.inspect(pathlib.Path(sys.argv[1]));"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_a_signature(path, tmp_path):
    signer = keys.load_or_create(path)
    (tmp_path / "message").write_bytes(MESSAGE)
    (tmp_path / "sig").write_bytes(base64.b64decode(signer.sign(MESSAGE)))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(keys.public_path(path)), "-rawin"]
    command += ["-in", "message", "-sigfile", "sig"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    if "-rawin" in done.stderr:
        pytest.skip("this openssl is too old for Ed25519")
    assert done.returncode == 0, done.stderr
