"""Somebody else's code inside the daemon: a vendor's tool that tries what a hearthd that was taken over would try.

An attack is a function that raises OSError, with what the kernel answered, or returns. Each is tried twice, in the
thread that serves and in a new one; what became of it is a word: "done", the errno's name, or a signal's. An attack
that would end the daemon, or change it, is carried out by a child of its.

This file is copied to where the daemon finds it as a distribution (`install`), so it imports nothing of the tests.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import os
import signal
import socket
import stat
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from hearth.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hearth.drivers.boards import Board
    from hearth.tools import Args, StepContext

ATTACKS: dict[str, Attack] = {}
NULL = ctypes.c_void_p(None)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Attack:
    """A rule that somebody tries to break: what the kernel answers where the rule is in force."""

    def __init__(self, run: Callable[[Any], object], expected: str, needs: int, also: tuple[str, ...]) -> None:
        self.run, self.expected, self.needs, self.also = run, expected, needs, also


def attack(expected: str, *, landlock: int = 0, also: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Register one. `landlock` is the version that it takes to deny it, 0 where the filter does.

    `also` is what it may come to where it is not denied, beside "done": a machine may not have the thing.
    """

    def register(run: Callable[[Any], object]) -> Callable[[Any], object]:
        ATTACKS[run.__name__] = Attack(run, expected, landlock, also)
        return run

    return register


def call(name: str, *arguments: Any) -> int:
    """A system call as it is, past the C library and Python. Raises OSError."""
    for module in ("seccomp", "pyseccomp"):
        try:
            seccomp = importlib.import_module(module)
        except ImportError:
            continue
        break
    number = seccomp.resolve_syscall(seccomp.system_arch(), name)
    assert number >= 0, f"{name} is unknown here"
    raw = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *raw))


def checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def in_child(do: Callable[[], object]) -> None:
    """Have it done by a child, which is what the daemon is but for its threads. Raises what the child was answered."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            do()
            code = 0
        except OSError as error:
            code = error.errno or 254
        finally:
            os._exit(code)
    ended(pid)


def ended(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        raise OSError(0, signal.Signals(-code).name)
    if code:
        raise OSError(code, os.strerror(code))


TRUE = "/bin/true"


def words(*said: str) -> Any:
    return (ctypes.c_char_p * (len(said) + 1))(*(one.encode() for one in said), None)


# --- running programs -------------------------------------------------------------------------------------------------


@attack("EPERM")
def execve(_: Any) -> None:
    in_child(lambda: call("execve", TRUE.encode(), words("true"), words()))


@attack("EPERM")
def execve_as_python_does(_: Any) -> None:
    ended(os.posix_spawn(TRUE, ["true"], {}))


@attack("EPERM")
def execve_of_the_interpreter_that_runs_the_daemon(_: Any) -> None:
    in_child(lambda: os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", ""]))


@attack("EPERM")
def execveat_of_a_program_in_memory(_: Any) -> None:
    made = os.memfd_create("true")
    os.write(made, Path(TRUE).read_bytes())
    in_child(lambda: call("execveat", made, b"", words("true"), words(), 0x1000))


@attack("EPERM")
def execve_of_a_program_of_ones_own_making(place: Any) -> None:
    own = Path(place["own"], f"program-{os.urandom(8).hex()}")
    own.write_bytes(Path(TRUE).read_bytes())
    os.fchmod(fd := os.open(own, os.O_RDONLY), 0o700)
    os.close(fd)
    in_child(lambda: os.execv(own, ["true"]))


# --- other processes --------------------------------------------------------------------------------------------------


@attack("EPERM")
def ptrace_of_a_process_outside(place: Any) -> None:
    in_child(lambda: call("ptrace", 0x4206, place["victim"], 0, 0))


@attack("EPERM")
def ptrace_of_the_daemon_by_its_own_child(_: Any) -> None:
    in_child(lambda: call("ptrace", 0x4206, os.getppid(), 0, 0))


@attack("EPERM")
def ptrace_traceme(_: Any) -> None:
    in_child(lambda: call("ptrace", 0, 0, 0, 0))


def vector() -> Any:
    buffer = ctypes.create_string_buffer(8)
    return (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)


@attack("EPERM", also=("EFAULT",))
def process_vm_readv(place: Any) -> None:
    call("process_vm_readv", place["victim"], vector(), 1, (ctypes.c_ulong * 2)(0x1000, 8), 1, 0)


@attack("EPERM", also=("EFAULT",))
def process_vm_writev(place: Any) -> None:
    call("process_vm_writev", place["victim"], vector(), 1, (ctypes.c_ulong * 2)(0x1000, 8), 1, 0)


@attack("EPERM")
def pidfd_getfd(place: Any) -> None:
    os.close(call("pidfd_getfd", os.pidfd_open(place["victim"]), 0, 0))


@attack("EPERM", landlock=6)
def kill_outside(place: Any) -> None:
    os.kill(place["victim"], signal.SIGCONT)


@attack("EPERM", landlock=6)
def kill_outside_by_pidfd(place: Any) -> None:
    signal.pidfd_send_signal(os.pidfd_open(place["victim"]), signal.SIGCONT)


@attack("EPERM", landlock=6)
def kill_outside_by_thread(place: Any) -> None:
    call("tgkill", place["victim"], place["victim"], signal.SIGCONT)


@attack("EACCES", landlock=1)
def environment_of_another_process(place: Any) -> None:
    Path(f"/proc/{place['victim']}/environ").read_bytes()


@attack("EACCES", landlock=1)
def environment_of_the_first_process(_: Any) -> None:
    Path("/proc/1/environ").read_bytes()


@attack("EACCES", landlock=1)
def memory_of_another_process(place: Any) -> None:
    os.close(os.open(f"/proc/{place['victim']}/mem", os.O_RDWR))


@attack("EACCES", landlock=1)
def root_of_another_process(place: Any) -> None:
    os.listdir(f"/proc/{place['victim']}/root")


# --- mounts, namespaces, the kernel -----------------------------------------------------------------------------------


@attack("EPERM")
def mount(place: Any) -> None:
    call("mount", b"none", place["outside"].encode(), b"tmpfs", 0, NULL)
    call("umount2", place["outside"].encode(), 0)


@attack("EPERM", also=("EINVAL",))
def umount(place: Any) -> None:
    call("umount2", place["outside"].encode(), 0)


@attack("EPERM")
def new_mount_api_fsopen(_: Any) -> None:
    os.close(call("fsopen", b"tmpfs", 0))


@attack("EPERM")
def new_mount_api_open_tree(_: Any) -> None:
    os.close(call("open_tree", -100, b"/", 1))


@attack("EPERM", also=("EBADF",))
def new_mount_api_move_mount(_: Any) -> None:
    call("move_mount", -1, b"", -100, b"/", 4)


@attack("EPERM", also=("EINVAL", "EBUSY"))
def pivot_root(place: Any) -> None:
    call("pivot_root", place["own"].encode(), place["own"].encode())


@attack("EPERM")
def chroot(_: Any) -> None:
    in_child(lambda: os.chroot("/"))


@attack("EPERM")
def unshare_user(_: Any) -> None:
    in_child(lambda: call("unshare", 0x10000000))


@attack("EPERM")
def unshare_mounts(_: Any) -> None:
    in_child(lambda: call("unshare", 0x00020000))


@attack("EPERM")
def setns(_: Any) -> None:
    in_child(lambda: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0))


@attack("EPERM")
def clone_into_a_user_namespace(_: Any) -> None:
    def clone() -> None:
        pid = call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        ended(pid)

    # From a process of one thread: Python does not know of this clone, which would wait for ever for a lock that some
    # other thread had at that moment.
    in_child(clone)


@attack("ENOSYS", also=("EINVAL",))
def clone3_whose_flags_no_filter_sees(_: Any) -> None:
    call("clone3", NULL, 0)


@attack("EPERM", also=("ENOSYS", "EFAULT", "ENOEXEC"))
def init_module(_: Any) -> None:
    call("init_module", NULL, 0, b"")


@attack("EPERM", also=("ENOSYS", "EBADF"))
def finit_module(_: Any) -> None:
    call("finit_module", -1, b"", 0)


@attack("EPERM", also=("ENOSYS", "ENOENT"))
def delete_module(_: Any) -> None:
    call("delete_module", b"hearth_none", os.O_NONBLOCK)


@attack("EPERM", also=("ENOSYS", "EINVAL"))
def kexec_load(_: Any) -> None:
    call("kexec_load", 0, 0, NULL, 0xFFFF)


@attack("EPERM", also=("EINVAL",))
def reboot(_: Any) -> None:
    call("reboot", 0, 0, 0, NULL)


@attack("EPERM", also=("ENOSYS", "EINVAL"))
def bpf(_: Any) -> None:
    attributes = (ctypes.c_uint32 * 16)(2, 4, 4, 1)
    os.close(call("bpf", 0, attributes, 64))


@attack("EPERM", also=("ENOSYS", "EINVAL", "ENOENT", "EACCES", "EFAULT", "EOPNOTSUPP"))
def perf_event_open(_: Any) -> None:
    call("perf_event_open", NULL, 0, -1, -1, 0)


@attack("EPERM", also=("ENOSYS",))
def keyctl(_: Any) -> None:
    call("keyctl", 0, -3, 0, 0, 0)


@attack("EPERM", also=("ENOSYS",))
def add_key(_: Any) -> None:
    call("add_key", b"user", b"hearth-test", b"x", 1, -2)


@attack("EPERM", also=("ENOSYS",))
def userfaultfd(_: Any) -> None:
    os.close(call("userfaultfd", 1))


@attack("EPERM", also=("ENOSYS", "EFAULT"))
def io_uring_setup(_: Any) -> None:
    call("io_uring_setup", 1, NULL)


@attack("EPERM")
def kernel_log(_: Any) -> None:
    call("syslog", 10, NULL, 0)


@attack("EPERM", also=("EINVAL",))
def sethostname(_: Any) -> None:
    call("sethostname", b"x", -1)


@attack("EPERM", also=("EINVAL",))
def clock_settime(_: Any) -> None:
    call("clock_settime", 1, (ctypes.c_long * 2)(0, 0))


@attack("EPERM", also=("ENOTTY", "EIO", "EINVAL", "ENODEV"))
def typing_into_a_terminal(_: Any) -> None:
    checked(libc.ioctl(0, ctypes.c_ulong(0x5412), b"\n"))


@attack("SIGSYS", also=("ENOSYS", "SIGSEGV"))
def system_call_of_a_foreign_architecture(_: Any) -> None:
    """getpid of i386: `mov eax, 20; int 0x80; ret`."""
    if os.uname().machine != "x86_64":
        raise OSError(0, "SIGSYS")
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    in_child(lambda: checked(min(run(), 0)))


# --- who it is --------------------------------------------------------------------------------------------------------


@attack("EPERM")
def setuid_back_to_root(_: Any) -> None:
    in_child(lambda: os.setresuid(0, 0, 0))


@attack("EPERM")
def setgroups(_: Any) -> None:
    in_child(lambda: os.setgroups([0]))


@attack("EPERM")
def capset(_: Any) -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    everything = (ctypes.c_uint32 * 6)()
    call("capget", header, everything)
    in_child(lambda: call("capset", header, everything))


# --- sockets ----------------------------------------------------------------------------------------------------------


def _socket(family: int, kind: int, protocol: int = 0) -> None:
    os.close(call("socket", family, kind, protocol))


@attack("EPERM")
def socket_tcp(_: Any) -> None:
    _socket(socket.AF_INET, socket.SOCK_STREAM)


@attack("EPERM")
def socket_tcp_over_ipv6(_: Any) -> None:
    _socket(socket.AF_INET6, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


@attack("EPERM")
def socket_raw(_: Any) -> None:
    _socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


@attack("EPERM")
def socket_raw_with_more_in_the_register(_: Any) -> None:
    _socket(socket.AF_INET | 1 << 32, socket.SOCK_RAW | 7 << 32, socket.IPPROTO_ICMP)


@attack("EPERM", also=("EPROTONOSUPPORT", "ESOCKTNOSUPPORT"))
def socket_sctp(_: Any) -> None:
    _socket(socket.AF_INET, socket.SOCK_SEQPACKET, 132)


@attack("EAFNOSUPPORT")
def socket_packet(_: Any) -> None:
    _socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)


@attack("EAFNOSUPPORT")
def socket_packet_with_more_in_the_register(_: Any) -> None:
    _socket(socket.AF_PACKET | 1 << 40, socket.SOCK_RAW, 0x0300)


@attack("EAFNOSUPPORT")
def socket_vsock(_: Any) -> None:
    _socket(socket.AF_VSOCK, socket.SOCK_STREAM)


@attack("EAFNOSUPPORT")
def socket_alg(_: Any) -> None:
    _socket(socket.AF_ALG, socket.SOCK_SEQPACKET)


@attack("EAFNOSUPPORT")
def socket_bluetooth(_: Any) -> None:
    _socket(31, socket.SOCK_RAW, 1)


@attack("EAFNOSUPPORT")
def socket_can(_: Any) -> None:
    _socket(29, socket.SOCK_RAW, 1)


@attack("EPROTONOSUPPORT")
def socket_kernel_events(_: Any) -> None:
    _socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)


@attack("EPROTONOSUPPORT")
def socket_firewall(_: Any) -> None:
    _socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)


@attack("EAFNOSUPPORT")
def connect_to_a_socket_with_a_name(place: Any) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(place["named"])


@attack("EAFNOSUPPORT")
def connect_to_an_abstract_socket(place: Any) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.connect("\0" + place["abstract"])


@attack("EAFNOSUPPORT")
def send_to_an_abstract_socket(place: Any) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", "\0" + place["abstract_datagram"])


@attack("EAFNOSUPPORT")
def bind_a_socket_outside(place: Any) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place["outside"] + f"/socket-{os.urandom(8).hex()}")


def _pair(kind: int) -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, kind)


@attack("EPERM")
def datagram_from_a_pair_of_sockets(place: Any) -> None:
    one, other = _pair(socket.SOCK_DGRAM)
    with one, other:
        one.sendto(b"x", place["datagram"])


@attack("EPERM")
def datagram_from_a_pair_of_raw_sockets(place: Any) -> None:
    one, other = _pair(socket.SOCK_RAW)
    with one, other:
        one.sendto(b"x", place["datagram"])


@attack("EACCES", also=("EOPNOTSUPP", "EISCONN"))
def datagram_to_an_address(place: Any) -> None:
    """By a socket that a daemon has: what the kernel would make of it is another matter."""
    one, other = _pair(socket.SOCK_STREAM)
    with one, other:
        one.sendto(b"x", place["datagram"])


@attack("EACCES")
def descriptor_to_another_process(_: Any) -> None:
    one, other = _pair(socket.SOCK_STREAM)
    with one, other:
        socket.send_fds(one, [b"x"], [0])


@attack("EACCES", also=("EOPNOTSUPP", "EINVAL", "EISCONN"))
def many_messages_at_once(_: Any) -> None:
    one, other = _pair(socket.SOCK_STREAM)
    with one, other:
        call("sendmmsg", one.fileno(), NULL, 0, 0)


@attack("EACCES")
def datagram_over_ip(place: Any) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(b"x", ("127.0.0.1", place["port"]))


@attack("EPERM")
def limits_of_another_process(place: Any) -> None:
    call("prlimit64", place["victim"], 4, NULL, NULL)


@attack("EPERM")
def processors_of_another_process(place: Any) -> None:
    os.sched_setaffinity(place["victim"], os.sched_getaffinity(place["victim"]))


@attack("EPERM")
def scheduling_of_another_process(place: Any) -> None:
    os.sched_setscheduler(place["victim"], os.SCHED_OTHER, os.sched_param(0))


@attack("EPERM")
def priority_of_another_process(place: Any) -> None:
    os.setpriority(os.PRIO_PROCESS, place["victim"], 0)


@attack("EPERM")
def priority_of_all_processes_of_a_user(_: Any) -> None:
    os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))


@attack("EPERM", also=("ENOSYS",))
def memory_that_is_shared_by_number(_: Any) -> None:
    number = call("shmget", 0, 4096, 0o600)
    call("shmctl", number, 0, NULL)


@attack("EPERM", also=("ENOSYS", "EINVAL"))
def memory_of_others_that_is_attached_by_number(_: Any) -> None:
    call("shmat", -1, NULL, 0)


@attack("EPERM", also=("ENOSYS",))
def queue_of_messages_by_number(_: Any) -> None:
    number = call("msgget", 0, 0o600)
    call("msgctl", number, 0, NULL)


@attack("EACCES")
def turning_a_clients_connection_into_one_of_ones_own(place: Any) -> None:
    """The only TCP sockets that a confined daemon gets are those that it was configured to listen on, and accepts."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if not os.path.exists(f"/proc/self/fd/{number}") or not stat.S_ISSOCK(os.fstat(number).st_mode):
            continue
        with socket.socket(fileno=os.dup(number)) as taken:
            if taken.family != socket.AF_INET or taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            # To nowhere (AF_UNSPEC) first, which lets go of the client.
            checked(libc.connect(taken.fileno(), bytes(16), 16))
            taken.setblocking(True)
            try:
                taken.connect(("127.0.0.1", place["port"]))
            finally:
                taken.setblocking(False)
            return
    raise AssertionError("there is no connection")


@attack("EACCES", also=("EOPNOTSUPP", "EISCONN"))
def opening_a_connection_by_sending(place: Any) -> None:
    """The flag alone; what it opens is shown where the filter is tested, since it is the end of a listener."""
    one, other = _pair(socket.SOCK_STREAM)
    with one, other:
        one.sendto(b"x", socket.MSG_FASTOPEN, place["datagram"])


# --- files and devices ------------------------------------------------------------------------------------------------


@attack("EACCES", landlock=1)
def read_shadow(_: Any) -> None:
    Path("/etc/shadow").read_bytes()


@attack("EACCES", landlock=1)
def read_another_users_file(place: Any) -> None:
    Path(place["secret"]).read_bytes()


@attack("EACCES", landlock=1)
def list_another_users_directory(place: Any) -> None:
    os.listdir(place["outside"])


@attack("EACCES", landlock=1)
def write_another_users_file(place: Any) -> None:
    os.close(os.open(place["secret"], os.O_WRONLY))


@attack("EACCES", landlock=3)
def truncate_another_users_file(place: Any) -> None:
    os.truncate(place["secret"], 1)


@attack("EACCES", landlock=1)
def write_to_etc(_: Any) -> None:
    _made("/etc")


@attack("EACCES", landlock=1)
def write_to_usr(_: Any) -> None:
    _made("/usr")


@attack("EACCES", landlock=1)
def write_beside_the_modules_that_the_daemon_imports(_: Any) -> None:
    _made(os.path.dirname(trio.__file__))


@attack("EACCES", landlock=1)
def write_into_the_daemons_own_program(_: Any) -> None:
    os.close(os.open(sys.modules["hearth.actors.runtime"].__file__ or "", os.O_WRONLY))


@attack("EACCES", landlock=1)
def write_to_the_temporary_directory(_: Any) -> None:
    _made("/tmp")


def _made(directory: str) -> None:
    path = f"{directory}/hearth-was-here-{os.urandom(8).hex()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)


@attack("EACCES", landlock=1)
def a_file_without_a_name_outside(place: Any) -> None:
    os.close(os.open(place["outside"], os.O_TMPFILE | os.O_WRONLY))


@attack("EACCES", landlock=1)
def mkdir_outside(place: Any) -> None:
    os.rmdir(_named(place["outside"], os.mkdir))


@attack("EACCES", landlock=1)
def unlink_outside(place: Any) -> None:
    # A directory's name beside it, so that it is there for the next who tries.
    os.rmdir(place["empty"])
    os.mkdir(place["empty"])


def _named(directory: str, make: Callable[[str], object]) -> str:
    path = f"{directory}/made-{os.urandom(8).hex()}"
    make(path)
    return path


@attack("EPERM")
def chmod_of_what_is_not_the_daemons(place: Any) -> None:
    os.chmod(place["secret"], 0o644)


@attack("EPERM")
def chown_of_what_is_not_the_daemons(place: Any) -> None:
    os.chown(place["secret"], -1, -1)


@attack("EPERM")
def a_program_that_runs_as_its_owner(place: Any) -> None:
    fd = os.open(_named(place["own"], lambda path: Path(path).write_bytes(b"")), os.O_RDONLY)
    os.fchmod(fd, 0o4755)
    os.close(fd)


@attack("EACCES", landlock=1)
def a_link_out_of_an_allowed_directory(place: Any) -> None:
    Path(_named(place["own"], lambda path: os.symlink(place["secret"], path))).read_bytes()


@attack("EXDEV", landlock=1)
def a_second_name_for_a_file_outside(place: Any) -> None:
    _named(place["own"], lambda path: os.link(place["secret"], path))


@attack("EACCES", landlock=1)
def renaming_a_file_in_from_outside(place: Any) -> None:
    inside = _named(place["own"], lambda path: os.rename(place["secret"], path))
    os.rename(inside, place["secret"])


@attack("EACCES", landlock=1)
def renaming_a_file_out(place: Any) -> None:
    inside = _named(place["own"], lambda path: Path(path).write_bytes(b""))
    os.unlink(_named(place["outside"], lambda path: os.rename(inside, path)))


@attack("EACCES", landlock=1)
def up_and_out_of_an_allowed_directory(place: Any) -> None:
    os.close(os.open(os.path.join(place["own"], os.path.relpath(place["secret"], place["own"])), os.O_RDONLY))


@attack("EACCES", landlock=1)
def opening_again_what_was_only_looked_at(place: Any) -> None:
    fd = os.open(place["secret"], os.O_PATH)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
    finally:
        os.close(fd)


@attack("EACCES", landlock=1)
def the_file_system_as_the_process_sees_it(place: Any) -> None:
    os.close(os.open("/proc/self/root" + place["secret"], os.O_RDONLY))


@attack("EPERM", also=("EOVERFLOW", "EOPNOTSUPP"))
def a_file_by_its_handle(place: Any) -> None:
    handle, mounted_on = (ctypes.c_uint32 * 34)(128), ctypes.c_int()
    call("name_to_handle_at", -100, place["secret"].encode(), handle, ctypes.byref(mounted_on), 0)


@attack("EACCES", landlock=1)
def memory_of_the_machine(_: Any) -> None:
    os.close(os.open("/dev/mem", os.O_RDONLY))


@attack("EACCES", landlock=1)
def messages_of_the_kernel(_: Any) -> None:
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))


@attack("EACCES", landlock=1)
def a_disk(place: Any) -> None:
    os.close(os.open(place["disk"], os.O_RDONLY))


@attack("EACCES", landlock=1)
def a_device_node_of_ones_own_making(place: Any) -> None:
    node = _named(place["own"], lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 1)))
    os.unlink(node)


# --- the tool ---------------------------------------------------------------------------------------------------------


def outcome(name: str, place: Mapping[str, Any]) -> str:
    """What became of an attack, in a word."""
    try:
        ATTACKS[name].run(place)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.strerror))
    return "done"


def in_a_thread(name: str, place: Mapping[str, Any]) -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(outcome(name, place)))
    thread.start()
    thread.join()
    return found[0]


def tools(_board: Board) -> Iterable[Tool]:
    """The entry point `com.example`."""

    async def intrude(_ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """Tries an attack, here and in a thread."""
        await trio.lowlevel.checkpoint()
        return {"here": outcome(args["attack"], args), "thread": in_a_thread(args["attack"], args)}

    async def look(_ctx: StepContext, args: Args) -> Mapping[str, Any]:
        """What an expression comes to inside."""
        await trio.lowlevel.checkpoint()
        return {"value": eval(args["expression"], globals())}

    yield from (
        Tool(
            name=f"com.example.{name}",
            version=1,
            risk_level=0,
            timeout_ms=20_000,
            description=run.__doc__,
            params_schema={"type": "object"},
            result_schema={"type": "object"},
            capability="CAP_SYS_READ",
            bus=lambda _args: "board",
            run=run,
        )
        for name, run in (("intrude", intrude), ("look", look))
    )


def install(site: Path) -> None:
    """Make a directory that, on PYTHONPATH, has this module installed as a distribution with its entry point."""
    site.mkdir()
    (site / "hearth_intruder.py").write_text(Path(__file__).read_text("utf-8"))
    info = site / "hearth_intruder-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hearth-intruder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hearth.tools]\ncom.example = hearth_intruder:tools\n")
