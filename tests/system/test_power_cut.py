"""The power is cut at every point of a daemon's life, with durability = "fsync": what was acknowledged is still there.

The model of what a cut may leave is tests/crash/powercut.py; `make crash` cuts far more often (docs/reliability.md).
"""

from __future__ import annotations

import base64
import random

import pytest
from crash import cuts
from crash.powercut import STYLES, Storage, lay_out
from support.zygote import Zygote

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.mark.proof
def test_wherever_the_power_is_cut_nothing_acknowledged_is_lost_and_the_log_goes_on(tmp_path):
    zygote = Zygote(tmp_path, "crash.child:main")
    try:
        figures = cuts.run(tmp_path, zygote, lives=1, variants=2, real=200)
    finally:
        zygote.close()
    assert figures.scenarios == 2
    assert figures.cuts > 200
    assert figures.daemons


# --- the model itself: a test that everything survives would find nothing


def tape(*entries):
    """Lines of a tape beneath /r, whose directory is on the disk."""
    made = [{"op": "mkdir", "path": "/r/d"}, {"op": "sync directory", "path": "/r"}]
    return Storage("/r/d").replay([*made, *entries])


def create(name, handle):
    return {"op": "create", "path": f"/r/d/{name}", "handle": handle, "new": True, "empty": False}


def write(handle, offset, data):
    return {"op": "write", "handle": handle, "offset": offset, "data": base64.b64encode(data).decode()}


NAMES = {"op": "sync directory", "path": "/r/d"}


def states(storage, *, loose=True):
    """All that a cut may leave, as far as a thousand tries find it."""
    found = []
    for seed in range(1000):
        left = storage.left(random.Random(seed), STYLES[seed % len(STYLES)], loose=loose)
        state = {name.removeprefix("/r/d/"): content for name, content in left.items() if content is not None}
        if state not in found:
            found.append(state)
    return found


def test_what_was_synced_with_its_name_is_left_by_every_cut():
    storage = tape(create("a", "1"), write("1", 0, b"x" * 5000), {"op": "sync", "handle": "1"}, NAMES)
    assert states(storage) == [{"a": b"x" * 5000}]


def test_a_name_that_was_not_synced_may_be_lost_with_all_that_is_in_the_file():
    storage = tape(create("a", "1"), write("1", 0, b"x"), {"op": "sync", "handle": "1"})
    assert {} in states(storage)


def test_of_bytes_that_were_not_synced_there_may_be_a_part_a_hole_zeros_or_garbage_and_never_less_than_was_synced():
    storage = tape(create("a", "1"), NAMES, write("1", 0, b"x" * 700), {"op": "sync", "handle": "1"})
    storage.apply(write("1", 700, b"y" * 2000))
    found = [state["a"] for state in states(storage)]
    assert all(content.startswith(b"x" * 700) for content in found)
    behind = [content[700:] for content in found]
    assert b"" in behind
    assert b"y" * 2000 in behind
    assert any(content and set(content) == {ord("y")} for content in behind if len(content) < 2000), "a part"
    assert any(b"\0" in content and content.endswith(b"y") for content in behind), "a hole"
    assert any(set(content) == {0} for content in behind if content), "zeros only"
    assert any(set(content) - {0, ord("y")} for content in behind), "garbage"


def test_a_truncation_that_was_not_synced_may_not_have_happened():
    storage = tape(create("a", "1"), NAMES, write("1", 0, b"x" * 700), {"op": "sync", "handle": "1"})
    storage.apply({"op": "truncate", "handle": "1", "size": 100})
    assert {len(state["a"]) for state in states(storage)} >= {100, 700}


@pytest.mark.slow
def test_of_two_renames_that_were_not_synced_a_loose_disk_may_keep_the_second_alone_and_a_journal_may_not():
    storage = tape(create("log", "1"), write("1", 0, b"old"), {"op": "sync", "handle": "1"})
    for entry in (create("next", "2"), NAMES):
        storage.apply(entry)
    storage.apply({"op": "rename", "old": "/r/d/log", "new": "/r/d/log.1"})
    storage.apply({"op": "rename", "old": "/r/d/next", "new": "/r/d/log"})
    assert {"log": b""} in states(storage), "the old file has no name"
    assert all(b"old" in state.values() for state in states(storage, loose=False))


def test_what_a_cut_left_is_laid_out_as_files(tmp_path):
    place = tmp_path / "place"
    lay_out({"/r/d": None, "/r/d/a": b"x"}, "/r/d", place)
    assert (place / "d" / "a").read_bytes() == b"x"
