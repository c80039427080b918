"""Wheels in which one thing is wrong that no reader of wheels may accept."""

from __future__ import annotations

import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.unit.wheels.builder import build_wheel

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"


@dataclass(frozen=True)
class Hostile:
    """How to make a wheel, and what must be said of it."""

    build: Callable[[Path], Path]
    said: str

    def make(self, folder: Path) -> Path:
        name, content = _built(self.build)
        (folder / name).write_bytes(content)
        return folder / name


@cache
def _built(build: Callable[[Path], Path]) -> tuple[str, bytes]:
    """Once: packing the bombs takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        return wheel.name, wheel.read_bytes()


def with_library(
    folder: Path, files: Mapping[str, bytes] | None = None, *, modes: Mapping[str, int] | None = None
) -> Path:
    """A wheel that is sound but for these files; its first member is a library."""
    return build_wheel(
        folder, {"demo/libx.so": (FIXTURES / "raw.so").read_bytes(), **(files or {})}, modes=modes, name="demo"
    )


def lie(field: int, size: int, change: Callable[[int], int], *, local: bool = False) -> Callable[[bytearray], None]:
    """A change of one field in the first central (or local) header."""

    def apply(data: bytearray) -> None:
        at = data.index(b"PK\x03\x04" if local else b"PK\x01\x02") + field
        value = int.from_bytes(data[at : at + size], "little")
        data[at : at + size] = change(value).to_bytes(size, "little")

    return apply


def lying(apply: Callable[[bytearray], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = with_library(folder, {"demo/b.py": b"1"})
        data = bytearray(path.read_bytes())
        apply(data)
        path.write_bytes(data)
        return path

    return make


def twice(folder: Path) -> Path:
    path = with_library(folder)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("demo/libx.so", b"2")
    return path


def overlapping(data: bytearray) -> None:
    """Two names for the same packed bytes: the trick of the bombs that need no nesting."""
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 4)
    data[second + 42 : second + 46] = data[first + 42 : first + 46]  # offset of the local header


# refused when the wheel is opened
TABLES = {
    "parent": Hostile(lambda folder: with_library(folder, {"../evil.so": b"1"}), "outside the wheel"),
    "absolute": Hostile(lambda folder: with_library(folder, {"/etc/evil.so": b"1"}), "outside the wheel"),
    "inner parent": Hostile(lambda folder: with_library(folder, {"demo/../../evil.so": b"1"}), "outside the wheel"),
    "backslash": Hostile(lambda folder: with_library(folder, {"demo\\..\\evil.so": b"1"}), "outside the wheel"),
    "second spelling": Hostile(lambda folder: with_library(folder, {"demo//a.so": b"1"}), "second spelling"),
    "twice": Hostile(twice, "twice"),
    "file and folder": Hostile(lambda folder: with_library(folder, {"demo/libx.so/a": b"1"}), "file and as a folder"),
    "symbolic link": Hostile(
        lambda folder: with_library(folder, {"demo/a": b"/etc/passwd"}, modes={"demo/a": stat.S_IFLNK | 0o777}),
        "symbolic link",
    ),
    "device": Hostile(
        lambda folder: with_library(folder, {"demo/a": b""}, modes={"demo/a": stat.S_IFCHR | 0o666}),
        "neither a file nor a folder",
    ),
    "bomb": Hostile(lambda folder: with_library(folder, {"demo/zeros": bytes(80 << 20)}), "unpacks from"),
    "many small bombs": Hostile(
        lambda folder: with_library(folder, {f"demo/{number}": bytes(20 << 20) for number in range(8)}), "unpacks from"
    ),
    "overlapping": Hostile(lying(overlapping), "overlaps|another name"),
    "encrypted": Hostile(lying(lie(8, 2, lambda flags: flags | 1)), "encrypted"),
    "other method": Hostile(lying(lie(10, 2, lambda method: 12)), "method 12"),
    "wrong place": Hostile(lying(lie(42, 4, lambda offset: offset + 1)), "table says|another name|overlaps"),
    "too long": Hostile(lying(lie(20, 4, lambda size: size + (1 << 30))), "ends after|overlaps"),
    "other name": Hostile(lying(lie(30, 1, lambda letter: letter ^ 1, local=True)), "another name"),
    "longer name": Hostile(lying(lie(26, 2, lambda size: size + 1, local=True)), "another name"),
    "cut short": Hostile(lying(lambda data: data.__delitem__(slice(-1, None))), "not a readable wheel"),
    "empty": Hostile(lying(lambda data: data.clear()), "not a readable wheel"),
}
# refused when the library is read
LIBRARIES = {
    "checksum": Hostile(lying(lie(16, 4, lambda crc: crc ^ 1)), "checksum"),
    "more than said": Hostile(lying(lie(24, 4, lambda size: size - 1)), "more than"),
    "less than said": Hostile(lying(lie(24, 4, lambda size: size + 1)), "too early"),
}
