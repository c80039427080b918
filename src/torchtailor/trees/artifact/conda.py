"""Conda packages, which are read and never cut: what is in one, unpacked for as long as it is looked at."""

from __future__ import annotations

import bz2
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

import zstandard

from torchtailor.core.errors import BadInputError, EnvironmentProblem
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, is_conda, open_artifact

_FETCH_AGAIN = "Fetch it again and compare its hash with the channel's."


@contextmanager
def opened_artifact(path: Path) -> Iterator[Artifact]:
    """What a path is, for as long as the block runs; the files of a conda package are in a folder meanwhile."""
    if not (is_conda(path) and path.is_file()):
        yield open_artifact(path)
        return
    with tempfile.TemporaryDirectory(prefix="torchtailor-conda-") as folder:
        _unpack(path, Path(folder))
        yield Artifact(Path(folder), ArtifactKind.FOLDER, label=str(path))


def _unpack(path: Path, folder: Path) -> None:
    try:
        with _files(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                source = archive.extractfile(member) if member.isreg() else None
                if source is None or name.is_absolute() or ".." in name.parts:
                    continue  # a link, or none of the package's own files
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
    except (tarfile.TarError, zipfile.BadZipFile, zstandard.ZstdError, EOFError, NotImplementedError) as error:
        raise BadInputError(f"{path} is a damaged conda package: {error}.", _FETCH_AGAIN) from error
    except OSError as error:
        if error.errno is None:  # of a stream that is no bzip2
            raise BadInputError(f"{path} is a damaged conda package: {error}.", _FETCH_AGAIN) from error
        raise EnvironmentProblem(
            f"{path} could not be unpacked to {folder}: {error.strerror}.",
            "Set TMPDIR to a folder on a disk with room for what is in it.",
        ) from error


@contextmanager
def _files(path: Path) -> Iterator[IO[bytes]]:
    """The tar stream of the package's files."""
    with ExitStack() as stack:
        if path.suffix != ".conda":
            yield stack.enter_context(bz2.open(path))
            return
        archive = stack.enter_context(zipfile.ZipFile(path))
        inner = [name for name in archive.namelist() if name.startswith("pkg-") and name.endswith(".tar.zst")]
        if len(inner) != 1:
            raise BadInputError(f"{path} is no conda package: it has no pkg-NAME.tar.zst.", _FETCH_AGAIN)
        packed = stack.enter_context(archive.open(inner[0]))
        yield stack.enter_context(zstandard.ZstdDecompressor().stream_reader(packed))
