"""The graph of builds from source: what is shared, what waits for what, and shards that are the same everywhere."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.building.choose import choose
from torchtailor.building.farm import compile as compiling
from torchtailor.building.farm.compile import CompileBench, pack_tree
from torchtailor.building.farm.jobs import own_rows
from torchtailor.building.farm.store import open_farm_store
from torchtailor.building.graph.drive import drive
from torchtailor.building.graph.policy import FarmWorker
from torchtailor.building.graph.simulate import SimulatedEngine, simulate
from torchtailor.building.source.ccache import remote_storage
from torchtailor.building.source.folders import Folders
from torchtailor.building.source.graph import PlannedSource, SourceCosts, source_graph, source_job
from torchtailor.building.source.jobs import CompilePart, CompileShard, FetchSource, LinkSource, PackSource
from torchtailor.building.source.options import SourceOptions, SourceRequest
from torchtailor.building.source.plan import plan_matrix
from torchtailor.building.source.shards import of_part, part_of, shards
from torchtailor.building.source.tables import load_tables
from torchtailor.building.source.tree import SourceOrigin, TorchSource, fetch
from torchtailor.catalog import SOURCE, Catalog, load_catalog
from torchtailor.core.errors import BuildFailedError, EnvironmentProblem, UsageError
from torchtailor.fetch.cache import Cache

TREE = FetchSource("git", "https://example.org/pytorch.git", "v2.10.0", "ab" * 20)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog(Path("/"))


def planned(
    catalog: Catalog,
    *names: str,
    release: str = "cuda-13_0",
    python: str | None = None,
    wanted: int | None = None,
    rows: str = "",
    tree: FetchSource = TREE,
) -> PlannedSource:
    found = choose(catalog, names, release=release, method=SOURCE, python=python)
    matrix = plan_matrix(catalog, load_tables(), [choice.variant for choice in found])
    costs = SourceCosts.of(load_tables().cost)
    return source_graph(
        matrix.groups,
        tree,
        SourceOptions(),
        costs,
        toolchain="gcc 14",
        objects="redis://x",
        rows=rows,
        wanted_shards=wanted,
    )


def test_device_files_are_compiled_once_for_all_instruction_sets(catalog: Catalog) -> None:
    plan = planned(catalog, "sm{80,90}-avx2", "sm{80,90}-avx512", wanted=2)
    jobs = [job.job for job in plan.graph.jobs.values()]
    shard_jobs = [job for job in jobs if isinstance(job, CompileShard)]
    device = [job for job in shard_jobs if job.part is CompilePart.DEVICE]
    host = [job for job in shard_jobs if job.part is CompilePart.HOST]
    assert (len(device), len(host)) == (2, 4)
    links = [job for job in plan.graph.jobs.values() if isinstance(job.job, LinkSource)]
    assert len(links) == 2
    for link in links:  # each waits for its own host files, and for all device files
        assert len(link.needs) == 1 + 2 + 2
    assert {job.spec.gpus for job in shard_jobs} == {("8.0", "9.0")}
    packs = [job for job in jobs if isinstance(job, PackSource)]
    assert sorted((job.spec.variant.rpartition("-")[2], job.gpu) for job in packs) == [
        ("avx2", "8.0"),
        ("avx2", "9.0"),
        ("avx512", "8.0"),
        ("avx512", "9.0"),
    ]
    assert len(plan.results) == 4 and all("-sm80-" in name or "-sm90-" in name for name in plan.results)


def test_host_files_are_compiled_once_for_all_toolkits(catalog: Catalog) -> None:
    """With CUDA or without, libtorch_cpu is the same; another Python compiles less than another toolkit."""
    plan = planned(catalog, "cpu-avx2", "*cuda13_0-sm{80,90}-avx2", "*cuda13_2-sm90-avx2", release="2.14", wanted=2)
    jobs = {job.name: job for job in plan.graph.jobs.values() if isinstance(job.job, CompileShard)}
    parts: dict[str, list[CompilePart]] = {}
    for job in jobs.values():
        assert isinstance(job.job, CompileShard)
        parts.setdefault(job.job.spec.variant, []).append(job.job.part)
    cpu, first, second = CompilePart.HOST, CompilePart.TOOLKIT, CompilePart.DEVICE
    assert sorted(map(sorted_parts, parts.values())) == sorted(
        [sorted_parts([cpu] * 2), sorted_parts([first, second] * 2), sorted_parts([first, second] * 2)]
    )
    lead = {name for name, job in jobs.items() if job.job.part is CompilePart.HOST}  # type: ignore[attr-defined]
    for job in jobs.values():
        if job.job.part is CompilePart.TOOLKIT:  # type: ignore[attr-defined]
            assert lead < set(job.needs)
    for job in plan.graph.jobs.values():
        if isinstance(job.job, LinkSource):
            assert lead < set(job.needs)

    alone = planned(catalog, "*cuda13_0-sm90-avx2", release="2.14", wanted=2)
    kinds = [job.job.part for job in alone.graph.jobs.values() if isinstance(job.job, CompileShard)]
    assert kinds.count(CompilePart.HOST) == 2 and CompilePart.TOOLKIT not in kinds


def sorted_parts(parts: Sequence[CompilePart]) -> list[str]:
    return sorted(part.value for part in parts)


def test_how_many_shards_there_are_does_not_change_what_is_linked(catalog: Catalog) -> None:
    few, many = (planned(catalog, "sm90-avx2", wanted=count) for count in (2, 9))
    assert few.results == many.results
    assert len(many.graph.jobs) == len(few.graph.jobs) + 2 * 7


def test_rows_of_the_user_decide_what_is_compiled(catalog: Catalog, tmp_path: Path) -> None:
    def rows(text: str) -> str:
        path = tmp_path / "torchtailor.toml"
        path.write_text(text)
        return own_rows(replace(catalog, user_file=path))

    first = rows('[[isa]]\nname = "mine"\ncompile_flags = ["-mavx2"]\n')
    other = rows('[[isa]]\nname = "mine"\ncompile_flags = ["-mavx512f"]\n')
    same = rows('[farm.x]\ncluster = "slurm"\n[[isa]]\ncompile_flags = ["-mavx2"] # flags\nname = "mine"\n')
    assert first == same != other
    assert rows('[farm.x]\ncluster = "slurm"\n') == own_rows(catalog) == ""
    one, two = (planned(catalog, "sm90-avx2", wanted=1, rows=digest) for digest in (first, other))
    assert one.graph.makers.keys() & two.graph.makers.keys() == {TREE.key}


def test_a_version_between_releases_keeps_its_commit(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers get the tree without its history."""
    folder = tmp_path / "pytorch"
    folder.mkdir()
    for name, text in {"setup.py": "", "CMakeLists.txt": "", "version.txt": "2.13.0a0\n"}.items():
        (folder / name).write_text(text)
    git = ("git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org")
    for line in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "x")):
        subprocess.run((*git, *line), check=True)
    source = TorchSource(SourceOrigin.FOLDER, str(folder))
    version = fetch(source, Folders.default(tmp_path / "work")).version
    assert "+git" in version

    tree = source_job(source)
    jobs = planned(catalog, "cpu-avx2", wanted=1, tree=tree).graph.jobs.values()
    (link,) = [job.job for job in jobs if isinstance(job.job, LinkSource)]
    found: list[str] = []

    class Builder:
        ccache = "ccache"

        def __init__(self, _: Catalog, request: SourceRequest, **__: object) -> None:
            self.source = TorchSource.parse(request.options.source, request.variant)
            self.folders = Folders.default(request.options.work)

        def prepare(self) -> None:
            found.append(fetch(self.source, self.folders).version)
            raise BuildFailedError("That is enough.", "")

    monkeypatch.setenv("TORCHTAILOR_WORK", str(tmp_path / "worker"))
    monkeypatch.setattr(compiling, "SourceBuilder", Builder)
    bench = CompileBench(open_farm_store(str(tmp_path / "store")), catalog, Cache(tmp_path / "cache"), "", None)
    bench.store.finish(tree.key, compiling.fetch_source(tree, bench))
    with pytest.raises(BuildFailedError, match="enough"):
        compiling.link_source(link, bench)
    assert found == [version]

    head, tag = (TorchSource(SourceOrigin.GIT, folder.as_uri(), ref) for ref in ("HEAD", "v2.13.0"))
    subprocess.run((*git, "tag", "v2.13.0"), check=True)
    assert version.endswith(source_job(head).commit[:7]) and source_job(tag).commit == ""


def test_jobs_need_the_machine_of_their_architecture(catalog: Catalog) -> None:
    plan = planned(catalog, "sm90-avx2", "sm90-armv9", wanted=1)
    assert {job.machine for job in plan.graph.jobs.values()} == {"", "x86_64", "aarch64"}
    engine = SimulatedEngine([FarmWorker("w", machine="x86_64", here=True)], lambda job: 1.0)
    engine.patience = 1.0
    with pytest.raises(EnvironmentProblem, match="needs one of aarch64"):
        drive(plan.graph, engine, frozenset())


def test_the_matrix_within_its_targets(catalog: Catalog) -> None:
    """All variants of a release: at least 85 % busy on 8 workers, 70 % on 32."""
    plan = planned(catalog, "*")
    assert len(plan.results) == 59
    for workers, least in ((8, 0.85), (32, 0.70)):
        assert simulate(plan.graph, workers, memory=8_000_000_000).efficiency >= least


@given(st.lists(st.floats(0.01, 500), max_size=60), st.integers(1, 12), st.randoms(use_true_random=False))
def test_shards_hold_every_file_once_and_are_even(weights: list[float], count: int, rng: random.Random) -> None:
    files = [(f"dir/{number}.cpp.o", seconds) for number, seconds in enumerate(weights)]
    found = shards(files, count)
    assert sorted(file for shard in found for file in shard) == sorted(files)
    rng.shuffle(files)
    assert shards(files, count) == found
    loads = [sum(seconds for _, seconds in shard) for shard in found]
    assert max(loads) - min(loads) <= max(weights, default=0.0) + 1e-6
    assert all(shard == sorted(shard, key=lambda file: -file[1]) for shard in found)


def test_parts() -> None:
    host = "caffe2/CMakeFiles/torch_cpu.dir/__/aten/src/ATen/cuda_names_in_a_path.cpp.o"
    python = "caffe2/torch/CMakeFiles/torch_python.dir/csrc/cuda/Module.cpp.o"
    toolkit = "caffe2/CMakeFiles/torch_cuda.dir/__/aten/src/ATen/native/cuda/Equal.cpp.o"
    device = "caffe2/CMakeFiles/torch_cuda.dir/__/aten/src/ATen/native/cuda/Im2Col.cu.o"
    outputs = [host, python, toolkit, device]
    parts = [CompilePart.HOST, CompilePart.PYTHON, CompilePart.TOOLKIT, CompilePart.DEVICE]
    assert [part_of(name) for name in outputs] == parts
    files = [(name, 1.0) for name in outputs]
    compiled = {part: [name for name, _ in of_part(files, part)] for part in parts}
    assert compiled == {
        CompilePart.HOST: [host, python, toolkit],
        CompilePart.PYTHON: [python],
        CompilePart.TOOLKIT: [python, toolkit],
        CompilePart.DEVICE: [device],
    }


def test_a_source_has_the_key_of_its_content(tmp_path: Path) -> None:
    def tree(name: str) -> Path:
        folder = tmp_path / name
        (folder / "c10").mkdir(parents=True)
        (folder / "build").mkdir()
        (folder / "build" / "left.o").write_text(name)
        (folder / "c10" / "a.cpp").write_text("int a;")
        (folder / "link").symlink_to("c10")
        return folder

    one, two = (TorchSource(SourceOrigin.FOLDER, str(tree(name))) for name in ("one", "two"))
    assert source_job(one).key == source_job(two).key
    (Path(two.place) / "c10" / "a.cpp").write_text("int b;")
    assert source_job(one).key != source_job(two).key
    pack_tree(Path(one.place), tmp_path / "tree.tar")
    import tarfile

    with tarfile.open(tmp_path / "tree.tar") as archive:
        assert sorted(archive.getnames()) == ["pytorch/c10/a.cpp", "pytorch/link"]
    tarball = TorchSource(SourceOrigin.TARBALL, str(tmp_path / "tree.tar"))
    assert source_job(tarball).digest != source_job(one).digest


def test_where_objects_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert remote_storage("redis://cache:6379/1") == "redis://cache:6379/1"
    assert remote_storage("objects") == (tmp_path / "objects").as_uri()
    with pytest.raises(UsageError, match="no storage s3"):
        remote_storage("s3://user:secret@bucket")
    with pytest.raises(UsageError, match="cannot be read"):
        remote_storage("http://[")
