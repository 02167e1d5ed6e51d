"""A program of proc.exec that tries what it must not: its own attacks, one at a time, by name.

    python program_intruder.py ATTACK PLACE

PLACE is a JSON object: the daemon's process id, its directory, the launcher's id. It prints a word: "done", or the name
of the errno that the kernel answered. The daemon reads nothing of this file; it is what an operator's program could be
made to do. It imports nothing of the tests.
"""

from __future__ import annotations

import array
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

libc = ctypes.CDLL(None, use_errno=True)
Place = dict[str, Any]


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def opened(path: str, flags: int = os.O_RDONLY) -> None:
    os.close(os.open(path, flags))


def in_child(do: Callable[[], object]) -> None:
    """Have it done by a child, which does not lead the group. Raises what the child was answered."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            do()
        except OSError as error:
            code = error.errno or 255
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))


def read_the_signing_key(place: Place) -> None:
    opened(place["own"] + "/audit.log.key")


def read_the_audit_log(place: Place) -> None:
    opened(place["own"] + "/audit.log")


def append_to_the_audit_log(place: Place) -> None:
    opened(place["own"] + "/audit.log", os.O_WRONLY | os.O_APPEND)


def replace_the_audit_log(place: Place) -> None:
    os.rename(place["own"] + "/audit.log", place["own"] + "/other")
    os.rename(place["own"] + "/other", place["own"] + "/audit.log")


def read_the_configuration(place: Place) -> None:
    opened(place["own"] + "/hearth.toml")


def list_the_state_directory(place: Place) -> None:
    os.listdir(place["own"])


def change_the_record_of_programs(place: Place) -> None:
    opened(place["own"] + "/audit.log.programs", os.O_RDWR)


def read_the_daemons_memory(place: Place) -> None:
    opened(f"/proc/{place['daemon']}/mem")


def read_the_daemons_environment(place: Place) -> None:
    opened(f"/proc/{place['daemon']}/environ")


def open_the_daemons_descriptors(place: Place) -> None:
    os.readlink(f"/proc/{place['daemon']}/fd/0")


def enter_by_the_daemons_root(place: Place) -> None:
    os.listdir(f"/proc/{place['daemon']}/root/etc")


def read_the_launchers_memory(place: Place) -> None:
    opened(f"/proc/{place['launcher']}/mem")


def trace_the_daemon(place: Place) -> None:
    checked(libc.ptrace(0x4206, place["daemon"], 0, 0))


def take_a_descriptor_of_the_daemon(place: Place) -> None:
    os.close(checked(libc.syscall(438, os.pidfd_open(place["daemon"]), 0, 0)))


def signal_the_daemon(place: Place) -> None:
    os.kill(place["daemon"], signal.SIGCONT)


def signal_the_daemon_by_pidfd(place: Place) -> None:
    signal.pidfd_send_signal(os.pidfd_open(place["daemon"]), signal.SIGCONT)


def signal_the_launcher(place: Place) -> None:
    os.kill(place["launcher"], signal.SIGCONT)


def limit_the_daemon(place: Place) -> None:
    resource.prlimit(place["daemon"], resource.RLIMIT_CORE, resource.prlimit(place["daemon"], resource.RLIMIT_CORE))


def hold_the_daemon_to_one_processor(place: Place) -> None:
    os.sched_setaffinity(place["daemon"], os.sched_getaffinity(place["daemon"]))


def slow_the_daemon_down(place: Place) -> None:
    os.setpriority(os.PRIO_PROCESS, place["daemon"], os.getpriority(os.PRIO_PROCESS, place["daemon"]))


def _connected(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(path)


def connect_to_the_daemon(place: Place) -> None:
    _connected(place["own"] + "/hearth.sock")


def connect_to_another_socket(place: Place) -> None:
    _connected(place["named"])


def connect_to_an_abstract_socket(place: Place) -> None:
    _connected("\0" + place["abstract"])


def send_a_datagram_to_a_socket_with_a_name(place: Place) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", place["datagram"])


def send_a_descriptor_to_a_socket_with_a_name(place: Place) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
        one.sendmsg([b"x"], passed, 0, place["datagram"])


def make_a_tcp_socket(_: Place) -> None:
    socket.socket(socket.AF_INET).close()


def make_a_udp_socket(_: Place) -> None:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def run_another_program(_: Place) -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def write_to_the_temporary_directory(place: Place) -> None:
    path = f"{place['outside']}/made-{os.getpid()}"
    opened(path, os.O_CREAT | os.O_WRONLY)
    os.unlink(path)


def share_memory_by_number(_: Place) -> None:
    number = checked(libc.shmget(0, 4096, 0o600))
    checked(libc.shmctl(number, 0, None))


def leave_the_group(_: Place) -> None:
    in_child(lambda: os.setpgid(0, 0))


def leave_the_session(_: Place) -> None:
    in_child(os.setsid)


def outlive_the_launcher(_: Place) -> None:
    checked(libc.prctl(1, 0, 0, 0, 0))


def make_a_namespace(_: Place) -> None:
    in_child(lambda: checked(libc.unshare(0x10000000)))


ATTACKS = {
    "EACCES": (
        read_the_signing_key, read_the_audit_log, append_to_the_audit_log, replace_the_audit_log,
        read_the_configuration, list_the_state_directory, change_the_record_of_programs, read_the_daemons_memory,
        read_the_daemons_environment,
        open_the_daemons_descriptors, enter_by_the_daemons_root, read_the_launchers_memory, run_another_program,
        write_to_the_temporary_directory,
    ),
    "EPERM": (
        trace_the_daemon, take_a_descriptor_of_the_daemon, signal_the_daemon, signal_the_daemon_by_pidfd,
        signal_the_launcher, limit_the_daemon, hold_the_daemon_to_one_processor, slow_the_daemon_down,
        send_a_datagram_to_a_socket_with_a_name, send_a_descriptor_to_a_socket_with_a_name, share_memory_by_number,
        leave_the_group, leave_the_session, outlive_the_launcher, make_a_namespace,
    ),
    "EAFNOSUPPORT": (
        connect_to_the_daemon, connect_to_another_socket, connect_to_an_abstract_socket, make_a_tcp_socket,
        make_a_udp_socket,
    ),
}  # fmt: skip
"""What each comes to where the rule is in force."""


def main() -> None:
    """Try one attack, and say what became of it."""
    name, place = sys.argv[1], json.loads(sys.argv[2])
    (attack,) = (one for some in ATTACKS.values() for one in some if one.__name__ == name)
    try:
        attack(place)
    except OSError as error:
        print(errno.errorcode.get(error.errno or 0, str(error)))
    else:
        print("done")


if __name__ == "__main__":
    main()
