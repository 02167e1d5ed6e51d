"""A transcript replays byte for byte on the simulator, without a model; what would come out otherwise is named."""

import json

import pytest
import trio
from support.model_server import calls, proposes, reads, says

from hearth.cli.ask_replay import replayed
from hearth.cli.common import Options
from hearth.drivers.base import BaseDriver
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.can.linux import LinuxCan
from hearth.drivers.dac.linux import LinuxDac
from hearth.drivers.gpio.linux import LinuxGpio
from hearth.drivers.i2c.linux import LinuxI2c
from hearth.drivers.iio.kernel import KernelSensors
from hearth.drivers.modbus.line import ModbusLine
from hearth.drivers.pwm.linux import LinuxPwm
from hearth.drivers.serial_port.settings import UartSettings
from hearth.drivers.serial_port.tty import LinuxUart
from hearth.drivers.spi.linux import LinuxSpi
from hearth.errors import ConfigError
from hearth.testing import _simulated

OPTIONS = Options("unix:/nowhere", "--to", True)

pytestmark = pytest.mark.slow

LIGHT = ("gpio.set", {"line": "LED", "value": 1})
SCRIPT = [
    reads("gpio.get", line="BUTTON"),
    calls(("gpio.set", {"line": "LED"})),
    proposes("light and wait", LIGHT, ("gpio.pulse", {"line": "RELAY", "value": 1, "duration_ms": 10})),
    proposes("a line that there is not", ("gpio.set", {"line": "NOWHERE", "value": 1})),
    says("The LED is on; the relay was closed for 10 ms."),
]


@pytest.fixture
def recorded(asks, tmp_path):
    path = tmp_path / "t.jsonl"
    answer = asks("--yes-up-to", "2", "--transcript", path, "light", "the LED", script=SCRIPT)
    assert answer.code == 0
    return path


def test_a_transcript_replays_byte_for_byte_without_a_model(cli, model, recorded, tmp_path):
    asked = len(model.requests)
    again = tmp_path / "again.jsonl"
    answer = cli("ask", "--replay", recorded, "--transcript", again)
    assert answer.code == 0, answer
    lines = recorded.read_bytes().splitlines()
    assert answer.out == f"the same: {len(lines)} lines, byte for byte\n"
    assert again.read_bytes() == recorded.read_bytes()
    assert len(model.requests) == asked
    assert cli("--json", "ask", "--replay", recorded).json == {"same": True, "lines": len(lines)}


def test_a_replay_of_a_tainted_plan_approves_as_the_person_did(cli, asks, daemon, tmp_path):
    path = tmp_path / "t.jsonl"
    script = [reads("hw.gpio.list"), proposes("light", LIGHT)]
    assert asks("--transcript", path, "light", script=script).code == 1
    # As if a person had said yes.
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[-2] == {"kind": "decision", "plan_id": lines[-3]["plan_id"], "approved": False, "by": "no terminal"}
    assert cli("ask", "--replay", path).code == 0
    lines[-2]["approved"] = True
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = cli("--json", "ask", "--replay", path)
    assert answer.json["same"] is False
    again = tmp_path / "again.jsonl"
    cli("ask", "--replay", path, "--transcript", again)
    task = next(one for one in map(json.loads, again.read_text().splitlines()) if one["kind"] == "task")
    assert task["status"] == "SUCCESS"


def test_the_first_line_that_differs_is_shown(cli, recorded):
    text = recorded.read_text()
    recorded.write_text(text.replace('"before":{"value":0}', '"before":{"value":1}', 1))
    answer = cli("ask", "--replay", recorded)
    assert answer.code == 1
    assert "differs" in answer.out
    shown = [line for line in answer.out.splitlines() if line.startswith("  was ")]
    assert '"before":{"value":1}' in shown[0]


def test_a_recording_that_ends_early_ends_the_replay(cli, recorded):
    lines = recorded.read_bytes().splitlines(keepends=True)
    recorded.write_bytes(b"".join(lines[:-3]))
    answer = cli("ask", "--replay", recorded)
    assert answer.code == 1
    assert "(nothing)" in answer.out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a transcript"),
        (b"{}\n", "line 1 is no line of a transcript"),
        (b"not json\n", "line 1 is not JSON"),
        (b'{"kind":"words"}\n', "not a transcript"),
        (b'{"kind":"start","format":2}\n', "reads formats up to 1"),
        (b'{"kind":"start","format":1}\n{"kind":"turn","text":"x"}\n', "a turn of the transcript cannot be read"),
    ],
)
def test_what_is_no_transcript_is_refused(cli, tmp_path, content, said):
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    answer = cli("ask", "--replay", path)
    assert answer.code == 2
    assert said in answer.err


def test_a_replay_takes_no_words_and_no_hardware(cli, recorded):
    assert "leave WORDS out" in cli("ask", "--replay", recorded, "light").err
    answer = cli("ask", "--replay", recorded, "--board", "generic-linux")
    assert answer.code == 2
    assert "a replay runs on a simulated board alone" in answer.err
    assert cli("ask", "--replay", "/no/such/file").code == 1


class Silent:
    """A vendor's driver that is not made from BaseDriver, and does not say what it is."""


REAL = [LinuxGpio, LinuxI2c, LinuxUart, LinuxPwm, LinuxDac, LinuxCan, LinuxSpi, KernelSensors, BaseDriver, Silent]


@pytest.mark.parametrize("cls", [*REAL, ModbusLine], ids=lambda cls: cls.__name__)
def test_a_recorded_yes_is_no_approval_on_a_board_with_one_real_driver_of_any_kind(cls, tmp_path):
    # Not even made: nothing of it may be asked but whether it is simulated.
    driver = cls.__new__(cls)
    if cls is ModbusLine:
        driver = ModbusLine("plant", LinuxUart("plant", str(tmp_path / "device"), UartSettings()), ())
    opened = []
    driver.open = lambda: opened.append(cls)
    board = open_board(load_profile("sim"))
    assert board.real_buses() == []
    board.drivers["com.acme.one"] = driver
    assert board.real_buses() == ["com.acme.one"]

    async def replay():
        with pytest.raises(ConfigError, match=r"it drives hardware .com\.acme\.one."):
            await replayed(OPTIONS, [{"kind": "start", "format": 1}], board, None)
        assert opened == [], "it was not opened either"

    trio.run(replay)
    with pytest.raises(ValueError, match=r"drives real hardware .com\.acme\.one."):
        _simulated(board, 0)
