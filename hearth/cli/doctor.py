"""`hearth doctor`: checks of the daemon and of this machine, with cures. It needs no daemon and changes nothing.

It also checks the machine's own devices, with those that no daemon serves: the devices that exist, the processes that
use them, missing permissions of this user, the fit of a board profile (--board, or the one of --config), and the gaps
in its physical safety. And it checks confinement: the kernel's features, the plan of a daemon with this configuration,
and the state of the running daemon.

Each check is OK, WARN or FAIL and, unless it is OK, has a cure. Exit code: 0 if no check failed, 1 if one failed, and
3 if a daemon was named (--to, --socket, HEARTH_ADDRESS, HEARTH_SOCKET, --config) and does not answer. Without a named
daemon, a default socket without a daemon is only a WARN.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import struct
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from attrs import asdict, evolve, frozen

from hearth._util.files import ownership_fault
from hearth._version import __version__
from hearth.audit.files import backward, directory_fault, parse
from hearth.audit.record import Record, digest
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, UNREACHABLE, Options, interruptible, session, standard
from hearth.config.model import Config, default_socket, default_state_dir, load_config
from hearth.errors import CarrierError, ConfigError, RpcError
from hearth.extras import extras_of
from hearth.policy.principal import from_uid
from hearth.policy.rules import owner_without_entry
from hearth.transport.address import UnixAddress, WebSocketAddress

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.transport.address import Address


COLOURS = {"OK": "green", "WARN": "yellow", "FAIL": "red"}
DAEMON = "daemon"
"""The name of the check whose failure is exit code 3."""


@click.command()
@click.option("--config", metavar="FILE", help="The daemon's hearth.toml: its socket, its log, its board.")
@click.option("--board", metavar="NAME", help="A board profile: does it fit this machine? (Else that of --config.)")
@standard
def doctor(options: Options, config: str | None, board: str | None) -> int:
    """Check this machine's hardware, socket, daemon, buses, confinement and audit log, each with what to do about it.

    Exits with 1 if a check failed, and with 3 if a daemon was named and none answers there.
    """
    examination = Examination(options, config, board)

    async def work() -> int:
        checks = await examination.run()
        failed = any(check.state == "FAIL" for check in checks)
        if options.json:
            click.echo(common.compact(examination.to_json(checks)))
        else:
            click.echo("\n".join(lines(checks)))
        unreachable = any(check.name == DAEMON and check.state == "FAIL" for check in checks)
        return UNREACHABLE if unreachable else FAILED if failed else DONE

    return interruptible(work)


class Examination:
    """All checks for one daemon, its configuration and this machine. Raises ConfigError for a bad file or profile."""

    def __init__(self, options: Options, config: str | None, board: str | None) -> None:
        self.config = Config() if config is None else load_config(Path(config), any_owner=True)
        self._file = None if config is None else Path(config)
        if config is not None and options.named_by == "default":
            socket = self.config.server.socket or default_socket(os.environ, os.geteuid())
            options = evolve(options, where=str(socket), named_by="--config")
        self.options = options
        self.address = options.address
        # Before the daemon is contacted: an invalid profile is a usage error, not a finding.
        self.hardware = look_at_hardware(board or (None if config is None else self.config.board.profile))
        self.confinement = look_at_confinement(self.config)

    @property
    def log(self) -> Path:
        """Return the path of the audit log. Raises ConfigError for a user without a home, where none is configured."""
        return self.config.audit.path or default_state_dir(os.environ, os.geteuid()) / "audit.log"

    async def run(self) -> list[Check]:
        """Return the findings. Contacts the daemon, if there is one."""
        checks = [Check("OK", "hearth", f"version {__version__}")]
        checks += check_address(self.address, self.options.named_by)
        checks += await _ask_daemon(self.options)
        try:
            checks += [check_state(self.log.parent), check_log(self.log, expected=self._file is not None)]
        except ConfigError as error:  # a user without a home
            finding, _, cure = str(error).partition("; ")
            checks.append(Check("WARN", "state", finding, cure))
        checks += [*self._trust(), *self._owner()]
        checks += [*check_tpm(self.config.attest.tpm), *check_extras(self.config)]
        return [*checks, *hardware_checks(self.hardware), *machine_checks(self.confinement)]

    def _trust(self) -> Iterator[Check]:
        """Yield a finding for each place where users other than root and the daemon's could change what it does."""
        trusted = {os.geteuid()}
        state: Literal["WARN", "FAIL"] = "WARN"  # without a daemon: it may be for another user
        with contextlib.suppress(OSError):
            if isinstance(self.address, UnixAddress):
                trusted.add(self.address.path.stat().st_uid)
                state = "FAIL"
        faults: list[str | None] = []
        with contextlib.suppress(ConfigError):
            faults.append(directory_fault(self.log, self.config.audit.key or Path(f"{self.log}.key"), trusted))
        profile = import_module("hearth.drivers.boards").profile_file(self.config.board.profile)
        for path in (self._file, profile, *(path for _, path in self.config.named_files())):
            if path is None:
                continue
            with contextlib.suppress(OSError):  # one that is missing is the finding of another check
                faults.append(ownership_fault(path, trusted))
        for finding, _, cure in (fault.partition("; ") for fault in dict.fromkeys(faults) if fault is not None):
            yield Check(state, "trust", f"{finding}: hearthd refuses to start", cure)

    def _owner(self) -> Iterator[Check]:
        """Yield a finding if no policy entry of the configuration matches the daemon's own user or root."""
        if self._file is None or not self.config.policy:
            return
        uid = os.geteuid()
        with contextlib.suppress(OSError):
            if isinstance(self.address, UnixAddress):
                uid = self.address.path.stat().st_uid
        try:
            entries = import_module("hearth.actors.build").policy_entries(self.config)
        except ConfigError:
            return  # `hearthd --check` names the fault
        for warning in owner_without_entry(entries, (from_uid(uid), from_uid(0)), str(self._file)):
            finding, _, cure = warning.partition("; ")
            yield Check("WARN", "policy", finding, cure)

    def to_json(self, checks: list[Check]) -> dict[str, Any]:
        """Return the findings and all that they are about, for a program."""
        return {
            "ok": all(check.state != "FAIL" for check in checks),
            "checks": [asdict(check) for check in checks],
            "hardware": self.hardware,
            "confinement": self.confinement,
        }


def lines(checks: list[Check]) -> list[str]:
    """Return the findings as lines for a person."""
    longest = max(len(check.name) for check in checks)
    told = []
    for check in checks:
        state = click.style(check.state.ljust(4), fg=COLOURS[check.state], bold=True)
        told.append(f"{state}  {check.name.ljust(longest)}  {common.clean(check.finding)}")
        for number, step in enumerate((check.cure or "").splitlines()):
            told.append(f"      {' ' * longest}  {'→' if number == 0 else ' '} {common.clean(step)}")
    return told


def check_address(address: Address, named_by: str) -> list[Check]:
    """Check the daemon's address without connecting to it."""
    if isinstance(address, UnixAddress):
        return check_socket(address.path, named_by)
    told = f"{address.place} (from {named_by})"
    if isinstance(address, WebSocketAddress) and not address.secure and not _is_here(address.host):
        cure = "use wss://, or a network that is itself encrypted: machines on the way can read all, the token too"
        return [Check("WARN", "address", f"{told} is not encrypted", cure)]
    return [Check("OK", "address", told)]


def _is_here(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


async def _ask_daemon(options: Options) -> list[Check]:
    """Open a session with the daemon and check its answers, or report why there is no session."""
    try:
        async with session(options) as (_client, opened):
            tools = await opened.tools()
            first = Check("OK", DAEMON, f"answers on {options.address.place}; {len(tools)} tools")
            if all(tool["name"] != "hw.board" for tool in tools):
                cure = 'add "hw.board" to the tools of your [[policy]] entry'
                return [first, Check("WARN", "board", "the policy does not let you see the health of the buses", cure)]
            board = await opened.run("hw.board")
            sandbox = (board.get("health") or {}).get("sandbox") or {}
            process = look_at_daemon(options.address)
            return [first, *board_checks(board), *daemon_checks(sandbox, process)]
    except CarrierError as error:
        cure = "where it is a service: `systemctl status hearth`; if it listens elsewhere: --to or HEARTH_ADDRESS"
        return [Check("WARN" if options.named_by == "default" else "FAIL", DAEMON, str(error), cure)]
    except RpcError as error:
        cure = "the daemon's [[policy]] entries say who may do what"
        return [Check("FAIL", "session", f"{error.message} ({error.symbol})", cure)]


def board_checks(board: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of the answer of hw.board."""
    yield Check("OK", "board", f"{board['name']}: {board.get('description') or 'no description'}")
    health = board.get("health") or {}
    for name, bus in health.get("buses", {}).items():
        told = f"{name} is {bus.get('state')}"
        if bus.get("state") == "ready":
            yield Check("OK", "bus", f"{told}; {bus.get('transactions', 0)} transactions so far")
        else:
            yield Check("FAIL", "bus", f"{told}: {bus.get('reason') or 'no reason given'}", bus_cure(bus.get("state")))
    halt = health.get("halt") or {}
    if halt.get("halted"):
        cure = "when the cause is gone, a person with the right reset_halt ends it: `hearth halt reset`"
        yield Check("WARN", "halt", f"halted since {halt.get('since')}: {halt.get('reason')}", cure)
        if problem := halt.get("problem"):
            yield Check("FAIL", "halt", problem, "until it can be written, a restart does not come back halted")
    for missing in board.get("undriven", ()):
        told = f"{missing.get('kind')} {missing.get('name')}: {missing.get('reason')}"
        if missing.get("left_alone"):
            yield Check("OK", "bus", f"{told}; not driven")
        else:
            cure = missing.get("cure") or "hearth cannot serve it; the board's profile says what is wanted"
            yield Check("WARN", "bus", told, cure)
    for extra in extras_of(health):
        if extra.finding and (state := health.get(extra.name)) is not None:
            yield Check(*extra.load("finding")(state))
    audit = health.get("audit") or {}
    if audit.get("ok"):
        yield Check("OK", "audit", f"records are written (durability {audit.get('durability')})")
        if warning := audit.get("warning"):
            yield Check("WARN", "audit", str(warning), "`hearth audit verify` examines the whole log")
    else:
        cure = "steps of risk 1 and above are refused until it can be written: look at disk space and permissions"
        yield Check("FAIL", "audit", f"the log cannot be written: {audit.get('reason')}", cure)


def bus_cure(state: Any) -> str:
    """Return the cure for a bus that does not work."""
    if state == "wedged":
        return "a transaction does not return: look at the device and its wiring; the bus comes back when it does"
    return "the daemon tries again by itself; look at the device and at the daemon's permissions on it"


# --- checks that need no daemon -------------------------------------------------------------------------------------
#
# The socket as a file, the state directory, the end of the audit log. No check changes anything or raises for a
# finding.

LAST_RECORDS = 1000
"""Number of records at the end of the log that are checked; `hearth audit verify` checks all."""


@frozen
class Check:
    """One finding."""

    state: Literal["OK", "WARN", "FAIL"]
    name: str
    finding: str
    cure: str | None = None


def check_socket(path: Path, named_by: str) -> list[Check]:
    """Check the socket's file, and that this user may connect to it."""
    source = "the default" if named_by == "default" else f"from {named_by}"
    try:
        status = path.stat()
    except FileNotFoundError:
        return [Check("WARN", "socket", f"{path} ({source}) does not exist", "a daemon makes it when it starts")]
    except OSError as error:
        cure = f"`namei -l {path}` shows which directory does not let you through"
        return [Check("FAIL", "socket", f"{path} ({source}): {error.strerror}", cure)]
    if not stat.S_ISSOCK(status.st_mode):
        return [Check("FAIL", "socket", f"{path} ({source}) is not a socket", "name the daemon's socket with --socket")]
    owner, group = _user(status.st_uid), _group(status.st_gid)
    mode = stat.S_IMODE(status.st_mode)
    facts = f"{path} ({source}), mode {mode:04o}, user {owner}, group {group}"
    found = []
    if os.access(path, os.W_OK, effective_ids=True):
        found.append(Check("OK", "socket", facts))
    else:
        found.append(Check("FAIL", "socket", f"{facts}: you may not connect", _joining(group, status.st_gid)))
    with contextlib.suppress(OSError):
        fault = ownership_fault(path.parent, {os.geteuid(), status.st_uid})
        if fault is not None:
            finding, _, cure = fault.partition("; ")
            found.append(Check("FAIL", "socket", f"{finding}: a socket there may be another user's", cure))
    if mode & stat.S_IWOTH:
        cure = 'set [server] socket_mode = "0660": a user who may connect is authenticated by that'
        found.append(Check("WARN", "socket", "every user of this machine may connect", cure))
    return found


def _joining(group: str, gid: int) -> str:
    me = _user(os.geteuid())
    if gid == 0:
        return "the group is root's; give the socket one of its own with [server] socket_group, then join that"
    return f"join its group: sudo usermod -aG {group} {me}, then log in again"


def _user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def check_state(directory: Path) -> Check:
    """Check that a daemon of this user could write its log in `directory`."""
    existing = next((path for path in (directory, *directory.parents) if _is_seen(path)), directory)
    if os.access(existing, os.W_OK | os.X_OK, effective_ids=True):
        made = "" if existing == directory else " (hearthd makes it)"
        return Check("OK", "state", f"{directory} can be written{made}")
    cure = "a daemon that runs as another user does not need you to; else set [audit] path to a place of yours"
    return Check("WARN", "state", f"{existing} cannot be written by {_user(os.geteuid())}", cure)


def check_extras(config: Config) -> Iterator[Check]:
    """Check that the packages of each extra that is configured are installed, where this runs."""
    for extra in extras_of(config.extras):
        if (lack := extra.lack(config)) is not None:
            finding, _, cure = lack.partition("; ")
            yield Check("FAIL" if extra.refuses else "WARN", "extra", finding, cure)


def check_tpm(tpm: str | None) -> Iterator[Check]:
    """Check that a daemon of this user could use its TPM, if one is configured; nothing is asked of it."""
    if tpm is None:
        return
    if find_spec("tpm2_pytss") is None:
        cure = "apt-get install libtss2-dev pkg-config gcc, and pip install 'hearthd[tpm]'"
        yield Check("FAIL", "tpm", "[attest] tpm: the library tpm2-pytss is not installed", cure)
    device = Path(tpm.removeprefix("device:"))
    if not device.is_absolute():
        yield Check("OK", "tpm", f"{tpm} is no device; hearthd tries it when it starts")
    elif not device.exists():
        cure = "`ls /dev/tpmrm*` shows those that there are; it may be off in the firmware"
        yield Check("FAIL", "tpm", f"{device} does not exist", cure)
    elif not os.access(device, os.R_OK | os.W_OK, effective_ids=True):
        cure = f"put the daemon's user into the group {_group(device.stat().st_gid)}"
        yield Check("WARN", "tpm", f"{device} cannot be used by {_user(os.geteuid())}", cure)
    else:
        yield Check("OK", "tpm", f"{device} can be used")


def _is_seen(path: Path) -> bool:
    """Return True if this user can see that `path` exists."""
    try:
        path.stat()
    except OSError:
        return False
    return True


def check_log(path: Path, *, expected: bool) -> Check:
    """Check that the last records of the log are chained."""
    try:
        with path.open("rb") as file:
            return _check_end(path, file.fileno())
    except FileNotFoundError:
        if expected:
            return Check("WARN", "log", f"{path} does not exist", "it is made when the daemon first writes to it")
        return Check("OK", "log", f"no audit log at {path}; --config tells where another daemon's is")
    except OSError as error:
        cure = "the log is its daemon's; read it as that user, or name the daemon's --config"
        return Check("WARN", "log", f"{path}: {error.strerror}", cure)


def _check_end(path: Path, fd: int) -> Check:
    cure = f"`hearth audit verify {path}` says more; keep the file as it is"
    after: Record | None = None
    count = 0
    for _, line in backward(fd, os.fstat(fd).st_size):
        if count == LAST_RECORDS:
            break
        if after is None and not line.endswith(b"\n"):
            continue  # the line is being written, or was cut by a crash; the daemon repairs that when it starts
        record = parse(line)
        if record is None:
            return Check("FAIL", "log", f"{path}: a line among the last {count + 1} is no record", cure)
        if after is not None and (after["prev"] != digest(line[:-1]) or after["seq"] != record["seq"] + 1):
            return Check("FAIL", "log", f"{path}: record {after['seq']} does not follow from the one before it", cure)
        after = record
        count += 1
    return Check("OK", "log", f"{path}: the last {count} records are chained")


# --- the machine's hardware -----------------------------------------------------------------------------------------
#
# The drivers examine the hardware; this module rates their findings and words them. The drivers are above this package,
# so they are imported by name, and only when this command runs.

_BOARDS = "hearth.drivers.boards.diagnose"


def look_at_hardware(board: str | None) -> dict[str, Any]:
    """Return the hardware of this machine, and the fit of the profile `board`. Raises ConfigError for a bad profile."""
    found: dict[str, Any] = import_module(_BOARDS).look(board)
    return found


def hardware_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the findings as checks.

    A requirement of the profile that the machine does not meet is a FAIL. Without a profile, any missing permission is
    a WARN; with one, only the profile's own requirements count.
    """
    profile = found.get("profile")
    for word, told, entry in import_module(_BOARDS).told(found):
        yield _device(word, told, entry, told_apart=profile is None)
    for hint in found["hints"]:
        yield Check("OK", hint["kind"], hint["hint"])
    yield Check("OK", "sensors", f"{found['sensors']} kernel sensors (hwmon, IIO, thermal, power)")
    if not found["everybody_seen"] and found["ports"]:
        yield Check("OK", "holders", "of other users' processes it cannot be seen what they hold; as root it can")
    if profile is not None:
        yield from _fit(profile)


def _device(kind: str, told: str, entry: Mapping[str, Any], *, told_apart: bool) -> Check:
    lack = entry.get("lack")
    if entry.get("not_driven") is not None:
        told += f"; generic-linux does not drive it: {entry['not_driven']['reason']}"
    elif lack is not None:
        told += f"; {lack['reason']}"
        if told_apart:
            return Check("WARN", kind, told, lack["cure"])
    elif entry.get("problem") is not None:
        return Check("WARN", kind, told, entry["cure"])
    elif entry.get("error") is not None:
        return Check("WARN", kind, told, "the kernel's log may say why: `sudo dmesg`")
    return Check("OK", kind, told)


_SEVERITIES: Mapping[str, Literal["OK", "WARN", "FAIL"]] = {"note": "OK", "warn": "WARN", "fail": "FAIL"}


def _fit(profile: Mapping[str, Any]) -> Iterator[Check]:
    if not profile["wants"]:
        yield Check("OK", "profile", f"{profile['name']} needs nothing of this machine")
    elif not profile["problems"]:
        yield Check("OK", "profile", f"{profile['name']} fits this machine")
    for name in ("problems", "safety"):
        for problem in profile[name]:
            told = f"{profile['name']}: {problem['key']}: {problem['problem']}"
            state = _SEVERITIES[problem["severity"]]
            cure = None if state == "OK" else problem["cure"]
            yield Check(state, "profile" if name == "problems" else name, told, cure)
    if not profile["safety"]:
        yield Check("OK", "safety", f"{profile['name']} has no gap that is checked here: outputs, interlocks, halt")


# --- confinement ----------------------------------------------------------------------------------------------------
#
# The kernel's features, the plan of a daemon, and the state of a running daemon. The drivers examine them, and are
# imported by name as above; this module rates the findings and words them.

_INIT = 1
_FILTER = "2"
"""The value of Seccomp in /proc for a thread with a seccomp filter."""


def look_at_confinement(config: Config) -> dict[str, Any]:
    """Return this kernel's features, and the sandbox plan of a daemon with this configuration."""
    found: dict[str, Any] = import_module(_BOARDS).look_at_sandbox(config)
    return found


def look_at_daemon(address: Address) -> dict[str, Any] | None:
    """Return the kernel's data on the process that listens at `address`; None if it cannot be seen from here."""
    if not isinstance(address, UnixAddress):
        return None
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1)
            asking.connect(str(address.path))
            pid = struct.unpack("=iII", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except OSError:
        return None
    # The pid is the service manager's (1) if that made the socket, and 0 for a process of another container.
    found: dict[str, Any] | None = import_module(_BOARDS).process_sandbox(pid) if pid > _INIT else None
    return found


def machine_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the checks of the kernel's features and of the sandbox plan."""
    kernel = found["kernel"]
    lacking = [part for part in kernel["parts"] if not part["can_be"]]
    if not lacking:
        yield Check(
            "OK", "kernel", f"can confine a daemon: Landlock {kernel['landlock']}, seccomp filters, no_new_privs"
        )
    causes: dict[str, list[str]] = {}
    for part in lacking:
        causes.setdefault(part["detail"], []).append(part["name"])
    for why, names in causes.items():
        reason, _, cure = why.partition("; ")
        yield Check("WARN", "kernel", f"cannot confine {', '.join(names)}: {reason}", cure or "see docs/sandbox.md")
    yield from _planned(found["planned"])


def _planned(planned: Mapping[str, Any]) -> Iterator[Check]:
    if "off" in planned:
        yield Check("WARN", "sandbox", f"would be off: {planned['off']}", "take it out of the configuration")
        return
    if "error" in planned:
        yield Check("WARN", "sandbox", f"cannot be planned: {planned['error']}", "correct that first")
        return
    paths = planned["paths"]
    devices = [entry["path"] for entry in paths if entry["access"] == "device"]
    written = [entry["path"] for entry in paths if entry["access"] == "write"]
    becomes = f"as {planned['user']}, " if "user" in planned else ""
    yield Check(
        "OK",
        "sandbox",
        f"started by you, {becomes}hearthd could write beneath {', '.join(written)}, open {len(devices)} device nodes, "
        f"start no program, make sockets {', '.join(planned['sockets']) or 'of no kind'}",
    )
    if planned.get("programs_refused"):
        reason, _, cure = planned["programs_refused"].partition(": set ")
        yield Check("FAIL", "programs", reason, f"set {cure}")
    elif planned.get("programs"):
        told = "run outside of it, each in a cage of its own, started by the launcher"
        yield Check("OK", "programs", f"{', '.join(planned['programs'])}: {told}")


def daemon_checks(told: Mapping[str, Any], process: Mapping[str, Any] | None) -> Iterator[Check]:
    """Yield the checks of a daemon's own report (`health.sandbox`) and of the kernel's data on its process."""
    state = told.get("state")
    if state == "off":
        cure = "start it without --no-sandbox, and with [sandbox] enable = true"
        yield Check("WARN", "sandbox", f"is off in the daemon: {told.get('reason')}", cure)
    elif state in ("in force", "in part"):
        yield Check("OK", "sandbox", f"in force in the daemon: {', '.join(told.get('in_force', ()))}")
    for name, why in told.get("missing", {}).items():
        reason, _, cure = str(why).partition("; ")
        yield Check("WARN", "sandbox", f"not in force in the daemon: {name}: {reason}", cure or "see docs/sandbox.md")
    for path in told.get("added", ()):
        yield Check(
            "WARN", "sandbox", f"{path} may be written besides", "the daemon's environment names it: take it out"
        )
    for note in told.get("notes", ()):
        yield Check("OK", "sandbox", f"but note: {note}")
    if process is not None:
        yield _process(told, process)


def _process(told: Mapping[str, Any], process: Mapping[str, Any]) -> Check:
    facts = (
        f"pid {process['pid']}: uid {_ids(process['Uid'])}, capabilities {_capabilities(process['CapEff'])}, "
        f"no_new_privs {'/'.join(process['NoNewPrivs'])}, seccomp {'/'.join(process['Seccomp'])}"
    )
    held = told.get("in_force", ())
    escaped = [
        name
        for name, expected, found in (
            ("no_new_privs", "1", process["NoNewPrivs"]),
            ("syscalls", _FILTER, process["Seccomp"]),
        )
        if name in held and found != [expected]
    ]
    if escaped:
        cure = "it says that this holds for all its threads, and the kernel says that it does not: report it as a bug"
        return Check("FAIL", "process", f"{facts}; {', '.join(escaped)} not in force in every thread", cure)
    return Check("OK", "process", facts)


def _ids(found: list[str]) -> str:
    return "/".join(sorted({number for line in found for number in line.split()}))


def _capabilities(found: list[str]) -> str:
    return "none" if all(int(bits, 16) == 0 for bits in found) else "/".join(bits.lstrip("0") for bits in found)
