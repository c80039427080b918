"""An index with a patch release and a minor release that the catalog does not know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.catalogs import load_pinned, pin
from tests.unit.fetch.packages import Package, html_index
from tests.unit.fetch.serving import Site, serve
from torchtailor.catalog import Catalog, Release
from torchtailor.fetch import client

FIXTURES = Path(__file__).parents[1] / "gpucode" / "fixtures"
# Made by nvcc: what each holds is what `inspect` says.
LIBRARIES = {"x86_64": "raw.so", "aarch64": "places-aarch64.so"}
ARCHITECTURES = {"x86_64": "7.5;8.0;9.0a+PTX;10.0f;12.0;12.0a", "aarch64": "8.0;9.0+PTX"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
LEFT_OUT = {(2, minor) for minor in range(1, 7)}  # lines between those of the catalog
PYTHONS = ("cp313-cp313", "cp314-cp314t")
LINUX = "platform_system == 'Linux'"


def torch(
    version: str, cuda: str, arch: str, python: str = PYTHONS[0], *, local: str = "", cudnn: str = "9.99.0.1"
) -> Package:
    """A small torch wheel with the metadata of a real one and a real CUDA library."""
    major = cuda.partition(".")[0]
    label = "cu" + cuda.replace(".", "")
    text = (
        "from typing import Optional\n"
        f"__version__ = '{version}+{label}'\ndebug = False\n"
        f"cuda: Optional[str] = '{cuda}'\ngit_version = '{COMMIT}'\nhip: Optional[str] = None\n"
    )
    return Package(
        "torch",
        f"{version}{local}",
        (
            f"cuda-toolkit[cublas]=={cuda}.1; {LINUX}",
            f"nvidia-cudnn-cu{major}=={cudnn}; {LINUX}",
            f"nvidia-nccl-cu{major}==2.99.1; {LINUX}",
            f"triton~=3.99.0; {LINUX}",
        ),
        f"{python}-manylinux_2_28_{arch}",
        files={
            "torch/__init__.py": b"from torch.version import __version__\n",
            "torch/version.py": text.encode(),
            "torch/lib/libtorch_cuda.so": (FIXTURES / LIBRARIES[arch]).read_bytes(),
        },
    )


def companions(cuda: str) -> list[Package]:
    major = cuda.partition(".")[0]
    pins = {"cuda-toolkit": f"{cuda}.1", f"nvidia-cudnn-cu{major}": "9.99.0.1", f"nvidia-nccl-cu{major}": "2.99.1"}
    return [Package(name, version, extras=("cublas",)) for name, version in (pins | {"triton": "3.99.0"}).items()]


@dataclass(frozen=True)
class World:
    """The catalog's newest release, and the two that come after it."""

    catalog: Catalog
    newest: Release
    patch: str
    minor: str
    cuda: str

    @property
    def line(self) -> str:
        return self.minor.rpartition(".")[0]


@pytest.fixture(scope="session")
def world() -> World:
    catalog = load_pinned(Path("/"), LEFT_OUT)
    newest = max(catalog.releases.values(), key=lambda release: release.version)
    major, minor, patch = newest.version.parts
    label = newest.default_index["x86_64"]
    build = newest.build(label)
    assert build is not None
    return World(catalog, newest, f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}.0", str(build.cuda))


@pytest.fixture(autouse=True)
def pinned_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real catalog may hold what was added without being measured, which is news until it is."""
    pin(monkeypatch, LEFT_OUT)


@pytest.fixture(autouse=True)
def only_this_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of wheels that pip and uv are configured with would be read too."""
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.005)


def put(site: Site, *packages: Package) -> Site:
    site.content |= html_index(packages)
    return site


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    """The known release, its patch release and the next minor release, for two Pythons and both platforms."""
    stack = [
        torch(version, world.cuda, arch, python)
        for version in (str(world.newest.version), world.patch, world.minor)
        for arch in LIBRARIES
        for python in PYTHONS
    ]
    with serve(Site()) as running:
        yield put(running, *stack, *companions(world.cuda))
