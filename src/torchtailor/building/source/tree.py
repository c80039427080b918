"""Where the source comes from: a git URL with a ref, a tarball, or a folder. It is never changed, only copied."""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torchtailor.building.source.folders import Folders
from torchtailor.catalog import Capability
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.disk import copy_file, expand_home, hash_file, locked, new_folder
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError, NoMatchError
from torchtailor.core.trust import no_option
from torchtailor.core.urls import redact

OFFICIAL = "https://github.com/pytorch/pytorch.git"
_GIT = re.compile(r"(?:https?|ssh|git|file)://\S+|[^\s-]\S*@[^\s-]\S*:\S+")
_TAR = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_MARKS = ("setup.py", "CMakeLists.txt")
# What is not copied: results of the user's own builds in that folder.
_NOT_COPIED = frozenset({"build", "dist", "torch.egg-info", "__pycache__", ".mypy_cache"})


class SourceOrigin(Enum):
    """The kinds of sources."""

    GIT = "git"
    TARBALL = "tarball"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True)
class TorchSource:
    """A source as the user gives it."""

    origin: SourceOrigin
    place: str
    ref: str = ""
    commit: str = ""  # that a tarball was made of

    @classmethod
    def parse(cls, text: str | None, variant: Variant) -> TorchSource:
        """`GIT-URL@REF`, a tarball or a folder; None: the official tag of the variant's release."""
        if not text:
            return cls(SourceOrigin.GIT, OFFICIAL, f"v{variant.release.version}")
        no_option(text, "--source")
        path = expand_home(text)
        if path.is_dir():
            return cls(SourceOrigin.FOLDER, str(path.absolute()))
        if path.is_file():
            if not path.name.endswith(_TAR):
                raise BadInputError(f"{path} is not a tarball.", f"It should end with {', '.join(_TAR)}.")
            return cls(SourceOrigin.TARBALL, str(path.absolute()))
        url, ref = _split_ref(text)
        if _GIT.fullmatch(url):
            return cls(SourceOrigin.GIT, url, no_option(ref, "The ref of --source") if ref else "HEAD")
        raise NoMatchError(
            f"{text!r} does not exist, and is no git URL.",
            "Give DIR, FILE.tar.gz or https://.../pytorch.git@v2.10.0.",
        )

    @property
    def is_release(self) -> bool:
        """Whether the ref is the tag of a version, which needs no commit in its name."""
        return self.ref.startswith("v") and self.ref.count(".") >= 1

    @property
    def shown(self) -> str:
        """The place without a password in its URL."""
        return redact(self.place)

    def __str__(self) -> str:
        return f"{self.shown}@{self.ref}" if self.ref else self.shown


def _split_ref(text: str) -> tuple[str, str]:
    """A git URL and the ref behind it; an @ in front of the host belongs to a login."""
    start = text.find("/", text.index("://") + 3) if "://" in text else text.find(":")
    path, at, ref = text[start:].rpartition("@") if start >= 0 else ("", "", "")
    return (text[:start] + path, ref) if at else (text, "")


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A source tree on disk, to copy from."""

    path: Path
    version: str  # of version.txt, with the commit for trees between releases
    identity: str  # a hash of its content, for the name of the build and the manifest


def known_version(source: TorchSource) -> str | None:
    """The version of a folder; None where it is known only after the source is fetched."""
    if source.origin is not SourceOrigin.FOLDER:
        return None
    path = Path(source.place)
    _check(path, str(source))
    return _version(path, folder_commit(path))


def fetch(source: TorchSource, folders: Folders) -> SourceTree:
    """The source tree on disk; a tarball or a git ref is unpacked once and kept."""
    if source.origin is SourceOrigin.FOLDER:
        path = Path(source.place)
        _check(path, str(source))
        return SourceTree(path, _version(path, folder_commit(path)), _fingerprint(path))
    if source.origin is SourceOrigin.TARBALL:
        identity = hash_file(Path(source.place))
        commit = source.commit
    else:
        commit = remote_commit(source)
        identity = commit
    target = folders.tree(identity[:16])
    with locked(target.with_name(target.name + ".lock"), "The source"):
        if not target.is_dir():
            with new_folder(target) as stage:
                if source.origin is SourceOrigin.TARBALL:
                    _unpack(Path(source.place), stage)
                else:
                    _clone(source, commit, stage)
                _check(stage, str(source))
    return SourceTree(target, _version(target, "" if source.is_release else commit), identity)


_ARCHITECTURES = "cmake/Modules_CUDA_fix/upstream/FindCUDA/select_compute_arch.cmake"
# The pattern of a capability is anchored; the one before it only removes `+PTX`.
_SPELLING = re.compile(r'arch_name MATCHES "(?P<pattern>\^(?:[^"\\]|\\.)+)"')


def knows_gpu(tree: Path, gpu: Capability) -> bool:
    """Whether the tree's CMake accepts this GPU: sources before Blackwell reject capabilities such as 12.1."""
    try:
        found = _SPELLING.search((tree / _ARCHITECTURES).read_text("utf-8", "replace"))
    except OSError:
        return True
    if not found:
        return True
    return re.search(found["pattern"].replace("\\\\", "\\"), str(gpu)) is not None


def copy_tree(source: Path, target: Path) -> None:
    """A copy to build in, with shared blocks where the file system can; results of earlier builds are not copied."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        return set(names) & _NOT_COPIED if Path(folder) == source else set()

    try:
        shutil.copytree(source, target, symlinks=True, ignore=ignored, copy_function=_copy_file)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        # copytree continues after a failure and lists all of them, as tuples whose last item is the text.
        text = error.args[0][0][-1] if isinstance(error, shutil.Error) else str(error)
        raise EnvironmentProblem(
            f"The source cannot be copied: {re.sub(r'^.Errno [0-9]+. ', '', text)}.",
            "Check that file, or free some space, or set --work to another disk.",
        ) from error


def _copy_file(source: str, target: str) -> str:
    copy_file(Path(source), Path(target))
    return target


def content_digest(path: Path) -> str:
    """A hash of all files of a folder, wherever it is; results of the user's own builds do not count."""
    hasher = hashlib.sha256()
    for file in source_files(path):
        hasher.update(f"{file.relative_to(path)}\0".encode(errors="surrogateescape"))
        content = os.fsencode(file.readlink()) if file.is_symlink() else hash_file(file).encode()
        hasher.update(content + b"\0")
    return hasher.hexdigest()


def source_files(path: Path) -> Iterator[Path]:
    """The files and links that a build is made of, in order."""
    for folder, folders, names in os.walk(path):
        if Path(folder) == path:
            folders[:] = [name for name in folders if name not in _NOT_COPIED and name != ".git"]
        folders.sort()
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted((*names, *links)):
            yield Path(folder) / name


def _fingerprint(path: Path) -> str:
    """Changes when any file of a folder does, so that a build is never resumed with another source."""
    hasher = hashlib.sha256(os.fsencode(path))
    for folder, folders, names in os.walk(path):
        if Path(folder) == path:
            folders[:] = [name for name in folders if name not in _NOT_COPIED and name != ".git"]
        folders.sort()
        for name in sorted(names):
            info = (Path(folder) / name).lstat()
            hasher.update(f"{folder}/{name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return hasher.hexdigest()


def _check(path: Path, named: str) -> None:
    missing = [mark for mark in _MARKS if not (path / mark).is_file()]
    if missing:
        raise BadInputError(f"{named} has no {missing[0]}: it is no PyTorch source.", "Give the folder that has it.")


def _version(path: Path, commit: str) -> str:
    """`2.10.0`, or `2.13.0a0+git1a2b3c4` between releases."""
    try:
        text = (path / "version.txt").read_text("utf-8").strip()
    except OSError as error:
        raise BadInputError(f"{path} has no version.txt: it is no PyTorch source.", "Give a PyTorch source.") from error
    if not re.fullmatch(r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?", text):
        raise BadInputError(f"version.txt of {path} holds {text!r}.", "It should hold a version such as 2.10.0.")
    return f"{text}+git{commit[:7]}" if commit and re.search(r"[a-z]", text) else text


def folder_commit(path: Path) -> str:
    """The commit that a folder has checked out; empty where it is no git repository."""
    if not (path / ".git").exists():
        return ""
    line = ["git", "-C", str(path), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=_git_environment())
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def remote_commit(source: TorchSource) -> str:
    """The commit that a ref of a git URL means now."""
    if re.fullmatch(r"[0-9a-f]{40}", source.ref):
        return source.ref
    done = _git("ls-remote", "--", source.place, source.ref, f"{source.ref}^{{}}")
    # It also lists refs that only end like this: a branch `abc/main` for `main`.
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in done.splitlines())}
    ref = source.ref
    for name in (f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", f"{ref}^{{}}", ref):
        if name in commits:
            return commits[name]
    raise NetworkError(f"{source.shown} has no {ref!r}.", "Give a tag, a branch or a full commit hash.")


def _clone(source: TorchSource, commit: str, stage: Path) -> None:
    _git("init", "-q", "--", str(stage))
    _git("-C", str(stage), "fetch", "-q", "--depth", "1", "--", source.place, commit)
    _git("-C", str(stage), "checkout", "-q", "FETCH_HEAD")
    if (stage / ".gitmodules").is_file():
        _git("-C", str(stage), "submodule", "update", "-q", "--init", "--recursive", "--depth", "1")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=False, env=_git_environment(), timeout=7200
        )
    except FileNotFoundError as error:
        raise EnvironmentProblem("git is not installed.", "sudo apt-get install git") from error
    if done.returncode != 0:
        last = redact((done.stderr.strip().splitlines() or ["no message"])[-1])
        command = arguments[2] if arguments[0] == "-C" else arguments[0]
        raise NetworkError(f"git {command} failed: {last}", "Check the URL and the ref, or give a tarball.")
    return done.stdout


def _git_environment() -> dict[str, str]:
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _extract(archive: tarfile.TarFile, stage: Path) -> None:
    """All of an archive; what would be written outside of `stage`, or is no file, folder or link, is refused."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(stage, filter="data")
        return
    for member in archive:  # Python 3.11.2 of Debian 12 has no filters
        linked = Path(member.name).parent / member.linkname if member.issym() else member.linkname
        for path in (member.name, linked):
            if not Path(os.path.normpath(stage / path)).is_relative_to(stage):
                raise tarfile.TarError(f"{member.name} leads out of it")
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.TarError(f"{member.name} is no file, folder or link")
        archive.extract(member, stage)


def _unpack(tarball: Path, stage: Path) -> None:
    """The tarball's one folder, or all of it, in `stage`."""
    try:
        with tarfile.open(tarball) as archive:
            _extract(archive, stage)
            while archive.fileobj and archive.fileobj.read(1 << 20):  # a checksum at the end is only compared there
                pass
    except (tarfile.TarError, EOFError, ValueError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # bz2 and gzip raise theirs without a number
            raise EnvironmentProblem(f"{tarball} cannot be unpacked: {error.strerror}.", "Free some space.") from error
        raise BadInputError(f"{tarball} is damaged: {error}.", "Download it again.") from error
    inside = list(stage.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        moved = stage.with_name(stage.name + ".in")
        inside[0].rename(moved)
        stage.rmdir()
        moved.rename(stage)
