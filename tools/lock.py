"""Renews requirements/*.txt, which `make` installs from: versions with the hashes of all their files.

    make lock

Versions are the newest that pyproject.toml allows on the default index, for all supported Pythons and machines at once.
Local folders and extra indexes of this machine are left out: they may have other files under the same version.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bootstrap import ROOT, for_uv, pip

LOCKS = ROOT / "requirements"
_OPTIONS = ("--universal", "--generate-hashes", "--no-annotate", "--upgrade", "--no-config", "--quiet")
_OLDEST = "3.11"  # of requires-python


def main() -> int:
    LOCKS.mkdir(exist_ok=True)
    extras = ["--extra", "test"], ["--extra", "docs"]
    done = (
        lock("test.txt", "pyproject.toml", *extras[0])
        and lock("docs.txt", "pyproject.toml", *extras[1])
        and lock("hook.txt", "-", requirements="ziglang")  # the extra `hook` without torchtailor's own requirements
        and lock("uv.txt", "-", requirements="uv")
    )
    return 0 if done else 1


def lock(name: str, source: str, *options: str, requirements: str = "") -> bool:
    """One file; versions that the tests' has are kept in the others."""
    options = (*options, "--python-version", _OLDEST, "--custom-compile-command", "make lock")
    if name != "test.txt":
        options = (*options, "--constraint", str(LOCKS / "test.txt"))
    command = [uv(), "pip", "compile", *_OPTIONS, *options, "--output-file", str(LOCKS / name), source]
    print(f"locking requirements/{name}", flush=True)
    return not subprocess.run(
        command, cwd=ROOT, env=environment(), input=requirements, text=True, stdout=subprocess.DEVNULL, check=False
    ).returncode


def uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def environment() -> dict[str, str]:
    """Of all indexes only the default one, as pip is configured."""
    listed = subprocess.run([*pip(Path(sys.executable)), "config", "list"], capture_output=True, text=True, check=False)
    settings = for_uv(listed.stdout)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    return kept | {name: settings[name] for name in settings if name not in ("UV_INDEX", "UV_FIND_LINKS")}


if __name__ == "__main__":
    sys.exit(main())
