"""What is recommended for each recorded machine: one table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from tests import machines
from torchtailor.advise.recommendation import Recommendation, Request, Workload
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.catalog import Capability, CodeKind, CodeTarget


@dataclass(frozen=True)
class Row:
    """A machine, the variant it gets (None: none), and what must be said with it."""

    machine: str
    variant: str | None
    pytorch: str | None = None
    cuda: str | None = None
    method: str = "wheel"
    says: tuple[str, ...] = ()
    upgrade: str | None = None
    alternatives: tuple[str, ...] = ()


TABLE = (
    # CPUs alone
    # an instruction set above the CPU's does not veto the official wheel, which needs Armv8.0-A or x86-64 only
    Row("graviton1", "cpu-armv8_2", "2.15.0", alternatives=("source",), says=(
        "armv8_2: This CPU does not support ARMv8.2: it lacks asimddp", "it needs Armv8.0-A only",
        "Known limits of the official wheel on this CPU, which lacks bf16, sve: `torch._stack`",
        "The name says armv8_2 because")),
    Row("graviton2", "cpu-armv8_2", "2.15.0"),
    Row("graviton3", "cpu-armv8_2", "2.15.0", says=("armv9: This CPU does not support ARMv9: it lacks frint, sve2.",)),
    Row("graviton4", "cpu-armv9", "2.15.0"),
    Row("grace", "cpu-armv9", "2.15.0"),
    Row("cobalt100", "cpu-armv9", "2.15.0"),
    Row("vera", "cpu-armv9", "2.15.0"),
    Row("ampereone", "cpu-armv8_2", says=("armv9: This CPU does not support ARMv9: it lacks sve, sve2.",)),
    Row("a64fx", "cpu-armv8_2", "2.15.0", alternatives=("source",),
        says=("ARMv8.2: it lacks asimddp", "it needs Armv8.0-A only")),
    Row("thunderx2", None, says=("ARMv8.2: it lacks asimddp, asimdhp, fphp.",), alternatives=("source",)),
    Row("apple-m1-asahi", "cpu-armv8_2", says=("armv9: This CPU does not support ARMv9: it lacks sve, sve2.",)),
    Row("arm-two-cores", "cpu-armv8_2", "2.15.0", says=("No NVIDIA GPU was found.",)),
    Row("emerald-rapids-vm", "cpu-avx512", "2.15.0", says=("No NVIDIA GPU was found.",)),
    Row("core-i9-12900k", "cpu-avx2", says=("avx512: This CPU does not support AVX-512",)),
    Row("core-ultra-285", "cpu-avx2",
        says=("avx512vnni: This CPU does not support AVX-512 VNNI: it lacks avx512_vnni",)),
    Row("skylake-sp", "cpu-avx512",
        says=("avx512vnni: This CPU does not support AVX-512 VNNI: it lacks avx512_vnni.",)),
    Row("cascade-lake", "cpu-avx512",
        says=("avx512bf16: This CPU does not support AVX-512 BF16: it lacks avx512_bf16.",)),
    Row("cooper-lake", "cpu-avx512"),
    Row("ice-lake-sp", "cpu-avx512", says=("AVX-512 BF16: it lacks avx512_bf16.",)),
    Row("sapphire-rapids", "cpu-avx512"),
    Row("knights-landing", "cpu-avx2",
        says=("avx512: This CPU does not support AVX-512: it lacks avx512bw, avx512dq, avx512vl",)),
    Row("sandy-bridge", "cpu-avx", says=("avx2: This CPU does not support AVX2: it lacks avx2, f16c, fma.",)),
    Row("zen1", "cpu-avx2"),
    Row("zen3", "cpu-avx2"),
    Row("zen4", "cpu-avx512"),
    Row("zen5", "cpu-avx512"),
    Row("opteron-k10", "cpu-avx", "2.15.0", alternatives=("source",), says=(
        "it needs x86-64 only and selects its CPU kernels at run time. The name says avx because",)),
    Row("power9", None, says=("for aarch64 and x86_64; this machine is ppc64le",), alternatives=("platform",)),
    Row("alpine", "cpu-avx512", method="source", says=(
        "built for glibc, and this system has musl", "there are no wheels for musl"),
    ),
    # data-centre GPUs
    Row(
        "h200-driver-550", "sm90-avx512", "2.14.1", "12.6",
        says=("CUDA 13 needs driver 580.65.06 or newer; this machine has 550.54.15", "minor-version compatibility"),
        upgrade="driver 580.65.06",
    ),
    Row("h200-driver-580", "sm90-avx512", "2.15.0", "13.2", says=("Driver 580.159.04 runs CUDA 13.2 through minor",)),
    Row("h100-driver-580", "sm90-avx512", "2.15.0", "13.2", says=("595.71.05 supports it fully",)),
    Row("h100-driver-595", "sm90-avx512", "2.15.0", "13.2", says=("fully supports CUDA 13.2",)),
    Row("h100-mig", "sm90-avx512", "2.15.0", "13.2", says=("2 MIG instances",)),
    Row("kubernetes-pod", "sm90-avx512", "2.15.0", "13.2", says=("Only 2 of 4 CPUs are usable",)),
    Row("l40s", "sm89-avx512", "2.15.0", "13.2", says=("sm_86, which runs on SM89", "sm90, sm100")),
    Row("v100", "sm70-avx512", "2.14.1", "12.6", says=("CUDA 13 no longer supports SM70 (Volta): 12.9 was the last",)),
    Row("v100-driver-470", "sm70-avx512", "2.7.1", "11.8", upgrade="driver 525.60.13",
        says=("CUDA 12 needs driver 525.60.13 or newer", "The official cu118 wheel of PyTorch 2.7.1")),
    Row("centos7-v100", "sm70-avx512", "2.6.0", "12.4", says=("need glibc 2.28 or newer",)),
    Row("t4", "sm75-avx512", "2.14.1", "12.6", upgrade="driver 580.65.06"),
    Row("t4g-graviton2", "sm75-armv8_2", "2.15.0", "13.2", method="source", says=("none of which runs on SM75",)),
    Row("b200", "sm100-avx512", "2.13.0", "12.9", upgrade="driver 580.65.06"),
    Row("b300", "sm103-avx512", "2.15.0", "13.2", says=("sm_100, which runs on SM103",)),
    Row("gb300", "sm103-armv9", "2.15.0", "13.2"),
    Row("gh200", "sm90-armv9", "2.14.1", "12.6", upgrade="driver 580.65.06"),
    Row("rtx-pro-6000", "sm120-avx512", "2.15.0", "13.2"),
    # desktop GPUs
    Row("rtx-5090", "sm120-avx512", "2.13.0", "12.9", upgrade="driver 580.65.06"),
    Row("rtx-5090-driver-580", "sm120-avx2", "2.15.0", "13.2"),
    Row("rtx-4090-wsl", "sm89-avx512", "2.14.1", "12.6", says=("The Windows driver 566.36",), upgrade="CUDA 13.2"),
    Row("gtx-1080-ti", "sm61-avx2", "2.14.1", "12.6", says=("CUDA 13 no longer supports SM61 (Pascal)",)),
    Row("gtx-1080-ti-driver-590", "cpu-avx2",
        says=("Driver 590.48.01 does not support the NVIDIA GPU", "R580 was the last branch")),
    # several GPUs
    Row(
        "a100-rtx-3090", "sm80-avx2", "2.15.0", "13.2",
        says=("natively on GPU 0 (NVIDIA A100-PCIE-40GB), through binary compatibility on GPU 1",),
    ),
    Row(
        "h100-gtx-1080-ti", "sm61_90-avx512", "2.14.1", "12.6",
        says=("contains sm_60 for SM61 and sm_90 for SM90", "One environment serves all GPUs"),
    ),
    # GB10 and Tegra
    Row("dgx-spark", "sm121-armv9", "2.15.0", "13.2", says=("sm_120, which runs on SM121",)),
    Row(
        "dgx-spark-driver-570", None,
        says=("Driver 570.133.20 is too old for SM121, which needs 575.51.03 or newer.",),
        upgrade="driver 575.51.03, driver 580.65.06", alternatives=("cpu", "remote"),
        # the kernel's driver is outside of containers
    ),
    Row("thor-jetpack-7", "sm110-armv9", "2.15.0", "13.2", says=("JetPack 7.0 supports CUDA 13.0",)),
    Row(
        "orin-jetpack-6", None,
        says=(
            "built for servers (SBSA), which needs JetPack 7.2 or newer; this system has JetPack 6.2",
            "JetPack 6.2 supports CUDA",
        ),
        upgrade="JetPack 7.2", alternatives=("cpu", "source", "container", "remote"),
    ),
    Row(
        "orin-jetpack-7", "sm80-armv8_2", "2.15.0", "13.2",
        says=("no stock variant for SM87", "whose driver stack is SBSA"), alternatives=("wheel",),
    ),
    Row("orin-nano-jetpack-5", None, says=("JetPack 5 supports CUDA up to 11.4",), upgrade="JetPack 7.2",
        alternatives=("cpu", "source", "container", "remote")),
    Row("xavier-jetpack-5", None, says=("JetPack 5 supports CUDA up to 11.4", "ARMv8.2: it lacks asimddp"),
        alternatives=("cpu", "source", "container", "remote")),
    Row("tx2-jetpack-4", None,
        says=("JetPack 4 supports CUDA up to 10.2",), alternatives=("container", "remote")),
    # broken drivers and containers
    Row("no-driver", "cpu-avx512",
        says=("(10de:2335), but it is bound to the nouveau driver: install the NVIDIA driver",)),
    Row("docker-without-gpu", "cpu-avx512",
        says=("this docker container has no GPU: start the container with --gpus all",)),
    Row("nvml-hangs", "sm90-avx512", "2.14.1", "12.6", says=("NVML did not answer",), upgrade="driver 580.65.06"),
    Row("nvidia-smi-hangs", "sm90-avx512", "2.14.1", says=("nvidia-smi did not answer",), upgrade="driver 580.65.06"),
    Row("nvidia-smi-nonsense", "sm90-avx512", "2.14.1", says=("malformed output",), upgrade="driver 580.65.06"),
    Row("driver-mismatch", "sm90-avx512", "2.14.1", says=("reboot, or reload",), upgrade="driver 580.65.06"),
)  # fmt: skip


@cache
def answer(machine: str, workload: Workload = Workload.GENERAL) -> Recommendation:
    return recommend_for(machines.matrix(), machines.host(machine), Request(workload))


def everything_said(recommendation: Recommendation) -> str:
    best = recommendation.best
    return "\n".join(
        (
            *recommendation.notes,
            *(best.reasons if best else ()),
            *(f"{one.what}: {one.reason}" for one in recommendation.rejected),
            *(one.text for one in recommendation.upgrades),
            *(one.text for one in recommendation.alternatives),
        )
    )


def test_every_machine_has_a_row() -> None:
    assert sorted(row.machine for row in TABLE) == sorted(machines.NAMES)
    assert len(TABLE) >= 30


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.machine)
def test_the_table(row: Row) -> None:
    found = answer(row.machine)
    best = found.best
    assert (best.short_name if best else None) == row.variant
    if best is not None:
        assert best.method == row.method
        assert row.pytorch in (None, best.pytorch)
        assert row.cuda in (None, best.cuda)
        assert best.gpu is None or best.cuda is not None
    said = everything_said(found)
    for text in row.says:
        assert text in said
    assert [one.needs for one in found.upgrades] == (row.upgrade.split(", ") if row.upgrade else [])
    assert tuple(one.kind for one in found.alternatives) == row.alternatives


@pytest.mark.parametrize("name", machines.NAMES)
def test_nothing_recommended_can_fail_to_run(name: str) -> None:
    """Every variant that is named, best or alternative, holds to the rules by itself."""
    host, found = machines.host(name), answer(name)
    catalog = machines.catalog()
    for pick in (*((found.best,) if found.best else ()), *found.other_variants, *found.per_gpu):
        if pick.method == "wheel":
            assert catalog.release(pick.release).missing_for_wheel(host.cpu.arch, host.cpu.flags) == ()
        else:
            assert set(catalog.isas[pick.isa].requires) <= set(host.cpu.flags)
        assert catalog.isas[pick.isa].arch == host.cpu.arch
        for device in (gpu for gpu in host.gpus if gpu.index in pick.gpus):
            assert device.compute is not None and pick.code is not None and pick.cuda is not None
            codes = [CodeTarget.parse(word) for word in pick.code.split(", ")]
            unified = bool(host.tegra and host.tegra.unified)
            code = catalog.rules.best(device.compute, codes, unified_tegra=unified)
            assert code is not None
            if code.kind is CodeKind.CUBIN and device.compute < Capability(7, 5):
                assert pick.cuda.startswith(("11.", "12."))
            if host.driver and host.driver.number.major < 580 and not device.integrated:
                assert pick.cuda.startswith(("11.", "12."))
            if host.driver and host.driver.number.major < 525 and not device.integrated:
                assert pick.cuda.startswith("11.")


@pytest.mark.parametrize(
    ("machine", "workload", "isa"),
    [
        ("zen4", Workload.BF16_TRAINING, "avx512bf16"),
        ("zen4", Workload.INT8_INFERENCE, "avx512vnni"),
        ("cooper-lake", Workload.BF16_TRAINING, "avx512bf16"),
        ("cooper-lake", Workload.INT8_INFERENCE, "avx512vnni"),
        ("sapphire-rapids", Workload.BF16_TRAINING, "avx512bf16"),
        ("ice-lake-sp", Workload.BF16_TRAINING, "avx512"),  # no bf16 there
        ("ice-lake-sp", Workload.INT8_INFERENCE, "avx512vnni"),
        ("skylake-sp", Workload.INT8_INFERENCE, "avx512"),  # no vnni there
        ("core-i9-12900k", Workload.INT8_INFERENCE, "avx2"),  # avx_vnni is not avx512_vnni
        ("zen3", Workload.BF16_TRAINING, "avx2"),
        ("graviton3", Workload.BF16_TRAINING, "armv8_2"),
        ("h100-driver-595", Workload.INT8_INFERENCE, "avx512vnni"),
    ],
)
def test_the_workload_decides_between_instruction_sets(machine: str, workload: Workload, isa: str) -> None:
    best = answer(machine, workload).best
    assert best is not None and best.isa == isa
