"""[hcp] and `hcp` of a [[policy]] entry: whole jobs that other agents hand in (HCP), and who may.

This module owns the two shapes. It reads no capability and knows no job: `hearth.hcp.library` finds the files that
`capabilities` names, `hearth.policy.rules` gives a policy entry's rules their meaning.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from attrs import frozen

from hearth.config_kinds import AbsolutePath, Choice, Flag, Integer, ListOf, Number, Text, checked
from hearth.errors import ConfigError


class _Source(Text):
    """Where capabilities are: an absolute path, or the name of an entry point."""

    def __init__(self) -> None:
        super().__init__('an absolute path, or the name of an entry point such as "bench-climate-survey"')
        self._path, self._name = AbsolutePath(), re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")

    def read(self, raw: object) -> str:
        """The path or the name, as written."""
        text = super().read(raw)
        if is_path(text):
            self._path.read(text)
        elif not self._name.fullmatch(text):
            raise self.wrong(raw)
        return text


def is_path(source: str) -> bool:
    """Whether an entry of `capabilities` is a file or a directory; the others are names of entry points."""
    return "/" in source or source.endswith((".py", ".toml"))


_Count: TypeAlias = Annotated[int, Integer(1)]
_Names: TypeAlias = Annotated[tuple[str, ...], ListOf(Text())]
# The words are those of `hearth.hcp.values`, which a configuration does without: it takes as long to load as all this.
_Risk: TypeAlias = Annotated[Literal["R1", "R2", "R3", "R4", "R5"], Choice("R1", "R2", "R3", "R4", "R5")]
_Classification: TypeAlias = Annotated[Literal["T1", "T2", "T3", "T4"], Choice("T1", "T2", "T3", "T4")]


@frozen(field_transformer=checked)
class HcpConfig:
    """[hcp]: which capabilities there are, and what bounds the jobs."""

    GONE: ClassVar[Mapping[str, str]] = {
        "planners": "write what it planned as a Python function, and name its file or entry point in capabilities",
    }
    """Keys of earlier versions, with the cure."""

    serve: Annotated[bool, Flag()] = True
    """Whether jobs are taken at all; without, an HCP message is answered as anything that is not known."""
    capabilities: Annotated[tuple[str, ...], ListOf(_Source())] = ()
    """Capability files, directories whose *.py and *.toml are such, and names of entry points of installed packages."""
    shipped: _Names = ("*",)
    """Names or patterns of the capabilities that come with hearth and are offered."""
    default_classification: _Classification = "T1"
    """What a job's data is taken for whose caller says nothing."""
    max_jobs: _Count = 16
    max_jobs_per_principal: _Count = 4
    max_steps: _Count = 10_000
    """Steps in one job."""
    approval_timeout_s: Annotated[float, Number(gt=0)] = 3600
    abort_timeout_s: Annotated[float, Number(gt=0)] = 10
    retention_s: Annotated[float, Number(gt=0)] = 604_800
    max_artifact_bytes: _Count = 16 * 1024 * 1024
    max_artifacts_bytes: _Count = 256 * 1024 * 1024
    """Of all jobs together."""

    @property
    def capability_paths(self) -> tuple[Path, ...]:
        """The files and directories among `capabilities`."""
        return tuple(Path(source) for source in self.capabilities if is_path(source))

    def __attrs_post_init__(self) -> None:
        if self.max_artifact_bytes > self.max_artifacts_bytes:
            most = f"at most max_artifacts_bytes ({self.max_artifacts_bytes})"
            raise ConfigError(f"max_artifact_bytes: expected {most}, got {self.max_artifact_bytes}")


@frozen(field_transformer=checked)
class HcpPolicyConfig:
    """`hcp` of a [[policy]] entry: which whole jobs its principals may hand in, within what the entry allows anyway."""

    capabilities: _Names = ("*",)
    max_risk: _Risk = "R5"
    max_data_classification: _Classification = "T2"
    """T3 and T4 take encryption at rest, which is the operator's disk: to allow them is to say that it has that."""
    callers: _Names = ("*",)
    approve: Annotated[bool, Flag()] = False
    """Whether its principals may allow jobs of others that wait for a person."""
