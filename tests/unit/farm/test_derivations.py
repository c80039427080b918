"""Taking what Nix built on a farm: what is missing is built again, and other errors are said as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from torchtailor.building.farm.records import JobRecord
from torchtailor.building.farm.store import MissingOutputError, open_farm_store
from torchtailor.building.nix import derivations
from torchtailor.core.errors import EnvironmentProblem

DERIVATION = f"/nix/store/{'a' * 32}-torch.drv"
KEY = derivations.RealiseDerivation(DERIVATION).key


@pytest.mark.parametrize("missing", [False, True])
def test_only_what_has_to_be_built_is_missing(missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise EnvironmentProblem("The disk is full.", "Free some space.")

    def to_build(asked: Sequence[str], _: str) -> list[str]:
        return [*asked] if missing else []

    monkeypatch.setattr(derivations, "run_nix_job", full)
    monkeypatch.setattr(derivations, "need_tool", Path)
    monkeypatch.setattr(derivations, "_missing", to_build)
    store = open_farm_store(str(tmp_path / "store"))
    store.finish(KEY, JobRecord("nix", ()))
    with pytest.raises(EnvironmentProblem) as caught:
        derivations.take("cpu-avx2", DERIVATION, tmp_path / "dist", str(tmp_path / "store"), store)
    assert isinstance(caught.value, MissingOutputError) == missing
    assert ("disk is full" in caught.value.message) != missing
    assert (store.record(KEY) is None) == missing
