"""What is said of a new wheel that may surprise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import options
from tests.unit.wheels.builder import build_wheel
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring import remarks
from torchtailor.tailoring.remarks import larger_wheel
from torchtailor.tailoring.result import TailorResult
from torchtailor.tailoring.wheel import tailor_wheel
from torchtailor.trees.artifact.artifact import ArtifactKind
from torchtailor.workload.hook import HookKind, hook_glibc, hook_library


def test_a_wheel_that_is_larger() -> None:
    row = LibraryResult(LibraryStatus.STRIPPED, 5_000_000, 4_000_000, relr=1_000_000)
    made = TailorResult(ArtifactKind.WHEEL, Path("x.whl"), Path("y.whl"), (row,), 9_450_000, 10_300_000)
    (said,) = larger_wheel(made)
    assert said.startswith("y.whl is larger than the stock wheel (9.45 MB -> 10.3 MB), because it compresses less well")
    assert said.endswith("; installed, its libraries take 1 MB less.")
    assert larger_wheel(replace(made, size_before=10_299_000)) == ()


@pytest.mark.parametrize(("tag", "said"), [("manylinux_2_28", True), ("manylinux_2_39", False), ("linux", False)])
def test_a_hook_that_needs_a_newer_glibc_than_the_tag_promises(
    tmp_path: Path, fat: bytes, monkeypatch: pytest.MonkeyPatch, tag: str, said: bool
) -> None:
    monkeypatch.setattr(remarks, "hook_glibc", lambda _: (2, 34))  # as compiled on Debian 12
    wheel = build_wheel(tmp_path, {"torch/libx.so": fat}, name="torch", tag=f"cp313-cp313-{tag}_x86_64")
    made = tailor_wheel(wheel, tmp_path / "out", replace(options(), split=True))
    assert [note for note in made.notes if "needs glibc 2.34, but the tag promises 2.28" in note] == list(
        made.notes if said else ()
    )
    assert bool(made.notes) is said


def test_what_the_hook_of_this_checkout_needs() -> None:
    assert (2, 2) < hook_glibc(hook_library(ElfMachine.X86_64, HookKind.NEEDED)) < (3, 0)
