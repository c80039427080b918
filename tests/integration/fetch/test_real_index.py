"""The configured index, for real: a resolution for two platforms, and one small download."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from torchtailor.core.errors import NetworkError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.client import Client
from torchtailor.fetch.download import Downloader
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.resolve import Resolved, resolve
from torchtailor.fetch.settings import read_settings
from torchtailor.fetch.target import Target
from torchtailor.fetch.torch import build_label

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory) -> Finder:
    settings = read_settings()
    remote = tuple(source for source in settings.indexes if not source.url.startswith("file:"))
    finder = Finder(replace(settings, sources=remote), Cache(tmp_path_factory.mktemp("cache")))
    try:
        finder.all_files("filelock")
    except NetworkError as error:
        pytest.skip(f"the configured index cannot be reached: {error.message}")
    return finder


def closure(finder: Finder, requirement: str, target: Target) -> dict[str, Resolved]:
    return {str(item.name): item for item in resolve([Requirement(requirement)], finder, target)}


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_the_closure_of_torch_goes_through_cuda_toolkit(finder: Finder, arch: str) -> None:
    target = Target("3.13", arch)
    found = closure(finder, "torch==2.15.0", target)
    assert "cuda-toolkit" in found and "nvidia-cublas" in found
    assert "cuda-toolkit" in found["nvidia-cublas"].required_by
    assert build_label(found["torch"].file, found["torch"].facts, target) == "cu132"
    assert all("manylinux" not in item.file.filename or arch in item.file.filename for item in found.values())
    assert 2e9 < sum(item.size for item in found.values()) < 6e9
    cached = [path for path in finder.cache.root.rglob("*") if path.is_file() and path.stat().st_size > 20_000_000]
    assert cached == []  # sizes and metadata came without the wheels


def test_older_releases_are_cuda_on_one_platform_and_cpu_on_the_other(finder: Finder) -> None:
    for arch, label in (("x86_64", "cu128"), ("aarch64", "cpu")):
        target = Target("3.13", arch)
        torch = closure(finder, "torch==2.8.0", target)["torch"]
        assert build_label(torch.file, torch.facts, target) == label


def test_a_companion_finds_its_torch(finder: Finder) -> None:
    found = closure(finder, "torchvision==0.23.0", Target("3.12", "x86_64"))
    assert str(found["torch"].version) == "2.8.0"


def test_a_small_download(finder: Finder, tmp_path: Path) -> None:
    (item,) = resolve([Requirement("mpmath==1.3.0")], finder, Target("3.13", "x86_64"))
    fetched = Downloader(Client(finder.settings), finder.cache).fetch([item.file])[item.file.url]
    assert fetched.downloaded == item.size == fetched.path.stat().st_size
    with zipfile.ZipFile(fetched.path) as archive:
        assert archive.testzip() is None
