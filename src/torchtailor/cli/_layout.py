"""How `--help` looks: plain text, options in groups, and words for values instead of Python's types."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_ARGUMENTS, _REST, _OUTPUT = "Arguments", "Options", "Output"
# Of every command that has them, listed last.
_OUTPUT_OPTIONS = frozenset(
    f"--{name}"
    for name in [
        "out",
        "output",
        "dry-run",
        "json",
        "csv",
        "markdown",
        "format",
        "junit",
        "report",
        "html",
        "plot",
        "plain",
        "quiet",
        "verbose",
    ]
)


class GroupedCommand(TyperCommand):
    """A command whose options are listed by `rich_help_panel`, which typer itself does only with rich's boxes."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)


class GroupedGroup(TyperGroup):
    """A group of such commands."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter)
        self.format_commands(ctx, formatter)


def _write_groups(command: Any, ctx: Any, formatter: Any) -> None:
    groups: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: [], _REST: []}
    last: list[tuple[str, str]] = []
    methods = any("--via" in parameter.opts for parameter in command.get_params(ctx))
    for parameter in command.get_params(ctx):
        if (word := _value_word(parameter)) is not None:
            parameter.metavar = word
        if (row := parameter.get_help_record(ctx)) is None:
            continue
        title = _title(parameter)
        if not methods:  # a title names the method where there is a choice
            title = title.partition(" (--via ")[0]
        rows = last if title == _OUTPUT else groups.setdefault(title, [])
        rows.append((_name(row[0], argument=title == _ARGUMENTS), row[1]))
    groups[_OUTPUT] = last
    width = max((len(name) for rows in groups.values() for name, _ in rows), default=0)
    for title, rows in groups.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{min(width, 26)}}", text) for name, text in rows], col_max=28)


def _title(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return _ARGUMENTS
    if _OUTPUT_OPTIONS.intersection(parameter.opts):
        return _OUTPUT
    return str(getattr(parameter, "rich_help_panel", None) or _REST)


def _name(shown: str, *, argument: bool) -> str:
    """`PATH <list[Path]>` is `PATH`: what an argument is, its text says."""
    return shown.partition(" <")[0] if argument else shown


def _value_word(parameter: Any) -> str | None:
    """What stands for an option's value: its choices, N, PATH, or the option's own name."""
    if parameter.param_type_name != "option" or parameter.metavar is not None or parameter.is_flag or parameter.count:
        return None
    kind = parameter.type_descriptor
    if kind.is_choice:
        return "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices or ())
    if kind.is_ranged or kind.annotation in (int, float):
        return "N"
    if kind.is_path:
        return "PATH"
    longest: str = max(parameter.opts, key=len)
    return longest.lstrip("-").upper()
