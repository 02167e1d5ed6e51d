"""The filter of system calls: its table, and what the kernel makes of it, each in a fork of its own."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from support.confinement import needs_filters
from support.forked import answer_of, ending, forked

from hearth.drivers.sandbox import seccomp
from hearth.drivers.sandbox.identity import no_new_privs
from hearth.drivers.sandbox.seccomp import Filter, NoFilter, Rule, rules

UNIX = ("unix",)
FAMILIES = {"unix": "", "inet-dgram": "", "netlink:route": ""}
libc = ctypes.CDLL(None, use_errno=True)


def filtered(work, families=UNIX, **allowed):
    """What `work` returns in a process with the filter of a daemon."""

    def confined():
        no_new_privs()
        Filter(rules(families, **allowed)).enforce()
        return work()

    return forked(confined)


def call(name, *arguments):
    """A system call by its name, past the C library and Python. Raises OSError."""
    library = seccomp.library()
    number = library.resolve_syscall(library.system_arch(), name)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def here():
    """The system calls of the table that this architecture and this libseccomp have."""
    library = seccomp.library()
    names = " ".join(seccomp.DENIED).split()
    return [name for name in names if library.resolve_syscall(library.system_arch(), name) >= 0]


def sockets(*asked):
    return [answer_of(lambda one=one: socket.socket(*one).close()) for one in asked]


def test_no_system_call_is_in_the_table_twice():
    tables = (seccomp.DENIED, seccomp.EXECUTING, seccomp.UNNEEDED, seccomp.CONNECTING, seccomp.LEAVING)
    names = [name for table in tables for names in table for name in names.split()]
    assert len(names) == len(set(names))
    assert len(here()) > 60 if sys.platform == "linux" else True


@needs_filters
def test_every_system_call_of_the_table_is_denied_with_its_error():
    wanted = {name: code for names, code in seccomp.DENIED.items() for name in names.split()}

    def try_all():
        # With arguments that none of them can do anything with.
        return {name: answer_of(lambda name=name: call(name, -1, -1, -1, -1, -1, -1)) for name in here()}

    answers = filtered(try_all)
    assert answers == {name: errno.errorcode[wanted[name]] for name in answers}


@pytest.mark.proof
@needs_filters
def test_nothing_is_executed_unless_that_is_allowed():
    def run():
        return answer_of(lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0))

    assert filtered(run) == "EPERM"
    assert filtered(run, execve=True) == "done"


@pytest.mark.proof
@needs_filters
def test_no_server_is_connected_to_unless_that_is_allowed(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()

        def reach():
            with socket.socket(socket.AF_UNIX) as client:
                return answer_of(lambda: client.connect(str(tmp_path / "s")))

        assert filtered(reach) == "EACCES"
        assert filtered(reach, connect=True) == "done"


@needs_filters
def test_with_tcp_streams_are_connected_and_no_datagrams_or_names_are_sent_to(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()

        def look():
            return (
                answer_of(lambda: socket.create_connection(there, timeout=60).close()),
                *sockets((socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_STREAM)),
                answer_of(lambda: socket.socket().sendto(b"x", socket.MSG_FASTOPEN, there)),
            )

        assert filtered(look, families=("inet-stream",), tcp=True) == ("done", "EPERM", "EAFNOSUPPORT", "EACCES")
        assert filtered(look, families=("inet-stream",))[0] == "EACCES"


@pytest.mark.proof
@needs_filters
@pytest.mark.parametrize(("families", "notifier"), [((), None), (("inet-dgram", "netlink:route"), 0)])
def test_a_listening_socket_is_not_made_to_connect_by_sending(families, notifier):
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(60)

        def reach(confined):
            def send():
                listening.shutdown(socket.SHUT_RDWR)
                listening.sendto(b"x", socket.MSG_FASTOPEN, elsewhere.getsockname())

            listening = socket.create_server(("127.0.0.1", 0))
            if not confined:
                return answer_of(send)
            no_new_privs()
            Filter(rules(families, notifier=notifier)).enforce()
            return answer_of(send)

        assert forked(lambda: reach(True)) == "EACCES"
        assert forked(lambda: reach(False)) == "done"
        elsewhere.accept()[0].close()


@needs_filters
def test_the_service_manager_hears_us_and_no_other_does_by_that_socket(tmp_path):
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        manager.bind(str(tmp_path / "m"))
        other.bind(f"\0d{os.getpid()}")  # a name that is no longer than the kernel's own address
        notifier = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notifier.connect(str(tmp_path / "m"))

        def tell(confined):
            number = notifier.fileno()
            if confined:
                no_new_privs()
                Filter(rules(("inet-dgram", "netlink:route"), notifier=number)).enforce()
            return [
                answer_of(lambda: notifier.send(b"READY=1")),
                answer_of(lambda: notifier.sendto(b"x", other.getsockname())),
                answer_of(lambda: notifier.sendmsg([b"x"], [], 0, other.getsockname())),
                answer_of(lambda: os.close(os.dup(number))),
                answer_of(lambda: os.dup2(number, 200)),
                answer_of(lambda: call("dup3", number, 201, 0)),
                answer_of(lambda: fcntl.fcntl(number, fcntl.F_DUPFD, 0)),
            ]

        with notifier:
            assert forked(lambda: tell(True)) == ["done", "EACCES", "EACCES", "EPERM", "EPERM", "EPERM", "EPERM"]
            assert forked(lambda: tell(False)) == ["done"] * 7
        assert manager.recv(100) == b"READY=1"


@needs_filters
def test_interfaces_are_listed_where_that_is_a_tool():
    import psutil

    assert filtered(lambda: sorted(psutil.net_if_addrs()), ("inet-dgram", "netlink:route"))


@needs_filters
def test_modes_owners_and_labels_are_for_programs_to_set_and_set_id_bits_for_none(tmp_path):
    file = tmp_path / "file"
    file.touch()

    def change():
        with file.open("rb") as opened:
            return [
                answer_of(lambda: file.chmod(0o600)),
                answer_of(lambda: os.chown(file, -1, -1)),
                answer_of(lambda: os.setxattr(file, "user.x", b"1")),
                answer_of(lambda: os.fchmod(opened.fileno(), 0o640)),
                answer_of(lambda: os.fchmod(opened.fileno(), 0o4700)),
                answer_of(lambda: os.fchmod(opened.fileno(), 0o2700)),
                answer_of(lambda: file.chmod(0o4700)),
            ]

    assert filtered(change) == ["EPERM", "EPERM", "EPERM", "done", "EPERM", "EPERM", "EPERM"]
    of_programs = filtered(change, execve=True)
    assert of_programs[:2] + of_programs[3:] == ["done", "done", "done", "EPERM", "EPERM", "EPERM"]


@needs_filters
@pytest.mark.parametrize(
    ("families", "expected"),
    [
        ((), ["EAFNOSUPPORT"] * 8),
        (UNIX, ["done", *["EAFNOSUPPORT"] * 7]),
        (FAMILIES, ["done", "EPERM", "done", "EPERM", "EPERM", "done", "EPROTONOSUPPORT", "EAFNOSUPPORT"]),
        (("unix", "inet"), ["done", "done", "done", "done", "EPERM", *["EAFNOSUPPORT"] * 3]),
        (
            ("unix", "netlink:sock_diag"),
            ["done", *["EAFNOSUPPORT"] * 4, "EPROTONOSUPPORT", "EPROTONOSUPPORT", "EAFNOSUPPORT"],
        ),
    ],
)
def test_sockets_are_of_the_families_and_kinds_that_are_allowed(families, expected):
    asked = [
        (socket.AF_UNIX, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_INET6, socket.SOCK_DGRAM),
        (socket.AF_INET6, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
        (socket.AF_NETLINK, socket.SOCK_RAW, 0),
        (socket.AF_NETLINK, socket.SOCK_RAW, 9),
        (socket.AF_PACKET, socket.SOCK_RAW),
    ]
    assert filtered(lambda: sockets(*asked), families) == expected


@needs_filters
def test_what_stands_above_an_int_hides_nothing():
    above = 1 << 32

    def try_all():
        return [
            answer_of(lambda: call("socket", above | socket.AF_PACKET, socket.SOCK_RAW, 0)),
            answer_of(lambda: call("socket", above | socket.AF_UNIX, socket.SOCK_STREAM, 0)),
            answer_of(lambda: call("socket", socket.AF_INET, above | socket.SOCK_RAW, 1)),
            answer_of(lambda: call("socket", socket.AF_NETLINK, socket.SOCK_RAW, above | 9)),
            answer_of(lambda: call("ioctl", 0, above | 0x5412, 0)),
        ]

    denied = ["EAFNOSUPPORT", "EAFNOSUPPORT", "EPERM", "EPROTONOSUPPORT", "EPERM"]
    assert filtered(try_all, FAMILIES) == denied


@needs_filters
def test_threads_can_be_started_and_namespaces_not():
    def start():
        done = []
        thread = threading.Thread(target=lambda: done.append(answer_of(lambda: call("unshare", 0))))
        thread.start()
        thread.join()
        return done, answer_of(lambda: call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))

    assert filtered(start) == (["EPERM"], "EPERM")


@needs_filters
def test_no_person_types_into_a_terminal():
    near, far = os.openpty()
    try:
        typed = filtered(lambda: answer_of(lambda: fcntl.ioctl(far, 0x5412, b"x")))
        size = filtered(lambda: answer_of(lambda: fcntl.ioctl(far, 0x5413, bytes(8))))
    finally:
        os.close(near)
        os.close(far)
    assert (typed, size) == ("EPERM", "done")


@needs_filters
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is an interface of x86-64's")
def test_a_system_call_of_a_foreign_architecture_ends_the_process():
    x32 = 0x40000000

    def foreign():
        no_new_privs()
        Filter(rules(UNIX)).enforce()
        libc.syscall(ctypes.c_long(x32 + 39))

    assert ending(foreign) == signal.SIGSYS


@needs_filters
def test_a_name_that_is_unknown_here_is_passed_over():
    made = Filter([Rule("no_such_call", errno.EPERM), Rule("reboot", errno.EPERM)])
    assert made.calls == 1


@needs_filters
def test_a_filter_that_the_library_refuses_is_told():
    with pytest.raises(NoFilter, match=r"^libseccomp refuses the filter: "):
        Filter([Rule("socket", errno.EPERM, ((9, 0, 0),))])


@needs_filters
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (errno.EINVAL, seccomp.NO_KERNEL),
        (errno.EPERM, "the kernel refuses the seccomp filter: "),
    ],
)
def test_a_kernel_that_refuses_filters_is_told(code, why):
    def refuse():
        no_new_privs()
        made = Filter(rules(UNIX))
        Filter([Rule("seccomp", code), Rule("prctl", code, ((0, 0xFFFFFFFF, 22),))]).enforce()
        try:
            made.enforce()
        except NoFilter as error:
            return str(error)
        return "in force"

    assert forked(refuse).startswith(why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stub", "why"),
    [
        (
            "raise RuntimeError('Unable to find libseccomp')",
            "libseccomp.so.2 cannot be loaded (Unable to find libseccomp); `apt-get install libseccomp2`",
        ),
        (
            "raise ModuleNotFoundError",
            "no module for libseccomp is installed; `pip install pyseccomp`, or `apt-get install python3-seccomp`",
        ),
    ],
)
def test_a_machine_without_libseccomp_says_what_to_install(tmp_path, stub, why):
    for name in ("seccomp", "pyseccomp"):
        (tmp_path / f"{name}.py").write_text(stub)
    program = "from hearth.drivers.sandbox.seccomp import *\ntry: library()\nexcept NoFilter as e: print(e)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == why
