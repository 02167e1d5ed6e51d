"""The programs that `proc.exec` may run: argv templates with named, validated parameters (draft §12).

A template is data from the configuration. It turns a caller's parameters into an argv, or refuses them. It runs
nothing and uses no shell: each element of the template becomes exactly one element of the argv.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from attrs import field, frozen

from hearth._util.toml import show
from hearth.errors import ConfigError, InvalidParams
from hearth.fields import AbsolutePath, Choice, Flag, Integer, ListOf, MapOf, Text, checked

MAX_PARAM = 1024
"""Limit of a parameter's value, in characters; it also bounds the time that an operator's pattern takes."""

_ANY_TEXT = Text("a string", r"(?s:.*)")
_Paths: TypeAlias = Annotated[tuple[Path, ...], ListOf(AbsolutePath())]
_ENV_NAME = Text("a name without '='", "[^=]+")
_PARAM_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@frozen(field_transformer=checked)
class ExecParam:
    """The allowed values of one parameter: either a pattern for the whole value, or a list of values.

    The pattern is a Python regular expression whose classes mean ASCII. A value with control characters is refused, and
    a value at the start of an argument may not begin with "-" unless `enum` lists it: it would be an option.
    """

    pattern: Annotated[str | None, Text("a regular expression")] = None
    enum: Annotated[tuple[str, ...] | None, ListOf(Text(limit=MAX_PARAM), least=1)] = None
    path: Annotated[Literal["read", "write"] | None, Choice("read", "write")] = None
    """Set if the value is a path, with the program's access to it: the path guard then checks it (draft §12.2)."""
    description: Annotated[str, _ANY_TEXT] = ""

    def __attrs_post_init__(self) -> None:
        if (self.pattern is None) == (self.enum is None):
            raise ConfigError("expected exactly one of pattern and enum")
        if self.pattern is not None:
            try:
                re.compile(self.pattern, re.ASCII)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigError(f"pattern: {error} in {show(self.pattern)}") from None

    def reason_against(self, value: object, *, leads: bool) -> str | None:
        """Return why `value` is refused, or None; `leads`: it would be the beginning of an argument."""
        if not isinstance(value, str):
            return "expected a string"
        if self.enum is not None:
            return None if value in self.enum else f"expected one of {', '.join(map(show, self.enum))}"
        assert self.pattern is not None, "one of the two is set"
        if len(value) > MAX_PARAM:
            return f"expected at most {MAX_PARAM} characters"
        if _CONTROL.search(value) or not re.fullmatch(self.pattern, value, re.ASCII):
            return f"expected a match of {self.pattern}"
        return "must not begin with '-'" if leads and value.startswith("-") else None


@frozen(field_transformer=checked)
class ExecTemplate:
    """One program that `proc.exec` may run.

    `argv[0]` is an absolute path without placeholders; `{name}` elsewhere stands for a parameter and `{{`,
    `}}` for braces. The program gets /dev/null as stdin, `env` over a minimal environment, and `cwd`. A step
    that runs it fails when the exit code is not in `ok_exit_codes`.
    """

    argv: Annotated[tuple[str, ...], ListOf(Text(), least=1)]
    params: Mapping[str, ExecParam] = field(factory=dict)
    description: Annotated[str, _ANY_TEXT] = ""
    timeout_ms: Annotated[int, Integer(1, 600_000)] = 10_000
    max_output_bytes: Annotated[int, Integer(0, 262_144)] = 65_536
    """Limit for stdout and for stderr, each; further output is read, counted and dropped."""
    ok_exit_codes: Annotated[tuple[int, ...], ListOf(Integer(0, 255), least=1)] = (0,)
    env: Annotated[Mapping[str, str], MapOf(_ANY_TEXT, _ENV_NAME)] = field(factory=dict)
    cwd: Annotated[Path, AbsolutePath()] = Path("/")
    read: _Paths = ()
    """Paths that it may read, beside the system's programs and libraries, and `[sandbox] read`."""
    write: _Paths = ()
    execute: _Paths = ()
    """Programs that it may run itself."""
    network: Annotated[bool, Flag()] = False
    """True if it may create IP sockets."""
    grace_ms: Annotated[int, Integer(0, 60_000)] = 2_000
    """Milliseconds between SIGTERM and SIGKILL, after its timeout or the cancellation of its task."""
    max_processes: Annotated[int, Integer(1, 4_096)] = 64
    """Limit of its processes and threads at one time, itself included; the kernel exempts root."""
    max_memory_bytes: Annotated[int, Integer(1 << 20)] = 1 << 30
    """Limit for each of its processes."""
    max_file_bytes: Annotated[int, Integer(0)] = 1 << 28
    """Limit for each file that it writes."""

    def __attrs_post_init__(self) -> None:
        if not self.argv[0].startswith("/") or "{" in self.argv[0] or "}" in self.argv[0]:
            raise ConfigError(f"argv[0]: expected the program's absolute path, got {show(self.argv[0])}")
        used = {name for element in self.argv for _, name in _pieces(element) if name is not None}
        if bad := sorted(name for name in {*used, *self.params} if not _PARAM_NAME.match(name)):
            raise ConfigError(f"params: expected lower-case names such as host, got {show(bad[0])}")
        if missing := sorted(used - self.params.keys()):
            raise ConfigError(f"params: argv uses {{{missing[0]}}}, which params does not describe")
        if unused := sorted(self.params.keys() - used):
            raise ConfigError(f"params.{unused[0]}: no element of argv uses {{{unused[0]}}}")

    def fill(self, params: Mapping[str, object]) -> list[str]:
        """Return the argv for these parameters; parameters that the template does not know are ignored.

        Raises InvalidParams, whose `data` has `param` and `reason`.
        """
        return [self._fill_one(element, params) for element in self.argv]

    def _fill_one(self, element: str, params: Mapping[str, object]) -> str:
        text = ""
        for literal, name in _pieces(element):
            if name is None:
                text += literal
                continue
            rule, value = self.params[name], params.get(name)
            reason = rule.reason_against(value, leads=not text) if name in params else "is missing"
            if reason is not None:
                raise InvalidParams(f"parameter {name!r}: {reason}", data={"param": name, "reason": reason})
            text += str(value)
        return text


def _pieces(element: str) -> Iterator[tuple[str, str | None]]:
    """Yield the parts of `element`: (literal text, None) or ("", parameter). Raises ConfigError for a stray brace."""
    end = 0
    for match in _PIECE.finditer(element):
        if match.start() > end:
            yield element[end : match.start()], None
        end = match.end()
        if match[0] in ("{{", "}}"):
            yield match[0][0], None
        elif match[1] is None:
            raise ConfigError(f'argv: stray "{match[0]}" in {show(element)}; to mean it, write it twice')
        else:
            yield "", match[1]
    if end < len(element):
        yield element[end:], None
