"""Addresses: what is written is what is meant, there and back; and what is wrong is told with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hearth.errors import ConfigError
from hearth.transport import address
from hearth.transport.address import (
    EXAMPLES,
    SshAddress,
    TlsAddress,
    UnixAddress,
    WebSocketAddress,
    looked_up,
    named,
    parse,
)

PEM = Path("/etc/hearth/a b.pem")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/run/hearth/hearth.sock", UnixAddress(Path("/run/hearth/hearth.sock"))),
        ("//run//hearth.sock", UnixAddress(Path("/run/hearth.sock"))),
        ("my.sock", UnixAddress(Path("my.sock"))),
        ("./pi:7117", UnixAddress(Path("pi:7117"))),
        ("/tmp/100% sure?#.sock", UnixAddress(Path("/tmp/100% sure?#.sock"))),
        ("unix:/tmp/a%20b.sock", UnixAddress(Path("/tmp/a b.sock"))),
        ("UNIX:/tmp/x", UnixAddress(Path("/tmp/x"))),
        ("unix:///tmp/x", UnixAddress(Path("/tmp/x"))),
        ("unix:x.sock", UnixAddress(Path("x.sock"))),
        ("tls://arm.local", TlsAddress("arm.local", 7117)),
        ("TLS://arm.local:1", TlsAddress("arm.local", 1)),
        ("tls://[::1]:7117", TlsAddress("::1")),
        ("tls://[fe80::1%25eth0]", TlsAddress("fe80::1%eth0")),
        (
            "tls://arm?ca=/etc/hearth/a%20b.pem&cert=c&key=k",
            TlsAddress("arm", ca=PEM, cert=Path("c"), key=Path("k")),
        ),
        ("ws://127.0.0.1", WebSocketAddress("127.0.0.1", 80)),
        ("ws://arm:7118/", WebSocketAddress("arm", 7118)),
        ("wss://arm", WebSocketAddress("arm", 443, secure=True)),
        ("wss://arm/robots/7", WebSocketAddress("arm", 443, secure=True, path="/robots/7")),
        (
            "wss://arm?ca=c&token_file=/t%26",
            WebSocketAddress("arm", 443, secure=True, ca=Path("c"), token_file=Path("/t&")),
        ),
        ("ssh://pi", SshAddress("pi")),
        ("ssh://pi/", SshAddress("pi")),
        ("ssh://me@pi:2222", SshAddress("pi", user="me", port=2222)),
        ("ssh://me%40corp@pi", SshAddress("pi", user="me@corp")),
        ("ssh://pi/run/my%20robot.sock", SshAddress("pi", socket="/run/my robot.sock")),
        ("ssh://pi?hearth=sudo%20-u%20hearth%20hearth", SshAddress("pi", hearth="sudo -u hearth hearth")),
    ],
)
def test_an_address_is_read_and_written_back(text, address) -> None:
    assert parse(text) == address
    assert parse(str(address)) == address


@pytest.mark.parametrize("text", EXAMPLES.values())
def test_the_examples_in_the_errors_are_right(text) -> None:
    assert str(parse(str(parse(text)))) == str(parse(text))


def test_a_path_is_a_path_and_an_address_is_an_address_already() -> None:
    assert parse(Path("tls://arm")) == UnixAddress(Path("tls:/arm"))
    assert parse(TlsAddress("arm")) == TlsAddress("arm")


def test_messages_name_the_place_without_parameters() -> None:
    assert parse("tls://[::1]?ca=c").place == "tls://[::1]:7117"
    assert parse("wss://arm/x?ca=c").place == "wss://arm:443/x"
    assert parse("ws://arm").place == "ws://arm:80"
    assert parse("ssh://a%20b@pi:1/x?hearth=y".replace("%20", "")).place == "ssh://ab@pi:1/x"
    assert parse("unix:/x").place == "/x"
    assert [parse(text).scheme for text in EXAMPLES.values()] == list(EXAMPLES)


PATHS = st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), min_size=1).map(
    lambda text: Path("/" + text)
)
HOSTS = st.from_regex(r"\A[a-z0-9][a-z0-9.-]{0,20}\Z") | st.ip_addresses(v=6).map(str)
PORTS = st.integers(1, 65535)
WORDS = st.text(st.characters(exclude_characters="\0\n", exclude_categories=["Cs"]), min_size=1)
SOCKETS = PATHS.map(str).filter(lambda path: path.strip("/"))
ADDRESSES = st.one_of(
    st.builds(UnixAddress, PATHS.map(lambda path: Path("/" + str(path).lstrip("/")))),
    st.builds(TlsAddress, HOSTS, PORTS, st.none() | PATHS),
    st.builds(TlsAddress, HOSTS, PORTS, st.none() | PATHS, PATHS, PATHS),
    st.builds(WebSocketAddress, HOSTS, PORTS, st.just(True), st.just("/a%20b"), PATHS, PATHS, PATHS, PATHS),
    st.builds(WebSocketAddress, HOSTS, PORTS, st.just(False), token_file=st.none() | PATHS),
    st.builds(
        SshAddress,
        HOSTS,
        st.none() | st.from_regex(r"\A[\w.@+][\w.@+-]{0,20}\Z"),
        st.none() | PORTS,
        st.none() | SOCKETS,
        st.none() | WORDS,
    ),
)


@pytest.mark.slow
@given(ADDRESSES)
def test_every_address_is_read_as_what_was_written(address) -> None:
    assert parse(str(address)) == address


def test_a_path_that_is_no_text_survives() -> None:
    path = Path("/tmp/\udcff")
    assert parse(str(UnixAddress(path))) == UnixAddress(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the path of the socket is missing"),
        ("unix:", "the path of the socket is missing"),
        ("unix://host/x", "a unix: address has no host"),
        ("unix:/x?mode=1", "takes no parameters"),
        ("unix:/x%", "after % come two hexadecimal digits"),
        ("/x\0", "NUL"),
        ("pi:7117", "Write tls://pi:7117 or ws://pi:7117; a socket of that name is ./pi:7117"),
        ("tls:pi", "after tls: come two slashes; for example tls://"),
        ("http://pi", "http:// is no carrier; for example ws://"),
        ("https://pi", "for example wss://"),
        ("tcp://pi", "for example tls://"),
        ("sssh://pi", "sssh:// is no carrier; for example ssh://"),
        ("quic://pi", "quic:// is no carrier; for example tls://"),
        ("tls://", "the host is missing"),
        ("tls://:7117", "the host is missing"),
        ("tls://-oProxyCommand=x", "no host begins with -"),
        ("ssh://-oProxyCommand=x", "no host begins with -"),
        ("ssh://%2DoProxyCommand=x", "no host begins with -"),
        ("tls://a b", "is no host"),
        ("ssh://a;b", "is no host"),
        ("tls://arm:0", "a number from 1 to 65535"),
        ("tls://arm:65536", "a number from 1 to 65535"),
        ("tls://arm:", "a number from 1 to 65535"),
        ("tls://arm:٣", "a number from 1 to 65535"),
        ("tls://::1", "put an IPv6 address in brackets"),
        ("tls://[::1", "after [ comes an IPv6 address and ]"),
        ("tls://[::1]7117", "after [ comes an IPv6 address and ]"),
        ("tls://[arm]", "[arm] is no IPv6 address"),
        ("tls://[fe80::1%25;x]", "is no network interface"),
        ("tls://arm/x", "nothing comes after the port"),
        ("tls://arm#x", "# is written %23"),
        ("tls://me@arm", "it takes no user"),
        ("tls://arm?ca", "ca has no value"),
        ("tls://arm?ca=", "ca has no value"),
        ("tls://arm?ca=a&ca=b", "ca is given twice"),
        ("tls://arm?cert=c", "cert and key go together"),
        ("wss://arm?key=c", "cert and key go together"),
        ("tls://arm?certt=c", "no parameter 'certt' in tls:// addresses (did you mean cert?)"),
        ("tls://arm?zzz=c", "no parameter 'zzz' in tls:// addresses (there are ca, cert, key)"),
        ("ws://arm?ca=c", "no parameter 'ca' in ws:// addresses (there are token_file)"),
        ("ws://arm?tokenfile=c", "(did you mean token_file?)"),
        ("ws://arm/a b", "must be percent-encoded"),
        ("ssh://@arm", "the user before @ is missing"),
        ("ssh://-l@arm", "no user begins with -"),
        ("ssh://a$(x)@arm", "is no user's name"),
        ("ssh://a%20b@arm", "is no user's name"),
        ("ssh://arm?hearth=a%00b", "NUL or a line end"),
        ("ssh://arm/x%0Ay", "NUL or a line end"),
    ],
)
def test_what_is_no_address_is_told_with_what_would_be(text, told) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    message = str(caught.value)
    assert told in message
    assert message.startswith("address ")
    assert "for example" in message or "Write tls://" in message


@pytest.mark.parametrize(
    "text",
    [
        "ssh://me:s3cret@pi",
        "ssh://me:s3cret@pi:99999",
        "ws://me:s3cret@arm",
        "ws://arm?token=s3cret",
        "wss://arm?ca=c&PASSWORD=s3cret",
        "wss://arm?access_token=s3cret&ca=c",
        "http://me:s3cret@arm/x?token=s3cret",
    ],
)
def test_what_may_be_a_secret_is_refused_and_not_repeated(text) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "s3cret" not in str(caught.value)


# --- where a client looks -------------------------------------------------------------------------------------------


def test_the_address_goes_before_the_socket_and_that_before_the_default() -> None:
    both = {"HEARTH_ADDRESS": "tls://arm", "HEARTH_SOCKET": "/x"}
    assert looked_up(both, 0) == ("tls://arm", "HEARTH_ADDRESS")
    assert looked_up({"HEARTH_ADDRESS": "", "HEARTH_SOCKET": "/x"}, 0) == ("/x", "HEARTH_SOCKET")
    assert looked_up({"HEARTH_SOCKET": ""}, 0) == ("/run/hearth/hearth.sock", "default")
    assert looked_up({"RUNTIME_DIRECTORY": "/run/arm"}, 1) == ("/run/arm/hearth.sock", "default")


def test_a_user_without_a_daemon_of_its_own_finds_the_machines_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service, own = tmp_path / "service.sock", tmp_path / "own.sock"
    monkeypatch.setattr(address, "SERVICE_SOCKET", service)
    monkeypatch.setattr(address, "default_socket", lambda _environ, _uid: own)
    assert looked_up({}, 1000) == (str(own), "default"), "neither is there: the default is what is told"
    service.touch()
    assert looked_up({}, 1000) == (str(service), "default")
    assert looked_up({"RUNTIME_DIRECTORY": "/run/arm"}, 1000) == (str(own), "default"), "somebody said where"
    own.touch()
    assert looked_up({}, 1000) == (str(own), "default")


def test_what_names_an_address_is_told_when_it_is_wrong() -> None:
    assert named("ssh://pi", "--to") == SshAddress("pi")
    assert named("unix:/x", "--socket") == UnixAddress(Path("/x"))
    assert named("pi:22", "--config") == UnixAddress(Path("pi:22"))
    with pytest.raises(ConfigError, match="HEARTH_ADDRESS: address 'pi:22'"):
        named("pi:22", "HEARTH_ADDRESS")
    with pytest.raises(ConfigError, match="--socket takes the path of a socket; ssh://pi goes with --to"):
        named("ssh://pi", "--socket")
    with pytest.raises(ConfigError, match=r"HEARTH_SOCKET takes .* goes with HEARTH_ADDRESS"):
        named("tls://arm", "HEARTH_SOCKET")
