"""`hearth admin policy explain`: which `[[policy]]` entry decides for a principal and a tool with these args, and why.

It needs no daemon: it builds the daemon's parts from the configuration and asks the same code that decides there. It
opens no device. It says nothing of what depends on the moment: a rate that is used up, a halt, limits, interlocks.
"""

from __future__ import annotations

import os
import pwd
import re
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict, frozen

from hearth._util.text import suggestions
from hearth.cli import common
from hearth.cli.common import DONE, FAILED, Options, standard
from hearth.cli.run import parse_pairs
from hearth.cli.tools import require_known_args
from hearth.config.model import default_socket, load_config
from hearth.errors import InvalidParams, PermissionDenied, RpcError
from hearth.policy.principal import Principal, embedded, from_amqp, from_uid
from hearth.policy.rules import DEFAULT, decide, token_digests
from hearth.schema import Validator
from hearth.tools import SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hearth.actors.runtime import RuntimeParts
    from hearth.api import Step
    from hearth.drivers.named import NamedSignal
    from hearth.policy.rules import Grant, PolicyEntry
    from hearth.tools import Tool

ALLOW, ASK, DENY = "allow", "needs approval", "deny"
COLOURS = {ALLOW: "green", ASK: "yellow", DENY: "red"}
FORMS = (
    'expected "uid:1000", "user:alice", "cert:CN=arm-7", "amqp:alpha", "token:" with hex digits of its SHA-256, or '
    '"embedded"'
)


@click.group()
def policy() -> None:
    """Explain what the daemon's [[policy]] decides. Needs no daemon."""


@policy.command()
@click.option("--as", "who", metavar="PRINCIPAL", required=True, help="As in the audit log: uid:1000, user:alice, …")
@click.option("--config", metavar="FILE", help="The daemon's hearth.toml; else all defaults, as for hearthd.")
@click.argument("tool", required=False)
@click.argument("args", nargs=-1, metavar="[KEY=VALUE]...")
@standard
def explain(options: Options, who: str, config: str | None, tool: str | None, args: Sequence[str]) -> int:
    """Show which policy entry decides whether PRINCIPAL may run TOOL with these args, and why.

    PRINCIPAL is written as in the audit log: uid:1000, cert:CN=arm-7;DNS:arm-7.local, token:9f86… (at least the first
    hex digits of its SHA-256), embedded; or user:alice. A VALUE is read as by `hearth run`.

    Without TOOL it shows for each signal of the board whether PRINCIPAL may read it and set it, and why not.

    Exits with 1 unless it may run at once. --to and --socket are not used.
    """
    parts = _parts(config)
    try:
        principal = read_principal(who, parts.policy)
        if tool is None:
            return _show_signals(options, explain_signals(parts, principal))
        found = parts.registry.get(tool)
        if found is None:
            near, _ = suggestions(tool, parts.registry)
            raise click.UsageError(f"there is no tool {common.clean(tool)!r} with this configuration{near}")
        values = parse_pairs(args, found.params_schema)
        _require_valid(found, values)
        explained = explain_call(parts, principal, found, values)
    finally:
        parts.paths.close()
    verdict = explained["verdict"]
    if options.json:
        click.echo(common.compact(explained))
    else:
        head = click.style(verdict, fg=COLOURS[verdict], bold=True)
        facts = {name: value for name, value in explained.items() if name not in ("verdict", "args")}
        click.echo("\n".join([f"{head}  {common.clean(' '.join([tool, *args]))}", *common.fields(facts, indent="  ")]))
    return DONE if verdict == ALLOW else FAILED


def _parts(config: str | None) -> RuntimeParts:
    """Return the parts of the daemon of this configuration. Raises ConfigError."""
    # Imported here, as only this command needs the actors.
    from hearth.actors.build import build_parts
    from hearth.actors.daemon.sandbox import own_uid
    from hearth.actors.listeners.unix import group_id
    from hearth.policy.rules import default_policy

    file = None if config is None else Path(config)
    loaded = load_config(file, any_owner=True)
    socket = loaded.server.socket or default_socket(os.environ, os.geteuid())
    default = default_policy(own_uid(loaded), group_id(loaded.server.socket_group))
    return build_parts(loaded, default_policy=default, config_file=file, socket=socket)


def read_principal(text: str, entries: Sequence[PolicyEntry]) -> Principal:
    """Return the principal of this key; a prefix of a token's digest is completed from the policy.

    Groups are those of the user database. Raises click.UsageError.
    """
    kind, _, value = text.partition(":")
    if text == "embedded":
        return embedded()
    if kind == "uid" and value.isascii() and value.isdecimal():
        return from_uid(int(value))
    if kind == "user" and value:
        try:
            return from_uid(pwd.getpwnam(value).pw_uid)
        except KeyError:
            raise click.UsageError(f"--as: this machine has no user {common.clean(value)!r}; or give uid:N") from None
    if kind == "cert" and value:
        subject, *names = re.split(r"(?<!\\);", value)
        return Principal("tls", cert_subject=subject or None, cert_sans=frozenset(names))
    if kind == "amqp" and value:
        return from_amqp(value)
    if kind == "token" and re.fullmatch("[0-9a-fA-F]{1,64}", value):
        return Principal("token", token_sha256=_digest(value.lower(), entries))
    raise click.UsageError(f"--as {common.clean(text)!r}: {FORMS}")


def _digest(prefix: str, entries: Sequence[PolicyEntry]) -> str:
    found = [digest for digest in sorted(token_digests(entries)) if digest.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if len(prefix) == len("9f86d081") * 8:
        return prefix
    how = "two or more tokens begin" if found else "no token of the policy begins"
    raise click.UsageError(
        f"--as: {how} so; give all 64 hex digits of its SHA-256, as `hearth admin token digest` prints them"
    )


def _require_valid(tool: Tool, args: Mapping[str, Any]) -> None:
    """Raise click.UsageError for args that the tool does not take, as the daemon would refuse them."""
    require_known_args({"name": tool.name, "params_schema": tool.params_schema}, args, "")
    validator = Validator(tool.params_schema)
    if not validator.accepts(args):
        pointer, reason = validator.explain(args)
        raise click.UsageError(f"{pointer[1:] or tool.name}: {reason}; `hearth tools {tool.name}` shows what it takes")
    try:
        tool.bus(args)
    except InvalidParams as error:
        raise click.UsageError(error.message) from None


@frozen
class Explained:
    """The facts of a decision so far, and the first reason against it."""

    facts: dict[str, Any]
    faults: list[tuple[str, str]]

    def deny(self, reason: str, cure: str) -> None:
        """Note a reason against it, with its cure."""
        self.faults.append((reason, cure))


def explain_call(parts: RuntimeParts, principal: Principal, tool: Tool, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on one step of these valid args, with everything that it rests on; the first reason counts."""
    facts: dict[str, Any] = {"principal": principal.key}
    if principal.user is not None:
        facts["user"] = f"{principal.user}, in the groups {', '.join(sorted(principal.group_names))}"
    told: dict[str, Any] = {"tool": tool.name, "args": dict(args)}
    number = next((n for n, entry in enumerate(parts.policy) if decide([entry], principal, parts.registry)), None)
    if number is None:
        cure = "give it an entry with a `match` that holds, or add one to an entry there is"
        reason = f"none of the {len(parts.policy)} policy entries matches it, so it gets no session"
        return {"verdict": DENY, "reason": reason, "cure": cure, **told, **facts}
    if tool.resolve is not None:
        resolved = tool.resolve(args)
        tool, args = parts.registry[resolved.tool], resolved.args
        facts["means"] = " ".join([tool.name, *(f"{name}={common.scalar(value)}" for name, value in args.items())])
    entry = parts.policy[number]
    grant = decide([entry], principal, parts.registry)
    assert grant is not None, "it was found by that"
    facts["policy"] = f"{entry.name!r}, entry {number + 1} of {len(parts.policy)}: {_matched(entry, principal)}"
    found = Explained(facts, [])
    _explain_tool(found, entry, grant, tool)
    risk = _explain_risk(found, grant, tool, args)
    _explain_scope(found, parts, entry, grant, tool, args)
    _explain_paths(found, parts, tool, args)
    verdict: dict[str, Any] = {"verdict": ALLOW}
    rule = grant.approval_for(risk)
    if rule is not None:
        other = ", other than its author" if rule.to_wire()["other"] else ""
        persons = "person" if rule.persons == 1 else "persons"
        facts["approval"] = f"from risk {rule.from_risk} on: {rule.persons} {persons} with {rule.right!r}{other}"
    facts["rights"] = ", ".join(sorted(grant.rights)) or "none"
    if found.faults:
        reason, cure = found.faults[0]
        verdict = {"verdict": DENY, "reason": reason, "cure": cure}
    elif rule is not None:
        reason = f"policy {entry.name!r} asks for an approval from risk {rule.from_risk} on"
        cure = (
            "prepare it with `hearth plan prepare`, have it approved with `hearth approvals approve`, then execute it"
        )
        verdict = {"verdict": ASK, "reason": reason, "cure": cure}
    return {**verdict, **told, **facts}


def explain_signals(parts: RuntimeParts, principal: Principal) -> list[dict[str, Any]]:
    """Return for each signal of the board the verdicts on reading it and on setting it; None: it has no such access."""
    return [
        {
            "signal": parts.board.signals.called(one),
            "bus": one.bus,
            "read": _explain_step(parts, principal, [one.read]) if "r" in one.access else None,
            "set": _explain_step(parts, principal, [partial(one.write, value) for value in _values(one)])
            if "w" in one.access
            else None,
        }
        for one in parts.board.signals
    ]


def _values(one: NamedSignal) -> list[float]:
    """Return values of which a signal can have one."""
    if one.signal is None:
        return [0, 1]
    safe = None if one.signal.safe is None else one.signal.shown(one.signal.safe)
    return [*(value for value in (*one.signal.bounds.values(), safe) if isinstance(value, (int, float))), 0, 1]


def _explain_step(parts: RuntimeParts, principal: Principal, steps: Sequence[Callable[[], Step]]) -> dict[str, Any]:
    """Return the verdict on the first of some steps that is possible."""
    error: RpcError | None = None
    for make in steps:
        try:
            step = make()
            if step.tool not in parts.registry:
                reason = f"the tool {step.tool} is not offered"
                cure = "see [tools] disable, and tools.allow of the profile"
                return {"verdict": DENY, "reason": reason, "cure": cure}
            told = explain_call(parts, principal, parts.registry[step.tool], step.args)
        except RpcError as impossible:
            error = impossible
        else:
            return {name: told[name] for name in ("verdict", "reason", "cure", "tool", "policy") if name in told}
    assert error is not None, "each signal has steps"
    return {"verdict": DENY, "reason": error.message, "cure": "see the board's profile"}


def _show_signals(options: Options, signals: Sequence[Mapping[str, Any]]) -> int:
    if options.json:
        click.echo(common.compact({"signals": signals}))
        return DONE
    for one in signals:
        told = {what: one[what] for what in ("read", "set") if one[what] is not None}
        words = {what: click.style(said["verdict"], fg=COLOURS[said["verdict"]]) for what, said in told.items()}
        verdicts = [f"{what} {verdict}" for what, verdict in words.items()]
        click.echo(f"{common.clean(one['signal'])}  {', '.join(verdicts) or 'reserved'}")
        for why in dict.fromkeys(f"{said['reason']}; {said['cure']}" for said in told.values() if "reason" in said):
            click.echo(f"  {common.clean(why)}")
    return DONE


def _matched(entry: PolicyEntry, principal: Principal) -> str:
    """Return the condition of the entry that holds, as it is written in the configuration."""
    match = next(one for one in entry.match if one.holds(principal))
    given = {name: value for name, value in asdict(match).items() if value is not None and value is not False}
    return "match " + ", ".join(f"{name} = {common.scalar(value)}" for name, value in given.items())


def _explain_tool(found: Explained, entry: PolicyEntry, grant: Grant, tool: Tool) -> None:
    if tool.name not in grant.allowed:
        found.facts["tools"] = f"{', '.join(entry.tools) or 'none'}: none of them fits {tool.name}"
        found.deny(f"not in the allowlist of policy {entry.name!r}", f'add "{tool.name}" to its `tools`')
        return
    pattern = next((one for one in entry.tools if fnmatchcase(tool.name, one)), None)
    found.facts["tools"] = f'allowed by "{pattern}"' if pattern else "allowed with the tools of the signals"
    keys = [name for name in entry.rate if name == tool.name or fnmatchcase(tool.name, name)]
    key = tool.name if tool.name in keys else next(iter(keys), None)
    if key is None and tool.default_rate is None and DEFAULT in entry.rate:
        key = DEFAULT
    default = "the tool's own" if tool.default_rate else f"the default of risk {tool.risk_level}"
    origin = default if key is None else f'by "{key}" in its `rate`'
    found.facts["rate"] = f"{grant.rates[tool.name]}, {origin}; over all sessions of the principal together"


def _explain_risk(found: Explained, grant: Grant, tool: Tool, args: Mapping[str, Any]) -> int:
    risk = tool.risk_of(args)
    whole = "" if risk == tool.risk_level else f" with these args ({tool.name} has up to {tool.risk_level})"
    cap = f"max_risk {grant.max_risk}"
    if grant.max_risk_ceiling > grant.max_risk:
        cap += f", and a task may raise it to {grant.max_risk_ceiling}"
    found.facts["risk"] = f"{risk}{whole}; {cap}"
    if risk > grant.max_risk:
        cure = f"raise `max_risk` of policy {grant.policy!r} to {risk}"
        if risk <= grant.max_risk_ceiling:
            cure = f"give the task the constraint max_risk_level={risk}, which the entry permits"
        elif tool.least_risk <= grant.max_risk:
            cure += f"; with other args {tool.name} has risk {tool.least_risk}"
        found.deny(f"its risk {risk} is above max_risk {grant.max_risk}", cure)
    return risk


def _explain_scope(
    found: Explained, parts: RuntimeParts, entry: PolicyEntry, grant: Grant, tool: Tool, args: Mapping[str, Any]
) -> None:
    from hearth.actors.admission import NO_HARDWARE, beyond_signals

    if SIGNALS in grant.scope.patterns and tool.bus(args) not in NO_HARDWARE:
        for use in parts.board.signals.uses(tool, args):
            if not grant.scope.permits(use):
                named = f'add "{use.names[0]}" to' if use.names else "give signal.read or signal.set a name that is in"
                found.deny(beyond_signals(use, tool.name, entry.name), f"{named} `{SIGNALS}` of policy {entry.name!r}")
    if tool.uses is not None:
        for use in tool.uses(args):
            patterns = grant.scope.patterns.get(use.kind)
            scope = "all" if patterns is None else ", ".join(patterns) or "none"
            found.facts[f"uses {use.names[0]}"] = f"{use.kind}: {scope}"
            if not grant.scope.permits(use):
                cure = f'add "{use.names[0]}" to `{use.kind}` of policy {entry.name!r}'
                found.deny(f"{use.names[0]} is not in `{use.kind}` of policy {entry.name!r}", cure)
    elif grant.scope.bounded and tool.bus(args) not in NO_HARDWARE:
        words = " and ".join(f"`{word}`" for word in grant.scope.patterns)
        cure = f"leave {words} out of policy {entry.name!r}, or the tool out of its `tools`"
        found.deny(f"policy {entry.name!r} permits only some hardware, and {tool.name} does not say what it uses", cure)


def _explain_paths(found: Explained, parts: RuntimeParts, tool: Tool, args: Mapping[str, Any]) -> None:
    for use in tool.paths(args):
        try:
            parts.paths.check(use.path, use.access)
        except PermissionDenied as error:
            reason = str((error.data or {}).get("reason") or error.message)
            found.deny(f"{use.path}: {reason}", f"name a directory that holds it in [files] {use.access}")
