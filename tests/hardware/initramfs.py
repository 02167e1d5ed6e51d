"""What the guest starts from: the archive its kernel unpacks into memory, and the two small scripts that are its init.

Owns the archive's format (cpio "newc", of which the kernel's Documentation/driver-api/early-userspace/buffer-format.rst
tells) and what the guest looks like when the command begins. Refuses nothing: what goes in was found by `kernel.py`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONTROL = "/run/hearth"
"""Where the guest sees the runner's own folder: the command to run, and the status that it leaves there."""

# The root is the host's, read-only, beneath a layer in memory: programs are the host's own, and nothing that is written
# stays. It becomes the real root (not a chroot, in which the kernel forbids user namespaces).
_FIRST = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mkdir -p /proc /sys /dev /lower /layer /new
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
while read -r module options; do
    insmod /modules/$module.ko $options || echo "guest: cannot load $module"
done < /modules/order
mount -t hostfs -o / root /lower && mount -t tmpfs layer /layer && mkdir /layer/upper /layer/work &&
mount -t overlay -o lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work root /new || poweroff -f
for directory in proc sys dev; do mount --move /$directory /new/$directory; done
mount -t tmpfs run /new/run
mkdir -p /new@CONTROL@
cp /bin/busybox /second /new/run/
mount -t hostfs -o @CONTROL_ON_HOST@ control /new@CONTROL@ || poweroff -f
exec switch_root /new /run/busybox sh /run/second
"""

# Links in /dev that udev or the distribution's boot would have made; devtmpfs makes nodes only.
_SECOND = """
b=/run/busybox
exec < /dev/null > /dev/console 2>&1
$b mkdir -p /dev/pts /dev/shm /run/lock /run/tmp /run/home
$b mount -t devpts -o ptmxmode=0666 devpts /dev/pts
$b mount -t tmpfs shm /dev/shm
$b mount -t configfs configfs /sys/kernel/config
$b mount -t debugfs debugfs /sys/kernel/debug
$b chmod 1777 /dev/shm /run/lock /run/tmp
$b ln -s /proc/self/fd /dev/fd
$b ln -s fd/0 /dev/stdin
$b ln -s fd/1 /dev/stdout
$b ln -s fd/2 /dev/stderr
$b ip link set lo up
$b hostname guest
@OUT@
@RUN@
echo $? > @CONTROL@/status.part
$b sync
$b mv @CONTROL@/status.part @CONTROL@/status
$b sync
$b poweroff -f
"""


def newc(entries: Iterable[tuple[str, int, bytes]]) -> bytes:
    """An archive of `(path, mode, content)`; parents come before what is in them, as the kernel unpacks in order."""
    archive = bytearray()
    for inode, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        path = name.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        archive += b"070701" + b"".join(b"%08X" % value for value in fields) + path
        archive += b"\0" * (-len(archive) % 4) + content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)


def image(
    busybox: bytes, modules: Mapping[str, tuple[bytes, str]], control: Path, *, out: Path | None, interactive: bool
) -> bytes:
    """The whole archive.

    `modules` are `{name: (object file, options)}` in loading order; `control` and `out` are folders of the host, of
    which the guest sees `out` at the same path. An interactive command has the console as its terminal, any other no
    input.
    """
    shown = "" if out is None else _mount(out)
    # To a terminal the console writes as terminals want it, to a pipe or file what the command wrote.
    run = f"$b stty -F /dev/console -opost\n$b sh {CONTROL}/command < /dev/null"
    if interactive:
        run = f"$b setsid $b cttyhack $b sh {CONTROL}/command"
    first = _FIRST.replace("@CONTROL_ON_HOST@", shlex.quote(str(control))).replace("@CONTROL@", CONTROL)
    second = _SECOND.replace("@OUT@", shown).replace("@RUN@", run).replace("@CONTROL@", CONTROL)
    order = "".join(f"{name} {options}\n" for name, (_, options) in modules.items())
    return newc(
        [
            ("bin", 0o40755, b""),
            ("bin/busybox", 0o100755, busybox),
            ("init", 0o100755, first.encode()),
            ("second", 0o100755, second.encode()),
            ("modules", 0o40755, b""),
            ("modules/order", 0o100644, order.encode()),
            *((f"modules/{name}.ko", 0o100644, content) for name, (content, _) in modules.items()),
        ]
    )


def _mount(out: Path) -> str:
    path = shlex.quote(str(out))
    return f"$b mkdir -p {path} && $b mount -t hostfs -o {path} out {path} || $b poweroff -f"
