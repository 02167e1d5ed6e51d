"""Driven outputs reach their safe state, whatever becomes of the session, the device or the process (design §4)."""

from __future__ import annotations

import errno
import os
import resource
import stat
from contextlib import asynccontextmanager

import orjson
import pytest
import trio
from attrs import evolve
from support.doubles import BenchDriver, Observer, Op, device_error
from support.waiting import passes, until
from support.world import NOON, BenchWorld, running

from hearth.actors.bus import outputs_file as outputs_module
from hearth.actors.bus.actor import Bus
from hearth.actors.bus.outputs import EARLIER_RUN
from hearth.actors.bus.outputs_file import OutputsFile
from hearth.actors.bus.queue import Requester, Ticket
from hearth.actors.supervisor import keep_open
from hearth.drivers.base import Style
from hearth.errors import AuditUnavailable, DeviceError, InternalError

ME = Requester("session", "task", "me")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "audit.log.outputs"


def written(path):
    """What the file says, by bus; nothing where there is no file."""
    return orjson.loads(path.read_bytes())["outputs"] if path.exists() else {}


def opened(path):
    outputs_file = OutputsFile(path)
    outputs_file.open(NOON)
    return outputs_file


def left(path, **outputs):
    """What a run that was killed has left."""
    path.write_bytes(orjson.dumps({"version": 1, "outputs": outputs}))
    return opened(path)


@asynccontextmanager
async def a_run(path, **more):
    """A world that keeps its driven outputs in a file."""
    prepare = more.pop("prepare", lambda _world: None)
    world = BenchWorld(**more)
    world.parts = evolve(world.parts, outputs_file=opened(path))
    prepare(world)
    async with running(world):
        yield world


class Kept:
    """A supervised bus over a bench driver, with a file of its driven outputs."""

    def __init__(self, outputs_file=None, style=Style.ASYNC, **more):
        self.observer = Observer()
        self.driver = BenchDriver("a", self.observer, style=style, **more)
        self.audited = []
        self.bus = Bus("a", self.driver, audit=self.audit, outputs_file=outputs_file)

    def audit(self, event, **fields):
        self.audited.append({"event": event, **fields})
        self.observer.note("audit", event, fields)

    def of(self, event):
        return [record for record in self.audited if record["event"] == event]

    async def start(self, nursery):
        started = trio.Event()
        nursery.start_soon(keep_open, self.bus, self.audit, started.set)
        await started.wait()

    async def drive(self, line, value=1, requester=ME, **more):
        def do(driver):
            driver.levels[line] = value
            return value

        return await self.bus.request(Ticket(Op(f"set {line}", do=do), requester, limit=60, drives=line, **more)).get()


# --- the file ----------------------------------------------------------------------------------------------------


async def test_an_output_is_written_down_before_it_is_first_driven(path, style):
    async with a_run(path, buses={"a": style, "b": style}) as world:
        session = await world.connect().open()
        seen = []
        perform = world.drivers["b"].perform
        world.drivers["b"].perform = lambda op: (seen.append(written(path)), perform(op))[1]
        await session.run(("set", {"line": 1, "value": 1}))
        await session.run(("set", {"bus": "b", "line": 7, "value": 1}))
        assert seen == [{"a": [1], "b": [7]}]


async def test_driving_the_same_outputs_again_and_again_writes_nothing(path, style):
    async with a_run(path, buses={"a": style}) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}), ("set", {"line": 2, "value": 1}))
        before = path.stat()
        steps = [("set", {"line": 1 + number % 2, "value": number // 2 % 2}) for number in range(20)]
        assert (await session.run(*steps))["status"] == "SUCCESS"
        after = path.stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_reading_drives_nothing_and_writes_nothing(path):
    async with a_run(path) as world:
        session = await world.connect().open()
        await session.run(("read", {}))
        assert not path.exists()


async def test_the_file_is_private_and_replaced_whole(path):
    former = os.umask(0)
    try:
        outputs_file = opened(path)
        outputs_file.add("a", 1, insist=False)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with path.open("rb") as reader:
            outputs_file.add("a", 2, insist=False)
            assert orjson.loads(reader.read()) == {"version": 1, "outputs": {"a": [1]}}, "what is read stays whole"
        assert written(path) == {"a": [1, 2]}
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    finally:
        os.umask(former)


def test_a_draft_that_another_put_there_is_not_written_through(path, tmp_path):
    target = tmp_path / "precious"
    target.write_text("precious")
    path.with_name(path.name + ".next").symlink_to(target)
    opened(path).add("a", 1, insist=False)
    assert written(path) == {"a": [1]}
    assert target.read_text() == "precious"


def test_what_is_written_down_already_is_not_written_again(path):
    outputs_file = opened(path)
    outputs_file.add("a", 1, insist=False)
    before = path.stat().st_ino
    outputs_file.add("a", 1, insist=False)
    outputs_file.strike("a", [2])
    outputs_file.strike("b", [1])
    assert path.stat().st_ino == before
    assert written(path) == {"a": [1]}


def test_a_file_that_could_be_written_only_in_part_does_not_count(path):
    outputs_file = opened(path)
    outputs_file.add("a", 1, insist=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(AuditUnavailable) as refused:
            outputs_file.add("a", 2, insist=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(path) in refused.value.data["reason"]
    assert written(path) == {"a": [1]}
    outputs_file.add("a", 3, insist=False)
    assert written(path) == {"a": [1, 3]}


async def test_without_a_path_nothing_is_written_and_nothing_is_found(nursery):
    outputs_file = OutputsFile()
    assert outputs_file.open(NOON) == []
    kept = Kept(outputs_file)
    await kept.start(nursery)
    assert await kept.drive(1) == 1
    assert outputs_file.failure is None
    nursery.cancel_scope.cancel()


def test_outputs_come_back_as_what_they_were(path):
    outputs = [17, "rts", ("led", 3), ("bank", ("a", 1))]
    outputs_file = opened(path)
    for output in outputs:
        outputs_file.add("a", output, insist=False)
    assert opened(path).found.outputs == {"a": tuple(outputs)}


def test_a_list_that_the_next_start_could_not_read_is_not_written_and_the_last_one_stays(path):
    kept = OutputsFile(path)
    kept.open(0.0)
    kept.add("com.acme.leds", "red", insist=False)
    with pytest.raises(AuditUnavailable, match="bytes, of which the next start reads") as refused:
        kept.add("com.acme.leds", "x" * (1 << 20), insist=False)
    assert refused.value.data["effect"] == "none"
    assert (found := OutputsFile(path)).open(0.0)
    assert found.found.outputs == {"com.acme.leds": ("red",)}


async def test_an_output_that_cannot_be_written_down_is_not_driven(path):
    outputs_file = opened(path)
    with pytest.raises(AuditUnavailable) as refused:
        outputs_file.add("a", object(), insist=False)
    assert refused.value.data["effect"] == "none"
    assert written(path) == {}


@pytest.mark.parametrize("how", ["the session ends", "the output is kept"])
async def test_the_end_of_a_session_strikes_its_outputs_off(path, style, how):
    keep = [1] if how == "the output is kept" else []
    async with a_run(path, buses={"a": style}, keep=keep) as world:
        session, other = await world.connect().open(), await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        await other.run(("set", {"line": 2, "value": 1}))
        await session.close()
        assert written(path) == {"a": [2]}
        assert world.driver.levels == {1: 1 if keep else 0, 2: 1}
        await other.close()
        assert not path.exists()


async def test_an_end_in_order_leaves_no_file(path):
    async with a_run(path) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        assert path.exists()
    assert not path.exists()


# --- when the file cannot be written -----------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    """`broken()` makes every write of the file fail, `broken(False)` heals it."""
    replace = outputs_module._replace

    def switch(on=True):
        def fail(*_args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(outputs_module, "_replace", fail if on else replace)

    return switch


async def test_what_cannot_be_written_down_is_not_driven_and_everything_else_goes_on(path, style, broken, caplog):
    async with a_run(path, buses={"a": style}) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        broken()
        for _ in range(2):
            failed = (await session.run(("set", {"line": 2, "value": 1})))["steps"][0]
            assert (failed["status"], failed["error_code"]) == ("FAILED", -32011)
            assert failed["error_data"]["effect"] == "none"
            assert str(path) in failed["error_data"]["reason"]
            assert "No space left" in failed["error_data"]["reason"]
        assert 2 not in world.driver.levels
        assert (await session.run(("set", {"line": 1, "value": 0})))["status"] == "SUCCESS", "it is written down"
        assert (await session.run(("read", {})))["status"] == "SUCCESS"
        health = world.runtime.health()
        assert health["ok"] is False
        assert health["outputs"] == {"ok": False, "reason": failed["error_data"]["reason"]}
        broken(False)
        assert world.runtime.health()["ok"] is True
        assert (await session.run(("set", {"line": 2, "value": 1})))["status"] == "SUCCESS"
        assert written(path) == {"a": [1, 2]}
    assert caplog.text.count("until it can be written") == 1
    assert caplog.text.count("is written again") == 1


async def test_what_takes_an_effect_back_is_driven_although_it_cannot_be_written_down(path, style, broken, nursery):
    kept = Kept(opened(path), style)
    await kept.start(nursery)
    broken()
    assert await kept.drive(1, must_run=True) == 1
    broken(False)
    await kept.drive(2)
    assert written(path) == {"a": [1, 2]}
    nursery.cancel_scope.cancel()


async def test_safe_states_are_reached_although_that_cannot_be_written_down(path, broken):
    async with a_run(path) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        broken()
        await session.close()
        assert world.driver.levels == {1: 0}
        assert written(path) == {"a": [1]}, "the next run makes safe what is safe already"
        broken(False)
    assert not path.exists(), "it was tried once more at the end"


# --- what an earlier run left ------------------------------------------------------------------------------------


async def test_what_an_earlier_run_left_driven_is_made_safe_before_sessions_are_served(path, style, caplog):
    left(path, a=[1, 3], b=[2])
    async with a_run(path, buses={"a": style, "b": style}, keep=[3]) as world:
        assert world.observer.labels("begin") in (["safe 1", "safe 2"], ["safe 2", "safe 1"])
        assert not path.exists()
        await until(lambda: world.journal.of("daemon.start"))
        records = {record["bus"]: record for record in world.journal.of("outputs.safe")}
        events = [record["event"] for record in world.journal.records]
        assert events == ["outputs.safe", "outputs.safe", "daemon.start"]
        assert records == {
            "a": {"event": "outputs.safe", "bus": "a", "outputs": [1, 3], "safe": [{"line": 1, "safe": 0}]},
            "b": {"event": "outputs.safe", "bus": "b", "outputs": [2], "safe": [{"line": 2, "safe": 0}]},
        }
        session = await world.connect().open()
        await session.run(("set", {"line": 3, "value": 1}))
        assert written(path) == {"a": [3]}
    assert "bus a: outputs 1, 3, driven by an earlier run, were brought to their safe state" in caplog.text


async def test_a_run_that_is_killed_while_it_pays_leaves_the_debt_to_the_next(path):
    left(path, a=[1])
    outputs_file = opened(path)
    assert outputs_file.found.outputs == {"a": (1,)}
    outputs_file.add("a", 2, insist=False)
    assert written(path) == {"a": [1, 2]}


@pytest.mark.parametrize("trouble", ["it is not there", "it hangs"])
async def test_a_bus_that_cannot_be_opened_holds_up_no_other_and_its_outputs_are_made_safe_when_it_comes(
    path, autojump_clock, trouble
):
    left(path, a=[1], b=[2])
    gate = trio.Event()

    def prepare(world):
        driver = world.drivers["a"]
        if trouble == "it is not there":
            driver.refuses = DeviceError("no such device", effect="none")
        else:
            make_safe = driver.make_safe

            async def hang(outputs):
                await gate.wait()
                return await make_safe(outputs)

            driver.make_safe = hang

    async with a_run(path, prepare=prepare) as world:
        assert trio.current_time() <= 6, "the others are served soon"
        await until(lambda: world.journal.of("daemon.start"))
        assert [record["bus"] for record in world.journal.of("outputs.safe")] == ["b"]
        assert written(path) == {"a": [1]}
        session = await world.connect().open()
        assert (await session.run(("read", {"bus": "b"})))["status"] == "SUCCESS"
        gate.set()
        world.drivers["a"].plug_in()
        await passes(lambda: world.runtime.buses["a"].state == "ready")
        assert (await session.run(("read", {"tag": "after"})))["status"] == "SUCCESS"
        assert world.observer.labels("begin", "a") == ["safe 1", "after"]
        assert [record["bus"] for record in world.journal.of("outputs.safe")] == ["b", "a"]
        assert written(path) == {}


async def test_outputs_of_a_bus_that_this_board_does_not_have_are_named_and_forgotten(path, caplog):
    left(path, **{"gpio:old": [1, 2], "a": [1]})
    async with a_run(path) as world:
        unknown = world.journal.of("outputs.unknown")
        assert [(record["bus"], record["outputs"]) for record in unknown] == [("gpio:old", [1, 2])]
        assert unknown[0]["reason"] == "board bench has no such bus"
        assert not path.exists()
    assert "gpio:old" in caplog.text


NO_LEDGER = {
    "nothing": b"",
    "zeros of a power cut": b"\0" * 64,
    "half of it": b'{"version":1,"outputs":{"a":[1',
    "not JSON": b"\xff\xfe",
    "another version": b'{"version":0,"outputs":{}}',
    "no version": b'{"outputs":{}}',
    "no object": b"[]",
    "no outputs": b'{"version":1}',
    "outputs that are a list": b'{"version":1,"outputs":[1]}',
    "a bus without a list": b'{"version":1,"outputs":{"a":1}}',
    "an output that is none": b'{"version":1,"outputs":{"a":[{"line":1}]}}',
    "half a number": b'{"version":1,"outputs":{"a":[1.5]}}',
    "lists in lists": b'{"version":1,"outputs":{"a":[' + b"[" * 700 + b"]" * 700 + b"]}}",
    "levels that are a list": b'{"version":2,"outputs":{},"levels":[]}',
    "a level that is no number": b'{"version":2,"outputs":{},"levels":{"a":[[1,"off"]]}}',
    "a level that is true": b'{"version":2,"outputs":{},"levels":{"a":[[1,true]]}}',
    "a level that is not finite": b'{"version":2,"outputs":{},"levels":{"a":[[1,1e999]]}}',
    "a level without an output": b'{"version":2,"outputs":{},"levels":{"a":[[1.5]]}}',
}


@pytest.mark.parametrize("content", NO_LEDGER.values(), ids=NO_LEDGER)
async def test_a_file_that_cannot_be_read_is_moved_aside_and_named(path, content, tmp_path):
    path.write_bytes(content)
    async with a_run(path) as world:
        (record,) = world.journal.of("outputs.unknown")
        assert str(path) in record["reason"]
        assert (tmp_path / record["file"]).read_bytes() == content
        assert not path.exists()
        session = await world.connect().open()
        assert (await session.run(("set", {"line": 1, "value": 1})))["status"] == "SUCCESS"
        assert written(path) == {"a": [1]}


@pytest.mark.parametrize("what", ["directory", "link", "pipe", "socket"])
def test_what_is_no_regular_file_is_moved_aside_too(path, tmp_path, what):
    if what == "directory":
        path.mkdir()
    elif what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    outputs_file = OutputsFile(path)
    (note,) = outputs_file.open(NOON)
    assert str(path) in note
    assert "look at the hardware" in note
    assert os.path.lexists(outputs_file.found.aside)
    outputs_file.add("a", 1, insist=False)
    assert written(path) == {"a": [1]}
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_can_neither_be_read_nor_moved_keeps_outputs_from_being_driven(path, monkeypatch):
    path.mkdir()

    def rename(self, target):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(path), "rename", rename)
    outputs_file = OutputsFile(path)
    (note,) = outputs_file.open(NOON)
    assert "Read-only" in note
    assert outputs_file.failure is not None
    with pytest.raises(AuditUnavailable):
        outputs_file.add("a", 1, insist=False)
    assert path.is_dir()


# --- a device that is not there when it should be made safe ------------------------------------------------------


async def test_outputs_of_a_session_that_ends_while_the_device_is_unplugged_are_made_safe_when_it_returns(
    path, autojump_clock, caplog
):
    async with a_run(path) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.unplug()
        await until(lambda: world.bus.state == "down")
        refused = (await session.run(("set", {"line": 1, "value": 0})))["steps"][0]
        assert (refused["error_code"], refused["error_data"]["effect"]) == (-32009, "none")
        assert "the device is gone" in refused["error"] or "no such device" in refused["error"]
        await session.close()
        assert world.driver.levels == {1: 1}
        assert written(path) == {"a": [1]}
        await trio.sleep(100)
        assert world.journal.of("outputs.safe") == []
        assert caplog.text.count("no such device") == 1, "a missing device is told of once"
        world.driver.plug_in()
        await passes(lambda: world.bus.state == "ready")
        other = await world.connect().open()
        await other.run(("read", {"tag": "after"}))
        assert world.observer.labels("begin", "a")[-2:] == ["safe 1", "after"]
        (record,) = world.journal.of("outputs.safe")
        assert record["session_id"] == session.session_id
        assert (record["outputs"], record["safe"]) == ([1], [{"line": 1, "safe": 0}])
        assert written(path) == {}
        (close,) = world.journal.of("session.close", session_id=session.session_id)
        assert "safe" not in close


@pytest.mark.slow
async def test_an_output_that_reports_an_error_is_asked_for_again_when_the_bus_is_reopened(path, nursery):
    kept = Kept(opened(path))
    await kept.start(nursery)
    await kept.drive(1)
    await kept.drive(2)
    make_safe = kept.driver.make_safe

    async def gone(outputs):
        await make_safe(outputs)
        return [{"line": 1, "error": "no such device"}, {"line": 2, "safe": 0}]

    kept.driver.make_safe = gone
    ticket = kept.bus.make_safe(ME.session_id)
    assert [report.get("error") for report in await ticket.get()] == ["no such device", None]
    assert written(path) == {"a": [1, 2]}, "not all of them are safe"
    assert kept.of("outputs.safe") == [], "who asked puts it on record"
    kept.driver.make_safe = make_safe
    kept.driver.break_pump(device_error("unplugged"))
    await passes(lambda: kept.of("outputs.safe"))
    assert kept.of("outputs.safe")[0]["outputs"] == [1, 2]
    assert not path.exists()
    nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_safe_state_that_fails_is_on_record_and_asked_for_at_the_next_opening(path, nursery, caplog):
    left(path, a=[1])
    kept = Kept(opened(path))
    kept.driver.safe_raises = device_error("the chip says no", effect="none")
    await kept.start(nursery)
    await until(lambda: kept.of("outputs.safe"))
    failed = {"event": "outputs.safe", "bus": "a", "outputs": [1], "error": "the chip says no"}
    assert kept.of("outputs.safe") == [failed]
    assert "are not safe: the chip says no" in caplog.text
    assert written(path) == {"a": [1]}
    kept.driver.safe_raises = None
    kept.driver.break_pump(device_error("unplugged"))
    await passes(lambda: len(kept.of("outputs.safe")) == 2)
    assert written(path) == {}
    nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("style", list(Style))
async def test_a_driver_that_crashes_in_a_safe_state_does_not_take_its_bus_away_for_ever(path, style, nursery):
    left(path, a=[1])
    kept = Kept(opened(path), style)
    kept.driver.safe_raises = RuntimeError("a bug")
    await kept.start(nursery)
    await passes(lambda: kept.of("bus.reopened"))
    assert await kept.drive(2) == 1
    assert written(path) == {"a": [1, 2]}, "the next run asks again"
    assert "RuntimeError" in kept.of("outputs.safe")[0]["error"]
    nursery.cancel_scope.cancel()


async def test_a_session_that_cannot_wait_for_a_safe_state_leaves_it_to_the_bus_to_tell(path, autojump_clock):
    async with a_run(path, close_grace_s=1) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.slow_safe = 3
        await session.close()
        assert "safe" not in world.journal.of("session.close")[0]
        assert world.journal.of("outputs.safe") == []
        await trio.sleep(3)
        (record,) = world.journal.of("outputs.safe")
        assert (record["session_id"], record["outputs"]) == (session.session_id, [1])
        assert written(path) == {}


async def test_a_session_that_crashes_says_what_was_made_safe(path, style):
    async with a_run(path, buses={"a": style}) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        with pytest.raises(InternalError):
            await session.submit(("badbus", {}))
        await until(lambda: world.journal.of("session.close"))
        (close,) = world.journal.of("session.close")
        assert (close["reason"], close["safe"]) == ("internal error", [{"line": 1, "safe": 0}])
        assert written(path) == {}


async def test_a_safe_state_that_comes_late_counts(path, autojump_clock):
    left(path, a=[1])
    async with a_run(path, prepare=lambda world: setattr(world.drivers["a"], "slow_safe", 20)) as world:
        assert world.bus.state == "wedged"
        await trio.sleep(20)
        assert world.bus.state == "ready"
        assert world.journal.of("outputs.safe")[0]["safe"] == [{"line": 1, "safe": 0}]
        assert written(path) == {}


async def test_an_output_that_another_session_has_driven_since_is_left_to_that_session(path, autojump_clock):
    async with a_run(path) as world:
        first, second = await world.connect().open(), await world.connect().open()
        await first.run(("set", {"line": 1, "value": 1}), ("set", {"line": 2, "value": 1}))
        await second.run(("set", {"line": 1, "value": 1}))
        world.driver.unplug()
        await until(lambda: world.bus.state == "down")
        await first.close()
        world.driver.plug_in()
        await passes(lambda: world.journal.of("outputs.safe"))
        assert world.driver.levels == {1: 1, 2: 0}
        assert written(path) == {"a": [1]}
        await second.close()
        assert world.driver.levels == {1: 0, 2: 0}


async def test_a_transaction_that_the_end_had_to_leave_stays_written_down(path):
    async with a_run(path, buses={"a": Style.THREAD}, shutdown_grace_s=0.05, close_grace_s=0.02) as world:
        session = await world.connect().open()
        await session.start(("set", {"line": 1, "value": 1, "gate": "x", "limit_ms": 60_000}))
        await world.gate("x").reached()
        await world.runtime.end_sessions()
        world.observer.note("ended")
    assert written(path) == {"a": [1]}


# --- reopening ---------------------------------------------------------------------------------------------------


async def test_who_drove_what_survives_the_reopening_of_a_bus(path, autojump_clock):
    async with a_run(path) as world:
        session = await world.connect().open()
        await session.run(("set", {"line": 1, "value": 1}))
        world.driver.break_pump(device_error("unplugged"))
        await passes(lambda: world.driver.opened == 2)
        assert world.driver.levels == {1: 1}, "its session lives: it is not made safe"
        assert written(path) == {"a": [1]}
        await session.close()
        assert world.driver.levels == {1: 0}


async def test_a_lease_survives_the_reopening_of_its_bus(autojump_clock, nursery):
    kept = Kept()
    await kept.start(nursery)
    lease = Ticket(None, ME, limit=0)
    await kept.bus.request(lease).get()
    kept.driver.unplug()
    await until(lambda: kept.bus.state == "down")
    kept.driver.plug_in()
    await passes(lambda: kept.bus.state == "ready")
    you = Requester("other session", "other task", "you")
    done = []

    async def ask():
        done.append(await kept.bus.request(Ticket(Op("yours"), you, limit=60)).get())

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    assert done == [], "the bus is still leased"
    assert await kept.bus.request(Ticket(Op("mine"), ME, limit=60)).get() == "mine"
    kept.bus.release(lease)
    await until(lambda: done)
    nursery.cancel_scope.cancel()


async def test_who_queues_when_the_device_disappears_is_told_why_at_once(autojump_clock, nursery):
    kept = Kept()
    await kept.start(nursery)
    gate = kept.driver.gate()
    running_one = kept.bus.request(Ticket(Op("running", gate=gate), ME, limit=60))
    await gate.reached()
    queued = kept.bus.request(Ticket(Op("queued"), ME, limit=60))
    leased = kept.bus.request(Ticket(None, Requester("x", "y", "z"), limit=0))
    kept.driver.unplug()
    await trio.testing.wait_all_tasks_blocked()
    assert not queued.filled, "what has begun finishes first"
    gate.open()
    assert await running_one.get() == "running"
    for ticket in (queued, leased):
        with pytest.raises(DeviceError, match="bus a is down: a: the device is gone") as refused:
            await ticket.get()
        assert refused.value.data == {"effect": "none", "bus": "a", "state": "down"}
    assert kept.observer.labels("begin") == ["running"]
    nursery.cancel_scope.cancel()


async def test_a_bus_that_was_reopened_says_so_and_serves(autojump_clock, nursery):
    kept = Kept()
    await kept.start(nursery)
    kept.driver.unplug()
    await trio.sleep(65)
    with pytest.raises(DeviceError, match="no such device"):
        await kept.drive(1)
    kept.driver.plug_in()
    await passes(lambda: kept.of("bus.reopened"))
    assert await kept.drive(1) == 1
    (reopened,) = kept.of("bus.reopened")
    assert reopened["attempts"] > 3
    nursery.cancel_scope.cancel()


async def test_the_pseudo_session_of_an_earlier_run_cannot_be_a_session(path):
    outputs_file = left(path, a=[1])
    bus = Bus("a", BenchDriver("a", Observer()), outputs_file=outputs_file)
    assert bus.make_safe("session") is None
    assert bus.make_safe(EARLIER_RUN) is not None
    assert " " in EARLIER_RUN, "ids have none"


async def test_the_end_waits_for_the_safe_states_that_a_reopening_asks_for(path, nursery, autojump_clock):
    kept = Kept(opened(path))
    kept.driver.slow_safe = 0.1
    await kept.start(nursery)
    await kept.drive(1)
    make_safe = kept.driver.make_safe

    async def lost(_outputs):
        kept.driver.make_safe = make_safe
        kept.driver.break_pump(device_error("unplugged"))
        await trio.sleep(0.1)
        return [{"line": 1, "error": "no such device"}]

    kept.driver.make_safe = lost
    kept.bus.make_safe(ME.session_id, unattended=True)
    await kept.bus.settle()
    assert (kept.driver.opened, kept.driver.levels) == (2, {1: 0})
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("what", ["a rollback", "a safe state"])
async def test_the_end_does_not_wait_for_ever_for_a_device_that_is_gone(path, autojump_clock, what):
    with trio.fail_after(60):
        async with a_run(path) as world:
            session = await world.connect().open()
            steps = [("set", {"line": 1, "value": 1}), ("wait", {"tag": "unplugged"})]
            task_id = await session.start(*steps, rollback_on_failure=what == "a rollback")
            await until(lambda: world.driver.levels == {1: 1})
            world.driver.unplug()
            await until(lambda: world.bus.state == "down")
            await session.cancel(task_id)
    assert trio.current_time() <= (12 if what == "a rollback" else 4)
    assert written(path) == {"a": [1]}
    (finish,) = world.journal.of("task.finish", task_id=task_id)
    assert finish["status"] == "CANCELLED"
    undone = world.journal.of("task.step.rollback", task_id=task_id)
    assert [record.get("rolled_back") for record in undone] == ([None, False] if what == "a rollback" else [])
