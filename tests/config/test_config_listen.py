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

PKI = "cert = '/c'\nkey = '/k'\n"
TOKEN = f"[[policy]]\nname = 'a'\nmatch = [{{ uid = 1 }}, {{ token_sha256 = '{'ab' * 32}' }}]\n"

NOBODY = (
    "[{}]: {} is reached from other machines, whose users could not authenticate; set client_ca "
    "(with cert and key), or token_sha256 in the match of a [[policy]] (`hearth admin token new` makes one)"
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
