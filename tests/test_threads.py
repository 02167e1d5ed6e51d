"""A helper makes a caller's short calls in a thread of its own: in order, and on the processor of a waiting caller."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from typing import TYPE_CHECKING

import pytest

from hearth._util import threads
from hearth._util.threads import Helper

if TYPE_CHECKING:
    from pathlib import Path

SEVERAL = len(os.sched_getaffinity(0)) > 1


def processors() -> set[int]:
    return os.sched_getaffinity(0)


def test_calls_are_made_in_their_order_and_errors_come_out_where_they_are_asked_for() -> None:
    helper, made = Helper("test"), []
    gate = threading.Event()
    late = helper.call(gate.wait, 0)
    calls = [helper.call(lambda at=at: made.append(at), 0) for at in range(3)]
    broken = helper.call(lambda: 1 / 0, 0)
    assert not late.done
    gate.set()
    broken.settle(10)
    assert made == [0, 1, 2]
    assert all(call.done for call in calls)
    with pytest.raises(ZeroDivisionError):
        broken.get()


@pytest.mark.skipif(not SEVERAL, reason="this machine has one processor")
def test_a_helper_moves_to_the_processor_of_the_caller_that_waits_and_the_caller_may_run_where_it_ran() -> None:
    helper, before = Helper("test"), processors()
    try:
        for processor in (min(before), max(before)):
            os.sched_setaffinity(0, {processor})
            helper.call(lambda: None, -1)
            assert helper.call(processors, -1).get() == {processor}
            assert processors() == {processor}
    finally:
        os.sched_setaffinity(0, before)
    helper.call(lambda: None, -1)
    assert processors() == before


@pytest.mark.skipif(not SEVERAL, reason="this machine has one processor")
def test_a_helper_whose_caller_does_not_wait_stays_where_it_is() -> None:
    helper = Helper("test")
    helper.call(lambda: None, 0).settle(10)
    call = helper.call(processors, 0)
    call.settle(10)
    assert call.get() == processors()


def test_where_no_thread_may_choose_its_processor_calls_are_made_all_the_same(monkeypatch) -> None:
    def denied(_thread, _processors) -> None:
        raise PermissionError

    monkeypatch.setattr(threads.os, "sched_setaffinity", denied)
    helper, before = Helper("test"), processors()
    assert [helper.call(processors, -1).get() for _ in range(2)] == [before, before]


def test_threads_that_import_while_the_daemon_serves_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without turns one thread waits for the package, to import its part, and the other for the part."""
    package = tmp_path / "a_cycle"
    package.mkdir()
    (package / "__init__.py").write_text("from a_cycle import part\n")
    (package / "part.py").touch()
    looked, over = threading.Event(), threading.Event()

    class Slow(SourceFileLoader):
        """The package is being imported, its lock held, while the other thread begins."""

        def create_module(self, spec: ModuleSpec) -> None:
            looked.set()
            # Nothing tells that the other thread waits for this package's lock; without turns it does at once.
            over.wait(0.2)

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: object) -> ModuleSpec | None:
            if name != package.name:
                return None
            file = str(package / "__init__.py")
            return spec_from_file_location(name, loader=Slow(name, file), submodule_search_locations=[str(package)])

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    failed: list[BaseException] = []

    def load(name: str) -> None:
        try:
            with threads.IMPORTING:
                importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001  the test looks at it
            failed.append(error)

    first = threading.Thread(target=load, args=("a_cycle",))
    second = threading.Thread(target=load, args=("a_cycle.part",))
    first.start()
    assert looked.wait(10)
    second.start()
    for worker in (first, second):
        worker.join(10)
    loaded = [name for name in ("a_cycle", "a_cycle.part") if sys.modules.pop(name, None) is not None]
    assert (failed, loaded) == ([], ["a_cycle", "a_cycle.part"])
