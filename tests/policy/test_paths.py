"""The path guard, over both of its mechanisms: what is beneath a root opens, and nothing else does."""

import contextlib
import errno
import os
import socket
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.users import ordinary_user

from hearth.errors import ConfigError, PermissionDenied
from hearth.policy import beneath, paths as paths_module
from hearth.policy.paths import PathGuard


@pytest.fixture
def tree(tmp_path):
    """A root with all sorts of things in it, and a secret beside it."""
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "file").write_text("inside")
    (root / "sub" / "file").write_text("inside")
    (root / "sub" / "deep" / "file").write_text("inside")
    (tmp_path / "secret").write_text("SECRET")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("SECRET")
    links = {
        "to-file": "file",
        "to-sub": "sub",
        "to-sub-slash": "sub/",
        "to-dot": "./sub/.",
        "chain": "to-to-sub",
        "to-to-sub": "to-sub",
        "sub/up": "..",
        "sub/deep/up-and-down": "../../sub/file",
        "dangling": "nothing",
        "file-as-directory": "file/",
        "loop": "loop",
        "absolute": str(tmp_path / "secret"),
        "absolute-inside": str(root / "file"),
        "absolute-missing": str(tmp_path / "no-such-secret"),
        "relative-out": "../secret",
        "relative-out-missing": "../no-such-secret",
        "to-outside": "../outside",
        "sub/out": "../../outside",
        "proc-root": "/proc/self/root",
        "proc-cwd": "/proc/self/cwd",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.fixture
def guard(make_guard, tree):
    return make_guard([tree], [tree])


def read(guard, path):
    descriptor = guard.open(str(path), os.O_RDONLY, access="read")
    try:
        return os.read(descriptor, 100).decode()
    finally:
        os.close(descriptor)


def refusal(call, *args, **keywords):
    with pytest.raises(PermissionDenied) as refused:
        call(*args, **keywords)
    return refused.value


@pytest.mark.parametrize(
    "path",
    [
        "file", "/file", "//sub///file", "./file", "sub/./file", "sub/../file", "sub/deep/../../file", "to-file",
        "to-sub/file", "to-sub-slash/file", "to-dot/file", "chain/file", "to-sub/../file", "sub/up/file",
        "chain/deep/up-and-down", "sub/deep/up-and-down",
    ],
)  # fmt: skip
def test_what_stays_beneath_the_root_opens(guard, tree, path):
    assert read(guard, f"{tree}/{path}") == "inside"
    guard.check(f"{tree}/{path}", "read")


@pytest.mark.parametrize(
    "path",
    [
        "..", "../secret", "../root/file", "sub/../../secret", "sub/../../root/file", "to-sub/../../secret", "absolute",
        "absolute-inside", "absolute/", "relative-out", "to-outside/file", "sub/out/file", "chain/out/file", "loop",
        "loop/file", "proc-root", "proc-root/etc/passwd", "proc-cwd", "sub/up/../secret", "sub/up/sub/up/../secret",
        "nothing/../../secret", "../" * 40 + "etc/passwd",
    ],
)  # fmt: skip
def test_what_leads_out_of_the_root_is_refused_at_submit_and_at_use(guard, tree, path):
    path = f"{tree}/{path}"
    if "nothing/" not in path:  # a way through nothing leads nowhere: that passes at submit, and cannot be opened
        refusal(guard.check, path, "read")
        refusal(guard.check, path, "write")
        refusal(guard.open, path, os.O_PATH, access="read")
        refusal(guard.open, path, os.O_RDONLY | os.O_DIRECTORY, access="read")
    with pytest.raises((PermissionDenied, FileNotFoundError)):
        guard.open(path, os.O_RDONLY, access="read")
    with pytest.raises((PermissionDenied, FileNotFoundError)):
        guard.open(path, os.O_WRONLY | os.O_CREAT, access="write")


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "//", "/proc/self/root/etc/passwd", "/../..", "/dev/null"])
def test_what_is_not_named_beneath_the_root_is_refused(guard, path):
    assert "not beneath a directory that [files] read allows" in refusal(guard.check, path, "read").data["reason"]
    refusal(guard.open, path, os.O_RDONLY, access="read")
    refusal(guard.open_parent, path, access="write")


def test_a_name_that_only_begins_like_the_root_is_not_beneath_it(guard, tree):
    neighbour = tree.with_name("root-but-longer")
    neighbour.mkdir()
    (neighbour / "file").write_text("SECRET")
    refusal(guard.open, str(neighbour / "file"), os.O_RDONLY, access="read")


def test_dots_before_the_root_do_not_make_a_path_beneath_it(guard, tree):
    refusal(guard.check, f"{tree}/../{tree.name}/file", "read")
    refusal(guard.check, f"/proc/..{tree}/file", "read")


@pytest.mark.parametrize("path", ["", "file", "./file", "../file", "~/file", " /etc", "\0/x"])
def test_a_relative_path_is_refused_with_the_cure(guard, path):
    assert refusal(guard.check, path, "read").data["reason"] == "it is relative; give an absolute path"


def test_a_nul_does_not_cut_a_path_short(guard, tree):
    path = f"{tree}/file\0/../../../etc/passwd"
    assert refusal(guard.open, path, os.O_RDONLY, access="read").data["reason"] == "it contains a NUL"


def test_a_path_that_is_not_unicode_text_is_refused_and_can_be_shown(guard, tree):
    error = refusal(guard.check, f"{tree}/\udcff", "read")
    error.data["path"].encode("utf-8")
    error.message.encode("utf-8")


@pytest.mark.parametrize("path", ["/x" * 2048, "/" + "a" * 100_000, "/../" * 5000])
def test_a_path_longer_than_the_kernel_takes_is_refused_and_not_repeated_in_full(guard, tree, path):
    error = refusal(guard.check, f"{tree}{path}", "read")
    assert error.data["reason"] == "it is longer than 4095 bytes"
    assert len(error.data["path"]) < 300
    assert len(error.message) < 400


def test_length_is_counted_in_bytes(guard, tree):
    assert "longer than" in refusal(guard.check, f"{tree}/{'é' * 2048}", "read").data["reason"]


def test_a_component_that_is_too_long_is_what_the_kernel_says_it_is(guard, tree):
    guard.check(f"{tree}/{'a' * 300}", "read")
    with pytest.raises(OSError, match="File name too long"):
        guard.open(f"{tree}/{'a' * 300}", os.O_RDONLY, access="read")


def test_a_refusal_does_not_tell_what_exists_outside(guard, tree):
    outside = str(tree.parent)
    pairs = [
        (f"{outside}/secret", f"{outside}/no-such-secret"),
        (f"{tree}/absolute", f"{tree}/absolute-missing"),
        (f"{tree}/relative-out", f"{tree}/relative-out-missing"),
        (f"{tree}/../secret", f"{tree}/../no-such-secret"),
        (f"{tree}/to-outside/file", f"{tree}/to-outside/no-such-file"),
        (f"{tree}/proc-root/etc/passwd", f"{tree}/proc-root/etc/no-such-file"),
    ]
    for there, missing in pairs:
        for call in (guard.check, lambda path, access: guard.open(path, os.O_RDONLY, access=access)):
            answers = [refusal(call, path, "read") for path in (there, missing)]
            first, second = ({**answer.data, "path": None} for answer in answers)
            assert first == second


def test_a_refusal_names_the_path_and_where_one_may_go(guard, tree):
    data = refusal(guard.check, "/etc/passwd", "read").data
    assert data["path"] == "/etc/passwd"
    assert str(tree) in data["allowed"]


def test_without_roots_everything_is_refused_and_the_key_is_named(make_guard):
    guard = make_guard()
    assert refusal(guard.check, "/etc/passwd", "read").data == {
        "path": "/etc/passwd",
        "reason": "no directory is allowed: [files] read is empty",
        "allowed": [],
    }
    assert "[files] write is empty" in refusal(guard.check, "/etc/passwd", "write").data["reason"]


def test_reading_and_writing_are_allowed_apart(make_guard, tree):
    guard = make_guard(read=[tree / "sub"], write=[tree / "sub" / "deep"])
    assert read(guard, tree / "sub" / "deep" / "file") == "inside"
    refusal(guard.check, str(tree / "sub" / "file"), "write")
    refusal(guard.open_parent, str(tree / "sub" / "file"), access="write")
    refusal(guard.check, str(tree / "file"), "read")


def test_a_write_root_cannot_be_read(make_guard, tree):
    guard = make_guard(write=[tree])
    guard.check(str(tree / "file"), "write")
    refusal(guard.check, str(tree / "file"), "read")
    refusal(guard.open, str(tree / "file"), os.O_RDONLY, access="read")


@pytest.mark.parametrize(
    ("flags", "access"),
    [
        (os.O_RDWR, "read"),
        (os.O_WRONLY, "read"),
        (os.O_RDONLY | os.O_CREAT, "read"),
        (os.O_RDONLY | os.O_TRUNC, "read"),
        (os.O_RDONLY | os.O_APPEND, "read"),
        (os.O_RDONLY, "write"),
        (os.O_RDWR, "write"),
        (os.O_RDONLY | os.O_DIRECTORY, "write"),
        (os.O_WRONLY | os.O_TMPFILE, "write"),
    ],
)
def test_flags_that_do_more_than_the_access_are_a_bug_of_the_caller(guard, tree, flags, access):
    with pytest.raises(ValueError, match="do not go with access"):
        guard.open(str(tree / "file"), flags, access=access)
    assert (tree / "file").read_text() == "inside"


def test_a_file_that_does_not_exist_yet_passes_at_submit(guard, tree):
    guard.check(f"{tree}/new", "write")
    guard.check(f"{tree}/no/such/directory/new", "write")
    guard.check(f"{tree}/dangling", "write")


def test_what_is_beneath_the_root_but_missing_is_said_to_be_missing(guard, tree):
    for path in ("nothing", "dangling", "sub/nothing/file"):
        with pytest.raises(FileNotFoundError):
            guard.open(f"{tree}/{path}", os.O_RDONLY, access="read")


@pytest.mark.parametrize("path", ["file/", "file/.", "to-file/", "file/x", "file/..", "file-as-directory"])
def test_a_file_is_no_directory(guard, tree, path):
    with pytest.raises(NotADirectoryError):
        guard.open(f"{tree}/{path}", os.O_RDONLY, access="read")


@pytest.mark.parametrize("path", ["", "/", "/.", "/sub", "/sub/", "/to-sub", "/to-sub/", "/sub/..", "/sub/up"])
def test_a_directory_opens_as_one_the_root_included(guard, tree, path):
    descriptor = guard.open(f"{tree}{path}", os.O_RDONLY | os.O_DIRECTORY, access="read")
    try:
        assert "file" in os.listdir(descriptor)
    finally:
        os.close(descriptor)


def test_a_directory_does_not_open_as_a_file(guard, tree):
    for path in (tree, tree / "sub"):
        with pytest.raises(IsADirectoryError):
            guard.open(str(path), os.O_RDONLY, access="read")
        with pytest.raises(IsADirectoryError):
            guard.open(str(path), os.O_WRONLY, access="write")


def test_descriptors_are_not_inherited_by_programs(guard, tree):
    for path, flags in ((tree / "file", os.O_RDONLY), (tree, os.O_RDONLY | os.O_DIRECTORY), (tree, os.O_PATH)):
        descriptor = guard.open(str(path), flags, access="read")
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_a_fifo_does_not_block(guard, tree):
    """No reader and no writer are there: a plain open would wait for ever."""
    os.mkfifo(tree / "fifo")
    error = refusal(guard.open, str(tree / "fifo"), os.O_RDONLY, access="read")
    assert error.data["reason"] == "it is a FIFO; only regular files can be read and written"
    refusal(guard.open, str(tree / "fifo"), os.O_WRONLY, access="write")
    refusal(guard.open, str(tree / "fifo"), os.O_WRONLY | os.O_CREAT, access="write")


def test_a_socket_is_refused(guard, tree, monkeypatch):
    monkeypatch.chdir(tree)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    assert "a socket" in refusal(guard.open, str(tree / "socket"), os.O_RDONLY, access="read").data["reason"]


def test_a_device_is_refused_before_it_is_opened(make_guard, monkeypatch):
    guard = make_guard(read=[Path("/dev")])
    opened = record_opens(monkeypatch, guard)
    assert "a device" in refusal(guard.open, "/dev/null", os.O_RDONLY, access="read").data["reason"]
    assert opened == [os.O_PATH]


def test_what_becomes_a_fifo_after_the_look_is_not_waited_for(guard, tree, monkeypatch):
    """The look sees a file, then it is swapped: the open must neither block nor hand the FIFO out."""
    before = len(os.listdir("/proc/self/fd"))

    def swap_after_look(flags):
        if flags & os.O_PATH:
            os.unlink(tree / "file")
            os.mkfifo(tree / "file")

    record_opens(monkeypatch, guard, after=swap_after_look)
    refusal(guard.open, str(tree / "file"), os.O_RDONLY, access="read")
    assert len(os.listdir("/proc/self/fd")) == before


def record_opens(monkeypatch, guard, after=lambda _flags: None):
    """The flags of each open that reaches the mechanism."""
    real, flags_seen = guard._open, []

    def recorded(root, path, flags):
        descriptor = real(root, path, flags)
        flags_seen.append(flags)
        after(flags)
        return descriptor

    monkeypatch.setattr(guard, "_open", recorded)
    return flags_seen


def test_a_new_file_gets_the_mode_it_is_given(guard, tree):
    # As far as this process's umask lets it.
    former = os.umask(0o022)
    try:
        descriptor = guard.open(str(tree / "new"), os.O_WRONLY | os.O_CREAT, 0o640, access="write")
    finally:
        os.umask(former)
    os.write(descriptor, b"x")
    os.close(descriptor)
    assert stat.S_IMODE((tree / "new").stat().st_mode) == 0o640


def test_an_existing_file_opens_for_writing_with_or_without_create(guard, tree):
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        os.close(guard.open(str(tree / "to-file"), flags, access="write"))
    assert (tree / "file").read_text() == ""


def test_exclusive_creation_takes_nothing_that_is_there(guard, tree):
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for name in ("file", "sub", "to-file", "dangling", "absolute", "relative-out"):
        with pytest.raises((FileExistsError, IsADirectoryError)):
            guard.open(str(tree / name), flags, access="write")
    os.close(guard.open(str(tree / "new"), flags, access="write"))
    assert (tree / "new").read_text() == ""


def test_nothing_is_created_through_a_link(guard, tree):
    flags = os.O_WRONLY | os.O_CREAT
    with pytest.raises(FileNotFoundError):
        guard.open(str(tree / "dangling"), flags, access="write")
    refusal(guard.open, str(tree / "relative-out-missing"), flags, access="write")
    assert not (tree / "nothing").exists()
    assert not (tree.parent / "no-such-secret").exists()


def test_a_file_that_is_created_in_between_has_it_opened(guard, tree, monkeypatch):
    real = guard.open_parent

    def somebody_is_faster(path, *, access):
        (tree / "new").write_text("theirs")
        return real(path, access=access)

    monkeypatch.setattr(guard, "open_parent", somebody_is_faster)
    descriptor = guard.open(str(tree / "new"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, access="write")
    os.write(descriptor, b" and ours")
    os.close(descriptor)
    assert (tree / "new").read_text() == "theirs and ours"


def test_the_parent_must_exist(guard, tree):
    with pytest.raises(FileNotFoundError):
        guard.open(str(tree / "no" / "new"), os.O_WRONLY | os.O_CREAT, access="write")
    with pytest.raises(FileNotFoundError):
        guard.open_parent(str(tree / "no" / "new"), access="write")
    with pytest.raises(NotADirectoryError):
        guard.open_parent(str(tree / "file" / "new"), access="write")


@pytest.mark.parametrize(
    ("path", "parent", "name"),
    [
        ("file", "", "file"), ("nothing", "", "nothing"), ("sub/new", "sub", "new"), ("to-sub/new", "sub", "new"),
        ("absolute", "", "absolute"), ("sub/", "", "sub"), ("sub/.", "", "sub"), ("sub/../sub/x", "sub", "x"),
        ("sub/up/nö", "", "nö"),
    ],
)  # fmt: skip
def test_a_parent_comes_with_the_last_component_unfollowed(guard, tree, path, parent, name):
    descriptor, last = guard.open_parent(f"{tree}/{path}", access="write")
    try:
        assert os.path.samestat(os.fstat(descriptor), os.stat(tree / parent))
        assert last == name
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "is a directory that [files] write allows"),
        ("/", "is a directory that [files] write allows"),
        ("/.", "is a directory that [files] write allows"),
        ("/..", 'ends in ".."'),
        ("/sub/..", 'ends in ".."'),
        ("/../x", "leads out"),
        ("/to-outside/file", "leads out"),
        ("/sub/../../x", "leads out"),
        ("/loop/x", "too many symbolic links"),
    ],
)
def test_a_parent_that_is_not_beneath_the_root_is_refused(guard, tree, path, reason):
    assert reason in refusal(guard.open_parent, f"{tree}{path}", access="write").data["reason"]


@pytest.mark.parametrize(("path", "error"), [("file/", NotADirectoryError), ("nothing/", FileNotFoundError)])
def test_a_slash_at_the_end_asks_for_a_directory(guard, tree, path, error):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error):
        guard.open_parent(f"{tree}/{path}", access="write")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_can_be_named_as_it_was_written_and_by_its_real_path(make_guard, tree):
    alias = tree.parent / "alias"
    alias.symlink_to(tree)
    guard = make_guard(read=[alias])
    assert read(guard, alias / "file") == "inside"
    assert read(guard, tree.resolve() / "file") == "inside"


def test_the_whole_machine_can_be_a_root(make_guard, tree):
    guard = make_guard(read=[Path("/")])
    assert read(guard, tree / "file") == "inside"
    assert "leads out" in refusal(guard.open, str(tree / "absolute"), os.O_RDONLY, access="read").data["reason"]


def test_a_root_within_a_root_adds_to_it(make_guard, tree):
    """A link that leaves the inner root but not the outer one is fine by the outer one, in either order."""
    for roots in ([tree, tree / "sub"], [tree / "sub", tree]):
        guard = make_guard(read=roots, write=roots)
        assert read(guard, tree / "sub" / "up" / "file") == "inside"
        assert "allows" in refusal(guard.open_parent, str(tree / "sub"), access="write").data["reason"]
        refusal(guard.open, str(tree / "sub" / "out" / "file"), os.O_RDONLY, access="read")


def test_replacing_the_root_by_a_link_gains_nothing(guard, tree):
    tree.rename(tree.with_name("moved"))
    tree.symlink_to(tree.parent / "outside")
    assert read(guard, tree / "file") == "inside"


def test_a_root_that_is_gone_holds_nothing(guard, tree, tmp_path):
    import shutil

    shutil.rmtree(tree)
    tree.mkdir()
    (tree / "file").write_text("somebody else's")
    with pytest.raises(FileNotFoundError):
        guard.open(str(tree / "file"), os.O_RDONLY, access="read")


@pytest.mark.parametrize(
    ("name", "said"),
    [("missing", "No such file"), ("file", "name the dir"), ("nul\0nul", "null [bc]"), ("loop", "symbolic links")],
)
def test_a_root_that_cannot_be_opened_is_a_configuration_error_that_names_the_key(use_openat2, tree, name, said):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=said) as refused:
        PathGuard([tree], [tree, tree / name], use_openat2=use_openat2)
    assert str(refused.value).startswith(f"[files] write: {str(tree / name)!r}")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_relative_root_is_a_configuration_error(use_openat2):
    with pytest.raises(ConfigError, match=r"\[files\] read: 'data' is not absolute"):
        PathGuard([Path("data")], use_openat2=use_openat2)


def test_a_closed_guard_refuses_everything_and_can_be_closed_again(use_openat2, tree):
    with closing(PathGuard([tree], use_openat2=use_openat2)) as guard:
        guard.check(str(tree / "file"), "read")
    refusal(guard.open, str(tree / "file"), os.O_RDONLY, access="read")
    guard.close()


def test_no_descriptor_is_left_behind(guard, tree):
    before = sorted(os.listdir("/proc/self/fd"))
    paths = "file", "chain/deep/up-and-down", "sub/out/file", "loop", "nothing/x", "file/x", "../x", "sub", "to-dot/x"
    for path in paths:
        for call in (guard.check, guard.check_nowait):
            with contextlib.suppress(PermissionDenied):
                call(f"{tree}/{path}", "read")
        with contextlib.suppress(PermissionDenied, OSError):
            os.close(guard.open(f"{tree}/{path}", os.O_RDONLY, access="read"))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_may_not_be_searched_is_what_the_kernel_says_it_is(guard, tree):
    os.chmod(tree / "sub", 0)
    try:
        with ordinary_user():
            guard.check(str(tree / "sub" / "file"), "read")
            with pytest.raises(PermissionError):
                guard.open(str(tree / "sub" / "file"), os.O_RDONLY, access="read")
    finally:
        os.chmod(tree / "sub", 0o755)


def test_magic_links_lead_nowhere_even_beneath_a_root(make_guard, tree):
    """/proc as a root: its ordinary files are there, its links to other places are not."""
    guard = make_guard(read=[Path("/proc")])
    pid = os.getpid()
    with open(tree.parent / "secret") as secret:
        for door in (f"fd/{secret.fileno()}", "root/etc/passwd", "cwd/x", "exe", f"task/{pid}/root/etc/passwd"):
            refusal(guard.open, f"/proc/{pid}/{door}", os.O_RDONLY, access="read")
            refusal(guard.open, f"/proc/self/{door}", os.O_RDONLY, access="read")
    assert read(guard, "/proc/self/comm").strip() == (Path("/proc/self/comm").read_text().strip())


def test_a_magic_link_without_a_path_opens_nothing_either(make_guard):
    guard = make_guard(read=[Path("/proc")])
    reading, writing = os.pipe()
    try:
        with pytest.raises((PermissionDenied, FileNotFoundError)):
            guard.open(f"/proc/self/fd/{reading}", os.O_RDONLY, access="read")
        with pytest.raises((PermissionDenied, FileNotFoundError)):
            guard.open("/proc/self/ns/mnt", os.O_RDONLY, access="read")
    finally:
        os.close(reading)
        os.close(writing)


def test_too_many_links_are_refused_and_forty_are_not(guard, tree):
    (tree / "link0").symlink_to("file")
    for number in range(1, 41):
        (tree / f"link{number}").symlink_to(f"link{number - 1}")
    assert read(guard, tree / "link39") == "inside"
    assert "too many" in refusal(guard.open, str(tree / "link40"), os.O_RDONLY, access="read").data["reason"]


def test_a_mount_beneath_the_root_is_part_of_it(guard, tree, mount):
    """Only the operator can mount, so what is mounted belongs there; `..` leaves it where it is mounted."""
    mount(tree.parent / "outside", tree / "sub" / "deep")
    assert read(guard, tree / "sub" / "deep" / "file") == "SECRET"
    assert read(guard, tree / "sub" / "deep" / ".." / "file") == "inside"
    refusal(guard.check, f"{tree}/sub/deep/../../../secret", "read")


def test_a_mount_over_the_root_after_the_start_changes_nothing(guard, tree, mount):
    mount(tree.parent / "outside", tree)
    assert read(guard, tree / "file") == "inside"


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff\xfe", b"new\nline", b"\x01", "naïve ☃".encode()])
def test_a_directory_with_unusual_names_opens_and_lists(guard, tree, name):
    (tree / "sub" / os.fsdecode(name)).write_text("inside")
    descriptor = guard.open(str(tree / "sub"), os.O_RDONLY | os.O_DIRECTORY, access="read")
    try:
        assert name in map(os.fsencode, os.listdir(descriptor))
    finally:
        os.close(descriptor)


def test_a_name_in_utf8_is_found_whatever_its_script(guard, tree):
    (tree / "наладка ☃").write_text("inside")
    assert read(guard, tree / "наладка ☃") == "inside"


# Races. The mechanisms must win every one of thousands, and the names they may end at are all "inside".


def swap_until(stopped, first, second, parked):
    while not stopped.is_set():
        os.rename(first, parked)
        os.rename(second, first)
        os.rename(first, second)
        os.rename(parked, first)


def tries(found):
    """Three thousand, and more until what is inside has been seen: how two threads take turns is left to chance."""
    for number in range(300_000):
        if number >= 3000 and "inside" in found:
            return
        yield number


@pytest.mark.slow
@pytest.mark.parametrize("path", ["door/file", "door/../door/file", "door/deep/../file"])
def test_a_directory_that_is_swapped_for_a_link_while_paths_are_opened_never_lets_one_out(guard, tree, path):
    (tree / "door").mkdir()
    (tree / "door" / "deep").mkdir()
    (tree / "door" / "file").write_text("inside")
    (tree.parent / "outside" / "deep").mkdir()
    (tree / "trap").symlink_to("../outside")
    stopped = threading.Event()
    swapper = threading.Thread(
        target=swap_until, args=(stopped, tree / "door", tree / "trap", tree / "parked"), daemon=True
    )
    swapper.start()
    found = set()
    try:
        for _ in tries(found):
            try:
                found.add(read(guard, f"{tree}/{path}"))
            except (PermissionDenied, OSError) as error:
                found.add(type(error))
            try:
                descriptor, _name = guard.open_parent(f"{tree}/{path}", access="write")
            except (PermissionDenied, OSError):
                continue
            assert not os.path.samestat(os.fstat(descriptor), os.stat(tree.parent / "outside"))
            os.close(descriptor)
    finally:
        stopped.set()
        swapper.join(60)
    assert not swapper.is_alive()
    assert "SECRET" not in found
    assert "inside" in found


@pytest.mark.slow
def test_a_file_that_is_swapped_for_a_link_while_it_is_opened_is_never_followed_out(guard, tree):
    (tree / "trap").symlink_to("../secret")
    stopped = threading.Event()
    swapper = threading.Thread(
        target=swap_until, args=(stopped, tree / "file", tree / "trap", tree / "parked"), daemon=True
    )
    swapper.start()
    found = set()
    try:
        for _ in tries(found):
            try:
                found.add(read(guard, tree / "file"))
                os.close(guard.open(str(tree / "file"), os.O_WRONLY | os.O_APPEND, access="write"))
            except (PermissionDenied, OSError):
                continue
    finally:
        stopped.set()
        swapper.join(60)
    assert not swapper.is_alive()
    assert found == {"inside"}


# The two mechanisms against each other, and against what the file system itself says.

PLAIN = ["", ".", "..", "file", "sub", "deep", "nothing"]
LINKS = ["to-file", "to-sub", "to-dot", "chain", "up", "up-and-down", "dangling", "absolute", "relative-out"]
ODD_LINKS = ["to-outside", "out", "loop", "file-as-directory", "proc-root"]
NAMES = st.sampled_from([*PLAIN, *LINKS, *ODD_LINKS])


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(NAMES, max_size=8))
def test_both_mechanisms_say_the_same_and_never_leave_the_root(tree, names):
    if not beneath.works(beneath.by_openat2):
        pytest.skip("this kernel or sandbox has no openat2")
    path = "/".join([str(tree), *names])
    verdicts = []
    for use_openat2 in (True, False):
        with closing(PathGuard([tree], use_openat2=use_openat2)) as guard:
            try:
                descriptor = guard.open(path, os.O_PATH, access="read")
            except PermissionDenied as error:
                verdicts.append(error.data["reason"])
            except OSError as error:
                verdicts.append(error.errno)
            else:
                found = os.fstat(descriptor)
                os.close(descriptor)
                real = os.path.realpath(path, strict=True)
                assert real == str(tree) or real.startswith(f"{tree}/")
                assert os.path.samestat(found, os.stat(real))
                verdicts.append((found.st_dev, found.st_ino))
    assert verdicts[0] == verdicts[1]


# What is particular to one mechanism.


def test_a_check_from_the_cache_gives_the_same_answers_or_none(make_guard, use_openat2, tree):
    guard = make_guard(read=[tree])
    refusal(guard.check_nowait, "/etc/passwd", "read")
    if not use_openat2 or not beneath.works(beneath.from_cache):
        assert guard.check_nowait(str(tree / "file"), "read") is False
        return
    (tree / "short").symlink_to("/etc")
    answers = []
    for path in [str(tree / "file"), str(tree / "short")] * 1000:
        try:
            answers.append(guard.check_nowait(path, "read"))
        except PermissionDenied as error:
            answers.append(error.data["path"])
    # The kernel may be unsure (a rename somewhere, a link nobody has read lately), but it is never wrong.
    assert True in answers[::2]
    assert set(answers[::2]) <= {True, False}
    assert set(answers[1::2]) <= {str(tree / "short"), False}


@pytest.mark.parametrize(("number", "settled"), [(errno.EAGAIN, False), (errno.ENOENT, True)])
def test_a_check_that_would_have_to_wait_says_so_and_a_missing_file_passes(guard, tree, monkeypatch, number, settled):
    def answer(_root, _path, _flags):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(guard, "_open_cached", answer)
    assert guard.check_nowait(str(tree / "file"), "read") is settled


def test_openat2_where_there_is_none_is_a_configuration_error_only_if_it_is_insisted_on(tree, monkeypatch):
    monkeypatch.setattr(paths_module, "works", lambda _mechanism: False)
    with pytest.raises(ConfigError, match="openat2 does not work here"):
        PathGuard([tree], use_openat2=True)
    with closing(PathGuard([tree])) as guard:
        assert read(guard, tree / "sub" / "up" / "file") == "inside"
        refusal(guard.check, str(tree / "absolute"), "read")


class FakeCalls:
    """A kernel that answers with these errors, one after the other."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *_args):
        self.calls += 1
        return -1 if self.errors else 77

    def errno(self):
        return self.errors.pop(0)


def test_openat2_is_asked_again_when_a_rename_got_in_its_way(monkeypatch):
    kernel = FakeCalls(errno.EAGAIN, errno.EINTR, errno.EAGAIN)
    monkeypatch.setattr(beneath, "_syscall", lambda: (kernel, kernel.errno))
    assert beneath.by_openat2(3, b"a/../b", os.O_RDONLY) == 77
    assert kernel.calls == 4


def test_openat2_is_not_asked_for_ever(monkeypatch):
    kernel = FakeCalls(*[errno.EAGAIN] * 1000)
    monkeypatch.setattr(beneath, "_syscall", lambda: (kernel, kernel.errno))
    with pytest.raises(BlockingIOError):
        beneath.by_openat2(3, b"a/../b", os.O_RDONLY)
    assert kernel.calls < 1000


def test_the_cache_is_asked_once(monkeypatch):
    kernel = FakeCalls(errno.EAGAIN, errno.EAGAIN)
    monkeypatch.setattr(beneath, "_syscall", lambda: (kernel, kernel.errno))
    with pytest.raises(BlockingIOError):
        beneath.from_cache(3, b"a", os.O_PATH)
    assert kernel.calls == 1


def test_a_mechanism_that_a_sandbox_forbids_does_not_work():
    def forbidden(_root, _path, _flags):
        raise PermissionError(errno.EPERM, "seccomp says no")

    assert beneath.works(forbidden) is False
