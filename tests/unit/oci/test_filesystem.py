"""The merged view: what later layers replace, delete and link."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from torchtailor.core.errors import BadInputError
from torchtailor.oci.filesystem import (
    LayerFile,
    MemberKind,
    MergedView,
    Whiteouts,
    clean_path,
    is_marker,
    whiteout_of,
)


def view(*layers: tuple[Sequence[tuple[str, MemberKind, str]], Whiteouts]) -> MergedView:
    merged = MergedView()
    for number, (rows, whiteouts) in enumerate(layers):
        files = [LayerFile(number, place, path, kind, 1, 0, link) for place, (path, kind, link) in enumerate(rows)]
        merged.add_layer(number, files, whiteouts)
    return merged


def file(path: str) -> tuple[str, MemberKind, str]:
    return path, MemberKind.FILE, ""


def seen(merged: MergedView) -> set[tuple[int, str]]:
    return {(one.layer, one.path) for one in merged.visible()}


def test_replaced_and_deleted() -> None:
    merged = view(
        ([file("a/x"), file("a/y"), file("b/z")], Whiteouts()),
        ([file("a/x")], Whiteouts(paths=("b",))),
    )
    assert seen(merged) == {(1, "a/x"), (0, "a/y")}
    assert [one.hidden_by for one in merged.files] == [1, None, 1, None]


def test_a_whiteout_does_not_hide_its_own_layer() -> None:
    merged = view(([file("d/old")], Whiteouts()), ([file("d/new")], Whiteouts(paths=("d/new",), opaque=("d",))))
    assert seen(merged) == {(1, "d/new")}


def test_a_file_in_place_of_a_folder_and_back() -> None:
    merged = view(([file("d/x"), file("d/e/y")], Whiteouts()), ([file("d")], Whiteouts()), ([file("d/z")], Whiteouts()))
    assert seen(merged) == {(2, "d/z")}
    assert [one.hidden_by for one in merged.files] == [1, 1, 2, None]


def test_the_same_name_twice_in_a_layer() -> None:
    merged = view(([file("x"), ("y", MemberKind.HARD_LINK, "x"), file("x")], Whiteouts()))
    first, link, last = merged.files
    assert first.hidden_by == 0 and last.hidden_by is None
    assert link.content == (0, 0)
    assert merged.live_contents() == {(0, 0), (0, 2)}


def test_links() -> None:
    merged = view(
        (
            [
                file("usr/lib/x.so"),
                ("lib", MemberKind.SYMLINK, "usr/lib"),
                ("abs", MemberKind.SYMLINK, "/lib/../lib"),
                ("out", MemberKind.SYMLINK, "../../../../usr"),
                ("loop", MemberKind.SYMLINK, "loop"),
            ],
            Whiteouts(),
        )
    )
    assert merged.resolve("lib/x.so") == "usr/lib/x.so"
    assert merged.resolve("abs/x.so") == "usr/lib/x.so"
    assert merged.resolve("out/lib/x.so") == "usr/lib/x.so"
    assert merged.resolve("loop/x") == "loop/x"
    assert merged.resolve("no/such") == "no/such"


def test_paths() -> None:
    assert clean_path("./a//b/./c", "L") == "a/b/c"
    assert clean_path("/etc/x", "L") == "etc/x"
    assert clean_path("./", "L") == ""
    assert clean_path("a..b/..c", "L") == "a..b/..c"
    for bad in ("../x", "a/../x", "/..", "a/.."):
        with pytest.raises(BadInputError, match="leads out"):
            clean_path(bad, "L")
    assert whiteout_of("a/.wh.b") == ("a/b", False)
    assert whiteout_of(".wh..wh..opq") == ("", True)
    assert whiteout_of("a/b.wh.c") is None
    assert is_marker(".wh..wh.aufs") and not is_marker("a/.wh..wh..opq")


def test_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtailor.oci.filesystem._MOST_FILES", 3)
    with pytest.raises(BadInputError, match="more than 3 files"):
        view(([file(f"{n}") for n in range(4)], Whiteouts()))
