"""The pages of the documentation: in the package where it is installed, in `docs` where it is a checkout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from torchtailor.core.errors import EnvironmentProblem, NoMatchError

_LINK = re.compile(r"\[([^\]]+)\]\(([a-z0-9-]+)\.md(?:#[^)]*)?\)")
# The page that covers a command without one of its own.
_COVERED_BY = {
    "matrix": "variants",
    "diff": "sizes",
    "restore": "in-place",
    "record": "workload",
    "trace": "workload",
    "packs": "image-packs",
    "run": "workload",
    "install": "build",
    "history": "build",
    "cache": "build",
    "help": "commands",
}
_MARKER = re.compile(r"<!-- /?generated[^>]*-->\n?")


@dataclass(frozen=True, slots=True)
class Page:
    """One page; its topic is the name of its file."""

    topic: str
    text: str

    @property
    def title(self) -> str:
        heading = next((line for line in self.text.splitlines() if line.startswith("# ")), self.topic)
        return heading.removeprefix("# ").replace("`", "")

    def for_terminal(self) -> str:
        """A link to another page is the command that shows it."""
        return _LINK.sub(_as_command, _MARKER.sub("", self.text))


def _as_command(link: re.Match[str]) -> str:
    text, topic = link.groups()
    command = f"`torchtailor help {topic}`"
    return command if text in (topic, f"{topic}.md") else f"{text} ({command})"


def pages() -> tuple[Page, ...]:
    """All pages, by topic."""
    found = sorted((item for item in _folder().iterdir() if item.name.endswith(".md")), key=lambda item: item.name)
    return tuple(Page(item.name.removesuffix(".md"), item.read_text("utf-8")) for item in found)


def find_page(topic: str) -> Page:
    """The page of a topic or of a command, in any case, with or without `.md`."""
    known = {page.topic: page for page in pages()}
    name = topic.lower().removesuffix(".md").removeprefix("docs/")
    name = _COVERED_BY.get(name, name)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean `torchtailor help {near[0]}`?" if near else "`torchtailor help` lists the pages."
        raise NoMatchError(f"There is no page {topic!r}.", hint)
    return known[name]


def _folder() -> Traversable:
    installed = files("torchtailor") / "docs"
    checkout = Path(__file__).resolve().parents[3] / "docs"
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    raise EnvironmentProblem("This installation has no documentation pages.", "Install torchtailor again.")
