"""How the kernel tells about itself: small readers of /proc, /sys and psutil for `hearth.drivers.system`.

Each reader gives None, or nothing, for what this machine does not have. Which facts make up an answer, and
what is an error, is not decided here.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

LOCAL_FS = frozenset((
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660", "jffs2", "jfs",
    "msdos", "ntfs3", "overlay", "reiserfs", "squashfs", "ubifs", "udf", "ufs", "vfat", "xfs", "zfs",
))  # fmt: skip
"""File systems whose numbers come from this kernel alone."""
NO_DISK_FS = frozenset((
    "autofs", "bdev", "binder", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "cpuset", "debugfs",
    "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs",
    "rootfs", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tmpfs", "tracefs",
))  # fmt: skip
"""Kernel interfaces, memory and mount triggers: no storage to report."""
_ARM_CORES = {
    "0xd03": "Cortex-A53", "0xd04": "Cortex-A35", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72", "0xd09": "Cortex-A73", "0xd0a": "Cortex-A75", "0xd0b": "Cortex-A76",
}  # fmt: skip
"""CPU part numbers of Arm Ltd. (implementer 0x41): arm64 kernels print no model name."""


def text(path: Path) -> str | None:
    """The file's one line, or None when there is no such file or its device does not answer."""
    try:
        found = path.read_text(errors="replace").strip("\n \0")
    except OSError:
        return None
    return found or None


def integer(path: Path) -> int | None:
    """The file's number, or None."""
    found = text(path)
    return int(found) if found is not None and re.fullmatch("-?[0-9]+", found) else None


def numbered(folder: Path, pattern: str) -> list[Path]:
    """The entries of `folder` that fit a glob, by the numbers in their names; none if it is missing."""
    return sorted(folder.glob(pattern), key=lambda at: ([*map(int, re.findall("[0-9]+", at.name))], at.name))


def celsius(path: Path) -> float | None:
    """A sysfs temperature, which is in thousandths of a degree."""
    found = integer(path)
    return None if found is None else found / 1000


def machine(sys: Path) -> str | None:
    """What machine this is, as its device tree or its firmware (DMI) says."""
    model = text(sys / "firmware/devicetree/base/model")
    dmi = [text(sys / "class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return model or " ".join(filter(None, dmi)) or None


def count(table: str | None, key: str) -> int | None:
    """The number in a line "key number", as in /proc/vmstat; None without one."""
    found = re.search(rf"^{key} ([0-9]+)$", table or "", re.MULTILINE)
    return int(found[1]) if found else None


def pressure(table: str | None) -> dict[str, float] | None:
    """A file of /proc/pressure: percent of the time in which some, or all, threads stood still; None without one."""
    found = re.findall(r"^(some|full) avg10=([0-9.]+) avg60=([0-9.]+) avg300=([0-9.]+)", table or "", re.MULTILINE)
    rows = {
        f"{who}_{span}_percent": float(value)
        for who, *values in found
        for span, value in zip(("10s", "60s", "300s"), values, strict=True)
    }
    return rows or None


def pairs(block: str) -> dict[str, str]:
    """Lines of "key : value"; of a repeated key the last."""
    split = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, colon, value in split if colon}


def cpu_model(blocks: Iterable[Mapping[str, str]]) -> str | None:
    """The processor's name from the blocks of /proc/cpuinfo, whose keys differ by architecture."""
    for block in blocks:
        for key in ("model name", "cpu model", "uarch", "cpu"):
            if key in block:
                return block[key]
        if block.get("CPU implementer") == "0x41" and block.get("CPU part") in _ARM_CORES:
            return f"ARM {_ARM_CORES[block['CPU part']]}"
    return None


def percent(part: int, whole: int) -> float | None:
    """`part` of `whole` in percent with one decimal; None of nothing."""
    return round(part / whole * 100, 1) if whole else None


class Mount(NamedTuple):
    """A line of /proc/self/mountinfo; `number` is the file system's, the same for all its mounts."""

    number: str
    mount: str
    options: str
    device: str
    fs: str


def mounts(mountinfo: str) -> Iterator[Mount]:
    """The lines of /proc/self/mountinfo, octal escapes resolved."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        number, _, mount, options = left.split()[2:6]
        fs, device = right.split()[:2]
        yield Mount(number, _unescape(mount), options, _unescape(device), fs)


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def doubtful(found: Sequence[Mount]) -> list[str]:
    """Mount points whose way may take for ever: a network, a FUSE process, a mount yet to be made."""
    topmost = {one.mount: one for one in found}
    known = LOCAL_FS | NO_DISK_FS
    return [one.mount for one in found if one.fs not in known or (one.fs == "autofs" and topmost[one.mount] is one)]


def beneath(path: str, other: str) -> bool:
    """Whether the way to `path` leads through `other`, or ends there."""
    return path == other or path.startswith(other.rstrip("/") + "/")


def space(found: os.statvfs_result) -> dict[str, Any]:
    """Sizes in bytes; what only root may use counts as neither used nor available."""
    used = found.f_blocks - found.f_bfree
    return {
        "total_bytes": found.f_blocks * found.f_frsize,
        "used_bytes": used * found.f_frsize,
        "available_bytes": found.f_bavail * found.f_frsize,
        "used_percent": percent(used, used + found.f_bavail),
        "inodes_total": found.f_files,
        "inodes_free": found.f_ffree,
    }


NO_SPACE: Mapping[str, None] = dict.fromkeys(
    ("total_bytes", "used_bytes", "available_bytes", "used_percent", "inodes_total", "inodes_free")
)
"""`space` of a file system that was not asked."""


NO_TRAFFIC: Mapping[str, int | float | None] = dict.fromkeys(("read_bytes", "written_bytes", "busy_s"))
"""`traffic` of a file system that is no single block device."""


def traffic(diskstats: str | None) -> Mapping[str, Mapping[str, int | float | None]]:
    """By device number ("8:1"): bytes read and written, and seconds busy, since boot."""
    rows = (line.split() for line in (diskstats or "").splitlines())
    return {
        f"{row[0]}:{row[1]}": {
            "read_bytes": int(row[5]) * 512,
            "written_bytes": int(row[9]) * 512,
            "busy_s": int(row[12]) / 1000,
        }
        for row in rows
        if len(row) >= 14
    }


def interfaces() -> list[dict[str, Any]]:
    """Every network interface, by name. Raises OSError when the kernel does not list them."""
    import psutil  # 55 ms, and only for the network

    states, counters = psutil.net_if_stats(), psutil.net_io_counters(pernic=True, nowrap=False)
    rows = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        state, count = states.get(name), counters.get(name)
        macs = [one.address for one in addresses if one.family == psutil.AF_LINK and one.address.strip("0:")]
        counts = (getattr(count, source, None) for source in _COUNTERS.values())
        rows.append(
            {
                "name": name,
                "up": state is not None and state.isup,
                "loopback": state is not None and "loopback" in state.flags.split(","),
                "mtu": state.mtu if state else None,
                "speed_mbit": (state.speed or None) if state else None,
                "mac": macs[0] if macs else None,
                "addresses": [found for one in addresses if (found := _address(one.address, one.netmask))],
                **dict(zip(_COUNTERS, counts, strict=True)),
            }
        )
    return rows


_COUNTERS = {
    "rx_bytes": "bytes_recv", "tx_bytes": "bytes_sent",
    "rx_packets": "packets_recv", "tx_packets": "packets_sent",
    "rx_errors": "errin", "tx_errors": "errout", "rx_dropped": "dropin", "tx_dropped": "dropout",
}  # fmt: skip


def _address(address: str, netmask: str | None) -> dict[str, Any] | None:
    """An IP address without its scope, and its prefix length; None for a link-layer address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    bits = None if netmask is None else int(ipaddress.ip_address(netmask)).bit_count()
    return {"family": f"ipv{found.version}", "address": str(found), "prefix": bits}
