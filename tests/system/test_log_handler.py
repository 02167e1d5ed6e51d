"""What the daemon says, while nobody listens."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket

import pytest
from support.hearthd import Hearthd, eventually

from hearth.actors.daemon.process import MOST_LINES, NonBlockingLogHandler
from hearth.errors import ConfigError


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


# --- formats ----------------------------------------------------------------------------------------------------------


def about(level: int, text: str, **fields: str) -> logging.LogRecord:
    record = logging.LogRecord("hearth.bus", level, "", 0, text, (), None)
    for name, value in fields.items():
        setattr(record, name, value)
    return record


def test_as_json_each_line_is_an_object_with_what_it_is_about() -> None:
    reading, writing = os.pipe()
    log_handler = NonBlockingLogHandler(writing)
    log_handler.write_as("json")
    log_handler.start()
    log_handler.handle(about(logging.WARNING, "not\nsafe \udcff", bus="i2c:1", session="s"))
    log_handler.write_line("hearthd: ready on x")
    log_handler.end()
    os.close(writing)
    first, second = map(json.loads, read_all(reading).splitlines())
    os.close(reading)
    assert first.pop("ts").endswith("Z")
    assert first == {
        "level": "warning", "logger": "hearth.bus", "message": "not\\nsafe \\udcff", "bus": "i2c:1", "session": "s",
    }  # fmt: skip
    assert (second["message"], second["level"]) == ("ready on x", "info")


def parsed(datagram: bytes) -> dict[str, str]:
    """The fields of a message, by the journal's native protocol."""
    found = {}
    while datagram:
        name, datagram = datagram.split(b"\n", 1)
        size = int.from_bytes(datagram[:8], "little")
        found[name.decode()] = datagram[8 : 8 + size].decode()
        assert datagram[8 + size : 9 + size] == b"\n"
        datagram = datagram[9 + size :]
    return found


def test_to_journald_messages_have_priorities_and_fields_and_none_is_lost_with_it(tmp_path) -> None:
    reading, writing = os.pipe()
    log_handler = NonBlockingLogHandler(writing)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "journal"))
        log_handler.write_as("journald", str(tmp_path / "journal"))
        log_handler.start()
        log_handler.handle(about(logging.ERROR, "cannot be used", bus="i2c:1", task="t", session="s"))
        assert parsed(journal.recv(65536)) == {
            "MESSAGE": "cannot be used", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "hearthd", "LOGGER": "hearth.bus",
            "BUS": "i2c:1", "TASK": "t", "SESSION": "s",
        }  # fmt: skip
    log_handler.handle(about(logging.INFO, "the journal has gone"))
    log_handler.end()
    os.close(writing)
    assert read_all(reading) == b"the journal has gone\n"
    os.close(reading)


def test_without_a_journal_its_format_is_refused_with_the_cure(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r'\[log\] format = "journald": .*; use "text"'):
        NonBlockingLogHandler().write_as("journald", str(tmp_path / "none"))


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_daemon_that_logs_json_says_nothing_else_and_names_the_bus_and_the_session(tmp_path) -> None:
    daemon = Hearthd(tmp_path, '[log]\nformat = "json"')
    with pytest.raises(AssertionError):
        # It waits for a line that begins with "hearthd: ready on", and kills what does not end.
        daemon.start("--board", "no such board")
    told = json.loads(daemon.said.removeprefix("hearthd did not start:\n").splitlines()[0])
    assert told["level"] == "error"
    assert eventually(lambda: daemon.process is not None and daemon.process.poll() == 2)
