"""A command group that imports a command's module only when that command runs, so that ``--help`` is instant."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup


class Entry(NamedTuple):
    """Where a command lives: a module and in it a function (one command) or a `typer.Typer` (a group)."""

    module: str
    attribute: str
    help: str


class LazyGroup(TyperGroup):
    """Looks names up in `entries`; help text of the list comes from there, that of a command from the command."""

    entries: dict[str, Entry]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        found = getattr(import_module(entry.module), entry.attribute)
        if not isinstance(found, typer.Typer):
            single = new_app()
            single.command(name=cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self.entries.items()])


def new_app(**options: Any) -> typer.Typer:
    """A Typer app as all of ours are: plain help (rich costs more than the rest of ``--help``), our own errors."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
