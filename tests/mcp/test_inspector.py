"""The official inspector over stdio: it lists the tools strictly, and calls each of them, in both eras.

The lists are asked of `hearth mcp` as a client starts it. The many calls are asked of forks of that program, imported
once (`support.zygote`), from one Node process (`inspect_all.mjs`); everything else is as the command line does it.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen
from jsonschema import Draft202012Validator
from support.cards import EXAMPLE
from support.hearthd import BOUND, Hearthd
from support.judges import PACKAGES, PROGRAMS, ROOT, environment, needs_judges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.proof, needs_judges, pytest.mark.usefixtures("unmeasured")]

ERAS = ("legacy", "modern")
INSPECTOR = PACKAGES / "@modelcontextprotocol" / "inspector"
ZYGOTE = ROOT / "tests" / "support" / "zygote.py"
LONG = 400
"""Seconds that all the calls of one era may take."""
EVERYTHING = """\
from hearth.actors.bridges.mcp import guidance
from hearth.cli.mcp_bridge import main
guidance.MOST_TOOLS = 1000
"""
"""`hearth mcp` that lists all tools, however many there are: the inspector looks at, and calls, none that is not."""
PATIENT = ("--connect-timeout", "120000")
"""The inspector gives a bridge 15 seconds to answer, which is too little on a busy machine."""
TOOL_FAILED = 5
"""The inspector's exit code for a result that is an error."""


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@frozen
class Call:
    """A sensible call of a tool, and what its structured result has among other things."""

    arguments: dict[str, Any]
    result: dict[str, Any]


def calls(files: Path) -> dict[str, Call]:
    """One call of every tool. Each is a session of its own: what one drives is in its safe state before the next.

    They are made in this order: the halt is the last, because nothing that acts is done after it.
    """
    kept, written, gone = (str(files / name) for name in ("kept.txt", "written.txt", "gone.txt"))
    line = b64(b"hi\n")
    return {
        "signal_list": Call({"name": "LED"}, {"truncated": False}),
        "signal_read": Call({"name": "temperature"}, {"name": "temperature", "quality": "good"}),
        "signal_watch": Call({"name": "BUTTON", "timeout_ms": 20}, {"name": "BUTTON", "timed_out": True}),
        "signal_set": Call({"name": "LED", "value": 1}, {"name": "LED", "value": 1}),
        "hw_board": Call({}, {"name": "sim"}),
        "hw_gpio_list": Call({}, {}),
        "hw_i2c_list": Call({}, {}),
        "hw_uart_list": Call({}, {}),
        "hw_pwm_list": Call({}, {}),
        "hw_dac_list": Call({}, {}),
        "hw_can_list": Call({}, {}),
        "hw_spi_list": Call({}, {}),
        "hw_modbus_list": Call({}, {}),
        "hw_sensor_list": Call({}, {}),
        "pwm_get": Call({"channel": "FAN"}, {}),
        "pwm_set": Call({"channel": "FAN", "duty": 0.5}, {}),
        "pwm_off": Call({"channel": "FAN"}, {}),
        "servo_move": Call({"servo": "ARM", "angle": 10}, {}),
        "dac_get": Call({"channel": "BIAS"}, {"unit": "volt"}),
        "dac_set": Call({"channel": "BIAS", "value": 2}, {"value": 2}),
        "can_send": Call({"bus": "can0", "id": 1, "hex": "00"}, {}),
        "can_read": Call({"bus": "can0", "count": 1, "timeout_ms": 50}, {}),
        "can_watch": Call({"bus": "can0", "count": 1, "timeout_ms": 50}, {}),
        "can_isotp": Call({"bus": "can0", "tx": "0x7e0", "rx": "0x7e8", "hex": "22f190", "timeout_ms": 500}, {}),
        "spi_transfer": Call({"device": "LOOP", "text": "hearth"}, {"text": "hearth"}),
        "spi_read": Call({"device": "MOTOR", "register": "SPEED"}, {"register": "SPEED"}),
        "spi_write": Call({"device": "MOTOR", "register": "SPEED", "value": 1200}, {}),
        "modbus_read": Call({"device": "FAN", "name": "speed"}, {"unit": "hertz"}),
        "modbus_write": Call({"device": "FAN", "name": "speed", "value": 12.5}, {"value": 12.5}),
        "hw_sensor_read": Call({"sensor": "temperature"}, {"sensor": "temperature"}),
        "hw_sensor_capture": Call({"sensors": ["vibration"], "samples": 3}, {"timed_out": False}),
        "gpio_get": Call({"line": "LED"}, {"line": "LED", "value": 0}),
        "gpio_watch": Call({"line": "BUTTON", "timeout_ms": 20}, {"line": "BUTTON", "timed_out": True}),
        "gpio_set": Call({"line": 17, "value": 1}, {"line": 17, "value": 1}),
        "gpio_pulse": Call({"line": "LED", "value": 1, "duration_ms": 5}, {"line": "LED", "value": 1}),
        "i2c_read": Call({"bus": 1, "addr": "0x50", "reg": 240, "len": 2}, {"data": b64(b"\xff\xff")}),
        "i2c_write": Call({"bus": 1, "addr": "0x50", "reg": 0, "data": b64(b"hearth")}, {"written": 6}),
        "i2c_transfer": Call({"bus": 1, "addr": 0x48, "write": b64(b"\x01"), "read_len": 2}, {}),
        "i2c_scan": Call({"bus": 1}, {"bus": 1}),
        "uart_read": Call({"port": "uart0", "timeout_ms": 20}, {"timed_out": True}),
        "uart_write": Call({"port": "uart0", "data": line, "drain": True}, {"written": 3}),
        "uart_exchange": Call({"port": "uart0", "data": line, "len": 3}, {"data": line, "timed_out": False}),
        "uart_control": Call({"port": "uart0", "rts": True}, {}),
        "file_list": Call({"path": str(files)}, {}),
        "file_stat": Call({"path": kept}, {"size": 4}),
        "file_read": Call({"path": kept}, {"data": b64(b"kept"), "eof": True}),
        "file_write": Call({"path": written, "data": b64(b"written")}, {}),
        "file_delete": Call({"path": gone}, {}),
        "sys_cpuinfo": Call({}, {}),
        "sys_memory": Call({}, {}),
        "sys_thermal": Call({}, {}),
        "sys_load": Call({}, {}),
        "sys_disk": Call({}, {}),
        "sys_network": Call({}, {}),
        "sys_uptime": Call({}, {}),
        "proc_list": Call({"limit": 1}, {}),
        "hacp_plan": Call(
            {"intent": "blink", "steps": [{"tool": "gpio_set", "args": {"line": "LED", "value": v}} for v in (1, 0)]},
            {"status": "SUCCESS"},
        ),
        "agentcard_declare": Call({"card_json": EXAMPLE}, {"agent_id": EXAMPLE["agent_id"], "own": False}),
        "agentcard_resolve": Call({"query": EXAMPLE["agent_id"]}, {"candidates": []}),
        "agentcard_validate": Call({"card_json": json.dumps(EXAMPLE)}, {"valid": True, "findings": []}),
        "agentcard_list": Call({}, {"skipped": []}),
        "hacp_halt": Call({"reason": "the inspector asks for it"}, {"halted": True, "latched": True}),
    }


REFUSED = {"file_delete"}
"""Tools of risk 3: a person is asked first, whom the inspector's command line cannot ask."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home").resolve()


@pytest.fixture(scope="module")
def daemons(home: Path) -> Iterator[dict[str, Hearthd]]:
    """One for each era, which are looked at at the same time: what one does to its board, the other must not see."""
    started = {}
    try:
        for era in ERAS:
            folder = home / era
            (folder / "files").mkdir(parents=True)
            (folder / "files" / "kept.txt").write_text("kept")
            (folder / "files" / "gone.txt").write_text("gone")
            anybody = '[[policy]]\nname = "anybody"\nmatch = { any = true }\nmax_risk = 3'
            config = f'[files]\nread = ["{folder / "files"}"]\nwrite = ["{folder / "files"}"]\n{anybody}'
            started[era] = Hearthd(folder, config)
            started[era].start()
        yield started
    finally:
        for daemon in started.values():
            daemon.end()


@pytest.fixture(scope="module")
def listed(daemons: dict[str, Hearthd], home: Path) -> dict[str, Any]:
    """What `--method tools/list --strict` says in each era: its exit code, its stderr, and the document."""
    running = {}
    for era, daemon in daemons.items():
        hearth = [sys.executable, "-c", f"{EVERYTHING}main()", "--to", f"unix:{daemon.socket}"]
        running[era] = subprocess.Popen(
            [PROGRAMS / "mcp-inspector", "--cli", *hearth, "--protocol-era", era, "--method", "tools/list", "--strict",
             "--format", "json", *PATIENT],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=home,
        )  # fmt: skip
    said = {}
    try:
        for era, process in running.items():
            document, complaints = process.communicate(timeout=BOUND)
            assert document, complaints
            said[era] = (process.returncode, complaints, json.loads(document))
    finally:
        for process in running.values():
            process.kill()
            process.wait(BOUND)
    return said


@pytest.fixture(scope="module")
def started(home: Path) -> Iterator[list[str]]:
    """A command that is what `hearth mcp` becomes, without the time that it takes to import it."""
    socket = home / "zygote.sock"
    (home / "everything.py").write_text(EVERYTHING)
    command = [sys.executable, "-P", ZYGOTE, "serve", socket, "everything:main"]
    found = os.environ.get("PYTHONPATH", "")
    importing = {**environment(home), "PYTHONPATH": f"{home}{os.pathsep}{found}" if found else str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=importing) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield [sys.executable, "-I", "-S", str(ZYGOTE), "call", str(socket)]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def called(daemons: dict[str, Hearthd], home: Path, started: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each tool's call came to, by era and name: how the inspector ended, and the result it wrote down."""
    running = {}
    for era, daemon in daemons.items():
        commands = [
            [*started, "--to", f"unix:{daemon.socket}", "--protocol-era", era, *PATIENT, "--method", "tools/call",
             "--tool-name", name, "--tool-args-json", json.dumps(call.arguments), "--format", "json",
             "--output", str(home / era / f"{name}.json")]
            for name, call in calls(home / era / "files").items()
        ]  # fmt: skip
        (home / f"{era}.json").write_text(json.dumps(commands))
        running[era] = subprocess.Popen(
            [PROGRAMS / "node", ROOT / "tests" / "mcp" / "inspect_all.mjs", INSPECTOR, home / f"{era}.json"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=home,
        )  # fmt: skip
    results = {}
    try:
        for era, process in running.items():
            _, said = process.communicate(timeout=LONG)
            endings = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("ended ")]
            names = list(calls(home))
            assert len(endings) == len(names), said[-3000:]
            results[era] = {name: _outcome(home / era, name, end) for name, end in zip(names, endings, strict=True)}
    finally:
        for process in running.values():
            process.kill()
            process.wait(BOUND)
    return results


def _outcome(folder: Path, name: str, end: dict[str, Any]) -> dict[str, Any]:
    written = folder / f"{name}.json"
    return {**end, "result": json.loads(written.read_text()) if written.exists() else None}


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_finds_no_tool_schema_that_some_client_cannot_take(listed, era):
    code, complaints, document = listed[era]
    assert code == 0, complaints
    assert len(document["result"]["tools"]) > 30
    findings = {tool["toolName"]: tool["findings"] for tool in document.get("schemaFindings", [])}
    assert not findings, json.dumps(findings, indent=2)


def test_both_eras_are_shown_the_same_tools(listed):
    legacy, modern = (listed[era][2]["result"]["tools"] for era in ERAS)
    assert [tool["name"] for tool in legacy] == [tool["name"] for tool in modern]


def test_every_tool_there_is_has_a_call_here(listed, home):
    assert {tool["name"] for tool in listed["modern"][2]["result"]["tools"]} == set(calls(home))


@pytest.mark.parametrize("era", ERAS)
def test_the_inspector_calls_every_tool_and_takes_its_result(called, home, era):
    failures = {
        name: outcome
        for name, outcome in called[era].items()
        if name not in REFUSED and (outcome["code"] or outcome["result"]["isError"])
    }
    assert not failures, json.dumps(failures, indent=2)
    for name, call in calls(home / era / "files").items():
        if name not in REFUSED:
            structured = called[era][name]["result"]["structuredContent"]
            assert structured == {**structured, **call.result}, name
    assert (home / era / "files" / "written.txt").read_text() == "written"


@pytest.mark.parametrize("era", ERAS)
def test_every_structured_result_is_what_the_tool_has_announced(listed, called, era):
    for tool in listed[era][2]["result"]["tools"]:
        if tool["name"] not in REFUSED:
            result = called[era][tool["name"]]["result"]
            Draft202012Validator(tool["outputSchema"]).validate(result["structuredContent"])
            assert json.loads(result["content"][-1]["text"]) == result["structuredContent"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_person_must_be_asked_about_is_refused_with_the_reason_where_none_can_be(called, home, era, name):
    outcome = called[era][name]
    assert outcome["code"] == TOOL_FAILED, outcome
    assert outcome["result"]["isError"]
    assert "elicitation" in outcome["result"]["content"][0]["text"]
    assert (home / era / "files" / "gone.txt").exists()
