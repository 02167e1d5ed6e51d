"""Which kernel is used, which is refused and why, and what else a host must have."""

import gzip
import lzma
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hardware import kernel

FRAGMENT = kernel.CONFIG.read_text()
FULL = "\n".join(kernel.wanted(FRAGMENT))


def kernel_with(config):
    """What is looked at in a kernel: the configuration that it carries."""
    return b"\x7fELF code IKCFG_ST" + gzip.compress(config.encode(), mtime=0) + b"IKCFG_ED more code"


@pytest.fixture
def env(tmp_path):
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def nothing_prebuilt(tmp_path):
    return tmp_path / "nothing.xz"


def install(folder, config, modules="modules"):
    (folder / modules).mkdir(parents=True)
    path = folder / "linux"
    path.write_bytes(kernel_with(config))
    path.chmod(0o755)
    for name in kernel.MODULES:
        (folder / modules / f"{name}.ko").write_bytes(name.encode())
    return path


def test_what_a_fragment_turns_off_and_what_it_says_in_comments_is_not_asked_for():
    fragment = '# CONFIG_ABSENT=y would be too much\nCONFIG_A=y\n\nCONFIG_B=n\nCONFIG_C=m\nCONFIG_D="x,y"\n'
    assert kernel.wanted(fragment) == ["CONFIG_A=y", "CONFIG_C=m", 'CONFIG_D="x,y"']


def test_a_kernel_that_has_more_than_the_fragment_fits():
    assert kernel.lacking(kernel_with(FULL + "\nCONFIG_MORE=y\n"), FRAGMENT) == []


def test_what_a_kernel_lacks_is_named():
    poor = FULL.replace("CONFIG_GPIO_SIM=y\n", "# CONFIG_GPIO_SIM is not set\n").replace("CONFIG_UHID=y\n", "")
    assert kernel.lacking(kernel_with(poor), FRAGMENT) == ["CONFIG_GPIO_SIM=y", "CONFIG_UHID=y"]


@pytest.mark.parametrize("content", [b"", b"IKCFG_ST", b"IKCFG_ED IKCFG_ST", b"IKCFG_ST nonsense IKCFG_ED"])
def test_a_kernel_that_does_not_carry_its_configuration_cannot_be_judged(content):
    assert kernel.lacking(content, FRAGMENT) is None


def test_the_kernel_that_is_asked_for_is_used_and_its_modules_are_beside_it(tmp_path, env, nothing_prebuilt):
    path = install(tmp_path / "mine", FULL)
    found = kernel.find(path, env, nothing_prebuilt)
    assert found.path == path
    assert found.module("i2c-stub") == b"i2c-stub"
    env["HEARTH_UML_KERNEL"] = str(path)
    assert kernel.find(None, env, nothing_prebuilt) == found


def test_a_kernel_that_is_asked_for_and_does_not_fit_is_refused_by_name_of_what_it_lacks(tmp_path, env):
    path = install(tmp_path / "mine", FULL.replace("CONFIG_GPIO_SIM=y\n", ""))
    with pytest.raises(kernel.Missing, match=r"mine/linux lacks CONFIG_GPIO_SIM=y: .*build-kernel\.sh"):
        kernel.find(path, env)


def test_a_kernel_that_is_asked_for_and_is_not_there_is_not_replaced_by_another(tmp_path, env):
    install(kernel.cache(env) / kernel.key(), FULL)
    env["HEARTH_UML_KERNEL"] = str(tmp_path / "gone")
    with pytest.raises(kernel.Missing, match=r"there is no kernel at .*gone"):
        kernel.find(None, env)


def test_a_kernel_built_here_comes_before_a_prebuilt_one(tmp_path, env):
    prebuilt = tmp_path / "shared" / "uml.xz"
    prebuilt.parent.mkdir()
    prebuilt.write_bytes(lzma.compress(kernel_with(FULL)))
    unpacked = kernel.find(None, env, prebuilt)
    assert unpacked.path.read_bytes() == kernel_with(FULL)
    assert os.access(unpacked.path, os.X_OK)
    assert unpacked.modules == prebuilt.parent / "uml-modules"
    built = install(kernel.cache(env) / kernel.key(), FULL)
    assert kernel.find(None, env, prebuilt).path == built


def test_a_prebuilt_kernel_is_unpacked_once_and_again_when_it_is_another(tmp_path, env):
    prebuilt = tmp_path / "uml.xz"
    prebuilt.write_bytes(lzma.compress(kernel_with(FULL)))
    first = kernel.find(None, env, prebuilt).path
    inode = first.stat().st_ino
    assert kernel.find(None, env, prebuilt).path.stat().st_ino == inode
    prebuilt.write_bytes(lzma.compress(kernel_with(FULL + "\nCONFIG_NEWER=y")))
    assert kernel.find(None, env, prebuilt).path != first


@pytest.mark.slow
def test_the_prebuilt_kernel_beside_the_project_has_all_that_is_asked_for():
    if not kernel.PREBUILT.is_file():
        pytest.skip(f"there is none: {kernel.PREBUILT}")
    assert kernel.lacking(lzma.decompress(kernel.PREBUILT.read_bytes()), FRAGMENT) == []


def test_without_any_kernel_the_command_that_builds_one_is_named(env, nothing_prebuilt):
    with pytest.raises(
        kernel.Missing, match=r"there is no user-mode Linux kernel here: tests/hardware/build-kernel\.sh"
    ):
        kernel.find(None, env, nothing_prebuilt)
    assert (kernel.PROJECT / kernel.BUILD).is_file()


def test_a_kernel_that_is_not_executable_and_one_without_its_modules_are_refused(tmp_path, env):
    path = install(tmp_path, FULL)
    path.chmod(0o644)
    with pytest.raises(kernel.Missing, match=r"is not executable: chmod \+x"):
        kernel.find(path, env)
    path.chmod(0o755)
    (tmp_path / "modules" / "i2c-stub.ko").unlink()
    with pytest.raises(kernel.Missing, match=r"lacks its module .*i2c-stub\.ko"):
        kernel.find(path, env).module("i2c-stub")


def test_another_processor_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(kernel.Missing, match="runs on x86-64 Linux only, and this is Linux on aarch64"):
        kernel.check_host()


def test_without_a_static_busybox_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernel.Missing, match="there is no busybox: apt-get install busybox-static"):
        kernel.busybox()
    shutil.copy("/bin/true", tmp_path / "busybox")
    with pytest.raises(kernel.Missing, match="is not a static executable: apt-get install busybox-static"):
        kernel.busybox()


def test_the_guests_memory_is_where_there_is_room_for_it():
    with pytest.raises(kernel.Missing, match=r"/dev/shm has \d+ MiB free of the \d+ needed.*set TMPDIR"):
        kernel.scratch(1 << 40)


def test_a_folder_mounted_noexec_is_passed_over(tmp_path):
    """In a mount namespace of its own, where a user may mount."""
    (tmp_path / "noexec").mkdir()
    script = f'mount -t tmpfs -o noexec,size=64m tmpfs {tmp_path}/noexec && exec {sys.executable} -c "$1"'
    code = f"""
import sys
sys.path.insert(0, {str(kernel.HERE.parent)!r})
from pathlib import Path
from hardware import kernel
print(kernel._unfit(Path({str(tmp_path)!r}) / "noexec", 1))
print(kernel._unfit(Path({str(tmp_path)!r}), 1))
"""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0 and "perm" in done.stderr.lower():
        pytest.skip(f"nobody but root may mount here: {done.stderr.strip()}")
    assert done.stdout.splitlines() == ["is mounted noexec or not writable", "None"]


def test_the_build_script_names_what_it_needs(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "uname", "sha256sum", "cut", "dirname", "env"):
        (tools / name).symlink_to(Path(shutil.which(name) or name))
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    script = kernel.PROJECT / kernel.BUILD
    done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "apt-get install --no-install-recommends gcc make flex bison bc xz-utils" in done.stderr
