"""The right torch among several builds and sources, and clear words where there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.catalogs import load_pinned
from tests.unit.fetch.packages import Package, html_index
from tests.unit.fetch.serving import Fault, Site
from torchtailor.catalog import WHEEL
from torchtailor.catalog.variants import Matrix, Variant
from torchtailor.core.errors import NetworkError, NoMatchError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.settings import IndexSettings
from torchtailor.fetch.target import Target
from torchtailor.fetch.torch import choose_torch, closure_requirements, label_of

CP313 = "cp313-cp313-manylinux_2_28_x86_64"
RUNTIME = "nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux' and platform_machine == 'x86_64'"


def variant(name: str, release: str) -> Variant:
    return Matrix(load_pinned(Path("/"))).resolve(name, via=WHEEL, release=release).variant


@pytest.fixture
def default(site: Site) -> Site:
    site.content |= html_index(
        [
            Package("torch", "2.8.0", (RUNTIME,), CP313),
            Package("torch", "2.8.0", (RUNTIME,), CP313.replace("x86_64", "aarch64")),
            Package("torch", "2.15.0", ("cuda-toolkit[cublas]==13.2.*",), CP313),
        ]
    )
    return site


def other_index(site: Site) -> str:
    """PyTorch's own index per label, on the same server."""
    packages = [
        Package("torch", "2.15.0+cpu", (), CP313),
        Package("torch", "2.15.0+cu130", ("cuda-toolkit==13.0.*",), CP313),
    ]
    for package in packages:
        label = package.version.split("+")[1]
        pages = html_index([package], prefix=f"/whl/{label}/files/")
        site.content |= {
            f"/whl/{label}{path.removeprefix('/simple')}": data for path, data in pages.items() if "/simple/" in path
        }
        site.content |= {path: data for path, data in pages.items() if "/simple/" not in path}
    return site.url + "/whl/{label}"


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("nvidia-cuda-runtime-cu12==12.8.90", "cu128"),
        ("nvidia-cuda-runtime==13.0.96", "cu130"),
        ("cuda-toolkit[cublas,cudart]==13.2.*", "cu132"),
        ("cuda-toolkit<14,>=13.4", "cu134"),
        ("nvidia-cublas==13.4.1.3", "cpu"),
        ("filelock", "cpu"),
    ],
)
def test_label_from_requirements(line: str, label: str) -> None:
    found = label_of([Requirement(line)])
    assert found in (label, "cu140") if "<14" in line else found == label


def test_the_default_index_has_it(default: Site, settings: Callable[..., IndexSettings], cache: Cache) -> None:
    choice = choose_torch(Finder(settings(), cache), variant("sm90-avx512", "main"), Target("3.13", "x86_64"), "unused")
    assert (choice.label, choice.file.filename, choice.notes) == ("cu128", f"torch-2.8.0-{CP313}.whl", ())


def test_the_same_metadata_is_another_build_on_another_platform(
    default: Site, settings: Callable[..., IndexSettings], cache: Cache
) -> None:
    choice = choose_torch(Finder(settings(), cache), variant("cpu-armv9", "main"), Target("3.13", "aarch64"), "unused")
    assert choice.label == "cpu"


def test_another_build_comes_from_pytorch_and_is_said(
    default: Site, settings: Callable[..., IndexSettings], cache: Cache
) -> None:
    finder = Finder(settings(), cache)
    choice = choose_torch(finder, variant("cpu-avx2", "2.15"), Target("3.13", "x86_64"), other_index(default))
    assert choice.file.filename == f"torch-2.15.0+cpu-{CP313}.whl"
    (note,) = choice.notes
    assert "as cu132 (test), not as cpu" in note and "/whl/cpu" in note
    assert len(choice.finder.settings.sources) == 2


def test_a_local_file_is_as_good_as_an_index(
    default: Site, settings: Callable[..., IndexSettings], cache: Cache, tmp_path: Path
) -> None:
    package = Package("torch", "2.15.0+cpu", (), CP313)
    (tmp_path / package.filename).write_bytes(package.wheel())
    sources = (*settings().sources, IndexLocation(tmp_path.as_uri(), LocationKind.LINKS, "--find-links"))
    finder = Finder(settings(sources=sources), cache)
    choice = choose_torch(finder, variant("cpu-avx2", "2.15"), Target("3.13", "x86_64"), "http://127.0.0.1:9/{label}")
    assert choice.file.local_path == tmp_path / package.filename


@pytest.mark.parametrize("other", ["2.15.0+rocm6.4", "2.15.0+xpu", "2.15.0+cpu.avx512", "2.15.0+cpu.sm90"])
def test_other_builds_are_not_taken_for_the_cpu(
    site: Site, settings: Callable[..., IndexSettings], cache: Cache, other: str
) -> None:
    """Without requirements of CUDA, every other label counted as cpu."""
    site.content |= html_index([Package("torch", version, (), CP313) for version in ("2.15.0+cpu", other)])
    choice = choose_torch(
        Finder(settings(), cache), variant("cpu-avx2", "2.15"), Target("3.13", "x86_64"), "http://127.0.0.1:9/{label}"
    )
    assert str(choice.file.version) == "2.15.0+cpu"


def test_words_where_it_is_not_available(default: Site, settings: Callable[..., IndexSettings], cache: Cache) -> None:
    wanted, target = variant("cpu-avx2", "2.15"), Target("3.13", "x86_64")
    with pytest.raises(NetworkError, match=r"as cu132 .*PyTorch's own index for cpu cannot be used") as caught:
        choose_torch(Finder(settings(retries=0), cache), wanted, target, "http://127.0.0.1:9/{label}")
    assert "--find-links" in caught.value.hint
    with pytest.raises(NoMatchError, match="does not have it either"):
        choose_torch(Finder(settings(), cache), wanted, target, default.url + "/none/{label}")
    with pytest.raises(NoMatchError, match="because of --index-url"):
        choose_torch(Finder(settings(explicit_index=True), cache), wanted, target, other_index(default))
    with pytest.raises(NoMatchError, match=r"do not have PyTorch 2\.10\.0"):
        choose_torch(Finder(settings(offline=True), cache), variant("cpu-avx2", "2.10"), target, other_index(default))


def test_403_for_torch_is_named_where_no_index_has_it(
    default: Site, settings: Callable[..., IndexSettings], cache: Cache
) -> None:
    default.always["/refusing/torch/"] = Fault(status=403)
    refusing = IndexLocation(f"{default.url}/refusing", LocationKind.INDEX, "refusing")
    target = Target("3.13", "x86_64")
    finder = Finder(settings(sources=(refusing, *settings().sources)), cache)
    assert choose_torch(finder, variant("sm90-avx512", "main"), target, "unused").label == "cu128"
    with pytest.raises(NetworkError, match="refusing/torch/ answered 403"):
        choose_torch(Finder(settings(sources=(refusing,)), cache), variant("sm90-avx512", "main"), target, "unused")
    with pytest.raises(NetworkError, match=r"PyTorch's own index for cpu cannot be used: .*answered 403"):
        choose_torch(Finder(settings(), cache), variant("cpu-avx2", "2.15"), target, f"{default.url}/refusing")


def test_companions(default: Site, settings: Callable[..., IndexSettings], cache: Cache) -> None:
    choice = choose_torch(Finder(settings(), cache), variant("sm90-avx512", "main"), Target("3.13", "x86_64"), "unused")
    wanted = closure_requirements(choice, ["torchvision", "triton>=3"])
    assert [str(item) for item in wanted] == ["torch===2.8.0", "torchvision", "triton>=3"]
    with pytest.raises(NoMatchError, match="--with"):
        closure_requirements(choice, ["what is this"])
