"""One call of a recipe: the args that a tool is given, and what is made of its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hearth.errors import HearthError, effect_of, from_wire
from hearth.hcp.decoding import DecodingError
from hearth.hcp.expressions import ExpressionError
from hearth.hcp.recipe_scope import plain
from hearth.hcp.recipe_templates import fill
from hearth.hcp.report import error_code_of, recoverable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hearth.hcp.planning import Outcome
    from hearth.hcp.recipe_shape import Call
    from hearth.hcp.values import ErrorCode


class StepFailed(HearthError):
    """A step could not be done; `on_failure` says what that means."""

    def __init__(self, code: ErrorCode, message: str, *, recoverable: bool = False) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.recoverable = recoverable


def args_of(call: Call, path: str, scope: Mapping[str, Any]) -> Mapping[str, Any]:
    """The args, filled in and valid by the tool's own schema. Raises StepFailed."""
    try:
        # A copy of its own: what a tool does to its args must not reach the plan.
        args: Mapping[str, Any] = plain(fill(call.args, scope))
    except ExpressionError as error:
        raise StepFailed("input_error", f"{path}: an arg of {call.tool} cannot be told: {error}") from None
    if not call.valid.accepts(args):
        pointer, reason = call.valid.explain(args)
        said = f"{path}: {call.tool} does not take these args: {pointer or '/'}: {reason}"
        raise StepFailed("input_error", said)
    return args


def result_of(call: Call, path: str, outcome: Outcome) -> dict[str, Any]:
    """What a tool gave, with what is decoded from it. Raises StepFailed where it failed, or gave something else."""
    if not outcome.ok:
        raise _failure(path, call.tool, outcome)
    try:
        result: dict[str, Any] = plain(outcome.result if outcome.result is not None else {})
        decoded = [one.decode(result) for one in call.decodings]
    except (DecodingError, TypeError) as error:
        raise StepFailed("execution_error", f"{path}: what {call.tool} gave is not as declared: {error}") from None
    for one in decoded:
        result.update(one)
    return result


def _failure(path: str, tool: str, outcome: Outcome) -> StepFailed:
    """A tool's failure. The wire's own words for what became of the world say whether it may be tried anew."""
    error = from_wire({"code": outcome.error_code, "message": outcome.error, "data": outcome.error_data})
    return StepFailed(
        error_code_of(outcome.error_code),
        f"{path}: {tool} failed: {outcome.error or 'no reason was given'}",
        recoverable=recoverable(outcome.error_code, effect_of(error)),
    )
