"""The command in this process, against a real hearthd in another."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pytest

from hearth.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEARTH = Path(sys.executable).parent / "hearth"


class House(NamedTuple):
    """A daemon on the sim board, and where it keeps what."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def socket(self) -> Path:
        return self.folder / "hearth.sock"

    @property
    def log(self) -> Path:
        return self.folder / "audit.log"

    @property
    def config(self) -> Path:
        return self.folder / "hearth.toml"

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def records(self) -> list[dict]:
        """The audit log, without the checkpoints, which may come anywhere."""
        records = [orjson.loads(line) for line in self.log.read_bytes().splitlines()]
        return [record for record in records if record["event"] != "audit.checkpoint"]


def start(folder: Path, more: str = "") -> House:
    (folder / "shared").mkdir()
    (folder / "hearth.toml").write_text(
        f'[server]\nsocket = "{folder}/hearth.sock"\n[board]\nprofile = "sim"\n'
        f'[audit]\npath = "{folder}/audit.log"\ncheckpoint_every = 20\n'
        f'[files]\nread = ["{folder}/shared"]\nwrite = ["{folder}/shared"]\n{more}'
    )
    command = [sys.executable, "-m", "hearth.actors.daemon", "--config", str(folder / "hearth.toml")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("hearthd: ready on "):
            return House(folder, process)
    raise AssertionError(f"hearthd did not start:\n{said}")


def stop(house: House) -> None:
    house.process.send_signal(signal.SIGTERM)
    try:
        house.process.communicate(timeout=30)
    finally:
        house.process.kill()


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One for all tests of a module, which may have more to say in its configuration: CONFIG."""
    house = start(tmp_path_factory.mktemp("house"), getattr(request.module, "CONFIG", ""))
    yield house
    stop(house)


@pytest.fixture
def own_house(tmp_path: Path) -> Iterator[Callable[..., House]]:
    """A daemon for one test alone."""
    made: list[House] = []

    def make(more: str = "") -> House:
        made.append(start(tmp_path, more))
        return made[-1]

    yield make
    for house in made:
        stop(house)


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return orjson.loads(self.out)

    @property
    def documents(self) -> list:
        return [orjson.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Answer]:
    """Runs `hearth ARGS…` here; no test sees the tester's own daemon, log or environment."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    for name in ("HEARTH_ADDRESS", "HEARTH_SOCKET", "HEARTH_TOKEN", "HEARTH_TRACEBACK", "NO_COLOR", "STATE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path / "nowhere"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))

    def run(*args: object, stdin: bytes | None = None) -> Answer:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Answer(exit_.value.code, out, err)

    return run


@pytest.fixture
def at_home(cli: Callable[..., Answer], house: House, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The same, with the module's daemon as the one that is found."""
    monkeypatch.setenv("HEARTH_SOCKET", str(house.socket))
    return cli


@contextlib.contextmanager
def process(*args: object, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """`hearth ARGS…` as a process of its own, which does not outlive the test."""
    with subprocess.Popen(
        [str(HEARTH), *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.fixture
def hearth_process(house: House) -> Callable[..., contextlib.AbstractContextManager[subprocess.Popen[str]]]:
    return lambda *args: process(*args, HEARTH_SOCKET=str(house.socket))
