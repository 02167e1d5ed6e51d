"""Words to a plan: a language model reads, and proposes what shall run; the daemon and a person decide.

The model has two tools: `read`, which runs a step of effective risk 0 at once, and `propose_plan`, which becomes a
prepared plan. It cannot do more: its session is a conversation (`session.open`), which the daemon holds to that. The
packages of the two kinds of endpoint are the extra `hearthd[ask]`; they are imported when a model is asked.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from hearth.errors import ConfigError, HearthError

if TYPE_CHECKING:
    from hearth.config.ask import AskConfig


class ModelError(HearthError):
    """The model, or its endpoint, did not do its part. Nothing was run by that."""


def require_package(api: str) -> None:
    """Raise ConfigError with the cure if the package that speaks this API is missing."""
    if find_spec(api) is None:
        raise ConfigError(f"[ask] api: the package {api} is not installed; pip install 'hearthd[ask]'")


def require_model(config: AskConfig) -> str:
    """Return the name of the configured model. Raises ConfigError with the cure if none is configured."""
    if config.model is None:
        cure = 'write [ask] with model and base_url into hearth.toml, such as model = "qwen3:8b" for Ollama at '
        raise ConfigError(f"no model is configured: {cure}http://127.0.0.1:11434/v1")
    return config.model
