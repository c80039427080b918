"""The stages of prove.sh, which run on the GPU machine, and the tables of their results."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stock import copy_stock, site_of  # beside this file

from torchtailor.core.disk import write_output
from torchtailor.trees.artifact.launch import Launch, op_suite
from torchtailor.verification.compare import CaseVerdict, compare
from torchtailor.verification.measures import Figure, Measures, measure, ratios
from torchtailor.verification.suite_results import SuiteResults, load_results

OUT = Path(os.environ["OUT"])
WORK = Path(os.environ["WORK"])
# Fastest first.
CUTS = {
    "tailored": ["--gpu", "9.0", "--strip"],
    "wrong": ["--gpu", "8.0"],
    "recompressed": ["--gpu", "9.0", "--strip", "--recompress"],
}
RIGHT = ("tailored", "recompressed")
SUITES = ("stock-a", "stock-b", *RIGHT)
STARTED = time.monotonic()


class Notes:
    """The results of the stages, kept in a file so that a later call continues from them."""

    def __init__(self) -> None:
        self.path = WORK / "prove.json"
        self.found: dict[str, Any] = json.loads(self.path.read_text()) if self.path.is_file() else {}

    def put(self, key: str, value: Any) -> None:
        self.found[key] = value
        for path in (self.path, OUT / "prove.json"):
            write_output(path, json.dumps(self.found, indent=1).encode() + b"\n")


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def launch_of(name: str) -> Launch:
    folder = site_of(WORK / ("stock" if name.startswith("stock") else name))
    if not (folder / "torch").is_dir():
        raise FileNotFoundError(f"{folder} has not been made")
    # What is not copied (NumPy, SymPy) comes from the interpreter's own site-packages, later on the path.
    return Launch(Path(sys.executable), (folder,), whole=False)


def prepare(notes: Notes, options: argparse.Namespace) -> None:
    """Copy torch and NVIDIA's packages, and cut the copy three times."""
    stock = WORK / "stock"
    if not stock.is_dir():
        source = site_packages()
        part = WORK / "stock.part"
        shutil.rmtree(part, ignore_errors=True)
        names = copy_stock(source, part)
        part.rename(stock)
        say(f"stock copied from {source}: {', '.join(names)}: {tree_bytes(stock) / 1e9:.2f} GB")
        again = WORK / "copy"
        began = time.monotonic()
        subprocess.run(["cp", "-r", "--reflink=never", str(stock), str(again)], check=True)
        notes.put("cp_seconds", round(time.monotonic() - began, 2))
        shutil.rmtree(again)
        notes.put("stock", sizes(stock))
        say(f"cp -r of it, warm: {notes.found['cp_seconds']} s")
    for name, targets in CUTS.items():
        if not (WORK / name).is_dir() and (not options.cuts or name in options.cuts):
            guarded(f"tailor {name}", lambda name=name, targets=targets: tailor(notes, name, targets))  # type: ignore[misc]


def tailor(notes: Notes, name: str, targets: list[str]) -> None:
    command = [sys.executable, "-m", "torchtailor", "tailor", str(WORK / "stock"), *targets, "--nvidia"]
    began = time.monotonic()
    # Cut for 8.0 on purpose: our check must reject it before CUDA does.
    ran = subprocess.run([*command, "-o", str(WORK / name)], capture_output=True, text=True, check=False, timeout=420)
    seconds = time.monotonic() - began
    if ran.returncode:
        raise RuntimeError(f"exit {ran.returncode}: {ran.stdout[-1500:]} {ran.stderr[-1500:]}")
    print(ran.stdout[-2500:])
    notes.put(
        name, {**sizes(WORK / name), "seconds": round(seconds, 2), "command": " ".join(["torchtailor", *command[3:]])}
    )
    stock = notes.found["stock"]["bytes"]
    say(f"{name}: {notes.found[name]['bytes'] / stock:.1%} of stock in {seconds:.1f} s")


def wrong(notes: Notes, options: argparse.Namespace) -> None:
    """A torch cut for 8.0 must be rejected by our check, with an explanation, before CUDA fails."""
    from torchtailor.advise.host.detect import detect
    from torchtailor.catalog import load_catalog
    from torchtailor.verification.inspection.torch_code import read_torch
    from torchtailor.verification.ongpu import presence_checks

    catalog = load_catalog()
    host = detect(catalog=catalog)
    notes.put("host", {"gpu": [gpu.name for gpu in host.gpus], "driver": host.driver and host.driver.version})
    found: dict[str, Any] = {}
    for name in ("stock", *RIGHT, "wrong"):
        torch = site_of(WORK / name) / "torch"
        if torch.is_dir():
            began = time.monotonic()
            checks = presence_checks(host, read_torch(torch), catalog)
            found[name] = {"outcome": checks[0].outcome.value, "reason": checks[0].reason}
            found[name]["seconds"] = round(time.monotonic() - began, 2)
            say(f"our check of {name}: {checks[0].outcome.value}: {checks[0].reason}")
    if "wrong" in found:
        ran = launch_of("wrong").run(
            ["-c", "import torch; print((torch.ones(3, device='cuda') + 1).sum())"], timeout=120
        )
        found["wrong"]["cuda_says"] = ran.last_words if ran.code else f"nothing is wrong: {ran.output.strip()}"
        say(f"CUDA on the wrong cut: {found['wrong']['cuda_says']}")
    notes.put("presence", found)


def suite(notes: Notes, options: argparse.Namespace) -> None:
    """Run the op suite on stock twice and on each cut, in parallel: the results do not depend on timing."""
    made = [name for name in SUITES if name.startswith("stock") or (WORK / name).is_dir()]
    say(f"running the suite on {', '.join(made)}")
    with ThreadPoolExecutor(len(made)) as pool, op_suite() as folder:
        list(pool.map(lambda name: guarded(f"suite {name}", lambda: run_suite(folder, name, options)), made))


def run_suite(folder: Path, name: str, options: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = "4"
    launch = launch_of(name)
    out = WORK / f"suite-{name}.json"
    arguments = [folder / "suite.py", "--device", options.device, "--out", out, "--quiet", "--case-timeout", "120"]
    ran = launch.run([*arguments, *(["--only", options.only] if options.only else [])], timeout=420)
    shutil.copy(out, OUT / out.name)
    results = load_results(out)
    where = results.environment.get("torch_file")
    if not str(where).startswith(str(launch.folders[0])):
        raise RuntimeError(f"torch came from {where}, not from {launch.folders[0]}")
    say(f"suite {name}: {ran.errors.strip().splitlines()[-1]} in {results.seconds:.0f} s")


def compared(notes: Notes, options: argparse.Namespace) -> None:
    """Compare each cut with the two runs of stock."""
    stock = [
        load_results(WORK / f"suite-{name}.json") for name in SUITES[:2] if (WORK / f"suite-{name}.json").is_file()
    ]
    notes.put("suite_stock", suite_counts(stock[0]))
    for name in RIGHT:
        path = WORK / f"suite-{name}.json"
        if not path.is_file():
            say(f"no suite of {name} to compare")
            continue
        result = compare(stock, load_results(path))
        by_library = {
            library: {
                verdict.value: sum(case.verdict is verdict for case in result.of(library)) for verdict in CaseVerdict
            }
            for library in result.libraries
        }
        bad = [[case.name, case.verdict.value, case.reason] for case in result.bad]
        close = [case.name for case in result.cases if case.verdict is CaseVerdict.CLOSE]
        notes.put(f"compare_{name}", {"summary": result.summary(), "libraries": by_library, "bad": bad, "close": close})
        say(f"{name} against stock: {result.summary()}")
        for case in result.bad:
            say(f"  {case.verdict.value}: {case.name}: {case.reason}")


def verified(notes: Notes, options: argparse.Namespace) -> None:
    """`torchtailor verify`, as a user would call it: each right cut at all levels, the wrong one statically."""
    made = [name for name in ("wrong", *RIGHT) if (WORK / name).is_dir() and (not options.cuts or name in options.cuts)]
    for name in made:
        guarded(f"verify {name}", lambda name=name: verify(notes, name))  # type: ignore[misc]


def verify(notes: Notes, name: str) -> None:
    pages = ["--junit", f"verify-{name}.xml", "--report", f"verify-{name}.html"] if name == "tailored" else []
    level = ["--level", "static"] if name == "wrong" else []
    stock = ["--against", str(WORK / "stock")]
    arguments = [str(WORK / name), *stock, "--gpu", "9.0", *level, "--json", "--plain", *pages]
    began = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-m", "torchtailor", "verify", *arguments],
        cwd=OUT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=1500,
    )
    write_output(OUT / f"verify-{name}.json", ran.stdout.encode())
    result = json.loads(ran.stdout)
    failed = [f"{check['name']}: {check['reason']}" for check in result["checks"] if check["outcome"] == "fail"]
    notes.put(
        f"verify_{name}",
        {
            "command": " ".join(["torchtailor", "verify", *arguments]),
            "exit": ran.returncode,
            "counts": result["counts"],
            "failed": failed,
            "seconds": round(time.monotonic() - began, 1),
            "level_seconds": result["facts"]["level_seconds"],
        },
    )
    levels = ", ".join(f"{level} {seconds:.0f} s" for level, seconds in result["facts"]["level_seconds"].items())
    say(f"verify {name}: exit {ran.returncode}, {result['counts']} in {time.monotonic() - began:.0f} s ({levels})")
    for line in failed:
        say(f"  FAIL {line}")


def measured(notes: Notes, options: argparse.Namespace) -> None:
    """Start each build cold and warm, and time a few ops, alternating between the builds."""
    os.environ.pop("OMP_NUM_THREADS", None)
    made = [name for name in ("stock", *RIGHT) if (site_of(WORK / name) / "torch").is_dir()]
    # Stock again: the difference between two runs of the same files is the noise of this machine.
    builds = {name: launch_of(name) for name in [*made, "stock again"]}
    found = measure(builds, options.device, cold=options.cold, warm=options.warm, throughput=options.throughput)
    for name, figures in found.items():
        notes.put(f"measure_{name}", as_plain(figures))
    for name in [name for name in found if name != "stock"]:
        for state in ("cold", "warm", "throughput"):
            for ratio in ratios(getattr(found["stock"], state), getattr(found[name], state)):
                say(f"  {name}, {state}: {ratio.name}: {ratio.value:.3f} x stock (noise {ratio.noise:.1%})")


def report(notes: Notes, options: argparse.Namespace) -> None:
    from report import markdown  # beside this file

    write_output(OUT / "results.md", markdown(notes.found).encode())
    say(f"wrote {OUT / 'results.md'}")


STAGES: dict[str, Callable[[Notes, argparse.Namespace], None]] = {
    "prepare": prepare,
    "wrong": wrong,
    "suite": suite,
    "compare": compared,
    "measure": measured,
    "verify": verified,
    "report": report,
}
GROUPS = {
    "stage1": ("prepare", "wrong", "suite", "compare", "report"),
    "stage2": ("prepare", "measure", "report"),
    "stage3": ("prepare", "verify", "report"),
    "all": tuple(STAGES),
}


def guarded(name: str, work: Callable[[], None]) -> bool:
    """Run one stage; report a failure and continue."""
    try:
        work()
    except Exception as error:
        say(f"FAILED {name}: {type(error).__name__}: {error}")
        traceback.print_exc()
        return False
    return True


def site_packages() -> Path:
    """The site-packages with python3's torch, found without importing it."""
    torch = Launch(Path(sys.executable)).torch_folder()
    if torch is None:
        raise FileNotFoundError("python3 has no torch")
    return torch.parent


def tree_bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def sizes(folder: Path) -> dict[str, Any]:
    """Bytes of the tree, of all libraries, and of each; also on disk, since files may be sparse."""
    libraries = [path for path in folder.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    each = {str(path.relative_to(site_of(folder))): path.stat().st_size for path in libraries}
    return {
        "bytes": tree_bytes(folder),
        "library_bytes": sum(path.stat().st_size for path in libraries),
        "library_bytes_on_disk": sum(path.stat().st_blocks * 512 for path in libraries),
        "libraries": dict(sorted(each.items())),
    }


def suite_counts(results: SuiteResults) -> dict[str, Any]:
    counts = {word: results.count(word) for word in ("pass", "fail", "not-applicable")}
    failed = [[case.name, case.reason] for case in results.cases if case.outcome == "fail"]
    skipped = [[case.name, case.reason] for case in results.cases if not case.applies]
    return {**counts, "failed": failed, "skipped": skipped, "environment": dict(results.environment)}


def as_plain(measures: Measures) -> dict[str, Any]:
    def figures(group: Mapping[str, Figure]) -> dict[str, list[float]]:
        return {name: list(figure.values) for name, figure in group.items()}

    return {
        "cold": figures(measures.cold),
        "warm": figures(measures.warm),
        "throughput": figures(measures.throughput),
        "caches": measures.caches,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="prove.sh")
    parser.add_argument("stages", nargs="*", default=["all"], help=", ".join([*GROUPS, *STAGES]))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the script out")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--cuts", nargs="*", help="make only these cuts")
    parser.add_argument("--cold", type=int, default=3)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--throughput", type=int, default=3)
    options = parser.parse_args()
    stages = list(dict.fromkeys(stage for word in options.stages for stage in GROUPS.get(word, (word,))))
    if unknown := [stage for stage in stages if stage not in STAGES]:
        parser.error(f"there is no stage {unknown[0]}")
    notes = Notes()
    results = [guarded(stage, lambda stage=stage: STAGES[stage](notes, options)) for stage in stages]  # type: ignore[misc]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
