"""[tls], [websocket] and [http]: what they may say, and that nobody listens where nobody proves who they are."""

import pytest

from hearth.config.listen import Endpoint
from hearth.config.model import load_config
from hearth.errors import ConfigError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "hearth.toml"


def problems(file, text):
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{file}: ") for line in lines), lines
    return [line.removeprefix(f"{file}: ") for line in lines]


def loaded(file, text):
    file.write_text(text, encoding="utf-8")
    return load_config(file)


ADDRESS = 'expected an address and port such as "127.0.0.1:7118"'
NAME = 'names are not looked up, since what they lead to changes ("0.0.0.0" and "[::]" mean all addresses)'
IN_BRACKETS = 'put an IPv6 address in brackets, as in "[::1]:7118"'
PORTS = "a port is a number from 0 (any free one) to 65535"
ZONE = "an address with a zone such as %eth0 is not supported"
MISTAKES = [
    ("[websocket]\nlisten = 7118", f"[websocket] listen: {ADDRESS}, got 7118"),
    *(
        (f"[websocket]\nlisten = '{written}'", f'[websocket] listen: {ADDRESS}: {why}; got "{written}"')
        for written, why in (
            ("", "the port is missing"),
            ("127.0.0.1", "the port is missing"),
            ("[::1]", "the port is missing"),
            ("::1:7118", IN_BRACKETS),
            ("fe80::1", IN_BRACKETS),
            ("127.0.0.1:", PORTS),
            ("127.0.0.1:http", PORTS),
            ("127.0.0.1:65536", PORTS),
            ("127.0.0.1:-1", PORTS),
            ("127.0.0.1: 80", PORTS),
            ("127.0.0.1:٨٠", PORTS),
            ("127.0.0.1:80 ", PORTS),
            ("robot.local:7118", NAME),
            (":7118", NAME),
            ("*:7118", NAME),
            ("127.0.0.01:7118", NAME),
            ("127.1:7118", NAME),
            ("[127.0.0.1]:7118", NAME),
            ("[::1:7118", IN_BRACKETS),
            ("[fe80::1%eth0]:7118", ZONE),
        )
    ),
]

ORIGIN = 'expected an origin such as "https://panel.example:8000"'
FORM = "it has a scheme, a host and perhaps a port, but no path and no trailing slash"
MISTAKES += [
    ("[websocket]\norigins = 'http://x'", '[websocket] origins: expected an array, got "http://x"'),
    ("[websocket]\norigins = [5]", f"[websocket] origins[0]: {ORIGIN}, got 5"),
    *(
        (f"[websocket]\norigins = ['{written}']", f'[websocket] origins[0]: {ORIGIN}: {why}; got "{written}"')
        for written, why in (
            ("*", '"*" would let any page that a user visits call as that user; list each origin'),
            ("https://*.example", '"*" would let any page that a user visits call as that user; list each origin'),
            ("null", '"null" is the origin of sandboxed frames and files; serve the page over http'),
            ("http://bücher.example", "a browser sends such a name in its xn--… form; write that"),
            ("http://x/", FORM),
            ("http://x/page", FORM),
            ("http://x?q", FORM),
            ("http://user@x", FORM),
            ("http://x:", FORM),
            ("http://x:65536", FORM),
            ("http://", FORM),
            ("x", FORM),
            ("http://x y", FORM),
            ("ws://x", "an origin is the page's address, which begins with http:// or https://"),
            ("wss://x:7118", "an origin is the page's address, which begins with http:// or https://"),
        )
    ),
]

SAN = "[[policy]] #1 match.cert_san: expected DNS:NAME, IP:ADDRESS, URI:URI or email:ADDRESS"
PKI = "cert = '/c'\nkey = '/k'\n"
TOKEN = f"[[policy]]\nname = 'a'\nmatch = [{{ uid = 1 }}, {{ token_sha256 = '{'ab' * 32}' }}]\n"
TLS_CURE = "clients authenticate by certificate, so TLS needs listen, cert, key and client_ca;"
INIT = "(`hearth tls init DIR` makes a set for a test bench)"
MISTAKES += [
    (
        "[tls]\nlisten = '127.0.0.1:7117'",
        f"[tls]: cert, key and client_ca not set: {TLS_CURE} set them, or none of the four {INIT}",
    ),
    (f"[tls]\n{PKI}client_ca = '/a'", f"[tls]: listen not set: {TLS_CURE} set it, or none of the four {INIT}"),
    (
        f"[tls]\nlisten = '127.0.0.1:0'\n{PKI}",
        f"[tls]: client_ca not set: {TLS_CURE} set it, or none of the four {INIT}",
    ),
    ("[tls]\ncert = 'c.pem'", '[tls] cert: expected an absolute path, got "c.pem"'),
    ("[tls]\norigins = []", "[tls] origins: unknown key; expected listen, cert, key, client_ca"),
    ("[websocket]\ncert = '/c'", "[websocket]: key not set: cert alone makes no TLS; set key, or take cert out"),
    ("[websocket]\nkey = '/k'", "[websocket]: cert not set: key alone makes no TLS; set cert, or take key out"),
    (
        "[websocket]\nclient_ca = '/a'",
        "[websocket]: cert and key not set: only TLS has client certificates; set them, or take client_ca out",
    ),
    (
        f"[websocket]\nplaintext = true\n{PKI}",
        "[websocket]: plaintext = true declares that a proxy ends TLS; remove it, or remove cert and key",
    ),
    ("[websocket]\nplaintext = 'yes'", '[websocket] plaintext: expected true or false, got "yes"'),
    ("[websocket]\nping_timeout_s = 0", "[websocket] ping_timeout_s: expected a number > 0, got 0"),
    (
        f"[websocket]\nlisten = '0.0.0.0:7118'\n{TOKEN}",
        (
            "[websocket]: cert and key not set: 0.0.0.0:7118 is reached from other machines, and tokens would cross "
            "the network in the clear; set cert and key, or plaintext = true if a proxy in front ends TLS"
        ),
    ),
    (
        f"[websocket]\nlisten = '127.0.0.1:7117'\n[tls]\nlisten = '127.0.0.1:7117'\n{PKI}client_ca = '/a'",
        '[websocket]: 127.0.0.1:7117 is taken by [tls] listen = "127.0.0.1:7117"; give one of them another port',
    ),
    (
        f"[websocket]\nlisten = '127.0.0.1:7117'\n[tls]\nlisten = '0.0.0.0:7117'\n{PKI}client_ca = '/a'",
        '[websocket]: 127.0.0.1:7117 is taken by [tls] listen = "0.0.0.0:7117"; give one of them another port',
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { cert_san = 'arm-7.local' }",
        f'{SAN}, got "arm-7.local"',
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { cert_san = 'IP:arm-7' }",
        f'{SAN}, got "IP:arm-7"',
    ),
]

HOST = 'expected a host such as "board.example"'
HOST_FORM = "it has neither a scheme nor a port; put an IPv6 address in brackets"
MISTAKES += [
    *(
        (f"[http]\nhosts = ['{written}']", f'[http] hosts[0]: {HOST}: {why}; got "{written}"')
        for written, why in (
            ("*", '"*" would take the name of any page that a user visits; list each host'),
            ("*.example", '"*" would take the name of any page that a user visits; list each host'),
            ("bücher.example", "a browser sends such a name in its xn--… form; write that"),
            ("http://board.example", HOST_FORM),
            ("board.example:8080", HOST_FORM),
            ("::1", HOST_FORM),
            ("board.example/", HOST_FORM),
        )
    ),
    ("[http]\nmcp = 'yes'", '[http] mcp: expected true or false, got "yes"'),
    ("[http]\ncert = '/c'", "[http]: key not set: cert alone makes no TLS; set key, or take cert out"),
    (
        "[http]\nclient_ca = '/a'",
        "[http]: cert and key not set: only TLS has client certificates; set them, or take client_ca out",
    ),
    (
        f"[http]\nlisten = '[::]:7119'\n{TOKEN}",
        (
            "[http]: cert and key not set: [::]:7119 is reached from other machines, and tokens would cross "
            "the network in the clear; set cert and key, or plaintext = true if a proxy in front ends TLS"
        ),
    ),
    (
        "[http]\nlisten = '127.0.0.1:7118'\n[websocket]\nlisten = '127.0.0.1:7118'\n",
        '[http]: 127.0.0.1:7118 is taken by [websocket] listen = "127.0.0.1:7118"; give one of them another port',
    ),
    (
        f"[http]\nlisten = '127.0.0.1:7117'\n[tls]\nlisten = '0.0.0.0:7117'\n{PKI}client_ca = '/a'",
        '[http]: 127.0.0.1:7117 is taken by [tls] listen = "0.0.0.0:7117"; give one of them another port',
    ),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES, ids=[told[:50] for _, told in MISTAKES])
def test_a_mistake_is_told_with_its_place_and_what_was_expected(file, text, told):
    assert problems(file, text) == [told]


NOBODY = (
    "[{}]: {} is reached from other machines, whose users could not authenticate; set client_ca "
    "(with cert and key), or token_sha256 in the match of a [[policy]] (`hearth token new` makes one)"
)


@pytest.mark.parametrize("listen", ["0.0.0.0:7118", "[::]:0", "192.0.2.1:7118"])
@pytest.mark.parametrize("more", [PKI, "plaintext = true\n"])
@pytest.mark.parametrize("name", ["websocket", "http"])
def test_a_listener_off_loopback_needs_to_know_who_calls(file, listen, more, name):
    section, told = f"[{name}]\nlisten = '{listen}'\n{more}", [NOBODY.format(name, listen)]
    assert problems(file, section) == told
    assert problems(file, f"{section}[[policy]]\nname = 'a'\nmatch = {{ any = true }}\n") == told
    for cure in (TOKEN, "client_ca = '/a'" if more is PKI else TOKEN):
        assert str(getattr(loaded(file, section + cure), name).listen) == listen


@pytest.mark.parametrize("listen", ["127.0.0.1:7118", "localhost:0", "[::1]:7118"])
def test_on_loopback_a_listener_needs_nothing_else(file, listen):
    assert loaded(file, f"[websocket]\nlisten = '{listen}'").websocket.listen.is_loopback


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:1", "127.0.0.1:2"),
        ("127.0.0.1:1", "127.0.0.2:1"),
        ("127.0.0.1:1", "[::1]:1"),
        ("0.0.0.0:1", "[::]:1"),
    ],
)
def test_two_listeners_may_have_addresses_that_do_not_overlap(file, one, other):
    pki = f"{PKI}client_ca = '/a'"
    config = loaded(file, f"[tls]\nlisten = '{one}'\n{pki}\n[websocket]\nlisten = '{other}'\n{pki}\n")
    assert (str(config.tls.listen), str(config.websocket.listen)) == (one, other)


def test_what_is_wrong_with_the_whole_is_told_at_once_too(file):
    twice = "[[policy]]\nname = 'a'\nmatch = { uid = 1 }\n"
    wrong = problems(file, f"[websocket]\nlisten = '[::]:1'\nplaintext = true\n{twice}{twice}")
    twice = '[[policy]]: two entries are named "a"; give one another name'
    assert wrong == [twice, NOBODY.format("websocket", "[::]:1")]


@pytest.mark.parametrize(
    ("written", "host", "port", "loopback"),
    [
        ("127.0.0.1:7118", "127.0.0.1", 7118, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("localhost:7118", "127.0.0.1", 7118, True),
        ("LocalHost:7118", "127.0.0.1", 7118, True),
        ("[::1]:7118", "::1", 7118, True),
        ("[0:0::1]:65535", "::1", 65535, True),
        ("[::ffff:127.0.0.1]:7118", "127.0.0.1", 7118, True),
        ("0.0.0.0:7118", "0.0.0.0", 7118, False),
        ("[::]:7118", "::", 7118, False),
        ("192.0.2.1:00080", "192.0.2.1", 80, False),
        ("[2001:DB8::7]:7118", "2001:db8::7", 7118, False),
    ],
)
def test_an_address_to_listen_on_is_read_into_one_form(file, written, host, port, loopback):
    endpoint = loaded(file, f"[tls]\nlisten = '{written}'\n{PKI}client_ca = '/a'\n").tls.listen
    assert (endpoint, endpoint.is_loopback) == (Endpoint(host, port), loopback)


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ("https://panel.example", "https://panel.example"),
        ("HTTPS://Panel.Example:8443", "https://panel.example:8443"),
        ("http://panel.example:80", "http://panel.example"),
        ("http://panel.example:0080", "http://panel.example"),
        ("http://panel.example:08000", "http://panel.example:8000"),
        ("app://panel:80", "app://panel:80"),
        ("https://panel.example:443", "https://panel.example"),
        ("http://panel.example:443", "http://panel.example:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://xn--bcher-kva.example", "http://xn--bcher-kva.example"),
        ("chrome-extension://abcdefgh", "chrome-extension://abcdefgh"),
    ],
)
def test_an_origin_is_read_into_the_form_in_which_browsers_send_it(file, written, origin):
    assert loaded(file, f"[websocket]\norigins = ['{written}']\n").websocket.origins == (origin,)
