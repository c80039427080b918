"""Level 1 on whole artifacts: wheels, wheelhouses, folders, environments, good and bad."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.unit.gpucode.builders import Entry, Place, container, elf
from tests.unit.tailoring.helpers import install
from tests.unit.verification.conftest import HOST
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import Capability, load_catalog
from torchtailor.cli import main
from torchtailor.code.hostcode.analyse import HostCode, analyse
from torchtailor.core.disk import hash_file
from torchtailor.core.errors import BadInputError, NoMatchError
from torchtailor.trees.artifact.artifact import Artifact, ArtifactKind, open_artifact
from torchtailor.trees.artifact.libraries import LibraryFile
from torchtailor.verification.result import Check, CheckOutcome
from torchtailor.verification.static.coverage import compare_code
from torchtailor.verification.static.cuts import CutRecord
from torchtailor.verification.static.elf_checks import elf_checks, promised_glibc
from torchtailor.verification.static.elf_facts import ElfFacts
from torchtailor.verification.static.expect import expectation
from torchtailor.verification.static.host_checks import host_checks
from torchtailor.verification.static.read import LibraryFacts
from torchtailor.verification.static.verify import StaticProof, verify_static
from torchtailor.workload.hook import HOOK_NAME

CATALOG = load_catalog()
H100 = Capability.parse("9.0")


def prove(
    target: Path, *, gpus: Sequence[str] = (), isa: str = "", variant: str = "", against: Path | None = None
) -> StaticProof:
    artifact = open_artifact(target)
    capabilities = [Capability.parse(gpu) for gpu in gpus]
    expected = expectation(artifact, CATALOG, variant=variant, gpus=capabilities, isa=isa)
    stock = open_artifact(against) if against else None
    return verify_static(artifact, expected, CATALOG, stock=stock)


def line(proof: StaticProof, begins: str) -> Check:
    found = [check for check in proof.checks if check.name.startswith(begins)]
    assert found, [check.name for check in proof.checks]
    return next((check for check in found if check.failed), found[0])


def failures(proof: StaticProof) -> list[str]:
    return [check.name for check in proof.checks if check.failed]


def tailored(stock: Path, gpu: str, tmp_path: Path) -> Path:
    out = tmp_path / f"cut-{gpu}"
    assert main(["tailor", str(stock), "--gpu", gpu, "-o", str(out)]) == 0
    (wheel,) = out.glob("*.whl")
    return wheel


class TestGpuCode:
    def test_stock_holds_code_for_the_gpu(self, stock: Path) -> None:
        proof = prove(stock, gpus=["9.0"])
        assert failures(proof) == []
        assert "native" in line(proof, "GPU code for sm90: libtorch_cuda.so").reason
        assert line(proof, "GPU code: nothing foreign").outcome is CheckOutcome.NOT_APPLICABLE

    def test_a_cut_for_the_gpu_passes_against_stock(self, stock: Path, tmp_path: Path) -> None:
        proof = prove(tailored(stock, "9.0", tmp_path), gpus=["9.0"], against=stock)
        assert failures(proof) == []
        assert "byte for byte" in line(proof, "coverage against stock").reason
        assert "9.0" in line(proof, "GPU code: nothing foreign").reason
        assert line(proof, "manifest").outcome is CheckOutcome.PASS

    def test_a_cut_for_another_gpu_fails_with_the_right_words(self, stock: Path, tmp_path: Path) -> None:
        proof = prove(tailored(stock, "8.0", tmp_path), gpus=["9.0"], against=stock)
        check = line(proof, "GPU code for sm90: libtorch_cuda.so")
        assert check.failed
        assert "holds sm_80" in check.reason
        assert "none of it runs on 9.0" in check.reason
        assert "no kernel image is available" in check.reason
        assert "--gpu 9.0" in check.reason
        lost = line(proof, "coverage: libtorch_cuda.so")
        assert lost.failed
        assert lost.details["kernels"]

    def test_the_gpu_is_read_from_the_manifest(self, stock: Path, tmp_path: Path) -> None:
        artifact = open_artifact(tailored(stock, "8.0", tmp_path))
        expected = expectation(artifact, CATALOG)
        assert [str(gpu) for gpu in expected.gpus] == ["8.0"]
        assert expected.source == "torchtailor.json"

    def test_figures_of_the_past_come_from_the_manifest(self, stock: Path, tmp_path: Path) -> None:
        rows = {row["name"]: row for row in prove(tailored(stock, "9.0", tmp_path)).facts["libraries"]}
        before = {library.name: library.size for library in open_artifact(stock).libraries}
        for name in ("torch/lib/libtorch_cuda.so", "torch/lib/libtorch_cpu.so"):
            row = rows[name]
            assert row["before"]["size"] == before[name]
            assert sum(row["before"]["bytes"].values()) == before[name]
        assert "sm_80" in rows["torch/lib/libtorch_cuda.so"]["before"]["bytes"]
        assert "sm_80" not in rows["torch/lib/libtorch_cuda.so"]["bytes"]

    def test_what_a_wheel_was_made_from_has_both_sizes(self, stock: Path, tmp_path: Path) -> None:
        cut = tailored(stock, "9.0", tmp_path)
        facts = prove(cut).facts
        (made,) = facts["made"]["wheels"]
        assert (made["input"]["size"], made["output"]["size"]) == (stock.stat().st_size, cut.stat().st_size)
        assert facts["torch"] == "2.10.0"
        assert facts["kept_images"] > 0

    def test_foreign_code_in_what_says_it_was_cut(self, stock: Path, tmp_path: Path, fat: bytes) -> None:
        """Somebody put the stock library back under the manifest of a cut."""
        wheel = tailored(stock, "9.0", tmp_path)
        forged = _with_member(wheel, "torch/lib/libtorch_cuda.so", fat, tmp_path)
        proof = prove(forged)
        assert "sm_80" in line(proof, "GPU code: nothing foreign").reason
        assert {"GPU code: nothing foreign", "manifest"} <= set(failures(proof))

    def test_images_without_kernels(self, tmp_path: Path) -> None:
        """libcufftw.so has one image for one old GPU and no kernel: of 872 bytes in CUDA 12, of 1904 in CUDA 13."""
        library = tmp_path / "libcufftw.so"
        for filling in (872, 1904):
            cubin = elf(Place(".nv.info", bytes(filling), flags=0), machine=190)
            library.write_bytes(elf(Place(".nv_fatbin", container(Entry(cubin, sm=52)))))
            check = line(prove(library, gpus=["9.0"]), "GPU code for sm90: libcufftw.so")
            assert check.outcome is CheckOutcome.NOT_APPLICABLE
            assert "without a single kernel" in check.reason
        cubin = elf(Place(".text.kernel", bytes(800), flags=6), machine=190)
        for payload in (cubin, bytes(4000)):  # with a kernel; and what cannot be read may have one
            library.write_bytes(elf(Place(".nv_fatbin", container(Entry(payload, sm=52)))))
            assert line(prove(library, gpus=["9.0"]), "GPU code for sm90: libcufftw.so").failed

    def test_orin_has_one_of_two_driver_stacks(self, tmp_path: Path) -> None:
        """JetPack 7.2 takes the cubin, and JetPack 6 the PTX: the cut keeps both, and either is missed."""
        stock, thin = tmp_path / "libx.so", tmp_path / "out" / "libx.so"
        ptx, cubin = Entry(bytes(4000), kind=1, sm=80), Entry(bytes(range(200)) * 90, sm=80)
        stock.write_bytes(elf(Place(".nv_fatbin", container(ptx, cubin, Entry(bytes(80000), sm=90)))))
        assert main(["tailor", str(stock), "--gpu", "8.7", "-o", str(thin)]) == 0
        assert failures(prove(thin, gpus=["8.7"], against=stock)) == []
        for left in (ptx, cubin):
            thin.write_bytes(elf(Place(".nv_fatbin", container(left))))
            assert line(prove(thin, gpus=["8.7"], against=stock), "coverage").failed

    def test_orin_with_desktop_cubins_alone(self, tmp_path: Path) -> None:
        stock, thin = tmp_path / "libx.so", tmp_path / "out" / "libx.so"
        codes = Entry(bytes(range(200)) * 90, sm=80), Entry(bytes(80000), sm=90)
        stock.write_bytes(elf(Place(".nv_fatbin", container(*codes))))
        assert main(["tailor", str(stock), "--gpu", "8.7", "-o", str(thin)]) == 0
        proof = prove(thin, gpus=["8.7"], against=stock)
        assert failures(proof) == []
        assert "given JetPack 7.2" in line(proof, "GPU code for sm87").reason

    def test_what_was_never_there_is_not_fixed_by_tailoring(self, tmp_path: Path) -> None:
        (tmp_path / "libold.so").write_bytes(elf(Place(".nv_fatbin", container(Entry(bytes(4000), sm=80)))))
        reason = line(prove(tmp_path / "libold.so", gpus=["9.0"]), "GPU code for sm90: libold.so").reason
        assert "tailor the stock" not in reason
        assert "use another build of the package" in reason

    def test_what_cannot_be_read_is_no_cpu_build(self, tmp_path: Path, fat: bytes) -> None:
        (tmp_path / "libtorch_cuda.so").write_bytes(fat[: len(fat) // 2])
        reason = line(prove(tmp_path / "libtorch_cuda.so", gpus=["9.0"]), "GPU code").reason
        assert "cannot be read" in reason
        assert "CPU build" not in reason

    def test_a_cut_for_another_gpu_took_the_code_of_the_one_asked_for(self, stock: Path, tmp_path: Path) -> None:
        check = line(prove(tailored(stock, "8.0", tmp_path), gpus=["9.0"]), "GPU code: nothing foreign")
        assert check.failed
        assert "cut for 8.0; code that 9.0 would use was removed: libtorch_cuda.so (sm_90" in check.reason

    def test_what_the_cut_kept_for_its_own_gpu_is_not_foreign_to_another(self, tmp_path: Path) -> None:
        """Cut for 9.0 with --keep-ptx and asked about 12.0, which runs the PTX that it would run of stock."""
        stock, thin = tmp_path / "libx.so", tmp_path / "out" / "libx.so"
        code = container(
            Entry(bytes(4000), kind=1, sm=90), Entry(bytes(range(200)) * 90, sm=90), Entry(bytes(80000), sm=80)
        )
        stock.write_bytes(elf(Place(".nv_fatbin", code)))
        assert main(["tailor", str(stock), "--gpu", "9.0", "--keep-ptx", "-o", str(thin)]) == 0
        proof = prove(thin, gpus=["12.0"], against=stock)
        assert failures(proof) == []
        assert "1 library was cut for 9.0" in line(proof, "GPU code: nothing foreign").reason

    def test_what_the_cut_removed_and_the_gpu_asked_for_would_use(self, tmp_path: Path) -> None:
        """PTX alone is left, which 9.0 can use: but the cut for 8.0 took its cubin."""
        code = container(Entry(bytes(4000), kind=1, sm=80), Entry(bytes(range(200)) * 400, sm=90))
        (tmp_path / "libx.so").write_bytes(elf(Place(".nv_fatbin", code)))
        assert main(["tailor", str(tmp_path / "libx.so"), "--gpu", "8.0", "-o", str(tmp_path / "thin.so")]) == 0
        proof = prove(tmp_path / "thin.so", gpus=["9.0"])
        check = line(proof, "GPU code: nothing foreign")
        assert check.failed
        assert check.reason == "cut for 8.0; code that 9.0 would use was removed: thin.so (sm_90)"
        assert not line(prove(tmp_path / "thin.so"), "GPU code: nothing foreign").failed

    def test_one_of_two_targets_is_asked_for(self, stock: Path, tmp_path: Path) -> None:
        proof = prove(tailored(stock, "8.0,9.0", tmp_path), gpus=["9.0"])
        assert failures(proof) == []

    def test_a_minor_that_runs_the_code_is_not_foreign(self, stock: Path, tmp_path: Path) -> None:
        assert not line(prove(tailored(stock, "8.0", tmp_path), gpus=["8.9"]), "GPU code: nothing foreign").failed

    def test_a_library_that_never_had_code_for_the_gpu(self, tmp_path: Path, fat: bytes) -> None:
        """Without stock, the manifest tells that nothing was there to keep; what was never cut lost nothing."""
        stock = _with_old_library(tmp_path, fat)
        name = "GPU code for sm90: libold.so"
        check = line(prove(stock, gpus=["9.0"]), name)
        assert (check.outcome, "it was not cut by torchtailor" in check.reason) == (CheckOutcome.NOT_APPLICABLE, True)
        cut = tailored(stock, "9.0", tmp_path)
        proof = prove(cut)
        check = line(proof, name)
        assert check.outcome is CheckOutcome.NOT_APPLICABLE
        assert "holds sm_75, nothing for 9.0: it had none before the cut" in check.reason
        assert failures(proof) == []

    def test_what_the_cut_took_is_a_failure_without_stock_too(self, tmp_path: Path, fat: bytes) -> None:
        cut = tailored(_with_old_library(tmp_path, fat, fat), "7.5", tmp_path)
        forged = _with_member(cut, "torch/lib/libtorch_cuda.so", fat, tmp_path)  # so that torch itself runs
        assert line(prove(forged, gpus=["9.0"]), "GPU code for sm90: libold.so").failed

    def test_a_stock_torch_without_code_for_the_gpu_fails(self, tmp_path: Path) -> None:
        code = elf(Place(".nv_fatbin", container(Entry(bytes(4000), sm=80))))
        proof = prove(_with_old_library(tmp_path, code), gpus=["9.0"])
        assert line(proof, "GPU code for sm90: libtorch_cuda.so").failed
        assert line(proof, "GPU code for sm90: libold.so").failed

    def test_a_library_that_went_missing(self, stock: Path, tmp_path: Path) -> None:
        bare = tmp_path / "bare"
        bare.mkdir()
        cpu = (HOST / "x86_64" / "dispatched.so").read_bytes()
        wheel = build_wheel(
            bare,
            {"torch/lib/libtorch_cpu.so": cpu},
            name="torch",
            version="2.10.0",
            tag="cp313-cp313-manylinux_2_28_x86_64",
        )
        proof = prove(wheel, gpus=["9.0"], against=stock)
        assert line(proof, "coverage: libtorch_cuda.so").failed

    def test_nothing_asked_nothing_judged(self, stock: Path) -> None:
        check = line(prove(stock), "GPU code")
        assert check.outcome is CheckOutcome.NOT_APPLICABLE
        assert "sm_90" in check.reason


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_identical_image_does_not_hide_a_lost_one(tmp_path: Path, compression: str) -> None:
    code = container(Entry(bytes(range(256)) * 40, sm=90))
    (tmp_path / "stock.so").write_bytes(elf(Place(".nv_fatbin", code + code)))
    left = container(Entry(bytes(range(256)) * 40, sm=90, compression=compression))
    (tmp_path / "cut.so").write_bytes(elf(Place(".nv_fatbin", left)))
    found = compare_code("x", tmp_path / "stock.so", tmp_path / "cut.so", ())
    assert found is not None
    assert (found.needed, found.lost) == (2, 1)


def _with_old_library(tmp_path: Path, cuda: bytes, old: bytes = b"") -> Path:
    """A stock wheel with a second library, which has code for one old GPU."""
    folder = tmp_path / "two"
    folder.mkdir()
    old = old or elf(Place(".nv_fatbin", container(Entry(bytes(range(200)) * 20, sm=75))))
    return build_wheel(
        folder,
        {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": cuda, "torch/lib/libold.so": old},
        name="torch",
        version="2.10.0",
        tag="cp313-cp313-manylinux_2_28_x86_64",
    )


def _with_member(wheel: Path, name: str, data: bytes, tmp_path: Path) -> Path:
    """The same wheel with other bytes in one member, and RECORD to match."""
    from tests.unit.wheels.builder import record_of

    folder = tmp_path / "forged"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        files = {info.filename: archive.read(info) for info in archive.infolist()}
    files[name] = data
    (record,) = [member for member in files if member.endswith("/RECORD") and member.count("/") == 1]
    del files[record]
    files[record] = record_of(files, record.removesuffix("/RECORD")).encode()
    out = folder / wheel.name
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return out


class TestHostCode:
    def test_stock_stays_within_its_isa(self, stock: Path) -> None:
        proof = prove(stock, isa="avx2")
        assert "x86-64 and no more" in line(proof, "host code: baseline").reason
        assert line(proof, "host code within avx2").outcome is CheckOutcome.PASS
        assert failures(proof) == []

    def test_names_of_a_stripped_library_come_from_stock(self, tmp_path: Path) -> None:
        """Cut wheels are stripped; with stock at hand its names tell what is behind dispatch."""
        folders = []
        for name in ("helper", "stripped"):
            folder = tmp_path / name
            folder.mkdir()
            source = HOST / "x86_64" / ("startup_wide.so" if name == "helper" else "startup_wide_stripped.so")
            shutil.copy(source, folder / "libx.so")
            folders.append(folder)
        proof = prove(folders[1], isa="avx2", against=folders[0])
        assert "_GLOBAL__sub_I_startup.cpp" in line(proof, "host code within avx2").reason

    @pytest.mark.parametrize(
        ("library", "outcome", "says"),
        [
            ("leaked_template", CheckOutcome.NOT_APPLICABLE, "stock's instructions are the same"),
            ("startup_wide", CheckOutcome.FAIL, "an illegal instruction on such a CPU"),
        ],
    )
    def test_what_stock_has_too(self, tmp_path: Path, library: str, outcome: CheckOutcome, says: str) -> None:
        """A function of stock that only some operation calls is not this build's fault; what cannot even load fails."""
        stock, cut = tmp_path / "stock", tmp_path / "cut"
        for folder in (stock, cut):
            (folder / "torch").mkdir(parents=True)
            shutil.copy(HOST / "aarch64" / f"{library}.so", folder / "torch" / "libtorch_cpu.so")
        assert line(prove(cut, isa="armv8_2"), "host code within armv8_2: libtorch_cpu.so").failed
        check = line(prove(cut, isa="armv8_2", against=stock), "host code within armv8_2: libtorch_cpu.so")
        assert check.outcome is outcome
        assert says in check.reason
        shutil.copy(HOST / "aarch64" / "own_template.so", stock / "torch" / "libtorch_cpu.so")
        assert line(prove(cut, isa="armv8_2", against=stock), "host code within armv8_2: libtorch_cpu.so").failed

    def test_a_cut_is_not_disassembled_again(
        self, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The proof compared the instructions and the manifest has their hash; other bytes are read."""
        wheel = tailored(stock, "9.0", tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        reads = _count_reads(monkeypatch)
        proof = prove(wheel)
        assert (failures(proof), reads) == ([], [])
        assert "3 libraries have the instructions of stock" in line(proof, "host code as stock").reason
        other = (HOST / "x86_64" / "startup_base.so").read_bytes()
        prove(_with_member(wheel, "torch/lib/libtorch_cpu.so", other, tmp_path))
        assert [path.name for path in reads] == ["libtorch_cpu.so"]

    def test_another_stock_vouches_for_nothing(self, stock: Path, tmp_path: Path) -> None:
        """Beside a stock that is there, what the manifest says of its own does not count."""
        files = {"y/liby.so": (HOST / "x86_64" / "startup_base.so").read_bytes()}
        other = build_wheel(tmp_path, files, name="y", version="1.0", tag="py3-none-manylinux_2_28_x86_64")
        proof = prove(tailored(stock, "9.0", tmp_path), against=other)
        assert "host code as stock" not in [check.name for check in proof.checks]
        assert failures(proof) == ["coverage against stock"]
        assert "stock has none of the 3 libraries here" in line(proof, "coverage against stock").reason

    def test_stock_read_before_is_known(self, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was found in a stock library on this machine is used for its cut, an ISA asked for or not."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        prove(stock)
        wheel = tailored(stock, "9.0", tmp_path)
        reads = _count_reads(monkeypatch)
        assert "3 libraries" in line(prove(wheel), "host code: baseline").reason
        assert reads == []
        assert line(prove(wheel, isa="avx2"), "host code within avx2").outcome is CheckOutcome.PASS
        assert len(reads) == 3  # for this ISA it is another question

    @pytest.mark.parametrize(
        ("version", "outcome", "says"),
        [
            ("2.10.0", CheckOutcome.NOT_APPLICABLE, "loads on ARMv8.2, but `torch._stack` of float32"),
            ("99.0", CheckOutcome.NOT_APPLICABLE, "is not in the catalog: --cpu armv8_2 reads it"),
        ],
    )
    def test_an_official_wheel_in_a_wheelhouse(
        self, tmp_path: Path, version: str, outcome: CheckOutcome, says: str
    ) -> None:
        """`build` put it there unchanged: what it is like on the variant's CPU is known, and no fault of the build."""
        house = _wheelhouse_of_arm(tmp_path, version)
        proof = prove(house)
        assert failures(proof) == []
        check = line(proof, "host code within armv8_2: official wheel")
        assert (check.outcome, says in check.reason) == (outcome, True)
        (wheel,) = house.glob("*.whl")
        wheel.write_bytes(wheel.read_bytes() + b" ")  # not the wheel of the manifest: it is read, and judged
        assert line(prove(house), "host code within armv8_2: libtorch_cpu.so").failed

    def test_an_official_wheel_that_the_cpu_cannot_load(self, tmp_path: Path) -> None:
        catalog = load_catalog()
        isa = msgspec.structs.replace(catalog.isa("armv8_2"), requires=frozenset({"asimd"}))
        facts = LibraryFacts(LibraryFile("torch/lib/libtorch_cpu.so", "", 1, tmp_path), instructions="1")
        (_, check) = host_checks([facts], isa, catalog, {facts.name}, torch="2.10.0")
        assert check.failed
        assert "loading PyTorch 2.10.0 needs asimdrdm, atomics, crc32" in check.reason

    def test_an_isa_and_libraries_of_two_processors(self, stock: Path) -> None:
        proof = prove(stock, isa="armv8_2")
        assert line(proof, "host code within armv8_2").failed
        assert line(proof, "processor").failed


def _count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The libraries that are disassembled from here on."""
    from torchtailor.code.hostcode import cache

    reads: list[Path] = []

    def counting(path: Path, *arguments: object, **options: object) -> HostCode:
        reads.append(path)
        return analyse(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(cache, "analyse", counting)
    return reads


def _wheelhouse_of_arm(tmp_path: Path, version: str) -> Path:
    """What `build cpu-armv8_2` makes: a stock wheel whose library has a function that needs SVE."""
    house = tmp_path / "house"
    house.mkdir()
    library = (HOST / "aarch64" / "leaked_template.so").read_bytes()
    files = {"torch/lib/libtorch_cpu.so": library}
    tag = "cp313-cp313-manylinux_2_28_aarch64"
    wheel = build_wheel(house, files, name="torch", version=version, tag=tag)
    row = {"filename": wheel.name, "sha256": hash_file(wheel), "size": wheel.stat().st_size}
    manifest = {
        "variant": "pytorch-of-arm",
        "target": {"gpu": None, "isa": "armv8_2", "arch": "aarch64", "python": "3.13"},
        "way": "wheel",
        "wheels": [{"name": "torch", "step": "unchanged", "input": row, "output": row}],
    }
    (house / "manifest.json").write_text(json.dumps(manifest))
    return house


class TestFiles:
    @pytest.mark.parametrize("step", ["unchanged", "built"])
    def test_a_tag_that_promises_an_older_glibc(self, tmp_path: Path, step: str) -> None:
        """NVIDIA's cuSPARSELt needs glibc 2.27 and is tagged manylinux2014: a note, unless we gave the tag."""
        library = LibraryFile("nvidia/libx.so", "x-1.0-py3-none-manylinux2014_x86_64.whl", 1, tmp_path)
        facts = LibraryFacts(library, elf=ElfFacts("x86_64", "", (), (), ("GLIBC_2.27",), ()))
        (tmp_path / library.owner).write_bytes(b"")
        rows = [{"name": "x", "step": step, "output": {"filename": library.owner, "sha256": "1", "size": 0}}]
        (tmp_path / "manifest.json").write_text(json.dumps({"wheels": rows}))
        artifact = Artifact(tmp_path, ArtifactKind.WHEELHOUSE, (tmp_path / library.owner,))
        (check,) = [check for check in elf_checks(artifact, [facts]) if check.name.startswith("glibc")]
        assert check.outcome is (CheckOutcome.FAIL if step == "built" else CheckOutcome.NOT_APPLICABLE)
        assert "needs glibc 2.27 (libx.so); its tag promises 2.17" in check.reason

    def test_a_hook_that_needs_a_newer_glibc_than_the_tag(self, tmp_path: Path) -> None:
        """It is ours, so it fails, also where a library of the publisher's needs a still newer one."""
        wheel = tmp_path / "x-1.0-py3-none-manylinux2014_x86_64.whl"
        wheel.write_bytes(b"")
        names = {"nvidia/libx.so": "GLIBC_2.38", f"torchtailor-packs/x/{HOOK_NAME}": "GLIBC_2.34"}
        libraries = [
            LibraryFacts(LibraryFile(name, wheel.name, 1, tmp_path), elf=ElfFacts("x86_64", "", (), (), (version,), ()))
            for name, version in names.items()
        ]
        artifact = Artifact(wheel, ArtifactKind.WHEEL, (wheel,))
        (check,) = [check for check in elf_checks(artifact, libraries) if check.name.startswith("glibc")]
        assert check.outcome is CheckOutcome.FAIL
        assert f"needs glibc 2.34 ({HOOK_NAME}); its tag promises 2.17" in check.reason
        assert "cut with a released torchtailor" in check.reason

    def test_a_byte_changed(self, stock: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(stock) as archive:
            record = archive.read("torch-2.10.0.dist-info/RECORD").decode()
        wrong = record.replace("torch/__init__.py,sha256=", "torch/__init__.py,sha256=AAAA", 1)
        wrong = "\n".join(
            row[: row.index("sha256=") + 7] + "A" * 43 + row[row.rindex(",") :] if "__init__" in row else row
            for row in record.splitlines()
        )
        folder = tmp_path / "wrong"
        folder.mkdir()
        with zipfile.ZipFile(stock) as archive:
            files = {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}
        wheel = build_wheel(
            folder, files, name="torch", version="2.10.0", tag="cp313-cp313-manylinux_2_28_x86_64", record=wrong + "\n"
        )
        assert line(prove(wheel), "RECORD and hashes").failed

    def test_a_changed_library(self, stock: Path, tmp_path: Path) -> None:
        with zipfile.ZipFile(stock) as archive:
            files = {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}
            record = archive.read("torch-2.10.0.dist-info/RECORD").decode()
        files["torch/lib/libtorch_cpu.so"] = (HOST / "x86_64" / "startup_base.so").read_bytes()
        folder = tmp_path / "changed"
        folder.mkdir()
        wheel = build_wheel(
            folder, files, name="torch", version="2.10.0", tag="cp313-cp313-manylinux_2_28_x86_64", record=record
        )
        proof = prove(wheel)
        assert line(proof, "RECORD and hashes").failed

    def test_a_changed_library_of_a_wheel_that_vendors_another(self, stock: Path, tmp_path: Path) -> None:
        vendored = "torch/_vendor/packaging-24.0.dist-info/RECORD"
        whole = _with_member(stock, vendored, b"packaging/__init__.py,,\n", tmp_path)
        assert line(prove(whole), "RECORD and hashes").outcome is CheckOutcome.PASS
        with zipfile.ZipFile(whole) as archive:
            files = {n: archive.read(n) for n in archive.namelist() if not n.startswith("torch-2.10.0.dist-info/")}
            record = archive.read("torch-2.10.0.dist-info/RECORD").decode()
        library = files["torch/lib/libtorch_cpu.so"]
        files["torch/lib/libtorch_cpu.so"] = library[:-1] + bytes([library[-1] ^ 1])  # of the same size
        tag = "cp313-cp313-manylinux_2_28_x86_64"
        folder = tmp_path / "changed"
        folder.mkdir()
        wheel = build_wheel(folder, files, name="torch", version="2.10.0", tag=tag, record=record)
        check = line(prove(wheel), "RECORD and hashes")
        assert check.failed
        assert "libtorch_cpu.so" in check.reason

    def test_the_wrong_python(self, tmp_path: Path) -> None:
        module = (HOST / "x86_64" / "startup_base.so").read_bytes()
        wheel = build_wheel(
            tmp_path,
            {"torch/_C.cpython-312-x86_64-linux-gnu.so": module},
            name="torch",
            version="2.10.0",
            tag="cp313-cp313-manylinux_2_28_x86_64",
        )
        check = line(prove(wheel), "Python ABI")
        assert check.failed
        assert "cp312" in check.reason
        assert "cp313" in check.reason

    def test_the_wrong_python_for_the_variant(self, stock: Path) -> None:
        proof = prove(stock, variant="pytorch210-python312-cuda13_0-sm90-avx2")
        assert "Python 3.12" in line(proof, "Python ABI").reason
        assert line(proof, "Python ABI").failed

    def test_a_short_name_means_the_torch_that_is_there(self, stock: Path) -> None:
        proof = prove(stock, variant="sm90-avx2")
        assert line(proof, "PyTorch version").outcome is CheckOutcome.PASS

    def test_another_torch_than_the_variant(self, stock: Path) -> None:
        assert line(prove(stock, variant="pytorch215-python313-cuda13_2-sm90-avx2"), "PyTorch version").failed

    def test_a_library_for_another_processor(self, tmp_path: Path) -> None:
        other = (HOST / "aarch64" / "startup_base.so").read_bytes()
        wheel = build_wheel(
            tmp_path, {"torch/lib/libx.so": other}, name="torch", version="2.10.0", tag="cp313-cp313-linux_x86_64"
        )
        check = line(prove(wheel), "processor")
        assert check.failed
        assert "aarch64" in check.reason

    def test_writable_and_executable(self, tmp_path: Path) -> None:
        data = bytearray(elf(Place(".text", b"\xc3" * 16, flags=6)))
        data[68] = 7  # the segment's flags
        (tmp_path / "libbad.so").write_bytes(data)
        check = line(prove(tmp_path), "ELF: libbad.so")
        assert "both writable and executable" in check.reason

    def test_an_executable_stack_that_stock_has_too_is_named_as_its_own(self, tmp_path: Path) -> None:
        data = bytearray((HOST / "x86_64" / "startup_base.so").read_bytes())
        flags = data.index((0x6474E551).to_bytes(4, "little")) + 4  # of the segment GNU_STACK
        for folder, bits in (("cut", 7), ("stock", 7), ("sound", 6)):
            data[flags] = bits
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "libstack.so").write_bytes(data)
        alone = line(prove(tmp_path / "cut"), "ELF: libstack.so")
        assert alone.failed and "executable stack" in alone.reason
        check = line(prove(tmp_path / "cut", against=tmp_path / "stock"), "ELF: libstack.so")
        assert check.outcome is CheckOutcome.PASS and "stock's own" in check.reason
        assert line(prove(tmp_path / "cut", against=tmp_path / "sound"), "ELF: libstack.so").failed

    def test_a_damaged_library_in_a_folder(self, tmp_path: Path) -> None:
        shutil.copy(HOST / "x86_64" / "startup_base.so", tmp_path / "good.so")
        (tmp_path / "bad.so").write_bytes((HOST / "x86_64" / "startup_base.so").read_bytes()[:300])
        proof = prove(tmp_path)
        assert failures(proof) == ["ELF: bad.so"]

    @pytest.mark.parametrize(
        ("platform", "glibc"),
        [
            ("manylinux_2_28_x86_64", "2.28"),
            ("manylinux2014_x86_64.manylinux_2_17_x86_64", "2.17"),
            ("manylinux_2_27_x86_64.manylinux_2_28_x86_64", "2.27"),
            ("manylinux1_x86_64", "2.5"),
            ("linux_x86_64", None),
            ("any", None),
        ],
    )
    def test_what_a_tag_promises(self, platform: str, glibc: str | None) -> None:
        promised = promised_glibc(platform)
        assert (str(promised) if promised else None) == glibc


def _needy(tmp_path: Path, *requires: str) -> Path:
    """An environment with a package that requires others."""
    files = {"torch/lib/libtorch_cpu.so": (HOST / "x86_64" / "dispatched.so").read_bytes()}
    lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
    env = tmp_path / "env"
    install(build_wheel(tmp_path, files, name="torch", metadata=lines), env / "lib" / "python3.13" / "site-packages")
    (env / "pyvenv.cfg").write_text("home = /usr\n")
    return env


class TestKinds:
    def test_wheelhouse_with_a_manifest_must_be_complete(self, stock: Path, tmp_path: Path) -> None:
        house = tmp_path / "house"
        (house / "wheels").mkdir(parents=True)
        files = {"torch/lib/libtorch_cpu.so": (HOST / "x86_64" / "dispatched.so").read_bytes()}
        build_wheel(
            house / "wheels",
            files,
            name="torch",
            version="2.10.0",
            tag="cp313-cp313-manylinux_2_28_x86_64",
            metadata="Requires-Dist: filelock>=3\nRequires-Dist: numpy; extra == 'np'\n",
        )
        manifest = {
            "variant": "pytorch210-python313-cuda13_0-sm90-avx2",
            "wheels": [],
            "requirements": ["torch==2.10.0"],
        }
        (house / "manifest.json").write_text(json.dumps(manifest))
        artifact = open_artifact(house)
        assert artifact.kind is ArtifactKind.WHEELHOUSE
        proof = prove(house)
        check = line(proof, "dependencies")
        assert check.failed
        assert "filelock" in check.reason
        assert "numpy" not in check.reason
        build_wheel(house / "wheels", {"filelock/__init__.py": b""}, name="filelock", version="3.1")
        assert line(prove(house), "dependencies").outcome is CheckOutcome.PASS

    def test_extras_that_a_package_asks_of_another_are_followed(self, tmp_path: Path) -> None:
        def build(name: str, version: str, *requires: str) -> None:
            lines = "".join(f"Requires-Dist: {one}\n" for one in requires)
            build_wheel(tmp_path, {f"{name}/__init__.py": b""}, name=name, version=version, metadata=lines)

        build("torch", "2.10.0", "toolkit[blas]==13.2")
        build("toolkit", "13.2", "toolkit[dev]; extra == 'blas'", "blas>=2; extra == 'dev'", "fft; extra == 'fft'")
        (tmp_path / "manifest.json").write_text(json.dumps({"wheels": [], "requirements": ["torch==2.10.0"]}))
        assert "1 requirement not met: blas>=2 (for toolkit)" in line(prove(tmp_path), "dependencies").reason
        build("blas", "1.0")
        check = line(prove(tmp_path), "dependencies")
        assert check.failed
        assert "1.0 is included" in check.reason
        build("blas", "2.1")
        (tmp_path / "blas-1.0-py3-none-any.whl").unlink()
        assert "all 3 requirements of 3 packages" in line(prove(tmp_path), "dependencies").reason

    def test_a_variant_of_another_catalog(self, stock: Path, tmp_path: Path) -> None:
        house = tmp_path / "house"
        house.mkdir()
        shutil.copy(stock, house)
        target = {"gpu": "9.0", "isa": "avx2", "arch": "x86_64", "python": "3.13"}
        (house / "manifest.json").write_text(json.dumps({"variant": "pytorch99-of-mine", "target": target}))
        expected = expectation(open_artifact(house), CATALOG)
        assert (expected.gpus, expected.isa and expected.isa.name, expected.python) == ((H100,), "avx2", "3.13")

    def test_environment(self, stock: Path, tmp_path: Path) -> None:
        env = tmp_path / "env"
        site = env / "lib" / "python3.13" / "site-packages"
        install(stock, site)
        (env / "pyvenv.cfg").write_text("home = /usr\n")
        artifact = open_artifact(env)
        assert artifact.kind is ArtifactKind.ENVIRONMENT
        assert "torch/lib/libtorch_cuda.so" in {library.name for library in artifact.libraries}
        assert artifact.torch_version == "2.10.0"
        proof = prove(env, gpus=["9.0"], against=stock)
        assert failures(proof) == []
        record = site / "torch-2.10.0.dist-info" / "RECORD"
        record.write_text(f"../../../bin/torchrun,,\n{record.read_text()}")
        assert line(prove(env), "RECORD and hashes").failed
        assert not line(prove(site), "RECORD and hashes").failed  # a copy of site-packages has no scripts
        (env / "bin").mkdir()
        (env / "bin" / "torchrun").touch()
        assert not line(prove(env), "RECORD and hashes").failed
        (site / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"\x7fELF" + bytes(100))
        assert line(prove(env), "RECORD and hashes").failed

    def test_dependencies_without_record_are_there(self, tmp_path: Path) -> None:
        """As Debian, conda and old setuptools leave them."""
        env = _needy(tmp_path, "filelock", "sympy", "jinja2>=3")
        site = env / "lib" / "python3.13" / "site-packages"
        assert line(prove(env), "dependencies").failed
        metadata = "Metadata-Version: 2.1\nName: {}\nVersion: 3.1\n"
        for place in ("filelock-3.1.dist-info/METADATA", "sympy-3.1.egg-info/PKG-INFO", "Jinja2-3.1.egg-info"):
            (site / place).parent.mkdir(exist_ok=True)
            (site / place).write_text(metadata.format(place.partition("-")[0]))
        (site / "broken-1.0.egg-info").write_text("")
        assert "all 3 requirements of 1 package are met" in line(prove(env), "dependencies").reason
        (site / "Jinja2-3.1.egg-info").write_text(metadata.format("Jinja2").replace("3.1", "2.9"))
        assert "2.9 is included" in line(prove(env), "dependencies").reason

    def test_dependencies_may_be_those_of_the_system(self, tmp_path: Path) -> None:
        env = _needy(tmp_path, "filelock")
        for target in (env, env / "lib" / "python3.13" / "site-packages"):
            (env / "pyvenv.cfg").write_text("home = /usr\ninclude-system-site-packages = false\n")
            assert line(prove(target), "dependencies").failed
            (env / "pyvenv.cfg").write_text("home = /usr\ninclude-system-site-packages = true\n")
            assert line(prove(target), "dependencies").outcome is CheckOutcome.NOT_APPLICABLE

    def test_environment_cut_in_place(self, stock: Path, tmp_path: Path) -> None:
        env = tmp_path / "env"
        install(stock, env / "lib" / "python3.13" / "site-packages")
        (env / "pyvenv.cfg").write_text("home = /usr\n")
        assert main(["tailor", "--env", str(env), "--gpu", "9.0"]) == 0
        proof = prove(env, against=stock)
        assert failures(proof) == []
        assert line(proof, "manifest").outcome is CheckOutcome.PASS
        assert "9.0" in line(proof, "GPU code: nothing foreign").reason
        assert "byte for byte" in line(proof, "coverage against stock").reason

    def test_folder_that_tailor_made(self, arm_torch: Path, tmp_path: Path) -> None:
        """`tailor FOLDER -o OUT` leaves its manifest in OUT itself."""
        site, out = tmp_path / "site", tmp_path / "out"
        install(arm_torch, site)
        assert main(["tailor", str(site), "--gpu", "9.0", "-o", str(out)]) == 0
        proof = prove(out, against=site)
        assert failures(proof) == []
        assert "1 library was cut for 9.0" in line(proof, "GPU code: nothing foreign").reason
        assert line(proof, "manifest").outcome is CheckOutcome.PASS
        assert expectation(open_artifact(out), CATALOG).gpus == (H100,)
        (out / "torch" / "lib" / "libtorch_cuda.so").write_bytes((site / "torch/lib/libtorch_cuda.so").read_bytes())
        assert line(prove(out), "GPU code: nothing foreign").failed
        assert "is not the file that was written" in line(prove(out), "manifest").reason

    def test_folder_made_of_a_cut_environment(self, arm_torch: Path, tmp_path: Path) -> None:
        """Two cuts leave two manifests; each file is one of theirs."""
        env, out = tmp_path / "env", tmp_path / "out"
        install(arm_torch, env / "lib" / "python3.13" / "site-packages")
        (env / "pyvenv.cfg").write_text("home = /usr\n")
        assert main(["tailor", "--env", str(env), "--gpu", "8.0,9.0"]) == 0
        assert main(["tailor", str(env), "--gpu", "9.0", "-o", str(out)]) == 0
        proof = prove(out, against=env)
        assert failures(proof) == []
        assert line(proof, "manifest").outcome is CheckOutcome.PASS

    def test_library_that_tailor_made(self, arm_fat: bytes, tmp_path: Path) -> None:
        (tmp_path / "libfat.so").write_bytes(arm_fat)
        assert main(["tailor", str(tmp_path / "libfat.so"), "--gpu", "9.0", "-o", str(tmp_path / "thin.so")]) == 0
        proof = prove(tmp_path / "thin.so")
        assert "9.0" in line(proof, "GPU code: nothing foreign").reason
        assert line(proof, "manifest").outcome is CheckOutcome.PASS

    def test_nix_result(self, tmp_path: Path) -> None:
        result = tmp_path / "result"
        lib = result / "lib" / "python3.13" / "site-packages" / "torch" / "lib"
        lib.mkdir(parents=True)
        (result / "nix-support").mkdir()
        shutil.copy(HOST / "x86_64" / "dispatched.so", lib / "libtorch_cpu.so")
        artifact = open_artifact(result)
        assert artifact.kind is ArtifactKind.NIX
        assert [library.name for library in artifact.libraries] == ["torch/lib/libtorch_cpu.so"]

    def test_library(self) -> None:
        artifact = open_artifact(HOST / "x86_64" / "dispatched.so")
        assert artifact.kind is ArtifactKind.LIBRARY

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(NoMatchError):
            open_artifact(tmp_path / "none")
        with pytest.raises(BadInputError, match="no libraries"):
            _ = open_artifact(tmp_path).libraries

    def test_no_zip(self, tmp_path: Path) -> None:
        path = tmp_path / "torch-2.10.0-cp313-cp313-linux_x86_64.whl"
        path.write_bytes(b"no zip at all")
        with pytest.raises(BadInputError):
            _ = open_artifact(path).libraries

    def test_a_manifest_that_is_no_json(self, tmp_path: Path, stock: Path) -> None:
        house = tmp_path / "house"
        house.mkdir()
        shutil.copy(stock, house)
        (house / "manifest.json").write_text("{")
        with pytest.raises(BadInputError, match="is damaged"):
            _ = open_artifact(house).manifest


class TestLibrariesOfTheSystem:
    """A torch compiled here may be linked with what the system has: its wheelhouse says so, an environment shows it."""

    @staticmethod
    def needed(kind: ArtifactKind, wanted: str, manifest: dict[str, object]) -> Check:
        file = LibraryFile("torch/lib/libtorch_cpu.so", "", 1, Path("libtorch_cpu.so"))
        facts = LibraryFacts(file, elf=ElfFacts("x86_64", "libtorch_cpu.so", (wanted,), ("$ORIGIN",), (), ()))
        artifact = Artifact(Path("x"), kind)
        vars(artifact).update(libraries=(file,), manifest=manifest, tailored={})
        return next(check for check in elf_checks(artifact, (facts,)) if check.name == "NEEDED entries")

    def test_what_the_manifest_names_is_found(self) -> None:
        manifest: dict[str, object] = {"proof": {"libraries_of_the_system": ["libopenblas.so.0"]}}
        check = self.needed(ArtifactKind.WHEELHOUSE, "libopenblas.so.0", manifest)
        assert check.outcome is CheckOutcome.PASS
        assert "libopenblas.so.0" in check.reason

    @pytest.mark.parametrize("proof", [None, {}, {"libraries_of_the_system": ["libfmt.so.10"]}])
    def test_what_it_does_not_name_is_missing(self, proof: object) -> None:
        assert self.needed(ArtifactKind.WHEELHOUSE, "libopenblas.so.0", {"proof": proof}).failed

    @pytest.mark.parametrize(("metadata", "missing"), [("Requires-Dist: nvidia-nvjitlink\n", False), ("", True)])
    def test_a_wheel_alone_lacks_what_it_requires(self, tmp_path: Path, metadata: str, missing: bool) -> None:
        """cuSPARSE needs libnvJitLink.so.13 beside itself, where another of NVIDIA's packages puts it."""
        path = build_wheel(tmp_path, {}, name="nvidia-cusparse", tag="py3-none-linux_x86_64", metadata=metadata)
        file = LibraryFile("nvidia/cu13/lib/libcusparse.so.12", path.name, 1, path)
        elf_of_it = ElfFacts("x86_64", "libcusparse.so.12", ("libnvJitLink.so.13",), ("$ORIGIN",), (), ())
        artifact = Artifact(path, ArtifactKind.WHEEL, (path,))
        checks = elf_checks(artifact, (LibraryFacts(file, elf=elf_of_it),))
        check = next(check for check in checks if check.name == "NEEDED entries")
        assert check.failed is missing
        assert "libnvJitLink.so.13" in check.reason

    def test_an_environment_has_what_its_machine_has(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "libopenblas.so.0").touch()
        monkeypatch.setattr("torchtailor.verification.static.elf_checks._loader_places", lambda: (tmp_path,))
        assert not self.needed(ArtifactKind.ENVIRONMENT, "libopenblas.so.0", {}).failed
        assert self.needed(ArtifactKind.ENVIRONMENT, "libfmt.so.10", {}).failed


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"status": "stripped"}, True),
        ({"status": "cut", "pages": {"cold": 1 << 20}}, True),
        ({"status": "cut"}, False),
        ({"status": "cut", "pages": {}, "dropped": {"sm_80": {"images": 1, "stored": 9}}}, False),
    ],
)
def test_a_library_that_lost_pages_only_has_all_of_its_gpu_code(row: dict[str, object], kept: bool) -> None:
    """As NVIDIA's libnvperf_host, whose few cubins of other GPUs were called foreign code."""
    assert CutRecord("", "lib.so", {}, row).code_kept is kept
