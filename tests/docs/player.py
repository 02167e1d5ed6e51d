"""Plays a page of the documentation: its blocks become one shell session, in a directory of its own, in their order.

What a block is for follows from its language and its first line:

- ```sh is run with `bash -eu`. One line `hearthd …` starts a daemon in the background, in place of the one before.
  Lines that change the machine (`make`, `sudo`, `pip`, `pipx`, a virtual environment) are not run here; see `NOT_RUN`.
  But the line `sudo systemctl reload hearth` sends that daemon the signal that systemd would.
- ```console has commands after `$ ` and what they print on stdout and stderr below them, `…` standing for anything, a
  line `…` alone for any number of lines. `# exit N` at the end of a command is its exit code, if that is not 0.
- ```python is run as a script; one that begins with a comment `# NAME.py` is saved under that name, to be run by a
  command.
- ```toml that begins with a comment `# PATH` is saved under that path.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
MARK = "\x01end of act"
PORTS = (7117, 7118, 7119)
"""What pages listen on; other ports are played, since several pages may be at the same time."""
NOT_RUN = ("make ", "sudo ", "python3 -m venv ", "~/hearth/bin/pip ", "pipx ", "uvx ")
"""How lines begin that the tests look at and do not run."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SAVED = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")

PREAMBLE = r"""
HEARTHD=
start_hearthd() {
    if [ -n "$HEARTHD" ]; then kill "$HEARTHD"; wait "$HEARTHD" || return 1; fi
    : > "$HOME/daemon.log"
    hearthd "$@" 2> "$HOME/daemon.log" &
    HEARTHD=$!
    until grep -q '^hearthd: ready on ' "$HOME/daemon.log"; do
        kill -0 "$HEARTHD" || { cat "$HOME/daemon.log"; return 1; }
        sleep 0.05
    done
}
reload_hearthd() {
    kill -HUP "$HEARTHD"
    until grep -q 'certificates have been read again' "$HOME/daemon.log"; do
        kill -0 "$HEARTHD" || { cat "$HOME/daemon.log"; return 1; }
        sleep 0.05
    done
    cat "$HOME/daemon.log"
}
trap 'test -z "$HEARTHD" || { kill "$HEARTHD"; wait "$HEARTHD"; }' EXIT
"""

INSTALL = """
import shutil, sys, tomllib
from pathlib import Path
source, site = map(Path, sys.argv[1:])
project = tomllib.loads((source / "pyproject.toml").read_text())
name, version = project["project"]["name"], project["project"]["version"]
parts = project["tool"]["setuptools"]
for module in parts.get("py-modules", ()):
    shutil.copy(source / f"{module}.py", site)
for package in parts.get("packages", ()):
    shutil.copytree(source / package, site / package)
info = site / f"{name.replace('-', '_')}-{version}.dist-info"
info.mkdir()
(info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
((group, points),) = project["project"]["entry-points"].items()
lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
(info / "entry_points.txt").write_text("\\n".join(lines))
"""
"""What `pip install ./PACKAGE` comes to for a package of a few modules, without a package index."""

FAR_END = r"""#!/bin/sh
# ssh HOST COMMAND… on this machine. As sshd does it, the command is one string for the user's shell, at home.
while :; do
    case "$1" in -[plo]) shift 2;; --) shift; break;; -*) shift;; *) break;; esac
done
shift
cd
exec sh -c "$*"
"""
"""The other machine of an ssh that stays here: what is played needs no sshd and no key."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int


class Act(NamedTuple):
    """Something to do, and what should come of it."""

    line: int
    shell: str
    code: int
    expected: list[str] | None


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in _FENCE.finditer(text)]


def acts(page: list[Block]) -> Iterator[Act]:
    """What is to be done for the blocks of a page."""
    for number, block in enumerate(page):
        saved = _SAVED.match(block.text)
        if block.language == "sh":
            yield Act(block.line, _sh(block.text), 0, None)
        elif block.language == "console":
            yield from _console(block)
        elif block.language == "python":
            name = saved[1] if saved else f"block{number}.py"
            yield Act(block.line, _save(name, block.text) + ("" if saved else f"\npython {name}"), 0, None)
        elif block.language == "toml" and saved:
            yield Act(block.line, _save(saved[1], block.text), 0, None)


def _save(name: str, text: str) -> str:
    return f"cat > {name} <<'END_OF_BLOCK'\n{text}END_OF_BLOCK"


def is_not_run(text: str) -> bool:
    """True for a block that changes the machine: the tests look at its lines, and do not run them."""
    return text.startswith(NOT_RUN)


def _sh(text: str) -> str:
    if is_not_run(text):
        return "true"
    lines = text.splitlines()
    if len(lines) == 1 and lines[0].startswith("hearthd ") and "--check" not in lines[0]:
        return lines[0].replace("hearthd", "start_hearthd", 1)
    text = re.sub(r"^sudo systemctl reload hearth$", "reload_hearthd", text, flags=re.MULTILINE)
    found = 'export PYTHONPATH="$HOME/site:${PYTHONPATH-}"'
    install = f'mkdir -p "$HOME/site"; python "$HOME/install.py" \\1 "$HOME/site"; {found}'
    return "set -eu\n" + re.sub(r"^pip install (\./\w+)$", install, text, flags=re.MULTILINE) + "set +eu"


def _console(block: Block) -> Iterator[Act]:
    act: Act | None = None
    for offset, line in enumerate(block.text.splitlines(), start=1):
        if line.startswith("$ "):
            if act is not None:
                yield act
            code = re.search(r"  # exit (\d+)$", line)
            act = Act(block.line + offset, line[2:], int(code[1]) if code else 0, [])
        else:
            assert act is not None
            assert act.expected is not None
            act.expected.append(line)
    assert act is not None
    yield act


class Outcome(NamedTuple):
    """What came of an act; `code` is None if it was not reached, or ended the shell."""

    output: str
    code: int | None


def play(page: list[Act], directory: Path, before: str = "") -> list[Outcome]:
    """Do the acts in one shell. `before` is done first, in the directory, which is also HOME."""
    bash = shutil.which("bash")
    assert bash is not None
    (directory / "install.py").write_text(INSTALL)
    (directory / "ssh").write_text(FAR_END)
    (directory / "ssh").chmod(0o755)
    ports = free_ports(len(PORTS))
    script = PREAMBLE + before + "".join(f"\n{act.shell}\nprintf '\\n{MARK} %d\\n' $?\n" for act in page)
    for usual, free in zip(PORTS, ports, strict=True):
        script = re.sub(rf":{usual}\b", f":{free}", script)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HEARTH", "XDG"))}
    done = subprocess.run(
        [bash, "-c", script],
        cwd=directory,
        env={
            **environ,
            "HOME": str(directory),
            "HEARTH_SSH": str(directory / "ssh"),
            "NO_COLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    *parts, rest = re.split(rf"\n{MARK} (\d+)\n", done.stdout)
    outcomes = [Outcome(output, int(code)) for output, code in zip(parts[::2], parts[1::2], strict=True)]
    return outcomes + [Outcome(rest, None)] * (len(page) - len(outcomes))


def matches(expected: list[str], output: str) -> bool:
    """Whether a command printed what the page says; spaces in a row count as one, blank lines not at all."""
    pattern = ""
    for line in map(_folded, expected):
        if line == "…":
            pattern += r"(?:.*\n)*"
        elif line:
            pattern += ".*".join(map(re.escape, line.split("…"))) + " ?\n"
    # Said where an answer takes seconds, as on a busy machine.
    printed = "".join(
        f"{_folded(line)}\n" for line in output.splitlines() if line.strip() not in ("", "note: no answer yet")
    )
    return re.fullmatch(pattern, printed) is not None


def _folded(line: str) -> str:
    return " ".join(line.split())
