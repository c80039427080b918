"""What else runs, and what can be done where nothing does: other variants, and changes that lead to one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_struct

from torchtailor.advise.host.model import Cpu, GpuDevice, Host, Tegra
from torchtailor.advise.host.system import system_notes
from torchtailor.advise.host.tegra import describe_tegra, tegra_table
from torchtailor.advise.recommendation.candidates import Candidate, best_candidate
from torchtailor.advise.recommendation.explain import command, pick
from torchtailor.advise.recommendation.request import Situation, Workload
from torchtailor.advise.recommendation.result import Alternative, Pick
from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Fit, Gpu
from torchtailor.catalog.load import USER_FILE
from torchtailor.catalog.methods import SOURCE, WHEEL, Basis, Method
from torchtailor.catalog.releases import WHEEL_GLIBC, Build, Release
from torchtailor.catalog.schema import Dotted
from torchtailor.catalog.toolkits import DriverFit
from torchtailor.catalog.variants import Variant, coverage

_OLDER_RELEASES = 2
_PLATFORM_BUILDS = {
    "ppc64le": "a build for POWER: conda-forge, Open-CE",
    "s390x": "a build for IBM Z: IBM's own container images, or one from source",
}
Trait = Callable[[Candidate], object]


def other_variants(best: Candidate, candidates: Sequence[Candidate], cpu: Candidate | None) -> tuple[Pick, ...]:
    """Variants that run too, each different from the best in one thing: CUDA, instruction set, release, method.

    Candidates come best first; `cpu` is the best one without a GPU.
    """
    others = [candidate for candidate in candidates if candidate is not best]
    found = [
        *_other_builds(best, others),
        *_other_isas(best, others),
        *_older_releases(best, others),
        *_other_methods(best, others),
    ]
    if cpu is not None and best.variant.gpu is not None:
        found.append(pick(cpu, "CPU only: for development and tests."))
    return tuple(found)


def _first_of_each(others: Sequence[Candidate], best: Candidate, key: Trait, same: Trait) -> Iterator[Candidate]:
    """The first candidate of each key other than the best's, among those that are the `same` as the best."""
    seen = {key(best)}
    for other in others:
        if same(other) == same(best) and key(other) not in seen:
            seen.add(key(other))
            yield other


def _other_builds(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The same variant with another CUDA."""

    def same(one: Candidate) -> object:
        return (one.method.name, one.variant.release, one.variant.isa, one.variant.gpu)

    for other in _first_of_each(others, best, lambda one: one.variant.build.label, same):
        full = other.driver is not None and other.driver.known and other.driver.fit is DriverFit.FULL
        limited = best.driver is not None and best.driver.fit is DriverFit.MINOR
        gain = "your driver fully supports it" if full and limited else "for libraries that are built for it"
        yield pick(other, f"The same with CUDA {other.variant.build.cuda}: {gain}.")


def _other_isas(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The same build with another instruction set; an official wheel is the same file whatever the name says."""
    if best.method.basis is Basis.WHEEL:
        return

    def same(one: Candidate) -> object:
        return (one.method.name, one.variant.release, one.variant.build, one.variant.gpu)

    for other in _first_of_each(others, best, lambda one: one.variant.isa.name, same):
        isa = other.variant.isa
        uses = [name for name in isa.workloads if name != Workload.GENERAL.value]
        gain = f"for {' and '.join(uses)} on the CPU" if uses else "also runs on older CPUs"
        yield pick(other, f"With {isa.label}: {gain}.")


def _older_releases(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The best of the releases before."""
    older = [other for other in others if other.variant.release.version < best.variant.release.version]
    firsts = _first_of_each(older, best, lambda one: one.variant.release.name, lambda one: one.method.name)
    for other, _ in zip(firsts, range(_OLDER_RELEASES), strict=False):
        yield pick(other, f"PyTorch {other.variant.release.version}: for code that needs the older release.")


def _other_methods(best: Candidate, others: Sequence[Candidate]) -> Iterator[Pick]:
    """The best of the other build methods."""
    for other in _first_of_each(others, best, lambda one: one.method.name, lambda one: None):
        alone = "this hardware" if other.exact == len(other.devices) else other.variant.short_name
        newer = other.variant.release.version > best.variant.release.version
        more = f", and PyTorch {other.variant.release.version} is newer" if newer else ""
        phrase = other.method.phrase
        yield pick(other, f"{phrase[0].upper()}{phrase[1:]}: {other.method.gain_for(alone)}{more}.")


def alternatives(situation: Situation, best: Candidate | None, cpu: Candidate | None) -> tuple[Alternative, ...]:
    """What can be done where nothing runs, the quickest first; `cpu` is the best variant without a GPU.

    Where something runs, but it is named for another GPU or a newer CPU, only rows for a variant of one's own.
    """
    if best is not None:
        fitting = not best.devices or best.exact
        return () if fitting and situation.isas.runs(best.variant.isa) else tuple(_own_rows(situation))
    host, found = situation.host, list[Alternative]()
    if not host.system.linux:
        return tuple(Alternative("system", note.text) for note in system_notes(host.system))
    if cpu is not None:
        named = replace(situation.request, here=False)  # without a name, it would be for the GPU
        text = (
            f"Use the CPU for now: {cpu.variant.unique_name} runs on this machine, for development and tests, at a "
            f"fraction of the speed: `{command(cpu, named)}`."
        )
        found.append(Alternative("cpu", text, cpu.variant.unique_name))
    found += _by_jetpack(situation) if _unknown_jetpack(situation) else _own_rows(situation)
    platforms = sorted({isa.arch for isa in situation.catalog.isas.values()})
    if host.cpu.arch not in platforms:
        text = (
            f"PyTorch is available for {' and '.join(platforms)}; this machine is {host.cpu.arch}. Use another one, or "
            f"{_PLATFORM_BUILDS.get(host.cpu.arch, 'a build of the distribution')}."
        )
        found.append(Alternative("platform", text))
    elif not host.cpu.flags:
        text = f"The flags of this CPU ({host.cpu.name}) are unknown: give its name with --cpu."
        found.append(Alternative("name", text))
    if situation.devices:
        found += _containers(situation)
        text = (
            "Ask for another machine: `torchtailor detect --json > machine.json` there, then `torchtailor recommend "
            "--from machine.json` here."
        )
        found.append(Alternative("remote", text))
    return tuple(found)


def _own_rows(situation: Situation) -> Iterator[Alternative]:
    """Rows of data that make a variant of one's own, where a build could be compiled and would run."""
    host = situation.host
    if _ends_before_wheels(host) or host.cpu.at_least:
        return
    isa = situation.isas.runnable[0] if situation.isas.runnable else None
    own = None if isa else _own_isa(host.cpu)
    if isa is None and own is None:
        return
    name = isa.name if isa else own.name if own else ""
    extra = own.toml(host.cpu.name) + "\n" if own else ""
    place = _buildable(situation, situation.devices[0]) if situation.devices else None
    if place is not None:
        release, build, gpu = place
        if any(gpu.capability in row.gpus and name in row.cpus for row in build.rows):
            return  # it is in the matrix already
        method = _method(situation, release, build, gpu, isa) if isa else situation.catalog.methods[SOURCE]
        text = (
            f"Define a variant of your own, {gpu.sm}-{name} of PyTorch {release.version} with CUDA {build.cuda}"
            f"{_needing(situation, build)}, {method.phrase}: add this to {USER_FILE} and run the command again."
        )
        row = (
            f'[[row]]\nrelease = "{release.name}"\ncuda = "{build.cuda}"\ngpus = ["{gpu.capability}"]\n'
            f'cpus = ["{name}"]\n'
        )
        yield Alternative(method.name, text, f"{gpu.sm}-{name}", extra + row)
    elif own is not None:
        release = situation.releases[0]
        text = (
            f"Compile PyTorch {release.version} for this CPU with {' '.join(own.compile_flags)}: add this to "
            f"{USER_FILE} and run the command again with --gpu none --via source."
        )
        row = f'[[row]]\nrelease = "{release.name}"\ncpus = ["{name}"]\n'
        yield Alternative("source", text, f"cpu-{name}", extra + row)


def _unknown_jetpack(situation: Situation) -> bool:
    """Whether this is a Jetson whose JetPack decides, and is not known."""
    tegra = situation.host.tegra
    return bool(situation.devices) and tegra is not None and tegra.jetpack is None and not tegra.unified


def _by_jetpack(situation: Situation) -> Iterator[Alternative]:
    """What each JetPack that the chip may have makes possible, the newest first."""
    tegra = situation.host.tegra
    chip = tegra_table().find_chip(tegra.chip) if tegra else None
    if tegra is None or chip is None:
        return
    newest_of_major = {Dotted(row.jetpack).major: row for row in tegra_table().jetpacks_of(chip)}
    for row in reversed(newest_of_major.values()):
        described = describe_tegra(tegra.model, tegra.chip, row.l4t)
        there = replace(situation, host=replace_struct(situation.host, tegra=described))
        if best := best_candidate(there):
            variant = best.variant
            text = (
                f"With JetPack {row.jetpack}: {variant.unique_name}, {best.method.phrase}, whose "
                f"{best.coverage.through} code runs there. Run the command again with "
                f"--jetpack {row.jetpack} for the details."
            )
            yield Alternative("jetpack", text, variant.unique_name)
        for own in () if best else _own_rows(there):
            text = f"With JetPack {row.jetpack}: {own.text[0].lower()}{own.text[1:]}"
            yield Alternative("jetpack", text, own.variant, own.toml)


def _ends_before_wheels(host: Host) -> bool:
    """Whether this is a JetPack whose Ubuntu is too old for every release here, to run it and to compile it."""
    row = tegra_table().by_jetpack(host.tegra.jetpack) if host.tegra and host.tegra.jetpack else None
    return row is not None and Dotted(row.glibc) < WHEEL_GLIBC


def _needing(situation: Situation, build: Build) -> str:
    """What a JetPack needs beside itself to run this build."""
    verdict = situation.driver(situation.devices[0], build)
    compat = situation.host.tegra is not None and verdict.fit is DriverFit.MINOR
    return f" ({verdict.text.rstrip('.')})" if compat else ""


def _buildable(situation: Situation, device: GpuDevice) -> tuple[Release, Build, Gpu] | None:
    """The newest release with a build whose CUDA compiles for the GPU and runs on this driver.

    On a Jetson the JetPack's own CUDA comes before a newer release, then the one that is least above it: that needs a
    compatibility package.
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
                default = release.default_index.get(host.cpu.arch) == build.label
                near = _nearness(host.tegra, build.cuda, fit)
                found.append(((near, release.version, default, build.wheels, build.cuda), release, build))
    if not found:
        return None
    _, release, build = max(found, key=lambda item: item[0])
    return release, build, gpu


def _nearness(tegra: Tegra | None, cuda: Dotted, fit: DriverFit) -> tuple[bool, bool, tuple[int, ...]]:
    """How well a CUDA suits a JetPack: of its major version, not above it, else as little above it as can be."""
    if tegra is None or tegra.cuda is None:
        return (False, False, ())
    native = fit is DriverFit.FULL
    return (cuda.major == Dotted(tegra.cuda).major, native, () if native else tuple(-part for part in cuda.parts))


def _method(situation: Situation, release: Release, build: Build, gpu: Gpu, isa: Isa) -> Method:
    """Wheel where the official one already has code for the GPU, else source."""
    tegra = situation.host.tegra
    usable = not gpu.tegra or bool(tegra and tegra.unified)
    variant = Variant(release, build, gpu, isa, situation.request.wanted_python)
    methods = situation.catalog.methods
    covered = coverage(situation.catalog, variant, WHEEL)
    return methods[WHEEL if usable and covered.available and covered.fit is not Fit.JIT else SOURCE]


def _containers(situation: Situation) -> Iterator[Alternative]:
    """Containers, where they help.

    Not for a GPU that the driver dropped or does not know yet, for that is the kernel's; nor for one that a release
    lists, or that newer software has dropped.
    """
    host, devices = situation.host, situation.devices
    if host.tegra is not None:
        jetpack = f"JetPack {host.tegra.jetpack}" if host.tegra.jetpack else "your JetPack"
        text = (
            f"Use a container or wheel built for {jetpack}: NVIDIA's l4t images and the jetson-containers project "
            "build PyTorch against the CUDA of each JetPack."
        )
        yield Alternative("container", text)
        return
    builds = [build for release in situation.catalog.releases.values() for build in release.cuda_builds]
    fits = {situation.driver(device, build).fit for device in devices for build in builds}
    names = " and ".join(dict.fromkeys(device.name for device in devices))
    if any(
        _beyond_containers(situation.catalog.gpus.get(device.compute), device, host)
        for device in devices
        if device.compute
    ):
        return
    if any(fit.runs for fit in fits):
        listed = {capability for build in builds for row in build.rows for capability in row.gpus}
        if all(device.compute in listed for device in devices):
            return
        text = (
            "Try a newer container: NVIDIA's own PyTorch images (nvcr.io/nvidia/pytorch) support new GPUs first. Check "
            f"that `torch.cuda.get_arch_list()` in it covers {names} before you rely on it."
        )
        yield Alternative("container", text)
    elif DriverFit.DROPPED_GPU not in fits:
        known = [(situation.catalog.gpus.get(one.compute), one.name) for one in devices if one.compute]
        served = [gpu.in_datacenters(name) for gpu, name in known if gpu is not None]
        if False in served:
            return
        text = (
            f"{'Try' if served and all(served) else 'If it is a data-centre GPU, try'} a newer container: NVIDIA's own "
            "PyTorch images (nvcr.io/nvidia/pytorch) include a compatibility library with which data-centre GPUs run a "
            "newer CUDA on an older driver; see their release notes."
        )
        yield Alternative("container", text)


def _beyond_containers(gpu: Gpu | None, device: GpuDevice, host: Host) -> bool:
    """Whether the kernel's driver predates the GPU, or CUDA has dropped it."""
    if gpu is None:
        return False
    driver = host.driver.number if host.driver is not None and not host.driver.windows else None
    first = gpu.first_driver_of(device.name)
    return gpu.last_cuda is not None or bool(driver and first and driver < first)


@dataclass(frozen=True, slots=True)
class OwnIsa:
    """An instruction set for a CPU that runs none of the catalog's: its name, needs, and how to compile for it."""

    name: str
    arch: str
    requires: tuple[str, ...]
    compile_flags: tuple[str, ...]

    def toml(self, label: str) -> str:
        words, flags = (", ".join(f'"{word}"' for word in words) for words in (self.requires, self.compile_flags))
        return (
            f'[[isa]]\nname = "{self.name}"\narch = "{self.arch}"\nlabel = "{label.partition(" (")[0]}"\n'
            f"requires = [{words}]\ncompile_flags = [{flags}]\n"
        )


def _own_isa(cpu: Cpu) -> OwnIsa | None:
    """The highest level of the platform that the CPU's flags allow; None for a platform without PyTorch."""
    flags = frozenset(cpu.flags)
    name = re.sub(r"[^a-z0-9_]", "_", cpu.microarchitecture.lower())
    if cpu.arch == "aarch64" and {"fp", "asimd"} <= flags:
        requires, march = _arm_level(flags)
        return OwnIsa(name, cpu.arch, tuple(sorted(requires)), (f"-march={march}",))
    if cpu.arch == "x86_64" and flags:
        words = [word for word in _X86_OPTIONS if word in flags]
        options = tuple(_X86_OPTIONS[word] for word in words) or ("-march=x86-64",)
        return OwnIsa(name, cpu.arch, tuple(sorted(words)), options)
    return None


# Below AVX: the words of /proc/cpuinfo beyond those of every x86-64 CPU, and GCC's options for them.
_X86_OPTIONS = {
    "pni": "-msse3",
    "ssse3": "-mssse3",
    "sse4_1": "-msse4.1",
    "sse4_2": "-msse4.2",
    "popcnt": "-mpopcnt",
    "cx16": "-mcx16",
}


def _arm_level(flags: frozenset[str]) -> tuple[set[str], str]:
    requires, march = {"fp", "asimd"}, "armv8-a"
    if "crc32" in flags:
        requires, march = requires | {"crc32"}, "armv8-a+crc"
    if {"crc32", "atomics", "asimdrdm"} <= flags:
        requires, march = requires | {"atomics", "asimdrdm"}, "armv8.1-a"
        if {"fphp", "asimdhp"} <= flags:
            requires, march = requires | {"fphp", "asimdhp"}, "armv8.2-a+fp16"
            if "sve" in flags:
                requires, march = requires | {"sve"}, "armv8.2-a+fp16+sve"
    return requires, march
