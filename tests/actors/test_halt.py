"""The halt: its latch, inputs, stop sequence and heartbeat, and the refusals while it lasts (docs/safety.md)."""

from __future__ import annotations

import json
import os
import re
import threading
import tomllib
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import evolve
from support.waiting import passes, until
from support.world import ALICE, BOB, OPEN, BenchWorld, World, running

from hearth.actors.build import build_parts
from hearth.actors.bus.halt import ANSWER_S, END_LIMIT_S, MOST_HOLDS, OTHERS, REPEAT_S, RETRY_S
from hearth.actors.bus.halt_inputs import READ_LIMIT_S
from hearth.actors.bus.latch import Hold, Latch
from hearth.actors.bus.queue import Requester, Ticket, give_back_or_make_safe
from hearth.actors.embedded import EMBEDDED_POLICY
from hearth.actors.session import Session
from hearth.api import step
from hearth.config.model import AuditConfig, Config
from hearth.drivers.base import Style
from hearth.drivers.boards import open_board
from hearth.drivers.boards.profile import parse_profile
from hearth.drivers.gpio.driver import WATCH_CAPACITY
from hearth.drivers.gpio.tools import gpio_tools
from hearth.errors import AuditUnavailable, Halted, PermissionDenied
from hearth.protocol.methods import HaltReset
from hearth.tools import Tool, ToolRegistry

PATIENCE = 60
PAGE = (Path(__file__).parents[2] / "docs/safety.md").read_text("utf-8")
MAY_RESET = (evolve(OPEN, rights=["reset_halt"]),)

BENCH = {
    "name": "bench",
    "description": "A bench with an emergency stop.",
    "gpio": [
        {
            "label": "a",
            "driver": "sim",
            "names": ["ESTOP", "MOTOR", "BRAKE", "LAMP", "ALIVE", "PLC_ALIVE", "DOOR", "SPARE"],
            "lines": {
                "ESTOP": {"direction": "input", "pull": "up"},
                "MOTOR": {"safe": 0},
                "BRAKE": {"safe": 1},
                "LAMP": {"safe": 0, "hold": "keep"},
                "ALIVE": {"safe": 0},
                "PLC_ALIVE": {"direction": "input"},
                "DOOR": {"direction": "input"},
                "SPARE": {"reserved": "burnt"},
            },
            "contacts": {"ESTOP": 0},
        },
        {"label": "b", "driver": "sim", "names": ["PUMP", "FAN"], "lines": {"PUMP": {"safe": 0}, "FAN": {"safe": 0}}},
    ],
    "i2c": [{"bus": 1, "driver": "sim", "device": [{"addr": 0x48, "kind": "tmp102"}]}],
}
ESTOP, MOTOR, BRAKE, LAMP, ALIVE, PLC_ALIVE, DOOR = range(7)
PUMP = 0


@asynccontextmanager
async def a_bench(directory, *, style=Style.ASYNC, prepare=lambda _board: None, lines=None, **halt):
    """A world on that bench, with this `[halt]`; its latch is in the directory."""
    content = {**BENCH, "halt": halt} if halt else BENCH
    board = open_board(parse_profile(content, "bench"), style=style)
    prepare(board)
    parts = build_parts(
        Config(audit=AuditConfig(path=directory / "audit.log")), default_policy=EMBEDDED_POLICY, board=board
    )
    notes = parts.open_records()
    world = World(parts)
    world.notes = notes
    world.chips = {name: board.drivers[f"gpio:{name}"] for name in "ab"}
    with trio.fail_after(PATIENCE):
        async with running(world):
            yield world


class MemoryLatch(Latch):
    """A latch on a disk in memory, that may be slow (`gate`) or full (`fails`)."""

    def __init__(self):
        super().__init__()
        self.kept = None
        self.fails = False
        self.gate = None
        self.writes = 0

    async def _disk(self):
        self.writes += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise OSError(28, "No space left on device")

    async def save(self, holds):
        await self._disk()
        self.kept = holds
        return True

    async def remove(self):
        await self._disk()
        self.kept = None


@asynccontextmanager
async def a_world(*, style=Style.ASYNC, prepare=lambda _chip: None, policy=MAY_RESET, tools=(), found=(), **halt):
    """A world over the bench in memory, for virtual time; `a` and `b` are its chips from outside."""
    board = open_board(parse_profile({**BENCH, "halt": halt}, "bench"), style=style)
    a, b = board.drivers["gpio:a"], board.drivers["gpio:b"]
    prepare(a)
    world = BenchWorld(policy=policy)
    world.latch = MemoryLatch()
    world.latch.found = found
    world.parts = evolve(
        world.parts,
        board=board,
        drivers={**world.drivers, **board.drivers},
        registry=ToolRegistry([*world.parts.registry.values(), *gpio_tools(board), *tools]),
        halt=board.profile.halt,
        latch=world.latch,
    )
    world.a, world.b = a, b
    with trio.fail_after(10_000):
        async with running(world):
            yield world


def block_tool(run):
    return Tool(
        name="bench.block",
        risk_level=0,
        timeout_ms=1_000,
        description="Holds up the bus of chip a.",
        params_schema={"type": "object"},
        result_schema={"type": "object"},
        capability="CAP_GPIO_READ",
        bus=lambda _args: "gpio:a",
        run=run,
    )


def of(world, event):
    return world.journal.of(event)


async def recorded(world, event, count=1):
    """The records of an event, once there are so many."""
    await passes(lambda: len(of(world, event)) >= count)
    return of(world, event)


async def until_halted(world):
    await passes(lambda: world.runtime.halt.flag.halted)


def latch_file(directory):
    return directory / "audit.log.halt"


@pytest.mark.spec("design 8: halt")
@pytest.mark.parametrize("style", [Style.INLINE, Style.THREAD])
async def test_a_halt_is_on_the_disk_before_it_is_acknowledged_and_outlives_the_daemon(tmp_path, style):
    async with a_bench(tmp_path, style=style) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        assert not latch_file(tmp_path).exists()
        await session.halt("smoke")
        assert [one["reason"] for one in json.loads(latch_file(tmp_path).read_text())["holds"]] == ["smoke"]
        assert latch_file(tmp_path).stat().st_mode & 0o777 == 0o600
    async with a_bench(tmp_path, style=style) as world, world.sessions().open_session() as session:
        assert world.notes[-1].startswith("starting halted, since ")
        assert ": smoke; `hearth halt reset` ends it" in world.notes[-1]
        assert (await session.halt_status()).latched is True
        with pytest.raises(Halted, match="smoke"):
            await session.gpio.set("MOTOR", 1)
        assert await session.gpio.get("MOTOR") == 0
        await session.reset_halt()
        assert not latch_file(tmp_path).exists()
        await session.gpio.set("MOTOR", 1)
    (halted,) = world.records("halt")
    (reset,) = world.records("halt.reset")
    assert (halted["reason"], halted["principal"]) == ("smoke", reset["principal"])


@pytest.mark.spec("design 8: halt.reset")
async def test_a_halt_input_halts_and_has_to_be_clear_before_a_reset(tmp_path):
    async with a_bench(tmp_path, inputs=["ESTOP"]) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        world.chips["a"].push(ESTOP, 1)
        await passes(lambda: world.chips["a"].state(MOTOR) == 0)
        status = await session.halt_status()
        assert (status.by, status.inputs) == ("input ESTOP", {"ESTOP": "is at its stop level"})
        with pytest.raises(Halted, match=r"halt inputs are not clear \(ESTOP: is at its stop level\)"):
            await session.reset_halt()
        world.chips["a"].push(ESTOP, 0)
        await session.reset_halt()
        await session.gpio.set("MOTOR", 1)


async def test_the_profiles_on_the_page_are_good_ones():
    fan, arm = {"period_us": 40}, {"servo": {"min_us": 1_000, "max_us": 2_000}}
    pwm = {"label": "p", "driver": "sim", "channels": ["FAN_SPEED", "ARM"], "channel": {"FAN_SPEED": fan, "ARM": arm}}
    fan = {"unit": 3, "name": "FAN", "registers": [{"name": "speed", "reg": 100, "max": 100, "safe": 0}]}
    content = {**BENCH, "pwm": [pwm], "modbus": [{"line": "plant", "driver": "sim", "device": [fan]}]}
    stops = []
    for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for key, value in tomllib.loads(block)["halt"].items():
            stops += value if key == "sequence" else []
            content["halt"] = {**content.get("halt", {}), key: stops if key == "sequence" else value}
    halt = parse_profile(content, "bench").halt
    assert [(one.name, one.stop, one.timeout_ms) for one in halt.inputs] == [
        ("ESTOP", 1, None), ("DOOR", 0, None), ("PLC_ALIVE", 1, 500),
    ]  # fmt: skip
    assert [(one.name, one.value, one.after_ms) for one in halt.sequence] == [
        ("BRAKE", 1, 0), ("MOTOR", 0, 200), ("ARM", 45, 0), ("FAN_SPEED", 0.5, 1_000),
        ("modbus:plant:FAN.speed", 20, 0), ("modbus:plant:FAN.speed", 0, 2_000),
    ]  # fmt: skip
    assert (halt.heartbeat.name, halt.heartbeat.hz) == ("ALIVE", 10)


# --- the latch ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("design 8: halt")
async def test_a_latch_that_cannot_be_written_is_a_halt_all_the_same_and_is_tried_again(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        world.latch.fails = True
        await session.gpio.set("MOTOR", 1)
        status = await session.halt("smoke")
        assert (status.halted, status.latched) == (True, False)
        assert status.problem == "the latch None cannot be written: No space left on device"
        assert world.a.state(MOTOR) == 0
        with pytest.raises(Halted):
            await session.gpio.set("MOTOR", 1)
        assert world.runtime.health()["halt"]["problem"] == status.problem
        world.latch.fails = False
        await trio.sleep(RETRY_S * 2)
        status = await session.halt_status()
        assert (status.latched, status.problem, world.latch.kept[0].reason) == (True, None, "smoke")


@pytest.mark.spec("design 8: halt")
async def test_a_disk_that_hangs_holds_up_neither_the_stop_nor_the_answer_which_says_so(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        world.latch.gate = trio.Event()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.halt)
            await until_halted(world)
            await until(lambda: world.a.state(MOTOR) == 0)
            assert await session.gpio.get("MOTOR") == 0
        assert trio.current_time() - began <= ANSWER_S
        status = await session.halt_status()
        assert (status.halted, status.latched) == (True, False)
        assert status.problem == "the latch None is not written yet: the disk does not answer"
        world.latch.gate.set()
        await passes(lambda: world.runtime.halt.status()["latched"])
        assert (await session.halt_status()).problem is None


async def test_threads_that_hang_on_another_disk_do_not_hold_up_the_latch(tmp_path):
    async with a_bench(tmp_path) as world, world.sessions().open_session() as session:
        limiter = trio.to_thread.current_default_thread_limiter()
        hanging = [object() for _ in range(int(limiter.total_tokens))]
        for thread in hanging:
            await limiter.acquire_on_behalf_of(thread)
        try:
            assert (await session.halt("smoke")).latched
        finally:
            for thread in hanging:
                limiter.release_on_behalf_of(thread)


DAMAGED = ("", "{}", "[1]", '{"since": 1', "\x00" * 9, '{"since": [1], "reason": {}, "by": null}', "[" * 100_000)


def a_device(path):
    path.symlink_to("/dev/zero")


def a_link_to_nothing(path):
    path.symlink_to(path.parent / "a disk that is not there" / "latch")


@pytest.mark.parametrize(
    "made",
    [
        *(partial(Path.write_text, data=content) for content in DAMAGED),
        os.mkfifo,
        Path.mkdir,
        a_device,
        a_link_to_nothing,
    ],
    ids=[*(content[:20] for content in DAMAGED), "a pipe", "a directory", "a device", "a link to nothing"],
)
async def test_a_latch_that_cannot_be_read_at_the_start_is_a_halt(tmp_path, made):
    made(latch_file(tmp_path))
    async with a_bench(tmp_path) as world, world.sessions().open_session() as session:
        status = await session.halt_status()
        assert status.halted
        assert f"the latch {latch_file(tmp_path)} cannot be read: " in status.reason
        with pytest.raises(Halted):
            await session.gpio.set("MOTOR", 1)
        if made is Path.mkdir:
            with pytest.raises(AuditUnavailable, match=r"still halted: the latch .* cannot be changed: "):
                await session.reset_halt()
            assert (await session.halt_status()).halted
            latch_file(tmp_path).rmdir()
        await session.reset_halt()
    async with a_bench(tmp_path) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)


async def test_a_halt_right_before_the_end_of_the_daemon_is_on_the_disk_when_it_has_ended(tmp_path):
    async with a_bench(tmp_path) as world:
        world.runtime.halt.halt("smoke", "a test")
    assert [one["reason"] for one in json.loads(latch_file(tmp_path).read_text())["holds"]] == ["smoke"]


async def test_an_end_does_not_wait_for_ever_for_a_latch_on_a_disk_that_hangs(autojump_clock):
    async with a_world() as world:
        world.latch.gate = trio.Event()
        world.runtime.halt.halt("smoke", "a test")


# --- the holds ------------------------------------------------------------------------------------------------------


def holds_of(world):
    return [
        (one["source"], one["by"], one["last_reason"], one["count"]) for one in world.runtime.halt.status()["holds"]
    ]


@pytest.mark.spec("design 8: halt")
async def test_a_second_halt_of_a_principal_renews_its_hold_and_one_of_another_adds_a_hold_and_both_are_on_record(
    autojump_clock,
):
    async with a_world() as world, world.sessions(ALICE).open_session() as alice:
        await alice.halt("smoke")
        async with world.sessions(BOB).open_session() as bob:
            status = await bob.halt("a hand in the machine")
        assert (status.reason, [one["by"] for one in status.holds]) == ("smoke", [ALICE.key, BOB.key])
        await trio.sleep(REPEAT_S)
        status = await alice.halt("fire")
        first, second = status.holds
        newest = world.runtime.halt.flag.count
        assert (first["reason"], first["last_reason"], first["count"]) == ("smoke", "fire", 2)
        assert first["generation"] == newest
        assert first["last"] > first["since"] == status.since
        assert (second["reason"], second["count"], second["generation"]) == ("a hand in the machine", 1, newest - 1)
        assert (status.reason, status.by, status.latched) == ("smoke", ALICE.key, True)
        assert [one["principal"] for one in await recorded(world, "halt", 2)] == [ALICE.key, BOB.key]
        again = {"source": "person", "principal": ALICE.key, "reason": "fire", "count": 2, "generation": newest}
        assert [one["holds"] for one in await recorded(world, "halt.again")] == [[again]]
        await alice.reset_halt()
        (reset,) = await recorded(world, "halt.reset")
        assert ([one["principal"] for one in reset["holds"]], reset["halted"]) == ([ALICE.key, BOB.key], False)


async def test_a_flood_of_halts_costs_one_record_and_one_write_of_the_latch_a_second(autojump_clock):
    async with a_world() as world:
        halt = world.runtime.halt
        for number in range(1000):
            halt.halt(f"flood {number}", "a test")
            await trio.sleep(0.01)
        await trio.sleep(REPEAT_S * 2)
        assert len(of(world, "halt")) == 1
        records = of(world, "halt.again")
        assert len(records) <= 11
        assert records[-1]["holds"][0]["count"] == 1000
        assert world.latch.writes <= 12
        assert world.latch.kept[0].last_reason == "flood 999"


async def test_more_principals_than_there_may_be_holds_share_one_and_none_of_their_halts_is_lost(autojump_clock):
    async with a_world(inputs=["ESTOP"]) as world:
        halt = world.runtime.halt
        for number in range(MOST_HOLDS + 10):
            halt.halt("smoke", f"uid:{number}")
        halt.halt("smoke", "amqp:boss", source="fleet")
        world.a.push(ESTOP, 1)
        await passes(lambda: ("input", "input ESTOP", "input ESTOP is at its stop level", 1) in holds_of(world))
        shared = [one for one in holds_of(world) if one[1] == OTHERS]
        assert shared == [
            ("person", OTHERS, f"uid:{MOST_HOLDS + 9}: smoke", 10), ("fleet", OTHERS, "amqp:boss: smoke", 1)
        ]  # fmt: skip
        assert len(holds_of(world)) == MOST_HOLDS + 3
        world.a.push(ESTOP, 0)
        with pytest.raises(Halted):
            await halt.reset("amqp:boss", halt.flag.count, source="fleet")
        assert ("fleet", OTHERS) not in [one[:2] for one in holds_of(world)]
        assert len(holds_of(world)) == MOST_HOLDS + 2


async def test_the_halt_of_a_person_and_that_of_the_fleet_are_both_latched_one_after_the_other(tmp_path):
    async with a_bench(tmp_path) as world:
        halt = world.runtime.halt
        halt.halt("the fleet: smoke", "amqp:boss", source="fleet")
        assert await halt.latched()
        halt.halt("a hand in the machine", "uid:1000")
        assert await halt.latched()
        found = Latch(latch_file(tmp_path))
        found.open(0)  # what a daemon reads that comes after a kill at this moment
        assert found.found == tuple(halt._holds.values())
    async with a_bench(tmp_path) as world:
        assert [one[:2] for one in holds_of(world)] == [("fleet", "amqp:boss"), ("person", "uid:1000")]
        halt = world.runtime.halt
        assert await halt.latched()
        with pytest.raises(Halted, match='this reset does not end the hold of uid:1000: "a hand in the machine"'):
            await halt.reset("amqp:boss", halt.flag.count, source="fleet")
        assert halt.status()["reason"] == "a hand in the machine"
        found.open(0)
        assert [one.by for one in found.found] == ["uid:1000"]


# --- the reset ------------------------------------------------------------------------------------------------------


async def test_a_number_that_was_seen_before_a_restart_names_no_hold_that_came_after_it(autojump_clock):
    seen = set()
    for _ in range(3):
        async with a_world() as world, world.sessions().open_session() as session:
            hold = (await session.halt("smoke")).holds[0]["generation"]
            assert hold not in seen
            if seen:
                with pytest.raises(Halted, match="does not end the hold"):
                    await session.reset_halt(holds=sorted(seen))
            seen.add(hold)
            await session.reset_halt(holds=[hold])
        await trio.sleep(1)


@pytest.mark.spec("design 8: halt.reset")
async def test_a_reset_needs_the_right(autojump_clock):
    async with a_world(policy=(OPEN,)) as world, world.sessions().open_session() as session:
        await session.halt("smoke")
        with pytest.raises(PermissionDenied, match="'reset_halt' is not given by policy 'bench'"):
            await session.reset_halt()
        assert (await session.halt_status()).halted


@pytest.mark.spec("design 8: halt.status")
async def test_who_halted_is_told_to_themselves_and_to_those_with_a_right_and_to_no_other(autojump_clock):
    for policy, seen in ((OPEN, None), (evolve(OPEN, rights=["observe"]), ALICE.key), (MAY_RESET[0], ALICE.key)):
        async with a_world(policy=(policy,)) as world, world.sessions(BOB).open_session() as other:
            async with world.sessions(ALICE).open_session() as session:
                assert (await session.halt("smoke")).by == ALICE.key
            assert (await other.halt_status()).by == seen
            assert "by" not in world.runtime.health()["halt"]


@pytest.mark.spec("design 8: halt.reset")
async def test_a_halt_that_comes_while_a_reset_removes_the_latch_wins_and_is_on_the_disk_when_it_is_acknowledged(
    autojump_clock,
):
    refused = []

    async def reset(session):
        with pytest.raises(Halted, match="a halt has come since the reset was asked for") as error:
            await session.reset_halt()
        refused.append(error)

    async with a_world() as world, world.sessions().open_session() as session:
        await session.halt("first")
        world.latch.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reset, session)
            await passes(lambda: world.latch.writes == 2)
            nursery.start_soon(session.halt, "second")
            await passes(lambda: world.runtime.halt.status()["holds"][0]["count"] == 2)
            world.latch.gate.set()
        assert refused
        assert (await session.halt_status()).latched is True
        assert world.latch.kept is not None
        await session.reset_halt()
        assert world.latch.kept is None


async def test_a_reset_that_waits_in_a_sessions_mailbox_when_a_halt_comes_does_not_end_that_halt(
    autojump_clock, monkeypatch
):
    def halted_as_soon_as_it_waits(self, request):
        self.post(request)
        if type(request.params) is HaltReset:
            world.runtime.halt.halt("second", "a test")

    async with a_world() as world, world.sessions().open_session() as session:
        await session.halt("first")
        monkeypatch.setattr(Session, "ask", halted_as_soon_as_it_waits)
        with pytest.raises(Halted):
            await session.reset_halt()
        assert (await session.halt_status()).halted


@pytest.mark.spec("design 8: halt.reset")
async def test_the_fleets_reset_ends_neither_the_hold_of_a_person_nor_that_of_an_input_that_is_clear_again(
    autojump_clock,
):
    async with a_world(inputs=["ESTOP"]) as world, world.sessions().open_session() as session:
        halt = world.runtime.halt
        halt.halt("the fleet: smoke", "amqp:boss", source="fleet")
        world.a.push(ESTOP, 1)
        await passes(lambda: len(halt._holds) == 2)
        await session.halt("a hand in the machine")
        with pytest.raises(Halted, match="ESTOP: is at its stop level") as refused:
            await halt.reset("amqp:boss", halt.flag.count, source="fleet", message_id="m1")
        assert [one["source"] for one in refused.value.data["holds"]] == ["input", "person"]
        (reset,) = await recorded(world, "halt.reset")
        assert (reset["message_id"], reset["halted"], len(reset["holds"])) == ("m1", True, 1)
        # The button is released to work at the machine: nothing waits for that.
        world.a.push(ESTOP, 0)
        await trio.sleep(60)
        with pytest.raises(Halted, match="this reset does not end the hold of input ESTOP"):
            await halt.reset("amqp:boss", halt.flag.count, source="fleet", message_id="m2")
        assert [one[0] for one in holds_of(world)] == ["input", "person"]
        assert len(of(world, "halt.reset")) == 1
        await session.reset_halt()


@pytest.mark.spec("design 8: halt.reset")
async def test_a_reset_of_the_holds_that_it_names_leaves_the_others_and_those_that_were_renewed(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        halt = world.runtime.halt
        for by in ("uid:1", "uid:2", "uid:3"):
            halt.halt("smoke", by)
        first, second, _ = (one["generation"] for one in (await session.halt_status()).holds)
        halt.halt("fire", "uid:2")
        with pytest.raises(Halted, match='hold of uid:2: "fire", uid:3: "smoke"'):
            await session.reset_halt([first, second])
        assert [one[1] for one in holds_of(world)] == ["uid:2", "uid:3"]
        with pytest.raises(Halted, match="hold of uid:2"):
            await session.reset_halt([999])
        await session.reset_halt()


@pytest.mark.spec("design 8: halt.reset")
async def test_a_reset_leaves_the_hold_of_an_input_that_is_not_clear_and_ends_those_of_persons(autojump_clock):
    async with a_world(inputs=["ESTOP"]) as world, world.sessions().open_session() as session:
        await session.halt("smoke")
        world.a.push(ESTOP, 1)
        await passes(lambda: len(world.runtime.halt._holds) == 2)
        with pytest.raises(Halted, match="ESTOP: is at its stop level"):
            await session.reset_halt()
        status = await session.halt_status()
        assert ([one["by"] for one in status.holds], status.by) == (["input ESTOP"], "input ESTOP")
        assert [one.by for one in world.latch.kept] == ["input ESTOP"]
        with pytest.raises(Halted, match="input ESTOP"):
            await session.gpio.set("MOTOR", 1)
        world.a.push(ESTOP, 0)
        await session.reset_halt()


async def test_a_reset_that_the_disk_keeps_waiting_is_refused_and_never_acts_later(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.halt("smoke")
        world.latch.gate = trio.Event()
        began = trio.current_time()
        for _ in range(2):  # one whose removal has begun, and one that waits behind it
            with pytest.raises(AuditUnavailable, match="cannot be changed: the disk does not answer"):
                await session.reset_halt()
        assert trio.current_time() - began <= 2 * (END_LIMIT_S + READ_LIMIT_S)
        world.latch.gate.set()
        await passes(lambda: world.runtime.halt.status()["latched"])
        assert [one.by for one in world.latch.kept] == [ALICE.key]
        assert (await session.halt_status()).halted
        assert not of(world, "halt.reset")
        await session.reset_halt()


# --- what is under way when a halt comes ----------------------------------------------------------------------------


async def test_a_pulse_that_a_halt_ends_leaves_its_line_safe_and_nothing_of_it_comes_back(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        for line in ("MOTOR", "LAMP"):
            task = await session.submit("x", [step("gpio.pulse", line=line, value=1, duration_ms=60_000)])
            await trio.sleep(1)
            assert world.a.state(MOTOR if line == "MOTOR" else LAMP) == 1
            await session.halt()
            assert (await task.wait()).status == "CANCELLED"
            assert 1 not in (world.a.state(MOTOR), world.a.state(LAMP))
            await session.reset_halt()
            # A later pulse rests where the halt has left the line, and not where the first pulse found it.
            assert (await session.run("gpio.pulse", line=line, value=1, duration_ms=10))["restored"] is True
            assert 1 not in (world.a.state(MOTOR), world.a.state(LAMP))


async def test_the_end_of_a_pulse_moves_nothing_even_if_the_halt_has_been_reset_by_then(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        task = await session.submit("x", [step("gpio.pulse", line="LAMP", value=1, duration_ms=60_000)])
        await trio.sleep(1)
        halt = world.runtime.halt
        halt.halt("smoke", "a test")
        halt.flag.since = None
        assert (await task.wait()).status == "CANCELLED"
        assert world.a.state(LAMP) == 0


@pytest.mark.spec("design 8: halt.reset")
async def test_a_transaction_that_was_queued_does_not_begin_and_not_after_the_reset_either(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        holds = await session.submit("x", [step("bench.read", gate="x", limit_ms=3_600_000)])
        await world.gate("x").reached()
        queued = await session.submit("y", [step("bench.set", line=1, value=1)])
        reads = await session.submit("z", [step("bench.read", tag="reads")])
        await trio.sleep(1)
        await session.halt()
        await session.reset_halt()
        world.gate("x").open()
        assert (await queued.wait()).status == "CANCELLED"
        assert [(await task.wait()).status for task in (holds, reads)] == ["SUCCESS"] * 2
        assert world.driver.levels == {}


@pytest.mark.spec("design 8: halt")
async def test_a_step_of_a_task_that_was_accepted_before_a_halt_never_drives_anything(autojump_clock):
    """Also one that its session has not cancelled yet."""
    async with a_world() as world, world.sessions().open_session() as session:
        task = await session.submit("x", [step("bench.wait", tag="go"), step("bench.set", line=1, value=1)])
        await trio.sleep(1)
        flag = world.runtime.halt.flag
        flag.count += 1
        world.event("go").set()
        done = await task.wait()
        assert done.steps[1].error_code == Halted.code
        assert "accepted before the daemon was halted" in done.steps[1].error
        assert world.driver.levels == {}


async def test_a_leased_bus_makes_its_outputs_safe_at_once_and_the_lease_ends(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        steps = [step("gpio.set", line="MOTOR", value=1), step("bench.wait", tag="never")]
        task = await session.submit("x", steps, exclusive=True)
        await trio.sleep(1)
        await session.halt()
        assert world.a.state(MOTOR) == 0
        assert (await task.wait()).status == "CANCELLED"
        assert "leased" not in world.runtime.buses["gpio:a"].health()


async def test_a_wedged_bus_makes_its_outputs_safe_as_soon_as_it_can_and_the_others_at_once(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.run("bench.set", line=1, value=1)
        await session.gpio.set("MOTOR", 1)
        task = await session.submit("x", [step("bench.set", line=2, value=1, gate="x", limit_ms=20)])
        await trio.sleep(1)
        assert world.bus.state == "wedged"
        status = await session.halt()
        assert world.a.state(MOTOR) == 0
        assert world.driver.levels == {1: 1}
        # The other bus may have a turn to go until it has noted that its outputs are safe.
        assert {"bus": "a", "outputs": [1, 2], "names": ["1", "2"]} in status.unsafe
        # What the session does to its outputs at its end does not come before, either.
        world.gate("x").open()
        await task.wait()
        await passes(lambda: world.driver.levels == {1: 0, 2: 0})
        assert (await session.halt_status()).unsafe == ()


async def test_a_bus_whose_device_is_gone_makes_its_outputs_safe_when_it_is_back_also_after_the_reset(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.run("bench.set", line=1, value=1)
        world.driver.unplug()
        await passes(lambda: world.bus.state == "down")
        await session.halt()
        await session.reset_halt()
        world.driver.plug_in()
        await passes(lambda: world.bus.state == "ready")
        assert world.driver.levels == {1: 0}


async def test_outputs_that_cannot_be_made_safe_are_tried_again_and_named_until_then(autojump_clock):
    async with a_world() as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        world.a.fail()
        assert (await session.halt()).unsafe == (
            {"bus": "gpio:a", "outputs": [MOTOR, LAMP], "names": ["MOTOR", "LAMP"]},
        )
        (record,) = await recorded(world, "outputs.safe")
        assert "injected fault" in record["safe"][0]["error"]
        with pytest.raises(Halted, match="outputs are not in their safe states"):
            await session.reset_halt()
        await trio.sleep(RETRY_S * 2)
        assert world.a.state(MOTOR) == 0
        await session.reset_halt()


async def test_the_end_of_a_session_moves_nothing_that_a_halt_has_taken_from_it(autojump_clock):
    async with a_world(sequence=[{"line": "MOTOR", "value": 0, "after_ms": 500}]) as world:
        async with world.sessions().open_session() as session:
            await session.gpio.set("MOTOR", 1)
            await session.halt()
        assert world.a.state(MOTOR) == 1, "its turn in the sequence has not come"
        await trio.sleep(1)
        assert world.a.state(MOTOR) == 0


async def test_lines_with_an_initial_level_are_made_safe_by_a_halt_and_not_driven_while_it_lasts(autojump_clock):
    content = {**BENCH, "gpio": [{**BENCH["gpio"][0], "lines": {"MOTOR": {"safe": 0, "initial": 1}}}], "halt": {}}
    board = open_board(parse_profile(content, "bench"), style=Style.ASYNC)
    chip = board.drivers["gpio:a"]
    world = BenchWorld(policy=MAY_RESET)
    world.parts = evolve(world.parts, board=board, drivers={**world.drivers, **board.drivers}, latch=MemoryLatch())
    async with running(world):
        assert chip.state(MOTOR) == 1
        bus = world.runtime.buses["gpio:a"]
        world.runtime.halt.halt("smoke", "a test")
        await passes(lambda: chip.state(MOTOR) == 0)
        for expected in (0, 1):
            bus.request(Ticket(lambda _driver: 1 / 0, Requester("", "", ""), limit=1))
            await passes(lambda: bus.state == "down")
            await passes(lambda: bus.state == "ready")
            assert chip.state(MOTOR) == expected
            async with world.sessions().open_session() as session:
                await session.reset_halt()


# --- the stop sequence ----------------------------------------------------------------------------------------------


SEQUENCE = [
    {"line": "BRAKE", "value": 1},
    {"line": "MOTOR", "value": "input", "after_ms": 200},
    {"line": "FAN", "value": 1, "after_ms": 300},
]


async def test_lines_of_the_sequence_follow_in_their_order_and_all_others_are_safe_at_once(autojump_clock):
    async with a_world(sequence=SEQUENCE) as world, world.sessions().open_session() as session:

        def states():
            return [world.a.state(line) for line in (BRAKE, MOTOR, LAMP)] + [world.b.state(line) for line in (0, 1)]

        for line in ("MOTOR", "LAMP"):
            await session.gpio.set(line, 1)
        await session.gpio.set("BRAKE", 0)
        await session.gpio.set("PUMP", 1, chip="b")
        began = trio.current_time()
        assert (await session.halt()).stopping is True
        await until(lambda: states() == [1, 1, 0, 0, "input"])
        with pytest.raises(Halted, match="the stop sequence has not ended"):
            await session.reset_halt()
        for after, expected in ((0.19, [1, 1, 0, 0, "input"]), (0.21, [1, "input", 0, 0, "input"]), (0.49, None)):
            await trio.sleep_until(began + after)
            assert expected is None or states() == expected
        # Repeated in the middle of it, a halt does not begin the sequence again.
        await session.halt("again")
        await trio.sleep_until(began + 0.51)
        assert states() == [1, 0, 0, 0, 0], "every output is safe at its end"
        assert (await session.halt_status()).stopping is False
        await session.reset_halt()
        entered = [record["safe"][0]["name"] for record in of(world, "outputs.safe") if "state" in record["safe"][0]]
        assert entered == ["BRAKE", "MOTOR", "FAN"]


# --- inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("inputs", "why"), [
    (["ESTOP"], "is at its stop level"),
    ([{"line": "DOOR", "stop": 0}], "is at its stop level"),
])  # fmt: skip
async def test_an_input_at_its_stop_level_at_the_start_halts_before_any_session(autojump_clock, inputs, why):
    async with a_world(prepare=lambda chip: chip.push(ESTOP, 1), inputs=inputs) as world:
        assert world.runtime.halt.flag.halted
        assert of(world, "halt")[0]["reason"] == f"input {inputs[0] if isinstance(inputs[0], str) else 'DOOR'} {why}"


async def test_an_input_that_cannot_be_read_at_the_start_halts_and_can_be_reset_when_it_can(autojump_clock):
    async with a_world(prepare=lambda chip: chip.fail(), inputs=["ESTOP"]) as world:
        assert "input ESTOP cannot be read: " in world.runtime.halt.flag.reason
        async with world.sessions().open_session() as session:
            await trio.sleep(RETRY_S * 2)
            assert (await session.halt_status()).inputs == {"ESTOP": "clear"}
            await session.reset_halt()


async def test_an_input_whose_chip_goes_halts_and_is_watched_again_when_it_is_back(autojump_clock):
    async with a_world(inputs=["ESTOP"]) as world, world.sessions().open_session() as session:
        world.a.close()
        await until_halted(world)
        assert "gpio chip a was closed" in world.runtime.halt.flag.reason
        with pytest.raises(Halted, match="ESTOP: cannot be read"):
            await session.reset_halt()
        world.a.open()
        await trio.sleep(RETRY_S * 2)
        await session.reset_halt()
        world.a.push(ESTOP, 1)
        await until_halted(world)


@pytest.mark.slow
async def test_an_input_works_while_its_own_bus_is_wedged_and_no_reset_is_possible_then():
    stuck = threading.Event()

    async def block(ctx, _args):
        await ctx.transact(lambda _driver: stuck.wait(PATIENCE), limit_ms=20)
        return {}

    more = {"inputs": ["ESTOP"], "style": Style.THREAD, "tools": [block_tool(block)]}
    async with a_world(**more) as world, world.sessions().open_session() as session:
        await session.gpio.set("MOTOR", 1)
        await session.gpio.set("PUMP", 1, chip="b")
        await session.submit("x", [step("bench.block")])
        await passes(lambda: world.runtime.buses["gpio:a"].state == "wedged")
        world.a.push(ESTOP, 1)
        await passes(lambda: world.b.state(PUMP) == 0)
        assert (await session.halt_status()).by == "input ESTOP"
        assert world.a.state(MOTOR) == 1
        world.a.push(ESTOP, 0)
        waiting = len(world.runtime.halt._nursery.child_tasks)

        async def reset():
            with pytest.raises(Halted, match="ESTOP: cannot be read: bus gpio:a does not answer"):
                await session.reset_halt()

        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(reset)
        assert len(world.runtime.halt._nursery.child_tasks) <= waiting + 2, "one read waits, however many ask"
        stuck.set()
        await passes(lambda: world.a.state(MOTOR) == 0)
        await passes(lambda: world.runtime.halt.status()["inputs"] == {"ESTOP": "clear"})
        await session.reset_halt()


async def test_a_pulse_whose_end_meets_a_halt_within_its_transaction_is_forgotten_and_an_undo_fails():
    forgotten = []

    def op(_driver):
        raise Halted

    assert give_back_or_make_safe(op, lambda: forgotten.append(1), MOTOR, None) is None
    assert forgotten == [1]
    with pytest.raises(Halted):
        give_back_or_make_safe(op, None, MOTOR, None)


async def test_a_contact_that_chatters_faster_than_it_can_be_read_halts(autojump_clock):
    async with a_world(inputs=[{"line": "DOOR", "stop": 1}]) as world, world.sessions().open_session() as session:
        for _ in range(WATCH_CAPACITY + 1):
            world.a.push(DOOR, 1)
            world.a.push(DOOR, 0)
        await until_halted(world)
        await trio.sleep(RETRY_S * 2)
        assert (await session.halt_status()).inputs == {"DOOR": "clear"}
        await session.reset_halt()


async def test_an_input_that_stays_silent_for_longer_than_its_timeout_halts_and_one_that_toggles_does_not(
    autojump_clock,
):
    inputs = [{"line": "PLC_ALIVE", "timeout_ms": 500}]
    async with a_world(inputs=inputs) as world, world.sessions().open_session() as session:
        for level in (1, 0) * 10:
            await trio.sleep(0.4)
            world.a.push(PLC_ALIVE, level)
        assert not world.runtime.halt.flag.halted
        await trio.sleep(0.6)
        assert world.runtime.halt.flag.reason == "input PLC_ALIVE no edge for 500 ms"
        with pytest.raises(Halted, match="PLC_ALIVE: no edge for 500 ms"):
            await session.reset_halt()
        world.a.push(PLC_ALIVE, 1)
        await trio.sleep(0.1)
        await session.reset_halt()


# --- the heartbeat --------------------------------------------------------------------------------------------------


async def edges(chip, line, seconds):
    watch = chip.watch(line, "both")
    await trio.sleep(seconds)
    chip.unwatch(watch)
    return watch._seq


async def test_the_heartbeat_toggles_while_the_daemon_is_healthy_and_not_halted(autojump_clock):
    async with a_world(heartbeat={"line": "ALIVE", "hz": 10}) as world, world.sessions().open_session() as session:
        assert await edges(world.a, ALIVE, 10) == pytest.approx(200, abs=1)
        world.journal.fail("the disk is full")
        await edges(world.a, ALIVE, 0.1)
        assert await edges(world.a, ALIVE, 10) == 0
        world.journal.heal()
        assert await edges(world.a, ALIVE, 10) == pytest.approx(200, abs=2)
        await session.halt()
        assert await edges(world.a, ALIVE, 10) == 0
        assert world.a.state(ALIVE) == 0
        await session.reset_halt()
        assert await edges(world.a, ALIVE, 10) == pytest.approx(200, abs=1)
    assert world.a.state(ALIVE) == 0


async def test_no_session_drives_the_heartbeat_output_nor_does_a_vendors_tool(autojump_clock):
    async def vendors(ctx, _args):
        await ctx.transact(lambda driver: driver.set(ALIVE, 1), drives=ALIVE)
        return {}

    async with a_world(heartbeat={"line": "ALIVE", "hz": 0.1}) as world, world.sessions().open_session() as session:
        with pytest.raises(PermissionDenied, match="is the heartbeat output"):
            await session.gpio.set("ALIVE", 1)
        assert await session.gpio.get("ALIVE") == 0
        bus = world.runtime.buses["gpio:a"]
        with pytest.raises(PermissionDenied, match="is the heartbeat output"):
            bus.guard.face.set(ALIVE, 1)
        with pytest.raises(PermissionDenied):
            bus.guard.face.set(ALIVE, 1)
        assert world.a.state(ALIVE) == "input"


# --- profiles -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latched", [False, True], ids=["halted later", "halted at the start"])
async def test_a_halt_also_makes_safe_what_an_earlier_run_left_driven_because_the_profile_keeps_it(
    autojump_clock, latched
):
    def left_driven(chip):
        chip.open()
        chip.set(LAMP, 1)
        chip.close()

    found = (Hold("person", "a test", "smoke", "then", "smoke", "then", 1, 1),)
    async with a_world(prepare=left_driven, found=found if latched else ()) as world:
        if not latched:
            assert world.a.state(LAMP) == 1
            world.runtime.halt.halt("smoke", "a test")
        await passes(lambda: world.a.state(LAMP) == 0)
