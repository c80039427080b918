"""Hashes: spellings, and where they are put."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recipes.conftest import write_tree
from torchtailor.catalog import Catalog
from torchtailor.errors import BuildFailedError, NoMatchError
from torchtailor.recipes.hashes import find_hashes, insert_pin_hash, replace_placeholder, to_sri
from torchtailor.recipes.recipe import PinUse
from torchtailor.recipes.syntax import NixSource

# The same hash as a real Nix prints it in both spellings
BASE32 = "14dam9fj7kcickysspiydlfas91d56fqdfqdacvn6b2vhk764awd"
SRI = "sha256-jStizoRbLGM3Uw27hp0pLSStHG0+Xq39ZJHNI12qqpE="


def test_base32_and_sri_are_the_same() -> None:
    assert to_sri(BASE32) == to_sri(f"sha256:{BASE32}") == to_sri(SRI) == SRI


@given(st.binary(min_size=32, max_size=32))
def test_hexadecimal(digest: bytes) -> None:
    assert base64.b64decode(to_sri(digest.hex()).removeprefix("sha256-")) == digest


@pytest.mark.parametrize("text", ["", "sha1:abc", "sha256:xyz", "e" * 52, "z" * 52])
def test_what_is_no_hash(text: str) -> None:
    with pytest.raises(BuildFailedError, match="not a sha256"):
        to_sri(text)


def test_a_pin_without_hash_gets_one_after_its_url() -> None:
    rev = "a" * 40
    text = f'import (builtins.fetchTarball {{\n    url = "https://x/nixpkgs/archive/{rev}.tar.gz";\n  }}) {{ }}\n'
    new = insert_pin_hash(text, PinUse(rev, "", 2), SRI)
    assert new.splitlines()[2] == f'    sha256 = "{SRI}";'
    assert NixSource(new).error_line is None


def test_a_placeholder_is_replaced_in_code_and_not_in_comments() -> None:
    text = 'fetchFromGitHub {\n  # hash = "";\n  rev = "v1";\n  hash = "";\n}\n'
    wanted = text.replace('  hash = "";\n}', f'  hash = "{SRI}";\n}}')
    assert replace_placeholder(NixSource(text), SRI) == wanted


def test_a_name_may_be_in_any_of_several_trees(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA recipes are in one release's tree only; the other trees must not refuse the name."""
    for release in ("cuda-12_9", "cuda-13_0"):
        write_tree(catalog, tmp_path / release, release, "sm90-avx512")
    monkeypatch.setattr("torchtailor.recipes.hashes.need_tool", Path)
    results = find_hashes(catalog, tmp_path, ["pytorch-python313-cuda13_0-sm90-avx512"])
    assert [result.found for result in results] == [(), ()]
    with pytest.raises(NoMatchError, match="no recipe nope"):
        find_hashes(catalog, tmp_path, ["nope"])
