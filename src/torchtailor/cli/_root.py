"""All commands as one group, for shell completion; each is imported when it is completed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from torchtailor.cli import COMMANDS

PROGRAM = "torchtailor"


def root(load: Callable[[str], Any]) -> Any:
    """The group of all commands; `load` imports one."""

    class Commands(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return load(cmd_name) if cmd_name in COMMANDS else None

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            from typer.core import CompletionItem  # type: ignore[attr-defined]

            names = [name for name in COMMANDS if name.startswith(incomplete)]
            return [CompletionItem(name, help=COMMANDS[name].summary) for name in names]

    app = typer.Typer(name=PROGRAM, cls=Commands, add_completion=True, rich_markup_mode=None)
    app.callback()(lambda: None)
    return typer.main.get_command(app)
