"""A stand-in for CUDA (driver, runtime, libraries with GPU code), the hook compiled from its sources, and packs.

Packs are written here by the format's description, not by the product's code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.surgery.builds import Toolchain
from tests.unit.workload.compiled import build_tool, copy_built

ROOT = Path(__file__).parents[3]
STANDIN = Path(__file__).parent / "standin"
NEEDED = "libtorchtailor-hook.so.1"
PRELOAD = "libtorchtailor-preload.so"
FOLDER = "torchtailor-packs"
WAYS = {
    # how a library hands over its code: the driver's function that gets it
    "library": "cuLibraryLoadData",
    "first-version": "cuLibraryLoadData",
    "asked-twice": "cuLibraryLoadData",
    "container": "cuLibraryLoadData",
    "module": "cuModuleLoadData",
    "default": "cuModuleLoadData",
    "module-ex": "cuModuleLoadDataEx",
    "fatbin": "cuModuleLoadFatBinary",
    "link": "cuLinkAddData_v2",
    "nvjitlink": "nvJitLinkAddData",
    "import-module": "cuModuleLoadData",
    "import-module-ex": "cuModuleLoadDataEx",
    "import-fatbin": "cuModuleLoadFatBinary",
    "import-library": "cuLibraryLoadData",
    "import-link": "cuLinkAddData_v2",
    "import-get": "cuLibraryLoadData",
    "import-nvjitlink": "nvJitLinkAddData",
}


# --- GPU code, tickets, packs


def entry(payload: bytes, sm: int = 90) -> bytes:
    payload += bytes(-len(payload) % 8)
    return struct.pack("<HHIQ", 2, 0x0101, 64, len(payload)) + bytes(12) + struct.pack("<I", sm) + bytes(32) + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def key_of(stock: bytes) -> bytes:
    return hashlib.blake2b(stock, digest_size=16).digest()


def ticket(stock: bytes) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0) + b"TTPACK1\0" + key_of(stock)


@dataclass
class Pack:
    """A pack as the format describes it, or damaged in one way."""

    containers: Mapping[bytes, bytes]
    header: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[bytes, int, int, int, int]] | None = None
    magic: bytes = b"TTPACK\r\n"
    meta: Mapping[str, object] = field(default_factory=lambda: {"made": "by a test"})

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.to_bytes())
        return path

    def to_bytes(self) -> bytes:
        keys = sorted(self.containers)
        meta = json.dumps(self.meta, separators=(",", ":"), sort_keys=True).encode()
        rows_at, meta_at = 64, 64 + 40 * len(keys)
        data, rows = b"", []
        start = meta_at + len(meta)
        start += -start % 64
        for key in keys:
            code = self.containers[key]
            rows.append((key, start + len(data), len(code), zlib.crc32(code), 0))
            data += code + bytes(-len(code) % 64)
        table = b"".join(struct.pack("<16sQQII", *row) for row in (rows if self.rows is None else self.rows))
        values = {
            "version": 1,
            "row_count": len(table) // 40,
            "rows_offset": rows_at,
            "meta_offset": meta_at,
            "meta_size": len(meta),
            "file_size": start + len(data),
            "rows_crc": zlib.crc32(table),
            "meta_crc": zlib.crc32(meta),
            "reserved": 0,
        } | self.header
        header = self.magic + struct.pack("<IIQQQQIII", *values.values())
        header += struct.pack("<I", zlib.crc32(header))
        return (header + table + meta).ljust(start, b"\0") + data

    def table(self) -> list[tuple[bytes, int, int, int, int]]:
        whole = Pack(self.containers).to_bytes()
        return [struct.unpack_from("<16sQQII", whole, 64 + 40 * i) for i in range(len(self.containers))]


# --- the stand-in


@dataclass(frozen=True)
class Outcome:
    """What the driver got, and what the program said."""

    arrived: list[str]
    answers: list[str]
    said: str
    code: int


@dataclass(frozen=True)
class Rig:
    """Compiled stand-ins and hooks for one processor, possibly with a sanitizer."""

    tools: Toolchain
    folder: Path
    flags: tuple[str, ...] = ()
    preloads: tuple[str, ...] = ()  # what must come before the hook
    settings: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    @property
    def hook(self) -> Path:
        return self.folder / NEEDED

    @property
    def preload(self) -> Path:
        return self.folder / PRELOAD

    def compile(self, output: Path, *arguments: str | Path) -> Path:
        """The same is compiled once, and copied."""
        name = hashlib.sha256(repr((output.name, *map(str, arguments))).encode()).hexdigest()
        compiled = self.folder / "compiled" / name
        if not compiled.exists():
            compiled.parent.mkdir(exist_ok=True)
            line = [self.tools.compiler, "-O1", "-g", "-fPIC", "-w", f"-I{STANDIN}", "-o", compiled, *arguments]
            done = subprocess.run([*line, "-ldl", "-lpthread"], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        output.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(compiled, output))

    def build(self) -> Rig:
        tool = build_tool()
        if self.flags or not copy_built(tool, self.tools.name, self.folder):
            tool.build(self.tools.name, [self.tools.compiler], self.folder, *self.flags, strip=not self.flags)
        shared = "-shared"
        version = f"-Wl,--version-script={STANDIN / 'driver.map'}"
        self.compile(self.folder / "libcuda.so.1", shared, version, "-Wl,-soname,libcuda.so.1", STANDIN / "driver.c")
        name = "libnvJitLink.so.13"
        self.compile(self.folder / name, shared, f"-Wl,-soname,{name}", STANDIN / "nvjitlink.c")
        self.runtime(self.folder)
        self.compile(self.folder / "program", *self.flags, STANDIN / "program.c")
        return self

    def storm(self) -> Path:
        """A folder of libraries that a program opens and closes all the time."""
        folder = self.folder / "storm"
        if not folder.exists():
            folder.mkdir()
            (folder / "storm.c").write_text("int storm(int value) { return value; }")
            first = self.compile(folder / "storm0.so", "-shared", folder / "storm.c")
            for number in range(1, 8):
                shutil.copy(first, folder / f"storm{number}.so")
        return folder

    def runtime(self, folder: Path, *flags: str) -> Path:
        name = "libcudart.so.13"
        return self.compile(folder / name, "-shared", f"-Wl,-soname,{name}", *flags, STANDIN / "cudart.c")

    def library(
        self,
        path: Path,
        codes: Sequence[bytes],
        *flags: str,
        renamed: bool = False,
        imports: bool = False,
        runtime: bool = False,
    ) -> Path:
        """A library with these containers; `renamed` as a cut one, `imports` of the driver, or of libcudart."""
        folder = self.folder / hashlib.sha256(repr(codes).encode()).hexdigest()
        folder.mkdir(exist_ok=True)
        lines = ['.section .nv_fatbin,"a",%progbits', ".balign 8"]
        for number, code in enumerate(codes):
            binary = folder / f"{number}.bin"
            binary.write_bytes(code)
            lines += [f"code{number}:", f'.incbin "{binary}"', ".balign 8"]
        lines += ['.section .nvFatBinSegment,"aw",%progbits', ".balign 8", ".globl wrappers", "wrappers:"]
        for number in range(len(codes)):
            lines += [".long 0x466243B1, 1", f".quad code{number}, 0"]
        lines += ['.section .rodata,"a",%progbits', ".balign 8", ".globl wrapper_count", "wrapper_count:"]
        lines += [f".long {len(codes)}", '.section .note.GNU-stack,"",%progbits', ""]
        assembly = folder / "code.s"
        assembly.write_text("\n".join(lines))
        options: list[str | Path] = ["-shared", f"-Wl,-soname,{path.name}", *flags]
        libraries: list[str | Path] = []
        if renamed:
            options += ["-DDLSYM=torchtailor_dlsym", "-DIMPORT(name)=torchtailor_##name"]
            options += ["-DREGISTER=torchtailor___cudaRegisterFatBinary"]
            libraries += [self.hook]
        if imports:
            options += ["-DIMPORTS"]
            libraries += [self.folder / "libcuda.so.1", self.folder / "libnvJitLink.so.13"]
        if runtime:
            libraries += [self.folder / "libcudart.so.13"]
        source = STANDIN / ("shared.c" if runtime else "code.c")
        return self.compile(path, *options, source, assembly, "-Wl,--no-as-needed", *libraries)

    def run(
        self,
        *words: str,
        preload: Sequence[Path] = (),
        path: Sequence[Path] = (),
        program: Path | None = None,
        variables: Mapping[str, str] | None = None,
        waiting: Callable[[], object] | None = None,
        **environment: str,
    ) -> Outcome:
        """Run the program; `waiting` is called when it has said its first words."""
        log = self.folder / "arrived.log"
        log.unlink(missing_ok=True)
        settings = {
            "STANDIN_LOG": str(log),
            "LD_LIBRARY_PATH": ":".join(map(str, [*path, self.folder])),
            "HOME": os.environ["HOME"],
            "PATH": os.environ["PATH"],
            **self.settings,
            **(variables or {}),
            **environment,
        }
        if preload:
            settings["LD_PRELOAD"] = ":".join([*self.preloads, *map(str, preload)])
        line = [*self.before, *self.tools.runner]
        if self.tools.runner:  # qemu itself is not to be preloaded into
            settings["QEMU_SET_ENV"] = ",".join(f"{name}={settings.pop(name)}" for name in _LOADERS if name in settings)
        line += [str(program or self.folder / "program"), *words]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings) as process:
            assert process.stderr
            first = process.stderr.readline() if waiting else ""
            if waiting:
                waiting()
            answers, said = process.communicate(timeout=300)
        arrived = log.read_text().splitlines() if log.exists() else []
        return Outcome(arrived, answers.splitlines(), first + said, process.returncode)


_LOADERS = ("LD_LIBRARY_PATH", "LD_PRELOAD")


def arrival(way: str, code: bytes) -> str:
    return f"{WAYS[way]} {zlib.crc32(code):08x}"


def recorded(folder: Path) -> list[list[str]]:
    """The lines of all processes' records, without what the C library is made of."""
    lines = []
    for file in sorted(folder.glob("*-*.tsv")):
        lines += [line.split("\t") for line in file.read_text().splitlines()]
    return lines


def address_of(library: Path, code: bytes) -> int:
    """Where code lies by the library's own headers."""
    whole = library.read_bytes()
    offset = whole.index(code)
    at, count = struct.unpack_from("<Q", whole, 32)[0], struct.unpack_from("<H", whole, 56)[0]
    for number in range(count):
        kind, _, start, address, _, size = struct.unpack_from("<IIQQQQ", whole, at + 56 * number)
        if kind == 1 and start <= offset < start + size:
            return int(address + offset - start)
    raise AssertionError(f"{library} does not load its code")
