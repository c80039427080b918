"""The front page of an index: what is there, how far it was verified, and what has become of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop  # noqa: F401
from torchtailor.core.documents import plain
from torchtailor.core.errors import BadInputError
from torchtailor.core.store import open_store
from torchtailor.publish import lifecycle
from torchtailor.publish.front import LEVELS
from torchtailor.publish.publish import publish
from torchtailor.verification.output import as_document
from torchtailor.verification.result import Check, Level, VerifyReport

VARIANT = "pytorch28-python313-cuda12_8-sm90-avx512"


def verified(wheelhouse: Path, *, passed: bool = True) -> None:
    checks = (
        Check.of(Level.STATIC, "coverage", True, "all there"),
        Check.of(Level.IMPORT, "import torch", passed, "works"),
    )
    document = plain(as_document(VerifyReport(str(wheelhouse), checks, {})))
    (wheelhouse / "verify.json").write_text(json.dumps(document))
    (wheelhouse / "report.html").write_text("<h1>the report</h1>")


def test_variants_sizes_and_commands(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512", "cpu-armv9")
    publish(workshop.out, open_store(str(tmp_path / "public"), "--to"))
    page = (tmp_path / "public" / "index.html").read_text()
    (about,) = [
        row for row in json.loads((tmp_path / "public" / "about.json").read_text()) if row["variant"] == VARIANT
    ]
    assert about["target"] == "cu128-sm90"
    assert about["stock_size"] > about["size"] > 0
    for text in (VARIANT, "% less", "torch==2.8.0+cu128.sm90", 'href="cu128-sm90/"', 'href="cpu/"', "no report was"):
        assert text in page
    assert "uv pip install --default-index ADDRESS-OF-THIS-PAGEcu128-sm90/ torch==2.8.0+cu128.sm90" in page


def test_a_report_is_published_and_linked(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    verified(workshop.out / VARIANT)
    publish(workshop.out, open_store(str(tmp_path / "public"), "--to"))
    page = (tmp_path / "public" / "index.html").read_text()
    assert f'<a href="reports/{VARIANT}.html">its files, and that it imports</a>' in page
    assert (tmp_path / "public" / "reports" / f"{VARIANT}.html").read_text() == "<h1>the report</h1>"


def test_a_verification_that_failed_is_none(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    verified(workshop.out / VARIANT, passed=False)
    publish(workshop.out, open_store(str(tmp_path / "public"), "--to"))
    assert "no report was published" in (tmp_path / "public" / "index.html").read_text()
    (workshop.out / VARIANT / "verify.json").write_text("{")
    with pytest.raises(BadInputError, match="not a verification report"):
        publish(workshop.out, open_store(str(tmp_path / "other"), "--to"))


def test_yanked_promoted_and_rolled_back(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    verified(workshop.out / VARIANT)
    staging, public = open_store(str(tmp_path / "staging"), "--to"), open_store(str(tmp_path / "public"), "--to")
    lifecycle.publish_recorded(workshop.out, staging)
    lifecycle.promote(staging, public)
    page = tmp_path / "public" / "index.html"
    assert VARIANT in page.read_text()
    assert (tmp_path / "public" / "reports" / f"{VARIANT}.html").is_file()
    lifecycle.yank(public, ["torch==2.8.0+cu128.sm90"], '<b>"wrong"</b>')
    assert "Do not install it any more: &lt;b&gt;&quot;wrong&quot;&lt;/b&gt;" in page.read_text()
    lifecycle.rollback(public, "previous")
    assert "Do not install it" not in page.read_text()


def test_the_levels_are_those_of_verification() -> None:
    assert tuple(level.value for level in Level) == LEVELS


def test_a_staging_index_cannot_name_paths(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    staging = tmp_path / "staging"
    publish(workshop.out, open_store(str(staging), "--to"))
    rows = json.loads((staging / "about.json").read_text())
    changes: list[dict[str, object]] = [
        {"variant": "../../x", "reported": True},
        {"requirements": []},
        {"target": "a/b"},
    ]
    for change in changes:
        (staging / "about.json").write_text(json.dumps([rows[0] | change]))
        with pytest.raises(BadInputError, match=r"about\.json"):
            lifecycle.promote(open_store(str(staging), "--to"), open_store(str(tmp_path / "public"), "--to"))
    assert not list(tmp_path.glob("x*"))
