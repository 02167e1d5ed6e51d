"""The system calls that a daemon does not need: a seccomp filter denies them, built by libseccomp.

This module owns the table of denied calls and their errors, each of which a program also meets on other machines. All
other calls are allowed: Python, its libraries and the C library use what they like. A system call of a foreign
architecture (i386 or x32 on x86-64), to which no rule applies, ends the process.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import re
from contextlib import suppress
from itertools import product
from socket import AF_CAN, AF_INET, AF_INET6, AF_NETLINK, AF_UNIX
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hearth.errors import HearthError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

_WORD: Final = 0xFFFFFFFF
"""The kernel reads an int, and the filter the whole register: the upper half must not hide a value."""
_FAMILIES: Final = 46
"""Address families are numbered below this (AF_MAX)."""
_INET, _INET6, _NETLINK, _CAN = (int(one) for one in (AF_INET, AF_INET6, AF_NETLINK, AF_CAN))
_NAMED: Final = {one.name.removeprefix("AF_").lower(): int(one) for one in (AF_UNIX, AF_INET, AF_NETLINK, AF_CAN)}
"""The families that a plan may name, as the kernel does; what comes after ":" or "-" says which of their sockets."""
_KINDS: Final = 16
_PROTOCOLS: Final = {_NETLINK: 23, _CAN: 8}
"""Families whose protocols are told apart, all of which are numbered below this."""
_CAN_USED: Final = (1, 6)
"""CAN_RAW and CAN_ISOTP, which not every build of Python has by name."""
_STREAM: Final = 1
_DATAGRAM: Final = 2
_INET_KINDS: Final = {"inet": (_DATAGRAM, _STREAM), "inet-stream": (_STREAM,), "inet-dgram": (_DATAGRAM,)}
NETLINK = {"netlink:route": 0, "netlink:sock_diag": 4}
"""The protocols of AF_NETLINK that a plan may name."""

DENIED: Final = {
    # Another program, or another process's memory.
    "ptrace process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp": errno.EPERM,
    # What is mounted where, and another root.
    "mount umount umount2 open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick": errno.EPERM,
    "mount_setattr pivot_root chroot swapon swapoff quotactl quotactl_fd acct": errno.EPERM,
    "name_to_handle_at open_by_handle_at fanotify_init": errno.EPERM,
    # The kernel itself, and the machine.
    "reboot kexec_load kexec_file_load init_module finit_module delete_module": errno.EPERM,
    "bpf perf_event_open syslog ioperm iopl modify_ldt vm86 vm86old personality": errno.EPERM,
    "sethostname setdomainname vhangup lookup_dcookie uselib nfsservctl": errno.EPERM,
    "settimeofday stime clock_settime clock_settime64 adjtimex clock_adjtime clock_adjtime64": errno.EPERM,
    "add_key request_key keyctl userfaultfd": errno.EPERM,
    # io_uring opens and connects without a system call that a filter would see.
    "io_uring_setup io_uring_enter io_uring_register": errno.EPERM,
    "unshare setns": errno.EPERM,
    # Changes of identity.
    "setuid setuid32 setgid setgid32 setreuid setreuid32 setregid setregid32 setresuid setresuid32": errno.EPERM,
    "setresgid setresgid32 setgroups setgroups32 setfsuid setfsuid32 setfsgid setfsgid32 capset": errno.EPERM,
    # Memory, semaphores and queues of other processes: they have no path, so no rule of Landlock covers them.
    "shmget shmat shmctl shmdt semget semop semctl semtimedop semtimedop_time64": errno.EPERM,
    "msgget msgsnd msgrcv msgctl ipc mq_open mq_unlink process_mrelease": errno.EPERM,
}
"""Names of system calls, those of other architectures and of newer kernels among them, and their errors."""
NO_KERNEL: Final = "this kernel has no seccomp filters; it takes Linux 4.14 or later, built with CONFIG_SECCOMP_FILTER"
EXECUTING: Final = {"execve execveat": errno.EPERM}
UNNEEDED: Final = {
    # The daemon changes no modes, owners and labels by name; Landlock does not cover these.
    "chmod fchmodat fchmodat2 chown chown32 lchown lchown32 fchownat": errno.EPERM,
    "setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat": errno.EPERM,
}
"""Calls that only programs of the daemon may need."""
CONNECTING: Final = {"connect": errno.EACCES}
"""Landlock does not cover named sockets of other daemons either."""
LEAVING: Final = {"setsid setpgid": errno.EPERM}
"""Programs end by their group of processes, so they may not leave it."""
_PR_SET_PDEATHSIG: Final = 1
_OF_ANOTHER: Final = (
    "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr move_pages migrate_pages"
)
"""Changes to a process: its limits, scheduling and memory. The first argument names it; 0 is the caller."""
_ANSWERING: Final = {"sendmsg sendmmsg": errno.EACCES}
"""The message may hold an address, or descriptors, which a filter cannot see. Answers use send and write."""
_MSG_FASTOPEN: Final = 0x20000000
_SOCKADDR_NL: Final = 12
"""Bytes of the kernel's own address, which the C library writes out when it asks for interfaces."""
_UNIX_DATAGRAMS: Final = (2, 3)
"""SOCK_DGRAM, and SOCK_RAW, which AF_UNIX takes for the same."""
_SET_ID_BITS: Final = (0o4000, 0o2000)
_MODES: Final = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
"""The index of the mode argument."""


class NoFilter(HearthError):
    """A filter that cannot be built here; the message says why, with the cure."""


class Rule(NamedTuple):
    """A system call that is denied with an errno; `match` are (argument, mask, value) that all must hold.

    Mask 0 means: at least the value.
    """

    call: str
    error: int
    match: tuple[tuple[int, int, int], ...] = ()


_BY_ARGUMENT: Final = (
    # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET: one flag is enough to deny the call.
    *[Rule("clone", errno.EPERM, ((0, 1 << bit, 1 << bit),)) for bit in (17, 25, 26, 27, 28, 29, 30)],
    # The flags are in memory, which a filter cannot see. The C library falls back on clone.
    Rule("clone3", errno.ENOSYS),
    # TIOCSTI and TIOCLINUX, which insert input at the user's terminal.
    *[Rule("ioctl", errno.EPERM, ((1, _WORD, request),)) for request in (0x5412, 0x541C)],
    *[Rule(name, errno.EPERM, ((0, 0, 1),)) for name in _OF_ANOTHER.split()],
    # The same where the first argument gives the type of the second: from a value on a group or a user.
    *[Rule("setpriority", errno.EPERM, ((argument, 0, 1),)) for argument in (0, 1)],
    Rule("ioprio_set", errno.EPERM, ((0, 0, 2),)),
    Rule("ioprio_set", errno.EPERM, ((1, 0, 1),)),
)
"""Calls that are denied with certain arguments only."""


def rules(
    families: Collection[str],
    *,
    execve: bool = False,
    connect: bool = False,
    tcp: bool = False,
    notifier: int | None = None,
) -> Iterator[Rule]:
    """Yield the denied calls of a daemon that may make sockets of these families.

    They are "unix", "inet" (streams and datagrams), "inet-stream", "inet-dgram", "can", and those of NETLINK. With
    `connect` sockets of other daemons may be connected to, with `tcp` those of IP, as far as Landlock lets. With
    `execve` the calls that programs need are allowed, too. `notifier` is a descriptor of a datagram socket that is
    connected to the service manager: it may send to that socket only.
    """
    tables = [DENIED, *([] if execve else [EXECUTING, UNNEEDED]), *([] if execve or connect or tcp else [CONNECTING])]
    yield from _of_tables(tables)
    for name, argument in _MODES.items():
        for bit in _SET_ID_BITS:
            if execve or name == "fchmod":
                yield Rule(name, errno.EPERM, ((argument, bit, bit),))
    yield from _BY_ARGUMENT
    yield from _sockets(families)
    if not connect:
        # A datagram socket of a pair can send to any name, without connect.
        for kind in _UNIX_DATAGRAMS:
            yield Rule("socketpair", errno.EPERM, ((1, 0xF, kind),))
    if "inet" not in families:
        # MSG_FASTOPEN opens a TCP connection without connect.
        yield Rule("sendto", errno.EACCES, ((3, _MSG_FASTOPEN, _MSG_FASTOPEN),))
        if not (execve or connect):
            yield from _answers("netlink:route" in families, notifier)


def program_rules(families: Collection[str]) -> Iterator[Rule]:
    """Yield the denied calls of a program of `proc.exec`: the daemon's, without those that running programs takes."""
    yield from rules(families, execve=True)
    yield from _of_tables([LEAVING])
    yield Rule("prctl", errno.EPERM, ((0, _WORD, _PR_SET_PDEATHSIG),))


def _of_tables(tables: Iterable[Mapping[str, int]]) -> Iterator[Rule]:
    for table in tables:
        for names, error in table.items():
            for name in names.split():
                yield Rule(name, error)


def _answers(netlink: bool, notifier: int | None) -> Iterator[Rule]:
    """Yield rules that deny sending to an address: to another daemon's socket, or opening a connection by sending.

    Where interfaces are asked for, an address no longer than the kernel's own is allowed: no IP address is as short. An
    AF_UNIX one may be. Of the sockets that such a daemon can have, only the service manager's would send to it; so that
    socket, by whatever number, may not use an address.
    """
    yield from _of_tables([_ANSWERING])
    addressed = (4, 0, 1)
    if not netlink:
        yield Rule("sendto", errno.EACCES, (addressed,))
        return
    yield Rule("sendto", errno.EACCES, (addressed, (5, 0, _SOCKADDR_NL + 1)))
    if notifier is not None:
        this = (0, _WORD, notifier)
        yield Rule("sendto", errno.EACCES, (this, addressed))
        for name in ("dup", "dup2", "dup3"):
            yield Rule(name, errno.EPERM, (this,))
        for command in (fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC):
            yield Rule("fcntl", errno.EPERM, (this, (1, _WORD, command)))


def _sockets(families: Collection[str]) -> Iterator[Rule]:
    allowed = {_NAMED[word] for word in {re.split("[:-]", name)[0] for name in families} & _NAMED.keys()}
    kinds = {kind for name, of in _INET_KINDS.items() if name in families for kind in of}
    if kinds:
        allowed.add(_INET6)
        # The low four bits are the type; SOCK_CLOEXEC and SOCK_NONBLOCK are above.
        for family, kind in product((_INET, _INET6), {*range(_KINDS)} - kinds):
            yield Rule("socket", errno.EPERM, ((0, _WORD, family), (1, 0xF, kind)))
    for family, used in ((_NETLINK, [NETLINK[name] for name in families if name in NETLINK]), (_CAN, _CAN_USED)):
        if family in allowed:
            yield from _protocols(family, used, _PROTOCOLS[family])
    for family in range(_FAMILIES):
        if family not in allowed:
            yield Rule("socket", errno.EAFNOSUPPORT, ((0, _WORD, family),))
    # And the families of kernels to come.
    yield Rule("socket", errno.EAFNOSUPPORT, ((0, 0, _FAMILIES),))


def _protocols(family: int, used: Collection[int], beyond: int) -> Iterator[Rule]:
    """Yield rules that deny the sockets of a family whose protocol is not among `used`, all less than `beyond`."""
    for protocol in range(beyond):
        if protocol not in used:
            yield Rule("socket", errno.EPROTONOSUPPORT, ((0, _WORD, family), (2, _WORD, protocol)))
    yield Rule("socket", errno.EPROTONOSUPPORT, ((0, _WORD, family), (2, 0, beyond)))


def library() -> Any:
    """Return the Python module of libseccomp: Debian's, else the one over ctypes. Raises NoFilter."""
    for name in ("seccomp", "pyseccomp"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except (OSError, RuntimeError, AttributeError) as error:
            raise NoFilter(f"libseccomp.so.2 cannot be loaded ({error}); `apt-get install libseccomp2`") from None
    raise NoFilter(
        "no module for libseccomp is installed; `pip install pyseccomp`, or `apt-get install python3-seccomp`"
    )


class Filter:
    """A filter that is ready to be put in force. Build it before files are denied: libseccomp must be found."""

    def __init__(self, denied: Iterable[Rule]) -> None:
        """Build the filter. Raises NoFilter."""
        seccomp = library()
        numbers = set()
        try:
            self._filter = seccomp.SyscallFilter(seccomp.ALLOW)
            # The first thing that libseccomp asks the kernel about. Debian's module has a ValueError for EINVAL.
            self._filter.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
        except (OSError, RuntimeError, ValueError):
            raise NoFilter(NO_KERNEL) from None
        try:
            with suppress(OSError, RuntimeError, AttributeError):  # libseccomp before 2.5 does not know it
                # The kernel's own errors, and not one for all of them.
                self._filter.set_attr(seccomp.Attr.API_SYSRAWRC, 1)
            for rule in denied:
                # A call that this architecture does not have needs no rule.
                number = _number(seccomp, rule.call)
                if number >= 0:
                    numbers.add(number)
                    match = (_argument(seccomp, *condition) for condition in rule.match)
                    self._filter.add_rule(seccomp.ERRNO(rule.error), number, *match)
        except (OSError, RuntimeError) as error:
            raise NoFilter(f"libseccomp refuses the filter: {error}") from None
        self.calls = len(numbers)
        """The number of system calls it denies, some of them only with certain arguments."""

    def enforce(self) -> None:
        """Put the filter in force for this thread and its children. Requires no_new_privs. Raises NoFilter."""
        try:
            self._filter.load()
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EINVAL, errno.ENOSYS):
                raise NoFilter(NO_KERNEL) from None
            raise NoFilter(f"the kernel refuses the seccomp filter: {error}") from None


def _number(seccomp: Any, name: str) -> int:
    """Return a system call's number, negative where this architecture or this library does not have it."""
    try:
        return int(seccomp.resolve_syscall(seccomp.system_arch(), name))
    except ValueError:
        return -1


def _argument(seccomp: Any, index: int, mask: int, value: int) -> Any:
    if mask:
        return seccomp.Arg(index, seccomp.MASKED_EQ, mask, value)
    return seccomp.Arg(index, seccomp.GE, value)
