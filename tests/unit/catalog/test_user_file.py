"""`torchtailor.toml`: how its rows join the catalog's, what its errors say, and its JSON schema."""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from torchtailor.catalog import Capability, Catalog, Dotted, load_catalog
from torchtailor.catalog.tables import user_file_schema
from torchtailor.catalog.variants import Matrix
from torchtailor.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "src" / "torchtailor" / "catalog" / "data"


def load(folder: Path, text: str) -> Catalog:
    (folder / "torchtailor.toml").write_text(text)
    return load_catalog(folder)


def test_a_product_is_added_to_a_gpu_that_keeps_its_own(tmp_path: Path) -> None:
    catalog = load(tmp_path, '[[gpu]]\ncapability = "8.6"\ndatacenter = ["A10G"]\nnote = "mine"\n')
    stock = load_catalog(tmp_path / "none").gpu("8.6")
    gpu = catalog.gpu("A10G")
    assert gpu is catalog.gpu("RTX 3090")
    assert gpu.datacenter == (*stock.datacenter, "A10G")
    assert (gpu.note, gpu.family, gpu.hosts) == ("mine", "Ampere", stock.hosts)


@pytest.mark.parametrize("capability", ["8.6", "sm_86", "sm86", "86"])
def test_a_key_is_the_same_however_it_is_written(tmp_path: Path, capability: str) -> None:
    catalog = load(tmp_path, f'[[gpu]]\ncapability = "{capability}"\ndatacenter = ["A10G"]\n')
    assert catalog.gpu("A10G").capability == Capability(8, 6)
    toolkit = load(tmp_path, '[[cuda]]\nversion = "13.0.0"\ngcc_max = 99\n').toolkit("13.0")
    assert (str(toolkit.version), toolkit.gcc_max) == ("13.0", 99)


def test_a_row_replaces_only_where_asked_to(tmp_path: Path) -> None:
    row = '[[gpu]]\ncapability = "8.6"\nfamily = "Mine"\nfirst_cuda = "12.0"\nhosts = ["x86_64"]\nconsumer = ["X"]\n'
    catalog = load(tmp_path, row + "replace = true\n")
    assert (catalog.gpu("8.6").all_products, catalog.gpu("8.6").family) == (("X",), "Mine")
    assert catalog.gpu("RTX 3090") is catalog.gpu("8.6")  # by its chip, which no row takes away
    assert load(tmp_path, row + "replace = false\n").gpu("RTX 3090").family == "Mine"


def test_tables_and_lists_of_an_isa_and_a_toolkit_are_joined(tmp_path: Path) -> None:
    text = (
        '[[isa]]\nname = "avx2"\nworkloads = ["int8-inference"]\ngcc_min = 12\n'
        '[[cuda]]\nversion = "12.8"\ndriver_updates = { "12.8.2" = "570.200" }\narchitectures = ["13.0"]\n'
    )
    catalog = load(tmp_path, text)
    stock = load_catalog(tmp_path / "none")
    assert catalog.isa("avx2").workloads == ("general", "int8-inference")
    assert catalog.isa("avx2").requires == stock.isa("avx2").requires
    assert catalog.isa("avx2").gcc_min == 12
    before, after = stock.toolkit("12.8"), catalog.toolkit("12.8")
    assert after.driver_updates == {**before.driver_updates, "12.8.2": Dotted("570.200")}
    assert after.architectures == before.architectures | {Capability(13, 0)}


def test_a_release_is_joined_build_by_build(tmp_path: Path) -> None:
    text = (
        '[[release]]\nname = "2.15"\nnote = "mine"\n'
        '[[release.build]]\ncuda = "13.2"\nrows = [{ gpus = ["8.7"], cpus = ["armv8_2"] }]\n'
        '[[release.build]]\ncuda = "12.8"\nrows = [{ gpus = ["9.0"], cpus = ["avx2"] }]\n'
    )
    stock, release = load_catalog(tmp_path / "none").release("2.15"), load(tmp_path, text).release("2.15")
    assert [build.label for build in release.builds] == [*(build.label for build in stock.builds), "cu128"]
    before, after = stock.build("cu132"), release.build("cu132")
    assert before is not None and after is not None
    assert after.rows[:-1] == before.rows and after.architectures == before.architectures
    matrix = Matrix(load_catalog(tmp_path))
    assert matrix.resolve("sm87-armv8_2").variant.unique_name == "pytorch215-python313-cuda13_2-sm87-armv8_2"


def test_a_release_is_replaced_where_asked_to(tmp_path: Path) -> None:
    text = '[[release]]\nname = "2.15"\nreplace = true\nversion = "2.15.0"\npythons = ["3.13"]\n'
    matrix = Matrix(load(tmp_path, text + "[[release.build]]\nrows = [{ cpus = ['avx2'] }]\n"))
    assert [variant.short_name for variant in matrix.variants("2.15")] == ["cpu-avx2"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[gpus]]\ncapability = '8.7'", "unknown key `gpus`"),
        ("[[gpu]]\ncapability = '8.6'\nfirstcuda = '1'", "[[gpu]] 8.6: unknown key `firstcuda`"),
        ("[[gpu]]\ncapability = '13.0'", "[[gpu]] 13.0: missing key `family`"),
        ("[[gpu]]\nfamily = 'F'", "[[gpu]]: missing key `capability`"),
        ("[[gpu]]\ncapability = '8.6'\nfirst_cuda = 'soon'", "[[gpu]] 8.6, first_cuda: 'soon' is not a version"),
        ("[[gpu]]\ncapability = '8.6'\nfirst_cuda = 12.8", "[[gpu]] 8.6, first_cuda: expected a string, got 12.8"),
        ("[[gpu]]\ncapability = '8.6'\nhosts = ['riscv']", "[[gpu]] 8.6, hosts: expected `str` matching"),
        ("[[gpu]]\ncapability = '8.6'\nreplace = 'yes'", "`replace` must be true or false, not 'yes'"),
        ("[[isa]]\nname = 'avx2'\nrequires = 'avx'", "[[isa]] avx2, requires: expected `array`, got `str`"),
        ("gpu = 5", "gpu: expected `array`, got `int`"),
        ("gpu = [5]", "[[gpu]]: expected `object`, got `int`"),
        ("wheel_index = 'https://mirror/{arch}/{label}'", "wheel_index 'https://mirror/{arch}/{label}': only {label}"),
        ("wheel_index = 'https://mirror/{}'", "only {label} can stand in it"),
        ("wheel_index = 'https://mirror/{label'", "only {label} can stand in it"),
        ("[[row]]\nrelease = '2.15'\ngpus = ['x']\ncpus = []", "[[row]] 2.15, gpus: 'x' is not a compute capability"),
        ("[tailor]\nnvidea = true", "tailor: unknown key `nvidea`"),
        ("[[cpu_name]]\npattern = '('\nmicroarchitecture = 'zen4'\nlabel = 'x'", "is not a regular expression"),
        (
            "[[release]]\nname = '2.15'\n[[release.build]]\ncuda = '13.2'\nrows = [{ gpu = ['9.0'], cpus = [] }]",
            "[[release]] 2.15, build.rows: unknown key `gpu`",
        ),
    ],
)
def test_an_error_names_the_file_the_table_and_the_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path}/torchtailor.toml cannot be used: ")
    assert says in caught.value.message and caught.value.hint


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return user_file_schema()


@pytest.mark.parametrize("text", [".".join("a" * 100_000) + " = 1", "[" + '."a"' * 100_000 + "]"])
def test_a_key_of_many_parts_is_refused_at_once(tmp_path: Path, text: str) -> None:
    """Python's parser takes minutes for one of 100,000."""
    (tmp_path / "torchtailor.toml").write_text(text)
    began = time.process_time()
    with pytest.raises(UsageError, match="more than 2000 dots"):
        load_catalog(tmp_path)
    assert time.process_time() - began < 5


def test_the_stored_schema_is_that_of_the_types(schema: dict[str, Any]) -> None:
    assert json.loads((DATA / "torchtailor.schema.json").read_text()) == json.loads(json.dumps(schema)), "`make docs`"


def test_every_field_is_described(schema: dict[str, Any]) -> None:
    bare = [
        f"{name}.{field}"
        for name, definition in schema["$defs"].items()
        for field, value in definition.get("properties", {}).items()  # an enum has none
        if "description" not in value
    ]
    assert bare == []


@pytest.mark.parametrize("name", ["gpus", "cpus", "cuda", "pytorch"])
def test_the_catalogs_own_files_are_valid(schema: dict[str, Any], name: str) -> None:
    jsonschema.validate(tomllib.loads((DATA / f"{name}.toml").read_text()), schema)


def test_the_examples_of_the_document_are_valid(schema: dict[str, Any]) -> None:
    examples = (ROOT / "docs" / "extending.md").read_text().split("```toml\n")[1:]
    assert len(examples) >= 3
    for example in examples:
        jsonschema.validate(tomllib.loads(example.partition("```")[0]), schema)


@pytest.mark.parametrize(
    "text",
    [
        "[[gpus]]\ncapability = '8.7'",
        "[[gpu]]\nfamily = 'no capability'",
        "[[gpu]]\ncapability = 'eight'",
        "[[gpu]]\ncapability = '8.6'\nhosts = ['riscv']",
        "[[gpu]]\ncapability = '8.6'\nreplace = 'yes'",
        "[[isa]]\nname = 'neoverse-v1'",
        "[[row]]\nrelease = '2.15'\ncpus = 'armv8_2'",
        "[[release]]\nname = 'mine'\npythons = []",
        "[tailor]\nnvidia = 'yes'",
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(schema: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(text), schema)
    with pytest.raises(UsageError):
        load(tmp_path, text)
