"""What is bundled, under which tag and licence: the parts that need no compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtailor.building.source.bundling import owners
from torchtailor.building.source.bundling.owners import LibraryOwner, debian_licence, find_owner, is_gpl
from torchtailor.building.source.bundling.tables import load_bundle_tables
from torchtailor.building.source.bundling.tag import choose_tag
from torchtailor.trees.wheels.metadata import licence_files, with_licence_files
from torchtailor.trees.wheels.name import WheelName

FORMAT = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"


@pytest.mark.parametrize(
    "name",
    [
        "libcuda.so.1",
        "libcudart.so.13",
        "libcublas.so.12",
        "libcublasLt.so.13",
        "libcudnn_graph.so.9",
        "libnccl.so.2",
        "libnvidia-ml.so.1",
        "libnvrtc-builtins.so.13.0",
        "libnvToolsExt.so.1",
        "libcupti.so.13",
        "libmpi.so.40",
    ],
)
def test_what_is_never_bundled(name: str) -> None:
    assert load_bundle_tables().why_left_out(name)


@pytest.mark.parametrize(
    "name", ["libgomp.so.1", "libopenblas.so.0", "libfmt.so.10", "libcurl.so.4", "libibverbs.so.1"]
)
def test_what_is_bundled(name: str) -> None:
    assert load_bundle_tables().why_left_out(name) is None


@pytest.mark.parametrize(
    ("licence", "gpl"),
    [
        ("GPL-3+", True),
        ("GPL-2.0-only", True),
        ("AGPL-3.0-or-later", True),
        ("MIT and GPL-2+", True),
        ("GPLv3+", True),
        ("LGPL-2.1+", False),
        ("LGPLv2+ and BSD", False),
        ("GPL-2+ or LGPL-3+", False),
        ("GPL-2+ | MIT", False),
        ("its text, which refers to GPL-3", True),
        ("its text, which refers to GPL / LGPL", False),  # of free text: which part is which is not known
        ("GPL-3+ with GCC Runtime Library Exception", False),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", False),
        ("Expat", False),
        ("", False),
    ],
)
def test_the_gpl_is_recognised(licence: str, gpl: bool) -> None:
    assert is_gpl(licence) is gpl
    assert LibraryOwner("libx1", "1", licence).copyleft is gpl


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        (f"{FORMAT}\nFiles: *\nCopyright: x\nLicense: Expat\n\nFiles: m4/*\nLicense: GPL-3+\n", "Expat"),
        (f"{FORMAT}\nFiles:\n *\nCopyright: x\nLicense: BSL-1.0\n text\n", "BSL-1.0"),
        (
            f"{FORMAT}\nFiles: src/*\nLicense: MIT\n\nFiles: lib/*\nLicense: GPL-2+\n\nFiles: debian/*\nLicense: X\n",
            "MIT and GPL-2+",
        ),
        (
            "This library is free; see the GCC Runtime\nLibrary Exception ...",
            "GPL-3+ with GCC Runtime Library Exception",
        ),
        ("On Debian systems see /usr/share/common-licenses/GPL-3.", "its text, which refers to GPL-3"),
        (
            "see /usr/share/common-licenses/LGPL-2.1, or /usr/share/common-licenses/GPL-2'",
            "its text, which refers to GPL-2 / LGPL-2.1",
        ),
        ("All rights granted.", ""),
    ],
)
def test_the_licence_of_a_debian_package(text: str, licence: str) -> None:
    assert debian_licence(text) == licence


def test_a_library_of_no_package(tmp_path: Path) -> None:
    path = tmp_path / "libown.so.1"
    path.write_bytes(b"")
    assert find_owner(path) is None


def test_a_library_of_fedora(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """rpm says the licence itself and lists its texts; paths of before the merge of /usr are tried too."""
    text = tmp_path / "COPYING"
    text.write_bytes(b"the licence")

    def rpm(*line: str) -> str:
        if "--licensefiles" in line:
            return f"{text}\n{tmp_path}/missing"
        return "fmt\t11.1.4-1.fc42\tMIT-advertising\n" if line[-1] == "/lib64/libfmt.so.11.1.4" else ""

    monkeypatch.setattr(owners, "_ask", rpm)
    found = owners._of_rpm(Path("/usr/lib64/libfmt.so.11.1.4"))
    assert found == LibraryOwner("fmt", "11.1.4-1.fc42", "MIT-advertising", {"fmt/COPYING": b"the licence"})


def test_a_package_whose_documentation_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small container images leave /usr/share/doc out: the package is known, its licence is not."""
    answers = {"--search": "libnodoc1:amd64: /usr/lib/libnodoc.so.1", "--show": "1.0-1"}
    monkeypatch.setattr(owners, "_ask", lambda *line: answers[line[1]])
    assert owners._of_debian(Path("/usr/lib/libnodoc.so.1")) == LibraryOwner("libnodoc1", "1.0-1", "")


NEWEST = "manylinux_2_41_x86_64"


@pytest.mark.parametrize(
    ("platforms", "unknown", "symbols", "own", "tag"),
    [
        (["manylinux_2_36_x86_64"], [], ["GLIBC_2.36"], (2, 36), "manylinux_2_36_x86_64"),
        (
            ["manylinux2014_x86_64", "manylinux_2_17_x86_64"],
            [],
            [],
            (2, 36),
            "manylinux2014_x86_64.manylinux_2_17_x86_64",
        ),
        ([], ["GLIBC_2.43"], ["GLIBC_2.2.5", "GLIBC_2.43"], (2, 43), "manylinux_2_43_x86_64"),
        # a newer libstdc++ than any tag promises is on systems like this one
        ([], ["GLIBCXX_3.4.35"], ["GLIBC_2.38", "GLIBCXX_3.4.35"], (2, 42), "manylinux_2_42_x86_64"),
        # an own compiler on an old system: no tag can say what it needs
        ([], ["GLIBCXX_3.4.35"], ["GLIBC_2.34", "GLIBCXX_3.4.35"], (2, 36), "linux_x86_64"),
        ([], ["GLIBCXX_3.4.35"], ["GLIBC_2.34"], None, "linux_x86_64"),
        ([], [], ["GLIBC_2.34"], (2, 36), "linux_x86_64"),
    ],
)
def test_the_tag_says_the_real_glibc(
    platforms: list[str], unknown: list[str], symbols: list[str], own: tuple[int, int] | None, tag: str
) -> None:
    chosen = choose_tag("x86_64", platforms=platforms, newest=NEWEST, unknown=unknown, symbols=symbols, own_glibc=own)
    assert str(chosen) == tag
    assert bool(chosen.note) is not bool(platforms)  # what is unusual is said


def test_licences_in_metadata() -> None:
    """Since version 2.4 the files are in the folder `licenses`; an older METADATA becomes one of that version."""
    old = b"Metadata-Version: 2.1\nName: torch\nVersion: 2.0\nLicense-File: LICENSE\n\nText\nMetadata-Version: 1.0\n"
    new = with_licence_files(old, ["torch.libs/libfmt10/copyright"])
    assert new == (
        b"Metadata-Version: 2.4\nName: torch\nVersion: 2.0\nLicense-File: LICENSE\n"
        b"License-File: torch.libs/libfmt10/copyright\n\nText\nMetadata-Version: 1.0\n"
    )
    assert licence_files(new) == ("LICENSE", "torch.libs/libfmt10/copyright")
    newer = b"Metadata-Version: 2.5\nName: torch\nVersion: 2.0\n"
    assert with_licence_files(newer, ["x"]).startswith(b"Metadata-Version: 2.5\n")


@pytest.mark.parametrize(
    ("platform", "glibc"),
    [
        ("manylinux_2_39_x86_64", (2, 39)),
        ("manylinux2014_x86_64.manylinux_2_17_x86_64", (2, 17)),
        ("manylinux1_x86_64", (2, 5)),
        ("linux_x86_64", None),
        ("any", None),
        ("musllinux_1_2_x86_64", None),
    ],
)
def test_the_glibc_that_a_name_promises(platform: str, glibc: tuple[int, int] | None) -> None:
    assert WheelName.parse(Path(f"torch-2.0-cp313-cp313-{platform}.whl")).oldest_glibc == glibc
