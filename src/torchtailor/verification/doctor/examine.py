"""Why torch does not run on a machine, and the command that fixes it.

The facts come first: the machine, the torch in the environment and the GPU code in its libraries. A message says which
of the facts matter, and what the facts alone do not show.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from torchtailor.advise.host.model import GpuDevice, Host, InstalledTorch
from torchtailor.advise.recommendation.drivers import DriverVerdict, judge_driver
from torchtailor.catalog import Build, Capability, Catalog, CodeKind, CodeTarget, Dotted, DriverFit, Fit, Suffix
from torchtailor.catalog.releases import WHEEL_GLIBC
from torchtailor.core.errors import NoMatchError
from torchtailor.verification.doctor.fixes import Fix, Fixes, Interpreter
from torchtailor.verification.doctor.symptoms import ProblemKind, Symptom, read_symptoms
from torchtailor.verification.failures import Diagnosis, FailureTable
from torchtailor.verification.inspection.torch_code import suitable_gpus

# Problems that are the cause of other messages too: missing code of torch's warning, and of an old driver's.
_ALSO_EXPLAINS: Mapping[str, tuple[ProblemKind, ...]] = {
    ProblemKind.NO_CODE: (ProblemKind.NOT_LISTED, ProblemKind.DRIVER),
    ProblemKind.NO_DRIVER: (ProblemKind.NO_GPU,),
    ProblemKind.NO_GPU: (ProblemKind.NO_DRIVER,),
    ProblemKind.DRIVER: (ProblemKind.PTX_REFUSED, ProblemKind.NO_GPU),
}
_OF_THE_GPU = frozenset(
    {
        ProblemKind.NO_CODE,
        ProblemKind.NOT_LISTED,
        ProblemKind.DRIVER,
        ProblemKind.PTX_REFUSED,
        ProblemKind.NO_DRIVER,
        ProblemKind.NO_GPU,
        ProblemKind.MIXED_LIBRARIES,
    }
)
_OF_CUDA = re.compile(r"lib(?:cu|nv|nccl|torch_cuda|c10_cuda)")  # libraries that a torch for the CPU never asks for


@dataclass(frozen=True, slots=True)
class TorchEnvironment:
    """A machine, the torch that is on it, and what was seen."""

    host: Host
    torch: InstalledTorch | None
    place: str | None = None  # of the environment, as the user would write it in a command
    seen: Diagnosis | None = None  # the message or log
    cut: bool = False  # torchtailor made this torch smaller
    cut_for: tuple[str, ...] = ()  # the GPUs that it cut it for
    traced: bool = False  # it is for what one program uses
    others: tuple[tuple[str, str], ...] = ()  # further libraries with GPU code, none of it for this GPU: name, code
    interpreter: Interpreter | None = None
    asked_of: str = ""  # the library that should have a symbol which a message misses
    damage: str = ""  # what of torch's files cannot be read, as a sentence
    here: bool = False  # on this machine, where `install` itself finds what fits and can be had
    given_as: str = ""  # the options that tell `recommend` of this machine, where it is another one

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

    kind: str  # the failure's id
    cause: str
    fixes: tuple[Fix, ...]
    seen: str = ""  # the message it explains


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The problems that were found, and what is in order; machine and torch are empty where they do not matter."""

    machine: str
    torch: str
    problems: tuple[Problem, ...]
    healthy: tuple[str, ...]
    unexplained: tuple[str, ...] = ()
    log: Diagnosis | None = None  # what the message or log says by itself


def examine(environment: TorchEnvironment, catalog: Catalog) -> DoctorReport:
    """All problems that the facts and the message show."""
    symptoms = read_symptoms(environment.seen)
    environment = _of_message(environment, symptoms, catalog)
    examination = _Examination(environment, catalog, symptoms)
    problems = list(examination.problems())
    seen = {symptom.kind: symptom.text for symptom in symptoms}
    problems = [replace(problem, seen=_seen(problem.kind, seen)) for problem in problems]
    explained = {kind for problem in problems for kind in (problem.kind, *_ALSO_EXPLAINS.get(problem.kind, ()))}
    if environment.torch is not None and environment.torch.cuda is not None and not problems:
        explained.add(ProblemKind.NOT_LISTED)  # a warning, where the GPU has code to run
    problems += [examination.by_message(symptom) for symptom in symptoms if symptom.kind not in explained]
    problems.sort(key=lambda problem: not problem.seen)  # what the message is about comes first
    left = []
    if environment.seen is not None and not symptoms:
        seen_in = environment.seen
        line = seen_in.end or seen_in.first_error or seen_in.doubtful or seen_in.last_line
        left = [line.text.strip()[:300]] if line else []
    healthy = () if problems else tuple(_healthy(environment, catalog, warned=ProblemKind.NOT_LISTED in seen))
    machine, torch = _machine(environment.host), _torch(environment)
    return DoctorReport(machine, torch, tuple(problems), healthy, tuple(left), environment.seen)


def explain_log(seen: Diagnosis) -> DoctorReport | None:
    """The report of a log that says all by itself: of a failed build, or without any error."""
    if seen.clean:
        reached = f" The build had reached {seen.percent:.0f} %." if seen.percent is not None else ""
        return DoctorReport(
            "", "", (), (f"No error in {seen.lines} line{'' if seen.lines == 1 else 's'}.{reached}",), log=seen
        )
    found = seen.finding
    if found is None or not seen.known or found.table is FailureTable.RUNTIME:
        return None
    causes = (one for one in (found, *seen.other_causes) if one.table is not FailureTable.RUNTIME)
    problems = tuple(Problem(one.failure, one.cause, (Fix(one.fix),), one.text) for one in causes)
    return DoctorReport("", "", problems, (), log=seen)


class _Examination:
    """Looks at one environment."""

    def __init__(self, environment: TorchEnvironment, catalog: Catalog, symptoms: Sequence[Symptom]) -> None:
        self._environment = environment
        self._host = environment.host
        self._catalog = catalog
        self._symptoms = {symptom.kind: symptom for symptom in symptoms}
        self._fixes = Fixes(
            catalog,
            environment.host,
            environment.torch,
            environment.place,
            environment.interpreter,
            here=environment.here,
            given_as=environment.given_as,
        )

    def problems(self) -> Iterator[Problem]:
        torch = self._environment.torch
        if torch is None:
            if self._environment.seen is not None and ProblemKind.NO_TORCH not in self._symptoms:
                return  # the message is of another environment
            where = self._environment.place or "this machine's Python"
            yield Problem(ProblemKind.NO_TORCH, f"There is no torch in {where}.", self._fixes.install())
            return
        yield from self._loading(torch)
        if torch.cuda is None:
            if not self._environment.damage:  # which may hide what torch was built for
                yield from self._cpu_build(torch)
            return
        devices = [device for device in self._host.visible_gpus if device.compute is not None]
        if not devices:
            yield from self._no_gpu()
        for device in devices:
            yield from self._device(device, torch)

    def _loading(self, torch: InstalledTorch) -> Iterator[Problem]:
        """Problems that only a message can show: they come before anything of the GPU."""
        if ProblemKind.INSTRUCTION in self._symptoms:
            yield self._instruction(torch)
        system, needed = self._host.system, self._glibc(torch)
        if system.lacks_glibc(needed):
            libc = f"{system.libc} {system.libc_version or ''}".strip()
            cause = f"Official wheels need glibc {needed} or newer, and this system has {libc}."
            yield Problem(ProblemKind.LIBC, cause, self._fixes.newer_system())
        missing = self._symptoms.get(ProblemKind.LIBRARY)
        if missing is not None and (torch.cuda or not _OF_CUDA.match(missing.library or "")):
            cause = f"torch {torch.version} needs {missing.library}, and the loader does not find it."
            yield Problem(ProblemKind.LIBRARY, cause, self._fixes.reinstall())
        mixed = self._symptoms.get(ProblemKind.MIXED_LIBRARIES)
        if mixed is not None and torch.cuda is not None:
            library = mixed.library or self._environment.asked_of
            which = f" ({library})" if library else ""
            cause = f"A library of another CUDA{which} is found before the one that torch {torch.version} came with"
            cause += (
                f": {mixed.user} needs {mixed.symbol}, which it does not have." if mixed.user and mixed.symbol else "."
            )
            yield Problem(ProblemKind.MIXED_LIBRARIES, cause, self._fixes.clean_path())
        if damage := self._environment.damage:
            cause = f"The files of torch {torch.version} are damaged: {damage}"
            yield Problem(ProblemKind.DAMAGED, cause, self._fixes.reinstall())
        elif ProblemKind.DAMAGED in self._symptoms:
            cause = f"A library of torch {torch.version} is truncated."
            yield Problem(ProblemKind.DAMAGED, cause, self._fixes.reinstall())
        if ProblemKind.OTHER_ARCH in self._symptoms:
            cause = f"A library of torch {torch.version} is not for {self._host.cpu.arch}."
            yield Problem(ProblemKind.OTHER_ARCH, cause, self._fixes.reinstall())

    def _glibc(self, torch: InstalledTorch) -> Dotted:
        """The oldest glibc on which the official wheels of a release run."""
        number = torch.version.split("+")[0]
        releases = self._catalog.releases.values()
        fitting = (release.wheel_glibc(self._host.cpu.arch) for release in releases if str(release.version) == number)
        return next(fitting, WHEEL_GLIBC)

    def _instruction(self, torch: InstalledTorch) -> Problem:
        cpu = self._host.cpu
        runs = [isa for isa in self._catalog.isas.values() if isa.arch == cpu.arch and isa.runs_on(cpu.flags)]
        lacks = [isa for isa in self._catalog.isas.values() if isa.arch == cpu.arch and not isa.runs_on(cpu.flags)]
        runs_text = (
            f"it runs {', '.join(isa.label for isa in runs)}" if runs else "it runs none of the known instruction sets"
        )
        without = f" and not {', '.join(isa.label for isa in lacks)}" if lacks else ""
        cause = (
            f"torch {torch.version}, or a library beside it, uses instructions that this CPU ({cpu.name}) does not "
            f"have: {runs_text}{without}."
        )
        return Problem(ProblemKind.INSTRUCTION, cause, self._fixes.other_isa())

    def _cpu_build(self, torch: InstalledTorch) -> Iterator[Problem]:
        if self._host.gpus or ProblemKind.CPU_BUILD in self._symptoms:
            names = ", ".join(dict.fromkeys(gpu.name for gpu in self._host.gpus))
            what = f"for {torch.other}, not for CUDA" if torch.other else "without CUDA"
            if not self._host.gpus:
                cause = f"torch {torch.version} was built {what}, and there is no GPU here: the program asks for one."
                yield Problem(ProblemKind.CPU_BUILD, cause, self._fixes.on_the_cpu())
                return
            cause = f"torch {torch.version} was built {what}, so it cannot use {names}."
            yield Problem(ProblemKind.CPU_BUILD, cause, self._fixes.install())

    def _no_gpu(self) -> Iterator[Problem]:
        hidden = [gpu.label for gpu in self._host.gpus if not gpu.visible]
        notes = [note.text for note in self._host.notes if note.topic not in ("cpu-limit", "failed")]
        if hidden:
            cause = f"CUDA_VISIBLE_DEVICES={self._host.cuda_visible_devices} hides {', '.join(hidden)}."
            yield Problem(ProblemKind.NO_GPU, cause, self._fixes.unhide())
        elif self._host.gpus:
            cause = f"The compute capability of {self._host.gpus[0].name} is not known."
            yield Problem(ProblemKind.NO_GPU, cause, self._fixes.driver(None))
        elif self._host.driver is None:
            cause = " ".join(["No NVIDIA driver answers on this machine.", *notes])
            yield Problem(ProblemKind.NO_DRIVER, cause, self._fixes.no_driver())
        else:
            cause = " ".join([f"Driver {self._host.driver.version} answers, but shows no GPU.", *notes])
            yield Problem(ProblemKind.NO_GPU, cause, self._fixes.no_driver())

    def _device(self, device: GpuDevice, torch: InstalledTorch) -> Iterator[Problem]:
        assert device.compute is not None
        verdict = self._driver(device, torch)
        codes = self._environment.codes
        best, _ = _best(self._catalog, self._environment, device.compute)
        if codes and best is None:
            yield self._no_code(device, torch, codes, verdict)  # no driver fixes that
            return
        yield from self._driver_problem(torch, verdict)
        if best is None:
            return
        if best.kind is CodeKind.PTX and verdict is not None and verdict.fit is DriverFit.MINOR:
            cause = (
                f"For {_named(device)} this torch has nothing but PTX ({best}) of CUDA {torch.cuda}, and "
                f"driver {self._host.driver.version if self._host.driver else ''} is older than that CUDA: it cannot "
                "compile it."
            )
            yield Problem(ProblemKind.PTX_REFUSED, cause, self._fixes.driver(verdict))
        elif ProblemKind.NO_CODE in self._symptoms:
            yield from self._other_libraries(device, best)

    def _driver_problem(self, torch: InstalledTorch, verdict: DriverVerdict | None) -> Iterator[Problem]:
        if verdict is not None and not verdict.fit.runs:
            yield Problem(ProblemKind.DRIVER, verdict.text, self._fixes.driver(verdict))
        elif (message := self._symptoms.get(ProblemKind.DRIVER)) is not None:
            found = f" (made for CUDA {message.driver_cuda})" if message.driver_cuda else ""
            cause = f"The driver{found} is too old for CUDA {torch.cuda}, which torch {torch.version} was built with."
            yield Problem(ProblemKind.DRIVER, cause, self._fixes.driver(verdict))

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
        if self._environment.cut_for:
            cause += f" It was cut by torchtailor for {', '.join(self._environment.cut_for)}."
            return Problem(ProblemKind.NO_CODE, cause, (self._fixes.restore(), *self._fixes.install(device)))
        return Problem(ProblemKind.NO_CODE, cause, self._fixes.install(device))

    def _other_libraries(self, device: GpuDevice, best: CodeTarget) -> Iterator[Problem]:
        fine = f"torch itself has {best} for {_named(device)}"
        if self._environment.others:
            named = "; ".join(f"{name} ({code})" for name, code in self._environment.others[:4])
            cause = f"{fine}, but other libraries hold nothing that it runs: {named}."
        else:
            cause = (
                f"{fine}, so the message comes from another library: an extension (flash-attn, xformers, "
                "bitsandbytes, one of your own) that was compiled for other GPUs."
            )
        yield Problem(ProblemKind.NO_CODE, cause, self._fixes.extension(device))

    def by_message(self, symptom: Symptom) -> Problem:
        """What a known message means where the facts do not show it: it was seen somewhere else, or at another time."""
        torch, cause, fixes = self._environment.torch, symptom.cause, []
        if symptom.driver_cuda:
            cause += f" That of the message was made for CUDA {symptom.driver_cuda}."
        if torch is None:
            cause += " There is no torch here, so it was seen in another environment."
        elif torch.cuda is None and symptom.kind in _OF_THE_GPU:
            cause += f" Torch {torch.version} here is built without CUDA, so it was seen in another environment."
        elif self._environment.cut_for and symptom.kind in (ProblemKind.NO_CODE, ProblemKind.NOT_LISTED):
            cause += f" Torch {torch.version} here was cut by torchtailor for {', '.join(self._environment.cut_for)}."
            fixes.append(self._fixes.restore())
        given_as = self._environment.given_as
        if not given_as and not self._host.gpus and symptom.kind in _OF_THE_GPU:  # of a machine that is not known
            given_as = " --gpu NAME --driver VERSION" if symptom.kind == ProblemKind.DRIVER else " --gpu NAME"
        fixes.append(Fix(symptom.fix.replace("`torchtailor recommend`", f"`torchtailor recommend{given_as}`")))
        return Problem(symptom.kind, cause, tuple(fixes), symptom.text)


def _best(catalog: Catalog, environment: TorchEnvironment, device: Capability) -> tuple[CodeTarget | None, Fit]:
    """The code that most kernels come from, and how it runs: `a` and `f` code is for a few kernels only."""
    unified = _unified(catalog, environment, device)
    codes = environment.codes
    plain = [code for code in codes if code.suffix is Suffix.NONE]
    found = catalog.rules.best(device, plain, unified_tegra=unified)
    found = found or catalog.rules.best(device, codes, unified_tegra=unified)
    return found, catalog.rules.fit(device, found, unified_tegra=unified) if found else Fit.NONE


def _unified(catalog: Catalog, environment: TorchEnvironment, device: Capability) -> bool:
    """Whether this is a Tegra part of the unified stack, and torch's CUDA new enough for its desktop code to run."""
    torch, tegra, gpu = environment.torch, environment.host.tegra, catalog.gpus.get(device)
    if torch is None or torch.cuda is None or tegra is None or gpu is None or gpu.unified is None:
        return False
    try:
        return tegra.unified and Dotted(torch.cuda) >= gpu.unified.cuda
    except ValueError:  # the CUDA of a torch that somebody built is any text
        return False


def _of_message(environment: TorchEnvironment, symptoms: Sequence[Symptom], catalog: Catalog) -> TorchEnvironment:
    """The environment with the GPU that a message names: one that this machine does not have is another machine's."""
    named = next((symptom for symptom in symptoms if symptom.capability), None)
    if named is None or any(gpu.compute == named.capability for gpu in environment.host.gpus):
        return environment
    device = GpuDevice(index=0, name=named.gpu or "The GPU of the message", capability=str(named.capability))
    try:
        named_so = catalog.find_gpu(device.name).gpu.capability == device.compute
    except NoMatchError:
        named_so = False
    given_as = f" --gpu {shlex.quote(device.name if named_so else str(device.compute))}"
    host = msgspec.structs.replace(environment.host, gpus=(device,))
    return replace(environment, host=host, here=False, given_as=given_as)


def _named(device: GpuDevice) -> str:
    return f"{device.name} ({device.compute})"


def _machine(host: Host) -> str:
    from torchtailor.advise.recommendation.explain import machine_line

    return machine_line(host)


def _torch(environment: TorchEnvironment) -> str:
    torch = environment.torch
    if torch is None:
        return "none"
    cuda = f"CUDA {torch.cuda}" if torch.cuda else torch.other or "without CUDA"
    code = f", code for {', '.join(torch.architectures)}" if torch.architectures else ""
    gpus = f" for {', '.join(environment.cut_for)}" if environment.cut_for else ""
    use = ", to what a recorded program uses" if environment.traced else ""
    cut = f"; cut by torchtailor{gpus}{use}" if environment.cut else ""
    return f"{torch.version} ({cuda}) in {torch.path}{code}{cut}"


def _seen(kind: str, seen: Mapping[str, str]) -> str:
    """The message that a problem explains."""
    return next((seen[one] for one in (kind, *_ALSO_EXPLAINS.get(kind, ())) if one in seen), "")


def _healthy(environment: TorchEnvironment, catalog: Catalog, *, warned: bool) -> Iterator[str]:
    """What was checked and is in order."""
    torch = environment.torch
    if torch is None:
        return
    if torch.other is not None:
        yield f"torch {torch.version} is built for {torch.other}, which is not examined; NVIDIA GPUs do not run it."
        return
    if torch.cuda is None:
        yield f"torch {torch.version} is built for the CPU, and there is no GPU that it should use."
        return
    for device in environment.host.visible_gpus:
        if device.compute is None:
            continue
        best, fit = _best(catalog, environment, device.compute)
        if best is not None:
            if warned:
                yield (
                    "That message is only a warning, and here a false one: torch compares names, and its list does not "
                    f"have sm_{device.compute.number}, but {device.compute} runs its code for {best.capability}."
                )
            how = {Fit.NATIVE: "natively", Fit.COMPATIBLE: "by compatibility", Fit.JIT: "after compiling it once"}[fit]
            yield f"{_named(device)} runs torch's {best} code {how}."
    if environment.host.driver is not None:
        yield f"Driver {environment.host.driver.version} runs CUDA {torch.cuda}."
