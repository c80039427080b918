"""Level 2 and its launching, with a torch of a few lines in place of the real one."""

from __future__ import annotations

import platform
import shutil
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError
from torchtailor.trees.artifact.launch import FinishedProcess, Launch, NotHereError, op_suite, open_target
from torchtailor.trees.artifact.roots import SystemRoot
from torchtailor.verification import imports
from torchtailor.verification.failures.process import how_it_ended, missing_dependency
from torchtailor.verification.imports import verify_imports
from torchtailor.verification.measures import Figure, drop_caches, ratios
from torchtailor.verification.result import Check, CheckOutcome, Level, VerifyReport
from torchtailor.verification.suite_results import SuiteResults

TORCH = """
import sys, types
__version__ = "2.13.0+cu130.sm90"
version = types.SimpleNamespace(git_version="abc", cuda="13.0")
__config__ = types.SimpleNamespace(show=lambda: "PyTorch built with:\\n  - CUDA Runtime 13.0", parallel_info=lambda: "")
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX2"))
cuda = types.SimpleNamespace(get_arch_list=lambda: ["sm_90"])
get_num_threads = lambda: 2
"""


def install(folder: Path, torch: str = TORCH, metadata: str | None = "2.13.0") -> Path:
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(torch)
    (folder / "torch" / "version.py").write_text("__version__ = '2.13.0'\ncuda = '13.0'\n")
    if metadata:
        info = folder / f"torch-{metadata}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {metadata}\n")
    return folder


@pytest.fixture
def no_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(launch: Launch, device: str, *, only: str = "", keep: Path | None = None) -> SuiteResults:
        return SuiteResults(1, {}, None, ())

    monkeypatch.setattr(imports, "run_suite", nothing)


def checks(folder: Path) -> dict[str, Check]:
    with open_target(folder) as launch:
        return {check.name: check for check in verify_imports(launch)}


@pytest.mark.usefixtures("no_suite")
def test_a_good_torch(tmp_path: Path) -> None:
    found = checks(install(tmp_path))
    assert all(check.outcome is CheckOutcome.PASS for check in found.values())
    assert found["import torch"].details["arch_list"] == ["sm_90"]
    assert "CUDA 13.0; CPU kernels for AVX2" in found["configuration"].reason
    assert len(found["time and memory"].details["import_seconds"]) == imports.STARTS


@pytest.mark.usefixtures("no_suite")
def test_configuration_without_a_gpu(tmp_path: Path) -> None:
    """torch then leaves out its CUDA runtime and names CUDA in its build settings alone."""
    built = "  - Build settings: BLAS_INFO=nvpl, CUDA_VERSION=13.0, CUDNN_VERSION=9.26.0"
    found = checks(install(tmp_path / "right", TORCH.replace("  - CUDA Runtime 13.0", built)))["configuration"]
    assert found.outcome is CheckOutcome.PASS
    wrong = built.replace("13.0", "12.8")
    found = checks(install(tmp_path / "wrong", TORCH.replace("  - CUDA Runtime 13.0", wrong)))["configuration"]
    assert found.outcome is CheckOutcome.FAIL


@pytest.mark.usefixtures("no_suite")
@pytest.mark.parametrize(
    ("torch", "metadata", "name", "says"),
    [
        (TORCH, "2.12.0", "versions", "but its metadata has 2.12.0"),
        (TORCH.replace("CUDA Runtime 13.0", "CUDA Runtime 12.8"), "2.13.0", "configuration", "does not agree"),
        (TORCH.replace("  - CUDA Runtime 13.0", ""), "2.13.0", "configuration", "does not agree"),
        ("import os; os.kill(os.getpid(), 4)", "2.13.0", "import torch", "an illegal instruction"),
        ("raise ImportError('libc10.so: undefined symbol: x')", "2.13.0", "import torch", "undefined symbol: x"),
        ("raise ImportError('libc10.so: cannot open shared object file')", "2.13.0", "import torch", "libc10.so"),
    ],
)
def test_bad_torches(tmp_path: Path, torch: str, metadata: str, name: str, says: str) -> None:
    found = checks(install(tmp_path, torch, metadata))[name]
    assert found.outcome is CheckOutcome.FAIL
    assert says in found.reason


@pytest.mark.usefixtures("no_suite")
def test_a_torch_that_crashes_only_sometimes(tmp_path: Path) -> None:
    crash = f"""
import os, pathlib
started = pathlib.Path({str(tmp_path / "started")!r})
if started.exists():
    os.kill(os.getpid(), 11)
started.touch()
"""
    found = checks(install(tmp_path / "site", TORCH + crash))
    assert list(found) == ["import torch"]
    assert found["import torch"].outcome is CheckOutcome.FAIL
    assert "2 of 3 imports failed. The process was ended by a segmentation fault" in found["import torch"].reason


@pytest.mark.usefixtures("no_suite")
def test_a_torch_that_prints(tmp_path: Path) -> None:
    chatty = "import atexit\natexit.register(print, '[]')\nprint('hi')\nprint('no end of line', end='')\n"
    folder = install(tmp_path, TORCH + chatty)
    found = checks(folder)
    assert all(check.outcome is CheckOutcome.PASS for check in found.values())
    printing = folder / "sitecustomize.py"
    printing.write_text("print('hi')")
    assert Launch(Path(sys.executable), (folder,)).torch_folder() == folder / "torch"


def test_a_torch_that_ends_the_process(tmp_path: Path) -> None:
    found = checks(install(tmp_path, "raise SystemExit(0)"))["import torch"]
    assert found.outcome is CheckOutcome.FAIL


def test_a_torch_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails, and nothing that it started lives on."""
    hang = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path({str(tmp_path / "child")!r}).write_text(str(child.pid))
time.sleep(60)
"""
    monkeypatch.setattr(imports, "IMPORT_SECONDS", 2.0)
    found = checks(install(tmp_path / "site", hang))
    assert [(check.name, check.outcome) for check in found.values()] == [("import torch", CheckOutcome.FAIL)]
    assert "did not finish within 2 s" in found["import torch"].reason
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    ends = time.monotonic() + 10
    while alive := child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > ends:
            break
        time.sleep(0.05)
    assert not alive


def test_a_suite_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "SUITE_SECONDS", 0.5)
    found = checks(install(tmp_path, TORCH + "if 'suite.py' in sys.argv[0]:\n    import time\n    time.sleep(60)\n"))
    assert found["import torch"].outcome is CheckOutcome.PASS
    assert found["CPU ops"].outcome is CheckOutcome.FAIL
    assert "did not finish" in found["CPU ops"].reason


@pytest.mark.parametrize(
    ("torch", "missing"),
    [
        ("import typing_extensions_of_torch", "typing_extensions_of_torch"),
        ("raise ImportError('libcudart.so.13: cannot open shared object file: No such file')", "libcudart.so.13"),
    ],
)
def test_loose_packages_without_their_dependencies(tmp_path: Path, torch: str, missing: str) -> None:
    """A wheel alone cannot be imported, which says nothing against it; an environment must be whole."""
    folder = install(tmp_path, torch)
    found = checks(folder)["import torch"]
    assert found.outcome is CheckOutcome.NOT_APPLICABLE
    assert missing in found.reason
    whole = Launch(Path(sys.executable), (folder,), whole=True)
    assert verify_imports(whole)[0].outcome is CheckOutcome.FAIL


class NotEntered(SystemRoot):
    """A system whose programs run in this one, which needs no namespace."""

    def command(self, line: Sequence[str]) -> list[str]:
        return list(line)


@pytest.mark.usefixtures("no_suite")
def test_a_system_in_which_nothing_was_imported_is_no_proof(tmp_path: Path) -> None:
    folder = install(tmp_path / "needy", "import typing_extensions_of_torch")
    launch = Launch(Path(sys.executable), (folder,), whole=False, root=NotEntered(tmp_path))
    report = VerifyReport("x", verify_imports(launch), asked=Level.IMPORT)
    assert "typing_extensions_of_torch" in report.not_reached
    launch = Launch(Path(sys.executable), (install(tmp_path / "good"),), whole=False, root=NotEntered(tmp_path))
    report = VerifyReport("x", verify_imports(launch), asked=Level.IMPORT)
    assert [check.name for check in report.checks][:2] == ["system", "import torch"]
    assert not report.not_reached


def test_no_metadata_is_said(tmp_path: Path, no_suite: None) -> None:
    assert checks(install(tmp_path, metadata=None))["versions"].outcome is CheckOutcome.NOT_APPLICABLE


def test_a_suite_that_cannot_start(tmp_path: Path) -> None:
    """The torch of a few lines has no tensors: the real suite says so instead of passing."""
    found = checks(install(tmp_path))["CPU ops"]
    assert found.outcome is CheckOutcome.FAIL
    assert "AttributeError" in found.reason


def test_targets(tmp_path: Path) -> None:
    folder = install(tmp_path / "plain")
    with open_target(folder) as launch:
        assert launch.torch_folder() == folder / "torch"
        assert not launch.whole
    nix = tmp_path / "nix"
    install(nix / "lib" / "python3.13" / "site-packages")
    dependency = tmp_path / "sympy"
    (dependency / "lib" / "python3.13" / "site-packages").mkdir(parents=True)
    (nix / "nix-support").mkdir()
    (nix / "nix-support" / "propagated-build-inputs").write_text(f"{dependency} {nix}")
    with open_target(nix) as launch:
        assert [path.parents[2].name for path in launch.folders] == ["nix", "sympy"]
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python3").symlink_to(sys.executable)
    with open_target(environment) as launch:
        assert launch == Launch(environment / "bin" / "python3")
    with open_target(Path(sys.executable)) as launch:
        assert launch.run(["-c", "print(6 * 7)"]).output == "42\n"


def test_wheels_are_unpacked_for_as_long(tmp_path: Path) -> None:
    folder = install(tmp_path / "plain")
    house = tmp_path / "house"
    house.mkdir()
    with zipfile.ZipFile(house / "torch-2.13.0-py3-none-any.whl", "w") as wheel:
        for path in folder.rglob("*.py"):
            wheel.write(path, path.relative_to(folder))
    built = tmp_path / "dist"  # as `torchtailor build` lays it out
    shutil.copytree(house, built / "wheels")
    for target in (house, house / "torch-2.13.0-py3-none-any.whl", built):
        with open_target(target) as launch:
            unpacked = launch.folders[0]
            assert (unpacked / "torch" / "version.py").is_file()
        assert not unpacked.exists()
    (house / "torch-2.13.0-py3-none-any.whl").write_bytes(b"PK no zip")
    with pytest.raises(BadInputError), open_target(house):
        pass


@pytest.mark.parametrize(
    ("extension", "says"),
    [
        ("_C.cpython-311-s390x-linux-gnu.so", "made for s390x"),
        (f"_C.cpython-399-{platform.machine()}-linux-gnu.so", "made for Python 3.99"),
    ],
)
def test_not_for_this_machine(tmp_path: Path, extension: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install(tmp_path)
    (folder / "torch" / extension).touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotHereError, match=says), open_target(folder):
        pass


def test_bad_targets(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no interpreter")
    for target, error in (
        (tmp_path / "missing", NoMatchError),
        (tmp_path, NoMatchError),
        (tmp_path / "text", BadInputError),
    ):
        with pytest.raises(error), open_target(target):
            pass
    with pytest.raises(EnvironmentProblem):
        Launch(tmp_path / "text").run(["-c", "pass"])
    with pytest.raises(EnvironmentProblem, match="did not finish"):
        Launch(Path(sys.executable)).run(["-c", "import time; time.sleep(9)"], timeout=0.3)


def test_the_environment_is_clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's PYTHONPATH and folder must not leak into what is verified."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    ran = Launch(Path(sys.executable)).run(["-c", "import sys, os; print(sys.path, os.getcwd())"])
    assert "/elsewhere" not in ran.output
    assert str(tmp_path) not in ran.output


def test_words_for_ends() -> None:
    assert "illegal instruction" in how_it_ended(FinishedProcess(-4, "", "", 0))
    assert "SIGQUIT" in how_it_ended(FinishedProcess(-3, "", "", 0))
    assert how_it_ended(FinishedProcess(1, "", "a\nb\n", 0)) == "It ended with: b"
    assert how_it_ended(FinishedProcess(1, "", "", 0)) == "It ended with: no output"
    assert missing_dependency(FinishedProcess(1, "", "No module named 'torch._C'", 0)) is None
    assert missing_dependency(FinishedProcess(1, "", "ValueError", 0)) is None


def test_figures_and_ratios() -> None:
    stock, tailored = {"a": Figure((1.0, 1.1, 0.9)), "b": Figure((2.0,))}, {"a": Figure((2.0, 2.0, 2.0))}
    (ratio,) = ratios(stock, tailored)
    assert ratio.value == 2.0
    assert ratio.noise == pytest.approx(0.1)
    assert Figure((0.0, 0.0)).noise == 0.0


def test_dropping_files_from_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root it falls back to advising on each file."""
    from torchtailor.verification import measures

    monkeypatch.setattr(measures, "DROP_CACHES", tmp_path / "no" / "drop_caches")
    (tmp_path / "library.so").write_bytes(b"x" * 5000)
    assert drop_caches([tmp_path / "library.so"]) == "posix_fadvise on the libraries"


def test_the_suite_is_shipped() -> None:
    with op_suite() as folder:
        assert {"suite.py", "measure.py", "importing.py", "cases"} <= {path.name for path in folder.iterdir()}
