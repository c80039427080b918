"""How long work reports its progress; what is drawn of it is the caller's business."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of work that is counted in bytes."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self, size: int) -> None: ...


class NoProgress:
    """Progress that nobody watches."""

    def begin(self, what: str, total: int) -> None:
        pass

    def advance(self, size: int) -> None:
        pass
