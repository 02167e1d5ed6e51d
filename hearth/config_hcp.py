"""[hcp] and `hcp` of a [[policy]] entry: whole jobs that other agents hand in (HCP), and who may.

This module owns the two shapes. It reads no capability and knows no job: `hearth.hcp.library` finds the files that
`capabilities` names, `hearth.policy.jobs` gives a policy entry's rules their meaning.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from attrs import frozen

from hearth.config_kinds import AbsolutePath, Choice, Flag, Integer, ListOf, Number, Text, checked
from hearth.errors import ConfigError

_Count: TypeAlias = Annotated[int, Integer(1)]
_Names: TypeAlias = Annotated[tuple[str, ...], ListOf(Text())]
# The words are those of `hearth.hcp.values`, which a configuration does without: it takes as long to load as all this.
_Risk: TypeAlias = Annotated[Literal["R1", "R2", "R3", "R4", "R5"], Choice("R1", "R2", "R3", "R4", "R5")]
_Classification: TypeAlias = Annotated[Literal["T1", "T2", "T3", "T4"], Choice("T1", "T2", "T3", "T4")]


@frozen(field_transformer=checked)
class HcpConfig:
    """[hcp]: which capabilities there are, and what bounds the jobs."""

    serve: Annotated[bool, Flag()] = True
    """Whether jobs are taken at all; without, an HCP message is answered as anything that is not known."""
    capabilities: Annotated[tuple[Path, ...], ListOf(AbsolutePath())] = ()
    """Capability files, and directories whose *.toml are such."""
    shipped: _Names = ("*",)
    """Names or patterns of the capabilities that come with hearth and are offered."""
    planners: _Names = ()
    """Vendors' planners that capability files may name, by their entry points."""
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
