"""What a wrong hearth.toml is answered with: every mistake, its place, and what was expected."""

import os
import stat
from pathlib import Path

import pytest

from hearth.config.model import Config, load_config
from hearth.errors import ConfigError


def problems(tmp_path, text):
    file = tmp_path / "hearth.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{file}: ") for line in lines), lines
    return [line.removeprefix(f"{file}: ") for line in lines]


SECTIONS = (
    "server, tls, websocket, http, card, hcp, amqp, board, audit, attest, log, files, tools, tasks, ask, sandbox, "
    "limits, policy, or the table of an extra whose package is installed where hearthd runs"
)
ONE_MISTAKE = [
    *(line.split(" | ", 1) for line in Path(__file__).with_name("mistakes.txt").read_text("utf-8").splitlines()[2:]),
    ("[quux]", f"[quux]: unknown key; expected {SECTIONS}"),
    (f"[server] ⏎ socket = '/{'s' * 107}'", "[server] socket: expected a path of at most 107 bytes, got 108"),
]


@pytest.mark.parametrize(("text", "told"), ONE_MISTAKE, ids=[told[:50] for _, told in ONE_MISTAKE])
def test_a_mistake_is_told_with_its_place_and_what_was_expected(tmp_path, text, told):
    assert problems(tmp_path, text.replace(" ⏎ ", "\n")) == [told]


def test_all_mistakes_are_told_at_once_in_the_order_of_the_tables(tmp_path):
    text = """
    foo = 1
    [limits]
    idle_ttl_s = "5"
    max_bacth = 1
    [[policy]]
    name = "a"
    match = { uid = "x", ui = 3 }
    [[policy]]
    max_risk = -1
    [server]
    socket = 5
    [files]
    read = [1, "x"]
    """
    assert problems(tmp_path, text) == [
        "[server] socket: expected an absolute path, got 5",
        "[files] read[0]: expected an absolute path, got 1",
        '[files] read[1]: expected an absolute path, got "x"',
        '[limits] idle_ttl_s: expected a number > 0, got "5"',
        "[limits] max_bacth: unknown key; did you mean max_batch?",
        '[[policy]] #1 match.uid: expected an integer from 0 to 4294967294, got "x"',
        "[[policy]] #1 match.ui: unknown key; did you mean uid?",
        "[[policy]] #2 name: missing; this key has no default",
        "[[policy]] #2 match: missing; this key has no default",
        "[[policy]] #2 max_risk: expected an integer from 0 to 3, got -1",
        f"[foo]: unknown key; expected {SECTIONS}",
    ]


def test_a_token_in_place_of_its_digest_is_not_repeated(tmp_path):
    token = "correct horse battery staple"
    (line,) = problems(tmp_path, f"[[policy]]\nname = 'a'\nmatch = {{ token_sha256 = '{token}' }}")
    assert line.startswith("[[policy]] #1 match.token_sha256: expected the 64 hex digits")
    assert token not in line


def test_a_long_wrong_value_is_shortened(tmp_path):
    (line,) = problems(tmp_path, f"[limits]\nmax_batch = '{'x' * 1000}'")
    assert line.endswith("…")
    assert len(line) < 200


SYNTAX = [
    ("[limits\nx = 1", "line 1, column 8: Expected ']' at the end of a table declaration"),
    ("\n[limits]\nmax_batch = 5\nmax_batch = 6\n", "line 4, column 14: Cannot overwrite a value"),
    ("[board]\nprofile = 'sim", "at the end: "),
    (b"[board]\nprofile = 'caf\xe9'", "line 2: byte 0xe9 is not UTF-8; save it as UTF-8"),
    ("a = " + "[" * 5000, "arrays or tables are nested too deeply; flatten them"),
]


@pytest.mark.parametrize(("text", "told"), SYNTAX, ids=["bracket", "twice", "end", "latin-1", "deep"])
def test_what_is_no_toml_is_told_with_line_and_column(tmp_path, text, told):
    (line,) = problems(tmp_path, text)
    assert line.startswith(told)


def test_a_syntax_error_without_a_place_is_passed_on(monkeypatch, tmp_path):
    import tomllib

    def refuse(_text):
        raise tomllib.TOMLDecodeError("not today")

    monkeypatch.setattr(tomllib, "loads", refuse)
    assert problems(tmp_path, "") == ["not today"]


def test_a_missing_file_is_told_with_the_cure(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: no such file; create it, or leave --config out for defaults"):
        load_config(tmp_path / "none.toml")


def test_the_null_device_is_an_empty_configuration():
    assert load_config(Path("/dev/null")) == Config()


def test_a_directory_is_no_configuration(tmp_path):
    with pytest.raises(ConfigError, match="is not a regular file; name another one"):
        load_config(tmp_path)


def test_an_unreadable_file_is_told_with_the_cure(tmp_path, monkeypatch):
    file = tmp_path / "hearth.toml"
    file.touch(mode=stat.S_IWUSR)
    if os.geteuid() == 0:  # to root every file is readable

        def refuse(path, _flags):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match=r"hearth\.toml: may not be read by this user; fix its owner or mode"):
        load_config(file)


def test_a_bug_in_a_shape_is_not_taken_for_a_mistake_in_the_file(tmp_path, monkeypatch):
    from hearth.fields import Flag

    def broken(_self, _raw):
        raise ZeroDivisionError

    monkeypatch.setattr(Flag, "read", broken)
    file = tmp_path / "hearth.toml"
    file.write_text("[tools]\nproc_argv = true")
    with pytest.raises(ZeroDivisionError):
        load_config(file)


def test_without_a_file_the_defaults_hold():
    assert load_config(None) == Config()


LONG = {
    "a decimal number": (
        "[limits]\nidle_ttl_s = " + "9" * 5000,
        "line 2: a number of more than 4300 digits; no key takes one",
    ),
    "a hexadecimal number": (
        "[limits]\nidle_ttl_s = 0x" + "f" * 5000,
        "[limits] idle_ttl_s: expected at most 1000000000, got a number of 20000 bits",
    ),
    "one in an array": (
        "[files]\nread = [0x" + "f" * 5000 + "]",
        "[files] read[0]: expected an absolute path, got a number of 20000 bits",
    ),
    "one in a nested array": (
        "[board]\nprofile = [[0x" + "f" * 5000 + "]]",
        "[board] profile: expected a non-empty string, got an array",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_number_without_end_is_told_as_any_other_mistake(tmp_path, name):
    text, told = LONG[name]
    assert problems(tmp_path, text) == [told]


STRAY = r"a\nb\u001b[2J\u009b\u2028"
"""As it is written in the file, and as it is told."""
STRAY_KEYS = [
    (f'"{STRAY}" = 1', f'["{STRAY}"]: '),
    (f'[files]\n"{STRAY}" = 1', f'[files] "{STRAY}": '),
    *((f'[tools.exec]\n"{mark}{STRAY}" = 1', f'[tools] exec."{mark}{STRAY}": ') for mark in ("", " ", ".", "[")),
    (f'[tools.exec.x]\nargv = ["/x"]\nparams = {{" {STRAY}" = 1}}', f'[tools] exec.x.params." {STRAY}": '),
    (f'[tools.exec.x]\nargv = ["/x"]\nenv = {{"{STRAY}=" = "1"}}', f'[tools] exec.x.env key "{STRAY}=": '),
    (f'[[policy]]\nname = "a"\nmatch = {{"{STRAY}" = 1}}', f'[[policy]] #1 match."{STRAY}": '),
    (f'[card.metadata]\n"hearth:{STRAY}" = 1', f'[card] metadata key "hearth:{STRAY}": '),
    (f'[card.metadata.x]\n"{STRAY}" = inf', f'[card] metadata.x."{STRAY}": '),
    (f'[server]\nsocket = "{STRAY}"', f'[server] socket: expected an absolute path, got "{STRAY}"'),
]


@pytest.mark.parametrize(("text", "told"), STRAY_KEYS, ids=range(len(STRAY_KEYS)))
def test_whatever_is_in_a_key_or_a_value_its_mistake_is_told_on_one_line_of_printable_text(tmp_path, text, told):
    (line,) = problems(tmp_path, text)
    assert line.startswith(told)
    assert line.isprintable()


def test_a_key_with_a_line_feed_or_an_escape_is_told_on_one_line(tmp_path):
    assert problems(tmp_path, '"a\\nb\\u001b[2J" = 1') == [f'["a\\nb\\u001b[2J"]: unknown key; expected {SECTIONS}']
