"""`torchtailor help`: the pages of the documentation, which are installed with the package."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A page, such as licences, or a command; none: the list.")
    ] = None,
) -> None:
    """Show a page of the documentation, or the list of pages."""
    from torchtailor.cli import COMMANDS
    from torchtailor.cli._pages import Page, find_page, pages
    from torchtailor.cli.ui import err, out, table

    if topic is None:
        rows = [(page.topic, page.title) for page in pages()]
        out().print(table(("topic", "page"), rows))
        out().print(
            "`torchtailor help TOPIC` shows a page; `torchtailor COMMAND --help` a command's options.", markup=False
        )
        return
    page: Page = find_page(topic)
    if out().is_terminal:
        from rich.markdown import Markdown

        out().print(Markdown(page.for_terminal()))
    else:
        typer.echo(page.text, nl=False)
    if topic in COMMANDS and topic != page.topic:
        options = f"`torchtailor {topic} --help`"
        err().print(f"{topic} has no page of its own; {options} lists its options.", markup=False)
