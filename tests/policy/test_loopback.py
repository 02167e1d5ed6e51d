"""Who calls over loopback: the real kernel's answers about real sockets, and answers that no kernel would give."""

import errno
import os
import pwd
import re
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from hearth.errors import PermissionDenied
from hearth.policy import principal
from hearth.policy.principal import from_loopback, from_peercred, peer_uid, question, uid_in

HERE, THERE = (ip_address("127.0.0.1"), 7118), (ip_address("127.0.0.1"), 40001)
OTHER = 54323


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def has_sock_diag():
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, principal._NETLINK_SOCK_DIAG).close()
    except OSError:
        return False
    return True


needs_sock_diag = pytest.mark.skipif(
    not has_sock_diag(), reason="no kernel answers here whose a socket is: CONFIG_INET_DIAG; an emulated one never does"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user")


@pytest.fixture
def meet():
    """Our end and the peer's of a TCP connection."""
    with ExitStack() as stack:

        def connect(listen="127.0.0.1", dial=None):
            family = socket.AF_INET6 if ":" in listen else socket.AF_INET
            both = listen == "::"
            listener = stack.enter_context(socket.create_server((listen, 0), family=family, dualstack_ipv6=both))
            peer = socket.create_connection((dial or listen, listener.getsockname()[1]), timeout=60)
            stack.enter_context(peer)
            ours, _ = listener.accept()
            return stack.enter_context(ours), peer

        yield connect


def reason(call, *args):
    with pytest.raises(PermissionDenied) as refused:
        call(*args)
    return refused.value.data["reason"]


@needs_sock_diag
@pytest.mark.parametrize(
    ("listen", "dial"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("127.8.0.1", "127.8.0.1"),
        pytest.param("::1", "::1", marks=needs_ipv6),
        pytest.param("::", "::1", marks=needs_ipv6),
        pytest.param("::", "127.0.0.1", marks=needs_ipv6),
        pytest.param("::", "::ffff:127.0.0.1", marks=needs_ipv6),
    ],
)
def test_our_own_process_is_recognised_whatever_clothes_the_addresses_wear(meet, listen, dial):
    ours, peer = meet(listen, dial)
    assert peer_uid(ours) == os.geteuid()
    assert peer_uid(peer) == os.geteuid(), "the question is the same from both ends"


@needs_sock_diag
async def test_a_trio_socket_does_as_well(meet):
    import trio

    ours, _peer = meet()
    with trio.socket.from_stdlib_socket(ours.dup()) as end:
        assert peer_uid(end) == os.geteuid()


def a_connection_of(uid, port):
    """A process of that user that connects, and stays until its input ends."""
    program = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "s = socket.socket()\n"  # create_connection wants an encoding that this user may not read from root's home
        "s.connect(('127.0.0.1', int(sys.argv[2])))\n"
        "sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-S", "-c", program, str(uid), str(port)], stdin=subprocess.PIPE)


@needs_sock_diag
@needs_root
@pytest.mark.parametrize("uid", [OTHER, 65534, 4_000_000_000])
def test_a_user_of_this_machine_is_known_on_loopback_by_the_kernels_word(uid):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        with a_connection_of(uid, listener.getsockname()[1]) as process:
            ours, _ = listener.accept()
            with ours:
                who = from_loopback(ours)
            process.communicate(timeout=60)
        assert process.returncode == 0
    assert (who.kind, who.uid, who.pid, who.key) == ("unix", uid, None, f"uid:{uid}")


@needs_sock_diag
@needs_root
def test_a_user_who_closed_never_passes_for_root():
    """The kernel says uid 0 of a socket that nobody holds any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        with a_connection_of(OTHER, listener.getsockname()[1]) as process:
            ours, _ = listener.accept()
            assert peer_uid(ours) == OTHER
            process.communicate(timeout=60)
        with ours:
            assert process.returncode == 0
            assert "the peer closed" in reason(peer_uid, ours)


@needs_sock_diag
def test_the_kernel_says_uid_0_of_a_peer_that_closed_and_that_is_refused(meet):
    ours, peer = meet()
    asked = [principal._end(peer.getsockname()), principal._end(peer.getpeername())]
    peer.close()
    answer = principal._ask(question(*asked))
    state = answer[17]
    uid, inode = struct.unpack_from("=II", answer, len(answer) - 8) if len(answer) == 88 else (None, 0)
    assert state != 1, "FIN_WAIT2: it waits for our end to close as well"
    assert inode == 0, f"nobody holds it, so whatever uid ({uid}) is said is nobody's"
    assert "the peer closed" in reason(uid_in, answer, *asked)
    assert "the peer closed" in reason(peer_uid, ours)


@needs_sock_diag
def test_a_peer_that_only_said_goodbye_is_refused_too(meet):
    ours, peer = meet()
    peer.shutdown(socket.SHUT_WR)
    assert "the peer closed" in reason(peer_uid, ours)


@needs_sock_diag
def test_a_process_that_takes_over_the_peers_port_is_not_taken_for_it(monkeypatch):
    """Else a user could connect, send, reset, and have the next program on that port answer for what was sent."""
    ask, answers = principal._ask, []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as peer, socket.socket() as successor:
        peer.bind(("127.7.7.7", 0))  # a port that nobody else uses; those given at connecting may be shared
        peer.connect(listener.getsockname())
        name = peer.getsockname()
        ours, _ = listener.accept()

        def ask_too_late(message):
            reset(peer)
            successor.bind(name)
            successor.connect(listener.getsockname())
            answers.append(ask(message))
            return answers[0]

        monkeypatch.setattr(principal, "_ask", ask_too_late)
        with ours:
            assert "the peer closed" in reason(peer_uid, ours)
        (answer,) = answers
        uid = uid_in(answer, principal._end(name), principal._end(listener.getsockname()))
        assert uid == os.geteuid(), "the kernel spoke of the successor"


def reset(connected):
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


@needs_sock_diag
def test_a_peer_that_was_reset_away_is_refused(meet):
    ours, peer = meet()
    ends = principal._end(peer.getsockname()), principal._end(peer.getpeername())
    reset(peer)
    assert "no such peer" in reason(uid_in, principal._ask(question(*ends)), *ends)
    assert re.search("no such peer|the peer closed", reason(peer_uid, ours)), "as far as the reset has come"


def test_a_connection_that_is_none_any_more_is_refused():
    with socket.socket() as never_connected:
        assert "the peer closed" in reason(peer_uid, never_connected)


class Elsewhere:
    """A connection to another machine."""

    def __init__(self, peer):
        self.peer = peer

    def getsockname(self):
        return ("192.0.2.1", 7118)

    def getpeername(self):
        return self.peer

    def getsockopt(self, *_args):
        raise AssertionError("nobody needs to look")


@pytest.mark.parametrize(
    "peer", [("192.0.2.7", 40001), ("::ffff:192.0.2.7", 40001, 0, 0), ("fe80::7%eth0", 40001, 0, 2), ("0.0.0.0", 1)]
)
def test_a_peer_on_another_machine_is_no_local_user(peer, monkeypatch):
    monkeypatch.setattr(principal, "_ask", None)
    assert "is not a loopback address" in reason(from_loopback, Elsewhere(peer))


@needs_sock_diag
def test_one_user_is_the_same_principal_over_loopback_and_over_the_unix_socket(meet):
    over_tcp = from_loopback(meet()[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        over_unix = from_peercred(ours)
    assert over_tcp.key == over_unix.key
    assert (over_tcp.kind, over_tcp.uid, over_tcp.user) == (over_unix.kind, over_unix.uid, over_unix.user)


@needs_sock_diag
def test_groups_and_names_are_those_of_the_user_database(meet, monkeypatch):
    entry = pwd.struct_passwd(("ada", "x", os.geteuid(), 100, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: entry)
    monkeypatch.setattr(os, "getgrouplist", lambda user, gid: [gid, 54321] if user == "ada" else [])
    who = from_loopback(meet()[0])
    assert (who.user, who.gid, who.groups, who.pid) == ("ada", 100, {100, 54321}, None)


@needs_sock_diag
def test_connections_of_one_user_share_a_principal_until_the_user_database_says_something_else(meet, monkeypatch):
    ours = meet()[0]
    who = from_loopback(ours)
    assert from_loopback(ours) is who
    monkeypatch.setattr(os, "getgrouplist", lambda _name, group: [group, 54321])
    other = from_loopback(ours)
    assert 54321 in other.groups
    assert 54321 not in who.groups
    assert from_loopback(ours) is other


@needs_sock_diag
def test_a_uid_that_the_user_database_does_not_have_has_no_groups(meet, monkeypatch):
    def unknown(_uid):
        raise KeyError("not found")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    who = from_loopback(meet()[0])
    assert (who.uid, who.gid, who.groups, who.group_names) == (os.geteuid(), None, frozenset(), frozenset())


# --- answers -----------------------------------------------------------------------------------------------------


def told(source=THERE, destination=HERE, *, state=1, uid=1000, inode=77, kind=20, seq=1, family=socket.AF_INET):
    """An answer as the kernel would write it."""
    packed = [end[0].packed.ljust(16, b"\0") for end in (source, destination)]
    body = struct.pack("=BBBB", family, state, 0, 0) + struct.pack("!HH", source[1], destination[1])
    body += b"".join(packed) + struct.pack("=I", 0) + bytes(8) + struct.pack("=IIIII", 0, 0, 0, uid, inode)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, seq, 4711) + body


def test_the_answer_of_this_test_is_one():
    assert uid_in(told(), THERE, HERE) == 1000
    assert uid_in(told() + b"attributes", THERE, HERE) == 1000
    mapped = [(ip_address(f"::ffff:{end[0]}"), end[1]) for end in (THERE, HERE)]
    assert uid_in(told(*mapped, family=socket.AF_INET6), THERE, HERE) == 1000, "an IPv6 socket that speaks IPv4"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "too short"),
        (told()[:15], "too short"),
        (told()[:-1], "not of the form"),
        (told()[:16], "not of the form"),
        (struct.pack("=I", 40) + told()[4:], "not of the form"),
        (struct.pack("=I", 4000) + told()[4:], "not of the form"),
        (told(kind=3), "not of the form"),
        (told(seq=2), "not of the form"),
        (struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -errno.ENOENT), "no such peer"),
        (told(HERE, THERE), "another socket"),
        (told(source=(THERE[0], 40002)), "another socket"),
        (told(destination=(HERE[0], 7119)), "another socket"),
        (told(source=(ip_address("127.0.0.2"), 40001)), "another socket"),
        (told(destination=(ip_address("127.0.0.2"), 7118)), "another socket"),
        (told(state=5, uid=0, inode=0), "the peer closed"),
        (told(state=6, uid=0, inode=0), "the peer closed"),
        (told(state=2), "the peer closed"),
        (told(inode=0), "the peer closed"),
        (told(uid=0, inode=0), "the peer closed"),
    ],
)
def test_an_answer_that_is_not_exactly_what_was_asked_for_is_a_refusal(answer, why):
    assert why in reason(uid_in, answer, THERE, HERE)


class Netlink(socket.socket):
    """A netlink socket, whose answers come from the test."""

    outcome = None

    def recvfrom(self, *_args):
        if isinstance(self.outcome, OSError):
            raise self.outcome
        return self.outcome


@needs_sock_diag
@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (BlockingIOError(errno.EAGAIN, "Try again"), "cannot be asked for the peer's user: Try again"),
        ((told(), (4711, 0)), "did not come from the kernel"),
    ],
)
def test_without_the_kernels_own_answer_no_peer_is_let_in(meet, monkeypatch, outcome, why):
    ours, _peer = meet()
    monkeypatch.setattr(Netlink, "outcome", outcome)
    monkeypatch.setattr(socket, "socket", Netlink)
    assert why in reason(peer_uid, ours)


def test_where_the_question_is_forbidden_no_peer_is_let_in(meet, monkeypatch):
    def forbidden(*_args):
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    ours, _peer = meet()
    monkeypatch.setattr(socket, "socket", forbidden)
    assert "cannot be asked for the peer's user: Address family" in reason(peer_uid, ours)
