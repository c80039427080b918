"""What a worker is, as far as it decides what comes out of a job; workers that differ are refused.

`describe_worker` is sent to workers as it is here, and uses nothing but Python itself: a worker without torchtailor
must be able to say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Their output is part of wheels: another version may give other bytes.
_LIBRARIES = ("isal", "lz4", "msgspec", "zstandard")


def describe_worker() -> dict[str, Any]:
    """The fingerprint of this process and machine, and what it has room for."""
    import importlib.metadata
    import os
    import platform
    import shutil
    import socket
    import subprocess
    import sys
    from pathlib import Path

    def first_line(*command: str) -> str:
        if shutil.which(command[0]) is None:
            return ""
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        return done.stdout.partition("\n")[0].strip()

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    try:
        from torchtailor.core.version import code_key

        code = code_key()
    except ImportError:
        code = ""
    cache = os.environ.get("TORCHTAILOR_CACHE") or str(Path.home())
    place = next(path for path in (Path(cache), *Path(cache).absolute().parents) if path.is_dir())
    return {
        "host": socket.gethostname(),
        "torchtailor": code,
        "version": version("torchtailor"),
        "python": ".".join(map(str, sys.version_info[:2])),
        "machine": platform.machine(),
        "libraries": {name: version(name) for name in ("isal", "lz4", "msgspec", "zstandard")},
        "glibc": platform.libc_ver()[1],
        "compiler": first_line("c++", "--version"),
        "ccache": first_line("ccache", "--version"),
        "ninja": first_line("ninja", "--version"),
        "nix": first_line("nix", "--version"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "disk_free": shutil.disk_usage(place).free,
        "cpu": _cpu(),
    }


def _cpu() -> str:
    from pathlib import Path

    text = Path("/proc/cpuinfo").read_text("ascii", "replace")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return ""


@dataclass(frozen=True)
class Fingerprint:
    """What must be the same on all workers of a run."""

    torchtailor: str
    version: str
    python: str
    libraries: Mapping[str, str]
    machine: str = ""  # where jobs cut wheels: another architecture packs the same files into other bytes
    glibc: str = ""  # these two where jobs compile
    compiler: str = ""

    @classmethod
    def of(cls, described: Mapping[str, Any], *, compiles: bool) -> Fingerprint:
        return cls(
            torchtailor=described["torchtailor"],
            version=described["version"],
            python=described["python"],
            libraries=described["libraries"],
            machine="" if compiles else described["machine"],
            glibc=described["glibc"] if compiles else "",
            compiler=described["compiler"] if compiles else "",
        )

    def refusal(self, other: Fingerprint, host: str) -> str:
        """Why a worker may not be used, in a sentence; empty where it may."""
        if not other.torchtailor:
            return f"{host} has no torchtailor: install {self.version} in the environment of its workers."
        if self.python != other.python:
            return f"{host} has Python {other.python}, and this run needs {self.python}."
        if self.torchtailor != other.torchtailor:
            same = "other code of the same version" if self.version == other.version else f"version {other.version}"
            return f"{host} has another torchtailor ({same}) than {self.version} here: install the same."
        for name in _LIBRARIES:
            if self.libraries[name] != other.libraries[name]:
                return (
                    f"{host} has {name} {other.libraries[name] or 'not installed'} and not {self.libraries[name]}: "
                    "wheels could differ in their bytes. Install the same."
                )
        if self.machine != other.machine:
            return f"{host} has a processor of {other.machine}, and the others {self.machine}: wheels would differ."
        if self.glibc != other.glibc:
            return f"{host} has glibc {other.glibc}, and objects are shared with glibc {self.glibc}: use one system."
        if self.compiler != other.compiler:
            return (
                f"{host} has the compiler '{other.compiler or 'none'}', and objects are shared with "
                f"'{self.compiler}': use one compiler."
            )
        return ""
