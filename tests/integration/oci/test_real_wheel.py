"""A real wheel of NVIDIA's in layers: by pip and umoci, through docker-registry, judged by skopeo and verify."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.oci.conftest import RealRegistry, need, skopeo
from tests.integration.oci.test_image import umoci, unpacked
from tests.integration.oci.test_places import tls
from tests.unit.tailoring.helpers import check_records, options
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode
from torchtailor.tailoring.image.cut_image import cut_image
from torchtailor.tailoring.image.options import ImageOptions

pytestmark = [pytest.mark.slow, pytest.mark.network]

SITE = "usr/lib/python3/dist-packages"
CURAND = f"{SITE}/nvidia/curand/lib/libcurand.so.10"
WHEEL = "nvidia-curand-cu12==10.3.9.90"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system, the wheel, and the wheel installed again on top of it: the same files in two layers."""
    need("umoci", "skopeo")
    folder = tmp_path_factory.mktemp("wheel")
    layout, bundle = folder / "layout", folder / "bundle"
    root = bundle / "rootfs"
    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:stock")
    umoci("unpack", "--rootless", "--image", f"{layout}:stock", bundle)
    (root / "etc").mkdir()
    (root / "etc" / "os-release").write_text("ID=test\n")
    umoci("repack", "--refresh-bundle", "--image", f"{layout}:stock", bundle)
    line = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary", ":all:", "--no-compile"]
    line += ["--platform", "manylinux_2_27_x86_64", "--target", str(root / SITE), "--upgrade", WHEEL]
    for _ in range(2):
        subprocess.run(line, check=True, capture_output=True)
        umoci("repack", "--refresh-bundle", "--image", f"{layout}:stock", bundle)
    return layout


def test_a_wheel_in_two_layers(stock: Path, registry: RealRegistry, tmp_path: Path) -> None:
    source, new = (f"docker://{registry.host}/wheel/{name}:1" for name in ("stock", "cut"))
    skopeo("copy", *tls(source, "dest-"), f"oci:{stock}:stock", source)
    report = cut_image(source, new, ImageOptions(options(nvidia=True, drop=("headers",)), squash_shadowed=True))
    (image,) = report.images
    assert [layer.changed for layer in image.layers] == [False, True, True]
    assert image.wasted > 100 << 20  # libcurand is in two layers
    assert image.unpacked_after < 0.2 * image.unpacked_before
    skopeo("copy", *tls(new, "src-"), new, f"oci:{tmp_path}/back:cut")
    line = ["verify", f"oci:{tmp_path}/back:cut", "--against", f"oci:{stock}:stock", "--level", "static"]
    assert main(line) == ExitCode.OK
    after = unpacked(tmp_path / "back", "cut", tmp_path / "after")
    before = unpacked(stock, "stock", tmp_path / "before")
    check_records(after / SITE)
    assert (after / CURAND).stat().st_size < 0.4 * (before / CURAND).stat().st_size
    assert not list(after.rglob("*.h")) and list(before.rglob("*.h"))
    # an image is cut as its libraries are alone
    alone = tmp_path / "libcurand.so.10"
    assert main(["tailor", str(before / CURAND), "--gpu", "9.0", "--nvidia", "-o", str(alone)]) == ExitCode.OK
    assert alone.read_bytes() == (after / CURAND).read_bytes()
