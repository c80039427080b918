"""Build methods: how a variant can be made. Each is a row of methods.toml, or of the user's torchtailor.toml."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from torchtailor.catalog.schema import Strict

# The names of torchtailor's own.
WHEEL = "wheel"
SOURCE = "source"
NIX = "nix"


class Basis(Enum):
    """What a method starts from, which decides the variants that it can make."""

    WHEEL = "wheel"  # the official wheel: what its code runs on
    SOURCE = "source"  # PyTorch's sources: what the CUDA toolkit compiles for
    RECIPE = "recipe"  # a Nix recipe: what releases have recipes for


class WorkflowNeeds(Strict, frozen=True, kw_only=True):
    """What a job of a workflow needs to build with a method."""

    minutes: Annotated[int, Meta(description="Until a job is stopped.", ge=1)] = 120
    extras: Annotated[tuple[str, ...], Meta(description="Extras of torchtailor.")] = ()
    packages: Annotated[tuple[str, ...], Meta(description="Other Python packages, such as the method's own.")] = ()
    apt: Annotated[tuple[str, ...], Meta(description="Debian packages.")] = ()
    options: Annotated[tuple[str, ...], Meta(description="Options of `build`.")] = ()


class Method(Strict, frozen=True, kw_only=True):
    """A build method."""

    name: Annotated[str, Meta(description="As --via takes it.", pattern="^[a-z][a-z0-9-]*$")]
    basis: Annotated[Basis, Meta(description="What it starts from, which decides the variants that it can make.")]
    phrase: Annotated[str, Meta(description='The end of a sentence: "PyTorch 2.10 ... built from source".')]
    gain: Annotated[str, Meta(description="Why to choose it; {alone} stands for what it is made for.")]
    minutes: Annotated[int, Meta(description="What a build takes; the quickest is recommended.", ge=1)]
    backend: Annotated[
        str, Meta(description="The class that plans and builds: module:Class.", pattern=r"^[\w.]+:[A-Za-z_]\w*$")
    ]
    workflow: Annotated[WorkflowNeeds, Meta(description="What jobs of `torchtailor ci` need.")] = WorkflowNeeds()

    def gain_for(self, alone: str) -> str:
        """Why to choose it, for what it is made for alone."""
        return self.gain.replace("{alone}", alone)
