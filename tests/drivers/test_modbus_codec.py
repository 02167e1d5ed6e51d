"""Modbus's bytes: requests, the search for their answers in any pieces, and what is never taken for one.

pymodbus, which is not ours, makes the same frames and understands ours.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from pymodbus.framer import FramerRTU, FramerSocket
from pymodbus.pdu import DecodePDU, bit_message as bits, register_message as registers

from hearth.drivers.modbus.codec import (
    MOST_READ,
    MOST_STRAYS,
    MOST_WRITTEN,
    READS,
    BadAnswer,
    BadStream,
    RtuFraming,
    TcpFraming,
    checked,
    pack_bits,
    read_request,
    read_values,
    write_request,
)

UNIT = 17
WORD = st.integers(0, 0xFFFF)


@st.composite
def reads(draw):
    table = draw(st.sampled_from(list(READS)))
    return (
        table,
        read_request(draw(st.integers(1, 247)), table, draw(WORD), count := draw(st.integers(1, MOST_READ[table]))),
        count,
    )


@st.composite
def writes(draw):
    table = draw(st.sampled_from(["coil", "holding"]))
    value = st.integers(0, 1) if table == "coil" else WORD
    values = tuple(draw(st.lists(value, min_size=1, max_size=MOST_WRITTEN[table])))
    return table, write_request(draw(st.integers(1, 247)), table, draw(WORD), values), values


def requests():
    return reads().map(lambda one: one[1]) | writes().map(lambda one: one[1])


def answer_to(request, *, exception=None):
    """The PDU of a device's answer; a read has zeros."""
    if exception is not None:
        return bytes((request.pdu[0] | 0x80, exception))
    return request.answer.ljust(request.size, b"\0")


def rtu(request, pdu):
    return checked(bytes((request.unit,)) + pdu)


def tcp(sent, request, pdu, *, transaction=None):
    number = sent[:2] if transaction is None else transaction.to_bytes(2, "big")
    return number + b"\0\0" + (len(pdu) + 1).to_bytes(2, "big") + bytes((request.unit,)) + pdu


def pieces(data, frame):
    """Any way in which a stream may be cut."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(frame)), max_size=6)))
    return [frame[a:b] for a, b in zip([0, *cuts], [*cuts, len(frame)], strict=True)]


def fed(framing, parts):
    """What the framing makes of the parts; the answer is there with the last byte and not before."""
    answers = [framing.feed(part) for part in parts]
    return next((answer for answer in answers if answer is not None), None)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_of", "pdu"),
    [
        (lambda: read_request(1, "coil", 0x13, 0x25), "01 0013 0025"),
        (lambda: read_request(1, "discrete", 0xC4, 0x16), "02 00c4 0016"),
        (lambda: read_request(1, "holding", 0x6B, 3), "03 006b 0003"),
        (lambda: read_request(1, "input", 8, 1), "04 0008 0001"),
        (lambda: write_request(1, "coil", 0xAC, (1,)), "05 00ac ff00"),
        (lambda: write_request(1, "coil", 0xAC, (0,)), "05 00ac 0000"),
        (lambda: write_request(1, "holding", 1, (3,)), "06 0001 0003"),
        (lambda: write_request(1, "coil", 0x13, (1, 0, 1, 1, 0, 0, 1, 1, 1, 0)), "0f 0013 000a 02 cd01"),
        (lambda: write_request(1, "holding", 1, (10, 258)), "10 0001 0002 04 000a 0102"),
    ],
)
def test_requests_are_those_of_the_examples_in_the_standard(request_of, pdu):
    assert request_of().pdu == bytes.fromhex(pdu)


def test_the_checksum_is_that_of_the_standard():
    assert checked(bytes.fromhex("0207")) == bytes.fromhex("02074112")


@given(requests())
def test_pymodbus_understands_each_request_in_both_framings(request):
    for mine, theirs in (
        (RtuFraming(), FramerRTU(DecodePDU(True))),
        (TcpFraming(), FramerSocket(DecodePDU(True))),
    ):
        frame = mine.begin(request)
        used, pdu = theirs.handleFrame(frame, 0, 0)
        assert used == len(frame)
        assert (pdu.dev_id, pdu.function_code) == (request.unit, request.pdu[0])
        assert pdu.encode() == request.pdu[1:]


@given(st.data(), reads())
def test_what_pymodbus_answers_is_read(data, read):
    table, request, count = read
    value = st.booleans() if table in ("coil", "discrete") else WORD
    values = data.draw(st.lists(value, min_size=count, max_size=count))
    answer = {
        "coil": lambda: bits.ReadCoilsResponse(dev_id=request.unit, bits=values),
        "discrete": lambda: bits.ReadDiscreteInputsResponse(dev_id=request.unit, bits=values),
        "holding": lambda: registers.ReadHoldingRegistersResponse(dev_id=request.unit, registers=values),
        "input": lambda: registers.ReadInputRegistersResponse(dev_id=request.unit, registers=values),
    }[table]()
    framing = RtuFraming()
    framing.begin(request)
    frame = FramerRTU(DecodePDU(False)).buildFrame(answer)
    pdu = fed(framing, pieces(data, frame))
    assert read_values(table, count, pdu) == tuple(map(int, values))


# --- answers ----------------------------------------------------------------------------------------------------------


@given(st.data(), requests(), st.none() | st.integers(1, 255))
def test_an_answer_is_found_in_whatever_pieces_it_comes_and_not_before_it_is_whole(data, request, exception):
    pdu = answer_to(request, exception=exception)
    serial, stream = RtuFraming(), TcpFraming(data.draw(WORD))
    serial.begin(request)
    sent = stream.begin(request)
    for framing, frame in ((serial, rtu(request, pdu)), (stream, tcp(sent, request, pdu))):
        assert fed(framing, pieces(data, frame[:-1])) is None
        assert framing.feed(frame[-1:]) == pdu


@given(requests(), st.binary(max_size=300))
@settings(max_examples=500)
def test_nothing_but_the_answer_of_the_unit_to_this_request_is_ever_returned(request, noise):
    framing = RtuFraming()
    framing.begin(request)
    pdu = framing.feed(noise)
    if pdu is not None:
        assert checked(bytes((request.unit,)) + pdu) in noise or len(pdu) == 2
        assert pdu == bytes((request.pdu[0] | 0x80, pdu[1])) or (
            pdu.startswith(request.answer) and len(pdu) == request.size
        )


@given(requests(), requests())
def test_the_answer_to_a_request_of_another_shape_is_passed_over(request, other):
    framing = RtuFraming()
    framing.begin(request)
    if (request.unit, request.answer, request.size) != (other.unit, other.answer, other.size):
        assert framing.feed(rtu(other, answer_to(other))) is None
        assert framing.fault() is not None or request.answer.startswith(other.answer)
        assert framing.feed(rtu(request, answer_to(request))) == answer_to(request)


@given(st.data(), requests())
def test_one_wrong_bit_is_found(data, request):
    frame = bytearray(rtu(request, answer_to(request)))
    at = data.draw(st.integers(0, 8 * len(frame) - 1))
    frame[at // 8] ^= 1 << at % 8
    framing = RtuFraming()
    framing.begin(request)
    assert framing.feed(bytes(frame)) is None
    assert framing.fault() is not None


STRAY = st.binary(max_size=4) | st.sampled_from([b"\0", b"\xff", b"\0\0", b"\0\xff"])


@given(st.data(), requests(), requests(), st.none() | st.integers(1, 11))
def test_the_answer_is_found_behind_an_echo_stray_bytes_and_the_frames_of_others(data, request, other, exception):
    pdu = answer_to(request, exception=exception)
    framing = RtuFraming()
    own = framing.begin(request)
    echo = own if data.draw(st.booleans()) and request.pdu[0] in READS.values() else b""
    foreign = b""
    if other.unit != request.unit:
        foreign = data.draw(st.sampled_from([b"", checked(bytes((other.unit,)) + other.pdu)]))
        foreign += data.draw(st.sampled_from([b"", rtu(other, answer_to(other))]))
    noise = [data.draw(STRAY) for _ in range(3)]
    stream = noise[0] + echo + noise[1] + foreign + noise[2] + rtu(request, pdu)
    assert fed(framing, pieces(data, stream)) == pdu
    assert framing.crossed == 0
    assert framing.echoed == bool(echo)


@given(st.data(), reads(), WORD, st.booleans())
def test_a_request_of_another_master_for_what_would_look_like_this_answer_is_counted(data, read, reg, earlier):
    table, request, count = read
    asked = rtu(request, read_request(request.unit, table, reg, count).pdu)
    framing = RtuFraming()
    before = asked[: data.draw(st.integers(1, 7))] if earlier else b""
    assert framing.feed(before) is None
    own = framing.begin(request)
    if asked == own or asked[1:3] == request.answer:
        return  # its own request, or bits that cannot be told from an answer
    answer = rtu(request, answer_to(request))
    assert fed(framing, pieces(data, asked[len(before) :] + answer)) is not None
    assert (framing.found, framing.crossed) == (1, 1)
    assert framing.feed(answer) is not None
    assert (framing.found, framing.crossed) == (2, 1)
    framing.end()
    assert framing.crossed == 0


@given(reads(), WORD, st.integers(0, 3))
def test_an_answer_that_another_master_waits_for_is_known_before_a_request(read, reg, more):
    table, request, count = read
    other = read_request(request.unit, table, reg, count)
    asked, framing = rtu(other, other.pdu), RtuFraming()
    assert framing.feed(b"\0" + asked + b"\0", 5.0) is None
    assert framing.asked(request, 0.0) == 5.0
    assert framing.asked(read_request(request.unit % 247 + 1, table, reg, count), 0.0) is None
    assert framing.feed(rtu(other, answer_to(other, exception=more or None))) is None
    assert framing.asked(request, 0.0) is None
    assert framing.feed(asked, 6.0) is None
    assert framing.feed(asked, 7.0) is None
    assert framing.feed(rtu(other, answer_to(other))) is None
    assert framing.asked(request, 0.0) == 7.0, "one of two answers has come"
    assert framing.asked(request, 7.1) is None


def test_an_exception_of_the_wrong_length_is_one_in_both_framings():
    request = read_request(UNIT, "holding", 0, 1)
    for more in (b"", b"\0", b"\0\0\0"):
        framing = RtuFraming()
        framing.begin(request)
        assert framing.feed(rtu(request, b"\x83\2" + more)) == b"\x83\2"
    for length in (0, 2, 3, 4, 6, 255):
        framing = TcpFraming()
        sent = framing.begin(request)
        frame = sent[:4] + length.to_bytes(2, "big") + bytes((UNIT,)) + b"\x83\2"
        assert fed(framing, [frame[:3], frame[3:8], frame[8:]]) == b"\x83\2"
        sent = framing.begin(request)
        assert framing.feed(tcp(sent, request, b"\3\2\0\7")) == b"\3\2\0\7"


def test_a_port_that_was_seen_to_receive_a_read_does_not_confirm_the_next_write():
    framing = RtuFraming()
    own = framing.begin(read_request(UNIT, "holding", 1, 1))
    assert framing.feed(own + checked(bytes((UNIT, 3, 2, 0, 7)))) == b"\3\2\0\7"
    write = write_request(UNIT, "holding", 1, (3,))
    own = framing.begin(write)
    assert framing.feed(own) is None
    assert "loopback = true" in framing.fault()
    assert framing.feed(own) == write.pdu


@pytest.mark.parametrize(
    ("tid", "numbers"),
    [
        ("same", {0: True}),
        ("next", {1: True, 0: False}),
        ("zero", {None: True, 0: False, 1: False}),
        ("any", {7: True}),
    ],
)
def test_an_answer_has_the_number_that_the_line_says(tid, numbers):
    request = read_request(UNIT, "holding", 0, 1)
    for more, taken in numbers.items():
        framing = TcpFraming(100, tid=tid)
        sent = framing.begin(request)
        number = 0 if more is None else int.from_bytes(sent[:2], "big") + more
        frame = tcp(sent, request, b"\3\2\0\7", transaction=number)
        assert framing.feed(frame) == (b"\3\2\0\7" if taken else None)
        assert framing.numbered == (tid in ("same", "next"))


@pytest.mark.parametrize(("number", "cure"), [(0, 'tid = "zero"'), (102, 'tid = "next"'), (55, "the number 55")])
def test_an_answer_with_another_number_is_named_with_its_cure(number, cure):
    request = read_request(UNIT, "holding", 0, 1)
    framing = TcpFraming(100)
    sent = framing.begin(request)
    assert framing.fault() is None
    assert framing.feed(tcp(sent, request, b"\3\2\0\7", transaction=number)) is None
    assert cure in framing.fault()


def test_an_answer_of_another_unit_is_taken_where_the_device_says_so():
    request = read_request(UNIT, "holding", 0, 1)
    answer = b"\3\2\0\7"
    for framing, frame in (
        (RtuFraming(any_unit=True), lambda sent: checked(b"\0" + answer)),
        (TcpFraming(any_unit=True), lambda sent: tcp(sent, read_request(0, "holding", 0, 1), answer)),
    ):
        sent = framing.begin(request)
        assert framing.feed(frame(sent)) == answer


def test_a_serial_framing_drops_what_comes_behind_the_answer_and_starts_afresh():
    request = read_request(UNIT, "holding", 0, 1)
    framing = RtuFraming()
    framing.begin(request)
    assert framing.feed(rtu(request, b"\3\2\0\7") + b"\0\xff") == b"\3\2\0\7"
    framing.begin(request)
    assert framing.feed(rtu(request, b"\3\2\0\x08")) == b"\3\2\0\x08"


def test_a_port_that_hears_itself_does_not_confirm_its_own_write():
    request = write_request(UNIT, "holding", 1, (3,))
    framing = RtuFraming(loopback=True)
    frame = framing.begin(request)
    assert framing.feed(frame) is None
    assert framing.feed(frame) == request.pdu
    framing.begin(request)
    assert framing.feed(b"\x12") is None
    assert "as its loopback says" in framing.fault()
    read = read_request(UNIT, "holding", 1, 1)
    framing.begin(read)
    with pytest.raises(BadAnswer, match="as its loopback says"):
        framing.feed(rtu(read, b"\3\2\0\7"))


def test_answers_of_other_transactions_are_skipped():
    request = read_request(UNIT, "holding", 0, 1)
    framing = TcpFraming(0xFFFE)
    late = tcp(framing.begin(request), request, b"\3\2\0\1")
    sent = framing.begin(request)
    assert int.from_bytes(sent[:2], "big") == 0
    assert framing.feed(late) is None
    assert framing.feed(late + tcp(sent, request, b"\3\2\0\2") + late[:5]) == b"\3\2\0\2"
    third = framing.begin(request)
    assert framing.feed(late[5:] + tcp(third, request, b"\3\2\0\3")) == b"\3\2\0\3"


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\0\1\0\1\0\5\x11\3\2\0\1", "no Modbus TCP"),
        (b"\0\1\0\0\0\2\x11\3", "no Modbus TCP"),
        (b"\0\1\0\0\1\0\x11\3", "no Modbus TCP"),
        (b"\0\7\0\0\0\5\x11\3\2\0\1" * (MOST_STRAYS + 1), "answers to other requests"),
    ],
)
def test_a_stream_in_which_no_frame_can_be_told_is_given_up(frame, why):
    framing = TcpFraming()
    framing.begin(read_request(UNIT, "holding", 0, 1))
    with pytest.raises(BadStream, match=why):
        framing.feed(frame)


@pytest.mark.parametrize(
    ("unit", "pdu", "why"),
    [(18, b"\3\2\0\1", "unit 18"), (17, b"\3\4\0\1\0\1", "does not fit"), (17, b"\4\2\0\1", "does not fit")],
)
def test_the_answer_with_the_right_number_must_fit_too(unit, pdu, why):
    framing = TcpFraming()
    sent = framing.begin(read_request(UNIT, "holding", 0, 1))
    with pytest.raises(BadAnswer, match=why):
        framing.feed(tcp(sent, read_request(unit, "holding", 0, 1), pdu))


@given(st.binary(max_size=600))
def test_a_stream_of_any_bytes_raises_nothing_but_bad_answers_and_keeps_no_more_than_a_frame(noise):
    framing = TcpFraming()
    framing.begin(read_request(UNIT, "holding", 0, 1))
    try:
        framing.feed(noise)
    except BadAnswer:
        return
    assert len(framing._data) <= max(260, len(noise))


@given(st.lists(st.integers(0, 1), min_size=1, max_size=2000))
def test_bits_are_packed_as_they_are_read(values):
    data = pack_bits(tuple(values))
    assert read_values("coil", len(values), bytes((1, len(data))) + data) == tuple(values)
