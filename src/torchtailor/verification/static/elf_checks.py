"""ELF health: what the loader would refuse, what would not be found, which glibc it takes."""

from __future__ import annotations

import os
import platform
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from torchtailor.catalog import Dotted
from torchtailor.core.format import counted
from torchtailor.core.tables import read_table
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind
from torchtailor.trees.wheels.distribution import required_packages
from torchtailor.trees.wheels.name import WheelName
from torchtailor.verification.result import Check, CheckOutcome, Level
from torchtailor.verification.static.cuts import dropped_files
from torchtailor.verification.static.elf_facts import EXECUTABLE_STACK, ElfFacts
from torchtailor.verification.static.read import LibraryFacts
from torchtailor.wheelhouse.entry import WheelStep
from torchtailor.workload.hook import HOOK_NAME

_LEGACY_TAGS = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_\w+")
_SHOWN = 4


def elf_checks(
    artifact: Artifact, libraries: Sequence[LibraryFacts], stocks: Sequence[LibraryFacts] = ()
) -> Iterator[Check]:
    """All lines about the files as the loader sees them; what stock's library of the same name has too is named so."""
    yield from _health(libraries, {facts.name: facts.elf for facts in stocks if facts.elf})
    if libraries:
        yield _needed(artifact, libraries)
    yield from _glibc(artifact, libraries)


def _health(libraries: Sequence[LibraryFacts], stocks: Mapping[str, ElfFacts]) -> Iterator[Check]:
    sound = 0
    for facts in libraries:
        problems = [facts.problem] if facts.problem else list(facts.elf.problems) if facts.elf else []
        if facts.foreign:
            continue
        stock = stocks.get(facts.name)
        if problems == [EXECUTABLE_STACK] and stock and EXECUTABLE_STACK in stock.problems:
            reason = f"{EXECUTABLE_STACK}; that is stock's own, its library of this name asks for the same"
            yield Check.of(Level.STATIC, f"ELF: {facts.file.short_name}", True, reason, library=facts.name)
        elif problems:
            yield Check.of(
                Level.STATIC, f"ELF: {facts.file.short_name}", False, "; ".join(problems), library=facts.name
            )
        else:
            sound += 1
    if sound:
        reason = f"{counted(sound, 'library', 'libraries')}: headers agree, nothing is both writable and executable"
        yield Check.of(Level.STATIC, "ELF health", True, reason, libraries=sound)
    elif not libraries:
        yield Check.not_applicable(Level.STATIC, "ELF health", "there are no libraries")


@cache
def _system() -> dict[str, frozenset[str]]:
    return read_table("verification.static", "system.toml", dict[str, frozenset[str]])


def _needed(artifact: Artifact, libraries: Sequence[LibraryFacts]) -> Check:
    """Every NEEDED entry resolves: to a library of the artifact, or of the machine."""
    name = "NEEDED entries"
    system = frozenset().union(*_system().values())
    read = [(facts.name, facts.elf, facts.file.owner) for facts in libraries if facts.elf]
    places = {path for path, _, _ in read}
    sonames = {elf.soname for _, elf, _ in read} | {posixpath.basename(path) for path in places}
    alone = _not_whole(artifact)
    declared = frozenset((artifact.manifest.get("proof") or {}).get("libraries_of_the_system", ()))
    image = _names_in(artifact.path) if artifact.kind is ArtifactKind.IMAGE else frozenset()
    missing: dict[str, list[str]] = {}
    elsewhere: dict[str, list[str]] = {}
    linked: set[str] = set()
    asked = 0
    for path, elf, owner in read:
        for wanted in elf.needed:
            asked += 1
            if wanted in system or wanted in sonames or wanted.startswith("libpython3") or _on_disk(elf, wanted):
                continue
            if wanted in image:
                continue
            if wanted in declared or (artifact.kind is ArtifactKind.ENVIRONMENT and _of_this_machine(wanted)):
                linked.add(wanted)
                continue
            target = elsewhere if owner in alone or _may_be_elsewhere(artifact, path, elf, places) else missing
            target.setdefault(wanted, []).append(posixpath.basename(path))
    unresolved = {*missing, *elsewhere}
    left_out = {posixpath.basename(path) for path in dropped_files(artifact)} if unresolved else set()
    without = sorted(unresolved & left_out)
    for found in (missing, elsewhere):
        for wanted in without:
            found.pop(wanted, None)
    if missing:
        shown = ", ".join(f"{lib} (for {users[0]})" for lib, users in list(missing.items())[:_SHOWN])
        entries = "1 NEEDED entry does" if len(missing) == 1 else f"{len(missing)} NEEDED entries do"
        reason = f"{entries} not resolve: {shown}"
        return Check.of(Level.STATIC, name, False, reason, missing=missing)
    if elsewhere:
        more = ", ..." if len(elsewhere) > _SHOWN else ""
        number = counted(len(elsewhere), "library", "libraries")
        shown = f"{number} of other packages: {', '.join(list(elsewhere)[:_SHOWN])}{more}"
        if artifact.kind in (ArtifactKind.LIBRARY, ArtifactKind.FOLDER):
            return Check.not_applicable(Level.STATIC, name, f"not checked for {shown}", elsewhere=elsewhere)
        return Check.of(Level.STATIC, name, True, f"all resolve, except {shown}", elsewhere=elsewhere)
    if without:
        more = ", ..." if without[_SHOWN:] else ""
        reason = f"all resolve, except what was left out on purpose: {', '.join(without[:_SHOWN])}{more}"
        return Check.of(Level.STATIC, name, True, reason, left_out=without)
    entries = "the one NEEDED entry resolves" if asked == 1 else f"all {asked} NEEDED entries resolve"
    reason = f"{entries}, in the artifact or on the system"
    if linked:
        reason += f"; of these, not on every system: {', '.join(sorted(linked))}"
    return Check.of(Level.STATIC, name, True, reason, **({"not_everywhere": sorted(linked)} if linked else {}))


def _not_whole(artifact: Artifact) -> frozenset[str]:
    """The wheels that require packages which are not there: one alone, or some of a stack.

    NVIDIA's packages share the folder `nvidia`, so a search path inside of it may lead to a library of another.
    """
    if artifact.complete:
        return frozenset()
    there = {WheelName.parse(wheel).project for wheel in artifact.wheels}
    return frozenset(wheel.name for wheel in artifact.wheels if required_packages(wheel) - there)


@cache
def _loader_places() -> tuple[Path, ...]:
    """Where this machine's loader looks by default; ldconfig is not asked."""
    triplet = f"{platform.machine()}-linux-gnu"
    folders = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib", f"/lib/{triplet}", f"/usr/lib/{triplet}")
    return tuple(Path(folder) for folder in folders)


def _names_in(root: Path) -> frozenset[str]:
    """What an image has by name: its own system is what its libraries run on."""
    return frozenset(name for _, _, names in os.walk(root) for name in names)


def _of_this_machine(wanted: str) -> bool:
    return any((folder / wanted).exists() for folder in _loader_places())


def _on_disk(elf: ElfFacts, wanted: str) -> bool:
    """An absolute search path, as Nix writes them."""
    return any(path.startswith("/") and Path(path, wanted).exists() for path in elf.search)


def _may_be_elsewhere(artifact: Artifact, path: str, elf: ElfFacts, places: set[str]) -> bool:
    """Whether the library's own search path leaves the artifact."""
    if artifact.kind in (ArtifactKind.LIBRARY, ArtifactKind.FOLDER):
        return True
    if artifact.complete:
        return False
    own = {place.split("/", 1)[0] for place in places}
    for entry in elf.search:
        folder = entry.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", posixpath.dirname(path))
        if posixpath.normpath(folder).split("/", 1)[0] not in own:
            return True
    # torch loads its CUDA libraries by name before its own, which then need no search path
    return path.split("/", 1)[0] in ("torch", "torchvision", "torchaudio")


def _glibc(artifact: Artifact, libraries: Sequence[LibraryFacts]) -> Iterator[Check]:
    """The newest glibc symbol against what the wheel's tag promises."""
    needs = [(facts, facts.elf.glibc) for facts in libraries if facts.elf and facts.elf.glibc]
    if not needs:
        yield Check.not_applicable(Level.STATIC, "glibc", "no library uses versioned symbols of glibc")
        return
    built = {
        row["output"]["filename"]
        for row in artifact.manifest.get("wheels", ())
        if row.get("step") == WheelStep.BUILT.value
    }
    promises = {wheel: promised_glibc(WheelName.parse(wheel).platform) for wheel in artifact.wheels}
    # wheels that are installed together run where the most demanding of them does
    floor = max((promise for promise in promises.values() if promise), key=lambda p: p.parts, default=None)
    passed: list[Check] = []
    for wheel, promised in promises.items():
        inside = [(facts, glibc) for facts, glibc in needs if facts.file.owner == wheel.name and glibc]
        if not inside or promised is None or floor is None:
            continue
        oldest = floor.parts
        ours = [pair for pair in inside if pair[0].file.short_name == HOOK_NAME and pair[1].parts > oldest]
        facts, newest = max(ours or inside, key=lambda pair: pair[1].parts)
        package, library = wheel.name.split("-", 1)[0], facts.file.short_name
        check = _glibc_of(package, library, newest, promised, floor, built=wheel.name in built)
        if check.outcome is CheckOutcome.PASS:
            passed.append(check)
        else:
            yield check
    yield from _glibc_together(passed, floor)
    if not artifact.wheels:
        facts, highest = max(((f, g) for f, g in needs if g), key=lambda pair: pair[1].parts)
        yield Check.of(
            Level.STATIC,
            "glibc",
            True,
            f"runs with glibc {highest} and newer ({facts.file.short_name})",
            needs=str(highest),
        )


def _glibc_of(package: str, library: str, newest: Dotted, promised: Dotted, floor: Dotted, *, built: bool) -> Check:
    """A tag that promises too much is an error of who gave it: ours where we built the wheel, or put too new a hook
    into it; else the publisher's."""
    reason = f"needs glibc {newest} ({library}); its tag promises {promised}"
    outcome = CheckOutcome.PASS
    if newest.parts > floor.parts:
        outcome = CheckOutcome.FAIL if built or library == HOOK_NAME else CheckOutcome.NOT_APPLICABLE
        reason += f": pip installs it on systems that cannot load it, those with glibc older than {newest}"
        if library == HOOK_NAME:
            reason += "; this hook was compiled on a newer system: cut with a released torchtailor"
        elif not built:
            reason += "; the publisher's tag is wrong, which no cut changes"
    elif newest.parts > promised.parts:
        reason += f", which is wrong, but harmless: the wheels installed with it need {floor}"
    details = {"package": package, "needs": str(newest), "promises": str(promised)}
    return Check(Level.STATIC, f"glibc: {package}", outcome, reason, details)


def _glibc_together(passed: Sequence[Check], floor: Dotted | None) -> Iterator[Check]:
    """What passed, where it is more than one wheel, as one line; a wrong tag is still named."""
    if len(passed) < 2:
        yield from passed
        return
    most = max(passed, key=lambda check: Dotted(check.details["needs"]).parts)
    wrong = [c for c in passed if Dotted(c.details["needs"]).parts > Dotted(c.details["promises"]).parts]
    needs, package = most.details["needs"], most.details["package"]
    reason = f"{len(passed)} wheels need {needs} ({package}) at most; together they promise {floor}"
    for check in wrong:
        tag = check.details
        reason += f"; {tag['package']} needs {tag['needs']} and its tag promises {tag['promises']}: harmless here"
    yield Check.of(
        Level.STATIC, "glibc", True, reason, wheels={c.details["package"]: c.details["needs"] for c in passed}
    )


def promised_glibc(platform: str) -> Dotted | None:
    """The oldest glibc that a platform tag promises; None for tags that promise none."""
    found = []
    for tag in platform.split("."):
        legacy = next((glibc for name, glibc in _LEGACY_TAGS.items() if tag.startswith(f"{name}_")), None)
        match = _MANYLINUX.fullmatch(tag)
        if legacy:
            found.append(Dotted(legacy))
        elif match:
            found.append(Dotted(f"{match[1]}.{match[2]}"))
    return min(found, key=lambda version: version.parts, default=None)
