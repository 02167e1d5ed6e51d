"""uart.* on the simulated board: a real pseudo-terminal with an echo peer."""

import base64

import pytest
import trio
import trio.testing

from hearth.drivers.serial_port.settings import INBOX_CAPACITY
from hearth.errors import DeviceError, InvalidParams


def b64(data):
    return base64.b64encode(data).decode()


def shown(text):
    """The members of a result that show short, printable bytes."""
    return {"data": b64(text), "hex": text.hex(), "text": text.decode()}


@pytest.fixture
def uart(bench):
    return bench.driver("uart:uart0")


async def arrived(uart, length=None, until=None):
    with trio.fail_after(60):
        await uart._inbox.wait(length, until)


async def test_what_is_written_is_echoed_and_read(bench):
    assert await bench.run("uart.write", port="uart0", data=b64(b"hello\n")) == {"written": 6}
    result = await bench.run("uart.read", port="uart0", until="\n", timeout_ms=9000)
    assert result == {**shown(b"hello\n"), "timed_out": False}


async def test_a_read_ends_after_its_length_and_leaves_the_rest(bench):
    await bench.run("uart.write", port="uart0", data=b64(b"abcdef\n"))
    assert (await bench.run("uart.read", port="uart0", len=3, timeout_ms=9000))["data"] == b64(b"abc")
    assert (await bench.run("uart.read", port="uart0", len=3, timeout_ms=9000))["data"] == b64(b"def")


async def test_with_no_end_given_a_read_returns_what_there_is_as_soon_as_there_is_any(bench, uart):
    await bench.run("uart.write", port="uart0", data=b64(b"ab\n"))
    await arrived(uart, length=3)
    assert (await bench.run("uart.read", port="uart0", timeout_ms=9000))["data"] == b64(b"ab\n")


async def test_a_read_that_runs_into_its_timeout_returns_what_had_come_and_says_so(bench, uart):
    await bench.run("uart.write", port="uart0", data=b64(b"no end\n"))
    await arrived(uart, length=7)
    result = await bench.run("uart.read", port="uart0", until="END", timeout_ms=1)
    assert result == {**shown(b"no end\n"), "timed_out": True}
    assert await bench.run("uart.read", port="uart0", timeout_ms=0) == {**shown(b""), "timed_out": True}


async def test_text_beyond_ascii_may_end_a_read(bench):
    await bench.run("uart.write", port="uart0", data=b64("21 °C\n".encode()))
    assert (await bench.run("uart.read", port="uart0", until="°", timeout_ms=9000))["data"] == b64("21 °".encode())


async def test_a_waiting_read_leaves_the_bus_to_others(bench, uart, make_context):
    context, results = make_context(uart), []

    async def read():
        results.append(await bench.run("uart.read", context=context, port="uart0", until="\n", timeout_ms=9000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert not context.lock.locked()
        await bench.run("uart.write", port="uart0", data=b64(b"ping\n"))
    assert results[0]["data"] == b64(b"ping\n")


async def test_a_read_that_is_cancelled_takes_nothing(bench, uart):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bench.run("uart.read", port="uart0", len=10, timeout_ms=9000))
        await trio.testing.wait_all_tasks_blocked()
        await bench.run("uart.write", port="uart0", data=b64(b"abc\n"))
        await arrived(uart, length=4)
        nursery.cancel_scope.cancel()
    assert (await bench.run("uart.read", port="uart0", len=4, timeout_ms=9000))["data"] == b64(b"abc\n")


async def test_two_reads_of_one_session_share_what_comes_and_none_gets_it_twice(bench):
    lines = []

    async def read():
        lines.append((await bench.run("uart.read", port="uart0", until="\n", timeout_ms=9000))["data"])

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        for line in (b"one\n", b"two\n"):
            await bench.run("uart.write", port="uart0", data=b64(line))
    assert sorted(lines) == sorted([b64(b"one\n"), b64(b"two\n")])


async def test_a_reader_that_comes_too_late_leaves_the_beginning_of_the_next_line_alone(bench, uart):
    lines = []

    async def read():
        lines.append((await bench.run("uart.read", port="uart0", until="\n", timeout_ms=9000))["data"])

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        uart._inbox.feed(b"one\ntw")
        await trio.testing.wait_all_tasks_blocked()
        assert lines == [b64(b"one\n")]
        uart._inbox.feed(b"o\n")
    assert lines == [b64(b"one\n"), b64(b"two\n")]


async def test_a_session_does_not_take_what_another_one_waits_for(bench, uart, make_context):
    lines, thief = [], make_context(uart)
    thief.session_id = "thief"

    async def wait():
        lines.append((await bench.run("uart.read", port="uart0", until="\n", timeout_ms=9000))["data"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        uart._inbox.feed(b"hal")
        stolen = await bench.run("uart.read", context=thief, port="uart0", len=3, timeout_ms=9000)
        uart._inbox.feed(b"f\n")
    assert stolen["data"] == b64(b"hal")
    assert lines == [b64(b"half\n")]


async def test_bytes_that_were_lost_are_reported_once(bench, uart):
    uart._inbox.feed(b"x" * (INBOX_CAPACITY + 3))
    assert (await bench.run("uart.read", port="uart0", len=1))["overflow"] == 3
    assert "overflow" not in await bench.run("uart.read", port="uart0", len=1)


async def test_an_exchange_returns_the_reply_to_its_own_command(bench, uart):
    await bench.run("uart.write", port="uart0", data=b64(b"stale\n"))
    await arrived(uart, until=b"\n")
    result = await bench.run("uart.exchange", port="uart0", data=b64(b"*IDN?\n"), until="\n", timeout_ms=9000)
    assert result == {**shown(b"HEARTH,SIM-UART,0,1\n"), "timed_out": False, "discarded": 6}


async def test_nothing_comes_in_between_the_command_and_its_reply(bench, uart, make_context):
    context, order = make_context(uart), []

    async def exchange():
        result = await bench.run(
            "uart.exchange", context=context, port="uart0", data=b64(b"DELAY 20 mine\n"), until="\n", timeout_ms=9000
        )
        order.append(result["data"])

    async def write():
        await bench.run("uart.write", port="uart0", data=b64(b"theirs\n"))
        order.append("written")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange)
        await trio.testing.wait_all_tasks_blocked()
        assert context.lock.locked()
        nursery.start_soon(write)
    assert order == [b64(b"mine\n"), "written"]


async def test_an_exchange_without_a_reply_is_bounded_by_its_timeout(bench, uart, make_context):
    context = make_context(uart)
    result = await bench.run(
        "uart.exchange", context=context, port="uart0", data=b64(b"QUIET\n"), until="\n", timeout_ms=10
    )
    assert result == {**shown(b""), "timed_out": True}
    (limit,) = context.limits
    assert limit > 10


@pytest.mark.parametrize("tool", ["uart.read", "uart.write", "uart.exchange", "uart.control"])
async def test_a_port_that_is_not_there_is_refused_before_anything_runs(bench, tool):
    assert bench.tools[tool].bus({"port": "uart0", "text": "x"}) == "uart:uart0"
    with pytest.raises(InvalidParams, match="it has: uart0"):
        bench.tools[tool].bus({"port": "/dev/ttyS0", "text": "x"})


async def test_what_is_sent_may_be_text_or_hex(bench, uart):
    assert await bench.run("uart.write", port="uart0", text="21 °C\n") == {"written": 7}
    assert await bench.run("uart.write", port="uart0", hex="00 ff 0A") == {"written": 3}
    read = await bench.run("uart.read", port="uart0", len=10, timeout_ms=9000)
    assert read["hex"] == "21 °C\n".encode().hex() + "00ff0a"
    assert "text" not in read
    reply = await bench.run("uart.exchange", port="uart0", text="*IDN?\n", until="\n", timeout_ms=9000)
    assert reply["text"] == "HEARTH,SIM-UART,0,1\n"


async def test_a_read_whose_port_is_closed_fails_with_a_device_error(bench, uart):
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="closed")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bench.run("uart.read", port="uart0", timeout_ms=9000))
            await trio.testing.wait_all_tasks_blocked()
            uart.close()


@pytest.mark.slow
async def test_a_read_with_a_gap_ends_when_the_line_is_quiet(bench):
    await bench.run("uart.write", port="uart0", data=b64(b"DELAY 10 a\nDELAY 10 b\n"))
    result = await bench.run("uart.read", port="uart0", gap_ms=1000, timeout_ms=9000)
    assert result == {**shown(b"a\nb\n"), "timed_out": False}


@pytest.mark.slow
async def test_a_gap_that_does_not_come_before_the_timeout_is_a_timeout(bench):
    await bench.run("uart.write", port="uart0", data=b64(b"a\n"))
    result = await bench.run("uart.read", port="uart0", gap_ms=60_000, timeout_ms=200)
    assert result == {**shown(b"a\n"), "timed_out": True}


@pytest.mark.slow
async def test_an_exchange_with_a_gap_needs_no_delimiter(bench):
    result = await bench.run("uart.exchange", port="uart0", data=b64(b"BURST 25\n"), gap_ms=300, timeout_ms=9000)
    assert result == {**shown(b"0123456789012345678901234"), "timed_out": False}


async def test_a_write_that_drains_may_take_longer(bench, uart, make_context):
    context = make_context(uart)
    for drain in (False, True):
        sent = await bench.run("uart.write", context=context, port="uart0", data=b64(b"hello\n"), drain=drain)
        assert sent == {"written": 6}
    quick, slow = context.limits
    assert slow > quick


async def test_characters_that_the_device_lost_are_reported_once(bench, uart, monkeypatch):
    await bench.run("uart.write", port="uart0", data=b64(b"ab\n"))
    await arrived(uart, length=3)
    counts = iter([2, 0])
    monkeypatch.setattr(uart, "_new_overruns", lambda: next(counts))
    assert (await bench.run("uart.read", port="uart0", len=1))["overrun"] == 2
    assert "overrun" not in await bench.run("uart.read", port="uart0", len=1)


async def test_control_tells_all_lines_and_drives_what_is_asked(bench, uart, make_context):
    context = make_context(uart)
    told = await bench.run("uart.control", context=context, port="uart0")
    assert told == {"port": "uart0", "rts": True, "dtr": True, "cts": True, "dsr": True, "ri": False, "cd": True}
    assert context.drives == []
    driven = await bench.run("uart.control", context=context, port="uart0", dtr=False)
    assert driven == {**told, "dtr": False}
    assert context.drives == ["lines"]


async def test_control_can_be_taken_back(bench, uart, transact):
    await bench.run("uart.control", port="uart0", rts=False)
    done = await bench.done("uart.control", port="uart0", rts=True, dtr=False)
    assert done.undo.describe == "uart.control port uart0 back to rts off, dtr on"
    assert done.undo.drives == "lines"
    await transact(uart, done.undo.op)
    told = await bench.run("uart.control", port="uart0")
    assert (told["rts"], told["dtr"]) == (False, True)


async def test_a_break_is_one_transaction_and_leaves_nothing_to_take_back(bench, uart, make_context):
    context, order = make_context(uart), []

    async def send_break():
        done = await bench.done("uart.control", context=context, port="uart0", break_ms=50)
        order.append(done.undo)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_break)
        await trio.testing.wait_all_tasks_blocked()
        assert uart.in_break
        await bench.run("uart.write", context=context, port="uart0", data=b64(b"x\n"))
        order.append("written")
    assert order == [None, "written"]
    assert (uart.in_break, uart.breaks) == (False, 1)
