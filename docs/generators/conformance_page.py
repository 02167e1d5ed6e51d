"""The conformance page: the sentences of the drafts, and the tests that bear their marks.

The sentences are those of tests/conformance/sentences.py and its neighbours. A sentence that no test proves has its
reason here; one that is neither proved nor excused ends the run.
"""  # noqa: INP001  a module beside a script, not a package

from __future__ import annotations

import ast
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.card_sentences import CARD
from conformance.hcp_sentences import HCP
from conformance.sentences import ALL, DESIGN, DRAFT, Sentence
from generators.reference_pages import cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).parents[2]

# --- what is not done, and notes ------------------------------------------------------------------------------------


def _find(section: str, level: str, beginning: str) -> Sentence:
    (found,) = [s for s in ALL if (s.section, s.level) == (section, level) and s.text.startswith(beginning)]
    return found


_AT_REST = (
    "hearth cannot see whether the operator's disk is encrypted. By default no principal may submit T3 or T4 data; a "
    "policy that allows it states that the disk is fit."
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
        "No tool of risk 0 is meant to change anything. But a device may clear a status register when it is read, "
        "which hearth cannot know, and every read takes time on the bus."
    ),
    _find("3.4", "is", "If any step fails validation"): f"No step is executed. {_OTHER_CODE}",
    _find("7", "MUST", "Every accepted task.submit"): _UNRECORDED,
    _find("12", "MUST", "file.* and any tool that accepts a path"): (
        "For all shipped tools. A vendor's tool is guarded if it declares its paths, and a program of `proc.exec` if "
        "its template says which parameter is a path."
    ),
    _find("12", "MUST", "A conformant server MUST: Path-guard every"): (
        "For all shipped tools; for a vendor's, as far as they declare their paths."
    ),
    _find("12", "MUST", "A conformant server MUST: Audit every"): _UNRECORDED,
    _find("13", "is", "The audit log records the full sequence"): _UNRECORDED,
    _find("13", "is", "Standard log retention"): (
        "hearthd restricts access and minimizes the content. Retention is up to the operator: hearthd rotates its log, "
        "and deletes no file of it."
    ),
    _find("13", "MUST", "Implementations that expose"): (
        "Tools of risk 0 leave out data that is known to be personal (addresses, user names, command lines) unless the "
        "operator opts in. hearth cannot know whether the data of a sensor, a serial device or a shared file is: the "
        "operator decides, with the board, `[files]` and the policy."
    ),
    _find("card 1.1", "MUST", "An AgentCard produced by a LangChain"): (
        "Proved for cards as the draft defines them, including its examples. No test runs LangChain or AutoGen."
    ),
    _find("card 2.4.1", "is", "The capabilities[].id is designed"): (
        "Over MCP a tool can be called by its id in the card. OpenAI's function names take no dots; the name in the "
        "tag `mcp:NAME` is valid for both."
    ),
    _find("card 2.4.2", "SHOULD", "The description SHOULD be one"): (
        "One to three sentences about what the tool does. Not every description says what it accepts and returns; the "
        "schemas do."
    ),
    _find("card 2.4.3", "SHOULD", "When provided"): (
        "An object with `properties`, as `parameters` requires. It does not satisfy OpenAI's strict mode, in which "
        "every property is required and no other is allowed."
    ),
    _find("9", "MAY", "Servers MAY support multiple majors"): "There is only one major so far.",
    _find("card 6.1", "SHOULD", "An implementor SHOULD use WIMSE or OAuth"): (
        "Callers authenticate with hearth's own bearer tokens, a client certificate, or on this machine by the peer "
        "credentials of the socket. A proxy in front may use OAuth, and `[card] auth` then says so."
    ),
    _find("card 8.1", "SHOULD", "Operational trust SHOULD be established"): (
        "A card gives an agent no rights in hearth, so no trust is established: principals and the policy decide."
    ),
    _find("card 8.3", "SHOULD", "Multi-agent systems that use pricing"): "hearth settles nothing by energy costs.",
    _find("hcp L1 Queue Management", "MAY", "Caller event queues MAY"): (
        "No time limit: a queue of events is bounded by its bytes, and a caller that comes back late asks the device "
        "for what is missing."
    ),
    _find("hcp L1 Queue Management", "SHOULD", "Session-specific event queues"): "hearth uses none.",
    _find("hcp L2 Checkpoint & Recovery", "MAY", "If a callee harness fails"): (
        "Not automatically: after a crash it is unknown what the hardware did, so the session has FAILED. Its caller "
        "decides whether to resume from the checkpoint, with a new submission."
    ),
    _find("hcp L2 Checkpoint & Recovery", "is", "Execution continues from the checkpoint"): (
        "It continues from the checkpoint, in the session of the new submission: FAILED is terminal."
    ),
    _find("hcp L2 Session Timeout", "MAY", "Idle sessions"): "Only a job's own time limit ends it.",
    _find("hcp L3 Risk Assessment Process", "is", "Contextual factors"): (
        "Other work does not change the risk: `concurrent_limit` and the queues of the buses keep it apart."
    ),
    _find("hcp L3 Data Classification", "is", "T3"): _AT_REST,
    _find("hcp L3 Data Classification", "is", "T4"): _AT_REST,
}
"""The reason why a sentence is not done or, if tests bear its mark, done only in part."""

NOTES = {
    _find("3", "MAY", "attest.*"): (
        "`attest.quote` and `attest.key`: the draft leaves the mechanisms to future revisions (§11), and these are "
        "hearth's."
    ),
    _find("card 6.3", "SHOULD", "Implementors requiring cryptographic agent identity"): (
        "`did:key` of the audit log's key, once that is there. A card for which `[card] metadata` gives another DID is "
        "not signed."
    ),
    _find("2.2", "MAY", "Alternative framings"): (
        "WebSocket frames, negotiated by the subprotocol `hacp.v0`. Content-Length headers are not spoken."
    ),
    _find("5", "MAY", "While a session is active"): (
        "At most `[limits] max_tasks_per_session` unfinished tasks at a time."
    ),
    _find("10.1", "is", "Default path"): "systemd's RUNTIME_DIRECTORY has precedence where it is set.",
    _find("12", "SHOULD", "A conformant server SHOULD: Run as an unprivileged user"): (
        "The packaged units do, and with `[sandbox] user` a daemon that was started as root becomes that user. Without "
        "it such a daemon stays root, with three of root's capabilities."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Apply rate limits"): (
        "Also per principal and tool over all its sessions. Each tool has a default rate, by its risk."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Apply per-tool timeouts"): (
        "The step fails at its timeout. A transaction that has begun finishes (§3.6), and its bus starts no other "
        "until then."
    ),
    _find("12", "SHOULD", "A conformant server SHOULD: Drop privileges"): (
        "As far as the kernel supports it: daemon.start and `hearth doctor` name the parts that are not in force."
    ),
    _find("12", "MUST", "Operators deploying HACP over network"): (
        "A bearer token on a WebSocket over TLS is equivalent. With `[websocket] plaintext = true` the operator "
        "declares that a proxy in front ends TLS."
    ),
    _find("13", "SHOULD", "Operators SHOULD treat audit logs"): (
        "This is up to the operator. Only hearthd's user and group may read the log; it has neither args nor results."
    ),
    _find("card 2.3", "MUST", "MUST conform to Semantic Versioning"): (
        "By the expression of section 5, which accepts a little more than semver.org: see decision 0064."
    ),
    _find("card 2.5.2", "MUST", "The URI MUST be consistent"): (
        "https requires its scheme and a host, http requires http or https and a host, stdio a scheme without a "
        "network. The draft defines no form for grpc and mcp."
    ),
    _find("card 8.5", "SHOULD", "Agents SHOULD serve AgentCards exclusively over TLS"): (
        "Plain http is for this machine only, or behind a proxy that ends TLS (`[http] plaintext = true`)."
    ),
    _find("card 8.6", "MUST NOT", "Implementors MUST NOT embed user data"): (
        "The operator is responsible for the content of `[card]`."
    ),
    _find(
        "hcp L1 Message Envelope", "is", "Every HCP message is wrapped"
    ): "The body is also a document of a HACP carrier.",
    _find("hcp L1 Envelope Fields", "is", "message_id"): (
        "hearth writes UUIDs of version 4, and accepts any printable string of up to 200 characters: decision 0068."
    ),
    _find("hcp L3 Risk Assessment Process", "is", "Static risk floor"): "Or its `risk_floor`, where it declares one.",
    _find("hcp L3 Permission Audit", "is", "Caller identity"): "By a HACP carrier, in place of a broker.",
    _find("hcp L3 Session Token", "is", "Is carried in all subsequent messages"): (
        "It is in the session_created event, and an abort may contain it."
    ),
}

# --- the page ------------------------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """A test that bears a mark."""

    file: str
    name: str


@cache
def collect() -> dict[Sentence, list[Proof]]:
    """Return the tests that bear the mark of each sentence. Raises SystemExit for a mark that names no sentence."""
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
    """Return the sentences of a mark's arguments: one, or with only a heading all below it."""
    if len(arguments) == 1:
        return [sentence for sentence in (*DESIGN, *HCP) if sentence.section == arguments[0]] or [None]
    return [Sentence(*arguments)]


def _marks(tree: ast.Module, file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield test and arguments of each `@pytest.mark.spec(…)`: strings, or names of the module's constants."""
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
                value = (
                    constants.get(argument.id) if isinstance(argument, ast.Name) else getattr(argument, "value", None)
                )
                if not isinstance(value, str):
                    raise SystemExit(f"{file}:{argument.lineno}: not a string, nor a constant of this module")
                arguments.append(value)
            yield node.name, arguments


_CONFORMANCE_HEAD = """\
# Conformance

The requirements of the HACP draft (draft-sunyi-hacp-protocol-00), sentence by sentence, each with the tests that prove
it; then those of [the AgentCard draft](#the-agentcard-draft) and of [HCP](#hcp). A sentence that states a rule without
a key word has the level *states*. This page is for those who check what hearth implements.

{counts}

This page is generated by `make docs`.
"""

_CARD_HEAD = """\
# The AgentCard draft

The requirements of draft-aevum-agentcard-00. hearthd implements those for writers of cards;
[`hearth admin card`](agentcard.md) and the [AgentCard tools over MCP](mcp.md) implement those for readers.

{counts}
"""

_HCP_HEAD = """\
# HCP

The requirements of the pages L1 to L4 of HCP, with the rows of their tables as sentences. [Jobs (HCP)](hcp.md)
describes hearth's implementation.

{counts}
"""

_DECISIONS_HEAD = """\
## Decisions beyond the draft

The decisions about points that the draft leaves open on the wire.

| Point | Decision | Proved by |
| --- | --- | --- |"""


def page() -> str:
    """Return docs/conformance.md. Raises SystemExit for a sentence that has neither a test nor a reason."""
    proofs = collect()
    lines = [_counted(_CONFORMANCE_HEAD, DRAFT, proofs), *_chapters(DRAFT, proofs), _DECISIONS_HEAD]
    for sentence in DESIGN:
        point = cell(sentence.section.removeprefix("design 8: "))
        lines.append(f"| {point} | {cell(sentence.text, code=True)} | {_proved(sentence, proofs)} |")
    for head, sentences in ((_CARD_HEAD, CARD), (_HCP_HEAD, HCP)):
        lines += ["", _counted(head, sentences, proofs), *_chapters(sentences, proofs)]
    return "\n".join(lines)


def _counted(head: str, sentences: Sequence[Sentence], proofs: Mapping[Sentence, list[Proof]]) -> str:
    """Return a head with its numbers filled in."""
    states = Counter(_state(sentence, proofs) for sentence in sentences)
    counts = (
        f"Of {states.total()} sentences {states['proved']} are proved and {states['in part']} are proved in part; "
        f"{states['not yet']} are not done. The table says why."
    )
    return head.format(counts=counts)


def _chapters(sentences: Sequence[Sentence], proofs: Mapping[Sentence, list[Proof]]) -> Iterator[str]:
    section = ""
    for sentence in sentences:
        if sentence.section != section:
            if section:
                yield ""
            section = sentence.section
            yield from (f"## {_titled(section)}", "")
            yield from ("| Level | Sentence | Proved by |", "| --- | --- | --- |")
        level = "*states*" if sentence.level == "is" else sentence.level
        yield f"| {level} | {cell(sentence.text)} | {_proved(sentence, proofs)} |"
    yield ""


def _titled(section: str) -> str:
    kind, _, rest = section.partition(" ")
    if kind == "hcp":
        return "HCP " + rest.replace(" ", ", ", 1)
    return f"AgentCard, section {rest}" if kind == "card" else f"Section {section}"


def _state(sentence: Sentence, proofs: Mapping[Sentence, list[Proof]]) -> str:
    if sentence not in NOT_DONE:
        if sentence not in proofs:
            raise SystemExit(f"§{sentence.section}: neither a test nor a reason for: {sentence.text}")
        return "proved"
    return "in part" if sentence in proofs else "not yet"


def _proved(sentence: Sentence, proofs: Mapping[Sentence, list[Proof]]) -> str:
    parts = [f"[{proof.name.removeprefix('test_')}](../{proof.file})" for proof in proofs.get(sentence, [])]
    state = _state(sentence, proofs)
    if state != "proved":
        parts.insert(0, f"**{state}**: {NOT_DONE[sentence]}")
    if sentence in NOTES:
        parts.append(f"({NOTES[sentence]})")
    return "<br>".join(parts)
