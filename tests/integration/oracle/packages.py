"""Real packages: what each can run before and after a cut, by the oracle.

    python -m tests.integration.oracle.packages --cache FOLDER [--gpu 8.9 --gpu 9.0] [NAME...]

prints the table, one package after another; without names, all of packages.toml. A package that was not in the cache
before is removed again, unless --keep. With --results FILE the sums of each package are added to FILE, a JSON object a
line, and

    python -m tests.integration.oracle.packages --print FILE

prints them as the table in docs/packages.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.oracle import Container, Entry, Library, foreign, read_library, runnable, unused

LIST = Path(__file__).with_name("packages.toml")
GPUS = ("8.9", "9.0", "12.0")
_TAGS = ("manylinux_2_39", "manylinux_2_35", "manylinux_2_34", "manylinux_2_31", "manylinux_2_28", "manylinux_2_27",
         "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux2010", "manylinux1", "linux")  # fmt: skip
_GPU_FILES = {".cubin", ".fatbin"}
_EXIT_NOTHING = 5
_GPU_OF_WHEELS = "9.0"


@dataclass(frozen=True)
class Package:
    """A row of packages.toml."""

    name: str
    version: str
    platform: str  # x86_64, aarch64, any
    python: str
    megabytes: float  # of the wheel
    why: str  # it is in the list
    nvidia: bool = False  # NVIDIA's own: every image that the GPU could run must stay
    broken: tuple[str, ...] = ()  # GPUs for which a cut loses or leaves something today

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}-{self.platform}"


def load_packages() -> list[Package]:
    rows = tomllib.loads(LIST.read_text())["package"]
    return [Package(**{**row, "broken": tuple(row.get("broken", ()))}) for row in rows]


def download(package: Package, cache: Path) -> Path:
    """The wheel, from the cache or the configured index."""
    folder = cache / package.id
    if not (wheels := list(folder.glob("*.whl"))):
        words = ["any"] if package.platform == "any" else [f"{tag}_{package.platform}" for tag in _TAGS]
        platforms = [word for tag in words for word in ("--platform", tag)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
        command += ["--python-version", package.python, "--dest", str(folder), f"{package.name}=={package.version}"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
    return wheels[0]


@dataclass
class Finding:
    """One library and one GPU."""

    library: str
    gpu: str
    code_before: int
    code_after: int
    size_before: int
    size_after: int
    lost: Counter[str] = field(default_factory=Counter)  # images that stock runs and the cut has not
    thinned: Counter[str] = field(default_factory=Counter)  # other images that fit, of NVIDIA's own libraries
    left: Counter[str] = field(default_factory=Counter)  # bytes of foreign code, by place and architecture
    spare: int = 0  # bytes of code that fits and is never taken
    unread: tuple[str, ...] = ()
    runs: int = 0  # images of stock that the GPU takes

    @property
    def wrong(self) -> bool:
        return bool(self.lost or self.thinned or self.left)

    @property
    def row(self) -> str:
        cells = (f"{self.code_before / 1e6:.2f}", f"{self.code_after / 1e6:.2f}", said(self.lost), said(self.thinned))
        left = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in self.left.most_common(6))
        return " | ".join((self.library, self.gpu, *cells, left, f"{self.spare / 1e6:.2f}"))


def check(wheel: Path, gpus: Sequence[str], work: Path, *, nvidia: bool) -> Iterator[Finding]:
    """Unpack, cut for each GPU by the command itself, and compare."""
    stock = work / "stock"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(stock)
    before = {path.relative_to(stock): read_library(path) for path in sorted(_with_gpu_code(stock))}
    before = {path: library for path, library in before.items() if library.containers or library.unread}
    for gpu in gpus:
        output = work / "cut"
        command = [sys.executable, "-m", "torchtailor", "tailor", str(stock), "-o", str(output), "--gpu", gpu]
        command += ["--nvidia", "--drop", "loose-cubins"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode not in (0, _EXIT_NOTHING):
            raise RuntimeError(f"{wheel.name} for {gpu}: exit {done.returncode}: {done.stderr.strip()}")
        findings = []
        for path, library in before.items():
            # where nothing was written, stock is what there is
            after = read_after(output / path, library) if done.returncode == 0 else library
            findings.append(compare(str(path), gpu, library, after, nvidia=nvidia))
        yield from (one for one in findings if Path(one.library).suffix not in _GPU_FILES)
        if files := [one for one in findings if Path(one.library).suffix in _GPU_FILES]:
            whole = total(files, gpu, f"{len(files)} files of GPU code")  # there may be thousands
            if not any(one.runs for one in files):  # a package that is for other GPUs stays as it is
                whole.left.clear()
            yield whole
        shutil.rmtree(output, ignore_errors=True)


def read_after(path: Path, before: Library) -> Library:
    """What became of a file; one that was left out has no code."""
    return read_library(path) if path.exists() else replace(before, size=0, containers=(), unread=())


def compare(name: str, gpu: str, before: Library, after: Library, *, nvidia: bool) -> Finding:
    """What a cut for one GPU has lost and left."""
    major, minor = gpu.split(".")
    device = int(major), int(minor)
    finding = Finding(name, gpu, code_of(before), code_of(after), before.size, after.size, unread=before.unread)
    runs = runnable(before, device)
    finding.runs = len(runs)
    finding.lost = Counter(run.how for run in runs - runnable(after, device))
    if nvidia:
        fitting = runnable(before, device, every=True) - runs
        finding.thinned = Counter(run.how for run in fitting - runnable(after, device, every=True))
    if runs or Path(name).suffix in _GPU_FILES:
        left = foreign(after, [device])
        # a library is not rewritten for a page or two
        if after.size != before.size or sum(entry.size for _, entry in left) > _worth_a_cut(name):
            finding.left = _tally(left)
        finding.spare = sum(entry.size for _, entry in unused(after, [device]))
    return finding


def _worth_a_cut(name: str) -> int:
    """What a cut must free before a library is rewritten: two pages of 64 KiB. A file of GPU code is whole or gone."""
    return 0 if Path(name).suffix in _GPU_FILES else 128 << 10


def code_of(library: Library) -> int:
    return sum(container.size for container in library.containers)


def _tally(pieces: Iterable[tuple[Container, Entry]]) -> Counter[str]:
    left: Counter[str] = Counter()
    for container, entry in pieces:
        form = "" if container.form == "container" else f" bare {container.form}"
        left[f"{container.section or 'file'}{form} {entry.label}"] += entry.size
    return left


def _with_gpu_code(folder: Path) -> Iterator[Path]:
    """What is loaded as it is: libraries, programs, single images; static libraries are for compilers."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if path.suffix in _GPU_FILES or (file.read(4) == b"\x7fELF" and path.suffix != ".o"):
                    yield path


def said(counter: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counter.most_common(6))


def total(findings: Iterable[Finding], gpu: str, name: str = "all") -> Finding:
    """Several libraries together."""
    whole = Finding(name, gpu, 0, 0, 0, 0)
    for one in findings:
        if one.gpu == gpu:
            whole.code_before += one.code_before
            whole.code_after += one.code_after
            whole.size_before += one.size_before
            whole.size_after += one.size_after
            whole.lost += one.lost
            whole.thinned += one.thinned
            whole.left += one.left
            whole.spare += one.spare
    return whole


HEADER = "| package | library | GPU | code before MB | after MB | lost | thinned | foreign left | spare MB |"


def print_table(package: Package, findings: Sequence[Finding], gpus: Iterable[str]) -> None:
    """A line for each GPU, and one for each library in which something is wrong."""
    for gpu in gpus:
        print(f"| {package.id} | {total(findings, gpu).row} |", flush=True)
    for one in findings:
        if one.wrong or (one.unread and one.gpu == findings[0].gpu):
            print(f"| {package.id} | {one.row} | {len(one.unread)} unread {one.unread[:2]}", flush=True)


def sums(package: Package, findings: Sequence[Finding], gpu: str) -> dict[str, Any]:
    """What docs/packages.md says of a package and a GPU."""
    whole = total(findings, gpu)
    return {
        "package": package.name,
        "version": package.version,
        "platform": package.platform,
        "why": package.why,
        "gpu": gpu,
        "files": len({one.library for one in findings}),
        "files_before": whole.size_before,
        "files_after": whole.size_after,
        "code_before": whole.code_before,
        "code_after": whole.code_after,
        "lost": sum(whole.lost.values()),
        "thinned": sum(whole.thinned.values()),
        "foreign": sum(whole.left.values()),
    }


def cut_wheel(wheel: Path, gpu: str, work: Path) -> dict[str, int]:
    """The sizes of the wheel itself; the new one is that of stock where there is nothing to cut."""
    output = work / "wheel"
    command = [sys.executable, "-m", "torchtailor", "tailor", str(wheel), "-o", str(output), "--gpu", gpu, "--nvidia"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, _EXIT_NOTHING):
        raise RuntimeError(f"{wheel.name} for {gpu}: exit {done.returncode}: {done.stderr.strip()}")
    before = wheel.stat().st_size
    after = sum(path.stat().st_size for path in output.glob("*.whl")) if done.returncode == 0 else before
    shutil.rmtree(output, ignore_errors=True)
    return {"wheel_before": before, "wheel_after": after}


def print_results(file: Path) -> None:
    """The table of docs/packages.md."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    gpus = list(dict.fromkeys(row["gpu"] for row in rows))
    print("| package | platform | wheel | for 9.0 | libraries | " + " | ".join(f"for {gpu}" for gpu in gpus) + " |")
    print("|---|---|" + "---:|" * (len(gpus) + 3))
    by_package: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_package.setdefault((row["package"], row["version"], row["platform"]), {})[row["gpu"]] = row
    for (name, version, platform), found in sorted(by_package.items()):
        first = next(iter(found.values()))
        sized = next((row for row in found.values() if "wheel_before" in row), first)
        cells = [f"{name} {version}", platform, *(_megabytes(sized[key]) for key in ("wheel_before", "wheel_after"))]
        cells += [_megabytes(first["files_before"]), *(_megabytes(found[gpu]["files_after"]) for gpu in gpus)]
        print("| " + " | ".join(cells) + " |")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size < 10e6 else f"{size / 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("packages"))
    parser.add_argument("--results", type=Path, metavar="FILE", help="add the sums of each package to this file")
    parser.add_argument("--print", type=Path, metavar="FILE", help="print the results of such a file, and do no more")
    parser.add_argument("--gpu", action="append")
    parser.add_argument("--keep", action="store_true", help="keep what is downloaded")
    parser.add_argument("names", nargs="*", help="packages, or package-version-platform")
    options = parser.parse_args()
    if options.print:
        print_results(options.print)
        return
    gpus = options.gpu or GPUS
    print(HEADER + "\n|" + "---|" * 9)
    for package in load_packages():
        if options.names and not {package.name, package.id} & set(options.names):
            continue
        began = time.monotonic()
        known = (options.cache / package.id).is_dir()
        try:
            wheel = download(package, options.cache)
            with tempfile.TemporaryDirectory(dir=options.cache) as work:
                findings = list(check(wheel, gpus, Path(work), nvidia=package.nvidia))
                print_table(package, findings, gpus)
                if options.results:
                    rows = {gpu: sums(package, findings, gpu) for gpu in gpus}
                    if _GPU_OF_WHEELS in rows:
                        rows[_GPU_OF_WHEELS] |= cut_wheel(wheel, _GPU_OF_WHEELS, Path(work))
                    with options.results.open("a") as file:
                        file.writelines(json.dumps(row) + "\n" for row in rows.values())
        except (RuntimeError, subprocess.CalledProcessError) as error:
            detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            print(f"| {package.id} | FAILED: {detail} |", flush=True)
        if not known and not options.keep:
            shutil.rmtree(options.cache / package.id, ignore_errors=True)
        print(f"    {package.id}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
