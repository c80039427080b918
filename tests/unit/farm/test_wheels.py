"""A farm of one process builds what the build itself builds, to the byte; a second run does nothing."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.building import stack
from tests.unit.building.conftest import Workshop
from tests.unit.building.test_build import NAME, tree
from torchtailor.building import wheel_jobs as jobs
from torchtailor.building.cutting import WheelCut
from torchtailor.building.farm import build, perform
from torchtailor.building.farm.build import FarmBuildResult, FarmPlan, failure_of, plan_farm, run_farm
from torchtailor.building.farm.jobs import FarmJob
from torchtailor.building.farm.perform import Workbench, WorkerSetup
from torchtailor.building.farm.where import PlaceKind, parse_where
from torchtailor.building.graph.events import EventKind, FarmEvent
from torchtailor.building.graph.graph import decode_job, encode_job
from torchtailor.building.ledger.ledger import Result
from torchtailor.building.wheel import farmed
from torchtailor.building.wheel.farmed import WheelJobs
from torchtailor.building.wheel.graph import wheel_graph
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.building.wheel.plan import Treatment, WheelPlan
from torchtailor.building.wheel_jobs import CutForGpus, JobContext
from torchtailor.catalog.tables import FarmSettings
from torchtailor.core import room
from torchtailor.core.errors import EnvironmentProblem, ExitCode, ImpossibleError
from torchtailor.fetch.locations import IndexLocation, LocationKind
from torchtailor.surgery.cut import Cut

NAMES = ("sm80-avx2", "sm90-avx512")
OPTIONS = WheelOptions(cut=Cut(nvidia=True))


class Farm:
    """Builds from the served stack on a farm, with a store of its own and a cache of its own."""

    def __init__(self, workshop: Workshop, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.workshop, self.root = workshop, root
        self.out = root / "farm-dist"
        self.store = root / "store"
        self.events: list[FarmEvent] = []
        monkeypatch.setenv("TORCHTAILOR_CACHE", str(root / "worker-cache"))
        monkeypatch.setenv("TORCHTAILOR_STATE", str(root / "state"))

    def plan(
        self, *names: str, options: WheelOptions = OPTIONS, on: str = "here", prove: bool = False, **changes: object
    ) -> FarmPlan:
        from torchtailor.building.choose import choose

        choices = choose(self.workshop.catalog, names, release="main")
        plan: WheelPlan = self.workshop.backend(options, **changes).plan(choices, self.out)
        where = parse_where(on, self.workshop.catalog)
        return plan_farm(plan, where, store=str(self.store), prove=prove, ledger=self.workshop.ledger)

    def run(self, plan: FarmPlan) -> FarmBuildResult:
        return run_farm(plan, self.workshop.catalog, ledger=self.workshop.ledger, listen=self.events.append)

    def build(self, *names: str, options: WheelOptions = OPTIONS, on: str = "here") -> FarmBuildResult:
        return self.run(self.plan(*names, options=options, on=on))


def fetched(workshop: Workshop) -> Counter[str]:
    """How often each wheel was downloaded; plans read only the end of a wheel."""
    return Counter(
        request.path
        for request in workshop.site.requests
        if request.path.endswith(".whl") and request.status == 200 and request.method == "GET"
    )


@pytest.fixture
def farm(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Farm:
    return Farm(workshop, tmp_path, monkeypatch)


def test_the_same_bytes_as_the_build_itself_and_a_second_run_does_nothing(farm: Farm, workshop: Workshop) -> None:
    workshop.build(*NAMES, options=OPTIONS)
    done = farm.build(*NAMES)
    assert tree(farm.out) == tree(workshop.out)
    assert not done.failed and len(done.wheelhouses) == 2
    assert {house.variant for house in done.wheelhouses} >= {NAME}
    kinds = [label.split()[0] for label, _ in done.outcomes.values()]
    assert (kinds.count("fetch"), kinds.count("cut"), kinds.count("pack")) == (6, 5, 2)
    assert set(fetched(workshop).values()) == {2}  # by the build before, and once for the farm

    plan = farm.plan(*NAMES)
    assert plan.cost.jobs == 0 and plan.cost.core_seconds == 0
    before, asked = tree(farm.out), fetched(workshop)
    again = farm.run(plan)
    assert again.outcomes == {} and again.downloaded == 0 and again.already == 13
    assert tree(farm.out) == before and fetched(workshop) == asked


def test_each_wheel_is_fetched_once_for_the_whole_farm(farm: Farm, workshop: Workshop, tmp_path: Path) -> None:
    """Also by workers that have nothing in their own caches."""
    farm.build("sm80-avx2")
    assert set(fetched(workshop).values()) == {1}
    for entry in (tmp_path / "worker-cache" / "blobs").rglob("*.whl"):
        entry.unlink()
    more = farm.build(*NAMES)
    assert set(fetched(workshop).values()) == {1}
    cuts = [outcome for label, outcome in more.outcomes.values() if label.startswith("cut")]
    assert [(outcome.hits, outcome.misses) for outcome in cuts] == [(1, 1)] * 5  # the second GPU is cut, and no other
    assert not [label for label, _ in more.outcomes.values() if label.startswith("fetch")]


def test_more_workers_cut_in_more_pieces_with_the_same_outputs(farm: Farm) -> None:
    plan = farm.plan(*NAMES).plan
    assert isinstance(plan, WheelPlan)
    few, many = wheel_graph(plan, workers=1), wheel_graph(plan, workers=100)
    assert len(many.jobs) == len(few.jobs) + 5
    assert set(few.makers) == set(many.makers)


def test_jobs_travel_as_json_and_name_no_place(farm: Farm, tmp_path: Path) -> None:
    graph = farm.plan(*NAMES, prove=True).graph
    assert {job.kind for job in graph.jobs.values()} == {"fetch", "cut", "pack", "prove"}
    for job in graph.jobs.values():
        data = encode_job(job.job)
        again = decode_job(data, FarmJob)
        assert again == job.job
        assert (again.needs, again.gives, encode_job(again)) == (job.needs, job.gives, data)
        assert str(tmp_path).encode() not in data


def test_a_local_wheel_that_was_built_again_is_another_wheel(farm: Farm, tmp_path: Path) -> None:
    """Under the same name: what an earlier one was cut to and packed in is not taken for it."""
    folder = tmp_path / "links"
    folder.mkdir()
    links = IndexLocation(folder.as_uri(), LocationKind.LINKS, "--find-links")
    sources = (links, *farm.workshop.finder().settings.sources)
    first = stack.torch()
    second = replace(first, files={**first.files, "torch/version.py": b"__version__ = '2.8.0+cu128'\nmade = 2\n"})
    for package, found in ((first, b"cuda = "), (second, b"made = 2"), (first, b"cuda = ")):
        (folder / package.filename).write_bytes(package.wheel())
        plan = farm.plan("sm90-avx512", sources=sources)
        assert isinstance(plan.plan, WheelPlan) and plan.plan.plans[0].torch.file.local_path is not None
        (house,) = farm.run(plan).wheelhouses
        (wheel,) = house.path.rglob("torch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            assert found in archive.read("torch/version.py")
    assert not plan.to_do.jobs  # the store has the first one still


def test_one_wheel_of_two_indexes_is_fetched_and_cut_once(farm: Farm, workshop: Workshop) -> None:
    farm_plan = farm.plan(*NAMES)
    plan = farm_plan.plan
    assert isinstance(plan, WheelPlan)
    first, second = plan.plans
    elsewhere = [
        replace(wheel, file=replace(wheel.file, url=wheel.file.url.replace("/files/", "/mirror/")))
        for wheel in second.wheels
    ]
    site = workshop.site.content
    site |= {name.replace("/files/", "/mirror/"): data for name, data in site.items() if name.startswith("/files/")}
    both = replace(plan, plans=(first, replace(second, wheels=tuple(elsewhere))))
    graph = wheel_graph(both)
    shared = [job for job in graph.jobs.values() if job.kind in ("fetch", "cut")]
    assert len(shared) == 11 and all(set(job.variants) == {first.name, second.name} for job in shared)
    two = plan_farm(both, farm_plan.where, store=str(farm.store), ledger=workshop.ledger)
    assert two.download == farm_plan.download and two.disk[0].size == farm_plan.disk[0].size
    assert not farm.run(two).failed
    assert set(fetched(workshop).values()) == {1}


def test_what_the_store_lost_or_damaged_is_made_again(farm: Farm) -> None:
    """Whatever is missing: any blob, any record, of any kind of job."""
    farm.build("sm90-avx512")
    before = tree(farm.out)
    files = sorted(path for path in farm.store.rglob("*") if path.is_file())
    records = [path for path in files if path.parent.parent.name == "records"]
    blobs = [path for path in files if path.parent.parent.name == "blobs"]
    packed = {
        file["sha256"]
        for path in records
        if (record := json.loads(path.read_text()))["kind"] == "pack"
        for file in record["files"]
    }
    damaged = [path for path in blobs if path.name in packed]
    for path in (damaged[0], max(damaged, key=lambda path: path.stat().st_size)):
        path.chmod(0o644)
        content = path.read_bytes()
        path.write_bytes(b"x" + content[1:])
        done = farm.build("sm90-avx512")
        assert not done.failed
        assert tree(farm.out) == before, path.name
        assert path.read_bytes() == content
    for path in records:
        path.write_text("{")
    for path in blobs:
        path.unlink(missing_ok=True)
    assert not farm.build("sm90-avx512").failed
    assert tree(farm.out) == before


def test_a_variant_that_cannot_be_made_is_failed_and_the_rest_is_built(
    farm: Farm, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = farm.plan(*NAMES)
    real = farm.workshop.site.content
    broken = next(path for path in real if "triton" in path and path.endswith(".whl"))
    real[broken] = real[broken][:-50] + b"\0" * 50
    failed = farm.run(plan)
    assert set(failed.failed) == {item.name for item in plan.variants}  # all need triton
    problem = failure_of(failed)
    assert problem is not None and "2 of 2 variants failed" in problem.message and "triton" in problem.message
    kinds = [event.kind for event in farm.events if event.job.startswith("fetch triton")]
    assert kinds.count(EventKind.JOB_STARTED) == 2 and kinds[-1] is EventKind.JOB_FAILED
    assert not farm.out.exists() or not tree(farm.out)
    results = {attempt.variant: attempt.result for attempt in workshop.ledger.attempts()}
    assert set(results.values()) == {Result.FAILED}
    (job,) = [job for job in workshop.ledger.jobs() if job.result is Result.FAILED]
    assert job.label.startswith("fetch triton") and "torch" not in job.error


def test_a_gpu_that_no_code_runs_on_fails_alone(farm: Farm, workshop: Workshop) -> None:
    """As the build itself says it; the other variants are there."""
    names = ("sm90-avx512", "sm80-avx2")
    plan = farm.plan(*names)
    lonely = next(item for item in plan.variants if "sm80" in item.name)

    def useless(job: CutForGpus, *more: object) -> bool:
        if job.gpus == ("8.0",):
            raise ImpossibleError("none of it runs on 8.0.", "Choose another.")
        return restored(job, *more)  # type: ignore[arg-type]

    restored = perform._restore_cut
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perform, "_restore_cut", useless)
        done = farm.run(plan)
    assert list(done.failed) == [lonely.name]
    assert [house.variant for house in done.wheelhouses] == [NAME]
    problem = failure_of(done)
    assert problem is not None and problem.code is ExitCode.IMPOSSIBLE
    starts = [event for event in farm.events if event.kind is EventKind.JOB_STARTED and lonely.name in event.job]
    assert len(starts) == 1  # another try changes nothing


def test_a_variant_of_the_store_does_not_fail_with_a_job_that_others_need(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job cuts for both GPUs; the store has the cuts, the wheelhouse and the proof of the first."""
    farm.run(farm.plan("sm80-avx2", prove=True))
    shutil.rmtree(farm.out)

    def broken(*_: object) -> None:
        raise ImpossibleError("it cannot be cut.", "Choose another.")

    monkeypatch.setattr(perform, "_cut", broken)
    done = farm.run(farm.plan(*NAMES, prove=True))
    assert ["-sm80-" in house.variant for house in done.wheelhouses] == [True]
    assert list(done.failed) == [NAME]


def test_a_proof_is_of_the_catalog_with_the_rows_of_the_user(farm: Farm, tmp_path: Path) -> None:
    farm.run(before := farm.plan("sm90-avx512", prove=True))
    (own := tmp_path / "torchtailor.toml").write_text('[[gpu]]\ncapability = "9.0"\n')
    catalog = replace(farm.workshop.catalog, user_file=own)
    again = plan_farm(
        before.plan, before.where, catalog=catalog, store=str(farm.store), prove=True, ledger=farm.workshop.ledger
    )
    assert [job.kind for job in again.to_do.jobs.values()] == ["prove"]


def test_where_the_command_is_given_no_disk_of_a_worker_is_used(
    farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path] = []
    real = perform.workbench

    def noted(setup: WorkerSetup) -> Workbench:
        used.append((bench := real(setup)).cache.root)
        return bench

    monkeypatch.setattr(build, "workbench", noted)
    plan = farm.plan("sm90-avx512", options=WheelOptions(variants=True))
    settings = FarmSettings(cache=str(tmp_path / "scratch"))
    done = farm.run(replace(plan, where=replace(plan.where, settings=settings)))
    assert done.variants_index and used == [tmp_path / "worker-cache"]
    assert (tmp_path / "scratch").is_dir()  # of the worker


def test_this_process_uses_the_whole_machine(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = jobs.cut_all

    def noted(job: CutForGpus, context: JobContext) -> tuple[WheelCut, ...]:
        seen.append(context.processes)
        return real(job, context)

    monkeypatch.setattr(perform, "cut_all", noted)
    monkeypatch.setattr(perform, "available_cores", lambda: 7)
    assert not farm.build("sm90-avx512").failed
    assert set(seen) == {7}


def test_a_wheelhouse_whose_proof_fails_is_none(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ImpossibleError("it is wrong.", "Report it.")

    monkeypatch.setattr(perform, "_prove", broken)
    done = farm.run(farm.plan("sm90-avx512", prove=True))
    assert list(done.failed) == [NAME] and not done.wheelhouses


def test_the_ledger_has_each_job_with_its_worker_and_hits(farm: Farm, workshop: Workshop) -> None:
    farm.build("sm90-avx512")
    jobs = workshop.ledger.jobs()
    assert len(jobs) == 6 + 5 + 1
    assert len({job.run for job in jobs}) == 1
    assert all(job.worker == "this process" and job.duration >= 0 and job.result is Result.DONE for job in jobs)
    assert sum(job.misses for job in jobs) == 5
    (attempt,) = workshop.ledger.attempts()
    assert attempt.result is Result.DONE and attempt.options["on"] == "here" and attempt.output_bytes


def test_the_index_of_wheel_variants_is_the_same_too(farm: Farm, workshop: Workshop) -> None:
    options = WheelOptions(variants=True)
    workshop.build("sm80-avx2", "sm90-avx512", options=options)
    done = farm.build("sm80-avx2", "sm90-avx512", options=options)
    assert done.variants_index == farm.out / "variants"
    assert tree(farm.out) == tree(workshop.out)


def test_proof_is_a_job(farm: Farm) -> None:
    plan = farm.plan("sm90-avx512", prove=True)
    done = farm.run(plan)
    assert not done.failed
    assert [label for label, _ in done.outcomes.values()][-1] == f"prove {NAME}"


@pytest.mark.parametrize(
    ("devices", "needs"),
    [
        ({"store": 1, "farm-dist": 1}, {"worker-cache"}),
        ({"store": 1, "farm-dist": 2}, {"worker-cache", "farm-dist"}),
        ({"store": 2, "farm-dist": 1}, {"worker-cache", "store"}),  # with what -o needs, which is not linked
        ({"store": 2, "farm-dist": 2}, {"worker-cache", "store"}),
        ({"store": 2, "farm-dist": 3}, {"worker-cache", "store", "farm-dist"}),
    ],
)
def test_disk_is_counted_by_where_the_store_is(
    farm: Farm, devices: dict[str, int], needs: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (farmed, room):
        monkeypatch.setattr(module, "device_of", lambda path: devices.get(path.name, 1))
    plan = farm.plan("sm90-avx512")
    assert isinstance(plan.plan, WheelPlan)
    output = sum(variant.output_size for variant in plan.plan.plans)
    found = {need.place.name: need.size for need in plan.disk}
    assert set(found) == needs
    if "farm-dist" in needs:
        assert found["farm-dist"] == output
    if devices == {"store": 2, "farm-dist": 1}:
        assert found["worker-cache"] > output + 500_000_000
    elsewhere = farmed.needs_on(plan.plan, plan.to_do.jobs, "s3://bucket/farm", here=False)
    assert [(need.place.name, need.size) for need in elsewhere] == [("farm-dist", output)]


def test_a_disk_that_is_too_small_is_refused_before_any_job(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = farm.plan("sm90-avx512")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(EnvironmentProblem, match=r"1 kB are free for .*worker-cache") as caught:
        farm.run(plan)
    assert "--store" in caught.value.hint and not farm.events


def test_a_proof_is_expected_to_take_as_long_as_its_bytes_do(farm: Farm) -> None:
    plan = farm.plan("sm90-avx512", prove=True)
    wheel_plan = plan.plan
    assert isinstance(wheel_plan, WheelPlan)
    (variant,) = wheel_plan.plans
    torch = replace(variant.torch, size=200_000_000, treatment=Treatment.UNCHANGED)
    cpu = replace(variant.variant, gpu=None)
    large = replace(variant, variant=cpu, wheels=(torch,), output_size=torch.size)
    (proof,) = [
        job for job in wheel_graph(replace(wheel_plan, plans=(large,)), prove=True).jobs.values() if job.kind == "prove"
    ]
    assert 20 < proof.weight.seconds < 60
    assert wheel_plan.cost.seconds == pytest.approx(plan.simulated()[0].seconds)  # what the plan says before a run


def test_more_workers_than_cores_are_not_expected_to_be_faster(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three on two cores took twice as long as was said."""
    monkeypatch.setattr(build, "available_cores", lambda: 2)
    plan = farm.plan(*NAMES)

    def seconds(workers: int) -> float:
        where = replace(plan.where, kind=PlaceKind.LOCAL, workers=workers)
        (found,) = [one for one in replace(plan, where=where).simulated() if one.workers == workers]
        return found.seconds

    assert seconds(4) >= seconds(2) > 0


def test_the_expected_time_counts_the_line_the_store_and_the_workers(farm: Farm) -> None:
    """Three gigabytes do not come faster because more workers ask for them."""
    plan = farm.plan("sm90-avx512")
    wheel_plan = plan.plan
    assert isinstance(wheel_plan, WheelPlan)
    (variant,) = wheel_plan.plans
    wheels = tuple(replace(wheel, size=500_000_000, download=500_000_000) for wheel in variant.wheels)
    large = replace(wheel_plan, plans=(replace(variant, wheels=wheels, output_size=1_000_000_000),))
    cached = replace(large, plans=(replace(variant, wheels=tuple(replace(one, download=0) for one in wheels)),))
    jobs = plan.jobs
    assert isinstance(jobs, WheelJobs)

    def seconds(workers: int, kind: PlaceKind, costed: WheelPlan = large, store: str = plan.store) -> float:
        place = replace(jobs.place, here=not kind.is_remote, store=store)
        on = replace(plan, where=replace(plan.where, kind=kind), finished=frozenset())
        return replace(on, jobs=replace(jobs, plan=costed, place=place)).simulated_on(workers).seconds

    process, local, cluster = PlaceKind.PROCESS, PlaceKind.LOCAL, PlaceKind.SCHEDULER
    assert seconds(1, process) > seconds(8, process) > 3e9 / jobs.place.rates.fetch
    assert seconds(8, local) > seconds(8, process)
    assert seconds(8, cluster, store="s3://bucket/farm") > seconds(8, cluster) + 5  # collecting
    assert seconds(128, cluster) > seconds(32, cluster)  # meeting
    assert seconds(8, process, cached) < 60
    assert seconds(8, cluster, cached) > 150  # other machines do not have this one's cache
