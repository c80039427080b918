"""--bake-caches: programs start with the compile caches of another run; caches for something else are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.oci.builder import read_image, stock, tar_of
from tests.unit.tailoring.helpers import check_records, install, options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ImpossibleError, NoMatchError, TorchtailorError, UsageError
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions
from torchtailor.tailoring.inputs import tailor_inputs
from torchtailor.tailoring.restore import restore_environment
from torchtailor.workload.caches import NOTE, caching_environment, note_caches, read_caches

# What a program of a user sees: its variables, and the text of a file in a cache.
PROGRAM = """
import os, sys
if {imports}: import torch
print(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "none"))
path = os.environ.get("TRITON_CACHE_DIR", "") + "/k/group.json"
print(open(path).read() if os.path.isfile(path) else "no file")
"""


def made(folder: Path, torch: str = "2.10.0", gpus: tuple[str, ...] = ("9.0",), driver: str = "580.65") -> Path:
    """A folder as `record --caches` leaves it."""
    given = caching_environment(folder)
    graph = Path(given["TORCHINDUCTOR_CACHE_DIR"], "fxgraph/ab/cd")
    graph.parent.mkdir(parents=True)
    graph.write_bytes(b"a graph")
    (graph.parent / "x.lock").touch()
    group = Path(given["TRITON_CACHE_DIR"], "k/group.json")
    group.parent.mkdir()
    group.write_text(json.dumps({"child_paths": {"k.cubin": str(group.with_name("k.cubin"))}}))
    os.mkfifo(group.with_name("pipe"))
    site = folder.parent / f"of-{folder.name}" / "site-packages"
    (site / f"torch-{torch}.dist-info").mkdir(parents=True)
    (site / f"torch-{torch}.dist-info" / "METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
    found = note_caches(folder, [f"{site}/torch/version.py"], lambda: (gpus, driver))
    assert {*found.files} == {"inductor/fxgraph/ab/cd", "triton/k/group.json"}
    return folder


@pytest.fixture
def site(tmp_path: Path, fat: bytes) -> Path:
    site = tmp_path / "env/lib/python3.13/site-packages"
    files = {"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": fat}
    install(build_wheel(tmp_path, files, name="torch", version="2.10.0"), site)
    return site


def run(site: Path, home: Path, *, imports: bool = True, **more: str) -> list[str]:
    """As Python starts in that environment, by its .pth files."""
    code = f"import site; site.addsitedir({str(site)!r})\n{PROGRAM.format(imports=imports)}"
    variables = {"HOME": str(home), "PATH": os.environ["PATH"], **more}
    done = subprocess.run([sys.executable, "-B", "-c", code], env=variables, capture_output=True, text=True, check=True)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


def test_programs_start_with_a_copy_of_their_own(tmp_path: Path, site: Path) -> None:
    before = tree(site)
    caches = read_caches(made(tmp_path / "caches"))
    result = tailor_environment(site, options(caches=caches, keep_removed=True))
    assert [one.files for one in result.baked_caches] == [2]
    check_records(site)
    home = tmp_path / "home"
    home.mkdir()
    assert run(site, home, imports=False)[1] == "no file"  # a program that needs none waits for none
    place, group = run(site, home)
    assert Path(place).is_relative_to(home) and (Path(place) / "fxgraph/ab/cd").read_bytes() == b"a graph"
    copied = Path(place).parent / "triton/k/group.json"
    assert json.loads(group) == {"child_paths": {"k.cubin": str(copied.with_name("k.cubin"))}}
    copied.write_text("changed by the program")
    assert run(site, home) == [place, "changed by the program"]
    assert run(site, home, TORCHINDUCTOR_CACHE_DIR="/chosen")[0] == "/chosen"
    check_records(site)
    again = tailor_environment(site, options(caches=caches, keep_removed=True))
    assert again.baked_caches == ()
    restore_environment(site)
    assert tree(site) == before


def test_the_library_that_names_caches_stays_as_it_is(tmp_path: Path, site: Path, fat: bytes) -> None:
    """Seen on an H200: kernels were compiled again, because Triton's key has the hash of its library."""
    files = {"triton/__init__.py": b"", "triton/_C/libtriton.so": fat, "triton/_C/libother.so": fat}
    install(build_wheel(tmp_path, files, name="triton", version="3.6.0"), site)
    folder = made(tmp_path / "caches")
    (tmp_path / "of-caches/site-packages/triton-3.6.0.dist-info").mkdir()
    (tmp_path / "of-caches/site-packages/triton-3.6.0.dist-info/METADATA").write_text("Name: triton\nVersion: 3.6.0\n")
    note_caches(folder, [f"{tmp_path}/of-caches/site-packages/torch/version.py"], lambda: (("9.0",), "580.65"))
    result = tailor_environment(site, options(caches=read_caches(folder)))
    assert {one.path for one in result.changed} == {"torch/lib/libtorch_cuda.so", "triton/_C/libother.so"}
    assert (site / "triton/_C/libtriton.so").read_bytes() == fat
    (kept,) = [one for one in result.libraries if one.reason]
    assert "Triton names its caches by the bytes of this library" in kept.reason
    check_records(site)


def test_what_was_baked_is_said(tmp_path: Path, site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tailor", "--env", str(site), "--gpu", "9.0", "--bake-caches", str(made(tmp_path / "caches"))]
    before = tree(site)
    assert main([*words, "--dry-run"]) == 0 and tree(site) == before
    assert "Programs would start with 2 files of compile caches" in capsys.readouterr().out
    assert main(words) == 0
    assert "Programs start with 2 files of compile caches" in capsys.readouterr().out


def test_another_user_cannot_bring_caches(tmp_path: Path, site: Path) -> None:
    """Where there is no home: what lies in a shared folder under the name is used only if it is the user's own."""
    tailor_environment(site, options(caches=read_caches(made(tmp_path / "caches"))))
    shared = tmp_path / "shared"
    shared.mkdir()
    nowhere: Any = {"XDG_CACHE_HOME": "/proc/none", "TMPDIR": str(shared)}
    place = run(site, Path("/proc/none"), **nowhere)[0]
    assert Path(place).is_relative_to(shared / f"torchtailor-{os.geteuid()}")
    (shared / f"torchtailor-{os.geteuid()}").chmod(0o777)
    assert run(site, Path("/proc/none"), **nowhere) == ["none", "no file"]


@pytest.mark.parametrize(
    ("about", "cut", "says"),
    [
        ({"torch": "2.9.1"}, {}, "made for torch 2.9.1, and this is for 2.10.0"),
        ({"gpus": ("8.0",)}, {}, "made for GPU 8.0, and this is for 9.0"),
        ({}, {"driver": "570.86"}, "made for driver 580.65, and this is for 570.86"),
    ],
)
def test_caches_for_something_else_are_refused(
    tmp_path: Path, site: Path, about: dict[str, Any], cut: dict[str, Any], says: str
) -> None:
    before = tree(site)
    with pytest.raises(ImpossibleError, match=says):
        tailor_environment(site, options(caches=read_caches(made(tmp_path / "caches", **about)), **cut))
    assert tree(site) == before


def test_what_is_no_folder_of_caches(tmp_path: Path, site: Path) -> None:
    with pytest.raises(NoMatchError, match="holds no caches"):
        read_caches(tmp_path)
    with pytest.raises(UsageError, match="holds other files"):
        caching_environment(site)
    (empty := tmp_path / "empty").mkdir()
    (empty / NOTE).write_text('{"schema": "torchtailor-caches/1", "made_for": {}}')
    with pytest.raises(NoMatchError, match="compiled nothing"):
        read_caches(empty)
    for text in ("[", '{"schema": 1}', '{"schema": "torchtailor-caches/9", "made_for": {}}'):
        (empty / NOTE).write_text(text)
        with pytest.raises(BadInputError):
            read_caches(empty)
    (empty / NOTE).unlink()
    os.mkfifo(empty / NOTE)
    with pytest.raises(TorchtailorError, match="is not a plain file"):
        read_caches(empty)


def test_wheels_hold_none_and_torch_must_be_there(tmp_path: Path, site: Path, fat: bytes) -> None:
    caches = read_caches(made(tmp_path / "caches"))
    report = tailor_inputs([tmp_path / "torch-2.10.0-py3-none-any.whl"], options(caches=caches), output=str(tmp_path))
    assert report.error and "is for environments" in report.error.message
    other = tmp_path / "other/lib/python3.13/site-packages"
    install(build_wheel(tmp_path, {"demo/libx.so": fat}), other)
    with pytest.raises(NoMatchError, match="no torch"):
        tailor_environment(other, options(caches=caches))
    with pytest.raises(UsageError, match="does not go with"):
        options(caches=caches, split=True)


def test_in_a_layer_of_an_image(tmp_path: Path, site: Path) -> None:
    where = "opt/env/lib/python3.13/site-packages"
    members = {f"{where}/{path}": (site / path).read_bytes() for path in tree(site)}
    stock(tmp_path / "layout", [tar_of(members)])
    caches = read_caches(made(tmp_path / "caches"))
    chosen = ImageOptions(options(caches=caches))
    cut_image(f"oci:{tmp_path / 'layout'}", f"oci:{tmp_path / 'new'}:x", chosen)
    root = tmp_path / "root"
    for name, data in read_image(tmp_path / "new").files(0).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    check_records(root / where)
    home = tmp_path / "home"
    home.mkdir()
    place, _ = run(root / where, home)
    assert (Path(place) / "fxgraph/ab/cd").read_bytes() == b"a graph"
    with pytest.raises(ImpossibleError, match=r"made for GPU 9\.0"):
        other = ImageOptions(replace(options("8.0"), caches=caches))
        cut_image(f"oci:{tmp_path / 'layout'}", f"oci:{tmp_path / 'other'}:x", other)
