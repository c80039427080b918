"""Which package of the system a library belongs to, its version, and the licence that goes with a copy of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchtailor.building.source.bundling.tables import load_bundle_tables

_COMMON = re.compile(r"/usr/share/common-licenses/([A-Za-z0-9][A-Za-z0-9.+-]*[A-Za-z0-9])")
_GPL = re.compile(r"(?<![A-Za-z])(?:A?GPL)", re.IGNORECASE)  # not the LGPL
_EXCEPTION = re.compile(r"\bwith\b", re.IGNORECASE)
_STRUCTURED = re.compile(r"^Format(?:-Specification)?:.*(?:copyright-format|DEP-?5)", re.MULTILINE | re.IGNORECASE)
REFERS = "its text, which refers to "  # free text: which licence is the library's, only a reader can tell
_MOST_TEXTS = 50  # files of licences of one package


@dataclass(frozen=True)
class LibraryOwner:
    """The package that a library was installed by."""

    package: str
    version: str
    licence: str  # as the package says it; empty where it does not in a form that can be read
    texts: Mapping[str, bytes] = field(default_factory=dict)  # by the path below the folder of licences

    @property
    def copyleft(self) -> bool:
        """Whether its licence covers what it is bundled with: the GPL without an exception or another choice."""
        return is_gpl(self.licence)


def is_gpl(licence: str) -> bool:
    """Whether every choice that a licence offers is the GPL, without an exception."""
    choices = re.split(r"\s+or\s+|\s*[|/]\s*", licence, flags=re.IGNORECASE)
    return bool(licence) and all(
        any(_GPL.search(part) and not _EXCEPTION.search(part) for part in re.split(r"\s+and\s+|[,;]", choice))
        for choice in choices
    )


def find_owner(library: Path) -> LibraryOwner | None:
    """The package of a library; None where no package manager of this system knows it."""
    for program, find in _MANAGERS.items():
        if shutil.which(program) and (owner := find(library)) is not None:
            return owner
    return None


def _of_debian(library: Path) -> LibraryOwner | None:
    for path in _spellings(library):
        listed = _ask("dpkg-query", "--search", str(path))
        names = [line.partition(": ")[0] for line in listed.splitlines() if not line.startswith("diversion ")]
        if not names:
            continue
        package = names[0].partition(",")[0].strip()
        version = _ask("dpkg-query", "--show", "--showformat", "${Version}", package)
        name = package.partition(":")[0]
        text = _read(Path("/usr/share/doc", name, "copyright"))
        if text is None:
            return LibraryOwner(name, version, "")
        words = text.decode("utf-8", "replace")
        texts = {f"{name}/copyright": text}
        for common in sorted(set(_COMMON.findall(words))):
            # Debian's files refer to texts that other systems do not have
            if (whole := _read(Path("/usr/share/common-licenses", common))) is not None:
                texts[f"common-licenses/{common}"] = whole
        return LibraryOwner(name, version, debian_licence(words), texts)
    return None


def _spellings(library: Path) -> Iterator[Path]:
    """A library's path as the package may list it: from before /lib and /usr/lib were one folder, or after."""
    yield library
    text = str(library)
    yield Path(text.removeprefix("/usr") if text.startswith("/usr/lib") else f"/usr{text}")


def debian_licence(text: str) -> str:
    """The licence of a Debian copyright file, as it names it; empty where that cannot be read."""
    if _STRUCTURED.search(text[:1000]):
        found = dict(_stanzas(text))
        if "*" in found:
            return found["*"]
        return " and ".join(dict.fromkeys(name for files, name in found.items() if not files.startswith("debian/")))
    if known := load_bundle_tables().licence_of(text):
        return known
    named = sorted(set(_COMMON.findall(text)))
    return f"{REFERS}{' / '.join(named)}" if named else ""


def _stanzas(text: str) -> Iterator[tuple[str, str]]:
    """The licence of each group of files."""
    for paragraph in re.split(r"\n[ \t]*\n", text):
        files = re.search(r"^Files:[ \t]*(.*(?:\n[ \t]+.*)*)", paragraph, re.MULTILINE)
        licence = re.search(r"^License:[ \t]*(\S.*)$", paragraph, re.MULTILINE)
        if files and licence:
            for name in files[1].split():
                yield name, licence[1].strip()


def _of_rpm(library: Path) -> LibraryOwner | None:
    for path in _spellings(library):
        said = _ask(
            "rpm", "--query", "--file", "--queryformat", "%{NAME}\t%{VERSION}-%{RELEASE}\t%{LICENSE}\n", str(path)
        )
        fields = said.splitlines()[0].split("\t") if said else []
        if len(fields) != 3:
            continue
        name, version, licence = fields
        listed = _ask("rpm", "--query", "--licensefiles", name).splitlines()
        found = {f"{name}/{Path(line).name}": _read(Path(line)) for line in sorted(listed)[:_MOST_TEXTS]}
        return LibraryOwner(name, version, licence, {place: text for place, text in found.items() if text is not None})
    return None


_MANAGERS: Mapping[str, Callable[[Path], LibraryOwner | None]] = {"dpkg-query": _of_debian, "rpm": _of_rpm}


def _ask(*line: str) -> str:
    """What a package manager says; nothing where it fails."""
    try:
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
