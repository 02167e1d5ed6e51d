"""can.* and hw.can.list on the simulated board: an engine that publishes, a fan that answers, an ISO-TP echo."""

from __future__ import annotations

import base64

import pytest
import trio
import trio.testing

from hearth.drivers.can.driver import Frame
from hearth.drivers.can.tools import MAX_READ, _Can
from hearth.errors import DeviceError, InvalidParams, LimitViolated, PermissionDenied


@pytest.fixture
def can(bench):
    return bench.driver("can:can0")


@pytest.fixture
def quiet(can):
    """The bus without its engine, so that a test says what comes."""
    can.nodes[0].publish = lambda: ()
    return can


async def begin(bench):
    """Make the session's queue begin."""
    await bench.run("can.read", bus="can0", timeout_ms=0)


async def test_a_message_is_sent_by_its_name_and_its_signals_in_their_units(bench, quiet):
    sent = await bench.run("can.send", bus="can0", message="FAN_COMMAND", signals={"Speed": 50})
    assert sent == {
        "bus": "can0",
        "id": "0x200",
        "data": base64.b64encode(b"\x64").decode(),
        "hex": "64",
        "message": "FAN_COMMAND",
        "signals": {"Speed": {"value": 50, "unit": "percent"}},
    }
    assert quiet.wire == [Frame(0x200, b"\x64")]
    answer = await bench.run("can.read", bus="can0", timeout_ms=9000)
    (frame,) = answer["frames"]
    assert frame["message"] == "FAN_STATUS"
    assert frame["signals"] == {
        "Speed": {"value": 50, "unit": "percent"},
        "Rotation": {"value": 1500, "unit": "rpm"},
    }
    assert frame["timestamp_us"] >= 0
    assert (answer["timed_out"], answer["lost"]) == (False, 0)


async def test_the_engine_publishes_while_there_is_a_reader(bench, can):
    assert can.queue.received == 0
    answer = await bench.run("can.read", bus="can0", filter=["ENGINE_*"], count=3, timeout_ms=60_000)
    assert [frame["signals"]["Mode"]["name"] for frame in answer["frames"]] == ["running"] * 3


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (0x123, "0x123"),
        ("0x123", "0x123"),
        ("0x00000123", "0x00000123"),
        (0x18FECA00, "0x18feca00"),
        ("0XFFF", "0x00000fff"),
    ],
)
async def test_an_identifier_is_a_number_or_hex_with_three_or_eight_digits(given, key, bench, quiet):
    sent = await bench.run("can.send", bus="can0", id=given, text="x")
    assert sent["id"] == key


async def test_bytes_may_be_none_eight_or_those_of_an_fd_frame(bench, quiet):
    for args in ({"hex": ""}, {"text": "12345678"}, {"hex": "00" * 64}, {"hex": "00", "fd": True}):
        await bench.run("can.send", bus="can0", id=1, **args)
    assert [(len(frame.data), frame.fd, frame.bitrate_switch) for frame in quiet.wire] == [
        (0, False, False), (8, False, False), (64, True, True), (1, True, True),
    ]  # fmt: skip
    sent = await bench.run("can.send", bus="can0", id=1, hex="00" * 12, bitrate_switch=False)
    assert (sent["fd"], sent["bitrate_switch"]) == (True, False)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ({"bus": "can1", "id": 1, "hex": ""}, InvalidParams, "it has: can0"),
        ({"id": 1}, InvalidParams, "exactly one of data, text and hex"),
        ({"hex": ""}, InvalidParams, "exactly one of message and id"),
        ({"id": 1, "message": "FAN_COMMAND", "hex": ""}, InvalidParams, "exactly one of message and id"),
        ({"id": 1, "signals": {}}, InvalidParams, "signals belong to a `message`"),
        ({"message": "FAN_COMMAND", "signals": {"Speed": 1}, "hex": "00"}, InvalidParams, "not both"),
        ({"message": "FAN_COMAND", "signals": {}}, InvalidParams, "did you mean FAN_COMMAND"),
        ({"message": "FAN_COMMAND", "signals": {"Sped": 1}}, InvalidParams, "did you mean Speed"),
        ({"message": "FAN_COMMAND", "signals": {"Speed": 100.5}}, LimitViolated, "0 to 100 percent"),
        ({"message": "FAN_COMMAND", "hex": "ff"}, LimitViolated, "0 to 100 percent"),
        ({"id": 0x200, "hex": "ff"}, LimitViolated, "0 to 100 percent"),
        ({"id": 1, "hex": "00" * 9}, InvalidParams, "48 or 64 bytes, not 9"),
        ({"id": 1, "hex": "00" * 12, "fd": False}, InvalidParams, "a classic frame has 0 to 8 bytes"),
        ({"id": "0x20000000", "hex": ""}, InvalidParams, "more than 29 bits"),
    ],
)
async def test_what_may_not_be_sent_is_refused_at_submit(args, error, words, bench, can):
    with pytest.raises(error, match=words):
        bench.tools["can.send"].bus({"bus": "can0", **args})
    assert can.wire == []


async def test_a_reader_that_waits_does_not_keep_others_from_sending(bench, quiet, nursery):
    answers = []

    async def read():
        answers.append(await bench.run("can.read", bus="can0", filter=["FAN_STATUS"], timeout_ms=60_000))

    nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    await bench.run("can.send", bus="can0", message="FAN_COMMAND", hex="00")
    await trio.testing.wait_all_tasks_blocked()
    assert [frame["hex"] for frame in answers[0]["frames"]] == ["000000"]


async def test_a_reader_that_is_cancelled_takes_nothing(bench, quiet):
    await begin(bench)
    quiet.inject(Frame(1, b"a"))
    with trio.move_on_after(0):
        await bench.run("can.read", bus="can0", count=2, timeout_ms=60_000)
    answer = await bench.run("can.read", bus="can0", count=1, timeout_ms=0)
    assert [frame["hex"] for frame in answer["frames"]] == ["61"]


async def test_a_read_that_runs_into_its_timeout_returns_what_had_come(bench, quiet):
    await begin(bench)
    quiet.inject(Frame(1, b"a"))
    answer = await bench.run("can.read", bus="can0", count=2, timeout_ms=1)
    assert ([frame["id"] for frame in answer["frames"]], answer["timed_out"]) == (["0x001"], True)


async def test_a_filter_takes_names_patterns_and_identifiers(bench, quiet):
    await begin(bench)
    for key in (0x100, 0x200, 0x201, 0x300, 0x301):
        quiet.inject(Frame(key, bytes(8)))
    answer = await bench.run("can.read", bus="can0", filter=["FAN_*", "0x300", 0x301], count=9, timeout_ms=0)
    assert [frame["id"] for frame in answer["frames"]] == ["0x200", "0x201", "0x300", "0x301"]
    with pytest.raises(InvalidParams, match="did you mean FAN_STATUS"):
        bench.tools["can.read"].uses({"bus": "can0", "filter": ["FAN_STATS"]})


async def test_requests_and_fd_frames_are_shown_as_what_they_are(bench, quiet):
    await begin(bench)
    quiet.inject(Frame(0x200, remote=True, asked=3))
    quiet.inject(Frame(0x10, b"x", fd=True))
    answer = await bench.run("can.read", bus="can0", count=2, timeout_ms=0)
    request, fast = answer["frames"]
    assert (request["remote"], request["length"], "message" in request) == (True, 3, False)
    assert (fast["fd"], fast["bitrate_switch"]) == (True, False)


async def test_errors_are_returned_to_those_who_ask_for_them(bench, quiet):
    await begin(bench)
    quiet.report("transmit error passive", "no acknowledgement")
    answer = await bench.run("can.read", bus="can0", errors=True, timeout_ms=9000)
    assert answer["frames"][0]["error"] == ["transmit error passive", "no acknowledgement"]
    (bus,) = (await bench.run("hw.can.list"))["buses"]
    assert (bus["state"], bus["errors"]) == ("error-passive", {"transmit error passive": 1, "no acknowledgement": 1})


# --- can.watch --------------------------------------------------------------------------------------------------------


async def test_a_watch_streams_frames_in_groups_and_returns_the_newest_of_each_identifier(bench, quiet, nursery):
    context = bench.context("can.watch", {"bus": "can0"})
    results, ended = [], trio.Event()

    async def watch():
        results.append(await bench.run("can.watch", bus="can0", count=5, every_ms=10, context=context))
        ended.set()

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(5):
        quiet.inject(Frame(0x300 + number % 2, bytes([number])))
    with trio.fail_after(10):
        await ended.wait()
    (result,) = results
    assert [frame["hex"] for event in context.published for frame in event["frames"]] == ["00", "01", "02", "03", "04"]
    assert context.published[-1]["seen"] == 5
    assert (result["seen"], result["lost"], result["timed_out"]) == (5, 0, False)
    assert [(frame["id"], frame["hex"]) for frame in result["latest"]] == [("0x301", "03"), ("0x300", "04")]


async def test_a_watch_of_a_flood_counts_what_it_lost_and_its_events_are_bounded(bench, quiet, nursery):
    context = bench.context("can.watch", {"bus": "can0"})
    results, ended = [], trio.Event()

    async def watch():
        results.append(await bench.run("can.watch", bus="can0", count=10_000, timeout_ms=300, context=context))
        ended.set()

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(quiet.queue.capacity + 100):
        quiet.inject(Frame(number % 2000, b""))
    with trio.fail_after(10):
        await ended.wait()
    (result,) = results
    assert (result["seen"], result["lost"], result["timed_out"]) == (quiet.queue.capacity, 100, True)
    assert max(len(event["frames"]) for event in context.published) == MAX_READ
    assert len(result["latest"]) == 64


async def test_a_watch_that_sees_nothing_ends_in_time(bench, quiet):
    result = await bench.run("can.watch", bus="can0", filter=[1], timeout_ms=1)
    assert result == {"bus": "can0", "seen": 0, "lost": 0, "timed_out": True, "latest": []}


async def test_a_watch_fails_with_the_reason_when_the_bus_goes_down(bench, quiet, nursery):
    failures = []

    async def watch():
        with pytest.raises(DeviceError, match="bus off") as caught:
            await bench.run("can.watch", bus="can0", timeout_ms=60_000)
        failures.append(caught.value.data["effect"])

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    quiet.queue.close(quiet._note_errors(("bus off",), 0))
    await trio.testing.wait_all_tasks_blocked()
    assert failures == ["none"]


# --- can.isotp --------------------------------------------------------------------------------------------------------


async def test_an_isotp_message_comes_back_from_the_echo(bench, quiet):
    answer = await bench.run("can.isotp", bus="can0", tx=0x7E0, rx="0x7e8", text="a long message")
    assert (answer["text"], answer["tx"], answer["rx"], answer["timed_out"]) == (
        "a long message",
        "0x7e0",
        "0x7e8",
        False,
    )


async def test_an_isotp_message_without_an_answer_says_so(bench, quiet):
    answer = await bench.run("can.isotp", bus="can0", tx=0x7E1, rx=0x7E9, hex="3e00", timeout_ms=1)
    assert (answer["data"], answer["timed_out"]) == ("", True)


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ({"tx": 0x200, "rx": 0x201}, PermissionDenied, "FAN_COMMAND"),
        ({"tx": 0x7E0, "rx": "0x7E0"}, InvalidParams, "the same as tx"),
        ({"tx": "0xffffffff", "rx": 1}, InvalidParams, "more than 29 bits"),
    ],
)
async def test_wrong_isotp_identifiers_are_refused_at_submit(args, error, words, bench):
    with pytest.raises(error, match=words):
        bench.tools["can.isotp"].bus({"bus": "can0", "hex": "00", **args})


# --- scope ------------------------------------------------------------------------------------------------------------


def names(uses):
    return [use.names for use in uses]


async def test_a_step_says_which_messages_and_identifiers_it_uses(bench, can):
    uses = {name: bench.tools[name].uses for name in ("can.send", "can.read", "can.isotp")}
    message = ("can0:FAN_COMMAND", "can0:0x200", "can0:512")
    assert names(uses["can.send"]({"bus": "can0", "message": "FAN_COMMAND", "hex": "0000"})) == [message]
    # Raw bytes with the identifier of a message are not that message: they need the right to the identifier.
    assert names(uses["can.send"]({"bus": "can0", "id": 0x200, "hex": "0000"})) == [message[1:]]
    extended = {"bus": "can0", "id": "0x00000200", "hex": "00"}
    assert names(uses["can.send"](extended)) == [("can0:0x00000200", "can0:512")]
    assert names(uses["can.read"]({"bus": "can0", "filter": [0x200]})) == [message]
    assert names(uses["can.read"]({"bus": "can0"})) == []
    assert names(uses["can.isotp"]({"bus": "can0", "tx": 1, "rx": 2, "hex": "00"})) == [
        ("can0:0x001", "can0:1"), ("can0:0x002", "can0:2"),
    ]  # fmt: skip


async def test_a_read_without_a_filter_leaves_out_what_is_not_permitted_and_remembers_few_verdicts(bench, quiet):
    context = bench.context("can.read", {"bus": "can0"})
    asked = []

    def permits(use):
        asked.append(use.names[0])
        return use.names[0] == "can0:0x300"

    wanted = _Can(bench.board)._wanted(type("Scoped", (), {"permits": staticmethod(permits)}), "can0", None)
    assert [wanted(key) for key in (0x300, 0x301, 0x300, 0x301)] == [True, False, True, False]
    assert asked == ["can0:0x300", "can0:0x301"]
    for key in range(5000):
        wanted(key)
    assert context.published == []


async def test_the_list_has_messages_with_signals_units_and_bounds(bench, can):
    (bus,) = (await bench.run("hw.can.list"))["buses"]
    assert (bus["id"], bus["bus"], bus["driver"], bus["dbc"], bus["bitrate"]) == (
        "can:can0", "can0", "sim", "sim.dbc", 500_000,
    )  # fmt: skip
    engine = next(one for one in bus["messages"] if one["message"] == "ENGINE_DATA")
    assert (engine["hex"], engine["cycle_ms"], engine["senders"]) == ("0x100", 100, ["PLANT"])
    assert engine["signals"][0] == {"signal": "Speed", "unit": "rpm", "min": 0, "max": 8000}
    assert engine["signals"][2]["choices"] == [
        {"value": 0, "name": "off"}, {"value": 1, "name": "running"}, {"value": 2, "name": "fault"},
    ]  # fmt: skip
