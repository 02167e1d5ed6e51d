"""Which kernel the guest runs, and whether this host can run it at all.

Owns the search (`$HEARTH_UML_KERNEL`, the cache that `build-kernel.sh` fills, the prebuilt archive beside the project)
and the judgement: a kernel is used only when the configuration embedded in it has every option of `kernel.config`.
Refuses, with what is missing and the command that mends it, as `Missing`.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import mmap
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
CONFIG = HERE / "kernel.config"
BUILD = "tests/hardware/build-kernel.sh"
PREBUILT = PROJECT.parent / "shared" / "hil" / "uml-hil.xz"

MODULES = {"i2c-stub": "chip_addr=0x40,0x48,0x50"}
"""What the guest loads at boot, with options; everything else that it needs is built in."""


class Missing(Exception):
    """This host cannot run a guest: the reason, and what to do about it."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}: {cure}")
        self.reason = reason
        self.cure = cure


@frozen
class Kernel:
    """A user-mode Linux executable that fits `kernel.config`, and the folder of its modules (`NAME.ko`).

    `device_tree` describes the hardware that cannot be made at run time: an SPI controller, a counter.
    """

    path: Path
    modules: Path
    device_tree: Path | None = None

    def module(self, name: str) -> bytes:
        """The module's object file. Raises `Missing`."""
        path = self.modules / f"{name}.ko"
        try:
            return path.read_bytes()
        except OSError as error:
            raise Missing(f"the kernel {self.path} lacks its module {path} ({error.strerror})", _build()) from None


def find(path: Path | None = None, env: Mapping[str, str] = os.environ, prebuilt: Path = PREBUILT) -> Kernel:
    """The kernel at `path`, or else the first there is of: `$HEARTH_UML_KERNEL`, the cache's, the prebuilt one.

    The first that exists is judged, and an unfit one is an error rather than passed over: what was asked for is
    what runs. Raises `Missing`.
    """
    if path is None and env.get("HEARTH_UML_KERNEL"):
        path = Path(env["HEARTH_UML_KERNEL"])
    if path is not None:
        if not path.is_file():
            raise Missing(f"there is no kernel at {path}", _build())
        return _judged(Kernel(path, _modules_beside(path), _tree_beside(path)))
    built = cache(env) / key()
    if (built / "linux").is_file():
        return _judged(Kernel(built / "linux", built / "modules", _tree_beside(built / "linux")))
    if prebuilt.is_file():
        return _judged(unpacked(prebuilt, env))
    raise Missing("there is no user-mode Linux kernel here", _build())


def cache(env: Mapping[str, str] = os.environ) -> Path:
    """Where kernels are kept: `$XDG_CACHE_HOME/hearth`, or `~/.cache/hearth`."""
    base = env.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hearth"


def key() -> str:
    """The name, in the cache, of the kernel built from today's `kernel.config`."""
    return "uml-" + hashlib.sha256(CONFIG.read_bytes()).hexdigest()[:16]


def unpacked(archive: Path, env: Mapping[str, str] = os.environ) -> Kernel:
    """The kernel in an `.xz` archive, its modules in `uml-modules/` beside it, unpacked into the cache once."""
    packed = archive.read_bytes()
    folder = cache(env) / ("prebuilt-" + hashlib.sha256(packed).hexdigest()[:16])
    kernel = Kernel(folder / "linux", archive.parent / "uml-modules", _tree_beside(archive))
    if not kernel.path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # Under another name first: two that start together must not run half a kernel.
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
            partial.write(lzma.decompress(packed))
        Path(partial.name).chmod(0o755)
        Path(partial.name).rename(kernel.path)
    return kernel


def wanted(fragment: str) -> list[str]:
    """The options a fragment asks for, as they stand in a complete configuration, without those it turns off."""
    lines = (line.strip() for line in fragment.splitlines())
    return [line for line in lines if line.startswith("CONFIG_") and not line.endswith("=n")]


def embedded_config(kernel: bytes) -> str | None:
    """The configuration that a kernel with IKCONFIG carries (kernel/configs.c), or None."""
    begin = kernel.find(b"IKCFG_ST")
    end = kernel.find(b"IKCFG_ED", begin)
    if begin < 0 or end < 0:
        return None
    try:
        return gzip.decompress(kernel[begin + 8 : end]).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        return None


def lacking(kernel: bytes, fragment: str) -> list[str] | None:
    """The options of `fragment` that the kernel does not have, or None when it does not say how it was configured."""
    config = embedded_config(kernel)
    if config is None:
        return None
    has = set(config.splitlines())
    return [option for option in wanted(fragment) if option not in has]


def check(path: Path | None, megabytes: int) -> str:
    """Everything that a boot needs of the host, said in one line. Raises `Missing`."""
    check_host()
    kernel = find(path)
    for name in MODULES:
        kernel.module(name)
    busybox()
    return f"{kernel.path}, its memory in {scratch(megabytes)}"


def check_host() -> None:
    """Whether a guest can run on this machine at all. Raises `Missing`."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Missing(
            f"user-mode Linux runs on x86-64 Linux only, and this is {platform.system()} on {platform.machine()}",
            "run the hardware tests on such a machine",
        )


def busybox() -> bytes:
    """The host's static busybox, which the guest boots with. Raises `Missing`."""
    path = shutil.which("busybox")
    if path is None:
        raise Missing("there is no busybox", "apt-get install busybox-static")
    content = Path(path).read_bytes()
    # A dynamic executable names its loader, and would find none before the root is mounted.
    if b"/ld-linux" in content[:4096] or b"/ld-musl" in content[:4096]:
        raise Missing(f"{path} is not a static executable", "apt-get install busybox-static")
    return content


def scratch(megabytes: int, env: Mapping[str, str] = os.environ) -> Path:
    """A folder for the guest's memory, a file that its kernel executes from: not mounted noexec, and with room.

    Memory rather than a disk where there is a choice, as the file is written to all the time. Raises `Missing`.
    """
    refused = []
    for directory in dict.fromkeys(["/dev/shm", env.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp"]):
        refusal = _unfit(Path(directory), megabytes)
        if refusal is None:
            return Path(directory)
        refused.append(f"{directory} {refusal}")
    raise Missing(
        f"no folder can hold the guest's memory ({', '.join(refused)})",
        f"set TMPDIR to one with {megabytes} MiB free on a file system that is not mounted noexec",
    )


def _unfit(directory: Path, megabytes: int) -> str | None:
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    except PermissionError:
        return "is mounted noexec or not writable"
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    free = shutil.disk_usage(directory).free >> 20
    return f"has {free} MiB free of the {megabytes} needed" if free < megabytes else None


def _judged(kernel: Kernel) -> Kernel:
    missing = lacking(kernel.path.read_bytes(), CONFIG.read_text())
    if missing is None:
        raise Missing(f"the kernel {kernel.path} does not say how it was configured (CONFIG_IKCONFIG)", _build())
    if missing:
        raise Missing(f"the kernel {kernel.path} lacks {', '.join(missing)}", _build())
    if not os.access(kernel.path, os.X_OK):
        raise Missing(f"the kernel {kernel.path} is not executable", f"chmod +x {kernel.path}")
    return kernel


def _modules_beside(path: Path) -> Path:
    beside = path.parent / "modules"
    return beside if beside.is_dir() else path.parent / "uml-modules"


def _tree_beside(path: Path) -> Path | None:
    tree = path.with_name("hil.dtb").resolve()
    return tree if tree.is_file() else None


def _build() -> str:
    return f"{BUILD} builds one and says what it needs"
