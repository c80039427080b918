"""Why a candidate was picked, in sentences; the machine in one line; what compiling brings; and the commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from torchtailor.advise.host.model import Cpu, GpuDevice, Host
from torchtailor.advise.recommendation.candidates import Candidate
from torchtailor.advise.recommendation.request import Request, Situation, Workload
from torchtailor.advise.recommendation.result import Pick
from torchtailor.catalog.compiled import CompiledBuild
from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Fit, Suffix
from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import WHEEL, Basis
from torchtailor.catalog.schema import Dotted

_BLACKWELL = 10  # from this major on Triton takes its second ptxas
_OLDEST_FOR_TRITON = 7  # major capability; inductor refuses older GPUs
_RUNS = {
    Fit.NATIVE: "natively",
    Fit.COMPATIBLE: "through binary compatibility",
    Fit.JIT: "after JIT compilation by the driver",
}


def pick(candidate: Candidate, *reasons: str) -> Pick:
    """A candidate as it is shown."""
    variant, driver = candidate.variant, candidate.driver
    return Pick(
        variant=variant.unique_name,
        name=variant.name,
        short_name=variant.short_name,
        release=variant.release_name,
        pytorch=str(variant.release.version),
        cuda=str(variant.build.cuda) if variant.build.cuda else None,
        build=variant.build.label,
        python=variant.python,
        method=candidate.method.name,
        isa=variant.isa.name,
        gpu=variant.gpu_name if variant.gpu else None,
        gpus=tuple(device.device.index for device in candidate.devices),
        code=", ".join(dict.fromkeys(str(device.code) for device in candidate.devices)) or None,
        fit=candidate.fit.value,
        driver=(driver.fit.value if driver.known else "unknown") if driver else None,
        reasons=reasons,
    )


def why(situation: Situation, candidate: Candidate) -> tuple[str, ...]:
    """The reasons for the best candidate: release, code, driver, instruction set."""
    reasons = [_why_release(situation, candidate)]
    if candidate.devices or situation.isas.runs(candidate.variant.isa):
        reasons.append(candidate.coverage.text)
    if candidate.variant.also:
        names = ", ".join(short_label(device.device) for device in candidate.devices)
        reasons.append(f"One environment serves all GPUs: {names}.")
    elif len({device.device.compute for device in candidate.devices}) > 1:
        runs = [f"{_RUNS[device.fit]} on {short_label(device.device)}" for device in candidate.devices]
        reasons.append(f"{candidate.coverage.through} code runs {', '.join(runs)}.")
    elif candidate.devices and not candidate.exact:
        reasons.append(_why_another(situation.catalog, candidate))
    if candidate.driver is not None:
        reasons.append(candidate.driver.text)
    reasons += _false_warnings(candidate)
    if limit := _compiler_limit(situation, candidate):
        reasons.append(limit)
    reasons.append(_why_isa(candidate, situation))
    if candidate.method.basis is Basis.WHEEL:
        variant = candidate.variant
        if exceptions := variant.release.wheel_exceptions(variant.arch, situation.host.cpu.flags):
            missing, text = exceptions
            reasons.append(f"Known limits of the official wheel on this CPU, which lacks {', '.join(missing)}: {text}")
    return tuple(reasons)


def _why_release(situation: Situation, candidate: Candidate) -> str:
    version = candidate.variant.release.version
    newest = max(release.version for release in situation.catalog.releases.values())
    if version == newest:
        return f"PyTorch {version} is the newest release{_for_which_system(situation.host)}."
    if situation.request.release:
        return f"PyTorch {version} is the release that was asked for."
    if candidate.method.basis is not Basis.WHEEL:
        return f"PyTorch {version} is the newest release with a variant for this machine {candidate.method.phrase}."
    return f"PyTorch {version} is the newest release whose official wheel is known to run on this machine."


def _for_which_system(host: Host) -> str:
    """What the command alone does not show of systems for which it is another."""
    if host.system.libc == "musl":
        return " (there are no wheels for musl)"
    if host.cpu.microarchitecture.startswith("apple_") and not host.system.kernel:  # given by its name
        return " (for Linux on it; on macOS `pip install torch`)"
    return ""


def _why_another(catalog: Catalog, candidate: Candidate) -> str:
    """Why a variant is named for another GPU than the machine's."""
    device = candidate.devices[0].device
    assert device.compute is not None and candidate.variant.gpu is not None
    gpu = catalog.gpus.get(device.compute)
    code = candidate.coverage.through
    because = f", given {gpu.unified.condition}" if gpu and gpu.unified else ""
    return (
        f"PyTorch {candidate.variant.release.version} has no stock variant for {device.compute.sm.upper()} "
        f"({device.name}) {candidate.method.phrase}; {code} code runs on it {_RUNS[candidate.fit]}{because}."
    )


def _false_warnings(candidate: Candidate) -> Iterator[str]:
    """GPUs that the release warns about when it starts, though it runs on them."""
    release = candidate.variant.release
    warned = {device.device.compute for device in candidate.devices} & release.false_warnings
    if warned:
        names = " and ".join(compute.sm.upper() for compute in sorted(one for one in warned if one))
        yield (
            f"PyTorch {release.version} may warn at the start that {names} is not supported: that is not so, and later "
            "releases no longer say it."
        )


def _compiler_limit(situation: Situation, candidate: Candidate) -> str | None:
    """What `torch.compile` needs where the driver does not load the code that Triton's ptxas writes for the GPU."""
    catalog, driver = situation.catalog, situation.host.driver
    triton = next((row for row in catalog.tritons if _is_version(row.version, candidate.variant.release.triton)), None)
    newest = max((device.device.compute for device in candidate.devices if device.device.compute), default=None)
    if newest is not None and newest.major < _OLDEST_FOR_TRITON:
        return f"torch.compile does not work on this GPU: Triton needs capability {_OLDEST_FOR_TRITON}.0 or newer."
    if triton is None or newest is None:
        return None
    blackwell = newest.major >= _BLACKWELL and triton.ptxas_blackwell is not None
    ptxas = triton.ptxas_blackwell if blackwell and triton.ptxas_blackwell else triton.ptxas
    line = Dotted(".".join(ptxas.split(".")[:2]))
    toolkit, gpu = catalog.toolkits.get(line), catalog.gpus.get(newest)
    variable = "TRITON_PTXAS_BLACKWELL_PATH" if blackwell else "TRITON_PTXAS_PATH"
    if toolkit is None:
        return None
    if gpu and gpu.arch_specific and not toolkit.compiles(CodeTarget(CodeKind.CUBIN, newest, Suffix.ARCH)):
        return (
            f"torch.compile needs more: the ptxas of CUDA {line} in Triton {triton.version} does not know "
            f"sm_{newest.number}a. Set {variable} to the ptxas of a CUDA {gpu.first_cuda} toolkit or newer."
        )
    if driver is None or driver.windows or situation.host.tegra or toolkit.fit_driver(driver.number).runs:
        return None
    return (
        f"torch.compile needs more: Triton {triton.version} compiles for this GPU with its ptxas of CUDA {line}, whose "
        f"code driver {driver.version} does not load ({toolkit.driver_minor} does). Set {variable} to the ptxas of a "
        f"CUDA {candidate.variant.build.cuda} toolkit."
    )


def _is_version(version: str, wanted: str) -> bool:
    """Whether a version is the wanted one, which may leave out its last part: 3.8 is 3.8.0."""
    return bool(wanted) and (version == wanted or version.rpartition(".")[0] == wanted)


def _why_isa(candidate: Candidate, situation: Situation) -> str:
    isa, isas, workload = candidate.variant.isa, situation.isas, situation.request.workload
    if not isas.runs(isa):
        return _why_above(candidate)
    work = "general work" if workload is Workload.GENERAL else workload.value
    which = "" if isas.rank(isa) == 0 else " that this build is available for"
    if situation.host.cpu.at_least:
        which += " that is certain"
    text = f"{isa.label} is the best instruction set of this CPU{which} for {work}."
    if candidate.method.basis is Basis.WHEEL and candidate.variant.gpu is not None:
        text += " The official wheel selects CPU kernels at run time; source and Nix builds set them at compile time."
    return text


def _why_above(candidate: Candidate) -> str:
    """Why the name promises more than the CPU has."""
    variant = candidate.variant
    needed = variant.release.baseline[variant.arch].label
    return (
        f"The official wheel runs on this CPU: it needs {needed} only and selects "
        f"its CPU kernels at run time. The name says {variant.isa.name} because no variant of this wheel is named for "
        f"less; a source or Nix build of that name would need {variant.isa.label}."
    )


def short_label(device: GpuDevice) -> str:
    return f"GPU {device.index} ({device.name})"


def machine_line(host: Host) -> str:
    """The machine in one line."""
    parts = [_cpu_line(host.cpu)]
    counts: dict[str, int] = {}
    for gpu in host.gpus:
        text = f"{gpu.name} ({gpu.capability or 'capability unknown'}{'' if gpu.visible else ', hidden'})"
        counts[text] = counts.get(text, 0) + 1
    parts += [f"{count}x {text}" if count > 1 else text for text, count in counts.items()]
    if host.driver is not None:
        parts.append(f"driver {host.driver.version}")
    if host.tegra is not None and host.tegra.jetpack:
        parts.append(f"JetPack {host.tegra.jetpack}")
    if not host.system.linux:
        parts.append(host.system.os)
    return ", ".join(parts)


def _cpu_line(cpu: Cpu) -> str:
    known = cpu.microarchitecture not in ("unknown", cpu.name)
    return f"{cpu.name} ({cpu.microarchitecture}, {cpu.arch})" if known else f"{cpu.name} ({cpu.arch})"


def command(candidate: Candidate, request: Request) -> str:
    """What makes the variant, and installs it where it is cut from the official wheel.

    Without a name, `install` falls back to an older release where the indexes do not have the newest.
    """
    name = candidate.variant.unique_name
    if candidate.method.name == WHEEL:
        into = f"--into {shlex.quote(request.into)}" if request.into else ""
        return " ".join(filter(None, ("torchtailor install", "" if request.here else name, into)))
    return f"torchtailor build {name} --via {candidate.method.name}"


def stock_command(candidate: Candidate, wheel_index: str) -> str | None:
    """What installs the official wheel uncut; None where the variant is not cut from one."""
    variant = candidate.variant
    if candidate.method.basis is not Basis.WHEEL:
        return None
    version, label = variant.release.version, variant.build.label
    if candidate.default_index:
        return f"python -m pip install torch=={version}"
    return f"python -m pip install torch=={version}+{label} --extra-index-url {wheel_index.format(label=label)}"


# Percent; between them nobody notices.
_FASTER = 95
_SLOWER = 105


def compiling(situation: Situation, best: Candidate | None) -> str | None:
    """The sentence; None where nothing runs, or there is no official wheel to compare with."""
    if best is None or (best.method.basis is not Basis.WHEEL and situation.request.method is None):
        return None
    runnable = situation.isas.runnable
    if not runnable:
        return None
    for isa in runnable:
        if (row := situation.catalog.compiled.get(isa.name)) is not None:
            other = "" if isa is runnable[0] else f"For {runnable[0].label} nothing was measured. "
            here = row.microarchitecture in ("", situation.host.cpu.microarchitecture)
            return f"{other}{_measured(isa, row, here=here)}"
    return (
        f"What compiling for {runnable[0].label} brings was not measured: prefer the official wheel, which selects its "
        "CPU kernels at run time, or measure it (`torchtailor help source`)."
    )


def _measured(isa: Isa, row: CompiledBuild, *, here: bool) -> str:
    if row.geometric_mean <= _FASTER:
        verdict = "compile it where the CPU does the work"
    elif row.geometric_mean < _SLOWER:
        verdict = "the official wheel is as good, and needs no compiling"
    else:
        verdict = "the official wheel is the better choice"
    build = f"{row.pytorch} with the profile {row.profile}" + (f", without {row.lacks}" if row.lacks else "")
    where = f"on {row.cpu}" + ("" if here else ", not on this CPU")
    return (
        f"Compiled for {isa.label}, PyTorch takes {row.geometric_mean} % of the official wheel's time on the CPU "
        f"({row.best.what} {row.best.percent} %, {row.worst.what} {row.worst.percent} %; {row.operations} operations "
        f"of {build}, {where}): {verdict}."
    )
