"""Operating system, container, tools, installed PyTorch."""

from __future__ import annotations

import pytest

from tests import machines
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.probe import Basics, CommandOutcome, CommandResult, Recording, ReplayProbe
from torchtailor.advise.host.system import parse_os_release
from torchtailor.advise.host.torches import BuiltTorch, parse_version


def test_os_release_is_unquoted() -> None:
    text = "# comment\nNAME=\"Rocky Linux\"\nID='rocky'\nVERSION_ID=8\nBROKEN\nEMPTY=\n"
    assert parse_os_release(text) == {"NAME": "Rocky Linux", "ID": "rocky", "VERSION_ID": "8", "EMPTY": ""}


@pytest.mark.parametrize(
    ("changes", "container"),
    [
        ({}, None),
        ({"files": {"/.dockerenv": ()}}, "docker"),
        ({"files": {"/run/.containerenv": ("engine=podman",)}}, "podman"),
        ({"files": {"/.dockerenv": ()}, "env": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}, "kubernetes"),
        ({"files": {"/proc/1/cgroup": ("0::/kubepods.slice/x",)}}, "kubernetes"),
        ({"files": {"/proc/1/cgroup": ("1:cpu:/docker/abc",)}}, "docker"),
        ({"files": {"/proc/1/cgroup": ("1:cpu:/lxc/abc",)}}, "lxc"),
        ({"env": {"container": "lxc"}}, "lxc"),
        ({"files": {"/run/systemd/container": ("systemd-nspawn",)}}, "systemd-nspawn"),
        ({"env": {"APPTAINER_NAME": "image.sif"}}, "apptainer"),
    ],
)
def test_containers(changes: dict[str, object], container: str | None) -> None:
    assert machines.host("zen4", **changes).system.container == container


def test_libc() -> None:
    assert machines.host("centos7-v100").system.libc_version == "2.17"
    alpine = machines.host("alpine")
    assert alpine.system.libc == "musl"
    assert any(note.topic == "musl" for note in alpine.notes)


@pytest.mark.parametrize(
    ("system", "arch", "name", "says"),
    [
        ("Darwin", "arm64", "macOS", "MPS"),
        ("Windows", "AMD64", "Windows", "WSL 2"),
        ("FreeBSD", "amd64", "FreeBSD", "Linux"),
    ],
)
def test_systems_without_linux_get_a_true_sentence(system: str, arch: str, name: str, says: str) -> None:
    host = detect(ReplayProbe(Recording(basics=Basics(arch=arch, kernel="25.0.0", system=system))), machines.catalog())
    assert host.system.os == name and not host.system.linux
    assert any(note.topic == "not-linux" and says in note.text for note in host.notes)
    assert not any(note.topic == "failed" for note in host.notes)


def test_a_system_with_linux_gets_no_such_sentence() -> None:
    host = machines.host("zen4")
    assert host.system.linux and not any(note.topic == "not-linux" for note in host.notes)


def test_tools_with_their_versions() -> None:
    def said(text: str) -> CommandResult:
        return CommandResult(outcome=CommandOutcome.DONE, output=text)

    host = machines.host(
        "zen4",
        programs={"gcc": "/usr/bin/gcc", "clang": "/usr/bin/clang", "gcc-13": "/usr/bin/gcc-13", "uv": "/bin/uv"},
        folders={"/usr/local/cuda/bin": ("nvcc", "ptxas")},
        commands={
            "/usr/bin/gcc -dumpfullversion": said("14.2.0\n"),
            "/usr/bin/clang --version": said("Ubuntu clang version 18.1.3 (1ubuntu1)\n"),
            "/usr/local/cuda/bin/nvcc --version": said("Cuda compilation tools, release 12.8, V12.8.93\n"),
            "/bin/uv --version": CommandResult(outcome=CommandOutcome.TIMED_OUT),
        },
    )
    assert {tool.name: tool.version for tool in host.tools} == {
        "clang": "18.1.3",
        "gcc": "14.2.0",
        "gcc-13": "13",
        "nvcc": "12.8",
        "uv": None,
    }
    nvcc = host.tool("nvcc")
    assert nvcc is not None and nvcc.path == "/usr/local/cuda/bin/nvcc"
    assert host.tool("nix") is None


def test_nvcc_of_cuda_home() -> None:
    host = machines.host("zen4", env={"CUDA_HOME": "/opt/cuda-13"}, folders={"/opt/cuda-13/bin": ("nvcc",)})
    assert host.tool("nvcc") is not None


VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.10.0+cu128'
debug = False
cuda: Optional[str] = '12.8'
git_version = '449b1768410104d3ed79d3bcfe4ba1d65c7f22c0'
hip: Optional[str] = None
"""


def test_version_py_of_real_wheels() -> None:
    assert parse_version(VERSION_PY) == BuiltTorch("2.10.0+cu128", "12.8")
    assert parse_version(VERSION_PY.replace("'12.8'", "None")) == BuiltTorch("2.10.0+cu128", None)
    assert parse_version("") == BuiltTorch(None, None)


def test_an_installed_pytorch_is_found_once_with_its_gpu_code() -> None:
    from torchtailor.advise.host.torches import _SCRIPT

    folder = "/venv/lib/python3.12/site-packages/torch"
    answer = CommandResult(outcome=CommandOutcome.DONE, output=f"3.12\n/venv\n{folder}/__init__.py\n")
    recording = machines.recording(
        "zen4",
        env={"VIRTUAL_ENV": "/venv"},
        programs={"python3": "/usr/bin/python3", "python": "/venv/bin/python"},
        commands={f"/venv/bin/python -c {_SCRIPT}": answer, f"/usr/bin/python3 -c {_SCRIPT}": answer},
        files={f"{folder}/version.py": VERSION_PY},
        gpu_code={f"{folder}/lib/libtorch_cuda.so": ("sm_80", "sm_90")},
    )
    host = detect(ReplayProbe(recording), machines.catalog())
    assert [(torch.version, torch.python, torch.architectures) for torch in host.torches] == [
        ("2.10.0+cu128", "3.12", ("sm_80", "sm_90"))
    ]


def test_the_pytorch_of_a_real_machine() -> None:
    torch = machines.host("h200-driver-580").torches[0]
    assert (torch.version, torch.cuda, torch.python) == ("2.11.0+cu130", "13.0", "3.12")
    assert torch.architectures[:6] == ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")


def test_a_python_without_pytorch_is_passed_over() -> None:
    from torchtailor.advise.host.torches import _SCRIPT

    answer = CommandResult(outcome=CommandOutcome.DONE, output="3.12\n/usr\n\n")
    host = machines.host(
        "zen4", programs={"python3": "/usr/bin/python3"}, commands={f"/usr/bin/python3 -c {_SCRIPT}": answer}
    )
    assert host.torches == ()
