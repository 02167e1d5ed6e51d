"""A PID controller for the level of the simulated tank, as a control loop: on Trio, on asyncio, and in plain threads.

The function `Controller.__call__` runs 50 times a second in a thread of its own, and alone drives the pump. The pump is
on or off, so the controller's output is the share of each second in which it runs. The level comes from a sensor on
another bus, so the program samples it beside the loop; a sample that is too old stops the pump.

    python examples/tank.py [trio|asyncio|threads] [SECONDS]
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import trio

import hearth
from hearth import LoopIO, LoopStats

HZ = 50
TARGET = 43.0
"""Percent of full."""
WINDOW = 1.0
"""Seconds: the pump's limit is five switchings a second."""
SAMPLE = 0.05
TOO_OLD = 0.5


class Controller:
    """PID: the error of the level in percent becomes the share of the time in which the pump runs."""

    kp, ki, kd = 0.4, 0.05, 0.02

    def __init__(self) -> None:
        self.sampled: tuple[float, float] | None = None
        """The newest level and its time. One assignment replaces both, so that the loop's thread needs no lock."""
        self._integral = 0.0
        self._before = 0.0
        self._duty = 0.0

    def sample(self, level: float) -> None:
        """Take a new reading; called beside the loop."""
        self.sampled = (level, time.monotonic())

    def __call__(self, io: LoopIO) -> None:
        """Run one period."""
        if self.sampled is None or time.monotonic() - self.sampled[1] > TOO_OLD:
            io.write("PUMP", 0)
            return
        error = TARGET - self.sampled[0]
        self._integral = min(max(self._integral + self.ki * error * io.dt, 0.0), 1.0)
        slope = (error - self._before) / io.dt
        self._before = error
        phase = io.time % WINDOW
        if phase < io.dt:
            # Once in each window: a share that changed within it could switch the pump more often than it may.
            self._duty = min(max(self.kp * error + self._integral + self.kd * slope, 0.0), 1.0)
        io.write("PUMP", 1 if phase < self._duty * WINDOW else 0)
        io.emit((error, self._duty))


async def on_trio(seconds: float) -> LoopStats:
    """Control the tank from a program on Trio."""
    controller = Controller()
    async with hearth.open_runtime(board="sim") as runtime, runtime.open_session(client_name="sampler") as session:
        controller.sample((await session.run("hw.sensor.read", sensor="tank"))["value"])
        async with runtime.loop(HZ, controller, lines=["PUMP"], name="tank") as loop:
            with trio.move_on_after(seconds):
                while True:
                    controller.sample((await session.run("hw.sensor.read", sensor="tank"))["value"])
                    await trio.sleep(SAMPLE)
        return loop.stats()


async def on_asyncio(seconds: float) -> LoopStats:
    """Control the tank from a program on asyncio."""
    controller = Controller()
    async with hearth.aio.open_runtime(board="sim") as runtime, runtime.open_session() as session:
        controller.sample((await session.run("hw.sensor.read", sensor="tank"))["value"])
        async with runtime.loop(HZ, controller, lines=["PUMP"], name="tank") as loop:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                controller.sample((await session.run("hw.sensor.read", sensor="tank"))["value"])
                await asyncio.sleep(SAMPLE)
        return loop.stats()


def in_threads(seconds: float) -> LoopStats:
    """Control the tank from a program without an event loop."""
    controller, over = Controller(), threading.Event()
    with hearth.sync.open_runtime(board="sim") as runtime, runtime.open_session() as session:

        def sample() -> None:
            while not over.wait(SAMPLE):
                controller.sample(session.run("hw.sensor.read", sensor="tank")["value"])

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            with runtime.loop(HZ, controller, lines=["PUMP"], name="tank") as loop:
                over.wait(seconds)
        finally:
            over.set()
            sampler.join()
        return loop.stats()


def main(how: str = "trio", seconds: str = "10") -> None:
    """Control the tank for some seconds, and say what the loop did."""
    if how == "trio":
        stats = trio.run(on_trio, float(seconds))
    elif how == "asyncio":
        stats = asyncio.run(on_asyncio(float(seconds)))
    else:
        stats = in_threads(float(seconds))
    late = f"99 % at most {stats.late_us(0.99):.0f} us late, SCHED_{stats.scheduling.upper()}"
    print(f"{how}: {stats.runs} periods, {stats.missed} missed, {stats.overruns} overruns; {late}")
    print(f"{stats.writes['PUMP']} writes to the pump, {stats.refused} refused")
    print(f"ended: {stats.ended}")


if __name__ == "__main__":
    main(*sys.argv[1:])
