"""What a torch wheel says about itself: METADATA and torch/version.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchtailor.advise.host.torches import assigned_texts
from torchtailor.catalog import Dotted
from torchtailor.catalog.releases import label_of
from torchtailor.core.errors import BadInputError
from torchtailor.fetch.metadata import Facts
from torchtailor.fetch.resolve import needs
from torchtailor.fetch.target import Target
from torchtailor.fetch.upkeep.remote import ListedWheel

_NOT_TORCH = "It is not a wheel of torch."
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PIN = re.compile(r"[0-9]{1,9}(\.[0-9a-z]{1,20})*")  # a version that a row of the catalog can have
_PINNED = {
    "cuda-toolkit": "toolkit",
    "nvidia-cudnn": "cudnn",
    "nvidia-nccl": "nccl",
    "triton": "triton",
}


@dataclass(frozen=True, slots=True)
class TorchFacts:
    """Facts about one torch wheel, and the file they were read from."""

    wheel: str
    cuda: Dotted | None
    git_commit: str
    toolkit: str = ""
    cudnn: str = ""
    nccl: str = ""
    triton: str = ""

    @property
    def label(self) -> str:
        return label_of(self.cuda)


def read_facts(wheel: ListedWheel, python: str, arch: str) -> TorchFacts:
    """Read the two files by range requests."""
    version = assigned_texts(wheel.text("torch/version.py"))
    cuda = version.get("cuda")
    commit = version.get("git_version", "")
    if cuda is not None and not re.fullmatch(Dotted.pattern, cuda):
        raise BadInputError(f"{wheel.name}: its version.py names no version of CUDA: {cuda[:40]!r}.", _NOT_TORCH)
    metadata = next((name for name in wheel.members if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", name)), None)
    if metadata is None:
        raise BadInputError(f"{wheel.name} has no METADATA.", _NOT_TORCH)
    facts = Facts(wheel.text(metadata).encode(), wheel.size)
    return TorchFacts(
        wheel=wheel.name,
        cuda=Dotted(cuda) if cuda else None,
        git_commit=commit if _COMMIT.fullmatch(commit) else "",
        **_pins(needs(facts, Target(python, arch))),
    )


def _pins(requirements: Iterable[Requirement]) -> dict[str, str]:
    """`nvidia-cudnn-cu13==9.26.0.51` -> cudnn; of `triton~=3.9.0`, what all versions that match share."""
    pins: dict[str, str] = {}
    for requirement in requirements:
        name = _PINNED.get(re.sub(r"-cu\d+$", "", canonicalize_name(requirement.name)))
        for item in requirement.specifier:
            if not name or not _PIN.fullmatch(item.version):
                continue
            if item.operator in ("==", "==="):
                pins[name] = item.version
            elif item.operator == "~=":
                pins[name] = item.version.rpartition(".")[0]
    return pins
