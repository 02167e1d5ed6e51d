"""A tool's arguments on the way from tools/call to an accepted task: a plan of steps, or the declared error.

The input is a CallToolRequest's params as JSON. They go through the bridge's providers (the SDK's types, no socket),
the reading of task.submit and the checks of a submission, on the simulated board. The two schema validators must
agree on every step's args, and a plan is accepted exactly if the authority takes it and every step.
"""

# ruff: noqa: PT017 - outside of pytest, an oracle looks at an error where it is caught

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mcp_types as types
import orjson
import rfc8785
from pydantic import ValidationError

from hearth.actors.admission import Checks, Unchecked, check as check_submission
from hearth.actors.bridges.mcp.provider import Refused
from hearth.actors.bridges.mcp.server import HacpTools, PlanTool
from hearth.drivers.boards.board import open_board
from hearth.drivers.boards.profile import load_profile
from hearth.drivers.tools import build_tools
from hearth.errors import HearthError, InvalidParams, PermissionDenied, ToolNotFound
from hearth.mcp.names import META_ERROR, META_EXPECT, PLAN, mcp_name
from hearth.mcp.plan_tool import PLAN_INPUT
from hearth.mcp.results import of_error
from hearth.mcp.tools import ToolView
from hearth.policy.paths import PathGuard
from hearth.policy.principal import Principal
from hearth.policy.rules import Match, PolicyEntry, PrincipalRates, RateLimits, decide
from hearth.protocol.known import known_by
from hearth.protocol.methods import METHODS
from hearth.protocol.submissions import read_expect
from hearth.schema import Validator, authority
from hearth.tools import CARD_NAMESPACE, ToolRegistry

from ..mutation import json_of, parts

if TYPE_CHECKING:
    import random

    from hearth.actors.bridges.mcp.calls import ConsentRequest

_BOARD = open_board(load_profile("sim"))
_REGISTRY = ToolRegistry(build_tools(_BOARD))
_GRANT: Any = decide(
    [PolicyEntry(name="fuzz", match=Match(any=True), max_risk=2, max_risk_ceiling=3)],
    Principal(kind="unix", uid=1, gid=1),
    _REGISTRY,
)
_MCP_NAMES = frozenset(map(mcp_name, _REGISTRY))
_AUTHORITY = {name: authority(tool.params_schema) for name, tool in _REGISTRY.items()}
_PLAN_AUTHORITY = authority(PLAN_INPUT)
_UNLIMITED = SimpleNamespace(foresees=False)
_BUSES: Any = {
    name: SimpleNamespace(id=name, guard=_UNLIMITED)
    for name in (*_BOARD.drivers, "files", "system", "processes", "exec")
}
_CHECKS = Checks(
    _REGISTRY,
    {name: Validator(tool.params_schema) for name, tool in _REGISTRY.items()},
    _BUSES,
    PathGuard(),
    256,
    {name: known for name, tool in _REGISTRY.items() if (known := known_by(tool.params_schema)) is not None},
)
_VIEW = ToolView([tool.to_wire() for tool in _REGISTRY.values()])
_OFFERED = {shown["title"]: authority(shown["inputSchema"]) for shown in _VIEW.definitions()}
_PROVIDERS = (PlanTool(), HacpTools())
_DEEPEST = 100
_HASH = re.compile("sha256:[0-9a-f]{64}")


class _Client:
    """A client whose session has every tool of the board."""

    async def view(self) -> ToolView:
        """What tool.list gave."""
        return _VIEW


_ASK: Any = SimpleNamespace(client=_Client(), modern=True)
_ARGS: dict[str, Any] = {
    "line": 17, "value": 1, "duration_ms": 10, "edge": "both", "count": 2, "timeout_ms": 100, "bus": 1,
    "addr": "0x48", "reg": 0,
    "len": 2, "data": "AAE=", "write": "AA==", "read_len": 1, "port": "uart0", "until": "Cg==", "path": "/srv/a",
    "offset": 0, "mode":
    "replace", "sensor": "temperature", "chip": "sim", "messages": [{"write": "AA=="}, {"read": 2}], "ten_bit": False,
    "reg_width": 16,
}  # fmt: skip
DICTIONARY = (
    b'"name":"hacp_plan"', b'"arguments":{', b'"steps":[', b'"args":{', b'"tool":"gpio_set"', b'"intent":"i"',
    b'"0x48"', b'"AA=="',
    *(b'"%s":' % name.encode() for name in _ARGS),
)  # fmt: skip


def check(data: bytes) -> None:
    """See the package."""
    try:
        params = types.CallToolRequestParams.model_validate_json(data)
    except ValidationError:
        return  # the SDK's to answer
    job = _job(params)
    if job is not None:
        _submitted(job)


def _now(coroutine: Any) -> Any:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waited")


def _job(params: types.CallToolRequestParams) -> ConsentRequest | None:
    try:
        jobs = [job for provider in _PROVIDERS if (job := _now(provider.job(_ASK, params))) is not None]
    except Refused as refused:
        told = refused.outcome["_meta"][META_ERROR]
        assert refused.outcome["isError"] is True
        assert (told["code"], told["effect"]) == (types.INVALID_PARAMS, "none")
        orjson.dumps(refused.outcome)
        given = params.arguments or {}
        expects = _expects((params.meta or {}).get(META_EXPECT))
        assert not _is_json(given) or not _fits(params.name, given) or not expects, f"refused, and fits: {given!r}"
        # A plan is suggested for its own faults first: those of its steps come with the next answer.
        lacking, suggested = told.get("lacking", []), told.get("try")
        if suggested is not None:
            accepted = _PLAN_AUTHORITY.is_valid if suggested["name"] == PLAN else partial(_fits, suggested["name"])
            assert accepted(suggested["arguments"]) is not bool(lacking), f"{told!r}"
        return None
    assert not jobs or _is_json(params.arguments), "the SDK reads NaN, Infinity and what is too deep to be written"
    for job in jobs:
        for step in job.steps:
            assert _OFFERED[step.tool].is_valid(step.args), f"taken, and the offered schema refuses it: {step!r}"
    assert len(jobs) == (params.name == PLAN or _known(params.name))
    return jobs[0] if jobs else None


def _fits(name: str, given: Any) -> bool:
    """True if the authority takes the arguments of a call by the schemas that are offered."""
    if name != PLAN:
        return bool(_OFFERED[_VIEW.find(name)["name"]].is_valid(given))  # type: ignore[index]
    return _PLAN_AUTHORITY.is_valid(given) and all(
        _known(step["tool"]) and _fits(step["tool"], step.get("args", {})) and _expects(step.get("expect"))
        for step in given["steps"]
    )


def _expects(value: Any) -> bool:
    """True if the protocol reads it as the effect that a step must have."""
    try:
        return value is None or bool(read_expect(value, ""))
    except InvalidParams:
        return False


def _known(name: str) -> bool:
    return name in _MCP_NAMES or name.removeprefix(CARD_NAMESPACE) in _REGISTRY


def _is_json(value: Any) -> bool:
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    level = deepest = 0
    for mark in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        level += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, level)
    if deepest > _DEEPEST:
        return False
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:  # HACP has no integers of more than 64 bits, and no lone surrogates
        return False
    return True


def _submitted(job: ConsentRequest) -> None:
    """As `Session.submit` sends it, and a session's actor checks it."""
    steps = [{"tool": step.tool, "args": step.args} for step in job.steps]
    wire = {"task": {"intent": job.intent, "steps": steps, "constraints": dict(job.constraints)}}
    fits = [_AUTHORITY[step.tool].is_valid(step.args) for step in job.steps]
    accepted = [_CHECKS.validators[step.tool].accepts(step.args) for step in job.steps]
    assert fits == accepted, f"jsonschema says {fits}, jsonschema-rs says {accepted}: {steps!r}"
    try:
        rates = RateLimits(_GRANT, "fuzz", PrincipalRates())
        runs, _ = check_submission(METHODS["task.submit"](wire), _CHECKS, _GRANT, rates, 0.0, {})  # type: ignore[arg-type]
    except Unchecked:
        assert all(fits)
        return
    except HearthError as error:
        assert not isinstance(error, ToolNotFound)
        _told(error, job, fits=all(fits))
        return
    assert all(fits), "accepted, and the authority refuses it"
    assert [run.tool.name for run in runs] == [step.tool for step in job.steps]
    for run in runs:
        assert _HASH.fullmatch(run.hash_args())
        try:
            canonical = rfc8785.dumps(orjson.loads(run.args))
        except (rfc8785.CanonicalizationError, RecursionError):
            continue  # the record's own extension of it, which tests/audit holds to its documentation
        assert run.hash_args() == "sha256:" + hashlib.sha256(canonical).hexdigest()


def _told(error: HearthError, job: ConsentRequest, *, fits: bool) -> None:
    outcome = of_error(error, plan=job.plan)
    assert isinstance(error, (PermissionDenied, InvalidParams)) or fits, f"{error!r} for args that do not fit"
    assert outcome["isError"] is True
    orjson.dumps(outcome)


def _example(name: str) -> dict[str, Any]:
    known = _REGISTRY[name].params_schema["properties"]
    return {"name": mcp_name(name), "arguments": {key: value for key, value in _ARGS.items() if key in known}}


def seeds() -> list[bytes]:
    """A call of each tool, and plans of them."""
    calls = [_example(name) for name in _REGISTRY]
    steps = [{"tool": call["name"], "args": call["arguments"]} for call in calls]
    plan = {
        "intent": "i",
        "steps": steps[:3],
        "dry_run": True,
        "exclusive": False,
        "max_duration_ms": 5,
        "on_busy": "fail",
    }
    return [
        orjson.dumps(one)
        for one in (*calls, {"name": PLAN, "arguments": plan}, {"name": PLAN, "arguments": {**plan, "steps": steps}})
    ]


_POOL = parts([orjson.loads(seed) for seed in seeds()])


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The call's tree changed."""
    return json_of(data, rng, _POOL)
