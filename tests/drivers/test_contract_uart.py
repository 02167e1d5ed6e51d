"""The contract of every UART driver; `uart_bench` is an open port whose far end echoes lines and answers *IDN?."""

import pytest
import trio
import trio.testing
from support import guarded

from hearth.drivers.serial_port.inbox import MOST_CURSORS
from hearth.drivers.serial_port.settings import MODEM_LINES, ModemLines
from hearth.errors import DeviceError


async def received(driver, transact, length=None, until=None):
    """Wait off the bus, then take: what a reader does."""
    with trio.fail_after(60):
        taken = await transact(driver, lambda d: d.take(length, until))
        while not taken.complete:
            await taken.inbox.wait(length, until)
            taken = await transact(driver, lambda d: d.take(length, until))
    return taken.data


async def write(driver, transact, data):
    return await transact(driver, lambda d: d.write(data, timeout_s=10))


async def test_a_line_that_is_written_comes_back(uart_bench, transact):
    assert await write(uart_bench, transact, b"hello\n") == 6
    assert await received(uart_bench, transact, until=b"\n") == b"hello\n"


async def test_every_byte_value_passes_unchanged(uart_bench, transact):
    data = bytes(n for n in range(256) if n != 0x0A) + b"\n"
    await write(uart_bench, transact, data)
    assert await received(uart_bench, transact, length=len(data)) == data


async def test_taking_ends_at_the_text_or_at_the_length_whichever_is_first(uart_bench, transact):
    await write(uart_bench, transact, b"one;two;three\n")
    assert await received(uart_bench, transact, until=b";") == b"one;"
    assert await received(uart_bench, transact, length=2, until=b";") == b"tw"
    assert await received(uart_bench, transact, length=50, until=b";") == b"o;"
    assert await received(uart_bench, transact, until=b"\n") == b"three\n"


async def test_what_is_not_complete_stays_until_it_is_asked_for(uart_bench, transact):
    await write(uart_bench, transact, b"abc\n")
    assert await received(uart_bench, transact, length=3) == b"abc"
    await uart_bench._inbox.wait(None, None)
    none = await transact(uart_bench, lambda d: d.take(10, None))
    assert (none.data, none.complete) == (b"", False)
    some = await transact(uart_bench, lambda d: d.take(10, None, partial=True))
    assert (some.data, some.complete) == (b"\n", False)


async def test_a_reader_that_waits_does_not_keep_others_from_writing(uart_bench, transact):
    lines = []

    async def read():
        lines.append(await received(uart_bench, transact, until=b"\n"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await write(uart_bench, transact, b"ping\n")
    assert lines == [b"ping\n"]


async def test_a_reader_that_is_cancelled_takes_nothing(uart_bench, transact):
    with trio.move_on_after(0):
        await received(uart_bench, transact, until=b"\n")
    await write(uart_bench, transact, b"whole\n")
    assert await received(uart_bench, transact, until=b"\n") == b"whole\n"


async def test_an_exchange_returns_the_reply_to_its_own_command(uart_bench, transact):
    await write(uart_bench, transact, b"stale\n")
    await uart_bench._inbox.wait(None, b"\n")
    reply = await transact(uart_bench, lambda d: d.exchange(b"*IDN?\n", length=None, until=b"\n", timeout_s=10))
    assert reply.complete
    assert reply.data == b"HEARTH,SIM-UART,0,1\n"
    assert reply.discarded == 6


async def test_an_exchange_without_a_reply_ends_with_what_there_is_of_one(uart_bench, transact):
    reply = await transact(uart_bench, lambda d: d.exchange(b"QUIET\n", length=4, until=None, timeout_s=0.01))
    assert (reply.data, reply.complete) == (b"", False)


async def test_more_data_than_any_buffer_holds_passes_both_ways(uart_bench, transact):
    """Three lines are under way at most: not every kernel recovers from a reader that falls behind."""
    line, lines = bytes(range(0x30, 0x3A)) * 100 + b"\n", 100
    got, under_way = bytearray(), trio.Semaphore(3)
    async with trio.open_nursery() as nursery:

        async def write_all():
            for _ in range(lines):
                await under_way.acquire()
                await write(uart_bench, transact, line)

        nursery.start_soon(write_all)
        while len(got) < lines * len(line):
            got += await received(uart_bench, transact, until=b"\n")
            if got.endswith(b"\n"):
                under_way.release()
    assert bytes(got) == line * lines


async def test_closing_the_port_ends_its_readers_and_its_pump(uart_bench, transact):
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(DeviceError, match="closed")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(received, uart_bench, transact, 1)
            await trio.testing.wait_all_tasks_blocked()
            uart_bench.close()


@pytest.mark.slow
async def test_with_a_gap_a_read_ends_when_the_line_is_quiet_and_not_before(uart_bench, transact):
    await write(uart_bench, transact, b"DELAY 30 late\nDELAY 30 later\n")
    taken = await transact(uart_bench, lambda d: d.take(None, None, gap_s=1.0))
    assert not taken.complete
    await taken.inbox.wait(None, None, 1.0)
    taken = await transact(uart_bench, lambda d: d.take(None, None, gap_s=1.0))
    assert (taken.data, taken.complete) == (b"late\nlater\n", True)


async def test_length_and_text_end_a_read_before_its_gap(uart_bench, transact):
    await write(uart_bench, transact, b"one;two\n")
    await uart_bench._inbox.wait(8, None)
    taken = await transact(uart_bench, lambda d: d.take(None, b";", gap_s=60))
    assert (taken.data, taken.complete) == (b"one;", True)
    taken = await transact(uart_bench, lambda d: d.take(2, None, gap_s=60))
    assert (taken.data, taken.complete) == (b"tw", True)
    taken = await transact(uart_bench, lambda d: d.take(3, None, gap_s=60))
    assert (taken.data, taken.complete) == (b"", False)


@pytest.mark.slow
async def test_an_exchange_may_end_with_a_gap(uart_bench, transact):
    reply = await transact(
        uart_bench, lambda d: d.exchange(b"*IDN?\n", length=None, until=None, gap_s=0.3, timeout_s=9)
    )
    assert (reply.data, reply.complete) == (b"HEARTH,SIM-UART,0,1\n", True)


async def test_a_write_that_drains_ends_when_everything_has_left(uart_bench, transact):
    assert await transact(uart_bench, lambda d: d.write(b"gone\n", timeout_s=9, drain=True)) == 5
    assert await received(uart_bench, transact, until=b"\n") == b"gone\n"


async def test_an_exchange_in_flight_gets_its_reply_although_the_bus_is_ending(uart_bench, transact):
    """The pump has been cancelled when the reply comes: a transaction that has begun is never interrupted."""
    replies = []

    async def exchange():
        replies.append(
            await transact(uart_bench, lambda d: d.exchange(b"DELAY 50 still\n", length=None, until=b"\n", timeout_s=9))
        )

    await trio.testing.wait_all_tasks_blocked()  # the bench's own pump waits: it ends with this close
    uart_bench.close()
    uart_bench.open()
    async with trio.open_nursery() as nursery, trio.open_nursery() as bus:
        bus.start_soon(uart_bench.pump)
        nursery.start_soon(exchange)
        await trio.testing.wait_all_tasks_blocked()
        bus.cancel_scope.cancel()
    assert replies[0].data == b"still\n"


async def test_lines_are_told_and_where_there_are_some_driven_and_made_safe(uart_bench, transact):
    lines = await transact(uart_bench, lambda d: d.control())
    if lines == ModemLines():
        with pytest.raises(DeviceError, match="cannot be set") as caught:
            await transact(uart_bench, lambda d: d.control(rts=True))
        assert caught.value.data["effect"] == "none"
        [report] = await transact(uart_bench, lambda d: guarded.port(d).make_safe([MODEM_LINES]))
        assert "cannot be set" in report["error"]
        return
    assert (lines.rts, lines.dtr) == (True, True)
    lines = await transact(uart_bench, lambda d: d.control(rts=False, dtr=False))
    assert (lines.rts, lines.dtr) == (False, False)
    lines = await transact(uart_bench, lambda d: d.control(dtr=True))
    assert (lines.rts, lines.dtr) == (False, True)
    safe = await transact(uart_bench, lambda d: guarded.port(d).make_safe([MODEM_LINES]))
    assert safe == [{"port": "bench", "safe": {"rts": True, "dtr": True}}]
    lines = await transact(uart_bench, lambda d: d.control())
    assert (lines.rts, lines.dtr) == (True, True)


# --- readers with a place of their own --------------------------------------------------------------------------------


async def read_by(driver, transact, reader, length=None, until=None):
    """Wait off the bus, then read at this reader's cursor."""
    with trio.fail_after(60):
        taken = await transact(driver, lambda d: d.take(length, until, reader=reader))
        while not taken.complete:
            await taken.inbox.wait(length, until, None, reader)
            taken = await transact(driver, lambda d: d.take(length, until, reader=reader))
    return taken.data


async def test_no_reader_takes_what_another_one_waits_for(uart_bench, transact):
    for reader in ("a", "b"):
        assert (await transact(uart_bench, lambda d, who=reader: d.take(4, None, reader=who))).complete is False
    await write(uart_bench, transact, b"one;two\n")
    assert await read_by(uart_bench, transact, "a", until=b"\n") == b"one;two\n"
    assert await read_by(uart_bench, transact, "b", until=b";") == b"one;"
    assert await read_by(uart_bench, transact, "b", until=b"\n") == b"two\n"


async def test_who_comes_later_begins_at_what_has_not_been_read(uart_bench, transact):
    await write(uart_bench, transact, b"one;two\n")
    assert await read_by(uart_bench, transact, "a", until=b";") == b"one;"
    assert await read_by(uart_bench, transact, "b", until=b"\n") == b"two\n"


async def test_who_has_written_sees_the_answer_although_another_one_reads_first(uart_bench, transact):
    await transact(uart_bench, lambda d: d.write(b"hello\n", timeout_s=10, reader="a"))
    assert await read_by(uart_bench, transact, "b", until=b"\n") == b"hello\n"
    assert await read_by(uart_bench, transact, "a", until=b"\n") == b"hello\n"


async def test_an_exchange_skips_stale_input_for_its_own_reader_only(uart_bench, transact):
    await transact(uart_bench, lambda d: d.write(b"stale\n", timeout_s=10, reader="a"))
    assert await read_by(uart_bench, transact, "b", until=b"\n") == b"stale\n"
    reply = await transact(
        uart_bench, lambda d: d.exchange(b"*IDN?\n", length=None, until=b"\n", timeout_s=9, reader="b")
    )
    assert (reply.complete, reply.discarded) == (True, 0)
    assert await read_by(uart_bench, transact, "a", until=b"\n") == b"stale\n"
    assert await read_by(uart_bench, transact, "a", until=b"\n") == reply.data


async def test_a_reader_that_the_newest_bytes_have_passed_is_told_how_many_it_missed(uart_bench, transact):
    inbox = uart_bench._inbox
    inbox.begin("slow")
    capacity = inbox.room
    inbox.feed(b"x" * capacity)
    assert await read_by(uart_bench, transact, "quick", length=1) == b"x"
    inbox.feed(b"yz\n")
    taken = await transact(uart_bench, lambda d: d.take(1, None, reader="slow"))
    assert (taken.data, taken.overflow) == (b"x", 3)
    taken = await transact(uart_bench, lambda d: d.take(1, None, reader="quick"))
    assert (taken.data, taken.overflow) == (b"x", 2)
    assert (await transact(uart_bench, lambda d: d.take(1, None, reader="quick"))).overflow == 0


async def test_a_reader_that_never_reads_on_holds_up_no_other(uart_bench, transact):
    inbox = uart_bench._inbox
    capacity = inbox.room
    inbox.begin("gone")
    inbox.feed(b"x" * capacity)
    assert inbox.room == 0
    while (await transact(uart_bench, lambda d: d.take(4096, None, partial=True, reader="quick"))).data:
        pass
    assert inbox.room == capacity


async def test_what_is_kept_for_a_session_goes_with_it_and_is_bounded(uart_bench, transact):
    inbox = uart_bench._inbox
    await read_nothing(uart_bench, transact, "session")
    assert list(inbox._cursors) == ["session"]
    uart_bench.forget("session")
    uart_bench.forget("session")
    assert not inbox._cursors
    for number in range(MOST_CURSORS + 2):
        inbox.begin(str(number))
    assert len(inbox._cursors) == MOST_CURSORS
    assert "1" not in inbox._cursors
    assert str(MOST_CURSORS + 1) in inbox._cursors


async def read_nothing(driver, transact, reader):
    """A look at what is there, which is nothing."""
    assert (await transact(driver, lambda d: d.take(1, None, reader=reader))).data == b""


async def test_each_reader_is_told_once_of_characters_that_the_device_lost(uart_bench, transact, monkeypatch):
    for reader in ("a", "b"):
        await read_nothing(uart_bench, transact, reader)
    counts = iter([2])
    monkeypatch.setattr(uart_bench, "_new_overruns", lambda: next(counts, 0))
    uart_bench._inbox.feed(b"ab\n")
    for reader in ("a", "b"):
        told = [
            (await transact(uart_bench, lambda d, who=reader: d.take(1, None, reader=who))).overrun for _ in range(2)
        ]
        assert told == [2, 0]
    assert (await transact(uart_bench, lambda d: d.take(1, None, reader="new"))).overrun == 0
