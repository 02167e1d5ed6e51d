"""`hearth ask`: words to a plan that is shown, decided by a person, run as one task, and explained.

The model's session is a conversation, which can only read and prepare plans. What a person decides is sent in a second
session. Words of the model and of devices pass `common.clean`: a terminal does not act on them.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from attrs import evolve

from hearth._util.ids import new_id
from hearth.ask.backends import model_for
from hearth.ask.transcript import Transcript
from hearth.cli import common
from hearth.cli.ask_replay import replay
from hearth.cli.asking import Asking
from hearth.cli.common import Options, interruptible, standard
from hearth.cli.tasks import Reference, hold
from hearth.config.model import load_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hearth.ask.backends import Model
    from hearth.config.ask import AskConfig


SENT: Final = """\
hearth ask sends to {where} (model {name}):
  your words, the names and arguments of the tools that you may use here, the results of what the model reads
  (levels, sensors, and what devices, files and programs say), and the outcome of the plans that run.
It sends no keys but the one for the model, and nothing that is not part of a conversation. This is said once."""


@click.command()
@click.argument("words", nargs=-1)
@click.option("--config", metavar="FILE", help="The hearth.toml with [ask]; else that of the user, or of /etc/hearth.")
@click.option("--model", metavar="NAME", help="Another model than that of [ask].")
@click.option("--base-url", metavar="URL", help="Another endpoint than that of [ask].")
@click.option(
    "--yes-up-to", "yes", type=click.IntRange(0, 3), default=0, metavar="RISK", help="Do not ask up to this risk."
)
@click.option("--dry-run", is_flag=True, help="Show the plan, and run nothing.")
@click.option("--wait", "wait_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait for another's approval.")
@click.option("--hold", "hold_s", type=click.FloatRange(min=0), metavar="SECONDS", help="Keep the session afterwards.")
@click.option("--transcript", type=click.Path(path_type=Path), metavar="FILE", help="Where the transcript goes.")
@click.option("--replay", type=click.Path(path_type=Path), metavar="FILE", help="Replay a transcript on a simulator.")
@click.option("--board", default="sim", metavar="NAME", help="With --replay: the simulated board.")
@standard
def ask(options: Options, words: Sequence[str], **given: Any) -> int:
    """Ask in WORDS for what shall be read or done; without WORDS, have a conversation.

    A language model reads what it needs and proposes a plan. You see each step with the state before and after, and
    decide. The plan runs as one task. The model is that of [ask] in hearth.toml; there is none by default.

    --yes-up-to stands for your answer, where the policy and the daemon ask for none: a plan that needs a person is
    never run by it. The session ends with the command, and outputs that it drove go to their safe state; --hold keeps
    them. Exits with 1 if nothing was answered, the plan was not approved, or its task failed.
    """
    if given["replay"] is not None:
        if words:
            raise click.UsageError("a replay has its words in the transcript; leave WORDS out")
        return interruptible(lambda: replay(options, given["replay"], given["board"], given["transcript"]))
    if not words and (options.json or not sys.stdin.isatty()):
        raise click.UsageError("say what to do: hearth ask WORDS; a conversation needs a terminal")
    config = _ask_config(given)
    model = model_for(config)
    path = given["transcript"] or _state_dir() / f"{_now()}-{new_id()}.jsonl"
    _say_what_is_sent(options, model)

    async def work() -> int:
        async with common.connected(options) as client:
            asking = Asking(options, client.open_session, model, Transcript(path), given["yes"], given["dry_run"])
            asking.wait_ms = int((given["wait_s"] or 0) * 1000)
            async with asking.opened(at=_now()):
                if not words:
                    from hearth.cli.ask_conversation import converse

                    return await converse(asking, _state_dir())
                code = await asking.one_shot(" ".join(words))
                if given["hold_s"] is not None and asking.plans.done:
                    task = Reference(asking.planner.session.session_id, asking.plans.done[-1][1].task_id)
                    await hold(client, task, given["hold_s"])
                return code

    return interruptible(work)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def _state_dir() -> Path:
    """Return the person's own directory, for root too: XDG's."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "hearth" / "ask"


def _ask_config(given: Mapping[str, Any]) -> AskConfig:
    """Return [ask] with the options over it. Raises ConfigError."""
    path = given["config"]
    if path is None:
        base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111  may have no home
        places = [Path(base) / "hearth" / "hearth.toml", Path("/etc/hearth/hearth.toml")]
        path = next((place for place in places if os.access(place, os.R_OK)), None)
    over = {name: given[name] for name in ("model", "base_url") if given[name] is not None}
    section: AskConfig = load_config(None if path is None else Path(path), any_owner=True).ask
    return evolve(section, **over)


def _say_what_is_sent(options: Options, model: Model) -> None:
    """Say what goes to this endpoint, the first time; on a terminal, ask. Raises click.Abort, OSError."""
    told = _state_dir() / "told"
    line = f"{model.where} {model.name}"
    if told.exists() and line in told.read_text("utf-8").splitlines():
        return
    click.echo(common.clean(SENT.format(where=model.where, name=model.name)), err=True)
    if sys.stdin.isatty() and not options.json:
        click.confirm("Go on?", default=True, abort=True, err=True)
    told.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with told.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
