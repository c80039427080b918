"""Another system to run Python in: a folder with a whole one, such as a bare Debian or an unpacked container image.

The folder is not written to: /proc, /sys, /dev and the folder for temporary files are mounted into it for one process
only (a mount namespace), so that files have the same path inside and outside.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torchtailor.core.errors import EnvironmentProblem, NoMatchError

_ENTER = """
set -e
mount=$1 chroot=$2 root=$3 shared=$4
shift 4
for name in proc sys dev; do
  [ ! -d "$root/$name" ] || "$mount" --rbind "/$name" "$root/$name"
done
"$mount" --bind "$shared" "$root$shared"
exec "$chroot" "$root" "$@"
"""
_HELPERS = ("unshare", "sh", "mount", "chroot")  # of this system
_PROGRAMS = ("usr/local/bin", "usr/bin", "bin")
_PASSED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def _found(program: str) -> str:
    """The path of a program of this system: with the other system's PATH it may not be found."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin") or ""


@dataclass(frozen=True, slots=True)
class SystemRoot:
    """The folder of a whole system."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> SystemRoot:
        """A folder that can be entered."""
        if not folder.is_dir():
            raise NoMatchError(f"{folder} is no folder.", "Give the root of a system; tools/bare.sh makes one.")
        if not any((folder / place).is_dir() for place in _PROGRAMS):
            raise NoMatchError(f"{folder} holds no system: it has no usr/bin.", "tools/bare.sh makes one.")
        for program in _HELPERS:
            if not _found(program):
                raise EnvironmentProblem(
                    f"There is no {program} here, which starts programs in {folder}.", "Install util-linux."
                )
        root = cls(folder.resolve())
        if not (root.folder / str(root.shared).lstrip("/")).is_dir():
            raise EnvironmentProblem(
                f"{folder} has no folder {root.shared}, where files are handed over.", "Set TMPDIR=/tmp."
            )
        return root

    @property
    def shared(self) -> Path:
        """The folder that is the same inside and outside."""
        return Path(tempfile.gettempdir()).resolve()

    def command(self, line: Sequence[str]) -> list[str]:
        """The command that runs a line in it; a user who is not root gets a namespace in which they are."""
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        unshare, sh, mount, chroot = map(_found, _HELPERS)
        enter = [sh, "-c", _ENTER, "sh", mount, chroot, str(self.folder), str(self.shared)]
        return [unshare, *own, "--mount", "--", *enter, *line]

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of this system's, whose paths mean nothing there."""
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "LANG": "C.UTF-8", "HOME": str(self.shared), "TMPDIR": str(self.shared), **passed}

    def find_python(self, version: str = "3") -> Path | None:
        """The path, inside of it, of a Python of this version."""
        places = (Path("/", folder, f"python{version}") for folder in _PROGRAMS)
        return next((place for place in places if os.path.lexists(self.folder / str(place).lstrip("/"))), None)

    @property
    def name(self) -> str:
        """What system it says it is."""
        for place in ("etc/os-release", "usr/lib/os-release"):
            with suppress(OSError):
                found = re.search(r'^PRETTY_NAME="?([^"\n]+)', (self.folder / place).read_text("utf-8"), re.MULTILINE)
                return found[1] if found else "an unnamed system"
        return "an unnamed system"
