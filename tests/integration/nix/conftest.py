"""A private Nix store for tests that build."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtailor.catalog import Catalog, load_catalog
from torchtailor.nix.nix import has_nix

needs_nix = pytest.mark.skipif(not has_nix(), reason="needs nix-instantiate (Debian: nix-bin)")
NIX = Path(__file__).parents[2] / "nix"


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(tmp_path_factory.mktemp("no-user-file"))


@pytest.fixture
def private_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of its own: no daemon, no sandbox, no substituters."""
    root = tmp_path / "nix"
    for name, folder in (
        ("NIX_STORE_DIR", "store"),
        ("NIX_STATE_DIR", "var"),
        ("NIX_LOCALSTATE_DIR", "var"),
        ("NIX_LOG_DIR", "log"),
        ("NIX_CONF_DIR", "etc"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(name, str(root / folder))
    monkeypatch.setenv("NIX_CONFIG", "sandbox = false\nbuild-users-group =\nsubstituters =\n")
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield root
    for path in (root / "store").rglob("*"):  # Nix makes its store read-only
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)
