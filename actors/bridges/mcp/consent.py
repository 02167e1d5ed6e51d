"""The person's word on what is dangerous: a call of risk 3 is put to a person before it is submitted.

Owns when a person is asked, what they are shown, and that one answer lets one call run: this one, with these
arguments, once. What cannot run anyway is refused before anybody is asked, and a client that cannot ask is refused with
the reason. Whether the session may do it at all is the daemon's policy, which no answer widens.
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
import orjson
import trio
from attrs import field, frozen
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from hearth.actors.bridges.mcp.provider import ANSWER_PATIENCE
from hearth.errors import ParseError
from hearth.mcp.results import WORLD
from hearth.protocol.jsonrpc import require_depth
from hearth.tools import RISK_NAMES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from hearth.actors.bridges.mcp.provider import McpRequest
    from hearth.api import Step

# --- jobs -------------------------------------------------------------------------------------------------------------
# A tools/call as the HACP task that it is, before anything of it has been submitted.


def arguments_of(params: types.CallToolRequestParams) -> dict[str, Any]:
    """The arguments of a call.

    Raises MCPError for those that HACP takes from nobody, whatever the risk of the call, so that whatever is shown,
    hashed and submitted later can be: the SDK reads NaN, Infinity, integers of any length and lone surrogates, and
    nests more deeply.
    """
    arguments = params.arguments or {}
    try:
        require_depth(arguments)
        orjson.dumps(arguments)
        _require_finite(arguments)
    except ParseError as error:
        reason = (error.data or {})["reason"]
    except orjson.JSONEncodeError as error:
        reason = f"{error}; integers have 64 bits at most, and text is Unicode without lone surrogates"
    except ValueError:
        reason = "NaN and Infinity are no JSON; give numbers that a double holds"
    else:
        return arguments
    raise MCPError(
        code=types.INVALID_PARAMS,
        message=f"Invalid arguments for {params.name[:100]}: {reason}. Nothing has run.",
        data={"path": "", "reason": reason},
    )


def _require_finite(arguments: dict[str, Any]) -> None:
    """Refuse NaN and infinities, which orjson writes as null. Raises ValueError."""
    level: list[Any] = [arguments]
    while level:
        if not all(map(math.isfinite, [part for part in level if type(part) is float])):
            raise ValueError("not finite")
        arrays = chain.from_iterable(part for part in level if isinstance(part, list))
        objects = chain.from_iterable(part.values() for part in level if isinstance(part, dict))
        level = [*arrays, *objects]


@frozen(eq=False)
class ConsentRequest:
    """A tools/call as the HACP task that it is."""

    tool: str
    """The MCP name of the tool that is called."""
    intent: str
    steps: Sequence[Step]
    entries: Sequence[Mapping[str, Any]]
    """The tool.list entry of each step; its `risk_level` is the declared one until the step's own is known."""
    constraints: Mapping[str, Any] = field(factory=dict)
    plan: bool = False
    """True where the result tells of every step, and not just of the one there is."""

    @property
    def risk(self) -> int:
        """The highest risk level of what would run; 0 for a dry run."""
        return 0 if self.constraints.get("dry_run") else max(entry["risk_level"] for entry in self.entries)

    @property
    def least_risk(self) -> int:
        """The least that `risk` can be, whatever the arguments are."""
        least: int = max(entry.get("least_risk", entry["risk_level"]) for entry in self.entries)
        return least


# --- consent ----------------------------------------------------------------------------------------------------------

CONSENT_RISK: Final = 3
"""The risk level from which on a person is asked."""
MOST_QUESTION: Final = 6000
"""Characters of a question: nobody is asked to allow what they cannot see."""
MOST_HARMLESS: Final = 200
"""Characters that are shown of the arguments of a plan's other steps."""

KEY: Final = "consent"
"""The name of the question among a result's input requests."""

FORM: Final[types.ElicitRequestedSchema] = {"type": "object", "properties": {}}
"""A form with nothing to fill in: what the person decides is the action, accept or decline.

A box to tick was one decision asked for twice: a person who pressed Accept and left it alone had refused.
"""


async def consent(
    ask: McpRequest, params: types.CallToolRequestParams, job: ConsentRequest, rehearse: Callable[[], Awaitable[object]]
) -> types.InputRequiredResult | str | None:
    """None if a person allows the call; a question to put to them; or the reason why it is refused, as a sentence.

    `rehearse` raises for what could not run anyway; nobody is asked about that.
    """
    if not ask.can_elicit:
        return (
            "A person has to allow each such call, and this client cannot ask one: it has not declared elicitation. "
            "Do without it, or ask the person who operates the machine to do it"
        )
    answer = (params.input_responses or {}).get(KEY)
    about = _digest(job)
    if isinstance(answer, types.ElicitResult) and ask.client.questions.settle(params.request_state, about):
        return _verdict(answer)
    # Whatever is not an answer to this very question is not looked at: they are asked, or asked again.
    await rehearse()
    question = _question(job, await ask.client.board())
    if question is None:
        return "A person has to allow such a call, and it is too long to be shown to one: make it smaller"
    if not ask.modern:
        return await _asked(ask, question)
    request = types.ElicitRequest(params=types.ElicitRequestFormParams(message=question, requested_schema=FORM))
    return types.InputRequiredResult(input_requests={KEY: request}, request_state=ask.client.questions.ask(about))


async def _asked(ask: McpRequest, question: str) -> str | None:
    """Ask on the stream of the request, and wait."""
    try:
        with trio.fail_after(ANSWER_PATIENCE):
            answer = await ask.ctx.session.elicit_form(question, FORM, related_request_id=ask.ctx.request_id)
    except trio.TooSlowError:
        return f"No person has answered within {ANSWER_PATIENCE:g} s"
    except (MCPError, ValidationError) as error:
        return f"A person has to allow each such call, and the client could not ask one ({str(error).splitlines()[0]})"
    return _verdict(answer)


def _verdict(answer: types.ElicitResult) -> str | None:
    if answer.action == "cancel":
        return "The person who was asked has not decided: the question was dismissed. Do not ask again unless they wish"
    if answer.action == "accept":
        return None
    return "The person who was asked does not allow it. Do not try again, and not by another way either"


def refused(job: ConsentRequest, reason: str) -> dict[str, Any]:
    """The CallToolResult for a call that nobody has allowed."""
    text = f"{_what(job)} was not run. {reason.rstrip('.')}. {WORLD['none']}"
    return {"content": [{"type": "text", "text": text}], "isError": True}


# --- what is asked --------------------------------------------------------------------------------------------------


def _what(job: ConsentRequest) -> str:
    dangerous = dict.fromkeys(entry["name"] for entry in job.entries if entry["risk_level"] >= CONSENT_RISK)
    named = ", ".join(dangerous)
    risk = f"risk {job.risk}, {RISK_NAMES[job.risk]}"
    return f"The plan with {named} ({risk})" if job.plan else f"{named} ({risk})"


def _question(job: ConsentRequest, board: str | None) -> str | None:
    """What the person reads, with the arguments of what is dangerous in full; None if that is too long."""
    lines = []
    for number, (step, entry) in enumerate(zip(job.steps, job.entries, strict=True), 1):
        risk = entry["risk_level"]
        args = json.dumps(step.args, ensure_ascii=False)
        if risk < CONSENT_RISK and len(args) > MOST_HARMLESS:
            args = f"{_clean(args[:MOST_HARMLESS])} … ({len(args)} characters)"
        elif len(args) > MOST_QUESTION:
            return None
        else:
            args = _clean(args)
        back = "can be rolled back" if entry["supports_rollback"] else "cannot be rolled back"
        what = f"{step.tool} {args}  [risk {risk}, {RISK_NAMES[risk]}; {back}]"
        lines.append(f"{number}. {what}" if job.plan else what)
    where = f" on board {_clean(board[:100])}" if board else ""
    intent = f"\nIts intent, as the program says: {_clean(job.intent[:500])}" if job.plan else ""
    text = f"A program asks to run this{where}:\n" + "\n".join(lines) + f"{intent}\n{_ASKED}"
    return text if len(text) <= MOST_QUESTION else None


_ASKED: Final = "Accept lets it run once, with exactly these arguments. Anything else refuses it."


def _clean(text: str) -> str:
    """Without what could make the question look like another one: control characters, line ends, reversed writing."""
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char)[0] == "C" or char in "\u2028\u2029" else char
        for char in text
    )


def _digest(job: ConsentRequest) -> bytes:
    steps = [[step.tool, dict(step.args)] for step in job.steps]
    said = orjson.dumps([job.tool, job.intent, steps, dict(job.constraints)], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(said).digest()
