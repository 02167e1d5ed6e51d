"""`python -m tests.fuzz [TARGET]… [--seconds N | --runs N] [--corpus DIR]`: fuzz targets, one after the other.

What it finds is in test-artefacts/fuzz/TARGET: `crash-…` an input that broke a promise, `log` libFuzzer's words,
`corpus` what it found worth keeping. It exits with 1 if there was a finding. `--untraced` changes what was kept
without asking where it goes, which is the faster half, and needs no atheris. `--merge` makes the corpus in the
repository anew: the smallest set of inputs that reaches as much.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import ROOT
from .targets import CORPUS, TARGETS, load
from .untraced import CURRENT

FOUND = ROOT / "test-artefacts/fuzz"
INSTALL = "pip install -c constraints.txt -e '.[fuzz]'"
HANGS_S = 25
RSS_MB = 2048
FINDING = re.compile(r"(?:crash|timeout|oom|leak)-")


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all, if none is named")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    length.add_argument("--runs", type=int, help="executions of each target, instead")
    parser.add_argument("--corpus", type=Path, help="where to keep what is found (test-artefacts/fuzz/TARGET/corpus)")
    parser.add_argument(
        "--artefacts", type=Path, default=FOUND, help="where findings and logs go (test-artefacts/fuzz)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; 0 chooses one")
    parser.add_argument("--untraced", action="store_true", help="without coverage, from what was kept; with --runs")
    parser.add_argument("--merge", action="store_true", help="make tests/fuzz/corpus anew from what was kept")
    options = parser.parse_args()
    if unknown := [name for name in options.targets if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    if options.untraced and options.runs is None:
        parser.error("--untraced wants --runs: how many of each target")
    if not options.untraced and importlib.util.find_spec("atheris") is None:
        print(
            f"atheris is not installed: {INSTALL} (it has wheels for x86-64 Linux, Python 3.11 to 3.13)",
            file=sys.stderr,
        )
        return 2
    work = merge if options.merge else fuzz
    print(f"{'target':<8}{'executions':>12}{'seconds':>9}{'per second':>12}{'edges':>7}  findings", flush=True)
    return max([work(name, options) for name in options.targets or TARGETS])


def fuzz(name: str, options: argparse.Namespace) -> int:
    """Run one target and print its line; 1 if there was a finding."""
    place = _place(options, name)
    kept = (options.corpus or place / "corpus").absolute()
    kept.mkdir(parents=True, exist_ok=True)
    before = set(_findings(place))
    limit = f"-max_total_time={options.seconds}" if options.runs is None else f"-runs={options.runs}"
    with tempfile.TemporaryDirectory(prefix="hearth-fuzz-") as made:
        seeds = _written(name, Path(made))
        begun = time.monotonic()
        directories = [str(kept), str(seeds), *_there(CORPUS / name)]
        if options.untraced:
            code = _process(place, "untraced", str(place), name, str(options.runs), str(options.seed), *directories)
            name_current(place)
        else:
            code = _libfuzzer(name, place, [limit, f"-seed={options.seed}", *directories])
        seconds = time.monotonic() - begun
    log = (place / "log").read_text(encoding="utf-8", errors="replace")
    new = sorted(set(_findings(place)) - before)
    runs, edges = executions(log)
    told = f"{name:<8}{runs:>12}{seconds:>9.0f}{runs / max(seconds, 0.001):>12.0f}{edges:>7}  {len(new)}"
    print(told + "".join(f"\n  {_near(path)}: {reason(log)}" for path in new), flush=True)
    if code and not new:
        print(f"  {name} ended with {code}: {_near(place / 'log')} says why", flush=True)
    return 1 if code or new else 0


def name_current(place: Path) -> None:
    """What a process without a tracer was looking at when it ended gets the name that libFuzzer would give it."""
    current = place / CURRENT
    if current.exists() and (data := current.read_bytes()):
        current.rename(place / f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}")


def executions(log: str) -> tuple[int, int]:
    """How many inputs were tried, and how many edges were covered, by libFuzzer's words."""
    counts = [int(found) for found in re.findall(r"^(?:stat::number_of_executed_units: |#)([0-9]+)", log, re.MULTILINE)]
    edges = [int(found) for found in re.findall(r"\bcov: ([0-9]+)", log)]
    return max(counts, default=0), max(edges, default=0)


def reason(log: str) -> str:
    """What escaped, in a line."""
    told = r"[A-Za-z_.]*(?:Error|Exception|Hang|Group)\b.*|Fatal Python error: .*|==\d+== ?ERROR: .*"
    found = re.findall(f"^(?:{told})$", log, re.MULTILINE)
    return (found[0] if found else "see the log")[:200]


def merge(name: str, options: argparse.Namespace) -> int:
    """Make the corpus in the repository anew from it and what was kept."""
    place = _place(options, name)
    kept = (options.corpus or place / "corpus").absolute()
    with tempfile.TemporaryDirectory(prefix="hearth-fuzz-") as made:
        smallest, seeds = Path(made, "smallest"), Path(made, "seeds")
        smallest.mkdir()
        seeds.mkdir()
        # The seeds come first: what they reach needs nothing in the repository.
        shutil.copytree(_written(name, seeds), smallest, dirs_exist_ok=True)
        code = _libfuzzer(
            name,
            place,
            [
                "-set_cover_merge=1",
                "-use_counters=0",
                "-use_cmp=0",
                str(smallest),
                *_there(CORPUS / name),
                *_there(kept),
            ],
        )
        if code == 0:
            _replace(CORPUS / name, smallest, {path.name for path in seeds.iterdir()})
    files = [path.stat().st_size for path in (CORPUS / name).iterdir()]
    print(f"{name:<8}{len(files)} files, {sum(files)} bytes", flush=True)
    return 1 if code else 0


def _replace(corpus: Path, smallest: Path, seeds: set[str]) -> None:
    """Findings have names of words and stay; the rest is by its hash, and made anew."""
    corpus.mkdir(parents=True, exist_ok=True)
    for path in corpus.iterdir():
        if re.fullmatch("[0-9a-f]{40}", path.name):
            path.unlink()
    findings = {path.read_bytes() for path in corpus.iterdir()}
    for path in smallest.iterdir():
        if path.name not in seeds and path.read_bytes() not in findings:
            shutil.copy(path, corpus / path.name)


def _place(options: argparse.Namespace, name: str) -> Path:
    place: Path = options.artefacts.absolute() / name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _libfuzzer(name: str, place: Path, arguments: list[str]) -> int:
    target = TARGETS[name]
    dictionary = place / "dictionary"
    dictionary.write_text("".join(f'"{_quoted(word)}"\n' for word in load(name).DICTIONARY), encoding="ascii")
    return _process(
        place, "child", name, f"-max_len={target.max_len}", f"-timeout={HANGS_S}", f"-rss_limit_mb={RSS_MB}",
        f"-dict={dictionary}", f"-artifact_prefix={place}/", "-print_final_stats=1", "-len_control=100", *arguments,
    )  # fmt: skip


def _process(place: Path, module: str, *arguments: str) -> int:
    """Run a target in a process of its own; its words go to `place/log`."""
    command = [sys.executable, "-m", f"{__package__}.{module}", *arguments]
    with (place / "log").open("wb") as log:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, env=environment, check=False).returncode


def _quoted(word: bytes) -> str:
    return "".join(chr(one) if 32 <= one < 127 and one not in b'"\\' else f"\\x{one:02x}" for one in word)


def _written(name: str, place: Path) -> Path:
    """The seeds as files, which is how libFuzzer takes them."""
    for index, seed in enumerate(load(name).seeds()):
        (place / f"seed-{index:03d}").write_bytes(seed)
    return place


def _near(path: Path) -> Path:
    """As somebody in the repository would type it."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def _there(directory: Path) -> list[str]:
    return [str(directory)] if directory.is_dir() else []


def _findings(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if FINDING.match(path.name)] if place.is_dir() else []


if __name__ == "__main__":
    sys.exit(main())
