"""`hearth admin tls`: what it makes works with TLS as others know it, is nobody else's to read, and is told in full."""

from __future__ import annotations

import datetime as dt
import os
import socket
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from support.pki import CLIENT, DAY, Bench, certify, name, needs_openssl
from support.tls import echoed, opened

from hearth.cli import certificate_files
from hearth.config.model import load_config
from hearth.errors import ConfigError
from hearth.transport.address import parse
from hearth.transport.certificates import LEAF_DAYS, general_name, issue_client, new_authority

FILES = ["ca.key", "ca.pem", "client.key", "client.pem", "server.key", "server.pem"]


@pytest.fixture
def made(cli, tmp_path):
    """A directory with a set in it."""
    folder = tmp_path / "tls"
    assert cli("admin", "tls", "init", folder).code == 0
    return folder


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def loaded(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


class Made:
    """What `hearth admin tls` made and told, as the server's bench: nothing but what its user has in hand."""

    def __init__(self, told):
        self.address = parse(told["address"])
        self.server_cert, self.server_key, self.ca = (Path(told["tls"][name]) for name in ("cert", "key", "client_ca"))

    def client_context(self):
        context = ssl.create_default_context(cafile=str(self.address.ca))
        context.load_cert_chain(self.address.cert, self.address.key)
        return context


# --- init -----------------------------------------------------------------------------------------------------------


def test_init_makes_three_pairs_whose_keys_only_their_owner_can_read(cli, tmp_path) -> None:
    before = os.umask(0)
    try:
        answer = cli("admin", "tls", "init", tmp_path / "new" / "tls")
    finally:
        os.umask(before)
    folder = tmp_path / "new" / "tls"
    assert answer.code == 0
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert mode(folder) == 0o700
    assert {mode(path) for path in folder.glob("*.key")} == {0o600}
    assert {mode(path) for path in folder.glob("*.pem")} == {0o644}


async def test_server_and_client_of_the_set_know_each_other(cli, tmp_path) -> None:
    told = cli("admin", "tls", "init", tmp_path / "tls", "--json").json
    async with opened(Made(told)) as server, await server.client() as stream:
        assert await echoed(stream)
        (principal,) = server.principals
    assert principal.cert_subject == told["policy"]["match"]["cert_subject"] == "CN=bench-client,O=hearth test bench"


@needs_openssl
@pytest.mark.parametrize(("file", "purpose"), [("server.pem", "sslserver"), ("client.pem", "sslclient")])
def test_a_strict_verifier_accepts_them_for_their_purpose_and_for_no_other(made, file, purpose) -> None:
    def verified(purpose):
        command = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "-purpose", purpose, file]
        return subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=30, check=False)

    good = verified(purpose)
    assert good.returncode == 0, good.stderr
    bad = verified({"sslserver": "sslclient", "sslclient": "sslserver"}[purpose])
    assert bad.returncode != 0


def test_the_ca_certifies_no_further_ca_and_nothing_lives_for_long(made) -> None:
    ca = loaded(made / "ca.pem")
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    now = dt.datetime.now(dt.UTC)
    for file, days in (("ca.pem", 825), ("server.pem", 397), ("client.pem", 397)):
        cert = loaded(made / file)
        assert cert.not_valid_before_utc < now - dt.timedelta(minutes=50)
        assert cert.not_valid_after_utc - cert.not_valid_before_utc == dt.timedelta(days=days)
    assert len({loaded(path).serial_number for path in made.glob("*.pem")}) == 3


def test_the_server_is_certified_for_every_host_asked_for_and_for_this_machine(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "bench-pi")
    hosts = ["Arm-7.local", "10.0.0.7", "fe80::7", "*.lab.example", "bücher.example", "localhost"]
    more = [word for host in hosts for word in ("--host", host)]
    told = cli("admin", "tls", "init", tmp_path / "tls", *more, "--json").json
    assert told["address"].startswith("tls://Arm-7.local:7117?")
    shown = cli("admin", "tls", "show", tmp_path / "tls" / "server.pem", "--json").json["certificates"][0]
    assert sorted(shown["sans"]) == [
        "DNS:*.lab.example", "DNS:arm-7.local", "DNS:bench-pi", "DNS:localhost", "DNS:xn--bcher-kva.example",
        "IP:10.0.0.7", "IP:127.0.0.1", "IP:::1", "IP:fe80::7",
    ]  # fmt: skip


def test_a_machine_whose_name_is_no_host_name_is_left_out(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "my machine")
    assert cli("admin", "tls", "init", tmp_path / "tls", "--json").json["hosts"] == ["localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize("host", ["", "a b", "10.0.0", "-x", "x-.example", "a..b", "x" * 64, "*", "a/b"])
def test_what_is_no_host_is_refused_and_nothing_is_made(cli, tmp_path, host) -> None:
    answer = cli("admin", "tls", "init", tmp_path / "tls", f"--host={host}")
    assert answer.code == 2
    assert f"--host: {host!r} is neither a host name nor an IP address" in answer.err
    assert not (tmp_path / "tls").exists()


def test_an_address_with_a_zone_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither a host name nor"):
        general_name("fe80::1%eth0")


@pytest.mark.parametrize("client", ["", "x" * 65])
def test_a_subject_has_room_for_so_much_of_a_name(client) -> None:
    now = dt.datetime.now(dt.UTC)
    with pytest.raises(ConfigError, match="from 1 to 64 characters"):
        issue_client(new_authority(now), client, now)


@pytest.mark.parametrize("days", ["0", "398", "x"])
def test_lifetimes_are_sane(cli, tmp_path, days) -> None:
    assert LEAF_DAYS == 397
    answer = cli("admin", "tls", "init", tmp_path / "tls", "--days", days)
    assert answer.code == 2
    assert not (tmp_path / "tls").exists()


def test_nothing_is_overwritten(cli, made) -> None:
    before = {path: path.read_bytes() for path in made.iterdir()}
    answer = cli("admin", "tls", "init", made)
    assert answer.code == 2
    assert "is there already and is not overwritten; name another directory" in answer.err
    assert {path: path.read_bytes() for path in made.iterdir()} == before


def test_one_file_in_the_way_is_enough_and_a_dangling_link_is_one(cli, tmp_path) -> None:
    (tmp_path / "client.pem").symlink_to(tmp_path / "nowhere")
    tmp_path.chmod(0o700)
    answer = cli("admin", "tls", "init", tmp_path)
    assert f"{tmp_path}/client.pem is there already" in answer.err
    assert not list(tmp_path.glob("*.key"))


def test_a_file_system_that_fills_up_leaves_nothing_half_made(cli, tmp_path, monkeypatch) -> None:
    synced = []

    def full(descriptor):
        synced.append(descriptor)
        if len(synced) == 4:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(certificate_files.os, "fsync", full)
    answer = cli("admin", "tls", "init", tmp_path / "tls")
    assert answer.code == 1
    assert "No space left on device" in answer.err
    assert list((tmp_path / "tls").iterdir()) == []


@pytest.mark.parametrize("bits", [0o777, 0o770, 0o703])
def test_a_directory_that_others_can_write_to_is_refused(cli, tmp_path, bits) -> None:
    folder = tmp_path / "tls"
    folder.mkdir()
    folder.chmod(bits)
    answer = cli("admin", "tls", "init", folder)
    assert answer.code == 2
    assert f"others can write into {folder}; chmod 700 {folder}" in answer.err


def test_what_is_no_directory_is_refused(cli, tmp_path) -> None:
    (tmp_path / "file").touch()
    assert "is not a directory; name another one" in cli("admin", "tls", "init", tmp_path / "file").err


def test_another_users_directory_is_refused(cli, made, monkeypatch) -> None:
    os.chown(made, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(
        certificate_files.os, "geteuid", lambda: 54321
    )
    answer = cli("admin", "tls", "client", made, "arm-7")
    assert answer.code == 2
    assert "name a directory of your own" in answer.err


def test_what_is_printed_can_be_pasted(cli, tmp_path) -> None:
    folder = tmp_path / 'a "bench" & more'
    out = cli("admin", "tls", "init", folder, "--host", "arm-7.local").out
    lines = out.splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("The client's address"))
    toml = "\n".join(line[2:] for line in lines[lines.index("  [tls]") : end])
    config = tmp_path / "hearth.toml"
    config.write_text(toml)
    read = load_config(config)
    assert (read.tls.cert, read.tls.key) == (folder / "server.pem", folder / "server.key")
    assert read.tls.client_ca == folder / "ca.pem"
    assert tomllib.loads(toml)["policy"][1] == {
        "name": "bench-client",
        "match": {"cert_subject": "CN=bench-client,O=hearth test bench"},
    }
    (address,) = (line.strip() for line in lines if line.startswith("  tls://"))
    assert parse(address).host == "arm-7.local"
    assert parse(address).cert == folder / "client.pem"
    assert "For a test bench only." in out


# --- client ---------------------------------------------------------------------------------------------------------


async def test_another_client_gets_in_as_itself(cli, made) -> None:
    answer = cli("admin", "tls", "client", made, "arm-7", "--json")
    assert mode(made / "arm-7.key") == 0o600
    async with opened(Made(answer.json)) as server, await server.client() as stream:
        assert await echoed(stream)
        assert server.principals[0].cert_subject == "CN=arm-7,O=hearth test bench"


def test_a_client_is_told_with_policy_and_address(cli, made) -> None:
    out = cli("admin", "tls", "client", made, "arm-7").out
    assert out.startswith(f"Made arm-7.pem and arm-7.key in {made}, valid until 20")
    assert 'match = { cert_subject = "CN=arm-7,O=hearth test bench" }' in out
    assert f"cert={made}/arm-7.pem&key={made}/arm-7.key" in out


def test_a_clients_address_has_the_servers_own_host(cli, tmp_path) -> None:
    cli("admin", "tls", "init", tmp_path / "tls", "--host", "arm-7.local")
    assert "tls://arm-7.local:7117?" in cli("admin", "tls", "client", tmp_path / "tls", "x").out
    (tmp_path / "tls" / "server.pem").unlink()
    assert "tls://localhost:7117?" in cli("admin", "tls", "client", tmp_path / "tls", "y").out


@pytest.mark.parametrize("client", ["", "a/b", "..", ".x", "a b", "x" * 65])
def test_a_name_that_is_no_file_is_refused(cli, made, client) -> None:
    answer = cli("admin", "tls", "client", made, client)
    assert answer.code == 2
    assert "cannot be a client's name here" in answer.err


def test_a_client_is_not_made_twice(cli, made) -> None:
    assert "client.key is there already" in cli("admin", "tls", "client", made, "client").err


def test_without_a_ca_there_is_no_client(cli, tmp_path) -> None:
    answer = cli("admin", "tls", "client", tmp_path, "arm-7")
    assert answer.code == 2
    assert f"{tmp_path}/ca.pem is not there; `hearth admin tls init {tmp_path}` makes a CA first" in answer.err


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("ca.key", "nothing", "the CA's key is not an unencrypted private key in PEM form"),
        ("ca.key", "server.key", "the CA's key and its certificate do not belong together"),
        ("ca.pem", "nothing", "there is no certificate in PEM form in it"),
        ("ca.pem", "x" * (2 << 20), "it is far too large"),
    ],
    ids=["no-key", "other-key", "no-cert", "large"],
)
def test_a_ca_that_cannot_be_used_is_refused(cli, made, file, content, words) -> None:
    (made / file).write_text((made / content).read_text() if content == "server.key" else content)
    answer = cli("admin", "tls", "client", made, "arm-7")
    assert answer.code == 2
    assert words in answer.err
    assert str(made) in answer.err


def expire(folder, end):
    """Put a CA with another life in the place of the one that is there."""
    cert, key = certify(name("hearth test bench CA", "hearth test bench"), None, ca=True, start=-9 * DAY, end=end)
    pair = Bench.write(SimpleNamespace(folder=folder), "ca", cert, key)
    assert pair.key == folder / "ca.key"
    return cert


def test_nothing_outlives_its_ca(cli, made) -> None:
    ca = expire(made, 10 * DAY)
    assert cli("admin", "tls", "client", made, "arm-7").code == 0
    assert loaded(made / "arm-7.pem").not_valid_after_utc == ca.not_valid_after_utc


def test_an_expired_ca_certifies_no_peer(cli, made) -> None:
    expire(made, -DAY)
    answer = cli("admin", "tls", "client", made, "arm-7")
    assert answer.code == 2
    assert "the CA has expired on 20" in answer.err


# --- renew ----------------------------------------------------------------------------------------------------------


async def test_renewed_certificates_are_the_same_with_a_new_life(cli, tmp_path) -> None:
    folder = tmp_path / "tls"
    cli("admin", "tls", "init", folder, "--host", "arm-7.local", "--days", "10")
    told = cli("admin", "tls", "client", folder, "arm-7", "--days", "10", "--json").json
    keys = {path: path.read_bytes() for path in (*folder.glob("*.key"), folder / "ca.pem")}
    before = {path.name: loaded(path) for path in folder.glob("*.pem")}
    answer = cli("admin", "tls", "renew", folder)
    assert answer.code == 0
    assert "takes them at SIGHUP" in answer.out
    assert {path: path.read_bytes() for path in keys} == keys
    for file in ("server.pem", "client.pem", "arm-7.pem"):
        now = loaded(folder / file)
        assert now.subject == before[file].subject
        assert now.not_valid_after_utc - before[file].not_valid_after_utc > 380 * DAY
        assert {each.oid for each in now.extensions} == {each.oid for each in before[file].extensions}
        assert mode(folder / file) == 0o644
    async with opened(Made(told)) as server, await server.client() as stream:
        assert await echoed(stream)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "arm-7.key", "arm-7.pem"])


def test_what_was_renewed_is_told_to_programs(cli, made) -> None:
    renewed = cli("admin", "tls", "renew", made, "--json").json["renewed"]
    assert sorted(renewed) == [str(made / "client.pem"), str(made / "server.pem")]
    assert renewed[str(made / "client.pem")]["purposes"] == ["TLS client"]


def test_one_certificate_of_another_ca_and_none_is_renewed(cli, made, tmp_path) -> None:
    before = (made / "client.pem").read_bytes()
    (made / "server.pem").write_bytes(Bench(tmp_path).server_cert.read_bytes())
    answer = cli("admin", "tls", "renew", made)
    assert answer.code == 2
    assert f"{made}/server.pem: this CA did not issue it" in answer.err
    assert (made / "client.pem").read_bytes() == before


def test_where_there_is_nothing_to_renew_that_is_said(cli, made) -> None:
    for file in ("server.pem", "client.pem"):
        (made / file).unlink()
    answer = cli("admin", "tls", "renew", made)
    assert answer.code == 2
    assert "there is no certificate to renew" in answer.err


# --- show -----------------------------------------------------------------------------------------------------------


def shown(cli, path):
    """Name -> value, as a person reads it."""
    return {line[:7].strip(): line[9:] for line in cli("admin", "tls", "show", path).out.splitlines()}


def test_a_client_is_shown_as_the_policy_wants_it(cli, made) -> None:
    lines = shown(cli, made / "client.pem")
    assert lines["subject"] == "CN=bench-client,O=hearth test bench"
    assert lines["names"] == "none"
    assert lines["issuer"] == "CN=hearth test bench CA,O=hearth test bench"
    assert lines["purpose"] == "TLS client"
    assert lines["valid"].endswith("UTC, 396 days left")
    assert lines["policy"] == 'match = { cert_subject = "CN=bench-client,O=hearth test bench" }'


async def test_what_show_says_is_what_the_policy_gets(cli, tmp_path) -> None:
    bench = Bench(tmp_path)
    odd = x509.Name([
        x509.NameAttribute(x509.NameOID.COUNTRY_NAME, "DE"),
        x509.NameAttribute(x509.NameOID.STREET_ADDRESS, "Am Markt 1"),
        x509.NameAttribute(x509.NameOID.EMAIL_ADDRESS, "x@example.org"),
        x509.NameAttribute(x509.NameOID.SERIAL_NUMBER, "0042"),
        x509.NameAttribute(x509.ObjectIdentifier("1.3.6.1.4.1.55555.1"), "odd"),
        x509.NameAttribute(x509.NameOID.COMMON_NAME, ' #a,b+c"d\\e<f>;ü '),
    ])  # fmt: skip
    sans = ["Arm-7.Local", "10.0.0.7", "fe80:0::7", "URI:urn:x", "email:x@example.org"]
    pair = bench.write("odd", *certify(odd, bench.authority, purposes=(CLIENT,), sans=sans))
    (said,) = cli("admin", "tls", "show", pair.cert, "--json").json["certificates"]
    async with opened(bench) as server, await server.client(bench.client_context(pair)) as stream:
        assert await echoed(stream)
        (principal,) = server.principals
    assert said["subject"] == principal.cert_subject
    assert set(said["sans"]) == principal.cert_sans
    assert said["match"] == {"cert_subject": principal.cert_subject}


def test_what_is_no_clients_has_no_line_for_the_policy(cli, made) -> None:
    assert "policy" not in shown(cli, made / "server.pem")
    assert "policy" not in shown(cli, made / "ca.pem")
    assert shown(cli, made / "ca.pem")["purpose"] == "CA"


def test_a_certificate_without_a_subject_is_matched_by_its_name(cli, tmp_path) -> None:
    bench = Bench(tmp_path)
    pair = bench.write("sans", *certify(name(None), bench.authority, sans=["arm-7.local"]))
    lines = shown(cli, pair.cert)
    assert (lines["subject"], lines["purpose"]) == ("none", "any")
    assert lines["policy"] == 'match = { cert_san = "DNS:arm-7.local" }'
    nobody = bench.write("nobody", *certify(name(None), bench.authority))
    assert "policy" not in shown(cli, nobody.cert)


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [(DAY, 2 * DAY, "not valid yet"), (-2 * DAY, -DAY, "expired"), (-DAY, 1.5 * DAY, "1 day left")],
)
def test_whether_it_is_valid_is_said(cli, tmp_path, start, end, words) -> None:
    bench = Bench(tmp_path)
    assert shown(cli, bench.client("x", start=start, end=end).cert)["valid"].endswith(words)


def test_every_certificate_of_a_chain_is_shown(cli, made) -> None:
    chain = made / "chain.pem"
    chain.write_bytes((made / "server.pem").read_bytes() + (made / "ca.pem").read_bytes())
    server, ca = cli("admin", "tls", "show", chain).out.split("\n\n")
    assert "TLS server" in server
    assert "CN=hearth test bench CA" in ca


@pytest.mark.slow
@needs_openssl
@pytest.mark.parametrize("kind", ["rsa:2048", "ed25519"])
def test_other_keys_and_purposes_are_shown_too(cli, tmp_path, kind) -> None:
    command = ["openssl", "req", "-x509", "-newkey", kind, "-nodes", "-subj", "/CN=x"]
    command += ["-out", "x.pem", "-keyout", "x.key"]
    command += ["-addext", "extendedKeyUsage=codeSigning", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    lines = shown(cli, tmp_path / "x.pem")
    assert lines["key"] == {"rsa:2048": "RSA 2048", "ed25519": "Ed25519"}[kind]
    assert lines["purpose"] == "1.3.6.1.5.5.7.3.3"


@pytest.mark.parametrize("file", ["server.key", "nothing"])
def test_what_is_no_certificate_is_named(cli, made, file) -> None:
    (made / "nothing").write_text("nothing")
    answer = cli("admin", "tls", "show", made / file)
    assert answer.code == 2
    assert f"{made / file}: there is no certificate in PEM form in it" in answer.err


def test_a_file_that_is_not_there_is_named(cli, tmp_path) -> None:
    answer = cli("admin", "tls", "show", tmp_path / "none.pem")
    assert answer.code == 1
    assert f"{tmp_path}/none.pem: No such file or directory" in answer.err
