"""Creates the virtual environment for the Makefile; needs only a bare python3 (3.11 or newer)."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What pip is told about indexes, and how uv is told the same: uv does not read pip's settings.
_SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


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
    package = f"{ROOT}[{extras}]"
    print(f"installing torchtailor[{extras}] into {venv}", flush=True)
    if install_with_uv(python, package):
        return 0
    print("uv could not install the packages; trying pip, which takes some minutes", flush=True)
    if subprocess.run([*pip(python), "install", "--quiet", "--no-compile", "-e", package], check=False).returncode:
        return fail("pip could not install the packages.", "See its message above; then run make again.")
    return 0


def install_with_uv(python: Path, package: str) -> bool:
    """With the indexes that pip is configured for; uv takes a tenth of pip's time."""
    uv = shutil.which("uv") or str(python.with_name("uv"))
    if (
        not Path(uv).exists()
        and subprocess.run([*pip(python), "install", "--quiet", "--no-compile", "uv"], check=False).returncode
    ):
        return False
    command = [uv, "pip", "install", "--quiet", "--index-strategy", "unsafe-best-match"]
    listed = subprocess.run([*pip(python), "config", "list"], capture_output=True, text=True, check=False).stdout
    environment = for_uv(listed) | os.environ
    return not subprocess.run(
        [*command, "--python", str(python), "-e", package], env=environment, check=False
    ).returncode


def for_uv(listed: str) -> dict[str, str]:
    """The environment that tells uv what `pip config list` says; a pip variable wins over `[install]`, that over
    `[global]`."""
    found: dict[str, tuple[int, str]] = {}
    order = {"global": 0, "install": 1, ":env:": 2}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if key in _SETTINGS and section in order and order[section] >= found.get(key, (0, ""))[0]:
            found[key] = order[section], ast.literal_eval(value)
    return {
        variable: separator.join(found[key][1].split())
        for key, (variable, separator) in _SETTINGS.items()
        if key in found
    }


def pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check"]


def fail(message: str, hint: str) -> int:
    print(f"error: {message}\n       {hint}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
