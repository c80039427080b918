"""Recording in an image: which engine runs it, what is said where none does, and what is taken out of a container."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.calling import call
from torchtailor.core.errors import ExitCode
from torchtailor.workload import container
from torchtailor.workload.container import _unpack
from torchtailor.workload.hook import HookKind, hook_library
from torchtailor.workload.moved_modules import INDEX_VARIABLE
from torchtailor.workload.record import AUDIT, PRELOAD, RECORD_VARIABLE, this_machine

ELF = b"\x7fELF and more"
ROOT = Path(__file__).parents[3]


def engine(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def record(tmp_path: Path, folder: Path, *more: str, image: str = "app:1") -> tuple[int, str]:
    path = f"{folder}:/usr/bin:/bin" if any(folder.iterdir()) else str(folder)
    words = ("record", "--image", image, "-o", tmp_path / "app.trace", *more)
    done = call(*words, environment={**os.environ, "PATH": path})
    assert not (tmp_path / "app.trace").exists() and "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_without_an_engine(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    code, said = record(tmp_path, tmp_path / "bin")
    assert code == ExitCode.ENVIRONMENT and "There is neither podman nor docker here to run app:1." in said
    assert "torchtailor help image-record" in said


def test_an_image_that_there_is_not(tmp_path: Path) -> None:
    code, said = record(tmp_path, engine(tmp_path / "bin", "podman", "exit 125"))
    assert code == ExitCode.NO_MATCH and "podman has no image app:1, and cannot fetch it." in said


@pytest.mark.parametrize(
    ("env", "error"),
    [("null", "podman could not start a container of app:1."), ("what", "podman does not say what app:1 sets.")],
)
def test_an_engine_that_cannot(tmp_path: Path, env: str, error: str) -> None:
    folder = engine(tmp_path / "bin", "podman", f'[ "$1" = image ] && echo {env} && exit 0; exit 125')
    assert error in record(tmp_path, folder, "--", "python", "app.py")[1]


def test_a_container_that_does_not_start(tmp_path: Path) -> None:
    """The engine has made it when what runs it refuses."""
    script = f"""
case "$1" in
  image) echo null;;
  run) echo 1234 > "$3"; exit 126;;
  rm) echo "$@" > {tmp_path}/removed;;
esac"""
    code, said = record(tmp_path, engine(tmp_path / "bin", "podman", script))
    assert code == ExitCode.ENVIRONMENT and "podman could not start a container of app:1." in said
    assert (tmp_path / "removed").read_text() == "rm --force 1234\n"


@pytest.mark.parametrize("export", ["exit 125", "head -c 700 {tar}; exit 1", "cat {tar}; exit 1"])
def test_a_container_that_somebody_removes(tmp_path: Path, export: str) -> None:
    """Before its files are asked for, or while they come."""
    with tarfile.open(tmp_path / "tar", "w") as tar:
        for name in ("a", "b"):
            tar.addfile(tarfile.TarInfo(name))
    script = f"""
case "$1" in
  image) echo null;;
  run) echo 1234 > "$3";;
  export) {export.format(tar=tmp_path / "tar")};;
esac"""
    code, said = record(tmp_path, engine(tmp_path / "bin", "podman", script))
    assert code == ExitCode.ENVIRONMENT and "podman does not give the files of the container that it ran." in said


def test_what_the_engine_is_told(tmp_path: Path) -> None:
    """The image's own preloads stay behind the recorder."""
    script = f"""
case "$1" in
  image) echo '["LD_PRELOAD=/opt/jemalloc.so", "PYTHONPATH=/app"]';;
  run) for word; do echo "$word"; done > {tmp_path}/words; echo 1234 > "$3";;
  export) tar -c -T /dev/null;;
  rm) echo "$@" > {tmp_path}/removed;;
esac"""
    folder = engine(tmp_path / "bin", "podman", script)
    code, said = record(tmp_path, folder, "--engine-options", "--gpus all -v '/a b:/m'", "--", "serve", "-x")
    assert code == ExitCode.NO_MATCH and "Nothing was recorded" in said
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-7:] == ["--gpus", "all", "-v", "/a b:/m", "app:1", "serve", "-x"]
    recorder = "/torchtailor-recorder/libtorchtailor"
    assert f"LD_PRELOAD={recorder}-preload.so:/opt/jemalloc.so" in words and f"LD_AUDIT={recorder}-audit.so" in words
    assert "TORCHTAILOR_RECORD=/torchtailor-recorded" in words and "TORCHTAILOR_INDEX=0" in words
    assert (tmp_path / "removed").read_text() == "rm --force 1234\n"


@pytest.mark.parametrize(
    ("image", "asked"),
    [
        ("docker://registry.local/app:1", "registry.local/app:1"),
        ("oci:images:stock", "0123abcd"),
        ("oci-archive:app.tar:1", "0123abcd"),
        ("docker-archive:app.tar", "0123abcd"),
    ],
)
def test_names_as_the_other_commands_have_them(tmp_path: Path, image: str, asked: str) -> None:
    """podman runs an image of files, but does not inspect it."""
    script = f"""
case "$1" in
  pull) [ "$3" = {image} ] && echo 0123abcd;;
  image) [ "$5" = {asked} ] && echo null;;
  run) for word; do echo "$word"; done > {tmp_path}/words; echo 1234 > "$3";;
  export) tar -c -T /dev/null;;
esac"""
    code, said = record(tmp_path, engine(tmp_path / "bin", "podman", script), "--", "serve", image=image)
    assert code == ExitCode.NO_MATCH and "Nothing was recorded" in said
    assert (tmp_path / "words").read_text().splitlines()[-2:] == [asked, "serve"]


def test_an_image_of_files_that_cannot_be_run(tmp_path: Path) -> None:
    code, said = record(tmp_path, engine(tmp_path / "bin", "podman", "exit 125"), image="oci:gone:1")
    assert code == ExitCode.NO_MATCH and "podman cannot read the image oci:gone:1." in said


def test_docker_runs_no_image_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "ENGINES", ("docker",))
    code, said = record(tmp_path, engine(tmp_path / "bin", "docker", "exit 1"), image="oci:app:1")
    assert code == ExitCode.ENVIRONMENT and "skopeo copy oci:app:1 docker-daemon:NAME:TAG" in said


def test_the_example_for_kubernetes(tmp_path: Path) -> None:
    """It sets what our own containers get, uses the volumes that it has, and its first command brings the recorder."""
    page = (ROOT / "docs" / "image-record.md").read_text()
    text = page[page.index("    apiVersion: v1") : page.index("A pod that exists")]
    pod = YAML(typ="safe").load(textwrap.dedent(text))["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    (first,), (program,) = pod["initContainers"], pod["containers"]
    for one in (first, program):
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes
    values = {variable["name"]: variable["value"] for variable in program["env"]}
    libraries = {PRELOAD: HookKind.PRELOAD, AUDIT: HookKind.AUDIT}
    names = {variable: hook_library(this_machine(), kind).name for variable, kind in libraries.items()}
    assert values == {
        **{variable: f"/recorder/{name}" for variable, name in names.items()},
        RECORD_VARIABLE: "/recorded",
        INDEX_VARIABLE: "0",
    }
    for folder in ("recorder", "recorded"):
        (tmp_path / folder).mkdir()
    *shell, command = first["command"]
    command = command.replace(" /record", f" {tmp_path}/record")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run([*shell, command], check=True, env={"PATH": path, "PYTHONPATH": str(ROOT / "src")})
    assert set(names.values()) <= {file.name for file in (tmp_path / "recorder").iterdir()}
    assert (tmp_path / "recorded").stat().st_mode & 0o1777 == 0o1777


def test_engine_options_alone(tmp_path: Path) -> None:
    done = call("record", "-o", str(tmp_path / "x"), "--engine-options=-x", "--", "true")
    assert done.returncode == ExitCode.USAGE and "--engine-options is for --image" in done.stderr


def test_libraries_are_taken_out_whatever_links_lead_to_them(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, data: bytes = b"", link: str = "", kind: bytes = tarfile.REGTYPE) -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = tarfile.SYMTYPE if link else kind, link, len(data)
            tar.addfile(info, io.BytesIO(data))

        add("lib", link="usr/lib")
        add("usr/lib/libx.so.1.2", ELF)
        add("usr/lib/libx.so.1", link="libx.so.1.2")
        add("loop", link="loop/again")
        add("opt/model.bin", b"no library")
        add("../outside.so", ELF)
        add("srv/demo-1.dist-info", kind=tarfile.DIRTYPE)
        add("usr/lib/other.so", ELF)
    (tmp_path / "tar").write_bytes(buffer.getvalue())
    program = engine(tmp_path / "bin", "podman", f"cat {tmp_path}/tar") / "podman"
    wanted = ["/lib/libx.so.1", "/usr/lib/libx.so.1.2", "/opt/model.bin", "/loop/x", "/outside.so", "/gone.so"]
    _unpack(str(program), "1234", tmp_path / "root", wanted)
    found = {
        path.relative_to(tmp_path / "root").as_posix() for path in (tmp_path / "root").rglob("*") if path.is_file()
    }
    assert found == {"lib/libx.so.1", "usr/lib/libx.so.1.2", "outside.so"}
    assert (tmp_path / "root/lib/libx.so.1").read_bytes() == ELF
    assert (tmp_path / "root/srv/demo-1.dist-info").is_dir() and not (tmp_path / "outside.so").exists()


def test_image_says_who_records() -> None:
    done = call("image", "record", "app:1")
    assert (
        done.returncode == ExitCode.USAGE and "torchtailor record --image app:1 -o app.trace -- PROGRAM" in done.stderr
    )
