"""Principals: the identity that the carrier proved, and the key that owns sessions."""

import datetime as dt
import errno
import grp
import hashlib
import os
import pwd
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from hearth.errors import PermissionDenied
from hearth.policy import principal
from hearth.policy.principal import (
    Principal,
    embedded,
    from_certificate,
    from_peercred,
    from_token,
)


class FakeSocket:
    """What the kernel would say about a peer."""

    def __init__(self, pid, uid, gid, groups):
        self._credentials = struct.pack("=iII", pid, uid, gid)
        self._groups = groups

    def getsockopt(self, level, optname, buflen, /):
        assert level == socket.SOL_SOCKET
        if optname == socket.SO_PEERCRED:
            return self._credentials
        if isinstance(self._groups, OSError):
            raise self._groups
        return struct.pack(f"={len(self._groups)}I", *self._groups)


@pytest.fixture
def no_names(monkeypatch):
    def nobody(_id):
        raise KeyError("not found")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(grp, "getgrgid", nobody)


def test_the_peer_of_a_socket_pair_is_this_process():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        who = from_peercred(ours)
    assert (who.kind, who.uid, who.gid, who.pid) == ("unix", os.geteuid(), os.getegid(), os.getpid())
    assert who.groups == frozenset(os.getgroups())
    assert who.key == f"uid:{os.geteuid()}"


async def test_a_trio_socket_does_as_well():
    import trio

    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        assert from_peercred(ours).pid == os.getpid()


def test_a_socket_without_a_peer_is_refused():
    with socket.socket(socket.AF_UNIX) as lonely, pytest.raises(PermissionDenied) as refused:
        from_peercred(lonely)
    assert "no peer" in refused.value.data["reason"]


def test_large_ids_are_not_negative(no_names):
    who = from_peercred(FakeSocket(1, 4_000_000_000, 4_000_000_001, [4_000_000_002]))
    assert (who.uid, who.gid, who.groups) == (4_000_000_000, 4_000_000_001, {4_000_000_002})
    assert who.key == "uid:4000000000"


def test_a_user_and_groups_without_names_are_still_a_principal(no_names):
    who = from_peercred(FakeSocket(1, 1000, 1001, [1002]))
    assert (who.user, who.group_names) == (None, frozenset())


def test_names_come_from_the_user_database_and_include_the_primary_group(monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ada", "x", uid, 0, "", "/", "")))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((f"group{gid}", "x", gid, [])))
    who = from_peercred(FakeSocket(7, 1000, 1001, [1002, 1003]))
    assert who.user == "ada"
    assert who.group_names == {"group1001", "group1002", "group1003"}


def test_a_kernel_without_peer_groups_gets_those_of_the_user_database(monkeypatch):
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("ada", "x", uid, 0, "", "/", "")))
    monkeypatch.setattr(os, "getgrouplist", lambda user, gid: [gid, 77] if user == "ada" else [])
    who = from_peercred(FakeSocket(7, 1000, 1001, OSError(errno.ENOPROTOOPT, "no")))
    assert who.groups == {1001, 77}


def test_an_unknown_user_on_such_a_kernel_has_no_supplementary_groups(no_names):
    assert from_peercred(FakeSocket(7, 1000, 1001, OSError(errno.ENOPROTOOPT, "no"))).groups == frozenset()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take on another user")
def test_a_group_that_the_peer_gave_up_is_not_counted(tmp_path):
    """Root is in root's groups by the user database; a process that dropped them is not."""
    address = str(tmp_path / "socket")
    program = (
        "import os, socket, sys\n"
        "os.setgroups([54321]); os.setgid(54322); os.setuid(54323)\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        os.chmod(address, 0o666)
        for folder in (tmp_path, *tmp_path.parents):
            if os.stat(folder).st_uid == os.geteuid() and str(folder).startswith("/tmp/"):
                os.chmod(folder, 0o755)
        listener.listen()
        listener.settimeout(60)
        with subprocess.Popen([sys.executable, "-S", "-c", program, address]) as peer:
            connected, _ = listener.accept()
            with connected:
                who = from_peercred(connected)
        assert peer.returncode == 0
    assert (who.uid, who.gid, who.groups, who.pid) == (54323, 54322, {54321}, peer.pid)


def test_an_embedded_program_has_its_own_ids_and_one_key():
    who = embedded()
    assert (who.kind, who.uid, who.gid, who.pid) == ("embedded", os.geteuid(), os.getegid(), os.getpid())
    assert who.key == "embedded"


def test_keys_tell_kinds_apart_and_never_hold_a_pid():
    keys = [
        Principal("unix", uid=1000, pid=4711).key,
        Principal("tls", cert_subject="CN=arm-7").key,
        Principal("token", token_sha256="ab" * 32).key,
        Principal("embedded", uid=1000, pid=4711).key,
    ]
    assert keys == ["uid:1000", "cert:CN=arm-7", "token:" + "ab" * 32, "embedded"]
    assert Principal("unix", uid=1000, pid=1).key == Principal("unix", uid=1000, pid=2).key


@pytest.mark.parametrize("kind", ["unix", "tls", "token"])
def test_a_principal_without_what_its_kind_needs_cannot_be_made(kind):
    with pytest.raises(ValueError, match="needs its"):
        Principal(kind)


def test_an_empty_subject_is_no_identity():
    with pytest.raises(ValueError, match="needs its cert"):
        Principal("tls", cert_subject="")


def test_a_token_is_known_by_its_digest_only():
    who = from_token("s3cret")
    assert who.token_sha256 == hashlib.sha256(b"s3cret").hexdigest()
    assert who == from_token(b"s3cret")
    assert "s3cret" not in repr(who)


def test_a_certificate_subject_is_written_most_specific_part_first():
    subject = ((("countryName", "DE"),), (("organizationName", "Acme"),), (("commonName", "arm-7"),))
    who = from_certificate({"subject": subject})
    assert (who.kind, who.cert_subject, who.key) == ("tls", "CN=arm-7,O=Acme,C=DE", "cert:CN=arm-7,O=Acme,C=DE")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("x,O=Acme", r"x\,O=Acme"),
        ("a+b", r"a\+b"),
        (' "q" ', r"\ \"q\"\ "),
        ("#1", r"\#1"),
        ("back\\slash", r"back\\slash"),
        ("nul\0", r"nul\00"),
        (" ", r"\ "),
        ("", ""),
    ],
)
def test_a_name_in_a_certificate_cannot_pass_for_another_part_of_the_subject(value, written):
    assert from_certificate({"subject": ((("commonName", value),),)}).cert_subject == f"CN={written}"


def test_parts_with_several_values_and_unusual_types_keep_their_names():
    subject = ((("commonName", "a"), ("userId", "b")), (("emailAddress", "c@d"),))
    assert from_certificate({"subject": subject}).cert_subject == "emailAddress=c@d,CN=a+UID=b"


def certificate(path, name, *extensions):
    """What the ssl module says of a certificate with this subject and these extensions, written to `path`."""
    key, now = ed25519.Ed25519PrivateKey.generate(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    path.write_bytes(builder.sign(key, None).public_bytes(serialization.Encoding.PEM))
    return ssl._ssl._test_decode_cert(str(path))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not installed")
def test_a_subject_is_written_as_the_openssl_command_prints_it(tmp_path):
    oids = x509.NameOID
    kinds = [oids.COUNTRY_NAME, oids.DOMAIN_COMPONENT, oids.STATE_OR_PROVINCE_NAME, oids.LOCALITY_NAME]
    kinds += [oids.STREET_ADDRESS, oids.ORGANIZATION_NAME, oids.ORGANIZATIONAL_UNIT_NAME, oids.USER_ID]
    kinds += [oids.EMAIL_ADDRESS, oids.SERIAL_NUMBER, oids.COMMON_NAME]
    values = ["DE", "example", "B;y", "<M>", "#1", ' "Acme", Inc ', "a+b", "back\\slash", "a@b", "7", "Ärm=7"]
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in zip(kinds, values, strict=True)])
    peercert = certificate(tmp_path / "cert.pem", name)
    command = ["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253,-esc_msb", "-in", tmp_path / "cert.pem"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8", timeout=60).stdout
    assert f"subject={from_certificate(peercert).cert_subject}" == printed.rstrip("\n").replace("subject= ", "subject=")


def test_a_certificates_alternative_names_are_told_with_their_kind_in_one_form(tmp_path):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "arm-7")])
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("ARM-7.local"),
            x509.IPAddress(ip_address("192.0.2.7")),
            x509.IPAddress(ip_address("fe80::7")),
            x509.UniformResourceIdentifier("spiffe://acme/Arm"),
            x509.RFC822Name("Arm@acme.example"),
            x509.DirectoryName(name),
            x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
            x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x03arm"),
        ]
    )
    who = from_certificate(certificate(tmp_path / "cert.pem", name, names))
    assert who.cert_subject == "CN=arm-7"
    assert who.cert_sans == {
        "DNS:arm-7.local",
        "IP:192.0.2.7",
        "IP:fe80::7",
        "URI:spiffe://acme/Arm",
        "email:Arm@acme.example",
        "dirName:CN=arm-7",
        "RID:1.2.3",
    }


def test_two_certificates_of_one_subject_are_two_principals_if_their_names_differ():
    subject = ((("commonName", "arm"),),)
    several = [
        (),
        (("DNS", "a"),),
        (("DNS", "b"),),
        (("DNS", "a"), ("DNS", "b")),
        (("DNS", "a;DNS:b"),),
        (("DNS", "a\\;DNS:b"),),
        (("URI", "a"),),
    ]
    keys = [from_certificate({"subject": subject, "subjectAltName": names}).key for names in several]
    assert len(set(keys)) == len(keys)
    assert keys[3] == "cert:CN=arm;DNS:a;DNS:b"
    swapped = from_certificate({"subject": subject, "subjectAltName": (("DNS", "b"), ("DNS", "A"))})
    assert swapped.key == keys[3], "their order and letter case say nothing"


def test_only_the_letters_of_ascii_have_a_case_in_host_names():
    kelvin = from_certificate({"subject": (), "subjectAltName": (("DNS", "ROBOT-\N{KELVIN SIGN}"),)})
    assert kelvin.cert_sans == {"DNS:robot-\N{KELVIN SIGN}"}, "which str.lower would make a k"


def test_a_subject_cannot_pass_for_one_with_alternative_names():
    with_name = from_certificate({"subject": ((("commonName", "arm"),),), "subjectAltName": (("DNS", "a"),)})
    lookalike = from_certificate({"subject": ((("commonName", "arm;DNS:a"),),)})
    assert (with_name.key, lookalike.key) == ("cert:CN=arm;DNS:a", r"cert:CN=arm\;DNS:a")


def test_a_certificate_may_name_its_holder_by_alternative_names_alone():
    who = from_certificate({"subject": (), "subjectAltName": (("URI", "spiffe://acme/arm"),)})
    assert (who.cert_subject, who.key) == (None, "cert:;URI:spiffe://acme/arm")


def test_an_address_of_no_length_that_there_is_stays_as_the_ssl_module_tells_it():
    who = from_certificate({"subject": (), "subjectAltName": (("IP Address", "<invalid>"),)})
    assert who.cert_sans == {"IP:<invalid>"}


@pytest.mark.parametrize(
    "peercert", [{}, {"subject": ()}, {"subject": (), "subjectAltName": (("othername", "<unsupported>"),)}]
)
def test_a_certificate_without_a_name_is_refused(peercert):
    with pytest.raises(PermissionDenied) as refused:
        from_certificate(peercert)
    assert "empty subject and no alternative name" in refused.value.data["reason"]


# --- a user database that answers late ------------------------------------------------------------------------------


@pytest.fixture
def slow(monkeypatch):
    """A question that is known, and whose next answer comes when the event is set; it has just been asked again."""
    gate = threading.Event()
    gate.set()

    def look_up():
        assert gate.wait(60)
        return "known"

    monkeypatch.setattr(principal, "_first_answer_s", [60])
    monkeypatch.setattr(principal.threads, "PATIENCE_S", 0.01)
    assert principal._looked_up(look_up) == "known"
    gate.clear()
    assert principal._looked_up(look_up) == "known", "the last answer, while the next one does not come"
    yield gate
    gate.set()
    principal._helper.call(lambda: None, 60)


def test_a_new_question_waits_behind_one_whose_answer_is_late(slow):
    timer = threading.Timer(0.05, slow.set)
    timer.start()
    assert principal._looked_up(lambda: "new") == "new"
    timer.join()


def test_a_new_question_does_not_wait_behind_one_that_hangs(slow, monkeypatch):
    monkeypatch.setattr(principal, "_first_answer_s", [0])
    with pytest.raises(PermissionDenied) as refused:
        principal._looked_up(lambda: "new")
    assert "user database" in refused.value.data["reason"]
