"""`hearth admin bundle`: one archive with all that a person who helps from afar needs, and without secrets.

This module collects: versions, configuration, board profile, the checks of `hearth doctor`, the daemon's state as an
observer sees it, the newest audit records with the result of their verification, and the daemon's log. It never opens
a private key, and reads the configuration through its own reader, not as text.

What could be a secret is replaced before anything is written (`redact`): tokens, digests of tokens, private keys,
credentials in addresses and in the environment of programs. A part that cannot be had is named with the reason; it
stops nothing. The archive is of this user alone, and no file is overwritten.
"""

from __future__ import annotations

import gzip
import io
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import evolve

from hearth._util.files import write_new
from hearth._version import __version__
from hearth.audit import verify as audit_log
from hearth.cli import common
from hearth.cli.audit import report_json
from hearth.cli.common import DONE, Options, interruptible, session, standard
from hearth.cli.doctor import Examination
from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.config.model import Config

MOST_BYTES = 4 << 20
"""Bytes of one part; of a longer one the end is kept."""
MOST_LOG_LINES = 5000
JOURNAL_LIMIT = 20.0
"""Seconds that reading the journal may take."""
MOST_VERIFIED = 256 << 20
"""Bytes of audit log that are verified; a larger one is not, because it would take minutes."""

_NAMED = r"[a-z0-9_.-]*(?:password|passwd|secret|api_?key|access_?key|auth_?token)"
_SECRETS = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL), ""),
    (re.compile(r"(?<![A-Za-z0-9_-])hearth_[A-Za-z0-9_-]{20,}"), ""),
    (re.compile(r"(?i)(\bBearer\s+)[^\s\"',]{8,}"), r"\1"),
    (re.compile(r"(://)[^/\s:@\"']+:[^/\s@\"']+(?=@)"), r"\1"),
    # A digest finds its token where that was chosen by a person; its beginning tells principals apart.
    (re.compile(r"(\btoken:[0-9a-f]{12})[0-9a-f]+"), r"\1"),
    (re.compile(r"(?i)(\btoken_sha256\W{1,6}[0-9a-f]{12})[0-9a-f]+"), r"\1"),
    (re.compile(rf"(?i)(\b{_NAMED}\"?\s*[=:]\s*\"?)(?![{{\[])[^\s\",;]+"), r"\1"),
)
REDACTED = "[redacted]"


def redact(text: str) -> tuple[str, int]:
    """Return the text with each secret replaced, and how many there were."""
    count = 0
    for pattern, kept in _SECRETS:
        text, found = pattern.subn(kept + REDACTED, text)
        count += found
    return text, count


class Parts:
    """The parts of an archive: each a text without secrets, or the reason why it is missing."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.redacted = 0

    def add(self, name: str, content: str) -> None:
        """Add a part, without its secrets."""
        text, found = redact(content)
        self.redacted += found
        if len(text) > MOST_BYTES:
            text = f"[the first {len(text) - MOST_BYTES} characters are left out]\n{text[-MOST_BYTES:]}"
        self.texts[name] = text

    def collect(self, name: str, make: Callable[[], str]) -> None:
        """Add what `make` returns, or note why it cannot be had."""
        try:
            self.add(name, make())
        except (HearthError, OSError) as error:
            self.missing[name], _ = redact(str(error))

    def archive(self, folder: str) -> bytes:
        """Return the parts as a compressed tar archive, in one folder."""
        packed = io.BytesIO()
        squeezed = gzip.GzipFile(fileobj=packed, mode="wb", mtime=0)
        with squeezed, tarfile.open(fileobj=squeezed, mode="w") as tar:
            for name, text in self.texts.items():
                content = text.encode(errors="backslashreplace")
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
                tar.addfile(entry, io.BytesIO(content))
        return packed.getvalue()


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--config", metavar="FILE", help="The daemon's hearth.toml: its board, its log, its socket.")
@click.option("--records", type=click.IntRange(0, 100_000), default=1000, show_default=True, help="Audit records.")
@standard
def bundle(options: Options, file: Path | None, config: str | None, records: int) -> int:
    """Write an archive for a person who helps: versions, configuration, checks, state, log. No secrets.

    FILE is hearth-bundle-DATE.tar.gz here unless given. Run it as the user who may read the daemon's files.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = file or Path(f"hearth-bundle-{stamp}.tar.gz")
    if path.exists():
        raise ConfigError(f"{path}: there is such a file; name another one")
    examination = Examination(options, config, None)
    parts = Parts()

    async def work() -> None:
        parts.add("doctor.json", common.pretty(examination.to_json(await examination.run())))
        try:
            async with session(examination.options) as (_client, opened):
                parts.add("tools.json", common.pretty(await opened.tools()))
                parts.add("state.json", common.pretty(await opened.observe_state()))
        except HearthError as error:
            for name in ("tools.json", "state.json"):
                if name not in parts.texts:
                    parts.missing[name], _ = redact(str(error))

    parts.collect("about.json", lambda: common.pretty(_about()))
    parts.collect("config.toml", _without_environments(examination.config).to_toml)
    parts.collect("board.toml", partial(_board, examination.config.board.profile))
    code = interruptible(work)
    if code != DONE:
        return code
    parts.collect("audit.jsonl", lambda: _records(examination.log, records))
    parts.collect("audit-verify.json", lambda: _verified(examination.log))
    parts.collect("log.txt", _journal)
    parts.add("README.txt", _readme(parts))
    try:
        write_new(path, parts.archive(f"hearth-bundle-{stamp}"), 0o600)
    except FileExistsError:
        raise ConfigError(f"{path}: there is such a file; name another one") from None
    told = {"file": str(path), "parts": sorted(parts.texts), "missing": parts.missing, "redacted": parts.redacted}
    click.echo(common.compact(told) if options.json else "\n".join(_told(path, parts)))
    return DONE


def _told(path: Path, parts: Parts) -> list[str]:
    lines = [f"{common.clean(str(path))}: {', '.join(sorted(parts.texts))}"]
    lines += [common.clean(f"without {name}: {why}") for name, why in parts.missing.items()]
    return [*lines, "Secrets are replaced, names and paths are not: look through it before you send it."]


def _readme(parts: Parts) -> str:
    missing = "".join(f"- {name}: {' '.join(why.split())}\n" for name, why in parts.missing.items())
    return (
        f"Written by `hearth admin bundle` of hearth {__version__}.\n\n"
        "about.json         versions, system, packages\n"
        "config.toml        the configuration as hearthd reads it, with all defaults\n"
        "board.toml         the board profile\n"
        "doctor.json        the checks of `hearth doctor`\n"
        "state.json         what the daemon does, as an observer sees it\n"
        "tools.json         the tools that this user's policy entry has\n"
        "audit.jsonl        the newest records of the audit log\n"
        "audit-verify.json  whether the whole log is as it was written\n"
        "log.txt            the daemon's messages in the journal\n\n"
        f"Secrets that were replaced by {REDACTED}: {parts.redacted}.\n" + (f"\nMissing:\n{missing}" if missing else "")
    )


def _without_environments(config: Config) -> Config:
    """Return the configuration with the names of what `proc.exec` puts into environments, and not the values."""
    hidden = {
        name: evolve(program, env=dict.fromkeys(program.env, REDACTED)) for name, program in config.tools.exec.items()
    }
    return evolve(config, tools=evolve(config.tools, exec=hidden))


def _about() -> dict[str, Any]:
    packages = {one.name: one.version for one in metadata.distributions() if one.name}
    return {
        "hearth": __version__,
        "python": sys.version,
        "system": platform.freedesktop_os_release().get("PRETTY_NAME"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "model": _text(Path("/proc/device-tree/model")),
        "libc": " ".join(platform.libc_ver()),
        "processors": os.cpu_count(),
        "uptime_s": float((_text(Path("/proc/uptime")) or "0").split()[0]),
        "uid": os.geteuid(),
        "packages": dict(sorted(packages.items())),
    }


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").rstrip("\0\n")
    except OSError:
        return None


def _board(profile: str) -> str:
    if "/" in profile or profile.endswith(".toml"):
        return Path(profile).read_text("utf-8", errors="replace")
    return f"# the shipped profile {profile!r} of hearth {__version__}\n"


def _records(log: Path, count: int) -> str:
    return "".join(f"{common.compact(record)}\n" for record in audit_log.tail(log, count))


def _verified(log: Path) -> str:
    size = log.stat().st_size
    if size > MOST_VERIFIED:
        raise HearthError(f"the log has {size >> 20} MiB: run `hearth audit verify {log}`")
    return common.pretty(report_json(audit_log.verify(log)))


def _journal() -> str:
    command = ["journalctl", "--no-pager", "--output=short-iso", f"--lines={MOST_LOG_LINES}"]
    command += ["SYSLOG_IDENTIFIER=hearthd", "+", "_SYSTEMD_UNIT=hearth.service"]
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=JOURNAL_LIMIT, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise HearthError("there is no journalctl here: add the daemon's log by hand") from None
    except subprocess.TimeoutExpired:
        raise HearthError(f"journalctl did not answer within {JOURNAL_LIMIT:.0f} s") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise HearthError(f"journalctl: {reason}")
    return done.stdout.decode(errors="replace")
