"""The command in this process, against a real hearthd in another."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
from support.hearthd import Hearthd

from hearth.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEARTH = Path(sys.executable).parent / "hearth"


class Daemon(Hearthd):
    """A daemon on the simulated board, with a directory that tools may use."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.shared = directory / "shared"
        self.shared.mkdir()
        shared = f'[files]\nread = ["{self.shared}"]\nwrite = ["{self.shared}"]\n'
        super().__init__(directory, f'[board]\nprofile = "sim"\n{shared}{config}', audit="checkpoint_every = 20")

    def records(self, **like: Any) -> list[dict[str, Any]]:
        """The audit log, without the checkpoints, which may come anywhere."""
        return [record for record in super().records(**like) if record["event"] != "audit.checkpoint"]


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests of a module, which may have more to say in its configuration: CONFIG."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), getattr(request.module, "CONFIG", ""))
    daemon.start()
    yield daemon
    daemon.end()


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A daemon for one test alone."""
    made: list[Daemon] = []

    def make(config: str = "") -> Daemon:
        made.append(Daemon(tmp_path, config))
        made[-1].start()
        return made[-1]

    yield make
    for daemon in made:
        daemon.end()


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
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Answer]:
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
def local_cli(cli: Callable[..., Answer], daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """The same, with the module's daemon as the one that is found."""
    monkeypatch.setenv("HEARTH_SOCKET", str(daemon.socket))
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
def hearth_process(daemon: Daemon) -> Callable[..., contextlib.AbstractContextManager[subprocess.Popen[str]]]:
    return lambda *args: process(*args, HEARTH_SOCKET=str(daemon.socket))
