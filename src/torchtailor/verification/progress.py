"""How a verification reports its progress."""

from __future__ import annotations

from typing import Protocol

from torchtailor.progress import NoProgress, Progress


class VerifyProgress(Progress, Protocol):
    """Receives the bytes read of the libraries, and what is done after that."""

    def reading(self, library: str) -> None: ...

    def stage(self, what: str) -> None: ...


class NoVerifyProgress(NoProgress):
    """Progress of a verification that nobody watches."""

    def reading(self, library: str) -> None:
        pass

    def stage(self, what: str) -> None:
        pass
