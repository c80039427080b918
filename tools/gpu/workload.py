"""Workload mode on a GPU machine: record a program, cut to it, and run it and others on the cut.

    PYTHONPATH=src:.carry/py312 WORK=/scratch/workload OUT=out python3 tools/gpu/workload.py

Steps may be named: stock, arch, record, cut, run, nopack, unopened, largest, suite, speed, packed_size;
pages and image, which need stock and record; pages_run, pages_load, pages_suite, ready, which need what they made;
suite_nopack, miss, late, which need stock, record and cut;
graphs, eager, for what was made of cut and split; split, split_run, split_suite, split_nopack, which need stock (and
split).
PROGRAMS names the programs to record, and TREES the trees to make, where not all are wanted.
Each takes less than four minutes; traces and results of the op suite stay in WORK, so that later steps find them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from rewheel import rewheel_all  # beside this file
from stock import copy_stock, site_of  # beside this file

from torchtailor.oci.compression import LayerCompression
from torchtailor.workload.pack import PACK_FOLDER

WORK, OUT = Path(os.environ["WORK"]), Path(os.environ["OUT"])
PROGRAMS = Path(__file__).parent / "programs"
NAMES = ("decoder", "cnn", "unet")
# The trees of `pages`: which pages go, how packs are kept, and whether what was never opened is left out.
PAGED = {
    "paged-all": ("all", "none", True),
    "paged-zstd": ("all", "zstd", True),
    "paged-code": ("code", "none", True),
    "paged-whole": ("all", "none", False),
}
IMAGED = "paged-image"  # the tree that `image` makes
GPU = ["--gpu", "9.0", "--nvidia", "--strip"]
TAR_LEVEL = 12  # of zstd
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - STARTED:6.1f} s] {text}", flush=True)


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def used(folder: Path, pattern: str = "*") -> int:
    """Bytes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in files_of(folder) if path.match(pattern))


def is_pack(path: Path) -> bool:
    """Whether a file is a pack of code, one of Python modules, or was never opened and is led to by a link; the hook,
    which lies beside them, is none."""
    beside = PACK_FOLDER in path.parts and ("files" in path.parts or path.suffix == ".zip")
    return beside or path.suffix == ".ttpack"


def tar_size(folder: Path, files: list[Path]) -> int:
    """Bytes of these files in one tar that is compressed as a whole."""
    import zstandard

    archive = WORK / "files.tar.zst"
    packer = zstandard.ZstdCompressor(level=TAR_LEVEL, threads=-1)
    with archive.open("wb") as out, packer.stream_writer(out) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for path in files:
            tar.add(path, path.relative_to(folder))
    size = archive.stat().st_size
    archive.unlink()
    return size


def torchtailor(*words: str | Path, check: bool = True, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "torchtailor", *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{words}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done


def made(tree: str) -> Path:
    """The site-packages of a tree; without it, Python would take the installed torch and prove nothing."""
    if not (site := site_of(WORK / tree)).is_dir():
        raise RuntimeError(f"{WORK / tree} was not made: run its step first")
    return site


def interpreter(tree: str) -> str:
    """The Python of a tree, with its site-packages, so that `.pth` files are run, and after them this machine's."""
    site, python = made(tree), WORK / tree / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", WORK / tree], check=True)
        (site / "zz-machine.pth").write_text(f"{site_packages()}\n")
    return str(python)


def program(name: str, folder: str, **variables: str) -> tuple[str, str, float]:
    """The result line, what else was said, and the seconds until the first result."""
    command, environment = [interpreter(folder), str(PROGRAMS / f"{name}.py")], {**os.environ, **variables}
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    match = re.search(r"result (\w+) first ([\d.]+)", done.stdout)
    return (match[1] if match else f"exit {done.returncode}"), done.stderr, time.monotonic() - began


def site_packages() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec and spec.origin
    return Path(spec.origin).parent.parent


def stock() -> None:
    if not (WORK / "stock").is_dir():
        copy_stock(site_packages(), WORK / "stock")
    say(f"stock: {used(WORK / 'stock') / 1e9:.3f} GB")


def arch() -> None:
    torchtailor("tailor", WORK / "stock", *GPU, "-o", WORK / "arch")
    say(f"arch cut: {used(WORK / 'arch') / 1e9:.3f} GB")


def record() -> None:
    for name in os.environ.get("PROGRAMS", " ".join(NAMES)).split():
        began = time.monotonic()
        done = torchtailor(
            "record",
            "-o",
            WORK / f"{name}.trace",
            "--",
            sys.executable,
            PROGRAMS / f"{name}.py",
            site=site_of(WORK / "stock"),
        )
        shutil.copy(WORK / f"{name}.trace", OUT)
        say(f"recorded {name} in {time.monotonic() - began:.1f} s")
        print("\n".join(done.stdout.splitlines()[-14:]), done.stderr[-600:])


def cut() -> None:
    shutil.rmtree(WORK / "decoder", ignore_errors=True)
    began = time.monotonic()
    done = torchtailor("tailor", WORK / "stock", *GPU, "--workload", WORK / "decoder.trace", "-o", WORK / "decoder")
    packs = used(WORK / "decoder", "*.ttpack")
    say(
        f"cut for the decoder in {time.monotonic() - began:.1f} s: {(used(WORK / 'decoder') - packs) / 1e9:.3f} GB "
        f"and packs of {packs / 1e6:.0f} MB"
    )
    print(done.stdout[-3500:], done.stderr[-1500:])
    kept = 0
    for manifest in (WORK / "decoder").rglob("torchtailor.json"):
        for library in json.loads(manifest.read_text())["libraries"]:
            kept += sum(row["stored"] for row in library.get("kept", {}).values())
            rows = {name: row["stored"] for name, row in library.get("kept", {}).items()}
            if sum(rows.values()) > 1 << 18:
                print(f"  stays in {library['path'].split('/')[-1]}: {rows}")
    say(f"GPU code left in the libraries: {kept / 1e6:.1f} MB")


def run() -> None:
    for name in NAMES:
        before, _, _ = program(name, "stock")
        again, _, _ = program(name, "stock")
        after, said, seconds = program(name, "decoder", TORCHTAILOR_MISSES=str(OUT / f"{name}.misses.tsv"))
        verdict = "identical" if before == after else "same as not" if before != again else "DIFFERENT"
        say(f"{name}: stock {before} {again}, cut {after}: {verdict} ({seconds:.1f} s)")
        print(said[-1500:])


def nopack() -> None:
    with without_packs("decoder"):
        for name in NAMES:
            result, said, _ = program(name, "decoder")
            lines = [line for line in said.splitlines() if line.startswith("torchtailor:")]
            last = said.strip().splitlines()[-1:]
            say(f"{name} without packs: {result}; {len(lines)} sentences; {lines[:1]} ... {last}")


def unopened() -> None:
    shutil.rmtree(WORK / "small", ignore_errors=True)
    trace = ["--workload", str(WORK / "decoder.trace"), "--drop-unopened"]
    torchtailor("tailor", WORK / "stock", *GPU, *trace, "-o", WORK / "small")
    packs = used(WORK / "small", "*.ttpack")
    left = (used(WORK / "small") - packs) / 1e9
    say(f"without what was never opened: {left:.3f} GB and packs of {packs / 1e6:.0f} MB")
    say(f"decoder on it: {program('decoder', 'small')[0]}, stock {program('decoder', 'stock')[0]}")


def largest() -> None:
    """What is left where nothing is left that was not opened: the largest files, and all by their ending."""
    files = [path for path in (WORK / "small").rglob("*") if path.is_file() and not path.is_symlink()]
    sizes = {path: path.stat().st_blocks * 512 for path in files if path.suffix != ".ttpack"}
    endings = Counter[str]()
    for path, size in sizes.items():
        endings[".so" if ".so" in path.name else path.suffix] += size
    say(f"left, by ending: {[(ending, f'{size / 1e6:.1f} MB') for ending, size in endings.most_common(12)]}")
    for path in sorted(sizes, key=sizes.__getitem__, reverse=True)[:45]:
        print(f"  {sizes[path] / 1e6:8.1f} MB  {path.relative_to(WORK / 'small')}")


def packed_size() -> None:
    """What squashfs would make of it: zstd 15 in blocks of 128 KiB, files one by one."""
    import zstandard

    def blocks(path: Path) -> int:
        packer, total = zstandard.ZstdCompressor(level=15), 0
        with path.open("rb") as file:
            while block := file.read(128 << 10):
                total += min(len(packer.compress(block)), len(block))
        return total

    for name in ("decoder", "small"):
        files = [p for p in (WORK / name).rglob("*") if p.is_file() and not p.is_symlink() and p.suffix != ".ttpack"]
        with ThreadPoolExecutor(16) as pool:
            say(f"{name} packed as squashfs does, without packs: {sum(pool.map(blocks, files)) / 1e9:.3f} GB")


def pages() -> None:
    """Pages of the host code as well: both forms, with packs as they are and compressed."""
    # WORDS: other options of tailor, such as "--gap 8192"
    asked = os.environ.get("TREES", " ".join(PAGED)).split()
    for tree, (which, packs, leave_out) in ((tree, PAGED[tree]) for tree in asked):
        shutil.rmtree(WORK / tree, ignore_errors=True)
        words = ["--workload", str(WORK / "decoder.trace"), "--host-pages", which, "--relr"]
        words += ["--drop-unopened"] if leave_out else []
        words += os.environ.get("WORDS", "").split()
        done = torchtailor("tailor", WORK / "stock", *GPU, *words, "--pack-compress", packs, "-o", WORK / tree)
        files = files_of(WORK / tree)
        hot = [path for path in files if not is_pack(path)]
        links = [path for path in (WORK / tree).rglob("*") if path.is_symlink()]
        modules = sum(path.stat().st_size for path in files if is_pack(path) and path.suffix == ".zip")
        size = {path: path.stat().st_blocks * 512 for path in files}
        disk, packed = (sum(size[path] for path in files if is_pack(path) is pack) / 1e6 for pack in (False, True))
        say(
            f"{tree}: {disk:.0f} MB and packs of {packed:.0f} MB, {modules / 1e6:.0f} of them of modules; "
            f"without packs as zstd -{TAR_LEVEL} tar {tar_size(WORK / tree, [*hot, *links]) / 1e6:.0f} MB"
        )
        for path in sorted(hot, key=size.__getitem__, reverse=True)[:40]:
            print(f"  {size[path] / 1e6:8.1f} MB  {path.relative_to(WORK / tree)}")
        print(done.stdout[-700:], done.stderr[-500:])


def image() -> None:
    """The same cut of an image that holds stock; its layers are unpacked one after the other, as a runtime does."""
    sys.path.append(str(Path(__file__).parents[1]))
    from large_image import describe_image, pack_layer

    layout, new, tree = WORK / "layout", WORK / "layout-cut", WORK / IMAGED
    for folder in (layout, new, tree):
        shutil.rmtree(folder, ignore_errors=True)
    (blobs := layout / "blobs" / "sha256").mkdir(parents=True)
    describe_image(layout, "stock", [pack_layer("stock", WORK / "stock", blobs, LayerCompression.NONE)])
    words = ["--workload", str(WORK / "decoder.trace"), "--host-pages", "all", "--drop-unopened"]
    done = torchtailor("image", f"oci:{layout}:stock", f"oci:{new}:cut", *GPU, *words, "--compress", "zstd")
    print(done.stdout[-700:], done.stderr[-500:])

    def blob(descriptor: dict[str, str]) -> Path:
        return new / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")

    (entry,) = json.loads((new / "index.json").read_bytes())["manifests"]
    layers = json.loads(blob(entry).read_bytes())["layers"]
    for layer in layers:
        unpack_layer(blob(layer), tree)
    say(f"{IMAGED}: layers of {[round(layer['size'] / 1e6) for layer in layers]} MB")


def unpack_layer(file: Path, folder: Path) -> None:
    import zstandard

    with (
        file.open("rb") as packed,
        zstandard.ZstdDecompressor().stream_reader(packed) as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            if Path(member.name).name.startswith(".wh."):
                raise ValueError(f"{member.name}: no whiteout was expected in a cut of one layer")
            tar.extract(member, folder, filter="tar")


def pages_run() -> None:
    """Programs on the trees of `pages`: results, mappings, and without packs a sentence."""
    count = "import torch; torch.ones(9, device='cuda').sum(); print(sum(1 for _ in open('/proc/self/maps')))"
    made_trees = [tree for tree in (*PAGED, IMAGED) if (WORK / tree).is_dir()]
    maps = {tree: python(count, tree).stdout.strip() for tree in ("stock", *made_trees)}
    say(f"mappings: {maps}")
    for name in NAMES:
        before = [program(name, "stock") for _ in range(2)]
        say(f"{name}: stock {[one[0] for one in before]} in {before[0][2]:.1f} s")
        for tree in made_trees:
            result, said, seconds = program(name, tree, TORCHTAILOR_MISSES="none")
            say(f"  {tree}: {result} in {seconds:.1f} s")
            if result not in [one[0] for one in before]:
                print(said[-2000:])
    for tree in made_trees:
        with without_packs(tree):
            result, said, _ = program("cnn", tree)
            lines = [line for line in said.splitlines() if line.startswith("torchtailor:")]
            say(f"cnn on {tree} without packs: {result}; {lines[:1]}")


def ready() -> None:
    """Seconds from the start of a process to the decoder's first token, with nothing in the page cache: stock and the
    trees of `pages`, in turn."""
    trees = [tree for tree in ("stock", *PAGED) if (WORK / tree).is_dir()]
    results = {first_token(tree)[0] for tree in trees}  # Python compiles what has no bytecode
    cold: dict[str, list[tuple[float, float]]] = {tree: [] for tree in trees}
    for _ in range(5):
        for tree, row in cold.items():
            how = empty_page_cache(tree)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
            result, seconds = first_token(tree)
            results.add(result)
            row.append((seconds, (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before) * 512 / 1e6))
    for tree, row in cold.items():
        seconds, read = (statistics.median(column) for column in zip(*row, strict=True))
        every, warm = " ".join(f"{one:.2f}" for one, _ in row), [first_token(tree)[1] for _ in range(3)]
        say(f"{tree}: first token after {seconds:.2f} s ({every}), {read:.0f} MB read; warm {min(warm):.2f} s")
    say(f"page cache emptied by {how}; results {'identical' if len(results) == 1 else f'DIFFERENT: {results}'}")


def first_token(tree: str) -> tuple[str, float]:
    """The decoder's result, and the seconds from its start to its first token."""
    command, environment = [interpreter(tree), str(PROGRAMS / "decoder.py")], {**os.environ, "BEGAN": repr(time.time())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    match = re.search(r"result (\w+) first ([\d.]+)", done.stdout)
    if not match:
        raise RuntimeError(f"{tree}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return match[1], float(match[2])


def empty_page_cache(tree: str) -> str:
    os.sync()
    with suppress(OSError):  # in a container
        Path("/proc/sys/vm/drop_caches").write_text("3")
        return "drop_caches"
    for path in (path for folder in (WORK / tree, site_packages()) for path in files_of(folder)):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return "posix_fadvise"


LOAD = """
import ctypes, sys, time
loaded, began = 0, time.process_time()
for path in sys.stdin.read().split():
    try:
        ctypes.CDLL(sys.argv[1] + "/" + path)
        loaded += 1
    except OSError as error:
        print(error, file=sys.stderr)
seconds = time.process_time() - began
print(seconds, loaded, sum(1 for _ in open("/proc/self/maps")))
"""


def pages_load() -> None:
    """Processor seconds and mappings of loading every library that the decoder opens, each tree five times in turn."""
    made_trees = [tree for tree in PAGED if (WORK / tree).is_dir()]
    left = made(next(tree for tree in made_trees if PAGED[tree][2]))
    libraries = [
        path.relative_to(left)
        for path in sorted(files_of(left))
        if ".so" in path.name and path.parent.name == "lib" and PACK_FOLDER not in path.parts
        if path.stat().st_size > 1 << 16  # others were left out, and say so when they are loaded
    ]
    rows: dict[str, list[list[str]]] = {tree: [] for tree in ("stock", *made_trees)}
    for _ in range(5):
        for tree, row in rows.items():
            command = [sys.executable, "-c", LOAD, str(made(tree))]
            names = "\n".join(map(str, libraries))
            done = subprocess.run(command, input=names, capture_output=True, text=True, check=False)
            row.append(done.stdout.split())
            if len(row) == 1:
                print(done.stderr[-1000:])
    for tree, row in rows.items():
        milliseconds = statistics.median(float(one[0]) * 1000 for one in row)
        say(f"{tree}: {row[0][1]} of {len(libraries)} libraries in {milliseconds:.0f} ms, {row[0][2]} mappings")


def pages_suite() -> None:
    compare_suites(*os.environ.get("TREES", "paged-whole").split())


def speed() -> None:
    for name in ("stock", "decoder"):
        program("decoder", name)
    times: dict[str, list[float]] = {"stock": [], "decoder": []}
    for _ in range(5):
        for name, row in times.items():
            row.append(program("decoder", name)[2])
    ratio = statistics.median(times["decoder"]) / statistics.median(times["stock"])
    say(f"decoder from start to end: {times}; ratio of medians {ratio:.3f}")


def run_suite(folder: Path, name: str, tree: str, **variables: str) -> str:
    """Run the op suite on a tree; what it said on stderr."""
    arguments = ["--device", "cuda", "--out", str(WORK / f"suite-{name}.json"), "--quiet", "--case-timeout", "120"]
    environment = {**os.environ, "OMP_NUM_THREADS": "4", **variables}
    command = [interpreter(tree), str(folder / "suite.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=420)
    say(f"suite {name}: exit {done.returncode}, {done.stderr.strip().splitlines()[-1:]}")
    return done.stderr


def compare_suites(*trees: str) -> None:
    """The op suite on stock, twice, unless that was done, and on these trees; all at the same time."""
    from torchtailor.trees.artifact.launch import op_suite
    from torchtailor.verification.compare import compare
    from torchtailor.verification.suite_results import load_results

    stocks = ("stock-a", "stock-b")
    wanted = {name: "stock" for name in stocks if not (WORK / f"suite-{name}.json").is_file()}
    wanted |= {name: name for name in trees}
    for tree in set(wanted.values()):
        interpreter(tree)
    with op_suite() as folder, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda one: run_suite(folder, *one, TORCHTAILOR_QUIET="1"), wanted.items()))
    before = [load_results(WORK / f"suite-{name}.json") for name in stocks]
    for name in trees:
        results = load_results(WORK / f"suite-{name}.json")
        compared = compare(before, results)
        passed = f"{results.count('pass')} of {len(results.cases)} passed, {len(results.crashes)} crashes"
        say(f"op suite on {name} against stock: {passed}; {compared.summary()}")
        for case in compared.bad:
            say(f"  {case.verdict.value}: {case.name}: {case.reason}")


def suite() -> None:
    compare_suites("decoder")


@contextmanager
def without_packs(tree: str) -> Iterator[None]:
    packs = list(site_of(WORK / tree).rglob("*.ttpack"))
    for path in packs:
        path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        for path in packs:
            path.with_suffix(".away").rename(path)


PROBE = """import torch; (torch.ones(64, device="cuda") + 1).sum().item()"""


def suite_nopack() -> None:
    """The op suite without packs: what fails must fail by CUDA's error after our sentence, and nothing may crash."""
    from torchtailor.trees.artifact.launch import op_suite
    from torchtailor.verification.suite_results import load_results

    # Also what the suite itself needs to tell whether a device works.
    words: list[str | Path] = ["record", "-o", WORK / "probe.trace", "--", sys.executable, "-c", PROBE]
    torchtailor(*words, site=site_of(WORK / "stock"))
    shutil.rmtree(WORK / "probed", ignore_errors=True)
    traces: list[str | Path] = ["--workload", WORK / "decoder.trace", "--workload", WORK / "probe.trace"]
    torchtailor("tailor", WORK / "stock", *GPU, *traces, "-o", WORK / "probed")
    with op_suite() as folder, without_packs("probed"):
        said = run_suite(folder, "nopack", "probed")
    results = load_results(WORK / "suite-nopack.json")
    (OUT / "suite-nopack.stderr").write_text(said)
    sentences = [line for line in said.splitlines() if line.startswith("torchtailor:")]
    libraries = Counter(match[1] for line in sentences if (match := re.search(r"/([^/ ]+\.so[^/ ]*) needs GPU", line)))
    failed = [case for case in results.cases if case.outcome == "fail"]
    reasons = Counter(re.sub(r"0x[0-9a-f]+|\d+", "N", case.reason)[:110] for case in failed)
    say(
        f"op suite without packs: {results.count('pass')} pass, {len(failed)} fail, "
        f"{len(results.crashes)} crashes {list(results.crashes)[:5]}; {len(sentences)} sentences, of {dict(libraries)}"
    )
    for reason, number in reasons.most_common(20):
        print(f"  {number} x {reason}")


MISS = """
import json, sys, time
import torch
x = torch.randn(64, 64, device="cuda"); y = (x @ x).sum().item(); torch.cuda.synchronize()
ops = {
    "erfinv": lambda: torch.erfinv(x), "cumsum": lambda: torch.cumsum(x, 0), "sort": lambda: torch.sort(x, 0),
    "topk": lambda: torch.topk(x, 5), "lgamma": lambda: torch.lgamma(x.abs()), "unique": lambda: torch.unique(x),
    "gelu": lambda: torch.nn.functional.gelu(x), "fft": lambda: torch.fft.fft(x), "det": lambda: torch.linalg.det(x),
    "conv": lambda: torch.nn.functional.conv2d(x[None, None], torch.ones(1, 1, 3, 3, device="cuda")),
}
times = {}
for name, op in ops.items():
    began = time.perf_counter(); op(); torch.cuda.synchronize()
    times[name] = 1000 * (time.perf_counter() - began)
print("times", json.dumps(times))
"""


def miss() -> None:
    """The first call of operations that were not recorded, on stock and on the cut, five processes each in turn."""
    times: dict[str, dict[str, list[float]]] = {"stock": {}, "decoder": {}}
    for _ in range(5):
        for tree, rows in times.items():
            done = python(MISS, tree, TORCHTAILOR_QUIET="1")
            for name, value in json.loads(done.stdout.partition("times")[2]).items():
                rows.setdefault(name, []).append(value)
    for name, stock_times in times["stock"].items():
        before, after = statistics.median(stock_times), statistics.median(times["decoder"][name])
        say(f"first {name}: stock {before:.1f} ms, from packs {after:.1f} ms: {after - before:+.1f} ms")


def python(code: str, tree: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(
        [interpreter(tree), "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=200
    )


GRAPH = """
import hashlib, sys
import torch
torch.manual_seed(0)
x = torch.randn(256, 256, device="cuda")
def work():
    y = torch.erfinv(x.tanh() * 0.9) + torch.cumsum(x, 1) + torch.nn.functional.gelu(x) @ x
    return torch.softmax(torch.sort(y, 1)[0], 1) + torch.lgamma(x.abs() + 1)
if sys.argv[1:] == ["warm"]:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2): work()
    torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        out = work()
    for _ in range(3): graph.replay()
    torch.cuda.synchronize()
    print("result", hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest()[:16])
except Exception as error:
    print("result", type(error).__name__, str(error).splitlines()[0][:120])
"""


def made_trees() -> list[str]:
    """Of the cut and the split tree those that were made."""
    return [name for name in ("decoder", "split") if (WORK / name).is_dir()]


def graphs() -> None:
    """Capture a CUDA graph of kernels that were not recorded, warm and cold: as on stock."""
    file = WORK / "graph.py"
    file.write_text(GRAPH)
    for how in ("warm", "cold"):
        found = {}
        for tree in ("stock", *made_trees()):
            environment = {**os.environ, "TORCHTAILOR_QUIET": "1"}
            command = [interpreter(tree), str(file), how]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            found[tree] = done.stdout.partition("result ")[2].strip() or f"exit {done.returncode} {done.stderr[-300:]}"
        say(f"CUDA graph, {how}: {'the same' if len(set(found.values())) == 1 else 'DIFFERENT'}: {found}")


def eager() -> None:
    """All containers are loaded when their library is: CUDA_MODULE_LOADING=EAGER."""
    for tree in made_trees():
        for name in NAMES:
            before = program(name, "stock", CUDA_MODULE_LOADING="EAGER")
            after = program(name, tree, CUDA_MODULE_LOADING="EAGER", TORCHTAILOR_QUIET="1")
            verdict = "identical" if before[0] == after[0] else "DIFFERENT"
            lines = [line for line in after[1].splitlines() if line.startswith("torchtailor:")]
            say(
                f"eager, {tree}, {name}: stock {before[0]} ({before[2]:.1f} s), cut {after[0]} ({after[2]:.1f} s): "
                f"{verdict}; {len(lines)} sentences {lines[:2]}"
            )


LATE = """
import ctypes, sys
import torch
torch.ones(1, device="cuda")
ctypes.CDLL(sys.argv[1])
torch.erfinv(torch.rand(8, device="cuda")); torch.fft.fft(torch.rand(64, device="cuda")); torch.cuda.synchronize()
print("done")
"""


def late() -> None:
    """The hook comes after the libraries: what it still sees of stock ones."""
    from torchtailor.code.binary.elf_headers import ElfMachine
    from torchtailor.workload.hook import HookKind, hook_library

    file = WORK / "late.py"
    file.write_text(LATE)
    for kind in HookKind:
        folder = WORK / f"late-{kind.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        hook = hook_library(ElfMachine.X86_64, kind)
        environment = {
            **os.environ,
            "PYTHONPATH": str(site_of(WORK / "stock")),
            "TORCHTAILOR_RECORD": str(folder),
        }
        done = subprocess.run(
            [sys.executable, str(file), str(hook)], capture_output=True, text=True, env=environment, check=False
        )
        lines = [line.split("\t") for path in folder.rglob("*.tsv") for line in path.read_text().splitlines()]
        loads = Counter(line[1].rsplit("/", 1)[-1] for line in lines if line and line[0] == "load")
        say(
            f"late, {kind.value}: {done.stdout.strip() or done.returncode}; load lines {dict(loads)}; "
            f"{done.stderr.strip()[-300:]}"
        )


def unpack(wheel: Path, site: Path) -> None:
    """Unpack a wheel as installers do: programs stay executable."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            (site / member.filename).parent.mkdir(parents=True, exist_ok=True)  # by several threads; zipfile would fail
            place = Path(archive.extract(member, site))
            if member.external_attr >> 16 & 0o111:
                place.chmod(0o755)


def split() -> None:
    """Wheels of the installed distributions, split for 9.0 and installed: wheels without GPU code and packs."""
    for name in ("wheels", "splitwheels", "split"):
        shutil.rmtree(WORK / name, ignore_errors=True)
    wheels = rewheel_all(site_of(WORK / "stock"), WORK / "wheels")
    say(f"{len(wheels)} wheels made again")
    done = torchtailor("tailor", *wheels, "--gpu", "9.0", "--nvidia", "--split", "-o", WORK / "splitwheels")
    say("split")
    print(done.stdout[-2500:], done.stderr[-1500:])
    site = site_of(WORK / "split")
    site.mkdir(parents=True)
    made = sorted((WORK / "splitwheels").glob("*.whl"))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda wheel: unpack(wheel, site), made))
    packs = sum(wheel.stat().st_size for wheel in made if "_gpu_sm90-" in wheel.name)
    hosts = sum(wheel.stat().st_size for wheel in made if "_gpu_sm90-" not in wheel.name)
    say(f"split wheels: {len(made)}, without GPU code {hosts / 1e9:.3f} GB, packs {packs / 1e9:.3f} GB")
    packs = used(WORK / "split", "*.ttpack")
    say(f"installed: {(used(WORK / 'split') - packs) / 1e9:.3f} GB and packs of {packs / 1e9:.3f} GB")


def split_run() -> None:
    for name in NAMES:
        before, _, _ = program(name, "stock")
        after, said, seconds = program(name, "split")
        lines = [line for line in said.splitlines() if line.startswith("torchtailor:")]
        verdict = "identical" if before == after else "DIFFERENT"
        say(f"split, {name}: stock {before}, split {after}: {verdict} ({seconds:.1f} s); said {lines[:2]}")


def split_suite() -> None:
    compare_suites("split")


def split_nopack() -> None:
    """Without the wheels of packs: one sentence for each package that is needed."""
    with without_packs("split"):
        for name in NAMES:
            result, said, _ = program(name, "split")
            lines = [line for line in said.splitlines() if line.startswith("torchtailor:")]
            say(f"split without packs, {name}: {result}; {len(lines)} sentences")
            print("\n".join(lines[:4]), said.strip().splitlines()[-1:])


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    for step in sys.argv[1:] or ["stock", "arch", "record", "cut", "run", "nopack", "unopened", "speed"]:
        try:
            globals()[step]()
        except Exception as error:  # the next step may still tell something
            say(f"{step} failed: {error!r:.3000}")
