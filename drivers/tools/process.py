"""The proc.* tools: list processes and, where the operator opts in, run programs and signal them.

They own their schemas, and decide when a program's end counts as a failure. There is no shell and no free argv: an
agent picks an operator's template and fills in its parameters (draft §12), nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypeAlias, TypedDict

from annotated_types import Ge, Le, Len

from hearth.annotations import schema_of
from hearth.config.exec import MAX_PARAM, ExecParam, ExecTemplate
from hearth.drivers import schemas
from hearth.drivers.declare import Planned, asking
from hearth.drivers.process import MAX_LISTED, SIGNALS
from hearth.drivers.programs import Stopping
from hearth.drivers.schemas import given, wrong
from hearth.drivers.typed_tools import offers, reads, tools_of
from hearth.errors import DeviceError, InvalidParams, TimedOut
from hearth.tools import Args, PathUse, StepContext, Tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.drivers.schemas import Schema

_MARGIN_MS = 3_000
"""Beyond a template's time and the grace after SIGTERM: only a process that cannot be killed takes longer."""
Pid: TypeAlias = Annotated[int, Ge(1), Le(2**22), "process id"]
Signal: TypeAlias = Annotated[str, {"enum": list(SIGNALS)}, "SIGTERM asks a program to end, SIGKILL ends it"]
Count: TypeAlias = Annotated[int, Ge(0)]


class _Process(TypedDict):
    pid: Pid
    ppid: Annotated[Count, "process id of the parent; 0 if it has none"]
    name: Annotated[str, "as the kernel keeps it: mostly cut to 15 characters"]
    state: Annotated[str, '"running", "sleeping", "disk-sleep", "stopped", "zombie", …']
    cpu_s: Annotated[float, Ge(0), "CPU time used since its start, in seconds"]
    rss_bytes: Annotated[Count, "main memory it occupies, in bytes"]
    user: NotRequired[
        Annotated[str, "user name, or the number of a user without one; only where the operator discloses users"]
    ]
    argv: NotRequired[Annotated[list[str], "command line, cut to 4096 bytes; only where the operator shows it"]]


class _ProcessList(TypedDict):
    processes: Annotated[list[_Process], "in the order asked for"]
    total: Annotated[Count, "all processes that hearth may see"]
    matched: Annotated[Count, "those that `name` and `user` leave"]
    truncated: Annotated[bool, "true if `limit` cut the list"]


class _Signalled(TypedDict):
    pid: Pid
    name: Annotated[str, "name of the process"]
    signal: Signal


_STREAM: Final = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "if it is UTF-8"},
        "base64": {"type": "string", "contentEncoding": "base64", "description": "if it is not"},
        "bytes": {"type": "integer", "minimum": 0, "description": "printed in all"},
        "truncated": schemas.flag("true if only the beginning is here"),
    },
    "required": ["bytes", "truncated"],
    "oneOf": [{"required": ["text"]}, {"required": ["base64"]}],
}


class _Ended(TypedDict):
    template: str
    pid: Pid
    exit_code: Annotated[int | None, "null if a signal ended it"]
    signal: Annotated[str | None, 'the signal that ended it, such as "SIGTERM"']
    timed_out: Annotated[bool, "true if it was ended because its time ran out"]
    cancelled: Annotated[bool, "true if it was ended because its task was cancelled"]
    duration_ms: Annotated[float, Ge(0)]
    stdout: Annotated[Any, _STREAM, "its output"]
    stderr: Annotated[Any, _STREAM, "its error output"]


class _Processes:
    def __init__(self, bus: str) -> None:
        self._bus = bus

    @reads("proc.list", "CAP_PROC", timeout_ms=5000, logged=("sort", "limit"), discloses=True)
    def list(
        self,
        sort: Literal["cpu", "memory", "pid"] = "cpu",
        limit: Annotated[int, Ge(1), Le(MAX_LISTED), "most processes to return"] = 50,
        name: Annotated[str, Len(1, 64), "only processes whose name contains this"] | None = None,
        user: Annotated[
            str, Len(1, 64), "only processes of this user; refused where the operator does not disclose users"
        ]
        | None = None,
    ) -> Planned[_ProcessList]:
        """List running processes, the greatest users first: of CPU time since their start, or of memory.

        The CPU time is not that of the moment. Narrow it by `name` (a part of it) or `user`.
        """
        asked = given(sort=sort, name=name, user=user)
        return asking(self._bus, lambda _, driver: driver.processes(limit=limit, **asked))

    @offers("proc.signal", "CAP_PROC", 3, logged=("pid", "signal"), opt_in=True)
    def signal(self, pid: Pid, signal: Signal) -> Planned[_Signalled]:
        """Send a signal to one process: one that proc.exec started, or one whose program the operator has listed.

        Any other is refused. It does not wait for the process to end.
        """
        return asking(self._bus, lambda _, driver: driver.send_signal(pid, signal))


def process_tools(
    bus: str = "processes",
    exec_templates: Mapping[str, ExecTemplate | Sequence[str]] | None = None,
    *,
    exec_bus: str = "exec",
) -> list[Tool]:
    """Return proc.list, and the opt-in proc.exec and proc.signal.

    There are two buses, so that programs that run for minutes do not delay lists and signals. A template given as a
    plain argv takes no parameters. Raises ConfigError for a bad one.
    """
    templates = {
        name: given if isinstance(given, ExecTemplate) else ExecTemplate(argv=tuple(given))
        for name, given in (exec_templates or {}).items()
    }
    listing, signalling = tools_of(_Processes(bus))
    return [listing, _exec_tool(exec_bus, templates), signalling]


def _exec_tool(bus: str, templates: Mapping[str, ExecTemplate]) -> Tool:
    known = frozenset(key for one in templates.values() for key in one.params)

    def checked_bus(args: Args) -> str:
        # Checked at submit, before anything runs: the schema cannot say which params belong to which template, and
        # cannot exclude values that are options in disguise.
        template, params = templates[args["template"]], args.get("params", {})
        for name in params:
            if name in known and name not in template.params:
                takes = ", ".join(template.params) or "none"
                raise wrong(f"/params/{name}", f"{args['template']} takes no parameter {name}; it takes: {takes}")
        try:
            template.fill(params)
        except InvalidParams as error:
            data = error.data or {}
            raise wrong(f"/params/{data['param']}", data["reason"], param=data["param"]) from None
        return bus

    def paths(args: Args) -> Sequence[PathUse]:
        rules, params = templates[args["template"]].params, args.get("params", {})
        return [PathUse(params[key], rule.path) for key, rule in rules.items() if rule.path is not None]

    async def run(ctx: StepContext, args: Args) -> Mapping[str, Any]:
        name = args["template"]
        template, params = templates[name], args.get("params", {})
        for use in paths(args):  # once more: a link may have moved since submit
            ctx.paths.check(use.path, use.access)
        stopping = Stopping()
        outcome: Mapping[str, Any] = await ctx.transact(
            lambda driver: driver.execute(name, template, params, stopping),
            limit_ms=_limit_ms(template),
            on_cancel=stopping.ask,
        )
        return _judged(template, outcome)

    return Tool(
        name="proc.exec",
        description="Run one of the programs that the operator of this machine has prepared, without a shell, and "
        "return its output. The step fails if the program's exit code means failure or its time runs out; `error_data` "
        "then holds the same fields as a result. Cancelling the task ends the program. "
        f"Programs: {_menu(templates)}.",
        params_schema=schemas.root(
            {"template": {"enum": list(templates), "description": "which program"}, "params?": _exec_params(templates)}
        ),
        result_schema={"$schema": schemas.DIALECT, **schema_of(_Ended)},
        capability="CAP_PROC",
        risk_level=3,
        opt_in=True,
        timeout_ms=max(map(_limit_ms, templates.values()), default=_MARGIN_MS),
        logged=("template",),
        bus=checked_bus,
        paths=paths,
        run=run,
    )


def _judged(template: ExecTemplate, outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the outcome of a program that did its work. Raises TimedOut or DeviceError for any other."""
    name = outcome["template"]
    if outcome["timed_out"]:
        raise TimedOut(f"{name} was ended after its {template.timeout_ms} ms", effect="unknown", data=outcome)
    if outcome["cancelled"]:
        raise DeviceError(f"{name} was ended because its task was cancelled", effect="unknown", data=outcome)
    if outcome["signal"] is not None:
        raise DeviceError(f"{name} was ended by {outcome['signal']}", effect="unknown", data=outcome)
    if outcome["exit_code"] not in template.ok_exit_codes:
        raise DeviceError(f"{name} failed with exit code {outcome['exit_code']}", effect="done", data=outcome)
    return outcome


def _limit_ms(template: ExecTemplate) -> int:
    return template.timeout_ms + template.grace_ms + _MARGIN_MS


def _menu(templates: Mapping[str, ExecTemplate]) -> str:
    entries = [f"{name} ({one.description})" if one.description else name for name, one in templates.items()]
    return "; ".join(entries) or "none"


def _exec_params(templates: Mapping[str, ExecTemplate]) -> Schema:
    """Return the schema of `params`: it has the params of all templates, and says which belong to which."""
    takers: dict[str, dict[str, ExecParam]] = {}
    for template, one in templates.items():
        for name, param in one.params.items():
            takers.setdefault(name, {})[template] = param
    lists = "; ".join(f"{name} takes {', '.join(one.params) or 'none'}" for name, one in templates.items())
    return {
        "type": "object",
        "properties": {name: _shared(by_template) for name, by_template in takers.items()},
        "description": f"the program's parameters, all of them, each a string: {lists or 'none'}",
    }


def _shared(by_template: Mapping[str, ExecParam]) -> Schema:
    """Return the schema of a param that several templates may have, each with its own values."""
    if len(by_template) == 1:
        return _param(*by_template.values())
    forms = [f"for {name}: {_in_words(param)}" for name, param in by_template.items()]
    return {"type": "string", "maxLength": MAX_PARAM, "description": "; ".join(forms)}


def _param(param: ExecParam) -> Schema:
    if param.enum is not None:
        described = {"description": param.description} if param.description else {}
        return {"type": "string", "enum": list(param.enum), **described}
    return {"type": "string", "maxLength": MAX_PARAM, "description": _in_words(param)}


def _in_words(param: ExecParam) -> str:
    # The pattern is no keyword of the schema: JSON Schema's dialect is not Python's, and `fill` checks it at submit.
    values = param.enum
    form = f"matches the regular expression {param.pattern}" if values is None else f"one of {', '.join(values)}"
    return f"{param.description}: {form}" if param.description else form
