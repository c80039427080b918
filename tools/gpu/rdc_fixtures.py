"""Makes the libraries of tests/fixtures/rdc: small ones with GPU code in every form that compilers and linkers give it.

    python tools/gpu/rdc_fixtures.py CUDA_HOME                      the archive and the manifest
    python tools/gpu/rdc_fixtures.py CUDA_HOME --only 'rdc-*'       some of them; the others stay
    python tools/gpu/rdc_fixtures.py CUDA_HOME --output FOLDER      as files, not in the archive
    python tools/gpu/rdc_fixtures.py CUDA_HOME --output FOLDER --static     with the CUDA runtime inside (1 MB each)

A CUDA_HOME can be made of NVIDIA's wheels: nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime,
nvidia-cuda-cccl. CUDA 13.0 was used, so that a driver for CUDA 13.0 can compile the PTX; `--concat` came with 13.4
and is made where `--newer CUDA_HOME` names one. The libraries for aarch64 are made where its GCC is installed. Without
`--static` they leave out the CUDA runtime: whoever loads them loads libcudart first, for all to see.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import random
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests/fixtures/rdc"
SOURCES = FOLDER / "src"
ARCHIVE = "libraries.tar.xz"
MANIFEST = "manifest.json"
BALLAST = {"x86_64": 32 << 10, "aarch64": 160 << 10}  # more than the pages that the loader needs whole
RAW = ("--compress-mode=none",)
GROUPS = ("first", "second", "third")
SMALL = ("-s", "-Wl,-z,max-page-size=4096,--build-id=none,--gc-sections")
CROSS = "aarch64-linux-gnu-g++"


@dataclass(frozen=True)
class Fixture:
    """One library: which code is made of which sources, and how it gets in."""

    name: str
    archs: tuple[tuple[str, ...], ...]  # `sm_80`, `compute_80`, `lto_80` for each part (device link, container)
    form: str = "rdc"  # rdc, plain, embedded, bare
    options: tuple[str, ...] = RAW  # of nvcc
    noise: bool = False  # ballast that does not compress
    link_options: tuple[str, ...] = ()  # of the device link
    linked: tuple[str, ...] = ()  # what the device link makes, where that is not all the objects have
    shift: int = 0
    newer: bool = False
    arm: bool = False

    @property
    def only_ptx(self) -> bool:
        return all(arch.startswith("compute") for archs in self.archs for arch in archs)


FIXTURES = (
    Fixture("rdc-sm80", (("sm_80",),)),
    Fixture("rdc-sm80-ptx80", (("sm_80", "compute_80"),), arm=True),
    Fixture("rdc-sm75-sm90-ptx75", (("sm_75", "sm_90", "compute_75"),)),
    Fixture("rdc-ptx80", (("compute_80",),), noise=True, arm=True),
    Fixture("rdc-sm90a-ptx90", (("sm_90a", "compute_90"),)),
    Fixture("rdc-zstd", (("sm_80", "sm_90", "compute_80"),), options=("--compress-mode=size",), noise=True),
    Fixture("rdc-lz4", (("sm_80", "sm_90", "compute_80"),), options=("--compress-mode=speed",), noise=True),
    Fixture("rdc-reloc-ptx", (("sm_80", "compute_80"),), link_options=("--relocatable-ptx",)),
    Fixture("rdc-two-links", (("sm_80", "compute_80"), ("sm_80", "sm_90")), arm=True),
    Fixture("rdc-linked-less", (("sm_80", "sm_90"),), linked=("sm_80",)),
    Fixture("rdc-linked-less-ptx", (("sm_80", "sm_90", "compute_80"),), linked=("sm_80",)),
    Fixture("rdc-lto80", (("lto_80",),), link_options=("-dlto",), linked=("sm_80",)),
    Fixture("rdc-lto80-ptx80", (("lto_80", "compute_80"),), link_options=("-dlto",), linked=("sm_80",)),
    Fixture("plain-sm80-ptx80", (("sm_80", "compute_80"),), "plain", arm=True),
    Fixture("plain-sm90a-ptx90", (("sm_90a", "compute_90"),), "plain"),
    Fixture("plain-sm100f-ptx90a", (("sm_80", "sm_100f", "compute_90a"),), "plain"),
    Fixture("plain-several", (("sm_75", "sm_80"), ("sm_80", "sm_90", "compute_90"), ("sm_86", "compute_75")), "plain"),
    Fixture(
        "plain-concat", (("sm_75", "sm_80", "sm_90", "compute_80"),), "plain", ("--concat",), newer=True, noise=True
    ),
    Fixture("embedded", (("sm_75", "sm_80", "sm_90", "compute_75"),), "embedded", arm=True),
    Fixture("embedded-unaligned", (("sm_75", "sm_80", "sm_90", "compute_75"),), "embedded", shift=4),
    Fixture("bare-cubins", (("sm_80", "sm_90"),), "bare"),
)


@dataclass
class Maker:
    """Runs the tools and notes their command lines as they can be repeated anywhere."""

    cuda: Path
    ccbin: str
    static: bool
    work: Path
    ballast: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def run(self, *words: str | Path) -> None:
        line = [str(word) for word in words]
        text = shlex.join(line)
        for path, name in ((self.cuda, "CUDA"), (self.work, "WORK"), (SOURCES, "src")):
            text = text.replace(str(path), name)
        self.lines.append(text)
        subprocess.run(line, check=True)

    @property
    def nvcc(self) -> list[str | Path]:
        """The compiler, as it is called for all."""
        # for another machine nvcc looks for headers in a folder that only whole toolkits have
        found: list[str | Path] = [self.cuda / "bin/nvcc", "-ccbin", self.ccbin, "-I", self.cuda / "include"]
        return [*found, "-Xcompiler", "-fPIC", *self.ballast]

    def make(self, fixture: Fixture, output: Path, ballast: int) -> None:
        """One library, with so many bytes of ballast for each GPU."""
        if fixture.only_ptx:
            ballast //= 4  # a byte is four letters of PTX
        self.ballast = [f"-DBALLAST={ballast}"]
        if fixture.noise:
            noise = self.work / "noise.h"
            noise.write_text(",".join(map(str, random.Random(fixture.name).randbytes(ballast - 3))) + "\n")
            self.ballast.append(f'-DNOISE="{noise}"')
        forms = {"rdc": self.rdc, "plain": self.plain, "embedded": self.embedded, "bare": self.bare}
        objects = list(forms[fixture.form](fixture))
        if fixture.form in ("rdc", "plain"):
            objects.append(self.work / "answer.o")
            c = self.ccbin.replace("g++", "gcc")
            self.run(c, "-c", "-O2", "-fPIC", f"-DPARTS={len(fixture.archs)}", "-o", objects[-1], SOURCES / "answer.c")
        runtime = f"-L {self.cuda}/lib64 -L {self.cuda}/lib -lcudart_static -ldl -lrt -lpthread".split()
        self.run(self.ccbin, "-shared", *SMALL, "-o", output, *objects, *(runtime if self.static else []))

    def rdc(self, fixture: Fixture) -> Iterator[Path]:
        for group, archs in zip(GROUPS, fixture.archs, strict=False):
            made = []
            for source in ("caller", "callee"):
                made.append(self.work / f"{source}-{group}.o")
                seed = f"{fixture.name}-{group}-{source}"
                self.run(
                    *self.nvcc, "-c", "-rdc=true", f"-DGROUP={group}", "--frandom-seed", seed, *gencodes(archs),
                    *fixture.options, "-o", made[-1], SOURCES / f"{source}.cu",
                )  # fmt: skip
            yield from made
            link = self.work / f"link-{group}.o"
            linked = gencodes(fixture.linked or archs)
            if fixture.only_ptx:
                linked += ["--cudadevrt", "none"]  # which nothing here calls, and which it would take in
            self.run(*self.nvcc, "-dlink", *linked, *fixture.options, *fixture.link_options, "-o", link, *made)
            yield link

    def plain(self, fixture: Fixture) -> Iterator[Path]:
        for group, archs in zip(GROUPS, fixture.archs, strict=False):
            made = self.work / f"plain-{group}.o"
            self.run(
                *self.nvcc, "-c", f"-DGROUP={group}", "--frandom-seed", f"{fixture.name}-{group}", *gencodes(archs),
                *fixture.options, "-o", made, SOURCES / "plain.cu",
            )  # fmt: skip
            yield made

    def embedded(self, fixture: Fixture) -> Iterator[Path]:
        images = []
        for arch in fixture.archs[0]:
            kind, number = arch.split("_")
            made = self.work / f"{arch}.{'ptx' if kind == 'compute' else 'cubin'}"
            self.run(*self.nvcc, f"--{made.suffix[1:]}", f"-arch={arch}", "-o", made, SOURCES / "kernel.cu")
            images.append(f"--image3=kind={'ptx' if kind == 'compute' else 'elf'},sm={number},file={made}")
        fatbin = self.work / "code.fatbin"
        self.run(self.cuda / "bin" / "fatbinary", "-64", *images, f"--create={fatbin}")
        yield from self.loader(f'-DCODE="{fatbin}"', *([f"-DSHIFT={fixture.shift}"] if fixture.shift else []))

    def bare(self, fixture: Fixture) -> Iterator[Path]:
        for arch in fixture.archs[0]:
            self.run(*self.nvcc, "--cubin", f"-arch={arch}", "-o", self.work / f"{arch}.cubin", SOURCES / "kernel.cu")
        older, newer = fixture.archs[0]
        yield from self.loader(f'-DCODE="{self.work / older}.cubin"', f'-DNEWER="{self.work / newer}.cubin"')

    def loader(self, *defines: str) -> Iterator[Path]:
        code, loader = self.work / "embed.o", self.work / "loader.o"
        self.run(self.ccbin.replace("g++", "gcc"), "-c", *defines, "-o", code, SOURCES / "embed.S")
        bare = ["-DBARE"] if any("NEWER" in word for word in defines) else []
        self.run(
            self.ccbin, "-c", "-O2", "-fPIC", *bare, "-I", self.cuda / "include", "-o", loader, SOURCES / "loader.cpp"
        )
        yield from (loader, code)


def whole(cuda: Path, home: Path) -> Path:
    """The toolkit, or links to it and to the library that `-dlto` looks for in a place of which wheels know nothing."""
    if (cuda / "nvvm/lib64/libnvvm.so").exists():
        return cuda
    shutil.copytree(cuda, home, copy_function=os.symlink, ignore=shutil.ignore_patterns("nvcc", "targets", "dist-info"))
    shutil.copy2(cuda / "bin/nvcc", home / "bin/nvcc")  # finds its parts beside itself, after following links
    (home / "nvvm/lib64").mkdir()
    (home / "nvvm/lib64/libnvvm.so").symlink_to(next(cuda.glob("lib*/libnvvm.so.*")))
    return home


def gencodes(archs: tuple[str, ...]) -> list[str]:
    """Each architecture is compiled from its own virtual one."""
    return [f"-gencode=arch=compute_{arch.split('_')[1]},code={arch}" for arch in archs]


def version_of(tool: str | Path) -> str:
    said = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return next(line for line in said.splitlines() if " V" in line or "GCC" in line or "Debian" in line).strip()


def make_all(options: argparse.Namespace, folder: Path, rows: dict[str, object]) -> None:
    """The libraries into a folder, and their rows of the manifest."""
    compilers = {"x86_64": "g++"}
    if shutil.which(CROSS) and not options.static:
        compilers["aarch64"] = CROSS
    with tempfile.TemporaryDirectory() as homes:
        toolkit = whole(options.cuda.absolute(), Path(homes) / "cuda")
        newer = whole(options.newer.absolute(), Path(homes) / "newer") if options.newer else None
        for fixture in FIXTURES:
            cuda = newer if fixture.newer else toolkit
            if cuda is None or not fnmatch.fnmatch(fixture.name, options.only):
                continue
            for machine, compiler in compilers.items():
                if machine == "x86_64" or fixture.arm:
                    output = folder / f"{fixture.name}-{machine}.so"
                    with tempfile.TemporaryDirectory() as work:
                        maker = Maker(cuda, compiler, options.static, Path(work))
                        maker.make(fixture, output, BALLAST[machine])
                    rows[output.name] = row_of(fixture, maker, output)
                    print(f"{output.name}: {output.stat().st_size} bytes", flush=True)


def row_of(fixture: Fixture, maker: Maker, output: Path) -> dict[str, object]:
    return {
        "nvcc": version_of(maker.cuda / "bin" / "nvcc"),
        "host compiler": version_of(maker.ccbin),
        "form": fixture.form,
        "archs": fixture.archs,
        "linked": fixture.linked,
        "size": output.stat().st_size,
        "sha256": hashlib.sha256(output.read_bytes()).hexdigest(),
        "commands": [line.replace(str(output.parent), ".") for line in maker.lines],
    }


def pack(folder: Path, archive: Path) -> None:
    """One solid archive that is the same whenever its files are."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(folder.glob("*.so")):
            info = tarfile.TarInfo(path.name)
            info.size, info.mode = path.stat().st_size, 0o755
            with path.open("rb") as file:
                tar.addfile(info, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cuda", type=Path, help="the toolkit")
    parser.add_argument("--newer", type=Path, help="a toolkit of CUDA 13.4 or newer, for --concat")
    parser.add_argument("--output", type=Path, help="write files into this folder")
    parser.add_argument("--only", default="*", help="names, with wildcards")
    parser.add_argument("--static", action="store_true", help="put the CUDA runtime in; x86_64 only")
    options = parser.parse_args()
    if options.static and not options.output:
        parser.error("--static needs --output: the archive holds nothing of NVIDIA's")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        make_all(options, options.output, {})
        return
    manifest, archive = FOLDER / MANIFEST, FOLDER / ARCHIVE
    rows = json.loads(manifest.read_text()) if manifest.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        if archive.is_file():
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        make_all(options, Path(folder), rows)
        pack(Path(folder), archive)
    manifest.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    print(f"{archive.name}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main()
