"""`hearth --help` and its kin: cheap, complete, and without importing what a command needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from hearth import __version__
from hearth.cli.admin import admin
from hearth.cli.main import _report_bug, cli

COMMANDS = cli.places | admin.places
HEAVY = ("trio", "rich", "attrs", "attr", "orjson", "psutil", "cryptography", "gpiod")
HEAVY += ("hearth.client.connection", "hearth.config.model")


def loaded_by(*args: str) -> set[str]:
    """The modules that `hearth ARGS` has imported when it ends."""
    code = (
        "import sys, json, atexit\n"
        f"sys.argv = ['hearth', *{list(args)!r}]\n"
        "atexit.register(lambda: sys.stderr.write(json.dumps(sorted(sys.modules))))\n"
        "from hearth.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["-h"]])
def test_help_imports_nothing_heavy(args):
    assert loaded_by(*args).isdisjoint(HEAVY)


def test_help_imports_no_command():
    loaded = loaded_by("--help")
    assert not {place.partition(":")[0] for place, _ in COMMANDS.values()} & loaded


def every_command():
    """The words of each command and group, `hearth` itself first."""
    found = [[]]
    for words in found:
        command = cli
        for word in words:
            command = command.get_command(click.Context(command), word)
        if isinstance(command, click.Group):
            found += [[*words, name] for name in command.list_commands(click.Context(command))]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_shows_no_mark_that_is_meant_for_the_formatter(words):
    answer = CliRunner().invoke(cli, [*words, "--help"])
    assert answer.exit_code == 0
    assert "\b" not in answer.output
    assert "\\b" not in answer.output


def test_the_help_of_completion_has_a_line_for_each_shell():
    lines = CliRunner().invoke(cli, ["admin", "completion", "--help"]).output.splitlines()
    for shell in ("bash", "zsh", "fish"):
        assert len([line for line in lines if line.lstrip().startswith(f"{shell}:")]) == 1


def test_completion_needs_no_trio():
    assert loaded_by("admin", "completion", "bash").isdisjoint({"trio", "rich"})


def test_a_tab_imports_no_command(monkeypatch):
    code = "from hearth.cli.main import main; import sys\ntry: main()\nfinally: print('trio' in sys.modules)"
    environ = {"_HEARTH_COMPLETE": "bash_complete", "COMP_WORDS": "hearth au", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout.splitlines() == ["plain,audit", "False"]


def test_a_tab_after_a_dash_completes_options():
    code = "from hearth.cli.main import main; main()"
    environ = {"_HEARTH_COMPLETE": "bash_complete", "COMP_WORDS": "hearth --js", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.stdout.splitlines() == ["plain,--json"]


def test_the_help_names_every_command_of_the_design_and_the_exit_codes():
    shown = CliRunner().invoke(cli, ["--help"])
    assert shown.exit_code == 0
    for name in ("demo", "tools", "run", "plan", "tasks", "audit", "doctor", "hcp", "mcp", "admin"):
        assert f"\n  {name} " in shown.output
    assert "1 the work failed, 2 usage, 3 the daemon" in " ".join(shown.output.split())


@pytest.mark.parametrize("words", every_command()[1:], ids=" ".join)
def test_every_command_explains_itself(words):
    shown = CliRunner().invoke(cli, [*words, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: cli {' '.join(words)} ")
    if " COMMAND " not in shown.output.splitlines()[0] and words[-1] != "completion":
        assert "--json" in shown.output
        assert "--socket" in shown.output
        assert "--to" in shown.output


@pytest.mark.parametrize("name", ["verify", "head", "tail", "prove", "witness"])
def test_every_audit_command_takes_json(name):
    shown = CliRunner().invoke(cli, ["audit", name, "--help"])
    assert "--json" in shown.output


def test_version(cli):
    assert cli("--version").out == f"hearth {__version__}\n"


def test_a_command_that_does_not_exist_is_a_usage_error(cli):
    answer = cli("conect")
    assert answer.code == 2
    assert "conect" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tols"], "there is no command 'tols'; did you mean tools?"),
        (["admin", "tokne"], "there is no command 'tokne'; did you mean token?"),
        (["--json", "approvls"], "there is no command 'approvls'; did you mean approvals?"),
        (["admin", "zzzz"], "there is no command 'zzzz'; `hearth admin --help` lists them"),
        (["gpio.set", "line=17"], "there is no command 'gpio.set'; a tool is run by `hearth run gpio.set`"),
        (["zzzz"], "there is no command 'zzzz'; `hearth --help` lists them"),
        (["hcp", "sumbit"], "Did you mean 'submit'?"),
        (["audit", "verfy"], "Did you mean 'verify'?"),
        (["--jsn"], "Did you mean"),
    ],
)
def test_a_misspelt_command_is_a_usage_error_with_the_nearest(cli, words, said):
    answer = cli(*words)
    assert answer.code == 2
    assert said in answer.err


def test_no_command_at_all_shows_the_help(cli):
    answer = cli()
    assert answer.code == 2
    assert "Run:" in answer.out + answer.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_each_shell(cli, shell):
    answer = cli("admin", "completion", shell)
    assert answer.code == 0
    assert f"_HEARTH_COMPLETE={shell}_complete" in answer.out


def test_completion_of_another_shell_is_a_usage_error(cli):
    assert cli("admin", "completion", "tcsh").code == 2


def test_the_bash_script_is_one_that_bash_takes(cli):
    script = cli("admin", "completion", "bash").out
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False, timeout=30)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_bug_is_named_with_its_place_in_one_line(capsys, monkeypatch):
    monkeypatch.delenv("HEARTH_TRACEBACK", raising=False)
    try:
        raise KeyError("steps")
    except KeyError as error:
        _report_bug(KeyError, error, error.__traceback__)
    said = capsys.readouterr().err
    assert said.startswith("hearth: a bug in hearth: KeyError: 'steps' at test_cli_help.py:")
    assert "HEARTH_TRACEBACK=1" in said
    assert said.count("\n") == 1


def test_a_bug_without_a_place_is_named_too(capsys, monkeypatch):
    monkeypatch.delenv("HEARTH_TRACEBACK", raising=False)
    _report_bug(ValueError, ValueError("x"), None)
    assert capsys.readouterr().err.startswith("hearth: a bug in hearth: ValueError: x; ")


def test_who_asks_for_the_traceback_gets_it(capsys, monkeypatch):
    monkeypatch.setenv("HEARTH_TRACEBACK", "1")
    _report_bug(ValueError, ValueError("x"), None)
    assert capsys.readouterr().err == "ValueError: x\n"


def test_a_bug_ends_the_process_with_1_and_one_line():
    code = "from hearth.cli import main\nmain.cli.places['boom'] = ('json:loads', '')\nmain.main(['boom'])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert done.stderr.startswith("hearth: a bug in hearth: ")
    assert "Traceback" not in done.stderr
