"""hearth.testing: the real machinery, in virtual time, with faults, crashes and people."""

from __future__ import annotations

import time
from base64 import b64encode
from itertools import count
from typing import Annotated, Any

import pytest
import trio
from annotated_types import Ge, Le

from hearth import (
    CapabilityFailed,
    Config,
    JobRejected,
    OutcomeUnknown,
    StepFailed,
    capability,
)
from hearth.config.model import FilesConfig
from hearth.drivers.base import Style
from hearth.drivers.boards import load_profile, open_board
from hearth.testing import _Clock, run_capability

pytestmark = pytest.mark.slow

Outputs = dict[str, Any]


def declared(name="try", *, tools=(), risk="R1", **more):
    """A capability with few words."""
    return capability(name, version="1.0.0", tools=list(tools), risk_ceiling=risk, **more)


@declared("survey", tools=["hw.sensor.read"], max_duration="P7D")
async def survey(
    job: Any, *, samples: Annotated[int, Ge(1), Le(100)] = 3, interval_s: Annotated[float, Ge(0)] = 60.0
) -> Outputs:
    """Reads a thermometer."""
    values = []
    async for number in job.every(interval_s, samples):
        values.append((await job.run("hw.sensor.read", sensor="temperature"))["value"])
        await job.report(number / samples, "reading", latest=values[-1])
    job.artifact("values.txt", "\n".join(map(str, values)), media_type="text/plain")
    return {"values": values, "random": await job.random(), "now": (await job.now()).isoformat()}


def at_celsius(*, celsius):
    """A room."""

    def prepare(board):
        board.drivers["i2c:1"].devices[0x48].temperature = lambda: celsius

    return prepare


@pytest.mark.proof
def test_days_go_by_and_everything_that_the_job_leaves_is_there():
    result = run_capability(survey, {"samples": 3, "interval_s": 86_400}, prepare=at_celsius(celsius=20.0))
    assert (result.state, result.error_code, result.error_message) == ("COMPLETED", None, None)
    assert result.outputs["values"] == [20.0, 20.0, 20.0]
    assert result.outputs["now"].startswith("2026-01-03T00:00:00")
    assert result.artifacts == {"values.txt": b"20.0\n20.0\n20.0"}
    assert [(step.tool, step.args, step.error) for step in result.steps] == [
        ("hw.sensor.read", {"sensor": "temperature"}, None)
    ] * 3
    assert [step.result["value"] for step in result.steps if step.result] == [20.0] * 3
    assert 2 * 86_400 <= result.duration_s < 2 * 86_400 + 1
    assert [one.event_type for one in result.events].count("intermediate_result") == 3
    assert result.warnings == ()
    assert result.done_twice == ()


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    first, second, other = (run_capability(survey, {}, seed=seed) for seed in (1, 1, 2))
    assert first.outputs == second.outputs
    assert first.outputs["random"] != other.outputs["random"]
    assert first.outputs["values"] != other.outputs["values"]


# --- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_a_job_that_is_killed_after_any_record_comes_to_the_same_outputs_and_repeats_nothing(crash_at):
    whole = run_capability(survey, {})
    result = run_capability(survey, {}, crash_at=crash_at)
    assert result.state == "COMPLETED", result.error_message
    assert result.outputs == whole.outputs
    assert result.artifacts == whole.artifacts
    assert result.steps == whole.steps
    assert result.done_twice == ()


def test_a_crash_that_never_comes_is_a_mistake_of_the_test():
    with pytest.raises(ValueError, match="crash_at=9: the job ended before; it put 7 operations on record"):
        run_capability(survey, {}, crash_at=9)


runs = count()
"""A clock of a capability's own, which a replay finds at another time."""


@declared("fickle", tools=["hw.board"])
async def fickle(job: Any) -> Outputs:
    """Does something else each time."""
    if not next(runs):
        await job.run("hw.board")
    await job.sleep(1)
    return {}


@pytest.mark.slow
def test_a_function_that_takes_another_course_at_a_replay_is_found_out():
    result = run_capability(fickle, {}, crash_at=1)
    assert (result.state, result.error_code) == ("FAILED", "input_error")
    assert "operation 1 is job.sleep(1), and on record it is hw.board" in (result.error_message or "")


@declared("switch", tools=["gpio.get", "gpio.set"], risk="R3")
async def switch(job: Any) -> Outputs:
    """Sets a line, and says what it knows of that."""
    await job.run("gpio.get", line="LED", replay=True)
    try:
        await job.run("gpio.set", line="LED", value=1)
        known = True
    except OutcomeUnknown:
        known = False
    return {"known": known}


@pytest.mark.slow
def test_a_step_that_was_under_way_at_the_crash_is_unknown_and_not_done_again():
    result = run_capability(switch, {}, crash_at="gpio.set")
    assert (result.state, result.outputs) == ("COMPLETED", {"known": False})
    assert [step.tool for step in result.steps] == ["gpio.get", "gpio.set"]


@declared("blind", tools=["gpio.set"], risk="R3", clean_up=["gpio.set"])
async def blind(job: Any) -> Outputs:
    """Sets a line at once."""
    try:
        await job.run("gpio.set", line="LED", value=1)
    finally:
        async with job.clean_up():
            await job.run("gpio.set", line="RELAY", value=1)
    return {}


def test_a_crash_in_the_very_first_step_is_told_and_a_dead_process_cleans_nothing_up():
    result = run_capability(blind, {}, crash_at="gpio.set")
    assert (result.state, result.error_code) == ("FAILED", "execution_error")
    assert "outcome is unknown" in (result.error_message or "")
    assert [step.args["line"] for step in result.steps] == ["LED", "RELAY"]


@declared("heater", tools=["i2c.write"], risk="R3", max_duration="PT1H", clean_up=["i2c.write"])
async def heater(job: Any) -> Outputs:
    """Is on until its time is over."""
    try:
        await job.run("i2c.write", bus=1, addr=0x50, reg=0, data="/w==")
        await job.sleep(86_400)
    finally:
        async with job.clean_up():
            await job.run("i2c.write", bus=1, addr=0x50, reg=0, data="AA==")
    return {}


def slow_bus(board):
    board.drivers["i2c:1"].faults.latency_s = 0.5


def test_clean_up_comes_after_max_duration_with_time_of_its_own():
    result = run_capability(heater, {}, prepare=slow_bus)
    assert (result.state, result.error_code) == ("FAILED", "timeout")
    assert [(step.args["data"], step.error) for step in result.steps] == [("/w==", None), ("AA==", None)]
    assert result.duration_s >= 3600.5


# --- faults, and a world that changes -------------------------------------------------------------------------------


@declared("stubborn", tools=["i2c.read", "uart.exchange"], risk="R3", max_duration="PT1H")
async def stubborn(job: Any, *, times: int = 2, port: bool = False) -> Outputs:
    """Talks to devices."""
    if port:
        command = b64encode(b"DELAY 20000 late\n").decode()
        reply = await job.run("uart.exchange", port="uart0", data=command, until="\n", timeout_ms=30_000)
        return {"data": reply["data"], "elapsed_s": round(job.elapsed_s)}
    read = await job.retry(lambda: job.run("i2c.read", bus=1, addr=0x48, reg=0, len=2), times=times, after_s=600)
    return {"data": read["data"]}


def test_a_device_that_does_not_acknowledge_is_asked_again_and_warned_about():
    result = run_capability(stubborn, {}, prepare=lambda board: board.drivers["i2c:1"].faults.nack(2, addr=0x48))
    assert result.state == "COMPLETED", result.error_message
    assert [step.error is None for step in result.steps] == [False, False, True]
    assert len(result.warnings) == 2
    assert round(result.duration_s) == 1200


def test_a_device_that_stays_away_fails_the_job():
    result = run_capability(stubborn, {}, prepare=lambda board: board.drivers["i2c:1"].faults.nack(9, addr=0x48))
    assert (result.state, result.error_code) == ("FAILED", "execution_error")
    assert "no device acknowledges address 0x48" in (result.error_message or "")


def test_a_bus_that_hangs_for_ever_ends_in_virtual_time():
    result = run_capability(stubborn, {"times": 0}, prepare=lambda board: board.drivers["i2c:1"].faults.wedge())
    assert result.state == "FAILED"


def test_a_slow_instrument_at_a_serial_port_is_waited_for():
    result = run_capability(stubborn, {"port": True})
    assert result.state == "COMPLETED", result.error_message
    assert result.outputs == {"data": b64encode(b"late\n").decode(), "elapsed_s": 20}


async def heat_later(board):
    """After half an hour the heating comes on."""
    sensor = board.drivers["i2c:1"].devices[0x48]
    sensor.temperature = lambda: 10.0
    await trio.sleep(1800)
    sensor.temperature = lambda: 30.0


def test_the_world_may_change_beside_the_job():
    result = run_capability(survey, {"samples": 3, "interval_s": 1000}, prepare=heat_later)
    assert result.outputs["values"] == [10.0, 10.0, 30.0]


@declared("fill", tools=["gpio.set", "hw.sensor.read"], risk="R3")
async def fill(job: Any) -> Outputs:
    """Fill the simulated tank for ten seconds."""
    levels = [(await job.run("hw.sensor.read", sensor="tank"))["value"]]
    for running in (1, 0):
        await job.run("gpio.set", line="PUMP", value=running)
        await job.sleep(10)
        levels.append((await job.run("hw.sensor.read", sensor="tank"))["value"])
    return {"levels": [round(level) for level in levels]}


def test_the_tank_of_the_simulated_board_fills_and_drains_in_virtual_time():
    assert run_capability(fill).outputs == {"levels": [40, 85, 80]}


def test_the_pump_of_the_simulated_board_does_not_run_while_its_door_is_open():
    result = run_capability(fill, prepare=lambda board: board.drivers["gpio:sim"].let_go(board.line(None, "DOOR")))
    assert result.state == "FAILED"
    assert "DOOR reads 1" in (result.error_message or "")


def test_the_pump_of_the_simulated_board_stops_before_the_tank_is_full():
    def nearly_full(board):
        board.drivers["i2c:1"].devices[0x4D].percent.put(80.0)

    result = run_capability(fill, prepare=nearly_full)
    # A little over 2 s to 90 %, and the rest without the pump, which is switched off and stays so.
    assert result.outputs["levels"] == [80, 86, 81]


# --- people, rejections, mistakes -----------------------------------------------------------------------------------


@declared("dangerous", tools=["gpio.set"], risk="R3", requires_human_approval=True)
async def dangerous(job: Any) -> Outputs:
    """Asks a person on the way, too."""
    answer = await job.ask_person("Is the door closed?")
    if not answer.approved:
        raise CapabilityFailed("the door is open")
    await job.run("gpio.set", line="LED", value=1)
    return {}


def test_a_person_is_asked_and_answers():
    asked = []

    def answer(question):
        asked.append(question)
        return True

    assert run_capability(dangerous, {}, answer=answer).state == "COMPLETED"
    assert asked == ["Approve a job of dangerous?", "Is the door closed?"]


def test_a_person_may_say_no():
    result = run_capability(dangerous, {}, answer=lambda question: "door" not in question)
    assert (result.state, result.error_message) == ("FAILED", "the door is open")
    with pytest.raises(JobRejected) as rejected:
        run_capability(dangerous, {}, answer=False)
    assert rejected.value.reason_code == "approval_denied"


def test_what_the_gate_refuses_is_raised():
    with pytest.raises(JobRejected, match="/payload/inputs/samples"):
        run_capability(survey, {"samples": 0})


@declared("reader", tools=["file.read"])
async def reader(job: Any, *, path: str) -> Outputs:
    """Reads a file."""
    try:
        return {"data": (await job.run("file.read", path=path))["data"]}
    except StepFailed as failed:
        return {"error": failed.error_code}


def test_a_configuration_may_open_what_a_capability_needs(tmp_path):
    (tmp_path / "note").write_text("hello")
    config = Config(files=FilesConfig(read=(tmp_path,)))
    assert run_capability(reader, {"path": f"{tmp_path}/note"}, config=config).outputs == {"data": "aGVsbG8="}
    assert run_capability(reader, {"path": f"{tmp_path}/note"}).outputs == {"error": "safety_violation"}


@declared("Wrong Name", tools=["hw.sensor.raed"])
async def wrong(job: Any, *, samples) -> Outputs:  # type: ignore[no-untyped-def]
    """Nothing is right here."""


def test_a_declaration_that_hearthd_would_not_take_is_refused_with_all_its_faults():
    with pytest.raises(ValueError, match="name") as refused:
        run_capability(wrong, {})
    assert all(word in str(refused.value) for word in ("hw.sensor.raed", "samples", "test_testing.py"))


def test_a_function_that_is_no_capability_is_refused():
    with pytest.raises(ValueError, match="is no capability"):
        run_capability(at_celsius, {})


@pytest.mark.parametrize(
    ("board", "why"),
    [
        ("rpi4", "drives real hardware"),
        (open_board(load_profile("sim"), style=Style.THREAD), "works in a thread"),
    ],
)
def test_a_board_that_virtual_time_does_not_fit_is_refused(board, why):
    with pytest.raises(ValueError, match=why):
        run_capability(survey, {}, board=board)


def test_a_board_of_ones_own_is_used():
    board = open_board(load_profile("sim"), style=Style.ASYNC)
    at_celsius(celsius=5.0)(board)
    assert run_capability(survey, {}, board=board).outputs["values"] == [5.0] * 3


def test_time_stands_still_for_threads_and_for_input_that_is_there_and_jumps_otherwise():
    async def whole():
        near, far = trio.socket.socketpair()
        with near, far, trio.fail_after(0.001):
            # In real time this takes longer than the deadline.
            await trio.to_thread.run_sync(time.sleep, 0.05)
            await far.send(b"x")
            assert await near.recv(1) == b"x"
        assert trio.current_time() == 0
        with trio.move_on_after(86_400) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        return trio.current_time()

    clock = _Clock()
    assert trio.run(whole, clock=clock, instruments=[clock]) == 86_400


@declared("plotter", max_duration="PT5S")
async def plotter(job: Any) -> Outputs:
    """Leaves a plot, which a thread draws."""
    job.plot("walk.png", series={"walk": [1.0, 3.0, 2.0]})
    await job.sleep(1)
    return {}


def test_time_stands_still_while_a_thread_draws():
    pytest.importorskip("PIL")
    result = run_capability(plotter, {})
    assert result.warnings == ()
    assert result.artifacts["walk.png"].startswith(b"\x89PNG")
    assert result.duration_s < 2
