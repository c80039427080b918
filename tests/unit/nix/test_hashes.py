"""Hashes: spellings, and where they are put."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.nix.conftest import write_tree
from torchtailor.catalog import Catalog
from torchtailor.core.errors import BuildFailedError, NoMatchError
from torchtailor.nix.hashes import find_hashes, insert_pin_hash, replace_placeholder, to_sri
from torchtailor.nix.pins import UNKNOWN_HASH, read_lock
from torchtailor.nix.recipe import PinUse
from torchtailor.nix.syntax import NixSource

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


HAND = """{ pkgs ? import <nixpkgs> { } }:
let
  nixpkgs_pinned = import (builtins.fetchTarball {
    url = "https://github.com/NixOS/nixpkgs/archive/6a030d535719c5190187c4cec156f335e95e3211.tar.gz";
    sha256 = "PIN";
  }) { };
in
nixpkgs_pinned.python313Packages.torch.overrideAttrs (old: {
  pname = "pytorch-python313-cuda13_0-sm90-avx512";
  version = "2.10.0";
  src = nixpkgs_pinned.fetchFromGitHub {
    rev = "v2.10.0";
    hash = "SOURCE";
  };
})
"""
OTHER = "sha256-" + "B" * 42 + "A="


@pytest.mark.parametrize("pin", ["", UNKNOWN_HASH])
@pytest.mark.parametrize("source", ["", OTHER])
def test_an_empty_hash_of_a_pin_is_filled_in_where_it_is(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: str, source: str
) -> None:
    path = tmp_path / ".flox" / "pkgs" / "pytorch-python313-cuda13_0-sm90-avx512.nix"
    path.parent.mkdir(parents=True)
    path.write_text(HAND.replace("PIN", pin).replace("SOURCE", source))

    def fetch(recipe: Path, text: str) -> tuple[str, str]:
        assert f'sha256 = "{SRI}"' in text, "the pin's own fetch would fail first"
        return UNKNOWN_HASH, OTHER

    monkeypatch.setattr("torchtailor.nix.hashes.need_tool", Path)
    monkeypatch.setattr("torchtailor.nix.hashes.prefetch_tarball", lambda url: SRI)
    monkeypatch.setattr("torchtailor.nix.hashes.fetch_source", fetch)
    find_hashes(catalog, tmp_path)
    assert path.read_text() == HAND.replace("PIN", SRI).replace("SOURCE", OTHER)
    assert read_lock(tmp_path / ".flox") == {
        "nixpkgs/6a030d535719c5190187c4cec156f335e95e3211": SRI,
        **({} if source else {"pytorch/v2.10.0": OTHER}),
    }


def test_a_name_may_be_in_any_of_several_trees(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA recipes are in one release's tree only; the other trees must not refuse the name."""
    for release in ("cuda-12_9", "cuda-13_0"):
        write_tree(catalog, tmp_path / release, release, "sm90-avx512")
    monkeypatch.setattr("torchtailor.nix.hashes.need_tool", Path)
    results = find_hashes(catalog, tmp_path, ["pytorch-python313-cuda13_0-sm90-avx512"])
    assert [result.found for result in results] == [(), ()]
    with pytest.raises(NoMatchError, match="no recipe nope"):
        find_hashes(catalog, tmp_path, ["nope"])


def test_nix_files_of_something_else_have_no_hashes_to_find(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtailor.nix.hashes.need_tool", Path)
    (tmp_path / "hello.nix").write_text("{ pkgs }: pkgs.hello\n")
    with pytest.raises(NoMatchError, match="no recipes of PyTorch"):
        find_hashes(catalog, tmp_path)
