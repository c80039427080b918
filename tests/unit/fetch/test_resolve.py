"""Resolution: newest that fits the target, extras, backtracking, several sources, other platforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import parse_tag

from tests.unit.fetch.packages import Package, html_index, json_page
from tests.unit.fetch.serving import Fault, Site, serve
from torchtailor.core.errors import NetworkError, NoMatchError, UsageError
from torchtailor.fetch.cache import Cache
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.fetch.pages import JSON_TYPE
from torchtailor.fetch.resolve import resolve
from torchtailor.fetch.settings import IndexSettings
from torchtailor.fetch.target import Target

X86 = Target("3.13", "x86_64")
ARM = Target("3.13", "aarch64")

LINUX_X86 = "platform_system == 'Linux' and platform_machine == 'x86_64'"
PACKAGES = [
    Package("torch", "2.15.0", ("filelock", "typing-extensions>=4.10", "triton==3.9.0; platform_machine == 'x86_64'",
            "cuda-toolkit[cublas,cudart]==13.2.*; platform_system == 'Linux'", "colorama; sys_platform == 'win32'"),
            "cp313-cp313-manylinux_2_28_x86_64"),
    Package("torch", "2.15.0", ("filelock", "cuda-toolkit[cublas]==13.2.*"), "cp313-cp313-manylinux_2_28_aarch64"),
    Package("torch", "2.15.0", (), "cp312-cp312-manylinux_2_28_x86_64"),
    Package("torch", "2.16.0", ("missing==1",), "cp313-cp313-manylinux_2_34_x86_64"),
    Package("cuda-toolkit", "13.2.1", ("nvidia-cublas==13.3.0; extra == 'cublas'",), extras=("cublas",)),
    Package("cuda-toolkit", "13.2.2", ("nvidia-cublas==13.4.1; extra == 'cublas'",
            "nvidia-cuda-runtime==13.2.86; extra == 'cudart'"), extras=("cublas", "cudart")),
    Package("cuda-toolkit", "13.4.0", extras=("cublas",)),
    Package("nvidia-cublas", "13.4.1", tag="py3-none-manylinux_2_27_x86_64"),
    Package("nvidia-cublas", "13.4.1", tag="py3-none-manylinux2014_aarch64"),
    Package("nvidia-cuda-runtime", "13.2.86", tag="py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64"),
    Package("triton", "3.9.0", tag="cp312-abi3-manylinux_2_27_x86_64"),
    Package("filelock", "4.0"),
    Package("filelock", "4.2"),
    Package("filelock", "5.0rc1"),
    Package("filelock", "4.3", requires_python=">=3.14"),
    Package("typing-extensions", "4.16.0"),
]  # fmt: skip


@pytest.fixture
def finder(settings: Callable[..., IndexSettings], cache: Cache, site: Site) -> Finder:
    site.content |= html_index(PACKAGES)
    return Finder(settings(), cache)


def names(found: Sequence[object]) -> list[str]:
    return [item.file.filename for item in found]  # type: ignore[attr-defined]


def run(finder: Finder, *requirements: str, target: Target = X86) -> list[str]:
    return names(resolve([Requirement(text) for text in requirements], finder, target))


def test_closure_for_this_and_for_another_platform(finder: Finder) -> None:
    assert run(finder, "torch==2.15.0") == [
        "cuda_toolkit-13.2.2-py3-none-any.whl",
        "filelock-4.2-py3-none-any.whl",
        "nvidia_cublas-13.4.1-py3-none-manylinux_2_27_x86_64.whl",
        "nvidia_cuda_runtime-13.2.86-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        "torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "triton-3.9.0-cp312-abi3-manylinux_2_27_x86_64.whl",
        "typing_extensions-4.16.0-py3-none-any.whl",
    ]
    assert run(finder, "torch", target=ARM) == [
        "cuda_toolkit-13.2.2-py3-none-any.whl",
        "filelock-4.2-py3-none-any.whl",
        "nvidia_cublas-13.4.1-py3-none-manylinux2014_aarch64.whl",
        "torch-2.15.0-cp313-cp313-manylinux_2_28_aarch64.whl",
    ]


def test_who_needs_what(finder: Finder) -> None:
    found = {item.name: item.required_by for item in resolve([Requirement("torch==2.15.0")], finder, X86)}
    assert found["nvidia-cublas"] == ("cuda-toolkit",)  # type: ignore[index]
    assert found["torch"] == ()  # type: ignore[index]


def test_glibc_and_pre_releases_and_pythons(finder: Finder) -> None:
    assert run(finder, "torch", target=ARM)[-1].startswith("torch-2.15.0")
    with pytest.raises(NoMatchError, match=r"missing==1 \(needed by torch 2\.16\.0\)"):
        run(finder, "torch==2.16.0", target=Target("3.13", "x86_64", (2, 34)))
    with pytest.raises(NoMatchError, match=r"glibc 2\.28"):
        run(finder, "torch==2.16.0")
    assert run(finder, "filelock") == ["filelock-4.2-py3-none-any.whl"]
    assert run(finder, "filelock>=5.0rc0") == ["filelock-5.0rc1-py3-none-any.whl"]
    assert run(finder, "filelock", target=Target("3.14", "x86_64")) == ["filelock-4.3-py3-none-any.whl"]


def test_backtracks_to_an_older_version_whose_pins_agree(finder: Finder, site: Site) -> None:
    site.content |= html_index(
        [
            Package("vision", "1.0", ("torch==2.15.0",)),
            Package("vision", "2.0", ("torch==9.9.9",)),
            Package("vision", "3.0", ("filelock<4.2", "torch==2.15.0")),
        ]
    )
    assert "vision-3.0-py3-none-any.whl" in run(finder, "torch==2.15.0", "vision")
    chosen = run(finder, "torch==2.15.0", "vision", "filelock>=4.2")
    assert "vision-1.0-py3-none-any.whl" in chosen


def test_what_cannot_be_says_why_and_what_there_is(finder: Finder) -> None:
    with pytest.raises(NoMatchError, match="nothing-like-it") as caught:
        run(finder, "nothing-like-it")
    assert "No configured index has nothing-like-it" in caught.value.hint
    with pytest.raises(NoMatchError, match="filelock") as caught:
        run(finder, "filelock<4")
    assert "4.2" in caught.value.hint
    with pytest.raises(NoMatchError) as caught:
        run(finder, "triton", target=ARM)
    assert "not for this Python and platform" in caught.value.hint


def test_yanked_only_when_pinned(finder: Finder, site: Site) -> None:
    page = site.content["/simple/filelock/"]
    site.content["/simple/filelock/"] = page.replace(b'">filelock-4.2-', b'" data-yanked="">filelock-4.2-')
    assert run(finder, "filelock") == ["filelock-4.0-py3-none-any.whl"]
    assert run(finder, "filelock==4.2") == ["filelock-4.2-py3-none-any.whl"]
    assert run(finder, "filelock==4.*") == ["filelock-4.0-py3-none-any.whl"]
    site.content |= html_index([Package("a", "1.0"), Package("a", "1.0+fixed")])
    page = site.content["/simple/a/"]
    site.content["/simple/a/"] = page.replace(b'">a-1.0+fixed', b'" data-yanked="">a-1.0+fixed')
    assert run(finder, "a==1.0") == ["a-1.0-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("label", "versions", "chosen"),
    [
        ("cu128", ("0.23.0", "0.23.0+cpu"), "0.23.0"),
        ("cu128", ("0.23.0", "0.23.0+cu128", "0.23.0+cu129"), "0.23.0+cu128"),
        ("cu128", ("0.23.0+cu126", "0.23.0+rocm6.4", "0.23.0+xpu", "0.23.0+cu130"), "0.23.0+cu126"),
        ("cpu", ("0.23.0+cpu", "0.23.0+cu128", "0.23.0+rocm6.4"), "0.23.0+cpu"),
        ("cu128", ("0.23.0", "0.23.0+cu128.sm90", "0.23.0+sm90", "0.23.0+tailored"), "0.23.0"),
        ("cpu", ("0.23.0+cpu", "0.23.0+cpu.avx512", "0.23.0+cpu.armv8.2"), "0.23.0+cpu"),
        ("cu128", ("0.23.0", "0.23.0+pt28cu128"), "0.23.0+pt28cu128"),
        ("", ("0.23.0", "0.23.0+cpu"), "0.23.0+cpu"),
        ("cu128", ("0.23.0+cu128", "0.24.0"), "0.24.0"),
    ],
)
def test_what_fits_the_build_of_torch(
    finder: Finder, site: Site, label: str, versions: tuple[str, ...], chosen: str
) -> None:
    """The highest local version was taken, whatever it was built for."""
    site.content |= html_index([Package("vision", version) for version in versions])
    found = resolve([Requirement("vision")], finder, X86, label=label)
    assert [str(item.version) for item in found] == [chosen]


def test_a_build_that_is_asked_for_is_taken(finder: Finder, site: Site) -> None:
    site.content |= html_index([Package("vision", version) for version in ("1.0", "1.0+cpu", "1.0+sm90")])
    for wanted in ("1.0+cpu", "1.0+sm90"):
        (found,) = resolve([Requirement(f"vision=={wanted}")], finder, X86, label="cu128")
        assert str(found.version) == wanted


def test_json_pages_metadata_files_and_revalidation(
    settings: Callable[..., IndexSettings], cache: Cache, site: Site
) -> None:
    packages = [Package("a", "1.0"), Package("a", "1.1")]
    site.content |= html_index(packages, metadata=True)
    site.content["/simple/a/"] = json_page(packages)
    site.types["/simple/a/"] = JSON_TYPE
    assert run(Finder(settings(), cache), "a") == ["a-1.1-py3-none-any.whl"]
    assert site.asked("/files/a-1.1-py3-none-any.whl") == 0
    assert "vnd.pypi.simple.v1+json" in site.requests[0].headers["Accept"]
    assert run(Finder(settings(), cache), "a") == ["a-1.1-py3-none-any.whl"]
    assert [request.status for request in site.requests if request.path == "/simple/a/"] == [200, 304]


def test_offline_uses_the_pages_of_the_last_run(
    settings: Callable[..., IndexSettings], cache: Cache, site: Site
) -> None:
    site.content |= html_index([Package("a", "1.0", ("b",)), Package("b", "1.0")])
    first = run(Finder(settings(), cache), "a")
    before = len(site.requests)
    assert run(Finder(settings(offline=True), cache), "a") == first
    assert len(site.requests) == before
    with pytest.raises(NoMatchError):
        run(Finder(settings(offline=True), cache), "c")


def test_several_sources_are_joined_and_local_ones_work(
    settings: Callable[..., IndexSettings], cache: Cache, site: Site, tmp_path: Path
) -> None:
    site.content |= html_index([Package("a", "1.0", ("b", "c"))])
    folder, index = tmp_path / "links", tmp_path / "index"
    folder.mkdir()
    (index / "c").mkdir(parents=True)
    for package, where in ((Package("b", "2.0"), folder), (Package("c", "3.0"), index)):
        (where / package.filename).write_bytes(package.wheel())
    (index / "c" / "index.html").write_text(f'<a href="../{Package("c", "3.0").filename}">c</a>')
    sources = (
        IndexLocation(folder.as_uri(), LocationKind.LINKS, "links"),
        IndexLocation(f"{site.url}/simple", LocationKind.INDEX, "web"),
        IndexLocation(index.as_uri(), LocationKind.INDEX, "local"),
        IndexLocation((tmp_path / "absent").as_uri(), LocationKind.LINKS, "absent"),
    )
    found = run(Finder(settings(sources=sources), cache), "a")
    assert found == ["a-1.0-py3-none-any.whl", "b-2.0-py3-none-any.whl", "c-3.0-py3-none-any.whl"]


def test_folders_do_not_say_for_which_python_a_wheel_is_but_the_wheel_does(
    settings: Callable[..., IndexSettings], cache: Cache, tmp_path: Path
) -> None:
    for package in (Package("a", "1.0"), Package("a", "2.0", requires_python=">=3.14"), Package("b", "1.0", ("a",))):
        (tmp_path / package.filename).write_bytes(package.wheel())
    source = IndexLocation(tmp_path.as_uri(), LocationKind.LINKS, "links")
    assert run(Finder(settings(sources=(source,)), cache), "b") == ["a-1.0-py3-none-any.whl", "b-1.0-py3-none-any.whl"]


def test_a_dead_index_is_asked_once_and_then_reported(settings: Callable[..., IndexSettings], cache: Cache) -> None:
    sources = (IndexLocation("http://127.0.0.1:9/simple", LocationKind.INDEX, "dead"),)
    with pytest.raises(NetworkError, match="cannot be reached"):
        run(Finder(settings(sources=sources, retries=0), cache), "a")


@pytest.fixture
def refusing(site: Site) -> Iterator[Site]:
    """An index before another one, which answers 403 for projects that it lacks."""
    site.content |= html_index([Package("filelock", "4.2"), Package("torch", "2.15.0", ("filelock",))])
    with serve(Site()) as first:
        first.always = {f"/simple/{name}/": Fault(status=403) for name in ("filelock", "torch", "absent")}
        yield first


def two_sources(settings: Callable[..., IndexSettings], first: str) -> IndexSettings:
    return settings(sources=(IndexLocation(f"{first}/simple", LocationKind.INDEX, "first"), *settings().sources))


def test_403_for_a_project_means_that_an_index_lacks_it(
    settings: Callable[..., IndexSettings], cache: Cache, refusing: Site
) -> None:
    finder = Finder(two_sources(settings, refusing.url), cache)
    assert run(finder, "torch") == ["filelock-4.2-py3-none-any.whl", "torch-2.15.0-py3-none-any.whl"]
    with pytest.raises(NoMatchError, match="absent"):
        run(finder, "absent")
    assert refusing.asked("/simple/filelock/") == refusing.asked("/simple/absent/") == 1


def test_403_after_a_login_is_an_error(
    settings: Callable[..., IndexSettings], cache: Cache, refusing: Site, home: Path
) -> None:
    with pytest.raises(NetworkError, match="403"):
        run(Finder(two_sources(settings, refusing.url.replace("://", "://me:secret@")), cache), "filelock")
    (home / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (home / ".netrc").chmod(0o600)
    with pytest.raises(NetworkError, match="403"):
        run(Finder(two_sources(settings, refusing.url), cache), "filelock")


def test_403_for_a_page_of_links_is_an_error(
    settings: Callable[..., IndexSettings], cache: Cache, refusing: Site
) -> None:
    links = IndexLocation(f"{refusing.url}/simple/filelock/", LocationKind.LINKS, "links")
    with pytest.raises(NetworkError, match="403"):
        run(Finder(settings(sources=(links, *settings().sources)), cache), "filelock")


def test_a_failing_page_is_retried(finder: Finder, site: Site) -> None:
    site.faults["/simple/filelock/"] = [Fault(status=500), Fault(drop_after=5)]
    assert run(finder, "filelock") == ["filelock-4.2-py3-none-any.whl"]


@pytest.mark.parametrize(
    ("target", "tag", "fits"),
    [
        (X86, "cp313-cp313-manylinux_2_28_x86_64", True),
        (X86, "cp313-cp313-manylinux_2_29_x86_64", False),
        (X86, "cp38-abi3-manylinux1_x86_64", True),
        (X86, "cp313-cp313t-manylinux_2_28_x86_64", False),
        (X86, "cp313-cp313-musllinux_1_2_x86_64", False),
        (X86, "cp313-cp313-win_amd64", False),
        (X86, "py2.py3-none-any", True),
        (Target("3.13t", "x86_64"), "cp313-cp313t-manylinux_2_28_x86_64", True),
        (Target("3.13t", "x86_64"), "cp313-cp313-manylinux_2_28_x86_64", False),
        (ARM, "cp313-none-manylinux2014_aarch64", True),
        (ARM, "cp313-cp313-linux_aarch64", True),
        (ARM, "cp314-cp314-linux_aarch64", False),
    ],
)
def test_tags(target: Target, tag: str, fits: bool) -> None:
    assert (target.rank(parse_tag(tag)) is not None) is fits


def test_bad_targets() -> None:
    with pytest.raises(UsageError):
        Target("2.7", "x86_64")
    with pytest.raises(UsageError):
        Target("3.13", "riscv64")
