"""Packs: all that was moved out of libraries is there and whole, nothing foreign is in them, and the hook is ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from torchtailor.catalog import Catalog, TorchArch
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.gpucode.fatbin import Image
from torchtailor.code.gpucode.policy import Policy
from torchtailor.code.gpucode.targets import Targets
from torchtailor.core.disk import hash_file
from torchtailor.core.errors import EnvironmentProblem
from torchtailor.core.format import counted, human_bytes
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.verification.result import Check, Level
from torchtailor.verification.static.cuts import cut_record
from torchtailor.verification.static.read import LibraryFacts
from torchtailor.workload.hook import HOOK_NAME, HookKind, hook_library

_SHOWN = 3


def pack_checks(artifact: Artifact, libraries: Sequence[LibraryFacts], catalog: Catalog) -> Iterator[Check]:
    """Nothing where no code was moved to packs."""
    moved = [facts for facts in libraries if facts.packed.containers]
    paged = [facts for facts in libraries if facts.pages]
    if moved:
        yield _whole(artifact, moved)
        yield _nothing_foreign(artifact, moved, catalog)
    if paged:
        yield _pages(artifact, paged)
    if moved or paged:
        yield _hook([*moved, *(facts for facts in paged if facts not in moved)], libraries)


def _whole(artifact: Artifact, moved: Sequence[LibraryFacts]) -> Check:
    name = "packs"
    damaged = list(dict.fromkeys(problem for facts in moved for problem in facts.packed.problems))
    missing = {facts.file.short_name: facts.packed.missing for facts in moved if facts.packed.missing}
    without = [facts for facts in moved if _made_without(artifact, facts)]
    if damaged:
        return Check.of(Level.STATIC, name, False, "; ".join(damaged[:_SHOWN]), damaged=damaged)
    if missing and len(without) == len(moved):
        reason = "what the workload does not use was left out (--no-pack): other programs fail with CUDA's own error"
        return Check.not_applicable(Level.STATIC, name, reason, missing=missing)
    if missing and any(_is_split(artifact, facts) for facts in moved):
        named = next(filter(None, (_package(artifact, facts) for facts in moved)), "torch")
        reason = (
            "its GPU code is in separate packages, and none of them is present: install them with the "
            f"extra for the GPU, such as {named}[sm90], or verify the wheels of both together"
        )
        return Check.of(Level.STATIC, name, False, reason, missing=missing)
    if missing:
        shown = ", ".join(f"{library} ({number})" for library, number in list(missing.items())[:_SHOWN])
        reason = f"containers that were moved to packs are in none: {shown}; set TORCHTAILOR_PACK to their folder"
        return Check.of(Level.STATIC, name, False, reason, missing=missing)
    containers = sum(facts.packed.containers for facts in moved)
    size = human_bytes(sum(facts.packed.stored for facts in moved))
    where = counted(len(moved), "library", "libraries")
    reason = (
        f"{'the 1 container' if containers == 1 else f'all {containers} containers'} that {where} moved"
        f" {'is' if containers == 1 else 'are'} in packs, {size}, and their checksums agree"
    )
    return Check.of(Level.STATIC, name, True, reason, containers=containers, libraries=len(moved))


def _pages(artifact: Artifact, paged: Sequence[LibraryFacts]) -> Check:
    """The pages that were cut out of libraries are in packs, and each library is with them what it was."""
    name = "pages"
    wrong = {facts.file.short_name: facts.pages.problem for facts in paged if facts.pages and facts.pages.problem}
    missing = [facts for facts in paged if facts.pages and facts.pages.missing]
    if wrong:
        shown = "; ".join(f"{library}: {problem}" for library, problem in list(wrong.items())[:_SHOWN])
        return Check.of(Level.STATIC, name, False, shown, damaged=wrong)
    if missing and all(_made_without(artifact, facts) for facts in missing):
        reason = "pages that the workload did not touch were left out (--no-pack): what needs them ends with a sentence"
        names = [facts.file.short_name for facts in missing]
        return Check.not_applicable(Level.STATIC, name, reason, missing=names)
    if missing:
        names = [facts.file.short_name for facts in missing]
        reason = f"no pack has the pages of {', '.join(names[:_SHOWN])}; set TORCHTAILOR_PACK to the folder of packs"
        return Check.of(Level.STATIC, name, False, reason, missing=names)
    cold = human_bytes(sum(facts.pages.cold for facts in paged if facts.pages))
    where = counted(len(paged), "library", "libraries")
    reason = f"{cold} of {where} are in packs, and with them each is what it was, byte for byte"
    return Check.of(Level.STATIC, name, True, reason, libraries=len(paged))


def _is_split(artifact: Artifact, facts: LibraryFacts) -> bool:
    record = cut_record(artifact, facts)
    return record is not None and record.split


def _package(artifact: Artifact, facts: LibraryFacts) -> str:
    """The name of the package of a library that was split; empty where it is of a plain folder."""
    record = cut_record(artifact, facts)
    name, dash, _ = record.owner.partition("-") if record and record.split else ("", "", "")
    return canonicalize_name(name) if dash else ""


def _made_without(artifact: Artifact, facts: LibraryFacts) -> bool:
    record = cut_record(artifact, facts)
    workload = record.manifest.get("policy", {}).get("workload", {}) if record else {}
    return workload.get("pack") is False


def _nothing_foreign(artifact: Artifact, moved: Sequence[LibraryFacts], catalog: Catalog) -> Check:
    name = "packs: nothing foreign"
    foreign: list[str] = []
    for facts in moved:
        record = cut_record(artifact, facts)
        whole = record.policy(catalog) if record else None
        labels = set()
        for target, images in _by_target(facts).items():
            policy = _policy_for(target, whole) if target and whole else whole
            labels |= {image.label for image in images if policy and not policy.allows(image)}
        foreign += [f"{facts.file.short_name} ({label})" for label in sorted(labels)]
    if foreign:
        reason = f"code that the target cannot use is in packs: {', '.join(foreign[:_SHOWN])}"
        return Check.of(Level.STATIC, name, False, reason, foreign=foreign)
    return Check.of(Level.STATIC, name, True, "all code in them is for the target")


def _by_target(facts: LibraryFacts) -> dict[str, list[Image]]:
    """What is in packs, by the GPUs that a split made them for."""
    images: dict[str, list[Image]] = {}
    for packed in facts.packed.images:
        images.setdefault(packed.target, []).append(packed.image)
    return images


def _policy_for(target: str, policy: Policy) -> Policy:
    """`target` is the label of the GPUs, which are several in the packs of a folder: `sm80.sm90`."""
    names = target.split(".")
    archs = tuple(TorchArch(gpu) for gpu in policy.rules.gpus if gpu.sm in names)
    return replace(policy, targets=Targets(archs))


def _hook(moved: Sequence[LibraryFacts], libraries: Sequence[LibraryFacts]) -> Check:
    name = "hook"
    unhooked = [facts.file.short_name for facts in moved if facts.elf and HOOK_NAME not in facts.elf.needed]
    if unhooked:
        reason = f"code was moved out of libraries that do not ask for the hook: {', '.join(unhooked[:_SHOWN])}"
        return Check.of(Level.STATIC, name, False, reason, libraries=unhooked)
    hooks = [facts for facts in libraries if facts.file.short_name == HOOK_NAME]
    if not hooks:
        return Check.not_applicable(Level.STATIC, name, f"{HOOK_NAME} is not in what was given")
    try:
        machines = {facts.elf.machine for facts in hooks if facts.elf}
        own = {
            machine.arch: hash_file(hook_library(machine, HookKind.NEEDED))
            for machine in ElfMachine
            if machine.arch in machines
        }
    except EnvironmentProblem as error:
        return Check.not_applicable(Level.STATIC, name, error.message)
    other = [facts.name for facts in hooks if facts.elf and own.get(facts.elf.machine) != facts.sha256]
    if other:
        reason = f"{other[0]} is not the hook of this version of torchtailor; cut the stock again"
        return Check.of(Level.STATIC, name, False, reason, hooks=other)
    return Check.of(Level.STATIC, name, True, f"{counted(len(hooks), 'copy', 'copies')}, as this version ships it")
