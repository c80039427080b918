"""Tailors one shared library: plan, surgery, proof, and only then the output.

    rules = load_catalog().rules
    policy = Policy(targets=TorchArch.parse_list("9.0"), rules=rules, keep_ptx=False)
    result = tailor_library(Path("libx.so"), Path("out/libx.so"), policy, strip=True)

`dst=None` is the dry run: all but writing and proof is done, and `size_after` is exact (with recompression it is an
upper bound). Whether the library is NVIDIA's own is found from its name and soname (`makers.py`); it only decides how careful the cut is.
Whether NVIDIA's libraries may be cut at all is the caller's decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchtailor.tailor.policy import Policy
from torchtailor.tailor.result import LibraryResult


@dataclass(frozen=True, slots=True)
class Recompress:
    """How to store LZ4 and raw images anew: zstd at `level`, with finished work kept in `cache`.

    `driver` is the oldest driver the output must run on; zstd needs 550.54. None means: any driver that CUDA 12.4 and later came
    with. `cache=None` means the user's cache folder.
    """

    level: int = 19
    driver: str | None = None
    cache: Path | None = None
    processes: int = 2


def tailor_library(
    src: Path,
    dst: Path | None,
    policy: Policy,
    *,
    strip: bool = True,
    recompress: Recompress | None = None,
) -> LibraryResult:
    """Cut `src` for the targets of `policy` and put the proven result at `dst`.

    The output is written beside `dst` as a temporary file, proven against `src`, given the mode of `src`, flushed to disk and renamed
    into place; `dst` may be `src` itself. Where `result.status.written` is False, `dst` was not touched. `src` is never changed
    otherwise. Raises BadInputError for a damaged library, ImpossibleError where a kernel would be lost,
    CheckFailedError where the proof fails, EnvironmentProblem where the disk is full or read-only.
    """
    raise NotImplementedError
