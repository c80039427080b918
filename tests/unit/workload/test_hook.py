"""The hook as files: what is exported, where it is, which programs cannot have it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.workload.compiled import TOOL, build_tool, copy_built
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError
from torchtailor.surgery.host_pages import HOOK_FUNCTION
from torchtailor.workload import hook
from torchtailor.workload.hook import PREFIX, HookKind, check_program, hook_library, renamed_symbols

pytestmark = pytest.mark.xdist_group("hook-files")  # it is compiled once


def build(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(TOOL), *options]
    return subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("cc"):
        pytest.skip("cc not found")
    folder = tmp_path_factory.mktemp("built") / os.uname().machine
    if not copy_built(build_tool(), folder.name, folder):
        done = build("--system", "--arch", folder.name, "--into", str(folder.parent))
        assert done.returncode == 0, done.stderr
    return folder


def exported(library: Path) -> set[str]:
    if not shutil.which("nm"):
        pytest.skip("nm not found")
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    rows = (line.split() for line in lines.splitlines())
    return {name.split("@")[0] for *_, kind, name in rows if kind.isupper()}  # a small letter: for itself alone


def test_the_renamed_symbols_are_what_the_hook_defines(built: Path) -> None:
    names = {f"{PREFIX}{name}" for name in renamed_symbols()}
    assert len(names) == len(renamed_symbols()) > 20
    assert exported(built / HookKind.NEEDED.value) == {*names, HOOK_FUNCTION}


def test_the_library_for_preloading_answers_to_both_names(built: Path) -> None:
    names = exported(built / HookKind.PRELOAD.value)
    # libcudart's own function is not stood in for: with the preloaded hook there is no need.
    assert {name for name in renamed_symbols() if name != "__cudaRegisterFatBinary"} < names
    assert {f"{PREFIX}{name}" for name in renamed_symbols()} < names
    assert {"open", "open64", "openat", "openat64", "fopen", "fopen64", "dlopen", "_exit"} < names
    assert not any(name.startswith("tt_") for name in names)


def test_it_needs_only_the_c_library_and_is_never_unloaded(built: Path) -> None:
    for kind in HookKind:
        library = built / kind.value
        text = subprocess.run(["readelf", "-dW", library], capture_output=True, text=True, check=True).stdout
        needed = set(re.findall(r"NEEDED.*\[(.+)\]", text))
        loader = {"ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2"}
        assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", *loader}
        assert "NODELETE" in text
        assert re.findall(r"SONAME.*\[(.+)\]", text) == [kind.value]  # without one, a linker writes the path


def test_without_the_compiler_of_releases(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['ziglang'] = None")
    done = build("--into", str(tmp_path / "out"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: The compiler `ziglang` is not installed")
    assert "pip install ziglang" in done.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_compiler(tmp_path: Path) -> None:
    done = build("--system", "--into", str(tmp_path), CC="no-such-compiler")
    assert done.returncode == 1
    assert done.stderr.startswith("error: The C compiler no-such-compiler was not found.")


def test_the_system_s_compiler_is_for_this_machine(tmp_path: Path) -> None:
    other = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
    done = build("--system", "--arch", other, "--into", str(tmp_path), PATH="/nonexistent")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: --system builds for {os.uname().machine}; there is no compiler for {other}.")


def test_nothing_half_written_if_it_cannot_be_compiled(tmp_path: Path) -> None:
    done = build("--system", "--into", str(tmp_path), CC=f"{shlex.quote(sys.executable)} -c raise(SystemExit(3))")
    assert done.returncode == 1
    assert "could not be compiled" in done.stderr
    assert not list((tmp_path / os.uname().machine).iterdir())


def test_where_the_hook_is(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "_NATIVE", tmp_path)
    with pytest.raises(EnvironmentProblem, match="no workload hook for aarch64") as caught:
        hook_library(ElfMachine.AARCH64, HookKind.NEEDED)
    assert "tools/build_hook.py" in caught.value.hint
    shutil.copytree(built, tmp_path / "aarch64")
    assert hook_library(ElfMachine.AARCH64, HookKind.PRELOAD).name == "libtorchtailor-preload.so"


# --- programs


def compiled(folder: Path, *flags: str) -> Path:
    if not shutil.which("cc"):
        pytest.skip("cc not found")
    source, program = folder / "program.c", folder / "program"
    source.write_text("int main(void) { return 0; }\n")
    done = subprocess.run(["cc", *flags, "-o", str(program), str(source)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cc cannot link with {' '.join(flags)}")
    return program


def test_a_usual_program_can_have_the_hook(tmp_path: Path) -> None:
    assert check_program(str(compiled(tmp_path))) is not None
    machine = check_program(sys.executable)
    assert machine is not None
    assert machine.arch == os.uname().machine


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program_cannot(tmp_path: Path, flag: str) -> None:
    with pytest.raises(ImpossibleError, match="is linked statically"):
        check_program(str(compiled(tmp_path, flag)))


def test_a_program_for_musl_cannot(tmp_path: Path) -> None:
    program = compiled(tmp_path, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    with pytest.raises(ImpossibleError, match="uses musl"):
        check_program(str(program))


def test_a_script_is_as_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path, "-static").rename(tmp_path / "interpreter")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for number, line in enumerate(
        (f"#!{tmp_path}/interpreter -u", "#! /usr/bin/env interpreter", "#!/usr/bin/env -S interpreter -u")
    ):
        script = tmp_path / f"script{number}"
        script.write_text(f"{line}\n")
        script.chmod(0o755)
        with pytest.raises(ImpossibleError, match="is linked statically"):
            check_program(str(script))
        with pytest.raises(ImpossibleError, match="is linked statically"):
            check_program(script.name)


def test_what_cannot_be_judged_is_left_to_the_system(tmp_path: Path) -> None:
    """A name that does not exist, a script that names itself, a file that is no program: running it says it."""
    circle = tmp_path / "circle"
    circle.write_text(f"#!{circle}\n")
    circle.chmod(0o755)
    text = tmp_path / "text"
    text.write_text("echo hello\n")
    text.chmod(0o755)
    short = tmp_path / "short"
    short.write_bytes(b"\x7fELF")
    short.chmod(0o755)
    for name in ("no-such-program", str(circle), str(text), str(short), str(tmp_path)):
        assert check_program(name) is None
