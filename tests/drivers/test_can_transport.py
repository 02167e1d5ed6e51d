"""J1939 messages of more than 8 bytes, as they come: announced, and in frames of seven bytes.

Sources: SAE J1939-21, 5.10 (BAM, RTS, numbers, T1 and T3); SAE J1939-71 (VI, ETC2), cantools issue 503.
"""

from __future__ import annotations

import tracemalloc

import pytest

import hearth
from hearth.drivers.can.driver import Frame, key_of
from hearth.drivers.can.transport import Transport
from tests.drivers.test_dbc_files import HEAD, J1939

LONG = 'BO_ 2566841854 AT: 12 ECU\n SG_ Hours : 64|32@1+ (0.05,0) [0|210554060.75] "h" ECU\n'
GROUP = 0xFEE5
"""That of the identifier 0x18FEE5FE, 2566841854: ENGINE HOURS, here with 12 bytes."""
DATA = bytes(range(8)) + (1000).to_bytes(4, "little")


def announced(control=0x20, size=12, count=2, group=GROUP, key=0x1CECFF07, at=0):
    data = bytes((control,)) + size.to_bytes(2, "little") + bytes((count, 0xFF)) + group.to_bytes(3, "little")
    return Frame(key_of(key), data, timestamp_us=at)


def part(number, data=None, key=0x1CEBFF07, at=0):
    given = DATA[7 * (number - 1) : 7 * number] if data is None else data
    return Frame(key_of(key), bytes((number,)) + given.ljust(7, b"\xff"), timestamp_us=at)


def received(*frames, groups=(GROUP,)):
    """The messages that are put together of these frames."""
    made = Transport(groups)
    return [whole for frame in frames if (whole := made.feed(frame)) is not None]


def test_a_message_to_all_nodes_is_put_together() -> None:
    (whole,) = received(announced(at=5), part(1, at=60_000), part(2, at=120_000))
    assert (whole.key, whole.data, whole.parts, whole.timestamp_us) == (key_of(0x1CFEE507), DATA, 2, 120_000)


def test_a_message_to_one_node_is_put_together_beside_another_one() -> None:
    # 0xEF00 to one node: the destination is in the identifier.
    mine = [announced(0x10, group=0xEF00, key=0x18EC2107), part(1, key=0x1CEB2107), part(2, key=0x1CEB2107)]
    others = [announced(key=0x1CECFF08), part(1, key=0x1CEBFF08), part(2, key=0x1CEBFF08)]
    mixed = [one for pair in zip(mine, others, strict=True) for one in pair]
    found = received(*mixed, groups={GROUP, 0xEF00})
    assert [one.key for one in found] == [key_of(0x18EF2107), key_of(0x1CFEE508)]
    assert {one.data for one in found} == {DATA}


LOST = {
    "its announcement": [part(1), part(2)],
    "its first frame": [announced(), part(2)],
    "a frame, and those after it come twice": [announced(), part(2), part(1), part(2)],
    "the end, and the next announcement": [announced(), part(1), part(1), part(2)],
    "the end, and the next frames come late": [announced(), part(1), part(2, at=750_001)],
    "the end of a connection": [announced(0x10), part(1), part(2, at=1_250_001)],
    "nothing, and another node sends the rest": [announced(), part(1), part(2, key=0x1CEBFF08)],
    "nothing, and it is aborted": [announced(), part(1), announced(0xFF), part(2)],
    "nothing, and the number of frames does not fit its size": [announced(count=3), part(1), part(2)],
    "nothing, and it says that it has no bytes": [announced(size=0, count=0), part(1)],
    "nothing, and it says that it has those of one frame": [announced(size=8), part(1), part(2)],
    "nothing, and a frame is short": [announced(), part(1), Frame(key_of(0x1CEBFF07), b"\x02abc")],
    "nothing, and it is a message that the file does not have": [announced(group=0xFECA), part(1), part(2)],
}


@pytest.mark.parametrize("case", LOST)
def test_what_is_not_whole_is_no_message(case) -> None:
    assert received(*LOST[case]) == []
    assert len(received(*LOST[case], announced(), part(1), part(2))) == 1, "the next one is"


@pytest.mark.parametrize("control", [0x11, 0x13], ids=["clears to send", "acknowledges the end"])
def test_a_node_that_answers_another_one_in_the_middle_of_its_own_message_does_not_lose_it(control) -> None:
    to_one = {"group": 0xEF00, "key": 0x18EC0721}
    answer = announced(control, **to_one)
    (whole,) = received(
        announced(0x10, **to_one), part(1, key=0x1CEB0721), answer, part(2, key=0x1CEB0721), groups={0xEF00}
    )
    assert (whole.key, whole.data) == (key_of(0x18EF0721), DATA)


def test_messages_that_nobody_ends_are_kept_no_longer_than_their_next_frame_may_take() -> None:
    """A bus that one node fills with the beginnings of messages, of all senders to all, for 8 s."""
    transport = Transport({0xEF00})

    def begin(pair: int) -> None:
        at = 8 * 125 * pair
        transport.feed(announced(0x10, 1785, 255, 0xEF00, 0x1CEC0000 | pair, at))
        for number in range(1, 8):
            transport.feed(part(number, bytes(7), 0x1CEB0000 | pair, at + 125 * number))

    tracemalloc.start()
    try:
        for pair in range(2_000):
            begin(pair)
        after_two_seconds = tracemalloc.get_traced_memory()[0]
        for pair in range(2_000, 8_000):
            begin(pair)
        assert tracemalloc.get_traced_memory()[0] < 1.5 * after_two_seconds
    finally:
        tracemalloc.stop()


async def test_a_long_message_is_read_by_name_and_not_sent(tmp_path) -> None:
    (tmp_path / "j1939.dbc").write_text(HEAD + LONG + J1939)
    text = 'name = "b"\ndescription = "a board"\n[[can]]\nbus = "can0"\ndriver = "sim"\ndbc = "j1939.dbc"\n'
    board = tmp_path / "board.toml"
    board.write_text(text)
    async with hearth.open_runtime(board=board) as runtime, runtime.open_session(client_name="c") as session:
        await session.run("can.read", bus="can0", count=1, timeout_ms=0)
        for frame in (announced(), part(1), part(2)):
            runtime.board.drivers["can:can0"].inject(frame)
        read = await session.run("can.read", bus="can0", count=9, timeout_ms=0, filter=["AT"])
        (frame,) = read["frames"]
        assert (frame["id"], frame["parts"], frame["message"]) == ("0x1cfee507", 2, "AT")
        assert frame["signals"] == {"Hours": {"value": 50, "unit": "h"}}
        with pytest.raises(hearth.RpcError, match="sends in several frames; hearth sends one"):
            await session.run("can.send", bus="can0", message="AT", signals={"Hours": 1})
