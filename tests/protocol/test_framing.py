"""Documents in a byte stream (draft §2.2; design §8, rows "framing" and "too long a line")."""

import tracemalloc

import pytest
from hypothesis import given, settings, strategies as st

from hearth.protocol.framing import DocumentTooLong, LineFramer


def feed_all(framer, chunks):
    documents = []
    for chunk in chunks:
        documents += framer.feed(chunk)
    return documents


def outcome(limit, chunks):
    """What a stream comes to: its documents, and whether it ended in a refusal."""
    framer = LineFramer(limit)
    documents = []
    for chunk in chunks:
        try:
            documents += framer.feed(chunk)
        except DocumentTooLong as error:
            return documents + error.documents, True
    return documents, False


@pytest.mark.parametrize(
    ("stream", "documents"),
    [
        (b"", []),
        (b"\n", []),
        (b"{}", []),
        (b"{}\n", [b"{}"]),
        (b"{}\r\n", [b"{}"]),
        (b"{}\n{}\n", [b"{}", b"{}"]),
        (b"\n\n{}\n\n\n{}\n\n", [b"{}", b"{}"]),
        (b"\r\n\r\n{}\r\n", [b"{}"]),
        (b" \t {} \t \n", [b"{}"]),
        (b'{"a":\r1}\n', [b'{"a":\r1}']),
        (b'{"a b":"c\td"}\n', [b'{"a b":"c\td"}']),
        (b"\x00\n", [b"\x00"]),
        (b"\xff\xfe\n", [b"\xff\xfe"]),
        (b"\x0b\x0c\n", [b"\x0b\x0c"]),
        (b"\xc2\xa0\n", [b"\xc2\xa0"]),
        (b"a\n b", [b"a"]),
    ],
)
def test_a_document_is_what_stands_between_line_feeds(stream, documents):
    assert LineFramer().feed(stream) == documents


def test_a_document_may_come_in_single_bytes():
    framer = LineFramer()
    assert feed_all(framer, [bytes([byte]) for byte in b' {"a": 1} \r\n\n{}\n']) == [b'{"a": 1}', b"{}"]
    assert not framer.has_partial


def test_one_chunk_may_end_one_document_and_begin_another():
    framer = LineFramer()
    assert framer.feed(b'{"a"') == []
    assert framer.has_partial
    assert framer.feed(b":1}\n{}\n{") == [b'{"a":1}', b"{}"]
    assert framer.has_partial
    assert framer.feed(b"}\n") == [b"{}"]
    assert not framer.has_partial


def test_blanks_before_a_document_are_not_a_partial_document():
    framer = LineFramer(8)
    for _ in range(1000):
        assert framer.feed(b" \t\r  \t\r ") == []
    assert not framer.has_partial
    assert framer.feed(b"{}\n") == [b"{}"]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_a_document_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(chunk):
    def split(stream):
        return [stream[at : at + chunk] for at in range(0, len(stream), chunk)]

    assert outcome(100, split(b"x" * 100 + b"\n")) == ([b"x" * 100], False)
    assert outcome(100, split(b"x" * 101 + b"\n")) == ([], True)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_blanks_around_a_document_do_not_count_against_the_limit(chunk):
    stream = b" " * 500 + b"x" * 100 + b" \r" * 500 + b"\n{}\n"
    chunks = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]
    assert outcome(100, chunks) == ([b"x" * 100, b"{}"], False)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_blanks_inside_a_document_count_against_the_limit(chunk):
    stream = b"x" * 50 + b" " * 500 + b"x\n"
    chunks = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]
    assert outcome(100, chunks) == ([], True)


def test_a_carriage_return_that_comes_late_does_not_make_a_document_too_long():
    framer = LineFramer(10)
    assert framer.feed(b"x" * 10) == []
    assert framer.feed(b"\r") == []
    assert framer.feed(b"\n") == [b"x" * 10]


def test_documents_complete_before_one_that_is_too_long_are_handed_over():
    with pytest.raises(DocumentTooLong) as caught:
        LineFramer(4).feed(b"1\n22\n55555\n3\n")
    assert caught.value.documents == [b"1", b"22"]
    assert caught.value.limit == 4


def test_a_line_that_never_ends_is_refused_at_the_limit_and_not_at_its_end():
    framer = LineFramer(1000)
    for _ in range(10):
        assert framer.feed(b"x" * 100) == []
    with pytest.raises(DocumentTooLong):
        framer.feed(b"x")


def test_blanks_after_a_document_without_end_are_not_remembered():
    framer = LineFramer(1000)
    framer.feed(b"x" * 900)
    tracemalloc.start()
    try:
        for _ in range(2000):
            assert framer.feed(b" " * 1000) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000
    assert framer.feed(b"\n") == [b"x" * 900]


@pytest.mark.slow
def test_a_long_document_in_tiny_chunks_takes_about_its_own_size_of_memory():
    limit = 100_000
    framer = LineFramer(limit)
    tracemalloc.start()
    try:
        for index in range(limit // 2):
            framer.feed(b"%c%c" % (index % 64 + 48, index % 63 + 48))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert framer.has_partial
    assert held < 2 * limit


def test_a_refused_document_is_let_go():
    framer = LineFramer(1000)
    framer.feed(b"x" * 1000)
    with pytest.raises(DocumentTooLong):
        framer.feed(b"x")
    assert not framer.has_partial


STREAM_BYTES = st.sampled_from([b"\n", b"\r\n", b" ", b"\t", b"\r", b"x", b"{}", b"\xff", b"\x00", b"yy yy", b"z" * 9])


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.lists(STREAM_BYTES, max_size=40).map(b"".join), st.data())
def test_every_split_of_a_stream_gives_the_same_documents_and_the_same_refusal(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole = outcome(10, [stream])
    assert outcome(10, chunks) == whole
    assert outcome(10, [bytes([byte]) for byte in stream]) == whole


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_the_framer_agrees_with_a_plain_reading_of_its_rule(stream):
    lines = stream.split(b"\n")[:-1]
    documents, refused = outcome(40, [stream])
    expected = []
    for line in lines:
        document = line.strip(b" \t\r\n")
        if len(document) > 40:
            assert refused
            break
        expected += [document] if document else []
    assert documents == expected
