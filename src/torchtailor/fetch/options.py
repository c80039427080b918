"""What a command line says of indexes; apart from what reads it, which commands without indexes need not import."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """What a command line says of indexes; what it leaves open is as pip and uv are configured."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    offline: bool = False
    index_strategy: str | None = None
