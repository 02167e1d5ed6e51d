"""The systemd units and their neighbours: hardened by systemd's own measure, consistent, and fit for hearthd."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import fields
from support.caged import Unit, prefix
from support.hearthd import Hearthd

from hearth.config.exec import ExecTemplate
from hearth.config.model import LimitsConfig, load_config
from hearth.drivers.kinds import OWN
from hearth.drivers.programs import ProgramDriver

ROOT = Path(__file__).parents[2]
ACCESS = {kind.name: access for kind in OWN if (access := kind.machine().access) is not None}
PACKAGING = ROOT / "packaging"
SERVICE, SOCKET = PACKAGING / "systemd" / "hearth.service", PACKAGING / "systemd" / "hearth.socket"
SYSUSERS, TMPFILES = PACKAGING / "sysusers.d" / "hearth.conf", PACKAGING / "tmpfiles.d" / "hearth.conf"
RULES = PACKAGING / "udev" / "60-hearth.rules"
EXPOSURE = 17
"""Tenths, as --threshold= counts."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed: apt-get install systemd"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="users and owners are made by root alone")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)


def lines(path: Path) -> list[list[str]]:
    """The fields of the lines of a configuration of systemd's that are no comments."""
    return [line.split() for line in path.read_text("utf-8").splitlines() if line and not line.startswith("#")]


def test_every_unit_of_ours_that_a_text_names_is_one_that_is_shipped() -> None:
    units = list((PACKAGING / "systemd").iterdir())
    aliases = [alias for unit in units for alias in re.findall(r"^Alias=(.+)$", unit.read_text("utf-8"), re.MULTILINE)]
    shipped = {name for unit in (*units, *map(Path, aliases)) for name in (unit.name, unit.stem)}
    texts = [path for part in ("hearth", "actors", "drivers", "docs", "packaging") for path in (ROOT / part).rglob("*")]
    command = re.compile(r"systemctl ((?:--?\S+ |[a-z-]+ )+[a-z.@-]+(?: hearth[\w.]*)*)")
    named = {
        (path.name, unit)
        for path in [*texts, ROOT / "README.md"]
        if path.is_file() and path.suffix in (".py", ".md", ".toml", ".service", ".socket", "")
        for words in command.findall(path.read_text("utf-8"))
        for unit in words.split()
        if unit.startswith("hearth")
    }
    assert len(named) > 4
    assert {unit for _, unit in named} <= shipped, named


# --- by the tools' own word -----------------------------------------------------------------------------------------


@needs_systemd
def test_the_service_is_exposed_no_more_than_1_7_by_systemds_measure() -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}", SERVICE)
    assert done.returncode == 0, done.stdout
    level = re.search(r"exposure level for hearth\.service: (\d+\.\d)", done.stdout)
    assert level is not None
    assert float(level[1]) <= EXPOSURE / 10


@needs_systemd
def test_systemd_understands_every_line_of_the_units(tmp_path: Path) -> None:
    units = []
    for unit in (SERVICE, SOCKET):
        units.append(tmp_path / unit.name)
        units[-1].write_text(unit.read_text("utf-8").replace("/usr/bin/hearthd", "/bin/true"))
    done = run("systemd-analyze", "verify", "--man=no", *units)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "hearth" in line], done.stderr


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None, reason="systemd is not installed: apt-get install systemd"
)
@as_root
def test_sysusers_makes_every_user_and_group_that_the_units_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = run("systemd-sysusers", f"--root={tmp_path}", SYSUSERS)
    assert done.returncode == 0, done.stderr
    groups = {line.split(":")[0]: line.split(":")[3] for line in (tmp_path / "etc/group").read_text().splitlines()}
    users = {line.split(":")[0]: line for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    service = Unit(SERVICE)
    assert set(users) == {service.one("User")}
    assert users["hearth"].endswith("nologin")
    assert {service.one("Group"), *service.one("SupplementaryGroups").split()} <= set(groups)
    assert re.search(r"^SocketGroup=(.+)$", SOCKET.read_text("utf-8"), re.MULTILINE)[1] in groups  # type: ignore[index]
    assert {name for name, members in groups.items() if members == "hearth"} == {
        access.group for access in ACCESS.values()
    }


@pytest.mark.skipif(
    shutil.which("systemd-tmpfiles") is None, reason="systemd is not installed: apt-get install systemd"
)
@as_root
def test_tmpfiles_makes_the_directories_with_the_owners_that_matter(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    assert run("systemd-sysusers", f"--root={tmp_path}", SYSUSERS).returncode == 0
    done = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", TMPFILES)
    assert done.returncode == 0, done.stderr
    runtime, state = (tmp_path / "run/hearth").stat(), (tmp_path / "var/lib/hearth").stat()
    assert (runtime.st_uid, runtime.st_gid, runtime.st_mode & 0o7777) == (0, 0, 0o755), "nobody swaps the socket"
    assert state.st_uid != 0
    assert state.st_mode & 0o7777 == int(Unit(SERVICE).one("StateDirectoryMode"), 8)


def test_the_udev_rules_are_those_that_doctor_proposes() -> None:
    written = [line for line in RULES.read_text("utf-8").splitlines() if not line.startswith("#")]
    nodes = (
        ("/dev/gpiochip0", "gpio"),
        ("/dev/i2c-1", "i2c"),
        ("/dev/pwmchip0", "pwm"),
        ("/sys/dac", "dac"),
        ("/dev/spidev0.0", "spi"),
    )
    for path, kind in nodes:
        proposed = re.search(r"echo '(.+)' \|", "\n".join(ACCESS[kind].commands(path)))
        assert proposed is not None
        assert proposed[1] in written
    for name in ("ttyAMA", "ttyS", "ttyUSB", "ttyACM", "ttymxc", "ttyTHS", "ttySC", "ttyO", "ttyGS"):
        proposed = re.search(r"echo '(.+)' \|", "\n".join(ACCESS["uart"].commands(f"/dev/{name}0")))
        assert proposed is not None
        assert proposed[1].replace(f"{name}0", f"{name}[0-9]*") in written
    assert all(re.fullmatch(r'([\w{}]+(==|\+=|=)"[^"]+"(, )?)+', line) for line in written)


def test_what_the_rules_give_to_groups_is_what_the_cage_lets_through() -> None:
    service = Unit(SERVICE)
    assert set(service.one("SupplementaryGroups").split()) == {access.group for access in ACCESS.values()}
    allowed = {line.split()[0] for line in service.settings["DeviceAllow"]}
    kinds = set(re.findall(r'KERNEL=="(tty\w+)\[', RULES.read_text("utf-8")))
    assert {"char-gpiochip", "char-i2c", "char-pwm", "char-spi", *(f"char-{kind}" for kind in kinds)} <= allowed


def test_the_units_agree_with_each_other_and_with_the_daemon() -> None:
    service, text = Unit(SERVICE), SERVICE.read_text("utf-8")
    assert service.one("Type") == "notify"
    assert int(service.one("WatchdogSec")) > 0
    assert service.one("ExecReload") == "kill -HUP $MAINPID"
    assert "Requires=hearth.socket" in text
    assert "ListenStream=/run/hearth/hearth.sock" in SOCKET.read_text("utf-8")
    config = load_config(PACKAGING / "hearth.toml")
    assert float(service.one("TimeoutStopSec")) > config.limits.shutdown_grace_s + 10
    assert "Left open" in text
    for open_ in ("PrivateUsers=no", "PrivateDevices=no", "PrivateNetwork=no", "ProtectProc=default", "ProcSubset=all"):
        before = text[: text.index(f"\n{open_}")].splitlines()
        assert "Left open" in " ".join(before[-3:]), f"{open_} says why"


def test_what_may_be_kept_for_clients_is_half_of_the_memory_that_the_unit_allows() -> None:
    allowed = re.fullmatch(r"(\d+)G", Unit(SERVICE).one("MemoryMax"))
    assert allowed is not None
    limits = LimitsConfig()
    assert limits.max_retained_total_bytes * 2 == int(allowed[1]) << 30
    assert load_config(PACKAGING / "hearth.toml").limits.max_retained_total_bytes == limits.max_retained_total_bytes
    assert limits.max_retained_bytes * 2 <= limits.max_retained_total_bytes, "one principal does not take it all"


def test_a_program_that_runs_out_of_memory_or_forks_without_end_does_not_end_the_service() -> None:
    service = Unit(SERVICE)
    assert service.one("OOMPolicy") == "continue"
    programs = ProgramDriver.width * fields(ExecTemplate).max_processes.default
    assert 2 * programs < int(service.one("TasksMax")) <= 1024, "as many again for hearthd's own threads"


def test_a_crash_of_the_service_leaves_no_image_of_its_memory() -> None:
    assert Unit(SERVICE).one("LimitCORE") == "0"


@pytest.mark.proof
def test_the_shipped_configuration_loads_and_says_which_board(tmp_path: Path) -> None:
    config = PACKAGING / "hearth.toml"
    done = run(sys.executable, "-m", "hearth.actors.daemon", "--check", "--config", config)
    assert done.returncode == 0, done.stderr
    assert "configuration is good: board sim" in done.stdout
    # Every line that is commented out is a line that works.
    text = config.read_text("utf-8")
    for board in ("rpi4", "rpi5"):
        assert f'"{board}"' in text
    whole = re.sub(r"^#(\w+ = |\[)", r"\1", text, flags=re.MULTILINE)
    (tmp_path / "hearth.toml").write_text(whole)
    loaded = load_config(tmp_path / "hearth.toml")
    assert loaded.tls.listen is not None
    assert loaded.policy[0].name == "operators"
    assert loaded.files.write == (Path("/srv/hearth"),)


# --- hearthd in the cage --------------------------------------------------------------------------------------------

PROBE = """
import ctypes, json, mmap, os, socket, sys
def tried(work):
    try:
        work()
    except OSError as error:
        return error.errno
    return 0
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "packet": tried(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "netlink": tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()),
    "mount": tried(lambda: call("mount", b"none", b"/mnt", b"tmpfs", 0, None)),
    "unshare": tried(lambda: call("unshare", 0x10000000)),
    "writable and executable": tried(lambda: mmap.mmap(-1, 4096, prot=7)),
    "chown": tried(lambda: os.chown(sys.argv[1], os.getuid(), os.getgid())),
    "elsewhere": tried(lambda: open(sys.argv[2], "w")),
    "here": tried(lambda: open(sys.argv[1] + "/here", "w").close()),
    "status": {name: status[name].strip() for name in ("Seccomp", "NoNewPrivs", "CapBnd")},
}))
"""


@pytest.mark.slow
@needs_systemd
def test_the_cage_of_the_tests_is_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    elsewhere = tmp_path / "elsewhere"
    done = run(*prefix(SERVICE, state), sys.executable, "-c", PROBE, state, elsewhere)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["status"]["Seccomp"] == "2"
    assert found["status"]["NoNewPrivs"] == "1"
    for name in ("packet", "mount", "unshare", "chown"):
        assert found[name] == errno.EPERM, name
    assert found["writable and executable"] == errno.EACCES
    assert found["here"] == found["netlink"] == 0
    if os.geteuid() == 0:
        assert found["elsewhere"] == errno.EROFS
        assert int(found["status"]["CapBnd"], 16) == 0


@pytest.mark.proof
@needs_systemd
def test_hearthd_serves_in_the_cage_of_its_unit(tmp_path: Path, unmeasured: None) -> None:
    state = tmp_path / "state"
    files = state / "files"
    files.mkdir(parents=True)
    running = Hearthd(
        state,
        f'[files]\nread = ["{files}"]\nwrite = ["{files}"]\n[websocket]\nlisten = "127.0.0.1:0"\n'
        f'[http]\nlisten = "127.0.0.1:0"\n',
    )
    try:
        running.start(prefix=prefix(SERVICE, state))
        status = Path(f"/proc/{running.pid}/status").read_text()
        assert re.search(r"^Seccomp_filters:\s+[1-9]", status, re.MULTILINE), "the unit's filter holds"
        peer = running.peer()
        assert peer.health()["sandbox"]["state"] == "in force", "hearthd's own confinement holds inside the unit's"
        session = peer.open()
        for tool, args in {
            "gpio.set": {"line": "LED", "value": 1},
            "gpio.watch": {"line": 4, "edge": "rising", "count": 1, "timeout_ms": 50},
            "i2c.read": {"bus": 1, "addr": "0x48", "reg": 0, "len": 2},
            "uart.exchange": {"port": "uart0", "data": "KklETj8K", "until": "\n", "timeout_ms": 5000},
            "hw.sensor.read": {"sensor": "temperature"},
            "file.write": {"path": f"{files}/notes.txt", "data": "aGVsbG8K"},
            "sys.memory": {},
            "sys.network": {},
            "sys.disk": {},
            "proc.list": {},
        }.items():
            step = peer.run(session, tool, **args)
            assert step["status"] == "SUCCESS", (tool, step)
        refused = peer.run(session, "file.read", path=f"{files}/nothing.txt")
        assert refused["status"] == "FAILED"
        assert running.stop() == 0
        assert "Traceback" not in running.said
    finally:
        running.end()


# --- what the page says ---------------------------------------------------------------------------------------------

OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
DROP_INS = re.findall(r"^```ini\n# (\S+)\n(.+?)^```$", OPERATIONS, re.MULTILINE | re.DOTALL)


@needs_systemd
@pytest.mark.parametrize(("place", "text"), DROP_INS, ids=[place for place, _ in DROP_INS])
def test_a_drop_in_of_the_page_is_one_that_systemd_takes(tmp_path: Path, place: str, text: str) -> None:
    assert place.startswith("/etc/systemd/system/hearth.service.d/")
    unit = tmp_path / "hearth.service"
    unit.write_text(SERVICE.read_text("utf-8").replace("/usr/bin/hearthd", "/bin/true") + text)
    (tmp_path / "hearth.socket").write_text(SOCKET.read_text("utf-8"))
    done = run("systemd-analyze", "verify", "--man=no", unit, tmp_path / "hearth.socket")
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if "hearth" in line], done.stderr


def test_the_page_installs_every_file_by_hand_that_the_package_has() -> None:
    assert DROP_INS
    named = set(re.findall(r"packaging/(\S+) /etc/", OPERATIONS))
    here = {
        path.relative_to(PACKAGING).as_posix()
        for path in PACKAGING.rglob("*")
        if path.suffix in (".conf", ".rules", ".service", ".socket", ".toml")
    }
    assert named == here
    assert "ExecStart=/usr/bin/hearthd " in SERVICE.read_text("utf-8"), "what the page's sed looks for"
    assert "exposure is 1.7" in OPERATIONS


def test_who_reports_a_hole_is_sent_to_one_page() -> None:
    security = (ROOT / "SECURITY.md").read_text("utf-8")
    assert "docs/threat-model.md" in security
    for page in ("CONTRIBUTING.md", "docs/threat-model.md", "README.md"):
        assert "SECURITY.md" in (ROOT / page).read_text("utf-8")
