"""Why torch does not run on this machine, and the command that mends it.

The facts come first: the machine, the torch in the environment and the GPU code in its libraries. A message says which
of the facts matter, and what the facts alone do not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from torchtailor.catalog import Build, Capability, Catalog, CodeKind, CodeTarget, Dotted, DriverFit, Fit, Suffix
from torchtailor.doctor.fixes import Mend, Mends
from torchtailor.doctor.symptoms import Symptom, Trouble, read_symptoms
from torchtailor.errors import NoMatchError
from torchtailor.host.model import GpuDevice, Host, InstalledTorch
from torchtailor.recommend.drivers import DriverVerdict, judge_driver
from torchtailor.verify.gpu_presence import suitable_gpus


@dataclass(frozen=True, slots=True)
class Patient:
    """A machine, the torch that is on it, and what was seen of the trouble."""

    host: Host
    torch: InstalledTorch | None
    environment: str | None = None  # as the user would write it in a command
    message: str = ""
    cut_for: tuple[str, ...] = ()  # the GPUs that torchtailor cut this torch for
    others: tuple[tuple[str, str], ...] = ()  # further libraries with GPU code, none of it for this GPU: name, code

    @property
    def codes(self) -> tuple[CodeTarget, ...]:
        """The GPU code in torch's main library; what cannot be parsed is left out."""
        found = []
        for text in self.torch.architectures if self.torch else ():
            try:
                found.append(CodeTarget.parse(text))
            except ValueError:
                continue
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: what, why, and what to do, the best first."""

    trouble: Trouble
    cause: str
    mends: tuple[Mend, ...]
    seen: str = ""  # the message it explains


@dataclass(frozen=True, slots=True)
class Finding:
    """What the doctor says."""

    machine: str
    torch: str
    problems: tuple[Problem, ...]
    healthy: tuple[str, ...]
    unexplained: tuple[str, ...] = ()

    @property
    def well(self) -> bool:
        return not self.problems and not self.unexplained


def examine(patient: Patient, catalog: Catalog) -> Finding:
    """All problems that the facts and the message show."""
    symptoms = read_symptoms(patient.message)
    patient = _as_told(patient, symptoms)
    problems = list(_Examination(patient, catalog, symptoms).problems())
    seen = {symptom.trouble: symptom.text for symptom in symptoms}
    problems = [replace(problem, seen=_seen(problem.trouble, seen)) for problem in problems]
    problems.sort(key=lambda problem: not problem.seen)  # what the message is about comes first
    explained = {problem.trouble for problem in problems} | {Trouble.NOT_LISTED}
    left = [symptom.text for symptom in symptoms if symptom.trouble not in explained] if not problems else []
    if patient.message.strip() and not symptoms:
        left = [patient.message.strip().splitlines()[-1][:300]]
    healthy = () if problems else tuple(_healthy(patient, catalog, warned=Trouble.NOT_LISTED in seen))
    return Finding(_machine(patient.host), _torch(patient), tuple(problems), healthy, tuple(left))


class _Examination:
    """Looks at one patient."""

    def __init__(self, patient: Patient, catalog: Catalog, symptoms: Sequence[Symptom]) -> None:
        self._patient = patient
        self._host = patient.host
        self._catalog = catalog
        self._symptoms = {symptom.trouble: symptom for symptom in symptoms}
        self._mends = Mends(catalog, patient.host, patient.torch, patient.environment)

    def problems(self) -> Iterator[Problem]:
        torch = self._patient.torch
        if torch is None:
            where = self._patient.environment or "this machine's Python"
            yield Problem(Trouble.NO_TORCH, f"There is no torch in {where}.", self._mends.install())
            return
        yield from self._loading(torch)
        if torch.cuda is None:
            yield from self._cpu_build(torch)
            return
        devices = [device for device in self._host.visible_gpus if device.compute is not None]
        if not devices:
            yield from self._no_gpu()
        for device in devices:
            yield from self._device(device, torch)

    def _loading(self, torch: InstalledTorch) -> Iterator[Problem]:
        """Troubles that only a message can show: they come before anything of the GPU."""
        if Trouble.INSTRUCTION in self._symptoms:
            yield self._instruction(torch)
        if Trouble.LIBC in self._symptoms or self._old_libc():
            libc = f"{self._host.system.libc} {self._host.system.libc_version or ''}".strip()
            cause = f"Official wheels need glibc 2.28 or newer, and this system has {libc}."
            yield Problem(Trouble.LIBC, cause, self._mends.newer_system())
        if (missing := self._symptoms.get(Trouble.LIBRARY)) is not None:
            cause = f"torch {torch.version} needs {missing.library}, and it is not where torch looks for it."
            yield Problem(Trouble.LIBRARY, cause, self._mends.reinstall())
        if (mixed := self._symptoms.get(Trouble.MIXED_LIBRARIES)) is not None:
            which = f" ({mixed.library})" if mixed.library else ""
            cause = f"A library of another CUDA{which} is found before the one that torch {torch.version} came with."
            yield Problem(Trouble.MIXED_LIBRARIES, cause, self._mends.clean_path())
        for trouble in (Trouble.BAD_VERSION, Trouble.OTHER_ARCH):
            if trouble in self._symptoms:
                what = "is cut short" if trouble is Trouble.BAD_VERSION else f"is not for {self._host.cpu.arch}"
                yield Problem(trouble, f"A library of torch {torch.version} {what}.", self._mends.reinstall())

    def _old_libc(self) -> bool:
        system = self._host.system
        if system.libc == "musl":
            return True
        return (
            system.libc == "glibc" and system.libc_version is not None and Dotted(system.libc_version) < Dotted("2.28")
        )

    def _instruction(self, torch: InstalledTorch) -> Problem:
        cpu = self._host.cpu
        runs = [isa for isa in self._catalog.isas.values() if isa.arch == cpu.arch and isa.runs_on(cpu.flags)]
        lacks = [isa for isa in self._catalog.isas.values() if isa.arch == cpu.arch and not isa.runs_on(cpu.flags)]
        told = (
            f"it runs {', '.join(isa.label for isa in runs)}" if runs else "it runs none of the known instruction sets"
        )
        without = f" and not {', '.join(isa.label for isa in lacks)}" if lacks else ""
        cause = (
            f"torch {torch.version}, or a library beside it, uses instructions that this CPU ({cpu.name}) does not "
            f"have: {told}{without}."
        )
        return Problem(Trouble.INSTRUCTION, cause, self._mends.other_isa())

    def _cpu_build(self, torch: InstalledTorch) -> Iterator[Problem]:
        if self._host.gpus or Trouble.CPU_BUILD in self._symptoms:
            names = ", ".join(dict.fromkeys(gpu.name for gpu in self._host.gpus)) or "the GPU"
            cause = f"torch {torch.version} was built without CUDA, so it cannot use {names}."
            yield Problem(Trouble.CPU_BUILD, cause, self._mends.install())

    def _no_gpu(self) -> Iterator[Problem]:
        hidden = [gpu.label for gpu in self._host.gpus if not gpu.visible]
        notes = [note.text for note in self._host.notes if note.topic not in ("cpu-limit", "failed")]
        if hidden:
            cause = f"CUDA_VISIBLE_DEVICES={self._host.cuda_visible_devices} hides {', '.join(hidden)}."
            yield Problem(Trouble.NO_GPU, cause, self._mends.unhide())
        elif self._host.gpus:
            cause = f"The compute capability of {self._host.gpus[0].name} is not known."
            yield Problem(Trouble.NO_GPU, cause, self._mends.driver(None))
        elif self._host.driver is None:
            cause = " ".join(["No NVIDIA driver answers on this machine.", *notes])
            yield Problem(Trouble.NO_DRIVER, cause, self._mends.no_driver())
        else:
            cause = " ".join([f"Driver {self._host.driver.version} answers, but shows no GPU.", *notes])
            yield Problem(Trouble.NO_GPU, cause, self._mends.no_driver())

    def _device(self, device: GpuDevice, torch: InstalledTorch) -> Iterator[Problem]:
        assert device.compute is not None
        verdict = self._driver(device, torch)
        codes = self._patient.codes
        best = _best(self._catalog, self._host, device.compute, codes)
        if codes and best is None:
            yield self._no_code(device, torch, codes, verdict)  # no driver mends that
            return
        yield from self._driver_problem(torch, verdict)
        if best is None:
            return
        if best.kind is CodeKind.PTX and verdict is not None and verdict.fit is DriverFit.MINOR:
            cause = (
                f"For {_named(device)} this torch has nothing but PTX ({best}) made by CUDA {torch.cuda}, and "
                f"driver {self._host.driver.version if self._host.driver else ''} is older than that CUDA: it cannot "
                "compile it."
            )
            yield Problem(Trouble.PTX_REFUSED, cause, self._mends.driver(verdict))
        elif Trouble.NO_CODE in self._symptoms:
            yield from self._other_libraries(device, best)

    def _driver_problem(self, torch: InstalledTorch, verdict: DriverVerdict | None) -> Iterator[Problem]:
        if verdict is not None and not verdict.fit.runs:
            yield Problem(Trouble.DRIVER, verdict.text, self._mends.driver(verdict))
        elif (told := self._symptoms.get(Trouble.DRIVER)) is not None:
            found = f" (it is made for CUDA {told.driver_cuda})" if told.driver_cuda else ""
            cause = f"The driver{found} is too old for CUDA {torch.cuda}, with which torch {torch.version} was made."
            yield Problem(Trouble.DRIVER, cause, self._mends.driver(verdict))

    def _driver(self, device: GpuDevice, torch: InstalledTorch) -> DriverVerdict | None:
        build = self._build(torch)
        if build is None or (self._host.driver is None and self._host.tegra is None):
            return None
        return judge_driver(self._catalog, self._host, device, build)

    def _build(self, torch: InstalledTorch) -> Build | None:
        """The build that this torch is, or one of the same CUDA."""
        assert torch.cuda is not None
        try:
            line = self._catalog.toolkit(".".join(torch.cuda.split(".")[:2])).version
        except (NoMatchError, ValueError):
            return None
        for release in self._catalog.releases.values():
            if str(release.version) == torch.version.split("+")[0]:
                for build in release.cuda_builds:
                    if build.cuda == line:
                        return build
        return Build(cuda=line, rows=())

    def _no_code(
        self, device: GpuDevice, torch: InstalledTorch, codes: Sequence[CodeTarget], verdict: DriverVerdict | None
    ) -> Problem:
        cause = (
            f"torch {torch.version} holds no code that {_named(device)} runs: it holds {', '.join(map(str, codes))}, "
            f"which runs on {suitable_gpus(codes, self._catalog)}."
        )
        if verdict is not None and not verdict.fit.runs:
            cause += f" {verdict.text}"
        if self._patient.cut_for:
            cause += f" It was cut by torchtailor for {', '.join(self._patient.cut_for)}."
            return Problem(Trouble.NO_CODE, cause, (self._mends.restore(), *self._mends.install(device)))
        return Problem(Trouble.NO_CODE, cause, self._mends.install(device))

    def _other_libraries(self, device: GpuDevice, best: CodeTarget) -> Iterator[Problem]:
        fine = f"torch itself has {best} for {_named(device)}"
        if self._patient.others:
            named = "; ".join(f"{name} ({code})" for name, code in self._patient.others[:4])
            cause = f"{fine}, but other libraries hold nothing that it runs: {named}."
        else:
            cause = (
                f"{fine}, so the message comes from another library: an extension (flash-attn, xformers, "
                "bitsandbytes, one of your own) that was compiled for other GPUs."
            )
        yield Problem(Trouble.NO_CODE, cause, self._mends.extension(device))


def _best(catalog: Catalog, host: Host, device: Capability, codes: Sequence[CodeTarget]) -> CodeTarget | None:
    """The code that most kernels come from: `a` and `f` code stands beside plain code, for a few kernels only."""
    unified = bool(host.tegra and host.tegra.unified)
    plain = [code for code in codes if code.suffix is Suffix.NONE]
    found = catalog.rules.best(device, plain, unified_tegra=unified)
    return found or catalog.rules.best(device, codes, unified_tegra=unified)


def _as_told(patient: Patient, symptoms: Sequence[Symptom]) -> Patient:
    """A message about a GPU that this machine does not have is about another machine's: take it as told."""
    told = next((symptom for symptom in symptoms if symptom.capability), None)
    if told is None or any(gpu.compute == told.capability for gpu in patient.host.gpus):
        return patient
    device = GpuDevice(index=0, name=told.gpu or "The GPU of the message", capability=str(told.capability))
    return replace(patient, host=msgspec.structs.replace(patient.host, gpus=(device,)))


def _named(device: GpuDevice) -> str:
    return f"{device.name} ({device.compute})"


def _machine(host: Host) -> str:
    from torchtailor.recommend.explain import machine_line

    return machine_line(host)


def _torch(patient: Patient) -> str:
    torch = patient.torch
    if torch is None:
        return "none"
    cuda = f"CUDA {torch.cuda}" if torch.cuda else "without CUDA"
    code = f", code for {', '.join(torch.architectures)}" if torch.architectures else ""
    return f"{torch.version} ({cuda}) in {torch.path}{code}"


def _seen(trouble: Trouble, seen: Mapping[Trouble, str]) -> str:
    """The message that a trouble explains; missing code also stands behind torch's warning and an old driver's."""
    others = (Trouble.NOT_LISTED, Trouble.DRIVER) if trouble is Trouble.NO_CODE else ()
    return next((seen[one] for one in (trouble, *others) if one in seen), "")


def _healthy(patient: Patient, catalog: Catalog, *, warned: bool) -> Iterator[str]:
    """What was looked at and is in order."""
    torch = patient.torch
    if torch is None:
        return
    if torch.cuda is None:
        yield f"torch {torch.version} is built for the CPU, and there is no GPU that it should use."
        return
    for device in patient.host.visible_gpus:
        if device.compute is None:
            continue
        best = _best(catalog, patient.host, device.compute, patient.codes)
        if best is not None:
            if warned:
                yield (
                    "That message is a warning and does no harm: torch compares names, and its list does not have "
                    f"sm_{device.compute.number}."
                )
            fit = catalog.rules.fit(device.compute, best)
            how = {Fit.NATIVE: "natively", Fit.COMPATIBLE: "by compatibility", Fit.JIT: "after compiling it once"}[fit]
            yield f"{_named(device)} runs torch's {best} code {how}."
    if patient.host.driver is not None:
        yield f"Driver {patient.host.driver.version} runs CUDA {torch.cuda}."


def cut_for(torch: Path) -> tuple[str, ...]:
    """The GPUs that torchtailor cut an installed torch for, from the manifest it left."""
    from torchtailor.wheels.distribution import MANIFEST

    for place in (*torch.parent.glob(f"torch-*.dist-info/{MANIFEST}"), torch.parent / MANIFEST):
        try:
            document = msgspec.json.decode(place.read_bytes())
            return tuple(str(Capability.parse(gpu)) for gpu in document["target"]["gpus"])
        except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
            continue
    return ()
