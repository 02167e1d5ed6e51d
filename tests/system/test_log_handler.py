"""What the daemon says, while nobody listens."""

from __future__ import annotations

import contextlib
import logging
import os

from hearth.actors.daemon.process import MOST_LINES, NonBlockingLogHandler


def read_all(reading: int) -> bytes:
    data = b""
    while part := os.read(reading, 1 << 20):
        data += part
    return data


def test_lines_come_out_in_order() -> None:
    reading, writing = os.pipe()
    log_handler = NonBlockingLogHandler(writing)
    log_handler.start()
    log_handler.write_line("one \udcff")
    log_handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "two %s", ("words",), None))
    log_handler.end()
    os.close(writing)
    assert read_all(reading) == b"one \\udcff\ntwo words\n"
    os.close(reading)


def journal_stream(descriptor: int) -> str:
    """What systemd puts into JOURNAL_STREAM where this descriptor is the one that it connected to the journal."""
    found = os.fstat(descriptor)
    return f"{found.st_dev}:{found.st_ino}"


def test_in_the_journal_every_line_has_the_priority_of_its_level() -> None:
    reading, writing = os.pipe()
    log_handler = NonBlockingLogHandler(writing, {"JOURNAL_STREAM": journal_stream(writing)})
    log_handler.start()
    log_handler.write_line("ready")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        log_handler.handle(logging.LogRecord("x", level, "", 0, logging.getLevelName(level), (), None))
    try:
        raise ValueError("its\ncause")
    except ValueError as error:
        failed = (type(error), error, error.__traceback__)
    log_handler.handle(logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), failed))
    log_handler.end()
    os.close(writing)
    *lines, cause = read_all(reading).decode().splitlines()
    os.close(reading)
    assert lines[:6] == ["<6>ready", "<7>DEBUG", "<6>INFO", "<4>WARNING", "<3>ERROR", "<2>CRITICAL"]
    assert lines[6] == "<3>failed"
    assert cause == "<3>cause"
    assert all(line.startswith("<3>") for line in lines[6:]), "a traceback is of one priority"


def test_where_stderr_is_not_the_journal_lines_have_no_priority() -> None:
    for environ in ({}, {"JOURNAL_STREAM": "1:2"}, {"JOURNAL_STREAM": ""}):
        reading, writing = os.pipe()
        log_handler = NonBlockingLogHandler(writing, environ)
        log_handler.write_line("ready")
        log_handler.end()
        os.close(writing)
        assert read_all(reading) == b"ready\n"
        os.close(reading)


def test_a_message_stays_on_its_line_whatever_is_in_it() -> None:
    reading, writing = os.pipe()
    log_handler = NonBlockingLogHandler(writing)
    log_handler.start()
    forged = "x\nhearthd: ready on /evil\x1b[2J\u2028y é"
    log_handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "failed: %s", (forged,), None))
    log_handler.end()
    os.close(writing)
    assert read_all(reading) == "failed: x\\nhearthd: ready on /evil\\x1b[2J\\u2028y é\n".encode()
    os.close(reading)


def test_lines_that_is_not_taken_are_dropped_counted_and_hold_up_no_other() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    log_handler = NonBlockingLogHandler(writing)
    log_handler.start()
    for n in range(MOST_LINES + 500):
        log_handler.write_line(f"line {n}")
    # Somebody reads at last.
    data = b""
    while f"line {MOST_LINES - 1}\n".encode() not in data:
        data += os.read(reading, 1 << 20)
    log_handler.write_line("again")
    log_handler.end()
    os.close(writing)
    data += read_all(reading)
    os.close(reading)
    *lines, last = data.lstrip(b"x").splitlines()
    assert last == b"again"
    # Where there was room for one in between, the number that was dropped before it stands there, and the rest here.
    dropped = [int(line[1:].split()[0]) for line in lines if line.startswith(b"(")]
    assert sum(dropped) + sum(line.startswith(b"line ") for line in lines) == MOST_LINES + 500
    assert 499 <= sum(dropped) <= 500


def test_a_pipe_that_another_made_non_blocking_is_written_to_all_the_same() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    log_handler = NonBlockingLogHandler(writing)
    log_handler.start()
    for n in range(900):
        log_handler.write_line(f"{n} " + "x" * 200)
    data = b""
    while b"\n899 " not in data or not data.endswith(b"x\n"):
        data += os.read(reading, 4096)
    assert [int(line.split()[0]) for line in data.splitlines()] == list(range(900))
    log_handler.end()
    os.close(writing)
    os.close(reading)


def test_no_listener_there_is_no_trouble() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    log_handler = NonBlockingLogHandler(writing)
    log_handler.start()
    log_handler.write_line("into the void")
    log_handler.end()
    os.close(writing)
