"""What an output replaces: what torchtailor made before; nothing else, whatever kind of input it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tailoring.helpers import options, tree
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core.errors import ExitCode, UsageError
from torchtailor.tailoring.folder import tailor_file, tailor_folder
from torchtailor.tailoring.wheel import tailor_wheel

NOT_OURS = "already exists, and nothing says that torchtailor made it"


@pytest.fixture
def library(tmp_path: Path, wide: bytes) -> Path:
    path = tmp_path / "libx.so"
    path.write_bytes(wide)
    return path


@pytest.fixture
def folder(tmp_path: Path, wide: bytes) -> Path:
    place = tmp_path / "stock"
    place.mkdir()
    (place / "libx.so").write_bytes(wide)
    (place / "notes.txt").write_text("text")
    return place


def test_a_wheel(tmp_path: Path, wide: bytes) -> None:
    wheel = build_wheel(tmp_path, {"demo/libx.so": wide})
    out = tmp_path / "out"
    first = tailor_wheel(wheel, out, options())
    assert first.output
    again = tailor_wheel(wheel, out, options())
    assert again.sha256_after == first.sha256_after
    other = tailor_wheel(wheel, out, options(strip=False))  # the same name with other bytes
    assert other.output == first.output and other.sha256_after != first.sha256_after
    first.output.write_bytes(b"mine")
    with pytest.raises(UsageError, match=NOT_OURS):
        tailor_wheel(wheel, out, options())
    assert first.output.read_bytes() == b"mine"


def test_a_wheel_that_is_copied(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {"demo/a.py": b"1"})
    out = tmp_path / "out"
    for _ in range(2):
        assert tailor_wheel(wheel, out, options()).output == out / wheel.name
    (out / wheel.name).write_bytes(b"mine")
    with pytest.raises(UsageError, match=NOT_OURS):
        tailor_wheel(wheel, out, options())
    assert (out / wheel.name).read_bytes() == b"mine"


def test_a_library(tmp_path: Path, library: Path) -> None:
    out = tmp_path / "out.so"
    tailor_file(library, out, options("8.0,9.0"))
    before = out.read_bytes()
    tailor_file(library, out, options("9.0"))
    assert out.read_bytes() != before
    mine = tmp_path / "mine.so"
    mine.write_bytes(b"mine")
    with pytest.raises(UsageError, match=NOT_OURS):
        tailor_file(library, mine, options())
    assert mine.read_bytes() == b"mine"


def test_a_library_that_is_copied_leaves_no_manifest_of_an_earlier_one(
    tmp_path: Path, library: Path, zstd: bytes
) -> None:
    out = tmp_path / "out.so"
    tailor_file(library, out, options())
    assert (tmp_path / "out.so.torchtailor.json").exists()
    library.write_bytes(zstd)
    for _ in range(2):
        tailor_file(library, out, options(strip=False))
        assert out.read_bytes() == zstd
        assert not (tmp_path / "out.so.torchtailor.json").exists()


def test_a_folder(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "out"
    tailor_folder(folder, out, options("8.0,9.0"))
    before = tree(out)
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "a.pyc").touch()
    tailor_folder(folder, out, options("9.0"))
    assert tree(out).keys() == before.keys()
    assert tree(out)["libx.so"] != before["libx.so"]
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"has files that the new one has not, such as mine\.txt"):
        tailor_folder(folder, out, options("9.0"))
    assert (out / "mine.txt").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"stock", "out"}


def test_a_folder_of_someone_else(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "torchtailor.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for place in ("mine", "link"):
        with pytest.raises(UsageError, match=NOT_OURS):
            tailor_folder(folder, tmp_path / place, options())


def test_a_file_where_the_folder_for_wheels_should_be(
    tmp_path: Path, wide: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = build_wheel(tmp_path, {"demo/libx.so": wide})
    (tmp_path / "file").write_text("mine")
    assert main(["tailor", str(wheel), "--gpu", "9.0", "-o", str(tmp_path / "file")]) == ExitCode.USAGE
    assert "-o must be a folder" in " ".join(capsys.readouterr().err.split())


def test_a_place_where_nothing_can_be_written(tmp_path: Path, wide: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = build_wheel(tmp_path, {"demo/libx.so": wide})
    assert main(["tailor", str(wheel), "--gpu", "9.0", "-o", "/proc/x"]) == ExitCode.ENVIRONMENT
    said = " ".join(capsys.readouterr().err.split())
    assert "/proc/x cannot be written" in said and "Choose another place." in said
