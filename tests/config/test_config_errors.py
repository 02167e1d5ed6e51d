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
    "limits, policy"
)
ONE_MISTAKE = [
    ('[limits]\nidle_ttl_s = "5"', '[limits] idle_ttl_s: expected a number > 0, got "5"'),
    ("[limits]\nclose_grace_s = -0.5", "[limits] close_grace_s: expected a number ≥ 0, got -0.5"),
    ("[limits]\nmax_batch = 0", "[limits] max_batch: expected an integer ≥ 1, got 0"),
    ("[limits]\nmax_bacth = 5", "[limits] max_bacth: unknown key; did you mean max_batch?"),
    ("[board]\nspeed = 1", "[board] speed: unknown key; expected profile"),
    ("[board]\nprofile = 2026-05-01", "[board] profile: expected a non-empty string, got 2026-05-01"),
    ("[limit]\nmax_batch = 5", "[limit]: unknown key; did you mean limits?"),
    (
        "[quux]",
        f"[quux]: unknown key; expected {SECTIONS}",
    ),
    ("max_batch = 5", "[max_batch]: unknown here; this key belongs under [limits]"),
    ("audit = 5", "[audit]: expected a table, got 5"),
    ("[server]\nsocket_mode = 660", '[server] socket_mode: expected a string of octal digits such as "0660", got 660'),
    ("[server]\nsocket = 'h.sock'", '[server] socket: expected an absolute path, got "h.sock"'),
    (
        f"[server]\nsocket = '/{'s' * 107}'",
        "[server] socket: expected a path of at most 107 bytes, got 108",
    ),
    ("[audit]\ndurability = 'disk'", '[audit] durability: expected "os", "fsync" or "relaxed", got "disk"'),
    ("[audit]\nrotate_bytes = 1023", "[audit] rotate_bytes: expected an integer ≥ 1024, got 1023"),
    ("[files]\nread = '/srv'", '[files] read: expected an array, got "/srv"'),
    ("[files]\nread = ['/srv', 'x']", '[files] read[1]: expected an absolute path, got "x"'),
    ("[tools]\nproc_argv = 1", "[tools] proc_argv: expected true or false, got 1"),
    (
        "[tools]\nenable = ['a.b']\ndisable = ['a.b']",
        '[tools]: "a.b" is both in enable and in disable; take it out of one',
    ),
    (
        "[tools]\nenable = ['proc.exec']",
        "[tools]: proc.exec is enabled but has nothing to run; add a [tools.exec] entry",
    ),
    ("[tools]\nexec = 5", "[tools] exec: expected a table, got 5"),
    ("[tools.exec]\nls = 'ls -l'", '[tools] exec.ls: expected a table, got "ls -l"'),
    ("[tools.exec]\nls = []", "[tools] exec.ls.argv: expected an array of at least 1, got []"),
    ("[tools.exec.ls]", "[tools] exec.ls.argv: missing; this key has no default"),
    ("[tools.exec]\nls = ['ls']", '[tools] exec.ls: argv[0]: expected the program\'s absolute path, got "ls"'),
    (
        "[tools.exec]\nls = ['/{x}']",
        '[tools] exec.ls: argv[0]: expected the program\'s absolute path, got "/{x}"',
    ),
    ("[tools.exec]\nls = ['/ls', 'a}']", '[tools] exec.ls: argv: stray "}" in "a}"; to mean it, write it twice'),
    ("[tools.exec]\nls = ['/ls', '{dir}']", "[tools] exec.ls: params: argv uses {dir}, which params does not describe"),
    (
        "[tools.exec]\nls = ['/ls', '{}']",
        '[tools] exec.ls: params: expected lower-case names such as host, got ""',
    ),
    (
        "[tools.exec.ls]\nargv = ['/ls']\nparams.dir.enum = ['/']",
        "[tools] exec.ls: params.dir: no element of argv uses {dir}",
    ),
    (
        "[tools.exec.ls]\nargv = ['/ls', '{dir}']\nparams.dir = {}",
        "[tools] exec.ls.params.dir: expected exactly one of pattern and enum",
    ),
    (
        "[tools.exec.ls]\nargv = ['/ls', '{dir}']\nparams.dir.pattern = '['",
        '[tools] exec.ls.params.dir: pattern: unterminated character set at position 0 in "["',
    ),
    (
        "[tools.exec.ls]\nargv = ['/ls', '{dir}']\nparams.dir = { enum = ['a'], enmu = 1 }",
        "[tools] exec.ls.params.dir.enmu: unknown key; did you mean enum?",
    ),
    (
        "[tools.exec.ls]\nargv = ['/ls']\nenv = { 'A=B' = 'c' }",
        '[tools] exec.ls.env key "A=B": expected a name without \'=\', got "A=B"',
    ),
    (
        "[tools.exec.'a b']\nargv = ['/ls']",
        "[tools]: exec: expected a name of letters, digits, '.', '_' and '-', got \"a b\"",
    ),
    ("policy = 5", "[[policy]]: expected an array of tables, got 5"),
    ("policy = [5]", "[[policy]] #1: expected a table, got 5"),
    ("[[policy]]\nname = 'a'", "[[policy]] #1 match: missing; this key has no default"),
    (
        "[[policy]]\nname = 'a'\nmatch = {}",
        (
            "[[policy]] #1 match: expected a table with at least one of "
            "uid, gid, user, group, cert_subject, cert_san, token_sha256, amqp_user, any, got an empty table"
        ),
    ),
    ("[[policy]]\nname = 'a'\nmatch = { ui = 5 }", "[[policy]] #1 match.ui: unknown key; did you mean uid?"),
    (
        "[[policy]]\nname = 'a'\nmatch = [{ uid = 5 }, { uid = -1 }]",
        "[[policy]] #1 match[1].uid: expected an integer from 0 to 4294967294, got -1",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { any = false }",
        "[[policy]] #1 match: any = true must be the only key, and any = false has no meaning; remove one of them",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { any = true, uid = 1 }",
        "[[policy]] #1 match: any = true must be the only key, and any = false has no meaning; remove one of them",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { any = true }\nmax_risk = 4",
        "[[policy]] #1 max_risk: expected an integer from 0 to 3, got 4",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { any = true }\nmax_risk = 2\nmax_risk_ceiling = 1",
        "[[policy]] #1: max_risk_ceiling: expected at least max_risk (2), got 1",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { any = true }\nrate = { 'gpio.set' = '0/s' }",
        '[[policy]] #1 rate."gpio.set": expected a rate such as "50/s", "10/m" or "100/10s", got "0/s"',
    ),
    (
        "[hcp]\ncapabilities = ['a.d']",
        (
            "[hcp] capabilities[0]: expected an absolute path, or the name of an entry point such as "
            '"bench-climate-survey", got "a.d"'
        ),
    ),
    ("[hcp]\ncapabilities = ['a', 'b.py']", '[hcp] capabilities[1]: expected an absolute path, got "b.py"'),
    ("[hcp]\ncapabilities = ['./a']", '[hcp] capabilities[0]: expected an absolute path, got "./a"'),
    (
        "[hcp]\nplanners = ['acme']",
        (
            "[hcp] planners: unknown key; write what it planned as a Python function, and name its file or entry point "
            "in capabilities"
        ),
    ),
    (
        "[sandbox]\nenable = false\nrequire = true",
        "[sandbox]: require = true contradicts enable = false; remove one of them",
    ),
    ("[sandbox]\nread = ['opt']", '[sandbox] read[0]: expected an absolute path, got "opt"'),
    ("[sandbox]\nhotplug = 'yes'", '[sandbox] hotplug: expected true or false, got "yes"'),
    ("[hcp]\nmax_job = 1", "[hcp] max_job: unknown key; did you mean max_jobs?"),
    (
        "[hcp]\nmax_artifact_bytes = 300_000_000",
        "[hcp]: max_artifact_bytes: expected at most max_artifacts_bytes (268435456), got 300000000",
    ),
    ("[[policy]]\nname = 'a'\nmatch = { uid = 1 }\nhcp = 5", "[[policy]] #1 hcp: expected a table, got 5"),
    (
        "[[policy]]\nname = 'a'\nmatch = { uid = 1 }\nhcp = { max_risk = 3 }",
        '[[policy]] #1 hcp.max_risk: expected "R1", "R2", "R3", "R4" or "R5", got 3',
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { uid = 1 }\nhcp.caller = 'a'",
        "[[policy]] #1 hcp.caller: unknown key; did you mean callers?",
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { uid = 1 }\nhcp.approve = true",
        '[[policy]] #1 hcp.approve: unknown key; write rights = ["approve"] in the entry itself',
    ),
    (
        "[[policy]]\nname = 'a'\nmatch = { uid = 1 }\n[[policy]]\nname = 'a'\nmatch = { uid = 2 }",
        '[[policy]]: two entries are named "a"; give one another name',
    ),
]


@pytest.mark.parametrize(("text", "told"), ONE_MISTAKE, ids=[told[:50] for _, told in ONE_MISTAKE])
def test_a_mistake_is_told_with_its_place_and_what_was_expected(tmp_path, text, told):
    assert problems(tmp_path, text) == [told]


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
