"""What this code is: its version, and a key of all of its files."""

from __future__ import annotations

from functools import cache

__version__ = "0.1.0"
# Whether the package index has torchtailor under its name. Until then messages, pages (`make docs`) and workflows
# install it from its repository at a commit: whoever takes the name could put anything there.
PUBLISHED = False


@cache
def code_key() -> str:
    """A hash of all code and data of torchtailor.

    It is part of the key of every kept result, so that those of other code are never taken.
    """
    import hashlib
    import os

    package = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120  (600 files: paths as text take half the time)
    digest = hashlib.sha256()
    for folder, folders, files in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        if folder == package and "docs" in folders:
            folders.remove("docs")  # pages for people, which only wheels have
        for name in sorted(files):
            path = f"{folder}/{name}"
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123
                content = file.read()
            digest.update(f"{path.removeprefix(package)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
