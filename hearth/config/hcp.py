"""The section [hcp]: the capabilities that jobs (HCP) may use, and the limits of jobs.

`hearth.hcp.library` finds the files that `capabilities` names.
"""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

from attrs import frozen

from hearth.config.model import Classification, Count, Names
from hearth.errors import ConfigError
from hearth.extras import Section
from hearth.fields import AbsolutePath, Flag, ListOf, Number, Text, checked


class _Source(Text):
    """A source of capabilities: an absolute path, or the name of an entry point."""

    def __init__(self) -> None:
        super().__init__('an absolute path, or the name of an entry point such as "bench-climate-survey"')
        self._path, self._name = AbsolutePath(), re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")

    def read(self, raw: object) -> str:
        """Return the path or the name, as written."""
        text = super().read(raw)
        if is_path(text):
            self._path.read(text)
        elif not self._name.fullmatch(text):
            raise self.wrong(raw)
        return text


def is_path(source: str) -> bool:
    """Return True if an entry of `capabilities` is a file or a directory; other entries are names of entry points."""
    return "/" in source or source.endswith((".py", ".toml"))


@frozen(field_transformer=checked)
class HcpConfig(Section):
    """[hcp]: the offered capabilities, and the limits of jobs."""

    GONE: ClassVar[Mapping[str, str]] = {
        "planners": "write what it planned as a Python function, and name its file or entry point in capabilities",
    }
    """Keys of earlier versions, with the cure."""

    serve: Annotated[bool | None, Flag()] = None
    """True if the daemon takes jobs; None: if the packages of hearthd[hcp] are installed."""
    capabilities: Annotated[tuple[str, ...], ListOf(_Source())] = ()
    """Capability files, directories of them (*.py and *.toml), and names of entry points of installed packages."""
    shipped: Names = ("*",)
    """Names or patterns of the offered capabilities among those that come with hearth."""
    default_classification: Classification = "T1"
    """The data classification of a job whose caller gives none."""
    max_jobs: Count = 16
    max_jobs_per_principal: Count = 4
    max_steps: Count = 10_000
    """Limit of the steps in one job."""
    approval_timeout_s: Annotated[float, Number(gt=0)] = 3600
    abort_timeout_s: Annotated[float, Number(gt=0)] = 10
    retention_s: Annotated[float, Number(gt=0)] = 604_800
    max_artifact_bytes: Count = 16 * 1024 * 1024
    max_artifacts_bytes: Count = 256 * 1024 * 1024
    """Limit for all jobs together."""

    def asks(self, _name: str) -> tuple[bool | None, str]:
        """See Section: what names capabilities asks for them, too."""
        if self.serve is False:
            return False, ""
        asked = {"serve": self.serve, "capabilities": self.capabilities, "shipped": self.chosen and self.shipped}
        return next(((True, key) for key, value in asked.items() if value), (None, ""))

    @property
    def chosen(self) -> bool:
        """True if it chooses among the shipped capabilities."""
        return self.shipped != ("*",)

    @property
    def capability_paths(self) -> tuple[Path, ...]:
        """The files and directories among `capabilities`."""
        return tuple(Path(source) for source in self.capabilities if is_path(source))

    def __attrs_post_init__(self) -> None:
        if self.max_artifact_bytes > self.max_artifacts_bytes:
            most = f"at most max_artifacts_bytes ({self.max_artifacts_bytes})"
            raise ConfigError(f"max_artifact_bytes: expected {most}, got {self.max_artifact_bytes}")

    def files(self) -> Iterator[tuple[str, Path]]:
        """See Section."""
        for path in self.capability_paths:
            yield "capability files", path
            with suppress(OSError):  # the loader of the files reports a directory that cannot be listed
                yield from (("capability files", file) for file in path.glob("*") if file.is_symlink())

    def measured(self) -> Iterator[Path]:
        """See Section."""
        for path in self.capability_paths:
            yield from (file for file in (path.glob("*") if path.is_dir() else (path,)) if file.is_file())
