"""Wheels and installed packages: RECORD and hashes, the Python they are for, what they require."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchtailor.core.errors import BadInputError
from torchtailor.core.format import counted
from torchtailor.trees.artifact.artifact import Artifact
from torchtailor.trees.artifact.installed import metadata_in, unreadable_in
from torchtailor.trees.wheels.archive import WheelArchive
from torchtailor.trees.wheels.distribution import WheelDistribution
from torchtailor.trees.wheels.metadata import Metadata
from torchtailor.trees.wheels.name import WheelName
from torchtailor.trees.wheels.record import FileHash, UnusualRecordError
from torchtailor.verification.result import Check, CheckOutcome, Level
from torchtailor.verification.static.cuts import cut_records
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.read import LibraryFacts

_EXTENSION = re.compile(r"\.cpython-3(?P<minor>\d+)(?P<free>t?)-(?P<arch>x86_64|aarch64)-linux-gnu\.so$")
_ARCHS = ("x86_64", "aarch64")
_SHOWN = 4


def package_checks(artifact: Artifact, libraries: Sequence[LibraryFacts], expected: Expectation) -> Iterator[Check]:
    """All lines about packaging."""
    packages: dict[str, Metadata] = {}
    if artifact.wheels:
        read = [_wheel(wheel, libraries) for wheel in artifact.wheels]
        packages = {metadata.name: metadata for _, metadata in read if metadata}
        yield from _together([check for check, _ in read])
    else:
        yield _installed_record(artifact, libraries)
        packages = {package.metadata.name: package.metadata for package in artifact.installed}
    yield from _tailored(artifact, libraries)
    yield _version(packages, expected)
    yield _python(artifact, libraries, expected)
    yield _arch(artifact, libraries, expected)
    yield _requirements(artifact, packages, libraries, expected)


def _wheel(path: Path, libraries: Sequence[LibraryFacts]) -> tuple[Check, Metadata | None]:
    """RECORD against every byte; the libraries were compared when they were unpacked."""
    name = f"RECORD and hashes: {path.name.split('-', 1)[0]}"
    own = (facts.file for facts in libraries if facts.file.owner == path.name)
    done = {file.member.name for file in own if file.member}
    try:
        with WheelArchive(path) as archive:
            wheel = WheelDistribution.of(archive)
            for member in archive.files:
                if member.name not in done:
                    for _ in wheel.checked_chunks(member):
                        pass
            count = sum(1 for _ in archive.files)
    except UnusualRecordError as error:  # its publisher's fault: the bytes may be right, and nobody can tell
        return Check.not_applicable(Level.STATIC, name, f"{error.message}: hashes cannot be compared"), None
    except BadInputError as error:
        return Check.of(Level.STATIC, name, False, error.message), None
    broken = [facts.problem for facts in libraries if facts.file.owner == path.name and _differs(facts)]
    if broken:
        return Check.of(Level.STATIC, name, False, broken[0]), wheel.metadata
    reason = f"all {count} files of {path.name} are in RECORD and have its hashes"
    return Check.of(Level.STATIC, name, True, reason, wheel=path.name, files=count), wheel.metadata


def _together(checks: Sequence[Check]) -> Iterator[Check]:
    """Every failure as its own line; what passed, where it is more than one wheel, as one."""
    yield from (check for check in checks if check.outcome is not CheckOutcome.PASS)
    passed = [check for check in checks if check.outcome is CheckOutcome.PASS]
    if len(passed) == 1:
        yield passed[0]
    elif passed:
        files = sum(check.details["files"] for check in passed)
        reason = f"all {files} files of {len(passed)} wheels are in RECORD and have its hashes"
        wheels = {check.details["wheel"]: check.details["files"] for check in passed}
        yield Check.of(Level.STATIC, "RECORD and hashes", True, reason, wheels=wheels, files=files)


def _differs(facts: LibraryFacts) -> bool:
    return bool(facts.problem) and not facts.sha256 and "RECORD" in facts.problem


def _installed_record(artifact: Artifact, libraries: Sequence[LibraryFacts]) -> Check:
    name = "RECORD and hashes"
    installed = artifact.installed
    if not installed:
        return Check.not_applicable(Level.STATIC, name, f"this {artifact.kind.value} has no installed packages")
    hashes = ((facts.file.path.stat(), facts.sha256) for facts in libraries if facts.sha256)
    digests = {(status.st_dev, status.st_ino): sha256 for status, sha256 in hashes}
    wrong: list[str] = []
    files = hashed = 0
    for package in installed:
        for row, status in package.rows_on_disk():
            files += 1
            if status is None:
                outside = not Path(os.path.normpath(package.dist_info.parent / row.path)).is_relative_to(artifact.path)
                if not row.path.endswith(".pyc") and not outside:  # scripts beside a copy of site-packages
                    wrong.append(f"{row.path} is not there")
            elif row.size is not None and status.st_size != row.size:
                wrong.append(f"{row.path} is {status.st_size} bytes long and should be {row.size}")
            elif not (digest := digests.get((status.st_dev, status.st_ino))):
                continue
            elif row.hash and row.hash.algorithm == "sha256":
                hashed += 1
                if str(row.hash) != str(FileHash.from_hex(digest)):
                    wrong.append(f"{row.path} differs from its hash in RECORD")
    if wrong:
        reason = f"{len(wrong)} of {files} files differ from RECORD: {'; '.join(wrong[:_SHOWN])}"
        return Check.of(Level.STATIC, name, False, reason, files=wrong[:100])
    reason = (
        f"{counted(files, 'file')} of {counted(len(installed), 'package')} are there with their sizes, "
        f"{counted(hashed, 'library', 'libraries')} with their hashes"
    )
    unusual = [text for place in artifact.site_packages for text in unreadable_in(place)]
    reason += "".join(f"; {text.rstrip('.').replace('is left alone', 'is not checked')}" for text in unusual[:_SHOWN])
    return Check.of(Level.STATIC, name, True, reason)


def _tailored(artifact: Artifact, libraries: Sequence[LibraryFacts]) -> Iterator[Check]:
    """What torchtailor wrote down when it cut is what is there."""
    if not artifact.tailored:
        return
    # A copy of an environment that was cut before has two manifests of a library; the file is one of theirs.
    claims: dict[tuple[str, str], set[str]] = {}
    for record in cut_records(artifact):
        if record.sha256:
            claims.setdefault((record.owner if artifact.wheels else "", record.library), set()).add(record.sha256)
    found = {(facts.file.owner, facts.name): facts.sha256 for facts in libraries}
    wrong = [
        f"{where[1]} is {'not the file that was written' if found.get(where) else 'not there'}"
        for where, digests in claims.items()
        if found.get(where) not in digests
    ]
    right = len(claims) - len(wrong)
    name = "manifest"
    if wrong:
        yield Check.of(Level.STATIC, name, False, "; ".join(wrong[:_SHOWN]), wrong=wrong)
    else:
        reason = "1 library is the file" if right == 1 else f"{right} libraries are the files"
        reason += " that torchtailor wrote"
        yield Check.of(Level.STATIC, name, True, reason)


def _version(packages: Mapping[str, Metadata], expected: Expectation) -> Check:
    """The PyTorch is the one of the variant."""
    name, torch = "PyTorch version", packages.get("torch")
    if torch is None or not expected.torch:
        why = "there is no torch" if torch is None else f"torch {torch.version}; no variant was named"
        return Check.not_applicable(Level.STATIC, name, why)
    same = Version(torch.version).base_version == Version(expected.torch).base_version
    reason = f"torch {torch.version}" + ("" if same else f", and the variant is of {expected.torch}")
    return Check.of(Level.STATIC, name, same, reason, found=torch.version, expected=expected.torch)


def _python(artifact: Artifact, libraries: Sequence[LibraryFacts], expected: Expectation) -> Check:
    """The Python that extension modules were compiled for, the wheel's tag and the variant agree."""
    name = "Python ABI"
    modules = {facts.name: match for facts in libraries if (match := _EXTENSION.search(facts.name))}
    tags = {wheel.name: WheelName.parse(wheel) for wheel in artifact.wheels}
    wrong = []
    for facts in libraries:
        match, tag = modules.get(facts.name), tags.get(facts.file.owner)
        if not match or not tag or tag.abi in ("abi3", "none"):
            continue
        built = f"cp3{match['minor']}{match['free']}"
        if built not in tag.abi.split("."):
            wrong.append(f"{facts.file.short_name} is for {built}, and the wheel's tag is {tag.abi}")
    versions = sorted({f"3.{match['minor']}{match['free']}" for match in modules.values()}, key=_version_key)
    if expected.python:
        wrong += [
            f"{tag.distribution} is for {tag.abi}, and the variant for Python {expected.python}"
            for tag in tags.values()
            if tag.abi.startswith("cp3") and not _tag_fits(tag, expected.python)
        ]
        if not tags and versions and expected.python not in versions:
            wrong.append(f"the modules are for Python {', '.join(versions)}, and the variant for {expected.python}")
    if wrong:
        return Check.of(Level.STATIC, name, False, "; ".join(wrong[:_SHOWN]), wrong=wrong)
    if not modules:
        return Check.not_applicable(Level.STATIC, name, "there are no extension modules of one Python version")
    what = "1 extension module is" if len(modules) == 1 else f"{len(modules)} extension modules are"
    reason = f"{what} for Python {', '.join(versions)}"
    agreeing = [what for what, there in (("the wheels' tags", tags), ("the variant", expected.python)) if there]
    return Check.of(Level.STATIC, name, True, reason + (f", as in {' and '.join(agreeing)}" if agreeing else ""))


def _version_key(version: str) -> tuple[int, str]:
    digits = re.sub(r"\D", "", version[2:])
    return int(digits or 0), version


def _tag_fits(tag: WheelName, python: str) -> bool:
    return f"cp{python.replace('.', '')}" in tag.abi.split(".")


def _arch(artifact: Artifact, libraries: Sequence[LibraryFacts], expected: Expectation) -> Check:
    """The processor of the libraries, of the wheels' tags and of the variant."""
    name = "processor"
    tagged = {w.name: next((a for a in _ARCHS if WheelName.parse(w).platform.endswith(a)), "") for w in artifact.wheels}
    wrong, archs = [], set()
    for facts in libraries:
        if facts.elf is None:
            continue
        archs.add(facts.elf.machine)
        wanted = tagged.get(facts.file.owner) or expected.arch
        if wanted and facts.elf.machine != wanted:
            wrong.append(f"{facts.file.short_name} is for {facts.elf.machine}, not {wanted}")
    for wheel, arch in tagged.items():
        if arch and expected.arch and arch != expected.arch:
            wrong.append(f"{wheel} is for {arch}, and the variant for {expected.arch}")
    if wrong:
        return Check.of(Level.STATIC, name, False, "; ".join(wrong[:_SHOWN]), wrong=wrong)
    if not archs:
        return Check.not_applicable(Level.STATIC, name, "there are no libraries")
    return Check.of(Level.STATIC, name, True, f"all libraries are for {', '.join(sorted(archs))}")


def _requirements(
    artifact: Artifact, packages: Mapping[str, Metadata], libraries: Sequence[LibraryFacts], expected: Expectation
) -> Check:
    """What the packages require is included, in a version they accept."""
    name = "dependencies"
    if not packages:
        return Check.not_applicable(Level.STATIC, name, "there are no packages")
    missing, found = [], 0
    environment = _environment(libraries, expected)
    installed = (metadata for site in artifact.site_packages for metadata in metadata_in(site))
    included = {metadata.name: metadata for metadata in installed} | dict(packages)
    for owner, requirement in _wanted(packages, included, environment):
        there = included.get(canonicalize_name(requirement.name))
        if there is None:
            missing.append(f"{requirement.name}{requirement.specifier} (for {owner})")
        elif not requirement.specifier.contains(Version(there.version), prereleases=True):
            missing.append(f"{requirement} (for {owner}); {there.version} is included")
        else:
            found += 1
    if missing and not artifact.complete:
        more = ", ..." if len(missing) > _SHOWN else ""
        reason = f"{counted(len(missing), 'package')} not included: {', '.join(missing[:_SHOWN])}{more}"
        return Check.not_applicable(Level.STATIC, name, reason, missing=missing)
    if missing:
        reason = f"{counted(len(missing), 'requirement')} not met: {', '.join(missing[:_SHOWN])}"
        return Check.of(Level.STATIC, name, False, reason, missing=missing)
    return Check.of(Level.STATIC, name, True, _met(found, len(packages)))


def _met(found: int, packages: int) -> str:
    if not found:
        return f"{counted(packages, 'package')}: no requirements"
    what = "the one requirement" if found == 1 else f"all {found} requirements"
    return f"{what} of {counted(packages, 'package')} {'is' if found == 1 else 'are'} met"


def _wanted(
    packages: Mapping[str, Metadata], included: Mapping[str, Metadata], environment: dict[str, str]
) -> Iterator[tuple[str, Requirement]]:
    """What each package requires, with the extras that they ask of what is included."""
    waiting = [(name, "") for name in packages]
    seen, given = set(waiting), set()
    while waiting:
        name, extra = waiting.pop(0)
        for text in included[name].requires:
            requirement = _requirement(text, environment | {"extra": extra})
            if requirement is None or (name, text) in given:
                continue
            given.add((name, text))
            yield name, requirement
            other = canonicalize_name(requirement.name)
            asked = {(other, wanted) for wanted in requirement.extras if other in included} - seen
            seen |= asked
            waiting += sorted(asked)


def _requirement(text: str, environment: dict[str, str]) -> Requirement | None:
    """A line of METADATA, where it can be read and applies."""
    try:
        requirement = Requirement(text)
    except ValueError:  # InvalidRequirement, or thousands of digits
        return None
    return requirement if requirement.marker is None or requirement.marker.evaluate(environment) else None


def _environment(libraries: Sequence[LibraryFacts], expected: Expectation) -> dict[str, str]:
    """The machine the packages are for, as markers see it; not the one we run on."""
    minors = [match["minor"] for facts in libraries if (match := _EXTENSION.search(facts.name))]
    own = f"3.{max(minors, key=int)}" if minors else ""
    python = expected.python.rstrip("t") or own
    archs = [facts.elf.machine for facts in libraries if facts.elf]
    environment: dict[str, str] = {key: str(value) for key, value in default_environment().items()}
    environment |= {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    if python:
        environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    if expected.arch or archs:
        environment["platform_machine"] = expected.arch or max(set(archs), key=archs.count)
    return environment
