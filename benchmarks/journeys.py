"""How many files of the package five commands enter, on small inputs: what a reader walks through.

Run: .venv/bin/python benchmarks/journeys.py [--files tailor]
A file is entered where one of its functions runs; what runs while modules are imported does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = f"{ROOT / 'src' / 'torchtailor'}{os.sep}"
sys.path.insert(0, str(ROOT))


def walk(words: list[str]) -> dict[str, int]:
    """Run a command in this process; the files that it entered, with how often from another file."""
    from torchtailor.cli import main

    entered: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(SOURCE) or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        if caller is None or caller.f_code.co_filename == name:
            return
        while caller is not None:
            if caller.f_code.co_name == "<module>" and caller.f_code.co_filename.startswith(SOURCE):
                return
            caller = caller.f_back
        entered[name.removeprefix(SOURCE)] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    code = main(words)
    sys.setprofile(None)
    threading.setprofile(None)
    assert code == 0, (words, code)
    return dict(entered)


def commands(folder: Path) -> dict[str, list[str]]:
    """The five, with what they need in a folder."""
    from tests.unit.building.stack import FAT, packages
    from tests.unit.oci.builder import stock, tar_of

    (folder / "wheels").mkdir()
    for package in packages():
        (folder / "wheels" / package.filename).write_bytes(package.wheel())
    (folder / "lib.so").write_bytes(FAT)
    site = "usr/lib/python3.13/site-packages/demo"
    image = stock(folder / "stock", [tar_of({"etc/os-release": b"ID=demo\n", f"{site}/lib.so": FAT})])
    torch = next((folder / "wheels").glob("torch-*x86_64.whl"))
    index = ["--index-url", (folder / "wheels").as_uri(), "--find-links", str(folder / "wheels")]
    return {
        "tailor": ["tailor", "lib.so", "--gpu", "9.0", "-o", "cut.so"],
        "build": ["build", "sm90-avx512", "--release", "2.8", "--out", "dist", *index],
        "recommend": ["recommend"],
        "image": ["image", image, f"oci:{folder}/cut:x", "--gpu", "9.0"],
        "verify": ["verify", str(torch)],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", help="name the files of this one")
    parser.add_argument("--walk", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.walk:
        print("\n" + json.dumps(walk(chosen.walk)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ,
            "HOME": name,
            "TORCHTAILOR_CACHE": f"{name}/cache",
            "XDG_STATE_HOME": f"{name}/state",
        }
        for title, words in commands(folder).items():
            if chosen.files not in (None, title):
                continue
            line = [sys.executable, __file__, "--walk", *words]
            done = subprocess.run(line, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            entered: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
            print(f"{title:10} {len(entered):4} files")
            if chosen.files:
                print(*(f"{times:6} {file}" for file, times in sorted(entered.items())), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
