"""The file driver: whole changes, honest errors, and ways back that hurt nobody else's work."""

import base64
import errno
import gc
import os
import stat
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.users import ordinary_user

from hearth.drivers import files
from hearth.drivers.base import Style
from hearth.drivers.files import FileDriver
from hearth.errors import DeviceError, PermissionDenied
from hearth.policy.paths import PathGuard

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture(params=["best", "walk"])
def guard(request, root):
    with closing(PathGuard([root], [root], use_openat2=None if request.param == "best" else False)) as guard:
        yield guard


@pytest.fixture
def driver():
    return FileDriver()


@pytest.fixture(autouse=True)
def no_descriptor_is_left_behind():
    before = open_files()
    yield
    # Others may have been closed meanwhile: those of an earlier test that are garbage by now.
    assert open_files() <= before


def open_files():
    """The descriptors of this process with what they lead to, but for that of the listing itself."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def failure(call, *args, **keywords):
    with pytest.raises(DeviceError) as failed:
        call(*args, **keywords)
    return failed.value


def undo(driver, done):
    done.undo.op(driver)


def fail_at(monkeypatch, name, number, *, times=1000, after=0):
    """Let an `os` call of the drivers fail with this errno, a number of times, after that many that went well."""
    real = getattr(os, name)
    calls = []

    def failing(*args, **keywords):
        calls.append(args)
        if after < len(calls) <= after + times:
            raise OSError(number, os.strerror(number))
        return real(*args, **keywords)

    monkeypatch.setattr(os, name, failing)


def test_it_is_a_pool_of_four_threads(driver):
    assert (driver.style, driver.width) == (Style.THREAD, 4)
    assert driver.make_safe([1]) == []
    assert driver.describe() == {"kind": "files", "read_max": 262144, "write_max": 1048576, "undo_held": 0}


# Reading


def test_a_file_is_read_whole(driver, guard, root):
    (root / "a").write_bytes(b"\x00\xff hello")
    assert driver.read(guard, str(root / "a")) == {"data": b"\x00\xff hello", "size": 8, "eof": True}


def test_an_empty_file_is_at_its_end(driver, guard, root):
    (root / "a").touch()
    assert driver.read(guard, str(root / "a")) == {"data": b"", "size": 0, "eof": True}


@pytest.mark.parametrize(
    ("offset", "length", "data", "eof"),
    [
        (0, 3, b"012", False),
        (3, 7, b"3456789", True),
        (3, 8, b"3456789", True),
        (8, 1, b"8", False),
        (9, 1, b"9", True),
        (10, 5, b"", True),
        (2**53, 5, b"", True),
    ],
)
def test_a_part_of_a_file_says_whether_more_follows(driver, guard, root, offset, length, data, eof):
    (root / "a").write_bytes(b"0123456789")
    result = driver.read(guard, str(root / "a"), offset, length)
    assert (result["data"], result["size"], result["eof"]) == (data, 10, eof)


def test_a_large_file_is_read_piece_by_piece(driver, guard, root):
    content = os.urandom(files.READ_MAX * 2 + 17)
    (root / "a").write_bytes(content)
    got, eof = b"", False
    while not eof:
        result = driver.read(guard, str(root / "a"), len(got), 10**9)
        got, eof = got + result["data"], result["eof"]
        assert len(result["data"]) <= files.READ_MAX
    assert got == content


def test_a_read_that_comes_in_pieces_is_put_together(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: real(descriptor, min(length, 3), offset))
    assert driver.read(guard, str(root / "a"))["data"] == b"0123456789"


def test_a_file_of_proc_that_has_no_size_is_read_to_its_end(driver):
    with closing(PathGuard([Path("/proc")])) as guard:
        result = driver.read(guard, "/proc/self/status")
        assert result["data"].startswith(b"Name:")
        assert (result["size"], result["eof"]) == (0, True)
        part = driver.read(guard, "/proc/self/status", 0, 5)
        assert (part["data"], part["eof"]) == (b"Name:", False)


def test_a_missing_file_is_named_with_its_errno_and_no_effect(driver, guard, root):
    error = failure(driver.read, guard, str(root / "a"))
    assert error.data == {"effect": "none", "errno": "ENOENT", "path": str(root / "a")}
    assert error.message == f"{root}/a: No such file or directory"


@pytest.mark.parametrize("operation", ["read", "stat", "list"])
def test_nothing_is_read_outside_the_roots(driver, guard, root, operation):
    (root / "out").symlink_to("/etc")
    for path in ("/etc/passwd", "/etc", str(root / "out" / "passwd"), f"{root}/../x", "a"):
        with pytest.raises(PermissionDenied):
            getattr(driver, operation)(guard, path)


def test_a_fifo_is_refused_and_is_not_waited_for(driver, guard, root):
    os.mkfifo(root / "fifo")
    with pytest.raises(PermissionDenied, match="FIFO"):
        driver.read(guard, str(root / "fifo"))
    for mode in ("replace", "append"):
        assert failure(driver.write, guard, str(root / "fifo"), b"x", mode).data["errno"] == "EPERM"
    assert failure(driver.write, guard, str(root / "fifo"), b"x", "create").data["errno"] == "EEXIST"


# Looking


def test_stat_tells_type_size_time_and_permissions(driver, guard, root):
    (root / "a").write_bytes(b"12345")
    os.chmod(root / "a", 0o4640)
    os.utime(root / "a", ns=(0, 1_700_000_000_123_456_789))
    assert driver.stat(guard, str(root / "a")) == {
        "path": str(root / "a"),
        "type": "file",
        "size": 5,
        "mtime": 1_700_000_000.123,
        "mode": "4640",
    }


def test_stat_follows_links_and_takes_directories_fifos_and_the_root(driver, guard, root):
    (root / "sub").mkdir()
    (root / "link").symlink_to("sub")
    os.mkfifo(root / "fifo")
    types = {name: driver.stat(guard, f"{root}/{name}")["type"] for name in ("", "sub", "link", "fifo")}
    assert types == {"": "directory", "sub": "directory", "link": "directory", "fifo": "fifo"}


def test_a_listing_is_sorted_by_name_and_follows_no_link(driver, guard, root):
    for name in ("b", "a", "B", "ä", ".hidden", "a.txt"):
        (root / name).write_bytes(b"123")
    (root / "dir").mkdir()
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo")
    result = driver.list(guard, str(root))
    names = [entry["name"] for entry in result["entries"]]
    assert names == [".hidden", "B", "a", "a.txt", "b", "dir", "fifo", "link", "ä"]
    entries = {entry["name"]: entry for entry in result["entries"]}
    assert entries["a"].keys() == {"name", "type", "size", "mtime"}
    assert (entries["a"]["type"], entries["a"]["size"]) == ("file", 3)
    assert [entries[name]["type"] for name in ("dir", "fifo", "link")] == ["directory", "fifo", "symlink"]
    assert entries["link"]["target"] == "/etc/passwd"
    assert (result["path"], result["truncated"]) == (str(root), False)


def test_an_empty_directory_has_an_empty_listing(driver, guard, root):
    assert driver.list(guard, str(root)) == {"path": str(root), "entries": [], "truncated": False}


def test_names_that_are_not_utf8_are_marked_and_lossless(driver, guard, root):
    import orjson

    names = [b"caf\xe9", b"\xff", "ok ☃".encode(), b"new\nline", b"back\\slash"]
    for name in names:
        (root / os.fsdecode(name)).touch()
    (root / "link").symlink_to(os.fsdecode(b"\xfe"))
    result = driver.list(guard, str(root))
    orjson.dumps(result)
    found = {
        base64.b64decode(entry["name_base64"]) if "name_base64" in entry else entry["name"].encode()
        for entry in result["entries"]
    }
    assert found == {*names, b"link"}
    shown = {entry["name"] for entry in result["entries"] if "name_base64" in entry}
    assert shown == {"caf\\xe9", "\\xff"}


def test_a_listing_that_is_too_long_is_cut_after_the_first_names(driver, guard, root, monkeypatch):
    monkeypatch.setattr(files, "LIST_MAX", 3)
    for name in "edcba":
        (root / name).touch()
    result = driver.list(guard, str(root))
    assert ([entry["name"] for entry in result["entries"]], result["truncated"]) == (["a", "b", "c"], True)
    os.unlink(root / "e")
    os.unlink(root / "d")
    assert driver.list(guard, str(root))["truncated"] is False


@pytest.mark.slow
def test_a_listing_of_long_names_stays_within_a_document(driver, guard, root):
    import orjson

    for number in range(700):
        (root / (f"{number:03}" + "\x01" * 250)).touch()
    result = driver.list(guard, str(root))
    assert result["truncated"] is True
    assert 300 < len(result["entries"]) < 700
    assert len(orjson.dumps(result)) < 600_000


def test_what_is_deleted_while_it_is_listed_is_left_out(driver, guard, root, monkeypatch):
    for name in "abc":
        (root / name).touch()
    real = os.stat

    def racing(path, *args, **keywords):
        if path == b"b":
            os.unlink(root / "b")
        return real(path, *args, **keywords)

    monkeypatch.setattr(os, "stat", racing)
    assert [entry["name"] for entry in driver.list(guard, str(root))["entries"]] == ["a", "c"]


def test_what_may_not_be_looked_at_is_listed_as_unknown(driver, guard, root, monkeypatch):
    (root / "a").touch()
    fail_at(monkeypatch, "stat", errno.EACCES)
    entries = driver.list(guard, str(root))["entries"]
    assert entries == [{"name": "a", "type": "unknown"}]


def test_a_file_is_not_a_directory(driver, guard, root):
    (root / "a").touch()
    assert failure(driver.list, guard, str(root / "a")).data["errno"] == "ENOTDIR"


# Writing


def test_a_new_file_is_created_and_the_result_says_so(driver, guard, root):
    done = driver.write(guard, str(root / "a"), b"new")
    assert done.result == {"path": str(root / "a"), "size": 3, "created": True, "reversible": True}
    assert (root / "a").read_bytes() == b"new"
    assert done.undo.describe == f"remove {root}/a"


def test_a_new_file_gets_the_permissions_of_the_umask(driver, guard, root):
    before = os.umask(0o027)
    try:
        for mode in ("replace", "append", "create"):
            driver.write(guard, str(root / mode), b"x", mode)
            assert stat.S_IMODE((root / mode).stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_replacing_keeps_the_permissions_but_no_set_user_id(driver, guard, root):
    (root / "a").write_bytes(b"old")
    os.chmod(root / "a", 0o4751)
    done = driver.write(guard, str(root / "a"), b"new content")
    assert done.result == {"path": str(root / "a"), "size": 11, "created": False, "reversible": True}
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o751
    undo(driver, done)
    assert ((root / "a").read_bytes(), stat.S_IMODE((root / "a").stat().st_mode)) == (b"old", 0o751)


@as_root
def test_root_keeps_the_owner_of_what_it_replaces_and_restores(driver, guard, root):
    (root / "a").write_bytes(b"old")
    os.chown(root / "a", 1234, 2345)
    done = driver.write(guard, str(root / "a"), b"new")
    assert ((root / "a").stat().st_uid, (root / "a").stat().st_gid) == (1234, 2345)
    undo(driver, done)
    assert ((root / "a").stat().st_uid, (root / "a").stat().st_gid) == (1234, 2345)


def test_who_may_not_give_files_away_replaces_them_all_the_same(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"old")
    fail_at(monkeypatch, "fchown", errno.EPERM)
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    driver.write(guard, str(root / "a"), b"new")
    assert (root / "a").read_bytes() == b"new"


def test_a_reader_of_the_old_file_keeps_the_old_content(driver, guard, root):
    (root / "a").write_bytes(b"old")
    with open(root / "a", "rb") as reader:
        driver.write(guard, str(root / "a"), b"new")
        assert reader.read() == b"old"


@pytest.mark.slow
def test_readers_see_the_old_or_the_new_content_and_never_a_part(driver, guard, root):
    contents = [b"a" * 50_000, b"b" * 70_000]
    (root / "a").write_bytes(contents[0])
    seen, stopped = set(), threading.Event()

    def look():
        while not stopped.is_set():
            seen.add((root / "a").read_bytes())

    reader = threading.Thread(target=look, daemon=True)
    reader.start()
    for number in range(100):
        driver.write(guard, str(root / "a"), contents[number % 2])
    stopped.set()
    reader.join(60)
    assert not reader.is_alive()
    assert seen <= set(contents)


def test_nothing_but_the_file_is_left_in_the_directory(driver, guard, root):
    for mode in ("replace", "append", "create"):
        driver.write(guard, str(root / mode), b"x", mode)
    assert sorted(os.listdir(root)) == ["append", "create", "replace"]


def test_the_longest_possible_name_can_be_written(driver, guard, root):
    name = "n" * 255
    driver.write(guard, str(root / name), b"1")
    driver.write(guard, str(root / name), b"2")
    assert (root / name).read_bytes() == b"2"


def test_appending_adds_at_the_end_and_says_how_large_the_file_is_now(driver, guard, root):
    (root / "a").write_bytes(b"old ")
    done = driver.write(guard, str(root / "a"), b"new", "append")
    assert done.result == {"path": str(root / "a"), "size": 7, "created": False, "reversible": True}
    assert (root / "a").read_bytes() == b"old new"
    assert done.undo.describe == f"{root}/a back to its former 4 bytes"


def test_appending_to_nothing_creates(driver, guard, root):
    done = driver.write(guard, str(root / "a"), b"new", "append")
    assert (done.result["created"], done.result["size"]) == (True, 3)
    undo(driver, done)
    assert not (root / "a").exists()


def test_appending_nothing_changes_nothing(driver, guard, root):
    (root / "a").write_bytes(b"old")
    done = driver.write(guard, str(root / "a"), b"", "append")
    assert done.result["size"] == 3
    undo(driver, done)
    assert (root / "a").read_bytes() == b"old"


def test_creating_takes_nothing_that_is_there(driver, guard, root):
    (root / "a").write_bytes(b"old")
    (root / "dangling").symlink_to("nothing")
    for name in ("a", "dangling"):
        error = failure(driver.write, guard, str(root / name), b"new", "create")
        assert (error.data["errno"], error.data["effect"]) == ("EEXIST", "none")
    assert (root / "a").read_bytes() == b"old"
    assert not (root / "nothing").exists()


@pytest.mark.parametrize("mode", ["replace", "append"])
@pytest.mark.parametrize("target", ["a", "nothing", "/etc/passwd", "../outside"])
def test_nothing_is_written_through_a_link_at_the_end(driver, guard, root, mode, target):
    (root / "a").write_bytes(b"old")
    (root / "link").symlink_to(target)
    (root.parent / "outside").write_bytes(b"old")
    error = failure(driver.write, guard, str(root / "link"), b"new", mode)
    assert (error.data["errno"], error.data["effect"]) == ("ELOOP", "none")
    assert "write to its target" in error.message
    assert (root / "link").is_symlink()
    assert (root / "a").read_bytes() == (root.parent / "outside").read_bytes() == b"old"


@pytest.mark.parametrize("mode", ["replace", "append", "create"])
def test_a_directory_is_not_written(driver, guard, root, mode):
    (root / "sub").mkdir()
    error = failure(driver.write, guard, str(root / "sub"), b"new", mode)
    assert (error.data["errno"], error.data["effect"]) == ("EEXIST" if mode == "create" else "EISDIR", "none")
    with pytest.raises(PermissionDenied):
        driver.write(guard, str(root), b"new", mode)


def test_the_directory_must_exist(driver, guard, root):
    error = failure(driver.write, guard, str(root / "no" / "a"), b"new")
    assert (error.data["errno"], error.data["effect"]) == ("ENOENT", "none")


def test_a_link_in_the_middle_is_followed_beneath_the_root(driver, guard, root):
    (root / "sub").mkdir()
    (root / "link").symlink_to("sub")
    driver.write(guard, str(root / "link" / "a"), b"new")
    assert (root / "sub" / "a").read_bytes() == b"new"


def test_nothing_is_written_or_deleted_outside_the_roots(driver, guard, root):
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"old")
    (root / "out").symlink_to("../outside")
    (root / "a").symlink_to("../outside/a")
    for path in (outside / "a", root / "out" / "a", f"{root}/../outside/a"):
        for mode in ("replace", "append", "create"):
            with pytest.raises(PermissionDenied):
                driver.write(guard, str(path), b"new", mode)
        with pytest.raises(PermissionDenied):
            driver.delete(guard, str(path))
    with pytest.raises(PermissionDenied):
        driver.delete(guard, str(root / "a"))
    assert (outside / "a").read_bytes() == b"old"


@pytest.mark.parametrize("mode", ["replace", "create"])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_everything_as_it_was(driver, guard, root, monkeypatch, mode, call):
    if mode == "replace":
        (root / "a").write_bytes(b"old")
    before = os.listdir(root)
    fail_at(monkeypatch, call, errno.ENOSPC)
    error = failure(driver.write, guard, str(root / "a"), b"new", mode)
    assert (error.data["errno"], error.data["effect"]) == ("ENOSPC", "none")
    assert os.listdir(root) == before


def test_a_rename_that_fails_leaves_everything_as_it_was(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"old")
    fail_at(monkeypatch, "rename", errno.EACCES)
    assert failure(driver.write, guard, str(root / "a"), b"new").data["effect"] == "none"
    assert [(name, (root / name).read_bytes()) for name in os.listdir(root)] == [("a", b"old")]


@pytest.mark.parametrize(
    ("mode", "exists", "good"), [("replace", True, 1), ("replace", False, 1), ("create", False, 1), ("append", True, 0)]
)
def test_a_change_that_may_not_have_reached_the_disk_is_said_to_be_done(
    driver, guard, root, monkeypatch, mode, exists, good
):
    """The last flush fails: everybody sees the new content, and the error says so."""
    if exists:
        (root / "a").write_bytes(b"")
    fail_at(monkeypatch, "fsync", errno.EIO, after=good)
    error = failure(driver.write, guard, str(root / "a"), b"new", mode)
    assert (error.data["errno"], error.data["effect"]) == ("EIO", "done")
    assert (root / "a").read_bytes() == b"new"


def test_an_append_that_stops_halfway_says_that_the_effect_is_unknown(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"old")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1]))
    fail_at(monkeypatch, "write", errno.ENOSPC, after=1)
    error = failure(driver.write, guard, str(root / "a"), b"new", "append")
    assert (error.data["errno"], error.data["effect"]) == ("ENOSPC", "unknown")
    assert (root / "a").read_bytes() == b"oldn"


def test_an_append_that_does_not_begin_has_no_effect(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"old")
    fail_at(monkeypatch, "write", errno.ENOSPC)
    assert failure(driver.write, guard, str(root / "a"), b"new", "append").data["effect"] == "none"


def test_a_write_that_goes_out_in_pieces_is_whole(driver, guard, root, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    for mode in ("create", "append", "replace"):
        driver.write(guard, str(root / "a"), b"0123456789", mode)
    assert (root / "a").read_bytes() == b"0123456789"


def test_a_file_that_becomes_something_else_at_the_last_moment_is_left_alone(driver, guard, root, monkeypatch):
    for number, (kind, expected) in enumerate([("fifo", {"ENXIO", "EPERM"}), ("link", {"ELOOP"})]):
        path = root / str(number)
        path.write_bytes(b"old")
        (root / "target").write_bytes(b"old")
        real = files.look

        def look(shown, parent, name, path=path, kind=kind, real=real):
            status = real(shown, parent, name)
            os.unlink(path)
            if kind == "fifo":
                os.mkfifo(path)
            else:
                path.symlink_to("target")
            return status

        monkeypatch.setattr(files, "look", look)
        error = failure(driver.write, guard, str(path), b"new", "append")
        monkeypatch.setattr(files, "look", real)
        assert error.data["errno"] in expected
        assert error.data["effect"] == "none"
        assert (root / "target").read_bytes() == b"old"


def test_what_is_a_fifo_with_a_reader_is_not_taken_for_the_file_it_was(root):
    os.mkfifo(root / "fifo")
    reader = os.open(root / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    parent = os.open(root, os.O_PATH)
    try:
        with pytest.raises(OSError, match="not a regular file any more"):
            files.open_regular(parent, "fifo", os.O_WRONLY)
    finally:
        os.close(reader)
        os.close(parent)


def test_a_directory_that_may_be_searched_but_not_read_can_still_be_written(driver, guard, root, monkeypatch):
    real = os.open

    def unreadable(path, flags, *args, **keywords):
        if path == ".":
            raise PermissionError(errno.EACCES, "no")
        return real(path, flags, *args, **keywords)

    monkeypatch.setattr(os, "open", unreadable)
    driver.write(guard, str(root / "a"), b"new")
    assert (root / "a").read_bytes() == b"new"


def test_an_errno_without_a_name_is_given_as_its_number():
    assert files.device_error("/a", OSError(99999, "strange")).data["errno"] == "99999"


# Deleting


def test_files_links_and_empty_directories_are_deleted(driver, guard, root):
    (root / "file").touch()
    (root / "dir").mkdir()
    (root / "kept").touch()
    (root / "symlink").symlink_to("kept")
    (root / "dangling").symlink_to("nothing")
    deleted = {name: driver.delete(guard, str(root / name)) for name in ("file", "dir", "symlink", "dangling")}
    assert {name: result["deleted"] for name, result in deleted.items()} == {
        "file": "file",
        "dir": "directory",
        "symlink": "symlink",
        "dangling": "symlink",
    }
    assert deleted["file"]["path"] == str(root / "file")
    assert os.listdir(root) == ["kept"]


def test_a_directory_with_something_in_it_stays(driver, guard, root):
    (root / "dir").mkdir()
    (root / "dir" / "file").touch()
    error = failure(driver.delete, guard, str(root / "dir"))
    assert (error.data["errno"], error.data["effect"]) == ("ENOTEMPTY", "none")


def test_other_things_than_files_stay(driver, guard, root):
    os.mkfifo(root / "fifo")
    error = failure(driver.delete, guard, str(root / "fifo"))
    assert (error.data["errno"], error.data["effect"]) == ("EPERM", "none")
    assert (root / "fifo").exists()


def test_a_root_is_not_deleted(driver, guard, root):
    for path in (str(root), f"{root}/", f"{root}/."):
        with pytest.raises(PermissionDenied):
            driver.delete(guard, path)


def test_deleting_what_is_not_there_is_an_error_without_effect(driver, guard, root):
    assert failure(driver.delete, guard, str(root / "a")).data == {
        "effect": "none",
        "errno": "ENOENT",
        "path": str(root / "a"),
    }


def test_a_deletion_that_may_not_have_reached_the_disk_is_said_to_be_done(driver, guard, root, monkeypatch):
    (root / "a").touch()
    fail_at(monkeypatch, "fsync", errno.EIO)
    assert failure(driver.delete, guard, str(root / "a")).data["effect"] == "done"
    assert not (root / "a").exists()


# Ways back


def test_a_replaced_file_gets_its_content_back(driver, guard, root):
    (root / "a").write_bytes(b"old content")
    done = driver.write(guard, str(root / "a"), b"new")
    assert done.undo.describe == f"{root}/a back to its former 11 bytes"
    undo(driver, done)
    assert (root / "a").read_bytes() == b"old content"


@pytest.mark.parametrize("mode", ["replace", "create"])
def test_a_created_file_is_removed(driver, guard, root, mode):
    done = driver.write(guard, str(root / "a"), b"new", mode)
    undo(driver, done)
    assert os.listdir(root) == []


def test_what_was_appended_is_cut_off(driver, guard, root):
    (root / "a").write_bytes(b"old")
    done = driver.write(guard, str(root / "a"), b"new", "append")
    undo(driver, done)
    assert (root / "a").read_bytes() == b"old"


def test_the_steps_of_a_task_on_one_file_are_undone_in_reverse(driver, guard, root):
    (root / "a").write_bytes(b"0")
    done = [
        driver.write(guard, str(root / "a"), b"1"),
        driver.write(guard, str(root / "a"), b"2", "append"),
        driver.write(guard, str(root / "a"), b"3"),
        driver.write(guard, str(root / "a"), b"4", "append"),
        driver.write(guard, str(root / "b"), b"5", "create"),
        driver.write(guard, str(root / "b"), b"6"),
    ]
    for step in reversed(done):
        undo(driver, step)
    assert (os.listdir(root), (root / "a").read_bytes()) == (["a"], b"0")


@pytest.mark.parametrize("mode", ["replace", "append", "create"])
@pytest.mark.parametrize("change", [b"", b"new and more", b"nEw", b"somebody else's work"])
def test_what_another_has_changed_since_is_left_as_it_is(driver, guard, root, mode, change):
    if mode != "create":
        (root / "a").write_bytes(b"")
    done = driver.write(guard, str(root / "a"), b"new", mode)
    (root / "a").write_bytes(change)
    error = failure(undo, driver, done)
    assert (error.data["errno"], error.data["effect"]) == ("ESTALE", "none")
    assert (root / "a").read_bytes() == change


def test_a_way_back_to_a_file_that_is_gone_is_an_error_without_effect(driver, guard, root):
    done = driver.write(guard, str(root / "a"), b"new")
    os.unlink(root / "a")
    error = failure(undo, driver, done)
    assert (error.data["errno"], error.data["effect"]) == ("ENOENT", "none")


def test_a_way_back_never_leads_out_of_the_roots(driver, guard, root):
    (root / "sub").mkdir()
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "a").write_bytes(b"new")
    done = driver.write(guard, str(root / "sub" / "a"), b"new")
    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to("../outside")
    with pytest.raises(PermissionDenied):
        undo(driver, done)
    assert (root.parent / "outside" / "a").read_bytes() == b"new"


@pytest.mark.parametrize("mode", ["replace", "append", "create"])
def test_a_way_back_that_may_not_have_reached_the_disk_is_said_to_be_done(driver, guard, root, monkeypatch, mode):
    if mode != "create":
        (root / "a").write_bytes(b"old")
    done = driver.write(guard, str(root / "a"), b"new", mode)
    fail_at(monkeypatch, "fsync", errno.EIO, after=1 if mode == "replace" else 0)
    assert failure(undo, driver, done).data["effect"] == "done"


def test_appends_of_two_tasks_do_not_undo_each_other(driver, guard, root):
    (root / "a").write_bytes(b"0")
    ours = driver.write(guard, str(root / "a"), b"1", "append")
    theirs = driver.write(guard, str(root / "a"), b"2", "append")
    assert failure(undo, driver, ours).data["errno"] == "ESTALE"
    undo(driver, theirs)
    undo(driver, ours)
    assert (root / "a").read_bytes() == b"0"


def test_a_file_that_is_too_large_to_keep_is_replaced_without_a_way_back(driver, guard, root, monkeypatch):
    monkeypatch.setattr(files, "UNDO_MAX", 4)
    (root / "a").write_bytes(b"01234")
    done = driver.write(guard, str(root / "a"), b"new")
    assert (done.undo, done.result["reversible"]) == (None, False)
    assert (root / "a").read_bytes() == b"new"
    assert driver.write(guard, str(root / "a"), b"newer").undo is not None


def test_a_file_that_grows_too_large_while_it_is_kept_has_no_way_back(driver, guard, root, monkeypatch):
    monkeypatch.setattr(files, "UNDO_MAX", 4)
    (root / "a").write_bytes(b"0123")
    real = files.open_regular

    def grow(*args):
        with open(root / "a", "ab") as file:
            file.write(b"4")
        return real(*args)

    monkeypatch.setattr(files, "open_regular", grow)
    assert driver.write(guard, str(root / "a"), b"new").undo is None


def test_a_file_that_may_be_replaced_but_not_read_has_no_way_back(driver, guard, root, monkeypatch):
    (root / "a").write_bytes(b"old")

    def unreadable(*_args):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(files, "open_regular", unreadable)
    assert driver.write(guard, str(root / "a"), b"new").result["reversible"] is False
    assert (root / "a").read_bytes() == b"new"


def test_former_content_is_counted_bounded_and_forgotten(driver, guard, root, monkeypatch):
    monkeypatch.setattr(files, "UNDO_TOTAL", 10)
    for name in "abc":
        (root / name).write_bytes(b"12345")
    kept = [driver.write(guard, str(root / name), b"") for name in "abc"]
    assert [done.result["reversible"] for done in kept] == [True, True, False]
    assert driver.describe()["undo_held"] == 10
    undo(driver, kept[0])
    del kept
    gc.collect()
    assert driver.describe()["undo_held"] == 0


def test_an_unreadable_directory_is_an_honest_error(driver, guard, root, monkeypatch):
    fail_at(monkeypatch, "scandir", errno.EIO)
    assert failure(driver.list, guard, str(root)).data == {"effect": "none", "errno": "EIO", "path": str(root)}


def test_what_the_daemon_may_not_read_is_a_device_error_and_no_denial(driver, guard, root):
    (root / "a").touch(0)
    with ordinary_user():
        assert failure(driver.read, guard, str(root / "a")).data["errno"] == "EACCES"
