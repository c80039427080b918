"""A plan as the text of a workflow: the template of its system, filled in."""

from __future__ import annotations

import json
import shlex
from functools import cache
from typing import Any

from torchtailor.catalog import WHEEL
from torchtailor.core import origin
from torchtailor.core.templates import template_environment
from torchtailor.publish.ci.plan import CiLogin, CiPlan, check_word
from torchtailor.publish.ci.tables import ci_tables


def render_ci(plan: CiPlan, path: str) -> str:
    """The text of a workflow; `path` is where the repository has it. The same plan gives the same text."""
    check_word(path)
    template = _environment().get_template(f"{plan.system.value}.yml.j2")
    return str(
        template.render(
            plan=plan,
            options=plan.options,
            path=path,
            command=shlex.join(words_of(plan, path)),
            arguments="\n".join((*words_of(plan, path)[2:], *_package(plan))),
            actions=ci_tables().action,
            **_actions(),
        )
    )


def words_of(plan: CiPlan, path: str) -> list[str]:
    """The command that writes this workflow to a path."""
    options = plan.options
    words = ["torchtailor", "ci", plan.system.value, *options.selectors]
    valued = {
        "--via": options.method if options.method != WHEEL else "",
        "--release": ",".join(options.releases),
        "--python": ",".join(options.pythons),
        "--cuda": options.cuda,
        "--build-options": shlex.join(options.build_options),
        "--per": options.division.value if options.division else "",
        "--level": options.level.value if options.level.value != "all" else "",
        "--on": options.on,
        "--store": options.store,
        "--objects": options.objects,
        "--publish": options.publish,
        "--schedule": options.schedule,
        "--branch": options.branch,
        "--timeout": str(options.minutes or ""),
        "--package": options.package,
        "--login": options.login.value if options.login is not CiLogin.OIDC else "",
        "-o": path if path != plan.row.path else "",
    }
    words += [word for name, value in valued.items() if value for word in (name, value)]
    words += [word for text in options.runners for word in ("--runner", text)]
    words += [word for text in options.gpu_runners for word in ("--gpu-runner", text)]
    flags = {"--nvidia": options.nvidia, "--publish-nvidia": options.publish_nvidia, "--no-cache": not options.cache}
    return [*words, *(name for name, given in flags.items() if given)]


def _package(plan: CiPlan) -> tuple[str, ...]:
    """What the jobs install, said where the command does not: there it may not be known."""
    return () if plan.options.package else ("--package", origin.pinned())


@cache
def _environment() -> Any:
    environment = template_environment(
        "torchtailor.publish.ci", extra="ci", purpose="Workflows need", trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["yaml"] = _yaml
    return environment


def _yaml(value: object) -> str:
    """A value as YAML in one line: JSON is YAML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _actions() -> dict[str, str]:
    return {f"use_{name}": str(action) for name, action in ci_tables().action.items()}
