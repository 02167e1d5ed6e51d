"""The section [ask]: the language model that `hearth ask` and `job.plan` ask."""

# `checked` reads the annotations at class creation, so they must not be postponed to strings.
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from attrs import frozen

from hearth.config.model import Count, Seconds
from hearth.extras import Section
from hearth.fields import AbsolutePath, Choice, Text, checked

if TYPE_CHECKING:
    from hearth.config.model import Config


@frozen(field_transformer=checked)
class AskConfig(Section):
    """[ask]: the language model that `hearth ask` and `job.plan` ask. Without `model` none is asked."""

    api: Annotated[Literal["openai", "anthropic"], Choice("openai", "anthropic")] = "openai"
    """"openai" is what Ollama, llama.cpp, vLLM and gateways speak, too."""
    base_url: Annotated[str | None, Text("a URL that begins with http:// or https://", r"https?://\S+")] = None
    model: Annotated[str | None, Text()] = None
    api_key_env: Annotated[str | None, Text("a name of an environment variable", r"[A-Za-z_][A-Za-z0-9_]*")] = None
    api_key_file: Annotated[Path | None, AbsolutePath()] = None
    """A file with the key alone, which no other user can read; used if `api_key_env` is not set."""
    timeout_s: Seconds = 120
    """Seconds without a word of the model after which it is given up."""
    max_tokens: Count = 4096
    """Limit of one answer of the model."""

    def asks(self, _name: str) -> tuple[bool | None, str]:
        """See Section."""
        return self.model is not None, "api"

    def packages(self) -> Collection[str]:
        """See Section."""
        return (self.api,)

    def secrets(self) -> Iterator[tuple[str, Path]]:
        """See Section."""
        if self.api_key_file is not None:
            yield "[ask] api_key_file", self.api_key_file

    def reads(self) -> Iterator[tuple[Path, str, bool]]:
        """See Section."""
        if self.model is not None and self.api_key_file is not None:
            yield self.api_key_file, "[ask] api_key_file", False

    def sockets(self, config: "Config") -> Iterator[tuple[str, str, int | None]]:
        """See Section: jobs may ask the model."""
        if self.model is not None and config.hcp.serve is not False:
            url = urlsplit(self.base_url or "https:")
            yield "inet", "[ask] base_url, for job.plan", url.port or (80 if url.scheme == "http" else 443)
