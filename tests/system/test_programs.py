"""Programs of proc.exec in a real hearthd: what they cannot reach, and that none outlives what it was run for.

The attacks are in tests/support/program_intruder.py, which is run as a program. Each must fail with the errno that its
rule promises, and each succeeds where the daemon was started with --no-sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import program_intruder
from support.confinement import as_root, needs_filters, needs_landlock
from support.hearthd import Hearthd, eventually
from support.program_intruder import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.hearthd import Peer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unmeasured")]

BOUND = 60
PYTHON = Path(sys.executable).resolve()
POLICY = '[[policy]]\nname = "here"\nmatch = { any = true }\nmax_risk = 3\nrate = { "proc.exec" = "1000/s" }\n'
ENABLE = '[tools]\nenable = ["proc.exec"]\n'
CASES = [(attack.__name__, expected) for expected, attacks in ATTACKS.items() for attack in attacks]


def template(name: str, argv: list[str], **keys: Any) -> str:
    """A [tools.exec] table; JSON's strings, arrays and booleans are TOML's."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in {"argv": argv, **keys}.items()]
    return "\n".join([f"[tools.exec.{name}]", *lines, ""])


def python(name: str, file: Path, *arguments: str, **keys: Any) -> str:
    """A template of a Python program; it may read its own directory."""
    return template(name, [str(PYTHON), "-I", "-S", str(file), *arguments], read=[str(file.parent)], **keys)


class Place:
    """A hearthd that runs programs, and what is around it."""

    def __init__(self, daemon: Hearthd, outside: Path) -> None:
        self.daemon, self.outside = daemon, outside
        self.known: dict[str, Any] = {"own": str(daemon.directory), "outside": str(outside)}
        self._peer: Peer | None = None
        self.session = ""

    def run(self, name: str, **params: str) -> Any:
        """Run a program; the step as task.get shows it."""
        return self.peer().run(self.session, "proc.exec", template=name, params=params)

    def peer(self) -> Peer:
        if self._peer is None:
            self._peer = self.daemon.peer()
            self.session = self._peer.open(max_risk_level=3)
        return self._peer


def launcher_of(pid: int) -> int:
    """The launcher is the child whose name says so."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            head, _, tail = (entry / "stat").read_text().rpartition(")")
            if head.endswith("(hearth-launcher") and int(tail.split()[1]) == pid:
                return int(entry.name)
    raise AssertionError("there is no launcher")


@contextlib.contextmanager
def serving(config: str, *arguments: str) -> Iterator[Place]:
    with (
        tempfile.TemporaryDirectory(prefix="hearth-own-") as own,
        tempfile.TemporaryDirectory(prefix="hearth-outside-") as outside,
    ):
        running = Hearthd(Path(own), ENABLE + config.replace("OUTSIDE", outside) + POLICY, audit="checkpoint_every = 1")
        for script, text in SCRIPTS.items():
            Path(outside, script).write_text(text)
        try:
            yield Place(running.start(*arguments), Path(outside))
        finally:
            running.end()


SCRIPTS = {
    "intruder.py": Path(program_intruder.__file__).read_text(),
    "stay.py": """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0 and sys.argv[2:]:
    if os.fork():
        os._exit(0)
with open(sys.argv[1], "a") as told:
    print(os.getpid(), file=told, flush=True)
while True:
    signal.pause()
""",
    "write.py": """
import os
for _ in range(2000):
    os.write(1, b"x" * 65536)
""",
}


@contextlib.contextmanager
def surrounded(*arguments: str) -> Iterator[Place]:
    params = '[tools.exec.intruder.params]\nattack = { pattern = "[a-z_]+" }\nplace = { pattern = "(?s:.*)" }\n'
    intruder = python("intruder", Path("OUTSIDE/intruder.py"), "{attack}", "{place}") + params
    with serving(intruder, *arguments) as place, contextlib.ExitStack() as stack:
        for name, kind, address in (
            ("named", socket.SOCK_STREAM, f"{place.outside}/named"),
            ("datagram", socket.SOCK_DGRAM, f"{place.outside}/datagram"),
            ("abstract", socket.SOCK_STREAM, f"\0{place.outside}"),
        ):
            made = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen()
            place.known[name] = address.lstrip("\0")
        pid = place.daemon.pid
        place.known |= {"daemon": pid, "launcher": launcher_of(pid)}
        # The key is made beside the start, not before it.
        eventually(Path(place.known["own"], "audit.log.key").exists, "the signing key")
        yield place


@pytest.fixture(scope="module")
def caged(unmeasured: None) -> Iterator[Place]:
    with surrounded() as place:
        yield place


@pytest.fixture(scope="module")
def free(unmeasured: None) -> Iterator[Place]:
    with surrounded("--no-sandbox") as place:
        yield place


def tried(place: Place, attack: str) -> str:
    step = place.run("intruder", attack=attack, place=json.dumps(place.known))
    assert step["status"] == "SUCCESS", step
    return str(step["result"]["stdout"]["text"]).strip()


@pytest.mark.proof
@needs_filters
@needs_landlock(6)
@pytest.mark.parametrize(("attack", "expected"), CASES)
def test_a_program_cannot(caged: Place, attack: str, expected: str) -> None:
    assert tried(caged, attack) == expected


@as_root
@pytest.mark.parametrize("attack", [attack for attack, _ in CASES])
def test_without_the_sandbox_a_program_can(free: Place, attack: str) -> None:
    assert tried(free, attack) == "done"


# --- how they end -----------------------------------------------------------------------------------------------------


STAY = python("stay", Path("OUTSIDE/stay.py"), "OUTSIDE/told", write=["OUTSIDE"], grace_ms=100) + python(
    "scatter", Path("OUTSIDE/stay.py"), "OUTSIDE/told", "twice", write=["OUTSIDE"], grace_ms=100
)


def begun(place: Place, name: str) -> tuple[str, list[int]]:
    """Submit a program that stays, with one that it has started; the task, and both process ids."""
    told = place.outside / "told"
    told.write_text("")
    peer = place.peer()
    task = peer.submit(place.session, ("proc.exec", {"template": name}))
    eventually(lambda: len(told.read_text().split()) == 2, "the program")
    return task, [int(word) for word in told.read_text().split()]


def assert_gone(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            waited = os.pidfd_open(pid)
            try:
                assert select.select([waited], [], [], BOUND)[0], f"process {pid} is still there"
            finally:
                os.close(waited)


@pytest.fixture(params=[(), ("--no-sandbox",)], ids=["caged", "free"])
def staying(request: pytest.FixtureRequest) -> Iterator[Place]:
    with serving(STAY, *request.param) as place:
        yield place


@pytest.mark.proof
@pytest.mark.parametrize("name", ["stay", "scatter"])
def test_a_program_that_ignores_sigterm_ends_with_its_task_and_so_does_what_it_started(
    staying: Place, name: str
) -> None:
    task, pids = begun(staying, name)
    peer = staying.peer()
    here = {"session_id": staying.session, "task_id": task}
    peer.call("task.cancel", here)
    ended = peer.wait(staying.session, task)
    assert_gone(pids)
    (step,) = ended["steps"]
    assert (ended["status"], step["status"]) == ("CANCELLED", "FAILED")
    assert step["error"] == f"{name} was ended because its task was cancelled"
    assert (step["error_data"]["effect"], step["error_data"]["signal"]) == ("unknown", "SIGKILL")
    finish = staying.daemon.recorded(event="task.step.finish", task_id=task)
    assert (finish["status"], finish["effect"]) == ("FAILED", "unknown")


@pytest.mark.proof
@pytest.mark.parametrize(
    "end",
    [
        lambda place: place.peer().call("session.close", {"session_id": place.session}),
        lambda place: place.daemon.stop(),
        lambda place: place.daemon.kill(),
    ],
    ids=["session", "daemon", "killed daemon"],
)
def test_no_program_outlives(staying: Place, end: Callable[[Place], Any]) -> None:
    _, pids = begun(staying, "scatter")
    end(staying)
    assert_gone(pids)


@pytest.mark.proof
def test_a_task_that_takes_too_long_ends_its_program(staying: Place) -> None:
    told = staying.outside / "told"
    peer = staying.peer()
    task = peer.submit(staying.session, ("proc.exec", {"template": "stay"}), max_duration_ms=1_000)
    ended = peer.wait(staying.session, task)
    assert (ended["status"], ended["steps"][0]["status"]) == ("FAILED", "FAILED")
    assert ended["steps"][0]["error_data"]["cancelled"]
    assert_gone([int(word) for word in told.read_text().split()] if told.exists() else [])


@pytest.mark.proof
def test_after_all_were_killed_at_once_the_next_start_ends_what_is_left(staying: Place) -> None:
    _, pids = begun(staying, "stay")
    launcher = launcher_of(staying.daemon.pid)
    # Both cannot be waiting for each other: neither gets to do anything.
    os.kill(launcher, signal.SIGSTOP)
    staying.daemon.signal(signal.SIGKILL)
    os.kill(launcher, signal.SIGKILL)
    staying.daemon.wait()
    left = next(pid for pid in pids if os.getpgid(pid) != pid)
    assert_gone([pid for pid in pids if pid != left])
    os.kill(left, 0)
    # Also where it does not run programs any more.
    staying.daemon.config.write_text(staying.daemon.config.read_text().replace(ENABLE, ""))
    staying.daemon.start()
    assert_gone([left])
    assert "a program of an earlier run, killed" in staying.daemon.said


# --- how much they may use --------------------------------------------------------------------------------------------


def test_what_a_program_prints_is_counted_and_only_its_beginning_kept() -> None:
    with serving(python("write", Path("OUTSIDE/write.py"), max_output_bytes=10)) as place:
        step = place.run("write")
        assert step["result"]["stdout"] == {"text": "x" * 10, "bytes": 2000 * 65536, "truncated": True}
        assert place.daemon.memory() < 200


@as_root
@needs_filters
@needs_landlock(6)
def test_a_program_that_multiplies_stays_within_its_bound_and_ends() -> None:
    # As the user nobody, since the kernel does not count what root starts.
    script = "while :; do (read never <> OUTSIDE/fifo) & echo $!; done"
    multiply = template("multiply", ["/bin/sh", "-c", script], write=["OUTSIDE"], max_processes=20)
    with serving('[sandbox]\nprogram_user = "nobody"\n' + multiply) as place:
        os.mkfifo(place.outside / "fifo")
        place.outside.chmod(0o755)
        (place.outside / "fifo").chmod(0o666)
        step = place.run("multiply")
        told = step["error_data"]
        assert "Cannot fork" in told.get("stderr", {"text": step["error"]})["text"], told
        pids = [int(word) for word in told["stdout"]["text"].split()]
        # Of one user: another process of nobody's that ends meanwhile makes room for one more.
        assert 10 < len(pids) < 40
        assert_gone(pids)
        assert place.peer().health()


def test_where_a_program_could_reach_what_is_the_daemons_it_does_not_start() -> None:
    show = template("show", ["/bin/cat"], read=[tempfile.gettempdir()])
    refused = pytest.raises(AssertionError, match=r"it could read .*, and so .*/hearth-own-.*, which is hearthd's own")
    with refused, serving(show):
        pass


# --- their cgroup ---------------------------------------------------------------------------------------------------


def _cgroups() -> Path | None:
    """Where this machine's cgroups of version 2 can be made, or None."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" and os.access(mount[1], os.W_OK)), None)


def _cgroup_of(pid: int) -> str:
    return next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))


@as_root
@pytest.mark.skipif(_cgroups() is None, reason="cgroups of version 2 cannot be made here: mount -t cgroup2 none DIR")
@pytest.mark.parametrize("delegated", [True, False])
def test_where_the_cgroup_is_delegated_programs_have_one_of_their_own(tmp_path: Path, delegated: bool) -> None:
    root = _cgroups()
    assert root is not None
    own = root / f"hearth-{os.getpid()}"
    own.mkdir()
    if delegated:
        os.setxattr(own, "user.delegate", b"1")
    daemon = Hearthd(tmp_path, ENABLE + template("true", ["/bin/true"]) + POLICY)
    try:
        daemon.start("--no-sandbox", prefix=["sh", "-c", f'echo $$ > {own}/cgroup.procs; exec "$@"', "sh"])
        assert _cgroup_of(launcher_of(daemon.pid)) == (f"/{own.name}/programs" if delegated else f"/{own.name}")
        assert _cgroup_of(daemon.pid) == f"/{own.name}"
        peer = daemon.peer()
        assert peer.run(peer.open(max_risk_level=3), "proc.exec", template="true")["status"] == "SUCCESS"
    finally:
        daemon.end()
        eventually(lambda: not (own / "cgroup.procs").read_text(), "the end of what ran there")
        for place in (own / "programs", own):
            with contextlib.suppress(FileNotFoundError):
                place.rmdir()
