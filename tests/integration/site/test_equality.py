"""The page answers as `recommend` does: for recorded machines, the table of machines, and random combinations."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import machines
from tests.integration.site.conftest import open_page
from tests.unit.recommendation.test_machines_table import TABLE, Row
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host
from torchtailor.advise.recommendation.request import USUAL_ENVIRONMENT, Request, Workload
from torchtailor.catalog.products import product_names
from torchtailor.core.errors import TorchtailorError
from torchtailor.site.choices import form_choices
from torchtailor.site.hosts import query_host, read_query

Query = Mapping[str, Any]


@pytest.fixture(scope="module")
def page(browser: Any, site: Path) -> Any:
    open_page(browser, site / "index.html")
    return browser


def ask(page: Any, queries: Sequence[Query]) -> list[dict[str, Any]]:
    """All answers of the page, a few at a time: the driver does not wait for long."""
    script = "return JSON.stringify(arguments[0].map(q => torchtailor.answer(q)))"
    parts = (list(queries)[at : at + 20] for at in range(0, len(queries), 20))
    return [one for part in parts for one in json.loads(page.execute_script(script, part))]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(value)))


def answer(query: Query) -> Any:
    """What the command line would say to a query."""
    asked = read_query(query)
    try:
        host = query_host(machines.catalog(), asked)
        return plain(recommend_for(machines.matrix(), host, asked.request))
    except TorchtailorError as error:
        return (error.message, error.hint)


def shown(found: Mapping[str, Any]) -> Any:
    return found["recommendation"] or (found["problem"], found["hint"])


def compare(page: Any, queries: Sequence[Query]) -> None:
    wrong = [
        (query, said, wanted)
        for query, found in zip(queries, ask(page, queries), strict=True)
        if (said := shown(found)) != (wanted := answer(query))
    ]
    assert not wrong, f"{len(wrong)} of {len(queries)}, first: {json.dumps(wrong[0])[:3000]}"


def test_recorded_machines(page: Any) -> None:
    """Every recorded machine, as its description is pasted: the whole answer, reasons included."""
    hosts = {name: machines.host(name) for name in machines.NAMES}
    assert len(hosts) > 60
    queries = [{"host": json.loads(msgspec.json.encode(host))} for host in hosts.values()]
    for (name, host), found in zip(hosts.items(), ask(page, queries), strict=True):
        assert found["recommendation"] == plain(
            recommend_for(machines.matrix(), host, Request(into=USUAL_ENVIRONMENT))
        ), name


# The form asks for no glibc.
FOR_PAGE = [row for row in TABLE if (row.cpu or row.jetpack) and not row.glibc]


def check_table(page: Any, rows: Sequence[Row]) -> None:
    queries = [
        {
            "gpus": row.gpu.split(" + "),
            "cpu": row.cpu,
            "driver": row.driver,
            "jetpack": row.jetpack,
            "python": row.asked,
        }
        for row in rows
    ]
    for row, found in zip(rows, ask(page, queries), strict=True):
        best = found["recommendation"]["best"] if found["recommendation"] else None
        wanted = (row.pytorch, row.cuda, row.variant, row.method, row.python) if row.pytorch else None
        assert wanted == (
            (best["pytorch"], best["cuda"] or "", best["short_name"], best["method"], best["python"]) if best else None
        ), f"{row}: {row.why}"


def test_the_table_of_machines_gets_the_expected_variant(page: Any) -> None:
    """What someone who knows the tables of drivers and wheels would install; see test_machines_table."""
    check_table(page, FOR_PAGE[::8])


@pytest.mark.slow
def test_the_whole_table_of_machines(page: Any) -> None:
    check_table(page, FOR_PAGE)


def test_parts_by_name_are_those_of_the_command(page: Any) -> None:
    """`recommend --gpu ... --cpu ... --driver ...` itself, not by way of the page's own functions."""
    for gpus, cpu, driver in (
        (["RTX 4090"], "zen4", "570.26"),
        (["H100", "GTX 1080 Ti"], "Xeon Gold 6248", "550.54.15"),
    ):
        parts = GivenParts(tuple(gpus), cpu, driver)
        host = hypothetical_host(machines.catalog(), parts, None, lambda: machines.host("zen4").cpu)
        wanted = plain(
            recommend_for(machines.matrix(), host, Request(Workload.GENERAL, "3.12", into=USUAL_ENVIRONMENT))
        )
        (found,) = ask(page, [{"gpus": gpus, "cpu": cpu, "driver": driver, "python": "3.12"}])
        assert found["recommendation"] == wanted


def random_queries(seed: int, count: int) -> list[Query]:
    """Combinations of everything that the form offers, from one GPU to several kinds."""
    chance = random.Random(seed)
    form = form_choices(machines.catalog())
    products = [name for name, _ in form["products"]]
    cpus = [name for name, _ in form["cpus"]]
    branches = list(machines.catalog().drivers.values())

    def driver() -> str:
        branch = chance.choice(branches)
        return chance.choice(
            ["", str(branch.branch), str(branch.first), str(branch.newest), f"{branch.branch}.{chance.randint(1, 260)}"]
        )

    def key(name: str) -> str:
        return str(chance.choice(form[name])["key"])

    found: list[Query] = []
    for _ in range(count):
        kinds = chance.choices([0, 1, 2, 3], [1, 6, 3, 1])[0]
        gpus = [name for name in chance.sample(products, kinds) for _ in range(chance.choice([1, 1, 2, 4, 8]))]
        found.append(
            {
                "gpus": gpus,
                "cpu": chance.choice([*cpus, *[""] * len(cpus)]),
                "driver": driver(),
                "cuda": chance.choice(["", "12.2", "12.8", "13.0"]),
                "jetpack": key("jetpacks") if chance.random() < 0.1 else "",
                "system": key("systems") if chance.random() < 0.4 else "linux",
                "python": key("pythons"),
                "workload": key("workloads"),
                "release": key("releases") if chance.random() < 0.2 else "",
                "method": key("methods") if chance.random() < 0.2 else "",
            }
        )
    return found


def test_random_combinations(page: Any) -> None:
    compare(page, random_queries(18, 40))


@pytest.mark.slow
def test_five_hundred_random_combinations(page: Any) -> None:
    compare(page, random_queries(1018, 500))


def _mutated(name: str, chance: random.Random) -> Iterator[str]:
    yield name
    yield name.lower()
    yield f"NVIDIA {name}"
    yield name.replace(" ", "")
    yield f"{name} Laptop GPU"
    at = chance.randrange(len(name))
    yield name[:at] + chance.choice("xQ7 -") + name[at + 1 :]
    yield name[:at] + name[at + 1 :]


def check_gpu_names(page: Any, *, most: int) -> None:
    """The same architecture, doubt or error, with the same words."""
    chance = random.Random(4)
    names = list(product_names(machines.catalog().gpus))
    assert len(names) > 500
    asked = [one for name in names for one in _mutated(name, chance)]
    asked = asked[:: max(1, len(asked) // most)]
    asked += [
        "10de:2237",
        "90",
        "sm_120",
        "980",
        "Radeon RX 7900",
        "MI300X",
        "",
        "?",
        "GRID A100D-20C",
        "Æ 4090",
        "10.9",
    ]
    script = """const catalog = torchtailor.start().values.catalog;
      return JSON.stringify(arguments[0].map(name => {
        try { const m = catalog.find_gpu(name); return [m.gpu.capability.__str__(), m.doubt]; }
        catch (e) { if (e.hint === undefined) throw e; return [e.message, e.hint]; } }))"""
    for name, found in zip(asked, json.loads(page.execute_script(script, asked)), strict=True):
        try:
            match = machines.catalog().find_gpu(name)
            wanted = [str(match.gpu.capability), match.doubt]
        except TorchtailorError as error:
            wanted = [error.message, error.hint]
        assert found == wanted, name


def test_names_of_gpus_and_misspellings(page: Any) -> None:
    check_gpu_names(page, most=500)


@pytest.mark.slow
def test_every_name_of_a_gpu_and_its_misspellings(page: Any) -> None:
    check_gpu_names(page, most=10_000)


def test_every_name_of_a_cpu_and_its_misspellings(page: Any) -> None:
    chance = random.Random(5)
    names = [name for name, _ in form_choices(machines.catalog())["cpus"]]
    names += [
        "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz",
        "AMD EPYC 7763 64-Core Processor",
        "power9le",
        "i9-12900K",
    ]
    names += [row.cpu for row in TABLE if row.cpu]
    asked = [
        one
        for name in dict.fromkeys(names)
        for one in (name, name.upper(), next(iter(list(_mutated(name, chance))[5:])))
    ]
    script = """const catalog = torchtailor.start().values.catalog;
      return JSON.stringify(arguments[0].map(name => {
        try { const [c, label] = catalog.microarchitecture(name); return [c.name, label, [...c.flags].sort()]; }
        catch (e) { if (e.hint === undefined) throw e; return [e.message, e.hint]; } }))"""
    for name, found in zip(asked, json.loads(page.execute_script(script, asked)), strict=True):
        try:
            core, label = machines.catalog().microarchitecture(name)
            wanted: list[Any] = [core.name, label, sorted(core.flags)]
        except TorchtailorError as error:
            wanted = [error.message, error.hint]
        assert found == wanted, name
