"""Writes the pages of docs/ that are made from others: conformance.md, reference/tools.md, decisions/README.md.

    python docs/generate.py            write them
    python docs/generate.py --check    exit with 1 if one is not what it would write

The conformance page is the sentences of tests/conformance/sentences.py and the tests that bear their marks; the tools
page is the registry of the simulated board; the index of the decisions is their titles and first sentences. All come
out the same on every machine.
"""  # noqa: INP001  docs/ is a folder of pages, not a package

from __future__ import annotations

import ast
import json
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hearth.actors.build import build_parts
from hearth.config.exec import ExecParam, ExecTemplate
from hearth.config.model import Config, ToolsConfig
from hearth.tools import RISK_NAMES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from conformance.card_sentences import CARD  # noqa: E402  found only now
from conformance.hcp_sentences import HCP  # noqa: E402  found only now
from conformance.sentences import ALL, DESIGN, DRAFT, Sentence  # noqa: E402  found only now

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hearth.tools import Tool

CONFORMANCE = ROOT / "docs" / "conformance.md"
TOOLS = ROOT / "docs" / "reference" / "tools.md"
DECISIONS = ROOT / "docs" / "decisions" / "README.md"

# --- what is not done, and what is to be said -----------------------------------------------------------------------


def _find(section: str, level: str, beginning: str) -> Sentence:
    (found,) = [s for s in ALL if (s.section, s.level) == (section, level) and s.text.startswith(beginning)]
    return found


_AT_REST = (
    "Encryption at rest is the operator's disk, which hearth cannot see: by default no principal may hand in T3 or T4, "
    "and a policy that allows it says that the disk is fit."
)

_UNRECORDED = (
    "While the log cannot be written, only reads of risk 0 that disclose nothing go on. Their records, and those of "
    "sessions, are kept in memory: at most 10,000 or 8 MiB of each class. Beyond that the oldest are dropped and "
    "counted."
)
_OTHER_CODE = (
    "One difference: a step whose tool is not registered is answered with RPC_TOOL_NOT_FOUND, which Table 7 has for "
    "it, and not with RPC_INVALID_PARAMS."
)

NOT_DONE = {
    _find("1.1", "REQUIRED", "A conformant server"): f"{_OTHER_CODE} See section 3.4.",
    _find("3.3", "is", "0 | safe"): (
        "No tool of risk 0 is made to change anything, but hearth cannot know a device: one may clear a status "
        "register when it is read, and every read takes the bus's time."
    ),
    _find("3.4", "is", "If any step fails validation"): f"No step is executed, whatever it is. {_OTHER_CODE}",
    _find("7", "MUST", "Every accepted task.submit"): _UNRECORDED,
    _find("12", "MUST", "file.* and any tool that accepts a path"): (
        "Of all tools that are shipped. A vendor's tool is guarded if it declares its paths, and a program of "
        "`proc.exec` if its template says which parameter is one."
    ),
    _find("12", "MUST", "A conformant server MUST: Path-guard every"): (
        "Of all tools that are shipped; of a vendor's, as far as they declare their paths."
    ),
    _find("12", "MUST", "A conformant server MUST: Audit every"): _UNRECORDED,
    _find("13", "is", "The audit log records the full sequence"): _UNRECORDED,
    _find("13", "is", "Standard log retention"): (
        "Access and minimization are hearthd's. Retention is the operator's: hearthd rotates its log, and deletes no "
        "file of it."
    ),
    _find("13", "MUST", "Implementations that expose"): (
        "What is known to be personal (addresses, user names, command lines) is left out of its tools, which are of "
        "risk 0, unless the operator opts in. What a sensor, a serial device or a shared file delivers hearth cannot "
        "know: the operator decides by the board, `[files]` and the policy."
    ),
    _find("card 1.1", "MUST", "An AgentCard produced by a LangChain"): (
        "Proved for cards as the draft has them, its own examples among them. No software of LangChain or AutoGen "
        "takes part in a test."
    ),
    _find("card 2.4.1", "is", "The capabilities[].id is designed"): (
        "Over MCP a tool is called by its card's id as it is. OpenAI's function names take no dots: for that there is "
        "the tag `mcp:NAME`, whose name both take."
    ),
    _find("card 2.4.2", "SHOULD", "The description SHOULD be one"): (
        "One to three sentences, of what it does. What it accepts and returns is in the schemas, and not in each "
        "description."
    ),
    _find("card 2.4.3", "SHOULD", "When provided"): (
        "An object with `properties`, as `parameters` wants it. OpenAI's strict mode, in which every property is "
        "required and no other allowed, asks for more than they say."
    ),
    _find("3", "MAY", "attest.*"): "Not in this release: the draft leaves its mechanisms to future revisions (§11).",
    _find("9", "MAY", "Servers MAY support multiple majors"): "There is only one major so far.",
    _find("card 6.1", "SHOULD", "An implementor SHOULD use WIMSE or OAuth"): (
        "Callers prove who they are by a bearer token of hearth's own, a client certificate, or on this machine the "
        "kernel's word. A proxy in front may speak OAuth, and `[card] auth` then says so."
    ),
    _find("card 6.3", "SHOULD", "Implementors requiring cryptographic agent identity"): (
        "A card is not signed. Its metadata name the public key that signs the audit log; `[card] metadata` has room "
        "for a DID."
    ),
    _find("card 8.1", "SHOULD", "Operational trust SHOULD be established"): (
        "hearth gives no agent anything for its card, so there is no trust to be established: principals and the "
        "policy decide."
    ),
    _find("card 8.3", "SHOULD", "Multi-agent systems that use pricing"): "hearth settles nothing by energy.",
    _find("hcp L1 Delivery Guarantees", "SHOULD", "If the caller does not receive"): (
        "Not by itself: a HACP carrier loses nothing while it stands, and tells the caller when it breaks, who may "
        "then hand over the same message again."
    ),
    _find("hcp L1 Authentication", "SHOULD", "Each harness SHOULD"): (
        "That is for the operator to give them: a token, a certificate or a user of this machine each."
    ),
    _find("hcp L2 Checkpoint & Recovery", "MAY", "If a callee harness fails"): (
        "Not by itself: after a crash nobody knows what the hardware did meanwhile, so the session has FAILED, and its "
        "caller decides whether to go on from the checkpoint, by a resubmission."
    ),
    _find("hcp L2 Checkpoint & Recovery", "is", "Execution continues from the checkpoint"): (
        "It continues from the checkpoint, in the resubmission's own session: FAILED is terminal."
    ),
    _find("hcp L2 Session Timeout", "MAY", "Idle sessions"): "A job is ended by its own time limit, and by no other.",
    _find("hcp L3 Risk Assessment Process", "is", "Contextual factors"): (
        "What else goes on does not change the risk: it is held off by `concurrent_limit` and the queues of the buses."
    ),
    _find("hcp L3 Data Classification", "is", "T3"): _AT_REST,
    _find("hcp L3 Data Classification", "is", "T4"): _AT_REST,
}
"""Sentence -> why it is not done, or not wholly: then there is a test as well, of what is."""

_CARRIER = "AMQP is not spoken here: HCP is one more dialect of the carriers of HACP, and AMQP a later carrier."
NOT_HERE = {
    "hcp L1 AMQP Message Properties Mapping": _CARRIER,
    "hcp L1 AMQP Topology": f"{_CARRIER} A connection is both channels; nothing has to be declared or bound.",
    "hcp L1 Delivery by AMQP": f"{_CARRIER} What these two are for, the job store does: see the next table.",
    "hcp L1 Consuming from AMQP": (
        f"{_CARRIER} In place of acknowledging, a caller that comes back says from which sequence on it wants the rest "
        "(`hcp.attach`), or repeats its task_submit."
    ),
    "hcp L1 Properties of AMQP Messages": f"{_CARRIER} A HACP document is JSON in UTF-8 without saying so.",
    "hcp L1 Queue Management": (
        f"{_CARRIER} The messages of a session are kept until `[hcp] retention_s` after its end, within bounds of "
        "size, whether anybody reads them or not."
    ),
    "hcp L1 Broker Connections": (
        f"{_CARRIER} Who is calling is what a HACP carrier has proved, over TLS wherever it leaves this machine."
    ),
}
"""Heading -> why nothing below it is here."""

NOTES = {
    _find("2.2", "MAY", "Alternative framings"): (
        "WebSocket frames, negotiated by the subprotocol `hacp.v0`. Content-Length headers are not spoken."
    ),
    _find("5", "MAY", "While a session is active"): (
        "At one time at most `[limits] max_tasks_per_session` that have not ended."
    ),
    _find("10.1", "is", "Default path"): "systemd's RUNTIME_DIRECTORY, where it is set, comes first.",
    _find("12", "SHOULD", "A conformant server SHOULD: Run as an unprivileged user"): (
        "The packaged units do, and `[sandbox] user` makes a daemon that was started as root another user; without it "
        "such a daemon stays root, with three of root's capabilities left."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Apply rate limits"): (
        "And per principal and tool over all its sessions. Every tool has a default rate, by its risk."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Apply per-tool timeouts"): (
        "The step fails at its time. A transaction that has begun finishes (§3.6), and its bus takes no other until "
        "then."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Drop privileges"): (
        "As far as the kernel has it: what could not be put in force is named in daemon.start and by `hearth doctor`."
    ),
    _find("12", "MUST", "Operators deploying HACP over network"): (
        "Equivalent, over TLS: a bearer token on a WebSocket. `[websocket] plaintext = true` is the operator's word "
        "that TLS ends in a proxy in front."
    ),
    _find("13", "SHOULD", "Operators SHOULD treat audit logs"): (
        "Of the operator. hearthd lets nobody but its user and group read the log, and writes neither args nor results."
    ),
    _find("card 2.3", "MUST", "MUST conform to Semantic Versioning"): (
        "By the expression of section 5, which takes a little more than semver.org: see decision 0064."
    ),
    _find("card 2.5.2", "MUST", "The URI MUST be consistent"): (
        "https by its scheme and a host, http by http or https and a host; stdio by a scheme that leads over no "
        "network. The draft gives no form for grpc and mcp."
    ),
    _find("card 8.5", "SHOULD", "Agents SHOULD serve AgentCards exclusively over TLS"): (
        "Plain http is for this machine alone, or behind a proxy that ends TLS, by `[http] plaintext = true`."
    ),
    _find("card 8.6", "MUST NOT", "Implementors MUST NOT embed user data"): (
        "What the operator writes under `[card]` is the operator's to answer for."
    ),
    _find("hcp L1 Message Envelope", "is", "Every HCP message is wrapped"): "The body is a document of a HACP carrier.",
    _find("hcp L1 Envelope Fields", "is", "message_id"): (
        "Ours are UUIDs of version 4; of others any printable string of up to 200 characters is one: decision 0068."
    ),
    _find("hcp L3 Risk Assessment Process", "is", "Static risk floor"): "Or its `risk_floor`, where it declares one.",
    _find("hcp L3 Permission Audit", "is", "Caller identity"): "By a HACP carrier, in place of a broker.",
    _find("hcp L3 Session Token", "is", "Is carried in all subsequent messages"): (
        "It is in the session_created event, and an abort may bear it."
    ),
}

# --- conformance.md -------------------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """A test that bears a mark."""

    file: str
    name: str


@cache
def collect() -> dict[Sentence, list[Proof]]:
    """Sentence -> the tests that bear its mark. Raises SystemExit for a mark that names no sentence."""
    proofs: dict[Sentence, list[Proof]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text("utf-8")
        if "mark.spec(" not in source:
            continue
        for name, arguments in _marks(ast.parse(source), str(file.relative_to(ROOT))):
            proof = Proof(file.relative_to(ROOT).as_posix(), name)
            for sentence in _named(arguments):
                if sentence not in ALL:
                    raise SystemExit(f"{file}: {name}: the mark {arguments} names no sentence of sentences.py")
                if proof not in proofs.setdefault(sentence, []):
                    proofs[sentence].append(proof)
    return proofs


def _named(arguments: list[str]) -> list[Any]:
    """What a mark names: a sentence, a decision, or by a heading alone everything below it."""
    if len(arguments) == 1:
        return [sentence for sentence in (*DESIGN, *HCP) if sentence.section == arguments[0]] or [None]
    return [Sentence(*arguments)]


def _marks(tree: ast.Module, file: str) -> Iterator[tuple[str, list[str]]]:
    """(test, arguments) of every `@pytest.mark.spec(…)`; arguments are strings, or names of the module's constants."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call) or ast.unparse(decorator.func) != "pytest.mark.spec":
                continue
            arguments = []
            for argument in decorator.args:
                named = isinstance(argument, ast.Name)
                value = constants.get(argument.id) if named else getattr(argument, "value", None)
                if not isinstance(value, str):
                    raise SystemExit(f"{file}:{argument.lineno}: not a string, nor a constant of this module")
                arguments.append(value)
            yield node.name, arguments


_CONFORMANCE_HEAD = """\
# Conformance

What the HACP draft (draft-sunyi-hacp-protocol-00) asks for, sentence by sentence, and the tests that prove it; and
below, the same for [the AgentCard draft](#the-agentcard-draft) and for [HCP](#hcp). A sentence without a key word that
states a rule has the level *states*.

Of {total} sentences {proved} are proved, {part} in part, and {later} are not done yet: those say why.

This page is generated: `make docs`.
"""

_CARD_HEAD = """\
# The AgentCard draft

What draft-aevum-agentcard-00 asks for. Some of it is for whoever writes cards, some for whoever reads them: hearthd
does the one, [`hearth card`](agentcard.md) and the [AgentCard tools over MCP](mcp.md) the other.

Of {total} sentences {proved} are proved, {part} in part, and {later} are not done: those say why.
"""

_HCP_HEAD = """\
# HCP

What the pages L1 to L4 of HCP ask for. [Whole jobs](hcp.md) says what hearth makes of it. Rows of their tables are
here as sentences.

Of {total} sentences {proved} are proved, {part} in part, and {later} are not done: those say why. {elsewhere} more
are about AMQP, which nothing here speaks.
"""

_DECISIONS_HEAD = """\
## Decisions beyond the draft

What the draft leaves open on the wire, and how it was decided.

| Point | Decision | Proved by |
| --- | --- | --- |"""


def conformance_page() -> str:
    """docs/conformance.md. Raises SystemExit for a sentence that has neither a test nor a reason."""
    proofs = collect()
    decisions = []
    for sentence in DESIGN:
        point = _cell(sentence.section.removeprefix("design 8: "))
        decisions.append(f"| {point} | {_cell(sentence.text, code=True)} | {_proved(sentence, proofs)} |")
    return "\n".join(
        [
            _counted(_CONFORMANCE_HEAD, DRAFT, proofs),
            *_chapters(DRAFT, proofs),
            _DECISIONS_HEAD,
            *decisions,
            "",
            _counted(_CARD_HEAD, CARD, proofs),
            *_chapters(CARD, proofs),
            _counted(_HCP_HEAD, HCP, proofs),
            *_chapters(HCP, proofs),
        ]
    )


def _counted(head: str, sentences: Sequence[Sentence], proofs: Mapping[Sentence, list[Proof]]) -> str:
    """A head with its numbers filled in."""
    states = [_state(sentence, proofs) for sentence in sentences]
    return head.format(
        total=len(states) - states.count("not here"),
        elsewhere=states.count("not here"),
        proved=states.count("proved"),
        part=states.count("in part"),
        later=states.count("not yet"),
    )


def _chapters(sentences: Sequence[Sentence], proofs: Mapping[Sentence, list[Proof]]) -> Iterator[str]:
    section = ""
    for sentence in sentences:
        if sentence.section != section:
            if section:
                yield ""
            section = sentence.section
            yield f"## {_titled(section)}"
            yield ""
            if section in NOT_HERE:
                yield from (NOT_HERE[section], "", "| Level | Sentence |", "| --- | --- |")
            else:
                yield from ("| Level | Sentence | Proved by |", "| --- | --- | --- |")
        level = "*states*" if sentence.level == "is" else sentence.level
        row = f"| {level} | {_cell(sentence.text)} |"
        yield row if section in NOT_HERE else f"{row} {_proved(sentence, proofs)} |"
    yield ""


def _titled(section: str) -> str:
    if section.startswith("hcp "):
        page, _, heading = section.removeprefix("hcp ").partition(" ")
        return f"HCP {page}, {heading}"
    return (
        f"AgentCard, section {section.removeprefix('card ')}" if section.startswith("card ") else f"Section {section}"
    )


def _state(sentence: Sentence, proofs: Mapping[Sentence, list[Proof]]) -> str:
    if sentence.section in NOT_HERE:
        return "not here"
    if sentence not in NOT_DONE:
        if sentence not in proofs:
            raise SystemExit(f"§{sentence.section}: no test proves, and no reason excuses: {sentence.text}")
        return "proved"
    return "in part" if sentence in proofs else "not yet"


def _proved(sentence: Sentence, proofs: Mapping[Sentence, list[Proof]]) -> str:
    told = [f"[{proof.name.removeprefix('test_')}](../{proof.file})" for proof in proofs.get(sentence, [])]
    state = _state(sentence, proofs)
    if state != "proved":
        told.insert(0, f"**{state}**: {NOT_DONE[sentence]}")
    if sentence in NOTES:
        told.append(f"({NOTES[sentence]})")
    return "<br>".join(told)


def _cell(text: str, *, code: bool = False) -> str:
    """Text in a table's cell; with `code`, back quotes keep their meaning."""
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return text if code else text.replace("_", "\\_").replace("`", "\\`").replace("[", "\\[")


# --- reference/tools.md ---------------------------------------------------------------------------------------------

EXAMPLES: dict[str, dict[str, Any]] = {
    "hw.board": {},
    "hw.gpio.list": {},
    "hw.i2c.list": {},
    "hw.uart.list": {},
    "hw.sensor.list": {},
    "hw.sensor.read": {"sensor": "temperature"},
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
    "file.list": {"path": "/srv/hearth"},
    "file.stat": {"path": "/srv/hearth/notes.txt"},
    "file.read": {"path": "/srv/hearth/notes.txt", "offset": 0, "len": 4096},
    "file.write": {"path": "/srv/hearth/notes.txt", "text": "hello\n", "mode": "append"},
    "file.delete": {"path": "/srv/hearth/notes.txt"},
    "sys.cpuinfo": {},
    "sys.memory": {},
    "sys.thermal": {},
    "sys.load": {},
    "sys.disk": {},
    "sys.network": {},
    "sys.uptime": {},
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
    "board": "the board's description; touches no hardware",
    "gpio": "one for each GPIO chip",
    "i2c": "one for each I2C adapter",
    "uart": "one for each serial port",
    "files": "a pool",
    "system": "a pool",
    "processes": "a pool",
    "exec": "a pool of its own",
}


def registry() -> Mapping[str, Tool]:
    """Every shipped tool, opt-in ones included, on the simulated board."""
    config = Config(tools=ToolsConfig(enable=("proc.exec", "proc.signal"), exec=TEMPLATES))
    parts = build_parts(config, default_policy=())
    parts.paths.close()
    return parts.registry


_TOOLS_HEAD = """\
# Tools

The tools that hearth ships, as they are on the simulated board; elsewhere only the names of chips, ports and sensors
differ. A daemon offers those that its board has a bus for (see [boards](boards.md)), that the operator has not
disabled, and, of the opt-in ones, those that the operator has enabled (see [configuration](config.md)). `hearth tools`
lists what a session may use, `hearth tools NAME` shows one with its JSON Schemas, which say exactly what the tables
below say in words. Members that are not in a tool's table are ignored.

Risk levels: {risks}. A tool that takes bytes takes exactly one of three args: `data` (for `i2c.transfer`: `write`) in
base64, `text`, sent as UTF-8, or `hex`. A result with bytes has `data` in base64, `hex` for at most 256 bytes, and
`text` where it is UTF-8 without control characters. When a step fails, its `error_data.effect` is the effect on the
hardware: see [errors](errors.md).

This page is generated: `make docs`.

| Tool | Risk | Rollback | Bus | |
| --- | --- | --- | --- | --- |"""


def tools_page() -> str:
    """docs/reference/tools.md."""
    tools = registry()
    risks = ", ".join(f"{level} {name}" for level, name in enumerate(RISK_NAMES))
    lines = [_TOOLS_HEAD.format(risks=risks)]
    for tool in tools.values():
        anchor = tool.name.replace(".", "")
        optional = " Opt-in." if tool.opt_in else ""
        lines.append(
            f"| [`{tool.name}`](#{anchor}) | {tool.risk_level}{_least(tool)} | {_yes(tool.supports_rollback)} "
            f"| `{_bus(tool)}` "
            f"| {_cell(tool.description.partition('. ')[0].removesuffix('.'), code=True)}.{optional} |"
        )
    for tool in tools.values():
        lines += ["", f"## {tool.name}", "", *_section(tool)]
    return "\n".join(lines) + "\n"


def _bus(tool: Tool) -> str:
    return tool.bus(EXAMPLES[tool.name])


def _yes(value: object) -> str:
    return "yes" if value else "no"


def _least(tool: Tool) -> str:
    return f", for some args {tool.least_risk}" if tool.least_risk < tool.risk_level else ""


def _section(tool: Tool) -> Iterator[str]:
    bus = _bus(tool)
    yield tool.description.replace("<", "&lt;")
    yield ""
    yield "| Risk | Rollback | Bus | Timeout | Capability | Default rate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield (
        f"| {tool.risk_level} {RISK_NAMES[tool.risk_level]}{_least(tool)} | {_yes(tool.supports_rollback)} "
        f"| `{bus}`: {_BUSES[bus.partition(':')[0]]} | {tool.timeout_ms} ms | `{tool.capability}` "
        f"| {tool.rate} |"
    )
    if tool.opt_in:
        yield ""
        yield f'Off unless the operator enables it by name: `[tools] enable = ["{tool.name}"]`.'
    if tool.name == "proc.exec":
        yield "Its programs and their params are the operator's; those shown here are an example."
    for title, schema in (("Arg", tool.params_schema), ("Result", tool.result_schema)):
        yield ""
        yield from _table(title, schema)
    yield ""
    yield "```sh"
    yield _command(tool)
    yield "```"


def _command(tool: Tool) -> str:
    words = [f"{name}={_word(value)}" for name, value in EXAMPLES[tool.name].items()]
    risk = ["-c", "max_risk_level=3"] if tool.risk_level == len(RISK_NAMES) - 1 else []
    return shlex.join(["hearth", "run", *risk, tool.name, *words])


def _word(value: Any) -> str:
    """A value as `hearth run` takes it: a string as it is unless that is JSON, or cannot be typed."""
    if isinstance(value, str) and value.isprintable():
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
        meaning = _cell(member.get("description", ""), code=True)
        yield f"| `{name}` | {_cell(_kind(member), code=True)} | {there} | {meaning} |"


def _rows(schema: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """The members of an object, and of objects and of arrays of objects inside it."""
    for name, member in schema.get("properties", {}).items():
        yield prefix + name, member, name in schema.get("required", ())
        yield from _rows(member, f"{prefix}{name}.")
        yield from _rows(member.get("items", {}), f"{prefix}{name}[].")


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema's type in words."""
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
        return f"array of {_kind(schema['items'])}s"
    return str(types)


def _range(low: Any, high: Any, both: str, least: str, most: str) -> str:
    if low is None and high is None:
        return ""
    if high is None:
        return ", " + least.format(low)
    return ", " + (most.format(high) if low is None else both.format(low, high))


# --- decisions/README.md --------------------------------------------------------------------------------------------

_INDEX_HEAD = """\
# Decision records

Why the architecture of hearth is as it is, for maintainers and for readers of code that names a record. Each record has
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
    for file in sorted(DECISIONS.parent.glob("[0-9]*.md")):
        heading, blank, text = file.read_text("utf-8").split("\n", 2)
        number, _, title = heading.removeprefix("# ").partition(": ")
        summary, _, _ = text.partition("\n\n")
        if blank or not title or not file.name.startswith(f"{number}-") or not summary.endswith("."):
            raise SystemExit(f"{file}: begin it with `# {file.name[:4]}: TITLE`, a blank line and a sentence")
        row = [f"[{number}]({file.name})", _cell(title, code=True), _cell(summary.replace("\n", " "), code=True)]
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join([_INDEX_HEAD, *rows, ""])


PAGES = {CONFORMANCE: conformance_page, TOOLS: tools_page, DECISIONS: index_page}


def stale() -> list[Path]:
    """The pages that are not what they would be if they were generated now."""
    return [path for path, page in PAGES.items() if not path.exists() or path.read_text("utf-8") != page()]


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check only look."""
    old = stale()
    for path in old:
        if "--check" not in arguments:
            path.write_text(PAGES[path](), "utf-8")
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'is out of date' if '--check' in arguments else 'written'}\n")
    return 1 if old and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
