"""`hearth doctor` on confinement: what the kernel can, what would be put in force, what is in force in a daemon."""

from __future__ import annotations

import json
import os
import socket
import threading

import pytest
from support.confinement import landlock_abi, needs_filters, needs_landlock

from hearth.cli.doctor import confinement
from hearth.config.model import Config, load_config
from hearth.transport.address import UnixAddress, parse

IN_FORCE = {"state": "in force", "in_force": ["no_new_privs", "files", "syscalls"]}
HELD = {
    "pid": 7, "Uid": ["0 0 0 0"], "Gid": ["0 0 0 0"], "NoNewPrivs": ["1"], "Seccomp": ["2"],
    "CapPrm": ["000000000000000b"], "CapEff": ["000000000000000b"], "CapBnd": ["0"], "CapAmb": ["0"],
}  # fmt: skip
PLANNED = {
    "paths": [
        {"path": "/var/lib/hearth", "access": "write", "why": "the log"},
        {"path": "/dev/null", "access": "device", "why": "no device"},
    ],
    "sockets": {"unix": "clients"},
}


def told(checks):
    return [f"{check.state} {check.name} {check.finding}" for check in checks]


def machine(planned=PLANNED, **missing):
    parts = [{"name": name, "can_be": name not in missing, "detail": missing.get(name, "can be")} for name in
             ("no_new_privs", "files", "network", "devices", "scopes", "syscalls")]  # fmt: skip
    kernel = {"landlock": 7, "parts": parts}
    return list(confinement.machine_checks({"kernel": kernel, "planned": planned}))


def test_what_the_kernel_can_and_what_would_be_put_in_force_are_told():
    kernel, sandbox = told(machine())
    assert kernel == "OK kernel can confine a daemon: Landlock 7, seccomp filters, no_new_privs"
    assert sandbox.startswith("OK sandbox started by you, hearthd could write beneath /var/lib/hearth, open 1 device ")
    assert sandbox.endswith("nodes, start no program, make sockets unix")


def test_what_the_kernel_cannot_is_told_once_for_each_cause_with_its_cure():
    warning, other, _ = machine(
        files="no Landlock; take Linux 5.13", network="no Landlock; take Linux 5.13", syscalls="x"
    )
    assert warning.state == "WARN"
    assert (warning.finding, warning.cure) == ("cannot confine files, network: no Landlock", "take Linux 5.13")
    assert (other.finding, other.cure) == ("cannot confine syscalls: x", "see docs/sandbox.md")


def test_a_user_and_programs_that_would_be_allowed_are_told():
    (_, planned, programs) = machine({**PLANNED, "user": "hearth", "programs": ["df", "ping"]})
    assert planned.finding.startswith("started by you, as hearth, hearthd could write beneath")
    assert (programs.state, programs.finding.partition(":")[0]) == ("OK", "df, ping")


def test_programs_that_nothing_would_keep_from_the_key_are_a_failure_with_its_cure():
    refused = "proc.exec: there is no Landlock: set [sandbox] program_user"
    (_, _, programs) = machine({**PLANNED, "programs": ["df"], "programs_refused": refused})
    assert (programs.state, programs.cure) == ("FAIL", "set [sandbox] program_user")


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ({"off": "[sandbox] enable = false"}, "would be off: [sandbox] enable"),
        ({"error": "no user"}, "cannot be planned"),
    ],
)
def test_a_sandbox_that_would_not_be_is_a_warning(planned, said):
    (_, warning) = machine(planned)
    assert warning.state == "WARN"
    assert said in warning.finding
    assert warning.cure


def test_what_is_in_force_in_a_daemon_is_told_with_what_the_kernel_says_of_it():
    assert told(confinement.daemon_checks(IN_FORCE, HELD)) == [
        "OK sandbox in force in the daemon: no_new_privs, files, syscalls",
        "OK process pid 7: uid 0, capabilities b, no_new_privs 1, seccomp 2",
    ]
    assert told(confinement.daemon_checks({}, None)) == [], "an older daemon tells nothing"
    assert "capabilities none" in told(confinement.daemon_checks(IN_FORCE, {**HELD, "CapEff": ["0"]}))[1]


def test_a_thread_that_is_not_held_to_what_the_daemon_says_fails():
    (_, failed) = confinement.daemon_checks(IN_FORCE, {**HELD, "Seccomp": ["0", "2"]})
    assert failed.state == "FAIL"
    assert failed.finding.endswith("seccomp 0/2; syscalls not in force in every thread")
    off = {"state": "off", "reason": "--no-sandbox"}
    assert told(confinement.daemon_checks(off, {**HELD, "Seccomp": ["0"], "NoNewPrivs": ["0"]})) == [
        "WARN sandbox is off in the daemon: --no-sandbox",
        "OK process pid 7: uid 0, capabilities b, no_new_privs 0, seccomp 0",
    ], "which it does not say of itself either"


def test_what_is_missing_or_added_in_a_daemon_is_a_warning():
    said = {**IN_FORCE, "state": "in part", "missing": {"scopes": "old; take 6.12"}, "added": ["/cov"]}
    _, missing, added = confinement.daemon_checks(said, None)
    assert (missing.state, missing.cure) == ("WARN", "take 6.12")
    assert missing.finding == "not in force in the daemon: scopes: old"
    assert (added.state, added.finding) == ("WARN", "/cov may be written besides")


# --- the looking ----------------------------------------------------------------------------------------------------


def test_this_kernel_can_be_looked_at_and_a_plan_be_made(tmp_path):
    (tmp_path / "hearth.toml").write_text(
        f'[audit]\npath = "{tmp_path}/log/audit.log"\n[files]\nread = ["{tmp_path}"]\n'
    )
    found = confinement.look_at_confinement(load_config(tmp_path / "hearth.toml"))
    assert found == json.loads(json.dumps(found))
    assert found["kernel"]["landlock"] == landlock_abi()
    reached = {(entry["path"], entry["access"]) for entry in found["planned"]["paths"]}
    assert {(f"{tmp_path}/log", "write"), (str(tmp_path), "read")} <= reached
    assert all(check.finding for check in confinement.machine_checks(found))


def test_a_configuration_that_switches_it_off_or_names_no_principal_is_reported(tmp_path):
    (tmp_path / "hearth.toml").write_text("[sandbox]\nenable = false\n")
    planned = confinement.look_at_confinement(load_config(tmp_path / "hearth.toml"))["planned"]
    assert planned == {"off": "[sandbox] enable = false"}
    (tmp_path / "hearth.toml").write_text('[sandbox]\nuser = "hearth-nobody-of-that-name"\n')
    assert (
        "there is no user" in confinement.look_at_confinement(load_config(tmp_path / "hearth.toml"))["planned"]["error"]
    )
    assert "paths" in confinement.look_at_confinement(Config())["planned"]


def test_the_process_that_listens_is_looked_at_with_all_its_threads(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        found = confinement.look_at_daemon(UnixAddress(tmp_path / "s"))
        done.set()
        thread.join()
    assert found is not None
    assert found["pid"] == os.getpid()
    assert found["Uid"] == [f"{os.getuid()} {os.geteuid()} {os.geteuid()} {os.geteuid()}"]
    assert confinement.look_at_daemon(UnixAddress(tmp_path / "none")) is None
    assert confinement.look_at_daemon(parse("ssh://arm")) is None


@pytest.mark.slow
@needs_filters
@needs_landlock(6)
def test_a_daemon_is_asked_and_so_is_the_kernel(cli, daemon):
    answer = cli("doctor", "--config", daemon.config, "--json")
    said = {check["name"]: check for check in answer.json["checks"] if check["name"] in ("process", "kernel")}
    assert "no_new_privs 1, seccomp 2" in said["process"]["finding"]
    assert said["kernel"]["state"] == "OK"
    assert any("in force in the daemon: " in check["finding"] for check in answer.json["checks"])
    assert answer.json["confinement"]["planned"]["paths"]
