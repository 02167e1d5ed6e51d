"""A look at a capability's source: calls that a replay would not repeat are warned of, with place and cure."""

from __future__ import annotations

import textwrap

import pytest

from hearth.hcp.capabilities import bench_climate_survey, gpio_self_test, host_health_report
from hearth.hcp.source_check import source_warnings

IMPORTS = """\
import asyncio, os, random, secrets, shutil, socket, subprocess, threading, time, urllib.request, uuid
import datetime as dt
import time as clock
from datetime import UTC, date, datetime
from pathlib import Path
from random import choice as pick
from time import sleep

import trio
"""
WRONG = [
    ("time.time()", "job.now()"),
    ("clock.monotonic()", "job.now()"),
    ("time.perf_counter_ns()", "job.now()"),
    ("datetime.now(UTC)", "job.now()"),
    ("dt.datetime.utcnow()", "job.now()"),
    ("date.today()", "job.now()"),
    ("trio.current_time()", "job.now()"),
    ("random.random()", "job.random()"),
    ("random.Random()", "job.random()"),
    ("pick([1, 2])", "job.random()"),
    ("secrets.token_hex()", "job.random()"),
    ("uuid.uuid4()", "job.random()"),
    ("os.urandom(4)", "job.random()"),
    ("time.sleep(1)", "job.sleep("),
    ("sleep(1)", "job.sleep("),
    ("await trio.sleep(1)", "job.sleep("),
    ("await trio.sleep_until(1)", "job.sleep("),
    ("await asyncio.sleep(1)", "job.sleep("),
    ("open('x')", "job.artifact("),
    ("with open('x') as file: pass", "job.artifact("),
    ("Path('x').read_text()", "job.artifact("),
    ("path.write_bytes(b'')", "job.artifact("),
    ("shutil.copy('a', 'b')", "job.artifact("),
    ("socket.create_connection(('a', 1))", "job.run("),
    ("urllib.request.urlopen('http://a')", "job.run("),
    ("subprocess.run(['a'])", "job.run("),
    ("os.system('a')", "job.run("),
    ("threading.Thread(target=print)", "job.gather("),
    ("await trio.to_thread.run_sync(print)", "job.gather("),
    ("async with trio.open_nursery() as nursery: pass", "job.gather("),
    ("with trio.move_on_after(5): pass", "max_duration"),
    ("with trio.fail_at(5): pass", "max_duration"),
    ("input('go on?')", "job.ask_person("),
    ("[time.time() for _ in range(3)]", "job.now()"),
    ("part = lambda: time.time()", "job.now()"),
    ("import time as t; t.time()", "job.now()"),
]
RIGHT = [
    "print('x')",
    "await job.sleep(1)",
    "await job.random()",
    "random.Random(5).random()",
    "time.strftime('%H', job.started_at.timetuple())",
    "datetime.fromtimestamp(0, UTC)",
    "uuid.uuid5(uuid.NAMESPACE_URL, 'a')",
    "job.open('x')",
    "Path('x').name",
    "os.path.join('a', 'b')",
    "text = 'time.time()'",
    "time.time",
]


def warnings_of(tmp_path, body, more=""):
    file = tmp_path / "survey.py"
    text = f"{IMPORTS}\n{more}\n@mark\nasync def survey(job, *, path=None):\n{textwrap.indent(body, '    ')}\n"
    file.write_text(text)
    names = {"mark": lambda function: function}
    exec(compile(text, str(file), "exec"), names)
    return [one.removeprefix(f"{file}:") for one in source_warnings(names["survey"])]


@pytest.mark.parametrize(("body", "cure"), WRONG, ids=[body for body, _ in WRONG])
def test_a_call_that_a_replay_would_not_repeat_is_warned_of_with_the_cure(tmp_path, body, cure):
    (warning,) = warnings_of(tmp_path, body)
    assert cure in warning


@pytest.mark.parametrize("body", RIGHT)
def test_what_a_replay_repeats_is_no_reason_to_warn(tmp_path, body):
    assert warnings_of(tmp_path, body) == []


def test_a_warning_has_file_line_and_call(tmp_path):
    line = IMPORTS.count("\n") + 6
    (warning,) = warnings_of(tmp_path, "x = 1\nx += time.time()\n")
    assert warning == f"{line}: time.time(): a replay reads another time; use await job.now(), job.started_at or job.at"


HELPERS = """
def direct():
    return time.time()

async def part():
    await trio.sleep(1)

def indirect():
    return direct()

class Holder:
    def direct(self):
        return random.random()
"""


@pytest.mark.parametrize(
    ("body", "calls"),
    [
        ("direct()", ["time.time()"]),
        ("await part()\ndirect()\ndirect()", ["time.time()", "trio.sleep()"]),
        ("indirect()", []),
        ("Holder().direct()", []),
        ("pass", []),
    ],
)
def test_functions_of_the_module_that_are_called_by_name_are_looked_at_too(tmp_path, body, calls):
    assert [one.split(": ")[1] for one in warnings_of(tmp_path, body, HELPERS)] == calls


def test_a_function_without_source_has_no_warnings():
    names = {}
    exec("import time\nasync def survey(job): time.time()", names)
    assert source_warnings(names["survey"]) == []
    assert source_warnings(print) == []


@pytest.mark.parametrize("function", [bench_climate_survey.survey, gpio_self_test.self_test, host_health_report.report])
def test_the_shipped_capabilities_do_nothing_that_a_replay_would_not_repeat(function):
    assert source_warnings(function) == []
