"""The tools of the simulated board, and the index of the decision records."""  # noqa: INP001  beside a script

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.actors.build import build_parts
from hearth.config.exec import ExecParam, ExecTemplate
from hearth.config.model import Config, ToolsConfig
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hearth.tools import Tool

DECISIONS = Path(__file__).parents[1] / "decisions"


def cell(text: str, *, code: bool = False) -> str:
    """Return text for a table's cell; with `code`, back quotes keep their meaning."""
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return text if code else text.replace("_", "\\_").replace("`", "\\`").replace("[", "\\[")


# --- reference/tools.md ---------------------------------------------------------------------------------------------

_NO_ARGS = """
    hw.board hw.gpio.list hw.i2c.list hw.uart.list hw.pwm.list hw.dac.list hw.can.list hw.spi.list hw.modbus.list
    hw.sensor.list
    sys.cpuinfo sys.memory sys.thermal sys.load sys.disk sys.network sys.uptime
"""
EXAMPLES: dict[str, dict[str, Any]] = {
    **{name: {} for name in _NO_ARGS.split()},
    "signal.list": {"name": "PUMP"},
    "signal.read": {"name": "temperature"},
    "signal.watch": {"name": "BUTTON", "timeout_ms": 100},
    "signal.set": {"name": "VALVE", "value": "0.5 V"},
    "hw.sensor.read": {"sensor": "temperature"},
    "hw.sensor.capture": {"sensors": ["vibration", "strain"], "samples": 20, "rate_hz": 200},
    "gpio.get": {"line": "BUTTON"},
    "gpio.watch": {"line": 4, "edge": "rising", "count": 1, "timeout_ms": 100},
    "gpio.set": {"line": 17, "value": 1},
    "gpio.pulse": {"line": "RELAY", "value": 1, "duration_ms": 20},
    "i2c.read": {"bus": 1, "addr": "0x48", "reg": 0, "len": 2},
    "i2c.write": {"bus": 1, "addr": "0x50", "reg": "0x10", "text": "hearth"},
    "i2c.transfer": {"bus": 1, "addr": 80, "hex": "10", "read_len": 6},
    "i2c.scan": {"bus": 1},
    "uart.read": {"port": "uart0", "len": 64, "timeout_ms": 50},
    "uart.write": {"port": "uart0", "text": "hello\n"},
    "uart.exchange": {"port": "uart0", "text": "*IDN?\n", "until": "\n", "timeout_ms": 500},
    "uart.control": {"port": "uart0", "dtr": False, "break_ms": 10},
    "pwm.get": {"channel": "FAN"},
    "pwm.set": {"channel": "LAMP", "duty": 0.25, "period_us": 500},
    "pwm.off": {"channel": "LAMP"},
    "servo.move": {"servo": "ARM", "angle": 45},
    "dac.get": {"channel": "BIAS"},
    "dac.set": {"channel": "BIAS", "value": 1.5},
    "can.send": {"bus": "can0", "message": "FAN_COMMAND", "signals": {"Speed": 40}},
    "can.read": {"bus": "can0", "filter": ["ENGINE_*"], "count": 1, "timeout_ms": 500},
    "can.watch": {"bus": "can0", "count": 2, "timeout_ms": 1000},
    "can.isotp": {"bus": "can0", "tx": "0x7e0", "rx": "0x7e8", "hex": "22f190", "timeout_ms": 500},
    "spi.transfer": {"device": "LOOP", "text": "hearth"},
    "spi.read": {"device": "MOTOR", "register": "SPEED"},
    "spi.write": {"device": "MOTOR", "register": "SPEED", "value": 1200},
    "modbus.read": {"device": "FAN", "name": "speed", "count": 2},
    "modbus.write": {"device": "FAN", "name": "speed", "value": 12.5},
    "file.list": {"path": "/srv/hearth"},
    "file.stat": {"path": "/srv/hearth/notes.txt"},
    "file.read": {"path": "/srv/hearth/notes.txt", "offset": 0, "len": 4096},
    "file.write": {"path": "/srv/hearth/notes.txt", "text": "hello\n", "mode": "append"},
    "file.delete": {"path": "/srv/hearth/notes.txt"},
    "proc.list": {"sort": "memory", "limit": 5},
    "proc.exec": {"template": "df", "params": {"mount": "/"}},
    "proc.signal": {"pid": 4711, "signal": "SIGTERM"},
}
"""Valid args for each tool. The tests run them."""

TEMPLATES = {
    "df": ExecTemplate(
        argv=("/bin/df", "-k", "{mount}"),
        params={"mount": ExecParam(enum=("/", "/tmp"), description="a mount point")},
        description="free disk space",
    )
}

_BUSES = {
    "board": "the description of the board; touches no hardware",
    "gpio": "one for each GPIO chip",
    "i2c": "one for each I2C adapter",
    "uart": "one for each serial port",
    "pwm": "one for each PWM chip",
    "dac": "one for each converter",
    "can": "one for each CAN interface",
    "spi": "one for each SPI device",
    "modbus": "one for each Modbus line",
    "iio": "one for each simulated converter with a buffer",
    "files": "a pool",
    "system": "a pool",
    "processes": "a pool",
    "exec": "a pool of its own",
}


def registry() -> Mapping[str, Tool]:
    """Return all shipped tools, opt-in ones included, on the simulated board."""
    config = Config(tools=ToolsConfig(enable=("proc.exec", "proc.signal"), exec=TEMPLATES))
    parts = build_parts(config, default_policy=())
    parts.paths.close()
    return parts.registry


_TOOLS_HEAD = """\
# Tools

The tools that hearth ships, on the simulated board; on other boards only the names of chips, ports and sensors differ.
A daemon offers a tool if its board has the bus for it (see [boards](boards.md)) and the operator has not disabled it;
an opt-in tool, only if the operator has enabled it (see [configuration](config.md)). `hearth tools` lists the tools
that a session may use, and `hearth tools NAME` shows one with its JSON Schemas, which the tables below repeat in words.
Members that are not in a tool's table are ignored.

Risk levels: {risks}. A tool that takes bytes takes exactly one of three args: `data` (for `i2c.transfer`: `write`) in
base64, `text`, sent as UTF-8, or `hex`. A result with bytes has `data` in base64, `hex` for at most 256 bytes, and
`text` where it is UTF-8 without control characters. When a step fails, its `error_data.effect` is the effect on the
hardware: see [errors](errors.md).

This page is generated by `make docs`.

| Tool | Risk | Rollback | Bus | |
| --- | --- | --- | --- | --- |"""


def tools_page() -> str:
    """Return docs/reference/tools.md."""
    tools = registry()
    risks = ", ".join(f"{level} {name}" for level, name in enumerate(RISK_NAMES))
    lines = [_TOOLS_HEAD.format(risks=risks)]
    for tool in tools.values():
        anchor, optional = tool.name.replace(".", ""), " Opt-in." if tool.opt_in else ""
        lines.append(
            f"| [`{tool.name}`](#{anchor}) | {tool.risk_level}{_least(tool)} | {_yes(tool.supports_rollback)} "
            f"| {'that of the signal' if tool.resolve else f'`{_bus(tool)}`'} "
            f"| {cell(tool.description.partition('. ')[0].removesuffix('.'), code=True)}.{optional} |"
        )
    for tool in tools.values():
        lines += ["", f"## {tool.name}", "", *_section(tool)]
    return "\n".join(lines) + "\n"


def _bus(tool: Tool) -> str:
    return tool.bus(EXAMPLES[tool.name])


def _where(tool: Tool) -> str:
    bus = _bus(tool)
    return "that of the signal" if tool.resolve else f"`{bus}`: {_BUSES[bus.partition(':')[0]]}"


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _least(tool: Tool) -> str:
    return f", for some args {tool.least_risk}" if tool.least_risk < tool.risk_level else ""


def _section(tool: Tool) -> Iterator[str]:
    yield from (tool.description.replace("<", "&lt;"), "")
    yield "| Risk | Rollback | Bus | Timeout | Capability | Default rate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield (
        f"| {tool.risk_level} {RISK_NAMES[tool.risk_level]}{_least(tool)} | {_yes(tool.supports_rollback)} "
        f"| {_where(tool)} | {tool.timeout_ms} ms | `{tool.capability}` "
        f"| {tool.rate} |"
    )
    if tool.opt_in:
        yield f'\nOff unless the operator enables it by name: `[tools] enable = ["{tool.name}"]`.'
    if tool.name == "proc.exec":
        yield "The operator defines its programs and their params; those shown here are an example."
    for title, schema in (("Arg", tool.params_schema), ("Result", tool.result_schema)):
        yield ""
        yield from _table(title, schema)
    yield from ("", "```sh", _command(tool), "```")


def _command(tool: Tool) -> str:
    properties = tool.params_schema["properties"]
    words = [
        f"{name}={_word(value, only_string=properties[name].get('type') == 'string')}"
        for name, value in EXAMPLES[tool.name].items()
    ]
    risk = ["-c", "max_risk_level=3"] if tool.risk_level == len(RISK_NAMES) - 1 else []
    return shlex.join(["hearth", "run", *risk, tool.name, *words])


def _word(value: Any, *, only_string: bool) -> str:
    """Return a value for `hearth run`: strings unquoted, unless they are JSON or not printable."""
    if isinstance(value, str) and value.isprintable():
        if only_string and not value.startswith('"'):
            return value
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)


def _table(title: str, schema: Mapping[str, Any]) -> Iterator[str]:
    rows = list(_rows(schema, ""))
    if not rows:
        yield "It takes no args." if title == "Arg" else "The result is an object without members."
        return
    yield f"| {title} | Type | {'Default' if title == 'Arg' else 'There'} | Meaning |"
    yield "| --- | --- | --- | --- |"
    for name, member, required in rows:
        if title == "Arg":
            there = "required" if required else f"`{json.dumps(member['default'])}`" if "default" in member else "none"
        else:
            there = "always" if required else "sometimes"
        meaning = cell(member.get("description", ""), code=True)
        yield f"| `{name}` | {cell(_kind(member), code=True)} | {there} | {meaning} |"


def _rows(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield the members of an object, and of the objects and arrays of objects in it."""
    for name, member in schema.get("properties", {}).items():
        yield prefix + name, member, name in schema.get("required", ())
        yield from _rows(member, f"{prefix}{name}.")
        yield from _rows(member.get("items", {}), f"{prefix}{name}[].")


def _kind(schema: Mapping[str, Any]) -> str:
    """Return a schema's type in words."""
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    types = schema.get("type", "any")
    if isinstance(types, list):
        return " or ".join(types)
    if types in ("integer", "number"):
        return types + _range(schema.get("minimum"), schema.get("maximum"), "from {} to {}", "{} or more", "at most {}")
    if types == "string" and schema.get("contentEncoding") == "base64":
        return "base64 string"
    if types == "string":
        bounds = (schema.get("minLength"), schema.get("maxLength"))
        return types + _range(*bounds, "{} to {} characters", "at least {} characters", "at most {} characters")
    if types == "array" and "items" in schema:
        kind, comma, bounds = _kind(schema["items"]).partition("\0" if "anyOf" in schema["items"] else ",")
        return f"array of {kind}s{comma}{bounds}"
    return str(types)


def _range(low: Any, high: Any, both: str, least: str, most: str) -> str:
    bounds = [bound for bound in (low, high) if bound is not None]
    form = both if len(bounds) == 2 else most if low is None else least
    return ", " + form.format(*bounds) if bounds else ""


# --- decisions/README.md --------------------------------------------------------------------------------------------

_INDEX_HEAD = """\
# Decision records

The reasons for the architecture of hearth, for maintainers and for readers of code that names a record. Each record has
the context, the decision and its consequences. Numbers are never reused: the record of a missing number was superseded,
or its content is now on the page that it concerns. [The way of a request](../request.md) shows the architecture as
files.

This page is generated by `make docs`.

| number | title | in one line |
| --- | --- | --- |"""


def index_page() -> str:
    """Return docs/decisions/README.md.

    Raises SystemExit for a record that does not begin with `# NUMBER: TITLE`, a blank line and a sentence.
    """
    rows = []
    for file in sorted(DECISIONS.glob("[0-9]*.md")):
        heading, blank, text = file.read_text("utf-8").split("\n", 2)
        number, _, title = heading.removeprefix("# ").partition(": ")
        summary, _, _ = text.partition("\n\n")
        if blank or not title or not file.name.startswith(f"{number}-") or not summary.endswith("."):
            raise SystemExit(f"{file}: begin it with `# {file.name[:4]}: TITLE`, a blank line and a sentence")
        row = [f"[{number}]({file.name})", cell(title, code=True), cell(summary.replace("\n", " "), code=True)]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join([_INDEX_HEAD, *rows, ""])
