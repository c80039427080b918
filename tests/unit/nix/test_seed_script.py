"""The original verification script, run unchanged with the counts of the full matrix."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.nix.conftest import write_tree
from torchtailor.catalog import Catalog

SCRIPT = r"""
# Count files (total 59)
ls .flox/pkgs/pytorch-python313-cuda13_0-*.nix | wc -l
ls .flox/pkgs/pytorch-python313-cpu-*.nix | wc -l

# Verify no broken files remain
ls .flox/pkgs/pytorch-python313-cuda13_0-*-magma.nix 2>/dev/null
ls .flox/pkgs/pytorch-python313-cuda13_0-*-nightly.nix 2>/dev/null
ls .flox/pkgs/pytorch-python313-cuda13_0-*-avx.nix 2>/dev/null

# Verify all GPU files have correct 3-overlay pattern
for f in .flox/pkgs/pytorch-python313-cuda13_0-*.nix; do
  count=$(grep -c 'cudaPackages_13\|cuda-13.0-clockrate-fix.patch\|version = "2.10.0"' "$f")
  if [ "$count" -ne 3 ]; then
    echo "BROKEN: $f (expected 3 patterns, found $count)"
  fi
done

# Verify CPU files have 1-overlay pattern (no CUDA)
for f in .flox/pkgs/pytorch-python313-cpu-*.nix; do
  count=$(grep -c 'version = "2.10.0"' "$f")
  cuda=$(grep -c 'cudaPackages_13' "$f")
  if [ "$count" -ne 1 ] || [ "$cuda" -ne 0 ]; then
    echo "BROKEN: $f"
  fi
done

# Verify consistent nixpkgs pin across all files
grep -l 'fe5e41d7ffc0421f0913e8472ce6238ed0daf8e3' .flox/pkgs/pytorch-python313-*.nix

# Spot check gpuArchSM values
grep -c 'gpuArchSM = "9.0"' .flox/pkgs/pytorch-python313-cuda13_0-sm90-*.nix
grep -c 'gpuArchSM = "8.6"' .flox/pkgs/pytorch-python313-cuda13_0-sm86-*.nix
grep -c 'gpuArchSM = "12.1"' .flox/pkgs/pytorch-python313-cuda13_0-sm121-*.nix
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_seeds_verification_script_passes(catalog: Catalog, tmp_path: Path) -> None:
    root = write_tree(catalog, tmp_path, "cuda-13_0", locked=False)
    done = subprocess.run(["bash", "-c", SCRIPT], cwd=root, capture_output=True, text=True, check=False)
    lines = done.stdout.split()
    assert lines[:2] == ["52", "7"]
    spots = lines[2:]
    assert len(spots) == 6 + 6 + 2
    assert all(line.endswith(".nix:1") for line in spots)
