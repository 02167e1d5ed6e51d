"""`hearth admin token`: tokens that nobody else can read, and entries that a configuration takes."""

from __future__ import annotations

import errno
import hashlib
import os
import pty
import re
import shlex
import stat
import tomllib

import pytest

from hearth.cli import token as cli_token
from hearth.config.model import load_config
from hearth.policy.principal import MAX_TOKEN, Tokens
from hearth.policy.rules import RIGHTS, PolicyEntry, token_digests
from hearth.transport.address import parse

TOKEN = re.compile(r"hearth_[A-Za-z0-9_-]{43}")


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


def bearer_by(entry, token):
    """Whom a daemon with this entry takes the bearer for."""
    (table,) = tomllib.loads(entry)["policy"]
    return Tokens(token_digests([PolicyEntry(**table)])).bearer(token)


def test_a_new_token_is_shown_once_with_the_entry_that_lets_its_bearer_in(cli):
    answer = cli("admin", "token", "new", "--name", "panel")
    assert (answer.code, answer.err) == (0, "")
    token, _, entry = answer.out.partition("\n")
    assert TOKEN.fullmatch(token)
    assert bearer_by(entry, token).key == f"token:{digest(token)}"
    assert token not in entry
    (table,) = tomllib.loads(entry)["policy"]
    assert (table["name"], table["max_risk"]) == ("panel", 0)


@pytest.mark.parametrize(
    ("use", "rights", "asks"), [("dashboard", ["observe", "approve", "reset_halt"], None), ("agent", None, 2)]
)
def test_an_entry_for_a_use_has_the_rights_that_it_takes_and_the_owners_lines_beside_it(cli, use, rights, asks):
    answer = cli("admin", "token", "new", "--for", use, "--name", "it")
    (table,) = tomllib.loads(answer.out.partition("\n")[2])["policy"]
    assert (table["max_risk"], table.get("rights")) == (2, rights)
    assert table.get("approval") == (asks and [{"from_risk": asks}])
    own = "\n".join(line.removeprefix("#   ") for line in answer.out.splitlines() if line.startswith("#   "))
    (owner,) = tomllib.loads(own)["policy"]
    assert (owner["match"], set(owner["rights"])) == ({"uid": os.getuid()}, set(RIGHTS))
    assert cli("admin", "token", "new", "--for", "anything").code == 2


def test_entries_without_a_name_do_not_share_one(cli):
    names = {tomllib.loads(cli("admin", "token", "new").out.split("\n", 1)[1])["policy"][0]["name"] for _ in range(3)}
    assert len(names) == 3


def test_a_token_in_a_file_is_for_its_owner_alone_and_not_shown(cli, tmp_path):
    path = tmp_path / "a panel.token"
    previous = os.umask(0)
    try:
        answer = cli("admin", "token", "new", "--file", path)
    finally:
        os.umask(previous)
    token = path.read_text().removesuffix("\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN.fullmatch(token)
    assert token not in answer.out + answer.err
    assert bearer_by(answer.out, token) is not None


def test_what_is_printed_beside_a_file_can_be_appended_to_a_configuration(cli, tmp_path):
    answers = [cli("admin", "token", "new", "--file", tmp_path / name, "--name", name) for name in ("a", 'b"\\')]
    config = tmp_path / "hearth.toml"
    config.write_text("[websocket]\nlisten = '127.0.0.1:0'\n" + "".join(answer.out for answer in answers))
    assert [entry.name for entry in load_config(config).policy] == ["a", 'b"\\']


@pytest.mark.parametrize("name", ["plain", "with space", "a&b=c#d?e%20", "ümläut", "tab\t'"])
def test_the_address_that_is_printed_leads_to_the_file(cli, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    answer = cli("admin", "token", "new", "--file", name)
    (line,) = (line for line in answer.out.splitlines() if "--to" in line)
    address = parse(shlex.split(line.lstrip("# "))[-1])
    assert address.token_file == tmp_path / name
    assert len(tomllib.loads(answer.out)["policy"]) == 1


def test_a_path_that_no_address_can_name_is_refused(cli, tmp_path):
    answer = cli("admin", "token", "new", "--file", tmp_path / "line\n[end]")
    assert (answer.code, answer.out, list(tmp_path.iterdir())) == (2, "", [])
    assert "--file: no address can name a file with a line end" in answer.err


def test_as_json_there_is_the_token_or_its_file_and_the_entry(cli, tmp_path):
    shown = cli("admin", "token", "new", "--json").json
    assert set(shown) == {"token", "token_sha256", "policy"}
    assert shown["token_sha256"] == digest(shown["token"])
    assert bearer_by(shown["policy"], shown["token"]) is not None
    kept = cli("--json", "admin", "token", "new", "--file", tmp_path / "t").json
    assert set(kept) == {"file", "token_sha256", "policy"}
    assert kept["file"] == str(tmp_path / "t")
    assert kept["token_sha256"] == digest((tmp_path / "t").read_text().strip())


def test_a_token_that_is_there_is_not_overwritten(cli, tmp_path):
    path = tmp_path / "t"
    path.write_text("in use")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for taken in (path, tmp_path / "link"):
        answer = cli("admin", "token", "new", "--file", taken)
        assert (answer.code, answer.out) == (2, "")
        assert f"{taken}: is there already" in answer.err
    assert path.read_text() == "in use"
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_is_not_there_is_named(cli, tmp_path):
    answer = cli("admin", "token", "new", "--file", tmp_path / "none" / "t")
    assert (answer.code, answer.out) == (1, "")
    assert f"{tmp_path}/none/t: No such file" in answer.err


def test_a_full_disk_leaves_no_half_a_token(cli, tmp_path, monkeypatch):
    def full(descriptor, *_args, **_named):
        os.close(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cli_token.os, "fdopen", full)
    answer = cli("admin", "token", "new", "--file", tmp_path / "t")
    assert (answer.code, answer.out) == (1, "")
    assert f"{tmp_path}/t: No space left" in answer.err
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", ["", "a" * 5000])
def test_a_name_that_no_entry_can_have_is_refused(cli, tmp_path, name):
    answer = cli("admin", "token", "new", "--file", tmp_path / "t", "--name", name)
    assert (answer.code, answer.out) == (2, "")
    assert "--name: expected" in answer.err
    assert not (tmp_path / "t").exists()


def test_the_digest_of_a_token_there_is(cli, tmp_path):
    token = cli("admin", "token", "new", "--json").json["token"]
    path = tmp_path / "t"
    path.touch(0o600)
    for text in (token, f"{token}\n", f" {token}\r\n"):
        path.write_text(text)
        assert cli("admin", "token", "digest", path).out == f"{digest(token)}\n"
        assert cli("admin", "token", "digest", "--json", "-", stdin=text.encode()).json == {
            "token_sha256": digest(token)
        }
        assert cli("admin", "token", "digest", stdin=text.encode()).out == f"{digest(token)}\n"


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"two words", b"one\ntwo", "café".encode() * 9, b"x" * (MAX_TOKEN + 1), b"\0" * 40]
)
def test_what_no_client_can_send_is_no_token_and_is_not_repeated(cli, tmp_path, text):
    path = tmp_path / "t"
    path.touch(0o600)
    path.write_bytes(text)
    for answer in (cli("admin", "token", "digest", path), cli("admin", "token", "digest", stdin=text)):
        assert (answer.code, answer.out) == (2, "")
        assert "a token is one word" in answer.err
        assert "`hearth admin token new` makes one" in answer.err
        assert "two" not in answer.err


def test_a_token_file_that_others_can_read_is_refused_with_the_cure(cli, tmp_path):
    path = tmp_path / "t"
    path.write_text("x" * 40)
    path.chmod(0o644)
    answer = cli("admin", "token", "digest", path)
    assert (answer.code, answer.out) == (2, "")
    assert f"{path} can be used by others (mode 0644); chmod 600 {path}" in answer.err
    missing = cli("admin", "token", "digest", tmp_path / "none")
    assert missing.code == 2
    assert f"{tmp_path}/none: No such file" in missing.err


def test_a_token_that_can_be_guessed_is_said_to_be_one(cli):
    answer = cli("admin", "token", "digest", stdin=b"hunter2\n")
    assert answer.out == f"{digest('hunter2')}\n"
    assert "can be guessed" in answer.err
    assert "hunter2" not in answer.err
    assert cli("admin", "token", "digest", stdin=b"x" * 22).err == ""


def test_a_token_that_is_typed_is_not_echoed(cli, monkeypatch):
    asked = []

    def prompt(text, **how):
        asked.append((text, how))
        return "hearth_typed"

    leader, follower = pty.openpty()
    try:
        with os.fdopen(os.dup(follower)) as terminal:
            monkeypatch.setattr(cli_token.sys, "stdin", terminal)
            monkeypatch.setattr(cli_token.click, "prompt", prompt)
            assert cli("admin", "token", "digest").out == f"{digest('hearth_typed')}\n"
    finally:
        os.close(leader)
        os.close(follower)
    assert asked == [("Token", {"hide_input": True, "err": True})]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "rights"), [("caller", None), ("operator", ["reset_halt"]), ("device", None)])
def test_the_entry_with_which_a_device_takes_orders_is_printed_at_the_enrolment_of_a_caller(
    cli, tmp_path, part, rights
):
    assert cli("admin", "tls", "init", tmp_path / "ca").code == 0
    enrolled = cli("fleet", "enroll", tmp_path / "ca", "alpha", "--as", part, "--no-import")
    assert enrolled.code == 0
    told, _, entry = enrolled.out.partition("\n\n")
    if part == "device":
        assert "hearth.toml" not in told
        return
    assert "In the hearth.toml of each device that takes these orders, beside an entry for its own user:" in told
    (table,) = tomllib.loads(entry)["policy"]
    assert (table["match"], table.get("rights")) == ({"amqp_user": "alpha"}, rights)
    asked = cli("--json", "fleet", "enroll", tmp_path / "ca", "beta", "--as", part, "--no-import").json
    assert tomllib.loads(asked["policy"])["policy"][0]["match"] == {"amqp_user": "beta"}
