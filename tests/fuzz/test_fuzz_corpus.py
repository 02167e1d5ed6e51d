"""The fuzz targets without a fuzzer: every input that is kept, and some thousands of fresh ones, keep every promise."""

import importlib.util
import random
import re
import subprocess
import sys
import time
import tomllib

import pytest

from fuzz import ROOT, mutation
from fuzz.__main__ import INSTALL, executions, name_current, reason
from fuzz.targets import CORPUS, TARGETS, kept, load
from hearth.config.model import Config
from hearth.errors import HearthError

FRESH = {
    "wire": 800,
    "config": 300,
    "board": 250,
    "modbus": 800,
    "amqp": 400,
    "card": 300,
    "hcp": 600,
    "audit": 300,
    "mcp": 400,
}
"""Of each target as many as a second of processor time, or half of one, is good for."""
MOST_BYTES = 200 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_input_that_was_kept_keeps_the_promises_of_its_target(name):
    check = load(name).check
    for file, data in kept(name).items():
        try:
            check(data)
        except Exception as error:
            error.add_note(f"the input is tests/fuzz/corpus/{name}/{file}")
            raise


@pytest.mark.proof
@pytest.mark.parametrize("name", TARGETS)
def test_what_the_seeds_become_by_mutation_keeps_the_promises_of_its_target(name):
    module, rng = load(name), random.Random(name)
    inputs = [*module.seeds(), *kept(name).values()]
    for seed in module.seeds():
        module.check(seed)
    slowest = 0.0
    for number in range(FRESH[name]):
        data = rng.choice(inputs)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = module.mutate(data, rng)
        begun = time.process_time()
        try:
            module.check(data)
        except Exception as error:
            error.add_note(f"mutation {number} of target {name}: {data[:2000]!r}")
            raise
        slowest = max(slowest, time.process_time() - begun)
    # No measure of speed: what hangs takes for ever, and the runner's bound is this one.
    assert slowest < 1


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_of_a_target_reach_past_its_parser(name):
    """Oracles that are handed refusals only would agree with anything."""
    module = load(name)
    accepted = {
        "wire": lambda data: b'"method":"session.open"' in data,
        "config": lambda data: module._load(data) is not None,
        "board": lambda data: module.parse_profile(tomllib.loads(data.decode()), "it") is not None,
        "modbus": lambda data: len(data) > 2,
        "amqp": lambda data: len(module._told(module._machine(data[0]), [data[2:]])) > 2,
        "card": lambda data: module.read_card(data)[1] == [],
        "hcp": lambda data: data[:1] != b"t" and module.read_message(module.load(data)) is not None,
        "audit": lambda data: data.count(b"\n") > 3,
        "mcp": lambda data: module._job(module.types.CallToolRequestParams.model_validate_json(data)) is not None,
    }[name]
    good = 0
    for seed in module.seeds():
        try:
            good += bool(accepted(seed))
        except (ValueError, HearthError):
            continue
    assert good


def unread(config):
    return to_toml(config).replace("read = [", "# read = [")


to_toml = Config.to_toml
PLANTED = {
    "wire": ("hearth.protocol.framing.LineFramer._overflows", lambda framer, rest: framer._pending.extend(rest)),
    "config": ("hearth.config.model.Config.to_toml", unread),
    "board": ("hearth.tables.Table.done", lambda table, **packages: None),
    "modbus": ("hearth.drivers.modbus.codec.TcpFraming._fault_of", lambda framing, unit, pdu: None),
    "amqp": ("hearth.amqp.framing.FrameReader.feed", lambda reader, data: reader._buffer.extend(data[:64])),
    "card": ("hearth.agentcard.validate._CAPABILITY", re.compile("(?s).*")),
    "hcp": ("hearth.hcp.codec._session_id", lambda document, kind: None),
    "audit": ("hearth.audit.verify._ChainCheck._link", lambda check, seq, prev: None),
    "mcp": ("hearth.actors.step.args_hash", lambda args: "sha256:" + "0" * 64),
}
"""A bug for each target, of the kind that raises nothing."""


@pytest.mark.parametrize("name", TARGETS)
def test_the_oracle_of_a_target_finds_a_bug_that_was_planted(name, monkeypatch):
    module, rng = load(name), random.Random(name)
    seeds = module.seeds()
    monkeypatch.setattr(*PLANTED[name])

    def look():
        for _ in range(2000):
            module.check(module.mutate(rng.choice(seeds), rng))

    with pytest.raises((AssertionError, HearthError)):
        look()


def test_the_corpus_is_small_and_named():
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    assert {path.parent.name for path in files} <= set(TARGETS)
    # Findings are called what they were; the rest is by its hash, as `--merge` writes it.
    assert [path.name for path in files if not re.fullmatch("[0-9a-f]{40}|finding-[a-z0-9-]+", path.name)] == []


def test_the_figures_are_those_of_libfuzzers_log():
    log = "#2\tINITED cov: 7 ft: 9\n#100\tNEW    cov: 12 ft: 19\n==1== ERROR: libFuzzer: timeout\n"
    assert executions(log) == (100, 12)
    assert executions(log + "stat::number_of_executed_units: 150\n") == (150, 12)
    assert executions("") == (0, 0)
    assert reason(log) == "==1== ERROR: libFuzzer: timeout"
    assert reason("AssertionError: a promise\n" + log) == "AssertionError: a promise"


def run(*arguments):
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_a_target_that_there_is_not_is_told_with_those_there_are():
    done = run("wires")
    assert done.returncode == 2
    assert "there is no target 'wires'; there are wire, config" in done.stderr


@pytest.mark.proof
def test_a_target_runs_under_libfuzzer_and_tells_what_it_did(tmp_path, unmeasured):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(f"atheris is not installed (it has no wheel for every machine): {INSTALL}")
    done = run(
        "wire", "--runs", "300", "--seed", "1", "--corpus", str(tmp_path / "corpus"), "--artefacts", str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"^wire +([0-9]+) +[0-9]+ +[0-9]+ +([0-9]+) +0$", done.stdout, re.MULTILINE)
    assert told, done.stdout
    assert int(told[1]) >= 300
    assert int(told[2]) > 100, "nothing of hearth was instrumented"
    assert list((tmp_path / "corpus").iterdir()), "libFuzzer keeps what reached something new"


@pytest.mark.proof
def test_an_input_that_breaks_a_promise_is_kept_and_told(tmp_path, monkeypatch):
    if importlib.util.find_spec("atheris") is None:
        pytest.skip(f"atheris is not installed (it has no wheel for every machine): {INSTALL}")
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\nfrom tests.fuzz import child\nfrom tests.fuzz.targets import wire\n"
        "def check(data):\n    assert b'tool.list' not in data, 'a promise was broken'\n"
        "wire.check = check\nchild.main()\n"
    )
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    (seeds / "one").write_bytes(b'\x06\x03{"method":"tool.list"}\n')
    command = [sys.executable, str(broken), "wire", "-runs=100", f"-artifact_prefix={tmp_path}/", str(seeds)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/tests", "PATH": ""}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode != 0
    assert reason(done.stdout + done.stderr) == "AssertionError: a promise was broken"
    assert [path for path in tmp_path.glob("crash-*") if b"tool.list" in path.read_bytes()]


@pytest.mark.proof
def test_what_was_kept_is_changed_and_looked_at_without_a_tracer(tmp_path):
    done = run("wire", "--untraced", "--runs", "300", "--corpus", str(tmp_path / "c"), "--artefacts", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^wire +300 +[0-9]+ +[0-9]+ +0 +0$", done.stdout, re.MULTILINE), done.stdout
    wrong = run("wire", "--untraced")
    assert wrong.returncode == 2
    assert "--untraced wants --runs: how many of each target" in wrong.stderr


@pytest.mark.proof
@pytest.mark.parametrize(
    ("does", "what"),
    [
        ("raise AssertionError('broken')", "AssertionError: broken"),
        ("while 1: pass", "tests.fuzz.targets.Hang: more than 1.0 s"),
        ("import os; os.abort()", "Fatal Python error: Aborted"),
    ],
)
def test_an_input_that_breaks_a_promise_takes_for_ever_or_kills_is_kept_without_a_tracer(tmp_path, does, what):
    broken = tmp_path / "broken.py"
    broken.write_text(
        "from tests.fuzz import untraced\nfrom tests.fuzz.targets import wire\n"
        f"def check(data):\n    print(data, flush=True)\n    {does}\nwire.check = check\nuntraced.main()\n"
    )
    done = subprocess.run(
        [sys.executable, str(broken), str(tmp_path), "wire", "10", "7"],
        capture_output=True, text=True, timeout=60, check=False, env={"PYTHONPATH": f"{ROOT}:{ROOT}/tests"},
    )  # fmt: skip
    assert done.returncode != 0
    assert reason(done.stderr) == what
    # Who is killed says nothing more.
    assert ("stat::number_of_executed_units: 0" in done.stdout) is ("abort" not in does)
    name_current(tmp_path)
    (kept,) = tmp_path.glob("crash-*")
    assert done.stdout.splitlines()[0] == repr(kept.read_bytes())
    name_current(tmp_path)  # there is nothing more to name


@pytest.mark.parametrize("deep", [b"[" * 300 + b"]" * 300, b'{"a":' * 300 + b"1" + b"}" * 300])
def test_a_document_that_is_too_deep_to_be_written_is_changed_as_bytes(monkeypatch, deep):
    written = []
    monkeypatch.setattr(mutation, "tree", lambda value, *_more: written.append(value))
    made = {mutation.json_of(deep, random.Random(seed), []) for seed in range(20)}
    assert len(made) > 10
    assert not written
