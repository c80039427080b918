"""Templates of text with braces of its own: Nix, shell, CMake, workflows."""

from __future__ import annotations

from typing import Any

from torchtailor.core.extras import need_module


def template_environment(package: str, *, extra: str, purpose: str, **settings: Any) -> Any:
    """The templates in the folder `templates` of a package; a value that is missing is an error."""
    jinja2 = need_module("jinja2", extra=extra, purpose=purpose)
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="<#",
        comment_end_string="#>",
        **settings,
    )
