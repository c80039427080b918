"""The catalog's data: whole, sourced, and answering the questions of drivers, toolkits and ISAs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtailor.catalog import Capability, Catalog, CodeTarget, Dotted, DriverFit, load_catalog
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import NoMatchError, UsageError


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def test_every_fact_has_a_source_that_exists(catalog: Catalog) -> None:
    named = [gpu.sources for gpu in catalog.gpus.values()]
    named += [isa.sources for isa in catalog.isas.values()]
    named += [toolkit.sources for toolkit in catalog.toolkits.values()]
    named += [release.sources for release in catalog.releases.values()]
    for sources in named:
        assert sources
        assert set(sources) <= set(catalog.sources)


@pytest.mark.parametrize(
    ("cuda", "driver", "fit"),
    [
        ("13.0", "580.65.06", DriverFit.FULL),
        ("13.0", "570.133.20", DriverFit.TOO_OLD),
        ("13.2", "580.95.05", DriverFit.MINOR),
        ("13.2", "595.45.04", DriverFit.FULL),
        ("12.6", "550.54.15", DriverFit.MINOR),
        ("12.6", "525.60.13", DriverFit.MINOR),
        ("12.6", "525.60.12", DriverFit.TOO_OLD),
        ("12.8", "570.26", DriverFit.FULL),
    ],
)
def test_drivers(catalog: Catalog, cuda: str, driver: str, fit: DriverFit) -> None:
    assert catalog.toolkit(cuda).fit_driver(Dotted(driver)) is fit


def test_an_update_of_a_toolkit_has_its_own_floor(catalog: Catalog) -> None:
    toolkit = catalog.toolkit("12.9.1")
    assert toolkit.fit_driver(Dotted("575.51.03")) is DriverFit.FULL
    assert toolkit.fit_driver(Dotted("575.51.03"), update="12.9.1") is DriverFit.MINOR


def test_the_last_driver_of_old_gpus(catalog: Catalog) -> None:
    bounds = {str(gpu.capability): gpu.last_driver_branch for gpu in catalog.gpus.values() if not gpu.tegra}
    assert {cap for cap, bound in bounds.items() if bound == 580} == {"5.0", "5.2", "6.0", "6.1", "7.0"}
    assert {bound for cap, bound in bounds.items() if Capability.parse(cap) >= Capability(7, 5)} == {None}


@pytest.mark.parametrize(
    ("cuda", "code", "compiles"),
    [
        ("12.8", "sm_121", False),
        ("12.9", "sm_121", True),
        ("12.9", "sm_61", True),
        ("13.0", "sm_61", False),
        ("13.0", "sm_75", True),
        ("12.8", "sm_100f", False),
        ("12.9", "sm_100f", True),
        ("12.4", "sm_90a", True),
        ("13.0", "sm_110", True),
        ("13.0", "sm_101", False),
        ("13.3", "sm_107", False),
        ("13.4", "sm_107", True),
    ],
)
def test_what_a_toolkit_compiles_for(catalog: Catalog, cuda: str, code: str, compiles: bool) -> None:
    assert catalog.toolkit(cuda).compiles(CodeTarget.parse(code)) is compiles


def test_dotted_versions_compare_by_number() -> None:
    assert Dotted("570.26") < Dotted("570.124.06")
    assert Dotted("13.0") == Dotted("13.0.0")
    assert Dotted("2.9.1") < Dotted("2.10.0")
    with pytest.raises(ValueError, match="dotted numbers"):
        Dotted("580.x")


def test_isa_flags_are_whole_words(catalog: Catalog) -> None:
    vnni = catalog.isa("avx512vnni")
    flags = catalog.microarchitecture("alderlake")[0].flags
    assert "avx_vnni" in flags
    assert "avx512_vnni" in vnni.missing_from(flags)
    assert catalog.isa("avx512vnni").includes(catalog.isa("avx2"))
    assert not catalog.isa("avx512vnni").includes(catalog.isa("avx512bf16"))
    assert not catalog.isa("armv9").includes(catalog.isa("avx2"))


def test_releases_are_found_by_name_version_and_tag(catalog: Catalog) -> None:
    assert catalog.release("2.10.0") is catalog.release("2.10") is catalog.release("pytorch210")
    assert catalog.release("cuda-13_0") is catalog.release("cuda-13_0")
    assert catalog.release("cuda-13_0").version == catalog.release("2.10").version
    assert catalog.release("pytorch28").name == "2.8"
    with pytest.raises(NoMatchError, match="No release"):
        catalog.release("3.0")


def write(folder: Path, text: str) -> Path:
    (folder / "torchtailor.toml").write_text(text)
    return folder


ORIN_ROW = """
[[row]]
release = "2.15"
cuda = "13.0"
gpus = ["8.7"]
cpus = ["armv8_2"]
"""


def test_one_row_of_the_users_adds_orin(tmp_path: Path) -> None:
    catalog = load_catalog(write(tmp_path, ORIN_ROW))
    found = Matrix(catalog).resolve("sm87-armv8_2")
    assert found.variant.unique_name == "pytorch215-python313-cuda13_0-sm87-armv8_2"
    assert str(found.variant.gpu and found.variant.gpu.capability) == "8.7"


def test_the_user_can_add_a_gpu_an_isa_and_a_release(tmp_path: Path) -> None:
    catalog = load_catalog(
        write(
            tmp_path,
            """
[[gpu]]
capability = "13.0"
family = "Feynman"
datacenter = ["F100"]
first_cuda = "14.0"
hosts = ["x86_64"]

[[isa]]
name = "neoversev1"
arch = "aarch64"
label = "Neoverse V1"
requires = ["sve", "asimddp", "bf16"]
compile_flags = ["-mcpu=neoverse-v1"]

[[cuda]]
version = "14.0"
toolkits = ["14.0.0"]
architectures = ["9.0", "13.0"]
gcc_max = 17
clang_max = 24
driver_full = "700"
driver_minor = "700"

[[release]]
name = "mine"
version = "3.0.0"
pythons = ["3.13"]

[[release.build]]
rows = [{ cpus = ["neoversev1"] }]

[[release.build]]
cuda = "14.0"
rows = [{ gpus = ["13.0"], cpus = ["avx512"] }]
""",
        )
    )
    matrix = Matrix(catalog)
    assert [v.unique_name for v in matrix.variants("mine")] == [
        "pytorch30-python313-cpu-neoversev1",
        "pytorch30-python313-cuda14_0-sm130-avx512",
    ]
    assert catalog.gpu("F100").sm == "sm130"
    assert catalog.isa("neoversev1").runs_on(catalog.microarchitecture("Graviton3")[0].flags)


@pytest.mark.parametrize(
    "text",
    [
        "not toml at all [",
        "[[gpus]]\ncapability = '8.7'",
        "[[row]]\nrelease = 'nope'\ngpus = ['8.7']\ncpus = ['armv8_2']",
        "[[row]]\nrelease = '2.15'\ngpus = ['99.0']\ncpus = ['armv8_2']",
        "[[row]]\nrelease = '2.15'\ngpus = ['8.7']\ncpus = ['mmx']",
        "[[row]]\nrelease = '2.15'\ncuda = '11.8'\ngpus = ['8.7']\ncpus = ['armv8_2']",
        "[[row]]\nrelease = '2.15'\ngpus = ['eight']\ncpus = ['armv8_2']",
        "[[row]]\nrelease = '2.15'\ncpus = 'armv8_2'",
        "[[row]]\nrelease = '2.15'\ncuda = 'x'\ngpus = ['8.7']\ncpus = ['armv8_2']",
        "[tailor]\nnvidia = 'yes'",
        "[[gpu]]\ncapability = '13.0'\nfamily = 'F'\nfirst_cuda = '14.0'\nfirst_driver = 'abc'\nhosts = ['x86_64']",
        "[[gpu]]\ncapability = '13.0'\nfamily = 'F'\nfirst_cuda = 'soon'\nhosts = ['x86_64']",
        "[[isa]]\nname = 'neoverse-v1'\narch = 'aarch64'\nlabel = 'V1'\nrequires = ['sve']\ncompile_flags = ['-O2']",
        "[[release]]\nname = 'mine'\nversion = '3.0.0'\npythons = []\n[[release.build]]\nrows = [{ cpus = ['avx2'] }]",
        "\xff",
    ],
)
def test_a_wrong_user_file_is_one_sentence_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "torchtailor.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"torchtailor\.toml"):
        load_catalog(tmp_path)


def test_a_folder_called_like_the_user_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "torchtailor.toml").mkdir()
    with pytest.raises(UsageError, match=r"torchtailor\.toml cannot be used"):
        load_catalog(tmp_path)


def test_a_row_names_its_release_as_the_commands_do(tmp_path: Path) -> None:
    text = "[[row]]\nrelease = '2.10.0'\ncuda = '13.0'\ngpus = ['8.7']\ncpus = ['armv8_2']"
    catalog = load_catalog(write(tmp_path, text))
    assert Matrix(catalog).resolve("sm87-armv8_2").variant.release.name == "2.10"
    assert "2.10.0" not in catalog.releases


def test_a_release_without_the_default_python(tmp_path: Path) -> None:
    stock = load_catalog(tmp_path)
    newest = max(stock.releases.values(), key=lambda release: release.version)
    text = "[[release]]\nname = 'mine'\nversion = '3.0.0'\npythons = ['3.11', '3.12']\n"
    matrix = Matrix(load_catalog(write(tmp_path, text + "[[release.build]]\nrows = [{ cpus = ['avx2'] }]")))
    assert [v.unique_name for v in matrix.variants("mine")] == ["pytorch30-python312-cpu-avx2"]
    assert matrix.resolve("cpu-avx2", release="mine").variant.python == "3.12"
    assert matrix.resolve("cpu-avx2").variant.release.name == newest.name  # a short name means the default Python


@pytest.mark.parametrize(
    ("pythons", "default"),
    [(["3.14", "3.14t"], "3.14"), (["3.10", "3.9"], "3.10"), (["3.14t"], "3.14t"), (["3.9", "3.13t", "3.12"], "3.12")],
)
def test_the_default_python_is_the_newest_whatever_their_order(
    tmp_path: Path, pythons: list[str], default: str
) -> None:
    text = f"[[release]]\nname = 'mine'\nversion = '3.0.0'\npythons = {pythons}\n[[release.build]]\nrows = []"
    assert load_catalog(write(tmp_path, text)).release("mine").default_python == default


def test_a_python_that_is_no_version_is_refused(tmp_path: Path) -> None:
    text = "[[release]]\nname = 'mine'\nversion = '3.0.0'\npythons = ['newest']\n[[release.build]]\nrows = []"
    with pytest.raises(UsageError, match="pythons"):
        load_catalog(write(tmp_path, text))


def test_the_oldest_driver_is_the_higher_of_gpu_and_toolkit(catalog: Catalog) -> None:
    cuda13 = catalog.toolkit("13.0")
    assert [str(driver) for driver in cuda13.drivers_for(catalog.gpu("9.0"))] == ["580.65.06", "580.65.06"]
    assert [str(driver) for driver in cuda13.drivers_for(catalog.gpu("Rubin"))] == ["615", "615"]
    assert [str(driver) for driver in catalog.toolkit("12.9").drivers_for(catalog.gpu("B200"), "12.9.1")] == [
        "570.26",
        "575.57.08",
    ]
