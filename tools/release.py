"""Makes a release in dist/ and checks it: a wheel with the hook for both architectures, and an sdist that builds it.

Both are as the package index wants them, and are installed under every Python that is here. `make release` runs it; it
sends nothing.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
HOOKS = tuple(f"torchtailor/workload/native/{arch}/" for arch in ("x86_64", "aarch64"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TWINE = "twine==7.0.0"
_ELSEWHERE = re.compile(r"(^|/)(tests|build|\.git|\.venv|shared)/")


class ReleaseError(Exception):
    """What keeps this from being released."""


def say(text: str) -> None:
    """What is done now: compiling takes minutes where the machine is busy."""
    print(f"{text} ...", file=sys.stderr, flush=True)


def run(*words: object, **more: object) -> str:
    """What a command prints."""
    done = subprocess.run([*map(str, words)], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))} failed with {done.returncode}.")
    return str(done.stdout).strip()


def version() -> str:
    text = (ROOT / "src/torchtailor/core/version.py").read_text("utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ReleaseError("version.py has no version.")
    return found[1]


def check_tree(number: str) -> None:
    """What is released is a commit, its tag names its version, and the changelog has it."""
    if changed := run("git", "status", "--porcelain"):
        raise ReleaseError(f"There are changes that are in no commit:\n{changed}")
    tags = [tag for tag in run("git", "tag", "--points-at", "HEAD").split() if tag.startswith("v")]
    if tags and tags != [f"v{number}"]:
        raise ReleaseError(f"The tag {', '.join(tags)} is not v{number}, the version in version.py.")
    if not re.search(rf"^## {re.escape(number)}\b", (ROOT / "docs/changelog.md").read_text("utf-8"), re.MULTILINE):
        raise ReleaseError(f"docs/changelog.md has no heading for {number}.")


def build(number: str) -> tuple[Path, Path]:
    """The wheel and the sdist, made in an empty dist."""
    shutil.rmtree(DIST, ignore_errors=True)
    say("Compiling the hook for both architectures")
    subprocess.run([sys.executable, "tools/build_hook.py"], cwd=ROOT, stdout=sys.stderr, check=True)
    say("Building the wheel and the sdist")
    backend = "import sys, hatchling.build as b; getattr(b, 'build_' + sys.argv[1])(sys.argv[2])"
    DIST.mkdir()
    for kind in ("wheel", "sdist"):
        run(sys.executable, "-c", backend, kind, DIST)
    wheel, sdist = DIST / f"torchtailor-{number}-py3-none-any.whl", DIST / f"torchtailor-{number}.tar.gz"
    for path in (wheel, sdist):
        if not path.is_file():
            raise ReleaseError(f"{path} was not made.")
    return wheel, sdist


def check_contents(wheel: Path, sdist: Path) -> None:
    """Both hooks and the pages are in the wheel; no tests and nothing of this machine in either."""
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    for hook in HOOKS:
        if not any(name.startswith(hook) for name in inside):
            raise ReleaseError(f"{wheel.name} has no {hook}: `make release` compiles both with ziglang.")
    if not any(name.startswith("torchtailor/docs/") for name in inside):
        raise ReleaseError(f"{wheel.name} has no pages for `torchtailor help`.")
    with tarfile.open(sdist) as archive:
        packed = [name.partition("/")[2] for name in archive.getnames()]
    for name in (*inside, *packed):
        if _ELSEWHERE.search(name) or name.endswith((".pyc", ".so.tmp")):
            raise ReleaseError(f"{name} does not belong into a release.")


def check_sdist(wheel: Path, sdist: Path) -> None:
    """The sdist builds a wheel with the same files; of the hook it compiles the one for its machine."""
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["tar", "-xzf", sdist, "-C", place], check=True)
        (unpacked,) = Path(place).iterdir()
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", place,
            unpacked)  # fmt: skip
        (made,) = Path(place).glob("*.whl")
        with zipfile.ZipFile(made) as again, zipfile.ZipFile(wheel) as first:
            ours, theirs = (
                {name for name in archive.namelist() if not name.startswith(HOOKS)} for archive in (first, again)
            )
    if ours != theirs:
        raise ReleaseError(f"The sdist builds another wheel: {', '.join(sorted(ours ^ theirs)[:5])} ...")


def check_installs(wheel: Path, number: str) -> list[str]:
    """The wheel works under every Python that is here."""
    worked = []
    uv = Path(sys.executable).with_name("uv")
    for python in PYTHONS:
        say(f"Installing under Python {python}")
        with tempfile.TemporaryDirectory() as place:
            environment = Path(place, "env")
            make: list[str | Path] = [uv, "venv", "--quiet", "--no-python-downloads", "--python", python, environment]
            if subprocess.run(make, capture_output=True, check=False).returncode:
                print(f"Python {python}: not here, not tried", file=sys.stderr)
                continue
            run(uv, "pip", "install", "--quiet", "--python", environment / "bin/python", wheel)
            program = environment / "bin/torchtailor"
            if run(program, "--version").split()[:2] != ["torchtailor", number]:
                raise ReleaseError(f"Under Python {python} it does not say its version.")
            for words in (["recommend", "--gpu", "9.0", "--json"], ["help", "tailor"]):
                run(program, *words)
            worked.append(python)
    if not worked:
        raise ReleaseError(f"None of Python {', '.join(PYTHONS)} is here.")
    return worked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--any-tree", action="store_true", help="also of a tree with changes, to try it")
    arguments = parser.parse_args()
    number = version()
    try:
        if not arguments.any_tree:
            check_tree(number)
        wheel, sdist = build(number)
        check_contents(wheel, sdist)
        say("Checking with twine")
        run(Path(sys.executable).with_name("uv"), "tool", "run", "--quiet", TWINE, "check", "--strict", wheel, sdist)
        say("Building a wheel from the sdist")
        check_sdist(wheel, sdist)
        worked = check_installs(wheel, number)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{wheel.name} ({wheel.stat().st_size >> 10} KiB) and {sdist.name} ({sdist.stat().st_size >> 10} KiB) in dist"
    )
    print(f"checked: both hooks, twine, the sdist builds the same wheel, installed under Python {', '.join(worked)}")
    print(f"To release it: git tag v{number} && git push origin v{number}; the workflow `release` does the rest.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
