"""What a path is, and what is in it: the same for every command."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from tests.unit.gpucode.builders import FIXTURES
from tests.unit.tailoring.helpers import install
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core.errors import BadInputError, ExitCode, NoMatchError
from torchtailor.trees.artifact.artifact import ArtifactKind, open_artifact
from torchtailor.trees.artifact.launch import open_target
from torchtailor.trees.artifact.sites import find_sites, installed_path

LIBRARY = (FIXTURES / "raw.so").read_bytes()
COMMANDS = {
    "inspect": ["inspect"],
    "verify": ["verify"],
    "tailor": ["tailor", "--gpu", "9.0", "-o", "{out}"],
}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    files = {"torch/lib/libx.so": LIBRARY, "torch/bin/tool": LIBRARY, "torch/version.py": b"__version__ = '2.10.0'\n"}
    return build_wheel(tmp_path / "wheels", files, name="torch", version="2.10.0", modes={"torch/bin/tool": 0o100755})


# -- the same sentence in all commands ---------


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("notes.txt", ExitCode.BAD_INPUT, "notes.txt is not a library, wheel, folder or environment."),
        ("notes.so", ExitCode.BAD_INPUT, "notes.so is not a library, wheel, folder or environment."),
        ("empty.so", ExitCode.BAD_INPUT, "empty.so is empty."),
        ("nothing", ExitCode.BAD_INPUT, "nothing holds no libraries and no wheels."),
        ("pipe", ExitCode.BAD_INPUT, "pipe is neither a file nor a folder."),
        ("none", ExitCode.NO_MATCH, "none does not exist."),
        ("broken", ExitCode.NO_MATCH, "broken does not exist."),
    ],
)
def test_what_is_nothing_for_us(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str, code: ExitCode, said: str
) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "notes.so").write_text("/* GNU ld script */")
    (tmp_path / "empty.so").touch()
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "notes.txt").write_text("notes")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    words = [word.format(out=tmp_path / "out") for word in COMMANDS[command]]
    assert main([*words, str(tmp_path / name)]) == code
    captured = capsys.readouterr()
    assert f"{tmp_path}/{said}" in captured.err.replace("\n", " ")
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_zip_of_another_name_is_a_wheel_that_is_named_wrongly(
    tmp_path: Path, wheel: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    other = wheel.rename(tmp_path / "torch.zip")
    artifact = open_artifact(other)
    assert artifact.kind is ArtifactKind.WHEEL
    assert [library.name for library in artifact.libraries] == ["torch/lib/libx.so", "torch/bin/tool"]
    words = [word.format(out=tmp_path / "out") for word in COMMANDS[command]]
    code = main([*words, str(other)])
    if command == "inspect":  # the only one that needs no name
        assert code == ExitCode.OK
    else:
        assert code == ExitCode.BAD_INPUT
        assert "torch.zip is not the name of a wheel" in capsys.readouterr().err


# -- kinds ---------


def test_a_wheelhouse_is_a_folder_of_wheels_without_loose_libraries(tmp_path: Path, wheel: Path) -> None:
    folder = wheel.parent
    found = open_artifact(folder)
    assert (found.kind, found.wheels) == (ArtifactKind.WHEELHOUSE, (wheel,))
    assert [library.owner for library in found.libraries] == [wheel.name] * 2
    assert found.torch_version == "2.10.0"
    (folder / "logs").mkdir()
    assert open_artifact(folder).kind is ArtifactKind.WHEELHOUSE
    assert open_artifact(tmp_path).kind is ArtifactKind.WHEELHOUSE  # as `torchtailor build` lays it out
    (folder / "logs" / "libx.so").write_bytes(LIBRARY)
    found = open_artifact(folder)
    assert (found.kind, found.wheels) == (ArtifactKind.FOLDER, ())
    assert [library.name for library in found.libraries] == ["logs/libx.so"]


def test_inspect_reads_the_wheels_of_a_wheelhouse(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(wheel.parent), "--json"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert '"kind": "wheelhouse"' in out and "torch/lib/libx.so" in out


def test_a_wheel_without_libraries_is_no_error(tmp_path: Path) -> None:
    assert open_artifact(build_wheel(tmp_path, {"demo/a.py": b"1"})).libraries == ()


@pytest.mark.parametrize(
    ("place", "marker", "kind"),
    [
        ("lib/python3.13/site-packages", "pyvenv.cfg", ArtifactKind.ENVIRONMENT),
        ("lib64/python3.13/site-packages", "pyvenv.cfg", ArtifactKind.ENVIRONMENT),
        ("lib/python3.13/site-packages", "conda-meta/history", ArtifactKind.ENVIRONMENT),
        ("lib/python3.13/site-packages", "nix-support/x", ArtifactKind.NIX),
        ("lib/python3/dist-packages", "", ArtifactKind.FOLDER),
        ("", "", ArtifactKind.FOLDER),
    ],
)
def test_installed_packages_are_found_wherever_they_lie(
    tmp_path: Path, wheel: Path, place: str, marker: str, kind: ArtifactKind
) -> None:
    root = tmp_path / "root"
    site = root / place
    install(wheel, site)
    if marker:
        (root / marker).parent.mkdir(exist_ok=True)
        (root / marker).touch()
    artifact = open_artifact(root)
    assert (artifact.kind, artifact.site_packages) == (kind, (site,))
    assert {library.name for library in artifact.libraries} == {"torch/lib/libx.so", "torch/bin/tool"}
    assert [one.metadata.name for one in artifact.installed] == ["torch"]
    assert artifact.torch_version == "2.10.0"
    assert artifact.complete is (kind is ArtifactKind.ENVIRONMENT)
    if place:
        assert open_artifact(site).kind is ArtifactKind.ENVIRONMENT


def test_links_do_not_make_two_sites_of_one(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "lib64").symlink_to("lib")
    (tmp_path / "lib" / "python3.1").symlink_to("python3.12")  # conda has it
    assert [found.resolve() for found in find_sites(tmp_path)] == [site.resolve()]


@pytest.mark.parametrize(
    ("path", "installed"),
    [
        ("lib/python3.13/site-packages/torch/lib/x.so", "torch/lib/x.so"),
        ("usr/lib/python3/dist-packages/torch/x.so", "torch/x.so"),
        ("torch/lib/x.so", "torch/lib/x.so"),
        ("x.so", "x.so"),
    ],
)
def test_names_as_installed(path: str, installed: str) -> None:
    assert installed_path(path) == installed


# -- libraries ---------


def test_a_library_is_the_same_loose_and_packed(tmp_path: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "out")
    for target in (wheel, tmp_path / "out"):
        artifact = open_artifact(target)
        library = next(library for library in artifact.libraries if library.short_name == "libx.so")
        assert library.name == "torch/lib/libx.so"
        with library.open() as source:
            assert bytes(source.read(100, 5000)) == LIBRARY[100:5100]
        with artifact.unpacked(library) as file:
            assert file.path.read_bytes() == LIBRARY
            assert file.sha256 == hashlib.sha256(LIBRARY).hexdigest()


def test_the_hash_of_record_may_be_a_longer_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RECORD may hold SHA-384 or SHA-512; verify took every hash for a SHA-256."""

    def row(path: str, data: bytes) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha512(data).digest()).rstrip(b"=").decode()
        return f"{path},sha512={digest},{len(data)}\n"

    good = build_wheel(tmp_path, {"demo/libx.so": LIBRARY})
    with zipfile.ZipFile(good) as archive:
        record = "".join(row(name, archive.read(name)) for name in archive.namelist() if "RECORD" not in name)
    record += "demo-1.0.dist-info/RECORD,,\n"
    wheel = build_wheel(tmp_path, {"demo/libx.so": LIBRARY}, record=record)
    env = tmp_path / "env"
    install(wheel, env / "site-packages")
    for target in (wheel, env / "site-packages"):
        assert main(["verify", str(target), "--level", "static"]) == ExitCode.OK, capsys.readouterr().out
    damaged = build_wheel(tmp_path, {"demo/libx.so": LIBRARY + b"1"}, record=record)
    with pytest.raises(BadInputError, match="RECORD"):
        artifact = open_artifact(damaged)
        with artifact.unpacked(artifact.libraries[0]):
            pass


# -- starting Python ---------


def test_programs_of_an_unpacked_wheel_can_be_run(wheel: Path) -> None:
    """torch starts torch_shm_manager, which lies in the wheel."""
    with open_target(wheel) as launch:
        assert os.access(launch.folders[0] / "torch" / "bin" / "tool", os.X_OK)


def test_what_a_pth_file_installs_runs_as_in_site_packages(tmp_path: Path) -> None:
    """As the finder of modules that lie in packs; the folder still comes first on the path."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").touch()
    (tmp_path / "demo.pth").write_text("import sys; sys.installed = True\n")
    with open_target(tmp_path) as launch:
        said = launch.run(["-c", f"import sys; print(sys.installed, sys.path.index({str(tmp_path)!r}))"])
    assert said.output == "True 2\n"  # after the folder that it runs in, and that of what does this


def test_a_library_is_not_started(tmp_path: Path) -> None:
    library = tmp_path / "libx.so"
    library.write_bytes(LIBRARY)
    library.chmod(0o755)  # most shared libraries are
    with pytest.raises(BadInputError, match="is a library"), open_target(library):
        pass
    with pytest.raises(NoMatchError, match="does not exist"), open_target(tmp_path / "none"):
        pass
