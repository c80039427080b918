"""Creates the virtual environment for the Makefile; needs only a bare python3 (3.11 or newer)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    venv, extras = Path(sys.argv[1]), sys.argv[3]
    if sys.version_info < (3, 11):
        found = ".".join(map(str, sys.version_info[:3]))
        return fail(f"Python {found} is too old: torchtailor needs 3.11.", "Use `make PYTHON=python3.13 ...`.")
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"making {venv}", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False).returncode:
            return fail("This Python cannot make virtual environments.", "On Debian: apt-get install python3-venv.")
    print(f"installing torchtailor[{extras}] into {venv}", flush=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-e", f"{ROOT}[{extras}]"]
    if subprocess.run(command, check=False).returncode:
        return fail("pip could not install the packages.", "See its message above; then run make again.")
    return 0


def fail(message: str, hint: str) -> int:
    print(f"error: {message}\n       {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
