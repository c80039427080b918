"""Nix's structured log, on logs that a real Nix wrote; and its errors, explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.core.errors import BuildFailedError, EnvironmentProblem, ImpossibleError, NetworkError, NoMatchError
from torchtailor.nix.nixerrors import BUILDER_FAILED, UNKNOWN, explain
from torchtailor.nix.nixlog import NixLog

LOGS = Path(__file__).parent / "logs"


def recorded(name: str, folder: Path | None = None) -> NixLog:
    log = NixLog(folder)
    for line in (LOGS / f"{name}.log").read_text().splitlines(keepends=True):
        log.feed(line)
    log.close()
    return log


def test_interleaved_builds_get_one_contiguous_log_each(tmp_path: Path) -> None:
    log = recorded("two-dependencies", tmp_path)
    assert set(log.logs) == {"magma-2.9.0", "nccl-2.28.7", "pytorch210-python313-cpu-avx2-2.10.0"}
    for name, path in log.logs.items():
        lines = path.read_text().splitlines()
        assert len(lines) == 3
        assert lines[0] == f"{name}: configuring"
        assert lines[2] == f"[2/2] Linking {name}"
    assert log.errors == ""


def test_progress_counts_builds_phases_and_steps() -> None:
    log = NixLog()
    lines = (LOGS / "two-dependencies.log").read_text().splitlines()
    seen = [log.progress for line in lines if log.feed(line)]
    assert {progress.phase for progress in seen} >= {"configurePhase", "buildPhase"}
    assert max(progress.builds_expected for progress in seen) == 3
    assert seen[-1].builds_done == 3
    assert any(progress.step == 1 and progress.steps == 2 for progress in seen)
    assert any("buildPhase 1/2 (build 3 of 3)" in str(progress) for progress in seen)


@pytest.mark.parametrize(
    ("name", "cause", "kind", "words"),
    [
        ("fod", "nix-hash", BuildFailedError, "The hash of src is sha256-Q0copBCnj1b8G1iZw1k0NuYasMcx6Qct"),
        ("fail", "disk-full", EnvironmentProblem, "disk is full"),
        ("missing", "nix-attribute", NoMatchError, "has no nope"),
        ("sys", "nix-unsupported-system", ImpossibleError, "build is for riscv64-linux"),
        ("oom", "out-of-memory", EnvironmentProblem, "out of memory"),
    ],
)
def test_recorded_failures_are_explained(name: str, cause: str, kind: type[Exception], words: str) -> None:
    log = recorded(name)
    failure = explain(log.errors, log.tail)
    assert failure.cause == cause
    assert isinstance(failure.error(), kind)
    assert words in failure.message
    assert failure.hint


UNFREE = (
    "error: Package ‘cuda_cudart-13.0.96’ in /nix/store/x-source/pkgs/a.nix:12 has an unfree license "
    "(‘CUDA EULA’), refusing to evaluate."
)
BROKEN = (
    "error: Package ‘python3.13-torch-2.9.1’ in /nix/store/x/default.nix:742 is marked as broken, refusing to evaluate."
)
PLATFORM = (
    "error: Package ‘pytorch210-python313-cpu-armv9-2.10.0’ in /nix/store/x/a.nix:1 is not available on the "
    'requested hostPlatform:\n  hostPlatform.system = "x86_64-linux"\n, refusing to evaluate.'
)
NEWER_BROKEN = (
    "error: Refusing to evaluate package 'python3.13-torch-2.9.1' in /nix/store/x/default.nix:742 because it is "
    "marked as broken"
)
NEWER_SYSTEM = (
    "error: Cannot build '/nix/store/1plbsgfnwgjmpchnk9q0cya4lcsps0nn-torch.drv'.\n"
    "       Reason: required system or feature not available\n"
    "       Required system: 'aarch64-linux' with features {big-parallel}\n"
    "       Current system: 'x86_64-linux' with features {benchmark, kvm}"
)
NEWER_HASH = (
    "error: hash mismatch in fixed-output derivation '/nix/store/1plbsgfnwgjmpchnk9q0cya4lcsps0nn-source.drv':\n"
    "        likely URL: https://github.com/pytorch/pytorch\n"
    "         specified: sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
    "            got:    sha256-Q0copBCnj1b8G1iZw1k0NuYasMcx6QctleltspAgXlM="
)
DOWNLOAD = "error: unable to download 'https://github.com/NixOS/nixpkgs/archive/a.tar.gz': Could not resolve host (6)"
TARBALL = (
    "error: hash mismatch in file downloaded from 'https://x/a.tar.gz':\n         specified: sha256:000\n"
    "         got:       sha256:111"
)
BUILDER = "error: builder for '/nix/store/1plbsgfnwgjmpchnk9q0cya4lcsps0nn-torch.drv' failed with exit code 1"
ARGUMENT = "error: function 'anonymous lambda' called with unexpected argument 'cudnnSupport'"


@pytest.mark.parametrize(
    ("text", "cause", "kind", "words"),
    [
        (UNFREE, "nix-unfree", BuildFailedError, "cuda_cudart-13.0.96"),
        (NEWER_BROKEN, "nix-broken", BuildFailedError, "python3.13-torch-2.9.1 is marked as broken"),
        (
            NEWER_SYSTEM,
            "nix-unsupported-system",
            ImpossibleError,
            "build is for aarch64-linux, and this machine is x86_64",
        ),
        (NEWER_HASH, "nix-hash", BuildFailedError, "The hash of source is sha256-Q0copBCnj1b8G1iZw1k0"),
        (BROKEN, "nix-broken", BuildFailedError, "python3.13-torch-2.9.1"),
        (PLATFORM, "nix-package-platform", ImpossibleError, "pytorch210-python313-cpu-armv9-2.10.0"),
        ("error: attribute 'cudaPackages_13_7' missing\n", "nix-attribute", NoMatchError, "13_7"),
        (ARGUMENT, "nix-argument", BuildFailedError, "cudnnSupport"),
        ("error: syntax error, unexpected end of file", "nix-syntax", BuildFailedError, "end of file"),
        (DOWNLOAD, "nix-download", NetworkError, "a.tar.gz"),
        (TARBALL, "nix-hash", BuildFailedError, "sha256:111"),
        (
            "error: creating directory '/nix/var': Permission denied",
            "nix-permission",
            EnvironmentProblem,
            "/nix/var",
        ),
        (BUILDER, BUILDER_FAILED, BuildFailedError, "torch failed"),
        ("error: something new", UNKNOWN, BuildFailedError, "something new"),
        ("", UNKNOWN, BuildFailedError, "printed no message"),
    ],
)
def test_messages_are_explained(text: str, cause: str, kind: type[Exception], words: str) -> None:
    failure = explain(text)
    assert failure.cause == cause
    assert isinstance(failure.error(), kind)
    assert words in failure.message


def test_the_log_of_a_build_tells_what_nix_does_not() -> None:
    killed = ["[100/200] CXX a.o", "c++: fatal error: Killed signal terminated program cc1plus", "ninja: build stopped"]
    assert explain(BUILDER, killed).cause == "out-of-memory"
    assert "ninja: build stopped" in explain(BUILDER, ["ninja: build stopped"]).message


def test_plain_lines_are_progress_and_messages_too() -> None:
    """Flox does not write Nix's structured log."""
    log = NixLog()
    assert not log.feed("building pytorch\n")
    assert log.feed("[12/3456] Building CXX object a.o\n")
    assert (log.progress.step, log.progress.steps) == (12, 3456)
    assert log.errors.splitlines() == ["building pytorch", "[12/3456] Building CXX object a.o"]
    assert log.tail[-1].startswith("[12/3456]")


@given(st.text(), st.lists(st.text()))
def test_anything_is_explained_somehow(text: str, tail: list[str]) -> None:
    failure = explain(text, tail)
    assert failure.message
    assert failure.hint


@given(st.one_of(st.text(), st.text().map(lambda text: "@nix " + text)))
def test_any_line_can_be_fed(line: str) -> None:
    log = NixLog()
    log.feed(line)
    log.close()
