"""Machines by their parts, and what someone who knows the tables of drivers and wheels would install on them.

The expectations in machines_table.csv and unlisted_machines.csv (several GPUs, Pythons that are asked for, old glibc;
written down before any of them was asked) were derived from NVIDIA's driver tables and the contents of the official
wheels, not from what torchtailor answers; `why` says how. Empty columns: not given, or nothing runs.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests import machines
from torchtailor.advise.recommendation import Request
from torchtailor.advise.recommendation.engine import recommend_for
from torchtailor.advise.recommendation.hypothetical import GivenParts, hypothetical_host


class Row(NamedTuple):
    """A machine, the expected answer, and why."""

    gpu: str
    cpu: str
    driver: str
    jetpack: str
    pytorch: str
    cuda: str
    variant: str
    code: str
    method: str
    python: str
    why: str
    asked: str = ""  # the Python that is asked for
    glibc: str = ""

    def __str__(self) -> str:
        return " + ".join(
            part for part in (self.gpu, self.cpu, self.driver or self.jetpack, self.asked, self.glibc) if part
        )


def rows(name: str) -> list[Row]:
    with (Path(__file__).parent / name).open(newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


TABLE = [*rows("machines_table.csv"), *rows("unlisted_machines.csv")]


def test_the_table_covers_what_it_should() -> None:
    assert len(TABLE) >= 150 and len(set(map(str, TABLE))) == len(TABLE)
    assert len({row.gpu for row in TABLE}) >= 70
    known = machines.catalog().drivers
    assert set(known) <= {int(row.driver.split(".")[0]) for row in TABLE if row.driver}
    assert all(row.why for row in TABLE)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_machine(row: Row) -> None:
    given = GivenParts(tuple(row.gpu.split(" + ")), row.cpu or None, row.driver or None, row.jetpack or None)
    host = hypothetical_host(machines.catalog(), given, None, lambda: machines.host("zen4").cpu)
    if row.glibc:
        system = msgspec.structs.replace(host.system, libc="glibc", libc_version=row.glibc)
        host = msgspec.structs.replace(host, system=system)
    answer = recommend_for(machines.matrix(), host, Request(python=row.asked or None))
    best = answer.best
    if best is not None:  # what is printed can be typed
        assert best.variant in (answer.command or "").split()
        assert machines.matrix().resolve(best.variant, via=best.method).variant.unique_name == best.variant
    found = (
        (best.pytorch, best.cuda or "", best.short_name, best.code or "", best.method, best.python) if best else None
    )
    wanted = (row.pytorch, row.cuda, row.variant, row.code, row.method, row.python) if row.pytorch else None
    assert found == wanted, row.why
