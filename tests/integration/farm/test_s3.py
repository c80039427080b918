"""A store in a real S3 server: the same bytes, and what is done stays done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.publish.test_s3 import pytestmark, s3
from tests.unit.building.conftest import Workshop, catalog, hurry, workshop
from tests.unit.building.test_build import tree
from tests.unit.farm.test_wheels import OPTIONS, Farm
from torchtailor.building.farm.store import open_farm_store
from torchtailor.core.errors import EnvironmentProblem

__all__ = ["catalog", "hurry", "pytestmark", "s3", "workshop"]


@pytest.fixture
def farm(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: str, shell: object) -> Farm:
    environment: dict[str, str] = shell.environment  # type: ignore[attr-defined]
    for name, value in environment.items():
        if name.startswith(("AWS_", "FSSPEC_")):
            monkeypatch.setenv(name, value)
    made = Farm(workshop, tmp_path, monkeypatch)
    made.store = "s3://wheels/farm"  # type: ignore[assignment]
    return made


def test_a_farm_with_its_store_in_s3(farm: Farm, workshop: Workshop, tmp_path: Path) -> None:
    import fsspec

    workshop.build("sm90-avx512", options=OPTIONS)
    done = farm.build("sm90-avx512")
    assert not done.failed
    assert tree(farm.out) == tree(workshop.out)
    assert farm.build("sm90-avx512").outcomes == {}

    system = fsspec.filesystem("s3")
    packed = {digest for name, digest in tree(farm.out).items() if name.endswith(".whl")}
    blobs = [path for path in system.find("wheels/farm/blobs") if path.rpartition("/")[2] in packed]
    largest = max(blobs, key=lambda path: system.info(path)["size"])
    content = system.cat_file(largest)
    system.pipe_file(largest, b"x" + content[1:])
    again = farm.build("sm90-avx512")
    assert not again.failed and again.outcomes
    assert tree(farm.out) == tree(workshop.out)
    assert system.cat_file(largest) == content

    gone = open_farm_store("s3://no-such-bucket/farm")
    plan = farm.plan("sm90-avx512")
    assert gone.finished(list(plan.graph.makers)) == frozenset()


def test_without_credentials_it_says_so_at_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    store = open_farm_store("s3://wheels/farm")
    monkeypatch.setattr("torchtailor.core.store.time.sleep", pytest.fail)  # asking again changes nothing
    with pytest.raises(EnvironmentProblem, match="there are no credentials for it") as caught:
        store.record("0" * 64)
    assert "AWS_PROFILE" in caught.value.hint
