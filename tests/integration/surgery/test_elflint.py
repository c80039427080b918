"""eu-elflint has nothing to say of an output that it does not say of the input."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.integration.surgery.builds import build, toolchain
from tests.integration.surgery.test_survival import VARIANTS
from tests.unit.surgery.checks import options
from torchtailor.surgery.library import tailor_library
from torchtailor.surgery.result import LibraryStatus


def complaints(library: Path) -> set[str]:
    """What eu-elflint says, without numbers; symbols are in another table once a library is stripped."""
    tool = shutil.which("eu-elflint")
    if tool is None:
        pytest.skip("eu-elflint (elfutils) not found")
    said = subprocess.run([tool, "--gnu-ld", library], capture_output=True, text=True, check=False, errors="replace")
    text = re.sub(r"\([^)]*\)|0x\w+|'\.(symtab|dynsym)'", "", (said.stdout + said.stderr).replace(str(library), ""))
    return {re.sub(r"\s*\d+", "", line) for line in text.splitlines()} - {"No errors"}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_a_cut_library_is_as_sound_as_before(tmp_path: Path, name: str, variant: str) -> None:
    stock = build(tmp_path, toolchain(name), *VARIANTS[variant])
    for number, more in enumerate(({}, {"strip": True}, {"recompress": True})):
        cut = tmp_path / f"cut{number}.so"
        result = tailor_library(stock, cut, options("9.0", image_cache=tmp_path / "cache", **more))
        assert result.status is LibraryStatus.CUT
        assert complaints(cut) <= complaints(stock), more
    assert any("R E" in line for line in _loads(stock)) == any("R E" in line for line in _loads(cut))
    if variant == "one segment":  # pieces without instructions are not executable any more
        assert sum("R E" in line for line in _loads(cut)) < sum("RW" not in line for line in _loads(cut))


def _loads(library: Path) -> list[str]:
    said = subprocess.run(["readelf", "-lW", library], capture_output=True, text=True, check=True).stdout
    return [line for line in said.splitlines() if line.lstrip().startswith("LOAD")]


def test_stripped_libraries_of_this_environment(tmp_path: Path) -> None:
    """Linked by whatever the authors had: GNU ld, gold, lld, patchelf."""
    libraries = sorted(Path(sysconfig.get_path("platlib")).glob("*/**/*.so*"), key=lambda path: path.stat().st_size)
    done = 0
    for number, library in enumerate(libraries[-40:]):
        cut = tmp_path / f"{number}.so"
        if tailor_library(library, cut, options("9.0", strip=True)).status.changed:
            assert complaints(cut) <= complaints(library), library
            done += 1
    assert done or not libraries
