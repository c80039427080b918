"""GPU code that is shown and never cut: libraries for Windows, HIP bundles, SYCL sections, conda packages."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.calling import call
from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.wheels.builder import build_wheel
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import BufferSource
from torchtailor.code.gpucode.files import CodeFileKind, read_code_file
from torchtailor.code.gpucode.foreign import bundled_code, code_of_dll, foreign_code, foreign_platform, pe_sections
from torchtailor.core.errors import ExitCode

FIXTURES = Path(__file__).parent / "fixtures"
TABLE = (FIXTURES / "hip_table_rocm6.bin").read_bytes()  # of jax_rocm60_plugin/_prng.so; its pieces end at 92,192
BUNDLE = TABLE.ljust(92192, b"\x11")
PACKED = (FIXTURES / "hip_bundle_rocm7.ccob").read_bytes()  # of jax_rocm7_plugin/_prng.so, whole
ROCM6 = ["gfx1030", "gfx1100", "gfx1200", "gfx1201", "gfx900", "gfx906", "gfx908", "gfx90a", "gfx940", "gfx941",
         "gfx942"]  # fmt: skip
CUDA = container(Entry(b"\x7fELF" + bytes(60), sm=80), Entry(b"\x7fELF" + bytes(60), sm=90))


def dll(*sections: tuple[bytes, bytes]) -> bytes:
    """A PE file with these sections."""
    head = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x80)
    head = head.ljust(0x80, b"\0") + struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, len(sections), 240, 0) + bytes(240)
    place = (len(head) + 40 * len(sections) + 511) & ~511
    table, data = b"", b""
    for name, content in sections:
        padded = content.ljust((len(content) + 511) & ~511, b"\0")
        table += struct.pack("<8sIIII16x", name, len(content), 0x1000, len(padded), place + len(data))
        data += padded
    return (head + table).ljust(place, b"\0") + data


def packed(version: int, method: int, data: bytes = BUNDLE) -> bytes:
    """A compressed bundle, as clang of ROCm 5.7 (1), 6 (2) and 7 (3) writes them."""
    body = zstandard.compress(data) if method else zlib.compress(data)
    size = {1: 20, 2: 24, 3: 32}[version] + len(body)
    sizes = {1: struct.pack("<I", len(data)), 2: struct.pack("<II", size, len(data)),
             3: struct.pack("<QQ", size, len(data))}  # fmt: skip
    return b"CCOB" + struct.pack("<HH", version, method) + sizes[version] + bytes(8) + body


def labels(data: bytes) -> list[str]:
    return [group.label for group in bundled_code(BufferSource(data))]


class TestBundles:
    def test_sizes_are_those_of_the_table(self) -> None:
        groups = {group.label: group for group in bundled_code(BufferSource(BUNDLE))}
        assert list(groups) == ROCM6
        assert (groups["gfx1030"].stored, groups["gfx90a"].stored) == (5440, 6208)
        assert {group.kind for group in groups.values()} == {"hip"}

    @pytest.mark.parametrize("method", [0, 1])
    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_compressed_bundles_of_all_versions(self, version: int, method: int) -> None:
        two = packed(version, method) + bytes(100) + packed(version, method)
        found = list(bundled_code(BufferSource(two)))
        assert [group.label for group in found] == ROCM6 * 2
        assert found[0].raw == 5440 and 0 < found[0].stored < 5440
        assert found[0].compression == {("zlib", "zstd")[method]: 1}

    def test_a_real_compressed_bundle(self) -> None:
        found = list(bundled_code(BufferSource(PACKED)))
        assert {"gfx908", "gfx90a", "gfx942", "gfx950", "gfx1201"} <= {group.label for group in found}
        assert 0 < sum(group.stored for group in found) <= len(PACKED)

    def test_features_of_the_target_are_part_of_its_name(self) -> None:
        name = b"hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-"
        table = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 128, 10, len(name)) + name
        assert labels(table.ljust(138, b"\0")) == ["gfx90a:sramecc+:xnack-"]

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"CCOB",
            b"CCOB" + bytes(40),
            b"__CLANG_OFFLOAD_BUNDLE__",
            b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 100,
            TABLE,  # its pieces are outside of the file
            BUNDLE[:-1],
            packed(3, 1)[:-1],
            packed(3, 1).replace(b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfe"),
            b"CCOB" + struct.pack("<HHIIQ", 2, 7, 30, 99, 0) + bytes(6),
        ],
    )
    def test_what_only_looks_like_one(self, data: bytes) -> None:
        assert labels(data) == []

    @given(st.binary(max_size=300), st.sampled_from([b"CCOB\x03\0\x01\0", b"CCOB\x01\0\0\0", TABLE[:40], b""]))
    def test_any_bytes(self, data: bytes, start: bytes) -> None:
        labels(start + data)
        code_of_dll(BufferSource(b"MZ" + data))
        code_of_dll(BufferSource(dll((b".hip_fat", start + data))))

    @given(st.integers(0, len(TABLE) - 1), st.integers(0, 255))
    def test_a_changed_byte_of_a_table(self, place: int, byte: int) -> None:
        changed = bytearray(BUNDLE)
        changed[place] = byte
        labels(bytes(changed))


class TestLibraries:
    def test_a_dll_with_cuda(self) -> None:
        data = dll((b".text", bytes(600)), (b".nv_fatb", CUDA), (b".data", bytes(8) + CUDA))
        found = read_code_file("x.dll", BufferSource(data), len(data))
        assert found and found.kind is CodeFileKind.WINDOWS
        assert [(group.label, group.images) for group in found.architectures] == [("sm_80", 2), ("sm_90", 2)]

    def test_dlls_with_hip_and_sycl(self) -> None:
        found = code_of_dll(BufferSource(dll((b".hip_fat", packed(3, 1)), (b"__CLANG_", bytes(700)))))
        assert found
        assert [group.label for group in found if group.other == "hip"] == sorted(ROCM6)
        assert [(group.label, group.stored) for group in found if group.other == "sycl"] == [("sycl", 700)]

    def test_no_dll(self) -> None:
        for data in (b"MZ", b"MZ" + bytes(100), b"text", dll((b".text", b"x"))[:0x90]):
            assert pe_sections(BufferSource(data)) is None

    def test_elf_libraries(self) -> None:
        rocm = ElfFile(BufferSource(elf(Place(".hip_fatbin", BUNDLE))))
        assert (foreign_platform(rocm), [group.label for group in foreign_code(rocm)]) == ("ROCm", sorted(ROCM6))
        xpu = ElfFile(BufferSource(elf(Place("__CLANG_OFFLOAD_BUNDLE__sycl-spir64_gen", bytes(50)))))
        assert (foreign_platform(xpu), [group.label for group in foreign_code(xpu)]) == ("Intel XPU", ["spir64_gen"])
        cuda = ElfFile(BufferSource(elf(Place(".nv_fatbin", CUDA))))
        assert (foreign_platform(cuda), foreign_code(cuda)) == ("", ())

    def test_a_code_object_of_amd(self) -> None:
        data = elf(Place(".text", bytes(8)), machine=224)
        found = read_code_file("kernels_gfx942.hsaco", BufferSource(data), len(data))
        assert found and found.architectures[0].label == "gfx942"
        assert read_code_file("x.co", BufferSource(elf(Place(".text", bytes(8)))), 100) is None


def conda(path: Path, name: str, content: bytes) -> Path:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in (name, "../outside.so", "/abs.so"):
            row = tarfile.TarInfo(member)
            row.size = len(content)
            archive.addfile(row, io.BytesIO(content))
        link = tarfile.TarInfo("lib/link.so")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("metadata.json", "{}")
        whole.writestr(f"pkg-{path.stem}.tar.zst", zstandard.compress(stream.getvalue()))
    return path


def wheel(folder: Path, name: str, files: dict[str, bytes], platform: str = "linux_x86_64") -> Path:
    return build_wheel(folder, files, name=name, tag=f"py3-none-{platform}")


class TestCommands:
    def refused(self, source: Path, out: Path, *options: str) -> str:
        done = call("tailor", source, "--gpu", "9.0", "-o", out, *options)
        assert done.returncode == ExitCode.IMPOSSIBLE
        assert done.stdout == "" and done.stderr.startswith("error: ")
        assert not out.exists()
        return done.stderr

    def test_a_wheel_for_windows(self, tmp_path: Path) -> None:
        path = wheel(tmp_path, "win", {"win/a.dll": dll((b".nv_fatb", CUDA)), "win/b.pyd": dll((b".hip_fat", BUNDLE))},
                     "win_amd64")  # fmt: skip
        shown = call("inspect", path, "--gpu", "9.0")
        assert shown.returncode == 0
        assert "2 Windows libraries with " in shown.stdout
        detailed = call("inspect", path, "--gpu", "9.0", "--detail").stdout
        assert "gfx942" in detailed and "sm_90" in detailed
        assert "0 libraries" not in shown.stdout and "would save" not in shown.stdout
        assert "is a wheel for Windows" in self.refused(path, tmp_path / "out")
        assert "is a wheel for Windows" in self.refused(path, tmp_path / "out", "--dry-run")

    @pytest.mark.parametrize("options", [(), ("--strip",), ("--strip", "--dry-run"), ("--drop", "headers")])
    def test_a_wheel_for_rocm(self, tmp_path: Path, options: tuple[str, ...]) -> None:
        files = {"r/lib.so": elf(Place(".hip_fatbin", BUNDLE)), "r/other.so": elf(Place(".data", b"x")), "r/x.h": b""}
        path = wheel(tmp_path, "r", files)
        shown = call("inspect", path, "--json")
        (report,) = json.loads(shown.stdout)["inputs"]
        (file,) = report["files"]
        assert (file["kind"], file["name"]) == ("ROCm library", "r/lib.so")
        assert {row["kind"] for row in file["architectures"]} == {"hip"}
        assert "has GPU code for ROCm only" in self.refused(path, tmp_path / "out", *options)

    def test_what_is_never_cut_is_a_row(self, tmp_path: Path) -> None:
        """It was a row for each architecture, twenty of them in bitsandbytes."""
        files = {f"m/rocm{number}.so": elf(Place(".hip_fatbin", BUNDLE)) for number in range(3)}
        path = wheel(tmp_path, "m", files | {"m/cuda.so": elf(Place(".nv_fatbin", CUDA))})
        rows = [line for line in call("inspect", path).stdout.splitlines() if "ROCm library " in line]
        assert len(rows) == 1 and f"{len(ROCM6)} architectures" in rows[0] and "rocm0.so and 2 more" in rows[0]
        detailed = call("inspect", path, "--detail").stdout
        assert all(name in detailed for name in ROCM6)

    def test_rocm_beside_cuda_stays_as_it_is(self, tmp_path: Path) -> None:
        files = {"m/rocm.so": elf(Place(".hip_fatbin", BUNDLE)), "m/cuda.so": elf(Place(".nv_fatbin", CUDA))}
        done = call("tailor", wheel(tmp_path, "m", files), "--gpu", "9.0", "-o", tmp_path / "out", "--strip", "--json")
        assert done.returncode == 0
        rows = {row["path"]: row for row in json.loads(done.stdout)["inputs"][0]["libraries"]}
        assert rows["m/rocm.so"]["foreign"] == "ROCm"
        assert rows["m/rocm.so"]["status"] == "no-gpu-code"

    @pytest.mark.parametrize(
        ("name", "data", "what"),
        [
            ("x.dll", dll((b".nv_fatb", CUDA)), "a Windows library"),
            ("libx.so", elf(Place(".hip_fatbin", BUNDLE)), "GPU code for ROCm only"),
            ("libx.so", elf(Place("__CLANG_OFFLOAD_BUNDLE__sycl-spir64", b"x")), "GPU code for Intel XPU only"),
            ("libx.a", b"!<arch>\n" + BUNDLE, "a static library"),
        ],
    )
    def test_one_file(self, tmp_path: Path, name: str, data: bytes, what: str) -> None:
        path = tmp_path / name
        path.write_bytes(data)
        assert what in self.refused(path, tmp_path / "out.so")

    def test_folders(self, tmp_path: Path) -> None:
        for name, file, data in (
            ("windows", "x.dll", dll((b".nv_fatb", CUDA))),
            ("rocm", "x.so", elf(Place(".hip_fatbin", BUNDLE))),
        ):
            (tmp_path / name).mkdir()
            (tmp_path / name / file).write_bytes(data)
            assert "which is read and not cut" in self.refused(tmp_path / name, tmp_path / "out", "--strip")

    def test_conda_packages(self, tmp_path: Path) -> None:
        path = conda(tmp_path / "x-1-0.conda", "lib/libx.so", elf(Place(".nv_fatbin", CUDA)))
        shown = call("inspect", path, "--json")
        assert shown.returncode == 0
        (report,) = json.loads(shown.stdout)["inputs"]
        assert report["path"] == str(path)
        assert [library["name"] for library in report["libraries"]] == ["lib/libx.so"]
        assert "is a conda package" in self.refused(path, tmp_path / "out")

    @pytest.mark.parametrize("name", ["x.conda", "x.tar.bz2"])
    def test_damaged_conda_packages(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        for data in (b"text", b"PK\x03\x04", b"BZh9xx"):
            path.write_bytes(data)
            shown = call("inspect", path)
            assert shown.returncode == ExitCode.BAD_INPUT and "damaged conda package" in shown.stderr


def test_what_holds_no_gpu_code_is_named_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "t64.exe"
    place.write_bytes(dll((b".text", b"code")))
    assert "1 Windows library without GPU code, and no library for Linux." in call("inspect", str(place)).stdout
    (tmp_path / "tool.dll").write_bytes(dll((b".text", b"code")))
    assert "2 Windows libraries without GPU code" in call("inspect", str(tmp_path)).stdout
