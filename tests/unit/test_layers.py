"""The floors of the package: a module imports from floors below its own, and no import goes in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import torchtailor

pytestmark = pytest.mark.xdist_group("layers")
ROOT = Path(torchtailor.__file__).parent

# From the bottom up, as docs/architecture.md shows them; what stands on one floor does not import its neighbours. A
# package that is named with its parts has several floors, one above the other.
FLOORS = (
    {"core.shapes"},
    {
        "core.version",
        "core.errors",
        "core.progress",
        "core.format",
        "core.cgroups",
        "core.urls",
        "core.documents",
        "core.tables",
        "core.tuples",
    },
    {"core.origin"},
    {"core.disk", "core.trust", "core.extras", "core.processes", "core.pythons"},
    {"core.store", "core.room", "core.templates"},
    {"catalog"},
    {"catalog.variants"},
    {"code.binary"},
    {"code.gpucode", "code.hostcode"},
    {"trees.wheels"},
    {"trees.licences", "trees.index"},
    {"trees.artifact"},
    {"advise.host", "fetch", "workload"},
    {"advise.recommendation", "fetch.upkeep"},
    {"surgery", "oci", "site"},
    {"tailoring"},
    {"tailoring.image", "wheelhouse"},
    {"verification.failures", "verification.inspection"},
    {"verification"},
    {"verification.doctor", "verification.report"},
    {"verification.sizes"},
    {"nix"},
    {"building.ledger"},
    {"building.graph", "building.farm.records", "building.farm.fingerprint"},
    {"building.farm.store"},
    {"building"},
    {"building.farm"},
    {"publish"},
    {"publish.ci"},
    {"opsuite"},
    {"cli.ui"},
    {"cli"},
    {"__main__"},
    {"record"},
)
FLOOR_OF = {part: number for number, parts in enumerate(FLOORS) for part in parts}


def part_of(module: str) -> str:
    """The part with a floor that a module belongs to: itself, or the nearest of the packages it is in."""
    while module not in FLOOR_OF and "." in module:
        module = module.rpartition(".")[0]
    return module


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in ROOT.rglob("*.py")
    }


class FileFacts(NamedTuple):
    """What the tests ask of a file."""

    imports: tuple[str, ...]  # also inside of functions
    imports_at_once: tuple[str, ...]
    prints: tuple[int, ...]  # line numbers
    classes: tuple[str, ...]  # public ones


@cache
def facts() -> dict[str, FileFacts]:
    """Every file is parsed once."""
    known = modules()
    found = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text("utf-8"))
        nodes = [*ast.walk(tree)]
        calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        found[name] = FileFacts(
            tuple(imported(nodes, known)),
            tuple(imported(_at_import(tree), known)),
            tuple(node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"),
            tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")),
        )
    return found


def imported(nodes: Iterable[ast.AST], known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torchtailor":
            module = (node.module or "").removeprefix("torchtailor").lstrip(".")
            for name in node.names:
                inner = f"{module}.{name.name}".lstrip(".")
                yield inner if inner in known else module
        elif isinstance(node, ast.Import):
            yield from (
                name.name.removeprefix("torchtailor").lstrip(".")
                for name in node.names
                if name.name.split(".")[0] == "torchtailor"
            )


def _at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _at_import(node)


def test_every_part_has_a_floor() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # of which some have only parts
    parts = {part_of(name) for name in modules()} - {"__init__"}
    assert parts - set(FLOOR_OF) <= packages and set(FLOOR_OF) <= parts
    assert not [name for name in modules() if part_of(name) not in FLOOR_OF and name not in {"__init__", *packages}]


def test_the_page_shows_every_part_in_this_order() -> None:
    """In the table of docs/architecture.md; a package inside of a part is named in its row."""
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    shown, room = [], ""
    for cell in re.findall(r"^\| (.*?`.*?) \|", page, re.MULTILINE):
        names = [name.removesuffix(".py").strip("/") for name in re.findall(r"`([\w./]+)`", cell)]
        if "**" in cell:
            (room,) = names
            shown.append(room)
        else:
            shown += [f"{room}.{name}" for name in names]
    assert {part for part in FLOOR_OF if part.count(".") < 2} - set(shown) == {"__main__", "record"}
    for room in {part.partition(".")[0] for part in shown}:
        floors = [FLOOR_OF[part] for part in shown if part in FLOOR_OF and part.startswith(f"{room}.")]
        assert floors == sorted(floors), room
    packages = {name.rpartition(".")[0] for name, path in modules().items() if path.name != "__init__.py"} - {""}
    assert [name for name in packages if f"`{name.rpartition('.')[2]}/`" not in page] == []


def test_nothing_imports_upwards() -> None:
    upwards = []
    for name, one in facts().items():
        part = part_of(name)
        if part == "__init__":
            continue  # the lazy API names all floors
        for target in one.imports:
            other = part_of(target)
            # the package itself, without a name, is the API: above all floors
            if other != part and (not other or FLOOR_OF[other] >= FLOOR_OF[part]):
                upwards.append(f"{name} imports {target}")
    assert not upwards


def test_no_import_circles() -> None:
    known = facts()
    graph = {
        name: {target for target in one.imports_at_once if target in known and target != name}
        for name, one in known.items()
    }
    # a package's __init__ that collects names from its own modules is no circle of theirs
    for name, targets in graph.items():
        targets -= {package for package in targets if name.startswith(f"{package}.")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_library_code_never_prints() -> None:
    allowed = {"cli", "opsuite", "__main__"}
    printing = [
        f"{name}:{line}" for name, one in facts().items() if name.split(".")[0] not in allowed for line in one.prints
    ]
    assert not printing


def test_one_meaning_one_name() -> None:
    """A public class name is defined once; the op suite stands alone, and private names are their module's business."""
    seen: dict[str, str] = {}
    twice = []
    for name, one in facts().items():
        if name.startswith("opsuite"):
            continue
        for public in one.classes:
            if public in seen:
                twice.append(f"{public}: {seen[public]} and {name}")
            seen[public] = name
    assert not twice


def test_every_package_has_a_folder_of_unit_tests() -> None:
    """Of its name or of that of a package that it is in, or where CONTRIBUTING.md says."""
    elsewhere = {"trees", "trees.index", "wheelhouse"}  # of `trees` itself, the licences
    folders = {path.parent.name for path in Path(__file__).parent.rglob("test_*.py")}
    packages = {name.rpartition(".")[0] for name, path in modules().items() if path.name != "__init__.py"} - {""}
    assert {name for name in packages if not folders.intersection(name.split("."))} == elsewhere
