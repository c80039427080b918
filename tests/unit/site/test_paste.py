"""What is understood of pasted text: nvidia-smi in its forms, lspci, cpuinfo, lscpu, tracebacks, names."""

from __future__ import annotations

import time

import pytest

from tests import machines
from torchtailor.core.errors import NoMatchError
from torchtailor.site.paste import Understood, understand


def read(text: str) -> Understood:
    return understand(machines.catalog(), text)


NEW_SMI = """
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.65.06              Driver Version: 580.65.06      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090        Off |   00000000:01:00.0  On |                  Off |
|  0%   38C    P8             21W /  450W |     521MiB /  24564MiB |      2%      Default |
|   1  NVIDIA GeForce GTX 1080 Ti     Off |   00000000:02:00.0 Off |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A            1234      G   /usr/lib/xorg/Xorg                      320MiB |
"""
OLD_SMI = """
| NVIDIA-SMI 470.82.01    Driver Version: 470.82.01    CUDA Version: 11.4     |
|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |                    0 |
"""
WINDOWS_SMI = """
| NVIDIA-SMI 566.36                 Driver Version: 566.36         CUDA Version: 12.7     |
| GPU  Name                  Driver-Model | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GeForce RTX 4070 ...  WDDM  |   00000000:01:00.0  On |                  N/A |
"""
SMI_XML = """<nvidia_smi_log><driver_version>550.54.15</driver_version>
<gpu id="0"><product_name>NVIDIA L4</product_name></gpu>
<gpu id="1"><product_name>NVIDIA L4</product_name></gpu></nvidia_smi_log>
"""
COLLECT_ENV = """
GPU models and configuration:
GPU 0: NVIDIA GeForce RTX 5090
GPU 1: NVIDIA GeForce RTX 3090

Nvidia driver version: 570.133.07
"""
WSL_SMI = """
| NVIDIA-SMI 560.35.02              Driver Version: 560.94         CUDA Version: 12.6     |
|   0  NVIDIA GeForce RTX 3080        On  |   00000000:01:00.0  On |                  N/A |
"""
LSPCI = """
00:02.0 VGA compatible controller: Intel Corporation Raptor Lake-S GT1 [UHD Graphics 770] (rev 04)
01:00.0 VGA compatible controller: NVIDIA Corporation AD102 [GeForce RTX 4090] (rev a1)
01:00.1 Audio device: NVIDIA Corporation AD102 High Definition Audio Controller (rev a1)
02:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)
"""


@pytest.mark.parametrize(
    ("text", "gpus", "driver"),
    [
        (NEW_SMI, ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce GTX 1080 Ti"), "580.65.06"),
        (OLD_SMI, ("Tesla V100-SXM2",), "470.82.01"),
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-9d4b)\nGPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-77aa)\n",
         ("NVIDIA A100-SXM4-80GB",) * 2, None),
        ("index, name, driver_version, compute_cap\n0, NVIDIA L4, 535.183.01, 8.9\n", ("NVIDIA L4",), "535.183.01"),
        ("    Product Name                          : NVIDIA H200\n    Driver Version : 550.54.15\n",
         ("NVIDIA H200",), None),
        ("UserWarning: Found GPU0 NVIDIA GeForce GT 710 which is of cuda capability 3.5.",
         ("NVIDIA GeForce GT 710",), None),
        (WINDOWS_SMI, ("NVIDIA GeForce RTX 4070",), "566.36"),
        ("|   0  NVIDIA RTX PRO 6000 Bl...    Off |   00000000:01:00.0 Off |", ("NVIDIA RTX PRO 6000",), None),
        (SMI_XML, ("NVIDIA L4", "NVIDIA L4"), "550.54.15"),
        (COLLECT_ENV, ("NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 3090"), "570.133.07"),
        ("GPU models and configuration: GPU 0: NVIDIA L40S\n", ("NVIDIA L40S",), None),
        ("NVIDIA GeForce RTX 3090\nNVIDIA GeForce RTX 3090\n", ("NVIDIA GeForce RTX 3090",) * 2, None),
        ("_CudaDeviceProperties(name='NVIDIA A100-SXM4-40GB', major=8, minor=0)", ("NVIDIA A100-SXM4-40GB",), None),
        (">>> torch.cuda.get_device_name(0)\n'NVIDIA GeForce RTX 4090'", ("NVIDIA GeForce RTX 4090",), None),
        ("  Device 0: NVIDIA GeForce RTX 3060, compute capability 8.6, VMM: yes", ("NVIDIA GeForce RTX 3060",), None),
        ("       product: GA102 [GeForce RTX 3090]\n       vendor: NVIDIA Corporation", ("GeForce RTX 3090",), None),
        ("Device-1: NVIDIA AD106 [GeForce RTX 4060 Ti] driver: nvidia v: 550.120", ("GeForce RTX 4060 Ti",), "550.120"),
        ('01:00.0 "VGA compatible controller" "NVIDIA Corporation" "AD104 [GeForce RTX 4070]" -ra1 "Gigabyte"',
         ("GeForce RTX 4070",), None),
        ("01:00.0 VGA compatible controller: NVIDIA Corporation Device 2c05 (rev a1)", ("GeForce RTX 5070 Ti",), None),
        ("8xA100 and 4 x L40S", ("A100",) * 8 + ("L40S",) * 4, None),
        ("<p>Is my <b>RTX 4060 Ti</b> supported?</p>", ("RTX 4060 Ti",), None),
        ("02:00.0 VGA compatible controller: ASPEED Technology, Inc. ASPEED Graphics Family", ("none",), None),
    ],
)  # fmt: skip
def test_gpus_and_driver(text: str, gpus: tuple[str, ...], driver: str | None) -> None:
    found = read(text)
    assert found.gpus == gpus
    assert driver is None or found.driver == driver


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVIDIA GeForce RTX 4090, 450.00, 570.26", "570.26"),
        ("NVIDIA GeForce RTX 4090, 431.50, 570.133.07", "570.133.07"),
        ("NVIDIA GeForce RTX 4090, 431.50, 570.26", None),
        ("name, power.limit [W], driver_version\nNVIDIA GeForce RTX 4090, 431.50, 570.26", "570.26"),
        ("driver_version, power.limit [W]\n[N/A], 431.50\n570.26, 431.50", "570.26"),
    ],
)
def test_watts_are_no_driver(text: str, driver: str | None) -> None:
    assert read(text).driver == driver


def test_lspci_takes_graphics_controllers_of_nvidia_alone() -> None:
    found = read(LSPCI)
    capabilities = [str(machines.catalog().gpu(name).capability) for name in found.gpus]
    assert capabilities == ["8.9", "8.0"]


def test_a_machine_with_another_vendors_gpu_gets_the_true_sentence() -> None:
    found = read("03:00.0 VGA compatible controller [0300]: Advanced Micro Devices Navi 31 [1002:744c] (rev c8)")
    assert found.gpus == ("Advanced Micro Devices Navi 31 [1002:744c]",)
    with pytest.raises(NoMatchError) as error:
        machines.catalog().find_gpu(found.gpus[0])
    assert "ROCm" in error.value.hint


@pytest.mark.parametrize("name", ["zen4", "graviton3", "a64fx", "arm-two-cores", "emerald-rapids-vm", "opteron-k10"])
def test_cpuinfo_is_the_cpu_that_detect_finds(name: str) -> None:
    text = machines.recording(name).files["/proc/cpuinfo"]
    found = read(text if isinstance(text, str) else "\n".join(text)).pasted_cpu
    wanted = machines.host(name).cpu
    assert found is not None
    assert (found.arch, found.name, found.microarchitecture, found.flags) == (
        wanted.arch,
        wanted.name,
        wanted.microarchitecture,
        wanted.flags,
    )


def test_lscpu_gives_flags_and_name() -> None:
    flags = " ".join(machines.host("zen4").cpu.flags)
    text = f"Architecture:  x86_64\nVendor ID:  AuthenticAMD\n  Model name:  AMD Ryzen 9 7950X\n    Flags:  {flags}\n"
    found = read(text).pasted_cpu
    assert found is not None
    assert found.name == "AMD Ryzen 9 7950X"
    assert found.microarchitecture == "zen4"


def test_a_name_alone_is_looked_up() -> None:
    assert (
        read("Model name:   Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz").cpu == "Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz"
    )
    assert read("2x RTX 4090, Ryzen 9 7950X") == Understood(gpus=("RTX 4090", "RTX 4090"), cpu="Ryzen 9 7950X")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.",
         ("NVIDIA GeForce RTX 5090",)),
        ("  warnings.warn(x.py:1: UserWarning: NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible",
         ("NVIDIA GeForce RTX 5090",)),
        ("sm_120 is what it has: Graphics Device with CUDA capability sm_120 is not compatible with", ("sm_120",)),
    ],
)  # fmt: skip
def test_incompatible_gpu_of_a_traceback(text: str, gpus: tuple[str, ...]) -> None:
    assert read(text).gpus == gpus


def test_a_traceback_that_names_no_gpu_asks_for_it() -> None:
    found = read("RuntimeError: CUDA error: no kernel image is available for execution on the device")
    assert found.gpus == ()
    assert "has no code for this GPU" in found.notes[0]
    assert "choose it, or paste nvidia-smi" in found.notes[0]


def test_a_driver_that_is_too_old_is_known_by_its_cuda() -> None:
    found = read("The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver")
    assert found.driver is not None
    assert found.driver.startswith("470.")
    assert "R470" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "system", "python"),
    [
        ("Linux x 5.15.167.4-microsoft-standard-WSL2\nPython 3.12.3", "wsl", "3.12"),
        ("ldd (GNU libc) 2.17", "old", None),
        ("musl libc (x86_64)", "musl", None),
        ('File "/opt/env/lib/python3.11/site-packages/torch/__init__.py"', None, "3.11"),
        (WINDOWS_SMI, "windows", None),
        (WSL_SMI, "wsl", None),
        (OLD_SMI, None, None),
        ("OS: macOS 15.1 (arm64)\nPython version: 3.12.7 (main)", "macos", "3.12"),
        ("torch-2.8.0-cp313-cp313-manylinux_2_28_x86_64.whl", None, "3.13"),
    ],
)
def test_system_and_python(text: str, system: str | None, python: str | None) -> None:
    found = read(text)
    assert (found.system, found.python) == (system, python)


@pytest.mark.parametrize("text", ["", "hello", "\0" * 50, "{", "| 0 |", "flags", "9" * 10_000, "GPU 0:  (UUID: "])
def test_nothing_is_made_of_nothing(text: str) -> None:
    found = read(text)
    assert (found.gpus, found.driver) == ((), None)
    assert found.notes or found.pasted_cpu


def test_lscpu_in_another_language() -> None:
    flags = " ".join(machines.host("zen4").cpu.flags)
    text = f"Architektur:  x86_64\nAnbieterkennung:  AuthenticAMD\nModellname:  AMD EPYC 9354\nMarkierungen:  {flags}\n"
    found = read(text).pasted_cpu
    assert found is not None
    assert (found.name, found.microarchitecture) == ("AMD EPYC 9354", "zen4")


def test_a_question_in_plain_words() -> None:
    found = read("I have an RTX 5080 and a Ryzen 7 9800X3D on Windows 11, which torch do I need?")
    assert (found.gpus, found.cpu, found.system) == (("RTX 5080",), "Ryzen 7 9800X3D", "windows")


@pytest.mark.parametrize(
    ("text", "jetpack"),
    [
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64", "6.2"),
        ("Model: NVIDIA Jetson AGX Orin Developer Kit - Jetpack 6.2.1 [L4T 36.4.4]", "6.2"),
        ("R35 is a branch", None),
    ],
)
def test_jetpack(text: str, jetpack: str | None) -> None:
    assert read(text).jetpack == jetpack


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", "CPU alone"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "driver"),
        ("Failed to initialize NVML: Driver/library version mismatch", "restart"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "not loaded"),
    ],
)
def test_messages_are_explained(text: str, word: str) -> None:
    found = read(text)
    assert found.gpus == ()
    assert word in found.notes[0]


def test_an_unknown_gpu_is_said_and_not_replaced() -> None:
    found = read("|   0  NVIDIA GeForce RTX 9090        Off |   00000000:01:00.0  On |")
    assert found.gpus == ()
    assert "NVIDIA GeForce RTX 9090" in found.notes[0]


@pytest.mark.parametrize(
    "text",
    ["x " * 500_000, "\n" * 1_000_000, " " * 1_000_000, "GPU 0: " * 140_000, "NVRM version:" * 80_000,
     "flags" * 200_000, "NVIDIA " * 140_000, "|  0  " * 160_000, "<a_b>" * 200_000, "a, " * 330_000,
     "Found GPU0 a " * 77_000, "product: GA102 [" * 60_000, "i9-12900 " * 110_000],
)  # fmt: skip
def test_a_megabyte_is_read_in_a_moment(text: str) -> None:
    """A line without an end took minutes: no pattern may look at it again from every character."""
    before = time.process_time()
    read(text)
    assert time.process_time() - before < 4
