"""A bus in an embedded runtime: J1939 messages from any source address, by name, and values that are not numbers.

Sources: SAE J1939-21 (the parameter group names a message, not its source), cantools issues 198, 503, 551 and 736.
"""

from __future__ import annotations

import pytest
import trio

import hearth
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.can.driver import Frame, key_of
from tests.drivers.test_dbc_files import HEAD, J1939

ENGINE = key_of(0x18F00403)
SIGNALS = """[can.signals."EEC1.Speed"]
limit = { max = 3000 }
valid = [0, 5000]
[can.signals."EEC1.Torque"]
none = [0xFC]
"""
FAST = bytes.fromhex("ff7d7d007dffffff")


@pytest.fixture
def board(tmp_path):
    (tmp_path / "j1939.dbc").write_text(HEAD + J1939)
    text = 'name = "b"\ndescription = "a board"\n[[can]]\nbus = "can0"\ndriver = "sim"\ndbc = "j1939.dbc"\n'
    path = tmp_path / "board.toml"
    path.write_text(text + SIGNALS)
    return path


async def frames(session, bus, wanted):
    """Return the frames of four nodes that a filter lets through."""
    await session.run("can.read", bus="can0", count=256, timeout_ms=0)
    for key in (ENGINE, key_of(0x0CF00421), key_of(0x18F00503), key_of(0x403)):
        bus.inject(Frame(key, FAST))
    return (await session.run("can.read", bus="can0", count=9, filter=[wanted], timeout_ms=0))["frames"]


async def test_a_message_is_read_by_name_from_any_source_address(board) -> None:
    async with hearth.open_runtime(board=str(board)) as runtime, runtime.open_session(client_name="c") as session:
        bus = runtime.board.drivers["can:can0"]
        for wanted, found in ((0x18F004FE, 0), (0x18F00403, 1)):
            assert len(await frames(session, bus, wanted)) == found, "a number is that identifier alone"
        assert [one["message"] for one in await frames(session, bus, "EEC*")] == ["EEC1", "EEC1"]


@pytest.mark.parametrize(
    ("signal", "data", "found"),
    [
        ("Speed", FAST.hex(), (4000, "good", None)),
        ("Speed", "ff" * 8, (None, "none", "its frame says: not available")),
        ("Speed", "ff7dfc00fa000000", (None, "none", "its frame says: 8000 is outside of 0 to 5000")),
        ("Torque", FAST.hex(), (0, "good", None)),
        ("Torque", "fffc7d007dffffff", (None, "none", "its frame says: no value")),
    ],
)
async def test_a_code_of_a_signal_is_no_value_of_it(signal, data, found, board) -> None:
    async with hearth.open_runtime(board=str(board)) as runtime, runtime.open_session(client_name="c") as session:

        async def engine() -> None:
            while True:
                runtime.board.drivers["can:can0"].inject(Frame(ENGINE, bytes.fromhex(data)))
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine)
            read = await session.run("signal.read", name=f"EEC1.{signal}")
            nursery.cancel_scope.cancel()
        assert (read["value"], read["quality"], read.get("why")) == found


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("valid = [5, 1]", "exchange them"),
        ("none = [1.5]", "expected an integer"),
        ("none = 255", "expected an array"),
        ("", "missing"),
    ],
)
def test_codes_that_mean_nothing_are_refused(keys, words, board) -> None:
    board.write_text(board.read_text().replace("none = [0xFC]", keys))
    with pytest.raises(hearth.ConfigError, match=words):
        open_board(load_profile(str(board)))
