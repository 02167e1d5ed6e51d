"""The Debian package in a fresh root: it installs, serves as its own user, upgrades over itself, leaves no trace.

`make test-deb` runs these: they build the package and make a Debian to try it in.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.freshroot import FreshRoot, needs_fresh_root

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.proof, needs_fresh_root]

LEFT_AT_REMOVAL = {"/etc/hearth/", "/etc/hearth/hearth.toml", "/var/lib/hearth/"}
"""What stays until the package is purged, with everything beneath it."""
NOT_OURS = re.compile(
    r"/var/lib/dpkg/|/var/log/|/var/cache/|/etc/(passwd|group|shadow|gshadow)-|/etc/\.pwd\.lock|/tmp/|/dev/|/proc/"
)
"""What dpkg, apt and whoever keeps users write down for themselves."""

SERVE = """\
as_hearth="setpriv --reuid hearth --regid hearth --init-groups --no-new-privs"
mkdir -p /run/hearth && chown hearth: /run/hearth
cd /
export STATE_DIRECTORY=/var/lib/hearth RUNTIME_DIRECTORY=/run/hearth
$as_hearth hearthd --config /etc/hearth/hearth.toml 2>/tmp/said &
daemon=$!
tries=0
until grep -q '^hearthd: ready on /run/hearth/hearth.sock' /tmp/said; do
    kill -0 $daemon || { cat /tmp/said; exit 1; }
    tries=$((tries + 1)); [ $tries -lt 600 ] || { cat /tmp/said; exit 1; }
    sleep 0.1
done
export HEARTH_SOCKET=/run/hearth/hearth.sock
$as_hearth hearth run gpio.set line=LED value=1
$as_hearth hearth --json run hw.sensor.read sensor=temperature
kill -TERM $daemon
code=0; wait $daemon || code=$?
echo "ended with $code"
cat /tmp/said
$as_hearth hearth audit verify /var/lib/hearth/audit.log
rm /tmp/said; rmdir /run/hearth; systemd-tmpfiles --create hearth.conf
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built once, where `make deb` would leave it beside the source."""
    out = tmp_path_factory.mktemp("deb")
    done = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "build_deb.py"), "--out", str(out)],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    assert done.stdout == f"{built}\n"
    return built


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, package: Path) -> FreshRoot:
    """A fresh Debian with what the package depends on and no more; the package is in /tmp."""
    needs = field(package, "Depends")
    names = [re.split(r"[ (|]", one.strip())[0] for one in needs.split(",")]
    alone = {"systemd-standalone-sysusers", "systemd-standalone-tmpfiles"}
    made = FreshRoot(
        tmp_path_factory.mktemp("debian") / "root", sorted({name for name in names if name != "systemd"} | alone)
    )
    shutil.copy(package, made.path / "tmp" / "hearth.deb")
    return made


def field(package: Path, name: str) -> str:
    """A field of a package's control file."""
    done = subprocess.run(["dpkg-deb", "--field", str(package), name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def contents(package: Path) -> dict[str, str]:
    """Path in the package -> its mode and owner, as `dpkg-deb --contents` lists them."""
    done = subprocess.run(["dpkg-deb", "--contents", str(package)], capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=5) for line in done.stdout.splitlines())
    return {line[5].partition(" -> ")[0].removeprefix("."): f"{line[0]} {line[1]}" for line in lines}


# --- what is in it --------------------------------------------------------------------------------------------------


def test_its_control_file_binds_it_to_this_python_and_this_architecture(package: Path) -> None:
    python = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"],
        capture_output=True,
        text=True,
        check=True,
    )
    major, minor = map(int, python.stdout.split())
    depends = field(package, "Depends")
    assert f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1})" in depends
    assert "libseccomp2" in depends
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    assert field(package, "Architecture") == architecture.stdout.strip()


def test_all_of_it_is_roots_and_only_root_may_write_it(package: Path) -> None:
    listed = contents(package)
    assert {owner.split()[1] for owner in listed.values()} == {"root/root"}
    loose = [
        path for path, what in listed.items() if not what.startswith("l") and ("w" in what[5:10] or "s" in what[:10])
    ]
    assert not loose


def test_it_has_what_a_service_needs_and_nothing_of_the_build(package: Path) -> None:
    listed = contents(package)
    for path in (
        "/usr/bin/hearth",
        "/usr/bin/hearthd",
        "/usr/lib/systemd/system/hearth.service",
        "/usr/lib/systemd/system/hearth.socket",
        "/usr/lib/sysusers.d/hearth.conf",
        "/usr/lib/tmpfiles.d/hearth.conf",
        "/usr/lib/udev/rules.d/60-hearth.rules",
        "/etc/hearth/hearth.toml",
        "/usr/share/man/man1/hearth.1.gz",
        "/usr/share/man/man8/hearthd.8.gz",
        "/usr/share/man/man5/hearth.toml.5.gz",
        "/usr/share/doc/hearth/copyright",
        "/usr/share/doc/hearth/changelog.gz",
    ):
        assert path in listed
    assert not [path for path in listed if path.endswith(("/direct_url.json", "/INSTALLER")) or "/tests/" in path[:30]]


def test_no_file_of_it_names_the_place_where_it_was_built(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tmp_path / "x")], check=True)
    traces = [str(ROOT).encode(), str(package.parent).encode(), b"hearth-deb-"]
    found = []
    for path in (tmp_path / "x").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix != ".so":
            data = path.read_bytes()
            found += [str(path) for trace in traces if trace in data and path.name != "build_deb.py"]
    assert not found


@pytest.mark.skipif(shutil.which("lintian") is None, reason="lintian is not installed: apt-get install lintian")
def test_lintian_finds_nothing_that_is_not_explained(package: Path) -> None:
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", str(package)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


# --- in a fresh root ------------------------------------------------------------------------------------------------


def test_it_installs_serves_upgrades_over_itself_and_goes_without_a_trace(root: FreshRoot) -> None:
    before = root.files()
    users = (root.path / "etc" / "passwd").read_text()

    said = root.run("dpkg -i /tmp/hearth.deb")
    assert "warning" not in said.lower(), said
    assert "hearth" in root.run("id -Gn hearth").split()
    assert {"gpio", "i2c", "dialout"} <= set(root.run("id -Gn hearth").split())
    assert root.run("stat -c '%U:%G %a' /run/hearth /var/lib/hearth").split("\n")[:2] == [
        "root:root 755",
        "hearth:hearth 750",
    ]
    assert root.run("readlink /etc/systemd/system/multi-user.target.wants/hearth.service").strip()
    assert "not found" not in root.run("find /usr/lib/hearth -name '*.so*' -exec ldd {} +")

    said = root.run(SERVE)
    assert "ended with 0" in said
    assert '"unit":"celsius"' in said
    assert "OK   records" in said
    assert "Traceback" not in said

    (root.path / "etc/hearth/hearth.toml").write_text('[board]\nprofile = "sim"\n# mine\n')
    root.run("dpkg -i /tmp/hearth.deb")
    assert "# mine" in (root.path / "etc/hearth/hearth.toml").read_text()
    assert (root.path / "var/lib/hearth/audit.log").stat().st_size > 0, "an upgrade keeps the records"
    assert "ended with 0" in root.run(SERVE)

    root.run("dpkg --remove hearth")
    left = {path for path in root.files() - before if not NOT_OURS.match(path)}
    kept = {path for path in left if path.startswith(("/etc/hearth/", "/var/lib/hearth/"))}
    assert kept >= LEFT_AT_REMOVAL
    assert (root.path / "var/lib/hearth/audit.log").exists()
    rest = left - kept
    assert all("systemd" in path for path in rest), rest

    root.run("dpkg --purge hearth")
    assert not {path for path in root.files() - before if not NOT_OURS.match(path)}
    assert not {path for path in before - root.files() if not NOT_OURS.match(path)}
    added = set((root.path / "etc" / "passwd").read_text().splitlines()) - set(users.splitlines())
    assert [line.partition(":")[0] for line in added] == ["hearth"], "the user stays: files elsewhere may be its own"


def test_what_it_starts_itself_finds_the_packages_python(root: FreshRoot) -> None:
    root.run("dpkg -i /tmp/hearth.deb")
    assert "Traceback" not in root.demo()
    root.run("hearth mcp --help >/dev/null && /usr/lib/hearth/bin/python3 -I -c 'import mcp, pamqp, starlette'")
    root.run("dpkg --purge hearth")


def test_the_callers_directory_and_python_path_decide_nothing(root: FreshRoot) -> None:
    root.run("dpkg -i /tmp/hearth.deb")
    said = root.run(
        "mkdir /tmp/trap && cd /tmp/trap && echo 'raise SystemExit(7)' > trio.py && cp trio.py hearth.py"
        " && PYTHONPATH=/tmp/trap hearthd --check && PYTHONPATH=/tmp/trap hearth --version; rm -r /tmp/trap"
    )
    assert "configuration is good" in said
    root.run("dpkg --purge hearth")


def test_a_build_again_gives_the_same_package(package: Path, tmp_path: Path) -> None:
    again = subprocess.run(
        [sys.executable, str(ROOT / "packaging" / "build_deb.py"), "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONHASHSEED": "1"}, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    (built,) = tmp_path.iterdir()
    assert built.read_bytes() == package.read_bytes()
