"""The archive that the guest starts from, read by a program that knows the format."""

import stat
import subprocess
from pathlib import Path

import pytest
from hardware import initramfs, kernel


@pytest.fixture
def unpacked(tmp_path):
    """`unpacked(archive)`: the folder it unpacks to."""
    try:
        kernel.busybox()
    except kernel.Missing as missing:
        pytest.skip(str(missing))

    def unpack(archive):
        subprocess.run(["busybox", "cpio", "-idm"], input=archive, cwd=tmp_path, check=True, timeout=60)
        return tmp_path

    return unpack


def test_an_archive_unpacks_to_what_went_in(unpacked):
    entries = [
        ("folder", 0o40755, b""),
        ("folder/odd", 0o100644, b"123"),
        ("folder/empty", 0o100600, b""),
        ("a-name-whose-length-is-no-multiple-of-four", 0o100755, bytes(range(256))),
    ]
    root = unpacked(initramfs.newc(entries))
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == {name for name, _, _ in entries}
    for name, mode, content in entries:
        path = root / name
        assert path.stat().st_mode == mode
        if stat.S_ISREG(mode):
            assert path.read_bytes() == content


def test_the_image_holds_busybox_the_modules_with_their_order_and_scripts_that_are_sound(unpacked):
    modules = {"first": (b"one", "option=1,2"), "second": (b"two", "")}
    out = Path("/somewhere/it's here")
    root = unpacked(initramfs.image(b"busybox", modules, Path("/tmp/control"), out=out, interactive=False))
    assert (root / "bin" / "busybox").read_bytes() == b"busybox"
    assert (root / "modules" / "order").read_text() == "first option=1,2\nsecond \n"
    assert (root / "modules" / "second.ko").read_bytes() == b"two"
    for script in ("init", "second"):
        subprocess.run(["busybox", "sh", "-n", root / script], check=True, timeout=60)
        assert "@" not in (root / script).read_text()
    assert "mount -t hostfs -o /tmp/control control /new/run/hearth" in (root / "init").read_text()
    assert "'/somewhere/it'\"'\"'s here'" in (root / "second").read_text()
