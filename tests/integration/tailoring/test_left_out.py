"""What the dynamic linkers of both processors say of a library that was left out, and what verify says of it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.surgery.builds import TOOLCHAINS, Toolchain, toolchain
from tests.unit.tailoring.helpers import install, options
from tests.unit.wheels.builder import build_wheel
from torchtailor.catalog import load_catalog
from torchtailor.code.binary.placeholder import machine_of, placeholder
from torchtailor.tailoring.environment import tailor_environment
from torchtailor.tailoring.restore import restore_environment
from torchtailor.trees.artifact.artifact import open_artifact
from torchtailor.verification.result import CheckOutcome
from torchtailor.verification.static.expect import Expectation
from torchtailor.verification.static.verify import verify_static
from torchtailor.workload.choice import TracedWorkload
from torchtailor.workload.trace import Trace

LIBRARY, USER = "demo/lib/libdemo.so.12", "demo/lib/libuser.so"
MAIN = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    puts(library ? "loaded" : dlerror());
    return count != 2;
}
"""


@pytest.fixture
def tools(request: pytest.FixtureRequest) -> Toolchain:
    return toolchain(request.param)


@pytest.fixture
def site(tmp_path: Path, tools: Toolchain) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "demo.c").write_text("static volatile char room[1 << 17] = {1}; int demo(void) { return room[0]; }\n")
    (made / "user.c").write_text("int demo(void); int user(void) { return demo(); }\n")
    (made / "main.c").write_text(MAIN)
    library, user = made / "libdemo.so.12", made / "libuser.so"
    compile_ = [tools.compiler, "-shared", "-fPIC", "-s", f"-Wl,-z,max-page-size={tools.page}", "-o"]
    subprocess.run([*compile_, library, "-Wl,-soname,libdemo.so.12", made / "demo.c"], check=True)
    subprocess.run([*compile_, user, made / "user.c", library, "-Wl,-rpath,$ORIGIN"], check=True)
    subprocess.run([tools.compiler, "-o", tmp_path / "main", made / "main.c", "-ldl"], check=True)
    files = {"demo/__init__.py": b"", LIBRARY: library.read_bytes(), USER: user.read_bytes()}
    site = tmp_path / "env" / "lib" / "python3.13" / "site-packages"
    install(build_wheel(tmp_path, files, name="demo", version="3.4.0"), site)
    return site


def loading(tools: Toolchain, site: Path, name: str) -> str:
    command = [*tools.runner, str(site.parents[3] / "main"), str(site / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("tools", TOOLCHAINS, indirect=True)
def test_what_the_linker_says(site: Path, tools: Toolchain) -> None:
    machine = machine_of((site / LIBRARY).read_bytes())
    assert machine
    (site / LIBRARY).write_bytes(placeholder(machine, "libdemo.so.12", "libdemo.so.12 was left out; run this"))
    for name in (LIBRARY, USER):
        wanted = "libdemo.so.12 was left out; run this: cannot open shared object file: No such file or directory"
        assert loading(tools, site, name) == wanted


@pytest.mark.parametrize("tools", [os.uname().machine], indirect=True)
def test_loading_and_verifying(tmp_path: Path, site: Path, tools: Toolchain) -> None:
    def loaded(name: str) -> str:
        return loading(tools, site, name)

    def needed() -> tuple[CheckOutcome, str]:
        checks = verify_static(open_artifact(tmp_path / "env"), Expectation(), load_catalog()).checks
        assert not [check for check in checks if check.outcome is CheckOutcome.FAIL]
        return next((check.outcome, check.reason) for check in checks if check.name == "NEEDED entries")

    assert loaded(LIBRARY) == loaded(USER) == "loaded"
    workload = TracedWorkload(Trace(opened=("demo/__init__.py", USER)))
    tailor_environment(site, replace(options(), workload=workload, drop_unopened=True, keep_removed=True))
    for name in (LIBRARY, USER):
        said = loaded(name)
        assert said.startswith("libdemo.so.12 was left out, ")
        assert "`torchtailor restore` brings it back: cannot open shared object file" in said
    assert needed() == (CheckOutcome.PASS, "all resolve, except what was left out on purpose: libdemo.so.12")
    restore_environment(site)
    assert loaded(LIBRARY) == loaded(USER) == "loaded"
    assert "resolves, in the artifact" in needed()[1]  # libdemo.so.12, for libuser.so
