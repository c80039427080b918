"""Whether a machine's driver runs a build with CUDA on one of its GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.advise.host.model import GpuDevice, Host
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.releases import Build
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.toolkits import CudaToolkit, DriverFit


@dataclass(frozen=True, slots=True)
class DriverVerdict:
    """How the driver runs a build, in a sentence, and the drivers that would do better."""

    fit: DriverFit
    text: str
    known: bool = True  # False where the driver is unknown and assumed to be new enough
    needs: Dotted | None = None  # the oldest driver that runs it
    full: Dotted | None = None  # the oldest driver that runs it without limits
    before_gpu: bool = False  # whether the driver does not know the GPU yet, whatever the build


@dataclass(frozen=True, slots=True)
class LastBranch:
    """The last driver branch that supports all GPUs of a machine, and the GPU that ends there."""

    branch: int
    gpu: str


def last_branch(catalog: Catalog, host: Host) -> LastBranch | None:
    """None where every GPU that the driver of now still supports is supported by current drivers."""
    known = (catalog.gpus.get(device.compute) for device in host.gpus if device.compute)
    ends = [LastBranch(gpu.last_driver_branch, gpu.sm.upper()) for gpu in known if gpu and gpu.last_driver_branch]
    if host.driver is not None:
        ends = [end for end in ends if host.driver.number.major <= end.branch]
    return min(ends, key=lambda end: end.branch, default=None)


def judge_driver(catalog: Catalog, host: Host, device: GpuDevice, build: Build) -> DriverVerdict:
    """The verdict for one GPU and one build with CUDA."""
    assert build.cuda is not None
    toolkit = catalog.toolkit(build.cuda)
    gpu = catalog.gpus.get(device.compute) if device.compute else None
    needs, fully = toolkit.drivers_for(gpu, str(build.toolkit) if build.toolkit else None, device.name)
    last = last_branch(catalog, host)
    full = fully if last is None or fully.major <= last.branch else None  # a newer one would drop a GPU
    if device.integrated and host.tegra is not None and (host.tegra.cuda or not host.tegra.unified):
        return _by_jetpack(host, toolkit)
    if host.driver is None:
        text = f"The driver version is unknown: CUDA {build.cuda} needs {needs} or newer."
        return DriverVerdict(DriverFit.FULL, text, known=False, needs=needs, full=full)
    if device.integrated and host.tegra is not None and host.driver.cuda:
        return _by_cuda(f"Driver {host.driver.version}", Dotted(host.driver.cuda), toolkit)
    if host.driver.windows and host.driver.cuda:
        return _by_cuda(f"The Windows driver {host.driver.version}", Dotted(host.driver.cuda), toolkit)
    driver = host.driver.number
    if gpu is not None and gpu.last_driver_branch is not None and driver.major > gpu.last_driver_branch:
        ends = f"R{gpu.last_driver_branch} is the last branch that does."
        text = f"Driver {driver} no longer supports {gpu.sm.upper()}: {ends}"
        return DriverVerdict(DriverFit.DROPPED_GPU, text, needs=needs, full=full)
    first = gpu.first_driver_of(device.name) if gpu is not None else None
    if gpu is not None and first is not None and driver < first:
        who = gpu.sm.upper() if first == gpu.first_driver else device.name
        text = f"Driver {driver} is too old for {who}, which needs {first} or newer."
        return DriverVerdict(DriverFit.TOO_OLD, text, needs=needs, full=full, before_gpu=True)
    fit = toolkit.fit_driver(driver, update=str(build.toolkit) if build.toolkit else None)
    added = _added_cuda(catalog, host)
    if fit is DriverFit.TOO_OLD and added is not None and added.major >= toolkit.version.major:
        return _by_cuda(f"Driver {driver} with NVIDIA's compatibility library (cuda-compat)", added, toolkit)
    text = {
        DriverFit.FULL: f"Driver {driver} fully supports CUDA {build.cuda}.",
        DriverFit.MINOR: f"Driver {driver} runs CUDA {build.cuda} through minor-version compatibility"
        + (f"; {full} supports it fully." if full else "."),
        DriverFit.TOO_OLD: f"CUDA {toolkit.version.major} needs driver {needs} or newer; this machine has {driver}.",
    }[fit]
    return DriverVerdict(fit, text, needs=needs, full=full)


def _added_cuda(catalog: Catalog, host: Host) -> Dotted | None:
    """The CUDA that a driver reports above its own: a forward compatibility library adds it."""
    if host.driver is None or host.driver.cuda is None:
        return None
    branch = catalog.drivers.get(host.driver.number.major)
    reported = Dotted(host.driver.cuda)
    return reported if branch is not None and branch.cuda is not None and reported > branch.cuda else None


def _by_cuda(who: str, cuda: Dotted, toolkit: CudaToolkit) -> DriverVerdict:
    """By the newest CUDA that the driver itself reports."""
    if toolkit.version <= cuda:
        return DriverVerdict(DriverFit.FULL, f"{who} fully supports CUDA up to {cuda}.")
    if toolkit.version.major == cuda.major:
        text = f"{who} supports CUDA {cuda} and runs {toolkit.version} through minor-version compatibility."
        return DriverVerdict(DriverFit.MINOR, text)
    text = f"{who} supports CUDA up to {cuda}: CUDA {toolkit.version.major} needs a newer one."
    return DriverVerdict(DriverFit.TOO_OLD, text)


def _by_jetpack(host: Host, toolkit: CudaToolkit) -> DriverVerdict:
    """On a Jetson the driver belongs to the JetPack, and its number says nothing."""
    tegra = host.tegra
    assert tegra is not None
    if tegra.cuda is None:
        text = f"The JetPack version is unknown: it must provide CUDA {toolkit.version.major}."
        return DriverVerdict(DriverFit.FULL, text, known=False)
    verdict = _by_cuda(f"JetPack {tegra.jetpack}", Dotted(tegra.cuda), toolkit)
    if verdict.fit is not DriverFit.MINOR or tegra.unified:
        return verdict
    package = "-".join(["cuda-compat", *map(str, toolkit.version.parts)])
    text = (
        f"JetPack {tegra.jetpack} has CUDA {tegra.cuda}: CUDA {toolkit.version} needs NVIDIA's {package} package too."
    )
    return DriverVerdict(verdict.fit, text)
