"""Tar archives of the tests, unpacked on every supported Python."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def unpack_tar(archive: Path | bytes, folder: Path) -> Path:
    """The folder, with all of the archive in it."""
    with tarfile.open(fileobj=io.BytesIO(archive if isinstance(archive, bytes) else archive.read_bytes())) as tar:
        if hasattr(tarfile, "data_filter"):  # not in Python 3.11.2 of Debian 12
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)
    return folder
