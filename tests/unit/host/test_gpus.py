"""GPUs and drivers: every source, every kind of trouble."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import machines
from torchtailor.advise.host.detect import detect
from torchtailor.advise.host.gpus import detect_gpus
from torchtailor.advise.host.model import Host
from torchtailor.advise.host.probe import CommandOutcome, CommandResult, ReplayProbe
from torchtailor.advise.host.system import detect_system
from torchtailor.advise.host.tegra import parse_l4t, tegra_table

SMI = "/usr/bin/nvidia-smi"
QUERY = (
    f"{SMI} --query-gpu=index,name,uuid,memory.total,driver_version,mig.mode.current,compute_cap "
    "--format=csv,noheader,nounits"
)


def topics(host: Host) -> list[str]:
    return [note.topic for note in host.notes]


def smi(output: str, outcome: CommandOutcome = CommandOutcome.DONE) -> Host:
    """A machine whose only source is an nvidia-smi that says this."""
    return machines.host(
        "zen4", programs={"nvidia-smi": SMI}, commands={QUERY: CommandResult(outcome=outcome, output=output)}
    )


def test_nvml_tells_all() -> None:
    host = machines.host("h200-driver-550")
    assert len(host.gpus) == 8
    gpu = host.gpus[3]
    assert (gpu.index, gpu.name, gpu.capability, gpu.memory) == (3, "NVIDIA H200", "9.0", 143771 << 20)
    assert host.driver is not None
    assert (host.driver.version, host.driver.cuda, host.driver.source) == ("550.54.15", "12.4", "NVML")


def test_nvidia_smi_tells_the_same_without_nvml() -> None:
    host = smi(
        "0, NVIDIA L4, GPU-0123, 23034, 550.90.07, [N/A], 8.9\n1, NVIDIA L4, GPU-4567, 23034, 550.90.07, [N/A], 8.9\n"
    )
    assert [gpu.capability for gpu in host.gpus] == ["8.9", "8.9"]
    assert host.gpus[0].memory == 23034 << 20
    assert host.driver is not None
    assert (host.driver.version, host.driver.source) == ("550.90.07", "nvidia-smi")
    assert host.driver.cuda == "12.4"  # that of its branch, since `nvidia-smi --version` said nothing


def test_an_old_nvidia_smi_is_asked_again_and_the_name_gives_the_capability() -> None:
    host = machines.host("v100-driver-470")
    assert [gpu.capability for gpu in host.gpus] == ["7.0"]
    assert host.driver is not None and host.driver.cuda == "11.4"  # that of its branch


def test_mig_instances_are_listed() -> None:
    host = machines.host("h100-mig")
    assert [instance.name for instance in host.gpus[0].mig] == ["MIG 3g.40gb", "MIG 3g.40gb"]
    assert "mig" in topics(host)
    listed = machines.recording("h100-mig").commands["/usr/bin/nvidia-smi -L"]
    one = msgspec.structs.replace(listed, output="\n".join(listed.output.splitlines()[:2]))
    alone = machines.host("h100-mig", commands={"/usr/bin/nvidia-smi -L": one})
    assert any("is split into 1 MIG instance; a CUDA program" in note.text for note in alone.notes)


def test_memory_that_is_not_supported_is_not_told() -> None:
    assert machines.host("dgx-spark").gpus[0].memory is None


def test_a_gpu_of_unknown_name_is_kept_and_said() -> None:
    host = smi("0, Graphics Device 4711, GPU-0123, 100, 550.90.07, [N/A], [N/A]\n")
    assert host.gpus[0].capability is None
    assert "unknown-gpu" in topics(host)


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n",
        "hello, world\n",
        "0, NVIDIA L4\n",
        "x, NVIDIA L4, GPU-1, 1, 550.1, [N/A], 8.9\n",
        "0, , GPU-1, 1, 550.1, [N/A], 8.9\n",
        "0, NVIDIA L4, GPU-1, 1, unknown, [N/A], 8.9\n",
        "-1, NVIDIA L4, GPU-1, 1, 550.1, [N/A], 8.9\n",
        "\x00\x01\x02",
        '"0, NVIDIA L4, GPU-1, 1, 550.1, [N/A], 8.9\n',
    ],
)
def test_nonsense_of_nvidia_smi_is_said_and_not_used(output: str) -> None:
    host = smi(output)
    assert host.gpus == () and host.driver is None
    assert "nvidia-smi-failed" in topics(host)


def test_nvidia_smi_without_a_module_says_what_to_do() -> None:
    said = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...\n"
    host = smi(said, CommandOutcome.FAILED)
    assert any("modprobe nvidia" in note.text for note in host.notes)


def test_a_hanging_nvml_is_not_asked_again_through_nvidia_smi() -> None:
    host = machines.host("nvml-hangs")
    assert "nvml-hangs" in topics(host) and "nvidia-smi-hangs" not in topics(host)
    assert host.gpus[0].name == "NVIDIA H200" and host.gpus[0].capability == "9.0"


def test_the_kernel_module_is_the_last_resort() -> None:
    host = machines.host("nvidia-smi-hangs")
    assert host.driver is not None
    assert (host.driver.version, host.driver.source) == ("550.54.15", "/proc/driver/nvidia")
    assert host.gpus[0].uuid is not None
    assert "by-proc" in topics(host)


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U22)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025",
    ],
)
def test_both_kinds_of_kernel_module_are_read(line: str) -> None:
    host = machines.host("zen4", files={"/proc/driver/nvidia/version": (line,)})
    assert host.driver is not None and host.driver.version == "580.95.05"
    assert "no-gpu" in topics(host)


def test_under_wsl_the_number_is_the_windows_drivers() -> None:
    host = machines.host("rtx-4090-wsl")
    assert host.system.wsl
    assert host.driver is not None and host.driver.windows and host.driver.cuda == "12.7"


def test_wsl_whose_cuda_version_is_an_error() -> None:
    host = machines.host(
        "rtx-4090-wsl",
        commands={f"{SMI} --version": CommandResult(outcome=CommandOutcome.DONE, output="CUDA Version: ERR!")},
    )
    assert host.driver is not None and host.driver.cuda is None


def test_an_amd_gpu_is_named_as_not_offered() -> None:
    place = "/sys/bus/pci/devices"
    host = machines.host(
        "zen4",
        folders={place: ("0000:03:00.0",)},
        files={f"{place}/0000:03:00.0/vendor": ("0x1002",), f"{place}/0000:03:00.0/class": ("0x030000",)},
    )
    assert any("ROCm" in note.text for note in host.notes)


@pytest.mark.parametrize(
    ("vendor", "kind", "says"),
    [("0x1002", "0x120000", "ROCm"), ("0x1002", "0x038000", "ROCm"), ("0x8086", "0x038000", "XPU"),
     ("0x1da3", "0x120000", "Gaudi")],
)  # fmt: skip
def test_accelerators_of_others_are_named_by_vendor_and_class(vendor: str, kind: str, says: str) -> None:
    place = "/sys/bus/pci/devices"
    host = machines.host(
        "zen4",
        folders={place: ("0000:03:00.0",)},
        files={f"{place}/0000:03:00.0/vendor": (vendor,), f"{place}/0000:03:00.0/class": (kind,)},
    )
    (note,) = [note for note in host.notes if note.topic == "no-gpu"]
    assert says in note.text and "nvidia-smi" not in note.text


def test_a_gpu_in_proc_without_a_model_is_known_by_its_pci_number() -> None:
    place = "/proc/driver/nvidia"
    address = "0000:65:00.0"
    host = machines.host(
        "zen4",
        folders={f"{place}/gpus": (address,)},
        files={
            f"{place}/version": ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23",),
            f"{place}/gpus/{address}/information": ("Model: \t",),
            f"/sys/bus/pci/devices/{address}/device": ("0x2237",),
        },
    )
    assert [(gpu.name, gpu.capability) for gpu in host.gpus] == [("A10G", "8.6")]


@pytest.mark.parametrize(
    ("machine", "jetpack", "cuda", "unified", "capability"),
    [
        ("thor-jetpack-7", "7.0", "13.0", True, "11.0"),
        ("orin-jetpack-6", "6.2", "12.6", False, "8.7"),
        ("orin-jetpack-7", "7.2", "13.2", True, "8.7"),
        ("orin-nano-jetpack-5", "5", "11.4", False, "8.7"),
        ("xavier-jetpack-5", "5", "11.4", False, "7.2"),
        ("tx2-jetpack-4", "4", "10.2", False, "6.2"),
    ],
)
def test_tegra_by_release_file_and_device_tree(
    machine: str, jetpack: str, cuda: str, unified: bool, capability: str
) -> None:
    host = machines.host(machine)
    assert host.tegra is not None
    assert (host.tegra.jetpack, host.tegra.cuda, host.tegra.unified) == (jetpack, cuda, unified)
    assert [(gpu.capability, gpu.integrated) for gpu in host.gpus] == [(capability, True)]


def test_a_jetson_container_has_no_release_file_but_a_device_tree() -> None:
    read = machines.recording("orin-jetpack-6")
    files = {path: text for path, text in read.files.items() if path != "/etc/nv_tegra_release"}
    probe = ReplayProbe(type(read)(basics=read.basics, files=files))
    host = detect(probe, machines.catalog())
    assert host.tegra is not None and host.tegra.l4t is None and not host.tegra.unified
    assert host.gpus[0].capability == "8.7"


def test_l4t_releases_are_read() -> None:
    assert parse_l4t("# R36 (release), REVISION: 4.3, GCID: 1") == "36.4.3"
    assert parse_l4t("something else") is None
    row = tegra_table().jetpack_of("38.4.0")
    assert row is not None and row.jetpack == "7.1"
    assert tegra_table().jetpack_of("21.1") is None


def test_jetpack_4_is_said_to_be_too_old_for_everything() -> None:
    texts = [note.text for note in machines.host("tx2-jetpack-4").notes if note.topic == "jetpack"]
    assert len(texts) == 1 and "glibc 2.27" in texts[0]
    assert not any(note.topic == "jetpack" for note in machines.host("orin-jetpack-6").notes)


def test_every_tegra_chip_is_a_gpu_of_the_catalog() -> None:
    catalog = machines.catalog()
    for chip in tegra_table().chip:
        assert catalog.gpu(chip.capability).tegra


@pytest.mark.parametrize(
    ("number", "cuda"), [("535.129.03", "12.2"), ("535.129.03.01", "12.2"), ("999.10", "13."), ("390.157", "None")]
)
def test_the_cuda_of_a_driver_that_does_not_say_it(number: str, cuda: str) -> None:
    line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {number}  Tue Mar  5 22:23:56 UTC 2024"
    host = machines.host("docker-without-gpu", files={"/proc/driver/nvidia/version": line})
    assert host.driver is not None
    assert host.driver.version == number
    assert str(host.driver.cuda).startswith(cuda)


@pytest.mark.parametrize(
    ("devices", "gpus"), [(("null", "zero"), []), (("null", "nvidia0", "nvidiactl"), ["NVIDIA H200"])]
)
def test_a_container_has_only_the_gpus_that_it_was_given(devices: tuple[str, ...], gpus: list[str]) -> None:
    """/proc/driver/nvidia is the host's in every container."""
    host = machines.host(
        "docker-without-gpu",
        folders={"/proc/driver/nvidia/gpus": ("0000:65:00.0",), "/dev": devices},
        files={"/proc/driver/nvidia/gpus/0000:65:00.0/information": "Model: \t\t NVIDIA H200\n"},
    )
    assert [gpu.name for gpu in host.gpus] == gpus
    assert host.driver is not None
    assert ("container-without-gpu" in topics(host)) == (not gpus)


@given(st.text(max_size=200), st.sampled_from(CommandOutcome))
def test_any_answer_of_nvidia_smi_is_survived(output: str, outcome: CommandOutcome) -> None:
    recording = machines.recording(
        "zen4", programs={"nvidia-smi": SMI}, commands={QUERY: CommandResult(outcome=outcome, output=output)}
    )
    probe = ReplayProbe(recording)
    detect_gpus(probe, machines.catalog(), detect_system(probe), None)


@given(
    st.text(max_size=200) | st.just('{"driver": "1", "gpus": [{}]}') | st.just("[1]"), st.sampled_from(CommandOutcome)
)
def test_any_answer_of_nvml_is_survived(output: str, outcome: CommandOutcome) -> None:
    probe = ReplayProbe(machines.recording("zen4", nvml=CommandResult(outcome=outcome, output=output)))
    found = detect_gpus(probe, machines.catalog(), detect_system(probe), None)
    assert found.gpus == ()
