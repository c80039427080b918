"""Gives programs the compile caches that came with their environment: a copy for each user, made when it is needed.

A copy of this file lies beside the caches, and a .pth file in site-packages runs it: it needs nothing but Python, and
is quick to start. What is in site-packages stays as it was packed; programs write to the copy, and start with it.
"""

# ruff: noqa: PTH100, PTH103, PTH104, PTH111, PTH112, PTH113, PTH118, PTH120, PTH123

from __future__ import annotations

import os
import stat
import sys

CACHES = {"VARIABLE": "folder"}  # replaced where it is written
PACKED = "caches.zip"  # replaced, too
_NEEDED_BY = ("torch", "triton", "flashinfer", "vllm")


def _own_folder() -> str:
    """A folder of this user alone: what is in it is run. Empty where there can be none."""
    temporary = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"torchtailor-{os.geteuid()}")
    for parent in (os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), temporary):
        place = os.path.join(parent, "torchtailor-compiled")
        try:
            os.makedirs(parent, 0o700, exist_ok=True)
            os.makedirs(place, 0o700, exist_ok=True)
            kinds = [os.lstat(place), *([os.lstat(parent)] if parent == temporary else ())]
        except OSError:
            continue
        own = all(stat.S_ISDIR(one.st_mode) and one.st_uid == os.geteuid() and not one.st_mode & 0o22 for one in kinds)
        if own and os.access(place, os.W_OK):
            return place
    return ""


class _Unpacker:
    """A finder that finds nothing: before torch is imported, it puts the caches where the variables say."""

    def __init__(self, packed: str, place: str) -> None:
        self.packed, self.place = packed, place

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _NEEDED_BY and self in sys.meta_path:
            sys.meta_path.remove(self)
            try:
                self.unpack()
            except Exception as error:  # a program runs without caches, too
                sys.stderr.write(f"torchtailor: the compile caches in {self.packed} are not used: {error}\n")

    def unpack(self) -> None:
        from tempfile import TemporaryDirectory
        from zipfile import ZipFile

        if os.path.isdir(self.place):
            return
        with TemporaryDirectory(dir=os.path.dirname(self.place)) as folder, ZipFile(self.packed) as packed:
            made = os.path.join(folder, "caches")
            packed.extractall(made)
            old, new = packed.comment, os.fsencode(self.place)
            for name in packed.namelist():
                if name.endswith(".json"):  # some of Triton's have the paths of others
                    with open(os.path.join(made, name), "r+b") as file:
                        text = file.read()
                        if old in text:
                            file.seek(0)
                            file.truncate()
                            file.write(text.replace(old, new))
            try:
                os.rename(made, self.place)
            except OSError:
                if not os.path.isdir(self.place):  # else another process was quicker
                    raise


def _start(folder: str) -> None:
    packed, own = os.path.join(folder, PACKED), _own_folder()
    if own and os.path.isfile(packed):
        place = os.path.join(own, PACKED.partition(".")[0])
        places = {name: os.path.join(place, inside) for name, inside in CACHES.items()}
        for name, inside in places.items():  # what the user or a parent process chose stays
            os.environ.setdefault(name, inside)
        if not os.path.isdir(place) and any(os.environ[name] == inside for name, inside in places.items()):
            sys.meta_path.insert(0, _Unpacker(packed, place))


if __name__ == "torchtailor_caches":
    _start(os.path.dirname(os.path.abspath(__file__)))
