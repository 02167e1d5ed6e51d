"""A broker's URL: what is read of it, and what is refused with the place and the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.amqp.address import EXAMPLES, BrokerAddress, parse_broker
from hearth.errors import ConfigError

FILES = {"ca": Path("ca.pem"), "cert": Path("a.pem"), "key": Path("a.key")}
QUERY = "?ca=ca.pem&cert=a.pem&key=a.key"
PLAIN = {"user": "arm", "password_file": Path("pw")}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (f"amqps://broker.example{QUERY}", BrokerAddress("broker.example", 5671, True, "/", **FILES)),
        (f"AMQPS://broker.example:7/{QUERY}", BrokerAddress("broker.example", 7, True, "/", **FILES)),
        (f"amqps://[::1]:7/lab%2Fone{QUERY}", BrokerAddress("::1", 7, True, "lab/one", **FILES)),
        ("amqps://h?cert=a%20b.pem&key=k", BrokerAddress("h", 5671, True, cert=Path("a b.pem"), key=Path("k"))),
        ("amqp://arm@127.0.0.1?password_file=pw", BrokerAddress("127.0.0.1", 5672, False, "/", **PLAIN)),
        ("amqp://arm@localhost:99/v?password_file=pw", BrokerAddress("localhost", 99, False, "v", **PLAIN)),
        ("amqp://arm@[::1]/?password_file=pw", BrokerAddress("::1", 5672, False, "/", **PLAIN)),
    ],
)
def test_an_address_is_read(text, address) -> None:
    assert parse_broker(text) == address


@pytest.mark.parametrize("example", EXAMPLES.values())
def test_the_examples_of_the_messages_are_right(example) -> None:
    assert parse_broker(example).place in example.replace("arm@", "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("broker.example:5671", "begins with amqps:// or amqp://"),
        ("https://broker.example", "begins with amqps:// or amqp://"),
        (f"amqps://a b{QUERY}", "'a b' is no host"),
        (f"amqps://{QUERY}", "the host is missing"),
        (f"amqps://-x{QUERY}", "'-x' is no host"),
        (f"amqps://[::g]{QUERY}", "[::g] is no IPv6 address"),
        (f"amqps://::1{QUERY}", "put an IPv6 address in brackets"),
        (f"amqps://h:0{QUERY}", "a port, a number from 1 to 65535"),
        (f"amqps://h:x{QUERY}", "a port, a number from 1 to 65535"),
        (f"amqps://h:{QUERY}", "a port, a number from 1 to 65535"),
        (f"amqps://h/a/b{QUERY}#x", "in this order"),
        (f"amqps://h/%zz{QUERY}", "a % is written %25"),
        (f"amqps://h/%00{QUERY}", "control characters are not allowed"),
        (f"amqps://arm@h{QUERY}", "it takes no user: the certificate's is meant"),
        ("amqps://h", "the client's certificate is missing"),
        ("amqps://h?cert=a.pem", "the client's certificate is missing"),
        ("amqps://h?cert=a&key=b&cert=c", "cert is given twice or has no value"),
        ("amqps://h?cert=a&key=", "key is given twice or has no value"),
        ("amqps://h?cret=a&key=b", "no parameter of this name; did you mean cert?"),
        ("amqps://h?password_file=x", "no parameter of this name; it takes ca, cert, key"),
        ("amqp://127.0.0.1?password_file=pw", "USER@ and password_file are its log-in"),
        ("amqp://arm@127.0.0.1", "USER@ and password_file are its log-in"),
        ("amqp://arm:hunter2@127.0.0.1?password_file=pw", "a password does not belong in an address"),
        ("amqp://arm@127.0.0.1?password=hunter2", "no parameter of this name"),
    ],
)
def test_a_wrong_address_is_refused_with_its_fault_and_a_right_one_and_without_its_secret(text, words) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_broker(text)
    assert words in str(refused.value)
    assert any(example in str(refused.value) for example in EXAMPLES.values())
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("host", ["broker.example", "192.0.2.7", "[2001:db8::1]", "localhost.example"])
def test_a_password_is_for_loopback_alone(host) -> None:
    with pytest.raises(
        ConfigError, match=rf"{host.replace('[', '.').replace(']', '.')}.*in the clear, so amqp:// is for"
    ):
        parse_broker(f"amqp://arm@{host}?password_file=pw")


def test_an_address_names_its_place_without_its_parameters() -> None:
    assert parse_broker(f"amqps://[::1]:7/lab%2Fone{QUERY}").place == "amqps://[::1]:7/lab%2Fone"
    assert parse_broker("amqp://arm@127.0.0.1?password_file=pw").place == "amqp://127.0.0.1:5672"
