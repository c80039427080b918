"""What the user chose for a build, apart from the variant."""

from __future__ import annotations

from dataclasses import dataclass

from torchtailor.fetch.target import DEFAULT_GLIBC


@dataclass(frozen=True, slots=True)
class Options:
    """Choices that decide the bytes that come out."""

    companions: tuple[str, ...] = ()
    nvidia: bool = False
    recompress: bool = False
    keep_ptx: bool = False
    strip: bool = True
    variants: bool = False
    glibc: tuple[int, int] = DEFAULT_GLIBC

    def to_json(self) -> dict[str, object]:
        return {
            "with": list(self.companions),
            "nvidia": self.nvidia,
            "recompress": self.recompress,
            "keep_ptx": self.keep_ptx,
            "strip": self.strip,
            "glibc": f"{self.glibc[0]}.{self.glibc[1]}",
        }
