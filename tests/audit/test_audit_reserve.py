"""The file of the reserve: all of its room or none, with fallocate(2) or without, given up whole."""

from __future__ import annotations

import errno
import os

import pytest

from hearth.audit.reserve import Reserve
from hearth.audit.writer import Disk

SIZE = 200_000


@pytest.fixture
def reserve(tmp_path):
    return Reserve(tmp_path / "audit.log.reserve", SIZE, Disk())


def taken(path):
    return path.stat().st_blocks * 512


def test_it_takes_its_room_and_gives_it_up(reserve):
    reserve.make()
    assert reserve.held
    assert taken(reserve.path) >= SIZE
    assert reserve.path.stat().st_mode & 0o777 == 0o600
    reserve.spend()
    assert not reserve.path.exists()
    assert (reserve.held, reserve.spent) == (False, True)
    reserve.make()
    assert (reserve.held, reserve.spent) == (True, False)


def test_where_there_is_no_fallocate_its_room_is_written(reserve, monkeypatch):
    def no_such_call(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", no_such_call)
    reserve.make()
    assert reserve.path.read_bytes() == bytes(SIZE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_one_that_cannot_be_had_whole_takes_nothing_and_says_why(reserve, monkeypatch, number):
    def fails(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        reserve.make()
    assert taken(reserve.path) == 0
    assert not reserve.held
    assert os.strerror(number) in reserve.problem
    reserve.spend()
    assert not reserve.spent, "there was nothing to give up"


def test_one_that_would_take_more_than_half_of_the_room_is_not_made(reserve, monkeypatch):
    real = os.fstatvfs

    def small(fd):
        found = list(real(fd))
        found[1], found[4] = 1, 2 * SIZE - 1
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "fstatvfs", small)
    with pytest.raises(OSError, match="No space left"):
        reserve.make()


def test_something_else_in_its_place_is_left_alone(reserve, tmp_path):
    os.mkfifo(reserve.path)
    with pytest.raises(OSError, match="not a regular file"):
        reserve.make()
    reserve.path.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"kept")
    reserve.path.symlink_to(other)
    with pytest.raises(OSError, match="symbolic links"):
        reserve.make()
    assert other.read_bytes() == b"kept"
