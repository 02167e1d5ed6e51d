"""Doing a recipe: its steps and rounds in their order, as one generator that yields actions and is sent outcomes.

It owns what follows what, and when: conditions, rounds and their rhythm, retries, failures, reports, the watch over the
safety envelope. What has been done, and how far it is, lies in its `state` and `reckoning`, for others to read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hearth.errors import HearthError
from hearth.hcp.expressions import Expression, ExpressionError, truthy
from hearth.hcp.planning import Do, Fail, Finish, Keepsake, Outcome, Tell, Wait
from hearth.hcp.recipe_calls import StepFailed, args_of, result_of
from hearth.hcp.recipe_reckoning import Place, Reckoning
from hearth.hcp.recipe_scope import State
from hearth.hcp.recipe_shape import Call
from hearth.hcp.recipe_templates import fill
from hearth.hcp.rendering import RenderingError, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.hcp.planning import Action, Order
    from hearth.hcp.recipe_shape import ArtifactSpec, Recipe, Rounds, Step

Actions: TypeAlias = Generator["Action", "Outcome | None", Any]

_BREATH: Final = 500
"""Rounds and skipped steps without an action after which whoever runs the course gets a turn."""
_IDLE: Final = 10
"""Rounds and skipped steps for each step that a job may do, before it fails: they do nothing, and take their time."""
_NOT_AGAIN: Final = ("input_error", "safety_violation", "internal_error")
"""What asking a tool once more does not mend."""
LONGEST_S: Final = 366 * 86_400.0


class _Stopped(HearthError):
    """The job cannot go on, whatever its steps say of failures."""

    def __init__(self, fail: Fail) -> None:
        super().__init__(fail.message)
        self.fail = fail


class Run:
    """One job's way through a recipe."""

    def __init__(self, recipe: Recipe, order: Order) -> None:
        self.state = State(order)
        self.reckoning = Reckoning(self.state.scope()["inputs"], [Place(recipe.steps)])
        self.now = 0.0
        """Seconds since the job's start, as whoever drives the generator has been told."""
        self.at = ""
        """The step that it is at, as an account calls it."""
        self.phase = recipe.steps[0].phase
        self.kept: list[Keepsake] | None = None
        """The artifacts of a job that has ended well."""
        self._recipe = recipe
        self._order = order
        self._turns = 0
        self._calls = 0
        self._warned: set[str] = set()

    # --- the whole --------------------------------------------------------------------------------------------------

    def actions(self) -> Actions:
        """What to do, one after the other; after each `Do` it is sent the outcome, and after all else None."""
        try:
            self._check_amount()
            yield from self._steps(self._recipe.steps, "")
            self.at = ""
            outputs = fill(self._recipe.outputs, self.state.scope())
        except _Stopped as stopped:
            yield stopped.fail
            return
        except StepFailed as failed:
            yield Fail(error_code=failed.code, message=str(failed), recoverable=failed.recoverable)
            return
        except ExpressionError as error:
            yield Fail(error_code="execution_error", message=f"an output cannot be told: {error}")
            return
        kept: list[Keepsake] = []
        for spec in self._recipe.artifacts:
            made = self.render(spec, whole=True)
            if isinstance(made, RenderingError):
                yield _warning("artifact_failed", f"the artifact {spec.name} cannot be made: {made}")
            elif made is not None:
                kept.append(made)
        self.kept = kept
        yield Finish(outputs=outputs)

    def _check_amount(self) -> None:
        """Say at once what would come out after hours: more steps than a job may do."""
        self.reckoning.places.clear()
        amount = self.reckoning.of(self._recipe.steps)
        if amount is not None and amount.calls > self._order.max_steps and not _may_end_early(self._recipe.steps):
            said = f"with these inputs the recipe takes {amount.calls} steps, and a job may do {self._order.max_steps}"
            raise _Stopped(Fail(error_code="input_error", message=said))

    def _steps(self, steps: Sequence[Step], path: str) -> Actions:
        place = Place()
        self.reckoning.places.append(place)
        try:
            for index, step in enumerate(steps):
                place.later, place.step, place.rounds_left = steps[index:], None, 0
                yield from self._step(step, f"{path}{step.name}", place)
        finally:
            self.reckoning.places.pop()

    def _step(self, step: Step, path: str, place: Place) -> Actions:
        self.phase, self.at = step.phase, path
        here = self.state.here
        here[step.name] = None if step.rounds is None else []
        try:
            if step.when is not None and not truthy(self._value(step.when, path, "when")):
                yield from self._turn()
                return
            if step.delay_s is not None:
                yield from self._pause(self._seconds(step.delay_s, path, "delay_s"))
            place.later = place.later[1:]
            if step.rounds is None:
                yield from self._once(step, path, here, None)
            else:
                yield from self._repeat(step, step.rounds, path, place)
        except StepFailed as failed:
            excused = yield from self._excuse(step, path, here[step.name], failed)
            if step.rounds is None:
                here[step.name] = excused
        if step.rounds is None:
            yield from self._report(step, path, here[step.name], 0)

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _repeat(self, step: Step, rounds: Rounds, path: str, place: Place) -> Actions:
        """All rounds of a step; each adds one to the array of its results."""
        items, count = self._count(rounds, path)
        every = None if rounds.every_s is None else self._seconds(rounds.every_s, path, "repeat.every_s")
        place.step, place.every_s = step, every or 0.0
        found: list[Any] = self.state.here[step.name]
        begun = self.now
        for index in range(count):
            place.rounds_left = count - index
            self.phase, self.at = step.phase, f"{path}[{index}]"
            yield from self._turn()
            if every is not None and index:
                # Of the beginning, not of the round before: what a round takes does not add up. One that is late by
                # more than a round has lost its turn, and the rhythm begins anew; a burst would measure nothing.
                if self.now - begun > (index + 1) * every:
                    begun = self.now - index * every
                yield from self._pause(begun + index * every - self.now)
            place.rounds_left -= 1
            bound = {"index": index} if items is None else {"index": index, "item": items[index]}
            self.state.bind(bound)
            try:
                yield from self._round(step, f"{path}[{index}]", found, bound)
                ended = rounds.until is not None and truthy(
                    self._value(rounds.until, path, "repeat.until", latest=found[-1])
                )
            finally:
                self.state.unbind()
            if ended:
                return

    def _round(self, step: Step, path: str, found: list[Any], bound: Mapping[str, Any]) -> Actions:
        length = len(found)
        try:
            yield from self._once(step, path, found, bound)
        except StepFailed as failed:
            so_far = found[length] if len(found) > length else dict(bound)
            excused = yield from self._excuse(step, path, so_far, failed)
            found[length:] = [excused]
        yield from self._report(step, path, found[-1], bound["index"])

    def _count(self, rounds: Rounds, path: str) -> tuple[list[Any] | None, int]:
        if rounds.items is not None:
            items = self._value(rounds.items, path, "for_each")
            if not isinstance(items, list):
                said = f"{path}: for_each takes an array, and {rounds.items.text} gives {str(items)[:60]!r}"
                raise StepFailed("input_error", said)
            count = len(items)
        else:
            items = None
            found: Any = rounds.count
            if isinstance(found, Expression):
                found = self._value(found, path, "repeat.count")
            if type(found) not in (int, float) or found < 0 or found != int(found):
                raise StepFailed("input_error", f"{path}: repeat.count takes a whole number, got {str(found)[:60]!r}")
            count = int(found)
        if count > self._order.max_steps:
            said = f"{path} would go {count} rounds, and a job may do {self._order.max_steps} steps"
            raise _Stopped(Fail(error_code="input_error", message=said))
        return items, count

    # --- one round --------------------------------------------------------------------------------------------------

    def _once(self, step: Step, path: str, into: Any, bound: Mapping[str, Any] | None) -> Actions:
        """One round of a step: its result goes into an array, or under its name into an object."""
        if isinstance(step.do, Call):
            result = yield from self._call(step, step.do, path)
            _put(into, step.name, {**(bound or {}), **result} if bound is not None else result)
            self._watch(path)
            return
        within: dict[str, Any] = dict(bound or {})
        _put(into, step.name, within)
        self.state.enter(within)
        try:
            yield from self._steps(step.do, f"{path}.")
        finally:
            self.state.leave()
        self.phase, self.at = step.phase, path

    def _call(self, step: Step, call: Call, path: str) -> Actions:
        """Ask a tool, once more if that is allowed and it failed, and give its result with all that we add."""
        self.phase, self.at = step.phase, path
        retries = call.retry.times if call.retry is not None else 0
        self.reckoning.pending = 1
        try:
            while True:
                try:
                    return (yield from self._attempt(step, call, path))
                except StepFailed as failed:
                    if not retries or failed.code in _NOT_AGAIN:
                        raise
                    retries -= 1
                    yield _warning("step_retried", f"{failed}; it is tried again")
                    yield from self._pause(call.retry.after_s if call.retry is not None else 0)
        finally:
            self.reckoning.pending = 0

    def _attempt(self, step: Step, call: Call, path: str) -> Actions:
        args = args_of(call, path, self.state.scope())
        self._calls += 1
        if self._calls > self._order.max_steps:
            said = f"{path} would be step {self._calls}, and a job may do {self._order.max_steps}"
            raise _Stopped(Fail(error_code="execution_error", message=said))
        begun = self.now
        outcome = yield Do(tool=call.tool, args=args, name=path, phase=step.phase)
        assert isinstance(outcome, Outcome)
        self.state.note(outcome)
        self.reckoning.call_took(self.now - begun)
        result = result_of(call, path, outcome)
        return {**self.state.stamps(), **result}

    # --- after a round ----------------------------------------------------------------------------------------------

    def _watch(self, path: str) -> None:
        violation = self._recipe.envelope.check_results(self.state.scope())
        if violation is not None:
            event = f"safety_envelope.{violation.parameter}"
            said = f"after {path}, outside of the safety envelope: {violation.message}"
            raise _Stopped(Fail(error_code="safety_violation", message=said, risk_event=event))

    def _excuse(self, step: Step, path: str, so_far: Any, failed: StepFailed) -> Actions:
        """What a step or round that failed gives, if the recipe goes on."""
        if step.on_failure != "continue":
            raise failed
        yield _warning("step_failed", f"{failed}; the recipe goes on", {"step": path, "error_code": failed.code})
        known = so_far if isinstance(so_far, dict) else {}
        return {**self.state.stamps(), **known, "failed": True, "error": str(failed), "error_code": failed.code}

    def _report(self, step: Step, path: str, latest: Any, index: int) -> Actions:
        report = step.report
        if report is None or (index + 1) % report.every:
            return
        try:
            data = report.expression.value(self.state.scope(latest=latest))
        except ExpressionError as error:
            # It is for those who watch; the job does not depend on it, and once is enough.
            if step.name not in self._warned:
                self._warned.add(step.name)
                yield _warning("report_failed", f"{path}: {error}")
            return
        if data is not None:
            yield Tell(
                event_type="intermediate_result",
                data={"result_type": report.type, "data": data, "is_partial": True},
            )

    def render(self, spec: ArtifactSpec, *, whole: bool = False) -> Keepsake | RenderingError | None:
        """A file as it is now, None where there is nothing for it yet, or why it cannot be made."""
        try:
            return render(spec, self.state.scope(), whole=whole)
        except RenderingError as error:
            return error

    # --- small things -----------------------------------------------------------------------------------------------

    def _turn(self) -> Actions:
        """Count a round or a skipped step, of which there may be many without any action."""
        self._turns += 1
        if self._turns > _IDLE * max(self._order.max_steps, 100):
            said = f"{self.at}: the recipe goes round and round without doing steps"
            raise _Stopped(Fail(error_code="execution_error", message=said))
        if not self._turns % _BREATH:
            yield Wait(0.0)

    def _pause(self, seconds: float) -> Actions:
        if seconds > 0:
            yield Wait(seconds)

    def _value(self, expression: Expression, path: str, key: str, **more: Any) -> Any:
        try:
            return expression.value(self.state.scope(**more))
        except ExpressionError as error:
            raise StepFailed("execution_error", f"{path}: {key}: {error}") from None

    def _seconds(self, number: float | Expression, path: str, key: str) -> float:
        found = number if isinstance(number, (int, float)) else self._value(number, path, key)
        if type(found) not in (int, float) or not 0 <= found <= LONGEST_S:
            raise StepFailed("input_error", f"{path}: {key} takes seconds, got {str(found)[:60]!r}")
        return float(found)


def _may_end_early(steps: Sequence[Step]) -> bool:
    """Whether fewer calls may be made than were reckoned."""
    return any(
        step.when is not None
        or step.on_failure == "continue"
        or (step.rounds is not None and step.rounds.until is not None)
        or (not isinstance(step.do, Call) and _may_end_early(step.do))
        for step in steps
    )


def _put(into: Any, name: str, result: dict[str, Any]) -> None:
    if isinstance(into, list):
        into.append(result)
    else:
        into[name] = result


def _warning(code: str, message: str, details: Mapping[str, Any] | None = None) -> Tell:
    return Tell(event_type="warning", data={"code": code, "message": message, "details": dict(details or {})})
