"""What hearthd does before it is confined: directories made, files handed over, and what could not work refused."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from support.confinement import as_root, needs_filters
from support.forked import forked
from support.users import ordinary_user

from hearth.actors.daemon import sandbox
from hearth.config.model import Config, SandboxConfig
from hearth.drivers.sandbox.identity import ProcessIdentity, no_new_privs
from hearth.drivers.sandbox.plan import Places, SandboxPlan
from hearth.drivers.sandbox.seccomp import Filter, Rule
from hearth.errors import ConfigError

NOBODY = ProcessIdentity("nobody", 65534, 65534, (65534,))


def prepare(places, *, user=None, made=(), durable=False):
    sandbox._prepare(SandboxPlan(user=user), places, made, durable=durable)


def test_the_directories_of_the_log_and_its_key_are_made_for_their_owner_alone_to_read(tmp_path):
    places = Places(audit=tmp_path / "state/hearth/audit.log", key=tmp_path / "keys/key")
    prepare(places, durable=True)
    assert places.audit.parent.stat().st_mode & 0o7777 == 0o750
    assert places.key.parent.stat().st_mode & 0o7777 == 0o700
    prepare(places, durable=True)


def test_a_place_that_cannot_be_made_is_refused_with_the_keys_that_name_it(tmp_path):
    (tmp_path / "file").touch()
    places = Places(audit=tmp_path / "file/audit.log", key=tmp_path / "key")
    with pytest.raises(ConfigError, match=r"^\[sandbox\]: .*/file: .*; see \[audit\] path and key$"):
        prepare(places)


@as_root
def test_what_the_daemon_makes_becomes_its_users_and_what_was_there_stays_whose_it_is(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/audit.log").touch()
    (tmp_path / "log/other").touch()
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "run/s"))
    places = Places(audit=tmp_path / "log/audit.log", key=tmp_path / "keys/key", socket=tmp_path / "run/s")
    prepare(places, user=NOBODY, made=[tmp_path / "run"])
    owners = {str(path.relative_to(tmp_path)): path.stat().st_uid for path in tmp_path.rglob("*")}
    assert owners == {"log": 0, "log/audit.log": 65534, "log/other": 0, "run": 65534, "run/s": 65534, "keys": 65534}


def test_a_user_who_cannot_write_the_log_is_told_how_to_let_him(tmp_path):
    places = Places(audit=tmp_path / "audit.log", key=tmp_path / "key")
    tmp_path.chmod(0o555)
    with ordinary_user(), pytest.raises(ConfigError) as refused:
        sandbox._can_work(NOBODY, places)
    tmp_path.chmod(0o700)
    assert str(refused.value).startswith("[sandbox] user: nobody cannot ")
    sandbox._can_work(NOBODY, places)


def test_a_user_who_cannot_read_python_is_told_where_it_ought_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "not there"))
    with pytest.raises(ConfigError, match=r"which contain hearthd; install them where all users can read"):
        sandbox._can_work(NOBODY, Places(audit=tmp_path / "a", key=tmp_path / "k"))


@pytest.mark.proof
@needs_filters
def test_what_would_be_missing_is_told_and_refused_where_it_is_required():
    def look(config):
        no_new_privs()
        Filter([Rule("landlock_create_ruleset", errno.ENOSYS)]).enforce()
        try:
            return list(sandbox.missing_features(config))
        except ConfigError as error:
            return str(error)

    (line,) = forked(lambda: look(Config()))
    assert line.startswith(
        "sandbox: would not be in force: files, network, devices, scopes: this kernel has no Landlock"
    )
    required = Config(sandbox=SandboxConfig(require=True))
    assert forked(lambda: look(required)) == f"[sandbox] require: {line}"
    assert list(sandbox.missing_features(Config(sandbox=SandboxConfig(enable=False)))) == [
        "sandbox: off: [sandbox] enable = false"
    ]


def test_the_daemon_will_be_the_user_that_root_becomes():
    config = Config(sandbox=SandboxConfig(user="nobody"))
    assert sandbox.own_uid(config) == (65534 if os.geteuid() == 0 else os.geteuid())
    assert sandbox.own_uid(Config()) == os.geteuid()
