"""The end of a run says what skipped tests lacked, and how to get it."""

from __future__ import annotations

from pathlib import Path

from tests.skips import PACKAGES, missing, summary

CI = Path(__file__).parents[2] / ".ci" / "run"


def test_every_package_is_one_that_ci_installs() -> None:
    text = CI.read_text("utf-8")
    assert [name for name in PACKAGES if name not in text] == []


def test_reasons_are_counted_by_what_was_missing() -> None:
    packages, rights = missing(
        [
            "Skipped: cc not found",
            "Skipped: no C++ compiler here",
            "Skipped: This installation of torchtailor has no workload hook for x86_64.",
            "Skipped: needs nix-instantiate (Debian: nix-bin)",
            "Skipped: x86_64-linux-gnu-gcc, x86_64-linux-gnu-strip not found",
            "Skipped: readelf not found",
            "Skipped: chroot needs root",
            "Skipped: root may write anywhere",
            "Skipped: the file system has no access lists",
        ]
    )
    assert packages == {"g++": 3, "nix-bin": 1, "g++-x86-64-linux-gnu": 1, "binutils": 1}
    assert rights == {"root": 1}


def test_it_says_how_to_get_them() -> None:
    lines = summary(["Skipped: no redis-server here", "Skipped: no redis-server here", "Skipped: no usable GPU: none"])
    assert lines == [
        "Skipped for lack of Debian packages: redis-server (2).",
        "As root, `.ci/run` installs them and runs all tests.",
        "Skipped for lack of what cannot be installed: a GPU (1).",
    ]
    assert summary(["Skipped: the file system has no access lists"]) == []
