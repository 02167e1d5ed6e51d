"""docs/reference/audit.md says what is so: its log verifies, its commands run, its tables are complete."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from hearth.audit import keys, recovery
from hearth.audit.verify import head, verify

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "audit.md").read_text("utf-8")
SCRIPT = ROOT / "docs" / "verify-audit.sh"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language):
    return [text for name, text in BLOCKS if name == language]


@pytest.fixture
def place(bench, events, monkeypatch):
    """A directory with a signed log of several files, as the page assumes."""
    bench.key = bench.directory / "audit.log.key"
    bench.write(*events(40, pad="x" * 60), signed=True, checkpoint_every=10, rotate_bytes=4096)
    monkeypatch.chdir(bench.directory)
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    return bench


def run(script, *arguments):
    return subprocess.run(
        ["sh", "-ec", script, "sh", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_there_is_no_block_that_is_not_run():
    assert {name for name, _ in BLOCKS} == {"json", "sh", "python", "console"}


def test_the_log_on_the_page_is_a_log(tmp_path):
    (tmp_path / "audit.log").write_text(blocks("json")[0])
    report = verify(tmp_path / "audit.log")
    assert report.ok, report.first_bad
    assert report.records == 5


def test_the_result_on_the_page_is_that_of_the_log_on_the_page(tmp_path):
    (tmp_path / "audit.log").write_text(blocks("json")[0])
    (console,) = blocks("console")
    command, expected = console.split("\n", 1)
    shutil.copy(SCRIPT, tmp_path)
    done = subprocess.run(
        ["sh", "-c", command.removeprefix("$ ")], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == expected


def test_the_script_on_the_page_is_the_file(place):
    assert SCRIPT.read_text() in blocks("sh")
    assert os.access(SCRIPT, os.X_OK)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(blocks("sh"))))
def test_every_shell_block_runs(place, number):
    script = blocks("sh")[number]
    if "openssl" in script and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    done = run(script, *(file.name for file in place.files()))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [n for n, text in enumerate(blocks("sh")) if "audit.log" in text])
def test_every_shell_block_that_looks_at_a_log_can_fail(place, number):
    script = blocks("sh")[number]
    if "openssl" in script and shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    for file in place.files():
        forged = file.read_bytes().replace(b'"n":3,', b'"n":4,')
        file.write_bytes(re.sub(rb'"hash":"sha256:.', b'"hash":"sha256:x', forged))
    assert run(script, *(file.name for file in place.files())).returncode != 0


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_python_block_runs(place, number):
    exec(compile(blocks("python")[number], f"audit.md, python block {number}", "exec"), {})


def test_the_signed_message_is_as_described():
    assert keys.checkpoint_message(7, "sha256:h", "T") == b"hearth audit checkpoint\n7\nsha256:h\nT\n"
    described = "`hearth audit checkpoint`, the head's `seq`, the head's `hash`, and the checkpoint's own `ts`"
    assert described in " ".join(PAGE.split())


def test_the_name_of_a_key_is_as_described(place):
    from cryptography.hazmat.primitives import serialization

    public = serialization.load_pem_public_key(keys.public_path(place.key).read_bytes())
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    assert keys.load_or_create(place.key).key_id == "ed25519:" + hashlib.sha256(raw).hexdigest()[:16]


def test_the_numbers_on_the_page_are_those_of_the_code():
    from hearth.actors import journal
    from hearth.audit import backlog

    assert f"{backlog.MOST_KEPT:,} records or {backlog.MOST_KEPT_BYTES >> 20} MiB" in PAGE
    assert f"At most {recovery.MOST_NAMED:,};" in PAGE
    assert f"never more than {recovery.WINDOW >> 20} MiB" in PAGE
    assert journal.RETRY_S == 1


@pytest.mark.slow
def test_the_driven_outputs_on_the_page_can_be_read_and_are_made_safe_in_the_time_on_the_page(tmp_path):
    from hearth.actors.bus.outputs_file import OutputsFile
    from hearth.actors.runtime import OPEN_TIMEOUT

    (tmp_path / "audit.log.outputs").write_text(blocks("json")[1])
    outputs_file = OutputsFile(tmp_path / "audit.log.outputs")
    outputs_file.open(0.0)
    assert outputs_file.found.outputs == {"gpio:sim-header": (17, 18)}
    assert f"waits up to {OPEN_TIMEOUT:g} s" in PAGE


EVENT = re.compile(r'(?:"event":\s*|_?record\(\s*|\b_?audit\(\s*)"([a-z]+(?:\.[a-z]+)+)"')


def test_every_event_that_the_code_writes_is_on_the_page():
    written = set()
    for folder in ("actors", "hearth/audit"):
        for file in (ROOT / folder).rglob("*.py"):
            written.update(EVENT.findall(file.read_text("utf-8")))
    assert written >= {"task.submit", "daemon.recover", "audit.rotate", "audit.checkpoint", "audit.resume"}
    described = set(re.findall(r"^\| `([a-z]+\.[a-z.]+)` \|", PAGE, re.MULTILINE))
    assert written <= described


def test_the_fields_of_the_logs_own_records_are_on_the_page(place):
    rows = dict(re.findall(r"^\| `([a-z]+\.[a-z.]+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    seen = set()
    for record in place.records():
        if record["event"] in rows:
            seen.add(record["event"])
            own = list(record)[3:-1]
            assert [f"`{name}`" for name in own] == rows[record["event"]].split()
    assert seen == {"audit.rotate", "audit.checkpoint"}
    recover = recovery.Recovery(torn=place.path, known=(2, 2), in_flight=({"task_id": "t"},) * 1001).record()
    assert {f"`{name}`" for name in recover} - {"`event`"} == set(re.findall("`[a-z_]+`", rows["daemon.recover"]))


def test_the_head_is_what_the_page_says(place):
    assert head(place.path)[1] == "sha256:" + hashlib.sha256(place.lines()[-1]).hexdigest()
    assert json.loads(place.lines()[-1])["seq"] == head(place.path)[0]
