"""The tools of the simulated board, and a keeper over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hearth.actors.agentcard import CardSources, PublishedCard
from hearth.config.agentcard import CardConfig
from hearth.config.exec import ExecTemplate
from hearth.config.listen import HttpConfig
from hearth.config.model import ToolsConfig
from hearth.drivers.boards import load_profile, open_board
from hearth.drivers.tools import build_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    from hearth.tools import Tool


@pytest.fixture(scope="session")
def tools() -> list[Tool]:
    """Every shipped tool, the opt-in ones too, with a program that its operator describes by somebody's name."""
    config = ToolsConfig(
        enable=("proc.exec", "proc.signal"),
        exec={"lamp": ExecTemplate(argv=("/bin/lamp",), description="Ada Lovelace's lamp")},
    )
    board = open_board(load_profile("sim"))
    return build_tools(board, enable=config.enable, disable=(), exec_templates=config.exec)


@pytest.fixture
def keeper(tmp_path, tools) -> Callable[..., PublishedCard]:
    """Makes keepers of the file in this test's directory, as one run of the daemon after another."""

    def make(*, path=tmp_path / "agent-card.json", tools=tools, card=None, http=None, **more: object) -> PublishedCard:
        sources = CardSources(
            tools=tools, card=card or CardConfig(), http=http or HttpConfig(), board="sim", **more
        )  # fmt: skip
        return PublishedCard(path, sources)

    return make
