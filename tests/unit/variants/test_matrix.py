"""The matrix: the seeds' counts exactly, names, ambiguity, selectors, rules with reasons."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.catalogs import load_pinned
from torchtailor.building.choose import choose
from torchtailor.catalog import NIX, SOURCE, WHEEL, Catalog, Fit, load_catalog
from torchtailor.catalog.variants import (
    Matrix,
    MatrixRule,
    available_methods,
    coverage,
    expand_braces,
    find_variants,
    matrix_of,
    select,
    why_impossible,
)
from torchtailor.catalog.variants.select import unmatched
from torchtailor.catalog.variants.why import explain
from torchtailor.core.errors import ImpossibleError, NoMatchError, UsageError
from torchtailor.publish.ci.plan import CiOptions, CiSystem, plan_ci

SIX = {"avx2", "avx512", "avx512bf16", "avx512vnni", "armv8_2", "armv9"}
ARM = {"armv8_2", "armv9"}
SEEDS = {
    "main": {"cpu": SIX, "sm61": {"avx", "avx2"}}
    | dict.fromkeys(("sm80", "sm86", "sm89", "sm90", "sm100", "sm120"), SIX),
    "cuda-12_9": {"cpu": SIX, "sm61": {"avx", "avx2"}}
    | dict.fromkeys(("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"), SIX),
    "cuda-13_0": {"cpu": SIX | {"avx"}, "sm110": ARM, "sm121": ARM}
    | dict.fromkeys(("sm75", "sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120"), SIX),
}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture(scope="module")
def matrix(catalog: Catalog) -> Matrix:
    return Matrix(catalog)


@pytest.fixture(scope="module")
def pinned() -> Matrix:
    """For tables of what names mean, which depends on the newest release."""
    return Matrix(load_pinned(Path("/")))


def test_the_matrix_of_a_catalog_is_made_once(catalog: Catalog) -> None:
    other = load_pinned(Path("/"))
    assert matrix_of(catalog) is matrix_of(catalog)
    assert matrix_of(other) is not matrix_of(catalog)
    assert matrix_of(other).catalog is other


@pytest.mark.parametrize(("release", "count"), [("main", 44), ("cuda-12_9", 50), ("cuda-13_0", 59)])
def test_the_seeds_releases_exactly(matrix: Matrix, release: str, count: int) -> None:
    found: dict[str, set[str]] = {}
    for variant in matrix.variants(release):
        found.setdefault(variant.gpu.sm if variant.gpu else "cpu", set()).add(variant.isa.name)
    assert found == SEEDS[release]
    assert sum(len(isas) for isas in found.values()) == count


@pytest.mark.parametrize(
    ("release", "labels"),
    [
        ("2.7", {"cpu", "cu118", "cu126", "cu128"}),
        ("2.8", {"cpu", "cu126", "cu128", "cu129"}),
        ("2.9", {"cpu", "cu126", "cu128", "cu129", "cu130"}),
        ("2.10", {"cpu", "cu126", "cu128", "cu129", "cu130"}),
        ("2.11", {"cpu", "cu126", "cu128", "cu129", "cu130"}),
        ("2.12.0", {"cpu", "cu126", "cu130", "cu132"}),
        ("2.12.1", {"cpu", "cu126", "cu129", "cu130", "cu132"}),
        ("2.9.0", {"cpu", "cu126", "cu128", "cu130"}),
    ],
)
def test_a_version_means_all_official_builds_and_a_recipes_name_its_own(
    catalog: Catalog, matrix: Matrix, release: str, labels: set[str]
) -> None:
    assert {build.label for build in catalog.release(release).builds} == labels
    wheels_only = [v for v in matrix.variants(release) if not v.build.recipes]
    assert not any(NIX in available_methods(catalog, v) for v in wheels_only)
    for variant in wheels_only[::25]:
        assert matrix.resolve(variant.unique_name).variant == variant
        assert matrix.resolve(variant.short_name, release=variant.release_name).variant.release is variant.release


def test_python_3_10_has_wheels_and_no_recipes(catalog: Catalog, matrix: Matrix) -> None:
    with_it = {str(v.release.version) for v in matrix.variants(python="3.10")}
    assert {"2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.14.1"} <= with_it and "2.15.0" not in with_it
    assert not any(NIX in available_methods(catalog, v) for v in matrix.variants("main", "3.10"))


def test_a_patch_release_is_named_by_its_whole_version(catalog: Catalog, matrix: Matrix) -> None:
    release = catalog.release("2.14.0")
    assert (str(release.version), release.git_commit[:4], release.nixpkgs) == ("2.14.0", "0818", None)
    variant = matrix.resolve("sm90-avx2", release="2.14.0").variant
    assert variant.unique_name == "pytorch214_0-python313-cuda13_0-sm90-avx2"
    assert matrix.resolve(variant.unique_name).variant == variant
    assert "3.13t" in catalog.release("2.12.0").pythons and "3.13t" not in catalog.release("2.12").pythons
    assert explain(matrix, variant.unique_name).verdicts[0].release == "2.14.0"


def test_unique_names_are_unique(matrix: Matrix) -> None:
    names = Counter(variant.unique_name for variant in matrix.variants(python="all"))
    assert {name: count for name, count in names.items() if count > 1} == {}
    assert len(names) > 1000


def test_every_variant_can_exist(matrix: Matrix) -> None:
    assert [str(v) for v in matrix.variants(python="all") if matrix.why_impossible(v)] == []


def test_every_official_row_has_a_build_method(matrix: Matrix, catalog: Catalog) -> None:
    unmade = [str(v) for v in matrix.variants() if not available_methods(catalog, v)]
    assert unmade == []


def test_every_name_of_a_variant_finds_it(matrix: Matrix) -> None:
    for variant in [*matrix.variants(), *matrix.variants("2.15", "all")]:
        assert matrix.resolve(variant.unique_name).variant == variant
        same_name = matrix.resolve(variant.name, release=variant.release_name).variant
        assert same_name.unique_name == variant.unique_name


@pytest.mark.parametrize(
    ("name", "via", "chosen"),
    [
        ("sm90-avx512", WHEEL, "pytorch215-python313-cuda13_2-sm90-avx512"),
        ("sm90-avx512", NIX, "pytorch210-python313-cuda13_0-sm90-avx512"),
        ("cpu-armv9", WHEEL, "pytorch215-python313-cpu-armv9"),
        ("sm61-avx2", WHEEL, "pytorch214-python313-cuda12_6-sm61-avx2"),
        ("sm61-avx2", SOURCE, "pytorch215-python313-cuda12_9-sm61-avx2"),
        ("sm61-avx2", NIX, "pytorch29-python313-cuda12_9-sm61-avx2"),
        ("sm70-avx512", WHEEL, "pytorch214-python313-cuda12_6-sm70-avx512"),
        ("sm121-armv9", WHEEL, "pytorch215-python313-cuda13_2-sm121-armv9"),
        ("pytorch-python312-cuda12_8-sm90-avx512", NIX, "pytorch28-python312-cuda12_8-sm90-avx512"),
        ("pytorch210-python313-cpu-avx2", WHEEL, "pytorch210-python313-cpu-avx2"),
        ("PYTORCH28-python313-cpu-avx2", WHEEL, "pytorch28-python313-cpu-avx2"),
        ("cuda12_6-sm90-avx2", WHEEL, "pytorch214-python313-cuda12_6-sm90-avx2"),
        ("python314t-sm90-avx2", WHEEL, "pytorch215-python314t-cuda13_2-sm90-avx2"),
    ],
)
def test_what_a_name_is_taken_for(pinned: Matrix, name: str, via: str, chosen: str) -> None:
    resolution = pinned.resolve(name, via=via)
    assert resolution.variant.unique_name == chosen
    assert chosen in resolution.message


def test_an_ambiguous_name_says_what_else_it_could_mean(pinned: Matrix) -> None:
    resolution = pinned.resolve("pytorch-python313-cpu-avx2")
    assert len(resolution.others) == 10
    assert "also matches pytorch214-python313-cpu-avx2" in resolution.message


@pytest.mark.parametrize(
    "name", ["", "sm90", "avx512", "sm90-mmx", "sm99-avx2", "pytorch-python399-cpu-avx2", "x" * 500]
)
def test_names_that_mean_nothing(matrix: Matrix, name: str) -> None:
    with pytest.raises(NoMatchError) as error:
        matrix.resolve(name)
    assert error.value.hint


def test_a_method_that_does_not_build_it_says_why(matrix: Matrix) -> None:
    with pytest.raises(NoMatchError, match="built with Nix"):
        matrix.resolve("sm70-avx512", via=NIX)


def test_wheel_coverage(pinned: Matrix) -> None:
    def by_wheel(name: str) -> tuple[bool, Fit, str]:
        found = coverage(pinned.catalog, pinned.resolve(name).variant, WHEEL)
        return found.available, found.fit, str(found.through)

    assert by_wheel("pytorch215-python313-cuda13_2-sm90-avx2") == (True, Fit.NATIVE, "sm_90")
    assert by_wheel("pytorch215-python313-cuda13_2-sm89-avx2") == (True, Fit.COMPATIBLE, "sm_86")
    assert by_wheel("pytorch215-python313-cuda13_2-sm89-armv9") == (True, Fit.COMPATIBLE, "sm_80")
    assert by_wheel("pytorch215-python313-cuda13_2-sm75-armv8_2") == (False, Fit.NONE, "None")
    assert by_wheel("pytorch28-python313-cuda12_8-sm61-avx2") == (False, Fit.NONE, "None")
    assert by_wheel("pytorch210-python313-cuda13_0-sm103-avx2") == (True, Fit.COMPATIBLE, "sm_100")


@pytest.mark.parametrize(
    ("release", "build", "gpu", "isa", "python", "rules"),
    [
        ("cuda-13_0", "cu130", "12.1", "avx2", "3.13", {MatrixRule.HOST}),
        ("cuda-13_0", "cu130", "11.0", "avx512", "3.13", {MatrixRule.HOST}),
        ("cuda-13_0", "cu130", "6.1", "avx2", "3.13", {MatrixRule.TOOLKIT}),
        ("main", "cu128", "10.3", "avx2", "3.13", {MatrixRule.TOOLKIT}),
        ("main", "cu128", "9.0", "avx2", "3.14", {MatrixRule.PYTHON}),
        ("main", "cu128", "12.1", "avx2", "3.7", {MatrixRule.HOST, MatrixRule.TOOLKIT, MatrixRule.PYTHON}),
        ("cuda-13_0", "cu130", "8.8", "armv9", "3.13", {MatrixRule.NOT_OFFERED}),
        ("cuda-13_0", "cu130", "9.0", "avx2", "3.13", set()),
    ],
)
def test_rules(
    catalog: Catalog, release: str, build: str, gpu: str, isa: str, python: str, rules: set[MatrixRule]
) -> None:
    found = catalog.release(release)
    label = found.build(build)
    assert label
    reasons = why_impossible(catalog, found, label, catalog.gpu(gpu), catalog.isa(isa), python)
    assert {reason.rule for reason in reasons} == rules
    assert all(reason.text.endswith(".") for reason in reasons)


def test_a_row_to_add_is_for_a_build_with_wheels(matrix: Matrix) -> None:
    """The newest CUDA of a release may have none."""
    found = explain(matrix, "sm87-armv8_2")
    wheels = next(
        verdict
        for verdict in found.verdicts
        if any(covered.method.name == WHEEL and covered.available for covered in verdict.methods)
    )
    cuda = f"{wheels.build[2:-1]}.{wheels.build[-1]}"
    assert f'release = "{wheels.release}"\n  cuda = "{cuda}"' in found.text


def test_why(matrix: Matrix) -> None:
    impossible = explain(matrix, "sm121-avx2")
    assert not impossible.possible
    assert impossible.text.startswith("sm121-avx2 is not possible.")
    assert "exists only with aarch64 hosts" in impossible.text
    orin = explain(matrix, "sm87-armv8_2")
    assert orin.possible
    newest = next(verdict for verdict in orin.verdicts if verdict.by_wheel)  # one that is not measured has none yet
    assert f'release = "{newest.release}"' in orin.text
    assert "JetPack 7.2" in orin.text
    for line in orin.text.splitlines():  # no line denies what another one says
        if "contains sm_80" in line and "none of which" in line:
            assert "(sm_80 code does from CUDA 13.2 on)" in line
    assert 'cuda = "13.2"' in orin.text.partition("To add it")[2]  # the newest with a wheel that runs
    offered = explain(matrix, "pytorch210-python313-cuda13_0-sm90-avx512")
    assert [(verdict.release, verdict.build) for verdict in offered.verdicts] == [("2.10", "cu130")]


def test_why_of_one_release_and_one_python(matrix: Matrix) -> None:
    only = explain(matrix, "sm90-avx512", release="cuda-13_0", python="3.12")
    assert [(verdict.release, verdict.build) for verdict in only.verdicts] == [("2.10", "cu130")]
    for refused in (
        explain(matrix, "cpu-avx2", release="main", python="3.14"),
        explain(matrix, "pytorch28-python37-cpu-avx2"),
    ):
        assert not refused.possible
        assert "is not available for Python" in refused.text


def test_the_cpu_wheel_does_not_claim_kernels_it_has_not(matrix: Matrix, catalog: Catalog) -> None:
    avx = matrix.resolve("cpu-avx").variant  # the official wheels have kernels for AVX2 and AVX-512, none for AVX
    assert "uses it" not in coverage(catalog, avx, WHEEL).text


def test_an_impossible_row_of_the_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torchtailor.toml").write_text(
        "[[row]]\nrelease = '2.15'\ncuda = '13.0'\ngpus = ['12.1']\ncpus = ['avx2']"
    )
    with pytest.raises(ImpossibleError, match="aarch64 hosts"):
        Matrix(load_catalog(tmp_path))


def test_variants_are_found_by_product_capability_and_isa(matrix: Matrix) -> None:
    found = find_variants(matrix, release="2.15", gpus=["RTX 4090", "9.0", "cpu"], cpus=["AVX2"], python="3.12")
    assert {variant.short_name for variant in found} == {"sm89-avx2", "sm90-avx2", "cpu-avx2"}
    assert {variant.python for variant in found} == {"3.12"}
    for wrong in ({"gpus": ["Foo"]}, {"cpus": ["mmx"]}, {"python": "2.7"}, {"release": "9.9"}):
        with pytest.raises(NoMatchError):
            find_variants(matrix, **wrong)
    with pytest.raises(NoMatchError, match=r"Python '2\.7'"):
        explain(matrix, "sm90-avx2", python="2.7")


def test_the_row_that_why_prints_can_be_added(matrix: Matrix, tmp_path: Path) -> None:
    """Also for an older patch release, to whose release it is added."""
    release = next(one for one in matrix.catalog.releases.values() if one.patches and not one.nixpkgs)
    patch = str(release.patches[0].version)
    text = explain(matrix, "sm87-armv8_2", release=patch).text
    (tmp_path / "torchtailor.toml").write_text(text[text.index("  [[row]]") :].partition("\n\n")[0])
    added = explain(Matrix(load_catalog(tmp_path)), "sm87-armv8_2", release=patch)
    assert "sm87-armv8_2 is available" in added.text


def test_selectors(matrix: Matrix) -> None:
    cuda13 = list(matrix.variants("cuda-13_0"))
    assert len(select(cuda13, ["sm{80,90}-*"])) == 12
    assert len(select(cuda13, ["*-armv9"], gpus=["sm1*"])) == 5
    assert len(select(cuda13, gpus=["cpu"])) == 7
    assert len(select(cuda13, cpus=["avx512*"])) == 27
    assert len(select(cuda13, ["pytorch210-*"])) == len(select(cuda13, ["pytorch-python313-*"])) == 59
    assert select(cuda13, ["nope"]) == ()
    assert unmatched(cuda13, ["sm{80,95,90}-avx2", "SM{80,96}-*"]) == ("sm95-avx2", "sm96-*")
    assert unmatched(cuda13, ["sm90-avx2", "sm97-avx2"]) == ("sm97-avx2",)


@pytest.mark.parametrize(
    ("selector", "more", "found"),
    [
        ("sm90-avx512", {"release": "2.15", "python": ["3.11", "3.12"]}, {("2.15.0", "3.11"), ("2.15.0", "3.12")}),
        ("sm90-avx512", {"release": "2.14,2.15", "python": "3.12"}, {("2.14.1", "3.12"), ("2.15.0", "3.12")}),
        ("pytorch215-python311-cuda13_2-sm90-avx512", {}, {("2.15.0", "3.11")}),
        ("pytorch215-python311-*-sm90-avx512", {}, {("2.15.0", "3.11")}),
        ("pytorch21{4,5}-python31{1,2}-*-sm90-avx2", {"python": "3.12"}, {("2.14.1", "3.12"), ("2.15.0", "3.12")}),
        ("pytorch24-*-sm86-avx2", {}, {("2.4.1", "3.12")}),  # its usual Python
        ("pytorch24-python38-*-sm86-avx2", {}, {("2.4.1", "3.8")}),
        ("sm90-*", {"usual_release": "2.15"}, {("2.15.0", "3.13")}),
        ("pytorch214-*-sm90-*", {"usual_release": "2.15"}, {("2.14.1", "3.13")}),
        ("*-sm90-avx2", {"release": "2.13", "python": "all"}, {("2.13.0", f"3.{n}") for n in range(10, 15)}),
    ],
)
def test_where_a_selector_looks(
    pinned: Matrix, selector: str, more: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    variants = find_variants(pinned, [selector], **more)
    seen = {(str(one.release.version), one.python) for one in variants if not one.python.endswith("t")}
    assert seen == found


@pytest.mark.parametrize(
    ("selector", "more", "says", "there"),
    [
        ("sm99-avx2", {}, "no variant has sm99", "sm90"),
        ("sm90-avx9", {}, "no variant of sm90 has avx9", "avx2"),
        ("sm61-*", {"cpus": ["armv9"]}, "no variant of sm61 has instruction set armv9", "avx2"),
        ("pytorch299-*", {}, "no variant has pytorch299", "pytorch29"),
        ("pytorch215-python38-*", {}, "no variant of pytorch215 has python38", "python311"),
        ("pytorch215-python311-cuda12_1-sm90-avx2", {}, "no variant of pytorch215, python311 has cuda12_1", "cuda13_2"),
        ("pytorch215-*-sm37-*", {}, "no variant of pytorch215 has sm37", "sm50"),
        ("pytorch215-*", {"python": "3.10"}, "no variant of Python 3.10 has pytorch215", "pytorch214"),
        (
            "pytorch215-python311-*",
            {"python": "3.12"},
            "no variant of Python 3.12, pytorch215 has python311",
            "python312",
        ),
        ("*-cuda10_2-*", {}, "no variant has cuda10_2", "cuda11_8"),
        ("sm90-avx2", {"release": "2.0"}, "no variant of release 2.0 has sm90", "sm37"),
        ("sm80-avx2", {"release": "2.15", "python": "3.10"}, "no variant of release 2.15 has Python 3.10", "3.11"),
        ("nope", {}, "No variant matches 'nope'", "sm90-avx512"),
    ],
)
def test_what_finds_nothing_is_explained_by_the_part_that_fails(
    pinned: Matrix, selector: str, more: dict[str, Any], says: str, there: str
) -> None:
    with pytest.raises(NoMatchError) as caught:
        find_variants(pinned, [selector], **more)
    assert says in caught.value.message
    assert there in caught.value.hint


def test_matrix_build_and_ci_find_the_same_variants(pinned: Matrix) -> None:
    """Selectors that name their PyTorch: of others, a build takes the newest release alone."""
    catalog = pinned.catalog
    for selector in (
        "pytorch215-python31{1,2}-cuda13_2-sm{80,90}-avx2",
        "pytorch28-*-sm120-avx2",
        "pytorch213-python312-cpu-*",
    ):
        listed = {one.unique_name for one in find_variants(pinned, [selector])}
        built = {choice.variant.unique_name for choice in choose(catalog, [selector])}
        options = CiOptions(selectors=(selector,), package="torchtailor==0.1.0")
        in_jobs = {name for job in plan_ci(catalog, CiSystem.GITHUB, options).jobs for name in job.variants}
        assert listed == built == in_jobs and listed


def test_a_name_is_built_for_each_of_several_pythons_and_releases(pinned: Matrix) -> None:
    found = choose(pinned.catalog, ["sm90-avx512"], release=("2.14", "2.15"), python="3.12,3.13")
    assert [(str(one.variant.release.version), one.variant.python) for one in found] == [
        ("2.14.1", "3.12"), ("2.14.1", "3.13"), ("2.15.0", "3.12"), ("2.15.0", "3.13"),
    ]  # fmt: skip


def test_a_variant_of_several_gpus_by_its_name(pinned: Matrix) -> None:
    variant = pinned.resolve("pytorch214-python313-cuda12_6-sm61_89-avx2").variant
    assert [str(gpu.capability) for gpu in variant.gpus] == ["6.1", "8.9"]
    assert pinned.resolve(variant.short_name).variant == variant
    assert not pinned.coverage(variant, SOURCE).available and pinned.coverage(variant, WHEEL).available
    with pytest.raises(NoMatchError, match="is not in any release"):
        pinned.resolve("sm37_121-avx2")


def test_braces() -> None:
    assert expand_braces("sm{80,9{0,1}}-*") == ("sm80-*", "sm90-*", "sm91-*")
    for wrong in ("sm{80", "sm80}", "}{", "{a,b}{c,d}{"):
        with pytest.raises(UsageError, match="brace") as error:
            expand_braces(wrong)
        assert repr(wrong) in error.value.message


def test_braces_that_would_fill_the_memory() -> None:
    with pytest.raises(UsageError, match="more than"):
        expand_braces("{a,b}" * 60)
    assert len(expand_braces("{a,a}" * 60)) == 1


@given(st.lists(st.sampled_from(["80", "90", "a", ""]), min_size=1, max_size=4), st.text("abc-*", max_size=5))
def test_braces_expand_to_each_part_once(parts: list[str], tail: str) -> None:
    expanded = expand_braces("sm{" + ",".join(parts) + "}" + tail)
    assert list(expanded) == list(dict.fromkeys(f"sm{part}{tail}" for part in parts))


def test_none_is_the_gpu_of_cpu_variants(matrix: Matrix) -> None:
    found = find_variants(matrix, gpus=["none"])
    assert found and found == find_variants(matrix, gpus=["cpu"])


@pytest.mark.parametrize("name", ["sm90-avx512", "sm120-armv9", "sm103-avx2", "sm50-avx2", "cpu-avx2"])
def test_an_explanation_fits_on_a_screen(name: str) -> None:
    """As rows of 80 columns, where nothing but the name is given; what is not there is said."""
    text = explain(matrix_of(load_catalog()), name).text
    rows = sum(max(1, -(-len(line) // 80)) for line in text.splitlines())
    assert rows <= 26, text
    assert "add --release" in text or name == "cpu-avx2"
