"""Machines by their parts, and what someone who knows the tables of drivers and wheels would install on them.

The expectations in machines_table.csv and unlisted_machines.csv (several GPUs, Pythons that are asked for, old glibc;
written down before any of them was asked) were derived from NVIDIA's driver tables and the contents of the official
wheels, not from what torchtailor answers; `why` says how. Empty columns: not given, or nothing runs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
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


# GPUs by their capabilities, and drivers: what NVIDIA's tables and the contents of the wheels say of each pair.
_KNOWN = (
    ("NVIDIA GeForce RTX 3070 Laptop GPU", "8.6"),
    ("NVIDIA RTX A5500 Laptop GPU", "8.6"),
    ("Quadro RTX 5000 with Max-Q Design", "7.5"),
    ("NVIDIA A10G", "8.6"),
    ("NVIDIA L4", "8.9"),
    ("Tesla M60", "5.2"),
    ("NVIDIA H100 PCIe", "9.0"),
    ("NVIDIA H20", "9.0"),
    ("NVIDIA GeForce GTX 1650", "7.5"),
    ("NVIDIA TITAN V", "7.0"),
    ("NVIDIA T1000 8GB", "7.5"),
    ("Quadro P2000", "6.1"),
    ("NVIDIA GeForce MX450", "7.5"),
    ("GeForce GTX 960M", "5.0"),
    ("NVIDIA RTX 2000 Ada Generation", "8.9"),
    ("NVIDIA RTX PRO 4000 Blackwell", "12.0"),
    ("NVIDIA GeForce RTX 5060 Ti", "12.0"),
    ("NVIDIA A2", "8.6"),
    ("NVIDIA A16", "8.6"),
    ("Tesla V100S-PCIE-32GB", "7.0"),
    ("Quadro GV100", "7.0"),
    ("Tesla P4", "6.1"),
    ("Tesla P100-PCIE-16GB", "6.0"),
    ("NVIDIA GeForce GTX 1080", "6.1"),
    ("Quadro K2200", "5.0"),
    ("GeForce 840M", "5.0"),
    ("NVIDIA CMP 170HX", "8.0"),
    ("NVIDIA A800-SXM4-80GB", "8.0"),
    ("NVIDIA L20", "8.9"),
    ("NVIDIA RTX 6000 Ada Generation", "8.9"),
    ("NVIDIA GeForce RTX 4090 D", "8.9"),
    ("NVIDIA GeForce RTX 5090 D", "12.0"),
    ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "8.6"),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "12.0"),
    ("GRID A100D-40C", "8.0"),
    ("NVIDIA A40-48Q", "8.6"),
    ("NVIDIA GeForce RTX 2080 SUPER", "7.5"),
    ("NVIDIA TITAN Xp", "6.1"),
    ("NVIDIA GeForce GTX 1060 3GB", "6.1"),
    ("NVIDIA GeForce GTX TITAN X", "5.2"),
    ("NVIDIA A30", "8.0"),
    ("NVIDIA B200", "10.0"),
    ("NVIDIA GeForce RTX 4060 Laptop GPU", "8.9"),
    ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
    ("Quadro T2000", "7.5"),
    ("NVIDIA GeForce RTX 5070 Laptop GPU", "12.0"),
)  # fmt: skip
_DRIVERS = (
    "450.119.03 460.91.03 470.141.03 515.65.01 520.61.05 525.85.12 535.104.05 535.230.02 545.23.08 550.54.14 560.35.03 "
    "565.57.01 570.86.15 570.172.08 575.64 580.65.06 580.105.08 590.44.01 595.58.03"
)
_FIRST_BRANCH = {"8.0": 450, "8.6": 455, "8.9": 520, "9.0": 520, "10.0": 570, "12.0": 570}


def _release_for(capability: str, driver: str) -> tuple[str, str] | None:
    """CUDA 13 needs 580.65.06 and is for Turing and newer; 12.6 ends with 2.14, 12.9 with 2.13, 11.8 with 2.7."""
    number, parts = float(capability), tuple(map(int, driver.split(".")))
    if parts[0] < _FIRST_BRANCH.get(capability, 0) or (number < 7.5 and parts[0] > 580):
        return None
    if parts >= (580, 65, 6) and number >= 7.5:
        return ("2.15.0", "13.2")
    if number >= 10:
        return ("2.13.0", "12.9") if parts >= (570, 26) else None
    return ("2.14.1", "12.6") if parts >= (525, 60, 13) else ("2.7.1", "11.8")


def _some(name: str, capability: str) -> list[str]:
    """All drivers for the first GPU of each capability; for the others four, each time from another one on."""
    number = [one for one, same in _KNOWN if same == capability].index(name)
    return _DRIVERS.split()[number % 5 :: 5 if number else 1]


def _drivers_give(name: str, capability: str, drivers: Iterable[str]) -> None:
    cpu = machines.host("zen4").cpu
    for driver in drivers:
        host = hypothetical_host(machines.catalog(), GivenParts((name,), None, driver, None), None, lambda: cpu)
        assert host.gpus[0].capability == capability
        best = recommend_for(machines.matrix(), host, Request()).best
        assert ((best.pytorch, best.cuda) if best else None) == _release_for(capability, driver), driver


@pytest.mark.parametrize(("name", "capability"), _KNOWN)
def test_drivers_of_a_gpu(name: str, capability: str) -> None:
    _drivers_give(name, capability, _some(name, capability))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "capability"), _KNOWN)
def test_every_driver_of_a_gpu(name: str, capability: str) -> None:
    _drivers_give(name, capability, _DRIVERS.split())
