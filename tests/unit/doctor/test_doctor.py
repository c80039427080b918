"""The doctor's answers for recorded machines with torches that do and do not fit them."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from tests import machines
from tests.unit.tailoring.helpers import install
from tests.unit.wheels.builder import build_wheel
from torchtailor.advise.host.model import InstalledTorch
from torchtailor.advise.host.probe import CommandOutcome, CommandResult
from torchtailor.advise.host.torches import _SCRIPT
from torchtailor.cli import main
from torchtailor.code.binary.elf import ElfFile
from torchtailor.code.binary.source import open_source
from torchtailor.core.errors import ExitCode
from torchtailor.tailoring.environment_plan import environment_sites
from torchtailor.verification.doctor.collect import _asked_of, _environment, _with_cut
from torchtailor.verification.doctor.examine import DoctorReport, Problem, TorchEnvironment, examine
from torchtailor.verification.doctor.fixes import Interpreter
from torchtailor.verification.doctor.symptoms import ProblemKind, read_symptoms
from torchtailor.verification.failures import Diagnosis, FailureTable, diagnose, load_table
from torchtailor.verification.static.elf_facts import read_elf
from torchtailor.workload.trace import Trace, write_trace

CU128 = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100", "sm_120")
WHEELS = machines.catalog().wheel_index.removesuffix("/{label}")


def torch(version: str = "2.10.0+cu128", cuda: str | None = "12.8", codes: tuple[str, ...] = CU128) -> InstalledTorch:
    return InstalledTorch(
        version=version,
        path="/venv/lib/python3.13/site-packages/torch",
        python="3.13",
        cuda=cuda,
        architectures=codes if cuda else (),
    )


OLD = torch("2.8.0+cu126", "12.6", ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"))
NEW = torch("2.15.0+cu130", "13.0", CU130)
CPU = torch("2.13.0+cpu", None)
ROCM = msgspec.structs.replace(torch("2.13.0+rocm6.4", None), other="ROCm 6.4.43482")
FOR_80 = torch(codes=("sm_80",))


@dataclass(frozen=True)
class Row:
    """A machine with a torch and perhaps a message: the first problem, words of its cause, a command that fixes it."""

    machine: str
    torch: InstalledTorch | None
    message: str
    kind: ProblemKind | None
    says: str
    command: str = ""


TABLE = (
    # the four messages of the issue
    Row(
        "rtx-5090",
        OLD,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ProblemKind.NO_CODE,
        "holds no code that NVIDIA GeForce RTX 5090 (12.0) runs: it holds sm_50",
        "torchtailor install pytorch213-python313-cuda12_9-sm120",
    ),
    Row(
        "dgx-spark",
        OLD,
        "NVIDIA GB10 with CUDA capability sm_121 is not compatible with the current PyTorch installation.",
        ProblemKind.NO_CODE,
        "NVIDIA GB10 (12.1)",
        "sm121",
    ),
    Row(
        "h200-driver-550",
        NEW,
        "CUDA driver version is insufficient for CUDA runtime version",
        ProblemKind.DRIVER,
        "CUDA 13 needs driver 580.65.06 or newer; this machine has 550.",
        "cuda12_",
    ),
    Row(
        "sandy-bridge",
        CPU,
        "Illegal instruction (core dumped)",
        ProblemKind.INSTRUCTION,
        "it runs AVX and not AVX2",
        "cpu-avx",
    ),
    # facts without a message
    Row("h200-driver-580", FOR_80, "", ProblemKind.NO_CODE, "which runs on 8.0 (Ampere: A100", "sm90"),
    Row("v100", NEW, "", ProblemKind.NO_CODE, "CUDA 13 needs driver 580.65.06", "cuda12_6-sm70"),
    Row("h100-driver-580", CPU, "", ProblemKind.CPU_BUILD, "built without CUDA", "sm90"),
    Row("h100-driver-580", ROCM, "", ProblemKind.CPU_BUILD, "built for ROCm 6.4.43482, not for CUDA", "sm90"),
    Row("no-driver", NEW, "", ProblemKind.NO_DRIVER, "No NVIDIA driver answers", "nvidia-smi"),
    Row("docker-without-gpu", NEW, "", ProblemKind.NO_GPU, "answers, but shows no GPU", "--gpus all"),
    Row("h100-driver-580", None, "", ProblemKind.NO_TORCH, "There is no torch", "sm90"),
    Row("alpine", CPU, "", ProblemKind.LIBC, "this system has musl", "--via source"),
    Row("centos7-v100", OLD, "", ProblemKind.LIBC, "this system has glibc 2.17", "--via source"),
    # desktop code on an Orin: from CUDA 13.2 on
    Row(
        "orin-jetpack-7",
        torch("2.15.0+cu130", "13.0", ("sm_80",)),
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ProblemKind.NO_CODE,
        "holds no code that Orin (nvgpu) (8.7) runs",
        "torchtailor install",
    ),
    Row("orin-jetpack-7", torch("2.15.0+cu132", "13.2", ("sm_80",)), "", None, "runs torch's sm_80 code by comp"),
    # messages that facts alone do not show
    Row(
        "h100-driver-580",
        NEW,
        "ImportError: libcublas.so.13: cannot open shared object file: No such file or directory",
        ProblemKind.LIBRARY,
        "needs libcublas.so.13",
        f"--force-reinstall torch==2.15.0+cu130 --extra-index-url {WHEELS}/cu130",
    ),
    Row(
        "h100-driver-580",
        NEW,
        "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
        ProblemKind.MIXED_LIBRARIES,
        "another CUDA",
        "unset LD_LIBRARY_PATH",
    ),
    Row(
        "h100-driver-580",
        NEW,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        ProblemKind.NO_CODE,
        "torch itself has sm_90 for NVIDIA H100",
        "torchtailor inspect /venv --gpu 9.0",
    ),
    Row(
        "h100-driver-580",
        NEW,
        "OSError: libtorch_cuda.so: file too short",
        ProblemKind.DAMAGED,
        "is truncated",
        "--force-reinstall",
    ),
    # nothing is wrong
    Row("h200-driver-580", NEW, "", None, "runs torch's sm_90 code natively"),
    Row("l40s", NEW, "", None, "runs torch's sm_86 code by compatibility"),
    Row("zen4", CPU, "", None, "built for the CPU"),
    Row("zen4", ROCM, "", None, "built for ROCm 6.4.43482, which is not examined"),
    Row(
        "dgx-spark",
        torch("2.13.0+cu130", "13.0", CU130),
        "Found GPU0 NVIDIA GB10 which is of cuda capability 12.1. Minimum and Maximum cuda capability supported by "
        "this version of PyTorch is (8.0) - (12.0)",
        None,
        "only a warning",
    ),
)


def examined(machine: str, of: InstalledTorch | None, message: str, **more: object) -> DoctorReport:
    host = machines.host(machine)
    return examine(TorchEnvironment(host, of, "/venv", read(message), **more), machines.catalog())  # type: ignore[arg-type]


def read(message: str) -> Diagnosis | None:
    return diagnose(io.BytesIO(message.encode())) if message else None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.machine}-{row.kind and row.kind.name}")
def test_answers(row: Row) -> None:
    report = examined(row.machine, row.torch, row.message)
    if row.kind is None:
        assert not report.problems and not report.unexplained, report
        assert row.says in " ".join(report.healthy)
        return
    assert report.problems, report
    first = report.problems[0]
    assert first.kind == row.kind
    assert row.says in first.cause
    assert bool(first.seen) == bool(row.message)
    assert any(row.command in (fix.command or "") for fix in first.fixes), first.fixes


def test_a_cut_torch_is_restored_or_replaced() -> None:
    report = examined("h200-driver-580", FOR_80, "", cut_for=("8.0",))
    problem = report.problems[0]
    assert "cut by torchtailor for 8.0" in problem.cause
    assert problem.fixes[0].command == "torchtailor restore --env /venv"
    assert "--into /venv" in (problem.fixes[1].command or "")


def test_a_cut_torch_is_called_so(tmp_path: Path) -> None:
    """Also where nothing is wrong, from what a real cut leaves."""
    site = tmp_path / "lib" / "python3.13" / "site-packages"
    files = {"torch/__init__.py": b"", "torch/version.py": b"__version__ = '2.9.0'\ncuda = None\n"}
    build_wheel(tmp_path, {**files, "torch/lib/libtorch.so": bytes(70_000)}, name="torch", version="2.9.0")
    install(next(tmp_path.glob("*.whl")), site)
    trace = tmp_path / "app.trace"
    write_trace(trace, Trace(opened=("torch/__init__.py",)))
    stock = TorchEnvironment(machines.host("zen4"), msgspec.structs.replace(NEW, path=str(site / "torch")))
    assert "cut by" not in examine(_with_cut(stock, site / "torch"), machines.catalog()).torch
    assert main(["tailor", "--env", str(site), "--workload", str(trace), "--drop-unopened"]) == 0
    report = examine(_with_cut(stock, site / "torch"), machines.catalog())
    assert report.torch.endswith("; cut by torchtailor, to what a recorded program uses")


def test_extensions_are_named() -> None:
    others = (("flash_attn_2_cuda.so", "sm_80"),)
    message = "CUDA error: no kernel image is available for execution on the device"
    report = examined("h200-driver-580", NEW, message, others=others)
    assert "flash_attn_2_cuda.so (sm_80)" in report.problems[0].cause


def test_a_message_about_another_machine() -> None:
    """A GPU that this machine does not have is taken from the message."""
    message = "NVIDIA GB10 with CUDA capability sm_121 is not compatible with the current PyTorch installation."
    report = examined("zen4", OLD, message)
    assert report.problems[0].kind is ProblemKind.NO_CODE
    assert "NVIDIA GB10 (12.1)" in report.problems[0].cause


NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 11040)"
RTX_5090 = (
    "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation."
)


@pytest.mark.parametrize(
    ("machine", "message", "asked"),
    [
        ("zen4", RTX_5090, "recommend --gpu 'NVIDIA GeForce RTX 5090'`"),
        ("zen4", RTX_5090.replace("RTX 5090", "unheard of"), "recommend --gpu 12.0`"),
        ("rtx-5090", RTX_5090, "recommend`"),
        ("zen4", NO_IMAGE, "recommend --gpu NAME`"),
        ("h200-driver-580", NO_IMAGE, "recommend`"),
        ("zen4", OLD_DRIVER, "recommend --gpu NAME --driver VERSION`"),
    ],
)
def test_the_next_step_is_about_the_machine_of_the_message(machine: str, message: str, asked: str) -> None:
    (problem, *_) = examined(machine, None, message, here=True).problems
    assert f"`torchtailor {asked}" in problem.fixes[0].text


def test_what_another_machine_needs_is_installed_by_its_name() -> None:
    """Without a name, `install` takes what this machine runs."""
    (problem, *_) = examined("zen4", OLD, RTX_5090, here=True).problems
    assert re.match(r"torchtailor install \S+-sm120-\S+ --into", problem.fixes[0].command or "")


def test_the_driver_of_a_message_is_told_by_its_cuda() -> None:
    (problem, *_) = examined("zen4", None, OLD_DRIVER).problems
    assert "made for CUDA 11.4" in problem.cause


def test_a_cut_torch_is_named_where_there_is_no_gpu() -> None:
    (problem, *_) = examined("zen4", FOR_80, NO_IMAGE, cut_for=("8.0",)).problems
    assert "was cut by torchtailor for 8.0" in problem.cause
    assert problem.fixes[0].command == "torchtailor restore --env /venv"


def test_ptx_from_a_newer_toolkit() -> None:
    """Only PTX fits, and the driver runs its CUDA by minor-version compatibility alone, which excludes PTX."""
    only_ptx = torch("2.10.0+cu128", "12.8", ("sm_80", "compute_80"))
    report = examined("h200-driver-550", only_ptx, "")
    assert report.problems[0].kind is ProblemKind.PTX_REFUSED
    assert "nothing but PTX (compute_80)" in report.problems[0].cause


def test_a_compatibility_library_makes_an_old_driver_run_a_new_cuda() -> None:
    """In NVIDIA's containers NVML reports the CUDA of the cuda-compat package."""
    nvml = machines.recording("h200-driver-550").nvml
    newer = msgspec.structs.replace(nvml, output=nvml.output.replace('"cuda": "12.4"', '"cuda": "13.0"'))
    assert newer != nvml
    report = examine(TorchEnvironment(machines.host("h200-driver-550", nvml=newer), NEW), machines.catalog())
    assert not report.problems and not report.unexplained, report


def test_wheels_of_an_old_release_run_on_an_old_system() -> None:
    report = examined("centos7-v100", torch("2.0.1+cu117", "11.7", ("sm_70",)), "")
    assert ProblemKind.LIBC not in {problem.kind for problem in report.problems}


def test_hidden_gpus() -> None:
    host = machines.host("h200-driver-580", env={"CUDA_VISIBLE_DEVICES": ""})
    report = examine(TorchEnvironment(host, NEW), machines.catalog())
    assert report.problems[0].kind is ProblemKind.NO_GPU
    assert "CUDA_VISIBLE_DEVICES= hides" in report.problems[0].cause


def test_unknown_words() -> None:
    report = examined("h200-driver-580", NEW, "a strange thing happened")
    assert not report.problems
    assert report.problems or report.unexplained
    assert report.unexplained == ("a strange thing happened",)


def test_kinds_of_problems_are_the_known_runtime_failures() -> None:
    assert {kind.value for kind in ProblemKind} <= {failure.id for failure in load_table(FailureTable.RUNTIME)}


def test_symptoms_name_what_they_hold() -> None:
    text = "\n".join(
        [
            "  warnings.warn(",
            "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
            "GeForce GTX 1080 with CUDA capability sm_61 is not compatible with the current PyTorch installation.",
        ]
    )
    driver, listed = read_symptoms(read(text))
    assert (driver.kind, driver.driver_cuda) == (ProblemKind.DRIVER, "11.4")
    assert (listed.kind, str(listed.capability), listed.gpu) == (ProblemKind.NOT_LISTED, "6.1", "GeForce GTX 1080")


@pytest.mark.parametrize("machine", machines.NAMES)
def test_every_machine_is_answered(machine: str) -> None:
    """No machine, however strange, with any torch, makes the doctor fall over or stay silent."""
    report = examined(machine, FOR_80, "no kernel image is available\nIllegal instruction")
    assert report.problems
    assert all(problem.fixes and problem.cause for problem in report.problems)


@pytest.mark.parametrize("of", [None, CPU], ids=["no torch", "CPU build"])
@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        ("CUDA error: no kernel image is available for execution on the device", ProblemKind.NO_CODE, "holds no code"),
        ("CUDA driver version is insufficient for CUDA runtime version", ProblemKind.DRIVER, "driver is older"),
        ("No CUDA GPUs are available", ProblemKind.NO_GPU, "CUDA sees no GPU"),
        ("ImportError: libcublas.so.13: cannot open shared object file", ProblemKind.LIBRARY, "libcublas.so.13"),
        ("Illegal instruction (core dumped)", ProblemKind.INSTRUCTION, "instruction"),
    ],
)
def test_a_known_message_is_answered_without_a_torch_that_gave_it(
    message: str, kind: ProblemKind, says: str, of: InstalledTorch | None
) -> None:
    report = examined("zen4", of, message)
    problem = next(problem for problem in report.problems if problem.kind == kind)
    assert says in problem.cause
    assert problem.seen == message
    assert problem.fixes[0].text
    assert report.unexplained == ()


def test_the_false_warning_about_a_gpu_that_runs_code_of_its_family() -> None:
    """What torch prints on a DGX Spark, over several lines; the machine is known from the message alone."""
    message = (
        "UserWarning: \n    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n    Minimum and Maximum cuda "
        "capability supported by this version of PyTorch is\n    (8.0) - (12.0)"
    )
    report = examined("zen4", torch("2.10.0+cu130", "13.0", CU130), message)
    assert report.problems == ()
    assert "a false one" in report.healthy[0]
    assert "12.1 runs its code for 12.0" in report.healthy[0]
    assert "NVIDIA GB10 (12.1) runs torch's sm_120 code" in report.healthy[1]


def test_the_library_that_lacks_a_symbol_is_named_not_the_one_that_needs_it() -> None:
    """cuSPARSE of CUDA 13 is libcusparse.so.12, and needs libnvJitLink.so.13."""
    message = (
        "ImportError: /e/nvidia/cu13/lib/libcusparse.so.12: undefined symbol: __nvJitLinkCreate_13_0, version "
        "libnvJitLink.so.13"
    )
    cause = examined("h100-driver-580", NEW, message).problems[0].cause
    assert "A library of another CUDA (libnvJitLink.so.13) is found" in cause
    assert "libcusparse.so.12 needs __nvJitLinkCreate_13_0" in cause


def test_the_library_is_read_from_the_one_that_needs_it(tmp_path: Path) -> None:
    """A message without a version: the needs of the library itself tell."""
    user = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    user.parent.mkdir(parents=True)
    user.write_bytes(Path(msgspec._core.__file__).read_bytes())  # any library that needs others
    with open_source(user) as source:
        needed = read_elf(ElfFile(source)).needed
    (symptom,) = read_symptoms(read("ImportError: /x/libtorch_cuda.so: undefined symbol: c"))
    assert (symptom.library, symptom.user) == (None, "libtorch_cuda.so")
    assert "libc.so.6" in needed
    assert _asked_of(tmp_path, symptom) == "libc.so.6"


def test_commands_are_for_the_python_of_the_environment() -> None:
    message = "ImportError: libcublas.so.13: cannot open shared object file: No such file or directory"
    python = Path("/my env/bin/python")
    for pip, uv, begins in (
        (True, True, "'/my env/bin/python' -m pip install --force-reinstall torch==2.15.0"),
        (False, True, "uv pip install --python '/my env/bin/python' --reinstall torch==2.15.0"),
        (False, False, "'/my env/bin/python' -m ensurepip && '/my env/bin/python' -m pip install"),
    ):
        interpreter = Interpreter.of(python, pip=pip, uv=uv)
        report = examined("h100-driver-580", NEW, message, interpreter=interpreter)
        assert (report.problems[0].fixes[0].command or "").startswith(begins)


@pytest.mark.parametrize(
    ("machine", "version", "asked"),
    [
        ("gtx-1080-ti", "2.14.1+cu126", f"torch==2.14.1+cu126 --extra-index-url {WHEELS}/cu126"),
        ("zen4", "2.14.1+cpu", f"torch==2.14.1+cpu --extra-index-url {WHEELS}/cpu"),
        ("h100-driver-580", "2.14.1+cu130", "torch==2.14.1"),
        ("h100-driver-580", "2.14.0+cu130", "torch==2.14.0"),
        ("graviton3", "2.10.0+cpu", "torch==2.10.0"),
        ("h100-driver-580", "2.14.1", "torch==2.14.1"),
        ("h100-driver-580", "2.14.1+git1a2b3c", "torch==2.14.1"),
    ],
)
def test_the_same_build_is_installed_again(machine: str, version: str, asked: str) -> None:
    message = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    report = examined(machine, torch(version), message)
    problem = next(problem for problem in report.problems if problem.kind == ProblemKind.LIBRARY)
    assert problem.fixes[0].command == f"python -m pip install --force-reinstall {asked}"


def test_a_machine_without_an_environment_gets_a_new_one() -> None:
    """`torchtailor install` without --into and without an active environment would refuse."""
    report = examine(TorchEnvironment(machines.host("h100-driver-580"), None), machines.catalog())
    assert (report.problems[0].fixes[0].command or "").endswith(" --into .venv")


def test_on_this_machine_install_finds_what_the_indexes_have() -> None:
    """A name would be one of a release that they may not have."""
    host = machines.host("h100-driver-580")
    (fix, *_) = examine(TorchEnvironment(host, None, here=True), machines.catalog()).problems[0].fixes
    assert fix.command == "torchtailor install --into .venv"


def test_an_unknown_message_has_a_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = tmp_path / "host.json"
    described.write_bytes(msgspec.json.encode(machines.host("zen4")))
    assert main(["doctor", "--from", str(described), "banana"]) == ExitCode.NO_MATCH
    assert "it may be an error of the program itself" in capsys.readouterr().out


def test_the_threads_of_a_known_failure_are_named_and_no_other_source(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"])
    said = capsys.readouterr().out
    assert "triton-arch (certain)" in said
    assert "CUDA 12.9 or newer, which compile for it" in " ".join(said.split())  # it may be a toolkit's, not Triton's
    main(["doctor", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"])
    assert "gpu-out-of-memory (certain; vllm#7721, #188)" in capsys.readouterr().out


def test_rows_to_add_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from torchtailor.cli.doctor import _print

    rows = [
        fix
        for machine in ("orin-jetpack-6", "thunderx2")
        for problem in examined(machine, None, "").problems
        for fix in problem.fixes
        if "add this to" in fix.text
    ]
    assert len(rows) == 2
    assert all("[[row]]" in (fix.toml or "") and (fix.command or "").startswith("torchtailor build ") for fix in rows)
    _print(DoctorReport("", "", (Problem(ProblemKind.NO_TORCH, "cause", (rows[0],)),), ()))
    assert "[[row]]" in capsys.readouterr().out


def test_a_folder_is_taken_for_an_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) == ExitCode.USAGE
    assert f"--env {tmp_path}" in re.sub(r"\s*\n\s*", "", capsys.readouterr().err)


@pytest.mark.parametrize("log", ["train.log", "logs/run", "/no/such/file.txt"])
def test_a_log_that_does_not_exist(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", "x.json", log]) == ExitCode.NO_MATCH
    assert f"{log} does not exist" in capsys.readouterr().err


def test_a_torch_without_gpu_code_is_one_for_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `install --gpu none` gives is in order on a machine without a GPU; elsewhere its name says what it is."""
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text("__version__ = '2.15.0+cu132'\ncuda = '13.2'\n")
    (site / "torch" / "__init__.py").write_text("")
    (site / "torch-2.15.0+cu132.nogpu.dist-info").mkdir()
    for machine, kinds in (("zen4", []), ("h100-driver-580", ["cpu-build"])):
        described = tmp_path / f"{machine}.json"
        described.write_bytes(msgspec.json.encode(machines.host(machine)))
        main(["doctor", "--from", str(described), "--env", str(site), "--json"])
        answer = msgspec.json.decode(capsys.readouterr().out)
        assert [problem["kind"] for problem in answer["problems"]] == kinds
        assert answer["torch"].startswith("2.15.0+cu132.nogpu")


def test_a_torch_without_gpu_code_is_tried_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `torch.version.cuda` is that of the official wheel, whose message on drivers would be taken for a problem."""
    monkeypatch.setattr("torchtailor.advise.host.detect.detect", lambda catalog: machines.host("zen4"))
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text("__version__ = '2.15.0+cu132'\ncuda = '13.2'\n")
    (site / "torch" / "__init__.py").write_text(
        "from torch import version\n"
        "class Tensor(float):\n"
        "    __matmul__ = lambda self, _: self\n"
        "    item = float.__float__\n"
        "def ones(size, device='cpu'):\n"
        "    if device == 'cuda':\n"
        "        raise RuntimeError('Found no NVIDIA driver on your system.')\n"
        "    return Tensor(size)\n"
    )
    for label, problems in (("", ["no-driver"]), (".nogpu", [])):
        (site / f"torch-2.15.0+cu132{label}.dist-info").mkdir()
        main(["doctor", "--env", str(site), "--json"])
        answer = msgspec.json.decode(capsys.readouterr().out)
        assert [one["kind"] for one in answer["problems"] if one["kind"] == "no-driver"] == problems
        (site / f"torch-2.15.0+cu132{label}.dist-info").rmdir()


def test_a_described_machine_with_an_environment_of_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = tmp_path / "host.json"
    described.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(machines.host("h100-driver-580"), torches=(OLD,)))
    )
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\n")
    (site / "torch" / "__init__.py").write_text("")
    main(["doctor", "--from", str(described), "--env", str(site), "--json"])
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert "H100" in answer["machine"]
    assert answer["torch"].startswith("2.13.0+cpu")
    assert [problem["kind"] for problem in answer["problems"]] == ["cpu-build"]
    assert f"--into {site}" in answer["problems"][0]["fixes"][0]["command"]


@pytest.mark.parametrize(
    ("version_py", "library", "says"),
    [
        (b"__version__ = '2.13.0+cu130'\ncuda = '13.0'\n", b"\x7fELF\2\1\1\0\0\0", "libtorch_cuda.so"),
        (b"__version__ = '2.13.0+cu130'\ncuda = '13.0'\n", b"", "libtorch_cuda.so"),
        (b"\xff\xfe\x00", b"", "version.py cannot be read, or has no version"),
        (b"# \xff\n__version__ = '2.13.0+cu130'\ncuda = '13.0'\n", b"", "libtorch_cuda.so"),
    ],
    ids=["truncated library", "empty library", "unreadable version", "odd byte in the version's file"],
)
def test_a_damaged_installation(
    version_py: bytes, library: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = tmp_path / "host.json"
    described.write_bytes(msgspec.json.encode(machines.host("h100-driver-580")))
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "torch-2.13.0.dist-info").mkdir()
    (site / "torch" / "__init__.py").write_text("")
    (site / "torch" / "version.py").write_bytes(version_py)
    (site / "torch" / "lib" / "libtorch_cuda.so").write_bytes(library)
    code = main(["doctor", "--from", str(described), "--env", str(site), "--json"])
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert code == ExitCode.CHECK_FAILED
    assert [problem["kind"] for problem in answer["problems"]] == ["damaged-library"]
    assert says in answer["problems"][0]["cause"]
    assert "reinstall torch==2.13.0" in answer["problems"][0]["fixes"][0]["command"]


def test_without_a_name_it_is_the_environment_that_tailor_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a .venv it said that there is no torch, and to install one "into a new environment, .venv"."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    environment = tmp_path / ".venv"
    site = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "numpy-2.0.dist-info").mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "pyvenv.cfg").touch()
    monkeypatch.chdir(tmp_path)
    assert environment_sites(None) == (site,)
    launch, shown = _environment(None, machines.host("zen4"))
    assert (launch.python, shown) == (environment / "bin" / "python", str(environment))


def test_torch_of_another_python_is_run_with_that_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torchtailor may be a tool of its own, with another Python than the torch of the system."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    site = "/usr/lib/python3/dist-packages"
    origin = f"3.12\n/usr\n{site}/torch/__init__.py\n"
    found = machines.host(
        "zen4",
        programs={"python3": "/usr/bin/python3"},
        commands={f"/usr/bin/python3 -c {_SCRIPT}": CommandResult(outcome=CommandOutcome.DONE, output=origin)},
        files={f"{site}/torch/version.py": "__version__ = '2.13.0+cpu'\ncuda = None\n"},
    )
    launch, _ = _environment(None, found)
    assert (launch.python, launch.folders) == (Path("/usr/bin/python3"), (Path(site),))


def test_command_line(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(tmp_path, Path)
    described = tmp_path / "host.json"
    host = msgspec.structs.replace(machines.host("rtx-5090"), torches=(OLD,))
    described.write_bytes(msgspec.json.encode(host))
    log = tmp_path / "log.txt"
    log.write_text("Traceback\nRuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    assert main(["doctor", "--from", str(described), str(log)]) == ExitCode.CHECK_FAILED
    printed = " ".join(capsys.readouterr().out.split())
    assert "problem torch 2.8.0+cu126 holds no code that NVIDIA GeForce RTX 5090 (12.0) runs" in printed
    assert "torchtailor install" in printed
    assert main(["doctor", "--from", str(described), "--json", "x" * 5000]) == ExitCode.CHECK_FAILED
    answer = msgspec.json.decode(capsys.readouterr().out)
    assert answer["problems"][0]["kind"] == "no-kernel-image"
    assert answer["unexplained"] == ["x" * 300]
    assert main(["doctor", "--from", str(log)]) == ExitCode.BAD_INPUT
