"""What must be so after a daemon was killed: read from its log, its tape and its clients, without the runtime's code.

`Log` reads the files as anybody could; `agree` asks the two verifiers that hearth offers, its own and the one of the
docs that needs only a shell and sha256sum, for the same verdict on the same bytes. `after_kill` judges what a killed
life left, `at_the_end` the whole of a deployment once a last life has recovered it. A breach is an AssertionError that
says what broke.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from hearth.audit.verify import verify
from hearth.cli.main import cli as hearth_command

if TYPE_CHECKING:
    from crash.deployment import Deployment

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "verify-audit.sh"


class Log:
    """The records of a log, up to the first bytes that are none."""

    def __init__(self, path: Path) -> None:
        older = sorted(path.parent.glob(f"{path.name}.0*"))
        self.path = path
        self.files = [file for file in (*older, path) if file.exists()]
        self.records: list[dict[str, Any]] = []
        self.lines: list[bytes] = []
        self.torn = False
        prev = "0" * 64
        for file in self.files:
            content = file.read_bytes()
            assert not self.torn, f"{file.name} follows a torn end"
            *lines, rest = content.split(b"\n")
            self.torn = bool(rest)
            for line in lines:
                record = json.loads(line)
                assert record["seq"] == len(self.records) + 1, f"{file.name}: seq {record['seq']}"
                assert record["prev"] == f"sha256:{prev}", f"{file.name}: record {record['seq']} does not follow"
                prev = sha256(line).hexdigest()
                self.records.append(record)
                self.lines.append(line)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]

    def tasks(self, event: str) -> set[str]:
        return {record["task_id"] for record in self.of(event)}

    def hashes(self) -> Counter[str]:
        """How often a step with these args was begun."""
        return Counter(record["args_hash"] for record in self.of("task.step.start"))

    def in_flight(self) -> set[str]:
        """Tasks without an end, of all runs."""
        return self.tasks("task.submit") - self.tasks("task.finish")

    def named(self) -> Counter[str]:
        """How often a task was named by a recovery as having been in flight."""
        return Counter(task["task_id"] for record in self.of("daemon.recover") for task in record["in_flight"])


def agree(log: Log, *, command: bool = False) -> None:
    """The shell's verdict, `verify`'s, and with `command` that of `hearth audit verify` as it is typed, are one."""
    if not log.files or not any(file.stat().st_size for file in log.files):
        return  # a log without a byte: the script has nothing to say about it
    report = verify([log.path])
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), *map(str, log.files)], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode == 0) == report.ok, f"the shell says {done.stdout!r}, verify {report.first_bad}"
    if report.ok:
        assert report.head is not None
        assert done.stdout == f"ok: the last record is {report.head[0]}, its hash {report.head[1]}\n"
    else:
        bad = report.first_bad
        assert done.stdout.startswith(f"{bad.file}: line {bad.line}: "), f"the shell: {done.stdout!r}, verify: {bad}"
        assert "torn" in done.stdout, done.stdout
        assert "torn" in bad.reason, bad
    if command:
        result = CliRunner().invoke(hearth_command, ["audit", "verify", str(log.path)])
        assert (result.exit_code == 0) == report.ok, result.output


def after_kill(deployment: Deployment, *, shell: bool = True, command: bool = False) -> Log:
    """Judge what a killed life left, before anybody repairs it."""
    log = Log(deployment.log)
    if shell:
        agree(log, command=command)
    _nothing_told_is_missing(deployment, log)
    if deployment.durability != "relaxed":
        _nothing_done_is_unrecorded(deployment, log)
        _driven_outputs_are_written_down(deployment)
    return log


def at_the_end(deployment: Deployment, *, shell: bool = True, command: bool = False) -> Log:
    """Judge the whole log, after a last life that ended as it should."""
    log = Log(deployment.log)
    assert not log.torn, "the last life left a torn end"
    own = ("audit.checkpoint", "audit.rotate")
    said = [record["event"] for record in log.records if record["event"] not in own]
    assert said[-1] == "daemon.stop", f"the last life ended with {said[-1]}"
    if shell:
        agree(log, command=command)
    _nothing_told_is_missing(deployment, log)
    if deployment.durability != "relaxed":
        _nothing_done_is_unrecorded(deployment, log)
    unnamed = log.in_flight() - set(log.named())
    assert not unnamed, f"in flight when a life was killed, and named by no recovery: {unnamed}"
    assert set(log.named()) <= log.in_flight(), "a recovery names a task that had ended"
    assert all(count == 1 for count in log.named().values()), "a task is named by two recoveries"
    public = Path(f"{deployment.log}.key.pub")
    if public.exists():
        report = verify([deployment.log], public)
        assert report.ok, f"a checkpoint's signature: {report.first_bad}"
        assert report.checkpoints
    leftover = [path.name for path in deployment.logs.iterdir() if path.name.endswith((".new", ".next"))]
    assert not leftover, f"drafts that nobody takes away: {leftover}"
    return log


def _nothing_told_is_missing(deployment: Deployment, log: Log) -> None:
    submitted, ends = log.tasks("task.submit"), {r["task_id"]: r["status"] for r in log.of("task.finish")}
    starts = Counter(r["task_id"] for r in log.of("task.step.start"))
    for client in deployment.clients:
        # Records are written in the order of the acknowledgements: with "relaxed" the newest may be missing.
        missing = [told.task_id not in submitted for told in client.tasks.values()]
        if deployment.durability == "relaxed":
            assert missing == sorted(missing), "an acknowledged task is missing, and a later one is there"
            continue
        assert not any(missing), "an acknowledged task is missing from the log"
        for told in client.tasks.values():
            assert starts[told.task_id] >= told.started, "a client was told of a step that is not in the log"
            if told.status is not None:
                assert ends.get(told.task_id) == told.status, "a client was told of an end that is not in the log"


def _nothing_done_is_unrecorded(deployment: Deployment, log: Log) -> None:
    hashes = log.hashes()
    for token in traced(deployment.entries()):
        assert hashes[deployment.intended[token][0]] == 1, f"the device was written to ({token}), and no record says so"
    for path in deployment.place.iterdir():
        if path.name in deployment.intended:
            assert hashes[deployment.intended[path.name][1]] == 1, f"{path.name} was written, and no record says so"
    sets = sum(record["tool"] == "gpio.set" for record in log.of("task.step.start"))
    assert sets >= sum(entry.get("device") == "gpio" for entry in deployment.entries()), "a line was driven unrecorded"


def traced(entries: list[dict[str, Any]]) -> list[str]:
    """The tokens that reached the I2C device, in order."""
    return [bytes.fromhex(entry["data"])[1:].decode() for entry in entries if entry.get("device") == "i2c"]


def _driven_outputs_are_written_down(deployment: Deployment) -> None:
    """A life that was killed before it made its outputs safe leaves the next one a list of them."""
    entries = deployment.entries()
    begun = max(number for number, entry in enumerate(entries) if "life" in entry)
    driven = {entry["line"] for entry in entries[begun:] if entry.get("device") == "gpio"}
    file = Path(f"{deployment.log}.outputs")
    if any("safe" in entry for entry in entries[begun:]) or not driven:
        return
    assert file.exists(), f"lines {driven} were driven, and nothing says so to the next life"
    listed = {line for lines in json.loads(file.read_bytes())["outputs"].values() for line in lines}
    assert driven <= listed, f"lines {driven - listed} were driven, and the next life is not told"
