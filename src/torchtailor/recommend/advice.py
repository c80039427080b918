"""The honest ways out where no variant runs on the machine's GPU, or none runs at all."""

from __future__ import annotations

from collections.abc import Iterator

from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Fit, Gpu
from torchtailor.catalog.load import USER_FILE
from torchtailor.catalog.releases import Build, Method, Release
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.host.model import GpuDevice, Host
from torchtailor.recommend.candidates import Candidate
from torchtailor.recommend.own_isa import own_isa
from torchtailor.recommend.result import WayOut
from torchtailor.recommend.situation import Situation
from torchtailor.variants import Variant, coverage


def ways_out(situation: Situation, cpu: Candidate | None) -> tuple[WayOut, ...]:
    """What can be done, the quickest first; `cpu` is the best variant without a GPU."""
    host, found = situation.host, list[WayOut]()
    if cpu is not None:
        text = (
            f"Work without the GPU for now: {cpu.variant.unique_name} runs today, for development and tests, at a "
            "fraction of the speed."
        )
        found.append(WayOut("cpu", text, cpu.variant.unique_name))
    found += own_rows(situation)
    platforms = sorted({isa.arch for isa in situation.catalog.isas.values()})
    if host.cpu.arch not in platforms:
        text = (
            f"PyTorch is offered here for {' and '.join(platforms)}, and this machine is {host.cpu.arch}: use another."
        )
        found.append(WayOut("platform", text))
    elif not host.cpu.flags:
        text = f"The flags of this CPU ({host.cpu.name}) are not known: name it with --cpu."
        found.append(WayOut("name", text))
    if situation.devices:
        found += _containers(situation)
        text = (
            "Compute on another machine's GPU and keep this one for the rest: run `torchtailor detect --json` there "
            "and `torchtailor recommend --from FILE` here to plan for it."
        )
        found.append(WayOut("remote", text))
    return tuple(found)


def own_rows(situation: Situation) -> Iterator[WayOut]:
    """Rows of data that make a variant of one's own, where a build could be compiled and would run."""
    host = situation.host
    isa = situation.isas.runnable[0] if situation.isas.runnable else None
    own = None if isa else own_isa(host.cpu)
    if isa is None and own is None:
        return
    name = isa.name if isa else own.name if own else ""
    extra = own.toml(host.cpu.name) + "\n" if own else ""
    place = _buildable(situation, situation.devices[0]) if situation.devices else None
    if place is not None:
        release, build, gpu = place
        if any(gpu.capability in row.gpus and name in row.cpus for row in build.rows):
            return  # it is in the matrix already
        way = _way(situation, release, build, gpu, isa) if isa else Method.SOURCE
        text = (
            f"A variant of your own, {gpu.sm}-{name} of PyTorch {release.version} with CUDA {build.cuda}"
            f"{_needing(host, build)}: add this to {USER_FILE}, then ask again; it is made by way of {way.value}."
        )
        row = (
            f'[[row]]\nrelease = "{release.name}"\ncuda = "{build.cuda}"\ngpus = ["{gpu.capability}"]\n'
            f'cpus = ["{name}"]\n'
        )
        yield WayOut(way.value, text, f"{gpu.sm}-{name}", extra + row)
    elif own is not None:
        release = situation.releases[0]
        text = (
            f"Compile PyTorch {release.version} for this CPU, {own.compile_flag}: add this to {USER_FILE}, then ask "
            "again with --gpu none --via source."
        )
        row = f'[[row]]\nrelease = "{release.name}"\ncpus = ["{name}"]\n'
        yield WayOut("source", text, f"cpu-{name}", extra + row)


def _needing(host: Host, build: Build) -> str:
    """What has to be said where the JetPack is not known."""
    unknown = host.tegra is not None and host.tegra.cuda is None and not host.tegra.unified
    return f" (for a JetPack that brings CUDA {build.cuda})" if unknown else ""


def _buildable(situation: Situation, device: GpuDevice) -> tuple[Release, Build, Gpu] | None:
    """The newest release with a build whose CUDA compiles for the GPU and runs on this driver.

    On a Jetson the JetPack's own CUDA comes before a newer release: more than that needs a compatibility package.
    """
    catalog, host = situation.catalog, situation.host
    gpu = catalog.gpus.get(device.compute) if device.compute else None
    if gpu is None or not gpu.offered:
        return None
    code = CodeTarget(CodeKind.CUBIN, gpu.capability)
    found = []
    for release in situation.releases:
        for build in release.cuda_builds:
            assert build.cuda is not None
            fit = situation.driver(device, build).fit
            if fit.runs and catalog.toolkit(build.cuda).compiles(code):
                native = fit is DriverFit.FULL and host.tegra is not None
                default = release.default_index.get(host.cpu.arch) == build.label
                found.append(((native, release.version, default, build.wheels, build.cuda), release, build))
    if not found:
        return None
    _, release, build = max(found, key=lambda item: item[0])
    return release, build, gpu


def _way(situation: Situation, release: Release, build: Build, gpu: Gpu, isa: Isa) -> Method:
    """Wheel where the official one already holds code for the GPU, else source."""
    tegra = situation.host.tegra
    usable = not gpu.tegra or bool(tegra and tegra.unified)
    variant = Variant(release, build, gpu, isa, situation.request.wanted_python)
    covered = coverage(situation.catalog, variant, Method.WHEEL)
    return Method.WHEEL if usable and covered.available and covered.fit is not Fit.JIT else Method.SOURCE


def _containers(situation: Situation) -> Iterator[WayOut]:
    """Containers, where they can help: not for a GPU that the driver dropped, nor for one that is offered anyway."""
    host, devices = situation.host, situation.devices
    if host.tegra is not None:
        text = (
            f"Use a container or wheel made for {_jetpack(host)}: NVIDIA's l4t images and the jetson-containers "
            "project build PyTorch against the CUDA of each JetPack."
        )
        yield WayOut("container", text)
        return
    builds = [build for release in situation.catalog.releases.values() for build in release.cuda_builds]
    fits = {situation.driver(device, build).fit for device in devices for build in builds}
    names = " and ".join(dict.fromkeys(device.name for device in devices))
    if any(fit.runs for fit in fits):
        offered = {capability for build in builds for row in build.rows for capability in row.gpus}
        if all(device.compute in offered for device in devices):
            return
        text = (
            "Try a newer container: NVIDIA's own PyTorch images (nvcr.io/nvidia/pytorch) learn new GPUs first. Check "
            f"that `torch.cuda.get_arch_list()` in it covers {names} before you rely on it."
        )
        yield WayOut("container", text)
    elif DriverFit.DROPPED_GPU not in fits:
        text = (
            "If it is a data-centre GPU, try a newer container: NVIDIA's own PyTorch images (nvcr.io/nvidia/pytorch) "
            "bring a library with which such GPUs run a newer CUDA on an older driver; their release notes say which."
        )
        yield WayOut("container", text)


def _jetpack(host: Host) -> str:
    return f"JetPack {host.tegra.jetpack}" if host.tegra and host.tegra.jetpack else "your JetPack"
