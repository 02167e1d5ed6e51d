"""Groups of commands that are imported when they are invoked, and `hearth` itself, which knows the old names too.

A group is declared by a table: title of a section -> name -> module and attribute of the click command, and its line in
the help, which is shown without an import. So `hearth --help` costs little more than `import click`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hearth._util.text import suggest
from hearth.cli import renamed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from click.shell_completion import CompletionItem

    Sections = Mapping[str, Mapping[str, tuple[str, str]]]


class LazyGroup(click.Group):
    """A group whose commands are imported when they are invoked."""

    def __init__(self, *args: Any, sections: Sections, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = sections
        self.places = {name: place for section in sections.values() for name, place in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the sections."""
        del ctx
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; None for an unknown name."""
        del ctx
        return loaded(self.places[cmd_name][0]) if cmd_name in self.places else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises click.UsageError, with the nearest name or a cure."""
        name = args[0]
        if name not in self.places and name[:1] not in ("-", "") and not ctx.resilient_parsing:
            # A tool's name has a dot, and no command's has.
            cure = f"a tool is run by `hearth run {name}`" if "." in name else self.near(ctx, name)
            ctx.fail(f"there is no command {name!r}; {cure or f'`{ctx.command_path} --help` lists them'}")
        return super().resolve_command(ctx, args)

    def near(self, ctx: click.Context, name: str) -> str:
        """Return "did you mean NAME?" for an unknown name; "" where none is near."""
        del ctx
        return suggest(name, self.places)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands below the titles of their sections, without blank lines: all of it fits on one screen."""
        del ctx
        longest = max(map(len, self.places))
        formatter.write_paragraph()
        for title, section in self.sections.items():
            formatter.write_heading(title)
            with formatter.indentation():
                formatter.write_dl([(name.ljust(longest), text) for name, (_, text) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions; pressing TAB imports no command."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text) for name, (_, text) in self.places.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


class Hearth(LazyGroup):
    """The command `hearth`: an old name of a command runs, and stderr names the new one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See LazyGroup."""
        old = renamed.find(args)
        # TAB behind `tasks` asks for the commands of the group, also where the word alone is an old name.
        if old is None or (ctx.resilient_parsing and old.words in self.places):
            return super().resolve_command(ctx, args)
        if old.hint and not ctx.resilient_parsing:
            click.echo(f"note: `hearth {old.words}` is now `hearth {old.new}`", err=True)
        rest = args[len(old.words.split()) :]
        if old.command is not None:
            return old.words, loaded(old.command), rest
        return super().resolve_command(ctx, [*old.new.split(), *rest])

    def near(self, ctx: click.Context, name: str) -> str:
        """See LazyGroup; commands in the groups are found too, each with its group."""
        paths = {place: [place] for place in self.places}
        for place in self.places:
            group = self.get_command(ctx, place)
            for inner in group.list_commands(ctx) if isinstance(group, click.Group) else ():
                if inner not in self.places:
                    paths.setdefault(inner, []).append(f"{place} {inner}")
        return suggest(name, paths, show=lambda found: ", ".join(paths[found]))


def loaded(place: str) -> click.Command:
    """Import and return the command at `module:attribute`."""
    module, _, attribute = place.partition(":")
    command: click.Command = getattr(import_module(module), attribute)
    return command
