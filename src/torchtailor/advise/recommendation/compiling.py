"""What compiling brings on a machine, in a sentence, and when the official wheel is the better choice."""

from __future__ import annotations

from torchtailor.advise.recommendation.candidates import Candidate
from torchtailor.advise.recommendation.request import Situation
from torchtailor.catalog.compiled import CompiledBuild
from torchtailor.catalog.cpus import Isa
from torchtailor.catalog.methods import Basis

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
