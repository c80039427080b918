"""Driver, CUDA, JetPack, Python and system of a text, and messages that say what is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import msgspec

from torchtailor.advise.host.tegra import parse_l4t, tegra_table
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.schema import Dotted
from torchtailor.core.tables import read_table

_DRIVERS = (
    re.compile(r"driver[ _]version\s*:\s*(\d{3}\.\d+(?:\.\d+)?)", re.IGNORECASE),
    re.compile(r"NVRM version:.{0,80}?Kernel Module(?: for \w+)?\s+(\d{3}\.\d+(?:\.\d+)?)"),
    re.compile(r"driver: nvidia v: (\d{3}\.\d+(?:\.\d+)?)"),
)
_CELL = re.compile(r"[3-9]\d\d\.\d+(\.\d+)?")
_LONG_CELL = re.compile(r"[3-9]\d\d\.\d+\.\d+")
_SMI = re.compile(r"NVIDIA-SMI (\d{3}\.\d+(?:\.\d+)?)\s+Driver Version: (\d{3}\.\d+(?:\.\d+)?)")
_CUDA = re.compile(r"CUDA(?: UMD)?[ _]version\s*:\s*(\d+\.\d+)", re.IGNORECASE)
_OLD_DRIVER = re.compile(r"driver on your system is too old \(found version (\d{4,6})\)")
_PYTHON = re.compile(r"(?:\bPython (?:version: )?|/python|\\Python|\bcp)(3)\.?(\d{1,2})(?!\d)", re.IGNORECASE)
_L4T = re.compile(r"\bL4T[ :]+(\d{2}\.\d+(?:\.\d+)?)")
_JETPACK = re.compile(r"\bJetPack[ :]+(\d(?:\.\d+)*)", re.IGNORECASE)
_GLIBC = re.compile(r"(?:GLIBC|glibc|GNU libc)\D{0,12}(2\.\d+)")
_WINDOWS = re.compile(r"Microsoft Windows|\bWindows[ -]1[01]\b|win_amd64|Driver-Model|\bWDDM\b|[A-Z]:\\Users\\")


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an error message, and what it means."""

    phrase: str
    text: str


class _MessageFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table in data/messages.toml."""

    message: tuple[Message, ...]


@cache
def _message_file() -> _MessageFile:
    return read_table("site", "messages.toml", _MessageFile)


def explained(lines: Sequence[str]) -> list[str]:
    """What the error messages in the text mean."""
    whole = "\n".join(lines).lower()
    return [one.text for one in _message_file().message if one.phrase.lower() in whole]


def read_driver(catalog: Catalog, lines: Sequence[str], notes: list[str]) -> str | None:
    """The driver's version, or the branch that a message about its CUDA means."""
    for pattern in _DRIVERS:
        for line in lines:
            if match := pattern.search(line):
                return match[1]
    return _in_table(lines) or _by_cuda(catalog, lines, notes)


def _in_table(lines: Sequence[str]) -> str | None:
    """From the CSV of nvidia-smi: its column of that name; without names, a cell that can be nothing else."""
    column = -1
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")] if "," in line else []
        named = [number for number, cell in enumerate(cells) if cell.lower() == "driver_version"]
        if named:
            column = named[0]
            continue
        found = [cell for number, cell in enumerate(cells) if _CELL.fullmatch(cell) and column in (-1, number)]
        if column < 0:
            # watts and clocks look like a driver of two parts
            long = [cell for cell in found if _LONG_CELL.fullmatch(cell)]
            found = long or [cell for cell in found if not cell.endswith(".00")]
        if len(found) == 1:
            return found[0]
    return None


def _by_cuda(catalog: Catalog, lines: Sequence[str], notes: list[str]) -> str | None:
    old = next((match for line in lines if (match := _OLD_DRIVER.search(line))), None)
    if old is None:
        return None
    number = int(old[1])
    cuda = Dotted(f"{number // 1000}.{number % 1000 // 10}")
    branches = [driver for driver in catalog.drivers.values() if driver.cuda is not None and driver.cuda == cuda]
    if not branches:
        return None
    newest = str(branches[-1].newest)
    notes.append(
        f"The message says that the driver runs CUDA {cuda}: that is branch R{branches[-1].branch}, taken as "
        f"{newest}. nvidia-smi shows the exact version."
    )
    return newest


def read_cuda(lines: Sequence[str]) -> str | None:
    """The CUDA version that the driver supports, as nvidia-smi shows it."""
    return next((match[1] for line in lines if (match := _CUDA.search(line))), None)


def read_python(lines: Sequence[str]) -> str | None:
    found = next((match for line in lines if (match := _PYTHON.search(line))), None)
    return f"{found[1]}.{found[2]}" if found else None


def read_jetpack(lines: Sequence[str]) -> str | None:
    """By /etc/nv_tegra_release, or as jetson_release prints it."""
    for line in lines:
        match = _L4T.search(line)
        row = None
        if l4t := parse_l4t(line) or (match[1] if match else None):
            row = tegra_table().jetpack_of(l4t)
        elif named := _JETPACK.search(line):
            row = tegra_table().by_jetpack(named[1])
        if row is not None:
            return row.jetpack
    return None


def read_system(lines: Sequence[str]) -> str | None:
    """A system of the form, where the text says that it is not a usual Linux."""
    for line in lines:
        versions = _SMI.search(line)
        if "microsoft-standard-wsl" in line.lower() or (versions and versions[1] != versions[2]):
            return "wsl"  # nvidia-smi is Linux's there, and the driver that of Windows
    if any(_WINDOWS.search(line) for line in lines):
        return "windows"
    for line in lines:
        if re.search(r"\bdarwin\b|\bmacos\b", line.lower()):
            return "macos"
        if re.search(r"\bmusl\b|alpine linux", line.lower()):
            return "musl"
        glibc = _GLIBC.search(line)
        if glibc and Dotted(glibc[1]) < Dotted("2.28"):
            return "old"
    return None
