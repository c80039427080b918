"""The order of instruction sets."""

from __future__ import annotations

import pytest

from tests import machines
from torchtailor.advise.recommendation import Workload
from torchtailor.advise.recommendation.request import rank_isas


@pytest.mark.parametrize(
    ("machine", "workload", "order"),
    [
        ("zen4", Workload.GENERAL, ["avx512", "avx512vnni", "avx512bf16", "avx2", "avx"]),
        ("zen4", Workload.BF16_TRAINING, ["avx512bf16", "avx512", "avx512vnni", "avx2", "avx"]),
        ("zen4", Workload.INT8_INFERENCE, ["avx512vnni", "avx512", "avx512bf16", "avx2", "avx"]),
        ("ice-lake-sp", Workload.BF16_TRAINING, ["avx512", "avx512vnni", "avx2", "avx"]),
        ("zen3", Workload.GENERAL, ["avx2", "avx"]),
        ("sandy-bridge", Workload.INT8_INFERENCE, ["avx"]),
        ("grace", Workload.BF16_TRAINING, ["armv9", "armv8_2"]),
        ("graviton1", Workload.GENERAL, []),
    ],
)
def test_the_order(machine: str, workload: Workload, order: list[str]) -> None:
    cpu = machines.host(machine).cpu
    ranking = rank_isas(machines.catalog().isas.values(), cpu.arch, cpu.flags, workload)
    assert [isa.name for isa in ranking.runnable] == order
    assert all(missing for _, missing in ranking.lacking)


def test_flags_are_whole_words() -> None:
    """avx_vnni is not avx512_vnni, and neither is a word that only holds it."""
    flags = set(machines.host("zen4").cpu.flags) - {"avx512_vnni"} | {"avx_vnni", "xavx512_vnni"}
    ranking = rank_isas(machines.catalog().isas.values(), "x86_64", flags, Workload.INT8_INFERENCE)
    assert "avx512vnni" not in [isa.name for isa in ranking.runnable]
    assert {isa.name: missing for isa, missing in ranking.lacking}["avx512vnni"] == ("avx512_vnni",)
