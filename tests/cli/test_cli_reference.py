"""docs/reference/cli.md says what is so: its commands are run, in order, in one shell, beside a daemon.

In a ```console block a line `$ command` is run, with `> ` lines continuing it, and `# exit N` at its end names the exit
code if it is not 0. The lines after it are what it prints on stdout and stderr: compared with spaces run together, `…`
standing for anything, and a line that is `…` alone for any number of lines; blank lines do not count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from support.zygote import Zygote

from hearth.cli.main import cli

PAGE = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MARK = "\x01end of command"
OF_A_SLOW_MACHINE = {"note: no answer yet"}


class Command(NamedTuple):
    text: str
    code: int
    expected: list[str]


def commands():
    found = []
    for _, block in BLOCKS:
        for line in block.splitlines():
            if line.startswith("$ "):
                code = re.search(r"# exit (\d+)$", line)
                found.append(Command(line[2:], int(code[1]) if code else 0, []))
            elif line.startswith("> "):
                found[-1] = found[-1]._replace(text=f"{found[-1].text}\n{line[2:]}")
            else:
                found[-1].expected.append(line)
    return found


COMMANDS_OF_PAGE = commands()


def folded(line):
    return " ".join(line.split())


def pattern(expected):
    """What the expected lines admit, as a regular expression over folded lines."""
    parts = []
    for line in map(folded, expected):
        if line == "…":
            parts.append(r"(?:.*\n)*")
        elif line:
            parts.append(".*".join(map(re.escape, line.split("…"))) + r" *\n")
    return "".join(parts)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    zygote = Zygote(tmp_path_factory.mktemp("zygote"), "cli.preloaded:main")
    yield zygote
    zygote.close()


@pytest.fixture(scope="module")
def played(daemon, unmeasured, tmp_path_factory, zygote):
    """Each command's output and exit code, from one shell in the daemon's own directory."""
    script = "".join(f"{command.text}\nprintf '\\n{MARK} %d\\n' $?\n" for command in COMMANDS_OF_PAGE)
    bash = shutil.which("bash")
    assert bash is not None
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH", "NO_COLOR"))}
    bin_ = tmp_path_factory.mktemp("bin")
    zygote.command(bin_ / "hearth")
    path = os.pathsep.join([str(bin_), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [bash, "-c", script],
        cwd=daemon.directory,
        env={**environ, "PATH": path, "HEARTH_SOCKET": str(daemon.socket)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    *outputs, rest = re.split(rf"\n{MARK} (\d+)\n", done.stdout)
    assert rest == ""
    return list(zip(outputs[::2], map(int, outputs[1::2]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(COMMANDS_OF_PAGE)), ids=[c.text.splitlines()[0] for c in COMMANDS_OF_PAGE])
def test_the_command_on_the_page_does_what_the_page_says(played, number):
    command, (output, code) = COMMANDS_OF_PAGE[number], played[number]
    assert code == command.code, output
    lines = [folded(line) for line in output.splitlines() if line.strip() and line not in OF_A_SLOW_MACHINE]
    text = "".join(f"{line}\n" for line in lines)
    if command.expected:
        assert re.fullmatch(pattern(command.expected), text), f"{command.text} printed:\n{output}"


def test_every_block_is_run():
    assert {language for language, _ in BLOCKS} == {"console"}
    assert len(COMMANDS_OF_PAGE) > 25


@pytest.mark.slow
def test_every_command_and_option_is_on_the_page():
    groups = [("hearth", cli)]
    for path, group in groups:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if path != "hearth" or not isinstance(command, click.Group):
                assert name in PAGE
            if isinstance(command, click.Group):
                assert f"{path} {name}" in PAGE
                groups.append((f"{path} {name}", command))
            for parameter in command.params:
                if isinstance(parameter, click.Option) and not parameter.hidden:
                    assert any(option in PAGE for option in parameter.opts), (name, parameter.opts)
