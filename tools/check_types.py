"""Checks types as supported Pythons see them: each has its own standard library, and its newest NumPy.

    make types                                    all of them
    .venv/bin/python tools/check_types.py 3.14    one

No other Python is needed: what requirements/test.txt locks for it is unpacked in build/types, and mypy only reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bootstrap import LOCKS, ROOT, for_uv, pip


def main() -> int:
    pythons = sys.argv[1:] or re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text("utf-8"))
    failed = [python for python in pythons if not check(python)]
    if failed:
        print(f"error: types do not fit for Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def check(python: str) -> bool:
    folder = ROOT / "build" / "types" / python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, symlinks=True, with_pip=True)  # pip's own modules are read too
    packages = next(folder.glob("lib/*/site-packages"))
    print(f"types for Python {python}", flush=True)
    uv = str(Path(sys.executable).with_name("uv"))
    listed = subprocess.run([*pip(Path(sys.executable)), "config", "list"], capture_output=True, text=True, check=False)
    install = [uv, "pip", "install", "--quiet", "--index-strategy", "unsafe-best-match", "--python-version", python]
    install += ["--only-binary", ":all:", "--target", str(packages), "-r", str(LOCKS / "test.txt")]
    if subprocess.run(install, env=for_uv(listed.stdout) | os.environ, check=False).returncode:
        return False
    mypy = [sys.executable, "-m", "mypy", "--python-version", python, "--python-executable", str(folder / "bin/python")]
    return not subprocess.run([*mypy, "--cache-dir", str(folder / "cache")], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
