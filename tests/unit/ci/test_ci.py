"""`torchtailor ci`: workflows of many options fit the schemas of their systems, and say what they should."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections import Counter
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.unit.ci.workflows import OPTIONS, load, problems, written
from torchtailor.building.source.ccache import ccache_environment
from torchtailor.building.source.folders import Folders
from torchtailor.catalog import Catalog, load_catalog
from torchtailor.cli import main
from torchtailor.core.disk import CACHE_VARIABLE, WORK_VARIABLE
from torchtailor.core.errors import ExitCode
from torchtailor.fetch.cache import Cache
from torchtailor.publish.ci import plan
from torchtailor.publish.ci.plan import CiOptions, CiSystem, plan_ci
from torchtailor.publish.ci.tables import ci_tables


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(tmp_path_factory.mktemp("no-user-file"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


own_catalog = cache(load_catalog)


@pytest.mark.parametrize("system", CiSystem)
@settings(max_examples=examples(60), deadline=None)
@given(options=OPTIONS)
def test_whatever_is_asked_for_fits_the_schema_or_is_refused(system: CiSystem, options: CiOptions) -> None:
    text = written(own_catalog(), system, options)
    if text is not None:
        assert problems(system, text) == []
        lines = "\n".join(scripts(system, load(text)))
        checked = subprocess.run(["sh", "-n"], input=lines, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, (lines, checked.stderr)


def scripts(system: CiSystem, workflow: dict[str, Any]) -> list[str]:
    """The shell of all steps."""
    if system is CiSystem.GITHUB:
        return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    parts = [job for job in workflow.values() if isinstance(job, dict)]
    return [line for job in parts for line in (*job.get("before_script", ()), *job.get("script", ()))]


def test_the_schemas_find_what_is_wrong() -> None:
    """Else the test above proves nothing."""
    assert problems(CiSystem.GITHUB, "on: push\njobs: {a: {runs-on: x, stepz: []}}")
    assert problems(CiSystem.GITLAB, "a: {script: x, tags: 7}")


def plan_of(catalog: Catalog, system: CiSystem, *selectors: str, **more: Any) -> Any:
    return plan_ci(catalog, system, CiOptions(selectors=selectors, **more))


def test_every_variant_is_built_once_on_a_runner_of_its_architecture(catalog: Catalog) -> None:
    for division in ("variant", "gpu", "architecture", "all"):
        from torchtailor.publish.ci.plan import CiDivision

        plan = plan_of(catalog, CiSystem.GITHUB, "sm*-*", "cpu-*", releases=("2.15",), division=CiDivision(division))
        count = Counter(name for job in plan.jobs for name in job.variants)
        assert set(count.values()) == {1}
        assert len({job.name for job in plan.jobs}) == len(plan.jobs)
        if division != "all":
            arm = [job for job in plan.jobs if any("-arm" in name for name in job.variants)]
            assert arm and all(job.runner == ("ubuntu-24.04-arm",) for job in arm)
            assert all("-avx" not in name for job in arm for name in job.variants)


def test_a_gpu_runner_proves_what_is_for_it_and_nothing_else(catalog: Catalog) -> None:
    plan = plan_of(catalog, CiSystem.GITHUB, "sm{80,90}-*", releases=("2.15",), gpu_runners=("H100=self-hosted,h100",))
    assert plan.proofs and all(proof.runner == ("self-hosted", "h100") for proof in plan.proofs)
    assert all("-sm90-avx" in name for proof in plan.proofs for name in proof.of.variants)
    arm = plan_of(catalog, CiSystem.GITHUB, "sm90-*", releases=("2.15",), gpu_runners=("sm90/aarch64=gh200",))
    assert all("-sm90-arm" in name for proof in arm.proofs for name in proof.of.variants)
    assert plan_of(catalog, CiSystem.GITHUB, "sm90-*", releases=("2.15",)).proofs == ()


def test_secrets_are_for_the_job_that_needs_them(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("-n", "--login", "keys")
    assert main(["ci", "github", "sm90-avx2", "--publish", "s3://b/torch", *keys]) == 0
    workflow = load(capsys.readouterr().out)
    assert "secrets." not in json.dumps(workflow["jobs"]["build"])
    assert "secrets.AWS_SECRET_ACCESS_KEY" in json.dumps(workflow["jobs"]["publish"])
    assert "pull_request" in workflow["on"] and "!= 'pull_request'" in workflow["jobs"]["publish"]["if"]
    assert main(["ci", "github", "sm90-avx2", "--store", "s3://b/farm", *keys]) == 0
    workflow = load(capsys.readouterr().out)
    assert "secrets.AWS_SECRET_ACCESS_KEY" in json.dumps(workflow["jobs"]["build"])
    assert "pull_request" not in workflow["on"]  # whoever opens one would have the secrets
    assert main(["ci", "github", "sm90-avx2", "--runner", "x86_64=self-hosted", "-n"]) == 0
    assert "pull_request" not in load(capsys.readouterr().out)["on"]  # ... or the machine


@pytest.mark.parametrize("where", ["s3://b/torch", "abfs://b/torch", "gs://b/torch"])
@pytest.mark.parametrize("option", ["--store", "--publish"])
def test_jobs_log_in_without_keys(option: str, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By the identity of the job, in the jobs that need it alone; nobody who opens a pull request has it."""
    assert main(["ci", "github", "sm90-avx2", option, where, "-n", "--package", "torchtailor"]) == 0
    said = capsys.readouterr()
    assert problems(CiSystem.GITHUB, said.out) == [] and said.err == ""
    workflow = load(said.out)
    assert "secrets." not in said.out
    assert workflow["permissions"] == {"contents": "read"}
    needs = {"--store": {"build"}, "--publish": {"publish"}}[option]
    for name, job in workflow["jobs"].items():
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        logins = [use for use in used if not use.startswith("actions/")]
        assert bool(logins) == (name in needs)
        assert job.get("permissions", {}).get("id-token") == ("write" if name in needs else None)
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", use) for use in used)
    assert ("pull_request" in workflow["on"]) == (option == "--publish")
    assert main(["ci", "gitlab", "sm90-avx2", option, where, "-n", "--package", "torchtailor"]) == 0
    said = capsys.readouterr()
    pipeline = load(said.out)
    holder = pipeline[".torchtailor" if option == "--store" else ".publish"]
    assert problems(CiSystem.GITLAB, said.out) == []
    if where.startswith("gs:"):  # GitLab's token needs a file that is written by hand
        assert "Add the credentials of gs://" in said.err
    else:
        (token,) = holder["id_tokens"].values()
        assert token["aud"] and "SECRET" not in said.out
        assert "_TOKEN_FILE" in pipeline[".torchtailor"]["before_script"][0]


def test_artifacts_hold_no_stock_wheels_of_nvidia(capsys: pytest.CaptureFixture[str]) -> None:
    """Left out where they were built, and fetched where they are needed; the test of the steps runs both."""
    for system in CiSystem:
        assert main(["ci", system.value, "sm90-avx2", "-n", "--publish", "s3://b/torch"]) == 0
        lines = scripts(system, load(capsys.readouterr().out))
        assert sum("path.unlink()" in text for text in lines) == sum("#sha256=" in text for text in lines) == 1


FARMS = """
[farm.pods]
cluster = "slurm"
store = "s3://bucket/farm"
objects = "redis://cache"
[farm.rack]
scheduler = "tcp://rack:8786"
store = "/shared/farm"
[farm.mine]
cluster = "my_clusters:Mine"
"""


@pytest.mark.parametrize("system", CiSystem)
def test_what_the_section_of_a_farm_says_is_as_if_given(
    system: CiSystem, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "torchtailor.toml").write_text(FARMS)
    line = ["ci", system.value, "sm{80,90}-avx2", "-n", "--publish", "s3://b/torch", "--login", "keys"]
    assert main([*line, "--on", "pods"]) == 0
    said = capsys.readouterr()
    workflow = load(said.out)
    assert problems(system, said.out) == []
    installed = next(line for line in scripts(system, workflow) if "pip install" in line)
    assert "s3fs" in installed and "dask-jobqueue" in installed
    assert "AWS_SECRET_ACCESS_KEY" in said.out and '"s3://bucket/farm"' in said.out
    assert '--on here --store "$STORE"' in said.out  # what the farm built is taken from its store
    assert "artifact" not in said.out and "OBJECTS" not in said.out
    assert "[farm.pods] (slurm), which hosted runners" in said.err
    assert "--store" not in next(row for row in said.out.splitlines() if row.startswith("#   torchtailor "))
    assert main([*line, "--on", "pods", "--via", "source", "--runner", "x86_64=mine"]) == 0
    said = capsys.readouterr()
    assert '"redis://cache"' in said.out and "[farm.pods]" not in said.err
    assert main([*line, "--on", "rack"]) == ExitCode.USAGE
    assert "[farm.rack] store /shared/farm is a folder" in capsys.readouterr().err
    assert main([*line, "--on", "rack", "--runner", "x86_64=mine"]) == 0
    assert main([*line, "--on", "mine"]) == 0
    said = capsys.readouterr()
    assert "Add the package of my_clusters:Mine" in said.err
    assert "pull_request:" not in said.out and "merge_request_event" not in said.out  # the farm is the user's


@pytest.mark.parametrize("system", CiSystem)
@pytest.mark.parametrize("option", ["--store", "--publish"])
@pytest.mark.parametrize("folder", ["/srv/index", "file:///srv/index"])
def test_a_folder_that_a_hosted_runner_would_throw_away_is_refused(
    system: CiSystem, option: str, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["ci", system.value, "sm90-avx2", option, folder, "-n"]
    assert main(line) == ExitCode.USAGE
    assert f"{option} {folder} is a folder, which hosted runners do not keep." in capsys.readouterr().err
    assert main([*line, "--runner", "x86_64=mine"]) == 0
    assert main(["ci", system.value, "sm90-armv8_2", option, folder, "-n"]) == ExitCode.USAGE
    assert "--runner aarch64=LABEL" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--store", "s3://b/farm")])
def test_what_is_published_is_on_the_disk_one_part_at_a_time(
    more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """All GPUs together are more than a hosted runner's disk."""
    line = ["sm{80,90}-avx2", "--publish", "s3://b/torch", "-n", *more]
    assert main(["ci", "github", *line]) == 0
    job = load(capsys.readouterr().out)["jobs"]["publish"]
    steps = [step for step in job["steps"] if step.get("name", "").startswith("Publish ")]
    assert [step["name"] for step in steps] == ["Publish sm80-x86_64", "Publish sm90-x86_64"]
    assert all(step["run"].rstrip().endswith("rm -rf dist") for step in steps)
    if more:
        assert ["-sm80-" in step["env"]["VARIANTS"] for step in steps] == [True, False]
        assert all("torchtailor build $VARIANTS" in step["run"] for step in steps)
    else:
        taken = [step["with"]["name"] for step in job["steps"] if "download-artifact" in step.get("uses", "")]
        assert taken == ["sm80-x86_64", "sm90-x86_64"]
    assert main(["ci", "gitlab", *line]) == 0
    pipeline = load(capsys.readouterr().out)
    assert pipeline[".publish"]["resource_group"] and pipeline[".publish"]["environment"] == "publish"
    parts = {name: job for name, job in pipeline.items() if name.startswith("publish ")}
    assert list(parts) == ["publish sm80-x86_64", "publish sm90-x86_64"]
    if more:
        assert ["-sm80-" in part["variables"]["VARIANTS"] for part in parts.values()] == [True, False]
    taken = [part["dependencies"] for part in parts.values()]
    assert taken == ([[], []] if more else [["build sm80-x86_64"], ["build sm90-x86_64"]])


@pytest.mark.parametrize("system", CiSystem)
def test_what_comes_from_a_store_is_published_with_its_report(
    system: CiSystem, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store has the wheelhouses as they were packed, before the job that built them wrote a report."""
    words = ["ci", system.value, "sm{80,90}-avx2", "--publish", "s3://b/torch", "-n"]
    for more, reports in (["--store", "s3://b/farm"], True), ([], False):
        assert main([*words, *more]) == 0
        text = capsys.readouterr().out
        assert problems(system, text) == []
        jobs = load(text)
        github = system is CiSystem.GITHUB
        publish = {"jobs": {"x": jobs["jobs"]["publish"]}} if github else {"x": jobs[".publish"]}
        shell = "\n".join(scripts(system, publish))
        assert ("--report" in shell) == reports
        if reports:
            assert shell.index("torchtailor build") < shell.index("--report") < shell.index("torchtailor publish")


def test_gitlab_is_told_which_secrets_are_for_publish_alone(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["ci", "gitlab", "sm90-avx2", "--publish", "abfs://c/torch", "-n", "--store", "s3://b/farm"]
    assert main([*line, "--login", "keys"]) == 0
    head = [row for row in capsys.readouterr().out.splitlines() if row.startswith("# Settings")]
    assert len(head) == 2
    assert "AWS_SECRET_ACCESS_KEY" in head[0] and "environment scope" not in head[0]
    assert "AZURE_STORAGE_CONNECTION_STRING" in head[1] and "environment scope `publish`" in head[1]
    assert "AWS" not in head[1] and "AZURE" not in head[0]


def test_gitlab_counts_the_jobs_that_publish(catalog: Catalog) -> None:
    many = plan_of(catalog, CiSystem.GITLAB, "sm*-avx2", releases=("2.15",), publish="s3://b/torch")
    assert many.most_at_once == 2 * len(many.jobs)
    assert plan_of(catalog, CiSystem.GITHUB, "sm*-avx2", releases=("2.15",)).most_at_once == len(many.jobs)


def test_what_was_compiled_is_kept_when_a_job_fails_or_runs_out_of_time(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sm{80,90}-avx2", "--via", "source", "--cuda", "13.0", "-n"]
    assert main(["ci", "github", *line]) == 0
    job = load(capsys.readouterr().out)["jobs"]["build"]
    kinds = [step.get("uses", step.get("name")).partition("@")[0] for step in job["steps"]]
    restore, save = kinds.index("actions/cache/restore"), kinds.index("actions/cache/save")
    assert restore < kinds.index("Build") < kinds.index("Verify") < save and "actions/cache" not in kinds
    assert job["steps"][save]["if"] == "always()"
    for name in ("path", "key"):
        assert job["steps"][save]["with"][name] == job["steps"][restore]["with"][name]
    assert "github.run_attempt" in job["steps"][save]["with"]["key"]  # a key is written once
    assert job["steps"][kinds.index("Build")]["timeout-minutes"] == 340 < job["timeout-minutes"] == 360
    rows = job["strategy"]["matrix"]["include"]
    assert len(rows) == 2 and len({row["cache"] for row in rows}) == 1 and "avx2" in rows[0]["cache"]
    assert main(["ci", "gitlab", *line]) == 0
    pipeline = load(capsys.readouterr().out)
    assert pipeline[".build"]["cache"]["when"] == "always"
    assert pipeline[".torchtailor"]["timeout"] == "180 minutes"  # no hosted job of gitlab.com has more
    assert pipeline[".build"]["variables"]["RUNNER_SCRIPT_TIMEOUT"] == "162m"
    assert main(["ci", "gitlab", *line, "--runner", "x86_64=mine"]) == 0
    assert load(capsys.readouterr().out)[".torchtailor"]["timeout"] == "360 minutes"


@pytest.mark.parametrize("system", CiSystem)
def test_what_is_kept_is_where_builds_put_it(
    system: CiSystem, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds from source use a ccache of their own, whatever CCACHE_DIR says; it is beside trees of 20 GB."""
    assert main(["ci", system.value, "sm90-avx2", "--via", "source", "-n"]) == 0
    workflow = load(capsys.readouterr().out)
    if system is CiSystem.GITHUB:
        steps = workflow["jobs"]["build"]["steps"]
        (save,) = [step for step in steps if "actions/cache/save" in step.get("uses", "")]
        (trim,) = [step for step in steps if "ccache --cleanup" in step.get("run", "")]
        assert trim["if"] == "always()" and steps.index(trim) < steps.index(save)
        kept, environment = save["with"]["path"].split(), workflow["env"]
    else:
        kept, environment = workflow[".build"]["cache"]["paths"], workflow[".torchtailor"]["variables"]
        assert "ccache --cleanup" in workflow[".build"]["after_script"][0]
    for name in (CACHE_VARIABLE, WORK_VARIABLE):
        text = environment[name]
        place = re.sub(r"\$\{\{ github.workspace \}\}|\$CI_PROJECT_DIR", lambda _: str(elsewhere), text)
        monkeypatch.setenv(name, place)
    folders, blobs = Folders.default(), Cache().root / "blobs"
    used = ccache_environment("ccache", folders, folders.build("x"))["CCACHE_DIR"]
    assert [elsewhere / path for path in kept] == [blobs, Path(used)]
    assert not any(folders.build("x").is_relative_to(elsewhere / path) for path in kept)


def test_the_three_parts_of_the_cache_action_are_of_one_release() -> None:
    parts = [ci_tables().action[name] for name in ("cache", "restore", "save")]
    assert len({(part.commit, part.version) for part in parts}) == 1


@pytest.mark.parametrize("system", CiSystem)
def test_jobs_that_fetch_the_same_wheels_share_a_cache(system: CiSystem, capsys: pytest.CaptureFixture[str]) -> None:
    """GitHub keeps 10 GB; the wheels of a toolkit are 3 GB, for whichever GPU they are cut."""

    def cached(*selected: str) -> tuple[list[str], str]:
        assert main(["ci", system.value, *selected, "--release", "2.15", "-n"]) == 0
        workflow = load(capsys.readouterr().out)
        if system is CiSystem.GITHUB:
            job = workflow["jobs"]["build"]
            (step,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/cache@")]
            assert step["with"]["path"].split() == [".cache/torchtailor/blobs"]
            return [row["cache"] for row in job["strategy"]["matrix"]["include"]], step["with"]["key"]
        assert workflow[".build"]["cache"]["paths"] == [".cache/torchtailor/blobs"]
        jobs = [job for name, job in workflow.items() if name.startswith("build ")]
        return [job["variables"]["CACHE"] for job in jobs], workflow[".build"]["cache"]["key"]

    names, key = cached("sm{80,90,120}-avx2", "--cuda", "13.0")
    assert names == ["pytorch215-cuda13_0-x86_64-python313"] * 3 and "name" not in key.lower()
    assert cached("sm{80,90}-avx2", "--cuda", "13.0") == (names[:2], key)  # another GPU changes nothing
    assert cached("sm90-avx2", "--cuda", "13.2")[0] != names[:1]
    assert cached("sm90-armv9", "--cuda", "13.0")[0] != names[:1]
    assert cached("sm90-avx2", "--cuda", "13.0", "--python", "3.12")[0] != names[:1]


def test_cut_nvidia_libraries_stay_private(capsys: pytest.CaptureFixture[str]) -> None:
    for system in CiSystem:
        assert main(["ci", system.value, "sm90-avx2", "--nvidia", "-n"]) == ExitCode.USAGE
        assert "NVIDIA's licence" in capsys.readouterr().err
        line = ["ci", system.value, "sm90-avx2", "--nvidia", "--store", "s3://b/x", "--publish", "s3://b/torch", "-n"]
        assert main(line) == 0
        text = capsys.readouterr().out
        assert "--nvidia" in text and "publish-nvidia" not in text
        assert "artifact" not in text and "actions/cache" not in text and "cache:" not in text
        assert main([*line, "--publish-nvidia"]) == 0
        assert '--to "$PUBLISH" --publish-nvidia' in capsys.readouterr().out


def test_actions_are_pinned_to_commits(capsys: pytest.CaptureFixture[str]) -> None:
    for via in ("wheel", "source", "nix"):
        assert main(["ci", "github", "sm90-avx2", "--release", "cuda-13_0", "--via", via, "-n"]) == 0
        used = re.findall(r"uses: (\S+)@(\S+) # (v[\d.]+)\n", capsys.readouterr().out)
        assert len(used) >= 3 and any(name.startswith("actions/cache") for name, _, _ in used)
        known = {(action.uses, action.commit, action.version) for action in ci_tables().action.values()}
        assert set(used) <= known and all(re.fullmatch("[0-9a-f]{40}", commit) for _, commit, _ in used)


def test_a_schedule_takes_its_matrix_from_the_selector(capsys: pytest.CaptureFixture[str]) -> None:
    """A list that was written once would never have a release that came later."""
    line = ["ci", "github", "sm{80,90}-avx2", "--gpu-runner", "sm90=h100", "--publish", "s3://b/x", "-n"]
    assert main(line) == 0
    frozen = load(capsys.readouterr().out)["jobs"]
    assert main([*line, "--schedule", "0 3 * * 1"]) == 0
    jobs = load(capsys.readouterr().out)["jobs"]
    assert "plan" not in frozen and "news" not in frozen
    for name, of in {"build": "build", "prove": "prove", "publish": "build"}.items():
        assert jobs[name]["strategy"]["matrix"] == f"${{{{ fromJSON(needs.plan.outputs.{of}) }}}}"
        assert "plan" in jobs[name]["needs"]
    assert jobs["publish"]["strategy"]["max-parallel"] == 1
    (planned,) = [step for step in jobs["plan"]["steps"] if step.get("id") == "plan"]
    again = planned["env"]["ARGUMENTS"].split("\n")
    assert main(["ci", *again, "--dry-run", "--json"]) == 0
    matrix = json.loads(capsys.readouterr().out)["matrix"]
    for name, rows in matrix.items():
        assert {row.pop("python") for row in rows["include"]} == {"3.13"}
        assert frozen[name]["strategy"]["matrix"] == rows
    assert jobs["news"]["permissions"] == {"issues": "write"}
    assert all("issues" not in job.get("permissions", {}) for name, job in jobs.items() if name != "news")


def test_a_file_that_is_there_is_kept(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["ci", "github", "sm90-avx2"]
    path = elsewhere / ".github" / "workflows" / "torchtailor.yml"
    assert main([*line, "-n"]) == 0 and not path.exists()
    shown = capsys.readouterr().out
    assert main(line) == 0 and path.read_text() == shown
    assert "1 job for 1 variant" in capsys.readouterr().out
    path.write_text("mine\n")
    assert main(line) == ExitCode.USAGE and path.read_text() == "mine\n"
    assert "--force" in capsys.readouterr().err
    assert main([*line, "--force", "--json"]) == 0 and path.read_text() == shown
    document = json.loads(capsys.readouterr().out)
    assert document["written"] and document["text"] == shown and document["jobs"][0]["name"] == "sm90-x86_64"
    assert main([*line, "-o", "-"]) == 0 and capsys.readouterr().out == shown
    assert main(["ci", "gitlab", "sm90-avx2"]) == 0 and (elsewhere / ".gitlab-ci.yml").exists()
    assert main(["ci", "gitlab", "sm90-avx2"]) == ExitCode.USAGE and "include:" in capsys.readouterr().err


def test_the_header_has_the_command_that_writes_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    """The words of every option, also with spaces and quotes in them."""
    line = ["ci", "github", "sm{80,90}-avx2", "sm90-avx512", "--release", "2.15", "--python", "3.12", "--cuda", "13.0"]
    line += [
        "--build-options",
        "--with 'torchvision'",
        "--per",
        "variant",
        "--level",
        "static",
        "--store",
        "s3://b/a b",
    ]
    line += [
        "--publish",
        "s3://b/it's",
        "--schedule",
        "0 3 * * 1",
        "--branch",
        "trunk",
        "--timeout",
        "9",
        "--on",
        "local:2",
    ]
    line += ["--package", "torchtailor>=0.1", "--runner", "x86_64=a,b", "--gpu-runner", "sm90=c", "--nvidia"]
    line += ["--publish-nvidia", "--no-cache", "-o", "ci/my torch.yml"]
    assert main([*line, "-n"]) == 0
    text = capsys.readouterr().out
    again = shlex.split(next(row[1:] for row in text.splitlines() if row.startswith("#   torchtailor ")))
    assert main([*again[1:], "-n"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sm90-avx2", "--build-options", "--via source"], ExitCode.USAGE, "sets --via itself"),
        (["sm90-avx2", "--build-options", "--nonsense"], ExitCode.USAGE, "No such option: --nonsense"),
        (["sm90-avx2", "--build-options", "sm80-avx2"], ExitCode.USAGE, "names variants"),
        (["sm90-avx2", "--build-options", "'open"], ExitCode.USAGE, "quotation"),
        (["sm90-avx2", "--per", "fish"], ExitCode.USAGE, "variant, gpu, architecture or all"),
        (["sm90-avx2", "--on", "nowhere"], ExitCode.NO_MATCH, "no farm 'nowhere'"),
        (["sm90-avx2", "--on", ""], ExitCode.USAGE, "--on is empty"),
        (["sm90-avx2", "--on", "tcp://host"], ExitCode.USAGE, "has no port"),
        (["sm90-avx2", "--gpu-runner", "sm80=x"], ExitCode.NO_MATCH, "none of the variants"),
        (["sm90-avx2", "--gpu-runner", "sm90"], ExitCode.USAGE, "NAME=LABEL"),
        (["sm90-avx2", "--runner", "riscv=x"], ExitCode.USAGE, "no architecture"),
        (["sm90-avx2", "--schedule", "daily"], ExitCode.USAGE, "not a cron line"),
        (["sm90-avx2", "--schedule", "0 25 * * *"], ExitCode.USAGE, "the hour '25' is not of numbers from 0 to 23"),
        (["sm90-avx2", "--publish", "s4://bucket/x"], ExitCode.USAGE, "files cannot be written to s4://"),
        (["sm90-avx2", "--publish", "https://host/x"], ExitCode.USAGE, "files cannot be written to https://"),
        (["sm90-avx2", "--publish", "s3://"], ExitCode.USAGE, "names no bucket"),
        (
            ["sm90-avx2", "--store", "wrong://x"],
            ExitCode.USAGE,
            "--store wrong://x: files cannot be written to wrong://",
        ),
        (["cpu-avx2", "--via", "nix", "--store", "gs://b"], ExitCode.USAGE, "Nix cannot copy to gs://"),
        (["sm90-avx2", "--via", "source", "--objects", "ftp://x"], ExitCode.USAGE, "ftp://x"),
        (
            ["sm90-avx2", "--via", "source", "--store", "s3://b/farm"],
            ExitCode.USAGE,
            "Objects cannot be kept in s3://b/farm",
        ),
        (
            ["sm90-avx2", "--via", "source", "--on", "here", "--build-options", "--auto-fix 3"],
            ExitCode.USAGE,
            "--auto-fix is for builds without --on",
        ),
        ([], ExitCode.USAGE, "No variant was named"),
        (["sm90-avx2", "--publish", "s3://a\nb"], ExitCode.USAGE, "control character"),
        (["sm90-avx2", "--timeout", "361"], ExitCode.USAGE, "a job on a hosted runner ends after 360 minutes"),
        (["sm90-avx2", "--timeout", "361", "--runner", "x86_64=mine"], 0, ""),
        (
            ["sm90-avx2", "--package", "./nofolder"],
            ExitCode.NO_MATCH,
            "--package: nofolder does not exist",
        ),
        (["sm90-avx2", "--package", "git+https://x/y@v1; echo"], ExitCode.USAGE, "a space or a semicolon"),
        (["sm90-avx2", "--package", "torchtailor==1;echo"], ExitCode.USAGE, "a space or a semicolon"),
        (["sm90-avx2", "--package", "torchtailor==1$(x)"], ExitCode.USAGE, "not installable by pip"),
        (["sm90-avx2", "--runner", "aarch64=foo"], ExitCode.NO_MATCH, "no job runs on aarch64"),
        (["sm90-avx2", "--publish", "sftp:///x"], ExitCode.USAGE, "names no host"),
        (["sm90-avx2", "--package", "what ever"], ExitCode.USAGE, "not installable by pip"),
        (["fish-*"], ExitCode.NO_MATCH, "fish-*"),
        (["*", "--per", "variant", "--python", "3.12", "--release", "cuda-13_0"], 0, ""),
    ],
)
def test_mistakes_get_a_sentence(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    assert main(["ci", "github", *words]) == code
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err
    assert bool(list(elsewhere.rglob("*.yml"))) == (code == 0)


@pytest.mark.parametrize(
    "option",
    [
        "--publish",
        "--store",
        "--objects",
        "--schedule",
        "--package",
        "--branch",
        "--per",
        "--release",
        "--python",
        "--cuda",
        "--on",
        "--runner",
        "--gpu-runner",
        "--level",
    ],
)
@pytest.mark.parametrize("value", ["", " "])
def test_a_variable_that_is_not_set_is_no_value(
    option: str, value: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ci", "github", "sm90-avx2", "--via", "source", option, value]) == ExitCode.USAGE
    assert option in capsys.readouterr().err and not list(elsewhere.iterdir())


@pytest.mark.parametrize("option", ["--store", "--publish"])
@pytest.mark.parametrize(
    ("where", "package", "said"),
    [
        ("s3://b/x", "s3fs", ""),
        ("abfss://b/x", "adlfs", ""),
        ("gs://b/x", "gcsfs", "Add the credentials of gs:// to it yourself."),
        ("sftp://host/x", "paramiko", "Add the credentials of sftp:// to it yourself."),
        ("ftp://host/x", "", "Add the credentials of ftp:// to it yourself."),
        ("oss://b/x", "", "Add the fsspec plug-in and the credentials of oss:// to it yourself."),
    ],
)
def test_the_plug_in_of_a_scheme_is_installed(
    option: str, where: str, package: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for system in CiSystem:
        words = [option, where, "--package", "torchtailor", "--login", "keys"]
        assert main(["ci", system.value, "sm90-avx2", "-n", *words]) == 0
        captured = capsys.readouterr()
        shell = [row for text in scripts(system, load(captured.out)) for row in text.splitlines()]
        (line,) = {row for row in shell if "pip install" in row}
        assert line.endswith(f'"$TORCHTAILOR" {package}'.rstrip())
        assert captured.err == (f"warning: {said}\n" if said else "")
        assert (said.removesuffix(" to it yourself.") in captured.out) or not said


def test_a_folder_of_the_repository_starts_the_workflow(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "tools" / "tt").mkdir(parents=True)
    (elsewhere / "tt-1-py3-none-any.whl").touch()
    expected = {"./tools/tt": "tools/tt/**", ".": "**", "tt-1-py3-none-any.whl": "tt-1-py3-none-any.whl"}
    for package, watched in expected.items():
        assert main(["ci", "github", "sm90-avx2", "-n", "--package", package]) == 0
        workflow = load(capsys.readouterr().out)
        for event in ("push", "pull_request"):
            paths = workflow["on"][event]["paths"]
            assert paths == [".github/workflows/torchtailor.yml", "torchtailor.toml", watched]
        assert workflow["env"]["TORCHTAILOR"] == f"{package}[verify]"
    assert main(["ci", "github", "sm90-avx2", "-n", "--package", "torchtailor[site]>=1"]) == 0
    assert load(capsys.readouterr().out)["env"]["TORCHTAILOR"] == "torchtailor[site,verify]>=1"


def test_an_alternative_that_selects_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ci", "github", "sm{90,99}-avx2", "-n"]) == 0
    assert "warning: sm99-avx2 matches no variant." in capsys.readouterr().err
    assert main(["matrix", "sm{90,99}-avx2"]) == 0
    assert capsys.readouterr().err == "warning: sm99-avx2 matches no variant.\n"


def test_a_system_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ci", "sm90-avx2"]) == ExitCode.USAGE
    assert "'sm90-avx2' is not github or gitlab" in capsys.readouterr().err
    assert main(["ci", "gitlab", "sm90-avx2", "--schedule", "0 3 * * 1"]) == ExitCode.USAGE
    assert "Pipeline schedules" in capsys.readouterr().err


def test_a_login_is_in_the_workflow_alone(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["ci", "github", "sm90-avx2", "-n", "--json", "--publish"]
    assert main([*line, "sftp://u:secret@host/x"]) == 0
    assert json.loads(capsys.readouterr().out)["publish"] == "sftp://****@host/x"
    for refused in ("sftp://u:secret@host/\n", "file://u:secret@host/x"):
        assert main([*line, refused]) == ExitCode.USAGE
        captured = capsys.readouterr()
        assert "****@host" in captured.err + captured.out and "secret" not in captured.err + captured.out


@pytest.mark.parametrize(
    "words",
    [
        ["--package", "git+https://user:secret@host/x"],
        ["--package", "git+https://secret@host/x"],
        ["--package", "git+ssh://git:secret@host/x"],
        ["--build-options", "--index-url https://user:secret@host/simple"],
        ["--build-options", "--extra-index-url=https://secret@host/simple"],
        ["--build-options", "-f http://a:secret@host/x"],
    ],
)
def test_a_password_is_in_no_workflow(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ci", "github", "sm90-avx2", "--dry-run", *words]) == ExitCode.USAGE
    said = capsys.readouterr()
    assert "has a password in a URL" in said.err and "secret@" not in said.err + said.out


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\ufeff", "\udcff", "\x7f", "\u202e"])
def test_a_line_end_of_yaml_is_in_no_workflow(sign: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [["--branch", f"a{sign}b"], ["--package", f"./a{sign}b"], ["--build-options", f"--with a{sign}b"]]
    lines += [["--store", f"s3://a{sign}b"], ["-o", f"a{sign}b.yml"], ["--drop", f"a{sign}b"]]
    for words in lines:
        assert main(["ci", "github", "sm90-avx2", "--dry-run", *words]) == ExitCode.USAGE, words
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "python"), [(["--python", "3.12"], "3.12"), (["--python", "3.14"], "3.14"), ([], "3.13")]
)
def test_the_python_of_a_workflow_is_that_of_its_wheels(
    words: list[str], python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another one could not import them, and `--level import` would be skipped."""
    assert main(["ci", "github", "sm90-avx2", "--dry-run", *words]) == 0
    assert f'python-version: "{python}"' in capsys.readouterr().out
    assert main(["ci", "gitlab", "sm90-avx2", "--dry-run", *words]) == 0
    assert f"image: python:{python}-bookworm" in capsys.readouterr().out


def test_a_job_has_the_python_of_what_it_builds(capsys: pytest.CaptureFixture[str]) -> None:
    """With one for all, `--level import` would be skipped for the wheels of all others."""
    line = ["sm90-avx2", "--python", "3.12,3.13", "--gpu-runner", "sm90=h100", "-n"]
    assert main(["ci", "github", *line]) == 0
    jobs = load(capsys.readouterr().out)["jobs"]
    for name in ("build", "prove"):
        rows = jobs[name]["strategy"]["matrix"]["include"]
        assert [(row["python"], row["variants"].split("-")[1]) for row in rows] == [
            ("3.12", "python312"),
            ("3.13", "python313"),
        ]
        (python,) = [step for step in jobs[name]["steps"] if "setup-python" in step.get("uses", "")]
        assert python["with"]["python-version"] == "${{ matrix.python }}"
    assert main(["ci", "gitlab", *line]) == 0
    pipeline = load(capsys.readouterr().out)
    images = {name: job["image"] for name, job in pipeline.items() if name.startswith(("build ", "prove "))}
    assert len(images) == 4
    for name, image in images.items():
        assert image == ("python:3.12-bookworm" if "python312" in name else "python:3.13-bookworm")


def test_a_version_that_no_index_may_have_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["ci", "github", "sm90-avx2", "-n"]
    monkeypatch.setattr("torchtailor.publish.ci.plan._from_index", lambda: False)
    assert main(line) == 0
    assert "warning: Its jobs install torchtailor" in capsys.readouterr().err
    assert main([*line, "--json"]) == 0
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "--package" in warning
    assert main([*line, "--package", "git+https://host/x@v1"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("torchtailor.publish.ci.plan._from_index", lambda: True)
    assert main(line) == 0
    assert capsys.readouterr().err == ""


def test_a_checkout_is_not_from_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (files, expected) in enumerate([((), True), (("direct_url.json",), False)]):
        info = tmp_path / str(number) / "torchtailor-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Name: torchtailor\nVersion: 1.0\n")
        for name in files:
            (info / name).write_text("{}")
        found = Distribution.at(info)
        monkeypatch.setattr("torchtailor.publish.ci.plan.distribution", lambda _, found=found: found)
        assert plan._from_index() == expected
    monkeypatch.setattr("torchtailor.publish.ci.plan.__version__", "1.0.dev3")
    assert not plan._from_index()


def test_a_file_that_cannot_be_written_is_an_error(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "here").write_text("")
    assert main(["ci", "github", "sm90-avx2", "-o", "here/x.yml"]) == ExitCode.ENVIRONMENT
    assert "Nothing was written." in capsys.readouterr().err


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "ci.md").read_text()
    lines = [line.strip() for line in page.splitlines() if line.strip().startswith("torchtailor ci ")]
    assert len(lines) >= 4
    for line in lines:
        assert main([*shlex.split(line, comments=True)[1:], "-n"]) == 0, line


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("system", CiSystem)
def test_shellcheck(catalog: Catalog, system: CiSystem, capsys: pytest.CaptureFixture[str]) -> None:
    forms = [[], ["--store", "s3://b/x"], ["--via", "source"], ["--via", "nix", "--store", "s3://b"]]
    for more in [*forms, ["--schedule", "0 3 * * 1"]] if system is CiSystem.GITHUB else forms:
        line = ["ci", system.value, "sm90-avx2", "--release", "cuda-13_0", "--gpu-runner", "sm90=h100", "-n", *more]
        line += [] if "nix" in more else ["--publish", "s3://b/torch"]
        assert main(line) == 0
        for text in scripts(system, load(capsys.readouterr().out)):
            done = subprocess.run(
                ["shellcheck", "-s", "sh", "-"], input=text, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, (text, done.stdout)
