"""An embedding program that is cancelled at any moment: it ends, and leaves its outputs safe and its log whole.

The program runs once to count its task's steps, then once for each step with the cancellation there. Scheduling is
seeded; threads and the clock are the real ones.
"""

from __future__ import annotations

import gc
import json
import threading
import time

import pytest
import trio
from support.steps import seeded

import hearth
from hearth import step
from hearth.audit.verify import verify
from hearth.config.model import AuditConfig, Config
from hearth.drivers.boards import load_profile, open_board
from hearth.policy.principal import embedded

pytestmark = pytest.mark.slow

LED, OTHER = 17, 5


class Cancelling(trio.abc.Instrument):
    """Cancels a scope before step number `at` of the program's main task, or of any task."""

    def __init__(self, at: int, *, every_task: bool) -> None:
        self.at = at
        self.count = 0
        self.scope: trio.CancelScope | None = None
        self.main: object = None
        self.every_task = every_task

    def before_task_step(self, task) -> None:
        if self.scope is not None and (self.every_task or task is self.main):
            self.count += 1
            if self.count == self.at:
                self.scope.cancel()


def run_cancelled(program, tmp_path, at: int, *, every_task: bool = False) -> int:
    """Run `program(runtime)` with a cancellation; check what is left behind. Returns how many steps there were."""
    path = tmp_path / f"{at}.log"
    board = open_board(load_profile("sim"))
    config = Config(audit=AuditConfig(path=path, key=tmp_path / "key"))
    cancelling = Cancelling(at, every_task=every_task)
    embedded()  # the thread that looks users up is the process's
    before = {thread for thread in threading.enumerate() if thread.name.startswith("hearth")}

    async def main() -> None:
        with trio.fail_after(60), trio.CancelScope() as cancelling.scope:
            cancelling.main = trio.lowlevel.current_task()
            async with hearth.open_runtime(board=board, config=config) as runtime:
                await program(runtime)
        cancelling.scope = None

    with seeded(at):
        trio.run(main, instruments=[cancelling])
    gpio = board.drivers["gpio:sim"]
    assert (gpio.level(LED), gpio.level(OTHER)) == (0, 0), "its outputs are not safe"
    check_log(path)
    gc.collect()  # a helper's thread ends with the object that has it
    for thread in threading.enumerate():
        if thread.name.startswith("hearth") and thread not in before:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} goes on"
    return cancelling.count


def check_log(path) -> None:
    if not path.exists():
        return  # it was cancelled before it was opened
    report = verify([path])
    assert report.ok, report.first_bad
    records = [json.loads(line) for line in path.read_text().splitlines()]
    events = [record["event"] for record in records]
    if events:
        assert "daemon.stop" in events, events
    for begun, ended in (
        ("session.open", "session.close"),
        ("task.submit", "task.finish"),
        ("task.step.start", "task.step.finish"),
    ):
        assert events.count(begun) == events.count(ended), events


async def one_of_everything(runtime) -> None:
    async with runtime.open_session(client_name="arm") as session:
        await session.run("gpio.set", line=LED, value=1)
        task = await session.submit(
            "all kinds of buses",
            [
                step("gpio.set", line=OTHER, value=1),
                step("i2c.read", bus=1, addr="0x48", reg=0, len=2),
                step("uart.exchange", port="uart0", data="aGkK", len=3, timeout_ms=2000),
                step("sys.load"),
                step("gpio.pulse", line=18, value=1, duration_ms=1),
            ],
            rollback_on_failure=True,
        )
        async for _event in task.events():
            pass
        assert (await task.wait()).status == "SUCCESS"
        await session.close()


async def many_at_once(runtime) -> None:
    async def work(n: int) -> None:
        async with runtime.open_session() as session:
            await session.run("gpio.set", line=(LED, OTHER)[n % 2], value=1)
            watch = await session.submit("watch", [step("gpio.watch", line=4, timeout_ms=60_000)], exclusive=n == 2)
            with trio.move_on_after(0.002):
                await watch.wait()

    async with trio.open_nursery() as nursery:
        for n in range(4):
            nursery.start_soon(work, n)


@pytest.mark.proof
@pytest.mark.parametrize("program", [one_of_everything, many_at_once])
def test_cancelled_at_any_step_of_its_own_it_ends_and_leaves_everything_safe(tmp_path, program) -> None:
    steps = run_cancelled(program, tmp_path, 0)
    assert steps > 2
    for at in range(1, steps + 1):
        try:
            run_cancelled(program, tmp_path, at)
        except BaseException as error:
            error.add_note(f"cancelled before step {at} of {steps}")
            raise


@pytest.mark.proof
@pytest.mark.parametrize("program", [one_of_everything, many_at_once])
def test_cancelled_at_steps_of_the_runtimes_tasks_it_ends_and_leaves_everything_safe(tmp_path, program) -> None:
    steps = run_cancelled(program, tmp_path, 0, every_task=True)
    assert steps > 50
    # Every one at the beginning and at the end, and a sample between.
    for at in [*range(1, 40), *range(40, steps, max(1, steps // 60)), *range(max(40, steps - 20), steps + 1)]:
        try:
            run_cancelled(program, tmp_path, at, every_task=True)
        except BaseException as error:
            error.add_note(f"cancelled before step {at} of {steps}")
            raise


def test_after_a_cancelled_start_the_same_log_can_be_used_again(tmp_path) -> None:
    config = Config(audit=AuditConfig(path=tmp_path / "audit.log"))
    for deadline in (0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016):

        async def main(deadline: float = deadline) -> None:
            with trio.move_on_after(deadline):
                async with hearth.open_runtime(board="sim", config=config):
                    await trio.sleep(0.005)

        trio.run(main)

    async def at_last() -> None:
        async with hearth.open_runtime(board="sim", config=config) as runtime, runtime.open_session() as session:
            await session.run("gpio.set", line=LED, value=1)

    trio.run(at_last)
    assert verify([tmp_path / "audit.log"]).ok


@pytest.mark.proof
def test_runtimes_that_come_and_go_leave_no_threads_and_no_descriptors(tmp_path) -> None:
    import os

    async def one(n: int) -> None:
        config = Config(audit=AuditConfig(path=tmp_path / f"{n % 2}.log"))
        async with hearth.open_runtime(board="sim", config=config) as runtime, runtime.open_session() as session:
            await session.run("uart.exchange", port="uart0", data="aGkK", len=3)

    def come_and_go(times: int) -> None:
        for n in range(times):
            trio.run(one, n)
        gc.collect()

    others = set(threading.enumerate())
    come_and_go(3)
    descriptors = len(os.listdir("/proc/self/fd"))
    come_and_go(20)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    until = time.monotonic() + 10
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("hearth"):
            thread.join(max(0, until - time.monotonic()))
            assert not thread.is_alive()
