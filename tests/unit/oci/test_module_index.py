"""Images with the code of recorded modules in one file a package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.tars import unpack_tar
from tests.unit.oci.builder import TarFile, read_image, stock, tar_of
from tests.unit.oci.test_workload import SITE, cut, package
from tests.unit.tailoring import test_module_index as modules
from tests.unit.tailoring.helpers import options
from tests.unit.tailoring.test_records import merged
from torchtailor.workload.choice import TracedWorkload


def test_an_image_gets_indexes_and_its_modules_are_imported_from_them(tmp_path: Path) -> None:
    folders = [TarFile(f"./{SITE}/{name}/") for name in ("demo", "demo/sub", "demo/part", "demo/both")]
    files = [TarFile(f"./{name}", data) for name, data in package(modules.FILES, "demo").items()]
    deleted = TarFile(f"./{SITE}/demo/.wh.empty.py")
    image = stock(tmp_path / "stock", [tar_of([*files, *folders]), tar_of([TarFile("./etc/x"), deleted])])
    chosen = replace(options(), workload=TracedWorkload(modules.TRACE), index_modules=True, processes=1)
    report = cut(image, tmp_path, chosen)
    (made,) = report.images[0].module_indexes
    index = f"{SITE}/{modules.INDEX}"
    assert (made.path, made.package, made.modules) == (index, "demo", 7)
    layers = read_image(tmp_path / "cut").tars
    after = merged(layers)
    assert f"{SITE}/demo/empty.py" not in after
    assert modules.INDEX in after[f"{SITE}/demo-1.0.dist-info/RECORD"].decode()
    assert b"module_indexes" in after[f"{SITE}/demo-1.0.dist-info/torchtailor.json"]
    site = unpack_tar(layers[0], tmp_path / "root") / SITE
    known = ("demo", "demo.used", "demo.sub.deep", "demo.both", "demo.cold")
    assert modules.indexed(site, *known) == [True, True, True, True, False]
    again = cut(image, tmp_path, chosen)
    assert again.digest == report.digest
