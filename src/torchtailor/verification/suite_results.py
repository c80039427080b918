"""What a run of the op suite found, read from the JSON that it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import Limit, read_limited

FORMAT = 1


class OutputHash(msgspec.Struct, frozen=True):
    """One output tensor by type, shape and the hash of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


class CaseResult(msgspec.Struct, frozen=True):
    """How one case went; `deterministic` compares two runs in the same process."""

    name: str
    library: str
    outcome: Literal["pass", "fail", "not-applicable"]
    reason: str = ""
    deterministic: bool = False
    error: float | str | None = None
    limit: float | None = None
    seconds: tuple[float, ...] = ()
    outputs: tuple[OutputHash, ...] = ()

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"

    @property
    def applies(self) -> bool:
        return self.outcome != "not-applicable"


class SuiteResults(msgspec.Struct, frozen=True):
    """One run of the whole suite in one environment."""

    format: int
    environment: Mapping[str, Any]
    unusable: str | None
    cases: tuple[CaseResult, ...]
    seconds: float = 0.0
    crashes: tuple[str, ...] = ()
    workers: int = 1

    @property
    def by_name(self) -> dict[str, CaseResult]:
        return {case.name: case for case in self.cases}

    @property
    def libraries(self) -> tuple[str, ...]:
        """The libraries exercised, in the suite's order."""
        return tuple(dict.fromkeys(case.library for case in self.cases))

    def of(self, library: str) -> tuple[CaseResult, ...]:
        return tuple(case for case in self.cases if case.library == library)

    def count(self, outcome: str) -> int:
        return sum(case.outcome == outcome for case in self.cases)


def load_results(path: Path) -> SuiteResults:
    """Read one result file."""
    try:
        results = msgspec.json.decode(read_limited(path, Limit.MANIFEST), type=shaped(SuiteResults))
    except (OSError, BadInputError, RecursionError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path} is no result of the op suite: {error}.", "Write one with suite.py --out FILE."
        ) from error
    if results.format != FORMAT:
        raise BadInputError(
            f"{path} has format {results.format}, and this torchtailor reads {FORMAT}.",
            "Run the suite of this version again.",
        )
    return results


def steady(runs: Sequence[SuiteResults]) -> frozenset[str]:
    """The cases that gave the same bytes in every run, in one process and across processes."""
    names = [{case.name: case.outputs for case in run.cases if case.passed and case.deterministic} for run in runs]
    if not names:
        return frozenset()
    return frozenset(name for name, outputs in names[0].items() if all(run.get(name) == outputs for run in names[1:]))
