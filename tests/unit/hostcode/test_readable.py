"""Mangled names in sentences."""

from __future__ import annotations

import shutil

import pytest

from torchtailor.code.hostcode.readable import readable


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="c++filt is not installed")
def test_names_are_demangled() -> None:
    assert readable("first is _ZN2at6native4gemvEv (called by _Z4mainv.cold) at 0x1") == (
        "first is at::native::gemv() (called by main() [clone .cold]) at 0x1"
    )


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="c++filt is not installed")
def test_long_names_are_cut() -> None:
    name = "_ZN" + "9namespace" * 40 + "1fEv"
    assert readable(name).endswith("…")
    assert len(readable(name)) == 110


def test_without_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtailor.code.hostcode.readable.shutil.which", lambda _name: None)
    assert readable("_ZN2at6native5otherEv stays") == "_ZN2at6native5otherEv stays"
